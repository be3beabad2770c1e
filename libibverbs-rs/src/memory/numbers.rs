//! Access to buffers as slices of numbers.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::memory::buffer::Buf;

/// A primitive number: every bit pattern is valid.
///
/// Implemented for the integers, `f32` and `f64`.
pub trait Number: Copy + sealed::Number {}

mod sealed {
    use super::{FromBytes, Immutable, IntoBytes};

    pub trait Number: FromBytes + Immutable + IntoBytes {}
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Number for $number {}
        impl sealed::Number for $number {}
    )*};
}

numbers! { u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 }

impl Buf {
    /// Returns the bytes as numbers in the byte order of the machine. Bytes after the last whole
    /// number are omitted.
    ///
    /// ```no_run
    /// # fn f(buf: &mut verbs::Buf) {
    /// buf.as_mut_slice_of::<u64>()[1] = 0x42;
    /// assert_eq!(buf[8..16], 0x42_u64.to_ne_bytes());
    /// # }
    /// ```
    ///
    /// For structs, the crates `zerocopy` and `bytemuck` convert from the bytes, `&buf[..]`.
    ///
    /// # Panics
    /// If the buffer does not start at a multiple of the number's alignment. A buffer from
    /// [`Pd::alloc_buf`](crate::Pd::alloc_buf) starts at a page boundary, a buffer from
    /// [`Pd::register`](crate::Pd::register) at the start of the program's memory, and a piece from
    /// [`split_off`](Self::split_off) at the split.
    pub fn as_slice_of<T: Number>(&self) -> &[T] {
        let whole = self.len() / size_of::<T>();
        match <[T]>::ref_from_prefix_with_elems(self, whole) {
            Ok((numbers, _)) => numbers,
            Err(_) => unaligned::<T>(self),
        }
    }

    /// Returns the bytes as mutable numbers, as [`as_slice_of`](Self::as_slice_of) does.
    ///
    /// # Panics
    /// Same as [`as_slice_of`](Self::as_slice_of).
    pub fn as_mut_slice_of<T: Number>(&mut self) -> &mut [T] {
        let whole = self.len() / size_of::<T>();
        if !self.as_ptr().addr().is_multiple_of(align_of::<T>()) {
            unaligned::<T>(self);
        }
        let (numbers, _) =
            <[T]>::mut_from_prefix_with_elems(self, whole).expect("aligned, and no longer than the bytes");
        numbers
    }
}

fn unaligned<T>(buf: &Buf) -> ! {
    panic!(
        "the buffer starts at {:p}, which is not a multiple of {}, the alignment of {}",
        buf.as_ptr(),
        align_of::<T>(),
        core::any::type_name::<T>()
    )
}
