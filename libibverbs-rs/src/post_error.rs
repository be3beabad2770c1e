//! [`PostBufError`]: posting failed, and returns the memory.

use core::fmt;

use verbs_core::types::PostReason;
use verbs_core::{Cause, Errno, Error};

/// The error of posting memory: why it was not accepted, and the memory.
///
/// It converts into [`Error`] and into [`std::io::Error`], so that `?` works in functions that
/// return these; the memory is released then.
pub struct PostBufError<M> {
    /// The memory. `None` after [`PostReason::Doorbell`]: the request is in the queue all the same,
    /// and its completion returns the memory.
    pub returned: Option<M>,
    /// The reason.
    pub reason: PostBufReason,
}

/// The reason for which memory was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostBufReason {
    /// The queue rejects the work request.
    Post(PostReason),
    /// The range lies outside the memory.
    OutOfRange {
        /// Where it starts.
        start: usize,
        /// Where it ends.
        end: usize,
        /// The memory's length in bytes.
        len: usize,
    },
    /// The range is longer than the 4 GiB - 1 that a scatter/gather element can name.
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// The memory is registered in another protection domain than the queue pair's.
    Foreign,
    /// The device would write the memory, which is read-only.
    ReadOnly,
    /// The table holds memory of more requests than the queue does: completions were polled and not
    /// reclaimed.
    Unclaimed,
    /// A `wr_id` with the top bit set is one of this library's own.
    ReservedWrId {
        /// It.
        wr_id: u64,
    },
}

impl PostBufReason {
    /// Returns the errno that C's verbs return for it.
    pub const fn errno(self) -> Errno {
        match self {
            Self::Post(reason) => reason.errno(),
            Self::Unclaimed => Errno::NOMEM,
            _ => Errno::INVAL,
        }
    }
}

impl fmt::Display for PostBufReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Post(reason) => reason.fmt(f),
            Self::OutOfRange { start, end, len } => write!(f, "the range {start}..{end} lies outside the {len} bytes"),
            Self::TooLong { len } => write!(f, "{len} bytes are more than a scatter/gather element can name"),
            Self::Foreign => f.write_str("the memory is registered in another protection domain than the queue pair's"),
            Self::ReadOnly => f.write_str("the operation writes local memory, but this memory is read-only"),
            Self::Unclaimed => f.write_str(
                "every slot for memory is taken, some by requests that have completed: call reclaim for each completion",
            ),
            Self::ReservedWrId { wr_id } => {
                write!(f, "wr_id {wr_id:#x} has its top bit set: such numbers are this library's own")
            }
        }
    }
}

impl std::error::Error for PostBufReason {}

impl From<PostReason> for PostBufReason {
    fn from(reason: PostReason) -> Self {
        Self::Post(reason)
    }
}

impl From<PostBufReason> for Error {
    fn from(reason: PostBufReason) -> Self {
        match reason {
            PostBufReason::Post(reason) => reason.into(),
            other => Self::new("post", "", other.errno())
                .because(Cause::Other { reason: other.to_string().into() }),
        }
    }
}

impl From<PostBufReason> for std::io::Error {
    fn from(reason: PostBufReason) -> Self {
        Error::from(reason).into()
    }
}

impl<M> fmt::Display for PostBufError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

/// As `Display`: programs print it when `main` returns it.
impl<M> fmt::Debug for PostBufError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.reason, f)
    }
}

impl<M> std::error::Error for PostBufError<M> {}

impl<M> From<PostBufError<M>> for Error {
    fn from(error: PostBufError<M>) -> Self {
        error.reason.into()
    }
}

impl<M> From<PostBufError<M>> for std::io::Error {
    fn from(error: PostBufError<M>) -> Self {
        error.reason.into()
    }
}
