//! Strangers: the effects of a sender that knows no queue pair number, sequence number or key, and
//! how often they occur.
//!
//! docs/security.md states these rates. Each field is tested alone, because the probability of
//! guessing two fields is the product of the two probabilities. Queue pair numbers and keys are
//! guessed at random with a fixed seed. The 2²⁴ sequence numbers are tried one by one.

use std::collections::HashSet;

use roce::engine::{
    Access, Arrival, AttrChange, Completion, Config, CqFull, CqId, Engine, Event, Gid, MemoryAttr, Path,
    Payload, QpCap, QpInit, Qpn, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, Sink, SrqId, State, Time,
    Urgency,
};
use roce::sim::{Buffer, Rng, VecMemory, VecRegion};
use roce::wire::packet::MAX_PACKET_LEN;
use roce::wire::{Headers, ICRC_LEN, Opcode, Psn, Syndrome, aeth, bth, reth};

const HERE: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1];
const PEER: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 2];
const BITS_24: u32 = 0xff_ffff;
const IOVA: u64 = 0x1_0000;
const NOW: Time = Time(0);

/// The reports from an engine: the numbers of completed receives and sends.
#[derive(Debug, Default)]
struct Log {
    received: u64,
    sent: u64,
}

impl Sink for Log {
    fn complete(&mut self, cq: CqId, _completion: &Completion) -> Result<(), CqFull> {
        *if cq == RECV_CQ { &mut self.received } else { &mut self.sent } += 1;
        Ok(())
    }
    fn retire_send(&mut self, _qpn: Qpn, _count: u32) {}
    fn retire_recv(&mut self, _qpn: Qpn, _count: u32) {}
    fn retire_srq(&mut self, _srq: SrqId, _count: u32) {}
    fn event(&mut self, _event: Event) {}
}

const SEND_CQ: CqId = CqId(1);
const RECV_CQ: CqId = CqId(2);

/// The engine under attack. The attacker knows its address and the peer's address and can forge
/// both.
struct Victim {
    engine: Engine<VecMemory>,
    log: Log,
    memory: Buffer,
    attr: MemoryAttr,
    sge: Sge,
}

impl Victim {
    fn new(seed: u64) -> Self {
        let config = Config { max_qp: 1 << 14, max_keys: 1 << 16, ..Config::default() };
        let mut engine = Engine::new(config, VecMemory::default(), Rng::new(seed));
        let pd = engine.alloc_pd().unwrap();
        let memory = engine.memory().add(vec![0; 4096]);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let attr = MemoryAttr { pd, iova: IOVA, length: 4096, access };
        let mut victim = Self { engine, log: Log::default(), memory, attr, sge: Sge::default() };
        victim.sge = Sge { addr: IOVA, length: 64, lkey: victim.register() };
        victim
    }

    /// Registers the same memory again under another key.
    fn register(&mut self) -> u32 {
        let region = VecRegion { buffer: self.memory, start: 0, length: 4096 };
        self.engine.reg_mr(&self.attr, region).unwrap()
    }

    /// Creates a queue pair connected to the peer and posts `receives` receives.
    fn connected(&mut self, service: Service, psn: u32, receives: u32) -> Qpn {
        let cap = QpCap {
            max_send_wr: 32,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let init = QpInit { cap, ..QpInit::new(service, self.attr.pd, SEND_CQ, RECV_CQ) };
        let qpn = self.engine.create_qp(&init).unwrap();
        for state in [State::Init, State::Rtr, State::Rts] {
            let change = AttrChange {
                state: Some(state),
                path: Some(Path { local: HERE, remote: PEER, ..Path::default() }),
                dest_qpn: Some(0x777),
                path_mtu: Some(1024),
                pkey: Some(0xffff),
                access: Some(self.attr.access),
                sq_psn: Some(psn),
                rq_psn: Some(psn),
                max_dest_rd_atomic: Some(1),
                ..AttrChange::default()
            };
            self.engine.modify_qp(qpn, &change, NOW, &mut self.log).unwrap();
        }
        for wr_id in 0..u64::from(receives) {
            self.engine.post_recv(qpn, &RecvWr { wr_id, sges: &[self.sge] }, NOW, &mut self.log).unwrap();
        }
        qpn
    }

    /// Delivers a forged packet.
    fn hear(&mut self, headers: &Headers, payload: &[u8]) {
        let mut packet = [0; 128];
        let len = headers.emit(&mut packet);
        packet[len..len + payload.len()].copy_from_slice(payload);
        let arrival = Arrival { remote: PEER, local: HERE, ..Arrival::default() };
        let whole = &packet[..len + payload.len() + ICRC_LEN];
        self.engine.handle(NOW, &arrival, whole, &mut self.log);
    }
}

fn headers(opcode: Opcode, dest_qp: u32, psn: u32) -> Headers {
    Headers::new(bth::Repr::new(opcode, dest_qp, Psn::new(psn)))
}

/// Asserts that a count of rare events is within five standard deviations of the expected value.
fn assert_near(count: u64, expected: f64) {
    let off = (count as f64 - expected).abs();
    assert!(off < 5.0 * expected.sqrt(), "{count} where {expected:.1} are expected");
}

#[test]
fn a_blind_datagram_meets_one_of_n_queue_pairs_n_times_in_2_to_the_24() {
    let mut victim = Victim::new(1);
    const QPS: u32 = 2000;
    const TRIES: u32 = 1 << 22;
    for _ in 0..QPS {
        victim.connected(Service::Uc, 0, 16);
    }
    let mut attacker = Rng::new(2);
    for _ in 0..TRIES {
        let guess = attacker.next_u64() as u32 & BITS_24;
        victim.hear(&headers(Opcode::UC_SEND_ONLY, guess, 0), &[1; 8]);
    }
    assert_near(victim.log.received, f64::from(QPS) * f64::from(TRIES) / 16_777_216.0);
}

#[test]
fn one_of_2_to_the_24_sequence_numbers_delivers_a_message_to_a_known_reliable_queue_pair() {
    let mut victim = Victim::new(3);
    let psn = Rng::new(4).next_u64() as u32 & BITS_24;
    let qpn = victim.connected(Service::Rc, psn, 16);
    // The loop runs backwards, so that the sequence number after the correct one is tried first.
    for back in 0..=BITS_24 {
        let guess = psn.wrapping_add(1000).wrapping_sub(back) & BITS_24;
        victim.hear(&headers(Opcode::RC_SEND_ONLY, qpn.0, guess), &[1; 8]);
    }
    assert_eq!(victim.log.received, 1);
    assert_eq!(victim.engine.query_qp(qpn).unwrap().0, State::Rts, "the other numbers have no effect");
}

#[test]
fn only_acknowledgements_of_what_is_outstanding_end_sends() {
    let mut victim = Victim::new(5);
    const OUTSTANDING: u32 = 16;
    let psn = Rng::new(6).next_u64() as u32 & BITS_24;
    let qpn = victim.connected(Service::Rc, psn, 1);
    for wr_id in 0..u64::from(OUTSTANDING) {
        let payload = Payload::Sges(&[victim.sge]);
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let wr = SendWr { wr_id, op: SendOp::Send { imm: None }, flags, payload, remote_srq: 0 };
        victim.engine.post_send(qpn, &wr, NOW, &mut victim.log).unwrap();
    }
    let mut buf = [0; MAX_PACKET_LEN];
    while victim.engine.poll_transmit(NOW, Urgency::All, &mut buf, &mut victim.log).is_some() {}
    let ack = |psn: u32| {
        let aeth = Some(aeth::Repr { syndrome: Syndrome::ACK, msn: 0 });
        Headers { aeth, ..headers(Opcode::RC_ACKNOWLEDGE, qpn.0, psn & BITS_24) }
    };
    for ahead in OUTSTANDING..=BITS_24 {
        victim.hear(&ack(psn.wrapping_add(ahead)), &[]);
    }
    assert_eq!(victim.log.sent, 0, "none of 2^24 - 16 ends a send");
    victim.hear(&ack(psn), &[]);
    assert_eq!(victim.log.sent, 1);
}

#[test]
fn a_blind_write_opens_one_of_n_keys_n_times_in_2_to_the_32() {
    let mut victim = Victim::new(7);
    const KEYS: u32 = 60_000;
    const TRIES: u64 = 1 << 22;
    for _ in 1..KEYS {
        victim.register();
    }
    let qpn = victim.connected(Service::Uc, 0, 1);
    let (mut attacker, mut written) = (Rng::new(8), 0);
    for attempt in 1..=TRIES {
        let reth = reth::Repr { va: IOVA, rkey: attacker.next_u64() as u32, dmalen: 8 };
        let write = Headers { reth: Some(reth), ..headers(Opcode::UC_RDMA_WRITE_ONLY, qpn.0, 0) };
        victim.hear(&write, &attempt.to_le_bytes());
        let memory = victim.memory;
        written += u64::from(victim.engine.memory().bytes(memory)[..8] == attempt.to_le_bytes());
    }
    assert_near(written, f64::from(KEYS) * TRIES as f64 / 4_294_967_296.0);
}

#[test]
fn one_public_queue_pair_number_gives_no_key() {
    // The attacker runs the same program and can observe how its numbers and keys are related.
    let own = numbers(0);
    let mut rules: Vec<Box<dyn Fn(u32) -> u32>> = vec![
        Box::new(move |qpn| own.1.wrapping_add((qpn.wrapping_sub(own.0)) << 8)),
        Box::new(move |qpn| own.1 ^ (qpn ^ own.0) << 8),
        Box::new(move |qpn| own.1.wrapping_add(qpn).wrapping_sub(own.0)),
    ];
    // The slot and generation, if these followed from a seed that the queue pair number reveals.
    for qp_bits in 10..18 {
        for key_bits in 10..20 {
            rules.push(Box::new(move |qpn| {
                let seed = qpn >> qp_bits;
                (1 | seed << key_bits) << 8 | seed & 0xff
            }));
        }
    }
    const LIVES: u64 = 2000;
    let mut found = 0;
    for life in 1..=LIVES {
        let (qpn, key) = numbers(life);
        found += rules.iter().filter(|rule| rule(qpn) == key).count();
    }
    // There are 83 guesses for each of 2,000 keys. The probability of a hit is 1 in 26,000.
    assert_eq!(found, 0);
}

/// Returns the first queue pair number and the first key of an engine.
fn numbers(seed: u64) -> (u32, u32) {
    let mut engine = Engine::new(Config::default(), VecMemory::default(), Rng::split(9, seed));
    let pd = engine.alloc_pd().unwrap();
    let qpn = engine.create_qp(&QpInit::new(Service::Rc, pd, SEND_CQ, RECV_CQ)).unwrap();
    let buffer = engine.memory().add(vec![0; 8]);
    let attr = MemoryAttr { pd, iova: 0, length: 8, access: Access::REMOTE_READ };
    (qpn.0, engine.reg_mr(&attr, VecRegion { buffer, start: 0, length: 8 }).unwrap())
}

#[test]
fn a_stale_key_names_something_again_as_rarely_as_a_random_one() {
    let mut victim = Victim::new(10);
    const LIVE: usize = 1000;
    const STALE: usize = 300_000;
    let mut keys: Vec<u32> = (0..LIVE).map(|_| victim.register()).collect();
    for n in 0..STALE {
        let key = keys[n];
        victim.engine.dereg_mr(key).unwrap();
        keys.push(victim.register());
    }
    let (stale, live) = keys.split_at(STALE);
    let live: HashSet<u32> = live.iter().copied().collect();
    // With 1,000 live keys, 1 in 16,777 indices and 1 in 4,294,967 keys is in use.
    let indices = stale.iter().filter(|key| victim.engine.mr_by_index(*key >> 8).is_some()).count();
    assert_near(indices as u64, (STALE * LIVE) as f64 / 16_777_216.0);
    let opened = stale.iter().filter(|key| live.contains(key)).count();
    assert!(opened <= 2, "{opened} stale keys allow access, where 0.07 are expected");
    // On average, 301,000 random 32-bit keys contain 10.5 equal pairs.
    let distinct: HashSet<&u32> = keys.iter().collect();
    let repeated = keys.len() - distinct.len();
    assert!(repeated < 30, "{repeated} keys were drawn again");
}
