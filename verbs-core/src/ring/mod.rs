//! Primitives for queues shared with a device or the kernel.
//!
//! - [`Region`]: memory that the kernel or a device also writes; read and written by value, never
//!   through a reference.
//! - [`SharedIndex`]: an index in such memory, published with release and read with acquire.
//! - [`Producer`], [`Consumer`]: the ends of a single-producer single-consumer ring, with cached
//!   indices. Both publish through an [`Index`].
//! - [`barrier`]: fences, each named after the accesses it orders.
//! - [`Doorbell`]: the register that notifies a device of new work.

pub mod barrier;
mod cursor;
mod doorbell;
mod region;

pub use cursor::{Consumer, Index, Producer, SharedIndex};
pub use doorbell::Doorbell;
pub use region::{Region, page_size};

#[cfg(test)]
mod tests;
