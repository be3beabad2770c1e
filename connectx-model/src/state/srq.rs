//! [`Srq`]: a shared receive queue of any kind: SRQ, XRC SRQ, RMP or XRQ.
//!
//! The entries form a linked list that starts at entry 0: each entry contains the index of its
//! successor.

use std::collections::BTreeMap;

use crate::pages::Pages;
use crate::tags::Tags;

/// The model's state for a shared receive queue, in addition to the transport engine's state.
#[derive(Clone, Debug)]
pub(crate) struct Srq {
    pub(crate) srqn: u32,
    pub(crate) kind: SrqKind,
    /// The context, as the driver wrote it: `srqc`, `xrc_srqc`, `rmpc` or `xrqc`.
    pub(crate) context: Vec<u8>,
    pub(crate) pages: Pages,
    pub(crate) log_size: u32,
    /// Size of an entry, in bytes: the next segment and the scatter elements.
    pub(crate) stride: u64,
    /// Guest-physical address of the doorbell record, which counts the posted receives.
    pub(crate) doorbell_record: u64,
    /// The number of the completion queue of an XRC SRQ or an XRQ.
    pub(crate) cqn: u32,
    pub(crate) user_index: u32,
    /// The XRC domain of an XRC SRQ. Messages in this domain may name the queue.
    pub(crate) xrcd: Option<u32>,
    pub(crate) users: u32,
    /// The matching list of an XRQ.
    pub(crate) tags: Option<Tags>,
    /// The current position in the linked list. A new queue is at the list's start.
    pub(crate) run: SrqRun,
}

/// The current position in the linked list of a shared receive queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct SrqRun {
    /// The index of the next entry to fetch.
    pub(crate) next: u16,
    /// Number of fetched receives, modulo 2^16.
    pub(crate) fetched: u16,
    /// The entries that were fetched but have not completed, by index. Each is copied up to the end
    /// of its scatter list.
    pub(crate) outstanding: BTreeMap<u16, Vec<u8>>,
    /// Whether the linked list was malformed. If so, no more entries are fetched.
    pub(crate) broken: bool,
}

/// The kind of a shared receive queue, given by the command that creates the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SrqKind {
    /// Created by CREATE_SRQ.
    Basic,
    /// Created by CREATE_XRC_SRQ.
    Xrc,
    /// Created by CREATE_RMP.
    Rmp,
    /// Created by CREATE_XRQ, with tag matching.
    Xrq,
}
