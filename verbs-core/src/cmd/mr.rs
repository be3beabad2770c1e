//! Memory regions: `REG_MR`, `REREG_MR`, `REG_DMABUF_MR`, `DM_MR_REG`, `ADVISE_MR`, `QUERY_MR`,
//! `MR_DESTROY`.
//!
//! # Safety
//! [`reg_mr`], [`reg_mr_ex`] and [`rereg_mr`] let the device access memory until the region is
//! destroyed or changed. Their callers guarantee that this is sound. No code here dereferences the
//! address.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_ADVISE_MR_ADVICE, UVERBS_ATTR_ADVISE_MR_FLAGS, UVERBS_ATTR_ADVISE_MR_PD_HANDLE,
    UVERBS_ATTR_ADVISE_MR_SGE_LIST, UVERBS_ATTR_DESTROY_MR_HANDLE, UVERBS_ATTR_QUERY_MR_HANDLE,
    UVERBS_ATTR_QUERY_MR_RESP_IOVA, UVERBS_ATTR_QUERY_MR_RESP_LENGTH, UVERBS_ATTR_QUERY_MR_RESP_LKEY,
    UVERBS_ATTR_QUERY_MR_RESP_RKEY, UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS, UVERBS_ATTR_REG_DM_MR_DM_HANDLE,
    UVERBS_ATTR_REG_DM_MR_HANDLE, UVERBS_ATTR_REG_DM_MR_LENGTH, UVERBS_ATTR_REG_DM_MR_OFFSET,
    UVERBS_ATTR_REG_DM_MR_PD_HANDLE, UVERBS_ATTR_REG_DM_MR_RESP_LKEY, UVERBS_ATTR_REG_DM_MR_RESP_RKEY,
    UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, UVERBS_ATTR_REG_DMABUF_MR_FD, UVERBS_ATTR_REG_DMABUF_MR_HANDLE,
    UVERBS_ATTR_REG_DMABUF_MR_IOVA, UVERBS_ATTR_REG_DMABUF_MR_LENGTH, UVERBS_ATTR_REG_DMABUF_MR_OFFSET,
    UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY,
    UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, UVERBS_ATTR_REG_MR_ACCESS_FLAGS, UVERBS_ATTR_REG_MR_ADDR,
    UVERBS_ATTR_REG_MR_DMA_HANDLE, UVERBS_ATTR_REG_MR_FD, UVERBS_ATTR_REG_MR_FD_OFFSET,
    UVERBS_ATTR_REG_MR_HANDLE, UVERBS_ATTR_REG_MR_IOVA, UVERBS_ATTR_REG_MR_LENGTH,
    UVERBS_ATTR_REG_MR_PD_HANDLE, UVERBS_ATTR_REG_MR_RESP_LKEY, UVERBS_ATTR_REG_MR_RESP_RKEY,
    UVERBS_METHOD_ADVISE_MR, UVERBS_METHOD_DM_MR_REG, UVERBS_METHOD_MR_DESTROY, UVERBS_METHOD_QUERY_MR,
    UVERBS_METHOD_REG_DMABUF_MR, UVERBS_METHOD_REG_MR, UVERBS_OBJECT_MR,
};
use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_DEREG_MR, IB_USER_VERBS_CMD_REG_MR, IB_USER_VERBS_CMD_REREG_MR, IbUverbsDeregMr,
    IbUverbsRegMr, IbUverbsRegMrResp, IbUverbsReregMr, IbUverbsReregMrResp, IbUverbsSge,
};
use zerocopy::IntoBytes;

use super::{Destroy, write_only};
use crate::channel::{Attr, Uhw, Uverbs, WriteCmd};
use crate::error::Result;
use crate::room;
use crate::types::{AccessFlags, Advice, AdviseFlags, MrAttr, Sge};

/// The kernel's description of a new memory region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MrInfo {
    /// The region's handle.
    pub handle: u32,
    /// The local key, for work requests of this process.
    pub lkey: u32,
    /// The remote key, for peers.
    pub rkey: u32,
}

/// The memory of a new region for [`reg_mr_ex`].
#[derive(Clone, Copy, Debug)]
pub enum Memory<'a> {
    /// Memory of this process, starting at this address.
    Addr(*mut u8),
    /// Memory of a dma-buf, starting at `offset`.
    DmaBuf {
        /// The dma-buf.
        fd: BorrowedFd<'a>,
        /// The offset of the first byte.
        offset: u64,
    },
}

/// Registers `length` bytes at `addr`. Work requests and peers address the first byte as `iova`.
///
/// The address 0 with `usize::MAX` bytes and [`ON_DEMAND`](AccessFlags::ON_DEMAND) means all memory
/// of this process, now and in the future.
///
/// # Safety
/// While the region is registered, the device may read the bytes; the device and peers may also
/// write them if `access` allows it. The bytes must stay mapped, and other code that accesses them
/// must allow for these accesses.
///
/// # Errors
/// Any errno the kernel returns; notably `EFAULT` for unmapped memory, `ENOMEM` also for a region
/// beyond `RLIMIT_MEMLOCK`, and `EINVAL` for remote write access without local write access.
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
        length: length_for_kernel(addr, length, access),
        hca_va: iova,
        pd_handle,
        access_flags: access.bits(),
    };
    let command =
        WriteCmd::new(IB_USER_VERBS_CMD_REG_MR, request.as_bytes(), reply.as_mut_bytes(), Uhw::none());
    uverbs.write(command).map_err(|errno| uverbs.error("reg_mr", errno))?;
    Ok(MrInfo { handle: reply.mr_handle, lkey: reply.lkey, rkey: reply.rkey })
}

/// Registers `length` bytes of `memory`, with an optional DMA handle. Work requests and peers
/// address the first byte as `iova`.
///
/// The method exists since Linux 6.17. On older kernels, [`reg_mr`] or [`reg_dmabuf_mr`] is used to
/// register memory without a DMA handle.
///
/// # Safety
/// Same as [`reg_mr`], including for the bytes of a dma-buf.
///
/// # Errors
/// The errors of [`reg_mr`] and [`reg_dmabuf_mr`]; `EOPNOTSUPP` with
/// [`Cause::KernelLacks`](crate::Cause::KernelLacks) for a DMA handle on kernels before 6.17, and
/// for a dma-buf on kernels before 5.12.
#[doc(alias = "ibv_reg_mr_ex")]
pub unsafe fn reg_mr_ex(
    uverbs: &Uverbs,
    pd_handle: u32,
    memory: Memory<'_>,
    length: usize,
    iova: u64,
    access: AccessFlags,
    dmah_handle: Option<u32>,
) -> Result<MrInfo> {
    const VERB: &str = "reg_mr";
    let wire_length = match memory {
        Memory::Addr(addr) => length_for_kernel(addr, length, access),
        Memory::DmaBuf { .. } => length as u64,
    };
    let mut info = MrInfo::default();
    let MrInfo { handle, lkey, rkey } = &mut info;
    let mut attrs = Vec::with_capacity(10);
    attrs.push(Attr::new_handle(UVERBS_ATTR_REG_MR_HANDLE, handle));
    attrs.push(Attr::output(UVERBS_ATTR_REG_MR_RESP_LKEY, lkey.as_mut_bytes()));
    attrs.push(Attr::output(UVERBS_ATTR_REG_MR_RESP_RKEY, rkey.as_mut_bytes()));
    attrs.push(Attr::handle(UVERBS_ATTR_REG_MR_PD_HANDLE, pd_handle));
    attrs.push(Attr::u64(UVERBS_ATTR_REG_MR_LENGTH, wire_length));
    attrs.push(Attr::u64(UVERBS_ATTR_REG_MR_IOVA, iova));
    match memory {
        Memory::Addr(addr) => {
            attrs.push(Attr::u64(UVERBS_ATTR_REG_MR_ADDR, addr.expose_provenance() as u64));
        }
        Memory::DmaBuf { fd, offset } => {
            attrs.push(Attr::fd(UVERBS_ATTR_REG_MR_FD, fd.as_raw_fd()));
            attrs.push(Attr::u64(UVERBS_ATTR_REG_MR_FD_OFFSET, offset));
        }
    }
    attrs.extend(dmah_handle.map(|handle| Attr::handle(UVERBS_ATTR_REG_MR_DMA_HANDLE, handle)));
    attrs.push(Attr::u32(UVERBS_ATTR_REG_MR_ACCESS_FLAGS, access.bits()));
    match (uverbs.try_ioctl(UVERBS_OBJECT_MR, UVERBS_METHOD_REG_MR, &mut attrs), memory) {
        (Ok(true), _) => Ok(info),
        (Ok(false), Memory::Addr(addr)) if dmah_handle.is_none() => {
            // SAFETY: the caller upholds the same contract.
            unsafe { reg_mr(uverbs, pd_handle, addr, length, iova, access) }
        }
        (Ok(false), Memory::DmaBuf { fd, offset }) if dmah_handle.is_none() => {
            // SAFETY: the caller upholds the same contract.
            unsafe { reg_dmabuf_mr(uverbs, pd_handle, fd, offset, length, iova, access) }
        }
        (Ok(false), _) => Err(uverbs.lacks(VERB, "registration with DMA handles")),
        (Err(errno), _) => Err(uverbs.error(VERB, errno)),
    }
}

/// Registers `length` bytes of a dma-buf, starting at `offset`. Work requests and peers address the
/// first byte as `iova`.
///
/// # Safety
/// Same as [`reg_mr`], for the bytes of the dma-buf.
///
/// # Errors
/// `EOPNOTSUPP` if the driver does not register dma-bufs, or with
/// [`Cause::KernelLacks`](crate::Cause::KernelLacks) on kernels before 5.12; `EINVAL` if `offset`
/// and `iova` have different offsets in their pages; any other errno the kernel returns, notably
/// `EBADF`.
#[doc(alias = "ibv_reg_dmabuf_mr")]
pub unsafe fn reg_dmabuf_mr(
    uverbs: &Uverbs,
    pd_handle: u32,
    fd: BorrowedFd<'_>,
    offset: u64,
    length: usize,
    iova: u64,
    access: AccessFlags,
) -> Result<MrInfo> {
    let mut info = MrInfo::default();
    let MrInfo { handle, lkey, rkey } = &mut info;
    let mut attrs = [
        Attr::new_handle(UVERBS_ATTR_REG_DMABUF_MR_HANDLE, handle),
        Attr::output(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, lkey.as_mut_bytes()),
        Attr::output(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, rkey.as_mut_bytes()),
        Attr::handle(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, pd_handle),
        Attr::u64(UVERBS_ATTR_REG_DMABUF_MR_OFFSET, offset),
        Attr::u64(UVERBS_ATTR_REG_DMABUF_MR_LENGTH, length as u64),
        Attr::u64(UVERBS_ATTR_REG_DMABUF_MR_IOVA, iova),
        // The descriptor is a plain number in this method, unlike in `REG_MR`.
        Attr::u32(UVERBS_ATTR_REG_DMABUF_MR_FD, fd.as_raw_fd() as u32),
        Attr::u32(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, access.bits()),
    ];
    let (object, method) = (UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR);
    uverbs.ioctl_only("reg_dmabuf_mr", "registration of dma-bufs", object, method, &mut attrs)?;
    Ok(info)
}

/// Registers `length` bytes of device memory, starting at `offset`. Work requests and peers address
/// the first byte as 0, so `access` must contain [`ZERO_BASED`](AccessFlags::ZERO_BASED).
///
/// # Errors
/// `EINVAL` for a range outside the device memory, or without `ZERO_BASED`; `EOPNOTSUPP` if the
/// device offers no device memory; any other errno the kernel returns.
#[doc(alias = "ibv_reg_dm_mr")]
pub fn reg_dm_mr(
    uverbs: &Uverbs,
    pd_handle: u32,
    dm_handle: u32,
    offset: u64,
    length: u64,
    access: AccessFlags,
) -> Result<MrInfo> {
    let mut info = MrInfo::default();
    let MrInfo { handle, lkey, rkey } = &mut info;
    let mut attrs = [
        Attr::new_handle(UVERBS_ATTR_REG_DM_MR_HANDLE, handle),
        Attr::output(UVERBS_ATTR_REG_DM_MR_RESP_LKEY, lkey.as_mut_bytes()),
        Attr::output(UVERBS_ATTR_REG_DM_MR_RESP_RKEY, rkey.as_mut_bytes()),
        Attr::handle(UVERBS_ATTR_REG_DM_MR_PD_HANDLE, pd_handle),
        Attr::handle(UVERBS_ATTR_REG_DM_MR_DM_HANDLE, dm_handle),
        Attr::u64(UVERBS_ATTR_REG_DM_MR_OFFSET, offset),
        Attr::u64(UVERBS_ATTR_REG_DM_MR_LENGTH, length),
        Attr::u32(UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS, access.bits()),
    ];
    let (object, method) = (UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG);
    uverbs.ioctl_only("reg_dm_mr", "registration of device memory", object, method, &mut attrs)?;
    Ok(info)
}

/// The changes that [`rereg_mr`] makes. `None` leaves a property unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// The new memory: its address, its length in bytes, and its address in work requests.
    pub memory: Option<(*mut u8, usize, u64)>,
    /// The handle of the new protection domain.
    pub pd_handle: Option<u32>,
    /// The new rights.
    pub access: Option<AccessFlags>,
}

/// Changes a memory region in place and returns its keys.
///
/// # Safety
/// Same as [`reg_mr`], for the new memory, and for the old memory with the new rights.
///
/// # Errors
/// Any errno the kernel returns; notably `EOPNOTSUPP` for a driver that cannot change regions, or
/// not in this way, `EINVAL` for an empty change and for contradictory rights, and `EBUSY` while
/// memory windows are bound to the region.
#[doc(alias = "ibv_rereg_mr")]
pub unsafe fn rereg_mr(uverbs: &Uverbs, handle: u32, change: &Change) -> Result<MrInfo> {
    let mut reply = IbUverbsReregMrResp::default();
    let mut request = IbUverbsReregMr { mr_handle: handle, ..IbUverbsReregMr::default() };
    if let Some((addr, length, iova)) = change.memory {
        request.flags |= REREG_TRANS;
        request.start = addr.expose_provenance() as u64;
        request.length = length as u64;
        request.hca_va = iova;
    }
    if let Some(pd_handle) = change.pd_handle {
        request.flags |= REREG_PD;
        request.pd_handle = pd_handle;
    }
    if let Some(access) = change.access {
        request.flags |= REREG_ACCESS;
        request.access_flags = access.bits();
    }
    let command =
        WriteCmd::new(IB_USER_VERBS_CMD_REREG_MR, request.as_bytes(), reply.as_mut_bytes(), Uhw::none());
    uverbs.write(command).map_err(|errno| uverbs.error("rereg_mr", errno))?;
    Ok(MrInfo { handle, lkey: reply.lkey, rkey: reply.rkey })
}

/// Advises the device about the pages of scatter/gather elements in on-demand paged regions.
///
/// # Errors
/// `EOPNOTSUPP` if the device does not support advice, or with
/// [`Cause::KernelLacks`](crate::Cause::KernelLacks) on kernels before 5.0; `EINVAL` for
/// unsupported advice or an unsupported flag, `EFAULT` and `ENOENT` for elements outside on-demand
/// paged regions; any other errno the kernel returns.
#[doc(alias = "ibv_advise_mr")]
pub fn advise_mr(
    uverbs: &Uverbs,
    pd_handle: u32,
    advice: Advice,
    flags: AdviseFlags,
    sges: &[Sge],
) -> Result<()> {
    let mut list = Vec::new();
    room::reserve(&mut list, sges.len()).map_err(|errno| uverbs.error("advise_mr", errno))?;
    list.extend(sges.iter().map(|sge| IbUverbsSge { addr: sge.addr, length: sge.length, lkey: sge.lkey }));
    let mut attrs = [
        Attr::handle(UVERBS_ATTR_ADVISE_MR_PD_HANDLE, pd_handle),
        Attr::u64(UVERBS_ATTR_ADVISE_MR_ADVICE, advice.0.into()),
        Attr::u32(UVERBS_ATTR_ADVISE_MR_FLAGS, flags.bits()),
        Attr::input(UVERBS_ATTR_ADVISE_MR_SGE_LIST, list.as_bytes()),
    ];
    let (object, method) = (UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR);
    uverbs.ioctl_only("advise_mr", "advice about memory regions", object, method, &mut attrs)
}

/// Queries a memory region created on this open file.
///
/// # Errors
/// `EOPNOTSUPP` with [`Cause::KernelLacks`](crate::Cause::KernelLacks) on kernels before 5.9;
/// `ENOENT` for an invalid handle; any other errno the kernel returns.
#[doc(alias = "ibv_import_mr")]
#[doc(alias = "UVERBS_METHOD_QUERY_MR")]
pub fn query_mr(uverbs: &Uverbs, handle: u32) -> Result<MrAttr> {
    let mut attr = MrAttr::default();
    let MrAttr { lkey, rkey, length, iova } = &mut attr;
    let mut attrs = [
        Attr::handle(UVERBS_ATTR_QUERY_MR_HANDLE, handle),
        Attr::output(UVERBS_ATTR_QUERY_MR_RESP_LKEY, lkey.as_mut_bytes()),
        Attr::output(UVERBS_ATTR_QUERY_MR_RESP_RKEY, rkey.as_mut_bytes()),
        Attr::output(UVERBS_ATTR_QUERY_MR_RESP_LENGTH, length.as_mut_bytes()),
        Attr::output(UVERBS_ATTR_QUERY_MR_RESP_IOVA, iova.as_mut_bytes()).optional(),
    ];
    let (object, method) = (UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR);
    uverbs.ioctl_only("import_mr", "queries of memory regions", object, method, &mut attrs)?;
    Ok(attr)
}

/// Destroys a memory region. Afterwards, the device does not access the region's memory.
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

/// Returns the length to send to the kernel: `u64::MAX` for all memory, even with 32-bit addresses.
fn length_for_kernel(addr: *mut u8, length: usize, access: AccessFlags) -> u64 {
    let is_implicit = addr.is_null() && length == usize::MAX && access.contains(AccessFlags::ON_DEMAND);
    if is_implicit { u64::MAX } else { length as u64 }
}

/// `enum ib_mr_rereg_flags`: `IBV_REREG_MR_CHANGE_TRANSLATION`, `_PD` and `_ACCESS`.
const REREG_TRANS: u32 = 1;
const REREG_PD: u32 = 1 << 1;
const REREG_ACCESS: u32 = 1 << 2;
