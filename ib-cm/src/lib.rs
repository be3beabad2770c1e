//! InfiniBand communication management without I/O: programs find each other by service id and
//! obtain the parameters for connecting their queue pairs. The crate uses no clock, socket, thread
//! or lock.
//!
//! The modules, from top to bottom. Except in unit tests, a module imports only modules below it:
//!
//! | module | contents |
//! |---|---|
//! | [`sim`] | a network of many `Cm`s in virtual time, with seeded faults |
//! | [`intake`] | an order for requests that no sender can dominate |
//! | [`cm`] | **start here**: [`Cm`](cm::Cm), the state machine of a device, in both roles |
//! | [`shares`] | one queue per source address, so that no source dominates |
//! | [`wire`] | messages as bytes and as meaning, service ids, the RDMA IP CM header |
//! | [`time`] | points in time; the protocol's timeout codes |
//!
//! A device whose queue pair 1 passes its messages to a [`Cm`](cm::Cm) interoperates with other
//! devices using this crate and with Linux's `ib_cm` and `rdma_cm`.
//!
//! # Example
//! Two devices establish a connection. Here the messages are passed in memory; a real device sends
//! them as datagrams from its queue pair 1 to the peer's.
//! ```
//! use ib_cm::cm::{AcceptParams, Address, Cm, Config, ConnectParams, Event, Path};
//! use ib_cm::sim::Rng;
//! use ib_cm::time::Time;
//! use ib_cm::wire::{PortSpace, ServiceId, req};
//!
//! const ALICE: [u8; 16] = *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\0\x02\x01";
//! const BOB: [u8; 16] = *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\0\x02\x02";
//! // Devices use the system's random source; `Rng` is for tests.
//! let mut alice = Cm::new(Config { node_guid: 1, ..Config::default() }, Rng::new(1));
//! let mut bob = Cm::new(Config { node_guid: 2, ..Config::default() }, Rng::new(2));
//! let now = Time(0);
//!
//! let service_id = ServiceId::ip(PortSpace::TCP, 7174);
//! bob.listen(service_id, u64::MAX, 16)?;
//! let id = alice.connect(now, &ConnectParams {
//!     path: Path {
//!         local: ALICE,
//!         remote: BOB,
//!         hop_limit: 64,
//!         packet_life_time: 16,
//!         ..Path::default()
//!     },
//!     service_id,
//!     qp_num: 0x11,
//!     starting_psn: 100,
//!     private_data: req::Data::new(b"hello")?,
//!     ..ConnectParams::default()
//! })?;
//!
//! let carry = |from: &mut Cm, to: &mut Cm| {
//!     while let Some(message) = from.poll_transmit() {
//!         let source = Address::gsi(message.to.remote, message.to.local);
//!         to.input(now, &source, &message.mad);
//!     }
//! };
//! carry(&mut alice, &mut bob);
//! let Some(Event::Request(request)) = bob.poll_event() else { panic!("a REQ arrived") };
//! assert_eq!((request.remote_qpn, &request.private_data.bytes()[..5]), (0x11, &b"hello"[..]));
//! let params = AcceptParams { qp_num: 0x22, starting_psn: 200, ..AcceptParams::default() };
//! bob.accept(now, request.id, &params)?;
//!
//! carry(&mut bob, &mut alice);
//! let Some(Event::Reply(reply)) = alice.poll_event() else { panic!("a REP arrived") };
//! assert_eq!((reply.id, reply.remote_qpn, reply.starting_psn), (id, 0x22, 200));
//! // With these attributes the queue pair is moved to the states RTR and RTS.
//! let attr = alice.qp_attr(id)?;
//! assert_eq!((attr.dest_qpn, attr.rq_psn, attr.sq_psn), (0x22, 100, 200));
//! alice.ready_to_use(id, Default::default())?;
//!
//! carry(&mut alice, &mut bob);
//! assert!(matches!(bob.poll_event(), Some(Event::Established { id, .. }) if id == request.id));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # References
//! InfiniBand Architecture Specification volume 1, release 1.4 ("IBTA"), chapter 12, and annex A11,
//! RDMA IP CM. Linux: `drivers/infiniband/core/cm.c`, `cma.c`, `include/rdma/ibta_vol1_c12.h`.

#![forbid(unsafe_code)]

#[cfg(any(target_pointer_width = "16", target_pointer_width = "32", target_endian = "big"))]
compile_error!(
    "ib-cm supports 64-bit little-endian processors only: it is tested on x86-64 and aarch64, and \
     nothing has shown that it is right elsewhere (docs/decisions/0039-64-bit-little-endian.md)"
);

pub mod cm;
pub mod intake;
pub mod shares;
pub mod sim;
pub mod time;
pub mod wire;

pub use rdma_sans_io::Random;

/// Compiles the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
