//! [`CurrentRecv`]: the receive for the message in progress.

use alloc::boxed::Box;

use crate::engine::queue::{MAX_SRQ_SGE, Srq};
use crate::engine::scatter::SgeError;
use crate::engine::table::Table;
use crate::engine::types::{CqId, Pd, Sge, SrqId};

/// The maximum length of a message, in bytes (IBTA 9.7.4.1).
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

/// The receive for the message in progress, if the message has consumed one.
#[derive(Debug)]
pub(crate) struct CurrentRecv {
    pub(crate) taken: Option<TakenRecv>,
    /// A copy of the elements of a receive taken from a shared queue.
    pub(crate) sges: Option<Box<[Sge; MAX_SRQ_SGE as usize]>>,
}

/// A receive consumed by a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenRecv {
    pub(crate) wr_id: u64,
    /// The protection domain that the keys of the receive's elements must belong to.
    pub(crate) pd: Pd,
    pub(crate) cq: CqId,
    /// The number of elements copied, if the receive came from a shared queue.
    pub(crate) copied: Option<usize>,
    /// The shared queue that the receive came from.
    pub(crate) srq: Option<SrqId>,
    /// Whether [`Srq::taken`] includes this receive.
    pub(crate) is_counted: bool,
    pub(crate) length: u64,
    /// The number of message bytes received.
    pub(crate) received: u64,
    /// The number of bytes to skip at the beginning of the message.
    pub(crate) header: usize,
}

impl TakenRecv {
    /// Returns the number of bytes received after `len` more bytes.
    ///
    /// # Errors
    /// [`SgeError::Length`] if the bytes exceed the receive or the maximum message length.
    #[inline]
    pub(crate) fn end(&self, len: usize) -> Result<u64, SgeError> {
        let end = self.received + len as u64;
        if end > self.length.min(MAX_MESSAGE) { Err(SgeError::Length) } else { Ok(end) }
    }
}

impl CurrentRecv {
    pub(crate) fn new(shared: bool) -> Self {
        Self { taken: None, sges: shared.then(|| Box::new([Sge::default(); MAX_SRQ_SGE as usize])) }
    }

    /// Releases and returns the receive, if any.
    #[inline]
    pub(crate) fn release(&mut self, srqs: &mut Table<Srq>) -> Option<TakenRecv> {
        let taken = self.taken.take()?;
        if let Some(srq) = taken.srq.filter(|_| taken.is_counted).and_then(|srq| srqs.get_mut(srq.0)) {
            srq.taken -= 1;
        }
        Some(taken)
    }

    /// Returns whether the receive came from shared queue `srq`.
    pub(crate) fn is_from(&self, srq: SrqId) -> bool {
        self.taken.is_some_and(|taken| taken.srq == Some(srq))
    }

    /// Returns whether the message has taken a receive.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// Returns whether the message has taken a receive from a shared queue.
    pub(crate) fn is_shared(&self) -> bool {
        self.taken.is_some_and(|taken| taken.copied.is_some())
    }

    /// Returns the number of message bytes received.
    #[inline]
    pub(crate) fn received(&self) -> u64 {
        self.taken.map_or(0, |taken| taken.received)
    }

    /// Returns the number of bytes to skip at the beginning of the message.
    #[inline]
    pub(crate) fn header(&self) -> usize {
        self.taken.map_or(0, |taken| taken.header)
    }

    /// Returns the capacity of the receive in bytes.
    #[inline]
    pub(crate) fn length(&self) -> u64 {
        self.taken.map_or(0, |taken| taken.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests [`TakenRecv::end`] alone, because sending 2 GiB would take too long. No other code
    /// limits the length of a received message.
    #[test]
    fn a_message_of_2_to_the_31_bytes_is_the_longest_that_a_receive_holds() {
        let taken = |received| TakenRecv {
            wr_id: 0,
            pd: Pd(0),
            cq: CqId(0),
            copied: None,
            srq: None,
            is_counted: false,
            length: 1 << 32,
            received,
            header: 0,
        };
        assert_eq!(taken(MAX_MESSAGE - 256).end(256).ok(), Some(1 << 31));
        assert!(taken(MAX_MESSAGE - 256).end(257).is_err());
        assert!(taken(MAX_MESSAGE).end(1).is_err());
        assert_eq!(TakenRecv { length: 300, ..taken(0) }.end(300).ok(), Some(300));
        assert!(TakenRecv { length: 300, ..taken(0) }.end(301).is_err());
    }
}
