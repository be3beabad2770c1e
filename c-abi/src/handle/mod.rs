//! The handles that a program holds: objects behind the C pointers and their locks.
//!
//! | module | content |
//! |---|---|
//! | [`context`] | an open device and calls of verbs for its provider |
//! | [`cmd_fd`] | the descriptor shown as `ibv_context.cmd_fd` |
//! | [`object`] | an object in C, together with the provider's object |
//! | [`live_objects`] | the live objects of a context that give peers access |
//! | [`destroyable`] | objects that threads may use while another thread destroys them |
//! | [`lock`], [`thread`] | the lock of a queue, an identifier of the calling thread |
//! | [`wait`] | the system calls that are cancellation points |

pub(crate) mod cmd_fd;
pub(crate) mod context;
pub(crate) mod destroyable;
pub(crate) mod live_objects;
pub(crate) mod lock;
pub(crate) mod object;
pub(crate) mod thread;
pub(crate) mod wait;
