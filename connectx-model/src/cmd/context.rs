//! Context checks common to all queue types: buffer pages, doorbell records, references to other
//! objects.

use crate::bus::Bus;
use crate::checks::{bad, missing};
use crate::function::Core;
use crate::layout::Field;
use crate::pages::Pages;
use crate::refusal::{Refusal, Status};
use crate::state::qp::Qp;
use crate::state::srq::SrqKind;

/// Limit on the memory that this process uses for all queues of a function, in bytes.
pub(crate) const MAX_QUEUES: u64 = 2 << 30;
/// Approximate memory that the transport engine uses per work request, besides scatter/gather
/// elements and inline data, in bytes.
const WORK_REQUEST: u64 = 256;

/// Returns the size of a page list, in bytes.
pub(crate) fn list_bytes(pages: &Pages) -> u64 {
    pages.list().len() as u64 * 8
}

/// Returns the memory that this process uses for a queue pair, in bytes. The transport engine
/// reserves the maximum number of elements for each request.
pub(crate) fn qp_bytes(qp: &Qp) -> u64 {
    let cap = qp.cap();
    let send = WORK_REQUEST + u64::from(cap.max_send_sge) * 16 + u64::from(cap.max_inline_data);
    let recv = WORK_REQUEST + u64::from(cap.max_recv_sge) * 16;
    u64::from(cap.max_send_wr) * send + u64::from(cap.max_recv_wr) * recv + list_bytes(&qp.pages)
}

/// Returns the memory that this process uses for a shared receive queue, in bytes.
pub(crate) fn srq_bytes(log_size: u32, stride: u64, pages: &Pages) -> u64 {
    ((WORK_REQUEST + stride) << log_size) + list_bytes(pages)
}

impl<B: Bus> Core<B> {
    /// Rejects a log2 value that exceeds the capability.
    pub(crate) fn at_most(&self, what: &str, log: u32, capability: Field) -> Result<(), Refusal> {
        let most = self.caps.general(capability);
        if log > most { Err(bad(format!("2^{log} {what}, the maximum is 2^{most}"))) } else { Ok(()) }
    }

    /// Rejects a queue that needs `bytes` of this process's memory if that exceeds [`MAX_QUEUES`].
    /// Guest memory does not bound `bytes`, because a guest may list a page repeatedly.
    pub(crate) fn room_for(&self, bytes: u64) -> Result<(), Refusal> {
        let cqs = self.cqs.values().map(|cq| list_bytes(&cq.pages));
        let qps = self.qps.values().map(qp_bytes);
        let srqs = self.srqs.values().map(|srq| srq_bytes(srq.log_size, srq.stride, &srq.pages));
        let taken: u64 = cqs.chain(qps).chain(srqs).sum();
        if taken.saturating_add(bytes) > MAX_QUEUES {
            Err(Refusal::fair(Status::NoResources))
        } else {
            Ok(())
        }
    }

    /// Rejects a reference to an unallocated protection domain.
    pub(crate) fn needs_pd(&self, pd: u32) -> Result<(), Refusal> {
        if self.pds.contains(&pd) { Ok(()) } else { Err(missing(format!("protection domain {pd:#x}"))) }
    }

    /// Rejects a reference to an unallocated UAR page.
    pub(crate) fn needs_uar(&self, uar: u32) -> Result<(), Refusal> {
        if self.hca.uars.contains(uar) { Ok(()) } else { Err(missing(format!("UAR {uar:#x}"))) }
    }

    /// Rejects a reference to a missing completion queue.
    pub(crate) fn needs_cq(&self, cqn: u32) -> Result<(), Refusal> {
        if self.cqs.contains_key(&cqn) { Ok(()) } else { Err(missing(format!("completion queue {cqn:#x}"))) }
    }

    /// Rejects a reference to a missing shared receive queue, or to one of the wrong kind. `xrc`
    /// requires an XRC queue; otherwise any other kind is accepted.
    pub(crate) fn needs_srq(&self, srqn: u32, xrc: bool) -> Result<(), Refusal> {
        match self.srqs.get(&srqn) {
            Some(srq) if (srq.kind == SrqKind::Xrc) == xrc => Ok(()),
            Some(srq) => Err(missing(format!("shared receive queue {srqn:#x} is {:?}", srq.kind))),
            None => Err(missing(format!("shared receive queue {srqn:#x}"))),
        }
    }

    /// Adds one to the number of queues that use a completion queue.
    pub(crate) fn use_cq(&mut self, cqn: u32) {
        if let Some(cq) = self.cqs.get_mut(&cqn) {
            cq.users += 1;
        }
    }

    /// Subtracts one from the number of queues that use a completion queue.
    pub(crate) fn leave_cq(&mut self, cqn: u32) {
        if let Some(cq) = self.cqs.get_mut(&cqn) {
            cq.users = cq.users.saturating_sub(1);
        }
    }
}
