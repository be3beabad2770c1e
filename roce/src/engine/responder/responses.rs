//! [`Responses`]: what is to be sent back, and what was sent and may be asked for again.
//!
//! ```text
//!   begin        next              end
//!     ▼            ▼                ▼
//!   ┌────┬────┬────┬────┬────┬────┐
//!   │sent│sent│due │sent│due │due │   reads and atomics, by sequence number; then one NAK or acknowledgement
//!   └────┴────┴────┴────┴────┴────┘
//! ```
//! At most [`max_dest_rd_atomic`](crate::engine::Attr::max_dest_rd_atomic) are remembered: a requester that keeps to its
//! limit has the oldest one's response when it sends one more.
//!
//! # References
//! IBTA 9.7.5.1 (acknowledgements, duplicates, read responses)

use alloc::vec::Vec;

use super::request::packets;
use super::{Kind, fail, mtu, outcome};
use crate::engine::control::World;
use crate::engine::memory::{Memory, Sink};
use crate::engine::qp::Qp;
use crate::engine::types::{Access, Event, Pd, Service, Status};
use crate::wire::{
    Headers, NakCode, Opcode, Psn, Syndrome, aeth, atomic_ack_eth, bth, opcode, packet::pad_for, reth,
};

/// What is to be sent back.
#[derive(Debug, Default)]
pub(super) struct Responses {
    /// Slots of reads and atomics; one has the slot `index % slots.len()`.
    slots: Vec<Resource>,
    /// Indices, which grow for ever.
    begin: u64,
    end: u64,
    /// The oldest that is due, where one is.
    next: u64,
    due: u32,
    nak: Option<Nak>,
    /// An acknowledgement is wanted for this packet or a later one.
    ack: Option<Psn>,
}

/// A request with an answer of its own.
#[derive(Clone, Copy, Debug)]
struct Resource {
    psn: Psn,
    packets: u32,
    msn: u32,
    answer: Answer,
    due: Option<Due>,
}

/// What a request is answered with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    Read { pd: Pd, rkey: u32, addr: u64, length: u32 },
    Atomic { orig: u64 },
}

/// What of an answer is to be sent.
#[derive(Clone, Copy, Debug)]
struct Due {
    psn: Psn,
    addr: u64,
    left: u32,
    begun: bool,
    /// It was asked for again.
    again: bool,
}

#[derive(Clone, Copy, Debug)]
struct Nak {
    psn: Psn,
    syndrome: Syndrome,
    msn: u32,
    /// The queue pair has failed; this is its last word.
    last: bool,
}

impl Responses {
    /// Is there room for one more read or atomic?
    ///
    /// The oldest answer makes room when it has left, also if it was asked for again since: a peer that asks for one more
    /// has got it in the meantime.
    pub(super) fn has_room(&self) -> bool {
        let depth = self.slots.len() as u64;
        let leaves = |due: Option<Due>| due.is_none_or(|due| due.again);
        depth > 0 && (self.end - self.begin < depth || leaves(self.slot(self.begin).due))
    }

    /// Remembers a request, and that its answer is due. There must be room.
    pub(super) fn push(&mut self, psn: Psn, packets: u32, msn: u32, answer: Answer) {
        if self.end - self.begin == self.slots.len() as u64 {
            self.due -= u32::from(self.slot(self.begin).due.is_some());
            self.begin += 1;
            self.next = self.next.max(self.begin);
            self.seek();
        }
        if self.due == 0 {
            self.next = self.end;
        }
        let due = match answer {
            Answer::Read { addr, length, .. } => Due { psn, addr, left: length, begun: false, again: false },
            Answer::Atomic { .. } => Due { psn, addr: 0, left: 0, begun: false, again: false },
        };
        let at = self.at(self.end);
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = Resource { psn, packets, msn, answer, due: Some(due) };
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

    /// A duplicate read: the same, or a part of it.
    ///
    /// An answer that is under way is replaced only by one that contains its rest: a requester that misses a packet asks again
    /// for everything from there to the end of the request. Anything else would take packets from the answer.
    pub(super) fn read_again(&mut self, psn: Psn, reth: &reth::Repr, mtu: u32) {
        let Some(index) = self.find(psn) else { return };
        let resource = self.slot(index);
        let Answer::Read { rkey, addr, length, .. } = resource.answer else { return };
        let skipped = psn.offset_from(resource.psn);
        let inside = if length == 0 || reth.dmalen == 0 {
            // Without memory there is no key to look at.
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
            // One that has not begun will be sent from its beginning anyway.
            due.begun
                && !psn.is_after(due.psn)
                && reth.va == addr.wrapping_add(offset)
                && offset + u64::from(reth.dmalen) == u64::from(length)
        });
        if replaced {
            self.set_due(index, Due { psn, addr: reth.va, left: reth.dmalen, begun: false, again: true });
        }
    }

    /// A duplicate atomic.
    pub(super) fn tell_again(&mut self, psn: Psn) {
        let Some(index) = self.find(psn) else { return };
        if let Answer::Atomic { .. } = self.slot(index).answer {
            self.set_due(index, Due { psn, addr: 0, left: 0, begun: false, again: true });
        }
    }

    /// The expected packet has come: a request to send it again is no longer true.
    pub(super) fn progress(&mut self) {
        self.nak = None;
    }

    pub(super) fn acknowledge(&mut self, psn: Psn) {
        self.ack = Some(psn);
    }

    /// A packet is refused, for its time.
    pub(super) fn refuse(&mut self, psn: Psn, syndrome: Syndrome, msn: u32) {
        self.nak = Some(Nak { psn, syndrome, msn, last: false });
    }

    /// A packet is refused for ever.
    pub(super) fn give_up(&mut self, psn: Psn, syndrome: Syndrome, msn: u32) {
        self.nak = Some(Nak { psn, syndrome, msn, last: true });
    }

    /// The queue pair is in the error state: what has been answered before it failed may still leave, with its last word.
    ///
    /// Without one, an acknowledgement of what has ended here may, unless it would stand for a read or an atomic as well
    /// whose response does not leave any more.
    pub(super) fn stop(&mut self) {
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

    /// Nothing is due, and nothing can be asked for again.
    fn forget(&mut self) {
        (self.begin, self.next, self.due) = (self.end, self.end, 0);
    }

    /// The last packet that an acknowledgement may stand for, of those up to `psn`, and its message's number.
    ///
    /// A read or an atomic is answered by its response alone. IBTA 9.7.5.1.2 would have a duplicate acknowledged with the
    /// number of what was carried out last; where that is a read or an atomic whose response was lost, a peer that takes
    /// an acknowledgement of its number for the end of it (the kernel's rxe does) has read nothing.
    fn acknowledged(&self, psn: Psn, msn: u32) -> (Psn, u32) {
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

    /// Returns the kind of the response that leaves next: they leave in order.
    #[inline(always)]
    pub(super) fn pending(&self) -> Option<Kind> {
        if self.head().is_some() {
            return Some(Kind::Answer);
        }
        if self.nak.is_some() {
            return Some(Kind::Refusal);
        }
        self.ack.is_some().then_some(Kind::Ack)
    }

    /// The oldest answer that is due.
    #[inline(always)]
    fn head(&self) -> Option<&Resource> {
        if self.due == 0 { None } else { self.slots.get(self.at(self.next)) }
    }

    pub(super) fn set_depth(&mut self, depth: usize) {
        if depth == self.slots.len() {
            return;
        }
        // Those that are not sent yet are the newest.
        let kept = (self.end - self.begin).min(depth as u64);
        let mut slots: Vec<Resource> = (self.end - kept..self.end).map(|index| self.slot(index)).collect();
        self.due = slots.iter().filter(|resource| resource.due.is_some()).count() as u32;
        let empty = Resource {
            psn: Psn::default(),
            packets: 0,
            msn: 0,
            answer: Answer::Atomic { orig: 0 },
            due: None,
        };
        slots.resize(depth, empty);
        self.slots = slots;
        (self.begin, self.next, self.end) = (0, 0, kept);
        self.seek();
    }

    /// Moves `next` on to the oldest answer that is due.
    fn seek(&mut self) {
        while self.due > 0 && self.next < self.end && self.slot(self.next).due.is_none() {
            self.next += 1;
        }
    }

    /// A packet of the oldest answer that is due has left.
    fn advance(&mut self, rest: Option<Due>, psn: Psn) {
        let at = self.at(self.next);
        if let Some(slot) = self.slots.get_mut(at) {
            slot.due = rest;
            if rest.is_none() {
                self.due -= 1;
                self.next += 1;
                self.seek();
            }
        }
        // A response stands for an acknowledgement of all that came before it.
        if self.ack.is_some_and(|ack| !ack.is_after(psn)) {
            self.ack = None;
        }
    }
}

/// Writes the next response, if it is of this kind, and gives its length.
#[inline]
pub(super) fn transmit<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    kind: Kind,
    buf: &mut [u8],
) -> Option<usize> {
    if qp.resp.responses.pending()? != kind {
        return None;
    }
    if let Some(resource) = qp.resp.responses.head().copied()
        && let Some(due) = resource.due
    {
        let sent = match resource.answer {
            Answer::Atomic { orig } => Ok(tell(qp, &resource, orig, buf)?),
            Answer::Read { pd, rkey, .. } => respond(qp, world, &resource, &due, (pd, rkey), buf),
        };
        match sent {
            Ok(len) => return (len > 0).then_some(len),
            Err((code, event)) => {
                qp.resp.responses.forget();
                let failed = outcome(qp, Status::RemoteAccess);
                fail(qp, world, due.psn, code, failed, Some(event));
            }
        }
    }
    let headers = if let Some(nak) = qp.resp.responses.nak {
        acknowledge(qp, nak.psn, nak.syndrome, nak.msn)
    } else if qp.resp.responses.ack.is_some() {
        // IBTA 9.7.5.1.2: one acknowledgement for all that has arrived.
        let (psn, msn) = qp.resp.responses.acknowledged(qp.resp.expected.prev(), qp.resp.msn);
        acknowledge(qp, psn, Syndrome::ACK, msn)
    } else {
        return None;
    };
    let len = headers.emit(buf);
    if len == 0 {
        return None;
    }
    (qp.resp.responses.nak, qp.resp.responses.ack) = (None, None);
    Some(len)
}

/// The headers of a response.
fn headers(qp: &Qp, operation: u8, psn: Psn, syndrome: Syndrome, msn: u32) -> Headers {
    let service = if qp.service == Service::XrcTarget { opcode::Service::Xrc } else { opcode::Service::Rc };
    let bth = bth::Repr {
        pkey: qp.attr.pkey,
        ..bth::Repr::new(Opcode::new(service, operation), qp.attr.dest_qpn, psn)
    };
    Headers { aeth: Some(aeth::Repr { syndrome, msn }), ..Headers::new(bth) }
}

fn acknowledge(qp: &Qp, psn: Psn, syndrome: Syndrome, msn: u32) -> Headers {
    headers(qp, opcode::operation::ACKNOWLEDGE, psn, syndrome, msn)
}

/// What an atomic found.
fn tell(qp: &mut Qp, resource: &Resource, orig: u64, buf: &mut [u8]) -> Option<usize> {
    let operation = opcode::operation::ATOMIC_ACKNOWLEDGE;
    let mut headers = headers(qp, operation, resource.psn, Syndrome::ACK, resource.msn);
    headers.atomic_ack_eth = Some(atomic_ack_eth::Repr { orig });
    let len = headers.emit(buf);
    if len == 0 {
        return None;
    }
    qp.resp.responses.advance(None, resource.psn);
    Some(len)
}

/// The next part of what is read, straight from memory. 0: the buffer is too short.
fn respond<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    resource: &Resource,
    due: &Due,
    (pd, rkey): (Pd, u32),
    buf: &mut [u8],
) -> Result<usize, (NakCode, Event)> {
    let mtu = mtu(qp);
    let len = due.left.min(mtu);
    let operation = match (due.begun, due.left <= mtu) {
        (false, false) => opcode::operation::RDMA_READ_RESPONSE_FIRST,
        (true, false) => opcode::operation::RDMA_READ_RESPONSE_MIDDLE,
        (true, true) => opcode::operation::RDMA_READ_RESPONSE_LAST,
        (false, true) => opcode::operation::RDMA_READ_RESPONSE_ONLY,
    };
    let mut headers = headers(qp, operation, due.psn, Syndrome::ACK, resource.msn);
    let pad = pad_for(len as usize);
    headers.bth.pad_cnt = pad;
    let begin = headers.len();
    let end = begin + len as usize + usize::from(pad);
    let Some(buf) = buf.get_mut(..end) else { return Ok(0) };
    headers.emit(buf);
    let (payload, padding) = buf[begin..].split_at_mut(len as usize);
    padding.fill(0);
    if len > 0 {
        // The key may have been taken back since the request came.
        let (region, offset) = world
            .keys
            .remote(pd, qp.qpn, rkey, due.addr, u64::from(len), Access::REMOTE_READ)
            .ok_or((NakCode::REMOTE_ACCESS_ERROR, Event::QpAccessError(qp.qpn)))?;
        world
            .memory
            .read(region, offset, payload)
            .map_err(|_| (NakCode::REMOTE_OPERATIONAL_ERROR, Event::QpFatal(qp.qpn)))?;
    }
    let left = due.left - len;
    let addr = due.addr.wrapping_add(u64::from(len));
    let rest = (left > 0).then_some(Due { psn: due.psn.next(), addr, left, begun: true, again: due.again });
    qp.resp.responses.advance(rest, due.psn);
    Ok(end)
}
