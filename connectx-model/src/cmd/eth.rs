//! Ethernet send and receive queues: CREATE, MODIFY, DESTROY and QUERY of SQ and RQ, and the rates
//! of send queues. The module `tir` handles the objects between these queues and the wire.
//!
//! The data path checks a queue's protection domain; these commands do not. Two queues of the
//! driver's netdev have no domain, because they never access memory: the drop queue, and the queue
//! that probes write combining.

use crate::bus::Bus;
use crate::caps::{LOG_MAX_RQ, LOG_MAX_SQ, PACING_RATES, PACING_TABLE};
use crate::checks::{bad, busy, missing, none_of, not_offered, reserved};
use crate::complaint::Rule;
use crate::eth::sq::BLOCK;
use crate::function::{Core, Function};
use crate::layout::caps::cmd_hca_cap;
use crate::layout::eth as layout;
use crate::layout::eth::{rqc, sqc};
use crate::layout::srq::wq;
use crate::refusal::{Refusal, Status};
use crate::state::eth::{QueueState, Rq, Sq};
use crate::state::pacing::Pace;
use crate::state::work_queue::WorkQueue;

pub(super) fn create_sq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let mut context = [0; sqc::SIZE];
    context.copy_from_slice(layout::create_sq_in::CTX.bytes(input));
    reserved(&sqc::TABLE, &context)?;
    none_of(
        &[
            sqc::RLKY,
            sqc::CD_MASTER,
            sqc::ALLOW_MULTI_PKT_SEND_WQE,
            sqc::REG_UMR,
            sqc::ALLOW_SWP,
            sqc::HAIRPIN,
            sqc::NON_WIRE,
            sqc::HAIRPIN_PEER_RQ,
            sqc::HAIRPIN_PEER_VHCA,
            sqc::TS_FORMAT,
            sqc::TS_CQE_TO_DEST_CQN,
            sqc::PACKET_PACING_RATE_LIMIT_INDEX,
            sqc::QOS_QUEUE_GROUP_ID,
        ],
        &context,
    )?;
    new_state(sqc::STATE.get(&context))?;
    let list = input.get(layout::create_sq_in::TABLE.size..).unwrap_or_default();
    let queue = WorkQueue::new(&function.core.bus, sqc::WQ.bytes(&context), list)?;
    if queue.stride != BLOCK {
        return Err(bad(format!("a send queue with entries of {} bytes", queue.stride)));
    }
    let core = &mut function.core;
    core.needs_uar(queue.uar)?;
    let cqn = sqc::CQN.get32(&context);
    core.needs_cq(cqn)?;
    let tisn = match sqc::TIS_LST_SZ.get(&context) {
        0 => None,
        1 => Some(sqc::TIS_NUM_0.get32(&context)),
        many => return Err(bad(format!("{many} TIS, the maximum is 1"))),
    };
    if let Some(tisn) = tisn.filter(|tisn| !core.eth.tises.contains_key(tisn)) {
        return Err(missing(format!("TIS {tisn:#x}")));
    }
    let full = core.eth.sqs.len() >= 1 << LOG_MAX_SQ;
    let sqn = if full { None } else { core.eth.queue_number(function.engine.config().max_qp) };
    let sqn = sqn.ok_or(Refusal::fair(Status::NoResources))?;
    core.use_cq(cqn);
    if let Some(tis) = tisn.and_then(|tisn| core.eth.tises.get_mut(&tisn)) {
        tis.users += 1;
    }
    let sq = Sq {
        context,
        queue,
        cqn,
        tisn,
        state: QueueState::Reset,
        user_index: sqc::USER_INDEX.get32(&context),
        flush_in_error: sqc::FLUSH_IN_ERROR_EN.is_set(&context),
        taken: 0,
        rung: None,
        pace: Pace::default(),
    };
    core.eth.sqs.insert(sqn, sq);
    layout::create_sq_out::SQN.set(output, sqn);
    Ok(())
}

/// Returns the queue state with this number.
fn state(number: u64) -> Result<QueueState, Refusal> {
    QueueState::from_number(number).ok_or_else(|| bad(format!("state {number}")))
}

fn new_state(number: u64) -> Result<(), Refusal> {
    match state(number)? {
        QueueState::Reset => Ok(()),
        other => Err(bad(format!("a new queue in state {other:?}"))),
    }
}

/// Returns the new state of a queue. Rejects the transition if it is not allowed, or if the current
/// state differs from `believed`, the driver's view.
fn transition(now: QueueState, believed: u64, next: u64) -> Result<QueueState, Refusal> {
    let (believed, next) = (state(believed)?, state(next)?);
    let wrong = |what| Refusal::broken(Status::BadResourceState, Rule::CommandState, what);
    if believed != now {
        return Err(wrong(format!("the queue is in {now:?}, not in {believed:?}")));
    }
    if !now.may_become(next) {
        return Err(wrong(format!("from {now:?} to {next:?}")));
    }
    Ok(next)
}

/// Bit that selects the field changed by MODIFY_SQ besides the state: the index in the rate table.
const MODIFY_RATE: u64 = 1;

/// Rejects a rate limit on a port that does not offer rate limits.
fn needs_rates<B: Bus>(core: &Core<B>) -> Result<(), Refusal> {
    match core.caps.general(cmd_hca_cap::QOS) {
        0 => Err(not_offered("the rate of a send queue")),
        _ => Ok(()),
    }
}

/// Writes an entry of the rate table; a rate of 0 clears the entry. A driver may clear an entry
/// that queues still use, as Linux does for its netdev (`mlx5e_set_sq_maxrate`). Such queues then
/// send without a limit.
pub(super) fn set_pp_rate_limit<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    use layout::set_pp_rate_limit_in as fields;
    let core = &mut function.core;
    needs_rates(core)?;
    let index = fields::RATE_LIMIT_INDEX.get32(input);
    if !(1..PACING_TABLE).contains(&index) {
        let what = format!("rate {index} of a table of {PACING_TABLE}, whose entry 0 is no limit");
        return Err(Refusal::broken(Status::BadIndex, Rule::CommandParameter, what));
    }
    match fields::RATE_LIMIT.get32(input) {
        0 => {
            none_of(&[fields::BURST_UPPER_BOUND, fields::TYPICAL_PACKET_SIZE], input)?;
            core.eth.rates.clear(index);
        }
        rate if PACING_RATES.contains(&rate) => core.eth.rates.set(index, rate),
        rate => {
            let what = format!("{rate} kbit/s, outside of {PACING_RATES:?}");
            return Err(Refusal::broken(Status::ExceedLimit, Rule::CommandParameter, what));
        }
    }
    Ok(())
}

pub(super) fn modify_sq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    use layout::modify_sq_in as fields;
    let (core, sqn) = (&mut function.core, fields::SQN.get32(input));
    let sq = core.eth.sqs.get(&sqn).ok_or_else(|| missing(format!("send queue {sqn:#x}")))?;
    let context = fields::CTX.bytes(input);
    reserved(&sqc::TABLE, context)?;
    let mask = fields::MODIFY_BITMASK.get(input);
    if mask & !MODIFY_RATE != 0 {
        return Err(not_offered(format!("a change of fields {mask:#x}")));
    }
    let next = transition(sq.state, fields::SQ_STATE.get(input), sqc::STATE.get(context))?;
    let rate = (mask & MODIFY_RATE != 0).then(|| sqc::PACKET_PACING_RATE_LIMIT_INDEX.get32(context));
    if let Some(index) = rate {
        needs_rates(core)?;
        if next != QueueState::Ready {
            return Err(bad(format!("rate {index} in state {next:?}")));
        }
        if index != 0 && !core.eth.rates.contains(index) {
            return Err(missing(format!("rate {index}")));
        }
    }
    let Some(sq) = core.eth.sqs.get_mut(&sqn) else { return Ok(()) };
    sq.state = next;
    match next {
        QueueState::Reset => {
            sq.taken = 0;
            sq.pace = Pace::default();
            core.eth.stop_waiting(sqn);
        }
        QueueState::Ready => {
            if let Some(index) = rate {
                sq.pace.index = index;
            }
        }
        QueueState::Error => function.flush_sq(sqn),
    }
    Ok(())
}

pub(super) fn destroy_sq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let (core, sqn) = (&mut function.core, layout::destroy_sq_in::SQN.get32(input));
    let sq = core.eth.sqs.remove(&sqn).ok_or_else(|| missing(format!("send queue {sqn:#x}")))?;
    if let Some(tis) = sq.tisn.and_then(|tisn| core.eth.tises.get_mut(&tisn)) {
        tis.users = tis.users.saturating_sub(1);
    }
    core.leave_cq(sq.cqn);
    core.eth.stop_waiting(sqn);
    core.eth.free_queue_number(sqn);
    Ok(())
}

pub(super) fn query_sq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let sqn = layout::query_sq_in::SQN.get32(input);
    let sq = function.core.eth.sqs.get(&sqn).ok_or_else(|| missing(format!("send queue {sqn:#x}")))?;
    let context = layout::query_sq_out::SQ_CONTEXT.bytes_mut(output);
    context.copy_from_slice(&sq.context);
    sqc::STATE.set(context, sq.state as u32);
    sqc::PACKET_PACING_RATE_LIMIT_INDEX.set(context, sq.pace.index);
    wq::HW_COUNTER.set(sqc::WQ.bytes_mut(context), sq.taken);
    Ok(())
}

pub(super) fn create_rq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let mut context = [0; rqc::SIZE];
    context.copy_from_slice(layout::create_rq_in::CTX.bytes(input));
    reserved(&rqc::TABLE, &context)?;
    none_of(
        &[
            rqc::RLKY,
            rqc::DELAY_DROP_EN,
            rqc::SCATTER_FCS,
            rqc::MEM_RQ_TYPE,
            rqc::HAIRPIN,
            rqc::TS_FORMAT,
            rqc::RMPN,
            rqc::HAIRPIN_PEER_SQ,
            rqc::HAIRPIN_PEER_VHCA,
            rqc::SHAMPO_NO_MATCH_ALIGNMENT_GRANULARITY,
            rqc::SHAMPO_MATCH_CRITERIA_TYPE,
            rqc::RESERVATION_TIMEOUT,
        ],
        &context,
    )?;
    new_state(rqc::STATE.get(&context))?;
    let list = input.get(layout::create_rq_in::TABLE.size..).unwrap_or_default();
    let queue = WorkQueue::new(&function.core.bus, rqc::WQ.bytes(&context), list)?;
    let core = &mut function.core;
    let cqn = rqc::CQN.get32(&context);
    core.needs_cq(cqn)?;
    let full = core.eth.rqs.len() >= 1 << LOG_MAX_RQ;
    let rqn = if full { None } else { core.eth.queue_number(function.engine.config().max_qp) };
    let rqn = rqn.ok_or(Refusal::fair(Status::NoResources))?;
    core.use_cq(cqn);
    let rq = Rq {
        context,
        queue,
        cqn,
        state: QueueState::Reset,
        user_index: rqc::USER_INDEX.get32(&context),
        keep_vlan: rqc::VSD.is_set(&context),
        flush_in_error: rqc::FLUSH_IN_ERROR_EN.is_set(&context),
        consumed: 0,
    };
    core.eth.rqs.insert(rqn, rq);
    layout::create_rq_out::RQN.set(output, rqn);
    Ok(())
}

/// Bits that select the fields changed by MODIFY_RQ besides the state: VLAN stripping, counter set.
/// A change of the frame check sequence setting is not offered.
const MODIFY_VSD: u64 = 1 << 1;
const MODIFY_COUNTERS: u64 = 1 << 3;

pub(super) fn modify_rq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    use layout::modify_rq_in as fields;
    let (core, rqn) = (&mut function.core, fields::RQN.get32(input));
    let rq = core.eth.rqs.get_mut(&rqn).ok_or_else(|| missing(format!("receive queue {rqn:#x}")))?;
    let context = fields::CTX.bytes(input);
    reserved(&rqc::TABLE, context)?;
    let mask = fields::MODIFY_BITMASK.get(input);
    if mask & !(MODIFY_VSD | MODIFY_COUNTERS) != 0 {
        return Err(not_offered(format!("a change of fields {mask:#x}")));
    }
    let next = transition(rq.state, fields::RQ_STATE.get(input), rqc::STATE.get(context))?;
    if mask & MODIFY_VSD != 0 {
        rq.keep_vlan = rqc::VSD.is_set(context);
        rqc::VSD.set(&mut rq.context, u32::from(rq.keep_vlan));
    }
    if mask & MODIFY_COUNTERS != 0 {
        rqc::COUNTER_SET_ID.set(&mut rq.context, rqc::COUNTER_SET_ID.get(context));
    }
    rq.state = next;
    match next {
        QueueState::Reset => rq.consumed = 0,
        QueueState::Ready => (),
        QueueState::Error => function.flush_rq(rqn),
    }
    Ok(())
}

pub(super) fn destroy_rq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let (core, rqn) = (&mut function.core, layout::destroy_rq_in::RQN.get32(input));
    if core.eth.leads_to_rq(rqn) {
        return Err(busy(format!("receive queue {rqn:#x} is in use by a TIR or an RQT")));
    }
    let rq = core.eth.rqs.remove(&rqn).ok_or_else(|| missing(format!("receive queue {rqn:#x}")))?;
    core.leave_cq(rq.cqn);
    core.eth.free_queue_number(rqn);
    Ok(())
}

pub(super) fn query_rq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let rqn = layout::query_rq_in::RQN.get32(input);
    let rq = function.core.eth.rqs.get(&rqn).ok_or_else(|| missing(format!("receive queue {rqn:#x}")))?;
    let context = layout::query_rq_out::RQ_CONTEXT.bytes_mut(output);
    context.copy_from_slice(&rq.context);
    rqc::STATE.set(context, rq.state as u32);
    wq::HW_COUNTER.set(rqc::WQ.bytes_mut(context), rq.consumed);
    Ok(())
}
