//! The delay that a hostile peer can cause: the packets and bytes that leave an engine before a
//! packet for another peer.
//!
//! The attacker has almost 4,000 queue pairs. On each of them, it has a 2 GiB read in progress, or
//! atomics, or a request that must be rejected. The documentation of the module `output` in
//! `roce::engine` states the bounds tested here.

use roce::engine::{
    Access, Arrival, AttrChange, Completion, Config, CqFull, CqId, Engine, Event, Fault, Gid, Memory,
    MemoryAttr, Path, Payload, QpCap, QpInit, Qpn, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, Sink,
    SrqId, State, Time, Urgency,
};
use roce::sim::Rng;
use roce::wire::packet::MAX_PACKET_LEN;
use roce::wire::{Headers, ICRC_LEN, Opcode, Psn, atomic_eth, bth, reth};

const HERE: Gid = gid(1);
const ATTACKER: Gid = gid(2);
const INNOCENT: Gid = gid(3);
/// The number of the attacker's queue pairs: 4000, minus 8 for innocent peers.
const HOSTILE_QPS: usize = 4000 - 8;
const WINDOW: u64 = 512 << 10;
/// The length of the largest read, in bytes (IBTA 9.7.4.1).
const LARGEST_READ: u32 = 1 << 31;
/// The cost of each packet in the window, in bytes, in addition to its length.
const PACKET_COST: u64 = 768;
/// A quantum of responses: the maximum number of packets and the maximum number of bytes.
const QUANTUM: (u64, u64) = (64, 65_732);
/// The maximum number of consecutive packets from one class while other classes wait.
const SHARE: u64 = 64;

const fn gid(last: u8) -> Gid {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last]
}

/// Memory of any size that stores nothing.
struct Hollow;

impl Memory for Hollow {
    type Region = ();
    fn read(&mut self, (): &(), _offset: u64, _dst: &mut [u8]) -> Result<(), Fault> {
        Ok(())
    }
    fn write(&mut self, (): &(), _offset: u64, _src: &[u8]) -> Result<(), Fault> {
        Ok(())
    }
    fn compare_swap(&mut self, (): &(), _offset: u64, _compare: u64, _swap: u64) -> Result<u64, Fault> {
        Ok(0)
    }
    fn atomic_write(&mut self, (): &(), _offset: u64, _data: [u8; 8]) -> Result<(), Fault> {
        Ok(())
    }
    fn fetch_add(&mut self, (): &(), _offset: u64, _add: u64) -> Result<u64, Fault> {
        Ok(0)
    }
}

/// A sink that ignores all reports.
struct Deaf;

impl Sink for Deaf {
    fn complete(&mut self, _cq: CqId, _completion: &Completion) -> Result<(), CqFull> {
        Ok(())
    }
    fn retire_send(&mut self, _qpn: Qpn, _count: u32) {}
    fn retire_recv(&mut self, _qpn: Qpn, _count: u32) {}
    fn retire_srq(&mut self, _srq: SrqId, _count: u32) {}
    fn event(&mut self, _event: Event) {}
}

/// The number of packets and bytes sent before another packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Before {
    packets: u64,
    bytes: u64,
}

impl Before {
    fn most(self, other: Self) -> Self {
        Self { packets: self.packets.max(other.packets), bytes: self.bytes.max(other.bytes) }
    }

    fn assert_within(self, quanta: u64, other_packets: u64) {
        assert!(self.packets <= quanta * QUANTUM.0 + other_packets, "{self:?}, beyond {quanta} quanta");
        assert!(self.bytes <= quanta * QUANTUM.1 + other_packets * 64, "{self:?}, beyond {quanta} quanta");
    }
}

struct Victim {
    engine: Engine<Hollow>,
    key: u32,
    hostile: Vec<Qpn>,
    /// The next sequence number of each hostile queue pair, by index.
    psns: Vec<u32>,
    innocent: Qpn,
    now: Time,
    buf: Box<[u8; MAX_PACKET_LEN]>,
}

impl Victim {
    fn new(response_rate: u32) -> Self {
        Self::with(response_rate, INNOCENT)
    }

    /// Returns a device whose innocent queue pair is connected to a peer at address `innocent`.
    fn with(response_rate: u32, innocent: Gid) -> Self {
        let config = Config {
            max_qp: HOSTILE_QPS as u32 + 8,
            window_bytes: WINDOW as u32,
            response_rate,
            ..Config::default()
        };
        let mut engine = Engine::new(config, Hollow, Rng::new(1));
        let pd = engine.alloc_pd().unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let attr = MemoryAttr { pd, iova: 0, length: 1 << 40, access };
        let key = engine.reg_mr(&attr, ()).unwrap();
        let cap =
            QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 8 };
        let mut connect = |remote: Gid| {
            let init = QpInit { cap, ..QpInit::new(Service::Rc, pd, CqId(0), CqId(0)) };
            let qpn = engine.create_qp(&init).unwrap();
            let change = AttrChange {
                path: Some(Path { local: HERE, remote, ..Path::default() }),
                dest_qpn: Some(0x77),
                path_mtu: Some(4096),
                pkey: Some(0xffff),
                access: Some(access),
                sq_psn: Some(0),
                rq_psn: Some(0),
                max_rd_atomic: Some(16),
                max_dest_rd_atomic: Some(128),
                ..AttrChange::default()
            };
            for state in [State::Init, State::Rtr, State::Rts] {
                let change = AttrChange { state: Some(state), ..change };
                engine.modify_qp(qpn, &change, Time(0), &mut Deaf).unwrap();
            }
            qpn
        };
        let hostile: Vec<Qpn> = (0..HOSTILE_QPS).map(|_| connect(ATTACKER)).collect();
        let innocent = connect(innocent);
        let psns = vec![0; hostile.len()];
        Self { engine, key, hostile, psns, innocent, now: Time(0), buf: Box::new([0; MAX_PACKET_LEN]) }
    }

    /// Delivers the attacker's read requests: one of 2 GiB on each of its queue pairs.
    fn attacked(mut self) -> Self {
        for n in 0..self.hostile.len() {
            self.hostile_read(n);
        }
        self
    }

    fn hostile_read(&mut self, n: usize) {
        let psn = Psn::new(self.psns[n]);
        self.psns[n] = (psn + LARGEST_READ / 4096).value();
        self.arrive(ATTACKER, self.hostile[n], psn, Opcode::RC_RDMA_READ_REQUEST, LARGEST_READ, 0);
    }

    /// Delivers the attacker's atomics: 32 on each of its queue pairs.
    fn attacked_with_atomics(mut self) -> Self {
        for _ in 0..32 {
            for n in 0..self.hostile.len() {
                let psn = Psn::new(self.psns[n]);
                self.psns[n] += 1;
                self.arrive(ATTACKER, self.hostile[n], psn, Opcode::RC_FETCH_ADD, 0, 0);
            }
        }
        self
    }

    /// Delivers a packet on each of the attacker's queue pairs. The packet is rejected because the
    /// previous packet is missing.
    fn attacked_with_refused_requests(mut self) -> Self {
        for n in 0..self.hostile.len() {
            let psn = Psn::new(self.psns[n] + 1);
            self.arrive(ATTACKER, self.hostile[n], psn, Opcode::RC_SEND_ONLY, 0, 8);
        }
        self
    }

    /// Delivers a request from the innocent peer.
    fn innocent_asks(&mut self, psn: u32, opcode: Opcode) {
        let payload = if opcode.has_payload() { 8 } else { 0 };
        self.arrive(INNOCENT, self.innocent, Psn::new(psn), opcode, 8, payload);
    }

    fn arrive(&mut self, from: Gid, to: Qpn, psn: Psn, opcode: Opcode, dmalen: u32, payload: usize) {
        let mut bth = bth::Repr::new(opcode, to.0, psn);
        (bth.ack_req, bth.pkey) = (true, 0xffff);
        let mut headers = Headers::new(bth);
        if opcode.has_reth() {
            headers.reth = Some(reth::Repr { va: 0, rkey: self.key, dmalen });
        }
        if opcode.is_atomic() {
            headers.atomic_eth = Some(atomic_eth::Repr { va: 0, rkey: self.key, swap_add: 1, compare: 0 });
        }
        let mut packet = vec![0; headers.len()];
        headers.emit(&mut packet);
        packet.resize(packet.len() + payload + ICRC_LEN, 0);
        let arrival = Arrival { remote: from, local: HERE, ..Arrival::default() };
        self.engine.handle(self.now, &arrival, &packet, &mut Deaf);
    }

    fn post_send(&mut self) {
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let payload = Payload::Inline(&[1; 8]);
        let op = SendOp::Send { imm: None };
        let wr = SendWr { wr_id: 1, op, flags, payload, remote_srq: 0 };
        self.engine.post_send(self.innocent, &wr, self.now, &mut Deaf).unwrap();
    }

    /// Acknowledges packets on behalf of the innocent peer to free space in the window.
    fn acknowledge(&mut self, psn: u32) {
        let bth = bth::Repr {
            pkey: 0xffff,
            ..bth::Repr::new(Opcode::RC_ACKNOWLEDGE, self.innocent.0, Psn::new(psn))
        };
        let aeth = roce::wire::aeth::Repr { syndrome: roce::wire::Syndrome::ACK, msn: 0 };
        let headers = Headers { aeth: Some(aeth), ..Headers::new(bth) };
        let mut packet = vec![0; headers.len() + ICRC_LEN];
        headers.emit(&mut packet);
        let arrival = Arrival { remote: INNOCENT, local: HERE, ..Arrival::default() };
        self.engine.handle(self.now, &arrival, &packet, &mut Deaf);
    }

    fn post_recv(&mut self) {
        let wr = RecvWr { wr_id: 2, sges: &[Sge { addr: 0, length: 64, lkey: self.key }] };
        self.engine.post_recv(self.innocent, &wr, self.now, &mut Deaf).unwrap();
    }

    /// Writes the next packet. Returns the sending queue pair and the packet's length in bytes.
    fn transmit(&mut self) -> Option<(Qpn, u64)> {
        self.transmit_with(Urgency::Now)
    }

    fn transmit_with(&mut self, urgency: Urgency) -> Option<(Qpn, u64)> {
        let sent = self.engine.poll_transmit(self.now, urgency, &mut self.buf[..], &mut Deaf)?;
        Some((sent.qpn, sent.len as u64))
    }

    /// Sends `count` packets. Advances time whenever no packet may be sent.
    fn run(&mut self, count: u64) {
        for _ in 0..count {
            while self.transmit().is_none() {
                self.now = self.engine.deadline().expect("responses continue").max(self.now);
                self.engine.timeout(self.now, &mut Deaf);
            }
        }
    }

    /// Sends packets until one leaves for the innocent peer. Returns the number of packets sent
    /// before that packet, and their total length in bytes.
    fn before(&mut self) -> Before {
        self.before_with(Urgency::Now)
    }

    fn before_with(&mut self, urgency: Urgency) -> Before {
        let mut before = Before::default();
        loop {
            assert!(before.packets < 1_000_000, "it never leaves");
            match self.transmit_with(urgency) {
                Some((qpn, _)) if qpn == self.innocent => return before,
                Some((_, len)) => {
                    before.packets += 1;
                    before.bytes += len;
                }
                None => {
                    self.now = self.engine.deadline().expect("responses continue").max(self.now);
                    self.engine.timeout(self.now, &mut Deaf);
                }
            }
        }
    }
}

/// The number of moments tested. Together they cover many quanta and every position within a
/// quantum.
const MOMENTS: u64 = 500;

#[test]
fn a_request_leaves_before_every_response() {
    for rate in [0, 8000] {
        let mut victim = Victim::new(rate).attacked();
        for n in 0..MOMENTS {
            victim.run(n % 37);
            victim.post_send();
            assert_eq!(victim.before(), Before::default(), "moment {n}");
            victim.acknowledge(n as u32);
        }
    }
}

#[test]
fn an_acknowledgement_leaves_before_every_response_even_where_it_is_not_urgent() {
    let mut victim = Victim::new(0).attacked();
    for n in 0..MOMENTS {
        victim.run(n % 37);
        victim.post_recv();
        let (innocent, psn) = (victim.innocent, Psn::new(n as u32));
        victim.arrive(INNOCENT, innocent, psn, Opcode::RC_SEND_ONLY, 0, 8);
        assert_eq!(victim.before(), Before::default(), "moment {n}");
    }
}

#[test]
fn a_response_waits_for_one_quantum_of_each_other_peer() {
    for rate in [0, 8000] {
        let mut victim = Victim::new(rate).attacked();
        let mut most = Before::default();
        for n in 0..MOMENTS {
            victim.run(n % 37);
            let (innocent, psn) = (victim.innocent, Psn::new(n as u32));
            victim.arrive(INNOCENT, innocent, psn, Opcode::RC_RDMA_READ_REQUEST, 8, 0);
            most = most.most(victim.before());
        }
        assert!(most.packets > 0, "the attack has no effect");
        most.assert_within(1, 0);
    }
}

#[test]
fn a_response_at_the_attackers_own_address_waits_for_one_quantum_of_each_queue_pair_there() {
    let mut victim = Victim::with(0, ATTACKER).attacked();
    victim.run(5);
    let innocent = victim.innocent;
    victim.arrive(ATTACKER, innocent, Psn::new(0), Opcode::RC_RDMA_READ_REQUEST, 8, 0);
    let before = victim.before();
    before.assert_within(HOSTILE_QPS as u64, 0);
}

#[test]
fn a_request_and_an_acknowledgement_leave_before_every_atomics_result() {
    for rate in [0, 8000] {
        let mut victim = Victim::new(rate).attacked_with_atomics();
        for n in 0..MOMENTS {
            victim.run(n % 37);
            victim.post_send();
            assert_eq!(victim.before(), Before::default(), "request at moment {n}");
            victim.acknowledge(n as u32);
            victim.innocent_asks(n as u32, Opcode::RC_RDMA_WRITE_ONLY);
            assert_eq!(victim.before(), Before::default(), "acknowledgement at moment {n}");
        }
    }
}

#[test]
fn a_response_waits_for_one_quantum_of_atomics_results() {
    for opcode in [Opcode::RC_RDMA_READ_REQUEST, Opcode::RC_FETCH_ADD] {
        let mut victim = Victim::new(8000).attacked_with_atomics();
        let mut most = Before::default();
        for n in 0..MOMENTS {
            victim.run(n % 37);
            victim.innocent_asks(n as u32, opcode);
            most = most.most(victim.before());
        }
        assert!(most.packets > 0, "the attack has no effect");
        most.assert_within(1, 0);
    }
}

#[test]
fn an_atomics_result_waits_for_one_quantum_of_each_other_peer() {
    let mut victim = Victim::new(8000).attacked();
    let mut most = Before::default();
    for n in 0..MOMENTS {
        victim.run(n % 37);
        victim.innocent_asks(n as u32, Opcode::RC_FETCH_ADD);
        most = most.most(victim.before());
    }
    assert!(most.packets > 0, "the attack has no effect");
    most.assert_within(1, 0);
}

#[test]
fn a_request_leaves_before_every_refusal() {
    let mut victim = Victim::new(0).attacked_with_refused_requests();
    for n in 0..50 {
        victim.run(n % 37);
        victim.post_send();
        assert_eq!(victim.before(), Before::default(), "moment {n}");
        victim.acknowledge(n as u32);
    }
    assert!(victim.transmit().is_some(), "the attack ended before the test");
}

#[test]
fn acknowledgements_and_responses_leave_between_naks() {
    for opcode in [Opcode::RC_RDMA_WRITE_ONLY, Opcode::RC_RDMA_READ_REQUEST, Opcode::RC_FETCH_ADD] {
        let mut victim = Victim::new(0).attacked_with_refused_requests();
        victim.innocent_asks(0, opcode);
        let before = victim.before_with(Urgency::All);
        before.assert_within(0, SHARE);
        assert_eq!(before.packets, SHARE, "{opcode:?}: refusals go first");
    }
}

#[test]
fn naks_leave_before_acknowledgements_and_responses_without_being_waited_for() {
    let mut victim = Victim::new(0).attacked();
    victim.run(5);
    let (innocent, psn) = (victim.innocent, Psn::new(1));
    victim.arrive(INNOCENT, innocent, psn, Opcode::RC_SEND_ONLY, 0, 8);
    assert_eq!(victim.before(), Before::default());
}

#[test]
fn acknowledgements_leave_between_requests_and_responses() {
    let mut victim = Victim::new(0).attacked();
    for n in 0..HOSTILE_QPS {
        let (qpn, psn) = (victim.hostile[n], Psn::new(victim.psns[n]));
        // The acknowledgement to the attacker waits for earlier responses. The acknowledgement to
        // the innocent peer does not.
        victim.arrive(ATTACKER, qpn, psn, Opcode::RC_RDMA_WRITE_ONLY, 8, 8);
    }
    let innocent = victim.innocent;
    victim.arrive(INNOCENT, innocent, Psn::new(0), Opcode::RC_RDMA_WRITE_ONLY, 8, 8);
    assert_eq!(victim.before(), Before::default());
}

#[test]
fn one_peer_has_a_window_of_responses_at_a_time_however_many_queue_pairs_it_has() {
    let rate = 8000;
    let mut victim = Victim::new(rate).attacked();
    let drain = |victim: &mut Victim| {
        let (mut packets, mut cost) = (0, 0);
        while let Some((_, len)) = victim.transmit() {
            packets += 1;
            cost += len + PACKET_COST;
        }
        (packets, cost)
    };
    let (packets, cost) = drain(&mut victim);
    assert!(cost <= WINDOW && cost + 4096 + 64 + PACKET_COST > WINDOW, "{cost} in {packets} packets");
    let mut sent = cost;
    for _ in 0..100 {
        let at = victim.engine.deadline().expect("responses continue");
        assert!(at > victim.now);
        victim.now = Time(at.0 - 1);
        victim.engine.timeout(victim.now, &mut Deaf);
        assert_eq!(victim.transmit(), None, "not before");
        victim.now = at;
        let (packets, cost) = drain(&mut victim);
        assert!(packets >= 15, "a datagram of packets at least: {packets}");
        sent += cost;
        assert!(sent <= WINDOW + at.0 * u64::from(rate) / 1000, "{sent} at {at:?}");
    }
}

#[test]
fn without_a_rate_responses_leave_as_fast_as_they_are_taken() {
    let mut victim = Victim::new(0).attacked();
    let mut sent = 0;
    while sent < 16 * WINDOW {
        sent += victim.transmit().expect("a response").1;
    }
    assert_eq!(victim.engine.deadline(), None);
}

#[test]
fn a_peers_credit_outlives_its_queue_pairs_but_the_last() {
    let mut victim = Victim::new(8000).attacked();
    while victim.transmit().is_some() {}
    // Destroying queue pairs with responses to send does not change the positions of the other
    // queue pairs.
    let gone: Vec<Qpn> = victim.hostile.drain(..HOSTILE_QPS / 2).collect();
    for qpn in gone {
        victim.engine.destroy_qp(qpn).unwrap();
    }
    assert_eq!(victim.transmit(), None);
    victim.run(100);
    // Once all queue pairs are destroyed, no response waits.
    for qpn in victim.hostile.drain(..) {
        victim.engine.destroy_qp(qpn).unwrap();
    }
    assert_eq!(victim.transmit(), None);
    assert_eq!(victim.engine.deadline(), None);
    let innocent = victim.innocent;
    victim.arrive(INNOCENT, innocent, Psn::new(0), Opcode::RC_RDMA_READ_REQUEST, 8, 0);
    assert_eq!(victim.before(), Before::default());
}

#[test]
fn a_queue_pair_that_is_reset_leaves_its_responses_behind() {
    let mut victim = Victim::new(8000).attacked();
    victim.run(20);
    for n in 0..HOSTILE_QPS {
        let change = AttrChange { state: Some(State::Reset), ..AttrChange::default() };
        victim.engine.modify_qp(victim.hostile[n], &change, victim.now, &mut Deaf).unwrap();
    }
    assert_eq!((victim.transmit(), victim.engine.deadline()), (None, None));
}
