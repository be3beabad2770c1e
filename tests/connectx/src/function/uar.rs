//! [`Uars`]: user access regions, the pages of doorbells.

/// The UAR pages that are allocated, and what is stored into them.
#[derive(Debug, Default)]
pub(crate) struct Uars {}
