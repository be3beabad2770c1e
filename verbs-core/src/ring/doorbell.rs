//! [`Doorbell`]: the register that notifies a device of new work.
//!
//! # Safety
//! A doorbell is a pointer into a mapped page of registers ([`Region`]), which it keeps alive. The
//! register is only written, with single volatile stores of its width, which are not atomic. The
//! caller of [`Doorbell::new`] guarantees that no other thread writes the register at the same
//! time.
#![allow(unsafe_code)]

use core::fmt;
use core::ptr::NonNull;

use super::Region;

/// A write-only 64-bit device register.
pub struct Doorbell {
    register: NonNull<u64>,
    _region: Region,
}

// SAFETY: `register` blocked the auto impl. It points into `_region`, which is `Send` and outlives
// it.
unsafe impl Send for Doorbell {}

impl Doorbell {
    /// Creates a doorbell for the register at `offset` bytes in a page of registers.
    ///
    /// # Safety
    /// As long as the doorbell lives:
    /// - no other code of this process may access the register, not even through a second doorbell;
    /// - the code that holds the doorbell must ring it only with values for its owner's work
    ///   requests.
    ///
    /// # Panics
    /// If the register does not lie within the region or is not aligned to 8 bytes.
    pub unsafe fn new(region: &Region, offset: usize) -> Self {
        let register = region.pointer(offset, size_of::<u64>());
        assert!(
            register.addr().get().is_multiple_of(align_of::<u64>()),
            "a doorbell at {offset} is not aligned"
        );
        Self { register: register.cast(), _region: region.clone() }
    }

    /// Writes `value` to the register. The caller must have ordered earlier writes for the device
    /// with [`super::barrier`].
    #[inline(always)]
    pub fn ring(&mut self, value: u64) {
        // SAFETY: the register is aligned and within the region, which lives as long as `self`;
        // `&mut self` is the only access of this process (`new`).
        unsafe { self.register.write_volatile(value) }
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbell").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doorbell(region: &Region, offset: usize) -> Doorbell {
        // SAFETY: the test has one thread, and no device acts on plain memory.
        unsafe { Doorbell::new(region, offset) }
    }

    #[test]
    fn a_ring_is_one_store_at_its_offset() {
        let region = Region::plain(64);
        doorbell(&region, 0x20).ring(0x1122_3344_5566_7788);
        assert_eq!(region.peek::<u64>(0x20), 0x1122_3344_5566_7788);
        assert_eq!((region.peek::<u64>(0x18), region.peek::<u64>(0x28)), (0, 0));
    }

    #[test]
    #[should_panic(expected = "of a region of")]
    fn a_register_outside_the_page_is_refused() {
        doorbell(&Region::plain(64), 64);
    }

    #[test]
    #[should_panic(expected = "a doorbell at 36 is not aligned")]
    fn a_register_that_is_not_aligned_is_refused() {
        doorbell(&Region::plain(64), 36);
    }
}
