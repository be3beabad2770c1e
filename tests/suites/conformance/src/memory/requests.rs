//! Requests with regions, and their results.

use verbs::{
    AccessFlags, Cause, Errno, Error, HandleError, Pd, Provider, RecvWr, SendOp, Sge, WcOpcode, WcStatus,
};
use verbs_core::ring::page_size;
use verbs_fixtures::fabric::{
    Pair, in_error, is_local_key_error, post_recv, post_send, signalled, wait_for, wait_one,
    wait_remote_access_error, wait_status,
};
use verbs_harness::runner::{CaseResult, fail, skip};

/// Returns the mask for the offset within a page, which an iova shares with its memory.
pub(super) fn in_page() -> u64 {
    page_size() as u64 - 1
}

pub(super) const LOCAL_WRITE: AccessFlags = AccessFlags::LOCAL_WRITE;
pub(super) const REMOTE_WRITE: AccessFlags = AccessFlags::REMOTE_WRITE;
pub(super) const REMOTE_READ: AccessFlags = AccessFlags::REMOTE_READ;
pub(super) const REMOTE_ATOMIC: AccessFlags = AccessFlags::REMOTE_ATOMIC;
pub(super) const ALL: AccessFlags = LOCAL_WRITE.union(REMOTE_WRITE).union(REMOTE_READ).union(REMOTE_ATOMIC);

pub(super) const fn write(remote_addr: u64, rkey: u32) -> SendOp<'static> {
    SendOp::RdmaWrite { remote_addr, rkey }
}

pub(super) const fn read(remote_addr: u64, rkey: u32) -> SendOp<'static> {
    SendOp::RdmaRead { remote_addr, rkey }
}

pub(super) const fn cas(remote_addr: u64, rkey: u32) -> SendOp<'static> {
    SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 0, swap: 1 }
}

pub(super) const fn faa(remote_addr: u64, rkey: u32) -> SendOp<'static> {
    SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 }
}

/// Checks that a peer's request succeeds.
pub(super) fn allowed<P: Provider>(pair: &mut Pair<P>, op: SendOp<'_>, sge: Sge) -> CaseResult {
    let opcode = match op {
        SendOp::RdmaRead { .. } => WcOpcode::RDMA_READ,
        SendOp::AtomicCmpAndSwp { .. } => WcOpcode::COMP_SWAP,
        SendOp::AtomicFetchAndAdd { .. } => WcOpcode::FETCH_ADD,
        _ => WcOpcode::RDMA_WRITE,
    };
    post_send(&mut pair.a.qp, &[signalled(1, op, &[sge])])?;
    wait_for(&mut pair.a.cq, 1, opcode).map(drop).map_err(|stop| stop.context(format_args!("{op:?}")))
}

/// Checks that a peer's request is rejected because of its key or rights: the requester gets an
/// error; both queue pairs enter the error state.
pub(super) fn refused<P: Provider>(pair: &mut Pair<P>, op: SendOp<'_>, sge: Sge) -> CaseResult {
    post_send(&mut pair.a.qp, &[signalled(1, op, &[sge])])?;
    wait_remote_access_error(&mut pair.a.cq, 1).map_err(|stop| stop.context(format_args!("{op:?}")))?;
    for qp in [&pair.a.qp, &pair.b.qp] {
        in_error(qp).map_err(|stop| stop.context(format_args!("{op:?}")))?;
    }
    Ok(())
}

/// Sends 8 bytes from A to B and checks the data.
pub(super) fn exchange<P: Provider>(pair: &mut Pair<P>, from: Sge, into: Sge) -> CaseResult {
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into] }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[from])])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    wait_for(&mut pair.b.cq, 2, WcOpcode::RECV).map(drop)
}

/// Checks that a receive into a scatter element fails on both sides.
pub(super) fn receive_refused<P: Provider>(pair: &mut Pair<P>, from: Sge, into: Sge) -> CaseResult {
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into] }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[from])])?;
    wait_status(&mut pair.a.cq, 1, WcStatus::REM_OP_ERR)?;
    let wc = wait_one(&mut pair.b.cq)?;
    assert!(wc.wr_id == 2 && is_local_key_error(wc.status)?, "{wc:?}");
    in_error(&pair.b.qp)?;
    Ok(())
}

/// Checks that a domain cannot be closed because the objects named in `by` use it.
pub(super) fn in_use<P: Provider>(pd: Pd<P>, by: &str) -> CaseResult<Pd<P>> {
    match pd.close() {
        Ok(()) => fail(format_args!("a domain with {by} was deallocated")),
        Err(HandleError { handle, error }) => {
            assert_eq!(error.errno, Errno::BUSY);
            assert!(matches!(error.cause, Cause::InUse { by: found } if found == by), "{error}");
            Ok(handle)
        }
    }
}

/// Skips a case whose verb the device lacks, after checking the error.
pub(super) fn lacks(error: &Error, verb: &str, why: &str) -> CaseResult {
    assert_eq!((error.verb, error.errno), (verb, Errno::OPNOTSUPP), "{error}");
    skip(why)
}
