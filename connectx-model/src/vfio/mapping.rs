//! [`Mapping`]: part of the guest's memory, mapped from a file that the client has passed.
//!
//! Invariant: bytes are copied, never borrowed, because the guest's processors write the same
//! memory at the same time.
//!
//! Invariant: an aligned value of 4 or 8 bytes is accessed in one piece, so that indexes and owner
//! bits are never torn.
//!
//! # Ordering
//! An acquire fence follows each read, so entries counted by a doorbell record are read no older
//! than the record. [`Mapping::publish`] issues a release fence before it writes the last 4 bytes:
//! a reader that observes these also observes all earlier writes.
//!
//! # Safety
//! This is the only file of the crate with unsafe code. Its proof rests on these facts:
//! - a `Mapping` owns its range of addresses from `mmap` to its drop, and hands out neither
//!   pointers nor references;
//! - every access is within `len`, which [`Mapping::piece`] checks for every public method;
//! - the memory is accessed only with atomic operations, because others write it at the same time.
//!   These are other processes or a guest: in this process only one thread accesses it, so accesses
//!   of different sizes do not race.
//!
//! One case remains: the file's size is checked when the file is mapped, so a client that shrinks
//! its file later kills this process (SIGBUS). A guest cannot do so, and QEMU's memory files are
//! sealed against it. If a client ends, no harm is done, because the mapping keeps the file alive.

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// A range of this process's memory, mapped from a file.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

impl Mapping {
    /// Maps `len` bytes of a file, starting at `offset`.
    ///
    /// # Errors
    /// `EINVAL` if the range is empty or exceeds the file or the address space; any errno of
    /// `fstat` and `mmap`.
    pub(super) fn new(file: impl AsFd, offset: u64, len: u64, writable: bool) -> Result<Self, Errno> {
        let size = u64::try_from(rustix::fs::fstat(&file)?.st_size).map_err(|_| Errno::INVAL)?;
        let end = offset.checked_add(len).ok_or(Errno::INVAL)?;
        let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        if len == 0 || end > size || isize::try_from(len).is_err() {
            return Err(Errno::INVAL);
        }
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, writable);
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, offset) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len, writable })
    }

    /// Returns the length of the mapping, in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the memory is writable.
    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Copies bytes from the mapping, starting at offset `at`; `None` if the range exceeds the
    /// mapping.
    pub(super) fn read(&self, at: usize, into: &mut [u8]) -> Option<()> {
        let place = self.piece(at, into.len())?;
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            // SAFETY: `piece` found `into.len()` bytes at `place`, and `done` is less than that.
            let from = unsafe { place.add(done) };
            done += load(from, rest);
        }
        fence(Ordering::Acquire);
        Some(())
    }

    /// Copies bytes to the mapping, starting at offset `at`; `None` if the range exceeds the
    /// mapping.
    pub(super) fn write(&self, at: usize, from: &[u8]) -> Option<()> {
        let place = self.piece(at, from.len()).filter(|_| self.writable)?;
        let mut done = 0;
        while let Some(rest) = from.get(done..).filter(|rest| !rest.is_empty()) {
            // SAFETY: `piece` found `from.len()` bytes at `place`, and `done` is less than that.
            let to = unsafe { place.add(done) };
            done += store(to, rest);
        }
        Some(())
    }

    /// Same as [`write`](Self::write), but a reader that observes the last 4 bytes also observes
    /// all others.
    pub(super) fn publish(&self, at: usize, from: &[u8]) -> Option<()> {
        self.piece(at, from.len())?;
        let (first, last) = from.split_at(from.len().saturating_sub(4));
        self.write(at, first)?;
        fence(Ordering::Release);
        self.write(at + first.len(), last)
    }

    /// Stores `swap` in the 8 bytes at `at` if these equal `compare`. Returns the previous value,
    /// or `None` if the 8 bytes exceed the mapping or are misaligned.
    pub(super) fn compare_swap(&self, at: usize, compare: u64, swap: u64) -> Option<u64> {
        let (Ok(old) | Err(old)) =
            self.word(at)?.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
        Some(old)
    }

    /// Adds `add` to the 8 bytes at `at`. Returns the previous value, or `None` if the 8 bytes
    /// exceed the mapping or are misaligned.
    pub(super) fn fetch_add(&self, at: usize, add: u64) -> Option<u64> {
        Some(self.word(at)?.fetch_add(add, Ordering::SeqCst))
    }

    fn word(&self, at: usize) -> Option<&AtomicU64> {
        let place = self.piece(at, 8).filter(|place| place.cast::<u64>().is_aligned() && self.writable)?;
        // SAFETY: `piece` found 8 bytes, they are aligned, they stay mapped as long as `self` is
        // borrowed, and they are only accessed atomically.
        Some(unsafe { AtomicU64::from_ptr(place.cast().as_ptr()) })
    }

    /// Returns the address of the `len` bytes at offset `at`; `None` if they exceed the mapping.
    fn piece(&self, at: usize, len: usize) -> Option<NonNull<u8>> {
        let end = at.checked_add(len)?;
        // SAFETY: `at` is not above `len`, so the pointer stays in the mapping or at its end; `len`
        // fits an isize.
        (end <= self.len).then(|| unsafe { self.base.add(at) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range came from mmap in `new`, and nothing points into it, because no method
        // returns a value that outlives a call and refers to it.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}

/// Copies one unit of 1, 4 or 8 bytes from mapped memory, the largest that is aligned and fits
/// `into`. Returns the unit's size. `into` is not empty, and `from` has as many mapped bytes
/// (guaranteed to callers by `piece`).
fn load(from: NonNull<u8>, into: &mut [u8]) -> usize {
    match into.len() {
        8.. if from.cast::<u64>().is_aligned() => {
            // SAFETY: 8 bytes are mapped there, aligned, and only accessed atomically.
            let word = unsafe { AtomicU64::from_ptr(from.cast().as_ptr()) };
            into[..8].copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            8
        }
        4.. if from.cast::<u32>().is_aligned() => {
            // SAFETY: 4 bytes are mapped there, aligned, and only accessed atomically.
            let word = unsafe { AtomicU32::from_ptr(from.cast().as_ptr()) };
            into[..4].copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            4
        }
        _ => {
            // SAFETY: a byte is mapped there, and only accessed atomically.
            into[0] = unsafe { AtomicU8::from_ptr(from.as_ptr()) }.load(Ordering::Relaxed);
            1
        }
    }
}

/// Same as [`load`], but copies in the other direction.
fn store(to: NonNull<u8>, from: &[u8]) -> usize {
    if let Some(bytes) = from.first_chunk().filter(|_| to.cast::<u64>().is_aligned()) {
        // SAFETY: 8 bytes are mapped there, aligned, and only accessed atomically.
        let word = unsafe { AtomicU64::from_ptr(to.cast().as_ptr()) };
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        8
    } else if let Some(bytes) = from.first_chunk().filter(|_| to.cast::<u32>().is_aligned()) {
        // SAFETY: 4 bytes are mapped there, aligned, and only accessed atomically.
        let word = unsafe { AtomicU32::from_ptr(to.cast().as_ptr()) };
        word.store(u32::from_ne_bytes(*bytes), Ordering::Relaxed);
        4
    } else {
        // SAFETY: a byte is mapped there, and only accessed atomically.
        unsafe { AtomicU8::from_ptr(to.as_ptr()) }.store(from[0], Ordering::Relaxed);
        1
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn memory(len: u64) -> OwnedFd {
        let file = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len).unwrap();
        file
    }

    #[test]
    fn bytes_at_every_alignment_come_back() {
        let mapping = Mapping::new(memory(0x1000), 0, 0x1000, true).unwrap();
        for at in 0..16 {
            for len in 0..40 {
                let bytes: Vec<u8> = (1..=len).collect();
                mapping.write(at, &[0xee; 64]).unwrap();
                mapping.write(at, &bytes).unwrap();
                let mut back = vec![0; bytes.len() + 1];
                mapping.read(at, &mut back).unwrap();
                assert_eq!(back, [&bytes[..], &[0xee]].concat(), "{len} bytes at {at}");
            }
        }
    }

    #[test]
    fn two_mappings_of_a_file_see_each_others_bytes() {
        let file = memory(0x3000);
        let whole = Mapping::new(&file, 0, 0x3000, true).unwrap();
        let last = Mapping::new(&file, 0x2000, 0x1000, false).unwrap();
        whole.publish(0x2010, b"0123456789abcdef").unwrap();
        let mut seen = [0; 16];
        last.read(0x10, &mut seen).unwrap();
        assert_eq!(&seen, b"0123456789abcdef");
    }

    #[test]
    fn a_range_beyond_the_file_is_not_mapped() {
        let file = memory(0x2000);
        for (offset, len) in
            [(0, 0x2001), (0x1000, 0x2000), (0, 0), (u64::MAX - 0xfff, 0x2000), (0x2000, u64::MAX)]
        {
            assert_eq!(
                Mapping::new(&file, offset, len, true).err(),
                Some(Errno::INVAL),
                "{offset:#x} {len:#x}"
            );
        }
    }

    #[test]
    fn nothing_outside_is_touched() {
        let mapping = Mapping::new(memory(0x1000), 0, 0x1000, true).unwrap();
        assert_eq!(mapping.read(0xff9, &mut [0; 8]), None);
        assert_eq!(mapping.write(usize::MAX, &[0; 8]), None);
        assert_eq!(mapping.publish(0xffc, &[1; 8]), None);
        assert_eq!(mapping.fetch_add(0xffc, 1), None);
        let mut end = [9; 4];
        mapping.read(0xffc, &mut end).unwrap();
        assert_eq!(end, [0; 4]);
    }

    #[test]
    fn a_read_only_mapping_is_not_written() {
        let mapping = Mapping::new(memory(0x1000), 0, 0x1000, false).unwrap();
        assert_eq!(mapping.write(0, &[1]), None);
        assert_eq!(mapping.publish(0, &[1; 8]), None);
        assert_eq!(mapping.compare_swap(0, 0, 1), None);
    }

    #[test]
    fn atomics_require_alignment_and_return_the_previous_value() {
        let mapping = Mapping::new(memory(0x1000), 0, 0x1000, true).unwrap();
        assert_eq!(mapping.fetch_add(8, 5), Some(0));
        assert_eq!(mapping.compare_swap(8, 5, 7), Some(5));
        assert_eq!(mapping.compare_swap(8, 5, 9), Some(7));
        assert_eq!(mapping.fetch_add(8, 0), Some(7));
        assert_eq!(mapping.fetch_add(4, 1), None);
    }
}
