//! Creating queue pairs: with queues, over a table of work queues, or by opening an XRC target.
//!
//! # Safety
//! As in the parent module: [`QueueResources`] owns the memory and the records that the device uses
//! after the command.
//!
//! # References
//! `ibv_create_qp_ex(3)`; rdma-core `providers/mlx5/verbs.c` (`create_qp`)
#![allow(unsafe_code)]

use std::sync::Arc;

use uverbs_abi::mlx5_abi::{Mlx5IbCreateQp, Mlx5IbCreateQpResp, Mlx5IbCreateQpRespMask, Mlx5IbCreateQpRss};
use verbs_core::channel::Uhw;
use verbs_core::cmd::qp::{QpExtra, QpHandles, QpInfo};
use verbs_core::kernel::{Groups, KernelRwqIndTable};
use verbs_core::provider::{DeviceOps as _, PdOps, QpParents, QpParts, RwqIndTableOps as _, SrqOps, XrcdOps};
use verbs_core::types::{QpCap, QpCreateAttr, QpInitAttr, QpState, QpType, RxHashConf};
use verbs_core::{Cause, Errno, Error, Result, cmd, explain};
use zerocopy::IntoBytes;

use super::Qp;
use super::scatter_to_cqe::ScatterToCqe;
use super::shapes::Shapes;
use crate::device::user_index::UserIndex;
use crate::device::{Device, Limits};
use crate::direct::RawQpDirect;
use crate::doorbell::dbrec::Slot;
use crate::memory::{QueueMemory, Resource};
use crate::objects::cq::CqHandle;
use crate::objects::mlx5::Mlx5;
use crate::objects::pd::Pd;
use crate::objects::srq::Srq;
use crate::queue::cq::{Lists, RecvLists, SendLists, SharedCq};
use crate::queue::resources::QueueResources;
use crate::queue::rq::Rq;
use crate::queue::sizes::Room;
use crate::queue::sq::{self, Frames, L2_HEADER, Parts, Sq};
use crate::wqe::{BLOCK, UNIT};

/// The bit that requests the ECE options offered by the device.
const ECE_VERSION_1: u32 = 1 << 28;

impl Qp {
    /// Creates a queue pair.
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
        // With tag matching, a completion holds the message's header in place of data.
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
        // The driver rejects sizes beyond the device's limits, even for a nonexistent queue.
        let attr = &if has_recv { *attr } else { without_recv(attr, &device.limits) };
        let extra = QpExtra { create_flags: ex.create_flags, ..QpExtra::default() };
        let info = cmd::qp::create_qp_ex(device.kernel.uverbs(), &handles, attr, &extra, Some(event_fd), uhw)
            .map_err(|error| {
                let error = Error { verb, ..error };
                // The device may support the type but not the extra properties.
                let is_common = extra == QpExtra::default();
                if is_common { device.kernel.explain_create_qp(error, attr, || None) } else { error }
            })?;
        let settled = Arc::clone(&register).settled(reply.bfreg_index);
        let is_unknown = settled.is_none();
        // Checked only once, because an orphan may disappear at any moment.
        let Some(register) = settled.filter(|register| !register.is_beside_orphan()) else {
            drop(cqs);
            if let Err(error) = cmd::qp::destroy_qp(device.kernel.uverbs(), info.handle) {
                // The device may still use the queue pair, with all its resources.
                core::mem::forget(QueueResources::new(memory, records, Some(register), user_index));
                return Err(error);
            }
            if is_unknown {
                let what = "a doorbell register that the context does not have";
                return Err(device.kernel.uverbs().bad_reply(verb, what));
            }
            // A destroyed queue pair's queue may still ring there, and may have the same number.
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
        qp.for_each_cq(&sq, &rq, SharedCq::begin);
        Ok(QpParts { qp, sq, rq })
    }

    /// Creates a queue pair that receives through a table of work queues and has no send queue.
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
        // The driver takes no input for this command.
        let info = cmd::qp::open_qp(device.kernel.uverbs(), xrcd_handle, qp_num, user_handle, Uhw::none())?;
        Self::without_queues(device, &attr, &info, RawQpDirect::default(), VERB)
    }

    /// Returns a kernel queue pair without queues: nothing can be posted to it.
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
                // Otherwise the queue pair would be lost. If this fails, closing the context
                // destroys it.
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
}

/// Returns the attributes for a queue pair without its own receive queue: receive sizes beyond the
/// device's limits become 0.
pub(super) fn without_recv(attr: &QpInitAttr, limits: &Limits) -> QpInitAttr {
    let mut cap = attr.cap;
    if cap.max_recv_wr > limits.max_recv_wr || cap.max_recv_sge > limits.max_rq_desc_sz / UNIT as u32 {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    QpInitAttr { cap, ..*attr }
}

/// Returns the numbers the driver reports for a queue pair's parts.
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

/// Returns how a raw packet queue pair handles frames.
///
/// # Errors
/// `EOPNOTSUPP` if the program requests headers for segmented sends and the device does not
/// segment.
fn frames(device: &Device, verb: &'static str, max_tso_header: u32) -> Result<Frames> {
    if max_tso_header > 0 && !device.query_device_ex()?.tso_caps.is_qpt_supported(QpType::RAW_PACKET) {
        let reason = "the device does not segment the sends of raw packet queue pairs".into();
        return Err(device.error(verb, Errno::OPNOTSUPP).because(Cause::Other { reason }));
    }
    let min_inline = if device.needs_l2_header { L2_HEADER } else { 0 };
    Ok(Frames { min_inline, max_tso_header, has_ip_csum: device.has_ip_csum() })
}

/// Returns the location of a new queue pair's request lists.
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
