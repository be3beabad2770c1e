//! [`Mw`]: a memory window, for raw posting.

use verbs_core::Result;
use verbs_core::provider::{ContextOps, Erased, MwOps, NamedProvider, Provider};
use verbs_core::types::MwType;

use crate::device::pd::Pd;
use crate::handle::error::HandleError;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::Child;

/// A memory window, for raw posting. [`Window`](crate::Window) is the safe alternative.
///
/// [`SendOp::BindMw`](crate::SendOp::BindMw) binds it to part of a region registered with
/// [`AccessFlags::MW_BIND`](crate::AccessFlags::MW_BIND), under a new key from
/// [`inc_rkey`](crate::inc_rkey). [`SendOp::LocalInv`](crate::SendOp::LocalInv) and a peer's
/// [`SendOp::SendWithInv`](crate::SendOp::SendWithInv) invalidate a window of type 2.
///
/// The kernel's rxe driver (sources of Linux 6.1 to 7.2) has four defects to avoid. It crashes when
/// the key of an unbound window of type 2 is invalidated. It waits up to 50 s to destroy a queue
/// pair with bound windows of type 2. It checks the addresses in peers' requests against the region
/// instead of the bound range. A bind does not compare protection domains: another process on the
/// device that guesses a key can bind a region with [`MW_BIND`](crate::AccessFlags::MW_BIND).
///
/// # References
/// `ibv_alloc_mw(3)`, `ibv_bind_mw(3)`
#[doc(alias = "ibv_mw")]
#[derive(Debug)]
pub struct Mw<P: Provider = Erased> {
    handle: KernelHandle<P::Mw, Child>,
}

impl<P: Provider> Pd<P> {
    /// Allocates a memory window for raw posting, bound to no region.
    /// [`alloc_window`](Self::alloc_window) is the safe alternative.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device, or the kernel's driver, has no windows of this type (rxe before
    /// Linux 6.1); any other errno the kernel returns, notably `ENOMEM`.
    ///
    /// # References
    /// `ibv_alloc_mw(3)`
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<Mw<P>> {
        let raw = self.context().creating("alloc_mw")?.alloc_mw(self.raw(), mw_type)?;
        Ok(Mw::new(raw, self.child_mw()))
    }
}

impl<P: Provider> Mw<P> {
    pub(crate) const fn new(raw: P::Mw, pd: Child) -> Self {
        Self { handle: KernelHandle::new(raw, pd) }
    }

    /// Returns the key assigned at allocation. Each bind changes its low 8 bits.
    pub fn rkey(&self) -> u32 {
        self.handle.get().rkey()
    }

    /// Returns the window's type.
    pub fn mw_type(&self) -> MwType {
        self.handle.get().mw_type()
    }

    /// Returns the provider's own window, for features beyond verbs.
    pub fn raw(&self) -> &P::Mw {
        self.handle.get()
    }

    /// Deallocates the window, bound or not. Dropping does the same and leaks a window the kernel
    /// refuses to deallocate.
    ///
    /// # Errors
    /// Returns the window and any errno the kernel returns; notably `EIO` if the device fails to
    /// destroy it.
    ///
    /// # References
    /// `ibv_dealloc_mw(3)`
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        self.handle.close().map(drop).map_err(|failed| failed.map(|handle| Self { handle }))
    }

    pub(crate) fn into_handle(self) -> KernelHandle<P::Mw, Child> {
        self.handle
    }
}

impl Mw<Erased> {
    /// Returns the same window with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the window if it belongs to another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Mw<P>, HandleError<Self>> {
        match self.handle.try_map(|raw| raw.downcast::<P::Mw>()) {
            Ok(handle) => Ok(Mw { handle }),
            Err(handle) => Err(HandleError::of_another_provider(Self { handle })),
        }
    }
}
