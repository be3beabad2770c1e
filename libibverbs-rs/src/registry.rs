//! [`Registry`]: what all objects of one open device share, and the ids that the kernel knows them
//! by.
//!
//! The kernel gets a slot + generation id as `user_handle` of everything that raises events, never
//! a pointer: an event that comes late, or that somebody made up, finds nothing. See
//! [`verbs_core::slots`].

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verbs_core::slots::{SlotId, Slots};
use verbs_core::{Cause, Errno, Error};

/// Names a completion queue in events: [`Cq::id`](crate::Cq::id).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CqId(pub(crate) SlotId);

/// Names a queue pair in events: [`Qp::id`](crate::Qp::id).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpId(pub(crate) SlotId);

/// The slot and the generation of the id: `#3.1`. No other live queue of the device has the same.
impl fmt::Display for CqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The slot and the generation of the id: `#3.1`. No other live queue pair of the device has the
/// same.
impl fmt::Display for QpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Tells protection domains apart, also those of different devices, for as long as the process
/// runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Public for the sealed trait of memory alone.
#[allow(unreachable_pub)]
pub struct PdId(u64);

impl PdId {
    /// Returns an id that no other protection domain has.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A parent, whatever its type: it lives while this does.
pub(crate) type Parent = Arc<dyn Any + Send + Sync>;

/// What all objects of one open device share.
#[derive(Debug)]
pub(crate) struct Registry {
    device: Box<str>,
    cqs: Mutex<Slots<()>>,
    qps: Mutex<Slots<()>>,
    pub(crate) pd_tally: Tally,
    pub(crate) cq_tally: Tally,
    pub(crate) channel_tally: Tally,
    pub(crate) stream_tally: Tally,
}

impl Registry {
    pub(crate) fn new(device: &str) -> Arc<Self> {
        Arc::new(Self {
            device: device.into(),
            cqs: Mutex::default(),
            qps: Mutex::default(),
            pd_tally: Tally::default(),
            cq_tally: Tally::default(),
            channel_tally: Tally::default(),
            stream_tally: Tally::default(),
        })
    }

    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    pub(crate) fn error(&self, verb: &'static str, errno: Errno) -> Error {
        Error::new(verb, &self.device, errno)
    }

    pub(crate) fn in_use(&self, verb: &'static str, by: &'static str) -> Error {
        self.error(verb, Errno::BUSY).because(Cause::InUse { by })
    }

    pub(crate) fn foreign(&self, verb: &'static str, what: &'static str) -> Error {
        self.error(verb, Errno::INVAL).because(Cause::Foreign { what })
    }

    /// What keeps the device open, besides a handle of it.
    pub(crate) fn users(&self) -> &'static str {
        let tallies = [
            (&self.pd_tally, "protection domains"),
            (&self.cq_tally, "completion queues"),
            (&self.channel_tally, "completion channels"),
            (&self.stream_tally, "streams of asynchronous events"),
        ];
        tallies.into_iter().find(|(tally, _)| tally.any()).map_or("clones of the handle", |(_, what)| what)
    }

    /// An id that stays live until the entry is dropped.
    pub(crate) fn enter(self: &Arc<Self>, kind: Kind) -> Entry {
        Entry { id: self.table(kind).insert(()), kind, registry: Arc::clone(self) }
    }

    pub(crate) fn cq(&self, raw: u64) -> Option<CqId> {
        let id = SlotId(raw);
        self.table(Kind::Cq).get(id).map(|()| CqId(id))
    }

    pub(crate) fn qp(&self, raw: u64) -> Option<QpId> {
        let id = SlotId(raw);
        self.table(Kind::Qp).get(id).map(|()| QpId(id))
    }

    fn table(&self, kind: Kind) -> MutexGuard<'_, Slots<()>> {
        let table = match kind {
            Kind::Cq => &self.cqs,
            Kind::Qp => &self.qps,
        };
        table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which table an id is of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Cq,
    Qp,
}

/// An id that is live while this is.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: SlotId,
    kind: Kind,
    registry: Arc<Registry>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.registry.table(self.kind).remove(self.id);
    }
}

/// What a child holds of its parent.
#[derive(Debug)]
pub(crate) struct Child {
    // Dropped first, so that a parent that this was the last to hold counts it no more.
    _tally: Tally,
    _parent: Parent,
}

impl Child {
    pub(crate) fn new(parent: Parent, tally: &Tally) -> Self {
        Self { _tally: tally.clone(), _parent: parent }
    }
}

/// Counts the children of one kind that a parent has: each holds a clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(Arc<()>);

impl Tally {
    /// Is there a child?
    pub(crate) fn any(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}
