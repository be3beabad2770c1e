//! Lists of receives, for queue pairs, shared receive queues and work queues; rejected requests.
//!
//! # Safety
//! See the crate documentation. The program keeps the memory of its requests as C requires, which
//! is what [`RecvQueue::post_one`] requires.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::slice;

use verbs_core::Errno;
use verbs_core::provider::RecvQueue;
use verbs_core::types::{PostReason, RecvWr, Sge};

use crate::abi::c::{ibv_recv_wr, ibv_sge};
use crate::abi::errno;
use crate::handle::lock::{Attempt, Spin};

/// Returns the elements of a scatter/gather list.
///
/// # Safety
/// The list must have that many elements, and live as long as the result.
#[inline(always)]
pub(crate) unsafe fn sges<'a>(list: *const ibv_sge, count: c_int) -> &'a [Sge] {
    if count <= 0 || list.is_null() {
        return &[];
    }
    // SAFETY: guaranteed by the caller; both types have the same layout.
    unsafe { slice::from_raw_parts(list.cast(), count as usize) }
}

/// Returns whether a pointer and a count form a valid list of elements.
#[inline(always)]
pub(crate) fn is_list(list: *const ibv_sge, count: c_int) -> bool {
    count == 0 || (count > 0 && !list.is_null())
}

/// Stores the address of the rejected request, logs the reason, and returns its errno.
///
/// # Safety
/// `bad_wr` must be null or point to a pointer.
#[cold]
#[inline(never)]
pub(crate) unsafe fn stop<W>(
    wr: *mut W,
    bad_wr: *mut *mut W,
    verb: &'static str,
    reason: PostReason,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { stop_with(wr, bad_wr, verb, reason, reason.errno()) }
}

/// Like [`stop`], but returns the given errno instead of the reason's errno.
///
/// # Safety
/// Same as [`stop`].
#[cold]
#[inline(never)]
pub(crate) unsafe fn stop_with<W>(
    wr: *mut W,
    bad_wr: *mut *mut W,
    verb: &'static str,
    reason: PostReason,
    errno: Errno,
) -> c_int {
    if !bad_wr.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { *bad_wr = wr };
    }
    refuse_with(verb, reason, errno)
}

/// Logs why a request was rejected and returns the reason's errno.
#[cold]
pub(crate) fn refuse(verb: &'static str, reason: PostReason) -> c_int {
    refuse_with(verb, reason, reason.errno())
}

/// Like [`refuse`], but returns the given errno instead of the reason's errno.
#[cold]
pub(crate) fn refuse_with(verb: &'static str, reason: PostReason, errno: Errno) -> c_int {
    errno::log(&format_args!("{verb}: {reason}"));
    errno::refuse(errno)
}

/// The reason for rejecting a request that no provider could read.
pub(crate) const UNREADABLE: PostReason = PostReason::Doorbell(Errno::INVAL);

/// Posts a list of receives to a queue whose lock this thread holds, and releases the lock.
///
/// Most lists have one receive, so the loop over longer lists is out of line.
///
/// # Safety
/// Each request must meet the requirements of `ibv_post_recv(3)`; the list must not be empty;
/// `bad_wr` must be null or point to a pointer.
#[inline(always)]
unsafe fn recv_list<Q: RecvQueue>(
    queue: &Spin<Q>,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: this thread holds the lock until `unlock`. The program does not change its list
    // during the call, and keeps its promise for the request.
    unsafe {
        let rq = queue.get();
        match recv_one(rq, &*wr) {
            Ok(()) if (*wr).next.is_null() => {
                rq.ring();
                queue.unlock();
                0
            }
            first => recv_more(queue, first, wr, bad_wr),
        }
    }
}

/// Posts the remaining receives of a list, rings the doorbell, and releases the lock. `first` is
/// the result of posting the first receive.
///
/// # Safety
/// Same as [`recv_list`].
#[inline(never)]
unsafe fn recv_more<Q: RecvQueue>(
    queue: &Spin<Q>,
    first: Result<(), PostReason>,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as in `recv_list`.
    unsafe {
        let rq = queue.get();
        let (mut bad, mut result) = (wr, first);
        while result.is_ok() {
            bad = (*bad).next;
            if bad.is_null() {
                break;
            }
            result = recv_one(rq, &*bad);
        }
        // If the first receive failed, the queue has nothing new for the device.
        if bad != wr {
            rq.ring();
        }
        queue.unlock();
        result.map_or_else(|reason| stop(bad, bad_wr, "post_recv", reason), |()| 0)
    }
}

/// Posts a C receive. For a list with one element, the compiler knows the length.
///
/// # Safety
/// The request must meet the requirements of `ibv_post_recv(3)`.
#[inline(always)]
unsafe fn recv_one<Q: RecvQueue>(rq: &mut Q, wr: &ibv_recv_wr) -> Result<(), PostReason> {
    let wr_id = wr.wr_id;
    if wr.num_sge == 1 && !wr.sg_list.is_null() {
        // SAFETY: the list has one element; both types have the same layout.
        let sge = unsafe { slice::from_ref(&*wr.sg_list.cast::<Sge>()) };
        // SAFETY: guaranteed by the caller.
        return unsafe { rq.post_one(&RecvWr { wr_id, sge }) };
    }
    // SAFETY: as above.
    unsafe { recv_any(rq, wr) }
}

/// Posts a receive with a scatter list of any length.
///
/// # Safety
/// The request must meet the requirements of `ibv_post_recv(3)`.
#[inline(never)]
unsafe fn recv_any<Q: RecvQueue>(rq: &mut Q, wr: &ibv_recv_wr) -> Result<(), PostReason> {
    if !is_list(wr.sg_list, wr.num_sge) {
        return Err(UNREADABLE);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { rq.post_one(&RecvWr { wr_id: wr.wr_id, sge: sges(wr.sg_list, wr.num_sge) }) }
}

/// Acquires a queue's lock and posts a list of receives to the queue.
///
/// # Safety
/// Same as [`recv_list`].
#[inline(always)]
pub(crate) unsafe fn recv_locked<Q: RecvQueue>(
    queue: &Spin<Q>,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    if wr.is_null() {
        return 0;
    }
    // SAFETY: guaranteed by the caller. This is not a closure, which the compiler might keep out of
    // line.
    unsafe {
        let attempt = queue.attempt();
        if !attempt.has_lock() {
            return recv_waiting(queue, wr, bad_wr, attempt);
        }
        recv_list(queue, wr, bad_wr)
    }
}

/// Same as [`recv_locked`], called if another thread holds the lock.
///
/// # Safety
/// Same as [`recv_list`].
#[cold]
#[inline(never)]
unsafe extern "C" fn recv_waiting<Q: RecvQueue>(
    queue: &Spin<Q>,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    attempt: Attempt,
) -> c_int {
    // SAFETY: as in `recv_locked`.
    unsafe {
        if !queue.wait(attempt) {
            return stop(wr, bad_wr, "post_recv", PostReason::Doorbell(queue.why_not()));
        }
        recv_list(queue, wr, bad_wr)
    }
}
