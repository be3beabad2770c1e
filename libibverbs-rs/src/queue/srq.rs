//! [`Srq`]: a receive queue shared by many queue pairs; [`SrqHandle`]: a weak reference for
//! creating those queue pairs.
//!
//! ```text
//! Srq ── recv, the queue and its table: the poster owns them
//!  └─ core ─► Core: the provider's object, and the memory in flight ◄── Qp, Qp
//!               ▲ weak
//!             SrqHandle
//! ```
//!
//! Dropping the last share of the core, the queue's own or a queue pair's, destroys the object.
//!
//! # Safety
//! The unsafe code here is raw posting, whose requirements the caller meets.

#![allow(unsafe_code)]

use core::fmt;
use core::ops::RangeBounds;
use std::sync::{Arc, Weak};

use verbs_core::provider::{
    ContextOps, Erased, NamedProvider, Provider, RecvQueue, SrqOps, SrqParents, SrqParts,
};
use verbs_core::types::{OpsWr, PostError, RecvWr, SrqAttr, SrqAttrMask, SrqInitAttr, SrqType, TmCap};
use verbs_core::{Cause, Errno, Result};

use crate::device::pd::Pd;
use crate::handle::error::HandleError;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::{Child, Entry, Kind, Registry, SrqId, Tally};
use crate::in_flight::{Directory, InFlight};
use crate::memory::buffer::Buf;
use crate::memory::post_error::{PostBufError, PostBufReason};
use crate::memory::{Memory, PostMemory};
use crate::queue::cq::{CqHandle, CqUse};
use crate::queue::receiver::Receiver;
use crate::queue::xrcd::Xrcd;

/// The attributes of a new shared receive queue:
/// `SrqInit { max_sge: 2, ..SrqInit::new(256) }`.
#[doc(alias = "ibv_srq_init_attr")]
#[doc(alias = "ibv_srq_init_attr_ex")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// The requested capacity, in receives; the device may round up.
    pub max_wr: u32,
    /// The requested maximum number of pieces of memory per receive.
    pub max_sge: u32,
    /// The limit. When fewer receives are left,
    /// [`SRQ_LIMIT_REACHED`](crate::AsyncEventType::SRQ_LIMIT_REACHED) is raised once. 0 sets no
    /// limit. [`Srq::arm`] sets a limit again.
    pub srq_limit: u32,
}

impl SrqInit {
    /// Returns the attributes of a queue for `max_wr` receives with one piece of memory each,
    /// without a limit.
    pub const fn new(max_wr: u32) -> Self {
        Self { max_wr, max_sge: 1, srq_limit: 0 }
    }
}

/// A shared receive queue. Queue pairs created with it take their receives from it in posting
/// order. Posting takes `&mut self`, so it needs no lock.
///
/// A receive completes in the completion queue of the queue pair that takes it; polling there
/// returns its memory. The program posts new receives after polling some, or when the queue runs
/// low ([`arm`](Self::arm)):
///
/// ```
/// # #[cfg(feature = "soft")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use verbs::{CqInit, QpInit, QpType, SrqInit};
///
/// let pd = verbs::soft::auto()?.open()?.alloc_pd()?;
/// let cq = pd.context().create_cq(&CqInit::new(64))?;
/// let mut srq = pd.create_srq(&SrqInit::new(64))?;
/// for _ in 0..64 {
///     srq.post_recv_buf(pd.alloc_buf(4096)?, ..)?;
/// }
/// let init = QpInit { srq: Some(srq.handle()), ..QpInit::new(QpType::RC, &cq) };
/// let qps = [pd.create_qp(&init)?, pd.create_qp(&init)?];
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "soft"))]
/// # fn main() {}
/// ```
///
/// A receive taken by a queue pair for a message completes as flushed if the queue pair enters the
/// error state. If the queue pair is reset or destroyed first, the receive is lost without a
/// completion; its memory returns when the shared receive queue is [dismantled](Self::dismantle).
///
/// # References
/// `ibv_create_srq(3)`, `ibv_post_srq_recv(3)`
#[doc(alias = "ibv_srq")]
pub struct Srq<P: Provider = Erased> {
    recv: Receiver<P::SrqQueue>,
    core: Arc<Core<P>>,
}

/// A weak reference to a shared receive queue, for creating queue pairs with it while another
/// thread posts to it. Cheap to clone.
///
/// Made by [`Srq::handle`], or by converting a `&Srq`. It does not keep the queue open: once the
/// [`Srq`] and its queue pairs are closed or dropped, no queue pair can be created with it.
pub struct SrqHandle<P: Provider = Erased> {
    id: SrqId,
    core: Link<P>,
}

enum Link<P: Provider> {
    Own(Weak<Core<P>>),
    /// The core of a queue with a hidden provider, for a handle made by `downcast`.
    Within(Weak<Core<Erased>>),
}

/// The control object of a shared receive queue, shared by its queue pairs.
pub(crate) struct Core<P: Provider> {
    raw: Raw<P>,
    id: SrqId,
    registry: Arc<Registry>,
    qps: Tally,
}

enum Raw<P: Provider> {
    Own(KernelHandle<P::Srq, Dependencies>),
    /// An erased queue whose provider `downcast` has named. Handles and queue pairs of the erased
    /// queue stay valid.
    Within(Arc<Core<Erased>>),
}

/// The parents and attributes of shared receive queues other than [`SrqType::BASIC`].
struct Special<'a, P: Provider> {
    srq_type: SrqType,
    xrcd: Option<&'a Xrcd<P>>,
    cq: Option<&'a CqHandle<P>>,
    tm: TmCap,
}

impl<P: Provider> Default for Special<'_, P> {
    fn default() -> Self {
        Self { srq_type: SrqType::BASIC, xrcd: None, cq: None, tm: TmCap::default() }
    }
}

/// The dependencies of the queue, released once it is destroyed.
struct Dependencies {
    recvs: InFlight,
    _entry: Entry,
    _cq: Option<CqUse>,
    _xrcd: Option<Child>,
    _pd: Child,
}

impl<P: Provider> Pd<P> {
    /// Creates a shared receive queue, for queue pairs in any protection domain.
    ///
    /// The memory of its receives must be registered in this domain. On rxe, its queue pairs must
    /// belong to this domain as well.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a size beyond the device's limits;
    /// `EOPNOTSUPP` for a device without shared receive queues; any other errno the kernel returns,
    /// notably `ENOMEM`.
    ///
    /// # References
    /// `ibv_create_srq(3)`
    #[doc(alias = "ibv_create_srq")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_PD")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_TYPE")]
    pub fn create_srq(&self, init: &SrqInit) -> Result<Srq<P>> {
        Srq::create(self, init)
    }

    /// Creates a shared receive queue with tag matching: a message whose tag is in the queue's tag
    /// list arrives in the memory of that tag ([`Srq::post_srq_ops`]); any other message arrives in
    /// a posted receive. The operations on the list complete in `cq`, given as a `&Cq` or a
    /// [`CqHandle`].
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a size beyond the device's limits,
    /// with [`Cause::Foreign`](crate::Cause::Foreign) for a completion queue of another open
    /// device, with [`Cause::Closed`](crate::Cause::Closed) for a closed completion queue;
    /// `EOPNOTSUPP` for a device without tag matching (rxe, soft devices, ConnectX with RoCE
    /// ports); any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_create_srq_ex(3)`
    #[doc(alias = "ibv_create_srq_ex")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_CQ")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_PD")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_TM")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_TYPE")]
    pub fn create_tm_srq(&self, cq: impl Into<CqHandle<P>>, tm: TmCap, init: &SrqInit) -> Result<Srq<P>> {
        Srq::create_tm(self, &cq.into(), tm, init)
    }
}

impl<P: Provider> Xrcd<P> {
    /// Creates a shared receive queue. Requests sent to the domain's targets name the queue by its
    /// [`srq_num`](Srq::srq_num). Its receives complete in `cq`, given as a `&Cq` or a
    /// [`CqHandle`]. The requests access memory in `pd`.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a size beyond the device's limits,
    /// with [`Cause::Foreign`](crate::Cause::Foreign) for a protection domain or completion queue
    /// of another open device, with [`Cause::Closed`](crate::Cause::Closed) for a closed completion
    /// queue; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_create_srq_ex(3)`
    #[doc(alias = "ibv_create_srq_ex")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_CQ")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_PD")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_TYPE")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_XRCD")]
    pub fn create_srq(&self, pd: &Pd<P>, cq: impl Into<CqHandle<P>>, init: &SrqInit) -> Result<Srq<P>> {
        Srq::create_xrc(pd, self, &cq.into(), init)
    }
}

impl<P: Provider> Srq<P> {
    pub(crate) fn create(pd: &Pd<P>, init: &SrqInit) -> Result<Self> {
        Self::of_kind(pd, Special::default(), init)
    }

    pub(crate) fn create_xrc(pd: &Pd<P>, xrcd: &Xrcd<P>, cq: &CqHandle<P>, init: &SrqInit) -> Result<Self> {
        Self::of_kind(
            pd,
            Special { srq_type: SrqType::XRC, xrcd: Some(xrcd), cq: Some(cq), ..Special::default() },
            init,
        )
    }

    pub(crate) fn create_tm(pd: &Pd<P>, cq: &CqHandle<P>, tm: TmCap, init: &SrqInit) -> Result<Self> {
        Self::of_kind(pd, Special { srq_type: SrqType::TM, cq: Some(cq), tm, ..Special::default() }, init)
    }

    fn of_kind(pd: &Pd<P>, special: Special<'_, P>, init: &SrqInit) -> Result<Self> {
        const VERB: &str = "create_srq";
        let Special { srq_type, xrcd, cq, tm } = special;
        let registry = pd.context().registry();
        registry.room(VERB)?;
        let cq_use = cq.map(|cq| cq.share(registry, VERB)).transpose()?;
        if xrcd.is_some_and(|xrcd| !Arc::ptr_eq(xrcd.context().registry(), registry)) {
            return Err(registry.foreign(VERB, "XRC domain"));
        }
        let entry = registry.enter(Kind::Srq, VERB)?;
        let id = SrqId(entry.id);
        let attr = SrqInitAttr {
            srq_type,
            max_wr: init.max_wr,
            max_sge: init.max_sge,
            srq_limit: init.srq_limit,
            tm,
            user_handle: entry.id.0,
        };
        let parents = SrqParents { pd: pd.raw(), xrcd: xrcd.map(Xrcd::raw), cq: cq.map(CqHandle::name) };
        let SrqParts { srq, queue } = pd.context().raw().create_srq(&parents, &attr)?;
        let directory = Directory::for_srqs(registry);
        let (recvs, poster) = match InFlight::of_srq(pd.id(), directory, srq.attr().max_wr) {
            Ok(made) => made,
            Err(why) => {
                // Nothing was posted, so no memory has to wait for the queue's destruction.
                drop(KernelHandle::new(srq, ()));
                return Err(why.error(registry, VERB, "shared receive queues"));
            }
        };
        let dependencies = Dependencies {
            recvs,
            _entry: entry,
            _cq: cq_use,
            _xrcd: xrcd.map(Xrcd::child_srq),
            _pd: pd.child_srq(),
        };
        let core = Core {
            raw: Raw::Own(KernelHandle::new(srq, dependencies)),
            id,
            registry: Arc::clone(registry),
            qps: Tally::default(),
        };
        Ok(Self { recv: Receiver { queue, poster }, core: Arc::new(core) })
    }

    /// Returns the id of this queue in events.
    pub fn id(&self) -> SrqId {
        self.core.id
    }

    /// Returns a handle to the queue, for creating queue pairs with it from any thread.
    pub fn handle(&self) -> SrqHandle<P> {
        SrqHandle { id: self.core.id, core: Link::Own(Arc::downgrade(&self.core)) }
    }

    /// Returns the queue's number for XRC initiators ([`SendOp::Xrc`](crate::SendOp::Xrc)). Queues
    /// created without an XRC domain have a number on ConnectX and `None` elsewhere.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn srq_num(&self) -> Option<u32> {
        self.core.get().srq_num()
    }

    /// Returns the maximum number of outstanding receives.
    pub fn max_wr(&self) -> u32 {
        self.core.get().attr().max_wr
    }

    /// Returns the maximum number of pieces of memory per receive.
    pub fn max_sge(&self) -> u32 {
        self.core.get().attr().max_sge
    }

    /// Posts raw receives, for any ownership scheme. One doorbell announces all of them.
    ///
    /// # Safety
    /// From this call until a request's completion was polled, or the shared receive queue was
    /// destroyed, the device may write the memory of every SGE: no code may free or access it. Each
    /// `wr_id` must have its top bit clear, because a `wr_id` with that bit set belongs to a safe
    /// request.
    ///
    /// # Errors
    /// Returns the number of accepted requests and the [`PostReason`](crate::PostReason) why the
    /// next one was rejected. The device owns the memory of the accepted requests.
    ///
    /// # References
    /// `ibv_post_srq_recv(3)`
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline(always)]
    pub unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.recv.queue.post_recv(wrs) }
    }

    /// Posts raw operations on the tag list of a queue with tag matching
    /// ([`Pd::create_tm_srq`](crate::Pd::create_tm_srq)). The operations complete in the queue's
    /// completion queue. Sets the `handle` of each accepted [`TmOp::Add`](crate::TmOp::Add).
    ///
    /// # Safety
    /// Same as [`post_recv`](Self::post_recv), for the memory of each
    /// [`TmOp::Add`](crate::TmOp::Add): from this call until the completion of its message, or of
    /// the operation that removes the tag, was polled, or the shared receive queue was destroyed.
    /// Each `wr_id` and `recv_wr_id` must have its top bit clear.
    ///
    /// # Errors
    /// Returns the number of accepted operations and the [`PostReason`](crate::PostReason) why the
    /// next one was rejected, such as [`NoTagMatching`](crate::PostReason::NoTagMatching)
    /// (`EOPNOTSUPP`) from a queue without tag matching.
    ///
    /// # References
    /// `ibv_post_srq_ops(3)`
    #[doc(alias = "ibv_post_srq_ops")]
    pub unsafe fn post_srq_ops(&mut self, ops: &mut [OpsWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.recv.queue.post_srq_ops(ops) }
    }

    /// Posts a receive into a range of `memory`, which the queue owns until a message has arrived.
    /// Polling the completion queue of the receiving queue pair returns the memory
    /// ([`Completion::reclaim`](crate::Completion::reclaim),
    /// [`Cq::poll_one`](crate::Cq::poll_one)).
    ///
    /// Returns the `wr_id` of the request and its completion. The first call allocates the queue's
    /// table. Later calls allocate a larger table once taken or unreclaimed receives fill it.
    ///
    /// # Errors
    /// Returns the memory and the reason; [`PostBufReason`](crate::PostBufReason) lists all
    /// reasons. Notably [`PostReason::QueueFull`](crate::PostReason::QueueFull) while every slot of
    /// the queue is taken, and [`PostBufReason::ReadOnly`](crate::PostBufReason::ReadOnly) for a
    /// [`FrozenBuf`](crate::FrozenBuf).
    ///
    /// # References
    /// `ibv_post_srq_recv(3)`
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub fn post_recv_buf<M: PostMemory>(
        &mut self,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        self.recv.post(memory, range)
    }

    /// Posts a receive of one message into several pieces of memory, in order, like
    /// [`post_recv_buf`](Self::post_recv_buf).
    ///
    /// # Errors
    /// The errors of [`post_recv_buf`](Self::post_recv_buf), with all pieces;
    /// [`PostReason::TooManySge`](crate::PostReason::TooManySge) for more pieces than
    /// [`max_sge`](Self::max_sge).
    ///
    /// # References
    /// `ibv_post_srq_recv(3)`
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv_bufs<M: PostMemory>(&mut self, pieces: Vec<M>) -> Result<u64, PostBufError<Vec<M>>> {
        self.recv.post_all(pieces)
    }

    /// Posts a receive without memory, for an empty message or for an RDMA write with immediate
    /// data, whose bytes go elsewhere. A message with bytes fails the receive.
    ///
    /// Returns the `wr_id` of the request and its completion.
    ///
    /// # Errors
    /// Same as [`post_recv_buf`](Self::post_recv_buf).
    ///
    /// # References
    /// `ibv_post_srq_recv(3)`
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv_empty(&mut self) -> Result<u64, PostBufReason> {
        self.recv.post_all(Vec::<Buf>::new()).map_err(|error| error.reason)
    }

    /// Arms [`SRQ_LIMIT_REACHED`](crate::AsyncEventType::SRQ_LIMIT_REACHED), which is raised once
    /// when fewer than `limit` receives are left. 0 disarms the event.
    ///
    /// # Errors
    /// Same as [`modify`](Self::modify).
    #[doc(alias = "IBV_SRQ_LIMIT")]
    pub fn arm(&mut self, limit: u32) -> Result<()> {
        self.modify(&SrqAttr { srq_limit: limit, ..SrqAttr::default() }, SrqAttrMask::LIMIT)
    }

    /// Changes the size, the limit, or both. The receives stay in the queue.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a size beyond the device's limit or
    /// below the number of outstanding receives, and for a limit beyond the size; any other errno
    /// the kernel returns, notably `ENOMEM`. No receive ends because of an error.
    ///
    /// # References
    /// `ibv_modify_srq(3)`
    #[doc(alias = "ibv_modify_srq")]
    pub fn modify(&mut self, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()> {
        self.core.get().modify(&mut self.recv.queue, attr, mask)
    }

    /// Queries the size and the limit. A limit of 0 means that no limit was armed, or that it has
    /// been reached.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EIO` once the device is gone.
    ///
    /// # References
    /// `ibv_query_srq(3)`
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttr> {
        self.core.get().query()
    }

    /// Returns the provider's shared receive queue and the queue for posting.
    #[cfg(feature = "mlx5")]
    pub(crate) fn parts_mut(&mut self) -> (&P::Srq, &mut P::SrqQueue) {
        (self.core.get(), &mut self.recv.queue)
    }

    /// Returns the provider's own queue, for features beyond verbs.
    pub fn raw(&self) -> &P::Srq {
        self.core.get()
    }

    /// Destroys the queue if no queue pair uses it and releases the memory in flight. A dropped
    /// queue is destroyed after its last queue pair.
    ///
    /// # Errors
    /// Returns the queue with the error: `EBUSY` with [`Cause::InUse`] while queue pairs use it;
    /// any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_destroy_srq(3)`
    #[doc(alias = "ibv_destroy_srq")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        self.dismantle().map(drop)
    }

    /// Destroys the queue if no queue pair uses it and returns the memory of all receives without a
    /// polled completion: unused receives, and receives that a queue pair took and lost.
    ///
    /// # Errors
    /// Same as [`close`](Self::close).
    #[doc(alias = "ibv_destroy_srq")]
    pub fn dismantle(self) -> Result<Vec<Memory>, HandleError<Self>> {
        let Self { recv, core } = self;
        match Core::close(core) {
            Ok(dependencies) => Ok(dependencies.recvs.drain().collect()),
            Err(failed) => Err(failed.map(|core| Self { recv, core })),
        }
    }
}

impl Srq<Erased> {
    /// Returns the same queue with its provider known at compile time. Posting then needs no
    /// indirect calls.
    ///
    /// # Errors
    /// Returns the queue if it belongs to another provider.
    // The panic below is unreachable.
    #[allow(clippy::missing_panics_doc)]
    pub fn downcast<P: NamedProvider>(self) -> Result<Srq<P>, HandleError<Self>> {
        let Self { recv, core } = self;
        let ours = core.get().downcast_ref::<P::Srq>().is_some()
            && recv.queue.downcast_ref::<P::SrqQueue>().is_some();
        if !ours {
            return Err(HandleError::of_another_provider(Self { recv, core }));
        }
        let queue = recv.queue.downcast().expect("the type was just compared");
        Ok(Srq { recv: Receiver { queue, poster: recv.poster }, core: Arc::new(Core::within(core)) })
    }
}

impl<P: Provider> SrqHandle<P> {
    /// Returns the id of the queue in events.
    pub const fn id(&self) -> SrqId {
        self.id
    }

    /// Returns the core of a queue on the device of `registry`.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Foreign`] for a queue of another open device, with [`Cause::Closed`]
    /// for a closed or dropped queue.
    pub(crate) fn core(&self, registry: &Arc<Registry>) -> Result<Arc<Core<P>>> {
        const WHAT: &str = "shared receive queue";
        let core = match &self.core {
            Link::Own(core) => core.upgrade(),
            Link::Within(core) => core.upgrade().map(|core| Arc::new(Core::within(core))),
        };
        let Some(core) = core else {
            return Err(registry.error("create_qp", Errno::INVAL).because(Cause::Closed { what: WHAT }));
        };
        if !Arc::ptr_eq(&core.registry, registry) {
            return Err(registry.foreign("create_qp", WHAT));
        }
        Ok(core)
    }
}

impl SrqHandle<Erased> {
    /// Returns the same handle with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the handle if the queue was closed or belongs to another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<SrqHandle<P>, HandleError<Self>> {
        if let Link::Own(weak) = &self.core
            && weak.upgrade().is_some_and(|core| core.get().downcast_ref::<P::Srq>().is_some())
        {
            return Ok(SrqHandle { id: self.id, core: Link::Within(Weak::clone(weak)) });
        }
        Err(HandleError::of_another_provider(self))
    }
}

impl<P: Provider> Core<P> {
    // The panics below are unreachable.
    pub(crate) fn get(&self) -> &P::Srq {
        match &self.raw {
            Raw::Own(handle) => handle.get(),
            Raw::Within(erased) => match &erased.raw {
                Raw::Own(handle) => handle.get().downcast_ref().expect("downcast looked at the type"),
                Raw::Within(_) => unreachable!("an erased queue is within no other"),
            },
        }
    }

    /// Returns a queue pair's share of the queue: the queue is not destroyed while the share lives.
    pub(crate) fn child(self: &Arc<Self>) -> Child {
        Child::new(Arc::<Self>::clone(self), &self.qps)
    }

    /// Destroys the object if this is its last share.
    ///
    /// # Errors
    /// Returns the share with the error: `EBUSY` with [`Cause::InUse`] while other shares live; any
    /// errno from destroying the object.
    fn close(self: Arc<Self>) -> Result<Dependencies, HandleError<Arc<Self>>> {
        let Self { raw, id, registry, qps } = match Arc::try_unwrap(self) {
            Ok(core) => core,
            Err(core) => {
                let error = core.registry.in_use("destroy_srq", "queue pairs");
                return Err(HandleError { handle: core, error });
            }
        };
        let (raw, error) = match raw {
            Raw::Own(handle) => match handle.close() {
                Ok(dependencies) => return Ok(dependencies),
                Err(HandleError { handle, error }) => (Raw::Own(handle), error),
            },
            Raw::Within(erased) => match Core::close(erased) {
                Ok(dependencies) => return Ok(dependencies),
                Err(HandleError { handle, error }) => (Raw::Within(handle), error),
            },
        };
        Err(HandleError { handle: Arc::new(Self { raw, id, registry, qps }), error })
    }

    /// Returns a core whose hidden provider is now named.
    fn within(core: Arc<Core<Erased>>) -> Self {
        let (id, registry) = (core.id, Arc::clone(&core.registry));
        Self { raw: Raw::Within(core), id, registry, qps: Tally::default() }
    }
}

impl<P: Provider> Clone for SrqHandle<P> {
    fn clone(&self) -> Self {
        let core = match &self.core {
            Link::Own(core) => Link::Own(Weak::clone(core)),
            Link::Within(core) => Link::Within(Weak::clone(core)),
        };
        Self { id: self.id, core }
    }
}

impl<P: Provider> From<&Srq<P>> for SrqHandle<P> {
    fn from(srq: &Srq<P>) -> Self {
        srq.handle()
    }
}

impl<P: Provider> From<&Self> for SrqHandle<P> {
    fn from(handle: &Self) -> Self {
        handle.clone()
    }
}

impl<P: Provider> fmt::Debug for Srq<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq").field("raw", self.core.get()).finish_non_exhaustive()
    }
}

impl<P: Provider> fmt::Debug for SrqHandle<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SrqHandle").field("id", &self.id).finish_non_exhaustive()
    }
}
