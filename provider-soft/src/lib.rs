//! Verbs over UDP in userspace: RoCEv2 without a kernel module, without root.
//!
//! A device sits on one IP address and UDP port 4791. [`SoftDevice`] makes them, and so does the environment:
//! `VERBS_SOFT=auto`, or `VERBS_SOFT=192.0.2.1,fd00::1`, puts `soft0`, `soft1`, ... into every device list. On the wire it
//! is RoCEv2 as the kernel's rxe and network cards speak it.
//!
//! | module | what it is |
//! |---|---|
//! | `device` | [`SoftDevice`]: how a device comes to be; the registration |
//! | `shared` | **start here**: a device that is alive, and who works on it when |
//! | `turn` | who works on a device now, and how nothing is left undone when nobody may wait |
//! | `bells` | which queue pairs have something to be looked at |
//! | `ring` | the queue between two threads that all queues here are |
//! | `machine` | what is worked on: the engine of [`roce`], packets in and out |
//! | `hub` | the engine's results: completions, retired work requests, events |
//! | `watch` | the background thread |
//! | `records` | events as a program waits for them |
//! | `memory` | payload: atomic copies in memory of this process |
//! | `exit` | what devices owe when their process exits |
//! | `fork` | is this still the process that made the device? |
//! | `io` | the UDP socket, packets in batches, the invariant CRC |
//! | `limits` | how much of everything there is |
//! | `context`, `pd`, `mr`, `ah`, `cq`, `qp`, `sq`, `rq` | the objects of verbs |
//! | `wqe` | a work request on its way through a ring |
//! | `sync` | atomics, or the model checker's |
//!
//! # Life of a send
//! ```text
//!   post_send: checked, into the ring ─► bell ─► turn ─► engine ─► packets ─► socket    in the caller's thread, where it
//!   poll: socket ─► packets ─► engine ─► retired, completed ─► ring ─► Wc               gets the turn
//! ```
//! Data is never copied into a queue: the engine reads it from the program's memory when it writes the packet, and again
//! if it must be sent again; received data goes from the socket's buffer to where it belongs.
//!
//! # Threads, fork
//! Objects may go to other threads as those of any provider. In a child after `fork(2)` a device is gone: every call
//! answers `ENODEV`, polling finds nothing, and dropping closes file descriptors and no more.
//!
//! # Safety
//! The implementation of [`Provider`] is a promise about the engine, argued at the impl.
//!
//! # References
//! InfiniBand Architecture Specification volume 1, and its annex A17 (RoCEv2)
#![allow(unsafe_code)]

mod ah;
mod bells;
mod context;
mod cq;
mod device;
mod exit;
mod fork;
mod hub;
mod io;
mod limits;
mod machine;
mod memory;
mod mr;
mod pd;
mod qp;
mod records;
mod ring;
mod rq;
mod shared;
mod sq;
mod sync;
mod turn;
mod watch;
mod wqe;

use verbs_core::provider::Provider;

pub use ah::Ah;
pub use context::Context;
pub use cq::Cq;
pub use device::SoftDevice;
pub use io::Counters;
pub use mr::Mr;
pub use pd::Pd;
pub use qp::Qp;
pub use rq::Rq;
pub use sq::Sq;

/// The provider for devices in userspace.
#[derive(Debug)]
pub enum Soft {}

// SAFETY: what the engine does, and that this crate passes it on:
// - The engine retires and completes a work request when it needs its memory no more: a send when it was acknowledged or,
//   unacknowledged services, written into packets, which are copies; a receive when the message is in it. It completes
//   once: a work request leaves its queue when it is retired. `Hub::complete` puts the completion into the ring with a
//   release store, after the copies into memory were made by the same thread or one that gave the turn to it;
//   `Cq::next` reads it with acquire, and lends it once.
// - Destroying a queue pair, and moving it to RESET, is a call of the engine with the turn in hand: nobody is in the middle
//   of anything, and afterwards the engine does not know the work requests any more. So it is with deregistering, whose key
//   then finds nothing. `Destroy` says `Ok` after that, or in a child after `fork(2)`, in which nothing runs that could
//   touch memory: its copy of the engine is never worked on again.
// - A key is the engine's, for the region that was registered, whose ends `memory::Region` knows and checks once more.
unsafe impl Provider for Soft {
    type Context = Context;
    type Pd = Pd;
    type Mr = Mr;
    type Cq = Cq;
    type Qp = Qp;
    type Ah = Ah;
}

/// Driver ids are the kernel's; this one spells `soft`, and is far from any that it gives. Address vectors carry it too.
pub(crate) const DRIVER_ID: u32 = 0x736f_6674;
