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
    /// Context as the driver wrote it.
    pub(crate) context: [u8; 64],
    pub(crate) pages: Pages,
    pub(crate) log_size: u32,
    /// Bytes of an entry: 64 or 128.
    pub(crate) entry_size: u64,
    pub(crate) uar: u32,
    pub(crate) eqn: u32,
    /// Guest-physical address of consumer index and arm word.
    pub(crate) doorbell_record: u64,
    /// Whether overruns are ignored.
    pub(crate) ignore_overrun: bool,
    /// Number of entries written since creation.
    pub(crate) producer: u32,
    pub(crate) armed: Option<Arm>,
    /// Completions whose event is delayed by moderation; none while the queue is not armed.
    pub(crate) held: Held,
    /// Compression, if requested by the driver.
    pub(crate) compression: Option<Compression>,
    /// Whether the queue has overrun or was broken by an injected fault.
    pub(crate) in_error: bool,
    /// Number of queues that complete here.
    pub(crate) users: u32,
    /// The model's record of the driver's accesses, empty for a new queue.
    pub(crate) run: CqRun,
}

/// The model's record of the driver's accesses to a completion queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CqRun {
    /// Consumer index, 24 bits, last read from the doorbell record.
    pub(crate) consumer: u32,
    /// Index after the last solicited completion, in the count of `producer`.
    pub(crate) solicited: u32,
    /// Sequence number of the last arm, and the number of events since.
    pub(crate) sequence: Option<(u8, u32)>,
    /// Number of events since the sequence number changed.
    pub(crate) repeated: u32,
}

/// Condition for the event of an armed completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    /// Any completion.
    Next,
    /// A solicited completion, or an error.
    Solicited,
}

impl Cq {
    /// Returns the number of unread completions for a consumer index.
    pub(crate) fn pending(&self, consumer: u32) -> u32 {
        self.producer.wrapping_sub(consumer) & CONSUMED
    }

    /// Returns the number of completions of the open block.
    pub(crate) fn open(&self) -> u32 {
        self.compression.as_ref().map_or(0, Compression::len)
    }
}

/// Completions of an armed queue with a delayed event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    /// Number of counted completions.
    pub(crate) completions: u32,
    /// Time of the event, if no more completions arrive.
    pub(crate) until: Option<Time>,
}

impl Held {
    /// Restarts the count of completions at 0. The time of the event stays.
    pub(crate) fn recount(&mut self) {
        self.completions = 0;
    }
}

impl Cq {
    /// Returns the number of completions that raise one event and the longest delay of the first of
    /// them, in nanoseconds. `None` if one of the two fields is 0, so that each raises an event.
    pub(crate) fn moderation(&self) -> Option<(u32, u64)> {
        let (count, period) = (cqc::CQ_MAX_COUNT.get32(&self.context), cqc::CQ_PERIOD.get(&self.context));
        (count != 0 && period != 0).then_some((count, period * MICROSECOND))
    }
}

/// Nanoseconds of a microsecond, the unit of `CQ_PERIOD`.
pub(crate) const MICROSECOND: u64 = 1000;
