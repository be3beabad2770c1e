//! [`Field`]: values at bit positions in a message.
//!
//! Positions and widths are constants of the message formats. The functions are inlined so that the
//! compiler sees these constants: a field then costs a few instructions instead of a loop over its
//! bytes.

/// A value at a bit position in a message. Bits outside the buffer read as 0 and are not written;
/// the constructors of packets reject buffers that are too short.
pub(crate) trait Field: Copy {
    /// Reads `width` bits starting at bit `first`, counted from the most significant bit of byte 0.
    fn get(bytes: &[u8], first: usize, width: usize) -> Self;

    /// Writes the value's low `width` bits and leaves the bits around them unchanged.
    fn put(self, bytes: &mut [u8], first: usize, width: usize);
}

macro_rules! unsigned {
    ($($ty:ty)*) => {$(
        impl Field for $ty {
            #[inline]
            fn get(bytes: &[u8], first: usize, width: usize) -> Self {
                read(bytes, first, width) as $ty
            }
            #[inline]
            fn put(self, bytes: &mut [u8], first: usize, width: usize) {
                write(bytes, first, width, u64::from(self));
            }
        }
    )*};
}

unsigned!(u8 u16 u32 u64);

impl Field for bool {
    #[inline]
    fn get(bytes: &[u8], first: usize, width: usize) -> Self {
        read(bytes, first, width) != 0
    }

    #[inline]
    fn put(self, bytes: &mut [u8], first: usize, width: usize) {
        write(bytes, first, width, u64::from(self));
    }
}

/// A byte array must start at a byte boundary, and its width must be 8 bits per byte.
impl<const N: usize> Field for [u8; N] {
    #[inline]
    fn get(bytes: &[u8], first: usize, _: usize) -> Self {
        match bytes.get(first / 8..).and_then(|rest| rest.first_chunk::<N>()) {
            Some(chunk) => *chunk,
            None => [0; N],
        }
    }

    #[inline]
    fn put(self, bytes: &mut [u8], first: usize, _: usize) {
        if let Some(chunk) = bytes.get_mut(first / 8..).and_then(|rest| rest.first_chunk_mut::<N>()) {
            *chunk = self;
        }
    }
}

/// Returns the field's mask within the bytes that contain it, and the number of bits after the
/// field.
#[inline(always)]
fn place(first: usize, width: usize) -> (u128, u32) {
    let bits = (first % 8 + width).div_ceil(8) * 8;
    let behind = bits - first % 8 - width;
    (((1 << width) - 1) << behind, behind as u32)
}

#[inline(always)]
fn read(bytes: &[u8], first: usize, width: usize) -> u64 {
    let (mask, behind) = place(first, width);
    let all = bytes
        .iter()
        .skip(first / 8)
        .take((first % 8 + width).div_ceil(8))
        .fold(0_u128, |all, byte| all << 8 | u128::from(*byte));
    ((all & mask) >> behind) as u64
}

#[inline(always)]
fn write(bytes: &mut [u8], first: usize, width: usize, value: u64) {
    let (mask, behind) = place(first, width);
    let mut value = u128::from(value) << behind & mask;
    let mut mask = mask;
    let count = (first % 8 + width).div_ceil(8);
    for byte in bytes.iter_mut().skip(first / 8).take(count).rev() {
        *byte = *byte & !(mask as u8) | value as u8;
        (value, mask) = (value >> 8, mask >> 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_read_where_it_was_written_and_leaves_its_neighbours() {
        for (first, width) in [(0, 64), (3, 5), (5, 3), (8, 24), (12, 20), (15, 1), (6, 24), (1, 62)] {
            for filler in [0x00, 0xff] {
                let mut bytes = [filler; 12];
                let value = 0xa5a5_5a5a_9696_c3c3 & (u64::MAX >> (64 - width));
                write(&mut bytes, first, width, value);
                assert_eq!(read(&bytes, first, width), value, "{width} bits at {first}");
                let ones = bytes.iter().map(|byte| byte.count_ones()).sum::<u32>();
                let around = if filler == 0 { 0 } else { 96 - width as u32 };
                assert_eq!(ones, value.count_ones() + around, "{width} bits at {first}");
            }
        }
    }

    #[test]
    fn a_value_that_is_too_large_keeps_its_low_bits() {
        let mut bytes = [0; 2];
        write(&mut bytes, 4, 4, 0x1f);
        assert_eq!(bytes, [0x0f, 0]);
    }

    #[test]
    fn what_lies_outside_of_the_buffer_is_zero() {
        assert_eq!(u32::get(&[1, 2], 16, 32), 0);
        assert_eq!(<[u8; 4]>::get(&[1, 2], 0, 32), [0; 4]);
        let mut bytes = [7; 2];
        5_u32.put(&mut bytes, 16, 32);
        [1; 3].put(&mut bytes, 0, 24);
        assert_eq!(bytes, [7; 2]);
    }
}
