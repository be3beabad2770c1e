//! Connection options (enhanced connection establishment, ECE).
//!
//! ```text
//! CREATE_QP with a version ──► all options of the device, which programs send to their peer
//! a transition with options of both sides ──► the device keeps those that it has
//! ```
//! Bits 31 to 28 hold the version; 0 means no options. No source names the other bits. The model
//! offers two of them, without effect.
//!
//! # References
//! Linux `drivers/infiniband/hw/mlx5/qp.c`, `qpc.c`; libmlx5 requests version 1; `ibv_set_ece(3)`

use crate::state::qp::Service;

/// The bits that hold the version.
const VERSION: u32 = 0xf << 28;
/// The device's version.
pub(super) const VERSION_1: u32 = 1 << 28;
/// The device's options.
pub(super) const OPTIONS: u32 = 0x3;

/// Returns the options a new queue pair offers if its driver requests this version.
pub(super) fn offered(service: Service, asked: u32) -> u32 {
    agreed(service, asked & VERSION | OPTIONS)
}

/// Returns which of a driver's connection options the device supports. A program may set any
/// options without breaking a rule.
pub(super) fn agreed(service: Service, options: u32) -> u32 {
    if options & VERSION == 0 || !service.is_connected() { 0 } else { VERSION_1 | options & OPTIONS }
}
