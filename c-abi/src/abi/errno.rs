//! `errno` and the log of failed calls.
//!
//! C callers get only an errno. With `VERBS_LOG_LEVEL=1` or more, each failed call also writes its
//! error and the cause to the file named by `VERBS_LOG_FILE`, or to stderr.
//!
//! # Safety
//! `errno` is a thread-local variable.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::ptr::null_mut;
use std::fs::{File, OpenOptions};
use std::io::Write as _;

use verbs_core::fork::ForkLock;
use verbs_core::{Errno, Error, environment};

/// Sets `errno`.
pub(crate) fn set(errno: c_int) {
    // SAFETY: the pointer refers to the calling thread's variable.
    unsafe { *libc::__errno_location() = errno }
}

/// Sets `errno` and returns it.
#[cold]
pub(crate) fn refuse(errno: Errno) -> c_int {
    set(errno.raw());
    errno.raw()
}

/// Sets `errno` and returns null.
#[cold]
pub(crate) fn refuse_null<T>(errno: Errno) -> *mut T {
    set(errno.raw());
    null_mut()
}

/// Logs an error, sets `errno`, and returns it.
#[cold]
pub(crate) fn fail(error: &Error) -> c_int {
    log(error);
    refuse(error.errno)
}

/// Logs an error, sets `errno`, and returns null.
#[cold]
pub(crate) fn fail_null<T>(error: &Error) -> *mut T {
    fail(error);
    null_mut()
}

/// Converts the result of a call that returns 0 or an errno.
pub(crate) fn code(result: Result<(), Error>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => fail(&error),
    }
}

/// Writes a line to the log, if there is one.
#[cold]
pub(crate) fn log(what: &dyn core::fmt::Display) {
    if let Some(log) = destination() {
        // A failed log write changes no call's result.
        let _ = match log {
            // Avoids the standard library's lock, which a thread of a parent process may hold.
            Log::Stderr => nix::unistd::write(std::io::stderr(), format!("libibverbs: {what}\n").as_bytes())
                .map(drop)
                .map_err(Into::into),
            Log::File(file) => writeln!(&mut &*file, "libibverbs: {what}"),
        };
    }
}

enum Log {
    Stderr,
    File(File),
}

fn destination() -> Option<&'static Log> {
    static LOG: ForkLock<Option<Option<&Log>>> = ForkLock::new(None);
    LOG.get_or_init(|| {
        let level = environment::variable("VERBS_LOG_LEVEL")?.trim().parse::<u32>().ok()?;
        if level == 0 {
            return None;
        }
        let file = environment::variable_os("VERBS_LOG_FILE")
            .and_then(|path| OpenOptions::new().append(true).create(true).open(path).ok());
        Some(Box::leak(Box::new(file.map_or(Log::Stderr, Log::File))))
    })
}

/// Converts the result of a call that returns a pointer.
pub(crate) fn pointer<T>(result: Result<*mut T, Error>) -> *mut T {
    result.unwrap_or_else(|error| fail_null(&error))
}

/// Returns the error of a call rejected by this library itself.
#[cold]
pub(crate) fn refused(verb: &'static str, errno: Errno) -> Error {
    Error::new(verb, "", errno)
}

/// Rejects a null pointer: returns `EINVAL` from a function that returns an errno.
macro_rules! not_null {
    ($($pointer:expr),+) => {
        $(if $pointer.is_null() {
            return $crate::abi::errno::refuse(verbs_core::Errno::INVAL);
        })+
    };
}

/// Rejects a null pointer, and any call when memory is short: returns null from a function that
/// returns a pointer.
macro_rules! not_null_or_null {
    ($($pointer:expr),+) => {
        $(if $pointer.is_null() {
            return $crate::abi::errno::refuse_null(verbs_core::Errno::INVAL);
        })+
        if !$crate::abi::reserve::has_room() {
            return $crate::abi::errno::refuse_null(verbs_core::Errno::NOMEM);
        }
    };
}

/// Rejects a call when memory is short: returns `ENOMEM` from a function that returns an errno.
macro_rules! given_room {
    () => {
        if !$crate::abi::reserve::has_room() {
            return $crate::abi::errno::refuse(verbs_core::Errno::NOMEM);
        }
    };
}

pub(crate) use {given_room, not_null, not_null_or_null};
