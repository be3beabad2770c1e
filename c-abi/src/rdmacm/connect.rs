//! Connecting, accepting, rejecting, disconnecting, and attributes for queue pairs whose state the
//! program changes itself.
//!
//! # Safety
//! See [`rdmacm`](super). Private data has the length that the program states.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint, c_void};

use rdmacm::ConnParam;
use verbs_core::Errno;
use verbs_core::explain::BITS_24;
use verbs_core::types::{AsyncEventType, Ece, QpState};

use super::id::{self, private};
use super::lifecycle::{complete_call, forget_event};
use super::{NO_DEVICE, Result, given, given_room, minus_one, qp, refuse, status};
use crate::abi::c::{
    IBV_QPT_UD, RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, RDMA_PS_TCP, ibv_ece, ibv_qp_attr, rdma_cm_id,
    rdma_conn_param,
};
use crate::abi::convert::{narrow, qp_attr_to_c};

/// The values that request the maximum depth.
const ANY_RESPONDER: u8 = RDMA_MAX_RESP_RES as u8;
const ANY_INITIATOR: u8 = RDMA_MAX_INIT_DEPTH as u8;

/// Returns private data as bytes; an empty slice for null.
///
/// # Safety
/// `data` must be null or point to `len` bytes.
unsafe fn bytes<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { core::slice::from_raw_parts(data.cast(), len.into()) }
}

/// Checks the requested depths (RDMA reads and atomics in flight) against the device's limits.
///
/// # Errors
/// `EINVAL` for depths beyond the limits and for a connection without a queue pair.
///
/// # Safety
/// `id` must be live.
unsafe fn check(id: *mut rdma_cm_id, param: Option<&rdma_conn_param>) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if (*id).ps != RDMA_PS_TCP {
            return Ok(());
        }
        let Some(param) = param else {
            return match (*id).qp.is_null() {
                true => Err(refuse("connect", Errno::INVAL, "an id without a queue pair needs parameters")),
                false => Ok(()),
            };
        };
        let limits = private(id).state().device.as_ref().ok_or_else(without_device)?.limits;
        let exceeds = |depth, any, limit| depth != any && depth > limit;
        if exceeds(param.responder_resources, ANY_RESPONDER, limits.responder_resources)
            || exceeds(param.initiator_depth, ANY_INITIATOR, limits.initiator_depth)
        {
            return Err(refuse("connect", Errno::INVAL, "more reads and atomics than the device permits"));
        }
    }
    Ok(())
}

/// Returns the error for connecting or accepting an id without a device.
#[cold]
fn without_device() -> Errno {
    refuse("connect", Errno::INVAL, NO_DEVICE)
}

/// Sends a request or a reply with the C program's parameters. The caller has stored the chosen
/// depths in the id's state.
///
/// # Errors
/// `EINVAL` for more private data than fits into a message; any error from `send`.
///
/// # Safety
/// `id` must be live; private data must have the stated length.
unsafe fn send(
    id: *mut rdma_cm_id,
    param: Option<&rdma_conn_param>,
    send: impl FnOnce(&ConnParam<'_>) -> Result,
) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (responder_resources, initiator_depth, mut data) = {
            let state = private(id).state();
            (state.responder_resources, state.initiator_depth, state.connect.clone())
        };
        if let Some(param) = param {
            data.extend_from_slice(bytes(param.private_data, param.private_data_len));
        }
        if u8::try_from(data.len()).is_err() {
            return Err(refuse("connect", Errno::INVAL, "more than 255 bytes of private data"));
        }
        let own = (*id).qp;
        let (qp_num, srq) = if own.is_null() {
            // The kernel accepts only the field's 24 bits.
            param.map_or((0, false), |param| (param.qp_num & BITS_24, param.srq != 0))
        } else {
            ((*own).qp_num, !(*own).srq.is_null())
        };
        send(&ConnParam {
            private_data: &data,
            responder_resources,
            initiator_depth,
            flow_control: param.is_some_and(|param| param.flow_control != 0),
            retry_count: param.map_or(7, |param| param.retry_count),
            rnr_retry_count: param.map_or(7, |param| param.rnr_retry_count),
            min_rnr_timer: None,
            srq,
            qp_num,
        })
    }
}

/// `rdma_connect(3)`.
///
/// # Safety
/// `id` must be live; `param` must be null or point to parameters.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    given!(id);
    given_room!();
    // SAFETY: guaranteed by the caller.
    status(unsafe { connect(id, param.as_ref()) })
}

/// Connects an id.
///
/// # Safety
/// Same as [`rdma_connect`].
unsafe fn connect(id: *mut rdma_cm_id, param: Option<&rdma_conn_param>) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        check(id, param)?;
        let private = private(id);
        {
            let mut state = private.state();
            let limits = state.device.as_ref().ok_or_else(without_device)?.limits;
            let chosen = |depth: Option<u8>, any, limit| depth.filter(|depth| *depth != any).unwrap_or(limit);
            let wanted = param.map(|param| param.responder_resources);
            state.responder_resources = chosen(wanted, ANY_RESPONDER, limits.responder_resources);
            let wanted = param.map(|param| param.initiator_depth);
            state.initiator_depth = chosen(wanted, ANY_INITIATOR, limits.initiator_depth);
        }
        send(id, param, |param| private.call(|cm| cm.connect_with(param)))?;
        private.state().connect.clear();
        complete_call(id)
    }
}

/// `rdma_accept(3)`.
///
/// # Safety
/// `id` must be live; `param` must be null or point to parameters.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    given!(id);
    given_room!();
    // SAFETY: guaranteed by the caller.
    status(unsafe { accept(id, param.as_ref()) })
}

/// Accepts a connection request.
///
/// # Safety
/// Same as [`rdma_accept`].
unsafe fn accept(id: *mut rdma_cm_id, param: Option<&rdma_conn_param>) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        check(id, param)?;
        let private = private(id);
        let is_ud = (*id).qp_type == IBV_QPT_UD;
        let depths = {
            let mut state = private.state();
            let limits = state.device.as_ref().ok_or_else(without_device)?.limits;
            // "Any" means at most the depth that the peer requested.
            let chosen = |wanted: Option<u8>, any, asked: u8, limit| {
                wanted.filter(|depth| *depth != any).unwrap_or_else(|| asked.min(limit))
            };
            let (wanted, asked) = (param.map(|param| param.responder_resources), state.responder_resources);
            state.responder_resources = chosen(wanted, ANY_RESPONDER, asked, limits.responder_resources);
            let (wanted, asked) = (param.map(|param| param.initiator_depth), state.initiator_depth);
            state.initiator_depth = chosen(wanted, ANY_INITIATOR, asked, limits.initiator_depth);
            (state.responder_resources, state.initiator_depth)
        };
        if !is_ud {
            qp::modify_to_rts(id, Some(depths))?;
        }
        // This precedes the first event that the accept causes.
        id::enter(id);
        let accepted = send(id, param, |param| private.call(|cm| cm.accept_with(param)));
        if let Err(errno) = accepted {
            // The accept's error is reported.
            let _ = qp::modify_to_error(id);
            return Err(errno);
        }
        if is_ud {
            if private.state().is_sync {
                forget_event(id);
            }
            return Ok(());
        }
        complete_call(id)
    }
}

/// `rdma_establish(3)`: for a queue pair whose state the program changes itself.
///
/// # Safety
/// `id` must be live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    given!(id);
    // SAFETY: guaranteed by the caller.
    unsafe {
        if !(*id).qp.is_null() {
            return minus_one(refuse(
                "establish",
                Errno::INVAL,
                "the library moves the queue pair of the id",
            ));
        }
        status(private(id).call(|cm| cm.establish()))
    }
}

/// `rdma_reject(3)`.
///
/// # Safety
/// `id` must be live; `private_data` must be null or point to `private_data_len` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    given!(id);
    // SAFETY: guaranteed by the caller.
    status(unsafe { private(id).call(|cm| cm.reject(bytes(private_data, private_data_len))) })
}

/// `rdma_reject_ece(3)`.
///
/// # Safety
/// Same as [`rdma_reject`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    given!(id);
    // SAFETY: guaranteed by the caller.
    status(unsafe { private(id).call(|cm| cm.reject_ece(bytes(private_data, private_data_len))) })
}

/// `rdma_notify(3)`.
///
/// # Safety
/// `id` must be live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_uint) -> c_int {
    given!(id);
    // SAFETY: guaranteed by the caller.
    status(unsafe { private(id) }.call(|cm| cm.notify(AsyncEventType(event))))
}

/// `rdma_disconnect(3)`: first moves the queue pair to ERR.
///
/// # Safety
/// `id` must be live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    given!(id);
    // SAFETY: guaranteed by the caller.
    status(unsafe {
        qp::shut_down(id)
            .and_then(|()| private(id).call(|cm| cm.disconnect()))
            .and_then(|()| complete_call(id))
    })
}

/// `rdma_init_qp_attr(3)`: returns the attributes for the transition to the state `qp_state`.
///
/// # Safety
/// `id` must be live; the other arguments must point to attributes and to a mask.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    given!(id, attr, mask);
    // SAFETY: guaranteed by the caller.
    status(unsafe {
        let (qp_state, rate_limit) = ((*attr).qp_state, (*attr).rate_limit);
        private(id).call(|cm| cm.init_qp_attr(QpState(narrow(qp_state)))).map(|(found, of)| {
            *attr = ibv_qp_attr { qp_state, rate_limit, ..qp_attr_to_c(&found) };
            *mask = of.bits() as c_int;
        })
    })
}

/// `rdma_set_local_ece(3)`: for a queue pair that the program created itself.
///
/// # Safety
/// `id` must be null or live; `ece` must be null or point to ECE options.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    given!(id, ece);
    // SAFETY: guaranteed by the caller.
    status(unsafe {
        let ibv_ece { vendor_id, options, comp_mask } = *ece;
        if !(*id).qp.is_null() || vendor_id == 0 || comp_mask != 0 {
            Err(refuse("set_local_ece", Errno::INVAL, "the id has a queue pair, or the options are unknown"))
        } else {
            private(id).set_local_ece(Ece { vendor_id, options })
        }
    })
}

/// `rdma_get_remote_ece(3)`: for a queue pair that the program created itself.
///
/// # Safety
/// Same as [`rdma_set_local_ece`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    given!(id, ece);
    // SAFETY: guaranteed by the caller.
    status(unsafe {
        if (*id).qp.is_null() {
            private(id).cm().map(|cm| {
                let Ece { vendor_id, options } = cm.remote_ece();
                *ece = ibv_ece { vendor_id, options, comp_mask: 0 };
            })
        } else {
            Err(refuse("get_remote_ece", Errno::INVAL, "the library sets the options of the id's queue pair"))
        }
    })
}
