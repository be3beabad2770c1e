//! [`Queue`]: the events of a channel that no program has read.
//!
//! ```text
//!   manager ─► push ─► entries, eventfd ─► next ─► RawEvent
//! ```
//!
//! Invariant: the descriptor is readable exactly while an entry has a cookie. Both change under one
//! lock.
//!
//! An entry belongs to an id, with which it moves to another channel or ends. It carries the id's
//! cookie by reference: the id of a connection request gets a cookie when the request is read, and
//! its later events stay in the queue until then.
//!
//! The lock of the manager may be held while a queue is locked, never the other way round. Entries
//! that are taken out are dropped without the lock of the manager, because the id of a request
//! takes it when it ends.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};
use verbs::{Ece, Error, Result};

use super::param::SoftParam;
use super::record::Key;
use super::{RawEvent, SoftId};
use crate::backend::Backend;
use crate::types::EventType;

/// The events of a channel.
#[derive(Debug)]
pub(super) struct Queue {
    entries: Mutex<Entries>,
    readable: EventFd,
}

#[derive(Debug, Default)]
struct Entries {
    list: VecDeque<Entry>,
    /// The descriptor is readable: a change of it costs a system call, and an event of many none.
    is_readable: bool,
}

/// An event that was not read.
#[derive(Debug)]
pub(super) struct Entry {
    /// The id that the event belongs to. Of a connection request, the listener.
    pub(super) owner: Key,
    /// The cookie that the event carries; 0 while its id has none.
    pub(super) cookie: Arc<AtomicU64>,
    pub(super) event: EventType,
    pub(super) status: i32,
    pub(super) param: SoftParam,
    pub(super) ece: Ece,
    /// The id of a connection request, and its place in the listener's backlog.
    pub(super) request: Option<(SoftId, Waiting)>,
}

/// A place in a listener's backlog, which dropping it frees.
#[derive(Debug)]
pub(super) struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    /// Takes a place; `None` if `backlog` requests wait.
    pub(super) fn take(waiting: &Arc<AtomicUsize>, backlog: usize) -> Option<Self> {
        // Places are taken under the lock of the manager alone.
        if waiting.load(Ordering::Relaxed) >= backlog {
            return None;
        }
        waiting.fetch_add(1, Ordering::Relaxed);
        Some(Self(Arc::clone(waiting)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Queue {
    /// # Errors
    /// Any errno of `eventfd(2)`.
    pub(super) fn new() -> Result<Arc<Self>> {
        let readable = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|errno| Error::new("create_event_channel", "", errno.into()))?;
        Ok(Arc::new(Self { entries: Mutex::default(), readable }))
    }

    pub(super) fn push(&self, entry: Entry) {
        let mut entries = self.lock();
        entries.list.push_back(entry);
        self.signal(&mut entries);
    }

    /// Returns the next event whose id has a cookie; `None` if there is none now.
    pub(super) fn next(&self) -> Option<RawEvent> {
        let mut entries = self.lock();
        let at = entries.list.iter().position(Entry::has_cookie)?;
        let entry = entries.list.remove(at)?;
        self.signal(&mut entries);
        drop(entries);
        Some(RawEvent {
            uid: entry.cookie.load(Ordering::Relaxed),
            kernel_number: None,
            event: entry.event,
            status: entry.status,
            param: Box::new(entry.param),
            ece: entry.ece,
            request: entry.request.map(|(id, _)| Box::new(id) as Box<dyn Backend>),
        })
    }

    /// Makes the events of an id readable that has got its cookie.
    pub(super) fn cookie_is_set(&self) {
        self.signal(&mut self.lock());
    }

    /// Takes out the events that `is_taken` chooses.
    pub(super) fn take(&self, is_taken: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        let mut entries = self.lock();
        if !entries.list.iter().any(&is_taken) {
            return Vec::new();
        }
        let (taken, kept): (Vec<_>, Vec<_>) = entries.list.drain(..).partition(is_taken);
        entries.list.extend(kept);
        self.signal(&mut entries);
        taken
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }

    /// Makes the descriptor readable, or not, as the entries are.
    fn signal(&self, entries: &mut Entries) {
        let has_event = entries.list.iter().any(Entry::has_cookie);
        if has_event == entries.is_readable {
            return;
        }
        entries.is_readable = has_event;
        // The one writes to an empty counter, the other reads one that is not, so neither fails.
        let _ = if has_event { self.readable.write(1).map(drop) } else { self.readable.read().map(drop) };
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn has_cookie(&self) -> bool {
        self.cookie.load(Ordering::Relaxed) != 0
    }
}
