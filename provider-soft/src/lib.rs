//! Verbs in userspace: RoCEv2 over UDP and shared memory, without a kernel module or root.
//!
//! A device uses one IP address and UDP port 4791. Processes of one user share an address, each
//! with a separate device. Programs create devices with [`SoftDevice`]. The environment can also
//! request them: `VERBS_SOFT=192.0.2.1,fd00::1`, or `VERBS_SOFT=auto` for a device that only
//! programs of this host reach, adds `soft0`, `soft1`, ... to every device list. The wire protocol
//! is RoCEv2, compatible with the kernel's rxe and with network cards. With
//! `VERBS_SOFT_STRICT_PORTS=1`, or [`SoftBuilder::strict_ports`], queue pairs accept packets from
//! only one UDP source port of their peer. `VERBS_SOFT_CHECKED_MEMORY` selects the registered
//! memory that the kernel accesses because its pages may disappear ([`CheckedMemory`]).
//! `VERBS_SOFT_SHM=0` keeps packets within a machine on UDP ([`SoftBuilder::shared_memory`]), and
//! `VERBS_SOFT_SHM=/folder` lets containers exchange packets through a folder
//! ([`SoftBuilder::shared_memory_folder`]). `VERBS_SOFT_FAULTS` injects [`Faults`] into sent
//! packets, and `VERBS_SOFT_PCAP` names a capture file for all packets ([`SoftBuilder::capture`]).
//!
//! From top to bottom; a folder imports only folders below it:
//!
//! | module | content |
//! |---|---|
//! | [`cm`] | for connection managers: management datagrams, lookup of devices by address |
//! | [`sysfs`] | a folder with a device's files, as in sysfs |
//! | `registration` | [`SoftDevice`], which creates devices; the provider's registration |
//! | `objects` | the objects of the provider contract, one file each |
//! | `device` | a live device: **start at** `device/state.rs`, its state and its threads |
//! | `shm` | packets to processes of this machine, through shared memory |
//! | `io` | the UDP socket, packets in batches, the invariant CRC, the interface |
//! | `memory` | payload: classifies registered memory and accesses it for the engine |
//! | `sync` | lock, rings and signals between threads |
//!
//! # Life of a send
//! ```text
//!   post_send: checked, into the ring ─► pending set ─► lock ─► engine ─► packets ─► socket or shm
//!   poll: socket or shm ─► packets ─► engine ─► retired, completed ─► ring ─► Wc
//! ```
//! Both steps run in the caller's thread if it gets the lock. Data is never copied into a queue,
//! except for inline data: the engine reads it from the program's memory when it writes the packet,
//! and again for a retransmission. Received data is copied from the socket's buffer to its
//! destination.
//!
//! # Time-outs
//! The `timeout` of a reliable queue pair encodes the time *T* = 4.096 µs × 2ᵗⁱᵐᵉᵒᵘᵗ, at least 1
//! ms. Without an acknowledgement, a request is sent again after *T*, then after 2 *T*, then every
//! 4 *T*. After `retry_cnt` retries without progress the request completes with `RETRY_EXC_ERR`. A
//! silent peer is therefore detected after *T* with no retry, 3 *T* with one, and (4 × `retry_cnt`
//! − 1) *T* with more. With code 14 and 7 retries this takes 1.8 s
//! ([`roce::engine::Attr::timeout`]).
//!
//! # Datagrams
//! Posting rejects a datagram longer than the MTU of the port. An arriving datagram that cannot be
//! delivered is dropped; [`Counters`] counts it by reason. A receive too short for its datagram
//! completes with `LOC_LEN_ERR`. The next datagram goes into the next receive.
//!
//! # Device memory, on-demand paging
//! Device memory ([`Dm`]) is process memory reachable only by work requests, peers and explicit
//! copies. On-demand paged regions may have missing pages, so the kernel makes every access to
//! them, at the cost of a system call. An access that fails also fails its request, with
//! `LOC_PROT_ERR` on the memory's side and `REM_OP_ERR` on the peer's side. The memory may be
//! mapped again afterwards. Atomics in such memory are atomic only among the device's accesses, not
//! with respect to processor accesses.
//!
//! # Threads, fork
//! Objects may move between threads, as with any provider. A device belongs to the process that
//! created it. In a child after `fork(2)`, calls fail with `ENODEV` and
//! [`Cause::Forked`](verbs_core::Cause::Forked), posting fails with `ENODEV`, polling finds
//! nothing, and dropping an object only closes file descriptors. Two calls still succeed there:
//! queries of the device's attributes, and `alloc_dm`, whose memory the child can copy to and from
//! but cannot register. The child can create its own devices. Its device lists contain new devices
//! for `VERBS_SOFT`.
//!
//! # Safety
//! [`Provider`] is an unsafe trait. The comment at its implementation proves each obligation.
//!
//! # References
//! InfiniBand Architecture Specification volume 1 and its annex A17 (RoCEv2)
#![allow(unsafe_code)]

pub mod cm;
mod device;
mod io;
mod memory;
mod objects;
mod registration;
mod shm;
mod sync;
pub mod sysfs;

use verbs_core::provider::{Provider, Unsupported};

#[cfg(any(fuzzing, all(test, not(loom))))]
#[doc(hidden)]
pub use shm::ring::hostile;

pub use io::{Counters, Faults, InvalidFaults};
pub use memory::checked::CheckedMemory;
pub use objects::ah::Ah;
pub use objects::context::Context;
pub use objects::cq::{Completion, Cq, CqHandle};
pub use objects::dm::Dm;
pub use objects::mr::Mr;
pub use objects::mw::Mw;
pub use objects::pd::Pd;
pub use objects::qp::Qp;
pub use objects::rq::Rq;
pub use objects::soft::Soft;
pub use objects::sq::Sq;
pub use objects::srq::{Srq, SrqQueue};
pub use objects::td::Td;
pub use objects::xrcd::Xrcd;
pub use registration::{SoftBuilder, SoftDevice};

// SAFETY: the argument is about the engine and about this crate, which passes the engine's results
// on. "The device" is the thread holding the device's lock. By number:
// - 1: `Sq::post_one` and `Rq::post_one` put the request into the ring as their last step; a
//   request that fails earlier leaves the ring unchanged. `ring` publishes these requests. The
//   engine reads only below `tail`. In a child after `fork(2)`, `post_one` fails and `ring`
//   publishes nothing, so no thread works on the child's copy of the engine.
// - 2: the ring holds copies of request and list; `post_one` copies inline data into the ring, and
//   converts an address vector into a path.
// - 3: the engine finds each element's key with `keys::local`, which checks protection domain,
//   right and range; `memory::Region` checks the range once more. Receives, read responses and
//   atomics, which write, require `LOCAL_WRITE`. In on-demand paged memory the kernel accesses the
//   same bytes, or none (`paged`).
// - 4: `from_av` parses the bytes of a path and rejects bytes of another length or provider. A
//   path names a peer, never memory.
// - 5, 8: the engine completes a request once it no longer needs the request's memory. A send
//   completes when it is acknowledged or, for unacknowledged services, when it is written into
//   packets, which are copies. A receive completes when the message is in its memory. The request
//   leaves its queue at that moment, so it completes once and is not sent again.
//   `EngineSink::complete` puts the completion into the ring with a release store, after the copies
//   into memory, made by the same thread or an earlier holder of the lock; `Cq::next` reads with
//   acquire. `Cq::resize` moves each completion from the old ring to the new one with the lock
//   held, and drops the old ring.
// - 6, 7: `wr_id` travels by value from `post_one` into the `Wc`; a lent completion stays in its
//   slot until the next call with `&mut`. The engine names the completion queue by the id given
//   when the queue pair was created; no other queue gets this id while a queue pair uses it
//   (`EngineSink::remove_cq`).
// - 9: destroying a queue pair and moving it to RESET are calls of the engine with the lock held.
//   No packet is in progress during such a call. Afterwards neither the engine nor the rings
//   contain the requests.
// - 10, 11: keys come from the engine's table, one for each region at a time; `Mr::rereg` keeps the
//   key, and changes the region with the lock held or leaves it unchanged; a null region has no
//   memory (`memory::Region::null`) and no remote rights. A region of device memory shares
//   ownership of it (`memory::Region::device`), so the bytes live as long as their keys.
//   `keys::remote` gives peers only regions with the right required by their operation, in the
//   queue pair's protection domain.
// - 12: deregistering is also a call of the engine with the lock held; afterwards the key names no
//   region.
// - 13: the head of `memory` has the rules and the argument. On-demand paged memory is accessed by
//   the kernel, like a separate device; only unsafe code registers such a region. `ring` publishes
//   with release; the engine's thread reads with acquire; `reg_mr` takes the lock, which the
//   engine's thread takes later.
// - 14: `destroyed` returns `Ok` when the engine has removed the object, or in a forked child,
//   whose objects belong to the parent. Otherwise it returns the engine's error. The engine does
//   not panic, whatever packets and calls it gets (an invariant of `roce`, tested by its fuzz
//   targets).
// - 15: no object here has a `Drop` calling the engine; the engine lives as long as any object.
// - 16: `Arc`s keep the channels' ends; each descriptor handed to the program is a duplicate or was
//   created for it.
// - 17: each call accepts only objects of its device (`Pd::id_on`, `Td::share_on`,
//   `CqHandle::id_on`), compared by the device's identity.
// - 18: registering is one call of the engine, and the last step of `Mr::register` that can fail.
// - 19: `rollback` moves the poster's index back, not below the published one; the engine reads
//   only below that.
// - 20: a queue shares its ring with the engine by an `Arc`. The engine drops its end when the
//   queue pair is destroyed, so nothing reads requests posted afterwards. The slot announced by
//   `ring` may belong to a later queue pair; the engine then finds requests of that queue pair in
//   its rings, or none.
// - 21: `keys::remote` finds a window by its present key, and only while it is bound, for the
//   protection domain, the queue pair (type 2), the rights and the range of its bind. `Keys::bind`
//   runs for bind work requests alone.
// - 22: the responder invalidates the key before it completes the receive. One thread at a time is
//   in the engine, so no access is in progress then, on any queue pair.
// - 23: a bind, an invalidation and `dealloc_mw` are steps of the engine with the lock held, and so
//   is each access. The completion, or the lock taken by `destroy`, orders them before later
//   actions.
// - 24: the engine moves a receive from the shared queue into the consuming queue pair, with the
//   protection domain of the shared queue, and completes it from there once. It retires the slot of
//   the ring at that moment, after copying the list.
// - 25: destroying a shared receive queue is a call of the engine with the lock held, rejected
//   while queue pairs use it. XRC targets do not count as users; they drop the receives taken from
//   it. `modify` is such a call too: it replaces ring and queue by larger or smaller ones with the
//   same receives, or changes nothing.
// - 26: work queues do not exist here: their types are `Unsupported`, which has no values.
unsafe impl Provider for Soft {
    const PURGES: bool = true;

    type Context = Context;
    type Pd = Pd;
    type Mr = Mr;
    type Cq = Cq;
    type CqHandle = CqHandle;
    type Qp = Qp;
    type Sq = Sq;
    type Rq = Rq;
    type Ah = Ah;
    type Srq = Srq;
    type SrqQueue = SrqQueue;
    type Xrcd = Xrcd;
    type Dm = Dm;
    type Dmah = Unsupported;
    type Td = Td;
    type Mw = Mw;
    type Wq = Unsupported;
    type WqQueue = Unsupported;
    type RwqIndTable = Unsupported;
    type Flow = Unsupported;
    type FlowAction = Unsupported;
    type Counters = Unsupported;
    type CompCntr = Unsupported;
}
