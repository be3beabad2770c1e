//! The fixture for the engine's tests: one engine with vectors as memory, its completions and
//! events, and handwritten packets.

use alloc::vec;
use alloc::vec::Vec;

use super::{
    Access, Arrival, AttrChange, Completion, Config, CqFull, CqId, Engine, Event, FirstPacket, Gid, MadsFull,
    Matched, MemoryAttr, Path, Pd, QpCap, QpInit, Qpn, ReceivedMad, RecvWr, Service, Sge, Sink, SrqId, State,
    Time, Urgency, XrcDomain,
};
use crate::sim::{Buffer, Rng, VecMemory, VecRegion};
use crate::wire::{Headers, ICRC_LEN, packet};

/// The address of the engine under test: 192.0.2.1.
pub(crate) const HERE: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1];
/// The peer's address: 192.0.2.2.
pub(crate) const THERE: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 2];
/// The number of the peer's queue pair.
pub(crate) const PEER: u32 = 0x777;
pub(crate) const SEND_CQ: CqId = CqId(1);
pub(crate) const RECV_CQ: CqId = CqId(2);
pub(crate) const ALL: Access =
    Access(Access::LOCAL_WRITE.0 | Access::REMOTE_WRITE.0 | Access::REMOTE_READ.0 | Access::REMOTE_ATOMIC.0);

/// Returns a random number generator whose seed depends on the call site but is the same in every
/// run.
#[track_caller]
pub(crate) fn random() -> Rng {
    Rng::new(core::panic::Location::caller().line().into())
}

/// The completions and events of an engine.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) completions: Vec<(CqId, Completion)>,
    pub(crate) events: Vec<Event>,
    pub(crate) mads: Vec<ReceivedMad>,
    pub(crate) retired_sends: u32,
    pub(crate) retired_recvs: u32,
    pub(crate) retired_srq: u32,
    /// The bytes carried by completions, each with the number of completions before it.
    pub(crate) data: Vec<(usize, Vec<u8>)>,
    /// Whether the completion queues and the program's datagram queue are full.
    pub(crate) full: bool,
    /// The memory for the next send to match: its `wr_id`, an element, and the number of bytes to
    /// skip.
    pub(crate) matches: Option<(u64, Sge, usize)>,
    /// The first packets passed to `match_message`: the payload length, whether the message is
    /// whole, whether a receive is posted.
    pub(crate) firsts: Vec<(usize, bool, bool)>,
}

impl Sink for Log {
    fn complete(&mut self, cq: CqId, completion: &Completion) -> Result<(), CqFull> {
        if self.full {
            return Err(CqFull);
        }
        self.completions.push((cq, *completion));
        Ok(())
    }

    fn complete_with_data(&mut self, cq: CqId, completion: &Completion, data: &[u8]) -> Result<(), CqFull> {
        self.complete(cq, completion)?;
        self.data.push((self.completions.len(), data.to_vec()));
        Ok(())
    }

    fn match_message(&mut self, first: &FirstPacket<'_>, sges: &mut [Sge]) -> Option<Matched> {
        self.firsts.push((first.payload.len(), first.whole, first.posted));
        let (wr_id, sge, header) = self.matches.take()?;
        sges[0] = sge;
        Some(Matched { wr_id, sges: 1, header })
    }

    fn retire_send(&mut self, _qpn: Qpn, count: u32) {
        self.retired_sends += count;
    }

    fn retire_recv(&mut self, _qpn: Qpn, count: u32) {
        self.retired_recvs += count;
    }

    fn retire_srq(&mut self, _srq: SrqId, count: u32) {
        self.retired_srq += count;
    }

    fn event(&mut self, event: Event) {
        self.events.push(event);
    }

    fn mad(&mut self, mad: &ReceivedMad) -> Result<(), MadsFull> {
        if self.full {
            return Err(MadsFull);
        }
        self.mads.push(*mad);
        Ok(())
    }
}

/// A memory registration: its key, its first address and its buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mr {
    pub(crate) key: u32,
    pub(crate) addr: u64,
    pub(crate) buffer: Buffer,
}

impl Mr {
    pub(crate) fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.addr + offset, length, lkey: self.key }
    }
}

/// An engine, its completions and its events.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) engine: Engine<VecMemory>,
    pub(crate) log: Log,
    pub(crate) now: Time,
    pub(crate) pd: Pd,
}

impl Host {
    pub(crate) fn new() -> Self {
        let mut engine = Engine::new(Config::default(), VecMemory::default(), Rng::new(3));
        let pd = engine.alloc_pd().unwrap();
        Self { engine, log: Log::default(), now: Time(0), pd }
    }

    /// Registers `length` bytes at an address far from 0. Byte `n` has the value `n % 251`.
    pub(crate) fn register(&mut self, length: usize, access: Access) -> Mr {
        let pd = self.pd;
        self.register_in(pd, length, access)
    }

    pub(crate) fn register_in(&mut self, pd: Pd, length: usize, access: Access) -> Mr {
        let bytes = (0..length).map(|n| (n % 251) as u8).collect();
        let buffer = self.engine.memory().add(bytes);
        let attr = MemoryAttr { pd, iova: 0x1_0000, length: length as u64, access };
        let region = VecRegion { buffer, start: 0, length: length as u64 };
        Mr { key: self.engine.reg_mr(&attr, region).unwrap(), addr: attr.iova, buffer }
    }

    pub(crate) fn bytes(&mut self, mr: &Mr) -> &[u8] {
        self.engine.memory().bytes(mr.buffer)
    }

    /// Returns the parameters of a queue pair with space for 4 sends and 4 receives, each of 2
    /// elements.
    pub(crate) fn init(&self, service: Service) -> QpInit {
        QpInit {
            xrc_domain: (service == Service::XrcTarget).then_some(XrcDomain(9)),
            cap: QpCap {
                max_send_wr: 4,
                max_recv_wr: 4,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 64,
            },
            ..QpInit::new(service, self.pd, SEND_CQ, RECV_CQ)
        }
    }

    /// Creates a queue pair, applies `change` and moves it to RTS.
    pub(crate) fn qp(&mut self, init: &QpInit, change: &AttrChange) -> Qpn {
        let qpn = self.engine.create_qp(init).unwrap();
        self.modify(qpn, &AttrChange { state: Some(State::Init), ..*change });
        self.modify(qpn, &to(State::Rtr));
        self.modify(qpn, &to(State::Rts));
        qpn
    }

    pub(crate) fn modify(&mut self, qpn: Qpn, change: &AttrChange) {
        self.engine.modify_qp(qpn, change, self.now, &mut self.log).unwrap();
    }

    pub(crate) fn state(&self, qpn: Qpn) -> State {
        self.engine.query_qp(qpn).unwrap().0
    }

    pub(crate) fn post_recv(&mut self, qpn: Qpn, wr_id: u64, sges: &[Sge]) {
        self.engine.post_recv(qpn, &RecvWr { wr_id, sges }, self.now, &mut self.log).unwrap();
    }

    /// Passes a packet from the peer to the engine.
    pub(crate) fn arrive(&mut self, headers: &Headers, payload: &[u8]) {
        self.arrive_from(&Arrival { remote: THERE, local: HERE, ..Arrival::default() }, headers, payload);
    }

    pub(crate) fn arrive_from(&mut self, arrival: &Arrival, headers: &Headers, payload: &[u8]) {
        let mut packet = vec![0; headers.len()];
        headers.emit(&mut packet);
        packet.extend_from_slice(payload);
        packet.resize(packet.len() + usize::from(headers.bth.pad_cnt) + ICRC_LEN, 0);
        self.engine.handle(self.now, arrival, &packet, &mut self.log);
    }

    /// Returns the next packet to send.
    pub(crate) fn transmit(&mut self, urgency: Urgency) -> Option<(Headers, Vec<u8>)> {
        self.transmit_in(urgency, &mut [0xee; packet::MAX_PACKET_LEN])
    }

    /// Returns the next packet to send, written to `buf`.
    pub(crate) fn transmit_in(&mut self, urgency: Urgency, buf: &mut [u8]) -> Option<(Headers, Vec<u8>)> {
        let transmit = self.engine.poll_transmit(self.now, urgency, buf, &mut self.log)?;
        assert_eq!(transmit.path.remote, THERE);
        let packet = &buf[..transmit.len + ICRC_LEN];
        let (headers, payload) = Headers::parse(packet).unwrap();
        assert_eq!(transmit.len % 4, 0);
        assert_eq!(headers.bth.pad_cnt, packet::pad_for(payload.len()));
        Some((headers, packet[payload].to_vec()))
    }

    /// Returns all packets that the engine has to send.
    pub(crate) fn sent(&mut self) -> Vec<(Headers, Vec<u8>)> {
        core::iter::from_fn(|| self.transmit(Urgency::All)).take(1000).collect()
    }

    /// Returns the completions since the last call.
    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        core::mem::take(&mut self.log.completions).into_iter().map(|(_, completion)| completion).collect()
    }

    /// Returns the events since the last call.
    pub(crate) fn events(&mut self) -> Vec<Event> {
        core::mem::take(&mut self.log.events)
    }
}

/// Returns a change to state `state` only.
pub(crate) fn to(state: State) -> AttrChange {
    AttrChange { state: Some(state), ..AttrChange::default() }
}

/// Returns the attributes of a queue pair connected to the peer: path MTU 256, all rights, sequence
/// numbers just before they wrap.
pub(crate) fn connected() -> AttrChange {
    AttrChange {
        path: Some(Path { local: HERE, remote: THERE, hop_limit: 64, ..Path::default() }),
        dest_qpn: Some(PEER),
        path_mtu: Some(256),
        pkey: Some(0xffff),
        qkey: Some(0x1111),
        access: Some(ALL),
        sq_psn: Some(0xff_fffe),
        rq_psn: Some(0xff_fffe),
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        min_rnr_timer: Some(12),
        max_rd_atomic: Some(2),
        max_dest_rd_atomic: Some(2),
        ..AttrChange::default()
    }
}
