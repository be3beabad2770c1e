//! Runs a CRC backwards, to the IPv4 identification.

use super::clmul;
use super::poly::{ONE, multiply, x_to_minus};

/// The number of bytes after the IPv4 identification and DF: 13 in the IPv4 header and 8 in the UDP
/// header.
const BYTES_BEHIND_ID: u64 = 13 + 8;

/// Inverse powers of x for lengths of 0 to 255 bytes, including the bytes after the identification
/// and the 32 bits of the CRC.
const BACK_BY_1: [u32; 256] = powers(x_to_minus(8 * BYTES_BEHIND_ID + 32), x_to_minus(8));

/// Inverse powers of x for multiples of 256 bytes.
const BACK_BY_256: [u32; 256] = powers(ONE, x_to_minus(8 * 256));

const fn powers(first: u32, factor: u32) -> [u32; 256] {
    let mut table = [first; 256];
    let mut i = 1;
    while i < table.len() {
        table[i] = multiply(table[i - 1], factor);
        i += 1;
    }
    table
}

/// Converts a difference between CRCs after `covered` bytes of UDP payload into a difference in the
/// message.
///
/// Assumes that the messages differ only in four bytes, the last of which is the first byte of the
/// IPv4 flags field. The result is the difference of those four bytes, with the last byte in the
/// top bits.
#[inline]
pub(super) fn before_ipv4_id(difference: u32, covered: usize) -> u32 {
    static BY_1: [u32; 256] = BACK_BY_1;
    static BY_256: [u32; 256] = BACK_BY_256;
    let multiply = |a, b| clmul::multiply(a, b).unwrap_or_else(|| multiply(a, b));
    let back = multiply(BY_256[covered >> 8 & 0xff], BY_1[covered & 0xff]);
    multiply(difference, back)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn both_ways_to_multiply_give_the_same_product(a: u32, b: u32) {
            prop_assert!(clmul::multiply(a, b).is_none_or(|product| product == multiply(a, b)));
        }
    }
}
