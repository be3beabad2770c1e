//! The system calls that wait for an event. As in rdma-core, `pthread_cancel(3)` may end a thread
//! in them.
//!
//! The linker replaces the C library's other cancellation points in `libibverbs.so.1`
//! (`c-abi/image/src/cancellation.rs`). It leaves these two alone, because they are called by other
//! names: `__read` and `__poll`.
//!
//! Cancelling a thread does not run the destructors of its active calls. A wait therefore holds no
//! lock, and the thread [keeps](keeping) each value that must be dropped at its end.
//!
//! # Safety
//! The functions are `read(2)` and `poll(2)`. They unwind if the thread is cancelled.
#![allow(unsafe_code)]

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::thread::LocalKey;

use libc::{POLLIN, nfds_t, pollfd, size_t, ssize_t};
use verbs_core::Errno;

/// Declares functions that unwind when their thread is cancelled. With `panic = "abort"`, Rust
/// would abort on an unwind through the ABI "C-unwind", but lets it pass through "C".
macro_rules! unwinding {
    ($($item:item)*) => {
        #[cfg(panic = "unwind")]
        unsafe extern "C-unwind" { $($item)* }
        #[cfg(not(panic = "unwind"))]
        unsafe extern "C" { $($item)* }
    };
}

unwinding! {
    #[link_name = "__read"]
    fn cancellable_read(fd: c_int, buf: *mut c_void, length: size_t) -> ssize_t;
    #[link_name = "__poll"]
    fn cancellable_poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
}

/// Reads one record from a descriptor; waits for it unless the program has set `O_NONBLOCK`.
/// Returns whether it read the whole record; otherwise `errno` is set.
///
/// # Safety
/// `record` is plain data and matches the descriptor's records.
pub(crate) unsafe fn read_record<T>(fd: RawFd, record: &mut T) -> bool {
    // SAFETY: the buffer has the given length.
    let len = unsafe { cancellable_read(fd, (&raw mut *record).cast(), size_of::<T>()) };
    usize::try_from(len).is_ok_and(|len| len == size_of::<T>())
}

/// Waits until a descriptor is readable.
///
/// # Errors
/// The errno of `poll(2)`, notably `EINTR`.
pub(crate) fn readable(fd: RawFd) -> Result<(), Errno> {
    const NO_LIMIT: c_int = -1;
    let mut fds = pollfd { fd, events: POLLIN, revents: 0 };
    // SAFETY: one descriptor is passed.
    match unsafe { cancellable_poll(&raw mut fds, 1, NO_LIMIT) } {
        -1 => Err(Errno::last()),
        _ => Ok(()),
    }
}

/// Calls `wait` while the thread keeps `value`, which is dropped if the thread is cancelled in the
/// wait. Returns the value.
///
/// A thread that is already ending cannot keep values: a cancellation then leaks the value.
pub(crate) fn keeping<T>(
    place: &'static LocalKey<Cell<Option<T>>>,
    value: T,
    wait: impl FnOnce() -> Result<(), Errno>,
) -> Result<T, Errno> {
    let mut value = Some(value);
    let _ = place.try_with(|place| place.set(value.take()));
    let waited = wait();
    let value = value.or_else(|| place.try_with(Cell::take).ok().flatten());
    waited?;
    value.ok_or(Errno::BADF)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    thread_local! {
        static KEPT: Cell<Option<Arc<()>>> = const { Cell::new(None) };
    }

    #[test]
    fn a_value_that_is_kept_for_a_wait_comes_back_or_ends_with_the_thread() {
        let value = Arc::new(());
        let kept = keeping(&KEPT, Arc::clone(&value), || {
            assert_eq!(Arc::strong_count(&value), 2);
            Ok(())
        });
        assert!(Arc::ptr_eq(&kept.unwrap(), &value));
        assert_eq!(keeping(&KEPT, Arc::clone(&value), || Err(Errno::INTR)), Err(Errno::INTR));
        assert_eq!(Arc::strong_count(&value), 1, "an error drops it");
        let its = Arc::clone(&value);
        // As with a cancelled thread, the call does not return.
        thread::spawn(move || KEPT.set(Some(its))).join().unwrap();
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
