//! Connections by address on soft devices of this process, over loopback.
//!
//! | file | subject |
//! |---|---|
//! | [`support`] | devices, channels with deadlines, connected pairs |
//! | [`address`] | addresses, ports and options |
//! | [`connect`] | connections: private data, data, rejects, backlogs |
//! | [`datagram`] | datagram services, and multicast groups |
//! | [`edges`] | edge-triggered event loops |
//! | [`life`] | ids dropped in every state |
//! | [`listener`] | listeners and connectors |
//! | [`mtu`] | path MTUs between interfaces of one machine |
//! | [`process`] | two processes that find each other by a port on localhost |
//! | [`removal`] | devices that disappear and appear |
//! | [`short`] | a process short of memory |
//! | [`stranger`] | management datagrams that no connection manager sends |
//! | [`thread`] | many threads at one channel |
//! | [`users`] | names taken by another user of the machine |
//! | [`xrc`] | connections over XRC |
#![allow(missing_docs)]

mod address;
mod connect;
mod datagram;
mod edges;
mod life;
mod listener;
mod mtu;
mod neighbour;
mod process;
mod removal;
mod short;
mod stranger;
mod support;
mod thread;
mod users;
mod xrc;
