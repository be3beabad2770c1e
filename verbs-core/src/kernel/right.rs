//! [`Kernel`]: a kernel context with the right to command it, shared by a provider's objects.
//!
//! # Safety
//! A provider obtains the right once, with [`Kernel::new`], for all its files. From then on, its
//! objects command the context without unsafe code, so safe code outside the provider must never
//! reach a [`Kernel`].
#![allow(unsafe_code)]

use std::ops::Deref;
use std::sync::Arc;

use super::KernelContext;
use crate::channel::Uverbs;

/// A kernel context and the right to command it. It belongs to one provider and is not part of its
/// public interface.
#[derive(Clone, Debug)]
pub struct Kernel(Arc<KernelContext>);

impl Kernel {
    /// Obtains the right to command a context.
    ///
    /// # Safety
    /// The caller must meet the requirements listed at [`Uverbs`] and pass the value and its clones
    /// only to code that meets these requirements too.
    pub const unsafe fn new(context: Arc<KernelContext>) -> Self {
        Self(context)
    }

    /// Returns the interface for commanding the context.
    pub fn uverbs(&self) -> &Uverbs {
        // SAFETY: the caller of `new` guarantees to use the right as `Uverbs` requires.
        unsafe { self.0.uverbs() }
    }
}

impl Deref for Kernel {
    type Target = Arc<KernelContext>;

    fn deref(&self) -> &Arc<KernelContext> {
        &self.0
    }
}
