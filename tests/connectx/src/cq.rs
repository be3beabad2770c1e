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
}

/// What an armed completion queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    /// Any completion.
    Next,
    /// A solicited one, or an error.
    Solicited,
}
