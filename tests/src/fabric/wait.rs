//! Waiting with a deadline for completions, and what they may be.

use std::time::Instant;

use verbs::{Buf, Completed, Cq, Pd, Provider, Qp, QpState, Wc, WcFlags, WcOpcode, WcStatus};

use super::{PATIENCE, is_rxe, rxe_is_before};
use crate::runner::{CaseResult, fail};

/// Polls until `count` completions are there.
///
/// # Errors
/// They are not, in time.
pub fn wait<P: Provider>(cq: &mut Cq<P>, count: usize) -> CaseResult<Vec<Wc>> {
    let deadline = Instant::now() + PATIENCE;
    let mut wcs = Vec::with_capacity(count);
    loop {
        let mut completions = cq.poll();
        while wcs.len() < count
            && let Some(mut completion) = completions.next()
        {
            wcs.push(completion.to_wc());
        }
        drop(completions);
        if wcs.len() == count {
            return Ok(wcs);
        }
        if Instant::now() > deadline {
            return fail(format_args!("{} of {count} completions after {PATIENCE:?}: {wcs:?}", wcs.len()));
        }
        std::thread::yield_now();
    }
}

/// Polls until one completion is there that ended well, and returns it with its memory.
///
/// # Errors
/// It is not, in time, or it failed.
pub fn next_completed<P: Provider>(cq: &mut Cq<P>) -> CaseResult<Completed> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(completed) = cq.poll_one() {
            return Ok(completed.ok()?);
        }
        if Instant::now() > deadline {
            return fail(format_args!("no completion after {PATIENCE:?}"));
        }
        std::thread::yield_now();
    }
}

/// Polls until one completion is there.
///
/// # Errors
/// It is not, in time.
pub fn wait_one<P: Provider>(cq: &mut Cq<P>) -> CaseResult<Wc> {
    Ok(wait(cq, 1)?[0])
}

/// Polls until one completion is there that ended well, and is that of this request.
///
/// # Errors
/// It is not.
pub fn wait_for<P: Provider>(cq: &mut Cq<P>, wr_id: u64, opcode: WcOpcode) -> CaseResult<Wc> {
    let wc = wait_one(cq)?;
    if (wc.wr_id, wc.status, wc.opcode) == (wr_id, WcStatus::SUCCESS, opcode) {
        Ok(wc)
    } else {
        fail(format_args!("{opcode} {wr_id} was expected, not {wc:?}"))
    }
}

/// Polls until one completion is there, and wants it to be that of this request, ended like this.
///
/// # Errors
/// It is not.
pub fn wait_status<P: Provider>(cq: &mut Cq<P>, wr_id: u64, status: WcStatus) -> CaseResult {
    let wc = wait_one(cq)?;
    if (wc.wr_id, wc.status) == (wr_id, status) {
        Ok(())
    } else {
        fail(format_args!("{wr_id} should end with {status}, not {wc:?}"))
    }
}

/// Returns whether a request with a wrong local key ends with this status.
///
/// The specification says protection error. rxe says operation error for a key that names no region
/// (Linux `drivers/infiniband/sw/rxe/rxe_req.c`: every error but EFAULT), and newer ones flush the
/// request right away.
///
/// # Errors
/// There is no device.
pub fn is_local_key_error(status: WcStatus) -> CaseResult<bool> {
    let of_rxe = [WcStatus::LOC_QP_OP_ERR, WcStatus::WR_FLUSH_ERR];
    Ok(status == WcStatus::LOC_PROT_ERR || (of_rxe.contains(&status) && is_rxe()?))
}

/// Returns whether these are the statuses of a sender and a receiver whose message does not fit
/// into the receive.
///
/// The specification says invalid request and length error. rxe says operation error on either
/// side.
///
/// # Errors
/// There is no device.
pub fn is_length_error(sender: WcStatus, receiver: WcStatus) -> CaseResult<bool> {
    let by_the_book = (sender, receiver) == (WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_LEN_ERR);
    let as_rxe = [WcStatus::REM_INV_REQ_ERR, WcStatus::REM_OP_ERR].contains(&sender)
        && [WcStatus::LOC_LEN_ERR, WcStatus::LOC_QP_OP_ERR].contains(&receiver);
    Ok(by_the_book || (as_rxe && is_rxe()?))
}

/// Wants the completion to be that of this request, with this status. `of_rxe` are what rxe reports
/// instead.
///
/// # Errors
/// It is another one, or there is no device.
pub fn ended(wc: &Wc, wr_id: u64, status: WcStatus, of_rxe: &[WcStatus]) -> CaseResult {
    if wc.wr_id == wr_id && (wc.status == status || (of_rxe.contains(&wc.status) && is_rxe()?)) {
        Ok(())
    } else {
        fail(format_args!("{wr_id} should end with {status}, not {wc:?}"))
    }
}

/// Wants the completion to be that of this request, refused because the peer's queue pair lacks the
/// right.
///
/// # Errors
/// It is another one, or there is no device.
pub fn wants_right(wc: &Wc, wr_id: u64) -> CaseResult {
    // IBTA lets a responder choose between an access error and an invalid request. rxe of Linux
    // 5.10 does not answer.
    let of_rxe = [WcStatus::REM_INV_REQ_ERR, WcStatus::RETRY_EXC_ERR];
    let of_rxe = if rxe_is_before(6, 1)? { &of_rxe } else { &of_rxe[..1] };
    ended(wc, wr_id, WcStatus::REM_ACCESS_ERR, of_rxe)
}

/// The statuses that rxe may report where only the failure of a request is certain: all except
/// success.
pub const ANY_ERROR: &[WcStatus] = WcStatus::NAMED.split_at(1).1;

/// Polls until one completion is there, and wants it to be that of this request, ended by a wrong
/// local key.
///
/// # Errors
/// It is not.
pub fn wait_local_key_error<P: Provider>(cq: &mut Cq<P>, wr_id: u64) -> CaseResult {
    let wc = wait_one(cq)?;
    if wc.wr_id == wr_id && is_local_key_error(wc.status)? {
        Ok(())
    } else {
        fail(format_args!("{wr_id} should end by its local key, not {wc:?}"))
    }
}

/// Polls until one completion is there, and wants it to be that of this request, refused by the
/// peer for its key or rights.
///
/// # Errors
/// It is not.
pub fn wait_remote_access_error<P: Provider>(cq: &mut Cq<P>, wr_id: u64) -> CaseResult {
    // Before Linux 5.11 rxe's responder sends no NAK unless a receive was taken, so the requester
    // waits in vain.
    let status = if rxe_is_before(5, 11)? { WcStatus::RETRY_EXC_ERR } else { WcStatus::REM_ACCESS_ERR };
    wait_status(cq, wr_id, status)
}

/// Returns whether the queue has no completion to poll.
pub fn is_empty<P: Provider>(cq: &mut Cq<P>) -> bool {
    cq.poll().next().is_none()
}

/// The immediate data of a completion that has some.
pub fn imm(wc: &Wc) -> Option<u32> {
    wc.wc_flags.contains(WcFlags::WITH_IMM).then_some(wc.imm_data)
}

/// Bytes that no other seed has, and that no shift of themselves is.
pub fn pattern(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 24) as u8
        })
        .collect()
}

/// A buffer that holds the pattern.
///
/// # Errors
/// Any error of allocating the buffer.
pub fn filled<P: Provider>(pd: &Pd<P>, seed: u32, len: usize) -> CaseResult<Buf> {
    let mut buf = pd.alloc_buf(len)?;
    buf.copy_from_slice(&pattern(seed, len));
    Ok(buf)
}

/// Checks that a failure has left its queue pair in the error state.
///
/// rxe tells of a failure first and changes the state then (`rxe_qp_error` follows the completion
/// in both halves of 6.1), so that the check waits there. Other devices do both at once.
///
/// # Errors
/// It is in another state. Any error of the query.
pub fn in_error<S: verbs::state::State, P: Provider>(qp: &Qp<S, P>) -> CaseResult {
    let mut state = qp.state()?;
    if is_rxe()? && state != QpState::ERR {
        eventually("a failed queue pair is in the error state", || {
            qp.state().is_ok_and(|now| {
                state = now;
                now == QpState::ERR
            })
        })?;
    }
    if state == QpState::ERR { Ok(()) } else { fail(format_args!("not in the error state but {state:?}")) }
}

/// Asks again and again until it is so.
///
/// # Errors
/// It is not, in time.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) -> CaseResult {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() > deadline {
            return fail(format_args!("not after {PATIENCE:?}: {what}"));
        }
        std::thread::yield_now();
    }
    Ok(())
}
