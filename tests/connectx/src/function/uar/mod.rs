//! [`Uars`]: user access regions, the pages of doorbells.
//!
//! | offset | bytes | register |
//! |---|---|---|
//! | 0x20 | 8 | arms a completion queue |
//! | 0x40, 0x48 | 4 | an event queue's consumer index, with and without arming it |
//! | 0x800 + k · 512 | 2 · 256 | doorbell or BlueFlame register k, 0 to 3, of two halves that take turns |
//!
//! An 8-byte store to the beginning of a half is a doorbell, or the beginning of a BlueFlame block: nothing in it tells which, and a
//! plain doorbell is followed by nothing. So it rings at once, with the work request that stands in the queue, and what
//! follows in the half is compared with what was fetched: a difference is a broken rule, found too late to ignore the store, so that
//! the queue pair goes to error. Only a NOP is held for what may follow it,
//! for at most [`HOLD`]: drivers find out by NOPs, of which the copy stored through BlueFlame differs from the queue's, whether
//! their processor combines stores. What is held is let go by the next access to the page that does not continue it, by an
//! access to the command interface, and by time.
//!
//! # References
//! PRM, "UAR page format", "BlueFlame"; Linux `mlx5_ib_test_wc`

use std::collections::BTreeMap;

use roce::engine::Time;

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::{Function, UAR_SIZE};
use crate::layout::wqe::ctrl;
use crate::layout::{dword, qword};
use crate::qp::wqe::opcode;
use crate::trace::format;

/// What was stored into the UAR pages, as far as it counts for what is stored next.
#[derive(Debug, Default)]
pub(crate) struct Uars {
    /// By page: half a doorbell, that is 4 of its 8 bytes, and where it was stored.
    half_stores: BTreeMap<u32, (u64, [u8; 4])>,
    /// By page and register.
    registers: BTreeMap<(u32, u64), Register>,
}

/// A doorbell register.
#[derive(Debug)]
struct Register {
    /// The half that was stored into last.
    half: u64,
    /// What was stored there since its beginning.
    stored: Vec<u8>,
    /// How many bytes a whole BlueFlame store would have.
    whole: usize,
    /// The work request as it was fetched, if it was.
    fetched: Vec<u8>,
    /// It has not rung yet, and will not later than this.
    held_until: Option<Time>,
    /// It was held, and rang before all of it was there; or it was refused: what is still to come says nothing any more.
    let_go: bool,
    /// What the doorbell record said meanwhile, which has gone on by then.
    head: Option<u16>,
}

/// How long a NOP is held for the store that may follow, in nanoseconds. A store takes its emulator some microseconds, and much
/// longer on a busy machine. Linux looks for the completion for 100 ms.
pub(crate) const HOLD: u64 = 30_000_000;

/// Arms a completion queue.
const CQ_ARM: u64 = 0x20;
/// An event queue's consumer index, and a wish to be told.
const EQ_ARM: u64 = 0x40;
/// An event queue's consumer index.
const EQ_UPDATE: u64 = 0x48;
/// Where doorbell registers begin.
pub(crate) const BLUE_FLAME: u64 = 0x800;
/// Bytes of a register, of which each half is half.
const REGISTER_SIZE: u64 = 512;
pub(crate) const HALF_SIZE: u64 = REGISTER_SIZE / 2;

impl<B: Bus> Function<B> {
    /// A store into BAR 0 behind the initialisation segment.
    pub(crate) fn uar_write(&mut self, offset: u64, from: &[u8]) {
        let Ok(uar) = u32::try_from(offset / UAR_SIZE) else { return };
        let register = offset % UAR_SIZE;
        if self.core.iseg.was_reset() {
            // A netdev goes on sending until it is taken down, into nothing.
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

    /// 4 bytes: the first half of a doorbell, or the second.
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
                    self.no_register(uar, first, 4);
                }
                if register.is_multiple_of(8) && (register == CQ_ARM || register >= BLUE_FLAME) {
                    self.core.uars.half_stores.insert(uar, (register, *bytes));
                } else {
                    self.no_register(uar, register, 4);
                }
            }
        }
    }

    /// The second half of a doorbell did not come.
    fn drop_half_store(&mut self, uar: u32) {
        if let Some((first, _)) = self.core.uars.half_stores.remove(&uar) {
            self.no_register(uar, first, 4);
        }
    }

    /// 8 bytes, aligned.
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

    /// The beginning of a half: a doorbell, and perhaps more.
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
            held_until: (is_nop && !refused).then_some(self.core.now + HOLD),
            let_go: refused,
            head: None,
        };
        if refused {
            // Nothing rings.
        } else if is_nop {
            register.head = self.send_head(ctrl::QPN.get32(doorbell));
        } else {
            register.fetched = self.ring_sq(uar, *doorbell, None, None).unwrap_or_default();
        }
        self.core.uars.registers.insert((uar, number), register);
    }

    /// Do the halves of a register take turns, whoever rings it, or those that a queue pair rings?
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

    /// What follows a doorbell in its half.
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
        // What fills the last block up is what stands there.
        let fetched = register.fetched.get(at..).unwrap_or_default();
        let differs = fetched.iter().zip(bytes).any(|(fetched, stored)| fetched != stored);
        let complete = register.stored.len() >= register.whole;
        let held = register.held_until.is_some();
        if complete && held {
            register.held_until = None;
            let (stored, head) = (register.stored.clone(), register.head);
            if let Some(doorbell) = stored.first_chunk() {
                self.ring_sq(uar, *doorbell, Some(&stored), head);
            }
        } else if differs {
            let what = format!("UAR {uar:#x}, register {number}: bytes {at} to {} differ", at + 7);
            let qpn = ctrl::QPN.get32(&register.stored);
            register.let_go = true;
            self.core.log.complain(Rule::BlueFlameContent, what);
            self.collapse(qpn);
        }
    }

    /// Rings what was held for more to follow: of a page, or of all.
    pub(crate) fn release(&mut self, uar: Option<u32>) {
        self.release_if(|page, _| uar.is_none_or(|uar| uar == page));
    }

    /// Rings what was held long enough.
    pub(crate) fn release_due(&mut self) {
        let now = self.core.now;
        self.release_if(|_, until| until <= now);
    }

    fn release_if(&mut self, which: impl Fn(u32, Time) -> bool) {
        let mut due = Vec::new();
        for ((uar, _), register) in &mut self.core.uars.registers {
            if register.held_until.is_some_and(|until| which(*uar, until)) {
                register.held_until = None;
                // Another processor stored into the page, or this one is slow: no mistake of the driver's.
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

    /// When what is held is to ring.
    pub(crate) fn held_until(&self) -> Option<Time> {
        self.core.uars.registers.values().filter_map(|register| register.held_until).min()
    }
}

#[cfg(test)]
mod tests;
