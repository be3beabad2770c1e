//! [`Settings`]: the choices made when a device is created.

use crate::io::Faults;
use crate::memory::checked::CheckedMemory;

/// The settings of a device, made by [`SoftBuilder`](crate::SoftBuilder).
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// Whether connected queue pairs accept packets from only one UDP source port of their peer.
    pub(crate) strict_ports: bool,
    /// The kind of registered memory that the kernel accesses.
    pub(crate) checked_memory: CheckedMemory,
    /// The faults to inject into sent packets, if requested.
    pub(crate) faults: Option<Box<Faults>>,
}
