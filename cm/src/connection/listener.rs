//! [`Listener`]: the listening side.
//!
//! ```text
//!   EventChannel ─► request ─► setup of the program ─► accept ─► waiting ─► Connection
//!        ▲                       without the lock         │
//!        └─ read under the lock ◄─ Passive ◄──────────────┘
//! ```
//!
//! Any number of threads may wait for connections. Events are read and handled under one lock. An
//! id also moves to its own channel under this lock, so that its later events do not reach another
//! thread through the listener's channel. The program's setup runs without the lock.
//!
//! A request waiting for a slot is set up by the next thread that finds a free slot. Waiting
//! threads are woken for this, because no event of the channel announces it.
//!
//! # The descriptor
//! Event loops wait on [`Listener::ready`], an epoll descriptor over three files. Edge-triggered
//! loops call the listener until no outcome is left and then wait, so each kind of change must make
//! an edge:
//!
//! | change | file |
//! |---|---|
//! | an event of the channel | the channel's |
//! | a free slot for a waiting request | `wake` |
//! | the listener is closed | `wake` |
//! | a call returned with pending work | `wake` |
//! | a deadline of a request | `timer` |
//!
//! Invariant: a call that returns `None` has either finished all work or made `wake` readable.

use core::fmt;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use verbs::{Cause, Context, Errno, Error, Result};

use super::passive::{Admission, Outcome, Passive};
use super::{Connection, Control, Resources, ToAddresses, lookup, no_address, wait};
use crate::event::{ConnectRequest, EventKind};
use crate::event_channel::EventChannel;
use crate::id::{self, CmId, IdKey};
use crate::types::{ConnParam, Peer, PeerParam, PortSpace};

const VERB: &str = "accept";

/// The options of a listener: `ListenerInit { backlog: 64, ..ListenerInit::default() }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerInit {
    /// The number of unread requests that may wait in the connection manager. Requests beyond this
    /// number are dropped; their peers send them again after some seconds. 0 stands for the maximum
    /// ([`CmId::listen`]).
    pub backlog: u32,
    /// The maximum number of requests between setup and establishment; at least 1. Further requests
    /// wait for a slot: as many as `backlog` permits, for at most
    /// [`establish_timeout`](Self::establish_timeout). The rest fail with `EAGAIN`. On soft
    /// devices, the peers of these requests get no reply and send the requests again; the kernel
    /// rejects such requests.
    ///
    /// By default, the pending queue pairs of [`Listener::bind`] take at most half of the files
    /// that the process may open (`RLIMIT_NOFILE`); the maximum is 1024.
    ///
    /// Each peer address has a share. When all slots are taken, the address with the most pending
    /// requests loses its oldest one to a request from another address. Before that, each peer has
    /// half a second to confirm its connection.
    pub max_pending: usize,
    /// The time limit between the program's accept and the peer's confirmation; 30 s by default.
    /// After that time, the connection is given up.
    pub establish_timeout: Duration,
    /// The type of service of the listener's packets ([`CmId::set_tos`]), used by iWARP. Over
    /// InfiniBand and RoCE, the connecting side determines a connection's type of service.
    pub tos: Option<u8>,
    /// The acknowledgement time-out, a 5-bit code ([`CmId::set_ack_timeout`]).
    pub ack_timeout: Option<u8>,
    /// The time after which a client repeats a message that found no receive, as a 5-bit code;
    /// [`ConnParam::MIN_RNR_TIMER`] (0.64 ms) by default. A [`ConnParam::min_rnr_timer`] in the
    /// setup's accept takes precedence.
    pub min_rnr_timer: Option<u8>,
    /// Whether the port may be shared with another id. Both ids must permit it.
    pub reuse_addr: bool,
    /// Whether a listener on `::` excludes IPv4 connections.
    pub af_only: bool,
}

impl Default for ListenerInit {
    fn default() -> Self {
        Self {
            backlog: 0,
            max_pending: max_pending(getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft)),
            establish_timeout: Duration::from_secs(30),
            tos: None,
            ack_timeout: None,
            min_rnr_timer: None,
            reuse_addr: false,
            af_only: false,
        }
    }
}

/// The listening side: accepts connections at an address.
///
/// ```
/// use std::time::Duration;
///
/// use rdmacm::{Connector, Listener};
///
/// # fn main() -> verbs::Result<()> {
/// # let device = verbs::soft::auto()?;
/// # let host = device.open()?.find_gid(1)?.gid.to_ipv6().to_canonical();
/// let listener = Listener::bind((host, 0))?;
/// # let address = listener.local_addr();
/// # let client = std::thread::spawn(move || Connector::default().connect(address));
/// let mut peer = listener.accept()?;
/// peer.qp.post_recv_buf(peer.resources.pd.alloc_buf(4096)?, ..)?;
/// # let _client = client.join().expect("it has connected")?;
/// # Ok(())
/// # }
/// ```
///
/// # Many peers
/// All methods take `&self`. Any number of threads may call them. While a thread waits in a method,
/// requests are set up and accepted as they arrive, so that a slow peer does not delay others.
/// While no thread calls a method, requests wait in the backlog.
///
/// A peer cannot make a call fail. A peer that gives up, or whose request cannot be served, is
/// skipped; [`next_incoming`](Self::next_incoming) reports the failure. The program's setup
/// ([`bind_with`](Self::bind_with)) determines which of its errors end the call.
///
/// # References
/// `rdma_listen(3)`, `rdma_get_request(3)`, `rdma_accept(3)`
pub struct Listener<T = Resources> {
    state: Mutex<State<T>>,
    channel: EventChannel,
    /// Readable once the listener is closed or while [`State::is_woken`] is set.
    wake: EventFd,
    /// Readable once [`State::timer_at`] has passed.
    timer: TimerFd,
    /// Readable while the channel, `wake` or `timer` is readable.
    ready: Epoll,
    address: SocketAddr,
    setup: Box<Setup<T>>,
    /// Whether the setup is the default setup of [`Listener::bind`].
    is_own: bool,
}

/// The program's setup for a request: accepts it and returns the data for the connection to keep,
/// or rejects it and returns `None`.
type Setup<T> = dyn Fn(&ConnectRequest) -> Result<Option<T>> + Send + Sync;

struct State<T> {
    /// The listening id; `None` once the listener is closed.
    id: Option<CmId>,
    passive: Passive,
    /// The requests waiting for a slot.
    held: BTreeMap<IdKey, ConnectRequest>,
    /// The requests accepted by the program.
    waiting: BTreeMap<IdKey, Waiting<T>>,
    /// Whether waiting threads are being woken for work that no event of the channel announces.
    is_woken: bool,
    /// The time when the timer becomes readable, at or before the earliest deadline of a request.
    timer_at: Option<Instant>,
}

impl<T> State<T> {
    /// Returns a waiting request if a slot is free for it.
    fn next_held(&mut self) -> Option<ConnectRequest> {
        let key = self.passive.next_waiting()?;
        self.held.remove(&key)
    }

    /// Returns the outcome of a request.
    ///
    /// # Errors
    /// Same as [`CmId::migrate`].
    fn ended(&mut self, key: IdKey, outcome: Outcome) -> Result<Option<Incoming<T>>> {
        if let (Some(request), Outcome::Failed(error)) = (self.held.remove(&key), &outcome) {
            return Ok(Some(failed(&request.id, error.clone())));
        }
        self.waiting.remove(&key).map(|waiting| waiting.ended(outcome)).transpose()
    }
}

/// A request that the program has accepted.
struct Waiting<T> {
    id: CmId,
    resources: T,
    peer: PeerParam,
    /// The channel for the connection. Created with the request, so that a process without
    /// descriptors rejects the request instead of losing the connection.
    channel: EventChannel,
}

/// The outcome of a request.
// The large variant is the common one.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub enum Incoming<T = Resources> {
    /// An established connection.
    Connection(Connection<T>),
    /// A request that ended before its connection was established. The peer gave up, was silent or
    /// proposed something the device cannot do; too many requests were pending; or files or memory
    /// ran out.
    Failed {
        /// The address of the peer, if known.
        peer: Option<SocketAddr>,
        /// The reason for the failure.
        error: Error,
    },
}

impl Listener {
    /// Listens at an address and accepts every request with an RC queue pair of the default
    /// capacity ([`Resources::CAP`]). Port 0 stands for any port (see
    /// [`local_addr`](Self::local_addr)). If a name has several addresses, the first one that can
    /// be bound is used.
    ///
    /// # Errors
    /// The errors of [`CmId::bind_addr`], notably `EADDRINUSE` and `EADDRNOTAVAIL`, of
    /// [`EventChannel::new`] and of [`CmId::listen`]; `ENOENT` for an unknown name.
    #[doc(alias = "rdma_create_ep")]
    pub fn bind(address: impl ToAddresses) -> Result<Self> {
        let setup = |request: &ConnectRequest| {
            let (qp, resources) = Resources::create(&request.id, Resources::CAP)?;
            request.id.accept(qp, &ConnParam::default())?;
            Ok(Some(resources))
        };
        let listener = Self::bind_with(address, &ListenerInit::default(), setup)?;
        Ok(Self { is_own: true, ..listener })
    }
}

impl<T> Listener<T> {
    /// Listens at an address and passes each request to `setup`.
    ///
    /// `setup` receives the request with the peer's private data. To accept, it creates a queue
    /// pair with [`CmId::create_qp`], posts the first receives and calls [`CmId::accept`]. It
    /// returns the data for the connection to keep. To reject, it calls [`CmId::reject`] and
    /// returns `None`. A request that is neither accepted nor rejected is rejected. Several threads
    /// may run `setup` at the same time.
    ///
    /// ```no_run
    /// use rdmacm::{ConnParam, Listener, ListenerInit};
    /// use verbs::{CqInit, QpInit, QpType};
    ///
    /// # fn main() -> verbs::Result<()> {
    /// let init = ListenerInit { backlog: 256, ..ListenerInit::default() };
    /// let listener = Listener::bind_with("0.0.0.0:7471", &init, |request| {
    ///     if !request.peer.private_data().starts_with(b"version 1") {
    ///         request.id.reject(b"version 1 only")?;
    ///         return Ok(None);
    ///     }
    ///     let context = request.id.context()?;
    ///     let (pd, cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(1024))?);
    ///     let mut qp = request.id.create_qp(&pd, &QpInit::new(QpType::RC, &cq))?;
    ///     qp.post_recv_buf(pd.alloc_buf(4096)?, ..)?;
    ///     let param = ConnParam { private_data: b"welcome", ..ConnParam::default() };
    ///     request.id.accept(qp, &param)?;
    ///     Ok(Some((pd, cq)))
    /// })?;
    /// let peer = listener.accept()?;
    /// let (pd, cq) = peer.resources;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Same as [`bind`](Listener::bind).
    pub fn bind_with(
        address: impl ToAddresses,
        init: &ListenerInit,
        setup: impl Fn(&ConnectRequest) -> Result<Option<T>> + Send + Sync + 'static,
    ) -> Result<Self> {
        let addresses = lookup(address)?;
        let channel = EventChannel::new()?;
        let bound = bind(&channel, addresses, init, |id| id.listen(init.backlog))?;
        Self::with_id(channel, bound, init, setup)
    }

    /// Creates the listener for an id that listens.
    pub(super) fn with_id(
        channel: EventChannel,
        (id, address): (CmId, SocketAddr),
        init: &ListenerInit,
        setup: impl Fn(&ConnectRequest) -> Result<Option<T>> + Send + Sync + 'static,
    ) -> Result<Self> {
        id::room("listen")?;
        let refused = |errno: nix::errno::Errno| Error::new("listen", "", errno.into());
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(refused)?;
        let timer =
            TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)
                .map_err(refused)?;
        let ready = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(refused)?;
        for file in [channel.as_fd(), wake.as_fd(), timer.as_fd()] {
            ready.add(file, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(refused)?;
        }
        let max_waiting = match usize::try_from(init.backlog) {
            Ok(backlog @ 1..MAX_WAITING) => backlog,
            _ => MAX_WAITING,
        };
        let passive = Passive::new(init.max_pending, max_waiting, init.establish_timeout);
        let (held, waiting) = (BTreeMap::new(), BTreeMap::new());
        let state = State { id: Some(id), passive, held, waiting, is_woken: false, timer_at: None };
        let (state, setup) = (Mutex::new(state), Box::new(setup));
        Ok(Self { state, channel, wake, timer, ready, address, setup, is_own: false })
    }

    /// Returns the listener's address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the contexts of the devices at the listener's address. Connections use the same
    /// contexts. A server that needs the devices before it listens uses
    /// [`Binding`](crate::Binding).
    ///
    /// # Errors
    /// `ECANCELED` once the listener is closed; the errors of [`CmId::contexts`].
    #[doc(alias = "rdma_get_devices")]
    pub fn contexts(&self) -> Result<Vec<Context>> {
        self.lock().id.as_ref().ok_or_else(is_closed)?.contexts()
    }

    /// Waits for the next connection without a time limit and returns it. [`close`](Self::close)
    /// ends the wait.
    ///
    /// # Errors
    /// - `ECANCELED` once the listener is closed.
    /// - The errors of the program's setup ([`bind_with`](Self::bind_with)). The request is then
    ///   rejected and the listener continues. Errors of [`CmId::accept`], [`CmId::reject`],
    ///   [`CmId::init_qp_attr`], moving the queue pair and setting its options end only the
    ///   request, unless the program's private data are too long.
    /// - `ENODEV` if the listener's device was removed.
    /// - The errors of [`EventChannel::new`] and [`EventChannel::next_event`]. A lack of files or
    ///   memory ends only the request.
    ///
    /// # References
    /// `rdma_get_request(3)`
    #[doc(alias = "rdma_get_request")]
    pub fn accept(&self) -> Result<Connection<T>> {
        loop {
            if let Some(Incoming::Connection(connection)) = self.next_until(&mut Call::until(None))? {
                return Ok(connection);
            }
        }
    }

    /// Waits at most `timeout` for the next connection. Returns `None` on timeout. With a zero
    /// `timeout`, `None` means that no work is pending. Event loops, including edge-triggered
    /// loops, may then wait on the descriptor again.
    ///
    /// # Errors
    /// Same as [`accept`](Self::accept).
    pub fn accept_within(&self, timeout: Duration) -> Result<Option<Connection<T>>> {
        let mut call = Call::within(timeout);
        loop {
            match self.next_until(&mut call)? {
                Some(Incoming::Connection(connection)) => return Ok(Some(connection)),
                Some(Incoming::Failed { .. }) => {}
                None => return Ok(None),
            }
        }
    }

    /// Waits at most `timeout` for the next outcome of a request, which is a connection or a
    /// failure. Returns `None` on timeout.
    ///
    /// # Errors
    /// Same as [`accept`](Self::accept).
    pub fn next_incoming(&self, timeout: Duration) -> Result<Option<Incoming<T>>> {
        self.next_until(&mut Call::within(timeout))
    }

    /// Stops listening. Waiting calls in other threads return `ECANCELED`, as do later calls.
    /// Pending requests are rejected; connections already returned are not affected.
    pub fn close(&self) {
        let mut state = self.lock();
        let id = state.id.take();
        let (held, waiting) = (core::mem::take(&mut state.held), core::mem::take(&mut state.waiting));
        drop(state);
        // If the counter is full, the file is already readable.
        let _ = self.wake.write(1);
        drop((id, held, waiting));
    }

    fn next_until(&self, call: &mut Call) -> Result<Option<Incoming<T>>> {
        loop {
            let mut state = self.lock();
            let Some(listener) = state.id.as_ref().map(CmId::key) else { return Err(is_closed()) };
            if core::mem::take(&mut state.is_woken) {
                let _ = self.wake.read();
            }
            if call.must_end() {
                self.wake(&mut state);
                return Ok(None);
            }
            call.handled += 1;
            if let Some((key, outcome)) = state.passive.make_place(Instant::now()) {
                let incoming = state.ended(key, outcome);
                self.wake_others(&mut state);
                drop(state);
                return incoming;
            }
            if let Some(request) = state.next_held() {
                self.wake_others(&mut state);
                drop(state);
                let incoming = self.set_up(request)?;
                if incoming.is_some() {
                    return Ok(incoming);
                }
                continue;
            }
            // An establishment whose event is still unread counts as in time, but a continuous
            // stream of requests must not postpone the deadlines.
            let has_more = state.passive.is_time_to_expire();
            let event = if has_more { None } else { self.channel.try_next_event()? };
            let Some(event) = event else {
                let now = Instant::now();
                if let Some((key, outcome)) = state.passive.expired(now) {
                    let incoming = state.ended(key, outcome);
                    self.wake_others(&mut state);
                    drop(state);
                    return incoming;
                }
                if has_more {
                    continue;
                }
                self.set_timer(&mut state, now);
                let until = call.deadline.into_iter().chain(state.passive.deadline()).min();
                drop(state);
                if call.is_over(now) {
                    return Ok(None);
                }
                wait::until_readable(VERB, &[self.as_fd()], until)?;
                // All work was done before the wait, so the count restarts.
                call.handled = 0;
                continue;
            };
            state.passive.has_read();
            let incoming = match event.kind {
                EventKind::ConnectRequest(request) => {
                    let source = request.id.source();
                    match state.passive.request(request.id.key(), source, Instant::now()) {
                        Admission::Pending => {
                            drop(state);
                            self.set_up(request)?
                        }
                        Admission::Waiting => {
                            state.held.insert(request.id.key(), request);
                            self.set_timer(&mut state, Instant::now());
                            None
                        }
                        Admission::Instead(oldest) => {
                            state.held.insert(request.id.key(), request);
                            let displaced = state.held.remove(&oldest);
                            drop(state);
                            displaced.map(|oldest| {
                                oldest.id.forget();
                                too_many(&oldest.id)
                            })
                        }
                        Admission::None => {
                            drop(state);
                            // Under a flood, a client at a greedy address is accepted later.
                            request.id.forget();
                            Some(too_many(&request.id))
                        }
                    }
                }
                EventKind::DeviceRemoval if event.id == listener => {
                    event.ok()?;
                    None
                }
                _ => match state.passive.event(event) {
                    Some((key, outcome)) => {
                        let incoming = state.ended(key, outcome);
                        self.wake_others(&mut state);
                        drop(state);
                        incoming?
                    }
                    None => None,
                },
            };
            if incoming.is_some() {
                return Ok(incoming);
            }
        }
    }

    /// Runs the program's setup for a request. Returns the outcome if it is already known.
    fn set_up(&self, request: ConnectRequest) -> Result<Option<Incoming<T>>> {
        let place = Setting { listener: self, key: request.id.key() };
        let channel = match EventChannel::new() {
            Ok(channel) => channel,
            Err(error) if is_short(&error) => return Ok(Some(failed(&request.id, error))),
            Err(error) => return Err(error),
        };
        let result = (self.setup)(&request);
        let ConnectRequest { id, peer, .. } = request;
        let resources = match result {
            Ok(Some(resources)) => resources,
            Ok(None) => return Ok(None),
            Err(error) if is_of_request(&error) || self.is_own && is_short(&error) => {
                return Ok(Some(failed(&id, error)));
            }
            Err(error) => return Err(error),
        };
        let peer = match peer {
            Peer::Conn(peer) => peer,
            Peer::Ud(_) => PeerParam::default(),
        };
        let waiting = Waiting { id, resources, peer, channel };
        let mut state = self.lock();
        if state.id.is_none() {
            // The listener was closed in the meantime. The slot is freed without the lock.
            drop(state);
            return Ok(None);
        }
        match state.passive.accepted(place.key, Instant::now()) {
            Some(outcome) => {
                let incoming = waiting.ended(outcome);
                self.wake_others(&mut state);
                drop(state);
                incoming.map(Some)
            }
            None => {
                state.waiting.insert(place.key, waiting);
                self.set_timer(&mut state, Instant::now());
                drop(state);
                core::mem::forget(place);
                Ok(None)
            }
        }
    }

    /// Wakes other waiting threads if a waiting request can be set up, because this thread might
    /// not call again.
    fn wake_others(&self, state: &mut State<T>) {
        if state.passive.has_next_waiting() {
            self.wake(state);
        }
    }

    /// Makes the listener's descriptor readable until the next call.
    fn wake(&self, state: &mut State<T>) {
        if !core::mem::replace(&mut state.is_woken, true) {
            // If the counter is full, the file is already readable.
            let _ = self.wake.write(1);
        }
    }

    /// Makes the descriptor readable at the earliest deadline of a request, because no event
    /// announces it. To save system calls, the timer is rarely set. If it expires for a request
    /// that has already ended, it is set to the next deadline.
    fn set_timer(&self, state: &mut State<T>, now: Instant) {
        let deadline = state.passive.deadline();
        let is_later = |at: Instant| deadline.is_none_or(|deadline| at <= deadline);
        if state.timer_at.is_some_and(|at| at > now && is_later(at)) {
            return;
        }
        state.timer_at = deadline;
        let set = match state.timer_at {
            // 0 would disarm the timer.
            Some(at) => {
                let left = TimeSpec::from_duration((at - now).max(Duration::from_nanos(1)));
                self.timer.set(Expiration::OneShot(left), TimerSetTimeFlags::empty())
            }
            // The timer has expired but must not remain readable.
            None => self.timer.unset(),
        };
        if set.is_err() {
            // The next call tries again.
            state.timer_at = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Waiting<T> {
    /// Returns the outcome of the request, with the connection if it is established.
    ///
    /// # Errors
    /// Same as [`CmId::migrate`].
    fn ended(self, outcome: Outcome) -> Result<Incoming<T>> {
        match outcome {
            Outcome::Established => self.established(),
            Outcome::Failed(error) => Ok(failed(&self.id, error)),
        }
    }

    /// Moves the id to its own channel and returns the connection.
    fn established(self) -> Result<Incoming<T>> {
        let Self { id, resources, peer, channel } = self;
        match id.migrate(&channel) {
            Err(error) if is_short(&error) => return Ok(failed(&id, error)),
            migrated => migrated?,
        }
        let Some(qp) = id.take_qp() else {
            let reason = "the setup accepted for a queue pair that the id does not hold";
            let error = Error::new(VERB, "", Errno::INVAL);
            return Ok(failed(&id, error.because(Cause::Other { reason: reason.into() })));
        };
        Ok(Incoming::Connection(Connection { qp, resources, peer, control: Control::new(id, channel) }))
    }
}

/// A call that waits for an outcome or handles pending events.
struct Call {
    /// The deadline; `None` for a call without a time limit.
    deadline: Option<Instant>,
    /// Whether the call started with time left. A call without time handles all pending events.
    has_time: bool,
    /// The number of events handled since the last wait.
    handled: usize,
}

impl Call {
    fn within(timeout: Duration) -> Self {
        // A deadline beyond the clock's range means no deadline.
        Self::until(Instant::now().checked_add(timeout))
    }

    fn until(deadline: Option<Instant>) -> Self {
        let call = Self { deadline, has_time: true, handled: 0 };
        Self { has_time: !call.is_over(Instant::now()), ..call }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Returns whether the call must end although work may be pending.
    fn must_end(&self) -> bool {
        let is_late = self.handled > 0 && self.has_time && self.is_over(Instant::now());
        is_late || !self.has_time && self.handled >= MAX_HANDLED
    }
}

/// A request during its setup. Its slot is freed if the setup panics, rejects or fails.
struct Setting<'a, T> {
    listener: &'a Listener<T>,
    key: IdKey,
}

impl<T> Drop for Setting<'_, T> {
    fn drop(&mut self) {
        let mut state = self.listener.lock();
        state.passive.dropped(self.key);
        self.listener.wake_others(&mut state);
    }
}

/// The descriptor is readable when there may be a connection. Event loops then call
/// [`accept_within`](Listener::accept_within) with a timeout of zero until it returns `None`. The
/// descriptor stays readable while events are pending or a waiting request can be set up, after the
/// deadline of a request, or once the listener is closed.
///
/// The descriptor also suits edge-triggered loops (`EPOLLET`): `None` means no more pending work;
/// later work makes a new edge. A call that has handled thousands of events, as under a flood of
/// requests, also returns `None` and makes that edge itself.
impl<T> AsFd for Listener<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.0.as_fd()
    }
}

/// The raw descriptor for event loops. The listener keeps ownership.
impl<T> AsRawFd for Listener<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl<T> fmt::Debug for Listener<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Creates an id at the first address that can be bound and that `then` accepts.
pub(super) fn bind(
    channel: &EventChannel,
    addresses: Vec<SocketAddr>,
    init: &ListenerInit,
    then: impl Fn(&CmId) -> Result<()>,
) -> Result<(CmId, SocketAddr)> {
    let mut last = no_address();
    for address in addresses {
        match bind_at(channel, address, init).and_then(|id| then(&id).map(|()| id)) {
            Ok(id) => {
                let local = id.local_addr()?.and_then(|local| local.ip());
                return Ok((id, local.unwrap_or(address)));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn bind_at(channel: &EventChannel, address: SocketAddr, init: &ListenerInit) -> Result<CmId> {
    let id = channel.create_id(PortSpace::TCP)?;
    if init.reuse_addr {
        id.set_reuse_addr(true)?;
    }
    if init.af_only {
        id.set_af_only(true)?;
    }
    if let Some(tos) = init.tos {
        id.set_tos(tos)?;
    }
    if let Some(ack_timeout) = init.ack_timeout {
        id.set_ack_timeout(ack_timeout)?;
    }
    if let Some(timer) = init.min_rnr_timer {
        id.set_min_rnr_timer(timer)?;
    }
    id.bind_addr(address)?;
    Ok(id)
}

/// Returns the outcome of a request that did not get a slot, or lost its slot.
fn too_many<T>(id: &CmId) -> Incoming<T> {
    let reason = "too many requests wait: see ListenerInit::max_pending and ListenerInit::backlog";
    let error = Error::new(VERB, "", Errno::AGAIN);
    failed(id, error.because(Cause::Other { reason: reason.into() }))
}

/// Returns the outcome of a failed request.
fn failed<T>(id: &CmId, error: Error) -> Incoming<T> {
    let peer = id.peer_addr().ok().flatten().and_then(|address| address.ip());
    Incoming::Failed { peer, error }
}

/// Returns whether the peer caused a setup error: it gave up, or proposed something the device
/// cannot do.
fn is_of_request(error: &Error) -> bool {
    match error.verb {
        // The arguments of these calls come from the peer.
        "modify_qp" | "set_ece" => true,
        // The program is responsible for a value beyond a limit or a second queue pair.
        "accept" | "reject" | "init_qp_attr" => {
            !matches!(error.cause, Cause::Limit { .. } | Cause::InUse { .. })
        }
        _ => false,
    }
}

/// Returns whether files or memory ran out, as happens when more requests arrive than the process
/// can hold.
fn is_short(error: &Error) -> bool {
    // These are EMFILE, ENFILE, ENOMEM and EAGAIN.
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN].contains(&error.errno)
}

/// Returns the default number of pending requests for a process that may open `files` files.
fn max_pending(files: u64) -> usize {
    usize::try_from(files / 2 / FILES).unwrap_or(usize::MAX).clamp(16, 1024)
}

fn is_closed() -> Error {
    let reason = "the listener is closed";
    Error::new(VERB, "", Errno::CANCELED).because(Cause::Other { reason: reason.into() })
}

/// The maximum number of requests waiting for a slot, which is also the default: Linux's largest
/// backlog.
const MAX_WAITING: usize = 1024;

/// The maximum number of events that a call handles without an outcome: the maximum number of
/// requests waiting in `ib_cm`. Without a limit, unknown peers that send requests as fast as they
/// are rejected could keep a program inside a call with a zero time-out.
const MAX_HANDLED: usize = 4096;

/// The number of files needed for a request to [`Listener::bind`]: a completion channel with its
/// queues, plus an event channel.
const FILES: u64 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_requests_take_half_of_the_files_of_the_process_at_most() {
        assert_eq!([0, 256, 1024, 1 << 20, u64::MAX].map(max_pending), [16, 25, 102, 1024, 1024]);
    }

    #[test]
    fn errors_by_the_peers_values_are_the_requests_and_those_by_the_programs_are_not() {
        let of = |verb, errno| Error::new(verb, "soft0", errno);
        let limit = Cause::Limit { name: "length of private_data", asked: 197, min: 0, max: 196 };
        let mtu = Cause::Limit { name: "path_mtu", asked: 4096, min: 0, max: 1024 };
        assert!(is_of_request(&of("modify_qp", Errno::INVAL)));
        assert!(is_of_request(&of("modify_qp", Errno::INVAL).because(mtu)));
        assert!(is_of_request(&of("set_ece", Errno::INVAL)));
        assert!(is_of_request(&of("accept", Errno::INVAL)));
        assert!(is_of_request(&of("init_qp_attr", Errno::NOMEM)));
        assert!(!is_of_request(&of("accept", Errno::INVAL).because(limit)));
        assert!(!is_of_request(&of("accept", Errno::BUSY).because(Cause::InUse { by: "another" })));
        assert!(!is_of_request(&of("create_qp", Errno::NOMEM)));
    }
}
