//! The queue pairs of ids, their completion queues, and shared receive queues.
//!
//! ```text
//!   rdma_create_qp ─► INIT, with attributes of the connection manager (datagrams: RTS)
//!   ESTABLISHED, rdma_accept ─► INIT again ─► RTR ─► RTS
//!   rdma_disconnect, REJECTED ─► ERR
//! ```
//!
//! A program that passes no completion queues gets one per direction, each with a channel, in
//! `rdma_cm_id.send_cq` and `recv_cq`, for `rdma_get_send_comp(3)` and related calls.
//!
//! # Safety
//! See [`rdmacm`](super). The objects in the struct of an id are live or null.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::ptr::null_mut;

use verbs_core::Errno;
use verbs_core::types::{Ece, QpAttr, QpAttrMask, QpState};

use super::id::private;
use super::{NO_DEVICE, Result, given, given_room, object, of_verb, refuse, status};
use crate::abi::c::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_SRQ_INIT_ATTR_CQ,
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_BASIC, IBV_SRQT_XRC,
    IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, ibv_comp_channel, ibv_context, ibv_cq, ibv_ece, ibv_pd, ibv_qp,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_xrcd, rdma_cm_id,
};
use crate::abi::convert::qp_attr_to_c;
use crate::verbs::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::verbs::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::verbs::qp::{create_qp_ex, ibv_destroy_qp, ibv_modify_qp, ibv_query_ece, ibv_set_ece};
use crate::verbs::srq::{create_srq_ex, ibv_destroy_srq};

/// Modifies a queue pair.
///
/// # Errors
/// Same as `ibv_modify_qp(3)`.
///
/// # Safety
/// `qp` must be live.
unsafe fn modify(qp: *mut ibv_qp, attr: &QpAttr, mask: QpAttrMask) -> Result {
    let mut attr = qp_attr_to_c(attr);
    // SAFETY: guaranteed by the caller.
    of_verb(unsafe { ibv_modify_qp(qp, &raw mut attr, mask.bits() as c_int) })
}

/// Moves a queue pair to a state. The attributes come from the connection manager and are adjusted
/// by `change`.
///
/// # Errors
/// The errors of [`CmId::init_qp_attr`](rdmacm::CmId::init_qp_attr) and of `ibv_modify_qp(3)`.
///
/// # Safety
/// `id` and `qp` must be live.
unsafe fn modify_as_told(
    id: *mut rdma_cm_id,
    qp: *mut ibv_qp,
    qp_state: QpState,
    change: impl FnOnce(&mut QpAttr),
) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (attr, mask) = private(id).call(|cm| cm.init_qp_attr(qp_state))?;
        let mut attr = QpAttr { qp_state, ..attr };
        change(&mut attr);
        modify(qp, &attr, mask)
    }
}

/// Moves an id's queue pair to RTS, if it has one. If `depths` is given, it replaces the depths
/// from the connection manager.
///
/// # Errors
/// The errors of [`CmId::init_qp_attr`](rdmacm::CmId::init_qp_attr) and of `ibv_modify_qp(3)`.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn modify_to_rts(id: *mut rdma_cm_id, depths: Option<(u8, u8)>) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let qp = (*id).qp;
        if qp.is_null() {
            return Ok(());
        }
        // The access rights and the partition are known only now.
        modify_as_told(id, qp, QpState::INIT, |_| {})?;
        modify_as_told(id, qp, QpState::RTR, |attr| {
            if let Some((responder_resources, _)) = depths {
                attr.max_dest_rd_atomic = responder_resources;
            }
        })?;
        modify_as_told(id, qp, QpState::RTS, |attr| {
            if let Some((_, initiator_depth)) = depths {
                attr.max_rd_atomic = initiator_depth;
            }
        })
    }
}

/// Moves an id's queue pair to ERR, if it has one.
///
/// # Errors
/// Same as `ibv_modify_qp(3)`.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn modify_to_error(id: *mut rdma_cm_id) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe { modify_to(id, QpState::ERR) }
}

unsafe fn modify_to(id: *mut rdma_cm_id, qp_state: QpState) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let qp = (*id).qp;
        if qp.is_null() {
            return Ok(());
        }
        modify(qp, &QpAttr { qp_state, ..QpAttr::default() }, QpAttrMask::STATE)
    }
}

/// Stops the queue pair of an id that disconnects.
///
/// # Errors
/// `EINVAL` for an id without a device; the errors of `ibv_modify_qp(3)`.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn shut_down(id: *mut rdma_cm_id) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let context = (*id).verbs;
        if context.is_null() {
            return Err(refuse("disconnect", Errno::INVAL, NO_DEVICE));
        }
        match (*(*context).device).transport_type {
            IBV_TRANSPORT_IB => modify_to(id, QpState::ERR),
            IBV_TRANSPORT_IWARP => modify_to(id, QpState::SQD),
            _ => Err(refuse("disconnect", Errno::INVAL, "the device is neither InfiniBand nor iWARP")),
        }
    }
}

/// Moves a new queue pair to INIT; a datagram queue pair moves on to RTS.
///
/// # Errors
/// Same as [`modify_to_rts`].
///
/// # Safety
/// `id` and `qp` must be live.
unsafe fn start(id: *mut rdma_cm_id, qp: *mut ibv_qp) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        modify_as_told(id, qp, QpState::INIT, |_| {})?;
        if (*id).qp_type == IBV_QPT_UD {
            let attr = |qp_state| QpAttr { qp_state, ..QpAttr::default() };
            modify(qp, &attr(QpState::RTR), QpAttrMask::STATE)?;
            modify(qp, &attr(QpState::RTS), QpAttrMask::STATE | QpAttrMask::SQ_PSN)?;
        }
    }
    Ok(())
}

/// Returns the ECE options of a queue pair; empty if the provider has none.
///
/// # Errors
/// Same as `ibv_query_ece(3)`.
///
/// # Safety
/// `qp` must be live.
pub(super) unsafe fn ece_of(qp: *mut ibv_qp) -> Result<Ece> {
    let mut ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
    // SAFETY: guaranteed by the caller.
    match of_verb(unsafe { ibv_query_ece(qp, &raw mut ece) }) {
        Ok(()) => Ok(Ece { vendor_id: ece.vendor_id, options: ece.options }),
        Err(Errno::OPNOTSUPP) => Ok(Ece::default()),
        Err(errno) => Err(errno),
    }
}

/// Sets the ECE options of a queue pair, if the provider has any.
///
/// # Errors
/// Same as `ibv_set_ece(3)`.
///
/// # Safety
/// `qp` must be live.
pub(super) unsafe fn set_ece(qp: *mut ibv_qp, ece: Ece) -> Result {
    let mut ece = ibv_ece { vendor_id: ece.vendor_id, options: ece.options, comp_mask: 0 };
    // SAFETY: guaranteed by the caller.
    match of_verb(unsafe { ibv_set_ece(qp, &raw mut ece) }) {
        Err(Errno::OPNOTSUPP) => Ok(()),
        set => set,
    }
}

/// Stores the ECE options that a queue pair offers. For a connection request, sets the ECE options
/// offered by the peer, or none if the peer's device is from another vendor.
///
/// # Errors
/// The errors of [`ece_of`] and [`set_ece`].
///
/// # Safety
/// `id` and `qp` must be live.
unsafe fn negotiate(id: *mut rdma_cm_id, qp: *mut ibv_qp) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let private = private(id);
        let offered = ece_of(qp)?;
        private.set_local_ece(offered)?;
        let remote = private.cm()?.remote_ece();
        if remote.vendor_id != 0 {
            let options = if remote.vendor_id == offered.vendor_id { remote.options } else { 0 };
            set_ece(qp, Ece { options, ..offered })?;
        }
    }
    Ok(())
}

/// Creates the completion queues for an id, each with a channel. For a size of 0, no queue is
/// created.
///
/// # Errors
/// Any error from creating the channels or queues; in that case, the id has no completion queue.
///
/// # Safety
/// `id` must be live.
unsafe fn create_cqs(id: *mut rdma_cm_id, send: u32, recv: u32) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let made = (|| {
            if recv > 0 {
                ((*id).recv_cq_channel, (*id).recv_cq) = (null_mut(), null_mut());
                create_cq(id, recv, &raw mut (*id).recv_cq_channel, &raw mut (*id).recv_cq)?;
            }
            if send > 0 {
                ((*id).send_cq_channel, (*id).send_cq) = (null_mut(), null_mut());
                create_cq(id, send, &raw mut (*id).send_cq_channel, &raw mut (*id).send_cq)?;
            }
            Ok(())
        })();
        made.inspect_err(|_| destroy_cqs(id))
    }
}

/// Creates a completion queue and its channel.
///
/// # Errors
/// Any error from `ibv_create_comp_channel(3)` or `ibv_create_cq(3)`.
///
/// # Safety
/// `id` must be live; the other arguments must point to its fields.
unsafe fn create_cq(
    id: *mut rdma_cm_id,
    size: u32,
    channel: *mut *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
) -> Result {
    let size = c_int::try_from(size)
        .map_err(|_| refuse("create_qp", Errno::INVAL, "more requests than a completion queue has"))?;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let context: *mut ibv_context = (*id).verbs;
        *channel = object(ibv_create_comp_channel(context))?;
        *cq = object(ibv_create_cq(context, size, id.cast(), *channel, 0))?;
    }
    Ok(())
}

/// Destroys the completion queues of an id, unless an XRC receiver's shared receive queue still
/// uses them.
///
/// # Safety
/// `id` must be live.
unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if (*id).qp_type == IBV_QPT_XRC_RECV && !(*id).srq.is_null() {
            return;
        }
        let take = |at: *mut *mut ibv_cq| core::mem::replace(&mut *at, null_mut());
        let (send, recv) = (take(&raw mut (*id).send_cq), take(&raw mut (*id).recv_cq));
        for cq in [recv, if send == recv { null_mut() } else { send }] {
            if !cq.is_null() {
                ibv_destroy_cq(cq);
            }
        }
        let take = |at: *mut *mut ibv_comp_channel| core::mem::replace(&mut *at, null_mut());
        let (send, recv) = (take(&raw mut (*id).send_cq_channel), take(&raw mut (*id).recv_cq_channel));
        for channel in [recv, if send == recv { null_mut() } else { send }] {
            if !channel.is_null() {
                ibv_destroy_comp_channel(channel);
            }
        }
    }
}

/// Returns the XRC domain that the ids on a device share.
///
/// # Errors
/// `EINVAL` for an id without a device; the errors of `ibv_open_xrcd(3)`.
///
/// # Safety
/// `id` must be live.
unsafe fn xrcd_of(id: *mut rdma_cm_id) -> Result<*mut ibv_xrcd> {
    // SAFETY: guaranteed by the caller.
    unsafe { private(id) }
        .state()
        .device
        .as_ref()
        .ok_or_else(|| refuse("create_qp", Errno::INVAL, NO_DEVICE))?
        .xrcd()
}

/// Creates the queue pair of an id.
///
/// # Errors
/// `EINVAL` for an id that already has a queue pair or has no device, for a domain of another
/// device, and for a completion queue in addition to the id's own; any error from creating the
/// queues.
///
/// # Safety
/// `id` and the objects of `attr` must be live.
pub(super) unsafe fn create(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if !(*id).qp.is_null() || (*id).verbs.is_null() {
            return Err(refuse("create_qp", Errno::INVAL, "the id has a queue pair already, or no device"));
        }
        if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
            attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
            attr.pd = (*id).pd;
        } else if (*attr.pd).context != (*id).verbs {
            return Err(refuse("create_qp", Errno::INVAL, "the protection domain is another device's"));
        }
        let differ =
            |own: *mut ibv_cq, given: *mut ibv_cq| !own.is_null() && !given.is_null() && own != given;
        if differ((*id).recv_cq, attr.recv_cq) || differ((*id).send_cq, attr.send_cq) {
            return Err(refuse("create_qp", Errno::INVAL, "the id has another completion queue already"));
        }
        if (*id).qp_type == IBV_QPT_XRC_RECV
            && (attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null())
        {
            attr.xrcd = xrcd_of(id)?;
            attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        }
        let size = |own: *mut ibv_cq, given: *mut ibv_cq, wanted| {
            if own.is_null() && given.is_null() { wanted } else { 0 }
        };
        create_cqs(
            id,
            size((*id).send_cq, attr.send_cq, attr.cap.max_send_wr),
            size((*id).recv_cq, attr.recv_cq, attr.cap.max_recv_wr),
        )?;
        if attr.send_cq.is_null() {
            attr.send_cq = (*id).send_cq;
        }
        if attr.recv_cq.is_null() {
            attr.recv_cq = (*id).recv_cq;
        }
        if attr.srq.is_null() {
            attr.srq = (*id).srq;
        }
        let qp = object(create_qp_ex((*id).verbs, attr)).inspect_err(|_| destroy_cqs(id))?;
        let started = negotiate(id, qp).and_then(|()| start(id, qp)).and_then(|()| {
            let private = private(id);
            if private.cm()?.remote_ece().vendor_id == 0 {
                return Ok(());
            }
            let Ece { options, .. } = ece_of(qp)?;
            let local = private.state().local_ece;
            private.set_local_ece(Ece { options, ..local })
        });
        if let Err(errno) = started {
            ibv_destroy_qp(qp);
            destroy_cqs(id);
            return Err(errno);
        }
        (*id).pd = (*qp).pd;
        (*id).qp = qp;
    }
    Ok(())
}

/// Creates the queue pair of an id from plain attributes and writes the granted capacities back.
///
/// # Errors
/// Same as [`create`].
///
/// # Safety
/// Same as [`create`]; `pd` must be null or live.
pub(super) unsafe fn create_plain(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
) -> Result {
    // SAFETY: zeroed integers and null pointers are valid.
    let mut ex: ibv_qp_init_attr_ex = unsafe { core::mem::zeroed() };
    ex.qp_context = attr.qp_context;
    ex.send_cq = attr.send_cq;
    ex.recv_cq = attr.recv_cq;
    ex.srq = attr.srq;
    ex.cap = attr.cap;
    ex.qp_type = attr.qp_type;
    ex.sq_sig_all = attr.sq_sig_all;
    ex.comp_mask = IBV_QP_INIT_ATTR_PD;
    // SAFETY: guaranteed by the caller.
    unsafe {
        ex.pd = if pd.is_null() { (*id).pd } else { pd };
        let created = create(id, &mut ex);
        attr.send_cq = ex.send_cq;
        attr.recv_cq = ex.recv_cq;
        attr.srq = ex.srq;
        attr.cap = ex.cap;
        created
    }
}

/// `rdma_create_qp(3)`.
///
/// # Safety
/// `id` and the objects of `attr` must be live; `pd` must be null or live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    given!(id, attr);
    given_room!();
    // SAFETY: guaranteed by the caller.
    status(unsafe { create_plain(id, pd, &mut *attr) })
}

/// `rdma_create_qp_ex(3)`.
///
/// # Safety
/// `id` and the objects of `attr` must be live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    given!(id, attr);
    given_room!();
    // SAFETY: guaranteed by the caller.
    status(unsafe { create(id, &mut *attr) })
}

/// `rdma_destroy_qp(3)`.
///
/// # Safety
/// `id` must be live; its queue pair must not be used afterwards.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    if id.is_null() {
        return;
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        let qp = core::mem::replace(&mut (*id).qp, null_mut());
        if !qp.is_null() {
            ibv_destroy_qp(qp);
        }
        destroy_cqs(id);
    }
}

/// Creates the shared receive queue of an id.
///
/// # Errors
/// `EINVAL` for attributes without a type and for an id without a device; any error from creating
/// the queues.
///
/// # Safety
/// `id` and the objects of `attr` must be live.
unsafe fn create_srq(id: *mut rdma_cm_id, attr: &mut ibv_srq_init_attr_ex) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || (*id).verbs.is_null() {
            return Err(refuse("create_srq", Errno::INVAL, "no type, or the id has no device"));
        }
        let lacks = |bit| attr.comp_mask & bit == 0;
        let (no_pd, no_xrcd, no_cq) =
            (lacks(IBV_SRQ_INIT_ATTR_PD), lacks(IBV_SRQ_INIT_ATTR_XRCD), lacks(IBV_SRQ_INIT_ATTR_CQ));
        if no_pd || attr.pd.is_null() {
            attr.pd = (*id).pd;
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        }
        let mut makes_cq = false;
        if attr.srq_type == IBV_SRQT_XRC {
            if no_xrcd || attr.xrcd.is_null() {
                attr.xrcd = xrcd_of(id)?;
            }
            if no_cq || attr.cq.is_null() {
                // The queue pair of an XRC receiver was created with a completion queue that it
                // does not use.
                if (*id).recv_cq.is_null() || ((*(*id).recv_cq).cqe as u32) < attr.attr.max_wr {
                    destroy_cqs(id);
                    create_cqs(id, 0, attr.attr.max_wr)?;
                    makes_cq = true;
                }
                attr.cq = (*id).recv_cq;
            }
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        }
        let srq = object(create_srq_ex((*id).verbs, attr)).inspect_err(|_| {
            if makes_cq {
                destroy_cqs(id);
            }
        })?;
        if (*id).pd.is_null() {
            (*id).pd = attr.pd;
        }
        (*id).srq = srq;
    }
    Ok(())
}

/// `rdma_create_srq(3)`.
///
/// # Safety
/// `id` must be live; `pd` must be null or live; `attr` must point to attributes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    given!(id, attr);
    given_room!();
    // SAFETY: guaranteed by the caller; the struct has integers and null pointers.
    status(unsafe {
        let mut ex: ibv_srq_init_attr_ex = core::mem::zeroed();
        ex.srq_context = (*attr).srq_context;
        ex.attr = (*attr).attr;
        ex.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        ex.srq_type = if (*id).qp_type == IBV_QPT_XRC_RECV { IBV_SRQT_XRC } else { IBV_SRQT_BASIC };
        ex.pd = pd;
        let created = create_srq(id, &mut ex);
        (*attr).attr = ex.attr;
        created
    })
}

/// `rdma_create_srq_ex(3)`.
///
/// # Safety
/// `id` and the objects of `attr` must be live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    given!(id, attr);
    given_room!();
    // SAFETY: guaranteed by the caller.
    status(unsafe { create_srq(id, &mut *attr) })
}

/// `rdma_destroy_srq(3)`.
///
/// # Safety
/// `id` must be live; its shared receive queue must not be used afterwards.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    if id.is_null() {
        return;
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        let srq = core::mem::replace(&mut (*id).srq, null_mut());
        if !srq.is_null() {
            ibv_destroy_srq(srq);
        }
        destroy_cqs(id);
    }
}
