//! Connections by address: their data and the information for each side.
//!
//! Both sides run in the case's process, at the address of the device under test: the IPv4 address
//! of a soft device or of a netdev, or the GID of an InfiniBand port. These cases have one form,
//! because the provider of a connection's device is erased.

use std::net::Ipv4Addr;
use std::time::Duration;

use rdmacm::{Address, ConnParam, EventChannel, EventKind, EventType, IbAddress, Message, PortSpace};
use verbs::state::{Init, Rtr, Rts};
use verbs::{
    AccessFlags, AsyncEventType, Errno, Gid, Qp, QpAttrMask, QpInit, QpState, QpType, SendOp, SrqInit,
    WcOpcode,
};
use verbs_fixtures::cm_fabric::{
    Client, Connected, MESSAGE, Parts, RESOLVING, Server, arrived, connect, expect, here, is_readable, take,
    with_port,
};
use verbs_fixtures::fabric::{self, Arena, pattern, post_send, signalled, wait_for};
use verbs_harness::cases;
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;

/// Returns the cases of this file.
pub fn cases() -> Vec<Case> {
    cases!(
        SUITE,
        messages_writes_and_reads_cross_a_connection,
        private_data_is_padded_to_the_length_of_its_message,
        each_side_gets_the_numbers_that_the_other_one_chose,
        depths_that_are_not_chosen_are_those_of_the_devices,
        a_side_that_serves_no_reads_permits_none,
        both_sides_know_addresses_gids_and_device,
        a_listener_on_any_address_knows_which_one_a_request_came_to,
        options_reach_the_path_and_the_queue_pair,
        a_shared_receive_queue_is_known_to_the_peer_and_receives,
        a_queue_pair_of_the_programs_own_connects_by_the_attributes_of_its_id,
        a_message_that_came_first_establishes_the_connection,
        an_id_moves_to_another_channel_with_its_events,
        a_channel_is_readable_while_an_event_waits,
        an_event_that_the_program_writes_waits_behind_others,
    )
}

/// Private data for a request. Unless the data begins like this, Linux treats a request to a GID as
/// a request to an IP address.
pub(super) const QUESTION: &[u8] = b"\0\0question \xff\0?";

/// Private data for a reply.
pub(super) const ANSWER: &[u8] = b"\x80answer\0!";

/// Returns the bytes that a peer receives for private data in a message with space for `len` bytes.
pub(super) fn padded(data: &[u8], len: usize) -> Vec<u8> {
    let mut padded = data.to_vec();
    padded.resize(len, 0);
    padded
}

/// Returns the space for private data in a message with `len` bytes: connecting to an IP address
/// takes 36 of them.
pub(super) fn room(address: &Address, len: usize) -> usize {
    if matches!(address, Address::Ib(_)) { len } else { len - 36 }
}

fn messages_writes_and_reads_cross_a_connection() -> CaseResult {
    let mut connected = connect(here()?)?;
    let [(near, near_qp), (far, far_qp)] = &mut connected.ends;
    let (source, target) = (Arena::new(&near.pd, 4096)?, Arena::new(&far.pd, 4096)?);
    source.write(0, &pattern(1, 3000));
    let (remote_addr, rkey) = (target.addr(), target.rkey());
    let sge = [source.sge(0..3000)];
    post_send(near_qp, &[signalled(1, SendOp::RdmaWrite { remote_addr, rkey }, &sge)])?;
    wait_for(&mut near.cq, 1, WcOpcode::RDMA_WRITE)?;
    assert_eq!(target.read(0..3000), pattern(1, 3000));
    target.write(0, &pattern(2, 3000));
    post_send(near_qp, &[signalled(2, SendOp::RdmaRead { remote_addr, rkey }, &sge)])?;
    wait_for(&mut near.cq, 2, WcOpcode::RDMA_READ)?;
    assert_eq!(source.read(0..3000), pattern(2, 3000));

    near.send(near_qp, b"there")?;
    assert_eq!(far.receive()?, b"there");
    far.send(far_qp, b"and back")?;
    assert_eq!(near.receive()?, b"and back");
    Ok(())
}

fn private_data_is_padded_to_the_length_of_its_message() -> CaseResult {
    let here = here()?;
    let (request, reply) = (room(&here, 92), 196);
    let bytes: Vec<u8> = (0..=u8::MAX).collect();
    for (question, answer) in [(QUESTION, ANSWER), (&[], &[]), (&bytes[..request], &bytes[..reply])] {
        let param = |private_data| ConnParam { private_data, ..ConnParam::default() };
        let connected = Connected::new(here, &param(question), &param(answer))?;
        assert_eq!(connected.asked.private_data, padded(question, request));
        assert_eq!(connected.replied.private_data, padded(answer, reply));
        let most = [Message::Connect, Message::Accept].map(|it| connected.client.id.max_private_data(it));
        assert_eq!(most, [request, reply]);
    }
    Ok(())
}

fn each_side_gets_the_numbers_that_the_other_one_chose() -> CaseResult {
    let request = ConnParam {
        responder_resources: 4,
        initiator_depth: 2,
        flow_control: true,
        retry_count: 5,
        rnr_retry_count: 3,
        ..ConnParam::default()
    };
    let reply = ConnParam {
        responder_resources: 1,
        initiator_depth: 2,
        flow_control: true,
        rnr_retry_count: 4,
        ..ConnParam::default()
    };
    let Connected { server, client, accepted, ends, asked, replied } =
        Connected::new(here()?, &request, &reply)?;
    let [(_near, near_qp), (_far, far_qp)] = &ends;
    // Each side sees the depths from its own point of view.
    assert_eq!((asked.responder_resources, asked.initiator_depth), (2, 4));
    assert_eq!((asked.retry_count, asked.rnr_retry_count), (5, 3));
    assert_eq!((asked.flow_control, asked.srq, asked.qp_num), (true, false, near_qp.qp_num()));
    assert_eq!((replied.responder_resources, replied.initiator_depth), (2, 1));
    assert_eq!((replied.rnr_retry_count, replied.flow_control), (4, true));
    assert_eq!((replied.srq, replied.qp_num), (false, far_qp.qp_num()));

    let mask = QpAttrMask::MAX_QP_RD_ATOMIC
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::RETRY_CNT
        | QpAttrMask::RNR_RETRY
        | QpAttrMask::MIN_RNR_TIMER
        | QpAttrMask::DEST_QPN;
    let (near, far) = (near_qp.query(mask)?.0, far_qp.query(mask)?.0);
    assert_eq!((near.max_rd_atomic, near.max_dest_rd_atomic), (1, 2));
    assert_eq!((far.max_rd_atomic, far.max_dest_rd_atomic), (2, 1));
    assert_eq!((near.retry_cnt, near.rnr_retry, near.dest_qp_num), (5, 4, far_qp.qp_num()));
    assert_eq!((far.retry_cnt, far.rnr_retry, far.dest_qp_num), (5, 3, near_qp.qp_num()));
    // No message carries the timer. The kernel's default is 0, the longest time.
    assert_eq!([near.min_rnr_timer, far.min_rnr_timer], [ConnParam::MIN_RNR_TIMER; 2]);
    drop((server, client, accepted));
    Ok(())
}

fn depths_that_are_not_chosen_are_those_of_the_devices() -> CaseResult {
    let connected = connect(here()?)?;
    let attr = fabric::open()?.query_device()?;
    let depth = |depth: u32| u8::try_from(depth).unwrap_or(u8::MAX);
    let wanted = (depth(attr.max_qp_init_rd_atom), depth(attr.max_qp_rd_atom));
    let Connected { asked, replied, .. } = &connected;
    assert_eq!((asked.responder_resources, asked.initiator_depth), wanted);
    let both = wanted.0.min(wanted.1);
    assert_eq!((replied.responder_resources, replied.initiator_depth), (both, both));
    Ok(())
}

fn a_side_that_serves_no_reads_permits_none() -> CaseResult {
    let request = ConnParam { responder_resources: 1, initiator_depth: 0, ..ConnParam::default() };
    let connected = Connected::new(here()?, &request, &ConnParam::default())?;
    let rights = connected
        .ends
        .each_ref()
        .map(|(_, qp)| Ok::<_, verbs::Error>(qp.query(QpAttrMask::ACCESS_FLAGS)?.0.qp_access_flags));
    let [near, far] = rights;
    let (near, far, read) = (near?, far?, AccessFlags::REMOTE_READ);
    assert!(near.contains(AccessFlags::REMOTE_WRITE | read), "{near:?}");
    assert!(far.contains(AccessFlags::REMOTE_WRITE) && !far.intersects(read), "{far:?}");
    Ok(())
}

fn both_sides_know_addresses_gids_and_device() -> CaseResult {
    let connected = connect(here()?)?;
    let Connected { server, client, accepted, .. } = &connected;
    let gid = fabric::open()?.find_gid(fabric::PORT)?.gid;
    assert_eq!(accepted.local_addr()?, Some(server.address));
    assert_eq!(client.id.peer_addr()?, Some(server.address));
    let Some(local) = client.id.local_addr()? else { return fail("the client has no address") };
    match (server.address, local) {
        (Address::Ip(server), Address::Ip(local)) => {
            assert!(local.ip() == server.ip() && local.port() != 0 && local != server, "{local}");
            assert_eq!(accepted.peer_addr()?, Some(local.into()));
        }
        // For a client at a GID, Linux keeps no service id.
        (Address::Ib(server), Address::Ib(local)) => assert_eq!(local.gid, server.gid),
        other => return fail(format_args!("{other:?}")),
    }
    for id in [&client.id, accepted] {
        assert_eq!(id.context()?.device_name(), fabric::under_test());
        assert_eq!(id.gids()?, (gid, gid));
        assert_eq!(id.port_num()?, Some(fabric::PORT));
        if server.address.ip().is_none() {
            // Linux returns 0 for an Ethernet port.
            assert_eq!(id.pkey()?, Some(0xffff));
        }
        let paths = id.paths()?;
        let [path] = paths[..] else { return fail(format_args!("{paths:?}")) };
        assert_eq!((path.sgid, path.dgid), (gid, gid));
    }
    Ok(())
}

fn a_listener_on_any_address_knows_which_one_a_request_came_to() -> CaseResult {
    let here = here()?;
    let any: Address = match here {
        Address::Ib(_) => IbAddress::new(Gid::ZERO, PortSpace::TCP, 0).into(),
        _ => (Ipv4Addr::UNSPECIFIED, 0).into(),
    };
    let server = Server::new(any, PortSpace::TCP, 4)?;
    let to = with_port(here, PortSpace::TCP, server.address.port());
    let client = Client::new(to, PortSpace::TCP)?;
    let parts = Parts::for_id(&client.id)?;
    client.id.connect(parts.qp(&client.id)?, &ConnParam::default())?;
    let (request, _) = server.request()?;
    assert_eq!(request.local_addr()?, Some(to));
    assert_eq!(request.context()?.device_name(), fabric::under_test());
    assert_eq!(server.listener.port_num()?, None, "it listens on all devices");
    Ok(())
}

fn options_reach_the_path_and_the_queue_pair() -> CaseResult {
    const TOS: u8 = 104;
    const TIMEOUT: u8 = 15;
    let server = Server::new(here()?, PortSpace::TCP, 4)?;
    let channel = EventChannel::new()?;
    let id = channel.create_id(PortSpace::TCP)?;
    id.set_ack_timeout(TIMEOUT)?;
    id.set_tos(TOS)?;
    let client = Client { channel, id }.resolved(None, server.address)?;
    let is_ip = server.address.ip().is_some();
    let connected = Connected::between(server, client, &ConnParam::default(), &ConnParam::default())?;
    let [(_, near), (_, far)] = &connected.ends;
    assert_eq!(near.query(QpAttrMask::TIMEOUT)?.0.timeout, TIMEOUT);
    if is_ip {
        // At a GID, the program supplies the path.
        assert_eq!(connected.client.id.paths()?[0].traffic_class, TOS);
        for qp in [near, far] {
            let route = qp.query(QpAttrMask::AV)?.0.ah_attr.grh;
            assert_eq!(route.map(|route| route.traffic_class), Some(TOS));
        }
    }
    Ok(())
}

fn a_shared_receive_queue_is_known_to_the_peer_and_receives() -> CaseResult {
    let server = Server::new(here()?, PortSpace::TCP, 4)?;
    let (client, connects) = Client::requesting(&server)?;
    let (accepted, _) = server.request()?;
    let mut accepts = Parts::for_id(&accepted)?;
    let mut srq = accepts.pd.create_srq(&SrqInit::new(4))?;
    srq.post_recv_buf(accepts.pd.alloc_buf(MESSAGE)?, ..)?;
    let init = QpInit { srq: Some(srq.handle()), ..QpInit::new(QpType::RC, &accepts.cq) };
    let qp = accepted.create_qp(&accepts.pd, &init)?;
    accepted.accept(qp, &ConnParam::default())?;
    match expect(&client.channel, EventType::ESTABLISHED)?.kind {
        EventKind::Established(rdmacm::Peer::Conn(peer)) => assert!(peer.srq, "{peer:?}"),
        other => return fail(format_args!("{other:?}")),
    }
    expect(&server.channel, EventType::ESTABLISHED)?;
    let (mut near, _far) = (take(&client.id)?, take(&accepted)?);
    connects.send(&mut near, b"shared")?;
    assert_eq!(accepts.receive()?, b"shared");
    Ok(())
}

fn a_queue_pair_of_the_programs_own_connects_by_the_attributes_of_its_id() -> CaseResult {
    let server = Server::new(here()?, PortSpace::TCP, 4)?;
    let client = Client::new(server.address, PortSpace::TCP)?;
    let mut parts = Parts::for_id(&client.id)?;
    let init = QpInit::new(QpType::RC, &parts.cq);
    let (attr, mask) = client.id.init_qp_attr(QpState::INIT)?;
    let mut qp: Qp<Init> = parts.pd.create_qp(&init)?.modify_to(&attr, mask)?;
    qp.post_recv_buf(parts.pd.alloc_buf(MESSAGE)?, ..)?;
    client.id.connect_with(&ConnParam { qp_num: qp.qp_num(), ..ConnParam::default() })?;

    let (accepted, peer) = server.request()?;
    assert!(matches!(peer, rdmacm::Peer::Conn(peer) if peer.qp_num == qp.qp_num()));
    let mut other = Parts::for_id(&accepted)?;
    let other_qp = other.qp(&accepted)?;
    accepted.accept(other_qp, &ConnParam::default())?;
    expect(&client.channel, EventType::CONNECT_RESPONSE)?;
    let (attr, mask) = client.id.init_qp_attr(QpState::INIT)?;
    qp.modify(&attr, mask)?;
    let (attr, mask) = client.id.init_qp_attr(QpState::RTR)?;
    let qp: Qp<Rtr> = qp.modify_to(&attr, mask)?;
    let (attr, mask) = client.id.init_qp_attr(QpState::RTS)?;
    let mut qp: Qp<Rts> = qp.modify_to(&attr, mask)?;
    client.id.establish()?;
    expect(&server.channel, EventType::ESTABLISHED)?;

    let mut other_qp = take(&accepted)?;
    parts.send(&mut qp, b"there")?;
    assert_eq!(other.receive()?, b"there");
    other.send(&mut other_qp, b"and back")?;
    assert_eq!(parts.receive()?, b"and back");
    Ok(())
}

fn a_message_that_came_first_establishes_the_connection() -> CaseResult {
    let server = Server::new(here()?, PortSpace::TCP, 4)?;
    let client = Client::new(server.address, PortSpace::TCP)?;
    let depths = ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
    client.id.connect_with(&ConnParam { qp_num: 7, ..depths })?;
    let (accepted, _) = server.request()?;
    let parts = Parts::for_id(&accepted)?;
    accepted.accept(parts.qp(&accepted)?, &ConnParam::default())?;
    expect(&client.channel, EventType::CONNECT_RESPONSE)?;
    // The notification replaces the client's last message.
    accepted.notify(AsyncEventType::COMM_EST)?;
    let event = expect(&server.channel, EventType::ESTABLISHED)?;
    assert_eq!(event.id, accepted.key());
    client.id.establish()?;
    client.id.disconnect()?;
    expect(&server.channel, EventType::DISCONNECTED).map(drop)
}

fn an_id_moves_to_another_channel_with_its_events() -> CaseResult {
    let server = Server::new(here()?, PortSpace::TCP, 4)?;
    let (client, _parts) = Client::requesting(&server)?;
    let other = EventChannel::new()?;
    let (request, _) = server.request()?;
    client.id.migrate(&other)?;
    request.reject(b"moved")?;
    expect(&other, EventType::REJECTED)?;
    assert!(client.channel.try_next_event()?.is_none());
    // A pending event moves with its id.
    let id = client.channel.create_id(PortSpace::TCP)?;
    id.resolve_addr(None, server.address, RESOLVING)?;
    arrived(&client.channel)?;
    id.migrate(&other)?;
    assert_eq!(expect(&other, EventType::ADDR_RESOLVED)?.id, id.key());
    assert!(client.channel.try_next_event()?.is_none());
    Ok(())
}

fn a_channel_is_readable_while_an_event_waits() -> CaseResult {
    let server = Server::new(here()?, PortSpace::TCP, 4)?;
    let channel = EventChannel::new()?;
    let id = channel.create_id(PortSpace::TCP)?;
    let is_idle = || -> CaseResult<bool> {
        let none = channel.next_event_within(Duration::from_millis(1))?.is_none();
        Ok(none && channel.try_next_event()?.is_none() && !is_readable(&channel, Duration::ZERO)?)
    };
    assert!(is_idle()?);
    id.resolve_addr(None, server.address, RESOLVING)?;
    arrived(&channel)?;
    arrived(&channel)?;
    assert_eq!(expect(&channel, EventType::ADDR_RESOLVED)?.id, id.key());
    assert!(is_idle()?);
    Ok(())
}

fn an_event_that_the_program_writes_waits_behind_others() -> CaseResult {
    let server = Server::new(here()?, PortSpace::TCP, 4)?;
    let channel = EventChannel::new()?;
    let id = channel.create_id(PortSpace::TCP)?;
    id.resolve_addr(None, server.address, RESOLVING)?;
    arrived(&channel)?;
    match id.write_event(5, 77) {
        Err(error) if error.errno == Errno::INVAL && !fabric::is_soft()? => {
            return skip("the kernel has no events that programs write");
        }
        written => written?,
    }
    expect(&channel, EventType::ADDR_RESOLVED)?;
    let event = expect(&channel, EventType::USER)?;
    assert!(matches!(event.kind, EventKind::User(77)), "{event:?}");
    assert_eq!((event.id, event.status.0), (id.key(), 5));
    Ok(())
}
