//! [`Fabric`]: endpoints, the links between them, virtual time.

use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;
use core::ops::Range;

use super::endpoint::{Endpoint, EndpointId, Port, Program, Told};
use super::link::{Cable, Link};
use super::memory::VecMemory;
use super::rng::Rng;
use super::trace::{Fate, Record, Trace, Traced};
use crate::engine::{Arrival, Config, Engine, Gid, Path, Time, Urgency};
use crate::wire::packet::MAX_PACKET_LEN;
use crate::wire::{Headers, ICRC_LEN, UDP_PORT};

/// Endpoints, the links between them, virtual time.
///
/// Nothing happens but in [`step`](Self::step) and what calls it: posting only queues. Things that
/// happen at the same time happen in the order in which they were caused.
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
    /// Read responses that each endpoint has sent to each other.
    answered: BTreeMap<(usize, usize), Answered>,
    /// Buffers of packets that have arrived, for those to come.
    spare: Vec<Vec<u8>>,
}

/// Time ran out before the fabric was idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotIdle {
    /// How many things were still to happen.
    pub pending: usize,
}

impl fmt::Display for NotIdle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the fabric is not idle: {} things are still to happen", self.pending)
    }
}

impl core::error::Error for NotIdle {}

/// Read responses that one endpoint has sent to another, whether they arrived or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// Packets.
    pub packets: u64,
    /// Their bytes, from BTH to pad.
    pub bytes: u64,
}

/// Something that is to happen.
#[derive(Debug)]
struct Due {
    at: Time,
    order: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    /// A packet arrives.
    Arrival(EndpointId, Arrival, Vec<u8>),
    /// An endpoint may have something to send.
    Pump(EndpointId),
    /// Its plain acknowledgements have waited long enough.
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

/// The one that is due first is the greatest, as the heap wants it.
impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl Fabric {
    /// A fabric without endpoints, at time 0.
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
            answered: BTreeMap::new(),
            spare: Vec::new(),
        }
    }

    /// Virtual time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// What it was made with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// One more endpoint.
    pub fn add_endpoint(&mut self) -> EndpointId {
        self.add_endpoint_with(Config::default())
    }

    /// One more endpoint, with an engine of this kind. Its numbers follow from the fabric's seed.
    ///
    /// # Panics
    /// The engine may not have even one protection domain.
    pub fn add_endpoint_with(&mut self, config: Config) -> EndpointId {
        let id = EndpointId(self.endpoints.len());
        let random = Rng::split(self.seed, NUMBERS | id.0 as u64);
        let mut engine = Engine::new(config, VecMemory::default(), random);
        let pd = engine.alloc_pd().expect("an engine has a protection domain");
        let next_addr = 0x1_0000_0000 * (id.0 as u64 + 1);
        let (program, port) = (Program::default(), Port::default());
        self.endpoints.push(Endpoint { engine, program, port, pd, next_addr });
        id
    }

    /// An endpoint.
    ///
    /// # Panics
    /// It is not of this fabric. So do all methods that take one.
    pub fn endpoint(&self, id: EndpointId) -> &Endpoint {
        &self.endpoints[id.0]
    }

    /// Its address.
    pub fn gid(&self, id: EndpointId) -> Gid {
        id.gid()
    }

    /// The path from one endpoint to another.
    pub fn path(&self, from: EndpointId, to: EndpointId) -> Path {
        Path { local: from.gid(), remote: to.gid(), hop_limit: 64, ..Path::default() }
    }

    // Links.

    /// What links are that nobody has [set](Self::set_link). Links that have carried something stay
    /// as they are.
    pub fn set_default_link(&mut self, link: Link) {
        self.default_link = link;
    }

    /// Makes one direction between two endpoints a link of this kind.
    pub fn set_link(&mut self, from: EndpointId, to: EndpointId, link: Link) {
        *self.link_mut(from, to) = link;
    }

    /// One direction between two endpoints, to change it.
    pub fn link_mut(&mut self, from: EndpointId, to: EndpointId) -> &mut Link {
        &mut self.cable(from, to).link
    }

    /// Cuts both directions between two endpoints, during `when`.
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

    /// How long an endpoint keeps plain acknowledgements back, as one that polls does: 0 to begin
    /// with.
    pub fn set_ack_delay(&mut self, id: EndpointId, nanoseconds: u64) {
        self.endpoints[id.0].port.ack_delay = nanoseconds;
    }

    // Time.

    /// The time of what happens next.
    pub fn next_at(&self) -> Option<Time> {
        self.queue.peek().map(|due| due.at)
    }

    /// Lets the next thing happen. False: there is none.
    pub fn step(&mut self) -> bool {
        let Some(due) = self.queue.pop() else { return false };
        self.now = due.at;
        match due.what {
            What::Arrival(to, arrival, packet) => self.arrive(to, &arrival, packet),
            What::Pump(id) => {
                self.endpoints[id.0].port.pump_set = false;
                self.pump(id, Urgency::Now);
                self.hold_acks(id);
            }
            What::Acks(id) => {
                self.endpoints[id.0].port.acks_set = false;
                self.pump(id, Urgency::All);
            }
            What::Timer(id) => {
                let endpoint = &mut self.endpoints[id.0];
                // Timers that an earlier one replaced still ring: nothing is due then.
                if endpoint.port.timer.is_some_and(|timer| timer <= self.now) {
                    endpoint.port.timer = None;
                }
                endpoint.engine.timeout(self.now, &mut endpoint.program);
                self.after(id);
            }
        }
        true
    }

    /// Lets everything happen that is due up to `time`, which is the time then.
    pub fn run_until(&mut self, time: Time) {
        while self.next_at().is_some_and(|at| at <= time) {
            self.step();
        }
        self.now = self.now.max(time);
    }

    /// Lets things happen until there are none: every packet has arrived or is lost, no timer runs.
    ///
    /// # Errors
    /// [`NotIdle`], when that takes more than `limit` nanoseconds: a queue pair that waits for a
    /// receive for ever, say.
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

    /// After a call of an engine: its packets and its timer.
    pub(super) fn after(&mut self, id: EndpointId) {
        let now = self.now;
        let endpoint = &mut self.endpoints[id.0];
        while let Some(told) = endpoint.program.fresh.pop_front() {
            match told {
                Told::Complete(cq, completion) => self.trace.add(now, Traced::Completed(id, cq, completion)),
                Told::Event(event) => self.trace.add(now, Traced::Event(id, event)),
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
            self.later(now, What::Pump(id));
        }
        if let Some(at) = timer {
            // A deadline that has passed is served, but time goes on: an engine that asks for the
            // past for ever is found by the limit of time.
            self.later(at.max(now + 1), What::Timer(id));
        }
    }

    fn later(&mut self, at: Time, what: What) {
        self.order += 1;
        self.queue.push(Due { at, order: self.order, what });
    }

    fn hold_acks(&mut self, id: EndpointId) {
        let port = &mut self.endpoints[id.0].port;
        if port.ack_delay == 0 {
            self.pump(id, Urgency::All);
        } else if !core::mem::replace(&mut port.acks_set, true) {
            let at = self.now + port.ack_delay;
            self.later(at, What::Acks(id));
        }
    }

    /// Puts what an endpoint has to send on its links.
    fn pump(&mut self, id: EndpointId, urgency: Urgency) {
        let mut sent = false;
        loop {
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.resize(MAX_PACKET_LEN, 0);
            let endpoint = &mut self.endpoints[id.0];
            let transmit =
                endpoint.engine.poll_transmit(self.now, urgency, &mut buffer, &mut endpoint.program);
            let Some(transmit) = transmit else {
                self.spare.push(buffer);
                break;
            };
            sent = true;
            buffer.truncate(transmit.len);
            buffer.extend([0; ICRC_LEN]);
            let path = transmit.path;
            match EndpointId::of(&path.remote).filter(|to| to.0 < self.endpoints.len()) {
                Some(to) => self.carry(&path, id, to, buffer),
                None if is_multicast(&path.remote) => {
                    for to in (0..self.endpoints.len()).map(EndpointId).filter(|to| *to != id) {
                        self.carry(&path, id, to, buffer.clone());
                    }
                }
                None => self.note(id, id, &buffer, Fate::NoRoute(path.remote)),
            }
        }
        // Sending starts timers, and may end work requests. Another look at an engine that sent
        // nothing would not end.
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
            let answered = self.answered.entry((from.0, to.0)).or_default();
            answered.packets += 1;
            answered.bytes += (packet.len() - ICRC_LEN) as u64;
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
            src_port: UDP_PORT,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit.saturating_sub(1),
            flow_label: path.flow_label,
            sl: path.sl,
            slid: path.slid,
            dlid: path.dlid,
        };
        if let Some(again) = carried.again {
            self.note(from, to, &packet, Fate::Again(again));
            self.later(again, What::Arrival(to, arrival, packet.clone()));
        }
        self.later(at, What::Arrival(to, arrival, packet));
    }

    fn arrive(&mut self, to: EndpointId, arrival: &Arrival, packet: Vec<u8>) {
        let endpoint = &mut self.endpoints[to.0];
        endpoint.engine.handle(self.now, arrival, &packet, &mut endpoint.program);
        self.spare.push(packet);
        self.after(to);
    }

    /// Returns what one endpoint has sent to another of read responses, since the fabric was made.
    pub fn answered(&self, from: EndpointId, to: EndpointId) -> Answered {
        self.answered.get(&(from.0, to.0)).copied().unwrap_or_default()
    }

    // The trace.

    /// How many records the trace keeps: 256 to begin with.
    pub fn keep_trace(&mut self, records: usize) {
        self.trace.keep(records);
    }

    /// The last records.
    pub fn trace(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.trace.records()
    }

    /// Puts a line of the caller's into the trace.
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

/// Beside an endpoint's number in the seed of its engine's numbers: no link has it.
const NUMBERS: u64 = 1 << 63;

/// `ff00::/8`, or an IPv4 group mapped into IPv6.
fn is_multicast(gid: &Gid) -> bool {
    gid[0] == 0xff || (gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] && gid[12] & 0xf0 == 0xe0)
}
