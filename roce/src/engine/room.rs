//! Reserves the memory that a call needs, or returns [`Refused::NoMemory`].
//!
//! Rust aborts the process if an ordinary allocation fails. Allocations that grow with the number
//! of a program's objects, or whose size a program chooses, instead fail with an error. They also
//! leave memory for the small allocations of the same call.

use alloc::collections::{BinaryHeap, TryReserveError, VecDeque};
use alloc::vec::Vec;
use core::hint::black_box;

use super::types::Refused;

/// An upper bound on the total of a call's small allocations, in bytes.
const CALL: usize = 64 << 10;

/// The largest allocation that counts as small, in bytes.
const SMALL: usize = 4 << 10;

/// A collection that can reserve space.
pub(super) trait Reserve {
    /// The size of one element, in bytes.
    const SIZE: usize;

    fn len(&self) -> usize;

    fn capacity(&self) -> usize;

    fn try_reserve(&mut self, more: usize) -> Result<(), TryReserveError>;
}

macro_rules! reserve {
    ($($collection:ident)+) => {
        $(impl<T> Reserve for $collection<T> {
            const SIZE: usize = size_of::<T>();

            fn len(&self) -> usize {
                self.len()
            }

            fn capacity(&self) -> usize {
                self.capacity()
            }

            fn try_reserve(&mut self, more: usize) -> Result<(), TryReserveError> {
                self.try_reserve(more)
            }
        })+
    };
}

reserve!(Vec VecDeque BinaryHeap);

/// Reserves space for `more` additional elements.
///
/// # Errors
/// [`Refused::NoMemory`] if the allocation fails or would leave no memory for small allocations.
pub(super) fn reserve<C: Reserve>(values: &mut C, more: usize) -> Result<(), Refused> {
    reserve_to(values, values.len().saturating_add(more))
}

/// Reserves space for `needed` elements in total.
///
/// # Errors
/// [`Refused::NoMemory`] if the allocation fails or would leave no memory for small allocations.
pub(super) fn reserve_to<C: Reserve>(values: &mut C, needed: usize) -> Result<(), Refused> {
    if needed <= values.capacity() {
        return Ok(());
    }
    let size = needed.saturating_mul(C::SIZE);
    let short = Refused::NoMemory { bytes: size as u64 };
    values.try_reserve(needed - values.len()).map_err(|_| short)?;
    if size <= SMALL || remains() { Ok(()) } else { Err(short) }
}

/// Returns a vector with space for exactly `len` elements.
///
/// # Errors
/// [`Refused::NoMemory`] if the allocation fails or would leave no memory for small allocations.
pub(super) fn with_room<T>(len: usize) -> Result<Vec<T>, Refused> {
    let size = len.saturating_mul(size_of::<T>());
    let short = Refused::NoMemory { bytes: size as u64 };
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|_| short)?;
    if size <= SMALL || remains() { Ok(values) } else { Err(short) }
}

/// Returns whether enough memory remains for a call's small allocations.
#[cold]
fn remains() -> bool {
    let mut piece = Vec::<u8>::new();
    // `black_box` uses the allocation; otherwise the compiler would remove it.
    let is_there = black_box(&mut piece).try_reserve_exact(CALL).is_ok();
    black_box(&piece);
    is_there
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_no_process_has_is_refused_and_named() {
        let short = |bytes| Err(Refused::NoMemory { bytes });
        assert_eq!(with_room::<u64>(1 << 50).map(drop), short(8 << 50));
        assert_eq!(with_room::<u64>(usize::MAX).map(drop), short(u64::MAX));
        let mut values = Vec::from([1_u64]);
        assert_eq!(reserve(&mut values, (1 << 50) - 1), short(8 << 50));
        assert_eq!(reserve(&mut values, 4000), Ok(()));
        assert!(values.capacity() >= 4001);
        assert_eq!(with_room::<u64>(4000).unwrap().capacity(), 4000);
    }
}
