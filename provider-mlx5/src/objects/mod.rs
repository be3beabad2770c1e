//! The objects of the provider contract, one file each.
//!
//! | module | content |
//! |---|---|
//! | [`context`] | an open device; creates all other objects |
//! | [`flow`], [`counters`] | flow rules, and their counters |
//! | [`qp`] | a queue pair, its states and its limits |
//! | [`srq`], [`wq`] | a shared receive queue, and the receive queue of a table |
//! | [`cq`] | a completion queue: its ring, its events, its size |
//! | [`mr`], [`dm`] | memory regions, device memory |
//! | [`pd`], [`xrcd`] | domains: protection and thread, XRC |
//! | [`ah`] | the path of a datagram |
//! | [`mlx5`] | the provider as a type |

pub(crate) mod ah;
pub(crate) mod context;
pub(crate) mod counters;
pub(crate) mod cq;
pub(crate) mod dm;
pub(crate) mod flow;
pub(crate) mod mlx5;
pub(crate) mod mr;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod srq;
pub(crate) mod wq;
pub(crate) mod xrcd;
