//! Address handles: `CREATE_AH`, `AH_DESTROY`.

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_DESTROY_AH_HANDLE, UVERBS_METHOD_AH_DESTROY, UVERBS_OBJECT_AH,
};
use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_CREATE_AH, IB_USER_VERBS_CMD_DESTROY_AH, IbUverbsCreateAh, IbUverbsCreateAhResp,
    IbUverbsDestroyAh,
};
use zerocopy::IntoBytes;

use super::{Destroy, ah_attr_to_kernel, write_only};
use crate::channel::{Uhw, Uverbs, WriteCmd};
use crate::errno::Errno;
use crate::error::Result;
use crate::types::AhAttr;

/// Creates an address handle and returns its kernel handle.
///
/// # Errors
/// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a GID index beyond 255, which the
/// command cannot hold; otherwise any errno the kernel returns, notably `EINVAL` for a nonexistent
/// port or path, and `ENODATA` for an empty entry of the GID table.
#[doc(alias = "ibv_create_ah")]
pub fn create_ah(
    uverbs: &Uverbs,
    pd_handle: u32,
    user_handle: u64,
    attr: &AhAttr,
    uhw: Uhw<'_>,
) -> Result<u32> {
    const VERB: &str = "create_ah";
    let mut reply = IbUverbsCreateAhResp::default();
    let attr = ah_attr_to_kernel(attr).map_err(|cause| uverbs.error(VERB, Errno::INVAL).because(cause))?;
    let request = IbUverbsCreateAh { response: 0, user_handle, pd_handle, reserved: 0, attr };
    let command = WriteCmd::new(IB_USER_VERBS_CMD_CREATE_AH, request.as_bytes(), reply.as_mut_bytes(), uhw);
    uverbs.write(command).map_err(|errno| uverbs.error(VERB, errno))?;
    Ok(reply.ah_handle)
}

/// Destroys an address handle.
///
/// # Errors
/// Any errno the kernel returns; notably `EBUSY` while datagrams that use it are in flight.
#[doc(alias = "ibv_destroy_ah")]
pub fn destroy_ah(uverbs: &Uverbs, handle: u32) -> Result<()> {
    Destroy {
        verb: "destroy_ah",
        object_id: UVERBS_OBJECT_AH,
        method_id: UVERBS_METHOD_AH_DESTROY,
        handle_attr: UVERBS_ATTR_DESTROY_AH_HANDLE,
        handle,
        reply: None,
    }
    .run(uverbs, || {
        write_only(uverbs, IB_USER_VERBS_CMD_DESTROY_AH, IbUverbsDestroyAh { ah_handle: handle }.as_bytes())
    })
}
