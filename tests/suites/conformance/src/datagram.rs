//! Unreliable datagrams and multicast.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use verbs::state::{Errored, Rts};
use verbs::{
    Ah, AhAttr, Av, Cause, Context, Cq, Errno, Gid, GlobalRoute, Grh, PostReason, Provider, Qp, QpAttr,
    QpAttrMask, QpState, QpType, Rate, RecvWr, SendFlags, SendOp, UdAddr, WcFlags, WcOpcode, WcStatus,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, PORT, Pair, QKEY, Remote, Shape, connect, create_qp, group_lid, imm, is_empty, is_ethernet,
    is_mlx5, is_rxe, path, pattern, post_recv, post_send, rxe_is_before, signalled, wait_for, wait_status,
};
use verbs_harness::runner::{Case, CaseResult, skip};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        ud_datagram_arrives_behind_a_route_header,
        ud_datagram_with_the_wrong_key_is_dropped,
        ud_datagrams_of_two_senders_are_told_apart,
        ud_route_header_names_both_addresses_and_what_the_path_says,
        ud_route_header_is_scattered_like_data,
        ud_answer_finds_its_way_back,
        ud_answer_to_a_receive_that_is_too_short_for_the_header_is_refused,
        ud_empty_datagram_is_a_header_alone,
        ud_datagram_may_be_as_long_as_the_mtu_and_not_longer,
        ud_receive_of_the_exact_length_takes_the_datagram,
        ud_datagram_without_a_receive_is_lost,
        ud_datagram_to_a_number_that_does_not_exist_is_lost,
        ud_gather_list_is_one_datagram,
        ud_address_handle_serves_many_datagrams,
        ud_address_handles_come_and_go,
        ud_address_vector_of_another_provider_is_refused,
        ud_path_needs_a_header_on_ethernet,
        ud_path_from_a_port_that_does_not_exist_is_refused,
        ud_path_from_a_gid_that_does_not_exist_is_refused,
        ud_path_with_a_service_level_and_a_rate_delivers,
        ud_send_without_an_address_is_refused,
        ud_queue_key_can_be_changed,
        ud_error_state_flushes_receives_and_sends,
        ud_reset_queue_pair_receives_again,
        mcast_each_member_receives_a_datagram_once,
        mcast_header_names_the_group,
        mcast_group_without_members_receives_nothing,
        mcast_member_that_left_receives_nothing,
        mcast_member_can_be_attached_twice_and_detached_once,
        mcast_wrong_queue_key_is_dropped_by_each_member,
        mcast_sender_need_not_be_a_member,
        mcast_member_hears_several_groups,
        mcast_refuses_other_services_and_addresses,
        mcast_members_are_detached_when_they_are_destroyed,
        mcast_answer_to_a_group_has_no_path_of_its_own,
    )
}

/// The size of the header before a datagram in the receive buffer, in bytes.
const GRH: usize = 40;

/// ConnectX's code for a RoCE v2 header over IPv4.
const IPV4_HEADER: u8 = 2;

fn ud_datagram_arrives_behind_a_route_header<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UD))?;
    let gid = context.find_gid(PORT)?;
    let ah = pair.pd.create_ah(&path(&gid))?;
    let to = ah.to(pair.b.qp.qp_num(), QKEY);
    let (from, into) = (Arena::new(&pair.pd, 1024)?, Arena::new(&pair.pd, 2048)?);
    for (seed, len) in [(1, 1), (2, 500), (3, 1024)] {
        from.write(0, &pattern(seed, len));
        into.write(0, &[0; 2048]);
        let sge = [from.sge(0..len)];
        for op in [SendOp::UdSend { to }, SendOp::UdSendWithImm { to, imm_data: seed << 24 }] {
            post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..2048)] }])?;
            post_send(&mut pair.a.qp, &[signalled(1, op, &sge)])?;
            wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
            let wc = wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
            let with_imm = matches!(op, SendOp::UdSendWithImm { .. });
            assert_eq!(imm(&wc), with_imm.then_some(seed << 24));
            assert!(wc.wc_flags.contains(WcFlags::GRH), "{wc:?}");
            assert_eq!((wc.byte_len as usize, wc.src_qp), (GRH + len, pair.a.qp.qp_num()));
            assert_eq!(into.read(GRH..GRH + len), pattern(seed, len));
            assert_eq!(into.read(GRH + len..2048), vec![0; 2048 - GRH - len], "behind the datagram");
        }
    }
    if is_ethernet(context)? {
        // A RoCE v2 packet over IPv4 has its header in the last 20 of the 40 bytes: version 4, then
        // source and destination.
        let header = into.read(20..GRH);
        let ip = gid.gid.to_ipv4().map(|ip| ip.octets()).unwrap_or_default();
        assert_eq!((header[0] >> 4, &header[12..16], &header[16..20]), (4, &ip[..], &ip[..]));
    } else {
        let header = into.read(0..GRH);
        assert_eq!((header[0] >> 4, &header[8..24], &header[24..40]), (6, &gid.gid.0[..], &gid.gid.0[..]));
    }
    // Inline data works too.
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..2048)] }])?;
    pair.a.qp.post_send_inline(5, SendOp::UdSend { to }, SendFlags::SIGNALED, b"inline")?;
    wait_for(&mut pair.a.cq, 5, WcOpcode::SEND)?;
    wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
    assert_eq!(into.read(GRH..GRH + 6), b"inline");
    Ok(())
}

fn ud_datagram_with_the_wrong_key_is_dropped<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UD))?;
    let ah = pair.pd.create_ah(&path(&context.find_gid(PORT)?))?;
    let arena = Arena::new(&pair.pd, 256)?;
    let sge = [arena.sge(0..8)];
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(8..256)] }])?;
    for (imm_data, qkey) in [(1, QKEY + 1), (2, QKEY)] {
        let to = ah.to(pair.b.qp.qp_num(), qkey);
        post_send(&mut pair.a.qp, &[signalled(1, SendOp::UdSendWithImm { to, imm_data }, &sge)])?;
        wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    }
    assert_eq!(imm(&wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?), Some(2));
    // If the top bit of a request's queue key is set, the sender's own queue key is used instead.
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 3, sge: &[arena.sge(8..256)] }])?;
    let to = ah.to(pair.b.qp.qp_num(), 1 << 31);
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::UdSendWithImm { to, imm_data: 3 }, &sge)])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    assert_eq!(imm(&wait_for(&mut pair.b.cq, 3, WcOpcode::RECV)?), Some(3));
    Ok(())
}

fn ud_datagrams_of_two_senders_are_told_apart<P: Provider>(context: &Context<P>) -> CaseResult {
    let shape = Shape::for_type(QpType::UD);
    let mut pair = Pair::new(context, &shape)?;
    let ah = pair.pd.create_ah(&path(&context.find_gid(PORT)?))?;
    let third = create_qp(&pair.pd, &pair.a.cq, &shape)?;
    let nobody = Remote { qp_num: 0, psn: 0 };
    let mut third = connect(context, third, &shape, nobody)?;
    let arena = Arena::new(&pair.pd, 512)?;
    let sge = [arena.sge(0..8)];
    let to = ah.to(pair.b.qp.qp_num(), QKEY);
    let (first_num, third_num) = (pair.a.qp.qp_num(), third.qp_num());
    for wr_id in 0..4 {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &[arena.sge(64..512)] }])?;
    }
    for wr_id in 0..4 {
        let qp = if wr_id % 2 == 0 { &mut pair.a.qp } else { &mut third };
        post_send(qp, &[signalled(wr_id, SendOp::UdSend { to }, &sge)])?;
        let sent = wait_for(&mut pair.a.cq, wr_id, WcOpcode::SEND)?;
        let wc = wait_for(&mut pair.b.cq, wr_id, WcOpcode::RECV)?;
        let sender = if wr_id % 2 == 0 { first_num } else { third_num };
        assert_eq!((sent.qp_num, wc.src_qp, wc.qp_num), (sender, sender, pair.b.qp.qp_num()));
    }
    Ok(())
}

/// Two datagram queue pairs, an address handle for the path from the device to itself, and memory.
/// Sends use the first half of the memory, receives the second half.
struct Net<P: Provider> {
    pair: Pair<P>,
    ah: Ah<P>,
    arena: Arena<P>,
}

/// The offset of the middle of the memory, in bytes.
const HALF: usize = 2048;

impl<P: Provider> Net<P> {
    fn new(context: &Context<P>) -> CaseResult<Self> {
        let pair = Pair::new(context, &Shape::for_type(QpType::UD))?;
        let ah = pair.pd.create_ah(&path(&context.find_gid(PORT)?))?;
        let arena = Arena::new(&pair.pd, 2 * HALF)?;
        arena.write(0, &pattern(9, HALF));
        Ok(Self { pair, ah, arena })
    }

    /// Posts a receive of `len` bytes to the receiver.
    fn receive(&mut self, wr_id: u64, len: usize) -> CaseResult {
        let sge = [self.arena.sge(HALF..HALF + len)];
        Ok(post_recv(&mut self.pair.b.qp, &[RecvWr { wr_id, sge: &sge }])?)
    }

    /// Sends `len` bytes to the receiver.
    fn send(&mut self, imm_data: u32, len: usize) -> CaseResult {
        let (to, sge) = (self.ah.to(self.pair.b.qp.qp_num(), QKEY), [self.arena.sge(0..len)]);
        send(&mut self.pair.a.qp, &mut self.pair.a.cq, to, imm_data, &sge)
    }
}

/// Sends a datagram with immediate data and waits for its completion.
fn send<P: Provider>(
    qp: &mut Qp<Rts, P>,
    cq: &mut Cq<P>,
    to: UdAddr<'_>,
    imm_data: u32,
    sge: &[verbs::Sge],
) -> CaseResult {
    let op = SendOp::UdSendWithImm { to, imm_data };
    post_send(qp, &[signalled(imm_data.into(), op, sge)])?;
    wait_for(cq, imm_data.into(), WcOpcode::SEND)?;
    Ok(())
}

fn ud_route_header_names_both_addresses_and_what_the_path_says<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut net = Net::new(context)?;
    let gid = context.find_gid(PORT)?;
    let grh = path(&gid).grh.unwrap_or_default();
    for (hop_limit, traffic_class) in [(64, 0), (7, 0x20), (255, 0x88)] {
        let grh = GlobalRoute { hop_limit, traffic_class, ..grh };
        net.ah = net.pair.pd.create_ah(&AhAttr { grh: Some(grh), ..path(&gid) })?;
        net.receive(1, 100)?;
        net.send(1, 8)?;
        wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?;
        let header = Grh::parse(&net.arena.read(HALF..HALF + GRH))?;
        // On InfiniBand, the transport header follows (IBTA volume 1, 8.3).
        let next_header = if is_ethernet(context)? { Grh::UDP } else { 0x1b };
        assert_eq!((header.sgid, header.dgid, header.next_header), (gid.gid, gid.gid, next_header));
        assert_eq!(header.traffic_class, traffic_class);
        // The kernel's RDMA core replaces the hop limit of unicast RoCE v2 paths with the route's
        // (Linux `drivers/infiniband/core/verbs.c`, `ib_resolve_unicast_gid_dmac`).
        assert!(header.hop_limit == hop_limit || (is_rxe()? && header.hop_limit > 0), "{header:?}");
    }
    Ok(())
}

fn ud_route_header_is_scattered_like_data<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut net = Net::new(context)?;
    // The first element ends within the header; the second continues there.
    let sge = [net.arena.sge(HALF..HALF + 30), net.arena.sge(HALF + 100..HALF + 200)];
    post_recv(&mut net.pair.b.qp, &[RecvWr { wr_id: 1, sge: &sge }])?;
    net.send(1, 50)?;
    assert_eq!(wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?.byte_len, 90);
    let whole = [net.arena.read(HALF..HALF + 30), net.arena.read(HALF + 100..HALF + 160)].concat();
    Grh::parse(&whole)?;
    assert_eq!(whole[GRH..], pattern(9, HALF)[..50]);
    Ok(())
}

fn ud_answer_finds_its_way_back<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut net = Net::new(context)?;
    net.receive(1, 100)?;
    net.send(1, 8)?;
    let wc = wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?;
    let received = net.arena.read(HALF..HALF + 48);
    let attr = context.init_ah_from_wc(PORT, &wc, &received)?;
    let source = context.find_gid(PORT)?;
    assert_eq!(attr.grh.map(|grh| (grh.dgid, grh.sgid_index)), Some((source.gid, source.gid_index)));
    let back = net.pair.pd.create_ah_from_wc(PORT, &wc, &received)?;
    let sge = [net.arena.sge(HALF + 100..HALF + 200)];
    post_recv(&mut net.pair.a.qp, &[RecvWr { wr_id: 2, sge: &sge }])?;
    let to = back.to(wc.src_qp, QKEY);
    send(&mut net.pair.b.qp, &mut net.pair.b.cq, to, 7, &[net.arena.sge(0..8)])?;
    let answer = wait_for(&mut net.pair.a.cq, 2, WcOpcode::RECV)?;
    assert_eq!((imm(&answer), answer.src_qp), (Some(7), net.pair.b.qp.qp_num()));
    Ok(())
}

fn ud_answer_to_a_receive_that_is_too_short_for_the_header_is_refused<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut net = Net::new(context)?;
    net.receive(1, 100)?;
    net.send(1, 8)?;
    let wc = wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?;
    for received in [vec![], net.arena.read(HALF..HALF + 39), vec![0; 40]] {
        let error = context.init_ah_from_wc(PORT, &wc, &received).unwrap_err();
        assert!(error.errno == Errno::INVAL && matches!(error.cause, Cause::Parse(_)), "{error}");
    }
    Ok(())
}

fn ud_empty_datagram_is_a_header_alone<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut net = Net::new(context)?;
    net.receive(1, GRH)?;
    let to = net.ah.to(net.pair.b.qp.qp_num(), QKEY);
    post_send(&mut net.pair.a.qp, &[signalled(2, SendOp::UdSend { to }, &[])])?;
    wait_for(&mut net.pair.a.cq, 2, WcOpcode::SEND)?;
    let wc = wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?;
    assert_eq!((wc.byte_len as usize, imm(&wc)), (GRH, None));
    assert!(wc.wc_flags.contains(WcFlags::GRH));
    Ok(())
}

fn ud_datagram_may_be_as_long_as_the_mtu_and_not_longer<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut net = Net::new(context)?;
    let mtu = context.query_port(PORT)?.active_mtu.bytes().unwrap_or_default() as usize;
    // Linux's mlx5 gives datagram queue pairs the largest MTU, regardless of the port's MTU.
    let most = if is_mlx5()? { 4096 } else { mtu };
    let arena = Arena::new(&net.pair.pd, 2 * (most + GRH + 1))?;
    let middle = most + GRH + 1;
    let to = net.ah.to(net.pair.b.qp.qp_num(), QKEY);
    let sge = [arena.sge(middle..2 * middle)];
    post_recv(&mut net.pair.b.qp, &[RecvWr { wr_id: 1, sge: &sge }])?;
    let too_long = [arena.sge(0..most + 1)];
    let posted = post_send(&mut net.pair.a.qp, &[signalled(2, SendOp::UdSend { to }, &too_long)]);
    match posted {
        // IBTA C10-93.1.1 lets a device send nothing and report success; rxe does so.
        Ok(()) if is_rxe()? => drop(wait_for(&mut net.pair.a.cq, 2, WcOpcode::SEND)?),
        Ok(()) if is_mlx5()? => {
            wait_status(&mut net.pair.a.cq, 2, WcStatus::LOC_LEN_ERR)?;
            net.pair.a.qp.recover_sq()?;
        }
        posted => assert!(
            matches!(posted, Err(error) if matches!(error.reason, PostReason::DatagramTooLong { .. })),
            "{posted:?}"
        ),
    }
    send(&mut net.pair.a.qp, &mut net.pair.a.cq, to, 3, &[arena.sge(0..mtu)])?;
    let wc = wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?;
    assert_eq!((wc.byte_len as usize, imm(&wc)), (mtu + GRH, Some(3)));
    Ok(())
}

fn ud_receive_of_the_exact_length_takes_the_datagram<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut net = Net::new(context)?;
    net.receive(1, GRH + 64)?;
    net.send(1, 64)?;
    assert_eq!(wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?.byte_len as usize, GRH + 64);
    assert_eq!(net.arena.read(HALF + GRH..HALF + GRH + 64), pattern(9, HALF)[..64]);
    Ok(())
}

fn ud_datagram_without_a_receive_is_lost<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut net = Net::new(context)?;
    net.send(1, 8)?;
    // On a loopback path, datagrams from one sender stay in order. The second datagram therefore
    // proves that the first was dropped before a receive was posted. A third queue pair receives
    // the second.
    let (mut cq, shape) = (context.create_cq(&verbs::CqInit::new(8))?, Shape::for_type(QpType::UD));
    let third = create_qp(&net.pair.pd, &cq, &shape)?;
    let mut third = connect(context, third, &shape, Remote { qp_num: 0, psn: 0 })?;
    post_recv(&mut third, &[RecvWr { wr_id: 5, sge: &[net.arena.sge(HALF..HALF + 48)] }])?;
    let to = net.ah.to(third.qp_num(), QKEY);
    send(&mut net.pair.a.qp, &mut net.pair.a.cq, to, 2, &[net.arena.sge(0..8)])?;
    wait_for(&mut cq, 5, WcOpcode::RECV)?;
    net.receive(1, 48)?;
    net.send(3, 8)?;
    assert_eq!(imm(&wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?), Some(3));
    assert!(is_empty(&mut net.pair.b.cq));
    Ok(())
}

fn ud_datagram_to_a_number_that_does_not_exist_is_lost<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut net = Net::new(context)?;
    net.receive(1, 48)?;
    let nobody = net.ah.to(0x00_fff0, QKEY);
    send(&mut net.pair.a.qp, &mut net.pair.a.cq, nobody, 1, &[net.arena.sge(0..8)])?;
    net.send(2, 8)?;
    assert_eq!(imm(&wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?), Some(2));
    assert_eq!(net.pair.a.qp.state()?, QpState::RTS);
    Ok(())
}

fn ud_gather_list_is_one_datagram<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut net = Net::new(context)?;
    net.receive(1, GRH + 300)?;
    let sge = [net.arena.sge(0..1), net.arena.sge(1..200), net.arena.sge(200..300)];
    let to = net.ah.to(net.pair.b.qp.qp_num(), QKEY);
    send(&mut net.pair.a.qp, &mut net.pair.a.cq, to, 1, &sge)?;
    assert_eq!(wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?.byte_len as usize, GRH + 300);
    assert_eq!(net.arena.read(HALF + GRH..HALF + GRH + 300), pattern(9, HALF)[..300]);
    Ok(())
}

fn ud_address_handle_serves_many_datagrams<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut net = Net::new(context)?;
    for n in 1..=100 {
        net.receive(n.into(), 48)?;
        net.send(n, 8)?;
        assert_eq!(imm(&wait_for(&mut net.pair.b.cq, n.into(), WcOpcode::RECV)?), Some(n));
    }
    Ok(())
}

fn ud_address_handles_come_and_go<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut net = Net::new(context)?;
    let gid = context.find_gid(PORT)?;
    for n in 1..=100 {
        let next = net.pair.pd.create_ah(&path(&gid))?;
        std::mem::replace(&mut net.ah, next).close()?;
        net.receive(n.into(), 48)?;
        net.send(n, 8)?;
        wait_for(&mut net.pair.b.cq, n.into(), WcOpcode::RECV)?;
    }
    Ok(())
}

fn ud_address_vector_of_another_provider_is_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut net = Net::new(context)?;
    let foreign = Av::new(0x7fff_0001, &[1; 32]);
    let to = UdAddr { av: &foreign, remote_qpn: net.pair.b.qp.qp_num(), remote_qkey: QKEY };
    let sge = [net.arena.sge(0..8)];
    let error = post_send(&mut net.pair.a.qp, &[signalled(1, SendOp::UdSend { to }, &sge)]).unwrap_err();
    assert_eq!((error.accepted, error.reason), (0, PostReason::ForeignAv));
    net.receive(1, 48)?;
    net.send(2, 8)?;
    wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?;
    Ok(())
}

fn ud_path_needs_a_header_on_ethernet<P: Provider>(context: &Context<P>) -> CaseResult {
    if !is_ethernet(context)? {
        return skip("the port is not Ethernet");
    }
    let pd = context.alloc_pd()?;
    let error = pd.create_ah(&AhAttr::lid(PORT, 1)).unwrap_err();
    assert_eq!((error.errno, error.cause), (Errno::INVAL, Cause::NoGrh { port_num: PORT }));
    Ok(())
}

fn ud_path_from_a_port_that_does_not_exist_is_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let (pd, gid) = (context.alloc_pd()?, context.find_gid(PORT)?);
    for port_num in [0, 9] {
        let error = pd.create_ah(&AhAttr { port_num, ..path(&gid) }).unwrap_err();
        let is_named = matches!(error.cause, Cause::Limit { name: "ah_attr.port_num", .. });
        assert!(error.errno == Errno::INVAL && is_named, "port {port_num}: {error}");
    }
    Ok(())
}

fn ud_path_from_a_gid_that_does_not_exist_is_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let (pd, gid, table) = (context.alloc_pd()?, context.find_gid(PORT)?, context.gid_table()?);
    let (len, is_ethernet) = (context.query_port(PORT)?.gid_tbl_len, is_ethernet(context)?);
    let from = |sgid_index| {
        let grh = path(&gid).grh.map(|grh| GlobalRoute { sgid_index, ..grh });
        pd.create_ah(&AhAttr { grh, ..path(&gid) }).unwrap_err()
    };
    let empty = (0..len.min(256)).find(|index| table.iter().all(|entry| entry.gid_index != *index));
    // The provider creates InfiniBand address handles without the kernel. It checks the index only
    // against the length of the table.
    if let Some(index) = empty.filter(|_| is_ethernet) {
        let error = from(index);
        assert!(matches!(error.cause, Cause::Gid { index: at, .. } if at == index), "{error}");
    }
    if len < 256 {
        let error = from(len);
        assert_eq!(error.cause, Cause::Gid { port_num: PORT, index: len, table_len: len }, "{error}");
    }
    Ok(())
}

fn ud_path_with_a_service_level_and_a_rate_delivers<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut net = Net::new(context)?;
    for sl in [3, 0, 7] {
        let attr = AhAttr { sl, static_rate: Rate::MAX, ..path(&context.find_gid(PORT)?) };
        net.ah = net.pair.pd.create_ah(&attr)?;
        net.receive(1, 48)?;
        // Sends no immediate data, because a completion has the partition index in that field.
        let (to, sge) = (net.ah.to(net.pair.b.qp.qp_num(), QKEY), [net.arena.sge(0..8)]);
        post_send(&mut net.pair.a.qp, &[signalled(2, SendOp::UdSend { to }, &sge)])?;
        wait_for(&mut net.pair.a.cq, 2, WcOpcode::SEND)?;
        let wc = wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?;
        // RoCE has neither local ids nor service levels. There, ConnectX and soft devices report
        // the kind of the IP header; rxe reports nothing.
        let expected = match (is_ethernet(context)?, is_rxe()?) {
            (false, _) => (sl, attr.dlid),
            (true, false) => (IPV4_HEADER, 0),
            (true, true) => (0, 0),
        };
        assert_eq!((wc.sl, wc.slid), expected, "{wc:?}");
        assert_eq!((wc.pkey_index, wc.dlid_path_bits), (0, 0), "{wc:?}");
        assert!(attr.dlid != 0 || is_ethernet(context)?, "a port of InfiniBand has a local id");
    }
    Ok(())
}

fn ud_send_without_an_address_is_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut net = Net::new(context)?;
    let sge = [net.arena.sge(0..8)];
    for op in [SendOp::Send, SendOp::SendWithImm { imm_data: 1 }] {
        let error = post_send(&mut net.pair.a.qp, &[signalled(1, op, &sge)]).unwrap_err();
        assert_eq!(error.reason, PostReason::UnsupportedOp { op: op.kind(), qp_type: QpType::UD });
    }
    Ok(())
}

fn ud_queue_key_can_be_changed<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut net = Net::new(context)?;
    net.receive(1, 48)?;
    net.pair.b.qp.modify(&QpAttr { qkey: 0x77, ..QpAttr::default() }, QpAttrMask::QKEY)?;
    assert_eq!(net.pair.b.qp.query(QpAttrMask::QKEY)?.0.qkey, 0x77);
    // A datagram with the old key is dropped; a datagram with the new key arrives.
    net.send(1, 8)?;
    let to = net.ah.to(net.pair.b.qp.qp_num(), 0x77);
    send(&mut net.pair.a.qp, &mut net.pair.a.cq, to, 2, &[net.arena.sge(0..8)])?;
    assert_eq!(imm(&wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?), Some(2));
    Ok(())
}

fn ud_error_state_flushes_receives_and_sends<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut net = Net::new(context)?;
    net.receive(1, 48)?;
    net.receive(2, 48)?;
    let to = net.ah.to(net.pair.a.qp.qp_num(), QKEY);
    let mut end = net.pair.b;
    let mut qp: Qp<Errored, P> = end.qp.to_error()?;
    for wr_id in [1, 2] {
        wait_status(&mut end.cq, wr_id, WcStatus::WR_FLUSH_ERR)?;
    }
    if rxe_is_before(6, 1)? {
        // In this state, rxe's requester on this kernel exits at once and does not wake the task
        // that flushes.
        return Ok(());
    }
    post_send(&mut qp, &[signalled(3, SendOp::UdSend { to }, &[net.arena.sge(0..8)])])?;
    wait_status(&mut end.cq, 3, WcStatus::WR_FLUSH_ERR)
}

fn ud_reset_queue_pair_receives_again<P: Provider>(context: &Context<P>) -> CaseResult {
    let Net { pair, ah, arena } = Net::new(context)?;
    let Pair { pd, mut a, b, .. } = pair;
    let shape = Shape::for_type(QpType::UD);
    let mut receiver = connect(context, b.qp.to_reset()?, &shape, Remote { qp_num: 0, psn: 0 })?;
    let mut cq = b.cq;
    post_recv(&mut receiver, &[RecvWr { wr_id: 1, sge: &[arena.sge(HALF..HALF + 48)] }])?;
    let to = ah.to(receiver.qp_num(), QKEY);
    send(&mut a.qp, &mut a.cq, to, 1, &[arena.sge(0..8)])?;
    wait_for(&mut cq, 1, WcOpcode::RECV)?;
    drop((receiver, pd));
    Ok(())
}

/// A multicast group for this process's device, with the path to it.
struct Group {
    gid: Gid,
    /// The group's local id: 0 on Ethernet.
    lid: u16,
    path: AhAttr,
    /// The socket that joins the group at the IP layer, as a connection manager would. rxe does not
    /// join.
    _joined: Option<UdpSocket>,
}

impl Group {
    fn new<P: Provider>(context: &Context<P>, last: u8) -> CaseResult<Self> {
        let source = context.find_gid(PORT)?;
        // Processes on one host share groups, so each process uses a different address.
        let [.., high, low] = std::process::id().to_be_bytes();
        if !is_ethernet(context)? {
            // Transient, link-local (RFC 4291, 2.7).
            let gid = Gid([0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last, high, low]);
            let lid = group_lid()?;
            return Ok(Self {
                gid,
                lid,
                path: AhAttr { dlid: lid, ..AhAttr::new(&source, gid) },
                _joined: None,
            });
        }
        let Some(local) = source.gid.to_ipv4() else {
            return skip("the device has no IPv4 address, and loopback no IPv6 multicast");
        };
        let address = Ipv4Addr::new(239, last, high, low);
        let joined = if is_rxe()? {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.join_multicast_v4(&address, &local)?;
            Some(socket)
        } else {
            None
        };
        let gid = Gid::from(IpAddr::from(address));
        Ok(Self { gid, lid: 0, path: AhAttr::new(&source, gid), _joined: joined })
    }

    /// Sends a datagram to the group's members.
    fn send<P: Provider>(&self, net: &mut Net<P>, imm_data: u32, qkey: u32) -> CaseResult {
        let ah = net.pair.pd.create_ah(&self.path)?;
        let to = ah.to(UdAddr::MULTICAST_QPN, qkey);
        send(&mut net.pair.a.qp, &mut net.pair.a.cq, to, imm_data, &[net.arena.sge(0..8)])
    }
}

fn mcast_each_member_receives_a_datagram_once<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut net, group) = (Net::new(context)?, Group::new(context, 10)?);
    let shape = Shape::for_type(QpType::UD);
    let mut cq = context.create_cq(&verbs::CqInit::new(8))?;
    let third = create_qp(&net.pair.pd, &cq, &shape)?;
    let mut third = connect(context, third, &shape, Remote { qp_num: 0, psn: 0 })?;
    third.attach_mcast(&group.gid, group.lid)?;
    net.pair.b.qp.attach_mcast(&group.gid, group.lid)?;
    for wr_id in [1, 2] {
        net.receive(wr_id, 48)?;
        post_recv(&mut third, &[RecvWr { wr_id, sge: &[net.arena.sge(HALF + 48..HALF + 96)] }])?;
    }
    for n in [1, 2] {
        group.send(&mut net, n, QKEY)?;
        let sender = net.pair.a.qp.qp_num();
        for cq in [&mut net.pair.b.cq, &mut cq] {
            let wc = wait_for(cq, n.into(), WcOpcode::RECV)?;
            assert_eq!((imm(&wc), wc.src_qp, wc.byte_len), (Some(n), sender, 48), "neither lost nor twice");
        }
    }
    Ok(())
}

fn mcast_header_names_the_group<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut net, group) = (Net::new(context)?, Group::new(context, 11)?);
    net.pair.b.qp.attach_mcast(&group.gid, group.lid)?;
    net.receive(1, 48)?;
    group.send(&mut net, 1, QKEY)?;
    wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?;
    let header = Grh::parse(&net.arena.read(HALF..HALF + GRH))?;
    assert_eq!((header.sgid, header.dgid), (context.find_gid(PORT)?.gid, group.gid));
    Ok(())
}

fn mcast_group_without_members_receives_nothing<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut net, group) = (Net::new(context)?, Group::new(context, 12)?);
    net.receive(1, 48)?;
    group.send(&mut net, 1, QKEY)?;
    net.send(2, 8)?;
    assert_eq!(imm(&wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?), Some(2));
    Ok(())
}

fn mcast_member_that_left_receives_nothing<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut net, group) = (Net::new(context)?, Group::new(context, 13)?);
    net.pair.b.qp.attach_mcast(&group.gid, group.lid)?;
    net.pair.b.qp.detach_mcast(&group.gid, group.lid)?;
    let error = net.pair.b.qp.detach_mcast(&group.gid, group.lid).unwrap_err();
    assert_eq!((error.errno, error.cause), (Errno::INVAL, Cause::NotAttached { gid: group.gid }));
    net.receive(1, 48)?;
    group.send(&mut net, 1, QKEY)?;
    net.send(2, 8)?;
    assert_eq!(imm(&wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?), Some(2));
    Ok(())
}

fn mcast_member_can_be_attached_twice_and_detached_once<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut net, group) = (Net::new(context)?, Group::new(context, 14)?);
    net.pair.b.qp.attach_mcast(&group.gid, group.lid)?;
    net.pair.b.qp.attach_mcast(&group.gid, group.lid)?;
    net.receive(1, 48)?;
    net.receive(2, 48)?;
    for n in [1, 2] {
        group.send(&mut net, n, QKEY)?;
        assert_eq!(imm(&wait_for(&mut net.pair.b.cq, n.into(), WcOpcode::RECV)?), Some(n), "once each");
    }
    net.pair.b.qp.detach_mcast(&group.gid, group.lid)?;
    assert!(net.pair.b.qp.detach_mcast(&group.gid, group.lid).is_err());
    Ok(())
}

fn mcast_wrong_queue_key_is_dropped_by_each_member<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut net, group) = (Net::new(context)?, Group::new(context, 15)?);
    net.pair.b.qp.attach_mcast(&group.gid, group.lid)?;
    net.receive(1, 48)?;
    group.send(&mut net, 1, QKEY + 1)?;
    group.send(&mut net, 2, QKEY)?;
    assert_eq!(imm(&wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?), Some(2));
    Ok(())
}

fn mcast_sender_need_not_be_a_member<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut net, group) = (Net::new(context)?, Group::new(context, 16)?);
    net.pair.b.qp.attach_mcast(&group.gid, group.lid)?;
    let sge = [net.arena.sge(HALF + 100..HALF + 148)];
    post_recv(&mut net.pair.a.qp, &[RecvWr { wr_id: 9, sge: &sge }])?;
    net.receive(1, 48)?;
    group.send(&mut net, 1, QKEY)?;
    wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?;
    assert!(is_empty(&mut net.pair.a.cq), "the sender is no member");
    // A member receives its own messages.
    net.pair.a.qp.attach_mcast(&group.gid, group.lid)?;
    net.receive(2, 48)?;
    let ah = net.pair.pd.create_ah(&group.path)?;
    let to = ah.to(UdAddr::MULTICAST_QPN, QKEY);
    let sge = [net.arena.sge(0..8)];
    let wr = verbs::SendWr { wr_id: 2, op: SendOp::UdSend { to }, sge: &sge, flags: SendFlags::empty() };
    post_send(&mut net.pair.a.qp, &[wr])?;
    wait_for(&mut net.pair.b.cq, 2, WcOpcode::RECV)?;
    wait_for(&mut net.pair.a.cq, 9, WcOpcode::RECV)?;
    Ok(())
}

fn mcast_member_hears_several_groups<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut net = Net::new(context)?;
    let groups = [Group::new(context, 17)?, Group::new(context, 18)?, Group::new(context, 19)?];
    for group in &groups {
        net.pair.b.qp.attach_mcast(&group.gid, group.lid)?;
    }
    for (n, group) in (1_u32..).zip(&groups) {
        net.receive(n.into(), 48)?;
        group.send(&mut net, n, QKEY)?;
        assert_eq!(imm(&wait_for(&mut net.pair.b.cq, n.into(), WcOpcode::RECV)?), Some(n));
        let header = Grh::parse(&net.arena.read(HALF..HALF + GRH))?;
        assert_eq!(header.dgid, group.gid);
    }
    // Leaving one group keeps the other memberships.
    net.pair.b.qp.detach_mcast(&groups[1].gid, groups[1].lid)?;
    net.receive(9, 48)?;
    groups[1].send(&mut net, 4, QKEY)?;
    groups[2].send(&mut net, 5, QKEY)?;
    assert_eq!(imm(&wait_for(&mut net.pair.b.cq, 9, WcOpcode::RECV)?), Some(5));
    Ok(())
}

fn mcast_refuses_other_services_and_addresses<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut net, group) = (Net::new(context)?, Group::new(context, 20)?);
    let unicast = context.find_gid(PORT)?.gid;
    let error = net.pair.b.qp.attach_mcast(&unicast, 0).unwrap_err();
    assert_eq!((error.errno, error.cause), (Errno::INVAL, Cause::NotMulticast { gid: unicast }));
    for qp_type in [QpType::RC, QpType::UC] {
        let mut pair = Pair::new(context, &Shape::for_type(qp_type))?;
        let error = pair.a.qp.attach_mcast(&group.gid, group.lid).unwrap_err();
        assert_eq!(
            (error.errno, error.cause),
            (Errno::INVAL, Cause::CallOfType { qp_type, needs: "only UD queue pairs join multicast groups" })
        );
    }
    Ok(())
}

fn mcast_members_are_detached_when_they_are_destroyed<P: Provider>(context: &Context<P>) -> CaseResult {
    let group = Group::new(context, 21)?;
    for _ in 0..10 {
        let mut net = Net::new(context)?;
        net.pair.a.qp.attach_mcast(&group.gid, group.lid)?;
        net.pair.b.qp.attach_mcast(&group.gid, group.lid)?;
        // The kernel would refuse to destroy a queue pair that is still a member.
        net.pair.a.qp.close()?;
        drop(net.pair.b.qp);
        net.pair.a.cq.close()?;
        net.pair.b.cq.close()?;
    }
    Ok(())
}

fn mcast_answer_to_a_group_has_no_path_of_its_own<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut net, group) = (Net::new(context)?, Group::new(context, 22)?);
    net.pair.b.qp.attach_mcast(&group.gid, group.lid)?;
    net.receive(1, 48)?;
    group.send(&mut net, 1, QKEY)?;
    let wc = wait_for(&mut net.pair.b.cq, 1, WcOpcode::RECV)?;
    // The group is not one of the port's GIDs, so the program must choose the source address of its
    // reply.
    let error = context.init_ah_from_wc(PORT, &wc, &net.arena.read(HALF..HALF + 48)).unwrap_err();
    let cause = Cause::NoSuchGid { port_num: PORT, gid: group.gid };
    assert_eq!((error.errno, error.cause), (Errno::NODATA, cause));
    Ok(())
}
