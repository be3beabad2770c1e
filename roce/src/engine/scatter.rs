//! Scatter/gather lists: copies a message's bytes to registered memory and back.
//!
//! # References
//! IBTA 10.8.3 (data segments). A segment of length 0 names no memory and its key is not checked.

use super::memory::Memory;
use super::memory_regions::MemoryRegions;
use super::types::{Access, Pd, Sge};

/// The reason why a message could not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SgeError {
    /// The elements hold fewer bytes than are to be copied.
    Length,
    /// A key, protection domain, address range or access right is invalid, or the memory is
    /// unreachable.
    Protection,
}

/// Returns the sum of the elements' lengths.
#[inline]
pub(crate) fn length(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// Copies `dst.len()` bytes out of the elements, starting at byte `skip`.
#[inline]
pub(crate) fn gather<M: Memory>(
    regions: &MemoryRegions<M::Region>,
    memory: &mut M,
    pd: Pd,
    sges: &[Sge],
    skip: u64,
    mut dst: &mut [u8],
) -> Result<(), SgeError> {
    for piece in Pieces::new(sges, skip, dst.len()) {
        let (now, later) = dst.split_at_mut(piece.length);
        let (region, offset) = regions
            .local(pd, piece.lkey, piece.addr, piece.length as u64, Access::NONE)
            .ok_or(SgeError::Protection)?;
        memory.read(region, offset, now).map_err(|_| SgeError::Protection)?;
        dst = later;
    }
    if dst.is_empty() { Ok(()) } else { Err(SgeError::Length) }
}

/// Copies `src` into the elements, starting at byte `skip`.
#[inline]
pub(crate) fn scatter<M: Memory>(
    regions: &MemoryRegions<M::Region>,
    memory: &mut M,
    pd: Pd,
    sges: &[Sge],
    skip: u64,
    mut src: &[u8],
) -> Result<(), SgeError> {
    for piece in Pieces::new(sges, skip, src.len()) {
        let (now, later) = src.split_at(piece.length);
        let (region, offset) = regions
            .local(pd, piece.lkey, piece.addr, piece.length as u64, Access::LOCAL_WRITE)
            .ok_or(SgeError::Protection)?;
        memory.write(region, offset, now).map_err(|_| SgeError::Protection)?;
        src = later;
    }
    if src.is_empty() { Ok(()) } else { Err(SgeError::Length) }
}

/// Returns whether all non-empty elements allow the access `need`.
pub(crate) fn check<R>(regions: &MemoryRegions<R>, pd: Pd, sges: &[Sge], need: Access) -> bool {
    let allowed = |sge: &Sge| regions.local(pd, sge.lkey, sge.addr, u64::from(sge.length), need).is_some();
    sges.iter().all(|sge| sge.length == 0 || allowed(sge))
}

/// The non-empty parts of the elements that cover a byte range of the message.
struct Pieces<'a> {
    sges: core::slice::Iter<'a, Sge>,
    skip: u64,
    left: usize,
}

struct Piece {
    addr: u64,
    length: usize,
    lkey: u32,
}

impl<'a> Pieces<'a> {
    fn new(sges: &'a [Sge], skip: u64, left: usize) -> Self {
        Self { sges: sges.iter(), skip, left }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        while self.left > 0 {
            let sge = self.sges.next()?;
            let length = u64::from(sge.length);
            if self.skip >= length {
                self.skip -= length;
                continue;
            }
            let skip = core::mem::take(&mut self.skip);
            let length = ((length - skip) as usize).min(self.left);
            self.left -= length;
            // Even a wrapped address is checked against its key before the access.
            return Some(Piece { addr: sge.addr.wrapping_add(skip), length, lkey: sge.lkey });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::MemoryAttr;
    use crate::engine::testing::random;
    use crate::sim::{VecMemory, VecRegion};

    const PD: Pd = Pd(1);

    /// Returns a region of `length` zeros at address 100.
    fn region(length: usize, access: Access) -> (MemoryRegions<VecRegion>, VecMemory, u32) {
        let (mut regions, mut memory) = (MemoryRegions::new(4), VecMemory::default());
        let region = VecRegion { buffer: memory.add(vec![0; length]), start: 0, length: length as u64 };
        let attr = MemoryAttr { pd: PD, iova: 100, length: length as u64, access };
        let lkey = regions.insert(&attr, region, &mut random()).unwrap();
        (regions, memory, lkey)
    }

    proptest! {
        #[test]
        fn what_is_scattered_in_pieces_is_gathered_as_a_whole(
            lengths in prop::collection::vec(0u32..20, 0..6),
            message in prop::collection::vec(any::<u8>(), 0..100),
            piece in 1usize..30,
        ) {
            let (regions, mut memory, lkey) = region(200, Access::LOCAL_WRITE);
            // The elements lie in descending address order, with gaps of 3 bytes.
            let mut addr = 300;
            let sges: Vec<Sge> = lengths.iter().map(|&length| {
                addr -= u64::from(length) + 3;
                Sge { addr, length, lkey: if length == 0 { !lkey } else { lkey } }
            }).collect();
            let room = length(&sges) as usize;
            let mut put = Ok(());
            for (n, bytes) in message.chunks(piece).enumerate() {
                put = put.and_then(|()| scatter(&regions, &mut memory, PD, &sges, (n * piece) as u64, bytes));
            }
            prop_assert_eq!(put, if message.len() <= room { Ok(()) } else { Err(SgeError::Length) });
            let mut back = vec![0; message.len()];
            let got = gather(&regions, &mut memory, PD, &sges, 0, &mut back);
            prop_assert_eq!(got, put);
            let same = message.len().min(room);
            prop_assert_eq!(&back[..same / piece * piece], &message[..same / piece * piece]);
        }
    }

    #[test]
    fn memory_that_may_not_be_written_can_be_read() {
        let (regions, mut memory, lkey) = region(8, Access::NONE);
        let sges = [Sge { addr: 100, length: 8, lkey }];
        assert_eq!(scatter(&regions, &mut memory, PD, &sges, 0, &[1]), Err(SgeError::Protection));
        assert_eq!(gather(&regions, &mut memory, PD, &sges, 0, &mut [0; 8]), Ok(()));
        assert!(!check(&regions, PD, &sges, Access::LOCAL_WRITE));
        assert!(check(&regions, PD, &sges, Access::NONE));
        assert!(!check(&regions, PD, &[Sge { length: 9, ..sges[0] }], Access::NONE));
        assert!(check(&regions, PD, &[Sge { length: 0, addr: 0, lkey: 0 }], Access::LOCAL_WRITE));
    }
}
