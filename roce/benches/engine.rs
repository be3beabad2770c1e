//! The cost of the engine alone: two engines exchange packets in memory, without sockets or ICRC.
//!
//! ```text
//!   cargo bench -p roce --bench engine               a table: nanoseconds and instructions
//!   cargo bench -p roce --bench engine -- --check    no timing; fails above a limit
//! ```
//!
//! The cost of a message covers both sides: posting, sending, receiving, acknowledging, completing.
//! Callgrind counts the instructions. The benchmark runs itself twice under `valgrind`, the second
//! time with twice as many messages. The difference between the counts is the cost of the messages.
//! The counts do not depend on the machine's speed or load. Without valgrind, the table says so and
//! `--check` fails.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use callgrind::count_run;
use roce::engine::{
    Access, Arrival, Attr, AttrChange, Completion, Config, CqFull, CqId, Engine, Event, Gid, MemoryAttr,
    Path, Payload, QpCap, QpInit, Qpn, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, Sink, SrqId, State,
    Status, Time, Urgency,
};
use roce::sim::{Rng, VecMemory, VecRegion, connected_attr};
use roce::wire::ICRC_LEN;
use roce::wire::packet::MAX_PACKET_LEN;

/// The duration of a round. The fastest of a case's rounds counts.
const TIMED: Duration = Duration::from_millis(100);
const TIMES: u32 = 5;
/// The number of additional messages in the second run under valgrind.
const COUNTED: u32 = 512;
/// The size of each side's memory, in bytes.
const MEMORY: usize = 1 << 20;

/// A sink that only counts completions.
#[derive(Default)]
struct Ended {
    completions: u32,
    failures: u32,
}

impl Sink for Ended {
    fn complete(&mut self, _cq: CqId, completion: &Completion) -> Result<(), CqFull> {
        self.completions += 1;
        self.failures += u32::from(completion.status != Status::Success);
        Ok(())
    }
    fn retire_send(&mut self, _qpn: Qpn, _count: u32) {}
    fn retire_recv(&mut self, _qpn: Qpn, _count: u32) {}
    fn retire_srq(&mut self, _srq: SrqId, _count: u32) {}
    fn event(&mut self, _event: Event) {}
}

struct Side {
    engine: Engine<VecMemory>,
    ended: Ended,
    qpn: Qpn,
    sge: Sge,
    gid: Gid,
}

impl Side {
    fn new(last: u8) -> Self {
        let mut engine = Engine::new(Config::default(), VecMemory::default(), Rng::new(last.into()));
        let pd = engine.alloc_pd().expect("the engine has room for a protection domain");
        let buffer = engine.memory().add(vec![7; MEMORY]);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let attr = MemoryAttr { pd, iova: 0x10_0000, length: MEMORY as u64, access };
        let lkey = engine
            .reg_mr(&attr, VecRegion { buffer, start: 0, length: MEMORY as u64 })
            .expect("the engine has room for a registration");
        let cap =
            QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 };
        let init = QpInit { cap, sq_sig_all: true, ..QpInit::new(Service::Rc, pd, CqId(0), CqId(1)) };
        let qpn = engine.create_qp(&init).expect("the engine has room for a queue pair");
        let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last];
        let sge = Sge { addr: attr.iova, length: 0, lkey };
        Self { engine, ended: Ended::default(), qpn, sge, gid }
    }

    fn connect(&mut self, qpn: Qpn, gid: Gid) {
        let Attr { pkey, access, timeout, retry_cnt, rnr_retry, max_rd_atomic, max_dest_rd_atomic, .. } =
            connected_attr();
        let path = Path { local: self.gid, remote: gid, ..Path::default() };
        let change = AttrChange {
            path: Some(path),
            dest_qpn: Some(qpn.0),
            path_mtu: Some(4096),
            pkey: Some(pkey),
            access: Some(access),
            sq_psn: Some(0),
            rq_psn: Some(0),
            timeout: Some(timeout),
            retry_cnt: Some(retry_cnt),
            rnr_retry: Some(rnr_retry),
            max_rd_atomic: Some(max_rd_atomic),
            max_dest_rd_atomic: Some(max_dest_rd_atomic),
            ..AttrChange::default()
        };
        for state in [State::Init, State::Rtr, State::Rts] {
            let change = AttrChange { state: Some(state), ..change };
            self.engine
                .modify_qp(self.qpn, &change, Time(0), &mut self.ended)
                .expect("the transition exists");
        }
    }
}

/// Two connected engines, their common clock and a packet buffer.
struct World {
    sides: [Side; 2],
    now: u64,
    buf: Box<[u8; MAX_PACKET_LEN]>,
}

impl World {
    fn new() -> Self {
        let mut sides = [Side::new(1), Side::new(2)];
        let [a, b] = &mut sides;
        a.connect(b.qpn, b.gid);
        b.connect(a.qpn, a.gid);
        Self { sides, now: 0, buf: Box::new([0; MAX_PACKET_LEN]) }
    }

    /// Sends one message and waits until it has completed.
    fn message(&mut self, case: &Case) {
        self.now += 1000;
        let now = Time(self.now);
        let [a, b] = &mut self.sides;
        let sges = [Sge { length: case.length, ..a.sge }];
        let (addr, rkey) = (b.sge.addr, b.sge.lkey);
        let op = match case.kind {
            Kind::Write | Kind::Inline => SendOp::Write { addr, rkey, imm: None },
            Kind::Send => SendOp::Send { imm: None },
            Kind::Read => SendOp::Read { addr, rkey },
            Kind::Add => SendOp::FetchAdd { addr, rkey, add: 1 },
        };
        let payload = if case.kind == Kind::Inline {
            Payload::Inline(&[1; 64][..case.length as usize])
        } else {
            Payload::Sges(&sges)
        };
        if case.kind == Kind::Send {
            let sges = [Sge { length: case.length, ..b.sge }];
            b.engine
                .post_recv(b.qpn, &RecvWr { wr_id: 2, sges: &sges }, now, &mut b.ended)
                .expect("the queue has room for a receive");
        }
        let before = a.ended.completions;
        let wr = SendWr { wr_id: 1, op, flags: SendFlags::default(), payload, remote_srq: 0 };
        a.engine.post_send(a.qpn, &wr, now, &mut a.ended).expect("the queue has room for a send");
        while a.ended.completions == before {
            carry(now, a, b, self.buf.as_mut_slice());
            carry(now, b, a, self.buf.as_mut_slice());
        }
        assert_eq!(a.ended.failures + b.ended.failures, 0);
    }

    fn messages(&mut self, case: &Case, count: u32) {
        for _ in 0..count {
            self.message(case);
        }
    }
}

/// Delivers all pending packets from one side to the other.
fn carry(now: Time, from: &mut Side, to: &mut Side, buf: &mut [u8]) {
    let arrival = Arrival { remote: from.gid, local: to.gid, ..Arrival::default() };
    while let Some(transmit) = from.engine.poll_transmit(now, Urgency::All, buf, &mut from.ended) {
        to.engine.handle(now, &arrival, &buf[..transmit.len + ICRC_LEN], &mut to.ended);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Inline,
    Send,
    Read,
    Add,
}

struct Case {
    name: &'static str,
    kind: Kind,
    length: u32,
    /// The divisor applied to the cost of a message: 1, or its number of packets.
    per: u32,
    /// The maximum number of instructions with `--check`, after the division by `per`.
    limit: f64,
}

const CASES: &[Case] = &[
    Case { name: "write 8 B, message", kind: Kind::Write, length: 8, per: 1, limit: 3400.0 },
    Case { name: "write 8 B inline, message", kind: Kind::Inline, length: 8, per: 1, limit: 3300.0 },
    Case { name: "send 8 B, message", kind: Kind::Send, length: 8, per: 1, limit: 3600.0 },
    Case { name: "fetch and add, message", kind: Kind::Add, length: 8, per: 1, limit: 3900.0 },
    Case { name: "write 64 KiB, 4 KiB packet", kind: Kind::Write, length: 64 << 10, per: 16, limit: 2700.0 },
    Case { name: "send 64 KiB, 4 KiB packet", kind: Kind::Send, length: 64 << 10, per: 16, limit: 2750.0 },
    Case { name: "read 64 KiB, 4 KiB packet", kind: Kind::Read, length: 64 << 10, per: 16, limit: 2850.0 },
];

fn nanoseconds(case: &Case) -> f64 {
    let mut world = World::new();
    world.messages(case, 1000);
    let mut least = f64::MAX;
    for _ in 0..TIMES {
        let (start, mut count) = (Instant::now(), 0u32);
        while start.elapsed() < TIMED {
            world.messages(case, 64);
            count += 64;
        }
        least = least.min(start.elapsed().as_nanos() as f64 / f64::from(count * case.per));
    }
    least
}

/// Returns the number of instructions per message or packet, as counted by callgrind, or the reason
/// why there is no count.
fn instructions(index: usize) -> Result<f64, String> {
    let run = |count: u32| count_run(&["--run", &index.to_string(), &count.to_string()]);
    let (once, twice) = (run(COUNTED)?, run(2 * COUNTED)?);
    Ok((twice - once) / f64::from(COUNTED * CASES[index].per))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, index, count] = args.as_slice()
        && mode == "--run"
        && let (Ok(index), Ok(count)) = (index.parse::<usize>(), count.parse())
        && let Some(case) = CASES.get(index)
    {
        World::new().messages(case, count);
        return ExitCode::SUCCESS;
    }
    let check = args.iter().any(|arg| arg == "--check");
    let mut failed = false;
    println!("{:<28} {:>8} {:>14}", "", "ns", "instructions");
    for (index, case) in CASES.iter().enumerate() {
        let time = if check { "-".to_owned() } else { format!("{:.0}", nanoseconds(case)) };
        let (count, over) = match instructions(index) {
            Ok(count) => (format!("{count:.0}"), count > case.limit),
            Err(why) => (why, true),
        };
        failed |= over;
        let remark = if check && over { format!("  more than {:.0}", case.limit) } else { String::new() };
        println!("{:<28} {time:>8} {count:>14}{remark}", case.name);
    }
    if check && failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
