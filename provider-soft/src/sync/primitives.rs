//! The primitives for shared state, from the standard library or from the model checker, which
//! tries every interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --package provider-soft --lib` runs the models.

#[cfg(all(test, loom))]
pub(crate) use loom::{cell::UnsafeCell, sync::Arc, sync::atomic, thread};

#[cfg(not(all(test, loom)))]
pub(crate) use {core::sync::atomic, std::sync::Arc, std::thread};

/// A cell with the interface of the model checker's `UnsafeCell`.
#[cfg(not(all(test, loom)))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(all(test, loom)))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Calls `look` with a pointer for reading the value.
    #[inline(always)]
    pub(crate) fn with<R>(&self, look: impl FnOnce(*const T) -> R) -> R {
        look(self.0.get())
    }

    /// Calls `change` with a pointer for writing the value.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
        change(self.0.get())
    }
}
