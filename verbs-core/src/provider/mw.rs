//! A memory window.

use core::any::Any;
use core::fmt::Debug;

use crate::types::MwType;

/// A memory window: a key that lets peers access the bound region. Work requests bind and
/// invalidate the window ([`SendOp::BindMw`](crate::types::SendOp::BindMw)). Each bind changes the
/// low 8 bits of its key, and only the poster knows the current key.
pub trait MwOps: Any + Debug + Send + Sync {
    /// Returns the kernel's handle for the window.
    fn handle(&self) -> u32;

    /// Returns the key assigned at allocation.
    fn rkey(&self) -> u32;

    /// Returns the window's type.
    fn mw_type(&self) -> MwType;

    /// Returns whether promise 23 of [`Provider`](super::Provider)'s contract holds for the window:
    /// the end of a binding also ends all accesses through it.
    ///
    /// If false, an access already in progress may continue after the binding has ended. Only
    /// deregistering the region ends such an access.
    fn revocation_ends_access(&self) -> bool {
        false
    }
}
