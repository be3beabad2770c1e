//! Strict ports: a connected queue pair accepts only the UDP source port of its peer's first
//! packet.

use roce::engine::{
    Access, Arrival, AttrChange, Completion, Config, CqFull, CqId, Engine, Event, Gid, MemoryAttr, Path,
    Payload, QpCap, QpInit, Qpn, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, Sink, SrqId, State, Time,
    Urgency,
};
use roce::sim::{Rng, VecMemory, VecRegion};
use roce::wire::packet::MAX_PACKET_LEN;
use roce::wire::{Headers, ICRC_LEN, Opcode, Psn, Syndrome, aeth, bth, deth, reth};

const HERE: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1];
const PEER: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 2];
const NOW: Time = Time(0);
const PSN: u32 = 1000;
const QKEY: u32 = 0x1234;
/// The UDP source ports of the peer and of the attacker.
const ITS: u16 = 49_152;
const OTHER: u16 = 50_000;

#[derive(Debug, Default)]
struct Log {
    received: u32,
    sent: u32,
}

impl Sink for Log {
    fn complete(&mut self, cq: CqId, _completion: &Completion) -> Result<(), CqFull> {
        *if cq == CqId(2) { &mut self.received } else { &mut self.sent } += 1;
        Ok(())
    }
    fn retire_send(&mut self, _qpn: Qpn, _count: u32) {}
    fn retire_recv(&mut self, _qpn: Qpn, _count: u32) {}
    fn retire_srq(&mut self, _srq: SrqId, _count: u32) {}
    fn event(&mut self, _event: Event) {}
}

struct Host {
    engine: Engine<VecMemory>,
    log: Log,
    qpn: Qpn,
    sge: Sge,
    opcode: Opcode,
}

impl Host {
    fn new(service: Service, strict_ports: bool) -> Self {
        let config = Config { strict_ports, ..Config::default() };
        let mut engine = Engine::new(config, VecMemory::default(), Rng::new(1));
        let pd = engine.alloc_pd().unwrap();
        let buffer = engine.memory().add(vec![0; 64]);
        let attr = MemoryAttr { pd, iova: 0, length: 64, access: Access::LOCAL_WRITE };
        let lkey = engine.reg_mr(&attr, VecRegion { buffer, start: 0, length: 64 }).unwrap();
        let cap =
            QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, ..QpCap::default() };
        let init = QpInit { cap, ..QpInit::new(service, pd, CqId(1), CqId(2)) };
        let qpn = engine.create_qp(&init).unwrap();
        let opcode = match service {
            Service::Uc => Opcode::UC_SEND_ONLY,
            Service::Ud => Opcode::UD_SEND_ONLY,
            _ => Opcode::RC_SEND_ONLY,
        };
        let sge = Sge { addr: 0, length: 64, lkey };
        let mut host = Self { engine, log: Log::default(), qpn, sge, opcode };
        host.connect();
        host
    }

    fn connect(&mut self) {
        for state in [State::Init, State::Rtr, State::Rts] {
            let path = (state == State::Rtr).then(|| Path { local: HERE, remote: PEER, ..Path::default() });
            self.modify(&AttrChange {
                state: Some(state),
                path,
                dest_qpn: Some(0x777),
                path_mtu: Some(1024),
                pkey: Some(0xffff),
                qkey: Some(QKEY),
                sq_psn: Some(PSN),
                rq_psn: Some(PSN),
                ..AttrChange::default()
            });
        }
        for wr_id in 0..4 {
            let wr = RecvWr { wr_id, sges: &[self.sge] };
            self.engine.post_recv(self.qpn, &wr, NOW, &mut self.log).unwrap();
        }
    }

    fn modify(&mut self, change: &AttrChange) {
        self.engine.modify_qp(self.qpn, change, NOW, &mut self.log).unwrap();
    }

    fn hear(&mut self, src_port: impl Into<Option<u16>>, headers: &Headers) {
        let mut packet = [0; 128];
        let len = headers.emit(&mut packet);
        let src_port = src_port.into();
        let arrival = Arrival { remote: PEER, local: HERE, src_port, ..Arrival::default() };
        self.engine.handle(NOW, &arrival, &packet[..len + ICRC_LEN], &mut self.log);
    }

    /// Delivers a message from port `src_port`. Returns the total numbers of messages received and
    /// of packets dropped because of their port.
    fn message(&mut self, src_port: impl Into<Option<u16>>, psn: u32) -> (u32, u64) {
        let mut headers = Headers::new(bth::Repr::new(self.opcode, self.qpn.0, Psn::new(psn)));
        headers.deth = (self.opcode == Opcode::UD_SEND_ONLY).then_some(deth::Repr { qkey: QKEY, src_qp: 3 });
        self.hear(src_port, &headers);
        (self.log.received, self.engine.unexpected_ports())
    }

    fn send(&mut self) {
        let payload = Payload::Sges(&[]);
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let wr = SendWr { wr_id: 9, op: SendOp::Send { imm: None }, flags, payload, remote_srq: 0 };
        self.engine.post_send(self.qpn, &wr, NOW, &mut self.log).unwrap();
        let mut buf = [0; MAX_PACKET_LEN];
        while self.engine.poll_transmit(NOW, Urgency::All, &mut buf, &mut self.log).is_some() {}
    }

    fn acknowledgement(&mut self, src_port: impl Into<Option<u16>>, psn: u32) -> (u32, u64) {
        let bth = bth::Repr::new(Opcode::RC_ACKNOWLEDGE, self.qpn.0, Psn::new(psn));
        let aeth = Some(aeth::Repr { syndrome: Syndrome::ACK, msn: 0 });
        self.hear(src_port, &Headers { aeth, ..Headers::new(bth) });
        (self.log.sent, self.engine.unexpected_ports())
    }
}

#[test]
fn any_port_is_heard_unless_that_is_asked_for() {
    let mut host = Host::new(Service::Rc, false);
    assert_eq!(host.message(ITS, PSN), (1, 0));
    assert_eq!(host.message(OTHER, PSN + 1), (2, 0));
}

#[test]
fn the_first_request_that_is_accepted_teaches_the_port() {
    for service in [Service::Rc, Service::Uc] {
        let mut host = Host::new(service, true);
        assert_eq!(host.message(ITS, PSN), (1, 0));
        assert_eq!(host.message(OTHER, PSN + 1), (1, 1), "{service:?}");
        assert_eq!(host.message(ITS, PSN + 1), (2, 1));
    }
}

#[test]
fn the_first_acknowledgement_that_is_accepted_teaches_the_port() {
    let mut host = Host::new(Service::Rc, true);
    host.send();
    assert_eq!(host.acknowledgement(ITS, PSN), (1, 0));
    host.send();
    assert_eq!(host.acknowledgement(OTHER, PSN + 1), (1, 1));
    assert_eq!(host.message(OTHER, PSN), (0, 2), "one port for requests and responses");
    assert_eq!(host.acknowledgement(ITS, PSN + 1), (2, 2));
}

#[test]
fn packets_that_are_stale_or_ahead_or_answer_nothing_teach_nothing() {
    let mut host = Host::new(Service::Rc, true);
    for psn in [PSN + 1, PSN - 1, PSN + 0x40_0000] {
        assert_eq!(host.message(OTHER, psn), (0, 0));
    }
    assert_eq!(host.acknowledgement(OTHER, PSN), (0, 0));
    assert_eq!(host.message(ITS, PSN), (1, 0), "packets from the peer's own port are accepted");
    assert_eq!(host.message(OTHER, PSN + 1), (1, 1));
}

#[test]
fn a_queue_pair_that_is_reset_or_gets_another_path_learns_anew() {
    let mut host = Host::new(Service::Rc, true);
    assert_eq!(host.message(ITS, PSN), (1, 0));
    host.modify(&AttrChange { state: Some(State::Reset), ..AttrChange::default() });
    host.connect();
    assert_eq!(host.message(OTHER, PSN), (2, 0));
    assert_eq!(host.message(ITS, PSN + 1), (2, 1));
    host.modify(&AttrChange { state: Some(State::Sqd), ..AttrChange::default() });
    let path = Some(Path { local: HERE, remote: PEER, ..Path::default() });
    host.modify(&AttrChange { path, ..AttrChange::default() });
    assert_eq!(host.message(ITS, PSN + 1), (3, 1));
}

#[test]
fn packets_without_a_port_are_accepted_and_teach_nothing() {
    for service in [Service::Rc, Service::Uc] {
        let mut host = Host::new(service, true);
        assert_eq!(host.message(None, PSN), (1, 0));
        assert_eq!(host.message(ITS, PSN + 1), (2, 0), "{service:?}");
        assert_eq!(host.message(None, PSN + 2), (3, 0), "{service:?}");
        assert_eq!(host.message(OTHER, PSN + 3), (3, 1), "{service:?}");
    }
    let mut host = Host::new(Service::Rc, true);
    for psn in PSN..PSN + 3 {
        host.send();
        let port = (psn == PSN + 1).then_some(ITS);
        assert_eq!(host.acknowledgement(port, psn), (psn - PSN + 1, 0));
    }
    assert_eq!(host.message(OTHER, PSN), (0, 1));
}

#[test]
fn datagrams_come_from_any_port() {
    let mut host = Host::new(Service::Ud, true);
    assert_eq!(host.message(ITS, 0), (1, 0));
    assert_eq!(host.message(OTHER, 1), (2, 0));
}

#[test]
fn what_an_unreliable_queue_pair_drops_teaches_nothing() {
    let rdma = |opcode, rkey| Headers {
        reth: Some(reth::Repr { va: 0, rkey, dmalen: 0 }),
        ..Headers::new(bth::Repr::new(opcode, 0, Psn::new(0x1234)))
    };
    let plain = |opcode| Headers::new(bth::Repr::new(opcode, 0, Psn::new(0x1234)));
    for mut headers in [
        plain(Opcode::UC_SEND_MIDDLE),
        plain(Opcode::UC_SEND_LAST),
        plain(Opcode::UC_RDMA_WRITE_LAST),
        rdma(Opcode::UC_RDMA_WRITE_ONLY, 0xdead_beef),
    ] {
        for writable in [Access::NONE, Access::REMOTE_WRITE] {
            let mut host = Host::new(Service::Uc, true);
            host.modify(&AttrChange { access: Some(writable), ..AttrChange::default() });
            headers.bth.dest_qp = host.qpn.0;
            host.hear(OTHER, &headers);
            assert_eq!(host.message(ITS, PSN), (1, 0), "{:?} locks the peer out", headers.bth.opcode);
            assert_eq!(host.message(OTHER, PSN + 1), (1, 1), "the peer's message teaches its port");
        }
    }
}

#[test]
fn an_unreliable_message_that_finds_no_receive_teaches_nothing() {
    let mut host = Host::new(Service::Uc, true);
    for n in 0..4 {
        host.message(ITS, PSN + n);
    }
    let path = Some(Path { local: HERE, remote: PEER, ..Path::default() });
    host.modify(&AttrChange { path, ..AttrChange::default() });
    assert_eq!(host.message(OTHER, PSN + 4), (4, 0));
    let wr = RecvWr { wr_id: 5, sges: &[host.sge] };
    host.engine.post_recv(host.qpn, &wr, NOW, &mut host.log).unwrap();
    assert_eq!(host.message(ITS, PSN + 5), (5, 0));
}
