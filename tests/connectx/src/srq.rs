//! [`Srq`]: shared receive queues: SRQ, XRC SRQ and RMP.
//!
//! Their entries are a linked list, which begins with entry 0: each names the one that is posted after it.

use std::collections::BTreeSet;

use crate::function::pages::Pages;

/// A shared receive queue, beside what the transport engine keeps of it.
#[derive(Clone, Debug)]
pub(crate) struct Srq {
    pub(crate) srqn: u32,
    pub(crate) kind: SrqKind,
    /// The context as the driver gave it: `srqc`, `xrc_srqc` or `rmpc`.
    pub(crate) context: Vec<u8>,
    pub(crate) pages: Pages,
    pub(crate) log_size: u32,
    /// Bytes of an entry: a next segment and scatter elements.
    pub(crate) stride: u64,
    /// Where the counter of posted receives is, guest-physical.
    pub(crate) doorbell_record: u64,
    /// Completions of an XRC SRQ.
    pub(crate) cqn: u32,
    pub(crate) user_index: u32,
    /// Whose requests may name it, of an XRC SRQ.
    pub(crate) xrcd: Option<u32>,
    pub(crate) users: u32,
    /// How far its list was followed; a new one begins with the default.
    pub(crate) run: SrqRun,
}

/// How far the list of a shared receive queue was followed.
#[derive(Clone, Debug, Default)]
pub(crate) struct SrqRun {
    /// The entry that is posted next.
    pub(crate) next: u16,
    /// How many were posted, 16 bits.
    pub(crate) fetched: u16,
    /// Entries that are posted and have not completed.
    pub(crate) outstanding: BTreeSet<u16>,
    /// The list made no sense: no more is taken from it.
    pub(crate) broken: bool,
}

/// Which command made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SrqKind {
    /// CREATE_SRQ.
    Basic,
    /// CREATE_XRC_SRQ.
    Xrc,
    /// CREATE_RMP.
    Rmp,
}
