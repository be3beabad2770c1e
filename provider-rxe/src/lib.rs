//! The provider for Soft-RoCE (`rdma_rxe`), the kernel's RDMA over UDP: mapped queues and a system
//! call, the kick.
//!
//! The modules from top to bottom; a module imports only modules below it:
//!
//! | module | content |
//! |---|---|
//! | `paper` | the kernel's side of the queues in plain memory, for tests and benchmarks |
//! | `context` | [`Context`], the open device, and the check for rxe devices |
//! | `qp` | [`Qp`], its states and its limits |
//! | `srq` | [`Srq`], a receive queue for many queue pairs |
//! | `sq` | [`Sq`], posting sends |
//! | `rq` | [`Rq`], posting receives |
//! | `cq` | [`Cq`], polling without a system call |
//! | `mr` | [`Mr`], a memory region, and whether its deregistration can be trusted |
//! | `ah` | [`Ah`], the path of a datagram, in two forms |
//! | `wqe` | the parts of a work queue entry |
//! | `queue` | a mapped queue: its slots and its header, checked once |
//! | `kick` | the one system call in each `post_send` |
//! | `settle` | waiting for tasks the kernel does not wait for |
//! | `rxe` | [`Rxe`], the marker type for this provider in its objects' types |
//!
//! Protection domains, memory windows and DMA handles have no driver-specific data: they are
//! [`KernelPd`], [`KernelMw`] and [`KernelDmah`].
//!
//! Programs use the crate `verbs` and name [`Rxe`] for static calls. This example posts to a
//! simulated queue pair:
//!
//! ```
//! use provider_rxe::paper::PaperDevice;
//! use verbs_core::provider::{Completion, CqOps, SendQueue};
//! use verbs_core::types::{QpState, SendFlags, SendOp, SendWr, Sge};
//!
//! // SAFETY: the simulated kernel completes each posted request once.
//! let device = unsafe { PaperDevice::new() };
//! let mut cq = device.create_cq(16);
//! let mut qp = device.create_qp(cq.handle, PaperDevice::rc());
//! device.move_to(&mut qp, QpState::RTS);
//!
//! let sge = [Sge { addr: 0x1000, length: 64, lkey: 1 }];
//! let wr = SendWr { wr_id: 7, op: SendOp::Send, sge: &sge, flags: SendFlags::SIGNALED };
//! // SAFETY: a paper device accesses no memory except its queues.
//! unsafe { qp.parts.sq.post_send(&[wr]) }.unwrap();
//!
//! qp.complete_sends(&mut cq);
//! let completion = cq.cq.next().unwrap();
//! assert_eq!((completion.wr_id(), completion.byte_len()), (7, 64));
//! ```
//!
//! # Safety
//! The implementation of [`Provider`] makes guarantees about the kernel. The comment at the impl
//! argues for each of them.
//!
//! # References
//! `rdma/rdma_user_rxe.h`; Linux `drivers/infiniband/sw/rxe/`; `rxe(7)`
#![allow(unsafe_code)]

mod ah;
mod context;
mod cq;
mod kick;
mod mr;
#[doc(hidden)]
pub mod paper;
mod qp;
mod queue;
mod rq;
mod rxe;
mod settle;
mod sq;
mod srq;
mod wqe;

use verbs_core::kernel::{KernelDmah, KernelMw, KernelPd};
use verbs_core::provider::{Provider, Unsupported};

pub use ah::Ah;
pub use context::Context;
pub use cq::{Completion, Cq, CqHandle};
pub use mr::Mr;
pub use qp::Qp;
pub use rq::Rq;
pub use rxe::Rxe;
pub use sq::Sq;
pub use srq::{Srq, SrqQueue};

// SAFETY: the argument covers the kernel's code, read at 5.10, 6.1, 6.12 and 7.2, and this crate,
// which passes the kernel's results on. By number:
// - 1: `post_one` makes every check, fills a slot, and moves its own index as the last step; a
//   request that fails earlier has moved nothing. The kernel takes elements below the producer's
//   index, which `publish` stores once per call of `ring` or of a batch. The kick comes later; if
//   it fails, the error counts every request put in as accepted.
// - 2: lists, inline data and address vectors are copied into the slot during the call; a kick
//   carries no pointer to them.
// - 3: `copy_data` walks the list in the slot and finds each key with `lookup_mr` (5.10:
//   `lookup_mem`), which compares key, protection domain and rights; `mr_check_range` compares the
//   range. Receives, read responses and atomics (`send_data_in`, `do_read`, `do_atomic`) require
//   `IB_ACCESS_LOCAL_WRITE`. An atomic copies 8 bytes, and `SendChecks` accepts only a list of 8
//   bytes for it. The kernel reads lists from the slots. Only `Sq` and `Rq` write them, never
//   before the kernel has moved its index past the slot. On-demand paged regions are an exception:
//   `__rxe_odp_mr_copy` (6.15 and newer) accesses the start of each page, ignoring the offset. Safe
//   code does not register any; `Pd::reg_mr` of the crate `verbs` documents this.
// - 4: `path` takes either the number of an address handle or the bytes of a path, which name a
//   peer. `rxe_get_av` looks the number up and compares its protection domain.
// - 5: `do_complete` of the completer runs after the acknowledgement, or for unacknowledged
//   services after the packets, which are copies; `do_read` copies read responses before it.
//   `do_complete` of the responder runs after the last packet of a message was copied.
//   `rxe_cq_post` stores the producer's index with release after the entry; `ConsumerEnd::next`
//   reads it with acquire before the entry. On 5.10 and 6.1 requester and completer are two tasks,
//   so the requester may still read memory for a retransmission when a late acknowledgement
//   completes the request; the peer's responder knows its packet sequence number and discards it
//   (`check_psn`, `duplicate_request`).
// - 6: the kernel copies `wr_id` from the slot to the entry (`make_send_cqe`, `flush_send_wqe`, and
//   the same for receives) and makes entries only from slots. The entry stays until `give_back`,
//   which requires the end of its loan: `rxe_cq_post` rejects an entry if the queue is full.
// - 7: the completer posts to `qp->scq` and the responder to `qp->rcq`, fixed when the queue pair
//   was created.
// - 8: completer and responder move their consumer's index past the request with its only
//   completion. `ConsumerEnd` lends an entry once. `rxe_queue_resize` copies the entries behind the
//   consumer's index into the new queue, under the lock of `rxe_cq_post`; `Cq::resize` does not
//   read the old queue once the kernel has confirmed the command.
// - 9: `rxe_qp_reset` disables the tasks, drains both queues and drops the packet in progress,
//   whatever state it leaves the queue pair in. `confirm_reset` ensures the state and waits for the
//   tasks where older kernels do not. Where it cannot wait for them, `reset_ends_requests` is false
//   (`settle`). `rxe_qp_do_cleanup` (5.10: `rxe_qp_destroy`) waits for the tasks
//   (`rxe_cleanup_task`) before `rxe_destroy_qp` returns, even if `__rxe_cleanup` gave up waiting
//   for references before: the remaining references belong to packets, which need a task.
// - 10: `rxe_mr_init_user` pins the bytes named by the command. A key contains the region's index,
//   which no other region gets until `__rxe_cleanup` erases it. After the kernel confirmed the end
//   of a region that `Mr` does not report as destroyed (12), its keys name nothing, or a later
//   region and only its bytes. `rxe_rereg_user_mr` changes the domain and the rights, but neither
//   bytes nor keys. An imported region is a second name of one; its `destroy` sends no command.
// - 11: `check_rkey` looks up each packet's key with the right needed by its operation, also for
//   middle packets of a message; it does not find a region without remote rights. An operation of
//   length zero accesses nothing.
// - 12: `__rxe_cleanup` removes the key and waits until every reference is gone. The kernel holds a
//   reference while it works on one packet or one piece of a list (`cleanup` of the responder puts
//   `qp->resp.mr` after each packet). Two exits of the responder keep it for longer: an RDMA write
//   with immediate data whose completion does not fit into the completion queue (seen on 6.12), and
//   a queue pair that goes to ERR while such a write completes: the write passes through
//   `check_rkey` again and takes a second reference over the first. Then `__rxe_cleanup` waits 50
//   s, warns and reports `ETIMEDOUT` to `rxe_dereg_mr`, which ignores it; the region is unpinned
//   and freed under the reference. The holder is in ERR, where the responder drops packets, and the
//   overwritten reference is never used. But this process cannot verify that all remaining
//   references are of these kinds, and the freed structure may become another region's. Therefore
//   `Mr` does not trust such a long deregistration and never reports the region as destroyed, so
//   the memory is never released. Some kernels of 2022 and 2023 without later updates give up after
//   200 ticks, which looks like a slow success: they are not supported. 5.10 does not wait; its
//   last reference unpins the pages. Exposed memory may be released while it is mapped, so `Mr`
//   waits until the packets in progress are done, or fails if it cannot wait (`settle`).
// - 13: the kernel is not a thread of this process. Its accesses follow a system call or an index
//   stored by `publish` with release.
// - 14: `cmd` accepts only the kernel's confirmation as the end of an object. Nothing in `destroy`
//   unwinds.
// - 15: dropping an object at most unmaps a queue; the kernel has its own mapping of the pages
//   (`rxe_mmap.c`).
// - 16: the descriptors come from the kernel's replies, checked in `cmd::context`.
// - 17: handles are numbers of one file. Another context's number names nothing there, or an object
//   the caller could have passed as well; memory is registered through the protection domain's own
//   context (`KernelPd::reg_mr`).
// - 18: REG_MR undoes its steps if it fails (`ib_uverbs_reg_mr`, `rxe_reg_user_mr`). The command
//   channels return an error only if the kernel rejected the command, or for a count that no uverbs
//   file returns. Nothing in `reg_mr` unwinds.
// - 19: `rollback` moves the poster's index back, not below the published one; the kernel takes
//   only elements below that.
// - 20: a dropped queue is unmapped, as in 15. Once the queue pair is destroyed, no task takes
//   elements out of its queues. A kick then names an unknown handle, or a later queue pair's of the
//   context, whose task reads its own queue.
// - 21: `rxe_lookup_mw` compares key, protection domain, queue pair (type 2), rights and state.
//   Then `check_rkey` compares the range with the region's, not with the window's. `rxe_bind_mw`
//   runs only for bind work requests and does not compare the domains of window and region: another
//   process of the device that guesses a key (8 random bits beside the index) can bind a region
//   with `IB_ACCESS_MW_BIND`. Its bytes are accessed as exposed memory (13). 5.10 has no windows,
//   and `Sq` posts no window request there.
// - 22: the responder invalidates the key in `execute`, before it completes the receive. It
//   processes one packet of its queue pair after the other. `rxe_lookup_mw` finds a window of type
//   2 only for its queue pair, so no write through the window is in progress. A read request
//   replayed on another queue pair (`rxe_recheck_mr`) only reads.
// - 23: not promised. The requester invalidates a key while the responder, on another processor,
//   may copy a packet into the region, holding the reference taken by `check_rkey`. Deallocating
//   the window waits only for references to the window. Deregistering the region waits for the copy
//   (12), and fails while windows are bound to it (`num_mw`).
// - 24: `get_srq_wqe` copies an entry into the queue pair and moves the consumer's index past it in
//   one critical section; the queue pair completes the copy once (`do_complete`) to its `rcq`, or
//   loses it. It rejects an entry with too many elements for the queue. Keys are looked up as in 3,
//   in the queue pair's domain; a key contains the index of its region, so it names no other region
//   of any domain (10).
// - 25: the core destroys a shared receive queue only without queue pairs (`usecnt`), whose
//   destruction ends the receives they took (9). Then no task is left to read the queue. `modify`
//   replaces the queue by one with the same entries (`resize_finish`); this process first checks
//   that they fit. The new queue is mapped once. One failure of the kernel is beyond this promise:
//   if `rxe_srq_from_attr` has no memory for the new queue, it frees the old one and keeps using it
//   (the head of `srq.rs`).
// - 26: rxe has no work queues: their types are `Unsupported`, which has no values.
unsafe impl Provider for Rxe {
    type Context = Context;
    type Pd = KernelPd;
    type Mr = Mr;
    type Cq = Cq;
    type CqHandle = CqHandle;
    type Qp = Qp;
    type Sq = Sq;
    type Rq = Rq;
    type Ah = Ah;
    type Srq = Srq;
    type SrqQueue = SrqQueue;
    type Xrcd = Unsupported;
    type Dm = Unsupported;
    type Dmah = KernelDmah;
    type Td = Unsupported;
    type Mw = KernelMw;
    type Wq = Unsupported;
    type WqQueue = Unsupported;
    type RwqIndTable = Unsupported;
    type Flow = Unsupported;
    type FlowAction = Unsupported;
    type Counters = Unsupported;
    type CompCntr = Unsupported;
}
