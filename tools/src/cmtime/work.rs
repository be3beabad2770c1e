//! [`WorkQueue`]: pending work items.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A queue of work items, which any number of threads execute in order.
#[derive(Debug)]
pub struct WorkQueue<W> {
    state: Mutex<State<W>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<W> {
    work: VecDeque<W>,
    /// The number of waiting threads that have not been woken. Only waking these needs a system
    /// call. A thread that wakes spuriously is counted twice, which costs one extra system call.
    waiting: usize,
    is_stopped: bool,
}

impl<W> Default for WorkQueue<W> {
    fn default() -> Self {
        let state = State { work: VecDeque::new(), waiting: 0, is_stopped: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<W> WorkQueue<W> {
    /// Adds a work item.
    pub fn insert(&self, work: W) {
        let mut state = self.state();
        state.work.push_back(work);
        let is_awaited = state.waiting > 0;
        state.waiting = state.waiting.saturating_sub(1);
        drop(state);
        if is_awaited {
            self.changed.notify_one();
        }
    }

    /// Waits for a work item; returns `None` once the queue is stopped.
    pub fn next(&self) -> Option<W> {
        let mut state = self.state();
        loop {
            if state.is_stopped {
                return None;
            }
            if let Some(work) = state.work.pop_front() {
                return Some(work);
            }
            state.waiting += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the waits of all threads.
    pub fn stop(&self) {
        self.state().is_stopped = true;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn each_piece_of_work_is_done_once_and_a_stop_ends_all_waits() {
        let queue = WorkQueue::default();
        let (sum, done) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while let Some(work) = queue.next() {
                        sum.fetch_add(work, Ordering::Relaxed);
                        if done.fetch_add(1, Ordering::Relaxed) == 99 {
                            queue.stop();
                        }
                    }
                });
            }
            (1..=100).for_each(|work| queue.insert(work));
        });
        assert_eq!(sum.into_inner(), 5050);
        assert_eq!(queue.next(), None);
    }
}
