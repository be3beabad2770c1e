//! Waits for completions with a deadline; checks completions.

use std::time::Instant;

use verbs::{Buf, Completed, Cq, Pd, Provider, Qp, QpState, Wc, WcFlags, WcOpcode, WcStatus};
use verbs_harness::runner::{CaseResult, fail};

use super::{PATIENCE, is_rxe, rxe_is_before};

/// Polls until `count` completions have arrived.
///
/// # Errors
/// Fewer completions in time.
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

/// Polls until a completion arrives, which must be successful, and returns it with its memory.
///
/// # Errors
/// A failed completion, or no completion in time.
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

/// Polls until a completion arrives.
///
/// # Errors
/// No completion in time.
pub fn wait_one<P: Provider>(cq: &mut Cq<P>) -> CaseResult<Wc> {
    Ok(wait(cq, 1)?[0])
}

/// Polls until a completion arrives, which must be this request's and successful.
///
/// # Errors
/// Another completion, or no completion in time.
pub fn wait_for<P: Provider>(cq: &mut Cq<P>, wr_id: u64, opcode: WcOpcode) -> CaseResult<Wc> {
    let wc = wait_one(cq)?;
    if (wc.wr_id, wc.status, wc.opcode) == (wr_id, WcStatus::SUCCESS, opcode) {
        Ok(wc)
    } else {
        fail(format_args!("{opcode} {wr_id} was expected, not {wc:?}"))
    }
}

/// Polls until a completion arrives, which must be this request's and have this status.
///
/// # Errors
/// Another completion, or no completion in time.
pub fn wait_status<P: Provider>(cq: &mut Cq<P>, wr_id: u64, status: WcStatus) -> CaseResult {
    let wc = wait_one(cq)?;
    if (wc.wr_id, wc.status) == (wr_id, status) {
        Ok(())
    } else {
        fail(format_args!("{wr_id} should end with {status}, not {wc:?}"))
    }
}

/// Returns whether the status is right for a request with a wrong local key.
///
/// The specification requires a protection error. rxe reports an operation error for a key without
/// a region (Linux `drivers/infiniband/sw/rxe/rxe_req.c`: for every error but EFAULT). Newer
/// versions flush the request right away.
///
/// # Errors
/// The device is missing.
pub fn is_local_key_error(status: WcStatus) -> CaseResult<bool> {
    let of_rxe = [WcStatus::LOC_QP_OP_ERR, WcStatus::WR_FLUSH_ERR];
    Ok(status == WcStatus::LOC_PROT_ERR || (of_rxe.contains(&status) && is_rxe()?))
}

/// Returns whether the statuses of sender and receiver are right for a message longer than the
/// receive.
///
/// The specification requires an invalid request error and a length error. rxe reports an operation
/// error on either side.
///
/// # Errors
/// The device is missing.
pub fn is_length_error(sender: WcStatus, receiver: WcStatus) -> CaseResult<bool> {
    let by_the_book = (sender, receiver) == (WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_LEN_ERR);
    let as_rxe = [WcStatus::REM_INV_REQ_ERR, WcStatus::REM_OP_ERR].contains(&sender)
        && [WcStatus::LOC_LEN_ERR, WcStatus::LOC_QP_OP_ERR].contains(&receiver);
    Ok(by_the_book || (as_rxe && is_rxe()?))
}

/// Checks that the completion is this request's, with this status. rxe may also report one of
/// `of_rxe`.
///
/// # Errors
/// Another completion, or the device is missing.
pub fn ended(wc: &Wc, wr_id: u64, status: WcStatus, of_rxe: &[WcStatus]) -> CaseResult {
    if wc.wr_id == wr_id && (wc.status == status || (of_rxe.contains(&wc.status) && is_rxe()?)) {
        Ok(())
    } else {
        fail(format_args!("{wr_id} should end with {status}, not {wc:?}"))
    }
}

/// Checks that the completion is this request's, rejected because the peer's queue pair lacks the
/// right.
///
/// # Errors
/// Another completion, or the device is missing.
pub fn wants_right(wc: &Wc, wr_id: u64) -> CaseResult {
    // IBTA lets a responder choose between an access error and an invalid request. rxe of Linux
    // 5.10 does not respond.
    let of_rxe = [WcStatus::REM_INV_REQ_ERR, WcStatus::RETRY_EXC_ERR];
    let of_rxe = if rxe_is_before(6, 1)? { &of_rxe } else { &of_rxe[..1] };
    ended(wc, wr_id, WcStatus::REM_ACCESS_ERR, of_rxe)
}

/// The statuses that rxe may report where the specification requires some failure: all except
/// success.
pub const ANY_ERROR: &[WcStatus] = WcStatus::NAMED.split_at(1).1;

/// Polls until a completion arrives, which must be this request's and report a wrong local key.
///
/// # Errors
/// Another completion, or no completion in time.
pub fn wait_local_key_error<P: Provider>(cq: &mut Cq<P>, wr_id: u64) -> CaseResult {
    let wc = wait_one(cq)?;
    if wc.wr_id == wr_id && is_local_key_error(wc.status)? {
        Ok(())
    } else {
        fail(format_args!("{wr_id} should end by its local key, not {wc:?}"))
    }
}

/// Polls until a completion arrives, which must be this request's, rejected by the peer for its key
/// or rights.
///
/// # Errors
/// Another completion, or no completion in time.
pub fn wait_remote_access_error<P: Provider>(cq: &mut Cq<P>, wr_id: u64) -> CaseResult {
    // Before Linux 5.11 rxe's responder sends a NAK only after taking a receive, so the requester
    // waits in vain.
    let status = if rxe_is_before(5, 11)? { WcStatus::RETRY_EXC_ERR } else { WcStatus::REM_ACCESS_ERR };
    wait_status(cq, wr_id, status)
}

/// Returns whether the queue has no completion to poll.
pub fn is_empty<P: Provider>(cq: &mut Cq<P>) -> bool {
    cq.poll().next().is_none()
}

/// Returns the immediate data of a completion, if any.
pub fn imm(wc: &Wc) -> Option<u32> {
    wc.wc_flags.contains(WcFlags::WITH_IMM).then_some(wc.imm_data)
}

/// Returns bytes that depend on the seed and differ from each shift of themselves.
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

/// Returns a buffer filled with the pattern.
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
/// rxe reports a failure before it changes the state (`rxe_qp_error` follows the completion in both
/// halves of 6.1), so the check waits there. Other devices do both at once.
///
/// # Errors
/// Another state; any error of the query.
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

/// Polls a condition until it is true.
///
/// # Errors
/// The condition stays false for too long.
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
