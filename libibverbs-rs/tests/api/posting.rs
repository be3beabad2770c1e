//! Safe posting: memory returns with its own completion, when its queue is destroyed, or never.

use crate::common::setup::{Setup, ready, setup};
use crate::common::{Kind, World};
use verbs::state::Errored;
use verbs::{
    Buf, Context, Errno, HandleError, InitAttr, PostBufReason, PostReason, Provider, Qp, QpState, Returned,
    RtrAttr, RtsAttr, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};

both! {
    a_posted_buffer_comes_back_with_its_own_completion
    a_received_message_is_in_the_buffer_that_comes_back
    flushed_requests_give_their_buffers_back
    a_completion_gives_back_once_however_often_it_is_shown
    what_a_destroyed_queue_pair_left_in_the_completion_queue_takes_nothing_from_its_successor
    one_queue_returns_the_memory_of_all_its_queue_pairs_and_none_for_raw_requests
    a_completion_of_another_queue_gives_nothing_back_whatever_its_number
    a_range_of_a_buffer_is_posted_and_all_of_it_comes_back
    several_buffers_go_as_one_message_and_come_back_in_order
    what_is_not_accepted_comes_back_with_the_reason
    a_doorbell_that_fails_leaves_the_buffer_in_flight
    memory_that_is_not_reclaimed_keeps_its_slot
    slots_are_found_again_in_whatever_order_requests_complete
    inline_data_is_copied_and_no_memory_is_in_flight
    taking_a_queue_pair_apart_or_resetting_it_gives_back_what_is_in_flight
    a_reset_that_does_not_end_requests_keeps_what_is_in_flight_until_the_queue_pair_is_destroyed
    a_queue_pair_that_is_forgotten_or_refused_keeps_its_buffers_registered
    dropping_the_queue_pair_destroys_it_before_its_buffers
    halves_post_from_two_threads
    after_a_reset_with_full_tables_the_queue_pair_takes_as_much_again
}

fn a_posted_buffer_comes_back_with_its_own_completion<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let buf = s.buf(b"hello");
    let addr = buf.addr();
    let wr_id = s.send(buf);
    assert!(world.state().requests[0].flags.contains(SendFlags::SIGNALED), "else it would never come back");
    world.complete(s.qp.qp_num(), false, b"hello");
    let (completed, status, returned) = s.next();
    assert_eq!((completed, status), (wr_id, WcStatus::SUCCESS));
    let buf = returned.and_then(Returned::into_buf).unwrap();
    assert_eq!((buf.addr(), &buf[..]), (addr, &b"hello"[..]));
    drop((buf, s, context));
    world.assert_empty();
}

fn a_received_message_is_in_the_buffer_that_comes_back<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let buf = s.buf(&[0; 8]);
    s.qp.post_recv_buf(buf, ..).unwrap();
    world.complete(s.qp.qp_num(), true, b"news");
    let mut completions = s.cq.poll();
    let mut completion = completions.next().unwrap();
    assert_eq!((completion.opcode(), completion.byte_len()), (WcOpcode::RECV, 4));
    let buf = completion.reclaim().and_then(Returned::into_buf).unwrap();
    assert_eq!(&buf[..], b"news\0\0\0\0");
}

fn flushed_requests_give_their_buffers_back<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    for byte in 0..4 {
        let (send, recv) = (s.buf(&[byte]), s.buf(&[byte + 10]));
        s.send(send);
        s.qp.post_recv_buf(recv, ..).unwrap();
    }
    world.flush(s.qp.qp_num());
    assert_eq!(s.qp.state().unwrap(), QpState::ERR);
    let mut back = Vec::new();
    for _ in 0..8 {
        let (_, status, returned) = s.next();
        assert_eq!(status, WcStatus::WR_FLUSH_ERR);
        back.push(returned.and_then(Returned::into_buf).unwrap()[0]);
    }
    back.sort_unstable();
    assert_eq!(back, [0, 1, 2, 3, 10, 11, 12, 13]);
    let qp: Qp<Errored, P> = s.qp.to_error().unwrap();
    qp.close().unwrap();
}

fn a_completion_gives_back_once_however_often_it_is_shown<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let buf = s.buf(b"a");
    s.send(buf);
    world.complete(s.qp.qp_num(), false, b"a");
    let mut completions = s.cq.poll();
    let mut completion = completions.next().unwrap();
    let buf = completion.reclaim().and_then(Returned::into_buf).unwrap();
    // The buffer is in flight again, perhaps in the same slot; the old completion must not return
    // it.
    for _ in 0..16 {
        assert!(completion.reclaim().is_none());
    }
    s.qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..).unwrap();
    assert!(completion.reclaim().is_none());
}

fn what_a_destroyed_queue_pair_left_in_the_completion_queue_takes_nothing_from_its_successor<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let old = s.qp.qp_num();
    for byte in 0..4 {
        let buf = s.buf(&[byte]);
        s.send(buf);
        world.complete(old, false, &[byte]);
    }
    s.qp.close().unwrap();
    s.qp = ready(&s.pd, &s.cq);
    assert_eq!(s.qp.qp_num(), old, "the number is given again");
    for byte in 0..4 {
        let buf = s.buf(&[byte]);
        s.send(buf);
    }
    for _ in 0..4 {
        let (_, status, returned) = s.next();
        assert_eq!(status, WcStatus::SUCCESS);
        assert!(returned.is_none(), "a stale completion took a buffer that the device uses");
    }
    assert_eq!(world.state().requests.len(), 4);
    world.complete(old, false, &[0]);
    assert_eq!(s.next_buf()[..], [0]);
}

fn one_queue_returns_the_memory_of_all_its_queue_pairs_and_none_for_raw_requests<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let mut other = ready(&s.pd, &s.cq);
    let (mine, its) = (s.buf(b"m"), s.buf(b"i"));
    s.send(mine);
    other.post_send_buf(SendOp::Send, SendFlags::empty(), its, ..).unwrap();
    for wr_id in [0, 1 << 62, u64::MAX >> 1] {
        s.qp.post_send_inline(wr_id, SendOp::Send, SendFlags::SIGNALED, b"raw").unwrap();
    }
    world.complete(other.qp_num(), false, b"i");
    world.complete(s.qp.qp_num(), false, b"m");
    assert_eq!(s.next_buf()[..], *b"i");
    assert_eq!(s.next_buf()[..], *b"m");
    for wr_id in [0, 1 << 62, u64::MAX >> 1] {
        world.complete(s.qp.qp_num(), false, b"raw");
        let (completed, _, returned) = s.next();
        assert_eq!((completed, returned.is_none()), (wr_id, true));
    }
    let refused = s.qp.post_send_inline(1 << 63, SendOp::Send, SendFlags::SIGNALED, b"raw");
    assert_eq!(refused, Err(PostBufReason::ReservedWrId { wr_id: 1 << 63 }));
}

#[allow(unsafe_code)]
fn a_completion_of_another_queue_gives_nothing_back_whatever_its_number<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let buf = s.buf(b"m");
    let wr_id = s.send(buf);
    let mut forger = setup(&context);
    let wr = SendWr { wr_id, op: SendOp::Send, sge: &[], flags: SendFlags::SIGNALED };
    // SAFETY: the request names no memory. Its `wr_id` breaks the contract on purpose: the buffer
    // must stay in flight all the same.
    unsafe { forger.qp.post_send(&[wr]) }.unwrap();
    world.complete(forger.qp.qp_num(), false, b"");
    let mut completions = forger.cq.poll();
    let mut completion = completions.next().unwrap();
    assert_eq!(completion.wr_id(), wr_id);
    assert!(completion.reclaim().is_none());
    assert!(s.cq.reclaim(&completion.to_wc()).is_none(), "a copy of it is of another queue");
    world.complete(s.qp.qp_num(), false, b"m");
    assert_eq!(s.next_buf()[..], *b"m");
}

fn a_range_of_a_buffer_is_posted_and_all_of_it_comes_back<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let buf = s.buf(b"0123456789");
    let (addr, lkey) = (buf.addr(), buf.lkey());
    s.qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, 2..=4).unwrap();
    assert_eq!(world.state().requests[0].sge, [(addr + 2, 3, lkey)]);
    world.complete(s.qp.qp_num(), false, b"234");
    let mut buf = s.next_buf();
    assert_eq!(buf.len(), 10);
    for range in [(8, 11), (11, 11), (usize::MAX, usize::MAX), (5, 4)] {
        let refused =
            s.qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, range.0..range.1).unwrap_err();
        assert_eq!(
            refused.reason,
            PostBufReason::OutOfRange { start: range.0, end: range.1, len: 10 },
            "{range:?}"
        );
        buf = refused.returned.unwrap();
    }
    s.qp.post_recv_buf(buf, 10..).unwrap();
    assert_eq!(world.state().requests[0].sge, [(addr + 10, 0, lkey)]);
}

fn several_buffers_go_as_one_message_and_come_back_in_order<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let mut whole = s.buf(b"headmiddletail");
    let tail = whole.split_off(10);
    let middle = whole.split_off(4);
    s.qp.post_send_bufs(SendOp::Send, SendFlags::empty(), vec![tail, whole, middle]).unwrap();
    world.complete(s.qp.qp_num(), false, b"tailheadmiddle");
    let bufs = s.next().2.unwrap().into_bufs();
    let [tail, mut whole, middle] = <[Buf; 3]>::try_from(bufs).unwrap();
    let tail = whole.unsplit(tail).unwrap_err().handle;
    whole.unsplit(middle).unwrap();
    whole.unsplit(tail).unwrap();
    assert_eq!(&whole[..], b"headmiddletail");

    let tail = whole.split_off(3);
    s.qp.post_recv_bufs(vec![tail, whole]).unwrap();
    world.complete(s.qp.qp_num(), true, b"01234567890ab");
    let bufs = s.next().2.unwrap().into_bufs();
    assert_eq!((&bufs[0][..], &bufs[1][..]), (&b"01234567890"[..], &b"aba"[..]));

    // An empty list is a message, too.
    s.qp.post_send_bufs(SendOp::Send, SendFlags::empty(), Vec::<Buf>::new()).unwrap();
    world.complete(s.qp.qp_num(), false, b"");
    assert!(s.next().2.unwrap().into_buf().is_none());
}

fn what_is_not_accepted_comes_back_with_the_reason<P: Provider>(_world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let other_pd = context.alloc_pd().unwrap();
    let foreign = other_pd.alloc_buf(8).unwrap();
    let refused = s.qp.post_recv_buf(foreign, ..).unwrap_err();
    assert_eq!(refused.reason, PostBufReason::Foreign);
    let foreign = refused.returned.unwrap();
    let own = s.buf(b"own");
    let refused = s.qp.post_send_bufs(SendOp::Send, SendFlags::empty(), vec![own, foreign]).unwrap_err();
    assert_eq!((refused.reason, refused.returned.unwrap().len()), (PostBufReason::Foreign, 2));

    // Inline data in a read would be mistaken for the elements to write to.
    let read = SendOp::RdmaRead { remote_addr: 0, rkey: 0 };
    let buf = s.buf(b"abc");
    let refused = s.qp.post_send_buf(read, SendFlags::INLINE, buf, ..).unwrap_err();
    let no_inline = PostReason::UnsupportedFlags { op: verbs::OpKind::RDMA_READ, flags: SendFlags::INLINE };
    assert_eq!(refused.reason, PostBufReason::Post(no_inline));
    let refused_inline = s.qp.post_send_inline(0, read, SendFlags::empty(), b"abc");
    assert_eq!(refused_inline, Err(PostBufReason::Post(no_inline)));

    let bufs: Vec<_> = (0..4).map(|n| s.buf(&[n])).collect();
    let refused = s.qp.post_send_bufs(SendOp::Send, SendFlags::empty(), bufs).unwrap_err();
    assert_eq!(refused.reason, PostBufReason::Post(PostReason::TooManySge { given: 4, max: 3 }));
    assert_eq!(refused.returned.unwrap().iter().map(|buf| buf[0]).collect::<Vec<_>>(), [0, 1, 2, 3]);

    for n in 0..4 {
        let buf = s.buf(&[n]);
        s.send(buf);
    }
    let buf = s.buf(b"too much");
    let refused = s.qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..).unwrap_err();
    assert_eq!(refused.reason, PostBufReason::Post(PostReason::QueueFull), "nothing has completed");
    assert_eq!(&refused.returned.unwrap()[..], b"too much");
    let refused = s.qp.post_send_inline(0, SendOp::Send, SendFlags::empty(), b"full");
    assert_eq!(refused, Err(PostBufReason::Post(PostReason::QueueFull)));
}

fn a_doorbell_that_fails_leaves_the_buffer_in_flight<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let buf = s.buf(b"x");
    world.state().refuse_post = Some((1, PostReason::Doorbell(Errno::IO)));
    let refused = s.qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..).unwrap_err();
    assert_eq!(refused.reason, PostBufReason::Post(PostReason::Doorbell(Errno::IO)));
    assert!(refused.returned.is_none(), "it is in the queue, and goes with the next doorbell");
    world.state().refuse_post = None;
    world.complete(s.qp.qp_num(), false, b"x");
    assert_eq!(s.next_buf()[..], *b"x");
}

fn memory_that_is_not_reclaimed_keeps_its_slot<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    // The table has 8 slots for 4 requests.
    for n in 0..8 {
        let buf = s.buf(&[n]);
        s.send(buf);
        world.complete(s.qp.qp_num(), false, &[n]);
    }
    let buf = s.buf(b"x");
    let refused = s.qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..).unwrap_err();
    assert_eq!(refused.reason, PostBufReason::Unclaimed);
    assert_eq!(s.next_buf()[..], [0]);
    s.send(refused.returned.unwrap());
}

fn slots_are_found_again_in_whatever_order_requests_complete<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    // The device executes sends and receives alternately; one receive stays posted throughout.
    let stays = s.buf(b"stays");
    s.qp.post_recv_buf(stays, ..).unwrap();
    let mut spare = s.buf(b"0");
    let mut numbers = std::collections::BTreeSet::new();
    for n in 0..200_000_u32 {
        spare.copy_from_slice(&[n as u8]);
        assert!(numbers.insert(s.send(spare)), "a number was given twice");
        world.complete(s.qp.qp_num(), false, &[n as u8]);
        spare = s.next_buf();
        assert_eq!(spare[..], [n as u8]);
    }
    world.complete(s.qp.qp_num(), true, b"come!");
    assert_eq!(s.next_buf()[..], *b"come!");
}

fn inline_data_is_copied_and_no_memory_is_in_flight<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let mut data = *b"hello";
    s.qp.post_send_inline(7, SendOp::Send, SendFlags::SIGNALED, &data).unwrap();
    data.fill(0);
    world.complete(s.qp.qp_num(), false, b"hello");
    let (wr_id, status, returned) = s.next();
    assert_eq!((wr_id, status, returned.is_none()), (7, WcStatus::SUCCESS, true));
    s.qp.post_send_inline(8, SendOp::Send, SendFlags::empty(), b"quiet").unwrap();
    world.complete(s.qp.qp_num(), false, b"quiet");
    assert!(s.cq.poll().next().is_none());
    let too_long = s.qp.post_send_inline(9, SendOp::Send, SendFlags::empty(), &[0; 17]);
    assert_eq!(too_long, Err(PostBufReason::Post(PostReason::InlineTooLong { given: 17, max: 16 })));
}

fn taking_a_queue_pair_apart_or_resetting_it_gives_back_what_is_in_flight<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let (send, recv) = (s.buf(b"s"), s.buf(b"r"));
    s.send(send);
    s.qp.post_recv_buf(recv, ..).unwrap();
    world.refuse(Kind::Qp, Errno::BUSY);
    let HandleError { handle: qp, error } = s.qp.dismantle().unwrap_err();
    assert_eq!(error.errno, Errno::BUSY);
    world.allow(Kind::Qp);
    let mut back: Vec<u8> = qp.dismantle().unwrap().into_iter().map(|p| p.into_buf().unwrap()[0]).collect();
    back.sort_unstable();
    assert_eq!(back, *b"rs");

    s.qp = ready(&s.pd, &s.cq);
    let (one, two) = (s.buf(b"1"), s.buf(b"2"));
    s.send(one);
    world.complete(s.qp.qp_num(), false, b"1");
    s.send(two);
    let mut reset = s.qp.to_reset().unwrap();
    assert_eq!(world.state().requests, []);
    assert_eq!(reset.reclaim_all().len(), 2);
    let mut completions = s.cq.poll();
    assert!(completions.next().unwrap().reclaim().is_none(), "it came back already");
}

fn a_reset_that_does_not_end_requests_keeps_what_is_in_flight_until_the_queue_pair_is_destroyed<
    P: Provider,
>(
    world: &World,
    context: Context<P>,
) {
    world.state().forgets_late = true;
    let mut s = setup(&context);
    for round in 0..3 {
        // Fills the tables each time.
        for n in 0..4 {
            let buf = s.buf(&[round * 4 + n]);
            s.qp.post_recv_buf(buf, ..).unwrap();
        }
        let mut reset = s.qp.to_reset().unwrap();
        assert!(reset.reclaim_all().is_empty(), "round {round}");
        let init = reset.to_init(&InitAttr::default()).unwrap();
        s.qp = init.to_rtr(&RtrAttr::unconnected()).unwrap().to_rts(&RtsAttr::default()).unwrap();
    }
    let memory = s.qp.dismantle().unwrap().into_iter();
    let back: Vec<u8> = memory.map(|memory| memory.into_buf().unwrap()[0]).collect();
    assert_eq!(back, (0..12).collect::<Vec<u8>>());
}

fn a_queue_pair_that_is_forgotten_or_refused_keeps_its_buffers_registered<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let mut other = ready(&s.pd, &s.cq);
    let (buf, sent) = (s.buf(&[0; 4]), s.buf(b"sent"));
    s.qp.post_recv_buf(buf, ..).unwrap();
    other.post_send_buf(SendOp::Send, SendFlags::empty(), sent, ..).unwrap();
    let (forgotten, refused) = (s.qp.qp_num(), other.qp_num());
    std::mem::forget(s.qp);
    world.refuse(Kind::Qp, Errno::PERM);
    drop((other, s.cq, s.pd, context));
    // The device finds the memory at the posted address.
    world.complete(forgotten, true, b"late");
    world.complete(refused, false, b"sent");
    assert_eq!(world.census(), [Kind::Pd, Kind::Mr, Kind::Mr, Kind::Cq, Kind::Qp, Kind::Qp]);
    assert_eq!(world.state().broken, Vec::<String>::new());
}

fn dropping_the_queue_pair_destroys_it_before_its_buffers<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    for n in 0..3 {
        let (send, recv) = (s.buf(&[n]), s.buf(&[n]));
        s.send(send);
        s.qp.post_recv_buf(recv, ..).unwrap();
    }
    drop((s, context));
    assert_eq!(world.state().destroyed[0].0, Kind::Qp);
    world.assert_empty();
}

fn halves_post_from_two_threads<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let (out, into) = (s.buf(b"out"), s.buf(b"---"));
    let qp_num = s.qp.qp_num();
    let (mut send, mut recv) = s.qp.into_split();
    let sender = std::thread::spawn(move || {
        let wr_id = send.post_send_buf(SendOp::Send, SendFlags::empty(), out, ..).unwrap();
        send.post_send_inline(1, SendOp::Send, SendFlags::empty(), b"in").unwrap();
        (send, wr_id)
    });
    let receiver = std::thread::spawn(move || {
        let wr_id = recv.post_recv_buf(into, ..).unwrap();
        (recv, wr_id)
    });
    let ((send, sent), (recv, received)) = (sender.join().unwrap(), receiver.join().unwrap());
    world.complete(qp_num, false, b"out");
    world.complete(qp_num, true, b"in!");
    let mut seen = Vec::new();
    while let Some(completed) = s.cq.poll_one() {
        seen.push((completed.wr_id, completed.into_buf().unwrap().to_vec()));
    }
    assert_eq!(seen, [(sent, b"out".to_vec()), (received, b"in!".to_vec())]);
    Qp::from_halves(send, recv).unwrap().close().unwrap();
}

fn after_a_reset_with_full_tables_the_queue_pair_takes_as_much_again<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let Setup { pd, mut cq, mut qp } = setup(&context);
    for round in 0..3 {
        for n in 0..4 {
            let (out, into) = (pd.alloc_buf(1).unwrap(), pd.alloc_buf(1).unwrap());
            qp.post_send_buf(SendOp::Send, SendFlags::empty(), out, ..).unwrap_or_else(|error| {
                panic!("round {round}, send {n}: {error}");
            });
            qp.post_recv_buf(into, ..).unwrap_or_else(|error| panic!("round {round}, receive {n}: {error}"));
        }
        let full = qp.post_recv_buf(pd.alloc_buf(1).unwrap(), ..).unwrap_err();
        assert_eq!(full.reason, PostBufReason::Post(PostReason::QueueFull));
        // One of each completes but is not polled before the queue pair is reset.
        world.complete(qp.qp_num(), false, &[0]);
        world.complete(qp.qp_num(), true, &[1]);
        let mut reset = qp.to_reset().unwrap();
        assert_eq!(reset.reclaim_all().len(), 8);
        assert!(reset.reclaim_all().is_empty());
        let init = reset.to_init(&InitAttr::default()).unwrap();
        qp = init.to_rtr(&RtrAttr::unconnected()).unwrap().to_rts(&RtsAttr::default()).unwrap();
        let mut completions = cq.poll();
        while let Some(mut late) = completions.next() {
            assert!(late.reclaim().is_none(), "round {round}: it came back already");
        }
    }
    drop((qp, cq, pd, context));
    world.assert_empty();
}
