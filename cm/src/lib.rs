//! RDMA connections by address, in pure Rust: programs find each other by IP address and port, and
//! get a connected queue pair. This crate does what librdmacm does, through the kernel's connection
//! manager, and without it between soft devices ([`verbs::soft`]); no C library is compiled or
//! linked.
//!
//! ```
//! use std::time::Duration;
//!
//! use rdmacm::{Connector, Listener};
//! use verbs::{SendFlags, SendOp};
//!
//! const PATIENCE: Duration = Duration::from_secs(30);
//!
//! # fn main() -> verbs::Result<()> {
//! # let device = verbs::soft::auto()?;
//! # let host = device.open()?.find_gid(1)?.gid.to_ipv4().expect("an address of 127.0.0.0/8");
//! # let address = (host, 0);
//! # /*
//! let address = "0.0.0.0:7471";
//! # */
//! let listener = Listener::bind(address)?;
//! # let address = listener.local_addr();
//! let client = std::thread::spawn(move || -> verbs::Result<()> {
//!     # /*
//!     let address = "server.example:7471";
//!     # */
//!     let mut server = Connector::default().connect(address)?;
//!     let message = server.resources.pd.register(b"hello".to_vec())?;
//!     server.qp.post_send_buf(SendOp::Send, SendFlags::empty(), message, ..)?;
//!     server.resources.next_send(PATIENCE)?.ok()?;
//!     server.disconnect(PATIENCE)?;
//!     Ok(())
//! });
//! let mut peer = listener.accept()?;
//! peer.qp.post_recv_buf(peer.resources.pd.alloc_buf(4096)?, ..)?;
//! let received = peer.resources.next_recv(PATIENCE)?.ok()?;
//! assert_eq!(received.into_buf()?[..5], *b"hello");
//! peer.control.wait(PATIENCE)?;
//! # client.join().expect("it has ended")?;
//! # Ok(())
//! # }
//! ```
//!
//! Devices are those of the providers that the features name: `mlx5` and `rxe`, both by default.
//! Soft devices are always there, because their connection manager is part of this crate.
//!
//! [`guide`] describes connections, and shows each function of librdmacm beside ours. [`Listener`]
//! and [`Connector`] are made of the types below them, which programs with other needs use
//! directly: an [`EventChannel`] with any number of ids. The side that listens:
//!
//! ```no_run
//! use std::net::Ipv4Addr;
//!
//! use rdmacm::{ConnParam, EventChannel, EventKind, PortSpace};
//! use verbs::{CqInit, QpInit, QpType};
//!
//! # fn main() -> verbs::Result<()> {
//! let channel = EventChannel::new()?;
//! let listener = channel.create_id(PortSpace::TCP)?;
//! listener.bind_addr((Ipv4Addr::UNSPECIFIED, 7471))?;
//! listener.listen(8)?;
//!
//! let mut waiting = None;
//! loop {
//!     match channel.next_event()?.kind {
//!         EventKind::ConnectRequest(request) => {
//!             let id = request.id;
//!             let context = id.context()?;
//!             let (pd, cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(16))?);
//!             let mut qp = id.create_qp(&pd, &QpInit::new(QpType::RC, &cq))?;
//!             qp.post_recv_buf(pd.alloc_buf(4096)?, ..)?;
//!             id.accept(qp, &ConnParam::default())?;
//!             waiting = Some((id, cq));
//!         }
//!         EventKind::Established(_) => break,
//!         _ => {}
//!     }
//! }
//! let (id, cq) = waiting.expect("what is established was accepted");
//! let qp = id.take_qp().expect("the id holds the queue pair that it accepted with");
//! # let _ = (qp, cq);
//! # Ok(())
//! # }
//! ```
//!
//! The side that connects resolves the address and the route first, and waits for an event each
//! time: [`resolve_addr`](CmId::resolve_addr), [`resolve_route`](CmId::resolve_route),
//! [`create_qp`](CmId::create_qp), [`connect`](CmId::connect).
//!
//! # Types by their C names
//! | object | in C | here |
//! |---|---|---|
//! | a connection | `rdma_create_ep` | [`Connection`], [`Connector`], [`Listener`], [`Binding`] |
//! | the place of events | `rdma_event_channel` | [`EventChannel`] |
//! | an id | `rdma_cm_id` | [`CmId`]; in events its [`IdKey`] |
//! | an event | `rdma_cm_event` | [`Event`], [`EventKind`], [`EventType`] |
//! | a request | `rdma_cm_event` with a new id | [`ConnectRequest`] |
//! | parameters | `rdma_conn_param` | [`ConnParam`]; those of a peer [`PeerParam`] |
//! | a datagram service | `rdma_ud_param` | [`PeerUd`] |
//! | addresses | `sockaddr`, `rdma_addrinfo` | [`Address`], [`AddrInfo`], [`getaddrinfo`] |
//! | an id's queue pair | `id->qp` | [`CmId::create_qp`], [`CmId::take_qp`] |
//! | groups | `rdma_join_multicast` | [`CmId::join_multicast`], [`GroupKey`] |
//!
//! A search of these pages for a C name finds its counterpart.
//!
//! # Devices
//! The address of an id decides: one that a soft device of the process has, or one that such a
//! device reaches, is that device's, and any other the kernel's. A listener on the unspecified
//! address listens on all devices of both. Calls, events and errnos are the same, with the few
//! differences that the [`guide`] lists, and the protocol is that of Linux' `rdma_cm`. Without
//! `/dev/infiniband/rdma_cm`, a program with a soft device, or one that is started with
//! `VERBS_SOFT=auto`, connects all the same:
//!
//! ```
//! use std::time::Duration;
//!
//! use rdmacm::{ConnParam, EventChannel, EventKind, PortSpace};
//!
//! # fn main() -> verbs::Result<()> {
//! let device = verbs::soft::auto()?;
//! # let host = device.open()?.find_gid(1)?.gid.to_ipv4().expect("an address of 127.0.0.0/8");
//! let channel = EventChannel::new()?;
//! let listener = channel.create_id(PortSpace::TCP)?;
//! listener.bind_addr((host, 0))?;
//! listener.listen(8)?;
//!
//! let id = channel.create_id(PortSpace::TCP)?;
//! let address = listener.local_addr()?.expect("it is bound");
//! id.resolve_addr(None, address, Duration::from_secs(2))?;
//! assert!(matches!(channel.next_event()?.ok()?.kind, EventKind::AddrResolved));
//! id.resolve_route(Duration::from_secs(2))?;
//! assert!(matches!(channel.next_event()?.ok()?.kind, EventKind::RouteResolved));
//! id.connect_with(&ConnParam { private_data: b"hello", ..ConnParam::default() })?;
//! let EventKind::ConnectRequest(request) = channel.next_event()?.kind else {
//!     panic!("no request")
//! };
//! assert_eq!(&request.peer.private_data()[..5], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Queue pairs
//! - A queue pair of the id is made by [`create_qp`](CmId::create_qp). The calls
//!   [`connect`](CmId::connect) and [`accept`](CmId::accept) take it, the id moves it, and
//!   [`take_qp`](CmId::take_qp) returns it in RTS.
//! - A queue pair of the program's own is moved by the program, with attributes of
//!   [`init_qp_attr`](CmId::init_qp_attr). [`connect_with`](CmId::connect_with) and
//!   [`accept_with`](CmId::accept_with) name it by its number, and
//!   [`establish`](CmId::establish) tells the peer that it is ready.
//! - A queue pair for datagrams is made by [`create_ud_qp`](CmId::create_ud_qp), in RTS at once.
//!   [`connect_with`](CmId::connect_with) looks a service up, whose address comes with
//!   [`Established`](EventKind::Established).
//!
//! # Ownership
//! An id ends when it is dropped, in any state and without waiting ([`CmId`] says how). Events name
//! ids by keys that become stale, so that there is nothing to acknowledge, and ids, events and
//! channels may be dropped in any order.
//!
//! # Threads
//! All handles are `Send` and `Sync`. Any number of threads may read one channel, and call one id.
//!
//! # Forks
//! Ids of soft devices belong to the process that made them. In a forked child, calls of them and
//! reading events of a channel that has only such ids fail with
//! [`Cause::Forked`](verbs::Cause::Forked), and dropping them ends nothing. So it is with ids of
//! the kernel's connection manager, with `EACCES`: the kernel compares the credentials of each
//! command with those of opening the file, and a child has a copy of its own. A child that connects
//! opens a channel of its own; on soft devices it can do so unless its parent has had ids on some.
//!
//! # Errors
//! Calls return [`verbs::Error`]: the call, the device, the errno and the cause, as a sentence. A
//! failure that comes later is an event; [`Event::ok`] turns it into such an error.
//!
//! # Inside
//! | module | what it is |
//! |---|---|
//! | `channel` | the file, its commands, a scripted kernel for tests |
//! | `cmd` | one function for each kernel method |
//! | `types` | values |
//! | `backend` | the seam behind which an id is the kernel's, or that of a soft device |
//! | `table` | the cookies that events carry |
//! | `dispatch` | from a backend's event to an [`Event`] |
//! | `device` | the verbs devices behind ids, opened once |
//! | `id`, `event`, `event_channel`, `addrinfo` | the API |
//! | `connection` | listeners and connectors above it, and their states without I/O |

#![allow(clippy::result_large_err)]

// The driver of the fuzz target names this crate from the outside.
#[cfg(test)]
extern crate self as rdmacm;

mod addrinfo;
mod backend;
mod channel;
mod cmd;
mod connection;
mod device;
mod dispatch;
mod event;
mod event_channel;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod hostile;
mod id;
mod table;
mod types;

#[doc = include_str!("connecting.md")]
pub mod guide {}

pub use addrinfo::{AddrInfo, Family, Hints, getaddrinfo};
pub use connection::{
    Binding, ConnectError, ConnectStep, Connection, Connector, Control, Disconnected, End, Incoming,
    Listener, ListenerInit, Resources, ToAddresses,
};
pub use event::{ConnectRequest, Event, EventKind, Peer, Rejection, Status};
pub use event_channel::EventChannel;
pub use id::{CmId, GroupKey, IdKey, Message};
pub use types::{
    Address, ConnParam, EventType, IbAddress, PathRecord, PeerParam, PeerUd, PortSpace, RejectReason,
    Service, ServiceRecord,
};
