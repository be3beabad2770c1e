//! [`Notify`]: decides whether and when a completion raises its queue's event.
//!
//! ```text
//!            arm                      a completion that counts
//!   Idle ──────────► Armed, 0 of n ──────────────────────────► Armed, 1 of n, until a time
//!    ▲                                                            │
//!    └──────────── the n-th completion, or the time: raises ◄─────┘
//! ```
//!
//! Without moderation, n is 1. Only the holder of the device's lock changes the state. If a request
//! is taken late, [`event_requests`](crate::sync::event_requests) decides which completions count
//! for it.

use roce::engine::Time;
use verbs_core::types::CqModeration;

/// Whether a completion queue is armed, and the completions counted towards its event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notify {
    armed: Armed,
    /// The number of completions after which an event is raised; at least 1.
    count: u16,
    /// The maximum time from the first counted completion to the event, in nanoseconds.
    period: u64,
    /// The number of completions counted since the queue was armed.
    pending: u16,
    /// The time when the event is raised even if no more completions arrive.
    until: Option<Time>,
}

/// The completions that count towards the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Armed {
    /// No completions.
    Not,
    /// Failed completions, and completions whose sender solicited an event.
    Solicited,
    /// All completions.
    Next,
}

impl Notify {
    pub(crate) const fn new() -> Self {
        Self { armed: Armed::Not, count: 1, period: 0, pending: 0, until: None }
    }

    /// Returns whether the queue is armed.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed != Armed::Not
    }

    /// Returns whether the queue is already armed for all completions that `armed` includes.
    pub(crate) fn includes(&self, armed: Armed) -> bool {
        self.armed >= armed
    }

    /// Returns the time when the event is raised if no more completions arrive.
    pub(crate) fn until(&self) -> Option<Time> {
        self.until
    }

    /// Arms the queue and returns whether it was not armed before. A queue armed for all
    /// completions stays armed for all, even if solicited completions are requested as well.
    pub(crate) fn arm(&mut self, armed: Armed) -> bool {
        let is_new = !self.is_armed();
        if self.armed != Armed::Next {
            self.armed = armed;
        }
        is_new
    }

    /// Changes the moderation of later events. A queue already waiting for more completions raises
    /// its event at the time set before.
    pub(crate) fn moderate(&mut self, moderation: CqModeration) {
        let CqModeration { cq_count, cq_period } = moderation;
        (self.count, self.period) =
            if cq_count == 0 || cq_period == 0 { (1, 0) } else { (cq_count, u64::from(cq_period) * 1000) };
    }

    /// Counts a completion and returns whether it raises the event, which disarms the queue. `now`
    /// is called only for the first of several completions that together raise one event.
    #[inline]
    pub(crate) fn completed(&mut self, solicited: bool, now: impl FnOnce() -> Time) -> bool {
        let counts = match self.armed {
            Armed::Not => return false,
            Armed::Next => true,
            Armed::Solicited => solicited,
        };
        if !counts {
            return false;
        }
        self.pending = self.pending.saturating_add(1);
        if self.pending >= self.count {
            self.disarm();
            return true;
        }
        if self.until.is_none() {
            self.until = Some(now() + self.period);
        }
        false
    }

    /// Returns whether the event is due; raising it disarms the queue.
    pub(crate) fn expired(&mut self, now: Time) -> bool {
        let is_due = self.until.is_some_and(|until| until <= now);
        if is_due {
            self.disarm();
        }
        is_due
    }

    fn disarm(&mut self) {
        (self.armed, self.pending, self.until) = (Armed::Not, 0, None);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn never() -> Time {
        panic!("the clock is read without need")
    }

    fn moderated(cq_count: u16, cq_period: u16) -> Notify {
        let mut notify = Notify::new();
        notify.moderate(CqModeration { cq_count, cq_period });
        notify
    }

    #[test]
    fn an_armed_queue_raises_one_event() {
        let mut notify = Notify::new();
        assert!(!notify.completed(true, never), "it is not armed");
        assert!(notify.arm(Armed::Next) && !notify.arm(Armed::Next));
        assert!(notify.completed(false, never) && !notify.is_armed());
        assert!(!notify.completed(true, never));
    }

    #[test]
    fn the_wider_of_two_requests_stays() {
        let mut notify = Notify::new();
        notify.arm(Armed::Solicited);
        assert!(!notify.completed(false, never));
        notify.arm(Armed::Next);
        notify.arm(Armed::Solicited);
        assert!(notify.completed(false, never));
    }

    #[test]
    fn the_count_raises_the_event() {
        let mut notify = moderated(3, 10);
        for _ in 0..2 {
            notify.arm(Armed::Solicited);
            assert!(!notify.completed(true, || Time(5)));
            assert!(!notify.completed(false, never), "it does not count");
            assert!(!notify.completed(true, never));
            assert_eq!(notify.until(), Some(Time(10_005)));
            assert!(notify.completed(true, never));
            assert_eq!((notify.until(), notify.is_armed()), (None, false));
        }
    }

    #[test]
    fn the_period_raises_the_event() {
        let mut notify = moderated(3, 10);
        notify.arm(Armed::Next);
        assert!(!notify.expired(Time(u64::MAX)), "there is no completion yet");
        assert!(!notify.completed(false, || Time(5)));
        assert!(!notify.expired(Time(10_004)));
        assert!(notify.expired(Time(10_005)) && !notify.is_armed());
        assert!(!notify.expired(Time(u64::MAX)));
    }

    #[test]
    fn a_count_or_a_period_of_zero_ends_moderation() {
        for (count, period) in [(0, 10), (10, 0), (0, 0), (1, 10)] {
            let mut notify = moderated(5, 5);
            notify.moderate(CqModeration { cq_count: count, cq_period: period });
            notify.arm(Armed::Next);
            assert!(notify.completed(false, never), "{count} {period}");
        }
    }

    #[test]
    fn moderation_that_ends_while_completions_wait_loses_no_event() {
        let mut notify = moderated(9, 10);
        notify.arm(Armed::Next);
        assert!(!notify.completed(false, || Time(0)));
        notify.moderate(CqModeration::default());
        assert_eq!(notify.until(), Some(Time(10_000)));
        assert!(notify.completed(false, never), "the next one raises it");
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::primitives::{Arc, thread};
    use crate::sync::ring::{Consumer, Producer, ring};

    /// The part of a completion queue protected by the lock.
    struct End {
        producer: Producer<u32>,
        notify: Notify,
    }

    /// A completion queue and its channel, shared by the device's threads and the program. A mutex
    /// of the model checker replaces the device's lock, which has separate models.
    #[derive(Clone)]
    struct Queue {
        end: Arc<loom::sync::Mutex<End>>,
        /// The channel, which keeps an event until it is read.
        channel: Arc<loom::sync::Notify>,
    }

    impl Queue {
        fn new() -> (Self, Consumer<u32>) {
            let (producer, consumer) = ring(4, 0).unwrap();
            let end = Arc::new(loom::sync::Mutex::new(End { producer, notify: Notify::new() }));
            (Self { end, channel: Arc::new(loom::sync::Notify::new()) }, consumer)
        }

        /// Adds a completion as `EngineSink::complete` does. Returns whether it raised the event.
        fn complete(&self, value: u32) -> bool {
            let mut end = self.end.lock().unwrap();
            assert!(end.producer.has_room());
            end.producer.put(value, [].into_iter());
            end.producer.publish();
            let raises = end.notify.completed(false, || Time(0));
            if raises {
                self.channel.notify();
            }
            raises
        }

        /// Arms the queue as `Cq::req_notify` does.
        fn arm(&self) {
            self.end.lock().unwrap().notify.arm(Armed::Next);
        }
    }

    fn drain(consumer: &mut Consumer<u32>) -> u32 {
        let mut count = 0;
        while consumer.next().is_some() {
            consumer.free_all();
            count += 1;
        }
        count
    }

    fn check(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(model);
    }

    /// Runs the program's loop until it has polled `count` completions.
    fn serve(queue: &Queue, consumer: &mut Consumer<u32>, count: u32) {
        let mut polled = 0;
        loop {
            queue.arm();
            polled += drain(consumer);
            if polled == count {
                return;
            }
            queue.channel.wait();
        }
    }

    #[test]
    fn a_program_that_arms_and_polls_and_waits_gets_every_completion() {
        check(|| {
            let (queue, mut consumer) = Queue::new();
            let its = queue.clone();
            let device = thread::spawn(move || (0..2).for_each(|n| drop(its.complete(n))));
            serve(&queue, &mut consumer, 2);
            device.join().unwrap();
        });
    }

    #[test]
    fn a_competing_poller_that_works_as_the_device_takes_no_wake_up_along() {
        check(|| {
            let (queue, mut consumer) = Queue::new();
            // The worker and a thread polling another queue of the device.
            let threads = [0, 1].map(|n| {
                let its = queue.clone();
                thread::spawn(move || its.complete(n))
            });
            serve(&queue, &mut consumer, 2);
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    /// Returns whether the model checker finds an interleaving that loses a wake-up: a completion
    /// is in the ring and the program is about to wait, but no event will wake it.
    fn loses_a_wake_up(step: impl Fn(&Queue, &mut Consumer<u32>) + Send + Sync + 'static) -> bool {
        use std::sync::atomic::{AtomicBool, Ordering};
        let lost = std::sync::Arc::new(AtomicBool::new(false));
        let found = std::sync::Arc::clone(&lost);
        check(move || {
            let (queue, mut consumer) = Queue::new();
            let its = queue.clone();
            let device = thread::spawn(move || its.complete(0));
            step(&queue, &mut consumer);
            let raised = device.join().unwrap();
            if !raised && drain(&mut consumer) > 0 {
                found.store(true, Ordering::Relaxed);
            }
        });
        lost.load(Ordering::Relaxed)
    }

    #[test]
    fn a_wake_up_is_lost_by_a_program_that_polls_before_it_arms_and_by_no_other() {
        assert!(!loses_a_wake_up(|queue, consumer| {
            queue.arm();
            drain(consumer);
        }));
        assert!(loses_a_wake_up(|queue, consumer| {
            drain(consumer);
            queue.arm();
        }));
    }
}
