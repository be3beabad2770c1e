//! The interface between the API and the backends that execute its calls.
//!
//! | type | purpose |
//! |---|---|
//! | [`Backend`] | one id: its commands, and its destruction on drop |
//! | [`Source`] | a backend's part of an event channel: creates ids and returns their events |
//! | `kernel` | both traits for the kernel's connection manager |
//! | `soft` | both traits for soft devices, without a kernel connection manager |
//! | `choice` | both traits for a channel with both backends: an id's address selects one |
//!
//! ```text
//!   CmId ──► IdInner ──► dyn Backend ─┬─► cmd ──► /dev/infiniband/rdma_cm
//!   EventChannel ──► dyn Source ──────┴─► ib-cm ──► queue pair 1 of soft devices
//! ```
//!
//! Programs do not see the backend of an id. An event channel has one or more sources; with
//! several, it waits on an epoll descriptor. Ids of all sources share one table of cookies
//! ([`crate::id::table`]), so events need not name their source.
//!
//! Invariant: a source never blocks. A call on an id returns without waiting for a peer. An event
//! reports the outcome of longer operations.
//!
//! Invariant: dropping a backend destroys its id in any state. A connection is disconnected, a
//! pending request is rejected, and unread events are discarded.

#[cfg(feature = "soft")]
mod choice;
mod kernel;
#[cfg(feature = "soft")]
mod soft;

#[cfg(feature = "soft")]
use core::any::Any;
use core::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

#[cfg(feature = "soft")]
pub(crate) use choice::Choice;
pub(crate) use kernel::Kernel;
#[cfg(feature = "soft")]
pub(crate) use soft::Soft;
use verbs::{AsyncEventType, Ece, QpAttr, QpAttrMask, QpState, QpType, Result};

use crate::channel::Ucma;
use crate::cmd::option::IdOption;
use crate::cmd::query::{Addresses, DeviceKey, Gids};
use crate::types::{
    Address, ConnParam, EventType, PathRecord, PeerParam, PeerUd, PortSpace, Service, ServiceRecord,
};

/// The reason why an id cannot migrate to a channel.
const OTHER_CHANNEL: &str =
    "the event channel has no ids of this one's kind: it is on a device of the kernel, or on a soft device";

/// One id of a backend. The methods have the names and errors of the kernel's commands.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    fn bind(&self, address: &Address) -> Result<()>;
    fn resolve_addr(&self, source: Option<&Address>, destination: &Address, timeout_ms: u32) -> Result<()>;
    fn resolve_route(&self, timeout_ms: u32) -> Result<()>;
    fn resolve_service(&self, service: Service<'_>) -> Result<()>;
    fn listen(&self, backlog: u32) -> Result<()>;
    fn connect(&self, param: &ConnParam<'_>, ece: Ece) -> Result<()>;
    /// Accepts a request. Events caused by the peer or the device are reported only after this
    /// call.
    fn accept(&self, uid: u64, param: Option<&ConnParam<'_>>, ece: Ece) -> Result<()>;
    fn reject(&self, data: &[u8], reason: u8) -> Result<()>;
    fn disconnect(&self) -> Result<()>;
    fn notify(&self, event: AsyncEventType) -> Result<()>;
    fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask)>;
    fn addresses(&self) -> Result<Addresses>;
    fn gids(&self) -> Result<Gids>;
    /// Returns the devices of the id's address: one, or all for an unspecified address.
    fn devices(&self) -> Result<Vec<DeviceKey>>;
    fn paths(&self) -> Result<Vec<PathRecord>>;
    fn services(&self) -> Result<Vec<ServiceRecord>>;
    fn set_option(&self, option: IdOption<'_>) -> Result<()>;
    fn join(&self, uid: u64, address: &Address, send_only: bool) -> Result<u32>;
    fn leave(&self, membership: u32) -> Result<()>;
    fn write_event(&self, event: EventType, status: i32, arg: u64) -> Result<()>;

    /// Undoes a `listen` after another backend of the same id failed to listen. A kernel id cannot
    /// do this.
    #[cfg(feature = "soft")]
    fn stop_listening(&self) {}

    /// Prepares to drop a pending request silently, so that its peer sends it again. The kernel
    /// instead rejects the request.
    fn forget(&self) {}

    /// Moves the id with its unread events to another channel.
    fn migrate(&self, to: &dyn Source) -> Result<()>;

    /// Returns the kernel's handle for the id. The kernel reports this handle instead of a cookie
    /// in events for a request that is not yet accepted.
    fn kernel_number(&self) -> Option<u32>;

    /// Returns whether the backend computes INIT attributes. ABI 3 does not.
    fn computes_init(&self) -> bool;

    /// Assigns a cookie to the id of a connection request, for events written by the program. A
    /// kernel id gets the cookie in `accept`.
    fn set_cookie(&self, uid: u64) {
        let _ = uid;
    }
}

/// The part of an event channel that belongs to one backend.
pub(crate) trait Source: fmt::Debug + Send + Sync {
    /// Creates an id whose events carry `uid`.
    fn create_id(&self, uid: u64, space: PortSpace, qp_type: QpType) -> Result<Box<dyn Backend>>;

    /// Returns the next event; `None` if no event is pending.
    fn next(&self) -> Result<Option<RawEvent>>;

    /// Returns the file that is readable when there is an event.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns the kernel's connection manager, for ids that migrate to this channel.
    fn kernel(&self) -> Option<&Arc<Ucma>> {
        None
    }

    /// Returns the soft backend's source, for ids that migrate to this channel. Only the soft
    /// backend names its type.
    #[cfg(feature = "soft")]
    fn soft(&self) -> Option<&dyn Any> {
        None
    }
}

/// An event as reported by a backend.
#[derive(Debug)]
pub(crate) struct RawEvent {
    /// The cookie of the id or of the group membership; 0 before a cookie is set.
    pub(crate) uid: u64,
    /// The kernel's handle for the id, for an event without a cookie.
    pub(crate) kernel_number: Option<u32>,
    /// The kind of event.
    pub(crate) event: EventType,
    /// The outcome: 0, a negative errno, or a protocol reason.
    pub(crate) status: i32,
    /// The event's parameters, which can be converted to each form of the API.
    pub(crate) param: RawParam,
    /// The peer's ECE options.
    pub(crate) ece: Ece,
    /// The id of a connection request. Dropping the id rejects or drops the request.
    pub(crate) request: Option<Box<dyn Backend>>,
}

/// The parameters of an event. The id's port space determines which form applies.
pub(crate) trait Param: fmt::Debug + Send {
    /// Returns the parameters of a connection.
    fn conn(&self) -> PeerParam;
    /// Returns the parameters of a datagram service.
    fn ud(&self) -> PeerUd;
    /// Returns the value in an event written by the program.
    fn arg(&self) -> u64;
}

/// The parameters of an event, in the backend's own form.
pub(crate) type RawParam = Box<dyn Param>;
