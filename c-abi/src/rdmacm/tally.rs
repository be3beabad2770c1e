//! [`Tally`]: the number of events delivered to a program and the number it has acknowledged.
//!
//! Destroying an id and leaving a group wait until both numbers are equal. An event holds a
//! reference to the tally, so its acknowledgement does not access freed memory.

use core::sync::atomic::{AtomicU32, Ordering};

use verbs_core::fork::current_generation;

use crate::handle::lock::{ANY, futex_wait, futex_wake};

/// Counts of read and acknowledged events. The counters are atomic rather than locked, because a
/// forked child could inherit a lock that is held.
#[derive(Debug)]
pub(super) struct Tally {
    read: AtomicU32,
    acknowledged: AtomicU32,
    /// The generation of the process whose threads acknowledge the events.
    generation: u32,
}

impl Default for Tally {
    fn default() -> Self {
        Self { read: AtomicU32::new(0), acknowledged: AtomicU32::new(0), generation: current_generation() }
    }
}

impl Tally {
    /// Counts an event that was read.
    pub(super) fn read(&self) {
        self.read.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an acknowledgement.
    pub(super) fn acknowledge(&self) {
        self.acknowledged.fetch_add(1, Ordering::Release);
        futex_wake(&self.acknowledged, ANY);
    }

    /// Waits until all events read before the call are acknowledged. Does not wait in a forked
    /// child, because threads of the parent hold the events.
    pub(super) fn wait(&self) {
        let read = self.read.load(Ordering::Relaxed);
        loop {
            let acknowledged = self.acknowledged.load(Ordering::Acquire);
            let missing = read.wrapping_sub(acknowledged).cast_signed();
            if missing <= 0 || current_generation() != self.generation {
                return;
            }
            futex_wait(&self.acknowledged, acknowledged, ANY, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn a_wait_ends_with_the_last_acknowledgement() {
        let tally = Arc::new(Tally::default());
        tally.wait();
        (0..3).for_each(|_| tally.read());
        let waits = {
            let tally = Arc::clone(&tally);
            thread::spawn(move || tally.wait())
        };
        tally.acknowledge();
        tally.acknowledge();
        assert!(!waits.is_finished());
        tally.acknowledge();
        waits.join().unwrap();
    }
}
