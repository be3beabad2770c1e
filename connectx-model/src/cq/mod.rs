//! The data path of completion queues. A completion is a 64-byte entry in guest memory, or the
//! second half of a 128-byte entry.
//!
//! ```text
//! a work request completes ──► entry at the producer index; owner bit = turn of the ring, last
//!                               └─ armed for it? then one event, which moderation may delay
//! driver ──► doorbell record: consumer index, arm word
//!        ──► UAR 0x20: the arm word again, and the queue's number
//! ```
//! The arm word's 2-bit sequence number counts the events that the driver has handled.
//!
//! A queue with compression writes several completions as one [block](block). A queue with
//! moderation raises one event for [several completions](moderation).
//!
//! Invariant: unread entries are never overwritten, unless the driver has disabled overrun
//! detection.

pub(crate) mod block;
pub(crate) mod moderation;

use roce::engine::CqFull;

use crate::bus::{Bus, BusFault};
use crate::complaint::Rule;
use crate::function::Core;
use crate::layout::cqe::cqe;
use crate::layout::eqe::completion;
use crate::log::CONSUMED;
use crate::state::cq::{Arm, Cq, Held};
use crate::state::eq::EventType;
use crate::trace::format;

/// The fields of a doorbell for a completion queue: the arm word, then the queue number.
mod arm {
    use crate::layout::Field;

    pub(super) const SEQUENCE: Field = Field { name: "CMD_SN", dword: 0, high: 29, low: 28 };
    pub(super) const SOLICITED: Field = Field { name: "CMD", dword: 0, high: 24, low: 24 };
    pub(super) const CONSUMER: Field = Field { name: "CI", dword: 0, high: 23, low: 0 };
    pub(super) const CQN: Field = Field { name: "CQN", dword: 4, high: 23, low: 0 };
    /// The bits outside these fields.
    pub(super) const RESERVED: u64 = !0x31ff_ffff_00ff_ffff;
}

impl<B: Bus> Core<B> {
    /// Reads the consumer index. Returns the last valid index and whether the doorbell record
    /// contains it. An impossible index causes a complaint and is ignored.
    fn consumer(&mut self, cqn: u32) -> Option<(u32, bool)> {
        let record = self.cqs.get(&cqn)?.doorbell_record;
        let now = self.consumed(record)?;
        let cq = self.cqs.get_mut(&cqn)?;
        let before = cq.run.consumer;
        let (step, unread) = (now.wrapping_sub(before) & CONSUMED, cq.pending(before));
        if step > unread && !cq.ignore_overrun {
            let what = format!(
                "completion queue {cqn:#x}: consumer index from {before} to {now}, the producer index is {}",
                cq.producer
            );
            self.log.complain(Rule::CqDoorbell, what);
            return Some((before, false));
        }
        cq.run.consumer = now;
        self.check_owners(cqn, now);
        Some((now, true))
    }

    /// Writes a completion, with its owner byte last, then raises the event if the queue is armed
    /// for this completion. On a queue with compression, the completion may join the open block
    /// instead. `data` is payload to store in the entry.
    ///
    /// # Errors
    /// [`CqFull`] if the queue is full or in the error state.
    pub(crate) fn write_cqe(
        &mut self,
        cqn: u32,
        entry: &mut [u8; 64],
        data: &[u8],
        solicited: bool,
    ) -> Result<(), CqFull> {
        let (consumer, _) = self.consumer(cqn).ok_or(CqFull)?;
        let Some(cq) = self.cqs.get_mut(&cqn).filter(|cq| !cq.in_error) else { return Err(CqFull) };
        let unread = cq.pending(consumer) + cq.open();
        if unread >= 1 << cq.log_size && !cq.ignore_overrun {
            let what = format!("completion queue {cqn:#x}: {unread} of {} are unread", 1 << cq.log_size);
            self.log.complain(Rule::CqOverrun, what);
            return Err(CqFull);
        }
        if self.keep(cqn, entry, data)? {
            return Ok(());
        }
        self.put(cqn, entry, data)?;
        self.written(cqn, 1, solicited);
        Ok(())
    }

    /// Records new completions, and raises the completion event if the queue is armed for them. The
    /// completions must be either all solicited or all unsolicited.
    fn written(&mut self, cqn: u32, completions: u32, solicited: bool) {
        if let Some(cq) = self.cqs.get_mut(&cqn).filter(|_| solicited) {
            cq.run.solicited = cq.producer;
        }
        self.notify(cqn, completions, solicited);
    }

    /// Writes an entry at the producer index.
    ///
    /// # Errors
    /// [`CqFull`] if the queue's memory cannot be written; a complaint is recorded.
    pub(crate) fn put(&mut self, cqn: u32, entry: &mut [u8; 64], data: &[u8]) -> Result<(), CqFull> {
        let Some(cq) = self.cqs.get_mut(&cqn) else { return Err(CqFull) };
        let slot = u64::from(cq.producer) & ((1 << cq.log_size) - 1);
        cqe::OWNER.set(entry, cq.producer >> cq.log_size & 1);
        let begin = slot * cq.entry_size;
        let mut written = Ok(());
        match data.len() {
            0 => {}
            1..=32 => {
                // The payload replaces fields that are unused in completions of connected queue
                // pairs.
                if let Some(place) = entry.get_mut(..data.len()) {
                    place.copy_from_slice(data);
                }
                cqe::FORMAT.set(entry, INLINE_32);
            }
            len => {
                let part = data.get(..len.min(64)).unwrap_or_default();
                written = cq.pages.write(&self.bus, begin, part);
                cqe::FORMAT.set(entry, INLINE_64);
            }
        }
        // A 128-byte entry holds the completion in its second half.
        let place = cq.pages.locate(begin + cq.entry_size.saturating_sub(64));
        let published = match place {
            Some((address, 64..)) => self.bus.publish(address, &entry[..]),
            _ => Err(BusFault { address: begin, len: 64 }),
        };
        if let Err(fault) = written.and(published) {
            self.log.complain(Rule::DmaFault, format!("completion queue {cqn:#x}: {fault}"));
            return Err(CqFull);
        }
        cq.producer = cq.producer.wrapping_add(1);
        let index = cq.producer.wrapping_sub(1);
        self.log.trace.line(|| format::cqe(cqn, index, &entry[..], data.len()));
        Ok(())
    }

    /// Raises the completion event if the queue is armed for these completions, unless moderation
    /// delays the event.
    fn notify(&mut self, cqn: u32, completions: u32, solicited: bool) {
        let Some(cq) = self.cqs.get_mut(&cqn) else { return };
        let wanted = match cq.armed {
            None => false,
            Some(Arm::Next) => true,
            Some(Arm::Solicited) => solicited,
        };
        if wanted && !self.hold(cqn, completions) {
            self.raise(cqn);
        }
    }

    /// Raises the completion event and disarms the queue.
    fn raise(&mut self, cqn: u32) {
        let Some(cq) = self.cqs.get_mut(&cqn) else { return };
        (cq.armed, cq.held) = (None, Held::default());
        if let Some((_, fired)) = &mut cq.run.sequence {
            *fired = fired.saturating_add(1);
        }
        cq.run.repeated = cq.run.repeated.saturating_add(1);
        let eqn = cq.eqn;
        let mut event = [0; 28];
        completion::CQN.set(&mut event, cqn);
        self.event_on(eqn, EventType::Completion, 0, &event);
    }

    /// Called before a completion queue is destroyed: records a note if its arms kept the same
    /// sequence number over several events.
    ///
    /// This breaks no rule. libmlx5 counts an event when the program fetches it, which may never
    /// happen. Linux counts an event in its interrupt handler, and another processor may arm the
    /// queue before that.
    ///
    /// # References
    /// rdma-core `providers/mlx5/cq.c` (`mlx5_arm_cq`, `mlx5_cq_event`); Linux
    /// `drivers/net/ethernet/mellanox/mlx5/core/eq.c` (`mlx5_eq_comp_int`)
    pub(crate) fn note_repeated(&mut self, cqn: u32) {
        let Some(run) = self.cqs.get(&cqn).map(|cq| cq.run) else { return };
        if let (Some((sequence, _)), 2..) = (run.sequence, run.repeated) {
            self.log.complaints.note(format_args!(
                "completion queue {cqn:#x}: {} events, and the sequence number of its arms stayed {sequence}",
                run.repeated
            ));
        }
    }

    /// Handles a store to the register that arms completion queues. `value` consists of the arm
    /// word and the queue number. A rejected store does not arm the queue.
    pub(crate) fn ring_cq(&mut self, uar: u32, value: u64) {
        let doorbell = value.to_be_bytes();
        let cqn = arm::CQN.get32(&doorbell);
        let Some(cq) = self.cqs.get(&cqn) else {
            self.log.complain(Rule::DoorbellObject, format!("completion queue {cqn:#x}"));
            return;
        };
        if cq.uar != uar {
            let what = format!("completion queue {cqn:#x} of UAR {:#x} in UAR {uar:#x}", cq.uar);
            self.log.complain(Rule::DoorbellUar, what);
            return;
        }
        if value & arm::RESERVED != 0 {
            self.log.complain(Rule::CqDoorbell, format!("reserved bits {:#x}", value & arm::RESERVED));
            return;
        }
        let record = cq.doorbell_record;
        let Some(armed) = self.record(record.wrapping_add(4)) else { return };
        if u64::from(armed) != value >> 32 {
            let what = format!(
                "completion queue {cqn:#x}: the doorbell has {:#x}, the record {armed:#x}",
                value >> 32
            );
            self.log.complain(Rule::CqArmSequence, what);
            return;
        }
        if self.consumer(cqn).is_none_or(|(_, is_right)| !is_right) {
            return;
        }
        let (sequence, consumer) = (arm::SEQUENCE.get(&doorbell) as u8, arm::CONSUMER.get32(&doorbell));
        let Some(cq) = self.cqs.get_mut(&cqn) else { return };
        let unread = cq.pending(consumer);
        let size = 1 << cq.log_size;
        if unread > size && !cq.ignore_overrun {
            let what = format!(
                "completion queue {cqn:#x}: consumer index {consumer}, the producer index is {}",
                cq.producer
            );
            self.log.complain(Rule::CqDoorbell, what);
            return;
        }
        // The sequence number counts handled events, modulo 4. It may lag behind the raised events.
        if let Some((last, fired)) = cq.run.sequence {
            let step = u32::from(sequence.wrapping_sub(last) & 3);
            if step > fired {
                let what = format!(
                    "completion queue {cqn:#x}: sequence number {sequence} after {last} and {fired} events"
                );
                self.log.complain(Rule::CqArmSequence, what);
                return;
            }
        }
        let Some(cq) = self.cqs.get_mut(&cqn) else { return };
        if cq.run.sequence.is_some_and(|(last, _)| last != sequence) {
            cq.run.repeated = 0;
        }
        cq.run.sequence = Some(match cq.run.sequence {
            Some((last, fired)) => {
                (sequence, fired.saturating_sub(u32::from(sequence.wrapping_sub(last) & 3)))
            }
            None => (sequence, 0),
        });
        let is_solicited = arm::SOLICITED.is_set(&doorbell);
        cq.armed = Some(if is_solicited { Arm::Solicited } else { Arm::Next });
        // Completions that arrived since the driver last polled also count.
        let solicited_since = cq.run.solicited.wrapping_sub(consumer) & CONSUMED;
        let solicited = (1..=unread).contains(&solicited_since);
        if unread == 0 || is_solicited && !solicited {
            cq.held = Held::default();
            return;
        }
        cq.held.recount();
        // The model records only the last solicited completion.
        self.notify(cqn, if is_solicited { 1 } else { unread }, solicited);
    }
}

/// Format with payload in the first 32 bytes of the entry.
const INLINE_32: u32 = 1;
/// Format with payload in the 64 bytes before the completion.
const INLINE_64: u32 = 2;

#[cfg(test)]
mod tests;
