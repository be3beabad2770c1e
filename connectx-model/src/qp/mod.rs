//! The data path of queue pairs. Their state is in [`Qp`](crate::state::qp::Qp).
//!
//! ```text
//!            buffer:  receive queue │ send queue     (`rq.bytes()` is the send queue's offset)
//!   doorbell record:  receive head  │ send head
//! ```
//!
//! The engine stores the queue pair state, sequence numbers and transport attributes. The context
//! in `Qp` stores the values that the driver wrote; QUERY_QP combines both.
//!
//! | module | contents |
//! |---|---|
//! | `sq` | fetches work requests from send queues, in order |
//! | `wqe`, `request` | decode the segments of a work request into a request |
//! | `udav` | decodes the address vectors of datagrams |
//! | `umr` | changes memory keys and windows through work requests |
//! | `fence` | checks fences between a UMR and the next work request |
//! | `posted` | compares completed requests with their posted form |
//! | `rq` | fetches receives from a queue pair's own queue and from shared queues |
//! | `recv_signature` | checks the checksums of receives |
//! | `matching` | tag matching: list operations, matching messages, rendezvous |
//! | `completion` | completions and events from the transport engine |
//!
//! These modules decode guest memory, and the engine executes the work requests. Two kinds of work
//! requests wait in [`SendRun::waiting`](crate::state::qp::SendRun::waiting) until all earlier ones
//! have ended: invalid ones, and those that the engine does not implement (NOP, UMR of a memory
//! key).

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
