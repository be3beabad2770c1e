//! Memory key commands: creation, queries, destruction, rejections.

use roce::engine::{Access, CqId, QpInit, SendFlags, SendOp, SendWr, Service};

use super::*;
use crate::cmd::bench::{Bench, input, naming};
use crate::complaint::Rule;
use crate::layout::{Field, qword};
use crate::port::PortKind;

/// Returns a CREATE_MKEY input for the 0x20 bytes at 0xff0, which lie in two pages, as the kernel
/// writes it.
fn pages(bench: &mut Bench) -> Vec<u8> {
    let mut input = input(0x200, create_mkey_in::KLM_PAS_MTT);
    create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut input, 1u32);
    let pd = bench.pd;
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes_mut(&mut input);
    for (field, value) in [
        (mkc::UMR_EN, 1),
        (mkc::LR, 1),
        (mkc::LW, 1),
        (mkc::RW, 1),
        (mkc::ACCESS_MODE_1_0, 1),
        (mkc::QPN, ANY_QP),
        (mkc::MKEY_7_0, 0x42),
        (mkc::PD, u64::from(pd)),
        (mkc::START_ADDR, 0x7_0ff0),
        (mkc::LEN, 0x20),
        (mkc::TRANSLATIONS_OCTWORD_SIZE, 1),
        (mkc::LOG_PAGE_SIZE, 12),
    ] {
        field.set(context, value);
    }
    input.extend(bench.pages(2));
    input
}

/// Returns `input` with fields of its context changed.
fn with(input: &[u8], changes: &[(Field, u64)]) -> Vec<u8> {
    let mut input = input.to_vec();
    for (field, value) in changes {
        field.set(create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes_mut(&mut input), *value);
    }
    input
}

/// Returns a CREATE_MKEY input for a memory window.
fn window(bench: &mut Bench, rinval: u64) -> Vec<u8> {
    let pages = pages(bench);
    let mut input = with(
        &pages[..create_mkey_in::KLM_PAS_MTT],
        &[
            (mkc::FREE, 1),
            (mkc::LW, 0),
            (mkc::RW, 0),
            (mkc::ACCESS_MODE_1_0, 2),
            (mkc::EN_RINVAL, rinval),
            (mkc::START_ADDR, 0),
            (mkc::LEN, 0),
            (mkc::TRANSLATIONS_OCTWORD_SIZE, 4),
            (mkc::LOG_PAGE_SIZE, 0),
        ],
    );
    create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut input, 0u32);
    input
}

#[track_caller]
fn create(bench: &mut Bench, input: &[u8]) -> u32 {
    create_mkey_out::MKEY_INDEX.get32(&bench.ok(input))
}

#[test]
fn a_key_opens_the_pages_that_it_came_with() {
    let mut bench = Bench::new(PortKind::Ib);
    let input = pages(&mut bench);
    let index = create(&mut bench, &input);
    let (key, attr) = bench.function.engine.mr_by_index(index).unwrap();
    assert_eq!(key, index << 8 | 0x42);
    assert_eq!((attr.iova, attr.length, attr.pd.0), (0x7_0ff0, 0x20, bench.pd));
    assert!(attr.access.contains(Access::LOCAL_WRITE | Access::REMOTE_WRITE));
    assert!(!attr.access.contains(Access::REMOTE_READ));
    assert_eq!(bench.function.engine.mr_is_valid(index), Some(true));
    let page = qword(&input, create_mkey_in::KLM_PAS_MTT);
    let sge = roce::engine::Sge { addr: 0x7_0ff0, length: 16, lkey: key };
    bench.bus.write(page + 0xff0, &[9; 16]).unwrap();
    let mut bytes = [0; 16];
    bench.function.engine.gather(Pd(bench.pd), &[sge], &mut bytes).unwrap();
    assert_eq!(bytes, [9; 16]);
    bench.ok(naming(0x202, index));
    assert!(bench.function.engine.mr_by_index(index).is_none());
    bench.refused(naming(0x202, index), Status::BadResource, Rule::CommandObject);
}

#[test]
fn query_tells_context_and_list() {
    let mut bench = Bench::new(PortKind::Ib);
    let input = pages(&mut bench);
    let index = create(&mut bench, &input);
    let output = bench.ok(naming(0x201, index));
    assert_eq!(
        query_mkey_out::MEMORY_KEY_MKEY_ENTRY.bytes(&output),
        create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes(&input)
    );
    // If a list contains no access rights, all of its pages are present.
    let mut list = input[create_mkey_in::KLM_PAS_MTT..].to_vec();
    list.chunks_exact_mut(8).for_each(|entry| entry[7] |= 3);
    assert_eq!(query_mkey_out::BSF0_KLM0_PAS_MTT0_1.bytes(&output), list);
    bench.refused(naming(0x201, index + 1), Status::BadResource, Rule::CommandObject);
}

#[test]
fn all_physical_addresses_are_one_key() {
    let mut bench = Bench::new(PortKind::Ib);
    let pages = pages(&mut bench);
    let mut input = with(
        &pages[..create_mkey_in::KLM_PAS_MTT],
        &[
            (mkc::ACCESS_MODE_1_0, 0),
            (mkc::START_ADDR, 0),
            (mkc::LEN, 0),
            (mkc::LENGTH64, 1),
            (mkc::TRANSLATIONS_OCTWORD_SIZE, 0),
            (mkc::LOG_PAGE_SIZE, 0),
        ],
    );
    create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut input, 0u32);
    let index = create(&mut bench, &input);
    let sge = roce::engine::Sge { addr: 0x5678, length: 4, lkey: index << 8 | 0x42 };
    bench.bus.write(0x5678, &[7; 4]).unwrap();
    let mut bytes = [0; 4];
    bench.function.engine.gather(Pd(bench.pd), &[sge], &mut bytes).unwrap();
    assert_eq!(bytes, [7; 4]);
    let listed = with(&input, &[(mkc::TRANSLATIONS_OCTWORD_SIZE, 1)]);
    bench.refused(listed, Status::BadParam, Rule::CommandParameter);
}

#[test]
fn contexts_that_break_a_rule_are_refused() {
    let mut bench = Bench::new(PortKind::Ib);
    let good = pages(&mut bench);
    let cases: &[(&[(Field, u64)], Rule)] = &[
        (&[(mkc::LEN, 0x1011)], Rule::CommandPages),
        (&[(mkc::LEN, 0x3000)], Rule::CommandPages),
        (&[(mkc::LOG_PAGE_SIZE, 13)], Rule::CommandPages),
        (&[(mkc::LOG_PAGE_SIZE, 11)], Rule::CommandPages),
        (&[(mkc::LOG_PAGE_SIZE, 63)], Rule::CommandPages),
        (&[(mkc::LENGTH64, 1)], Rule::CommandPages),
        (&[(mkc::TRANSLATIONS_OCTWORD_SIZE, 0)], Rule::CommandPages),
        (&[(mkc::TRANSLATIONS_OCTWORD_SIZE, u64::from(u32::MAX))], Rule::CommandParameter),
        (&[(mkc::QPN, 5)], Rule::CommandParameter),
        (&[(mkc::FREE, 1), (mkc::UMR_EN, 0)], Rule::CommandParameter),
        (&[(mkc::PD, 0xabcdef)], Rule::CommandObject),
        (&[(mkc::ACCESS_MODE_4_2, 2)], Rule::CommandCapability),
        (&[(mkc::BSF_EN, 1)], Rule::CommandCapability),
        (&[(mkc::MA_TRANSLATION_MODE, 1)], Rule::CommandCapability),
    ];
    for (changes, rule) in cases {
        let (status, _) = bench.send(&with(&good, changes));
        let complaints = bench.function.take_complaints();
        assert_ne!(status, 0, "{changes:?}");
        assert_eq!(
            complaints.iter().map(|c| c.rule).collect::<Vec<_>>(),
            [*rule],
            "{changes:?} {complaints:?}"
        );
    }
    let mut odd = good.clone();
    odd[create_mkey_in::KLM_PAS_MTT + 6] = 2;
    bench.refused(&odd, Status::BadParam, Rule::CommandPages);
    let mut reserved = good.clone();
    reserved[create_mkey_in::MEMORY_KEY_MKEY_ENTRY.offset] |= 0x80;
    bench.refused(&reserved, Status::BadParam, Rule::CommandReserved);
    bench.refused(&good[..good.len() - 8], Status::BadParam, Rule::CommandPages);
    bench.ok(&good);
}

#[test]
fn a_range_that_wraps_breaks_no_rule() {
    let mut bench = Bench::new(PortKind::Ib);
    let good = pages(&mut bench);
    bench.unlucky(with(&good, &[(mkc::START_ADDR, u64::MAX - 0xf)]), Status::BadParam);
}

#[test]
fn a_free_key_opens_nothing_until_it_is_filled() {
    let mut bench = Bench::new(PortKind::Ib);
    let good = pages(&mut bench);
    let mut free = with(&good[..create_mkey_in::KLM_PAS_MTT], &[(mkc::FREE, 1)]);
    create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut free, 0u32);
    let index = create(&mut bench, &free);
    assert_eq!(bench.function.engine.mr_is_valid(index), Some(false));
    bench.function.core.mkeys.fill(index, 0, &good[create_mkey_in::KLM_PAS_MTT..]).unwrap();
    let key = bench.function.core.mkeys.get_mut(index).unwrap();
    mkc::FREE.set(&mut key.context, 0u32);
    mkc::MKEY_7_0.set(&mut key.context, 0x43u32);
    assert_eq!(bench.function.remap(index), Ok(index << 8 | 0x43));
    assert_eq!(bench.function.engine.mr_is_valid(index), Some(true));
    let output = bench.ok(naming(0x201, index));
    let context = query_mkey_out::MEMORY_KEY_MKEY_ENTRY.bytes(&output);
    assert_eq!((mkc::MKEY_7_0.get(context), mkc::FREE.get(context)), (0x43, 0));
    bench.ok(naming(0x202, index));
}

#[test]
fn windows_are_destroyed_whatever_their_key_has_become() {
    let mut bench = Bench::new(PortKind::Ib);
    for (rinval, kind) in [(0, MwType::One), (1, MwType::Two)] {
        let input = window(&mut bench, rinval);
        let index = create(&mut bench, &input);
        assert_eq!(bench.function.core.mkeys.get(index).unwrap().kind, Kind::Window(kind));
        bench.ok(naming(0x202, index));
        bench.refused(naming(0x202, index), Status::BadResource, Rule::CommandObject);
    }
    let pd = bench.pd;
    bench.ok(naming(0x801, pd));
}

#[test]
fn memory_with_a_bound_window_is_not_deregistered() {
    let mut bench = Bench::new(PortKind::Ib);
    let (input, win) = (pages(&mut bench), window(&mut bench, 0));
    let (index, window) = (create(&mut bench, &input), create(&mut bench, &win));
    let (function, pd) = (&mut bench.function, Pd(bench.pd));
    let mut init = QpInit::new(Service::Rc, pd, CqId(0), CqId(0));
    init.cap.max_send_wr = 1;
    let qpn = function.engine.create_qp(&init).unwrap();
    use roce::engine::{AttrChange, State};
    for state in [State::Init, State::Rtr, State::Rts] {
        let change = AttrChange { state: Some(state), path_mtu: Some(1024), ..AttrChange::default() };
        function.engine.modify_qp(qpn, &change, function.core.now, &mut function.core).unwrap();
    }
    let bind = SendWr {
        wr_id: 0,
        op: SendOp::Bind {
            window: window << 8 | 0x42,
            new_rkey: window << 8 | 0x55,
            lkey: index << 8 | 0x42,
            addr: 0x7_0ff0,
            length: 8,
            access: Access::REMOTE_READ,
        },
        flags: SendFlags::default(),
        payload: roce::engine::Payload::Sges(&[]),
        remote_srq: 0,
    };
    function.engine.post_send(qpn, &bind, function.core.now, &mut function.core).unwrap();
    let mut packet = [0; 4096];
    let urgency = roce::engine::Urgency::All;
    let none = function.engine.poll_transmit(function.core.now, urgency, &mut packet, &mut function.core);
    assert!(none.is_none());
    bench.unlucky(naming(0x202, index), Status::ResourceBusy);
    bench.ok(naming(0x202, window));
    bench.ok(naming(0x202, index));
}

/// Returns a CREATE_MKEY input for a key with one piece.
fn pieces(bench: &mut Bench, len: u32, key: u32, addr: u64) -> Vec<u8> {
    let pages = pages(bench);
    let mut input = with(
        &pages[..create_mkey_in::KLM_PAS_MTT],
        &[(mkc::ACCESS_MODE_1_0, 2), (mkc::START_ADDR, 0), (mkc::LEN, len.into()), (mkc::LOG_PAGE_SIZE, 0)],
    );
    input.extend(len.to_be_bytes());
    input.extend(key.to_be_bytes());
    input.extend(addr.to_be_bytes());
    input
}

fn reads(bench: &mut Bench, key: u32) -> bool {
    let sge = roce::engine::Sge { addr: 0, length: 8, lkey: key };
    bench.function.engine.gather(Pd(bench.pd), &[sge], &mut [0; 8]).is_ok()
}

#[test]
fn a_key_made_of_another_opens_nothing_once_that_is_free_or_gone() {
    let mut bench = Bench::new(PortKind::Ib);
    let input = pages(&mut bench);
    let target = create(&mut bench, &input);
    let input = pieces(&mut bench, 0x20, target << 8 | 0x42, 0x7_0ff0);
    let key = create(&mut bench, &input) << 8 | 0x42;
    assert!(reads(&mut bench, key));
    for free in [1u32, 0] {
        mkc::FREE.set(&mut bench.function.core.mkeys.get_mut(target).unwrap().context, free);
        bench.function.remap(target).unwrap();
        assert_eq!(reads(&mut bench, key), free == 0);
    }
    bench.ok(naming(0x202, target));
    assert!(!reads(&mut bench, key));
    bench.ok(naming(0x202, key >> 8));
}

#[test]
fn a_key_has_no_more_pieces_than_is_offered() {
    let mut bench = Bench::new(PortKind::Ib);
    let input = pieces(&mut bench, 0x20, 0, 0);
    let sized = |octwords| with(&input, &[(mkc::TRANSLATIONS_OCTWORD_SIZE, octwords)]);
    bench.ok(sized(1 << LOG_MAX_KLM_LIST));
    bench.refused(sized((1 << LOG_MAX_KLM_LIST) + 1), Status::ExceedLimit, Rule::CommandParameter);
}
