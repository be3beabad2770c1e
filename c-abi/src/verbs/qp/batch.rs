//! [`Batch`]: the requests between `ibv_wr_start` and `ibv_wr_complete`.
//!
//! # Safety
//! Each send queue's lock guards the batch of its queue pair.
#![allow(unsafe_code)]

use verbs_core::types::{Av, MwBindInfo, MwType, PostReason, SendOp, Sge};

/// The batch of a queue pair, guarded by the lock of its send queue.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Batch {
    pub(super) request: Request,
    /// The first reason for rejecting a request, while the state is [`State::Refused`].
    pub(super) refused: Option<PostReason>,
    /// The scatter/gather elements of a request that waits for its address.
    pub(super) list: Vec<Sge>,
    /// The inline data of a request that waits for its address.
    pub(super) bytes: Vec<u8>,
}

impl Batch {
    /// Drops the request and returns the reason why the batch ended.
    pub(super) fn end(&mut self) -> Option<PostReason> {
        self.request = Request::default();
        self.refused.take()
    }
}

/// A request that is not in the queue yet. If there is none, the fields after `op` are unset.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Request {
    pub(super) state: State,
    pub(super) flags: u32,
    pub(super) wr_id: u64,
    /// The remote address, first of the operands of a common operation. Operands that the operation
    /// lacks are meaningless.
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    pub(super) imm_data: u32,
    /// An operation that is not common.
    pub(super) op: Op,
    pub(super) memory: Memory,
    /// The destination of a datagram.
    pub(super) to: Option<(*const Av, u32, u32)>,
    pub(super) remote_srqn: Option<u32>,
}

// SAFETY: the address vector belongs to an address handle, which any thread may read.
unsafe impl Send for Request {}

/// The state of the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// No request has been started since `ibv_wr_start`.
    #[default]
    None,
    /// At least one request has been started, and all started requests are in the queue.
    Queued,
    /// The batch has ended; [`Batch::refused`] has the reason.
    Refused,
    Send,
    SendWithImm,
    RdmaWrite,
    RdmaWriteWithImm,
    RdmaRead,
    /// The operation is [`Request::op`].
    Other,
}

impl State {
    /// Returns whether there is a request that is not in the queue yet.
    #[inline(always)]
    pub(super) const fn is_waiting(self) -> bool {
        !matches!(self, Self::None | Self::Queued | Self::Refused)
    }

    /// Returns whether another request may start at once.
    #[inline(always)]
    pub(super) const fn is_free(self) -> bool {
        matches!(self, Self::None | Self::Queued)
    }

    /// Returns whether the request has a common operation on the peer's memory.
    #[inline(always)]
    pub(super) const fn is_remote(self) -> bool {
        matches!(self, Self::RdmaWrite | Self::RdmaWriteWithImm | Self::RdmaRead)
    }

    /// Returns whether the request has a common operation with immediate data.
    #[inline(always)]
    pub(super) const fn has_imm_data(self) -> bool {
        matches!(self, Self::SendWithImm | Self::RdmaWriteWithImm)
    }
}

/// The memory of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Memory {
    #[default]
    Unset,
    /// The memory is in [`Batch::list`].
    List,
    /// The inline data is in [`Batch::bytes`].
    Inline,
}

/// An operation that is not common, which lives until its request is in the queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Op {
    #[default]
    None,
    Any(SendOp<'static>),
    Bind {
        mw_type: MwType,
        rkey: u32,
        new_rkey: u32,
        bind_info: MwBindInfo,
    },
}
