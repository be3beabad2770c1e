//! [`Iseg`]: the registers of the initialisation segment.

use roce::engine::Time;

use crate::config::FREQUENCY_KHZ;
use crate::layout::iseg::initial_seg;
use crate::layout::{Field, dword};
use crate::state::hca::{LOG_SIZE, LOG_STRIDE};

/// The firmware version: major, minor, subminor.
pub(crate) const FIRMWARE: (u32, u32, u32) = (16, 35, 2000);

/// The version of the command interface.
pub(crate) const COMMAND_INTERFACE: u32 = 5;

/// The value of `NIC_INTERFACE_SUPPORTED`: a driver may request the interface states full and
/// disabled.
pub(crate) const SUPPORTED_INTERFACES: u32 = 0x1;

/// Interface state "disabled": all state of the function is cleared.
pub(crate) const INTERFACE_DISABLED: u32 = 1;

/// Interface state in which the driver requests a firmware reset. The reset clears the failure and
/// disables the interface.
pub(crate) const INTERFACE_RESET: u32 = 7;

/// The field that reports whether the firmware supports a reset.
pub(crate) const RESET_SUPPORTED: Field =
    Field { name: "FW_RESET_SUPPORTED", dword: 0x1fc, high: 30, low: 30 };

/// The time between two steps of the health counter, in nanoseconds.
pub(crate) const HEARTBEAT: u64 = 10_000_000;

/// The stored registers of the initialisation segment.
#[derive(Debug, Default)]
pub(crate) struct Iseg {
    pub(crate) command_queue_high: u32,
    pub(crate) command_queue_low: u32,
    pub(crate) interface: u32,
    /// The failure of the device: its syndrome and the last value of the health counter; `None` if
    /// the device works.
    pub(crate) failed: Option<(u8, u32)>,
    /// Whether the device was reset and the driver has not restarted the device yet.
    pub(crate) was_reset: bool,
}

impl Iseg {
    /// Puts the device in the failed state. The driver then reads `syndrome` and a request for a
    /// reset.
    pub(crate) fn fail(&mut self, syndrome: u8, now: Time) {
        self.failed = Some((syndrome, heartbeat(now)));
    }

    /// Returns whether the device has failed since its last reset.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Returns whether the device was reset while the driver was running. Parts of the driver may
    /// not have noticed the reset.
    pub(crate) fn was_reset(&self) -> bool {
        self.was_reset
    }

    /// Returns the guest-physical address of the command queue, valid once the driver has written
    /// both halves.
    pub(crate) fn command_queue(&self) -> u64 {
        u64::from(self.command_queue_high) << 32 | u64::from(self.command_queue_low)
    }

    /// Reads the aligned dword at `offset`. Returns `None` if no register has this offset.
    pub(crate) fn read(&self, offset: usize, now: Time) -> Option<u32> {
        let registers =
            initial_seg::TABLE.known(offset) != 0 || UNNAMED.iter().any(|range| range.contains(&offset));
        if !registers {
            return None;
        }
        // One dword of the segment. A row of the table contributes if it has this offset.
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

/// The NIC interface field, bits 10 to 8. Drivers read and write all three bits.
pub(crate) const NIC_INTERFACE: Field = Field { high: 10, ..initial_seg::NIC_INTERFACE };

/// Offsets of the registers without a row in the table: the health buffer, the timeouts and the
/// wall clock.
pub(crate) const UNNAMED: [std::ops::Range<usize>; 3] = [0x200..0x240, 0xff8..0x1000, 0x2000..0x2010];

pub(crate) fn heartbeat(now: Time) -> u32 {
    (now.0 / HEARTBEAT) as u32 & 0x00ff_ffff
}

/// Returns the value of the device's internal timer at time `now`.
pub(crate) fn ticks(now: Time) -> u64 {
    (u128::from(now.0) * u128::from(FREQUENCY_KHZ) / 1_000_000) as u64
}
