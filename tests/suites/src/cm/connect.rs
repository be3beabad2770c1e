//! Connections by IPv6 address; queue pair options in messages. `conformance` covers IPv4 and the
//! rest of the messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rdmacm::{ConnParam, EventChannel, EventKind, EventType, PortSpace, RejectReason};
use verbs::{Ece, Gid};
use verbs_fixtures::cm_fabric::{Client, Connected, RESOLVING, connect, expect, next};
use verbs_fixtures::fabric::{self, PATIENCE};
use verbs_harness::cases;
use verbs_harness::process;
use verbs_harness::runner::{Case, CaseResult, fail};
use verbs_harness::tools::run;

use super::server::{SUITE, at, here, server};
use crate::cm_sides::netdev;

/// Returns the cases for any device.
pub(super) fn of_any_device() -> Vec<Case> {
    cases!(SUITE, options_of_queue_pairs_go_from_connect_to_accept_and_back)
}

/// Returns the cases for devices whose network interface they may change.
pub(super) fn of_interface() -> Vec<Case> {
    cases!(
        SUITE,
        a_connection_by_ipv6_address_carries_messages_both_ways,
        a_listener_takes_the_addresses_that_its_own_stands_for,
    )
}

/// The IPv6 address that the cases add to the netdev.
const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd09, 9, 0, 0, 0, 0, 0, 1));

fn both_ways(ip: IpAddr) -> CaseResult {
    let Connected { server, client, accepted, ends, .. } = connect(at(ip))?;
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

fn a_connection_by_ipv6_address_carries_messages_both_ways() -> CaseResult {
    with_ipv6(|| both_ways(V6))
}

/// Calls `run_with` while the netdev has an IPv6 address and the device has the GID for it. Removes
/// the address afterwards.
fn with_ipv6(run_with: impl FnOnce() -> CaseResult) -> CaseResult {
    let netdev = netdev()?;
    let change = |what: &str| {
        run(Command::new("ip").args(["-6", "addr", what, &format!("{V6}/64"), "dev", &netdev, "nodad"]))
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
    let result = run_with();
    change("del")?;
    result
}

/// Connects to both addresses of a device and checks which listeners get the request.
fn a_listener_takes_the_addresses_that_its_own_stands_for() -> CaseResult {
    let v4 = here()?;
    let (any_v4, any_v6) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let (taken, rejected) = (None, Some(RejectReason::CONSUMER_DEFINED));
    let expected = [
        (any_v6, None, v4, taken),
        (any_v6, None, V6, taken),
        (any_v6, Some(false), v4, taken),
        (any_v6, Some(true), v4, rejected),
        (any_v6, Some(true), V6, taken),
        (any_v4, None, v4, taken),
        (any_v4, None, V6, rejected),
        (V6, None, v4, rejected),
        (v4, None, V6, rejected),
    ];
    with_ipv6(|| {
        let mut seen = Vec::new();
        for (listens, af_only, to, _) in expected {
            seen.push((listens, af_only, to, outcome(listens, af_only, to)?));
        }
        assert_eq!(seen, expected);
        Ok(())
    })
}

/// Requests a connection to a new listener. Returns the reason if the request is rejected.
fn outcome(listens: IpAddr, af_only: Option<bool>, to: IpAddr) -> CaseResult<Option<RejectReason>> {
    let channel = EventChannel::new()?;
    let listener = channel.create_id(PortSpace::TCP)?;
    if let Some(af_only) = af_only {
        listener.set_af_only(af_only)?;
    }
    listener.bind_addr(at(listens))?;
    listener.listen(1)?;
    let Some(local) = listener.local_addr()? else { return fail("a listener without an address") };
    let id = channel.create_id(PortSpace::TCP)?;
    id.resolve_addr(None, SocketAddr::new(to, local.port()), RESOLVING)?;
    expect(&channel, EventType::ADDR_RESOLVED)?;
    id.resolve_route(RESOLVING)?;
    expect(&channel, EventType::ROUTE_RESOLVED)?;
    id.connect_with(&foreign())?;
    let event = next(&channel)?;
    match event.kind {
        EventKind::ConnectRequest(_) if event.id == listener.key() => Ok(None),
        EventKind::Rejected(rejection) if event.id == id.key() => Ok(rejection.reason),
        other => fail(format_args!("{other:?}")),
    }
}

/// Returns parameters for a queue pair that exists elsewhere. Each call uses a new number, because
/// the connection manager would mistake a repeated number for an earlier connection of the same
/// queue pair.
fn foreign() -> ConnParam<'static> {
    static LAST: AtomicU32 = AtomicU32::new(0xff_2000);
    let qp_num = LAST.fetch_add(1, Ordering::Relaxed);
    ConnParam { qp_num, responder_resources: 1, initiator_depth: 1, ..ConnParam::default() }
}

/// Negotiates queue pair options in both directions. They are only data in messages, so the type of
/// device does not matter.
fn options_of_queue_pairs_go_from_connect_to_accept_and_back() -> CaseResult {
    const OFFERED: Ece = Ece { vendor_id: 0x15b3, options: 0x8003_0105 };
    const REPLIED: Ece = Ece { options: 0x8001_0101, ..OFFERED };
    let server = server(PortSpace::TCP)?;
    let request = || -> CaseResult<_> {
        let client = Client::new(server.address, PortSpace::TCP)?;
        client.id.set_local_ece(OFFERED);
        client.id.connect_with(&foreign())?;
        let (asked, _) = server.request()?;
        assert_eq!(asked.remote_ece(), OFFERED);
        Ok((client, asked))
    };
    let (client, asked) = request()?;
    asked.reject_ece(b"")?;
    let event = expect(&client.channel, EventType::REJECTED)?;
    let EventKind::Rejected(rejection) = event.kind else { return fail("no reject") };
    assert_eq!(rejection.reason, Some(RejectReason::VENDOR_OPTION_NOT_SUPPORTED));
    drop((client, asked));

    let (client, accepted) = request()?;
    accepted.set_local_ece(REPLIED);
    accepted.accept_with(&foreign())?;
    expect(&client.channel, EventType::CONNECT_RESPONSE)?;
    assert_eq!(client.id.remote_ece(), REPLIED);
    client.id.establish()?;
    expect(&server.channel, EventType::ESTABLISHED)?;
    client.id.disconnect()?;
    expect(&server.channel, EventType::DISCONNECTED)?;
    accepted.disconnect()?;
    expect(&client.channel, EventType::DISCONNECTED).map(drop)
}
