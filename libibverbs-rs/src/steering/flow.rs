//! [`Flow`]: a rule that steers packets to a queue pair; [`FlowAction`]: how the device processes
//! these packets.
//!
//! A rule keeps its queue pair, flow actions and counters alive.

use std::sync::Arc;

use verbs_core::Result;
use verbs_core::provider::{ContextOps, Erased, FlowActionOps, NamedProvider, Provider};
use verbs_core::types::{FlowActionEspAttr, FlowAttr};

use crate::device::context::Context;
use crate::handle::error::HandleError;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::{Child, RULES, Registry};
use crate::handle::shared_object::SharedObject;
use crate::qp::Qp;
use crate::qp::QpUse;
use crate::qp::state::State;
use crate::steering::counters::Counters;

/// A rule that steers packets to a queue pair.
///
/// A rule keeps its queue pair alive, because the kernel refuses to destroy a queue pair with
/// rules: a dropped queue pair is destroyed after its last rule and keeps receiving until then.
/// Neither rxe nor soft devices have flow rules.
///
/// # References
/// `ibv_create_flow(3)`
#[doc(alias = "ibv_flow")]
#[derive(Debug)]
pub struct Flow<P: Provider = Erased> {
    handle: KernelHandle<P::Flow, Dependencies>,
}

/// The dependencies of a rule, released once it is destroyed.
#[derive(Debug)]
struct Dependencies {
    _qp: QpUse,
    _named: Vec<Child>,
    registry: Arc<Registry>,
    _context: Child,
}

impl<P: Provider> Context<P> {
    /// Creates a flow rule for a queue pair.
    ///
    /// ```no_run
    /// # type Rtr = verbs::Qp<verbs::state::Rtr>;
    /// # fn f(context: verbs::Context, qp: Rtr) -> Result<(), verbs::Error> {
    /// use verbs::{FlowAttr, FlowMatch, FlowSpec, FlowTcpUdpFilter};
    ///
    /// let roce = FlowMatch {
    ///     val: FlowTcpUdpFilter { dst_port: 4791, ..Default::default() },
    ///     mask: FlowTcpUdpFilter { dst_port: 0xffff, ..Default::default() },
    /// };
    /// let counters = context.create_counters()?;
    /// let rule = FlowAttr::new(1)
    ///     .with(FlowSpec::Udp { fields: roce, is_inner: false })
    ///     .with(FlowSpec::ActionCount(&counters));
    /// let flow = context.create_flow(&qp, rule)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - `EOPNOTSUPP` if the device does not support flow rules, or not these specifications.
    /// - `EPERM` without `CAP_NET_RAW`.
    /// - `EINVAL` with [`Cause::Foreign`](crate::Cause::Foreign) for a queue pair, flow action or
    ///   counters of another open device.
    /// - Any other errno the kernel returns; notably `EINVAL` for more than 10 specifications or
    ///   headers in the wrong order.
    ///
    /// # References
    /// `ibv_create_flow(3)`
    #[doc(alias = "ibv_create_flow")]
    pub fn create_flow<S: State>(
        &self,
        qp: &Qp<S, P>,
        rule: FlowAttr<&FlowAction<P>, &Counters<P>>,
    ) -> Result<Flow<P>> {
        const VERB: &str = "create_flow";
        let registry = self.registry();
        if !Arc::ptr_eq(qp.registry(), registry) {
            return Err(registry.foreign(VERB, "queue pair"));
        }
        let (mut actions, mut sets): (Vec<Child>, Vec<Child>) = (Vec::new(), Vec::new());
        let rule = rule.try_map(
            |action: &FlowAction<P>| -> Result<_> {
                actions.push(action.share(VERB, registry)?);
                Ok(action.raw())
            },
            |counters| {
                sets.push(counters.share(VERB, registry)?);
                Ok(counters.raw())
            },
        )?;
        let raw = self.creating(VERB)?.create_flow(qp.raw(), rule)?;
        actions.append(&mut sets);
        let context = self.child(&registry.flow_tally);
        let registry = Arc::clone(registry);
        let dependencies = Dependencies { _qp: qp.share(), _named: actions, registry, _context: context };
        Ok(Flow { handle: KernelHandle::new(raw, dependencies) })
    }

    /// Creates a flow action that encrypts or decrypts ESP.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device or the kernel does not support such actions or these attributes:
    /// Linux 5.10 supports them for mlx5, Linux 6.1 and newer do not. Any other errno the kernel
    /// returns.
    ///
    /// # References
    /// `ibv_create_flow_action(3)`
    #[doc(alias = "ibv_create_flow_action_esp")]
    pub fn create_flow_action_esp(&self, attr: &FlowActionEspAttr) -> Result<FlowAction<P>> {
        let raw = self.creating("create_flow_action")?.create_flow_action_esp(attr)?;
        let context = self.child(&self.registry().action_tally);
        Ok(FlowAction { shared: SharedObject::new(raw, context, self.registry()) })
    }
}

impl<P: Provider> Flow<P> {
    /// Returns the provider's own rule, for features beyond verbs.
    pub fn raw(&self) -> &P::Flow {
        self.handle.get()
    }

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.handle.dependencies().registry
    }

    /// Destroys the rule. Dropping does the same and leaks a rule the kernel refuses to destroy.
    ///
    /// # Errors
    /// Returns the rule and any errno the kernel returns.
    ///
    /// # References
    /// `ibv_destroy_flow(3)`
    #[doc(alias = "ibv_destroy_flow")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        self.handle.close().map(drop).map_err(|failed| failed.map(|handle| Self { handle }))
    }
}

impl Flow<Erased> {
    /// Returns the same rule with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the rule if it belongs to another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Flow<P>, HandleError<Self>> {
        match self.handle.try_map(|raw| raw.downcast::<P::Flow>()) {
            Ok(handle) => Ok(Flow { handle }),
            Err(handle) => Err(HandleError::of_another_provider(Self { handle })),
        }
    }
}

/// An action that flow rules apply to packets through
/// [`ActionHandle`](crate::FlowSpec::ActionHandle).
///
/// # References
/// `ibv_create_flow_action(3)`
#[doc(alias = "ibv_flow_action")]
#[derive(Debug)]
pub struct FlowAction<P: Provider = Erased> {
    shared: SharedObject<P::FlowAction>,
}

impl<P: Provider> FlowAction<P> {
    /// Changes the ESP action attributes set in `attr`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for attributes that cannot change; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_modify_flow_action(3)`
    #[doc(alias = "ibv_modify_flow_action_esp")]
    pub fn modify_esp(&self, attr: &FlowActionEspAttr) -> Result<()> {
        self.shared.get().modify_esp(attr)
    }

    /// Returns the provider's own action, for features beyond verbs.
    pub fn raw(&self) -> &P::FlowAction {
        self.shared.get()
    }

    /// Returns a rule's share of the action.
    ///
    /// # Errors
    /// `EINVAL` for an action of another open device.
    fn share(&self, verb: &'static str, registry: &Registry) -> Result<Child> {
        self.shared.user_in(registry, verb, "flow action")
    }

    /// Destroys the action. A dropped action is destroyed once no rule uses it.
    ///
    /// # Errors
    /// Returns the action with the error: `EBUSY` with [`Cause::InUse`](crate::Cause::InUse) while
    /// rules use it; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_destroy_flow_action(3)`
    #[doc(alias = "ibv_destroy_flow_action")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        self.shared.close("destroy_flow_action", RULES).map_err(|failed| failed.map(|shared| Self { shared }))
    }
}

impl FlowAction<Erased> {
    /// Returns the same action with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the action if it belongs to another provider, or with `EBUSY` while rules use it.
    pub fn downcast<P: NamedProvider>(self) -> Result<FlowAction<P>, HandleError<Self>> {
        match self.shared.try_map("downcast", RULES, |raw| raw.downcast::<P::FlowAction>()) {
            Ok(shared) => Ok(FlowAction { shared }),
            Err(failed) => Err(failed.map(|shared| Self { shared })),
        }
    }
}
