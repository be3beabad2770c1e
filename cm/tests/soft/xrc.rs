//! Connections over XRC, between an initiator and a target with a shared receive queue in the
//! target's domain.

use rdmacm::{CmId, ConnParam, EventChannel, EventKind, Message, PortSpace, RejectReason};
use verbs::{CqInit, Errno, QpInit, QpType, SendFlags, SendOp, SrqInit, XrcdInit};

use crate::support::{End, Host, PATIENCE, RESOLVE, established, next, request};

/// Returns a listener with queue pair type `qp_type`, and its channel.
fn listener(host: &Host, qp_type: QpType) -> (EventChannel, CmId) {
    let channel = EventChannel::new().unwrap();
    let listener = channel.create_id_of(PortSpace::IB, qp_type).unwrap();
    listener.bind_addr(host.at(0)).unwrap();
    listener.listen(0).unwrap();
    (channel, listener)
}

/// Returns an id with queue pair type `qp_type` and a resolved route to a listener.
fn resolved(channel: &EventChannel, qp_type: QpType, listener: &CmId) -> CmId {
    let id = channel.create_id_of(PortSpace::IB, qp_type).unwrap();
    id.resolve_addr(None, listener.local_addr().unwrap().unwrap(), RESOLVE).unwrap();
    assert!(matches!(next(channel).ok().unwrap().kind, EventKind::AddrResolved));
    id.resolve_route(RESOLVE).unwrap();
    assert!(matches!(next(channel).ok().unwrap().kind, EventKind::RouteResolved));
    id
}

#[test]
fn a_message_of_an_initiator_arrives_in_the_shared_receive_queue_of_the_targets_domain() {
    let host = Host::new();
    let (at_listener, listener) = listener(&host, QpType::XRC_RECV);
    let channel = EventChannel::new().unwrap();
    let client = resolved(&channel, QpType::XRC_SEND, &listener);
    let mut end = End::from_id(&client);
    let init = QpInit { sq_sig_all: true, ..QpInit::new(QpType::XRC_SEND, &end.cq) };
    let qp = client.create_qp(&end.pd, &init).unwrap();
    client.connect(qp, &ConnParam::default()).unwrap();

    let accepted = request(&at_listener).id;
    assert_eq!(accepted.qp_type(), QpType::XRC_RECV);
    let context = accepted.context().unwrap();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(&CqInit::new(1)).unwrap();
    let xrcd = context.open_xrcd(&XrcdInit::default()).unwrap();
    let mut srq = xrcd.create_srq(&pd, &cq, &SrqInit::new(1)).unwrap();
    srq.post_recv_buf(pd.alloc_buf(16).unwrap(), ..).unwrap();
    let target = accepted.create_target(&xrcd).unwrap();
    let number = srq.srq_num().unwrap().to_be_bytes();
    accepted.accept(target, &ConnParam { private_data: &number, ..ConnParam::default() }).unwrap();

    let EventKind::Established(peer) = next(&channel).kind else { panic!("no connection") };
    established(&at_listener, &accepted);
    // The target is kept, because a dropped target receives nothing.
    let _target = accepted.take_qp().unwrap();
    let remote_srqn = u32::from_be_bytes(peer.private_data()[..4].try_into().unwrap());
    let mut qp = client.take_qp().unwrap();
    let mut message = end.pd.alloc_buf(5).unwrap();
    message.copy_from_slice(b"hello");
    let op = SendOp::Xrc { remote_srqn, op: &SendOp::Send };
    qp.post_send_buf(op, SendFlags::empty(), message, ..).unwrap();
    end.cq.poll_within(PATIENCE).unwrap().ok().unwrap();
    let received = cq.poll_within(PATIENCE).unwrap().ok().unwrap();
    assert_eq!(&received.into_buf().unwrap()[..5], b"hello");

    client.disconnect().unwrap();
    assert!(matches!(next(&at_listener).kind, EventKind::Disconnected));
    accepted.disconnect().unwrap();
    assert!(matches!(next(&channel).kind, EventKind::Disconnected));
}

#[test]
fn a_listener_for_xrc_targets_rejects_reliable_connections_and_the_reverse() {
    let host = Host::new();
    for (listens, connects) in [(QpType::XRC_RECV, QpType::RC), (QpType::RC, QpType::XRC_SEND)] {
        let (_at_listener, listener) = listener(&host, listens);
        let channel = EventChannel::new().unwrap();
        let client = resolved(&channel, connects, &listener);
        let end = End::from_id(&client);
        let qp = client.create_qp(&end.pd, &QpInit::new(connects, &end.cq)).unwrap();
        client.connect(qp, &ConnParam::default()).unwrap();
        let event = next(&channel);
        let EventKind::Rejected(rejection) = &event.kind else { panic!("{event:?}") };
        assert_eq!(rejection.reason, Some(RejectReason::INVALID_TRANSPORT_TYPE), "{listens} {connects}");
    }
}

#[test]
fn only_an_id_of_the_type_has_an_xrc_target() {
    let host = Host::new();
    let (_at_listener, listener) = listener(&host, QpType::RC);
    let xrcd = listener.context().unwrap().open_xrcd(&XrcdInit::default()).unwrap();
    let error = listener.create_target(&xrcd).unwrap_err();
    assert_eq!(error.errno, Errno::INVAL);
    assert!(error.to_string().contains("has no XRC target"), "{error}");
}

#[test]
fn a_request_over_xrc_carries_the_header_of_ip_besides_private_data() {
    let host = Host::new();
    let (_at_listener, listener) = listener(&host, QpType::XRC_RECV);
    let channel = EventChannel::new().unwrap();
    let client = resolved(&channel, QpType::XRC_SEND, &listener);
    assert_eq!(client.max_private_data(Message::Connect), 56);
    let end = End::from_id(&client);
    let qp = client.create_qp(&end.pd, &QpInit::new(QpType::XRC_SEND, &end.cq)).unwrap();
    let param = ConnParam { private_data: &[0; 57], ..ConnParam::default() };
    let error = client.connect(qp, &param).unwrap_err();
    assert!(error.to_string().contains("length of private_data 57 exceeds the 56 bytes"), "{error}");
}

#[test]
fn a_space_with_one_transport_service_has_it_whatever_is_asked_for() {
    let _host = Host::new();
    let channel = EventChannel::new().unwrap();
    for (space, service) in
        [(PortSpace::TCP, QpType::RC), (PortSpace::UDP, QpType::UD), (PortSpace::IPOIB, QpType::UD)]
    {
        let id = channel.create_id_of(space, QpType::XRC_SEND).unwrap();
        assert_eq!((id.port_space(), id.qp_type()), (space, service));
    }
}
