//! The shared receive queue: one mapped queue of receives for all queue pairs created with it.
//! Posting makes no system call.
//!
//! A receive leaves the queue when a message begins: the kernel copies the entry into the queue
//! pair and completes it in the queue pair's completion queue.
//!
//! Resizing replaces the queue. The kernel copies the entries into a new queue and stores the new
//! queue's mapping at an address in the command. Kernels up to 6.12 do not survive a change that
//! fails after its first checks: they release the queue and keep using it (`rxe_srq_from_attr`). So
//! [`Srq::modify`] itself rejects a size too small for the queued receives.
//!
//! # Safety
//! The queue is mapped once from the reply to the command that created it and once from the reply
//! to each command that replaced it.
//!
//! # References
//! `ibv_create_srq(3)`, `ibv_modify_srq(3)`, `ibv_post_srq_recv(3)`; Linux
//! `drivers/infiniband/sw/rxe/rxe_srq.c`, `rxe_queue.c`, `rxe_resp.c` (`get_srq_wqe`)
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use uverbs_abi::rdma_user_rxe::{Mminfo, RxeCreateSrqResp, RxeModifySrqCmd};
use verbs_core::channel::Uhw;
use verbs_core::cmd::srq::SrqHandles;
use verbs_core::kernel::{Kernel, KernelPd};
use verbs_core::provider::{Destroy, DeviceOps as _, EventsRead, PdOps, RecvQueue, SrqOps, SrqParts};
use verbs_core::types::{PostError, PostReason, QpCap, RecvWr, SrqAttr, SrqAttrMask, SrqInitAttr, SrqType};
use verbs_core::{Cause, Errno, Error, Result, cmd, explain};
use zerocopy::IntoBytes;

use crate::queue::Queue;
use crate::rq::Rq;
use crate::rxe::Rxe;

/// A shared receive queue as a kernel object, separate from its [`SrqQueue`].
///
/// The [`SrqQueue`] owns the mapping and may be dropped first. This is sound while the kernel still
/// takes receives: the kernel uses a separate mapping and counts this process's mapping as a
/// reference to the pages (Linux `drivers/infiniband/sw/rxe/rxe_mmap.c`).
#[derive(Debug)]
pub struct Srq {
    context: Kernel,
    handle: u32,
    max_wr: AtomicU32,
    max_sge: u32,
}

/// The queue of a shared receive queue.
#[derive(Debug)]
pub struct SrqQueue {
    rq: Rq,
    context: Kernel,
    handle: u32,
}

impl Srq {
    pub(crate) fn create(context: &Kernel, pd: &KernelPd, attr: &SrqInitAttr) -> Result<SrqParts<Rxe>> {
        const VERB: &str = "create_srq";
        let uverbs = context.uverbs();
        if attr.srq_type != SrqType::BASIC {
            return Err(uverbs.error(VERB, Errno::OPNOTSUPP));
        }
        let event_fd = context.async_fd()?;
        let mut reply = RxeCreateSrqResp::default();
        let parents = SrqHandles { pd: pd.handle(), xrcd: None, cq: None };
        let uhw = Uhw::reply(reply.as_mut_bytes());
        let info = cmd::srq::create_srq(uverbs, &parents, attr, Some(event_fd), uhw)
            .map_err(|error| context.explain_create_srq(error, attr))?;
        let cap = QpCap { max_recv_sge: info.max_sge, ..QpCap::default() };
        // SAFETY: the kernel has just created the queue, and its reply describes it.
        let queue = match unsafe { Queue::map(uverbs, VERB, &reply.mi, Rq::element(&cap)) } {
            Ok(queue) => SrqQueue {
                rq: Rq::of_srq(queue, info.max_sge),
                context: context.clone(),
                handle: info.handle,
            },
            Err(error) => {
                // The mapping's error is the one to report. If the queue cannot be destroyed,
                // closing the context destroys it.
                let _ = cmd::srq::destroy_srq(uverbs, info.handle);
                return Err(error);
            }
        };
        let srq = Self {
            context: context.clone(),
            handle: info.handle,
            max_wr: AtomicU32::new(queue.rq.capacity()),
            max_sge: info.max_sge,
        };
        Ok(SrqParts { srq, queue })
    }

    /// Changes the size and, if in the mask, the limit.
    ///
    /// # Errors
    /// [`Cause::Limit`] for a size too small for the queued receives; `ENOMEM` after a change whose
    /// new queue could not be mapped; any errno from the kernel or `mmap(2)`.
    fn resize(&self, queue: &mut Rq, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()> {
        const VERB: &str = "modify_srq";
        let uverbs = self.context.uverbs();
        let device = self.context.query_device()?;
        // The kernel copies the published entries. Its consumer only removes entries meanwhile, so
        // the copy fits if the entries fit now.
        queue.ring();
        if queue.capacity() == 0 {
            let reason = "an earlier change of the size lost the queue: create another one";
            let cause = Cause::Other { reason: reason.into() };
            return Err(uverbs.error(VERB, Errno::NOMEM).because(cause));
        }
        let held = queue.outstanding();
        explain::resized("max_wr", attr.max_wr.into(), held, device.max_srq_wr.into())
            .map_err(|cause| uverbs.error(VERB, Errno::INVAL).because(cause))?;
        let mut mapping = Mminfo::default();
        let command = RxeModifySrqCmd { mmap_info_addr: (&raw mut mapping).expose_provenance() as u64 };
        // SAFETY: rxe writes an `Mminfo` at the address in the input, during the command.
        let uhw = unsafe { Uhw::none().with_input(command.as_bytes()) };
        cmd::srq::modify_srq(uverbs, self.handle, attr, mask, uhw)
            .map_err(|error| self.context.explain_modify_srq(error, attr, mask))?;
        // SAFETY: nothing else accesses `mapping`; a read through its address sees the kernel's
        // write.
        let mapping = unsafe { (&raw const mapping).read_volatile() };
        let cap = QpCap { max_recv_sge: self.max_sge, ..QpCap::default() };
        // SAFETY: the kernel has just made this queue and returned its mapping.
        match unsafe { Queue::map(uverbs, VERB, &mapping, Rq::element(&cap)) } {
            Ok(new) => {
                *queue = Rq::of_srq(new, self.max_sge);
                self.max_wr.store(queue.capacity(), Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                // The kernel no longer reads the old queue: accept nothing.
                *queue = Rq::full(self.max_sge);
                self.max_wr.store(0, Ordering::Relaxed);
                Err(error)
            }
        }
    }
}

impl SrqOps for Srq {
    type Queue = SrqQueue;

    fn handle(&self) -> u32 {
        self.handle
    }

    /// Returns `None`, because rxe has no XRC.
    fn srq_num(&self) -> Option<u32> {
        None
    }

    fn attr(&self) -> SrqAttr {
        SrqAttr { max_wr: self.max_wr.load(Ordering::Relaxed), max_sge: self.max_sge, srq_limit: 0 }
    }

    fn modify(&self, queue: &mut SrqQueue, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()> {
        if queue.handle != self.handle || !Arc::ptr_eq(&queue.context, &self.context) {
            let cause = Cause::Foreign { what: "queue of a shared receive queue" };
            return Err(self.context.uverbs().error("modify_srq", Errno::INVAL).because(cause));
        }
        if mask.contains(SrqAttrMask::MAX_WR) {
            return self.resize(&mut queue.rq, attr, mask);
        }
        let (uverbs, command) = (self.context.uverbs(), RxeModifySrqCmd::default());
        // SAFETY: rxe writes nothing at the address in its input unless the size changes.
        let uhw = unsafe { Uhw::none().with_input(command.as_bytes()) };
        cmd::srq::modify_srq(uverbs, self.handle, attr, mask, uhw)
            .map_err(|error| self.context.explain_modify_srq(error, attr, mask))
    }

    fn query(&self) -> Result<SrqAttr> {
        cmd::srq::query_srq(self.context.uverbs(), self.handle)
    }
}

impl Destroy for Srq {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.destroy_counting_events().map(drop)
    }

    fn destroy_counting_events(self) -> Result<EventsRead, (Self, Error)> {
        cmd::srq::destroy_srq(self.context.uverbs(), self.handle).map_err(|error| (self, error))
    }
}

impl RecvQueue for SrqQueue {
    #[inline(always)]
    unsafe fn post_one(&mut self, wr: &RecvWr<'_>) -> Result<(), PostReason> {
        // SAFETY: the caller makes the same promise.
        unsafe { self.rq.post_one(wr) }
    }

    #[inline(always)]
    fn ring(&mut self) {
        self.rq.ring();
    }

    #[inline(always)]
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller makes the same promise.
        unsafe { self.rq.post_recv(wrs) }
    }
}
