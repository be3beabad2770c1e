//! Big-endian integers (`__be16`, `__be32`, `__be64`), aligned like native integers, as in C.

use zerocopy::{FromBytes, Immutable, IntoBytes};

macro_rules! big_endian {
    ($name:ident, $native:ident, $c:literal) => {
        #[doc = concat!("A `", stringify!($native), "` stored big-endian, aligned as a `", stringify!($native), "`.")]
        ///
        #[doc = concat!("C: `", $c, "`.")]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable)]
        #[repr(transparent)]
        pub struct $name($native);

        impl $name {
            /// Converts a number in native byte order to big-endian.
            #[inline]
            #[must_use]
            pub const fn from_native(value: $native) -> Self {
                Self(value.to_be())
            }

            /// Returns the number in native byte order.
            #[inline]
            #[must_use]
            pub const fn to_native(self) -> $native {
                $native::from_be(self.0)
            }

            /// Converts from bytes in memory order, most significant first.
            #[inline]
            #[must_use]
            pub const fn from_bytes(bytes: [u8; size_of::<$native>()]) -> Self {
                Self($native::from_ne_bytes(bytes))
            }

            /// Returns the bytes in memory order, most significant first.
            #[inline]
            #[must_use]
            pub const fn to_bytes(self) -> [u8; size_of::<$native>()] {
                self.0.to_ne_bytes()
            }
        }

        impl From<$native> for $name {
            fn from(value: $native) -> Self {
                Self::from_native(value)
            }
        }

        impl From<$name> for $native {
            fn from(value: $name) -> Self {
                value.to_native()
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.to_native())
            }
        }
    };
}

big_endian!(Be16, u16, "__be16");
big_endian!(Be32, u32, "__be32");
big_endian!(Be64, u64, "__be64");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_big_endian_number_lies_most_significant_byte_first() {
        assert_eq!(Be32::from_native(0x0102_0304).to_bytes(), [1, 2, 3, 4]);
        assert_eq!(Be32::from_bytes([1, 2, 3, 4]).to_native(), 0x0102_0304);
        assert_eq!(Be16::from_native(0x0102).as_bytes(), [1, 2]);
        assert_eq!(u64::from(Be64::from(7)), 7);
    }

    #[test]
    fn alignment_is_that_of_the_native_integer() {
        assert_eq!((align_of::<Be16>(), align_of::<Be32>(), align_of::<Be64>()), (2, 4, 8));
    }
}
