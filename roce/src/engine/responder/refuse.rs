//! Rejected requests: the consequences for the peer, the program and the queue pair.

use super::receive;
use crate::engine::completion::{self, recv};
use crate::engine::environment::Environment;
use crate::engine::memory::{Memory, Sink};
use crate::engine::qp::{Message, Qp};
use crate::engine::types::{Completion, Event, Service, State, Status};
use crate::wire::aeth::RnrTimer;
use crate::wire::{NakCode, Psn, Syndrome};

/// The reason why a request was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No receive is posted.
    NotReady,
    /// The operation, sequence number or length of the request is invalid, or too many reads and
    /// atomics are outstanding.
    Invalid,
    /// The request's key, address range, protection domain or access right is invalid.
    Access,
    /// The key allows the access but the memory is unreachable.
    Unreachable,
    /// The message is longer than the receive's buffers.
    ReceiveTooShort,
    /// The receive's elements refer to memory that may not be written.
    ReceiveForbidden,
    /// The key that the peer named cannot be invalidated, but the message has arrived.
    NotInvalidated,
}

/// Rejects a request with the consequences for its class of error (IBTA 9.9.3). `ack_req` states
/// whether the packet requests an acknowledgement.
pub(super) fn refuse<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    refusal: Refusal,
    ack_req: bool,
) {
    let (psn, msn) = (qp.resp.expected, qp.resp.msn);
    // A receive in use completes with `status`. `event` reports errors that no receive can report.
    let (code, status, event) = match refusal {
        Refusal::NotReady => {
            // Class B. IBTA 9.7.5.2: all later packets are dropped until this packet is repeated.
            qp.resp.waiting = true;
            let timer = RnrTimer(qp.attr.min_rnr_timer);
            qp.resp.responses.refuse(psn, Syndrome::rnr_nak(timer), msn);
            return;
        }
        Refusal::Invalid => {
            (NakCode::INVALID_REQUEST, Status::RemoteInvalidRequest, Some(Event::QpRequestError(qp.qpn)))
        }
        Refusal::Access => {
            (NakCode::REMOTE_ACCESS_ERROR, Status::LocalAccess, Some(Event::QpAccessError(qp.qpn)))
        }
        Refusal::Unreachable => {
            (NakCode::REMOTE_OPERATIONAL_ERROR, Status::LocalAccess, Some(Event::QpFatal(qp.qpn)))
        }
        Refusal::ReceiveTooShort => (NakCode::INVALID_REQUEST, Status::LocalLength, None),
        Refusal::ReceiveForbidden => (NakCode::REMOTE_OPERATIONAL_ERROR, Status::LocalProtection, None),
        Refusal::NotInvalidated => return fail_arrived(qp, env, ack_req),
    };
    fail(qp, env, psn, code, recv::completion(qp, status), event);
}

/// Fails the queue pair because of a message that has arrived completely but names a key that
/// cannot be invalidated.
///
/// No NAK is sent (IBTA 9.9.3, class J). As in rxe, a requested acknowledgement is sent. The peer's
/// request thus succeeds, while the receive completes in error.
fn fail_arrived<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, ack_req: bool) {
    let psn = qp.resp.expected;
    qp.resp.expected = psn.next();
    qp.resp.count_message();
    if ack_req {
        qp.resp.responses.acknowledge(psn);
    }
    recv::complete(qp, env, recv::completion(qp, Status::RemoteInvalidRequest));
    completion::fail(qp, env);
}

/// Fails the receive in use or, if none is in use, the oldest receive. Returns whether there was a
/// receive.
///
/// The consequences match a real error on the queue pair's service. On a reliable service, the
/// peer's request is rejected and the matching event is raised. The queue pair fails, except on an
/// unreliable service with [`Status::LocalLength`].
pub(crate) fn fail_next<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    status: Status,
    vendor_err: u32,
) -> bool {
    if matches!(qp.state, State::Reset | State::Err) {
        return false;
    }
    if !qp.resp.current.is_taken() && !receive::take(qp, env, qp.srq) {
        return false;
    }
    let failed = Completion { vendor_err, ..recv::completion(qp, status) };
    if matches!(qp.service, Service::Rc | Service::XrcTarget) && qp.hears_requests() {
        let (code, event) = match status {
            Status::LocalLength => (NakCode::INVALID_REQUEST, None),
            Status::RemoteInvalidRequest => (NakCode::INVALID_REQUEST, Some(Event::QpRequestError(qp.qpn))),
            Status::RemoteAccess => (NakCode::REMOTE_ACCESS_ERROR, Some(Event::QpAccessError(qp.qpn))),
            Status::LocalQpOperation => (NakCode::REMOTE_OPERATIONAL_ERROR, Some(Event::QpFatal(qp.qpn))),
            _ => (NakCode::REMOTE_OPERATIONAL_ERROR, None),
        };
        fail(qp, env, qp.resp.expected, code, failed, event);
        return true;
    }
    qp.resp.message = Message::None;
    recv::complete(qp, env, failed);
    if status != Status::LocalLength {
        completion::fail(qp, env);
    }
    true
}

/// Rejects the request, completes the receive in use, raises the event and fails the queue pair
/// (IBTA 9.9.3, classes A, C and J).
pub(super) fn fail<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    psn: Psn,
    code: NakCode,
    failed: Completion,
    event: Option<Event>,
) {
    qp.resp.responses.give_up(psn, Syndrome::nak(code), qp.resp.msn);
    recv::complete(qp, env, failed);
    if let Some(event) = event {
        env.sink.event(event);
    }
    completion::fail(qp, env);
}
