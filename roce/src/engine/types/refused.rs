//! [`Refused`] and [`PostRefused`]: what a call was not carried out for.

use core::fmt;

use super::State;

/// Why a control call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No number, or no memory, is left for one more object.
    NoRoom,
    /// The source of numbers failed ([`Random`](crate::engine::Random)).
    NoNumbers,
    /// There is no such object, or no more.
    NoSuchObject,
    /// Something uses it.
    Busy,
    /// The transition does not exist.
    Transition {
        /// From.
        from: State,
        /// To.
        to: State,
    },
    /// An argument makes no sense.
    Invalid(&'static str),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoom => f.write_str("no number or no memory is left for one more object"),
            Self::NoNumbers => f.write_str("the source of random numbers failed"),
            Self::NoSuchObject => f.write_str("there is no such object"),
            Self::Busy => f.write_str("something uses it"),
            Self::Transition { from, to } => write!(f, "there is no transition from {from:?} to {to:?}"),
            Self::Invalid(what) => f.write_str(what),
        }
    }
}

impl core::error::Error for Refused {}

/// Why a work request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum PostRefused {
    NoSuchQueue,
    QueueFull,
    TooManySge,
    InlineTooLong,
    MessageTooLong,
    UnsupportedOp,
    AtomicLength,
    AtomicMisaligned,
    InvalidState,
}

impl fmt::Display for PostRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchQueue => "there is no such queue",
            Self::QueueFull => "the queue is full",
            Self::TooManySge => "more scatter/gather elements than the queue was made for",
            Self::InlineTooLong => "more inline bytes than the queue was made for",
            Self::MessageTooLong => "the message is too long",
            Self::UnsupportedOp => "the transport service does not have this operation",
            Self::AtomicLength => "atomics work on 8 bytes",
            Self::AtomicMisaligned => "atomics work on aligned addresses",
            Self::InvalidState => "the queue pair's state does not allow it",
        })
    }
}

impl core::error::Error for PostRefused {}
