//! Queue pair attributes: their limits, their effects and queries.

use std::time::{Duration, Instant};

use verbs::{
    AccessFlags, Cause, Context, Cq, CqInit, DataInOrder, Ece, Errno, MigState, Mtu, OpKind, Provider, Qp,
    QpAttr, QpAttrMask, QpCap, QpState, QpType, RateLimit, RecvWr, RtrAttr, RtsAttr, SendOp, WcOpcode,
    WcStatus,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    ANY_ERROR, Arena, End, PORT, Pair, QKEY, Remote, Shape, connect, create_qp, ended, eventually, in_error,
    init_attr, is_empty, is_ethernet, is_mlx5, is_rxe, is_soft, path, pattern, post_recv, post_send,
    rtr_attr, rxe_ignores_rnr_timer, signalled, wait, wait_for, wait_one, wait_status, wants_right,
};
use verbs_harness::runner::{Case, CaseResult, skip};

use super::SUITE;
use super::states::queryable;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        the_attributes_of_every_step_are_queried_as_they_were_set,
        the_capacity_is_queried_in_every_state,
        sequence_numbers_move_on_with_every_packet,
        sequence_numbers_wrap_after_24_bits,
        numbers_beyond_24_bits_are_refused_by_name,
        values_at_their_limits_are_taken,
        values_beyond_their_limits_are_refused_by_name,
        a_port_and_a_partition_that_do_not_exist_are_refused,
        an_mtu_that_does_not_exist_is_refused,
        packets_are_as_long_as_the_path_mtu,
        rights_are_taken_away_in_rts,
        rights_are_given_in_rts,
        rights_may_change_before_the_connection,
        the_rnr_timer_of_rts_is_that_of_the_next_refusal,
        every_rnr_retry_waits_once,
        a_connection_after_a_reset_may_answer_more_reads,
        rnr_retries_without_limit_outlast_a_late_receive,
        every_retry_waits_once,
        without_a_timeout_nothing_is_given_up,
        the_longest_timeout_delays_nothing,
        one_outstanding_read_at_a_time_is_enough,
        reads_beyond_the_limit_wait_their_turn,
        an_initiator_without_reads_fails_them,
        another_sequence_number_is_another_connection,
        another_queue_pair_number_is_another_connection,
        the_queue_key_of_rts_is_that_of_the_next_datagram,
        the_capacity_cannot_be_changed,
        an_alternate_path_is_taken_on_infiniband_alone,
        a_path_without_migration_is_migrated,
        a_rate_limit_is_refused_with_its_verb,
        ece_and_data_in_order_are_not_promised,
        ece_is_what_both_sides_have,
    )
}

fn modify<S: verbs::state::State, P: Provider>(
    qp: &mut Qp<S, P>,
    attr: QpAttr,
    mask: QpAttrMask,
) -> verbs::Result<()> {
    qp.modify(&attr, mask)
}

fn queried<S: verbs::state::State, P: Provider>(qp: &Qp<S, P>) -> CaseResult<QpAttr> {
    Ok(qp.query(queryable())?.0)
}

/// Sends from a to b, which has a receive posted.
fn send_one<P: Provider>(pair: &mut Pair<P>, arena: &Arena<P>) -> CaseResult {
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(0..8)] }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[arena.sge(8..16)])])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
    Ok(())
}

fn the_attributes_of_every_step_are_queried_as_they_were_set<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(&CqInit::new(16))?;
    let gid = context.find_gid(PORT)?;
    for qp_type in [QpType::RC, QpType::UC] {
        let qp = create_qp(&pd, &cq, &Shape::for_type(qp_type))?;
        let qp = qp.to_init(&init_attr())?;
        let attr = queried(&qp)?;
        assert_eq!((attr.qp_state, attr.port_num, attr.pkey_index), (QpState::INIT, PORT, 0));
        // ConnectX reports the rights for reads and atomics only from RTR on, where the peer may
        // have some outstanding.
        let rights = init_attr().access;
        let bare = if is_mlx5()? { rights & AccessFlags::REMOTE_WRITE } else { rights };
        assert_eq!(attr.qp_access_flags, bare);
        let mut ah_attr = path(&gid);
        if let Some(grh) = &mut ah_attr.grh {
            (grh.hop_limit, grh.traffic_class, grh.flow_label) = (33, 0x28, 0x12345);
        }
        let rtr = RtrAttr {
            path_mtu: Mtu::MTU_512,
            max_dest_rd_atomic: 8,
            min_rnr_timer: 17,
            ..RtrAttr::new(ah_attr, 0x00ab_cdef, 0x0012_3456)
        };
        let qp = qp.to_rtr(&rtr)?;
        let attr = queried(&qp)?;
        assert_eq!((attr.qp_state, attr.dest_qp_num, attr.rq_psn), (QpState::RTR, 0x00ab_cdef, 0x0012_3456));
        assert_eq!(attr.path_mtu, Mtu::MTU_512);
        assert_eq!(attr.ah_attr.grh.map(|grh| (grh.dgid, grh.traffic_class)), Some((gid.gid, 0x28)));
        assert_eq!(attr.ah_attr.grh.map(|grh| grh.sgid_index), Some(gid.gid_index));
        // On RoCE, the kernel replaces the hop limit with the route's.
        let is_routed = !is_soft()? && is_ethernet(context)?;
        let hop_limit = if is_routed { 64 } else { 33 };
        assert_eq!(attr.ah_attr.grh.map(|grh| grh.hop_limit), Some(hop_limit));
        if qp_type == QpType::RC {
            assert_eq!((attr.max_dest_rd_atomic, attr.min_rnr_timer), (8, 17));
        }
        let rts =
            RtsAttr { sq_psn: Some(0x0065_4321), timeout: 19, retry_cnt: 3, rnr_retry: 4, max_rd_atomic: 2 };
        let attr = queried(&qp.to_rts(&rts)?)?;
        assert_eq!((attr.qp_state, attr.sq_psn, attr.rq_psn), (QpState::RTS, 0x0065_4321, 0x0012_3456));
        if qp_type == QpType::RC {
            assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic), (19, 3, 4, 2));
        }
    }
    let qp = create_qp(&pd, &cq, &Shape::for_type(QpType::UD))?.to_init(&init_attr())?;
    assert_eq!(queried(&qp)?.qkey, QKEY);
    let qp =
        qp.to_rtr(&RtrAttr::unconnected())?.to_rts(&RtsAttr { sq_psn: Some(5), ..RtsAttr::default() })?;
    let attr = queried(&qp)?;
    assert_eq!((attr.qkey, attr.sq_psn, attr.port_num), (QKEY, 5, PORT));
    Ok(())
}

fn the_capacity_is_queried_in_every_state<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(&CqInit::new(16))?;
    let least =
        QpCap { max_send_wr: 3, max_recv_wr: 5, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 20 };
    for sq_sig_all in [false, true] {
        let shape = Shape { cap: least, sq_sig_all, ..Shape::for_type(QpType::UD) };
        let qp = create_qp(&pd, &cq, &shape)?;
        let has = |(attr, info): (QpAttr, verbs::QpInitInfo)| {
            assert_eq!((info.cap, info.sq_sig_all), (attr.cap, sq_sig_all));
            assert!(attr.cap.max_send_wr >= 3 && attr.cap.max_recv_wr >= 5, "{attr:?}");
            assert!(attr.cap.max_send_sge >= 2 && attr.cap.max_recv_sge >= 1, "{attr:?}");
            assert!(attr.cap.max_inline_data >= 20, "{attr:?}");
        };
        let mask = QpAttrMask::CAP | QpAttrMask::STATE;
        has(qp.query(mask)?);
        let qp = qp.to_init(&init_attr())?;
        has(qp.query(mask)?);
        let qp = qp.to_rtr(&RtrAttr::unconnected())?.to_rts(&RtsAttr::default())?;
        has(qp.query(mask)?);
        has(qp.to_error()?.query(mask)?);
    }
    Ok(())
}

fn sequence_numbers_move_on_with_every_packet<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 8192)?;
    let (start, peer) = (queried(&pair.a.qp)?.sq_psn, queried(&pair.b.qp)?.rq_psn);
    assert_eq!((start, start), (pair.a.qp.psn(), peer));
    // Messages of 1, 1, 3 and 5 packets. Their acknowledgements use no sequence numbers.
    let mut packets = 0;
    for len in [0, 1024, 2049, 4100_usize] {
        packets += len.div_ceil(1024).max(1) as u32;
        let op = SendOp::RdmaWrite { remote_addr: arena.addr() + 8192 - 4100, rkey: arena.rkey() };
        post_send(&mut pair.a.qp, &[signalled(1, op, &[arena.sge(0..len)])])?;
        wait_for(&mut pair.a.cq, 1, WcOpcode::RDMA_WRITE)?;
        let expected = (start + packets) & 0xff_ffff;
        assert_eq!((queried(&pair.a.qp)?.sq_psn, queried(&pair.b.qp)?.rq_psn), (expected, expected), "{len}");
    }
    assert_eq!(queried(&pair.b.qp)?.sq_psn, pair.b.qp.psn(), "the other direction has its own");
    Ok(())
}

/// Connects two queue pairs. The first packet from `a` has sequence number `psn`.
pub(super) fn pair_from<P: Provider>(context: &Context<P>, shape: &Shape, psn: u32) -> CaseResult<Pair<P>> {
    let rts = RtsAttr { sq_psn: Some(psn), ..shape.rts };
    ends(context, shape, rts, |remote| Remote { psn, ..remote })
}

/// Connects two queue pairs. `a` goes to RTS with these attributes. `b` connects to `a`'s queue
/// pair number and PSN after `changed` has altered them.
fn ends<P: Provider>(
    context: &Context<P>,
    shape: &Shape,
    rts: RtsAttr,
    changed: impl Fn(Remote) -> Remote,
) -> CaseResult<Pair<P>> {
    let pd = context.alloc_pd()?;
    let (a_cq, b_cq) = (context.create_cq(&CqInit::new(64))?, context.create_cq(&CqInit::new(64))?);
    let (a, b) = (create_qp(&pd, &a_cq, shape)?, create_qp(&pd, &b_cq, shape)?);
    let (to_a, to_b) = (changed(Remote::from_qp(&a)), Remote::from_qp(&b));
    let a = a.to_init(&init_attr())?.to_rtr(&rtr_attr(context, shape, to_b)?)?.to_rts(&rts)?;
    let b = connect(context, b, shape, to_a)?;
    let end = |qp, cq| End { qp, cq, channel: None };
    Ok(Pair { context: context.clone(), pd, a: end(a, a_cq), b: end(b, b_cq) })
}

fn sequence_numbers_wrap_after_24_bits<P: Provider>(context: &Context<P>) -> CaseResult {
    for qp_type in [QpType::RC, QpType::UC] {
        for start in [0xff_fffe, 0xff_ffff, 0x7f_fffe] {
            let mut pair = pair_from(context, &Shape::for_type(qp_type), start)?;
            let arena = Arena::new(&pair.pd, 8192)?;
            let bytes = pattern(start, 3000);
            arena.write(0, &bytes);
            for wr_id in 0..4 {
                post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &[arena.sge(4096..7096)] }])?;
                post_send(&mut pair.a.qp, &[signalled(wr_id, SendOp::Send, &[arena.sge(0..3000)])])?;
                wait_for(&mut pair.a.cq, wr_id, WcOpcode::SEND)?;
                wait_for(&mut pair.b.cq, wr_id, WcOpcode::RECV)?;
                assert!(arena.read(4096..7096) == bytes);
            }
            let mut sent = 12;
            if qp_type == QpType::RC {
                let op = SendOp::RdmaRead { remote_addr: arena.addr(), rkey: arena.rkey() };
                post_send(&mut pair.a.qp, &[signalled(9, op, &[arena.sge(4096..7096)])])?;
                wait_for(&mut pair.a.cq, 9, WcOpcode::RDMA_READ)?;
                sent += 3;
            }
            let expected = (start + sent) & 0xff_ffff;
            assert_eq!(queried(&pair.a.qp)?.sq_psn, expected);
            // rxe's responder counts a read's packets only after sending them.
            let counts = || queried(&pair.b.qp).is_ok_and(|attr| attr.rq_psn == expected);
            eventually("the responder expects the next packet", counts)?;
        }
    }
    Ok(())
}

fn numbers_beyond_24_bits_are_refused_by_name<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(&CqInit::new(16))?;
    let mut qp = create_qp(&pd, &cq, &Shape::default())?.to_init(&init_attr())?;
    let good = rtr_attr(context, &Shape::default(), Remote::from_qp(&qp))?;
    for (name, asked, rtr) in [
        ("rq_psn", 1 << 24, RtrAttr { rq_psn: 1 << 24, ..good }),
        ("rq_psn", u32::MAX, RtrAttr { rq_psn: u32::MAX, ..good }),
        ("dest_qp_num", 1 << 24, RtrAttr { dest_qp_num: 1 << 24, ..good }),
    ] {
        let failed = qp.to_rtr(&rtr).expect_err("a number of more than 24 bits");
        let cause = Cause::Limit { name, asked: asked.into(), min: 0, max: 0xff_ffff };
        assert_eq!((failed.error.errno, &failed.error.cause), (Errno::INVAL, &cause));
        qp = failed.handle;
        assert_eq!(qp.state()?, QpState::INIT);
    }
    let failed = qp.to_rtr(&good)?.to_rts(&RtsAttr { sq_psn: Some(1 << 24), ..Shape::default().rts });
    let failed = failed.expect_err("a number of more than 24 bits");
    assert!(matches!(failed.error.cause, Cause::Limit { name: "sq_psn", .. }), "{}", failed.error);
    let qp = failed.handle.to_rts(&RtsAttr { sq_psn: Some(0xff_ffff), ..Shape::default().rts })?;
    assert_eq!(queried(&qp)?.sq_psn, 0xff_ffff);
    Ok(())
}

fn values_at_their_limits_are_taken<P: Provider>(context: &Context<P>) -> CaseResult {
    let device = context.query_device()?;
    let (target, initiator) =
        (device.max_qp_rd_atom.min(255) as u8, device.max_qp_init_rd_atom.min(255) as u8);
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(&CqInit::new(16))?;
    for (most, max_dest, min_rnr, timeout, retry_cnt, rnr_retry, max_rd) in
        [(true, target, 31, 31, 7, 7, initiator), (false, 0, 0, 0, 0, 0, 0)]
    {
        let qp = create_qp(&pd, &cq, &Shape::default())?.to_init(&init_attr())?;
        let good = rtr_attr(context, &Shape::default(), Remote::from_qp(&qp))?;
        let qp = qp.to_rtr(&RtrAttr { max_dest_rd_atomic: max_dest, min_rnr_timer: min_rnr, ..good })?;
        let psn = if most { 0xff_ffff } else { 0 };
        let rts = RtsAttr { sq_psn: Some(psn), timeout, retry_cnt, rnr_retry, max_rd_atomic: max_rd };
        let attr = queried(&qp.to_rts(&rts)?)?;
        // ConnectX rounds the number of outstanding reads up to a power of two.
        let is_mlx5 = is_mlx5()?;
        let reads = |asked: u8| if is_mlx5 { asked.max(1).next_power_of_two() } else { asked };
        assert_eq!((attr.max_dest_rd_atomic, attr.min_rnr_timer), (reads(max_dest), min_rnr));
        assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (timeout, retry_cnt, rnr_retry));
        assert_eq!((attr.max_rd_atomic, attr.sq_psn), (reads(max_rd), psn));
    }
    Ok(())
}

fn values_beyond_their_limits_are_refused_by_name<P: Provider>(context: &Context<P>) -> CaseResult {
    let device = context.query_device()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(&CqInit::new(16))?;
    let mut qp = create_qp(&pd, &cq, &Shape::default())?.to_init(&init_attr())?;
    let good = rtr_attr(context, &Shape::default(), Remote::from_qp(&qp))?;
    let is = |error: &verbs::Error, name: &str, max: u64| {
        assert_eq!(error.errno, Errno::INVAL);
        let Cause::Limit { name: its, asked, max: most, .. } = error.cause else { panic!("{error}") };
        assert_eq!((its, asked, most), (name, max + 1, max), "{error}");
    };
    // As a target, rxe accepts any number of reads.
    let rxe = is_rxe()?;
    let target = u8::try_from(device.max_qp_rd_atom).unwrap_or(u8::MAX);
    for (name, max, rtr, checked_by_rxe) in [
        ("min_rnr_timer", 31, RtrAttr { min_rnr_timer: 32, ..good }, true),
        ("max_dest_rd_atomic", target.into(), RtrAttr { max_dest_rd_atomic: target + 1, ..good }, false),
    ] {
        if rxe && !checked_by_rxe {
            continue;
        }
        let failed = qp.to_rtr(&rtr).expect_err("a value beyond its limit");
        is(&failed.error, name, max);
        qp = failed.handle;
    }
    let mut qp = qp.to_rtr(&good)?;
    let usual = Shape::default().rts;
    let initiator = u8::try_from(device.max_qp_init_rd_atom).unwrap_or(u8::MAX - 1);
    for (name, max, rts) in [
        ("timeout", 31, RtsAttr { timeout: 32, ..usual }),
        ("max_rd_atomic", initiator.into(), RtsAttr { max_rd_atomic: initiator + 1, ..usual }),
        ("retry_cnt", 7, RtsAttr { retry_cnt: 8, ..usual }),
        ("rnr_retry", 7, RtsAttr { rnr_retry: 8, ..usual }),
    ] {
        let failed = qp.to_rts(&rts).expect_err("a value beyond its limit");
        is(&failed.error, name, max);
        qp = failed.handle;
        assert_eq!(qp.state()?, QpState::RTR);
    }
    qp.to_rts(&usual)?;
    Ok(())
}

fn a_port_and_a_partition_that_do_not_exist_are_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(&CqInit::new(16))?;
    let mut qp = create_qp(&pd, &cq, &Shape::for_type(QpType::UD))?;
    let ports = context.query_device()?.phys_port_cnt;
    for port_num in [0, ports + 1, 255] {
        let failed = qp.to_init(&verbs::InitAttr { port_num, ..init_attr() }).expect_err("no such port");
        assert_eq!(failed.error.errno, Errno::INVAL);
        assert!(matches!(failed.error.cause, Cause::Limit { name: "port_num", .. }), "{}", failed.error);
        qp = failed.handle;
    }
    if !is_rxe()? {
        // rxe accepts any index and always uses the default partition.
        let pkeys = context.query_port(PORT)?.pkey_tbl_len;
        let failed = qp.to_init(&verbs::InitAttr { pkey_index: pkeys, ..init_attr() });
        let failed = failed.expect_err("no such partition");
        assert!(matches!(failed.error.cause, Cause::Limit { name: "pkey_index", .. }), "{}", failed.error);
        qp = failed.handle;
    }
    let qp = qp.to_init(&init_attr())?;
    assert_eq!((queried(&qp)?.port_num, queried(&qp)?.pkey_index), (PORT, 0));
    Ok(())
}

fn an_mtu_that_does_not_exist_is_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(&CqInit::new(16))?;
    let mut qp = create_qp(&pd, &cq, &Shape::default())?.to_init(&init_attr())?;
    let good = rtr_attr(context, &Shape::default(), Remote::from_qp(&qp))?;
    for code in [0, 6, 255] {
        let failed = qp.to_rtr(&RtrAttr { path_mtu: Mtu(code), ..good }).expect_err("no such MTU");
        assert_eq!((failed.error.errno, &failed.error.cause), (Errno::INVAL, &Cause::Mtu { mtu: Mtu(code) }));
        qp = failed.handle;
    }
    qp.to_rtr(&good)?;
    Ok(())
}

fn packets_are_as_long_as_the_path_mtu<P: Provider>(context: &Context<P>) -> CaseResult {
    let active = context.query_port(PORT)?.active_mtu;
    for path_mtu in Mtu::NAMED.iter().copied().filter(|mtu| mtu.bytes() <= active.bytes()) {
        for qp_type in [QpType::RC, QpType::UC] {
            let mut pair = Pair::new(context, &Shape { path_mtu, ..Shape::for_type(qp_type) })?;
            let arena = Arena::new(&pair.pd, 20_000)?;
            let bytes = pattern(7, 9001);
            arena.write(0, &bytes);
            let start = queried(&pair.a.qp)?.sq_psn;
            post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(10_000..20_000)] }])?;
            post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[arena.sge(0..9001)])])?;
            wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
            assert_eq!(wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?.byte_len, 9001);
            assert!(arena.read(10_000..19_001) == bytes, "{qp_type} {path_mtu}");
            let packets = 9001_u32.div_ceil(path_mtu.bytes().unwrap_or(1));
            assert_eq!(queried(&pair.a.qp)?.sq_psn, (start + packets) & 0xff_ffff, "{qp_type} {path_mtu}");
            assert_eq!(queried(&pair.a.qp)?.path_mtu, path_mtu);
        }
    }
    Ok(())
}

fn access(access: AccessFlags) -> QpAttr {
    QpAttr { qp_access_flags: access, ..QpAttr::default() }
}

/// Returns each operation that a peer can request, with the access right it needs.
fn operations<P: Provider>(arena: &Arena<P>) -> [(SendOp<'static>, AccessFlags, WcOpcode); 4] {
    let (remote_addr, rkey) = (arena.addr(), arena.rkey());
    [
        (SendOp::RdmaWrite { remote_addr, rkey }, AccessFlags::REMOTE_WRITE, WcOpcode::RDMA_WRITE),
        (SendOp::RdmaRead { remote_addr, rkey }, AccessFlags::REMOTE_READ, WcOpcode::RDMA_READ),
        (
            SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 },
            AccessFlags::REMOTE_ATOMIC,
            WcOpcode::FETCH_ADD,
        ),
        (
            SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 0, swap: 1 },
            AccessFlags::REMOTE_ATOMIC,
            WcOpcode::COMP_SWAP,
        ),
    ]
}

fn rights_are_taken_away_in_rts<P: Provider>(context: &Context<P>) -> CaseResult {
    for which in 0..4 {
        let mut pair = Pair::new(context, &Shape::default())?;
        let (local, target) = (Arena::new(&pair.pd, 16)?, Arena::new(&pair.pd, 16)?);
        let (op, right, opcode) = operations(&target)[which];
        post_send(&mut pair.a.qp, &[signalled(1, op, &[local.sge(0..8)])])?;
        wait_for(&mut pair.a.cq, 1, opcode)?;
        modify(&mut pair.b.qp, access(init_attr().access - right), QpAttrMask::ACCESS_FLAGS)?;
        assert_eq!(queried(&pair.b.qp)?.qp_access_flags, init_attr().access - right);
        target.write(0, &[5; 16]);
        local.write(0, &[9; 16]);
        post_send(&mut pair.a.qp, &[signalled(2, op, &[local.sge(0..8)])])?;
        let wc = wait_one(&mut pair.a.cq)?;
        wants_right(&wc, 2).map_err(|stop| stop.context(format_args!("{op:?}")))?;
        assert_eq!((target.read(0..16), local.read(0..16)), (vec![5; 16], vec![9; 16]), "{op:?}");
    }
    Ok(())
}

fn rights_are_given_in_rts<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (local, target) = (Arena::new(&pair.pd, 16)?, Arena::new(&pair.pd, 16)?);
    modify(&mut pair.b.qp, access(AccessFlags::empty()), QpAttrMask::ACCESS_FLAGS)?;
    for (op, right, opcode) in operations(&target) {
        modify(&mut pair.b.qp, access(right), QpAttrMask::ACCESS_FLAGS)?;
        post_send(&mut pair.a.qp, &[signalled(1, op, &[local.sge(0..8)])])?;
        wait_for(&mut pair.a.cq, 1, opcode)?;
    }
    Ok(())
}

fn rights_may_change_before_the_connection<P: Provider>(context: &Context<P>) -> CaseResult {
    let shape = Shape::default();
    let pd = context.alloc_pd()?;
    let (mut a_cq, b_cq) = (context.create_cq(&CqInit::new(16))?, context.create_cq(&CqInit::new(16))?);
    let (a, b) = (create_qp(&pd, &a_cq, &shape)?, create_qp(&pd, &b_cq, &shape)?);
    let (to_a, to_b) = (Remote::from_qp(&a), Remote::from_qp(&b));
    let mut a = connect(context, a, &shape, to_b)?;
    let mut b = b.to_init(&verbs::InitAttr { access: AccessFlags::empty(), ..init_attr() })?;
    modify(&mut b, access(AccessFlags::REMOTE_WRITE), QpAttrMask::ACCESS_FLAGS)?;
    assert_eq!(b.state()?, QpState::INIT);
    let b = b.to_rtr(&rtr_attr(context, &shape, to_a)?)?;
    assert_eq!(queried(&b)?.qp_access_flags, AccessFlags::REMOTE_WRITE);
    let arena = Arena::new(&pd, 16)?;
    let op = SendOp::RdmaWrite { remote_addr: arena.addr(), rkey: arena.rkey() };
    post_send(&mut a, &[signalled(1, op, &[arena.sge(8..16)])])?;
    wait_for(&mut a_cq, 1, WcOpcode::RDMA_WRITE)?;
    Ok(())
}

/// Two RNR timer codes, the second with its time (IBTA table 45).
const RNR_0_01_MS: u8 = 1;
const RNR_81_92_MS: (u8, Duration) = (26, Duration::from_micros(81_920));

/// Returns whether a time is long enough for this many waits. A kernel timer may expire up to a
/// jiffy early. After a standstill, a guest counts the missed jiffies all at once, so a timer set
/// in between expires early by the length of the standstill.
fn has_waited(took: Duration, waits: u32, wait: Duration) -> bool {
    const JIFFY: Duration = Duration::from_millis(4);
    const STANDSTILL: Duration = Duration::from_millis(30);
    took + waits * JIFFY + STANDSTILL >= waits * wait
}

/// Sends without a receive until the retries run out and returns the elapsed time.
fn runs_out<P: Provider>(pair: &mut Pair<P>, status: WcStatus) -> CaseResult<Duration> {
    let arena = Arena::new(&pair.pd, 8)?;
    let start = Instant::now();
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[arena.sge(0..8)])])?;
    wait_status(&mut pair.a.cq, 1, status)?;
    Ok(start.elapsed())
}

fn the_rnr_timer_of_rts_is_that_of_the_next_refusal<P: Provider>(context: &Context<P>) -> CaseResult {
    let rts = RtsAttr { rnr_retry: 2, timeout: 18, ..Shape::default().rts };
    let mut pair = Pair::new(context, &Shape { rts, ..Shape::default() })?;
    let (min_rnr_timer, wait) = RNR_81_92_MS;
    assert_eq!(queried(&pair.b.qp)?.min_rnr_timer, RNR_0_01_MS);
    modify(&mut pair.b.qp, QpAttr { min_rnr_timer, ..QpAttr::default() }, QpAttrMask::MIN_RNR_TIMER)?;
    assert_eq!(queried(&pair.b.qp)?.min_rnr_timer, min_rnr_timer);
    let took = runs_out(&mut pair, WcStatus::RNR_RETRY_EXC_ERR)?;
    assert!(has_waited(took, 2, wait) || rxe_ignores_rnr_timer()?, "{took:?}");
    Ok(())
}

fn every_rnr_retry_waits_once<P: Provider>(context: &Context<P>) -> CaseResult {
    let (min_rnr_timer, wait) = RNR_81_92_MS;
    for rnr_retry in 0..7 {
        let rts = RtsAttr { rnr_retry, timeout: 18, ..Shape::default().rts };
        let mut pair = Pair::new(context, &Shape { rts, ..Shape::default() })?;
        modify(&mut pair.b.qp, QpAttr { min_rnr_timer, ..QpAttr::default() }, QpAttrMask::MIN_RNR_TIMER)?;
        let took = runs_out(&mut pair, WcStatus::RNR_RETRY_EXC_ERR)?;
        let has_waited = has_waited(took, rnr_retry.into(), wait);
        assert!(has_waited || rxe_ignores_rnr_timer()?, "{rnr_retry} retries in {took:?}");
        in_error(&pair.a.qp)?;
        assert_eq!(pair.b.qp.state()?, QpState::RTS, "a receiver that is not ready is not at fault");
    }
    Ok(())
}

fn a_connection_after_a_reset_may_answer_more_reads<P: Provider>(context: &Context<P>) -> CaseResult {
    let Pair { a, b, pd, .. } = Pair::new(context, &Shape::default())?;
    let (a, b) = (a.qp.to_reset()?, b.qp.to_reset()?);
    let (to_b, mut a) = (Remote::from_qp(&b), a.to_init(&init_attr())?);
    let few = rtr_attr(context, &Shape::default(), to_b)?;
    let more = RtrAttr { max_dest_rd_atomic: 2 * few.max_dest_rd_atomic, ..few };
    if is_rxe()? {
        // The rxe kernel driver would write past a table, so the call is rejected. The queue pair
        // keeps its former attributes.
        let failed = a.to_rtr(&more).expect_err("a table that grows");
        assert_eq!(failed.error.errno, Errno::INVAL);
        assert!(
            failed.error.to_string().contains("max_dest_rd_atomic grows from 4 to 8"),
            "{}",
            failed.error
        );
        a = failed.handle;
        assert_eq!(queried(&a.to_rtr(&few)?)?.max_dest_rd_atomic, few.max_dest_rd_atomic);
    } else {
        assert_eq!(queried(&a.to_rtr(&more)?)?.max_dest_rd_atomic, more.max_dest_rd_atomic);
    }
    drop((b, pd));
    Ok(())
}

fn rnr_retries_without_limit_outlast_a_late_receive<P: Provider>(context: &Context<P>) -> CaseResult {
    if rxe_ignores_rnr_timer()? {
        return skip("rxe of this kernel repeats at once, and keeps the processor from all programs");
    }
    // A long acknowledgement timeout, because rxe on Linux 7.2 also counts RNR NAKs against that
    // timer's retries.
    let rts = RtsAttr { timeout: 18, ..Shape::default().rts };
    let mut pair = Pair::new(context, &Shape { rts, ..Shape::default() })?;
    let arena = Arena::new(&pair.pd, 16)?;
    assert_eq!(queried(&pair.a.qp)?.rnr_retry, 7);
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[arena.sge(0..8)])])?;
    // Hundreds of the shortest timer's periods, far more than 7.
    stays_empty(&mut pair.a.cq, Duration::from_millis(50))?;
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(8..16)] }])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
    Ok(())
}

/// Checks that the queue stays empty for this long.
fn stays_empty<P: Provider>(cq: &mut Cq<P>, time: Duration) -> CaseResult {
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        assert!(is_empty(cq), "a completion came");
        std::thread::yield_now();
    }
    Ok(())
}

/// Returns a queue pair whose peer no longer exists.
fn without_a_peer<P: Provider>(context: &Context<P>, rts: RtsAttr) -> CaseResult<Pair<P>> {
    let mut pair = ends(context, &Shape::default(), rts, |remote| remote)?;
    let reset = QpAttr { qp_state: QpState::RESET, ..QpAttr::default() };
    modify(&mut pair.b.qp, reset, QpAttrMask::STATE)?;
    Ok(pair)
}

fn every_retry_waits_once<P: Provider>(context: &Context<P>) -> CaseResult {
    // rxe treats 7 retries as unlimited.
    for retry_cnt in 0..if is_rxe()? { 7 } else { 8 } {
        // 4.096 µs × 2¹⁴
        let (timeout, wait) = (14, Duration::from_nanos(4096 << 14));
        let mut pair = without_a_peer(context, RtsAttr { timeout, retry_cnt, ..Shape::default().rts })?;
        let took = runs_out(&mut pair, WcStatus::RETRY_EXC_ERR)?;
        let waits = u32::from(retry_cnt) + 1;
        assert!(has_waited(took, waits, wait), "{retry_cnt} retries in {took:?}");
        in_error(&pair.a.qp)?;
    }
    Ok(())
}

fn without_a_timeout_nothing_is_given_up<P: Provider>(context: &Context<P>) -> CaseResult {
    let rts = RtsAttr { timeout: 0, retry_cnt: 0, ..Shape::default().rts };
    let mut pair = without_a_peer(context, rts)?;
    let arena = Arena::new(&pair.pd, 8)?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[arena.sge(0..8)])])?;
    stays_empty(&mut pair.a.cq, Duration::from_millis(200))?;
    assert_eq!((pair.a.qp.state()?, queried(&pair.a.qp)?.timeout), (QpState::RTS, 0));
    let _broken = pair.a.qp.to_error()?;
    wait_status(&mut pair.a.cq, 1, WcStatus::WR_FLUSH_ERR)
}

fn the_longest_timeout_delays_nothing<P: Provider>(context: &Context<P>) -> CaseResult {
    let rts = RtsAttr { timeout: 31, ..Shape::default().rts };
    let mut pair = Pair::new(context, &Shape { rts, ..Shape::default() })?;
    let arena = Arena::new(&pair.pd, 16)?;
    for _ in 0..8 {
        send_one(&mut pair, &arena)?;
    }
    assert_eq!(queried(&pair.a.qp)?.timeout, 31);
    Ok(())
}

/// Runs many reads and atomics at once and checks their order and data.
fn reads<P: Provider>(context: &Context<P>, max_rd_atomic: u8) -> CaseResult {
    let rts = RtsAttr { max_rd_atomic, ..Shape::default().rts };
    let mut pair = Pair::new(context, &Shape { rts, ..Shape::default() })?;
    let (local, target) = (Arena::new(&pair.pd, 4096)?, Arena::new(&pair.pd, 4096)?);
    let bytes = pattern(u32::from(max_rd_atomic), 4096);
    target.write(0, &bytes);
    let op = |n: usize| SendOp::RdmaRead { remote_addr: target.addr() + 128 * n as u64, rkey: target.rkey() };
    let sges: Vec<_> = (0..32).map(|n| [local.sge(128 * n..128 * n + 128)]).collect();
    let wrs: Vec<_> = sges.iter().enumerate().map(|(n, sge)| signalled(n as u64, op(n), sge)).collect();
    post_send(&mut pair.a.qp, &wrs)?;
    let ended: Vec<_> = wait(&mut pair.a.cq, 32)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ended, (0..32).map(|n| (n, WcStatus::SUCCESS)).collect::<Vec<_>>());
    assert!(local.read(0..4096) == bytes);
    Ok(())
}

fn one_outstanding_read_at_a_time_is_enough<P: Provider>(context: &Context<P>) -> CaseResult {
    reads(context, 1)
}

fn reads_beyond_the_limit_wait_their_turn<P: Provider>(context: &Context<P>) -> CaseResult {
    reads(context, 2)?;
    reads(context, 4)
}

fn an_initiator_without_reads_fails_them<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_rxe()? {
        return skip("rxe lets a read wait for ever where max_rd_atomic is 0");
    }
    if is_mlx5()? {
        return skip(
            "ConnectX counts in powers of two, and has one read outstanding where max_rd_atomic is 0",
        );
    }
    let rts = RtsAttr { max_rd_atomic: 0, ..Shape::default().rts };
    for which in 1..3 {
        let mut pair = Pair::new(context, &Shape { rts, ..Shape::default() })?;
        let arena = Arena::new(&pair.pd, 16)?;
        let (op, ..) = operations(&arena)[which];
        send_one(&mut pair, &arena)?;
        post_send(&mut pair.a.qp, &[signalled(1, op, &[arena.sge(8..16)])])?;
        wait_status(&mut pair.a.cq, 1, WcStatus::LOC_QP_OP_ERR)?;
        in_error(&pair.a.qp)?;
        assert_eq!(pair.b.qp.state()?, QpState::RTS);
    }
    Ok(())
}

fn another_sequence_number_is_another_connection<P: Provider>(context: &Context<P>) -> CaseResult {
    // Every packet of a is ahead of b's expected PSN, as if a thousand packets were lost.
    let mut pair = ends(context, &Shape::default(), Shape::default().rts, |remote| Remote {
        psn: remote.psn.wrapping_sub(1000) & 0xff_ffff,
        ..remote
    })?;
    let arena = Arena::new(&pair.pd, 16)?;
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(0..8)] }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[arena.sge(8..16)])])?;
    ended(&wait_one(&mut pair.a.cq)?, 1, WcStatus::RETRY_EXC_ERR, ANY_ERROR)?;
    assert!(is_empty(&mut pair.b.cq), "a message of another connection arrived");
    Ok(())
}

fn another_queue_pair_number_is_another_connection<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 16)?;
    // The third queue pair is connected to a, but a is not connected to it. It is created before b
    // is closed, because rxe on Linux 5.10 gives b's number to the next queue pair.
    let mut cq = context.create_cq(&CqInit::new(16))?;
    let third = create_qp(&pair.pd, &cq, &Shape::default())?;
    pair.b.qp.close()?;
    let mut third = connect(context, third, &Shape::default(), Remote::from_qp(&pair.a.qp))?;
    post_recv(&mut third, &[RecvWr { wr_id: 2, sge: &[arena.sge(0..8)] }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[arena.sge(8..16)])])?;
    wait_status(&mut pair.a.cq, 1, WcStatus::RETRY_EXC_ERR)?;
    assert!(is_empty(&mut cq));
    Ok(())
}

fn the_queue_key_of_rts_is_that_of_the_next_datagram<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UD))?;
    let arena = Arena::new(&pair.pd, 128)?;
    let ah = pair.pd.create_ah(&path(&context.find_gid(PORT)?))?;
    let qp_num = pair.b.qp.qp_num();
    let send = |pair: &mut Pair<P>, imm_data, qkey| -> CaseResult {
        let op = SendOp::UdSendWithImm { to: ah.to(qp_num, qkey), imm_data };
        post_send(&mut pair.a.qp, &[signalled(1, op, &[arena.sge(0..8)])])?;
        wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
        Ok(())
    };
    modify(&mut pair.b.qp, QpAttr { qkey: 0x777, ..QpAttr::default() }, QpAttrMask::QKEY)?;
    assert_eq!(queried(&pair.b.qp)?.qkey, 0x777);
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(8..64)] }])?;
    send(&mut pair, 1, QKEY)?;
    send(&mut pair, 2, 0x777)?;
    assert_eq!(wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?.imm_data, 2, "the key of before still opens it");
    Ok(())
}

fn the_capacity_cannot_be_changed<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let cap = pair.a.qp.cap();
    let attr = QpAttr { cap: QpCap { max_send_wr: 1, ..cap }, ..QpAttr::default() };
    let error = modify(&mut pair.a.qp, attr, QpAttrMask::CAP).unwrap_err();
    let Cause::TransitionAttributes { forbidden, missing, .. } = error.cause else { panic!("{error}") };
    assert_eq!((error.errno, forbidden, missing), (Errno::INVAL, QpAttrMask::CAP, QpAttrMask::empty()));
    assert_eq!(queried(&pair.a.qp)?.cap, pair.a.qp.query(QpAttrMask::CAP)?.1.cap);
    assert_eq!(pair.a.qp.cap(), cap);
    Ok(())
}

fn an_alternate_path_is_taken_on_infiniband_alone<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let alt_ah_attr = path(&context.find_gid(PORT)?);
    let attr = QpAttr { alt_ah_attr, alt_port_num: PORT, alt_timeout: 12, ..QpAttr::default() };
    let result = modify(&mut pair.a.qp, attr, QpAttrMask::ALT_PATH);
    let now = queried(&pair.a.qp)?;
    let arena = Arena::new(&pair.pd, 16)?;
    if !is_ethernet(context)? {
        result?;
        assert_eq!((now.alt_port_num, now.alt_timeout), (PORT, 12));
        return send_one(&mut pair, &arena);
    }
    let error = result.unwrap_err();
    if !is_soft()? {
        // The kernel's core supports alternate paths only on InfiniBand.
        assert_eq!(error.errno, Errno::INVAL);
    } else {
        assert_eq!(error.errno, Errno::OPNOTSUPP);
        assert!(error.to_string().contains("no alternate path"), "{error}");
    }
    assert_eq!((now.alt_port_num, now.alt_timeout), (0, 0));
    send_one(&mut pair, &arena)
}

fn a_path_without_migration_is_migrated<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    assert_eq!(queried(&pair.a.qp)?.path_mig_state, MigState::MIGRATED);
    let state = |path_mig_state| QpAttr { path_mig_state, ..QpAttr::default() };
    modify(&mut pair.a.qp, state(MigState::MIGRATED), QpAttrMask::PATH_MIG_STATE)?;
    for wanted in [MigState::REARM, MigState::ARMED] {
        let result = modify(&mut pair.a.qp, state(wanted), QpAttrMask::PATH_MIG_STATE);
        let now = queried(&pair.a.qp)?.path_mig_state;
        if is_rxe()? || is_mlx5()? {
            // rxe stores the migration state but never migrates.
            result?;
            assert_eq!(now, wanted);
        } else {
            assert_eq!((result.unwrap_err().errno, now), (Errno::OPNOTSUPP, MigState::MIGRATED));
        }
    }
    Ok(())
}

fn a_rate_limit_is_refused_with_its_verb<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let pace = RateLimit { rate_limit: 1000, ..RateLimit::default() };
    let error = pair.a.qp.modify_rate_limit(&pace).unwrap_err();
    // ConnectX paces only raw packets.
    let is_refused = error.errno == Errno::OPNOTSUPP || (is_mlx5()? && error.errno == Errno::INVAL);
    assert!(error.verb == "modify_qp_rate_limit" && is_refused, "{error}");
    assert_eq!(*error.device, *context.device_name());
    let error = pair.a.qp.query(QpAttrMask::RATE_LIMIT).unwrap_err();
    assert_eq!((error.verb, error.errno), ("query_qp", Errno::OPNOTSUPP));
    assert!(!context.query_device_ex()?.packet_pacing_caps.is_qpt_supported(QpType::RC));
    Ok(())
}

fn ece_is_what_both_sides_have<P: Provider>(context: &Context<P>) -> CaseResult {
    let (pd, cq, shape) = (context.alloc_pd()?, context.create_cq(&CqInit::new(16))?, Shape::default());
    let (mut a, mut b) = (create_qp(&pd, &cq, &shape)?, create_qp(&pd, &cq, &shape)?);
    let offer = match a.query_ece() {
        Ok(offer) if offer.options != 0 => offer,
        Err(error) if error.errno != Errno::OPNOTSUPP => return Err(error.into()),
        _ => return skip("the provider or the device has no options of connections"),
    };
    assert_eq!(b.query_ece()?, offer);
    // The accepting side sets the peer's options and gets back only options that it also supports.
    let foreign = 1 << offer.options.trailing_ones();
    b.set_ece(&Ece { options: offer.options | foreign, ..offer })?;
    assert_eq!(b.query_ece()?, Ece { options: 0, ..offer }, "nothing is agreed on");
    let (to_a, to_b) = (Remote::from_qp(&a), Remote::from_qp(&b));
    let b = connect(context, b, &shape, to_a)?;
    let answer = b.query_ece()?;
    assert_eq!(answer, offer);
    // The connecting side may then set fewer options than it offered.
    let fewer = Ece { options: answer.options & !1, ..answer };
    a.set_ece(&fewer)?;
    let a = connect(context, a, &shape, to_b)?;
    assert_eq!(a.query_ece()?, fewer);
    let reset = a.to_reset()?;
    assert_eq!(reset.query_ece()?, fewer);
    Ok(())
}

fn ece_and_data_in_order_are_not_promised<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(&CqInit::new(16))?;
    let mut qp = create_qp(&pd, &cq, &Shape::default())?;
    // ConnectX reports its vendor even without any options.
    let of_vendor = if is_mlx5()? { qp.query_ece()? } else { Ece { vendor_id: 0x15b3, options: 1 } };
    if is_mlx5()? {
        assert_eq!(of_vendor.vendor_id, 0x15b3);
        let error = qp.set_ece(&Ece { vendor_id: 1, ..of_vendor }).unwrap_err();
        assert!(matches!(error.errno, Errno::INVAL | Errno::OPNOTSUPP), "{error}");
    } else {
        let error = qp.set_ece(&of_vendor).unwrap_err();
        assert_eq!((error.verb, error.errno), ("set_ece", Errno::OPNOTSUPP));
        let error = qp.query_ece().unwrap_err();
        assert_eq!((error.verb, error.errno), ("query_ece", Errno::OPNOTSUPP));
        assert_eq!(*error.device, *context.device_name());
    }
    for op in [OpKind::SEND, OpKind::RDMA_WRITE, OpKind::RDMA_READ] {
        assert_eq!(qp.data_in_order(op), DataInOrder::empty());
        assert_eq!(qp.device_data_in_order(op), DataInOrder::empty());
    }
    Ok(())
}
