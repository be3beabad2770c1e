//! Memory regions and buffers to register.
//!
//! # Safety
//! See the crate documentation. The program keeps registered memory mapped, as C requires.
#![allow(unsafe_code)]

use core::any::Any;
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, Ordering};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::os::fd::BorrowedFd;

use verbs_core::fork::Excluded;
use verbs_core::provider::{
    ContextOps as _, Destroy, MrChange, MrInitAttr, MrMemory, MrOps as _, Provider, RegionState,
};
use verbs_core::ring::page_size;
use verbs_core::types::{AccessFlags, Advice, AdviseFlags, Sge};
use verbs_core::{Cause, Errno, Error};

use crate::abi::c::{
    IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_BUF, IBV_REG_MR_MASK_DMAH, IBV_REG_MR_MASK_FD,
    IBV_REG_MR_MASK_FD_OFFSET, IBV_REG_MR_MASK_IOVA, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_ERR_CMD, IBV_REREG_MR_ERR_DO_FORK_OLD,
    IBV_REREG_MR_ERR_DONT_FORK_NEW, IBV_REREG_MR_ERR_INPUT, ibv_buf, ibv_mr, ibv_mr_init_attr, ibv_pd,
    ibv_sge,
};
use crate::abi::errno::{self, UNKNOWN_MEMBERS, code, fail, not_null, not_null_or_null, pointer, refused};
use crate::abi::reserve;
use crate::handle::context::{ProviderContext, verb};
use crate::handle::destroyable::Destroyable;
use crate::handle::object::{Object, check_handle, public};
use crate::verbs::dm::DmahObject;
use crate::verbs::fork::exclude;
use crate::verbs::pd;

/// A provider's memory region.
pub(crate) struct Mr<P: Provider> {
    mr: P::Mr,
    /// The program's memory, excluded from forks while the region lives; `None` if the region
    /// covers something else.
    memory: Option<Excluded>,
}

impl<P: Provider> Destroy for Mr<P> {
    fn destroy(self) -> Result<(), (Self, Error)> {
        let Self { mr, memory } = self;
        match mr.destroy() {
            Ok(()) => Ok(()),
            Err((mr, error)) => Err((Self { mr, memory }, error)),
        }
    }
}

pub(crate) type MrObject<P> = Object<ibv_mr, Destroyable<Mr<P>>>;

impl<P: Provider> ProviderContext<P> {
    /// Boxes a region. `memory` is the program memory that the region covers.
    ///
    /// # Safety
    /// The domain must be live.
    pub(crate) unsafe fn box_mr(
        &self,
        pd: *mut ibv_pd,
        (addr, length): (*mut c_void, usize),
        mr: P::Mr,
        memory: Option<Excluded>,
    ) -> *mut ibv_mr {
        log_unchecked_file(&mr);
        let (handle, lkey, rkey) = (mr.handle(), mr.lkey(), mr.rkey());
        // SAFETY: the domain is live.
        let context = unsafe { (*pd).context };
        let c = ibv_mr { context, pd, addr, length, handle, lkey, rkey };
        self.live.mrs.add(MrObject::<P>::boxed(c, Destroyable::new(Mr { mr, memory })))
    }

    /// Excludes the memory of a new region from forks, because a fork would detach it from the
    /// device.
    fn exclude(
        &self,
        verb: &'static str,
        (addr, length): (*mut c_void, usize),
        access: AccessFlags,
    ) -> Result<Excluded, Error> {
        exclude(self.context().pins_memory(), access, addr.cast(), length)
            .map_err(|errno| refused(verb, errno, "the pages cannot be excluded from forks"))
    }

    /// Changes a region and its public struct. Returns 0, or one of the error codes of
    /// `ibv_rereg_mr(3)`.
    ///
    /// # Safety
    /// `mr` must be the public struct of the region, and the new domain must be null or live. The
    /// program must keep new memory mapped.
    unsafe fn rereg(
        &self,
        inner: &mut Mr<P>,
        mr: *mut ibv_mr,
        flags: u32,
        pd: *mut ibv_pd,
        (addr, length): (*mut c_void, usize),
        access: AccessFlags,
    ) -> c_int {
        const VERB: &str = "rereg_mr";
        let changes = |bit: u32| flags & bit != 0;
        let input = |error: &Error| {
            fail(error);
            IBV_REREG_MR_ERR_INPUT
        };
        if inner.memory.is_none() || (changes(IBV_REREG_MR_CHANGE_PD) && pd.is_null()) {
            let reason = "the region has no memory of the program, or the new domain is null";
            return input(&refused(VERB, Errno::INVAL, reason));
        }
        // SAFETY: the domain is live.
        let new_pd = changes(IBV_REREG_MR_CHANGE_PD).then(|| unsafe { pd::from_raw::<P>(pd, VERB) });
        let new_pd = match new_pd.transpose() {
            Ok(new_pd) => new_pd,
            Err(error) => return input(&error),
        };
        let moves = changes(IBV_REREG_MR_CHANGE_TRANSLATION);
        let memory = match moves.then(|| self.exclude(VERB, (addr, length), access)).transpose() {
            Ok(memory) => memory,
            Err(error) => {
                fail(&error);
                return IBV_REREG_MR_ERR_DONT_FORK_NEW;
            }
        };
        let change = MrChange {
            memory: moves.then(|| (addr.cast(), length, addr as u64)),
            pd: new_pd.as_deref().map(|pd| &pd.pd),
            access: changes(IBV_REREG_MR_CHANGE_ACCESS).then_some(access),
        };
        // SAFETY: the program keeps the memory mapped.
        let changed = unsafe { self.context().rereg_mr(&mut inner.mr, &change) };
        let is_changed = match &changed {
            Ok(()) => true,
            Err(failed) => failed.region == RegionState::Changed,
        };
        if is_changed {
            log_unchecked_file(&inner.mr);
            // SAFETY: the caller passes the region's struct.
            unsafe {
                ((*mr).lkey, (*mr).rkey) = (inner.mr.lkey(), inner.mr.rkey());
                (*mr).handle = inner.mr.handle();
                if changes(IBV_REREG_MR_CHANGE_PD) {
                    (*mr).pd = pd;
                }
                if memory.is_some() {
                    ((*mr).addr, (*mr).length) = (addr, length);
                    inner.memory = memory;
                }
            }
        }
        match changed {
            Ok(()) => 0,
            Err(failed) => {
                fail(&failed.error);
                match failed.region {
                    RegionState::Unchanged => IBV_REREG_MR_ERR_INPUT,
                    RegionState::Changed => IBV_REREG_MR_ERR_DO_FORK_OLD,
                    RegionState::Unusable => IBV_REREG_MR_ERR_CMD,
                }
            }
        }
    }
}

/// Logs once that a soft device accesses file-backed memory without a check.
fn log_unchecked_file(mr: &dyn Any) {
    const UNCHECKED: &str = "the kernel refuses process_vm_readv or process_vm_writev to this process (a seccomp filter may): \
        truncating a mapped and registered file ends the process (VERBS_SOFT_CHECKED_MEMORY=all refuses to register memory \
        instead)";
    static IS_LOGGED: AtomicBool = AtomicBool::new(false);
    if mr.downcast_ref::<provider_soft::Mr>().is_some_and(provider_soft::Mr::is_unchecked_file)
        && !IS_LOGGED.swap(true, Ordering::Relaxed)
    {
        errno::log(&UNCHECKED);
    }
}

/// Operations on memory regions.
///
/// # Safety
/// The methods have the same contracts as the exported functions.
impl<P: Provider> ProviderContext<P> {
    unsafe fn reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<*mut ibv_mr, Error> {
        // SAFETY: the domain is live; the program keeps the memory mapped.
        unsafe {
            let parent = pd::from_raw::<P>(pd, "reg_mr")?;
            let memory = self.exclude("reg_mr", (addr, length), access)?;
            let mr = self.context().reg_mr(&parent.pd, addr.cast(), length, iova, access)?;
            Ok(self.box_mr(pd, (addr, length), mr, Some(memory)))
        }
    }

    unsafe fn reg_mr_ex(&self, pd: *mut ibv_pd, attr: &ibv_mr_init_attr) -> Result<*mut ibv_mr, Error> {
        const VERB: &str = "reg_mr_ex";
        let has = |bit: u32| attr.comp_mask & u64::from(bit) != 0;
        let access = AccessFlags::from_bits_retain(attr.access as u32);
        // SAFETY: the objects are live; the program keeps the memory mapped.
        unsafe {
            let parent = pd::from_raw::<P>(pd, VERB)?;
            let dmah = has(IBV_REG_MR_MASK_DMAH).then(|| DmahObject::<P>::lend(attr.dmah, VERB));
            let dmah = dmah.transpose()?;
            let register = |memory, iova| {
                let dmah = dmah.as_deref();
                let init = MrInitAttr { memory, length: attr.length, iova, access, dmah };
                self.context().reg_mr_ex(&parent.pd, &init)
            };
            if has(IBV_REG_MR_MASK_FD) {
                let (fd, offset) = (BorrowedFd::borrow_raw(attr.fd), attr.fd_offset);
                let mr = register(MrMemory::DmaBuf { fd, offset }, attr.iova)?;
                let addr = if has(IBV_REG_MR_MASK_ADDR) { attr.addr } else { offset as *mut c_void };
                return Ok(self.box_mr(pd, (addr, attr.length), mr, None));
            }
            let addr = attr.addr;
            let iova = if has(IBV_REG_MR_MASK_IOVA) { attr.iova } else { addr as u64 };
            let memory = self.exclude(VERB, (addr, attr.length), access)?;
            let mr = register(MrMemory::Addr(addr.cast()), iova)?;
            Ok(self.box_mr(pd, (addr, attr.length), mr, Some(memory)))
        }
    }

    unsafe fn rereg_mr(
        &self,
        mr: *mut ibv_mr,
        flags: c_int,
        pd: *mut ibv_pd,
        memory: (*mut c_void, usize),
        access: AccessFlags,
    ) -> c_int {
        const VERB: &str = "rereg_mr";
        // SAFETY: the region is live, and so is the new domain if there is one.
        let changed = unsafe {
            MrObject::<P>::own(mr, VERB).and_then(|own| {
                own.change(VERB, |inner| {
                    check_handle(public(&raw const (*mr).handle), inner.mr.handle(), VERB)
                        .map(|()| self.rereg(inner, mr, flags as u32, pd, memory, access))
                })
            })
        };
        changed.flatten().unwrap_or_else(|error| {
            fail(&error);
            IBV_REREG_MR_ERR_INPUT
        })
    }

    unsafe fn dereg_mr(&self, mr: *mut ibv_mr) -> c_int {
        const VERB: &str = "dereg_mr";
        // SAFETY: the region is live.
        unsafe {
            let own = MrObject::<P>::lend(mr, VERB).map(|mr| mr.mr.handle());
            let checked = own.and_then(|own| check_handle(public(&raw const (*mr).handle), own, VERB));
            match checked {
                Ok(()) => MrObject::<P>::destroy_then(mr, VERB, || self.live.mrs.remove(mr)),
                Err(error) => fail(&error),
            }
        }
    }

    unsafe fn alloc_null_mr(&self, pd: *mut ibv_pd) -> Result<*mut ibv_mr, Error> {
        // SAFETY: the domain is live.
        unsafe {
            let mr = self.context().alloc_null_mr(&pd::from_raw::<P>(pd, "alloc_null_mr")?.pd)?;
            Ok(self.box_mr(pd, (null_mut(), usize::MAX), mr, None))
        }
    }

    unsafe fn import_mr(&self, pd: *mut ibv_pd, handle: u32) -> Result<*mut ibv_mr, Error> {
        // SAFETY: the domain is live.
        unsafe {
            let (mr, attr) = self.context().import_mr(&pd::from_raw::<P>(pd, "import_mr")?.pd, handle)?;
            Ok(self.box_mr(pd, (null_mut(), attr.length as usize), mr, None))
        }
    }

    unsafe fn advise_mr(
        &self,
        pd: *mut ibv_pd,
        advice: Advice,
        flags: AdviseFlags,
        sges: &[Sge],
    ) -> Result<(), Error> {
        // SAFETY: the domain is live.
        let pd = unsafe { pd::from_raw::<P>(pd, "advise_mr")? };
        self.context().advise_mr(&pd.pd, advice, flags, sges)
    }
}

/// `ibv_reg_mr_iova2`: backs the macros `ibv_reg_mr` and `ibv_reg_mr_iova`.
///
/// # Safety
/// `pd` must be live; the memory must stay mapped until the region is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    not_null_or_null!(pd);
    let access = AccessFlags::from_bits_retain(access);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe { verb!((*pd).context, reg_mr(pd, addr, length, iova, access)) })
}

/// `ibv_reg_mr(3)`.
///
/// # Safety
/// Same as [`ibv_reg_mr_iova2`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: guaranteed by the caller.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr as u64, access as c_uint) }
}

/// `ibv_reg_mr_iova(3)`.
///
/// # Safety
/// Same as [`ibv_reg_mr_iova2`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: guaranteed by the caller.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as c_uint) }
}

/// `ibv_reg_dmabuf_mr(3)`.
///
/// # Safety
/// `pd` must be live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    not_null_or_null!(pd);
    if fd < 0 {
        return errno::fail_null(&refused("reg_dmabuf_mr", Errno::BADF, "the descriptor is negative"));
    }
    let attr = ibv_mr_init_attr {
        length,
        access,
        comp_mask: u64::from(IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET | IBV_REG_MR_MASK_IOVA),
        iova,
        addr: null_mut(),
        fd,
        fd_offset: offset,
        dmah: null_mut(),
        buf: null_mut(),
    };
    // SAFETY: guaranteed by the caller.
    pointer(unsafe { verb!((*pd).context, reg_mr_ex(pd, &attr)) })
}

/// `ibv_reg_mr_ex(3)`.
///
/// # Safety
/// `pd` and the objects of `attr` must be live; the memory must stay mapped until the region is
/// deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    not_null_or_null!(pd, attr);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe { check_mr_init(pd, &*attr).and_then(|attr| verb!((*pd).context, reg_mr_ex(pd, &attr))) })
}

/// Checks the mask of the attributes and resolves a buffer to its memory.
///
/// # Safety
/// The objects of `attr` must be live.
unsafe fn check_mr_init(pd: *mut ibv_pd, attr: &ibv_mr_init_attr) -> Result<ibv_mr_init_attr, Error> {
    const FILE: u64 = (IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET) as u64;
    const KNOWN: u64 = FILE
        | (IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_DMAH | IBV_REG_MR_MASK_BUF) as u64;
    let refuse = |errno, reason| Err(refused("reg_mr_ex", errno, reason));
    let (mask, mut attr) = (attr.comp_mask, *attr);
    let has = |bit: u32| mask & u64::from(bit) != 0;
    if mask & !KNOWN != 0 {
        return refuse(Errno::OPNOTSUPP, UNKNOWN_MEMBERS);
    }
    if has(IBV_REG_MR_MASK_DMAH) && attr.dmah.is_null() {
        return refuse(Errno::INVAL, "the DMA handle is null");
    }
    if has(IBV_REG_MR_MASK_BUF) {
        if attr.buf.is_null() || !has(IBV_REG_MR_MASK_ADDR) || mask & FILE != 0 {
            return refuse(Errno::INVAL, "the memory of a buffer has an address and no file");
        }
        // SAFETY: the buffer is live.
        let buf = unsafe { &*attr.buf.cast::<Buf>() };
        let offset = (attr.addr as usize).checked_sub(buf.addr.addr().get());
        let is_inside =
            offset.is_some_and(|offset| buf.size.checked_sub(offset).is_some_and(|left| attr.length <= left));
        if buf.pd != pd || !is_inside {
            return refuse(Errno::INVAL, "the range is outside the buffer, or the domain is another one");
        }
        attr.comp_mask &= !u64::from(IBV_REG_MR_MASK_BUF);
    }
    // A dma-buf is addressed by file and offset. Its only address is the address used in requests.
    if mask & FILE != 0 && (mask & FILE != FILE || !has(IBV_REG_MR_MASK_IOVA) || attr.fd < 0) {
        return refuse(Errno::INVAL, "a dma-buf needs its file, an offset and an address for requests");
    }
    if mask & FILE == 0 && !has(IBV_REG_MR_MASK_ADDR) {
        return refuse(Errno::INVAL, "the attributes name no memory");
    }
    Ok(attr)
}

/// `ibv_rereg_mr(3)`.
///
/// # Safety
/// `mr` must be live and not used by another thread; new memory must stay mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    const KNOWN: u32 = IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_TRANSLATION;
    let changes = |bit: u32| flags as u32 & bit != 0;
    let is_sound = !mr.is_null()
        && flags as u32 & !KNOWN == 0
        && !(changes(IBV_REREG_MR_CHANGE_TRANSLATION) && (length == 0 || addr.is_null()))
        && (access == 0 || changes(IBV_REREG_MR_CHANGE_ACCESS));
    if !is_sound {
        let reason = "no region, unknown flags, or memory or access that the flags do not name";
        fail(&refused("rereg_mr", Errno::INVAL, reason));
        return IBV_REREG_MR_ERR_INPUT;
    }
    if !reserve::has_room() {
        fail(&errno::short_of_memory("rereg_mr"));
        return IBV_REREG_MR_ERR_INPUT;
    }
    let access = AccessFlags::from_bits_retain(access as u32);
    // SAFETY: guaranteed by the caller.
    unsafe { verb!((*mr).context, rereg_mr(mr, flags, pd, (addr, length), access)) }
}

/// `ibv_dereg_mr(3)`.
///
/// # Safety
/// `mr` must be live and must not be used afterwards if the call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    not_null!(mr);
    // SAFETY: the region is live.
    unsafe { verb!((*mr).context, dereg_mr(mr)) }
}

/// `ibv_import_mr(3)`.
///
/// # Safety
/// `pd` must be live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr {
    not_null_or_null!(pd);
    // SAFETY: the domain is live.
    pointer(unsafe { verb!((*pd).context, import_mr(pd, mr_handle)) })
}

/// `ibv_unimport_mr(3)`.
///
/// # Safety
/// `mr` must have been imported and must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    if !mr.is_null() {
        // SAFETY: the region is live. Destroying an imported region destroys nothing in the kernel.
        unsafe { verb!((*mr).context, dereg_mr(mr)) };
    }
}

/// `ibv_alloc_null_mr(3)`.
///
/// # Safety
/// `pd` must be live.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    not_null_or_null!(pd);
    // SAFETY: the domain is live.
    pointer(unsafe { verb!((*pd).context, alloc_null_mr(pd)) })
}

/// `ibv_advise_mr(3)`.
///
/// # Safety
/// `pd` must be live; `sg_list` must point to `num_sge` elements.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_uint,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> c_int {
    not_null!(pd);
    if num_sge > 0 {
        not_null!(sg_list);
    }
    // SAFETY: guaranteed by the caller; both types have the same layout.
    code(unsafe {
        let sges = crate::verbs::receives::sges(sg_list, num_sge as c_int);
        verb!((*pd).context, advise_mr(pd, Advice(advice), AdviseFlags::from_bits_retain(flags), sges))
    })
}

/// A buffer from `ibv_alloc_buf`.
struct Buf {
    pd: *mut ibv_pd,
    addr: NonNull<u8>,
    size: usize,
    layout: Layout,
}

/// `ibv_alloc_buf(3)`.
///
/// # Safety
/// `pd` must be live; `buf` must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
    not_null_or_null!(pd, buf);
    let short = || {
        let cause = Cause::Allocation { bytes: size as u64 };
        errno::fail_null(&Error::new("alloc_buf", "", Errno::NOMEM).because(cause))
    };
    let Ok(layout) = Layout::from_size_align(size.max(1), page_size()) else { return short() };
    // SAFETY: the layout has at least one byte.
    let Some(addr) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { return short() };
    let made = Box::into_raw(Box::new(Buf { pd, addr, size, layout }));
    // SAFETY: the caller passes a writable pointer.
    unsafe { *buf = made.cast() };
    addr.as_ptr().cast()
}

/// `ibv_free_buf(3)`.
///
/// # Safety
/// `buf` must come from [`ibv_alloc_buf`]; neither it nor its memory may be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    if buf.is_null() {
        return;
    }
    // SAFETY: the buffer is live; its memory was allocated with this layout.
    unsafe {
        let buf = Box::from_raw(buf.cast::<Buf>());
        dealloc(buf.addr.as_ptr(), buf.layout);
    }
}

/// `ibv_export_buf_dmabuf_fd(3)`: always fails with `ENODATA`, because this library's buffers are
/// in process memory, which has no dma-buf.
///
/// # Safety
/// `buf` must be live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_export_buf_dmabuf_fd(_buf: *mut ibv_buf) -> c_int {
    fail(&refused("export_buf_dmabuf_fd", Errno::NODATA, "memory of the process has no dma-buf"));
    -1
}

/// `ibv_reg_buf_mr(3)`.
///
/// # Safety
/// `pd` and `buf` must be live, and `buf` must stay live until the region is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let mut attr = ibv_mr_init_attr {
        length,
        access,
        comp_mask: u64::from(IBV_REG_MR_MASK_BUF | IBV_REG_MR_MASK_ADDR),
        iova: 0,
        addr,
        fd: -1,
        fd_offset: 0,
        dmah: null_mut(),
        buf,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { ibv_reg_mr_ex(pd, &raw mut attr) }
}
