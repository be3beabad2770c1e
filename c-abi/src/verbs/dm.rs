//! Device memory and DMA handles.
//!
//! # Safety
//! See the crate documentation. The program memory that a copy reads or writes has the stated
//! length.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint, c_void};
use core::slice;
use std::os::fd::IntoRawFd as _;

use verbs_core::provider::{ContextOps as _, DmOps as _, Provider};
use verbs_core::types::{AccessFlags, DmAttr, DmahAttr, TphMemType};
use verbs_core::{Errno, Error};

use crate::abi::c::{
    IBV_DM_MASK_HANDLE, IBV_DMAH_INIT_ATTR_MASK_CPU_ID, IBV_DMAH_INIT_ATTR_MASK_PH,
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_dmah,
    ibv_dmah_init_attr, ibv_mr, ibv_pd,
};
use crate::abi::errno::{
    UNKNOWN_MEMBERS, code, fail, not_null, not_null_or_minus_one, not_null_or_null, pointer, refused,
};
use crate::handle::context::{ProviderContext, verb};
use crate::handle::destroyable::Destroyable;
use crate::handle::object::Object;
use crate::verbs::pd;

pub(crate) type DmObject<P> = Object<ibv_dm, Destroyable<<P as Provider>::Dm>>;
pub(crate) type DmahObject<P> = Object<ibv_dmah, Destroyable<<P as Provider>::Dmah>>;

fn boxed<P: Provider>(context: *mut ibv_context, dm: P::Dm) -> *mut ibv_dm {
    let c = ibv_dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm::<P>),
        memcpy_from_dm: Some(memcpy_from_dm::<P>),
        comp_mask: IBV_DM_MASK_HANDLE,
        handle: dm.handle(),
    };
    DmObject::<P>::boxed(c, Destroyable::new(dm))
}

/// Operations on device memory and DMA handles.
///
/// # Safety
/// The methods have the same contracts as the exported functions.
impl<P: Provider> ProviderContext<P> {
    unsafe fn alloc_dm(&self, context: *mut ibv_context, attr: &DmAttr) -> Result<*mut ibv_dm, Error> {
        Ok(boxed::<P>(context, self.context().alloc_dm(attr)?))
    }

    unsafe fn free_dm(&self, dm: *mut ibv_dm) -> c_int {
        // SAFETY: the caller passes live memory of this context.
        unsafe { DmObject::<P>::destroy(dm, "free_dm") }
    }

    unsafe fn import_dm(&self, context: *mut ibv_context, handle: u32) -> Result<*mut ibv_dm, Error> {
        Ok(boxed::<P>(context, self.context().import_dm(handle)?))
    }

    unsafe fn export_dmabuf_fd(&self, dm: *mut ibv_dm) -> Result<c_int, Error> {
        // SAFETY: the caller passes live memory of this context.
        unsafe { DmObject::<P>::lend(dm, "dm_export_dmabuf_fd")? }
            .export_dmabuf_fd()
            .map(|fd| fd.into_raw_fd())
    }

    unsafe fn reg_dm_mr(
        &self,
        pd: *mut ibv_pd,
        dm: *mut ibv_dm,
        offset: u64,
        length: usize,
        access: AccessFlags,
    ) -> Result<*mut ibv_mr, Error> {
        const VERB: &str = "reg_dm_mr";
        // SAFETY: the domain and the memory are live.
        unsafe {
            let (parent, inner) = (pd::from_raw::<P>(pd, VERB)?, DmObject::<P>::lend(dm, VERB)?);
            let mr = self.context().reg_dm_mr(&parent.pd, &inner, offset, length as u64, access)?;
            // The region's address is null, because the process has no address for it.
            Ok(self.box_mr(pd, (core::ptr::null_mut(), length), mr, None))
        }
    }

    unsafe fn alloc_dmah(&self, context: *mut ibv_context, attr: &DmahAttr) -> Result<*mut ibv_dmah, Error> {
        Ok(DmahObject::<P>::boxed(ibv_dmah { context }, Destroyable::new(self.context().alloc_dmah(attr)?)))
    }

    unsafe fn dealloc_dmah(&self, dmah: *mut ibv_dmah) -> c_int {
        // SAFETY: the caller passes a live handle of this context.
        unsafe { DmahObject::<P>::destroy(dmah, "dealloc_dmah") }
    }
}

/// Checks that a range lies within `total` bytes of device memory and is addressable in this
/// process.
///
/// # Errors
/// `EFAULT` otherwise, as in libmlx5.
fn check_range(verb: &'static str, total: u64, offset: u64, length: usize) -> Result<(), Error> {
    let end = offset.checked_add(length as u64);
    let is_inside = end.is_some_and(|end| end <= total) && isize::try_from(length).is_ok();
    if is_inside {
        Ok(())
    } else {
        Err(refused(verb, Errno::FAULT, "the range is outside the device memory"))
    }
}

/// `ibv_memcpy_to_dm(3)`.
///
/// # Safety
/// `dm` must be live memory of the provider; `host_addr` must point to `length` bytes.
unsafe extern "C" fn memcpy_to_dm<P: Provider>(
    dm: *mut ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    const VERB: &str = "memcpy_to_dm";
    not_null!(dm);
    if length > 0 {
        not_null!(host_addr);
    }
    // SAFETY: the memory is live.
    let inner = unsafe { DmObject::<P>::lend(dm, VERB) };
    code(inner.and_then(|inner| {
        check_range(VERB, inner.length(), dm_offset, length)?;
        let bytes = if length == 0 {
            &[]
        } else {
            // SAFETY: the caller passes that many bytes and does not change them during the call.
            unsafe { slice::from_raw_parts(host_addr.cast::<u8>(), length) }
        };
        inner.copy_to(dm_offset, bytes)
    }))
}

/// `ibv_memcpy_from_dm(3)`.
///
/// # Safety
/// `dm` must be live memory of the provider; `host_addr` must point to memory for `length` bytes.
unsafe extern "C" fn memcpy_from_dm<P: Provider>(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
) -> c_int {
    const VERB: &str = "memcpy_from_dm";
    not_null!(dm);
    if length > 0 {
        not_null!(host_addr);
    }
    // SAFETY: the memory is live.
    let inner = unsafe { DmObject::<P>::lend(dm, VERB) };
    code(inner.and_then(|inner| {
        check_range(VERB, inner.length(), dm_offset, length)?;
        let bytes = if length == 0 {
            &mut []
        } else {
            // SAFETY: the caller passes its own memory for that many bytes. It may be
            // uninitialised, so it is zeroed before the slice exists.
            unsafe {
                host_addr.cast::<u8>().write_bytes(0, length);
                slice::from_raw_parts_mut(host_addr.cast::<u8>(), length)
            }
        };
        inner.copy_from(dm_offset, bytes)
    }))
}

/// `ibv_alloc_dm(3)`.
///
/// # Safety
/// `context` must be open; `attr` must point to attributes.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    not_null_or_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe {
        let attr = &*attr;
        if attr.comp_mask != 0 {
            Err(refused("alloc_dm", Errno::INVAL, UNKNOWN_MEMBERS))
        } else {
            let attr = DmAttr { length: attr.length as u64, log_align: attr.log_align_req };
            verb!(context, alloc_dm(context, &attr))
        }
    })
}

/// `ibv_free_dm(3)`.
///
/// # Safety
/// `dm` must be live and must not be used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    not_null!(dm);
    // SAFETY: the memory is live.
    unsafe { verb!((*dm).context, free_dm(dm)) }
}

/// `ibv_reg_dm_mr(3)`.
///
/// # Safety
/// `pd` and `dm` must be live.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    not_null_or_null!(pd, dm);
    let access = AccessFlags::from_bits_retain(access);
    if !access.contains(AccessFlags::ZERO_BASED) {
        let reason = "device memory is registered with IBV_ACCESS_ZERO_BASED alone";
        return pointer(Err(refused("reg_dm_mr", Errno::INVAL, reason)));
    }
    // SAFETY: the objects are live.
    pointer(unsafe { verb!((*pd).context, reg_dm_mr(pd, dm, dm_offset, length, access)) })
}

/// `ibv_import_dm(3)`.
///
/// # Safety
/// `context` must be open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm {
    not_null_or_null!(context);
    // SAFETY: the context is open.
    pointer(unsafe { verb!(context, import_dm(context, dm_handle)) })
}

/// `ibv_unimport_dm(3)`.
///
/// # Safety
/// `dm` must have been imported and must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    if !dm.is_null() {
        // SAFETY: the memory is live. Freeing imported memory destroys nothing in the kernel.
        unsafe { verb!((*dm).context, free_dm(dm)) };
    }
}

/// `ibv_dm_export_dmabuf_fd(3)`: returns -1 on failure.
///
/// # Safety
/// `dm` must be live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int {
    not_null_or_minus_one!(dm);
    // SAFETY: the memory is live.
    unsafe { verb!((*dm).context, export_dmabuf_fd(dm)) }.unwrap_or_else(|error| {
        fail(&error);
        -1
    })
}

/// `ibv_alloc_dmah(3)`.
///
/// # Safety
/// `context` must be open; `attr` must point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_dmah(
    context: *mut ibv_context,
    attr: *mut ibv_dmah_init_attr,
) -> *mut ibv_dmah {
    not_null_or_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe {
        dmah_attr_from_c(&*attr)
            .map_err(|errno| refused("alloc_dmah", errno, UNKNOWN_MEMBERS))
            .and_then(|attr| verb!(context, alloc_dmah(context, &attr)))
    })
}

/// `ibv_dealloc_dmah(3)`.
///
/// # Safety
/// `dmah` must be live and must not be used afterwards if the call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> c_int {
    not_null!(dmah);
    // SAFETY: the handle is live.
    unsafe { verb!((*dmah).context, dealloc_dmah(dmah)) }
}

/// Returns the hints that the mask names.
///
/// # Errors
/// `EOPNOTSUPP` for a hint that no rdma-core release defines.
fn dmah_attr_from_c(attr: &ibv_dmah_init_attr) -> Result<DmahAttr, Errno> {
    const KNOWN: u32 =
        IBV_DMAH_INIT_ATTR_MASK_CPU_ID | IBV_DMAH_INIT_ATTR_MASK_PH | IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE;
    let has = |bit| attr.comp_mask & bit != 0;
    if attr.comp_mask & !KNOWN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(DmahAttr {
        cpu_id: has(IBV_DMAH_INIT_ATTR_MASK_CPU_ID).then_some(attr.cpu_id),
        tph_mem_type: has(IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE).then_some(TphMemType(attr.tph_mem_type)),
        ph: has(IBV_DMAH_INIT_ATTR_MASK_PH).then_some(attr.ph),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_lies_inside_of_the_memory_or_is_refused() {
        for (offset, length) in [(0, 0), (0, 64), (64, 0), (60, 4)] {
            assert!(check_range("memcpy_to_dm", 64, offset, length).is_ok(), "{offset} {length}");
        }
        for (offset, length) in [(0, 65), (65, 0), (61, 4), (u64::MAX, 1), (1, usize::MAX)] {
            let error = check_range("memcpy_to_dm", 64, offset, length).unwrap_err();
            assert_eq!(error.errno, Errno::FAULT, "{offset} {length}");
        }
        let error = check_range("memcpy_to_dm", u64::MAX, 0, usize::MAX).unwrap_err();
        assert_eq!(error.errno, Errno::FAULT, "more than the process can have");
    }

    #[test]
    fn hints_are_those_that_the_mask_names() {
        let attr = ibv_dmah_init_attr {
            comp_mask: IBV_DMAH_INIT_ATTR_MASK_CPU_ID,
            cpu_id: 3,
            ph: 2,
            tph_mem_type: 1,
        };
        let hints = |comp_mask| dmah_attr_from_c(&ibv_dmah_init_attr { comp_mask, ..attr });
        let none = DmahAttr::default();
        assert_eq!(hints(0), Ok(none));
        assert_eq!(hints(IBV_DMAH_INIT_ATTR_MASK_CPU_ID), Ok(DmahAttr { cpu_id: Some(3), ..none }));
        assert_eq!(hints(IBV_DMAH_INIT_ATTR_MASK_PH), Ok(DmahAttr { ph: Some(2), ..none }));
        let persistent = DmahAttr { tph_mem_type: Some(TphMemType::PERSISTENT), ..none };
        assert_eq!(hints(IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE), Ok(persistent));
        assert_eq!(hints(1 << 3), Err(Errno::OPNOTSUPP));
    }
}
