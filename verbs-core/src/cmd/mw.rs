//! Memory windows: `ALLOC_MW`, `MW_DESTROY`.
//!
//! Work requests bind windows. No kernel implements the `BIND_MW` command.

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_DESTROY_MW_HANDLE, UVERBS_METHOD_MW_DESTROY, UVERBS_OBJECT_MW,
};
use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_ALLOC_MW, IB_USER_VERBS_CMD_DEALLOC_MW, IbUverbsAllocMw, IbUverbsAllocMwResp,
    IbUverbsDeallocMw,
};
use zerocopy::IntoBytes;

use super::{Destroy, write_only};
use crate::channel::{Uhw, Uverbs, WriteCmd};
use crate::error::Result;
use crate::types::MwType;

/// The kernel's description of a new memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwInfo {
    /// The window's handle.
    pub handle: u32,
    /// The window's initial key.
    pub rkey: u32,
}

/// Allocates a memory window, not bound to any region.
///
/// # Errors
/// Any errno the kernel returns; notably `EOPNOTSUPP` from a driver without memory windows, and
/// `EINVAL` or `EOPNOTSUPP` for a window type that the driver lacks.
#[doc(alias = "ibv_alloc_mw")]
pub fn alloc_mw(uverbs: &Uverbs, pd_handle: u32, mw_type: MwType, uhw: Uhw<'_>) -> Result<MwInfo> {
    let mut reply = IbUverbsAllocMwResp::default();
    let request = IbUverbsAllocMw { response: 0, pd_handle, mw_type: mw_type.0, reserved: [0; 3] };
    let command = WriteCmd::new(IB_USER_VERBS_CMD_ALLOC_MW, request.as_bytes(), reply.as_mut_bytes(), uhw);
    uverbs.write(command).map_err(|errno| uverbs.error("alloc_mw", errno))?;
    Ok(MwInfo { handle: reply.mw_handle, rkey: reply.rkey })
}

/// Deallocates a memory window, bound or not.
///
/// # Errors
/// Any errno the kernel returns.
#[doc(alias = "ibv_dealloc_mw")]
pub fn dealloc_mw(uverbs: &Uverbs, handle: u32) -> Result<()> {
    Destroy {
        verb: "dealloc_mw",
        object_id: UVERBS_OBJECT_MW,
        method_id: UVERBS_METHOD_MW_DESTROY,
        handle_attr: UVERBS_ATTR_DESTROY_MW_HANDLE,
        handle,
        reply: None,
    }
    .run(uverbs, || {
        write_only(uverbs, IB_USER_VERBS_CMD_DEALLOC_MW, IbUverbsDeallocMw { mw_handle: handle }.as_bytes())
    })
}
