//! The simulated world: endpoints, links and their faults, queue pairs, memory.

use std::collections::HashMap;
use std::fmt::Write;
use std::ops::Range;
use std::sync::OnceLock;

use roce::engine::{
    Access, Attr, Config, CqId, MwType, Path, Pd, QpCap, QpInit, Qpn, Service, SrqId, Status, Time,
};
use roce::sim::{Chance, EndpointId, Fabric, Link, ReadResponses, Region, Rng};
use roce::wire::packet::LINK_MTU;

use crate::Tally;

pub(crate) const MS: u64 = 1_000_000;

/// The condition of the network, which determines the faults of its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    Clear,
    /// Packets are lost, but too few to exhaust 7 retries.
    Light,
    Heavy,
    /// Links go down, some for longer than a queue pair retries.
    Partitions,
    /// Bits flip and the ICRC is not checked; only termination is tested.
    Damage,
}

/// The state of a simulation with one seed.
pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) fabric: Fabric,
    pub(crate) weather: Weather,
    /// Whether receives are posted late or never.
    pub(crate) starved: bool,
    /// The probability that a send is a deliberate mistake.
    pub(crate) mistakes: Chance,
    pub(crate) eps: Vec<EndpointState>,
    pub(crate) halves: Vec<Half>,
    pub(crate) srqs: Vec<SharedRecvQueue>,
    pub(crate) by_qpn: HashMap<(EndpointId, Qpn), usize>,
    /// The meters of read responses, by sender and receiver.
    pub(crate) meters: Vec<Meter>,
    pub(crate) tally: Tally,
}

/// Read responses from one endpoint to another, measured as a leaky bucket.
#[derive(Clone, Copy, Default)]
pub(crate) struct Meter {
    pub(crate) seen: ReadResponses,
    /// The level, in thousandths of a byte.
    pub(crate) level: u128,
    pub(crate) at: u64,
}

/// An endpoint and the objects that its queue pairs share.
pub(crate) struct EndpointState {
    pub(crate) id: EndpointId,
    /// A protection domain without queue pairs.
    pub(crate) other_pd: Pd,
    /// A word that all peers increment.
    pub(crate) counter: Region,
    /// The values that the peers' atomics returned from the counter.
    pub(crate) counted: Vec<u64>,
    /// The number of additions whose result is not known yet.
    pub(crate) uncounted: u64,
}

/// A shared receive queue and its receives.
pub(crate) struct SharedRecvQueue {
    pub(crate) ep: usize,
    pub(crate) id: SrqId,
    pub(crate) recvs: Vec<Recv>,
    pub(crate) retired: usize,
    pub(crate) completed: usize,
}

/// A queue pair and the model of its state. The peer is another queue pair.
pub(crate) struct Half {
    pub(crate) ep: usize,
    pub(crate) qpn: Qpn,
    pub(crate) service: Service,
    pub(crate) peer: usize,
    pub(crate) attr: Attr,
    pub(crate) cap: QpCap,
    pub(crate) all_signaled: bool,
    pub(crate) srq: Option<usize>,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    pub(crate) max_len: usize,
    /// Memory with bytes to send, which never change.
    pub(crate) source: Region,
    /// Memory that the peer may read.
    pub(crate) readable: Region,
    /// Memory that the peer may read and write.
    pub(crate) area: Region,
    pub(crate) area_before: Vec<u8>,
    /// A word that only the peer changes.
    pub(crate) word: Region,
    /// Memory without remote access rights.
    pub(crate) private: Region,
    /// Memory in a different protection domain from the queue pair's.
    pub(crate) foreign: Region,
    /// The key of a window of this endpoint that peers may invalidate.
    pub(crate) window: u32,

    pub(crate) sends: Vec<Send>,
    /// The number of sends known to have succeeded or failed.
    pub(crate) ended: usize,
    pub(crate) retired_sends: usize,
    pub(crate) recvs: Vec<Recv>,
    pub(crate) retired_recvs: usize,
    pub(crate) ended_recvs: usize,
    /// The sends that consume a receive of the peer.
    pub(crate) messages: Vec<Message>,
    /// The number of the peer's messages that have arrived here. `arrived` lists their indices.
    pub(crate) delivered: usize,
    pub(crate) arrived: Vec<usize>,
    /// The contents of the peer's area and word once all posted sends have been executed.
    pub(crate) area_after: Vec<u8>,
    pub(crate) word_after: u64,
    /// The index of the first failed send.
    pub(crate) failed_at: Option<usize>,
    /// Whether the queue pair is in the error state, for any reason.
    pub(crate) failed: bool,
    /// Whether the queue pair has sent a request that the peer must reject.
    pub(crate) offended: bool,
    /// Whether one of the queue pair's receives is too short or in memory that is not writable.
    pub(crate) bad_recv: bool,
    /// The call by which the program ended the queue pair, if any.
    pub(crate) gone: Option<Gone>,
}

impl Half {
    /// Returns the largest payload of the queue pair's packets, in bytes.
    pub(crate) fn mtu(&self) -> u32 {
        if self.attr.path.on_link { LINK_MTU } else { self.attr.path_mtu }
    }
}

/// The calls by which a program ends a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    Destroyed,
    Reset,
    Error,
}

/// A posted send.
pub(crate) struct Send {
    pub(crate) what: Effect,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    pub(crate) len: usize,
    /// The statuses that a deliberate mistake may complete with; empty for a valid send.
    pub(crate) mistake: &'static [Status],
    /// The index in [`Half::messages`] of the send's message, if it consumes a receive.
    pub(crate) message: Option<usize>,
}

/// The effect of a send, in the detail that the model needs.
pub(crate) enum Effect {
    Message,
    Write {
        offset: usize,
        bytes: Vec<u8>,
    },
    Read {
        into: Region,
        pieces: Vec<Range<usize>>,
        expect: Expect,
    },
    CompareSwap {
        into: Region,
        found: u64,
        after: u64,
    },
    FetchAdd {
        into: Region,
        found: u64,
        after: u64,
    },
    Count {
        into: Region,
    },
    Bind,
    LocalInvalidate,
    /// A mistake, with a description. Its effect is not modelled.
    Nothing(&'static str),
}

/// The bytes that a read must return.
pub(crate) enum Expect {
    Bytes(Vec<u8>),
    /// These bytes, or the bytes that the same queue pair later wrote over them.
    Area {
        offset: usize,
        bytes: Vec<u8>,
    },
}

/// A message that consumes a receive.
#[derive(Clone)]
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    /// Whether the message is a write with immediate data. The receive then gets only the immediate
    /// data.
    pub(crate) write: bool,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidates: Option<u32>,
    /// Whether the message must not arrive.
    pub(crate) unwanted: bool,
}

/// A posted receive.
pub(crate) struct Recv {
    pub(crate) region: Region,
    pub(crate) pieces: Vec<Range<usize>>,
    pub(crate) capacity: usize,
    pub(crate) forbidden: bool,
    pub(crate) ended: bool,
    /// The contents of the receive's buffer at its completion.
    pub(crate) holds: Option<Vec<u8>>,
}

pub(crate) const AREA: usize = 16 << 10;
pub(crate) const SOURCE: usize = 72 << 10;
/// The value of every byte of a receive until a message arrives.
pub(crate) const EMPTY: u8 = 0xee;

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::split(seed, u64::MAX);
        let mut fabric = Fabric::new(seed);
        let weather = rng.pick(&[
            Weather::Clear,
            Weather::Clear,
            Weather::Light,
            Weather::Light,
            Weather::Heavy,
            Weather::Heavy,
            Weather::Heavy,
            Weather::Partitions,
            Weather::Partitions,
            Weather::Damage,
        ]);
        let starved = rng.chance(Chance::percent(15));
        let mistakes = rng.pick(&[Chance::NEVER, Chance::NEVER, Chance::percent(1), Chance::percent(4)]);
        let mut eps = Vec::new();
        for _ in 0..rng.range(2, 6) {
            let id = fabric.add_endpoint_with(Config {
                window_bytes: rng.pick(&[1, 5_000, 32 << 10, 128 << 10, 128 << 10, 1 << 20]),
                ack_every: rng.pick(&[1, 4096, 32 << 10, 1 << 20]),
                burst: rng.range(1, 32) as u32,
                // The rate is high enough to send the responses that a pair requests within its
                // time-out.
                response_rate: rng.pick(&[0, 3_000, 8_000, 8_000, 50_000]),
                ..Config::default()
            });
            fabric.listen(id);
            fabric.set_ack_delay(id, rng.pick(&[0, 0, 500, 20_000]));
            let other_pd = fabric.with(id, |engine, _, _| engine.alloc_pd()).unwrap();
            let counter = fabric.register(id, vec![0; 8], ALL).unwrap();
            eps.push(EndpointState { id, other_pd, counter, counted: Vec::new(), uncounted: 0 });
        }
        let mut world = Self {
            rng,
            fabric,
            weather,
            starved,
            mistakes,
            eps,
            halves: Vec::new(),
            srqs: Vec::new(),
            by_qpn: HashMap::new(),
            meters: Vec::new(),
            tally: Tally::new(),
        };
        world.meters = vec![Meter::default(); world.eps.len() * world.eps.len()];
        world.lay_links();
        for ep in 0..world.eps.len() {
            if world.rng.chance(Chance::percent(40)) {
                let id = world.eps[ep].id;
                let pd = world.fabric.endpoint(id).pd();
                let srq = world.fabric.with(id, |engine, _, _| engine.create_srq(pd, 1024, 4, None)).unwrap();
                world.srqs.push(SharedRecvQueue { ep, id: srq, recvs: Vec::new(), retired: 0, completed: 0 });
            }
        }
        for _ in 0..world.rng.range(1, 6) {
            world.add_pair();
        }
        world
    }

    fn lay_links(&mut self) {
        for from in 0..self.eps.len() {
            for to in 0..self.eps.len() {
                let rng = &mut self.rng;
                let mut link = Link {
                    latency: rng.range(200, 20_000),
                    jitter: rng.pick(&[0, 0, 1_000, 10_000]),
                    bandwidth: rng.pick(&[0, 25, 40, 100, 400]) * 1_000_000_000,
                    reorder_delay: rng.range(1, 50_000),
                    ..Link::default()
                };
                let mut up_to = |percent: u64| Chance::per_million(rng.below(percent * 10_000 + 1) as u32);
                match self.weather {
                    Weather::Clear => {}
                    Weather::Light | Weather::Partitions | Weather::Damage => {
                        link.loss = up_to(2);
                        link.duplicate = up_to(2);
                        link.reorder = up_to(2);
                        link.corrupt = up_to(1);
                    }
                    Weather::Heavy => {
                        link.loss = up_to(20);
                        link.duplicate = up_to(20);
                        link.reorder = up_to(20);
                        link.corrupt = up_to(5);
                    }
                }
                if self.weather == Weather::Damage {
                    link.undetected = true;
                    link.corrupt = Chance::percent(3);
                }
                if self.weather == Weather::Partitions && rng.chance(Chance::percent(50)) {
                    let start = rng.below(3 * MS);
                    let length = rng.pick(&[MS, 20 * MS, 2_000 * MS]);
                    link.down.push(Time(start)..Time(start + length));
                }
                self.fabric.set_link(self.eps[from].id, self.eps[to].id, link);
            }
        }
    }

    fn add_pair(&mut self) {
        let rng = &mut self.rng;
        let (a, b) = (rng.below(self.eps.len() as u64) as usize, rng.below(self.eps.len() as u64) as usize);
        let service =
            rng.pick(&[Service::Rc, Service::Rc, Service::Rc, Service::Rc, Service::Uc, Service::Ud]);
        let path_mtu = rng.pick(&[256, 512, 1024, 2048, 4096]);
        let psn = |rng: &mut Rng| {
            let near = rng.chance(Chance::percent(50));
            if near { 0xff_ffff - rng.below(40) as u32 } else { rng.below(1 << 24) as u32 }
        };
        let depth = rng.pick(&[1, 1, 2, 3, 4, 16]);
        let attr = Attr {
            path_mtu,
            pkey: 0xffff,
            qkey: rng.next_u64() as u32 >> 1,
            access: ALL,
            sq_psn: psn(rng),
            rq_psn: psn(rng),
            timeout: rng.range(10, 13) as u8,
            retry_cnt: if rng.chance(Chance::percent(70)) { 7 } else { rng.below(8) as u8 },
            rnr_retry: if self.starved { rng.below(8) as u8 } else { 7 },
            min_rnr_timer: rng.range(1, 14) as u8,
            max_rd_atomic: depth,
            // The requester must not exceed the peer's depth.
            max_dest_rd_atomic: depth,
            ..Attr::default()
        };
        let max_len = match service {
            Service::Ud => path_mtu as usize,
            _ => rng.pick(&[300, 2_500, 9_000, 9_000, 60_000]),
        };
        let first = self.halves.len();
        // Each side chooses the path options for its own requests.
        let mut path = || {
            let on_link = service != Service::Ud && rng.chance(Chance::percent(20));
            Path { on_link, ..Path::default() }
        };
        let attr = Attr { path: path(), ..attr };
        let back = Attr { sq_psn: attr.rq_psn, rq_psn: attr.sq_psn, path: path(), ..attr };
        self.add_half(a, first + 1, service, &attr, max_len);
        self.add_half(b, first, service, &back, max_len);
        for half in [first, first + 1] {
            let peer = self.halves[half].peer;
            let (at, to) = (self.eps[self.halves[half].ep].id, self.eps[self.halves[peer].ep].id);
            let attr = Attr {
                path: Path { on_link: self.halves[half].attr.path.on_link, ..self.fabric.path(at, to) },
                dest_qpn: self.halves[peer].qpn.0,
                ..self.halves[half].attr
            };
            self.halves[half].attr = attr;
            self.fabric.ready(at, self.halves[half].qpn, &attr).unwrap();
            self.halves[half].area_after = self.halves[peer].area_before.clone();
            self.halves[half].word_after = self.halves[peer].word.addr;
        }
    }

    fn add_half(&mut self, ep: usize, peer: usize, service: Service, attr: &Attr, max_len: usize) {
        let EndpointState { id, other_pd, .. } = self.eps[ep];
        let cap = QpCap {
            max_send_wr: self.rng.range(1, 40) as u32,
            max_recv_wr: 256,
            max_send_sge: self.rng.range(1, 4) as u32,
            max_recv_sge: 4,
            max_inline_data: self.rng.pick(&[0, 64, 256]),
        };
        let shared: Vec<usize> = (0..self.srqs.len()).filter(|srq| self.srqs[*srq].ep == ep).collect();
        let srq =
            if shared.is_empty() || self.rng.chance(Chance::percent(40)) { None } else { Some(shared[0]) };
        let all_signaled = self.rng.chance(Chance::percent(20));
        let qp_init = QpInit {
            srq: srq.map(|srq| self.srqs[srq].id),
            cap,
            sq_sig_all: all_signaled,
            send_cq: CqId(self.rng.below(2) as u32),
            recv_cq: CqId(self.rng.below(2) as u32),
            ..self.fabric.qp_init(id, service)
        };
        let qpn = self.fabric.create_qp(id, &qp_init).unwrap();
        let mut random = |len: usize, access| {
            let start = self.rng.below((PATTERN - len) as u64) as usize;
            self.fabric.register(id, pattern()[start..start + len].to_vec(), access).unwrap()
        };
        let source = random(SOURCE, Access::NONE);
        let readable = random(SOURCE, Access::REMOTE_READ);
        let area = random(AREA, ALL);
        let private = random(64, Access::LOCAL_WRITE);
        // The initial value of the word is its address, which no other word has as a value.
        let word = random(8, ALL);
        self.fabric.bytes_mut(id, &word).copy_from_slice(&word.addr.to_ne_bytes());
        let foreign = self.fabric.register_in(id, other_pd, vec![0; 64], ALL).unwrap();
        let pd = self.fabric.endpoint(id).pd();
        let window = self.fabric.with(id, |engine, _, _| engine.alloc_mw(pd, MwType::Two)).unwrap();
        let area_before = self.fabric.bytes(id, &area).to_vec();
        self.by_qpn.insert((id, qpn), self.halves.len());
        self.halves.push(Half {
            ep,
            qpn,
            service,
            peer,
            attr: *attr,
            cap,
            all_signaled,
            srq,
            send_cq: qp_init.send_cq,
            recv_cq: qp_init.recv_cq,
            max_len,
            source,
            readable,
            area,
            area_before,
            word,
            private,
            foreign,
            window,
            sends: Vec::new(),
            ended: 0,
            retired_sends: 0,
            recvs: Vec::new(),
            retired_recvs: 0,
            ended_recvs: 0,
            messages: Vec::new(),
            delivered: 0,
            arrived: Vec::new(),
            area_after: Vec::new(),
            word_after: 0,
            failed_at: None,
            failed: false,
            offended: false,
            bad_recv: false,
            gone: None,
        });
    }

    pub(crate) fn count(&mut self, what: &str) {
        match self.tally.get_mut(what) {
            Some(n) => *n += 1,
            None => {
                self.tally.insert(what.to_string(), 1);
            }
        }
    }

    /// Returns a description of the queue pairs for readers of a trace.
    pub(crate) fn describe(&self) -> String {
        let mut text =
            format!("{:?}, starved {}, mistakes {:?}\n", self.weather, self.starved, self.mistakes);
        for (n, half) in self.halves.iter().enumerate() {
            let Half { service, qpn, peer, attr, .. } = half;
            let _ = writeln!(
                text,
                "half {n}: {} {service:?} qp {:06x} peer {peer} mtu {} timeout {} retry {} rnr {} rd {} srq {:?} \
                 sends {} ended {} retired {} recvs {} ended {} messages {} delivered {} failed {} gone {:?}",
                self.eps[half.ep].id,
                qpn.0,
                half.mtu(),
                attr.timeout,
                attr.retry_cnt,
                attr.rnr_retry,
                attr.max_rd_atomic,
                half.srq,
                half.sends.len(),
                half.ended,
                half.retired_sends,
                half.recvs.len(),
                half.ended_recvs,
                half.messages.len(),
                half.delivered,
                half.failed,
                half.gone,
            );
        }
        text
    }
}

pub(crate) const ALL: Access = Access(
    Access::LOCAL_WRITE.0
        | Access::REMOTE_WRITE.0
        | Access::REMOTE_READ.0
        | Access::REMOTE_ATOMIC.0
        | Access::MW_BIND.0,
);

const PATTERN: usize = 256 << 10;

/// Returns random bytes, of which each memory area uses a part.
fn pattern() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let mut bytes = vec![0; PATTERN];
        Rng::new(0).fill(&mut bytes);
        bytes
    })
}
