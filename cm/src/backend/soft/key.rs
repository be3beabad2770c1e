//! [`Key`], [`Token`]: identifiers of ids and of the files that the manager's thread waits for.

use nix::sys::epoll::{EpollEvent, EpollFlags};

/// The manager's identifier of an id. Keys are never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(pub(super) u64);

/// A file that the manager's thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Wake,
    Watch,
    Gsi(u64),
    Lookup(Key),
    Name(u64),
    Peer(u64),
}

impl Token {
    const fn encode(self) -> u64 {
        match self {
            Self::Wake => 0,
            Self::Watch => 1 << 3,
            Self::Gsi(number) => number << 3 | 1,
            Self::Lookup(Key(number)) => number << 3 | 2,
            Self::Name(number) => number << 3 | 3,
            Self::Peer(number) => number << 3 | 4,
        }
    }

    pub(super) const fn decode(bits: u64) -> Self {
        let number = bits >> 3;
        match bits & 7 {
            1 => Self::Gsi(number),
            2 => Self::Lookup(Key(number)),
            3 => Self::Name(number),
            4 => Self::Peer(number),
            _ if number == 1 => Self::Watch,
            _ => Self::Wake,
        }
    }

    /// Returns the epoll registration of the file.
    pub(super) fn event(self) -> EpollEvent {
        EpollEvent::new(EpollFlags::EPOLLIN, self.encode())
    }
}
