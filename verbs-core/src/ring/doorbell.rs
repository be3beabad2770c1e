//! [`Doorbell`]: the register that tells a device to look.
//!
//! # Safety
//! A doorbell is a pointer into a mapped page of registers ([`Region`]), which it keeps alive. It is only written,
//! with single volatile stores of its own width.
#![allow(unsafe_code)]

use core::fmt;
use core::ptr::NonNull;

use super::Region;

/// A 64-bit device register that is only written.
pub struct Doorbell {
    register: NonNull<u64>,
    _region: Region,
}

// SAFETY: `register` blocked the auto impl. It points into `_region`, which is `Send` and outlives it.
unsafe impl Send for Doorbell {}

impl Doorbell {
    /// The register at an offset of a page of registers.
    ///
    /// # Panics
    /// When the register does not lie within the region or is not aligned to 8 bytes.
    pub fn new(region: &Region, offset: usize) -> Self {
        let register = region.pointer(offset, size_of::<u64>());
        assert!(
            register.addr().get().is_multiple_of(align_of::<u64>()),
            "a doorbell at {offset} is not aligned"
        );
        Self { register: register.cast(), _region: region.clone() }
    }

    /// Writes the register. The caller ordered what the device is to see before, with [`super::barrier`].
    #[inline(always)]
    pub fn ring(&mut self, value: u64) {
        // SAFETY: aligned and within the region, which lives as long as `self`; a register takes any value.
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

    #[test]
    fn a_ring_is_one_store_at_its_offset() {
        let region = Region::plain(64);
        Doorbell::new(&region, 0x20).ring(0x1122_3344_5566_7788);
        assert_eq!(region.peek::<u64>(0x20), 0x1122_3344_5566_7788);
        assert_eq!((region.peek::<u64>(0x18), region.peek::<u64>(0x28)), (0, 0));
    }

    #[test]
    #[should_panic(expected = "of a region of")]
    fn a_register_outside_the_page_is_refused() {
        Doorbell::new(&Region::plain(64), 64);
    }
}
