//! [`SharedObject`]: a kernel object used by other objects and the count of its users.

use std::sync::{Arc, Weak};

use verbs_core::provider::Destroy;
use verbs_core::{Error, Result};

use crate::handle::error::HandleError;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::{Child, Registry, Tally};

/// A kernel object that lives until its handle and all its users are gone. `D` is the type of its
/// dependencies; the default is a share of the open device.
#[derive(Debug)]
pub(crate) struct SharedObject<T: Destroy, D = Child>(Arc<Inner<T, D>>);

/// A weak reference to a shared object.
#[derive(Debug)]
pub(crate) struct WeakObject<T: Destroy, D = Child>(Weak<Inner<T, D>>);

#[derive(Debug)]
struct Inner<T: Destroy, D> {
    handle: KernelHandle<T, D>,
    users: Tally,
    registry: Arc<Registry>,
}

impl<T: Destroy + Send + Sync + 'static, D: Send + Sync + 'static> SharedObject<T, D> {
    pub(crate) fn new(raw: T, dependencies: D, registry: &Arc<Registry>) -> Self {
        Self(Arc::new(Inner {
            handle: KernelHandle::new(raw, dependencies),
            users: Tally::default(),
            registry: Arc::clone(registry),
        }))
    }

    pub(crate) fn get(&self) -> &T {
        self.0.handle.get()
    }

    pub(crate) fn dependencies(&self) -> &D {
        self.0.handle.dependencies()
    }

    /// Returns the shared state of the object's open device.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.0.registry
    }

    /// Returns a share for an object that uses this object.
    pub(crate) fn user(&self) -> Child {
        Child::new(Arc::<Inner<T, D>>::clone(&self.0), &self.0.users)
    }

    /// Returns a share for a user on the open device of `registry`.
    ///
    /// # Errors
    /// `EINVAL` if this object belongs to another open device.
    pub(crate) fn user_in(
        &self,
        registry: &Registry,
        verb: &'static str,
        what: &'static str,
    ) -> Result<Child> {
        if !core::ptr::eq(Arc::as_ptr(&self.0.registry), registry) {
            return Err(registry.foreign(verb, what));
        }
        Ok(self.user())
    }

    /// Returns a weak reference to the object.
    pub(crate) fn downgrade(&self) -> WeakObject<T, D> {
        WeakObject(Arc::downgrade(&self.0))
    }

    /// Destroys the object.
    ///
    /// # Errors
    /// Returns the object with the errno: `EBUSY` while the object has users, or any errno from
    /// [`Destroy::destroy`].
    pub(crate) fn close(self, verb: &'static str, by: &'static str) -> Result<(), HandleError<Self>> {
        let Inner { handle, users, registry } = self.alone(verb, by)?;
        handle
            .close()
            .map(drop)
            .map_err(|failed| failed.map(|handle| Self(Arc::new(Inner { handle, users, registry }))))
    }

    /// Converts the object into another type.
    ///
    /// # Errors
    /// Returns the unchanged object if it has users or `map` gives it back.
    pub(crate) fn try_map<U: Destroy>(
        self,
        verb: &'static str,
        by: &'static str,
        map: impl FnOnce(T) -> Result<U, T>,
    ) -> Result<SharedObject<U, D>, HandleError<Self>> {
        let Inner { handle, users, registry } = self.alone(verb, by)?;
        match handle.try_map(map) {
            Ok(handle) => Ok(SharedObject(Arc::new(Inner { handle, users, registry }))),
            Err(handle) => {
                Err(HandleError::of_another_provider(Self(Arc::new(Inner { handle, users, registry }))))
            }
        }
    }

    fn alone(self, verb: &'static str, by: &'static str) -> Result<Inner<T, D>, HandleError<Self>> {
        Arc::try_unwrap(self.0).map_err(|inner| {
            let error: Error = inner.registry.in_use(verb, by);
            HandleError { handle: Self(inner), error }
        })
    }
}

impl<T: Destroy, D> WeakObject<T, D> {
    /// Returns the object; `None` if the object is gone.
    pub(crate) fn upgrade(&self) -> Option<SharedObject<T, D>> {
        self.0.upgrade().map(SharedObject)
    }
}

impl<T: Destroy, D> Clone for WeakObject<T, D> {
    fn clone(&self) -> Self {
        Self(Weak::clone(&self.0))
    }
}
