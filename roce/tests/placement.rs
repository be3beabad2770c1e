//! Flushes and atomic writes between two engines over links that lose, duplicate and reorder
//! packets.

use roce::engine::{
    Access, Attr, AttrChange, CqId, Payload, Qpn, SendFlags, SendOp, SendWr, Service, Status, Time,
};
use roce::sim::{Chance, EndpointId, Fabric, Link, Region, connected_attr};
use roce::wire::feth;

const ROUNDS: u64 = 40;
const SECOND: u64 = 1_000_000_000;
const ALL: Access = Access(0x1f | Access::FLUSH_GLOBAL.0 | Access::FLUSH_PERSISTENT.0);
/// The length of a record in bytes. A record takes more than one packet.
const RECORD: u32 = 2500;

struct Pair {
    fabric: Fabric,
    a: EndpointId,
    b: EndpointId,
    qp: Qpn,
    posted: u64,
    /// The number of published records that [`watch`] has seen.
    seen: u64,
}

impl Pair {
    fn new(seed: u64, link: Link, max_rd_atomic: u8) -> Self {
        let mut fabric = Fabric::new(seed);
        fabric.set_default_link(link);
        let (a, b) = (fabric.add_endpoint(), fabric.add_endpoint());
        let [qp, qp_b] = [a, b].map(|at| fabric.create_qp(at, &fabric.qp_init(at, Service::Rc)).unwrap());
        let attr = Attr { access: ALL, max_rd_atomic, max_dest_rd_atomic: 16, ..connected_attr() };
        fabric.connect((a, qp), (b, qp_b), &attr).unwrap();
        Self { fabric, a, b, qp, posted: 0, seen: 0 }
    }

    fn post(&mut self, op: SendOp, sges: &[roce::engine::Sge]) {
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let wr = SendWr { wr_id: self.posted, op, flags, payload: Payload::Sges(sges), remote_srq: 0 };
        self.fabric.post_send(self.a, self.qp, &wr).unwrap();
        self.posted += 1;
    }

    fn ended(&mut self) -> Vec<(u64, Status)> {
        let (fabric, a) = (&mut self.fabric, self.a);
        std::iter::from_fn(|| fabric.poll(a, CqId(0))).map(|wc| (wc.wr_id, wc.status)).collect()
    }
}

fn links() -> [(&'static str, Link); 3] {
    let loss = Chance::percent(15);
    [
        ("good", Link::default()),
        ("lossy", Link { loss, ..Link::default() }),
        ("strange", Link { loss, duplicate: loss, reorder: loss, ..Link::default() }),
    ]
}

/// A program keeps a journal: it writes a record, flushes it and then publishes the number of
/// records with an atomic write.
#[test]
fn a_published_record_was_written_and_flushed_before_whatever_the_network_does() {
    for (name, link) in links() {
        for (seed, depth) in [(1, 16), (2, 16), (3, 1), (4, 2)] {
            let mut p = Pair::new(seed, link.clone(), depth);
            let size = (ROUNDS as u32 * RECORD) as usize;
            let source = p.fabric.register(p.a, (0..size).map(|n| (n % 251) as u8).collect(), ALL).unwrap();
            let journal = p.fabric.register(p.b, vec![0; size], ALL).unwrap();
            let tail = p.fabric.register(p.b, vec![0; 8], ALL).unwrap();
            for round in 0..ROUNDS {
                let offset = round * u64::from(RECORD);
                let (addr, rkey) = (journal.addr + offset, journal.key);
                let write = SendOp::Write { addr, rkey, imm: None };
                p.post(write, &[source.sge(offset, RECORD)]);
                let feth = feth::Repr { plt: feth::PLT_PERSISTENCE, sel: feth::SEL_RANGE };
                p.post(SendOp::Flush { addr, rkey, length: RECORD, feth }, &[]);
                let data = (round + 1).to_ne_bytes();
                p.post(SendOp::AtomicWrite { addr: tail.addr, rkey: tail.key, data }, &[]);
                watch(&mut p, &journal, &tail);
            }
            let mut ended = Vec::new();
            while (ended.len() as u64) < p.posted && p.fabric.now() < Time(100 * SECOND) {
                p.fabric.step();
                watch(&mut p, &journal, &tail);
                ended.append(&mut p.ended());
            }
            let expected: Vec<_> = (0..p.posted).map(|wr_id| (wr_id, Status::Success)).collect();
            assert_eq!(ended, expected, "{name} {seed}");
            let flushed = p.fabric.with(p.b, |engine, _, _| engine.memory().flushed().to_vec());
            assert_eq!(flushed.len() as u64, ROUNDS, "{name} {seed}: each once");
            let whole = p.fabric.bytes(p.a, &source).to_vec();
            for (round, flush) in flushed.iter().enumerate() {
                let start = round * RECORD as usize;
                assert_eq!((flush.start, flush.persistent), (start as u64, true), "{name} {seed}");
                assert_eq!(flush.bytes, whole[start..start + RECORD as usize], "{name} {seed}");
            }
        }
    }
}

/// Checks that every published record is durable.
fn watch(p: &mut Pair, journal: &Region, tail: &Region) {
    let word: [u8; 8] = p.fabric.bytes(p.b, tail).try_into().unwrap();
    let published = u64::from_ne_bytes(word);
    assert!(published >= p.seen, "an atomic write was repeated");
    // The check below calls an engine, which makes the engine send packets. It must therefore not
    // run after every step.
    if published == p.seen {
        return;
    }
    p.seen = published;
    let flushed = p.fabric.with(p.b, |engine, _, _| engine.memory().flushed().len()) as u64;
    assert!(published <= flushed, "{published} records are published, {flushed} are durable");
    let written = p.fabric.bytes(p.b, journal);
    for record in written.chunks(RECORD as usize).take(published as usize) {
        assert!(record[1] != 0 || record[2] != 0, "a published record is missing");
    }
}

#[test]
fn an_atomic_write_between_atomics_happens_once_and_in_its_place() {
    for (name, link) in links() {
        let mut p = Pair::new(7, link, 16);
        let word = p.fabric.register(p.b, vec![0; 8], ALL).unwrap();
        let found = p.fabric.register(p.a, vec![0; 8 * ROUNDS as usize], ALL).unwrap();
        let (addr, rkey) = (word.addr, word.key);
        for round in 0..ROUNDS {
            p.post(SendOp::AtomicWrite { addr, rkey, data: (round * 1000).to_ne_bytes() }, &[]);
            p.post(SendOp::FetchAdd { addr, rkey, add: 1 }, &[found.sge(round * 8, 8)]);
        }
        p.fabric.run_until_idle(100 * SECOND).unwrap();
        assert_eq!(p.ended().len() as u64, 2 * ROUNDS, "{name}");
        let found = p.fabric.bytes(p.a, &found);
        for (round, bytes) in found.chunks(8).enumerate() {
            assert_eq!(bytes, (round as u64 * 1000).to_ne_bytes(), "{name}, round {round}");
        }
        let last = (ROUNDS - 1) * 1000 + 1;
        assert_eq!(p.fabric.bytes(p.b, &word), last.to_ne_bytes(), "{name}");
    }
}

#[test]
fn a_flush_without_the_right_fails_both_sides() {
    let mut p = Pair::new(1, Link::default(), 16);
    let area = p.fabric.register(p.b, vec![0; 64], Access(0x1f)).unwrap();
    let feth = feth::Repr { plt: feth::PLT_GLOBAL_VISIBILITY, sel: feth::SEL_MEMORY_REGION };
    p.post(SendOp::Flush { addr: 0, rkey: area.key, length: 0, feth }, &[]);
    p.post(SendOp::AtomicWrite { addr: area.addr, rkey: area.key, data: [1; 8] }, &[]);
    p.fabric.run_until_idle(SECOND).unwrap();
    assert_eq!(p.ended(), [(0, Status::RemoteAccess), (1, Status::Flushed)]);
    assert_eq!(p.fabric.bytes(p.b, &area)[..8], [0; 8]);
    let change = AttrChange { state: Some(roce::engine::State::Reset), ..AttrChange::default() };
    p.fabric.modify_qp(p.a, p.qp, &change).unwrap();
}
