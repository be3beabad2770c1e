//! [`Qp`]: a queue pair of the engine. Its two queues are rings read by the engine.
//!
//! | state | send queue | receive queue |
//! |---|---|---|
//! | RESET | closed, empty | closed, empty |
//! | INIT, RTR | closed | open |
//! | RTS, SQD, SQE, ERR | open | open |
//!
//! Automatic path migration and packet pacing are rejected (`EOPNOTSUPP`), because nothing here
//! implements them. Every other attribute takes effect and is returned by queries. If a value has
//! more bits than its field, only the lower bits count, as on ConnectX devices.
//!
//! # References
//! `ibv_create_qp(3)`, `ibv_modify_qp(3)`; IBTA volume 1, sections 10.3.1 and 11.2.5

use std::sync::Arc;

use roce::engine::{Access, Attr, AttrChange, CqId, QpInit, Qpn, Refused, Service, State};
use verbs_core::provider::{Destroy, EventsRead, QpOps, QpParents, QpParts};
use verbs_core::types::{
    AccessFlags, Gid, MigState, Mtu, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpInitInfo, QpState, QpType,
};
use verbs_core::{Cause, Errno, Error, Result, explain, transition};

use crate::device::device_core::{AttachError, DeviceCore};
use crate::device::error::{allocation, check_port, destroyed, refusal, within};
use crate::device::sink::{Channel, QpEnd, Sharer};
use crate::device::state::DeviceState;
use crate::device::wqe::{element_bytes, inline_len};
use crate::device::xrc_domains::XrcHandle;
use crate::device::{Device, limits};
use crate::io::address::{address_of, destination};
use crate::objects::ah::path;
use crate::objects::rq::Rq;
use crate::objects::soft::Soft;
use crate::objects::sq::Sq;
use crate::objects::xrcd::Xrcd;
use crate::sync::ring::ring;

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    device: Arc<Device>,
    qpn: Qpn,
    qp_type: QpType,
    info: QpInitInfo,
    state: QpState,
    /// The last values set for attributes that the engine does not use.
    given: QpAttr,
    /// The XRC domain handle of an XRC target.
    xrc: Option<XrcHandle>,
    sharer: u32,
}

impl Qp {
    pub(crate) fn create(
        device: &Arc<Device>,
        parents: &QpParents<'_, Soft>,
        attr: &QpInitAttr,
        events: &Channel,
    ) -> Result<QpParts<Soft>> {
        const VERB: &str = "create_qp";
        let missing = || {
            let reason =
                "the type needs a protection domain, completion queues or an XRC domain that is missing";
            device.error(VERB, Errno::INVAL).because(Cause::Other { reason: reason.into() })
        };
        let service = match attr.qp_type {
            QpType::RC => Service::Rc,
            QpType::UC => Service::Uc,
            QpType::UD => Service::Ud,
            QpType::XRC_SEND => Service::XrcInitiator,
            QpType::XRC_RECV => Service::XrcTarget,
            qp_type => {
                let error = device.error(VERB, explain::without_type(qp_type));
                return Err(error.because(Cause::QpType { qp_type }));
            }
        };
        // Each type requires the same objects as in the kernel.
        let (is_target, receives) =
            (service == Service::XrcTarget, !matches!(service, Service::XrcTarget | Service::XrcInitiator));
        let xrc =
            if is_target { Some(parents.xrcd.ok_or_else(missing)?.handle_on(device, VERB)?) } else { None };
        let send_cq =
            if is_target { NO_CQ } else { parents.send_cq.ok_or_else(missing)?.id_on(device, VERB)? };
        let recv_cq =
            if receives { parents.recv_cq.ok_or_else(missing)?.id_on(device, VERB)? } else { NO_CQ };
        let srq = parents.srq.filter(|_| receives).map(|srq| srq.id_on(device, VERB)).transpose()?;
        let pd = match xrc {
            Some(_) => None,
            None => Some(parents.pd.ok_or_else(missing)?.id_on(device, VERB)?),
        };
        let has_rq = receives && srq.is_none();
        // Attributes that `ibv_create_qp(3)` ignores may have any value.
        let asked = match (is_target, has_rq) {
            (true, _) => QpCap::default(),
            (false, true) => attr.cap,
            (false, false) => QpCap { max_recv_wr: 0, max_recv_sge: 0, ..attr.cap },
        };
        if let Some((name, asked, max)) = limits::exceeded(&asked) {
            within(device, VERB, name, asked.into(), 0, max.into())?;
        }
        if service == Service::Ud {
            let told = device.socket.tell_headers().and_then(|()| device.socket.route_groups());
            told.map_err(|errno| device.error(VERB, errno))?;
        }
        // Inline data is stored in place of elements. The C examples send 16 inline bytes without
        // requesting inline space.
        let max_inline_data = asked.max_inline_data.max(element_bytes(asked.max_send_sge));
        let cap = QpCap { max_inline_data, ..asked };
        let max_datagram = match attr.qp_type {
            QpType::UD => {
                let mtu = device.mtu().map_err(|errno| device.error(VERB, errno))?;
                Some(limits::datagram_mtu(mtu))
            }
            _ => None,
        };
        let lists = (cap.max_send_sge as usize).max(inline_len(cap.max_inline_data));
        let short = |bytes| allocation(device, VERB, bytes);
        let (to_sq, sq) = ring(cap.max_send_wr, lists).map_err(short)?;
        let (to_rq, rq) = ring(cap.max_recv_wr, cap.max_recv_sge as usize).map_err(short)?;
        let (events, user_handle) = (events.clone(), attr.user_handle);
        let (qpn, slot) = device.control(VERB, |core, _| {
            let pd = pd.or_else(|| core.domains.pd(xrc?.domain)).ok_or_else(missing)?;
            let init = QpInit {
                cap: engine_cap(&cap),
                sq_sig_all: attr.sq_sig_all,
                srq,
                xrc_domain: xrc.map(|handle| handle.domain),
                ..QpInit::new(service, pd, send_cq, recv_cq)
            };
            let qpn = core.engine.create_qp(&init).map_err(|refused| refusal(device, VERB, refused))?;
            let sharers = vec![Sharer { events, user_handle, number: 0, raised: 0 }];
            let end = QpEnd { qpn, sq, rq, send_cq, recv_cq, sharers };
            match core.sink.add_qp(end, core.engine.qpn_modulus()) {
                Ok(slot) => {
                    if let Some(handle) = xrc {
                        core.domains.enter(handle);
                    }
                    Ok((qpn, slot))
                }
                Err(reason) => {
                    let _ = core.engine.destroy_qp(qpn);
                    Err(refusal(device, VERB, reason))
                }
            }
        })?;
        let sq = Sq::new(device, to_sq, slot, attr.qp_type, &cap, max_datagram);
        let rq = if has_rq { Rq::new(device, to_rq, slot, &cap) } else { Rq::none(device, to_rq, slot) };
        let qp = Self {
            device: Arc::clone(device),
            qpn,
            qp_type: attr.qp_type,
            info: QpInitInfo { cap, sq_sig_all: attr.sq_sig_all },
            state: QpState::RESET,
            given: QpAttr::default(),
            xrc,
            sharer: 0,
        };
        Ok(QpParts { qp, sq, rq })
    }

    /// Opens the XRC target that has this queue pair number.
    pub(crate) fn open(
        device: &Arc<Device>,
        xrcd: &Xrcd,
        qp_num: u32,
        user_handle: u64,
        events: &Channel,
    ) -> Result<QpParts<Soft>> {
        const VERB: &str = "open_qp";
        let handle = xrcd.handle_on(device, VERB)?;
        let (qpn, qp_type, cap) = (Qpn(qp_num), QpType::XRC_RECV, QpCap::default());
        let short = |bytes| allocation(device, VERB, bytes);
        // These rings are placeholders, which the engine does not read.
        let ((to_sq, _), (to_rq, _)) = (ring(0, 0).map_err(short)?, ring(0, 0).map_err(short)?);
        let (state, slot, sharer) = device.control(VERB, |core, _| {
            let missing = || {
                let reason = "the XRC domain has no queue pair of this number";
                device.error(VERB, Errno::INVAL).because(Cause::Other { reason: reason.into() })
            };
            if core.engine.xrc_domain_of(qpn) != Some(handle.domain) {
                return Err(missing());
            }
            let (state, _) = core.engine.query_qp(qpn).map_err(|refused| refusal(device, VERB, refused))?;
            let (slot, sharer) = core.sink.share_qp(qpn, events.clone(), user_handle).ok_or_else(missing)?;
            core.domains.enter(handle);
            Ok((qp_state(state), slot, sharer))
        })?;
        let mut sq = Sq::new(device, to_sq, slot, qp_type, &cap, None);
        sq.moved_to(state);
        let qp = Self {
            device: Arc::clone(device),
            qpn,
            qp_type,
            info: QpInitInfo { cap, sq_sig_all: false },
            state,
            given: QpAttr::default(),
            xrc: Some(handle),
            sharer,
        };
        Ok(QpParts { qp, sq, rq: Rq::none(device, to_rq, slot) })
    }

    /// Stores the attributes that the engine does not use.
    fn remember(&mut self, attr: &QpAttr, mask: QpAttrMask) {
        let given = &mut self.given;
        if mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::RESET {
            *given = QpAttr::default();
        }
        macro_rules! take {
            ($($flag:ident: $($field:ident),+;)*) => {
                $(if mask.contains(QpAttrMask::$flag) { $(given.$field = attr.$field;)+ })*
            };
        }
        take! {
            PKEY_INDEX: pkey_index;
            PORT: port_num;
            AV: ah_attr;
            ACCESS_FLAGS: qp_access_flags;
            EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
        }
    }
}

impl QpOps for Qp {
    type Sq = Sq;
    type Rq = Rq;

    fn handle(&self) -> u32 {
        self.qpn.0
    }

    fn qp_num(&self) -> u32 {
        self.qpn.0
    }

    fn qp_type(&self) -> QpType {
        self.qp_type
    }

    fn cap(&self) -> QpCap {
        self.info.cap
    }

    fn state(&self) -> QpState {
        self.state
    }

    fn modify(&mut self, sq: &mut Sq, rq: &mut Rq, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        const VERB: &str = "modify_qp";
        let attr = &explain::numbers_cut(attr);
        let (device, qpn, qp_type) = (Arc::clone(&self.device), self.qpn, self.qp_type);
        if mask.contains(QpAttrMask::AV | QpAttrMask::DEST_QPN)
            && let Ok(path) = path(&device, VERB, &attr.ah_attr)
        {
            // Must precede the first packet, and runs without the lock.
            device.meet(path.remote, attr.dest_qp_num);
        }
        device.control(VERB, |core, now| {
            let refused = |refused| refusal(&device, VERB, refused);
            let (at, present) = core.engine.query_qp(qpn).map_err(refused)?;
            let at = qp_state(at);
            let (from, to) = transition::endpoints(at, attr, mask);
            transition::check(qp_type, from, to, mask)
                .map_err(|cause| device.error(VERB, Errno::INVAL).because(cause))?;
            explain::present_state(at, attr, mask)
                .map_err(|cause| device.error(VERB, Errno::INVAL).because(cause))?;
            let mut change = change(&device, attr, mask)?;
            if let Some(path) = &mut change.path {
                path.on_link = match change.dest_qpn {
                    Some(dest_qpn) => core.links.leads_to(path.remote, (dest_qpn >> 16) as u8),
                    None => present.path.on_link,
                };
            }
            core.engine.modify_qp(qpn, &change, now, &mut core.sink).map_err(refused)?;
            if to == QpState::RESET
                && let Some(end) = core.sink.qp(qpn)
            {
                end.sq.clear();
                end.rq.clear();
            }
            Ok(())
        })?;
        self.remember(attr, mask);
        if mask.contains(QpAttrMask::STATE) {
            self.state = attr.qp_state;
            sq.moved_to(attr.qp_state);
            rq.moved_to(attr.qp_state);
        }
        Ok(())
    }

    /// Always true: the engine removes all requests when the queue pair moves to RESET.
    fn reset_ends_requests(&self) -> bool {
        true
    }

    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)> {
        const VERB: &str = "query_qp";
        if mask.bits() >= QpAttrMask::RATE_LIMIT.bits() {
            return Err(self.device.error(VERB, Errno::OPNOTSUPP));
        }
        let (state, its, drained) = self.device.control(VERB, |core, _| {
            let refused = |refused| refusal(&self.device, VERB, refused);
            let (state, attr) = core.engine.query_qp(self.qpn).map_err(refused)?;
            Ok((state, attr, core.engine.sq_drained(self.qpn).map_err(refused)?))
        })?;
        let Attr { dest_qpn, path_mtu, qkey, sq_psn, rq_psn, timeout, retry_cnt, rnr_retry, .. } = its;
        let state = qp_state(state);
        let attr = QpAttr {
            qp_state: state,
            cur_qp_state: state,
            path_mtu: Mtu::from_bytes(path_mtu).unwrap_or(Mtu(0)),
            qkey,
            rq_psn,
            sq_psn,
            dest_qp_num: dest_qpn,
            cap: self.info.cap,
            sq_draining: state == QpState::SQD && !drained,
            max_rd_atomic: its.max_rd_atomic,
            max_dest_rd_atomic: its.max_dest_rd_atomic,
            min_rnr_timer: its.min_rnr_timer,
            timeout,
            retry_cnt,
            rnr_retry,
            ..self.given
        };
        Ok((attr, self.info))
    }

    fn attach_mcast(&mut self, gid: &Gid, _lid: u16) -> Result<()> {
        const VERB: &str = "attach_mcast";
        let (device, qpn) = (&self.device, self.qpn);
        let group = destination(&device.gid, gid.0);
        explain::group(self.qp_type, gid).map_err(|cause| device.error(VERB, Errno::INVAL).because(cause))?;
        let joined = device.control(VERB, |core, _| {
            core.attach_mcast(qpn, group, &device.socket).map_err(|error| match error {
                AttachError::Join(errno) => {
                    let (error, group) = (device.error(VERB, errno), address_of(group));
                    match device.socket.group_obstacle(group).filter(|_| errno == Errno::NETUNREACH) {
                        Some(reason) => error.because(Cause::Other { reason: reason.into() }),
                        None => error,
                    }
                }
                AttachError::Refused(Refused::NoRoom) => {
                    let (name, max) = match core.engine.mcast_members(&group) {
                        0 => ("multicast groups", limits::MAX_MCAST_GRP),
                        _ => ("queue pairs of a multicast group", limits::MAX_MCAST_QP_ATTACH),
                    };
                    let cause = Cause::Limit { name, asked: u64::from(max) + 1, min: 0, max: max.into() };
                    device.error(VERB, Errno::NOMEM).because(cause)
                }
                AttachError::Refused(refused) => refusal(device, VERB, refused),
            })
        })?;
        if let Some(readable) = joined {
            device.watch_groups(readable);
        }
        Ok(())
    }

    fn detach_mcast(&mut self, gid: &Gid, _lid: u16) -> Result<()> {
        const VERB: &str = "detach_mcast";
        self.device.control(VERB, |core, _| {
            core.engine.detach_mcast(self.qpn, destination(&self.device.gid, gid.0)).map_err(|_| {
                let cause = Cause::NotAttached { gid: *gid };
                self.device.error(VERB, Errno::INVAL).because(cause)
            })?;
            core.leave_empty_groups();
            Ok(())
        })
    }
}

impl Destroy for Qp {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.destroy_counting_events().map(drop)
    }

    fn destroy_counting_events(self) -> Result<EventsRead, (Self, Error)> {
        // While the lock is held, no other thread processes a packet of the queue pair.
        let (qpn, xrc, sharer) = (self.qpn, self.xrc, self.sharer);
        let destroy = |core: &mut DeviceCore| -> Result<EventsRead, Refused> {
            let unshared = core.sink.unshare_qp(qpn, sharer);
            if unshared.is_none() {
                core.engine.destroy_qp(qpn)?;
            }
            if let Some(handle) = xrc {
                core.domains.leave(handle);
            }
            if let Some(read) = unshared {
                return Ok(read);
            }
            let read = core.sink.remove_qp(qpn);
            core.leave_empty_groups();
            Ok(read)
        };
        destroyed(&self.device, "destroy_qp", destroy).map_err(|error| (self, error))
    }
}

/// The completion queue id that stands for a missing send or receive queue.
const NO_CQ: CqId = CqId(u32::MAX);

/// Checks the attributes to change and converts them for the engine.
fn change(device: &DeviceState, attr: &QpAttr, mask: QpAttrMask) -> Result<AttrChange> {
    const VERB: &str = "modify_qp";
    let limit = |name, asked: u64, max: u64| within(device, VERB, name, asked, 0, max);
    let has = |flag| mask.contains(flag);
    let invalid = |cause| device.error(VERB, Errno::INVAL).because(cause);
    if let Some(reason) = lacking(attr, mask) {
        let cause = Cause::Other { reason: reason.into() };
        return Err(device.error(VERB, Errno::OPNOTSUPP).because(cause));
    }
    explain::path_mtu(attr, mask).map_err(invalid)?;
    explain::numbers_of_device(attr, mask, &limits::device_attr(device.guid)).map_err(invalid)?;
    let mut change = AttrChange::default();
    macro_rules! take {
        ($($flag:ident: $to:ident = $from:ident;)*) => {
            $(if has(QpAttrMask::$flag) { change.$to = Some(attr.$from); })*
        };
    }
    take! {
        QKEY: qkey = qkey;
        DEST_QPN: dest_qpn = dest_qp_num;
        RQ_PSN: rq_psn = rq_psn;
        SQ_PSN: sq_psn = sq_psn;
        TIMEOUT: timeout = timeout;
        RETRY_CNT: retry_cnt = retry_cnt;
        RNR_RETRY: rnr_retry = rnr_retry;
        MIN_RNR_TIMER: min_rnr_timer = min_rnr_timer;
        MAX_QP_RD_ATOMIC: max_rd_atomic = max_rd_atomic;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic = max_dest_rd_atomic;
    }
    if has(QpAttrMask::PORT) {
        check_port(device, VERB, attr.port_num)?;
    }
    if has(QpAttrMask::PKEY_INDEX) {
        limit("pkey_index", attr.pkey_index.into(), 0)?;
        change.pkey = Some(limits::PKEY);
    }
    if has(QpAttrMask::AV) {
        change.path = Some(path(device, VERB, &attr.ah_attr)?);
    }
    if has(QpAttrMask::PATH_MTU) {
        let active = device.mtu().map_err(|errno| device.error(VERB, errno))?;
        let most = limits::port_attr(active, true).active_mtu.bytes().unwrap_or(0);
        let bytes = attr.path_mtu.bytes().unwrap_or(0);
        limit("path_mtu", bytes.into(), most.into())?;
        change.path_mtu = Some(bytes);
    }
    if has(QpAttrMask::ACCESS_FLAGS) {
        let access = attr.qp_access_flags & REMOTE;
        change.access = Some(Access(access.bits()));
    }
    if has(QpAttrMask::STATE) {
        change.state = Some(engine_state(attr.qp_state).ok_or_else(|| device.error(VERB, Errno::INVAL))?);
    }
    change.sq_drained_event = has(QpAttrMask::EN_SQD_ASYNC_NOTIFY).then_some(attr.en_sqd_async_notify);
    Ok(change)
}

/// Returns the reason why the device does not support one of the attributes, or `None` if it
/// supports them all. The transition table has already allowed the attributes.
fn lacking(attr: &QpAttr, mask: QpAttrMask) -> Option<&'static str> {
    let migrates = mask.contains(QpAttrMask::PATH_MIG_STATE) && attr.path_mig_state != MigState::MIGRATED;
    if mask.contains(QpAttrMask::ALT_PATH) || migrates {
        return Some("soft devices have no alternate path and no automatic path migration");
    }
    mask.contains(QpAttrMask::RATE_LIMIT).then_some("soft devices have no packet pacing")
}

fn engine_cap(cap: &QpCap) -> roce::engine::QpCap {
    let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = *cap;
    roce::engine::QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
}

fn engine_state(state: QpState) -> Option<State> {
    Some(match state {
        QpState::RESET => State::Reset,
        QpState::INIT => State::Init,
        QpState::RTR => State::Rtr,
        QpState::RTS => State::Rts,
        QpState::SQD => State::Sqd,
        QpState::SQE => State::Sqe,
        QpState::ERR => State::Err,
        _ => return None,
    })
}

fn qp_state(state: State) -> QpState {
    match state {
        State::Reset => QpState::RESET,
        State::Init => QpState::INIT,
        State::Rtr => QpState::RTR,
        State::Rts => QpState::RTS,
        State::Sqd => QpState::SQD,
        State::Sqe => QpState::SQE,
        State::Err => QpState::ERR,
    }
}

/// The access rights that a queue pair can grant to its peer. They have the same bits in verbs and
/// in the engine.
const REMOTE: AccessFlags = AccessFlags::REMOTE_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::FLUSH_GLOBAL)
    .union(AccessFlags::FLUSH_PERSISTENT);
