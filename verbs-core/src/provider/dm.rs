//! Device memory and DMA handles.

use core::any::Any;
use core::fmt::Debug;
use std::os::fd::OwnedFd;

use crate::error::Result;

/// Device memory. The provider maps the memory and copies with the access width and order that the
/// device requires.
pub trait DmOps: Any + Debug + Send + Sync {
    /// Returns the kernel's handle for the device memory.
    fn handle(&self) -> u32;

    /// Returns the length in bytes.
    fn length(&self) -> u64;

    /// Copies bytes into device memory, starting at `offset`.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Range`](crate::Cause::Range) for bytes outside the device memory;
    /// `EINVAL` for an offset or length that the device cannot copy, such as one that is not a
    /// multiple of 4 bytes.
    fn copy_to(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Copies bytes out of device memory, starting at `offset`.
    ///
    /// # Errors
    /// The errors of [`copy_to`](Self::copy_to).
    fn copy_from(&self, offset: u64, bytes: &mut [u8]) -> Result<()>;

    /// Exports the device memory as a dma-buf.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device or the kernel cannot export device memory; any other errno the
    /// kernel returns, notably `EMFILE`.
    fn export_dmabuf_fd(&self) -> Result<OwnedFd>;
}

/// A DMA handle: hints for the device's accesses to a memory region.
pub trait DmahOps: Any + Debug + Send + Sync {
    /// Returns the kernel's handle for the DMA handle.
    fn handle(&self) -> u32;
}
