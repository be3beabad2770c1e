//! [`SendQueue`]: a ring of posted sends, with space for their elements and inline data.
//!
//! ```text
//!        tail              cursor            fresh             head
//!   ──────┼──────────────────┼─────────────────┼─────────────────┼──────
//!   ended │ on their way     │ to be sent again│ not started yet │ free
//! ```
//! Positions count posted sends and wrap at 2³². This type stores `tail` and `head`; the requester
//! stores the other positions. All memory is allocated when the queue is created.

use alloc::vec::Vec;

use super::filled;
use crate::engine::types::{Payload, Refused, SendFlags, SendOp, SendWr, Sge};
use crate::wire::Psn;

/// A posted send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    pub(crate) remote_srq: u32,
    /// The length of the message in bytes.
    pub(crate) length: u32,
    /// The sequence number of the first packet, once the send has started.
    pub(crate) first_psn: Psn,
    /// The number of packet sequence numbers that the send uses; 0 for an operation without
    /// packets.
    pub(crate) psns: u32,
    /// The maximum number of response packets that a single read request asks for.
    pub(crate) piece: u32,
    sges: u32,
    inline: bool,
}

impl Wqe {
    const EMPTY: Self = Self {
        wr_id: 0,
        op: SendOp::Send { imm: None },
        flags: SendFlags { signaled: false, solicited: false, fence: false },
        remote_srq: 0,
        length: 0,
        first_psn: Psn::new(0),
        psns: 0,
        piece: 0,
        sges: 0,
        inline: false,
    };

    pub(crate) fn is_read(&self) -> bool {
        matches!(self.op, SendOp::Read { .. })
    }

    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// Returns whether the operation is a flush or an atomic write, whose response carries no data.
    pub(crate) fn is_placement(&self) -> bool {
        matches!(self.op, SendOp::Flush { .. } | SendOp::AtomicWrite { .. })
    }

    /// Returns whether the response to the operation carries data.
    pub(crate) fn wants_data(&self) -> bool {
        self.is_read() || self.is_atomic()
    }

    /// Returns whether the operation ends only with a specific response, not with a plain
    /// acknowledgement.
    #[inline]
    pub(crate) fn wants_response(&self) -> bool {
        self.wants_data() || self.is_placement()
    }
}

/// The location of a message's bytes: registered memory or inline data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bytes<'a> {
    Sges(&'a [Sge]),
    Inline(&'a [u8]),
}

/// A ring of posted sends.
#[derive(Debug)]
pub(crate) struct SendQueue {
    wqes: Vec<Wqe>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    max_wr: u32,
    max_sge: u32,
    max_inline: u32,
    tail: u32,
    head: u32,
}

impl SendQueue {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// [`Refused::NoMemory`] if an allocation fails.
    pub(crate) fn new(max_wr: u32, max_sge: u32, max_inline: u32) -> Result<Self, Refused> {
        // The number of slots is a power of two, so positions may wrap at 2³² and a mask selects
        // the slot.
        let slots = if max_wr == 0 { 0 } else { max_wr.next_power_of_two() as usize };
        Ok(Self {
            wqes: filled(Wqe::EMPTY, slots)?,
            sges: filled(Sge::default(), slots.saturating_mul(max_sge as usize))?,
            inline: filled(0, slots.saturating_mul(max_inline as usize))?,
            max_wr,
            max_sge,
            max_inline,
            tail: 0,
            head: 0,
        })
    }

    #[inline]
    fn slot(&self, position: u32) -> usize {
        position as usize & self.wqes.len().wrapping_sub(1)
    }

    /// Returns the position of the oldest unfinished send.
    #[inline]
    pub(crate) fn tail(&self) -> u32 {
        self.tail
    }

    /// Returns the position after the newest send.
    #[inline]
    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    /// Returns the number of unfinished sends.
    pub(crate) fn len(&self) -> u32 {
        self.head.wrapping_sub(self.tail)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.head.wrapping_sub(self.tail) >= self.max_wr
    }

    pub(crate) fn max_sge(&self) -> usize {
        self.max_sge as usize
    }

    pub(crate) fn max_inline(&self) -> usize {
        self.max_inline as usize
    }

    /// Appends a send. The caller must check first that the send fits.
    #[inline]
    pub(crate) fn push(&mut self, wr: &SendWr<'_>, length: u32, signaled: bool) {
        let slot = self.slot(self.head);
        let (sges, inline) = match wr.payload {
            Payload::Sges(sges) => {
                let from = slot * self.max_sge as usize;
                if let Some(room) = self.sges.get_mut(from..from + sges.len()) {
                    room.copy_from_slice(sges);
                }
                (sges.len() as u32, false)
            }
            Payload::Inline(bytes) => {
                let from = slot * self.max_inline as usize;
                if let Some(room) = self.inline.get_mut(from..from + bytes.len()) {
                    room.copy_from_slice(bytes);
                }
                (0, true)
            }
        };
        if let Some(wqe) = self.wqes.get_mut(slot) {
            *wqe = Wqe {
                wr_id: wr.wr_id,
                op: wr.op,
                flags: SendFlags { signaled, ..wr.flags },
                remote_srq: wr.remote_srq,
                length,
                first_psn: Psn::new(0),
                psns: 0,
                piece: 0,
                sges,
                inline,
            };
            self.head = self.head.wrapping_add(1);
        }
    }

    /// Returns the send at `position`, if this lies between tail and head.
    #[inline]
    pub(crate) fn get(&self, position: u32) -> Option<&Wqe> {
        if position.wrapping_sub(self.tail) >= self.head.wrapping_sub(self.tail) {
            return None;
        }
        self.wqes.get(self.slot(position))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, position: u32) -> Option<&mut Wqe> {
        if position.wrapping_sub(self.tail) >= self.head.wrapping_sub(self.tail) {
            return None;
        }
        let slot = self.slot(position);
        self.wqes.get_mut(slot)
    }

    /// Returns the bytes of the send at `position`.
    #[inline]
    pub(crate) fn bytes(&self, position: u32) -> Bytes<'_> {
        let slot = self.slot(position);
        let Some(wqe) = self.wqes.get(slot) else { return Bytes::Sges(&[]) };
        if wqe.inline {
            let from = slot * self.max_inline as usize;
            Bytes::Inline(self.inline.get(from..from + wqe.length as usize).unwrap_or_default())
        } else {
            let from = slot * self.max_sge as usize;
            Bytes::Sges(self.sges.get(from..from + wqe.sges as usize).unwrap_or_default())
        }
    }

    /// Removes the oldest send.
    #[inline]
    pub(crate) fn pop(&mut self) {
        if self.tail != self.head {
            self.tail = self.tail.wrapping_add(1);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.tail = 0;
        self.head = 0;
    }
}
