//! [`Endpoint`]: an engine, its program and its port to the fabric.

use alloc::collections::{BTreeMap, VecDeque};
use core::fmt;

use super::memory::VecMemory;
use crate::engine::{
    Completion, CqFull, CqId, Engine, Event, Gid, MadsFull, Pd, Qpn, ReceivedMad, Sink, SrqId, Time,
};

/// The index of an endpoint of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub usize);

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ep{}", self.0)
    }
}

impl EndpointId {
    /// Returns the endpoint's address: 10.0.0.1 for the first endpoint, mapped into IPv6.
    pub(super) fn gid(self) -> Gid {
        let mut gid = [0; 16];
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&(0x0a00_0001 + self.0 as u32).to_be_bytes());
        gid
    }

    /// Returns the endpoint with address `gid`.
    pub(super) fn from_gid(gid: &Gid) -> Option<Self> {
        let last = u32::from_be_bytes(*gid.last_chunk()?);
        let id = Self(last.checked_sub(0x0a00_0001)? as usize);
        (id.gid() == *gid).then_some(id)
    }
}

/// A report from an engine to its [`Sink`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// A call to [`Sink::complete`].
    Complete(CqId, Completion),
    /// A call to [`Sink::retire_send`].
    RetireSend(Qpn, u32),
    /// A call to [`Sink::retire_recv`].
    RetireRecv(Qpn, u32),
    /// A call to [`Sink::retire_srq`].
    RetireSrq(SrqId, u32),
    /// A call to [`Sink::event`].
    Event(Event),
}

/// An engine, its program, and its port to the fabric.
#[derive(Debug)]
pub struct Endpoint {
    pub(super) engine: Engine<VecMemory>,
    pub(super) program: Program,
    pub(super) port: Port,
    /// The protection domain allocated with the endpoint.
    pub(super) pd: Pd,
    /// The first address of the next registration.
    pub(super) next_addr: u64,
}

/// The state that determines when the engine is called next.
#[derive(Debug, Default)]
pub(super) struct Port {
    /// The delay of plain acknowledgements, in nanoseconds.
    pub(super) ack_delay: u64,
    /// The time of the earliest timer that is set.
    pub(super) timer: Option<Time>,
    pub(super) pump_set: bool,
    pub(super) acks_set: bool,
}

/// The program's side of an endpoint: stores the engine's reports.
#[derive(Debug, Default)]
pub struct Program {
    queues: BTreeMap<u32, Cq>,
    pub(super) events: VecDeque<Event>,
    pub(super) mads: VecDeque<ReceivedMad>,
    pub(super) log: Option<VecDeque<Report>>,
    /// The reports not yet recorded in the trace.
    pub(super) fresh: VecDeque<Report>,
}

#[derive(Debug, Default)]
struct Cq {
    completions: VecDeque<Completion>,
    size: Option<usize>,
}

impl Endpoint {
    /// Returns the engine for queries. To change the engine, use
    /// [`Fabric::with`](super::Fabric::with).
    pub fn engine(&self) -> &Engine<VecMemory> {
        &self.engine
    }

    /// Returns the protection domain allocated with the endpoint.
    pub fn pd(&self) -> Pd {
        self.pd
    }

    /// Returns the number of completions in a queue that have not been polled.
    pub fn completions(&self, cq: CqId) -> usize {
        self.program.queues.get(&cq.0).map_or(0, |cq| cq.completions.len())
    }
}

impl Program {
    pub(super) fn poll(&mut self, cq: CqId) -> Option<Completion> {
        self.queues.get_mut(&cq.0)?.completions.pop_front()
    }

    pub(super) fn limit(&mut self, cq: CqId, size: usize) {
        self.queues.entry(cq.0).or_default().size = Some(size);
    }

    fn report(&mut self, what: Report) {
        self.fresh.push_back(what);
        if let Some(log) = &mut self.log {
            log.push_back(what);
        }
    }
}

impl Sink for Program {
    fn complete(&mut self, cq: CqId, completion: &Completion) -> Result<(), CqFull> {
        let queue = self.queues.entry(cq.0).or_default();
        if queue.size.is_some_and(|size| queue.completions.len() >= size) {
            return Err(CqFull);
        }
        queue.completions.push_back(*completion);
        self.report(Report::Complete(cq, *completion));
        Ok(())
    }

    fn retire_send(&mut self, qpn: Qpn, count: u32) {
        self.report(Report::RetireSend(qpn, count));
    }

    fn retire_recv(&mut self, qpn: Qpn, count: u32) {
        self.report(Report::RetireRecv(qpn, count));
    }

    fn retire_srq(&mut self, srq: SrqId, count: u32) {
        self.report(Report::RetireSrq(srq, count));
    }

    fn event(&mut self, event: Event) {
        self.events.push_back(event);
        self.report(Report::Event(event));
    }

    fn mad(&mut self, mad: &ReceivedMad) -> Result<(), MadsFull> {
        if self.mads.len() >= MADS {
            return Err(MadsFull);
        }
        self.mads.push_back(*mad);
        Ok(())
    }
}

/// The maximum number of management datagrams stored for a program.
const MADS: usize = 512;
