//! Erased queue pairs, erased shared receive queues, and the erased queues inside them.
//!
//! Posting a list costs one indirect call, not one per work request or segment. A batch builder
//! makes one call per request; the call ends before the next request borrows its inline data.
//!
//! # Safety
//! Each unsafe call has the same requirements as the function that contains it.
#![allow(unsafe_code)]
// Objects are returned by value so that they are not lost; destruction is not a hot path.
#![allow(clippy::result_large_err)]

use core::any::Any;

use super::foreign;
use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::provider::{Destroy, FastPath, QpOps, RecvQueue, SendQueue, SrqOps};
use crate::types::{
    DataInOrder, Ece, Gid, OpKind, OpsWr, PostError, PostReason, QpAttr, QpAttrMask, QpCap, QpInitInfo,
    QpState, QpType, RateLimit, RecvWr, SendWr, SrqAttr, SrqAttrMask,
};

erased_object! {
    /// An erased queue pair.
    pub ErasedQp, DynQp, QpOps + Destroy
}

destroy_through_box! {
    ErasedQp, DynQp: QpOps {
        /// Modifies the queue pair like [`QpOps::modify`]; returns `None` for queues of another
        /// provider.
        fn modify_erased(
            &mut self,
            sq: &mut ErasedSendQueue,
            rq: &mut ErasedRecvQueue,
            attr: &QpAttr,
            mask: QpAttrMask,
        ) -> Option<Result<()>> {
            let (sq, rq): (&mut dyn Any, &mut dyn Any) = (&mut *sq.0, &mut *rq.0);
            Some(self.modify(sq.downcast_mut::<T::Sq>()?, rq.downcast_mut::<T::Rq>()?, attr, mask))
        }
    }
}

impl QpOps for ErasedQp {
    type Sq = ErasedSendQueue;
    type Rq = ErasedRecvQueue;

    fn handle(&self) -> u32 {
        self.0.handle()
    }
    fn qp_num(&self) -> u32 {
        self.0.qp_num()
    }
    fn qp_type(&self) -> QpType {
        self.0.qp_type()
    }
    fn cap(&self) -> QpCap {
        self.0.cap()
    }
    fn state(&self) -> QpState {
        self.0.state()
    }
    fn modify(
        &mut self,
        sq: &mut ErasedSendQueue,
        rq: &mut ErasedRecvQueue,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<()> {
        let moved = self.0.modify_erased(sq, rq, attr, mask);
        moved.unwrap_or_else(|| Err(foreign("modify_qp", "send or receive queue")))
    }
    fn reset_ends_requests(&self) -> bool {
        self.0.reset_ends_requests()
    }
    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)> {
        self.0.query(mask)
    }
    fn modify_rate_limit(&mut self, attr: &RateLimit) -> Result<()> {
        self.0.modify_rate_limit(attr)
    }
    fn set_ece(&mut self, ece: &Ece) -> Result<()> {
        self.0.set_ece(ece)
    }
    fn query_ece(&self) -> Result<Ece> {
        self.0.query_ece()
    }
    fn data_in_order(&self, op: OpKind) -> DataInOrder {
        self.0.data_in_order(op)
    }

    fn attach_mcast(&mut self, gid: &Gid, lid: u16) -> Result<()> {
        self.0.attach_mcast(gid, lid)
    }
    fn detach_mcast(&mut self, gid: &Gid, lid: u16) -> Result<()> {
        self.0.detach_mcast(gid, lid)
    }
}

erased_object! {
    /// An erased send queue.
    pub ErasedSendQueue, DynSendQueue, SendQueue
}

/// The methods of a send queue, called through a pointer.
trait DynSendQueue: SendQueue {
    /// Posts one request with [`FastPath::Shared`], which is compiled only here.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_send`].
    unsafe fn post_shared(&mut self, wr: &SendWr<'_>) -> bool;
}

impl<T: SendQueue> DynSendQueue for T {
    #[inline]
    unsafe fn post_shared(&mut self, wr: &SendWr<'_>) -> bool {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.post_fast(wr, FastPath::Shared) }
    }
}

impl SendQueue for ErasedSendQueue {
    #[inline]
    unsafe fn post_one(&mut self, wr: &SendWr<'_>) -> Result<(), PostReason> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.0.post_one(wr) }
    }
    #[inline]
    unsafe fn post_fast(&mut self, wr: &SendWr<'_>, path: FastPath) -> bool {
        // SAFETY: the caller upholds the same contract.
        path != FastPath::Alone && unsafe { self.0.post_shared(wr) }
    }
    #[inline]
    fn ring(&mut self) -> Result<(), Errno> {
        self.0.ring()
    }
    fn leave_faults_to_device(&mut self) {
        self.0.leave_faults_to_device();
    }
    fn rollback(&mut self, count: usize) -> usize {
        self.0.rollback(count)
    }
    #[inline]
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.0.post_send(wrs) }
    }
}

erased_object! {
    /// An erased receive queue.
    pub ErasedRecvQueue, RecvQueue, RecvQueue
}

erased_object! {
    /// The erased queue inside a shared receive queue.
    pub ErasedSrqQueue, RecvQueue, RecvQueue
}

recv_queue_through_box!(ErasedRecvQueue, ErasedSrqQueue);

erased_object! {
    /// An erased shared receive queue.
    pub ErasedSrq, DynSrq, SrqOps + Destroy
}

destroy_through_box! {
    ErasedSrq, DynSrq: SrqOps {
        /// Modifies the queue like [`SrqOps::modify`]; returns `None` for a queue of another
        /// provider.
        fn modify_erased(
            &self,
            queue: &mut ErasedSrqQueue,
            attr: &SrqAttr,
            mask: SrqAttrMask,
        ) -> Option<Result<()>> {
            let queue: &mut dyn Any = &mut *queue.0;
            Some(self.modify(queue.downcast_mut::<T::Queue>()?, attr, mask))
        }
    }
}

impl SrqOps for ErasedSrq {
    type Queue = ErasedSrqQueue;

    fn handle(&self) -> u32 {
        self.0.handle()
    }
    fn srq_num(&self) -> Option<u32> {
        self.0.srq_num()
    }
    fn attr(&self) -> SrqAttr {
        self.0.attr()
    }
    fn modify(&self, queue: &mut ErasedSrqQueue, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()> {
        let changed = self.0.modify_erased(queue, attr, mask);
        changed.unwrap_or_else(|| Err(foreign("modify_srq", "shared receive queue")))
    }
    fn query(&self) -> Result<SrqAttr> {
        self.0.query()
    }
}
