//! Registered memory: its classification, and the engine's access to it.
//!
//! | module | content |
//! |---|---|
//! | [`region`] | payload: atomic copies in memory of this process |
//! | [`device_memory`] | the bytes of device memory, and how many are left |
//! | [`checked`] | the choice of memory that the kernel accesses for the device |
//! | [`paged`] | payload in on-demand paged memory: the kernel copies |
//! | [`mapped`] | rejects memory that cannot be registered |

pub(crate) mod checked;
pub(crate) mod device_memory;
pub(crate) mod mapped;
pub(crate) mod paged;
pub(crate) mod region;
