//! [`ProcessMemory`]: lets the engine access payload in the memory of this process.
//!
//! A peer's packet makes the engine write into registered memory at any time, from any thread
//! holding the device's lock. To the program this is like a device's DMA, with the same rules: it
//! holds no reference to memory that a peer may write. Unlike a device, the engine runs in threads
//! subject to the compiler's rules: two threads may access the same bytes at once only with atomics
//! of the same size. Therefore:
//!
//! | a region | is accessed by |
//! |---|---|
//! | with remote rights, or for windows | [`ExposedBytes`], as by `Exposed` of the crate `verbs` |
//! | without either | relaxed atomic words, and single bytes at the edges of a piece |
//! | paged on demand | the kernel, because its pages may be missing: see [`crate::memory::paged`] |
//! | of a file, or otherwise checked | the kernel: see [`CheckedMemory`] |
//! | of device memory | the [`ExposedBytes`] of the whole allocation |
//! | without memory (a null region) | nothing |
//!
//! [`CheckedMemory`]: crate::CheckedMemory
//!
//! With remote rights, a peer chooses the time and address of an access. Without remote rights,
//! work requests choose both, and the accessed bytes belong to the engine alone until the
//! completion returns them.
//!
//! # Safety
//! A [`Region`] comes from `reg_mr`. Its caller guarantees two things while the region is
//! registered: the bytes stay mapped, and all other accesses to them tolerate a device's accesses.
//! The engine calls with offsets inside the registered range, and only while it is registered.
//! Deregistering takes the device's lock, so when it returns, no call is in progress and none
//! follows. The lock also keeps two threads from running this code at once.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use std::sync::Arc;

use roce::engine::{Fault, Memory};
use verbs_core::exposed::ExposedBytes;
use verbs_core::words::{load_words, store_words};

use crate::memory::device_memory::DeviceMemory;
use crate::memory::paged;

/// A registered range of this process's memory, or a null region.
#[derive(Debug)]
pub(crate) struct Region {
    start: *mut u8,
    length: u64,
    access: AccessedBy,
}

/// The way to access a region's bytes.
#[derive(Debug)]
enum AccessedBy {
    /// By relaxed atomic words, because only work requests of this process access the bytes.
    Own,
    /// As exposed bytes, because peers may access them.
    Peers(ExposedBytes),
    /// By the kernel, because pages may be missing.
    Kernel {
        /// Whether the program registered the bytes for on-demand paging.
        on_demand: bool,
    },
    /// Through this device memory, starting at this offset.
    Device(Arc<DeviceMemory>, usize),
    /// Not at all, because the region has no memory: reads return zeros; writes are discarded.
    Nothing,
}

// SAFETY: `start` blocked the auto impl. The rules for dereferencing it are the same on every
// thread (see the module).
unsafe impl Send for Region {}

impl Region {
    /// Returns the region of `length` bytes at `start`. `is_exposed` means that peers may access
    /// the bytes.
    ///
    /// # Safety
    /// While the region is registered with an engine, the bytes must be mapped, and all other
    /// accesses to them must tolerate a device's accesses.
    pub(crate) unsafe fn new(start: *mut u8, length: usize, is_exposed: bool) -> Self {
        // SAFETY: the value is used only while the region is registered; other accesses tolerate a
        // device's, or follow the same pattern.
        let exposed = is_exposed.then(|| unsafe { ExposedBytes::new(start, length) });
        let access = exposed.map_or(AccessedBy::Own, AccessedBy::Peers);
        Self { start, length: length as u64, access }
    }

    /// Returns the region of `length` bytes at `start`, which need not be mapped, because the
    /// kernel accesses them. `on_demand` means that the program registered the bytes for on-demand
    /// paging.
    pub(crate) fn by_kernel(start: *mut u8, length: usize, on_demand: bool) -> Self {
        Self { start, length: length as u64, access: AccessedBy::Kernel { on_demand } }
    }

    /// Returns the region of `length` bytes of device memory at `offset`. The caller must have
    /// checked the range.
    pub(crate) fn device(memory: Arc<DeviceMemory>, offset: u64, length: u64) -> Self {
        let access = AccessedBy::Device(memory, offset as usize);
        Self { start: core::ptr::null_mut(), length, access }
    }

    /// Returns a region without memory: it reads as zeros and discards writes.
    pub(crate) fn null() -> Self {
        Self { start: core::ptr::null_mut(), length: u64::MAX, access: AccessedBy::Nothing }
    }

    /// Returns a region of `length` zeros that is accessible to peers and never freed.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn leaked(length: usize) -> Self {
        let words = Box::leak(vec![0_u64; length.div_ceil(8)].into_boxed_slice());
        // SAFETY: leaked, so the bytes stay mapped; the only reference to them ends here.
        unsafe { Self::new(words.as_mut_ptr().cast(), length, true) }
    }

    /// Returns the address of `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`Fault`] unless all bytes are inside the region.
    #[inline]
    fn at(&self, offset: u64, len: usize) -> Result<*mut u8, Fault> {
        let end = offset.checked_add(len as u64).ok_or(Fault)?;
        if end > self.length {
            return Err(Fault);
        }
        Ok(self.start.wrapping_add(offset as usize))
    }

    /// Returns the address of `len` bytes at `offset` of a region that the kernel accesses.
    ///
    /// # Errors
    /// [`Fault`] unless all bytes are inside the region.
    pub(crate) fn paged_at(&self, offset: u64, len: usize) -> Result<u64, Fault> {
        Ok(self.at(offset, len)?.addr() as u64)
    }

    /// Returns whether the region is on-demand paged.
    pub(crate) fn is_paged(&self) -> bool {
        matches!(self.access, AccessedBy::Kernel { on_demand: true })
    }

    fn is_by_kernel(&self) -> bool {
        matches!(self.access, AccessedBy::Kernel { .. })
    }

    /// Returns the 8 bytes at `offset` as an atomic.
    ///
    /// # Errors
    /// [`Fault`] if the bytes are not aligned, not inside the region, or not accessible to peers.
    fn word(&self, offset: u64) -> Result<&AtomicU64, Fault> {
        match &self.access {
            AccessedBy::Peers(exposed) => exposed.word(offset as usize).ok_or(Fault),
            AccessedBy::Device(memory, base) => {
                self.at(offset, 8)?;
                memory.bytes.word(base + offset as usize).ok_or(Fault)
            }
            AccessedBy::Own | AccessedBy::Kernel { .. } | AccessedBy::Nothing => Err(Fault),
        }
    }

    /// Reads from any kind of region except ordinary memory. Separate, to keep the common case
    /// small.
    ///
    /// # Errors
    /// The errors of [`Memory::read`].
    #[cold]
    fn read_unusual(&self, offset: u64, dst: &mut [u8]) -> Result<(), Fault> {
        match &self.access {
            AccessedBy::Kernel { .. } => paged::read(self.paged_at(offset, dst.len())?, dst),
            AccessedBy::Device(memory, base) => {
                self.at(offset, dst.len())?;
                memory.bytes.read(base + offset as usize, dst).then_some(()).ok_or(Fault)
            }
            AccessedBy::Nothing => {
                dst.fill(0);
                Ok(())
            }
            AccessedBy::Own | AccessedBy::Peers(_) => Err(Fault),
        }
    }

    /// Writes to any kind of region except ordinary memory.
    ///
    /// # Errors
    /// The errors of [`Memory::write`].
    #[cold]
    fn write_unusual(&self, offset: u64, src: &[u8]) -> Result<(), Fault> {
        match &self.access {
            AccessedBy::Kernel { .. } => paged::write(self.paged_at(offset, src.len())?, src),
            AccessedBy::Device(memory, base) => {
                self.at(offset, src.len())?;
                memory.bytes.write(base + offset as usize, src).then_some(()).ok_or(Fault)
            }
            AccessedBy::Nothing => Ok(()),
            AccessedBy::Own | AccessedBy::Peers(_) => Err(Fault),
        }
    }
}

/// The engine's access to the memory of this process.
#[derive(Debug)]
pub(crate) struct ProcessMemory;

impl Memory for ProcessMemory {
    type Region = Region;

    #[inline]
    fn read(&mut self, region: &Region, offset: u64, dst: &mut [u8]) -> Result<(), Fault> {
        match &region.access {
            AccessedBy::Own => {}
            AccessedBy::Peers(exposed) => {
                return exposed.read(offset as usize, dst).then_some(()).ok_or(Fault);
            }
            _ => return region.read_unusual(offset, dst),
        }
        let from = region.at(offset, dst.len())?;
        // SAFETY: `at` found the bytes inside the region, which is mapped.
        unsafe { copy_out(from, dst) };
        Ok(())
    }

    #[inline]
    fn write(&mut self, region: &Region, offset: u64, src: &[u8]) -> Result<(), Fault> {
        match &region.access {
            AccessedBy::Own => {}
            AccessedBy::Peers(exposed) => {
                return exposed.write(offset as usize, src).then_some(()).ok_or(Fault);
            }
            _ => return region.write_unusual(offset, src),
        }
        let to = region.at(offset, src.len())?;
        // SAFETY: as in `read`.
        unsafe { copy_in(to, src) };
        Ok(())
    }

    fn compare_swap(&mut self, region: &Region, offset: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        if region.is_by_kernel() {
            return paged::update(region.paged_at(offset, 8)?, |found| (found == compare).then_some(swap));
        }
        let word = region.word(offset)?;
        Ok(word
            .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|found| found))
    }

    /// Fails on memory accessed by the kernel, because the kernel does not guarantee to copy 8
    /// bytes at once.
    fn atomic_write(&mut self, region: &Region, offset: u64, data: [u8; 8]) -> Result<(), Fault> {
        if matches!(region.access, AccessedBy::Nothing) {
            // Discarded, like other writes to a null region.
            return Ok(());
        }
        region.word(offset)?.store(u64::from_ne_bytes(data), Ordering::Release);
        Ok(())
    }

    /// Writes by this process become visible to the whole machine in order; a fence orders the
    /// flush among these writes. Process memory is never known to be durable.
    fn flush(&mut self, _: &Region, _: u64, _: u64, persistent: bool) -> Result<(), Fault> {
        if persistent {
            return Err(Fault);
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn fetch_add(&mut self, region: &Region, offset: u64, add: u64) -> Result<u64, Fault> {
        if region.is_by_kernel() {
            return paged::update(region.paged_at(offset, 8)?, |found| Some(found.wrapping_add(add)));
        }
        Ok(region.word(offset)?.fetch_add(add, Ordering::AcqRel))
    }
}

/// Copies bytes out of registered memory: by aligned words, with single bytes at the edges.
///
/// # Safety
/// `from` must be mapped for `dst.len()` bytes.
unsafe fn copy_out(from: *mut u8, dst: &mut [u8]) {
    let (edge, rest) = dst.split_at_mut(from.align_offset(8).min(dst.len()));
    let (words, last) = rest.as_chunks_mut::<8>();
    // SAFETY: inside `from .. from + dst.len()`, whose parts are consecutive. Words are aligned:
    // the first edge ends at an aligned address.
    unsafe {
        let from = load_bytes(from, edge);
        load_words(from, words);
        load_bytes(from.add(8 * words.len()), last);
    }
}

/// Copies bytes into registered memory, in ascending order of addresses: by aligned words, with
/// single bytes at the edges.
///
/// # Safety
/// `to` must be mapped for `src.len()` bytes.
unsafe fn copy_in(to: *mut u8, src: &[u8]) {
    let (edge, rest) = src.split_at(to.align_offset(8).min(src.len()));
    let (words, last) = rest.as_chunks::<8>();
    // SAFETY: as in `copy_out`.
    unsafe {
        let to = store_bytes(to, edge);
        store_words(to, words);
        store_bytes(to.add(8 * words.len()), last);
    }
}

/// Loads single bytes and returns the address after them.
///
/// # Safety
/// `from` must be mapped for `bytes.len()` bytes.
unsafe fn load_bytes(mut from: *mut u8, bytes: &mut [u8]) -> *mut u8 {
    for byte in bytes {
        // SAFETY: inside the range guaranteed by the caller.
        unsafe {
            *byte = AtomicU8::from_ptr(from).load(Ordering::Relaxed);
            from = from.add(1);
        }
    }
    from
}

/// Stores single bytes and returns the address after them.
///
/// # Safety
/// `to` must be mapped for `bytes.len()` bytes.
unsafe fn store_bytes(mut to: *mut u8, bytes: &[u8]) -> *mut u8 {
    for byte in bytes {
        // SAFETY: inside the range guaranteed by the caller.
        unsafe {
            AtomicU8::from_ptr(to).store(*byte, Ordering::Relaxed);
            to = to.add(1);
        }
    }
    to
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn region(bytes: &mut [u64], is_exposed: bool) -> Region {
        // SAFETY: the tests keep the bytes alive, and access them only between calls.
        unsafe { Region::new(bytes.as_mut_ptr().cast(), bytes.len() * 8, is_exposed) }
    }

    #[test]
    fn any_piece_at_any_offset_is_copied_and_no_other_byte_changes() {
        let mut bytes = [0_u64; 40];
        let pattern: Vec<u8> = (0..200).map(|n| n as u8 | 1).collect();
        let regions = [false, true].map(|is_exposed| region(&mut bytes, is_exposed));
        for (offset, region) in (0..70).flat_map(|offset| regions.iter().map(move |region| (offset, region)))
        {
            for len in [0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 200] {
                ProcessMemory.write(region, 0, &[0; 320]).unwrap();
                ProcessMemory.write(region, offset, &pattern[..len]).unwrap();
                let mut back = [0xaa; 320];
                ProcessMemory.read(region, 0, &mut back).unwrap();
                let (before, rest) = back.split_at(offset as usize);
                assert!(before.iter().chain(&rest[len..]).all(|byte| *byte == 0), "{len} at {offset}");
                assert_eq!(rest[..len], pattern[..len]);
                let mut piece = vec![0; len];
                ProcessMemory.read(region, offset, &mut piece).unwrap();
                assert_eq!(piece, pattern[..len]);
            }
        }
    }

    #[test]
    fn an_access_outside_or_not_aligned_is_a_fault() {
        let mut bytes = [0_u64; 2];
        let region = region(&mut bytes, true);
        assert_eq!(ProcessMemory.read(&region, 9, &mut [0; 8]), Err(Fault));
        assert_eq!(ProcessMemory.write(&region, u64::MAX, &[0; 2]), Err(Fault));
        assert_eq!(ProcessMemory.fetch_add(&region, 4, 1), Err(Fault));
        assert_eq!(ProcessMemory.fetch_add(&region, 16, 1), Err(Fault));
    }

    #[test]
    fn a_null_region_reads_as_zeros_and_has_no_words() {
        let region = Region::null();
        let mut bytes = [7; 32];
        ProcessMemory.write(&region, u64::MAX - 32, &bytes).unwrap();
        ProcessMemory.read(&region, u64::MAX - 32, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 32]);
        assert_eq!(ProcessMemory.fetch_add(&region, 0, 1), Err(Fault));
        assert_eq!(ProcessMemory.compare_swap(&region, 0, 0, 1), Err(Fault));
    }

    #[test]
    fn an_atomic_write_stores_aligned_words_of_exposed_memory_only() {
        let mut bytes = [5_u64; 2];
        let exposed = region(&mut bytes, true);
        assert_eq!(ProcessMemory.atomic_write(&exposed, 8, 7_u64.to_ne_bytes()), Ok(()));
        assert_eq!(ProcessMemory.atomic_write(&exposed, 4, [0; 8]), Err(Fault));
        assert_eq!(ProcessMemory.atomic_write(&exposed, 16, [0; 8]), Err(Fault));
        let closed = region(&mut bytes, false);
        assert_eq!(ProcessMemory.atomic_write(&closed, 0, [0; 8]), Err(Fault));
        assert_eq!(bytes, [5, 7]);
    }

    #[test]
    fn a_flush_makes_nothing_durable() {
        let mut bytes = [0_u64; 2];
        let region = region(&mut bytes, true);
        assert_eq!(ProcessMemory.flush(&region, 0, 16, false), Ok(()));
        assert_eq!(ProcessMemory.flush(&region, 0, 16, true), Err(Fault));
    }

    #[test]
    fn atomics_return_the_previous_value() {
        let mut bytes = [5_u64; 2];
        let region = region(&mut bytes, true);
        assert_eq!(ProcessMemory.compare_swap(&region, 8, 4, 9), Ok(5));
        assert_eq!(ProcessMemory.compare_swap(&region, 8, 5, 9), Ok(5));
        assert_eq!(ProcessMemory.fetch_add(&region, 8, u64::MAX), Ok(9));
        assert_eq!(ProcessMemory.fetch_add(&region, 8, 0), Ok(8));
        assert_eq!(bytes, [5, 8]);
    }
}
