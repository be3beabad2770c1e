//! [`Live`]: a kernel object, and what may be released only once it is destroyed.
//!
//! Every handle of this crate is one of these with its parents as the second half, so that the order in which things
//! go away is decided here and nowhere else:
//!
//! | what happens | the object | what was kept |
//! |---|---|---|
//! | dropped, and the kernel agrees | destroyed | released after it |
//! | dropped, and the kernel refuses | leaked, [`on_leak`] is told | leaked |
//! | closed, and the kernel agrees | destroyed | given back |
//! | closed, and the kernel refuses | given back | given back |
//! | dropped or closed, and the provider panics | lost in the unwinding | leaked |
//! | `mem::forget` | stays as it was | stays as it was |
//!
//! Invariant: what was kept is released only after [`Destroy::destroy`] returned `Ok`. While a provider's code runs,
//! what was kept is in a [`ManuallyDrop`], which unwinding does not drop.

use core::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};

use verbs_core::Error;
use verbs_core::provider::Destroy;

/// A kernel object, and what may be released only once it is destroyed. Empty only while it is being taken apart.
#[derive(Debug)]
pub(crate) struct Live<T: Destroy, K>(Option<(T, K)>);

impl<T: Destroy, K> Live<T, K> {
    pub(crate) const fn new(object: T, kept: K) -> Self {
        Self(Some((object, kept)))
    }

    #[inline]
    pub(crate) fn get(&self) -> &T {
        &self.parts().0
    }

    #[inline]
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.parts_mut().0
    }

    pub(crate) fn kept(&self) -> &K {
        &self.parts().1
    }

    pub(crate) fn kept_mut(&mut self) -> &mut K {
        self.parts_mut().1
    }

    #[inline]
    pub(crate) fn parts_mut(&mut self) -> (&mut T, &mut K) {
        match &mut self.0 {
            Some((object, kept)) => (object, kept),
            None => gone(),
        }
    }

    /// Destroys the object, and gives back what was kept for it.
    #[allow(clippy::result_large_err)]
    pub(crate) fn close(mut self) -> Result<K, (Self, Error)> {
        let Some((object, kept)) = self.0.take() else { gone() };
        let kept = ManuallyDrop::new(kept);
        let destroyed = object.destroy();
        let kept = ManuallyDrop::into_inner(kept);
        match destroyed {
            Ok(()) => Ok(kept),
            Err((object, error)) => Err((Self::new(object, kept), error)),
        }
    }

    /// The same object as another type.
    #[allow(clippy::result_large_err)]
    pub(crate) fn try_map<U: Destroy>(
        mut self,
        map: impl FnOnce(T) -> Result<U, T>,
    ) -> Result<Live<U, K>, Self> {
        let Some((object, kept)) = self.0.take() else { gone() };
        let kept = ManuallyDrop::new(kept);
        let mapped = map(object);
        let kept = ManuallyDrop::into_inner(kept);
        match mapped {
            Ok(object) => Ok(Live::new(object, kept)),
            Err(object) => Err(Self::new(object, kept)),
        }
    }

    /// Moves everything out, and leaves a shell behind that does nothing when it is dropped.
    pub(crate) const fn detach(&mut self) -> Self {
        Self(self.0.take())
    }

    /// Was everything moved out?
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    #[inline]
    fn parts(&self) -> &(T, K) {
        match &self.0 {
            Some(parts) => parts,
            None => gone(),
        }
    }
}

impl<T: Destroy, K> Drop for Live<T, K> {
    fn drop(&mut self) {
        let Some((object, kept)) = self.0.take() else { return };
        let kept = ManuallyDrop::new(kept);
        match object.destroy() {
            Ok(()) => drop(ManuallyDrop::into_inner(kept)),
            Err((object, error)) => {
                core::mem::forget(object);
                tell_leak(&error);
            }
        }
    }
}

/// Has `hook` told of every object that could not be destroyed when it was dropped, and is leaked with all that it uses.
///
/// Dropping never panics and never prints; a program that wants to hear of leaks sets this once, and one that wants to
/// handle them calls `close` on its handles. The last hook set wins.
///
/// ```
/// verbs::on_leak(|error| eprintln!("leaked: {error}"));
/// ```
pub fn on_leak(hook: fn(&Error)) {
    *HOOK.lock().unwrap_or_else(PoisonError::into_inner) = Some(hook);
}

fn tell_leak(error: &Error) {
    let hook = *HOOK.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(hook) = hook {
        hook(error);
    }
}

/// `close`, `try_map` and `detach` leave nothing behind that is used again.
#[cold]
#[inline(never)]
fn gone() -> ! {
    unreachable!("a handle was used after it was taken apart")
}

static HOOK: Mutex<Option<fn(&Error)>> = Mutex::new(None);
