//! [`KernelHandle`]: a kernel object and the dependencies that must outlive it.
//!
//! Every handle of this crate contains one, so this file alone determines the order of release:
//!
//! | event | the object | its dependencies |
//! |---|---|---|
//! | dropped, and the kernel agrees | destroyed | released after it |
//! | dropped, and the kernel refuses | leaked; [`on_leak`]'s hook is called | leaked |
//! | closed, and the kernel agrees | destroyed | returned |
//! | closed, and the kernel refuses | returned | returned |
//! | dropped or closed, and the provider panics | lost in the unwinding | leaked |
//! | `mem::forget` | unchanged | unchanged |
//!
//! Invariant: dependencies are released only after [`Destroy::destroy`] returned `Ok`. While a
//! provider's code runs, they are in a [`ManuallyDrop`], which unwinding does not drop.

use core::mem::ManuallyDrop;

use verbs_core::Error;
use verbs_core::fork::ForkRwLock;
use verbs_core::provider::Destroy;

use crate::handle::error::HandleError;

/// A kernel object and its dependencies. Empty only while a method moves its contents out.
#[derive(Debug)]
pub(crate) struct KernelHandle<T: Destroy, D>(Option<(T, D)>);

impl<T: Destroy, D> KernelHandle<T, D> {
    pub(crate) const fn new(object: T, dependencies: D) -> Self {
        Self(Some((object, dependencies)))
    }

    #[inline]
    pub(crate) fn get(&self) -> &T {
        &self.parts().0
    }

    #[inline]
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.parts_mut().0
    }

    pub(crate) fn dependencies(&self) -> &D {
        &self.parts().1
    }

    pub(crate) fn dependencies_mut(&mut self) -> &mut D {
        self.parts_mut().1
    }

    #[inline]
    pub(crate) fn parts_mut(&mut self) -> (&mut T, &mut D) {
        match &mut self.0 {
            Some((object, dependencies)) => (object, dependencies),
            None => gone(),
        }
    }

    /// Destroys the object and returns its dependencies.
    ///
    /// # Errors
    /// Returns the unchanged handle and the errno from [`Destroy::destroy`]; the object may still
    /// exist.
    #[allow(clippy::result_large_err)]
    pub(crate) fn close(mut self) -> Result<D, HandleError<Self>> {
        let Some((object, dependencies)) = self.0.take() else { gone() };
        let dependencies = ManuallyDrop::new(dependencies);
        let destroyed = object.destroy();
        let dependencies = ManuallyDrop::into_inner(dependencies);
        match destroyed {
            Ok(()) => Ok(dependencies),
            Err((object, error)) => Err(HandleError { handle: Self::new(object, dependencies), error }),
        }
    }

    /// Converts the object into another type.
    ///
    /// # Errors
    /// Returns the unchanged handle if `map` gives the object back.
    #[allow(clippy::result_large_err)]
    pub(crate) fn try_map<U: Destroy>(
        mut self,
        map: impl FnOnce(T) -> Result<U, T>,
    ) -> Result<KernelHandle<U, D>, Self> {
        let Some((object, dependencies)) = self.0.take() else { gone() };
        let dependencies = ManuallyDrop::new(dependencies);
        let mapped = map(object);
        let dependencies = ManuallyDrop::into_inner(dependencies);
        match mapped {
            Ok(object) => Ok(KernelHandle::new(object, dependencies)),
            Err(object) => Err(Self::new(object, dependencies)),
        }
    }

    /// Moves the contents out and leaves an empty handle, whose drop does nothing.
    pub(crate) const fn detach(&mut self) -> Self {
        Self(self.0.take())
    }

    /// Returns whether the handle is empty.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    #[inline]
    fn parts(&self) -> &(T, D) {
        match &self.0 {
            Some(parts) => parts,
            None => gone(),
        }
    }
}

impl<T: Destroy, D> Drop for KernelHandle<T, D> {
    fn drop(&mut self) {
        let Some((object, dependencies)) = self.0.take() else { return };
        let dependencies = ManuallyDrop::new(dependencies);
        match object.destroy() {
            Ok(()) => drop(ManuallyDrop::into_inner(dependencies)),
            Err((object, error)) => {
                core::mem::forget(object);
                report_leak(&error);
            }
        }
    }
}

/// Sets a hook, called for each dropped object that the kernel refuses to destroy. Such an object
/// is leaked with its dependencies.
///
/// Dropping never panics and never prints. To observe leaks, set the hook once; to handle them,
/// call `close` on the handles. A new hook replaces the previous one.
///
/// ```
/// verbs::on_leak(|error| eprintln!("leaked: {error}"));
/// ```
pub fn on_leak(hook: fn(&Error)) {
    // A forked child has no hook if its parent was setting one at the fork.
    if let Ok(mut place) = HOOK.write() {
        *place = Some(hook);
    }
}

pub(crate) fn report_leak(error: &Error) {
    let hook = HOOK.read().map(|hook| *hook);
    if let Ok(Some(hook)) = hook {
        hook(error);
    }
}

/// Panics. Unreachable, because no handle is used after `close`, `try_map` or `detach` emptied it.
#[cold]
#[inline(never)]
fn gone() -> ! {
    unreachable!("a handle was used after it was taken apart")
}

static HOOK: ForkRwLock<Option<fn(&Error)>> = ForkRwLock::new(None);
