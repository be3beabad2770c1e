//! Simulated worlds: several nodes connect, resolve, reject, disconnect, destroy, restart and
//! vanish. The network loses, duplicates and reorders messages. A stranger guesses queue pairs.
//! Each seed determines one world.
//!
//! | invariant | checked |
//! |---|---|
//! | no event comes twice, after the last one, or for a destroyed connection | at each event |
//! | both sides have the same queue pairs and packet sequence numbers | at each reply |
//! | an accepted side is established only if the requesting side was ready | at the end |
//! | if a side was ready, its peer saw the RTU or the end | at the end |
//! | a connection on both sides is released by only one of them | at each release |
//! | a release ends within the time of all its retries | at each release |
//! | every connection ends: no entry, timer or message remains | at the end |
//!
//! `IB_CM_SIM_SEEDS=10000 cargo test --release -p ib-cm --test sim` tries more seeds,
//! `IB_CM_SIM_SEED=77` a single one, with its trace.

use std::collections::BTreeMap;
use std::env;

use ib_cm::cm::{
    AcceptParams, CmId, ConnectParams, Event, Refused, RejectParams, SidrParams, SidrReplyParams, State,
};
use ib_cm::sim::{Chance, Faults, Net, NodeId, Rng};
use ib_cm::time::{MILLISECOND, Time};
use ib_cm::wire::{Mad, Message, Mtu, PortSpace, Reason, ServiceId, mra, path, req};

const SECOND: u64 = 1000 * MILLISECOND;
const SERVICE: ServiceId = ServiceId::ip(PortSpace::TCP, 7174);
const UNSERVED: ServiceId = ServiceId::ip(PortSpace::TCP, 7175);

/// The longest release in these worlds, in nanoseconds: a DREQ and its 15 repetitions.
const RELEASE: u64 = 16 * 4608 * MILLISECOND;

/// The first packet sequence number in a stranger's request. The nodes use other values.
const FORGED_PSN: u32 = 7;

/// The number of seeds tried if `IB_CM_SIM_SEEDS` is not set.
const SEEDS: u64 = 2000;

#[derive(Clone, Copy, Debug)]
enum Action {
    Connect(NodeId),
    Accept(NodeId, CmId),
    Established(NodeId, CmId),
    Ready(NodeId, CmId),
    Reject(NodeId, CmId),
    Disconnect(NodeId, CmId),
    Destroy(NodeId, CmId),
    SidrReply(NodeId, CmId),
    Restart(NodeId),
    Cut(NodeId),
    /// A stranger sends a request under the address of a node, with a queue pair used before.
    Guess,
}

/// The history of a connection on one node.
#[derive(Debug, Default)]
struct History {
    /// The kinds of events that this side has received.
    events: Vec<std::mem::Discriminant<Event>>,
    ended: bool,
    destroyed: bool,
    /// Whether the node's program has rejected the connection.
    rejected: bool,
    /// Whether the node's program has called `ready_to_use`.
    ready: bool,
    /// The time at which the node's program called `disconnect`.
    asked: Option<Time>,
    /// Whether the peer's RTU has arrived.
    established: bool,
    /// Whether the request came from a stranger.
    forged: bool,
    /// The number of the requester's queue pair, which identifies the connection on both sides.
    requester: u32,
}

struct World {
    net: Net,
    rng: Rng,
    nodes: Vec<NodeId>,
    actions: BTreeMap<(Time, u64), Action>,
    scheduled: u64,
    histories: BTreeMap<(NodeId, CmId), History>,
    /// The queue pair number and packet sequence number of each acceptance, by the requester's
    /// queue pair number.
    accepted: BTreeMap<u32, Vec<(u32, u32)>>,
    /// The numbers of requesters' queue pairs used more than once, as after a restart. Such a
    /// number does not identify a single connection.
    ambiguous: Vec<u32>,
    restarted: bool,
    next_qpn: u32,
    /// The number of events, by kind.
    tally: BTreeMap<&'static str, u64>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::split(seed, 1 << 40);
        let mut net = Net::new(seed);
        let nodes: Vec<_> = (0..2 + rng.below(3)).map(|_| net.add_node()).collect();
        let worst = [0, 10, 30, 60][rng.below(4) as usize];
        net.set_faults(Faults {
            loss: rng.below(worst + 1) as u8,
            duplication: rng.below(worst + 1) as u8,
            latency_min: MILLISECOND / 10,
            latency_max: [MILLISECOND, 300 * MILLISECOND, 6 * SECOND][rng.below(3) as usize],
        });
        let mut world = Self {
            net,
            rng,
            nodes,
            actions: BTreeMap::new(),
            scheduled: 0,
            histories: BTreeMap::new(),
            accepted: BTreeMap::new(),
            ambiguous: Vec::new(),
            restarted: false,
            next_qpn: 16,
            tally: BTreeMap::new(),
        };
        for node in world.nodes.clone() {
            world.listen(node);
        }
        for _ in 0..2 + world.rng.below(10) {
            let node = world.any_node();
            world.later(10 * SECOND, Action::Connect(node));
        }
        if world.rng.chance(Chance::percent(15)) {
            let node = world.any_node();
            let action =
                if world.rng.chance(Chance::percent(50)) { Action::Restart(node) } else { Action::Cut(node) };
            world.later(20 * SECOND, action);
        }
        for _ in 0..world.rng.below(6) {
            world.later(60 * SECOND, Action::Guess);
        }
        world
    }

    fn any_node(&mut self) -> NodeId {
        self.nodes[self.rng.below(self.nodes.len() as u64) as usize]
    }

    fn listen(&mut self, node: NodeId) {
        let backlog = 1 + self.rng.below(8) as usize;
        self.net.cm(node).listen(SERVICE, u64::MAX, backlog).expect("the only listener");
    }

    /// Schedules an action within `within` nanoseconds, half of the time much sooner.
    fn later(&mut self, within: u64, action: Action) {
        let within = if self.rng.chance(Chance::percent(50)) { within / 100 } else { within };
        let at = self.net.now() + self.rng.below(within + 1);
        self.scheduled += 1;
        self.actions.insert((at, self.scheduled), action);
    }

    /// Runs the world until nothing remains to happen.
    fn run(&mut self) {
        loop {
            let due = self.actions.first_key_value().map(|((at, _), _)| *at);
            match self.net.next_until(due.unwrap_or(Time(u64::MAX))) {
                Some((node, event)) => self.on_event(node, &event),
                None if due.is_some() => {
                    let (_, action) = self.actions.pop_first().expect("one is due");
                    self.act(action);
                }
                None => break,
            }
            assert!(self.net.now() < Time(4 * 3600 * SECOND), "it never ends");
        }
    }

    fn on_event(&mut self, node: NodeId, event: &Event) {
        let id = event.id();
        *self.tally.entry(name(event)).or_default() += 1;
        let history = self.histories.entry((node, id)).or_default();
        assert!(!history.ended, "an event after the last one: {event:?}");
        assert!(!history.destroyed, "an event of a destroyed connection: {event:?}");
        let kind = std::mem::discriminant(event);
        assert!(!history.events.contains(&kind), "an event came twice: {event:?}");
        history.events.push(kind);
        history.ended = event.is_last();
        match event {
            Event::Request(request) => {
                history.requester = request.remote_qpn;
                history.forged = request.starting_psn == FORGED_PSN;
                self.on_request(node, id);
            }
            Event::Reply(reply) => {
                let requester = history.requester;
                let accepted = &self.accepted[&requester];
                assert!(accepted.contains(&(reply.remote_qpn, reply.starting_psn)), "{reply:?}");
                let attr = self.net.cm(node).qp_attr(id).expect("the peer is known");
                assert_eq!((attr.dest_qpn, attr.sq_psn), (reply.remote_qpn, reply.starting_psn));
                self.on_reply(node, id);
            }
            Event::Established { private_data, .. } => {
                history.established = private_data.is_some();
                self.end_some_time(node, id);
            }
            Event::Disconnecting { .. } => {
                let action = match self.rng.below(5) {
                    0 => Action::Destroy(node, id),
                    _ => Action::Disconnect(node, id),
                };
                self.later(3 * SECOND, action);
            }
            Event::Disconnected { .. } => {
                let (requester, asked, forged) = (history.requester, history.asked, history.forged);
                if !forged {
                    self.on_release(node, id, requester, asked);
                }
            }
            Event::SidrRequest(_) => {
                let action = match self.rng.below(5) {
                    0 => Action::Destroy(node, id),
                    _ => Action::SidrReply(node, id),
                };
                self.later(6 * SECOND, action);
            }
            _ => {}
        }
        if event.is_last() {
            assert_eq!(self.net.cm(node).state(id), None);
        }
    }

    /// Checks the end of a release. If this side requested the release, it must end in time;
    /// otherwise the other side must have ended the connection too.
    fn on_release(&mut self, node: NodeId, id: CmId, requester: u32, asked: Option<Time>) {
        if let Some(asked) = asked {
            assert!(self.net.now() <= asked + RELEASE, "a release since {asked:?}");
            return;
        }
        if self.ambiguous.contains(&requester) {
            return;
        }
        let has_it = |other: &History| other.requester == requester && (other.ready || other.established);
        let others = self.histories.iter().filter(|(key, other)| **key != (node, id) && has_it(other));
        for (other, id) in others.map(|(key, _)| *key).collect::<Vec<_>>() {
            assert_eq!(self.net.cm(other).state(id), None, "{node:?} alone has released it");
        }
    }

    fn on_request(&mut self, node: NodeId, id: CmId) {
        let cm = self.net.cm(node);
        let mut within = 5 * SECOND;
        match self.rng.below(10) {
            0 => cm.prepare_mra(id, 22, mra::Data::default()).expect("it was just asked"),
            1 => {
                cm.send_mra(id, 21, mra::Data::default()).expect("it was just asked");
                within = 20 * SECOND;
            }
            _ => {}
        }
        let action = match self.rng.below(10) {
            0 => Action::Reject(node, id),
            1 => Action::Destroy(node, id),
            _ => Action::Accept(node, id),
        };
        self.later(within, action);
    }

    fn on_reply(&mut self, node: NodeId, id: CmId) {
        let cm = self.net.cm(node);
        let mut within = SECOND;
        match self.rng.below(10) {
            0 => cm.prepare_mra(id, 22, mra::Data::default()).expect("it was just answered"),
            1 => {
                cm.send_mra(id, 21, mra::Data::default()).expect("it was just answered");
                within = 20 * SECOND;
            }
            _ => {}
        }
        let action = match self.rng.below(12) {
            0 => Action::Reject(node, id),
            1 => Action::Destroy(node, id),
            _ => Action::Ready(node, id),
        };
        self.later(within, action);
    }

    fn end_some_time(&mut self, node: NodeId, id: CmId) {
        let action = match self.rng.below(4) {
            0 => Action::Destroy(node, id),
            _ => Action::Disconnect(node, id),
        };
        self.later(40 * SECOND, action);
    }

    fn act(&mut self, action: Action) {
        let now = self.net.now();
        match action {
            Action::Connect(node) => self.connect(node),
            Action::Accept(node, id) => self.accept(node, id),
            Action::Established(node, id) => may_be_late(self.net.cm(node).established(id)),
            Action::Ready(node, id) => {
                let outcome = self.net.cm(node).ready_to_use(id, Default::default());
                if outcome.is_ok() {
                    self.history(node, id).ready = true;
                    self.end_some_time(node, id);
                }
                may_be_late(outcome);
            }
            Action::Reject(node, id) => {
                let outcome = self.net.cm(node).reject(now, id, &RejectParams::default());
                if outcome.is_ok() {
                    self.history(node, id).rejected = true;
                }
                may_be_late(outcome);
            }
            Action::Disconnect(node, id) => {
                let outcome = self.net.cm(node).disconnect(now, id, Default::default());
                if outcome.is_ok() {
                    self.history(node, id).asked.get_or_insert(now);
                }
                may_be_late(outcome);
            }
            Action::Destroy(node, id) => {
                self.net.cm(node).destroy(now, id);
                self.history(node, id).destroyed = true;
            }
            Action::SidrReply(node, id) => {
                may_be_late(self.net.cm(node).sidr_reply(id, &SidrReplyParams::default()));
            }
            Action::Restart(node) => {
                self.net.restart(node);
                self.listen(node);
                self.restarted = true;
                self.histories.retain(|(of, _), _| *of != node);
                self.actions.retain(|_, action| action.concerns() != Some(node));
                if self.rng.chance(Chance::percent(50)) {
                    self.later(SECOND, Action::Connect(node));
                }
            }
            Action::Guess => self.guess(),
            Action::Cut(node) => {
                self.net.set_cut(node, true);
                self.restarted = true;
            }
        }
    }

    fn history(&mut self, node: NodeId, id: CmId) -> &mut History {
        self.histories.entry((node, id)).or_default()
    }

    fn connect(&mut self, node: NodeId) {
        let (to, now) = (self.any_node(), self.net.now());
        if self.rng.chance(Chance::percent(20)) {
            let params = SidrParams::new(self.net.address(node, to), SERVICE);
            let id = self.net.cm(node).sidr_request(now, &params).expect("there is room");
            self.history(node, id);
            return;
        }
        let mut qp_num = self.next_qpn;
        self.next_qpn += 1;
        if self.rng.chance(Chance::percent(10)) {
            // A program reuses a queue pair, as if the node had restarted.
            qp_num = 16 + self.rng.below(u64::from(qp_num - 15)) as u32;
            self.ambiguous.push(qp_num);
        }
        let params = ConnectParams {
            path: self.net.path(node, to),
            service_id: if self.rng.chance(Chance::percent(5)) { UNSERVED } else { SERVICE },
            qp_num,
            starting_psn: qp_num ^ 0xff_0000,
            ..ConnectParams::default()
        };
        let id = self.net.cm(node).connect(now, &params).expect("there is room");
        self.history(node, id).requester = qp_num;
        if self.rng.chance(Chance::percent(10)) {
            self.later(20 * SECOND, Action::Destroy(node, id));
        }
    }

    fn guess(&mut self) {
        let (from, to) = (self.any_node(), self.any_node());
        let local_qpn = 16 + self.rng.below(u64::from(self.next_qpn - 15)) as u32;
        let request = guess(&self.net, from, to, local_qpn, self.rng.below(1 << 32) as u32);
        self.net.inject(from, to, request);
    }

    fn accept(&mut self, node: NodeId, id: CmId) {
        let (now, qp_num) = (self.net.now(), self.next_qpn);
        self.next_qpn += 1;
        let params = AcceptParams { qp_num, starting_psn: qp_num ^ 0x00_ff00, ..AcceptParams::default() };
        let outcome = self.net.cm(node).accept(now, id, &params);
        if outcome.is_ok() {
            let requester = self.history(node, id).requester;
            self.accepted.entry(requester).or_default().push((qp_num, params.starting_psn));
            if self.rng.chance(Chance::percent(10)) {
                self.later(10 * SECOND, Action::Established(node, id));
            }
            if self.rng.chance(Chance::percent(5)) {
                self.later(10 * SECOND, Action::Reject(node, id));
            }
        }
        may_be_late(outcome);
    }

    /// Checks the final state of the world.
    fn check(&mut self) {
        for node in self.nodes.clone() {
            let cm = self.net.cm(node);
            assert!(cm.is_empty(), "connections stay on {node:?}: {cm:?}");
            assert_eq!((cm.deadline(), cm.poll_transmit(), cm.poll_event()), (None, None, None));
            assert_eq!(cm.counters().unsent, 0);
        }
        if self.restarted {
            return;
        }
        for ((node, id), history) in &self.histories {
            let others = || {
                self.histories.iter().filter(|(of, other)| {
                    **of != (*node, *id) && other.requester == history.requester && history.requester != 0
                })
            };
            if self.ambiguous.contains(&history.requester) {
                continue;
            }
            if history.established {
                assert!(others().any(|(_, other)| other.ready), "{node:?} {id:?} without a ready peer");
            }
            if history.ready {
                let learned =
                    |other: &History| other.destroyed || other.rejected || other.ended || other.established;
                assert!(others().any(|(_, other)| learned(other)), "{node:?} {id:?} alone is ready");
            }
            assert!(
                history.ended
                    || history.destroyed
                    || history.rejected
                    || history.events.is_empty()
                    || history.requester == 0
            );
        }
    }
}

impl Action {
    fn concerns(self) -> Option<NodeId> {
        match self {
            Self::Accept(node, _)
            | Self::Established(node, _)
            | Self::Ready(node, _)
            | Self::Reject(node, _)
            | Self::Disconnect(node, _)
            | Self::Destroy(node, _)
            | Self::SidrReply(node, _) => Some(node),
            Self::Connect(_) | Self::Restart(_) | Self::Cut(_) | Self::Guess => None,
        }
    }
}

/// The kinds of events in these worlds. If a program must distinguish two ways in which a
/// connection ends, these are separate kinds.
const KINDS: [&str; 15] = [
    "request",
    "reply",
    "established by RTU",
    "established by packet",
    "MRA",
    "rejected",
    "rejected with timewait",
    "stale",
    "gave up",
    "unreachable",
    "disconnecting",
    "disconnected",
    "disconnected without response",
    "timewait exit",
    "resolution",
];

fn name(event: &Event) -> &'static str {
    match event {
        Event::Request(_) => "request",
        Event::Reply(_) => "reply",
        Event::Established { private_data: Some(_), .. } => "established by RTU",
        Event::Established { private_data: None, .. } => "established by packet",
        Event::MraReceived { .. } => "MRA",
        Event::Rejected(rejected) => match rejected.reason {
            Reason::STALE_CONN => "stale",
            Reason::TIMEOUT => "gave up",
            _ if rejected.timewait => "rejected with timewait",
            _ => "rejected",
        },
        Event::Unreachable { .. } => "unreachable",
        Event::Disconnecting { .. } => "disconnecting",
        Event::Disconnected { private_data: Some(_), .. } => "disconnected",
        Event::Disconnected { private_data: None, .. } => "disconnected without response",
        Event::TimewaitExit { .. } => "timewait exit",
        Event::SidrRequest(_) | Event::SidrReply(_) => "resolution",
        other => panic!("an event that the worlds do not know: {other:?}"),
    }
}

/// Returns a forged REQ with a node's address and GUID.
fn guess(net: &Net, from: NodeId, to: NodeId, local_qpn: u32, local_comm_id: u32) -> Mad {
    let primary = path::Repr { local_gid: net.gid(from), remote_gid: net.gid(to), ..path::Repr::default() };
    let request = req::Repr {
        local_comm_id,
        service_id: SERVICE,
        local_ca_guid: net.guid(from),
        local_qpn,
        starting_psn: FORGED_PSN,
        local_cm_response_timeout: 18,
        max_cm_retries: 3,
        path_mtu: Mtu::B1024,
        primary,
        ..req::Repr::default()
    };
    Message::from(request).emit(1, 0)
}

/// Asserts that a call succeeded, or failed only because the connection has ended or changed its
/// state.
fn may_be_late(outcome: Result<(), Refused>) {
    assert!(matches!(outcome, Ok(()) | Err(Refused::NoSuchId | Refused::State(_))), "{outcome:?}");
}

/// Runs the world of a seed and returns its number of events, by kind.
fn world(seed: u64, verbose: bool) -> BTreeMap<&'static str, u64> {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("seed {}: IB_CM_SIM_SEED={} shows its trace", self.0, self.0);
            }
        }
    }
    let named = Named(seed);
    let mut world = World::new(seed);
    if verbose {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            world.run();
            world.check();
        }));
        println!("{}", world.net.trace());
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    } else {
        world.run();
        world.check();
    }
    drop(named);
    world.tally
}

#[test]
fn all_worlds_come_to_an_end_on_which_all_agree() {
    let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("IB_CM_SIM_SEED") {
        println!("{:?}", world(seed, true));
        return;
    }
    let mut tally = BTreeMap::new();
    for seed in 0..number("IB_CM_SIM_SEEDS").unwrap_or(SEEDS) {
        for (kind, count) in world(seed, false) {
            *tally.entry(kind).or_insert(0) += count;
        }
    }
    for kind in KINDS {
        assert!(tally.get(kind).is_some_and(|count| *count >= 10), "{kind} is rare in {tally:?}");
    }
    println!("{tally:?}");
}

#[test]
fn the_same_seed_makes_the_same_world() {
    let trace = |seed| {
        let mut world = World::new(seed);
        world.run();
        world.net.trace()
    };
    assert_eq!(trace(5), trace(5));
    assert_ne!(trace(5), trace(6));
}

#[test]
fn a_stranger_on_the_network_takes_down_no_connection() {
    for seed in 0..20 {
        let mut net = Net::new(seed);
        let (a, b, mallory) = (net.add_node(), net.add_node(), net.add_node());
        net.cm(b).listen(SERVICE, u64::MAX, 4).unwrap();
        let (path, now) = (net.path(a, b), net.now());
        let params = ConnectParams { path, service_id: SERVICE, qp_num: 5, ..ConnectParams::default() };
        let asked = net.cm(a).connect(now, &params).unwrap();
        let mut rng = Rng::new(seed);
        let mut established = 0;
        for _ in 0..500 {
            let mut mad = [0; 256];
            rng.fill(&mut mad);
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&[0, 0x10 + rng.below(11) as u8]);
            let to = if rng.chance(Chance::percent(50)) { a } else { b };
            net.inject(mallory, to, mad);
            let until = net.now() + MILLISECOND;
            while let Some((node, event)) = net.next_until(until) {
                let now = net.now();
                match event {
                    Event::Request(request) if request.remote_qpn == 5 => {
                        net.cm(node).accept(now, request.id, &AcceptParams::default()).unwrap();
                    }
                    Event::Reply(reply) => net.cm(node).ready_to_use(reply.id, Default::default()).unwrap(),
                    Event::Established { .. } => established += 1,
                    other => panic!("{other:?}\n{}", net.trace()),
                }
            }
        }
        assert_eq!(established, 1);
        assert_eq!(net.cm(a).state(asked), Some(State::Established));
        assert_eq!((net.cm(a).len(), net.cm(b).len()), (1, 1));
    }
}

#[test]
fn a_stranger_who_knows_the_queue_pair_takes_down_no_connection() {
    let mut net = Net::new(1);
    let (a, b) = (net.add_node(), net.add_node());
    net.cm(a).listen(SERVICE, u64::MAX, 4).unwrap();
    net.cm(b).listen(SERVICE, u64::MAX, 4).unwrap();
    let (path, now) = (net.path(a, b), net.now());
    let params = ConnectParams { path, service_id: SERVICE, qp_num: 5, ..ConnectParams::default() };
    let asked = net.cm(a).connect(now, &params).unwrap();
    let mut accepted = None;
    for round in 0..200 {
        let until = net.now() + 100 * MILLISECOND;
        while let Some((node, event)) = net.next_until(until) {
            let now = net.now();
            match event {
                Event::Request(request) => {
                    let params = AcceptParams { qp_num: 6, ..AcceptParams::default() };
                    net.cm(node).accept(now, request.id, &params).unwrap();
                    accepted = Some(request.id);
                }
                Event::Reply(reply) => net.cm(node).ready_to_use(reply.id, Default::default()).unwrap(),
                Event::Established { .. } => {}
                other => panic!("{other:?}\n{}", net.trace()),
            }
        }
        // Each forged request uses the queue pair of the node whose address it carries.
        let (from, to, qpn) = if round % 2 == 0 { (a, b, 5) } else { (b, a, 6) };
        let request = guess(&net, from, to, qpn, 1000 + round);
        net.inject(from, to, request);
    }
    assert_eq!(net.cm(a).state(asked), Some(State::Established));
    assert_eq!(net.cm(b).state(accepted.unwrap()), Some(State::Established));
    assert_eq!((net.cm(a).len(), net.cm(b).len()), (1, 1));
}

#[test]
fn many_ask_one_at_once() {
    let mut net = Net::new(1);
    net.set_faults(Faults { loss: 5, latency_max: 20 * MILLISECOND, ..Faults::default() });
    let server = net.add_node();
    net.cm(server).listen(SERVICE, u64::MAX, 16).unwrap();
    let clients: Vec<_> = (0..4).map(|_| net.add_node()).collect();
    for number in 0..256_u32 {
        let client = clients[number as usize % 4];
        let (path, now) = (net.path(client, server), net.now());
        let params =
            ConnectParams { path, service_id: SERVICE, qp_num: number + 2, ..ConnectParams::default() };
        net.cm(client).connect(now, &params).unwrap();
    }
    let mut established = 0;
    while let Some((node, event)) = net.next() {
        let now = net.now();
        match event {
            Event::Request(request) => {
                let params = AcceptParams { qp_num: request.remote_qpn + 1000, ..AcceptParams::default() };
                net.cm(node).accept(now, request.id, &params).unwrap();
            }
            Event::Reply(reply) => net.cm(node).ready_to_use(reply.id, Default::default()).unwrap(),
            Event::Established { .. } => established += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(established, 256);
}
