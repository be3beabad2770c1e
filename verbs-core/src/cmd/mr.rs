//! Memory regions: `REG_MR`, `MR_DESTROY`.
//!
//! # Safety
//! [`reg_mr`] lets the device access memory until the region is destroyed. Its caller promises that
//! this is sound; no code here dereferences the address.
#![allow(unsafe_code)]

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_DESTROY_MR_HANDLE, UVERBS_METHOD_MR_DESTROY, UVERBS_OBJECT_MR,
};
use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_DEREG_MR, IB_USER_VERBS_CMD_REG_MR, IbUverbsDeregMr, IbUverbsRegMr, IbUverbsRegMrResp,
};
use zerocopy::IntoBytes;

use super::{Destroy, write_only};
use crate::Result;
use crate::channel::{Uhw, Uverbs, WriteCmd};
use crate::types::AccessFlags;

/// The kernel's reply for a new memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrInfo {
    /// Its handle.
    pub handle: u32,
    /// The key for work requests of this process.
    pub lkey: u32,
    /// The key for peers.
    pub rkey: u32,
}

/// Registers `length` bytes at `addr`, which peers address as `iova`.
///
/// # Safety
/// While the region is registered, the device may read the bytes; the device and peers may also
/// write them as far as `access` allows it.
///
/// # Errors
/// Any errno the kernel returns; notably `EFAULT` where no memory is mapped, `ENOMEM` also beyond
/// `RLIMIT_MEMLOCK`, and `EINVAL` for remote writes without local ones.
#[doc(alias = "ibv_reg_mr")]
#[doc(alias = "ibv_reg_mr_iova")]
pub unsafe fn reg_mr(
    uverbs: &Uverbs,
    pd_handle: u32,
    addr: *mut u8,
    length: usize,
    iova: u64,
    access: AccessFlags,
) -> Result<MrInfo> {
    let mut reply = IbUverbsRegMrResp::default();
    let request = IbUverbsRegMr {
        response: 0,
        start: addr.expose_provenance() as u64,
        length: length as u64,
        hca_va: iova,
        pd_handle,
        access_flags: access.bits(),
    };
    let command =
        WriteCmd::new(IB_USER_VERBS_CMD_REG_MR, request.as_bytes(), reply.as_mut_bytes(), Uhw::none());
    uverbs.write(command).map_err(|errno| uverbs.error("reg_mr", errno))?;
    Ok(MrInfo { handle: reply.mr_handle, lkey: reply.lkey, rkey: reply.rkey })
}

/// Destroys a memory region. The device does not access the memory afterwards.
///
/// # Errors
/// Any errno the kernel returns; notably `EBUSY` while memory windows are bound to the region.
#[doc(alias = "ibv_dereg_mr")]
pub fn dereg_mr(uverbs: &Uverbs, handle: u32) -> Result<()> {
    Destroy {
        verb: "dereg_mr",
        object_id: UVERBS_OBJECT_MR,
        method_id: UVERBS_METHOD_MR_DESTROY,
        handle_attr: UVERBS_ATTR_DESTROY_MR_HANDLE,
        handle,
        reply: None,
    }
    .run(uverbs, || {
        write_only(uverbs, IB_USER_VERBS_CMD_DEREG_MR, IbUverbsDeregMr { mr_handle: handle }.as_bytes())
    })
}
