//! [`Config`]: the parameters of a new function. Also the layout of its BARs.

use crate::port::PortKind;

/// Parameters of a new function.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Index in the fabric, counted from 0. It determines the GUIDs, the LID and the MAC address.
    pub index: usize,
    /// Link layer of the port.
    pub port: PortKind,
    /// Whether completions may contain the payload of small messages if the driver requests this.
    pub scatter_to_cqe: bool,
}

/// Frequency of the device's internal timer, in kHz.
pub(crate) const FREQUENCY_KHZ: u32 = 156_250;
/// Number of BAR 0, which contains the registers, the UAR pages and device memory.
pub const BAR0: u32 = 0;
/// Number of BAR 2, which contains the MSI-X table and its pending bits. The front end implements
/// both.
pub const BAR2: u32 = 2;
/// Size of BAR 0 in bytes.
pub const BAR0_SIZE: u64 = 64 << 20;
/// Size of the registers and UAR pages in BAR 0, in bytes.
pub const UARS_SIZE: u64 = 32 << 20;
/// Offset of device memory in BAR 0.
pub const MEMIC_START: u64 = UARS_SIZE;
/// Size of device memory in bytes, the maximum that Linux supports (`MLX5_MAX_MEMIC_PAGES`).
pub const MEMIC_SIZE: u64 = 1 << 20;
/// Size of BAR 2 in bytes.
pub const BAR2_SIZE: u64 = 0x2000;
/// Number of MSI-X vectors.
pub const VECTORS: u16 = 8;
/// Size of the initialisation segment at the start of BAR 0, in bytes; UAR pages follow.
pub const ISEG_SIZE: u64 = 0x4000;
/// Size of a UAR page in bytes.
pub const UAR_SIZE: u64 = 0x1000;
