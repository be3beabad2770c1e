//! Tests that invalid queue pair commands are rejected.

use super::*;
use crate::layout::vport::roce_addr_layout;
use crate::port::ROCE_V2;

#[test]
fn contexts_that_break_a_rule_are_refused() {
    let mut bench = Bench::new(PortKind::Ib);
    let good = request(&mut bench, Service::Rc);
    let cases: &[(&[Change], Status, Rule)] = &[
        (&[(qpc::ST, 5)], Status::BadParam, Rule::CommandCapability),
        (&[(qpc::ST, 9)], Status::BadParam, Rule::CommandCapability),
        (&[(qpc::STATE, 3)], Status::BadParam, Rule::CommandParameter),
        (&[(qpc::PD, 0xabcdef)], Status::BadResource, Rule::CommandObject),
        (&[(qpc::CQN_SND, 0xabcdef)], Status::BadResource, Rule::CommandObject),
        (&[(qpc::CQN_RCV, 0xabcdef)], Status::BadResource, Rule::CommandObject),
        (&[(qpc::UAR_PAGE, 0xabcdef)], Status::BadResource, Rule::CommandObject),
        (&[(qpc::RQ_TYPE, 1), (qpc::SRQN_RMPN_XRQN, 0xabcdef)], Status::BadResource, Rule::CommandObject),
        (&[(qpc::RQ_TYPE, 2)], Status::BadParam, Rule::CommandCapability),
        (&[(qpc::LOG_RQ_STRIDE, 6)], Status::BadParam, Rule::CommandParameter),
        (&[(qpc::NO_SQ, 1)], Status::BadParam, Rule::CommandParameter),
        (&[(qpc::LOG_SQ_SIZE, 8)], Status::BadParam, Rule::CommandPages),
        (&[(qpc::LOG_RQ_SIZE, 8)], Status::BadParam, Rule::CommandPages),
        (&[(qpc::LOG_RQ_SIZE, 0), (qpc::LOG_RQ_STRIDE, 0)], Status::BadParam, Rule::CommandPages),
        (&[(qpc::PAGE_OFFSET, 63)], Status::BadParam, Rule::CommandPages),
        (&[(qpc::DBR_ADDR, 0x1004)], Status::BadParam, Rule::CommandDoorbellRecord),
        (&[(qpc::DBR_ADDR, u64::MAX - 7)], Status::BadParam, Rule::CommandDoorbellRecord),
        (&[(qpc::CS_RES, 2)], Status::BadParam, Rule::CommandParameter),
        (&[(qpc::CS_REQ, 1)], Status::BadParam, Rule::CommandParameter),
        (&[(qpc::RMSN, 1)], Status::BadParam, Rule::CommandCapability),
        (&[(qpc::OFFLOAD_TYPE, 1)], Status::BadParam, Rule::CommandCapability),
    ];
    for (changes, status, rule) in cases {
        bench.refused(with(&good, changes), *status, *rule);
    }
    bench.unlucky(with(&good, &[(qpc::CD_MASTER, 1)]), Status::BadParam);
    let mut reserved = good.clone();
    reserved[create_qp_in::QPC.offset + 0x84 + 3] = 1;
    bench.refused(reserved, Status::BadParam, Rule::CommandReserved);
    for path in [qpc::PRIMARY_ADDRESS_PATH, qpc::SECONDARY_ADDRESS_PATH] {
        let mut wrong = good.clone();
        stray(&ads::TABLE, path.bytes_mut(create_qp_in::QPC.bytes_mut(&mut wrong)));
        bench.refused(wrong, Status::BadParam, Rule::CommandReserved);
    }
    let mut numbered = good.clone();
    create_qp_in::INPUT_QPN.set(&mut numbered, 77u32);
    bench.refused(numbered, Status::BadParam, Rule::CommandCapability);
    bench.refused(&good[..create_qp_in::PAS], Status::BadParam, Rule::CommandPages);
    bench.ok(good);
}

#[test]
fn an_extended_context_is_not_returned() {
    let mut bench = Bench::new(PortKind::Ib);
    let qpn = create(&mut bench, Service::Rc);
    let mut query = naming(0x50b, qpn);
    query_qp_in::QPC_EXT.set(&mut query, 1u32);
    bench.refused(query, Status::BadParam, Rule::CommandCapability);
}

#[test]
fn a_shared_receive_queue_of_xrc_is_for_xrc_alone() {
    let mut bench = Bench::new(PortKind::Ib);
    let cqn = bench.cq();
    let of_xrc = bench.create_xrc_srq(cqn);
    let of_xrc = u64::from(create_xrc_srq_out::XRC_SRQN.get32(&bench.ok(of_xrc)));
    let basic = u64::from(shared(&mut bench));
    let none_of_its_own = [(qpc::RQ_TYPE, 1), (qpc::LOG_RQ_SIZE, 0), (qpc::LOG_RQ_STRIDE, 0)];
    for (service, right, wrong) in [
        (Service::Rc, basic, of_xrc),
        (Service::Ud, basic, of_xrc),
        (Service::XrcInitiator, of_xrc, basic),
        (Service::XrcTarget, of_xrc, basic),
    ] {
        let create = with(&request(&mut bench, service), &none_of_its_own);
        let naming = |srqn| with(&create, &[(qpc::SRQN_RMPN_XRQN, srqn)]);
        bench.refused(naming(wrong), Status::BadResource, Rule::CommandObject);
        bench.ok(naming(right));
    }
}

#[test]
fn an_xrc_queue_pair_needs_its_domain_and_no_receive_queue() {
    for service in [Service::XrcInitiator, Service::XrcTarget] {
        let mut bench = Bench::new(PortKind::Ib);
        let good = request(&mut bench, service);
        bench.refused(with(&good, &[(qpc::XRCD, 0xabcdef)]), Status::BadResource, Rule::CommandObject);
        bench.refused(with(&good, &[(qpc::RQ_TYPE, 0)]), Status::BadParam, Rule::CommandParameter);
        let mut listed = good.clone();
        listed.extend(bench.pages(2));
        bench.refused(listed, Status::BadParam, Rule::CommandPages);
    }
}

#[test]
fn optional_attributes_that_a_transition_does_not_know_are_refused() {
    // Mask bits: 4 is the partition key index, 5 the queue key, 6 the RNR timer, 22 pacing, 18
    // another receive queue.
    let cases = [
        (Service::Rc, State::Reset, RST2INIT, 4),
        (Service::Rc, State::Init, INIT2RTR, 5),
        (Service::Rc, State::Rtr, RTR2RTS, 4),
        (Service::Uc, State::Rtr, RTR2RTS, 6),
        (Service::Uc, State::Rtr, RTR2RTS, 1),
        (Service::Ud, State::Rtr, RTR2RTS, 3),
        (Service::Ud, State::Rts, RTS2RTS, 18),
        (Service::Uc, State::Rts, RTS2RTS, 22),
        (Service::RegUmr, State::Rts, RTS2RTS, 3),
        (Service::Rc, State::Sqd, SQD2RTS, 0),
    ];
    for (service, state, opcode, bit) in cases {
        let mut bench = Bench::new(PortKind::Ib);
        let qpn = in_state(&mut bench, service, state);
        let mut command = step(opcode, qpn);
        rst2init_qp_in::OPT_PARAM_MASK.set(&mut command, 1u32 << bit);
        bench.refused(command, Status::BadParam, Rule::QpAttribute);
        let (now, _) = bench.function.engine.query_qp(Qpn(qpn)).unwrap();
        assert_eq!(now, state, "{service:?} {opcode:#x}");
    }
}

#[test]
fn attributes_that_make_no_sense_are_refused_and_nothing_changes() {
    let mut bench = Bench::new(PortKind::Ib);
    let reset = create(&mut bench, Service::Rc);
    let init = in_state(&mut bench, Service::Rc, State::Init);
    let rtr = in_state(&mut bench, Service::Rc, State::Rtr);
    let cases = [
        (along(&step(RST2INIT, reset), &[(ads::VHCA_PORT_NUM, 0)]), Rule::QpAttribute),
        (along(&step(RST2INIT, reset), &[(ads::VHCA_PORT_NUM, 2)]), Rule::QpAttribute),
        (along(&step(RST2INIT, reset), &[(ads::PKEY_INDEX, 128)]), Rule::QpAttribute),
        (with(&step(RST2INIT, reset), &[(qpc::RAE, 1)]), Rule::QpAttribute),
        (with(&step(INIT2RTR, init), &[(qpc::MTU, 0)]), Rule::QpAttribute),
        (with(&step(INIT2RTR, init), &[(qpc::MTU, 6)]), Rule::QpAttribute),
        (with(&step(INIT2RTR, init), &[(qpc::LOG_MSG_MAX, 0)]), Rule::QpAttribute),
        (with(&step(INIT2RTR, init), &[(qpc::LOG_MSG_MAX, 31)]), Rule::CommandParameter),
        (with(&step(INIT2RTR, init), &[(qpc::LOG_RRA_MAX, 5)]), Rule::CommandParameter),
        (along(&step(INIT2RTR, init), &[(ads::GRH, 1), (ads::SRC_ADDR_INDEX, 200)]), Rule::QpAttribute),
        (along(&step(INIT2RTR, init), &[(ads::VHCA_PORT_NUM, 2)]), Rule::QpAttribute),
        (with(&step(RTR2RTS, rtr), &[(qpc::LOG_SRA_MAX, 5)]), Rule::CommandParameter),
    ];
    let before = [reset, init, rtr].map(|qpn| asked(&mut bench, qpn));
    for (command, rule) in cases {
        bench.refused(command, Status::BadParam, rule);
    }
    assert_eq!([reset, init, rtr].map(|qpn| asked(&mut bench, qpn)), before);
    let mut reserved = step(RST2INIT, reset);
    reserved[rst2init_qp_in::QPC.offset + 0x87] = 1;
    bench.refused(reserved, Status::BadParam, Rule::CommandReserved);
    bench.refused(step(RST2INIT, reset + 0x5555), Status::BadResource, Rule::CommandObject);
    for opcode in [TO_ERR, TO_RST] {
        bench.refused(naming(opcode, reset + 0x5555), Status::BadResource, Rule::CommandObject);
    }
}

#[test]
fn a_path_sets_only_fields_of_its_kind_of_port() {
    let mut bench = Bench::new(PortKind::Ib);
    let qpn = in_state(&mut bench, Service::Rc, State::Init);
    let good = step(INIT2RTR, qpn);
    let mut wrong: Vec<_> = [
        ads::FL,
        ads::SRC_ADDR_INDEX,
        ads::HOP_LIMIT,
        ads::TCLASS,
        ads::FLOW_LABEL,
        ads::RMAC_47_32,
        ads::RMAC_31_0,
        ads::UDP_SPORT,
        ads::ETH_PRIO,
        ads::DSCP,
    ]
    .map(|field| along(&good, &[(field, 1)]))
    .into();
    let mut alternate = good.clone();
    rst2init_qp_in::OPT_PARAM_MASK.set(&mut alternate, 1u32);
    let context = rst2init_qp_in::QPC.bytes_mut(&mut alternate);
    ads::FL.set(qpc::SECONDARY_ADDRESS_PATH.bytes_mut(context), 1u32);
    wrong.push(alternate);
    let mut with_gid = good.clone();
    let context = rst2init_qp_in::QPC.bytes_mut(&mut with_gid);
    ads::RGID_RIP.bytes_mut(qpc::PRIMARY_ADDRESS_PATH.bytes_mut(context))[15] = 1;
    wrong.push(with_gid);
    for command in wrong {
        bench.refused(command, Status::BadParam, Rule::QpAttribute);
    }
    bench.unlucky(along(&good, &[(ads::MLID, 1)]), Status::BadParam);
    bench.ok(good);
}

#[test]
fn a_path_of_roce_has_no_lid_and_the_source_port_of_its_version() {
    let mut bench = Bench::new(PortKind::Roce);
    let qpn = in_state(&mut bench, Service::Rc, State::Init);
    let mut entry = [1; roce_addr_layout::SIZE];
    for (index, version) in [(0, ROCE_V2), (1, 0)] {
        roce_addr_layout::ROCE_VERSION.set(&mut entry, version);
        assert!(bench.function.core.port.set_roce_address(index, &entry));
    }
    let good = along(&step(INIT2RTR, qpn), &[(ads::RLID, 0), (ads::SL, 0), (ads::UDP_SPORT, 0xc000)]);
    for change in [
        (ads::FL, 1),
        (ads::GRH, 1),
        (ads::MLID, 1),
        (ads::RLID, 1),
        (ads::SL, 1),
        (ads::UDP_SPORT, 0xbfff),
        (ads::SRC_ADDR_INDEX, 1),
    ] {
        bench.refused(along(&good, &[change]), Status::BadParam, Rule::QpAttribute);
    }
    bench.ok(&good);
    let qpn = in_state(&mut bench, Service::Rc, State::Init);
    let version_1 = [(ads::RLID, 0), (ads::SL, 0), (ads::SRC_ADDR_INDEX, 1)];
    bench.ok(along(&step(INIT2RTR, qpn), &version_1));
}

#[test]
fn an_address_that_was_removed_meanwhile_breaks_no_rule() {
    let mut bench = Bench::new(PortKind::Roce);
    let qpn = in_state(&mut bench, Service::Rc, State::Init);
    let command = along(&step(INIT2RTR, qpn), &[(ads::SRC_ADDR_INDEX, 3), (ads::RLID, 0), (ads::SL, 0)]);
    bench.unlucky(command, Status::BadParam);
}
