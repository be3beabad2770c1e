//! The data path of event queues. An event is a 64-byte entry in guest memory, followed by an
//! interrupt.
//!
//! ```text
//! an event occurs ──► the queue that subscribed to its type
//!                      │ (for a completion: the one of the completion queue)
//!                      ├─ entry with owner bit = turn of the ring, written last
//!                      └─ armed? then one interrupt on its MSI-X vector
//! driver ──► UAR 0x40 (consumer index, arm) or 0x48 (consumer index)
//! ```
//!
//! Invariant: unread entries are never overwritten. An event for a full queue is lost, with a
//! complaint.

mod port;

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::fault::HeldEvent;
use crate::function::Core;
use crate::layout::{eqe, put};
use crate::state::eq::{COUNTER, EQE_SIZE, EventType};
use crate::trace::format;

impl<B: Bus> Core<B> {
    /// Sends an event to the queue that has subscribed to its type. Without such a queue, the event
    /// is dropped.
    pub(crate) fn event(&mut self, kind: EventType, sub_type: u8, data: &[u8; 28]) {
        if let Some(eqn) = self.eqs.values().find(|eq| eq.takes(kind as u8)).map(|eq| eq.eqn) {
            self.event_on(eqn, kind, sub_type, data);
        }
    }

    /// Sends an event to the given queue. An injected fault may delay the event.
    pub(crate) fn event_on(&mut self, eqn: u32, kind: EventType, sub_type: u8, data: &[u8; 28]) {
        let event = HeldEvent { eqn, kind: kind as u8, sub_type, data: *data };
        if !self.faults.holds_events(event.kind) {
            self.deliver(&event);
        } else if let Some(oldest) = self.faults.hold(event) {
            self.deliver(&oldest);
        }
    }

    /// Writes an event into its queue and raises the interrupt.
    pub(crate) fn deliver(&mut self, event: &HeldEvent) {
        let HeldEvent { eqn, kind, sub_type, ref data } = *event;
        let Self { eqs, bus, log, .. } = self;
        let Some(eq) = eqs.get_mut(&eqn) else { return };
        let size = 1u32 << eq.log_size;
        if eq.unread() >= size {
            log.complain(
                Rule::EqOverrun,
                format!("event queue {eqn} of {size} entries: type {kind:#x} is lost"),
            );
            return;
        }
        let mut entry = [0; EQE_SIZE as usize];
        eqe::eqe::EVENT_TYPE.set(&mut entry, kind);
        eqe::eqe::EVENT_SUB_TYPE.set(&mut entry, sub_type);
        put(&mut entry, eqe::eqe::EVENT_DATA.offset, data);
        eqe::eqe::OWNER.set(&mut entry, eq.producer >> eq.log_size & 1);
        let index = eq.producer & (size - 1);
        // The buffer is aligned to pages, which are larger than an entry, so each entry lies in one
        // page.
        let written = match eq.pages.locate(u64::from(index) * EQE_SIZE) {
            Some((address, EQE_SIZE..)) => bus.publish(address, &entry).map_err(|fault| fault.to_string()),
            _ => Err("outside of the queue's pages".into()),
        };
        if let Err(why) = written {
            log.complain(Rule::DmaFault, format!("event queue {eqn}, entry {index}: {why}"));
            return;
        }
        eq.producer = eq.producer.wrapping_add(1);
        log.trace.line(|| format::eqe(eqn, index, &entry));
        if std::mem::take(&mut eq.armed) {
            bus.raise(eq.vector);
        }
    }

    /// Handles a store of a consumer index by the driver, through UAR page `uar`. `arm` requests an
    /// interrupt for the next event.
    pub(crate) fn ring_eq(&mut self, uar: u32, arm: bool, value: u32) {
        let Self { eqs, bus, log, .. } = self;
        let (eqn, consumer) = (value >> 24, value & COUNTER);
        let Some(eq) = eqs.get_mut(&eqn) else {
            log.complain(Rule::DoorbellObject, format!("event queue {eqn}, which does not exist"));
            return;
        };
        if eq.uar != uar {
            let theirs = eq.uar;
            log.complain(Rule::DoorbellUar, format!("event queue {eqn} of UAR {theirs:#x} in UAR {uar:#x}"));
            return;
        }
        let read = consumer.wrapping_sub(eq.consumer) & COUNTER;
        if read > eq.unread() {
            let unread = eq.unread();
            log.complain(
                Rule::EqDoorbell,
                format!("event queue {eqn}: {read} entries read, {unread} are unread"),
            );
            return;
        }
        eq.consumer = consumer;
        if arm {
            eq.armed = eq.unread() == 0;
            if !eq.armed {
                bus.raise(eq.vector);
            }
        }
    }
}

#[cfg(test)]
mod tests;
