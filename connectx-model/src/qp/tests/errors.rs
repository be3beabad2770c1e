//! Errors that hardware reports in completions, caused by a program or its peer. They cause no
//! complaints.

use super::sends::bed;
use super::*;
use crate::fault::{CompletionFault, Side};
use crate::qp::completion::{status, syndrome};

const ACCESS_EVENT: u32 = 0x11;
const FATAL_EVENT: u32 = 0x05;

/// Returns the opcode and the syndrome of the first send completion and of the first receive
/// completion.
fn ended(bed: &mut Bed, cq: &mut Cq) -> [Option<(u32, u32)>; 2] {
    let entries: Vec<_> = std::iter::from_fn(|| bed.poll(cq)).map(|entry| error(&entry)).collect();
    [SEND_ERROR, RECV_ERROR].map(|kind| entries.iter().copied().find(|(opcode, _)| *opcode == kind))
}

#[test]
fn a_key_that_does_not_cover_the_payload_is_a_local_protection_error() {
    let (mut bed, mut cq, _, _, memory) = bed(RC);
    let other = bed.alloc_pd(0);
    let bad = [
        (0, 8, memory.key ^ 1),
        (0, 8, memory.key ^ 0x100),
        (0x3ff9, 8, memory.key),
        (u64::MAX - memory.va, 8, memory.key),
    ];
    for (offset, length, key) in bad {
        let (mut one, _) = bed.connected([&cq, &cq], &Shape::default());
        let wqe = bed.begin(&one, opcode::SEND).element(memory.va.wrapping_add(offset), length, key).done();
        bed.put(&mut one, &wqe);
        let behind = bed.send(&one, b"flushed");
        bed.post(&mut one, &behind);
        let entries: Vec<_> =
            std::iter::from_fn(|| bed.poll(&mut cq)).map(|entry| (brief(&entry), error(&entry))).collect();
        assert_eq!(entries, [((13, 0), (13, 0x04)), ((13, 1), (13, 0x05))]);
        assert_eq!(bed.state(&one), State::Err);
    }
    let mut stranger = bed.pair_of(&cq, other, &Shape { service: UC, ..Shape::default() });
    bed.init(&stranger, UC);
    let peer = stranger.clone();
    bed.connect(&stranger, UC, &peer);
    let wqe = bed.begin(&stranger, opcode::SEND).element(memory.va, 8, memory.key).done();
    bed.post(&mut stranger, &wqe);
    assert_eq!(bed.poll(&mut cq).map(|entry| error(&entry)), Some((13, 0x04)));
    assert_eq!(bed.state(&stranger), State::Sqe, "its receive queue goes on");
}

#[test]
fn a_remote_key_without_the_required_access_is_a_remote_access_error() {
    for operation in [opcode::WRITE, opcode::READ, opcode::FETCH_ADD] {
        for (offset, flip) in [(0, 1), (0x4000, 0)] {
            let (mut bed, mut cq, mut one, two, memory) = bed(RC);
            let mut wqe = bed.begin(&one, operation).remote(memory.va + offset, memory.key ^ flip);
            if operation == opcode::FETCH_ADD {
                wqe = wqe.operands(1, 0);
            }
            let wqe = wqe.element(memory.va, 8, memory.key).done();
            bed.post(&mut one, &wqe);
            assert_eq!(ended(&mut bed, &mut cq), [Some((13, 0x13)), Some((14, 0x05))], "{operation:#x}");
            assert!(bed.events(0).contains(&ACCESS_EVENT));
            assert_eq!((bed.state(&one), bed.state(&two)), (State::Err, State::Err));
        }
    }
}

#[test]
fn a_right_that_a_region_does_not_give_is_an_error_of_the_side_that_lacks_it() {
    let (mut bed, mut cq, mut one, _, memory) = bed(RC);
    let read_only = bed.memory_with(0, 1, &[mkc::LR, mkc::RR]);
    let wqe = bed.begin(&one, opcode::READ).remote(memory.va, memory.key);
    let wqe = wqe.element(read_only.va, 8, read_only.key).done();
    bed.post(&mut one, &wqe);
    assert_eq!(ended(&mut bed, &mut cq)[0], Some((13, 0x04)));
    let (mut one, _) = bed.connected([&cq, &cq], &Shape::default());
    let wqe = bed.begin(&one, opcode::WRITE).remote(read_only.va, read_only.key).inline(b"no").done();
    bed.post(&mut one, &wqe);
    assert_eq!(ended(&mut bed, &mut cq)[0], Some((13, 0x13)));
}

#[test]
fn a_message_that_is_longer_than_its_receive_is_an_error_of_both() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed(RC);
    for _ in 0..2 {
        let wqe = bed.send(&one, b"ok");
        bed.post(&mut one, &wqe);
    }
    bed.drain(&mut cq);
    bed.post_recv(&mut two, &[(memory.va, 3, memory.key)]);
    let wqe = bed.send(&one, b"four");
    bed.post(&mut one, &wqe);
    assert_eq!(ended(&mut bed, &mut cq), [Some((13, 0x12)), Some((14, 0x01))]);
}

#[test]
fn a_receive_that_its_key_does_not_open_is_an_error_of_both() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed(RC);
    for _ in 0..2 {
        let wqe = bed.send(&one, b"ok");
        bed.post(&mut one, &wqe);
    }
    bed.drain(&mut cq);
    bed.post_recv(&mut two, &[(memory.va, 8, memory.key ^ 0x80)]);
    let wqe = bed.send(&one, b"four");
    bed.post(&mut one, &wqe);
    assert_eq!(ended(&mut bed, &mut cq), [Some((13, 0x14)), Some((14, 0x04))]);
}

#[test]
fn an_operation_that_the_transport_lacks_completes_with_an_error() {
    for (service, operation) in
        [(UC, opcode::READ), (UC, opcode::SEND_INVAL), (UD, opcode::WRITE), (UD, opcode::UMR)]
    {
        let (mut bed, mut cq, mut one, two, memory) = bed(service);
        let wqe = bed.begin(&one, operation).raw(&bed.vector(&two)).element(memory.va, 8, memory.key).done();
        bed.post(&mut one, &wqe);
        assert_eq!(bed.poll(&mut cq).map(|entry| error(&entry)), Some((13, 0x02)));
    }
    let (mut bed, mut cq, mut one, _, memory) = bed(RC);
    let wqe = bed.begin(&one, opcode::READ).remote(memory.va, memory.key).inline(b"what for").done();
    bed.post(&mut one, &wqe);
    assert_eq!(ended(&mut bed, &mut cq)[0], Some((13, 0x02)));
}

#[test]
fn an_atomic_operation_that_is_not_aligned_is_an_invalid_request() {
    let (mut bed, mut cq, mut one, _, memory) = bed(RC);
    let wqe = bed.begin(&one, opcode::FETCH_ADD).remote(memory.va + 4, memory.key).operands(1, 0);
    let wqe = wqe.element(memory.va, 8, memory.key).done();
    bed.post(&mut one, &wqe);
    assert_eq!(ended(&mut bed, &mut cq)[0], Some((13, 0x12)));
}

#[test]
fn a_peer_without_receives_is_asked_again_and_then_given_up() {
    let mut bed = Bed::ib();
    let mut cq = bed.cq(0, 6, 64);
    let (mut one, mut two) = bed.connected([&cq, &cq], &Shape::default());
    let wqe = bed.send(&one, b"late");
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut cq), []);
    // A receive posted after the send is found, although receives have no doorbell.
    bed.post_recv(&mut two, &[]);
    let memory = bed.memory(0, 1);
    bed.poke(0, two.buffer, &list(&[(memory.va, 8, memory.key)], 4));
    bed.pass(10_000_000);
    assert_eq!(bed.drain(&mut cq), [(2, 0), (SUCCESS, 0)]);
    let wqe = bed.send(&one, b"never");
    bed.post(&mut one, &wqe);
    bed.pass(1_000_000_000);
    assert_eq!(bed.drain(&mut cq), [(13, 1)]);
    assert_eq!(bed.state(&one), State::Err);
}

#[test]
fn a_peer_that_is_silent_is_given_up() {
    let (mut bed, mut cq, mut one, _, _) = bed(RC);
    bed.fabric.functions[0].core.port.up = false;
    let wqe = bed.send(&one, b"anybody?");
    bed.post(&mut one, &wqe);
    bed.pass(10_000_000_000);
    assert_eq!(ended(&mut bed, &mut cq)[0], Some((13, 0x15)));
}

#[test]
fn in_the_error_state_everything_that_is_posted_is_flushed_in_its_turn() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed(RC);
    bed.name(&two, 0x507);
    assert_eq!(bed.drain(&mut cq), [(14, 0), (14, 1)]);
    // Receives have no doorbell, so the model itself checks for new ones.
    bed.post_recv(&mut two, &[(memory.va, 8, memory.key)]);
    bed.pass(2_000_000);
    let entry = bed.poll(&mut cq).unwrap();
    assert_eq!((brief(&entry), error(&entry)), ((14, 2), (14, 0x05)));
    bed.name(&one, 0x507);
    let wqe = bed.send(&one, b"x");
    bed.put(&mut one, &wqe);
    let nop = bed.nop(&one);
    bed.put(&mut one, &nop);
    let nonsense = bed.begin(&one, 0x77).done();
    bed.put(&mut one, &nonsense);
    bed.ring(&mut one);
    let entries: Vec<_> =
        std::iter::from_fn(|| bed.poll(&mut cq)).map(|entry| (brief(&entry).1, error(&entry).1)).collect();
    assert_eq!(entries, [(0, 0x05), (1, 0x05), (2, 0x05)]);
}

#[test]
fn a_reset_queue_pair_begins_anew() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed(RC);
    let wqe = bed.send(&one, b"1");
    bed.post(&mut one, &wqe);
    bed.drain(&mut cq);
    for pair in [&one, &two] {
        bed.name(pair, 0x50a);
    }
    for pair in [&mut one, &mut two] {
        (pair.head, pair.recv_head) = (0, 0);
        let (function, record) = (pair.function, pair.record);
        bed.poke(function, record, &[0; 8]);
        bed.init(pair, RC);
    }
    bed.connect(&one, RC, &two);
    bed.connect(&two, RC, &one);
    bed.post_recv(&mut two, &[(memory.va, 8, memory.key)]);
    let wqe = bed.send(&one, b"2");
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut cq), [(2, 0), (SUCCESS, 0)]);
}

#[test]
fn every_syndrome_can_be_asked_for_on_either_side() {
    for code in [0x01, 0x02, 0x04, 0x05, 0x06, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22, 0x42] {
        for side in [Side::Send, Side::Receive] {
            let (mut bed, mut cq, mut one, _, _) = bed(RC);
            let fault = CompletionFault { qpn: None, side, syndrome: code, vendor: 0x33 };
            bed.fabric.functions[0].core.faults.add_completion(fault).unwrap();
            let wqe = bed.send(&one, b"doomed");
            bed.post(&mut one, &wqe);
            let kind = if side == Side::Send { SEND_ERROR } else { RECV_ERROR };
            let entries: Vec<_> = std::iter::from_fn(|| bed.poll(&mut cq)).collect();
            let entry = entries.iter().find(|entry| error_cqe::SYNDROME.get32(&entry[..]) == u32::from(code));
            let entry = entry.unwrap_or_else(|| panic!("{code:#x} {side:?}: {entries:x?}"));
            assert_eq!(error_cqe::OPCODE.get32(entry), kind);
            assert_eq!(error_cqe::VENDOR_ERROR_SYNDROME.get(entry), 0x33);
        }
    }
}

#[test]
fn a_syndrome_and_the_engines_status_are_each_others() {
    for code in [0x01, 0x02, 0x04, 0x06, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22] {
        assert_eq!(syndrome(status(code)).0, code);
    }
    // The engine does not count a flush as a failure.
    assert_eq!(status(0x05), roce::engine::Status::General);
}

#[test]
fn a_send_queue_of_which_the_memory_is_gone_is_fatal() {
    let (mut bed, mut cq, mut one, _, _) = bed(RC);
    let qp = bed.fabric.functions[0].core.qps.get_mut(&one.qpn).unwrap();
    qp.pages = crate::pages::Pages::new(vec![1 << 40], 12, 0, 0x800).unwrap();
    let wqe = bed.send(&one, b"x");
    bed.post(&mut one, &wqe);
    assert_eq!(bed.rules(), [Rule::DmaFault]);
    assert_eq!(bed.events(0), [FATAL_EVENT]);
    assert_eq!((bed.drain(&mut cq), bed.state(&one)), (vec![], State::Err));
}
