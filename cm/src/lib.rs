//! RDMA connections by address, in pure Rust: one program listens on an IP address and port,
//! another connects to it. Both get a connected queue pair. The crate does the work of librdmacm,
//! through the kernel's connection manager or, between soft devices (`verbs::soft`), without it. No
//! C library is compiled or linked.
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
//! # let host = device.open()?.find_gid(1)?.gid.to_ipv6().to_canonical();
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
//! The features `mlx5`, `rxe` and `soft`, all on by default, select the devices. `soft` includes
//! the connection manager of soft devices, which is part of this crate.
//!
//! [`guide`] describes connections and shows each function of librdmacm beside ours. [`Listener`]
//! and [`Connector`] are built on lower types, which programs with other needs use directly: an
//! [`EventChannel`] with any number of ids. The listening side:
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
//! let (id, cq) = waiting.expect("an established id was accepted");
//! let qp = id.take_qp().expect("the id holds the queue pair that it accepted with");
//! # let _ = (qp, cq);
//! # Ok(())
//! # }
//! ```
//!
//! The connecting side first resolves the address and the route, waiting for an event each time:
//! [`resolve_addr`](CmId::resolve_addr), [`resolve_route`](CmId::resolve_route),
//! [`create_qp`](CmId::create_qp), [`connect`](CmId::connect).
//!
//! # Types by their C names
//! | object | in C | here |
//! |---|---|---|
//! | a connection | `rdma_create_ep` | [`Connection`], [`Connector`], [`Listener`], [`Binding`] |
//! | event channel | `rdma_event_channel` | [`EventChannel`] |
//! | an id | `rdma_cm_id` | [`CmId`]; in events its [`IdKey`] |
//! | an event | `rdma_cm_event` | [`Event`], [`EventKind`], [`EventType`] |
//! | a request | `rdma_cm_event` with a new id | [`ConnectRequest`] |
//! | parameters | `rdma_conn_param` | [`ConnParam`]; received from a peer: [`PeerParam`] |
//! | a datagram service | `rdma_ud_param` | [`PeerUd`] |
//! | addresses | `sockaddr`, `rdma_addrinfo` | [`Address`], [`AddrInfo`], [`getaddrinfo`] |
//! | an id's queue pair | `id->qp` | [`CmId::create_qp`], [`CmId::take_qp`] |
//! | groups | `rdma_join_multicast` | [`CmId::join_multicast`], [`GroupKey`] |
//!
//! Searching these pages for a C name finds its counterpart.
//!
//! # Devices
//! The address of an id selects its backend. An address that belongs to a soft device of the
//! process, or that such a device reaches, selects that device; all other addresses select the
//! kernel. A listener on the unspecified address listens on all devices of both backends. Calls,
//! events and errnos are the same, except for a few differences listed in the [`guide`]. The
//! protocol matches Linux's `rdma_cm`. A program with a soft device, or one started with
//! `VERBS_SOFT=auto`, also connects without `/dev/infiniband/rdma_cm`:
//!
//! ```
//! use std::time::Duration;
//!
//! use rdmacm::{ConnParam, EventChannel, EventKind, PortSpace};
//!
//! # fn main() -> verbs::Result<()> {
//! let device = verbs::soft::auto()?;
//! # let host = device.open()?.find_gid(1)?.gid.to_ipv6().to_canonical();
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
//! - The id's own queue pair: [`create_qp`](CmId::create_qp) creates it, [`connect`](CmId::connect)
//!   or [`accept`](CmId::accept) takes it and the id moves it to RTS. [`take_qp`](CmId::take_qp)
//!   returns it.
//! - A queue pair whose state the program changes itself, with attributes from
//!   [`init_qp_attr`](CmId::init_qp_attr). [`connect_with`](CmId::connect_with) and
//!   [`accept_with`](CmId::accept_with) take its queue pair number. [`establish`](CmId::establish)
//!   confirms to the peer that the queue pair is ready.
//! - A datagram queue pair: [`create_ud_qp`](CmId::create_ud_qp) creates it in RTS.
//!   [`connect_with`](CmId::connect_with) looks up a service, whose address comes with
//!   [`Established`](EventKind::Established).
//!
//! # Ownership
//! Dropping an id destroys it in any state, without waiting (see [`CmId`]). Events name ids by keys
//! that become stale, so nothing needs to be acknowledged. Ids, events and channels may be dropped
//! in any order.
//!
//! # Threads
//! All handles are `Send` and `Sync`. Any number of threads may read one channel or call one id.
//!
//! # Forks
//! Ids of soft devices belong to the process that created them. In a forked child, their calls fail
//! with [`Cause::Forked`](verbs::Cause::Forked), as does reading events of a channel that has only
//! such ids; dropping them does not affect the parent. Ids of the kernel's connection manager fail
//! with `EACCES`: the child has a copy of the file, and the kernel compares the credentials of each
//! command with the credentials that opened the file. A child that connects must open another
//! channel. With soft devices, this works only if the parent has never had ids on a soft device.
//!
//! # Errors
//! Calls return [`verbs::Error`]: the call, the device, the errno and the cause, as a sentence.
//! Later failures arrive as events, which [`Event::ok`] turns into such an error.
//!
//! # Inside
//! Folders from top to bottom; a folder imports only folders below it:
//!
//! | module | content |
//! |---|---|
//! | `hostile` | a kernel with invalid replies, for the fuzz target `ucma` in `cm/fuzz` |
//! | `connection` | listeners and connectors, and their states without I/O |
//! | `event_channel` | the source of events; turns a backend's event into an [`Event`] |
//! | `event` | the events |
//! | `id` | ids, and the cookies that events carry |
//! | `backend` | **start here**: the interface between the API and the two backends |
//! | `backend/soft` | the backend of soft devices: a connection manager in this process |
//! | `device` | the verbs devices behind ids, opened once |
//! | `cmd` | commands to the kernel: one function for each kernel method |
//! | `channel` | the file, its commands, a scripted kernel for tests |
//! | `addrinfo` | looks up addresses by name |
//! | `types` | values: addresses, parameters, paths, reject reasons |
//! | `own_device` | soft devices for tests |

#![allow(clippy::result_large_err)]

// The fuzz target's driver refers to this crate by its external name.
#[cfg(test)]
extern crate self as rdmacm;

mod addrinfo;
mod backend;
mod channel;
mod cmd;
mod connection;
mod device;
mod event;
mod event_channel;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod hostile;
mod id;
#[cfg(test)]
mod own_device;
mod types;

#[doc = include_str!("connecting.md")]
pub mod guide {}

pub use addrinfo::{AddrInfo, Family, Hints, getaddrinfo};
pub use connection::{
    Binding, ConnectError, ConnectStep, Connection, Connector, Control, Disconnected, End, Incoming,
    Listener, ListenerInit, Resources, ToAddresses,
};
pub use event::{ConnectRequest, Event, EventKind, Rejection, Status};
pub use event_channel::EventChannel;
pub use id::{CmId, GroupKey, IdKey, Message};
pub use types::{
    Address, ConnParam, EventType, IbAddress, PathRecord, Peer, PeerParam, PeerUd, PortSpace, RejectReason,
    Service, ServiceRecord,
};

/// Compiles the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
