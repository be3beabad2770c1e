//! Macros for message formats with fields at fixed offsets. The files of these formats then list
//! only the fields.

/// Declares `Packet<T>` and `Repr` for `$len` bytes, whose fields begin at byte `$base`.
///
/// A field is `name: type = byte : bit, width;`. Byte and bit offsets are those in the
/// specification's table: bit 0 is the most significant bit of its byte.
macro_rules! layout {
    ($name:literal, $len:expr, $base:expr, {
        $( $(#[$doc:meta])* $field:ident : $ty:ty = $byte:literal : $bit:literal, $width:literal; )*
    }) => {
        #[doc = concat!($name, " as bytes: one accessor per field.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Packet<T> {
            buffer: T,
        }

        impl<T: AsRef<[u8]>> Packet<T> {
            #[doc = concat!("Wraps a buffer that begins with ", $name, ".")]
            /// Wraps a buffer after checking its length.
            ///
            /// # Errors
            /// [`Malformed::Truncated`](crate::wire::Malformed::Truncated) if the buffer is too
            /// short.
            pub fn new_checked(buffer: T) -> Result<Self, crate::wire::Malformed> {
                if buffer.as_ref().len() < $len {
                    return Err(crate::wire::Malformed::Truncated);
                }
                Ok(Self { buffer })
            }

            /// Returns the wrapped buffer.
            pub fn into_inner(self) -> T {
                self.buffer
            }

            $(
                $(#[$doc])*
                pub fn $field(&self) -> $ty {
                    crate::wire::field::Field::get(
                        self.buffer.as_ref(),
                        ($base + $byte) * 8 + $bit,
                        $width,
                    )
                }
            )*
        }

        #[doc = concat!($name, " as values.")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Repr {
            $( $(#[$doc])* pub $field: $ty, )*
        }

        impl Repr {
            /// Reads all fields from a packet.
            pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Self {
                Self { $( $field: packet.$field(), )* }
            }

            /// Writes all fields to a packet; reserved bits become 0.
            pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
                let bytes = packet.buffer.as_mut();
                if let Some(bytes) = bytes.get_mut($base..$len) {
                    bytes.fill(0);
                }
                $(
                    crate::wire::field::Field::put(
                        self.$field,
                        bytes,
                        ($base + $byte) * 8 + $bit,
                        $width,
                    );
                )*
            }
        }
    };
}

/// Declares the [`layout!`] of a message, whose fields begin after the MAD header.
macro_rules! message {
    ($name:literal, { $($fields:tt)* }) => {
        layout!($name, crate::wire::MAD_LEN, crate::wire::mad::LEN, { $($fields)* });
    };
}

/// Declares an integer type with named constants for its known values. Every value is valid.
macro_rules! number {
    (
        $(#[$doc:meta])* $name:ident($ty:ty);
        $( $(#[$value_doc:meta])* $value:ident = $number:literal, $text:literal; )*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $ty);

        impl $name {
            $( $(#[$value_doc])* pub const $value: Self = Self($number); )*
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match *self {
                    $( Self::$value => f.write_str(stringify!($value)), )*
                    Self(other) => write!(f, concat!(stringify!($name), "({})"), other),
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match *self {
                    $( Self::$value => f.write_str($text), )*
                    Self(other) => write!(f, concat!(stringify!($name), " {}, which has no known meaning"), other),
                }
            }
        }

        impl crate::wire::field::Field for $name {
            fn get(bytes: &[u8], first: usize, width: usize) -> Self {
                Self(crate::wire::field::Field::get(bytes, first, width))
            }
            fn put(self, bytes: &mut [u8], first: usize, width: usize) {
                self.0.put(bytes, first, width);
            }
        }
    };
}
