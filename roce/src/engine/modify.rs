//! [`modify`]: changes a queue pair's attributes and state.

use super::environment::Environment;
use super::memory::{Memory, Sink};
use super::qp::Qp;
use super::types::{Attr, AttrChange, Refused, State};
use super::{completion, requester, responder};

/// Changes a queue pair's attributes, then its state.
pub(crate) fn modify<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    change: &AttrChange,
) -> Result<(), Refused> {
    let (from, to) = (qp.state, change.state.unwrap_or(qp.state));
    if !exists(from, to) {
        return Err(Refused::Transition { from, to });
    }
    if to == State::Reset {
        requester::reset(qp, env);
        responder::reset(qp, env.srqs);
        qp.attr = Attr::default();
        qp.peer_port = None;
        qp.established = false;
        qp.state = to;
        return Ok(());
    }
    apply(qp, change);
    if to == State::Err {
        completion::fail(qp, env);
        return Ok(());
    }
    qp.state = to;
    match (from, to) {
        (State::Rts, State::Sqd) => requester::drain(qp, env),
        (State::Sqd | State::Sqe, State::Rts) => requester::resume(qp),
        _ => {}
    }
    Ok(())
}

fn apply(qp: &mut Qp, change: &AttrChange) {
    macro_rules! take {
        ($($field:ident),*) => {$( if let Some(value) = change.$field { qp.attr.$field = value; } )*};
    }
    take!(
        path,
        dest_qpn,
        path_mtu,
        pkey,
        qkey,
        access,
        sq_psn,
        rq_psn,
        timeout,
        retry_cnt,
        rnr_retry,
        min_rnr_timer,
        max_rd_atomic,
        max_dest_rd_atomic,
        sq_drained_event
    );
    if change.path.is_some() {
        qp.peer_port = None;
    }
    if change.max_dest_rd_atomic.is_some() {
        responder::set_depth(qp);
    }
    if let Some(psn) = change.sq_psn {
        requester::set_psn(qp, psn);
    }
    if let Some(psn) = change.rq_psn {
        responder::set_psn(qp, psn);
    }
}

/// Returns whether a state transition exists (IBTA figure 124). RESET and ERR can be reached from
/// every state.
fn exists(from: State, to: State) -> bool {
    use State::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    matches!(
        (from, to),
        (_, Reset | Err)
            | (Reset | Init, Init)
            | (Init, Rtr)
            | (Rtr | Rts | Sqd | Sqe, Rts)
            | (Rts | Sqd, Sqd)
    )
}
