//! Tests of connections with queue pairs on a soft device, moved with a scripted kernel's
//! attributes.

use uverbs_abi::ib_user_verbs::{IbUverbsAhAttr, IbUverbsGlobalRoute, IbUverbsQpAttr};
use verbs::state::Init;
use verbs::{AccessFlags, Cq, CqInit, GidEntry, Guid, Pd, Qp, QpAttrMask, QpInit, QpState, WcStatus};

use super::*;
use crate::Rejection;

/// A soft device and its objects.
struct Device1 {
    device: Device,
    pd: Pd,
    cq: Cq,
    gid: GidEntry,
}

impl Device1 {
    fn new() -> Self {
        let device = crate::own_device::own_device();
        let context = device.open().unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(&CqInit::new(64)).unwrap());
        Self { device, pd, cq, gid: context.find_gid(1).unwrap() }
    }

    /// Assigns this device to an id, as if the kernel had reported the device.
    fn lend(&self, id: &CmId) {
        let key = DeviceKey { guid: Guid(7), index: None };
        id.inner.device.set((key, self.device.clone())).unwrap();
    }

    /// Returns a queue pair of the id.
    fn qp(&self, world: &World, id: &CmId) -> Qp<Init> {
        world.replies([attr(QpState::INIT, 0, self)]);
        id.create_qp(&self.pd, &QpInit::new(QpType::RC, &self.cq)).unwrap()
    }
}

/// Returns the kernel's attributes for a step of a connection with the queue pair `peer`.
fn attr(state: QpState, peer: u32, device: &Device1) -> Reply {
    let (step, rest) = match state {
        QpState::INIT => {
            (QpAttrMask::ACCESS_FLAGS | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT, QpAttrMask::empty())
        }
        QpState::RTR => (
            QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN,
            QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER,
        ),
        _ => (
            QpAttrMask::TIMEOUT | QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY | QpAttrMask::SQ_PSN,
            QpAttrMask::MAX_QP_RD_ATOMIC,
        ),
    };
    let grh = IbUverbsGlobalRoute {
        dgid: device.gid.gid.0,
        sgid_index: device.gid.gid_index as u8,
        hop_limit: 64,
        ..IbUverbsGlobalRoute::default()
    };
    let attr = IbUverbsQpAttr {
        // These kernel-only bits are accepted by no device.
        qp_attr_mask: (QpAttrMask::STATE | step | rest).bits() | 0xf << 21,
        qp_state: state.0.into(),
        path_mtu: 3,
        dest_qp_num: peer,
        qp_access_flags: AccessFlags::REMOTE_WRITE.bits(),
        ah_attr: IbUverbsAhAttr { grh, is_global: 1, port_num: 1, ..IbUverbsAhAttr::default() },
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        // The longest delay, as in Linux.
        min_rnr_timer: 0,
        port_num: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..IbUverbsQpAttr::default()
    };
    Reply::bytes(attr.as_bytes())
}

/// Returns the replies for INIT, RTR and RTS.
fn steps(peer: u32, device: &Device1) -> [Reply; 3] {
    [QpState::INIT, QpState::RTR, QpState::RTS].map(|state| attr(state, peer, device))
}

/// Returns the channel's event, after checking that its handling consumed all these replies.
fn event_with(
    world: &World,
    raw: &RdmaUcmEventResp,
    replies: impl IntoIterator<Item = Reply>,
) -> Option<Event> {
    world.kernel.expect([read(raw)]);
    world.replies(replies);
    let found = world.channel.try_next_event().unwrap();
    assert_eq!(world.kernel.remaining(), 0);
    found
}

/// Returns an id that has sent its request with a queue pair.
fn connecting(world: &World, device: &Device1) -> (CmId, u32) {
    let id = world.id(9, PortSpace::TCP);
    device.lend(&id);
    let mut qp = device.qp(world, &id);
    qp.post_recv_buf(device.pd.alloc_buf(64).unwrap(), ..).unwrap();
    let qp_num = qp.qp_num();
    world.replies([Reply::ok()]);
    id.connect(qp, &ConnParam { private_data: b"hi", ..ConnParam::default() }).unwrap();
    assert_eq!(world.last(1), ["6"]);
    (id, qp_num)
}

#[test]
fn a_reply_moves_the_queue_pair_and_the_program_sees_it_established() {
    let (world, device) = (World::new(), Device1::new());
    let (id, qp_num) = connecting(&world, &device);
    assert!(id.take_qp().is_none(), "it is not connected yet");
    let reply = event(id.key().0, EventType::CONNECT_RESPONSE, 0);
    let found = event_with(&world, &reply, steps(qp_num, &device).into_iter().chain([Reply::ok()])).unwrap();
    assert!(matches!(found.kind, EventKind::Established(_)), "{found:?}");
    assert_eq!(world.last(4), ["11", "11", "11", "8"]);
    let qp = id.take_qp().unwrap();
    assert_eq!((qp.state().unwrap(), qp.qp_num()), (QpState::RTS, qp_num));
    let (attr, _) = qp.query(QpAttrMask::ACCESS_FLAGS).unwrap();
    assert!(attr.qp_access_flags.contains(AccessFlags::REMOTE_WRITE), "INIT was set again");
    let (attr, _) = qp.query(QpAttrMask::MIN_RNR_TIMER).unwrap();
    assert_eq!(attr.min_rnr_timer, 12, "a peer without a receive waits for 0.64 ms, not for 655 ms");
    assert!(id.take_qp().is_none() && id.reclaim_qp().unwrap().is_none());
    world.end(id);
}

#[test]
fn a_request_carries_the_queue_pairs_number_and_the_devices_depths() {
    let (world, device) = (World::new(), Device1::new());
    let (id, qp_num) = connecting(&world, &device);
    let seen = world.kernel.seen();
    let text = seen.last().unwrap();
    assert!(text.starts_with(&format!("6: in {}", crate::channel::hex(&qp_num.to_ne_bytes()))), "{text}");
    let limits = Limits::from_context(device.pd.context()).unwrap();
    // The fields after the private data: its length, no shared queue, the device's limits, 7
    // retries.
    let tail = format!("0200{:02x}{:02x}00070701", limits.responder_resources, limits.initiator_depth);
    assert!(text.contains(&tail), "{tail} in {text}");
    world.end(id);
}

#[test]
fn a_failed_reply_is_told_once_and_the_queue_pair_comes_back_flushed() {
    let (world, mut device) = (World::new(), Device1::new());
    let (id, qp_num) = connecting(&world, &device);
    let reply = event(id.key().0, EventType::CONNECT_RESPONSE, 0);
    let replies = steps(qp_num, &device).into_iter().chain([Reply::Errno(Errno::INVAL)]);
    let found = event_with(&world, &reply, replies).unwrap();
    assert!(matches!(found.kind, EventKind::ConnectError), "{found:?}");
    assert_eq!(found.status.errno(), Some(Errno::INVAL));
    for late in [EventType::REJECTED, EventType::DISCONNECTED] {
        assert!(world.event(&event(id.key().0, late, 4)).is_none(), "{late}");
    }
    let qp = id.reclaim_qp().unwrap().unwrap();
    assert_eq!(qp.state().unwrap(), QpState::ERR);
    let flushed = device.cq.poll_within(std::time::Duration::from_secs(30)).unwrap();
    assert_eq!(flushed.status, WcStatus::WR_FLUSH_ERR);
    world.end(id);
}

#[test]
fn attributes_that_no_device_takes_fail_the_connection_and_nothing_else() {
    let (world, device) = (World::new(), Device1::new());
    let (id, _) = connecting(&world, &device);
    let reply = event(id.key().0, EventType::CONNECT_RESPONSE, 0);
    // The options are zero, as in a truncated reply.
    let found = event_with(&world, &reply, [Reply::ok(), Reply::ok(), Reply::ok()]);
    assert!(matches!(found.unwrap().kind, EventKind::ConnectError));
    assert!(id.reclaim_qp().unwrap().is_some());
    world.end(id);
}

#[test]
fn a_reject_brings_its_reason_and_private_data_and_the_queue_pair_back() {
    let (world, device) = (World::new(), Device1::new());
    let (id, _) = connecting(&world, &device);
    let mut param = RdmaUcmConnParam { private_data_len: 2, ..RdmaUcmConnParam::default() };
    param.private_data[..2].copy_from_slice(b"no");
    let rejected = RdmaUcmEventResp {
        param: RdmaUcmEventRespParam::from_conn(param),
        ..event(id.key().0, EventType::REJECTED, 28)
    };
    let found = world.event(&rejected).unwrap();
    let EventKind::Rejected(Rejection { reason, private_data, .. }) = found.kind else { panic!() };
    assert_eq!((reason, &*private_data), (Some(crate::RejectReason::CONSUMER_DEFINED), &b"no"[..]));
    assert_eq!(id.reclaim_qp().unwrap().unwrap().state().unwrap(), QpState::ERR);
    world.end(id);
}

#[test]
fn an_accept_moves_the_queue_pair_and_asks_for_no_more_than_the_peer() {
    let (world, device) = (World::new(), Device1::new());
    let listener = world.id(9, PortSpace::TCP);
    let id = accepted(world.event(&request(&listener, 10)));
    device.lend(&id);
    let qp = device.qp(&world, &id);
    let qp_num = qp.qp_num();
    world.replies(steps(qp_num, &device).into_iter().chain([Reply::ok()]));
    id.accept(qp, &ConnParam::default()).unwrap();
    assert_eq!(world.last(4), ["11", "11", "11", "8"]);
    let seen = world.kernel.seen();
    let cookie = crate::channel::hex(&id.key().0.0.to_ne_bytes());
    assert!(seen.last().unwrap().starts_with(&format!("8: in {cookie}")), "{seen:?}");
    let qp = id.take_qp().unwrap();
    let (attr, _) = qp.query(QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MAX_QP_RD_ATOMIC).unwrap();
    let limits = Limits::from_context(device.pd.context()).unwrap();
    assert_eq!(attr.max_dest_rd_atomic, 2.min(limits.responder_resources));
    assert_eq!(attr.max_rd_atomic, 200.min(limits.initiator_depth));
    let established = world.event(&event(id.key().0, EventType::ESTABLISHED, 0)).unwrap();
    assert_eq!(established.id, id.key());
    world.end(id);
    world.end(listener);
}

#[test]
fn an_accept_that_the_kernel_refuses_leaves_the_queue_pair_to_be_reclaimed() {
    let (world, device) = (World::new(), Device1::new());
    let listener = world.id(9, PortSpace::TCP);
    let id = accepted(world.event(&request(&listener, 10)));
    device.lend(&id);
    let qp = device.qp(&world, &id);
    world.replies(steps(qp.qp_num(), &device).into_iter().chain([Reply::Errno(Errno::INVAL)]));
    let error = id.accept(qp, &ConnParam::default()).unwrap_err();
    assert!(error.to_string().contains("no request that waits"), "{error}");
    assert_eq!(id.reclaim_qp().unwrap().unwrap().state().unwrap(), QpState::ERR);
    world.end(id);
    world.end(listener);
}

#[test]
fn a_second_queue_pair_is_refused_while_the_id_holds_one() {
    let (world, device) = (World::new(), Device1::new());
    let (id, _) = connecting(&world, &device);
    let second = device.qp(&world, &id);
    assert_eq!(id.connect(second, &ConnParam::default()).unwrap_err().errno, Errno::BUSY);
    assert_eq!(id.establish().unwrap_err().errno, Errno::INVAL);
    assert!(id.reclaim_qp().unwrap().is_some(), "the first one stays");
    world.end(id);
}

#[test]
fn an_id_that_is_dropped_while_it_connects_takes_its_queue_pair_along() {
    let (world, device) = (World::new(), Device1::new());
    let (id, _) = connecting(&world, &device);
    world.end(id);
    let Device1 { pd, .. } = device;
    pd.close().unwrap();
}

#[test]
fn a_program_with_a_queue_pair_of_its_own_sees_the_reply_and_establishes() {
    let world = World::new();
    let id = world.id(9, PortSpace::TCP);
    let param =
        ConnParam { qp_num: 0x77, responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
    world.replies([Reply::ok()]);
    id.connect_with(&param).unwrap();
    let found = world.event(&event(id.key().0, EventType::CONNECT_RESPONSE, 0)).unwrap();
    assert!(matches!(found.kind, EventKind::ConnectResponse(_)), "{found:?}");
    world.replies([Reply::ok()]);
    id.establish().unwrap();
    assert_eq!(world.last(1), ["8"]);
    world.end(id);
}

#[test]
fn a_datagram_queue_pair_is_ready_at_once() {
    let (world, device) = (World::new(), Device1::new());
    let id = world.id(9, PortSpace::UDP);
    device.lend(&id);
    let init = QpInit::new(QpType::UD, &device.cq);
    let attr = IbUverbsQpAttr {
        qp_attr_mask: (QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY)
            .bits(),
        qp_state: QpState::INIT.0.into(),
        qkey: PortSpace::UDP_QKEY,
        port_num: 1,
        ..IbUverbsQpAttr::default()
    };
    world.replies([Reply::bytes(attr.as_bytes())]);
    let qp = id.create_ud_qp(&device.pd, &init).unwrap();
    assert_eq!(qp.state().unwrap(), QpState::RTS);
    // Neither call creates the type that the other call creates.
    assert!(id.create_qp(&device.pd, &init).unwrap_err().to_string().contains("create_ud_qp"));
    let rc = QpInit::new(QpType::RC, &device.cq);
    assert!(id.create_ud_qp(&device.pd, &rc).unwrap_err().to_string().contains("create_qp"));
    // A datagram request has no depths.
    world.replies([Reply::ok()]);
    id.connect_with(&ConnParam::default()).unwrap();
    world.end(id);
}
