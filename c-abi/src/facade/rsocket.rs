//! The sockets over RDMA (`rsocket(7)`) in `librdmacm.so.1`, which are not implemented. A program
//! that calls these functions by name, rather than through preloading, gets an error from the first
//! call.
//!
//! # References
//! `rsocket.h` in rdma-core 65.

use super::facade;

facade! {
    minus_one {
        raccept
        rbind
        rclose
        rconnect
        repoll_create
        repoll_ctl
        repoll_wait
        rfcntl
        rgetpeername
        rgetsockname
        rgetsockopt
        riounmap
        rlisten
        rpoll
        rselect
        rsetsockopt
        rshutdown
        rsocket
    }
    minus_one_size {
        riomap
        riowrite
        rread
        rreadv
        rrecv
        rrecvfrom
        rrecvmsg
        rsend
        rsendmsg
        rsendto
        rwrite
        rwritev
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;

    #[test]
    fn a_socket_is_refused_with_eopnotsupp() {
        Errno::clear();
        assert_eq!((rsocket(), Errno::last_raw()), (-1, libc::EOPNOTSUPP));
        Errno::clear();
        assert_eq!((rrecv(), Errno::last_raw()), (-1, libc::EOPNOTSUPP));
    }
}
