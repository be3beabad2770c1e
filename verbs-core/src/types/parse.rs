//! [`ParseError`]: text or bytes that are not the value they should be.

use core::fmt;

/// Text or bytes that are not the value they should be: a [`Gid`](super::Gid), a
/// [`Grh`](super::Grh) and others.
///
/// `Display` names both: `a GID is an IPv6 or IPv4 address`. The text itself is left out: it may
/// come from a stranger.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ParseError {
    /// The name of the value (`"GID"`).
    pub what: &'static str,
    /// The form that was expected.
    pub expected: &'static str,
}

impl ParseError {
    /// The error for a value of the kind `what`, which should have the form `expected`.
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

/// The sentence of `Display`, because a `main` that returns an error prints `Debug`.
impl fmt::Debug for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ParseError {}
