//! The queue pair: a kernel object over a buffer of this process, which has both queues.
//!
//! | moved to | send queue | receive queue | completions in the queue |
//! |---|---|---|---|
//! | RESET | closed, emptied | closed, emptied | skipped |
//! | INIT, RTR | closed | open | |
//! | RTS, SQD, ERR | open | open | |
//!
//! # Safety
//! The buffer, the doorbell records and the register are lent to the device from the command that
//! creates the queue pair to the one that destroys it ([`Life`]).
//!
//! # References
//! `ibv_create_qp(3)`, `ibv_modify_qp(3)`; rdma-core `providers/mlx5/verbs.c`; Linux
//! `drivers/infiniband/hw/mlx5/qp.c`
#![allow(unsafe_code)]

use std::sync::Arc;

use uverbs_abi::mlx5_abi::{
    MLX5_QP_FLAG_UAR_PAGE_INDEX, Mlx5IbCreateQp, Mlx5IbCreateQpResp, Mlx5IbModifyQp, Mlx5IbModifyQpResp,
};
use verbs_core::channel::Uhw;
use verbs_core::cmd::qp::{QpHandles, QpInfo};
use verbs_core::kernel::Groups;
use verbs_core::provider::{
    Destroy, DeviceOps as _, EventsRead, PdOps, QpOps, QpParents, QpParts, SrqOps, XrcdOps,
};
use verbs_core::types::{
    Ece, Gid, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpInitInfo, QpState, QpType, RateLimit,
};
use verbs_core::{Cause, Errno, Error, Result, cmd};
use zerocopy::IntoBytes;

use crate::cq::{CqHandle, Queues, Receives, Shared};
use crate::dbrec::Slot;
use crate::device::Device;
use crate::life::Life;
use crate::memory::QueueMemory;
use crate::record::SrqRecord;
use crate::sq::{self, Parts};
use crate::user_index::UserIndex;
use crate::wqe::{BLOCK, UNIT};
use crate::{Mlx5, Rq, Sq, rq, sizes};

/// The number of the vendor in the options of connections.
const VENDOR_ID: u32 = 0x15b3;

/// The request for the options of connections that the device offers.
const ECE_VERSION_1: u32 = 1 << 28;

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    device: Arc<Device>,
    handle: u32,
    qp_num: u32,
    qp_type: QpType,
    cap: QpCap,
    state: QpState,
    /// `None` for an XRC target, which has no completions of its own.
    user_index: Option<UserIndex>,
    send_cq: Option<Arc<Shared>>,
    recv_cq: Option<Arc<Shared>>,
    /// The receives of its shared receive queue.
    srq: Option<Arc<SrqRecord>>,
    groups: Groups,
    /// Options for the next transitions, and those that the device has.
    set_ece: u32,
    get_ece: u32,
    life: Arc<Life>,
}

/// The shapes of both queues.
struct Shapes {
    send: Option<sq::Shape>,
    recv: Option<rq::Shape>,
}

impl Shapes {
    fn of(device: &Device, attr: &QpInitAttr, has_recv: bool) -> Result<Self> {
        let refused = |cause| {
            let errno = if matches!(cause, Cause::QpType { .. }) { Errno::OPNOTSUPP } else { Errno::INVAL };
            device.error("create_qp", errno).because(cause)
        };
        let has_send = attr.qp_type != QpType::XRC_RECV;
        let send_cap = if has_send { attr.cap } else { QpCap { max_send_wr: 0, ..attr.cap } };
        let send = sizes::send(attr.qp_type, &send_cap, &device.limits).map_err(refused)?;
        let recv = if has_recv { sizes::recv(&attr.cap, &device.limits).map_err(refused)? } else { None };
        Ok(Self { send, recv })
    }

    /// The size of the receive queue, in bytes.
    fn recv_len(&self) -> usize {
        self.recv.map_or(0, |shape| shape.entries as usize * shape.units as usize * UNIT)
    }

    /// The size of the send queue, in bytes.
    fn send_len(&self) -> usize {
        self.send.map_or(0, |shape| shape.blocks as usize * BLOCK)
    }

    /// The capacity that the program sees.
    fn cap(&self, asked: &QpCap) -> QpCap {
        let send = self.send.map(|shape| shape.cap).unwrap_or_default();
        let recv = self.recv.map(|shape| shape.cap).unwrap_or_default();
        QpCap {
            max_send_wr: send.max_send_wr,
            max_send_sge: if self.send.is_some() { send.max_send_sge } else { asked.max_send_sge },
            max_inline_data: send.max_inline_data,
            max_recv_wr: recv.max_recv_wr,
            max_recv_sge: recv.max_recv_sge,
        }
    }
}

impl Qp {
    pub(crate) fn create(
        device: &Arc<Device>,
        parents: &QpParents<'_, Mlx5>,
        attr: &QpInitAttr,
    ) -> Result<QpParts<Mlx5>> {
        const VERB: &str = "create_qp";
        let error = |errno| device.error(VERB, errno);
        for cq in [parents.send_cq, parents.recv_cq].into_iter().flatten() {
            if !Arc::ptr_eq(&cq.device, device) {
                return Err(error(Errno::INVAL).because(Cause::Foreign { what: "completion queue" }));
            }
        }
        if parents.srq.is_some_and(|srq| !Arc::ptr_eq(srq.device(), device)) {
            return Err(error(Errno::INVAL).because(Cause::Foreign { what: "shared receive queue" }));
        }
        let is_target = attr.qp_type == QpType::XRC_RECV;
        let has_recv = parents.srq.is_none() && !matches!(attr.qp_type, QpType::XRC_SEND | QpType::XRC_RECV);
        let shapes = Shapes::of(device, attr, has_recv)?;
        let memory = QueueMemory::new(shapes.recv_len() + shapes.send_len()).map_err(error)?;
        let records = device.records.take().map_err(error)?;
        let register = device.registers.take(&device.kernel);
        let user_index = if is_target { None } else { Some(device.user_index(VERB)?) };
        let request = Mlx5IbCreateQp {
            buf_addr: if shapes.recv_len() + shapes.send_len() > 0 { memory.address() } else { 0 },
            db_addr: records.address(),
            sq_wqe_count: shapes.send.map_or(0, |shape| shape.blocks),
            rq_wqe_count: shapes.recv.map_or(0, |shape| shape.entries),
            rq_wqe_shift: shapes.recv.map_or(0, |shape| (shape.units * UNIT as u32).trailing_zeros()),
            flags: MLX5_QP_FLAG_UAR_PAGE_INDEX,
            uidx: user_index.as_ref().map_or(0, UserIndex::number),
            bfreg_index: register.page_id(),
            ece_options: if device.has_ece { ECE_VERSION_1 } else { 0 },
            ..Default::default()
        };
        let handles = QpHandles {
            pd: parents.pd.map(PdOps::handle),
            send_cq: parents.send_cq.map(|cq| cq.handle),
            recv_cq: parents.recv_cq.map(|cq| cq.handle),
            srq: parents.srq.map(SrqOps::handle),
            xrcd: parents.xrcd.map(XrcdOps::handle),
        };
        let mut reply = Mlx5IbCreateQpResp::default();
        let event_fd = device.kernel.async_fd()?;
        // SAFETY: the addresses are of the queues' memory and of their records, which `Life` lends
        // to the device until the queue pair is destroyed.
        let uhw = unsafe { Uhw::reply(reply.as_mut_bytes()).with_input(request.as_bytes()) };
        let info = cmd::qp::create_qp(device.kernel.uverbs(), &handles, attr, Some(event_fd), uhw)
            .map_err(|error| device.kernel.explain_create_qp(error, attr, || None));
        let info = match info {
            Ok(info) => info,
            Err(error) => {
                if let Some(user_index) = user_index {
                    user_index.give_back();
                }
                return Err(error);
            }
        };
        let life = Arc::new(Life::new(memory, records, Some(register)));
        let (sq, rq) = queues(device, attr, &shapes, &info, parents.srq.is_some() || !has_recv, &life);
        let qp = Self {
            device: Arc::clone(device),
            handle: info.handle,
            qp_num: info.qp_num,
            qp_type: attr.qp_type,
            cap: shapes.cap(&attr.cap),
            state: QpState::RESET,
            user_index,
            send_cq: parents.send_cq.map(shared),
            recv_cq: parents.recv_cq.map(shared),
            srq: parents.srq.map(|srq| Arc::clone(srq.requests())),
            groups: Groups::default(),
            set_ece: 0,
            get_ece: reply.ece_options,
            life,
        };
        qp.tell(&sq, &rq, Shared::begin);
        Ok(QpParts { qp, sq, rq })
    }

    /// Opens an XRC target by its number.
    pub(crate) fn open(
        device: &Arc<Device>,
        xrcd_handle: u32,
        qp_num: u32,
        user_handle: u64,
    ) -> Result<QpParts<Mlx5>> {
        const VERB: &str = "open_qp";
        let error = |errno| device.error(VERB, errno);
        let attr =
            QpInitAttr { user_handle, qp_type: QpType::XRC_RECV, cap: QpCap::default(), sq_sig_all: false };
        let shapes = Shapes { send: None, recv: None };
        let memory = QueueMemory::new(BLOCK).map_err(error)?;
        let records = device.records.take().map_err(error)?;
        // The driver takes nothing for it.
        let info = cmd::qp::open_qp(device.kernel.uverbs(), xrcd_handle, qp_num, user_handle, Uhw::none())?;
        let register = device.registers.take(&device.kernel);
        let life = Arc::new(Life::new(memory, records, Some(register)));
        let (sq, rq) = queues(device, &attr, &shapes, &info, true, &life);
        let qp = Self {
            device: Arc::clone(device),
            handle: info.handle,
            qp_num: info.qp_num,
            qp_type: QpType::XRC_RECV,
            cap: QpCap::default(),
            state: QpState::RESET,
            user_index: None,
            send_cq: None,
            recv_cq: None,
            srq: None,
            groups: Groups::default(),
            set_ece: 0,
            get_ece: 0,
            life,
        };
        Ok(QpParts { qp, sq, rq })
    }

    /// Tells its completion queues about its queues.
    fn tell(&self, sq: &Sq, rq: &Rq, tell: impl Fn(&Shared, u32, Queues)) {
        let Some(user_index) = &self.user_index else { return };
        let send = Some(Arc::clone(sq.requests()));
        let recv = Some(match &self.srq {
            Some(requests) => Receives::Shared(Arc::clone(requests)),
            None => Receives::Own(Arc::clone(rq.requests())),
        });
        match (&self.send_cq, &self.recv_cq) {
            (Some(one), Some(other)) if Arc::ptr_eq(one, other) => {
                tell(one, user_index.number(), Queues { send, recv });
            }
            (send_cq, recv_cq) => {
                if let Some(cq) = send_cq {
                    tell(cq, user_index.number(), Queues { send, recv: None });
                }
                if let Some(cq) = recv_cq {
                    tell(cq, user_index.number(), Queues { send: None, recv });
                }
            }
        }
    }

    /// Ends its life for its completion queues.
    fn end(&mut self) {
        if let Some(user_index) = self.user_index.take() {
            if let Some(cq) = &self.send_cq {
                cq.end(user_index.number(), None);
            }
            if let Some(cq) = &self.recv_cq
                && !self.send_cq.as_ref().is_some_and(|send_cq| Arc::ptr_eq(send_cq, cq))
            {
                cq.end(user_index.number(), None);
            }
            user_index.give_back();
        }
        self.life.end();
    }

    /// Returns the queue pair's state in the kernel, which may have moved it to ERR.
    fn real_state(&self) -> QpState {
        let queried = cmd::qp::query_qp(self.device.kernel.uverbs(), self.handle, QpAttrMask::STATE);
        queried.map_or(self.state, |(attr, _)| attr.qp_state)
    }

    /// Sends the command, with the options of the connection if the program has set some.
    fn command(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let uverbs = self.device.kernel.uverbs();
        if self.set_ece == 0 {
            return cmd::qp::modify_qp(uverbs, self.handle, attr, mask);
        }
        let request = Mlx5IbModifyQp { ece_options: self.set_ece, ..Default::default() };
        let mut reply = Mlx5IbModifyQpResp::default();
        // SAFETY: the request is numbers.
        let uhw = unsafe { Uhw::reply(reply.as_mut_bytes()).with_input(request.as_bytes()) };
        cmd::qp::modify_qp_ex(uverbs, self.handle, attr, mask, uhw)?;
        (self.set_ece, self.get_ece) = (0, reply.ece_options);
        Ok(())
    }
}

fn shared(cq: &CqHandle) -> Arc<Shared> {
    Arc::clone(&cq.shared)
}

/// Makes the queues of a new queue pair.
fn queues(
    device: &Device,
    attr: &QpInitAttr,
    shapes: &Shapes,
    info: &QpInfo,
    is_shared: bool,
    life: &Arc<Life>,
) -> (Sq, Rq) {
    let none = sq::Shape { blocks: 1, blocks_of_request: 1, max_post: 0, cap: QpCap::default() };
    let register = life.register().expect("a queue pair has a register");
    // SAFETY: each record, and the register, is made once, and `life` lives as long as the queues.
    let (send_record, recv_record, bell) =
        unsafe { (life.records().record(Slot::SECOND), life.records().record(Slot::FIRST), register.bell()) };
    let sq = Sq::new(Parts {
        qp_num: info.qp_num,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
        shape: shapes.send.unwrap_or(none),
        offset: if shapes.send.is_some() { shapes.recv_len() } else { 0 },
        record: send_record,
        bell,
        prefers_blue_flame: device.registers.prefers_blue_flame(),
        has_windows: matches!(attr.qp_type, QpType::RC | QpType::UC) && device.has_windows(),
        life: Arc::clone(life),
    });
    let rq = match shapes.recv {
        Some(shape) => Rq::new(shape, recv_record, Arc::clone(life)),
        None if is_shared => Rq::of_shared(recv_record, Arc::clone(life)),
        None => Rq::empty(recv_record, Arc::clone(life)),
    };
    (sq, rq)
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
        if !Arc::ptr_eq(sq.life(), &self.life) || !Arc::ptr_eq(rq.life(), &self.life) {
            let cause = Cause::Foreign { what: "queue of a queue pair" };
            return Err(self.device.error("modify_qp", Errno::INVAL).because(cause));
        }
        if let Err(error) = self.command(attr, mask) {
            let at = self.real_state();
            return Err(self.device.kernel.explain_modify_qp(error, self.qp_type, at, attr, mask));
        }
        if mask.contains(QpAttrMask::STATE) {
            self.state = attr.qp_state;
            sq.moved_to(attr.qp_state);
            rq.moved_to(attr.qp_state);
            if attr.qp_state == QpState::RESET {
                self.tell(sq, rq, |cq, user_index, queues| cq.end(user_index, Some(queues)));
            }
        }
        Ok(())
    }

    /// The device stops the queue pair before it confirms the command.
    fn reset_ends_requests(&self) -> bool {
        true
    }

    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)> {
        let (attr, info) = cmd::qp::query_qp(self.device.kernel.uverbs(), self.handle, mask)?;
        // The driver knows the memory of the send queue, not how requests share it.
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
        // SAFETY: the request is numbers.
        let uhw = unsafe { Uhw::none().with_input(request.as_bytes()) };
        let attr = QpAttr { rate_limit: limit.rate_limit, ..QpAttr::default() };
        cmd::qp::modify_qp_ex(self.device.kernel.uverbs(), self.handle, &attr, QpAttrMask::RATE_LIMIT, uhw)
    }

    fn set_ece(&mut self, ece: &Ece) -> Result<()> {
        const VERB: &str = "set_ece";
        if !self.device.has_ece {
            return Err(self.device.error(VERB, Errno::OPNOTSUPP));
        }
        if ece.vendor_id != VENDOR_ID {
            let asked = ece.vendor_id.into();
            let (min, max) = (VENDOR_ID.into(), VENDOR_ID.into());
            let cause = Cause::Limit { name: "vendor_id", asked, min, max };
            return Err(self.device.error(VERB, Errno::INVAL).because(cause));
        }
        self.set_ece = ece.options;
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
        match cmd::qp::destroy_qp(uverbs, self.handle) {
            Ok(events) => {
                self.end();
                Ok(events)
            }
            Err(error) => Err((self, error)),
        }
    }
}
