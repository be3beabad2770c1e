//! [`HandleError`]: the error of a call that consumes a handle. The error contains the handle.

use core::fmt;

use verbs_core::{Cause, Errno, Error};

/// The error of a call that consumes a handle: the reason and the unchanged handle.
///
/// Converts into [`Error`] and [`std::io::Error`], so `?` works in functions that return these. The
/// conversion drops the handle.
///
/// ```no_run
/// fn retire(qp: verbs::Qp<verbs::state::Rts>) -> Result<(), verbs::Error> {
///     qp.to_error()?.close()?;
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct HandleError<T> {
    /// The handle, as it was before the call.
    pub handle: T,
    /// The reason why the call failed.
    pub error: Error,
}

impl<T> HandleError<T> {
    /// Returns the error of a call rejected without a system call.
    pub(crate) fn refused(handle: T, verb: &'static str, reason: &str) -> Self {
        let error = Error::new(verb, "", Errno::INVAL).because(Cause::Other { reason: reason.into() });
        Self { handle, error }
    }

    /// Returns the error for naming a provider other than the handle's.
    pub(crate) fn of_another_provider(handle: T) -> Self {
        Self::refused(handle, "downcast", "the handle belongs to another provider")
    }

    /// Returns the same error with the handle converted by `map`.
    pub(crate) fn map<U>(self, map: impl FnOnce(T) -> U) -> HandleError<U> {
        HandleError { handle: map(self.handle), error: self.error }
    }
}

impl<T> fmt::Display for HandleError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// Formats like `Display`, because a `main` that returns an error prints it with `Debug`.
impl<T> fmt::Debug for HandleError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<T> std::error::Error for HandleError<T> {}

impl<T> From<HandleError<T>> for Error {
    fn from(failed: HandleError<T>) -> Self {
        failed.error
    }
}

impl<T> From<HandleError<T>> for std::io::Error {
    fn from(failed: HandleError<T>) -> Self {
        failed.error.into()
    }
}
