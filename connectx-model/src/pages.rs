//! [`Pages`]: a buffer of guest pages, read and written across page boundaries.

use crate::bus::{Bus, BusFault};

/// A buffer in guest memory: a list of pages of equal size, and the buffer's offset in the first
/// page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages {
    list: Vec<u64>,
    log_page_size: u32,
    offset: u64,
    len: u64,
}

impl Pages {
    /// Returns a buffer of `len` bytes that starts at `offset` in the first page; `None` if the
    /// pages are too small for it.
    pub(crate) fn new(list: Vec<u64>, log_page_size: u32, offset: u64, len: u64) -> Option<Self> {
        if !(12..=62).contains(&log_page_size) {
            return None;
        }
        let needed = offset.checked_add(len)?;
        let held = (list.len() as u64).checked_mul(1 << log_page_size)?;
        (needed <= held).then_some(Self { list, log_page_size, offset, len })
    }

    /// Returns the number of pages that a buffer needs; `None` on overflow.
    pub(crate) fn needed(log_page_size: u32, offset: u64, len: u64) -> Option<u64> {
        Some(offset.checked_add(len)?.div_ceil(1u64.checked_shl(log_page_size)?))
    }

    /// Returns the guest-physical addresses of the pages.
    pub(crate) fn list(&self) -> &[u64] {
        &self.list
    }

    /// Copies bytes from the buffer, starting at offset `at`.
    pub(crate) fn read<B: Bus>(&self, bus: &B, at: u64, into: &mut [u8]) -> Result<(), BusFault> {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let (address, count) = self.piece(at, done, rest.len())?;
            bus.read(address, &mut rest[..count])?;
            done += count;
        }
        Ok(())
    }

    /// Copies bytes to the buffer, starting at offset `at`.
    pub(crate) fn write<B: Bus>(&self, bus: &B, at: u64, from: &[u8]) -> Result<(), BusFault> {
        let mut done = 0;
        while let Some(rest) = from.get(done..).filter(|rest| !rest.is_empty()) {
            let (address, count) = self.piece(at, done, rest.len())?;
            bus.write(address, &rest[..count])?;
            done += count;
        }
        Ok(())
    }

    /// Returns the guest-physical address of the byte at offset `at`, and the number of contiguous
    /// bytes from there to the end of the page or buffer.
    pub(crate) fn locate(&self, at: u64) -> Option<(u64, u64)> {
        let left = self.len.checked_sub(at).filter(|left| *left > 0)?;
        let position = self.offset + at;
        let page = self.list.get(usize::try_from(position >> self.log_page_size).ok()?)?;
        let size = 1 << self.log_page_size;
        let inside = position & (size - 1);
        Some((page.checked_add(inside)?, (size - inside).min(left)))
    }

    fn piece(&self, at: u64, done: usize, wanted: usize) -> Result<(u64, usize), BusFault> {
        let at = at.saturating_add(done as u64);
        let (address, count) = self.locate(at).ok_or(BusFault { address: at, len: wanted })?;
        Ok((address, usize::try_from(count).unwrap_or(usize::MAX).min(wanted)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::PlainBus;

    #[test]
    fn bytes_are_found_across_pages_that_are_not_neighbours() {
        let bus = PlainBus::new(0x5000);
        let pages = Pages::new(vec![0x3000, 0x1000], 12, 0xff0, 0x20).unwrap();
        pages.write(&bus, 8, &[7; 16]).unwrap();
        let mut first = [0; 8];
        bus.read(0x3ff8, &mut first).unwrap();
        let mut second = [0; 9];
        bus.read(0x1000, &mut second).unwrap();
        assert_eq!((first, &second[..8], second[8]), ([7; 8], &[7; 8][..], 0));
        let mut back = [0; 16];
        pages.read(&bus, 8, &mut back).unwrap();
        assert_eq!(back, [7; 16]);
    }

    #[test]
    fn an_access_outside_of_the_buffer_is_a_fault() {
        let bus = PlainBus::new(0x2000);
        let pages = Pages::new(vec![0x1000], 12, 0, 0x20).unwrap();
        assert!(pages.read(&bus, 0x19, &mut [0; 8]).is_err());
        assert!(pages.write(&bus, u64::MAX, &[0; 8]).is_err());
        assert_eq!(Pages::new(vec![0x1000], 12, 0xff0, 0x20), None);
        assert_eq!(Pages::new(vec![0], 64, 0, 1), None);
    }
}
