//! [`free`]: TCP ports for servers that take their port as an argument.
//!
//! The kernel assigns each client a port from a range. A port in this range may be free when a test
//! checks it, yet be used by another test's client before the server binds it. The ports here lie
//! outside the range.

use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, socket};

/// The maximum number of ports to try.
const COUNT: u16 = 16_384;

/// The distance between the first ports that two processes with consecutive ids try.
const STRIDE: usize = 64;

/// Returns an unused TCP port. This process gets the same port again only after all the others.
///
/// # Errors
/// Fails if all ports are in use, or if the kernel does not show its client port range.
pub fn free() -> io::Result<u16> {
    static LOOKED: AtomicUsize = AtomicUsize::new(0);
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")?;
    free_of(&outside(&range)?, std::process::id() as usize * STRIDE, &LOOKED)
}

/// Returns the next free candidate, counting from `start`. `looked` counts the candidates tried.
fn free_of(candidates: &Range<u16>, start: usize, looked: &AtomicUsize) -> io::Result<u16> {
    for _ in 0..candidates.len() {
        let at = (start + looked.fetch_add(1, Ordering::Relaxed)) % candidates.len();
        let port = candidates.start + at as u16;
        if is_free(port)? {
            return Ok(port);
        }
    }
    Err(io::Error::other(format!("no port of {candidates:?} is free")))
}

/// Returns whether a port can be bound. The socket never listens, because another test's client
/// would connect to it and be reset.
fn is_free(port: u16) -> io::Result<bool> {
    let probe = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    Ok(bind(probe.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, port)).is_ok())
}

/// Returns ports that the kernel never gives to clients: below or above its range, whichever side
/// has more.
fn outside(range: &str) -> io::Result<Range<u16>> {
    const UNPRIVILEGED: u16 = 1024;
    let wrong = || io::Error::other(format!("not a range of ports: {range:?}"));
    let mut numbers = range.split_whitespace().map(|word| word.parse::<u16>().map_err(|_| wrong()));
    let (Some(first), Some(last)) = (numbers.next(), numbers.next()) else { return Err(wrong()) };
    let (first, last) = (first?, last?);
    let (below, above) = (first.saturating_sub(UNPRIVILEGED), u16::MAX - last);
    if below == 0 && above == 0 {
        return Err(io::Error::other("clients get every port (net.ipv4.ip_local_port_range)"));
    }
    Ok(if below >= above { first - below.min(COUNT)..first } else { last + 1..last + above.min(COUNT) })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn ports_lie_outside_of_the_clients_range() {
        for (range, expected) in [
            ("32768\t60999\n", Some(16_384..32_768)),
            ("9000 65535", Some(1024..9000)),
            ("1025 50000", Some(50_001..65_535)),
            ("1024 65535", None),
            ("", None),
            ("1 b", None),
        ] {
            assert_eq!(outside(range).ok(), expected, "{range}");
        }
    }

    #[test]
    fn a_port_that_is_taken_is_not_given() {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, free().unwrap())).unwrap();
        let taken = listener.local_addr().unwrap().port();
        let given = free_of(&(taken..taken + 1), 0, &AtomicUsize::new(0));
        assert!(given.is_err(), "{given:?}");
    }

    #[test]
    fn each_port_is_given_once() {
        let mut given: Vec<u16> = (0..200).map(|_| free().unwrap()).collect();
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), 200);
    }
}
