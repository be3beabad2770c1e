//! What devices owe when their process exits.
//!
//! Acknowledgements wait for a moment in which they cost nobody anything (see [`crate::machine`]). A program that takes its last
//! message and exits, with its handles in a static or forgotten, has no such moment any more: its peer, which a network card
//! would have answered long ago, would end with a retry error. So what is owed is sent from `atexit(3)`, which `exit(3)` and
//! the return from `main` run. A process that aborts or is killed within 8 ms of its last message keeps it to
//! itself.
//!
//! # Safety
//! `atexit` is given a function without arguments that touches nothing but a static and what that keeps alive.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use crate::shared::Shared;

/// From now on a device pays what it owes when the process exits.
pub(crate) fn remember(shared: &Arc<Shared>) {
    static REGISTERED: Once = Once::new();
    // Should there be no room for one more function, the process exits as one that is killed.
    // SAFETY: the function is this program's as long as this code is.
    REGISTERED.call_once(|| unsafe {
        let _ = libc::atexit(settle);
    });
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    devices.retain(|device| device.strong_count() > 0);
    devices.push(Arc::downgrade(shared));
}

extern "C" fn settle() {
    // Whoever has the lock may be a thread that did not come along through a fork: no waiting here.
    let Ok(devices) = DEVICES.try_lock() else { return };
    for device in devices.iter().filter_map(Weak::upgrade) {
        device.settle();
    }
}

static DEVICES: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());
