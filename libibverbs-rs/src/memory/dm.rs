//! [`Dm`] and [`Dmah`]: device memory and hints for a device's memory accesses.

use std::os::fd::OwnedFd;

use verbs_core::Result;
use verbs_core::provider::{ContextOps, DmOps, DmahOps, Erased, NamedProvider, Provider};
use verbs_core::types::{DmAttr, DmahAttr};

use crate::device::context::Context;
use crate::handle::error::HandleError;
use crate::handle::shared_object::SharedObject;

/// Device memory. Programs copy to and from it, and work requests access it through a region:
/// [`Pd::reg_dm_mr`](crate::Pd::reg_dm_mr).
///
/// ```
/// # #[cfg(feature = "soft")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use verbs::{AccessFlags, DmAttr};
/// let context = verbs::soft::auto()?.open()?;
/// let dm = context.alloc_dm(&DmAttr { length: 4096, log_align: 3 })?;
/// dm.copy_to(16, b"in the device...")?;
/// let mut bytes = [0; 16];
/// dm.copy_from(16, &mut bytes)?;
/// assert_eq!(&bytes, b"in the device...");
///
/// let pd = context.alloc_pd()?;
/// let mr = pd.reg_dm_mr(&dm, 16, 64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)?;
/// assert_eq!(mr.addr(), 0);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "soft"))]
/// # fn main() {}
/// ```
///
/// # References
/// `ibv_alloc_dm(3)`
#[doc(alias = "ibv_dm")]
#[derive(Debug)]
pub struct Dm<P: Provider = Erased> {
    pub(crate) shared: SharedObject<P::Dm>,
}

impl<P: Provider> Dm<P> {
    /// Returns the length of the device memory in bytes.
    pub fn length(&self) -> u64 {
        self.raw().length()
    }

    /// Returns the kernel's handle, for another owner of the same context ([`Context::import_dm`]).
    #[doc(alias = "IBV_DM_MASK_HANDLE")]
    #[doc(alias = "ibv_dm_mask")]
    pub fn handle(&self) -> u32 {
        self.raw().handle()
    }

    /// Copies bytes into the device memory, starting at `offset`. ConnectX and soft devices copy
    /// only multiples of 4 bytes.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Range`](crate::Cause::Range) for bytes outside the memory, or an
    /// offset or length the device cannot copy; `ENODEV` in a forked child for memory its parent
    /// allocated on a soft device.
    ///
    /// # References
    /// `ibv_memcpy_to_dm(3)`
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn copy_to(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.raw().copy_to(offset, bytes)
    }

    /// Copies bytes out of the device memory, starting at `offset`. ConnectX and soft devices copy
    /// only multiples of 4 bytes.
    ///
    /// # Errors
    /// Same as [`copy_to`](Self::copy_to).
    ///
    /// # References
    /// `ibv_memcpy_from_dm(3)`
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn copy_from(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.raw().copy_from(offset, bytes)
    }

    /// Exports the memory as a dma-buf for registration on another device.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device or the kernel cannot export it; any other errno the kernel
    /// returns, notably `EMFILE`.
    ///
    /// # References
    /// `ibv_dm_export_dmabuf_fd(3)`
    #[doc(alias = "ibv_dm_export_dmabuf_fd")]
    pub fn export_dmabuf_fd(&self) -> Result<OwnedFd> {
        self.raw().export_dmabuf_fd()
    }

    /// Returns the provider's own device memory, for features beyond verbs.
    pub fn raw(&self) -> &P::Dm {
        self.shared.get()
    }

    /// Frees the memory. Dropping does the same and leaks memory the kernel refuses to free.
    /// Imported memory is not freed.
    ///
    /// # Errors
    /// Returns the memory with the error: `EBUSY` with [`Cause::InUse`](crate::Cause::InUse) while
    /// a region covers it; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_free_dm(3)`
    #[doc(alias = "ibv_free_dm")]
    #[doc(alias = "ibv_unimport_dm")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        self.shared.close("free_dm", REGIONS).map_err(|failed| failed.map(|shared| Self { shared }))
    }
}

impl Dm<Erased> {
    /// Returns the same memory with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the memory if it belongs to another provider, or with `EBUSY` while a region covers
    /// it.
    pub fn downcast<P: NamedProvider>(self) -> Result<Dm<P>, HandleError<Self>> {
        match self.shared.try_map("downcast", REGIONS, |raw| raw.downcast::<P::Dm>()) {
            Ok(shared) => Ok(Dm { shared }),
            Err(failed) => Err(failed.map(|shared| Self { shared })),
        }
    }
}

/// A DMA handle: hints for the device's accesses to a region registered with the handle
/// ([`MrInit::dmah`](crate::MrInit::dmah)).
///
/// # References
/// `ibv_alloc_dmah(3)`
#[doc(alias = "ibv_dmah")]
#[derive(Debug)]
pub struct Dmah<P: Provider = Erased> {
    pub(crate) shared: SharedObject<P::Dmah>,
}

impl<P: Provider> Dmah<P> {
    /// Returns the kernel's handle.
    pub fn handle(&self) -> u32 {
        self.raw().handle()
    }

    /// Returns the provider's own DMA handle, for features beyond verbs.
    pub fn raw(&self) -> &P::Dmah {
        self.shared.get()
    }

    /// Frees the handle. Dropping does the same and leaks a handle the kernel refuses to free.
    ///
    /// # Errors
    /// Returns the handle with the error: `EBUSY` with [`Cause::InUse`](crate::Cause::InUse) while
    /// a region uses it; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_dealloc_dmah(3)`
    #[doc(alias = "ibv_dealloc_dmah")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        self.shared.close("dealloc_dmah", REGIONS).map_err(|failed| failed.map(|shared| Self { shared }))
    }
}

impl Dmah<Erased> {
    /// Returns the same DMA handle with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the handle if it belongs to another provider, or with `EBUSY` while a region uses
    /// it.
    pub fn downcast<P: NamedProvider>(self) -> Result<Dmah<P>, HandleError<Self>> {
        match self.shared.try_map("downcast", REGIONS, |raw| raw.downcast::<P::Dmah>()) {
            Ok(shared) => Ok(Dmah { shared }),
            Err(failed) => Err(failed.map(|shared| Self { shared })),
        }
    }
}

impl<P: Provider> Context<P> {
    /// Allocates device memory. Soft devices zero the memory.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has no such memory (such as rxe); `EINVAL` or `ENOMEM` for a
    /// length above [`max_dm_size`](crate::DeviceAttrEx::max_dm_size) or an unsupported alignment;
    /// any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_alloc_dm(3)`
    #[doc(alias = "ibv_alloc_dm")]
    pub fn alloc_dm(&self, attr: &DmAttr) -> Result<Dm<P>> {
        self.creating("alloc_dm")?.alloc_dm(attr).map(|raw| self.dm(raw))
    }

    /// Returns the device memory with this handle, allocated by another owner of the same context.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the provider cannot import device memory; any other errno the kernel
    /// returns.
    ///
    /// # References
    /// `ibv_import_dm(3)`
    #[doc(alias = "ibv_import_dm")]
    pub fn import_dm(&self, handle: u32) -> Result<Dm<P>> {
        self.creating("import_dm")?.import_dm(handle).map(|raw| self.dm(raw))
    }

    /// Allocates a DMA handle.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device or the kernel (before 6.17) has no DMA handles; `EINVAL` for an
    /// unknown hint; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_alloc_dmah(3)`
    #[doc(alias = "ibv_alloc_dmah")]
    pub fn alloc_dmah(&self, attr: &DmahAttr) -> Result<Dmah<P>> {
        let raw = self.creating("alloc_dmah")?.alloc_dmah(attr)?;
        let child = self.child(&self.registry().dmah_tally);
        Ok(Dmah { shared: SharedObject::new(raw, child, self.registry()) })
    }

    fn dm(&self, raw: P::Dm) -> Dm<P> {
        Dm { shared: SharedObject::new(raw, self.child(&self.registry().dm_tally), self.registry()) }
    }
}

const REGIONS: &str = "memory regions";
