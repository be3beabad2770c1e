//! Sends owed acknowledgements when the process exits, and lets a connection manager disconnect.
//!
//! Acknowledgements wait until they can leave at no extra cost (see
//! [`crate::device::device_core`]). A program that takes its last message and exits, with its
//! handles leaked or in a static, never reaches that point. Its peer would end with a retry error,
//! while a network card would have acknowledged long ago. Owed acknowledgements are therefore sent
//! from `atexit(3)`, which runs in `exit(3)` and on return from `main`. A process that aborts or is
//! killed within 8 ms of its last message does not acknowledge it.
//!
//! # Safety
//! `atexit` gets a function without arguments that touches only a static and the devices in it.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use verbs_core::fork::ForkLock;

use crate::device::shared::Shared;

/// Registers a device to send its owed acknowledgements when the process exits.
pub(crate) fn remember(shared: &Arc<Shared>) {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // If `atexit` has no room for one more function, the process exits as if it was killed.
        // SAFETY: the function stays in this program as long as this code does.
        unsafe { libc::atexit(settle) };
    }
    let mut devices = DEVICES.lock_or(Vec::new);
    devices.retain(|device| device.strong_count() > 0);
    devices.push(Arc::downgrade(shared));
}

/// Registers the exit function of the process's connection manager. It runs in `exit(3)` or on
/// return from `main`, after devices have sent owed packets. Only the first registration counts.
///
/// The function may run in a signal handler, above any call, and in a forked child. So it must not
/// wait for a lock ([`Gsi::send_at_exit`](crate::cm::Gsi::send_at_exit)), nor take over anything
/// owned by the parent.
pub fn at_exit(farewell: fn()) {
    let _ = FAREWELL.set(farewell);
}

extern "C" fn settle() {
    // The holder of the mutex may be a thread that a fork did not copy, so this never waits.
    if let Some(devices) = DEVICES.try_lock() {
        for device in devices.iter().filter_map(Weak::upgrade) {
            device.settle();
        }
    }
    // After the acknowledgements: a peer that detects the end flushes unacknowledged requests.
    if let Some(farewell) = FAREWELL.get() {
        farewell();
    }
}

static FAREWELL: OnceLock<fn()> = OnceLock::new();

static DEVICES: ForkLock<Vec<Weak<Shared>>> = ForkLock::new(Vec::new());
