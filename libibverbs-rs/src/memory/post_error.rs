//! [`PostBufError`]: the error of a failed post. The error returns the memory.

use core::fmt;

use verbs_core::types::PostReason;
use verbs_core::{Cause, Errno, Error};

/// The error of a failed post: the reason and the memory.
///
/// Converts into [`Error`] and [`std::io::Error`], so `?` works in functions that return these. The
/// conversion releases the memory.
pub struct PostBufError<M> {
    /// The memory. `None` after [`PostReason::Doorbell`], because the request is in the queue
    /// nevertheless and its completion returns the memory.
    pub returned: Option<M>,
    /// The reason why the post failed.
    pub reason: PostBufReason,
}

/// The reason why memory was not posted.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostBufReason {
    /// The queue rejected the work request, or its doorbell failed.
    Post(PostReason),
    /// The range lies outside the memory.
    OutOfRange {
        /// The start of the range, as an offset in bytes.
        start: usize,
        /// The end of the range, as an offset in bytes.
        end: usize,
        /// The length of the memory in bytes.
        len: usize,
    },
    /// The range is longer than a scatter/gather element's maximum, 4 GiB - 1.
    TooLong {
        /// The length of the range in bytes.
        len: usize,
    },
    /// The memory is not registered in the protection domain of the queue pair.
    Foreign,
    /// The operation writes local memory, but the memory is read-only.
    ReadOnly,
    /// The memory is exposed, so its bytes may change while they are copied inline: post it without
    /// `INLINE`, or copy it with [`Exposed::read_at`](crate::Exposed::read_at).
    InlineExposed,
    /// A window was posted instead of memory: bind the window with
    /// [`Qp::post_bind`](crate::Qp::post_bind).
    NotMemory,
    /// The memory was not exposed to windows: call
    /// [`Pd::expose_to_windows`](crate::Pd::expose_to_windows).
    NotForWindows,
    /// The range for the window is empty.
    EmptyWindow,
    /// The window has type 2 and is bound already: revoke the binding first.
    WindowBound,
    /// The window is not bound, so there is nothing to revoke.
    WindowUnbound,
    /// The window has type 2 and is bound for another queue pair: revoke the binding there.
    WindowElsewhere,
    /// The window can no longer be used, because its last request failed or ended with its queue
    /// pair: close it.
    WindowLost,
    /// The table of memory in flight is full although the queue is not: polled completions were not
    /// reclaimed.
    Unclaimed,
    /// The `wr_id` has its top bit set: such values are reserved for this library.
    ReservedWrId {
        /// The rejected `wr_id`.
        wr_id: u64,
    },
}

impl PostBufReason {
    /// Returns the errno that libibverbs returns for this reason.
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
            Self::OutOfRange { start, end, len } => {
                write!(f, "the range {start}..{end} lies outside the {len} bytes")
            }
            Self::TooLong { len } => {
                write!(f, "{len} bytes exceed the {} of a scatter/gather element", u32::MAX)
            }
            Self::Foreign => {
                f.write_str("the memory is not registered in the protection domain of the queue pair")
            }
            Self::ReadOnly => f.write_str("the operation writes local memory, but this memory is read-only"),
            Self::InlineExposed => f.write_str(
                "exposed memory is not copied inline, because its bytes may change meanwhile: post it without INLINE",
            ),
            Self::NotMemory => f.write_str("a window is no memory that can be sent: bind it with post_bind"),
            Self::NotForWindows => {
                f.write_str("windows are bound only to memory that was exposed with expose_to_windows")
            }
            Self::EmptyWindow => f.write_str("a window is bound to at least one byte"),
            Self::WindowBound => f.write_str("the window is bound: revoke it before it is bound again"),
            Self::WindowUnbound => f.write_str("the window is not bound, so that there is nothing to revoke"),
            Self::WindowElsewhere => {
                f.write_str("the window is bound for another queue pair: revoke it on that one")
            }
            Self::WindowLost => f.write_str(
                "the window's last request failed or ended with its queue pair: close the window, and allocate another",
            ),
            Self::Unclaimed => f.write_str(
                "the table of memory is full, although the queue is not: call reclaim for each completion",
            ),
            Self::ReservedWrId { wr_id } => {
                write!(f, "wr_id {wr_id:#x} has its top bit set, which is reserved for this library")
            }
        }
    }
}

/// Formats like `Display`, because a `main` that returns an error prints it with `Debug`.
impl fmt::Debug for PostBufReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
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

/// Formats like `Display`, because a `main` that returns an error prints it with `Debug`.
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
