//! [`Exposed`]: memory that peers may touch.
//!
//! While it is exposed there is no `&[u8]` of it, for a peer may write at any time: only copies in and out, byte by byte
//! as they are found. A copy can be torn: what was written by two peers, or half written, arrives as it is.
//!
//! # Safety
//! The unsafe code here registers memory for peers, and copies from and to it.

#![allow(unsafe_code)]

use core::fmt;

use bitflags::bitflags;
use verbs_core::Error;
use verbs_core::provider::{Erased, MrOps, NamedProvider, Provider};
use verbs_core::types::AccessFlags;

use crate::live::Live;
use crate::{Buf, Pd};

bitflags! {
    /// What peers may do to exposed memory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RemoteAccess: u32 {
        /// Read it.
        const READ = AccessFlags::REMOTE_READ.bits();
        /// Write it.
        const WRITE = AccessFlags::REMOTE_WRITE.bits();
        /// Run atomics on it.
        const ATOMIC = AccessFlags::REMOTE_ATOMIC.bits();
    }
}

/// What a queue pair must allow for it: [`InitAttr::access`](crate::InitAttr::access).
impl From<RemoteAccess> for AccessFlags {
    fn from(access: RemoteAccess) -> Self {
        Self::from_bits_retain(access.bits())
    }
}

/// Memory that peers may touch, while this lives and as far as it was exposed. Made by [`Pd::expose`].
///
/// Exactly the bytes of the [`Buf`] are exposed, under a key of their own: its neighbours are not. The queue pair must
/// allow the access too ([`InitAttr::access`](crate::InitAttr::access)).
pub struct Exposed<P: Provider = Erased> {
    live: Live<P::Mr, Buf>,
}

/// What a peer must be told to reach exposed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMr {
    /// Where it starts.
    pub addr: u64,
    /// How long it is, in bytes.
    pub length: u64,
    /// The key.
    pub rkey: u32,
}

impl<P: Provider> Exposed<P> {
    pub(crate) fn new(pd: &Pd<P>, buf: Buf, access: RemoteAccess) -> Result<Self, (Buf, Error)> {
        let access = AccessFlags::from(access) | AccessFlags::LOCAL_WRITE;
        // SAFETY: the bytes are the `Buf`'s, which `Live` keeps until the region is deregistered; until then they are
        // accessed through `read_at` and `write_at` only.
        let raw = unsafe { pd.register(buf.start().as_ptr(), buf.len(), buf.addr(), access) };
        match raw {
            Ok(raw) => Ok(Self { live: Live::new(raw, buf) }),
            Err(error) => Err((buf, error)),
        }
    }

    /// What a peer must be told to reach it.
    pub fn remote(&self) -> RemoteMr {
        RemoteMr { addr: self.addr(), length: self.len() as u64, rkey: self.rkey() }
    }

    /// Where it starts, as peers address it.
    pub fn addr(&self) -> u64 {
        self.live.kept().addr()
    }

    /// How long it is, in bytes.
    pub fn len(&self) -> usize {
        self.live.kept().len()
    }

    /// Is it of no length?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key for peers.
    pub fn rkey(&self) -> u32 {
        self.live.get().rkey()
    }

    /// Copies out what is there now, from `offset` on.
    ///
    /// # Panics
    /// When it would read beyond the end.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        let start = self.live.kept().start();
        for (i, byte) in into.iter_mut().enumerate() {
            // SAFETY: `offset + i` is inside of the `Buf` that is kept. The bytes are initialised, and any value is a u8.
            // Writers in this process need `&mut self`; the device is none that Rust knows of, hence volatile.
            *byte = unsafe { start.add(offset + i).read_volatile() };
        }
    }

    /// Copies in, from `offset` on.
    ///
    /// # Panics
    /// When it would write beyond the end.
    pub fn write_at(&mut self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        let start = self.live.kept().start();
        for (i, byte) in from.iter().enumerate() {
            // SAFETY: `offset + i` is inside of the `Buf` that is kept, and `&mut self` is the only access of this process.
            unsafe { start.add(offset + i).write_volatile(*byte) };
        }
    }

    /// Takes the key back from peers, and gives the memory back. Dropping does the same and frees the memory.
    ///
    /// # Errors
    /// The memory, still exposed, and what the kernel answers.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn unexpose(self) -> Result<Buf, (Self, Error)> {
        self.live.close().map_err(|(live, error)| (Self { live }, error))
    }

    /// The provider's own memory region, for what it has beyond verbs.
    pub fn raw(&self) -> &P::Mr {
        self.live.get()
    }

    fn check(&self, offset: usize, len: usize) {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len()), "{len} bytes at {offset} of {}", self.len());
    }
}

impl Exposed<Erased> {
    /// The same memory with its provider named.
    ///
    /// # Errors
    /// The memory, when it is of another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Exposed<P>, Self> {
        match self.live.try_map(|raw| raw.downcast::<P::Mr>()) {
            Ok(live) => Ok(Exposed { live }),
            Err(live) => Err(Self { live }),
        }
    }
}

impl<P: Provider> fmt::Debug for Exposed<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Exposed").field(&self.remote()).finish()
    }
}
