//! The front end for QEMU: vfio-user servers, one for each function, and the control socket.
//!
//! | module | what it is |
//! |---|---|
//! | `server` | the loop that waits for all sockets and for deadlines |
//! | `connection` | a client of one function |
//! | `protocol` | the messages |
//! | `control` | who injects faults |
//! | `bus` | the guest's memory and interrupts |
//! | `mapping` | mapped memory, the only unsafe code |
//!
//! One thread does everything: a client waits at every doorbell for the answer, so that there is nothing to be won by another thread, and
//! no locks are needed.
//!
//! # References
//! QEMU `docs/interop/vfio-user.rst`

mod bus;
mod connection;
mod control;
mod mapping;
mod protocol;
mod server;

pub use bus::MappedBus;
pub use server::Server;

use roce::engine::Time;

use crate::bus::Bus;
use crate::fabric::Fabric;

/// What stands behind the sockets.
pub trait Device {
    /// Reads a BAR of a function. The range is in it.
    fn bar_read(&mut self, function: usize, bar: u32, offset: u64, into: &mut [u8], now: Time);
    /// Writes a BAR of a function. The range is in it.
    fn bar_write(&mut self, function: usize, bar: u32, offset: u64, from: &[u8], now: Time);
    /// Reads the configuration space of a function. The range is in it.
    fn config_read(&mut self, function: usize, offset: u64, into: &mut [u8]);
    /// Writes the configuration space of a function. The range is in it.
    fn config_write(&mut self, function: usize, offset: u64, from: &[u8]);
    /// A function is as after power-on.
    fn reset(&mut self, function: usize);
    /// Something is due.
    fn expire(&mut self, now: Time);
    /// When something is due next.
    fn deadline(&self) -> Option<Time>;
    /// A line of the fault language, and the answer: lines, of which the last begins with `ok` or `error`.
    fn control(&mut self, line: &str, now: Time) -> String;
}

impl<B: Bus> Device for Fabric<B> {
    fn bar_read(&mut self, function: usize, bar: u32, offset: u64, into: &mut [u8], now: Time) {
        self.bar_read(function, bar, offset, into, now);
    }

    fn bar_write(&mut self, function: usize, bar: u32, offset: u64, from: &[u8], now: Time) {
        self.bar_write(function, bar, offset, from, now);
    }

    fn config_read(&mut self, function: usize, offset: u64, into: &mut [u8]) {
        self.config_read(function, offset, into);
    }

    fn config_write(&mut self, function: usize, offset: u64, from: &[u8]) {
        self.config_write(function, offset, from);
    }

    fn reset(&mut self, function: usize) {
        self.reset(function);
    }

    fn expire(&mut self, now: Time) {
        self.expire(now);
    }

    fn deadline(&self) -> Option<Time> {
        self.deadline()
    }

    fn control(&mut self, line: &str, now: Time) -> String {
        self.control(line, now)
    }
}

#[cfg(test)]
mod tests;
