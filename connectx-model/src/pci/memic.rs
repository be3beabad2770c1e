//! Loads and stores by the processor in device memory.

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::Function;
use crate::memic::WORD;

impl<B: Bus> Function<B> {
    /// Handles a load from device memory. A rejected load returns all ones.
    pub(crate) fn memic_read(&mut self, offset: u64, into: &mut [u8]) {
        let (memic, len) = (self.core.memic.clone(), into.len());
        if !self.memic_access(offset, len, || memic.read(offset, into)) {
            into.fill(0xff);
        }
    }

    /// Handles a store to device memory.
    pub(crate) fn memic_write(&mut self, offset: u64, from: &[u8]) {
        let memic = self.core.memic.clone();
        self.memic_access(offset, from.len(), || memic.write(offset, from));
    }

    /// Performs an access with `act` if the access is permitted. Returns whether it was performed.
    fn memic_access(&mut self, offset: u64, len: usize, act: impl FnOnce() -> Option<()>) -> bool {
        if self.core.iseg.was_reset() {
            // The access breaks no rule: the driver unmaps the memory only once it notices the
            // reset.
            return false;
        }
        let (rule, done) = if !offset.is_multiple_of(WORD as u64) || !len.is_multiple_of(WORD) {
            (Rule::MemicWord, None)
        } else {
            (Rule::MemicArea, act())
        };
        if done.is_none() {
            self.core.log.complain(rule, format!("{len} bytes at {offset:#x} of BAR 0"));
        }
        done.is_some()
    }
}
