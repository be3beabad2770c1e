//! A memory window.

use core::any::Any;
use core::fmt::Debug;

use crate::types::MwType;

/// A memory window. Work requests bind and invalidate it; its key changes with each of them, and is
/// known to the poster alone.
pub trait MwOps: Any + Debug + Send + Sync {
    /// Returns the kernel's handle.
    fn handle(&self) -> u32;

    /// Returns the key with which it was allocated.
    fn rkey(&self) -> u32;

    /// Returns its kind.
    fn mw_type(&self) -> MwType;
}
