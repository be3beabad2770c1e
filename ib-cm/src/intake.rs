//! [`Intake`]: requests waiting to be handled, in an order that no sender can dominate.
//!
//! ```text
//!   datagrams ─► sort ─┬─ requests, and what follows them ─► by source ─► take ─► Cm::input
//!                      └─ all others ───────────────────────────────────────────► Cm::input
//! ```
//!
//! A request from an unknown sender costs the receiver far more than the sender: a connection, an
//! event, an id. Emptying the socket is cheap, so the receiver does this first. Then it handles
//! some of the requests. It serves the source addresses in rotation, one request at a time. When
//! the intake is full, the source with the most requests loses its oldest one, so a flood displaces
//! its own requests. Ties are broken in rotation. Senders repeat lost requests. Messages for
//! existing connections do not wait, except behind a request from the same source, because a
//! message that cancels a request must arrive after the request.
//!
//! ```
//! use ib_cm::cm::{Address, Cm, Config};
//! use ib_cm::intake::Intake;
//! use ib_cm::sim::Rng;
//! use ib_cm::time::Time;
//!
//! # let (datagrams, now): (Vec<(Address, [u8; 256])>, Time) = (Vec::new(), Time(0));
//! let mut cm = Cm::new(Config::default(), Rng::new(1));
//! let mut intake = Intake::new(1024);
//! for (from, mad) in datagrams {
//!     if !intake.sort(&from, &mad) {
//!         cm.input(now, &from, &mad);
//!     }
//! }
//! for (from, mad) in core::iter::from_fn(|| intake.take()).take(64) {
//!     cm.input(now, &from, &mad);
//! }
//! ```

use crate::cm::Address;
use crate::shares::Shares;
use crate::wire::mad::{Attribute, CLASS, Method};
use crate::wire::{Mad, mad};

/// Requests waiting to be handled, and later messages from the same senders.
#[derive(Debug)]
pub struct Intake {
    waiting: Shares<(Address, Mad)>,
    capacity: usize,
    displaced: u64,
}

impl Intake {
    /// Returns an empty intake for `capacity` datagrams, at least 1.
    pub fn new(capacity: usize) -> Self {
        Self { waiting: Shares::default(), capacity: capacity.max(1), displaced: 0 }
    }

    /// Takes a datagram if it requests a connection or a service, or if another datagram from its
    /// source is waiting. Returns whether the datagram was taken; the caller handles any other at
    /// once.
    pub fn sort(&mut self, from: &Address, mad: &Mad) -> bool {
        if !is_request(mad) && self.waiting.count(&from.remote) == 0 {
            return false;
        }
        if self.waiting.len() >= self.capacity && self.waiting.pop_greediest().is_some() {
            self.displaced += 1;
        }
        // If memory runs out, the datagram is lost, as when a socket's buffer is full.
        self.waiting.try_push(from.remote, (*from, *mad));
        true
    }

    /// Removes and returns the oldest datagram of the next source in rotation.
    pub fn take(&mut self) -> Option<(Address, Mad)> {
        self.waiting.pop_in_turn()
    }

    /// Returns whether no datagram is waiting.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the number of waiting datagrams.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of datagrams dropped in favour of others.
    pub fn displaced(&self) -> u64 {
        self.displaced
    }
}

/// Returns whether a datagram requests a connection or a service.
pub fn is_request(bytes: &Mad) -> bool {
    mad::Packet::new_checked(bytes).is_ok_and(|header| {
        header.mgmt_class() == CLASS
            && header.method() == Method::SEND
            && matches!(header.attr_id(), Attribute::REQ | Attribute::SIDR_REQ)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::cm::{Cm, Config, ConnectParams, Event, Path, SidrParams};
    use crate::sim::Rng;
    use crate::time::{MILLISECOND, Time};
    use crate::wire::{Gid, PortSpace, ServiceId};

    const SERVICE: ServiceId = ServiceId::ip(PortSpace::TCP, 7174);
    const BOB: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 2];

    fn host(number: u8) -> Gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 51, 100, number]
    }

    /// Returns a request from the address `from` and the message's addresses. `seed` makes the
    /// request unique.
    fn request(from: Gid, seed: u64) -> (Address, Mad) {
        let mut cm = Cm::new(Config { node_guid: seed, ..Config::default() }, Rng::new(seed));
        let path = Path { local: from, remote: BOB, hop_limit: 64, packet_life_time: 16, ..Path::default() };
        let qp_num = seed as u32 & 0xff_ffff;
        let params = ConnectParams { path, service_id: SERVICE, qp_num, ..ConnectParams::default() };
        cm.connect(Time(0), &params).unwrap();
        (Address::gsi(BOB, from), cm.poll_transmit().unwrap().mad)
    }

    #[test]
    fn each_source_has_its_turn() {
        let mut intake = Intake::new(8);
        for (source, seed) in [(1, 1), (1, 2), (1, 3), (2, 4), (3, 5), (3, 6)] {
            let (from, mad) = request(host(source), seed);
            assert!(intake.sort(&from, &mad));
        }
        let turns: Vec<_> = core::iter::from_fn(|| intake.take()).map(|(from, _)| from.remote[15]).collect();
        assert_eq!(turns, [1, 2, 3, 1, 3, 1]);
        assert!(intake.is_empty() && intake.displaced() == 0);
    }

    #[test]
    fn the_source_with_the_most_requests_loses_its_oldest_one() {
        let mut intake = Intake::new(3);
        let requests =
            [(1, 1), (2, 2), (1, 3), (2, 4), (3, 5)].map(|(source, seed)| request(host(source), seed));
        for (from, mad) in &requests {
            intake.sort(from, mad);
        }
        // Host 1 loses its first request, then host 2 loses one.
        let kept: Vec<_> = core::iter::from_fn(|| intake.take()).map(|(_, mad)| mad).collect();
        assert_eq!(kept, [requests[2].1, requests[3].1, requests[4].1]);
        assert_eq!(intake.displaced(), 2);
    }

    #[test]
    fn messages_for_connections_and_other_classes_do_not_wait() {
        let mut intake = Intake::new(3);
        let (from, mut mad) = request(host(1), 1);
        for (at, value) in [(17, 0x14), (1, 0x03), (3, 0x81)] {
            let kept = core::mem::replace(&mut mad[at], value);
            assert!(!intake.sort(&from, &mad));
            mad[at] = kept;
        }
        let mut cm = Cm::new(Config::default(), Rng::new(1));
        cm.sidr_request(Time(0), &SidrParams::new(Address::gsi(host(1), BOB), SERVICE)).unwrap();
        let request = cm.poll_transmit().unwrap().mad;
        assert!(intake.sort(&from, &request));
        // The REJ waits behind the request that it may cancel.
        mad[17] = 0x12;
        assert!(intake.sort(&from, &mad));
        assert_eq!([intake.take(), intake.take()], [Some((from, request)), Some((from, mad))]);
        assert!(!intake.sort(&from, &mad));
    }

    /// 20,000 requests a second arrive from one address, along with requests from 100 honest
    /// clients. The receiver handles 64 requests per 10 ms round, about a third of those arriving.
    #[test]
    fn a_flood_from_one_address_displaces_itself_and_no_client() {
        const FLOOD_IN_A_ROUND: u64 = 200;
        let mut cm = Cm::new(Config { node_guid: 7, ..Config::default() }, Rng::new(7));
        cm.listen(SERVICE, u64::MAX, usize::MAX).unwrap();
        let mut intake = Intake::new(1024);
        let (mut arrived_at, mut handled) = (BTreeMap::new(), 0);
        for round in 0..100_u64 {
            let now = Time(round * 10 * MILLISECOND);
            let flood = (0..FLOOD_IN_A_ROUND).map(|number| request(host(66), 1 << 20 | round << 10 | number));
            let honest = (50..60).contains(&round).then(|| {
                (0..10).map(|number| {
                    request(
                        host(100 + (round as u8 - 50) * 10 + number),
                        round + u64::from(number) * 1000 + 9,
                    )
                })
            });
            for (from, mad) in flood.chain(honest.into_iter().flatten()) {
                assert!(intake.sort(&from, &mad));
                arrived_at.entry(from.remote).or_insert(round);
            }
            for (from, mad) in core::iter::from_fn(|| intake.take()).take(64) {
                cm.input(now, &from, &mad);
            }
            while let Some(event) = cm.poll_event() {
                let Event::Request(request) = event else { panic!("{event:?}") };
                let waited = round - arrived_at[&request.from.remote];
                // The receiver also handles requests from the flood.
                assert!(waited == 0 || request.from.remote == host(66), "a client waits {waited} rounds");
                handled += u32::from(request.from.remote != host(66));
                cm.destroy(now, request.id);
            }
            while cm.poll_transmit().is_some() {}
        }
        assert_eq!(handled, 100);
        assert!(intake.displaced() > 10_000 && intake.len() <= 1024);
    }
}
