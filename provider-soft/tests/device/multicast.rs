//! Multicast between soft devices of this host.

use crate::common::*;
use verbs::{Cause, Errno, Gid, Qp, QpType, SendOp, UdAddr, state};

/// Returns a multicast group that no other test of this process uses, and probably no other process
/// either.
fn group(test: u8) -> Gid {
    let [.., high, low] = std::process::id().to_be_bytes();
    std::net::Ipv4Addr::new(239, test, high, low).into()
}

fn datagram_end() -> End {
    let (context, shape) = (open(), Shape::for_type(QpType::UD));
    End::new(&context, &shape).connect(&shape, gid(&context), NO_PEER)
}

/// Sends an 8-byte datagram with immediate data to a queue pair number at an address.
fn send_to(from: &mut End, dgid: Gid, remote_qpn: u32, imm_data: u32) {
    let (arena, ah) = (Arena::new(&from.pd, 8), from.pd.create_ah(&path(dgid)).unwrap());
    let to = UdAddr { av: ah.av(), remote_qpn, remote_qkey: QKEY };
    send(&mut from.qp, u64::from(imm_data), SendOp::UdSendWithImm { to, imm_data }, &[arena.sge(0..8)]);
    wait_ok(&mut from.cq, imm_data.into());
}

#[test]
fn each_member_receives_a_datagram_once_those_of_the_sender_included() {
    let group = group(1);
    let (mut a, mut b) = (datagram_end(), datagram_end());
    for end in [&mut a, &mut b] {
        end.qp.attach_mcast(&group, 0).unwrap();
        end.qp.attach_mcast(&group, 0).expect("attaching twice changes nothing");
    }
    let arenas = [Arena::new(&a.pd, 96), Arena::new(&b.pd, 96)];
    for (end, arena) in [&mut a, &mut b].into_iter().zip(&arenas) {
        for wr_id in [101, 102] {
            recv(&mut end.qp, wr_id, &[arena.sge(0..48)]);
        }
    }
    let number = a.qp.qp_num();
    for imm in [1, 2] {
        send_to(&mut a, group, UdAddr::MULTICAST_QPN, imm);
        for end in [&mut a, &mut b] {
            let wc = wait_ok(&mut end.cq, 100 + u64::from(imm));
            assert_eq!((wc.imm_data, wc.byte_len, wc.src_qp), (imm, 48, number), "neither lost nor twice");
        }
    }
    // The group is the destination address in the IP header.
    let grh = verbs::Grh::parse(&arenas[1].read(0..40)).unwrap();
    assert_eq!((grh.sgid, grh.dgid), (gid(&a.context), group));
}

#[test]
fn a_group_of_ipv6_is_one_of_ipv4_on_devices_with_such_an_address() {
    let group = group(9);
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&[0xff, 0x01]);
    bytes[13..].copy_from_slice(&group.0[13..]);
    let of_ipv6 = Gid(bytes);
    let (mut a, mut b) = (datagram_end(), datagram_end());
    b.qp.attach_mcast(&of_ipv6, 0).unwrap();
    let arena = Arena::new(&b.pd, 96);
    for (imm, dgid) in [(1, of_ipv6), (2, group)] {
        recv(&mut b.qp, 100, &[arena.sge(0..48)]);
        send_to(&mut a, dgid, UdAddr::MULTICAST_QPN, imm);
        assert_eq!(wait_ok(&mut b.cq, 100).imm_data, imm);
        assert_eq!(verbs::Grh::parse(&arena.read(0..40)).unwrap().dgid, group);
    }
    b.qp.detach_mcast(&of_ipv6, 0).unwrap();
}

#[test]
fn a_queue_pair_that_left_or_ended_receives_nothing_of_the_group() {
    let group = group(2);
    let (mut a, mut b, mut leaves) = (datagram_end(), datagram_end(), datagram_end());
    for end in [&mut b, &mut leaves] {
        end.qp.attach_mcast(&group, 0).unwrap();
    }
    leaves.qp.detach_mcast(&group, 0).unwrap();
    let again = leaves.qp.detach_mcast(&group, 0).unwrap_err();
    assert_eq!((again.errno, again.cause), (Errno::INVAL, Cause::NotAttached { gid: group }));
    let (arena, unused) = (Arena::new(&b.pd, 48), Arena::new(&leaves.pd, 48));
    recv(&mut leaves.qp, 9, &[unused.sge(0..48)]);
    recv(&mut b.qp, 1, &[arena.sge(0..48)]);
    send_to(&mut a, group, UdAddr::MULTICAST_QPN, 1);
    wait_ok(&mut b.cq, 1);
    // The queue pair's device has left the group. Otherwise the datagram to the group would arrive
    // before this datagram.
    send_to(&mut a, gid(&leaves.context), leaves.qp.qp_num(), 2);
    assert_eq!(wait_ok(&mut leaves.cq, 9).imm_data, 2);
    // The membership ends with its only member, so only the other device's group is left.
    b.qp.close().unwrap();
    let mut last = datagram_end();
    last.qp.attach_mcast(&group, 0).unwrap();
    let arena = Arena::new(&last.pd, 48);
    recv(&mut last.qp, 3, &[arena.sge(0..48)]);
    send_to(&mut a, group, UdAddr::MULTICAST_QPN, 3);
    wait_ok(&mut last.cq, 3);
    assert_eq!(b.context.raw().counters().received, 1);
}

#[test]
fn a_member_that_sleeps_is_woken_by_the_group() {
    let group = group(3);
    let mut a = datagram_end();
    let shape = Shape { events: true, ..Shape::for_type(QpType::UD) };
    let context = open();
    let mut b = End::new(&context, &shape).connect(&shape, gid(&context), NO_PEER);
    let arena = Arena::new(&b.pd, 48);
    b.qp.attach_mcast(&group, 0).unwrap();
    for round in 1..=20 {
        recv(&mut b.qp, round.into(), &[arena.sge(0..48)]);
        b.cq.req_notify(false).unwrap();
        send_to(&mut a, group, UdAddr::MULTICAST_QPN, round);
        let event = b.channel.as_ref().unwrap().wait(Some(PATIENCE)).unwrap();
        assert!(event.is_some(), "round {round}");
        wait_ok(&mut b.cq, round.into());
    }
}

#[test]
fn a_number_sent_to_a_groups_address_reaches_no_queue_pair() {
    let group = group(4);
    let (mut a, mut b) = (datagram_end(), datagram_end());
    b.qp.attach_mcast(&group, 0).unwrap();
    let arena = Arena::new(&b.pd, 48);
    recv(&mut b.qp, 1, &[arena.sge(0..48)]);
    let number = b.qp.qp_num();
    send_to(&mut a, group, number, 1);
    send_to(&mut a, group, UdAddr::MULTICAST_QPN, 2);
    assert_eq!(wait_ok(&mut b.cq, 1).imm_data, 2);
    assert_eq!(b.context.raw().counters().malformed, 1);
}

#[test]
fn a_group_that_cannot_be_joined_is_refused_with_the_cause() {
    let group = group(5);
    let mut end = datagram_end();
    let unicast = gid(&end.context);
    let error = end.qp.attach_mcast(&unicast, 0).unwrap_err();
    assert_eq!((error.errno, error.cause), (Errno::INVAL, Cause::NotMulticast { gid: unicast }));
    let shape = Shape::default();
    let mut connected: Qp<state::Reset, _> = End::new(&end.context, &shape).qp;
    let error = connected.attach_mcast(&group, 0).unwrap_err();
    assert_eq!(
        (error.errno, error.cause),
        (
            Errno::INVAL,
            Cause::CallOfType { qp_type: QpType::RC, needs: "only UD queue pairs join multicast groups" }
        )
    );
}

#[test]
fn groups_are_limited_as_the_device_says() {
    let mut end = datagram_end();
    let max = end.context.query_device().unwrap().max_mcast_grp;
    let [.., high, low] = std::process::id().to_be_bytes();
    let group = |n: u32| Gid::from(std::net::Ipv4Addr::new(239, 100 + n as u8, high, low));
    (0..max).for_each(|n| end.qp.attach_mcast(&group(n), 0).unwrap());
    let error = end.qp.attach_mcast(&group(max), 0).unwrap_err();
    assert_eq!(error.errno, Errno::NOMEM);
    assert_eq!(error.cause.to_string(), "multicast groups 65 exceeds the device's 64");
    end.qp.detach_mcast(&group(0), 0).unwrap();
    end.qp.attach_mcast(&group(max), 0).unwrap();
    end.qp.close().unwrap();
}
