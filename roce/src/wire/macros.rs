//! The macro that defines headers of fixed length. The files of these headers then contain only the
//! fields.

/// Declares `LEN` and a `Packet<T>` with constructors, for a header of `$len` bytes.
macro_rules! header {
    ($len:literal, $name:literal) => {
        #[doc = concat!("Bytes of ", $name, ".")]
        pub const LEN: usize = $len;

        #[doc = concat!($name, " as bytes: one accessor per field.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Packet<T> {
            buffer: T,
        }

        impl<T: AsRef<[u8]>> Packet<T> {
            /// Wraps a buffer whose first [`LEN`] bytes are the header. The remaining bytes are
            /// neither read nor written.
            ///
            /// # Errors
            /// [`Malformed::Truncated`](crate::wire::Malformed::Truncated) if the buffer is shorter
            /// than [`LEN`].
            #[inline(always)]
            pub fn new_checked(buffer: T) -> Result<Self, crate::wire::Malformed> {
                if buffer.as_ref().len() < LEN {
                    return Err(crate::wire::Malformed::Truncated);
                }
                Ok(Self { buffer })
            }

            /// Returns the buffer.
            #[inline(always)]
            pub fn into_inner(self) -> T {
                self.buffer
            }

            #[inline(always)]
            fn get<const N: usize>(&self, at: usize) -> [u8; N] {
                crate::wire::get(self.buffer.as_ref(), at)
            }
        }

        impl<T: AsMut<[u8]>> Packet<T> {
            #[inline(always)]
            fn put<const N: usize>(&mut self, at: usize, value: [u8; N]) {
                crate::wire::put(self.buffer.as_mut(), at, value);
            }
        }

        impl From<[u8; LEN]> for Packet<[u8; LEN]> {
            #[inline(always)]
            fn from(buffer: [u8; LEN]) -> Self {
                Self { buffer }
            }
        }

        impl<'a> From<&'a [u8; LEN]> for Packet<&'a [u8]> {
            #[inline(always)]
            fn from(buffer: &'a [u8; LEN]) -> Self {
                Self { buffer }
            }
        }

        impl<'a> From<&'a mut [u8; LEN]> for Packet<&'a mut [u8]> {
            #[inline(always)]
            fn from(buffer: &'a mut [u8; LEN]) -> Self {
                Self { buffer }
            }
        }
    };
}
