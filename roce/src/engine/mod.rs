//! The transport engine: queue pairs, memory keys, requester and responder, without I/O.
//!
//! ```text
//!   post_send, post_recv, modify ──►┌──────────┐──► Sink::complete, Sink::event
//!            handle(now, packet) ──►│  Engine  │──► poll_transmit(now, buf)
//!                   timeout(now) ──►└──────────┘──► deadline()
//! ```
//!
//! | layer | module | contents |
//! |---|---|---|
//! | calls | `control` | objects created, changed and destroyed; work requests posted |
//! | | `input` | packets that arrive, timers that end |
//! | | `output` | **the order in which packets leave**, and how long one may wait |
//! | | `objects` | everything that an engine holds |
//! | protocol | `modify` | changes of a queue pair's attributes and state |
//! | | `datagram` | datagrams that arrive |
//! | | `gsi` | management datagrams (MADs): queue pair 1 without a queue pair |
//! | | `requester` | from work requests to packets, and from acknowledgements to completions |
//! | | `responder` | from request packets to memory, receives and acknowledgements |
//! | | `finish` | the ends of work requests: completed, flushed; the error state |
//! | state | `environment` | what the protocol works with apart from the queue pair |
//! | | `answers` | read responses and results of atomics: fair between peers, a window of each |
//! | | `scheduler` | queue pairs that have a packet to send, by class |
//! | | `qp` | the data of a queue pair |
//! | | `multicast` | multicast groups and their members |
//! | parts | `queue` | send and (shared) receive queues: preallocated rings of work requests |
//! | | `scatter` | lists of scatter/gather elements: bytes to registered memory and back |
//! | | `keys` | memory regions and windows: keys, rights, protection domains, ranges |
//! | | `table` | objects by number |
//! | | `random` | [`Random`], the source of the numbers of objects |
//! | | `memory` | [`Memory`] for payload; [`Sink`] for completions and events |
//! | | `types` | values: numbers of objects, attributes, work requests, completions |
//!
//! Invariant: a module uses only modules below it in this table.
//!
//! Invariant: only calls that create objects allocate. The engine never waits, locks, logs or reads
//! a clock: `now` comes from the caller and never decreases.
//!
//! Invariant: packets are hostile. No packet makes the engine panic, loop, or touch memory that a
//! key does not cover.
//!
//! Invariant: each work request ends once: it is retired ([`Sink::retire_send`],
//! [`Sink::retire_recv`]) and, if it is signalled or has failed, completed immediately afterwards,
//! in the order of its queue.
//!
//! # References
//! IBTA volume 1, chapters 9 (transport), 10 and 11 (verbs)

mod answers;
mod control;
mod datagram;
mod environment;
mod finish;
mod gsi;
mod input;
mod keys;
mod memory;
mod modify;
mod multicast;
mod objects;
mod output;
mod qp;
mod queue;
mod random;
mod requester;
mod responder;
mod scatter;
mod scheduler;
mod table;
#[cfg(test)]
mod testing;
mod types;

pub use keys::MrChange;
pub use memory::{CqFull, Fault, FirstPacket, MadsFull, Matched, Memory, Sink};
pub use random::Random;
pub use types::{
    Access, Arrival, Attr, AttrChange, Completion, Config, CqId, DroppedDatagrams, Event, GSI_QKEY, GSI_QPN,
    Gid, InlineCompletion, MAD_LEN, Mad, MadDestination, MemoryAttr, MwType, Network, Opcode, Path, Payload,
    Pd, PostRefused, QpCap, QpInit, Qpn, ReceivedMad, RecvWr, Refused, SendFlags, SendOp, SendWr, Service,
    Sge, SrqId, Stall, State, Status, Time, Transmit, UdDestination, Urgency, WindowRange, XrcDomain,
};

use objects::Objects;

/// The queue pairs of one address, and the memory that they may reach.
///
/// `M` holds payload. Completion queues belong to the caller: the engine knows them by number.
#[derive(Debug)]
pub struct Engine<M: Memory> {
    objects: Objects<M>,
}
