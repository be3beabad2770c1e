//! Methods specific to the mlx5 driver: doorbell pages (UARs), the location of device memory,
//! protection domain numbers, switch ports, and data direct.
//!
//! # Safety
//! The methods are sent with the attributes that `rdma/mlx5_user_ioctl_cmds.h` lists for them. Each
//! output is a slice or a reference; no number is a memory address.
#![allow(unsafe_code)]

use uverbs_abi::ib_user_ioctl_cmds::{UVERBS_OBJECT_DEVICE, UVERBS_OBJECT_DM, UVERBS_OBJECT_PD};
use uverbs_abi::mlx5_user_ioctl_cmds::{
    MLX5_IB_ATTR_GET_DATA_DIRECT_SYSFS_PATH, MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE,
    MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH, MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX,
    MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET, MLX5_IB_ATTR_QUERY_PD_HANDLE, MLX5_IB_ATTR_QUERY_PD_RESP_PDN,
    MLX5_IB_ATTR_QUERY_PORT, MLX5_IB_ATTR_QUERY_PORT_PORT_NUM, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE,
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET,
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE,
    MLX5_IB_METHOD_DM_QUERY, MLX5_IB_METHOD_GET_DATA_DIRECT_SYSFS_PATH, MLX5_IB_METHOD_PD_QUERY,
    MLX5_IB_METHOD_QUERY_PORT, MLX5_IB_METHOD_UAR_OBJ_ALLOC, MLX5_IB_METHOD_UAR_OBJ_DESTROY,
    MLX5_IB_OBJECT_UAR,
};
use uverbs_abi::mlx5_user_ioctl_verbs::Mlx5IbUapiQueryPort;
pub(crate) use uverbs_abi::mlx5_user_ioctl_verbs::Mlx5IbUapiUarAllocType as UarType;
use verbs_core::Result;
use verbs_core::channel::{Attr, Uverbs};
use zerocopy::IntoBytes;

/// A page of doorbell registers (UARs). [`free_uar`] frees it; otherwise, closing the context's
/// last file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UarInfo {
    /// The page's handle.
    pub(crate) handle: u32,
    /// The offset in the device file for mapping the page.
    pub(crate) mmap_offset: u64,
    /// The number of bytes to map.
    pub(crate) length: u32,
    /// The number of the page's first UAR in the device.
    pub(crate) page_id: u32,
}

/// Allocates a doorbell page.
///
/// # Errors
/// `EOPNOTSUPP` on kernels before 5.8; any other errno the kernel returns, notably `ENOMEM` for a
/// device without a free page.
pub(crate) fn alloc_uar(uverbs: &Uverbs, uar_type: UarType) -> Result<UarInfo> {
    let mut info = UarInfo { handle: 0, mmap_offset: 0, length: 0, page_id: 0 };
    let mut attrs = [
        Attr::new_handle(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, &mut info.handle),
        Attr::u64(MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, uar_type.0.into()),
        Attr::output(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, info.mmap_offset.as_mut_bytes()),
        Attr::output(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, info.length.as_mut_bytes()),
        Attr::output(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, info.page_id.as_mut_bytes()),
    ];
    let (object, method) = (MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC);
    // SAFETY: as argued at the head of this file.
    unsafe { uverbs.driver_ioctl("alloc_uar", "pages of doorbell registers", object, method, &mut attrs) }?;
    Ok(info)
}

/// Frees a doorbell page. The device keeps it until it is unmapped.
///
/// # Errors
/// `ENOENT` for an invalid handle; any other errno the kernel returns.
pub(crate) fn free_uar(uverbs: &Uverbs, handle: u32) -> Result<()> {
    let mut attrs = [Attr::handle(MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE, handle)];
    let (object, method) = (MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY);
    // SAFETY: as argued at the head of this file.
    unsafe { uverbs.driver_ioctl("free_uar", "pages of doorbell registers", object, method, &mut attrs) }
}

/// The location of device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DmInfo {
    /// The offset of the memory in the mapped page, in bytes.
    pub(crate) start_offset: u64,
    /// The page number for mapping the memory.
    pub(crate) page_index: u16,
    /// The length of the memory, in bytes.
    pub(crate) length: u64,
}

/// Returns the location of the device memory with this handle.
///
/// # Errors
/// `EOPNOTSUPP` on kernels before 5.13; `ENOENT` for an invalid handle; any other errno the kernel
/// returns.
pub(crate) fn query_dm(uverbs: &Uverbs, handle: u32) -> Result<DmInfo> {
    let mut info = DmInfo::default();
    let mut attrs = [
        Attr::handle(MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE, handle),
        Attr::output(MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET, info.start_offset.as_mut_bytes()),
        Attr::output(MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX, info.page_index.as_mut_bytes()),
        Attr::output(MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH, info.length.as_mut_bytes()),
    ];
    let (object, method) = (UVERBS_OBJECT_DM, MLX5_IB_METHOD_DM_QUERY);
    // SAFETY: as argued at the head of this file.
    unsafe { uverbs.driver_ioctl("import_dm", "import of device memory", object, method, &mut attrs) }?;
    Ok(info)
}

/// Returns the number of a protection domain on the device.
///
/// # Errors
/// `EOPNOTSUPP` on kernels without the query; `ENOENT` for an invalid handle; any other errno the
/// kernel returns.
pub(crate) fn query_pd(uverbs: &Uverbs, handle: u32) -> Result<u32> {
    let mut pdn = 0_u32;
    let mut attrs = [
        Attr::handle(MLX5_IB_ATTR_QUERY_PD_HANDLE, handle),
        Attr::output(MLX5_IB_ATTR_QUERY_PD_RESP_PDN, pdn.as_mut_bytes()),
    ];
    let (object, method) = (UVERBS_OBJECT_PD, MLX5_IB_METHOD_PD_QUERY);
    // SAFETY: as argued at the head of this file.
    unsafe {
        uverbs.driver_ioctl("query_pd", "the number of a protection domain", object, method, &mut attrs)
    }?;
    Ok(pdn)
}

/// Returns the properties of a port in the device's switch.
///
/// # Errors
/// `EOPNOTSUPP` on kernels without the query; any other errno the kernel returns, notably `EINVAL`
/// for a port that the device lacks.
pub(crate) fn query_port(uverbs: &Uverbs, port_num: u32) -> Result<Mlx5IbUapiQueryPort> {
    let mut info = Mlx5IbUapiQueryPort::default();
    let mut attrs = [
        Attr::u32(MLX5_IB_ATTR_QUERY_PORT_PORT_NUM, port_num),
        Attr::output(MLX5_IB_ATTR_QUERY_PORT, info.as_mut_bytes()),
    ];
    let (object, method) = (UVERBS_OBJECT_DEVICE, MLX5_IB_METHOD_QUERY_PORT);
    // SAFETY: as argued at the head of this file.
    unsafe { uverbs.driver_ioctl("query_port", "the port of a switch", object, method, &mut attrs) }?;
    Ok(info)
}

/// Writes the sysfs path of the device's data-direct function to `path`, followed by a null byte.
///
/// # Errors
/// `EOPNOTSUPP` on kernels without data direct; any other errno the kernel returns, notably
/// `ENODEV` for a device without such a function, and `ENOSPC` for a buffer that is too short.
pub(crate) fn data_direct_sysfs_path(uverbs: &Uverbs, path: &mut [u8]) -> Result<()> {
    let mut attrs = [Attr::output(MLX5_IB_ATTR_GET_DATA_DIRECT_SYSFS_PATH, path)];
    let (object, method) = (UVERBS_OBJECT_DEVICE, MLX5_IB_METHOD_GET_DATA_DIRECT_SYSFS_PATH);
    // SAFETY: as argued at the head of this file.
    unsafe { uverbs.driver_ioctl("get_data_direct_sysfs_path", "data direct", object, method, &mut attrs) }
}
