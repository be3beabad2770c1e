//! Asynchronous events and the device's clock.

use core::ffi::{c_int, c_uint};

use libc::timespec;

use super::macros::c_types;
use super::{ibv_cq, ibv_qp, ibv_srq, ibv_wq};

c_types! {
    /// The kind of an asynchronous event.
    pub enum ibv_event_type: c_uint {
        IBV_EVENT_CQ_ERR = 0,
        IBV_EVENT_QP_FATAL = 1,
        IBV_EVENT_QP_REQ_ERR = 2,
        IBV_EVENT_QP_ACCESS_ERR = 3,
        IBV_EVENT_COMM_EST = 4,
        IBV_EVENT_SQ_DRAINED = 5,
        IBV_EVENT_PATH_MIG = 6,
        IBV_EVENT_PATH_MIG_ERR = 7,
        IBV_EVENT_DEVICE_FATAL = 8,
        IBV_EVENT_PORT_ACTIVE = 9,
        IBV_EVENT_PORT_ERR = 10,
        IBV_EVENT_LID_CHANGE = 11,
        IBV_EVENT_PKEY_CHANGE = 12,
        IBV_EVENT_SM_CHANGE = 13,
        IBV_EVENT_SRQ_ERR = 14,
        IBV_EVENT_SRQ_LIMIT_REACHED = 15,
        IBV_EVENT_QP_LAST_WQE_REACHED = 16,
        IBV_EVENT_CLIENT_REREGISTER = 17,
        IBV_EVENT_GID_CHANGE = 18,
        IBV_EVENT_WQ_FATAL = 19,
        IBV_EVENT_DEVICE_SPEED_CHANGE = 20,
    }

    /// An asynchronous event (`ibv_get_async_event(3)`).
    pub struct ibv_async_event {
        element: ibv_async_event_element,
        event_type: ibv_event_type,
    }

    /// The object of an asynchronous event, depending on the event's kind.
    pub union ibv_async_event_element = "ibv_async_event.element" {
        cq: *mut ibv_cq,
        qp: *mut ibv_qp,
        srq: *mut ibv_srq,
        wq: *mut ibv_wq,
        port_num: c_int,
    }

    /// The values that `ibv_query_rt_values_ex(3)` reads.
    pub enum ibv_values_mask: c_uint {
        IBV_VALUES_MASK_RAW_CLOCK = 1 << 0,
        IBV_VALUES_MASK_RESERVED = 1 << 1,
    }

    /// The device values that change at run time (`ibv_query_rt_values_ex(3)`).
    pub struct ibv_values_ex {
        comp_mask: u32,
        raw_clock: timespec,
    }
}
