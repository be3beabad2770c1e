//! Cases that random traffic does not cover, one test each, on the simulator.

use roce::engine::{
    Access, AttrChange, CqId, Event, Gid, MwType, Opcode, Payload, PostRefused, Qpn, RecvWr, SendFlags,
    SendOp, SendWr, Service, State, Status, Time, UdDestination,
};
use roce::sim::{Chance, EndpointId, Fabric, Link, Region, Rng, connected_attr};

const SECOND: u64 = 1_000_000_000;
const ALL: Access = Access(0x1f);

struct Pair {
    fabric: Fabric,
    a: EndpointId,
    b: EndpointId,
    qp_a: Qpn,
    qp_b: Qpn,
    source: Region,
    target: Region,
}

/// Two connected queue pairs. One side has 4096 bytes of value 7, the other side 4096 bytes of
/// value 0.
fn pair(link: Link) -> Pair {
    let mut fabric = Fabric::new(1);
    fabric.set_default_link(link);
    let (a, b) = (fabric.add_endpoint(), fabric.add_endpoint());
    let (qp_a, qp_b) = fabric.rc_pair(a, b).unwrap();
    let source = fabric.register(a, vec![7; 4096], ALL).unwrap();
    let target = fabric.register(b, vec![0; 4096], ALL).unwrap();
    Pair { fabric, a, b, qp_a, qp_b, source, target }
}

impl Pair {
    fn send(&mut self, wr_id: u64, op: SendOp, length: u32) {
        let payload = [self.source.sge(0, length)];
        let wr = signaled(wr_id, op, &payload);
        self.fabric.post_send(self.a, self.qp_a, &wr).unwrap();
    }

    fn receive(&mut self, wr_id: u64) {
        let wr = RecvWr { wr_id, sges: &[self.target.sge(0, 4096)] };
        self.fabric.post_recv(self.b, self.qp_b, &wr).unwrap();
    }

    fn settle(&mut self) {
        self.fabric.run_until_idle(100 * SECOND).unwrap();
    }

    fn ended(&mut self, at: EndpointId) -> Vec<(u64, Opcode, Status)> {
        let fabric = &mut self.fabric;
        std::iter::from_fn(|| fabric.poll(at, CqId(0))).map(|wc| (wc.wr_id, wc.opcode, wc.status)).collect()
    }

    fn events(&mut self, at: EndpointId) -> Vec<Event> {
        std::iter::from_fn(|| self.fabric.next_event(at)).collect()
    }

    fn state(&self, at: EndpointId, qpn: Qpn) -> State {
        self.fabric.endpoint(at).engine().query_qp(qpn).unwrap().0
    }
}

fn signaled<'a>(wr_id: u64, op: SendOp, sges: &'a [roce::engine::Sge]) -> SendWr<'a> {
    let flags = SendFlags { signaled: true, ..SendFlags::default() };
    SendWr { wr_id, op, flags, payload: Payload::Sges(sges), remote_srq: 0 }
}

const SEND: SendOp = SendOp::Send { imm: None };

#[test]
fn a_completion_queue_that_is_full_fails_its_queue_pair() {
    let mut p = pair(Link::default());
    p.fabric.limit_cq(p.b, CqId(0), 2);
    for n in 0..4 {
        p.receive(n);
        p.send(n, SEND, 8);
    }
    p.settle();
    assert_eq!(p.ended(p.b).len(), 2);
    let events = p.events(p.b);
    assert!(
        events.contains(&Event::CqError(CqId(0))) && events.contains(&Event::QpFatal(p.qp_b)),
        "{events:?}"
    );
    assert_eq!(p.state(p.b, p.qp_b), State::Err);
    // Messages without a completion at the receiver may have been acknowledged, but nothing after
    // them is certain.
    assert_eq!(p.state(p.a, p.qp_a), State::Err);
    assert_eq!(p.ended(p.a).len(), 4);
}

#[test]
fn memory_that_is_gone_at_the_responder_is_an_operational_error() {
    let mut p = pair(Link::default());
    let buffer = p.target.buffer;
    p.fabric.with(p.b, |engine, _, _| engine.memory().lose(buffer));
    let (addr, rkey) = (p.target.addr, p.target.key);
    p.send(1, SendOp::Write { addr, rkey, imm: None }, 8);
    p.settle();
    assert_eq!(p.ended(p.a), [(1, Opcode::Write, Status::RemoteOperation)]);
    assert_eq!(p.state(p.b, p.qp_b), State::Err);
}

#[test]
fn memory_that_is_gone_at_the_requester_is_a_protection_error() {
    for op in [SEND, SendOp::Read { addr: 0, rkey: 0 }] {
        let mut p = pair(Link::default());
        p.receive(9);
        let op = match op {
            SendOp::Read { .. } => SendOp::Read { addr: p.target.addr, rkey: p.target.key },
            op => op,
        };
        let buffer = p.source.buffer;
        p.fabric.with(p.a, |engine, _, _| engine.memory().lose(buffer));
        p.send(1, op, 8);
        p.settle();
        assert_eq!(p.ended(p.a)[0].2, Status::LocalProtection, "{op:?}");
        assert_eq!(p.state(p.a, p.qp_a), State::Err);
    }
}

#[test]
fn a_region_taken_back_while_it_is_read_ends_the_read() {
    let mut p = pair(Link { bandwidth: 1_000_000_000, ..Link::default() });
    let (addr, rkey) = (p.target.addr, p.target.key);
    p.send(1, SendOp::Read { addr, rkey }, 4096);
    // The request has arrived, and part of the response may have been sent. Nothing may be read
    // after the deregistration.
    p.fabric.run_until(Time(1_800));
    p.fabric.with(p.b, |engine, _, _| engine.dereg_mr(rkey)).unwrap();
    p.send(2, SendOp::Read { addr, rkey }, 4096);
    p.settle();
    let ended = p.ended(p.a);
    assert!(ended.iter().any(|(_, _, status)| *status == Status::RemoteAccess), "{ended:?}");
    assert_eq!(p.state(p.a, p.qp_a), State::Err);
}

#[test]
fn a_window_shows_what_it_is_bound_to_until_a_send_takes_it_back() {
    let mut p = pair(Link::default());
    let pd = p.fabric.endpoint(p.b).pd();
    let window = p.fabric.with(p.b, |engine, _, _| engine.alloc_mw(pd, MwType::Two)).unwrap();
    let new_rkey = window & !0xff | 0x5a;
    let bind = SendOp::Bind {
        window,
        new_rkey,
        lkey: p.target.key,
        addr: p.target.addr + 100,
        length: 50,
        access: Access::REMOTE_WRITE,
    };
    p.fabric.post_send(p.b, p.qp_b, &signaled(1, bind, &[])).unwrap();
    p.settle();
    assert_eq!(p.ended(p.b), [(1, Opcode::Bind, Status::Success)]);
    let write = |addr| SendOp::Write { addr, rkey: new_rkey, imm: None };
    p.receive(3);
    p.send(2, write(p.target.addr + 100), 50);
    p.send(3, SendOp::SendInvalidate { rkey: new_rkey }, 8);
    p.send(4, write(p.target.addr + 100), 50);
    p.settle();
    let statuses: Vec<Status> = p.ended(p.a).into_iter().map(|(_, _, status)| status).collect();
    assert_eq!(statuses, [Status::Success, Status::Success, Status::RemoteAccess]);
    assert_eq!(p.fabric.bytes(p.b, &p.target)[100..150], [7; 50]);
    assert_eq!(p.fabric.bytes(p.b, &p.target)[150], 0);
}

#[test]
fn a_queue_pair_that_was_reset_connects_again() {
    let mut p = pair(Link { loss: Chance::percent(10), ..Link::default() });
    for round in 0..5 {
        p.receive(round);
        p.send(round, SEND, 4096);
        p.settle();
        assert_eq!(p.ended(p.a), [(round, Opcode::Send, Status::Success)]);
        assert_eq!(p.ended(p.b), [(round, Opcode::Recv, Status::Success)]);
        p.receive(99);
        p.send(99, SEND, 8);
        let reset = AttrChange { state: Some(State::Reset), ..AttrChange::default() };
        p.fabric.modify_qp(p.a, p.qp_a, &reset).unwrap();
        p.fabric.modify_qp(p.b, p.qp_b, &reset).unwrap();
        let payload = [p.source.sge(0, 8)];
        let refused = p.fabric.post_send(p.a, p.qp_a, &signaled(0, SEND, &payload));
        assert_eq!(refused, Err(PostRefused::InvalidState));
        p.settle();
        let attr = roce::engine::Attr { sq_psn: 0xff_fffe, rq_psn: 1000 * round as u32, ..connected_attr() };
        p.fabric.connect((p.a, p.qp_a), (p.b, p.qp_b), &attr).unwrap();
        assert!(
            p.ended(p.a).is_empty() && p.ended(p.b).is_empty(),
            "a work request that was reset does not complete"
        );
    }
}

#[test]
fn a_datagram_to_a_group_arrives_at_each_member_once() {
    let mut fabric = Fabric::new(1);
    let eps: Vec<EndpointId> = (0..4).map(|_| fabric.add_endpoint()).collect();
    let mut group: Gid = [0; 16];
    group[10..].copy_from_slice(&[0xff, 0xff, 239, 1, 2, 3]);
    let attr = roce::engine::Attr { qkey: 5, ..connected_attr() };
    let mut qps = Vec::new();
    for &ep in &eps {
        let qp = fabric.create_qp(ep, &fabric.qp_init(ep, Service::Ud)).unwrap();
        fabric.ready(ep, qp, &attr).unwrap();
        let target = fabric.register(ep, vec![0; 200], Access::LOCAL_WRITE).unwrap();
        for wr_id in 0..2 {
            fabric.post_recv(ep, qp, &RecvWr { wr_id, sges: &[target.sge(0, 200)] }).unwrap();
        }
        qps.push((qp, target));
    }
    for member in 1..3 {
        fabric.with(eps[member], |engine, _, _| engine.attach_mcast(qps[member].0, group)).unwrap();
    }
    let path = roce::engine::Path { remote: group, ..fabric.path(eps[0], eps[1]) };
    let to = UdDestination { path, qpn: 0xff_ffff, qkey: 5 };
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Datagram { to, imm: Some(6) },
        flags: SendFlags::default(),
        payload: Payload::Inline(b"to all of you"),
        remote_srq: 0,
    };
    fabric.post_send(eps[0], qps[0].0, &wr).unwrap();
    fabric.run_until_idle(SECOND).unwrap();
    for (n, &ep) in eps.iter().enumerate() {
        let arrived = fabric.poll(ep, CqId(0)).map(|wc| (wc.imm, wc.byte_len, wc.src_qpn));
        let expected = (1..3).contains(&n).then_some((Some(6), 40 + 13, qps[0].0.0));
        assert_eq!(arrived, expected, "endpoint {n}");
        assert_eq!(fabric.poll(ep, CqId(0)), None);
    }
    assert_eq!(&fabric.bytes(eps[1], &qps[1].1)[40..53], b"to all of you");
    let not_member = |n: usize| fabric.endpoint(eps[n]).engine().dropped_datagrams().not_member;
    assert_eq!([1, 2, 3].map(not_member), [0, 0, 1], "only endpoint 3 has no member");
}

#[test]
fn datagrams_of_mixed_sizes_use_one_receive_each_and_are_all_accounted_for() {
    let mut fabric = Fabric::new(1);
    let [a, b] = [fabric.add_endpoint(), fabric.add_endpoint()];
    let attr = roce::engine::Attr { qkey: 5, ..connected_attr() };
    let [qp_a, qp_b] = [a, b].map(|ep| {
        let qp = fabric.create_qp(ep, &fabric.qp_init(ep, Service::Ud)).unwrap();
        fabric.ready(ep, qp, &attr).unwrap();
        qp
    });
    let source = fabric.register(a, vec![7; 1025], ALL).unwrap();
    let target = fabric.register(b, vec![0; 140], ALL).unwrap();
    for wr_id in 0..4 {
        fabric.post_recv(b, qp_b, &RecvWr { wr_id, sges: &[target.sge(0, 140)] }).unwrap();
    }
    let to = UdDestination { path: fabric.path(a, b), qpn: qp_b.0, qkey: 5 };
    let mut post = |wr_id, length, to| {
        let sges = [source.sge(0, length)];
        fabric.post_send(a, qp_a, &signaled(wr_id, SendOp::Datagram { to, imm: None }, &sges))
    };
    assert_eq!(post(0, 1025, to), Err(PostRefused::MessageTooLong), "the path MTU is 1024");
    // In order: a datagram too long for the receive, one that fits, one with a wrong queue key, one
    // too long, one that fits, and one without a receive.
    let wrong_key = UdDestination { qkey: 6, ..to };
    for (wr_id, length, to) in
        [(1, 1024, to), (2, 100, to), (3, 100, wrong_key), (4, 101, to), (5, 0, to), (6, 1, to)]
    {
        post(wr_id, length, to).unwrap();
    }
    fabric.run_until_idle(SECOND).unwrap();
    let arrived: Vec<_> = std::iter::from_fn(|| fabric.poll(b, CqId(0))).collect();
    let ended: Vec<_> = arrived.iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
    let (short, good) = (Status::LocalLength, Status::Success);
    assert_eq!(ended, [(0, short, 0), (1, good, 140), (2, short, 0), (3, good, 40)]);
    let dropped = fabric.endpoint(b).engine().dropped_datagrams();
    assert_eq!(
        (dropped.total, dropped.too_short, dropped.wrong_qkey, dropped.no_receive),
        (4, 2, 1, 1),
        "{dropped:?}"
    );
    let sent: Vec<_> = std::iter::from_fn(|| fabric.poll(a, CqId(0))).map(|wc| wc.status).collect();
    assert_eq!(sent, [Status::Success; 6]);
}

#[test]
fn a_smaller_or_larger_window_in_the_middle_loses_nothing() {
    let mut p = pair(Link { loss: Chance::percent(2), ..Link::default() });
    let mut rng = Rng::new(7);
    for n in 0..100 {
        p.receive(n);
        p.send(n, SEND, 4096);
        let window = rng.pick(&[1, 3_000, 20_000, 1 << 20]);
        p.fabric.with(p.a, |engine, _, _| engine.set_window(window));
        let until = p.fabric.now() + rng.below(30_000);
        p.fabric.run_until(until);
    }
    p.settle();
    let expected: Vec<u64> = (0..100).collect();
    let arrived: Vec<u64> = p.ended(p.b).into_iter().map(|(wr_id, _, _)| wr_id).collect();
    assert_eq!(arrived, expected);
    assert!(p.ended(p.a).iter().all(|(_, _, status)| *status == Status::Success));
    assert_eq!(p.fabric.endpoint(p.a).engine().in_flight(), 0);
}

#[test]
fn xrc_messages_arrive_in_the_shared_queue_that_they_name() {
    (0..20).for_each(xrc_messages);
}

fn xrc_messages(seed: u64) {
    let mut fabric = Fabric::new(seed);
    fabric.set_default_link(Link {
        loss: Chance::percent(5),
        duplicate: Chance::percent(5),
        reorder: Chance::percent(5),
        ..Link::default()
    });
    let (a, b) = (fabric.add_endpoint(), fabric.add_endpoint());
    let domain = roce::engine::XrcDomain(1);
    let pd = fabric.endpoint(b).pd();
    let mut srqs = Vec::new();
    for n in 0..2 {
        let srq = fabric
            .with(b, |engine, _, _| {
                let srq = engine.create_srq(pd, 64, 1, Some(domain))?;
                engine.set_srq_cq(srq, CqId(10 + n)).map(|()| srq)
            })
            .unwrap();
        srqs.push(srq);
    }
    let sender = fabric.create_qp(a, &fabric.qp_init(a, Service::XrcInitiator)).unwrap();
    let init = roce::engine::QpInit { xrc_domain: Some(domain), ..fabric.qp_init(b, Service::XrcTarget) };
    let target = fabric.create_qp(b, &init).unwrap();
    fabric.connect((a, sender), (b, target), &connected_attr()).unwrap();
    let mut rng = Rng::new(seed);
    let mut bytes = vec![0; 20_000];
    rng.fill(&mut bytes);
    let source = fabric.register(a, bytes.clone(), Access::NONE).unwrap();
    let mut sent = [Vec::new(), Vec::new()];
    let mut landed = [Vec::new(), Vec::new()];
    for wr_id in 0..40u64 {
        let which = rng.below(2) as usize;
        let length = rng.below(5_000);
        let start = rng.below(15_000);
        let place = fabric.register(b, vec![0; 5_000], Access::LOCAL_WRITE).unwrap();
        let recv = RecvWr { wr_id, sges: &[place.sge(0, 5_000)] };
        fabric.post_srq_recv(b, srqs[which], &recv).unwrap();
        let sges = [source.sge(start, length as u32)];
        let wr = SendWr { remote_srq: srqs[which].0, ..signaled(wr_id, SEND, &sges) };
        fabric.post_send(a, sender, &wr).unwrap();
        sent[which].push((wr_id, bytes[start as usize..(start + length) as usize].to_vec()));
        landed[which].push(place);
    }
    fabric.run_until_idle(100 * SECOND).unwrap();
    for which in 0..2 {
        for (n, (wr_id, message)) in sent[which].iter().enumerate() {
            let wc = fabric.poll(b, CqId(10 + which as u32)).expect("a message");
            assert_eq!((wc.wr_id, wc.status, wc.byte_len as usize), (*wr_id, Status::Success, message.len()));
            assert_eq!(fabric.bytes(b, &landed[which][n])[..message.len()], message[..]);
        }
        assert_eq!(fabric.poll(b, CqId(10 + which as u32)), None);
    }
}

#[test]
fn packets_of_noise_disturb_nothing() {
    let mut p = pair(Link::default());
    let mut rng = Rng::new(11);
    for n in 0..300 {
        if n % 10 == 0 {
            p.receive(n);
            p.send(n, SEND, 3000);
        }
        // Most noise packets have a BTH that names the queue pair, so that more checks are reached.
        let mut noise = vec![0; rng.below(120) as usize];
        rng.fill(&mut noise);
        if noise.len() >= 12 && !rng.chance(Chance::percent(20)) {
            noise[0] &= 0x1f;
            noise[1] &= 0x30;
            noise[2..4].fill(0xff);
            noise[5..8].copy_from_slice(&p.qp_b.0.to_be_bytes()[1..]);
            // The sequence numbers are far from the expected ones. Otherwise, noise could be a
            // valid packet from the peer.
            noise[9] = 0x40;
        }
        p.fabric.inject(p.a, p.b, &noise);
        let until = p.fabric.now() + 3_000;
        p.fabric.run_until(until);
    }
    p.settle();
    assert!(p.ended(p.a).iter().all(|(_, _, status)| *status == Status::Success));
    assert_eq!(p.ended(p.b).len(), 30);
}
