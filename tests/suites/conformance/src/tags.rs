//! Tag matching: a shared receive queue's tag list, matching messages and rendezvous.

use std::time::Instant;

use verbs::state::Rts;
use verbs::{
    Cause, Context, Cq, CqInit, CqWcFlags, Errno, OpsFlags, OpsWr, Pd, PostReason, Provider, Qp, QpCap,
    QpInit, QpType, Rvh, SendOp, Sge, Srq, SrqInit, TmCap, TmOp, Tmh, TmhOp, Wc, WcFlags, WcOpcode, WcStatus,
    WcTmInfo,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    self, Arena, PATIENCE, Remote, Shape, is_empty, pattern, post_recv, post_send, post_srq_ops,
    post_srq_recv, signalled, wait_for, wait_one,
};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        a_message_with_a_tag_goes_into_the_memory_of_its_tag,
        the_oldest_tag_that_matches_takes_the_message,
        a_completion_has_the_tag_and_the_number_of_the_sender,
        a_message_of_several_packets_completes_its_tag_twice,
        a_message_without_its_tag_takes_a_receive,
        tags_that_are_out_of_step_wait_for_the_count,
        a_tag_is_removed_unless_a_message_has_taken_it,
        the_device_reads_a_rendezvous_and_tells_the_sender,
        a_rendezvous_that_does_not_fit_is_left_to_the_program,
        operations_that_are_not_signaled_complete_with_their_message_alone,
        a_full_list_and_wrong_operations_are_refused,
        a_list_is_used_many_times,
        sizes_beyond_those_of_the_device_are_refused,
    )
}

const SIZE: usize = 1 << 14;
/// The arena offset of sent messages, in bytes.
const SOURCE: usize = 1 << 13;
/// The arena offset of the first receive, in bytes. Each receive has 256 bytes.
const RECEIVES: usize = 3 << 12;

const TM: TmCap = TmCap { max_num_tags: 7, max_ops: 8 };

/// A sender and a receiver with a tag list.
struct Tags<P: Provider> {
    sender: Qp<Rts, P>,
    sends: Cq<P>,
    /// The receiving queue pair. Only the device posts sends on it.
    _receiver: Qp<Rts, P>,
    srq: Srq<P>,
    /// The tag list's completion queue.
    cq: Cq<P>,
    arena: Arena<P>,
}

/// Creates a queue with a tag list. Skips the case on a device without tag matching.
fn create<P: Provider>(context: &Context<P>, pd: &Pd<P>, tm: TmCap) -> CaseResult<(Srq<P>, Cq<P>)> {
    let init = CqInit { wc_flags: CqWcFlags::TM_INFO, ..CqInit::new(64) };
    if context.query_device_ex()?.tm_caps.max_num_tags == 0 {
        return skip("the device has no tag matching");
    }
    let cq = context.create_cq(&init)?;
    Ok((pd.create_tm_srq(&cq, tm, &SrqInit::new(16))?, cq))
}

impl<P: Provider> Tags<P> {
    fn new(context: &Context<P>) -> CaseResult<Self> {
        let pd = context.alloc_pd()?;
        let (srq, cq) = create(context, &pd, TM)?;
        let sends = context.create_cq(&CqInit::new(64))?;
        let shape = Shape::for_type(QpType::RC);
        let sender = fabric::create_qp(&pd, &sends, &shape)?;
        let cap = QpCap { max_send_wr: 0, max_recv_wr: 0, ..shape.cap };
        let receiver =
            pd.create_qp(&QpInit { cap, srq: Some(srq.handle()), ..QpInit::new(QpType::RC, &cq) })?;
        let (to_sender, to_receiver) = (Remote::from_qp(&sender), Remote::from_qp(&receiver));
        let sender = fabric::connect(context, sender, &shape, to_receiver)?;
        let receiver = fabric::connect(context, receiver, &shape, to_sender)?;
        let arena = Arena::new(&pd, SIZE)?;
        Ok(Self { sender, sends, _receiver: receiver, srq, cq, arena })
    }

    /// Posts a tag list operation and returns its handle.
    fn post(&mut self, wr_id: u64, op: TmOp<'_>, flags: OpsFlags, count: u32) -> Result<u32, PostReason> {
        let mut wrs = [OpsWr { wr_id, op, flags, unexpected_cnt: count }];
        post_srq_ops(&mut self.srq, &mut wrs).map_err(|error| error.reason)?;
        Ok(if let TmOp::Add { handle, .. } = wrs[0].op { handle } else { 0 })
    }

    /// Adds a tag whose memory has `len` bytes at offset `at`. Returns the tag's handle and the
    /// completion.
    fn add(&mut self, tag: u64, mask: u64, at: usize, len: usize, count: u32) -> CaseResult<(u32, Wc)> {
        let sge = [self.arena.sge(at..at + len)];
        let add = TmOp::Add { recv_wr_id: 1000 + tag, sge: &sge, tag, mask, handle: 0 };
        let handle = self.post(tag, add, OpsFlags::SIGNALED | OpsFlags::TM_SYNC, count)?;
        Ok((handle, wait_for(&mut self.cq, tag, WcOpcode::TM_ADD)?))
    }

    /// Sends a message of `len` bytes, preceded by a header, and waits for the completion.
    fn send(&mut self, opcode: TmhOp, tag: u64, len: usize) -> CaseResult {
        self.arena.write(SOURCE, &Tmh { opcode, app_ctx: 77, tag }.to_bytes());
        self.arena.write(SOURCE + Tmh::LEN, &pattern(tag as u32, len));
        self.send_bytes(Tmh::LEN + len)
    }

    fn send_bytes(&mut self, len: usize) -> CaseResult {
        let sge = [self.arena.sge(SOURCE..SOURCE + len)];
        post_send(&mut self.sender, &[signalled(1, SendOp::Send, &sge)])?;
        wait_for(&mut self.sends, 1, WcOpcode::SEND).map(drop)
    }

    /// Requests a rendezvous of `len` bytes in the middle of the source.
    fn request(&mut self, tag: u64, len: usize) -> CaseResult {
        let data = SOURCE + 1024;
        self.arena.write(data, &pattern(tag as u32, len));
        self.arena.write(SOURCE, &Tmh { opcode: TmhOp::RNDV, app_ctx: 77, tag }.to_bytes());
        let va = self.arena.addr() + data as u64;
        let rvh = Rvh { va, rkey: self.arena.rkey(), len: len as u32 };
        self.arena.write(SOURCE + Tmh::LEN, &rvh.to_bytes());
        self.send_bytes(Tmh::LEN + Rvh::LEN)
    }

    /// Posts a receive to the shared queue.
    fn receive(&mut self, wr_id: u64) -> CaseResult {
        let at = RECEIVES + wr_id as usize * 256;
        let sge = [self.arena.sge(at..at + 256)];
        Ok(post_srq_recv(&mut self.srq, &[verbs::RecvWr { wr_id, sge: &sge }])?)
    }

    /// Waits for the completion of a message for a tag. It must have these flags.
    fn received(&mut self, tag: u64, flags: WcFlags) -> CaseResult<Wc> {
        let wc = wait_for(&mut self.cq, 1000 + tag, WcOpcode::TM_RECV)?;
        if wc.wc_flags == flags { Ok(wc) } else { fail(format_args!("{flags:?} were expected, not {wc:?}")) }
    }
}

const BOTH: WcFlags = WcFlags::TM_MATCH.union(WcFlags::TM_DATA_VALID);

fn a_message_with_a_tag_goes_into_the_memory_of_its_tag<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut tags = Tags::new(context)?;
    for tag in 1..=6 {
        let (_, wc) = tags.add(tag, u64::MAX, tag as usize * 256, 256, 0)?;
        assert_eq!(wc.wc_flags, WcFlags::empty());
    }
    for tag in [4, 1, 6, 2, 5, 3] {
        tags.send(TmhOp::EAGER, tag, 200)?;
        let wc = tags.received(tag, BOTH)?;
        assert_eq!(wc.byte_len, 200, "without the header");
        let at = tag as usize * 256;
        assert_eq!(tags.arena.read(at..at + 200), pattern(tag as u32, 200));
    }
    assert!(is_empty(&mut tags.cq));
    Ok(())
}

fn the_oldest_tag_that_matches_takes_the_message<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut tags = Tags::new(context)?;
    tags.add(0x21, 0xff, 0, 64, 0)?;
    tags.add(0x20, 0xf0, 0, 64, 0)?;
    tags.add(0x22, 0xff, 0, 64, 0)?;
    for (sent, taken) in [(0x22, 0x20), (0x122, 0x22), (0xff21, 0x21)] {
        tags.send(TmhOp::EAGER, sent, 8)?;
        tags.received(taken, BOTH)?;
    }
    Ok(())
}

fn a_completion_has_the_tag_and_the_number_of_the_sender<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut tags = Tags::new(context)?;
    tags.add(0x5, 0xf, 0, 64, 0)?;
    tags.send(TmhOp::EAGER, 0xabc5, 8)?;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let mut completions = tags.cq.poll();
        if let Some(completion) = completions.next() {
            let expected = (1005, Some(WcTmInfo { tag: 0xabc5, private: 77 }));
            assert_eq!((completion.wr_id(), completion.tm_info()), expected);
            return Ok(());
        }
        drop(completions);
        std::thread::yield_now();
    }
    fail("no completion")
}

fn a_message_of_several_packets_completes_its_tag_twice<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut tags = Tags::new(context)?;
    tags.add(1, u64::MAX, 0, 6000, 0)?;
    tags.send(TmhOp::EAGER, 1, 6000)?;
    tags.received(1, WcFlags::TM_MATCH)?;
    let wc = tags.received(1, WcFlags::TM_DATA_VALID)?;
    assert_eq!(wc.byte_len, 6000);
    assert_eq!(tags.arena.read(0..6000), pattern(1, 6000));
    // The slot of the tag is free.
    tags.add(2, u64::MAX, 0, 64, 0)?;
    Ok(())
}

fn a_message_without_its_tag_takes_a_receive<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut tags = Tags::new(context)?;
    tags.add(1, u64::MAX, 0, 64, 0)?;
    (0..3).try_for_each(|wr_id| tags.receive(wr_id))?;
    for (wr_id, opcode, expected) in [
        (0, TmhOp::EAGER, WcOpcode::TM_RECV),
        (1, TmhOp::NO_TAG, WcOpcode::TM_NO_TAG),
        (2, TmhOp::FIN, WcOpcode::TM_NO_TAG),
    ] {
        tags.send(opcode, 2, 100)?;
        let wc = wait_for(&mut tags.cq, wr_id, expected)?;
        assert_eq!((wc.byte_len, wc.wc_flags), (116, WcFlags::empty()), "with the header");
        let at = RECEIVES + wr_id as usize * 256;
        let header = Tmh { opcode, app_ctx: 77, tag: 2 }.to_bytes();
        assert_eq!(tags.arena.read(at..at + 116), [&header[..], &pattern(2, 100)].concat());
    }
    Ok(())
}

fn tags_that_are_out_of_step_wait_for_the_count<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut tags = Tags::new(context)?;
    (0..2).try_for_each(|wr_id| tags.receive(wr_id))?;
    tags.send(TmhOp::EAGER, 1, 8)?;
    wait_for(&mut tags.cq, 0, WcOpcode::TM_RECV)?;
    // The program has not counted the message yet; it may belong to this tag.
    let (_, wc) = tags.add(1, u64::MAX, 0, 64, 0)?;
    assert_eq!(wc.wc_flags, WcFlags::TM_SYNC_REQ);
    tags.send(TmhOp::EAGER, 1, 8)?;
    wait_for(&mut tags.cq, 1, WcOpcode::TM_RECV)?;
    tags.post(9, TmOp::Sync, OpsFlags::SIGNALED | OpsFlags::TM_SYNC, 2)?;
    let wc = wait_for(&mut tags.cq, 9, WcOpcode::TM_SYNC)?;
    assert_eq!(wc.wc_flags, WcFlags::empty());
    tags.send(TmhOp::EAGER, 1, 8)?;
    tags.received(1, BOTH)?;
    let (_, wc) = tags.add(2, u64::MAX, 0, 64, 2)?;
    assert_eq!(wc.wc_flags, WcFlags::empty());
    Ok(())
}

fn a_tag_is_removed_unless_a_message_has_taken_it<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut tags = Tags::new(context)?;
    tags.receive(0)?;
    let (first, _) = tags.add(1, u64::MAX, 0, 64, 0)?;
    let (second, _) = tags.add(2, u64::MAX, 0, 64, 0)?;
    tags.post(11, TmOp::Del { handle: first }, OpsFlags::SIGNALED, 0)?;
    wait_for(&mut tags.cq, 11, WcOpcode::TM_DEL)?;
    tags.send(TmhOp::EAGER, 1, 8)?;
    wait_for(&mut tags.cq, 0, WcOpcode::TM_RECV)?;
    tags.send(TmhOp::EAGER, 2, 8)?;
    // The message's completion has not been polled yet, so the handle is still valid.
    tags.post(12, TmOp::Del { handle: second }, OpsFlags::SIGNALED, 0)?;
    tags.received(2, BOTH)?;
    let wc = wait_one(&mut tags.cq)?;
    assert_eq!((wc.wr_id, wc.status), (12, WcStatus::TM_ERR));
    Ok(())
}

fn the_device_reads_a_rendezvous_and_tells_the_sender<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut tags = Tags::new(context)?;
    for (round, len) in [(0, 1), (1, 300), (2, 5000)] {
        let at = RECEIVES;
        let sge = [tags.arena.sge(at..at + 256)];
        post_recv(&mut tags.sender, &[verbs::RecvWr { wr_id: 5, sge: &sge }])?;
        tags.add(round, u64::MAX, 0, len, 0)?;
        tags.request(round, len)?;
        tags.received(round, WcFlags::TM_MATCH)?;
        let wc = tags.received(round, WcFlags::TM_DATA_VALID)?;
        assert_eq!(wc.byte_len as usize, len);
        assert_eq!(tags.arena.read(0..len), pattern(round as u32, len));
        let told = wait_for(&mut tags.sends, 5, WcOpcode::RECV)?;
        assert_eq!(told.byte_len as usize, Tmh::LEN + Rvh::LEN);
        let header = Tmh { opcode: TmhOp::FIN, app_ctx: 77, tag: round }.to_bytes();
        assert_eq!(tags.arena.read(at..at + Tmh::LEN), header);
        let rvh = tags.arena.read(SOURCE + Tmh::LEN..SOURCE + Tmh::LEN + Rvh::LEN);
        assert_eq!(tags.arena.read(at + Tmh::LEN..at + Tmh::LEN + Rvh::LEN), rvh);
    }
    Ok(())
}

fn a_rendezvous_that_does_not_fit_is_left_to_the_program<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut tags = Tags::new(context)?;
    tags.add(1, u64::MAX, 0, 64, 0)?;
    tags.request(1, 65)?;
    let wc = wait_one(&mut tags.cq)?;
    assert_eq!((wc.wr_id, wc.status), (1001, WcStatus::TM_RNDV_INCOMPLETE));
    let request = tags.arena.read(SOURCE..SOURCE + Tmh::LEN + Rvh::LEN);
    assert_eq!(tags.arena.read(0..Tmh::LEN + Rvh::LEN), request);
    Ok(())
}

fn operations_that_are_not_signaled_complete_with_their_message_alone<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut tags = Tags::new(context)?;
    let sge = [tags.arena.sge(0..64)];
    let add = |tag| TmOp::Add { recv_wr_id: 1000 + tag, sge: &sge, tag, mask: u64::MAX, handle: 0 };
    let handle = tags.post(1, add(1), OpsFlags::empty(), 0)?;
    tags.post(2, add(2), OpsFlags::empty(), 0)?;
    tags.post(3, TmOp::Del { handle }, OpsFlags::empty(), 0)?;
    tags.post(4, TmOp::Sync, OpsFlags::TM_SYNC | OpsFlags::SIGNALED, 0)?;
    wait_for(&mut tags.cq, 4, WcOpcode::TM_SYNC)?;
    tags.send(TmhOp::EAGER, 2, 8)?;
    tags.received(2, BOTH)?;
    assert!(is_empty(&mut tags.cq));
    Ok(())
}

fn a_full_list_and_wrong_operations_are_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut tags = Tags::new(context)?;
    let sge = [tags.arena.sge(0..8), tags.arena.sge(8..16)];
    let add = |tag, sge| TmOp::Add { recv_wr_id: tag, sge, tag, mask: u64::MAX, handle: 0 };
    let error = tags.post(1, add(1, &sge), OpsFlags::SIGNALED, 0).unwrap_err();
    assert_eq!(error, PostReason::TooManySge { given: 2, max: 1 });
    for handle in [0, 5, 1000, u32::MAX] {
        let error = tags.post(1, TmOp::Del { handle }, OpsFlags::SIGNALED, 0).unwrap_err();
        assert_eq!(error, PostReason::TagHandle { handle }, "no tag was added");
    }
    for tag in 0..u64::from(TM.max_num_tags) {
        let none: &[Sge] = &[];
        tags.post(tag, add(tag, none), OpsFlags::SIGNALED, 0)?;
        wait_for(&mut tags.cq, tag, WcOpcode::TM_ADD)?;
    }
    let error = tags.post(1, add(100, &sge[..1]), OpsFlags::SIGNALED, 0).unwrap_err();
    assert_eq!(error, PostReason::QueueFull);
    // An empty message needs no memory.
    tags.send(TmhOp::EAGER, 3, 0)?;
    wait_for(&mut tags.cq, 3, WcOpcode::TM_RECV)?;
    tags.post(1, add(100, &sge[..1]), OpsFlags::SIGNALED, 0)?;
    wait_for(&mut tags.cq, 1, WcOpcode::TM_ADD)?;
    Ok(())
}

fn a_list_is_used_many_times<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut tags = Tags::new(context)?;
    for round in 0..60 {
        let pair = [2 * round, 2 * round + 1];
        for tag in pair {
            tags.add(tag, u64::MAX, (tag % 2) as usize * 64, 64, 0)?;
        }
        for tag in if round % 2 == 0 { pair } else { [pair[1], pair[0]] } {
            tags.send(TmhOp::EAGER, tag, 8)?;
            tags.received(tag, BOTH)?;
        }
    }
    Ok(())
}

fn sizes_beyond_those_of_the_device_are_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    let caps = context.query_device_ex()?.tm_caps;
    let (srq, cq) = create(context, &pd, TmCap { max_num_tags: caps.max_num_tags, max_ops: 1 })?;
    srq.close()?;
    for (tm, what) in [
        (TmCap { max_num_tags: caps.max_num_tags + 1, ..TM }, "max_num_tags"),
        (TmCap { max_num_tags: 0, ..TM }, "max_num_tags"),
        (TmCap { max_ops: caps.max_ops + 1, ..TM }, "max_ops"),
        (TmCap { max_ops: 0, ..TM }, "max_ops"),
    ] {
        let error = pd.create_tm_srq(&cq, tm, &SrqInit::new(16)).unwrap_err();
        let is_named = matches!(error.cause, Cause::Limit { name, .. } if name == what);
        assert!(error.errno == Errno::INVAL && is_named, "{error}");
    }
    cq.close()?;
    Ok(())
}
