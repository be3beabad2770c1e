//! A queue pair, and its two queues.
//!
//! # Safety
//! The unsafe functions declare what callers promise when they post memory; those with a body pass
//! the promise on.

#![allow(unsafe_code)]

use core::any::Any;
use core::fmt::Debug;

use super::Provider;
use crate::types::{
    PostError, PostReason, QpAttr, QpAttrMask, QpCap, QpInitInfo, QpState, QpType, RecvWr, SendWr,
};
use crate::{Errno, Result};

/// A new queue pair: its control object and its two queues, which may go to three threads.
#[derive(Debug)]
pub struct QpParts<P: Provider> {
    /// The control object.
    pub qp: P::Qp,
    /// The send queue.
    pub sq: P::Sq,
    /// The receive queue.
    pub rq: P::Rq,
}

/// A queue pair without its queues: its state, and its end.
pub trait QpOps: Any + Debug + Send + Sync {
    /// Its send queue.
    type Sq: SendQueue
    where
        Self: Sized;
    /// Its receive queue.
    type Rq: RecvQueue
    where
        Self: Sized;

    /// Returns the kernel's handle.
    fn handle(&self) -> u32;

    /// Returns the number that peers address it by, 24 bits.
    fn qp_num(&self) -> u32;

    /// Returns the transport service.
    fn qp_type(&self) -> QpType;

    /// Returns its capacity, as the device made it.
    fn cap(&self) -> QpCap;

    /// Returns the state that it was last moved to; the device may have moved it to
    /// [`QpState::ERR`] since.
    fn state(&self) -> QpState;

    /// Moves it, or changes its attributes. The queues are those that were created with it.
    ///
    /// # Errors
    /// [`Cause::IllegalTransition`](crate::Cause::IllegalTransition) and
    /// [`Cause::TransitionAttributes`](crate::Cause::TransitionAttributes) where the table knows
    /// why; otherwise any errno that the kernel returns.
    fn modify(&mut self, sq: &mut Self::Sq, rq: &mut Self::Rq, attr: &QpAttr, mask: QpAttrMask) -> Result<()>
    where
        Self: Sized;

    /// Returns whether moving to RESET ends every request, as destroying does: number 9 of
    /// [`Provider`]'s contract. Always the same for a queue pair.
    fn reset_ends_requests(&self) -> bool;

    /// Queries its attributes.
    ///
    /// # Errors
    /// Any errno that the kernel returns; notably `EIO` once the device is gone.
    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)>;
}

/// The send queue of a queue pair. `&mut` is the lock: the poster owns it.
pub trait SendQueue: Any + Debug + Send + Sync {
    /// Puts one work request into the queue; the device does not look before [`ring`](Self::ring).
    ///
    /// # Safety
    /// As [`post_send`](Self::post_send).
    ///
    /// # Errors
    /// The reason for which the queue rejects the request; the queue is as before.
    unsafe fn post_one(&mut self, wr: &SendWr<'_>) -> Result<(), PostReason>;

    /// Tells the device of everything that was put into the queue.
    ///
    /// # Errors
    /// The errno of the doorbell. The requests stay in the queue, and go with the next doorbell.
    fn ring(&mut self) -> Result<(), Errno>;

    /// Takes out again every work request that was put in since the last [`ring`](Self::ring), and
    /// returns their number.
    fn rollback(&mut self) -> usize;

    /// Posts a batch: [`post_one`](Self::post_one) for each, [`ring`](Self::ring) once.
    ///
    /// # Safety
    /// From here until its completion was polled (or the queue pair was destroyed, or reset where
    /// that [ends requests](QpOps::reset_ends_requests)) the device reads the memory of every SGE,
    /// and for RDMA reads and atomics writes it: no code frees it or accesses it in conflict. No
    /// `wr_id` has its top bit set: those belong to safe posting, which returns memory when it sees
    /// one. With [`INLINE`](crate::types::SendFlags::INLINE) every SGE is memory of this process
    /// that is read now, by its address, and is free when the call returns.
    ///
    /// # Errors
    /// The number of requests that were accepted, and the reason for which the next was not. The
    /// device owns the memory of those accepted.
    #[inline(always)]
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let mut refused = None;
        let mut accepted = 0;
        for wr in wrs {
            // SAFETY: the caller vouches for every work request of the batch.
            if let Err(reason) = unsafe { self.post_one(wr) } {
                refused = Some(reason);
                break;
            }
            accepted += 1;
        }
        if accepted > 0
            && let Err(errno) = self.ring()
        {
            refused = refused.or(Some(PostReason::Doorbell(errno)));
        }
        match refused {
            None => Ok(()),
            Some(reason) => Err(PostError { accepted, reason }),
        }
    }
}

/// The receive queue of a queue pair. `&mut` is the lock: the poster owns it.
pub trait RecvQueue: Any + Debug + Send + Sync {
    /// Puts one work request into the queue; the device does not look before [`ring`](Self::ring).
    ///
    /// # Safety
    /// As [`post_recv`](Self::post_recv).
    ///
    /// # Errors
    /// The reason for which the queue rejects the request; the queue is as before.
    unsafe fn post_one(&mut self, wr: &RecvWr<'_>) -> Result<(), PostReason>;

    /// Tells the device of everything that was put into the queue.
    fn ring(&mut self);

    /// Posts a batch: [`post_one`](Self::post_one) for each, [`ring`](Self::ring) once.
    ///
    /// # Safety
    /// From here until its completion was polled (or the queue pair was destroyed, or reset where
    /// that [ends requests](QpOps::reset_ends_requests)) the device may write the memory of every
    /// SGE: no code frees or accesses it. No `wr_id` has its top bit set: those belong to safe
    /// posting, which returns memory when it sees one.
    ///
    /// # Errors
    /// The number of requests that were accepted, and the reason for which the next was not. The
    /// device owns the memory of those accepted.
    #[inline(always)]
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut refused = None;
        let mut accepted = 0;
        for wr in wrs {
            // SAFETY: the caller vouches for every work request of the batch.
            if let Err(reason) = unsafe { self.post_one(wr) } {
                refused = Some(reason);
                break;
            }
            accepted += 1;
        }
        if accepted > 0 {
            self.ring();
        }
        match refused {
            None => Ok(()),
            Some(reason) => Err(PostError { accepted, reason }),
        }
    }
}
