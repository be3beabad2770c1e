//! [`Receiver`]: a provider's receive queue and its table of memory in flight. Queue pairs, their
//! receive halves and shared receive queues each have a receiver.
//!
//! # Safety
//! The unsafe code here posts safely, justified in [`crate::in_flight`].

#![allow(unsafe_code)]

use core::ops::RangeBounds;

use verbs_core::provider::RecvQueue;
use verbs_core::types::RecvWr;

use crate::in_flight::{Poster, Use};
use crate::memory::PostMemory;
use crate::memory::post_error::PostBufError;

/// A receive queue and the memory of its requests in flight.
pub(crate) struct Receiver<Q> {
    pub(crate) queue: Q,
    pub(crate) poster: Poster,
}

impl<Q: RecvQueue> Receiver<Q> {
    #[inline]
    pub(crate) fn post<M: PostMemory>(
        &mut self,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        let queue = &mut self.queue;
        self.poster.post(memory, range, Use::RECV, |wr_id, sge| {
            // SAFETY: the table holds the memory that the element covers until the request has
            // ended.
            unsafe { queue.post_recv(&[RecvWr { wr_id, sge }]) }
        })
    }

    pub(crate) fn post_all<M: PostMemory>(&mut self, pieces: Vec<M>) -> Result<u64, PostBufError<Vec<M>>> {
        let queue = &mut self.queue;
        self.poster.post_all(pieces, Use::RECV, |wr_id, sge| {
            // SAFETY: the table holds the memory that the elements cover until the request has
            // ended.
            unsafe { queue.post_recv(&[RecvWr { wr_id, sge }]) }
        })
    }
}
