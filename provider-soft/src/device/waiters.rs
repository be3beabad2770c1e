//! [`Waiters`]: the threads that wait at a device ([`wait`](crate::device::wait)), under its lock.

use std::sync::Arc;
use std::thread::Thread;

use nix::sys::eventfd::EventFd;
use verbs_core::provider::Awaited;

/// The waiting threads of a device, guarded by the device's lock.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// Whether a waiting thread is the driver.
    pub(super) is_driven: bool,
    /// Whether the driver sleeps.
    pub(super) is_asleep: bool,
    /// The number of driver waits that have ended.
    pub(super) ended: u32,
    /// The waiting threads that other threads must wake.
    pub(super) others: Vec<Waiter>,
    /// The number of completions at the time when threads waiting for completions were last woken.
    pub(super) told: u32,
    /// The number of waiters created.
    pub(super) made: u64,
}

/// A waiting thread that other threads must wake.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(super) number: u64,
    pub(super) waker: Waker,
    pub(super) awaited: Awaited,
    /// Whether the next completion wakes the thread.
    pub(super) watches: bool,
}

/// The way to wake a thread.
#[derive(Clone, Debug)]
pub(super) enum Waker {
    /// The thread sleeps at this file, among other files.
    File(Arc<EventFd>),
    /// The process has no free descriptor for the driver, which sleeps at the device's files only.
    Driver,
    /// The process has no free descriptor for the thread, which is parked.
    Thread(Thread),
}

impl Waker {
    /// Wakes the thread, through `driver_alarm` if it is the driver.
    pub(super) fn wake(&self, driver_alarm: &EventFd) {
        match self {
            Self::File(file) => {
                // A full counter is readable as well.
                let _ = file.write(1);
            }
            Self::Driver => {
                let _ = driver_alarm.write(1);
            }
            Self::Thread(thread) => thread.unpark(),
        }
    }
}

impl Waiters {
    /// Returns whether the driver is asleep, waiting for a packet.
    pub(crate) fn are_asleep(&self) -> bool {
        self.is_asleep
    }

    /// Wakes the threads that wait for completions if there are new completions.
    #[inline]
    pub(crate) fn tell(&mut self, completed: u32, driver_alarm: &EventFd) {
        if !self.others.is_empty() && self.told != completed {
            self.tell_all(completed, driver_alarm);
        }
    }

    #[cold]
    fn tell_all(&mut self, completed: u32, driver_alarm: &EventFd) {
        self.told = completed;
        for waiter in &mut self.others {
            if waiter.awaited == Awaited::Completion && core::mem::take(&mut waiter.watches) {
                waiter.waker.wake(driver_alarm);
            }
        }
    }
}
