//! [`Pd`]: a protection domain, or a parent domain created from a protection domain.

use std::sync::Arc;

use verbs_core::provider::{Destroy, ParentDomainAttr, PdOps};
use verbs_core::{Cause, Errno, Error, Result};

use crate::device::Device;
use crate::device::error::{destroyed, foreign, refusal};
use crate::objects::soft::Soft;

/// A protection domain, or a parent domain, which acts as its protection domain.
#[derive(Debug)]
pub struct Pd {
    device: Arc<Device>,
    pd: roce::engine::Pd,
    /// Cloned by each parent domain created from this domain.
    users: Arc<()>,
    /// Cloned by each completion queue created in this parent domain.
    cqs: Arc<()>,
    /// Cloned by each address handle of this domain, or of a parent domain created from it.
    ahs: Arc<()>,
    /// The domains kept in use by this domain, if it is a parent domain.
    parent_domain: Option<ParentDomain>,
}

/// References that keep the protection domain and the thread domain of a parent domain in use.
#[derive(Debug)]
struct ParentDomain {
    _pd: Arc<()>,
    _td: Option<Arc<()>>,
}

impl Pd {
    pub(crate) fn alloc(device: &Arc<Device>) -> Result<Self> {
        let pd = device.control("alloc_pd", |core, _| {
            core.engine.alloc_pd().map_err(|refused| refusal(device, "alloc_pd", refused))
        })?;
        Ok(Self::new(device, pd, None))
    }

    fn new(device: &Arc<Device>, pd: roce::engine::Pd, parent_domain: Option<ParentDomain>) -> Self {
        let (users, cqs, ahs) = Default::default();
        Self { device: Arc::clone(device), pd, users, cqs, ahs, parent_domain }
    }

    /// Allocates a parent domain. Allocators are rejected, because only this crate allocates
    /// queues. A soft device is part of the process and needs no memory shared with a host.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for an allocator; `EINVAL` for a domain of another device; `ENODEV` in a forked
    /// child.
    pub(crate) fn alloc_parent(device: &Arc<Device>, attr: &ParentDomainAttr<'_, Soft>) -> Result<Self> {
        const VERB: &str = "alloc_parent_domain";
        device.check(VERB)?;
        let pd = attr.pd.id_on(device, VERB)?;
        let td = attr.td.map(|td| td.share_on(device, VERB)).transpose()?;
        if attr.allocator.is_some() {
            let reason = "soft devices allocate the memory of their queues themselves".into();
            return Err(device.error(VERB, Errno::OPNOTSUPP).because(Cause::Other { reason }));
        }
        let parent_domain = ParentDomain { _pd: Arc::clone(&attr.pd.users), _td: td };
        let ahs = Arc::clone(&attr.pd.ahs);
        Ok(Self { ahs, ..Self::new(device, pd, Some(parent_domain)) })
    }

    /// Returns a reference that keeps this parent domain in use by a completion queue of this
    /// device.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Foreign`] for a domain of another device; `EINVAL` also for a domain
    /// that is not a parent domain.
    pub(crate) fn for_cq(&self, device: &Arc<Device>, verb: &'static str) -> Result<Arc<()>> {
        self.id_on(device, verb)?;
        if self.parent_domain.is_none() {
            let reason = "a completion queue is made in no protection domain but a parent domain".into();
            return Err(device.error(verb, Errno::INVAL).because(Cause::Other { reason }));
        }
        Ok(Arc::clone(&self.cqs))
    }

    /// Returns a reference that keeps the protection domain in use by an address handle of this
    /// device.
    ///
    /// # Errors
    /// The errors of [`id_on`](Self::id_on).
    pub(crate) fn for_ah(&self, device: &Arc<Device>, verb: &'static str) -> Result<Arc<()>> {
        self.id_on(device, verb).map(|_| Arc::clone(&self.ahs))
    }

    /// Returns the domain's number in the engine, if the domain belongs to this device.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Foreign`] for a protection domain of another device.
    pub(crate) fn id_on(&self, device: &Arc<Device>, verb: &'static str) -> Result<roce::engine::Pd> {
        if Arc::ptr_eq(&self.device, device) {
            Ok(self.pd)
        } else {
            Err(foreign(device, verb, "protection domain"))
        }
    }
}

impl PdOps for Pd {
    fn handle(&self) -> u32 {
        self.pd.0
    }
}

impl Destroy for Pd {
    fn destroy(self) -> Result<(), (Self, Error)> {
        let (device, pd) = (&self.device, self.pd);
        let in_use = |users: &Arc<()>| Arc::strong_count(users) > 1 && !device.is_forked();
        // A parent domain shares its protection domain's address handles.
        let has_ahs = self.parent_domain.is_none() && in_use(&self.ahs);
        let by = [
            (in_use(&self.cqs), "completion queues"),
            (in_use(&self.users), "parent domains"),
            (has_ahs, "address handles"),
        ];
        if let Some((_, by)) = by.into_iter().find(|(is_used, _)| *is_used) {
            let error = device.error("dealloc_pd", Errno::BUSY).because(Cause::InUse { by });
            return Err((self, error));
        }
        if self.parent_domain.is_some() {
            return Ok(());
        }
        destroyed(device, "dealloc_pd", |core| core.engine.dealloc_pd(pd)).map_err(|error| (self, error))
    }
}
