//! [`Registry`]: the state shared by all objects of one open device, and their ids in events.
//!
//! The `user_handle` of every object that raises events is a slot number with a generation, never a
//! pointer, so a late event or an invented id matches no object. See [`verbs_core::slots`].

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use verbs_core::fork::ForkLock;
use verbs_core::slots::{SlotId, Slots};
use verbs_core::{Cause, Errno, Error, Result, room};

/// The id of a completion queue in events: [`Cq::id`](crate::Cq::id).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CqId(pub(crate) SlotId);

/// The id of a queue pair in events: [`Qp::id`](crate::Qp::id).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpId(pub(crate) SlotId);

/// The id of a work queue in events: [`Wq::id`](crate::Wq::id).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WqId(pub(crate) SlotId);
/// The id of a shared receive queue in events: [`Srq::id`](crate::Srq::id).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SrqId(pub(crate) SlotId);

/// Writes the slot and the generation of the id, such as `#3.1`. No other live completion queue of
/// the device has the same id.
impl fmt::Display for CqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Writes the slot and the generation of the id, such as `#3.1`. No other live queue pair of the
/// device has the same id.
impl fmt::Display for QpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Writes the slot and the generation of the id, such as `#3.1`. No other live shared receive queue
/// of the device has the same id.
impl fmt::Display for SrqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Writes the slot and the generation of the id, such as `#3.1`. No other live work queue of the
/// device has the same id.
impl fmt::Display for WqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns a `'static` copy of a device name, so that completion errors can name the device at no
/// cost. A process keeps one copy of each distinct name.
fn interned(name: &str) -> &'static str {
    static NAMES: ForkLock<BTreeSet<&'static str>> = ForkLock::new(BTreeSet::new());
    let mut names = NAMES.lock_or(BTreeSet::new);
    if let Some(known) = names.get(name) {
        return known;
    }
    let name: &'static str = Box::leak(name.into());
    names.insert(name);
    name
}

/// The id of a protection domain, unique across all devices for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Public only because a sealed memory trait names it.
#[allow(unreachable_pub)]
pub struct PdId(u64);

impl PdId {
    /// Returns a new id, unique in this process.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A share of a parent object of any type.
pub(crate) type Parent = Arc<dyn Any + Send + Sync>;

/// A counter of events that were read, present for some completion queues
/// ([`CqOps::event_counter`](verbs_core::provider::CqOps::event_counter)).
type Counter = Option<Arc<AtomicU32>>;

/// The state shared by all objects of one open device.
#[derive(Debug)]
pub(crate) struct Registry {
    device: &'static str,
    cqs: Mutex<Slots<Counter>>,
    qps: Mutex<Slots<Counter>>,
    wqs: Mutex<Slots<Counter>>,
    srqs: Mutex<Slots<Counter>>,
    /// State shared by the device's queues. A higher-level module defines its type.
    queues: OnceLock<Parent>,
    pub(crate) pd_tally: Tally,
    pub(crate) cq_tally: Tally,
    pub(crate) channel_tally: Tally,
    pub(crate) stream_tally: Tally,
    pub(crate) dm_tally: Tally,
    pub(crate) dmah_tally: Tally,
    pub(crate) td_tally: Tally,
    pub(crate) xrcd_tally: Tally,
    pub(crate) table_tally: Tally,
    pub(crate) flow_tally: Tally,
    pub(crate) action_tally: Tally,
    pub(crate) counters_tally: Tally,
    pub(crate) comp_cntr_tally: Tally,
}

impl Registry {
    pub(crate) fn new(device: &str) -> Arc<Self> {
        Arc::new(Self {
            device: interned(device),
            cqs: Mutex::default(),
            qps: Mutex::default(),
            wqs: Mutex::default(),
            srqs: Mutex::default(),
            queues: OnceLock::new(),
            pd_tally: Tally::default(),
            cq_tally: Tally::default(),
            channel_tally: Tally::default(),
            stream_tally: Tally::default(),
            dm_tally: Tally::default(),
            dmah_tally: Tally::default(),
            td_tally: Tally::default(),
            xrcd_tally: Tally::default(),
            table_tally: Tally::default(),
            flow_tally: Tally::default(),
            action_tally: Tally::default(),
            counters_tally: Tally::default(),
            comp_cntr_tally: Tally::default(),
        })
    }

    pub(crate) fn device(&self) -> &'static str {
        self.device
    }

    /// Returns the state shared by the device's queues. The first call creates the state; all calls
    /// must use the same type `T`.
    pub(crate) fn shared_by_queues<T: Any + Send + Sync>(&self, make: fn() -> T) -> Arc<T> {
        let state = self.queues.get_or_init(|| Arc::new(make()));
        Arc::clone(state).downcast().unwrap_or_else(|_| unreachable!("the queues share one type of state"))
    }

    pub(crate) fn error(&self, verb: &'static str, errno: Errno) -> Error {
        Error::new(verb, self.device, errno)
    }

    /// Checks that memory is available for the small allocations of a call that creates an object.
    /// A failed small allocation would abort the process.
    ///
    /// # Errors
    /// `ENOMEM` with [`Cause::Allocation`].
    pub(crate) fn room(&self, verb: &'static str) -> Result<()> {
        room::check(room::CALL).map_err(|errno| self.short(verb, errno, room::CALL))
    }

    /// Returns the error for a failed allocation of `bytes` bytes.
    pub(crate) fn short(&self, verb: &'static str, errno: Errno, bytes: usize) -> Error {
        let error = self.error(verb, errno);
        if errno == Errno::NOMEM { error.because(Cause::Allocation { bytes: bytes as u64 }) } else { error }
    }

    pub(crate) fn in_use(&self, verb: &'static str, by: &'static str) -> Error {
        self.error(verb, Errno::BUSY).because(Cause::InUse { by })
    }

    pub(crate) fn foreign(&self, verb: &'static str, what: &'static str) -> Error {
        self.error(verb, Errno::INVAL).because(Cause::Foreign { what })
    }

    /// Returns a plural noun for the objects that keep the device open in addition to one handle.
    pub(crate) fn users(&self) -> &'static str {
        let tallies = [
            (&self.pd_tally, "protection domains"),
            (&self.cq_tally, "completion queues"),
            (&self.channel_tally, "completion channels"),
            (&self.stream_tally, "streams of asynchronous events"),
            (&self.dm_tally, "pieces of device memory"),
            (&self.dmah_tally, "DMA handles"),
            (&self.td_tally, "thread domains"),
            (&self.xrcd_tally, "XRC domains"),
            (&self.table_tally, "tables of work queues"),
            (&self.flow_tally, RULES),
            (&self.action_tally, "flow actions"),
            (&self.counters_tally, "counters"),
            (&self.comp_cntr_tally, "completion counters"),
        ];
        tallies.into_iter().find(|(tally, _)| tally.any()).map_or("clones of the handle", |(_, what)| what)
    }

    /// Returns an entry with a new id, which stays live until the entry is dropped.
    ///
    /// # Errors
    /// `ENOMEM` if the table of ids cannot grow.
    pub(crate) fn enter(self: &Arc<Self>, kind: Kind, verb: &'static str) -> Result<Entry> {
        let id = self.table(kind).try_insert(None).map_err(|errno| self.error(verb, errno))?;
        Ok(Entry { id, kind, registry: Arc::clone(self) })
    }

    pub(crate) fn cq(&self, raw: u64) -> Option<CqId> {
        let id = SlotId(raw);
        self.table(Kind::Cq).get(id).map(|_| CqId(id))
    }

    /// Counts an event as read and returns the id of its completion queue; `None` for an unknown
    /// id.
    pub(crate) fn cq_event(&self, raw: u64) -> Option<CqId> {
        let id = SlotId(raw);
        if let Some(counter) = self.table(Kind::Cq).get(id)? {
            counter.fetch_add(1, Ordering::Release);
        }
        Some(CqId(id))
    }

    pub(crate) fn qp(&self, raw: u64) -> Option<QpId> {
        let id = SlotId(raw);
        self.table(Kind::Qp).get(id).map(|_| QpId(id))
    }

    pub(crate) fn srq(&self, raw: u64) -> Option<SrqId> {
        let id = SlotId(raw);
        self.table(Kind::Srq).get(id).map(|_| SrqId(id))
    }

    pub(crate) fn wq(&self, raw: u64) -> Option<WqId> {
        let id = SlotId(raw);
        self.table(Kind::Wq).get(id).map(|_| WqId(id))
    }

    fn table(&self, kind: Kind) -> MutexGuard<'_, Slots<Counter>> {
        let table = match kind {
            Kind::Cq => &self.cqs,
            Kind::Qp => &self.qps,
            Kind::Wq => &self.wqs,
            Kind::Srq => &self.srqs,
        };
        table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kind of object named by an id.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Cq,
    Qp,
    Wq,
    Srq,
}

/// The owner of an id. The id is live until this value is dropped.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: SlotId,
    kind: Kind,
    registry: Arc<Registry>,
}

impl Entry {
    /// Counts the object's events in `counter` from now on. Each event is counted before it is
    /// returned.
    pub(crate) fn count_events(&self, counter: Arc<AtomicU32>) {
        if let Some(entry) = self.registry.table(self.kind).get_mut(self.id) {
            *entry = Some(counter);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.registry.table(self.kind).remove(self.id);
    }
}

/// A child's share of its parent.
#[derive(Debug)]
pub(crate) struct Child {
    // Dropped first: when the last share drops its parent, the child is no longer counted.
    _tally: Tally,
    _parent: Parent,
}

impl Child {
    pub(crate) fn new(parent: Parent, tally: &Tally) -> Self {
        Self { _tally: tally.clone(), _parent: parent }
    }
}

/// The count of a parent's children of one kind. Each child holds a clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(Arc<()>);

impl Tally {
    /// Returns whether any child exists.
    pub(crate) fn any(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// The name of flow rules in `EBUSY` errors about objects that flow rules use.
pub(crate) const RULES: &str = "flow rules";
