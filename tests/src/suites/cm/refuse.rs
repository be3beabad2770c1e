//! Rejects, refusals and failures, with their reasons in words.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rdmacm::{ConnParam, EventChannel, EventKind, EventType, PortSpace, RejectReason};
use verbs::{Errno, QpState, WcStatus};

use super::{SUITE, at, here, server};
use crate::cases;
use crate::cm_fabric::{Client, Parts, Server, arrived, expect, next};
use crate::fabric::PATIENCE;
use crate::runner::{Case, CaseResult, fail};

/// Cases for any device.
pub(super) fn of_any_device() -> Vec<Case> {
    cases!(
        SUITE,
        a_reject_carries_its_private_data,
        without_a_listener_the_reject_says_so,
        a_request_that_is_dropped_is_rejected,
        requests_beyond_the_backlog_are_not_lost,
        private_data_that_are_too_long_are_refused_with_the_limit,
        what_the_kernel_refuses_is_explained,
    )
}

/// Cases of rxe0, in its network.
pub(super) fn of_rxe() -> Vec<Case> {
    cases!(
        SUITE,
        an_address_that_no_host_has_is_an_error_in_words,
        an_address_that_no_route_leads_to_is_an_error_in_words,
    )
}

/// An address of the netdev's network that no host has.
pub(super) const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 9, 77));

/// Checks that the client was rejected for this reason, and that its receive comes back.
fn is_rejected(client: &Client, mut parts: Parts, wanted: RejectReason) -> CaseResult<Vec<u8>> {
    let event = expect(&client.channel, EventType::REJECTED)?;
    let EventKind::Rejected(rejection) = &event.kind else { return fail(format_args!("{event:?}")) };
    assert_eq!(rejection.reason, Some(wanted));
    let data = rejection.private_data.clone();
    let error = event.ok().expect_err("a reject is an error");
    assert_eq!(error.errno, Errno::CONNREFUSED);
    assert!(error.to_string().contains(wanted.name().expect("the reason has a name")), "{error}");
    let Some(qp) = client.id.reclaim_qp()? else { return fail("the id has no queue pair") };
    assert_eq!(qp.state()?, QpState::ERR);
    assert_eq!(parts.cq.poll_within(PATIENCE)?.status, WcStatus::WR_FLUSH_ERR);
    Ok(data)
}

fn a_reject_carries_its_private_data() -> CaseResult {
    let server = server(PortSpace::TCP)?;
    let (client, parts) = Client::requesting(&server)?;
    let (request, _) = server.request()?;
    request.reject(b"not today")?;
    let data = is_rejected(&client, parts, RejectReason::CONSUMER_DEFINED)?;
    assert!(data.starts_with(b"not today"), "{data:?}");
    Ok(())
}

fn without_a_listener_the_reject_says_so() -> CaseResult {
    let server = server(PortSpace::TCP)?;
    let address = server.address;
    drop(server);
    let client = Client::new(address, PortSpace::TCP)?;
    let parts = Parts::of(&client.id)?;
    client.id.connect(parts.qp(&client.id)?, &ConnParam::default())?;
    is_rejected(&client, parts, RejectReason::INVALID_SERVICE_ID).map(drop)
}

fn a_request_that_is_dropped_is_rejected() -> CaseResult {
    let server = server(PortSpace::TCP)?;
    let (client, parts) = Client::requesting(&server)?;
    drop(server.request()?);
    is_rejected(&client, parts, RejectReason::CONSUMER_DEFINED)?;
    // One that nobody has read goes with its listener.
    let (client, parts) = Client::requesting(&server)?;
    arrived(&server.channel)?;
    drop(server);
    is_rejected(&client, parts, RejectReason::CONSUMER_DEFINED).map(drop)
}

fn an_address_that_no_host_has_is_an_error_in_words() -> CaseResult {
    let channel = EventChannel::new()?;
    let id = channel.create_id(PortSpace::TCP)?;
    id.resolve_addr(None, (NOBODY, 7471), Duration::from_millis(200))?;
    let error = match next(&channel)?.ok() {
        Err(error) => error,
        Ok(event) => return fail(format_args!("{event:?}")),
    };
    let text = error.to_string();
    assert!(text.starts_with("resolve_addr: no host answered") || text.contains("no route"), "{text}");
    Ok(())
}

fn what_the_kernel_refuses_is_explained() -> CaseResult {
    let server = server(PortSpace::TCP)?;
    let channel = EventChannel::new()?;
    let id = channel.create_id(PortSpace::TCP)?;
    let error = id.bind_addr(server.address).expect_err("the port is taken");
    assert_eq!(error.errno, Errno::ADDRINUSE);
    assert!(error.to_string().contains(&server.address.to_string()), "{error}");
    let error = id.bind_addr((Ipv4Addr::new(192, 0, 2, 1), 0)).expect_err("a foreign address");
    assert!(matches!(error.errno, Errno::ADDRNOTAVAIL | Errno::NODEV), "{error}");
    let error =
        id.connect_with(&ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() });
    assert!(error.expect_err("no route").to_string().contains("ROUTE_RESOLVED"));
    Ok(())
}

fn an_address_that_no_route_leads_to_is_an_error_in_words() -> CaseResult {
    let channel = EventChannel::new()?;
    let id = channel.create_id(PortSpace::TCP)?;
    let resolved = id.resolve_addr(None, (Ipv4Addr::new(203, 0, 113, 1), 7471), Duration::from_millis(200));
    let error = match resolved {
        Err(error) => error,
        Ok(()) => match next(&channel)?.ok() {
            Err(error) => error,
            Ok(event) => return fail(format_args!("{event:?}")),
        },
    };
    assert!(matches!(error.errno, Errno::NETUNREACH | Errno::HOSTUNREACH), "{error}");
    assert!(error.to_string().starts_with("resolve_addr"), "{error}");
    Ok(())
}

fn requests_beyond_the_backlog_are_not_lost() -> CaseResult {
    const BACKLOG: usize = 2;
    let server = Server::new(at(here()?), PortSpace::TCP, BACKLOG as u32)?;
    let clients = (0..2 * BACKLOG).map(|_| Client::requesting(&server)).collect::<CaseResult<Vec<_>>>()?;
    // A kernel drops what is beyond, and its peer sends it again after 4.3 s.
    for _ in &clients {
        let (request, _) = server.request()?;
        request.reject(b"not today")?;
    }
    clients
        .into_iter()
        .try_for_each(|(client, parts)| is_rejected(&client, parts, RejectReason::CONSUMER_DEFINED).map(drop))
}

fn private_data_that_are_too_long_are_refused_with_the_limit() -> CaseResult {
    let server = server(PortSpace::TCP)?;
    let client = Client::new(server.address, PortSpace::TCP)?;
    let refused = |refused: verbs::Result<()>, length: usize| match refused {
        Err(error) if error.to_string().contains(&format!("length of private_data {length}")) => Ok(()),
        other => fail(format_args!("{other:?} for {length} bytes")),
    };
    let depths = ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
    refused(client.id.connect_with(&ConnParam { private_data: &[7; 57], ..depths }), 57)?;

    let (client, parts) = Client::requesting(&server)?;
    let (request, _) = server.request()?;
    refused(request.reject(&[7; 149]), 149)?;
    // Linux rejects a request that cannot be accepted as the program wants.
    refused(request.accept_with(&ConnParam { private_data: &[7; 197], ..depths }), 197)?;
    is_rejected(&client, parts, RejectReason::CONSUMER_DEFINED).map(drop)
}
