//! The objects of the provider contract, one file each.
//!
//! | module | content |
//! |---|---|
//! | [`context`] | an open device; creates all other objects |
//! | [`qp`], [`sq`], [`rq`] | a queue pair and its two queues |
//! | [`srq`] | a shared receive queue |
//! | [`cq`], [`comp_channel`] | completion queues, and the channels that carry their events |
//! | [`mr`], [`mw`], [`dm`] | memory regions and windows, device memory |
//! | [`pd`], [`td`], [`xrcd`] | domains: protection, thread, XRC |
//! | [`ah`] | the path of a datagram |
//! | [`soft`] | the provider as a type |

pub(crate) mod ah;
pub(crate) mod comp_channel;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod dm;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod rq;
pub(crate) mod soft;
pub(crate) mod sq;
pub(crate) mod srq;
pub(crate) mod td;
pub(crate) mod xrcd;
