//! [`Tally`]: the events that a program got, and those of them that it has acknowledged.
//!
//! The end of an id, and of a membership in a group, waits until both numbers are equal. An event
//! has a share of the tally, so that its acknowledgement touches nothing that the end frees.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Events that were read, and those that were acknowledged.
#[derive(Debug, Default)]
pub(super) struct Tally {
    counts: Mutex<Counts>,
    acknowledged: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    read: u64,
    acknowledged: u64,
}

impl Tally {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an event that was read.
    pub(super) fn read(&self) {
        self.counts().read += 1;
    }

    /// Counts an acknowledgement.
    pub(super) fn acknowledge(&self) {
        self.counts().acknowledged += 1;
        self.acknowledged.notify_all();
    }

    /// Waits until the events are acknowledged that were read before the call.
    pub(super) fn wait(&self) {
        let mut counts = self.counts();
        let read = counts.read;
        while counts.acknowledged < read {
            counts = self.acknowledged.wait(counts).unwrap_or_else(PoisonError::into_inner);
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
