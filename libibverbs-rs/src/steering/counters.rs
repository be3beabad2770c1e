//! [`Counters`] of flow rules and [`CompCntr`], a counter of completions.

use std::sync::Arc;

use verbs_core::Result;
use verbs_core::provider::{CompCntrOps, ContextOps, CountersOps, Erased, NamedProvider, Provider};
use verbs_core::types::{
    CompCntrAttachOps, CompCntrCaps, CompCntrEntry, CompCntrType, CounterAttachAttr, ReadCountersFlags,
};

use crate::device::context::Context;
use crate::handle::error::HandleError;
use crate::handle::registry::{Child, RULES, Registry};
use crate::handle::shared_object::SharedObject;
use crate::qp::Qp;
use crate::qp::state::State;
use crate::steering::flow::Flow;

/// A set of counters for flow rules, named by [`ActionCount`](crate::FlowSpec::ActionCount).
///
/// Neither rxe nor soft devices have counters.
///
/// # References
/// `ibv_create_counters(3)`
#[doc(alias = "ibv_counters")]
#[derive(Debug)]
pub struct Counters<P: Provider = Erased> {
    shared: SharedObject<P::Counters>,
}

impl<P: Provider> Context<P> {
    /// Creates a set of counters for flow rules.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device or the kernel has no such counters; any other errno the kernel
    /// returns.
    ///
    /// # References
    /// `ibv_create_counters(3)`
    #[doc(alias = "ibv_create_counters")]
    #[doc(alias = "ibv_counters_init_attr")]
    pub fn create_counters(&self) -> Result<Counters<P>> {
        let raw = self.creating("create_counters")?.create_counters()?;
        let context = self.child(&self.registry().counters_tally);
        Ok(Counters { shared: SharedObject::new(raw, context, self.registry()) })
    }

    /// Queries the device's completion counters.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device or the kernel has no completion counters; otherwise as
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
    /// `EOPNOTSUPP` if the device or the kernel lacks this kind of counter; any other errno the
    /// kernel returns.
    ///
    /// # References
    /// `ibv_create_comp_cntr(3)`
    #[doc(alias = "ibv_create_comp_cntr")]
    #[doc(alias = "ibv_comp_cntr_init_attr")]
    pub fn create_comp_cntr(&self, cntr_type: CompCntrType) -> Result<CompCntr<P>> {
        let raw = self.creating("create_comp_cntr")?.create_comp_cntr(cntr_type)?;
        let child = self.child(&self.registry().comp_cntr_tally);
        Ok(CompCntr { shared: SharedObject::new(raw, child, self.registry()), context: self.clone() })
    }
}

impl<P: Provider> Counters<P> {
    /// Adds a counter to the set, for rules that will use the set or, with `flow`, for an existing
    /// rule. [`read`](Self::read) returns the counter's value at `attr.index`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device does not count the quantity, or cannot count it for an existing
    /// rule; `EINVAL` with [`Cause::Foreign`](crate::Cause::Foreign) for a rule of another open
    /// device.
    ///
    /// # References
    /// `ibv_attach_counters_point_flow(3)`
    #[doc(alias = "ibv_attach_counters_point_flow")]
    pub fn attach_point_flow(&self, attr: &CounterAttachAttr, flow: Option<&Flow<P>>) -> Result<()> {
        let registry = self.shared.registry();
        if flow.is_some_and(|flow| !Arc::ptr_eq(flow.registry(), registry)) {
            return Err(registry.foreign("attach_counters_point_flow", "flow rule"));
        }
        self.shared.get().attach_point_flow(attr, flow.map(Flow::raw))
    }

    /// Reads the counters into `values`, each at its index.
    ///
    /// # Errors
    /// `EINVAL` for fewer values than counters, or a set without rules; any other errno the kernel
    /// returns.
    ///
    /// # References
    /// `ibv_read_counters(3)`
    #[doc(alias = "ibv_read_counters")]
    pub fn read(&self, values: &mut [u64], flags: ReadCountersFlags) -> Result<()> {
        self.shared.get().read(values, flags)
    }

    /// Returns the provider's own set, for features beyond verbs.
    pub fn raw(&self) -> &P::Counters {
        self.shared.get()
    }

    /// Returns a share of the set for a rule.
    ///
    /// # Errors
    /// `EINVAL` for a set of another open device.
    pub(crate) fn share(&self, verb: &'static str, registry: &Registry) -> Result<Child> {
        self.shared.user_in(registry, verb, "set of counters")
    }

    /// Destroys the set. A dropped set is destroyed once no rule uses it.
    ///
    /// # Errors
    /// Returns the set with the error: `EBUSY` with [`Cause::InUse`](crate::Cause::InUse) while
    /// rules use it; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_destroy_counters(3)`
    #[doc(alias = "ibv_destroy_counters")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        self.shared.close("destroy_counters", RULES).map_err(|failed| failed.map(|shared| Self { shared }))
    }
}

impl Counters<Erased> {
    /// Returns the same set with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the set if it belongs to another provider, or with `EBUSY` while rules use it.
    pub fn downcast<P: NamedProvider>(self) -> Result<Counters<P>, HandleError<Self>> {
        match self.shared.try_map("downcast", RULES, |raw| raw.downcast::<P::Counters>()) {
            Ok(shared) => Ok(Counters { shared }),
            Err(failed) => Err(failed.map(|shared| Self { shared })),
        }
    }
}

/// A counter of completions: one value for successes and one for failures. The counter counts even
/// if no completion queue is polled.
///
/// Queue pairs keep their counters alive: a dropped counter is destroyed after its last queue pair.
/// Neither rxe nor soft devices have completion counters.
///
/// # References
/// `ibv_create_comp_cntr(3)`
#[doc(alias = "ibv_comp_cntr")]
#[derive(Debug)]
pub struct CompCntr<P: Provider = Erased> {
    shared: SharedObject<P::CompCntr>,
    context: Context<P>,
}

impl<P: Provider> CompCntr<P> {
    /// Attaches the counter to a queue pair's operations.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for operations the device cannot count; `EINVAL` with
    /// [`Cause::Foreign`](crate::Cause::Foreign) for a queue pair of another open device; any other
    /// errno the kernel returns.
    ///
    /// # References
    /// `ibv_qp_attach_comp_cntr(3)`
    #[doc(alias = "ibv_qp_attach_comp_cntr")]
    #[doc(alias = "ibv_qp_attach_comp_cntr_attr")]
    pub fn attach<S: State>(&self, qp: &Qp<S, P>, ops: CompCntrAttachOps) -> Result<()> {
        let registry = self.shared.registry();
        if !Arc::ptr_eq(qp.registry(), registry) {
            return Err(registry.foreign("qp_attach_comp_cntr", "queue pair"));
        }
        self.context.raw().qp_attach_comp_cntr(qp.raw(), self.raw(), ops)?;
        qp.keep(self.shared.user());
        Ok(())
    }

    /// Sets the number of successful completions.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EINVAL` for a value beyond the device's maximum.
    ///
    /// # References
    /// `ibv_set_comp_cntr(3)`
    #[doc(alias = "ibv_set_comp_cntr")]
    pub fn set(&self, value: u64) -> Result<()> {
        self.shared.get().set(CompCntrEntry::COMP, value)
    }

    /// Sets the number of failed completions.
    ///
    /// # Errors
    /// Same as [`set`](Self::set).
    ///
    /// # References
    /// `ibv_set_err_comp_cntr(3)`
    #[doc(alias = "ibv_set_err_comp_cntr")]
    pub fn set_err(&self, value: u64) -> Result<()> {
        self.shared.get().set(CompCntrEntry::ERR, value)
    }

    /// Adds to the number of successful completions.
    ///
    /// # Errors
    /// Same as [`set`](Self::set).
    ///
    /// # References
    /// `ibv_inc_comp_cntr(3)`
    #[doc(alias = "ibv_inc_comp_cntr")]
    pub fn inc(&self, amount: u64) -> Result<()> {
        self.shared.get().inc(CompCntrEntry::COMP, amount)
    }

    /// Adds to the number of failed completions.
    ///
    /// # Errors
    /// Same as [`set`](Self::set).
    ///
    /// # References
    /// `ibv_inc_err_comp_cntr(3)`
    #[doc(alias = "ibv_inc_err_comp_cntr")]
    pub fn inc_err(&self, amount: u64) -> Result<()> {
        self.shared.get().inc(CompCntrEntry::ERR, amount)
    }

    /// Reads the number of successful completions.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EIO` once the device is gone.
    ///
    /// # References
    /// `ibv_read_comp_cntr(3)`
    #[doc(alias = "ibv_read_comp_cntr")]
    pub fn read(&self) -> Result<u64> {
        self.shared.get().read(CompCntrEntry::COMP)
    }

    /// Reads the number of failed completions.
    ///
    /// # Errors
    /// Same as [`read`](Self::read).
    ///
    /// # References
    /// `ibv_read_err_comp_cntr(3)`
    #[doc(alias = "ibv_read_err_comp_cntr")]
    pub fn read_err(&self) -> Result<u64> {
        self.shared.get().read(CompCntrEntry::ERR)
    }

    /// Returns the provider's own counter, for features beyond verbs.
    pub fn raw(&self) -> &P::CompCntr {
        self.shared.get()
    }

    /// Destroys the counter. A dropped counter is destroyed once no queue pair uses it, and leaked
    /// if the kernel refuses.
    ///
    /// # Errors
    /// Returns the counter with the error: `EBUSY` with [`Cause::InUse`](crate::Cause::InUse) while
    /// a queue pair uses it; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_destroy_comp_cntr(3)`
    #[doc(alias = "ibv_destroy_comp_cntr")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        let Self { shared, context } = self;
        shared
            .close("destroy_comp_cntr", QUEUE_PAIRS)
            .map_err(|failed| failed.map(|shared| Self { shared, context }))
    }
}

impl CompCntr<Erased> {
    /// Returns the same counter with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the counter if it belongs to another provider, or with `EBUSY` while a queue pair
    /// uses it.
    pub fn downcast<P: NamedProvider>(self) -> Result<CompCntr<P>, HandleError<Self>> {
        let Ok(named) = self.context.clone().downcast::<P>() else {
            return Err(HandleError::of_another_provider(self));
        };
        let Self { shared, context } = self;
        match shared.try_map("downcast", QUEUE_PAIRS, |raw| raw.downcast::<P::CompCntr>()) {
            Ok(shared) => Ok(CompCntr { shared, context: named }),
            Err(failed) => Err(failed.map(|shared| Self { shared, context })),
        }
    }
}

/// The name of queue pairs in error messages about a completion counter.
const QUEUE_PAIRS: &str = "queue pairs";
