//! DMA handles, which contain hints for a device's memory accesses: `DMAH_ALLOC`, `DMAH_FREE`.

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_ALLOC_DMAH_CPU_ID, UVERBS_ATTR_ALLOC_DMAH_HANDLE, UVERBS_ATTR_ALLOC_DMAH_PH,
    UVERBS_ATTR_ALLOC_DMAH_TPH_MEM_TYPE, UVERBS_ATTR_FREE_DMA_HANDLE, UVERBS_METHOD_DMAH_ALLOC,
    UVERBS_METHOD_DMAH_FREE, UVERBS_OBJECT_DMAH,
};

use crate::channel::{Attr, Uverbs};
use crate::error::Result;
use crate::types::DmahAttr;

/// Allocates a DMA handle and returns its kernel handle. Absent hints are not sent.
///
/// # Errors
/// `EOPNOTSUPP` if the device has no DMA handles, or with
/// [`Cause::KernelLacks`](crate::Cause::KernelLacks) on kernels before 6.17; `EINVAL` for a
/// nonexistent CPU or hint; `EPERM` for a CPU outside the calling thread's CPU mask; any other
/// errno the kernel returns.
#[doc(alias = "ibv_alloc_dmah")]
pub fn alloc_dmah(uverbs: &Uverbs, attr: &DmahAttr) -> Result<u32> {
    let mut handle = 0;
    let mut attrs = vec![Attr::new_handle(UVERBS_ATTR_ALLOC_DMAH_HANDLE, &mut handle)];
    attrs.extend(attr.cpu_id.map(|cpu| Attr::u32(UVERBS_ATTR_ALLOC_DMAH_CPU_ID, cpu)));
    attrs.extend(
        attr.tph_mem_type.map(|kind| Attr::enumerated(UVERBS_ATTR_ALLOC_DMAH_TPH_MEM_TYPE, kind.0, &[])),
    );
    attrs.extend(attr.ph.map(|ph| Attr::u8(UVERBS_ATTR_ALLOC_DMAH_PH, ph)));
    uverbs.ioctl_only("alloc_dmah", WHAT, UVERBS_OBJECT_DMAH, UVERBS_METHOD_DMAH_ALLOC, &mut attrs)?;
    Ok(handle)
}

/// Frees a DMA handle.
///
/// # Errors
/// Any errno the kernel returns; notably `EBUSY` while a memory region uses it.
#[doc(alias = "ibv_dealloc_dmah")]
pub fn dealloc_dmah(uverbs: &Uverbs, handle: u32) -> Result<()> {
    let mut attrs = [Attr::handle(UVERBS_ATTR_FREE_DMA_HANDLE, handle)];
    uverbs.ioctl_only("dealloc_dmah", WHAT, UVERBS_OBJECT_DMAH, UVERBS_METHOD_DMAH_FREE, &mut attrs)
}

const WHAT: &str = "DMA handles";
