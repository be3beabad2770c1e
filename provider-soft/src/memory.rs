//! [`ProcessMemory`]: payload lives in the memory of this process.
//!
//! A peer's packet makes the engine write into memory that the program registered, at any time, from any thread that holds
//! the device's lock. To the program that is what a device's DMA is, and it is held to the same rules: it has no reference to
//! memory while a peer may write it. But other than a device, this is a thread that the compiler knows, and two threads that
//! access the same bytes at once must do so with atomics, of the same size, for it to mean anything. So:
//!
//! | a region | is accessed by |
//! |---|---|
//! | with remote rights | [`ExposedBytes`], as `Exposed` of the crate `verbs` does: a peer chooses when and where |
//! | without | relaxed atomic words, and bytes at the edges of a piece: work requests choose, and a piece is the engine's alone until its completion hands it over |
//!
//! # Safety
//! A [`Region`] comes from `reg_mr`, whose caller promised that the bytes stay mapped, and that nobody who cannot bear it
//! accesses them, while the region is registered. The engine calls with offsets inside of what was registered and only
//! while it is; deregistering takes the device's lock, so that no call is under way when it returns, and none follows. Two
//! threads do not come here at once, because the lock excludes them.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use roce::engine::{Fault, Memory};
use verbs_core::exposed::ExposedBytes;
use verbs_core::words::{load_words, store_words};

/// A registered piece of this process' memory.
#[derive(Debug)]
pub(crate) struct Region {
    start: *mut u8,
    length: u64,
    /// The same bytes, where peers may touch them.
    exposed: Option<ExposedBytes>,
}

// SAFETY: `start` blocked the auto impl. Whether and how it may be followed does not depend on the thread: see the module.
unsafe impl Send for Region {}

impl Region {
    /// `length` bytes from `start` on, which peers may touch or not.
    ///
    /// # Safety
    /// While the region is registered with an engine, the bytes are mapped, and whoever else accesses them is ready for
    /// accesses by a device.
    pub(crate) unsafe fn new(start: *mut u8, length: usize, is_exposed: bool) -> Self {
        // SAFETY: used while the region is registered; who else accesses the bytes is ready for it, or does as this does.
        let exposed = is_exposed.then(|| unsafe { ExposedBytes::new(start, length) });
        Self { start, length: length as u64, exposed }
    }

    /// Returns a region of `length` zeros that peers may touch, and that stays for good.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn leaked(length: usize) -> Self {
        let words = Box::leak(vec![0_u64; length.div_ceil(8)].into_boxed_slice());
        // SAFETY: leaked, so the bytes stay mapped; the only reference to them ends here.
        unsafe { Self::new(words.as_mut_ptr().cast(), length, true) }
    }

    /// Where `len` bytes at `offset` start, if they are inside.
    #[inline]
    fn at(&self, offset: u64, len: usize) -> Result<*mut u8, Fault> {
        let end = offset.checked_add(len as u64).ok_or(Fault)?;
        if end > self.length {
            return Err(Fault);
        }
        Ok(self.start.wrapping_add(offset as usize))
    }

    /// The 8 aligned bytes at `offset`, where peers may touch them.
    fn word(&self, offset: u64) -> Result<&AtomicU64, Fault> {
        self.exposed.as_ref().and_then(|exposed| exposed.word(offset as usize)).ok_or(Fault)
    }
}

/// The memory of this process, as an engine reaches it.
#[derive(Debug)]
pub(crate) struct ProcessMemory;

impl Memory for ProcessMemory {
    type Region = Region;

    #[inline]
    fn read(&mut self, region: &Region, offset: u64, dst: &mut [u8]) -> Result<(), Fault> {
        if let Some(exposed) = &region.exposed {
            return exposed.read(offset as usize, dst).then_some(()).ok_or(Fault);
        }
        let from = region.at(offset, dst.len())?;
        // SAFETY: `at` found the bytes inside of the region, which is mapped.
        unsafe { copy_out(from, dst) };
        Ok(())
    }

    #[inline]
    fn write(&mut self, region: &Region, offset: u64, src: &[u8]) -> Result<(), Fault> {
        if let Some(exposed) = &region.exposed {
            return exposed.write(offset as usize, src).then_some(()).ok_or(Fault);
        }
        let to = region.at(offset, src.len())?;
        // SAFETY: as in `read`.
        unsafe { copy_in(to, src) };
        Ok(())
    }

    fn compare_swap(&mut self, region: &Region, offset: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        let word = region.word(offset)?;
        Ok(word
            .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|found| found))
    }

    fn fetch_add(&mut self, region: &Region, offset: u64, add: u64) -> Result<u64, Fault> {
        Ok(region.word(offset)?.fetch_add(add, Ordering::AcqRel))
    }
}

/// Copies bytes out of registered memory: by aligned words of it, single bytes at the edges.
///
/// # Safety
/// `from` is mapped for `dst.len()` bytes.
unsafe fn copy_out(from: *mut u8, dst: &mut [u8]) {
    let (edge, rest) = dst.split_at_mut(from.align_offset(8).min(dst.len()));
    let (words, last) = rest.as_chunks_mut::<8>();
    // SAFETY: inside of `from .. from + dst.len()`, whose parts follow each other. Words are aligned: the first edge ends
    // where `from` is.
    unsafe {
        let from = load_bytes(from, edge);
        load_words(from, words);
        load_bytes(from.add(8 * words.len()), last);
    }
}

/// Copies bytes into registered memory, in the order of addresses: by aligned words of it, single bytes at the edges.
///
/// # Safety
/// `to` is mapped for `src.len()` bytes.
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

/// Loads single bytes, and gives where the next one is.
///
/// # Safety
/// `from` is mapped for `bytes.len()` bytes.
unsafe fn load_bytes(mut from: *mut u8, bytes: &mut [u8]) -> *mut u8 {
    for byte in bytes {
        // SAFETY: inside of what the caller vouches for.
        unsafe {
            *byte = AtomicU8::from_ptr(from).load(Ordering::Relaxed);
            from = from.add(1);
        }
    }
    from
}

/// Stores single bytes, and gives where the next one goes.
///
/// # Safety
/// `to` is mapped for `bytes.len()` bytes.
unsafe fn store_bytes(mut to: *mut u8, bytes: &[u8]) -> *mut u8 {
    for byte in bytes {
        // SAFETY: inside of what the caller vouches for.
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
        // SAFETY: the tests keep the bytes, and look at them between calls only.
        unsafe { Region::new(bytes.as_mut_ptr().cast(), bytes.len() * 8, is_exposed) }
    }

    #[test]
    fn any_piece_at_any_offset_is_copied_and_nothing_else() {
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
    fn what_is_outside_or_not_aligned_is_a_fault() {
        let mut bytes = [0_u64; 2];
        let region = region(&mut bytes, true);
        assert_eq!(ProcessMemory.read(&region, 9, &mut [0; 8]), Err(Fault));
        assert_eq!(ProcessMemory.write(&region, u64::MAX, &[0; 2]), Err(Fault));
        assert_eq!(ProcessMemory.fetch_add(&region, 4, 1), Err(Fault));
        assert_eq!(ProcessMemory.fetch_add(&region, 16, 1), Err(Fault));
    }

    #[test]
    fn atomics_tell_what_was_there() {
        let mut bytes = [5_u64; 2];
        let region = region(&mut bytes, true);
        assert_eq!(ProcessMemory.compare_swap(&region, 8, 4, 9), Ok(5));
        assert_eq!(ProcessMemory.compare_swap(&region, 8, 5, 9), Ok(5));
        assert_eq!(ProcessMemory.fetch_add(&region, 8, u64::MAX), Ok(9));
        assert_eq!(ProcessMemory.fetch_add(&region, 8, 0), Ok(8));
        assert_eq!(bytes, [5, 8]);
    }
}
