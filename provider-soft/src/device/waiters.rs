//! [`Waiters`]: the threads that wait at a device ([`wait`](crate::device::wait)), under its lock.

use std::sync::Arc;

use nix::sys::eventfd::EventFd;
use verbs_core::provider::Awaited;

/// The waiting threads of a device, under its lock.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// Whether one of them is the driver.
    pub(super) is_driven: bool,
    /// Whether the driver sleeps.
    pub(super) is_asleep: bool,
    /// The number of waits of drivers that have ended.
    pub(super) ended: u32,
    /// The threads that other threads wake.
    pub(super) others: Vec<Waiter>,
    /// The number of completions when the waiters for completions were last woken.
    pub(super) told: u32,
}

/// A thread that other threads wake.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(super) file: Arc<EventFd>,
    pub(super) awaited: Awaited,
    /// Whether it is to be woken by the next completion.
    pub(super) watches: bool,
}

impl Waiters {
    /// Returns whether the driver sleeps until a packet arrives.
    pub(crate) fn are_asleep(&self) -> bool {
        self.is_asleep
    }

    /// Wakes the threads that wait for completions if there are new ones.
    #[inline]
    pub(crate) fn tell(&mut self, completed: u32) {
        if !self.others.is_empty() && self.told != completed {
            self.tell_all(completed);
        }
    }

    #[cold]
    fn tell_all(&mut self, completed: u32) {
        self.told = completed;
        for waiter in &mut self.others {
            if waiter.awaited == Awaited::Completion && core::mem::take(&mut waiter.watches) {
                // A full counter is readable as well.
                let _ = waiter.file.write(1);
            }
        }
    }
}
