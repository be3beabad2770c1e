//! Two processes that try everything on each other and look at every byte: what `verbs-peer` is
//! made of.
//!
//! | module | what it is |
//! |---|---|
//! | [`link`] | the TCP connection over which peers keep step |
//! | [`session`] | two peers that know of each other, and their connections |
//! | [`steps`] | what they try, one thing after the other |
//! | [`traffic`] | everything at once, at random, checked |
//! | [`soak`] | such traffic on many connections of one device, for long |
//!
//! All of it is safe code: memory is posted to queues or exposed.

pub mod link;
pub mod session;
pub mod soak;
pub mod steps;
pub mod traffic;
