//! [`Cq`]: a completion queue.

use roce::engine::Time;

use crate::layout::cq::cqc;
use crate::log::CONSUMED;
use crate::pages::Pages;
use crate::state::compression::Compression;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) cqn: u32,
    /// The context as the driver wrote it.
    pub(crate) context: [u8; 64],
    pub(crate) pages: Pages,
    pub(crate) log_size: u32,
    /// Size of an entry in bytes: 64 or 128.
    pub(crate) entry_size: u64,
    pub(crate) uar: u32,
    pub(crate) eqn: u32,
    /// Guest-physical address of the consumer index, which the arm word follows.
    pub(crate) doorbell_record: u64,
    /// Whether overruns are ignored.
    pub(crate) ignore_overrun: bool,
    /// Number of entries written since the queue was created.
    pub(crate) producer: u32,
    pub(crate) armed: Option<Arm>,
    /// Completions whose event moderation delays; none while the queue is not armed.
    pub(crate) held: Held,
    /// Compression, if the driver has requested it.
    pub(crate) compression: Option<Compression>,
    /// Whether the queue has overrun, or an injected fault has broken it.
    pub(crate) in_error: bool,
    /// Number of queues that complete to this queue.
    pub(crate) users: u32,
    /// The model's record of how the driver has accessed the queue, empty for a new queue.
    pub(crate) run: CqRun,
}

/// The model's record of how the driver has accessed a completion queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CqRun {
    /// The 24-bit consumer index that was last read from the doorbell record.
    pub(crate) consumer: u32,
    /// The index after the last solicited completion, counted like `producer`.
    pub(crate) solicited: u32,
    /// The sequence number of the last arming and the number of events since then.
    pub(crate) sequence: Option<(u8, u32)>,
    /// Number of events since the sequence number last changed.
    pub(crate) repeated: u32,
}

/// The condition for an armed completion queue's event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    /// Any completion.
    Next,
    /// A solicited completion, or an error.
    Solicited,
}

impl Cq {
    /// Returns the number of unread completions, given a consumer index.
    pub(crate) fn pending(&self, consumer: u32) -> u32 {
        self.producer.wrapping_sub(consumer) & CONSUMED
    }

    /// Returns the number of completions in the open block.
    pub(crate) fn open(&self) -> u32 {
        self.compression.as_ref().map_or(0, Compression::len)
    }
}

/// The completions of an armed queue whose event is delayed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    /// Number of counted completions.
    pub(crate) completions: u32,
    /// Time when the event is raised if no more completions arrive.
    pub(crate) until: Option<Time>,
}

impl Held {
    /// Restarts the count of completions at 0. The time of the event stays the same.
    pub(crate) fn recount(&mut self) {
        self.completions = 0;
    }
}

impl Cq {
    /// Returns how many completions raise one event, and how long the first of them may be delayed,
    /// in nanoseconds. Returns `None` if either field is 0, so that each completion raises an
    /// event.
    pub(crate) fn moderation(&self) -> Option<(u32, u64)> {
        let (count, period) = (cqc::CQ_MAX_COUNT.get32(&self.context), cqc::CQ_PERIOD.get(&self.context));
        (count != 0 && period != 0).then_some((count, period * MICROSECOND))
    }
}

/// Number of nanoseconds in a microsecond, the unit of `CQ_PERIOD`.
pub(crate) const MICROSECOND: u64 = 1000;
