//! Events: `GET_EVENT`, `WRITE_CM_EVENT`.

use core::mem::offset_of;

use uverbs_abi::rdma_user_cm::{
    RDMA_USER_CM_CMD_GET_EVENT, RDMA_USER_CM_CMD_WRITE_CM_EVENT, RdmaUcmEventResp, RdmaUcmGetEvent,
    RdmaUcmWriteCmEvent, RdmaUcmWriteCmEventParam,
};
use verbs::{Errno, Result};
use zerocopy::IntoBytes;

use crate::channel::{Command, Ucma};
use crate::types::EventType;

/// Returns the next event; `None` if no event is pending.
///
/// # Errors
/// Any errno the kernel returns, except `EAGAIN`.
#[doc(alias = "rdma_get_cm_event")]
pub(crate) fn get_event(ucma: &Ucma) -> Result<Option<RdmaUcmEventResp>> {
    let request = RdmaUcmGetEvent::default();
    let mut reply = RdmaUcmEventResp::default();
    let command = Command::with_reply(
        RDMA_USER_CM_CMD_GET_EVENT,
        request.as_bytes(),
        offset_of!(RdmaUcmGetEvent, response),
        reply.as_mut_bytes(),
    );
    match ucma.write("get_cm_event", command) {
        Ok(()) => Ok(Some(reply)),
        Err(error) if matches!(error.errno, Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Queues an event for an id. Kernels accept two kinds, [`USER`](EventType::USER) and
/// [`INTERNAL`](EventType::INTERNAL).
///
/// # Errors
/// `EINVAL` for another kind or from kernels without the command; any other errno the kernel
/// returns.
#[doc(alias = "rdma_write_cm_event")]
pub(crate) fn write_cm_event(ucma: &Ucma, id: u32, event: EventType, status: i32, arg: u64) -> Result<()> {
    let request = RdmaUcmWriteCmEvent {
        id,
        reserved: 0,
        event: event.0,
        status: status as u32,
        param: RdmaUcmWriteCmEventParam::from_arg(arg),
    };
    ucma.write("write_cm_event", Command::new(RDMA_USER_CM_CMD_WRITE_CM_EVENT, request.as_bytes()))
}
