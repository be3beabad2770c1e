//! [`ParentDomainInit`]: the parts of a parent domain; [`Td`], a thread domain, is one of them.

use std::sync::Arc;

use verbs_core::Result;
use verbs_core::provider::{ContextOps, Erased, NamedProvider, ParentDomainAttr, Provider, QueueAllocator};

use crate::device::context::Context;
use crate::device::pd::Pd;
use crate::handle::error::HandleError;
use crate::handle::shared_object::SharedObject;

/// The parts of a parent domain in addition to its protection domain. The default has none:
/// `ParentDomainInit { td: Some(&td), ..ParentDomainInit::default() }`.
///
/// # References
/// `ibv_alloc_parent_domain(3)`
#[doc(alias = "ibv_parent_domain_init_attr")]
#[doc(alias = "ibv_parent_domain_init_attr_mask")]
#[derive(Debug)]
pub struct ParentDomainInit<'a, P: Provider = Erased> {
    /// The thread domain for objects created in the parent domain.
    pub td: Option<&'a Td<P>>,
    /// The allocator for the queue memory of objects created in the parent domain. Neither rxe nor
    /// soft devices use an allocator.
    #[doc(alias = "IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS")]
    pub allocator: Option<&'a Arc<dyn QueueAllocator>>,
    /// Set to allow memory that a confidential guest shares with its host, on devices that need it
    /// ([`CC_DMA_BOUNCE`](crate::DeviceCapFlags::CC_DMA_BOUNCE)). Other devices, such as soft
    /// devices, use ordinary memory.
    #[doc(alias = "IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC")]
    pub allow_cc_unprotected_alloc: bool,
}

impl<P: Provider> Default for ParentDomainInit<'_, P> {
    fn default() -> Self {
        Self { td: None, allocator: None, allow_cc_unprotected_alloc: false }
    }
}

impl<P: Provider> Clone for ParentDomainInit<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Provider> Copy for ParentDomainInit<'_, P> {}

/// A thread domain. It declares that one thread at a time uses the objects of its parent domains.
///
/// In this crate, posting and polling take `&mut` and no lock, so the declaration saves no locking.
/// But a provider may give the objects separate device resources, such as doorbell pages on mlx5.
///
/// # References
/// `ibv_alloc_td(3)`
#[doc(alias = "ibv_td")]
#[derive(Debug)]
pub struct Td<P: Provider = Erased> {
    pub(crate) shared: SharedObject<P::Td>,
}

impl<P: Provider> Td<P> {
    /// Returns the provider's own thread domain, for features beyond verbs.
    pub fn raw(&self) -> &P::Td {
        self.shared.get()
    }

    /// Deallocates the thread domain. Dropping does the same.
    ///
    /// # Errors
    /// Returns the thread domain with the error: `EBUSY` with [`Cause::InUse`](crate::Cause::InUse)
    /// while a parent domain uses it.
    ///
    /// # References
    /// `ibv_dealloc_td(3)`
    #[doc(alias = "ibv_dealloc_td")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        self.shared.close("dealloc_td", PARENTS).map_err(|failed| failed.map(|shared| Self { shared }))
    }
}

impl Td<Erased> {
    /// Returns the same thread domain with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the thread domain if it belongs to another provider, or with `EBUSY` while a parent
    /// domain uses it.
    pub fn downcast<P: NamedProvider>(self) -> Result<Td<P>, HandleError<Self>> {
        match self.shared.try_map("downcast", PARENTS, |raw| raw.downcast::<P::Td>()) {
            Ok(shared) => Ok(Td { shared }),
            Err(failed) => Err(failed.map(|shared| Self { shared })),
        }
    }
}

impl<P: Provider> Context<P> {
    /// Allocates a thread domain, for [`Pd::alloc_parent_domain`](crate::Pd::alloc_parent_domain).
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the provider has no thread domains (rxe).
    ///
    /// # References
    /// `ibv_alloc_td(3)`
    #[doc(alias = "ibv_alloc_td")]
    pub fn alloc_td(&self) -> Result<Td<P>> {
        let raw = self.creating("alloc_td")?.alloc_td()?;
        let child = self.child(&self.registry().td_tally);
        Ok(Td { shared: SharedObject::new(raw, child, self.registry()) })
    }
}

const PARENTS: &str = "parent domains";

impl<P: Provider> Pd<P> {
    /// Allocates a parent domain: the same protection domain, with a thread domain and a queue
    /// allocator for objects created in the parent domain. Queue pairs of both domains can use
    /// memory registered in either. Completion queues join a parent domain through
    /// [`CqInit::parent_domain`](crate::CqInit::parent_domain).
    ///
    /// ```
    /// # #[cfg(feature = "soft")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs::{CqInit, ParentDomainInit};
    /// let context = verbs::soft::auto()?.open()?;
    /// let (pd, td) = (context.alloc_pd()?, context.alloc_td()?);
    /// let init = ParentDomainInit { td: Some(&td), ..ParentDomainInit::default() };
    /// let parent = pd.alloc_parent_domain(&init)?;
    /// let cq = context.create_cq(&CqInit { parent_domain: Some(&parent), ..CqInit::new(16) })?;
    /// let buf = parent.alloc_buf(4096)?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "soft"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the provider has no parent domains (rxe) or cannot use the allocator (soft
    /// devices); `EINVAL` for a thread domain of another device.
    ///
    /// # References
    /// `ibv_alloc_parent_domain(3)`
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub fn alloc_parent_domain(&self, init: &ParentDomainInit<'_, P>) -> Result<Self> {
        let ParentDomainInit { td, allocator, allow_cc_unprotected_alloc } = *init;
        let td_of = td.map(Td::raw);
        let attr = ParentDomainAttr { pd: self.raw(), td: td_of, allocator, allow_cc_unprotected_alloc };
        let raw = self.context().creating("alloc_parent_domain")?.alloc_parent_domain(&attr)?;
        Ok(self.parent_domain(raw, td.map(|td| td.shared.user())))
    }
}
