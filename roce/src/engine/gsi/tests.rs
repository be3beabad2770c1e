//! Management datagrams built by hand or exchanged between two engines of a fabric.

use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::engine::testing::{HERE, Host, THERE, connected};
use crate::engine::{DroppedDatagrams, Path, QpInit, SendFlags, SendOp, SendWr, Service, UdDestination};
use crate::engine::{Payload, Urgency};
use crate::sim::{Chance, Fabric, Link};

const SECOND: u64 = 1_000_000_000;

fn open() -> Host {
    let mut host = Host::new();
    host.engine.open_gsi().unwrap();
    host
}

fn headers() -> Headers {
    let bth = bth::Repr::new(Opcode::UD_SEND_ONLY, GSI_QPN, Psn::new(5));
    Headers { deth: Some(deth::Repr { qkey: GSI_QKEY, src_qp: GSI_QPN }), ..Headers::new(bth) }
}

fn destination() -> MadDestination {
    let path = Path { local: HERE, remote: THERE, traffic_class: 0x20, hop_limit: 64, ..Path::default() };
    MadDestination { path, qpn: GSI_QPN, pkey: DEFAULT_PKEY }
}

fn dropped(host: &Host) -> DroppedDatagrams {
    *host.engine.dropped_datagrams()
}

#[test]
fn a_mad_arrives_with_its_addresses() {
    let mut host = open();
    let arrival = Arrival {
        remote: THERE,
        local: HERE,
        traffic_class: 0x20,
        hop_limit: 61,
        sl: 3,
        ..Arrival::default()
    };
    let limited = bth::Repr { pkey: 0x7fff, ..headers().bth };
    host.arrive_from(&arrival, &Headers { bth: limited, ..headers() }, &[7; MAD_LEN]);
    let received = host.log.mads.pop().expect("a MAD");
    assert_eq!((received.mad, received.src_qpn, received.pkey), ([7; MAD_LEN], 1, 0x7fff));
    let from = received.arrival;
    assert_eq!((from.remote, from.local), (THERE, HERE));
    assert_eq!((from.traffic_class, from.hop_limit, from.sl), (0x20, 61, 3));
    assert_eq!(dropped(&host), DroppedDatagrams::default());
}

#[test]
fn a_mad_leaves_as_one_packet_from_number_1_with_its_queue_key() {
    let mut host = open();
    host.engine.send_mad(&destination(), &[7; MAD_LEN]).unwrap();
    host.engine.send_mad(&MadDestination { qpn: 0x1234, ..destination() }, &[8; MAD_LEN]).unwrap();
    let sent = host.sent();
    let [(first, bytes), (second, _)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((first.bth.opcode, first.bth.dest_qp, first.bth.pkey), (Opcode::UD_SEND_ONLY, 1, 0xffff));
    assert_eq!(first.deth, Some(deth::Repr { qkey: 0x8001_0000, src_qp: 1 }));
    assert_eq!(bytes, &[7; MAD_LEN]);
    assert_eq!((second.bth.dest_qp, second.bth.psn), (0x1234, first.bth.psn.next()));
}

#[test]
fn what_is_no_mad_of_this_partition_is_dropped_and_counted() {
    type Change = fn(&mut Headers, &mut Vec<u8>);
    let wrong: [(&str, Change); 9] = [
        ("short", |_, payload| payload.truncate(252)),
        ("empty", |_, payload| payload.clear()),
        ("long", |_, payload| payload.resize(260, 0)),
        ("of the largest packet", |_, payload| payload.resize(4096, 0)),
        ("of another partition", |headers, _| headers.bth.pkey = 0xfffe),
        ("of no partition", |headers, _| headers.bth.pkey = 0x8000),
        ("padded", |headers, _| headers.bth.pad_cnt = 1),
        ("with immediate data", |headers, _| headers.bth.opcode = Opcode::UD_SEND_ONLY_WITH_IMMEDIATE),
        ("of a connected service", |headers, _| headers.bth.opcode = Opcode::RC_SEND_ONLY),
    ];
    for (name, change) in wrong {
        let mut host = open();
        let (mut headers, mut payload) = (headers(), vec![1; MAD_LEN]);
        change(&mut headers, &mut payload);
        host.arrive(&headers, &payload);
        assert!(host.log.mads.is_empty(), "{name}");
        assert_eq!(dropped(&host), DroppedDatagrams { total: 1, other: 1, ..Default::default() }, "{name}");
    }
    let mut host = open();
    for qkey in [0, 1, 0x8001_0001, u32::MAX] {
        host.arrive(&Headers { deth: Some(deth::Repr { qkey, src_qp: 1 }), ..headers() }, &[1; MAD_LEN]);
    }
    assert!(host.log.mads.is_empty());
    assert_eq!(dropped(&host), DroppedDatagrams { total: 4, wrong_qkey: 4, ..Default::default() });
}

#[test]
fn a_flood_is_dropped_and_counted_where_the_caller_has_no_room() {
    let mut host = open();
    host.log.full = true;
    for _ in 0..1000 {
        host.arrive(&headers(), &[1; MAD_LEN]);
    }
    assert_eq!(dropped(&host), DroppedDatagrams { total: 1000, mads_full: 1000, ..Default::default() });
    host.log.full = false;
    host.arrive(&headers(), &[1; MAD_LEN]);
    assert_eq!(host.log.mads.len(), 1);
}

#[test]
fn without_the_interface_number_1_does_not_exist() {
    let mut host = Host::new();
    assert_eq!(host.engine.send_mad(&destination(), &[1; MAD_LEN]), Err(PostRefused::NoSuchQueue));
    host.arrive(&headers(), &[1; MAD_LEN]);
    host.engine.open_gsi().unwrap();
    host.engine.send_mad(&destination(), &[1; MAD_LEN]).unwrap();
    host.engine.close_gsi();
    host.arrive(&headers(), &[1; MAD_LEN]);
    assert_eq!(dropped(&host), DroppedDatagrams { total: 2, unknown_qpn: 2, ..Default::default() });
    assert!(host.log.mads.is_empty());
    assert!(host.sent().is_empty(), "what waited was dropped");
    // Queue pair number 0 never addresses the general services interface.
    host.engine.open_gsi().unwrap();
    let to_0 = bth::Repr { dest_qp: 0, ..headers().bth };
    host.arrive(&Headers { bth: to_0, ..headers() }, &[1; MAD_LEN]);
    assert_eq!((host.log.mads.len(), dropped(&host).unknown_qpn), (0, 3));
}

#[test]
fn the_interface_and_a_queue_pair_of_its_number_exclude_each_other() {
    let mut host = open();
    assert_eq!(host.engine.open_gsi(), Err(Refused::Busy));
    let init = QpInit { well_known: Some(1), ..host.init(Service::Ud) };
    assert_eq!(host.engine.create_qp(&init), Err(Refused::Busy));
    let other = QpInit { well_known: Some(0), ..init };
    assert!(host.engine.create_qp(&other).is_ok());
    host.engine.close_gsi();
    let qpn = host.engine.create_qp(&init).unwrap();
    assert_eq!(host.engine.open_gsi(), Err(Refused::Busy));
    host.engine.destroy_qp(qpn).unwrap();
    assert_eq!(host.engine.open_gsi(), Ok(()));
}

#[test]
fn the_queue_of_mads_to_send_is_bounded() {
    let mut host = open();
    for _ in 0..MAX_WAITING {
        host.engine.send_mad(&destination(), &[1; MAD_LEN]).unwrap();
    }
    assert_eq!(host.engine.send_mad(&destination(), &[1; MAD_LEN]), Err(PostRefused::QueueFull));
    assert!(host.transmit(Urgency::Now).is_some());
    host.engine.send_mad(&destination(), &[2; MAD_LEN]).unwrap();
    let sent = host.sent();
    assert_eq!(sent.len(), MAX_WAITING);
    assert_eq!(sent.last().unwrap().1, [2; MAD_LEN]);
}

#[test]
fn a_mad_that_does_not_fit_the_buffer_is_lost_and_the_next_leaves() {
    let mut host = open();
    host.engine.send_mad(&destination(), &[1; MAD_LEN]).unwrap();
    host.engine.send_mad(&destination(), &[2; MAD_LEN]).unwrap();
    let mut short = [0; 64];
    for _ in 0..2 {
        assert!(host.engine.poll_transmit(host.now, Urgency::Now, &mut short, &mut host.log).is_none());
    }
    host.engine.send_mad(&destination(), &[3; MAD_LEN]).unwrap();
    assert_eq!(host.sent()[0].1, [3; MAD_LEN]);
}

#[test]
fn mads_and_queue_pairs_take_turns() {
    let mut host = open();
    let init = host.init(Service::Ud);
    let qpn = host.qp(&init, &connected());
    let path = destination().path;
    let to = UdDestination { path, qpn: 5, qkey: 1 };
    for n in 0..3 {
        host.engine.send_mad(&destination(), &[n; MAD_LEN]).unwrap();
        let op = SendOp::Datagram { to, imm: None };
        let payload = Payload::Inline(&[1]);
        let wr = SendWr { wr_id: 0, op, flags: SendFlags::default(), payload, remote_srq: 0 };
        host.engine.post_send(qpn, &wr, host.now, &mut host.log).unwrap();
    }
    let lengths: Vec<_> = host.sent().iter().map(|(_, payload)| payload.len()).collect();
    // The queue pair sends a burst of three packets between two MADs.
    assert_eq!(lengths, [256, 1, 1, 1, 256, 256]);
}

#[test]
fn packets_that_peers_cause_do_not_hold_a_mad_back() {
    let mut host = open();
    let init = host.init(Service::Rc);
    let qpn = host.qp(&init, &connected());
    let key = host.register(4096, crate::engine::testing::ALL);
    let read = bth::Repr::new(Opcode::RC_RDMA_READ_REQUEST, qpn.0, Psn::new(0xff_fffe));
    let reth = Some(crate::wire::reth::Repr { va: key.addr, rkey: key.key, dmalen: 4096 });
    host.arrive(&Headers { reth, ..Headers::new(read) }, &[]);
    host.engine.send_mad(&destination(), &[9; MAD_LEN]).unwrap();
    let (headers, _) = host.transmit(Urgency::Now).unwrap();
    assert_eq!(headers.bth.opcode, Opcode::UD_SEND_ONLY);
    assert_eq!(host.sent().len(), 16, "the response follows");
}

#[test]
fn mads_cross_a_fabric_both_ways() {
    let mut fabric = Fabric::new(7);
    let (a, b) = (fabric.add_endpoint(), fabric.add_endpoint());
    for id in [a, b] {
        fabric.open_gsi(id).unwrap();
    }
    fabric.send_mad(a, b, &[1; MAD_LEN]).unwrap();
    fabric.run_until_idle(SECOND).unwrap();
    let received = fabric.poll_mad(b).expect("it arrived");
    assert_eq!((received.mad, received.arrival.remote), ([1; MAD_LEN], fabric.gid(a)));
    assert!(fabric.poll_mad(b).is_none() && fabric.poll_mad(a).is_none());
    fabric.send_mad(b, a, &[2; MAD_LEN]).unwrap();
    fabric.run_until_idle(SECOND).unwrap();
    assert_eq!(fabric.poll_mad(a).map(|received| received.mad), Some([2; MAD_LEN]));
}

#[test]
fn mads_are_lost_and_doubled_as_the_link_does_and_a_flood_is_bounded() {
    let mut fabric = Fabric::new(3);
    fabric.set_default_link(Link {
        loss: Chance::percent(10),
        duplicate: Chance::percent(10),
        ..Link::default()
    });
    let (a, b) = (fabric.add_endpoint(), fabric.add_endpoint());
    for id in [a, b] {
        fabric.open_gsi(id).unwrap();
    }
    for n in 0..10_000_u32 {
        let mut mad = [0; MAD_LEN];
        mad[..4].copy_from_slice(&n.to_be_bytes());
        fabric.send_mad(a, b, &mad).unwrap();
        fabric.run_until_idle(SECOND).unwrap();
    }
    let arrived = core::iter::from_fn(|| fabric.poll_mad(b)).count() as u64;
    let dropped = fabric.endpoint(b).engine().dropped_datagrams().mads_full;
    assert_eq!(arrived, 512, "the endpoint keeps no more");
    assert!((9_500..10_500).contains(&(arrived + dropped)), "{arrived} and {dropped}");
}
