//! Loads from and stores to device memory.

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::Function;
use crate::memic::WORD;

impl<B: Bus> Function<B> {
    /// Handles a load from device memory. A rejected load reads as ones.
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

    /// Makes an access if it is permitted. Returns whether it was made.
    fn memic_access(&mut self, offset: u64, len: usize, act: impl FnOnce() -> Option<()>) -> bool {
        if self.core.iseg.was_reset() {
            // The driver unmaps the memory once it notices the reset.
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
