//! [`Pci`]: the configuration space.

/// The configuration space of the function.
#[derive(Debug, Default)]
pub(crate) struct Pci {}
