//! [`Srq`]: shared receive queues: SRQ, XRC SRQ, RMP and XRQ.
//!
//! Their entries form a linked list from entry 0: each entry names its successor.

use std::collections::BTreeMap;

use crate::pages::Pages;
use crate::tags::Tags;

/// A shared receive queue, without the transport engine's part.
#[derive(Clone, Debug)]
pub(crate) struct Srq {
    pub(crate) srqn: u32,
    pub(crate) kind: SrqKind,
    /// Context as written by the driver: `srqc`, `xrc_srqc`, `rmpc` or `xrqc`.
    pub(crate) context: Vec<u8>,
    pub(crate) pages: Pages,
    pub(crate) log_size: u32,
    /// Bytes of an entry: next segment and scatter elements.
    pub(crate) stride: u64,
    /// Guest-physical address of the counter of posted receives.
    pub(crate) doorbell_record: u64,
    /// Completion queue of an XRC SRQ or an XRQ.
    pub(crate) cqn: u32,
    pub(crate) user_index: u32,
    /// Domain of an XRC SRQ, whose requests may name the queue.
    pub(crate) xrcd: Option<u32>,
    pub(crate) users: u32,
    /// Matching list of an XRQ.
    pub(crate) tags: Option<Tags>,
    /// The position in the list, at its start for a new queue.
    pub(crate) run: SrqRun,
}

/// The position in the list of a shared receive queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct SrqRun {
    /// Next entry to fetch.
    pub(crate) next: u16,
    /// Number of fetched receives, modulo 2^16.
    pub(crate) fetched: u16,
    /// Fetched entries that have not completed, each up to the end of its list.
    pub(crate) outstanding: BTreeMap<u16, Vec<u8>>,
    /// Whether the list was malformed. If so, no more entries are fetched.
    pub(crate) broken: bool,
}

/// The command that created the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SrqKind {
    /// CREATE_SRQ.
    Basic,
    /// CREATE_XRC_SRQ.
    Xrc,
    /// CREATE_RMP.
    Rmp,
    /// CREATE_XRQ: with tag matching.
    Xrq,
}
