//! [`Object`]: an object in C, together with the provider's object.
//!
//! # Safety
//! A pointer to the public struct is a pointer to the box, because `c` is its first field and the
//! struct is `repr(C)`. Functions that take such a pointer require that [`Object::boxed`] returned
//! it for the same `C` and `T`, and that the object was not destroyed.
//!
//! A program may change the context in the public struct, which passes the object to another
//! provider, or mix objects of two providers in one call. [`Object::own`] therefore compares
//! context and type before it gives access to the provider's object: the offset of [`Origin`]
//! depends on `C` alone.
#![allow(unsafe_code)]

use core::any::TypeId;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

use verbs_core::provider::Destroy;
use verbs_core::{Errno, Error};

use crate::abi::c::{
    ibv_ah, ibv_comp_cntr, ibv_context, ibv_counters, ibv_cq_ex, ibv_dm, ibv_dmah, ibv_flow, ibv_flow_action,
    ibv_mr, ibv_mw, ibv_pd, ibv_qp_ex, ibv_rwq_ind_table, ibv_srq, ibv_td, ibv_wq, ibv_xrcd, rdma_cm_event,
    rdma_cm_id, rdma_event_channel,
};
use crate::abi::errno::{code, refused};
use crate::handle::destroyable::{Destroyable, Loan};

/// An object in C: the public struct and the provider's object behind it.
#[repr(C)]
pub(crate) struct Object<C, T> {
    /// The public struct, which the program may write.
    pub(crate) c: C,
    origin: Origin,
    pub(crate) inner: T,
}

/// The context and the provider that created an object.
#[derive(Clone, Copy, Debug)]
struct Origin {
    context: *mut ibv_context,
    /// The type of the provider's object.
    inner: TypeId,
}

/// A public struct, which may contain a pointer to its context.
pub(crate) trait HasContext {
    /// Returns the context in the struct, which the program may have changed; null if there is
    /// none.
    ///
    /// # Safety
    /// `this` must be a live object.
    unsafe fn context(this: *const Self) -> *mut ibv_context;
}

macro_rules! has_context {
    ($($name:ident: none;)+) => {$(
        impl HasContext for $name {
            unsafe fn context(_: *const Self) -> *mut ibv_context {
                ptr::null_mut()
            }
        }
    )+};
    ($($name:ident: $($field:ident).+;)+) => {$(
        impl HasContext for $name {
            unsafe fn context(this: *const Self) -> *mut ibv_context {
                // SAFETY: the caller passes a live object.
                unsafe { public(&raw const (*this).$($field).+) }
            }
        }
    )+};
}

has_context! {
    rdma_cm_event: none;
    rdma_cm_id: none;
    rdma_event_channel: none;
}

has_context! {
    ibv_ah: context;
    ibv_comp_cntr: context;
    ibv_counters: context;
    ibv_cq_ex: context;
    ibv_dm: context;
    ibv_dmah: context;
    ibv_flow: context;
    ibv_flow_action: context;
    ibv_mr: context;
    ibv_mw: context;
    ibv_pd: context;
    ibv_qp_ex: qp_base.context;
    ibv_rwq_ind_table: context;
    ibv_srq: context;
    ibv_td: context;
    ibv_wq: context;
    ibv_xrcd: context;
}

/// Returns the context that created an object, regardless of its public struct.
///
/// # Safety
/// `object` must be a live object, of any provider.
pub(crate) unsafe fn context_of<C>(object: *mut C) -> *mut ibv_context {
    // SAFETY: the origin has the same offset for all providers.
    unsafe { (*object.cast::<Object<C, ()>>()).origin }.context
}

impl<C: HasContext, T: 'static> Object<C, T> {
    pub(crate) fn new(c: C, inner: T) -> Self {
        // SAFETY: the struct is live.
        let context = unsafe { C::context(&raw const c) };
        Self { c, origin: Origin { context, inner: TypeId::of::<T>() }, inner }
    }

    /// Boxes an object and returns the pointer to pass to the program.
    pub(crate) fn boxed(c: C, inner: T) -> *mut C {
        Box::into_raw(Box::new(Self::new(c, inner))).cast()
    }

    /// Returns the provider's object, if the object belongs to this provider and to the context in
    /// its public struct.
    ///
    /// # Errors
    /// `ENOENT` otherwise, as the kernel returns for a handle from another context.
    ///
    /// # Safety
    /// `object` must be a live object of the public type, of any provider.
    pub(crate) unsafe fn own<'a>(object: *mut C, verb: &'static str) -> Result<&'a T, Error> {
        // SAFETY: the origin has the same offset for all providers. The provider's object is
        // accessed only if it has this type.
        unsafe {
            let origin = (*object.cast::<Object<C, ()>>()).origin;
            if origin.inner != TypeId::of::<T>() || origin.context != C::context(object) {
                return Err(refused(verb, Errno::NOENT, FOREIGN));
            }
            Ok(Self::inner(object))
        }
    }
}

impl<C, T> Object<C, T> {
    /// Returns the provider's object.
    ///
    /// # Safety
    /// `object` must be a live object of this type.
    pub(crate) unsafe fn inner<'a>(object: *mut C) -> &'a T {
        // SAFETY: the caller passes a live object; other threads have only shared access.
        unsafe { &(*object.cast::<Self>()).inner }
    }

    /// Frees the box of an object whose parts were moved out.
    ///
    /// # Safety
    /// `object` must be an object of this type and must not be used afterwards.
    pub(crate) unsafe fn free(object: *mut C) {
        // SAFETY: `boxed` created the box; a `MaybeUninit` drops nothing.
        drop(unsafe { Box::from_raw(object.cast::<MaybeUninit<Self>>()) });
    }
}

impl<C: HasContext, T: 'static> Object<C, Destroyable<T>> {
    /// Returns the provider's object for the duration of a call.
    ///
    /// # Errors
    /// Same as [`own`](Self::own) and [`Destroyable::lend`].
    ///
    /// # Safety
    /// Same as [`own`](Self::own).
    pub(crate) unsafe fn lend<'a>(object: *mut C, verb: &'static str) -> Result<Loan<'a, T>, Error> {
        // SAFETY: the caller passes a live object.
        unsafe { Self::own(object, verb)? }.lend(verb)
    }

    /// Same as [`lend`](Self::lend), or returns `None` if `object` is null.
    ///
    /// # Errors
    /// Same as [`lend`](Self::lend).
    ///
    /// # Safety
    /// `object` must be null, or meet the conditions of [`own`](Self::own).
    pub(crate) unsafe fn lend_optional<'a>(
        object: *mut C,
        verb: &'static str,
    ) -> Result<Option<Loan<'a, T>>, Error> {
        // SAFETY: the caller passes a live object.
        (!object.is_null()).then(|| unsafe { Self::lend(object, verb) }).transpose()
    }
}

impl<C: HasContext, T: Destroy + 'static> Object<C, Destroyable<T>> {
    /// Destroys and frees the object. If the provider fails, the object is unchanged.
    ///
    /// # Safety
    /// `object` must be a live object of this type. If the call succeeds, no other thread may use
    /// the object during or after the call.
    pub(crate) unsafe fn destroy(object: *mut C, verb: &'static str) -> c_int {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::destroy_then(object, verb, || {}) }
    }

    /// Destroys the object like [`destroy`](Self::destroy) and runs `then` before another object
    /// can get the address.
    ///
    /// # Safety
    /// Same as [`destroy`](Self::destroy).
    pub(crate) unsafe fn destroy_then(object: *mut C, verb: &'static str, then: impl FnOnce()) -> c_int {
        // SAFETY: the object is live. When the box is freed, it holds no value and has no users.
        code(unsafe {
            Self::own(object, verb).and_then(|inner| inner.destroy(verb, T::destroy)).map(|()| {
                then();
                drop(Box::from_raw(object.cast::<Self>()));
            })
        })
    }
}

/// Destroys an object in place. If the result is `Ok`, the memory no longer holds a value.
///
/// # Safety
/// `at` must hold a value that no other code uses.
#[allow(clippy::result_large_err)]
pub(crate) unsafe fn destroy_in_place<T, R>(
    at: NonNull<T>,
    destroy: impl FnOnce(T) -> Result<R, (T, Error)>,
) -> Result<R, Error> {
    // SAFETY: the value is moved out, and on failure moved back. `destroy` does not unwind.
    match destroy(unsafe { at.read() }) {
        Ok(result) => Ok(result),
        Err((object, error)) => {
            // SAFETY: the value was moved out of this memory.
            unsafe { at.write(object) };
            Err(error)
        }
    }
}

/// Reads a field that the program may have changed.
///
/// # Safety
/// `at` must point to a live object's field.
pub(crate) unsafe fn public<T: Copy>(at: *const T) -> T {
    // SAFETY: the caller passes a live field.
    unsafe { ptr::read_volatile(at) }
}

/// The reason for rejecting an object of another provider or another context.
const FOREIGN: &str = "the object belongs to another context";

/// The reason for rejecting an object whose public struct has another handle.
const CHANGED: &str = "the handle in the object's struct is not the object's";

/// Compares the handle in a public struct, which rdma-core passes to the kernel, with the object's
/// actual handle.
///
/// # Errors
/// `ENOENT`, as the kernel returns for an unknown handle.
pub(crate) fn check_handle(public: u32, own: u32, verb: &'static str) -> Result<(), Error> {
    if public == own { Ok(()) } else { Err(refused(verb, Errno::NOENT, CHANGED)) }
}
