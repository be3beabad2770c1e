//! Sends owed acknowledgements when the process exits, lets a connection manager disconnect, writes
//! the last counters, and removes the process's files.
//!
//! Acknowledgements wait until they can leave at little extra cost (see
//! [`crate::device::device_core`]). A program that takes its last message and exits, with its
//! handles leaked or stored in a static, never reaches that point. Its peer would end with a retry
//! error, while a network card would have acknowledged long ago. Owed acknowledgements are
//! therefore sent from `atexit(3)`, which runs in `exit(3)` and on return from `main`. A process
//! that aborts or is killed within 8 ms of its last message does not acknowledge it.
//!
//! # Safety
//! `atexit` gets a function without arguments that touches only statics and the devices stored
//! there.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, Ordering};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

use verbs_core::fork::ForkLock;

use crate::device::state::DeviceState;

/// Registers a device to send its owed acknowledgements when the process exits.
pub(crate) fn remember(shared: &Arc<DeviceState>) {
    at_exit_of_process();
    let mut devices = DEVICES.lock_or(Vec::new);
    devices.retain(|device| device.strong_count() > 0);
    devices.push(Arc::downgrade(shared));
}

/// Registers a file or an empty folder to be removed when the process exits. Removal is in reverse
/// order of registration. In a forked child, files of the parent stay.
pub(crate) fn remove(path: &Path) {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return };
    at_exit_of_process();
    let process = std::process::id();
    let mut files = FILES.lock_or(Files::default);
    if files.process != process {
        *files = Files { process, paths: Vec::new() };
    }
    files.paths.push(path);
}

/// The files to remove when the process exits.
#[derive(Debug)]
struct Files {
    /// The ID of the process that created the files.
    process: u32,
    paths: Vec<CString>,
}

impl Files {
    const fn default() -> Self {
        Self { process: 0, paths: Vec::new() }
    }
}

static FILES: ForkLock<Files> = ForkLock::new(Files::default());

/// Registers the exit function of the process's connection manager. It runs in `exit(3)` or on
/// return from `main`, after devices have sent owed packets. Only the first registration counts.
///
/// The function may run in a signal handler that interrupted any call, and in a forked child. It
/// must therefore not wait for a lock ([`Gsi::send_at_exit`](crate::cm::Gsi::send_at_exit)), nor
/// use anything owned by the parent.
pub fn at_exit(farewell: fn()) {
    let _ = FAREWELL.set(farewell);
}

fn at_exit_of_process() {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // If `atexit` cannot register one more function, the process exits as if it had been
        // killed.
        // SAFETY: the function stays in this program as long as this code does.
        unsafe { libc::atexit(settle) };
    }
}

extern "C" fn settle() {
    // The holder of the mutex may be a thread that a fork did not copy, so this never waits.
    if let Some(devices) = DEVICES.try_lock() {
        for device in devices.iter().filter_map(Weak::upgrade) {
            device.settle();
        }
    }
    // After the acknowledgements: a peer that sees the connection end flushes unacknowledged
    // requests.
    if let Some(farewell) = FAREWELL.get() {
        farewell();
    }
    // After the last packets.
    if let Some(devices) = DEVICES.try_lock() {
        for device in devices.iter().filter_map(Weak::upgrade) {
            device.finish_counter_files();
            device.leave_place();
        }
    }
    if let Some(files) = FILES.try_lock().filter(|files| files.process == std::process::id()) {
        for path in files.paths.iter().rev() {
            // SAFETY: the path is terminated. The function allocates nothing.
            unsafe { libc::remove(path.as_ptr()) };
        }
    }
}

static FAREWELL: OnceLock<fn()> = OnceLock::new();

static DEVICES: ForkLock<Vec<Weak<DeviceState>>> = ForkLock::new(Vec::new());
