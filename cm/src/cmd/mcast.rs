//! Multicast groups: `JOIN_IP_MCAST`, `JOIN_MCAST`, `LEAVE_MCAST`.

use core::mem::offset_of;

use uverbs_abi::rdma_user_cm::{
    RDMA_MC_JOIN_FLAG_FULLMEMBER, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, RDMA_USER_CM_CMD_JOIN_IP_MCAST,
    RDMA_USER_CM_CMD_JOIN_MCAST, RDMA_USER_CM_CMD_LEAVE_MCAST, RdmaUcmCreateIdResp, RdmaUcmDestroyId,
    RdmaUcmDestroyIdResp, RdmaUcmJoinIpMcast, RdmaUcmJoinMcast,
};
use verbs::Result;
use zerocopy::IntoBytes;

use super::id::NO_ID;
use super::{bad_reply, family_error};
use crate::channel::{Command, Ucma};
use crate::types::Address;

const JOIN: &str = "join_multicast";

/// Starts joining the group at an IP address. Returns the kernel's handle for the membership, whose
/// events carry `uid`.
///
/// # Errors
/// `EAFNOSUPPORT` for another family; otherwise the same as [`join_mcast`].
#[doc(alias = "rdma_join_multicast")]
pub(crate) fn join_ip_mcast(ucma: &Ucma, id: u32, uid: u64, address: &Address) -> Result<u32> {
    let addr = address.to_in6().ok_or_else(|| family_error(JOIN, address))?;
    let request = RdmaUcmJoinIpMcast { response: 0, uid, addr, id };
    let mut reply = RdmaUcmCreateIdResp { id: NO_ID };
    let offset = offset_of!(RdmaUcmJoinIpMcast, response);
    let command =
        Command::with_reply(RDMA_USER_CM_CMD_JOIN_IP_MCAST, request.as_bytes(), offset, reply.as_mut_bytes());
    ucma.write(JOIN, command)?;
    membership(reply)
}

/// Starts joining the group at an address of any family, for sending and receiving or only for
/// sending. Returns the kernel's handle for the membership, whose events carry `uid`.
///
/// # Errors
/// `EINVAL` for an id that is not bound to a device; any other errno the kernel returns, notably
/// `EOPNOTSUPP` if the InfiniBand fabric does not support send-only members.
#[doc(alias = "rdma_join_multicast_ex")]
pub(crate) fn join_mcast(ucma: &Ucma, id: u32, uid: u64, address: &Address, send_only: bool) -> Result<u32> {
    let (addr, addr_size) = address.to_storage().ok_or_else(|| family_error(JOIN, address))?;
    let join_flags =
        if send_only { RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER } else { RDMA_MC_JOIN_FLAG_FULLMEMBER };
    let request = RdmaUcmJoinMcast { response: 0, uid, id, addr_size, join_flags, addr };
    let mut reply = RdmaUcmCreateIdResp { id: NO_ID };
    let offset = offset_of!(RdmaUcmJoinMcast, response);
    let command =
        Command::with_reply(RDMA_USER_CM_CMD_JOIN_MCAST, request.as_bytes(), offset, reply.as_mut_bytes());
    ucma.write(JOIN, command)?;
    membership(reply)
}

/// Ends a membership. Returns the number of the membership's events that were already read.
///
/// # Errors
/// `ENOENT` for an unknown membership; any other errno the kernel returns.
#[doc(alias = "rdma_leave_multicast")]
pub(crate) fn leave_mcast(ucma: &Ucma, membership: u32) -> Result<u32> {
    let request = RdmaUcmDestroyId { response: 0, id: membership, reserved: 0 };
    let mut reply = RdmaUcmDestroyIdResp::default();
    let command = Command::with_reply(
        RDMA_USER_CM_CMD_LEAVE_MCAST,
        request.as_bytes(),
        offset_of!(RdmaUcmDestroyId, response),
        reply.as_mut_bytes(),
    );
    ucma.write("leave_multicast", command)?;
    Ok(reply.events_reported)
}

fn membership(reply: RdmaUcmCreateIdResp) -> Result<u32> {
    if reply.id == NO_ID { Err(bad_reply(JOIN, "a membership without a number")) } else { Ok(reply.id) }
}
