//! [`Mr`]: caller-owned memory registered with the device; [`MrInit`] and [`MrChange`] make and
//! change one.
//!
//! # Safety
//! The unsafe code here changes a region and relies on its caller's promise.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::os::fd::BorrowedFd;

use verbs_core::fork::Excluded;
use verbs_core::provider::{
    self, ContextOps, Erased, MrMemory, MrOps, NamedProvider, Provider, RegionState, ReregError,
};
use verbs_core::types::{AccessFlags, Sge};

use crate::device::context::Context;
use crate::device::pd::Pd;
use crate::handle::error::HandleError;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::Child;
use crate::memory::dm::Dmah;

/// A memory region for raw posting: caller-owned memory registered with the device.
/// [`Buf`](crate::Buf) is the safe alternative.
///
/// # References
/// `ibv_reg_mr(3)`
#[doc(alias = "ibv_mr")]
pub struct Mr<P: Provider = Erased> {
    handle: KernelHandle<P::Mr, Parents>,
    place: Place<P>,
}

/// The range of a region and the device that can change it.
struct Place<P: Provider> {
    context: Context<P>,
    /// The address of the first byte in work requests, unless the region is zero-based.
    iova: u64,
    length: usize,
    access: AccessFlags,
}

/// The dependencies of a region. Pages go back to forks before the caller may unmap them.
pub(crate) struct Parents {
    excluded: Vec<Excluded>,
    pd: Child,
    /// Device memory, a DMA handle, or the protection domain of a failed change.
    others: Vec<Child>,
}

impl Parents {
    pub(crate) fn new(pd: Child, excluded: Excluded, other: Option<Child>) -> Self {
        Self { excluded: vec![excluded], pd, others: other.into_iter().collect() }
    }
}

impl<P: Provider> Mr<P> {
    pub(crate) fn new(
        pd: &Pd<P>,
        raw: P::Mr,
        parents: Parents,
        iova: u64,
        length: usize,
        access: AccessFlags,
    ) -> Self {
        let place = Place { context: pd.context().clone(), iova, length, access };
        Self { handle: KernelHandle::new(raw, parents), place }
    }

    /// Returns the key for work requests of this process.
    pub fn lkey(&self) -> u32 {
        self.handle.get().lkey()
    }

    /// Returns the key for peers. It grants the remote rights of the region, if any.
    pub fn rkey(&self) -> u32 {
        self.handle.get().rkey()
    }

    /// Returns its first address for work requests and peers: 0 with
    /// [`ZERO_BASED`](AccessFlags::ZERO_BASED).
    pub fn addr(&self) -> u64 {
        if self.place.access.contains(AccessFlags::ZERO_BASED) { 0 } else { self.place.iova }
    }

    /// Returns its length in bytes.
    pub fn length(&self) -> usize {
        self.place.length
    }

    /// Returns the kernel's handle, for another owner of the same context ([`Pd::import_mr`]).
    pub fn handle(&self) -> u32 {
        self.handle.get().handle()
    }

    /// Returns a part of it as a scatter/gather element.
    ///
    /// # Panics
    /// If the range lies outside the region, or is longer than 4 GiB - 1.
    #[doc(alias = "ibv_sge")]
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Sge {
        let (offset, len) = within(range, self.place.length).expect("a range inside the region");
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
    /// As [`Pd::reg_mr`], for new memory, and for old memory with new rights. If an error leaves
    /// the region [unusable](RegionState::Unusable), the promise holds for both old and new memory
    /// until the region is deregistered.
    ///
    /// # Errors
    /// The reason and the [state](RegionState) of the region:
    ///
    /// - `EOPNOTSUPP` if the device cannot change regions, or not in this way: rxe changes domain
    ///   and rights, on kernels later than Linux 6.4.
    /// - `EINVAL` for no change at all; `EBUSY` while memory windows are bound to the region.
    /// - Otherwise as [`Pd::reg_mr`].
    ///
    /// # References
    /// `ibv_rereg_mr(3)`
    #[doc(alias = "ibv_rereg_mr")]
    pub unsafe fn rereg(&mut self, change: &MrChange<'_, P>) -> Result<(), ReregError> {
        let registry = self.place.context.registry();
        let error = |errno| registry.error("rereg_mr", errno);
        let access = change.access.unwrap_or(self.place.access);
        let memory = change.memory.map(|(addr, length)| {
            let iova = change.iova.unwrap_or(addr.expose_provenance() as u64);
            (addr, length, if access.contains(AccessFlags::ZERO_BASED) { 0 } else { iova })
        });
        let excluded = match memory {
            Some((addr, length, _)) if is_pinned(&self.place.context, access) => {
                Excluded::new(addr, length).map_err(|errno| ReregError::unchanged(error(errno)))?
            }
            _ => Excluded::NONE,
        };
        let pd = change.pd.map(Pd::child_mr);
        let raw = provider::MrChange { memory, pd: change.pd.map(Pd::raw), access: change.access };
        let (mr, parents) = self.handle.parts_mut();
        // SAFETY: the caller's promise is the same.
        if let Err(failed) = unsafe { self.place.context.raw().rereg_mr(mr, &raw) } {
            if failed.region == RegionState::Unusable {
                // It may be in either domain, and cover either memory, until it is deregistered.
                parents.others.extend(pd);
                parents.excluded.push(excluded);
            }
            return Err(failed);
        }
        self.place.access = access;
        if let Some(pd) = pd {
            parents.pd = pd;
        }
        let Some((_, length, iova)) = memory else { return Ok(()) };
        (self.place.length, self.place.iova) = (length, iova);
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
    /// The region, and any errno the kernel returns; notably `EBUSY` while memory windows are bound
    /// to it, `EIO` if the device fails to destroy it, and on rxe `ETIMEDOUT` if the kernel gave up
    /// waiting for its own references to the memory.
    ///
    /// # References
    /// `ibv_dereg_mr(3)`
    #[doc(alias = "ibv_dereg_mr")]
    #[doc(alias = "ibv_unimport_mr")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        let Self { handle, place } = self;
        handle.close().map(drop).map_err(|failed| failed.map(|handle| Self { handle, place }))
    }
}

impl Mr<Erased> {
    /// Returns the same region with its provider named.
    ///
    /// # Errors
    /// The region, when it belongs to another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Mr<P>, HandleError<Self>> {
        let Self { handle, place } = self;
        let Ok(context) = place.context.clone().downcast::<P>() else {
            return Err(HandleError::of_another_provider(Self { handle, place }));
        };
        match handle.try_map(|raw| raw.downcast::<P::Mr>()) {
            Ok(handle) => {
                let Place { iova, length, access, .. } = place;
                Ok(Mr { handle, place: Place { context, iova, length, access } })
            }
            Err(handle) => Err(HandleError::of_another_provider(Self { handle, place })),
        }
    }
}

impl<P: Provider> fmt::Debug for Mr<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr")
            .field("raw", self.raw())
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("length", &self.place.length)
            .field("access", &self.place.access)
            .finish_non_exhaustive()
    }
}

/// A new memory region in the extended form, for [`Pd::reg_mr_ex`].
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
    /// Describes `length` bytes of this process at `addr`.
    #[doc(alias = "IBV_REG_MR_MASK_ADDR")]
    pub fn new(addr: *mut u8, length: usize, access: AccessFlags) -> Self {
        Self { memory: MrMemory::Addr(addr), length, access, iova: None, dmah: None }
    }

    /// Describes `length` bytes of a dma-buf from `offset` on.
    #[doc(alias = "IBV_REG_MR_MASK_FD")]
    #[doc(alias = "IBV_REG_MR_MASK_FD_OFFSET")]
    pub fn dmabuf(fd: BorrowedFd<'a>, offset: u64, length: usize, access: AccessFlags) -> Self {
        Self { memory: MrMemory::DmaBuf { fd, offset }, length, access, iova: None, dmah: None }
    }

    /// Sets the address of the first byte in work requests. The default is the address in this
    /// process, or the offset in a dma-buf.
    #[doc(alias = "IBV_REG_MR_MASK_IOVA")]
    pub fn iova(self, iova: u64) -> Self {
        Self { iova: Some(iova), ..self }
    }

    /// Sets hints for the device's accesses.
    #[doc(alias = "IBV_REG_MR_MASK_DMAH")]
    pub fn dmah(self, dmah: &'a Dmah<P>) -> Self {
        Self { dmah: Some(dmah), ..self }
    }
}

/// A change of a memory region, for [`Mr::rereg`]. Unnamed attributes stay as they are.
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
    /// Describes no change.
    pub const fn new() -> Self {
        Self { memory: None, iova: None, pd: None, access: None }
    }

    /// Changes the memory to `length` bytes at `addr`. Work requests use `addr` too unless
    /// [`iova`](Self::iova) is set.
    #[doc(alias = "IBV_REREG_MR_CHANGE_TRANSLATION")]
    pub fn memory(self, addr: *mut u8, length: usize) -> Self {
        Self { memory: Some((addr, length)), ..self }
    }

    /// Sets the address of the first byte of new memory in work requests.
    pub fn iova(self, iova: u64) -> Self {
        Self { iova: Some(iova), ..self }
    }

    /// Changes the protection domain.
    #[doc(alias = "IBV_REREG_MR_CHANGE_PD")]
    pub fn pd(self, pd: &'a Pd<P>) -> Self {
        Self { pd: Some(pd), ..self }
    }

    /// Changes the rights.
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
pub(crate) fn is_pinned<P: Provider>(context: &Context<P>, access: AccessFlags) -> bool {
    !access.contains(AccessFlags::ON_DEMAND) && context.raw().pins_memory()
}

/// Returns the offset and length of a range inside `len`.
///
/// # Errors
/// The start and end of a range that is not inside.
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
