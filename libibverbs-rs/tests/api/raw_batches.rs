//! Raw batches: posted with one doorbell or not at all.
//!
//! # Safety
//! The paper device accesses the memory of a request when a test completes it. No test here
//! completes a request with memory.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::World;
use crate::common::setup::setup;
use verbs::{Context, Errno, OpKind, PostBufReason, PostReason, Provider, SendFlags, SendOp, Sge, WcOpcode};

both! {
    a_raw_batch_reaches_the_device_when_it_completes_and_with_one_doorbell
    each_request_has_the_number_and_the_flags_that_were_set_before_it
    a_refused_request_ends_the_batch_and_complete_posts_nothing
    a_batch_that_is_dropped_aborted_or_unwound_leaves_the_queue_as_it_was
    an_empty_raw_batch_rings_no_doorbell
    a_doorbell_that_fails_leaves_the_requests_in_the_queue
    a_number_of_safe_posting_is_refused_for_requests_without_a_promise
    inline_data_is_gathered_from_pieces_and_not_taken_by_a_read
    a_forgotten_batch_is_posted_by_the_next_doorbell
    a_batch_that_is_given_up_leaves_the_requests_of_a_forgotten_one
    a_key_is_invalidated_under_a_promise_and_by_no_safe_post
}

const SGE: Sge = Sge { addr: 0x1000, length: 8, lkey: 1 };

/// Returns the `wr_id`s of the requests seen by the device, and the number of doorbells.
fn seen(world: &World) -> (Vec<u64>, usize) {
    let state = world.state();
    (state.requests.iter().map(|request| request.wr_id).collect(), state.rings)
}

fn a_raw_batch_reaches_the_device_when_it_completes_and_with_one_doorbell<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let mut wr = s.qp.wr_start();
    for wr_id in 1..4 {
        wr.wr_id = wr_id;
        // SAFETY: see the head of the file.
        unsafe { wr.rdma_write(7, 0x2000).set_sge(SGE) };
    }
    assert_eq!((wr.len(), seen(world)), (3, (vec![], 0)));
    assert_eq!(wr.complete(), Ok(3));
    assert_eq!(seen(world), (vec![1, 2, 3], 1));
    assert!(world.state().requests.iter().all(|request| request.opcode == WcOpcode::RDMA_WRITE));
}

fn each_request_has_the_number_and_the_flags_that_were_set_before_it<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let mut wr = s.qp.wr_start();
    (wr.wr_id, wr.wr_flags) = (5, SendFlags::SIGNALED | SendFlags::INLINE);
    // SAFETY: see the head of the file.
    unsafe { wr.send().set_sge_list(&[SGE, SGE]) };
    (wr.wr_id, wr.wr_flags) = (6, SendFlags::FENCE);
    wr.send_imm(1).set_inline_data(b"abc");
    wr.complete().unwrap();
    let state = world.state();
    let found: Vec<_> =
        state.requests.iter().map(|r| (r.wr_id, r.flags, r.sge.len(), &r.inline[..])).collect();
    let expected =
        [(5, SendFlags::SIGNALED, 2, &b""[..]), (6, SendFlags::FENCE | SendFlags::INLINE, 1, b"abc")];
    assert_eq!(found, expected);
}

fn a_refused_request_ends_the_batch_and_complete_posts_nothing<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let mut wr = s.qp.wr_start();
    wr.send().no_data();
    wr.send().set_inline_data(&[0; 17]);
    wr.send().no_data();
    let error = wr.complete().unwrap_err();
    assert_eq!((error.position, error.reason), (1, PostReason::InlineTooLong { given: 17, max: 16 }));
    let text = "request 1 of the batch: 17 inline bytes, but the queue takes 16; nothing was posted";
    assert_eq!(error.to_string(), text);
    assert_eq!(seen(world), (vec![], 0));
    // No part of the batch is left behind.
    let mut wr = s.qp.wr_start();
    wr.wr_id = 9;
    wr.send().no_data();
    assert_eq!((wr.complete(), seen(world)), (Ok(1), (vec![9], 1)));
}

fn a_batch_that_is_dropped_aborted_or_unwound_leaves_the_queue_as_it_was<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    for round in 0..9 {
        let mut wr = s.qp.wr_start();
        (0..4).for_each(|_| wr.send().no_data());
        match round % 3 {
            0 => drop(wr),
            1 => wr.abort(),
            _ => {
                let unwound = catch_unwind(AssertUnwindSafe(|| {
                    let _wr = wr;
                    panic!("as asked");
                }));
                assert!(unwound.is_err());
            }
        }
        assert_eq!(seen(world), (vec![], 0));
    }
    // The queue of four requests is still empty.
    let mut wr = s.qp.wr_start();
    (0..4).for_each(|_| wr.send().no_data());
    assert_eq!(wr.complete(), Ok(4));
}

fn an_empty_raw_batch_rings_no_doorbell<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let wr = s.qp.wr_start();
    assert!(wr.is_empty());
    assert_eq!((wr.complete(), seen(world)), (Ok(0), (vec![], 0)));
}

fn a_doorbell_that_fails_leaves_the_requests_in_the_queue<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    world.state().refuse_post = Some((1, PostReason::Doorbell(Errno::IO)));
    let mut wr = s.qp.wr_start();
    wr.send().no_data();
    let error = wr.complete().unwrap_err();
    assert_eq!((error.position, error.reason), (1, PostReason::Doorbell(Errno::IO)));
    assert_eq!(seen(world).0, [0]);
}

fn a_number_of_safe_posting_is_refused_for_requests_without_a_promise<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let wr_id = 1 << 63 | 5;
    for inline in [true, false] {
        let mut wr = s.qp.wr_start();
        wr.wr_id = wr_id;
        if inline {
            wr.send().set_inline_data(b"a");
        } else {
            wr.send().no_data();
        }
        assert_eq!(wr.complete().unwrap_err().reason, PostReason::ReservedWrId { wr_id });
    }
    assert_eq!(seen(world), (vec![], 0));
}

fn inline_data_is_gathered_from_pieces_and_not_taken_by_a_read<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let mut wr = s.qp.wr_start();
    wr.send().set_inline_data_list(&[b"head", b"", b"tail"]);
    wr.complete().unwrap();
    s.qp.post_send_inline_list(2, SendOp::Send, SendFlags::empty(), &[b"a", b"bc"]).unwrap();
    let mut batch = s.qp.batch();
    batch.post_inline_list(3, SendOp::Send, SendFlags::empty(), &[b"de", b"f"]).unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let bytes: Vec<_> = world.state().requests.iter().map(|request| request.inline.clone()).collect();
    assert_eq!(bytes, [&b"headtail"[..], b"abc", b"def"]);
    let mut wr = s.qp.wr_start();
    wr.rdma_read(1, 2).set_inline_data(b"abc");
    let reason = wr.complete().unwrap_err().reason;
    assert!(matches!(reason, PostReason::UnsupportedFlags { flags: SendFlags::INLINE, .. }), "{reason}");
    // The queue rejects more pieces than the stack has room for.
    let mut wr = s.qp.wr_start();
    wr.send().set_inline_data_list(&[&b"x"[..]; 20]);
    assert_eq!(wr.complete().unwrap_err().reason, PostReason::TooManySge { given: 20, max: 3 });
}

fn a_forgotten_batch_is_posted_by_the_next_doorbell<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let mut wr = s.qp.wr_start();
    wr.wr_id = 1;
    wr.send().no_data();
    std::mem::forget(wr);
    s.qp.post_send_inline(2, SendOp::Send, SendFlags::empty(), b"a").unwrap();
    assert_eq!(seen(world), (vec![1, 2], 1));
}

fn a_batch_that_is_given_up_leaves_the_requests_of_a_forgotten_one<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let mut wr = s.qp.wr_start();
    wr.wr_id = 1;
    wr.send().no_data();
    std::mem::forget(wr);
    let mut wr = s.qp.wr_start();
    wr.wr_id = 8;
    wr.send().no_data();
    wr.send().no_data();
    wr.abort();
    let mut batch = s.qp.batch();
    batch.post_inline(9, SendOp::Send, SendFlags::empty(), b"a").unwrap();
    drop(batch);
    assert_eq!(seen(world), (vec![], 0));
    s.qp.post_send_inline(2, SendOp::Send, SendFlags::empty(), b"b").unwrap();
    assert_eq!(seen(world), (vec![1, 2], 1));
}

fn a_key_is_invalidated_under_a_promise_and_by_no_safe_post<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let (op, none) = (SendOp::LocalInv { invalidate_rkey: 7 }, SendFlags::empty());
    let mut wr = s.qp.wr_start();
    // SAFETY: the paper device has no windows.
    unsafe { wr.local_inv(7).no_data() };
    assert_eq!(wr.complete(), Ok(1));
    assert_eq!(world.state().requests[0].opcode, WcOpcode::LOCAL_INV);

    let lacks = PostReason::OtherCall { op: OpKind::LOCAL_INV };
    let refused = s.qp.post_send_op(1, op, none).unwrap_err();
    assert!(matches!(refused, PostBufReason::Post(reason) if reason == lacks), "{refused}");
    let refused = s.qp.batch().post_op(1, op, none).unwrap_err();
    assert!(matches!(refused, PostBufReason::Post(reason) if reason == lacks), "{refused}");
    let buf = s.pd.alloc_buf(8).unwrap();
    let refused = s.qp.post_send_buf(op, none, buf, ..).unwrap_err().reason;
    assert!(matches!(refused, PostBufReason::Post(reason) if reason == lacks), "{refused}");
    let refused = s.qp.post_send_inline(1, op, none, b"").unwrap_err();
    assert!(matches!(refused, PostBufReason::Post(reason) if reason == lacks), "{refused}");
    assert_eq!(world.state().requests.len(), 1, "nothing else was posted");
}
