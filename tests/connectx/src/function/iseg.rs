//! [`Iseg`]: the initialisation segment.

/// The registers at the start of BAR 0.
#[derive(Debug, Default)]
pub(crate) struct Iseg {}
