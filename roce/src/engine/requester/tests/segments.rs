//! Messages split into packets.

use proptest::prelude::*;

use super::*;
use crate::engine::testing::{HERE, THERE};
use crate::engine::{Path, UdDestination};

#[test]
fn a_message_of_one_packet_is_an_only() {
    let mut f = Fixture::new(Service::Rc);
    f.post(SendOp::Send { imm: Some(9) }, 5);
    let (headers, payload) = f.host.sent().remove(0);
    assert_eq!(headers.bth.opcode, Opcode::RC_SEND_ONLY_WITH_IMMEDIATE);
    assert_eq!((headers.bth.dest_qp, headers.bth.pkey), (crate::engine::testing::PEER, 0xffff));
    assert_eq!(headers.imm.unwrap().imm_data, 9);
    assert_eq!(payload, [0, 1, 2, 3, 4]);
}

#[test]
fn an_empty_message_is_a_packet() {
    let mut f = Fixture::new(Service::Rc);
    f.post(WRITE, 0);
    let (headers, payload) = f.host.sent().remove(0);
    assert_eq!((headers.bth.opcode, payload.len()), (Opcode::RC_RDMA_WRITE_ONLY, 0));
    assert_eq!(headers.reth.unwrap().dmalen, 0);
}

#[test]
fn a_write_says_where_once_and_imm_last() {
    let mut f = Fixture::new(Service::Rc);
    f.post(SendOp::Write { addr: 0x5000, rkey: 0x55, imm: Some(3) }, 600);
    let sent = f.host.sent();
    let opcodes: Vec<_> = sent.iter().map(|(headers, _)| headers.bth.opcode).collect();
    assert_eq!(
        opcodes,
        [
            Opcode::RC_RDMA_WRITE_FIRST,
            Opcode::RC_RDMA_WRITE_MIDDLE,
            Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE
        ]
    );
    let reth = sent[0].0.reth.unwrap();
    assert_eq!((reth.va, reth.rkey, reth.dmalen), (0x5000, 0x55, 600));
    assert_eq!(sent[2].0.imm.unwrap().imm_data, 3);
    assert_eq!(sent.iter().map(|(headers, _)| headers.bth.ack_req).collect::<Vec<_>>(), [false, false, true]);
}

#[test]
fn only_what_takes_a_receive_solicits_and_only_at_its_end() {
    let mut f = Fixture::new(Service::Rc);
    let flags = SendFlags { solicited: true, ..SendFlags::default() };
    f.post_flags(SEND, 300, flags);
    f.post_flags(WRITE, 8, flags);
    let solicits: Vec<_> = f.host.sent().iter().map(|(headers, _)| headers.bth.se).collect();
    assert_eq!(solicits, [false, true, false]);
}

#[test]
fn a_send_that_invalidates_names_the_key_in_its_last_packet() {
    let mut f = Fixture::new(Service::Rc);
    f.post(SendOp::SendInvalidate { rkey: 0x99 }, 300);
    let sent = f.host.sent();
    assert_eq!(sent[0].0.bth.opcode, Opcode::RC_SEND_FIRST);
    assert_eq!(sent[1].0.bth.opcode, Opcode::RC_SEND_LAST_WITH_INVALIDATE);
    assert_eq!(sent[1].0.ieth.unwrap().rkey, 0x99);
}

#[test]
fn xrc_names_the_shared_receive_queue_in_every_request() {
    let mut f = Fixture::new(Service::XrcInitiator);
    f.post(SEND, 300);
    let sent = f.host.sent();
    assert_eq!(sent[0].0.bth.opcode, Opcode::XRC_SEND_FIRST);
    assert!(sent.iter().all(|(headers, _)| headers.xrceth.unwrap().xrcsrq == 7));
}

fn datagram(qkey: u32) -> SendOp {
    let path = Path { local: HERE, remote: THERE, ..Path::default() };
    SendOp::Datagram { to: UdDestination { path, qpn: 0x321, qkey }, imm: Some(4) }
}

#[test]
fn a_datagram_says_who_sent_it_and_is_done_when_it_has_left() {
    let mut f = Fixture::new(Service::Ud);
    let wr = f.post(datagram(0x1234), 200);
    let (headers, payload) = f.host.sent().remove(0);
    assert_eq!((headers.bth.opcode, headers.bth.dest_qp), (Opcode::UD_SEND_ONLY_WITH_IMMEDIATE, 0x321));
    let deth = headers.deth.unwrap();
    assert_eq!((deth.qkey, deth.src_qp, payload.len()), (0x1234, f.qpn.0, 200));
    assert_eq!(f.ended(), [(wr, Status::Success)]);
}

#[test]
fn a_queue_key_with_the_top_bit_is_the_senders_own() {
    let mut f = Fixture::new(Service::Ud);
    f.post(datagram(0x8000_0000), 1);
    assert_eq!(f.host.sent()[0].0.deth.unwrap().qkey, 0x1111);
}

fn try_datagram(f: &mut Fixture, length: u32) -> Result<(), PostRefused> {
    let sges = [f.mr.sge(0, length)];
    let (flags, payload) = (SendFlags::default(), Payload::Sges(&sges));
    f.try_post(&SendWr { wr_id: 99, op: datagram(1), flags, payload, remote_srq: 0 })
}

#[test]
fn a_datagram_longer_than_the_path_mtu_is_refused_and_never_leaves() {
    let mut f = Fixture::new(Service::Ud);
    assert_eq!(try_datagram(&mut f, 257), Err(PostRefused::MessageTooLong));
    assert_eq!(f.leaves(), []);
    let next = f.post(datagram(1), 256);
    assert_eq!(f.leaves().len(), 1);
    assert_eq!(f.ended(), [(next, Status::Success)]);
    assert_eq!((f.state(), f.host.log.retired_sends), (State::Rts, 1));
}

#[test]
fn a_datagram_that_a_smaller_path_mtu_makes_too_long_fails_and_never_leaves() {
    let mut f = Fixture::new(Service::Ud);
    let (long, behind) = (f.post(datagram(1), 256), f.post(datagram(1), 1));
    f.host.modify(f.qpn, &AttrChange { path_mtu: Some(255), ..AttrChange::default() });
    assert_eq!(f.leaves(), []);
    assert_eq!(f.ended(), [(long, Status::LocalLength), (behind, Status::Flushed)]);
    assert_eq!(f.state(), State::Sqe);
}

#[test]
fn without_a_path_mtu_the_longest_datagram_has_4096_bytes() {
    let mut f = Fixture::with(Service::Ud, &AttrChange { path_mtu: Some(0), ..AttrChange::default() });
    assert_eq!(try_datagram(&mut f, 4097), Err(PostRefused::MessageTooLong));
    f.post(datagram(1), 4096);
    assert_eq!(f.host.sent()[0].1.len(), 4096);
}

#[test]
fn unreliable_messages_end_with_their_last_packet() {
    let mut f = Fixture::new(Service::Uc);
    let wr = f.post(WRITE, 600);
    f.host.transmit(crate::engine::Urgency::Now);
    f.host.transmit(crate::engine::Urgency::Now);
    assert_eq!(f.ended(), []);
    let (headers, _) = f.host.transmit(crate::engine::Urgency::Now).unwrap();
    assert_eq!((headers.bth.opcode, headers.bth.ack_req), (Opcode::UC_RDMA_WRITE_LAST, false));
    assert_eq!(f.ended(), [(wr, Status::Success)]);
    assert_eq!(f.host.engine.deadline(), None);
}

#[test]
fn an_acknowledgement_is_asked_for_every_so_many_bytes() {
    let mut f = Fixture::with(Service::Rc, &AttrChange { path_mtu: Some(4096), ..AttrChange::default() });
    f.post(WRITE, 80 << 10);
    let asks: Vec<_> = f
        .host
        .sent()
        .iter()
        .filter(|(headers, _)| headers.bth.ack_req)
        .map(|(headers, _)| nth(headers))
        .collect();
    assert_eq!(asks, [7, 15, 19]);
}

#[test]
fn no_more_is_in_flight_of_a_queue_pair_than_three_quarters_of_the_window() {
    let mut f = Fixture::with(Service::Rc, &AttrChange { path_mtu: Some(4096), ..AttrChange::default() });
    f.host.engine.set_window(20_000);
    f.post(WRITE, 80 << 10);
    let sent = f.host.sent();
    // The packets cost 4864 bytes each. The fourth packet exceeds three quarters of the window,
    // 15,000 bytes, and requests an acknowledgement.
    assert_eq!(sent.len(), 4);
    assert!(sent[3].0.bth.ack_req);
    f.ack(1);
    assert_eq!(f.leaves().len(), 2);
}

#[test]
fn queue_pairs_that_wait_for_the_window_get_their_turns() {
    let mut f = Fixture::new(Service::Rc);
    let init = f.host.init(Service::Rc);
    let other = f.host.qp(&init, &connected());
    // The window holds four packets.
    f.host.engine.set_window(4096);
    f.post(WRITE, 256 * 32);
    assert_eq!(f.leaves().len(), 3);
    let first = core::mem::replace(&mut f.qpn, other);
    f.post(WRITE, 256 * 32);
    assert_eq!(f.leaves().len(), 1);
    f.qpn = first;
    let mut turns = Vec::new();
    for nth in 0..4 {
        let before = f.host.engine.query_qp(other).unwrap().1.sq_psn;
        f.ack(nth);
        assert_eq!(f.leaves().len(), 1, "the acknowledged packet makes room for one");
        turns.push(f.host.engine.query_qp(other).unwrap().1.sq_psn != before);
    }
    assert!(turns.contains(&true), "the queue pair with the most in flight does not take all room");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn packets_add_up_to_their_message(
        length in 0u32..20_000,
        mtu in (8u32..=12).prop_map(|log| 1 << log),
        split in 0u32..20_000,
        start in prop_oneof![0u32..1 << 24, 0xff_fff0u32..1 << 24],
        op in prop_oneof![Just(SEND), Just(WRITE), Just(SendOp::Send { imm: Some(1) })],
    ) {
        let mut f = Fixture::new(Service::Rc);
        f.host.engine.set_window(1 << 24);
        f.host.modify(f.qpn, &AttrChange { path_mtu: Some(mtu), sq_psn: Some(start), ..AttrChange::default() });
        let split = split.min(length);
        let sges = [f.mr.sge(0, split), f.mr.sge(u64::from(split), length - split)];
        f.post_sges(op, &sges);
        let sent = f.host.sent();
        prop_assert_eq!(sent.len() as u32, length.div_ceil(mtu).max(1));
        let mut message = Vec::new();
        for (n, (headers, payload)) in sent.iter().enumerate() {
            let last = n + 1 == sent.len();
            prop_assert_eq!(headers.bth.psn, Psn::new(start) + n as u32);
            prop_assert_eq!(headers.bth.opcode.starts_message(), n == 0);
            prop_assert_eq!(headers.bth.opcode.ends_message(), last);
            prop_assert!(last || payload.len() == mtu as usize);
            message.extend_from_slice(payload);
        }
        let expected: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
        prop_assert_eq!(message, expected);
    }
}
