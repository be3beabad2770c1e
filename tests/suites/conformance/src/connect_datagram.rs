//! Datagram services, looked up by address, and multicast groups.

use std::net::Ipv4Addr;

use rdmacm::{
    Address, CmId, ConnParam, EventChannel, EventKind, EventType, Message, Peer, PeerUd, PortSpace,
};
use verbs::state::Rts;
use verbs::{Errno, Gid, Qp, QpInit, QpType, SendOp};
use verbs_fixtures::cm_fabric::{Client, MESSAGE, Parts, RESOLVING, Server, arrived, expect, here};
use verbs_harness::cases;
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;
use super::connect::{ANSWER, QUESTION, padded, room};

/// Returns the cases of this file.
pub fn cases() -> Vec<Case> {
    cases!(
        SUITE,
        a_service_is_looked_up_by_its_address_and_receives,
        a_service_that_refuses_or_is_missing_is_unreachable,
        a_lookup_beyond_the_backlog_is_refused,
        a_group_is_joined_and_left,
        members_of_a_group_hear_what_is_sent_to_it,
    )
}

/// The length of private data in a lookup reply, in bytes.
const REPLY: usize = 136;

/// The number of bytes before a datagram in its receive buffer.
const GRH: usize = 40;

/// The statuses in a lookup reply: rejected by the listener and no listener.
const REFUSED: i32 = 2;
const NO_SERVICE: i32 = 1;

fn server(backlog: u32) -> CaseResult<Server> {
    Server::new(here()?, PortSpace::UDP, backlog)
}

/// Looks up a service and returns the client, which waits for the outcome.
fn looking_up(server: Address) -> CaseResult<Client> {
    let client = Client::new(server, PortSpace::UDP)?;
    client.id.connect_with(&ConnParam { private_data: QUESTION, ..ConnParam::default() })?;
    Ok(client)
}

/// Creates a datagram queue pair for an id, with a receive posted.
fn queue_pair(id: &CmId) -> CaseResult<(Parts, Qp<Rts>)> {
    let parts = Parts::for_id(id)?;
    let mut qp = id.create_ud_qp(&parts.pd, &QpInit::new(QpType::UD, &parts.cq))?;
    parts.post_recv(&mut qp, GRH + MESSAGE)?;
    Ok((parts, qp))
}

/// Sends a message to a service or a group and waits until the address handle may be destroyed.
fn send(parts: &mut Parts, qp: &mut Qp<Rts>, to: &PeerUd, message: &[u8]) -> CaseResult {
    let ah = parts.pd.create_ah(&to.ah_attr)?;
    parts.post(qp, SendOp::UdSend { to: ah.to(to.qp_num, to.qkey) }, message)?;
    parts.complete().map(drop)
}

fn a_service_is_looked_up_by_its_address_and_receives() -> CaseResult {
    let server = server(4)?;
    let client = looking_up(server.address)?;
    let (request, peer) = server.request()?;
    let len = room(&server.address, 216);
    assert_eq!(peer.private_data(), padded(QUESTION, len));
    let most = [Message::Connect, Message::Accept].map(|message| client.id.max_private_data(message));
    assert_eq!(most, [len, REPLY]);
    let (mut serves, serving) = queue_pair(&request)?;
    let qp_num = serving.qp_num();
    request.accept_with(&ConnParam { private_data: ANSWER, qp_num, ..ConnParam::default() })?;

    let established = expect(&client.channel, EventType::ESTABLISHED)?;
    let EventKind::Established(Peer::Ud(ud)) = established.kind else {
        return fail(format_args!("{established:?}"));
    };
    assert_eq!((ud.qp_num, ud.qkey), (qp_num, PortSpace::UDP_QKEY));
    assert_eq!(ud.private_data, padded(ANSWER, REPLY));
    let (mut asks, mut asking) = queue_pair(&client.id)?;
    send(&mut asks, &mut asking, &ud, b"hello")?;
    assert_eq!(&serves.receive()?[GRH..], b"hello");
    Ok(())
}

fn a_service_that_refuses_or_is_missing_is_unreachable() -> CaseResult {
    let server = server(4)?;
    let unreachable = |client: Client, status: i32, words: &str| {
        let event = match expect(&client.channel, EventType::UNREACHABLE) {
            Ok(event) => event,
            Err(stop) => return Err(stop.context(words)),
        };
        assert_eq!((event.id, event.status.0), (client.id.key(), status));
        let error = event.ok().expect_err("no service");
        assert!(error.to_string().contains(words), "{error}");
        Ok(())
    };
    let client = looking_up(server.address)?;
    server.request()?.0.reject(ANSWER)?;
    unreachable(client, REFUSED, "rejected the request")?;
    let client = looking_up(server.address)?;
    drop(server.request()?);
    unreachable(client, REFUSED, "rejected the request")?;
    let address = server.address;
    drop(server);
    unreachable(looking_up(address)?, NO_SERVICE, "no program listens")
}

fn a_lookup_beyond_the_backlog_is_refused() -> CaseResult {
    let server = server(1)?;
    let first = looking_up(server.address)?;
    arrived(&server.channel)?;
    let second = looking_up(server.address)?;
    assert_eq!(expect(&second.channel, EventType::UNREACHABLE)?.status.0, REFUSED);
    // Reading the request frees a slot in the backlog.
    let (_waits, _) = server.request()?;
    let _third = looking_up(server.address)?;
    server.request()?;
    assert!(first.channel.try_next_event()?.is_none());
    Ok(())
}

/// The group, with port 0 because multicast addresses have no port.
const GROUP: (Ipv4Addr, u16) = (Ipv4Addr::new(239, 9, 9, 1), 0);

/// Returns an id bound to the device under test.
fn member(channel: &EventChannel) -> CaseResult<CmId> {
    let here = here()?;
    if here.ip().is_none() {
        return skip("a group of an InfiniBand fabric takes a subnet administrator");
    }
    let id = channel.create_id(PortSpace::UDP)?;
    id.resolve_addr(Some(here), GROUP, RESOLVING)?;
    expect(channel, EventType::ADDR_RESOLVED)?;
    Ok(id)
}

/// Joins the group and returns its address.
fn join(channel: &EventChannel, id: &CmId) -> CaseResult<(rdmacm::GroupKey, PeerUd)> {
    let key = id.join_multicast(GROUP, false)?;
    match expect(channel, EventType::MULTICAST_JOIN)?.kind {
        EventKind::MulticastJoin { group, ud } if group == key => Ok((key, ud)),
        other => fail(format_args!("{other:?} of another group than {key:?}")),
    }
}

fn group_gid(ud: &PeerUd) -> CaseResult<Gid> {
    match ud.ah_attr.grh {
        Some(route) => Ok(route.dgid),
        None => fail(format_args!("a group without a GID: {ud:?}")),
    }
}

fn a_group_is_joined_and_left() -> CaseResult {
    let channel = EventChannel::new()?;
    let id = member(&channel)?;
    let not_bound = channel.create_id(PortSpace::UDP)?;
    assert_eq!(not_bound.join_multicast(GROUP, false).unwrap_err().errno, Errno::INVAL);
    let (key, ud) = join(&channel, &id)?;
    assert!(group_gid(&ud)?.is_multicast() || group_gid(&ud)?.to_ipv4() == Some(GROUP.0), "{ud:?}");
    assert_eq!((ud.qp_num, ud.qkey), (0xff_ffff, PortSpace::UDP_QKEY));
    id.leave_multicast(key)?;
    assert_eq!(id.leave_multicast(key).unwrap_err().errno, Errno::ADDRNOTAVAIL);
    // The id joins again and is dropped with its memberships.
    join(&channel, &id)?;
    Ok(())
}

fn members_of_a_group_hear_what_is_sent_to_it() -> CaseResult {
    let channel = EventChannel::new()?;
    let (hears, sends) = (member(&channel)?, member(&channel)?);
    let (_, ud) = join(&channel, &hears)?;
    let (mut parts, mut qp) = queue_pair(&hears)?;
    qp.attach_mcast(&group_gid(&ud)?, ud.ah_attr.dlid)?;
    let (_, ud) = join(&channel, &sends)?;
    let (mut sending, mut sender) = queue_pair(&sends)?;
    send(&mut sending, &mut sender, &ud, b"to all")?;
    assert_eq!(&parts.receive()?[GRH..], b"to all");
    Ok(())
}
