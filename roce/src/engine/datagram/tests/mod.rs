//! Handwritten datagrams.

mod infiniband;
mod special;

use alloc::vec;

use super::*;
use crate::engine::multicast::MULTICAST_QPN;
use crate::engine::testing::{ALL, HERE, Host, Mr, RECV_CQ, THERE, connected, to};
use crate::engine::{Access, DroppedDatagrams, Event, QpInit, Qpn, RecvWr, Refused, State};
use crate::wire::{Opcode, Psn, bth, deth, imm};

const QKEY: u32 = 0x1111;

struct Fixture {
    host: Host,
    qpn: Qpn,
    mr: Mr,
}

impl Fixture {
    fn new() -> Self {
        let mut host = Host::new();
        let init = host.init(Service::Ud);
        let qpn = host.qp(&init, &connected());
        let mr = host.register(4096, ALL);
        Self { host, qpn, mr }
    }

    fn headers(&self, payload: &[u8]) -> Headers {
        let mut bth = bth::Repr::new(Opcode::UD_SEND_ONLY, self.qpn.0, Psn::new(5));
        bth.pad_cnt = pad_for(payload.len());
        Headers { deth: Some(deth::Repr { qkey: QKEY, src_qp: 0x333 }), ..Headers::new(bth) }
    }

    fn post(&mut self, wr_id: u64, length: u32) {
        let sge = self.mr.sge(0, length);
        self.host.post_recv(self.qpn, wr_id, &[sge]);
    }

    fn dropped(&self) -> DroppedDatagrams {
        *self.host.engine.dropped_datagrams()
    }

    fn received(&mut self, length: usize) -> Vec<u8> {
        self.host.bytes(&self.mr)[..length].to_vec()
    }
}

fn arrival() -> Arrival {
    Arrival { remote: THERE, local: HERE, traffic_class: 0x20, hop_limit: 61, sl: 3, ..Arrival::default() }
}

#[test]
fn a_datagram_comes_behind_the_ipv4_header() {
    let mut f = Fixture::new();
    f.post(1, 64);
    let mut headers = f.headers(&[9; 6]);
    headers.bth.opcode = Opcode::UD_SEND_ONLY_WITH_IMMEDIATE;
    headers.bth.se = true;
    headers.imm = Some(imm::Repr { imm_data: 0x55 });
    f.host.arrive_from(&arrival(), &headers, &[9; 6]);
    let (cq, done) = f.host.log.completions[0];
    assert_eq!((cq, done.status, done.byte_len, done.src_qpn), (RECV_CQ, Status::Success, 46, 0x333));
    assert_eq!((done.grh, done.imm, done.solicited, done.sl), (true, Some(0x55), true, 3));
    let received = f.received(47);
    assert_eq!(received[..20], [0; 20]);
    // The total length is 64: IPv4 header 20, UDP header 8, transport headers 24, payload 6, pad 2,
    // ICRC 4.
    assert_eq!(received[20..30], [0x45, 0x20, 0, 64, 0, 0, 0x40, 0, 61, 17]);
    assert_eq!(received[32..40], [192, 0, 2, 2, 192, 0, 2, 1]);
    let sum: u32 = received[20..40].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum");
    assert_eq!(received[40..], [9, 9, 9, 9, 9, 9, 46]);
    assert!(f.host.sent().is_empty());
}

#[test]
fn a_datagram_comes_behind_the_ipv6_header() {
    let mut f = Fixture::new();
    f.post(1, 64);
    let local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let remote = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    let headers = f.headers(&[9; 4]);
    f.host.arrive_from(&Arrival { local, remote, ..arrival() }, &headers, &[9; 4]);
    let received = f.received(44);
    assert_eq!(received[..8], [0x62, 0, 0, 0, 0, 36, 17, 61]);
    assert_eq!(
        (&received[8..24], &received[24..40], &received[40..]),
        (&remote[..], &local[..], &[9; 4][..])
    );
}

#[test]
fn what_is_not_for_it_is_dropped() {
    type Change = fn(&mut Headers);
    let wrong: [(&str, Change); 5] = [
        ("queue key", |headers| {
            headers.deth = headers.deth.map(|deth| deth::Repr { qkey: QKEY ^ 1, ..deth });
        }),
        ("partition", |headers| headers.bth.pkey = 0xfffe),
        ("service", |headers| headers.bth.opcode = Opcode::RC_SEND_ONLY),
        ("operation", |headers| headers.bth.opcode = Opcode(0x60)),
        ("pad", |headers| headers.bth.pad_cnt = 3),
    ];
    let mut f = Fixture::new();
    f.post(1, 64);
    for (name, change) in wrong {
        let mut headers = f.headers(&[1; 4]);
        change(&mut headers);
        f.host.arrive(&headers, &[1; 4]);
        assert!(f.host.log.completions.is_empty(), "{name}");
    }
    let headers = f.headers(&[1; 4]);
    f.host.arrive(&headers, &[1; 4]);
    assert_eq!(f.host.completions().len(), 1);
    assert!(f.host.sent().is_empty() && f.host.events().is_empty());
}

#[test]
fn without_a_receive_it_is_dropped() {
    let mut f = Fixture::new();
    let headers = f.headers(&[1; 4]);
    f.host.arrive(&headers, &[1; 4]);
    assert!(f.host.log.completions.is_empty() && f.host.log.retired_recvs == 0);
    assert_eq!(f.dropped(), DroppedDatagrams { total: 1, no_receive: 1, ..DroppedDatagrams::default() });
    f.post(1, 44);
    f.host.arrive(&headers, &[1; 4]);
    assert_eq!(f.host.completions()[0].status, Status::Success, "the next one arrives");
}

#[test]
fn a_receive_that_is_too_short_fails_alone_and_does_not_block_the_queue() {
    let mut f = Fixture::new();
    f.post(1, 43);
    f.post(2, 44);
    let headers = f.headers(&[1; 4]);
    f.host.arrive(&headers, &[1; 4]);
    f.host.arrive(&headers, &[1; 4]);
    let done: Vec<_> = f.host.completions().iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(done, [(1, Status::LocalLength), (2, Status::Success)]);
    assert_eq!((f.host.state(f.qpn), f.host.log.retired_recvs), (State::Rts, 2));
    assert_eq!(f.dropped(), DroppedDatagrams { total: 1, too_short: 1, ..DroppedDatagrams::default() });
}

#[test]
fn an_empty_datagram_needs_a_receive_of_40_bytes() {
    let mut f = Fixture::new();
    f.post(1, 39);
    f.post(2, 40);
    let headers = f.headers(&[]);
    f.host.arrive(&headers, &[]);
    f.host.arrive(&headers, &[]);
    let done: Vec<_> = f.host.completions().iter().map(|done| (done.status, done.byte_len)).collect();
    assert_eq!(done, [(Status::LocalLength, 0), (Status::Success, 40)]);
}

#[test]
fn every_dropped_datagram_is_counted_by_its_reason() {
    let mut f = Fixture::new();
    f.post(1, 64);
    let good = f.headers(&[1; 4]);
    let group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    let to = |dest_qp| Headers { bth: bth::Repr { dest_qp, ..good.bth }, ..good };
    let mut expected = DroppedDatagrams::default();

    let wrong_key = Headers { deth: Some(deth::Repr { qkey: QKEY ^ 1, src_qp: 0x333 }), ..good };
    f.host.arrive(&wrong_key, &[1; 4]);
    (expected.total, expected.wrong_qkey) = (1, 1);
    assert_eq!(f.dropped(), expected);

    // Number 1 is well known, but no queue pair has it. With this seed, no queue pair has number
    // 0xabcdef.
    f.host.arrive(&to(0xab_cdef), &[1; 4]);
    f.host.arrive(&to(1), &[1; 4]);
    (expected.total, expected.unknown_qpn) = (3, 2);
    assert_eq!(f.dropped(), expected);

    f.host.arrive_from(&Arrival { local: group, ..arrival() }, &to(MULTICAST_QPN), &[1; 4]);
    (expected.total, expected.not_member) = (4, 1);
    assert_eq!(f.dropped(), expected);

    // If a member drops the datagram, it is counted under that member's drop reason.
    f.host.engine.attach_mcast(f.qpn, group).unwrap();
    let wrong_group_key = Headers { deth: wrong_key.deth, ..to(MULTICAST_QPN) };
    f.host.arrive_from(&Arrival { local: group, ..arrival() }, &wrong_group_key, &[1; 4]);
    (expected.total, expected.wrong_qkey) = (5, 2);
    assert_eq!(f.dropped(), expected);

    let limited = Headers { bth: bth::Repr { pkey: 0x7ffe, ..good.bth }, ..good };
    f.host.arrive(&limited, &[1; 4]);
    (expected.total, expected.other) = (6, 1);
    assert_eq!(f.dropped(), expected);

    f.host.arrive(&good, &[1; 4]);
    assert_eq!(f.host.completions().len(), 1);
    assert_eq!(f.dropped(), expected, "a datagram that arrives is not counted");
}

#[test]
fn packets_of_connected_services_are_no_dropped_datagrams() {
    let mut f = Fixture::new();
    let bth = bth::Repr::new(Opcode::RC_SEND_ONLY, 0xab_cdef, Psn::new(5));
    f.host.arrive(&Headers::new(bth), &[]);
    assert_eq!(f.dropped(), DroppedDatagrams::default());
}

#[test]
fn a_receive_of_a_shared_queue_that_is_too_short_fails_alone() {
    let mut host = Host::new();
    let srq = host.engine.create_srq(host.pd, 4, 2, None).unwrap();
    let init = QpInit { srq: Some(srq), ..host.init(Service::Ud) };
    let (qpn, mr) = (host.qp(&init, &connected()), host.register(4096, ALL));
    let mut f = Fixture { host, qpn, mr };
    for (wr_id, length) in [(1, 43), (2, 44)] {
        let sges = [f.mr.sge(0, length)];
        f.host.engine.post_srq_recv(srq, &RecvWr { wr_id, sges: &sges }).unwrap();
    }
    let headers = f.headers(&[1; 4]);
    f.host.arrive(&headers, &[1; 4]);
    f.host.arrive(&headers, &[1; 4]);
    let done: Vec<_> = f.host.completions().iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(done, [(1, Status::LocalLength), (2, Status::Success)]);
    f.host.modify(qpn, &to(State::Err));
    assert_eq!(f.host.events(), [Event::LastWqeReached(qpn)]);
}

#[test]
fn a_receive_that_may_not_be_written_fails_the_queue_pair() {
    let mut f = Fixture::new();
    f.mr = f.host.register(64, Access::NONE);
    f.post(1, 64);
    f.post(2, 64);
    let headers = f.headers(&[1; 4]);
    f.host.arrive(&headers, &[1; 4]);
    let done: Vec<_> = f.host.completions().iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(done, [(1, Status::LocalProtection), (2, Status::Flushed)]);
    assert_eq!(f.host.state(f.qpn), State::Err);
}

#[test]
fn every_member_of_a_group_hears_it_and_nobody_else() {
    let mut f = Fixture::new();
    let group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let init = f.host.init(Service::Ud);
    let (member, other) = (f.host.qp(&init, &connected()), f.host.qp(&init, &connected()));
    for qpn in [f.qpn, member, other] {
        let sge = f.mr.sge(0, 64);
        f.host.post_recv(qpn, 7, &[sge]);
    }
    for qpn in [f.qpn, member, member] {
        f.host.engine.attach_mcast(qpn, group).unwrap();
    }
    let mut headers = f.headers(&[1; 4]);
    headers.bth.dest_qp = MULTICAST_QPN;
    f.host.arrive_from(&Arrival { local: group, ..arrival() }, &headers, &[1; 4]);
    let heard: Vec<_> = f.host.completions().iter().map(|done| done.qpn).collect();
    assert_eq!(heard, [f.qpn, member]);
    f.host.engine.detach_mcast(member, group).unwrap();
    assert_eq!(f.host.engine.detach_mcast(member, group), Err(Refused::NoSuchObject));
    f.host.engine.destroy_qp(f.qpn).unwrap();
    f.host.arrive_from(&Arrival { local: group, ..arrival() }, &headers, &[1; 4]);
    assert!(f.host.completions().is_empty());
    assert!(matches!(f.host.engine.attach_mcast(member, HERE), Err(Refused::Invalid(_))));
}

#[test]
fn the_largest_datagram_fits_and_a_larger_one_is_dropped() {
    let mut f = Fixture::new();
    f.mr = f.host.register(8192, ALL);
    f.post(1, 8192);
    let payload = vec![1; 4100];
    let headers = f.headers(&payload);
    f.host.arrive(&headers, &payload);
    assert!(f.host.log.completions.is_empty());
    f.host.arrive(&headers, &payload[..4096]);
    assert_eq!(f.host.completions()[0].byte_len, 4136);
}
