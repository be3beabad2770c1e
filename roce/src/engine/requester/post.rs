//! [`post`]: checks a work request and puts it into the send queue.

use crate::engine::completion::send;
use crate::engine::environment::Environment;
use crate::engine::memory::{Memory, Sink};
use crate::engine::qp::Qp;
use crate::engine::scatter;
use crate::engine::types::{Payload, PostRefused, SendOp, SendWr, Service, State, Status};

/// The maximum length of a message, in bytes (IBTA 9.4.1, 9.4.3, 9.4.4).
const MAX_MESSAGE: u64 = 1 << 31;

/// Posts a send work request.
///
/// # References
/// IBTA 10.8.2, 11.4.1.1 (immediate errors), 10.3.1 (states that accept work requests)
#[inline]
pub(crate) fn post<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    wr: &SendWr<'_>,
) -> Result<(), PostRefused> {
    if matches!(qp.state, State::Reset | State::Init | State::Rtr) {
        return Err(PostRefused::InvalidState);
    }
    if !supports(qp.service, &wr.op) {
        return Err(PostRefused::UnsupportedOp);
    }
    let length = match wr.payload {
        Payload::Sges(sges) if sges.len() > qp.sq.max_sge() => return Err(PostRefused::TooManySge),
        Payload::Sges(sges) => scatter::length(sges),
        Payload::Inline(_) if !takes_inline(&wr.op) => return Err(PostRefused::UnsupportedOp),
        Payload::Inline(bytes) if bytes.len() > qp.sq.max_inline() => return Err(PostRefused::InlineTooLong),
        Payload::Inline(bytes) => bytes.len() as u64,
    };
    // IBTA C10-93.1.1 lets a datagram longer than the path MTU complete successfully without being
    // sent. The kernel's rxe does so and hides the program's mistake. Like other drivers (hfi1,
    // `hfi1_check_send_wqe`), this engine refuses to post such a datagram.
    let longest = if qp.service == Service::Ud { u64::from(qp.send_mtu()) } else { MAX_MESSAGE };
    if length > longest {
        return Err(PostRefused::MessageTooLong);
    }
    if let SendOp::CompareSwap { addr, .. } | SendOp::FetchAdd { addr, .. } = wr.op {
        if length != 8 {
            return Err(PostRefused::AtomicLength);
        }
        if addr % 8 != 0 {
            return Err(PostRefused::AtomicMisaligned);
        }
    }
    let length = if is_placement(&wr.op) { check_placement(&wr.op, length)? } else { length };
    if qp.sq.is_full() {
        return Err(PostRefused::QueueFull);
    }
    let signaled = wr.flags.signaled || qp.sq_sig_all;
    qp.sq.push(wr, length as u32, signaled);
    if matches!(qp.state, State::Err | State::Sqe) {
        // IBTA 10.3.1.6, 10.3.1.7: the send completes with the flush error.
        send::complete_oldest(qp, env, Status::Flushed);
        send::forget_positions(qp);
    }
    Ok(())
}

/// Returns whether the operation is a flush or an atomic write.
fn is_placement(op: &SendOp) -> bool {
    matches!(op, SendOp::Flush { .. } | SendOp::AtomicWrite { .. })
}

/// Checks a flush or an atomic write and returns the length of its message. `length`, the number of
/// bytes in local memory, must be 0.
///
/// # References
/// IBTA A19.4.1 (placement types, selectivity), A19.5.1 (alignment)
fn check_placement(op: &SendOp, length: u64) -> Result<u64, PostRefused> {
    if length != 0 {
        return Err(PostRefused::AtomicLength);
    }
    match op {
        SendOp::Flush { feth, .. } if !feth.is_valid() => Err(PostRefused::FlushKind),
        SendOp::AtomicWrite { addr, .. } if addr % 8 != 0 => Err(PostRefused::AtomicMisaligned),
        SendOp::AtomicWrite { data, .. } => Ok(data.len() as u64),
        _ => Ok(0),
    }
}

/// Returns whether `service` supports the operation: IBTA table 37, 10.6.7 (windows).
fn supports(service: Service, op: &SendOp) -> bool {
    match op {
        SendOp::Datagram { .. } => service == Service::Ud,
        SendOp::Faulty { .. } => service != Service::XrcTarget,
        SendOp::Send { .. } | SendOp::Write { .. } | SendOp::Bind { .. } | SendOp::LocalInvalidate { .. } => {
            matches!(service, Service::Rc | Service::Uc | Service::XrcInitiator)
        }
        SendOp::SendInvalidate { .. }
        | SendOp::Read { .. }
        | SendOp::CompareSwap { .. }
        | SendOp::FetchAdd { .. }
        | SendOp::Flush { .. }
        | SendOp::AtomicWrite { .. } => matches!(service, Service::Rc | Service::XrcInitiator),
    }
}

/// Returns whether the operation sends bytes from local memory. Such bytes may also be inline.
fn takes_inline(op: &SendOp) -> bool {
    !matches!(
        op,
        SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::Faulty { .. }
    ) && !is_placement(op)
}
