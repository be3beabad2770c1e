//! Memory borrowed for a scope, held by the program or by the table of memory in flight.
//!
//! # Safety
//! Justified in [`crate::qp::scope`]: a token becomes a reference again once no request uses it.

#![allow(unsafe_code)]

use core::fmt;
use core::ops::{Deref, DerefMut, RangeBounds};
use std::sync::Arc;

use verbs_core::fork::ForkLock;
use verbs_core::types::Sge;

use crate::handle::registry::PdId;
use crate::memory::post_error::{PostBufError, PostBufReason};
use crate::memory::{Memory, PostMemory, Registered, element};
use sealed::Flight;

/// Borrowed bytes the device may write: a `&mut [u8]` that posting consumes.
pub struct ScopedBuf<'scope> {
    pub(crate) bytes: &'scope mut [u8],
    pub(crate) name: Name,
}

/// Borrowed bytes the device only reads: a `&[u8]` that can be posted many times at once.
#[derive(Clone)]
pub struct ScopedBytes<'scope> {
    pub(crate) bytes: &'scope [u8],
    pub(crate) name: Name,
}

/// The borrowed memory of a request, returned by a completion or a rejected post.
/// [`Scope::reclaim`](crate::Scope::reclaim) makes the memory usable again. The type has no
/// lifetime, so `?` can return an error with such memory from a scope. Outside the scope, the
/// memory is of no use.
pub struct ScopedMemory {
    addr: usize,
    len: usize,
    pub(crate) name: Name,
    pub(crate) is_writable: bool,
    /// The token's share in its queue pair's count of requests in flight; `None` after a rejected
    /// post.
    _in_flight: Option<Flight>,
}

/// The registration that a handle or a token belongs to.
#[derive(Clone)]
pub(crate) struct Name {
    pub(crate) lkey: u32,
    pub(crate) pd: PdId,
    pub(crate) scope: Arc<()>,
}

/// Converts the error from posting a token into the error for the program. The request was not
/// queued, so the token no longer counts as in flight.
pub(crate) fn given_back(error: PostBufError<Token>) -> PostBufError<ScopedMemory> {
    let returned = error.returned.map(|token| ScopedMemory { _in_flight: None, ..token.0 });
    PostBufError { returned, reason: error.reason }
}

/// A token that is not yet in the table of memory in flight.
pub(crate) struct Token(pub(crate) ScopedMemory);

impl From<Token> for Memory {
    fn from(token: Token) -> Self {
        Self::Scoped(token.0)
    }
}

impl PostMemory for Token {}

impl Registered for Token {
    fn is_writable(&self) -> bool {
        self.0.is_writable
    }

    fn is_exposed(&self) -> bool {
        false
    }

    fn pd(&self) -> PdId {
        self.0.name.pd
    }

    fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, PostBufReason> {
        self.0.sge(range)
    }

    fn from_memory(memory: Memory) -> Option<Self> {
        ScopedMemory::from_memory(memory).map(Self)
    }
}

impl From<ScopedMemory> for Memory {
    fn from(memory: ScopedMemory) -> Self {
        Self::Scoped(memory)
    }
}

impl ScopedMemory {
    /// Returns an id that matches no protection domain, so only a [`ScopedQp`] accepts the memory.
    pub(crate) fn pd_id(&self) -> PdId {
        static NONE: ForkLock<Option<PdId>> = ForkLock::new(None);
        NONE.get_or_init(PdId::next)
    }
}

impl Registered for ScopedMemory {
    fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn is_exposed(&self) -> bool {
        false
    }

    fn pd(&self) -> PdId {
        self.pd_id()
    }

    fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, PostBufReason> {
        element(range, self.addr as u64, self.len, self.name.lkey)
    }

    fn from_memory(memory: Memory) -> Option<Self> {
        match memory {
            Memory::Scoped(memory) => Some(memory),
            _ => None,
        }
    }
}

/// Memory borrowed for a scope: [`ScopedBuf`] or [`ScopedBytes`].
pub trait Lent<'scope>: sealed::Lent<'scope> {}

/// Defines a handle to memory borrowed for a scope, given the function that converts its reference
/// to raw parts.
macro_rules! lent {
    ($($handle:ident: $start:ident, writable: $is_writable:literal;)*) => {$(
        impl<'scope> Lent<'scope> for $handle<'scope> {}

        impl<'scope> sealed::Lent<'scope> for $handle<'scope> {
            fn into_memory(self, in_flight: Flight) -> ScopedMemory {
                let Self { bytes, name } = self;
                let (addr, len) = (bytes.$start().expose_provenance(), bytes.len());
                ScopedMemory { addr, len, name, is_writable: $is_writable, _in_flight: Some(in_flight) }
            }
        }
    )*};
}

lent! {
    ScopedBuf: as_mut_ptr, writable: true;
    ScopedBytes: as_ptr, writable: false;
}

impl ScopedBuf<'_> {
    /// Turns the token of an ended or never queued request back into its handle.
    ///
    /// # Safety
    /// The token must have been made from such a handle with the same lifetime.
    pub(crate) unsafe fn from_memory(memory: ScopedMemory) -> Self {
        let ScopedMemory { addr, len, name, .. } = memory;
        // SAFETY: the caller passes the token made from this very reference, and no request uses
        // it.
        let bytes =
            unsafe { core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut(addr), len) };
        Self { bytes, name }
    }
}

impl Deref for ScopedBuf<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl DerefMut for ScopedBuf<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

impl Deref for ScopedBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

macro_rules! debug {
    ($($type:ty: $name:literal, $len:expr;)*) => {$(
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let len: fn(&Self) -> usize = $len;
                f.debug_struct($name).field("len", &len(self)).finish_non_exhaustive()
            }
        }
    )*};
}

debug! {
    ScopedBuf<'_>: "ScopedBuf", |buf| buf.bytes.len();
    ScopedBytes<'_>: "ScopedBytes", |bytes| bytes.bytes.len();
    ScopedMemory: "ScopedMemory", |memory| memory.len;
}

pub(crate) mod sealed {
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;

    use super::ScopedMemory;

    /// A token's share of its queue pair's count of requests in flight.
    pub struct Flight(Arc<AtomicUsize>);

    impl Flight {
        pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
            count.fetch_add(1, Ordering::Relaxed);
            Self(Arc::clone(count))
        }
    }

    impl Drop for Flight {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Release);
        }
    }

    /// The sealed supertrait of the public `Lent`, so that no other crate can implement `Lent`.
    pub trait Lent<'scope>: Sized {
        /// Converts a handle into the token of a request.
        fn into_memory(self, in_flight: Flight) -> ScopedMemory;
    }
}
