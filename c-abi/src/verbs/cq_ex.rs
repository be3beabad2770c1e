//! `ibv_create_cq_ex` and `ibv_cq_ex`: completions that are read in place.
//!
//! `ibv_create_cq_ex` is an inline function in `verbs.h`, which calls [`create_cq_ex`] through the
//! context's table.
//!
//! `ibv_start_poll` acquires the queue's lock, and `ibv_end_poll` releases it. In between, the
//! reader functions read the completion that the queue lends.
//!
//! # Safety
//! See the crate documentation. C programs call the readers only between these two calls, in the
//! thread that holds the lock.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::Ordering;

use verbs_core::Errno;
use verbs_core::provider::{Completion as _, CqOps as _, Provider};
use verbs_core::types::{CqFlags, CqWcFlags, WcFlags};

use crate::abi::c::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex,
    ibv_poll_cq_attr, ibv_wc_tm_info,
};
use crate::abi::errno::{UNKNOWN_MEMBERS, not_null_or_null, pointer, refused};
use crate::handle::context::verb;
use crate::handle::lock::Attempt;
use crate::handle::thread;
use crate::verbs::cq::{Cq, CqObject, Entries, Init, LentCompletion, NO_THREAD};

/// Fills in a queue's function pointers.
pub(crate) fn fill<P: Provider>(c: &mut ibv_cq_ex) {
    c.start_poll = Some(start_poll::<P>);
    c.next_poll = Some(next_poll::<P>);
    c.end_poll = Some(end_poll::<P>);
    c.read_opcode = Some(read_opcode::<P>);
    c.read_vendor_err = Some(read_vendor_err::<P>);
    c.read_byte_len = Some(read_byte_len::<P>);
    c.read_imm_data = Some(read_imm_data::<P>);
    c.read_qp_num = Some(read_qp_num::<P>);
    c.read_src_qp = Some(read_src_qp::<P>);
    c.read_wc_flags = Some(read_wc_flags::<P>);
    c.read_slid = Some(read_slid::<P>);
    c.read_sl = Some(read_sl::<P>);
    c.read_dlid_path_bits = Some(read_dlid_path_bits::<P>);
    c.read_completion_ts = Some(read_completion_ts::<P>);
    c.read_cvlan = Some(read_cvlan::<P>);
    c.read_flow_tag = Some(read_flow_tag::<P>);
    c.read_tm_info = Some(read_tm_info::<P>);
    c.read_completion_wallclock_ns = Some(read_completion_wallclock_ns::<P>);
}

/// `ibv_create_cq_ex(3)`.
///
/// # Safety
/// `context` must be open, and `attr` must point to attributes with live objects.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: guaranteed by the caller.
    unsafe { create_cq_of(context, attr, Entries::default()) }
}

/// Same as [`create_cq_ex`], with an entry format that the program has chosen.
///
/// # Safety
/// Same as [`create_cq_ex`].
pub(crate) unsafe fn create_cq_of(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
    entries: Entries,
) -> *mut ibv_cq_ex {
    not_null_or_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe {
        init_from_c(&*attr)
            .map_err(|errno| refused("create_cq_ex", errno, UNKNOWN_MEMBERS))
            .and_then(|init| verb!(context, create_cq(context, &Init { entries, ..init })))
    })
}

/// Converts the attributes of `ibv_create_cq_ex`.
///
/// # Errors
/// `EINVAL` for members and `EOPNOTSUPP` for completion fields that no rdma-core release defines.
fn init_from_c(attr: &ibv_cq_init_attr_ex) -> Result<Init, Errno> {
    const KNOWN: u32 = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    let has = |bit| attr.comp_mask & bit != 0;
    let lacks_parent = has(IBV_CQ_INIT_ATTR_MASK_PD) && attr.parent_domain.is_null();
    if attr.comp_mask & !KNOWN != 0 || lacks_parent {
        return Err(Errno::INVAL);
    }
    let wc_flags = u32::try_from(attr.wc_flags).map_err(|_| Errno::OPNOTSUPP)?;
    if CqWcFlags::from_bits_retain(wc_flags)
        .iter_names()
        .fold(wc_flags, |left, (_, flag)| left & !flag.bits())
        != 0
    {
        return Err(Errno::OPNOTSUPP);
    }
    let flags = if has(IBV_CQ_INIT_ATTR_MASK_FLAGS) { attr.flags } else { 0 };
    Ok(Init {
        cqe: attr.cqe,
        cq_context: attr.cq_context,
        channel: attr.channel,
        comp_vector: attr.comp_vector,
        wc_flags: CqWcFlags::from_bits_retain(wc_flags),
        flags: CqFlags::from_bits_retain(flags),
        parent_domain: if has(IBV_CQ_INIT_ATTR_MASK_PD) { attr.parent_domain } else { ptr::null_mut() },
        entries: Entries::default(),
    })
}

/// Borrows the next completion of a locked queue. `is_first` is true for the first completion after
/// `start_poll`.
///
/// # Safety
/// `cq` must be a live queue of the provider, and this thread must hold its lock.
#[inline(always)]
unsafe fn advance<P: Provider>(cq: *mut ibv_cq_ex, is_first: bool) -> c_int {
    // SAFETY: the queue is live, and locked by this thread.
    unsafe {
        let inner: &Cq<P> = CqObject::<P>::inner(cq);
        let queue = inner.queue.get();
        // No completion is lent before the first one, so no slot has to be returned.
        let next = if is_first { queue.next_of_several() } else { queue.next() };
        let Some(completion) = next else { return libc::ENOENT };
        (*cq).status = completion.status().0;
        (*cq).wr_id = completion.wr_id();
        // SAFETY: the slot of a lent completion belongs to the program until `end_poll`; no reader
        // runs afterwards. The types differ only in the lifetime.
        let lent = core::mem::transmute_copy::<_, LentCompletion<P>>(&completion);
        *inner.lent.get() = MaybeUninit::new(lent);
    }
    0
}

unsafe extern "C" fn start_poll<P: Provider>(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the queue is live, and the attributes are null or readable.
    unsafe {
        if !attr.is_null() && (*attr).comp_mask != 0 {
            return libc::EINVAL;
        }
        let attempt = CqObject::<P>::inner(cq).queue.attempt();
        if !attempt.has_lock() {
            return start_poll_waiting::<P>(cq, attempt);
        }
        start_locked::<P>(cq)
    }
}

/// Same as [`start_poll`], called if another thread holds the lock.
#[cold]
#[inline(never)]
unsafe extern "C" fn start_poll_waiting<P: Provider>(cq: *mut ibv_cq_ex, attempt: Attempt) -> c_int {
    // SAFETY: as in `start_poll`.
    unsafe {
        if !CqObject::<P>::inner(cq).queue.wait(attempt) {
            return libc::ENOENT;
        }
        start_locked::<P>(cq)
    }
}

/// Borrows the first completion. Releases the lock if the queue is empty.
///
/// # Safety
/// Same as [`advance`].
#[inline(always)]
unsafe fn start_locked<P: Provider>(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: guaranteed by the caller. Without a completion, nothing uses the queue afterwards.
    unsafe {
        let result = advance::<P>(cq, true);
        let inner = CqObject::<P>::inner(cq);
        if result == 0 {
            inner.lender.store(thread::current(), Ordering::Relaxed);
        } else {
            inner.queue.unlock();
        }
        result
    }
}

unsafe extern "C" fn next_poll<P: Provider>(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: `start_poll` acquired the lock.
    unsafe { advance::<P>(cq, false) }
}

unsafe extern "C" fn end_poll<P: Provider>(cq: *mut ibv_cq_ex) {
    // SAFETY: `start_poll` acquired the lock.
    unsafe {
        let inner: &Cq<P> = CqObject::<P>::inner(cq);
        inner.lender.store(NO_THREAD, Ordering::Relaxed);
        inner.queue.get().end_poll();
        inner.queue.unlock();
    }
}

/// Returns the lent completion of the queue.
///
/// # Safety
/// `cq` must be a live queue of the provider that lends a completion to this thread.
#[inline(always)]
unsafe fn lent<P: Provider>(cq: *mut ibv_cq_ex) -> LentCompletion<P> {
    // SAFETY: a completion is lent, so the value is initialised.
    unsafe { (*CqObject::<P>::inner(cq).lent.get()).assume_init() }
}

/// Defines the functions that read fields of the lent completion.
macro_rules! readers {
    ($($reader:ident: $type:ty = |$completion:ident| $value:expr;)*) => {
        $(unsafe extern "C" fn $reader<P: Provider>(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the program reads between `ibv_start_poll` and `ibv_end_poll`.
            let $completion = unsafe { lent::<P>(cq) };
            $value
        })*
    };
}

readers! {
    read_opcode: c_uint = |completion| completion.opcode().0;
    read_vendor_err: u32 = |completion| completion.vendor_err();
    read_byte_len: u32 = |completion| completion.byte_len();
    read_imm_data: u32 = |completion| {
        let data = completion.imm_data();
        if completion.wc_flags().contains(WcFlags::WITH_IMM) { data.to_be() } else { data }
    };
    read_qp_num: u32 = |completion| completion.qp_num();
    read_src_qp: u32 = |completion| completion.src_qp();
    read_wc_flags: c_uint = |completion| completion.wc_flags().bits();
    read_slid: u32 = |completion| completion.slid().into();
    read_sl: u8 = |completion| completion.sl();
    read_dlid_path_bits: u8 = |completion| completion.dlid_path_bits();
    read_completion_ts: u64 = |completion| completion.completion_ts().unwrap_or(0);
    read_cvlan: u16 = |completion| completion.cvlan().unwrap_or(0);
    read_flow_tag: u32 = |completion| completion.flow_tag().unwrap_or(0);
    read_completion_wallclock_ns: u64 = |completion| completion.completion_wallclock_ns().unwrap_or(0);
}

unsafe extern "C" fn read_tm_info<P: Provider>(cq: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info) {
    // SAFETY: the program reads between `ibv_start_poll` and `ibv_end_poll`, into its own memory.
    unsafe {
        let info = lent::<P>(cq).tm_info().unwrap_or_default();
        *tm_info = ibv_wc_tm_info { tag: info.tag, priv_: info.private };
    }
}
