//! [`Ethernet`]: what a RoCE port has beside queue pairs.

/// Ethernet queues and what steers frames to them.
#[derive(Debug, Default)]
pub(crate) struct Ethernet {}
