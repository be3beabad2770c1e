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
use verbs_core::{Cause, Errno, Error, environment};

use crate::abi::reserve;

/// Sets `errno`.
pub(crate) fn set(errno: c_int) {
    // SAFETY: the pointer refers to the calling thread's variable.
    unsafe { *libc::__errno_location() = errno }
}

/// Sets `errno` and returns it, for a call that has logged the error or whose failure is expected.
#[cold]
pub(crate) fn refuse(errno: Errno) -> c_int {
    set(errno.raw());
    errno.raw()
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
        // A failure to write the log must not change a call's result.
        let _ = match log {
            // This avoids the standard library's lock, which a thread of a parent process may hold.
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

/// Returns the error for a call that this library itself rejects, with the reason.
#[cold]
pub(crate) fn refused(verb: &'static str, errno: Errno, reason: &'static str) -> Error {
    Error::new(verb, "", errno).because(Cause::Other { reason: reason.into() })
}

/// The reason for rejecting attributes with members that the library does not know.
pub(crate) const UNKNOWN_MEMBERS: &str = "the attributes have members unknown to this library";

/// Returns the error for a call whose object was destroyed or is in use by another thread.
#[cold]
pub(crate) fn unavailable(verb: &'static str, errno: Errno) -> Error {
    let reason = match errno {
        Errno::INVAL => "another thread has destroyed the object",
        Errno::BUSY => "a call of another thread uses the object",
        Errno::NODEV => "a thread of the parent process was using the object at the fork",
        other => return Error::new(verb, "", other),
    };
    refused(verb, errno, reason)
}

/// Returns the error for a call that must not begin because [memory is short](reserve::has_room).
#[cold]
pub(crate) fn short_of_memory(verb: &'static str) -> Error {
    Error::new(verb, "", Errno::NOMEM).because(Cause::Allocation { bytes: reserve::CALL as u64 })
}

/// Returns the error for a null pointer.
#[cold]
pub(crate) fn null(verb: &'static str, pointer: &'static str) -> Error {
    Error::new(verb, "", Errno::INVAL).because(Cause::Other { reason: format!("{pointer} is null").into() })
}

/// Returns the verb that a function implements, derived from the path of an item inside it.
#[cold]
pub(crate) fn verb_of(item: &'static str) -> &'static str {
    let function = item.rsplit("::").find(|part| !matches!(*part, "here" | "{{closure}}")).unwrap_or(item);
    let name = function.trim_start_matches('_');
    name.strip_prefix("ibv_").or_else(|| name.strip_prefix("rdma_")).unwrap_or(name)
}

/// Expands to the name of the verb that the enclosing function implements.
macro_rules! this_verb {
    () => {{
        const fn here() {}
        $crate::abi::errno::verb_of(core::any::type_name_of_val(&here))
    }};
}

/// Makes the enclosing function return `EINVAL` if an argument is null.
macro_rules! not_null {
    ($($pointer:expr),+) => {
        $(if $pointer.is_null() {
            use $crate::abi::errno::{fail, null, this_verb};
            return fail(&null(this_verb!(), stringify!($pointer)));
        })+
    };
}

/// Makes the enclosing function set `errno` to `EINVAL` and return -1 if an argument is null.
macro_rules! not_null_or_minus_one {
    ($($pointer:expr),+) => {
        $(if $pointer.is_null() {
            use $crate::abi::errno::{fail, null, this_verb};
            fail(&null(this_verb!(), stringify!($pointer)));
            return -1;
        })+
    };
}

/// Makes the enclosing function return null if an argument is null or memory is short.
macro_rules! not_null_or_null {
    ($($pointer:expr),+) => {
        $(if $pointer.is_null() {
            use $crate::abi::errno::{fail_null, null, this_verb};
            return fail_null(&null(this_verb!(), stringify!($pointer)));
        })+
        if !$crate::abi::reserve::has_room() {
            use $crate::abi::errno::{fail_null, short_of_memory, this_verb};
            return fail_null(&short_of_memory(this_verb!()));
        }
    };
}

/// Makes the enclosing function return `ENOMEM` if memory is short.
macro_rules! given_room {
    () => {
        if !$crate::abi::reserve::has_room() {
            use $crate::abi::errno::{fail, short_of_memory, this_verb};
            return fail(&short_of_memory(this_verb!()));
        }
    };
}

pub(crate) use {given_room, not_null, not_null_or_minus_one, not_null_or_null, this_verb};

#[cfg(test)]
mod tests {
    use super::*;

    fn _ibv_query_something<T>(_: T) -> &'static str {
        let named = || this_verb!();
        assert_eq!(named(), "query_something");
        this_verb!()
    }

    #[test]
    fn a_function_names_its_verb() {
        assert_eq!(_ibv_query_something(1), "query_something");
        assert_eq!(verb_of("ibverbs_c::verbs::dm::alloc_dm::here"), "alloc_dm");
        assert_eq!(verb_of("ibverbs_c::rdmacm::connect::rdma_connect::here"), "connect");
        assert_eq!(this_verb!(), "a_function_names_its_verb");
    }

    #[test]
    fn a_refusal_names_its_cause() {
        let text = |error: &Error| error.to_string();
        assert_eq!(text(&null("alloc_dm", "attr")), "alloc_dm: attr is null (EINVAL)");
        let error = refused("alloc_dm", Errno::INVAL, UNKNOWN_MEMBERS);
        assert_eq!(text(&error), format!("alloc_dm: {UNKNOWN_MEMBERS} (EINVAL)"));
        for errno in [Errno::INVAL, Errno::BUSY, Errno::NODEV] {
            assert!(text(&unavailable("destroy_cq", errno)).contains(" the object"), "{errno}");
        }
        assert!(text(&short_of_memory("create_cq")).contains("65536"));
    }
}
