//! The verbs: one file per kind of object, with its exported functions and its operations for a
//! provider.
//!
//! | module | content |
//! |---|---|
//! | [`device`], [`query`] | the device list; queries of devices, ports, GIDs, partition keys |
//! | [`event`], [`channel`] | asynchronous events, completion channels |
//! | [`flow`], [`counters`] | flow rules and actions, counters |
//! | [`qp`] | queue pairs: state, `ibv_post_send`, `ibv_wr_...` |
//! | [`receives`] | lists of receives, for all queues that accept them |
//! | [`srq`], [`wq`] | shared receive queues, work queues and their tables |
//! | [`cq`], [`cq_ex`] | completion queues: polling into arrays; `ibv_cq_ex`: one at a time |
//! | [`mr`], [`mw`], [`dm`] | memory regions, windows, device memory |
//! | [`ah`], [`address`] | address handles, the route back to a sender |
//! | [`pd`], [`xrcd`] | protection, thread, parent and XRC domains |
//! | [`fork`], [`gid_type`] | memory and forks; a private function that programs import |

pub mod address;
pub mod ah;
pub mod channel;
pub mod counters;
pub mod cq;
pub mod device;
pub mod dm;
pub mod event;
pub mod fork;
pub mod mr;
pub mod pd;
pub mod qp;
pub mod query;
pub mod srq;

pub(crate) mod cq_ex;
pub(crate) mod flow;
pub(crate) mod mw;
pub(crate) mod receives;
pub(crate) mod wq;
pub(crate) mod xrcd;

mod gid_type;
