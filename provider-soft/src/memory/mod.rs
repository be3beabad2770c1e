//! Registered memory: its classification, and the engine's access to it.
//!
//! | module | content |
//! |---|---|
//! | [`region`] | payload: atomic copies in memory of this process |
//! | [`device_memory`] | allocations of device memory, and the amount left |
//! | [`checked`] | selects the memory that the kernel accesses for the device |
//! | [`paged`] | payload in on-demand paged memory: the kernel copies |
//! | [`mapped`] | rejects memory that cannot be registered |

pub(crate) mod checked;
pub(crate) mod device_memory;
pub(crate) mod mapped;
pub(crate) mod paged;
pub(crate) mod region;
