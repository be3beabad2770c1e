//! Options of connections (enhanced connection establishment, ECE).
//!
//! ```text
//! CREATE_QP, asked for a version ──► all options of the device, which programs send to their peer
//! a transition, with options of both ──► those that the device has too, from then on
//! ```
//! Bits 31 to 28 are the version, and 0 means no options. No source names the other bits; two of
//! them are offered, which have no effect.
//!
//! # References
//! Linux `drivers/infiniband/hw/mlx5/qp.c`, `qpc.c`; libmlx5 asks for version 1; `ibv_set_ece(3)`

use crate::qp::Service;

/// Bits of the version.
const VERSION: u32 = 0xf << 28;
/// The version of the device.
pub(super) const VERSION_1: u32 = 1 << 28;
/// Options of the device.
pub(super) const OPTIONS: u32 = 0x3;

/// Returns the options that a new queue pair offers if its driver asks for this version.
pub(super) fn offered(service: Service, asked: u32) -> u32 {
    agreed(service, asked & VERSION | OPTIONS)
}

/// Returns the options of a connection that a driver sets, as far as the device has them. A program
/// may set any: none breaks a rule.
pub(super) fn agreed(service: Service, options: u32) -> u32 {
    if options & VERSION == 0 || !service.is_connected() { 0 } else { VERSION_1 | options & OPTIONS }
}
