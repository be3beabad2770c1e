//! Rollback of a send queue: the kernel's end never sees requests queued without a doorbell.
//!
//! Each test runs on the provider's own queue and on an [`ErasedSendQueue`].

use uverbs_abi::rdma_user_rxe::RxeSendWqe;
use verbs_core::provider::{ErasedSendQueue, QpParts, SendQueue};
use verbs_core::types::{PostReason, QpState, QpType, SendFlags, SendOp, SendWr, Sge};

use super::{Fixture, plain, sge, snapshot};
use provider_rxe::paper::{PaperQp, PaperQueue};

/// Number of usable slots in the send queue.
const ROOM: u64 = 15;

/// Runs a test on the send queue of a queue pair in RTS, static and erased, with the kernel's end
/// of the queue.
fn each_form(test: impl Fn(&mut dyn SendQueue, &PaperQueue)) {
    for erased in [false, true] {
        let PaperQp { parts: QpParts { mut sq, .. }, sq: kernel, .. } = Fixture::of_type(QpType::RC).qp;
        if erased {
            test(&mut ErasedSendQueue::new(sq), &kernel);
        } else {
            test(&mut sq, &kernel);
        }
    }
}

/// Queues a work request with one SGE.
fn put(sq: &mut dyn SendQueue, wr_id: u64) -> Result<(), PostReason> {
    let one = [sge(wr_id)];
    // SAFETY: a paper device accesses no memory named by work requests.
    unsafe { sq.post_one(&SendWr { wr_id, ..plain(SendOp::Send, &one) }) }
}

/// Posts a work request with one SGE.
fn post(sq: &mut dyn SendQueue, wr_id: u64) {
    let one = [sge(wr_id)];
    // SAFETY: a paper device accesses no memory named by work requests.
    unsafe { sq.post_send(&[SendWr { wr_id, ..plain(SendOp::Send, &one) }]) }.unwrap();
}

/// Returns the `wr_id`s of all work requests found by the kernel.
fn taken(kernel: &PaperQueue) -> Vec<u64> {
    core::iter::from_fn(|| kernel.take::<RxeSendWqe>()).map(|(wqe, _)| wqe.wr.wr_id).collect()
}

#[test]
fn the_kernel_never_sees_what_was_rolled_back() {
    each_form(|sq, kernel| {
        for count in 0..=ROOM {
            let before = kernel.indices();
            (0..count).for_each(|n| put(sq, n).unwrap());
            assert_eq!(sq.rollback(usize::MAX) as u64, count);
            assert_eq!(sq.rollback(usize::MAX), 0, "it is removed once");
            sq.ring().unwrap();
            assert_eq!(kernel.indices(), before, "nothing is left to publish");
        }
    });
}

#[test]
fn the_next_request_takes_the_slot_of_the_one_that_was_rolled_back() {
    each_form(|sq, kernel| {
        // More than twice round the ring.
        for n in 0..40 {
            let index = kernel.indices().0;
            put(sq, 1000 + n).unwrap();
            put(sq, 2000 + n).unwrap();
            assert_eq!(sq.rollback(usize::MAX), 2);
            post(sq, n);
            assert_eq!(kernel.slot(index)[..8], n.to_ne_bytes(), "the same slot");
            assert_eq!(taken(kernel), [n]);
        }
    });
}

#[test]
fn a_queue_that_was_filled_and_rolled_back_has_all_its_room_wherever_it_starts() {
    for start in 0..=ROOM {
        each_form(|sq, kernel| {
            for n in 0..start {
                post(sq, n);
            }
            kernel.drain();
            for round in 1..=3 {
                (0..ROOM).for_each(|n| put(sq, round * 100 + n).unwrap());
                assert_eq!(put(sq, 99), Err(PostReason::QueueFull));
                assert_eq!(sq.rollback(usize::MAX) as u64, ROOM);
            }
            (0..ROOM).for_each(|n| post(sq, n));
            assert_eq!(put(sq, 99), Err(PostReason::QueueFull));
            assert_eq!(taken(kernel), (0..ROOM).collect::<Vec<_>>());
        });
    }
}

#[test]
fn the_last_requests_are_rolled_back_and_those_before_them_go_with_the_next_ring() {
    each_form(|sq, kernel| {
        // More than twice round the ring.
        for n in 0..40 {
            (0..4).for_each(|more| put(sq, 10 * n + more).unwrap());
            assert_eq!((sq.rollback(0), sq.rollback(2)), (0, 2));
            assert_eq!(taken(kernel), [0; 0], "nothing is published by a rollback");
            post(sq, 10 * n + 9);
            assert_eq!(sq.rollback(1), 0);
            assert_eq!(taken(kernel), [10 * n, 10 * n + 1, 10 * n + 9]);
        }
    });
}

#[test]
fn what_was_rung_for_stays() {
    each_form(|sq, kernel| {
        post(sq, 1);
        put(sq, 2).unwrap();
        sq.ring().unwrap();
        assert_eq!(sq.rollback(usize::MAX), 0);
        put(sq, 77).unwrap();
        put(sq, 78).unwrap();
        let before = snapshot(kernel);
        assert_eq!(sq.rollback(usize::MAX), 2);
        assert_eq!(snapshot(kernel), before, "it writes nothing that the kernel could read");
        assert_eq!(taken(kernel), [1, 2]);
    });
}

#[test]
fn a_batch_rings_for_what_was_put_in_before_it() {
    each_form(|sq, kernel| {
        put(sq, 1).unwrap();
        post(sq, 2);
        assert_eq!(sq.rollback(usize::MAX), 0);
        assert_eq!(taken(kernel), [1, 2]);
    });
}

#[test]
fn a_batch_that_was_refused_in_the_middle_leaves_nothing_to_roll_back() {
    each_form(|sq, kernel| {
        let one = [sge(1)];
        let five: Vec<Sge> = (0..5).map(sge).collect();
        let good = SendWr { wr_id: 1, ..plain(SendOp::Send, &one) };
        // SAFETY: a paper device accesses no memory named by work requests.
        let error = unsafe { sq.post_send(&[good, good, plain(SendOp::Send, &five), good]) }.unwrap_err();
        assert_eq!((error.accepted, sq.rollback(usize::MAX)), (2, 0));
        assert_eq!(taken(kernel), [1, 1]);
        // SAFETY: as above.
        let error = unsafe { sq.post_send(&[plain(SendOp::Send, &five)]) }.unwrap_err();
        assert_eq!((error.accepted, sq.rollback(usize::MAX)), (0, 0));
    });
}

#[test]
fn a_refused_request_is_not_counted() {
    each_form(|sq, kernel| {
        put(sq, 1).unwrap();
        let five: Vec<Sge> = (0..5).map(sge).collect();
        // SAFETY: a paper device accesses no memory named by work requests.
        unsafe { sq.post_one(&plain(SendOp::Send, &five)) }.unwrap_err();
        assert_eq!(sq.rollback(usize::MAX), 1);
        post(sq, 2);
        assert_eq!(taken(kernel), [2]);
    });
}

#[test]
fn lists_inline_data_and_atomics_are_rolled_back_like_others() {
    each_form(|sq, kernel| {
        let data = [7_u8; 16];
        let inline = [Sge { addr: data.as_ptr() as u64, length: 16, lkey: 0 }];
        let (list, eight) = ([sge(1), sge(2)], [Sge { length: 8, ..sge(1) }]);
        let atomic = SendOp::AtomicFetchAndAdd { remote_addr: 0x1000, rkey: 1, add: 1 };
        let wrs = [
            plain(SendOp::Send, &list),
            SendWr { flags: SendFlags::INLINE, ..plain(SendOp::Send, &inline) },
            plain(atomic, &eight),
            plain(SendOp::Send, &[]),
        ];
        for wr in &wrs {
            // SAFETY: a paper device accesses no memory named by work requests; the inline data's
            // memory lives.
            unsafe { sq.post_one(wr) }.unwrap();
        }
        assert_eq!(sq.rollback(usize::MAX), wrs.len());
        sq.ring().unwrap();
        assert_eq!(kernel.count(), 0);
        // SAFETY: as above.
        unsafe { sq.post_send(&wrs) }.unwrap();
        assert_eq!(kernel.count() as usize, wrs.len());
    });
}

#[test]
fn after_a_reset_there_is_nothing_to_roll_back() {
    let mut fixture = Fixture::of_type(QpType::RC);
    put(&mut fixture.qp.parts.sq, 1).unwrap();
    fixture.device.move_to(&mut fixture.qp, QpState::RESET);
    assert_eq!(fixture.qp.parts.sq.rollback(usize::MAX), 0, "RESET dropped it");
    fixture.device.move_to(&mut fixture.qp, QpState::RTS);
    put(&mut fixture.qp.parts.sq, 2).unwrap();
    assert_eq!(fixture.qp.parts.sq.rollback(usize::MAX), 1);
    post(&mut fixture.qp.parts.sq, 3);
    assert_eq!(taken(&fixture.qp.sq), [3]);
}

#[test]
fn in_err_what_was_rolled_back_is_not_flushed() {
    let mut fixture = Fixture::of_type(QpType::RC);
    post(&mut fixture.qp.parts.sq, 1);
    put(&mut fixture.qp.parts.sq, 2).unwrap();
    fixture.device.move_to(&mut fixture.qp, QpState::ERR);
    assert_eq!(fixture.qp.parts.sq.rollback(usize::MAX), 1);
    fixture.qp.parts.sq.ring().unwrap();
    assert_eq!(taken(&fixture.qp.sq), [1]);
}
