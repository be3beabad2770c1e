//! The life of an id: creating it, moving it between channels, destroying it, and the calls of a
//! synchronous id.
//!
//! # Safety
//! See [`rdmacm`](super). Destroying an id first removes it from the table and then waits until
//! every counted event is acknowledged.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use rdmacm::{CmId, PortSpace};
use verbs_core::types::QpType;
use verbs_core::{Errno, Error};

use super::addrinfo::rdma_freeaddrinfo;
use super::channel::{self, rdma_destroy_event_channel};
use super::event::{self, rdma_ack_cm_event, result_of};
use super::id::{IdObject, enter, ids, make, private};
use super::{Result, given, given_room, logged, refuse, status};
use crate::abi::c::{rdma_cm_id, rdma_event_channel, rdma_port_space};

/// Creates an id for a transport service.
///
/// # Errors
/// Same as [`EventChannel::create_id_of`](rdmacm::EventChannel::create_id_of).
///
/// # Safety
/// `channel` must be null or live.
pub(super) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    space: rdma_port_space,
    qp_type: QpType,
) -> Result<*mut rdma_cm_id> {
    let space = port_space(space);
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

/// Returns the port space in the lower 16 bits; the field in the kernel's command has only 16 bits.
const fn port_space(space: rdma_port_space) -> PortSpace {
    PortSpace(space as u16)
}

/// Destroys an id, after waiting until its events are acknowledged.
///
/// # Safety
/// `id` must be live and must not be used afterwards.
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
        // As in rdma-core, the peer is notified before the wait. Ids of the crate `rdmacm` have no
        // other way to end.
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
/// `id` must be live.
pub(super) unsafe fn forget_event(id: *mut rdma_cm_id) {
    // SAFETY: guaranteed by the caller; the event has not been acknowledged.
    unsafe {
        let event = core::mem::replace(&mut (*id).event, null_mut());
        if !event.is_null() {
            rdma_ack_cm_event(event);
        }
    }
}

/// Moves an id to another channel or, for null, to a private channel.
///
/// # Errors
/// `EINVAL` for null if the id already has a private channel; any error from [`CmId::migrate`].
///
/// # Safety
/// `id` must be live; `channel` must be null or live.
pub(super) unsafe fn migrate(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let private = private(id);
        let was_sync = private.state().is_sync;
        let is_sync = channel.is_null();
        if was_sync && is_sync {
            return Err(refuse("migrate_id", Errno::INVAL, "the id has no channel of the program already"));
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
        // As in rdma-core, threads that handle events from the old channel finish first.
        private.tally.wait();
    }
    Ok(())
}

/// `rdma_create_id(3)`. Without a channel, calls on the id wait for their events.
///
/// # Safety
/// `channel` must be null or live; `id` must point to a pointer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    given!(id);
    given_room!();
    let qp_type = port_space(ps).qp_type();
    // SAFETY: guaranteed by the caller.
    status(unsafe { create(channel, context, ps, qp_type).map(|made| *id = made) })
}

/// `rdma_destroy_id(3)`.
///
/// # Safety
/// `id` must be live and must not be used afterwards.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    given!(id);
    // SAFETY: guaranteed by the caller.
    unsafe { destroy(id) };
    0
}

/// `rdma_migrate_id(3)`.
///
/// # Safety
/// `id` must be live; `channel` must be null or live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    given!(id);
    given_room!();
    // SAFETY: guaranteed by the caller.
    status(unsafe { migrate(id, channel) })
}

/// Waits for the event of a call on a synchronous id. The event stays in the struct until the next
/// call. Does nothing for other ids.
///
/// # Errors
/// `ECONNREFUSED` for a rejection, otherwise the errno in the event's status; any error from
/// reading events.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn complete_call(id: *mut rdma_cm_id) -> Result {
    // SAFETY: guaranteed by the caller.
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
