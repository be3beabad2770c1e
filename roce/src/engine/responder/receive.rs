//! Takes a receive for a message from a queue and fills it. `completion::recv` completes it.
//!
//! | | a receive from the queue pair's own queue | a receive from a shared queue |
//! |---|---|---|
//! | [`take`] | it stays at the front | it leaves the queue, is retired and copied |
//! | [`take_for_send`] | as above | as above, or memory chosen by the sink |
//! | `recv::complete` | it leaves the queue, is retired and completes | it completes |

use crate::engine::environment::Environment;
use crate::engine::memory::{FirstPacket, Memory, Sink};
use crate::engine::qp::{Qp, TakenRecv};
use crate::engine::queue::Srq;
use crate::engine::scatter::{self, SgeError};
use crate::engine::table::Table;
use crate::engine::types::{Event, SrqId};

/// Returns whether [`take`] would succeed.
#[inline]
pub(crate) fn available(qp: &Qp, srqs: &Table<Srq>, srq: Option<SrqId>) -> bool {
    qp.resp.current.taken.is_some()
        || match srq {
            None => qp.rq.len() > 0,
            Some(srq) => srqs.get(srq.0).is_some_and(|srq| srq.rq.len() > 0),
        }
}

/// Takes memory for the send that begins with this packet. For a shared queue with `matching`, the
/// sink may choose the memory. Otherwise, the send takes the oldest receive. Returns false if
/// neither exists.
#[inline]
#[must_use]
pub(crate) fn take_for_send<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    srq: Option<SrqId>,
    payload: &[u8],
    whole: bool,
) -> bool {
    if let Some(id) = srq
        && qp.resp.current.taken.is_none()
        && let Some(queue) = env.srqs.get(id.0).filter(|queue| queue.matching)
    {
        let first = FirstPacket { qpn: qp.qpn, srq: id, payload, whole, posted: queue.rq.len() > 0 };
        let (pd, cq, is_counted) = (queue.pd, queue.cq.unwrap_or(qp.recv_cq), queue.xrc_domain.is_some());
        if let Some(sges) = &mut qp.resp.current.sges
            && let Some(matched) = env.sink.match_message(&first, &mut sges[..])
        {
            let count = matched.sges.min(sges.len());
            qp.resp.current.taken = Some(TakenRecv {
                wr_id: matched.wr_id,
                pd,
                cq,
                copied: Some(count),
                srq: Some(id),
                is_counted,
                length: scatter::length(&sges[..count]),
                received: 0,
                header: matched.header,
            });
            if let Some(queue) = env.srqs.get_mut(id.0).filter(|_| is_counted) {
                queue.taken += 1;
            }
            return true;
        }
    }
    take(qp, env, srq)
}

/// Takes the oldest receive for a new message. Returns false if none is posted. If an abandoned
/// message left a receive, this receive is used instead.
#[inline]
#[must_use]
pub(crate) fn take<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    srq: Option<SrqId>,
) -> bool {
    let current = &mut qp.resp.current;
    if let Some(taken) = &mut current.taken {
        taken.received = 0;
        return true;
    }
    let Some(id) = srq else {
        let Some(posted) = qp.rq.front() else { return false };
        let (wr_id, length) = (posted.wr_id, posted.length);
        current.taken = Some(TakenRecv {
            wr_id,
            pd: qp.pd,
            cq: qp.recv_cq,
            copied: None,
            srq: None,
            is_counted: false,
            length,
            received: 0,
            header: 0,
        });
        return true;
    };
    let Some(srq) = env.srqs.get_mut(id.0) else { return false };
    let Some(posted) = srq.rq.front() else { return false };
    let Some(copy) = current.sges.as_mut().and_then(|copy| copy.get_mut(..posted.sges.len())) else {
        return false;
    };
    copy.copy_from_slice(posted.sges);
    current.taken = Some(TakenRecv {
        wr_id: posted.wr_id,
        pd: srq.pd,
        cq: srq.cq.unwrap_or(qp.recv_cq),
        copied: Some(posted.sges.len()),
        srq: Some(id),
        is_counted: srq.xrc_domain.is_some(),
        length: posted.length,
        received: 0,
        header: 0,
    });
    srq.taken += u32::from(srq.xrc_domain.is_some());
    let limit_reached = srq.pop();
    env.sink.retire_srq(id, 1);
    if limit_reached {
        env.sink.event(Event::SrqLimitReached(id));
    }
    true
}

/// Appends message bytes to the receive.
#[inline]
pub(crate) fn put<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    bytes: &[u8],
) -> Result<(), SgeError> {
    let current = &mut qp.resp.current;
    let Some(taken) = &mut current.taken else { return Err(SgeError::Length) };
    let end = taken.end(bytes.len())?;
    let sges = match taken.copied {
        Some(count) => current.sges.as_ref().and_then(|copy| copy.get(..count)).unwrap_or_default(),
        None => qp.rq.front().map_or(&[][..], |posted| posted.sges),
    };
    scatter::scatter(env.memory_regions, env.memory, taken.pd, sges, taken.received, bytes)?;
    taken.received = end;
    Ok(())
}

/// Counts bytes as received without writing them to the elements.
pub(crate) fn count(qp: &mut Qp, len: usize) -> Result<(), SgeError> {
    let Some(taken) = &mut qp.resp.current.taken else { return Err(SgeError::Length) };
    taken.received = taken.end(len)?;
    Ok(())
}
