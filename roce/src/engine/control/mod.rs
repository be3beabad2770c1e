//! The [`Engine`] calls that create, change, query and destroy objects, and post work requests.
//!
//! | module | contents |
//! |---|---|
//! | this module | protection domains, queue pairs, multicast membership |
//! | `registration` | memory regions and windows |
//! | `srq` | shared receive queues |
//! | `gsi` | management datagrams |
//! | `faults` | simulated errors |

mod faults;
mod gsi;
mod registration;
mod srq;
mod stalls;

use alloc::boxed::Box;

use rdma_sans_io::Random;

use super::Engine;
use super::memory::{Memory, Sink};
use super::memory_regions::MemoryRegions;
use super::multicast::Groups;
use super::objects::Objects;
use super::qp::{Qp, RecvState, SendState};
use super::queue::{RecvQueue, SendQueue};
use super::response_queue::ResponseQueue;
use super::scheduler::Scheduler;
use super::table::Table;
use super::timers::Timers;
use super::types::{
    Attr, AttrChange, Config, DroppedDatagrams, GSI_QPN, Gid, Pd, PostRefused, QpCap, QpInit, Qpn, RecvWr,
    Refused, SendWr, Service, State, Time,
};
use super::{completion, modify, requester, responder};
use crate::wire::MASK_24;

fn queue_pairs<T>(config: &Config) -> Table<T> {
    let table = |bits| Table::new(config.max_qp, bits, 16);
    match config.qpn_prefix {
        0 => table(24),
        prefix => table(16).with_prefix(u32::from(prefix) << 16),
    }
}

impl<M: Memory> Engine<M> {
    /// Creates an engine without objects. The engine draws object numbers from `random`.
    pub fn new(config: Config, memory: M, random: impl Random + 'static) -> Self {
        Self {
            objects: Objects {
                memory,
                random: Box::new(random),
                pds: Table::new(config.max_pd, 24, 1),
                memory_regions: MemoryRegions::new(config.max_keys),
                // Shared receive queue and queue pair numbers have 24 bits; queue pairs 0 and 1 are
                // special.
                srqs: Table::new(config.max_srq, 24, 1),
                qps: queue_pairs(&config),
                groups: Groups::default(),
                well_known: [None; 2],
                gsi: None,
                scheduler: Scheduler::default(),
                response_queue: ResponseQueue::default(),
                timers: Timers::default(),
                unexpected_ports: 0,
                dropped: DroppedDatagrams::default(),
                config,
            },
        }
    }

    /// Returns the memory that holds payload.
    pub fn memory(&mut self) -> &mut M {
        &mut self.objects.memory
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.objects.config
    }

    /// Sets the maximum number of request bytes in flight: see [`Config::window_bytes`].
    pub fn set_window(&mut self, window_bytes: u32) {
        self.objects.config.window_bytes = window_bytes;
        self.objects.unblock();
    }

    /// Returns the number of unacknowledged request bytes, across all queue pairs.
    pub fn in_flight(&self) -> u64 {
        self.objects.scheduler.in_flight
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`Refused::NoRoom`] if [`Config::max_pd`] domains exist already; [`Refused::NoNumbers`] if
    /// the source of random numbers fails, as in every call that creates an object.
    pub fn alloc_pd(&mut self) -> Result<Pd, Refused> {
        let objects = &mut self.objects;
        objects.pds.insert(0, &mut *objects.random).map(Pd)
    }

    /// Deallocates a protection domain.
    ///
    /// # Errors
    /// [`Refused::Busy`] while the domain contains objects; [`Refused::NoSuchObject`] if it does
    /// not exist.
    pub fn dealloc_pd(&mut self, pd: Pd) -> Result<(), Refused> {
        match self.objects.pds.get(pd.0) {
            None => Err(Refused::NoSuchObject),
            Some(&users) if users > 0 => Err(Refused::Busy),
            Some(_) => {
                self.objects.pds.remove(pd.0);
                Ok(())
            }
        }
    }

    fn use_pd(&mut self, pd: Pd) -> Result<(), Refused> {
        *self.objects.pds.get_mut(pd.0).ok_or(Refused::NoSuchObject)? += 1;
        Ok(())
    }

    fn leave_pd(&mut self, pd: Pd) {
        if let Some(users) = self.objects.pds.get_mut(pd.0) {
            *users = users.saturating_sub(1);
        }
    }

    /// Returns a power of two modulo which the numbers of live queue pairs differ. A caller can
    /// thus index its objects by the remainder. The value is at least 8 and at most four times the
    /// largest number of queue pairs that existed at a time. Creating a queue pair may increase it.
    pub fn qpn_modulus(&self) -> usize {
        self.objects.qps.modulus()
    }

    /// Creates a queue pair in the state RESET.
    ///
    /// # Errors
    /// [`Refused::NoRoom`] if [`Config::max_qp`] queue pairs exist already; [`Refused::NoMemory`]
    /// if an allocation fails; [`Refused::NoSuchObject`] for an unknown protection domain or shared
    /// receive queue; [`Refused::Busy`] if another queue pair or the [general services
    /// interface](Self::open_gsi) has the well-known number; [`Refused::Invalid`] if that number is
    /// not well known, the service is not UD or `deth_source` has more than 24 bits.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, Refused> {
        self.check_source(init)?;
        if let Some(srq) = init.srq {
            self.objects.srqs.get(srq.0).ok_or(Refused::NoSuchObject)?;
        }
        let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = init.cap;
        let receives = if init.srq.is_some() || init.service == Service::XrcTarget { 0 } else { max_recv_wr };
        let sends = if init.service == Service::XrcTarget { 0 } else { max_send_wr };
        let sq = SendQueue::new(sends, max_send_sge, max_inline_data)?;
        let rq = RecvQueue::new(receives, max_recv_sge)?;
        let qps = self.objects.qps.len() + 1;
        // Reserves one more entry for the general services interface.
        self.objects.scheduler.reserve(qps + 1)?;
        self.objects.response_queue.reserve(qps)?;
        self.objects.timers.reserve(qps)?;
        self.use_pd(init.pd)?;
        let qp = Qp {
            qpn: Qpn(0),
            service: init.service,
            state: State::Reset,
            pd: init.pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            xrc_domain: init.xrc_domain,
            sq_sig_all: init.sq_sig_all,
            well_known: init.well_known,
            source: 0,
            inline_completion: init.inline_completion,
            attr: Attr::default(),
            sq,
            rq,
            req: SendState::default(),
            resp: RecvState::new(init.srq.is_some() || init.service == Service::XrcTarget),
            in_ready: false,
            in_acks: false,
            in_naks: false,
            in_blocked: false,
            peer: None,
            in_response_queue: false,
            peer_port: None,
            established: false,
            timer: None,
            groups: 0,
            has_bound: false,
        };
        let objects = &mut self.objects;
        let inserted = objects.qps.insert(qp, &mut *objects.random);
        let number = inserted.inspect_err(|_| self.leave_pd(init.pd))?;
        if let Some(qp) = self.objects.qps.get_mut(number) {
            qp.qpn = Qpn(number);
            qp.source = init.deth_source.or(init.well_known).unwrap_or(number);
        }
        if let Some(owner) =
            init.well_known.and_then(|number| self.objects.well_known.get_mut(number as usize))
        {
            *owner = Some(Qpn(number));
        }
        if let Some(srq) = init.srq.and_then(|srq| self.objects.srqs.get_mut(srq.0)) {
            srq.users += 1;
        }
        Ok(Qpn(number))
    }

    /// Checks the well-known number and the source number requested for a queue pair.
    fn check_source(&self, init: &QpInit) -> Result<(), Refused> {
        if init.deth_source.is_some_and(|number| number > MASK_24) {
            return Err(Refused::Invalid("queue pair numbers have 24 bits"));
        }
        let Some(number) = init.well_known else { return Ok(()) };
        match self.objects.well_known.get(number as usize) {
            None => Err(Refused::Invalid("only 0 and 1 are well-known queue pair numbers")),
            Some(_) if init.service != Service::Ud => {
                Err(Refused::Invalid("queue pairs with a well-known number must be UD"))
            }
            Some(Some(_)) => Err(Refused::Busy),
            Some(None) if number == GSI_QPN && self.objects.gsi.is_some() => Err(Refused::Busy),
            Some(None) => Ok(()),
        }
    }

    /// Destroys a queue pair. Its work requests send and write nothing more and do not complete.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`] if the queue pair does not exist.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), Refused> {
        let mut qp = self.objects.qps.remove(qpn.0).ok_or(Refused::NoSuchObject)?;
        completion::send::forget(&mut qp, &mut self.objects.scheduler);
        self.objects.scheduler.drop_qp(&qp);
        self.objects.response_queue.leave(&mut qp);
        if qp.groups > 0 {
            self.objects.groups.leave_all(qpn);
        }
        if let Some(owner) = qp.well_known.and_then(|number| self.objects.well_known.get_mut(number as usize))
        {
            *owner = None;
        }
        if qp.has_bound {
            self.objects.memory_regions.drop_windows_of(qpn);
        }
        qp.resp.current.release(&mut self.objects.srqs);
        if let Some(srq) = qp.srq.and_then(|srq| self.objects.srqs.get_mut(srq.0)) {
            srq.users = srq.users.saturating_sub(1);
        }
        self.leave_pd(qp.pd);
        self.objects.unblock();
        Ok(())
    }

    /// Changes a queue pair's attributes, then its state.
    ///
    /// # Errors
    /// [`Refused::Transition`] if the state transition does not exist; nothing changes then.
    /// [`Refused::NoSuchObject`] if the queue pair does not exist.
    ///
    /// # References
    /// IBTA 10.3.1, figure 124
    pub fn modify_qp(
        &mut self,
        qpn: Qpn,
        change: &AttrChange,
        now: Time,
        sink: &mut impl Sink,
    ) -> Result<(), Refused> {
        let changed = self.objects.with(qpn.0, now, sink, |qp, env| modify::modify(qp, env, change));
        self.objects.settle_peer(qpn, now);
        changed.ok_or(Refused::NoSuchObject)?
    }

    /// Returns the current state and attributes of a queue pair. `sq_psn` and `rq_psn` are the
    /// sequence numbers of the next packets.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`] if the queue pair does not exist.
    pub fn query_qp(&self, qpn: Qpn) -> Result<(State, Attr), Refused> {
        let qp = self.objects.qps.get(qpn.0).ok_or(Refused::NoSuchObject)?;
        Ok((qp.state, qp.present_attr()))
    }

    /// Returns whether all started sends of a queue pair have ended. In SQD, the send queue is then
    /// drained.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`] if the queue pair does not exist.
    pub fn sq_drained(&self, qpn: Qpn) -> Result<bool, Refused> {
        let qp = self.objects.qps.get(qpn.0).ok_or(Refused::NoSuchObject)?;
        Ok(qp.is_drained())
    }

    /// Returns how many sends and how many receives of a queue pair are unfinished. A receive taken
    /// from a shared queue counts as well.
    pub fn outstanding(&self, qpn: Qpn) -> Option<(u32, u32)> {
        let qp = self.objects.qps.get(qpn.0)?;
        Some((qp.sq.len(), responder::outstanding(qp)))
    }

    /// Posts a send work request. In the error state, it is flushed immediately.
    ///
    /// # Errors
    /// [`PostRefused`] if the queue pair does not exist, is full or does not accept sends in its
    /// state; if its service lacks the operation; or if the elements or the length exceed its
    /// limits. The queue is then unchanged.
    pub fn post_send(
        &mut self,
        qpn: Qpn,
        wr: &SendWr<'_>,
        now: Time,
        sink: &mut impl Sink,
    ) -> Result<(), PostRefused> {
        self.objects
            .with(qpn.0, now, sink, |qp, env| requester::post(qp, env, wr))
            .ok_or(PostRefused::NoSuchQueue)?
    }

    /// Posts a receive work request. In the error state, it is flushed immediately.
    ///
    /// # Errors
    /// [`PostRefused`] if the queue pair does not exist, is full, does not accept receives in its
    /// state, uses a shared receive queue or allows fewer elements. The queue is then unchanged.
    pub fn post_recv(
        &mut self,
        qpn: Qpn,
        wr: &RecvWr<'_>,
        now: Time,
        sink: &mut impl Sink,
    ) -> Result<(), PostRefused> {
        self.objects
            .with(qpn.0, now, sink, |qp, env| responder::post(qp, env, wr))
            .ok_or(PostRefused::NoSuchQueue)?
    }

    /// Adds a queue pair to a multicast group (UD).
    ///
    /// # Errors
    /// [`Refused::Invalid`] if the service is not UD or `group` is not a multicast address;
    /// [`Refused::NoRoom`] if the configured number of groups or members is reached;
    /// [`Refused::NoSuchObject`] if the queue pair does not exist.
    pub fn attach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), Refused> {
        let qp = self.objects.qps.get_mut(qpn.0).ok_or(Refused::NoSuchObject)?;
        if qp.service != Service::Ud {
            return Err(Refused::Invalid("only UD queue pairs can join groups"));
        }
        qp.groups += u32::from(self.objects.groups.join(group, qpn, &self.objects.config)?);
        Ok(())
    }

    /// Removes a queue pair from a multicast group.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`] if the queue pair is not a member.
    pub fn detach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), Refused> {
        self.objects.groups.leave(group, qpn)?;
        if let Some(qp) = self.objects.qps.get_mut(qpn.0) {
            qp.groups = qp.groups.saturating_sub(1);
        }
        Ok(())
    }

    /// Returns the number of members of a multicast group.
    pub fn mcast_members(&self, group: &Gid) -> usize {
        self.objects.groups.members(group)
    }
}
