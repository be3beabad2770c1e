//! [`Srq`]: a shared receive queue of any kind: SRQ, XRC SRQ, RMP or XRQ.
//!
//! Its entries form a linked list that starts at entry 0: each entry names its successor.

use std::collections::BTreeMap;

use crate::pages::Pages;
use crate::tags::Tags;

/// A shared receive queue, without the transport engine's part.
#[derive(Clone, Debug)]
pub(crate) struct Srq {
    pub(crate) srqn: u32,
    pub(crate) kind: SrqKind,
    /// The context as the driver wrote it: `srqc`, `xrc_srqc`, `rmpc` or `xrqc`.
    pub(crate) context: Vec<u8>,
    pub(crate) pages: Pages,
    pub(crate) log_size: u32,
    /// Size of an entry in bytes: the next segment and the scatter elements.
    pub(crate) stride: u64,
    /// Guest-physical address of the counter of posted receives.
    pub(crate) doorbell_record: u64,
    /// The completion queue of an XRC SRQ or an XRQ.
    pub(crate) cqn: u32,
    pub(crate) user_index: u32,
    /// The domain of an XRC SRQ. Requests in this domain may name the queue.
    pub(crate) xrcd: Option<u32>,
    pub(crate) users: u32,
    /// The matching list of an XRQ.
    pub(crate) tags: Option<Tags>,
    /// The current position in the list; a new queue is at its start.
    pub(crate) run: SrqRun,
}

/// The current position in a shared receive queue's list.
#[derive(Clone, Debug, Default)]
pub(crate) struct SrqRun {
    /// The next entry to fetch.
    pub(crate) next: u16,
    /// Number of fetched receives, modulo 2^16.
    pub(crate) fetched: u16,
    /// Entries that were fetched but have not completed, each copied up to the end of its list.
    pub(crate) outstanding: BTreeMap<u16, Vec<u8>>,
    /// Whether the list was malformed. If so, no more entries are fetched.
    pub(crate) broken: bool,
}

/// The kind of shared receive queue, by the command that creates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SrqKind {
    /// CREATE_SRQ.
    Basic,
    /// CREATE_XRC_SRQ.
    Xrc,
    /// CREATE_RMP.
    Rmp,
    /// CREATE_XRQ, with tag matching.
    Xrq,
}
