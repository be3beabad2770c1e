//! [`Qp`]: a queue pair, what may be posted to it, and where it can go.
//!
//! | file | what it is |
//! |---|---|
//! | [`state`] | the states as types, and what each may do |
//! | [`attr`] | what a queue pair is created with and moved with |
//! | [`parked`] | the table of parked buffers, and why safe posting is sound: read this first |
//! | [`half`] | the two halves, for two threads; the queue pair's own posting goes through them |
//!
//! # Safety
//! The unsafe code here is raw posting, which passes the caller's promise on.

#![allow(unsafe_code)]

pub(crate) mod attr;
pub(crate) mod half;
pub(crate) mod parked;
pub mod state;

use core::fmt;
use core::marker::PhantomData;
use core::ops::RangeBounds;
use std::sync::Arc;

use verbs_core::provider::{ContextOps, Erased, NamedProvider, Provider, QpOps};
use verbs_core::types::{
    PostError, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpInitInfo, QpState, QpType, RecvWr, SendFlags, SendOp,
    SendWr,
};
use verbs_core::{Error, Result, random};

use crate::live::Live;
use crate::registry::{Child, Entry, Kind, QpId, Registry};
use crate::{Buf, Completion, Pd};
use attr::{InitAttr, QpInit, RtrAttr, RtsAttr, Step, required};
use half::{RecvHalf, SendHalf};
use parked::{Lot, Parcel, ParkError, ParkReason, is_recv};
use state::{CanPostRecv, CanPostSend, Errored, Init, Reset, Rtr, Rts, State};

/// A queue pair. `S` is the [state](state) that the program moved it to, which says what may be posted; who posts owns it:
/// `&mut` is the lock.
///
/// # References
/// `ibv_create_qp(3)`, `ibv_modify_qp(3)`, `ibv_post_send(3)`
#[doc(alias = "ibv_qp")]
pub struct Qp<S: State, P: Provider = Erased> {
    live: Live<P::Qp, Kept>,
    state: PhantomData<fn() -> S>,
}

/// What is released once the queue pair is destroyed.
struct Kept {
    sends: Lot,
    recvs: Lot,
    /// Buffers parked before a RESET that does not end requests: they stay until the queue pair is destroyed.
    limbo: Vec<Parcel>,
    entry: Entry,
    registry: Arc<Registry>,
    psn: u32,
    _pd: Child,
}

impl<P: Provider> Qp<Reset, P> {
    pub(crate) fn create(pd: &Pd<P>, init: &QpInit<'_, P>) -> Result<Self> {
        let registry = pd.context().registry();
        let send_cq = init.send_cq.share(registry)?;
        let recv_cq = init.recv_cq.share(registry)?;
        let psn = draw_psn(registry, "create_qp")?;
        let entry = registry.enter(Kind::Qp);
        let attr = QpInitAttr {
            qp_type: init.qp_type,
            cap: init.cap,
            sq_sig_all: init.sq_sig_all,
            user_handle: entry.id.0,
        };
        let context = pd.context().raw();
        let raw = context.create_qp(pd.raw(), init.send_cq.raw(), init.recv_cq.raw(), &attr)?;
        let cap = raw.cap();
        let kept = Kept {
            sends: Lot::sends(pd.id(), send_cq, cap.max_send_wr),
            recvs: Lot::recvs(pd.id(), recv_cq, cap.max_recv_wr),
            limbo: Vec::new(),
            entry,
            registry: Arc::clone(registry),
            psn,
            _pd: pd.child_qp(),
        };
        Ok(Self { live: Live::new(raw, kept), state: PhantomData })
    }

    /// RESET to INIT: from here on receives may be posted.
    ///
    /// # Errors
    /// The queue pair, and what the kernel answers.
    ///
    /// # References
    /// `ibv_modify_qp(3)`
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_init(self, attr: &InitAttr) -> Result<Qp<Init, P>, (Self, Error)> {
        self.step(attr)
    }

    /// Returns what was still parked when the queue pair was reset: it has no completions any more.
    ///
    /// Empty where the device may go on writing after a RESET
    /// ([`reset_ends_requests`](Self::reset_ends_requests)). The buffers stay with the queue pair then, outside of its tables, until [`dismantle`](Self::dismantle)
    /// returns them.
    pub fn reclaim_all(&mut self) -> Vec<Parcel> {
        let (raw, kept) = self.live.parts_mut();
        let parcels = kept.drain();
        if raw.reset_ends_requests() {
            return parcels;
        }
        kept.limbo.extend(parcels);
        Vec::new()
    }
}

impl<P: Provider> Qp<Init, P> {
    /// INIT to RTR: from here on messages arrive.
    ///
    /// # Errors
    /// The queue pair, and what the kernel answers.
    ///
    /// # References
    /// `ibv_modify_qp(3)`
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_rtr(self, attr: &RtrAttr) -> Result<Qp<Rtr, P>, (Self, Error)> {
        self.step(attr)
    }
}

impl<P: Provider> Qp<Rtr, P> {
    /// RTR to RTS: from here on sends may be posted.
    ///
    /// # Errors
    /// The queue pair, and what the kernel answers.
    ///
    /// # References
    /// `ibv_modify_qp(3)`
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_rts(self, attr: &RtsAttr) -> Result<Qp<Rts, P>, (Self, Error)> {
        self.step(attr)
    }
}

impl<S: State, P: Provider> Qp<S, P> {
    /// The number that peers address it by, 24 bits.
    pub fn qp_num(&self) -> u32 {
        self.live.get().qp_num()
    }

    /// The packet sequence number that it sends first unless [`RtsAttr::sq_psn`] says otherwise, 24 bits: tell it to the peer.
    ///
    /// It is drawn from the system's random source when the queue pair is made and each time that
    /// [`to_reset`](Self::to_reset), [`modify_to`](Self::modify_to) or [`modify`](Self::modify) moves it to RESET, so that
    /// only a peer that was told sends what it accepts.
    pub fn psn(&self) -> u32 {
        self.live.kept().psn
    }

    /// The transport service.
    pub fn qp_type(&self) -> QpType {
        self.live.get().qp_type()
    }

    /// How much it holds.
    pub fn cap(&self) -> QpCap {
        self.live.get().cap()
    }

    /// What events of this queue pair carry.
    pub fn id(&self) -> QpId {
        QpId(self.live.kept().entry.id)
    }

    /// Asks the kernel where it stands: the device may have moved it to the error state.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn state(&self) -> Result<QpState> {
        self.query(QpAttrMask::STATE).map(|(attr, _)| attr.qp_state)
    }

    /// Asks the kernel for its attributes.
    ///
    /// # Errors
    /// What the kernel answers.
    ///
    /// # References
    /// `ibv_query_qp(3)`
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)> {
        self.live.get().query(mask)
    }

    /// Changes attributes, and leaves the handle's type as it is: for what the steps of the ladder do not cover.
    ///
    /// A mask with [`STATE`](QpAttrMask::STATE) moves the queue pair all the same; [`modify_to`](Self::modify_to) moves the
    /// type with it. A move to RESET draws a new [`psn`](Self::psn).
    ///
    /// # Errors
    /// [`Cause::IllegalTransition`](crate::Cause::IllegalTransition) and
    /// [`Cause::TransitionAttributes`](crate::Cause::TransitionAttributes) with what is missing or not taken; otherwise any
    /// errno that the kernel returns or, before a move to RESET, the system's random source.
    ///
    /// # References
    /// `ibv_modify_qp(3)`
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let resets = mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::RESET;
        // Drawn first: a queue pair that was reset never keeps the old number because there is no new one.
        let psn = resets.then(|| draw_psn(&self.live.kept().registry, "modify_qp")).transpose()?;
        self.live.get_mut().modify(attr, mask)?;
        if let Some(psn) = psn {
            self.live.kept_mut().psn = psn;
        }
        Ok(())
    }

    /// Moves it to any state, with any attributes; `attr.qp_state` and [`STATE`](QpAttrMask::STATE) are filled in.
    ///
    /// # Errors
    /// The queue pair, and why as of [`modify`](Self::modify).
    ///
    /// # References
    /// `ibv_modify_qp(3)`
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify_to<T: State>(mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<Qp<T, P>, (Self, Error)> {
        let attr = QpAttr { qp_state: T::STATE, ..*attr };
        match self.modify(&attr, mask | QpAttrMask::STATE) {
            Ok(()) => Ok(Qp { live: self.live, state: PhantomData }),
            Err(error) => Err((self, error)),
        }
    }

    /// Takes it back to RESET: what was posted is forgotten, without completions. [`reclaim_all`](Qp::reclaim_all) gives
    /// back what was parked. It gets a new [`psn`](Self::psn).
    ///
    /// # Errors
    /// The queue pair, with all that is parked, and any errno the kernel or the system's random source returns; `EBUSY` where
    /// it does not stay in RESET.
    pub fn to_reset(self) -> Result<Qp<Reset, P>, (Self, Error)> {
        self.modify_to(&QpAttr::default(), QpAttrMask::empty())
    }

    /// Moves it to the error state: what was posted completes as flushed.
    ///
    /// # Errors
    /// The queue pair, and what the kernel answers.
    pub fn to_error(self) -> Result<Qp<Errored, P>, (Self, Error)> {
        self.modify_to(&QpAttr::default(), QpAttrMask::empty())
    }

    /// The buffers of a parked request that has completed, whether well or not; `None` when the completion is of something
    /// else: another queue pair, a raw request, one that was reclaimed before, a completion of a queue that is not its own.
    #[inline]
    pub fn reclaim<Q: Provider>(&mut self, completion: &Completion<'_, Q>) -> Option<Parcel> {
        let wr_id = completion.wr_id();
        let kept = self.live.kept_mut();
        let lot = if is_recv(wr_id) { &mut kept.recvs } else { &mut kept.sends };
        lot.reclaim(completion)
    }

    /// Returns whether [`reclaim_all`](Qp::reclaim_all) gives buffers back after a RESET; if not, they come back when the
    /// queue pair is destroyed. False for rxe before Linux 6.12 on a preemptible kernel.
    pub fn reset_ends_requests(&self) -> bool {
        self.live.get().reset_ends_requests()
    }

    /// The provider's own queue pair, for what it has beyond verbs.
    pub fn raw(&self) -> &P::Qp {
        self.live.get()
    }

    /// Destroys it, and frees what is still parked. Dropping does the same, and leaks what the kernel refuses to take back.
    ///
    /// # Errors
    /// The queue pair, and what the kernel answers.
    ///
    /// # References
    /// `ibv_destroy_qp(3)`
    #[doc(alias = "ibv_destroy_qp")]
    pub fn close(self) -> Result<(), (Self, Error)> {
        self.dismantle().map(drop)
    }

    /// Destroys it, and gives back what is still parked.
    ///
    /// # Errors
    /// The queue pair, and what the kernel answers.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn dismantle(self) -> Result<Vec<Parcel>, (Self, Error)> {
        match self.live.close() {
            Ok(mut kept) => {
                let mut parcels = core::mem::take(&mut kept.limbo);
                parcels.append(&mut kept.drain());
                Ok(parcels)
            }
            Err((live, error)) => Err((Self { live, state: PhantomData }, error)),
        }
    }

    /// A step of the ladder: what the table requires, from the step's attributes.
    fn step<T: State>(self, step: &impl Step) -> Result<Qp<T, P>, (Self, Error)> {
        let (attr, mask) = (step.attr(self.psn()), required(self.qp_type(), S::STATE, T::STATE));
        self.modify_to(&attr, mask)
    }
}

impl<S: CanPostRecv, P: Provider> Qp<S, P> {
    /// Posts receives, raw: layer 1, for any scheme of ownership.
    ///
    /// # Safety
    /// From here until its completion was polled (or the queue pair was destroyed or reset) the device may write the memory
    /// of every SGE: nobody may free it or touch it. Each `wr_id` has its top bit clear: the others are those of parked
    /// requests.
    ///
    /// # Errors
    /// How many were accepted, and why the next was not. The device owns the memory of those accepted.
    ///
    /// # References
    /// `ibv_post_recv(3)`
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.live.get_mut().post_recv(wrs) }
    }

    /// Parks a buffer to receive into a range of it; [`reclaim`](Self::reclaim) gives it back when a message has come.
    ///
    /// Answers the request's number. The first call of a queue allocates its table.
    ///
    /// # Errors
    /// The buffer, and why it was not accepted.
    ///
    /// # References
    /// `ibv_post_recv(3)`
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn park_recv(&mut self, buf: Buf, range: impl RangeBounds<usize>) -> Result<u64, ParkError<Buf>> {
        self.recv_half().park_recv(buf, range)
    }

    /// Parks any number of buffers to receive one message into all of them, in their order.
    ///
    /// # Errors
    /// The buffers, and why they were not accepted.
    #[doc(alias = "ibv_post_recv")]
    pub fn park_recv_all(&mut self, bufs: Vec<Buf>) -> Result<u64, ParkError<Vec<Buf>>> {
        self.recv_half().park_recv_all(bufs)
    }

    /// The receive half alone.
    #[inline]
    pub fn recv_half(&mut self) -> RecvHalf<'_, P> {
        let (raw, kept) = self.live.parts_mut();
        RecvHalf { queue: raw.halves().1, lot: &mut kept.recvs }
    }
}

impl<S: CanPostSend, P: Provider> Qp<S, P> {
    /// Posts sends, raw: layer 1, for any scheme of ownership. The device is told once.
    ///
    /// # Safety
    /// From here until its completion was polled (or the queue pair was destroyed or reset) the device reads the memory of
    /// every SGE, and for RDMA reads and atomics writes it: nobody may free it, and nobody may touch it in conflict. An
    /// unsignalled request has ended when a later one of this queue completed. With [`SendFlags::INLINE`] every SGE is memory
    /// of this process that is read now, by its address, and is free when the call returns. Each `wr_id` has its top bit
    /// clear: the others are those of parked requests.
    ///
    /// # Errors
    /// How many were accepted, and why the next was not. The device owns the memory of those accepted.
    ///
    /// # References
    /// `ibv_post_send(3)`
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.live.get_mut().post_send(wrs) }
    }

    /// Parks a buffer while a range of it is sent, written to the peer, or read into; [`reclaim`](Self::reclaim) gives it
    /// back when that has ended. The request is signalled, whatever the flags say.
    ///
    /// Answers the request's number. The first call of a queue allocates its table.
    ///
    /// # Errors
    /// The buffer, and why it was not accepted.
    ///
    /// # References
    /// `ibv_post_send(3)`
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn park_send(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        buf: Buf,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, ParkError<Buf>> {
        self.send_half().park_send(op, flags, buf, range)
    }

    /// Parks any number of buffers while they are sent as one message, in their order (or read into).
    ///
    /// # Errors
    /// The buffers, and why they were not accepted.
    #[doc(alias = "ibv_post_send")]
    pub fn park_send_all(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        bufs: Vec<Buf>,
    ) -> Result<u64, ParkError<Vec<Buf>>> {
        self.send_half().park_send_all(op, flags, bufs)
    }

    /// Sends, or writes to the peer, bytes that are copied into the queue now. Nothing is parked; `wr_id` is the caller's,
    /// and comes back if the request is signalled or fails.
    ///
    /// # Errors
    /// Why it was not accepted: more bytes than [`QpCap::max_inline_data`], a `wr_id` with the top bit set, or an operation
    /// that writes local memory, among others.
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn send_inline(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        data: &[u8],
    ) -> Result<(), ParkReason> {
        self.send_half().send_inline(wr_id, op, flags, data)
    }

    /// The send half alone.
    #[inline]
    pub fn send_half(&mut self) -> SendHalf<'_, P> {
        self.split().0
    }

    /// Both halves, for two threads.
    ///
    /// ```no_run
    /// # fn f(mut qp: verbs::Qp<verbs::state::Rts>, out: verbs::Buf, into: verbs::Buf) {
    /// # use verbs::{SendFlags, SendOp};
    /// let (mut send, mut recv) = qp.split();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(move || send.park_send(SendOp::Send, SendFlags::empty(), out, ..).is_ok());
    ///     scope.spawn(move || recv.park_recv(into, ..).is_ok());
    /// });
    /// # }
    /// ```
    #[inline]
    pub fn split(&mut self) -> (SendHalf<'_, P>, RecvHalf<'_, P>) {
        let (raw, kept) = self.live.parts_mut();
        let (sq, rq) = raw.halves();
        (SendHalf { queue: sq, lot: &mut kept.sends }, RecvHalf { queue: rq, lot: &mut kept.recvs })
    }
}

impl<S: State> Qp<S, Erased> {
    /// The same queue pair with its provider named: posting needs no indirect calls.
    ///
    /// # Errors
    /// The queue pair, when it is of another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Qp<S, P>, Self> {
        match self.live.try_map(|raw| raw.downcast::<P::Qp>()) {
            Ok(live) => Ok(Qp { live, state: PhantomData }),
            Err(live) => Err(Self { live, state: PhantomData }),
        }
    }
}

impl Kept {
    fn drain(&mut self) -> Vec<Parcel> {
        let mut parcels: Vec<_> = self.sends.drain().collect();
        parcels.extend(self.recvs.drain());
        parcels
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

/// A sequence number that strangers cannot guess, 24 bits.
fn draw_psn(registry: &Registry, verb: &'static str) -> Result<u32> {
    random::draw().map(|bits| bits & 0xff_ffff).map_err(|errno| registry.error(verb, errno))
}
