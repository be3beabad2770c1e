//! Datagrams too long to send, datagrams too long for the receive, and the counters of dropped
//! datagrams.

use crate::common::*;
use provider_soft::Counters;
use verbs::{PostReason, QpType, SendFlags, SendOp, SendWr, UdAddr, WcStatus};

/// Returns two datagram queue pairs on separate devices.
fn datagram_pair() -> (End, End) {
    let (a, b, shape) = (open(), open(), Shape::for_type(QpType::UD));
    let connect = |context| End::new(context, &shape).connect(&shape, gid(context), NO_PEER);
    (connect(&a), connect(&b))
}

/// Returns the counters of dropped datagrams, without the other counters.
fn dropped(counters: Counters) -> [u64; 7] {
    [
        counters.datagrams_dropped,
        counters.datagrams_no_receive,
        counters.datagrams_too_short,
        counters.datagrams_wrong_qkey,
        counters.datagrams_unknown_qpn,
        counters.datagrams_not_member,
        counters.datagrams_other,
    ]
}

#[test]
fn a_datagram_beyond_the_mtu_of_the_port_is_refused_when_it_is_posted() {
    let (mut a, b) = datagram_pair();
    let mtu = a.context.query_port(PORT).unwrap().active_mtu.bytes().unwrap();
    let arena = Arena::new(&a.pd, mtu as usize + 1);
    let ah = a.pd.create_ah(&path(gid(&b.context))).unwrap();
    let to = UdAddr { av: ah.av(), remote_qpn: b.qp.qp_num(), remote_qkey: QKEY };
    let op = SendOp::UdSend { to };
    let sge = [arena.sge(0..mtu as usize + 1)];
    let error =
        post_send(&mut a.qp, &[SendWr { wr_id: 1, op, sge: &sge, flags: SendFlags::SIGNALED }]).unwrap_err();
    let given = u64::from(mtu) + 1;
    assert_eq!((error.accepted, error.reason), (0, PostReason::DatagramTooLong { given, max: mtu }));
    assert_eq!(a.context.raw().counters().sent, 0);
    send(&mut a.qp, 2, op, &[arena.sge(0..mtu as usize)]);
    wait_ok(&mut a.cq, 2);
    assert_eq!(a.context.raw().counters().sent, 1, "the queue goes on with the longest datagram");
}

#[test]
fn a_receive_that_is_too_short_for_a_datagram_does_not_block_the_queue() {
    let (mut a, mut b) = datagram_pair();
    let (from, into) = (Arena::new(&a.pd, 100), Arena::new(&b.pd, 200));
    let ah = a.pd.create_ah(&path(gid(&b.context))).unwrap();
    let to = UdAddr { av: ah.av(), remote_qpn: b.qp.qp_num(), remote_qkey: QKEY };
    // The usual mistake: enough space for the payload, but not for the 40 bytes before it.
    recv(&mut b.qp, 1, &[into.sge(0..100)]);
    recv(&mut b.qp, 2, &[into.sge(0..140)]);
    for wr_id in [1, 2] {
        send(&mut a.qp, wr_id, SendOp::UdSend { to }, &[from.sge(0..100)]);
        wait_ok(&mut a.cq, wr_id);
    }
    wait_status(&mut b.cq, 1, WcStatus::LOC_LEN_ERR);
    assert_eq!(wait_ok(&mut b.cq, 2).byte_len, 140);
    assert_eq!(dropped(b.context.raw().counters()), [1, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn counters_tell_why_datagrams_were_dropped() {
    let (mut a, mut b) = datagram_pair();
    let (from, into) = (Arena::new(&a.pd, 8), Arena::new(&b.pd, 48));
    let ah = a.pd.create_ah(&path(gid(&b.context))).unwrap();
    let to = UdAddr { av: ah.av(), remote_qpn: b.qp.qp_num(), remote_qkey: QKEY };
    // The upper 8 bits select the process at an address.
    let unknown = UdAddr { remote_qpn: b.qp.qp_num() ^ 0x8000, ..to };
    let wrong_key = UdAddr { remote_qkey: QKEY + 1, ..to };
    for (wr_id, to) in [(1, to), (2, wrong_key), (3, wrong_key), (4, unknown)] {
        send(&mut a.qp, wr_id, SendOp::UdSend { to }, &[from.sge(0..8)]);
        wait_ok(&mut a.cq, wr_id);
    }
    eventually("all of them are dropped", || {
        assert!(b.cq.poll().next().is_none());
        b.context.raw().counters().datagrams_dropped == 4
    });
    assert_eq!(dropped(b.context.raw().counters()), [4, 1, 0, 2, 1, 0, 0]);
    assert_eq!(b.context.query_port(PORT).unwrap().qkey_viol_cntr, 2);
    recv(&mut b.qp, 5, &[into.sge(0..48)]);
    send(&mut a.qp, 5, SendOp::UdSend { to }, &[from.sge(0..8)]);
    assert_eq!(wait_ok(&mut b.cq, 5).byte_len, 48);
    assert_eq!(dropped(b.context.raw().counters()), [4, 1, 0, 2, 1, 0, 0]);
}
