//! Ids: their struct, their destruction, and their channel.
//!
//! ```text
//!   create, accept ─► IDS ─► events are counted (claim) ─► the program acknowledges
//!   destroy: out of IDS, the id of the crate ends, wait for acknowledgements, free
//! ```
//!
//! The id of a request enters the table when it is accepted, or when the program writes an event
//! for it, because it has no events before.
//!
//! # Safety
//! See [`rdmacm`](super). A pointer in [`IDS`] leads to a live id: destroying an id first removes
//! it from the table, and then waits until every counted event is acknowledged.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::collections::BTreeMap;
use std::sync::Arc;

use rdmacm::{CmId, Event, EventKind, EventType, IdKey, Peer, PortSpace};
use verbs_core::fork::{ForkGuard, ForkLock, current_generation};
use verbs_core::types::{Ece, QpType};
use verbs_core::{Errno, Error};

use super::addrinfo::rdma_freeaddrinfo;
use super::channel::{self, rdma_destroy_event_channel};
use super::device::DeviceOfId;
use super::event::{self, rdma_ack_cm_event, result_of};
use super::multicast::Group;
use super::tally::Tally;
use super::{Result, given, given_room, logged, status};
use crate::abi::c::{ibv_qp_init_attr, rdma_addrinfo, rdma_cm_id, rdma_event_channel, rdma_port_space};
use crate::handle::object::Object;
use crate::handle::shared::{Loan, Shared};

/// The private part of an id, behind the public struct.
pub(super) struct Private {
    cm: Shared<CmId>,
    key: IdKey,
    state: ForkLock<State>,
    /// The process that created the id; forked children cannot use it.
    generation: u32,
    pub(super) tally: Arc<Tally>,
    /// Whether the id may belong to a soft device.
    has_soft: bool,
    /// Held while joining a group, so that the join event finds the group.
    pub(super) groups: ForkLock<Vec<Arc<Group>>>,
}

/// The mutable state of an id, changed by calls and events.
#[derive(Default)]
pub(super) struct State {
    /// Whether calls wait for their events, on a channel private to the id.
    pub(super) is_sync: bool,
    pub(super) device: Option<DeviceOfId>,
    /// Private data from `rdma_create_ep(3)`, sent in front of the program's.
    pub(super) connect: Vec<u8>,
    /// The attributes for the queue pairs of a listener's requests.
    pub(super) qp_init: Option<ibv_qp_init_attr>,
    /// The depths requested by the peer, and later those of the connection.
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) local_ece: Ece,
    /// Whether the connection failed after the peer's reply.
    pub(super) has_failed: bool,
    /// Whether `rdma_resolve_addrinfo` was called, and its result until `rdma_query_addrinfo` takes
    /// it.
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

fn ids() -> ForkGuard<'static, BTreeMap<IdKey, usize>> {
    IDS.lock_or(BTreeMap::new)
}

/// A counted event, which delays the destruction of its id until it is acknowledged.
pub(super) struct Claimed {
    /// The id; for a connection request, the listener.
    pub(super) id: *mut rdma_cm_id,
    /// The tally that counted the event.
    pub(super) tally: Arc<Tally>,
    pub(super) event: EventType,
    pub(super) kind: Kind,
    pub(super) status: c_int,
    /// The peer's options.
    pub(super) ece: Ece,
    /// The peer's parameters, for a kind without parameters.
    pub(super) param: Option<Box<Peer>>,
}

/// The kind of an event.
pub(super) enum Kind {
    /// A connection request: its id and the peer's parameters.
    Request(*mut rdma_cm_id, Peer),
    /// Any other.
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

/// Creates the struct of an id. Does not access the channel, because the program may have destroyed
/// it while a thread waits for events on it.
fn make(
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
        cm: Shared::new(cm),
        key,
        state: ForkLock::new(state),
        generation: current_generation(),
        tally: Arc::default(),
        has_soft,
        groups: ForkLock::default(),
    };
    IdObject::boxed(c, private)
}

/// Makes the events of an id available to the program.
///
/// # Safety
/// `id` is live.
pub(super) unsafe fn enter(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    ids().insert(unsafe { private(id) }.key, id.expose_provenance());
}

/// Returns the private part of an id.
///
/// # Safety
/// `id` is live.
pub(super) unsafe fn private<'a>(id: *mut rdma_cm_id) -> &'a Private {
    // SAFETY: the caller's promise.
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
    fn is_inherited(&self) -> bool {
        self.generation != current_generation()
    }

    /// Lends the id of the crate to a call.
    ///
    /// # Errors
    /// `EINVAL` if another thread is destroying the id while this one handles an event of it; the
    /// errno of [`channel::of_parent`] in a forked child that inherited the id.
    pub(super) fn cm(&self) -> Result<Loan<'_, CmId>> {
        if self.is_inherited() {
            return Err(channel::of_parent(self.has_soft));
        }
        self.cm.lend("rdma_cm_id").map_err(logged)
    }

    /// Calls a function on the id of the crate.
    ///
    /// # Errors
    /// The errors of [`cm`](Self::cm) and of the call.
    pub(super) fn call<T>(&self, call: impl FnOnce(&CmId) -> core::result::Result<T, Error>) -> Result<T> {
        call(&*self.cm()?).map_err(logged)
    }

    /// Sets the options offered by this side.
    ///
    /// # Errors
    /// Same as [`cm`](Self::cm).
    pub(super) fn set_local_ece(&self, ece: Ece) -> Result {
        self.cm()?.set_local_ece(ece);
        self.state().local_ece = ece;
        Ok(())
    }
}

/// Creates an id for a transport service.
///
/// # Errors
/// Same as [`EventChannel::create_id_of`](rdmacm::EventChannel::create_id_of).
///
/// # Safety
/// `channel` is null or live.
pub(super) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    space: rdma_port_space,
    qp_type: QpType,
) -> Result<*mut rdma_cm_id> {
    let space = PortSpace(u16::try_from(space).map_err(|_| Errno::INVAL)?);
    let is_sync = channel.is_null();
    let own = if is_sync { channel::create()? } else { channel };
    // SAFETY: the channel is live.
    let shared = unsafe { channel::share(own) };
    let made = shared.events().and_then(|events| events.create_id_of(space, qp_type).map_err(logged));
    match made {
        Ok(cm) => {
            let id = make(cm, own, shared.has_soft(), context, is_sync);
            // SAFETY: the id was just created.
            unsafe { enter(id) };
            Ok(id)
        }
        Err(errno) => {
            if is_sync {
                // SAFETY: the channel is not used by any id.
                unsafe { rdma_destroy_event_channel(own) };
            }
            Err(errno)
        }
    }
}

/// Destroys an id, after waiting until its events are acknowledged.
///
/// # Safety
/// `id` is live and not used afterwards.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: the id is live until its box is dropped.
    unsafe {
        let private = private(id);
        ids().remove(&private.key);
        if private.is_inherited() {
            // The id belongs to the parent, whose threads may have held locks inside. Its memory is
            // leaked.
            return;
        }
        // As in C, the peer is notified before the wait. Ids of the crate have no other way to end.
        let _ = private.cm.destroy_waiting("destroy_id", |cm| {
            drop(cm);
            Ok::<_, (CmId, Error)>(())
        });
        forget_event(id);
        private.tally.wait();
        let (resolved, is_sync) = {
            let mut state = private.state();
            (core::mem::take(&mut state.resolved).0, state.is_sync)
        };
        rdma_freeaddrinfo(resolved);
        libc::free((*id).route.path_rec.cast());
        if is_sync {
            rdma_destroy_event_channel((*id).channel);
        }
        drop(Box::from_raw(id.cast::<IdObject>()));
    }
}

/// Acknowledges the event of a synchronous id's last call.
///
/// # Safety
/// `id` is live.
pub(super) unsafe fn forget_event(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise; the event has not been acknowledged.
    unsafe {
        let event = core::mem::replace(&mut (*id).event, null_mut());
        if !event.is_null() {
            rdma_ack_cm_event(event);
        }
    }
}

/// Moves an id to another channel, or with null to a private one.
///
/// # Errors
/// `EINVAL` for null if the id already has a private channel; the errors of [`CmId::migrate`].
///
/// # Safety
/// `id` is live; `channel` is null or live.
pub(super) unsafe fn migrate(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result {
    // SAFETY: the caller's promise.
    unsafe {
        let private = private(id);
        let was_sync = private.state().is_sync;
        let is_sync = channel.is_null();
        if was_sync && is_sync {
            return Err(Errno::INVAL);
        }
        let to = if is_sync { channel::create()? } else { channel };
        let target = channel::share(to);
        let moved = target
            .events()
            .and_then(|events| private.call(|cm| cm.migrate(events)))
            .and_then(|()| target.look_again());
        if let Err(errno) = moved {
            if is_sync {
                rdma_destroy_event_channel(to);
            }
            return Err(errno);
        }
        if was_sync {
            forget_event(id);
            rdma_destroy_event_channel((*id).channel);
        }
        private.state().is_sync = is_sync;
        (*id).channel = to;
        // As in C, threads that handle events of the old channel finish first.
        private.tally.wait();
    }
    Ok(())
}

/// `rdma_create_id(3)`. Without a channel, calls on the id wait for their events.
///
/// # Safety
/// `channel` is null or live; `id` points to a pointer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    given!(id);
    given_room!();
    let space = PortSpace(u16::try_from(ps).unwrap_or(u16::MAX));
    // SAFETY: the caller's promise.
    status(unsafe { create(channel, context, ps, space.qp_type()).map(|made| *id = made) })
}

/// `rdma_destroy_id(3)`.
///
/// # Safety
/// `id` is live and not used afterwards.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    given!(id);
    // SAFETY: the caller's promise.
    unsafe { destroy(id) };
    0
}

/// `rdma_migrate_id(3)`.
///
/// # Safety
/// `id` is live; `channel` is null or live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    given!(id);
    given_room!();
    // SAFETY: the caller's promise.
    status(unsafe { migrate(id, channel) })
}

/// Waits for the event of a call on a synchronous id. The event stays in the struct until the next
/// call. Does nothing for other ids.
///
/// # Errors
/// `ECONNREFUSED` for a reject, otherwise the errno in the event's status; the errors of reading
/// events.
///
/// # Safety
/// `id` is live.
pub(super) unsafe fn complete_call(id: *mut rdma_cm_id) -> Result {
    // SAFETY: the caller's promise.
    unsafe {
        if !private(id).state().is_sync {
            return Ok(());
        }
        forget_event(id);
        let event = event::next((*id).channel)?;
        (*id).event = event;
        result_of(&*event)
    }
}
