//! [`Kernel`]: the kernel's context, shared by the objects of this crate.
//!
//! # Safety
//! Here the crate takes the right to command the context, once for all its files. The type does not
//! leave the crate. The objects keep the promises of [`Uverbs`]: each changes and destroys only the
//! kernel object that it created, when its owner requests it. A queue posts only requests for which
//! the callers of the unsafe posting functions made their promises.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::sync::Arc;

use verbs_core::channel::Uverbs;
use verbs_core::kernel::KernelContext;

/// The kernel's context and the right to command it.
#[derive(Clone, Debug)]
pub(crate) struct Kernel(Arc<KernelContext>);

impl Kernel {
    pub(crate) const fn new(context: Arc<KernelContext>) -> Self {
        Self(context)
    }

    /// Returns the context's commands.
    pub(crate) fn uverbs(&self) -> &Uverbs {
        // SAFETY: only this crate can call it and uses the right as argued at the head of this
        // file.
        unsafe { self.0.uverbs() }
    }
}

impl Deref for Kernel {
    type Target = Arc<KernelContext>;

    fn deref(&self) -> &Arc<KernelContext> {
        &self.0
    }
}
