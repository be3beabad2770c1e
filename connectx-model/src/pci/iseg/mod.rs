//! The initialisation segment: the registers at the start of BAR 0.
//!
//! Invariant: the timer and the health counter depend only on the time that the caller passes.
//!
//! # References
//! PRM, "initialization segment"; Linux `struct mlx5_init_seg`

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::config::ISEG_SIZE;
use crate::function::Function;
use crate::layout::iseg::initial_seg;
use crate::layout::{dword, put};
use crate::state::iseg::{INTERFACE_DISABLED, INTERFACE_RESET, NIC_INTERFACE};

impl<B: Bus> Function<B> {
    /// Reads registers. Accesses must be aligned dwords; in the health buffer, aligned bytes and
    /// 16-bit halves are also allowed.
    pub(crate) fn iseg_read(&mut self, offset: u64, into: &mut [u8]) {
        into.fill(0);
        let aligned = matches!(into.len(), 1 | 2 | 4 | 8) && offset.is_multiple_of(into.len() as u64);
        let offset = offset as usize;
        let mut found = aligned;
        if aligned {
            let start = offset & !3;
            for at in (start..offset + into.len()).step_by(4) {
                let Some(value) = self.core.iseg.read(at, self.core.now) else {
                    found = false;
                    continue;
                };
                let bytes = value.to_be_bytes();
                if into.len() >= 4 {
                    put(into, at - start, &bytes);
                } else {
                    into.copy_from_slice(&bytes[offset - start..][..into.len()]);
                }
            }
        }
        if !found {
            let what = format!("{} bytes read at {offset:#x}", into.len());
            self.core.log.complain(Rule::RegisterAccess, what);
        }
    }

    /// Writes one register, or several consecutive registers.
    pub(crate) fn iseg_write(&mut self, offset: u64, from: &[u8]) {
        let offset = offset as usize;
        // An 8-byte store covers two registers.
        let dwords = from.len() / 4;
        if !offset.is_multiple_of(4)
            || !from.len().is_multiple_of(4)
            || dwords == 0
            || offset + from.len() > ISEG_SIZE as usize
        {
            let what = format!("{} bytes written at {offset:#x}", from.len());
            self.core.log.complain(Rule::RegisterAccess, what);
            return;
        }
        for place in 0..dwords {
            self.register(offset + place * 4, dword(from, place * 4));
        }
    }

    fn register(&mut self, offset: usize, value: u32) {
        let core = &mut self.core;
        if offset == initial_seg::CMDQ_PHY_ADDR_63_32.dword {
            core.iseg.command_queue_high = value;
        } else if offset == initial_seg::CMDQ_PHY_ADDR_31_12.dword {
            let interface = value >> NIC_INTERFACE.low & NIC_INTERFACE.max() as u32;
            if value & 0xff != 0 || !matches!(interface, 0 | INTERFACE_DISABLED | INTERFACE_RESET) {
                let what = format!("{value:#x} written to the command queue's address");
                core.log.complain(Rule::RegisterAccess, what);
                return;
            }
            core.iseg.command_queue_low = value & 0xffff_f000;
            core.iseg.interface = interface;
            core.iseg.was_reset &= interface != 0;
            if interface == INTERFACE_RESET {
                core.iseg.was_reset = true;
                core.iseg.failed = None;
                core.iseg.interface = INTERFACE_DISABLED;
            }
            if interface != 0 {
                self.disable_interface();
            } else {
                core.cmdq.address = core.iseg.command_queue();
            }
        } else if offset == initial_seg::COMMAND_DOORBELL_VECTOR.dword {
            self.ring_commands(value);
        } else {
            core.log.complain(
                Rule::RegisterAccess,
                format!("{value:#x} written to {offset:#x}, no such register"),
            );
        }
    }
}

#[cfg(test)]
mod tests;
