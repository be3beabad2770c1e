//! Registered memory: classified, and accessed for the engine.
//!
//! | module | content |
//! |---|---|
//! | [`region`] | payload: atomic copies in memory of this process |
//! | [`paged`] | payload in on-demand paged memory: the kernel copies |
//! | [`mapped`] | rejects memory that cannot be registered |

pub(crate) mod mapped;
pub(crate) mod paged;
pub(crate) mod region;
