//! [`Device`]: the interface through which the sockets access the device.

use roce::engine::Time;

use crate::bus::Bus;
use crate::fabric::Fabric;

/// The device behind the sockets.
pub trait Device {
    /// Reads registers in a BAR of a function. The range lies within the BAR.
    fn bar_read(&mut self, function: usize, bar: u32, offset: u64, into: &mut [u8], now: Time);
    /// Writes registers in a BAR of a function. The range lies within the BAR.
    fn bar_write(&mut self, function: usize, bar: u32, offset: u64, from: &[u8], now: Time);
    /// Reads from a function's configuration space. The range lies within it.
    fn config_read(&mut self, function: usize, offset: u64, into: &mut [u8]);
    /// Writes to a function's configuration space. The range lies within it.
    fn config_write(&mut self, function: usize, offset: u64, from: &[u8]);
    /// Resets a function to its power-on state.
    fn reset(&mut self, function: usize);
    /// Advances time to `now` and handles everything due.
    fn expire(&mut self, now: Time);
    /// Returns the time by which [`expire`](Self::expire) must be called next; `None` if nothing is
    /// pending.
    fn deadline(&self) -> Option<Time>;
    /// Executes a line of the fault language. Returns the reply, whose last line begins with `ok`
    /// or `error`.
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
