//! [`Exposed`]: memory that peers may touch.
//!
//! While it is exposed there is no `&[u8]` of it, for a peer may write at any time: only copies in and out, as the bytes are
//! found. A copy can be torn: what was written by two peers, or half written, arrives as it is; aligned words of 8 bytes
//! are copied whole. The copies are relaxed atomic accesses, since a device may be another thread of this process
//! (provider-soft), which accesses such memory in the same way: see [`verbs_core::exposed`].
//!
//! # Safety
//! The unsafe code here registers memory for peers, and copies from and to it. Numbers in brackets are those of the contract
//! of [`Provider`].

#![allow(unsafe_code)]

use core::fmt;
use core::mem::ManuallyDrop;

use bitflags::bitflags;
use verbs_core::Error;
use verbs_core::exposed::ExposedBytes;
use verbs_core::provider::{Erased, MrOps, NamedProvider, Provider};
use verbs_core::types::AccessFlags;

use crate::live::Live;
use crate::{Buf, Pd, RemoteMr};

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

impl<P: Provider> Exposed<P> {
    pub(crate) fn new(pd: &Pd<P>, buf: Buf, access: RemoteAccess) -> Result<Self, (Buf, Error)> {
        let access = AccessFlags::from(access) | AccessFlags::LOCAL_WRITE;
        // While the provider's code runs, unwinding must not free memory for which it may have made a key.
        let buf = ManuallyDrop::new(buf);
        // SAFETY: the bytes are the `Buf`'s, which `Live` keeps until the region is deregistered [12]; until then they are
        // accessed through `read_at` and `write_at` only. After an error there is no region [18].
        let raw = unsafe { pd.register(buf.start().as_ptr(), buf.len(), buf.addr(), access) };
        let buf = ManuallyDrop::into_inner(buf);
        match raw {
            Ok(raw) => Ok(Self { live: Live::new(raw, buf) }),
            Err(error) => Err((buf, error)),
        }
    }

    /// The address, length and key by which peers reach it.
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
        let wanted = into.len();
        assert!(self.bytes().read(offset, into), "{wanted} bytes at {offset} of {}", self.len());
    }

    /// Copies in, from `offset` on.
    ///
    /// # Panics
    /// When it would write beyond the end.
    pub fn write_at(&mut self, offset: usize, from: &[u8]) {
        assert!(self.bytes().write(offset, from), "{} bytes at {offset} of {}", from.len(), self.len());
    }

    /// Takes the key back from peers, and gives the memory back. Dropping does the same and frees the memory.
    ///
    /// # Errors
    /// The memory, and why it is not known to be out of peers' reach: any errno the kernel returns; `ETIMEDOUT` for good
    /// where the kernel gave up waiting for its own use of it. Dropped after that, the memory is leaked.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn unexpose(self) -> Result<Buf, (Self, Error)> {
        self.live.close().map_err(|(live, error)| (Self { live }, error))
    }

    /// The provider's own memory region, for what it has beyond verbs.
    pub fn raw(&self) -> &P::Mr {
        self.live.get()
    }

    fn bytes(&self) -> ExposedBytes {
        let buf = self.live.kept();
        // SAFETY: the `Buf` that is kept owns the bytes, which are initialised; they are registered as a whole and under a key
        // of their own, and accessed by this process only like this, also by a device that is a thread of it [13].
        unsafe { ExposedBytes::new(buf.start().as_ptr(), buf.len()) }
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
