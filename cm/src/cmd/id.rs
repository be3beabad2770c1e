//! Ids: `CREATE_ID`, `DESTROY_ID`, `MIGRATE_ID`.

use core::mem::offset_of;

use uverbs_abi::rdma_user_cm::{
    RDMA_USER_CM_CMD_CREATE_ID, RDMA_USER_CM_CMD_DESTROY_ID, RDMA_USER_CM_CMD_MIGRATE_ID, RdmaUcmCreateId,
    RdmaUcmCreateIdResp, RdmaUcmDestroyId, RdmaUcmDestroyIdResp, RdmaUcmMigrateId, RdmaUcmMigrateResp,
};
use verbs::{QpType, Result};
use zerocopy::IntoBytes;

use super::bad_reply;
use crate::channel::{Command, Ucma};
use crate::types::PortSpace;

/// The handle that stands for no id. The kernel's handles are positive `int`s.
pub(super) const NO_ID: u32 = u32::MAX;

/// Creates an id and returns the kernel's handle for it. The id's events carry `uid`; if `uid` is
/// 0, the kernel drops these events.
///
/// # Errors
/// `EINVAL` for a port space unknown to the kernel; any other errno the kernel returns; `EIO` if
/// the reply has no handle.
#[doc(alias = "rdma_create_id")]
pub(crate) fn create_id(ucma: &Ucma, uid: u64, space: PortSpace, qp_type: QpType) -> Result<u32> {
    const VERB: &str = "create_id";
    let request = RdmaUcmCreateId { uid, response: 0, ps: space.0, qp_type: qp_type.0, reserved: [0; 5] };
    let mut reply = RdmaUcmCreateIdResp { id: NO_ID };
    let command = Command::with_reply(
        RDMA_USER_CM_CMD_CREATE_ID,
        request.as_bytes(),
        offset_of!(RdmaUcmCreateId, response),
        reply.as_mut_bytes(),
    );
    ucma.write(VERB, command)?;
    if reply.id == NO_ID { Err(bad_reply(VERB, "an id without a number")) } else { Ok(reply.id) }
}

/// Destroys an id and returns the number of its events that were already read. The kernel discards
/// unread events, ends pending operations and rejects pending connection requests.
///
/// # Errors
/// `ENOENT` for an unknown handle, `EINVAL` for an id of another file; any other errno the kernel
/// returns.
#[doc(alias = "rdma_destroy_id")]
pub(crate) fn destroy_id(ucma: &Ucma, id: u32) -> Result<u32> {
    let request = RdmaUcmDestroyId { response: 0, id, reserved: 0 };
    let mut reply = RdmaUcmDestroyIdResp::default();
    let command = Command::with_reply(
        RDMA_USER_CM_CMD_DESTROY_ID,
        request.as_bytes(),
        offset_of!(RdmaUcmDestroyId, response),
        reply.as_mut_bytes(),
    );
    ucma.write("destroy_id", command)?;
    Ok(reply.events_reported)
}

/// Moves an id with its unread events from the file `from` to `to`. Returns the number of the id's
/// events that were already read.
///
/// # Errors
/// `ENOENT` or `EINVAL` if `from` has no id with this handle; any other errno the kernel returns.
#[doc(alias = "rdma_migrate_id")]
pub(crate) fn migrate_id(to: &Ucma, id: u32, from: &Ucma) -> Result<u32> {
    let request = RdmaUcmMigrateId { response: 0, id, fd: from.number() };
    let mut reply = RdmaUcmMigrateResp::default();
    let command = Command::with_reply(
        RDMA_USER_CM_CMD_MIGRATE_ID,
        request.as_bytes(),
        offset_of!(RdmaUcmMigrateId, response),
        reply.as_mut_bytes(),
    );
    to.write("migrate_id", command)?;
    Ok(reply.events_reported)
}
