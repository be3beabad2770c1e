//! [`Responses`]: the responses to send, and sent responses that the peer may request again.
//!
//! ```text
//!   begin        next              end
//!     ▼            ▼                ▼
//!   ┌────┬────┬────┬────┬────┬────┐
//!   │sent│sent│due │sent│due │due │   reads and atomics, by PSN; then one NAK or acknowledgement
//!   └────┴────┴────┴────┴────┴────┘
//! ```
//! At most [`max_dest_rd_atomic`](crate::engine::Attr::max_dest_rd_atomic) reads and atomics are
//! kept. If a requester within its limit sends one more request, it has received the oldest
//! response.
//!
//! # References
//! IBTA 9.7.5.1 (acknowledgements, duplicates, read responses)

use alloc::vec::Vec;

use crate::engine::types::Pd;
use crate::wire::{Psn, Syndrome, reth};

/// The classes of responses, which are scheduled separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseClass {
    /// A negative acknowledgement.
    Nak,
    /// A plain acknowledgement.
    Ack,
    /// The response of a [`Resource`]: a read response, an atomic acknowledgement or similar.
    Resource,
}

/// The responses to send, and sent responses that the peer may request again.
#[derive(Debug, Default)]
pub(crate) struct Responses {
    /// A ring of slots for reads and atomics. The request with index `i` is in slot
    /// `i % slots.len()`.
    slots: Vec<Resource>,
    /// The index of the oldest kept request. Indices only grow.
    begin: u64,
    end: u64,
    /// The index of the oldest due response, or `end` if no response is due.
    next: u64,
    due: u32,
    /// Whether the memory for the next response is not present. If so, no response is sent before
    /// [`Engine::resume`](crate::engine::Engine::resume), because responses are sent in order.
    pub(crate) stalled: bool,
    pub(crate) nak: Option<Nak>,
    /// The sequence number of the last packet that the due acknowledgement covers; `None` if no
    /// acknowledgement is due.
    pub(crate) ack: Option<Psn>,
}

/// A request with a specific response: a read, an atomic, a flush or an atomic write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resource {
    pub(crate) psn: Psn,
    packets: u32,
    pub(crate) msn: u32,
    pub(crate) op: ResourceOp,
    pub(crate) due: Option<Due>,
}

/// The operation of a [`Resource`], with the data that its response needs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResourceOp {
    Read {
        pd: Pd,
        rkey: u32,
        addr: u64,
        length: u32,
    },
    Atomic {
        orig: u64,
    },
    /// A flush or an atomic write that has been executed; its response carries no data.
    Placed,
}

/// The part of a response still to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) psn: Psn,
    pub(crate) addr: u64,
    pub(crate) left: u32,
    pub(crate) begun: bool,
    /// Whether the peer requested the response again.
    pub(crate) again: bool,
}

/// A NAK to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nak {
    pub(crate) psn: Psn,
    pub(crate) syndrome: Syndrome,
    pub(crate) msn: u32,
    /// Whether this NAK is final because the queue pair has failed; no response follows it.
    last: bool,
}

impl Responses {
    /// Returns whether a slot is available for one more read or atomic.
    ///
    /// The oldest response's slot may be reused once the response has been sent, even if the peer
    /// has since requested it again. A peer that sends one more request has received the response
    /// in the meantime.
    pub(crate) fn has_room(&self) -> bool {
        let depth = self.slots.len() as u64;
        let leaves = |due: Option<Due>| due.is_none_or(|due| due.again);
        depth > 0 && (self.end - self.begin < depth || leaves(self.slot(self.begin).due))
    }

    /// Stores a request whose response is due. The caller must check [`has_room`](Self::has_room)
    /// first.
    pub(crate) fn push(&mut self, psn: Psn, packets: u32, msn: u32, op: ResourceOp) {
        if self.end - self.begin == self.slots.len() as u64 {
            self.due -= u32::from(self.slot(self.begin).due.is_some());
            self.begin += 1;
            self.next = self.next.max(self.begin);
            self.seek();
        }
        if self.due == 0 {
            self.next = self.end;
        }
        let due = match op {
            ResourceOp::Read { addr, length, .. } => {
                Due { psn, addr, left: length, begun: false, again: false }
            }
            ResourceOp::Atomic { .. } | ResourceOp::Placed => {
                Due { psn, addr: 0, left: 0, begun: false, again: false }
            }
        };
        let at = self.at(self.end);
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = Resource { psn, packets, msn, op, due: Some(due) };
            self.end += 1;
            self.due += 1;
        }
    }

    fn at(&self, index: u64) -> usize {
        (index % self.slots.len().max(1) as u64) as usize
    }

    fn slot(&self, index: u64) -> Resource {
        self.slots[self.at(index)]
    }

    fn find(&self, psn: Psn) -> Option<u64> {
        (self.begin..self.end).find(|&index| {
            let resource = self.slot(index);
            psn.in_window(resource.psn, resource.packets)
        })
    }

    fn set_due(&mut self, index: u64, due: Due) {
        let at = self.at(index);
        if let Some(slot) = self.slots.get_mut(at) {
            self.next = if self.due == 0 { index } else { self.next.min(index) };
            self.due += u32::from(slot.due.is_none());
            slot.due = Some(due);
        }
    }

    /// Schedules the response to a duplicate read, in whole or in part.
    ///
    /// A response being sent is replaced only by a response that contains its remainder. A
    /// requester that misses a packet requests everything from that packet to the end of the
    /// original request. Any other repeated request would truncate the response.
    pub(crate) fn read_again(&mut self, psn: Psn, reth: &reth::Repr, mtu: u32) {
        let Some(index) = self.find(psn) else { return };
        let resource = self.slot(index);
        let ResourceOp::Read { rkey, addr, length, .. } = resource.op else { return };
        let skipped = psn.offset_from(resource.psn);
        let inside = if length == 0 || reth.dmalen == 0 {
            // A read of length 0 accesses no memory, so its key is not checked.
            reth.dmalen == length
        } else {
            reth.rkey == rkey
                && reth
                    .va
                    .checked_sub(addr)
                    .is_some_and(|offset| offset.saturating_add(u64::from(reth.dmalen)) <= u64::from(length))
        };
        if !inside || packets(reth.dmalen, mtu) > resource.packets - skipped {
            return;
        }
        let replaced = resource.due.is_none_or(|due| {
            let offset = u64::from(skipped) * u64::from(mtu);
            // A response that has not begun will start at its beginning anyway.
            due.begun
                && !psn.is_after(due.psn)
                && reth.va == addr.wrapping_add(offset)
                && offset + u64::from(reth.dmalen) == u64::from(length)
        });
        if replaced {
            self.set_due(index, Due { psn, addr: reth.va, left: reth.dmalen, begun: false, again: true });
        }
    }

    /// Schedules the result of a duplicate atomic, flush or atomic write, if `is_of_kind` holds for
    /// the original request.
    pub(crate) fn send_again(&mut self, psn: Psn, is_of_kind: impl Fn(&ResourceOp) -> bool) {
        let Some(index) = self.find(psn) else { return };
        if is_of_kind(&self.slot(index).op) {
            self.set_due(index, Due { psn, addr: 0, left: 0, begun: false, again: true });
        }
    }

    /// Drops the NAK for the expected packet, because the packet has arrived.
    pub(crate) fn progress(&mut self) {
        self.nak = None;
    }

    /// Schedules an acknowledgement of the packets up to `psn`.
    pub(crate) fn acknowledge(&mut self, psn: Psn) {
        self.ack = Some(psn);
    }

    /// Schedules a NAK that rejects a packet until the peer sends it again.
    pub(crate) fn refuse(&mut self, psn: Psn, syndrome: Syndrome, msn: u32) {
        self.nak = Some(Nak { psn, syndrome, msn, last: false });
    }

    /// Schedules a final NAK, because the queue pair fails at this packet.
    pub(crate) fn give_up(&mut self, psn: Psn, syndrome: Syndrome, msn: u32) {
        self.nak = Some(Nak { psn, syndrome, msn, last: true });
    }

    /// Prepares for the error state. Responses to earlier requests may still be sent, followed by
    /// the final NAK.
    ///
    /// Without a final NAK, an acknowledgement of completed requests may still be sent, unless it
    /// would also cover a read or an atomic whose response is dropped now.
    pub(crate) fn stop(&mut self) {
        if self.nak.is_some_and(|nak| nak.last) {
            self.ack = None;
            return;
        }
        self.nak = None;
        if self.due > 0 {
            self.forget();
            self.ack = None;
        }
    }

    /// Drops all responses to reads and atomics. None is due or can be requested again afterwards.
    pub(crate) fn forget(&mut self) {
        (self.begin, self.next, self.due, self.stalled) = (self.end, self.end, 0, false);
    }

    /// Returns the sequence number of the last packet, at most `psn`, that an acknowledgement may
    /// name, along with that packet's message sequence number.
    ///
    /// Only a specific response may end a read or an atomic. By IBTA 9.7.5.1.2, the acknowledgement
    /// of a duplicate carries the sequence number of the last executed request. Suppose that
    /// request is a read or an atomic whose response was lost. A peer that ends requests on such an
    /// acknowledgement (as the kernel's rxe does) would complete the request without its data.
    pub(crate) fn acknowledged(&self, psn: Psn, msn: u32) -> (Psn, u32) {
        let (mut psn, mut msn) = (psn, msn);
        for index in (self.begin..self.end).rev() {
            let resource = self.slot(index);
            if !psn.in_window(resource.psn, resource.packets) {
                break;
            }
            (psn, msn) = (resource.psn.prev(), resource.msn.wrapping_sub(1) & 0xff_ffff);
        }
        (psn, msn)
    }

    /// Returns the class of the next response. Responses are sent in order.
    #[inline(always)]
    pub(crate) fn pending(&self) -> Option<ResponseClass> {
        if self.head().is_some() {
            return if self.stalled { None } else { Some(ResponseClass::Resource) };
        }
        if self.nak.is_some() {
            return Some(ResponseClass::Nak);
        }
        self.ack.is_some().then_some(ResponseClass::Ack)
    }

    /// Returns the oldest due response.
    #[inline(always)]
    pub(crate) fn head(&self) -> Option<&Resource> {
        if self.due == 0 { None } else { self.slots.get(self.at(self.next)) }
    }

    /// Changes the maximum number of reads and atomics kept.
    pub(crate) fn set_depth(&mut self, depth: usize) {
        if depth == self.slots.len() {
            return;
        }
        // The newest requests are kept, because these include the requests with unsent responses.
        let kept = (self.end - self.begin).min(depth as u64);
        let mut slots: Vec<Resource> = (self.end - kept..self.end).map(|index| self.slot(index)).collect();
        self.due = slots.iter().filter(|resource| resource.due.is_some()).count() as u32;
        let empty = Resource {
            psn: Psn::default(),
            packets: 0,
            msn: 0,
            op: ResourceOp::Atomic { orig: 0 },
            due: None,
        };
        slots.resize(depth, empty);
        self.slots = slots;
        (self.begin, self.next, self.end) = (0, 0, kept);
        self.seek();
    }

    /// Moves `next` to the oldest due response.
    fn seek(&mut self) {
        while self.due > 0 && self.next < self.end && self.slot(self.next).due.is_none() {
            self.next += 1;
        }
    }

    /// Records that a packet of the oldest due response has been sent. `rest` is the remainder of
    /// the response.
    pub(crate) fn advance(&mut self, rest: Option<Due>, psn: Psn) {
        let at = self.at(self.next);
        if let Some(slot) = self.slots.get_mut(at) {
            slot.due = rest;
            if rest.is_none() {
                self.due -= 1;
                self.next += 1;
                self.seek();
            }
        }
        // A response also acknowledges everything before it.
        if self.ack.is_some_and(|ack| !ack.is_after(psn)) {
            self.ack = None;
        }
    }
}

/// Returns the number of packets needed for `length` bytes, at least one.
#[inline]
pub(crate) fn packets(length: u32, mtu: u32) -> u32 {
    length.div_ceil(mtu).max(1)
}
