//! Event files: reading records and waiting for them.
//!
//! While a thread waits on a soft device, it also does the device's work ([`WaitOps`]).

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use verbs_core::provider::{Awaited, Next, WAIT_FILES, Wait, WaitOps};
use verbs_core::{Cause, Errno, Result};

use crate::handle::registry::Registry;

/// Reads one record, which the kernel always returns whole. Returns whether a record was available.
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

/// Calls `next` until it returns an event. Between calls, waits until the file is readable. `waits`
/// is the device that raises the events, if a waiting thread can do that device's work.
pub(crate) fn wait<T>(
    file: &File,
    waits: Option<&Arc<dyn WaitOps>>,
    timeout: Option<Duration>,
    verb: &'static str,
    registry: &Registry,
    mut next: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    // A deadline beyond the clock's range means no deadline.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut wait = None;
    loop {
        if let Some(event) = next()? {
            return Ok(Some(event));
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let is_late = left.is_some_and(|left| left.is_zero());
        if !is_late && let Some(waits) = waits {
            let wait = wait.get_or_insert_with(|| Arc::clone(waits).start(Awaited::Event));
            if wait.work() == Next::Look {
                continue;
            }
        }
        let ready = match sleep(Some(file.as_fd()), wait.as_deref(), left) {
            Ok(ready) => ready,
            Err(errno) => return Err(registry.error(verb, errno)),
        };
        match ready {
            Some(PollFlags::POLLERR) => {
                // The file belongs to a removed device. Reading it returns `EIO` since Linux 6.4
                // but `EAGAIN` on older kernels, where this loop would spin. An event may have
                // arrived between the last read and the removal.
                let event = next()?;
                return event.map(Some).ok_or_else(|| registry.error(verb, Errno::IO));
            }
            None if is_late => return Ok(None),
            _ => {}
        }
    }
}

/// Sleeps until `file` or a file of `wait` is readable, or until the time `left` has passed.
/// Returns the events that `ppoll` reports for `file`; `None` if there are none.
///
/// # Errors
/// Any errno from `ppoll(2)` except `EINTR`.
pub(crate) fn sleep(
    file: Option<BorrowedFd<'_>>,
    wait: Option<&(dyn Wait + 'static)>,
    left: Option<Duration>,
) -> Result<Option<PollFlags>, Errno> {
    let files = wait.map_or([None; WAIT_FILES], |wait| wait.files());
    let mut files = file.into_iter().chain(files.into_iter().flatten());
    // In a forked child, a wait has no files.
    let Some(first) = files.next().map(|file| PollFd::new(file, PollFlags::POLLIN)) else {
        std::thread::sleep(left.unwrap_or(Duration::MAX));
        return Ok(None);
    };
    let mut fds: [PollFd<'_>; 1 + WAIT_FILES] = core::array::from_fn(|_| first.clone());
    let mut count = 1;
    for file in files {
        fds[count] = PollFd::new(file, PollFlags::POLLIN);
        count += 1;
    }
    match ppoll(&mut fds[..count], left.map(TimeSpec::from_duration), None) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let of_file = file.and_then(|_| fds[0].revents());
    Ok(of_file.filter(|ready| !ready.is_empty()))
}

/// Sets `O_NONBLOCK`, so that reading an event file without events returns at once.
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

    /// Returns one end of a pipe. `ppoll` reports only `POLLERR` for it, as for the file of a
    /// removed device.
    fn broken() -> File {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        OwnedFd::from(writer).into()
    }

    #[test]
    fn waiting_at_the_file_of_a_removed_device_is_an_error_even_if_reading_is_none() {
        let (limit, registry) = (Some(Duration::from_secs(10)), Registry::new("mlx5_0"));
        let error = wait(&broken(), None, limit, "get_async_event", &registry, || Ok(None::<()>))
            .expect_err("removed");
        assert_eq!((error.verb, error.errno), ("get_async_event", Errno::IO));
    }

    #[test]
    fn an_event_from_before_the_removal_is_returned_first() {
        let mut looks = 0;
        let registry = Registry::new("mlx5_0");
        let event = wait(&broken(), None, None, "get_async_event", &registry, || {
            looks += 1;
            Ok((looks == 2).then_some(7))
        });
        assert_eq!(event, Ok(Some(7)));
    }
}
