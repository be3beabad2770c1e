//! Queue pairs at work. [`Qp`](crate::state::qp::Qp) holds their state.
//!
//! ```text
//!            buffer:  receive queue │ send queue     (`rq.bytes()` is the send queue's offset)
//!   doorbell record:  receive head  │ send head
//! ```
//!
//! The engine holds the state, sequence numbers and transport attributes. The context here holds
//! the values the driver wrote, and QUERY_QP updates it from the engine.
//!
//! | module | contents |
//! |---|---|
//! | `sq` | fetches work requests from send queues, in order |
//! | `wqe`, `request` | decode the segments of a work request into a request |
//! | `udav` | decodes the address vectors of datagrams |
//! | `umr` | changes memory keys and windows through work requests |
//! | `fence` | checks fences between a UMR and the next work request |
//! | `posted` | compares finished requests with their posted form |
//! | `rq` | fetches receives from a queue pair's own queue and from shared queues |
//! | `recv_signature` | checks the checksums of receives |
//! | `matching` | tag matching: list operations, matching messages, rendezvous |
//! | `completion` | completions and events from the transport engine |
//!
//! These modules decode guest memory, and the engine executes the work requests. Invalid work
//! requests and those the engine does not implement (NOP, UMR of a memory key) wait in
//! [`SendRun::waiting`](crate::state::qp::SendRun::waiting) until all earlier ones have ended.

pub(crate) mod completion;
mod fence;
pub(crate) mod matching;
pub(crate) mod posted;
mod recv_signature;
pub(crate) mod request;
pub(crate) mod rq;
pub(crate) mod sq;
pub(crate) mod udav;
pub(crate) mod umr;
pub(crate) mod wqe;

#[cfg(test)]
pub(crate) mod tests;

use crate::state::qp::{BASIC_BLOCK, Receives};
