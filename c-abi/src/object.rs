//! [`Object`]: an object of C and the provider's object behind it.
//!
//! # Safety
//! A pointer to the public struct is a pointer to the box, because `c` is its first field and the
//! struct is `repr(C)`. Functions that take such a pointer require that [`Object::boxed`] returned
//! it for the same `C` and `T`, and that the object was not destroyed.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

use verbs_core::provider::Destroy;
use verbs_core::{Errno, Error};

use crate::errno::{code, refused};
use crate::shared::{Loan, Shared};

/// An object of C: the public struct, and the provider's object.
#[repr(C)]
pub(crate) struct Object<C, T> {
    /// The public struct, which the program may write.
    pub(crate) c: C,
    pub(crate) inner: T,
}

impl<C, T> Object<C, T> {
    /// Boxes an object, and returns the pointer for the program.
    pub(crate) fn boxed(c: C, inner: T) -> *mut C {
        Box::into_raw(Box::new(Self { c, inner })).cast()
    }

    /// Returns the provider's object.
    ///
    /// # Safety
    /// `object` is a live object of this type.
    pub(crate) unsafe fn inner<'a>(object: *mut C) -> &'a T {
        // SAFETY: the caller passes a live object; shared access is all that other threads have.
        unsafe { &(*object.cast::<Self>()).inner }
    }

    /// Frees the box of an object whose parts were taken out.
    ///
    /// # Safety
    /// `object` is an object of this type, and is not used afterwards.
    pub(crate) unsafe fn free(object: *mut C) {
        // SAFETY: `boxed` made the box, and a `MaybeUninit` drops nothing.
        drop(unsafe { Box::from_raw(object.cast::<MaybeUninit<Self>>()) });
    }
}

impl<C, T> Object<C, Shared<T>> {
    /// Returns the provider's object for the use by a call.
    ///
    /// # Errors
    /// As [`Shared::lend`].
    ///
    /// # Safety
    /// `object` is a live object of this type.
    pub(crate) unsafe fn lend<'a>(object: *mut C, verb: &'static str) -> Result<Loan<'a, T>, Error> {
        // SAFETY: the caller passes a live object.
        unsafe { Self::inner(object) }.lend(verb)
    }

    /// Returns the provider's object for the use by a call, if `object` is not null.
    ///
    /// # Errors
    /// As [`Shared::lend`].
    ///
    /// # Safety
    /// `object` is null, or a live object of this type.
    pub(crate) unsafe fn lend_optional<'a>(
        object: *mut C,
        verb: &'static str,
    ) -> Result<Option<Loan<'a, T>>, Error> {
        // SAFETY: the caller passes a live object.
        (!object.is_null()).then(|| unsafe { Self::lend(object, verb) }).transpose()
    }
}

impl<C, T: Destroy> Object<C, Shared<T>> {
    /// Destroys the object and frees it; leaves it as it was if the provider refuses.
    ///
    /// # Safety
    /// `object` is a live object of this type, which no other thread uses if the call succeeds.
    pub(crate) unsafe fn destroy(object: *mut C, verb: &'static str) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { Self::destroy_then(object, verb, || {}) }
    }

    /// As [`destroy`](Self::destroy), with something to do before another object may get the
    /// address.
    ///
    /// # Safety
    /// As [`destroy`](Self::destroy).
    pub(crate) unsafe fn destroy_then(object: *mut C, verb: &'static str, then: impl FnOnce()) -> c_int {
        // SAFETY: the object is live. What is freed has no value any more, and no user.
        code(unsafe {
            Self::inner(object).destroy(verb, T::destroy).map(|()| {
                then();
                drop(Box::from_raw(object.cast::<Self>()));
            })
        })
    }
}

/// Destroys an object where it lies. After `Ok` its memory holds no value.
///
/// # Safety
/// `at` holds a value that no other code uses.
#[allow(clippy::result_large_err)]
pub(crate) unsafe fn destroy_in_place<T, R>(
    at: NonNull<T>,
    destroy: impl FnOnce(T) -> Result<R, (T, Error)>,
) -> Result<R, Error> {
    // SAFETY: the value is moved out, and on failure moved back. `destroy` does not unwind.
    match destroy(unsafe { at.read() }) {
        Ok(result) => Ok(result),
        Err((object, error)) => {
            // SAFETY: the memory is that of the value, which was moved out.
            unsafe { at.write(object) };
            Err(error)
        }
    }
}

/// Reads a field that the program may have changed.
///
/// # Safety
/// `at` points to a live object's field.
pub(crate) unsafe fn public<T: Copy>(at: *const T) -> T {
    // SAFETY: the caller passes a live field.
    unsafe { ptr::read_volatile(at) }
}

/// Compares the handle in a public struct, which C libraries pass to the kernel, with the object's
/// own.
///
/// # Errors
/// `ENOENT`, the kernel's answer to a handle that no object has.
pub(crate) fn check_handle(public: u32, own: u32, verb: &'static str) -> Result<(), Error> {
    if public == own { Ok(()) } else { Err(refused(verb, Errno::NOENT)) }
}
