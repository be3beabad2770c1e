//! [`Erased`]: a provider whose objects hide the provider that made them.
//!
//! Each erased object is a box around a provider's object. A private trait extends the object's
//! public trait by the operations that consume the object or take other objects of its provider;
//! accessors are inherited. An erased context is a `dyn ContextOps<Erased>`, which [`Of`]
//! implements for every provider.
//!
//! Posting costs one indirect call per batch, never one per work request or segment. Polling costs
//! one per batch of [`BATCH`] completions. `downcast` returns the provider's own type.
//!
//! # Safety
//! The unsafe code passes the promises of callers on, unchanged.
#![allow(unsafe_code)]
// Objects are returned by value so that they are not lost; destroying is no hot path.
#![allow(clippy::result_large_err)]

use core::any::Any;
use core::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::{
    AhOps, Completion, ContextOps, CqOps, Destroy, DeviceOps, DmOps, DmahOps, FlowRule, MrChange, MrInitAttr,
    MrOps, MwOps, ParentDomainAttr, PdOps, Provider, QpExtras, QpOps, QpParents, QpParts, RecvQueue,
    ReregError, SendQueue, SrqOps, SrqParents, SrqParts, TdOps, WqParents, WqParts, XrcdOps,
};
use crate::types::{
    AccessFlags, Advice, AdviseFlags, AhAttr, Av, CompCntrAttachOps, CompCntrType, CqInitAttr, CqModeration,
    CqWcFlags, DataInOrder, DmAttr, DmahAttr, Ece, FlowActionEspAttr, Gid, MrAttr, MwType, OpKind, OpsWr,
    PostError, PostReason, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpInitInfo, QpState, QpType, RateLimit,
    RecvWr, RtValues, SendWr, Sge, SrqAttr, SrqAttrMask, SrqInitAttr, Wc, WqInitAttr,
};
use crate::{Cause, Errno, Error, Result, for_each_completion_field, for_each_optional_field};

/// The number of completions that an erased queue fetches at a time.
const BATCH: usize = 16;

/// A provider whose objects hide the provider that made them.
#[derive(Debug)]
pub enum Erased {}

// SAFETY: every object is a box around a provider's object. A context of that provider made it, and
// the provider makes the same promises. By number:
// - 1 to 4, 19: the boxed queues pass each call's requests to the provider in one call, and return
//   the provider's result.
// - 5 to 8: a `Wc` in the batch is a copy of a completion of the provider's queue, whose request
//   had ended when it was copied. `next` lends each copy once and in order; a copy is overwritten
//   only by the next fetch, which needs `&mut self` and so the end of every loan. A queue with
//   copies left cannot be downcast (`ErasedCq::downcast`), so they do not reach another queue.
// - 9 to 13: `modify`, `reg_mr` and `destroy` are the provider's; keys are read from the provider's
//   region each time.
// - 14, 15: `destroy_boxed` moves the object out of its box, and on `Err` puts that same object
//   into a new box. If the provider unwinds, only the empty box is dropped here. Dropping an erased
//   object drops the provider's object and does nothing else. `downcast` compares the type before
//   it moves the object, and returns the box unopened if the type is another.
// - 16: the descriptors are the provider's.
// - 17: `Of` rejects objects of another provider's family by their type; the provider decides about
//   its own objects.
// - 18: `reg_mr` is the provider's. The box for the region that it returned is allocated without
//   unwinding: if memory is exhausted, the process ends.
// - 20, 24, 25: the boxed queues are the provider's. `modify` rejects queues of another provider by
//   their type.
unsafe impl Provider for Erased {
    type Context = dyn ContextOps<Self>;
    type Pd = ErasedPd;
    type Mr = ErasedMr;
    type Cq = ErasedCq;
    type CqHandle = ErasedCqHandle;
    type Qp = ErasedQp;
    type Sq = ErasedSendQueue;
    type Rq = ErasedRecvQueue;
    type Ah = ErasedAh;
    type Srq = ErasedSrq;
    type SrqQueue = ErasedSrqQueue;
    type Xrcd = ErasedXrcd;
    type Mw = ErasedMw;
    type Dm = ErasedDm;
    type Dmah = ErasedDmah;
    type Td = ErasedTd;
    type Wq = ErasedWq;
    type WqQueue = ErasedWqQueue;
    type RwqIndTable = ErasedRwqIndTable;
    type Flow = ErasedFlow;
    type FlowAction = ErasedFlowAction;
    type Counters = ErasedCounters;
    type CompCntr = ErasedCompCntr;
}

/// Defines an erased object: a box of a private trait, its constructor, and downcasts.
macro_rules! erased_object {
    ($(#[$doc:meta])* $vis:vis $erased:ident, $dyn:ident, $($ops:tt)+) => {
        $(#[$doc])*
        #[derive(Debug)]
        $vis struct $erased(Box<dyn $dyn>);

        impl $erased {
            /// Erases a provider's object.
            $vis fn new<T: $($ops)+>(object: T) -> Self {
                Self(Box::new(object))
            }

            /// Returns the object as its provider's own type, by reference.
            $vis fn downcast_ref<T: Any>(&self) -> Option<&T> {
                let any: &dyn Any = &*self.0;
                any.downcast_ref()
            }

            /// Returns the object as its provider's own type.
            ///
            /// # Errors
            /// The object, if it is another provider's.
            $vis fn downcast<T: Any>(self) -> Result<T, Self> {
                if self.downcast_ref::<T>().is_none() {
                    return Err(self);
                }
                let any: Box<dyn Any> = self.0;
                match any.downcast::<T>() {
                    Ok(object) => Ok(*object),
                    Err(_) => unreachable!("the type was just checked"),
                }
            }
        }
    };
}

/// Implements [`Destroy`] for an erased object through its box, by a private trait that every
/// provider's object has.
macro_rules! destroy_through_box {
    ($erased:ident, $dyn:ident: $ops:ident $({ $($more:tt)* })?) => {
        trait $dyn: $ops {
            fn destroy_boxed(self: Box<Self>) -> Result<(), (Box<dyn $dyn>, Error)>;
        }

        impl<T: $ops + Destroy> $dyn for T {
            fn destroy_boxed(self: Box<Self>) -> Result<(), (Box<dyn $dyn>, Error)> {
                self.destroy().map_err(|(object, error)| (Box::new(object) as Box<dyn $dyn>, error))
            }
        }

        impl Destroy for $erased {
            fn destroy(self) -> Result<(), (Self, Error)> {
                self.0.destroy_boxed().map_err(|(object, error)| (Self(object), error))
            }
        }
    };
}

erased_object! {
    /// An erased protection domain.
    pub ErasedPd, DynPd, PdOps + Destroy
}
destroy_through_box!(ErasedPd, DynPd: PdOps);

impl PdOps for ErasedPd {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
}

erased_object! {
    /// An erased memory region.
    pub ErasedMr, DynMr, MrOps + Destroy
}
destroy_through_box!(ErasedMr, DynMr: MrOps);

impl MrOps for ErasedMr {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
    fn lkey(&self) -> u32 {
        self.0.lkey()
    }
    fn rkey(&self) -> u32 {
        self.0.rkey()
    }
}

erased_object! {
    /// An erased address handle.
    pub ErasedAh, DynAh, AhOps + Destroy
}
destroy_through_box!(ErasedAh, DynAh: AhOps);

impl AhOps for ErasedAh {
    fn av(&self) -> &Av {
        self.0.av()
    }
}

/// An erased completion queue, with the completions of a batch that were fetched but not yet lent.
#[derive(Debug)]
pub struct ErasedCq {
    inner: ErasedCqBox,
    batch: Box<[Wc; BATCH]>,
    /// The optional fields of the batch, for a queue that was created with some.
    optional: Option<Box<[OptionalFields; BATCH]>>,
    next: usize,
    len: usize,
}

erased_object! {
    /// The box of an erased completion queue.
    ErasedCqBox, DynCq, CqOps + Destroy
}

trait DynCq: CqOps {
    /// As [`CqOps::poll`], with the optional fields of each completion.
    fn poll_optional(&mut self, wcs: &mut [Wc], optional: &mut [OptionalFields]) -> usize;
    fn destroy_boxed(self: Box<Self>) -> Result<(), (Box<dyn DynCq>, Error)>;
}

impl<T: CqOps + Destroy> DynCq for T {
    fn poll_optional(&mut self, wcs: &mut [Wc], optional: &mut [OptionalFields]) -> usize {
        let mut count = 0;
        for (wc, fields) in wcs.iter_mut().zip(optional) {
            let Some(completion) = self.next() else { break };
            completion.write_to(wc);
            *fields = OptionalFields::of(&completion);
            count += 1;
        }
        self.finish();
        count
    }
    fn destroy_boxed(self: Box<Self>) -> Result<(), (Box<dyn DynCq>, Error)> {
        self.destroy().map_err(|(object, error)| (Box::new(object) as Box<dyn DynCq>, error))
    }
}

impl Destroy for ErasedCqBox {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.0.destroy_boxed().map_err(|(object, error)| (Self(object), error))
    }
}

/// Defines the optional fields by value, and the erased completion that has them.
macro_rules! optional_fields {
    ({ $($(#[$doc:meta])* $field:ident: $type:ty;)* } $($(#[$optional_doc:meta])* $optional:ident: $optional_type:ty;)*) => {
        /// The optional fields of a completion, copied.
        #[derive(Clone, Copy, Debug, Default)]
        struct OptionalFields {
            $($optional: Option<$optional_type>,)*
        }

        impl OptionalFields {
            fn of(completion: &impl Completion) -> Self {
                Self { $($optional: completion.$optional(),)* }
            }
        }

        impl Completion for ErasedCompletion<'_> {
            $(#[inline(always)] fn $field(&self) -> $type { self.wc.$field })*
            $(
                #[inline(always)]
                fn $optional(&self) -> Option<$optional_type> {
                    self.optional?.$optional
                }
            )*

            #[inline(always)]
            fn write_to(&self, wc: &mut Wc) {
                *wc = *self.wc;
            }
        }
    };
}

macro_rules! with_optional_fields {
    ($($fields:tt)*) => { for_each_optional_field! { optional_fields { $($fields)* } } };
}

for_each_completion_field!(with_optional_fields);

/// A completion that an erased completion queue has fetched, lent.
#[derive(Clone, Copy, Debug)]
pub struct ErasedCompletion<'a> {
    wc: &'a Wc,
    optional: Option<&'a OptionalFields>,
}

/// The name of an erased completion queue, usable while it is polled.
#[derive(Clone, Debug)]
pub struct ErasedCqHandle(Arc<dyn AnyHandle>);

trait AnyHandle: Any + Debug + Send + Sync {}

impl<T: Any + Debug + Send + Sync> AnyHandle for T {}

impl ErasedCqHandle {
    /// Erases a provider's handle.
    pub fn new<T: Any + Debug + Send + Sync>(handle: T) -> Self {
        Self(Arc::new(handle))
    }

    /// Returns the handle as its provider's own type, by reference.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        let any: &dyn Any = &*self.0;
        any.downcast_ref()
    }
}

impl ErasedCq {
    /// Erases a provider's completion queue.
    pub fn new<T: CqOps + Destroy>(cq: T) -> Self {
        let has_optional = !CqWcFlags::STANDARD.contains(cq.wc_flags());
        let optional = has_optional.then(|| Box::new([OptionalFields::default(); BATCH]));
        let batch = Box::new([Wc::default(); BATCH]);
        Self { inner: ErasedCqBox::new(cq), batch, optional, next: 0, len: 0 }
    }

    /// Returns the queue as its provider's own type, by reference.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        self.inner.downcast_ref()
    }

    /// Returns the queue as its provider's own type.
    ///
    /// # Errors
    /// The queue, if it is another provider's, or if it holds fetched completions that no poll has
    /// returned. In the second case, poll until the queue is empty.
    // The queue is returned by value so that it is not lost.
    #[allow(clippy::result_large_err)]
    pub fn downcast<T: Any>(mut self) -> Result<T, Self> {
        if self.next < self.len {
            return Err(self);
        }
        match self.inner.downcast() {
            Ok(cq) => Ok(cq),
            Err(inner) => {
                self.inner = inner;
                Err(self)
            }
        }
    }
}

impl Destroy for ErasedCq {
    fn destroy(mut self) -> Result<(), (Self, Error)> {
        match self.inner.destroy() {
            Ok(()) => Ok(()),
            Err((inner, error)) => {
                self.inner = inner;
                Err((self, error))
            }
        }
    }
}

impl CqOps for ErasedCq {
    type Completion<'a> = ErasedCompletion<'a>;

    fn handle(&self) -> u32 {
        self.inner.0.handle()
    }

    fn cqe(&self) -> u32 {
        self.inner.0.cqe()
    }

    #[inline]
    fn next(&mut self) -> Option<ErasedCompletion<'_>> {
        if self.next == self.len {
            // Both first, so that a provider that unwinds leaves no completion to be lent again.
            (self.next, self.len) = (0, 0);
            self.len = match &mut self.optional {
                None => self.inner.0.poll(&mut self.batch[..]),
                Some(optional) => self.inner.0.poll_optional(&mut self.batch[..], &mut optional[..]),
            };
            if self.len == 0 {
                return None;
            }
        }
        let wc = self.batch.get(self.next)?;
        let optional = self.optional.as_ref().and_then(|optional| optional.get(self.next));
        self.next += 1;
        Some(ErasedCompletion { wc, optional })
    }

    /// Nothing remains to be done: fetching the batch returned the slots to the device.
    #[inline]
    fn finish(&mut self) {}

    #[inline]
    fn poll(&mut self, wcs: &mut [Wc]) -> usize {
        if self.next == self.len {
            return self.inner.0.poll(wcs);
        }
        let fetched = self.batch.get(self.next..self.len).unwrap_or_default();
        let count = fetched.len().min(wcs.len());
        wcs[..count].copy_from_slice(&fetched[..count]);
        self.next += count;
        count + self.inner.0.poll(&mut wcs[count..])
    }

    fn req_notify(&mut self, solicited_only: bool) -> Result<()> {
        self.inner.0.req_notify(solicited_only)
    }

    fn wc_flags(&self) -> CqWcFlags {
        self.inner.0.wc_flags()
    }

    /// Completions that were fetched are no longer in the provider's queue and stay fetched.
    fn resize(&mut self, cqe: u32) -> Result<()> {
        self.inner.0.resize(cqe)
    }

    fn modify(&mut self, moderation: CqModeration) -> Result<()> {
        self.inner.0.modify(moderation)
    }
}

erased_object! {
    /// An erased queue pair.
    pub ErasedQp, DynQp, QpOps + Destroy
}

trait DynQp: QpOps {
    /// As [`QpOps::modify`]; `None` for queues of another provider.
    fn modify_erased(
        &mut self,
        sq: &mut ErasedSendQueue,
        rq: &mut ErasedRecvQueue,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Option<Result<()>>;
    fn destroy_boxed(self: Box<Self>) -> Result<(), (Box<dyn DynQp>, Error)>;
}

impl<T: QpOps + Destroy> DynQp for T {
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
    fn destroy_boxed(self: Box<Self>) -> Result<(), (Box<dyn DynQp>, Error)> {
        self.destroy().map_err(|(object, error)| (Box::new(object) as Box<dyn DynQp>, error))
    }
}

impl Destroy for ErasedQp {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.0.destroy_boxed().map_err(|(object, error)| (Self(object), error))
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
        self.0.modify_erased(sq, rq, attr, mask).unwrap_or_else(|| {
            let foreign = Cause::Foreign { what: "send or receive queue" };
            Err(Error::new("modify_qp", "", Errno::INVAL).because(foreign))
        })
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
    pub ErasedSendQueue, SendQueue, SendQueue
}

impl SendQueue for ErasedSendQueue {
    #[inline]
    unsafe fn post_one(&mut self, wr: &SendWr<'_>) -> Result<(), PostReason> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.post_one(wr) }
    }
    #[inline]
    fn ring(&mut self) -> Result<(), Errno> {
        self.0.ring()
    }
    fn rollback(&mut self) -> usize {
        self.0.rollback()
    }
    #[inline]
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.post_send(wrs) }
    }
}

erased_object! {
    /// An erased receive queue.
    pub ErasedRecvQueue, RecvQueue, RecvQueue
}

erased_object! {
    /// An erased queue of a shared receive queue.
    pub ErasedSrqQueue, RecvQueue, RecvQueue
}

/// Implements [`RecvQueue`] for an erased queue of receives.
macro_rules! recv_queue_through_box {
    ($($erased:ident),*) => {$(
        impl RecvQueue for $erased {
            #[inline]
            unsafe fn post_one(&mut self, wr: &RecvWr<'_>) -> Result<(), PostReason> {
                // SAFETY: the caller's promise is the same.
                unsafe { self.0.post_one(wr) }
            }
            #[inline]
            fn ring(&mut self) {
                self.0.ring();
            }
            #[inline]
            unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
                // SAFETY: the caller's promise is the same.
                unsafe { self.0.post_recv(wrs) }
            }
            unsafe fn post_srq_ops(&mut self, wrs: &[OpsWr<'_>]) -> Result<(), PostError> {
                // SAFETY: the caller's promise is the same.
                unsafe { self.0.post_srq_ops(wrs) }
            }
        }
    )*};
}

recv_queue_through_box!(ErasedRecvQueue, ErasedSrqQueue);

erased_object! {
    /// An erased shared receive queue.
    pub ErasedSrq, DynSrq, SrqOps + Destroy
}

trait DynSrq: SrqOps {
    /// As [`SrqOps::modify`]; `None` for a queue of another provider.
    fn modify_erased(
        &self,
        queue: &mut ErasedSrqQueue,
        attr: &SrqAttr,
        mask: SrqAttrMask,
    ) -> Option<Result<()>>;
    fn destroy_boxed(self: Box<Self>) -> Result<(), (Box<dyn DynSrq>, Error)>;
}

impl<T: SrqOps + Destroy> DynSrq for T {
    fn modify_erased(
        &self,
        queue: &mut ErasedSrqQueue,
        attr: &SrqAttr,
        mask: SrqAttrMask,
    ) -> Option<Result<()>> {
        let queue: &mut dyn Any = &mut *queue.0;
        Some(self.modify(queue.downcast_mut::<T::Queue>()?, attr, mask))
    }
    fn destroy_boxed(self: Box<Self>) -> Result<(), (Box<dyn DynSrq>, Error)> {
        self.destroy().map_err(|(object, error)| (Box::new(object) as Box<dyn DynSrq>, error))
    }
}

impl Destroy for ErasedSrq {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.0.destroy_boxed().map_err(|(object, error)| (Self(object), error))
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
        self.0.modify_erased(queue, attr, mask).unwrap_or_else(|| {
            let foreign = Cause::Foreign { what: "shared receive queue" };
            Err(Error::new("modify_srq", "", Errno::INVAL).because(foreign))
        })
    }
    fn query(&self) -> Result<SrqAttr> {
        self.0.query()
    }
}

erased_object! {
    /// An erased XRC domain.
    pub ErasedXrcd, DynXrcd, XrcdOps + Destroy
}
destroy_through_box!(ErasedXrcd, DynXrcd: XrcdOps);

impl XrcdOps for ErasedXrcd {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
}

erased_object! {
    /// An erased memory window.
    pub ErasedMw, DynMw, MwOps + Destroy
}
destroy_through_box!(ErasedMw, DynMw: MwOps);

impl MwOps for ErasedMw {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
    fn rkey(&self) -> u32 {
        self.0.rkey()
    }
    fn mw_type(&self) -> MwType {
        self.0.mw_type()
    }
    fn revocation_ends_access(&self) -> bool {
        self.0.revocation_ends_access()
    }
}

erased_object! {
    /// Erased device memory.
    pub ErasedDm, DynDm, DmOps + Destroy
}
destroy_through_box!(ErasedDm, DynDm: DmOps);

impl DmOps for ErasedDm {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
    fn length(&self) -> u64 {
        self.0.length()
    }
    fn copy_to(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.copy_to(offset, bytes)
    }
    fn copy_from(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.0.copy_from(offset, bytes)
    }
    fn export_dmabuf_fd(&self) -> Result<OwnedFd> {
        self.0.export_dmabuf_fd()
    }
}

erased_object! {
    /// An erased DMA handle.
    pub ErasedDmah, DynDmah, DmahOps + Destroy
}
destroy_through_box!(ErasedDmah, DynDmah: DmahOps);

impl DmahOps for ErasedDmah {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
}

erased_object! {
    /// An erased thread domain.
    pub ErasedTd, DynTd, TdOps + Destroy
}
destroy_through_box!(ErasedTd, DynTd: TdOps);

impl TdOps for ErasedTd {}

mod steering;

pub use steering::{
    ErasedCompCntr, ErasedCounters, ErasedFlow, ErasedFlowAction, ErasedRwqIndTable, ErasedWq, ErasedWqQueue,
};

/// Erases a provider's context.
pub fn erase<P: Provider<Context: Sized>>(context: P::Context) -> Box<dyn ContextOps<Erased>> {
    Box::new(Of::<P>(context))
}

/// A provider's context, seen as one of [`Erased`].
#[derive(Debug)]
struct Of<P: Provider<Context: Sized>>(P::Context);

impl dyn ContextOps<Erased> {
    /// Returns the context as the provider's own type, by reference.
    pub fn downcast_ref<P: Provider<Context: Sized>>(&self) -> Option<&P::Context> {
        let any: &dyn Any = self;
        any.downcast_ref::<Of<P>>().map(|of| &of.0)
    }
}

impl<P: Provider<Context: Sized>> Of<P> {
    fn foreign(&self, verb: &'static str, what: &'static str) -> Error {
        let device = self.0.device().device_name();
        Error::new(verb, device, Errno::INVAL).because(Cause::Foreign { what })
    }

    fn pd<'a>(&self, verb: &'static str, pd: &'a ErasedPd) -> Result<&'a P::Pd> {
        pd.downcast_ref().ok_or_else(|| self.foreign(verb, "protection domain"))
    }

    fn cq<'a>(&self, verb: &'static str, cq: &'a ErasedCqHandle) -> Result<&'a P::CqHandle> {
        cq.downcast_ref().ok_or_else(|| self.foreign(verb, "completion queue"))
    }

    fn qp<'a>(&self, verb: &'static str, qp: &'a ErasedQp) -> Result<&'a P::Qp> {
        qp.downcast_ref().ok_or_else(|| self.foreign(verb, "queue pair"))
    }

    fn qp_parents<'a>(
        &self,
        verb: &'static str,
        parents: &QpParents<'a, Erased>,
    ) -> Result<QpParents<'a, P>> {
        let QpParents { pd, send_cq, recv_cq, srq, xrcd } = *parents;
        Ok(QpParents {
            pd: pd.map(|pd| self.pd(verb, pd)).transpose()?,
            send_cq: send_cq.map(|cq| self.cq(verb, cq)).transpose()?,
            recv_cq: recv_cq.map(|cq| self.cq(verb, cq)).transpose()?,
            srq: srq.map(|srq| self.srq(verb, srq)).transpose()?,
            xrcd: xrcd.map(|xrcd| self.xrcd(verb, xrcd)).transpose()?,
        })
    }

    fn srq<'a>(&self, verb: &'static str, srq: &'a ErasedSrq) -> Result<&'a P::Srq> {
        srq.downcast_ref().ok_or_else(|| self.foreign(verb, "shared receive queue"))
    }

    fn dmah<'a>(&self, verb: &'static str, dmah: &'a ErasedDmah) -> Result<&'a P::Dmah> {
        dmah.downcast_ref().ok_or_else(|| self.foreign(verb, "DMA handle"))
    }

    fn td<'a>(&self, verb: &'static str, td: &'a ErasedTd) -> Result<&'a P::Td> {
        td.downcast_ref().ok_or_else(|| self.foreign(verb, "thread domain"))
    }

    fn xrcd<'a>(&self, verb: &'static str, xrcd: &'a ErasedXrcd) -> Result<&'a P::Xrcd> {
        xrcd.downcast_ref().ok_or_else(|| self.foreign(verb, "XRC domain"))
    }
}

/// Erases a queue pair and its queues.
fn erase_qp<P: Provider>(parts: QpParts<P>) -> QpParts<Erased> {
    let QpParts { qp, sq, rq } = parts;
    QpParts { qp: ErasedQp::new(qp), sq: ErasedSendQueue::new(sq), rq: ErasedRecvQueue::new(rq) }
}

impl<P: Provider<Context: Sized>> ContextOps<Erased> for Of<P> {
    fn provider_name(&self) -> &'static str {
        self.0.provider_name()
    }
    fn device(&self) -> &dyn DeviceOps {
        self.0.device()
    }
    fn alloc_pd(&self) -> Result<ErasedPd> {
        self.0.alloc_pd().map(ErasedPd::new)
    }
    unsafe fn reg_mr(
        &self,
        pd: &ErasedPd,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<ErasedMr> {
        let pd = self.pd("reg_mr", pd)?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.reg_mr(pd, addr, length, iova, access) }.map(ErasedMr::new)
    }
    unsafe fn reg_mr_ex(&self, pd: &ErasedPd, attr: &MrInitAttr<'_, Erased>) -> Result<ErasedMr> {
        const VERB: &str = "reg_mr";
        let MrInitAttr { memory, length, iova, access, dmah } = *attr;
        let dmah = dmah.map(|dmah| self.dmah(VERB, dmah)).transpose()?;
        let attr = MrInitAttr { memory, length, iova, access, dmah };
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.reg_mr_ex(self.pd(VERB, pd)?, &attr) }.map(ErasedMr::new)
    }
    unsafe fn reg_dmabuf_mr(
        &self,
        pd: &ErasedPd,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<ErasedMr> {
        let pd = self.pd("reg_dmabuf_mr", pd)?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.reg_dmabuf_mr(pd, fd, offset, length, iova, access) }.map(ErasedMr::new)
    }
    unsafe fn rereg_mr(&self, mr: &mut ErasedMr, change: &MrChange<'_, Erased>) -> Result<(), ReregError> {
        const VERB: &str = "rereg_mr";
        let MrChange { memory, pd, access } = *change;
        let pd = pd.map(|pd| self.pd(VERB, pd)).transpose().map_err(ReregError::unchanged)?;
        let any: &mut dyn Any = &mut *mr.0;
        let Some(mr) = any.downcast_mut::<P::Mr>() else {
            return Err(ReregError::unchanged(self.foreign(VERB, "memory region")));
        };
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.rereg_mr(mr, &MrChange { memory, pd, access }) }
    }
    fn alloc_null_mr(&self, pd: &ErasedPd) -> Result<ErasedMr> {
        self.0.alloc_null_mr(self.pd("alloc_null_mr", pd)?).map(ErasedMr::new)
    }
    fn advise_mr(&self, pd: &ErasedPd, advice: Advice, flags: AdviseFlags, sges: &[Sge]) -> Result<()> {
        self.0.advise_mr(self.pd("advise_mr", pd)?, advice, flags, sges)
    }
    fn pins_memory(&self) -> bool {
        self.0.pins_memory()
    }
    fn alloc_dm(&self, attr: &DmAttr) -> Result<ErasedDm> {
        self.0.alloc_dm(attr).map(ErasedDm::new)
    }
    fn reg_dm_mr(
        &self,
        pd: &ErasedPd,
        dm: &ErasedDm,
        offset: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<ErasedMr> {
        const VERB: &str = "reg_dm_mr";
        let dm = dm.downcast_ref().ok_or_else(|| self.foreign(VERB, "device memory"))?;
        self.0.reg_dm_mr(self.pd(VERB, pd)?, dm, offset, length, access).map(ErasedMr::new)
    }
    fn alloc_dmah(&self, attr: &DmahAttr) -> Result<ErasedDmah> {
        self.0.alloc_dmah(attr).map(ErasedDmah::new)
    }
    fn alloc_td(&self) -> Result<ErasedTd> {
        self.0.alloc_td().map(ErasedTd::new)
    }
    fn alloc_parent_domain(&self, attr: &ParentDomainAttr<'_, Erased>) -> Result<ErasedPd> {
        const VERB: &str = "alloc_parent_domain";
        let ParentDomainAttr { pd, td, allocator } = *attr;
        let td = td.map(|td| self.td(VERB, td)).transpose()?;
        let attr = ParentDomainAttr { pd: self.pd(VERB, pd)?, td, allocator };
        self.0.alloc_parent_domain(&attr).map(ErasedPd::new)
    }
    unsafe fn export_device(&self) -> Result<OwnedFd> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.export_device() }
    }
    fn import_pd(&self, handle: u32) -> Result<ErasedPd> {
        self.0.import_pd(handle).map(ErasedPd::new)
    }
    fn import_mr(&self, pd: &ErasedPd, handle: u32) -> Result<(ErasedMr, MrAttr)> {
        let (mr, attr) = self.0.import_mr(self.pd("import_mr", pd)?, handle)?;
        Ok((ErasedMr::new(mr), attr))
    }
    fn import_dm(&self, handle: u32) -> Result<ErasedDm> {
        self.0.import_dm(handle).map(ErasedDm::new)
    }
    fn create_cq(&self, attr: &CqInitAttr<'_>) -> Result<(ErasedCq, ErasedCqHandle)> {
        let (cq, handle) = self.0.create_cq(attr)?;
        Ok((ErasedCq::new(cq), ErasedCqHandle::new(handle)))
    }
    fn create_qp(&self, parents: &QpParents<'_, Erased>, attr: &QpInitAttr) -> Result<QpParts<Erased>> {
        let parents = self.qp_parents("create_qp", parents)?;
        self.0.create_qp(&parents, attr).map(erase_qp)
    }
    fn create_qp_ex(
        &self,
        parents: &QpParents<'_, Erased>,
        attr: &QpInitAttr,
        extras: &QpExtras<'_, Erased>,
    ) -> Result<QpParts<Erased>> {
        const VERB: &str = "create_qp_ex";
        let parents = self.qp_parents(VERB, parents)?;
        let rss = match extras.rss {
            None => None,
            Some((table, hash)) => {
                let foreign = || self.foreign(VERB, "table of work queues");
                Some((table.downcast_ref().ok_or_else(foreign)?, hash))
            }
        };
        let extras = QpExtras { attr: extras.attr, rss };
        self.0.create_qp_ex(&parents, attr, &extras).map(erase_qp)
    }
    fn open_qp(&self, xrcd: &ErasedXrcd, qp_num: u32, user_handle: u64) -> Result<QpParts<Erased>> {
        let QpParts { qp, sq, rq } = self.0.open_qp(self.xrcd("open_qp", xrcd)?, qp_num, user_handle)?;
        Ok(QpParts { qp: ErasedQp::new(qp), sq: ErasedSendQueue::new(sq), rq: ErasedRecvQueue::new(rq) })
    }
    fn create_ah(&self, pd: &ErasedPd, attr: &AhAttr) -> Result<ErasedAh> {
        let pd = self.pd("create_ah", pd)?;
        self.0.create_ah(pd, attr).map(ErasedAh::new)
    }
    fn query_rt_values(&self) -> Result<RtValues> {
        self.0.query_rt_values()
    }
    fn create_srq(&self, parents: &SrqParents<'_, Erased>, attr: &SrqInitAttr) -> Result<SrqParts<Erased>> {
        const VERB: &str = "create_srq";
        let SrqParents { pd, xrcd, cq } = *parents;
        let parents = SrqParents {
            pd: self.pd(VERB, pd)?,
            xrcd: xrcd.map(|xrcd| self.xrcd(VERB, xrcd)).transpose()?,
            cq: cq.map(|cq| self.cq(VERB, cq)).transpose()?,
        };
        let SrqParts { srq, queue } = self.0.create_srq(&parents, attr)?;
        Ok(SrqParts { srq: ErasedSrq::new(srq), queue: ErasedSrqQueue::new(queue) })
    }
    fn open_xrcd(&self, file: Option<BorrowedFd<'_>>, oflags: i32) -> Result<ErasedXrcd> {
        self.0.open_xrcd(file, oflags).map(ErasedXrcd::new)
    }
    fn alloc_mw(&self, pd: &ErasedPd, mw_type: MwType) -> Result<ErasedMw> {
        self.0.alloc_mw(self.pd("alloc_mw", pd)?, mw_type).map(ErasedMw::new)
    }
    fn create_wq(&self, parents: &WqParents<'_, Erased>, attr: &WqInitAttr) -> Result<WqParts<Erased>> {
        const VERB: &str = "create_wq";
        let parents = WqParents { pd: self.pd(VERB, parents.pd)?, cq: self.cq(VERB, parents.cq)? };
        let WqParts { wq, queue } = self.0.create_wq(&parents, attr)?;
        Ok(WqParts { wq: ErasedWq::new(wq), queue: ErasedWqQueue::new(queue) })
    }
    fn create_rwq_ind_table(&self, wqs: &[&ErasedWq]) -> Result<ErasedRwqIndTable> {
        let foreign = || self.foreign("create_rwq_ind_table", "work queue");
        let wqs: Result<Vec<&P::Wq>> = wqs.iter().map(|wq| wq.downcast_ref().ok_or_else(foreign)).collect();
        self.0.create_rwq_ind_table(&wqs?).map(ErasedRwqIndTable::new)
    }
    fn create_flow(&self, qp: &ErasedQp, rule: FlowRule<'_, Erased>) -> Result<ErasedFlow> {
        const VERB: &str = "create_flow";
        let qp = self.qp(VERB, qp)?;
        let rule = rule.try_map(
            |action| action.downcast_ref().ok_or_else(|| self.foreign(VERB, "flow action")),
            |counters| counters.downcast_ref().ok_or_else(|| self.foreign(VERB, "counters object")),
        )?;
        self.0.create_flow(qp, rule).map(ErasedFlow::new)
    }
    fn create_flow_action_esp(&self, attr: &FlowActionEspAttr) -> Result<ErasedFlowAction> {
        self.0.create_flow_action_esp(attr).map(ErasedFlowAction::new)
    }
    fn create_counters(&self) -> Result<ErasedCounters> {
        self.0.create_counters().map(ErasedCounters::new)
    }
    fn create_comp_cntr(&self, cntr_type: CompCntrType) -> Result<ErasedCompCntr> {
        self.0.create_comp_cntr(cntr_type).map(ErasedCompCntr::new)
    }
    fn qp_attach_comp_cntr(
        &self,
        qp: &ErasedQp,
        cntr: &ErasedCompCntr,
        ops: CompCntrAttachOps,
    ) -> Result<()> {
        const VERB: &str = "qp_attach_comp_cntr";
        let qp = self.qp(VERB, qp)?;
        let cntr = cntr.downcast_ref().ok_or_else(|| self.foreign(VERB, "completion counter"))?;
        self.0.qp_attach_comp_cntr(qp, cntr, ops)
    }
}
