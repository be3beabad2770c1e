//! [`Objects`]: all state of an engine.

use alloc::boxed::Box;

use rdma_sans_io::Random;

use super::environment::Environment;
use super::gsi::Gsi;
use super::memory::{Memory, Sink};
use super::memory_regions::MemoryRegions;
use super::multicast::Groups;
use super::qp::{Qp, ResponseClass};
use super::queue::Srq;
use super::response_queue::{Address, ResponseQueue};
use super::scheduler::Scheduler;
use super::table::Table;
use super::timers::Timers;
use super::types::{Config, DroppedDatagrams, Event, Qpn, Service, State, Time};
use super::{completion, requester};

/// All state of an engine.
#[derive(Debug)]
pub(crate) struct Objects<M: Memory> {
    pub(crate) config: Config,
    pub(crate) memory: M,
    pub(crate) random: Box<dyn Random>,
    pub(crate) pds: Table<u32>,
    pub(crate) memory_regions: MemoryRegions<M::Region>,
    pub(crate) srqs: Table<Srq>,
    pub(crate) qps: Table<Qp>,
    pub(crate) groups: Groups,
    /// The queue pairs that also have the special numbers 0 and 1.
    pub(crate) well_known: [Option<Qpn>; 2],
    /// The general services interface (queue pair number 1). It exists only if no queue pair has
    /// that number.
    pub(crate) gsi: Option<Gsi>,
    pub(crate) scheduler: Scheduler,
    pub(crate) response_queue: ResponseQueue,
    pub(crate) timers: Timers,
    /// The number of packets dropped because of their UDP source port.
    pub(crate) unexpected_ports: u64,
    pub(crate) dropped: DroppedDatagrams,
}

impl<M: Memory> Objects<M> {
    /// Borrows a queue pair and its [`Environment`].
    fn split<'a, S: Sink>(
        &'a mut self,
        qpn: u32,
        now: Time,
        sink: &'a mut S,
    ) -> Option<(&'a mut Qp, Environment<'a, M, S>)> {
        let qp = self.qps.get_mut(qpn)?;
        let env = Environment {
            config: &self.config,
            memory: &mut self.memory,
            memory_regions: &mut self.memory_regions,
            srqs: &mut self.srqs,
            scheduler: &mut self.scheduler,
            response_queue: &mut self.response_queue,
            sink,
            now,
            cq_overrun: false,
        };
        Some((qp, env))
    }

    /// Runs `act` on a queue pair, then schedules its outgoing packets and its timer.
    #[inline]
    pub(crate) fn with<S: Sink, T>(
        &mut self,
        qpn: u32,
        now: Time,
        sink: &mut S,
        act: impl FnOnce(&mut Qp, &mut Environment<'_, M, S>) -> T,
    ) -> Option<T> {
        let (qp, mut env) = self.split(qpn, now, sink)?;
        let result = act(qp, &mut env);
        if core::mem::take(&mut env.cq_overrun) {
            env.sink.event(Event::QpFatal(qp.qpn));
            completion::fail(qp, &mut env);
        }
        let pending = qp.resp.responses.pending();
        if requester::has_work(qp) {
            env.scheduler.ready(qp);
        } else {
            env.scheduler.settle(qp);
        }
        match pending {
            None => {}
            Some(ResponseClass::Nak) => env.scheduler.nak(qp),
            Some(ResponseClass::Ack) => env.scheduler.ack(qp),
            Some(ResponseClass::Resource) => env.response_queue.enqueue(qp),
        }
        if let Some(at) = qp.deadline()
            && qp.timer.is_none_or(|timer| at < timer)
        {
            qp.timer = Some(at);
            self.timers.add(at, qpn, &self.qps);
        }
        if self.scheduler.any_blocked() {
            self.unblock();
        }
        Some(result)
    }

    /// From state RTR on, assigns a reliable queue pair to the peer at the end of its path.
    /// Responses are scheduled by peer.
    pub(crate) fn settle_peer(&mut self, qpn: Qpn, now: Time) {
        let Some(qp) = self.qps.get_mut(qpn.0) else { return };
        let is_responder = matches!(qp.service, Service::Rc | Service::XrcTarget)
            && !matches!(qp.state, State::Reset | State::Init);
        let address = is_responder.then(|| Address::from_path(&qp.attr.path));
        if qp.peer.map(|peer| self.response_queue.address(peer)) == address.map(Some) {
            return;
        }
        self.response_queue.leave(qp);
        if let Some(address) = address {
            qp.peer = Some(self.response_queue.join(address, &self.config, now));
            if qp.resp.responses.pending() == Some(ResponseClass::Resource) {
                self.response_queue.enqueue(qp);
            }
        }
    }

    /// Schedules the first queue pair that waits for space in the window, if there is space.
    pub(crate) fn unblock(&mut self) {
        while self.scheduler.in_flight < u64::from(self.config.window_bytes) {
            let Some(qpn) = self.scheduler.blocked.pop_front() else { break };
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.in_blocked = false;
                self.scheduler.ready(qp);
            }
            if !self.scheduler.ready.is_empty() {
                break;
            }
        }
    }
}
