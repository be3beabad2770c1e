//! [`Pd`], a protection domain or a parent domain over one, and [`Td`], a thread domain.
//!
//! A thread domain keeps a doorbell register for its queue pairs. One queue pair at a time uses the
//! register and stores whole requests into it. The other queue pairs of the thread domain get
//! registers as they would without a thread domain. No two queues ever store requests into one
//! register, regardless of the threads that use them.
//!
//! # References
//! `ibv_alloc_td(3)`, `ibv_alloc_parent_domain(3)`; rdma-core `providers/mlx5/verbs.c`

use std::sync::Arc;

use verbs_core::kernel::KernelPd;
use verbs_core::provider::{Destroy, ParentDomainAttr, PdOps, TdOps};
use verbs_core::{Cause, Errno, Error, Result};

use crate::cmd;
use crate::device::Device;
use crate::direct::PdDirect;
use crate::doorbell::registers::Register;
use crate::memory::Allocator;
use crate::objects::mlx5::Mlx5;

/// A thread domain.
#[derive(Debug)]
pub struct Td {
    device: Arc<Device>,
    /// The doorbell register. Each parent domain that uses this thread domain holds a clone.
    register: Arc<TdRegister>,
}

/// A thread domain's doorbell register.
#[derive(Debug)]
struct TdRegister(Arc<Register>);

impl Td {
    pub(crate) fn alloc(device: &Arc<Device>) -> Self {
        let register = Arc::new(TdRegister(Arc::new(device.registers.take(&device.kernel))));
        Self { device: Arc::clone(device), register }
    }
}

impl TdOps for Td {}

impl Destroy for Td {
    fn destroy(self) -> Result<(), (Self, Error)> {
        if Arc::strong_count(&self.register) == 1 {
            return Ok(());
        }
        let cause = Cause::InUse { by: "parent domains" };
        let error = self.device.error("dealloc_td", Errno::BUSY).because(cause);
        Err((self, error))
    }
}

/// A protection domain, or a parent domain. A parent domain acts as its underlying protection
/// domain.
///
/// The allocator of a parent domain receives the resource types of `mlx5dv.h`. The upper half is
/// the driver's number, and the lower half is 1 for a queue pair, 2 for a work queue, 3 for
/// doorbell records, 4 for a shared receive queue and 5 for a completion queue.
#[derive(Debug)]
pub struct Pd {
    device: Arc<Device>,
    kernel: KernelPd,
    /// The domain's number in the device, if the kernel reports it.
    pdn: Option<u32>,
    /// A reference count. Each parent domain over this domain holds a clone.
    users: Arc<()>,
    /// A reference count. Each completion queue created in this parent domain holds a clone.
    cqs: Arc<()>,
    /// The domains a parent domain keeps in use.
    within: Option<Within>,
}

/// A parent domain's references to the domains it keeps in use.
#[derive(Debug)]
struct Within {
    _pd: Arc<()>,
    allocator: Option<Allocator>,
    td: Option<Arc<TdRegister>>,
}

impl Pd {
    pub(crate) fn new(device: &Arc<Device>, kernel: KernelPd, pdn: Option<u32>) -> Self {
        let device = Arc::clone(device);
        Self { device, kernel, pdn, users: Arc::default(), cqs: Arc::default(), within: None }
    }

    /// Allocates a parent domain. No command is sent.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Foreign`] for a domain on another device.
    pub(crate) fn alloc_parent(device: &Arc<Device>, attr: &ParentDomainAttr<'_, Mlx5>) -> Result<Self> {
        const VERB: &str = "alloc_parent_domain";
        let foreign = |what| Err(device.error(VERB, Errno::INVAL).because(Cause::Foreign { what }));
        if !Arc::ptr_eq(&attr.pd.device, device) {
            return foreign("protection domain");
        }
        if attr.td.is_some_and(|td| !Arc::ptr_eq(&td.device, device)) {
            return foreign("thread domain");
        }
        let td = attr.td.map(|td| Arc::clone(&td.register));
        let kernel = KernelPd::import(&device.kernel, attr.pd.handle());
        let within = Some(Within { _pd: Arc::clone(&attr.pd.users), allocator: attr.allocator.cloned(), td });
        Ok(Self { within, ..Self::new(device, kernel, attr.pd.pdn) })
    }

    /// Describes the domain for direct access: see [`direct`](crate::direct).
    ///
    /// # Errors
    /// For an imported domain: `EOPNOTSUPP` on kernels without the query; any other errno the
    /// kernel returns.
    pub fn direct(&self) -> Result<PdDirect> {
        let pdn = match self.pdn {
            Some(pdn) => pdn,
            None => cmd::query_pd(self.device.kernel.uverbs(), self.handle())?,
        };
        Ok(PdDirect { pdn })
    }

    /// Returns whether the domain belongs to the given device.
    pub(crate) fn is_of(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// Returns the kernel's domain.
    pub(crate) const fn kernel(&self) -> &KernelPd {
        &self.kernel
    }

    /// Returns a reference that keeps this parent domain in use, for a completion queue.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Foreign`] for a domain on another device; `EINVAL` for a domain that
    /// is not a parent domain.
    pub(crate) fn for_cq(&self, device: &Arc<Device>) -> Result<Arc<()>> {
        let error = device.error("create_cq", Errno::INVAL);
        if !Arc::ptr_eq(&self.device, device) {
            return Err(error.because(Cause::Foreign { what: "protection domain" }));
        }
        if self.within.is_none() {
            let reason = "a completion queue is made in no protection domain but a parent domain".into();
            return Err(error.because(Cause::Other { reason }));
        }
        Ok(Arc::clone(&self.cqs))
    }

    /// Returns the allocator for the queues of objects in this domain, if there is one.
    pub(crate) fn allocator(&self) -> Option<&Allocator> {
        self.within.as_ref()?.allocator.as_ref()
    }

    /// Returns the thread domain's register, if there is one and no queue pair uses it.
    pub(crate) fn register(&self) -> Option<Arc<Register>> {
        self.within.as_ref()?.td.as_ref()?.0.lease()
    }
}

impl PdOps for Pd {
    fn handle(&self) -> u32 {
        self.kernel.handle()
    }
}

impl Destroy for Pd {
    fn destroy(self) -> Result<(), (Self, Error)> {
        let in_use = |users: &Arc<()>| Arc::strong_count(users) > 1;
        if in_use(&self.users) || in_use(&self.cqs) {
            let by = if in_use(&self.cqs) { "completion queues" } else { "parent domains" };
            let error = self.device.error("dealloc_pd", Errno::BUSY).because(Cause::InUse { by });
            return Err((self, error));
        }
        let Self { device, kernel, pdn, users, cqs, within } = self;
        kernel.destroy().map_err(|(kernel, error)| (Self { device, kernel, pdn, users, cqs, within }, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tests::device;

    #[test]
    fn a_parent_domain_keeps_its_domains_and_is_kept_by_completion_queues() {
        let (device, script) = device();
        let pd = Pd::new(&device, KernelPd::import(&device.kernel, 3), None);
        script
            .expect([verbs_core::channel::Expect::anything(verbs_core::channel::Reply::Errno(Errno::NOMEM))]);
        let td = Td::alloc(&device);
        assert_eq!(pd.for_cq(&device).unwrap_err().errno, Errno::INVAL);
        let attr =
            ParentDomainAttr { pd: &pd, td: Some(&td), allocator: None, allow_cc_unprotected_alloc: false };
        let parent = Pd::alloc_parent(&device, &attr).unwrap();
        assert_eq!(parent.handle(), 3);
        let (td, error) = td.destroy().unwrap_err();
        assert!(matches!(error.cause, Cause::InUse { by: "parent domains" }), "{error}");
        let (pd, error) = pd.destroy().unwrap_err();
        assert!(matches!(error.cause, Cause::InUse { by: "parent domains" }), "{error}");
        let cq = parent.for_cq(&device).unwrap();
        let (parent, error) = parent.destroy().unwrap_err();
        assert!(matches!(error.cause, Cause::InUse { by: "completion queues" }), "{error}");
        drop(cq);
        // One queue pair at a time has the register.
        let first = parent.register().unwrap();
        assert!(parent.register().is_none());
        drop(first);
        assert!(parent.register().is_some());
        assert!(pd.register().is_none());
        parent.destroy().map_err(|(_, error)| error).unwrap();
        td.destroy().map_err(|(_, error)| error).unwrap();
        pd.destroy().map_err(|(_, error)| error).unwrap();
    }

    #[test]
    fn a_domain_has_the_number_that_the_kernel_told_or_tells() {
        use verbs_core::channel::{Expect, Reply};
        let (device, script) = device();
        let own = Pd::new(&device, KernelPd::import(&device.kernel, 3), Some(0x123));
        assert_eq!(own.direct().unwrap(), PdDirect { pdn: 0x123 });
        let attr =
            ParentDomainAttr { pd: &own, td: None, allocator: None, allow_cc_unprotected_alloc: false };
        assert_eq!(Pd::alloc_parent(&device, &attr).unwrap().direct().unwrap(), PdDirect { pdn: 0x123 });
        let imported = Pd::new(&device, KernelPd::import(&device.kernel, 4), None);
        let command = "ioctl 1.4096: 0x1000 handle 4, 0x1001 out 4 bytes";
        let told = Reply::outputs([&0x456_u32.to_ne_bytes()[..]]);
        script.expect([Expect::command(command, told), Expect::anything(Reply::Errno(Errno::NOENT))]);
        assert_eq!(imported.direct().unwrap(), PdDirect { pdn: 0x456 });
        assert_eq!(imported.direct().unwrap_err().errno, Errno::NOENT);
    }
}
