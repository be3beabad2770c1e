//! [`StableMemory`] and [`StableBytes`]: program memory that stays in place and can be registered.
//!
//! # Safety
//! Implements the traits for types whose bytes do not move with the value.
#![allow(unsafe_code)]

use std::sync::Arc;

use memmap2::{Mmap, MmapMut};

/// Program memory that can be registered for reading and writing. Its bytes do not move with the
/// value.
///
/// # Safety
/// From the call of [`stable_mut_ptr`](Self::stable_mut_ptr) until the value is moved, used or
/// dropped, the `stable_len()` bytes at that address must stay mapped, initialised and writable,
/// and must be accessed only through that pointer. `stable_len` must always return the same number.
pub unsafe trait StableMemory: Send + 'static {
    /// Returns the address of the first byte. The pointer is valid for reads and writes of all
    /// bytes.
    fn stable_mut_ptr(&mut self) -> *mut u8;

    /// Returns the length of the memory in bytes.
    fn stable_len(&self) -> usize;
}

/// Program memory that can be registered for reading. Its bytes do not move with the value.
///
/// # Safety
/// From the call of [`stable_ptr`](Self::stable_ptr) until the value is moved, used or dropped, the
/// `stable_len()` bytes at that address must stay mapped and initialised, and nothing may write
/// them. `stable_len` must always return the same number.
pub unsafe trait StableBytes: Send + Sync + 'static {
    /// Returns the address of the first byte. The pointer is valid for reads of all bytes.
    fn stable_ptr(&self) -> *const u8;

    /// Returns the length of the memory in bytes.
    fn stable_len(&self) -> usize;
}

// SAFETY: the bytes are on the heap, where they stay until the vector is used or dropped; `len` of
// them are initialised.
unsafe impl StableMemory for Vec<u8> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        Self::as_mut_ptr(self)
    }

    fn stable_len(&self) -> usize {
        Self::len(self)
    }
}

// SAFETY: the bytes are on the heap, where they stay until the box is used or dropped.
unsafe impl StableMemory for Box<[u8]> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        <[u8]>::as_mut_ptr(self)
    }

    fn stable_len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: the mapping stays until the value is dropped. The caller of the unsafe constructor
// promised that nothing else changes the file.
unsafe impl StableMemory for MmapMut {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        <[u8]>::as_mut_ptr(self)
    }

    fn stable_len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: the bytes are on the heap, and nothing writes them while the value is owned and not used.
unsafe impl StableBytes for Vec<u8> {
    fn stable_ptr(&self) -> *const u8 {
        Self::as_ptr(self)
    }

    fn stable_len(&self) -> usize {
        Self::len(self)
    }
}

// SAFETY: as for a vector.
unsafe impl StableBytes for Box<[u8]> {
    fn stable_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }

    fn stable_len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: the bytes live as long as any share of them, and nothing writes shared bytes.
unsafe impl StableBytes for Arc<[u8]> {
    fn stable_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }

    fn stable_len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: the bytes live as long as the process, and nothing writes borrowed bytes.
unsafe impl StableBytes for &'static [u8] {
    fn stable_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }

    fn stable_len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: the mapping stays until the value is dropped. The caller of the unsafe constructor
// promised that nothing changes the file.
unsafe impl StableBytes for Mmap {
    fn stable_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }

    fn stable_len(&self) -> usize {
        <[u8]>::len(self)
    }
}
