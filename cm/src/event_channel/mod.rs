//! [`EventChannel`]: the source of events for a set of ids.
//!
//! ```text
//!   source ─► RawEvent ─► table: whose? ─┬─ stale: skipped (a request is rejected)
//!                                        └─ IdInner ─► dispatch ─┬─ consumed inside
//!                                                                └─ Event
//! ```
//!
//! The sources' files never block. Threads wait in `ppoll(2)`, or in `epoll_wait(2)` if there are
//! several sources. Any number of threads may therefore wait on one channel: an event wakes some of
//! these threads; one thread gets the event and the others wait again. A channel cannot be closed
//! under a waiting thread, because that thread borrows it.

pub(crate) mod dispatch;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use verbs::{Cause, Error, QpType, Result};

#[cfg(feature = "soft")]
use crate::backend::{Choice, Soft};
use crate::backend::{Kernel, RawEvent, Source};
use crate::channel::Ucma;
use crate::cmd;
use crate::device::Port;
use crate::event::Event;
use crate::id::{self, CmId, table};
use crate::types::PortSpace;

const VERB: &str = "get_cm_event";

/// An event channel: creates ids and reports their events.
///
/// The descriptor ([`AsFd`], [`AsRawFd`]) is readable while there are events, for use in event
/// loops. An edge-triggered loop reads events until [`try_next_event`](Self::try_next_event)
/// returns `None`.
///
/// Ids keep alive the parts of the channel that they need. If the channel is dropped first, their
/// events are never read. [`CmId::migrate`] moves an id to another channel.
///
/// # References
/// `rdma_create_event_channel(3)`, `rdma_get_cm_event(3)`
#[doc(alias = "rdma_event_channel")]
#[derive(Debug)]
pub struct EventChannel {
    first: Arc<dyn Source>,
    /// Sources that can report without a system call whether they have an event.
    more: Vec<Arc<dyn Source>>,
    /// A counter that selects the source to query first. It rotates, so that a busy source starves
    /// no other source.
    turn: AtomicUsize,
    /// The epoll descriptor that covers all sources, if there are several.
    epoll: Option<Epoll>,
    /// Wakes threads waiting only for the kernel's file, when an id with unread events moves here.
    /// Created by the first of these threads.
    moved: OnceLock<EventFd>,
    /// The reason why the channel has no ids of the kernel's connection manager.
    kernel_error: Option<Arc<Error>>,
}

impl EventChannel {
    /// Opens a channel. Its ids use the kernel's connection manager and the process's soft devices
    /// (`verbs::soft`), including those requested by `VERBS_SOFT`. The address of an id selects the
    /// device.
    ///
    /// A channel opened before the first soft device of the process never uses soft devices.
    ///
    /// # Errors
    /// - [`Cause::File`](verbs::Cause::File), with the path and a hint, if the connection manager's
    ///   file is missing or cannot be opened.
    /// - `ENOSYS` for an unknown ABI.
    /// - [`Cause::LeftOut`](verbs::Cause::LeftOut) instead of these two errors if `VERBS_SOFT`
    ///   requests a soft device that cannot be created.
    /// - Any errno from `eventfd(2)` and `epoll_create1(2)`.
    ///
    /// In a process with soft devices, the first two errors do not fail the call;
    /// [`kernel_error`](Self::kernel_error) returns them.
    ///
    /// # References
    /// `rdma_create_event_channel(3)`
    #[doc(alias = "rdma_create_event_channel")]
    #[doc(alias = "rdma_destroy_event_channel")]
    pub fn new() -> Result<Self> {
        id::room("create_event_channel")?;
        let has_soft = !Port::all().is_empty();
        Self::with(cmd::probe::open(), has_soft).map_err(|error| match Port::missing() {
            // The user requested a soft device, so the reason for its absence is more informative
            // than the kernel's missing file.
            Some(missing) if !has_soft => missing.into_error("create_event_channel"),
            _ => error,
        })
    }

    /// Returns a channel with the available backends.
    fn with(kernel: Result<Arc<Ucma>>, has_soft: bool) -> Result<Self> {
        match kernel {
            #[cfg(feature = "soft")]
            kernel if has_soft => Self::with_soft(kernel),
            kernel => {
                debug_assert!(!has_soft, "no port exists without the feature");
                Self::from_sources(Arc::new(Kernel(kernel?)), Vec::new())
            }
        }
    }

    /// Returns a channel for soft devices. It also has kernel devices if the kernel's connection
    /// manager is available.
    #[cfg(feature = "soft")]
    fn with_soft(kernel: Result<Arc<Ucma>>) -> Result<Self> {
        match kernel {
            Ok(ucma) => {
                let soft = Soft::new()?;
                Self::from_sources(Arc::new(Choice::new(Kernel(ucma), Arc::clone(&soft))), vec![soft])
            }
            Err(error) => {
                let error = Arc::new(error);
                let channel = Self::from_sources(Soft::without_kernel(&error)?, Vec::new())?;
                Ok(Self { kernel_error: Some(error), ..channel })
            }
        }
    }

    /// Returns the reason why this channel's ids cannot use kernel devices: the error from opening
    /// the connection manager's file. The channel itself works because the process has soft
    /// devices.
    ///
    /// [`CmId::resolve_addr`] fails with this error for addresses that no soft device reaches,
    /// unless the file is missing. A machine without the file usually has no kernel device, so
    /// [`AddrError`](crate::EventKind::AddrError) then reports `ENODEV`.
    pub fn kernel_error(&self) -> Option<&Error> {
        self.kernel_error.as_deref()
    }

    /// Returns whether ids of this channel may use soft devices.
    pub fn has_soft(&self) -> bool {
        #[cfg(feature = "soft")]
        return self.first.soft().is_some();
        #[cfg(not(feature = "soft"))]
        false
    }

    /// Returns a channel with one or more sources.
    ///
    /// # Errors
    /// Any errno from `epoll_create1(2)` and `epoll_ctl(2)`.
    pub(crate) fn from_sources(first: Arc<dyn Source>, more: Vec<Arc<dyn Source>>) -> Result<Self> {
        let error = |errno: nix::errno::Errno| Error::new("create_event_channel", "", errno.into());
        let epoll = if more.is_empty() {
            None
        } else {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(error)?;
            for (index, source) in more.iter().chain([&first]).enumerate() {
                epoll.add(source.fd(), readable(index)).map_err(error)?;
            }
            Some(epoll)
        };
        let moved = OnceLock::new();
        Ok(Self { first, more, turn: AtomicUsize::new(0), epoll, moved, kernel_error: None })
    }

    /// Creates an id that reports its events on this channel. The space implies the transport
    /// service ([`PortSpace::qp_type`]).
    ///
    /// # Errors
    /// `EINVAL` for a space unknown to the kernel; any other errno the kernel returns.
    ///
    /// # References
    /// `rdma_create_id(3)`
    #[doc(alias = "rdma_create_id")]
    pub fn create_id(&self, space: PortSpace) -> Result<CmId> {
        self.create_id_of(space, space.qp_type())
    }

    /// Creates an id as [`create_id`](Self::create_id) does, with another transport service. Only
    /// the space [`IB`](PortSpace::IB) offers a choice; `qp_type` is ignored in other spaces.
    ///
    /// # Errors
    /// Same as [`create_id`](Self::create_id).
    #[doc(alias = "rdma_create_id")]
    pub fn create_id_of(&self, space: PortSpace, qp_type: QpType) -> Result<CmId> {
        let qp_type = if space == PortSpace::IB { qp_type } else { space.qp_type() };
        id::room("create_id")?;
        let cookie = table::reserve().map_err(|errno| Error::new("create_id", "", errno))?;
        match self.first.create_id(cookie.0, space, qp_type) {
            Ok(backend) => Ok(CmId::new(cookie, backend, space, qp_type)),
            Err(error) => {
                table::remove(cookie);
                Err(error)
            }
        }
    }

    /// Waits for the next event without a time limit and returns it.
    ///
    /// Events for dropped ids are skipped. Several threads may call this method at the same time;
    /// each event goes to one of them.
    ///
    /// Signals do not end the wait, as in the standard library; librdmacm's call ends with `EINTR`.
    /// To stop a waiting thread, write an event for it ([`CmId::write_event`]), though not from a
    /// signal handler. Alternatives are a wait with a limit
    /// ([`next_event_within`](Self::next_event_within)), or `poll(2)` on the channel's descriptor
    /// and another descriptor.
    ///
    /// # Errors
    /// Any errno from the kernel and of `ppoll(2)`. In a forked child,
    /// [`Cause::Forked`](verbs::Cause::Forked) (`ENODEV`) if the channel has only soft ids,
    /// otherwise `EACCES` from the kernel. Failures of an id are events, not errors.
    ///
    /// # References
    /// `rdma_get_cm_event(3)`
    #[doc(alias = "rdma_get_cm_event")]
    pub fn next_event(&self) -> Result<Event> {
        loop {
            if let Some(event) = self.wait(None)? {
                return Ok(event);
            }
        }
    }

    /// Waits at most `timeout` for the next event. Returns `None` on timeout.
    ///
    /// # Errors
    /// Same as [`next_event`](Self::next_event).
    #[doc(alias = "rdma_get_cm_event")]
    pub fn next_event_within(&self, timeout: Duration) -> Result<Option<Event>> {
        // A deadline beyond the clock's range means no deadline.
        self.wait(Instant::now().checked_add(timeout))
    }

    /// Returns the next event without waiting; `None` if no event is pending.
    ///
    /// # Errors
    /// Same as [`next_event`](Self::next_event).
    #[doc(alias = "rdma_get_cm_event")]
    pub fn try_next_event(&self) -> Result<Option<Event>> {
        while let Some(raw) = self.next_raw()? {
            if let Some(event) = dispatch::dispatch(raw) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Returns the event source of this channel, for ids that migrate to it.
    pub(crate) fn source(&self) -> &dyn Source {
        &*self.first
    }

    /// Makes waiting threads check for events of an id that has moved here. The kernel does not
    /// wake these threads; an epoll descriptor checks a file only when woken or modified.
    ///
    /// # Errors
    /// Any errno from `epoll_ctl(2)`.
    pub(crate) fn look_again(&self) -> Result<()> {
        let Some(epoll) = &self.epoll else {
            if let Some(moved) = self.moved.get() {
                // If the counter is full, the file is already readable.
                let _ = moved.write(1);
            }
            return Ok(());
        };
        let error = |errno: nix::errno::Errno| Error::new("migrate_id", "", errno.into());
        self.sources()
            .enumerate()
            .try_for_each(|(index, source)| epoll.modify(source.fd(), &mut readable(index)).map_err(error))
    }

    /// Returns all sources, in the order of their indices in the epoll registrations.
    fn sources(&self) -> impl Iterator<Item = &Arc<dyn Source>> + Clone {
        self.more.iter().chain([&self.first])
    }

    fn next_raw(&self) -> Result<Option<RawEvent>> {
        if self.more.is_empty() {
            return self.first.next();
        }
        let count = self.more.len() + 1;
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % count;
        for source in self.sources().chain(self.sources()).skip(turn).take(count) {
            if let Some(raw) = next_from(source)? {
                return Ok(Some(raw));
            }
        }
        Ok(None)
    }

    fn wait(&self, deadline: Option<Instant>) -> Result<Option<Event>> {
        match &self.epoll {
            Some(epoll) => self.wait_at_all(epoll, deadline),
            None => self.wait_at_one(deadline),
        }
    }

    /// Waits on the epoll descriptor of several sources and queries only the reported sources. An
    /// unnecessary query of the kernel would cost a system call for each event from another source.
    fn wait_at_all(&self, epoll: &Epoll, deadline: Option<Instant>) -> Result<Option<Event>> {
        loop {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            if !turn.is_multiple_of(BURST) {
                for source in &self.more {
                    if let Some(event) = event_of(source)? {
                        return Ok(Some(event));
                    }
                }
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let mut ready = [EpollEvent::empty(); 8];
            let count = match epoll.wait(&mut ready, left.map_or(EpollTimeout::NONE, milliseconds)) {
                Ok(count) => count,
                Err(nix::errno::Errno::EINTR) => 0,
                Err(errno) => return Err(Error::new(VERB, "", errno.into())),
            };
            let ready = ready.get(..count).unwrap_or_default();
            // Descriptors that stay ready are reported in the same order each time, so the start
            // rotates.
            for named in ready.iter().cycle().skip(turn / BURST % count.max(1)).take(count) {
                let source = usize::try_from(named.data()).ok().and_then(|index| self.sources().nth(index));
                if let Some(event) = source.map(event_of).transpose()?.flatten() {
                    return Ok(Some(event));
                }
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
        }
    }

    fn wait_at_one(&self, deadline: Option<Instant>) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.try_next_event()? {
                return Ok(Some(event));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            let moved = match self.moved.get() {
                // An id that moves here after the next check finds the file.
                None if self.make_moved() => continue,
                moved => moved,
            };
            let of = |file| PollFd::new(file, PollFlags::POLLIN);
            let mut fds = [of(self.as_fd()), of(moved.map_or(self.as_fd(), AsFd::as_fd))];
            let count = 1 + usize::from(moved.is_some());
            match ppoll(&mut fds[..count], left.map(TimeSpec::from_duration), None) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {
                    // All waiting threads have woken up and also check the kernel's file.
                    let _ = moved.map(EventFd::read);
                }
                Err(errno) => return Err(Error::new(VERB, "", errno.into())),
            }
        }
    }

    /// Creates the file that wakes threads when an id with unread events moves to a channel with a
    /// single source. Returns false if the source is not the kernel's or if descriptors have run
    /// out.
    fn make_moved(&self) -> bool {
        if self.first.kernel().is_none() {
            return false;
        }
        let Ok(made) = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK) else {
            return false;
        };
        self.moved.get_or_init(|| made);
        true
    }
}

impl CmId {
    /// Moves the id with its unread events to another channel.
    ///
    /// A thread that read an event of the id from the old channel may still be handling it.
    ///
    /// The events make the new channel's descriptor readable. On a channel with only kernel ids
    /// they cause no edge, so an edge-triggered loop must read the channel once after this call
    /// ([`try_next_event`](EventChannel::try_next_event)).
    ///
    /// # Errors
    /// Any errno from the kernel and of `epoll_ctl(2)`.
    ///
    /// # References
    /// `rdma_migrate_id(3)`
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&self, to: &EventChannel) -> Result<()> {
        self.inner().migrate(to.source())?;
        to.look_again()
    }
}

/// Returns a source's next event for the program, skipping events of dropped ids.
fn event_of(source: &Arc<dyn Source>) -> Result<Option<Event>> {
    while let Some(raw) = next_from(source)? {
        if let Some(event) = dispatch::dispatch(raw) {
            return Ok(Some(event));
        }
    }
    Ok(None)
}

/// Returns the next event from one of several sources.
fn next_from(source: &Arc<dyn Source>) -> Result<Option<RawEvent>> {
    match source.next() {
        // The soft devices belong to the parent. Errors of kernel ids are reported by the kernel.
        Err(error) if error.cause == Cause::Forked => Ok(None),
        other => other,
    }
}

/// Returns the epoll registration of the source with this index.
fn readable(index: usize) -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN, index as u64)
}

/// Returns the time `left` in whole milliseconds, rounded up.
fn milliseconds(left: Duration) -> EpollTimeout {
    let count = left.as_nanos().div_ceil(1_000_000);
    EpollTimeout::try_from(i32::try_from(count).unwrap_or(i32::MAX)).unwrap_or(EpollTimeout::MAX)
}

/// The number of events between checks of all sources.
const BURST: usize = 16;

/// The descriptor is readable while there is an event. Programs must neither read nor write it.
impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.epoll {
            Some(epoll) => epoll.0.as_fd(),
            None => self.first.fd(),
        }
    }
}

/// The raw descriptor for event loops. The channel keeps ownership.
impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests;
