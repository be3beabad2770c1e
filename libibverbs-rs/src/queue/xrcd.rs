//! [`Xrcd`]: an XRC domain, which connects XRC targets to the shared receive queues named by
//! requests.
//!
//! ```text
//!   initiator process             target process
//!   Qp (XRC_SEND) ── SendOp::Xrc ──► Qp (XRC_RECV) ─┐
//!                     remote_srqn                   ├─ Xrcd
//!                          └──────► Srq ────────────┘  its receives complete in its Cq
//! ```

use core::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nix::fcntl::OFlag;
use verbs_core::Result;
use verbs_core::provider::{ContextOps, Erased, NamedProvider, Provider};

use crate::device::context::Context;
use crate::handle::error::HandleError;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::{Child, Tally};

/// The attributes for opening an XRC domain. The default opens a private domain.
#[doc(alias = "ibv_xrcd_init_attr")]
#[doc(alias = "ibv_xrcd_init_attr_mask")]
#[derive(Clone, Copy, Debug, Default)]
pub struct XrcdInit<'a> {
    /// The file that identifies a shared domain: processes that open a domain on the device with
    /// the same file share the domain. A soft device belongs to one process, so its domains do too.
    #[doc(alias = "IBV_XRCD_INIT_ATTR_FD")]
    pub file: Option<BorrowedFd<'a>>,
    /// Set to create a domain for the file if it has none (`O_CREAT`).
    #[doc(alias = "IBV_XRCD_INIT_ATTR_OFLAGS")]
    pub create: bool,
    /// Set to reject a file that already has a domain (`O_EXCL`).
    #[doc(alias = "IBV_XRCD_INIT_ATTR_OFLAGS")]
    pub exclusive: bool,
}

/// An XRC domain. Cheap to clone.
///
/// # References
/// `ibv_open_xrcd(3)`
#[doc(alias = "ibv_xrcd")]
pub struct Xrcd<P: Provider = Erased> {
    inner: Arc<Inner<P>>,
}

struct Inner<P: Provider> {
    raw: Raw<P>,
    context: Context<P>,
    srqs: Tally,
    qps: Tally,
}

enum Raw<P: Provider> {
    Own(KernelHandle<P::Xrcd, Child>),
    /// An erased domain whose provider `downcast` has named. Clones and children of the erased
    /// handle stay valid.
    Within(Arc<Inner<Erased>>),
}

impl<P: Provider> Context<P> {
    /// Opens an XRC domain: a private one, or one identified by a file.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a device without XRC; `EAGAIN` if the file has no domain and
    /// [`create`](XrcdInit::create) is not set; `EINVAL` if the file has a domain and
    /// [`exclusive`](XrcdInit::exclusive) is set; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_open_xrcd(3)`
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(&self, init: &XrcdInit<'_>) -> Result<Xrcd<P>> {
        Xrcd::open(self, init)
    }
}

impl<P: Provider> Xrcd<P> {
    fn open(context: &Context<P>, init: &XrcdInit<'_>) -> Result<Self> {
        let mut oflags = OFlag::empty();
        oflags.set(OFlag::O_CREAT, init.create);
        oflags.set(OFlag::O_EXCL, init.exclusive);
        let raw = context.creating("open_xrcd")?.open_xrcd(init.file, oflags.bits())?;
        let child = context.child(&context.registry().xrcd_tally);
        let raw = Raw::Own(KernelHandle::new(raw, child));
        Ok(Self::with(raw, context.clone()))
    }

    fn with(raw: Raw<P>, context: Context<P>) -> Self {
        Self { inner: Arc::new(Inner { raw, context, srqs: Tally::default(), qps: Tally::default() }) }
    }

    /// Returns the open device that the domain belongs to.
    pub fn context(&self) -> &Context<P> {
        &self.inner.context
    }

    /// Returns the provider's own domain, for features beyond verbs.
    // The panics below are unreachable.
    #[allow(clippy::missing_panics_doc)]
    pub fn raw(&self) -> &P::Xrcd {
        match &self.inner.raw {
            Raw::Own(handle) => handle.get(),
            Raw::Within(erased) => match &erased.raw {
                Raw::Own(handle) => handle.get().downcast_ref().expect("downcast looked at the type"),
                Raw::Within(_) => unreachable!("an erased domain is within no other"),
            },
        }
    }

    /// Closes the domain if this is its last handle and no object in it remains. Otherwise the
    /// domain closes once its last handle and object are gone.
    ///
    /// # Errors
    /// Returns the handle with the error: `EBUSY` with [`Cause::InUse`](crate::Cause::InUse), which
    /// names the kind of the remaining objects; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_close_xrcd(3)`
    #[doc(alias = "ibv_close_xrcd")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        let inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(inner) => {
                let error = inner.context.registry().in_use("close_xrcd", inner.users());
                return Err(HandleError { handle: Self { inner }, error });
            }
        };
        let Inner { raw, context, srqs, qps } = inner;
        let (raw, error) = match raw {
            Raw::Own(handle) => match handle.close() {
                Ok(_) => return Ok(()),
                Err(HandleError { handle, error }) => (Raw::Own(handle), error),
            },
            Raw::Within(erased) => match (Xrcd { inner: erased }).close() {
                Ok(()) => return Ok(()),
                Err(HandleError { handle, error }) => (Raw::Within(handle.inner), error),
            },
        };
        Err(HandleError { handle: Self { inner: Arc::new(Inner { raw, context, srqs, qps }) }, error })
    }

    pub(crate) fn child_srq(&self) -> Child {
        Child::new(Arc::<Inner<P>>::clone(&self.inner), &self.inner.srqs)
    }

    pub(crate) fn child_qp(&self) -> Child {
        Child::new(Arc::<Inner<P>>::clone(&self.inner), &self.inner.qps)
    }
}

impl<P: Provider> Inner<P> {
    /// Returns a plural noun for the objects that keep the domain open in addition to one handle.
    fn users(&self) -> &'static str {
        let tallies = [(&self.srqs, "shared receive queues"), (&self.qps, "queue pairs")];
        tallies.into_iter().find(|(tally, _)| tally.any()).map_or("clones of the handle", |(_, what)| what)
    }
}

impl Xrcd<Erased> {
    /// Returns the same domain with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the handle if the device belongs to another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Xrcd<P>, HandleError<Self>> {
        let Ok(context) = self.inner.context.clone().downcast::<P>() else {
            return Err(HandleError::of_another_provider(self));
        };
        Ok(Xrcd::with(Raw::Within(self.inner), context))
    }
}

impl<P: Provider> Clone for Xrcd<P> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<P: Provider> fmt::Debug for Xrcd<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Xrcd").field("raw", self.raw()).finish_non_exhaustive()
    }
}
