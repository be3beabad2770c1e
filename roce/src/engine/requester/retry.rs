//! Timers, going back, and the part of the window that a queue pair may take.
//!
//! The window belongs to the engine, and is what its peers' buffers hold. A queue pair takes three
//! quarters of it at most, so that one whose peer is silent leaves room for others. A peer that
//! many engines send to holds less of each: so a queue pair halves its part after a loss, and grows
//! it again by a packet for each part that was acknowledged (additive increase, multiplicative
//! decrease, as in TCP). Where nothing is lost, it never matters.

use super::fail;
use crate::engine::environment::Environment;
use crate::engine::finish::send;
use crate::engine::memory::{Memory, Sink};
use crate::engine::qp::{Qp, SendState};
use crate::engine::queue::Wqe;
use crate::engine::scheduler::PACKET_COST;
use crate::engine::types::{Config, Status, Time};

/// Shorter timeouts than this, in nanoseconds, are taken for this: on a machine that is busy, a
/// peer process that is not running for a moment is no loss. Devices have such a limit as well.
const SHORTEST_TIMEOUT: u64 = 1_000_000;

/// What the packets from `from` to `to`, counted from the first of a work request, cost of the
/// window: for reads, what their responses do.
#[inline]
pub(super) fn cost(wqe: &Wqe, mtu: u32, from: u32, to: u32) -> u64 {
    let bytes = |packets: u32| u64::from(packets.saturating_mul(mtu).min(wqe.length));
    bytes(to).saturating_sub(bytes(from)) + u64::from(to.saturating_sub(from)) * PACKET_COST
}

/// The most that a queue pair may have of the window, losses or not.
fn largest_part(config: &Config) -> u64 {
    let window = u64::from(config.window_bytes);
    window - window / 4
}

/// How much of the window this queue pair may have now.
#[inline]
pub(super) fn part(req: &SendState, config: &Config) -> u64 {
    req.allowance.min(largest_part(config))
}

/// A packet has left.
#[inline]
pub(super) fn sent<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, wqe: &Wqe, cost: u64) {
    qp.req.flight += cost;
    env.scheduler.sent(cost);
    qp.req.reads += u32::from(wqe.wants_data());
    if qp.req.ack_deadline.is_none() {
        arm(qp, env.now);
    }
}

/// What cost so much was acknowledged: the timer starts again, retries count from the beginning.
#[inline]
pub(super) fn progress<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, cost: u64) {
    let packet = u64::from(qp.send_mtu()) + PACKET_COST;
    let req = &mut qp.req;
    // What is acknowledged after going back, and before being sent again, is not in flight.
    let cost = if req.una == req.next { req.flight } else { cost.min(req.flight) };
    req.flight -= cost;
    env.scheduler.acknowledged(cost);
    if req.allowance != u64::MAX {
        req.allowance += (packet * cost / req.allowance.max(1)).clamp(1, packet);
        if req.allowance >= largest_part(env.config) {
            req.allowance = u64::MAX;
        }
    }
    req.waiting = false;
    req.implied = false;
    req.retries = 0;
    req.rnr_retries = 0;
    req.rnr_until = None;
    if req.una == req.next {
        req.ack_deadline = None;
    } else {
        arm(qp, env.now);
    }
}

/// Starts the acknowledgement timer, as [`Attr::timeout`](crate::engine::Attr::timeout) documents.
///
/// The first retry comes as early as allowed, for a packet that was lost. Later ones come as late
/// as allowed, for a peer that is slow rather than gone.
///
/// # References
/// IBTA 9.7.6.1.3
fn arm(qp: &mut Qp, now: Time) {
    let nanoseconds = match qp.attr.timeout & 31 {
        0 => None,
        timeout => Some((4096u64 << timeout).max(SHORTEST_TIMEOUT) << qp.req.retries.min(2)),
    };
    qp.req.ack_deadline = nanoseconds.map(|nanoseconds| now + nanoseconds);
}

/// Everything from the oldest that was not acknowledged is to be sent again.
pub(super) fn go_back<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>) {
    send::forget(qp, env.scheduler);
    let tail = qp.sq.tail();
    let req = &mut qp.req;
    req.next = req.una;
    req.cursor = tail;
    req.halted = None;
    req.waiting = false;
    req.unasked = 0;
    req.reads = 0;
    req.ack_deadline = None;
}

/// Something was lost: goes back, unless it did so too often without progress.
///
/// # References
/// IBTA 9.7.6.1, 9.9.2 (the retry counter)
pub(super) fn retry<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>) {
    if qp.req.retries >= qp.attr.retry_cnt {
        fail::fail_oldest(qp, env, Status::RetryExceeded);
        return;
    }
    qp.req.retries += 1;
    let least = u64::from(qp.send_mtu()) + PACKET_COST;
    qp.req.allowance = (part(&qp.req, env.config) / 2).max(least);
    go_back(qp, env);
}

/// The peer has no receive for the packet at `una`: it is sent again later.
///
/// # References
/// IBTA 9.7.5.2.8 (RNR NAK), 9.9.2 (the RNR retry counter; 7 is for ever)
pub(super) fn not_ready<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, nanoseconds: u64) {
    if qp.req.rnr_until.is_some() {
        // Asked for by what was in flight behind the first one.
        return;
    }
    if qp.attr.rnr_retry != 7 {
        if qp.req.rnr_retries >= qp.attr.rnr_retry {
            fail::fail_oldest(qp, env, Status::RnrRetryExceeded);
            return;
        }
        qp.req.rnr_retries += 1;
    }
    go_back(qp, env);
    qp.req.rnr_until = Some(env.now + nanoseconds);
}

/// Its deadline has come.
pub(crate) fn expire<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>) {
    if qp.req.rnr_until.take().is_some() {
        qp.req.waiting = false;
        return;
    }
    qp.req.ack_deadline = None;
    if qp.req.una != qp.req.next && !qp.sq.is_empty() {
        retry(qp, env);
    }
}
