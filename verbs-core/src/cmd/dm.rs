//! Device memory: `DM_ALLOC`, `DM_FREE`, `DMABUF_ALLOC`.
//!
//! A program accesses device memory through a mapping that only the device's driver can create.
//! These commands allocate the memory and export such a mapping as a dma-buf.

use std::os::fd::OwnedFd;

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_ALLOC_DM_ALIGNMENT, UVERBS_ATTR_ALLOC_DM_HANDLE, UVERBS_ATTR_ALLOC_DM_LENGTH,
    UVERBS_ATTR_ALLOC_DMABUF_HANDLE, UVERBS_ATTR_ALLOC_DMABUF_PGOFF, UVERBS_ATTR_FREE_DM_HANDLE,
    UVERBS_METHOD_DM_ALLOC, UVERBS_METHOD_DM_FREE, UVERBS_METHOD_DMABUF_ALLOC, UVERBS_OBJECT_DM,
    UVERBS_OBJECT_DMABUF,
};

use super::context::own_dmabuf;
use crate::channel::{Attr, DriverAttrs, Uverbs};
use crate::error::Result;
use crate::types::DmAttr;

/// Allocates device memory and returns its handle. `driver` contains the driver's attributes, such
/// as the file offset for mapping the memory (`MLX5_IB_ATTR_ALLOC_DM_*`).
///
/// # Errors
/// `EOPNOTSUPP` if the device offers no device memory, or with
/// [`Cause::KernelLacks`](crate::Cause::KernelLacks) on kernels without the method; `EINVAL` and
/// `ENOMEM` for more memory than is available; any other errno the kernel returns.
#[doc(alias = "ibv_alloc_dm")]
pub fn alloc_dm(uverbs: &Uverbs, attr: &DmAttr, driver: DriverAttrs<'_>) -> Result<u32> {
    let mut handle = 0;
    let mut attrs = vec![
        Attr::new_handle(UVERBS_ATTR_ALLOC_DM_HANDLE, &mut handle),
        Attr::u64(UVERBS_ATTR_ALLOC_DM_LENGTH, attr.length),
        Attr::u32(UVERBS_ATTR_ALLOC_DM_ALIGNMENT, attr.log_align),
    ];
    attrs.extend(driver.0);
    uverbs.ioctl_only("alloc_dm", WHAT, UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC, &mut attrs)?;
    Ok(handle)
}

/// Frees device memory.
///
/// # Errors
/// Any errno the kernel returns; notably `EBUSY` while a memory region covers it.
#[doc(alias = "ibv_free_dm")]
pub fn free_dm(uverbs: &Uverbs, handle: u32) -> Result<()> {
    let mut attrs = [Attr::handle(UVERBS_ATTR_FREE_DM_HANDLE, handle)];
    uverbs.ioctl_only("free_dm", WHAT, UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE, &mut attrs)
}

/// Exports the mapping at `offset` of the device file, for example device memory, as a dma-buf.
///
/// # Errors
/// `EOPNOTSUPP` if the driver cannot export the mapping, or with
/// [`Cause::KernelLacks`](crate::Cause::KernelLacks) on kernels without the method; `EINVAL` for an
/// offset that the driver did not offer; any other errno the kernel returns, notably `EMFILE`.
/// [`Cause::BadReply`](crate::Cause::BadReply) if the reply names a descriptor that the kernel
/// cannot have just opened.
#[doc(alias = "ibv_dm_export_dmabuf_fd")]
pub fn export_dmabuf(uverbs: &Uverbs, offset: u64) -> Result<OwnedFd> {
    const VERB: &str = "export_dmabuf_fd";
    let mut fd = -1;
    let mut attrs = [
        Attr::new_fd(UVERBS_ATTR_ALLOC_DMABUF_HANDLE, &mut fd),
        Attr::u64(UVERBS_ATTR_ALLOC_DMABUF_PGOFF, offset),
    ];
    let (object, method) = (UVERBS_OBJECT_DMABUF, UVERBS_METHOD_DMABUF_ALLOC);
    uverbs.ioctl_only(VERB, "export of dma-bufs", object, method, &mut attrs)?;
    own_dmabuf(uverbs, VERB, fd)
}

const WHAT: &str = "device memory";
