//! Thread domains, parent domains, and queue allocators.
//!
//! # Safety
//! [`QueueAllocator`] is an unsafe trait, because a device reads and writes the allocated memory.
#![allow(unsafe_code)]

use core::any::Any;
use core::fmt::Debug;
use core::ptr::NonNull;
use std::sync::Arc;

use super::Provider;

/// A thread domain. It declares that objects created with it, in a parent domain, are used by one
/// thread at a time.
///
/// Posting and polling take `&mut` here, which guarantees this anyway, so a completion queue in
/// such a parent domain has no lock to omit. A provider may still give these objects dedicated
/// device resources.
pub trait TdOps: Any + Debug + Send + Sync {}

/// The attributes of a new parent domain.
#[derive(Debug)]
pub struct ParentDomainAttr<'a, P: Provider> {
    /// The protection domain for objects in the parent domain.
    pub pd: &'a P::Pd,
    /// The thread domain for objects in the parent domain.
    pub td: Option<&'a P::Td>,
    /// The allocator for the queues of objects in the parent domain.
    pub allocator: Option<&'a Arc<dyn QueueAllocator>>,
    /// Whether queues may use memory that a confidential guest shares with its host. Providers may
    /// ignore this flag unless the device has
    /// [`CC_DMA_BOUNCE`](crate::types::DeviceCapFlags::CC_DMA_BOUNCE).
    pub allow_cc_unprotected_alloc: bool,
}

impl<P: Provider> Clone for ParentDomainAttr<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Provider> Copy for ParentDomainAttr<'_, P> {}

/// The result of [`QueueAllocator::alloc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueMemory {
    /// The allocator provides this memory.
    Own(NonNull<u8>),
    /// The provider must allocate this queue itself, as without an allocator.
    #[doc(alias = "IBV_ALLOCATOR_USE_DEFAULT")]
    Default,
    /// No memory is available, so the object is not created.
    Exhausted,
}

/// An allocator for the queues of objects created in a parent domain.
///
/// # Safety
/// Memory returned by [`alloc`](Self::alloc) must have the requested size and alignment and be
/// initialised. No other code may access it until it is [freed](Self::free).
///
/// # References
/// `ibv_alloc_parent_domain(3)`
#[doc(alias = "ibv_parent_domain_init_attr")]
pub unsafe trait QueueAllocator: Debug + Send + Sync {
    /// Allocates `size` bytes whose address is a multiple of `alignment`. The provider documents
    /// the values of `resource_type`.
    fn alloc(&self, size: usize, alignment: usize, resource_type: u64) -> QueueMemory;

    /// Frees memory returned by [`alloc`](Self::alloc).
    ///
    /// # Safety
    /// The memory must come from this allocator, have this resource type, and no longer be
    /// accessed.
    unsafe fn free(&self, memory: NonNull<u8>, resource_type: u64);
}
