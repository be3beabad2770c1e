//! [`Net`]: nodes, messages in flight and virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

use rdma_sans_io::{Chance, Rng};

use crate::cm::{Address, Cm, Config, Event, Path, Transmit};
use crate::time::{MILLISECOND, Time};
use crate::wire::{Attribute, Gid, Mad, Message};

/// The index of a node in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// The faults that a network injects.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// The percentage of lost messages.
    pub loss: u8,
    /// The percentage of messages arriving twice.
    pub duplication: u8,
    /// The minimum travel time of a message, in nanoseconds.
    pub latency_min: u64,
    /// The maximum travel time of a message, in nanoseconds. If it exceeds the minimum, messages
    /// can overtake each other.
    pub latency_max: u64,
}

impl Default for Faults {
    /// Returns settings without faults, where every message takes 1 ms.
    fn default() -> Self {
        Self { loss: 0, duplication: 0, latency_min: MILLISECOND, latency_max: MILLISECOND }
    }
}

/// A network of communication managers, one per node.
#[derive(Debug)]
pub struct Net {
    seed: u64,
    rng: Rng,
    now: Time,
    nodes: Vec<Node>,
    /// Messages in flight, by time of arrival and then in the order sent.
    flights: BTreeMap<(Time, u64), Flight>,
    faults: Faults,
    sent: u64,
    trace: VecDeque<Record>,
}

#[derive(Debug)]
struct Node {
    cm: Cm,
    config: Config,
    cut: bool,
    starts: u64,
}

#[derive(Debug)]
struct Flight {
    to: NodeId,
    from: Address,
    mad: Mad,
}

#[derive(Debug)]
enum Record {
    Sent { at: Time, from: NodeId, to: Gid, message: Option<Attribute>, copies: usize },
    Event { at: Time, node: NodeId, event: Box<Event> },
}

/// The maximum number of trace records kept.
const TRACED: usize = 4096;

impl Net {
    /// Returns a network without nodes or faults.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            rng: Rng::split(seed, u64::MAX),
            now: Time(0),
            nodes: Vec::new(),
            flights: BTreeMap::new(),
            faults: Faults::default(),
            sent: 0,
            trace: VecDeque::new(),
        }
    }

    /// Sets the faults for messages sent after this call.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Adds a node with the default limits and a unique GUID.
    pub fn add_node(&mut self) -> NodeId {
        self.add_node_with(Config::default())
    }

    /// Adds a node with the limits in `config` and a unique GUID.
    pub fn add_node_with(&mut self, config: Config) -> NodeId {
        let node = NodeId(self.nodes.len());
        let config = Config { node_guid: self.guid(node), ..config };
        let cm = Cm::new(config, Rng::split(self.seed, node.0 as u64));
        self.nodes.push(Node { cm, config, cut: false, starts: 1 });
        node
    }

    /// Returns a node's communication manager.
    ///
    /// # Panics
    /// If the node does not exist.
    pub fn cm(&mut self, node: NodeId) -> &mut Cm {
        &mut self.nodes[node.0].cm
    }

    /// Cuts a node off from the network or reconnects it. While the node is cut off, messages to it
    /// and from it are lost.
    ///
    /// # Panics
    /// If the node does not exist.
    pub fn set_cut(&mut self, node: NodeId, cut: bool) {
        self.nodes[node.0].cut = cut;
    }

    /// Restarts a node: drops its connections and listeners without sending a message.
    ///
    /// # Panics
    /// If the node does not exist.
    pub fn restart(&mut self, node: NodeId) {
        let restarted = &mut self.nodes[node.0];
        let random = Rng::split(self.seed, restarted.starts << 32 | node.0 as u64);
        restarted.starts += 1;
        restarted.cm = Cm::new(restarted.config, random);
    }

    /// Returns the address of a node.
    pub fn gid(&self, node: NodeId) -> Gid {
        let [high, low] = (node.0 as u16).to_be_bytes();
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, high, low]
    }

    /// Returns the GUID of a node.
    pub fn guid(&self, node: NodeId) -> u64 {
        0x0255_00ff_fe00_0000 + node.0 as u64
    }

    /// Returns the address pair for messages from one node to another.
    pub fn address(&self, from: NodeId, to: NodeId) -> Address {
        Address::gsi(self.gid(from), self.gid(to))
    }

    /// Returns a path from one node to another.
    pub fn path(&self, from: NodeId, to: NodeId) -> Path {
        Path {
            local: self.gid(from),
            remote: self.gid(to),
            hop_limit: 64,
            packet_life_time: 16,
            ..Path::default()
        }
    }

    /// Returns the current virtual time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the next event, advancing virtual time as needed; `None` if no event remains.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<(NodeId, Event)> {
        self.next_until(Time(u64::MAX))
    }

    /// Returns the next event due before `until`; `None` if there is none. The current time is then
    /// `until`, unless `until` is `u64::MAX` and nothing remains to happen.
    pub fn next_until(&mut self, until: Time) -> Option<(NodeId, Event)> {
        loop {
            self.collect();
            for (index, node) in self.nodes.iter_mut().enumerate() {
                if let Some(event) = node.cm.poll_event() {
                    let (at, node) = (self.now, NodeId(index));
                    self.record(Record::Event { at, node, event: Box::new(event) });
                    return Some((node, event));
                }
            }
            let arrival = self.flights.first_key_value().map(|((at, _), _)| *at);
            let timer = self.nodes.iter().filter_map(|node| node.cm.deadline()).min();
            let next = arrival.into_iter().chain(timer).min().unwrap_or(until).max(self.now);
            if next >= until {
                if until < Time(u64::MAX) {
                    self.now = self.now.max(until);
                }
                return None;
            }
            self.now = next;
            if arrival.is_some_and(|at| at <= next) {
                self.arrive();
            }
            for node in &mut self.nodes {
                node.cm.handle_timeout(next);
            }
        }
    }

    /// Sends bytes from one node to another, as an attacker at `from`'s address would.
    pub fn inject(&mut self, from: NodeId, to: NodeId, mad: Mad) {
        self.send(from, &Transmit { to: self.address(from, to), mad });
    }

    /// Returns the most recent messages and events as text.
    pub fn trace(&self) -> String {
        let mut text = String::new();
        for record in &self.trace {
            // Writing to a `String` cannot fail.
            let _ = match record {
                Record::Sent { at, from, to, message, copies } => {
                    let fate = ["lost", "", "twice"].get(*copies).copied().unwrap_or_default();
                    let to = u16::from_be_bytes([to[14], to[15]]);
                    writeln!(text, "{:>12} node {} to {to}: {message:?} {fate}", at.0, from.0)
                }
                Record::Event { at, node, event } => {
                    writeln!(text, "{:>12} node {}: {event:?}", at.0, node.0)
                }
            };
        }
        text
    }

    /// Collects the messages that the nodes want to send.
    fn collect(&mut self) {
        for index in 0..self.nodes.len() {
            while let Some(transmit) = self.nodes[index].cm.poll_transmit() {
                self.send(NodeId(index), &transmit);
            }
        }
    }

    fn send(&mut self, from: NodeId, transmit: &Transmit) {
        let is_lost = self.rng.chance(Chance::percent(self.faults.loss.into()));
        let is_doubled = self.rng.chance(Chance::percent(self.faults.duplication.into()));
        let to = (0..self.nodes.len()).map(NodeId).find(|node| self.gid(*node) == transmit.to.remote);
        let to = to.filter(|to| !self.nodes[to.0].cut && !self.nodes[from.0].cut && !is_lost);
        let copies = if to.is_none() { 0 } else { 1 + usize::from(is_doubled) };
        for _ in 0..copies {
            let spread = self.faults.latency_max.saturating_sub(self.faults.latency_min);
            let at = self.now + (self.faults.latency_min + self.rng.below(spread + 1));
            self.sent += 1;
            let source = Address::gsi(transmit.to.remote, transmit.to.local);
            if let Some(to) = to {
                self.flights.insert((at, self.sent), Flight { to, from: source, mad: transmit.mad });
            }
        }
        let at = self.now;
        let message = Message::parse(&transmit.mad).ok().map(|(_, message)| message.attribute());
        self.record(Record::Sent { at, from, to: transmit.to.remote, message, copies });
    }

    fn arrive(&mut self) {
        if let Some((_, flight)) = self.flights.pop_first()
            && !self.nodes[flight.to.0].cut
        {
            self.nodes[flight.to.0].cm.input(self.now, &flight.from, &flight.mad);
        }
    }

    fn record(&mut self, record: Record) {
        if self.trace.len() == TRACED {
            self.trace.pop_front();
        }
        self.trace.push_back(record);
    }
}
