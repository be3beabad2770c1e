//! Completion queue commands: creation, queries, changes, resizing, destruction, rejections.

use super::*;
use crate::cmd::bench::{Bench, input, naming};
use crate::complaint::Rule;
use crate::layout::hca::{alloc_uar_out, dealloc_uar_in};
use crate::layout::{Field, qword};
use crate::port::PortKind;

/// A context field and its new value.
type Change = (Field, u64);

fn with(input: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut input = input.to_vec();
    for (field, value) in changes {
        field.set(create_cq_in::CQ_CONTEXT.bytes_mut(&mut input), *value);
    }
    input
}

/// Returns a MODIFY_CQ input that replaces the buffer.
fn resize_to(bench: &mut Bench, cqn: u32, log_size: u32, entry_size: usize) -> Vec<u8> {
    let mut input = input(0x403, modify_cq_in::PAS);
    modify_cq_in::OP_MOD.set(&mut input, 1u32);
    modify_cq_in::CQN.set(&mut input, cqn);
    modify_cq_in::RESIZE_FIELD_SELECT.set(&mut input, RESIZE_ALL);
    let context = modify_cq_in::CQ_CONTEXT.bytes_mut(&mut input);
    cqc::LOG_CQ_SIZE.set(context, log_size);
    cqc::CQE_SZ.set(context, u32::from(entry_size == 128));
    input.extend(bench.pages((entry_size << log_size).div_ceil(0x1000)));
    input
}

fn made(bench: &mut Bench, input: &[u8]) -> u32 {
    create_cq_out::CQN.get32(&bench.ok(input))
}

#[test]
fn memory_that_is_registered_elsewhere_is_not_offered() {
    let mut bench = Bench::new(PortKind::Ib);
    let mut create = bench.create_cq(4, 64);
    create_cq_in::CQ_UMEM_VALID.set(&mut create, 1u32);
    bench.refused(create, Status::BadParam, Rule::CommandCapability);
}

#[test]
fn a_queue_has_the_attributes_of_its_context() {
    let mut bench = Bench::new(PortKind::Ib);
    let create = bench.create_cq(7, 128);
    let create = with(&create, &[(cqc::OI, 1), (cqc::CQ_PERIOD, 5)]);
    let cqn = made(&mut bench, &create);
    let cq = bench.function.core.cqs.get(&cqn).unwrap();
    assert_eq!((cq.log_size, cq.entry_size, cq.uar, cq.eqn), (7, 128, bench.uar, bench.eqn));
    assert!(cq.ignore_overrun);
    assert_eq!(cq.pages.list().len(), 4);
    let output = bench.ok(naming(0x402, cqn));
    let context = query_cq_out::CQ_CONTEXT.bytes(&output);
    assert_eq!((cqc::ST.get32(context), cqc::STATUS.get(context)), (ST_FIRED, 0));
    assert_eq!((cqc::LOG_CQ_SIZE.get(context), cqc::CQ_PERIOD.get(context)), (7, 5));
    assert_eq!(qword(&output, query_cq_out::PAS + 8), qword(&create, create_cq_in::PAS + 8));
    bench.ok(naming(0x401, cqn));
    for opcode in [0x401, 0x402] {
        bench.refused(naming(opcode, cqn), Status::BadResource, Rule::CommandObject);
    }
    let again = bench.cq();
    assert_ne!(again, cqn);
}

#[test]
fn a_queue_of_64_bytes_may_begin_inside_of_a_page() {
    let mut bench = Bench::new(PortKind::Ib);
    // The buffer starts at 63/64 of the first page, which thus has its first 64 bytes. The rest is
    // in the next page.
    let mut create = with(&bench.create_cq(1, 64), &[(cqc::PAGE_OFFSET, 63)]);
    create.extend(bench.pages(1));
    let cqn = made(&mut bench, &create);
    let cq = bench.function.core.cqs.get(&cqn).unwrap();
    assert_eq!(cq.pages.locate(64), Some((qword(&create, create_cq_in::PAS + 8), 64)));
    bench.refused(&create[..create.len() - 8], Status::BadParam, Rule::CommandPages);
}

#[test]
fn contexts_that_break_a_rule_are_refused() {
    let mut bench = Bench::new(PortKind::Ib);
    let good = bench.create_cq(7, 64);
    let cases: &[(&[Change], Status, Rule)] = &[
        (&[(cqc::UAR_PAGE, 0xfffff)], Status::BadResource, Rule::CommandObject),
        (&[(cqc::C_EQN_OR_APU_ELEMENT, 99)], Status::BadResource, Rule::CommandObject),
        (&[(cqc::LOG_CQ_SIZE, 23)], Status::BadParam, Rule::CommandParameter),
        (&[(cqc::CQE_SZ, 3)], Status::BadParam, Rule::CommandParameter),
        (&[(cqc::ST, 9)], Status::BadParam, Rule::CommandParameter),
        (&[(cqc::STATUS, 9)], Status::BadParam, Rule::CommandParameter),
        (&[(cqc::LOG_CQ_SIZE, 6)], Status::BadParam, Rule::CommandPages),
        (&[(cqc::LOG_CQ_SIZE, 8)], Status::BadParam, Rule::CommandPages),
        (&[(cqc::PAGE_OFFSET, 1)], Status::BadParam, Rule::CommandPages),
        (&[(cqc::LOG_PAGE_SIZE, 31)], Status::BadParam, Rule::CommandPages),
        (&[(cqc::MINI_CQE_RES_FORMAT, 1)], Status::BadParam, Rule::CommandParameter),
        (&[(cqc::CQE_COMP_EN, 1), (cqc::MINI_CQE_RES_FORMAT, 2)], Status::BadParam, Rule::CommandCapability),
        (&[(cqc::CQE_COMPRESSION_LAYOUT, 1)], Status::BadParam, Rule::CommandCapability),
        (&[(cqc::CC, 1)], Status::BadParam, Rule::CommandCapability),
        (&[(cqc::APU_CQ, 1)], Status::BadParam, Rule::CommandCapability),
        (&[(cqc::CQ_PERIOD_MODE, 1)], Status::BadParam, Rule::CommandCapability),
        (&[(cqc::SCQE_BREAK_MODERATION_EN, 1)], Status::BadParam, Rule::CommandCapability),
        (&[(cqc::DBR_ADDR, 0x1004)], Status::BadParam, Rule::CommandDoorbellRecord),
        (&[(cqc::DBR_ADDR, 1 << 40)], Status::BadParam, Rule::CommandDoorbellRecord),
    ];
    for (changes, status, rule) in cases {
        bench.refused(with(&good, changes), *status, *rule);
    }
    let mut reserved = good.clone();
    reserved[create_cq_in::CQ_CONTEXT.offset + 7] = 1;
    bench.refused(reserved, Status::BadParam, Rule::CommandReserved);
    let mut odd = good.clone();
    odd[create_cq_in::PAS + 7] = 8;
    bench.refused(odd, Status::BadParam, Rule::CommandPages);
    let mut nowhere = good.clone();
    nowhere[create_cq_in::PAS] = 0x40;
    bench.refused(nowhere, Status::BadParam, Rule::DmaFault);
    bench.ok(good);
}

#[test]
fn a_queue_of_either_size_compresses_in_each_format_that_is_offered() {
    let mut bench = Bench::new(PortKind::Ib);
    for size in [64, 128] {
        for format in [0, 1, 3] {
            let create = bench.create_cq(3, size);
            let create = with(&create, &[(cqc::CQE_COMP_EN, 1), (cqc::MINI_CQE_RES_FORMAT, format)]);
            let cqn = made(&mut bench, &create);
            assert!(bench.function.core.cqs.get(&cqn).unwrap().compression.is_some());
        }
    }
}

#[test]
fn a_queue_that_completes_something_stays() {
    let mut bench = Bench::new(PortKind::Ib);
    let cqn = bench.cq();
    let srq = bench.create_xrc_srq(cqn);
    let srqn = create_cq_out::CQN.get32(&bench.ok(srq));
    bench.refused(naming(0x401, cqn), Status::ResourceBusy, Rule::CommandBusy);
    bench.ok(naming(0x706, srqn));
    bench.ok(naming(0x401, cqn));
}

#[test]
fn moderation_is_kept_and_the_rest_left_alone() {
    let mut bench = Bench::new(PortKind::Ib);
    let cqn = bench.cq();
    let mut modify = input(0x403, modify_cq_in::PAS);
    modify_cq_in::CQN.set(&mut modify, cqn);
    modify_cq_in::MODIFY_FIELD_SELECT.set(&mut modify, MODIFY_PERIOD | MODIFY_COUNT);
    let context = modify_cq_in::CQ_CONTEXT.bytes_mut(&mut modify);
    cqc::CQ_PERIOD.set(context, 16u32);
    cqc::CQ_MAX_COUNT.set(context, 8u32);
    cqc::OI.set(context, 1u32);
    bench.ok(&modify);
    let cq = bench.function.core.cqs.get(&cqn).unwrap();
    assert_eq!((cqc::CQ_PERIOD.get(&cq.context), cqc::CQ_MAX_COUNT.get(&cq.context)), (16, 8));
    assert!(!cq.ignore_overrun);
    modify_cq_in::MODIFY_FIELD_SELECT.set(&mut modify, 8u32);
    bench.refused(&modify, Status::BadParam, Rule::CommandParameter);
    modify_cq_in::MODIFY_FIELD_SELECT.set(&mut modify, MODIFY_PERIOD_MODE);
    bench.refused(&modify, Status::BadParam, Rule::CommandCapability);
}

#[test]
fn the_old_buffer_ends_with_a_resize_entry_and_the_new_one_goes_on() {
    for entry_size in [64, 128] {
        let mut bench = Bench::new(PortKind::Ib);
        let create = bench.create_cq(2, entry_size);
        let cqn = made(&mut bench, &create);
        // The entry at index 7 belongs to the second round of 4 slots, so its owner bit is 1.
        let cq = bench.function.core.cqs.get_mut(&cqn).unwrap();
        cq.producer = 7;
        let record = cq.doorbell_record;
        bench.bus.write(record, &6u32.to_be_bytes()).unwrap();
        let resize = resize_to(&mut bench, cqn, 5, entry_size);
        bench.ok(&resize);
        let old = qword(&create, create_cq_in::PAS);
        let mut last = [0; 64];
        let slot = old + 3 * entry_size as u64 + (entry_size as u64 - 64);
        bench.bus.read(slot, &mut last).unwrap();
        assert_eq!(last[63], 0x51);
        let cq = bench.function.core.cqs.get(&cqn).unwrap();
        assert_eq!((cq.producer, cq.log_size), (8, 5));
        assert_eq!(cq.pages.locate(0).unwrap().0, qword(&resize, modify_cq_in::PAS));
        assert_eq!(cqc::LOG_CQ_SIZE.get(&cq.context), 5);
    }
}

#[test]
fn the_owner_bit_of_a_resize_entry_is_that_of_its_turn() {
    for (producer, owner) in [(0u32, 0u8), (3, 0), (4, 1), (8, 0), (0x00ff_ffff, 1), (0x0100_0000, 0)] {
        let mut bench = Bench::new(PortKind::Ib);
        let create = bench.create_cq(2, 64);
        let cqn = made(&mut bench, &create);
        let cq = bench.function.core.cqs.get_mut(&cqn).unwrap();
        cq.producer = producer;
        let record = cq.doorbell_record;
        bench.bus.write(record, &(producer & 0x00ff_ffff).to_be_bytes()).unwrap();
        let resize = resize_to(&mut bench, cqn, 3, 64);
        bench.ok(resize);
        let slot = qword(&create, create_cq_in::PAS) + u64::from(producer & 3) * 64;
        let mut last = [0; 64];
        bench.bus.read(slot, &mut last).unwrap();
        assert_eq!(last[63], 0x50 | owner, "{producer:#x}");
    }
}

#[test]
fn a_buffer_too_small_for_waiting_entries_breaks_no_rule() {
    let mut bench = Bench::new(PortKind::Ib);
    let create = bench.create_cq(4, 64);
    let cqn = made(&mut bench, &create);
    bench.function.core.cqs.get_mut(&cqn).unwrap().producer = 4;
    let resize = resize_to(&mut bench, cqn, 2, 64);
    bench.unlucky(resize, Status::BadCqSize);
    let resize = resize_to(&mut bench, cqn, 3, 64);
    bench.ok(resize);
    bench.function.core.cqs.get_mut(&cqn).unwrap().producer = 8;
    let resize = resize_to(&mut bench, cqn, 6, 64);
    bench.unlucky(resize, Status::BadCqSize);
}

#[test]
fn resizes_that_break_a_rule_change_nothing() {
    let mut bench = Bench::new(PortKind::Ib);
    let cqn = bench.cq();
    let good = resize_to(&mut bench, cqn, 7, 64);
    let mut partly = good.clone();
    modify_cq_in::RESIZE_FIELD_SELECT.set(&mut partly, 1u32);
    bench.refused(partly, Status::BadParam, Rule::CommandParameter);
    let wider = resize_to(&mut bench, cqn, 7, 128);
    bench.refused(wider, Status::BadParam, Rule::CommandParameter);
    bench.refused(&good[..good.len() - 8], Status::BadParam, Rule::CommandPages);
    let mut missing = good.clone();
    modify_cq_in::CQN.set(&mut missing, cqn + 1);
    bench.refused(missing, Status::BadResource, Rule::CommandObject);
    let cq = bench.function.core.cqs.get_mut(&cqn).unwrap();
    assert_eq!((cq.log_size, cq.producer), (4, 0));
    cq.in_error = true;
    bench.unlucky(good, Status::BadResourceState);
    let output = bench.ok(naming(0x402, cqn));
    assert_eq!(cqc::STATUS.get32(query_cq_out::CQ_CONTEXT.bytes(&output)), STATUS_OVERFLOW);
}

#[test]
fn a_queue_lets_its_uar_page_go_and_can_be_armed_no_more() {
    let mut bench = Bench::new(PortKind::Ib);
    let uar = alloc_uar_out::UAR.get32(&bench.ok(input(0x802, 0x10)));
    let create = bench.create_cq(4, 64);
    let create = with(&create, &[(cqc::UAR_PAGE, uar.into())]);
    let cqn = made(&mut bench, &create);
    let mut dealloc = input(0x803, 0x10);
    dealloc_uar_in::UAR.set(&mut dealloc, uar);
    bench.ok(dealloc);
    let arm = [0, 0, 0, 0, 0, 0, 0, cqn as u8];
    bench.function.uar_write(u64::from(uar) * 0x1000 + 0x20, &arm);
    let rules: Vec<_> = bench.function.take_complaints().iter().map(|complaint| complaint.rule).collect();
    assert_eq!(rules, [Rule::DoorbellUar]);
    bench.ok(naming(0x401, cqn));
}
