//! Checks that a call's memory is available, so that it fails with `ENOMEM` instead of aborting.

use core::hint::black_box;

use crate::errno::Errno;

/// A generous upper bound on the small allocations of one call, in bytes.
///
/// Rust aborts the process if an ordinary allocation fails. A call that creates an object therefore
/// begins only if this much memory is available, and each allocation whose size the program chooses
/// leaves this much ([`remains`]).
pub const CALL: usize = 64 << 10;

/// The maximum size of a small allocation, in bytes.
const SMALL: usize = 4 << 10;

/// Checks that memory for a call's small allocations remains after an allocation of `len` bytes.
///
/// # Errors
/// `ENOMEM`.
pub fn remains(len: usize) -> Result<(), Errno> {
    if len <= SMALL { Ok(()) } else { check(CALL) }
}

/// Checks that the allocator can provide `len` bytes in one piece and frees them again.
///
/// This is for calls whose own allocations cannot report failure: without memory, the call is
/// rejected before it changes anything. Other threads may still take the memory before the call
/// allocates it.
///
/// # Errors
/// `ENOMEM`.
pub fn check(len: usize) -> Result<(), Errno> {
    let mut piece = Vec::<u8>::new();
    // `black_box` keeps the compiler from removing the allocation.
    let is_there = black_box(&mut piece).try_reserve_exact(len).is_ok();
    black_box(&piece);
    if is_there { Ok(()) } else { Err(Errno::NOMEM) }
}

/// Reserves space for `more` additional values in a vector.
///
/// # Errors
/// `ENOMEM`; also if fewer than [`CALL`] bytes would remain.
pub fn reserve<T>(values: &mut Vec<T>, more: usize) -> Result<(), Errno> {
    let needed = values.len().saturating_add(more);
    if needed <= values.capacity() {
        return Ok(());
    }
    values.try_reserve(more).map_err(|_| Errno::NOMEM)?;
    remains(needed.saturating_mul(size_of::<T>()))
}

/// Returns a vector with `len` copies of a value.
///
/// # Errors
/// The errors of [`filled`].
pub fn copies<T: Clone>(value: T, len: usize) -> Result<Vec<T>, Errno> {
    filled(len, || value.clone())
}

/// Returns a vector of `len` values, each returned by a call to `value`.
///
/// # Errors
/// `ENOMEM`; also if fewer than [`CALL`] bytes would remain.
pub fn filled<T>(len: usize, value: impl FnMut() -> T) -> Result<Vec<T>, Errno> {
    let mut all = Vec::new();
    all.try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
    remains(len.saturating_mul(size_of::<T>()))?;
    all.resize_with(len, value);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_that_no_process_has_is_enomem() {
        for len in [0, 1, 1 << 20] {
            assert_eq!(check(len), Ok(()));
        }
        for len in [1 << 60, usize::MAX] {
            assert_eq!(check(len), Err(Errno::NOMEM));
            assert_eq!(copies(0_u8, len), Err(Errno::NOMEM));
        }
        assert_eq!(copies(7, 3), Ok(vec![7; 3]));
    }
}
