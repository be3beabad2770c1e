//! [`CmId`]: an id, which is a listener or one end of a connection.
//!
//! | file | content |
//! |---|---|
//! | [`address`] | binding, resolving, listening, queries |
//! | [`connect`] | connecting, accepting, rejecting, disconnecting |
//! | [`connection`] | the part of an id that changes: its queue pair, options and groups |
//! | [`qp`] | the queue pair of an id and its transitions to RTS |
//! | [`option`] | options |
//! | [`multicast`] | multicast groups |
//! | [`explain`] | causes for the kernel's errnos |
//! | [`key`] | the keys that name ids and memberships in events |
//! | [`table`] | the cookies that events carry; they become stale with their id |
//!
//! ```text
//!   create ─► bind_addr ─► listen ─► (requests)                        a listener
//!   create ─► resolve_addr ─► resolve_route ─► connect ─► ESTABLISHED  the connecting side
//!   request ─────────────────────────────────► accept ──► ESTABLISHED  the listening side
//!                                              disconnect ─► DISCONNECTED ─► TIMEWAIT_EXIT
//! ```
//!
//! # Why the state is not a type
//! The kernel changes an id's state: when a peer disconnects, a device disappears or a route fails,
//! the id has a new state before any event about it is read. A type for each state would be a
//! guess. Each step would also become a call that consumes the id and returns another id, although
//! other threads read the events in between.
//!
//! The state therefore stays in the kernel, which rejects calls in the wrong state with `EINVAL`;
//! the errors here name the call that must come first. Objects that only the program changes do
//! have types. The queue pair enters the id as [`Qp<Init>`](verbs::Qp) and returns as `Qp<Rts>`, so
//! nothing is sent before the connection exists. A request is a separate id.

mod address;
mod connect;
mod connection;
mod explain;
mod key;
mod multicast;
mod option;
mod qp;
pub(crate) mod table;

use core::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use verbs::{AsyncEventType, Cause, Context, Device, Ece, Error, QpType, Result};
use verbs_core::room::{self, CALL};
use verbs_core::slots::SlotId;

use self::connection::Connection;
use self::table::Entry;
use crate::backend::{Backend, Source};
use crate::cmd::query::DeviceKey;
use crate::device::{self, Limits, OpenDevice};
use crate::types::{EventType, Peer, PortSpace};

pub use connect::Message;
pub use key::{GroupKey, IdKey};

/// An id: a listener, or one end of a connection or of a datagram service.
///
/// Calls return without waiting for a peer. The outcome of a longer operation is an
/// [event](crate::Event) on the id's channel, which names the id by its [`key`](Self::key).
///
/// Dropping an id destroys it in any state, without waiting: the kernel disconnects a connection,
/// rejects a pending request and discards unread events. An event that another thread has already
/// read then names no id. If another thread is handling an event of the id, the id is destroyed
/// when that thread has finished.
///
/// # References
/// `rdma_create_id(3)`, `rdma_cm(7)`
#[doc(alias = "rdma_cm_id")]
pub struct CmId {
    inner: Arc<IdInner>,
}

/// The state shared by the handle, the table and a thread that is handling an event.
#[derive(Debug)]
pub(crate) struct IdInner {
    cookie: SlotId,
    space: PortSpace,
    qp_type: QpType,
    device: OnceLock<(DeviceKey, Device)>,
    open: OnceLock<Arc<OpenDevice>>,
    /// The devices of a listener, shared by its connections.
    all: Mutex<Vec<Arc<OpenDevice>>>,
    limits: OnceLock<Limits>,
    /// Declared before the backend: the queue pair is dropped before its connection, so that it
    /// sends nothing to a peer that was notified of the end.
    connection: Mutex<Connection>,
    backend: Box<dyn Backend>,
}

impl CmId {
    /// Takes ownership of a backend's id, whose events carry `cookie`.
    pub(crate) fn new(cookie: SlotId, backend: Box<dyn Backend>, space: PortSpace, qp_type: QpType) -> Self {
        if let Some(number) = backend.kernel_number() {
            table::enter_number(number, cookie);
        }
        let inner = Arc::new(IdInner {
            cookie,
            space,
            qp_type,
            device: OnceLock::new(),
            open: OnceLock::new(),
            all: Mutex::default(),
            limits: OnceLock::new(),
            connection: Mutex::default(),
            backend,
        });
        table::enter(cookie, Entry { id: Arc::downgrade(&inner), is_group: false });
        Self { inner }
    }

    pub(crate) fn inner(&self) -> &IdInner {
        &self.inner
    }

    /// Returns the GID of the peer's device; all zeros if unknown.
    pub(crate) fn source(&self) -> [u8; 16] {
        self.inner.backend.gids().map_or([0; 16], |gids| gids.peer.0)
    }

    /// Drops a request without a reply, if the backend can do this; the peer sends the request
    /// again.
    pub(crate) fn forget(&self) {
        self.inner.backend.forget();
    }

    /// Returns the key that names this id in events.
    pub fn key(&self) -> IdKey {
        IdKey(self.inner.cookie)
    }

    /// Returns the id's port space.
    pub fn port_space(&self) -> PortSpace {
        self.inner.space
    }

    /// Returns the id's transport service.
    pub fn qp_type(&self) -> QpType {
        self.inner.qp_type
    }

    /// Returns the context of the id's device. The device is known once the id's address is
    /// resolved or bound to one device. All ids of the process share one context per device.
    ///
    /// # Errors
    /// - `EINVAL` if the id has no device yet.
    /// - `ENODEV` with [`Cause::NoDevice`](verbs::Cause::NoDevice) if no provider supports the
    ///   device.
    /// - The errors of [`Device::open`] and [`Context::query_device`].
    ///
    /// # References
    /// `rdma_get_devices(3)`
    #[doc(alias = "rdma_get_devices")]
    pub fn context(&self) -> Result<Context> {
        Ok(self.inner.open_device("open_device")?.context.clone())
    }

    /// Returns the contexts of the devices at the id's bound address: the context from
    /// [`context`](Self::context), or the contexts of all current devices for an id bound to all
    /// addresses. Before it listens, a server can use these contexts to create objects that its
    /// connections share.
    ///
    /// Connections use the same contexts while this id lives. A device that cannot be opened is
    /// omitted if another device can be opened.
    ///
    /// # Errors
    /// - `EINVAL` for an id without an address, `ENODEV` for an address without a device.
    /// - The errors of [`context`](Self::context) and [`devices`](verbs::devices).
    ///
    /// # References
    /// `rdma_get_devices(3)`
    #[doc(alias = "rdma_get_devices")]
    pub fn contexts(&self) -> Result<Vec<Context>> {
        const VERB: &str = "open_device";
        let inner = &self.inner;
        let keys = inner.explained(inner.backend.devices())?;
        let mut opened = Vec::new();
        let mut last = match keys[..] {
            [] if self.local_addr()?.is_some() => explain::no_device_at_address(VERB),
            _ => explain::no_device(VERB),
        };
        for key in keys {
            match device::find(key).and_then(|device| device::open(key, &device)) {
                Ok(device) => opened.push(device),
                Err(error) => last = error,
            }
        }
        if opened.is_empty() {
            return Err(last);
        }
        let contexts = opened.iter().map(|device| device.context.clone()).collect();
        // Connections share the devices while this id exists.
        *inner.all.lock().unwrap_or_else(PoisonError::into_inner) = opened;
        Ok(contexts)
    }

    /// Returns the device of the id without opening it, for programs that open devices themselves.
    ///
    /// # Errors
    /// The errors of [`context`](Self::context), except errors of opening.
    pub fn device(&self) -> Result<Device> {
        Ok(self.inner.device("open_device")?.1.clone())
    }

    /// Passes an event of the queue pair to the connection manager. If the final handshake message
    /// was lost, [`COMM_EST`](AsyncEventType::COMM_EST), raised when another message arrives,
    /// establishes the connection.
    ///
    /// # Errors
    /// `EINVAL` for an id without a device or another kind of event.
    ///
    /// # References
    /// `rdma_notify(3)`
    #[doc(alias = "rdma_notify")]
    pub fn notify(&self, event: AsyncEventType) -> Result<()> {
        self.inner.explained(self.inner.backend.notify(event))
    }

    /// Queues an event of the kind [`User`](crate::EventKind::User) behind the id's pending events.
    ///
    /// # Errors
    /// `EINVAL` from kernels without such events; any other errno the kernel returns.
    ///
    /// # References
    /// `rdma_write_cm_event(3)`
    #[doc(alias = "rdma_write_cm_event")]
    pub fn write_event(&self, status: i32, arg: u64) -> Result<()> {
        self.inner.explained(self.inner.backend.write_event(EventType::USER, status, arg))
    }

    /// Queues an event of the kind [`Internal`](crate::EventKind::Internal) behind the id's pending
    /// events, for libraries built on this crate.
    ///
    /// # Errors
    /// Same as [`write_event`](Self::write_event).
    pub fn write_internal_event(&self, status: i32, arg: u64) -> Result<()> {
        self.inner.explained(self.inner.backend.write_event(EventType::INTERNAL, status, arg))
    }
}

impl IdInner {
    pub(crate) fn cookie(&self) -> SlotId {
        self.cookie
    }

    pub(crate) fn space(&self) -> PortSpace {
        self.space
    }

    pub(crate) fn qp_type(&self) -> QpType {
        self.qp_type
    }

    pub(crate) fn is_ud(&self) -> bool {
        self.qp_type == QpType::UD
    }

    /// Moves the id with its unread events to the source of another channel.
    pub(crate) fn migrate(&self, to: &dyn Source) -> Result<()> {
        self.explained(self.backend.migrate(to))
    }

    /// Passes the cookie of a connection request's id to the backend.
    pub(crate) fn give_cookie(&self) {
        self.backend.set_cookie(self.cookie.0);
    }

    /// Records the values requested by the peer and the listener's timer.
    pub(crate) fn asked(&self, listener: &Self, peer: &Peer, ece: Ece) {
        let mut connection = self.connection();
        connection.remote_ece = ece;
        connection.min_rnr_timer = listener.connection().min_rnr_timer;
        if let Peer::Conn(param) = peer {
            connection.asked = Some(Limits {
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
            });
        }
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds the id's device and stores it for later calls.
    fn device(&self, verb: &'static str) -> Result<&(DeviceKey, Device)> {
        if let Some(found) = self.device.get() {
            return Ok(found);
        }
        let addresses = self.backend.addresses()?;
        let key = addresses.device.ok_or_else(|| explain::no_device(verb))?;
        let found = (key, device::find(key)?);
        Ok(self.device.get_or_init(|| found))
    }

    fn open_device(&self, verb: &'static str) -> Result<&OpenDevice> {
        if let Some(open) = self.open.get() {
            return Ok(open);
        }
        let (key, device) = self.device(verb)?;
        let open = device::open(*key, device)?;
        Ok(self.open.get_or_init(|| open))
    }

    /// Returns the connection limits of the id's device.
    fn limits(&self, verb: &'static str) -> Result<Limits> {
        match self.limits.get() {
            Some(limits) => Ok(*limits),
            None => Ok(self.open_device(verb)?.limits),
        }
    }

    /// Adds the device's name to the error in a result. Also adds a cause if the error has none.
    fn explained<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.named(explain::explain(error)))
    }

    fn named(&self, error: Error) -> Error {
        match self.device.get() {
            Some((_, device)) if error.device.is_empty() => Error { device: device.name().into(), ..error },
            _ => error,
        }
    }
}

impl Drop for IdInner {
    fn drop(&mut self) {
        table::remove(self.cookie);
        for member in &self.connection.get_mut().unwrap_or_else(PoisonError::into_inner).groups {
            table::remove(member.key.0);
        }
        if let Some(number) = self.backend.kernel_number() {
            table::remove_number(number, self.cookie);
        }
    }
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmId")
            .field("key", &self.key())
            .field("port_space", &self.inner.space)
            .field("qp_type", &self.inner.qp_type)
            .finish_non_exhaustive()
    }
}

/// Checks that memory is available for the small allocations of a call that creates an object. A
/// failed small allocation would abort the process.
///
/// # Errors
/// `ENOMEM` with [`Cause::Allocation`].
pub(crate) fn room(verb: &'static str) -> Result<()> {
    room::check(CALL)
        .map_err(|errno| Error::new(verb, "", errno).because(Cause::Allocation { bytes: CALL as u64 }))
}

#[cfg(test)]
mod tests;
