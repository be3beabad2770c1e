//! Event files: reading records, and waiting for them.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use verbs_core::{Cause, Errno, Result};

use crate::handle::registry::Registry;

/// Reads one record, which the kernel always returns whole. Returns whether there was one.
pub(crate) fn read_record(
    mut file: &File,
    record: &mut [u8],
    verb: &'static str,
    registry: &Registry,
) -> Result<bool> {
    loop {
        match file.read(record) {
            Ok(len) if len == record.len() => return Ok(true),
            Ok(_) => {
                let cause = Cause::BadReply { what: "an event of the wrong length" };
                return Err(registry.error(verb, Errno::IO).because(cause));
            }
            Err(error) => match Errno::from_io(&error) {
                Errno::INTR => {}
                Errno::AGAIN => return Ok(false),
                errno => return Err(registry.error(verb, errno)),
            },
        }
    }
}

/// Calls `next` until it returns an event; waits in between until the file is readable.
pub(crate) fn wait<T>(
    file: &File,
    timeout: Option<Duration>,
    verb: &'static str,
    registry: &Registry,
    mut next: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    // A deadline beyond the clock's range means no deadline.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        if let Some(event) = next()? {
            return Ok(Some(event));
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut fds, left.map(TimeSpec::from_duration), None) {
            Ok(0) if left.is_some_and(|left| left.is_zero()) => return Ok(None),
            // The file of a removed device. Reading it returns `EIO` since Linux 6.4 but `EAGAIN`
            // on older kernels, where this loop would spin.
            Ok(_) if fds[0].revents().is_some_and(|ready| ready == PollFlags::POLLERR) => {
                // An event may have arrived between the last look and the removal.
                let event = next()?;
                return event.map(Some).ok_or_else(|| registry.error(verb, Errno::IO));
            }
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(registry.error(verb, errno.into())),
        }
    }
}

/// Makes reads of an empty file return at once.
pub(crate) fn set_nonblocking(file: &File, verb: &'static str, registry: &Registry) -> Result<()> {
    let error = |errno: nix::errno::Errno| registry.error(verb, errno.into());
    let flags = OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL).map_err(error)?);
    fcntl(file, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map_err(error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::pipe;
    use std::os::fd::OwnedFd;

    use super::*;

    /// Returns the end of a pipe for which `ppoll` reports only `POLLERR`, as for the file of a
    /// removed device.
    fn broken() -> File {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        OwnedFd::from(writer).into()
    }

    #[test]
    fn waiting_at_the_file_of_a_removed_device_is_an_error_even_if_reading_is_none() {
        let (limit, registry) = (Some(Duration::from_secs(10)), Registry::new("mlx5_0"));
        let error =
            wait(&broken(), limit, "get_async_event", &registry, || Ok(None::<()>)).expect_err("removed");
        assert_eq!((error.verb, error.errno), ("get_async_event", Errno::IO));
    }

    #[test]
    fn an_event_from_before_the_removal_is_returned_first() {
        let mut looks = 0;
        let registry = Registry::new("mlx5_0");
        let event = wait(&broken(), None, "get_async_event", &registry, || {
            looks += 1;
            Ok((looks == 2).then_some(7))
        });
        assert_eq!(event, Ok(Some(7)));
    }
}
