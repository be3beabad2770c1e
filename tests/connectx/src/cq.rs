//! [`Cq`]: completion queues.

use crate::function::pages::Pages;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) cqn: u32,
    /// Its context, as the driver gave it.
    pub(crate) context: [u8; 64],
    pub(crate) pages: Pages,
    pub(crate) log_size: u32,
    /// 64 or 128.
    pub(crate) entry_size: u64,
    pub(crate) uar: u32,
    pub(crate) eqn: u32,
    /// Where consumer index and arm state are, guest-physical.
    pub(crate) doorbell_record: u64,
    /// Overruns are ignored.
    pub(crate) ignore_overrun: bool,
    /// Entries written, ever.
    pub(crate) producer: u32,
    pub(crate) armed: Option<Arm>,
    /// The sequence number of the next arm.
    pub(crate) arm_sequence: u8,
    /// It has overrun, or a fault was injected.
    pub(crate) in_error: bool,
    /// How many queues complete here.
    pub(crate) users: u32,
    /// What was seen of its driver; a new one begins with the default.
    pub(crate) run: CqRun,
}

/// What was seen of a completion queue's driver.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CqRun {
    /// The consumer index, 24 bits, as it last stood in the doorbell record.
    pub(crate) consumer: u32,
    /// Behind the last solicited completion, as `producer` counts.
    pub(crate) solicited: u32,
    /// The sequence number of the last arm, and how many events it has not counted yet.
    pub(crate) sequence: Option<(u8, u32)>,
}

/// What an armed completion queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    /// Any completion.
    Next,
    /// A solicited one, or an error.
    Solicited,
}
