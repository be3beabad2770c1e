//! [`Soft`]: the name of the provider in the types of its objects.

/// The provider for devices in userspace.
#[derive(Debug)]
pub enum Soft {}

/// The driver id. The kernel assigns small numbers; this number spells `soft`. Address vectors
/// contain it as well.
pub(crate) const DRIVER_ID: u32 = 0x736f_6674;
