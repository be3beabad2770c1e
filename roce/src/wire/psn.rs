//! Packet sequence numbers: 24-bit numbers that wrap and are compared on a circle.
//!
//! # References
//! IBTA 9.7 (new, duplicate and invalid PSNs).

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

use super::MASK_24;

/// A packet sequence number. It has no `Ord`, because a circle has no order; compare two PSNs by
/// their [distance](Psn::distance_from).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The number of PSNs: 2²⁴.
    pub const COUNT: u32 = 1 << 24;
    /// Half of all PSNs: the maximum that may be outstanding if old and new PSNs are to be
    /// distinguished.
    pub const HALF: u32 = 1 << 23;

    /// Returns the PSN in the low 24 bits of `value`.
    #[inline(always)]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// Returns the PSN as an integer below 2²⁴.
    #[inline(always)]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns the next PSN.
    #[inline(always)]
    pub const fn next(self) -> Self {
        Self::new(self.0 + 1)
    }

    /// Returns the previous PSN.
    #[inline(always)]
    pub const fn prev(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// Returns the distance from `other` to this PSN: -2²³ ≤ distance < 2²³. It is negative if this
    /// PSN lies behind `other`.
    #[inline(always)]
    pub const fn distance_from(self, other: Self) -> i32 {
        // Shifts the 24 bits to the top to make their sign the sign of the 32 bits.
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// Returns the number of steps forward from `start` to this PSN, below 2²⁴.
    #[inline(always)]
    pub const fn offset_from(self, start: Self) -> u32 {
        self.0.wrapping_sub(start.0) & MASK_24
    }

    /// Returns whether the PSN is one of the `len` PSNs beginning with `start`.
    #[inline(always)]
    pub const fn in_window(self, start: Self, len: u32) -> bool {
        self.offset_from(start) < len
    }

    /// Returns whether the PSN lies in the half circle behind `other`.
    #[inline(always)]
    pub const fn is_before(self, other: Self) -> bool {
        self.distance_from(other) < 0
    }

    /// Returns whether the PSN differs from `other` and lies in the half circle ahead of it.
    #[inline(always)]
    pub const fn is_after(self, other: Self) -> bool {
        self.distance_from(other) > 0
    }
}

impl Add<u32> for Psn {
    type Output = Self;
    #[inline(always)]
    fn add(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }
}

impl AddAssign<u32> for Psn {
    #[inline(always)]
    fn add_assign(&mut self, packets: u32) {
        *self = *self + packets;
    }
}

impl Sub<u32> for Psn {
    type Output = Self;
    #[inline(always)]
    fn sub(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_sub(packets))
    }
}

impl From<Psn> for u32 {
    #[inline(always)]
    fn from(psn: Psn) -> Self {
        psn.0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn psn() -> impl Strategy<Value = Psn> {
        // Half of the values lie near the wrap, where mistakes are likely.
        prop_oneof![any::<u32>().prop_map(Psn::new), (-4i32..4).prop_map(|n| Psn::new(n as u32))]
    }

    #[test]
    fn it_wraps_at_24_bits() {
        assert_eq!(Psn::new(0xff_ffff).next(), Psn::new(0));
        assert_eq!(Psn::new(0).prev(), Psn::new(0xff_ffff));
        assert_eq!(Psn::new(0x1234_5678).value(), 0x34_5678);
        assert_eq!(Psn::new(0xff_fffe) + 5, Psn::new(3));
        assert_eq!(Psn::new(1).distance_from(Psn::new(0xff_ffff)), 2);
        assert_eq!(Psn::new(0x80_0000).distance_from(Psn::new(0)), -(1 << 23));
        assert_eq!(Psn::new(0x7f_ffff).distance_from(Psn::new(0)), (1 << 23) - 1);
    }

    proptest! {
        #[test]
        fn adding_a_distance_arrives(a in psn(), b in psn()) {
            let d = a.distance_from(b);
            prop_assert!((-(1 << 23)..1 << 23).contains(&d));
            prop_assert_eq!(b + d as u32, a);
            prop_assert_eq!(b + a.offset_from(b), a);
        }

        #[test]
        fn subtraction_undoes_addition(a in psn(), n: u32) {
            prop_assert_eq!(a + n - n, a);
            prop_assert_eq!((a + n).offset_from(a), n & MASK_24);
        }

        #[test]
        fn before_and_after_exclude_each_other(a in psn(), b in psn()) {
            prop_assert!(!(a.is_before(b) && a.is_after(b)));
            prop_assert_eq!(a == b, !a.is_before(b) && !a.is_after(b));
            if a.distance_from(b) != -(1 << 23) {
                prop_assert_eq!(a.is_before(b), b.is_after(a));
            }
        }

        #[test]
        fn a_window_holds_its_members_and_no_others(start in psn(), len in 0u32..Psn::HALF, n in 0u32..Psn::COUNT) {
            prop_assert_eq!((start + n).in_window(start, len), n < len);
        }
    }
}
