//! [`Iseg`]: the initialisation segment, the registers at the start of BAR 0.
//!
//! Invariant: the timer and the health counter depend only on the time passed by the caller.
//!
//! # References
//! PRM, "initialization segment"; Linux `struct mlx5_init_seg`

use roce::engine::Time;

use crate::bus::Bus;
use crate::caps::FREQUENCY_KHZ;
use crate::cmd::queue::{LOG_SIZE, LOG_STRIDE};
use crate::complaint::Rule;
use crate::function::{Function, ISEG_SIZE};
use crate::layout::iseg::initial_seg;
use crate::layout::{Field, dword, put};

/// Firmware version: major, minor, subminor.
pub(crate) const FIRMWARE: (u32, u32, u32) = (16, 35, 2000);
/// Version of the command interface.
const COMMAND_INTERFACE: u32 = 5;
/// States of the network interface that a driver may request: full, disabled.
const SUPPORTED_INTERFACES: u32 = 0x1;
/// The interface is disabled: all state of the function is cleared.
const INTERFACE_DISABLED: u32 = 1;
/// The driver requests a firmware reset, which clears the failure and disables the interface.
const INTERFACE_RESET: u32 = 7;
/// Whether the firmware supports this reset.
const RESET_SUPPORTED: Field = Field { name: "FW_RESET_SUPPORTED", dword: 0x1fc, high: 30, low: 30 };
/// Nanoseconds per step of the health counter.
const HEARTBEAT: u64 = 10_000_000;

/// Registers at the start of BAR 0 whose values are stored.
#[derive(Debug, Default)]
pub(crate) struct Iseg {
    command_queue_high: u32,
    command_queue_low: u32,
    interface: u32,
    /// Failure of the device: its syndrome and the value of the stopped health counter.
    failed: Option<(u8, u32)>,
    /// Whether the device was reset and not yet restarted by the driver.
    was_reset: bool,
}

impl Iseg {
    /// Makes the device fail: the driver reads this syndrome and a request for a reset.
    pub(crate) fn fail(&mut self, syndrome: u8, now: Time) {
        self.failed = Some((syndrome, heartbeat(now)));
    }

    /// Returns whether the device has failed without a reset since.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Returns whether the device was reset while the driver was running; parts of the driver may
    /// not have noticed.
    pub(crate) fn was_reset(&self) -> bool {
        self.was_reset
    }

    /// Returns the address of the command queue once the driver has written both halves.
    fn command_queue(&self) -> u64 {
        u64::from(self.command_queue_high) << 32 | u64::from(self.command_queue_low)
    }

    /// Reads the aligned dword at this offset; `None` if the offset is not a register.
    fn read(&self, offset: usize, now: Time) -> Option<u32> {
        let registers =
            initial_seg::TABLE.known(offset) != 0 || UNNAMED.iter().any(|range| range.contains(&offset));
        if !registers {
            return None;
        }
        // One dword of the segment, at the place given by the table's rows.
        let mut bytes = [0; 4];
        let mut set = |field: &Field, value: u32| {
            if field.dword == offset {
                Field { dword: 0, ..*field }.set(&mut bytes, value);
            }
        };
        let ticks = ticks(now);
        set(&initial_seg::FW_REV_MINOR, FIRMWARE.1);
        set(&initial_seg::FW_REV_MAJOR, FIRMWARE.0);
        set(&initial_seg::FW_REV_SUBMINOR, FIRMWARE.2);
        set(&initial_seg::CMD_INTERFACE_REV, COMMAND_INTERFACE);
        set(&initial_seg::CMDQ_PHY_ADDR_63_32, self.command_queue_high);
        set(&initial_seg::CMDQ_PHY_ADDR_31_12, self.command_queue_low >> 12);
        set(&NIC_INTERFACE, self.interface);
        set(&initial_seg::LOG_CMDQ_SIZE, LOG_SIZE);
        set(&initial_seg::LOG_CMDQ_STRIDE, LOG_STRIDE);
        set(&initial_seg::NIC_INTERFACE_SUPPORTED, SUPPORTED_INTERFACES);
        set(&RESET_SUPPORTED, 1);
        set(&initial_seg::FW_VERSION, FIRMWARE.0 << 28 | FIRMWARE.1 << 16 | FIRMWARE.2);
        set(&initial_seg::HW_ID, 0x0000_020d);
        set(&initial_seg::INTERNAL_TIMER_H, (ticks >> 32) as u32);
        set(&initial_seg::INTERNAL_TIMER_L, ticks as u32);
        set(&initial_seg::HEALTH_COUNTER, self.failed.map_or_else(|| heartbeat(now), |(_, stopped)| stopped));
        if let Some((syndrome, _)) = self.failed {
            set(&initial_seg::RFR, 1);
            set(&initial_seg::VALID, 1);
            set(&initial_seg::SYND, syndrome.into());
            set(&initial_seg::HEALTH_SYNDROME, syndrome.into());
        }
        Some(dword(&bytes, 0))
    }
}

/// Bits 10 to 8: drivers read and write all three.
const NIC_INTERFACE: Field = Field { high: 10, ..initial_seg::NIC_INTERFACE };

/// Registers without a table row: the health buffer, timeouts, the wall clock.
const UNNAMED: [std::ops::Range<usize>; 3] = [0x200..0x240, 0xff8..0x1000, 0x2000..0x2010];

fn heartbeat(now: Time) -> u32 {
    (now.0 / HEARTBEAT) as u32 & 0x00ff_ffff
}

/// Returns the value of the internal timer at this time.
pub(crate) fn ticks(now: Time) -> u64 {
    (u128::from(now.0) * u128::from(FREQUENCY_KHZ) / 1_000_000) as u64
}

impl<B: Bus> Function<B> {
    /// Reads registers: aligned dwords, or aligned bytes and halves of the health buffer's dwords.
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

    /// Writes a register.
    pub(crate) fn iseg_write(&mut self, offset: u64, from: &[u8]) {
        let offset = offset as usize;
        // A store of 8 bytes covers two registers.
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
