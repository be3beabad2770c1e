//! Arithmetic modulo the CRC polynomial, with reflected bits: bit 31 is x⁰, bit 0 is x³¹.

/// x³² modulo the polynomial, reflected.
pub(super) const POLYNOMIAL: u32 = 0xedb8_8320;

/// The polynomial 1.
pub(super) const ONE: u32 = 1 << 31;

/// The order of x: the polynomial is primitive, so x to this power is 1.
const ORDER: u64 = 0xffff_ffff;

/// Returns `a * x`.
const fn times_x(a: u32) -> u32 {
    a >> 1 ^ POLYNOMIAL & (a & 1).wrapping_neg()
}

/// Returns `a * b`.
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

/// Returns x to the power `n`.
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

/// Returns x to the power `-n`.
pub(super) const fn x_to_minus(n: u64) -> u32 {
    x_to(ORDER - n % ORDER)
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
        }

        #[test]
        fn powers_add(m in 0u64..1 << 40, n in 0u64..1 << 40) {
            prop_assert_eq!(multiply(x_to(m), x_to(n)), x_to(m + n));
            prop_assert_eq!(multiply(x_to(n), x_to_minus(n)), ONE);
        }
    }
}
