//! [`Skipped`]: an existing device missing from the list, with the reason.

use core::fmt;

use crate::error::{Cause, Error};
use crate::skip_reason::SkipReason;

/// A device that was found but skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The RDMA device's name, or the character device's name if the former is unknown. Unprintable
    /// characters are escaped.
    pub name: String,
    /// The reason for skipping the device.
    pub reason: SkipReason,
}

impl Skipped {
    /// Converts the skipped device into the error for a verb that needed it.
    pub fn into_error(self, verb: &'static str) -> Error {
        let errno = self.reason.errno();
        Error::new(verb, &self.name, errno).because(Cause::LeftOut { reason: Box::new(self.reason) })
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.reason)
    }
}
