//! Completion queues: sizes, overruns, flags, fields and the order of completions.
//!
//! Most cases use a queue pair connected to itself ([`Loop`]). It receives its own messages. Once a
//! send has completed, its receive's completion is therefore in the other queue, still unpolled.

use std::time::{SystemTime, UNIX_EPOCH};

use verbs::{
    AsyncEventType, Cause, Context, Cq, CqFlags, CqInit, CqWcFlags, Element, Errno, HandleError, Mr, Mtu,
    ParentDomainInit, Pd, Provider, Qp, QpCap, QpInit, QpType, RecvWr, RtsAttr, SendFlags, SendOp, SendWr,
    Wc, WcOpcode, WcStatus,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, Remote, Shape, connect, eventually, is_empty, is_mlx5, is_rxe, post_recv, post_send, wait,
    wait_for,
};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        a_queue_holds_at_least_what_was_asked_for,
        the_largest_size_is_accepted_and_one_more_is_refused,
        a_size_of_zero_is_refused,
        every_completion_vector_is_accepted_and_the_next_is_refused,
        a_queue_holds_exactly_its_capacity,
        a_queue_of_one_completion_wraps_around_many_times,
        a_queue_that_is_never_empty_wraps_around_in_order,
        an_overrun_is_reported_and_keeps_the_completions_before_it,
        a_queue_serves_other_queue_pairs_after_an_overrun,
        an_overrun_that_is_ignored_is_not_reported,
        a_flag_that_the_device_lacks_is_refused_by_name,
        a_queue_for_one_thread_is_as_any_other,
        a_queue_of_a_parent_domain_is_as_any_other,
        a_queue_is_made_in_no_plain_protection_domain,
        standard_fields_are_accepted,
        a_field_that_the_device_lacks_is_refused_by_name,
        a_queue_without_optional_fields_offers_none,
        timestamps_grow_and_lie_between_readings_of_the_clock,
        wall_clock_times_are_those_of_the_system,
        timestamps_stay_with_their_completions_in_a_resize,
        a_device_without_a_clock_says_so,
        queue_pairs_that_share_a_queue_keep_their_own_order,
        sends_and_receives_share_a_queue,
        the_ways_to_poll_return_the_same_completion,
        an_empty_queue_returns_nothing_each_way,
        a_queue_with_completions_inside_is_closed,
        a_queue_that_a_queue_pair_uses_is_not_closed,
    )
}

/// A queue pair connected to itself, with its completion queues.
#[derive(Debug)]
pub(super) struct Loop<P: Provider> {
    pub(super) pd: Pd<P>,
    pub(super) qp: Qp<verbs::state::Rts, P>,
    pub(super) sends: Cq<P>,
    pub(super) recvs: Cq<P>,
    pub(super) memory: Mr<P>,
}

/// The shape of the queue pair in a [`Loop`].
pub(super) const SHAPE: Shape = Shape {
    qp_type: QpType::RC,
    cap: QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
    cqe: 64,
    sq_sig_all: false,
    events: false,
    path_mtu: Mtu::MTU_1024,
    rts: RtsAttr { sq_psn: None, timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 1 },
};

/// Creates a queue pair connected to itself.
pub(super) fn looped<P: Provider>(
    context: &Context<P>,
    pd: &Pd<P>,
    sends: &Cq<P>,
    recvs: &Cq<P>,
) -> CaseResult<Qp<verbs::state::Rts, P>> {
    let init = QpInit { recv_cq: recvs.handle(), cap: SHAPE.cap, ..QpInit::new(SHAPE.qp_type, sends) };
    let qp = pd.create_qp(&init)?;
    let own = Remote::from_qp(&qp);
    connect(context, qp, &SHAPE, own)
}

/// Returns memory for [`send_to_itself`]: 8 bytes to send and 8 bytes to receive into.
pub(super) fn message_memory<P: Provider>(pd: &Pd<P>) -> CaseResult<Mr<P>> {
    Ok(Arena::new(pd, 16)?.into_mr())
}

/// Sends 8 bytes from a queue pair to itself. The receive has the same `wr_id`.
pub(super) fn send_to_itself<P: Provider>(
    qp: &mut Qp<verbs::state::Rts, P>,
    memory: &Mr<P>,
    wr_id: u64,
    flags: SendFlags,
) -> CaseResult {
    post_recv(qp, &[RecvWr { wr_id, sge: &[memory.sge(0..8)] }])?;
    post_send(qp, &[SendWr { wr_id, op: SendOp::Send, sge: &[memory.sge(8..16)], flags }])?;
    Ok(())
}

impl<P: Provider> Loop<P> {
    /// Creates a loop whose receives complete on a queue with these attributes.
    pub(super) fn new(context: &Context<P>, recvs: &CqInit<'_, P>) -> CaseResult<Self> {
        let (pd, sends, recvs) =
            (context.alloc_pd()?, context.create_cq(&CqInit::new(64))?, context.create_cq(recvs)?);
        let qp = looped(context, &pd, &sends, &recvs)?;
        let memory = message_memory(&pd)?;
        Ok(Self { pd, qp, sends, recvs, memory })
    }

    /// Sends a message and returns once its receive's completion is in the queue.
    pub(super) fn send(&mut self, wr_id: u64, flags: SendFlags) -> CaseResult {
        send_to_itself(&mut self.qp, &self.memory, wr_id, flags | SendFlags::SIGNALED)?;
        wait_for(&mut self.sends, wr_id, WcOpcode::SEND)?;
        Ok(())
    }

    /// Puts completions with these `wr_id`s into the receives' completion queue.
    pub(super) fn fill(&mut self, mut wr_ids: core::ops::Range<u64>) -> CaseResult {
        wr_ids.try_for_each(|wr_id| self.send(wr_id, SendFlags::empty()))
    }

    /// Polls completions, with each way of polling in turn, and expects exactly these `wr_id`s.
    pub(super) fn expect(&mut self, wr_ids: core::ops::Range<u64>) -> CaseResult {
        let count = (wr_ids.end - wr_ids.start) as usize;
        let mut seen = Vec::new();
        eventually("completions of receives", || {
            let left = count - seen.len();
            match seen.len() % 3 {
                0 => seen.extend(self.recvs.poll_one().map(|completed| completed.wc.wr_id)),
                1 => seen.extend(self.recvs.poll().next().map(|completion| completion.wr_id())),
                _ => {
                    let mut wcs = [Wc::default(); 2];
                    let polled = self.recvs.poll_into(&mut wcs[..left.min(2)]);
                    seen.extend(wcs[..polled].iter().map(|wc| wc.wr_id));
                }
            }
            seen.len() >= count
        })?;
        assert_eq!(seen, wr_ids.collect::<Vec<_>>());
        Ok(())
    }
}

pub(super) fn limit_of(error: &verbs::Error) -> Option<(&'static str, u64, u64)> {
    match error.cause {
        Cause::Limit { name, min, max, .. } => Some((name, min, max)),
        _ => None,
    }
}

fn a_queue_holds_at_least_what_was_asked_for<P: Provider>(context: &Context<P>) -> CaseResult {
    for cqe in [1, 2, 3, 7, 8, 9, 100, 1000] {
        let cq = context.create_cq(&CqInit::new(cqe))?;
        assert!(cq.cqe() >= cqe && cq.cqe() < 2 * cqe + 2, "{} for {cqe}", cq.cqe());
    }
    Ok(())
}

fn the_largest_size_is_accepted_and_one_more_is_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let max = context.query_device()?.max_cqe;
    let cq = context.create_cq(&CqInit::new(max))?;
    assert!(cq.cqe() >= max);
    let error = context.create_cq(&CqInit::new(max + 1)).unwrap_err();
    assert_eq!((error.errno, limit_of(&error)), (Errno::INVAL, Some(("cqe", 1, max.into()))));
    Ok(())
}

fn a_size_of_zero_is_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let error = context.create_cq(&CqInit::new(0)).unwrap_err();
    assert_eq!((error.verb, error.errno), ("create_cq", Errno::INVAL));
    assert_eq!(limit_of(&error).map(|(name, min, _)| (name, min)), Some(("cqe", 1)));
    Ok(())
}

fn every_completion_vector_is_accepted_and_the_next_is_refused<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let vectors = context.num_comp_vectors();
    for comp_vector in 0..vectors {
        let mut own = Loop::new(context, &CqInit { comp_vector, ..CqInit::new(4) })?;
        own.fill(0..2)?;
        own.expect(0..2)?;
    }
    let error = context.create_cq(&CqInit { comp_vector: vectors, ..CqInit::new(4) }).unwrap_err();
    let limit = Some(("comp_vector", 0, u64::from(vectors) - 1));
    assert_eq!((error.errno, limit_of(&error)), (Errno::INVAL, limit));
    Ok(())
}

fn a_queue_holds_exactly_its_capacity<P: Provider>(context: &Context<P>) -> CaseResult {
    let events = context.async_events()?;
    for cqe in [1, 5, 15] {
        let mut own = Loop::new(context, &CqInit::new(cqe))?;
        let all = own.recvs.cqe().into();
        own.fill(0..all)?;
        own.expect(0..all)?;
        assert!(is_empty(&mut own.recvs));
        assert_eq!(events.next_event()?, None, "it has not overrun");
    }
    Ok(())
}

fn a_queue_of_one_completion_wraps_around_many_times<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit::new(1))?;
    for n in 0..300 {
        own.fill(n..n + 1)?;
        own.expect(n..n + 1)?;
    }
    Ok(())
}

fn a_queue_that_is_never_empty_wraps_around_in_order<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit::new(7))?;
    own.fill(0..3)?;
    for n in 0..100 {
        own.fill(3 * n + 3..3 * n + 6)?;
        own.expect(3 * n..3 * n + 3)?;
    }
    own.expect(300..303)
}

/// Fills the receives' completion queue until a completion is lost.
fn overrun<P: Provider>(own: &mut Loop<P>) -> CaseResult {
    // A ConnectX queue holds one completion more than it reports.
    let room = u64::from(own.recvs.cqe()) + u64::from(is_mlx5()?);
    own.fill(0..room)?;
    send_to_itself(&mut own.qp, &own.memory, room, SendFlags::empty())
}

fn an_overrun_is_reported_and_keeps_the_completions_before_it<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let events = context.async_events()?;
    let mut own = Loop::new(context, &CqInit::new(5))?;
    overrun(&mut own)?;
    let mut seen = Vec::new();
    eventually("the event of an overrun", || {
        seen.extend(events.next_event().ok().flatten());
        seen.iter().any(|event| event.event_type == AsyncEventType::CQ_ERR)
    })?;
    let element = Element::Cq(own.recvs.id());
    assert!(seen.iter().any(|event| event.element == element), "{seen:?}");
    own.expect(0..own.recvs.cqe().into())
}

fn a_queue_serves_other_queue_pairs_after_an_overrun<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_mlx5()? {
        return skip("ConnectX stops a queue that has overrun");
    }
    let events = context.async_events()?;
    let mut own = Loop::new(context, &CqInit::new(5))?;
    overrun(&mut own)?;
    eventually("the event of an overrun", || {
        events.next_event().is_ok_and(|event| event.is_some_and(|e| e.event_type == AsyncEventType::CQ_ERR))
    })?;
    own.expect(0..own.recvs.cqe().into())?;
    // Discards any completion of the lost receive and any flushed requests of the first queue pair.
    own.qp = looped(context, &own.pd, &own.sends, &own.recvs)?;
    while own.recvs.poll_one().is_some() || own.sends.poll_one().is_some() {}
    own.fill(100..104)?;
    own.expect(100..104)
}

fn an_overrun_that_is_ignored_is_not_reported<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_rxe()? {
        return skip("the kernel's rxe refuses the flag IGNORE_OVERRUN");
    }
    if is_mlx5()? {
        return skip("the provider refuses IGNORE_OVERRUN: an entry would change while it is read");
    }
    let events = context.async_events()?;
    let init = CqInit { flags: CqFlags::IGNORE_OVERRUN, ..CqInit::new(4) };
    let mut own = Loop::new(context, &init)?;
    own.fill(0..10)?;
    own.expect(0..4)?;
    assert!(is_empty(&mut own.recvs), "the others are lost");
    own.fill(10..12)?;
    own.expect(10..12)?;
    assert_eq!(events.next_event()?, None);
    Ok(())
}

fn a_flag_that_the_device_lacks_is_refused_by_name<P: Provider>(context: &Context<P>) -> CaseResult {
    let flags = if is_rxe()? { CqFlags::IGNORE_OVERRUN } else { CqFlags::from_bits_retain(1 << 9) };
    let error = context.create_cq(&CqInit { flags, ..CqInit::new(4) }).unwrap_err();
    // rxe returns EINVAL on Linux 5.10 and EOPNOTSUPP on 6.1.
    assert!(matches!(error.errno, Errno::OPNOTSUPP | Errno::INVAL), "{error}");
    assert_eq!(error.cause, Cause::CqFlags { flags });
    Ok(())
}

fn a_queue_for_one_thread_is_as_any_other<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit { flags: CqFlags::SINGLE_THREADED, ..CqInit::new(7) })?;
    own.fill(0..5)?;
    own.recvs.resize(20)?;
    own.expect(0..5)
}

fn a_queue_of_a_parent_domain_is_as_any_other<P: Provider>(context: &Context<P>) -> CaseResult {
    let (pd, td) = (context.alloc_pd()?, context.alloc_td());
    let init = ParentDomainInit { allow_cc_unprotected_alloc: true, ..ParentDomainInit::default() };
    let init = ParentDomainInit { td: td.as_ref().ok(), ..init };
    let parent = match pd.alloc_parent_domain(&init) {
        Ok(parent) => parent,
        Err(error) => {
            assert_eq!((error.verb, error.errno), ("alloc_parent_domain", Errno::OPNOTSUPP), "{error}");
            return skip("the provider has no parent domains");
        }
    };
    let mut own = Loop::new(context, &CqInit { parent_domain: Some(&parent), ..CqInit::new(7) })?;
    let Err(HandleError { error, .. }) = parent.close() else { return fail("the parent domain is gone") };
    assert!(matches!(error.cause, Cause::InUse { by: "completion queues" }), "{error}");
    own.fill(0..5)?;
    own.recvs.resize(20)?;
    own.expect(0..5)
}

fn a_queue_is_made_in_no_plain_protection_domain<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    let error = context.create_cq(&CqInit { parent_domain: Some(&pd), ..CqInit::new(4) }).unwrap_err();
    let errno = if is_rxe()? { Errno::OPNOTSUPP } else { Errno::INVAL };
    assert_eq!((error.verb, error.errno), ("create_cq", errno), "{error}");
    assert!(error.to_string().contains("parent domain"), "{error}");
    Ok(pd.close()?)
}

fn standard_fields_are_accepted<P: Provider>(context: &Context<P>) -> CaseResult {
    let init = CqInit { wc_flags: CqWcFlags::STANDARD, ..CqInit::new(7) };
    let mut own = Loop::new(context, &init)?;
    assert_eq!((own.recvs.wc_flags(), own.sends.wc_flags()), (CqWcFlags::STANDARD, CqWcFlags::STANDARD));
    own.fill(0..2)?;
    own.expect(0..2)
}

fn a_field_that_the_device_lacks_is_refused_by_name<P: Provider>(context: &Context<P>) -> CaseResult {
    // No device knows this flag.
    let mut lacking = vec![CqWcFlags::from_bits_retain(1 << 20)];
    if !is_mlx5()? {
        lacking.extend([CqWcFlags::TM_INFO, CqWcFlags::CVLAN, CqWcFlags::FLOW_TAG]);
    }
    if is_rxe()? {
        lacking.extend([CqWcFlags::COMPLETION_TIMESTAMP, CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK]);
    }
    for wc_flags in lacking {
        let asked = wc_flags | CqWcFlags::STANDARD;
        let error = context.create_cq(&CqInit { wc_flags: asked, ..CqInit::new(4) }).unwrap_err();
        assert_eq!((error.verb, error.errno), ("create_cq", Errno::OPNOTSUPP));
        assert_eq!(error.cause, Cause::CqWcFlags { wc_flags });
    }
    Ok(())
}

fn a_queue_without_optional_fields_offers_none<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit::new(7))?;
    own.fill(0..1)?;
    let mut completions = own.recvs.poll();
    let Some(completion) = completions.next() else { return fail("no completion") };
    assert_eq!((completion.completion_ts(), completion.completion_wallclock_ns()), (None, None));
    assert_eq!((completion.cvlan(), completion.flow_tag(), completion.tm_info()), (None, None, None));
    Ok(())
}

const CLOCKS: CqWcFlags = CqWcFlags::COMPLETION_TIMESTAMP.union(CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK);

/// Skips the case on rxe, which has no timestamps.
fn needs_clock() -> CaseResult {
    if is_rxe()? { skip("rxe has no timestamps and no clock") } else { Ok(()) }
}

fn timestamps_grow_and_lie_between_readings_of_the_clock<P: Provider>(context: &Context<P>) -> CaseResult {
    needs_clock()?;
    let mask = context.query_device_ex()?.completion_timestamp_mask;
    assert!(mask > u32::MAX.into() && (mask == u64::MAX || (mask + 1).is_power_of_two()), "{mask:#x}");
    let mut own = Loop::new(context, &CqInit { wc_flags: CLOCKS, ..CqInit::new(100) })?;
    assert_eq!(own.recvs.wc_flags(), CLOCKS | CqWcFlags::STANDARD);
    let start = context.query_rt_values()?.raw_clock;
    own.fill(0..40)?;
    let end = context.query_rt_values()?.raw_clock;
    let mut times = vec![start];
    let mut completions = own.recvs.poll();
    while let Some(completion) = completions.next() {
        times.extend(completion.completion_ts());
    }
    times.push(end);
    assert_eq!(times.len(), 42);
    assert!(times.is_sorted() && start < end, "{times:?}");
    Ok(())
}

fn wall_clock_times_are_those_of_the_system<P: Provider>(context: &Context<P>) -> CaseResult {
    needs_clock()?;
    let wc_flags = CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK;
    let mut own = Loop::new(context, &CqInit { wc_flags, ..CqInit::new(7) })?;
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_nanos() as u64);
    let start = now()?;
    own.fill(0..1)?;
    let end = now()?;
    let mut completions = own.recvs.poll();
    let Some(completion) = completions.next() else { return fail("no completion") };
    let Some(time) = completion.completion_wallclock_ns() else { return fail("no time") };
    // Nothing in a guest keeps ConnectX's clock in step with the system clock.
    let slack = if is_mlx5()? { 1_000_000_000 } else { 0 };
    assert!((start - slack..=end + slack).contains(&time), "{time} is not in {start}..={end}");
    assert_eq!(completion.completion_ts(), None, "it was not requested");
    Ok(())
}

fn timestamps_stay_with_their_completions_in_a_resize<P: Provider>(context: &Context<P>) -> CaseResult {
    needs_clock()?;
    let mut own = Loop::new(context, &CqInit { wc_flags: CLOCKS, ..CqInit::new(7) })?;
    own.fill(0..3)?;
    let before = context.query_rt_values()?.raw_clock;
    own.recvs.resize(40)?;
    own.fill(3..6)?;
    let mut completions = own.recvs.poll();
    for n in 0..6 {
        let Some(completion) = completions.next() else { return fail("no completion") };
        assert_eq!(completion.wr_id(), n);
        assert_eq!(completion.completion_ts().map(|time| time <= before), Some(n < 3));
    }
    Ok(())
}

fn a_device_without_a_clock_says_so<P: Provider>(context: &Context<P>) -> CaseResult {
    if !is_rxe()? {
        return skip("the device has a clock");
    }
    let error = context.query_rt_values().unwrap_err();
    assert_eq!((error.verb, error.errno), ("query_rt_values", Errno::OPNOTSUPP));
    assert_eq!(context.query_device_ex()?.completion_timestamp_mask, 0);
    Ok(())
}

fn queue_pairs_that_share_a_queue_keep_their_own_order<P: Provider>(context: &Context<P>) -> CaseResult {
    const EACH: u64 = 30;
    let (pd, mut cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(400))?);
    let memory = message_memory(&pd)?;
    let mut qps = Vec::new();
    for _ in 0..4 {
        qps.push(looped(context, &pd, &cq, &cq)?);
    }
    for n in 0..EACH {
        for qp in &mut qps {
            send_to_itself(qp, &memory, n, SendFlags::SIGNALED)?;
        }
    }
    let wcs = wait(&mut cq, 8 * EACH as usize)?;
    for qp in &qps {
        for opcode in [WcOpcode::SEND, WcOpcode::RECV] {
            let its = wcs.iter().filter(|wc| (wc.qp_num, wc.opcode) == (qp.qp_num(), opcode));
            assert!(its.map(|wc| wc.wr_id).eq(0..EACH), "{opcode} of {:#x}", qp.qp_num());
        }
    }
    Ok(())
}

fn sends_and_receives_share_a_queue<P: Provider>(context: &Context<P>) -> CaseResult {
    let (pd, mut cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(4))?);
    let (memory, mut qp) = (message_memory(&pd)?, looped(context, &pd, &cq, &cq)?);
    for n in 0..50 {
        send_to_itself(&mut qp, &memory, n, SendFlags::SIGNALED)?;
        let wcs = wait(&mut cq, 2)?;
        assert!(wcs.iter().all(|wc| (wc.wr_id, wc.status) == (n, WcStatus::SUCCESS)), "{wcs:?}");
        assert_eq!(wcs.iter().filter(|wc| wc.opcode.is_recv()).count(), 1, "{wcs:?}");
    }
    Ok(())
}

fn the_ways_to_poll_return_the_same_completion<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit::new(7))?;
    let mut seen = Vec::new();
    for way in 0..4 {
        post_recv(&mut own.qp, &[RecvWr { wr_id: 9, sge: &[own.memory.sge(0..8)] }])?;
        let op = SendOp::SendWithImm { imm_data: 0x0102_0304 };
        let wr = SendWr { wr_id: 1, op, sge: &[own.memory.sge(8..16)], flags: SendFlags::SIGNALED };
        post_send(&mut own.qp, &[wr])?;
        wait_for(&mut own.sends, 1, WcOpcode::SEND)?;
        let mut wcs = [Wc::default()];
        let mut completions = own.recvs.poll();
        let polled = match way {
            0 => completions.next().map(|mut completion| completion.to_wc()),
            1 => completions.next().map(|c| Wc {
                wr_id: c.wr_id(),
                status: c.status(),
                opcode: c.opcode(),
                vendor_err: c.vendor_err(),
                byte_len: c.byte_len(),
                imm_data: c.imm_data(),
                qp_num: c.qp_num(),
                src_qp: c.src_qp(),
                wc_flags: c.wc_flags(),
                pkey_index: c.pkey_index(),
                slid: c.slid(),
                sl: c.sl(),
                dlid_path_bits: c.dlid_path_bits(),
            }),
            2 => {
                drop(completions);
                own.recvs.poll_one().map(|completed| completed.wc)
            }
            _ => {
                drop(completions);
                (own.recvs.poll_into(&mut wcs) == 1).then(|| wcs[0])
            }
        };
        seen.push(polled);
    }
    assert_eq!(seen[0].map(|wc| (wc.wr_id, wc.byte_len, wc.imm_data)), Some((9, 8, 0x0102_0304)));
    assert!(seen.iter().all(|wc| *wc == seen[0]), "{seen:?}");
    Ok(())
}

fn an_empty_queue_returns_nothing_each_way<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut cq = context.create_cq(&CqInit::new(4))?;
    let mut wcs = [Wc::default(); 4];
    for _ in 0..3 {
        assert!(cq.poll().next().is_none() && cq.poll_one().is_none());
        assert_eq!((cq.poll_into(&mut wcs), cq.poll_into(&mut [])), (0, 0));
        let late = cq.poll_within(core::time::Duration::ZERO).expect_err("there is none");
        assert_eq!(late.errno, Errno::TIMEDOUT);
        assert!(cq.arm(false)?.next().is_none());
    }
    Ok(())
}

fn a_queue_with_completions_inside_is_closed<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit::new(7))?;
    own.fill(0..4)?;
    let Loop { qp, sends, recvs, .. } = own;
    drop(qp);
    sends.close()?;
    recvs.close()?;
    Ok(())
}

fn a_queue_that_a_queue_pair_uses_is_not_closed<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit::new(7))?;
    let error = own.recvs.close().unwrap_err();
    assert_eq!((error.error.errno, &error.error.cause), (Errno::BUSY, &Cause::InUse { by: "queue pairs" }));
    own.recvs = error.handle;
    own.fill(0..4)?;
    own.expect(0..4)
}
