//! Counters for flow rules and for completions.

use core::any::Any;
use core::fmt::Debug;

use super::FlowOps;
use crate::error::Result;
use crate::types::{CompCntrEntry, CounterAttachAttr, ReadCountersFlags};

/// A set of counters, used by flow rules.
pub trait CountersOps: Any + Debug + Send + Sync {
    /// The flow rule type of the same provider.
    type Flow: FlowOps
    where
        Self: Sized;

    /// Returns the kernel's handle for the set.
    fn handle(&self) -> u32;

    /// Adds a counter to the set: for the existing rule `flow` or, without it, for rules created
    /// with this set from now on.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device cannot count the quantity, or cannot count it for an existing
    /// rule.
    fn attach_point_flow(&self, attr: &CounterAttachAttr, flow: Option<&Self::Flow>) -> Result<()>
    where
        Self: Sized;

    /// Reads the counters into `values`, each at its index.
    ///
    /// # Errors
    /// `EINVAL` if `values` is shorter than the set or no rule uses the set; any other errno the
    /// kernel returns.
    fn read(&self, values: &mut [u64], flags: ReadCountersFlags) -> Result<()>;
}

/// A completion counter, used by queue pairs.
pub trait CompCntrOps: Any + Debug + Send + Sync {
    /// Returns the kernel's handle for the counter.
    fn handle(&self) -> u32;

    /// Sets one of the counter's values.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EINVAL` for a value beyond the device's maximum.
    fn set(&self, entry: CompCntrEntry, value: u64) -> Result<()>;

    /// Adds `amount` to one of the counter's values.
    ///
    /// # Errors
    /// The errors of [`set`](Self::set).
    fn inc(&self, entry: CompCntrEntry, amount: u64) -> Result<()>;

    /// Reads one of the counter's values.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EIO` once the device is gone.
    fn read(&self, entry: CompCntrEntry) -> Result<u64>;
}
