//! The seam between the API and what carries out its calls.
//!
//! | type | what it is |
//! |---|---|
//! | [`Backend`] | one id: its commands, and its end when it is dropped |
//! | [`Source`] | an event channel's part: it makes ids, and has their events |
//! | `kernel` | both for the kernel's connection manager |
//! | `soft` | both for soft devices, without a kernel connection manager |
//! | `choice` | both for a channel with both backends: the address of an id chooses |
//!
//! ```text
//!   CmId ──► IdInner ──► dyn Backend ─┬─► cmd ──► /dev/infiniband/rdma_cm
//!   EventChannel ──► dyn Source ──────┴─► ib-cm ──► queue pair 1 of soft devices
//! ```
//!
//! A program does not see which backend an id has. An event channel has one source or several; with
//! several it waits at an epoll descriptor. Ids of all sources share one table of cookies
//! ([`crate::table`]), so that an event needs no mark of its source.
//!
//! Invariant: a source never blocks, and a call on an id returns without waiting for a peer. What
//! takes time ends in an event.
//!
//! Invariant: dropping a backend ends its id in any state: a connection is disconnected, a request
//! that was not accepted is rejected, and events that were not read are discarded.

mod choice;
mod kernel;
mod soft;

use core::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub(crate) use choice::Choice;
pub(crate) use kernel::Kernel;
pub(crate) use soft::Soft;
use verbs::{AsyncEventType, Ece, QpAttr, QpAttrMask, QpState, QpType, Result};

use crate::channel::Ucma;
use crate::cmd::option::IdOption;
use crate::cmd::query::{Addresses, DeviceKey, Gids};
use crate::types::{
    Address, ConnParam, EventType, PathRecord, PeerParam, PeerUd, PortSpace, Service, ServiceRecord,
};

/// The reason why an id does not migrate to a channel.
const OTHER_CHANNEL: &str =
    "the event channel has no ids of this one's kind: it is on a device of the kernel, or on a soft device";

/// One id of a backend. The methods are named after the kernel's, and have their errors.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    fn bind(&self, address: &Address) -> Result<()>;
    fn resolve_addr(&self, source: Option<&Address>, destination: &Address, timeout_ms: u32) -> Result<()>;
    fn resolve_route(&self, timeout_ms: u32) -> Result<()>;
    fn resolve_service(&self, service: Service<'_>) -> Result<()>;
    fn listen(&self, backlog: u32) -> Result<()>;
    fn connect(&self, param: &ConnParam<'_>, ece: Ece) -> Result<()>;
    /// Accepts a request, which has no events of the peer or the device before that.
    fn accept(&self, uid: u64, param: Option<&ConnParam<'_>>, ece: Ece) -> Result<()>;
    fn reject(&self, data: &[u8], reason: u8) -> Result<()>;
    fn disconnect(&self) -> Result<()>;
    fn notify(&self, event: AsyncEventType) -> Result<()>;
    fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask)>;
    fn addresses(&self) -> Result<Addresses>;
    fn gids(&self) -> Result<Gids>;
    /// Returns the devices of the id's address: one, or all.
    fn devices(&self) -> Result<Vec<DeviceKey>>;
    fn paths(&self) -> Result<Vec<PathRecord>>;
    fn services(&self) -> Result<Vec<ServiceRecord>>;
    fn set_option(&self, option: IdOption<'_>) -> Result<()>;
    fn join(&self, uid: u64, address: &Address, send_only: bool) -> Result<u32>;
    fn leave(&self, membership: u32) -> Result<()>;
    fn write_event(&self, event: EventType, status: i32, arg: u64) -> Result<()>;

    /// Undoes a `listen`, for an id that listens on another backend too, which has refused. A
    /// kernel's id cannot.
    fn stop_listening(&self) {}

    /// Makes the end of an unanswered request send nothing, so that its peer sends it again. The
    /// kernel rejects it.
    fn forget(&self) {}

    /// Moves the id with its unread events to another channel.
    fn migrate(&self, to: &dyn Source) -> Result<()>;

    /// Returns the kernel's number of the id. Kernels report it, with no cookie, in events of a
    /// request that was not accepted yet.
    fn kernel_number(&self) -> Option<u32>;

    /// Returns whether INIT attributes come from the backend. ABI 3 has none of them.
    fn computes_init(&self) -> bool;

    /// Gives the id of a connection request its cookie, for events that the program writes. A
    /// kernel gets the cookie by `accept`.
    fn set_cookie(&self, uid: u64) {
        let _ = uid;
    }
}

/// The part of an event channel that belongs to one backend.
pub(crate) trait Source: fmt::Debug + Send + Sync {
    /// Creates an id whose events carry `uid`.
    fn create_id(&self, uid: u64, space: PortSpace, qp_type: QpType) -> Result<Box<dyn Backend>>;

    /// Returns the next event; `None` if there is none now.
    fn next(&self) -> Result<Option<RawEvent>>;

    /// Returns the file that is readable when there is an event.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns the kernel's connection manager, for ids that move here.
    fn kernel(&self) -> Option<&Arc<Ucma>> {
        None
    }

    /// Returns the part for soft ids, for ids that move here.
    fn soft(&self) -> Option<&Soft> {
        None
    }
}

/// An event as it comes from a backend.
#[derive(Debug)]
pub(crate) struct RawEvent {
    /// The cookie of the id, or of the membership in a group. 0 where there is none yet.
    pub(crate) uid: u64,
    /// The kernel's number of the id, for an event without a cookie.
    pub(crate) kernel_number: Option<u32>,
    /// The kind.
    pub(crate) event: EventType,
    /// 0, a negative errno, or a reason.
    pub(crate) status: i32,
    /// The parameters, in each of the forms that they may have.
    pub(crate) param: RawParam,
    /// The peer's options of the connection.
    pub(crate) ece: Ece,
    /// The id of a connection request, which ends if it is dropped.
    pub(crate) request: Option<Box<dyn Backend>>,
}

/// The parameters of an event. The port space of the id determines which of them counts.
pub(crate) trait Param: fmt::Debug + Send {
    /// Those of a connection.
    fn conn(&self) -> PeerParam;
    /// Those of a datagram service.
    fn ud(&self) -> PeerUd;
    /// The number of an event that the program wrote.
    fn arg(&self) -> u64;
}

/// The parameters of an event, behind the backend's own form.
pub(crate) type RawParam = Box<dyn Param>;
