//! Queues separate from queue pairs, and their events.
//!
//! | file | content |
//! |---|---|
//! | [`srq`] | shared receive queues |
//! | [`xrcd`] | XRC domains |
//! | [`wq`] | work queues and their RSS tables |
//! | [`receiver`] | a receive queue and its table of memory in flight |
//! | [`cq`] | completion queues: polling, waiting |
//! | [`completion`] | a poll in progress; completions as views or copies |
//! | [`patience`] | how a thread waits for a completion |
//! | [`comp_channel`] | files that signal events of completion queues |

pub(crate) mod comp_channel;
pub(crate) mod completion;
pub(crate) mod cq;
pub(crate) mod patience;
pub(crate) mod receiver;
pub(crate) mod srq;
pub(crate) mod wq;
pub(crate) mod xrcd;
