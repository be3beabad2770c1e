//! Queue pair commands: creation, transitions, queries, destruction, rejections.

mod ece;
mod refused;
mod transitions;

use roce::engine::{Network, Service as Transport};

use super::*;
use crate::cmd::bench::{Bench, input, naming, stray};
use crate::complaint::Rule;
use crate::layout::Field;
use crate::layout::qp::rst2init_qp_in;
use crate::layout::srq::{create_srq_in, create_srq_out, create_xrc_srq_out, srqc};
use crate::port::PortKind;
use crate::state::qp::ReceiveShape;

/// Returns the number that stands for a service in a context.
fn st(service: Service) -> u32 {
    match service {
        Service::Rc => 0,
        Service::Uc => 1,
        Service::Ud => 2,
        Service::XrcInitiator | Service::XrcTarget => 3,
        Service::Qp0 => 7,
        Service::Qp1 => 8,
        Service::RegUmr => 0xc,
    }
}

const ALL: [Service; 8] = [
    Service::Rc,
    Service::Uc,
    Service::Ud,
    Service::XrcInitiator,
    Service::XrcTarget,
    Service::Qp0,
    Service::Qp1,
    Service::RegUmr,
];

/// Returns a CREATE_QP input as the kernel writes it. If the service has these queues, the receive
/// queue has 16 receives of 64 bytes, and the send queue 16 blocks.
fn request(bench: &mut Bench, service: Service) -> Vec<u8> {
    let mut input = input(0x500, create_qp_in::PAS);
    let (cqn, record) = (bench.cq(), bench.page());
    let mut fields = vec![
        (qpc::ST, u64::from(st(service))),
        (qpc::PM_STATE, 3),
        (qpc::PD, u64::from(bench.pd)),
        (qpc::CQN_SND, u64::from(cqn)),
        (qpc::CQN_RCV, u64::from(cqn)),
        (qpc::USER_INDEX, 0x123),
        (qpc::XRCD, u64::from(bench.xrcd)),
        (qpc::UAR_PAGE, u64::from(bench.uar)),
        (qpc::DBR_ADDR, record),
        (qpc::LOG_SQ_SIZE, 4),
    ];
    match service {
        Service::XrcTarget | Service::XrcInitiator => {
            let srq = bench.create_xrc_srq(cqn);
            let srqn = create_xrc_srq_out::XRC_SRQN.get32(&bench.ok(srq));
            fields.extend([(qpc::RQ_TYPE, 1), (qpc::SRQN_RMPN_XRQN, u64::from(srqn))]);
        }
        Service::RegUmr => fields.extend([(qpc::RQ_TYPE, 3), (qpc::PD, 0), (qpc::LATENCY_SENSITIVE, 1)]),
        _ => fields.extend([(qpc::LOG_RQ_SIZE, 4), (qpc::LOG_RQ_STRIDE, 2)]),
    }
    if service == Service::XrcTarget {
        fields.extend([(qpc::NO_SQ, 1), (qpc::LOG_SQ_SIZE, 0), (qpc::DBR_ADDR, 0), (qpc::UAR_PAGE, 0)]);
    } else {
        input.extend(bench.pages(1));
    }
    with(&input, &fields)
}

/// Creates a shared receive queue for 16 receives of 64 bytes. Returns its number.
fn shared(bench: &mut Bench) -> u32 {
    let mut input = input(0x700, create_srq_in::PAS);
    let (pd, record) = (bench.pd, bench.page());
    let context = create_srq_in::SRQ_CONTEXT_ENTRY.bytes_mut(&mut input);
    for (field, value) in [
        (srqc::LOG_SRQ_SIZE, 4),
        (srqc::LOG_RQ_STRIDE, 2),
        (srqc::PD, u64::from(pd)),
        (srqc::DBR_ADDR, record),
    ] {
        field.set(context, value);
    }
    input.extend(bench.pages(1));
    create_srq_out::SRQN.get32(&bench.ok(input))
}

/// A context field and its new value.
type Change = (Field, u64);

/// Returns `input` with some fields of its context changed.
fn with(input: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut input = input.to_vec();
    for (field, value) in changes {
        field.set(create_qp_in::QPC.bytes_mut(&mut input), *value);
    }
    input
}

/// Returns `input` with some fields of its primary path changed.
fn along(input: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut input = input.to_vec();
    let context = create_qp_in::QPC.bytes_mut(&mut input);
    for (field, value) in changes {
        field.set(qpc::PRIMARY_ADDRESS_PATH.bytes_mut(context), *value);
    }
    input
}

fn create(bench: &mut Bench, service: Service) -> u32 {
    let input = request(bench, service);
    create_qp_out::QPN.get32(&bench.ok(input))
}

/// Returns the input of a transition command as the kernel writes it, with all required attributes.
fn step(opcode: u16, qpn: u32) -> Vec<u8> {
    if matches!(opcode, 0x507 | 0x50a) {
        return naming(opcode, qpn);
    }
    let mut command = input(opcode, rst2init_qp_in::SIZE);
    rst2init_qp_in::QPN.set(&mut command, qpn);
    let command = with(
        &command,
        &[
            (qpc::PM_STATE, 3),
            (qpc::MTU, 3),
            (qpc::LOG_MSG_MAX, 30),
            (qpc::REMOTE_QPN, 0x1234),
            (qpc::NEXT_RCV_PSN, 0x11_1111),
            (qpc::NEXT_SEND_PSN, 0x22_2222),
            (qpc::LOG_RRA_MAX, 2),
            (qpc::LOG_SRA_MAX, 3),
            (qpc::MIN_RNR_NAK, 12),
            (qpc::RETRY_COUNT, 6),
            (qpc::RNR_RETRY, 5),
            (qpc::RRE, 1),
            (qpc::RWE, 1),
            (qpc::Q_KEY, 0x1111_1111),
            (qpc::COUNTER_SET_ID, 1),
        ],
    );
    along(
        &command,
        &[(ads::VHCA_PORT_NUM, 1), (ads::RLID, 9), (ads::SL, 3), (ads::ACK_TIMEOUT, 14), (ads::STAT_RATE, 0)],
    )
}

const RST2INIT: u16 = 0x502;
const INIT2RTR: u16 = 0x503;
const RTR2RTS: u16 = 0x504;
const RTS2RTS: u16 = 0x505;
const SQERR2RTS: u16 = 0x506;
const TO_ERR: u16 = 0x507;
const TO_RST: u16 = 0x50a;
const SQD2RTS: u16 = 0x50c;
const INIT2INIT: u16 = 0x50e;

/// Creates a queue pair and moves it to `state`. Returns its number.
fn in_state(bench: &mut Bench, service: Service, state: State) -> u32 {
    let qpn = create(bench, service);
    let steps: &[u16] = match state {
        State::Reset => &[],
        State::Init => &[RST2INIT],
        State::Rtr => &[RST2INIT, INIT2RTR],
        State::Rts | State::Sqd | State::Sqe => &[RST2INIT, INIT2RTR, RTR2RTS],
        State::Err => &[RST2INIT, TO_ERR],
    };
    for opcode in steps {
        bench.ok(step(*opcode, qpn));
    }
    let function = &mut bench.function;
    if state == State::Sqd {
        let change = roce::engine::AttrChange { state: Some(State::Sqd), ..Default::default() };
        function.engine.modify_qp(Qpn(qpn), &change, function.core.now, &mut function.core).unwrap();
    }
    qpn
}

/// Returns the context that QUERY_QP reports.
fn asked(bench: &mut Bench, qpn: u32) -> Vec<u8> {
    let output = bench.ok(naming(0x50b, qpn));
    query_qp_out::QPC.bytes(&output).to_vec()
}

#[test]
fn every_service_is_made_and_destroyed_and_leaves_nothing_behind() {
    for service in ALL {
        let mut bench = Bench::new(PortKind::Ib);
        let input = request(&mut bench, service);
        let qpn = create_qp_out::QPN.get32(&bench.ok(&input));
        let qp = bench.function.core.qps.get(&qpn).unwrap();
        assert_eq!((qp.service, qp.user_index), (service, 0x123));
        assert_eq!(qp.own_pd, service == Service::RegUmr);
        let cqn = qp.send_cqn;
        let context = asked(&mut bench, qpn);
        assert_eq!(context, create_qp_in::QPC.bytes(&input), "{service:?}");
        bench.refused(naming(0x401, cqn), Status::ResourceBusy, Rule::CommandBusy);
        bench.ok(naming(0x501, qpn));
        bench.refused(naming(0x501, qpn), Status::BadResource, Rule::CommandObject);
        bench.refused(naming(0x50b, qpn), Status::BadResource, Rule::CommandObject);
        if service.is_xrc() {
            let srqn = qpc::SRQN_RMPN_XRQN.get32(&context);
            bench.ok(naming(0x706, srqn));
        }
        bench.ok(naming(0x401, cqn));
        let (pd, xrcd) = (bench.pd, bench.xrcd);
        bench.ok(naming(0x801, pd));
        bench.ok(naming(0x80f, xrcd));
    }
}

#[test]
fn the_send_queue_begins_behind_the_receive_queue() {
    let mut bench = Bench::new(PortKind::Ib);
    let qpn = create(&mut bench, Service::Rc);
    let qp = bench.function.core.qps.get(&qpn).unwrap();
    assert_eq!(qp.rq, Receives::Own(ReceiveShape { log_size: 4, log_stride: 6, signature: false }));
    let sq = qp.sq.unwrap();
    assert_eq!((sq.offset, sq.log_size, sq.bytes()), (1024, 4, 1024));
    assert!(qp.pages.locate(2047).is_some() && qp.pages.locate(2048).is_none());
    let qpn = create(&mut bench, Service::XrcTarget);
    let qp = bench.function.core.qps.get(&qpn).unwrap();
    assert_eq!((qp.sq, qp.rq, qp.doorbell_record), (None, Receives::Named, None));
}

#[test]
fn a_shared_receive_queue_is_held_by_its_queue_pairs() {
    let mut bench = Bench::new(PortKind::Ib);
    let srqn = shared(&mut bench);
    let input = request(&mut bench, Service::Rc);
    let fields = [
        (qpc::RQ_TYPE, 1),
        (qpc::SRQN_RMPN_XRQN, u64::from(srqn)),
        (qpc::LOG_RQ_SIZE, 0),
        (qpc::LOG_RQ_STRIDE, 0),
    ];
    let qpn = create_qp_out::QPN.get32(&bench.ok(with(&input, &fields)));
    assert_eq!(bench.function.core.qps.get(&qpn).unwrap().rq, Receives::Shared(srqn));
    bench.refused(naming(0x701, srqn), Status::ResourceBusy, Rule::CommandBusy);
    bench.ok(naming(0x501, qpn));
    bench.ok(naming(0x701, srqn));
}

#[test]
fn a_query_returns_the_attributes_that_transitions_set() {
    let mut bench = Bench::new(PortKind::Ib);
    let qpn = in_state(&mut bench, Service::Rc, State::Rts);
    let context = asked(&mut bench, qpn);
    for (field, value) in [
        (qpc::STATE, 3),
        (qpc::MTU, 3),
        (qpc::REMOTE_QPN, 0x1234),
        (qpc::NEXT_RCV_PSN, 0x11_1111),
        (qpc::NEXT_SEND_PSN, 0x22_2222),
        (qpc::LOG_RRA_MAX, 2),
        (qpc::LOG_SRA_MAX, 3),
        (qpc::MIN_RNR_NAK, 12),
        (qpc::RETRY_COUNT, 6),
        (qpc::RNR_RETRY, 5),
        (qpc::RRE, 1),
        (qpc::RWE, 1),
        (qpc::RAE, 0),
        (qpc::COUNTER_SET_ID, 1),
        (qpc::USER_INDEX, 0x123),
    ] {
        assert_eq!(field.get(&context), value, "{}", field.name);
    }
    let path = qpc::PRIMARY_ADDRESS_PATH.bytes(&context);
    for (field, value) in [(ads::RLID, 9), (ads::SL, 3), (ads::ACK_TIMEOUT, 14), (ads::VHCA_PORT_NUM, 1)] {
        assert_eq!(field.get(path), value, "{}", field.name);
    }
    let (_, attr) = bench.function.engine.query_qp(Qpn(qpn)).unwrap();
    assert_eq!((attr.path_mtu, attr.dest_qpn, attr.pkey), (1024, 0x1234, 0xffff));
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer), (14, 6, 5, 12));
    assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (8, 4));
    assert_eq!((attr.path.network, attr.path.dlid, attr.path.sl), (Network::Local, 9, 3));
    assert_eq!(attr.path.slid, bench.function.core.port.lid());
}

#[test]
fn a_path_with_a_global_route_has_addresses() {
    let mut bench = Bench::new(PortKind::Ib);
    let qpn = in_state(&mut bench, Service::Rc, State::Init);
    let mut to_rtr = along(
        &step(INIT2RTR, qpn),
        &[(ads::GRH, 1), (ads::TCLASS, 0x20), (ads::HOP_LIMIT, 5), (ads::FLOW_LABEL, 0x12345)],
    );
    let path = qpc::PRIMARY_ADDRESS_PATH.bytes_mut(create_qp_in::QPC.bytes_mut(&mut to_rtr));
    ads::RGID_RIP.bytes_mut(path).copy_from_slice(&[0x42; 16]);
    bench.ok(to_rtr);
    let (_, attr) = bench.function.engine.query_qp(Qpn(qpn)).unwrap();
    assert_eq!((attr.path.network, attr.path.remote), (Network::Grh, [0x42; 16]));
    assert_eq!(Some(attr.path.local), bench.function.core.port.gid(0));
    assert_eq!((attr.path.traffic_class, attr.path.hop_limit, attr.path.flow_label), (0x20, 5, 0x12345));
}

#[test]
fn state_and_psn_of_a_query_are_the_present_ones() {
    let mut bench = Bench::new(PortKind::Ib);
    let qpn = in_state(&mut bench, Service::Rc, State::Sqd);
    assert_eq!(qpc::STATE.get(&asked(&mut bench, qpn)), 5);
    bench.ok(naming(TO_ERR, qpn));
    assert_eq!(qpc::STATE.get(&asked(&mut bench, qpn)), 6);
    bench.ok(naming(TO_RST, qpn));
    assert_eq!(qpc::STATE.get(&asked(&mut bench, qpn)), 0);
}

#[test]
fn groups_are_joined_by_datagrams_alone() {
    let mut bench = Bench::new(PortKind::Ib);
    let mut join = input(0x806, attach_to_mcg_in::SIZE);
    attach_to_mcg_in::MULTICAST_GID.bytes_mut(&mut join).copy_from_slice(&[0xff; 16]);
    let named = |join: &[u8], opcode: u16, qpn: u32| {
        let mut join = join.to_vec();
        attach_to_mcg_in::OPCODE.set(&mut join, opcode);
        attach_to_mcg_in::QPN.set(&mut join, qpn);
        join
    };
    let qpn = create(&mut bench, Service::Ud);
    bench.ok(named(&join, 0x806, qpn));
    bench.ok(named(&join, 0x807, qpn));
    bench.unlucky(named(&join, 0x807, qpn), Status::BadParam);
    let qpn = create(&mut bench, Service::Rc);
    bench.refused(named(&join, 0x806, qpn), Status::BadParam, Rule::CommandParameter);
    bench.refused(named(&join, 0x806, qpn + 1), Status::BadResource, Rule::CommandObject);
}

#[test]
fn a_special_number_has_one_owner() {
    for service in [Service::Qp0, Service::Qp1] {
        let mut bench = Bench::new(PortKind::Ib);
        let qpn = create(&mut bench, service);
        let second = request(&mut bench, service);
        bench.refused(&second, Status::ResourceBusy, Rule::CommandBusy);
        bench.ok(naming(0x501, qpn));
        bench.ok(second);
    }
}

#[test]
fn the_engine_gets_the_attributes_of_the_context() {
    let mut bench = Bench::new(PortKind::Ib);
    let cq = bench.create_cq(4, 128);
    let wide = u64::from(crate::layout::cq::create_cq_out::CQN.get32(&bench.ok(cq)));
    let input = request(&mut bench, Service::Rc);
    let fields = [(qpc::CS_RES, 2), (qpc::CS_REQ, 0x22), (qpc::CQN_RCV, wide), (qpc::CQN_SND, wide)];
    let qpn = create_qp_out::QPN.get32(&bench.ok(with(&input, &fields)));
    let init = init::engine_init(bench.function.core.qps.get(&qpn).unwrap());
    assert_eq!(
        (init.service, init.inline_completion.requester, init.inline_completion.responder),
        (Transport::Rc, 64, 64)
    );
    let input = request(&mut bench, Service::Ud);
    let qpn = create_qp_out::QPN.get32(&bench.ok(with(&input, &[(qpc::DETH_SQPN, 1)])));
    let init = init::engine_init(bench.function.core.qps.get(&qpn).unwrap());
    assert_eq!((init.service, init.deth_source, init.well_known), (Transport::Ud, Some(1), None));
}
