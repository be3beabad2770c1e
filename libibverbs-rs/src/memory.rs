//! Memory that safe code posts: [`Memory`], [`PostMemory`], and the program's own, [`StableMemory`]
//! and [`StableBytes`].
//!
//! # Safety
//! The implementations of the unsafe traits here are for types whose bytes do not move when the
//! value does.
#![allow(unsafe_code)]

use core::ops::RangeBounds;
use std::sync::Arc;

use memmap2::{Mmap, MmapMut};
use verbs_core::types::Sge;

use crate::pd::PdId;
use crate::qp::post::PostBufReason;
use crate::{Buf, Exposed, FrozenBuf};
use sealed::Registered;

/// Memory of a request, as a completion or the end of a queue pair returns it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Memory {
    /// A buffer of its own.
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

/// Memory that safe code can post: [`Buf`], [`FrozenBuf`], [`Exposed`], or [`Memory`] where kinds
/// mix.
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

/// Calls a method of whatever memory it is.
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

/// A part of memory as a scatter/gather element.
#[inline]
fn element(range: impl RangeBounds<usize>, addr: u64, len: usize, lkey: u32) -> Result<Sge, PostBufReason> {
    let (offset, wanted) = crate::mr::within(range, len)
        .map_err(|(start, end)| PostBufReason::OutOfRange { start, end, len })?;
    let length = u32::try_from(wanted).map_err(|_| PostBufReason::TooLong { len: wanted })?;
    Ok(Sge { addr: addr + offset as u64, length, lkey })
}

/// Memory of the program's that can be registered and written: it stays where it is.
///
/// # Safety
/// From the call of [`as_mut_ptr`](Self::as_mut_ptr) until the value is moved, used or dropped, the
/// `len()` bytes at that address stay mapped, initialised and writable, and are accessed only
/// through that pointer. `len` returns the same number each time.
pub unsafe trait StableMemory: Send + 'static {
    /// Returns where the bytes start. The pointer may be used to read and write all of them.
    fn as_mut_ptr(&mut self) -> *mut u8;

    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Memory of the program's that can be registered and read: it stays where it is.
///
/// # Safety
/// From the call of [`as_ptr`](Self::as_ptr) until the value is moved, used or dropped, the `len()`
/// bytes at that address stay mapped and initialised, and nothing writes them. `len` returns the
/// same number each time.
pub unsafe trait StableBytes: Send + Sync + 'static {
    /// Returns where the bytes start. The pointer may be used to read all of them.
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

// SAFETY: the mapping stays until the value is dropped. The caller of its unsafe constructor
// promised that nothing else changes its file.
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

// SAFETY: the bytes live as long as any share of them, and nothing writes what is shared.
unsafe impl StableBytes for Arc<[u8]> {
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: the bytes live as long as the process, and nothing writes what is borrowed.
unsafe impl StableBytes for &'static [u8] {
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: the mapping stays until the value is dropped. The caller of its unsafe constructor
// promised that nothing changes its file.
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

    /// Memory that is registered. It keeps the kinds of memory closed.
    pub trait Registered: Sized {
        /// Returns whether the device may write it: receives, RDMA reads, results of atomics.
        fn is_writable(&self) -> bool;

        /// Returns the protection domain that it is registered in.
        fn pd(&self) -> PdId;

        /// Returns a part of it as a scatter/gather element.
        fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, PostBufReason>;

        /// Returns what was converted into [`Memory`] before.
        fn from_memory(memory: Memory) -> Option<Self>;
    }
}
