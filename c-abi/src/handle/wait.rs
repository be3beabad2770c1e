//! The system calls that wait for an event. As in rdma-core, `pthread_cancel(3)` may end a thread
//! in them.
//!
//! The linker replaces the C library's other cancellation points in `libibverbs.so.1`
//! (`c-abi/image/src/cancellation.rs`). The following calls stay unchanged: `read` and `poll` under
//! their other names `__read` and `__poll`, and `pthread_testcancel`.
//!
//! Cancelling a thread does not run the destructors of its active calls. A wait therefore holds no
//! lock, and the thread [keeps](keeping) each value that must be dropped when the thread ends.
//!
//! # Signals
//! `read(2)` continues after a signal whose handler has `SA_RESTART`; `poll(2)` never does. A
//! thread that does its device's work waits in `poll(2)`, and the kernel does not report which
//! signal ended that call. The wait continues if all handlers of the process have `SA_RESTART`;
//! handlers of faults do not count.
//!
//! # Safety
//! The functions are `read(2)`, `poll(2)` and `pthread_testcancel(3)`. They unwind if the thread is
//! cancelled.
#![allow(unsafe_code)]

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::thread::LocalKey;

use libc::{POLLIN, nfds_t, pollfd, size_t, ssize_t};
use verbs_core::Errno;
use verbs_core::provider::{Awaited, DeviceOps, Next, WAIT_FILES, Wait};

/// Declares functions that unwind if their thread is cancelled. With `panic = "abort"`, Rust would
/// abort on an unwind through the ABI "C-unwind", but lets it pass through "C".
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
    fn pthread_testcancel();
}

const NO_LIMIT: c_int = -1;

/// Reads one record from a descriptor; waits for it unless the program has set `O_NONBLOCK`.
/// Returns whether it read the whole record; otherwise `errno` is set.
///
/// # Safety
/// `record` must be plain data in the format of the descriptor's records.
pub(crate) unsafe fn read_record<T>(fd: RawFd, record: &mut T) -> bool {
    // SAFETY: the buffer has the given length.
    let len = unsafe { cancellable_read(fd, (&raw mut *record).cast(), size_of::<T>()) };
    usize::try_from(len).is_ok_and(|len| len == size_of::<T>())
}

/// Waits until a descriptor is readable.
///
/// # Errors
/// The errno from `poll(2)`, notably `EINTR`.
pub(crate) fn readable(fd: RawFd) -> Result<(), Errno> {
    any_readable(&mut [pollfd { fd, events: POLLIN, revents: 0 }])
}

fn any_readable(fds: &mut [pollfd]) -> Result<(), Errno> {
    // SAFETY: the pointer and the number describe a slice.
    match unsafe { cancellable_poll(fds.as_mut_ptr(), fds.len() as nfds_t, NO_LIMIT) } {
        -1 => Err(Errno::last()),
        _ => Ok(()),
    }
}

thread_local! {
    /// The current wait of this thread, if it sleeps.
    static SLEEPING: Cell<Option<Box<dyn Wait>>> = const { Cell::new(None) };
}

/// Same as [`read_record`], for an 8-byte record from a socket of a device that has
/// [waits](DeviceOps::waits). While it waits, the thread does the device's work.
///
/// # Errors
/// Any errno from `recv(2)` or `poll(2)`.
pub(crate) fn receive_record(fd: RawFd, device: &dyn DeviceOps) -> Result<u64, Errno> {
    // SAFETY: this thread holds no lock and no value that must be dropped.
    unsafe { pthread_testcancel() };
    let mut waiting = None;
    loop {
        let mut record = 0_u64;
        let buf = (&raw mut record).cast();
        // SAFETY: the buffer has the given length.
        let len = unsafe { libc::recv(fd, buf, size_of::<u64>(), libc::MSG_DONTWAIT) };
        match len {
            -1 => match Errno::last() {
                Errno::INTR => continue,
                Errno::AGAIN => {}
                errno => return Err(errno),
            },
            8 => return Ok(record),
            _ => return Err(Errno::IO),
        }
        let mut wait = match waiting.take() {
            Some(wait) => wait,
            None if is_nonblocking(fd) => return Err(Errno::AGAIN),
            None => device.waits().ok_or(Errno::OPNOTSUPP)?.start(Awaited::Event),
        };
        if wait.work() == Next::Look {
            waiting = Some(wait);
            continue;
        }
        let mut fds = [pollfd { fd, events: POLLIN, revents: 0 }; 1 + WAIT_FILES];
        let mut count = 1;
        for file in wait.files().into_iter().flatten() {
            fds[count].fd = file.as_raw_fd();
            count += 1;
        }
        let sleep = || match any_readable(&mut fds[..count]) {
            Err(Errno::INTR) if handlers_restart() => Ok(()),
            result => result,
        };
        waiting = Some(keeping(&SLEEPING, wait, sleep)?);
    }
}

fn is_nonblocking(fd: RawFd) -> bool {
    // SAFETY: the call takes no pointer.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags != -1 && flags & libc::O_NONBLOCK != 0
}

/// Returns whether every signal handler of the program restarts interrupted calls. A fault is
/// caused by the running code, so it never interrupts a wait.
fn handlers_restart() -> bool {
    const FAULTS: [c_int; 7] =
        [libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS, libc::SIGTRAP];
    (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal)).all(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the call changes nothing, and the buffer has the right type. An all-zero action
        // is valid.
        let action = unsafe {
            // This fails for the C library's own signals, whose handlers restart calls.
            libc::sigaction(signal, core::ptr::null(), action.as_mut_ptr());
            action.assume_init()
        };
        matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
            || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// Calls `wait` while the thread keeps `value`, which is dropped if the thread is cancelled in the
/// wait. Returns the value.
///
/// A thread that is already exiting cannot keep values: in that case, a cancellation leaks the
/// value.
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
