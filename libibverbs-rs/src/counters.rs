//! [`Counters`] of flow rules, and [`CompCntr`], a counter of completions.

use std::sync::Arc;

use verbs_core::Result;
use verbs_core::provider::{CompCntrOps, ContextOps, CountersOps, Erased, Provider};
use verbs_core::types::{
    CompCntrAttachOps, CompCntrCaps, CompCntrEntry, CompCntrType, CounterAttachAttr, ReadCountersFlags,
};

use crate::kernel_handle::{KernelHandle, close_shared};
use crate::qp::state::State;
use crate::registry::{Child, Parent, Registry};
use crate::{Context, Flow, HandleError, Qp};

/// A set of counters, which flow rules use by [`ActionCount`](crate::FlowSpec::ActionCount).
///
/// Neither rxe nor soft devices have counters.
///
/// # References
/// `ibv_create_counters(3)`
#[doc(alias = "ibv_counters")]
#[derive(Debug)]
pub struct Counters<P: Provider = Erased> {
    handle: Arc<Set<P>>,
}

/// A provider's set, which flow rules share, and its dependencies.
type Set<P> = KernelHandle<<P as Provider>::Counters, (Arc<Registry>, Child)>;

impl<P: Provider> Context<P> {
    /// Creates a set of counters for flow rules.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device, or the kernel, has none; any other errno that the kernel
    /// returns.
    ///
    /// # References
    /// `ibv_create_counters(3)`
    #[doc(alias = "ibv_create_counters")]
    #[doc(alias = "ibv_counters_init_attr")]
    pub fn create_counters(&self) -> Result<Counters<P>> {
        let raw = self.raw().create_counters()?;
        let context = self.child(&self.registry().counters_tally);
        let dependencies = (Arc::clone(self.registry()), context);
        Ok(Counters { handle: Arc::new(KernelHandle::new(raw, dependencies)) })
    }

    /// Queries the completion counters that the device offers.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device, or the kernel, has none; otherwise as
    /// [`query_device`](Self::query_device).
    ///
    /// # References
    /// `ibv_query_comp_cntr_caps(3)`
    #[doc(alias = "ibv_query_comp_cntr_caps")]
    #[doc(alias = "_ibv_query_comp_cntr_caps")]
    pub fn query_comp_cntr_caps(&self) -> Result<CompCntrCaps> {
        self.raw().device().query_comp_cntr_caps()
    }

    /// Creates a completion counter.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device, or the kernel, has none of the kind; any other errno that the
    /// kernel returns.
    ///
    /// # References
    /// `ibv_create_comp_cntr(3)`
    #[doc(alias = "ibv_create_comp_cntr")]
    #[doc(alias = "ibv_comp_cntr_init_attr")]
    pub fn create_comp_cntr(&self, cntr_type: CompCntrType) -> Result<CompCntr<P>> {
        let raw = self.raw().create_comp_cntr(cntr_type)?;
        let child = self.child(&self.registry().comp_cntr_tally);
        Ok(CompCntr { handle: KernelHandle::new(raw, (self.clone(), child)) })
    }
}

impl<P: Provider> Counters<P> {
    /// Adds a counter to the set: of the rules that name the set from now on, or with `flow` of a
    /// rule that exists. Reading returns its value at `attr.index`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` from a device that does not count the quantity, or not of a rule that exists;
    /// `EINVAL` with [`Cause::Foreign`](crate::Cause::Foreign) for a rule of another open device.
    ///
    /// # References
    /// `ibv_attach_counters_point_flow(3)`
    #[doc(alias = "ibv_attach_counters_point_flow")]
    pub fn attach_point_flow(&self, attr: &CounterAttachAttr, flow: Option<&Flow<P>>) -> Result<()> {
        let registry = &self.handle.dependencies().0;
        if flow.is_some_and(|flow| !Arc::ptr_eq(flow.registry(), registry)) {
            return Err(registry.foreign("attach_counters_point_flow", "flow rule"));
        }
        self.handle.get().attach_point_flow(attr, flow.map(Flow::raw))
    }

    /// Reads the values of the counters, by their index.
    ///
    /// # Errors
    /// `EINVAL` for fewer values than counters, and for a set that no rule uses; any other errno
    /// that the kernel returns.
    ///
    /// # References
    /// `ibv_read_counters(3)`
    #[doc(alias = "ibv_read_counters")]
    pub fn read(&self, values: &mut [u64], flags: ReadCountersFlags) -> Result<()> {
        self.handle.get().read(values, flags)
    }

    /// Returns the provider's own set, for features beyond verbs.
    pub fn raw(&self) -> &P::Counters {
        self.handle.get()
    }

    /// Returns a rule's share of the set.
    ///
    /// # Errors
    /// `EINVAL` for a set of another open device.
    pub(crate) fn share(&self, verb: &'static str, registry: &Arc<Registry>) -> Result<Parent> {
        if !Arc::ptr_eq(&self.handle.dependencies().0, registry) {
            return Err(registry.foreign(verb, "set of counters"));
        }
        Ok(Arc::<Set<P>>::clone(&self.handle))
    }

    /// Destroys the set. Dropping does the same, once no rule uses it.
    ///
    /// # Errors
    /// The set: `EBUSY` with [`Cause::InUse`](crate::Cause::InUse) while rules use it; any other
    /// errno that the kernel returns.
    ///
    /// # References
    /// `ibv_destroy_counters(3)`
    #[doc(alias = "ibv_destroy_counters")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        let registry = Arc::clone(&self.handle.dependencies().0);
        let in_use = || registry.in_use("destroy_counters", "flow rules");
        close_shared(self.handle, in_use).map(drop).map_err(|failed| failed.map(|handle| Self { handle }))
    }
}

/// A counter of completions: one value for those that succeeded, one for those that failed. Queue
/// pairs count in it without a completion queue being polled.
///
/// Close or drop it after the queue pairs that count in it. Neither rxe nor soft devices have
/// completion counters.
///
/// # References
/// `ibv_create_comp_cntr(3)`
#[doc(alias = "ibv_comp_cntr")]
#[derive(Debug)]
pub struct CompCntr<P: Provider = Erased> {
    handle: KernelHandle<P::CompCntr, (Context<P>, Child)>,
}

impl<P: Provider> CompCntr<P> {
    /// Lets a queue pair count operations in it.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for operations that the device cannot count; `EINVAL` with
    /// [`Cause::Foreign`](crate::Cause::Foreign) for a queue pair of another open device; any other
    /// errno that the kernel returns.
    ///
    /// # References
    /// `ibv_qp_attach_comp_cntr(3)`
    #[doc(alias = "ibv_qp_attach_comp_cntr")]
    #[doc(alias = "ibv_qp_attach_comp_cntr_attr")]
    pub fn attach<S: State>(&self, qp: &Qp<S, P>, ops: CompCntrAttachOps) -> Result<()> {
        let context = &self.handle.dependencies().0;
        if !Arc::ptr_eq(qp.registry(), context.registry()) {
            return Err(context.registry().foreign("qp_attach_comp_cntr", "queue pair"));
        }
        context.raw().qp_attach_comp_cntr(qp.raw(), self.handle.get(), ops)
    }

    /// Sets the number of successful completions.
    ///
    /// # Errors
    /// Any errno that the kernel returns; notably `EINVAL` for a value beyond the device's largest.
    ///
    /// # References
    /// `ibv_set_comp_cntr(3)`
    #[doc(alias = "ibv_set_comp_cntr")]
    pub fn set(&self, value: u64) -> Result<()> {
        self.handle.get().set(CompCntrEntry::COMP, value)
    }

    /// Sets the number of failed completions.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    ///
    /// # References
    /// `ibv_set_err_comp_cntr(3)`
    #[doc(alias = "ibv_set_err_comp_cntr")]
    pub fn set_err(&self, value: u64) -> Result<()> {
        self.handle.get().set(CompCntrEntry::ERR, value)
    }

    /// Adds to the number of successful completions.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    ///
    /// # References
    /// `ibv_inc_comp_cntr(3)`
    #[doc(alias = "ibv_inc_comp_cntr")]
    pub fn inc(&self, amount: u64) -> Result<()> {
        self.handle.get().inc(CompCntrEntry::COMP, amount)
    }

    /// Adds to the number of failed completions.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    ///
    /// # References
    /// `ibv_inc_err_comp_cntr(3)`
    #[doc(alias = "ibv_inc_err_comp_cntr")]
    pub fn inc_err(&self, amount: u64) -> Result<()> {
        self.handle.get().inc(CompCntrEntry::ERR, amount)
    }

    /// Reads the number of successful completions.
    ///
    /// # Errors
    /// Any errno that the kernel returns; notably `EIO` once the device is gone.
    ///
    /// # References
    /// `ibv_read_comp_cntr(3)`
    #[doc(alias = "ibv_read_comp_cntr")]
    pub fn read(&self) -> Result<u64> {
        self.handle.get().read(CompCntrEntry::COMP)
    }

    /// Reads the number of failed completions.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # References
    /// `ibv_read_err_comp_cntr(3)`
    #[doc(alias = "ibv_read_err_comp_cntr")]
    pub fn read_err(&self) -> Result<u64> {
        self.handle.get().read(CompCntrEntry::ERR)
    }

    /// Returns the provider's own counter, for features beyond verbs.
    pub fn raw(&self) -> &P::CompCntr {
        self.handle.get()
    }

    /// Destroys the counter. Dropping does the same, and leaks a counter that the kernel refuses to
    /// destroy.
    ///
    /// # Errors
    /// The counter, and any errno that the kernel returns; notably `EBUSY` while a queue pair
    /// counts in it.
    ///
    /// # References
    /// `ibv_destroy_comp_cntr(3)`
    #[doc(alias = "ibv_destroy_comp_cntr")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        self.handle.close().map(drop).map_err(|failed| failed.map(|handle| Self { handle }))
    }
}
