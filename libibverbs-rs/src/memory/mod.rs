//! [`Memory`] and [`PostMemory`]: memory that safe code posts.
//!
//! | file | content |
//! |---|---|
//! | [`window`], [`mw`] | peer access granted by requests: windows, raw windows |
//! | [`exposed`], [`remote`] | memory exposed to peers; a peer's memory |
//! | [`buffer`], [`numbers`] | memory owned by the program or in flight, and viewed as numbers |
//! | [`frozen`] | memory shared read-only |
//! | [`scoped`] | memory borrowed for a scope |
//! | [`stable`] | program memory that stays in place |
//! | [`mr`] | raw regions |
//! | [`dm`] | device memory and DMA handles |
//! | [`post_error`] | the error of posting, which returns the memory |

pub(crate) mod buffer;
pub(crate) mod dm;
pub(crate) mod exposed;
pub(crate) mod frozen;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod numbers;
pub(crate) mod post_error;
pub(crate) mod remote;
pub(crate) mod scoped;
pub(crate) mod stable;
pub(crate) mod window;

use core::ops::RangeBounds;

use verbs_core::types::Sge;

use crate::handle::registry::PdId;
use crate::memory::buffer::Buf;
use crate::memory::exposed::Exposed;
use crate::memory::frozen::FrozenBuf;
use crate::memory::post_error::PostBufReason;
use crate::memory::scoped::ScopedMemory;
use crate::memory::window::Window;
pub(crate) use sealed::Registered;

/// The memory of a request, returned by its completion or when its queue pair is reset or
/// destroyed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Memory {
    /// A buffer, of which no other share exists.
    Buf(Buf),
    /// A share of a read-only buffer.
    Frozen(FrozenBuf),
    /// A share of exposed memory.
    Exposed(Exposed),
    /// A window whose bind or revocation was in flight. It holds a share of its memory but cannot
    /// be posted as memory.
    Window(Window),
    /// Memory borrowed for a scope. [`Scope::reclaim`](crate::Scope::reclaim) makes it usable
    /// again.
    Scoped(ScopedMemory),
}

impl Memory {
    /// Returns the buffer; `None` for memory of another kind.
    pub fn into_buf(self) -> Option<Buf> {
        Buf::from_memory(self)
    }

    /// Returns the window; `None` for any kind of memory.
    pub fn into_window(self) -> Option<Window> {
        match self {
            Self::Window(window) => Some(window),
            _ => None,
        }
    }
}

/// Memory for safe posting: [`Buf`], [`FrozenBuf`], [`Exposed`], or [`Memory`] for a mix of them.
pub trait PostMemory: Registered + Into<Memory> {}

/// Implements [`PostMemory`] for a kind of memory through its own `pd`, `len`, `addr` and `lkey`.
macro_rules! post_memory {
    ($($kind:ident: $type:ident, $writable:expr, $exposed:expr;)*) => {
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
                fn is_exposed(&self) -> bool {
                    $exposed
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
    Buf: Buf, true, false;
    Frozen: FrozenBuf, false, false;
    Exposed: Exposed, true, true;
}

impl PostMemory for Memory {}

impl From<Window> for Memory {
    fn from(window: Window) -> Self {
        Self::Window(window)
    }
}

/// Calls a method on memory of any kind.
macro_rules! each {
    ($memory:expr, $inner:ident => $call:expr) => {
        match $memory {
            Self::Buf($inner) => $call,
            Self::Frozen($inner) => $call,
            Self::Exposed($inner) => $call,
            Self::Window($inner) => $call,
            Self::Scoped($inner) => $call,
        }
    };
}

impl Registered for Memory {
    fn is_writable(&self) -> bool {
        match self {
            Self::Buf(memory) => Registered::is_writable(memory),
            Self::Frozen(memory) => memory.is_writable(),
            Self::Exposed(memory) => memory.is_writable(),
            Self::Scoped(memory) => memory.is_writable(),
            // `sge` rejects it.
            Self::Window(_) => true,
        }
    }

    fn is_exposed(&self) -> bool {
        matches!(self, Self::Exposed(_))
    }

    fn pd(&self) -> PdId {
        each!(self, memory => memory.pd_id())
    }

    fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, PostBufReason> {
        match self {
            Self::Buf(memory) => memory.sge(range),
            Self::Frozen(memory) => memory.sge(range),
            Self::Exposed(memory) => memory.sge(range),
            Self::Scoped(memory) => memory.sge(range),
            Self::Window(_) => Err(PostBufReason::NotMemory),
        }
    }

    fn from_memory(memory: Memory) -> Option<Self> {
        Some(memory)
    }
}

/// Returns a part of memory as a scatter/gather element.
///
/// # Errors
/// - [`PostBufReason::OutOfRange`] if the range lies outside the memory.
/// - [`PostBufReason::TooLong`] if the range is longer than 4 GiB - 1.
#[inline]
pub(crate) fn element(
    range: impl RangeBounds<usize>,
    addr: u64,
    len: usize,
    lkey: u32,
) -> Result<Sge, PostBufReason> {
    let (offset, wanted) =
        mr::within(range, len).map_err(|(start, end)| PostBufReason::OutOfRange { start, end, len })?;
    let length = u32::try_from(wanted).map_err(|_| PostBufReason::TooLong { len: wanted })?;
    Ok(Sge { addr: addr + offset as u64, length, lkey })
}

mod sealed {
    use core::ops::RangeBounds;

    use verbs_core::types::Sge;

    use super::{Memory, PostBufReason};
    use crate::handle::registry::PdId;

    /// Registered memory. The trait is private, so no other crate can add kinds of memory.
    pub trait Registered: Sized {
        /// Returns whether the device may write the memory, as receives, RDMA reads and atomics do.
        fn is_writable(&self) -> bool;

        /// Returns whether peers and other threads may access the memory, so that no code may read
        /// it as plain bytes.
        fn is_exposed(&self) -> bool;

        /// Returns the id of the protection domain in which the memory is registered.
        fn pd(&self) -> PdId;

        /// Returns a part of the memory as a scatter/gather element.
        ///
        /// # Errors
        /// - [`PostBufReason::OutOfRange`] if the range lies outside the memory.
        /// - [`PostBufReason::TooLong`] if the range is longer than 4 GiB - 1.
        fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, PostBufReason>;

        /// Converts back from [`Memory`]; `None` for memory of another kind.
        fn from_memory(memory: Memory) -> Option<Self>;
    }
}
