//! The provider for Soft-RoCE (`rdma_rxe`), the kernel's RDMA over UDP: mapped queues plus the kick.
//!
//! | module | what it is |
//! |---|---|
//! | `context` | [`Context`], the open device, and how a device is recognised |
//! | `queue` | a mapped queue: its header, checked once, and its slots |
//! | `wqe` | what a work queue entry consists of |
//! | `sq` | [`Sq`], posting sends |
//! | `kick` | the one system call per call of `post_send` |
//! | `rq` | [`Rq`], posting receives |
//! | `cq` | [`Cq`], polling without a system call |
//! | `qp` | [`Qp`], its states and its limits |
//! | `ah` | [`Ah`], the path of a datagram, in two flavours |
//! | [`paper`] | the kernel's side of all this in plain memory, for tests and measurements |
//!
//! Protection domains and memory regions have no driver's half: they are
//! [`KernelPd`] and [`KernelMr`].
//!
//! Programs use the crate `verbs`, and name [`Rxe`] where they want static calls. Below it, a queue pair on paper:
//!
//! ```
//! use provider_rxe::paper::PaperDevice;
//! use verbs_core::provider::{Completion, CqOps, QpOps};
//! use verbs_core::types::{QpState, SendFlags, SendOp, SendWr, Sge};
//!
//! // SAFETY: the kernel that is played here completes what was posted, once.
//! let device = unsafe { PaperDevice::new() };
//! let mut cq = device.create_cq(16);
//! let mut qp = device.create_qp(&cq, PaperDevice::rc());
//! device.move_to(&mut qp, QpState::RTS);
//!
//! let sge = [Sge { addr: 0x1000, length: 64, lkey: 1 }];
//! let wr = SendWr { wr_id: 7, op: SendOp::Send, sge: &sge, flags: SendFlags::SIGNALED };
//! // SAFETY: a device on paper touches no memory but its queues.
//! unsafe { qp.qp.post_send(&[wr]) }.unwrap();
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
mod kick;
pub mod paper;
mod qp;
mod queue;
mod rq;
mod sq;
mod wqe;

use verbs_core::kernel::{KernelMr, KernelPd};
use verbs_core::provider::Provider;

pub use ah::Ah;
pub use context::Context;
pub use cq::{Completion, Cq};
pub use qp::Qp;
pub use rq::Rq;
pub use sq::Sq;

/// The provider for rxe devices.
#[derive(Debug)]
pub enum Rxe {}

// SAFETY: what the kernel does, and that this crate passes it on:
// - The kernel puts a completion into the queue after it has copied the request's data out of (or into) its memory for
//   the last time: sends once they were acknowledged or, unacknowledged services, copied into packets; packets are
//   copies. It publishes the producer's index with release after the entry (`rxe_cq_post`), `Emptying::next` reads it
//   with acquire before the entry.
// - `do_complete` of both the completer and the responder takes the request off its queue together with posting its
//   only completion. `Emptying` lends an entry once: its index moves on with each, and never back.
// - Destroying a queue pair and moving it to RESET stop its tasks before the command returns (`rxe_qp_reset`,
//   `rxe_qp_do_cleanup`); deregistering fails or waits while a region is in use. `Destroy` returns `Ok` only after
//   the command did, or when the device is gone together with its tasks.
// - Keys are the kernel's, from registering exactly the bytes given (`KernelPd::reg_mr`).
unsafe impl Provider for Rxe {
    type Context = Context;
    type Pd = KernelPd;
    type Mr = KernelMr;
    type Cq = Cq;
    type Qp = Qp;
    type Ah = Ah;
}
