//! The queue pair: a kernel object over a buffer in this process with both queues.
//!
//! | transition to | send queue | receive queue | completions in the queue |
//! |---|---|---|---|
//! | RESET | closed, emptied | closed, emptied | skipped |
//! | INIT, RTR | closed | open | |
//! | RTS, SQD, ERR | open | open | |
//!
//! | file | contents |
//! |---|---|
//! | `mod` | the queue pair: state, attributes and destruction |
//! | `create` | its creation |
//! | `shapes` | queue sizes |
//! | `scatter_to_cqe` | whether data comes with completions |
//!
//! # Safety
//! The device uses the buffer, the doorbell records and the register from the command that creates
//! the queue pair until the command that destroys it ([`QueueResources`]).
//!
//! # References
//! `ibv_create_qp(3)`, `ibv_modify_qp(3)`; rdma-core `providers/mlx5/verbs.c`; Linux
//! `drivers/infiniband/hw/mlx5/qp.c`
#![allow(unsafe_code)]

mod create;
mod scatter_to_cqe;
mod shapes;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use uverbs_abi::mlx5_abi::{Mlx5IbModifyQp, Mlx5IbModifyQpResp};
use verbs_core::channel::Uhw;
use verbs_core::kernel::Groups;
use verbs_core::provider::{Destroy, EventsRead, QpOps};
use verbs_core::types::{Ece, Gid, QpAttr, QpAttrMask, QpCap, QpInitInfo, QpState, QpType, RateLimit};
use verbs_core::{Cause, Errno, Error, Result, cmd};
use zerocopy::IntoBytes;

pub use self::scatter_to_cqe::ScatterToCqe;
use self::shapes::Shapes;
use crate::device::Device;
use crate::direct::{QpDirect, QueueDirect, RawQpDirect, RegisterDirect};
use crate::memory;
use crate::queue::cq::{Lists, Queues, Receives, SharedCq};
use crate::queue::record::{Kind, SrqRecord};
use crate::queue::resources::QueueResources;
use crate::queue::rq::Rq;
use crate::queue::sq::Sq;
use crate::wqe::BLOCK;

/// The vendor id in ECE options.
const VENDOR_ID: u32 = 0x15b3;

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    device: Arc<Device>,
    handle: u32,
    qp_num: u32,
    qp_type: QpType,
    cap: QpCap,
    shapes: Shapes,
    /// The device's numbers for the parts of a raw packet queue pair.
    raw: RawQpDirect,
    state: QpState,
    send_cq: Option<Arc<SharedCq>>,
    recv_cq: Option<Arc<SharedCq>>,
    /// The receives in the queue pair's shared receive queue, if it has one.
    srq: Option<Arc<SrqRecord>>,
    /// The location of the queue pair's request lists, if completions may contain data.
    lists: Option<Arc<Lists>>,
    groups: Groups,
    /// The ECE options for the next transitions; `get_ece` holds the device's current options.
    set_ece: u32,
    get_ece: u32,
    resources: Arc<QueueResources>,
}

impl Qp {
    /// Describes the queue pair for direct access: see [`direct`](crate::direct).
    pub fn direct(&self) -> QpDirect {
        let memory = self.resources.memory().region();
        let start = memory.pointer(0, 0);
        let (send_at, shapes) = (self.shapes.send_at(), &self.shapes);
        QpDirect {
            records: self.resources.records().direct(),
            sq: shapes.send.map_or(QueueDirect::none(start), |shape| QueueDirect {
                buf: memory.pointer(send_at, shapes.send_len()),
                entries: shape.blocks,
                stride: BLOCK as u32,
            }),
            rq: shapes.recv.map_or(QueueDirect::none(start), |shape| shape.direct(start)),
            register: self.resources.register().map(RegisterDirect::new),
            raw: self.raw,
        }
    }

    /// Returns the open device the queue pair belongs to.
    pub(crate) const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Calls `each` for each completion queue, with the queue pair's user index and the queues that
    /// complete there.
    fn for_each_cq(&self, sq: &Sq, rq: &Rq, each: impl Fn(&SharedCq, u32, Queues)) {
        let Some(user_index) = self.resources.user_index() else { return };
        let send = Some(Arc::clone(sq.requests()));
        let recv = Some(match &self.srq {
            Some(requests) => Receives::Shared(Arc::clone(requests)),
            None => Receives::Own(Arc::clone(rq.requests())),
        });
        let has_frames = self.qp_type == QpType::RAW_PACKET && self.device.has_ip_csum();
        let recv_kind = if has_frames { Kind::FRAME } else { Kind::RECEIVE };
        let lists = self.lists.clone();
        match (&self.send_cq, &self.recv_cq) {
            (Some(one), Some(other)) if Arc::ptr_eq(one, other) => {
                each(one, user_index, Queues { send, recv, recv_kind, lists });
            }
            (send_cq, recv_cq) => {
                if let Some(cq) = send_cq {
                    each(cq, user_index, Queues { send, lists: lists.clone(), ..Queues::default() });
                }
                if let Some(cq) = recv_cq {
                    each(cq, user_index, Queues { send: None, recv, recv_kind, lists });
                }
            }
        }
    }

    /// Notifies the completion queues that the queue pair has ended, and marks its resources as no
    /// longer used by the device.
    fn end(&self) {
        if let Some(user_index) = self.resources.user_index() {
            if let Some(cq) = &self.send_cq {
                cq.end(user_index, None);
            }
            if let Some(cq) = &self.recv_cq
                && !self.send_cq.as_ref().is_some_and(|send_cq| Arc::ptr_eq(send_cq, cq))
            {
                cq.end(user_index, None);
            }
        }
        self.resources.end();
    }

    /// Returns the kernel's state of the queue pair. The kernel may have moved the queue pair to
    /// ERR.
    fn real_state(&self) -> QpState {
        let queried = cmd::qp::query_qp(self.device.kernel.uverbs(), self.handle, QpAttrMask::STATE);
        queried.map_or(self.state, |(attr, _)| attr.qp_state)
    }

    /// Sends the modify command, with ECE options if the program has set any.
    fn command(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let uverbs = self.device.kernel.uverbs();
        if self.set_ece == 0 {
            return cmd::qp::modify_qp(uverbs, self.handle, attr, mask);
        }
        let request = Mlx5IbModifyQp { ece_options: self.set_ece, ..Default::default() };
        let mut reply = Mlx5IbModifyQpResp::default();
        // SAFETY: the request consists of numbers.
        let uhw = unsafe { Uhw::reply(reply.as_mut_bytes()).with_input(request.as_bytes()) };
        cmd::qp::modify_qp_ex(uverbs, self.handle, attr, mask, uhw)?;
        (self.set_ece, self.get_ece) = (0, reply.ece_options);
        Ok(())
    }
}

impl QpOps for Qp {
    type Sq = Sq;
    type Rq = Rq;

    fn handle(&self) -> u32 {
        self.handle
    }

    fn qp_num(&self) -> u32 {
        self.qp_num
    }

    fn qp_type(&self) -> QpType {
        self.qp_type
    }

    fn cap(&self) -> QpCap {
        self.cap
    }

    fn state(&self) -> QpState {
        self.state
    }

    fn modify(&mut self, sq: &mut Sq, rq: &mut Rq, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        if !Arc::ptr_eq(sq.resources(), &self.resources) || !Arc::ptr_eq(rq.resources(), &self.resources) {
            let cause = Cause::Foreign { what: "queue of a queue pair" };
            return Err(self.device.error("modify_qp", Errno::INVAL).because(cause));
        }
        if mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::RESET {
            // The queues get new request records once the device has confirmed the command.
            let bytes = self.shapes.records_len();
            memory::check_records(bytes).map_err(|errno| self.device.short("modify_qp", errno, bytes))?;
        }
        if let Err(error) = self.command(attr, mask) {
            let at = self.real_state();
            let error = self.device.kernel.explain_modify_qp(error, self.qp_type, at, attr, mask);
            if error.cause == Cause::Unknown && error.errno == Errno::INVAL && attr.qp_state == QpState::SQD {
                let reason = "Linux's mlx5 has no way to the state SQD".into();
                return Err(error.because(Cause::Other { reason }));
            }
            return Err(error);
        }
        if mask.contains(QpAttrMask::STATE) {
            self.state = attr.qp_state;
            sq.moved_to(attr.qp_state);
            rq.moved_to(attr.qp_state);
            if attr.qp_state == QpState::RESET {
                self.for_each_cq(sq, rq, |cq, user_index, queues| cq.end(user_index, Some(queues)));
            }
        }
        Ok(())
    }

    /// Returns whether RESET ends requests. The device stops the queue pair before it confirms the
    /// command. For a raw packet queue pair, which consists of two device queues, this is not
    /// guaranteed.
    fn reset_ends_requests(&self) -> bool {
        self.qp_type != QpType::RAW_PACKET
    }

    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)> {
        let (attr, info) = cmd::qp::query_qp(self.device.kernel.uverbs(), self.handle, mask)?;
        // The driver knows the size of the send queue, but not how it is divided into requests.
        let cap = QpCap {
            max_send_wr: self.cap.max_send_wr,
            max_send_sge: self.cap.max_send_sge,
            max_inline_data: self.cap.max_inline_data,
            ..info.cap
        };
        Ok((QpAttr { cap, ..attr }, QpInitInfo { cap, ..info }))
    }

    fn attach_mcast(&mut self, gid: &Gid, lid: u16) -> Result<()> {
        self.groups.attach(self.device.kernel.uverbs(), self.handle, self.qp_type, gid, lid)
    }

    fn detach_mcast(&mut self, gid: &Gid, lid: u16) -> Result<()> {
        self.groups.detach(self.device.kernel.uverbs(), self.handle, self.qp_type, gid, lid)
    }

    fn modify_rate_limit(&mut self, limit: &RateLimit) -> Result<()> {
        use uverbs_abi::mlx5_abi::Mlx5IbBurstInfo;
        let request = Mlx5IbModifyQp {
            burst_info: Mlx5IbBurstInfo {
                max_burst_sz: limit.max_burst_sz,
                typical_pkt_sz: limit.typical_pkt_sz,
                reserved: 0,
            },
            ..Default::default()
        };
        // SAFETY: the request consists of numbers.
        let uhw = unsafe { Uhw::none().with_input(request.as_bytes()) };
        let attr = QpAttr { rate_limit: limit.rate_limit, ..QpAttr::default() };
        cmd::qp::modify_qp_ex(self.device.kernel.uverbs(), self.handle, &attr, QpAttrMask::RATE_LIMIT, uhw)
            .map_err(|error| {
                let error = Error { verb: "modify_qp_rate_limit", ..error };
                if self.qp_type == QpType::RAW_PACKET || error.errno != Errno::INVAL {
                    return error;
                }
                let needs = "only raw packet queue pairs have a rate limit";
                error.because(Cause::CallOfType { qp_type: self.qp_type, needs })
            })
    }

    fn set_ece(&mut self, ece: &Ece) -> Result<()> {
        const VERB: &str = "set_ece";
        if ece.vendor_id != VENDOR_ID {
            let asked = ece.vendor_id.into();
            let (min, max) = (VENDOR_ID.into(), VENDOR_ID.into());
            let cause = Cause::Limit { name: "vendor_id", asked, min, max };
            return Err(self.device.error(VERB, Errno::INVAL).because(cause));
        }
        if !self.device.has_ece {
            let reason =
                "the device's firmware has no enhanced connection establishment; connect without options";
            let cause = Cause::Other { reason: reason.into() };
            return Err(self.device.error(VERB, Errno::OPNOTSUPP).because(cause));
        }
        // These values hold until the next transition reports which options the device accepts.
        (self.set_ece, self.get_ece) = (ece.options, 0);
        Ok(())
    }

    fn query_ece(&self) -> Result<Ece> {
        Ok(Ece { vendor_id: VENDOR_ID, options: self.get_ece })
    }
}

impl Destroy for Qp {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.destroy_counting_events().map(drop)
    }

    fn destroy_counting_events(mut self) -> Result<EventsRead, (Self, Error)> {
        let uverbs = self.device.kernel.uverbs();
        self.groups.detach_all(uverbs, self.handle);
        self.resources.set_orphan(true);
        match cmd::qp::destroy_qp(uverbs, self.handle) {
            Ok(events) => {
                self.end();
                Ok(events)
            }
            Err(error) => {
                self.resources.set_orphan(false);
                Err((self, error))
            }
        }
    }
}
