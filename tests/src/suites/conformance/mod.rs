//! `conformance`: what verbs promise of data, completions and events, on a real device.
//!
//! | file | what is in it |
//! |---|---|
//! | [`rc`] | reliable connections: every operation, with the data verified |
//! | [`datagram`] | unreliable connections and datagrams |
//! | [`queues`] | posting and polling: lists, wrap-around, signalling, two threads, buffers |
//! | [`owned`] | memory of each kind that queues own, unsignalled sends, batches, endpoints |
//! | [`failures`] | requests that end badly, and how |
//! | [`events`] | completion channels and asynchronous events |
//!
//! Each case runs twice: with the provider hidden, and with it named.

pub mod datagram;
pub mod events;
pub mod failures;
pub mod owned;
pub mod queues;
pub mod rc;

use crate::runner::Case;

const SUITE: &str = "conformance";

/// The suite.
pub fn cases() -> Vec<Case> {
    let parts =
        [rc::cases(), datagram::cases(), queues::cases(), owned::cases(), failures::cases(), events::cases()];
    parts.into_iter().flatten().collect()
}
