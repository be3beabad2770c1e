//! Tag matching: list operations from command queue pairs, matching messages, and rendezvous.
//!
//! | message | expected | unexpected |
//! |---|---|---|
//! | eager, one packet | `CONSUMED_MESSAGE` | `UNEXPECTED` |
//! | eager, several packets | `CONSUMED`, then `EXPECTED` | `UNEXPECTED` |
//! | rendezvous request | `CONSUMED`, the device reads, `EXPECTED` | `UNEXPECTED` |
//! | the same, left to software | `CONSUMED_MESSAGE_SOFTWARE` | `UNEXPECTED` |
//! | without a tag | | `NO_TAG` |
//!
//! The data of an expected message is stored in the buffer of the matching list entry, without the
//! header. An unexpected message is stored in a receive, including the header. At the end of a
//! rendezvous transfer, the device returns the request's headers to the sender. The device leaves
//! the rendezvous to software if the buffer is too short or the queue pair has a send queue; the
//! request is then stored in the buffer.
//!
//! A message may match an entry and then fail: its data does not fit, a key is invalid, or its
//! queue pair is destroyed. The message then completes as `CANCELED`, the only documented
//! completion for an entry and a failure. The manual does not say that devices use it for this
//! case.
//!
//! Tag matching completions never hold payload, even if the queue pair requests it, because the
//! payload would replace the header in the first bytes.
//!
//! # References
//! rdma-core `Documentation/tag_matching.md`; `providers/mlx5/cq.c` (`handle_tag_matching`)

use roce::engine::{
    Completion, CqFull, FirstPacket, Matched, Payload, PostRefused, SendFlags, SendOp, SendWr, Sge, Status,
};

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::{Core, Function};
use crate::layout::cqe::{cqe, tm_cqe};
use crate::layout::wqe::{ctrl, data, tag_matching};
use crate::qp::request::{Mistake, opcode};
use crate::state::qp::HeldSend;
use crate::state::work::{Arriving, Kind, ListChange, OwnSend, Step};
use crate::tags::{Consumed, HEADER, Message, REMOTE, Remote, Transfer, operation};

/// Bit set in the `wr_id` of a message received into a list entry.
pub(crate) const TAGGED: u64 = 1 << 32;
/// Bits set in the `wr_id` of the device's own sends: a read for a list entry, and the end of a
/// rendezvous.
const READING: u64 = 1 << 33;
const FINISHING: u64 = 1 << 34;

/// Value of the application field that marks tag matching completions.
const TAG_MATCHING: u32 = 1;

/// Opcode of a completion that belongs to no packet.
const NO_PACKET: u32 = 6;

/// Values of the operation field in completions.
mod done {
    pub(super) const CONSUMED: u32 = 0x1;
    pub(super) const EXPECTED: u32 = 0x2;
    pub(super) const UNEXPECTED: u32 = 0x3;
    pub(super) const NO_TAG: u32 = 0x4;
    pub(super) const APPEND: u32 = 0x5;
    pub(super) const REMOVE: u32 = 0x6;
    pub(super) const NOOP: u32 = 0x7;
    pub(super) const CONSUMED_MESSAGE: u32 = 0xa;
    pub(super) const CONSUMED_MESSAGE_SOFTWARE: u32 = 0xb;
    pub(super) const CANCELED: u32 = 0xc;
}

/// Decodes a list operation from the segments of a work request.
///
/// # Errors
/// A [`Mistake`] if undefined bits are set or the length is wrong for the operation.
pub(super) fn decode(bytes: &[u8]) -> Result<ListChange, Mistake> {
    let wrong = |what: String| Mistake::new(Rule::WqeTagMatching, what);
    // The tag matching segment requests the completion; these control segment bits must be 0.
    if [ctrl::FM, ctrl::CE, ctrl::SE, ctrl::IMM].iter().any(|field| field.is_set(bytes)) {
        return Err(wrong("fence, completion, solicited or immediate bits of its control segment".into()));
    }
    let rest = bytes.get(ctrl::SIZE..).unwrap_or_default();
    let Some((segment, rest)) = rest.split_at_checked(tag_matching::SIZE) else {
        return Err(wrong(format!("{} bytes after its control segment", rest.len())));
    };
    if let Some((offset, bits)) = tag_matching::TABLE.reserved(segment) {
        return Err(wrong(format!("bits {bits:#x} of dword {offset:#x}")));
    }
    let index = tag_matching::INDEX.get(segment) as u16;
    let kind = match (tag_matching::OPCODE.get(segment), rest.len()) {
        (0, 0) => Kind::Noop,
        (1, data::SIZE) => Kind::Append {
            next: index,
            tag: tag_matching::APPEND_TAG.get(segment),
            mask: tag_matching::APPEND_MASK.get(segment),
            buffer: buffer(rest).map_err(wrong)?,
        },
        (2, 0) => Kind::Remove { index },
        (operation, len) => return Err(wrong(format!("operation {operation:#x} with {len} bytes of data"))),
    };
    let handled = tag_matching::SW_CNT_VALID.is_set(segment);
    Ok(ListChange {
        kind,
        completes: tag_matching::CQE_REQ.is_set(segment),
        // Without the flag, the count is stale.
        handled: handled.then(|| tag_matching::SW_CNT.get(segment) as u16),
    })
}

/// Decodes the buffer of a list entry: one element, or a terminator for an entry without a buffer.
fn buffer(element: &[u8]) -> Result<Option<Sge>, String> {
    let (length, lkey) = (data::BYTE_COUNT.get32(element), data::LKEY.get32(element));
    let addr = data::ADDRESS.get(element);
    match (length, lkey) {
        _ if data::TABLE.reserved(element).is_some() => Err("a bit above the length of its buffer".into()),
        (0, super::rq::TERMINATOR) if addr == 0 => Ok(None),
        (0, _) => Err("a buffer without bytes that is no terminator".into()),
        _ => Ok(Some(Sge { addr, length, lkey })),
    }
}

impl<B: Bus> Core<B> {
    /// Executes a list operation. If the operation requests a completion, returns the completion
    /// and the number of its completion queue.
    ///
    /// # Errors
    /// Returns an error status, after a complaint, if the list has no such index or the index is in
    /// use.
    pub(super) fn change_list(
        &mut self,
        qpn: u32,
        change: &ListChange,
    ) -> Result<Option<(u32, [u8; 64])>, Status> {
        let Some(srqn) = self.tag_queue(qpn) else { return Err(Status::LocalQpOperation) };
        let now = self.now;
        let Some(srq) = self.srqs.get_mut(&srqn) else { return Err(Status::LocalQpOperation) };
        let (cqn, user_index) = (srq.cqn, srq.user_index);
        let Some(tags) = &mut srq.tags else { return Err(Status::LocalQpOperation) };
        if let Some(handled) = change.handled {
            tags.report(handled);
        }
        let (operation, outcome) = match change.kind {
            Kind::Noop => (done::NOOP, Ok((0, true))),
            Kind::Append { next, tag, mask, buffer } => {
                (done::APPEND, tags.append(next, tag, mask, buffer).map(|index| (index, true)))
            }
            Kind::Remove { index } => (done::REMOVE, tags.remove(index).map(|removed| (index, removed))),
        };
        let (index, success) = match outcome {
            Ok(outcome) => outcome,
            Err(what) => {
                let what = format!("queue pair {qpn:#x}: {what}");
                self.log.complain(Rule::TagIndex, what);
                return Err(Status::LocalQpOperation);
            }
        };
        if !change.completes {
            return Ok(None);
        }
        let mut entry = [0; 64];
        tm_cqe::SUCCESS.set(&mut entry, u32::from(success));
        tm_cqe::HW_PHASE_CNT.set(&mut entry, tags.hardware);
        of_tags(&mut entry, operation, index);
        cqe::OPCODE.set(&mut entry, NO_PACKET);
        cqe::QPN.set(&mut entry, qpn);
        cqe::WQE_OPCODE.set(&mut entry, opcode::TAG_MATCHING);
        cqe::SRQN_USER_INDEX.set(&mut entry, user_index);
        cqe::TIMESTAMP.set(&mut entry, crate::state::iseg::ticks(now));
        Ok(Some((cqn, entry)))
    }

    /// Returns the number of the tag matching queue from which a queue pair receives; `None` if
    /// there is none.
    pub(super) fn tag_queue(&self, qpn: u32) -> Option<u32> {
        let super::Receives::Shared(srqn) = self.qps.get(&qpn)?.rq else { return None };
        self.srqs.get(&srqn)?.tags.as_ref().map(|_| srqn)
    }

    /// Finds the list entry for a message whose first packet has arrived. If no entry matches and a
    /// receive is available, counts the message as unexpected.
    pub(super) fn find_entry(&mut self, first: &FirstPacket<'_>, sges: &mut [Sge]) -> Option<Matched> {
        let (qpn, srqn) = (first.qpn.0, first.srq.0);
        let message = Message::read(first.payload, first.whole);
        let qp = self.qps.get_mut(&qpn)?;
        let offloads = qp.offloads_rendezvous;
        let tags = self.srqs.get_mut(&srqn)?.tags.as_mut()?;
        let Some((index, buffer)) = tags.take(&message) else {
            qp.run.recv.arriving = Some(match message {
                Message::Untagged => Arriving::Untagged,
                _ => Arriving::Unexpected,
            });
            if first.posted && message != Message::Untagged {
                tags.hardware = tags.hardware.wrapping_add(1);
            }
            return None;
        };
        let room = buffer.map_or(0, |buffer| buffer.length);
        let (transfer, skipped) = match message {
            Message::Rendezvous { remote, .. } if tags.rendezvous && offloads && remote.length <= room => {
                (Transfer::Read(remote), first.payload.len())
            }
            Message::Rendezvous { .. } => (Transfer::Software, 0),
            _ if first.whole => (Transfer::Whole, HEADER),
            _ => (Transfer::Packets, HEADER),
        };
        let header = first.payload.first_chunk().copied().unwrap_or_default();
        tags.consume(index, Consumed { qpn, buffer, header, transfer });
        if matches!(transfer, Transfer::Read(_) | Transfer::Packets) {
            self.report_consumed(srqn, qpn, index, &header);
        }
        let place = buffer.filter(|_| !matches!(transfer, Transfer::Read(_))).zip(sges.first_mut());
        let count = place.map_or(0, |(buffer, place)| {
            *place = buffer;
            1
        });
        Some(Matched { wr_id: TAGGED | u64::from(index), sges: count, header: skipped })
    }

    /// Reports that a message has matched an entry, before the message's data arrives.
    fn report_consumed(&mut self, srqn: u32, qpn: u32, index: u16, header: &[u8; HEADER]) {
        let mut entry = [0; 64];
        tm_cqe::TMH.bytes_mut(&mut entry).copy_from_slice(header);
        cqe::OPCODE.set(&mut entry, NO_PACKET);
        let _ = self.complete_entry(srqn, qpn, done::CONSUMED, index, entry, false);
    }

    /// Reports that a message has failed after matching an entry, and frees the entry.
    fn cancel(&mut self, srqn: u32, index: u16) -> Result<(), CqFull> {
        let tags = self.srqs.get_mut(&srqn).and_then(|srq| srq.tags.as_mut());
        let Some(ended) = tags.and_then(|tags| tags.end(index)) else { return Ok(()) };
        let mut entry = [0; 64];
        tm_cqe::TMH.bytes_mut(&mut entry).copy_from_slice(&ended.header);
        cqe::OPCODE.set(&mut entry, NO_PACKET);
        self.complete_entry(srqn, ended.qpn, done::CANCELED, index, entry, true)
    }

    /// Writes a list entry's completion to the completion queue of the tag matching queue. If that
    /// is full, it enters the error state.
    fn complete_entry(
        &mut self,
        srqn: u32,
        qpn: u32,
        operation: u32,
        index: u16,
        mut entry: [u8; 64],
        solicited: bool,
    ) -> Result<(), CqFull> {
        let Some(srq) = self.srqs.get(&srqn) else { return Ok(()) };
        let cqn = srq.cqn;
        of_tags(&mut entry, operation, index);
        cqe::QPN.set(&mut entry, qpn);
        cqe::SRQN_USER_INDEX.set(&mut entry, srq.user_index);
        cqe::TIMESTAMP.set(&mut entry, crate::state::iseg::ticks(self.now));
        self.write_cqe(cqn, &mut entry, &[], solicited).inspect_err(|_| self.cq_error(cqn))
    }

    /// Handles an engine completion that belongs to a list entry or to one of the device's own
    /// sends. Returns `None` if it belongs to neither.
    pub(super) fn of_entry(&mut self, completion: &Completion) -> Option<Result<(), CqFull>> {
        let qpn = completion.qpn.0;
        if completion.wr_id & FINISHING != 0 {
            // This send completes only if the queue pair has failed. The peer then learns nothing
            // about the end of the rendezvous.
            return Some(Ok(()));
        }
        if completion.wr_id & (TAGGED | READING) == 0 {
            return None;
        }
        let index = completion.wr_id as u16;
        let srqn = self.tag_queue(qpn)?;
        if completion.status != Status::Success {
            return Some(self.cancel(srqn, index));
        }
        let tags = self.srqs.get_mut(&srqn)?.tags.as_mut()?;
        let Some(&Consumed { header, transfer, .. }) = tags.consumed(index) else { return Some(Ok(())) };
        let mut entry = [0; 64];
        cqe::BYTE_CNT.set(&mut entry, completion.byte_len);
        super::completion::of_message(completion, &mut entry);
        let operation = match transfer {
            // The rendezvous request has arrived; the device now reads the data.
            Transfer::Read(_) if completion.wr_id & READING == 0 => {
                self.attention.own_sends.push_back(OwnSend { qpn, srqn, step: Step::Read { index } });
                return Some(Ok(()));
            }
            Transfer::Read(remote) => {
                let header = finished(&header, &remote);
                self.attention.own_sends.push_back(OwnSend { qpn, srqn, step: Step::Finish { header } });
                cqe::BYTE_CNT.set(&mut entry, remote.length);
                done::EXPECTED
            }
            Transfer::Packets => done::EXPECTED,
            Transfer::Whole => done::CONSUMED_MESSAGE,
            Transfer::Software => done::CONSUMED_MESSAGE_SOFTWARE,
        };
        tags.end(index);
        if operation != done::EXPECTED {
            tm_cqe::TMH.bytes_mut(&mut entry).copy_from_slice(&header);
        }
        Some(self.complete_entry(srqn, qpn, operation, index, entry, completion.solicited))
    }

    /// Fills in the completion of a receive whose message matched no list entry.
    pub(super) fn of_receive(&mut self, qpn: u32, entry: &mut [u8; 64]) {
        match self.qps.get_mut(&qpn).and_then(|qp| qp.run.recv.arriving.take()) {
            Some(Arriving::Unexpected) => of_tags(entry, done::UNEXPECTED, 0),
            Some(Arriving::Untagged) => of_tags(entry, done::NO_TAG, 0),
            None => {}
        }
    }

    /// Cancels the matched messages of a queue pair that is being destroyed or reset.
    pub(crate) fn abandon_entries(&mut self, qpn: u32) {
        self.attention.own_sends.retain(|send| send.qpn != qpn);
        let Some(srqn) = self.tag_queue(qpn) else { return };
        let tags = self.srqs.get(&srqn).and_then(|srq| srq.tags.as_ref());
        for index in tags.map(|tags| tags.for_qp(qpn)).unwrap_or_default() {
            let _ = self.cancel(srqn, index);
        }
    }
}

impl<B: Bus> Function<B> {
    /// Passes the device's own sends to the engine. Those whose queue pair cannot send yet remain
    /// queued.
    pub(super) fn send_own(&mut self) {
        let mut later = std::collections::VecDeque::new();
        while let Some(send) = self.core.attention.own_sends.pop_front() {
            match self.post_own(&send) {
                Ok(()) => {}
                // The send queue is full, or the queue pair is not in RTS yet.
                Err(PostRefused::QueueFull | PostRefused::InvalidState) => later.push_back(send),
                Err(_) => {
                    if let Step::Read { index } = send.step {
                        let _ = self.core.cancel(send.srqn, index);
                    }
                }
            }
        }
        self.core.attention.own_sends.append(&mut later);
    }

    fn post_own(&mut self, send: &OwnSend) -> Result<(), PostRefused> {
        match send.step {
            Step::Finish { header } => {
                let payload = Payload::Inline(&header);
                let op = SendOp::Send { imm: None };
                let wr = SendWr { wr_id: FINISHING, op, flags: SendFlags::default(), payload, remote_srq: 0 };
                self.post(send.qpn, HeldSend { blocks: 0, _inlined: None }, &wr)
            }
            Step::Read { index } => {
                let tags = self.core.srqs.get(&send.srqn).and_then(|srq| srq.tags.as_ref());
                let entry = tags.and_then(|tags| tags.consumed(index));
                let Some((&Consumed { buffer, .. }, remote)) = entry.and_then(|entry| {
                    if let Transfer::Read(remote) = entry.transfer { Some((entry, remote)) } else { None }
                }) else {
                    return Ok(());
                };
                let Remote { addr, rkey, length, .. } = remote;
                let place = buffer.filter(|_| length > 0).map(|buffer| Sge { length, ..buffer });
                let flags = SendFlags { signaled: true, ..SendFlags::default() };
                let wr = SendWr {
                    wr_id: READING | u64::from(index),
                    op: SendOp::Read { addr, rkey },
                    flags,
                    payload: Payload::Sges(place.as_slice()),
                    remote_srq: 0,
                };
                self.post(send.qpn, HeldSend { blocks: 0, _inlined: None }, &wr)
            }
        }
    }
}

/// Returns the message that ends a rendezvous: the headers of the request with another operation
/// code.
fn finished(header: &[u8; HEADER], remote: &Remote) -> [u8; HEADER + REMOTE] {
    let mut message = [0; HEADER + REMOTE];
    message[..HEADER].copy_from_slice(header);
    message[HEADER..].copy_from_slice(&remote.header);
    message[0] = operation::FINISHED;
    message
}

/// Sets the fields common to all tag matching completions.
fn of_tags(entry: &mut [u8; 64], operation: u32, index: u16) {
    tm_cqe::APP.set(entry, TAG_MATCHING);
    tm_cqe::APP_OP.set(entry, operation);
    tm_cqe::APP_INFO.set(entry, index);
}
