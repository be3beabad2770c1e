//! Ethernet send queues and the conversion of work requests to frames.
//!
//! A doorbell executes posted work requests while there is space for their frames and the queue's
//! rate allows it; the queue executes the rest later. A work request that breaks a rule completes
//! with an error, and later requests are flushed. A frame that is too long for the port has the
//! same effect. It breaks no rule, because a program may have posted it.
//!
//! Invariants: a doorbell executes at most as many work requests as the queue holds and builds at
//! most a few megabytes of frames; a queue is waiting if and only if it has not executed all
//! announced work requests.
//!
//! # References
//! PRM, "send queue", "Ethernet segment"; Linux `drivers/net/ethernet/mellanox/mlx5/core/en_tx.c`,
//! `wc.c` (NOPs through BlueFlame that differ from the queue in one bit)

use roce::engine::{Pd, Sge};

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::eth::rq::{FLUSHED, PROTECTION_ERROR};
use crate::frame;
use crate::function::Function;
use crate::layout::cqe::{cqe, error_cqe};
use crate::layout::wqe::{ctrl, data, eth, inline};
use crate::qp::request::{COMPLETE_ALWAYS, COMPLETE_ERRORS};
use crate::state::eth::{FRAME_COST, QueueState, Rung};
use crate::trace::format::{self, Address, Queue};

/// Size of a basic block in bytes.
pub(crate) const BLOCK: u64 = 64;
/// Unit of a work request's length, in bytes.
const UNIT: usize = 16;
/// Opcodes of work requests: no operation, send, large send.
const NOP: u32 = 0x00;
const SEND: u32 = 0x0a;
const LARGE_SEND: u32 = 0x0e;
/// Opcodes of send completions.
const SENT: u32 = 0;
const SEND_FAILED: u32 = 13;
/// Syndromes of error completions.
const LENGTH_ERROR: u32 = 0x01;
const OPERATION_ERROR: u32 = 0x02;
/// Size of the frame check sequence, in bytes. It is not part of the driver's data.
const CHECK_SEQUENCE: usize = 4;
/// Maximum data size of a work request, in bytes: a large IPv6 send with its headers.
const MAX_SEND: usize = (1 << 16) + 0x400;

/// The rejection of a work request: the broken rule, if any, the syndrome for the completion and a
/// description.
#[derive(Debug)]
struct Broken {
    rule: Option<Rule>,
    syndrome: u32,
    what: String,
}

impl Broken {
    fn new(rule: Rule, what: impl Into<String>) -> Self {
        let syndrome = if rule == Rule::WqeKey { PROTECTION_ERROR } else { OPERATION_ERROR };
        Self { rule: Some(rule), syndrome, what: what.into() }
    }

    /// Returns the rejection of a frame longer than the port's maximum. Such a frame breaks no
    /// rule.
    fn too_long() -> Self {
        Self { rule: None, syndrome: LENGTH_ERROR, what: String::new() }
    }
}

impl<B: Bus> Function<B> {
    /// Handles a doorbell for an Ethernet send queue. Returns whether the doorbell announced
    /// several work requests, or `None` if its queue number is not that of a send queue.
    pub(crate) fn ring_eth(
        &mut self,
        uar: u32,
        doorbell: [u8; 8],
        blue_flame: Option<&[u8]>,
    ) -> Option<bool> {
        let sqn = ctrl::QPN.get32(&doorbell);
        let core = &mut self.core;
        let sq = core.eth.sqs.get(&sqn)?;
        if sq.queue.uar != uar {
            let theirs = sq.queue.uar;
            core.log.complain(
                Rule::DoorbellUar,
                format!("send queue {sqn:#x} of UAR {theirs:#x} in UAR {uar:#x}"),
            );
            return Some(false);
        }
        let head = match sq.queue.send_head(&core.bus, &mut core.log) {
            Ok(head) => head,
            Err(fault) => {
                self.fail_sq(sqn, &Broken::new(Rule::DmaFault, format!("doorbell record: {fault}")));
                return Some(false);
            }
        };
        core.log.trace.line(|| format::record(Queue::Send, sqn, head.into()));
        let blocks = ctrl::DS.get32(&doorbell).div_ceil(4);
        let several = u32::from(head.wrapping_sub(sq.head())) > blocks;
        match sq.state {
            QueueState::Ready => self.rung_eth(sqn, head, doorbell, blue_flame),
            QueueState::Error => self.flush_sq(sqn),
            QueueState::Reset => {
                core.log.complain(Rule::WqeState, format!("send queue {sqn:#x} is in reset"));
            }
        }
        Some(several)
    }

    /// Handles a doorbell for a ready queue.
    fn rung_eth(&mut self, sqn: u32, head: u16, doorbell: [u8; 8], blue_flame: Option<&[u8]>) {
        let Some(sq) = self.core.eth.sqs.get(&sqn) else { return };
        let (first, size) = (sq.head(), sq.queue.size());
        let posted = head.wrapping_sub(sq.taken);
        if head == first {
            let index = ctrl::WQE_INDEX.get32(&doorbell) as u16;
            // The announced work request is in the queue, but the record does not include it: the
            // driver wrote the record too late.
            let late = index == first;
            let rule = if late { Rule::DoorbellRecordFirst } else { Rule::DoorbellStale };
            let what = format!(
                "send queue {sqn:#x}: the doorbell is for {index:#x}, the record and the device are at {head:#x}"
            );
            self.core.log.complain(rule, what);
            return;
        }
        if posted > size {
            let what = format!("{posted} basic blocks in a queue of {size}");
            return self.fail_sq(sqn, &Broken::new(Rule::WqeOverrun, what));
        }
        self.core.eth.burst = 0;
        self.take_eth_sends(sqn, head, doorbell, blue_flame);
    }

    /// Continues a send queue that was waiting for space or for its rate.
    pub(crate) fn resume_eth_sends(&mut self, sqn: u32) {
        let sq = self.core.eth.sqs.get_mut(&sqn);
        let Some(rung) = sq.and_then(|sq| sq.rung.take()) else { return };
        self.core.eth.burst = 0;
        self.take_eth_sends(sqn, rung.head, rung.doorbell, rung.blue_flame.as_deref());
    }

    /// Executes posted work requests while there is space for their frames and the rate allows it.
    fn take_eth_sends(&mut self, sqn: u32, head: u16, doorbell: [u8; 8], blue_flame: Option<&[u8]>) {
        let mut last = [0; 8];
        while let Some(sq) = self.core.eth.sqs.get(&sqn)
            && sq.state == QueueState::Ready
            && let left @ 1.. = head.wrapping_sub(sq.taken)
        {
            let index = sq.taken;
            if self.core.eth.is_full() || self.core.eth.is_early(sqn, self.core.now) {
                let blue_flame = blue_flame.map(<[u8]>::to_vec);
                return self.core.eth.wait(sqn, Rung { head, doorbell, blue_flame });
            }
            let mut request = match self.fetch_eth_send(sqn, left) {
                Ok(request) => request,
                Err(broken) => return self.fail_sq(sqn, &broken),
            };
            last.copy_from_slice(&request[..8]);
            self.core.log.trace.line(|| format::wqe(sqn, Address::Ethernet, &request));
            let blocks = request.len().div_ceil(BLOCK as usize) as u16;
            if blocks == left
                && let Some(pushed) = blue_flame
            {
                self.compare_eth_send(sqn, &mut request, pushed);
            }
            if let Some(sq) = self.core.eth.sqs.get_mut(&sqn) {
                sq.taken = index.wrapping_add(blocks);
            }
            match self.carry_out_eth_send(sqn, &request) {
                Ok(()) if ctrl::CE.get(&request) == COMPLETE_ALWAYS => {
                    self.complete_eth_send(sqn, index, &request, None);
                }
                Ok(()) => (),
                Err(broken) => {
                    let syndrome = broken.syndrome;
                    self.complete_eth_send(sqn, index, &request, Some(syndrome));
                    return self.fail_sq(sqn, &broken);
                }
            }
        }
        if last != doorbell {
            let what = format!(
                "send queue {sqn:#x}: doorbell {doorbell:02x?}, the last request starts with {last:02x?}"
            );
            self.core.log.complain(Rule::DoorbellOrder, what);
        }
    }

    /// Reads the next work request of a queue. The request may have at most `left` basic blocks.
    fn fetch_eth_send(&self, sqn: u32, left: u16) -> Result<Vec<u8>, Broken> {
        let sq = self
            .core
            .eth
            .sqs
            .get(&sqn)
            .ok_or_else(|| Broken::new(Rule::DoorbellObject, "the queue does not exist"))?;
        let index = sq.taken;
        let fault = |fault| Broken::new(Rule::DmaFault, format!("work request {index:#x}: {fault}"));
        let mut head = [0; ctrl::SIZE];
        sq.queue.read(&self.core.bus, index, &mut head).map_err(fault)?;
        let broken = |rule, what: String| Broken::new(rule, format!("work request {index:#x}: {what}"));
        if let Some((offset, bits)) = ctrl::TABLE.reserved(&head) {
            return Err(broken(Rule::WqeReserved, format!("bits {bits:#x} of dword {offset:#x}")));
        }
        let carried = ctrl::WQE_INDEX.get32(&head);
        if carried != u32::from(index) {
            return Err(broken(Rule::WqeIndex, format!("it carries index {carried:#x}")));
        }
        let number = ctrl::QPN.get32(&head);
        if number != sqn {
            return Err(broken(Rule::WqeQpn, format!("it carries queue number {number:#x}")));
        }
        let units = ctrl::DS.get32(&head) as usize;
        let length = units * UNIT;
        if units == 0 || length.div_ceil(BLOCK as usize) > usize::from(left) {
            return Err(broken(Rule::WqeSize, format!("{units} units of 16 bytes in {left} posted blocks")));
        }
        let mut request = vec![0; length];
        sq.queue.read(&self.core.bus, index, &mut request).map_err(fault)?;
        Ok(request)
    }

    /// Compares a work request with its BlueFlame copy. They may differ only in a NOP whose copy
    /// requests a completion: drivers detect write combining in this way. If the two agree, the
    /// copy replaces the request.
    fn compare_eth_send(&mut self, sqn: u32, request: &mut Vec<u8>, pushed: &[u8]) {
        let Some(pushed) = pushed.get(..request.len()) else { return };
        let mut expected = request.clone();
        if ctrl::OPCODE.get32(pushed) == NOP {
            ctrl::CE.set(&mut expected, ctrl::CE.get(pushed));
        }
        if expected == pushed {
            request.copy_from_slice(pushed);
        } else {
            let index = ctrl::WQE_INDEX.get32(request);
            let what = format!(
                "send queue {sqn:#x}, work request {index:#x}: {pushed:02x?} instead of {request:02x?}"
            );
            self.core.log.complain(Rule::BlueFlameContent, what);
        }
    }

    fn carry_out_eth_send(&mut self, sqn: u32, request: &[u8]) -> Result<(), Broken> {
        let (opcode, opmod) = (ctrl::OPCODE.get32(request), ctrl::OPMOD.get32(request));
        let index = ctrl::WQE_INDEX.get32(request);
        let at = |mut broken: Broken| {
            broken.what = format!("work request {index:#x}: {}", broken.what);
            broken
        };
        if opmod != 0 {
            return Err(at(Broken::new(
                Rule::WqeOpcode,
                format!("opcode {opcode:#x} with modifier {opmod:#x}"),
            )));
        }
        let completion = ctrl::CE.get(request);
        if !matches!(completion, COMPLETE_ERRORS | COMPLETE_ALWAYS) {
            let what = format!("completion mode {completion}");
            return Err(at(Broken::new(Rule::WqeCompletionMode, what)));
        }
        match opcode {
            NOP => Ok(()),
            SEND | LARGE_SEND => self.send_frames(sqn, request, opcode == LARGE_SEND).map_err(at),
            _ => Err(at(Broken::new(Rule::WqeOpcode, format!("opcode {opcode:#x}")))),
        }
    }

    fn send_frames(&mut self, sqn: u32, request: &[u8], large: bool) -> Result<(), Broken> {
        let sq = self.core.eth.sqs.get(&sqn);
        let Some((pd, Some(tisn))) = sq.map(|sq| (Pd(sq.queue.pd), sq.tisn)) else {
            return Err(Broken::new(Rule::WqeOpcode, "a send in a queue without a TIS"));
        };
        let segment =
            request.get(UNIT..2 * UNIT).ok_or_else(|| Broken::new(Rule::WqeSize, "no Ethernet segment"))?;
        let insert = eth::INSERT_VLAN.is_set(segment);
        if let Some((offset, bits)) = eth::TABLE.reserved(segment) {
            let what = format!("bits {bits:#x} of dword {offset:#x} of the Ethernet segment");
            return Err(Broken::new(Rule::WqeReserved, what));
        }
        if eth::L3_INNER_CSUM.is_set(segment) || eth::L4_INNER_CSUM.is_set(segment) {
            return Err(Broken::new(Rule::WqeReserved, "checksums of inner headers, which are not offered"));
        }
        // A VLAN tag to insert replaces the inline header.
        let inlined = if insert { 0 } else { eth::INLINE_HEADER_SIZE.get(segment) as usize };
        let start = UNIT + eth::INLINE_HEADER_START.offset;
        let header = request.get(start..start + inlined);
        let header =
            header.ok_or_else(|| Broken::new(Rule::WqeSize, format!("a header of {inlined} bytes")))?;
        let rest = 2 * UNIT + inlined.saturating_sub(2).next_multiple_of(UNIT);
        let payload = self.gather_eth_send(pd, request.get(rest..).unwrap_or_default())?;
        let mss = eth::MSS.get(segment) as usize;
        if !large && mss != 0 {
            return Err(Broken::new(Rule::WqeReserved, "a segment size in a send of one frame"));
        }
        self.core.eth.burst += payload.len() + FRAME_COST;
        let mut frames = if large {
            frame::segment(header, &payload, mss).ok_or_else(|| {
                let what =
                    format!("{} bytes in segments of {mss} after a header of {inlined}", payload.len());
                Broken::new(Rule::WqeSize, what)
            })?
        } else {
            vec![[header, &payload].concat()]
        };
        for frame in &mut frames {
            if frame.len() < frame::ETHERNET_HEADER {
                return Err(Broken::new(Rule::WqeSize, format!("a frame of {} bytes", frame.len())));
            }
            frame::fill_checksums(frame, eth::L3_CSUM.is_set(segment), eth::L4_CSUM.is_set(segment));
            if insert {
                let tag = eth::INLINE_HEADER_START.bytes(segment);
                let tag = tag.first_chunk().map_or(0, |tag| u16::from_be_bytes(*tag));
                frame::insert_vlan(frame, eth::INSERT_SVLAN.is_set(segment), tag);
            }
            if frame.len() < frame::MIN_FRAME {
                frame.resize(frame::MIN_FRAME, 0);
            }
            if frame.len() + CHECK_SEQUENCE > self.core.port.longest_frame() {
                return Err(Broken::too_long());
            }
            self.core.eth.burst += frame.len() + FRAME_COST;
        }
        let bytes = frames.iter().map(|frame| frame.len() + CHECK_SEQUENCE).sum();
        self.core.eth.charge(sqn, bytes, self.core.now);
        if self.core.port.kind == crate::port::PortKind::Roce && self.core.port.up {
            let domain = self.core.eth.tises.get(&tisn).map_or(0, |tis| tis.domain);
            frames.into_iter().for_each(|frame| self.core.eth.send(frame, domain));
        }
        Ok(())
    }

    /// Collects the bytes of the data segments, which are pointers to memory or inline data.
    fn gather_eth_send(&mut self, pd: Pd, mut segments: &[u8]) -> Result<Vec<u8>, Broken> {
        let mut payload = Vec::new();
        while let Some(head) = segments.get(..UNIT) {
            let inlined = inline::IS_INLINE.is_set(head);
            let length = if inlined { inline::BYTE_COUNT.get32(head) } else { data::BYTE_COUNT.get32(head) };
            let (from, length) = (payload.len(), length as usize);
            if length == 0 || from + length > MAX_SEND {
                return Err(Broken::new(Rule::WqeSize, format!("a data segment of {length} bytes")));
            }
            if inlined {
                let bytes = segments.get(inline::SIZE..inline::SIZE + length);
                let bytes =
                    bytes.ok_or_else(|| Broken::new(Rule::WqeInline, format!("{length} bytes inline")))?;
                payload.extend_from_slice(bytes);
                segments = segments.get((inline::SIZE + length).next_multiple_of(UNIT)..).unwrap_or_default();
                continue;
            }
            let (addr, lkey) = (data::ADDRESS.get(head), data::LKEY.get32(head));
            payload.resize(from + length, 0);
            let sge = Sge { addr, length: length as u32, lkey };
            self.engine.gather(pd, &[sge], &mut payload[from..]).map_err(|why| {
                Broken::new(Rule::WqeKey, format!("{length} bytes at {addr:#x} with key {lkey:#x}: {why}"))
            })?;
            segments = segments.get(UNIT..).unwrap_or_default();
        }
        Ok(payload)
    }

    /// Puts a queue in the error state. Flushes its posted work requests if the queue was created
    /// with flushing.
    pub(crate) fn flush_sq(&mut self, sqn: u32) {
        let core = &mut self.core;
        let Some(sq) = core.eth.sqs.get_mut(&sqn) else { return };
        sq.state = QueueState::Error;
        sq.rung = None;
        let head = match sq.queue.send_head(&core.bus, &mut core.log) {
            Ok(head) if sq.flush_in_error => head,
            _ => return,
        };
        for _ in 0..sq.queue.size() {
            let Some(sq) = self.core.eth.sqs.get(&sqn) else { return };
            let (index, left) = (sq.taken, head.wrapping_sub(sq.taken));
            if left == 0 {
                return;
            }
            let mut request = vec![0; ctrl::SIZE];
            let read = sq.queue.read(&self.core.bus, index, &mut request);
            let length = ctrl::DS.get32(&request) as usize * UNIT;
            let blocks = if read.is_ok() { length.div_ceil(BLOCK as usize).max(1) as u16 } else { 1 };
            if let Some(sq) = self.core.eth.sqs.get_mut(&sqn) {
                sq.taken = index.wrapping_add(blocks.min(left));
            }
            self.complete_eth_send(sqn, index, &request, Some(FLUSHED));
        }
    }

    fn fail_sq(&mut self, sqn: u32, broken: &Broken) {
        if let Some(rule) = broken.rule {
            self.core.log.complain(rule, format!("send queue {sqn:#x}: {}", broken.what));
        }
        self.flush_sq(sqn);
    }

    fn complete_eth_send(&mut self, sqn: u32, index: u16, request: &[u8], error: Option<u32>) {
        let core = &mut self.core;
        let Some(sq) = core.eth.sqs.get(&sqn) else { return };
        let mut entry = [0; 64];
        match error {
            None => {
                cqe::TIMESTAMP.set(&mut entry, crate::state::iseg::ticks(core.now));
                cqe::OPCODE.set(&mut entry, SENT);
            }
            Some(syndrome) => {
                error_cqe::SYNDROME.set(&mut entry, syndrome);
                cqe::OPCODE.set(&mut entry, SEND_FAILED);
            }
        }
        cqe::SRQN_USER_INDEX.set(&mut entry, sq.user_index);
        cqe::WQE_OPCODE.set(&mut entry, ctrl::OPCODE.get(request));
        cqe::QPN.set(&mut entry, sqn);
        cqe::WQE_COUNTER.set(&mut entry, index);
        let cqn = sq.cqn;
        if core.write_cqe(cqn, &mut entry, &[], false).is_err()
            && let Some(sq) = core.eth.sqs.get_mut(&sqn)
        {
            sq.state = QueueState::Error;
        }
    }
}
