//! Queue pairs at work. Their state is [`Qp`](crate::state::qp::Qp).
//!
//! ```text
//!            buffer:  receive queue │ send queue     (`rq.bytes()` is the send queue's offset)
//!   doorbell record:  receive head  │ send head
//! ```
//!
//! The engine holds the state, sequence numbers and transport attributes. The context here holds
//! the values written by the driver, and QUERY_QP updates it from the engine.
//!
//! | module | contents |
//! |---|---|
//! | `sq` | fetches work requests from send queues, in order |
//! | `wqe`, `request` | decodes their segments to a request |
//! | `udav` | address vectors of datagrams |
//! | `umr` | changes of memory keys and windows by work requests |
//! | `fence` | fences between a UMR and the work request after it |
//! | `posted` | compares finished requests with their posted form |
//! | `rq` | fetches receives, from a queue pair's own queue and from shared ones |
//! | `recv_signature` | checksums of receives |
//! | `matching` | tag matching: list operations, matching messages, rendezvous |
//! | `completion` | completions and events from the transport engine |
//!
//! These modules decode guest memory, and the engine executes the work requests. Invalid work
//! requests and those not implemented in the engine (NOP, UMR of a memory key) wait in
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
