//! [`Soft`]: the marker type that identifies this provider in its objects' types.

/// The provider for devices in userspace.
#[derive(Debug)]
pub enum Soft {}

/// The driver id. The kernel assigns small numbers; this number spells `soft`. Address vectors
/// contain the driver id as well.
pub(crate) const DRIVER_ID: u32 = 0x736f_6674;
