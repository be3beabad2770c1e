//! [`Queue`]: the unread events of a channel.
//!
//! ```text
//!   manager ─► push ─► entries ─► next ─► RawEvent
//!          └─► signal ─► eventfd
//! ```
//!
//! Invariant: the descriptor is readable exactly while there is an entry, except between a
//! [`push`](Queue::push) and the following [`signal`](Queue::signal). The manager signals after
//! releasing its lock. Otherwise a reader waking at once on another processor would wait for that
//! lock in its next call. For the same reason the descriptor is written without the entries' lock.
//!
//! `Entries::is_readable` changes under the lock. Each change to true is followed by one write of
//! 1, each change to false by one read. The descriptor is a semaphore: a read takes 1, after
//! waiting for a pending write if necessary. Since changes alternate, all writes and reads together
//! leave 1 if `is_readable` is true and 0 otherwise. A thread about to write never waits.
//!
//! For an event behind unread events, 0 is written. This leaves the count unchanged but makes a new
//! edge for epoll, as the kernel's file does for each event.
//!
//! An entry belongs to an id. It moves with the id to another channel or is dropped with the id.
//! The program gets every entry: events of a pending request are dropped before they are queued
//! ([`Id::is_silent`](super::record::Id::is_silent)), as in `ucma_event_handler`.
//!
//! A queue may be locked while the manager's lock is held, but never vice versa. Only
//! [`move_to`](Queue::move_to) locks two queues at once, under the manager's lock. Removed requests
//! are dropped without the manager's lock, because dropping a request's id takes that lock.

use std::collections::LinkedList;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno as NixErrno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use verbs::{Ece, Errno, Error, Result};

use super::backlog::BacklogSlot;
use super::chunks::Chunks;
use super::key::Key;
use super::param::SoftParam;
use crate::backend::{Backend, RawEvent};
use crate::types::EventType;

/// The unread events of a channel.
#[derive(Debug)]
pub(super) struct Queue {
    entries: Mutex<Entries>,
    readable: EventFd,
}

#[derive(Debug, Default)]
struct Entries {
    list: Chunks<Entry>,
    /// Whether the descriptor is readable, or about to be made readable by a thread. This saves the
    /// system call for all events except the first.
    is_readable: bool,
}

/// An unread event.
#[derive(Debug)]
pub(super) struct Entry {
    /// The id that the event belongs to; for a connection request, the listener.
    pub(super) owner: Key,
    /// The cookie of the event.
    pub(super) cookie: u64,
    pub(super) event: EventType,
    pub(super) status: i32,
    pub(super) param: SoftParam,
    pub(super) ece: Ece,
    pub(super) request: Option<Unread>,
}

/// A connection request that the program has not read.
#[derive(Debug)]
pub(super) struct Unread {
    pub(super) key: Key,
    /// The request's id. Dropping it takes the manager's lock and ends the request.
    pub(super) id: Box<dyn Backend>,
    /// The slot in the listener's backlog.
    pub(super) slot: BacklogSlot,
}

/// Requests whose events were removed. Each element is a small allocation, so that destruction
/// works when memory is short.
pub(super) type Requests = LinkedList<Unread>;

impl Queue {
    /// Returns a queue without events.
    ///
    /// # Errors
    /// Any errno from `eventfd(2)`.
    pub(super) fn new() -> Result<Arc<Self>> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_SEMAPHORE;
        let readable = EventFd::from_flags(flags)
            .map_err(|errno| Error::new("create_event_channel", "", errno.into()))?;
        Ok(Arc::new(Self { entries: Mutex::default(), readable }))
    }

    /// Reserves memory for one more event.
    ///
    /// # Errors
    /// `ENOMEM` if memory is short.
    pub(super) fn reserve(&self) -> Result<(), Errno> {
        self.lock().list.reserve().map_err(|_| Errno::NOMEM)
    }

    /// Adds an event, or returns it if memory is short. [`signal`](Self::signal) then wakes threads
    /// waiting for the descriptor.
    #[must_use]
    pub(super) fn push(&self, entry: Entry) -> Option<Entry> {
        self.lock().list.push(entry).err()
    }

    /// Makes the descriptor readable if an event is queued.
    pub(super) fn signal(&self) {
        let entries = self.lock();
        let makes_edge = entries.is_readable && !entries.list.is_empty();
        self.settle(entries);
        if makes_edge {
            let _ = self.readable.write(0);
        }
    }

    /// Returns the next event; `None` if no event is queued.
    pub(super) fn next(&self) -> Option<RawEvent> {
        let mut entries = self.lock();
        let entry = entries.list.pop()?;
        self.settle(entries);
        Some(RawEvent {
            uid: entry.cookie,
            kernel_number: None,
            event: entry.event,
            status: entry.status,
            param: Box::new(entry.param),
            ece: entry.ece,
            request: entry.request.map(|request| request.id),
        })
    }

    /// Removes the events selected by `is_taken`, and returns the requests among them.
    pub(super) fn discard(&self, is_taken: impl Fn(&Entry) -> bool) -> Requests {
        let mut entries = self.lock();
        let mut requests = Requests::new();
        entries.list.retain(|entry| {
            let is_taken = is_taken(entry);
            if is_taken {
                requests.extend(entry.request.take());
            }
            !is_taken
        });
        self.settle(entries);
        requests
    }

    /// Moves the events selected by `is_moved` to another queue, and calls `each` with them.
    /// [`signal`](Self::signal) of that queue then wakes its readers.
    ///
    /// # Errors
    /// `ENOMEM` if memory is short. The first event that did not fit stays, as do all events behind
    /// it.
    pub(super) fn move_to(
        &self,
        to: &Self,
        is_moved: impl Fn(&Entry) -> bool,
        mut each: impl FnMut(&Entry),
    ) -> Result<(), Errno> {
        let (mut entries, mut others) = (self.lock(), to.lock());
        // Events that stay are moved to the back of the queue, which needs at most one more chunk.
        entries.list.reserve().map_err(|_| Errno::NOMEM)?;
        let mut result = Ok(());
        for _ in 0..entries.list.iter().count() {
            let Some(entry) = entries.list.pop() else { break };
            let is_moved = result.is_ok() && is_moved(&entry);
            if is_moved {
                result = others.list.reserve();
            }
            if is_moved && result.is_ok() {
                each(&entry);
                let _ = others.list.push(entry);
            } else {
                let _ = entries.list.push(entry);
            }
        }
        drop(others);
        self.settle(entries);
        result.map_err(|_| Errno::NOMEM)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }

    /// Makes the descriptor readable if there are entries, and unreadable otherwise.
    fn settle(&self, mut entries: MutexGuard<'_, Entries>) {
        let has_event = !entries.list.is_empty();
        if has_event == entries.is_readable {
            return;
        }
        entries.is_readable = has_event;
        drop(entries);
        if has_event {
            // Each thread adds at most 1, so the counter never overflows.
            let _ = self.readable.write(1);
        } else {
            self.take_signal();
        }
    }

    /// Reads the descriptor. Waits for the thread about to make it readable.
    fn take_signal(&self) {
        while let Err(NixErrno::EAGAIN | NixErrno::EINTR) = self.readable.read() {
            let _ = poll(&mut [PollFd::new(self.fd(), PollFlags::POLLIN)], PollTimeout::NONE);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;

    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

    use super::*;

    fn is_readable(queue: &Queue) -> bool {
        let mut fds = [PollFd::new(queue.fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    /// Returns an event with a cookie.
    fn entry(cookie: u64) -> Entry {
        Entry {
            owner: Key(1),
            cookie,
            event: EventType::ESTABLISHED,
            status: 0,
            param: SoftParam::default(),
            ece: Ece::default(),
            request: None,
        }
    }

    #[test]
    fn the_descriptor_is_readable_from_the_signal_to_the_last_event() {
        let queue = Queue::new().unwrap();
        assert!(queue.push(entry(7)).is_none());
        assert!(queue.push(entry(8)).is_none());
        assert!(!is_readable(&queue), "before the signal");
        queue.signal();
        assert_eq!((queue.next().map(|event| event.uid), is_readable(&queue)), (Some(7), true));
        assert_eq!((queue.next().map(|event| event.uid), is_readable(&queue)), (Some(8), false));
        assert!(queue.next().is_none());
        assert!(queue.push(entry(9)).is_none());
        queue.signal();
        assert!(queue.discard(|_| true).is_empty(), "it is no request");
        assert!(queue.next().is_none() && !is_readable(&queue));
    }

    #[test]
    fn events_that_move_are_in_the_other_queue_in_order_and_the_rest_stay() {
        let (from, to) = (Queue::new().unwrap(), Queue::new().unwrap());
        for cookie in 0..6 {
            assert!(from.push(entry(cookie)).is_none());
        }
        from.signal();
        let mut seen = Vec::new();
        from.move_to(&to, |entry| entry.cookie % 2 == 0, |entry| seen.push(entry.cookie)).unwrap();
        to.signal();
        let cookies = |queue: &Queue| -> Vec<_> {
            assert!(is_readable(queue));
            core::iter::from_fn(|| queue.next()).map(|event| event.uid).collect()
        };
        assert_eq!((cookies(&from), cookies(&to), seen), (vec![1, 3, 5], vec![0, 2, 4], vec![0, 2, 4]));
        assert!(!is_readable(&from) && !is_readable(&to));
    }

    #[test]
    fn each_event_makes_an_edge_whether_or_not_the_ones_before_were_read() {
        let queue = Queue::new().unwrap();
        let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
        epoll.add(queue.fd(), EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 1)).unwrap();
        let edges = || epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO).unwrap();
        for cookie in 0..3 {
            assert!(queue.push(entry(cookie)).is_none());
            queue.signal();
            assert_eq!((edges(), edges()), (1, 0), "{cookie}");
        }
        assert!(queue.next().is_some());
        assert_eq!((edges(), is_readable(&queue)), (0, true));
        assert!(queue.discard(|_| true).is_empty());
        assert!(!is_readable(&queue));
    }

    #[test]
    fn an_event_that_is_read_before_its_signal_leaves_none() {
        let queue = Queue::new().unwrap();
        assert!(queue.push(entry(7)).is_none());
        assert!(queue.next().is_some());
        queue.signal();
        assert!(!is_readable(&queue));
    }

    #[test]
    fn threads_that_push_and_read_lose_no_signal_and_leave_none_behind() {
        const EVENTS: usize = 5_000;
        const READERS: usize = 2;
        let queue = Queue::new().unwrap();
        let (left, is_over) = (AtomicUsize::new(2 * EVENTS), AtomicBool::new(false));
        let push = || {
            assert!(queue.push(entry(1)).is_none());
            queue.signal();
        };
        let read = || {
            while !is_over.load(Ordering::Acquire) {
                let mut fds = [PollFd::new(queue.fd(), PollFlags::POLLIN)];
                assert_eq!(poll(&mut fds, PollTimeout::from(20_000_u16)), Ok(1), "a signal is lost");
                if queue.next().is_some() && left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    is_over.store(true, Ordering::Release);
                    // Each of the other readers takes at most one of these events, or finds one
                    // left.
                    (0..READERS).for_each(|_| push());
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..READERS {
                scope.spawn(read);
                scope.spawn(|| (0..EVENTS).for_each(|_| push()));
            }
        });
        while queue.next().is_some() {}
        assert!(!is_readable(&queue));
    }
}
