//! Shared receive queues: the queue pair that uses a receive, the order of use, leftover receives,
//! events and changes to the queue.

use verbs::{
    AsyncEvent, AsyncEventType, AsyncEvents, Cause, Context, Cq, CqInit, DeviceCapFlags, Element, Errno,
    InitAttr, Pd, PostBufReason, PostError, PostReason, Provider, Qp, QpInit, QpType, RecvWr, RtsAttr,
    SendFlags, SendOp, Srq, SrqAttr, SrqAttrMask, SrqInit, WcOpcode, WcStatus, state::Rts,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    self, ANY_ERROR, Arena, PATIENCE, PORT, QKEY, Remote, Shape, ended, filled, imm, init_attr, is_empty,
    is_rxe, next_completed, path, pattern, post_send, post_srq_recv, rxe_ignores_rnr_timer, rxe_is_before,
    signalled, wait, wait_for, wait_one, wait_status,
};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        a_message_goes_into_a_receive_of_the_shared_queue,
        receives_are_taken_in_the_order_in_which_they_were_posted,
        messages_of_eight_queue_pairs_take_one_receive_each,
        a_write_with_immediate_data_takes_a_receive,
        a_write_takes_no_receive,
        receives_posted_before_any_queue_pair_exists_are_taken,
        each_queue_pair_completes_in_its_own_completion_queue,
        a_message_of_many_packets_fills_a_list_of_pieces,
        datagrams_take_receives_of_a_shared_queue,
        messages_of_an_unreliable_connection_take_receives_of_a_shared_queue,
        a_send_waits_until_the_shared_queue_has_a_receive,
        a_send_to_an_empty_shared_queue_is_given_up,
        the_limit_event_is_raised_once,
        the_limit_event_can_be_armed_again,
        a_limit_of_zero_disarms_the_event,
        a_query_tells_the_size_and_the_limit,
        a_shared_queue_that_is_full_refuses_receives,
        a_shared_queue_wraps_around_many_times,
        a_larger_queue_keeps_its_receives_and_takes_more,
        a_smaller_queue_keeps_its_receives,
        a_size_below_the_receives_in_the_queue_is_refused,
        sizes_and_limits_beyond_the_device_are_refused,
        a_list_that_is_too_long_is_refused,
        a_queue_pair_with_a_shared_queue_takes_no_receives_of_its_own,
        a_shared_queue_in_use_cannot_be_destroyed,
        a_shared_queue_is_destroyed_after_its_queue_pairs,
        a_receive_with_a_key_of_another_domain_fails,
        a_receive_that_is_too_short_fails_in_its_queue_pair_alone,
        the_error_of_one_queue_pair_takes_no_receives_of_the_others,
        the_last_receive_of_a_queue_pair_in_error_is_told,
        posted_buffers_come_back_from_the_completion_queue_of_the_queue_pair,
        buffers_that_no_message_took_come_back_from_the_closed_queue,
        two_threads_post_and_poll,
        queue_pairs_are_made_while_another_thread_posts,
        many_shared_queues_are_made_and_destroyed,
    )
}

/// Pairs of connected queue pairs on one device, whose receiving ends share a receive queue.
struct Shared<P: Provider> {
    context: Context<P>,
    pd: Pd<P>,
    srq: Srq<P>,
    /// The sending ends and their completion queue.
    senders: Vec<Qp<Rts, P>>,
    send_cq: Cq<P>,
    /// The receiving ends and their completion queue.
    receivers: Vec<Qp<Rts, P>>,
    recv_cq: Cq<P>,
    arena: Arena<P>,
}

const SIZE: usize = 1 << 16;
const INIT: SrqInit = SrqInit { max_wr: 16, max_sge: 2, srq_limit: 0 };

impl<P: Provider> Shared<P> {
    fn new(context: &Context<P>, pairs: usize) -> CaseResult<Self> {
        Self::with_shape(context, pairs, &Shape::default(), &INIT)
    }

    fn with_shape(context: &Context<P>, pairs: usize, shape: &Shape, init: &SrqInit) -> CaseResult<Self> {
        let pd = context.alloc_pd()?;
        let srq = pd.create_srq(init)?;
        let (send_cq, recv_cq) =
            (context.create_cq(&CqInit::new(256))?, context.create_cq(&CqInit::new(256))?);
        let mut shared = Self {
            context: context.clone(),
            arena: Arena::new(&pd, SIZE)?,
            pd,
            srq,
            senders: Vec::new(),
            send_cq,
            receivers: Vec::new(),
            recv_cq,
        };
        for _ in 0..pairs {
            shared.add_pair(shape)?;
        }
        Ok(shared)
    }

    /// Connects one more pair.
    fn add_pair(&mut self, shape: &Shape) -> CaseResult {
        let sender = fabric::create_qp(&self.pd, &self.send_cq, shape)?;
        let init = QpInit {
            cap: shape.cap,
            srq: Some(self.srq.handle()),
            ..QpInit::new(shape.qp_type, &self.recv_cq)
        };
        let receiver = self.pd.create_qp(&init)?;
        let (to_sender, to_receiver) = (Remote::from_qp(&sender), Remote::from_qp(&receiver));
        self.senders.push(fabric::connect(&self.context, sender, shape, to_receiver)?);
        self.receivers.push(fabric::connect(&self.context, receiver, shape, to_sender)?);
        Ok(())
    }

    /// Posts a receive of `len` bytes at byte 256 × `wr_id` of the arena.
    fn post(&mut self, wr_id: u64, len: usize) -> Result<(), PostError> {
        let at = wr_id as usize % 128 * 256;
        post_srq_recv(&mut self.srq, &[RecvWr { wr_id, sge: &[self.arena.sge(at..at + len)] }])
    }

    /// Sends `len` bytes from the end of the arena through a pair.
    fn send(&mut self, pair: usize, wr_id: u64, op: SendOp<'_>, len: usize) -> CaseResult {
        let sge = [self.arena.sge(SIZE - len..SIZE)];
        Ok(post_send(&mut self.senders[pair], &[signalled(wr_id, op, &sge)])?)
    }

    /// Sends 8 bytes through a pair and waits for both completions. Returns the receive's `wr_id`.
    fn deliver(&mut self, pair: usize) -> CaseResult<u64> {
        self.send(pair, 1000, SendOp::Send, 8)?;
        wait_for(&mut self.send_cq, 1000, WcOpcode::SEND)?;
        let wc = wait_one(&mut self.recv_cq)?;
        if (wc.status, wc.qp_num) == (WcStatus::SUCCESS, self.receivers[pair].qp_num()) {
            Ok(wc.wr_id)
        } else {
            fail(format_args!("a message through pair {pair} was expected, not {wc:?}"))
        }
    }

    /// Waits for the next asynchronous event of the shared receive queue.
    fn event(&self, events: &AsyncEvents) -> CaseResult<AsyncEventType> {
        match events.wait(Some(PATIENCE))? {
            Some(AsyncEvent { element, event_type, .. }) if element == Element::Srq(self.srq.id()) => {
                Ok(event_type)
            }
            other => fail(format_args!("an event of the shared receive queue was expected, not {other:?}")),
        }
    }
}

fn a_message_goes_into_a_receive_of_the_shared_queue<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut shared = Shared::new(context, 1)?;
    shared.arena.write(SIZE - 200, &pattern(1, 200));
    shared.post(3, 256)?;
    shared.send(0, 1, SendOp::SendWithImm { imm_data: 77 }, 200)?;
    wait_for(&mut shared.send_cq, 1, WcOpcode::SEND)?;
    let wc = wait_for(&mut shared.recv_cq, 3, WcOpcode::RECV)?;
    assert_eq!((wc.byte_len, imm(&wc), wc.qp_num), (200, Some(77), shared.receivers[0].qp_num()));
    assert_eq!(shared.arena.read(768..968), pattern(1, 200));
    Ok(())
}

fn receives_are_taken_in_the_order_in_which_they_were_posted<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut shared = Shared::new(context, 3)?;
    for wr_id in 0..9 {
        shared.post(wr_id, 8)?;
    }
    for wr_id in 0..9 {
        assert_eq!(shared.deliver(wr_id as usize * 2 % 3)?, wr_id);
    }
    Ok(())
}

fn messages_of_eight_queue_pairs_take_one_receive_each<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut shared = Shared::new(context, 8)?;
    for wr_id in 0..16 {
        shared.post(wr_id, 256)?;
    }
    for round in 0..2 {
        for pair in 0..8 {
            shared.send(pair, round * 8 + pair as u64, SendOp::SendWithImm { imm_data: pair as u32 }, 100)?;
        }
    }
    for wc in wait(&mut shared.send_cq, 16)? {
        assert_eq!(wc.status, WcStatus::SUCCESS, "{wc:?}");
    }
    let wcs = wait(&mut shared.recv_cq, 16)?;
    for wc in &wcs {
        let pair = imm(wc).unwrap_or(u32::MAX) as usize;
        assert_eq!((wc.status, wc.byte_len), (WcStatus::SUCCESS, 100));
        assert_eq!(wc.qp_num, shared.receivers[pair].qp_num());
    }
    let mut taken: Vec<u64> = wcs.iter().map(|wc| wc.wr_id).collect();
    taken.sort_unstable();
    assert_eq!(taken, (0..16).collect::<Vec<_>>(), "each once");
    Ok(())
}

fn a_write_with_immediate_data_takes_a_receive<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut shared = Shared::new(context, 1)?;
    shared.arena.write(SIZE - 100, &pattern(2, 100));
    shared.post(0, 0)?;
    let (remote_addr, rkey) = (shared.arena.addr() + 4096, shared.arena.rkey());
    shared.send(0, 1, SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 5 }, 100)?;
    wait_for(&mut shared.send_cq, 1, WcOpcode::RDMA_WRITE)?;
    let wc = wait_for(&mut shared.recv_cq, 0, WcOpcode::RECV_RDMA_WITH_IMM)?;
    assert_eq!((imm(&wc), wc.byte_len), (Some(5), 100));
    assert_eq!(shared.arena.read(4096..4196), pattern(2, 100));
    Ok(())
}

fn a_write_takes_no_receive<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut shared = Shared::new(context, 1)?;
    shared.post(0, 8)?;
    let (remote_addr, rkey) = (shared.arena.addr() + 4096, shared.arena.rkey());
    shared.send(0, 1, SendOp::RdmaWrite { remote_addr, rkey }, 100)?;
    wait_for(&mut shared.send_cq, 1, WcOpcode::RDMA_WRITE)?;
    assert!(is_empty(&mut shared.recv_cq));
    assert_eq!(shared.deliver(0)?, 0);
    Ok(())
}

fn receives_posted_before_any_queue_pair_exists_are_taken<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut shared = Shared::new(context, 0)?;
    shared.post(4, 8)?;
    shared.post(5, 8)?;
    shared.add_pair(&Shape::default())?;
    shared.add_pair(&Shape::default())?;
    assert_eq!((shared.deliver(1)?, shared.deliver(0)?), (4, 5));
    Ok(())
}

fn each_queue_pair_completes_in_its_own_completion_queue<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut shared = Shared::new(context, 1)?;
    let first = core::mem::replace(&mut shared.recv_cq, context.create_cq(&CqInit::new(16))?);
    let mut cqs = [first, context.create_cq(&CqInit::new(16))?];
    core::mem::swap(&mut shared.recv_cq, &mut cqs[1]);
    shared.add_pair(&Shape::default())?;
    shared.post(1, 8)?;
    shared.post(2, 8)?;
    shared.send(0, 10, SendOp::Send, 8)?;
    wait_for(&mut cqs[0], 1, WcOpcode::RECV)?;
    assert!(is_empty(&mut shared.recv_cq));
    shared.send(1, 11, SendOp::Send, 8)?;
    wait_for(&mut shared.recv_cq, 2, WcOpcode::RECV)?;
    assert!(is_empty(&mut cqs[0]));
    Ok(())
}

fn a_message_of_many_packets_fills_a_list_of_pieces<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut shared = Shared::new(context, 1)?;
    shared.arena.write(SIZE - 10_000, &pattern(3, 10_000));
    let list = [shared.arena.sge(0..3001), shared.arena.sge(8192..16000)];
    post_srq_recv(&mut shared.srq, &[RecvWr { wr_id: 7, sge: &list }])?;
    shared.send(0, 1, SendOp::Send, 10_000)?;
    assert_eq!(wait_for(&mut shared.recv_cq, 7, WcOpcode::RECV)?.byte_len, 10_000);
    let got = [shared.arena.read(0..3001), shared.arena.read(8192..15191)].concat();
    assert_eq!(got, pattern(3, 10_000));
    Ok(())
}

fn datagrams_take_receives_of_a_shared_queue<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut shared = Shared::with_shape(context, 2, &Shape::for_type(QpType::UD), &INIT)?;
    let gid = context.find_gid(PORT)?;
    let ah = shared.pd.create_ah(&path(&gid))?;
    shared.arena.write(SIZE - 50, &pattern(4, 50));
    for wr_id in [1, 2] {
        shared.post(wr_id, 256)?;
    }
    for (pair, wr_id) in [(1, 1), (0, 2)] {
        let to = ah.to(shared.receivers[pair].qp_num(), QKEY);
        shared.send(pair, 9, SendOp::UdSend { to }, 50)?;
        wait_for(&mut shared.send_cq, 9, WcOpcode::SEND)?;
        let wc = wait_for(&mut shared.recv_cq, wr_id, WcOpcode::RECV)?;
        assert_eq!((wc.qp_num, wc.src_qp), (shared.receivers[pair].qp_num(), shared.senders[pair].qp_num()));
        let at = wr_id as usize * 256 + 40;
        assert_eq!((wc.byte_len, shared.arena.read(at..at + 50)), (90, pattern(4, 50)));
    }
    Ok(())
}

fn messages_of_an_unreliable_connection_take_receives_of_a_shared_queue<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut shared = Shared::with_shape(context, 2, &Shape::for_type(QpType::UC), &INIT)?;
    for wr_id in 0..4 {
        shared.post(wr_id, 8)?;
    }
    for wr_id in 0..4 {
        assert_eq!(shared.deliver(wr_id as usize % 2)?, wr_id);
    }
    Ok(())
}

fn a_send_waits_until_the_shared_queue_has_a_receive<P: Provider>(context: &Context<P>) -> CaseResult {
    if rxe_ignores_rnr_timer()? {
        return skip("rxe of this kernel repeats at once, and keeps the processor from all programs");
    }
    let mut shared = Shared::new(context, 2)?;
    shared.send(0, 1, SendOp::Send, 8)?;
    shared.send(1, 2, SendOp::Send, 8)?;
    // Nothing shows that a message waits. By now, the peer has most probably deferred both
    // messages.
    assert!(is_empty(&mut shared.recv_cq));
    shared.post(5, 8)?;
    shared.post(6, 8)?;
    let mut got: Vec<u64> = wait(&mut shared.recv_cq, 2)?.iter().map(|wc| wc.wr_id).collect();
    got.sort_unstable();
    assert_eq!(got, [5, 6]);
    for wc in wait(&mut shared.send_cq, 2)? {
        assert_eq!(wc.status, WcStatus::SUCCESS);
    }
    Ok(())
}

fn a_send_to_an_empty_shared_queue_is_given_up<P: Provider>(context: &Context<P>) -> CaseResult {
    let default = Shape::default();
    let shape = Shape { rts: RtsAttr { rnr_retry: 1, ..default.rts }, ..default };
    let mut shared = Shared::with_shape(context, 1, &shape, &INIT)?;
    shared.send(0, 1, SendOp::Send, 8)?;
    wait_status(&mut shared.send_cq, 1, WcStatus::RNR_RETRY_EXC_ERR)
}

fn the_limit_event_is_raised_once<P: Provider>(context: &Context<P>) -> CaseResult {
    let events = context.async_events()?;
    let mut shared = Shared::with_shape(context, 1, &Shape::default(), &SrqInit { srq_limit: 3, ..INIT })?;
    for wr_id in 0..6 {
        shared.post(wr_id, 8)?;
    }
    for _ in 0..3 {
        shared.deliver(0)?;
    }
    assert_eq!(events.next_event()?, None, "three are left");
    shared.deliver(0)?;
    assert_eq!(shared.event(&events)?, AsyncEventType::SRQ_LIMIT_REACHED);
    shared.deliver(0)?;
    shared.deliver(0)?;
    assert_eq!(events.next_event()?, None, "it was not armed again");
    assert_eq!(shared.srq.query()?.srq_limit, 0);
    Ok(())
}

fn the_limit_event_can_be_armed_again<P: Provider>(context: &Context<P>) -> CaseResult {
    let events = context.async_events()?;
    let mut shared = Shared::new(context, 2)?;
    for round in 0..3 {
        for wr_id in 0..4 {
            shared.post(wr_id, 8)?;
        }
        shared.srq.arm(2)?;
        assert_eq!(shared.srq.query()?.srq_limit, 2);
        for pair in [0, 1] {
            shared.deliver(pair)?;
        }
        assert_eq!(events.next_event()?, None, "round {round}");
        shared.deliver(0)?;
        assert_eq!(shared.event(&events)?, AsyncEventType::SRQ_LIMIT_REACHED, "round {round}");
        shared.deliver(1)?;
    }
    Ok(())
}

fn a_limit_of_zero_disarms_the_event<P: Provider>(context: &Context<P>) -> CaseResult {
    let events = context.async_events()?;
    let mut shared = Shared::with_shape(context, 1, &Shape::default(), &SrqInit { srq_limit: 2, ..INIT })?;
    for wr_id in 0..2 {
        shared.post(wr_id, 8)?;
    }
    shared.srq.arm(0)?;
    shared.deliver(0)?;
    shared.deliver(0)?;
    assert_eq!((events.next_event()?, shared.srq.query()?.srq_limit), (None, 0));
    Ok(())
}

fn a_query_tells_the_size_and_the_limit<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    let mut srq = pd.create_srq(&SrqInit { max_wr: 20, max_sge: 3, srq_limit: 4 })?;
    let attr = srq.query()?;
    assert!(attr.max_wr >= 20 && attr.max_sge >= 3, "{attr:?}");
    assert_eq!((srq.max_wr(), srq.max_sge(), attr.srq_limit), (attr.max_wr, attr.max_sge, 4));
    srq.arm(7)?;
    assert_eq!(srq.query()?, SrqAttr { srq_limit: 7, ..attr });
    srq.close()?;
    Ok(())
}

fn a_shared_queue_that_is_full_refuses_receives<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut shared = Shared::new(context, 1)?;
    let size = u64::from(shared.srq.max_wr());
    for wr_id in 0..size {
        shared.post(wr_id, 8)?;
    }
    let error = shared.post(99, 8).unwrap_err();
    assert_eq!((error.accepted, error.reason), (0, PostReason::QueueFull));
    // A used receive leaves space for another.
    shared.deliver(0)?;
    shared.post(99, 8)?;
    assert_eq!(shared.post(98, 8).unwrap_err().reason, PostReason::QueueFull);
    Ok(())
}

fn a_shared_queue_wraps_around_many_times<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut shared = Shared::new(context, 2)?;
    let mut next = 0;
    for round in 0..40_u64 {
        for wr_id in round * 5..round * 5 + 5 {
            shared.post(wr_id, 8)?;
        }
        for pair in [0, 1, 1, 0, 1] {
            assert_eq!(shared.deliver(pair)?, next);
            next += 1;
        }
    }
    Ok(())
}

/// Returns whether the device can resize shared receive queues.
fn can_resize<P: Provider>(context: &Context<P>) -> CaseResult<bool> {
    Ok(context.query_device()?.device_cap_flags.contains(DeviceCapFlags::SRQ_RESIZE))
}

const FIXED_SIZE: &str = "the device cannot change the size of a shared receive queue";

fn a_larger_queue_keeps_its_receives_and_takes_more<P: Provider>(context: &Context<P>) -> CaseResult {
    if !can_resize(context)? {
        return skip(FIXED_SIZE);
    }
    let mut shared = Shared::new(context, 2)?;
    let size = u64::from(shared.srq.max_wr());
    // Starts beyond the first slot.
    for _ in 0..3 {
        shared.post(0, 8)?;
        shared.deliver(0)?;
    }
    for wr_id in 0..size {
        shared.post(wr_id, 8)?;
    }
    let attr = SrqAttr { max_wr: 100, ..SrqAttr::default() };
    shared.srq.modify(&attr, SrqAttrMask::MAX_WR)?;
    assert!(shared.srq.max_wr() >= 100 && shared.srq.query()?.max_wr == shared.srq.max_wr());
    for wr_id in size..100 {
        shared.post(wr_id, 8)?;
    }
    for wr_id in 0..100 {
        assert_eq!(shared.deliver(wr_id as usize % 2)?, wr_id);
    }
    Ok(())
}

fn a_smaller_queue_keeps_its_receives<P: Provider>(context: &Context<P>) -> CaseResult {
    if !can_resize(context)? {
        return skip(FIXED_SIZE);
    }
    let mut shared = Shared::with_shape(context, 1, &Shape::default(), &SrqInit { max_wr: 100, ..INIT })?;
    for wr_id in 0..4 {
        shared.post(wr_id, 8)?;
    }
    let attr = SrqAttr { max_wr: 7, srq_limit: 2, ..SrqAttr::default() };
    shared.srq.modify(&attr, SrqAttrMask::MAX_WR | SrqAttrMask::LIMIT)?;
    let now = shared.srq.query()?;
    assert!((7..16).contains(&now.max_wr) && now.srq_limit == 2, "{now:?}");
    let mut next = 4;
    while shared.post(next, 8).is_ok() {
        next += 1;
    }
    assert_eq!(next, u64::from(now.max_wr));
    for wr_id in 0..next {
        assert_eq!(shared.deliver(0)?, wr_id);
    }
    Ok(())
}

fn a_size_below_the_receives_in_the_queue_is_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    if !can_resize(context)? {
        return skip(FIXED_SIZE);
    }
    let mut shared = Shared::new(context, 1)?;
    for wr_id in 0..10 {
        shared.post(wr_id, 8)?;
    }
    // rxe rounds 8 up to 15.
    let attr = SrqAttr { max_wr: 7, ..SrqAttr::default() };
    let error = shared.srq.modify(&attr, SrqAttrMask::MAX_WR).unwrap_err();
    assert_eq!(error.errno, Errno::INVAL);
    assert!(matches!(error.cause, Cause::Limit { name: "max_wr", asked: 7, min: 8 | 10, .. }), "{error}");
    for wr_id in 0..10 {
        assert_eq!(shared.deliver(0)?, wr_id);
    }
    Ok(())
}

fn sizes_and_limits_beyond_the_device_are_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let device = context.query_device()?;
    let pd = context.alloc_pd()?;
    for (name, init) in [
        ("max_wr", SrqInit { max_wr: device.max_srq_wr + 1, ..INIT }),
        ("max_wr", SrqInit { max_wr: 0, ..INIT }),
        ("max_sge", SrqInit { max_sge: device.max_srq_sge + 1, ..INIT }),
        ("srq_limit", SrqInit { srq_limit: device.max_srq_wr + 1, ..INIT }),
    ] {
        // rxe does not check the limit of a new queue (Linux `rxe_srq_chk_init`).
        if name == "srq_limit" && is_rxe()? {
            continue;
        }
        let error = pd.create_srq(&init).unwrap_err();
        assert_eq!(error.errno, Errno::INVAL, "{init:?}");
        assert!(matches!(error.cause, Cause::Limit { name: its, .. } if its == name), "{error}");
    }
    let mut srq = pd.create_srq(&INIT)?;
    let before = srq.query()?;
    for (attr, mask) in [
        (SrqAttr { max_wr: device.max_srq_wr + 1, ..SrqAttr::default() }, SrqAttrMask::MAX_WR),
        (SrqAttr { srq_limit: device.max_srq_wr + 1, ..SrqAttr::default() }, SrqAttrMask::LIMIT),
        (SrqAttr { srq_limit: before.max_wr + 1, ..SrqAttr::default() }, SrqAttrMask::LIMIT),
    ] {
        assert_eq!(srq.modify(&attr, mask).unwrap_err().errno, Errno::INVAL, "{attr:?}");
    }
    assert_eq!(srq.query()?, before);
    Ok(())
}

fn a_list_that_is_too_long_is_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut shared = Shared::new(context, 1)?;
    let max = shared.srq.max_sge() as usize;
    let list = vec![shared.arena.sge(0..8); max + 1];
    let wrs = [RecvWr { wr_id: 1, sge: &list[..max] }, RecvWr { wr_id: 2, sge: &list }];
    let error = post_srq_recv(&mut shared.srq, &wrs).unwrap_err();
    assert_eq!(error.accepted, 1);
    assert_eq!(error.reason, PostReason::TooManySge { given: max + 1, max: max as u32 });
    assert_eq!(shared.deliver(0)?, 1);
    Ok(())
}

fn a_queue_pair_with_a_shared_queue_takes_no_receives_of_its_own<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut shared = Shared::new(context, 1)?;
    let wr = RecvWr { wr_id: 1, sge: &[] };
    let error = fabric::post_recv(&mut shared.receivers[0], &[wr]).unwrap_err();
    assert_eq!((error.accepted, error.reason), (0, PostReason::SharedRecvQueue));
    let buf = shared.pd.alloc_buf(8)?;
    let error = shared.receivers[0].post_recv_buf(buf, ..).unwrap_err();
    assert_eq!(error.reason, PostBufReason::Post(PostReason::SharedRecvQueue));
    assert_eq!(error.returned.map(|buf| buf.len()), Some(8));
    let cap = shared.receivers[0].cap();
    assert_eq!((cap.max_recv_wr, cap.max_recv_sge), (0, 0));
    Ok(())
}

fn a_shared_queue_in_use_cannot_be_destroyed<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut shared = Shared::new(context, 1)?;
    shared.post(1, 8)?;
    let failed = shared.srq.close().unwrap_err();
    assert_eq!((failed.error.errno, &failed.error.cause), (Errno::BUSY, &Cause::InUse { by: "queue pairs" }));
    shared.srq = failed.handle;
    assert_eq!(shared.deliver(0)?, 1);
    Ok(())
}

fn a_shared_queue_is_destroyed_after_its_queue_pairs<P: Provider>(context: &Context<P>) -> CaseResult {
    let shared = Shared::new(context, 2)?;
    for qp in shared.receivers {
        qp.close()?;
    }
    let handle = shared.srq.handle();
    shared.srq.close()?;
    let init = QpInit { srq: Some(handle), ..QpInit::new(QpType::RC, &shared.recv_cq) };
    let error = shared.pd.create_qp(&init).unwrap_err();
    assert_eq!(error.cause, Cause::Closed { what: "shared receive queue" });
    Ok(())
}

fn a_receive_with_a_key_of_another_domain_fails<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut shared = Shared::new(context, 1)?;
    let other = context.alloc_pd()?;
    let foreign = Arena::new(&other, 64)?;
    post_srq_recv(&mut shared.srq, &[RecvWr { wr_id: 1, sge: &[foreign.sge(0..64)] }])?;
    shared.send(0, 2, SendOp::Send, 8)?;
    let wc = wait_one(&mut shared.recv_cq)?;
    ended(&wc, 1, WcStatus::LOC_PROT_ERR, &[WcStatus::LOC_QP_OP_ERR, WcStatus::WR_FLUSH_ERR])?;
    assert_eq!(wc.qp_num, shared.receivers[0].qp_num());
    ended(&wait_one(&mut shared.send_cq)?, 2, WcStatus::REM_OP_ERR, ANY_ERROR)?;
    assert_eq!(foreign.read(0..64), [0; 64]);
    Ok(())
}

fn a_receive_that_is_too_short_fails_in_its_queue_pair_alone<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut shared = Shared::new(context, 2)?;
    shared.post(1, 8)?;
    shared.post(2, 8)?;
    shared.send(0, 3, SendOp::Send, 100)?;
    let sent = wait_one(&mut shared.send_cq)?;
    // rxe rejects the message as if the receiver had failed (Linux `rxe_resp.c`,
    // `RESPST_ERR_LENGTH`).
    ended(&sent, 3, WcStatus::REM_INV_REQ_ERR, &[WcStatus::REM_OP_ERR])?;
    let wc = wait_one(&mut shared.recv_cq)?;
    ended(&wc, 1, WcStatus::LOC_LEN_ERR, ANY_ERROR)?;
    assert_eq!(wc.qp_num, shared.receivers[0].qp_num());
    assert_eq!(shared.deliver(1)?, 2, "the other queue pair goes on");
    Ok(())
}

fn the_error_of_one_queue_pair_takes_no_receives_of_the_others<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut shared = Shared::new(context, 2)?;
    for wr_id in 0..4 {
        shared.post(wr_id, 8)?;
    }
    let broken = shared.receivers.remove(0).to_error()?;
    shared.senders.remove(0);
    for wr_id in 0..4 {
        assert_eq!(shared.deliver(0)?, wr_id);
    }
    broken.close()?;
    shared.post(9, 8)?;
    assert_eq!(shared.deliver(0)?, 9);
    Ok(())
}

fn the_last_receive_of_a_queue_pair_in_error_is_told<P: Provider>(context: &Context<P>) -> CaseResult {
    // Linux 6.5: "RDMA/rxe: Send last wqe reached event on qp cleanup".
    if rxe_is_before(6, 5)? {
        return skip("rxe raises no event for the last receive before Linux 6.5");
    }
    let events = context.async_events()?;
    let mut shared = Shared::new(context, 1)?;
    shared.post(1, 8)?;
    let id = shared.receivers[0].id();
    let _broken = shared.receivers.remove(0).to_error()?;
    let deadline = std::time::Instant::now() + PATIENCE;
    while std::time::Instant::now() < deadline {
        if let Some(event) = events.wait(Some(PATIENCE))?
            && event.event_type == AsyncEventType::QP_LAST_WQE_REACHED
        {
            assert_eq!(event.element, Element::Qp(id));
            return Ok(());
        }
    }
    fail("the event did not come")
}

fn posted_buffers_come_back_from_the_completion_queue_of_the_queue_pair<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut shared = Shared::new(context, 2)?;
    for _ in 0..4 {
        shared.srq.post_recv_buf(shared.pd.alloc_buf(300)?, ..)?;
    }
    for (seed, pair) in [(1, 0), (2, 1), (3, 1), (4, 0)] {
        let buf = filled(&shared.pd, seed, 300)?;
        shared.senders[pair].post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..)?;
        let completed = next_completed(&mut shared.recv_cq)?;
        assert_eq!(completed.qp_num, shared.receivers[pair].qp_num());
        assert_eq!(completed.into_buf().expect("a buffer")[..], pattern(seed, 300));
        next_completed(&mut shared.send_cq)?.into_buf()?;
    }
    Ok(())
}

fn buffers_that_no_message_took_come_back_from_the_closed_queue<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut shared = Shared::new(context, 1)?;
    for _ in 0..3 {
        shared.srq.post_recv_buf(shared.pd.alloc_buf(64)?, ..)?;
    }
    shared.send(0, 1, SendOp::Send, 8)?;
    drop(next_completed(&mut shared.recv_cq)?);
    for qp in shared.receivers {
        assert!(qp.dismantle()?.is_empty());
    }
    assert_eq!(shared.srq.dismantle()?.len(), 2);
    Ok(())
}

fn two_threads_post_and_poll<P: Provider>(context: &Context<P>) -> CaseResult {
    const COUNT: u32 = 500;
    let mut shared = Shared::new(context, 2)?;
    let Shared { pd, srq, senders, send_cq, recv_cq, .. } = &mut shared;
    let (to_poster, bufs) = std::sync::mpsc::channel();
    for _ in 0..8 {
        to_poster.send(pd.alloc_buf(64)?)?;
    }
    std::thread::scope(|scope| -> CaseResult {
        let poster = scope.spawn(move || -> CaseResult {
            while let Ok(buf) = bufs.recv() {
                srq.post_recv_buf(buf, ..)?;
            }
            Ok(())
        });
        let mut run = || -> CaseResult {
            for n in 0..COUNT {
                let sender = &mut senders[n as usize % 2];
                sender.post_send_inline(
                    1,
                    SendOp::SendWithImm { imm_data: n },
                    SendFlags::SIGNALED,
                    &[7; 32],
                )?;
                let completed = next_completed(recv_cq)?;
                assert_eq!(imm(&completed), Some(n));
                let buf = completed.into_buf().expect("a buffer");
                assert_eq!(buf[..32], [7; 32]);
                to_poster.send(buf)?;
                next_completed(send_cq)?;
            }
            Ok(())
        };
        let result = run();
        drop(to_poster);
        poster.join().expect("the poster does not panic")?;
        result
    })
}

fn queue_pairs_are_made_while_another_thread_posts<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut shared = Shared::new(context, 1)?;
    let handle = shared.srq.handle();
    let Shared { pd, srq, recv_cq, .. } = &mut shared;
    std::thread::scope(|scope| -> CaseResult {
        let poster = scope.spawn(|| -> CaseResult {
            for _ in 0..16 {
                srq.post_recv_buf(pd.alloc_buf(8)?, ..)?;
                srq.arm(1)?;
            }
            Ok(())
        });
        for _ in 0..16 {
            let init = QpInit { srq: Some(handle.clone()), ..QpInit::new(QpType::RC, &*recv_cq) };
            pd.create_qp(&init)?.to_init(&InitAttr { access: init_attr().access, ..init_attr() })?.close()?;
        }
        poster.join().expect("the poster does not panic")
    })?;
    shared.deliver_safe()
}

impl<P: Provider> Shared<P> {
    /// Sends 8 bytes into a buffer that safe code has posted.
    fn deliver_safe(&mut self) -> CaseResult {
        self.send(0, 1, SendOp::Send, 8)?;
        next_completed(&mut self.recv_cq)?.into_buf()?;
        Ok(())
    }
}

fn many_shared_queues_are_made_and_destroyed<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    for round in 0..20 {
        let mut srqs = (0..10).map(|_| pd.create_srq(&INIT)).collect::<verbs::Result<Vec<_>>>()?;
        for srq in &mut srqs {
            srq.post_recv_buf(pd.alloc_buf(16)?, ..)?;
        }
        let last = srqs.pop().expect("a queue");
        drop(srqs);
        assert_eq!(last.dismantle()?.len(), 1, "round {round}");
    }
    Ok(pd.close()?)
}
