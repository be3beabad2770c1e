//! [`Shared`]: a kernel object that other objects use, and the count of its users.

use std::sync::Arc;

use verbs_core::Error;
use verbs_core::provider::Destroy;

use crate::HandleError;
use crate::kernel_handle::KernelHandle;
use crate::registry::{Child, Registry, Tally};

/// A kernel object, which lives as long as its handle and its users.
#[derive(Debug)]
pub(crate) struct Shared<T: Destroy>(Arc<Inner<T>>);

#[derive(Debug)]
struct Inner<T: Destroy> {
    handle: KernelHandle<T, Child>,
    users: Tally,
    registry: Arc<Registry>,
}

impl<T: Destroy + Send + Sync + 'static> Shared<T> {
    pub(crate) fn new(raw: T, context: Child, registry: &Arc<Registry>) -> Self {
        Self(Arc::new(Inner {
            handle: KernelHandle::new(raw, context),
            users: Tally::default(),
            registry: Arc::clone(registry),
        }))
    }

    pub(crate) fn get(&self) -> &T {
        self.0.handle.get()
    }

    /// Returns a share for an object that uses this one.
    pub(crate) fn user(&self) -> Child {
        Child::new(Arc::<Inner<T>>::clone(&self.0), &self.0.users)
    }

    /// Destroys the object.
    ///
    /// # Errors
    /// The object, and `EBUSY` while something uses it, or the errno of [`Destroy::destroy`].
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
    /// The object, if something uses it or `map` returns it.
    pub(crate) fn try_map<U: Destroy>(
        self,
        verb: &'static str,
        by: &'static str,
        map: impl FnOnce(T) -> Result<U, T>,
    ) -> Result<Shared<U>, HandleError<Self>> {
        let Inner { handle, users, registry } = self.alone(verb, by)?;
        match handle.try_map(map) {
            Ok(handle) => Ok(Shared(Arc::new(Inner { handle, users, registry }))),
            Err(handle) => {
                Err(HandleError::of_another_provider(Self(Arc::new(Inner { handle, users, registry }))))
            }
        }
    }

    fn alone(self, verb: &'static str, by: &'static str) -> Result<Inner<T>, HandleError<Self>> {
        Arc::try_unwrap(self.0).map_err(|inner| {
            let error: Error = inner.registry.in_use(verb, by);
            HandleError { handle: Self(inner), error }
        })
    }
}
