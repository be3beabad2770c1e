//! Forked children for tests: the test holds a lock at the fork, as another thread of a program
//! might.
//!
//! # Safety
//! A child has one thread and a copy of the memory. It calls the code under test and exits.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns whether `run` returns true in a forked child. A signal kills a child that still runs
/// after a minute.
pub(crate) fn is_true_in_child(run: impl FnOnce() -> bool) -> bool {
    // SAFETY: `fork(3)` keeps the allocator usable in the child, which never returns from here. The
    // parent waits for its own child.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::alarm(60);
            let is_true = catch_unwind(AssertUnwindSafe(run)).unwrap_or(false);
            libc::_exit(i32::from(!is_true));
        }
        // The captures must not be dropped while the lock is held.
        core::mem::forget(run);
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}
