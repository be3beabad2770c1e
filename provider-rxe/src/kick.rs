//! The kick: the system call that makes the kernel process a send queue.
//!
//! It is a `POST_SEND` command without a work request. During this system call the kernel runs the
//! requester over the entries of the mapped queue. The bytes of the command are prepared once.
//!
//! # Safety
//! The command contains the address of the kernel's reply; see [`Kick`].
//!
//! # References
//! Linux `drivers/infiniband/core/uverbs_cmd.c` (`ib_uverbs_post_send`),
//! `drivers/infiniband/sw/rxe/rxe_verbs.c` (`rxe_post_send`)
#![allow(unsafe_code)]

use core::mem::size_of;
use core::sync::atomic::AtomicU32;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_POST_SEND, IbUverbsCmdHdr, IbUverbsPostSend, IbUverbsPostSendResp, IbUverbsSendWr,
};
use verbs_core::Errno;
use verbs_core::types::{PostError, PostReason};
use zerocopy::{Immutable, IntoBytes};

/// The system call that makes the kernel process a send queue.
///
/// The system call is always `write()`, even on kernels that accept the command as an ioctl: every
/// kernel supports `write()`, and it is the shortest path.
pub(crate) struct Kick {
    fd: Arc<OwnedFd>,
    request: Request,
    /// The kernel's reply, a count of unposted work requests. The count is always zero, because the
    /// command names no requests.
    _response: Box<AtomicU32>,
}

#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct Request {
    hdr: IbUverbsCmdHdr,
    command: IbUverbsPostSend,
}

impl Kick {
    /// Prepares the kick of a queue pair.
    pub(crate) fn new(fd: Arc<OwnedFd>, qp_handle: u32) -> Self {
        const { assert!(size_of::<IbUverbsPostSendResp>() == size_of::<AtomicU32>()) }
        let response = Box::new(AtomicU32::new(0));
        let request = Request {
            hdr: IbUverbsCmdHdr {
                command: IB_USER_VERBS_CMD_POST_SEND,
                in_words: (size_of::<Request>() / 4) as u16,
                out_words: (size_of::<IbUverbsPostSendResp>() / 4) as u16,
            },
            command: IbUverbsPostSend {
                response: response.as_ptr().expose_provenance() as u64,
                qp_handle,
                wr_count: 0,
                sge_count: 0,
                wqe_size: size_of::<IbUverbsSendWr>() as u32,
            },
        };
        Self { fd, request, _response: response }
    }

    /// Kicks after a whole batch was accepted. If the kick fails, the error reports the whole batch
    /// as accepted.
    #[inline(never)]
    pub(crate) fn kick_for(&self, accepted: usize) -> Result<(), PostError> {
        self.kick().map_err(|errno| PostError { accepted, reason: PostReason::Doorbell(errno) })
    }

    /// Makes the system call. Not inlined, because saving its registers would cost the caller more
    /// than the call costs here.
    #[inline(never)]
    pub(crate) fn kick(&self) -> Result<(), Errno> {
        loop {
            // SAFETY: the buffer is valid for its length. The kernel writes 4 bytes to the
            // response's address; `_response` owns them, lives as long as `self`, and is never
            // read; an atomic may be written behind a shared reference.
            let written = unsafe {
                libc::write(self.fd.as_raw_fd(), (&raw const self.request).cast(), size_of::<Request>())
            };
            if written == size_of::<Request>() as isize {
                return Ok(());
            }
            // A second kick is harmless.
            let errno = if written < 0 { Errno::last() } else { Errno::IO };
            if errno != Errno::INTR {
                return Err(errno);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_kick_is_a_command_without_work_requests_that_can_be_answered() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let kick = Kick::new(Arc::new(OwnedFd::from(ours)), 0x0102_0304);
        for _ in 0..2 {
            kick.kick().unwrap();
            let mut bytes = [0; size_of::<Request>()];
            theirs.read_exact(&mut bytes).unwrap();
            let word = |n: usize| u32::from_ne_bytes(*bytes[n * 4..].first_chunk().unwrap());
            let half = |n: usize| u16::from_ne_bytes(*bytes[n * 2..].first_chunk().unwrap());
            assert_eq!(word(0), IB_USER_VERBS_CMD_POST_SEND);
            assert_eq!((half(2), half(3)), (8, 1), "lengths in words of command and reply");
            let response = u64::from_ne_bytes(*bytes[8..].first_chunk().unwrap());
            assert_eq!(response, kick._response.as_ptr() as u64);
            assert_eq!((word(4), word(5), word(6)), (0x0102_0304, 0, 0));
            assert_eq!(word(7), size_of::<IbUverbsSendWr>() as u32);
        }
    }

    #[test]
    fn a_kick_reports_why_the_kernel_refused() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let kick = Kick::new(Arc::new(OwnedFd::from(ours)), 1);
        let errno = kick.kick().unwrap_err();
        assert_eq!(errno.raw(), libc::EPIPE);
        assert_eq!(kick.kick_for(3), Err(PostError { accepted: 3, reason: PostReason::Doorbell(errno) }));
    }
}
