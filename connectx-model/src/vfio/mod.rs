//! The front end for QEMU: vfio-user servers, one for each function, and the control socket.
//!
//! | module | contents |
//! |---|---|
//! | `server` | the loop that waits for sockets and deadlines |
//! | `connection` | a client of one function |
//! | `protocol` | messages |
//! | `control` | clients that inject faults |
//! | `bus` | guest memory and interrupts |
//! | `mapping` | mapped memory, the only unsafe code |
//!
//! One thread serves everything. A client waits for the response at every doorbell, so another
//! thread would gain nothing, and no locks are needed.
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
