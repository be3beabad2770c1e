//! [`Mr`]: registered memory.
//!
//! # Safety
//! The caller's obligations for the memory carry over to the engine's [`Region`]; see
//! [`crate::memory::region`].
#![allow(unsafe_code)]

use std::sync::Arc;

use roce::engine::{Access, MemoryAttr};
use verbs_core::provider::{Destroy, MrChange, MrOps, ReregError};
use verbs_core::ring::page_size;
use verbs_core::types::{AccessFlags, Advice, AdviseFlags, Sge};
use verbs_core::{Cause, Errno, Error, Result, explain, room};

use crate::device::error::{destroyed, foreign, refusal, within};
use crate::device::{Device, limits};
use crate::memory::checked::CheckedMemory;
use crate::memory::mapped::{self, Backing, Inaccessible};
use crate::memory::paged;
use crate::memory::region::Region;
use crate::objects::dm::Dm;
use crate::objects::pd::Pd;
use crate::objects::soft::Soft;

/// A memory region. Nothing is pinned: it is memory of this process, accessed by this process.
#[derive(Debug)]
pub struct Mr {
    device: Arc<Device>,
    key: u32,
    memory: Covers,
}

/// The memory covered by a region.
#[derive(Clone, Copy, Debug)]
enum Covers {
    Process(Memory),
    /// Device memory. The engine's region shares ownership of the memory.
    Device,
    /// No memory: a null region.
    Nothing,
}

/// The memory of a region and its access rights.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// The exposed address of the first byte.
    addr: usize,
    length: usize,
    /// The address that work requests use for the first byte, unless the region is zero-based.
    iova: u64,
    access: AccessFlags,
    /// Whether the kernel accesses the pages, because they may disappear.
    by_kernel: bool,
    /// Whether the memory is file-backed and unchecked. [`CheckedMemory::Files`] would check it,
    /// but the kernel does not access memory for this process.
    is_unchecked_file: bool,
}

impl Memory {
    /// Checks the rights, the length and the mapping of the range, and selects the way to access
    /// it.
    ///
    /// # Errors
    /// The errors of [`Mr::register`].
    fn check(&mut self, device: &Device, verb: &'static str) -> Result<()> {
        let (length, access) = (self.length as u64, self.access);
        let is_implicit = self.is_paged() && self.addr == 0 && self.length == usize::MAX;
        if !is_implicit {
            within(device, verb, "length", length, 0, limits::device_attr(device.guid).max_mr_size)?;
        } else if self.start() != 0 {
            let reason = "a region of all memory has the addresses of the process".into();
            return Err(device.error(verb, Errno::INVAL).because(Cause::Other { reason }));
        }
        check_access(device, verb, access - PAGED)?;
        (self.by_kernel, self.is_unchecked_file) = (self.is_paged(), false);
        if self.pins_nothing() {
            let reason =
                "the memory reaches beyond the last address, or has no bytes and begins a page".into();
            return Err(device.error(verb, Errno::INVAL).because(Cause::Other { reason }));
        }
        if self.is_paged() {
            // The program may map and unmap pages at any time.
            let cause = Cause::Access { access: PAGED };
            return if paged::is_supported() {
                Ok(())
            } else {
                Err(device.error(verb, Errno::OPNOTSUPP).because(cause))
            };
        }
        let checked = device.checked_memory;
        // A seccomp filter may kill the process at the system calls of `is_supported`, so they are
        // made only for memory to be checked.
        if checked == CheckedMemory::All && length > 0 && !paged::is_supported() {
            let reason = "all registered memory is to be checked, which needs process_vm_readv and \
                process_vm_writev, and the kernel refuses them to this process (a seccomp filter may): allow both, \
                or select CheckedMemory::Files or None (VERBS_SOFT_CHECKED_MEMORY=files or none)";
            return Err(device.error(verb, Errno::OPNOTSUPP).because(Cause::Other { reason: reason.into() }));
        }
        let is_checked = |backing| match checked {
            CheckedMemory::None => false,
            CheckedMemory::Files => backing == Backing::File && paged::is_supported(),
            CheckedMemory::All => true,
        };
        let probe = |address, backing| !is_checked(backing) || paged::can_read(address);
        let backing =
            mapped::check(self.addr as u64, length, access.intersects(WRITES), probe).map_err(|range| {
                let Inaccessible { start, end, lacks } = range;
                device.error(verb, Errno::FAULT).because(Cause::Inaccessible { start, end, lacks })
            })?;
        self.by_kernel = is_checked(backing) && length > 0;
        self.is_unchecked_file =
            checked == CheckedMemory::Files && backing == Backing::File && !self.by_kernel;
        Ok(())
    }

    /// Returns whether the kernel would pin zero pages: no page lies between the address, rounded
    /// down to a page, and the end, rounded up (0 if beyond the last address).
    ///
    /// # References
    /// The kernel's drivers/infiniband/core/umem.c, `ib_umem_get`
    fn pins_nothing(&self) -> bool {
        if self.is_paged() {
            return false;
        }
        let page = page_size();
        let end = self.addr.checked_add(self.length).and_then(|end| end.checked_next_multiple_of(page));
        end.is_none_or(|end| end <= self.addr & !(page - 1))
    }

    /// Returns the address that work requests use for the first byte.
    fn start(&self) -> u64 {
        if self.access.contains(AccessFlags::ZERO_BASED) { 0 } else { self.iova }
    }

    fn is_paged(&self) -> bool {
        self.access.contains(PAGED)
    }

    fn is_exposed(&self) -> bool {
        self.access.intersects(REMOTE)
    }

    fn engine_access(&self) -> Access {
        engine_access(self.access)
    }

    /// Returns the memory as a region of the engine.
    ///
    /// # Safety
    /// Same as [`Region::new`].
    unsafe fn region(&self) -> Region {
        let start = core::ptr::with_exposed_provenance_mut(self.addr);
        if self.by_kernel {
            return Region::by_kernel(start, self.length, self.is_paged());
        }
        // SAFETY: the caller fulfils the same contract.
        unsafe { Region::new(start, self.length, self.is_exposed()) }
    }
}

impl Mr {
    /// Returns whether the region has file-backed memory that [`CheckedMemory::Files`] would check,
    /// but the kernel does not access memory for this process. Truncating the file then ends the
    /// process.
    pub fn is_unchecked_file(&self) -> bool {
        matches!(self.memory, Covers::Process(memory) if memory.is_unchecked_file)
    }

    /// Registers memory.
    ///
    /// # Errors
    /// - `EINVAL`, naming the limit or the foreign object; for unknown access rights; for memory
    ///   beyond the last address; and for an empty range at the start of a page, because the
    ///   kernel would pin no page.
    /// - `EOPNOTSUPP` for an unsupported access right, and with [`CheckedMemory::All`] if the
    ///   kernel does not access memory for this process.
    /// - `EFAULT` with [`Cause::Inaccessible`].
    /// - `ENOMEM` if the device has no more regions; `ENODEV` in a forked child.
    ///
    /// # Safety
    /// Same as [`ContextOps::reg_mr`](verbs_core::provider::ContextOps::reg_mr).
    pub(crate) unsafe fn register(
        device: &Arc<Device>,
        pd: &Pd,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Self> {
        const VERB: &str = "reg_mr";
        device.check(VERB)?;
        let pd = pd.id_on(device, VERB)?;
        let addr = addr.expose_provenance();
        let mut memory = Memory { addr, length, iova, access, by_kernel: false, is_unchecked_file: false };
        memory.check(device, VERB)?;
        let attr =
            MemoryAttr { pd, iova: memory.start(), length: length as u64, access: memory.engine_access() };
        // SAFETY: the caller's guarantee holds while the region is registered, that is, until
        // `destroy`.
        let region = unsafe { memory.region() };
        let key = device.control(VERB, |core, _| {
            core.engine.reg_mr(&attr, region).map_err(|refused| refusal(device, VERB, refused))
        })?;
        Ok(Self { device: Arc::clone(device), key, memory: Covers::Process(memory) })
    }

    /// Registers a range of device memory.
    ///
    /// # Errors
    /// - `EINVAL`, naming the foreign object or the range; also if `access` lacks
    ///   [`AccessFlags::ZERO_BASED`].
    /// - `EOPNOTSUPP` for an unsupported access right.
    /// - `ENOMEM` if the device has no more regions; `ENODEV` in a forked child.
    pub(crate) fn register_dm(
        device: &Arc<Device>,
        pd: &Pd,
        dm: &Dm,
        offset: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<Self> {
        const VERB: &str = "reg_dm_mr";
        device.check(VERB)?;
        let pd = pd.id_on(device, VERB)?;
        let memory = dm.piece(device, VERB, offset, length)?;
        if !access.contains(AccessFlags::ZERO_BASED) {
            let reason = "a region of device memory is zero-based".into();
            return Err(device.error(VERB, Errno::INVAL).because(Cause::Other { reason }));
        }
        check_access(device, VERB, access)?;
        let attr = MemoryAttr { pd, iova: 0, length, access: engine_access(access) };
        let region = Region::device(memory, offset, length);
        let key = device.control(VERB, |core, _| {
            core.engine.reg_mr(&attr, region).map_err(|refused| refusal(device, VERB, refused))
        })?;
        Ok(Self { device: Arc::clone(device), key, memory: Covers::Device })
    }

    /// Handles advice about pages in on-demand paged regions. The device has no page table, so
    /// pages that are already present need no work.
    ///
    /// # Errors
    /// - `EINVAL` for an unknown flag, no element, a region that is not on-demand paged, or a
    ///   protection domain of another device; `EOPNOTSUPP` for unknown advice.
    /// - `ENOENT` for an unknown key; `EPERM` for a key of another protection domain, or of a
    ///   region without [`AccessFlags::LOCAL_WRITE`] for [`Advice::PREFETCH_WRITE`].
    /// - `EFAULT` for bytes outside the region, and with [`AdviseFlags::FLUSH`] for inaccessible
    ///   pages.
    /// - `ENODEV` in a forked child.
    pub(crate) fn advise(
        device: &Arc<Device>,
        pd: &Pd,
        advice: Advice,
        flags: AdviseFlags,
        sges: &[Sge],
    ) -> Result<()> {
        const VERB: &str = "advise_mr";
        device.check(VERB)?;
        let pd = pd.id_on(device, VERB)?;
        let failed = |errno| device.error(VERB, errno);
        if !Advice::NAMED.contains(&advice) {
            return Err(failed(Errno::OPNOTSUPP));
        }
        if !(flags - AdviseFlags::FLUSH).is_empty() || sges.is_empty() {
            return Err(failed(Errno::INVAL));
        }
        let writable = advice == Advice::PREFETCH_WRITE;
        let ranges = device.control(VERB, |core, _| {
            let range = |sge: &Sge| {
                let index = sge.lkey >> 8;
                let named = core.engine.mr_by_index(index).filter(|(key, _)| *key == sge.lkey);
                let (_, attr) = named.ok_or_else(|| failed(Errno::NOENT))?;
                if attr.pd != pd || (writable && !attr.access.contains(Access::LOCAL_WRITE)) {
                    let reason = "the region is of another protection domain, or lacks LOCAL_WRITE".into();
                    return Err(failed(Errno::PERM).because(Cause::Other { reason }));
                }
                let region = core.engine.region_by_index(index).ok_or_else(|| failed(Errno::NOENT))?;
                if !region.is_paged() {
                    return Err(failed(Errno::INVAL));
                }
                let offset = sge.addr.checked_sub(attr.iova);
                let start = offset.and_then(|offset| region.paged_at(offset, sge.length as usize).ok());
                Ok((start.ok_or_else(|| failed(Errno::FAULT))?, u64::from(sge.length)))
            };
            let mut ranges = Vec::new();
            room::reserve(&mut ranges, sges.len()).map_err(failed)?;
            for sge in sges {
                ranges.push(range(sge)?);
            }
            Ok(ranges)
        })?;
        if advice == Advice::PREFETCH_NO_FAULT {
            return Ok(());
        }
        for (start, length) in ranges.into_iter().filter(|(_, length)| *length > 0) {
            let prefetched = paged::prefetch(start, length, writable);
            if flags.contains(AdviseFlags::FLUSH) {
                prefetched.map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Creates a null region, which covers every address. The region works in all protection
    /// domains and keeps none alive. Its remote key is 0, which no other region has. As on
    /// ConnectX, peers that use the local key read zeros, and their writes are discarded.
    ///
    /// # Errors
    /// `EINVAL` for a protection domain of another device; `ENOMEM` if the device has no more
    /// regions; `ENODEV` in a forked child.
    pub(crate) fn null(device: &Arc<Device>, pd: &Pd) -> Result<Self> {
        const VERB: &str = "alloc_null_mr";
        device.check(VERB)?;
        pd.id_on(device, VERB)?;
        let key = device.control(VERB, |core, _| {
            let reg = core.engine.reg_mr_for_all(Region::null());
            reg.map_err(|refused| refusal(device, VERB, refused))
        })?;
        Ok(Self { device: Arc::clone(device), key, memory: Covers::Nothing })
    }

    /// Changes the region completely or not at all. Its key stays the same.
    ///
    /// # Errors
    /// The errors of [`register`](Self::register); also `EINVAL` for an empty change and for a null
    /// region, and `EBUSY` while memory windows are bound to the region. After an error, the region
    /// is unchanged.
    ///
    /// # Safety
    /// Same as [`ContextOps::rereg_mr`](verbs_core::provider::ContextOps::rereg_mr).
    pub(crate) unsafe fn rereg(
        &mut self,
        device: &Arc<Device>,
        change: &MrChange<'_, Soft>,
    ) -> Result<(), ReregError> {
        // SAFETY: the caller fulfils the same contract.
        unsafe { self.change(device, change) }.map_err(ReregError::unchanged)
    }

    /// Changes the region.
    ///
    /// # Errors
    /// The errors of [`rereg`](Self::rereg).
    ///
    /// # Safety
    /// Same as [`rereg`](Self::rereg).
    unsafe fn change(&mut self, device: &Arc<Device>, change: &MrChange<'_, Soft>) -> Result<()> {
        const VERB: &str = "rereg_mr";
        device.check(VERB)?;
        if !Arc::ptr_eq(&self.device, device) {
            return Err(foreign(device, VERB, "memory region"));
        }
        let invalid = |reason: &'static str| {
            device.error(VERB, Errno::INVAL).because(Cause::Other { reason: reason.into() })
        };
        let old = match self.memory {
            Covers::Process(memory) => memory,
            Covers::Device => {
                let reason = "a region of device memory stays as it was registered".into();
                return Err(device.error(VERB, Errno::OPNOTSUPP).because(Cause::Other { reason }));
            }
            Covers::Nothing => return Err(invalid("a null region has no memory and no rights to change")),
        };
        let pd = change.pd.map(|pd| pd.id_on(device, VERB)).transpose()?;
        let mut new = old;
        if let Some((addr, length, iova)) = change.memory {
            new = Memory { addr: addr.expose_provenance(), length, iova, ..new };
        }
        if let Some(access) = change.access {
            new.access = access;
        }
        if change.memory.is_some() || change.access.is_some() {
            new.check(device, VERB)?;
        } else if pd.is_none() {
            return Err(invalid("no change is asked for: name memory, a protection domain or rights"));
        }
        // While windows are bound, a region may change its access rights, but not its address.
        let moves = change.memory.is_some() || new.start() != old.start();
        let replaced = moves
            || new.is_exposed() != old.is_exposed()
            || (new.is_paged(), new.by_kernel) != (old.is_paged(), old.by_kernel);
        let change = roce::engine::MrChange {
            pd,
            access: change.access.map(|_| new.engine_access()),
            iova_and_length: moves.then(|| (new.start(), new.length as u64)),
            // SAFETY: the caller's guarantee holds for the new memory while it is registered.
            region: replaced.then(|| unsafe { new.region() }),
            ..roce::engine::MrChange::default()
        };
        self.key = device.control(VERB, |core, _| {
            // With the lock held, no thread is copying from or to the old memory.
            core.engine.update_mr(self.key, change).map_err(|refused| refusal(device, VERB, refused))
        })?;
        self.memory = Covers::Process(new);
        Ok(())
    }
}

impl MrOps for Mr {
    fn handle(&self) -> u32 {
        self.key
    }

    fn lkey(&self) -> u32 {
        self.key
    }

    fn rkey(&self) -> u32 {
        match self.memory {
            Covers::Process(_) | Covers::Device => self.key,
            Covers::Nothing => 0,
        }
    }
}

impl Destroy for Mr {
    fn destroy(self) -> Result<(), (Self, Error)> {
        // With the lock held, no thread is copying.
        let key = self.key;
        destroyed(&self.device, "dereg_mr", |core| core.engine.dereg_mr(key).map(drop))
            .map_err(|error| (self, error))
    }
}

/// Checks the access rights requested for a region.
///
/// # Errors
/// `EINVAL` with [`Cause::NeedsLocalWrite`], or with [`Cause::Access`] for unknown bits;
/// `EOPNOTSUPP` with [`Cause::Access`].
fn check_access(device: &Device, verb: &'static str, access: AccessFlags) -> Result<()> {
    explain::region_access(access).map_err(|cause| device.error(verb, Errno::INVAL).because(cause))?;
    // Huge pages and the optional rights only make accesses faster.
    let lacking = access - AccessFlags::OPTIONAL_RANGE - AccessFlags::HUGETLB - SUPPORTED;
    if lacking.is_empty() {
        return Ok(());
    }
    let unknown = lacking.iter_names().fold(lacking, |left, (_, right)| left - right);
    let errno = if unknown.is_empty() { Errno::OPNOTSUPP } else { Errno::INVAL };
    Err(device.error(verb, errno).because(Cause::Access { access: lacking }))
}

fn engine_access(access: AccessFlags) -> Access {
    Access((access & SUPPORTED).bits())
}

/// The rights that give peers access to a region, or to windows bound to the region.
const REMOTE: AccessFlags = AccessFlags::REMOTE_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND)
    .union(AccessFlags::FLUSH_GLOBAL);

/// The access right that requests on-demand paging. The engine does not use this right.
const PAGED: AccessFlags = AccessFlags::ON_DEMAND;

/// The access rights that allow writing to a region.
const WRITES: AccessFlags =
    AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_ATOMIC);

/// The supported access rights, with the same bits in verbs and in the engine. Flushing to
/// persistence is unsupported, because process memory is never known to be durable.
const SUPPORTED: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND)
    .union(AccessFlags::ZERO_BASED)
    .union(AccessFlags::FLUSH_GLOBAL);
