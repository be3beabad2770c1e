//! [`EventChannel`]: the place at which ids report their events.
//!
//! ```text
//!   source ─► RawEvent ─► table: whose? ─┬─ stale: skipped (a request is rejected)
//!                                        └─ IdInner ─► dispatch ─┬─ consumed inside
//!                                                                └─ Event
//! ```
//!
//! The files of the sources never block; waiting is done by `ppoll(2)`, and by `epoll_wait(2)` at
//! several sources. So any number of threads may wait at one channel: an event wakes some of them,
//! one gets it, and the others wait again. A channel cannot be closed under a waiting thread,
//! because that thread borrows it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use verbs::soft::cm::Port;
use verbs::{Cause, Error, QpType, Result};
use verbs_core::room::{self, CALL};

use crate::backend::{Choice, Kernel, RawEvent, Soft, Source};
use crate::channel::Ucma;
use crate::dispatch;
use crate::event::Event;
use crate::id::CmId;
use crate::table;
use crate::types::PortSpace;

const VERB: &str = "get_cm_event";

/// The place at which ids report their events, and the maker of ids.
///
/// The descriptor ([`AsFd`], [`AsRawFd`]) is readable while there are events, for event loops; a
/// loop whose descriptor is edge-triggered reads events until
/// [`try_next_event`](Self::try_next_event) returns `None`.
///
/// Ids keep what they need of the channel: it may be dropped before them, and then nothing reads
/// their events. [`CmId::migrate`] moves an id to another channel.
///
/// # References
/// `rdma_create_event_channel(3)`, `rdma_get_cm_event(3)`
#[doc(alias = "rdma_event_channel")]
#[derive(Debug)]
pub struct EventChannel {
    first: Arc<dyn Source>,
    /// Sources that know without a system call that they have no event.
    more: Vec<Arc<dyn Source>>,
    /// The source that is asked first, in turn, so that a busy one does not silence the others.
    turn: AtomicUsize,
    /// The descriptor of all sources, where there are several.
    epoll: Option<Epoll>,
    /// Wakes the threads that wait at the kernel's file alone, for events that an id brought. The
    /// first of these threads makes it.
    moved: OnceLock<EventFd>,
    /// Why the channel has no ids of the kernel's connection manager.
    kernel_error: Option<Arc<Error>>,
}

/// Checks that a call which makes an object finds memory for its small allocations, which would end
/// the process if they failed.
///
/// # Errors
/// `ENOMEM` with [`Cause::Allocation`].
pub(crate) fn room(verb: &'static str) -> Result<()> {
    room::check(CALL)
        .map_err(|errno| Error::new(verb, "", errno).because(Cause::Allocation { bytes: CALL as u64 }))
}

impl EventChannel {
    /// Opens a channel. Its ids are those of the kernel's connection manager, and of the soft
    /// devices (`verbs::soft`) that the process has, or that `VERBS_SOFT` requests; their addresses
    /// decide.
    /// A channel that is opened before the process has its first soft device uses none.
    ///
    /// # Errors
    /// [`Cause::File`](verbs::Cause::File) with the path and a hint where the connection manager's
    /// file is missing or cannot be opened, and `ENOSYS` for an ABI that this library does not
    /// know, both in a process without soft devices; [`Cause::LeftOut`](verbs::Cause::LeftOut)
    /// where `VERBS_SOFT` requests one that cannot be made instead; any errno of `eventfd(2)` and
    /// `epoll_create1(2)`. In a process with soft devices [`kernel_error`](Self::kernel_error) has
    /// the first two.
    ///
    /// # References
    /// `rdma_create_event_channel(3)`
    #[doc(alias = "rdma_create_event_channel")]
    #[doc(alias = "rdma_destroy_event_channel")]
    pub fn new() -> Result<Self> {
        room("create_event_channel")?;
        let has_soft = !Port::all().is_empty();
        Self::with(Ucma::open(), has_soft).map_err(|error| match Port::missing() {
            // The user requested a soft device, so its failure says more than the kernel's missing
            // file.
            Some(missing) if !has_soft => missing.into_error("create_event_channel"),
            _ => error,
        })
    }

    /// Returns the channel of the backends that there are.
    fn with(kernel: Result<Arc<Ucma>>, has_soft: bool) -> Result<Self> {
        match kernel {
            Ok(ucma) if has_soft => {
                let soft = Soft::new()?;
                Self::of(Arc::new(Choice::new(Kernel(ucma), Arc::clone(&soft))), vec![soft])
            }
            Ok(ucma) => Self::of(Arc::new(Kernel(ucma)), Vec::new()),
            Err(error) if has_soft => {
                let error = Arc::new(error);
                let channel = Self::of(Soft::without_kernel(&error)?, Vec::new())?;
                Ok(Self { kernel_error: Some(error), ..channel })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns why ids of this channel cannot have a device of the kernel: the error of opening the
    /// connection manager's file, where the channel works because the process has soft devices.
    ///
    /// [`CmId::resolve_addr`] fails with it for an address that no soft device reaches, unless the
    /// file is missing. Without the file most machines have no device of the kernel, and
    /// [`AddrError`](crate::EventKind::AddrError) reports `ENODEV`.
    pub fn kernel_error(&self) -> Option<&Error> {
        self.kernel_error.as_deref()
    }

    /// Returns whether ids of this channel may be those of soft devices.
    pub fn has_soft(&self) -> bool {
        self.first.soft().is_some()
    }

    /// Returns the channel of one source or several.
    ///
    /// # Errors
    /// Any errno of `epoll_create1(2)` and `epoll_ctl(2)`.
    pub(crate) fn of(first: Arc<dyn Source>, more: Vec<Arc<dyn Source>>) -> Result<Self> {
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

    /// Creates an id whose events are reported here, of the transport service that the space
    /// implies ([`PortSpace::qp_type`]).
    ///
    /// # Errors
    /// `EINVAL` for a space that the kernel does not know; any other errno that the kernel returns.
    ///
    /// # References
    /// `rdma_create_id(3)`
    #[doc(alias = "rdma_create_id")]
    pub fn create_id(&self, space: PortSpace) -> Result<CmId> {
        self.create_id_of(space, space.qp_type())
    }

    /// Creates an id as [`create_id`](Self::create_id) does, with another transport service. Only
    /// the space [`IB`](PortSpace::IB) has a choice; the others have their own, whatever is asked
    /// for.
    ///
    /// # Errors
    /// As [`create_id`](Self::create_id).
    #[doc(alias = "rdma_create_id")]
    pub fn create_id_of(&self, space: PortSpace, qp_type: QpType) -> Result<CmId> {
        let qp_type = if space == PortSpace::IB { qp_type } else { space.qp_type() };
        room("create_id")?;
        let cookie = table::reserve().map_err(|errno| Error::new("create_id", "", errno))?;
        match self.first.create_id(cookie.0, space, qp_type) {
            Ok(backend) => Ok(CmId::new(cookie, backend, space, qp_type)),
            Err(error) => {
                table::remove(cookie);
                Err(error)
            }
        }
    }

    /// Returns the next event, and waits for it without limit.
    ///
    /// Events of ids that were dropped are skipped. Several threads may call it at the same time;
    /// each event goes to one of them.
    ///
    /// A signal does not end the wait, as none ends a wait of the standard library; C's call ends
    /// with `EINTR`. A program that has to end a thread that waits writes an event for it
    /// ([`CmId::write_event`]), which a signal handler cannot do, or waits with a limit
    /// ([`next_event_within`](Self::next_event_within)), or for this channel's descriptor and one
    /// of its own with `poll(2)`.
    ///
    /// # Errors
    /// Any errno that the kernel returns, and of `ppoll(2)`; in a forked child, `ENODEV` with
    /// [`Cause::Forked`](verbs::Cause::Forked) of a channel that has soft ids alone, and otherwise
    /// `EACCES`, which the kernel returns. What goes wrong with an id is an event.
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

    /// Returns the next event, and waits for it at most for `timeout`. Returns `None` after that.
    ///
    /// # Errors
    /// As [`next_event`](Self::next_event).
    #[doc(alias = "rdma_get_cm_event")]
    pub fn next_event_within(&self, timeout: Duration) -> Result<Option<Event>> {
        // A deadline beyond the clock's range means no deadline.
        self.wait(Instant::now().checked_add(timeout))
    }

    /// Returns the next event; `None` if there is none now. It never waits.
    ///
    /// # Errors
    /// As [`next_event`](Self::next_event).
    #[doc(alias = "rdma_get_cm_event")]
    pub fn try_next_event(&self) -> Result<Option<Event>> {
        while let Some(raw) = self.next_raw()? {
            if let Some(event) = dispatch::dispatch(raw) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Returns the source that ids of another channel move to.
    pub(crate) fn source(&self) -> &dyn Source {
        &*self.first
    }

    /// Lets the threads that wait look for events of an id that moved here: the kernel wakes none
    /// of them, and an epoll descriptor looks at its files only then, or when it is asked.
    ///
    /// # Errors
    /// Any errno of `epoll_ctl(2)`.
    pub(crate) fn look_again(&self) -> Result<()> {
        let Some(epoll) = &self.epoll else {
            if let Some(moved) = self.moved.get() {
                // Full means that it is readable.
                let _ = moved.write(1);
            }
            return Ok(());
        };
        let error = |errno: nix::errno::Errno| Error::new("migrate_id", "", errno.into());
        self.sources()
            .enumerate()
            .try_for_each(|(index, source)| epoll.modify(source.fd(), &mut readable(index)).map_err(error))
    }

    /// Returns all sources, in the order of their numbers at the epoll descriptor.
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
            if let Some(raw) = ask(source)? {
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

    /// Waits at the descriptor of several sources, and asks those that it names: to ask the
    /// kernel's for nothing is a system call for each event of another source.
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
            // Descriptors that stay ready are named in the same order again.
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
                // An id that moves here after another look finds the file.
                None if self.make_moved() => continue,
                moved => moved,
            };
            let of = |file| PollFd::new(file, PollFlags::POLLIN);
            let mut fds = [of(self.as_fd()), of(moved.map_or(self.as_fd(), AsFd::as_fd))];
            let count = 1 + usize::from(moved.is_some());
            match ppoll(&mut fds[..count], left.map(TimeSpec::from_duration), None) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {
                    // All waiting threads have woken up and look at the kernel's file as well.
                    let _ = moved.map(EventFd::read);
                }
                Err(errno) => return Err(Error::new(VERB, "", errno.into())),
            }
        }
    }

    /// Makes the file that wakes a thread for events that an id brings to one source. Returns
    /// whether there is one: not where that is not the kernel's, or where files have run short.
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

/// Returns the next event of a source that the program gets; those of ids that have ended are
/// skipped.
fn event_of(source: &Arc<dyn Source>) -> Result<Option<Event>> {
    while let Some(raw) = ask(source)? {
        if let Some(event) = dispatch::dispatch(raw) {
            return Ok(Some(event));
        }
    }
    Ok(None)
}

/// Asks one of several sources for an event.
fn ask(source: &Arc<dyn Source>) -> Result<Option<RawEvent>> {
    match source.next() {
        // The soft devices are those of the parent. The kernel speaks for its own ids.
        Err(error) if error.cause == Cause::Forked => Ok(None),
        other => other,
    }
}

/// Returns what the epoll descriptor reports of the source with this number.
fn readable(index: usize) -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN, index as u64)
}

/// Returns a time to wait, in whole milliseconds, rounded up.
fn milliseconds(left: Duration) -> EpollTimeout {
    let count = left.as_nanos().div_ceil(1_000_000);
    EpollTimeout::try_from(i32::try_from(count).unwrap_or(i32::MAX)).unwrap_or(EpollTimeout::MAX)
}

/// The number of events that may come without a look at all sources.
const BURST: usize = 16;

/// The descriptor is readable when there is an event. It must be neither read nor written.
impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.epoll {
            Some(epoll) => epoll.0.as_fd(),
            None => self.first.fd(),
        }
    }
}

/// The descriptor, for event loops that take numbers. The channel keeps owning it.
impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests;
