//! Doorbells: the doorbell record and the contents of the register.

use std::sync::Arc;

use verbs_core::ring::Region;
use verbs_core::types::QpCap;

use super::*;
use crate::doorbell::{BlueFlame, Record};
use crate::queue::resources::QueueResources;
use crate::queue::sq::{Frames, Parts, Shape, Sq};
use crate::wqe::BLOCK;

/// Returns a send queue whose record overlaps bytes 4 to 7 of the register, so that the bytes show
/// the later of two stores.
fn overlapping(half: usize) -> (Sq, Region) {
    let [memory, registers] = [16 * BLOCK, 512].map(Region::plain);
    // SAFETY: the test has one thread and reads the bytes written by both.
    let (record, bell) = unsafe { (Record::new(&registers, 4), BlueFlame::new(&registers, 0, half, true)) };
    let cap = QpCap { max_send_wr: 4, max_send_sge: 2, ..QpCap::default() };
    let mut sq = Sq::new(Parts {
        qp_num: QP_NUM,
        qp_type: QpType::RC,
        sq_sig_all: false,
        shape: Shape { blocks: 16, blocks_of_request: 4, max_post: 4, cap },
        offset: 0,
        record,
        bell,
        prefers_blue_flame: true,
        has_windows: true,
        frames: Frames::default(),
        resources: Arc::new(QueueResources::of_test(memory, Region::plain(64))),
    });
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        sq.moved_to(state);
    }
    (sq, registers)
}

#[test]
fn the_record_is_stored_before_the_register_rings() {
    let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &[SGE], flags: SendFlags::empty() };
    for (requests, name) in [(&[wr][..], "a whole request"), (&[wr, wr], "a doorbell")] {
        let (mut sq, registers) = overlapping(256);
        // SAFETY: no device has the queue.
        unsafe { sq.post_send(requests) }.unwrap();
        // SAFETY: one thread.
        assert_eq!(unsafe { registers.read::<[u8; 4]>(4) }, [0, 0xab, 0xcd, 2], "{name}");
    }
}

#[test]
fn a_register_without_room_for_a_block_takes_doorbells_alone() {
    let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &[SGE], flags: SendFlags::empty() };
    for half in [0, 8, 32] {
        let (mut sq, registers) = overlapping(half);
        // SAFETY: no device has the queue.
        unsafe { sq.post_send(&[wr]) }.unwrap();
        // SAFETY: one thread.
        let [first, rest @ ..] = unsafe { registers.read::<[u64; 16]>(0) };
        assert_eq!((first != 0, rest), (true, [0; 15]), "halves of {half} bytes");
    }
}

#[test]
fn a_queue_whose_queue_pair_was_destroyed_rings_nothing() {
    let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &[SGE], flags: SendFlags::empty() };
    // A single request on and off the fast path and several.
    for requests in [&[wr][..], &[SendWr { sge: &[SGE; 2], ..wr }], &[wr, wr]] {
        let mut qp = ready(PaperShape::default());
        qp.destroy();
        post(&mut qp, requests);
        assert_eq!(qp.take_register(0, 64), [0; 64], "{requests:?}");
        assert_eq!(qp.records()[1], 0, "{requests:?}");
    }
}

#[test]
fn a_request_is_not_carried_while_others_wait() {
    let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &[SGE], flags: SendFlags::empty() };
    // One request on the fast path, then one off it.
    for waiting in [wr, SendWr { sge: &[SGE; 2], ..wr }] {
        let mut qp = ready(PaperShape::default());
        // SAFETY: a paper device accesses no memory.
        unsafe { qp.sq.post_one(&waiting) }.unwrap();
        post(&mut qp, &[wr]);
        let (last, register) = (qp.blocks(1, 1), qp.take_register(0, 64));
        assert_eq!((&register[..8], &register[8..]), (&last[..8], &[0; 56][..]), "{waiting:?}");
        assert_eq!(qp.records()[1], 2);
        // No request waits any more.
        post(&mut qp, &[wr]);
        assert_eq!(qp.take_register(1, 64), qp.blocks(2, 1));
    }
}

#[test]
fn a_request_is_posted_alone_where_no_other_waits_for_a_doorbell() {
    let mut qp = ready(PaperShape::default());
    let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &[SGE], flags: SendFlags::empty() };
    // SAFETY: a paper device accesses no memory.
    let alone = |qp: &mut PaperQp, wr: &SendWr<'_>| unsafe { qp.sq.post_fast(wr, FastPath::Alone) };
    assert!(alone(&mut qp, &wr));
    assert_eq!((qp.take_register(0, 64), qp.records()[1]), (qp.blocks(0, 1), 1));
    // Other kinds of requests, and requests behind a waiting one, are left to the other functions.
    assert!(!alone(&mut qp, &SendWr { sge: &[], ..wr }));
    // SAFETY: as above.
    unsafe { qp.sq.post_one(&wr) }.unwrap();
    assert!(!alone(&mut qp, &wr));
    assert_eq!((qp.take_register(1, 64), qp.records()[1]), ([0; 64].into(), 1), "nothing was rung for");
    qp.sq.ring().unwrap();
    assert_eq!((qp.take_register(1, 64), qp.records()[1]), (qp.blocks(1, 1), 2));
    assert!(alone(&mut qp, &wr));
    assert_eq!((qp.take_register(0, 64), qp.records()[1]), (qp.blocks(2, 1), 3));
}

#[test]
fn a_doorbell_for_a_batch_carries_its_only_request_and_names_the_last_of_several() {
    for count in 1..=2 {
        let mut qp = ready(PaperShape::default());
        let mut batch = WrBatch::start(&mut qp.sq);
        for _ in 0..count {
            // SAFETY: a paper device accesses no memory.
            unsafe { batch.send().set_sge(SGE) };
        }
        batch.complete().unwrap();
        let (last, register) = (qp.blocks(count - 1, 1), qp.take_register(0, 64));
        let rest = if count == 1 { &last[8..] } else { &[0; 56] };
        assert_eq!((&register[..8], &register[8..]), (&last[..8], rest), "{count} requests");
        assert_eq!(qp.records()[1], count);
    }
}

#[test]
fn a_register_takes_inline_data_alone_where_the_program_prefers_doorbells() {
    let bytes: Vec<u8> = (0..100).collect();
    let shape = PaperShape { prefers_blue_flame: false, ..PaperShape::default() };
    for (list, is_inline) in [
        (&[SGE][..], false),
        (&[SGE, SGE], false),
        (&[inline(&bytes[..9])], true),
        (&[inline(&bytes[..40]), inline(&bytes[40..])], true),
    ] {
        let mut qp = ready(shape);
        let flags = if is_inline { SendFlags::INLINE } else { SendFlags::empty() };
        post(&mut qp, &[SendWr { wr_id: 1, op: SendOp::Send, sge: list, flags }]);
        let (register, stored) = (qp.take_register(0, 128), qp.blocks(0, 2));
        assert_eq!(register[..8], stored[..8]);
        let rest = if is_inline { &stored[8..16 + 4 + 9] } else { &[0; 21] };
        assert_eq!(register[8..29], *rest, "{list:?}");
    }
}

#[test]
fn a_request_without_elements_has_no_inline_data_for_the_register() {
    for (prefers_blue_flame, is_carried) in [(true, true), (false, false)] {
        let mut qp = ready(PaperShape { prefers_blue_flame, ..PaperShape::default() });
        post(&mut qp, &[SendWr { wr_id: 1, op: op_of("write"), sge: &[], flags: SendFlags::INLINE }]);
        let (register, stored) = (qp.take_register(0, 32), qp.blocks(0, 1));
        assert_eq!(register[..8], stored[..8]);
        let rest = if is_carried { &stored[8..32] } else { &[0; 24] };
        assert_eq!(register[8..], *rest, "{prefers_blue_flame}");
    }
}

#[test]
fn a_register_takes_no_request_that_is_longer_than_its_half() {
    let bytes: Vec<u8> = (0..=255).collect();
    let shape = PaperShape { blocks: 32, blocks_of_request: 8, max_inline: 400, ..PaperShape::default() };
    for (len, is_carried) in [(220, true), (221, false), (256, false)] {
        let mut qp = ready(shape);
        let list = [inline(&bytes[..100]), inline(&bytes[100..len])];
        post(&mut qp, &[SendWr { wr_id: 1, op: op_of("write"), sge: &list, flags: SendFlags::INLINE }]);
        let (register, stored) = (qp.take_register(0, 256), qp.blocks(0, 4));
        if is_carried {
            assert_eq!(register, stored);
        } else {
            assert_eq!((&register[..8], &register[8..]), (&stored[..8], &[0; 248][..]));
        }
        assert_eq!(qp.take_register(1, 256), [0; 256], "{len} bytes");
    }
}

#[test]
fn a_doorbell_for_several_long_requests_carries_none() {
    let bytes = [7; 100];
    let mut qp = ready(PaperShape::default());
    let list = [inline(&bytes)];
    let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &list, flags: SendFlags::INLINE };
    post(&mut qp, &[wr, wr]);
    let register = qp.take_register(0, 256);
    assert_eq!((&register[..8], &register[8..]), (&qp.blocks(2, 1)[..8], &[0; 248][..]));
}
