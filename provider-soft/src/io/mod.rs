//! Packets in and out: one UDP socket, and batches on it.
//!
//! ```text
//!   engine ──► Outbox::space, push ──► flush ──►┐                         ┌──► a peer's Inbox
//!              ICRC, segments joined   sendmmsg │  Socket, UDP port 4791  │
//!   engine ◄── Inbox::next ◄──────── receive ◄──┘                         └◄── a peer's Outbox
//!              ICRC checked, segments parted    recvmmsg
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`socket`] | the socket: an address that nobody else has, what the kernel can do with it |
//! | [`outbox`] | **sending**: packets of one flow joined to segments of one datagram (UDP GSO) |
//! | [`inbox`] | **receiving**: datagrams parted into packets again (UDP GRO), ICRC checked |
//! | [`backlog`] | whether the kernel's send queue has room for read responses |
//! | [`flows`] | ICRC states prepared for the peers that were met last |
//! | [`address`] | GIDs, IP addresses, socket names |
//! | [`control`] | ancillary data as bytes |
//! | [`counters`] | what left, what came, what was lost and why |
//! | [`sys`] | the system calls: the only unsafe code here |
//!
//! Invariant: nothing is allocated after the socket and its boxes are made.
//!
//! Invariant: a packet that cannot be sent, or is not right, is counted and gone, as if a wire had lost it; the transport
//! above retries. Only a full socket buffer holds packets back.
//!
//! # What the kernel sends (measured on Linux 6.1, 6.18 and 7.2, by packet capture)
//! | from an unconnected socket with `IP_MTU_DISCOVER = DO` | IPv4 identification | DF |
//! |---|---|---|
//! | a datagram | 0 | set |
//! | segments of one send (UDP GSO), parted before the device | 0, 1, 2, ... in order, from 0 with each send | set |
//! | segments of one send to this host (loopback) | not parted: the receiver gets all at once, or each, as it asked | set |
//!
//! The identification is part of the ICRC, so the first packet of a send has its ICRC made for 0, the second for 1. The
//! receiver expects the same by a packet's place in its datagram.

pub(crate) mod address;
mod backlog;
mod control;
pub(crate) mod counters;
mod flows;
pub(crate) mod inbox;
pub(crate) mod outbox;
pub(crate) mod socket;
mod sys;
#[cfg(test)]
mod tests;

pub(crate) use backlog::Backlog;
#[cfg(all(test, not(loom)))]
pub(crate) use backlog::HOLD;
pub use counters::Counters;
pub(crate) use inbox::Inbox;
pub(crate) use outbox::{Flush, Outbox};
pub(crate) use socket::Socket;
