//! Page faults on queue pairs and their resolution.
//!
//! ```text
//!   access to a page that is not present ──► event with a token ──► the driver brings the pages
//!     │                                                             (a UMR of the key's list)
//!     │ the half of the queue pair waits                                      │
//!     └───────── the access is repeated ◄────────── PAGE_FAULT_RESUME ◄───────┘
//! ```
//!
//! | access | event | meanwhile |
//! |---|---|---|
//! | payload of a send | work request, requester | the send queue pauses |
//! | result of a read or an atomic | work request, requester | as above; sent again later |
//! | a receive | work request, responder or shared queue | the peer gets "receiver not ready" |
//! | a peer's write, atomic or read | RDMA | as above |
//! | a read response in progress | RDMA | the response stops |
//!
//! If the driver resumes a fault with an error, the repeated access fails.
//!
//! Invariant: each half of a queue pair has at most one pending fault, and the number of faults on
//! destroyed queue pairs is limited.
//!
//! # References
//! Linux `drivers/infiniband/hw/mlx5/odp.c`; Lesokhin et al., "Page Fault Support for Network
//! Controllers", ASPLOS 2017; Fukuoka et al., "Pitfalls of InfiniBand with On-Demand Paging", 2021

use roce::engine::{Qpn, Stall};

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::{Core, Function};
use crate::layout::eqe::{rdma_page_fault, wqe_page_fault};
use crate::refusal::{Refusal, Status};
use crate::state::eq::EventType;
use crate::state::paging::{Half, PageFault, RDMA, REQUESTER, SHARED_QUEUE, WRITE};

/// The subtypes of a page fault event: caused by a work request, or by a peer's access.
const OF_WQE: u8 = 0;
const OF_RDMA: u8 = 1;

impl<B: Bus> Core<B> {
    /// Reports a page fault to the driver if a page was absent and the queue pair may wait for it.
    /// Returns whether the access will be repeated later.
    pub(crate) fn page_fault(&mut self, qpn: u32, stall: Stall) -> bool {
        let absent = self.mkeys.take_absent();
        let half = Half::from_stall(&stall);
        if self.paging.lost.remove(&(qpn, half)) == Some(stall) || !absent {
            return false;
        }
        // Drivers look for the faulting work request in a queue. Matching list entries and the
        // device's own reads are in no queue.
        if matches!(stall, Stall::Receive { wr_id, .. } | Stall::Send { wr_id, .. }
            | Stall::Response { wr_id, .. } if wr_id >= crate::qp::matching::TAGGED)
        {
            return false;
        }
        let Some(service) = self.qps.get(&qpn).map(|qp| qp.service) else { return false };
        // If no event queue accepts this event, the driver would never resume the fault.
        let reported = self.eqs.values().any(|eq| eq.takes(EventType::PageFault as u8));
        if !reported || !self.caps.pages_on_demand(service, &stall) {
            return false;
        }
        if self.paging.waits(qpn, half) {
            return true;
        }
        let token = self.paging.token();
        let mut data = [0; 28];
        let (sub_type, kind, wq) = match stall {
            Stall::Send { wr_id, done } => (OF_WQE, REQUESTER, of_wqe(&mut data, qpn, wr_id, done, 0)),
            Stall::Response { wr_id, done } => {
                (OF_WQE, REQUESTER | WRITE, of_wqe(&mut data, qpn, wr_id, done, 0))
            }
            Stall::Receive { wr_id, srq, done, packet } => match srq {
                None => (OF_WQE, WRITE, of_wqe(&mut data, qpn, wr_id, done, packet)),
                Some(srq) => (OF_WQE, SHARED_QUEUE, of_wqe(&mut data, srq.0, wr_id, done, packet)),
            },
            Stall::Remote { rkey, addr, left, packet, write } => {
                of_rdma(&mut data, rkey, addr, left, packet);
                (OF_RDMA, RDMA | if write { WRITE } else { 0 }, token)
            }
            Stall::ReadResponse { rkey, addr, left } => {
                of_rdma(&mut data, rkey, addr, left, left);
                (OF_RDMA, RDMA, token)
            }
        };
        if sub_type == OF_WQE {
            wqe_page_fault::PFTYPE.set(&mut data, kind);
            wqe_page_fault::TOKEN.set(&mut data, token);
        } else {
            rdma_page_fault::PFTYPE.set(&mut data, kind);
            rdma_page_fault::TOKEN.set(&mut data, token);
        }
        self.paging.pending.insert(token, PageFault { kind, wq, qpn, stall, orphan: false });
        self.event(EventType::PageFault, sub_type, &data);
        true
    }
}

/// Fills in the event for a fault caused by a work request. Returns the queue number, which
/// identifies the fault together with its token.
fn of_wqe(data: &mut [u8; 28], wq: u32, wr_id: u64, done: u32, packet: u32) -> u32 {
    wqe_page_fault::BYTES_COMMITTED.set(data, done);
    wqe_page_fault::WQE_INDEX.set(data, wr_id as u16);
    wqe_page_fault::PACKET_LENGTH.set(data, packet);
    wqe_page_fault::WQ.set(data, wq);
    wq
}

/// Fills in the event for a fault caused by a peer's access.
fn of_rdma(data: &mut [u8; 28], rkey: u32, addr: u64, left: u32, packet: u32) {
    rdma_page_fault::R_KEY.set(data, rkey);
    rdma_page_fault::PACKET_LENGTH.set(data, packet.min(u16::MAX.into()));
    rdma_page_fault::RDMA_OP_LEN.set(data, left);
    rdma_page_fault::RDMA_VA.set(data, addr);
}

impl<B: Bus> Function<B> {
    /// Ends a page fault on the driver's request. The access is repeated; if `error` is set, it
    /// then fails.
    pub(crate) fn resume_page_fault(
        &mut self,
        token: u32,
        kind: u32,
        wq: u32,
        error: bool,
    ) -> Result<(), Refusal> {
        let wrong = |what: String| Refusal::broken(Status::BadParam, Rule::PageFaultResume, what);
        let paging = &mut self.core.paging;
        let Some(fault) = paging.pending.get(&token).copied() else {
            return Err(wrong(format!("token {token:#x}, which no fault has")));
        };
        if (fault.kind, fault.wq) != (kind, wq) {
            let PageFault { kind: its_kind, wq: its_wq, .. } = fault;
            let what = format!(
                "token {token:#x}: type {kind} of queue {wq:#x}, the fault has type {its_kind} of {its_wq:#x}"
            );
            return Err(wrong(what));
        }
        paging.pending.remove(&token);
        if fault.orphan {
            return Ok(());
        }
        if error {
            paging.lost.insert((fault.qpn, Half::from_stall(&fault.stall)), fault.stall);
        }
        let now = self.core.now;
        self.engine.resume(Qpn(fault.qpn), &fault.stall, now, &mut self.core);
        self.settle();
        Ok(())
    }
}
