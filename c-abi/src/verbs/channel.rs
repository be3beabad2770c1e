//! Completion channels and their events.
//!
//! An event carries the address given when its completion queue was created.
//!
//! # Safety
//! See the crate documentation. The kernel or the provider writes the address of a live queue and
//! removes unread events when the queue is destroyed.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint, c_void};
use std::os::fd::IntoRawFd as _;

use verbs_core::Errno;

use crate::abi::c::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex};
use crate::abi::errno::{
    fail, fail_null, not_null, not_null_or_minus_one, not_null_or_null, refuse, refused,
};
use crate::handle::context::{device_ops, verb};
use crate::handle::object::context_of;
use crate::handle::wait::{read_record, receive_record};
use crate::verbs::event::with_mutex;

/// Adds `change` to the number of completion queues that use a channel.
///
/// # Safety
/// `channel` must be live.
pub(crate) unsafe fn count(channel: *mut ibv_comp_channel, change: c_int) {
    // SAFETY: the channel and its context are live; the mutex guards the count.
    unsafe {
        with_mutex(&raw mut (*(*channel).context).mutex, || (*channel).refcnt += change);
    }
}

/// `ibv_create_comp_channel(3)`.
///
/// # Safety
/// `context` must be open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    not_null_or_null!(context);
    // SAFETY: the context is open.
    match unsafe { device_ops(context) }.create_comp_channel() {
        Ok(fd) => Box::into_raw(Box::new(ibv_comp_channel { context, fd: fd.into_raw_fd(), refcnt: 0 })),
        Err(error) => fail_null(&error),
    }
}

/// `ibv_destroy_comp_channel(3)`.
///
/// # Safety
/// `channel` must be live and must not be used afterwards if the call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    not_null!(channel);
    // SAFETY: the channel is live and owns its descriptor.
    unsafe {
        let is_used = with_mutex(&raw mut (*(*channel).context).mutex, || (*channel).refcnt != 0);
        if is_used {
            return fail(&refused("destroy_comp_channel", Errno::BUSY, "completion queues use the channel"));
        }
        libc::close((*channel).fd);
        drop(Box::from_raw(channel));
    }
    0
}

/// `ibv_get_cq_event(3)`. A cancellation point.
///
/// # Safety
/// `channel` must be live; `cq` and `cq_context` must point to pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    not_null_or_minus_one!(channel);
    let mut handle = 0_u64;
    // SAFETY: the channel and its context are live.
    let (fd, device) = unsafe { ((*channel).fd, device_ops((*channel).context)) };
    if device.waits().is_some() {
        match receive_record(fd, device) {
            Ok(record) => handle = record,
            Err(errno) => {
                refuse(errno);
                return -1;
            }
        }
    // SAFETY: a record of the kernel's channel is a `u64`.
    } else if !unsafe { read_record(fd, &mut handle) } {
        return -1;
    }
    let queue = handle as *mut ibv_cq;
    // SAFETY: the event carries the address of a live queue. Destroying the queue waits until the
    // program acknowledges this event.
    unsafe {
        verb!(context_of(queue.cast::<ibv_cq_ex>()), count_event(queue));
        *cq = queue;
        *cq_context = (*queue).cq_context;
    }
    0
}

/// `ibv_ack_cq_events(3)`.
///
/// # Safety
/// `cq` must be live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    if cq.is_null() {
        return;
    }
    // SAFETY: the queue is live; its mutex guards the count.
    unsafe {
        with_mutex(&raw mut (*cq).mutex, || {
            (*cq).comp_events_completed = (*cq).comp_events_completed.wrapping_add(nevents);
            libc::pthread_cond_signal(&raw mut (*cq).cond);
        });
    }
}
