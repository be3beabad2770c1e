//! [`Environment`]: everything the two halves of a queue pair use besides the queue pair itself.

use super::memory::{Memory, Sink};
use super::memory_regions::{KeyRefused, MemoryRegions};
use super::queue::Srq;
use super::response_queue::ResponseQueue;
use super::scheduler::Scheduler;
use super::table::Table;
use super::types::{Completion, Config, CqId, Event, Pd, Qpn, Time};

/// The engine's other state, the caller's sink and the current time, borrowed for one call on one
/// queue pair.
pub(crate) struct Environment<'a, M: Memory, S: Sink> {
    pub(crate) config: &'a Config,
    pub(crate) memory: &'a mut M,
    pub(crate) memory_regions: &'a mut MemoryRegions<M::Region>,
    pub(crate) srqs: &'a mut Table<Srq>,
    pub(crate) scheduler: &'a mut Scheduler,
    pub(crate) response_queue: &'a mut ResponseQueue,
    pub(crate) sink: &'a mut S,
    pub(crate) now: Time,
    /// Whether a completion queue was full. If so, the queue pair fails at the end of the call.
    pub(crate) cq_overrun: bool,
}

impl<M: Memory, S: Sink> Environment<'_, M, S> {
    /// Invalidates a memory key on behalf of a work request or a peer of this queue pair, and
    /// notifies the [`Memory`].
    pub(crate) fn invalidate(&mut self, pd: Pd, qpn: Qpn, rkey: u32) -> Result<(), KeyRefused> {
        self.memory_regions.invalidate(pd, qpn, rkey)?;
        if let Some(region) = self.memory_regions.memory_at(rkey >> 8) {
            self.memory.invalidated(region);
        }
        Ok(())
    }

    /// Completes a work request. A full completion queue raises an error event for that queue and
    /// is fatal to the queue pair.
    ///
    /// The queue pair may be in any intermediate state, so it enters the error state only at the
    /// end of the call: see [`cq_overrun`](Self::cq_overrun).
    #[inline]
    pub(crate) fn complete(&mut self, cq: CqId, completion: &Completion) {
        if self.sink.complete(cq, completion).is_err() {
            self.overrun(cq);
        }
    }

    /// Completes a work request as [`complete`](Self::complete) does. The completion also carries
    /// `data`, the bytes not written to the work request's elements.
    pub(crate) fn complete_with(&mut self, cq: CqId, completion: &Completion, data: &[u8]) {
        if self.sink.complete_with_data(cq, completion, data).is_err() {
            self.overrun(cq);
        }
    }

    fn overrun(&mut self, cq: CqId) {
        self.sink.event(Event::CqError(cq));
        self.cq_overrun = true;
    }
}
