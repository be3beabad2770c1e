//! `librdmacm.so.1`: connections by address for C programs, on top of the crate `rdmacm`.
//!
//! ```text
//!   program ──► rdma_...() ──► this module ─┬─► rdmacm::CmId, EventChannel ──► kernel, soft
//!                                           └─► ibv_...() of this library: contexts, queue pairs
//! ```
//!
//! | file | functions |
//! |---|---|
//! | [`endpoint`] | `rdma_create_ep` and related calls |
//! | [`connect`] | connecting, accepting, rejecting, disconnecting |
//! | [`multicast`] | joining and leaving groups |
//! | [`address`] | binding, resolving, listening |
//! | [`lifecycle`] | creating and destroying ids, calls of synchronous ids |
//! | [`event`] | events: reading, processing before delivery, acknowledging |
//! | [`addrinfo`] | host and service names |
//! | [`qp`] | queue pairs and their completion queues, shared receive queues |
//! | [`channel`] | event channels |
//! | [`route`] | the addresses and paths in an id's struct |
//! | [`option`] | id options |
//! | [`id`] | ids: their struct and their table |
//! | [`device`] | the context and the protection domain that all ids on a device share |
//! | [`group`], [`tally`] | a membership in a multicast group, the count of events |
//!
//! An id's queue pair belongs to this library, because C programs post to it. For the crate
//! `rdmacm` it is an external queue pair: this module changes its state, with the attributes from
//! [`CmId::init_qp_attr`](rdmacm::CmId::init_qp_attr).
//!
//! An id without one of the program's channels is synchronous: its calls wait for their event,
//! which stays in `rdma_cm_id.event` until the next call.
//!
//! # Counting events
//! As in rdma-core, the struct of an id lives until the program has acknowledged each of its
//! events. The crate `rdmacm` uses keys that become stale instead, so this module counts the
//! events. An event is counted under the lock of its channel (`id::claim`), before another thread
//! can read the next event. Destroying an id first removes it from the table, so events not yet
//! counted are discarded.
//!
//! # Safety
//! See the crate documentation: ids, channels and events are live and belong to this library. A
//! `sockaddr` is as long as its family requires.

pub(crate) mod address;
pub(crate) mod addrinfo;
pub(crate) mod channel;
pub(crate) mod connect;
pub(crate) mod device;
pub(crate) mod endpoint;
pub(crate) mod event;
mod group;
pub(crate) mod id;
pub(crate) mod lifecycle;
pub(crate) mod multicast;
pub(crate) mod option;
pub(crate) mod qp;
mod route;
mod tally;

use core::ffi::c_int;

use verbs_core::{Errno, Error};

use crate::abi::errno;

/// The result of a call; C programs get the error in `errno`.
type Result<T = ()> = core::result::Result<T, Errno>;

/// Logs an error and returns its errno.
fn logged(error: Error) -> Errno {
    errno::log(&error);
    error.errno
}

/// Logs why this library rejects a call and returns the errno.
#[cold]
fn refuse(verb: &'static str, errno: Errno, reason: &'static str) -> Errno {
    logged(errno::refused(verb, errno, reason))
}

/// The reason for rejecting an id without a device.
const NO_DEVICE: &str = "the id has no device";

/// The reason for rejecting a null address or an address of an unknown family.
const NO_ADDRESS: &str = "the address is null, or of an unknown family";

/// Logs that memory is short and returns `ENOMEM`.
#[cold]
fn no_memory(verb: &'static str) -> Errno {
    logged(errno::short_of_memory(verb))
}

/// Converts the result of a call that returns 0, or -1 with `errno`.
fn status(result: Result) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => minus_one(errno),
    }
}

/// Sets `errno` and returns -1, for an error that was logged.
#[cold]
fn minus_one(errno: Errno) -> c_int {
    errno::set(errno.raw());
    -1
}

/// Converts the result of a verb that returns 0 or an errno.
fn of_verb(code: c_int) -> Result {
    if code == 0 { Ok(()) } else { Err(Errno::from_raw(code)) }
}

/// Converts the result of a verb that returns an object, or null with `errno`.
fn object<T>(object: *mut T) -> Result<*mut T> {
    if object.is_null() { Err(Errno::last()) } else { Ok(object) }
}

/// Rejects a null pointer: returns -1 with `EINVAL`.
macro_rules! given {
    ($($pointer:expr),+) => {
        $(if $pointer.is_null() {
            use $crate::abi::errno::{fail, null, this_verb};
            fail(&null(this_verb!(), stringify!($pointer)));
            return -1;
        })+
    };
}

/// Rejects a call when memory is short: returns -1 with `ENOMEM`.
macro_rules! given_room {
    () => {
        if !$crate::abi::reserve::has_room() {
            use $crate::abi::errno::{fail, short_of_memory, this_verb};
            fail(&short_of_memory(this_verb!()));
            return -1;
        }
    };
}
use {given, given_room};
