//! [`SpareFd`]: a spare descriptor for use when all others are in use.

use std::os::fd::OwnedFd;

use nix::sys::eventfd::{EfdFlags, EventFd};
use verbs_core::Errno;

/// A descriptor in reserve. While all other descriptors are in use, a listener can close it
/// temporarily and use its number to respond.
#[derive(Debug, Default)]
pub struct SpareFd(Option<OwnedFd>);

impl SpareFd {
    /// Opens the descriptor, if one is free.
    pub fn new() -> Self {
        Self(EventFd::from_flags(EfdFlags::EFD_CLOEXEC).ok().map(OwnedFd::from))
    }

    /// Returns whether the spare descriptor is closed, because the last function called by
    /// [`lend`](Self::lend) needed its number.
    pub(crate) fn is_lent(&self) -> bool {
        self.0.is_none()
    }

    /// Reopens the spare descriptor if it is closed and a descriptor number is free.
    pub(crate) fn restore(&mut self) {
        if self.is_lent() {
            *self = Self::new();
        }
    }

    /// Calls `open`, which opens a descriptor. If no descriptor is free, closes the spare
    /// descriptor and calls `open` again. A later call reopens the spare descriptor, once the
    /// caller has closed the opened one.
    ///
    /// # Errors
    /// Any errno `open` returns.
    pub fn lend<T>(&mut self, open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        let first = open();
        if first.as_ref().is_err_and(|errno| *errno == Errno::MFILE) {
            return match self.0.take() {
                Some(spare) => {
                    drop(spare);
                    open()
                }
                None => first,
            };
        }
        self.restore();
        first
    }
}
