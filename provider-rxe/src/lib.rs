//! The provider for Soft-RoCE (`rdma_rxe`), the kernel's RDMA over UDP: mapped queues plus the
//! kick.
//!
//! | module | what it is |
//! |---|---|
//! | `context` | [`Context`], the open device, and how a device is recognised |
//! | `queue` | a mapped queue: its header, checked once, and its slots |
//! | `wqe` | what a work queue entry consists of |
//! | `sq` | [`Sq`], posting sends |
//! | `kernel` | the right to command the kernel's context, which all objects share |
//! | `kick` | the one system call per call of `post_send` |
//! | `rq` | [`Rq`], posting receives |
//! | `cq` | [`Cq`], polling without a system call |
//! | `qp` | [`Qp`], its states and its limits |
//! | `ah` | [`Ah`], the path of a datagram, in two flavours |
//! | `mr` | [`Mr`], a memory region, and whether its end is to be believed |
//! | `settle` | what the kernel does not wait for |
//! | `paper` | the kernel's side of all this in plain memory, for tests and measurements |
//!
//! Protection domains have no driver's half: they are [`KernelPd`].
//!
//! Programs use the crate `verbs`, and name [`Rxe`] where they want static calls. Below it, a queue
//! pair on paper:
//!
//! ```
//! use provider_rxe::paper::PaperDevice;
//! use verbs_core::provider::{Completion, CqOps, SendQueue};
//! use verbs_core::types::{QpState, SendFlags, SendOp, SendWr, Sge};
//!
//! // SAFETY: the kernel that is played here completes what was posted, once.
//! let device = unsafe { PaperDevice::new() };
//! let mut cq = device.create_cq(16);
//! let mut qp = device.create_qp(cq.handle, PaperDevice::rc());
//! device.move_to(&mut qp, QpState::RTS);
//!
//! let sge = [Sge { addr: 0x1000, length: 64, lkey: 1 }];
//! let wr = SendWr { wr_id: 7, op: SendOp::Send, sge: &sge, flags: SendFlags::SIGNALED };
//! // SAFETY: a device on paper touches no memory but its queues.
//! unsafe { qp.parts.sq.post_send(&[wr]) }.unwrap();
//!
//! qp.complete_sends(&mut cq);
//! let completion = cq.cq.next().unwrap();
//! assert_eq!((completion.wr_id(), completion.byte_len()), (7, 64));
//! ```
//!
//! # Safety
//! The implementation of [`Provider`] here is a promise about the kernel, argued at the impl.
//!
//! # References
//! `rdma/rdma_user_rxe.h`; Linux `drivers/infiniband/sw/rxe/`; `rxe(7)`
#![allow(unsafe_code)]

mod ah;
mod context;
mod cq;
mod kernel;
mod kick;
mod mr;
#[doc(hidden)]
pub mod paper;
mod qp;
mod queue;
mod rq;
mod settle;
mod sq;
mod wqe;

use verbs_core::kernel::KernelPd;
use verbs_core::provider::Provider;

pub use ah::Ah;
pub use context::Context;
pub use cq::{Completion, Cq, CqHandle};
pub use mr::Mr;
pub use qp::Qp;
pub use rq::Rq;
pub use sq::Sq;

/// The provider for rxe devices.
#[derive(Debug)]
pub enum Rxe {}

// SAFETY: what the kernel does, read at 5.10, 6.1, 6.12 and 7.2, and that this crate passes it on.
// By number:
// - 1: `post_one` fills a slot and moves its own index after every check, as its last step; what
//   fails before has moved nothing. The kernel takes elements below the producer's index, which
//   `publish` stores once a call. A kick that fails comes after that, and reports all that were
//   published as accepted.
// - 2: lists, inline data and address vectors are copied into the slot during the call; a kick
//   carries no pointer to them.
// - 3: `copy_data` walks the list in the slot, and finds each key with `lookup_mr` (5.10:
//   `lookup_mem`), which compares key, protection domain and rights; `mr_check_range` compares the
//   range. Receives, read responses and atomics (`send_data_in`, `do_read`, `do_atomic`) ask for
//   `IB_ACCESS_LOCAL_WRITE`. An atomic copies 8 bytes, for which `Sq` wants a list of 8 bytes. The
//   slot is this process' to write from when the kernel has taken it, and only the `Sq` does.
// - 4: `path` takes a number of an address handle, which `rxe_get_av` looks up and compares the
//   protection domain of, or the bytes of a path, which name a peer.
// - 5: `do_complete` of the completer runs after the acknowledgement, or for unacknowledged
//   services after the packets, which are copies; read responses are copied by `do_read` before it.
//   `do_complete` of the responder runs after the last packet of a message was copied.
//   `rxe_cq_post` stores the producer's index with release after the entry; `ConsumerEnd::next`
//   reads it with acquire before the entry. On 5.10 and 6.1 requester and completer are two tasks,
//   so that a repetition may still be read from memory when a late acknowledgement completes the
//   request; the peer's responder knows its number and discards it (`check_psn`,
//   `duplicate_request`).
// - 6: the kernel copies `wr_id` from the slot to the entry (`make_send_cqe`, `flush_send_wqe`, and
//   so for receives). The entry stays until it is given back, which needs the end of its loan:
//   `rxe_cq_post` refuses where the queue is full.
// - 7: the completer posts to `qp->scq`, the responder to `qp->rcq`, which are those that the queue
//   pair was created with.
// - 8: both move their consumer's index past the request with its only completion. `ConsumerEnd`
//   lends an entry once.
// - 9: `rxe_qp_reset` disables the tasks, drains both queues and forgets the packet that was worked
//   on, whatever state the queue pair is left in; `confirm_reset` sees to the state, and to tasks
//   that older kernels do not wait for. Where those cannot be waited for, `reset_ends_requests` is
//   false (`settle`). `rxe_qp_do_cleanup` (5.10: `rxe_qp_destroy`) waits for the tasks
//   (`rxe_cleanup_task`) before `rxe_destroy_qp` returns, also when `__rxe_cleanup` gave up waiting
//   for references before: what holds those then are packets, which need a task.
// - 10: `rxe_mr_init_user` pins the bytes that the command names. A key contains the index of the
//   region, which is its own until `__rxe_cleanup` erases it.
// - 11: `check_rkey` looks each packet's key up with the right that its operation needs, middle
//   packets of a message too; a region without remote rights is not found so. An operation of
//   length zero touches nothing.
// - 12: `__rxe_cleanup` takes the key away, and waits until every reference is gone. A reference is
//   held while one packet or one piece of a list is worked on (`cleanup` of the responder puts
//   `qp->resp.mr` after each packet). Two of the responder's ways out keep it for longer: an RDMA
//   write with immediate data whose completion does not fit into the completion queue (seen on
//   6.12), and a queue pair that goes to ERR while such a write completes, which goes through
//   `check_rkey` again and takes a second reference over the first. Then `__rxe_cleanup` waits 50
//   s, warns, and reports `ETIMEDOUT` to `rxe_dereg_mr`, which ignores it; the region is unpinned
//   and freed under the reference. What holds it is in ERR, where the responder drops packets, and
//   a reference that was taken over is used by nothing; but that every reference left is of these
//   kinds cannot be seen from here, and the freed structure may become another region's. So `Mr`
//   does not believe a deregistration that took that long, and the memory is never free. Some
//   kernels of 2022 and 2023 that were not updated since give up after 200 ticks, which is not told
//   from a slow success: they are not supported. 5.10 does not wait; its last reference unpins the
//   pages. For exposed memory, which may be taken back while it is mapped, `Mr` waits until the
//   packets under way are done, or fails where it cannot (`settle`).
// - 13: the kernel is no thread of this process.
// - 14: `cmd` takes only the kernel's confirmation for the end of an object. Nothing in `destroy`
//   unwinds.
// - 15: what is dropped unmaps queues at most, whose pages the kernel has a mapping of its own of
//   (`rxe_mmap.c`).
// - 16: the descriptors are the kernel's answers, checked in `cmd::context`.
// - 17: handles are numbers of one file. Another context's number names nothing there, or an object
//   that the caller could have given as well; memory is registered through the protection domain's
//   own context (`KernelPd::reg_mr`).
// - 18: REG_MR takes back what it began where it fails (`ib_uverbs_reg_mr`, `rxe_reg_user_mr`). The
//   carriers return an error only for what the kernel refused, or for a count that no uverbs file
//   returns. Nothing in `reg_mr` unwinds.
// - 19: `rollback` moves the poster's index back to the published one; the kernel takes elements
//   below that only.
// - 20: a queue that is dropped is unmapped, as in 15. Once the queue pair is destroyed, no task
//   takes elements out of its queues. A kick then names a handle that the kernel does not find, or
//   that a later queue pair of the context got, whose task looks at its own queue.
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
}
