//! The front end for QEMU: one vfio-user server per function and the control socket.
//!
//! | module | contents |
//! |---|---|
//! | `server` | the loop that waits for sockets and deadlines |
//! | `connection` | one function's client |
//! | `protocol` | messages |
//! | `control` | clients of the control socket, which inject faults |
//! | `bus` | guest memory and interrupts |
//! | `mapping` | mapped memory, the only unsafe code |
//!
//! One thread serves all sockets, so no locks are needed. More threads would not help, because a
//! client waits for the response to each doorbell.
//!
//! # References
//! QEMU `docs/interop/vfio-user.rst`

mod bus;
mod connection;
mod control;
mod device;
mod mapping;
mod protocol;
mod server;

pub use bus::MappedBus;
pub use device::Device;
pub use server::Server;

#[cfg(test)]
mod tests;
