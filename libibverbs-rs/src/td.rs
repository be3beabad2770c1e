//! [`Td`]: a thread domain, for the parent domains of
//! [`Pd::alloc_parent_domain`](crate::Pd::alloc_parent_domain).

use verbs_core::Result;
use verbs_core::provider::{ContextOps, Erased, NamedProvider, Provider};

use crate::shared::Shared;
use crate::{Context, HandleError};

/// A thread domain: a promise that the objects of a parent domain with it are used by one thread at
/// a time.
///
/// Posting and polling take `&mut` and no lock, so this crate needs no such promise. A provider may
/// give the objects device resources of their own, as mlx5 does with doorbell pages.
///
/// # References
/// `ibv_alloc_td(3)`
#[doc(alias = "ibv_td")]
#[derive(Debug)]
pub struct Td<P: Provider = Erased> {
    pub(crate) shared: Shared<P::Td>,
}

impl<P: Provider> Td<P> {
    /// Returns the provider's own object, for features beyond verbs.
    pub fn raw(&self) -> &P::Td {
        self.shared.get()
    }

    /// Deallocates it. Dropping does the same.
    ///
    /// # Errors
    /// The thread domain: `EBUSY` with [`Cause::InUse`](crate::Cause::InUse) while a parent domain
    /// uses it.
    ///
    /// # References
    /// `ibv_dealloc_td(3)`
    #[doc(alias = "ibv_dealloc_td")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        self.shared.close("dealloc_td", PARENTS).map_err(|failed| failed.map(|shared| Self { shared }))
    }
}

impl Td<Erased> {
    /// Returns the same thread domain with its provider named.
    ///
    /// # Errors
    /// The thread domain: when it belongs to another provider, or `EBUSY` while a parent domain
    /// uses it.
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
    /// `EOPNOTSUPP` if the provider has none, as rxe.
    ///
    /// # References
    /// `ibv_alloc_td(3)`
    #[doc(alias = "ibv_alloc_td")]
    pub fn alloc_td(&self) -> Result<Td<P>> {
        let raw = self.raw().alloc_td()?;
        let child = self.child(&self.registry().td_tally);
        Ok(Td { shared: Shared::new(raw, child, self.registry()) })
    }
}

const PARENTS: &str = "parent domains";
