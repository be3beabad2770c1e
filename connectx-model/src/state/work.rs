//! [`Local`]: work requests that the model executes itself, without the engine.

use roce::engine::Sge;
use roce::engine::Status;

use crate::layout::mkey::mkc;
use crate::tags::{HEADER, REMOTE};

/// A work request that the engine does not execute.
#[derive(Debug)]
pub(crate) enum Local {
    /// A NOP, which only completes.
    Nop,
    /// A UMR that changes a memory key.
    Umr(Umr),
    /// A change of a matching list.
    List(ListChange),
    /// An invalid request, which ends with this error.
    Fail(Status),
    /// A request that ends with an injected error.
    Forced { syndrome: u8, vendor: u8 },
}

/// A UMR: the requested change of a memory key or window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Umr {
    /// The memory key to change. The low 8 bits of the key change only if the mask selects them.
    pub(crate) key: u32,
    pub(crate) check: Check,
    /// Whether the key must belong to this queue pair, or to all queue pairs, before the change. A
    /// key that is not a window belongs to all queue pairs: rdma-core's tests invalidate such a key
    /// with this check.
    pub(crate) check_qpn: bool,
    /// Whether the control segment announces an inline list.
    pub(crate) is_inline: bool,
    /// Whether the control segment announces an offset.
    pub(crate) has_offset: bool,
    /// The mask that selects the context fields to change.
    pub(crate) mask: u64,
    pub(crate) context: [u8; mkc::SIZE],
    /// Offset of the first list entry to change, in octwords.
    pub(crate) offset: usize,
    pub(crate) list: List,
}

/// The state that the key must have before the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    Nothing,
    Free,
    Valid,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum List {
    Nothing,
    Inline(Vec<u8>),
    At(Sge),
}

/// Maximum number of the device's own sends in the engine, on a queue pair without a send queue.
pub(crate) const OWN_SENDS: u32 = 64;

/// Length of the message that ends a rendezvous, in bytes.
pub(crate) const FINISHED_LEN: u32 = (HEADER + REMOTE) as u32;

/// A requested operation on a matching list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListChange {
    pub(crate) kind: Kind,
    /// Whether the operation requests a completion.
    pub(crate) completes: bool,
    /// Number of unexpected messages that software has handled, if the request reports it.
    pub(crate) handled: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Noop,
    Append { next: u16, tag: u64, mask: u64, buffer: Option<Sge> },
    Remove { index: u16 },
}

/// The kind of an arriving message that matches no list entry and is stored in a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arriving {
    Unexpected,
    Untagged,
}

/// One of the device's own sends that is not in the engine yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnSend {
    pub(crate) qpn: u32,
    pub(crate) srqn: u32,
    pub(crate) step: Step,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Read { index: u16 },
    Finish { header: [u8; HEADER + REMOTE] },
}
