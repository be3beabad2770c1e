//! Connection options (enhanced connection establishment, ECE).
//!
//! ```text
//! CREATE_QP with a version ──► all options of the device, which programs send to their peers
//! a transition with options of both sides ──► the device keeps those that it has
//! ```
//! Bits 31 to 28 hold the version; 0 means no options. No public source documents the other bits.
//! The model offers two of these bits, which have no effect.
//!
//! # References
//! Linux `drivers/infiniband/hw/mlx5/qp.c`, `qpc.c`; libmlx5 requests version 1; `ibv_set_ece(3)`

use crate::state::qp::Service;

/// The bits that hold the version of the options.
const VERSION: u32 = 0xf << 28;
/// The version of the options that the device supports.
pub(super) const VERSION_1: u32 = 1 << 28;
/// The options that the device supports.
pub(super) const OPTIONS: u32 = 0x3;

/// Returns the options that a new queue pair offers if the driver requests version `asked`.
pub(super) fn offered(service: Service, asked: u32) -> u32 {
    agreed(service, asked & VERSION | OPTIONS)
}

/// Returns the part of `options` that the device supports. A program may set any options without
/// breaking a rule.
pub(super) fn agreed(service: Service, options: u32) -> u32 {
    if options & VERSION == 0 || !service.is_connected() { 0 } else { VERSION_1 | options & OPTIONS }
}
