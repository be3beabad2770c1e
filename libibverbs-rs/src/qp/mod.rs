//! [`Qp`]: a queue pair and its states.
//!
//! | file | content |
//! |---|---|
//! | [`state`] | the states as types, and what each permits |
//! | [`attr`] | the attributes of creation and of each step |
//! | [`control`] | the control object, kept alive by flow rules |
//! | [`endpoint`] | [`Endpoint`](endpoint::Endpoint): a queue pair's address, and connecting |
//! | [`modify`] | draining, resuming, pace, options of a connection |
//! | [`post`] | posting, raw and safe, and batches |
//! | [`scope`] | borrowed memory, posted in a scope that ends its requests |
//! | [`split`] | the two halves, owned, for two threads |
//!
//! The argument for safe posting is in [`crate::in_flight`].
//!
//! # Safety
//! The unsafe code here is raw posting, which relies on its caller's promise.

#![allow(unsafe_code)]

pub(crate) mod attr;
mod control;
pub(crate) mod endpoint;
mod modify;
pub(crate) mod post;
pub(crate) mod scope;
pub(crate) mod split;
pub mod state;

use core::fmt;
use core::marker::PhantomData;
use core::ops::RangeBounds;
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "mlx5")]
use provider_mlx5::Mlx5;
use verbs_core::provider::{
    ContextOps, Erased, NamedProvider, Provider, QpExtras, QpOps, QpParents, QpParts, RecvQueue, SendQueue,
    WrBatch,
};
use verbs_core::types::{
    Gid, PostError, QpAttr, QpAttrMask, QpCap, QpCreateAttr, QpInitAttr, QpInitInfo, QpState, QpType, RecvWr,
    SendFlags, SendOp, SendWr,
};
use verbs_core::{Cause, Errno, Result, explain, random};

use crate::device::pd::Pd;
use crate::handle::error::HandleError;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::{Child, Entry, Kind, PdId, QpId, Registry};
use crate::in_flight::{Directory, InFlight};
use crate::memory::post_error::{PostBufError, PostBufReason};
use crate::memory::{Memory, PostMemory};
use crate::queue::cq::CqUse;
use crate::queue::receiver::Receiver;
use crate::queue::wq::OpenTable;
use crate::queue::xrcd::Xrcd;
use attr::{InitAttr, QpInit, RtrAttr, RtsAttr, Step, required};
use control::Core;
pub(crate) use control::QpUse;
#[cfg(feature = "mlx5")]
use post::posts_raw_requests;
use post::{SendBatch, Sender, posts_recvs, posts_sends};
use state::{CanPostRecv, CanPostSend, Errored, Init, Reset, Rtr, Rts, State};

/// A queue pair. `S` is its [state](state) as set by the program, which determines what may be
/// posted. The poster owns it: `&mut` is the lock. [`into_split`](Self::into_split) splits it for
/// two posters.
///
/// # References
/// `ibv_create_qp(3)`, `ibv_modify_qp(3)`, `ibv_post_send(3)`
#[doc(alias = "ibv_qp")]
pub struct Qp<S: State, P: Provider = Erased> {
    core: Core<P>,
    send: Sender<P>,
    recv: Receiver<P::Rq>,
    state: PhantomData<fn() -> S>,
}

/// The dependencies of a queue pair, released once it is destroyed.
struct Dependencies {
    sends: InFlight,
    recvs: InFlight,
    /// Memory in flight before a RESET that does not end requests, kept until the queue pair is
    /// destroyed.
    undead: Vec<Memory>,
    entry: Entry,
    registry: Arc<Registry>,
    psn: u32,
    _parents: Parents,
    /// The queue pair's completion counters.
    counters: Mutex<Vec<Child>>,
}

/// The parents of a queue pair.
struct Parents {
    _send_cq: Option<CqUse>,
    _recv_cq: Option<CqUse>,
    _srq: Option<Child>,
    /// The table of work queues to receive through.
    _table: Option<Child>,
    /// The protection domain, or the XRC domain of a target.
    _domain: Child,
}

/// The tables of a queue pair: one in each directory of its completion queues.
struct Tables {
    pd: PdId,
    sends: Arc<Directory>,
    recvs: Arc<Directory>,
}

impl<P: Provider> Pd<P> {
    /// Creates a queue pair, in the state RESET.
    ///
    /// # Errors
    /// - `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a capacity beyond the device's
    ///   limits.
    /// - `EOPNOTSUPP` with [`Cause::QpType`](crate::Cause::QpType) for a type the device lacks;
    ///   `EINVAL` with the same cause for an unknown type number, and from some kernels.
    /// - `EINVAL` with [`Cause::Foreign`](crate::Cause::Foreign) for a completion queue, shared
    ///   receive queue or table of work queues of another open device, with
    ///   [`Cause::Closed`](crate::Cause::Closed) for a closed or dropped one.
    /// - `EPERM` for a raw packet queue pair without `CAP_NET_RAW`.
    /// - `EOPNOTSUPP` of the verb `create_qp_ex` for attributes in [`QpInit::ex`] the device lacks,
    ///   and for [`QpInit::rss`] if it has no tables of work queues.
    /// - Any other errno of the kernel or of the system's random source; notably `ENOMEM`.
    ///
    /// # References
    /// `ibv_create_qp(3)`
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_qp(&self, init: &QpInit<P>) -> Result<Qp<Reset, P>> {
        Qp::create(self, init)
    }
}

impl<P: Provider> Xrcd<P> {
    /// Creates an XRC target ([`QpType::XRC_RECV`](crate::QpType::XRC_RECV)) in the state RESET. It
    /// posts nothing: its peer's requests name the shared receive queue to take a receive from.
    ///
    /// # Errors
    /// Any errno of the kernel or of the system's random source; notably `EOPNOTSUPP` for a device
    /// without XRC.
    ///
    /// # References
    /// `ibv_create_qp_ex(3)`
    #[doc(alias = "ibv_create_qp_ex")]
    #[doc(alias = "IBV_QP_INIT_ATTR_XRCD")]
    pub fn create_target(&self) -> Result<Qp<Reset, P>> {
        Qp::create_target(self)
    }

    /// Opens the XRC target with a number, possibly created through another context sharing the
    /// domain. The target ends with the last queue pair created or opened for it. `S` is the
    /// target's state.
    ///
    /// # Errors
    /// `EINVAL` for an unknown number or a target in another state; any other errno the kernel
    /// returns.
    ///
    /// # References
    /// `ibv_open_qp(3)`
    #[doc(alias = "ibv_open_qp")]
    #[doc(alias = "ibv_qp_open_attr")]
    #[doc(alias = "IBV_QP_OPEN_ATTR_NUM")]
    #[doc(alias = "IBV_QP_OPEN_ATTR_TYPE")]
    #[doc(alias = "IBV_QP_OPEN_ATTR_XRCD")]
    #[doc(alias = "ibv_qp_open_attr_mask")]
    pub fn open_target<S: State>(&self, qp_num: u32) -> Result<Qp<S, P>> {
        Qp::open_target(self, qp_num)
    }
}

impl<P: Provider> Qp<Reset, P> {
    pub(crate) fn create(pd: &Pd<P>, init: &QpInit<P>) -> Result<Self> {
        let context = pd.context().raw();
        Self::create_by(pd, init, |parents, attr, extras| {
            if extras.attr == QpCreateAttr::default() && extras.rss.is_none() {
                context.create_qp(parents, attr)
            } else {
                context.create_qp_ex(parents, attr, extras)
            }
        })
    }

    /// Creates the queue pair by a call of the provider.
    pub(crate) fn create_by(
        pd: &Pd<P>,
        init: &QpInit<P>,
        create: impl FnOnce(&QpParents<'_, P>, &QpInitAttr, &QpExtras<'_, P>) -> Result<QpParts<P>>,
    ) -> Result<Self> {
        const VERB: &str = "create_qp";
        let registry = pd.context().registry();
        if init.qp_type == QpType::XRC_RECV {
            let reason = "an XRC target belongs to an XRC domain: create it by Xrcd::create_target";
            let cause = Cause::Other { reason: reason.into() };
            return Err(registry.error(VERB, Errno::INVAL).because(cause));
        }
        registry.room(VERB)?;
        let (send_cq, recv_cq) = (init.send_cq.share(registry, VERB)?, init.recv_cq.share(registry, VERB)?);
        let srq = init.srq.as_ref().map(|srq| srq.core(registry)).transpose()?;
        let table = init.rss.as_ref().map(|rss| rss.open(registry, VERB)).transpose()?;
        if srq.is_some() && table.is_some() {
            let reason = "a queue pair that receives through a table has no shared receive queue";
            let cause = Cause::Other { reason: reason.into() };
            return Err(registry.error(VERB, Errno::INVAL).because(cause));
        }
        let psn = draw_psn(registry, VERB)?;
        let entry = registry.enter(Kind::Qp, VERB)?;
        let cap = match table {
            None => init.cap,
            Some(_) => QpCap { max_recv_wr: 0, max_recv_sge: 0, ..init.cap },
        };
        let attr =
            QpInitAttr { qp_type: init.qp_type, cap, sq_sig_all: init.sq_sig_all, user_handle: entry.id.0 };
        let hash = init.rss.as_ref().map(|rss| &rss.hash);
        let rss = table.as_ref().map(OpenTable::raw).zip(hash);
        let parents = QpParents::new(pd.raw(), init.send_cq.name(), init.recv_cq.name());
        let parents = QpParents {
            srq: srq.as_ref().map(|srq| srq.get()),
            // The work queues of a table have their own completion queues.
            recv_cq: parents.recv_cq.filter(|_| rss.is_none()),
            ..parents
        };
        let parts = create(&parents, &attr, &QpExtras { attr: init.ex, rss })?;
        let tables = Tables {
            pd: pd.id(),
            sends: Arc::clone(init.send_cq.directory()),
            recvs: Arc::clone(init.recv_cq.directory()),
        };
        let parents = Parents {
            _send_cq: Some(send_cq),
            _recv_cq: Some(recv_cq),
            _srq: srq.map(|srq| srq.child()),
            _table: table.map(|table| table.child),
            _domain: pd.child_qp(),
        };
        Self::with(parts, registry, entry, psn, &tables, parents)
    }

    pub(crate) fn create_target(xrcd: &Xrcd<P>) -> Result<Self> {
        const VERB: &str = "create_qp";
        let context = xrcd.context();
        let registry = context.registry();
        let psn = draw_psn(registry, VERB)?;
        let entry = registry.enter(Kind::Qp, VERB)?;
        let attr = QpInitAttr {
            qp_type: QpType::XRC_RECV,
            cap: QpCap::default(),
            sq_sig_all: false,
            user_handle: entry.id.0,
        };
        let parents = QpParents { pd: None, send_cq: None, recv_cq: None, srq: None, xrcd: Some(xrcd.raw()) };
        let parts = context.creating(VERB)?.create_qp(&parents, &attr)?;
        Self::with(parts, registry, entry, psn, &Tables::of_target(), Parents::of_target(xrcd))
    }
}

impl Tables {
    /// Returns the tables of an XRC target, which posts nothing.
    fn of_target() -> Self {
        Self { pd: PdId::next(), sends: Arc::default(), recvs: Arc::default() }
    }
}

impl Parents {
    fn of_target<P: Provider>(xrcd: &Xrcd<P>) -> Self {
        Self { _send_cq: None, _recv_cq: None, _srq: None, _table: None, _domain: xrcd.child_qp() }
    }
}

impl<S: State, P: Provider> Qp<S, P> {
    pub(crate) fn open_target(xrcd: &Xrcd<P>, qp_num: u32) -> Result<Self> {
        const VERB: &str = "open_qp";
        let context = xrcd.context();
        let registry = context.registry();
        let psn = draw_psn(registry, VERB)?;
        let entry = registry.enter(Kind::Qp, VERB)?;
        let parts = context.creating(VERB)?.open_qp(xrcd.raw(), qp_num, entry.id.0)?;
        let qp = Self::with(parts, registry, entry, psn, &Tables::of_target(), Parents::of_target(xrcd))?;
        if qp.state()? != S::STATE {
            let reason = "the target is in another state than that of the type";
            let cause = Cause::Other { reason: reason.into() };
            return Err(registry.error(VERB, Errno::INVAL).because(cause));
        }
        Ok(qp)
    }

    /// Returns the handle of a provider's queue pair.
    ///
    /// # Errors
    /// `ENOMEM` beyond a completion queue's number of queues.
    fn with(
        parts: QpParts<P>,
        registry: &Arc<Registry>,
        entry: Entry,
        psn: u32,
        tables: &Tables,
        parents: Parents,
    ) -> Result<Self> {
        let QpParts { qp, sq, rq } = parts;
        let cap = qp.cap();
        let table = |directory: &Arc<Directory>, max_wr| {
            InFlight::new(tables.pd, Arc::clone(directory), max_wr)
                .map_err(|why| why.error(registry, "create_qp", "queues of a completion queue"))
        };
        let tables = table(&tables.sends, cap.max_send_wr)
            .and_then(|sends| Ok((sends, table(&tables.recvs, cap.max_recv_wr)?)));
        let ((sends, send_poster), (recvs, recv_poster)) = match tables {
            Ok(tables) => tables,
            Err(error) => {
                // Nothing was posted, so no memory depends on the end of the queue pair.
                drop(KernelHandle::new(qp, ()));
                return Err(error);
            }
        };
        let mut parents = parents;
        for cq in [&mut parents._send_cq, &mut parents._recv_cq].into_iter().flatten() {
            cq.of_qp(qp.qp_num());
        }
        let dependencies = Dependencies {
            sends,
            recvs,
            undead: Vec::new(),
            entry,
            registry: Arc::clone(registry),
            psn,
            _parents: parents,
            counters: Mutex::default(),
        };
        Ok(Self {
            core: Core::new(qp, dependencies),
            send: Sender { queue: sq, poster: send_poster },
            recv: Receiver { queue: rq, poster: recv_poster },
            state: PhantomData,
        })
    }
}

impl<P: Provider> Qp<Reset, P> {
    /// Moves the queue pair from RESET to INIT, where receives may be posted.
    ///
    /// # Errors
    /// The queue pair: `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for an invalid port or
    /// partition key index; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_modify_qp(3)`
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_init(self, attr: &InitAttr) -> Result<Qp<Init, P>, HandleError<Self>> {
        self.step(attr)
    }

    /// Returns the memory in flight when the queue pair was reset. Its requests do not complete any
    /// more.
    ///
    /// Returns no memory if the device may continue to write after a RESET
    /// ([`reset_ends_requests`](Self::reset_ends_requests)). The memory then stays with the queue
    /// pair, outside its tables, until [`dismantle`](Self::dismantle) returns it.
    pub fn reclaim_all(&mut self) -> Vec<Memory> {
        let (raw, dependencies) = self.core.parts_mut();
        let memory = dependencies.drain();
        if raw.reset_ends_requests() {
            return memory;
        }
        dependencies.undead.extend(memory);
        Vec::new()
    }
}

impl<P: Provider> Qp<Init, P> {
    /// Moves the queue pair from INIT to RTR, where messages arrive.
    ///
    /// # Errors
    /// The queue pair:
    ///
    /// - `EINVAL` with [`Cause::Gid`](crate::Cause::Gid) for a source GID index outside the table,
    ///   with [`Cause::NoGrh`](crate::Cause::NoGrh) for a path without a GRH on RoCE, with
    ///   [`Cause::Mtu`](crate::Cause::Mtu) for an invalid MTU, with
    ///   [`Cause::Limit`](crate::Cause::Limit) for another value out of range.
    /// - `ENODATA` with [`Cause::Gid`](crate::Cause::Gid) for an empty entry of the GID table.
    /// - Any other errno the kernel returns; notably `ENETUNREACH` and `EHOSTUNREACH` for a peer
    ///   without a route.
    ///
    /// # References
    /// `ibv_modify_qp(3)`
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_rtr(self, attr: &RtrAttr) -> Result<Qp<Rtr, P>, HandleError<Self>> {
        self.step(attr)
    }
}

impl<P: Provider> Qp<Rtr, P> {
    /// Moves the queue pair from RTR to RTS, where sends may be posted.
    ///
    /// # Errors
    /// The queue pair: `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a value out of
    /// range; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_modify_qp(3)`
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_rts(self, attr: &RtsAttr) -> Result<Qp<Rts, P>, HandleError<Self>> {
        self.step(attr)
    }
}

impl<S: State, P: Provider> Qp<S, P> {
    /// Returns the queue pair's number for peers, 24 bits.
    pub fn qp_num(&self) -> u32 {
        self.core.get().qp_num()
    }

    /// Returns the first packet sequence number sent by the queue pair, 24 bits, unless
    /// [`RtsAttr::sq_psn`] sets another.
    ///
    /// It is drawn from the system's random source when the queue pair is created and whenever
    /// [`to_reset`](Self::to_reset), [`modify_to`](Self::modify_to) or [`modify`](Self::modify)
    /// moves it to RESET. So only a program that has received the number can send acceptable
    /// packets.
    pub fn psn(&self) -> u32 {
        self.core.dependencies().psn
    }

    /// Returns the transport service.
    pub fn qp_type(&self) -> QpType {
        self.core.get().qp_type()
    }

    /// Returns its capacity.
    pub fn cap(&self) -> QpCap {
        self.core.get().cap()
    }

    /// Returns the id of this queue pair in events.
    pub fn id(&self) -> QpId {
        QpId(self.core.dependencies().entry.id)
    }

    /// Queries the state, which differs from the type's once the device has moved the queue pair to
    /// the error state.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    pub fn state(&self) -> Result<QpState> {
        self.query(QpAttrMask::STATE).map(|(attr, _)| attr.qp_state)
    }

    /// Queries the attributes of the queue pair.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EIO` once the device is gone.
    ///
    /// # References
    /// `ibv_query_qp(3)`
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)> {
        self.core.get().query(mask)
    }

    /// Changes attributes without changing the type of the handle, for changes beyond the steps
    /// from RESET to RTS.
    ///
    /// A mask with [`STATE`](QpAttrMask::STATE) moves the queue pair nevertheless;
    /// [`modify_to`](Self::modify_to) changes the type too. A move to RESET draws a new
    /// [`psn`](Self::psn).
    ///
    /// # Errors
    /// - `EINVAL` with [`Cause::IllegalTransition`](crate::Cause::IllegalTransition) for an invalid
    ///   transition, with [`Cause::TransitionAttributes`](crate::Cause::TransitionAttributes) for
    ///   missing or forbidden attributes.
    /// - For the values of attributes as [`to_init`](Qp::to_init), [`to_rtr`](Qp::to_rtr) and
    ///   [`to_rts`](Qp::to_rts). Every device rejects a number with more bits than its field
    ///   (`EINVAL` with [`Cause::Limit`](crate::Cause::Limit)): 24 bits for a queue pair number or
    ///   packet sequence number, 5 for a timer, 3 for a retry count. In C, the result depends on
    ///   the device.
    /// - For a move to RESET as [`to_reset`](Self::to_reset).
    ///
    /// # References
    /// `ibv_modify_qp(3)`
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        explain::numbers_fit(attr, mask)
            .map_err(|cause| self.error("modify_qp", Errno::INVAL).because(cause))?;
        let resets = mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::RESET;
        // Drawn first, so a failure to draw leaves no queue pair in RESET with its old number.
        let psn = resets.then(|| draw_psn(&self.core.dependencies().registry, "modify_qp")).transpose()?;
        self.core.get_mut().modify(&mut self.send.queue, &mut self.recv.queue, attr, mask)?;
        if let Some(psn) = psn {
            self.core.dependencies_mut().psn = psn;
            self.send.poster.reset();
        }
        Ok(())
    }

    /// Moves the queue pair to any state with any attributes. Sets `attr.qp_state` and
    /// [`STATE`](QpAttrMask::STATE) itself.
    ///
    /// # Errors
    /// The queue pair and an error as of [`modify`](Self::modify).
    ///
    /// # References
    /// `ibv_modify_qp(3)`
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify_to<T: State>(
        mut self,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<Qp<T, P>, HandleError<Self>> {
        let attr = QpAttr { qp_state: T::STATE, ..*attr };
        match self.modify(&attr, mask | QpAttrMask::STATE) {
            Ok(()) => Ok(self.in_state()),
            Err(error) => Err(HandleError { handle: self, error }),
        }
    }

    /// Moves the queue pair to RESET, which drops its requests without completions.
    /// [`reclaim_all`](Qp::reclaim_all) returns their memory. The queue pair gets a new
    /// [`psn`](Self::psn).
    ///
    /// # Errors
    /// The queue pair, with all memory in flight: `EBUSY` with
    /// [`Cause::InUse`](crate::Cause::InUse) if an rxe queue pair does not stay in RESET; any other
    /// errno of the kernel or of the system's random source.
    ///
    /// # References
    /// `ibv_modify_qp(3)`
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_reset(self) -> Result<Qp<Reset, P>, HandleError<Self>> {
        self.modify_to(&QpAttr::default(), QpAttrMask::empty())
    }

    /// Moves the queue pair to the error state, where its requests complete as flushed.
    ///
    /// # Errors
    /// The queue pair, and any errno the kernel returns; notably `EIO` once the device is gone.
    ///
    /// # References
    /// `ibv_modify_qp(3)`
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_error(self) -> Result<Qp<Errored, P>, HandleError<Self>> {
        self.modify_to(&QpAttr::default(), QpAttrMask::empty())
    }

    /// Returns whether [`reclaim_all`](Qp::reclaim_all) returns memory after a RESET. Otherwise
    /// only destroying the queue pair does. False for rxe before Linux 6.12 on a preemptible
    /// kernel.
    pub fn reset_ends_requests(&self) -> bool {
        self.core.get().reset_ends_requests()
    }

    /// Attaches the queue pair to a multicast group. It receives the group's datagrams from INIT
    /// on. `lid` is the group's local id on InfiniBand; Ethernet ports ignore it. Attaching twice
    /// succeeds and changes nothing; destroying the queue pair detaches it.
    ///
    /// A datagram to the group has a path to the group's address ([`AhAttr::new`]) and the
    /// destination [`UdAddr::MULTICAST_QPN`]. Each attached queue pair with the right Q_Key
    /// receives it once, including those of the sending device.
    ///
    /// ```
    /// use verbs::{AhAttr, CqInit, Gid, QpInit, QpType, UdAddr};
    ///
    /// # fn main() -> verbs::Result<()> {
    /// # let context = verbs::soft::auto()?.open()?;
    /// let pd = context.alloc_pd()?;
    /// let cq = context.create_cq(&CqInit::new(16))?;
    /// let mut qp = pd.create_qp(&QpInit::new(QpType::UD, &cq))?;
    /// let group: Gid = "239.1.2.3".parse()?;
    /// qp.attach_mcast(&group, 0)?;
    ///
    /// let to_group = pd.create_ah(&AhAttr::new(&context.find_gid(1)?, group))?;
    /// let destination = to_group.to(UdAddr::MULTICAST_QPN, 0x1111_1111);
    /// # let _ = destination;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// On Ethernet, switches forward a group's packets to hosts that joined it by IGMP or MLD. A
    /// soft device joins the group; one with an IPv4 address joins 239.x.y.z for an IPv6 group
    /// ending in the bytes x, y, z. rxe does not: a program joins with its own UDP socket on the
    /// same network interface, or through a connection manager.
    ///
    /// # Errors
    /// - `EINVAL` with [`Cause::CallOfType`](crate::Cause::CallOfType) for a service other than UD,
    ///   with [`Cause::NotMulticast`](crate::Cause::NotMulticast) for an address other than a
    ///   group's.
    /// - `ENOMEM` beyond [`max_mcast_grp`](crate::DeviceAttr::max_mcast_grp) groups or
    ///   [`max_mcast_qp_attach`](crate::DeviceAttr::max_mcast_qp_attach) queue pairs in one.
    /// - `ENETUNREACH` for an IPv4 group on a soft device with an IPv6 address, and for an IPv6
    ///   group on a loopback interface without a route for it. The error says how to add one.
    /// - Any other errno the kernel returns; notably `EOPNOTSUPP` for a device without multicast.
    ///
    /// # References
    /// `ibv_attach_mcast(3)`
    ///
    /// [`AhAttr::new`]: crate::AhAttr::new
    /// [`UdAddr::MULTICAST_QPN`]: crate::UdAddr::MULTICAST_QPN
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&mut self, gid: &Gid, lid: u16) -> Result<()> {
        self.core.get_mut().attach_mcast(gid, lid)
    }

    /// Detaches the queue pair from a multicast group attached with the same `gid` and `lid`.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::NotAttached`](crate::Cause::NotAttached) if it is not attached; any
    /// other errno the kernel returns.
    ///
    /// # References
    /// `ibv_detach_mcast(3)`
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&mut self, gid: &Gid, lid: u16) -> Result<()> {
        self.core.get_mut().detach_mcast(gid, lid)
    }

    /// Returns the provider's own queue pair, for features beyond verbs.
    pub fn raw(&self) -> &P::Qp {
        self.core.get()
    }

    /// Destroys the queue pair and releases the memory in flight. [`Window`](crate::Window)s of
    /// type 2 bound for it are deallocated first. Dropping does the same; a queue pair the kernel
    /// refuses to destroy is leaked with its memory.
    ///
    /// A dropped queue pair with flow rules stays until its last [`Flow`](crate::Flow) is dropped
    /// or closed.
    ///
    /// # Errors
    /// The queue pair: `EBUSY` with [`Cause::InUse`](crate::Cause::InUse) while it has flow rules;
    /// any other errno the kernel returns, notably `EIO` once the device is gone.
    ///
    /// # References
    /// `ibv_destroy_qp(3)`
    #[doc(alias = "ibv_destroy_qp")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        self.dismantle().map(drop)
    }

    /// Destroys the queue pair like [`close`](Self::close) and returns the memory in flight.
    ///
    /// Polling may still return earlier completions of a destroyed queue pair;
    /// [`reclaim`](crate::Completion::reclaim) returns `None` for them.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    #[doc(alias = "ibv_destroy_qp")]
    pub fn dismantle(self) -> Result<Vec<Memory>, HandleError<Self>> {
        let Self { core, send, recv, state } = self;
        match core.close() {
            Ok(mut dependencies) => {
                let mut memory = core::mem::take(&mut dependencies.undead);
                memory.append(&mut dependencies.drain());
                Ok(memory)
            }
            Err(failed) => Err(failed.map(|core| Self { core, send, recv, state })),
        }
    }

    /// Returns a flow rule's share of the queue pair.
    pub(crate) fn share(&self) -> QpUse {
        self.core.share()
    }

    /// Keeps a completion counter until the queue pair is destroyed.
    pub(crate) fn keep(&self, counter: Child) {
        self.core.dependencies().counters.lock().unwrap_or_else(PoisonError::into_inner).push(counter);
    }

    /// Returns the state of the queue pair's open device.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.core.dependencies().registry
    }

    /// Moves the queue pair with the step's attributes as required by the transition table.
    ///
    /// # Errors
    /// As [`modify_to`](Self::modify_to).
    fn step<T: State>(self, step: &impl Step) -> Result<Qp<T, P>, HandleError<Self>> {
        let (attr, mask) = (step.attr(self.psn()), required(self.qp_type(), S::STATE, T::STATE));
        self.modify_to(&attr, mask)
    }

    fn in_state<T: State>(self) -> Qp<T, P> {
        let Self { core, send, recv, state: _ } = self;
        Qp { core, send, recv, state: PhantomData }
    }
}

impl<S: CanPostRecv, P: Provider> Qp<S, P> {
    posts_recvs!();
}

impl<S: CanPostSend, P: Provider> Qp<S, P> {
    posts_sends!();
}

#[cfg(feature = "mlx5")]
impl<S: CanPostSend> Qp<S, Mlx5> {
    posts_raw_requests!();
}

impl<S: State> Qp<S, Erased> {
    /// Returns the same queue pair with its provider named. Posting then needs no indirect calls.
    ///
    /// # Errors
    /// The queue pair, when it belongs to another provider.
    // The panics below are unreachable.
    #[allow(clippy::missing_panics_doc)]
    pub fn downcast<P: NamedProvider>(self) -> Result<Qp<S, P>, HandleError<Self>> {
        let Self { core, send, recv, state } = self;
        let ours =
            send.queue.downcast_ref::<P::Sq>().is_some() && recv.queue.downcast_ref::<P::Rq>().is_some();
        let core = if ours { core.try_map(|qp| qp.downcast::<P::Qp>()) } else { Err(core) };
        let core = match core {
            Ok(core) => core,
            Err(core) => return Err(HandleError::of_another_provider(Self { core, send, recv, state })),
        };
        let sq = send.queue.downcast().expect("the type was just compared");
        let rq = recv.queue.downcast().expect("the type was just compared");
        Ok(Qp {
            core,
            send: Sender { queue: sq, poster: send.poster },
            recv: Receiver { queue: rq, poster: recv.poster },
            state: PhantomData,
        })
    }
}

impl Dependencies {
    fn drain(&mut self) -> Vec<Memory> {
        self.sends.drain().chain(self.recvs.drain()).collect()
    }
}

impl<S: State, P: Provider> fmt::Debug for Qp<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp")
            .field("qp_num", &format_args!("{:#08x}", self.qp_num()))
            .field("qp_type", &self.qp_type())
            .field("state", &S::STATE)
            .finish_non_exhaustive()
    }
}

/// Returns a random sequence number, 24 bits.
///
/// # Errors
/// Any errno of the system's random source.
fn draw_psn(registry: &Registry, verb: &'static str) -> Result<u32> {
    random::draw().map(|bits| bits & 0xff_ffff).map_err(|errno| registry.error(verb, errno))
}
