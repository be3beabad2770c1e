//! [`EventRequests`]: requests for a completion queue's event, made without waiting for the
//! device's lock.
//!
//! A thread notes its request here and [announces](crate::sync::combining_lock) it, like posted
//! work. The lock holder takes the request and [arms](crate::sync::notify) the queue. In between,
//! the holder may have put completions into the queue, and the program may already have polled
//! them. A request therefore carries two numbers:
//!
//! - the number of completions that do not count for it: those [freed](Published) or announced by
//!   an event before the request. All other completions count, whether or not they have been polled
//!   since.
//! - the number of events raised by the queue before the request. If the queue has raised another
//!   event since, the request is already satisfied: it was made while an earlier request was
//!   pending, so both share the event.
//!
//! ```text
//!   raised   count       the holder takes the request, and
//!   differs              does nothing
//!   equal    equal       arms the queue
//!   equal    differs     raises the event
//! ```
//!
//! A completion that arrived before the request, unpolled and without an event, thus raises the
//! event at once. The specification requires the program to poll after the request. UCX does not:
//! it polls, requests an event and waits. On a ConnectX this works, because every unpolled
//! completion raises the event. Here the completion that raised the last event does not raise
//! another: most programs request the next event before they poll that completion.
//!
//! There is one word for each kind of request. Of two requests of a kind, the older request stays:
//! each completion that counts for the later request also counts for the older one. The event comes
//! after both requests. libmlx5 also shares an event between requests: it gives them the same
//! sequence number until the program has read the event.
//!
//! A thread reads the number of events before the number of completions. If it sees an event, it
//! also sees the completion that raised it. In the other order, this completion could raise a
//! second event. The number of announced completions shares a word with the number of events.

use core::cmp::Ordering::{Equal, Greater, Less};

use crate::sync::notify::Armed;
use crate::sync::primitives::atomic::{AtomicU64, Ordering};
use crate::sync::ring::Published;

/// Requests for a completion queue's events that the lock holder has not yet taken.
#[derive(Debug)]
pub(crate) struct EventRequests {
    /// The pending request for an event on solicited completions: 0 if none, or a [`Request`].
    solicited: AtomicU64,
    /// The pending request for an event on any completion: 0 if none, or a [`Request`].
    next: AtomicU64,
    /// The number of events raised by the queue (upper half), and the number of completions
    /// published before the last event (lower half). Only the lock holder changes this word.
    raised: AtomicU64,
}

/// A request for a completion queue's next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The number of events raised before the request, modulo 2³¹.
    raised: u32,
    /// The number of completions that do not count for the request, modulo 2³².
    count: u32,
}

impl EventRequests {
    pub(crate) fn new() -> Self {
        Self { solicited: AtomicU64::new(0), next: AtomicU64::new(0), raised: AtomicU64::new(0) }
    }

    /// Requests an event for later completions, and for earlier completions that are neither freed
    /// nor announced by an event. The caller must announce the request to the lock holder.
    pub(crate) fn add(&self, armed: Armed, published: &Published) {
        let (raised, announced) = events(self.raised.load(Ordering::Acquire));
        let freed = published.freed();
        let count = published.count();
        // Uses the later of the two numbers; both are at most `count`.
        let left = count.wrapping_sub(freed).min(count.wrapping_sub(announced));
        self.note(armed, Request { raised, count: count.wrapping_sub(left) });
    }

    fn note(&self, armed: Armed, request: Request) {
        let Some(word) = self.word(armed) else { return };
        let mut seen = word.load(Ordering::Relaxed);
        while Request::from_word(seen).is_none_or(|other| request.replaces(other)) {
            match word.compare_exchange_weak(seen, request.word(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Removes the request of this kind. Returns the request unless a later event has already
    /// satisfied it. The caller must hold the device's lock.
    pub(crate) fn take(&self, armed: Armed) -> Option<Request> {
        let request = Request::from_word(self.word(armed)?.swap(0, Ordering::Acquire))?;
        (request.raised == events(self.raised.load(Ordering::Relaxed)).0).then_some(request)
    }

    /// Counts an event, which satisfies all requests made before and announces the first `count`
    /// completions. The caller must hold the device's lock and have published these completions.
    pub(crate) fn count_event(&self, count: u32) {
        let raised = events(self.raised.load(Ordering::Relaxed)).0.wrapping_add(1);
        self.raised.store(u64::from(raised) << 32 | u64::from(count), Ordering::Release);
    }

    fn word(&self, armed: Armed) -> Option<&AtomicU64> {
        match armed {
            Armed::Not => None,
            Armed::Solicited => Some(&self.solicited),
            Armed::Next => Some(&self.next),
        }
    }
}

impl Request {
    /// Returns the number of completions, out of the first `count`, that count for the request.
    pub(crate) fn later(self, count: u32) -> u32 {
        count.wrapping_sub(self.count)
    }

    /// Returns whether this request replaces `other`, a request of the same kind, because `other`
    /// is already satisfied or is later.
    fn replaces(self, other: Self) -> bool {
        match difference(self.raised << 1, other.raised << 1).cmp(&0) {
            Less => false,
            Equal => difference(self.count, other.count) < 0,
            Greater => true,
        }
    }

    fn from_word(word: u64) -> Option<Self> {
        (word & PRESENT != 0).then_some(Self { raised: (word >> 32) as u32 & RAISED, count: word as u32 })
    }

    fn word(self) -> u64 {
        PRESENT | u64::from(self.raised) << 32 | u64::from(self.count)
    }
}

/// Splits the word `raised` into the number of events, modulo 2³¹, and the number of announced
/// completions.
fn events(word: u64) -> (u32, u32) {
    ((word >> 32) as u32 & RAISED, word as u32)
}

/// Returns the signed difference of two wrapping numbers.
fn difference(one: u32, other: u32) -> i32 {
    one.wrapping_sub(other).cast_signed()
}

/// Bit set in a word that holds a request.
const PRESENT: u64 = 1 << 63;
/// The mask for the number of events in a request.
const RAISED: u32 = u32::MAX >> 1;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::ring::ring;

    #[test]
    fn a_request_is_taken_once_with_the_completions_polled_before_it() {
        let (mut producer, mut consumer) = ring::<u32>(4, 0).unwrap();
        let (requests, published) = (EventRequests::new(), consumer.published());
        assert_eq!((requests.take(Armed::Next), requests.take(Armed::Solicited)), (None, None));
        for later in 0..3 {
            consumer.clear();
            requests.add(Armed::Next, &published);
            for n in 0..later {
                producer.put(n, [].into_iter());
            }
            producer.publish();
            assert_eq!(requests.take(Armed::Solicited), None, "it is of the other kind");
            assert_eq!(requests.take(Armed::Next).unwrap().later(producer.count()), later);
            assert_eq!(requests.take(Armed::Next), None, "once");
        }
    }

    #[test]
    fn an_event_settles_the_requests_from_before() {
        let (requests, published) = (EventRequests::new(), ring::<u32>(1, 0).unwrap().1.published());
        for armed in [Armed::Next, Armed::Solicited] {
            requests.add(armed, &published);
            requests.count_event(0);
            assert_eq!(requests.take(armed), None);
            requests.add(armed, &published);
            requests.count_event(0);
            requests.add(armed, &published);
            assert!(requests.take(armed).is_some(), "it comes after the event");
        }
    }

    #[test]
    fn an_unpolled_completion_counts_unless_an_event_has_announced_it() {
        let (mut producer, mut consumer) = ring::<u32>(8, 0).unwrap();
        let (requests, published) = (EventRequests::new(), consumer.published());
        let mut put = |count: u32| {
            for n in 0..count {
                producer.put(n, [].into_iter());
            }
            producer.publish();
            producer.count()
        };
        let counting = |count: u32| {
            requests.add(Armed::Next, &published);
            requests.take(Armed::Next).unwrap().later(count)
        };
        let count = put(3);
        assert_eq!(counting(count), 3, "no event has announced them");
        assert!(consumer.next().is_some());
        consumer.free_all();
        assert_eq!(counting(count), 2, "one is polled");
        requests.count_event(count);
        assert_eq!(counting(count), 0, "an event has announced all of them");
        let count = put(2);
        assert_eq!(counting(count), 2, "they came after the event");
        consumer.clear();
        assert_eq!(counting(count), 0, "they are polled");
    }

    #[test]
    fn of_two_requests_the_older_one_stays_unless_an_event_has_settled_it() {
        // Across the wrap-around of both numbers.
        for (raised, count) in [(0, 0), (RAISED - 1, u32::MAX - 1), (RAISED, u32::MAX), (5, 1 << 31)] {
            let request = |raised_later: u32, later: u32| Request {
                raised: raised.wrapping_add(raised_later) & RAISED,
                count: count.wrapping_add(later),
            };
            for (first, second, stays) in [
                (request(0, 0), request(0, 2), request(0, 0)),
                (request(0, 2), request(0, 0), request(0, 0)),
                (request(0, 0), request(1, 2), request(1, 2)),
                (request(1, 2), request(0, 0), request(1, 2)),
            ] {
                let requests = EventRequests::new();
                requests.note(Armed::Next, first);
                requests.note(Armed::Next, second);
                requests.raised.store(u64::from(stays.raised) << 32, Ordering::Relaxed);
                assert_eq!(requests.take(Armed::Next), Some(stays), "{first:?}, then {second:?}");
            }
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::combining_lock::{CombiningLock, Guard};
    use crate::sync::pending::PendingSet;
    use crate::sync::primitives::atomic::AtomicU32;
    use crate::sync::primitives::{Arc, thread};
    use crate::sync::ring::{Consumer, Producer, ring};

    /// The part of a completion queue protected by the lock. Its events are not moderated.
    struct End {
        producer: Producer<u32>,
        is_armed: bool,
    }

    /// A completion queue shared by several threads that work on its device.
    struct Queue {
        lock: CombiningLock<End>,
        published: Published,
        requests: EventRequests,
        pending: PendingSet,
        /// The number of packets received. Each packet completes a work request.
        arrived: AtomicU32,
        /// The number of raised events. `channel` keeps an event until it is read.
        events: AtomicU32,
        channel: loom::sync::Notify,
    }

    impl Queue {
        fn new() -> (Arc<Self>, Consumer<u32>) {
            let (producer, consumer) = ring(4, 0).unwrap();
            let queue = Self {
                lock: CombiningLock::new(End { producer, is_armed: false }),
                published: consumer.published(),
                requests: EventRequests::new(),
                pending: PendingSet::new(1),
                arrived: AtomicU32::new(0),
                events: AtomicU32::new(0),
                channel: loom::sync::Notify::new(),
            };
            (Arc::new(queue), consumer)
        }

        fn raise(&self, end: &mut End) {
            end.is_armed = false;
            self.requests.count_event(end.producer.count());
            self.events.fetch_add(1, Ordering::Release);
            self.channel.notify();
        }

        /// Takes a request, as `EngineSink::take_request` does.
        fn take_request(&self, end: &mut End) {
            let Some(request) = self.requests.take(Armed::Next) else { return };
            if end.is_armed {
                return;
            }
            end.is_armed = true;
            if request.later(end.producer.count()) > 0 {
                self.raise(end);
            }
        }

        /// Adds a completion, as `EngineSink::complete` does.
        fn complete(&self, end: &mut End) {
            end.producer.put(0, [].into_iter());
            end.producer.publish();
            if end.is_armed {
                self.raise(end);
            }
        }

        /// Takes announced requests and packets, and releases the lock, as `DeviceState::release`
        /// does.
        fn work(&self, mut guard: Guard<'_, End>) {
            loop {
                if guard.take_pending() {
                    let end = &mut *guard;
                    self.pending.take(|_| self.take_request(end));
                    for _ in 0..self.arrived.swap(0, Ordering::Relaxed) {
                        self.complete(end);
                    }
                }
                match guard.try_release() {
                    Ok(()) => return,
                    Err(again) => guard = again,
                }
            }
        }

        fn announce(&self) {
            if let Some(guard) = self.lock.announce() {
                self.work(guard);
            }
        }

        fn arrive(&self) {
            self.arrived.fetch_add(1, Ordering::Relaxed);
            self.announce();
        }

        /// Requests an event, as `CqHandle::req_notify` does.
        fn request(&self) {
            self.requests.add(Armed::Next, &self.published);
            self.pending.insert(0);
            self.announce();
        }

        /// Calls `work` in another thread.
        fn beside(its: &Arc<Self>, work: fn(&Self)) -> thread::JoinHandle<()> {
            let its = Arc::clone(its);
            thread::spawn(move || work(&its))
        }

        fn events(&self) -> u32 {
            self.events.load(Ordering::Acquire)
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

    fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }

    #[test]
    fn a_program_that_requests_and_polls_and_waits_gets_every_completion() {
        check(2, || {
            let (queue, mut consumer) = Queue::new();
            let threads = [0, 1].map(|_| Queue::beside(&queue, Queue::arrive));
            let mut polled = 0;
            loop {
                queue.request();
                polled += drain(&mut consumer);
                if polled == 2 {
                    break;
                }
                queue.channel.wait();
            }
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn a_program_that_polls_and_requests_and_waits_gets_every_completion() {
        check(2, || {
            let (queue, mut consumer) = Queue::new();
            let threads = [0, 1].map(|_| Queue::beside(&queue, Queue::arrive));
            let mut polled = 0;
            loop {
                // As in UCX, which does not poll between the request and the wait.
                polled += drain(&mut consumer);
                if polled == 2 {
                    break;
                }
                queue.request();
                queue.channel.wait();
            }
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn a_completion_polled_before_the_request_raises_no_event_and_a_later_one_does() {
        check(3, || {
            let (queue, mut consumer) = Queue::new();
            let arriving = Queue::beside(&queue, Queue::arrive);
            let before = drain(&mut consumer);
            queue.request();
            let behind = drain(&mut consumer);
            arriving.join().unwrap();
            let events = queue.events();
            assert!(before == 0 || events == 0, "an event for a completion that was polled before");
            assert!(before + behind + events > 0, "a lost wake-up");
        });
    }

    #[test]
    fn an_unread_completion_whose_event_was_read_raises_no_other() {
        check(3, || {
            let (queue, mut consumer) = Queue::new();
            queue.request();
            let arriving = Queue::beside(&queue, Queue::arrive);
            // The model checker sometimes ends a wait without an event.
            while queue.events() == 0 {
                queue.channel.wait();
            }
            // As in perftest, which requests the next event before polling the completion of the
            // last event.
            queue.request();
            assert_eq!(drain(&mut consumer), 1);
            arriving.join().unwrap();
            assert_eq!(queue.events(), 1);
            queue.arrive();
            assert_eq!(queue.events(), 2, "the request is lost");
        });
    }

    #[test]
    fn two_requests_before_a_completion_share_its_event() {
        check(3, || {
            let (queue, mut consumer) = Queue::new();
            queue.request();
            let threads = [Queue::beside(&queue, Queue::arrive), Queue::beside(&queue, Queue::request)];
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!((queue.events(), drain(&mut consumer)), (1, 1));
        });
    }

    #[test]
    fn threads_that_request_at_a_time_all_get_the_next_event() {
        check(2, || {
            let (queue, mut consumer) = Queue::new();
            let threads = [
                Queue::beside(&queue, Queue::request),
                Queue::beside(&queue, Queue::request),
                Queue::beside(&queue, Queue::arrive),
            ];
            for thread in threads {
                thread.join().unwrap();
            }
            let events = queue.events();
            assert!(events <= 1, "two events for one completion");
            queue.arrive();
            // The first completion preceded both requests, or raised the event.
            assert!(queue.events() >= 1, "both requests are lost");
            assert_eq!(drain(&mut consumer), 2);
        });
    }
}
