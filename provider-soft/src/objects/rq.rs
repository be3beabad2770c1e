//! [`Rq`]: the receive queue of a queue pair.
//!
//! # Safety
//! The caller that posts a request guarantees that the request's memory is valid. Nothing here
//! accesses this memory.
#![allow(unsafe_code)]

use std::sync::Arc;

use roce::engine::Sge;
use verbs_core::Errno;
use verbs_core::checks::RecvChecks;
use verbs_core::provider::RecvQueue;
use verbs_core::types::{PostReason, QpCap, QpState, RecvWr};

use crate::device::Device;
use crate::device::wqe::RecvWqe;
use crate::sync::ring::Producer;

/// The receive queue of a queue pair.
#[derive(Debug)]
pub struct Rq {
    pub(crate) ring: Producer<RecvWqe>,
    device: Arc<Device>,
    slot: Slot,
    checks: RecvChecks,
}

/// The slot to announce after receives are posted: of the queue pair, or of the shared receive
/// queue.
#[derive(Clone, Copy, Debug)]
enum Slot {
    Qp(usize),
    Srq(usize),
}

impl Rq {
    pub(crate) fn new(device: &Arc<Device>, ring: Producer<RecvWqe>, slot: usize, cap: &QpCap) -> Self {
        Self { ring, device: Arc::clone(device), slot: Slot::Qp(slot), checks: RecvChecks::new(cap) }
    }

    /// Returns a placeholder for a queue pair without a receive queue. The placeholder rejects
    /// every request.
    pub(crate) fn none(device: &Arc<Device>, ring: Producer<RecvWqe>, slot: usize) -> Self {
        Self { ring, device: Arc::clone(device), slot: Slot::Qp(slot), checks: RecvChecks::of_shared() }
    }

    /// Returns the posting side of a shared receive queue.
    pub(crate) fn of_srq(device: &Arc<Device>, ring: Producer<RecvWqe>, slot: usize, max_sge: u32) -> Self {
        let checks = RecvChecks::of_srq(max_sge);
        Self { ring, device: Arc::clone(device), slot: Slot::Srq(slot), checks }
    }

    /// Returns whether this is the posting side of the shared receive queue in a slot of `device`.
    pub(crate) fn is_of_srq(&self, device: &Arc<Device>, slot: usize) -> bool {
        Arc::ptr_eq(&self.device, device) && matches!(self.slot, Slot::Srq(its) if its == slot)
    }

    /// Updates the checks for a new state of the queue pair.
    pub(crate) fn moved_to(&mut self, state: QpState) {
        self.checks.moved_to(state);
        if state == QpState::RESET {
            self.ring.resync();
        }
    }
}

impl RecvQueue for Rq {
    #[inline]
    unsafe fn post_one(&mut self, wr: &RecvWr<'_>) -> Result<(), PostReason> {
        if self.device.is_forked() {
            return Err(PostReason::Doorbell(Errno::NODEV));
        }
        self.checks.check(wr)?;
        if !self.ring.has_room() {
            return Err(PostReason::QueueFull);
        }
        let wqe = RecvWqe { wr_id: wr.wr_id, num_sge: wr.sge.len() as u32 };
        self.ring.put(wqe, wr.sge.iter().map(sge));
        Ok(())
    }

    #[inline]
    fn ring(&mut self) {
        // Requests may have been added to the ring before the fork.
        if self.device.is_forked() {
            return;
        }
        self.ring.publish();
        match self.slot {
            Slot::Qp(slot) => self.device.posted(slot),
            Slot::Srq(slot) => self.device.posted_srq(slot),
        }
    }
}

/// Converts a scatter/gather element to the engine's form.
#[inline]
pub(crate) fn sge(sge: &verbs_core::types::Sge) -> Sge {
    Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey }
}
