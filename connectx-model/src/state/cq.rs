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
    /// Size of an entry, in bytes: 64 or 128.
    pub(crate) entry_size: u64,
    pub(crate) uar: u32,
    pub(crate) eqn: u32,
    /// Guest-physical address of the doorbell record: the consumer index and, after it, the arm
    /// word.
    pub(crate) doorbell_record: u64,
    /// Whether overruns are ignored, because the driver has disabled their detection.
    pub(crate) ignore_overrun: bool,
    /// Number of completions written since the queue was created.
    pub(crate) producer: u32,
    pub(crate) armed: Option<Arm>,
    /// The completions whose event is delayed by moderation; none while the queue is not armed.
    pub(crate) held: Held,
    /// The compression state, if the driver has requested compression.
    pub(crate) compression: Option<Compression>,
    /// Whether the queue is in the error state, after an overrun or an injected fault.
    pub(crate) in_error: bool,
    /// Number of send and receive queues that use this completion queue.
    pub(crate) users: u32,
    /// The model's record of how the driver has used the queue; empty for a new queue.
    pub(crate) run: CqRun,
}

/// The model's record of how the driver has used a completion queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CqRun {
    /// The 24-bit consumer index last read from the doorbell record.
    pub(crate) consumer: u32,
    /// The producer index after the last solicited completion.
    pub(crate) solicited: u32,
    /// The sequence number of the last arming, and the number of events since then.
    pub(crate) sequence: Option<(u8, u32)>,
    /// Number of events since the arm sequence number last changed.
    pub(crate) repeated: u32,
}

/// The completions for which an armed completion queue raises an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    /// Any completion.
    Next,
    /// A solicited completion, or an error.
    Solicited,
}

impl Cq {
    /// Returns the number of written completions that the driver has not read, given its consumer
    /// index.
    pub(crate) fn pending(&self, consumer: u32) -> u32 {
        self.producer.wrapping_sub(consumer) & CONSUMED
    }

    /// Returns the number of completions in the open block.
    pub(crate) fn open(&self) -> u32 {
        self.compression.as_ref().map_or(0, Compression::len)
    }
}

/// The completions of an armed queue whose event moderation delays.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    /// Number of completions that count towards the event.
    pub(crate) completions: u32,
    /// Time at which the event is raised if no more completions arrive; `None` without a delayed
    /// event.
    pub(crate) until: Option<Time>,
}

impl Held {
    /// Restarts the count of completions at 0. The time of the event does not change.
    pub(crate) fn recount(&mut self) {
        self.completions = 0;
    }
}

impl Cq {
    /// Returns the number of completions that raise one event, and the maximum delay of the event,
    /// in nanoseconds. Returns `None` if either context field is 0: then each completion raises an
    /// event.
    pub(crate) fn moderation(&self) -> Option<(u32, u64)> {
        let (count, period) = (cqc::CQ_MAX_COUNT.get32(&self.context), cqc::CQ_PERIOD.get(&self.context));
        (count != 0 && period != 0).then_some((count, period * MICROSECOND))
    }
}

/// Number of nanoseconds in a microsecond. `CQ_PERIOD` is in microseconds.
pub(crate) const MICROSECOND: u64 = 1000;
