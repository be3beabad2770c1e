//! User access regions (UARs): pages with doorbell registers.
//!
//! | offset | bytes | register |
//! |---|---|---|
//! | 0x20 | 8 | arms a completion queue |
//! | 0x40, 0x48 | 4 | an event queue's consumer index, with and without arming the queue |
//! | 0x800 + k · 512 | 2 · 256 | doorbell or BlueFlame register k, 0 to 3: two alternating halves |
//!
//! An 8-byte store to the start of a half is a plain doorbell or the beginning of a BlueFlame
//! block. The store itself does not show which of the two it is, and nothing follows a plain
//! doorbell. The model therefore rings the doorbell at once, uses the work request in the queue and
//! compares later stores to the half with it. A difference breaks a rule, but it is then too late
//! to ignore the store, so the queue pair enters the error state.
//!
//! Only a NOP is held until the rest of its block arrives, for at most [`HOLD`]. Drivers detect
//! write combining with NOPs whose BlueFlame copy differs from the one in the queue. A held NOP
//! rings its doorbell at the next access to the page that does not continue the NOP, at an access
//! to the command interface, or when the hold time is over.
//!
//! # References
//! PRM, "UAR page format", "BlueFlame"; Linux `mlx5_ib_test_wc`

use roce::engine::Time;

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::config::UAR_SIZE;
use crate::function::{Core, Function};
use crate::layout::wqe::ctrl;
use crate::layout::{dword, qword};
use crate::qp::request::opcode;
use crate::state::uar::Register;
use crate::trace::format;

/// The maximum time that a NOP is held until the rest of its block arrives, in nanoseconds. An
/// emulator needs some microseconds per store, but much more on a busy machine. Linux waits up to
/// 100 ms for the completion.
pub(crate) const HOLD: u64 = 30_000_000;

/// Offset of the register that arms a completion queue.
const CQ_ARM: u64 = 0x20;
/// Offset of the register that receives an event queue's consumer index and arms the queue.
const EQ_ARM: u64 = 0x40;
/// Offset of the register that receives an event queue's consumer index without arming the queue.
const EQ_UPDATE: u64 = 0x48;
/// Offset of the first doorbell register.
pub(crate) const BLUE_FLAME: u64 = 0x800;
/// Size of a doorbell register, in bytes, including both halves.
const REGISTER_SIZE: u64 = 512;
pub(crate) const HALF_SIZE: u64 = REGISTER_SIZE / 2;
/// Size of a doorbell, in bytes.
const DOORBELL_SIZE: usize = 8;

impl<B: Bus> Function<B> {
    /// Handles a store to the part of BAR 0 after the initialisation segment.
    pub(crate) fn uar_write(&mut self, offset: u64, from: &[u8]) {
        let Ok(uar) = u32::try_from(offset / UAR_SIZE) else { return };
        let register = offset % UAR_SIZE;
        if self.core.iseg.was_reset() {
            // A netdev keeps sending until it is taken down. Its doorbells after the reset are
            // ignored.
            return;
        }
        if !self.core.hca.uars.contains(uar) {
            let what =
                format!("{} bytes at {register:#x} of UAR {uar:#x}, which is not allocated", from.len());
            self.core.log.complain(Rule::DoorbellUar, what);
            return;
        }
        self.core.log.trace.line(|| format::store(uar, register, from));
        match (register, from.len()) {
            (EQ_ARM, 4) => self.core.ring_eq(uar, true, dword(from, 0)),
            (EQ_UPDATE, 4) => self.core.ring_eq(uar, false, dword(from, 0)),
            (_, 4) => self.half_store(uar, register, from),
            (_, 8..) if from.len().is_multiple_of(8) && register.is_multiple_of(8) => {
                self.drop_half_store(uar);
                for (n, bytes) in from.chunks_exact(8).enumerate() {
                    self.store(uar, register + n as u64 * 8, bytes);
                }
            }
            (_, len) => self.no_register(uar, register, len),
        }
    }

    fn no_register(&mut self, uar: u32, register: u64, len: usize) {
        let what = format!("{len} bytes at {register:#x} of UAR {uar:#x}");
        self.core.log.complain(Rule::DoorbellRegister, what);
    }

    /// Handles a 4-byte store: the first or the second half of a doorbell.
    fn half_store(&mut self, uar: u32, register: u64, from: &[u8]) {
        let Some(bytes) = from.first_chunk::<4>() else { return };
        match self.core.uars.half_stores.remove(&uar) {
            Some((first, begin)) if first + 4 == register => {
                let mut whole = [0; 8];
                whole[..4].copy_from_slice(&begin);
                whole[4..].copy_from_slice(bytes);
                self.store(uar, first, &whole);
            }
            before => {
                if let Some((first, _)) = before {
                    self.core.alone(uar, first);
                }
                if register.is_multiple_of(8) && (register == CQ_ARM || register >= BLUE_FLAME) {
                    self.core.uars.half_stores.insert(uar, (register, *bytes));
                } else {
                    self.no_register(uar, register, 4);
                }
            }
        }
    }

    /// Complains if the first half of a doorbell in this page still lacks its second half.
    pub(crate) fn drop_half_store(&mut self, uar: u32) {
        if let Some((first, _)) = self.core.uars.half_stores.remove(&uar) {
            self.core.alone(uar, first);
        }
    }

    /// Complains about every doorbell whose second half is missing, in all pages. Called before the
    /// pages disappear.
    pub(crate) fn drop_half_stores(&mut self) {
        for (uar, (first, _)) in std::mem::take(&mut self.core.uars.half_stores) {
            self.core.alone(uar, first);
        }
    }

    /// Handles an aligned 8-byte store to a UAR page.
    fn store(&mut self, uar: u32, register: u64, bytes: &[u8]) {
        if register < BLUE_FLAME {
            self.release(Some(uar));
            match register {
                CQ_ARM => self.core.ring_cq(uar, qword(bytes, 0)),
                _ => self.no_register(uar, register, bytes.len()),
            }
            return;
        }
        let number = (register - BLUE_FLAME) / REGISTER_SIZE;
        let inside = (register - BLUE_FLAME) % REGISTER_SIZE;
        let (half, at) = (inside / HALF_SIZE, (inside % HALF_SIZE) as usize);
        if at == 0 {
            self.release(Some(uar));
            self.doorbell(uar, number, half, bytes);
        } else {
            self.continued(uar, number, half, at, bytes);
        }
    }

    /// Handles a store to the start of a half: a plain doorbell or the beginning of a BlueFlame
    /// block.
    fn doorbell(&mut self, uar: u32, number: u64, half: u64, bytes: &[u8]) {
        let Some(doorbell) = bytes.first_chunk::<8>() else { return };
        let before = self.core.uars.registers.remove(&(uar, number));
        if let Some(before) = &before
            && (9..before.whole).contains(&before.stored.len())
        {
            let what =
                format!("UAR {uar:#x}, register {number}: {} of {} bytes", before.stored.len(), before.whole);
            self.core.log.complain(Rule::BlueFlameOrder, what);
        }
        let before = before.map(|register| register.half);
        let refused = !self.takes_turns(uar, number, half, before, ctrl::QPN.get32(doorbell));
        let is_nop = ctrl::OPCODE.get(doorbell) == u64::from(opcode::NOP);
        let whole = (ctrl::DS.get32(doorbell) as usize * 16).next_multiple_of(64);
        let mut register = Register {
            half,
            stored: doorbell.to_vec(),
            whole,
            fetched: Vec::new(),
            several: false,
            held_until: (is_nop && !refused).then_some(self.core.now + HOLD),
            let_go: refused,
            head: None,
        };
        if refused {
            // A held NOP does not ring the doorbell yet.
        } else if is_nop {
            register.head = self.send_head(ctrl::QPN.get32(doorbell));
        } else {
            let announced = self.ring_sq(uar, *doorbell, None, None).unwrap_or_default();
            (register.fetched, register.several) = (announced.last, announced.several);
        }
        self.core.uars.registers.insert((uar, number), register);
    }

    /// Returns whether a store uses the other half of the register, compared either with the
    /// register's previous store or with the queue pair's previous store.
    fn takes_turns(&mut self, uar: u32, number: u64, half: u64, before: Option<u64>, qpn: u32) -> bool {
        let Some(qp) = self.core.qps.get_mut(&qpn) else { return true };
        let own = qp.run.send.half.replace(half as u32);
        if own == Some(half as u32) && before == Some(half) {
            let what = format!("UAR {uar:#x}, register {number}: half {half} again");
            self.core.log.complain(Rule::BlueFlameHalf, what);
            return false;
        }
        true
    }

    /// Handles a store that continues the block begun at the start of the half.
    fn continued(&mut self, uar: u32, number: u64, half: u64, at: usize, bytes: &[u8]) {
        let register = self.core.uars.registers.get_mut(&(uar, number));
        let Some(register) = register.filter(|register| register.half == half && register.stored.len() == at)
        else {
            self.release(Some(uar));
            let what = format!("UAR {uar:#x}, register {number}, half {half}: bytes {at} to {}", at + 7);
            self.core.log.complain(Rule::BlueFlameOrder, what);
            return;
        };
        if at >= register.whole {
            let what = format!(
                "UAR {uar:#x}, register {number}: more than the {} bytes of the work request",
                register.whole
            );
            self.core.log.complain(Rule::BlueFlameOrder, what);
            return;
        }
        register.stored.extend_from_slice(bytes);
        if register.let_go {
            return;
        }
        register.held_until = register.held_until.map(|_| self.core.now + HOLD);
        // In its last block, the driver fills the remaining bytes with those that follow in the
        // queue.
        let fetched = register.fetched.get(at..).unwrap_or_default();
        let differs = fetched.iter().zip(bytes).any(|(fetched, stored)| fetched != stored);
        let complete = register.stored.len() >= register.whole;
        let held = register.held_until.is_some();
        if at == DOORBELL_SIZE && register.several {
            self.core.log.complain(Rule::BlueFlameSingle, not_single(uar, number));
        }
        if complete && held {
            register.held_until = None;
            let (stored, head) = (register.stored.clone(), register.head);
            if let Some(doorbell) = stored.first_chunk() {
                let announced = self.ring_sq(uar, *doorbell, Some(&stored), head);
                if announced.is_some_and(|announced| announced.several) {
                    self.core.log.complain(Rule::BlueFlameSingle, not_single(uar, number));
                }
            }
        } else if differs {
            let what = format!("UAR {uar:#x}, register {number}: bytes {at} to {} differ", at + 7);
            let qpn = ctrl::QPN.get32(&register.stored);
            register.let_go = true;
            self.core.log.complain(Rule::BlueFlameContent, what);
            self.collapse(qpn);
        }
    }

    /// Rings the held NOPs of page `uar`, or of all pages.
    pub(crate) fn release(&mut self, uar: Option<u32>) {
        self.release_if(|page, _| uar.is_none_or(|uar| uar == page));
    }

    /// Rings the held NOPs whose hold time is over.
    pub(crate) fn release_due(&mut self) {
        let now = self.core.now;
        self.release_if(|_, until| until <= now);
    }

    fn release_if(&mut self, which: impl Fn(u32, Time) -> bool) {
        let mut due = Vec::new();
        for ((uar, _), register) in &mut self.core.uars.registers {
            if register.held_until.is_some_and(|until| which(*uar, until)) {
                register.held_until = None;
                // The driver has broken no rule: another processor stored to the page, or this one
                // is slow.
                register.let_go = true;
                due.extend(
                    register.stored.first_chunk::<8>().map(|doorbell| (*uar, *doorbell, register.head)),
                );
            }
        }
        for (uar, doorbell, head) in due {
            self.ring_sq(uar, doorbell, None, head);
        }
    }

    /// Returns the earliest time at which a held NOP must ring.
    pub(crate) fn held_until(&self) -> Option<Time> {
        self.core.uars.registers.values().filter_map(|register| register.held_until).min()
    }
}

impl<B: Bus> Core<B> {
    /// Complains about the first half of a doorbell that has no second half.
    fn alone(&mut self, uar: u32, register: u64) {
        let what = format!("4 bytes at {register:#x} of UAR {uar:#x}, and no others at {:#x}", register + 4);
        self.log.complain(Rule::DoorbellHalf, what);
    }
}

/// Describes the violation of storing a work request through BlueFlame when the doorbell announces
/// several.
fn not_single(uar: u32, number: u64) -> String {
    format!("UAR {uar:#x}, register {number}: the last of several work requests")
}

#[cfg(test)]
mod tests;
