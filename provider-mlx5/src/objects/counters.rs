//! [`Counters`]: a set of flow rule counters.
//!
//! The command that creates the first rule with a set also passes the set's description to the
//! driver. After the set's last rule is destroyed, the next rule passes the description again.
//!
//! # Safety
//! The driver reads the descriptions during the command, which borrows them.
//!
//! # References
//! `ibv_attach_counters_point_flow(3)`; rdma-core `providers/mlx5/verbs.c`
//! (`allocate_flow_counters_descriptions`); Linux `drivers/infiniband/hw/mlx5/counters.c`
#![allow(unsafe_code)]

use std::sync::Arc;

use uverbs_abi::mlx5_abi::{Mlx5IbCreateFlow, Mlx5IbFlowCountersData, Mlx5IbFlowCountersDesc};
use verbs_core::channel::Uhw;
use verbs_core::fork::{ForkGuard, ForkLock, Lost};
use verbs_core::provider::{CountersOps, Destroy};
use verbs_core::types::{CounterAttachAttr, CounterDescription, ReadCountersFlags};
use verbs_core::{Cause, Errno, Error, Result, cmd};
use zerocopy::IntoBytes;

use crate::device::Device;
use crate::objects::flow::Flow;

/// A set of flow rule counters.
#[derive(Debug)]
pub struct Counters {
    device: Arc<Device>,
    handle: u32,
    bound: Arc<Bound>,
}

/// The part of a set that is shared with its rules.
#[derive(Debug, Default)]
pub(crate) struct Bound(ForkLock<Set>);

/// The counters in a set and the number of rules that use them.
#[derive(Debug, Default)]
pub(crate) struct Set {
    descriptions: Vec<Mlx5IbFlowCountersDesc>,
    pub(crate) rules: u32,
}

impl Bound {
    /// Locks the set for a command that binds it to a rule or destroys the rule.
    ///
    /// # Errors
    /// [`Lost`] in a forked child whose parent held this lock.
    pub(crate) fn set(&self) -> Result<ForkGuard<'_, Set>, Lost> {
        self.0.lock()
    }
}

impl Set {
    /// Calls `command` with the driver's input for a rule that uses this set.
    ///
    /// # Errors
    /// [`Cause::Other`] for a set without counters. The inner result is the result of `command`.
    pub(crate) fn describe<T>(&self, command: impl FnOnce(Uhw<'_>) -> Result<T>) -> Result<Result<T>, Cause> {
        if self.rules > 0 {
            // The driver has the description already.
            return Ok(command(Uhw::none()));
        }
        if self.descriptions.is_empty() {
            let reason = "the set of counters has no counter: attach one first".into();
            return Err(Cause::Other { reason });
        }
        let data = Mlx5IbFlowCountersData {
            counters_data: self.descriptions.as_ptr().expose_provenance() as u64,
            ncounters: self.descriptions.len() as u32,
            reserved: 0,
        };
        let head = Mlx5IbCreateFlow { ncounters_data: 1, reserved: 0 };
        let input = [head.as_bytes(), data.as_bytes()].concat();
        // SAFETY: the driver reads the descriptions and writes nothing.
        Ok(command(unsafe { Uhw::none().with_input(&input) }))
    }
}

impl Counters {
    pub(crate) fn create(device: &Arc<Device>) -> Result<Self> {
        let handle = cmd::counters::create_counters(device.kernel.uverbs())?;
        Ok(Self { device: Arc::clone(device), handle, bound: Arc::default() })
    }

    /// Returns the open device the set belongs to.
    pub(crate) const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the part of the set that rules share.
    pub(crate) const fn bound(&self) -> &Arc<Bound> {
        &self.bound
    }
}

impl CountersOps for Counters {
    type Flow = Flow;

    fn handle(&self) -> u32 {
        self.handle
    }

    fn attach_point_flow(&self, attr: &CounterAttachAttr, flow: Option<&Flow>) -> Result<()> {
        let refused = |errno, reason: &'static str| {
            let error = self.device.error("attach_counters_point_flow", errno);
            Err(error.because(Cause::Other { reason: reason.into() }))
        };
        if flow.is_some() {
            return refused(Errno::OPNOTSUPP, "the driver binds counters when it creates a rule");
        }
        if !matches!(attr.counter_desc, CounterDescription::PACKETS | CounterDescription::BYTES) {
            return refused(Errno::OPNOTSUPP, "the device counts packets and bytes");
        }
        let lost = |lost: Lost| self.device.of_parent("attach_counters_point_flow", lost);
        let mut set = self.bound.set().map_err(lost)?;
        if set.rules > 0 {
            return refused(Errno::BUSY, "a flow rule has the set of counters");
        }
        let description = attr.counter_desc.0;
        set.descriptions.push(Mlx5IbFlowCountersDesc { description, index: attr.index });
        Ok(())
    }

    fn read(&self, values: &mut [u64], flags: ReadCountersFlags) -> Result<()> {
        cmd::counters::read_counters(self.device.kernel.uverbs(), self.handle, values, flags)
    }
}

impl Destroy for Counters {
    fn destroy(self) -> Result<(), (Self, Error)> {
        match cmd::counters::destroy_counters(self.device.kernel.uverbs(), self.handle) {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}
