//! [`Erased`]: the provider that hides which provider it is.
//!
//! Each erased object is a box around a private `Dyn*` trait, whose only implementation is "any provider's object".
//! Posting costs one indirect call a batch, never one a work request or a segment; polling one a batch of
//! [`BATCH`] completions.
//!
//! # Safety
//! The unsafe code passes callers' promises on, unchanged.
//!
//! An erased object can be made static again with `downcast`, which gives the provider's own type back.
#![allow(unsafe_code)]

use core::any::Any;
use core::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::{AhOps, ContextOps, CqOps, Destroy, MrOps, PdOps, Provider, QpOps, RecvQueue, SendQueue};
use crate::types::{
    AccessFlags, AhAttr, Av, CqInitAttr, DeviceAttr, DeviceAttrEx, GidEntry, PortAttr, PostError, QpAttr,
    QpAttrMask, QpCap, QpInitAttr, QpInitInfo, QpState, QpType, RecvWr, SendWr, Wc,
};
use crate::{Cause, Errno, Error, Result};

/// How many completions an erased queue fetches at a time.
const BATCH: usize = 16;

/// The provider that hides which provider it is.
#[derive(Debug)]
pub enum Erased {}

// SAFETY: every object is a provider's own in a box, made by a context of a provider that promises the same. By number:
// - 1 to 4: `DynQp` hands each call's requests on in one call, and returns what the provider returned; `halves` lends the
//   provider's own halves.
// - 5 to 8: a `Wc` in the batch is a copy of what the provider's queue lent, whose request had ended then. `next` lends each
//   copy once and in order; a copy is overwritten only by the next fetch, which needs `&mut self` and so the end of every
//   loan. A queue with copies left is not taken apart (`ErasedCq::downcast`), so they do not reach another queue.
// - 9 to 13: `modify`, `reg_mr` and `destroy` are the provider's; keys are read from the provider's region each time.
// - 14, 15: `destroy_boxed` moves the object out of its box, and on `Err` puts that same object into a new one. If the
//   provider unwinds, the empty box is all that is dropped here. Dropping an erased object drops the provider's, no more.
//   `downcast` looks at the type before it moves, and returns the box unopened for another.
// - 16: the descriptors are the provider's.
// - 17: `Of` refuses objects of another provider's family by their type; the provider decides about its own.
// - 18: `reg_mr` is the provider's. A region that it returned is put into a box, which cannot fail but by ending the process.
unsafe impl Provider for Erased {
    type Context = ErasedContext;
    type Pd = ErasedPd;
    type Mr = ErasedMr;
    type Cq = ErasedCq;
    type Qp = ErasedQp;
    type Ah = ErasedAh;
}

/// Gives a boxed object back as what it is, or the box.
macro_rules! downcast {
    ($vis:vis $erased:ident) => {
        impl $erased {
            /// The object as its provider's own type, by reference.
            $vis fn downcast_ref<T: Any>(&self) -> Option<&T> {
                let any: &dyn Any = &*self.0;
                any.downcast_ref()
            }

            /// The object as its provider's own type.
            ///
            /// # Errors
            /// The object, when it is of another provider.
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

/// An erased object that is destroyed through its box.
macro_rules! erased_object {
    ($(#[$doc:meta])* $vis:vis $erased:ident, $dyn:ident, $ops:ident $(, where $($bound:tt)+)?) => {
        $(#[$doc])*
        #[derive(Debug)]
        $vis struct $erased(Box<dyn $dyn>);

        impl $erased {
            /// Erases a provider's object.
            $vis fn new<T: $ops>(object: T) -> Self $(where $($bound)+)? {
                Self(Box::new(object))
            }
        }

        downcast!($vis $erased);

        impl Destroy for $erased {
            fn destroy(self) -> Result<(), (Self, Error)> {
                self.0.destroy_boxed().map_err(|(object, error)| (Self(object), error))
            }
        }
    };
}

/// The body of `destroy_boxed`, for any provider's object.
macro_rules! destroy_boxed {
    ($dyn:ident) => {
        fn destroy_boxed(self: Box<Self>) -> Result<(), (Box<dyn $dyn>, Error)> {
            self.destroy().map_err(|(object, error)| (Box::new(object) as Box<dyn $dyn>, error))
        }
    };
}

erased_object! {
    /// An erased protection domain.
    pub ErasedPd, DynPd, PdOps
}

trait DynPd: Any + Debug + Send + Sync {
    fn handle(&self) -> u32;
    fn destroy_boxed(self: Box<Self>) -> Result<(), (Box<dyn DynPd>, Error)>;
}

impl<T: PdOps> DynPd for T {
    fn handle(&self) -> u32 {
        PdOps::handle(self)
    }
    destroy_boxed!(DynPd);
}

impl PdOps for ErasedPd {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
}

erased_object! {
    /// An erased memory region.
    pub ErasedMr, DynMr, MrOps
}

trait DynMr: Any + Debug + Send + Sync {
    fn handle(&self) -> u32;
    fn lkey(&self) -> u32;
    fn rkey(&self) -> u32;
    fn destroy_boxed(self: Box<Self>) -> Result<(), (Box<dyn DynMr>, Error)>;
}

impl<T: MrOps> DynMr for T {
    fn handle(&self) -> u32 {
        MrOps::handle(self)
    }
    fn lkey(&self) -> u32 {
        MrOps::lkey(self)
    }
    fn rkey(&self) -> u32 {
        MrOps::rkey(self)
    }
    destroy_boxed!(DynMr);
}

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
    pub ErasedAh, DynAh, AhOps
}

trait DynAh: Any + Debug + Send + Sync {
    fn av(&self) -> &Av;
    fn destroy_boxed(self: Box<Self>) -> Result<(), (Box<dyn DynAh>, Error)>;
}

impl<T: AhOps> DynAh for T {
    fn av(&self) -> &Av {
        AhOps::av(self)
    }
    destroy_boxed!(DynAh);
}

impl AhOps for ErasedAh {
    fn av(&self) -> &Av {
        self.0.av()
    }
}

/// An erased completion queue, with the completions of a batch that were fetched and not lent yet.
#[derive(Debug)]
pub struct ErasedCq {
    inner: ErasedCqBox,
    batch: Box<[Wc; BATCH]>,
    next: usize,
    len: usize,
}

erased_object! {
    /// The box of an erased completion queue.
    ErasedCqBox, DynCq, CqOps
}

trait DynCq: Any + Debug + Send {
    fn handle(&self) -> u32;
    fn cqe(&self) -> u32;
    fn poll(&mut self, wcs: &mut [Wc]) -> usize;
    fn req_notify(&mut self, solicited_only: bool) -> Result<()>;
    fn destroy_boxed(self: Box<Self>) -> Result<(), (Box<dyn DynCq>, Error)>;
}

impl<T: CqOps> DynCq for T {
    fn handle(&self) -> u32 {
        CqOps::handle(self)
    }
    fn cqe(&self) -> u32 {
        CqOps::cqe(self)
    }
    fn poll(&mut self, wcs: &mut [Wc]) -> usize {
        CqOps::poll(self, wcs)
    }
    fn req_notify(&mut self, solicited_only: bool) -> Result<()> {
        CqOps::req_notify(self, solicited_only)
    }
    destroy_boxed!(DynCq);
}

impl ErasedCq {
    /// Erases a provider's completion queue.
    pub fn new<T: CqOps>(cq: T) -> Self {
        Self { inner: ErasedCqBox::new(cq), batch: Box::new([Wc::default(); BATCH]), next: 0, len: 0 }
    }

    /// The queue as its provider's own type, by reference.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        self.inner.downcast_ref()
    }

    /// The queue as its provider's own type.
    ///
    /// # Errors
    /// The queue, when it is of another provider or when completions were fetched that nobody took yet: poll it empty.
    // The queue comes back by value so that nothing is lost.
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
    type Completion<'a> = &'a Wc;

    fn handle(&self) -> u32 {
        self.inner.0.handle()
    }

    fn cqe(&self) -> u32 {
        self.inner.0.cqe()
    }

    #[inline]
    fn next(&mut self) -> Option<&Wc> {
        if self.next == self.len {
            self.next = 0;
            self.len = self.inner.0.poll(&mut self.batch[..]);
            if self.len == 0 {
                return None;
            }
        }
        let completion = self.batch.get(self.next)?;
        self.next += 1;
        Some(completion)
    }

    /// The slots went back when the batch was fetched.
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
}

erased_object! {
    /// An erased queue pair.
    pub ErasedQp, DynQp, QpOps, where T::Sq: Sized + 'static, T::Rq: Sized + 'static
}

trait DynQp: Any + Debug + Send {
    fn handle(&self) -> u32;
    fn qp_num(&self) -> u32;
    fn qp_type(&self) -> QpType;
    fn cap(&self) -> QpCap;
    fn state(&self) -> QpState;
    fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<()>;
    fn reset_ends_requests(&self) -> bool;
    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)>;
    fn halves(&mut self) -> (&mut (dyn SendQueue + 'static), &mut (dyn RecvQueue + 'static));
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError>;
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError>;
    fn destroy_boxed(self: Box<Self>) -> Result<(), (Box<dyn DynQp>, Error)>;
}

impl<T> DynQp for T
where
    T: QpOps,
    T::Sq: Sized + 'static,
    T::Rq: Sized + 'static,
{
    fn handle(&self) -> u32 {
        QpOps::handle(self)
    }
    fn qp_num(&self) -> u32 {
        QpOps::qp_num(self)
    }
    fn qp_type(&self) -> QpType {
        QpOps::qp_type(self)
    }
    fn cap(&self) -> QpCap {
        QpOps::cap(self)
    }
    fn state(&self) -> QpState {
        QpOps::state(self)
    }
    fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        QpOps::modify(self, attr, mask)
    }
    fn reset_ends_requests(&self) -> bool {
        QpOps::reset_ends_requests(self)
    }
    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)> {
        QpOps::query(self, mask)
    }
    fn halves(&mut self) -> (&mut (dyn SendQueue + 'static), &mut (dyn RecvQueue + 'static)) {
        let (sq, rq) = QpOps::halves(self);
        (sq, rq)
    }
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { QpOps::post_send(self, wrs) }
    }
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { QpOps::post_recv(self, wrs) }
    }
    destroy_boxed!(DynQp);
}

impl QpOps for ErasedQp {
    type Sq = dyn SendQueue;
    type Rq = dyn RecvQueue;

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
    fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        self.0.modify(attr, mask)
    }
    fn reset_ends_requests(&self) -> bool {
        self.0.reset_ends_requests()
    }
    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)> {
        self.0.query(mask)
    }
    fn halves(&mut self) -> (&mut (dyn SendQueue + 'static), &mut (dyn RecvQueue + 'static)) {
        self.0.halves()
    }
    #[inline]
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.post_send(wrs) }
    }
    #[inline]
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.post_recv(wrs) }
    }
}

/// An erased open device.
#[derive(Debug)]
pub struct ErasedContext(Box<dyn DynContext>);

/// A provider's context, so that the mirror below has one implementation per provider rather than per context type.
#[derive(Debug)]
struct Of<P: Provider>(P::Context);

impl ErasedContext {
    /// Erases a provider's context.
    pub fn new<P: Provider>(context: P::Context) -> Self
    where
        <P::Qp as QpOps>::Sq: Sized + 'static,
        <P::Qp as QpOps>::Rq: Sized + 'static,
    {
        Self(Box::new(Of::<P>(context)))
    }

    /// The context as the provider's own type, by reference.
    pub fn downcast_ref<P: Provider>(&self) -> Option<&P::Context> {
        let any: &dyn Any = &*self.0;
        any.downcast_ref::<Of<P>>().map(|of| &of.0)
    }

    /// The context as the provider's own type.
    ///
    /// # Errors
    /// The context, when it is of another provider.
    pub fn downcast<P: Provider>(self) -> Result<P::Context, Self> {
        if self.downcast_ref::<P>().is_none() {
            return Err(self);
        }
        let any: Box<dyn Any> = self.0;
        match any.downcast::<Of<P>>() {
            Ok(of) => Ok(of.0),
            Err(_) => unreachable!("the type was just checked"),
        }
    }
}

trait DynContext: Any + Debug + Send + Sync {
    fn device_name(&self) -> &str;
    fn provider_name(&self) -> &'static str;
    fn num_comp_vectors(&self) -> u32;
    fn query_device(&self) -> Result<DeviceAttr>;
    fn query_device_ex(&self) -> Result<DeviceAttrEx>;
    fn query_port(&self, port_num: u8) -> Result<PortAttr>;
    fn query_gid_table(&self) -> Result<Vec<GidEntry>>;
    fn query_gid_entry(&self, port_num: u8, gid_index: u32) -> Result<Option<GidEntry>>;
    fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16>;
    fn async_fd(&self) -> Result<BorrowedFd<'_>>;
    fn create_comp_channel(&self) -> Result<OwnedFd>;
    fn alloc_pd(&self) -> Result<ErasedPd>;
    unsafe fn reg_mr(
        &self,
        pd: &ErasedPd,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<ErasedMr>;
    fn create_cq(&self, attr: &CqInitAttr<'_>) -> Result<ErasedCq>;
    fn create_qp(
        &self,
        pd: &ErasedPd,
        send: &ErasedCq,
        recv: &ErasedCq,
        attr: &QpInitAttr,
    ) -> Result<ErasedQp>;
    fn create_ah(&self, pd: &ErasedPd, attr: &AhAttr) -> Result<ErasedAh>;
}

impl<P: Provider> Of<P> {
    fn foreign(&self, verb: &'static str, what: &'static str) -> Error {
        Error::new(verb, self.0.device_name(), Errno::INVAL).because(Cause::Foreign { what })
    }

    fn pd<'a>(&self, verb: &'static str, pd: &'a ErasedPd) -> Result<&'a P::Pd> {
        pd.downcast_ref().ok_or_else(|| self.foreign(verb, "protection domain"))
    }

    fn cq<'a>(&self, verb: &'static str, cq: &'a ErasedCq) -> Result<&'a P::Cq> {
        cq.downcast_ref().ok_or_else(|| self.foreign(verb, "completion queue"))
    }
}

impl<P: Provider> DynContext for Of<P>
where
    <P::Qp as QpOps>::Sq: Sized + 'static,
    <P::Qp as QpOps>::Rq: Sized + 'static,
{
    fn device_name(&self) -> &str {
        self.0.device_name()
    }
    fn provider_name(&self) -> &'static str {
        self.0.provider_name()
    }
    fn num_comp_vectors(&self) -> u32 {
        self.0.num_comp_vectors()
    }
    fn query_device(&self) -> Result<DeviceAttr> {
        self.0.query_device()
    }
    fn query_device_ex(&self) -> Result<DeviceAttrEx> {
        self.0.query_device_ex()
    }
    fn query_port(&self, port_num: u8) -> Result<PortAttr> {
        self.0.query_port(port_num)
    }
    fn query_gid_table(&self) -> Result<Vec<GidEntry>> {
        self.0.query_gid_table()
    }
    fn query_gid_entry(&self, port_num: u8, gid_index: u32) -> Result<Option<GidEntry>> {
        self.0.query_gid_entry(port_num, gid_index)
    }
    fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16> {
        self.0.query_pkey(port_num, index)
    }
    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        self.0.async_fd()
    }
    fn create_comp_channel(&self) -> Result<OwnedFd> {
        self.0.create_comp_channel()
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
    fn create_cq(&self, attr: &CqInitAttr<'_>) -> Result<ErasedCq> {
        self.0.create_cq(attr).map(ErasedCq::new)
    }
    fn create_qp(
        &self,
        pd: &ErasedPd,
        send: &ErasedCq,
        recv: &ErasedCq,
        attr: &QpInitAttr,
    ) -> Result<ErasedQp> {
        let (pd, send, recv) =
            (self.pd("create_qp", pd)?, self.cq("create_qp", send)?, self.cq("create_qp", recv)?);
        self.0.create_qp(pd, send, recv, attr).map(ErasedQp::new)
    }
    fn create_ah(&self, pd: &ErasedPd, attr: &AhAttr) -> Result<ErasedAh> {
        let pd = self.pd("create_ah", pd)?;
        self.0.create_ah(pd, attr).map(ErasedAh::new)
    }
}

impl ContextOps<Erased> for ErasedContext {
    fn device_name(&self) -> &str {
        self.0.device_name()
    }
    fn provider_name(&self) -> &'static str {
        self.0.provider_name()
    }
    fn num_comp_vectors(&self) -> u32 {
        self.0.num_comp_vectors()
    }
    fn query_device(&self) -> Result<DeviceAttr> {
        self.0.query_device()
    }
    fn query_device_ex(&self) -> Result<DeviceAttrEx> {
        self.0.query_device_ex()
    }
    fn query_port(&self, port_num: u8) -> Result<PortAttr> {
        self.0.query_port(port_num)
    }
    fn query_gid_table(&self) -> Result<Vec<GidEntry>> {
        self.0.query_gid_table()
    }
    fn query_gid_entry(&self, port_num: u8, gid_index: u32) -> Result<Option<GidEntry>> {
        self.0.query_gid_entry(port_num, gid_index)
    }
    fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16> {
        self.0.query_pkey(port_num, index)
    }
    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        self.0.async_fd()
    }
    fn create_comp_channel(&self) -> Result<OwnedFd> {
        self.0.create_comp_channel()
    }
    fn alloc_pd(&self) -> Result<ErasedPd> {
        self.0.alloc_pd()
    }
    unsafe fn reg_mr(
        &self,
        pd: &ErasedPd,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<ErasedMr> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.reg_mr(pd, addr, length, iova, access) }
    }
    fn create_cq(&self, attr: &CqInitAttr<'_>) -> Result<ErasedCq> {
        self.0.create_cq(attr)
    }
    fn create_qp(
        &self,
        pd: &ErasedPd,
        send: &ErasedCq,
        recv: &ErasedCq,
        attr: &QpInitAttr,
    ) -> Result<ErasedQp> {
        self.0.create_qp(pd, send, recv, attr)
    }
    fn create_ah(&self, pd: &ErasedPd, attr: &AhAttr) -> Result<ErasedAh> {
        self.0.create_ah(pd, attr)
    }
}
