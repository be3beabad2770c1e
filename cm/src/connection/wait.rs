//! Waiting for files with a deadline.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use verbs::{Error, Result};

/// Waits until one of the files is readable or the deadline has passed. A signal may end the wait
/// earlier.
///
/// # Errors
/// Any errno from `ppoll(2)`.
pub(super) fn until_readable(
    verb: &'static str,
    files: &[BorrowedFd<'_>],
    deadline: Option<Instant>,
) -> Result<()> {
    let mut files: Vec<_> = files.iter().map(|file| PollFd::new(*file, PollFlags::POLLIN)).collect();
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    match ppoll(&mut files, left.map(TimeSpec::from_duration), None) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(Error::new(verb, "", errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::time::Duration;

    use nix::sys::eventfd::EventFd;

    use super::*;

    #[test]
    fn any_of_the_files_ends_the_wait_and_so_does_the_deadline() {
        let files = [(); 2].map(|()| EventFd::new().unwrap());
        let wait = |deadline| until_readable("accept", &files.each_ref().map(EventFd::as_fd), deadline);
        for deadline in [Instant::now(), Instant::now() + Duration::from_millis(1)] {
            wait(Some(deadline)).unwrap();
            assert!(Instant::now() >= deadline, "no file is readable");
        }
        for file in &files {
            file.write(1).unwrap();
            wait(None).unwrap();
            wait(Some(Instant::now() + Duration::from_secs(1 << 40))).unwrap();
            file.read().unwrap();
        }
    }
}
