//! Memory in flight: the completion that returns it, the number of times it is returned, and the
//! effect of unsignalled requests.

use std::collections::HashSet;

use crate::common::setup::{CAP, Setup, bytes, ready, setup, started};
use crate::common::{Kind, World};
use verbs::state::Reset;
use verbs::{
    Context, CqInit, Provider, QpAttr, QpAttrMask, QpInit, QpState, QpType, SendFlags, SendOp, Wc, WcStatus,
};

both! {
    a_copied_completion_returns_memory_once_and_only_after_it_was_polled
    a_completion_that_is_copied_while_it_is_lent_returns_memory_later
    a_completion_by_value_has_returned_the_memory_already
    a_copied_completion_returns_nothing_after_its_queue_pair_was_closed
    a_copied_completion_returns_nothing_after_its_queue_pair_was_reset
    numbers_are_unique_while_queue_pairs_come_and_go
    unsignalled_memory_returns_with_the_next_signalled_request_last_first
    an_unsignalled_request_that_fails_returns_its_own_memory_and_what_was_before_it
    an_unsignalled_failure_that_was_not_reclaimed_is_returned_by_the_next_request
    returned_memory_that_is_dropped_half_way_is_released
    a_reset_cuts_the_chain_of_unsignalled_requests
    pieces_and_unsignalled_requests_return_in_order
}

fn a_copied_completion_returns_memory_once_and_only_after_it_was_polled<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let buf = s.buf(b"m");
    let wr_id = s.send(buf);
    let guessed = Wc { wr_id, qp_num: s.qp.qp_num(), ..Wc::default() };
    assert!(s.cq.reclaim(&guessed).is_none(), "it is in flight");
    world.complete(s.qp.qp_num(), false, b"m");
    assert!(s.cq.reclaim(&guessed).is_none(), "it was not polled");
    let mut wcs = [Wc::default(); 4];
    assert_eq!(s.cq.poll_into(&mut wcs), 1);
    let wc = wcs[0];
    let mut other = context.create_cq(&CqInit::new(8)).unwrap();
    assert!(other.reclaim(&wc).is_none(), "it is another queue's");
    for wrong in [wr_id + 1, wr_id ^ (1 << 40), wr_id & !(1 << 63), wr_id | 1 << 62, u64::MAX, 0] {
        assert!(s.cq.reclaim(&Wc { wr_id: wrong, ..wc }).is_none(), "{wrong:#x}");
    }
    assert_eq!(bytes(s.cq.reclaim(&wc).unwrap()), *b"m");
    assert!(s.cq.reclaim(&wc).is_none(), "twice");
}

fn a_completion_that_is_copied_while_it_is_lent_returns_memory_later<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    for byte in *b"ab" {
        s.send_byte(byte, true);
        world.complete(s.qp.qp_num(), false, &[byte]);
    }
    let mut completions = s.cq.poll();
    // The completion is read but not copied out.
    let first = completions.next().unwrap().wr_id();
    let copied = completions.next().unwrap().to_wc();
    drop(completions);
    assert!(s.cq.reclaim(&Wc { wr_id: first, ..copied }).is_none());
    assert_eq!(bytes(s.cq.reclaim(&copied).unwrap()), *b"b");
    assert!(s.cq.reclaim(&copied).is_none());
    assert_eq!(bytes(s.qp.dismantle().unwrap()), *b"a");
}

fn a_completion_by_value_has_returned_the_memory_already<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    s.send_byte(b'v', true);
    world.complete(s.qp.qp_num(), false, b"v");
    let completed = s.cq.poll_one().unwrap();
    assert!(completed.returned.is_some());
    assert!(s.cq.reclaim(&completed.wc).is_none());
    assert!(s.cq.poll_one().is_none());
    s.qp.post_send_inline(3, SendOp::Send, SendFlags::SIGNALED, b"raw").unwrap();
    world.complete(s.qp.qp_num(), false, b"raw");
    let raw = s.cq.poll_one().unwrap();
    assert_eq!((raw.wr_id, raw.returned.is_none()), (3, true));
}

fn a_copied_completion_returns_nothing_after_its_queue_pair_was_closed<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    s.send_byte(1, true);
    world.complete(s.qp.qp_num(), false, &[1]);
    let mut wcs = [Wc::default()];
    s.cq.poll_into(&mut wcs);
    assert_eq!(bytes(s.qp.dismantle().unwrap()), [1]);
    assert!(s.cq.reclaim(&wcs[0]).is_none());
    // The next queue pair gets the same index in the completion queue's directory.
    s.qp = ready(&s.pd, &s.cq);
    s.send_byte(2, true);
    assert!(s.cq.reclaim(&wcs[0]).is_none());
    world.complete(s.qp.qp_num(), false, &[2]);
    assert_eq!(s.next_bytes(), [2]);
}

fn a_copied_completion_returns_nothing_after_its_queue_pair_was_reset<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let Setup { pd, mut cq, mut qp } = setup(&context);
    let buf = crate::common::setup::buf(&pd, &[7]);
    qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..).unwrap();
    world.complete(qp.qp_num(), false, &[7]);
    let mut wcs = [Wc::default()];
    cq.poll_into(&mut wcs);
    let mut qp = qp.to_reset().unwrap();
    assert_eq!(bytes(qp.reclaim_all()), [7]);
    assert!(cq.reclaim(&wcs[0]).is_none());
    assert!(qp.reclaim_all().is_empty());
}

fn numbers_are_unique_while_queue_pairs_come_and_go<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let mut numbers = HashSet::new();
    for round in 0..20 {
        for other in [ready(&s.pd, &s.cq), ready(&s.pd, &s.cq)] {
            drop(std::mem::replace(&mut s.qp, other));
            for byte in 0..3 {
                let number = s.send_byte(byte, true);
                assert!(numbers.insert(number), "round {round}: {number:#x} was given before");
                assert_eq!(number >> 63, 1, "raw requests have the other numbers");
            }
            world.complete(s.qp.qp_num(), false, &[0]);
            s.next_bytes();
        }
    }
}

fn unsignalled_memory_returns_with_the_next_signalled_request_last_first<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    for round in 0..3 {
        for byte in [0, 1, 2] {
            s.send_byte(byte, false);
        }
        s.send_byte(3, true);
        let signaled =
            world.state().requests.iter().filter(|r| r.flags.contains(SendFlags::SIGNALED)).count();
        assert_eq!(signaled, 1, "round {round}");
        for byte in [0, 1, 2] {
            world.complete(s.qp.qp_num(), false, &[byte]);
        }
        assert!(s.cq.poll_one().is_none());
        world.complete(s.qp.qp_num(), false, &[3]);
        assert_eq!(s.next_bytes(), [3, 2, 1, 0]);
    }
}

fn an_unsignalled_request_that_fails_returns_its_own_memory_and_what_was_before_it<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let qp_num = s.qp.qp_num();
    for byte in [0, 1, 2] {
        s.send_byte(byte, false);
    }
    s.send_byte(3, true);
    world.complete(qp_num, false, &[0]);
    world.fail(qp_num, WcStatus::REM_ACCESS_ERR);
    world.flush(qp_num);
    let failed = s.cq.poll_one().unwrap();
    assert_eq!(failed.status, WcStatus::REM_ACCESS_ERR);
    assert_eq!(bytes(failed.returned.unwrap()), [1, 0]);
    assert_eq!(s.next_bytes(), [2]);
    assert_eq!(s.next_bytes(), [3]);
}

fn an_unsignalled_failure_that_was_not_reclaimed_is_returned_by_the_next_request<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    s.send_byte(0, false);
    s.send_byte(1, true);
    world.fail(s.qp.qp_num(), WcStatus::LOC_PROT_ERR);
    world.flush(s.qp.qp_num());
    assert_eq!(s.cq.poll().next().unwrap().status(), WcStatus::LOC_PROT_ERR);
    assert_eq!(s.next_bytes(), [1, 0]);
}

fn returned_memory_that_is_dropped_half_way_is_released<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    for byte in 0..4 {
        s.send_byte(byte, byte == 3);
    }
    for byte in 0..4 {
        world.complete(s.qp.qp_num(), false, &[byte]);
    }
    let mut returned = s.cq.poll_one().unwrap().returned.unwrap();
    let regions = || world.census().into_iter().filter(|kind| *kind == Kind::Mr).count();
    assert_eq!(returned.next().unwrap().into_buf().unwrap()[0], 3);
    assert_eq!(returned.next().unwrap().into_buf().unwrap()[0], 2);
    assert_eq!(regions(), 2);
    drop(returned);
    assert_eq!(regions(), 0);
    // The number of slots is unchanged.
    for byte in 0..4 {
        s.send_byte(byte, byte == 3);
    }
}

fn a_reset_cuts_the_chain_of_unsignalled_requests<P: Provider>(world: &World, context: Context<P>) {
    world.state().forgets_late = true;
    for by_modify in [false, true] {
        let mut s = setup(&context);
        s.send_byte(0, false);
        s.qp = if by_modify {
            let reset = QpAttr { qp_state: QpState::RESET, ..QpAttr::default() };
            s.qp.modify(&reset, QpAttrMask::STATE).unwrap();
            started(s.qp.modify_to::<Reset>(&QpAttr::default(), QpAttrMask::empty()).unwrap())
        } else {
            started(s.qp.to_reset().unwrap())
        };
        s.send_byte(1, true);
        world.complete(s.qp.qp_num(), false, &[1]);
        assert_eq!(s.next_bytes(), [1], "the device may still access what was posted before the reset");
        assert_eq!(bytes(s.qp.dismantle().unwrap()), [0]);
    }
}

fn pieces_and_unsignalled_requests_return_in_order<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    s.send_byte(9, false);
    let pieces = vec![s.buf(&[1]), s.buf(&[2]), s.buf(&[3])];
    s.qp.post_send_bufs(SendOp::Send, SendFlags::empty(), pieces).unwrap();
    world.complete(s.qp.qp_num(), false, &[9]);
    world.complete(s.qp.qp_num(), false, &[1, 2, 3]);
    assert_eq!(s.next_bytes(), [1, 2, 3, 9]);
}

#[test]
fn a_completion_queue_for_sends_returns_no_memory_of_receives() {
    let (world, device) = crate::common::world("two-queues");
    let context = device.open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let [mut sends, mut recvs] = [8, 8].map(|cqe| context.create_cq(&CqInit::new(cqe)).unwrap());
    let init = QpInit { recv_cq: recvs.handle(), cap: CAP, ..QpInit::new(QpType::RC, &sends) };
    let mut qp = started(pd.create_qp(&init).unwrap());
    qp.post_recv_buf(crate::common::setup::buf(&pd, &[0]), ..).unwrap();
    qp.post_send_buf(SendOp::Send, SendFlags::empty(), crate::common::setup::buf(&pd, &[5]), ..).unwrap();
    world.complete(qp.qp_num(), true, &[6]);
    world.complete(qp.qp_num(), false, &[5]);
    let mut wcs = [Wc::default()];
    assert_eq!(recvs.poll_into(&mut wcs), 1);
    // Both queues have a table at index 0, so the send and the receive share a `wr_id`: the
    // receive's completion must not return the send's memory.
    assert!(sends.reclaim(&wcs[0]).is_none());
    assert_eq!(bytes(recvs.reclaim(&wcs[0]).unwrap()), [6]);
    assert_eq!(sends.poll_one().unwrap().into_buf().unwrap()[..], [5]);
}
