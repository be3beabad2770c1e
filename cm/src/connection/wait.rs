//! Waiting for files with a deadline.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use verbs::{Error, Result};

/// Waits until one of the files is readable, or the deadline is over. A signal may end it earlier.
///
/// # Errors
/// Any errno of `ppoll(2)`.
pub(super) fn until_readable<const N: usize>(
    verb: &'static str,
    files: [BorrowedFd<'_>; N],
    deadline: Option<Instant>,
) -> Result<()> {
    let mut files = files.map(|file| PollFd::new(file, PollFlags::POLLIN));
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    match ppoll(&mut files, left.map(TimeSpec::from_duration), None) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(Error::new(verb, "", errno.into())),
    }
}
