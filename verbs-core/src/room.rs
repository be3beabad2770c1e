//! Memory that a call needs, or `ENOMEM`.

use core::hint::black_box;

use crate::Errno;

/// Checks that the allocator has `len` bytes in one piece, and frees them again.
///
/// For calls whose own allocations cannot fail one by one: a call that begins without memory is
/// refused before it changes anything. Other threads may take the memory meanwhile.
///
/// # Errors
/// `ENOMEM`.
pub fn check(len: usize) -> Result<(), Errno> {
    let mut piece = Vec::<u8>::new();
    // `black_box` uses the allocation, or the compiler would remove it.
    let is_there = black_box(&mut piece).try_reserve_exact(len).is_ok();
    black_box(&piece);
    if is_there { Ok(()) } else { Err(Errno::NOMEM) }
}

/// Returns `len` copies of a value.
///
/// # Errors
/// `ENOMEM`.
pub fn copies<T: Clone>(value: T, len: usize) -> Result<Vec<T>, Errno> {
    let mut all = Vec::new();
    all.try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
    all.resize(len, value);
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
