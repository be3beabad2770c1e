//! [`ParseError`]: malformed text or bytes.

use core::fmt;

/// The error from parsing a value, such as a [`Gid`](super::Gid) or a [`Grh`](super::Grh).
///
/// `Display` names the value and its expected form: `a GID is an IPv6 or IPv4 address`. The text
/// itself is omitted because it may come from an untrusted source.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseError {
    /// The kind of value (`"GID"`).
    pub what: &'static str,
    /// The expected form.
    pub expected: &'static str,
}

impl ParseError {
    /// Creates the error for a malformed value of the kind `what`, which should have the form
    /// `expected`.
    pub const fn new(what: &'static str, expected: &'static str) -> Self {
        Self { what, expected }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let article = if self.what.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
        write!(f, "{article} {} is {}", self.what, self.expected)
    }
}

/// Formats like `Display`, because `main` prints a returned error with `Debug`.
impl fmt::Debug for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ParseError {}
