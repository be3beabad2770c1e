//! [`Fabric`]: endpoints, the links between them, and virtual time.

use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;
use core::ops::Range;

use rdma_sans_io::Rng;

use super::endpoint::{Endpoint, EndpointId, Port, Program, Report};
use super::link::{Cable, Link};
use super::memory::VecMemory;
use super::trace::{Fate, Record, Trace, Traced};
use crate::engine::{Arrival, Config, Engine, Gid, Path, Time, Urgency};
use crate::wire::packet::MAX_PACKET_LEN;
use crate::wire::{Headers, ICRC_LEN, UDP_PORT};

/// A simulated network: endpoints, the links between them, and virtual time.
///
/// Only [`step`](Self::step) and its callers do any work; posting only queues requests. Steps due
/// at the same time are executed in the order in which they were caused.
#[derive(Debug)]
pub struct Fabric {
    seed: u64,
    pub(super) now: Time,
    order: u64,
    queue: BinaryHeap<Due>,
    pub(super) endpoints: Vec<Endpoint>,
    cables: BTreeMap<(usize, usize), Cable>,
    default_link: Link,
    trace: Trace,
    /// The read responses sent so far, by sender and receiver.
    read_responses: BTreeMap<(usize, usize), ReadResponses>,
    /// Buffers of received packets, kept for reuse.
    spare: Vec<Vec<u8>>,
    /// The maximum length of a packet, in bytes.
    pub(super) longest: usize,
}

/// Error: the fabric was still busy at the time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotIdle {
    /// The number of steps still pending.
    pub pending: usize,
}

impl fmt::Display for NotIdle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the fabric is not idle: {} steps are pending", self.pending)
    }
}

impl core::error::Error for NotIdle {}

/// The read response packets sent from one endpoint to another, whether or not they arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadResponses {
    /// The number of read response packets.
    pub packets: u64,
    /// The number of bytes in these packets, from BTH to pad.
    pub bytes: u64,
}

/// A pending step and the time at which it is due.
#[derive(Debug)]
struct Due {
    at: Time,
    order: u64,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// A packet arrives at the endpoint.
    Arrival(EndpointId, Arrival, Vec<u8>),
    /// The endpoint may have packets to send.
    Pump(EndpointId),
    /// The endpoint's plain acknowledgements have waited long enough.
    Acks(EndpointId),
    Timer(EndpointId),
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Orders steps such that the step due first compares greatest, as the heap requires.
impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl Fabric {
    /// Creates a fabric without endpoints, at time 0.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            now: Time(0),
            order: 0,
            queue: BinaryHeap::new(),
            endpoints: Vec::new(),
            cables: BTreeMap::new(),
            default_link: Link::default(),
            trace: Trace::new(256),
            read_responses: BTreeMap::new(),
            spare: Vec::new(),
            longest: MAX_PACKET_LEN,
        }
    }

    /// Returns the current virtual time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the seed of the fabric's random numbers.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Adds an endpoint with the default configuration.
    pub fn add_endpoint(&mut self) -> EndpointId {
        self.add_endpoint_with(Config::default())
    }

    /// Adds an endpoint whose engine uses `config`. The seed of the engine's random numbers is
    /// derived from the fabric's seed.
    ///
    /// # Panics
    /// If the configuration allows no protection domain.
    pub fn add_endpoint_with(&mut self, config: Config) -> EndpointId {
        let id = EndpointId(self.endpoints.len());
        let random = Rng::split(self.seed, NUMBERS | id.0 as u64);
        let mut engine = Engine::new(config, VecMemory::default(), random);
        let pd = engine.alloc_pd().expect("the configuration allows a protection domain");
        let next_addr = 0x1_0000_0000 * (id.0 as u64 + 1);
        let (program, port) = (Program::default(), Port::default());
        self.endpoints.push(Endpoint { engine, program, port, pd, next_addr });
        id
    }

    /// Returns an endpoint.
    ///
    /// # Panics
    /// If the endpoint belongs to another fabric. The same applies to every method that takes an
    /// endpoint.
    pub fn endpoint(&self, id: EndpointId) -> &Endpoint {
        &self.endpoints[id.0]
    }

    /// Returns the GID of an endpoint.
    pub fn gid(&self, id: EndpointId) -> Gid {
        id.gid()
    }

    /// Returns the path from one endpoint to another.
    pub fn path(&self, from: EndpointId, to: EndpointId) -> Path {
        Path { local: from.gid(), remote: to.gid(), hop_limit: 64, ..Path::default() }
    }

    // Links.

    /// Sets the properties of all links that are not [set](Self::set_link) individually. Links that
    /// have already carried a packet are unchanged.
    pub fn set_default_link(&mut self, link: Link) {
        self.default_link = link;
    }

    /// Sets the properties of the link from one endpoint to another.
    pub fn set_link(&mut self, from: EndpointId, to: EndpointId, link: Link) {
        *self.link_mut(from, to) = link;
    }

    /// Returns the link from one endpoint to another, mutably.
    pub fn link_mut(&mut self, from: EndpointId, to: EndpointId) -> &mut Link {
        &mut self.cable(from, to).link
    }

    /// Cuts the links in both directions between two endpoints during `when`.
    pub fn partition(&mut self, a: EndpointId, b: EndpointId, when: Range<Time>) {
        self.link_mut(a, b).down.push(when.clone());
        self.link_mut(b, a).down.push(when);
    }

    fn cable(&mut self, from: EndpointId, to: EndpointId) -> &mut Cable {
        let (seed, link) = (self.seed, &self.default_link);
        self.cables.entry((from.0, to.0)).or_insert_with(|| {
            let which = (from.0 as u64) << 32 | to.0 as u64;
            Cable::new(link.clone(), Rng::split(seed, which))
        })
    }

    /// Sets the delay of an endpoint's plain acknowledgements, in nanoseconds. A polling program
    /// has such a delay. The default is 0.
    pub fn set_ack_delay(&mut self, id: EndpointId, nanoseconds: u64) {
        self.endpoints[id.0].port.ack_delay = nanoseconds;
    }

    // Time.

    /// Returns the time at which the next step is due.
    pub fn next_at(&self) -> Option<Time> {
        self.queue.peek().map(|due| due.at)
    }

    /// Executes the next step. Returns false if no step is pending.
    pub fn step(&mut self) -> bool {
        let Some(due) = self.queue.pop() else { return false };
        self.now = due.at;
        match due.step {
            Step::Arrival(to, arrival, packet) => self.arrive(to, &arrival, packet),
            Step::Pump(id) => {
                self.endpoints[id.0].port.pump_set = false;
                self.pump(id, Urgency::Now);
                self.hold_acks(id);
            }
            Step::Acks(id) => {
                self.endpoints[id.0].port.acks_set = false;
                self.pump(id, Urgency::All);
            }
            Step::Timer(id) => {
                let endpoint = &mut self.endpoints[id.0];
                // A timer replaced by an earlier timer still fires, although nothing is due at that
                // time.
                if endpoint.port.timer.is_some_and(|timer| timer <= self.now) {
                    endpoint.port.timer = None;
                }
                endpoint.engine.timeout(self.now, &mut endpoint.program);
                self.after(id);
            }
        }
        true
    }

    /// Executes all steps due up to `time`, then advances the virtual time to `time`.
    pub fn run_until(&mut self, time: Time) {
        while self.next_at().is_some_and(|at| at <= time) {
            self.step();
        }
        self.now = self.now.max(time);
    }

    /// Executes steps until none is pending: every packet has arrived or is lost, and no timer is
    /// set.
    ///
    /// # Errors
    /// [`NotIdle`] if this takes more than `limit` nanoseconds of virtual time, for example because
    /// a queue pair retries without limit until a receive is posted.
    pub fn run_until_idle(&mut self, limit: u64) -> Result<Time, NotIdle> {
        let end = self.now + limit;
        while let Some(at) = self.next_at() {
            if at > end {
                return Err(NotIdle { pending: self.queue.len() });
            }
            self.step();
        }
        Ok(self.now)
    }

    // Packets.

    /// Puts a packet (from BTH to pad) on a link, as if `from` had sent it.
    pub fn inject(&mut self, from: EndpointId, to: EndpointId, packet: &[u8]) {
        let mut buffer = packet.to_vec();
        buffer.extend([0; ICRC_LEN]);
        self.carry(&self.path(from, to), from, to, buffer);
    }

    /// Schedules the sending of packets and the timer that result from a call to an engine.
    pub(super) fn after(&mut self, id: EndpointId) {
        let now = self.now;
        let endpoint = &mut self.endpoints[id.0];
        while let Some(told) = endpoint.program.fresh.pop_front() {
            match told {
                Report::Complete(cq, completion) => {
                    self.trace.add(now, Traced::Completed(id, cq, completion));
                }
                Report::Event(event) => self.trace.add(now, Traced::Event(id, event)),
                _ => {}
            }
        }
        let port = &mut endpoint.port;
        let pump = !core::mem::replace(&mut port.pump_set, true);
        let timer =
            endpoint.engine.deadline().filter(|deadline| port.timer.is_none_or(|timer| *deadline < timer));
        if timer.is_some() {
            port.timer = timer;
        }
        if pump {
            self.later(now, Step::Pump(id));
        }
        if let Some(at) = timer {
            // A deadline in the past is handled later than now, so time advances. The time limit
            // then detects an engine that always returns past deadlines.
            self.later(at.max(now + 1), Step::Timer(id));
        }
    }

    fn later(&mut self, at: Time, step: Step) {
        self.order += 1;
        self.queue.push(Due { at, order: self.order, step });
    }

    fn hold_acks(&mut self, id: EndpointId) {
        let port = &mut self.endpoints[id.0].port;
        if port.ack_delay == 0 {
            self.pump(id, Urgency::All);
        } else if !core::mem::replace(&mut port.acks_set, true) {
            let at = self.now + port.ack_delay;
            self.later(at, Step::Acks(id));
        }
    }

    /// Sends the packets of an endpoint over its links.
    fn pump(&mut self, id: EndpointId, urgency: Urgency) {
        let mut sent = false;
        loop {
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.resize(self.longest, 0);
            let endpoint = &mut self.endpoints[id.0];
            let transmit =
                endpoint.engine.poll_transmit(self.now, urgency, &mut buffer[..], &mut endpoint.program);
            let Some(transmit) = transmit else {
                self.spare.push(buffer);
                break;
            };
            sent = true;
            buffer.truncate(transmit.len);
            buffer.extend([0; ICRC_LEN]);
            let path = transmit.path;
            match EndpointId::from_gid(&path.remote).filter(|to| to.0 < self.endpoints.len()) {
                Some(to) => self.carry(&path, id, to, buffer),
                None if is_multicast(&path.remote) => {
                    for to in (0..self.endpoints.len()).map(EndpointId).filter(|to| *to != id) {
                        self.carry(&path, id, to, buffer.clone());
                    }
                }
                None => self.note(id, id, &buffer, Fate::NoRoute(path.remote)),
            }
        }
        // Sending starts timers and may end work requests. If nothing was sent, another call to the
        // engine would lead to an endless loop.
        if sent {
            self.after(id);
        } else {
            let set = core::mem::replace(&mut self.endpoints[id.0].port.pump_set, true);
            self.after(id);
            self.endpoints[id.0].port.pump_set = set;
        }
    }

    fn carry(&mut self, path: &Path, from: EndpointId, to: EndpointId, mut packet: Vec<u8>) {
        let now = self.now;
        if Headers::parse(&packet).is_ok_and(|(headers, _)| headers.bth.opcode.is_rdma_read_response()) {
            let read_responses = self.read_responses.entry((from.0, to.0)).or_default();
            read_responses.packets += 1;
            read_responses.bytes += (packet.len() - ICRC_LEN) as u64;
        }
        let carried = self.cable(from, to).carry(now, packet.len() - ICRC_LEN);
        self.note(from, to, &packet, carried.fate);
        let (Fate::Arrives(at) | Fate::Damaged(at)) = carried.fate else {
            self.spare.push(packet);
            return;
        };
        if let Some(bit) = carried.flip {
            packet[bit / 8] ^= 1 << (bit % 8);
        }
        let arrival = Arrival {
            network: path.network,
            remote: path.local,
            local: path.remote,
            src_port: Some(UDP_PORT),
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit.saturating_sub(1),
            flow_label: path.flow_label,
            sl: path.sl,
            slid: path.slid,
            dlid: path.dlid,
            on_link: path.on_link,
        };
        if let Some(again) = carried.again {
            self.note(from, to, &packet, Fate::Again(again));
            self.later(again, Step::Arrival(to, arrival, packet.clone()));
        }
        self.later(at, Step::Arrival(to, arrival, packet));
    }

    fn arrive(&mut self, to: EndpointId, arrival: &Arrival, packet: Vec<u8>) {
        let endpoint = &mut self.endpoints[to.0];
        endpoint.engine.handle(self.now, arrival, &packet, &mut endpoint.program);
        self.spare.push(packet);
        self.after(to);
    }

    /// Returns the number of read response packets and bytes sent from one endpoint to another.
    pub fn read_responses(&self, from: EndpointId, to: EndpointId) -> ReadResponses {
        self.read_responses.get(&(from.0, to.0)).copied().unwrap_or_default()
    }

    // The trace.

    /// Sets the maximum number of records kept in the trace. The default is 256.
    pub fn keep_trace(&mut self, records: usize) {
        self.trace.keep(records);
    }

    /// Returns the kept records, oldest first.
    pub fn trace(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.trace.records()
    }

    /// Adds a line of text from the caller to the trace.
    pub fn remark(&mut self, text: impl Into<String>) {
        self.trace.add(self.now, Traced::Note(text.into()));
    }

    fn note(&mut self, from: EndpointId, to: EndpointId, packet: &[u8], fate: Fate) {
        let parsed = Headers::parse(packet).ok();
        let payload = parsed.as_ref().map_or(0, |(_, payload)| payload.len());
        let headers = parsed.map(|(headers, _)| headers);
        self.trace.add(self.now, Traced::Packet { from, to, headers, payload, fate });
    }
}

/// The stream number of the endpoints' random numbers; no link uses it.
const NUMBERS: u64 = 1 << 63;

/// Returns whether an address names a multicast group: `ff00::/8` or an IPv4 multicast address
/// mapped into IPv6.
fn is_multicast(gid: &Gid) -> bool {
    gid[0] == 0xff || (gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] && gid[12] & 0xf0 == 0xe0)
}
