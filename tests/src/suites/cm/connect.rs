//! Connections and lookups, and what they carry.

use std::net::{IpAddr, Ipv6Addr};
use std::process::Command;

use rdmacm::{ConnParam, EventChannel, EventKind, EventType, Peer, PortSpace};
use verbs::state::{Init, Rts};
use verbs::{Gid, Qp, QpInit, QpState, QpType, SendOp, UdAddr};

use super::{SUITE, at, here, server};
use crate::cases;
use crate::cm_fabric::{Client, Connected, Parts, RESOLVING, arrived, connect, expect, take};
use crate::fabric::{self, PATIENCE};
use crate::process;
use crate::runner::{Case, CaseResult, fail};
use crate::tools::run;

/// Cases for any device.
pub(super) fn of_any_device() -> Vec<Case> {
    cases!(
        SUITE,
        a_connection_by_ipv4_address_carries_messages_both_ways,
        a_queue_pair_of_the_programs_own_connects_by_the_kernels_attributes,
        a_datagram_service_is_looked_up_by_its_address,
        an_id_moves_to_another_channel_with_its_events,
    )
}

/// Cases of rxe0, whose netdev they change.
pub(super) fn of_rxe() -> Vec<Case> {
    cases!(SUITE, a_connection_by_ipv6_address_carries_messages_both_ways)
}

/// An address that the cases of IPv6 give the netdev.
const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd09, 9, 0, 0, 0, 0, 0, 1));

fn both_ways(ip: IpAddr) -> CaseResult {
    let Connected { server, client, accepted, ends } = connect(at(ip))?;
    let [(mut here, mut here_qp), (mut there, mut there_qp)] = ends;
    here.send(&mut here_qp, b"there")?;
    assert_eq!(there.receive()?, b"there");
    there.send(&mut there_qp, b"and back")?;
    assert_eq!(here.receive()?, b"and back");

    let here_qp = here_qp.to_error()?;
    client.id.disconnect()?;
    expect(&server.channel, EventType::DISCONNECTED)?;
    accepted.disconnect()?;
    expect(&client.channel, EventType::DISCONNECTED)?;
    drop((here_qp, there_qp));
    Ok(())
}

fn a_connection_by_ipv4_address_carries_messages_both_ways() -> CaseResult {
    both_ways(here()?)
}

/// Gives the netdev an IPv6 address, and waits until the device has its GID.
fn a_connection_by_ipv6_address_carries_messages_both_ways() -> CaseResult {
    let change = |what: &str| {
        run(Command::new("ip").args(["-6", "addr", what, &format!("{V6}/64"), "dev", "veth0", "nodad"]))
    };
    change("replace")?;
    let context = fabric::open()?;
    let wanted = match V6 {
        IpAddr::V6(ip) => Gid::from(ip),
        IpAddr::V4(ip) => Gid::from(ip),
    };
    let has_gid = || context.gid_table().is_ok_and(|table| table.iter().any(|entry| entry.gid == wanted));
    if !process::wait_until(PATIENCE, has_gid) {
        return fail(format_args!("the device has no GID for {V6}"));
    }
    let result = both_ways(V6);
    change("del")?;
    result
}

fn a_queue_pair_of_the_programs_own_connects_by_the_kernels_attributes() -> CaseResult {
    let server = server(PortSpace::TCP)?;
    let client = Client::new(server.address, PortSpace::TCP)?;
    let mut parts = Parts::of(&client.id)?;
    let init = QpInit::new(QpType::RC, &parts.cq);
    let (attr, mask) = client.id.init_qp_attr(QpState::INIT)?;
    let mut qp: Qp<Init> = parts.pd.create_qp(&init)?.modify_to(&attr, mask)?;
    qp.post_recv_buf(parts.pd.alloc_buf(64)?, ..)?;
    client.id.connect_with(&ConnParam { qp_num: qp.qp_num(), ..ConnParam::default() })?;

    let (accepted, _) = server.request()?;
    let mut other = Parts::of(&accepted)?;
    let other_qp = other.qp(&accepted)?;
    accepted.accept(other_qp, &ConnParam::default())?;
    expect(&client.channel, EventType::CONNECT_RESPONSE)?;
    let (attr, mask) = client.id.init_qp_attr(QpState::INIT)?;
    qp.modify(&attr, mask)?;
    let (attr, mask) = client.id.init_qp_attr(QpState::RTR)?;
    let qp: Qp<verbs::state::Rtr> = qp.modify_to(&attr, mask)?;
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

fn a_datagram_service_is_looked_up_by_its_address() -> CaseResult {
    let server = server(PortSpace::UDP)?;
    let client = Client::new(server.address, PortSpace::UDP)?;
    client.id.connect_with(&ConnParam { private_data: b"who", ..ConnParam::default() })?;
    let (request, peer) = server.request()?;
    assert!(peer.private_data().starts_with(b"who"), "{peer:?}");
    let mut serves = Parts::of(&request)?;
    let init = |parts: &Parts| QpInit::new(QpType::UD, &parts.cq);
    let mut serving = request.create_ud_qp(&serves.pd, &init(&serves))?;
    serving.post_recv_buf(serves.pd.alloc_buf(128)?, ..)?;
    request.accept_with(&ConnParam { qp_num: serving.qp_num(), ..ConnParam::default() })?;

    let established = expect(&client.channel, EventType::ESTABLISHED)?;
    let EventKind::Established(Peer::Ud(ud)) = established.kind else {
        return fail(format_args!("{established:?}"));
    };
    assert_eq!((ud.qp_num, ud.qkey), (serving.qp_num(), PortSpace::UDP_QKEY));
    let asks = Parts::of(&client.id)?;
    let mut asking = client.id.create_ud_qp(&asks.pd, &init(&asks))?;
    let ah = asks.pd.create_ah(&ud.ah_attr)?;
    let to: UdAddr<'_> = ah.to(ud.qp_num, ud.qkey);
    asks.post(&mut asking, SendOp::UdSend { to }, b"hello")?;
    let received = serves.receive()?;
    assert_eq!(&received[40..], b"hello");
    Ok(())
}

fn an_id_moves_to_another_channel_with_its_events() -> CaseResult {
    let server = server(PortSpace::TCP)?;
    let (client, _parts) = Client::requesting(&server)?;
    let other = EventChannel::new()?;
    let (request, _) = server.request()?;
    client.id.migrate(&other)?;
    request.reject(b"moved")?;
    expect(&other, EventType::REJECTED)?;
    assert!(client.channel.try_next_event()?.is_none());
    // An event that waits moves along.
    let id = client.channel.create_id(PortSpace::TCP)?;
    id.resolve_addr(None, server.address, RESOLVING)?;
    arrived(&client.channel)?;
    id.migrate(&other)?;
    assert_eq!(expect(&other, EventType::ADDR_RESOLVED)?.id, id.key());
    Ok(())
}
