//! Verbs over UDP in userspace: RoCEv2 without a kernel module, without root.
//!
//! A device sits on one IP address and UDP port 4791. [`SoftDevice`] makes them, and so does the
//! environment: `VERBS_SOFT=auto`, or `VERBS_SOFT=192.0.2.1,fd00::1`, puts `soft0`, `soft1`, ...
//! into every device list. On the wire it is RoCEv2 as the kernel's rxe and network cards speak it.
//! `VERBS_SOFT_STRICT_PORTS=1` beside it, or a [`SoftBuilder`], has queue pairs hear one UDP source
//! port of their peer only.
//!
//! | module | what it is |
//! |---|---|
//! | `registration` | [`SoftDevice`]: how a device is made; the provider's registration |
//! | `device` | a live device: its shared state and its worker, and the end of both |
//! | `shared` | **start here**: the state of a live device, and which thread works on it when |
//! | `combining_lock` | gives the device to one thread at a time; others leave work and go on |
//! | `pending` | the queue pairs whose rings hold new work requests |
//! | `ring` | the queue between two threads, which all queues here are |
//! | `device_core` | what the lock protects: the engine of [`roce`], packets in and out |
//! | `sink` | the engine's results: completions, retired work requests, events |
//! | `worker` | the background thread |
//! | `event_pipe` | events as a program waits for them |
//! | `mapped` | memory that cannot be registered |
//! | `memory` | payload: atomic copies in memory of this process |
//! | `random` | where the numbers of queue pairs and keys come from |
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
//!   post_send: checked, into the ring ─► pending set ─► lock ─► engine ─► packets ─► socket
//!   poll: socket ─► packets ─► engine ─► retired, completed ─► ring ─► Wc
//! ```
//! Data is never copied into a queue: the engine reads it from the program's memory when it writes
//! the packet, and again if it must be sent again; received data goes from the socket's buffer to
//! where it belongs.
//!
//! # Time-outs
//! `timeout` of a reliable queue pair stands for *T* = 4.096 µs × 2ᵗⁱᵐᵉᵒᵘᵗ, at least 1 ms. Without
//! an acknowledgement, a request is sent again after *T*, then after 2 *T*, then every 4 *T*. After
//! `retry_cnt` retries without progress the request completes with `RETRY_EXC_ERR`: a silent peer
//! is noticed after *T* with no retry, 3 *T* with one, and (4 × `retry_cnt` − 1) *T* with more.
//! With code 14 and 7 retries that is 1.8 s ([`roce::engine::Attr::timeout`]).
//!
//! # Datagrams
//! A datagram beyond the MTU of the port is refused when it is posted. One that arrives and cannot
//! be delivered is dropped, and [`Counters`] tells why; a receive that is too short for it
//! completes with `LOC_LEN_ERR`, and the next datagram goes into the next receive.
//!
//! # Threads, fork
//! Objects may go to other threads as those of any provider. A device belongs to the process that
//! made it. In a child after `fork(2)`, every call fails with `ENODEV` and
//! [`Cause::Forked`](verbs_core::Cause::Forked), posting fails with `ENODEV`, polling finds
//! nothing, and dropping an object only closes file descriptors. The child can make devices of its
//! own, and finds those that `VERBS_SOFT` asks for in a new device list.
//!
//! # Safety
//! The implementation of [`Provider`] is a promise about the engine, argued at the impl.
//!
//! # References
//! InfiniBand Architecture Specification volume 1, and its annex A17 (RoCEv2)
#![allow(unsafe_code)]

mod ah;
mod combining_lock;
mod context;
mod cq;
mod device;
mod device_core;
mod event_pipe;
mod exit;
mod fork;
mod io;
mod limits;
mod mapped;
mod memory;
mod mr;
mod pd;
mod pending;
mod qp;
mod random;
mod registration;
mod ring;
mod rq;
mod shared;
mod sink;
mod sq;
mod sync;
mod worker;
mod wqe;

use verbs_core::provider::Provider;

pub use ah::Ah;
pub use context::Context;
pub use cq::{Cq, CqHandle};
pub use io::Counters;
pub use mr::Mr;
pub use pd::Pd;
pub use qp::Qp;
pub use registration::{SoftBuilder, SoftDevice};
pub use rq::Rq;
pub use sq::Sq;

/// The provider for devices in userspace.
#[derive(Debug)]
pub enum Soft {}

// SAFETY: what the engine does, and that this crate passes it on. The device is the thread that
// holds its lock. By number:
// - 1: `Sq::post_one` and `Rq::post_one` put into the ring as their last step; what fails before
//   leaves it as it was. `ring` publishes what was put in, and cannot fail. The engine reads below
//   `tail` only. In a child after `fork(2)` posting is refused, and nobody works on its copy of the
//   engine.
// - 2: the ring holds copies of request and list; inline data is gathered into the ring by
//   `post_one`, an address vector is made a path.
// - 3: the engine finds each element's key with `keys::local`, which checks protection domain,
//   right and range; `memory::Region` checks the range once more. What writes, receives and read
//   responses, asks for `LOCAL_WRITE`.
// - 4: `from_av` takes the bytes of a path apart, and refuses what is not of its length. A path
//   names a peer, no memory.
// - 5, 8: the engine completes a request when it needs its memory no more: a send when it was
//   acknowledged or, unacknowledged services, written into packets, which are copies; a receive
//   when the message is in it. It leaves its queue with that, so it completes once and is not
//   repeated. `EngineSink::complete` puts the completion into the ring with a release store after
//   the copies into memory, made by the same thread or by an earlier holder of the lock; `Cq::next`
//   reads with acquire.
// - 6, 7: `wr_id` travels by value from `post_one` into the `Wc`; what is lent stays in its slot
//   until the next call with `&mut`. The engine names the completion queue by the id that the queue
//   pair was made with, which is given again only when no queue pair uses it
//   (`EngineSink::remove_cq`).
// - 9: destroying a queue pair, and moving it to RESET, is a call of the engine with the lock held:
//   no packet is being worked on, and afterwards neither the engine nor the rings know the
//   requests.
// - 10, 11: keys come from the engine's table, one for each region at a time; `keys::remote` gives
//   peers what has the right that they ask for, and in the queue pair's protection domain.
// - 12: deregistering is such a call as well, and the key finds nothing then.
// - 13: `memory` has the rules, and its argument.
// - 14: `destroyed` returns `Ok` when the engine has taken the object out, or in a forked child, in
//   which no thread works on its copy of the engine. It returns the engine's refusal otherwise. The
//   engine does not panic, whatever packets and calls it gets (the invariant of `roce`, and what
//   its fuzz targets look for).
// - 15: no object here has a `Drop` that tells the engine anything; the engine lives as long as any
//   object.
// - 16: channels' ends are kept in `Arc`s, and what is given away is a duplicate or made for it.
// - 17: each takes objects of its own device only (`Pd::of`, `CqHandle::of`), by the device's
//   identity.
// - 18: registering is one call of the engine, and the last step of `Mr::register` that can fail.
// - 19: `rollback` moves the poster's index back to the published one; the engine reads below that
//   only.
// - 20: a queue shares its ring with the engine, by an `Arc`; the engine drops its own when the
//   queue pair is destroyed, so that nothing reads what is posted after that.
unsafe impl Provider for Soft {
    type Context = Context;
    type Pd = Pd;
    type Mr = Mr;
    type Cq = Cq;
    type CqHandle = CqHandle;
    type Qp = Qp;
    type Sq = Sq;
    type Rq = Rq;
    type Ah = Ah;
}

/// Driver ids are the kernel's; this one spells `soft`, and is far from any that it gives. Address
/// vectors carry it too.
pub(crate) const DRIVER_ID: u32 = 0x736f_6674;
