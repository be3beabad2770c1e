//! State shared between threads. The model checker tries the interleavings of each module.
//!
//! | module | content |
//! |---|---|
//! | [`combining_lock`] | gives the device to one thread at a time; others leave work for it |
//! | [`pending`] | the queue pairs whose rings hold new work requests |
//! | [`event_requests`] | requests for completion queue events |
//! | [`notify`] | decides when a completion raises an event |
//! | [`signal`] | a descriptor that is readable while a ring holds management datagrams |
//! | [`ring`] | the queue between two threads, used for all queues here |
//! | [`primitives`] | atomics, or the model checker's replacements |

pub(crate) mod combining_lock;
pub(crate) mod event_requests;
pub(crate) mod notify;
pub(crate) mod pending;
pub(crate) mod primitives;
pub(crate) mod ring;
pub(crate) mod signal;
