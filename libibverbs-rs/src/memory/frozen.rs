//! [`FrozenBuf`]: registered memory, read-only and shared.
//!
//! # Safety
//! The unsafe code here registers read-only bytes, which neither this file nor the device writes.

#![allow(unsafe_code)]

use core::fmt;
use core::ops::{Deref, RangeBounds};
use std::sync::Arc;

use verbs_core::provider::Provider;
use verbs_core::types::AccessFlags;

use crate::device::pd::Pd;
use crate::handle::error::HandleError;
use crate::handle::registry::PdId;
use crate::memory::buffer::Buf;
use crate::memory::stable::StableBytes;

/// Registered memory, read-only and cheap to clone: one buffer for many simultaneous sends.
///
/// Made by [`Buf::freeze`], or from the program's own memory by
/// [`Pd::register_bytes`](crate::Pd::register_bytes). The device only reads it; posting rejects
/// receives and RDMA reads into it.
///
/// Its shares cannot be written:
///
/// ```compile_fail,E0596
/// # fn f(mut frozen: verbs::FrozenBuf) {
/// frozen[0] = 1;
/// # }
/// ```
#[derive(Clone)]
pub struct FrozenBuf {
    buf: Arc<Buf>,
    offset: usize,
    len: usize,
}

impl<P: Provider> Pd<P> {
    /// Registers read-only memory of the program, in place: a mapped file, shared bytes or static
    /// bytes. [`FrozenBuf::into_memory`] returns the memory.
    ///
    /// # Errors
    /// Same as [`register`](Self::register).
    ///
    /// # References
    /// `ibv_reg_mr(3)`
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_bytes<M: StableBytes>(&self, memory: M) -> Result<FrozenBuf, HandleError<M>> {
        if let Err(error) = self.context().registry().room("reg_mr") {
            return Err(HandleError { handle: memory, error });
        }
        let memory = Box::new(memory);
        let (base, len) = (memory.stable_ptr().cast_mut(), memory.stable_len());
        // SAFETY: `StableBytes` says that the bytes stay mapped, and are not written, until the
        // value is used, which happens after the region is deregistered. A frozen buffer only
        // reads, and without `LOCAL_WRITE` so does the device.
        unsafe { Buf::register_at(self, memory, base, len, AccessFlags::empty()) }.map(Buf::freeze)
    }
}

impl Buf {
    /// Makes the memory read-only and cheap to clone, for sending to many peers at once.
    pub fn freeze(self) -> FrozenBuf {
        FrozenBuf::new(self)
    }
}

impl FrozenBuf {
    pub(crate) fn new(buf: Buf) -> Self {
        let len = buf.len();
        Self { buf: Arc::new(buf), offset: 0, len }
    }

    /// Returns the address of the first byte, for work requests.
    pub fn addr(&self) -> u64 {
        self.buf.addr() + self.offset as u64
    }

    /// Returns the local key, for work requests of this process.
    pub fn lkey(&self) -> u32 {
        self.buf.lkey()
    }

    /// Returns a share of a range of the memory.
    ///
    /// # Panics
    /// If the range lies outside the memory.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let within = crate::memory::mr::within(range, self.len);
        let (offset, len) =
            within.unwrap_or_else(|(start, end)| panic!("{start}..{end} of {} bytes", self.len));
        Self { buf: Arc::clone(&self.buf), offset: self.offset + offset, len }
    }

    /// Returns the original buffer if this is its last share.
    ///
    /// # Errors
    /// Returns this share while other shares live, including shares in flight, or if the memory was
    /// registered read-only.
    pub fn thaw(self) -> Result<Buf, HandleError<Self>> {
        if !self.buf.is_writable() {
            return Err(HandleError::refused(self, "thaw", "the memory was registered read-only"));
        }
        let Self { buf, offset, len } = self;
        Arc::try_unwrap(buf).map_err(|buf| {
            let error = buf.devices().in_use("thaw", "other shares of the same memory");
            HandleError { handle: Self { buf, offset, len }, error }
        })
    }

    /// Deregisters memory [registered](crate::Pd::register_bytes) in place and returns it.
    ///
    /// # Errors
    /// Returns this share with the error:
    ///
    /// - `EBUSY` with [`Cause::InUse`](crate::Cause::InUse) while other shares live, including
    ///   shares in flight.
    /// - `EINVAL` with [`Cause::Other`](crate::Cause::Other) if the memory does not have the type
    ///   `M`.
    /// - Any other errno the kernel returns; notably `EIO` if the device fails to destroy the key.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn into_memory<M: StableBytes>(self) -> Result<M, HandleError<Self>> {
        let Self { buf, offset, len } = self;
        match Arc::try_unwrap(buf) {
            Ok(buf) => buf
                .into_memory_of()
                .map_err(|failed| failed.map(|buf| Self { buf: Arc::new(buf), offset, len })),
            Err(buf) => {
                let error = buf.devices().in_use("dereg_mr", "other shares of the same memory");
                Err(HandleError { handle: Self { buf, offset, len }, error })
            }
        }
    }

    pub(crate) fn pd_id(&self) -> PdId {
        self.buf.pd_id()
    }
}

impl Deref for FrozenBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buf[self.offset..self.offset + self.len]
    }
}

impl fmt::Debug for FrozenBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrozenBuf")
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
