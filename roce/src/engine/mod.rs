//! The transport engine: queue pairs, memory keys, requester and responder, without I/O.
//!
//! ```text
//!   post_send, post_recv, modify ──►┌──────────┐──► Sink::complete, Sink::event
//!            handle(now, packet) ──►│  Engine  │──► poll_transmit(now, space)
//!                   timeout(now) ──►└──────────┘──► deadline()
//! ```
//!
//! | layer | module | contents |
//! |---|---|---|
//! | calls | `control` | creates, changes and destroys objects; posts work requests |
//! | | `input` | received packets, expired timers |
//! | | `output` | **the order of outgoing packets** and the longest wait of each |
//! | | `objects` | all state of an engine |
//! | protocol | `modify` | changes to a queue pair's attributes and state |
//! | | `datagram` | received datagrams |
//! | | `gsi` | management datagrams (MADs): queue pair 1 without a queue pair |
//! | | `requester` | from work requests to packets; from acknowledgements to completions |
//! | | `responder` | from request packets to memory, receives and acknowledgements |
//! | | `completion` | work requests that complete or are flushed; the error state |
//! | state | `environment` | the protocol's context apart from the queue pair |
//! | | `response_queue` | read and atomic responses: fair between peers, a window for each |
//! | | `scheduler` | queue pairs with packets to send, by class |
//! | | `timers` | queue pairs with a timer, by time |
//! | | `qp` | the data of a queue pair |
//! | | `multicast` | multicast groups and their members |
//! | parts | `queue` | send and (shared) receive queues: preallocated rings of work requests |
//! | | `scatter` | lists of scatter/gather elements: bytes to registered memory and back |
//! | | `memory_regions` | memory regions and windows: keys, rights, protection domains, ranges |
//! | | `table` | objects by their random numbers |
//! | | `memory` | [`Memory`] for payload; [`Space`] for packets; [`Sink`] for completions, events |
//! | | `types` | values: object numbers, attributes, work requests, completions |
//!
//! Invariant: a module uses only modules below it in this table.
//!
//! Invariant: only calls that create objects allocate. The engine never waits, locks, logs or reads
//! a clock. `now` comes from the caller and never decreases.
//!
//! Invariant: packets may be hostile. No packet makes the engine panic, loop, or touch memory not
//! covered by a key.
//!
//! Invariant: each work request ends exactly once, in queue order. It is retired
//! ([`Sink::retire_send`], [`Sink::retire_recv`]) and, if it is signalled or has failed, completed
//! immediately afterwards.
//!
//! # References
//! IBTA volume 1, chapters 9 (transport), 10 and 11 (verbs)

mod completion;
mod control;
mod datagram;
mod environment;
mod gsi;
mod input;
mod memory;
mod memory_regions;
mod modify;
mod multicast;
mod objects;
mod output;
mod qp;
mod queue;
mod requester;
mod responder;
mod response_queue;
mod room;
mod scatter;
mod scheduler;
mod table;
#[cfg(test)]
mod testing;
mod timers;
mod types;

pub use memory::{CqFull, Fault, FirstPacket, MadsFull, Matched, Memory, Sink, Space};
pub use memory_regions::MrChange;
pub use rdma_sans_io::Random;
pub use types::{
    Access, Arrival, Attr, AttrChange, Completion, Config, CqId, DroppedDatagrams, Event, GSI_QKEY, GSI_QPN,
    Gid, InlineCompletion, MAD_LEN, Mad, MadDestination, MemoryAttr, MwType, Network, Opcode, Path, Payload,
    Pd, PostRefused, QpCap, QpInit, Qpn, ReceivedMad, RecvWr, Refused, SendFlags, SendOp, SendWr, Service,
    Sge, SrqId, Stall, State, Status, Time, Transmit, UdDestination, Urgency, WindowRange, XrcDomain,
};

use objects::Objects;

/// The queue pairs of one address and the memory that they can access.
///
/// `M` holds payload. Completion queues belong to the caller; the engine uses only their numbers.
#[derive(Debug)]
pub struct Engine<M: Memory> {
    objects: Objects<M>,
}
