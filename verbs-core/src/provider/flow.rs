//! Flow rules and the actions that they apply to packets.

use core::any::Any;
use core::fmt::Debug;

use super::Provider;
use crate::error::Result;
use crate::types::{FlowActionEspAttr, FlowAttr};

/// A flow rule whose specifications refer to a provider's own flow actions and counters.
pub type FlowRule<'a, P> = FlowAttr<&'a <P as Provider>::FlowAction, &'a <P as Provider>::Counters>;

/// A flow rule, which steers packets to a queue pair.
pub trait FlowOps: Any + Debug + Send + Sync {
    /// Returns the kernel's handle for the rule.
    fn handle(&self) -> u32;
}

/// An action that flow rules apply to packets.
pub trait FlowActionOps: Any + Debug + Send + Sync {
    /// Returns the kernel's handle for the action.
    fn handle(&self) -> u32;

    /// Changes the ESP attributes that are set in `attr`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for attributes that cannot be changed; any other errno the kernel returns.
    fn modify_esp(&self, attr: &FlowActionEspAttr) -> Result<()>;
}
