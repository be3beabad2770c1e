//! Turns bytes into the actions of a program and a hostile peer: calls and packets for one engine
//! with queue pairs of every service.
//!
//! The peer knows all keys, addresses and sequence numbers and uses correct ones most of the time.
//! In every case, the engine must meet these conditions:
//! - it neither panics nor loops;
//! - it stays inside registered memory ([`VecMemory`] checks this) and respects access rights;
//! - it writes packets that can be parsed;
//! - it ends each receive exactly once and in order;
//! - it delivers management datagrams whole, and only as many as the program accepts.
//!
//! A [`Step`] of 16 bytes describes a call by the program and the packet that follows it.

use std::collections::VecDeque;

use roce::engine::{
    Access, Arrival, AttrChange, Completion, Config, CqFull, CqId, Engine, Event, GSI_QKEY, GSI_QPN, Gid,
    MAD_LEN, MadDestination, MadsFull, MemoryAttr, MwType, Path, Payload, Pd, QpCap, QpInit, Qpn,
    ReceivedMad, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, Sink, SrqId, State, Time, UdDestination,
    Urgency, XrcDomain,
};
use roce::sim::{Buffer, Rng, VecMemory, VecRegion};
use roce::wire::packet::{MAX_PACKET_LEN, pad_for};
use roce::wire::{
    Headers, ICRC_LEN, Opcode, Psn, Syndrome, aeth, atomic_ack_eth, atomic_eth, bth, deth, ieth, imm, reth,
    xrceth,
};

const HERE: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1];
const THERE: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 2];
const GROUP: Gid = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const SERVICES: [Service; 6] =
    [Service::Rc, Service::Rc, Service::Uc, Service::Ud, Service::XrcTarget, Service::XrcInitiator];
const IOVA: u64 = 0x1_0000;
const SIZE: usize = 4096;
const QKEY: u32 = 0x1111;

/// One step: a call by the program, then a packet. Out-of-range values wrap around.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Step {
    /// The destination: the index of a queue pair in [`SERVICES`], 6 for the multicast group, or 7
    /// for an unknown queue pair number. With an odd `key`, 7 is the general services interface.
    pub(crate) qp: u8,
    /// The operation. With the top bit set, the whole opcode, service included.
    pub(crate) opcode: u8,
    /// The distance between the packet's sequence number and the expected sequence number.
    pub(crate) psn: i8,
    /// Bits: 0 ack_req, 1 se, 2 explicit pad, 3 and 4 the pad, 5 wrong P_Key, 6 wrong sender, 7 no
    /// packet.
    pub(crate) flags: u8,
    /// The length of the payload in bytes.
    pub(crate) len: u16,
    /// The address, as an offset in bytes from 16 bytes before the region.
    pub(crate) va: u16,
    pub(crate) dmalen: u32,
    /// The index of the memory key; values from 128 select a nonexistent key.
    pub(crate) key: u8,
    /// The program's call before the packet arrives: a constant in [`call`].
    pub(crate) call: u8,
    /// The number of times that the program makes the call.
    pub(crate) count: u8,
    pub(crate) rest: u8,
}

impl Step {
    pub(crate) const LEN: usize = 16;

    fn parse(b: [u8; Self::LEN]) -> Self {
        Self {
            qp: b[0],
            opcode: b[1],
            psn: b[2] as i8,
            flags: b[3],
            len: u16::from_le_bytes([b[4], b[5]]),
            va: u16::from_le_bytes([b[6], b[7]]),
            dmalen: u32::from_le_bytes([b[8], b[9], b[10], b[11]]),
            key: b[12],
            call: b[13],
            count: b[14],
            rest: b[15],
        }
    }

    /// Returns the 16 bytes that [`run`] parses as this step.
    #[allow(dead_code)]
    pub(crate) fn bytes(&self) -> [u8; Self::LEN] {
        let ([l0, l1], [v0, v1]) = (self.len.to_le_bytes(), self.va.to_le_bytes());
        let [d0, d1, d2, d3] = self.dmalen.to_le_bytes();
        let psn = self.psn as u8;
        [
            self.qp,
            self.opcode,
            psn,
            self.flags,
            l0,
            l1,
            v0,
            v1,
            d0,
            d1,
            d2,
            d3,
            self.key,
            self.call,
            self.count,
            self.rest,
        ]
    }
}

/// The calls that a program can make before the packet arrives.
#[allow(dead_code)]
pub(crate) mod call {
    pub(crate) const POST_RECV: u8 = 1;
    pub(crate) const POST_SRQ: u8 = 2;
    pub(crate) const TRANSMIT: u8 = 3;
    pub(crate) const DRAIN: u8 = 4;
    pub(crate) const ARM_SRQ: u8 = 5;
    pub(crate) const RECONNECT: u8 = 6;
    pub(crate) const REREGISTER: u8 = 7;
    pub(crate) const BIND: u8 = 8;
    pub(crate) const SEND: u8 = 9;
    pub(crate) const READ: u8 = 10;
    pub(crate) const TIMEOUT: u8 = 11;
    pub(crate) const MODIFY: u8 = 12;
    pub(crate) const REPLACE: u8 = 13;
    pub(crate) const SEND_MAD: u8 = 14;
    pub(crate) const REOPEN_GSI: u8 = 15;
}

/// Tracks receives, from posting to retirement and completion.
#[derive(Debug, Default)]
struct Log {
    /// The `wr_id`s of the outstanding receives of each queue pair.
    posted: Vec<(Qpn, VecDeque<u64>)>,
    retired: Vec<(Qpn, u64)>,
    shared: Vec<u64>,
    /// The number of management datagrams received, at most [`MADS`].
    mads: usize,
}

/// The maximum number of management datagrams that the program accepts.
const MADS: usize = 4;

impl Sink for Log {
    fn complete(&mut self, _: CqId, done: &Completion) -> Result<(), CqFull> {
        if (done.opcode as u32) < 128 {
            return Ok(());
        }
        if let Some((_, posted)) = self.posted.iter_mut().find(|(qpn, _)| *qpn == done.qpn)
            && done.wr_id < 1 << 32
        {
            assert_eq!(posted.pop_front(), Some(done.wr_id), "receives complete once and in order");
        } else {
            let at =
                self.shared.iter().position(|wr_id| *wr_id == done.wr_id).expect("a receive completes once");
            self.shared.swap_remove(at);
        }
        Ok(())
    }

    fn retire_send(&mut self, _: Qpn, _: u32) {}

    fn retire_recv(&mut self, qpn: Qpn, count: u32) {
        match self.retired.iter_mut().find(|(of, _)| *of == qpn) {
            Some((_, retired)) => *retired += u64::from(count),
            None => self.retired.push((qpn, u64::from(count))),
        }
    }

    fn retire_srq(&mut self, _: SrqId, _: u32) {}

    fn event(&mut self, _: Event) {}

    fn mad(&mut self, mad: &ReceivedMad) -> Result<(), MadsFull> {
        assert_eq!(mad.pkey & 0x7fff, 0x7fff, "it belongs to the partition");
        if self.mads == MADS {
            return Err(MadsFull);
        }
        self.mads += 1;
        Ok(())
    }
}

struct World {
    engine: Engine<VecMemory>,
    log: Log,
    now: Time,
    pd: Pd,
    srq: SrqId,
    qps: [Qpn; SERVICES.len()],
    keys: Vec<(u32, Access, Buffer)>,
    windows: [u32; 2],
    sealed: Buffer,
    next_wr_id: u64,
    packets: u64,
}

const ALL: Access = Access(0x1f);

fn connected() -> AttrChange {
    AttrChange {
        path: Some(Path { local: HERE, remote: THERE, hop_limit: 64, ..Path::default() }),
        dest_qpn: Some(0x777),
        path_mtu: Some(256),
        pkey: Some(0xffff),
        qkey: Some(QKEY),
        access: Some(ALL),
        sq_psn: Some(0xff_fff0),
        rq_psn: Some(0xff_fff0),
        timeout: Some(14),
        retry_cnt: Some(2),
        rnr_retry: Some(2),
        min_rnr_timer: Some(1),
        max_rd_atomic: Some(2),
        max_dest_rd_atomic: Some(3),
        ..AttrChange::default()
    }
}

impl World {
    fn new() -> Self {
        let mut engine = Engine::new(Config::default(), VecMemory::default(), Rng::new(1));
        let pd = engine.alloc_pd().expect("the first");
        let xrc_domain = Some(XrcDomain(3));
        let srq = engine.create_srq(pd, 8, 2, xrc_domain).expect("the first");
        let sealed = engine.memory().add(vec![0x5a; SIZE]);
        let windows = [MwType::One, MwType::Two].map(|kind| engine.alloc_mw(pd, kind).expect("the first"));
        let mut world = Self {
            engine,
            log: Log::default(),
            now: Time(0),
            pd,
            srq,
            qps: [Qpn(0); SERVICES.len()],
            keys: vec![],
            windows,
            sealed,
            next_wr_id: 0,
            packets: 0,
        };
        for (n, access) in
            [ALL, ALL, Access::LOCAL_WRITE, Access::REMOTE_READ | Access::MW_BIND].into_iter().enumerate()
        {
            let buffer = if n == 3 { sealed } else { world.engine.memory().add(vec![n as u8; SIZE]) };
            world.keys.push((0, access, buffer));
            world.register(n);
        }
        for n in 0..SERVICES.len() {
            world.create(n);
        }
        world.engine.open_gsi().expect("no queue pair has its number");
        world
    }

    fn register(&mut self, n: usize) {
        let (_, access, buffer) = self.keys[n];
        let attr = MemoryAttr { pd: self.pd, iova: IOVA, length: SIZE as u64, access };
        let region = VecRegion { buffer, start: 0, length: SIZE as u64 };
        self.keys[n].0 = self.engine.reg_mr(&attr, region).expect("there is room");
    }

    fn create(&mut self, n: usize) {
        let service = SERVICES[n];
        let init = QpInit {
            // The second reliable connection takes receives from a shared queue.
            srq: (n == 1).then_some(self.srq),
            xrc_domain: (service == Service::XrcTarget).then_some(XrcDomain(3)),
            cap: QpCap {
                max_send_wr: 4,
                max_recv_wr: 4,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 32,
            },
            sq_sig_all: true,
            ..QpInit::new(service, self.pd, CqId(1), CqId(1))
        };
        let qpn = self.engine.create_qp(&init).expect("there is room");
        self.qps[n] = qpn;
        self.log.posted.push((qpn, VecDeque::new()));
        self.modify(n, &AttrChange { state: Some(State::Init), ..connected() });
        self.up(n);
        if service == Service::Ud {
            self.engine.attach_mcast(qpn, GROUP).expect("a group");
        }
    }

    fn up(&mut self, n: usize) {
        for state in [State::Rtr, State::Rts] {
            self.modify(n, &AttrChange { state: Some(state), ..AttrChange::default() });
        }
    }

    fn modify(&mut self, n: usize, change: &AttrChange) {
        let _ = self.engine.modify_qp(self.qps[n], change, self.now, &mut self.log);
    }

    fn sge(&self, step: &Step) -> Sge {
        let (lkey, ..) = self.keys[usize::from(step.key) % self.keys.len()];
        Sge { addr: IOVA + u64::from(step.va % 512), length: u32::from(step.count) * 16, lkey }
    }

    fn key(&self, step: &Step) -> u32 {
        let all = self.keys.len() + self.windows.len();
        match usize::from(step.key) {
            n if n >= 128 => n as u32 * 0x0101_0101,
            n => match n % all {
                n if n < self.keys.len() => self.keys[n].0,
                n => self.windows[n - self.keys.len()],
            },
        }
    }

    fn call(&mut self, step: &Step) {
        let n = usize::from(step.qp) % SERVICES.len();
        let (qpn, now) = (self.qps[n], self.now);
        let sges = [self.sge(step), Sge { length: u32::from(step.rest), ..self.sge(step) }];
        match step.call % 16 {
            call::POST_RECV => {
                let wr_id = self.next_wr_id;
                self.next_wr_id += 1;
                // In the error state, the receive completes during the call.
                let at =
                    self.log.posted.iter().position(|(of, _)| *of == qpn).expect("every queue pair has one");
                self.log.posted[at].1.push_back(wr_id);
                if self.engine.post_recv(qpn, &RecvWr { wr_id, sges: &sges }, now, &mut self.log).is_err() {
                    self.log.posted[at].1.pop_back();
                }
            }
            call::POST_SRQ => {
                let wr_id = 1 << 32 | self.next_wr_id;
                self.next_wr_id += 1;
                if self.engine.post_srq_recv(self.srq, &RecvWr { wr_id, sges: &sges }).is_ok() {
                    self.log.shared.push(wr_id);
                }
            }
            call::TRANSMIT => self.transmit(u64::from(step.count)),
            call::DRAIN => self.transmit(u64::MAX),
            call::ARM_SRQ => {
                let _ = self.engine.arm_srq(self.srq, u32::from(step.count));
            }
            call::RECONNECT => {
                self.modify(n, &AttrChange { state: Some(State::Err), ..AttrChange::default() });
                self.modify(n, &AttrChange { state: Some(State::Reset), ..AttrChange::default() });
                self.modify(n, &AttrChange { state: Some(State::Init), ..connected() });
                self.up(n);
            }
            call::REREGISTER => {
                let n = usize::from(step.key) % self.keys.len();
                if self.engine.dereg_mr(self.keys[n].0).is_ok() {
                    self.register(n);
                }
            }
            call::BIND => {
                let which = usize::from(step.rest) % 2;
                let window = self.windows[which];
                let new_rkey = window & !0xff | u32::from(step.count);
                let (lkey, ..) = self.keys[usize::from(step.key) % self.keys.len()];
                let (addr, length) = (IOVA + u64::from(step.va % 512), u64::from(step.len));
                let op =
                    SendOp::Bind { window, new_rkey, lkey, addr, length, access: Access(step.dmalen & 0x2f) };
                if self.send(qpn, op, Payload::Sges(&[])) {
                    self.windows[which] = new_rkey;
                }
            }
            call::SEND if SERVICES[n] == Service::Ud => {
                let path = Path { local: HERE, remote: THERE, ..Path::default() };
                let to = UdDestination { path, qpn: 5, qkey: QKEY };
                self.send(qpn, SendOp::Datagram { to, imm: None }, Payload::Sges(&sges));
            }
            call::SEND => {
                self.send(qpn, SendOp::Send { imm: None }, Payload::Sges(&sges));
            }
            call::READ => {
                self.send(qpn, SendOp::Read { addr: 0, rkey: 1 }, Payload::Sges(&sges));
            }
            call::TIMEOUT => {
                self.now = self.now + u64::from(step.dmalen);
                self.engine.timeout(self.now, &mut self.log);
            }
            call::MODIFY => {
                let depth = Some(step.count % 8);
                let states = [None, Some(State::Sqd), Some(State::Rts), Some(State::Err)];
                let state = states[usize::from(step.rest) % states.len()];
                self.modify(n, &AttrChange { state, max_dest_rd_atomic: depth, ..AttrChange::default() });
            }
            call::REPLACE => {
                self.engine.destroy_qp(qpn).expect("it is there");
                self.log.posted.retain(|(of, _)| *of != qpn);
                self.create(n);
            }
            call::SEND_MAD => {
                let path = Path { local: HERE, remote: THERE, ..Path::default() };
                let to = MadDestination { path, qpn: u32::from(step.rest), pkey: 0xffff };
                for _ in 0..step.count {
                    let _ = self.engine.send_mad(&to, &[step.rest; MAD_LEN]);
                }
                self.log.mads = 0;
            }
            call::REOPEN_GSI => {
                self.engine.close_gsi();
                self.engine.open_gsi().expect("it is closed");
            }
            _ => {}
        }
    }

    fn send(&mut self, qpn: Qpn, op: SendOp, payload: Payload<'_>) -> bool {
        let wr = SendWr { wr_id: 0, op, flags: SendFlags::default(), payload, remote_srq: self.srq.0 };
        self.engine.post_send(qpn, &wr, self.now, &mut self.log).is_ok()
    }

    /// Sends at most `most` packets. Sending must end, because no packet arrives in between.
    fn transmit(&mut self, most: u64) {
        let mut buf = [0; MAX_PACKET_LEN];
        for sent in 0..most {
            assert!(sent < 10_000, "it never ends");
            let urgency = if sent % 2 == 0 { Urgency::Now } else { Urgency::All };
            let Some(transmit) = self.engine.poll_transmit(self.now, urgency, &mut buf, &mut self.log) else {
                if urgency == Urgency::Now {
                    continue;
                }
                return;
            };
            self.packets += 1;
            assert_eq!(transmit.len % 4, 0);
            Headers::parse(&buf[..transmit.len + ICRC_LEN])
                .expect("the engine writes packets that can be parsed");
        }
    }

    fn arrive(&mut self, step: &Step) {
        if step.flags & 0x80 != 0 {
            return;
        }
        let which = usize::from(step.qp % 8);
        let known = which.min(SERVICES.len() - 1);
        let dest_qp = match which {
            6 => 0xff_ffff,
            7 if step.key & 1 == 1 => GSI_QPN,
            7 => 0x12_3456,
            n => self.qps[n].0,
        };
        let code = match SERVICES[known] {
            Service::Rc => 0,
            Service::Uc => 1,
            Service::Ud => 3,
            Service::XrcTarget | Service::XrcInitiator => 5,
        };
        let code = if which == 6 || dest_qp == GSI_QPN { 3 } else { code };
        let opcode =
            Opcode(if step.opcode & 0x80 != 0 { step.opcode } else { code << 5 | step.opcode & 0x1f });
        let (_, attr) = self.engine.query_qp(self.qps[known]).expect("it is there");
        let from = if opcode.is_response() { attr.sq_psn } else { attr.rq_psn };
        let payload = vec![step.rest; usize::from(step.len) % 5000];
        let mut headers =
            Headers::new(bth::Repr::new(opcode, dest_qp, Psn::new(from.wrapping_add(step.psn as u32))));
        headers.bth.ack_req = step.flags & 1 != 0;
        headers.bth.se = step.flags & 2 != 0;
        headers.bth.pad_cnt = if step.flags & 4 != 0 { step.flags >> 3 & 3 } else { pad_for(payload.len()) };
        if step.flags & 0x20 != 0 {
            headers.bth.pkey = 0x1234;
        }
        let (va, rkey) = ((IOVA - 16).wrapping_add(u64::from(step.va)), self.key(step));
        let word = u64::from(step.rest);
        let qkey = if dest_qp == GSI_QPN { GSI_QKEY } else { QKEY };
        headers.deth = Some(deth::Repr { qkey: qkey ^ u32::from(step.rest == 0xff), src_qp: 9 });
        headers.xrceth = Some(xrceth::Repr { xrcsrq: self.srq.0 ^ u32::from(step.rest == 0xff) });
        headers.reth = Some(reth::Repr { va, rkey, dmalen: step.dmalen });
        headers.atomic_eth = Some(atomic_eth::Repr { va, rkey, swap_add: word, compare: word });
        headers.aeth = Some(aeth::Repr { syndrome: Syndrome(step.rest), msn: step.dmalen });
        headers.atomic_ack_eth = Some(atomic_ack_eth::Repr { orig: word });
        headers.imm = Some(imm::Repr { imm_data: step.dmalen });
        headers.ieth = Some(ieth::Repr { rkey });
        let mut packet = vec![0; headers.len()];
        headers.emit(&mut packet);
        packet.extend(payload);
        packet.resize(packet.len() + usize::from(headers.bth.pad_cnt) + ICRC_LEN, 0);
        let remote = if step.flags & 0x40 != 0 { GROUP } else { THERE };
        let local = if which == 6 { GROUP } else { HERE };
        let arrival = Arrival { remote, local, ..Arrival::default() };
        self.engine.handle(self.now, &arrival, &packet, &mut self.log);
    }

    /// Fails all queue pairs and checks the results.
    fn end(mut self, steps: u64) {
        self.transmit(u64::MAX);
        // A read of 4 KiB takes 16 packets but only one request. A send of 8 KiB takes 32 packets
        // and is sent at least three times.
        assert!(self.packets <= 1000 * (steps + 1), "{} packets after {steps} steps", self.packets);
        for n in 0..SERVICES.len() {
            self.modify(n, &AttrChange { state: Some(State::Err), ..AttrChange::default() });
        }
        self.transmit(u64::MAX);
        for (qpn, posted) in &self.log.posted {
            assert!(posted.is_empty(), "receives of {qpn:?} that never ended: {posted:?}");
        }
        assert_eq!(
            self.engine.memory().bytes(self.sealed),
            [0x5a; SIZE],
            "this memory has no right to write"
        );
    }
}

/// Runs up to 200 steps parsed from `bytes`.
pub(crate) fn run(bytes: &[u8]) {
    let mut world = World::new();
    let mut steps = 0;
    for chunk in bytes.chunks_exact(Step::LEN).take(200) {
        let step = Step::parse(chunk.try_into().expect("chunks are exact"));
        world.call(&step);
        world.arrive(&step);
        steps += 1;
    }
    world.end(steps);
}
