//! Objects made, changed and destroyed; the calls of [`Engine`].

mod faults;
mod registration;
mod shared;

use alloc::boxed::Box;
use core::ops::Range;

use super::answers::{Address, Answers};
use super::datagram::Groups;
use super::keys::{KeyRefused, Keys};
use super::memory::{Memory, Sink};
use super::qp::Qp;
use super::queue::{RecvQueue, SendQueue, Srq};
use super::random::Random;
use super::requester::{self, Requester};
use super::responder::{self, Kind, Responder};
use super::schedule::Turns;
use super::table::Table;
use super::types::{
    Arrival, Attr, AttrChange, Config, Event, Gid, Network, Pd, PostRefused, QpCap, QpInit, Qpn, RecvWr,
    Refused, SendWr, Service, State, Time,
};
use super::{Engine, datagram};
use crate::wire::{Headers, MASK_24};

/// Everything that an engine holds.
#[derive(Debug)]
pub(crate) struct Objects<M: Memory> {
    pub(crate) config: Config,
    pub(crate) memory: M,
    pub(crate) random: Box<dyn Random>,
    pub(crate) pds: Table<u32>,
    pub(crate) keys: Keys<M::Region>,
    pub(crate) srqs: Table<Srq>,
    pub(crate) qps: Table<Qp>,
    pub(crate) groups: Groups,
    /// Who has the special numbers 0 and 1.
    pub(crate) well_known: [Option<Qpn>; 2],
    pub(crate) turns: Turns,
    pub(crate) answers: Answers,
    /// No deadline of a queue pair is before this.
    pub(crate) earliest: Option<Time>,
    /// Packets dropped for the UDP port that they came from.
    unexpected_ports: u64,
}

/// What the halves of a queue pair work with, apart from the queue pair.
pub(crate) struct World<'a, M: Memory, S: Sink> {
    pub(crate) config: &'a Config,
    pub(crate) memory: &'a mut M,
    pub(crate) keys: &'a mut Keys<M::Region>,
    pub(crate) srqs: &'a mut Table<Srq>,
    pub(crate) turns: &'a mut Turns,
    pub(crate) answers: &'a mut Answers,
    pub(crate) sink: &'a mut S,
    pub(crate) now: Time,
    /// A completion queue had no room: the queue pair is to fail as soon as it can.
    pub(crate) cq_overrun: bool,
}

impl<M: Memory, S: Sink> World<'_, M, S> {
    /// Takes a key back for a work request or a peer of this queue pair, and tells the memory.
    pub(crate) fn invalidate(&mut self, pd: Pd, qpn: Qpn, rkey: u32) -> Result<(), KeyRefused> {
        self.keys.invalidate(pd, qpn, rkey)?;
        if let Some(region) = self.keys.memory_at(rkey >> 8) {
            self.memory.invalidated(region);
        }
        Ok(())
    }
}

impl<M: Memory> Objects<M> {
    /// A queue pair, and what its halves need beside it.
    fn split<'a, S: Sink>(
        &'a mut self,
        qpn: u32,
        now: Time,
        sink: &'a mut S,
    ) -> Option<(&'a mut Qp, World<'a, M, S>)> {
        let qp = self.qps.get_mut(qpn)?;
        let world = World {
            config: &self.config,
            memory: &mut self.memory,
            keys: &mut self.keys,
            srqs: &mut self.srqs,
            turns: &mut self.turns,
            answers: &mut self.answers,
            sink,
            now,
            cq_overrun: false,
        };
        Some((qp, world))
    }

    /// Does something with a queue pair, and afterwards what follows from it.
    #[inline]
    pub(crate) fn with<S: Sink, T>(
        &mut self,
        qpn: u32,
        now: Time,
        sink: &mut S,
        act: impl FnOnce(&mut Qp, &mut World<'_, M, S>) -> T,
    ) -> Option<T> {
        let (qp, mut world) = self.split(qpn, now, sink)?;
        let result = act(qp, &mut world);
        if core::mem::take(&mut world.cq_overrun) {
            world.sink.event(Event::QpFatal(qp.qpn));
            qp.fail(&mut world);
        }
        let pending = responder::pending(qp);
        if requester::has_work(qp) {
            world.turns.ready(qp);
        } else {
            world.turns.settle(qp);
        }
        match pending {
            None => {}
            Some(Kind::Refusal) => world.turns.refuse(qp),
            Some(Kind::Ack) => world.turns.ack(qp),
            Some(Kind::Answer) => world.answers.enqueue(qp),
        }
        let deadline = qp.deadline();
        self.note(deadline);
        if self.turns.any_blocked() {
            self.unblock();
        }
        Some(result)
    }

    /// Answers of a reliable queue pair that has a path are its peer's from RTR on.
    fn settle_peer(&mut self, qpn: Qpn, now: Time) {
        let Some(qp) = self.qps.get_mut(qpn.0) else { return };
        let answers = matches!(qp.service, Service::Rc | Service::XrcTarget)
            && !matches!(qp.state, State::Reset | State::Init);
        let address = answers.then(|| Address::of(&qp.attr.path));
        if qp.peer.map(|peer| self.answers.address(peer)) == address.map(Some) {
            return;
        }
        self.answers.leave(qp);
        if let Some(address) = address {
            qp.peer = Some(self.answers.join(address, &self.config, now));
            if responder::pending(qp) == Some(Kind::Answer) {
                self.answers.enqueue(qp);
            }
        }
    }

    fn note(&mut self, deadline: Option<Time>) {
        self.earliest = match (self.earliest, deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

impl<M: Memory> Engine<M> {
    /// An engine without objects, whose numbers `random` will draw.
    pub fn new(config: Config, memory: M, random: impl Random + 'static) -> Self {
        Self {
            objects: Objects {
                memory,
                random: Box::new(random),
                pds: Table::new(config.max_pd, 24, 1, 1),
                keys: Keys::new(config.max_keys),
                // Numbers of shared receive queues and queue pairs are 24 bits; queue pairs 0 and 1 are special.
                srqs: Table::new(config.max_srq, 24, 1, 1),
                qps: Table::new(config.max_qp, 24, 16, config.qpn_modulus as usize),
                groups: Groups::default(),
                well_known: [None; 2],
                turns: Turns::default(),
                answers: Answers::default(),
                earliest: None,
                unexpected_ports: 0,
                config,
            },
        }
    }

    /// What payload lives in.
    pub fn memory(&mut self) -> &mut M {
        &mut self.objects.memory
    }

    /// What it was made with.
    pub fn config(&self) -> &Config {
        &self.objects.config
    }

    /// Changes how many bytes of requests may be on their way: see [`Config::window_bytes`].
    pub fn set_window(&mut self, window_bytes: u32) {
        self.objects.config.window_bytes = window_bytes;
        self.objects.unblock();
    }

    /// Bytes of requests that are on their way, unacknowledged, of all queue pairs.
    pub fn in_flight(&self) -> u64 {
        self.objects.turns.in_flight
    }

    /// A protection domain.
    ///
    /// # Errors
    /// [`Refused::NoRoom`]; [`Refused::NoNumbers`], as of every call that makes an object.
    pub fn alloc_pd(&mut self) -> Result<Pd, Refused> {
        let objects = &mut self.objects;
        objects.pds.insert(0, &mut *objects.random).map(Pd)
    }

    /// Gives a protection domain back.
    ///
    /// # Errors
    /// [`Refused::Busy`] while something is made in it.
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

    /// A queue pair, in the state RESET.
    ///
    /// # Errors
    /// [`Refused::NoRoom`]; [`Refused::NoSuchObject`] for the protection domain or the shared receive queue;
    /// [`Refused::Busy`] for a well-known number that another has; [`Refused::Invalid`] for one that there is not.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, Refused> {
        self.check_source(init)?;
        if let Some(srq) = init.srq {
            self.objects.srqs.get(srq.0).ok_or(Refused::NoSuchObject)?;
        }
        self.use_pd(init.pd)?;
        let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = init.cap;
        let receives = if init.srq.is_some() || init.service == Service::XrcTarget { 0 } else { max_recv_wr };
        let sends = if init.service == Service::XrcTarget { 0 } else { max_send_wr };
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
            sq: SendQueue::new(sends, max_send_sge, max_inline_data),
            rq: RecvQueue::new(receives, max_recv_sge),
            req: Requester::default(),
            resp: Responder::new(init.srq.is_some() || init.service == Service::XrcTarget),
            in_ready: false,
            in_acks: false,
            in_refusals: false,
            in_blocked: false,
            peer: None,
            in_answers: false,
            peer_port: None,
            established: false,
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
        let qps = self.objects.qps.len();
        self.objects.turns.reserve(qps);
        Ok(Qpn(number))
    }

    /// Could it have the numbers that it asks for?
    fn check_source(&self, init: &QpInit) -> Result<(), Refused> {
        if init.deth_source.is_some_and(|number| number > MASK_24) {
            return Err(Refused::Invalid("numbers of queue pairs have 24 bits"));
        }
        let Some(number) = init.well_known else { return Ok(()) };
        match self.objects.well_known.get(number as usize) {
            None => Err(Refused::Invalid("queue pairs 0 and 1 are the only special ones")),
            Some(_) if init.service != Service::Ud => {
                Err(Refused::Invalid("special queue pairs send datagrams"))
            }
            Some(Some(_)) => Err(Refused::Busy),
            Some(None) => Ok(()),
        }
    }

    /// Destroys a queue pair: nothing of it is sent, written or completed any more.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`].
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), Refused> {
        let mut qp = self.objects.qps.remove(qpn.0).ok_or(Refused::NoSuchObject)?;
        requester::forget(&mut qp, &mut self.objects.turns);
        self.objects.turns.drop_stale(qpn.0);
        self.objects.answers.leave(&mut qp);
        self.objects.groups.leave_all(qpn);
        if let Some(owner) = qp.well_known.and_then(|number| self.objects.well_known.get_mut(number as usize))
        {
            *owner = None;
        }
        self.objects.keys.drop_windows_of(qpn);
        if let Some(srq) = qp.srq.and_then(|srq| self.objects.srqs.get_mut(srq.0)) {
            srq.users = srq.users.saturating_sub(1);
        }
        self.leave_pd(qp.pd);
        self.objects.unblock();
        Ok(())
    }

    /// Changes attributes, then the state.
    ///
    /// # Errors
    /// [`Refused::Transition`], and nothing is changed; [`Refused::NoSuchObject`].
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
        let changed = self.objects.with(qpn.0, now, sink, |qp, world| qp.modify(world, change));
        self.objects.settle_peer(qpn, now);
        changed.ok_or(Refused::NoSuchObject)?
    }

    /// The present state and attributes. `sq_psn` and `rq_psn` are the next ones.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`].
    pub fn query_qp(&self, qpn: Qpn) -> Result<(State, Attr), Refused> {
        let qp = self.objects.qps.get(qpn.0).ok_or(Refused::NoSuchObject)?;
        Ok((qp.state, qp.present_attr()))
    }

    /// In SQD: has everything that was on its way ended?
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`].
    pub fn sq_drained(&self, qpn: Qpn) -> Result<bool, Refused> {
        let qp = self.objects.qps.get(qpn.0).ok_or(Refused::NoSuchObject)?;
        Ok(requester::is_drained(qp))
    }

    /// How many sends and receives of a queue pair have not ended. A receive that it took from a shared queue counts.
    pub fn outstanding(&self, qpn: Qpn) -> Option<(u32, u32)> {
        let qp = self.objects.qps.get(qpn.0)?;
        Some((qp.sq.len(), responder::outstanding(qp)))
    }

    /// Posts a send. In the error state it is flushed at once.
    ///
    /// # Errors
    /// Why it was refused; the queue is as before.
    pub fn post_send(
        &mut self,
        qpn: Qpn,
        wr: &SendWr<'_>,
        now: Time,
        sink: &mut impl Sink,
    ) -> Result<(), PostRefused> {
        self.objects
            .with(qpn.0, now, sink, |qp, world| requester::post(qp, world, wr))
            .ok_or(PostRefused::NoSuchQueue)?
    }

    /// Posts a receive. In the error state it is flushed at once.
    ///
    /// # Errors
    /// Why it was refused; the queue is as before.
    pub fn post_recv(
        &mut self,
        qpn: Qpn,
        wr: &RecvWr<'_>,
        now: Time,
        sink: &mut impl Sink,
    ) -> Result<(), PostRefused> {
        self.objects
            .with(qpn.0, now, sink, |qp, world| responder::post(qp, world, wr))
            .ok_or(PostRefused::NoSuchQueue)?
    }

    /// Joins a multicast group (UD).
    ///
    /// # Errors
    /// [`Refused::Invalid`] for another service or an address that is no multicast group's; [`Refused::NoRoom`] for one more group or
    /// member than the configuration allows.
    pub fn attach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), Refused> {
        let qp = self.objects.qps.get(qpn.0).ok_or(Refused::NoSuchObject)?;
        if qp.service != Service::Ud {
            return Err(Refused::Invalid("only datagram queue pairs join groups"));
        }
        self.objects.groups.join(group, qpn, &self.objects.config)
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`] when it is no member.
    pub fn detach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), Refused> {
        self.objects.groups.leave(group, qpn)
    }

    /// Takes a packet in: a UDP payload, or what follows the LRH or GRH, from BTH to ICRC. What makes no sense is dropped.
    ///
    /// The ICRC's value is the caller's to check; here its 4 bytes only have to be there.
    pub fn handle(&mut self, now: Time, arrival: &Arrival, packet: &[u8], sink: &mut impl Sink) {
        let Ok((headers, payload)) = Headers::parse(packet) else { return };
        let payload: Range<usize> = payload;
        let Some(payload) = packet.get(payload) else { return };
        let mut number = headers.bth.dest_qp;
        if number == datagram::MULTICAST_QPN {
            // IBTA 9.6.1: the group is in the GRH.
            if arrival.network == Network::Local {
                return;
            }
            let mut next = 0;
            while let Some(member) = self.objects.groups.member(&arrival.local, next) {
                next += 1;
                self.objects.with(member.0, now, sink, |qp, world| {
                    datagram::receive(qp, world, arrival, &headers, payload);
                });
            }
            return;
        }
        if let Some(owner) = self.objects.well_known.get(number as usize) {
            let Some(owner) = owner else { return };
            number = owner.0;
        }
        let mut elsewhere = false;
        self.objects.with(number, now, sink, |qp, world| {
            if qp.service == Service::Ud {
                datagram::receive(qp, world, arrival, &headers, payload);
            } else if !qp.hears(arrival) {
                // Not its peer.
            } else if world.config.strict_ports {
                elsewhere = qp.is_from_elsewhere(arrival);
                if !elsewhere {
                    let before = qp.progress();
                    connected(qp, world, arrival, &headers, payload);
                    if qp.progress() != before {
                        qp.peer_port = Some(arrival.src_port);
                    }
                }
            } else {
                connected(qp, world, arrival, &headers, payload);
            }
        });
        self.objects.unexpected_ports += u64::from(elsewhere);
    }

    /// Returns the number of packets that were dropped because they came from another UDP port than their queue pair's peer: see
    /// [`Config::strict_ports`].
    pub fn unexpected_ports(&self) -> u64 {
        self.objects.unexpected_ports
    }

    /// When [`timeout`](Self::timeout) is to be called, and then [`poll_transmit`](Self::poll_transmit), if nothing else
    /// happens before. It may be earlier than needed.
    pub fn deadline(&self) -> Option<Time> {
        match (self.objects.earliest, self.objects.answers.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Does what is due: retries, gives up, lets answers go on.
    pub fn timeout(&mut self, now: Time, sink: &mut impl Sink) {
        self.objects.answers.wake(now);
        if self.objects.earliest.is_none_or(|earliest| now < earliest) {
            return;
        }
        self.objects.earliest = None;
        let mut next = 0;
        while let Some(number) = self.objects.qps.number_at(next) {
            next += 1;
            self.objects.with(number, now, sink, |qp, world| {
                if qp.deadline().is_some_and(|deadline| deadline <= now) {
                    requester::expire(qp, world);
                }
            });
        }
    }
}

/// Takes in a packet of the peer.
#[inline]
fn connected<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    arrival: &Arrival,
    headers: &Headers,
    payload: &[u8],
) {
    if headers.bth.opcode.is_response() {
        requester::acknowledge(qp, world, headers, payload);
    } else {
        responder::request(qp, world, arrival, headers, payload);
    }
}
