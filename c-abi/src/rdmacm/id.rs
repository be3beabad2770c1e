//! Ids: their struct and the table of ids whose events are delivered.
//!
//! ```text
//!   create, accept ─► IDS ─► events are counted (claim) ─► the program acknowledges
//!   destroy: out of IDS, the id of the crate ends, wait for acknowledgements, free
//! ```
//!
//! The id of a connection request enters the table when it is accepted, or when the program writes
//! an event for it, because it has no events before that.
//!
//! # Safety
//! See [`rdmacm`](super). A pointer in [`IDS`] points to a live id: destroying an id first removes
//! it from the table and then waits until every counted event is acknowledged.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::collections::BTreeMap;
use std::sync::Arc;

use rdmacm::{CmId, Event, EventKind, EventType, IdKey, Peer};
use verbs_core::fork::{ForkGuard, ForkLock, current_generation};
use verbs_core::types::Ece;
use verbs_core::{Errno, Error};

use super::device::DeviceOfId;
use super::group::Group;
use super::tally::Tally;
use super::{Result, logged};
use crate::abi::c::{ibv_qp_init_attr, rdma_addrinfo, rdma_cm_id, rdma_event_channel};
use crate::handle::destroyable::{Destroyable, Loan};
use crate::handle::object::Object;

/// The private part of an id, after the public struct.
pub(super) struct Private {
    pub(super) cm: Destroyable<CmId>,
    pub(super) key: IdKey,
    state: ForkLock<State>,
    /// The generation of the process that created the id; forked children cannot use it.
    generation: u32,
    pub(super) tally: Arc<Tally>,
    /// Whether the id may belong to a soft device.
    has_soft: bool,
    /// The memberships. The lock is held while a group is joined, so that the join event finds the
    /// group.
    pub(super) groups: ForkLock<Vec<Arc<Group>>>,
}

/// The mutable state of an id, changed by calls and events.
#[derive(Default)]
pub(super) struct State {
    /// Whether calls wait for their events, on a channel private to the id.
    pub(super) is_sync: bool,
    pub(super) device: Option<DeviceOfId>,
    /// Private data from `rdma_create_ep(3)`, which is sent before the program's own data.
    pub(super) connect: Vec<u8>,
    /// The attributes for the queue pairs of a listener's connection requests.
    pub(super) qp_init: Option<ibv_qp_init_attr>,
    /// The depths that the peer requested; later, the depths agreed for the connection.
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) local_ece: Ece,
    /// Whether the connection failed after the peer's reply.
    pub(super) has_failed: bool,
    /// Whether `rdma_resolve_addrinfo` was called and `rdma_query_addrinfo` has not yet taken the
    /// result.
    pub(super) is_resolving: bool,
    pub(super) resolved: Resolved,
}

/// The result of `rdma_resolve_addrinfo`, or null.
pub(super) struct Resolved(pub(super) *mut rdma_addrinfo);

impl Default for Resolved {
    fn default() -> Self {
        Self(null_mut())
    }
}

pub(super) type IdObject = Object<rdma_cm_id, Private>;

/// The ids whose events are delivered to programs.
static IDS: ForkLock<BTreeMap<IdKey, usize>> = ForkLock::new(BTreeMap::new());

pub(super) fn ids() -> ForkGuard<'static, BTreeMap<IdKey, usize>> {
    IDS.lock_or(BTreeMap::new)
}

/// A counted event, which delays the destruction of its id until it is acknowledged.
pub(super) struct Claimed {
    /// The id of the event; for a connection request, the listener.
    pub(super) id: *mut rdma_cm_id,
    /// The tally that counted the event.
    pub(super) tally: Arc<Tally>,
    pub(super) event: EventType,
    pub(super) kind: Kind,
    pub(super) status: c_int,
    /// The peer's ECE options.
    pub(super) ece: Ece,
    /// The peer's parameters, for a kind of event that has no parameters itself.
    pub(super) param: Option<Box<Peer>>,
}

/// The kind of an event.
pub(super) enum Kind {
    /// A connection request: its id and the peer's parameters.
    Request(*mut rdma_cm_id, Peer),
    /// Any other event.
    Other(EventKind),
}

/// Counts an event at its id and creates the struct of a request's id. Returns `None` for an event
/// of an id that is being destroyed. The caller holds the channel's `turn` lock. `has_soft` states
/// whether ids of the channel may belong to soft devices.
pub(super) fn claim(event: Event, has_soft: bool) -> Option<Claimed> {
    let (id, tally) = {
        let ids = ids();
        let id: *mut rdma_cm_id = core::ptr::with_exposed_provenance_mut(*ids.get(&event.id)?);
        // SAFETY: ids in the table are live; from here on, destruction waits for this event.
        let tally = Arc::clone(unsafe { &private(id).tally });
        tally.read();
        (id, tally)
    };
    let event_type = event.event_type();
    let kind = match event.kind {
        EventKind::ConnectRequest(request) => {
            // SAFETY: the listener is live.
            let (channel, context) = unsafe { ((*id).channel, (*id).context) };
            Kind::Request(make(request.id, channel, has_soft, context, false), request.peer)
        }
        kind => Kind::Other(kind),
    };
    let (status, ece) = (event.status.0, event.ece);
    Some(Claimed { id, tally, event: event_type, kind, status, ece, param: event.param })
}

/// Creates the struct of an id without accessing the channel, because the program may have
/// destroyed the channel while a thread waits there for events.
pub(super) fn make(
    cm: CmId,
    channel: *mut rdma_event_channel,
    has_soft: bool,
    context: *mut c_void,
    is_sync: bool,
) -> *mut rdma_cm_id {
    let key = cm.key();
    // SAFETY: zeroed integers and null pointers are valid.
    let mut c: rdma_cm_id = unsafe { core::mem::zeroed() };
    c.channel = channel;
    c.context = context;
    c.ps = cm.port_space().0.into();
    c.qp_type = cm.qp_type().0.into();
    let state = State { is_sync, ..State::default() };
    let private = Private {
        cm: Destroyable::new(cm),
        key,
        state: ForkLock::new(state),
        generation: current_generation(),
        tally: Arc::default(),
        has_soft,
        groups: ForkLock::default(),
    };
    IdObject::boxed(c, private)
}

/// Allows the events of an id to reach the program.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn enter(id: *mut rdma_cm_id) {
    // SAFETY: guaranteed by the caller.
    ids().insert(unsafe { private(id) }.key, id.expose_provenance());
}

/// Returns the private part of an id.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn private<'a>(id: *mut rdma_cm_id) -> &'a Private {
    // SAFETY: guaranteed by the caller.
    unsafe { IdObject::inner(id) }
}

impl Private {
    /// Locks the state. If a parent held the lock at the fork, the child gets the state of a new
    /// id.
    pub(super) fn state(&self) -> ForkGuard<'_, State> {
        self.state.lock_or(State::default)
    }

    /// Locks the groups. If a parent held the lock at the fork, the child gets an empty list.
    pub(super) fn groups(&self) -> ForkGuard<'_, Vec<Arc<Group>>> {
        self.groups.lock_or(Vec::new)
    }

    /// Returns whether the id belongs to a parent process.
    pub(super) fn is_inherited(&self) -> bool {
        self.generation != current_generation()
    }

    /// Returns the id of the crate `rdmacm` for the duration of a call.
    ///
    /// # Errors
    /// `EINVAL` if another thread is destroying the id while this thread handles one of its events;
    /// the errno of [`of_parent`] in a forked child that inherited the id.
    pub(super) fn cm(&self) -> Result<Loan<'_, CmId>> {
        if self.is_inherited() {
            return Err(of_parent(self.has_soft));
        }
        self.cm.lend("rdma_cm_id").map_err(logged)
    }

    /// Calls a function on the id of the crate `rdmacm`.
    ///
    /// # Errors
    /// The errors of [`cm`](Self::cm), and any error from the call.
    pub(super) fn call<T>(&self, call: impl FnOnce(&CmId) -> core::result::Result<T, Error>) -> Result<T> {
        call(&*self.cm()?).map_err(logged)
    }

    /// Sets the ECE options that this side offers.
    ///
    /// # Errors
    /// Same as [`cm`](Self::cm).
    pub(super) fn set_local_ece(&self, ece: Ece) -> Result {
        self.cm()?.set_local_ece(ece);
        self.state().local_ece = ece;
        Ok(())
    }
}

/// Returns the errno for a forked child's calls on inherited ids and channels: `ENODEV` with soft
/// devices, and otherwise `EACCES`, as from the kernel for another process's file. Such calls fail
/// early, because threads of the parent may have held locks.
pub(super) const fn of_parent(has_soft: bool) -> Errno {
    if has_soft { Errno::NODEV } else { Errno::ACCESS }
}
