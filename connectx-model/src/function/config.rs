//! [`Config`]: the parameters of a new function.

use crate::port::PortKind;

/// Parameters of a new function.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Index in the fabric, from 0: selects the GUIDs, the LID and the MAC address.
    pub index: usize,
    /// Link layer of the port.
    pub port: PortKind,
    /// Whether the payload of a small message may be placed in its completion at the driver's
    /// request.
    pub scatter_to_cqe: bool,
}
