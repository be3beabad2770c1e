//! [`Uars`]: user access regions, the pages of doorbells.

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::{Function, UAR_SIZE};
use crate::layout::dword;

/// The UAR pages that are allocated, and what is stored into them.
#[derive(Debug, Default)]
pub(crate) struct Uars {}

/// An event queue's consumer index, and a wish to be told.
const EQ_ARM: u64 = 0x40;
/// An event queue's consumer index.
const EQ_UPDATE: u64 = 0x48;

impl<B: Bus> Function<B> {
    /// A store into BAR 0 behind the initialisation segment.
    pub(crate) fn uar_write(&mut self, offset: u64, from: &[u8]) {
        let uar = (offset / UAR_SIZE) as u32;
        match (offset % UAR_SIZE, from.len()) {
            (EQ_ARM, 4) => self.core.ring_eq(uar, true, dword(from, 0)),
            (EQ_UPDATE, 4) => self.core.ring_eq(uar, false, dword(from, 0)),
            (register, len) => {
                let what = format!("{len} bytes at {register:#x} of UAR {uar:#x}");
                self.core.log.complain(Rule::DoorbellRegister, what);
            }
        }
    }
}
