//! Tests of the state machine, one rule at a time. Two managers exchange messages. Each test
//! decides whether a message is delivered, kept or repeated.

mod duplicates;
mod handshake;
mod limits;
mod lost;
mod others;
mod release;
mod resolution;
mod strangers;
mod timeouts;

use super::*;
use crate::sim::Rng;
use crate::time::MILLISECOND;
use crate::wire::{Attribute, Gid, Mad, Message, PortSpace, ServiceId, dreq, mad, mra, rtu};

const SERVICE: ServiceId = ServiceId::ip(PortSpace::TCP, 7174);
const ALICE: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1];
const BOB: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 2];
const MALLORY: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 66];
const ALICE_GUID: u64 = 0xa11ce;
const BOB_GUID: u64 = 0xb0b;

/// One side of a connection: a communication manager, its address and its current time.
struct Side {
    cm: Cm,
    gid: Gid,
    now: Time,
}

impl Side {
    fn new(gid: Gid, config: Config) -> Self {
        Self { cm: Cm::new(config, Rng::new(config.node_guid)), gid, now: Time(0) }
    }

    /// Removes and returns all messages waiting to be sent.
    fn sent(&mut self) -> Vec<Transmit> {
        core::iter::from_fn(|| self.cm.poll_transmit()).collect()
    }

    /// Removes and returns the only message waiting to be sent, and checks its kind.
    fn sends(&mut self, attribute: Attribute) -> Transmit {
        let sent = self.sent();
        assert_eq!(sent.iter().map(kind).collect::<Vec<_>>(), [attribute]);
        sent[0]
    }

    /// Checks that two copies of one message, and no others, are waiting to be sent.
    fn sends_again(&mut self, attribute: Attribute) {
        let sent = self.sent();
        assert_eq!(sent.iter().map(kind).collect::<Vec<_>>(), [attribute; 2]);
        assert_eq!(sent[0], sent[1]);
    }

    fn sends_nothing(&mut self) {
        let sent = self.sent();
        assert_eq!(sent.iter().map(kind).collect::<Vec<_>>(), []);
    }

    /// Delivers a message from another side.
    fn takes(&mut self, transmit: &Transmit) {
        assert_eq!(transmit.to.remote, self.gid, "it is for this side");
        self.takes_from(transmit.to.local, &transmit.mad);
    }

    fn takes_from(&mut self, source: Gid, mad: &Mad) {
        let from = Address::gsi(self.gid, source);
        self.cm.input(self.now, &from, mad);
        self.cm.table.check();
    }

    /// Removes and returns the only waiting event.
    fn event(&mut self) -> Event {
        let event = self.cm.poll_event().expect("an event");
        assert_eq!(self.cm.poll_event(), None);
        event
    }

    fn no_event(&mut self) {
        assert_eq!(self.cm.poll_event(), None);
    }

    /// Advances time to the deadline and returns the time waited, in milliseconds.
    fn waits(&mut self) -> u64 {
        let deadline = self.cm.deadline().expect("a deadline");
        let waited = (deadline.0 - self.now.0) / MILLISECOND;
        self.now = deadline;
        self.cm.handle_timeout(deadline);
        self.cm.table.check();
        waited
    }

    fn connects(&mut self, to: Gid) -> CmId {
        self.connects_with(&params(self.gid, to))
    }

    fn connects_with(&mut self, params: &ConnectParams) -> CmId {
        self.cm.connect(self.now, params).unwrap()
    }

    fn accepts(&mut self, id: CmId, qp_num: u32) {
        let params =
            AcceptParams { qp_num, starting_psn: 0xb0b, rnr_retry_count: 6, ..AcceptParams::default() };
        self.cm.accept(self.now, id, &params).unwrap();
    }

    fn ready(&mut self, id: CmId) {
        self.cm.ready_to_use(id, rtu::Data::new(b"ready").unwrap()).unwrap();
    }

    fn disconnects(&mut self, id: CmId) {
        self.cm.disconnect(self.now, id, dreq::Data::new(b"bye").unwrap()).unwrap();
    }

    fn has_nothing_left(&mut self) {
        self.cm.table.check();
        assert!(self.cm.is_empty());
        assert_eq!(self.cm.deadline(), None);
    }
}

fn kind(transmit: &Transmit) -> Attribute {
    parse(transmit).attribute()
}

fn parse(transmit: &Transmit) -> Message {
    Message::parse(&transmit.mad).unwrap().1
}

fn header(transmit: &Transmit) -> mad::Repr {
    Message::parse(&transmit.mad).unwrap().0
}

fn path(local: Gid, remote: Gid) -> Path {
    Path { local, remote, hop_limit: 64, packet_life_time: 16, ..Path::default() }
}

fn params(local: Gid, remote: Gid) -> ConnectParams {
    ConnectParams {
        path: path(local, remote),
        service_id: SERVICE,
        qp_num: 0x11,
        starting_psn: 0xa11,
        responder_resources: 3,
        initiator_depth: 4,
        ..ConnectParams::default()
    }
}

fn alice() -> Side {
    Side::new(ALICE, Config { node_guid: ALICE_GUID, ..Config::default() })
}

/// Returns a side with a listener.
fn bob() -> Side {
    bob_with(Config::default())
}

fn bob_with(config: Config) -> Side {
    let mut bob = Side::new(BOB, Config { node_guid: BOB_GUID, ..config });
    bob.cm.listen(SERVICE, u64::MAX, 8).unwrap();
    bob
}

/// Two sides and the connection's id on each.
struct Pair {
    alice: Side,
    bob: Side,
    a: CmId,
    b: CmId,
}

/// Returns both sides once Bob has received Alice's REQ.
fn requested() -> Pair {
    let (mut alice, mut bob) = (alice(), bob());
    let a = alice.connects(BOB);
    bob.takes(&alice.sends(Attribute::REQ));
    let b = bob.event().id();
    Pair { alice, bob, a, b }
}

/// Returns both sides once Alice has received Bob's REP.
fn replied() -> Pair {
    let mut pair = requested();
    pair.bob.accepts(pair.b, 0x22);
    pair.alice.takes(&pair.bob.sends(Attribute::REP));
    assert!(matches!(pair.alice.event(), Event::Reply(_)));
    pair
}

/// Returns both sides with an established connection.
fn connected() -> Pair {
    let mut pair = replied();
    pair.alice.ready(pair.a);
    pair.bob.takes(&pair.alice.sends(Attribute::RTU));
    assert!(matches!(pair.bob.event(), Event::Established { .. }));
    pair
}
