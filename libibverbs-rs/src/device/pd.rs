//! [`Pd`]: a protection domain. The methods that create a domain's objects are in the files of
//! these objects.

use std::fmt;
use std::sync::Arc;

use verbs_core::Result;
use verbs_core::provider::{ContextOps, Erased, NamedProvider, PdOps, Provider};

use crate::device::context::Context;
use crate::handle::error::HandleError;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::{Child, PdId, Tally};

/// A protection domain: a queue pair can access only the memory regions and address handles of its
/// own domain. Cheap to clone.
///
/// # References
/// `ibv_alloc_pd(3)`
#[doc(alias = "ibv_pd")]
pub struct Pd<P: Provider = Erased> {
    inner: Arc<Inner<P>>,
}

struct Inner<P: Provider> {
    raw: Raw<P>,
    id: PdId,
    context: Context<P>,
    users: Users,
}

/// The counts of the objects that keep a domain alive.
#[derive(Default)]
struct Users {
    ahs: Tally,
    cqs: Tally,
    mrs: Tally,
    mws: Tally,
    parent_domains: Tally,
    qps: Tally,
    srqs: Tally,
    wqs: Tally,
}

/// The dependencies of a domain: its device, or the two domains of a parent domain.
struct Parents {
    _above: Child,
    _td: Option<Child>,
}

enum Raw<P: Provider> {
    Own(KernelHandle<P::Pd, Parents>),
    /// An erased domain whose provider `downcast` has named. Clones and children of the erased
    /// handle stay valid.
    Within(Arc<Inner<Erased>>),
}

impl<P: Provider> Context<P> {
    /// Allocates a protection domain for memory regions, queue pairs and address handles.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `ENOMEM` if the device has no protection domain left.
    ///
    /// # References
    /// `ibv_alloc_pd(3)`
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<Pd<P>> {
        Pd::alloc(self)
    }

    /// Returns the protection domain with this handle, allocated by another owner of the same
    /// context. Dropping the result deallocates nothing.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the provider cannot import protection domains. An invalid handle is reported
    /// only when an object is created in the domain.
    ///
    /// # References
    /// `ibv_import_pd(3)`
    #[doc(alias = "ibv_import_pd")]
    #[doc(alias = "ibv_unimport_pd")]
    pub fn import_pd(&self, handle: u32) -> Result<Pd<P>> {
        Pd::import(self, handle)
    }
}

impl<P: Provider> Pd<P> {
    fn alloc(context: &Context<P>) -> Result<Self> {
        Ok(Self::of_context(context, context.creating("alloc_pd")?.alloc_pd()?))
    }

    fn import(context: &Context<P>, handle: u32) -> Result<Self> {
        Ok(Self::of_context(context, context.creating("import_pd")?.import_pd(handle)?))
    }

    fn of_context(context: &Context<P>, raw: P::Pd) -> Self {
        let parents = Parents { _above: context.child(&context.registry().pd_tally), _td: None };
        Self::new(context, raw, parents, PdId::next())
    }

    fn new(context: &Context<P>, raw: P::Pd, parents: Parents, id: PdId) -> Self {
        Self {
            inner: Arc::new(Inner {
                raw: Raw::Own(KernelHandle::new(raw, parents)),
                id,
                context: context.clone(),
                users: Users::default(),
            }),
        }
    }

    /// Wraps `raw`, a parent domain made from this domain, in a handle.
    pub(super) fn parent_domain(&self, raw: P::Pd, td: Option<Child>) -> Self {
        let above = self.child(&self.inner.users.parent_domains);
        Self::new(self.context(), raw, Parents { _above: above, _td: td }, self.id())
    }

    /// Returns the open device that the domain belongs to.
    pub fn context(&self) -> &Context<P> {
        &self.inner.context
    }

    /// Returns the provider's own protection domain, for features beyond verbs.
    // The panics below are unreachable.
    #[allow(clippy::missing_panics_doc)]
    pub fn raw(&self) -> &P::Pd {
        match &self.inner.raw {
            Raw::Own(handle) => handle.get(),
            Raw::Within(erased) => match &erased.raw {
                Raw::Own(handle) => handle.get().downcast_ref().expect("downcast looked at the type"),
                Raw::Within(_) => unreachable!("an erased protection domain is within no other"),
            },
        }
    }

    /// Returns the kernel's handle, for another owner of the same context
    /// ([`Context::import_pd`]).
    pub fn handle(&self) -> u32 {
        self.raw().handle()
    }

    /// Deallocates the domain if this is its last handle and no object created in it remains.
    /// Otherwise the domain is deallocated once its last handle and object are gone.
    ///
    /// # Errors
    /// Returns the handle with the error: `EBUSY` with [`Cause::InUse`](crate::Cause::InUse), which
    /// names the kind of the remaining objects; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_dealloc_pd(3)`
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        let inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(inner) => {
                let error = inner.context.registry().in_use("dealloc_pd", inner.users.name());
                return Err(HandleError { handle: Self { inner }, error });
            }
        };
        let Inner { raw, id, context, users } = inner;
        let (raw, error) = match raw {
            Raw::Own(handle) => match handle.close() {
                Ok(_) => return Ok(()),
                Err(HandleError { handle, error }) => (Raw::Own(handle), error),
            },
            Raw::Within(erased) => match (Pd { inner: erased }).close() {
                Ok(()) => return Ok(()),
                Err(HandleError { handle, error }) => (Raw::Within(handle.inner), error),
            },
        };
        let handle = Self { inner: Arc::new(Inner { raw, id, context, users }) };
        Err(HandleError { handle, error })
    }

    pub(crate) fn id(&self) -> PdId {
        self.inner.id
    }

    pub(crate) fn child_ah(&self) -> Child {
        self.child(&self.inner.users.ahs)
    }

    pub(crate) fn child_cq(&self) -> Child {
        self.child(&self.inner.users.cqs)
    }

    pub(crate) fn child_mr(&self) -> Child {
        self.child(&self.inner.users.mrs)
    }

    pub(crate) fn child_mw(&self) -> Child {
        self.child(&self.inner.users.mws)
    }

    pub(crate) fn child_qp(&self) -> Child {
        self.child(&self.inner.users.qps)
    }

    pub(crate) fn child_srq(&self) -> Child {
        self.child(&self.inner.users.srqs)
    }

    pub(crate) fn child_wq(&self) -> Child {
        self.child(&self.inner.users.wqs)
    }

    fn child(&self, tally: &Tally) -> Child {
        Child::new(Arc::<Inner<P>>::clone(&self.inner), tally)
    }
}

impl Users {
    /// Returns a plural noun for the objects that keep the domain alive in addition to one handle.
    fn name(&self) -> &'static str {
        let tallies = [
            (&self.qps, "queue pairs"),
            (&self.srqs, "shared receive queues"),
            (&self.wqs, "work queues"),
            (&self.cqs, "completion queues"),
            (&self.mws, "memory windows"),
            (&self.mrs, "memory regions"),
            (&self.ahs, "address handles"),
            (&self.parent_domains, "parent domains"),
        ];
        tallies.into_iter().find(|(tally, _)| tally.any()).map_or("clones of the handle", |(_, what)| what)
    }
}

impl Pd<Erased> {
    /// Returns the same protection domain with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the handle if the device belongs to another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Pd<P>, HandleError<Self>> {
        let Ok(context) = self.inner.context.clone().downcast::<P>() else {
            return Err(HandleError::of_another_provider(self));
        };
        Ok(Pd {
            inner: Arc::new(Inner {
                id: self.inner.id,
                raw: Raw::Within(self.inner),
                context,
                users: Users::default(),
            }),
        })
    }
}

impl<P: Provider> Clone for Pd<P> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<P: Provider> fmt::Debug for Pd<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pd").field("raw", self.raw()).finish_non_exhaustive()
    }
}
