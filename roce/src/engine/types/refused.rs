//! [`Refused`] and [`PostRefused`]: the reasons why calls fail.

use core::fmt;

use super::State;

/// The reason why a control call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The limit on objects of this kind has been reached.
    NoRoom,
    /// A memory allocation failed.
    NoMemory {
        /// The size of the allocation in bytes.
        bytes: u64,
    },
    /// The [source of random numbers](crate::engine::Random) failed.
    NoNumbers,
    /// The object does not exist or was destroyed.
    NoSuchObject,
    /// Another object uses this object.
    Busy,
    /// No transition leads from the current state to the requested state.
    Transition {
        /// The current state.
        from: State,
        /// The requested state.
        to: State,
    },
    /// An argument is invalid; the string states why.
    Invalid(&'static str),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoom => f.write_str("no number is left for one more object"),
            Self::NoMemory { bytes } => write!(f, "{bytes} bytes of memory are not available"),
            Self::NoNumbers => f.write_str("the source of random numbers failed"),
            Self::NoSuchObject => f.write_str("the object does not exist"),
            Self::Busy => f.write_str("another object uses it"),
            Self::Transition { from, to } => write!(f, "no transition leads from {from:?} to {to:?}"),
            Self::Invalid(what) => f.write_str(what),
        }
    }
}

impl core::error::Error for Refused {}

/// The reason why a work request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum PostRefused {
    NoSuchQueue,
    QueueFull,
    TooManySge,
    InlineTooLong,
    MessageTooLong,
    UnsupportedOp,
    AtomicLength,
    AtomicMisaligned,
    FlushKind,
    InvalidState,
}

impl fmt::Display for PostRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchQueue => "the queue does not exist",
            Self::QueueFull => "the queue is full",
            Self::TooManySge => "more scatter/gather elements than the queue was created for",
            Self::InlineTooLong => "more inline bytes than the queue was created for",
            Self::MessageTooLong => {
                "the message is longer than 2 GiB, or the datagram longer than the path MTU"
            }
            Self::UnsupportedOp => "the transport service does not have this operation",
            Self::AtomicLength => {
                "an atomic needs exactly 8 bytes of local memory; a flush and an atomic write take none"
            }
            Self::FlushKind => "a flush needs a placement type, and selects a range or a region",
            Self::AtomicMisaligned => "the remote address of an atomic must be a multiple of 8",
            Self::InvalidState => "the state of the queue pair does not allow it",
        })
    }
}

impl core::error::Error for PostRefused {}
