//! Protection domains: `ALLOC_PD`, `PD_DESTROY`.

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_DESTROY_PD_HANDLE, UVERBS_METHOD_PD_DESTROY, UVERBS_OBJECT_PD,
};
use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_ALLOC_PD, IB_USER_VERBS_CMD_DEALLOC_PD, IbUverbsAllocPd, IbUverbsAllocPdResp,
    IbUverbsDeallocPd,
};
use zerocopy::IntoBytes;

use super::{Destroy, write_only};
use crate::channel::{Uhw, Uverbs, WriteCmd};
use crate::error::Result;

/// Allocates a protection domain and returns its handle.
///
/// # Errors
/// Any errno the kernel returns; notably `ENOMEM` if the device has no free protection domain.
#[doc(alias = "ibv_alloc_pd")]
pub fn alloc_pd(uverbs: &Uverbs, uhw: Uhw<'_>) -> Result<u32> {
    let mut reply = IbUverbsAllocPdResp::default();
    let request = IbUverbsAllocPd::default();
    let command = WriteCmd::new(IB_USER_VERBS_CMD_ALLOC_PD, request.as_bytes(), reply.as_mut_bytes(), uhw);
    uverbs.write(command).map_err(|errno| uverbs.error("alloc_pd", errno))?;
    Ok(reply.pd_handle)
}

/// Destroys a protection domain.
///
/// # Errors
/// Any errno the kernel returns; notably `EBUSY` while objects of the protection domain exist.
#[doc(alias = "ibv_dealloc_pd")]
pub fn dealloc_pd(uverbs: &Uverbs, handle: u32) -> Result<()> {
    Destroy {
        verb: "dealloc_pd",
        object_id: UVERBS_OBJECT_PD,
        method_id: UVERBS_METHOD_PD_DESTROY,
        handle_attr: UVERBS_ATTR_DESTROY_PD_HANDLE,
        handle,
        reply: None,
    }
    .run(uverbs, || {
        write_only(uverbs, IB_USER_VERBS_CMD_DEALLOC_PD, IbUverbsDeallocPd { pd_handle: handle }.as_bytes())
    })
}
