//! Arithmetic modulo the CRC polynomial, bits mirrored: bit 31 is x⁰, bit 0 is x³¹.

use super::clmul;

/// x³² modulo the polynomial, mirrored.
pub(super) const POLYNOMIAL: u32 = 0xedb8_8320;

/// The number 1.
const ONE: u32 = 1 << 31;

/// The polynomial is primitive: x to this power is 1.
const ORDER: u64 = 0xffff_ffff;

/// `a * x`
const fn times_x(a: u32) -> u32 {
    a >> 1 ^ POLYNOMIAL & (a & 1).wrapping_neg()
}

/// `a * b`
pub(super) const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = times_x(b);
    }
    product
}

/// x to the power `n`.
pub(super) const fn x_to(mut n: u64) -> u32 {
    let mut result = ONE;
    let mut square = ONE >> 1;
    while n > 0 {
        if n & 1 == 1 {
            result = multiply(result, square);
        }
        square = multiply(square, square);
        n >>= 1;
    }
    result
}

/// x to the power `-n`.
const fn x_to_minus(n: u64) -> u32 {
    x_to(ORDER - n % ORDER)
}

/// Bytes that follow identification and DF in an IPv4 header, and those of a UDP header.
const BYTES_BEHIND_ID: u64 = 13 + 8;

/// Inverse powers for lengths 0 to 255, with what follows the identification and the CRC's own 32 bits.
const BACK_BY_1: [u32; 256] = powers(x_to_minus(8 * BYTES_BEHIND_ID + 32), x_to_minus(8));

/// Inverse powers for multiples of 256 bytes.
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

/// Turns a difference of CRCs behind `covered` bytes of UDP payload into the difference of the message, were it all in
/// the four bytes that end with the first one of IPv4's flags: it is those four bytes, the last in the top bits.
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
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn multiplication_is_that_of_a_field(a: u32, b: u32, c: u32) {
            prop_assert_eq!(multiply(a, b), multiply(b, a));
            prop_assert_eq!(multiply(a, multiply(b, c)), multiply(multiply(a, b), c));
            prop_assert_eq!(multiply(a, b ^ c), multiply(a, b) ^ multiply(a, c));
            prop_assert_eq!(multiply(a, ONE), a);
            prop_assert!(clmul::multiply(a, b).is_none_or(|product| product == multiply(a, b)));
        }

        #[test]
        fn powers_add(m in 0u64..1 << 40, n in 0u64..1 << 40) {
            prop_assert_eq!(multiply(x_to(m), x_to(n)), x_to(m + n));
            prop_assert_eq!(multiply(x_to(n), x_to_minus(n)), ONE);
        }
    }
}
