//! Primitives for queues that are shared with a device or with the kernel.
//!
//! - [`Region`]: memory that somebody else writes too; read and written by value, never through a reference.
//! - [`SharedIndex`]: an index in such memory, published with release and read with acquire.
//! - [`Producer`], [`Consumer`]: one end of a single-producer single-consumer ring, with cached indices;
//!   [`Index`] is what both publish through.
//! - [`barrier`]: fences named by what they order.
//! - [`Doorbell`]: the register that tells a device to look.

pub mod barrier;
mod cursor;
mod doorbell;
mod region;

pub use cursor::{Consumer, Index, Producer, SharedIndex};
pub use doorbell::Doorbell;
pub use region::Region;

#[cfg(test)]
mod ends;
