//! [`Completions`]: a poll in progress, which yields each [`Completion`]; [`Completed`]: a
//! completion with the memory of its request.

use verbs_core::provider::{Completion as _, CqOps, Erased, Provider};
// Named by the documentation of the fields.
#[cfg(doc)]
use verbs_core::types::CqWcFlags;
use verbs_core::types::{Wc, WcError, WcFlags, WcStatus};
use verbs_core::{Cause, Errno, Error, Result, for_each_completion_field, for_each_optional_field};

use crate::in_flight::{Returned, Routes};
use crate::memory::buffer::Buf;
use crate::memory::window::{Invalidated, Window};
/// A poll in progress. Dropping it returns the slots of the completions read to the device.
#[doc(alias = "ibv_end_poll")]
#[derive(Debug)]
pub struct Completions<'q, P: Provider = Erased> {
    pub(super) raw: &'q mut P::Cq,
    pub(super) routes: &'q mut Routes,
    pub(super) lent: bool,
}

impl<P: Provider> Completions<'_, P> {
    /// Returns a view of the next completion; `None` if none is available.
    #[doc(alias = "ibv_next_poll")]
    #[allow(clippy::should_implement_trait)]
    #[inline(always)]
    pub fn next(&mut self) -> Option<Completion<'_, P>> {
        let raw = self.raw.next()?;
        self.lent = true;
        Some(Completion { raw, routes: self.routes })
    }
}

impl<P: Provider> Drop for Completions<'_, P> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.lent {
            self.raw.end_poll();
        }
    }
}

/// A completion, read from the queue on demand. Only polling creates a completion, so it proves
/// that its work request has ended: see promises 5 to 7 of [`Provider`]'s contract.
///
/// If [`status`](Self::status) is not success, only `wr_id`, `status`, `qp_num`, `vendor_err` and
/// the timestamps are valid.
#[doc(alias = "ibv_wc")]
#[doc(alias = "ibv_cq_ex")]
pub struct Completion<'c, P: Provider + 'c = Erased> {
    raw: <P::Cq as CqOps>::Completion<'c>,
    routes: &'c mut Routes,
}

macro_rules! with_optional_fields {
    ($($fields:tt)*) => { for_each_optional_field! { completion { $($fields)* } } };
}

macro_rules! completion {
    (
        { $($(#[$doc:meta])* $field:ident: $type:ty;)* }
        $($(#[$optional_doc:meta])* $optional:ident: $optional_type:ty;)*
    ) => {
        impl<P: Provider> Completion<'_, P> {
            $($(#[$doc])* #[inline(always)] pub fn $field(&self) -> $type { self.raw.$field() })*

            $(
                $(#[$optional_doc])*
                #[inline(always)]
                pub fn $optional(&self) -> Option<$optional_type> {
                    self.raw.$optional()
                }
            )*
        }
    };
}

for_each_completion_field!(with_optional_fields);

impl<P: Provider> Completion<'_, P> {
    /// Returns the memory of the request, successful or failed.
    ///
    /// Returns `None` for a raw request, a reclaimed request, or a request of a queue pair that has
    /// since been closed or reset.
    #[inline]
    pub fn reclaim(&mut self) -> Option<Returned> {
        self.routes.reclaim(self.raw.wr_id(), self.raw.status())
    }

    /// Returns the key invalidated by the peer's message; `None` for any other completion. Pass the
    /// result to [`Window::invalidated`](crate::Window::invalidated).
    pub fn invalidated(&self) -> Option<Invalidated> {
        invalidated(&self.copied(), self.routes)
    }

    /// Returns a copy of all fields. With the copy, [`Cq::reclaim`](crate::Cq::reclaim) returns the
    /// request's memory.
    #[inline(always)]
    pub fn to_wc(&mut self) -> Wc {
        self.routes.mark(self.wr_id());
        self.copied()
    }

    /// Returns whether the request succeeded.
    #[inline(always)]
    pub fn is_success(&self) -> bool {
        self.status() == WcStatus::SUCCESS
    }

    /// Converts a failed completion into an error.
    ///
    /// # Errors
    /// [`WcError`] with the status and the request, if the status is not success.
    #[inline]
    pub fn ok(&self) -> Result<(), WcError> {
        if self.is_success() { Ok(()) } else { named(&self.copied(), self.routes.device()) }
    }

    #[inline(always)]
    fn copied(&self) -> Wc {
        let mut wc = Wc::default();
        self.raw.write_to(&mut wc);
        wc
    }
}

impl<P: Provider> core::fmt::Debug for Completion<'_, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.copied().fmt(f)
    }
}

/// A completion copied out of its queue, with the memory of its request. It can be sent to any
/// thread.
#[doc(alias = "ibv_wc")]
#[derive(Debug)]
#[non_exhaustive]
pub struct Completed {
    /// A copy of the completion.
    pub wc: Wc,
    /// The memory of the completion's request; `None` for a raw request, or if the queue pair was
    /// closed or reset before the poll.
    pub returned: Option<Returned>,
    pub(super) invalidated: Option<Invalidated>,
    pub(super) device: &'static str,
}

impl Completed {
    /// Returns the first buffer of a request posted with buffers.
    ///
    /// # Errors
    /// `ENODATA` with [`Cause::NotReturned`] for a request without a buffer, such as a raw or an
    /// inline request, or if the queue pair was closed or reset before the poll. Other memory of
    /// the request is released; [`returned`](Self::returned) holds all of it.
    pub fn into_buf(self) -> Result<Buf> {
        let (wr_id, device) = (self.wc.wr_id, self.device);
        self.returned.and_then(Returned::into_buf).ok_or_else(|| not_returned(device, wr_id, "buffer"))
    }

    /// Returns the window of a bind or a revocation.
    ///
    /// # Errors
    /// `ENODATA` with [`Cause::NotReturned`] for any other request, or if the queue pair was closed
    /// or reset before the poll.
    pub fn into_window(self) -> Result<Window> {
        let (wr_id, device) = (self.wc.wr_id, self.device);
        self.returned.and_then(Returned::into_window).ok_or_else(|| not_returned(device, wr_id, "window"))
    }

    /// Returns the key invalidated by the peer's message; `None` for any other completion. Pass the
    /// result to [`Window::invalidated`](crate::Window::invalidated).
    pub const fn invalidated(&self) -> Option<&Invalidated> {
        self.invalidated.as_ref()
    }

    /// Converts a failed completion into an error and releases its memory.
    ///
    /// # Errors
    /// [`WcError`] with the status and the request, if the status is not success.
    pub fn ok(self) -> Result<Self, WcError> {
        if self.wc.status == WcStatus::SUCCESS {
            Ok(self)
        } else {
            named(&self.wc, self.device).map(|()| self)
        }
    }
}

/// Converts a failed completion into an error that names the device.
#[cold]
fn named(wc: &Wc, device: &'static str) -> Result<(), WcError> {
    wc.ok().map_err(|error| WcError { device, ..error })
}

fn not_returned(device: &str, wr_id: u64, what: &'static str) -> Error {
    Error::new("poll_cq", device, Errno::NODATA).because(Cause::NotReturned { wr_id, what })
}

impl core::ops::Deref for Completed {
    type Target = Wc;

    fn deref(&self) -> &Wc {
        &self.wc
    }
}

/// Returns the key that a completion reports as invalidated. The completion must still be in its
/// queue, or be a copy that no other code could change.
#[inline]
pub(super) fn invalidated(wc: &Wc, routes: &Routes) -> Option<Invalidated> {
    let is_invalidation = wc.wc_flags.contains(WcFlags::WITH_INV) && wc.status == WcStatus::SUCCESS;
    is_invalidation.then(|| Invalidated::new(wc.imm_data, wc.qp_num, routes.directory().ticks()))
}
