//! A queue pair and its two queues.
//!
//! # Safety
//! The unsafe functions state the requirements on their callers, which post memory. Default methods
//! pass these requirements on.

#![allow(unsafe_code)]

use core::any::Any;
use core::fmt::Debug;

use super::Provider;
use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::types::{
    DataInOrder, Ece, Gid, OpKind, OpsWr, PostError, PostReason, QpAttr, QpAttrMask, QpCap, QpCreateAttr,
    QpInitInfo, QpState, QpType, RateLimit, RecvWr, RxHashConf, SendWr,
};

/// The objects needed to create a queue pair. The type of the queue pair determines which are
/// required: all common types need the protection domain and both completion queues. An XRC target
/// ([`QpType::XRC_RECV`]) needs only its XRC domain, and an XRC initiator needs no completion queue
/// for receives.
#[derive(Debug)]
pub struct QpParents<'a, P: Provider> {
    /// The protection domain.
    pub pd: Option<&'a P::Pd>,
    /// The completion queue for sends.
    pub send_cq: Option<&'a P::CqHandle>,
    /// The completion queue for receives.
    pub recv_cq: Option<&'a P::CqHandle>,
    /// The shared receive queue, in place of the queue pair's own receive queue.
    pub srq: Option<&'a P::Srq>,
    /// The XRC domain.
    pub xrcd: Option<&'a P::Xrcd>,
}

impl<'a, P: Provider> QpParents<'a, P> {
    /// Returns the parents of a queue pair of a common type.
    pub const fn new(pd: &'a P::Pd, send_cq: &'a P::CqHandle, recv_cq: &'a P::CqHandle) -> Self {
        Self { pd: Some(pd), send_cq: Some(send_cq), recv_cq: Some(recv_cq), srq: None, xrcd: None }
    }
}

impl<P: Provider> Clone for QpParents<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Provider> Copy for QpParents<'_, P> {}

/// Properties of a new queue pair that only some devices have.
#[derive(Debug)]
pub struct QpExtras<'a, P: Provider> {
    /// The additional attributes.
    pub attr: QpCreateAttr,
    /// The table of work queues that replaces the queue pair's own receive queue, and the hash that
    /// selects an entry.
    pub rss: Option<(&'a P::RwqIndTable, &'a RxHashConf)>,
}

/// A new queue pair: its control object and its two queues, each usable from a different thread.
#[derive(Debug)]
pub struct QpParts<P: Provider> {
    /// The control object.
    pub qp: P::Qp,
    /// The send queue.
    pub sq: P::Sq,
    /// The receive queue.
    pub rq: P::Rq,
}

/// A queue pair without its queues: its state and destruction.
pub trait QpOps: Any + Debug + Send + Sync {
    /// The type of the queue pair's send queue.
    type Sq: SendQueue
    where
        Self: Sized;
    /// The type of the queue pair's receive queue.
    type Rq: RecvQueue
    where
        Self: Sized;

    /// Returns the kernel's handle for the queue pair.
    fn handle(&self) -> u32;

    /// Returns the queue pair number that peers use, 24 bits.
    fn qp_num(&self) -> u32;

    /// Returns the transport service.
    fn qp_type(&self) -> QpType;

    /// Returns the queue pair's capacity, as granted by the device.
    fn cap(&self) -> QpCap;

    /// Returns the state after the last call to `modify`. The device may have moved the queue pair
    /// to [`QpState::ERR`] since.
    fn state(&self) -> QpState;

    /// Moves the queue pair to another state, or changes its attributes. `sq` and `rq` must be the
    /// queues created with it. A number with more bits than its field
    /// ([`explain::numbers_fit`](crate::explain::numbers_fit)) is truncated or rejected, depending
    /// on the device's driver.
    ///
    /// # Errors
    /// [`Cause::IllegalTransition`](crate::Cause::IllegalTransition) and
    /// [`Cause::TransitionAttributes`](crate::Cause::TransitionAttributes) if the transition table
    /// rejects the call; [`Cause::Limit`](crate::Cause::Limit), [`Cause::Mtu`](crate::Cause::Mtu),
    /// [`Cause::Gid`](crate::Cause::Gid) or [`Cause::NoGrh`](crate::Cause::NoGrh) for an attribute
    /// rejected by the device; `EOPNOTSUPP` for an attribute the device lacks; otherwise any errno
    /// the kernel returns.
    fn modify(&mut self, sq: &mut Self::Sq, rq: &mut Self::Rq, attr: &QpAttr, mask: QpAttrMask) -> Result<()>
    where
        Self: Sized;

    /// Returns whether moving to RESET ends every request, like destruction (promise 9 of
    /// [`Provider`]'s contract). The result is always the same for a queue pair.
    fn reset_ends_requests(&self) -> bool;

    /// Queries the queue pair's attributes.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EIO` once the device is gone.
    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)>;

    /// Attaches the queue pair to a multicast group. From then on, the queue pair receives the
    /// group's datagrams. `lid` is the group's local id, which Ethernet ports ignore. Attaching
    /// twice succeeds and changes nothing. [`destroy`](super::Destroy::destroy) detaches the queue
    /// pair.
    ///
    /// # Errors
    /// [`Cause::CallOfType`](crate::Cause::CallOfType) for a service other than UD;
    /// [`Cause::NotMulticast`](crate::Cause::NotMulticast) for an address outside the multicast
    /// ranges; `ENOMEM` beyond one of the device's limits; `EOPNOTSUPP` if the device has no
    /// multicast; any other errno the kernel returns.
    fn attach_mcast(&mut self, gid: &Gid, lid: u16) -> Result<()>;

    /// Detaches the queue pair from a multicast group that was attached with the same `gid` and
    /// `lid`.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::NotAttached`](crate::Cause::NotAttached) if the queue pair is not
    /// attached; any other errno the kernel returns.
    fn detach_mcast(&mut self, gid: &Gid, lid: u16) -> Result<()>;

    /// Sets the send rate of a queue pair in the state RTS.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has no packet pacing; `EINVAL` for a rate beyond the device's
    /// limits, or in a state other than RTS; any other errno the kernel returns.
    fn modify_rate_limit(&mut self, attr: &RateLimit) -> Result<()> {
        let _ = attr;
        Err(lacks("modify_qp_rate_limit"))
    }

    /// Sets the ECE options that the program negotiated with the peer, to apply at the next
    /// transitions to INIT and RTR.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the provider has no ECE options; `EINVAL` for options of another vendor.
    fn set_ece(&mut self, ece: &Ece) -> Result<()> {
        let _ = ece;
        Err(lacks("set_ece"))
    }

    /// Returns the ECE options: before INIT, the options that the device offers; from RTR on, the
    /// options in use.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the provider has no ECE options.
    fn query_ece(&self) -> Result<Ece> {
        Err(lacks("query_ece"))
    }

    /// Returns the device's write order for the bytes of an incoming message of operation `op`.
    /// Empty if the device guarantees no order.
    fn data_in_order(&self, op: OpKind) -> DataInOrder {
        let _ = op;
        DataInOrder::empty()
    }
}

/// Returns the error for an operation that the provider lacks. The error names no device, because a
/// queue pair does not know its device's name; the handle around the queue pair adds the name.
fn lacks(verb: &'static str) -> Error {
    Error::new(verb, "", Errno::OPNOTSUPP)
}

/// Posts work requests one by one, until one is rejected. Returns the number of accepted requests
/// and the reason for the rejection.
#[inline(always)]
fn post_each<T>(
    wrs: &[T],
    mut post_one: impl FnMut(&T) -> Result<(), PostReason>,
) -> (usize, Option<PostReason>) {
    for (accepted, wr) in wrs.iter().enumerate() {
        if let Err(reason) = post_one(wr) {
            return (accepted, Some(reason));
        }
    }
    (wrs.len(), None)
}

/// The circumstances of a call to [`SendQueue::post_fast`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPath {
    /// The request waits for [`ring`](SendQueue::ring), and the compiler knows its operation at the
    /// call. If the provider has code for each operation, inlining keeps only the code for this
    /// operation.
    Inlined,
    /// The request waits for [`ring`](SendQueue::ring), and all callers share one compiled
    /// function, as with an erased queue: a provider may move rare operations out of line, so that
    /// the function needs fewer registers.
    Shared,
    /// The method itself rings the doorbell for the request. It returns `false` while another
    /// request waits for the doorbell. A provider whose doorbell cannot fail may have a shorter
    /// path here than [`post_one`](SendQueue::post_one) followed by [`ring`](SendQueue::ring).
    Alone,
}

/// The send queue of a queue pair. Posting takes `&mut self`, so no lock is needed.
pub trait SendQueue: Any + Debug + Send + Sync {
    /// Puts one work request into the queue. The device does not read it before
    /// [`ring`](Self::ring).
    ///
    /// # Safety
    /// Same as [`post_send`](Self::post_send).
    ///
    /// # Errors
    /// Returns the reason why the queue rejects the request; the queue is unchanged.
    unsafe fn post_one(&mut self, wr: &SendWr<'_>) -> Result<(), PostReason>;

    /// Posts one common request on a short path. Returns whether the request was posted; if not,
    /// the queue is unchanged, and [`post_one`](Self::post_one) accepts the request or returns the
    /// reason for rejecting it.
    ///
    /// `path` states the caller's knowledge of the request, and whether the doorbell follows. The
    /// argument is a constant at each call and the method is inlined, so a caller pays only for its
    /// own path. A caller that falls back to `post_one` in an out-of-line function becomes a short
    /// function that keeps the request in registers.
    ///
    /// By default, this calls `post_one`, and returns `false` for a request posted
    /// [alone](FastPath::Alone).
    ///
    /// # Safety
    /// Same as [`post_send`](Self::post_send).
    #[inline(always)]
    unsafe fn post_fast(&mut self, wr: &SendWr<'_>, path: FastPath) -> bool {
        // SAFETY: the caller upholds the same contract.
        path != FastPath::Alone && unsafe { self.post_one(wr) }.is_ok()
    }

    /// Publishes all requests in the queue to the device.
    ///
    /// # Errors
    /// Returns the errno from the doorbell. The requests stay in the queue, and the next doorbell
    /// covers them.
    fn ring(&mut self) -> Result<(), Errno>;

    /// From now on, leaves to the device those faults in requests that the C providers do not
    /// check. The queue then accepts a request with such a fault, and its completion reports the
    /// fault.
    ///
    /// By default, the queue rejects every request with a fault it can detect.
    fn leave_faults_to_device(&mut self) {}

    /// Removes the last `count` work requests, except requests added before the last
    /// [`ring`](Self::ring), and returns the number removed. Earlier requests stay for the next
    /// doorbell, because the program may have forgotten a batch (`mem::forget`).
    fn rollback(&mut self, count: usize) -> usize;

    /// Posts a batch: calls [`post_one`](Self::post_one) for each request, and [`ring`](Self::ring)
    /// once.
    ///
    /// # Safety
    /// From the call until a request's completion was polled (or the queue pair was destroyed, or
    /// reset where that [ends requests](QpOps::reset_ends_requests)), the device reads the memory
    /// of every SGE, and for RDMA reads and atomics writes it. During that time, no code may free
    /// the memory or access it in a conflicting way. No `wr_id` may have its top bit set: such a
    /// `wr_id` is reserved for safe posting, which returns memory to the program when the `wr_id`
    /// is polled.
    ///
    /// With [`INLINE`](crate::types::SendFlags::INLINE), every SGE must be memory of this process,
    /// which the call reads at its address; the caller may reuse it once the call returns. The
    /// first 18 bytes of a frame of a raw packet queue pair ([`QpType::RAW_PACKET`]) must be such
    /// memory too, with or without that flag, because some devices need a copy of the frame's
    /// header.
    ///
    /// A bind or an invalidation must name a key as [`WrBatch::bind_mw`](super::WrBatch::bind_mw)
    /// and [`WrBatch::local_inv`](super::WrBatch::local_inv) require.
    ///
    /// # Errors
    /// Returns the number of accepted requests and the reason for rejecting the next request. The
    /// device owns the memory of the accepted requests.
    #[inline(always)]
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the contract for every work request of the batch.
        let (accepted, mut refused) = post_each(wrs, |wr| unsafe { self.post_one(wr) });
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

/// The receive queue of a queue pair. Posting takes `&mut self`, so no lock is needed.
pub trait RecvQueue: Any + Debug + Send + Sync {
    /// Puts one work request into the queue. The device does not read it before
    /// [`ring`](Self::ring).
    ///
    /// # Safety
    /// Same as [`post_recv`](Self::post_recv).
    ///
    /// # Errors
    /// Returns the reason why the queue rejects the request; the queue is unchanged.
    unsafe fn post_one(&mut self, wr: &RecvWr<'_>) -> Result<(), PostReason>;

    /// Publishes all requests in the queue to the device.
    fn ring(&mut self);

    /// Posts a batch: calls [`post_one`](Self::post_one) for each request, and [`ring`](Self::ring)
    /// once.
    ///
    /// # Safety
    /// From the call until a request's completion was polled (or the queue pair was destroyed, or
    /// reset where that [ends requests](QpOps::reset_ends_requests)), the device may write the
    /// memory of every SGE. Meanwhile, no code may free or access the memory. No `wr_id` may have
    /// its top bit set: such a `wr_id` is reserved for safe posting, which returns memory to the
    /// program when the `wr_id` is polled.
    ///
    /// # Errors
    /// Returns the number of accepted requests and the reason for rejecting the next request. The
    /// device owns the memory of the accepted requests.
    #[inline(always)]
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the contract for every work request of the batch.
        let (accepted, refused) = post_each(wrs, |wr| unsafe { self.post_one(wr) });
        if accepted > 0 {
            self.ring();
        }
        match refused {
            None => Ok(()),
            Some(reason) => Err(PostError { accepted, reason }),
        }
    }

    /// Changes the tag list of a shared receive queue with tag matching: puts the operations into
    /// the list's queue and publishes them. Sets the `handle` of each accepted
    /// [`TmOp::Add`](crate::types::TmOp::Add).
    ///
    /// # Safety
    /// The requirements of [`post_recv`](Self::post_recv) apply to the elements of each
    /// [`TmOp::Add`](crate::types::TmOp::Add), until the completion of the operation, or of the
    /// removal of its tag, was polled.
    ///
    /// # Errors
    /// Returns the number of accepted operations and the reason for rejecting the next operation;
    /// [`PostReason::NoTagMatching`] from a queue without tag matching.
    unsafe fn post_srq_ops(&mut self, wrs: &mut [OpsWr<'_>]) -> Result<(), PostError> {
        let _ = wrs;
        Err(PostError { accepted: 0, reason: PostReason::NoTagMatching })
    }
}
