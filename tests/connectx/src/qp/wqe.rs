//! What the segments of a work request mean.

/// What the engine does not have.
#[derive(Debug)]
pub(crate) enum Local {
    /// Nothing, but for its completion.
    Nop,
}
