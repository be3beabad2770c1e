//! The queue pair of an id and its transitions to RTS.
//!
//! ```text
//!   create_qp ─► Qp<Init> ─► the program posts receives
//!                  │ connect                       │ accept
//!                  ▼                               ▼
//!   the id holds Qp<Init>              INIT again, RTR, RTS, ACCEPT
//!                  │ CONNECT_RESPONSE              │
//!                  ▼                               ▼
//!   INIT again, RTR, RTS, ACCEPT       the id holds Qp<Rts>
//!                  │ ESTABLISHED                   │ ESTABLISHED
//!                  ▼                               ▼
//!               take_qp ─► Qp<Rts>              take_qp ─► Qp<Rts>
//! ```
//!
//! The kernel computes the attributes of each step from the messages of both sides. INIT is set
//! again, because the access rights and the partition are known only then. If the connection fails,
//! its queue pair moves to the error state and waits for [`reclaim_qp`](CmId::reclaim_qp).
//!
//! # References
//! Linux `drivers/infiniband/core/cm.c` (`ib_cm_init_qp_attr`)

use verbs::state::{Errored, Init, Reset, Rts};
use verbs::{
    Cause, Context, Ece, Errno, Error, HandleError, InitAttr, Pd, Qp, QpAttr, QpAttrMask, QpInit, QpState,
    QpType, Result, Xrcd,
};

use super::connection::{Connection, HeldQp};
use super::{CmId, IdInner};
use crate::device::Limits;
use crate::types::PortSpace;

impl CmId {
    /// Creates a queue pair for the connection and moves it to INIT. From then on the program may
    /// post receives. [`connect`](Self::connect) or [`accept`](Self::accept) takes the queue pair;
    /// [`take_qp`](Self::take_qp) returns it when connected.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use rdmacm::{CmId, ConnParam, EventChannel, EventKind};
    /// use verbs::{CqInit, QpInit, QpType};
    ///
    /// # fn f(channel: EventChannel, id: CmId) -> verbs::Result<()> {
    /// let context = id.context()?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(16))?);
    /// let mut qp = id.create_qp(&pd, &QpInit::new(QpType::RC, &cq))?;
    /// qp.post_recv_buf(pd.alloc_buf(4096)?, ..)?;
    /// id.connect(qp, &ConnParam::default())?;
    /// while !matches!(channel.next_event()?.ok()?.kind, EventKind::Established(_)) {}
    /// let qp = id.take_qp().expect("the connection is established");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// `init` may name a shared receive queue, as for any queue pair. The id determines the type
    /// ([`qp_type`](Self::qp_type)). With XRC, only the connecting side uses this call; the
    /// listening side has a [target](Self::create_target).
    ///
    /// # Errors
    /// - `EINVAL` for an id without a device.
    /// - `EINVAL` with [`Cause::Foreign`] for a protection domain of another device, with
    ///   [`Cause::QpType`] for a datagram queue pair.
    /// - The errors of [`Pd::create_qp`] and [`Qp::to_init`](verbs::Qp::to_init).
    ///
    /// # References
    /// `rdma_create_qp(3)`, `rdma_create_qp_ex(3)`
    #[doc(alias = "rdma_create_qp")]
    #[doc(alias = "rdma_create_qp_ex")]
    #[doc(alias = "rdma_create_srq")]
    pub fn create_qp(&self, pd: &Pd, init: &QpInit) -> Result<Qp<Init>> {
        const VERB: &str = "create_qp";
        if init.qp_type == QpType::UD {
            return Err(self.inner.wrong_type(VERB, init.qp_type));
        }
        self.inner.on_device(VERB, pd.context(), "protection domain")?;
        let qp = pd.create_qp(init)?;
        self.inner.begin(qp, pd.context(), init.srq.is_some())
    }

    /// Creates the XRC target of a connection and moves it to INIT. [`accept`](Self::accept) takes
    /// the target, like a queue pair created by [`create_qp`](Self::create_qp);
    /// [`take_qp`](Self::take_qp) returns it when connected.
    ///
    /// The id must be of the type [`XRC_RECV`](verbs::QpType::XRC_RECV), as a listener or a
    /// listener's request ([`create_id_of`](crate::EventChannel::create_id_of), in the space
    /// [`IB`](crate::PortSpace::IB)). The peer's id has the type
    /// [`XRC_SEND`](verbs::QpType::XRC_SEND). The accepting program can send the number of a shared
    /// receive queue of the domain in its private data.
    ///
    /// # Errors
    /// - `EINVAL` for an id without a device or of another type.
    /// - `EINVAL` with [`Cause::Foreign`] for a domain of another device.
    /// - The errors of [`Xrcd::create_target`], notably `EOPNOTSUPP` for a device without XRC, and
    ///   of [`Qp::to_init`](verbs::Qp::to_init).
    ///
    /// # References
    /// `rdma_create_qp_ex(3)`
    #[doc(alias = "rdma_create_qp_ex")]
    pub fn create_target(&self, xrcd: &Xrcd) -> Result<Qp<Init>> {
        const VERB: &str = "create_qp";
        if self.inner.qp_type != QpType::XRC_RECV {
            let reason = format!("an id of the type {} has no XRC target", self.inner.qp_type);
            let error = Error::new(VERB, "", Errno::INVAL).because(Cause::Other { reason: reason.into() });
            return Err(self.inner.named(error));
        }
        self.inner.on_device(VERB, xrcd.context(), "XRC domain")?;
        self.inner.begin(xrcd.create_target()?, xrcd.context(), true)
    }

    /// Creates a datagram queue pair and moves it to RTS, where it can send to any peer without a
    /// connection. A listening program passes the queue pair number to
    /// [`accept_with`](Self::accept_with).
    ///
    /// # Errors
    /// The errors of [`create_qp`](Self::create_qp); `EINVAL` with [`Cause::QpType`] for another
    /// type.
    ///
    /// # References
    /// `rdma_create_qp(3)`
    #[doc(alias = "rdma_create_qp")]
    pub fn create_ud_qp(&self, pd: &Pd, init: &QpInit) -> Result<Qp<Rts>> {
        const VERB: &str = "create_qp";
        if init.qp_type != QpType::UD {
            return Err(self.inner.wrong_type(VERB, init.qp_type));
        }
        self.inner.on_device(VERB, pd.context(), "protection domain")?;
        let qp = self.inner.to_init(pd.create_qp(init)?, pd.context())?;
        self.inner.connection().made = Some((qp.qp_num(), init.srq.is_some()));
        let sq_psn = qp.psn();
        let qp = qp.modify_to::<verbs::state::Rtr>(&QpAttr::default(), QpAttrMask::empty())?;
        Ok(qp.modify_to(&QpAttr { sq_psn, ..QpAttr::default() }, QpAttrMask::SQ_PSN)?)
    }

    /// Returns the connected queue pair; `None` if the id holds no queue pair in RTS.
    ///
    /// The queue pair is available from [`Established`](crate::EventKind::Established) on at the
    /// connecting side, from [`accept`](Self::accept) on at the accepting side. Messages sent
    /// before [`Established`](crate::EventKind::Established) may reach a peer before it is ready;
    /// they are retried.
    pub fn take_qp(&self) -> Option<Qp<Rts>> {
        let mut connection = self.inner.connection();
        match core::mem::take(&mut connection.qp) {
            HeldQp::Rts(qp) => Some(qp),
            held => {
                connection.qp = held;
                None
            }
        }
    }

    /// Returns the queue pair held by the id, in the error state, where posted requests complete as
    /// flushed. Use this call after a reject or a failure, or to give up. Returns `None` if the id
    /// holds no queue pair.
    ///
    /// # Errors
    /// Any errno the kernel returns for the transition, notably `EIO` once the device is gone. The
    /// id then keeps the queue pair.
    pub fn reclaim_qp(&self) -> Result<Option<Qp<Errored>>> {
        let mut connection = self.inner.connection();
        let (held, moved) = core::mem::take(&mut connection.qp).fail();
        match held {
            HeldQp::Errored(qp) => Ok(Some(qp)),
            held => {
                connection.qp = held;
                moved.map(|()| None)
            }
        }
    }

    /// Returns the attributes for moving the program's own queue pair to `state`. Their mask lacks
    /// the kernel-only bits.
    ///
    /// The attributes are for queue pairs not created by the id: INIT once the id has a device, RTR
    /// and RTS after [`ConnectResponse`](crate::EventKind::ConnectResponse) or before
    /// [`accept_with`](Self::accept_with). Set INIT again before RTR.
    ///
    /// `min_rnr_timer` has the value set by [`set_min_rnr_timer`](Self::set_min_rnr_timer). Its
    /// default is [`MIN_RNR_TIMER`](crate::ConnParam::MIN_RNR_TIMER) on soft devices. The kernel
    /// returns 0, the longest time (655.36 ms), which a program should replace.
    ///
    /// # Errors
    /// `EINVAL` for an id without a device or a state that the connection does not permit yet
    /// (before the request, Linux returns the attributes of INIT instead); any other errno the
    /// kernel returns.
    ///
    /// # References
    /// `rdma_init_qp_attr(3)`
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask)> {
        let (mut attr, mask) = self.inner.explained(self.inner.backend.init_qp_attr(state))?;
        if let Some(timer) = self.inner.connection().min_rnr_timer {
            attr.min_rnr_timer = timer;
        }
        Ok((attr, mask))
    }

    /// Sets the ECE options that this side offers for a queue pair whose state the program changes
    /// itself ([`connect_with`](Self::connect_with), [`accept_with`](Self::accept_with)). A queue
    /// pair created through the id already has ECE options.
    ///
    /// # References
    /// `rdma_set_local_ece(3)`
    #[doc(alias = "rdma_set_local_ece")]
    pub fn set_local_ece(&self, ece: Ece) {
        self.inner.connection().local_ece = ece;
    }

    /// Returns the peer's enhanced connection establishment (ECE) options; vendor 0 means none.
    ///
    /// # References
    /// `rdma_get_remote_ece(3)`
    #[doc(alias = "rdma_get_remote_ece")]
    pub fn remote_ece(&self) -> Ece {
        self.inner.connection().remote_ece
    }
}

impl IdInner {
    /// Moves a new queue pair to INIT. For a request, also negotiates the ECE options with the
    /// peer.
    fn begin(&self, mut qp: Qp<Reset>, context: &Context, has_srq: bool) -> Result<Qp<Init>> {
        let offered = ece_of(qp.query_ece())?;
        let mut connection = self.connection();
        let remote = connection.remote_ece;
        if remote.vendor_id != 0 {
            // For a request, the provider gets the peer's ECE options if they are from the same
            // vendor, otherwise no options.
            let options = if remote.vendor_id == offered.vendor_id { remote.options } else { 0 };
            supported(qp.set_ece(&Ece { options, ..offered }))?;
        }
        let qp = self.to_init(qp, context)?;
        connection.local_ece = if remote.vendor_id == 0 { offered } else { ece_of(qp.query_ece())? };
        connection.made = Some((qp.qp_num(), has_srq));
        Ok(qp)
    }

    /// After the peer's reply, moves the id's queue pair to RTS and sends the final message to the
    /// peer. Returns `None` if the id holds no queue pair, because the program changes its queue
    /// pair's state itself.
    // Not inlined, because the function needs 6 KiB of stack, which most callers then need not
    // reserve.
    #[inline(never)]
    pub(crate) fn respond(&self, remote: Ece) -> Option<Result<()>> {
        let mut connection = self.connection();
        let qp = match core::mem::take(&mut connection.qp) {
            HeldQp::Init(qp) => qp,
            held => {
                connection.qp = held;
                connection.remote_ece = remote;
                return None;
            }
        };
        let result = self.agree(&mut connection, &qp, remote);
        let result = match result {
            Ok(ece) => self.to_rts(qp, ece, None, connection.rnr_timer()),
            Err(error) => Err((HeldQp::Init(qp), error)),
        };
        let outcome = match result {
            Ok(qp) => {
                connection.local_ece.options = ece_of(qp.query_ece()).unwrap_or_default().options;
                let told = self.backend.accept(0, None, Ece::default());
                connection.qp = HeldQp::Rts(qp);
                told
            }
            Err((held, error)) => {
                connection.qp = held;
                Err(error)
            }
        };
        if outcome.is_err() {
            connection.qp = core::mem::take(&mut connection.qp).failed();
            connection.failed = true;
        }
        Some(outcome)
    }

    /// Moves the queue pair to RTS for an accept. The id takes the queue pair even after an error.
    pub(super) fn prepare(&self, connection: &mut Connection, qp: Qp<Init>, depths: Limits) -> Result<()> {
        match self.to_rts(qp, None, Some(depths), connection.rnr_timer()) {
            Ok(qp) => {
                connection.qp = HeldQp::Rts(qp);
                Ok(())
            }
            Err((held, error)) => {
                connection.qp = held.failed();
                Err(error)
            }
        }
    }

    /// Returns whether the connection failed after the peer's reply.
    pub(crate) fn has_failed(&self) -> bool {
        self.connection().failed
    }

    /// Moves the id's queue pair to the error state.
    pub(crate) fn fail_qp(&self) {
        let mut connection = self.connection();
        connection.qp = core::mem::take(&mut connection.qp).failed();
    }

    /// Returns the ECE options for the queue pair after the peer's reply; `None` if there are none.
    ///
    /// # Errors
    /// `EINVAL` for a reply with options from a vendor other than the offered vendor.
    fn agree(&self, connection: &mut Connection, qp: &Qp<Init>, remote: Ece) -> Result<Option<Ece>> {
        connection.remote_ece = remote;
        let local = connection.local_ece;
        if local.vendor_id == 0 {
            return Ok(None);
        }
        if remote.vendor_id == 0 {
            return Ok(Some(Ece { options: 0, ..local }));
        }
        if remote.vendor_id != local.vendor_id {
            let reason = format!(
                "the peer replied for queue pair {:#x} with options of the vendor {:#x}, and was offered those of {:#x}",
                qp.qp_num(),
                remote.vendor_id,
                local.vendor_id
            );
            let error =
                Error::new("connect", "", Errno::INVAL).because(Cause::Other { reason: reason.into() });
            return Err(self.named(error));
        }
        Ok(Some(remote))
    }

    /// Moves a new queue pair to INIT with the id's attributes.
    fn to_init(&self, qp: Qp<Reset>, context: &Context) -> Result<Qp<Init>> {
        if self.backend.computes_init() {
            let (attr, mask) = self.explained(self.backend.init_qp_attr(QpState::INIT))?;
            return Ok(qp.modify_to(&attr, mask)?);
        }
        let addresses = self.explained(self.backend.addresses())?;
        let port_num = addresses.port_num;
        let pkey_index = context.pkey_index(port_num, addresses.pkey)?;
        let qkey = if self.is_ud() { PortSpace::UDP_QKEY } else { 0 };
        Ok(qp.to_init(&InitAttr { port_num, pkey_index, qkey, ..InitAttr::default() })?)
    }

    /// Moves a queue pair from INIT to RTS with the connection's attributes. `depths` replaces the
    /// limits on outstanding reads and atomics. `rnr_timer` replaces the delay before a peer
    /// repeats a message that found no receive.
    fn to_rts(
        &self,
        mut qp: Qp<Init>,
        ece: Option<Ece>,
        depths: Option<Limits>,
        rnr_timer: u8,
    ) -> Result<Qp<Rts>, (HeldQp, Error)> {
        let steps = || -> Result<_> {
            let attr = |state| self.explained(self.backend.init_qp_attr(state));
            Ok((attr(QpState::INIT)?, attr(QpState::RTR)?, attr(QpState::RTS)?))
        };
        let (init, (mut rtr, rtr_mask), (mut rts, rts_mask)) = match steps() {
            Ok(steps) => steps,
            Err(error) => return Err((HeldQp::Init(qp), error)),
        };
        rtr.min_rnr_timer = rnr_timer;
        if let Some(depths) = depths {
            rtr.max_dest_rd_atomic = depths.responder_resources;
            rts.max_rd_atomic = depths.initiator_depth;
        }
        let started = match ece {
            Some(ece) => supported(qp.set_ece(&ece)),
            None => Ok(()),
        };
        if let Err(error) = started.and_then(|()| qp.modify(&init.0, init.1)) {
            return Err((HeldQp::Init(qp), error));
        }
        let qp = match qp.modify_to::<verbs::state::Rtr>(&rtr, rtr_mask) {
            Ok(qp) => qp,
            Err(HandleError { handle, error }) => return Err((HeldQp::Init(handle), error)),
        };
        qp.modify_to::<Rts>(&rts, rts_mask).map_err(|HandleError { handle, error }| {
            let held = match handle.to_error() {
                Ok(qp) => HeldQp::Errored(qp),
                // The id can hold a queue pair in neither state, so the queue pair is dropped here.
                Err(_) => HeldQp::None,
            };
            (held, error)
        })
    }

    /// Checks that a parent object belongs to the id's device. Records the device's limits.
    fn on_device(&self, verb: &'static str, context: &Context, what: &'static str) -> Result<()> {
        let (_, device) = self.device(verb)?;
        if context.device_name() != device.name() {
            let cause = Cause::Foreign { what };
            return Err(Error::new(verb, device.name(), Errno::INVAL).because(cause));
        }
        if self.limits.get().is_none() {
            let limits = Limits::from_context(context)?;
            let _ = self.limits.set(limits);
        }
        Ok(())
    }

    fn wrong_type(&self, verb: &'static str, qp_type: QpType) -> Error {
        let call = if qp_type == QpType::UD { "create_ud_qp" } else { "create_qp" };
        let reason = format!("a queue pair of the type {qp_type} is made by {call}");
        self.named(Error::new(verb, "", Errno::INVAL).because(Cause::Other { reason: reason.into() }))
    }
}

/// Checks that a timer fits into 5 bits.
///
/// # Errors
/// `EINVAL` with [`Cause::Limit`] for a value above 31.
pub(super) fn rnr_timer(verb: &'static str, timer: Option<u8>) -> Result<Option<u8>> {
    const MAX: u8 = 31;
    match timer {
        Some(asked) if asked > MAX => {
            let (asked, max) = (asked.into(), MAX.into());
            let cause = Cause::Limit { name: "min_rnr_timer", asked, min: 0, max };
            Err(Error::new(verb, "", Errno::INVAL).because(cause))
        }
        timer => Ok(timer),
    }
}

/// Returns the ECE options of a queue pair; no options if the provider does not support ECE.
fn ece_of(queried: Result<Ece>) -> Result<Ece> {
    match queried {
        Err(error) if error.errno == Errno::OPNOTSUPP => Ok(Ece::default()),
        queried => queried,
    }
}

/// Returns the result of setting ECE options, but ignores missing support in the provider.
fn supported(set: Result<()>) -> Result<()> {
    match set {
        Err(error) if error.errno == Errno::OPNOTSUPP => Ok(()),
        set => set,
    }
}
