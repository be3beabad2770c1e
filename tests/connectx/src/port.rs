//! [`Port`]: the function's port, InfiniBand or RoCE.

/// What a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// InfiniBand.
    Ib,
    /// Ethernet with RoCE.
    Roce,
}

/// The port's state and addresses.
#[derive(Debug)]
pub struct Port {
    /// What it is.
    pub kind: PortKind,
    /// The link is up.
    pub up: bool,
}
