//! Ancillary data ("control messages") as bytes, in the kernel's layout.
//!
//! ```text
//!   usize    i32     i32    len - 16 bytes   to a multiple of usize
//!  +-------+-------+------+----------------+-----+
//!  | len   | level | type | data           | pad | ...
//!  +-------+-------+------+----------------+-----+
//! ```
//!
//! # References
//! `cmsg(3)`; include/linux/socket.h, `struct cmsghdr`

/// The ancillary data sent or received with one datagram.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct Control {
    bytes: [u8; Control::MAX],
    len: usize,
}

const HEADER: usize = size_of::<usize>() + 8;

impl Control {
    /// The length of four messages with one number each, in bytes.
    pub(crate) const MAX: usize = 4 * (HEADER + 8);

    /// Ancillary data without messages.
    pub(crate) const EMPTY: Self = Self { bytes: [0; Self::MAX], len: 0 };

    /// Appends a message of at most 8 bytes. There is space for four messages.
    pub(crate) fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let Some(room) = self.bytes.get_mut(self.len..self.len + HEADER + 8) else { return };
        let word = size_of::<usize>();
        room[..word].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        room[word..word + 4].copy_from_slice(&level.to_ne_bytes());
        room[word + 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        room[HEADER..HEADER + data.len()].copy_from_slice(data);
        self.len += HEADER + data.len().next_multiple_of(word);
    }

    /// Calls `each` with the level, type and data of every complete message.
    #[inline]
    pub(crate) fn for_each(&self, mut each: impl FnMut(i32, i32, &[u8])) {
        let mut rest = &self.bytes[..self.len];
        while let Some((len, after)) = rest.split_first_chunk() {
            let len = usize::from_ne_bytes(*len);
            let (Some((level, after)), true) = (after.split_first_chunk(), len <= rest.len()) else { return };
            let Some((kind, _)) = after.split_first_chunk() else { return };
            let Some(data) = rest.get(HEADER..len) else { return };
            each(i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind), data);
            rest = rest.get(len.next_multiple_of(size_of::<usize>())..).unwrap_or_default();
        }
    }

    /// Returns the bytes of all messages.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns all bytes for the kernel to write into. Call [`set_len`](Self::set_len) afterwards.
    pub(crate) fn as_mut_bytes(&mut self) -> &mut [u8; Self::MAX] {
        &mut self.bytes
    }

    /// Sets the number of bytes written by the kernel.
    pub(crate) fn set_len(&mut self, len: usize) {
        self.len = len.min(Self::MAX);
    }
}

/// Returns the number in a message, whose data has 1, 2 or 4 bytes, depending on the message type.
#[inline]
pub(crate) fn number(data: &[u8]) -> Option<u32> {
    match *data {
        [a] => Some(u32::from(a)),
        [a, b] => Some(u32::from(u16::from_ne_bytes([a, b]))),
        [a, b, c, d, ..] => Some(u32::from_ne_bytes([a, b, c, d])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(control: &Control) -> Vec<(i32, i32, Option<u32>)> {
        let mut all = Vec::new();
        control.for_each(|level, kind, data| all.push((level, kind, number(data))));
        all
    }

    #[test]
    fn what_is_pushed_is_found_again() {
        let mut control = Control::EMPTY;
        control.push(17, 103, &4000u16.to_ne_bytes());
        control.push(0, 2, &64i32.to_ne_bytes());
        control.push(0, 1, &[7]);
        assert_eq!(messages(&control), [(17, 103, Some(4000)), (0, 2, Some(64)), (0, 1, Some(7))]);
    }

    #[test]
    fn lengths_that_lie_end_the_search() {
        for lie in [0usize, 1, HEADER - 1, HEADER + 9, usize::MAX, usize::MAX - 3] {
            let mut control = Control::EMPTY;
            control.push(17, 103, &[1, 2]);
            control.as_mut_bytes()[..size_of::<usize>()].copy_from_slice(&lie.to_ne_bytes());
            assert_eq!(messages(&control), [], "length {lie}");
        }
    }
}
