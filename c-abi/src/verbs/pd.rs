//! Protection domains, thread domains and parent domains.
//!
//! Objects created in a parent domain with a thread domain are used by one thread at a time, and
//! take no locks.
//!
//! # Safety
//! See the crate documentation: pointers refer to live objects of this library.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;

use verbs_core::provider::{
    ContextOps as _, Destroy, ParentDomainAttr, PdOps as _, Provider, QueueAllocator, QueueMemory,
};
use verbs_core::{Errno, Error};

use crate::abi::c::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC,
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td,
    ibv_td_init_attr,
};
use crate::abi::errno::{UNKNOWN_MEMBERS, code, not_null, not_null_or_null, pointer, refused};
use crate::handle::context::{ProviderContext, verb};
use crate::handle::destroyable::{Destroyable, Loan};
use crate::handle::object::{Object, check_handle, public};

/// A provider's protection domain.
pub(crate) struct Pd<P: Provider> {
    pub(crate) pd: P::Pd,
    /// Whether objects created in the domain are used by one thread at a time.
    pub(crate) is_single_threaded: bool,
    /// The users of a parent domain: each of its queue pairs and shared receive queues holds a
    /// clone. Providers count only the users of plain domains.
    pub(crate) users: Option<Arc<()>>,
}

impl<P: Provider> Destroy for Pd<P> {
    fn destroy(self) -> Result<(), (Self, Error)> {
        if self.users.as_ref().is_some_and(|users| Arc::strong_count(users) > 1) {
            return Err((self, refused("dealloc_pd", Errno::BUSY, "objects use the parent domain")));
        }
        let Self { pd, is_single_threaded, users } = self;
        pd.destroy().map_err(|(pd, error)| (Self { pd, is_single_threaded, users }, error))
    }
}

pub(crate) type PdObject<P> = Object<ibv_pd, Destroyable<Pd<P>>>;
type TdObject<P> = Object<ibv_td, Destroyable<<P as Provider>::Td>>;

/// Returns the provider's protection domain if the public struct still has its context and handle.
///
/// # Errors
/// `ENOENT` for another context or handle. The kernel would find no domain either.
///
/// # Safety
/// `pd` must be a live domain of the provider.
pub(crate) unsafe fn from_raw<'a, P: Provider>(
    pd: *mut ibv_pd,
    verb: &'static str,
) -> Result<Loan<'a, Pd<P>>, Error> {
    // SAFETY: the domain is live.
    unsafe {
        let inner = PdObject::<P>::lend(pd, verb)?;
        check_handle(public(&raw const (*pd).handle), inner.pd.handle(), verb)?;
        Ok(inner)
    }
}

/// Operations on protection, thread and parent domains.
///
/// # Safety
/// The methods have the same contracts as the exported functions.
impl<P: Provider> ProviderContext<P> {
    unsafe fn alloc_pd(&self, context: *mut ibv_context) -> Result<*mut ibv_pd, Error> {
        let pd = self.context().alloc_pd()?;
        let c = ibv_pd { context, handle: pd.handle() };
        let inner = Pd { pd, is_single_threaded: false, users: None };
        Ok(PdObject::<P>::boxed(c, Destroyable::new(inner)))
    }

    unsafe fn dealloc_pd(&self, pd: *mut ibv_pd) -> c_int {
        const VERB: &str = "dealloc_pd";
        // SAFETY: the caller passes a live domain of this context.
        unsafe {
            let checked = from_raw::<P>(pd, VERB).map(drop);
            match checked {
                Ok(()) => PdObject::<P>::destroy(pd, VERB),
                Err(error) => code(Err(error)),
            }
        }
    }

    unsafe fn import_pd(&self, context: *mut ibv_context, handle: u32) -> Result<*mut ibv_pd, Error> {
        let pd = self.context().import_pd(handle)?;
        let c = ibv_pd { context, handle: pd.handle() };
        let inner = Pd { pd, is_single_threaded: false, users: None };
        Ok(PdObject::<P>::boxed(c, Destroyable::new(inner)))
    }

    unsafe fn alloc_td(&self, context: *mut ibv_context) -> Result<*mut ibv_td, Error> {
        let td = self.context().alloc_td()?;
        Ok(TdObject::<P>::boxed(ibv_td { context }, Destroyable::new(td)))
    }

    unsafe fn dealloc_td(&self, td: *mut ibv_td) -> c_int {
        // SAFETY: the caller passes a live domain of this context.
        unsafe { TdObject::<P>::destroy(td, "dealloc_td") }
    }

    unsafe fn alloc_parent_domain(
        &self,
        context: *mut ibv_context,
        attr: &ibv_parent_domain_init_attr,
    ) -> Result<*mut ibv_pd, Error> {
        const VERB: &str = "alloc_parent_domain";
        // SAFETY: the caller passes live domains of this context.
        let (parent, td) =
            unsafe { (from_raw::<P>(attr.pd, VERB)?, TdObject::<P>::lend_optional(attr.td, VERB)?) };
        let has = |bit| attr.comp_mask & bit != 0;
        let callbacks = has(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS).then(|| {
            Arc::new(Callbacks {
                pd: AtomicPtr::new(null_mut()),
                pd_context: AtomicPtr::new(if has(IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT) {
                    attr.pd_context
                } else {
                    null_mut()
                }),
                alloc: attr.alloc,
                free: attr.free,
            })
        });
        let allocator = callbacks.clone().map(|callbacks| callbacks as Arc<dyn QueueAllocator>);
        let pd = self.context().alloc_parent_domain(&ParentDomainAttr {
            pd: &parent.pd,
            td: td.as_deref(),
            allocator: allocator.as_ref(),
            allow_cc_unprotected_alloc: has(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC),
        })?;
        let c = ibv_pd { context, handle: pd.handle() };
        let is_single_threaded = td.is_some();
        let inner = Pd { pd, is_single_threaded, users: Some(Arc::default()) };
        let object = PdObject::<P>::boxed(c, Destroyable::new(inner));
        if let Some(callbacks) = callbacks {
            callbacks.pd.store(object, Ordering::Release);
        }
        Ok(object)
    }
}

/// A parent domain's allocator, which consists of the program's functions.
#[derive(Debug)]
struct Callbacks {
    /// The parent domain, which is passed to the functions.
    pd: AtomicPtr<ibv_pd>,
    pd_context: AtomicPtr<c_void>,
    alloc: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void>,
    free: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64)>,
}

/// `IBV_ALLOCATOR_USE_DEFAULT` as an integer.
const USE_DEFAULT: usize = usize::MAX;

// SAFETY: the program promises that its functions return memory of the requested size and alignment
// that nothing else uses. The memory is initialised by its last writer, as C programs assume.
unsafe impl QueueAllocator for Callbacks {
    fn alloc(&self, size: usize, alignment: usize, resource_type: u64) -> QueueMemory {
        let (Some(alloc), pd) = (self.alloc, self.pd.load(Ordering::Acquire)) else {
            return QueueMemory::Default;
        };
        // SAFETY: the program's function is called as the manual page specifies.
        let memory =
            unsafe { alloc(pd, self.pd_context.load(Ordering::Relaxed), size, alignment, resource_type) };
        match NonNull::new(memory.cast::<u8>()) {
            None => QueueMemory::Exhausted,
            Some(memory) if memory.addr().get() == USE_DEFAULT => QueueMemory::Default,
            Some(memory) => {
                // SAFETY: the memory has `size` bytes; nothing else uses it.
                unsafe { memory.write_bytes(0, size) };
                QueueMemory::Own(memory)
            }
        }
    }

    unsafe fn free(&self, memory: NonNull<u8>, resource_type: u64) {
        if let Some(free) = self.free {
            let (pd, context) = (self.pd.load(Ordering::Acquire), self.pd_context.load(Ordering::Relaxed));
            // SAFETY: as above; the memory came from `alloc`.
            unsafe { free(pd, context, memory.as_ptr().cast(), resource_type) };
        }
    }
}

/// `ibv_alloc_pd(3)`.
///
/// # Safety
/// `context` must be open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    not_null_or_null!(context);
    // SAFETY: the context is open.
    pointer(unsafe { verb!(context, alloc_pd(context)) })
}

/// `ibv_dealloc_pd(3)`.
///
/// # Safety
/// `pd` must be live and must not be used afterwards if the call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    not_null!(pd);
    // SAFETY: the domain is live.
    unsafe { verb!((*pd).context, dealloc_pd(pd)) }
}

/// `ibv_import_pd(3)`.
///
/// # Safety
/// `context` must be open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd {
    not_null_or_null!(context);
    // SAFETY: the context is open.
    pointer(unsafe { verb!(context, import_pd(context, pd_handle)) })
}

/// `ibv_unimport_pd(3)`.
///
/// # Safety
/// `pd` must have been imported and must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    if !pd.is_null() {
        // SAFETY: the domain is live. Destroying an imported domain destroys nothing in the kernel.
        unsafe { verb!((*pd).context, dealloc_pd(pd)) };
    }
}

/// `ibv_alloc_td(3)`.
///
/// # Safety
/// `context` must be open; `attr` must point to attributes.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    not_null_or_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe {
        if (*attr).comp_mask != 0 {
            Err(refused("alloc_td", Errno::INVAL, UNKNOWN_MEMBERS))
        } else {
            verb!(context, alloc_td(context))
        }
    })
}

/// `ibv_dealloc_td(3)`.
///
/// # Safety
/// `td` must be live and must not be used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    not_null!(td);
    // SAFETY: the domain is live.
    unsafe { verb!((*td).context, dealloc_td(td)) }
}

/// `ibv_alloc_parent_domain(3)`.
///
/// # Safety
/// `context` must be open; `attr` must point to attributes with live domains of the context.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    not_null_or_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe {
        let attr = &*attr;
        if attr.pd.is_null() || attr.comp_mask & !KNOWN != 0 {
            Err(refused("alloc_parent_domain", Errno::INVAL, "no protection domain, or unknown members"))
        } else {
            verb!(context, alloc_parent_domain(context, attr))
        }
    })
}
