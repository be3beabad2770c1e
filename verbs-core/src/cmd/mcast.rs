//! A queue pair's multicast groups: `ATTACH_MCAST`, `DETACH_MCAST`.

use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_ATTACH_MCAST, IB_USER_VERBS_CMD_DETACH_MCAST, IbUverbsAttachMcast, IbUverbsDetachMcast,
};
use zerocopy::IntoBytes;

use super::write_only;
use crate::channel::Uverbs;
use crate::error::Result;
use crate::types::Gid;

/// Attaches a UD queue pair to the multicast group `gid`. `mlid` is the group's local id, which
/// Ethernet ports ignore. Attaching twice succeeds and changes nothing.
///
/// # Errors
/// Any errno the kernel returns; notably `EINVAL` for a service other than UD and for an address
/// outside the multicast ranges, `ENOMEM` beyond a limit of the device, and `EOPNOTSUPP` for a
/// driver without multicast.
#[doc(alias = "ibv_attach_mcast")]
pub fn attach_mcast(uverbs: &Uverbs, qp_handle: u32, gid: &Gid, mlid: u16) -> Result<()> {
    let request = IbUverbsAttachMcast { gid: gid.0, qp_handle, mlid, reserved: 0 };
    write_only(uverbs, IB_USER_VERBS_CMD_ATTACH_MCAST, request.as_bytes())
        .map_err(|errno| uverbs.error("attach_mcast", errno))
}

/// Detaches a queue pair from a multicast group attached with the same `gid` and `mlid`.
///
/// # Errors
/// Any errno the kernel returns; notably `EINVAL` for a queue pair that is not attached, or another
/// errno from the driver (`ENOENT` from some versions of rxe).
#[doc(alias = "ibv_detach_mcast")]
pub fn detach_mcast(uverbs: &Uverbs, qp_handle: u32, gid: &Gid, mlid: u16) -> Result<()> {
    let request = IbUverbsDetachMcast { gid: gid.0, qp_handle, mlid, reserved: 0 };
    write_only(uverbs, IB_USER_VERBS_CMD_DETACH_MCAST, request.as_bytes())
        .map_err(|errno| uverbs.error("detach_mcast", errno))
}
