//! Batches: the device sees all requests of a batch or none.

use crate::common::World;
use crate::common::setup::{Setup, bytes, setup};
use verbs::{
    Context, Errno, Memory, PostBufReason, PostReason, Provider, SendBatch, SendFlags, SendOp, SendOp::Send,
};

both! {
    a_batch_reaches_the_device_when_it_is_rung_and_with_one_doorbell
    an_aborted_batch_returns_its_memory_and_the_device_saw_nothing
    a_dropped_batch_releases_its_memory_and_the_device_saw_nothing
    a_doorbell_that_fails_keeps_the_memory_of_a_batch_in_flight
    a_request_that_is_refused_leaves_the_earlier_ones_in_the_batch
    an_aborted_batch_leaves_the_unsignalled_requests_before_it
    a_batch_that_is_given_up_leaves_the_requests_of_a_forgotten_one
    an_empty_batch_rings_no_doorbell
}

const NONE: SendFlags = SendFlags::empty();

/// Adds sends of an unsignalled byte, a signalled byte and an inline byte.
fn fill<P: Provider>(batch: &mut SendBatch<'_, P>, bufs: [verbs::Buf; 2]) {
    let [first, second] = bufs;
    batch.post_unsignaled(Send, NONE, first, ..).unwrap();
    batch.post(Send, NONE, second, ..).unwrap();
    batch.post_inline(7, Send, SendFlags::SIGNALED, b"in").unwrap();
    assert_eq!((batch.len(), batch.is_empty()), (3, false));
}

fn bufs<P: Provider>(s: &Setup<P>) -> [verbs::Buf; 2] {
    [s.buf(&[1]), s.buf(&[2])]
}

/// Returns the numbers of requests and doorbells that the device has seen.
fn seen(world: &World) -> (usize, usize) {
    let state = world.state();
    (state.requests.len(), state.rings)
}

fn a_batch_reaches_the_device_when_it_is_rung_and_with_one_doorbell<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let two = bufs(&s);
    let mut batch = s.qp.batch();
    fill(&mut batch, two);
    assert_eq!(seen(world), (0, 0));
    assert_eq!(batch.ring(), Ok(3));
    assert_eq!(seen(world), (3, 1));
    for data in [&[1][..], &[2], b"in"] {
        world.complete(s.qp.qp_num(), false, data);
    }
    assert_eq!(s.next_bytes(), [2, 1]);
    assert_eq!(s.next().0, 7);
}

fn an_aborted_batch_returns_its_memory_and_the_device_saw_nothing<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    for _ in 0..3 {
        let two = bufs(&s);
        let mut batch = s.qp.batch();
        fill(&mut batch, two);
        assert_eq!(bytes(batch.abort()), [1, 2]);
    }
    for byte in 0..4 {
        s.send_byte(byte, true);
    }
    let state = world.state();
    assert_eq!(state.requests.iter().map(|request| request.inline.len()).collect::<Vec<_>>(), [0; 4]);
    drop(state);
    world.complete(s.qp.qp_num(), false, &[0]);
    assert_eq!(s.next_bytes(), [0]);
}

fn a_dropped_batch_releases_its_memory_and_the_device_saw_nothing<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let two = bufs(&s);
    fill(&mut s.qp.batch(), two);
    assert!(!world.census().contains(&crate::common::Kind::Mr), "the memory was released");
    s.send_byte(9, true);
    assert_eq!(world.state().requests.len(), 1);
}

fn a_doorbell_that_fails_keeps_the_memory_of_a_batch_in_flight<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let two = bufs(&s);
    let mut batch = s.qp.batch();
    fill(&mut batch, two);
    world.state().refuse_post = Some((1, PostReason::Doorbell(Errno::IO)));
    assert_eq!(batch.ring(), Err(PostReason::Doorbell(Errno::IO)));
    world.state().refuse_post = None;
    world.complete(s.qp.qp_num(), false, &[1]);
    world.complete(s.qp.qp_num(), false, &[2]);
    assert_eq!(s.next_bytes(), [2, 1]);
}

fn a_request_that_is_refused_leaves_the_earlier_ones_in_the_batch<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let two = bufs(&s);
    let bad = s.buf(&[3]);
    let mut batch = s.qp.batch();
    fill(&mut batch, two);
    let refused = batch.post(Send, NONE, bad, ..2).unwrap_err();
    assert_eq!(refused.reason, PostBufReason::OutOfRange { start: 0, end: 2, len: 1 });
    assert_eq!(refused.returned.as_deref(), Some(&[3][..]));
    let read = SendOp::RdmaRead { remote_addr: 0, rkey: 0 };
    assert!(batch.post_inline(0, read, NONE, b"x").is_err());
    assert!(batch.post_inline(0, Send, NONE, &[0; 17]).is_err());
    batch.post_inline(8, Send, NONE, b"4").unwrap();
    let full = batch.post(Send, NONE, refused.returned.unwrap(), ..).unwrap_err();
    assert_eq!(full.reason, PostBufReason::Post(PostReason::QueueFull));
    assert_eq!((batch.len(), batch.ring()), (4, Ok(4)));
    assert_eq!(world.state().requests.len(), 4);
}

fn an_aborted_batch_leaves_the_unsignalled_requests_before_it<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    s.send_byte(0, false);
    let inside = s.buf(&[1]);
    let mut batch = s.qp.batch();
    batch.post_unsignaled(Send, NONE, inside, ..).unwrap();
    let kept: Vec<Memory> = batch.abort();
    assert_eq!(kept.len(), 1);
    s.send_byte(2, true);
    world.complete(s.qp.qp_num(), false, &[0]);
    world.complete(s.qp.qp_num(), false, &[2]);
    assert_eq!(s.next_bytes(), [2, 0]);
}

fn a_batch_that_is_given_up_leaves_the_requests_of_a_forgotten_one<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let forgotten = s.buf(&[1]);
    let mut batch = s.qp.batch();
    batch.post_unsignaled(Send, NONE, forgotten, ..).unwrap();
    std::mem::forget(batch);
    for is_aborted in [true, false] {
        let inside = s.buf(&[2]);
        let mut batch = s.qp.batch();
        batch.post_unsignaled(Send, NONE, inside, ..).unwrap();
        batch.post_inline(7, Send, NONE, b"in").unwrap();
        if is_aborted {
            assert_eq!(bytes(batch.abort()), [2]);
        }
    }
    let mut raw = s.qp.wr_start();
    raw.send().no_data();
    raw.abort();
    assert_eq!(seen(world), (0, 0));
    s.send_byte(3, true);
    assert_eq!(seen(world), (2, 1), "the forgotten one and the last one");
    world.complete(s.qp.qp_num(), false, &[1]);
    world.complete(s.qp.qp_num(), false, &[3]);
    assert_eq!(s.next_bytes(), [3, 1]);
}

fn an_empty_batch_rings_no_doorbell<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    assert_eq!(s.qp.batch().ring(), Ok(0));
    assert!(s.qp.batch().abort().is_empty());
    assert_eq!(world.state().rings, 0);
}
