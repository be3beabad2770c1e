//! [`Qp`]: a queue pair and its states.
//!
//! | file | content |
//! |---|---|
//! | [`state`] | the states as types and what each permits |
//! | [`attr`] | the attributes of creation and of each step |
//! | [`create`] | creating queue pairs and opening XRC targets |
//! | [`control`] | the control object, kept alive by flow rules |
//! | [`endpoint`] | [`Endpoint`](endpoint::Endpoint): a queue pair's address and connecting |
//! | [`modify`] | draining, resuming, pacing, connection options |
//! | [`post`] | posting, raw and safe, and batches |
//! | [`scope`] | borrowed memory, posted in a scope that ends its requests |
//! | [`split`] | the two halves, owned, for two threads |
//!
//! The argument for safe posting is in [`crate::in_flight`].

pub(crate) mod attr;
mod control;
mod create;
pub(crate) mod endpoint;
mod modify;
pub(crate) mod post;
pub(crate) mod scope;
pub(crate) mod split;
pub mod state;

use core::fmt;
use core::marker::PhantomData;
use std::sync::{Arc, PoisonError};

use verbs_core::provider::{Erased, NamedProvider, Provider, QpOps};
use verbs_core::types::{Gid, QpAttr, QpAttrMask, QpCap, QpInitInfo, QpState, QpType};
use verbs_core::{Errno, Result, explain, random};

use crate::handle::error::HandleError;
use crate::handle::registry::{Child, QpId, Registry};
use crate::memory::Memory;
use crate::queue::receiver::Receiver;
use attr::{InitAttr, RtrAttr, RtsAttr, Step, required};
use control::Core;
pub(crate) use control::QpUse;
use post::Sender;
use state::{Errored, Init, Reset, Rtr, Rts, State};

/// A queue pair. `S` is the [state](state) set by the program; it determines what may be posted.
/// Posting takes `&mut self`, so it needs no lock. [`into_split`](Self::into_split) splits the
/// queue pair for two posters.
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

impl<P: Provider> Qp<Reset, P> {
    /// Moves the queue pair from RESET to INIT, where receives may be posted.
    ///
    /// # Errors
    /// Returns the queue pair with the error: `EINVAL` with [`Cause::Limit`](crate::Cause::Limit)
    /// for an invalid port or partition key index; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_modify_qp(3)`
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_init(self, attr: &InitAttr) -> Result<Qp<Init, P>, HandleError<Self>> {
        self.step(attr)
    }

    /// Returns the memory that was in flight when the queue pair was reset. The requests that used
    /// it will not complete.
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
    /// Moves the queue pair from INIT to RTR, where the queue pair receives messages.
    ///
    /// # Errors
    /// Returns the queue pair with the error:
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
    /// Returns the queue pair with the error: `EINVAL` with [`Cause::Limit`](crate::Cause::Limit)
    /// for a value out of range; any other errno the kernel returns.
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

    /// Returns the queue pair's first packet sequence number, 24 bits, unless [`RtsAttr::sq_psn`]
    /// sets another.
    ///
    /// The number is drawn from the system's random source when the queue pair is created and
    /// whenever [`to_reset`](Self::to_reset), [`modify_to`](Self::modify_to) or
    /// [`modify`](Self::modify) moves it to RESET. So only a program that has received the number
    /// can send acceptable packets.
    pub fn psn(&self) -> u32 {
        self.core.dependencies().psn
    }

    /// Returns the queue pair's transport service.
    pub fn qp_type(&self) -> QpType {
        self.core.get().qp_type()
    }

    /// Returns the queue pair's capacity.
    pub fn cap(&self) -> QpCap {
        self.core.get().cap()
    }

    /// Returns the id of this queue pair in events.
    pub fn id(&self) -> QpId {
        QpId(self.core.dependencies().entry.id)
    }

    /// Queries the actual state, which differs from the state in the handle's type once the device
    /// has moved the queue pair to the error state.
    ///
    /// # Errors
    /// Same as [`query`](Self::query).
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
    /// A mask with [`STATE`](QpAttrMask::STATE) changes the queue pair's state but not the type;
    /// [`modify_to`](Self::modify_to) changes both. A move to RESET draws a new [`psn`](Self::psn).
    ///
    /// # Errors
    /// - `EINVAL` with [`Cause::IllegalTransition`](crate::Cause::IllegalTransition) for an invalid
    ///   transition, with [`Cause::TransitionAttributes`](crate::Cause::TransitionAttributes) for
    ///   missing or forbidden attributes.
    /// - For attribute values, the same as [`to_init`](Qp::to_init), [`to_rtr`](Qp::to_rtr) and
    ///   [`to_rts`](Qp::to_rts). Every device rejects a number with more bits than its field
    ///   (`EINVAL` with [`Cause::Limit`](crate::Cause::Limit)): 24 bits for a queue pair number or
    ///   packet sequence number, 5 for a timer, 3 for a retry count. In C, the result depends on
    ///   the device.
    /// - For a move to RESET, the same as [`to_reset`](Self::to_reset).
    ///
    /// # References
    /// `ibv_modify_qp(3)`
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        explain::numbers_fit(attr, mask)
            .map_err(|cause| self.error("modify_qp", Errno::INVAL).because(cause))?;
        let resets = mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::RESET;
        // Drawn first, so a failed draw leaves no queue pair in RESET with its old sequence number.
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
    /// Returns the queue pair with an error as from [`modify`](Self::modify).
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
    /// Returns the queue pair, with all its memory in flight, and the error: `EBUSY` with
    /// [`Cause::InUse`](crate::Cause::InUse) if an rxe queue pair does not stay in RESET; any other
    /// errno from the kernel or the system's random source.
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
    /// Returns the queue pair and any errno the kernel returns; notably `EIO` once the device is
    /// gone.
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

    /// Attaches the queue pair to a multicast group. Starting with the state INIT, the queue pair
    /// receives the group's datagrams. `lid` is the group's local id on InfiniBand; Ethernet ports
    /// ignore it. Attaching twice succeeds and changes nothing; destroying the queue pair detaches
    /// it.
    ///
    /// A datagram to the group has a path to the group's address ([`AhAttr::new`]) and the
    /// destination [`UdAddr::MULTICAST_QPN`]. Each attached queue pair with the right Q_Key
    /// receives it once, including queue pairs of the sending device.
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
    /// On Ethernet, switches forward a group's packets to hosts that joined it through IGMP or MLD.
    /// A soft device joins the group; a soft device with an IPv4 address joins 239.x.y.z for an
    /// IPv6 group that ends in the bytes x, y, z. rxe does not: a program joins with its own UDP
    /// socket on the same network interface, or through a connection manager.
    ///
    /// # Errors
    /// - `EINVAL` with [`Cause::CallOfType`](crate::Cause::CallOfType) for a service other than UD,
    ///   with [`Cause::NotMulticast`](crate::Cause::NotMulticast) for an address that is not
    ///   multicast.
    /// - `ENOMEM` beyond [`max_mcast_grp`](crate::DeviceAttr::max_mcast_grp) groups or
    ///   [`max_mcast_qp_attach`](crate::DeviceAttr::max_mcast_qp_attach) queue pairs in a group.
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
    /// `EINVAL` with [`Cause::NotAttached`](crate::Cause::NotAttached) if the queue pair is not
    /// attached; any other errno the kernel returns.
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
    /// Returns the queue pair with the error: `EBUSY` with [`Cause::InUse`](crate::Cause::InUse)
    /// while it has flow rules; any other errno the kernel returns, notably `EIO` once the device
    /// is gone.
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
    /// Same as [`close`](Self::close).
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

    /// Returns the shared state of the queue pair's open device.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.core.dependencies().registry
    }

    /// Moves the queue pair, using only the step attributes required by the transition table.
    ///
    /// # Errors
    /// Same as [`modify_to`](Self::modify_to).
    fn step<T: State>(self, step: &impl Step) -> Result<Qp<T, P>, HandleError<Self>> {
        let (attr, mask) = (step.attr(self.psn()), required(self.qp_type(), S::STATE, T::STATE));
        self.modify_to(&attr, mask)
    }

    fn in_state<T: State>(self) -> Qp<T, P> {
        let Self { core, send, recv, state: _ } = self;
        Qp { core, send, recv, state: PhantomData }
    }
}

impl<S: State> Qp<S, Erased> {
    /// Returns the same queue pair with its provider known at compile time. Posting then needs no
    /// indirect calls.
    ///
    /// # Errors
    /// Returns the queue pair if it belongs to another provider.
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
/// Any errno from the system's random source.
fn draw_psn(registry: &Registry, verb: &'static str) -> Result<u32> {
    random::draw().map(|bits| bits & 0xff_ffff).map_err(|errno| registry.error(verb, errno))
}
