//! Packets in and out: one UDP socket and batches on it.
//!
//! ```text
//!   engine ──► Outbox::space, push ──► flush ──►┐                         ┌──► a peer's Inbox
//!              ICRC, segments joined   sendmmsg │  Socket, UDP port 4791  │
//!   engine ◄── Inbox::next ◄──────── receive ◄──┘                         └◄── a peer's Outbox
//!              ICRC checked, segments split     recvmmsg
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`socket`] | the socket: its address, and the kernel's features on it |
//! | [`share`] | an address shared by processes |
//! | [`turn`] | the lock held while joining these processes |
//! | [`connected`] | sockets that each send to one address of this host |
//! | [`outbox`] | **sending**: packets of one flow joined to one datagram (UDP GSO) |
//! | [`inbox`] | **receiving**: datagrams split into packets (UDP GRO), ICRC checked |
//! | [`backlog`] | whether the kernel's send queue has space for read responses |
//! | [`names`] | connects to abstract names, by which processes find each other |
//! | [`owner`] | the process at the other end of a Unix socket |
//! | [`requests`] | connection requests for an address shared by processes |
//! | [`groups`] | multicast: a socket for each group |
//! | [`faults`] | packets deliberately lost, duplicated, damaged or delayed |
//! | [`capture`] | copies of packets in a pcap file |
//! | [`icrc_cache`] | ICRCs of packets, computed from the cached states of recent peers |
//! | [`address`] | GIDs, IP addresses, socket names |
//! | [`control`] | ancillary data as bytes |
//! | [`counters`] | packets sent, received and lost, with reasons |
//! | [`link`] | detects when the interface goes down or up, or loses the device's address |
//! | [`spare`] | a spare descriptor for use when all others are in use |
//! | [`sys`] | the system calls: the only unsafe code here |
//!
//! Invariant: nothing is allocated after the socket, its inbox and its outbox are created, except
//! for a multicast group, in the call that joins the group, and for a connected socket, in the call
//! that connects the queue pair.
//!
//! Invariant: a packet that is invalid or cannot be sent is counted and dropped, as if lost on
//! a wire; the transport above retries. Only a full socket buffer holds packets back.
//!
//! # The kernel's packets (measured on Linux 6.1, 6.18 and 7.2, by packet capture)
//! | from an unconnected socket with `IP_MTU_DISCOVER = DO` | IPv4 identification | DF |
//! |---|---|---|
//! | a datagram | 0 | set |
//! | segments of one send (UDP GSO) to a device | 0, 1, 2, ... in order from 0 | set |
//! | segments of one send to this host (loopback) | not split before the receiver | set |
//! | a datagram from a connected socket | counted up from a random number ([`connected`]) | set |
//!
//! On loopback the receiver gets all segments at once (GRO) or one by one, depending on its socket.
//!
//! The ICRC covers the identification, so the ICRC of a send's first packet is computed for
//! identification 0, and the ICRC of its second packet for 1. The receiver infers the
//! identification from a packet's position in its datagram.

pub(crate) mod address;
mod backlog;
mod capture;
pub(crate) mod connected;
mod control;
pub(crate) mod counters;
mod faults;
mod groups;
mod icrc_cache;
pub(crate) mod inbox;
pub(crate) mod link;
pub(crate) mod names;
pub(crate) mod outbox;
pub(crate) mod owner;
mod requests;
pub(crate) mod share;
pub(crate) mod socket;
pub(crate) mod spare;
mod sys;
#[cfg(test)]
mod tests;
mod turn;

pub(crate) use backlog::Backlog;
#[cfg(all(test, not(loom)))]
pub(crate) use backlog::HOLD;
pub(crate) use capture::{Capture, Direction};
pub use counters::Counters;
pub(crate) use faults::Injector;
pub use faults::{Faults, InvalidFaults};
pub(crate) use groups::Groups;
pub(crate) use inbox::Inbox;
pub(crate) use outbox::{Flush, Outbox};
pub(crate) use requests::Requests;
pub(crate) use share::Membership;
pub(crate) use socket::Socket;
pub(crate) use sys::{accept, effective_user, process, receive_files, send_files};
