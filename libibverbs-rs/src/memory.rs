//! Memory that safe code posts: [`Memory`] and [`PostMemory`]; and memory of the program that can
//! be registered: [`StableMemory`] and [`StableBytes`].
//!
//! # Safety
//! The unsafe traits here are implemented for types whose bytes do not move when the value does.
#![allow(unsafe_code)]

use core::ops::RangeBounds;
use std::sync::Arc;

use memmap2::{Mmap, MmapMut};
use verbs_core::types::Sge;

use crate::pd::PdId;
use crate::qp::post::PostBufReason;
use crate::{Buf, Exposed, FrozenBuf};
use sealed::Registered;

/// The memory of a request, which a completion or the end of its queue pair returns.
#[derive(Debug)]
#[non_exhaustive]
pub enum Memory {
    /// A buffer.
    Buf(Buf),
    /// A share of a read-only buffer.
    Frozen(FrozenBuf),
    /// A share of memory that peers may access.
    Exposed(Exposed),
}

impl Memory {
    /// Returns the buffer; `None` for memory of another kind.
    pub fn into_buf(self) -> Option<Buf> {
        Buf::from_memory(self)
    }
}

/// Memory that safe code can post: [`Buf`], [`FrozenBuf`], [`Exposed`], or [`Memory`] for a mix of
/// them.
pub trait PostMemory: Registered + Into<Memory> {}

/// Implements [`PostMemory`] for a kind of memory by its own `pd`, `len`, `addr` and `lkey`.
macro_rules! post_memory {
    ($($kind:ident: $type:ident, $writable:expr;)*) => {
        $(
            impl From<$type> for Memory {
                #[inline]
                fn from(memory: $type) -> Self {
                    Self::$kind(memory)
                }
            }

            impl PostMemory for $type {}

            impl Registered for $type {
                #[inline]
                fn is_writable(&self) -> bool {
                    $writable
                }

                #[inline]
                fn pd(&self) -> PdId {
                    self.pd_id()
                }

                #[inline]
                fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, PostBufReason> {
                    element(range, self.addr(), self.len(), self.lkey())
                }

                #[inline]
                fn from_memory(memory: Memory) -> Option<Self> {
                    match memory {
                        Memory::$kind(memory) => Some(memory),
                        _ => None,
                    }
                }
            }
        )*
    };
}

post_memory! {
    Buf: Buf, true;
    Frozen: FrozenBuf, false;
    Exposed: Exposed, true;
}

impl PostMemory for Memory {}

/// Calls a method of the memory, of any kind.
macro_rules! each {
    ($memory:expr, $inner:ident => $call:expr) => {
        match $memory {
            Self::Buf($inner) => $call,
            Self::Frozen($inner) => $call,
            Self::Exposed($inner) => $call,
        }
    };
}

impl Registered for Memory {
    fn is_writable(&self) -> bool {
        each!(self, memory => memory.is_writable())
    }

    fn pd(&self) -> PdId {
        each!(self, memory => memory.pd_id())
    }

    fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, PostBufReason> {
        each!(self, memory => Registered::sge(memory, range))
    }

    fn from_memory(memory: Memory) -> Option<Self> {
        Some(memory)
    }
}

/// Returns a part of memory as a scatter/gather element.
///
/// # Errors
/// - [`PostBufReason::OutOfRange`] if the range lies outside the memory.
/// - [`PostBufReason::TooLong`] if it is longer than 4 GiB - 1.
#[inline]
fn element(range: impl RangeBounds<usize>, addr: u64, len: usize, lkey: u32) -> Result<Sge, PostBufReason> {
    let (offset, wanted) = crate::mr::within(range, len)
        .map_err(|(start, end)| PostBufReason::OutOfRange { start, end, len })?;
    let length = u32::try_from(wanted).map_err(|_| PostBufReason::TooLong { len: wanted })?;
    Ok(Sge { addr: addr + offset as u64, length, lkey })
}

/// Memory of the program that can be registered and written. Its bytes do not move with the value.
///
/// # Safety
/// From the call of [`as_mut_ptr`](Self::as_mut_ptr) until the value is moved, used or dropped, the
/// `len()` bytes at that address stay mapped, initialised and writable, and are accessed only
/// through that pointer. `len` always returns the same number.
pub unsafe trait StableMemory: Send + 'static {
    /// Returns the address of the first byte. The pointer is valid for reads and writes of all
    /// bytes.
    fn as_mut_ptr(&mut self) -> *mut u8;

    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Memory of the program that can be registered and read. Its bytes do not move with the value.
///
/// # Safety
/// From the call of [`as_ptr`](Self::as_ptr) until the value is moved, used or dropped, the `len()`
/// bytes at that address stay mapped and initialised, and nothing writes them. `len` always returns
/// the same number.
pub unsafe trait StableBytes: Send + Sync + 'static {
    /// Returns the address of the first byte. The pointer is valid for reads of all bytes.
    fn as_ptr(&self) -> *const u8;

    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

// SAFETY: the bytes are on the heap, where they stay until the vector is used or dropped; `len` of
// them are initialised.
unsafe impl StableMemory for Vec<u8> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        Self::as_mut_ptr(self)
    }

    fn len(&self) -> usize {
        Self::len(self)
    }
}

// SAFETY: the bytes are on the heap, where they stay until the box is used or dropped.
unsafe impl StableMemory for Box<[u8]> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        <[u8]>::as_mut_ptr(self)
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: the mapping stays until the value is dropped. The caller of the unsafe constructor
// promised that nothing else changes the file.
unsafe impl StableMemory for MmapMut {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        <[u8]>::as_mut_ptr(self)
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: the bytes are on the heap, and nothing writes them while the value is owned and not used.
unsafe impl StableBytes for Vec<u8> {
    fn as_ptr(&self) -> *const u8 {
        Self::as_ptr(self)
    }

    fn len(&self) -> usize {
        Self::len(self)
    }
}

// SAFETY: as for a vector.
unsafe impl StableBytes for Box<[u8]> {
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: the bytes live as long as any share of them, and nothing writes shared bytes.
unsafe impl StableBytes for Arc<[u8]> {
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: the bytes live as long as the process, and nothing writes borrowed bytes.
unsafe impl StableBytes for &'static [u8] {
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: the mapping stays until the value is dropped. The caller of the unsafe constructor
// promised that nothing changes the file.
unsafe impl StableBytes for Mmap {
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

mod sealed {
    use core::ops::RangeBounds;

    use verbs_core::types::Sge;

    use super::{Memory, PostBufReason};
    use crate::pd::PdId;

    /// Registered memory. The private trait keeps the set of its kinds closed.
    pub trait Registered: Sized {
        /// Returns whether the device may write the memory: receives, RDMA reads, results of
        /// atomics.
        fn is_writable(&self) -> bool;

        /// Returns the protection domain of its registration.
        fn pd(&self) -> PdId;

        /// Returns a part of it as a scatter/gather element.
        ///
        /// # Errors
        /// - [`PostBufReason::OutOfRange`] if the range lies outside the memory.
        /// - [`PostBufReason::TooLong`] if it is longer than 4 GiB - 1.
        fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, PostBufReason>;

        /// Converts back from [`Memory`]; `None` for memory of another kind.
        fn from_memory(memory: Memory) -> Option<Self>;
    }
}
