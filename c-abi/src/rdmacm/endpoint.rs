//! Endpoints: an id, its route and its queue pair in one call, and the requests of a listening
//! endpoint.
//!
//! # Safety
//! See [`rdmacm`](super). An address in an `rdma_addrinfo` is as long as its family requires.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::ptr::null_mut;

use verbs_core::Errno;
use verbs_core::types::QpType;

use super::id::private;
use super::lifecycle::{complete_call, forget_event};
use super::qp::{rdma_destroy_qp, rdma_destroy_srq};
use super::{Result, address, event, given, given_room, lifecycle, option, qp, refuse, status};
use crate::abi::c::{
    RAI_PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, ibv_pd,
    ibv_qp_init_attr, rdma_addrinfo, rdma_cm_id,
};

/// The time limit of each step of an active endpoint, in milliseconds.
const TIMEOUT_MS: c_int = 2000;

/// `rdma_create_ep(3)`.
///
/// # Safety
/// `id` must point to a pointer and `res` to an address; `pd` and `attr` must be null or live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    given!(id, res);
    given_room!();
    // SAFETY: guaranteed by the caller.
    status(unsafe { create(&*res, pd, attr.as_mut()).map(|made| *id = made) })
}

/// Creates an endpoint.
///
/// # Safety
/// Same as [`rdma_create_ep`].
unsafe fn create(
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: Option<&mut ibv_qp_init_attr>,
) -> Result<*mut rdma_cm_id> {
    let unknown = || refuse("create_ep", Errno::INVAL, "an unknown port space or type of queue pairs");
    let qp_type = QpType(u8::try_from(info.ai_qp_type).map_err(|_| unknown())?);
    let space = u32::try_from(info.ai_port_space).map_err(|_| unknown())?;
    // SAFETY: guaranteed by the caller; a failed endpoint is not used.
    unsafe {
        let made = lifecycle::create(null_mut(), null_mut(), space, qp_type)?;
        if let Err(errno) = prepare(made, info, pd, attr) {
            rdma_destroy_ep(made);
            return Err(errno);
        }
        Ok(made)
    }
}

/// Binds a listener and stores the attributes for the queue pairs of its connection requests. For a
/// connecting endpoint, resolves the address of the peer and creates the queue pair.
///
/// # Safety
/// Same as [`rdma_create_ep`].
unsafe fn prepare(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: Option<&mut ibv_qp_init_attr>,
) -> Result {
    // SAFETY: guaranteed by the caller; private data has the stated length.
    unsafe {
        if info.ai_flags & RAI_PASSIVE != 0 {
            address::bind(id, info.ai_src_addr)?;
            if !pd.is_null() {
                (*id).pd = pd;
            }
            private(id).state().qp_init =
                attr.map(|attr| ibv_qp_init_attr { qp_type: info.ai_qp_type as _, ..*attr });
            return Ok(());
        }
        resolve(id, info)?;
        if let Some(attr) = attr {
            attr.qp_type = info.ai_qp_type as _;
            qp::create_plain(id, pd, attr)?;
        }
        if info.ai_connect_len > 0 {
            let data = core::slice::from_raw_parts(info.ai_connect.cast::<u8>(), info.ai_connect_len);
            private(id).state().connect = data.to_vec();
        }
    }
    Ok(())
}

/// Resolves the address of a peer, and the route unless the program provides it.
///
/// # Safety
/// Same as [`rdma_create_ep`].
unsafe fn resolve(id: *mut rdma_cm_id, info: &rdma_addrinfo) -> Result {
    // SAFETY: guaranteed by the caller; a route has the stated length.
    unsafe {
        address::resolve(id, info.ai_src_addr, info.ai_dst_addr, TIMEOUT_MS)?;
        if info.ai_route_len == 0 {
            return address::resolve_route(id, TIMEOUT_MS);
        }
        let route = core::slice::from_raw_parts(info.ai_route.cast::<u8>(), info.ai_route_len);
        option::set(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, route)?;
        complete_call(id)
    }
}

/// `rdma_destroy_ep(3)`.
///
/// # Safety
/// `id` must be live; neither it nor its objects may be used afterwards.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    if id.is_null() {
        return;
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        if !(*id).qp.is_null() {
            rdma_destroy_qp(id);
        }
        if !(*id).srq.is_null() {
            rdma_destroy_srq(id);
        }
        lifecycle::destroy(id);
    }
}

/// `rdma_get_request(3)`: for a listener with a private event channel.
///
/// # Safety
/// `listen` must be live; `id` must point to a pointer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    given!(listen, id);
    given_room!();
    // SAFETY: guaranteed by the caller.
    status(unsafe { request(listen).map(|made| *id = made) })
}

/// Returns an id for the next connection request, with a queue pair.
///
/// # Errors
/// `EINVAL` for a listener that uses one of the program's channels, and for an event of another
/// kind; the errno in the event's status; any error from creating the queue pair. After an error,
/// the event stays with the listener.
///
/// # Safety
/// `listen` must be live.
unsafe fn request(listen: *mut rdma_cm_id) -> Result<*mut rdma_cm_id> {
    // SAFETY: guaranteed by the caller; the id of an unacknowledged event is live.
    unsafe {
        if !private(listen).state().is_sync {
            return Err(refuse("get_request", Errno::INVAL, "the listener has a channel of the program"));
        }
        forget_event(listen);
        let read = event::next((*listen).channel)?;
        let taken = event::result_of(&*read).and_then(|()| {
            if (*read).event != RDMA_CM_EVENT_CONNECT_REQUEST {
                return Err(refuse("get_request", Errno::INVAL, "another event than a request"));
            }
            let of_requests = private(listen).state().qp_init;
            of_requests.map_or(Ok(()), |mut attr| qp::create_plain((*read).id, (*listen).pd, &mut attr))
        });
        let at = if taken.is_ok() { (*read).id } else { listen };
        (*at).event = read;
        taken.map(|()| at)
    }
}
