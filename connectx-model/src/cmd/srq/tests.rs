//! Commands for shared receive queues of all four kinds: creation, arming, queries, destruction,
//! rejections.

use super::*;
use crate::cmd::bench::{Bench, input, naming, stray};
use crate::cmd::context::MAX_QUEUES;
use crate::complaint::Rule;
use crate::port::PortKind;

/// Returns a CREATE_SRQ input for 64 receives of 64 bytes.
fn basic(bench: &mut Bench) -> Vec<u8> {
    let mut input = input(0x700, create_srq_in::PAS);
    let (pd, record) = (bench.pd, bench.page());
    let context = create_srq_in::SRQ_CONTEXT_ENTRY.bytes_mut(&mut input);
    for (field, value) in [
        (srqc::LOG_SRQ_SIZE, 6),
        (srqc::LOG_RQ_STRIDE, 2),
        (srqc::PD, u64::from(pd)),
        (srqc::DBR_ADDR, record),
    ] {
        field.set(context, value);
    }
    input.extend(bench.pages(1));
    input
}

/// Returns a CREATE_RMP input for 64 receives of 64 bytes.
fn pool(bench: &mut Bench) -> Vec<u8> {
    let mut input = input(0x90c, create_rmp_in::SIZE);
    let (pd, record) = (bench.pd, bench.page());
    let context = create_rmp_in::CTX.bytes_mut(&mut input);
    rmpc::STATE.set(context, RMP_READY as u32);
    let queue = rmpc::WQ.bytes_mut(context);
    for (field, value) in
        [(wq::LOG_WQ_SZ, 6), (wq::LOG_WQ_STRIDE, 6), (wq::PD, u64::from(pd)), (wq::DBR_ADDR, record)]
    {
        field.set(queue, value);
    }
    input.extend(bench.pages(1));
    input
}

/// Returns a CREATE_XRQ input for 64 receives of 64 bytes, and a matching list with 128 indexes.
fn matching(bench: &mut Bench, cqn: u32) -> Vec<u8> {
    let mut input = input(0x717, create_xrq_in::SIZE);
    let (pd, record) = (bench.pd, bench.page());
    let context = create_xrq_in::XRQ_CONTEXT.bytes_mut(&mut input);
    for (field, value) in [
        (xrqc::TOPOLOGY, 1),
        (xrqc::OFFLOAD, 1),
        (xrqc::USER_INDEX, 0xabd),
        (xrqc::CQN, cqn),
        (xrqc::LOG_MATCHING_LIST_SZ, 7),
    ] {
        field.set(context, value);
    }
    let queue = xrqc::WQ.bytes_mut(context);
    for (field, value) in
        [(wq::LOG_WQ_SZ, 6), (wq::LOG_WQ_STRIDE, 6), (wq::PD, u64::from(pd)), (wq::DBR_ADDR, record)]
    {
        field.set(queue, value);
    }
    input.extend(bench.pages(1));
    input
}

/// Returns the input of the command that arms the limit of a queue: ARM_RQ, ARM_XRC_SRQ or
/// MODIFY_RMP.
fn arming(kind: SrqKind, srqn: u32, limit: u32) -> Vec<u8> {
    match kind {
        SrqKind::Basic | SrqKind::Xrc | SrqKind::Xrq => {
            let mut input = naming(if kind == SrqKind::Xrc { 0x708 } else { 0x703 }, srqn);
            arm_rq_in::OP_MOD.set(&mut input, if kind == SrqKind::Xrq { 2u32 } else { 1 });
            arm_rq_in::LWM.set(&mut input, limit);
            input
        }
        SrqKind::Rmp => {
            let mut input = input(0x90d, modify_rmp_in::SIZE);
            modify_rmp_in::RMPN.set(&mut input, srqn);
            modify_rmp_in::RMP_STATE.set(&mut input, RMP_READY as u32);
            modify_rmp_in::LWM.set(&mut input, 1u32);
            let context = modify_rmp_in::CTX.bytes_mut(&mut input);
            rmpc::STATE.set(context, RMP_READY as u32);
            wq::LWM.set(rmpc::WQ.bytes_mut(context), limit);
            input
        }
    }
}

/// Runs `check` for each kind of queue. Its arguments are the CREATE input, the opcodes of the
/// query and the destruction, and a function that reads the limit from the query's output.
fn each(mut check: impl FnMut(&mut Bench, SrqKind, Vec<u8>, [u16; 2], fn(&[u8]) -> u32)) {
    let mut bench = Bench::new(PortKind::Ib);
    let input = basic(&mut bench);
    check(&mut bench, SrqKind::Basic, input, [0x702, 0x701], |output| {
        srqc::LWM.get32(query_srq_out::SRQ_CONTEXT_ENTRY.bytes(output))
    });
    let cqn = bench.cq();
    let input = bench.create_xrc_srq(cqn);
    check(&mut bench, SrqKind::Xrc, input, [0x707, 0x706], |output| {
        xrc_srqc::LWM.get32(query_xrc_srq_out::XRC_SRQ_CONTEXT_ENTRY.bytes(output))
    });
    let input = pool(&mut bench);
    check(&mut bench, SrqKind::Rmp, input, [0x90f, 0x90e], |output| {
        wq::LWM.get32(rmpc::WQ.bytes(query_rmp_out::RMP_CONTEXT.bytes(output)))
    });
    let cqn = bench.cq();
    let input = matching(&mut bench, cqn);
    check(&mut bench, SrqKind::Xrq, input, [0x719, 0x718], |output| {
        wq::LWM.get32(xrqc::WQ.bytes(query_xrq_out::XRQ_CONTEXT.bytes(output)))
    });
}

#[test]
fn each_kind_is_made_armed_asked_for_and_destroyed() {
    each(|bench, kind, create, [query, destroy], limit| {
        let srqn = create_srq_out::SRQN.get32(&bench.ok(create));
        let srq = bench.function.core.srqs.get(&srqn).unwrap();
        assert_eq!(srq.kind, kind);
        let shape = if kind == SrqKind::Xrc { (4, 32) } else { (6, 64) };
        assert_eq!((srq.log_size, srq.stride), shape);
        assert_eq!(limit(&bench.ok(naming(query, srqn))), 0);
        bench.ok(arming(kind, srqn, 3));
        assert_eq!(limit(&bench.ok(naming(query, srqn))), 3);
        bench.unlucky(arming(kind, srqn, 1 << 7), Status::BadParam);
        bench.ok(naming(destroy, srqn));
        for opcode in [query, destroy] {
            bench.refused(naming(opcode, srqn), Status::BadResource, Rule::CommandObject);
        }
        bench.refused(arming(kind, srqn, 1), Status::BadResource, Rule::CommandObject);
    });
}

#[test]
fn a_queue_of_one_kind_is_no_queue_of_another() {
    let mut numbers = vec![];
    each(|bench, kind, create, opcodes, _| {
        let srqn = create_srq_out::SRQN.get32(&bench.ok(create));
        numbers.push((kind, srqn, opcodes));
        for (_, other, [query, destroy]) in numbers.iter().filter(|(of, ..)| *of != kind) {
            bench.refused(naming(*query, srqn), Status::BadResource, Rule::CommandObject);
            bench.refused(naming(*destroy, srqn), Status::BadResource, Rule::CommandObject);
            bench.refused(arming(kind, *other, 1), Status::BadResource, Rule::CommandObject);
        }
    });
}

#[test]
fn an_xrc_queue_completes_on_its_queue_with_its_index() {
    let mut bench = Bench::new(PortKind::Ib);
    let cqn = bench.cq();
    let create = bench.create_xrc_srq(cqn);
    let srqn = create_xrc_srq_out::XRC_SRQN.get32(&bench.ok(&create));
    let srq = bench.function.core.srqs.get(&srqn).unwrap();
    assert_eq!((srq.cqn, srq.user_index, srq.xrcd), (cqn, 0xabc, Some(bench.xrcd)));
    assert_eq!(bench.function.core.cqs.get(&cqn).unwrap().users, 1);
    for (field, what) in
        [(xrc_srqc::CQN, "completion queue"), (xrc_srqc::XRCD, "domain"), (xrc_srqc::PD, "domain")]
    {
        let mut wrong = create.clone();
        field.set(create_xrc_srq_in::XRC_SRQ_CONTEXT_ENTRY.bytes_mut(&mut wrong), 0x00ff_fff0u32);
        bench.refused(wrong, Status::BadResource, Rule::CommandObject);
        assert_eq!(bench.function.core.srqs.len(), 1, "{what}");
    }
}

#[test]
fn contexts_that_break_a_rule_are_refused() {
    let mut bench = Bench::new(PortKind::Ib);
    let good = pool(&mut bench);
    let cases = [
        (wq::LOG_WQ_SZ, 16, Rule::CommandParameter),
        (wq::LOG_WQ_SZ, 7, Rule::CommandPages),
        (wq::LOG_WQ_STRIDE, 4, Rule::CommandParameter),
        (wq::LOG_WQ_STRIDE, 10, Rule::CommandParameter),
        (wq::LWM, 65, Rule::CommandParameter),
        (wq::PAGE_OFFSET, 1, Rule::CommandPages),
        (wq::DBR_ADDR, 0x1001, Rule::CommandDoorbellRecord),
        (wq::WQ_TYPE, 1, Rule::CommandCapability),
        (wq::CD_SLAVE, 1, Rule::CommandCapability),
        (wq::SHAMPO_ENABLE, 1, Rule::CommandCapability),
    ];
    for (field, value, rule) in cases {
        let mut wrong = good.clone();
        field.set(rmpc::WQ.bytes_mut(create_rmp_in::CTX.bytes_mut(&mut wrong)), value as u64);
        bench.refused(wrong, Status::BadParam, rule);
    }
    let mut idle = good.clone();
    rmpc::STATE.set(create_rmp_in::CTX.bytes_mut(&mut idle), 0u32);
    bench.refused(idle, Status::BadParam, Rule::CommandParameter);
    let mut signed = good.clone();
    wq::WQ_SIGNATURE.set(rmpc::WQ.bytes_mut(create_rmp_in::CTX.bytes_mut(&mut signed)), 1u32);
    bench.unlucky(signed, Status::BadParam);
    let mut reserved = good.clone();
    reserved[create_rmp_in::CTX.offset] = 0x80;
    bench.refused(reserved, Status::BadParam, Rule::CommandReserved);
    let mut begun = basic(&mut bench);
    srqc::WQE_CNT.set(create_srq_in::SRQ_CONTEXT_ENTRY.bytes_mut(&mut begun), 1u32);
    bench.refused(begun, Status::BadParam, Rule::CommandParameter);
    bench.ok(good);
}

#[test]
fn bits_that_a_context_does_not_name_are_refused() {
    let mut bench = Bench::new(PortKind::Ib);
    let mut create = basic(&mut bench);
    stray(&srqc::TABLE, create_srq_in::SRQ_CONTEXT_ENTRY.bytes_mut(&mut create));
    bench.refused(create, Status::BadParam, Rule::CommandReserved);
    let cqn = bench.cq();
    let mut create = bench.create_xrc_srq(cqn);
    stray(&xrc_srqc::TABLE, create_xrc_srq_in::XRC_SRQ_CONTEXT_ENTRY.bytes_mut(&mut create));
    bench.refused(create, Status::BadParam, Rule::CommandReserved);
    let good = pool(&mut bench);
    let (mut outer, mut inner) = (good.clone(), good.clone());
    stray(&rmpc::TABLE, create_rmp_in::CTX.bytes_mut(&mut outer));
    stray(&wq::TABLE, rmpc::WQ.bytes_mut(create_rmp_in::CTX.bytes_mut(&mut inner)));
    bench.refused(outer, Status::BadParam, Rule::CommandReserved);
    bench.refused(inner, Status::BadParam, Rule::CommandReserved);
    let rmpn = create_rmp_out::RMPN.get32(&bench.ok(good));
    let good = arming(SrqKind::Rmp, rmpn, 1);
    let (mut outer, mut inner) = (good.clone(), good.clone());
    stray(&rmpc::TABLE, modify_rmp_in::CTX.bytes_mut(&mut outer));
    stray(&wq::TABLE, rmpc::WQ.bytes_mut(modify_rmp_in::CTX.bytes_mut(&mut inner)));
    bench.refused(outer, Status::BadParam, Rule::CommandReserved);
    bench.refused(inner, Status::BadParam, Rule::CommandReserved);
    bench.ok(good);
}

#[test]
fn features_that_are_not_offered_are_rejected() {
    let mut bench = Bench::new(PortKind::Ib);
    let good = basic(&mut bench);
    for field in [srqc::CONT_SRQ, srqc::RLKY] {
        let mut wrong = good.clone();
        field.set(create_srq_in::SRQ_CONTEXT_ENTRY.bytes_mut(&mut wrong), 1u32);
        bench.refused(wrong, Status::BadParam, Rule::CommandCapability);
    }
    let cqn = bench.cq();
    let good = bench.create_xrc_srq(cqn);
    let mut wrong = good.clone();
    create_xrc_srq_in::XRC_SRQ_UMEM_VALID.set(&mut wrong, 1u32);
    bench.refused(wrong, Status::BadParam, Rule::CommandCapability);
    let cases = [
        (xrc_srqc::CONT_SRQ, Rule::CommandCapability),
        (xrc_srqc::RLKY, Rule::CommandCapability),
        (xrc_srqc::BASIC_CYCLIC_RCV_WQE, Rule::CommandCapability),
        (xrc_srqc::DBR_UMEM_VALID, Rule::CommandCapability),
        (xrc_srqc::USER_INDEX_EQUAL_XRC_SRQN, Rule::CommandCapability),
        (xrc_srqc::STATE, Rule::CommandParameter),
        (xrc_srqc::WQE_CNT, Rule::CommandParameter),
    ];
    for (field, rule) in cases {
        let mut wrong = good.clone();
        field.set(create_xrc_srq_in::XRC_SRQ_CONTEXT_ENTRY.bytes_mut(&mut wrong), 1u32);
        bench.refused(wrong, Status::BadParam, rule);
    }
    bench.ok(good);
}

#[test]
fn a_queue_with_tag_matching_completes_on_its_queue_with_its_index() {
    let mut bench = Bench::new(PortKind::Ib);
    let cqn = bench.cq();
    let create = matching(&mut bench, cqn);
    let xrqn = create_xrq_out::XRQN.get32(&bench.ok(&create));
    let srq = bench.function.core.srqs.get(&xrqn).unwrap();
    assert_eq!((srq.cqn, srq.user_index), (cqn, 0xabd));
    assert_eq!(bench.function.core.cqs.get(&cqn).unwrap().users, 1);
    bench.ok(naming(0x718, xrqn));
    assert_eq!(bench.function.core.cqs.get(&cqn).unwrap().users, 0);
    let mut wrong = create;
    xrqc::CQN.set(create_xrq_in::XRQ_CONTEXT.bytes_mut(&mut wrong), 0x00ff_fff0u32);
    bench.refused(wrong, Status::BadResource, Rule::CommandObject);
}

#[test]
fn contexts_of_tag_matching_that_break_a_rule_are_refused() {
    let mut bench = Bench::new(PortKind::Ib);
    let cqn = bench.cq();
    let good = matching(&mut bench, cqn);
    let outer = [
        (xrqc::STATE, 1, Rule::CommandParameter),
        (xrqc::APPEND_NEXT_INDEX, 1, Rule::CommandParameter),
        (xrqc::SW_PHASE_CNT, 1, Rule::CommandParameter),
        (xrqc::HW_PHASE_CNT, 1, Rule::CommandParameter),
        (xrqc::LOG_MATCHING_LIST_SZ, 8, Rule::CommandParameter),
        (xrqc::RLKEY, 1, Rule::CommandCapability),
        (xrqc::TOPOLOGY, 0, Rule::CommandCapability),
        (xrqc::TOPOLOGY, 2, Rule::CommandCapability),
        (xrqc::OFFLOAD, 2, Rule::CommandCapability),
    ];
    for (field, value, rule) in outer {
        let mut wrong = good.clone();
        field.set(create_xrq_in::XRQ_CONTEXT.bytes_mut(&mut wrong), value as u32);
        bench.refused(wrong, Status::BadParam, rule);
    }
    let inner = [
        (wq::LOG_WQ_SZ, 7, Rule::CommandPages),
        (wq::LOG_WQ_STRIDE, 4, Rule::CommandParameter),
        (wq::DBR_ADDR, 0x1001, Rule::CommandDoorbellRecord),
        (wq::WQ_TYPE, 1, Rule::CommandCapability),
        (wq::CD_SLAVE, 1, Rule::CommandCapability),
    ];
    for (field, value, rule) in inner {
        let mut wrong = good.clone();
        field.set(xrqc::WQ.bytes_mut(create_xrq_in::XRQ_CONTEXT.bytes_mut(&mut wrong)), value as u64);
        bench.refused(wrong, Status::BadParam, rule);
    }
    let mut signed = good.clone();
    wq::WQ_SIGNATURE.set(xrqc::WQ.bytes_mut(create_xrq_in::XRQ_CONTEXT.bytes_mut(&mut signed)), 1u32);
    bench.unlucky(signed, Status::BadParam);
    for inside in [false, true] {
        let mut wrong = good.clone();
        let context = create_xrq_in::XRQ_CONTEXT.bytes_mut(&mut wrong);
        if inside {
            stray(&wq::TABLE, xrqc::WQ.bytes_mut(context));
        } else {
            stray(&xrqc::TABLE, context);
        }
        bench.refused(wrong, Status::BadParam, Rule::CommandReserved);
    }
    bench.ok(good);
}

#[test]
fn a_roce_port_does_not_offer_tag_matching() {
    let mut bench = Bench::new(PortKind::Roce);
    let cqn = bench.cq();
    let create = matching(&mut bench, cqn);
    bench.refused(create, Status::BadParam, Rule::CommandCapability);
}

#[test]
fn a_pool_goes_to_no_other_state() {
    let mut bench = Bench::new(PortKind::Ib);
    let create = pool(&mut bench);
    let rmpn = create_rmp_out::RMPN.get32(&bench.ok(create));
    let mut modify = arming(SrqKind::Rmp, rmpn, 1);
    rmpc::STATE.set(modify_rmp_in::CTX.bytes_mut(&mut modify), 3u32);
    bench.refused(modify, Status::BadParam, Rule::CommandParameter);
}

#[test]
fn a_limit_that_comes_with_the_context_is_armed() {
    let mut bench = Bench::new(PortKind::Ib);
    let mut create = basic(&mut bench);
    srqc::LWM.set(create_srq_in::SRQ_CONTEXT_ENTRY.bytes_mut(&mut create), 5u32);
    let srqn = create_srq_out::SRQN.get32(&bench.ok(create));
    assert_eq!(bench.function.engine.srq_limit(SrqId(srqn)), Some(5));
}

#[test]
fn shared_receive_queues_alone_exhaust_the_room_for_queues() {
    let mut bench = Bench::new(PortKind::Ib);
    let create = basic(&mut bench);
    let srqn = create_srq_out::SRQN.get32(&bench.ok(&create));
    let srqs = &mut bench.function.core.srqs;
    let srq = srqs.get(&srqn).unwrap().clone();
    let one = srq_bytes(srq.log_size, srq.stride, &srq.pages);
    // Further queues are inserted directly, so that they use no memory in the engine: large queues
    // while these fit, then one that leaves space for a single queue like the first.
    let largest = Srq { log_size: 15, stride: 512, ..srq.clone() };
    let each = srq_bytes(largest.log_size, largest.stride, &largest.pages);
    let mut left = MAX_QUEUES - one;
    let mut number = 0x80_0000;
    while left >= each + one {
        srqs.insert(number, Srq { srqn: number, ..largest.clone() });
        (left, number) = (left - each, number + 1);
    }
    let nothing = srq_bytes(0, 0, &srq.pages);
    srqs.insert(number, Srq { srqn: number, log_size: 0, stride: left - one - nothing, ..srq });

    bench.ok(&create);
    bench.unlucky(&create, Status::NoResources);
    let completions = bench.create_cq(4, 64);
    bench.unlucky(&completions, Status::NoResources);
    // Once a queue is destroyed, another fits.
    bench.ok(naming(0x701, srqn));
    bench.ok(&create);
    bench.unlucky(&create, Status::NoResources);
}

#[test]
fn a_doorbell_record_that_is_not_0_at_creation_is_complained_of() {
    each(|bench, kind, input, _, _| {
        let record = match kind {
            SrqKind::Basic => srqc::DBR_ADDR.get(create_srq_in::SRQ_CONTEXT_ENTRY.bytes(&input)),
            SrqKind::Xrc => {
                xrc_srqc::DB_RECORD_ADDR_L.get(create_xrc_srq_in::XRC_SRQ_CONTEXT_ENTRY.bytes(&input)) << 2
            }
            SrqKind::Rmp => wq::DBR_ADDR.get(rmpc::WQ.bytes(create_rmp_in::CTX.bytes(&input))),
            SrqKind::Xrq => wq::DBR_ADDR.get(xrqc::WQ.bytes(create_xrq_in::XRQ_CONTEXT.bytes(&input))),
        };
        // The second word of the doorbell record is unused.
        bench.bus.write(record, &[0, 0, 0, 1, 0, 0, 0, 1]).unwrap();
        assert_eq!(bench.send(&input).0, 0, "it is created");
        let rules: Vec<Rule> =
            bench.function.take_complaints().iter().map(|complaint| complaint.rule).collect();
        assert_eq!(rules, [Rule::DoorbellRecordStart], "{kind:?}");
        bench.bus.write(record, &[0; 4]).unwrap();
        bench.ok(input);
    });
}
