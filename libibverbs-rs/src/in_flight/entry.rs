//! [`Entry`]: a request's memory in a table.

use crate::memory::Memory;

/// The memory that a request holds.
#[derive(Debug)]
pub(super) enum Held {
    One(Memory),
    Many(Vec<Memory>),
}

/// The content of a slot: a request's memory and the `wr_id` of the preceding unsignalled request.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) held: Held,
    pub(super) before: Option<u64>,
}

/// An iterator over the pieces of a request's memory.
#[derive(Debug)]
pub(super) enum Pieces {
    One(Option<Memory>),
    Many(std::vec::IntoIter<Memory>),
}

impl Iterator for Pieces {
    type Item = Memory;

    fn next(&mut self) -> Option<Memory> {
        match self {
            Self::One(memory) => memory.take(),
            Self::Many(pieces) => pieces.next(),
        }
    }
}

impl Held {
    /// Returns an iterator over the pieces, in the order of the request's list.
    pub(super) fn into_iter(self) -> impl Iterator<Item = Memory> + use<> {
        Pieces::from(self)
    }
}

impl From<Held> for Pieces {
    fn from(held: Held) -> Self {
        match held {
            Held::One(memory) => Self::One(Some(memory)),
            Held::Many(pieces) => Self::Many(pieces.into_iter()),
        }
    }
}
