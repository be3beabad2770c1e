//! [`Bus`]: the guest memory and interrupts that a PCI function accesses. [`PlainBus`] works
//! without a guest.
//!
//! Invariant: addresses and lengths come from a guest. A range outside memory causes a
//! [`BusFault`], never a panic.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Guest memory, by guest-physical address, and interrupt vectors. All clones access the same
/// guest.
pub trait Bus: Clone + fmt::Debug + 'static {
    /// Copies `into.len()` bytes from memory.
    ///
    /// # Errors
    /// [`BusFault`] if any byte of the range lies outside guest memory.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), BusFault>;

    /// Copies bytes to memory.
    ///
    /// # Errors
    /// [`BusFault`] if any byte of the range is not writable memory.
    fn write(&self, address: u64, from: &[u8]) -> Result<(), BusFault>;

    /// Copies bytes to memory and stores the last 4 bytes last, so a reader that sees these also
    /// sees the others. An entry with an owner bit in its last byte is handed over this way.
    /// `address + from.len()` must be a multiple of 4.
    ///
    /// # Errors
    /// Same as [`write`](Self::write).
    fn publish(&self, address: u64, from: &[u8]) -> Result<(), BusFault>;

    /// Stores `swap` in the 8 bytes at `address` if these equal `compare`. Returns the previous
    /// value. All values are in native byte order.
    ///
    /// # Errors
    /// Same as [`write`](Self::write); also [`BusFault`] if `address` is not a multiple of 8.
    fn compare_swap(&self, address: u64, compare: u64, swap: u64) -> Result<u64, BusFault>;

    /// Adds `add` to the 8 bytes at `address` and returns the previous value.
    ///
    /// # Errors
    /// Same as [`compare_swap`](Self::compare_swap).
    fn fetch_add(&self, address: u64, add: u64) -> Result<u64, BusFault>;

    /// Raises the MSI-X interrupt `vector`. Has no effect if the guest has not configured this
    /// vector.
    fn raise(&self, vector: u16);
}

/// The error for an address range outside guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusFault {
    /// The first address of the range.
    pub address: u64,
    /// The length of the range, in bytes.
    pub len: usize,
}

impl fmt::Display for BusFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no memory at {:#x}, {} bytes", self.address, self.len)
    }
}

impl std::error::Error for BusFault {}

/// A bus for tests without a guest: memory in a vector, which starts at address 0, and a list of
/// raised interrupt vectors.
#[derive(Clone, Debug)]
pub struct PlainBus(Arc<Mutex<Plain>>);

#[derive(Debug)]
struct Plain {
    memory: Vec<u8>,
    raised: Vec<u16>,
}

impl PlainBus {
    /// Returns a bus with `bytes` bytes of zeroed memory.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(Plain { memory: vec![0; bytes], raised: Vec::new() })))
    }

    /// Returns the interrupt vectors raised since the last call.
    pub fn take_raised(&self) -> Vec<u16> {
        std::mem::take(&mut self.lock().raised)
    }

    fn lock(&self) -> MutexGuard<'_, Plain> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, address: u64, len: usize, act: impl FnOnce(&mut [u8]) -> T) -> Result<T, BusFault> {
        let fault = BusFault { address, len };
        let start = usize::try_from(address).map_err(|_| fault)?;
        let end = start.checked_add(len).ok_or(fault)?;
        self.lock().memory.get_mut(start..end).map(act).ok_or(fault)
    }

    fn word(&self, address: u64, change: impl FnOnce(u64) -> u64) -> Result<u64, BusFault> {
        if !address.is_multiple_of(8) {
            return Err(BusFault { address, len: 8 });
        }
        self.with(address, 8, |bytes| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            let old = u64::from_ne_bytes(word);
            bytes.copy_from_slice(&change(old).to_ne_bytes());
            old
        })
    }
}

impl Bus for PlainBus {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), BusFault> {
        self.with(address, into.len(), |bytes| into.copy_from_slice(bytes))
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), BusFault> {
        self.with(address, from.len(), |bytes| bytes.copy_from_slice(from))
    }

    fn publish(&self, address: u64, from: &[u8]) -> Result<(), BusFault> {
        self.write(address, from)
    }

    fn compare_swap(&self, address: u64, compare: u64, swap: u64) -> Result<u64, BusFault> {
        self.word(address, |old| if old == compare { swap } else { old })
    }

    fn fetch_add(&self, address: u64, add: u64) -> Result<u64, BusFault> {
        self.word(address, |old| old.wrapping_add(add))
    }

    fn raise(&self, vector: u16) {
        self.lock().raised.push(vector);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_is_not_all_there_is_a_fault_and_nothing_is_written() {
        let bus = PlainBus::new(16);
        assert_eq!(bus.write(12, &[1; 8]), Err(BusFault { address: 12, len: 8 }));
        assert_eq!(bus.read(u64::MAX, &mut [0; 2]), Err(BusFault { address: u64::MAX, len: 2 }));
        let mut all = [9; 16];
        bus.read(0, &mut all).unwrap();
        assert_eq!(all, [0; 16]);
    }

    #[test]
    fn atomics_return_the_previous_value_and_require_alignment() {
        let bus = PlainBus::new(16);
        assert_eq!(bus.fetch_add(8, 5), Ok(0));
        assert_eq!(bus.compare_swap(8, 5, 7), Ok(5));
        assert_eq!(bus.compare_swap(8, 5, 9), Ok(7));
        assert!(bus.fetch_add(4, 1).is_err());
    }
}
