//! [`Mr`]: caller-owned memory registered with the device; [`MrInit`] and [`MrChange`]: the
//! attributes for registering a region and for changing it.
//!
//! # Safety
//! The unsafe code here registers memory or changes a region. Its callers meet the requirements of
//! each function.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::os::fd::BorrowedFd;

use verbs_core::Result;
use verbs_core::fork::Excluded;
use verbs_core::provider::{
    self, ContextOps, Erased, MrInitAttr, MrMemory, MrOps, NamedProvider, Provider, RegionState, ReregError,
};
use verbs_core::types::{AccessFlags, Advice, AdviseFlags, Sge};

use crate::device::context::Context;
use crate::device::pd::Pd;
use crate::handle::error::HandleError;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::Child;
use crate::memory::dm::{Dm, Dmah};

/// A memory region for raw posting: caller-owned memory registered with the device.
/// [`Buf`](crate::Buf) is the safe alternative.
///
/// # References
/// `ibv_reg_mr(3)`
#[doc(alias = "ibv_mr")]
pub struct Mr<P: Provider = Erased> {
    handle: KernelHandle<P::Mr, Parents>,
    extent: Extent<P>,
}

/// The range of a region, and the device that can change the region.
struct Extent<P: Provider> {
    context: Context<P>,
    /// The address of the first byte in work requests, unless the region is zero-based.
    iova: u64,
    length: usize,
    access: AccessFlags,
}

/// The dependencies of a region. The region's pages are included in forks again before the caller
/// may unmap them.
struct Parents {
    excluded: Vec<Excluded>,
    pd: Child,
    /// Device memory, a DMA handle, or the protection domain of a failed change.
    others: Vec<Child>,
}

impl Parents {
    fn new(pd: Child, excluded: Excluded, other: Option<Child>) -> Self {
        Self { excluded: vec![excluded], pd, others: other.into_iter().collect() }
    }
}

impl<P: Provider> Pd<P> {
    /// Registers memory of the caller, for raw posting with any ownership scheme.
    /// [`alloc_buf`](Self::alloc_buf) and [`register`](Self::register) are the safe alternatives.
    ///
    /// # Safety
    /// While the region is registered, the device may read the bytes and, with
    /// [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE), write them: whenever a work request names them
    /// or, with remote rights, a peer does. The bytes must stay mapped, and every other access to
    /// them must tolerate this. The bytes of an [on-demand paged](AccessFlags::ON_DEMAND) region
    /// need not stay mapped: the device accesses the current mapping at their addresses, and a
    /// request to an unmapped address fails. With the address 0 and `usize::MAX` bytes such a
    /// region covers all memory of this process, and the same rules apply to every byte named by a
    /// request or a peer.
    ///
    /// On rxe (seen on Linux 7.2), the device accesses the start of each page of an [on-demand
    /// paged](AccessFlags::ON_DEMAND) region, ignoring the offset in the page. On such kernels, the
    /// region must not share pages with other data, and each packet must begin at the start of a
    /// page.
    ///
    /// # Errors
    /// - `ENOMEM` with [`Cause::Memlock`](crate::Cause::Memlock) if `RLIMIT_MEMLOCK` is too small.
    /// - `EFAULT` for unmapped memory, or read-only memory registered for writing; soft devices add
    ///   [`Cause::Inaccessible`](crate::Cause::Inaccessible).
    /// - `EINVAL` with [`Cause::NeedsLocalWrite`](crate::Cause::NeedsLocalWrite) for remote writes
    ///   or atomics without local writes, and with [`Cause::Limit`](crate::Cause::Limit) for a
    ///   region longer than the device's [`max_mr_size`](crate::DeviceAttr::max_mr_size).
    /// - `EOPNOTSUPP` with [`Cause::Access`](crate::Cause::Access) for access rights the device
    ///   lacks; `EINVAL` for rights that no device has.
    /// - Any other errno the kernel returns; notably `ENOMEM` if the device has no region left.
    ///
    /// # References
    /// `ibv_reg_mr(3)`
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn reg_mr(&self, addr: *mut u8, length: usize, access: AccessFlags) -> Result<Mr<P>> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.reg_mr_iova(addr, length, addr.expose_provenance() as u64, access) }
    }

    /// Registers memory as [`reg_mr`](Self::reg_mr) does. Work requests and peers address the first
    /// byte as `iova`.
    ///
    /// # Safety
    /// Same as [`reg_mr`](Self::reg_mr).
    ///
    /// # Errors
    /// Same as [`reg_mr`](Self::reg_mr).
    ///
    /// # References
    /// `ibv_reg_mr_iova(3)`
    #[doc(alias = "ibv_reg_mr_iova")]
    pub unsafe fn reg_mr_iova(
        &self,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Mr<P>> {
        let iova = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { iova };
        let excluded = self.exclude("reg_mr", addr, length, access)?;
        // SAFETY: the caller upholds the same contract.
        let raw = unsafe { self.register_raw(addr, length, iova, access) }?;
        let parents = Parents::new(self.child_mr(), excluded, None);
        Ok(Mr::new(self, raw, parents, iova, length, access))
    }

    /// Registers memory in the extended form: from a dma-buf, or with a DMA handle.
    ///
    /// # Safety
    /// Same as [`reg_mr`](Self::reg_mr), including for the bytes of a dma-buf.
    ///
    /// # Errors
    /// Same as [`reg_mr`](Self::reg_mr) and [`reg_dmabuf_mr`](Self::reg_dmabuf_mr); `EOPNOTSUPP`
    /// for a DMA handle unsupported by the device or the kernel (before 6.17).
    ///
    /// # References
    /// `ibv_reg_mr_ex(3)`
    #[doc(alias = "ibv_reg_mr_ex")]
    pub unsafe fn reg_mr_ex(&self, init: &MrInit<'_, P>) -> Result<Mr<P>> {
        let MrInit { memory, length, access, iova, dmah } = *init;
        let (excluded, default) = match memory {
            MrMemory::Addr(addr) => {
                (self.exclude("reg_mr", addr, length, access)?, addr.expose_provenance() as u64)
            }
            MrMemory::DmaBuf { offset, .. } => (Excluded::NONE, offset),
        };
        let iova = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { iova.unwrap_or(default) };
        let attr = MrInitAttr { memory, length, iova, access, dmah: dmah.map(Dmah::raw) };
        // SAFETY: the caller upholds the same contract.
        let raw = unsafe { self.context().creating("reg_mr")?.reg_mr_ex(self.raw(), &attr) }?;
        let dmah = dmah.map(|dmah| dmah.shared.user());
        let parents = Parents::new(self.child_mr(), excluded, dmah);
        Ok(Mr::new(self, raw, parents, iova, length, access))
    }

    /// Registers `length` bytes of a dma-buf, such as GPU memory, starting at `offset`. Work
    /// requests and peers address the first byte as `iova`.
    ///
    /// # Safety
    /// Same as [`reg_mr`](Self::reg_mr), for the bytes of the dma-buf.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device cannot register dma-bufs (rxe and soft devices); `EINVAL` if
    /// `offset` and `iova` have different offsets in their pages; any other errno the kernel
    /// returns, notably `EBADF` for a file of another kind.
    ///
    /// # References
    /// `ibv_reg_dmabuf_mr(3)`
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub unsafe fn reg_dmabuf_mr(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Mr<P>> {
        let context = self.context().raw();
        // SAFETY: the caller upholds the same contract.
        let raw = unsafe { context.reg_dmabuf_mr(self.raw(), fd, offset, length, iova, access) }?;
        let parents = Parents::new(self.child_mr(), Excluded::NONE, None);
        Ok(Mr::new(self, raw, parents, iova, length, access))
    }

    /// Registers `length` bytes of device memory, starting at `offset`. Work requests and peers
    /// address the first byte as 0.
    ///
    /// # Errors
    /// `EINVAL` for a range outside the memory, or memory of another device; `EOPNOTSUPP` for
    /// rights the device lacks; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_reg_dm_mr(3)`
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn reg_dm_mr(&self, dm: &Dm<P>, offset: u64, length: usize, access: AccessFlags) -> Result<Mr<P>> {
        let access = access | AccessFlags::ZERO_BASED;
        let raw = self.context().creating("reg_dm_mr")?.reg_dm_mr(
            self.raw(),
            dm.raw(),
            offset,
            length as u64,
            access,
        )?;
        let parents = Parents::new(self.child_mr(), Excluded::NONE, Some(dm.shared.user()));
        Ok(Mr::new(self, raw, parents, 0, length, access))
    }

    /// Allocates a null region: elements with its local key, at any address, read as zeros and
    /// discard writes. Its remote key gives peers no access; with the local key peers read zeros,
    /// and their writes are discarded.
    ///
    /// An element with its key lets a receive skip a part of a message.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has no null region (rxe); `ENOMEM` if the device has no region
    /// left.
    ///
    /// # References
    /// `ibv_alloc_null_mr(3)`
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn alloc_null_mr(&self) -> Result<Mr<P>> {
        let raw = self.context().creating("alloc_null_mr")?.alloc_null_mr(self.raw())?;
        let parents = Parents::new(self.child_mr(), Excluded::NONE, None);
        Ok(Mr::new(self, raw, parents, 0, usize::MAX, AccessFlags::LOCAL_WRITE))
    }

    /// Returns the memory region with this handle, registered by another owner of the same context.
    /// Dropping the result deregisters nothing.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the provider or the kernel (before 5.9) cannot import regions; `ENOENT` for
    /// an invalid handle; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_import_mr(3)`
    #[doc(alias = "ibv_import_mr")]
    pub fn import_mr(&self, handle: u32) -> Result<Mr<P>> {
        let (raw, attr) = self.context().creating("import_mr")?.import_mr(self.raw(), handle)?;
        let parents = Parents::new(self.child_mr(), Excluded::NONE, None);
        let length = usize::try_from(attr.length).unwrap_or(usize::MAX);
        // Only the other owner knows the rights.
        Ok(Mr::new(self, raw, parents, attr.iova, length, AccessFlags::empty()))
    }

    /// Advises the device about the pages of scatter/gather elements in this domain's on-demand
    /// paged regions.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device does not support advice (rxe does since Linux 6.17) or this kind
    /// of advice; `EINVAL` for an unknown flag; `ENOENT`, `EPERM`, `EINVAL` or `EFAULT` for
    /// elements outside such regions, with the errnos of `ibv_advise_mr(3)` on soft devices; any
    /// other errno the kernel returns.
    ///
    /// # References
    /// `ibv_advise_mr(3)`
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise_mr(&self, advice: Advice, flags: AdviseFlags, sges: &[Sge]) -> Result<()> {
        self.context().raw().advise_mr(self.raw(), advice, flags, sges)
    }

    /// Registers memory and returns the provider's memory region without a handle around it.
    ///
    /// # Safety
    /// Same as [`reg_mr`](Self::reg_mr).
    ///
    /// # Errors
    /// Same as [`reg_mr`](Self::reg_mr).
    pub(crate) unsafe fn register_raw(
        &self,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<P::Mr> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.context().creating("reg_mr")?.reg_mr(self.raw(), addr, length, iova, access) }
    }

    /// Excludes the pages of a new region from forks if necessary.
    ///
    /// # Errors
    /// The errno from `madvise(2)`.
    pub(crate) fn exclude(
        &self,
        verb: &'static str,
        addr: *mut u8,
        length: usize,
        access: AccessFlags,
    ) -> Result<Excluded> {
        if !is_pinned(self.context(), access) {
            return Ok(Excluded::NONE);
        }
        Excluded::new(addr, length).map_err(|errno| self.context().registry().error(verb, errno))
    }
}

impl<P: Provider> Mr<P> {
    fn new(pd: &Pd<P>, raw: P::Mr, parents: Parents, iova: u64, length: usize, access: AccessFlags) -> Self {
        let extent = Extent { context: pd.context().clone(), iova, length, access };
        Self { handle: KernelHandle::new(raw, parents), extent }
    }

    /// Returns the local key, for work requests of this process.
    pub fn lkey(&self) -> u32 {
        self.handle.get().lkey()
    }

    /// Returns the remote key, for peers. It grants the region's remote rights, if any.
    pub fn rkey(&self) -> u32 {
        self.handle.get().rkey()
    }

    /// Returns the address of the first byte, for work requests and peers: 0 with
    /// [`ZERO_BASED`](AccessFlags::ZERO_BASED).
    pub fn addr(&self) -> u64 {
        if self.extent.access.contains(AccessFlags::ZERO_BASED) { 0 } else { self.extent.iova }
    }

    /// Returns the region's length in bytes.
    pub fn length(&self) -> usize {
        self.extent.length
    }

    /// Returns the kernel's handle, for another owner of the same context ([`Pd::import_mr`]).
    pub fn handle(&self) -> u32 {
        self.handle.get().handle()
    }

    /// Returns a part of the region as a scatter/gather element.
    ///
    /// # Panics
    /// If the range lies outside the region, or is longer than 4 GiB - 1.
    #[doc(alias = "ibv_sge")]
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Sge {
        let (offset, len) = within(range, self.extent.length).expect("a range inside the region");
        let length = u32::try_from(len).expect("at most 4 GiB - 1");
        Sge { addr: self.addr() + offset as u64, length, lkey: self.lkey() }
    }

    /// Returns the provider's own memory region, for features beyond verbs.
    pub fn raw(&self) -> &P::Mr {
        self.handle.get()
    }

    /// Changes the region in place: its memory, protection domain, rights, or several of them. Its
    /// keys may change.
    ///
    /// After `Ok`, the device does not access memory the region no longer covers. A peer's request
    /// in progress may finish with the old rights.
    ///
    /// ```
    /// # #[cfg(feature = "soft")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs::{AccessFlags, MrChange};
    ///
    /// let pd = verbs::soft::auto()?.open()?.alloc_pd()?;
    /// let memory = vec![0_u8; 4096].leak().as_mut_ptr();
    /// let local = AccessFlags::LOCAL_WRITE;
    /// // SAFETY: the memory is never freed, and is accessed by the device alone.
    /// let mut mr = unsafe { pd.reg_mr(memory, 4096, local) }?;
    /// // SAFETY: as above.
    /// unsafe { mr.rereg(&MrChange::new().access(local | AccessFlags::REMOTE_READ)) }?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "soft"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Safety
    /// Same as [`Pd::reg_mr`], for the new memory, and for the old memory with the new rights. If
    /// an error leaves the region [unusable](RegionState::Unusable), the requirements apply to both
    /// old and new memory until the region is deregistered.
    ///
    /// # Errors
    /// Returns the error and the [state](RegionState) of the region:
    ///
    /// - `EOPNOTSUPP` if the device cannot change regions, or not in this way: rxe changes only the
    ///   domain and the rights, on kernels later than Linux 6.4.
    /// - `EINVAL` for an empty change; `EBUSY` while memory windows are bound to the region.
    /// - Otherwise as [`Pd::reg_mr`].
    ///
    /// # References
    /// `ibv_rereg_mr(3)`
    #[doc(alias = "ibv_rereg_mr")]
    pub unsafe fn rereg(&mut self, change: &MrChange<'_, P>) -> Result<(), ReregError> {
        let registry = self.extent.context.registry();
        let error = |errno| registry.error("rereg_mr", errno);
        let access = change.access.unwrap_or(self.extent.access);
        let memory = change.memory.map(|(addr, length)| {
            let iova = change.iova.unwrap_or(addr.expose_provenance() as u64);
            (addr, length, if access.contains(AccessFlags::ZERO_BASED) { 0 } else { iova })
        });
        let excluded = match memory {
            Some((addr, length, _)) if is_pinned(&self.extent.context, access) => {
                Excluded::new(addr, length).map_err(|errno| ReregError::unchanged(error(errno)))?
            }
            _ => Excluded::NONE,
        };
        let pd = change.pd.map(Pd::child_mr);
        let raw = provider::MrChange { memory, pd: change.pd.map(Pd::raw), access: change.access };
        let (mr, parents) = self.handle.parts_mut();
        // SAFETY: the caller upholds the same contract.
        if let Err(failed) = unsafe { self.extent.context.raw().rereg_mr(mr, &raw) } {
            if failed.region == RegionState::Unusable {
                // The region may be in either domain, and cover either memory, until it is
                // deregistered.
                parents.others.extend(pd);
                parents.excluded.push(excluded);
            }
            return Err(failed);
        }
        self.extent.access = access;
        if let Some(pd) = pd {
            parents.pd = pd;
        }
        let Some((_, length, iova)) = memory else { return Ok(()) };
        (self.extent.length, self.extent.iova) = (length, iova);
        let old = std::mem::replace(&mut parents.excluded, vec![excluded]);
        for excluded in old {
            excluded
                .release()
                .map_err(|errno| ReregError { error: error(errno), region: RegionState::Changed })?;
        }
        Ok(())
    }

    /// Deregisters the region. Dropping does the same and leaks a region the kernel refuses to
    /// deregister. An imported region is not deregistered.
    ///
    /// # Errors
    /// Returns the region and any errno the kernel returns; notably `EBUSY` while memory windows
    /// are bound to it, `EIO` if the device fails to destroy it, and on rxe `ETIMEDOUT` if the
    /// kernel gave up waiting for its own references to be released.
    ///
    /// # References
    /// `ibv_dereg_mr(3)`
    #[doc(alias = "ibv_dereg_mr")]
    #[doc(alias = "ibv_unimport_mr")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        let Self { handle, extent } = self;
        handle.close().map(drop).map_err(|failed| failed.map(|handle| Self { handle, extent }))
    }
}

impl Mr<Erased> {
    /// Returns the same region with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the region if it belongs to another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Mr<P>, HandleError<Self>> {
        let Self { handle, extent } = self;
        let Ok(context) = extent.context.clone().downcast::<P>() else {
            return Err(HandleError::of_another_provider(Self { handle, extent }));
        };
        match handle.try_map(|raw| raw.downcast::<P::Mr>()) {
            Ok(handle) => {
                let Extent { iova, length, access, .. } = extent;
                Ok(Mr { handle, extent: Extent { context, iova, length, access } })
            }
            Err(handle) => Err(HandleError::of_another_provider(Self { handle, extent })),
        }
    }
}

impl<P: Provider> fmt::Debug for Mr<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr")
            .field("raw", self.raw())
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("length", &self.extent.length)
            .field("access", &self.extent.access)
            .finish_non_exhaustive()
    }
}

/// The attributes of a new memory region in the extended form, for [`Pd::reg_mr_ex`].
///
/// # References
/// `ibv_reg_mr_ex(3)`
#[doc(alias = "ibv_mr_init_attr")]
#[doc(alias = "ibv_mr_init_attr_mask")]
#[derive(Debug)]
#[must_use = "a description registers nothing: pass it to Pd::reg_mr_ex"]
pub struct MrInit<'a, P: Provider = Erased> {
    pub(crate) memory: MrMemory<'a>,
    pub(crate) length: usize,
    pub(crate) access: AccessFlags,
    pub(crate) iova: Option<u64>,
    pub(crate) dmah: Option<&'a Dmah<P>>,
}

impl<'a, P: Provider> MrInit<'a, P> {
    /// Describes `length` bytes of process memory at `addr`.
    #[doc(alias = "IBV_REG_MR_MASK_ADDR")]
    pub fn new(addr: *mut u8, length: usize, access: AccessFlags) -> Self {
        Self { memory: MrMemory::Addr(addr), length, access, iova: None, dmah: None }
    }

    /// Describes `length` bytes of a dma-buf, starting at `offset`.
    #[doc(alias = "IBV_REG_MR_MASK_FD")]
    #[doc(alias = "IBV_REG_MR_MASK_FD_OFFSET")]
    pub fn dmabuf(fd: BorrowedFd<'a>, offset: u64, length: usize, access: AccessFlags) -> Self {
        Self { memory: MrMemory::DmaBuf { fd, offset }, length, access, iova: None, dmah: None }
    }

    /// Sets the address of the first byte in work requests. The default is the address in this
    /// process, or the offset in the dma-buf.
    #[doc(alias = "IBV_REG_MR_MASK_IOVA")]
    pub fn iova(self, iova: u64) -> Self {
        Self { iova: Some(iova), ..self }
    }

    /// Sets the DMA handle, with hints for the device's accesses.
    #[doc(alias = "IBV_REG_MR_MASK_DMAH")]
    pub fn dmah(self, dmah: &'a Dmah<P>) -> Self {
        Self { dmah: Some(dmah), ..self }
    }
}

/// A change to a memory region, for [`Mr::rereg`]. Attributes that are not set stay as they are.
///
/// # References
/// `ibv_rereg_mr(3)`
#[doc(alias = "ibv_rereg_mr_flags")]
#[derive(Debug)]
#[must_use = "a description changes nothing: pass it to Mr::rereg"]
pub struct MrChange<'a, P: Provider = Erased> {
    memory: Option<(*mut u8, usize)>,
    iova: Option<u64>,
    pd: Option<&'a Pd<P>>,
    access: Option<AccessFlags>,
}

impl<'a, P: Provider> MrChange<'a, P> {
    /// Returns an empty change.
    pub const fn new() -> Self {
        Self { memory: None, iova: None, pd: None, access: None }
    }

    /// Changes the memory to `length` bytes at `addr`. Work requests use `addr` too unless
    /// [`iova`](Self::iova) is set.
    #[doc(alias = "IBV_REREG_MR_CHANGE_TRANSLATION")]
    pub fn memory(self, addr: *mut u8, length: usize) -> Self {
        Self { memory: Some((addr, length)), ..self }
    }

    /// Sets the address of the new memory's first byte in work requests.
    pub fn iova(self, iova: u64) -> Self {
        Self { iova: Some(iova), ..self }
    }

    /// Moves the region to another protection domain.
    #[doc(alias = "IBV_REREG_MR_CHANGE_PD")]
    pub fn pd(self, pd: &'a Pd<P>) -> Self {
        Self { pd: Some(pd), ..self }
    }

    /// Changes the region's access rights.
    #[doc(alias = "IBV_REREG_MR_CHANGE_ACCESS")]
    pub fn access(self, access: AccessFlags) -> Self {
        Self { access: Some(access), ..self }
    }
}

impl<P: Provider> Default for MrChange<'_, P> {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns whether registration with these rights pins pages of this process.
fn is_pinned<P: Provider>(context: &Context<P>, access: AccessFlags) -> bool {
    !access.contains(AccessFlags::ON_DEMAND) && context.raw().pins_memory()
}

/// Returns the offset and length of a range inside `len`.
///
/// # Errors
/// Returns the start and end of the range if it extends beyond `len`.
pub(crate) fn within(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize), (usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1).ok_or((start, *last))?,
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len.max(start),
    };
    if start <= end && end <= len { Ok((start, end - start)) } else { Err((start, end)) }
}
