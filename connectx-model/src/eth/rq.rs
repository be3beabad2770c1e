//! Ethernet receive queues and the completions of received frames.
//!
//! ```text
//!   RST ──► RDY ──► ERR        any ──► RST, ERR
//! ```
//! Only a ready queue accepts frames. A receive that is too short for a frame completes with a
//! length error, and the queue continues. A receive with an invalid key puts the queue in the error
//! state, which flushes the posted receives.
//!
//! # References
//! PRM, "receive queue"; Linux `drivers/net/ethernet/mellanox/mlx5/core/en_rx.c` (completion fields
//! that a driver reads)

use roce::engine::{Pd, Sge};

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::frame::{self, Parsed, TCP, UDP};
use crate::function::Function;
use crate::layout::cqe::{cqe, error_cqe};
use crate::layout::wqe::data;
use crate::state::eth::QueueState;
use crate::trace::format::{self, Queue};

/// Opcodes of receive completions.
const RECEIVED: u32 = 2;
const RECEIVE_ERROR: u32 = 14;
/// Syndromes of error completions.
pub(crate) const LENGTH_ERROR: u32 = 0x01;
pub(crate) const PROTECTION_ERROR: u32 = 0x04;
pub(crate) const FLUSHED: u32 = 0x05;
/// The key that ends a receive list shorter than its stride.
const TERMINATOR_KEY: u32 = 0x100;

impl<B: Bus> Function<B> {
    /// Stores a frame in the next receive of a queue and completes the receive.
    pub(crate) fn receive_frame(&mut self, rqn: u32, tag: u32, frame: &[u8]) {
        let core = &mut self.core;
        let Some(rq) = core.eth.rqs.get_mut(&rqn) else { return };
        let head = match rq.queue.receive_head(&core.bus, &mut core.log) {
            Ok(head) if rq.state == QueueState::Ready => head,
            Ok(_) => {
                core.eth.counters.out_of_buffer += 1;
                return;
            }
            Err(fault) => return self.fail_rq(rqn, Rule::DmaFault, format!("doorbell record: {fault}")),
        };
        let posted = head.wrapping_sub(rq.consumed);
        if posted == 0 {
            core.eth.counters.out_of_buffer += 1;
            return;
        }
        if posted > rq.queue.size() {
            let what = format!("{posted} receives in a queue of {}", rq.queue.size());
            return self.fail_rq(rqn, Rule::RecvOverrun, what);
        }
        let counter = rq.consumed;
        let mut entry = vec![0; rq.queue.stride as usize];
        if let Err(fault) = rq.queue.read(&core.bus, counter, &mut entry) {
            return self.fail_rq(rqn, Rule::DmaFault, format!("receive {counter:#x}: {fault}"));
        }
        core.log.trace.line(|| format::receive(Queue::Receive, rqn, counter.into(), &entry));
        rq.consumed = counter.wrapping_add(1);
        let (pd, keep_vlan) = (Pd(rq.queue.pd), rq.keep_vlan);
        let sges = match scatter_list(&entry) {
            Ok(sges) => sges,
            Err((rule, what)) => return self.fail_rq(rqn, rule, format!("receive {counter:#x}: {what}")),
        };
        let parsed = Parsed::new(frame);
        let vlan = parsed.and_then(|parsed| parsed.vlan.filter(|_| !keep_vlan && !parsed.service_vlan));
        let mut bytes = frame.to_vec();
        if vlan.is_some() {
            frame::strip_vlan(&mut bytes);
        }
        let room: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        if (bytes.len() as u64) > room {
            self.complete_frame_error(rqn, counter, LENGTH_ERROR);
            return;
        }
        if let Err(why) = self.engine.scatter(pd, &sges, &bytes) {
            self.complete_frame_error(rqn, counter, PROTECTION_ERROR);
            return self.fail_rq(rqn, Rule::RecvKey, format!("receive {counter:#x}: {why}"));
        }
        let mut entry = completion(frame, parsed.as_ref(), vlan);
        cqe::BYTE_CNT.set(&mut entry, bytes.len() as u64);
        cqe::QPN.set(&mut entry, tag);
        cqe::WQE_COUNTER.set(&mut entry, counter);
        cqe::OPCODE.set(&mut entry, RECEIVED);
        cqe::TIMESTAMP.set(&mut entry, crate::state::iseg::ticks(self.core.now));
        self.complete_frame(rqn, entry);
    }

    /// Puts a queue in the error state. Flushes its posted receives if the queue was created with
    /// flushing.
    pub(crate) fn flush_rq(&mut self, rqn: u32) {
        let core = &mut self.core;
        let Some(rq) = core.eth.rqs.get_mut(&rqn) else { return };
        rq.state = QueueState::Error;
        let posted = match rq.queue.receive_head(&core.bus, &mut core.log) {
            Ok(head) if rq.flush_in_error => head.wrapping_sub(rq.consumed).min(rq.queue.size()),
            _ => 0,
        };
        let first = rq.consumed;
        rq.consumed = first.wrapping_add(posted);
        for number in 0..posted {
            self.complete_frame_error(rqn, first.wrapping_add(number), FLUSHED);
        }
    }

    fn fail_rq(&mut self, rqn: u32, rule: Rule, what: String) {
        self.core.log.complain(rule, format!("receive queue {rqn:#x}: {what}"));
        self.flush_rq(rqn);
    }

    fn complete_frame_error(&mut self, rqn: u32, counter: u16, syndrome: u32) {
        let mut entry = [0; 64];
        error_cqe::SYNDROME.set(&mut entry, syndrome);
        error_cqe::QPN.set(&mut entry, rqn);
        error_cqe::WQE_COUNTER.set(&mut entry, counter);
        error_cqe::OPCODE.set(&mut entry, RECEIVE_ERROR);
        self.complete_frame(rqn, entry);
    }

    fn complete_frame(&mut self, rqn: u32, mut entry: [u8; 64]) {
        let core = &mut self.core;
        let Some(rq) = core.eth.rqs.get_mut(&rqn) else { return };
        cqe::SRQN_USER_INDEX.set(&mut entry, rq.user_index);
        let cqn = rq.cqn;
        if core.write_cqe(cqn, &mut entry, &[], false).is_err()
            && let Some(rq) = core.eth.rqs.get_mut(&rqn)
        {
            rq.state = QueueState::Error;
        }
    }
}

/// Returns the elements of a receive: all elements in its stride, or those before the terminator.
fn scatter_list(entry: &[u8]) -> Result<Vec<Sge>, (Rule, String)> {
    let mut sges = Vec::new();
    for element in entry.chunks_exact(data::SIZE) {
        // The top bit of the byte count requests alignment of the first write. The model ignores
        // it, because its effect is not observable.
        let length = data::BYTE_COUNT.get32(element);
        let lkey = data::LKEY.get32(element);
        if length == 0 {
            let rule = match lkey {
                TERMINATOR_KEY => return Ok(sges),
                // The driver never wrote this memory.
                0 => Rule::RecvTerminator,
                _ => Rule::RecvLength,
            };
            return Err((rule, format!("an element of length 0 with key {lkey:#x}")));
        }
        sges.push(Sge { addr: data::ADDRESS.get(element), length, lkey });
    }
    Ok(sges)
}

/// Returns the completion for a frame. Only the fields for headers, checksums and VLAN are set.
fn completion(frame: &[u8], parsed: Option<&Parsed>, vlan: Option<u16>) -> [u8; 64] {
    let mut entry = [0; 64];
    let checked = frame::check(frame);
    cqe::L2_OK.set(&mut entry, 1u32);
    cqe::L3_OK.set(&mut entry, u32::from(checked.l3_ok));
    cqe::L4_OK.set(&mut entry, u32::from(checked.l4_ok));
    cqe::CHECK_SUM.set(&mut entry, checked.sum);
    let header = parsed.and_then(|parsed| parsed.ip).map_or(0, |ip| header_type(frame, &ip));
    cqe::HDR_TYPE.set(&mut entry, header | u32::from(vlan.is_some()));
    cqe::VLAN_INFO.set(&mut entry, vlan.unwrap_or(0));
    entry
}

/// Returns the header type. Bits 2 and 3 distinguish IPv6 and IPv4; bits 4 to 6 give the kind of
/// TCP segment or indicate UDP.
fn header_type(frame: &[u8], ip: &frame::Ip) -> u32 {
    let l3 = if ip.version == 4 { 2 } else { 1 };
    let l4 = match ip.protocol {
        _ if ip.fragment => 0,
        UDP => 2,
        TCP => {
            let at = |offset: usize| frame.get(ip.l4 + offset).copied().unwrap_or(0);
            let header = usize::from(at(12) >> 4) * 4;
            match (at(13) & 0x10 != 0, ip.end > ip.l4 + header) {
                (false, _) => 1,
                (true, false) => 3,
                (true, true) => 4,
            }
        }
        _ => 0,
    };
    l3 << 2 | l4 << 4
}
