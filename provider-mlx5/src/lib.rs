//! The provider for ConnectX devices (`mlx5`): queues in memory that the device reads directly, and
//! doorbells in device registers. No system call is needed between a request and its completion.
//!
//! The modules from top to bottom; a folder imports only folders below it:
//!
//! | module | contents |
//! |---|---|
//! | `paper` | the device's side of the queues in plain memory, for tests and benchmarks |
//! | `objects` | the contract's objects, one file each: **start at** `objects/context.rs` |
//! | `queue` | posting and polling, without system calls |
//! | `device` | the shared state of a context, and the negotiation with the kernel's driver |
//! | [`direct`] | the addresses of queues and registers, for programs that use them directly |
//! | `doorbell` | doorbell records in memory, doorbell registers in device pages |
//! | `memory` | the memory of queues, from this process or a program's allocator |
//! | `wqe` | the segments of a work queue entry |
//! | `cmd` | one function per method of the mlx5 driver |
//! | `forked` | forked children of tests |
//!
//! Memory windows, DMA handles, tables of work queues and flow actions have no driver-specific
//! data: they are [`KernelMw`], [`KernelDmah`], [`KernelRwqIndTable`] and [`KernelFlowAction`].
//!
//! It is tested against the unmodified Linux driver and a software model of the device, not on
//! hardware.
//!
//! # libmlx5 features missing here
//!
//! - **Completions of version 0**, written by drivers before Linux 4.5 and old firmware:
//!   `open_device` fails, and the error names both. The tested kernels begin at 5.10, where every
//!   ConnectX-4 and later device has version 1.
//! - **`IGNORE_OVERRUN`**: `create_cq` fails with `EOPNOTSUPP`. The device could overwrite an entry
//!   while it is read. The completion could then name an unfinished request, and the program would
//!   get memory back that the device still writes.
//! - **`source_qpn`**: `create_qp_ex` fails with `EOPNOTSUPP`. It is for IPoIB in user space, on
//!   InfiniBand devices that offload IPoIB. libmlx5 posts to such a queue pair in a special format,
//!   which no test here could verify: the model does not offer the offload.
//! - **Reposting after a page fault** (vendor syndrome 0x93 of a shared receive queue): the receive
//!   ends with `REM_ABORT_ERR`, [`vendor_err_text`] names the cause, and the program may post it
//!   again. libmlx5 reposts it under a lock that each post takes as well; here pollers and the
//!   posting thread have no lock in common.
//! - **Sends with invalidate on UC**: `post_send` rejects them. IBTA has no such packet (volume 1,
//!   table 38).
//! - **The state SQD**: the Linux driver has no transition to it, so libmlx5 cannot enter it
//!   either. Conformance cases that need it are skipped.
//!
//! # Safety
//! The implementation of [`Provider`] makes guarantees about the device. The comment at the impl
//! argues for each of them.
//!
//! # References
//! `rdma/mlx5-abi.h`; Linux `drivers/infiniband/hw/mlx5/`; `mlx5dv(7)`
#![allow(unsafe_code)]

mod cmd;
mod device;
pub mod direct;
mod doorbell;
#[cfg(test)]
mod forked;
mod memory;
mod objects;
#[doc(hidden)]
pub mod paper;
mod queue;
mod wqe;

use verbs_core::kernel::{KernelDmah, KernelFlowAction, KernelMw, KernelRwqIndTable};
use verbs_core::provider::{Provider, Unsupported};

pub use objects::ah::Ah;
pub use objects::context::Context;
pub use objects::counters::Counters;
pub use objects::cq::{Cq, CqHandle};
pub use objects::dm::Dm;
pub use objects::flow::Flow;
pub use objects::mlx5::Mlx5;
pub use objects::mr::Mr;
pub use objects::pd::{Pd, Td};
pub use objects::qp::{Qp, ScatterToCqe};
pub use objects::srq::Srq;
pub use objects::wq::Wq;
pub use objects::xrcd::Xrcd;
pub use queue::cq::{Completion, CqeCompression, vendor_err_text};
pub use queue::rq::Rq;
pub use queue::sq::Sq;
pub use queue::srq::SrqQueue;

// SAFETY: the argument rests on the device as described by its manual and the drivers of Linux and
// rdma-core, on the kernel's driver, read at 6.1, and on this crate. By number:
// - 1: `post_one` makes every check, fills blocks not used by an unfinished request, and moves its
//   own counters as its last step; a request that fails earlier has moved nothing. The device takes
//   entries below the counter in the doorbell record, which `ring` stores, or a request that `ring`
//   stores into the register.
// - 2: lists, inline data, the headers of frames and address vectors are copied into the entry
//   during the call.
// - 3: the device accesses the bytes named by the entry's segments. It compares each key with the
//   protection domain of the queue pair, the range of the region and its rights. An atomic has a
//   segment of 8 bytes. Only its own queue writes an entry, and rewrites it only after its request
//   has ended: the poller moves the tail read by `has_room` when it returns the completion of the
//   request, or of a later one of the same queue. The device ends the requests of a queue in order.
// - 4: a path is 48 bytes that name a peer; the fields that select an operation are the entry's.
// - 5: the device writes a completion after it has ended the request, and its owner bit last;
//   `barrier::from_device` orders the reads behind it. It writes received data before the
//   completion, as PCI orders writes. Of compressed completions it writes the title last.
// - 6: the number comes from the slot of the request, whose position the completion names. A slot
//   is written before its request is published and rewritten only after its end (3). A completion
//   of a queue pair that was reset or destroyed is skipped, so its position is not looked up in the
//   slots of another life (`queue::cq::shared_cq`).
// - 7: the completion queues are those in the command that created the queue pair.
// - 8: the device writes one completion per request; the poller moves past each entry once. A block
//   of compressed completions becomes as many entries before the poller passes its title. A resize
//   copies the unpolled entries once, and afterwards only the new ring is polled.
// - 9: the device stops a queue pair before it confirms 2RST_QP or DESTROY_QP, and the two queues
//   of a raw packet queue pair before DESTROY_RQ and DESTROY_SQ. The driver returns then
//   (`__mlx5_ib_modify_qp`, `destroy_qp_common`). MODIFY_RQ to reset does not promise this. The
//   device writes the confirmation behind the data. A device that fails DESTROY_QP is beyond this
//   argument: Linux prints that and reports success.
// - 10: the key of a region contains its number in the device and 8 bits changed by the driver; the
//   number is reused only after DESTROY_MKEY. A region changed in place keeps its keys or returns
//   new ones. An imported region is a second name of one.
// - 11: the device compares the rights of the key and of the queue pair for each packet.
// - 12: DESTROY_MKEY, or the change that frees a key for the driver's cache, is confirmed after the
//   device has ended the accesses by the key (`mlx5_ib_dereg_mr`). The driver does not reject the
//   end of a region with windows: their keys then name nothing.
// - 13: the device is not a thread of this process. Its accesses follow a doorbell that `ring`
//   stores behind `barrier::to_device`, or a system call.
// - 14: `cmd` accepts only the kernel's confirmation as the end of an object. Nothing in `destroy`
//   unwinds: poisoned locks are used like others.
// - 15: dropping an object unmaps at most memory whose pages the kernel has pinned for the device.
//   Doorbell records of an object that was not destroyed are never reused, nor is the number in its
//   completions. Memory of an allocator returns to it only after the kernel has confirmed the end
//   of the object and nothing in this process still holds the memory (`memory`).
// - 16: the descriptors come from the kernel's replies, checked in `cmd::context`.
// - 17: a completion queue of another context is rejected. Other handles are numbers of one file:
//   another context's number names nothing there, or an object that the caller could have passed as
//   well.
// - 18: REG_MR undoes its steps if it fails. Nothing in `reg_mr` unwinds.
// - 19: `rollback` moves the counters back, but never below the last doorbell's; the device takes
//   only entries covered by these.
// - 20: a queue pair keeps its memory, doorbell records and register until its queues are gone too
//   (`queue::resources`). A queue whose queue pair was destroyed does not ring. If it rings at that
//   moment, it may ring a register whose page no later queue pair has: the device compares the
//   page, so it takes the doorbell for no other queue pair. Or it rings a shared register with
//   nothing but its number. The device then reads the doorbell record of the number's current queue
//   pair and takes that queue pair's posted requests (`doorbell::registers`). `modify` rejects
//   queues of another queue pair.
// - 21: a window's key exists in the device like a region's, with the range and the rights of the
//   bind. Only the request made by `umr` changes it; requests that name it need its number.
// - 22: the device invalidates the key before it writes the completion.
// - 23: not promised.
// - 24: `queue::srq` keeps 1 to 3 and 5 to 8 like the queues of a queue pair. An entry is linked
//   and rewritten only after a poller has cleared its bit, when it returned or skipped the
//   completion of its receive; a second completion of one receive is dropped. The device compares
//   keys with the protection domain of the shared receive queue. Receives complete in the
//   completion queue named by the command that created the queue pair, or the queue of the kind XRC
//   or TM. In tag matching, the completion of a message that matches no tag is a receive; the
//   others end operations or tags and leave all entries unchanged (`TagRecord::complete`).
// - 25: the driver rejects the end of a shared receive queue used by queue pairs created with it;
//   the device has ended the receives taken by the others before. It confirms the end of a queue of
//   the kind XRC after it has ended the receives taken by targets. For the kind TM, the hidden
//   queue pair that changes the tag list is destroyed first; its queue posts nothing afterwards
//   (`TagList`). The memory of tags belongs to the device until then, and never to safe code.
//   `modify` sends no command that ends a receive and rejects the queue of another shared receive
//   queue. It keeps its memory and doorbell record until its queue is gone too
//   (`queue::resources`): nothing reads a record stored then.
// - 26: a work queue's queue is an `Rq`, which keeps 1 to 3 and 5 to 8 as for a queue pair. Its
//   completions have a number unique to it until they were passed, even if several queue pairs
//   receive through it. It completes in the completion queue named by the command that created it,
//   and the device compares keys with its protection domain. The driver confirms DESTROY_RQ after
//   the device has stopped the queue (`mlx5_ib_destroy_wq`). `modify` rejects the queue of another
//   work queue and changes the queue only after the command succeeded. After RESET, earlier
//   receives have no completion: those in the completion queue are skipped, as for a queue pair. It
//   keeps its memory and doorbell record until its queue is gone too (`queue::resources`): nothing
//   reads a record stored then.
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
