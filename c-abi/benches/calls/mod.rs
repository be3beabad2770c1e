//! The measured calls through the static API and through C, made as by the inline functions in
//! verbs.h.
//!
//! # Safety
//! Devices access no memory that work requests name, except inline data. Objects are live.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;
use std::hint::black_box;

use ibverbs_c::c::*;
use verbs_core::provider::{Completion as _, CqOps as _, RecvQueue as _, SendQueue as _, WrBatch};
use verbs_core::types::{SendFlags, Sge};

use crate::world::{INLINE_LEN, Measured, REMOTE, RKEY, World};

#[inline(always)]
pub(crate) fn post_send<P: Measured>(w: &mut World<P>, kind: usize, count: usize) {
    // SAFETY: the devices access no memory of work requests; inline data is static.
    black_box(unsafe { w.sq.post_send(&w.sends[kind][..count]) }).unwrap();
}

#[inline(always)]
pub(crate) fn post_recv<P: Measured>(w: &mut World<P>, count: usize) {
    // SAFETY: the devices access no memory of work requests.
    black_box(unsafe { w.rq.post_recv(&w.recvs[..count]) }).unwrap();
}

#[inline(always)]
pub(crate) fn poll<P: Measured>(w: &mut World<P>, count: usize) {
    w.polled = w.cq.poll(&mut w.wcs[..count]);
}

/// Builds and posts a batch of requests.
#[inline(always)]
pub(crate) fn batch<P: Measured>(
    w: &mut World<P>,
    count: u64,
    request: impl Fn(&mut WrBatch<'_, P::Sq>, Sge, &[u8]),
) {
    let (first, sge, data) = (w.wr_id, w.sge, w.data);
    let mut batch = WrBatch::start(&mut w.sq);
    batch.wr_flags = SendFlags::SIGNALED;
    for wr_id in first..first + count {
        batch.wr_id = wr_id;
        request(&mut batch, sge, data);
    }
    black_box(batch.complete().unwrap());
}

/// Polls completions one by one and reads the `wr_id`, the status and four other fields of each.
#[inline(always)]
pub(crate) fn lend<P: Measured>(w: &mut World<P>, count: usize) {
    for _ in 0..count {
        let completion = w.cq.next().expect("it was completed");
        black_box(completion.wr_id());
        black_box(completion.status());
        black_box(completion.opcode());
        black_box(completion.byte_len());
        black_box(completion.wc_flags());
        black_box(completion.qp_num());
    }
    w.cq.end_poll();
}

/// Calls a function pointer from a table without checking for null, as verbs.h does.
macro_rules! call {
    ($function:expr, $($argument:expr),*) => {
        ($function.unwrap_unchecked())($($argument),*)
    };
}

#[inline(always)]
pub(crate) unsafe fn c_post_send<P: Measured>(w: &mut World<P>, list: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut bad = MaybeUninit::uninit();
        let result = call!((*(*w.qp).context).ops.post_send, w.qp, w.c_sends[list], bad.as_mut_ptr());
        assert!(result == 0);
    }
}

#[inline(always)]
pub(crate) unsafe fn c_post_recv<P: Measured>(w: &mut World<P>, list: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut bad = MaybeUninit::uninit();
        let result = call!((*(*w.qp).context).ops.post_recv, w.qp, w.c_recvs[list], bad.as_mut_ptr());
        assert!(result == 0);
    }
}

#[inline(always)]
pub(crate) unsafe fn c_post_srq_recv<P: Measured>(srq: *mut ibv_srq, w: &World<P>, list: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut bad = MaybeUninit::uninit();
        let result = call!((*(*srq).context).ops.post_srq_recv, srq, w.c_recvs[list], bad.as_mut_ptr());
        assert!(result == 0);
    }
}

#[inline(always)]
pub(crate) unsafe fn c_poll<P: Measured>(w: &mut World<P>, count: i32) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let cq: *mut ibv_cq = w.c_cq.cast();
        let polled = call!((*(*cq).context).ops.poll_cq, cq, count, w.c_wcs.as_mut_ptr());
        w.polled = polled as usize;
    }
}

#[inline(always)]
pub(crate) unsafe fn c_batch<P: Measured>(
    w: &mut World<P>,
    count: u64,
    request: unsafe fn(*mut ibv_qp_ex),
    memory: unsafe fn(*mut ibv_qp_ex, &World<P>),
) {
    // SAFETY: guaranteed by the caller; the queue pair was created with these operations.
    unsafe {
        let qp: *mut ibv_qp_ex = w.qp.cast();
        call!((*qp).wr_start, qp);
        for wr_id in w.wr_id..w.wr_id + count {
            (*qp).wr_id = wr_id;
            (*qp).wr_flags = IBV_SEND_SIGNALED;
            request(qp);
            memory(qp, w);
        }
        let result = call!((*qp).wr_complete, qp);
        assert!(result == 0);
    }
}

#[inline(always)]
pub(crate) unsafe fn c_wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: guaranteed by the caller.
    unsafe { call!((*qp).wr_send, qp) }
}

#[inline(always)]
pub(crate) unsafe fn c_wr_write(qp: *mut ibv_qp_ex) {
    // SAFETY: guaranteed by the caller.
    unsafe { call!((*qp).wr_rdma_write, qp, RKEY, REMOTE) }
}

#[inline(always)]
pub(crate) unsafe fn c_set_sge<P: Measured>(qp: *mut ibv_qp_ex, w: &World<P>) {
    // SAFETY: guaranteed by the caller.
    unsafe { call!((*qp).wr_set_sge, qp, (*w.c_sge).lkey, (*w.c_sge).addr, (*w.c_sge).length) }
}

#[inline(always)]
pub(crate) unsafe fn c_set_inline<P: Measured>(qp: *mut ibv_qp_ex, w: &World<P>) {
    // SAFETY: guaranteed by the caller.
    unsafe { call!((*qp).wr_set_inline_data, qp, w.data.as_ptr().cast_mut().cast(), INLINE_LEN) }
}

#[inline(always)]
pub(crate) unsafe fn c_lend<P: Measured>(w: &mut World<P>, count: u32) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let cq = w.c_cq;
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        let mut result = call!((*cq).start_poll, cq, &raw mut attr);
        for left in (0..count).rev() {
            assert!(result == 0);
            black_box((*cq).wr_id);
            black_box((*cq).status);
            black_box(call!((*cq).read_opcode, cq));
            black_box(call!((*cq).read_byte_len, cq));
            black_box(call!((*cq).read_wc_flags, cq));
            black_box(call!((*cq).read_qp_num, cq));
            if left > 0 {
                result = call!((*cq).next_poll, cq);
            }
        }
        call!((*cq).end_poll, cq);
    }
}
