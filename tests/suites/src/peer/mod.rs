//! Two processes that try every operation on each other and check every byte: the library behind
//! `verbs-peer`.
//!
//! | module | content |
//! |---|---|
//! | [`link`] | the TCP connection over which peers synchronise |
//! | [`session`] | two peers with each other's addresses, and their connections |
//! | [`steps`] | the steps, one after the other |
//! | [`traffic`] | all operations at once, at random, checked |
//! | [`soak`] | long-running traffic on many connections of one device |
//!
//! `tests/suites/tests/soft_peers.rs` runs them on soft devices. The suite `soft_interop` pairs a soft
//! device with the kernel's rxe, over a veth pair and under netem. The cases state the faults of
//! rxe that they avoid.
//!
//! Everything is safe code: memory is posted to queues or exposed.

pub mod link;
pub mod session;
pub mod soak;
pub mod steps;
pub mod traffic;
