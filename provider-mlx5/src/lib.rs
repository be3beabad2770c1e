//! The provider for ConnectX devices (`mlx5`): queues in memory that the device reads by itself,
//! and doorbells in its registers. No system call stands between a request and its completion.
//!
//! | module | what it is |
//! |---|---|
//! | `context` | [`Context`], the open device, and the recognition of ConnectX devices |
//! | `device` | what the objects of a context share, and the agreement with the kernel's driver |
//! | `query` | the properties of the device and its ports |
//! | `kernel` | the right to command the kernel's context |
//! | `registers`, `uar` | the doorbell registers, and the pages of the device that they lie in |
//! | `dbrec`, `memory`, `user_index` | doorbell records, memory of queues, numbers in completions |
//! | `clock` | the device's clock, and the system's time by it |
//! | `life` | what a queue pair has of these |
//! | `sizes` | the shapes of queues |
//! | `qp` | [`Qp`], its states and its limits |
//! | `ah` | [`Ah`], the path of a datagram |
//! | `xrcd` | [`Xrcd`] |
//! | `pd` | [`Pd`], also a parent domain, and [`Td`] |
//! | `mr` | [`Mr`], also the null region |
//! | `regions` | the regions of a context by their keys |
//! | `dm` | [`Dm`], memory of the device |
//! | `wqe` | the segments of a work queue entry |
//! | `record` | the requests in a queue, shared by poster and poller |
//! | `doorbell` | one doorbell record, one register |
//! | `sq` | [`Sq`], posting sends |
//! | `entries` | the memory of receive queues |
//! | `rq` | [`Rq`], posting receives |
//! | `srq` | [`Srq`], and [`SrqQueue`], posting shared receives and operations on tag lists |
//! | `wq` | [`Wq`], whose queue is an [`Rq`] |
//! | [`direct`] | where queues and registers lie, for programs that use them directly |
//! | `flow`, `counters` | [`Flow`], and [`Counters`] of flow rules |
//! | `cq` | [`Cq`], polling and events |
//! | `paper` | the device's side of the queues in plain memory, for tests and benchmarks |
//!
//! Memory windows, DMA handles, tables of work queues and flow actions have no driver-specific
//! data: they are [`KernelMw`], [`KernelDmah`], [`KernelRwqIndTable`] and [`KernelFlowAction`].
//!
//! It is tested against the unmodified Linux driver and a software model of the device, not on
//! hardware.
//!
//! # What libmlx5 has and this provider does not
//!
//! - **Completions of version 0**, as drivers before Linux 4.5 and old firmware write them:
//!   `open_device` fails and names both. The tested kernels begin at 5.10, where every ConnectX-4
//!   and later device has version 1.
//! - **`IGNORE_OVERRUN`**: `create_cq` fails with `EOPNOTSUPP`. The device would overwrite an entry
//!   while it is read. The completion could then name a request that has not ended, and the program
//!   would get memory back that the device still writes.
//! - **`source_qpn`**: `create_qp_ex` fails with `EOPNOTSUPP`. It is for IPoIB in user space, on
//!   InfiniBand devices that offload IPoIB. libmlx5 posts to such a queue pair in a format of its
//!   own, which no test here could judge: the model does not offer the offload.
//! - **Reposting after a page fault** (vendor syndrome 0x93 of a shared receive queue): the receive
//!   ends with `REM_ABORT_ERR`, [`vendor_err_text`] names the cause, and the program may post it
//!   again. libmlx5 posts it again by itself, under a lock that each post takes as well; here
//!   pollers and the thread that posts have no lock in common.
//! - **Sends with invalidate on UC**: `post_send` refuses them. IBTA has no such packet (volume 1,
//!   table 38).
//! - **The state SQD**: the Linux driver has no transition to it, so that libmlx5 cannot enter it
//!   either. The conformance cases that need it are skipped, also the one in which SQD takes reads
//!   away from a responder.
//!
//! # Safety
//! The implementation of [`Provider`] makes promises about the device, argued at the impl.
//!
//! # References
//! `rdma/mlx5-abi.h`; Linux `drivers/infiniband/hw/mlx5/`; `mlx5dv(7)`
#![allow(unsafe_code)]

mod ah;
mod clock;
mod context;
mod counters;
mod cq;
mod dbrec;
mod device;
pub mod direct;
mod dm;
mod doorbell;
mod entries;
mod flow;
#[cfg(test)]
mod forked;
mod kernel;
mod life;
mod memory;
mod mr;
#[doc(hidden)]
pub mod paper;
mod pd;
mod qp;
mod query;
mod record;
mod regions;
mod registers;
mod rq;
mod sizes;
mod sq;
mod srq;
mod uar;
mod user_index;
mod wq;
mod wqe;
mod xrcd;

use verbs_core::kernel::{KernelDmah, KernelFlowAction, KernelMw, KernelRwqIndTable};
use verbs_core::provider::{Provider, Unsupported};

pub use ah::Ah;
pub use context::Context;
pub use counters::Counters;
pub use cq::{Completion, Cq, CqHandle, CqeCompression, vendor_err_text};
pub use dm::Dm;
pub use flow::Flow;
pub use mr::Mr;
pub use pd::{Pd, Td};
pub use qp::{Qp, ScatterToCqe};
pub use rq::Rq;
pub use sq::Sq;
pub use srq::{Srq, SrqQueue};
pub use wq::Wq;
pub use xrcd::Xrcd;

/// The tag of address vectors that this provider makes: its kernel driver's id.
pub(crate) const AV_TAG: u32 = device::DRIVER_ID;

/// The provider for ConnectX devices.
#[derive(Debug)]
pub enum Mlx5 {}

// SAFETY: the argument is about the device as its manual and the drivers of Linux and rdma-core
// describe it, about the kernel's driver, read at 6.1, and about this crate. By number:
// - 1: `post_one` makes every check, fills blocks that no unfinished request has, and as its last
//   step moves its own counters; a request that fails before has moved nothing. The device takes
//   entries below the counter in the doorbell record, which `ring` stores, or a request that `ring`
//   stores into the register.
// - 2: lists, inline data, the headers of frames and address vectors are copied into the entry
//   during the call.
// - 3: the device accesses the bytes that the entry's segments name, and compares each key with the
//   protection domain of the queue pair, the range of the region and its rights. An atomic has a
//   segment of 8 bytes. An entry is written by its queue alone, and again only after its request
//   has ended: the poller moves the tail that `has_room` reads when it returns the completion of
//   the request or of a later one of the same queue. The device ends the requests of a queue in
//   order.
// - 4: a path is 48 bytes that name a peer; the fields that select an operation are the entry's.
// - 5: the device writes a completion after it has ended the request, and its owner bit last;
//   `barrier::from_device` orders the reads behind it. It writes what a request received before the
//   completion, as PCI orders writes. Of compressed completions it writes the title last.
// - 6: the number is the slot's of the request that the completion names by its place. A slot is
//   written before its request is published, and again only after its end (3). A completion of a
//   queue pair that was reset or destroyed is skipped, so that its place is not looked up in the
//   slots of another life (`cq::shared`).
// - 7: the completion queues are those of the command that created the queue pair.
// - 8: the device writes one completion a request; the poller moves past each entry once. A block
//   of compressed completions becomes as many entries before the poller passes its title. A resize
//   copies the entries that were not polled, once, and polls only the new ring afterwards.
// - 9: the device stops a queue pair before it confirms 2RST_QP or DESTROY_QP, and the two queues
//   of a raw packet queue pair before DESTROY_RQ and DESTROY_SQ; the driver returns then
//   (`__mlx5_ib_modify_qp`, `destroy_qp_common`). Of MODIFY_RQ to reset it is not promised. The
//   confirmation is a write of the device behind those of the data. A device that fails DESTROY_QP
//   is beyond this: Linux prints that, and reports success.
// - 10: the key of a region contains its number in the device and 8 bits that the driver changes;
//   the number is given again only after DESTROY_MKEY. A region that is changed in place keeps its
//   keys or returns new ones. An imported region is a second name of one.
// - 11: the device compares the rights of the key and of the queue pair for each packet.
// - 12: DESTROY_MKEY, or the change that makes a key free for the driver's cache, is confirmed
//   after the device has ended the accesses by the key (`mlx5_ib_dereg_mr`). The driver refuses no
//   end of a region with windows: their keys then name nothing.
// - 13: the device is not a thread of this process. Its accesses follow a doorbell that `ring`
//   stores behind `barrier::to_device`, or a system call.
// - 14: `cmd` accepts only the kernel's confirmation as the end of an object. Nothing in `destroy`
//   unwinds: locks that are poisoned are used as they are.
// - 15: dropping an object unmaps memory at most, whose pages the kernel has pinned for the device.
//   Doorbell records of an object that was not destroyed are never given to another one, nor is the
//   number that its completions carry. Memory of an allocator goes back to it only if the kernel
//   has confirmed the end of the object, and nothing of this process has it any more (`memory`).
// - 16: the descriptors come from the kernel's replies, checked in `cmd::context`.
// - 17: a completion queue of another context is rejected. Other handles are numbers of one file:
//   another context's number names nothing there, or an object that the caller could have passed as
//   well.
// - 18: REG_MR undoes its steps if it fails. Nothing in `reg_mr` unwinds.
// - 19: `rollback` moves the counters back, not below those of the last doorbell; the device takes
//   only what these cover.
// - 20: the memory, the doorbell records and the register of a queue pair stay its own until its
//   queues are gone too (`life`). A queue whose queue pair was destroyed does not ring; one that
//   rings at that moment rings a register whose page no later queue pair has, so that the device,
//   which compares the page, takes the doorbell for no other queue pair; or it rings a shared
//   register by its number alone, for which the device reads the doorbell record of the queue pair
//   that has the number now, and takes what that one has posted (`registers`). `modify` rejects
//   queues of another queue pair.
// - 21: a window's key exists in the device as a region's does, with the range and the rights of
//   the bind. Only the request that `umr` makes changes it; requests that name it need its number.
// - 22: the device invalidates the key before it writes the completion.
// - 23: not promised.
// - 24: `srq` keeps 1 to 3 and 5 to 8 as the queues of a queue pair do. An entry is linked and
//   written again only after a poller has cleared its bit, when it returned or skipped the
//   completion of its receive; a second completion of one receive is dropped. The device compares
//   keys with the protection domain of the shared receive queue. Receives complete in the queue
//   that the command which created the queue pair, or the queue of the kind XRC or TM, has named.
//   Of the completions of tag matching, those of messages that match no tag are receives; the
//   others end operations or tags and leave all entries as they are (`TagRecord::complete`).
// - 25: the driver refuses the end of a shared receive queue that queue pairs were created with;
//   the device has ended what the others took before. It confirms the end of one of the kind XRC
//   after it has ended the receives that targets have taken. Of the kind TM, the hidden queue pair
//   that changes the tag list is destroyed first; its queue posts nothing afterwards (`TagList`).
//   The memory of tags is the device's until then, and is no safe code's. `modify` sends no command
//   that ends a receive, and rejects the queue of another shared receive queue. Memory and doorbell
//   record stay its own until its queue is gone too (`life`): a record that is stored then has no
//   reader.
// - 26: a work queue's queue is an `Rq`, which keeps 1 to 3 and 5 to 8 as that of a queue pair
//   does: its completions carry a number that is its own until they were passed, also where several
//   queue pairs receive through it. It completes in the queue that the command which created it has
//   named, and the device compares keys with its protection domain. The driver confirms DESTROY_RQ
//   after the device has stopped the queue (`mlx5_ib_destroy_wq`). `modify` rejects the queue of
//   another work queue, and changes the queue only after the command succeeded. After RESET the
//   receives before have no completion: those in the completion queue are skipped, as for a queue
//   pair. Memory and doorbell record stay its own until its queue is gone too (`life`): a record
//   that is stored then has no reader.
unsafe impl Provider for Mlx5 {
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
    type Dmah = KernelDmah;
    type Td = Td;
    type Mw = KernelMw;
    type Wq = Wq;
    type WqQueue = Rq;
    type RwqIndTable = KernelRwqIndTable;
    type Flow = Flow;
    type FlowAction = KernelFlowAction;
    type Counters = Counters;
    type CompCntr = Unsupported;
}
