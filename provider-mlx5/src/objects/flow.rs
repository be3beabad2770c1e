//! [`Flow`]: a flow rule, optionally with counters.
//!
//! # References
//! `ibv_create_flow(3)`; rdma-core `providers/mlx5/verbs.c` (`_mlx5_create_flow`)

use std::sync::Arc;

use verbs_core::channel::Uhw;
use verbs_core::provider::{CountersOps as _, Destroy, FlowActionOps as _, FlowOps, FlowRule, QpOps as _};
use verbs_core::types::FlowAttr;
use verbs_core::{Cause, Errno, Error, Result, cmd};

use crate::device::Device;
use crate::objects::counters::{Bound, Counters};
use crate::objects::mlx5::Mlx5;
use crate::objects::qp::Qp;

/// A flow rule.
#[derive(Debug)]
pub struct Flow {
    device: Arc<Device>,
    handle: u32,
    /// The set of counters the rule uses, if any.
    bound: Option<Arc<Bound>>,
}

impl Flow {
    pub(crate) fn create(device: &Arc<Device>, qp: &Qp, rule: FlowRule<'_, Mlx5>) -> Result<Self> {
        const VERB: &str = "create_flow";
        let refused = |cause| Err(device.error(VERB, Errno::INVAL).because(cause));
        if !Arc::ptr_eq(qp.device(), device) {
            return refused(Cause::Foreign { what: "queue pair" });
        }
        let mut sets: Vec<&Counters> = Vec::new();
        let rule: FlowAttr = rule.try_map(
            |action| Ok(action.handle()),
            |counters: &Counters| {
                sets.push(counters);
                Ok::<_, Error>(counters.handle())
            },
        )?;
        if sets.iter().any(|counters| !Arc::ptr_eq(counters.device(), device)) {
            return refused(Cause::Foreign { what: "set of counters" });
        }
        let create = |uhw: Uhw<'_>| cmd::flow::create_flow(device.kernel.uverbs(), qp.handle(), &rule, uhw);
        let (handle, bound) = match sets[..] {
            [] => (create(Uhw::none())?, None),
            [counters] => {
                let mut set = counters.bound().set().map_err(|lost| device.of_parent("create_flow", lost))?;
                let handle = match set.describe(create) {
                    Ok(created) => created?,
                    Err(cause) => return refused(cause),
                };
                set.rules += 1;
                (handle, Some(Arc::clone(counters.bound())))
            }
            _ => {
                let reason = "the driver takes one set of counters for a rule".into();
                return refused(Cause::Other { reason });
            }
        };
        Ok(Self { device: Arc::clone(device), handle, bound })
    }
}

impl FlowOps for Flow {
    fn handle(&self) -> u32 {
        self.handle
    }
}

impl Destroy for Flow {
    fn destroy(self) -> Result<(), (Self, Error)> {
        // The driver drops the set's description with its last rule.
        let destroyed = self
            .bound
            .as_deref()
            .map(Bound::set)
            .transpose()
            .map_err(|lost| self.device.of_parent("destroy_flow", lost))
            .and_then(|mut set| {
                cmd::flow::destroy_flow(self.device.kernel.uverbs(), self.handle)?;
                if let Some(set) = &mut set {
                    set.rules -= 1;
                }
                Ok(())
            });
        destroyed.map_err(|error| (self, error))
    }
}
