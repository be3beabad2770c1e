//! Synchronisation primitives: those of `core`, or those of the model checker, which runs every
//! interleaving of threads.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --package libibverbs-rs --lib` runs the models.

#[cfg(all(test, loom))]
pub(super) use loom::{cell::UnsafeCell, sync::atomic};

#[cfg(not(all(test, loom)))]
pub(super) use core::sync::atomic;

/// A cell with the interface of the model checker's cell.
#[cfg(not(all(test, loom)))]
#[derive(Debug)]
pub(super) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(all(test, loom)))]
impl<T> UnsafeCell<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Calls `change` with a mutable pointer to the value.
    #[inline(always)]
    pub(super) fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
        change(self.0.get())
    }
}
