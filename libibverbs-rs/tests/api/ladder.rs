//! The states of a queue pair: the commands sent by each step and the handle returned by a failed
//! step.

use crate::common::World;
use verbs::state::{Reset, Rts, Sqd};
use verbs::{
    AccessFlags, AhAttr, Cause, Context, CqInit, DataInOrder, Ece, Errno, HandleError, InitAttr, Mtu, OpKind,
    Provider, Qp, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, RateLimit, RtrAttr, RtsAttr,
};

both! {
    each_step_sends_what_the_type_requires_and_no_more
    a_queue_pair_sends_from_a_number_of_its_own_and_a_reset_one_from_another
    every_way_to_reset_draws_a_new_number_and_a_refused_one_keeps_the_old
    a_step_that_is_refused_gives_the_queue_pair_back
    the_device_may_move_it_and_the_type_does_not_know
    any_state_can_be_reached_by_name
    a_send_queue_drains_and_resumes
    a_failed_send_queue_recovers_and_nothing_else_does
    the_pace_and_the_options_of_a_connection_reach_the_provider
    gids_are_asked_and_chosen
}

fn create<P: Provider>(context: &Context<P>, qp_type: QpType) -> Qp<Reset, P> {
    let cq = context.create_cq(&CqInit::new(4)).unwrap();
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let init = QpInit { cap, ..QpInit::new(qp_type, &cq) };
    context.alloc_pd().unwrap().create_qp(&init).unwrap()
}

fn each_step_sends_what_the_type_requires_and_no_more<P: Provider>(world: &World, context: Context<P>) {
    use QpAttrMask as M;
    let init = InitAttr { port_num: 2, pkey_index: 3, access: AccessFlags::REMOTE_READ, qkey: 0x1111 };
    let ah_attr = AhAttr { dlid: 9, port_num: 2, ..AhAttr::default() };
    let rtr = RtrAttr {
        ah_attr,
        dest_qp_num: 5,
        rq_psn: 6,
        path_mtu: Mtu::MTU_4096,
        max_dest_rd_atomic: 7,
        min_rnr_timer: 8,
    };
    let rts = RtsAttr { sq_psn: Some(10), timeout: 11, retry_cnt: 2, rnr_retry: 3, max_rd_atomic: 4 };
    let connected = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let cases = [
        (
            QpType::RC,
            [
                M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
                connected | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
                M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC,
            ],
        ),
        (QpType::UC, [M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS, connected, M::SQ_PSN]),
        (QpType::UD, [M::PKEY_INDEX | M::PORT | M::QKEY, M::empty(), M::SQ_PSN]),
    ];
    for (qp_type, masks) in cases {
        world.state().moves.clear();
        let qp =
            create(&context, qp_type).to_init(&init).unwrap().to_rtr(&rtr).unwrap().to_rts(&rts).unwrap();
        assert_eq!(qp.state().unwrap(), QpState::RTS);
        let states = [QpState::INIT, QpState::RTR, QpState::RTS];
        let state = world.state();
        let sent: Vec<_> = state.moves.iter().map(|(to, mask, _)| (*to, *mask)).collect();
        let expected: Vec<_> = states.into_iter().zip(masks.map(|mask| mask | M::STATE)).collect();
        assert_eq!(sent, expected, "{qp_type}");
        let [init, rtr, rts] = [0, 1, 2].map(|step| state.moves[step].2);
        drop(state);
        assert_eq!((init.port_num, init.pkey_index, init.qkey), (2, 3, 0x1111));
        assert_eq!(init.qp_access_flags, AccessFlags::REMOTE_READ);
        assert_eq!((rtr.ah_attr, rtr.dest_qp_num, rtr.rq_psn, rtr.path_mtu), (ah_attr, 5, 6, Mtu::MTU_4096));
        assert_eq!((rtr.max_dest_rd_atomic, rtr.min_rnr_timer), (7, 8));
        assert_eq!(
            (rts.sq_psn, rts.timeout, rts.retry_cnt, rts.rnr_retry, rts.max_rd_atomic),
            (10, 11, 2, 3, 4)
        );
    }
}

fn a_queue_pair_sends_from_a_number_of_its_own_and_a_reset_one_from_another<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let started = |qp: Qp<Reset, P>| {
        let qp = qp.to_init(&InitAttr::default()).unwrap().to_rtr(&RtrAttr::unconnected()).unwrap();
        let qp = qp.to_rts(&RtsAttr::default()).unwrap();
        let sent = world.state().moves.last().unwrap().2.sq_psn;
        assert_eq!(qp.psn(), sent, "the device is told what the program tells its peer");
        assert!(sent < 1 << 24);
        (qp, sent)
    };
    let mut drawn = std::collections::BTreeSet::new();
    for _ in 0..8 {
        let (qp, first) = started(create(&context, QpType::UC));
        let (_, second) = started(qp.to_reset().unwrap());
        drawn.extend([first, second]);
    }
    // The chance that two of 16 draws of 24 bits are equal is 1 in 140,000; three equal pairs
    // practically never occur.
    assert!(drawn.len() >= 14, "{drawn:?}");
}

fn every_way_to_reset_draws_a_new_number_and_a_refused_one_keeps_the_old<P: Provider>(
    _world: &World,
    context: Context<P>,
) {
    let mut qp = create(&context, QpType::UC);
    let mut kept = 0;
    for _ in 0..8 {
        let before = qp.psn();
        let mut init = qp.to_init(&InitAttr::default()).unwrap();
        // Without STATE the state in the attributes is ignored.
        init.modify(&QpAttr::default(), QpAttrMask::PKEY_INDEX).unwrap();
        // RESET takes no attributes.
        let reset = QpAttr { qp_state: QpState::RESET, ..QpAttr::default() };
        init.modify(&reset, QpAttrMask::STATE | QpAttrMask::PKEY_INDEX).unwrap_err();
        assert_eq!(init.psn(), before);
        init.modify(&reset, QpAttrMask::STATE).unwrap();
        let modified = init.psn();
        qp = init.modify_to::<Reset>(&QpAttr::default(), QpAttrMask::empty()).unwrap();
        kept += u32::from(modified == before) + u32::from(qp.psn() == modified);
        assert!(qp.psn() < 1 << 24 && modified < 1 << 24);
    }
    // One of 16 draws of 24 bits repeats the previous one with a chance of 1 in a million.
    assert!(kept <= 1, "{kept} of 16 resets kept the number");
}

fn a_step_that_is_refused_gives_the_queue_pair_back<P: Provider>(world: &World, context: Context<P>) {
    let qp = create(&context, QpType::RC);
    let HandleError { handle: qp, error } =
        qp.modify_to::<Rts>(&QpAttr::default(), QpAttrMask::empty()).unwrap_err();
    assert!(matches!(error.cause, Cause::IllegalTransition { from: QpState::RESET, to: QpState::RTS, .. }));
    let HandleError { handle: qp, error } =
        qp.modify_to::<verbs::state::Init>(&QpAttr::default(), QpAttrMask::QKEY).unwrap_err();
    assert!(error.to_string().contains("misses ACCESS_FLAGS"), "{error}");
    let qp = qp.to_init(&InitAttr::default()).unwrap();
    assert_eq!(qp.state().unwrap(), QpState::INIT);
    drop((qp, context));
    world.assert_empty();
}

fn the_device_may_move_it_and_the_type_does_not_know<P: Provider>(world: &World, context: Context<P>) {
    let qp = create(&context, QpType::UD).to_init(&InitAttr::default()).unwrap();
    let mut qp = qp.to_rtr(&RtrAttr::unconnected()).unwrap();
    world.flush(qp.qp_num());
    assert_eq!(qp.state().unwrap(), QpState::ERR);
    let before = world.state().moves.len();
    qp.modify(&QpAttr { qp_state: QpState::RESET, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
    assert_eq!(world.state().moves.len(), before + 1);
    assert_eq!(qp.state().unwrap(), QpState::RESET);
}

fn any_state_can_be_reached_by_name<P: Provider>(_: &World, context: Context<P>) {
    let qp = create(&context, QpType::UD).to_init(&InitAttr::default()).unwrap();
    let qp = qp.to_rtr(&RtrAttr::unconnected()).unwrap().to_rts(&RtsAttr::default()).unwrap();
    let qp = qp.modify_to::<Sqd>(&QpAttr::default(), QpAttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    assert_eq!(qp.state().unwrap(), QpState::SQD);
    let qp = qp.modify_to::<Rts>(&QpAttr::default(), QpAttrMask::empty()).unwrap().to_error().unwrap();
    assert_eq!(qp.state().unwrap(), QpState::ERR);
    let mut qp = qp.to_reset().unwrap();
    assert_eq!((qp.state().unwrap(), qp.reclaim_all().len()), (QpState::RESET, 0));
    assert_eq!(format!("{qp:?}"), "Qp { qp_num: 0x000011, qp_type: UD, state: RESET, .. }");
}

fn datagrams<P: Provider>(context: &Context<P>) -> Qp<Rts, P> {
    let qp = create(context, QpType::UD).to_init(&InitAttr::default()).unwrap();
    qp.to_rtr(&RtrAttr::unconnected()).unwrap().to_rts(&RtsAttr::default()).unwrap()
}

fn a_send_queue_drains_and_resumes<P: Provider>(world: &World, context: Context<P>) {
    let mut qp = datagrams(&context);
    for notify in [false, true] {
        let drained = qp.to_sqd(notify).unwrap();
        let (to, mask, attr) = world.state().moves.last().copied().unwrap();
        assert_eq!((to, attr.en_sqd_async_notify), (QpState::SQD, notify));
        assert_eq!(mask, QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY);
        assert!(drained.is_drained().unwrap());
        qp = drained.resume().unwrap();
        let (to, mask, _) = world.state().moves.last().copied().unwrap();
        assert_eq!((to, mask), (QpState::RTS, QpAttrMask::STATE));
    }
    world.state().refuse_move = Some((QpState::SQD, Errno::INVAL));
    let HandleError { handle: qp, error } = qp.to_sqd(true).unwrap_err();
    assert_eq!((qp.state().unwrap(), error.errno), (QpState::RTS, Errno::INVAL));
}

fn a_failed_send_queue_recovers_and_nothing_else_does<P: Provider>(world: &World, context: Context<P>) {
    let mut qp = datagrams(&context);
    let before = world.state().moves.len();
    qp.recover_sq().unwrap();
    assert_eq!(world.state().moves.len(), before, "there was nothing to do");
    world.fail_sends(qp.qp_num());
    assert_eq!(qp.state().unwrap(), QpState::SQE);
    qp.recover_sq().unwrap();
    let (to, mask, attr) = world.state().moves.last().copied().unwrap();
    assert_eq!((to, attr.cur_qp_state), (QpState::RTS, QpState::SQE));
    assert_eq!(mask, QpAttrMask::STATE | QpAttrMask::CUR_STATE);
    assert_eq!(qp.state().unwrap(), QpState::RTS);
    world.flush(qp.qp_num());
    let error = qp.recover_sq().unwrap_err();
    assert_eq!(error.cause.to_string(), "an UD queue pair cannot go from ERR to RTS");
    assert_eq!(*error.device, *context.device_name());
}

fn the_pace_and_the_options_of_a_connection_reach_the_provider<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut qp = create(&context, QpType::UD);
    let texts = [
        qp.set_ece(&Ece { vendor_id: 1, options: 2 }).unwrap_err().to_string(),
        qp.query_ece().unwrap_err().to_string(),
    ];
    for (text, verb) in texts.iter().zip(["set_ece", "query_ece"]) {
        assert!(
            text.starts_with(&format!("{verb} on {}: ", context.device_name()))
                && text.ends_with("(EOPNOTSUPP)"),
            "{text}"
        );
    }
    assert_eq!(qp.data_in_order(OpKind::RDMA_WRITE), DataInOrder::empty());
    world.state().has_extras = true;
    let ece = Ece { vendor_id: 0x15b3, options: 7 };
    qp.set_ece(&ece).unwrap();
    assert_eq!(qp.query_ece().unwrap(), ece);
    let promised = if cfg!(target_arch = "x86_64") { DataInOrder::WHOLE_MSG } else { DataInOrder::empty() };
    assert_eq!(qp.data_in_order(OpKind::RDMA_WRITE), promised);
    assert_eq!(qp.device_data_in_order(OpKind::RDMA_WRITE), DataInOrder::WHOLE_MSG);
    assert_eq!(qp.data_in_order(OpKind::SEND), DataInOrder::empty());
    let qp = qp.to_init(&InitAttr::default()).unwrap().to_rtr(&RtrAttr::unconnected()).unwrap();
    let mut qp = qp.to_rts(&RtsAttr::default()).unwrap();
    let pace = RateLimit { rate_limit: 1000, max_burst_sz: 4096, typical_pkt_sz: 1024 };
    qp.modify_rate_limit(&pace).unwrap();
    assert_eq!(world.state().pace, Some(pace));
    world.state().has_extras = false;
    let text = qp.modify_rate_limit(&pace).unwrap_err().to_string();
    assert!(text.starts_with(&format!("modify_qp_rate_limit on {}: ", context.device_name())), "{text}");
}

fn gids_are_asked_and_chosen<P: Provider>(world: &World, context: Context<P>) {
    use verbs::{Gid, GidEntry, GidType};
    let none = context.find_gid(1).unwrap_err();
    assert_eq!((none.errno, none.cause), (Errno::NODATA, Cause::Gid { port_num: 1, index: 0, table_len: 8 }));
    assert_eq!(context.find_gid(9).unwrap_err().verb, "query_port");
    let entry = |gid_index, gid_type| GidEntry {
        gid: Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 1)),
        gid_index,
        port_num: 1,
        gid_type,
        ndev_ifindex: 0,
    };
    world.state().gids = vec![entry(0, GidType::ROCE_V1), entry(4, GidType::ROCE_V2)];
    assert_eq!(context.find_gid(1).unwrap().gid_index, 4);
    assert_eq!(context.query_gid(1, 4).unwrap(), Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 1)));
    assert_eq!(context.query_gid(1, 3).unwrap(), Gid::ZERO, "an empty entry, as in C");
    assert_eq!(context.gid_table().unwrap().len(), 2);
}
