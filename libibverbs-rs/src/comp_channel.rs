//! [`CompChannel`]: the file at which completion queues signal that there is something to poll.
//!
//! C counts the events that a program has seen and makes destroying a completion queue wait until
//! all are acknowledged, because its events are pointers. Here an event is an id that goes stale:
//! the kernel drops a queue's unread events when it destroys the queue, and one that was read
//! before names nothing any more. So there is nothing to acknowledge.
//!
//! The file never blocks: [`next_event`](CompChannel::next_event) returns `None`,
//! [`wait`](CompChannel::wait) waits.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use verbs_core::provider::{ContextOps, Provider};
use verbs_core::{Cause, Errno, Result};

use crate::registry::{Child, CqId, Registry};
use crate::{Context, HandleError};

/// The file at which completion queues signal that there is something to poll, once
/// [`Cq::req_notify`](crate::Cq::req_notify) asked them to. One channel serves any number of queues
/// of its device.
///
/// The order that misses nothing: `req_notify`, poll until empty, [`wait`](Self::wait), and again.
/// In an event loop, the descriptor is readable when there is an event ([`AsFd`], [`AsRawFd`]); it
/// is non-blocking.
///
/// # References
/// `ibv_create_comp_channel(3)`
#[doc(alias = "ibv_comp_channel")]
#[derive(Debug)]
pub struct CompChannel {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    file: File,
    registry: Arc<Registry>,
    _context: Child,
}

/// A completion arrived in a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CqEvent {
    /// The [`id`](crate::Cq::id) of the queue.
    pub cq: CqId,
}

impl CompChannel {
    pub(crate) fn create<P: Provider>(context: &Context<P>) -> Result<Self> {
        let file = context.raw().device().create_comp_channel()?.into();
        let registry = Arc::clone(context.registry());
        set_nonblocking(&file, "create_comp_channel", &registry)?;
        let context = context.child(&registry.channel_tally);
        Ok(Self { inner: Arc::new(Inner { file, registry, _context: context }) })
    }

    /// Returns the next event; `None` where there is none now. It never waits: see
    /// [`wait`](Self::wait).
    ///
    /// Events of queues that were destroyed are skipped. Threads may call it together; each event
    /// goes to one of them.
    ///
    /// # Errors
    /// `EIO` where the device is gone.
    ///
    /// # References
    /// `ibv_get_cq_event(3)`
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn next_event(&self) -> Result<Option<CqEvent>> {
        let mut record = [0; size_of::<u64>()];
        while read_record(&self.inner.file, &mut record, "get_cq_event", &self.inner.registry)? {
            if let Some(cq) = self.inner.registry.cq(u64::from_ne_bytes(record)) {
                return Ok(Some(CqEvent { cq }));
            }
        }
        Ok(None)
    }

    /// Waits for the next event, at most for `timeout` if there is one; `None` when the time is
    /// over.
    ///
    /// # Errors
    /// As [`next_event`](Self::next_event); any errno of `ppoll(2)`.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<CqEvent>> {
        wait(&self.inner.file, timeout, "get_cq_event", &self.inner.registry, || self.next_event())
    }

    /// Closes it, if no completion queue uses it. Dropping does the same once they are gone.
    ///
    /// # Errors
    /// [`Cause::InUse`], and the channel.
    ///
    /// # References
    /// `ibv_destroy_comp_channel(3)`
    #[doc(alias = "ibv_destroy_comp_channel")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        match Arc::try_unwrap(self.inner) {
            Ok(_) => Ok(()),
            Err(inner) => {
                let error = inner.registry.in_use("destroy_comp_channel", "completion queues");
                Err(HandleError { handle: Self { inner }, error })
            }
        }
    }

    /// Returns a completion queue's share of it.
    pub(crate) fn share(&self, registry: &Arc<Registry>) -> Result<Arc<Inner>> {
        if !Arc::ptr_eq(&self.inner.registry, registry) {
            return Err(registry.foreign("create_cq", "completion channel"));
        }
        Ok(Arc::clone(&self.inner))
    }
}

/// Readable when there is an event.
impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }
}

/// The descriptor, for event loops that take numbers. It stays the channel's.
impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.file.as_raw_fd()
    }
}

/// Reads one record of the kernel's, which never returns less. Returns whether there was one.
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

/// Calls `next` until it returns an event, waiting in between while the file has nothing to read.
pub(crate) fn wait<T>(
    file: &File,
    timeout: Option<Duration>,
    verb: &'static str,
    registry: &Registry,
    mut next: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    // A time that overflows the clock never comes.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        if let Some(event) = next()? {
            return Ok(Some(event));
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut fds, left.map(TimeSpec::from_duration), None) {
            Ok(0) if left.is_some_and(|left| left.is_zero()) => return Ok(None),
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(registry.error(verb, errno.into())),
        }
    }
}

/// Makes reading an empty file return at once.
pub(crate) fn set_nonblocking(file: &File, verb: &'static str, registry: &Registry) -> Result<()> {
    let error = |errno: nix::errno::Errno| registry.error(verb, errno.into());
    let flags = OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL).map_err(error)?);
    fcntl(file, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map_err(error)?;
    Ok(())
}
