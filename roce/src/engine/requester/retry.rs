//! Timers, retries, and a queue pair's share of the window.
//!
//! The window belongs to the engine and represents its peers' receive buffers. A queue pair uses at
//! most three quarters of the window, so a queue pair with a silent peer leaves space for others. A
//! peer that receives from many engines has less buffer space for each. Therefore, a queue pair
//! halves its share after a loss and increases it by one packet for each acknowledged share
//! (additive increase, multiplicative decrease, as in TCP). Without losses, the share does not
//! limit the queue pair.

use super::fail;
use crate::engine::completion::send;
use crate::engine::environment::Environment;
use crate::engine::memory::{Memory, Sink};
use crate::engine::qp::{Qp, SendState};
use crate::engine::queue::Wqe;
use crate::engine::scheduler::PACKET_COST;
use crate::engine::types::{Config, Status, Time};

/// The minimum time-out, in nanoseconds. On a busy machine, a peer process may pause briefly
/// without any packet loss. RDMA devices have such a minimum, too.
const SHORTEST_TIMEOUT: u64 = 1_000_000;

/// Returns the cost, in bytes of the window, of a work request's packets from `from` up to but not
/// including `to`, counted from its first packet. For reads, it is the cost of the response
/// packets.
#[inline]
pub(super) fn cost(wqe: &Wqe, mtu: u32, from: u32, to: u32) -> u64 {
    let bytes = |packets: u32| u64::from(packets.saturating_mul(mtu).min(wqe.length));
    bytes(to).saturating_sub(bytes(from)) + u64::from(to.saturating_sub(from)) * PACKET_COST
}

/// Returns the largest share of the window that a queue pair may have.
fn largest_part(config: &Config) -> u64 {
    let window = u64::from(config.window_bytes);
    window - window / 4
}

/// Returns the queue pair's current share of the window.
#[inline]
pub(super) fn part(req: &SendState, config: &Config) -> u64 {
    req.allowance.min(largest_part(config))
}

/// Records that a packet with this cost has been sent.
#[inline]
pub(super) fn sent<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, wqe: &Wqe, cost: u64) {
    qp.req.flight += cost;
    env.scheduler.sent(cost);
    qp.req.reads += u32::from(wqe.wants_response());
    if qp.req.ack_deadline.is_none() {
        arm(qp, env.now);
    }
}

/// Records that packets with this cost were acknowledged: the timer restarts, and the retry
/// counters are reset.
#[inline]
pub(super) fn progress<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, cost: u64) {
    let packet = u64::from(qp.send_mtu()) + PACKET_COST;
    let req = &mut qp.req;
    // After the requester went back, packets acknowledged before being resent are not in flight.
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

/// Starts the acknowledgement timer, whose duration [`Attr::timeout`](crate::engine::Attr::timeout)
/// documents.
///
/// The first retry comes as early as IBTA allows, in case a packet was lost. Later retries come as
/// late as it allows, in case the peer is slow.
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

/// Goes back to the oldest unacknowledged packet, from which sending then continues.
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

/// Retries after a loss, or fails the queue pair after too many retries without progress.
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

/// Pauses for `nanoseconds` because the peer has no receive for the packet at `una`, then resends
/// this packet.
///
/// # References
/// IBTA 9.7.5.2.8 (RNR NAK), 9.9.2 (the RNR retry counter; 7 is unlimited)
pub(super) fn not_ready<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, nanoseconds: u64) {
    if qp.req.rnr_until.is_some() {
        // The peer rejected another packet in flight, sent after the first rejected packet.
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

/// Handles the expiry of the queue pair's timer.
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
