//! [`Patience`]: a thread's wait for a completion. The thread spins for a short time, then sleeps.
//!
//! | device | after [`SPIN`] |
//! |---|---|
//! | soft | does the device's work ([`WaitOps`]) and sleeps until there is a completion |
//! | kernel | repeatedly sleeps for [a fraction](PART) of the time waited so far |
//!
//! A kernel completion queue wakes a thread only through an event, which other users of its channel
//! would then miss. So the thread sleeps for fixed times instead. It finds a completion late by at
//! most a sixteenth of the time waited, and by at most 10 ms.

use std::sync::Arc;
use std::time::{Duration, Instant};

use verbs_core::Errno;
use verbs_core::provider::{Awaited, Next, Wait, WaitOps};

use crate::device::event_file;

/// The state of a wait for a completion.
#[derive(Debug)]
pub(crate) struct Patience {
    start: Instant,
    waits: Option<Arc<dyn WaitOps>>,
    wait: Option<Box<dyn Wait>>,
}

/// The time that a thread spins: less than falling asleep and waking up would cost.
const SPIN: Duration = Duration::from_micros(30);

/// The number of polls between two clock readings.
const POLLS_A_LOOK: u32 = 64;

/// The time after which a thread starts to sleep if no completion can wake it.
const LONG_SPIN: Duration = Duration::from_millis(1);

/// The divisor of the time already waited; the quotient is the length of the next sleep.
const PART: u32 = 16;

/// The maximum length of a sleep that a completion does not end.
const LONGEST: Duration = Duration::from_millis(10);

impl Patience {
    pub(crate) fn new(waits: Option<&Arc<dyn WaitOps>>) -> Self {
        Self { start: Instant::now(), waits: waits.cloned(), wait: None }
    }

    /// Returns the number of polls between two [rests](Self::rest).
    pub(crate) fn polls(&self) -> u32 {
        // With a wait, a sleep ends only when there may be a completion.
        if self.wait.is_some() { 1 } else { POLLS_A_LOOK }
    }

    /// Waits briefly after unsuccessful polls, at most until `deadline`. Returns false if the
    /// deadline has passed.
    ///
    /// # Errors
    /// Any errno from `ppoll(2)`.
    pub(crate) fn rest(&mut self, deadline: Option<Instant>) -> Result<bool, Errno> {
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Ok(false);
        }
        let left = deadline.map(|deadline| deadline - now);
        let waited = now - self.start;
        if let Some(waits) = &self.waits {
            if waited >= SPIN {
                let wait = self.wait.get_or_insert_with(|| Arc::clone(waits).start(Awaited::Completion));
                if wait.work() == Next::Sleep {
                    event_file::sleep(None, Some(&**wait), left)?;
                }
            }
        } else if waited >= LONG_SPIN {
            let nap = (waited / PART).min(LONGEST);
            std::thread::sleep(left.map_or(nap, |left| left.min(nap)));
        } else if waited >= SPIN {
            std::thread::yield_now();
        }
        Ok(true)
    }
}
