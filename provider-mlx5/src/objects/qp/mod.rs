//! The queue pair: a kernel object over a buffer of this process that contains both queues.
//!
//! | moved to | send queue | receive queue | completions in the queue |
//! |---|---|---|---|
//! | RESET | closed, emptied | closed, emptied | skipped |
//! | INIT, RTR | closed | open | |
//! | RTS, SQD, ERR | open | open | |
//!
//! # Safety
//! The buffer, the doorbell records and the register are lent to the device from the command that
//! creates the queue pair to the one that destroys it ([`QueueResources`]).
//!
//! # References
//! `ibv_create_qp(3)`, `ibv_modify_qp(3)`; rdma-core `providers/mlx5/verbs.c`; Linux
//! `drivers/infiniband/hw/mlx5/qp.c`
#![allow(unsafe_code)]

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use uverbs_abi::mlx5_abi::{
    MLX5_QP_FLAG_ALLOW_SCATTER_CQE, MLX5_QP_FLAG_SCATTER_CQE, Mlx5IbCreateQp, Mlx5IbCreateQpResp,
    Mlx5IbCreateQpRespMask, Mlx5IbCreateQpRss, Mlx5IbModifyQp, Mlx5IbModifyQpResp,
};
use verbs_core::channel::Uhw;
use verbs_core::cmd::qp::{QpExtra, QpHandles, QpInfo};
use verbs_core::kernel::{Groups, KernelRwqIndTable};
use verbs_core::provider::{
    Destroy, DeviceOps as _, EventsRead, PdOps, QpOps, QpParents, QpParts, RwqIndTableOps as _, SrqOps,
    XrcdOps,
};
use verbs_core::ring::page_size;
use verbs_core::types::{
    Ece, Gid, QpAttr, QpAttrMask, QpCap, QpCreateAttr, QpInitAttr, QpInitInfo, QpState, QpType, RateLimit,
    RxHashConf,
};
use verbs_core::{Cause, Errno, Error, Result, cmd, environment, explain};
use zerocopy::IntoBytes;

use crate::device::user_index::UserIndex;
use crate::device::{Device, Limits};
use crate::direct::{QpDirect, QueueDirect, RawQpDirect, RegisterDirect};
use crate::doorbell::dbrec::Slot;
use crate::memory::{self, QueueMemory, Resource};
use crate::objects::cq::CqHandle;
use crate::objects::mlx5::Mlx5;
use crate::objects::pd::Pd;
use crate::objects::srq::Srq;
use crate::queue::cq::{Lists, Queues, Receives, RecvLists, SendLists, SharedCq};
use crate::queue::record::{Kind, RecvRecord, SendRecord, SrqRecord};
use crate::queue::resources::QueueResources;
use crate::queue::rq::{self, Rq};
use crate::queue::sizes::{self, Room};
use crate::queue::sq::{self, Frames, L2_HEADER, Parts, Sq};
use crate::wqe::{BLOCK, UNIT};

/// The vendor's number in connection options.
const VENDOR_ID: u32 = 0x15b3;

/// The request for the connection options offered by the device.
const ECE_VERSION_1: u32 = 1 << 28;

/// The environment variable that lets data come with completions unless it is 0. It comes from
/// libmlx5, where data comes with completions even without the variable.
const SCATTER_TO_CQE: &str = "MLX5_SCATTER_TO_CQE";

/// Whether the device may put the data of short receives, and of short replies to reads and
/// atomics, into completions. Polling then copies it to the request's memory.
///
/// The device compares no key in this case. Polling does, but only has the regions registered by
/// this context. A request with another key completes with the status `LOC_PROT_ERR`, and the queue
/// pair stays unchanged. The same happens for memory out of this process's reach. The feature is
/// therefore for programs that request it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScatterToCqe {
    /// No data, unless the environment variable `MLX5_SCATTER_TO_CQE` is set to a value other than
    /// 0. With it, as in libmlx5: receives of RC and UC and reads and atomics of an RC queue pair
    ///    with all requests signalled. Not while the context has regions of memory out of this
    ///    process's reach, or is imported.
    #[default]
    Usual,
    /// No data.
    Never,
    /// Same as `Usual` with the variable, regardless of the regions, and with reads and atomics
    /// even if some requests are unsignalled.
    Always,
}

impl ScatterToCqe {
    /// Returns the flags for the command.
    fn flags(self, device: &Device) -> u32 {
        let is_on = || environment::variable_os(SCATTER_TO_CQE).is_some_and(|value| value != "0");
        match self {
            Self::Usual if !is_on() || device.is_imported || !device.regions.all_in_reach() => 0,
            Self::Usual => MLX5_QP_FLAG_SCATTER_CQE,
            Self::Never => 0,
            Self::Always => MLX5_QP_FLAG_SCATTER_CQE | MLX5_QP_FLAG_ALLOW_SCATTER_CQE,
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    device: Arc<Device>,
    handle: u32,
    qp_num: u32,
    qp_type: QpType,
    cap: QpCap,
    shapes: Shapes,
    /// The numbers of its parts in the device.
    raw: RawQpDirect,
    state: QpState,
    send_cq: Option<Arc<SharedCq>>,
    recv_cq: Option<Arc<SharedCq>>,
    /// The receives of its shared receive queue.
    srq: Option<Arc<SrqRecord>>,
    /// The lists of its requests, if data may come with completions.
    lists: Option<Arc<Lists>>,
    groups: Groups,
    /// The options for the next transitions; `get_ece` are the device's current ones.
    set_ece: u32,
    get_ece: u32,
    resources: Arc<QueueResources>,
}

/// The shapes of both queues.
#[derive(Clone, Copy, Debug)]
struct Shapes {
    send: Option<sq::Shape>,
    recv: Option<rq::Shape>,
    /// Whether the queues share no page: the driver maps the send queue of raw packets separately.
    is_split: bool,
    /// Whether entries have room for operations on keys.
    has_keys: bool,
}

impl Shapes {
    /// No queues.
    const NONE: Self = Self { send: None, recv: None, is_split: false, has_keys: false };

    fn new(
        device: &Device,
        attr: &QpInitAttr,
        max_tso_header: u32,
        room_for: Room,
        has_recv: bool,
    ) -> Result<Self> {
        let refused = |cause| {
            let errno = match cause {
                Cause::QpType { qp_type } => explain::without_type(qp_type),
                _ => Errno::INVAL,
            };
            device.error("create_qp", errno).because(cause)
        };
        let has_send = attr.qp_type != QpType::XRC_RECV;
        let send_cap = if has_send { attr.cap } else { QpCap { max_send_wr: 0, ..attr.cap } };
        let send = sizes::send(attr.qp_type, &send_cap, max_tso_header, room_for, &device.limits)
            .map_err(refused)?;
        let recv = if has_recv { sizes::recv(&attr.cap, &device.limits).map_err(refused)? } else { None };
        Ok(Self { send, recv, is_split: attr.qp_type == QpType::RAW_PACKET, has_keys: room_for.keys })
    }

    /// The size of the library's records of requests, in bytes.
    fn records_len(&self) -> usize {
        let sends = self.send.map_or(0, |shape| SendRecord::size(shape.blocks));
        sends + self.recv.map_or(0, |shape| RecvRecord::size(shape.entries))
    }

    /// The size of the receive queue, in bytes.
    fn recv_len(&self) -> usize {
        self.recv.map_or(0, |shape| shape.entries as usize * shape.units as usize * UNIT)
    }

    /// The offset of the send queue in the memory, in bytes.
    fn send_at(&self) -> usize {
        if self.is_split { self.recv_len().next_multiple_of(page_size()) } else { self.recv_len() }
    }

    /// The size of the send queue, in bytes.
    fn send_len(&self) -> usize {
        self.send.map_or(0, |shape| shape.blocks as usize * BLOCK)
    }

    /// The capacity reported to the program.
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

/// Returns the attributes without receive sizes beyond the device's, for a queue pair without its
/// own receive queue.
fn without_recv(attr: &QpInitAttr, limits: &Limits) -> QpInitAttr {
    let mut cap = attr.cap;
    if cap.max_recv_wr > limits.max_recv_wr || cap.max_recv_sge > limits.max_rq_desc_sz / UNIT as u32 {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    QpInitAttr { cap, ..*attr }
}

impl Qp {
    pub(crate) fn create(
        device: &Arc<Device>,
        parents: &QpParents<'_, Mlx5>,
        attr: &QpInitAttr,
        ex: &QpCreateAttr,
        scatter: ScatterToCqe,
    ) -> Result<QpParts<Mlx5>> {
        let verb = if *ex == QpCreateAttr::default() { "create_qp" } else { "create_qp_ex" };
        let error = |errno| device.error(verb, errno);
        let foreign = |cause| error(Errno::INVAL).because(cause);
        let cqs = device.cqs(verb)?;
        for cq in [parents.send_cq, parents.recv_cq].into_iter().flatten() {
            cq.check(device, verb)?;
        }
        if parents.pd.is_some_and(|pd| !pd.is_of(device)) {
            return Err(foreign(Cause::Foreign { what: "protection domain" }));
        }
        if parents.srq.is_some_and(|srq| !Arc::ptr_eq(srq.device(), device)) {
            return Err(error(Errno::INVAL).because(Cause::Foreign { what: "shared receive queue" }));
        }
        let is_target = attr.qp_type == QpType::XRC_RECV;
        let has_recv = parents.srq.is_none() && !matches!(attr.qp_type, QpType::XRC_SEND | QpType::XRC_RECV);
        let is_raw = attr.qp_type == QpType::RAW_PACKET;
        let refused = if ex.source_qpn.is_some() {
            Some("this provider gives no queue pair the number of another one; leave source_qpn out")
        } else if ex.max_tso_header > 0 && !is_raw {
            Some("only raw packets are segmented; max_tso_header must be 0 for this type of queue pair")
        } else {
            None
        };
        if let Some(reason) = refused {
            return Err(error(Errno::OPNOTSUPP).because(Cause::Other { reason: reason.into() }));
        }
        let max_tso_header = ex.max_tso_header.into();
        let frames = if is_raw { frames(device, verb, max_tso_header)? } else { Frames::default() };
        let shapes = Shapes::new(device, attr, max_tso_header, Room::for_ops(ex.send_ops), has_recv)?;
        let allocator = parents.pd.and_then(Pd::allocator);
        let len = shapes.send_at() + shapes.send_len();
        let records = shapes.records_len();
        let memory = QueueMemory::for_object(allocator, Resource::Qp, len, records)
            .map_err(|errno| device.short(verb, errno, len))?;
        let records = device.records.take_for(allocator).map_err(error)?;
        let own = || Arc::new(device.registers.take(&device.kernel));
        let register = parents.pd.and_then(Pd::register).unwrap_or_else(own);
        let event_fd = device.kernel.async_fd()?;
        let user_index = if is_target { None } else { Some(device.user_index(verb)?) };
        // A completion of tag matching has the message's header in place of the data.
        let has_tags = parents.srq.is_some_and(Srq::has_tags);
        let scatter_flags = if has_tags { 0 } else { scatter.flags(device) };
        let (register_flag, bfreg_index) = register.name().of_qp();
        let request = Mlx5IbCreateQp {
            buf_addr: if shapes.recv_len() + shapes.send_len() > 0 { memory.address() } else { 0 },
            db_addr: records.address(),
            sq_wqe_count: shapes.send.map_or(0, |shape| shape.blocks),
            rq_wqe_count: shapes.recv.map_or(0, |shape| shape.entries),
            rq_wqe_shift: shapes.recv.map_or(0, |shape| (shape.units * UNIT as u32).trailing_zeros()),
            flags: register_flag | scatter_flags,
            uidx: user_index.as_ref().map_or(0, UserIndex::number),
            bfreg_index,
            sq_buf_addr: if is_raw { memory.address() + shapes.send_at() as u64 } else { 0 },
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
        // SAFETY: the addresses belong to the queues' memory and their records, which
        // `QueueResources` lends to the device until the queue pair is destroyed.
        let uhw = unsafe { Uhw::reply(reply.as_mut_bytes()).with_input(request.as_bytes()) };
        // The driver rejects sizes beyond the device's, even for a nonexistent queue.
        let attr = &if has_recv { *attr } else { without_recv(attr, &device.limits) };
        let extra = QpExtra { create_flags: ex.create_flags, ..QpExtra::default() };
        let info = cmd::qp::create_qp_ex(device.kernel.uverbs(), &handles, attr, &extra, Some(event_fd), uhw)
            .map_err(|error| {
                let error = Error { verb, ..error };
                // The device may support the type, but not the properties.
                let is_common = extra == QpExtra::default();
                if is_common { device.kernel.explain_create_qp(error, attr, || None) } else { error }
            })?;
        let settled = Arc::clone(&register).settled(reply.bfreg_index);
        let is_unknown = settled.is_none();
        // Checked once, because an orphan may be gone a moment later.
        let Some(register) = settled.filter(|register| !register.is_beside_orphan()) else {
            drop(cqs);
            if let Err(error) = cmd::qp::destroy_qp(device.kernel.uverbs(), info.handle) {
                // The device may still have it, with all lent resources.
                core::mem::forget(QueueResources::new(memory, records, Some(register), user_index));
                return Err(error);
            }
            if is_unknown {
                let what = "a doorbell register that the context does not have";
                return Err(device.kernel.uverbs().bad_reply(verb, what));
            }
            // The number may have belonged to the queue pair whose queue still rang there.
            return Self::create(device, parents, attr, ex, scatter);
        };
        let resources = Arc::new(QueueResources::new(memory, records, Some(register), user_index));
        let is_shared = parents.srq.is_some() || !has_recv;
        let (sq, rq) = queues(device, attr, &shapes, &info, is_shared, frames, &resources);
        let lists = (scatter_flags != 0 && matches!(attr.qp_type, QpType::RC | QpType::UC))
            .then(|| Arc::new(lists(device, parents, &shapes, &resources)));
        let qp = Self {
            device: Arc::clone(device),
            handle: info.handle,
            qp_num: info.qp_num,
            qp_type: attr.qp_type,
            cap: shapes.cap(&attr.cap),
            shapes,
            raw: raw(&reply),
            state: QpState::RESET,
            send_cq: parents.send_cq.map(shared),
            recv_cq: parents.recv_cq.map(shared),
            srq: parents.srq.map(|srq| Arc::clone(srq.requests())),
            lists,
            groups: Groups::default(),
            set_ece: 0,
            get_ece: reply.ece_options,
            resources,
        };
        qp.tell(&sq, &rq, SharedCq::begin);
        Ok(QpParts { qp, sq, rq })
    }

    /// Creates a queue pair that receives through a table of work queues and sends nothing.
    pub(crate) fn create_rss(
        device: &Arc<Device>,
        parents: &QpParents<'_, Mlx5>,
        attr: &QpInitAttr,
        ex: &QpCreateAttr,
        (table, hash): (&KernelRwqIndTable, &RxHashConf),
    ) -> Result<QpParts<Mlx5>> {
        const VERB: &str = "create_qp_ex";
        let refused = |errno, cause| Err(device.error(VERB, errno).because(cause));
        if attr.qp_type != QpType::RAW_PACKET {
            return refused(Errno::OPNOTSUPP, Cause::QpType { qp_type: attr.qp_type });
        }
        if *ex != QpCreateAttr::default() {
            let reason = "a queue pair that receives through a table has no further properties".into();
            return refused(Errno::OPNOTSUPP, Cause::Other { reason });
        }
        if let Err(cause) = explain::within("max_send_wr", attr.cap.max_send_wr.into(), 0, 0) {
            return refused(Errno::INVAL, cause);
        }
        let mut request = Mlx5IbCreateQpRss {
            rx_hash_fields_mask: hash.rx_hash_fields_mask.bits(),
            rx_hash_function: hash.rx_hash_function.bits(),
            ..Default::default()
        };
        let max = request.rx_hash_key.len() as u64;
        if let Err(cause) = explain::within("bytes of a hash key", hash.rx_hash_key.len() as u64, 0, max) {
            return refused(Errno::INVAL, cause);
        }
        request.rx_key_len = hash.rx_hash_key.len() as u8;
        request.rx_hash_key[..hash.rx_hash_key.len()].copy_from_slice(&hash.rx_hash_key);
        let mut reply = Mlx5IbCreateQpResp::default();
        let handles = QpHandles {
            pd: parents.pd.map(PdOps::handle),
            send_cq: None,
            recv_cq: None,
            srq: None,
            xrcd: None,
        };
        let extra = QpExtra { rwq_ind_tbl: Some(table.handle()), ..QpExtra::default() };
        let event_fd = device.kernel.async_fd()?;
        // SAFETY: the request consists of numbers.
        let uhw = unsafe { Uhw::reply(reply.as_mut_bytes()).with_input(request.as_bytes()) };
        let info =
            cmd::qp::create_qp_ex(device.kernel.uverbs(), &handles, attr, &extra, Some(event_fd), uhw)?;
        Self::without_queues(device, attr, &info, raw(&reply), VERB)
    }

    /// Opens an XRC target by its number.
    pub(crate) fn open(
        device: &Arc<Device>,
        xrcd_handle: u32,
        qp_num: u32,
        user_handle: u64,
    ) -> Result<QpParts<Mlx5>> {
        const VERB: &str = "open_qp";
        let attr =
            QpInitAttr { user_handle, qp_type: QpType::XRC_RECV, cap: QpCap::default(), sq_sig_all: false };
        // The driver takes no input for it.
        let info = cmd::qp::open_qp(device.kernel.uverbs(), xrcd_handle, qp_num, user_handle, Uhw::none())?;
        Self::without_queues(device, &attr, &info, RawQpDirect::default(), VERB)
    }

    /// Wraps a kernel queue pair without queues, so that nothing can be posted to it.
    fn without_queues(
        device: &Arc<Device>,
        attr: &QpInitAttr,
        info: &QpInfo,
        raw: RawQpDirect,
        verb: &'static str,
    ) -> Result<QpParts<Mlx5>> {
        let made = QueueMemory::new(BLOCK).and_then(|memory| Ok((memory, device.records.take()?)));
        let (memory, records) = match made {
            Ok(made) => made,
            Err(errno) => {
                // It would be lost otherwise. If this fails, it ends with the context.
                let _ = cmd::qp::destroy_qp(device.kernel.uverbs(), info.handle);
                return Err(device.error(verb, errno));
            }
        };
        let register = Arc::new(device.registers.share());
        let resources = Arc::new(QueueResources::new(memory, records, Some(register), None));
        let (sq, rq) = queues(device, attr, &Shapes::NONE, info, true, Frames::default(), &resources);
        let qp = Self {
            device: Arc::clone(device),
            handle: info.handle,
            qp_num: info.qp_num,
            qp_type: attr.qp_type,
            cap: QpCap::default(),
            shapes: Shapes::NONE,
            raw,
            state: QpState::RESET,
            send_cq: None,
            recv_cq: None,
            srq: None,
            lists: None,
            groups: Groups::default(),
            set_ece: 0,
            get_ece: 0,
            resources,
        };
        Ok(QpParts { qp, sq, rq })
    }

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

    /// Returns its open device.
    pub(crate) const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Passes its queues to its completion queues.
    fn tell(&self, sq: &Sq, rq: &Rq, tell: impl Fn(&SharedCq, u32, Queues)) {
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
                tell(one, user_index, Queues { send, recv, recv_kind, lists });
            }
            (send_cq, recv_cq) => {
                if let Some(cq) = send_cq {
                    tell(cq, user_index, Queues { send, lists: lists.clone(), ..Queues::default() });
                }
                if let Some(cq) = recv_cq {
                    tell(cq, user_index, Queues { send: None, recv, recv_kind, lists });
                }
            }
        }
    }

    /// Ends its use by its completion queues.
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

    /// Returns the queue pair's state in the kernel, which may have moved it to ERR.
    fn real_state(&self) -> QpState {
        let queried = cmd::qp::query_qp(self.device.kernel.uverbs(), self.handle, QpAttrMask::STATE);
        queried.map_or(self.state, |(attr, _)| attr.qp_state)
    }

    /// Sends the command, with connection options if the program has set any.
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

/// Returns the numbers of a queue pair's parts that the driver reports.
fn raw(reply: &Mlx5IbCreateQpResp) -> RawQpDirect {
    let mask = Mlx5IbCreateQpRespMask::from_bits_retain(reply.comp_mask);
    let told = |bit, number: u32| if mask.contains(bit) { number } else { 0 };
    let has_address = mask.contains(Mlx5IbCreateQpRespMask::MLX5_IB_CREATE_QP_RESP_MASK_TIR_ICM_ADDR);
    RawQpDirect {
        tirn: told(Mlx5IbCreateQpRespMask::MLX5_IB_CREATE_QP_RESP_MASK_TIRN, reply.tirn),
        tisn: told(Mlx5IbCreateQpRespMask::MLX5_IB_CREATE_QP_RESP_MASK_TISN, reply.tisn),
        rqn: told(Mlx5IbCreateQpRespMask::MLX5_IB_CREATE_QP_RESP_MASK_RQN, reply.rqn),
        sqn: told(Mlx5IbCreateQpRespMask::MLX5_IB_CREATE_QP_RESP_MASK_SQN, reply.sqn),
        tir_icm_addr: if has_address { reply.tir_icm_addr } else { 0 },
    }
}

/// Returns the properties of a raw packet queue pair's frames.
///
/// # Errors
/// `EOPNOTSUPP` for headers of segmented sends, if the device has none.
fn frames(device: &Device, verb: &'static str, max_tso_header: u32) -> Result<Frames> {
    if max_tso_header > 0 && !device.query_device_ex()?.tso_caps.is_qpt_supported(QpType::RAW_PACKET) {
        let reason = "the device does not segment the sends of raw packet queue pairs".into();
        return Err(device.error(verb, Errno::OPNOTSUPP).because(Cause::Other { reason }));
    }
    let min_inline = if device.needs_l2_header { L2_HEADER } else { 0 };
    Ok(Frames { min_inline, max_tso_header, has_ip_csum: device.has_ip_csum() })
}

/// Returns the shapes of a new queue pair's request lists.
fn lists(
    device: &Device,
    parents: &QpParents<'_, Mlx5>,
    shapes: &Shapes,
    resources: &Arc<QueueResources>,
) -> Lists {
    let pd = parents.pd.map_or(0, PdOps::handle);
    let own = || Arc::downgrade(resources);
    let send = shapes.send.map(|shape| SendLists {
        resources: own(),
        pd,
        offset: shapes.send_at(),
        blocks: shape.blocks,
    });
    let recv = shapes.recv.map(|shape| RecvLists {
        resources: own(),
        pd,
        entries: shape.entries,
        units: shape.units,
        head: 0,
    });
    let recv = parents.srq.map(Srq::lists).or(recv);
    Lists { regions: Arc::clone(&device.regions), send, recv }
}

fn shared(cq: &CqHandle) -> Arc<SharedCq> {
    Arc::clone(&cq.shared)
}

/// Creates the queues of a new queue pair.
fn queues(
    device: &Device,
    attr: &QpInitAttr,
    shapes: &Shapes,
    info: &QpInfo,
    is_shared: bool,
    frames: Frames,
    resources: &Arc<QueueResources>,
) -> (Sq, Rq) {
    let none = sq::Shape { blocks: 1, blocks_of_request: 1, max_post: 0, cap: QpCap::default() };
    let register = resources.register().expect("a queue pair has a register");
    // SAFETY: each record and the register are created once, and `resources` live as long as the
    // queues.
    let (send_record, recv_record, bell) = unsafe {
        (resources.records().record(Slot::SECOND), resources.records().record(Slot::FIRST), register.bell())
    };
    let sq = Sq::new(Parts {
        qp_num: info.qp_num,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
        shape: shapes.send.unwrap_or(none),
        offset: if shapes.send.is_some() { shapes.send_at() } else { 0 },
        record: send_record,
        bell,
        prefers_blue_flame: device.registers.prefers_blue_flame(),
        frames,
        has_windows: matches!(attr.qp_type, QpType::RC | QpType::UC | QpType::XRC_SEND)
            && shapes.has_keys
            && device.has_windows(),
        resources: Arc::clone(resources),
    });
    let rq = match shapes.recv {
        Some(shape) => {
            let rq = Rq::new(shape, recv_record, Arc::clone(resources));
            if attr.qp_type == QpType::RAW_PACKET { rq.held_back() } else { rq }
        }
        None if is_shared => Rq::of_shared(recv_record, Arc::clone(resources)),
        None => Rq::empty(recv_record, Arc::clone(resources)),
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
        if !Arc::ptr_eq(sq.resources(), &self.resources) || !Arc::ptr_eq(rq.resources(), &self.resources) {
            let cause = Cause::Foreign { what: "queue of a queue pair" };
            return Err(self.device.error("modify_qp", Errno::INVAL).because(cause));
        }
        if mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::RESET {
            // The queues get new records once the device has confirmed the command.
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
                self.tell(sq, rq, |cq, user_index, queues| cq.end(user_index, Some(queues)));
            }
        }
        Ok(())
    }

    /// Returns whether RESET ends requests. The device stops the queue pair before it confirms the
    /// command. For a raw packet queue pair, which is two queues for the device, this is unknown.
    fn reset_ends_requests(&self) -> bool {
        self.qp_type != QpType::RAW_PACKET
    }

    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)> {
        let (attr, info) = cmd::qp::query_qp(self.device.kernel.uverbs(), self.handle, mask)?;
        // The driver has the size of the send queue, but not its division into requests.
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
        // Until the next transition reports which of them the device accepts.
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
