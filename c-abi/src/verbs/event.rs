//! Asynchronous events and waiting for their acknowledgement before an object is destroyed.
//!
//! # Safety
//! See the crate documentation. An event carries the address given when its object was created.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};
use uverbs_abi::ib_user_verbs::IbUverbsAsyncEventDesc;
use verbs_core::provider::for_program;
use verbs_core::types::AsyncEventType;

use crate::abi::c::{ibv_async_event, ibv_context, ibv_cq, ibv_qp, ibv_srq, ibv_wq};
use crate::abi::errno::not_null_or_minus_one;
use crate::handle::wait::read_record;

/// Calls `with` while holding an object's mutex.
///
/// # Safety
/// `mutex` must be initialised and not held by this thread.
pub(crate) unsafe fn with_mutex<R>(mutex: *mut pthread_mutex_t, with: impl FnOnce() -> R) -> R {
    // SAFETY: guaranteed by the caller.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        let result = with();
        libc::pthread_mutex_unlock(mutex);
        result
    }
}

/// Returns whether every event that was read has been acknowledged. Both counters wrap around.
pub(crate) const fn is_acknowledged(completed: u32, read: u32) -> bool {
    completed.wrapping_sub(read) as i32 >= 0
}

/// Waits until `is_done` returns true. The function is called again after each acknowledged event.
///
/// # Safety
/// `mutex` and `cond` must belong to one object and be initialised.
pub(crate) unsafe fn wait_acknowledged(
    mutex: *mut pthread_mutex_t,
    cond: *mut pthread_cond_t,
    is_done: impl Fn() -> bool,
) {
    // SAFETY: guaranteed by the caller; the thread holds the mutex when it waits.
    unsafe {
        with_mutex(mutex, || {
            while !is_done() {
                libc::pthread_cond_wait(cond, mutex);
            }
        });
    }
}

/// The object that an asynchronous event concerns.
enum Element {
    Cq(*mut ibv_cq),
    Qp(*mut ibv_qp),
    Srq(*mut ibv_srq),
    Wq(*mut ibv_wq),
    /// No object: the event concerns a port or the device.
    None,
}

/// Returns the object that an event concerns.
///
/// # Safety
/// The event must have been read, and its object must be live.
unsafe fn element(event: *const ibv_async_event) -> Element {
    // SAFETY: guaranteed by the caller; every member of the union is an address or a number.
    unsafe {
        match AsyncEventType((*event).event_type) {
            event_type if event_type.concerns_qp() => Element::Qp((*event).element.qp),
            AsyncEventType::CQ_ERR => Element::Cq((*event).element.cq),
            AsyncEventType::SRQ_ERR | AsyncEventType::SRQ_LIMIT_REACHED => Element::Srq((*event).element.srq),
            AsyncEventType::WQ_FATAL => Element::Wq((*event).element.wq),
            _ => Element::None,
        }
    }
}

/// `ibv_get_async_event(3)`. A cancellation point.
///
/// # Safety
/// `context` must be open; `event` must point to an event.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    not_null_or_minus_one!(context);
    let mut record = IbUverbsAsyncEventDesc::default();
    // SAFETY: the context is open.
    if !unsafe { read_record((*context).async_fd, &mut record) } {
        return -1;
    }
    let (event_type, user_handle) = for_program(AsyncEventType(record.event_type), record.element);
    // SAFETY: the caller passes an event. The union holds an address, or a port number.
    unsafe {
        (*event).event_type = event_type.0;
        (*event).element.cq = core::ptr::null_mut();
        match element(event) {
            Element::None => (*event).element.port_num = user_handle as c_int,
            _ => (*event).element.cq = user_handle as *mut c_void as *mut ibv_cq,
        }
    }
    0
}

/// `ibv_ack_async_event(3)`.
///
/// # Safety
/// `event` must have been read and not yet acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    /// Counts one acknowledged event of an object while holding the object's mutex.
    macro_rules! count {
        ($object:ident, $count:ident) => {
            with_mutex(&raw mut (*$object).mutex, || {
                (*$object).$count = (*$object).$count.wrapping_add(1);
                libc::pthread_cond_signal(&raw mut (*$object).cond);
            })
        };
    }
    if event.is_null() {
        return;
    }
    // SAFETY: the object is live, because its destruction waits for this acknowledgement.
    unsafe {
        match element(event) {
            Element::Cq(cq) => count!(cq, async_events_completed),
            Element::Qp(qp) => count!(qp, events_completed),
            Element::Srq(srq) => count!(srq, events_completed),
            Element::Wq(wq) => count!(wq, events_completed),
            Element::None => {}
        }
    }
}
