//! [`RecvState`]: the responder's sequence numbers and the message in progress.

use super::{CurrentRecv, Responses};
use crate::engine::queue::Srq;
use crate::engine::table::Table;
use crate::wire::{MASK_24, Psn};

/// The state of a queue pair's responder.
#[derive(Debug)]
pub(crate) struct RecvState {
    /// The sequence number expected in the next new packet.
    pub(crate) expected: Psn,
    /// The number of completed messages, 24 bits.
    pub(crate) msn: u32,
    /// On the unreliable service, the number of packets that placed data or took a receive. It
    /// wraps.
    pub(crate) effective: u32,
    /// The message that has begun but not ended, if any.
    pub(crate) message: Message,
    /// Whether a packet was rejected temporarily. If so, later packets are dropped silently until
    /// this packet is repeated.
    pub(crate) waiting: bool,
    pub(crate) current: CurrentRecv,
    pub(crate) responses: Responses,
    /// Whether the peer's requests may carry up to `LINK_MTU` bytes; `None` before the first
    /// request.
    pub(crate) on_link: Option<bool>,
}

/// The multi-packet message in progress, if any; the state between two of its packets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    None,
    Send,
    Write(Write),
}

/// The rest of a write: its destination and the number of bytes left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
    pub(crate) left: u32,
    pub(crate) length: u32,
}

impl RecvState {
    /// Creates the state of a new queue pair. `shared` states whether the queue pair takes receives
    /// from a shared queue.
    pub(crate) fn new(shared: bool) -> Self {
        Self {
            expected: Psn::default(),
            msn: 0,
            effective: 0,
            message: Message::None,
            waiting: false,
            current: CurrentRecv::new(shared),
            responses: Responses::default(),
            on_link: None,
        }
    }

    /// Drops the message in progress and all responses. The memory for copied elements in
    /// [`CurrentRecv`] stays allocated.
    pub(crate) fn reset(&mut self, srqs: &mut Table<Srq>) {
        self.current.release(srqs);
        self.responses = Responses::default();
        (self.expected, self.msn, self.message, self.waiting) = (Psn::default(), 0, Message::None, false);
        self.on_link = None;
    }

    /// Counts a completed message and returns the new message sequence number. A read counts as
    /// completed on acceptance (IBTA 9.7.7.1).
    pub(crate) fn count_message(&mut self) -> u32 {
        self.msn = (self.msn + 1) & MASK_24;
        self.msn
    }
}
