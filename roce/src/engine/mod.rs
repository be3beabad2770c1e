//! The transport engine: queue pairs, memory keys, requester and responder, without I/O.
//!
//! ```text
//!   post_send, post_recv, modify ──►┌──────────┐──► Sink::complete, Sink::event
//!            handle(now, packet) ──►│  Engine  │──► poll_transmit(now, buf)
//!                   timeout(now) ──►└──────────┘──► deadline()
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `types` | values: numbers of objects, attributes, work requests, completions |
//! | `memory` | [`Memory`], where payload lives; [`Sink`], where what happened is told |
//! | `random` | [`Random`], where the numbers of objects come from |
//! | `table` | objects by number |
//! | `keys` | memory regions and windows: keys, rights, protection domains, ranges |
//! | `scatter` | lists of scatter/gather elements: bytes to registered memory and back |
//! | `queue` | send, receive and shared receive queues: preallocated rings of work requests |
//! | `qp` | a queue pair and its states |
//! | `requester` | from work requests to packets, and from acknowledgements to completions |
//! | `responder` | from request packets to memory, receives and acknowledgements |
//! | `datagram` | UD: address checks, multicast |
//! | `control` | objects made, changed and destroyed; memory registered |
//! | `schedule` | **whose packet leaves next**, and how long it may wait |
//! | `answers` | read responses and atomics' results: fair between peers, a window of each |
//!
//! Invariant: nothing allocates but the calls that make objects. Nothing waits, locks, logs or asks for the time: `now`
//! comes from the caller and never goes back.
//!
//! Invariant: packets are hostile. No packet makes the engine panic, loop, or touch memory that a key does not cover.
//!
//! Invariant: each work request ends once: it is retired ([`Sink::retire_send`], [`Sink::retire_recv`]) and, where it is
//! signalled or has failed, completed just after, in the order of its queue.
//!
//! # References
//! IBTA volume 1, chapters 9 (transport), 10 and 11 (verbs)

mod answers;
mod control;
mod datagram;
mod keys;
mod memory;
mod qp;
mod queue;
mod random;
mod requester;
mod responder;
mod scatter;
mod schedule;
mod table;
#[cfg(test)]
mod testing;
mod types;

pub use keys::MrChange;
pub use memory::{CqFull, Fault, Memory, Sink};
pub use random::Random;
pub use types::{
    Access, Arrival, Attr, AttrChange, Completion, Config, CqId, Event, Gid, InlineCompletion, MemoryAttr,
    MwType, Network, Opcode, Path, Payload, Pd, PostRefused, QpCap, QpInit, Qpn, RecvWr, Refused, SendFlags,
    SendOp, SendWr, Service, Sge, SrqId, State, Status, Time, Transmit, UdDestination, Urgency, XrcDomain,
};

use control::Objects;

/// Many queue pairs on one address, and the memory they may reach.
///
/// `M` is where payload lives. Completion queues are the caller's: the engine knows them by number.
#[derive(Debug)]
pub struct Engine<M: Memory> {
    objects: Objects<M>,
}
