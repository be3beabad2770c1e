//! The handles' foundation: kernel objects, their dependencies, and the state of an open device.
//!
//! | file | content |
//! |---|---|
//! | [`kernel_handle`] | **start here**: a kernel object, its dependencies, the order of release |
//! | [`shared_object`] | a kernel object used by others and the count of its users |
//! | [`registry`] | the state shared by all handles of an open device; ids in events |
//! | [`error`] | the error of a call that consumes a handle |

pub(crate) mod error;
pub(crate) mod kernel_handle;
pub(crate) mod registry;
pub(crate) mod shared_object;
