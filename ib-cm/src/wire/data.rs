//! [`PrivateData`]: bytes carried by a message from one consumer to the other.

use core::fmt;

use super::field::Field;

/// The private data of a message: exactly `N` bytes, where zeros follow the consumer's bytes.
/// Messages do not say how many bytes are the consumer's, so consumers encode the length in the
/// data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const N: usize>([u8; N]);

impl<const N: usize> PrivateData<N> {
    /// The length of this private data, in bytes.
    pub const LEN: usize = N;

    /// Returns private data starting with `bytes`, padded with zeros.
    ///
    /// # Errors
    /// [`TooLong`] if `bytes` is longer than `N`.
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        let mut data = [0; N];
        data.get_mut(..bytes.len()).ok_or(TooLong { len: bytes.len(), max: N })?.copy_from_slice(bytes);
        Ok(Self(data))
    }

    /// Returns all `N` bytes, including the padding.
    pub const fn bytes(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> AsRef<[u8]> for PrivateData<N> {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> From<[u8; N]> for PrivateData<N> {
    fn from(bytes: [u8; N]) -> Self {
        Self(bytes)
    }
}

impl<const N: usize> fmt::Debug for PrivateData<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.len() - self.0.iter().rev().take_while(|byte| **byte == 0).count();
        for byte in &self.0[..used] {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "[{used} of {N} bytes]")
    }
}

impl<const N: usize> Field for PrivateData<N> {
    fn get(bytes: &[u8], first: usize, width: usize) -> Self {
        Self(Field::get(bytes, first, width))
    }

    fn put(self, bytes: &mut [u8], first: usize, width: usize) {
        self.0.put(bytes, first, width);
    }
}

/// The error for private data that is too long for its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TooLong {
    /// The length of the data, in bytes.
    pub len: usize,
    /// The maximum length that fits the message, in bytes.
    pub max: usize,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of private data exceed the {} bytes of the message", self.len, self.max)
    }
}

impl core::error::Error for TooLong {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_is_filled_with_zeros() {
        let data = PrivateData::<4>::new(&[1, 2]).unwrap();
        assert_eq!(data.bytes(), &[1, 2, 0, 0]);
        assert_eq!(format!("{data:?}"), "0102[2 of 4 bytes]");
    }

    #[test]
    fn private_data_that_is_too_long_is_refused() {
        let error = PrivateData::<4>::new(&[0; 5]).unwrap_err();
        assert_eq!(error.to_string(), "5 bytes of private data exceed the 4 bytes of the message");
    }
}
