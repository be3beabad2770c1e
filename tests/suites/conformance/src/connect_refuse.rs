//! Connections by address: rejects, and rejected calls with their reasons.

use std::net::Ipv4Addr;
use std::time::Duration;

use rdmacm::{
    Address, ConnParam, EventChannel, EventKind, EventType, IbAddress, Message, PortSpace, RejectReason,
};
use verbs::{Errno, Gid, QpState, WcStatus};
use verbs_fixtures::cm_fabric::{Client, Parts, RESOLVING, Server, arrived, expect, here, with_port};
use verbs_fixtures::fabric::PATIENCE;
use verbs_harness::cases;
use verbs_harness::runner::{Case, CaseResult, fail};

use super::SUITE;
use super::connect::{ANSWER, padded, room};

/// Returns the cases of this file.
pub fn cases() -> Vec<Case> {
    cases!(
        SUITE,
        a_reject_carries_its_reason_and_private_data,
        a_port_without_a_listener_rejects,
        a_request_that_is_dropped_is_rejected,
        a_request_of_a_client_that_is_gone_becomes_no_connection,
        private_data_that_is_too_long_is_refused_with_the_limit,
        a_port_belongs_to_one_id_of_its_space,
        ids_that_permit_it_share_a_port_until_one_listens,
        an_address_of_no_device_is_refused,
        calls_before_their_time_are_refused,
    )
}

/// The length of private data in a reject, in bytes.
const REJECT: usize = 148;

/// Connection parameters that allow few reads at a time, so that no call needs to query a device's
/// limit.
const DEPTHS: ConnParam<'_> = ConnParam {
    private_data: &[],
    responder_resources: 1,
    initiator_depth: 1,
    flow_control: false,
    retry_count: 7,
    rnr_retry_count: 7,
    min_rnr_timer: None,
    srq: false,
    qp_num: 7,
};

fn server() -> CaseResult<Server> {
    Server::new(here()?, PortSpace::TCP, 4)
}

/// Checks that the client was rejected with the reason `wanted` and that its receive was flushed.
/// Returns the private data in the reject.
///
/// # Errors
/// Fails on any other event, or if none arrives in time.
///
/// # Panics
/// Panics if the id or the reason differs.
pub fn is_rejected(client: &Client, mut parts: Parts, wanted: RejectReason) -> CaseResult<Vec<u8>> {
    let event = expect(&client.channel, EventType::REJECTED)?;
    let EventKind::Rejected(rejection) = &event.kind else { return fail(format_args!("{event:?}")) };
    assert_eq!((event.id, rejection.reason), (client.id.key(), Some(wanted)));
    let data = rejection.private_data.clone();
    let error = event.ok().expect_err("a reject is an error");
    assert_eq!(error.errno, Errno::CONNREFUSED);
    assert!(error.to_string().contains(wanted.name().expect("the reason has a name")), "{error}");
    let Some(qp) = client.id.reclaim_qp()? else { return fail("the id has no queue pair") };
    assert_eq!(qp.state()?, QpState::ERR);
    assert_eq!(parts.cq.poll_within(PATIENCE)?.status, WcStatus::WR_FLUSH_ERR);
    Ok(data)
}

fn a_reject_carries_its_reason_and_private_data() -> CaseResult {
    let server = server()?;
    let (client, parts) = Client::requesting(&server)?;
    let (request, _) = server.request()?;
    request.reject(ANSWER)?;
    let data = is_rejected(&client, parts, RejectReason::CONSUMER_DEFINED)?;
    assert_eq!(data, padded(ANSWER, REJECT));
    assert_eq!(request.reject(b"twice").unwrap_err().errno, Errno::INVAL);

    let (client, parts) = Client::requesting(&server)?;
    let (request, _) = server.request()?;
    request.reject_ece(&[9; REJECT])?;
    let data = is_rejected(&client, parts, RejectReason::VENDOR_OPTION_NOT_SUPPORTED)?;
    assert_eq!(data, [9; REJECT]);
    Ok(())
}

fn a_port_without_a_listener_rejects() -> CaseResult {
    let server = server()?;
    let address = server.address;
    drop(server);
    let client = Client::new(address, PortSpace::TCP)?;
    let parts = Parts::for_id(&client.id)?;
    client.id.connect(parts.qp(&client.id)?, &ConnParam::default())?;
    is_rejected(&client, parts, RejectReason::INVALID_SERVICE_ID).map(drop)
}

fn a_request_that_is_dropped_is_rejected() -> CaseResult {
    let server = server()?;
    let (client, parts) = Client::requesting(&server)?;
    drop(server.request()?);
    is_rejected(&client, parts, RejectReason::CONSUMER_DEFINED)?;
    // An unread request is rejected when its listener ends.
    let (client, parts) = Client::requesting(&server)?;
    arrived(&server.channel)?;
    drop(server);
    is_rejected(&client, parts, RejectReason::CONSUMER_DEFINED).map(drop)
}

fn a_request_of_a_client_that_is_gone_becomes_no_connection() -> CaseResult {
    let server = server()?;
    let client = Client::new(server.address, PortSpace::TCP)?;
    client.id.connect_with(&DEPTHS)?;
    let (request, _) = server.request()?;
    let parts = Parts::for_id(&request)?;
    let qp = parts.qp(&request)?;
    drop(client);
    match request.accept(qp, &DEPTHS) {
        // The kernel has already learnt that the client ended. Linux raises no event for that
        // before the accept.
        Err(error) => assert_eq!(error.errno, Errno::INVAL, "{error}"),
        Ok(()) => {
            let event = expect(&server.channel, EventType::REJECTED)?;
            assert_eq!(event.id, request.key());
        }
    }
    assert!(request.take_qp().is_none());
    assert!(request.reclaim_qp()?.is_some());
    Ok(())
}

fn private_data_that_is_too_long_is_refused_with_the_limit() -> CaseResult {
    let refused = |refused: verbs::Result<()>, length: usize| match refused {
        Err(error) if error.to_string().contains(&format!("length of private_data {length}")) => Ok(()),
        other => fail(format_args!("{other:?} for {length} bytes")),
    };
    let server = server()?;
    let client = Client::new(server.address, PortSpace::TCP)?;
    let beyond = room(&server.address, 92) + 1;
    refused(client.id.connect_with(&ConnParam { private_data: &[0; 93][..beyond], ..DEPTHS }), beyond)?;

    let (client, parts) = Client::requesting(&server)?;
    let (request, _) = server.request()?;
    assert_eq!(request.max_private_data(Message::Reject), REJECT);
    refused(request.reject(&[7; REJECT + 1]), REJECT + 1)?;
    // Linux rejects the peer's request if it cannot accept it with the program's parameters.
    refused(request.accept_with(&ConnParam { private_data: &[7; 197], ..DEPTHS }), 197)?;
    is_rejected(&client, parts, RejectReason::CONSUMER_DEFINED).map(drop)
}

fn a_port_belongs_to_one_id_of_its_space() -> CaseResult {
    let (server, channel) = (server()?, EventChannel::new()?);
    let id = channel.create_id(PortSpace::TCP)?;
    let error = id.bind_addr(server.address).expect_err("the port is taken");
    assert_eq!(error.errno, Errno::ADDRINUSE);
    assert!(error.to_string().contains(&server.address.to_string()), "{error}");
    let other_space = channel.create_id(PortSpace::UDP)?;
    other_space.bind_addr(with_port(server.address, PortSpace::UDP, server.address.port()))?;
    // The failed call left the id unchanged.
    let address = server.address;
    drop(server);
    id.bind_addr(address)?;
    assert_eq!(id.bind_addr(address).unwrap_err().errno, Errno::INVAL, "it is bound");
    assert_eq!(id.local_addr()?, Some(address));
    Ok(())
}

fn ids_that_permit_it_share_a_port_until_one_listens() -> CaseResult {
    let (here, channel) = (here()?, EventChannel::new()?);
    let create = || -> verbs::Result<_> {
        let id = channel.create_id(PortSpace::TCP)?;
        id.set_reuse_addr(true)?;
        Ok(id)
    };
    let (one, two) = (create()?, create()?);
    one.bind_addr(here)?;
    let Some(shared) = one.local_addr()? else { return fail("it is not bound") };
    two.bind_addr(shared)?;
    assert_eq!(one.listen(1).unwrap_err().errno, Errno::ADDRINUSE);
    drop(two);
    one.listen(1)?;
    assert_eq!(create()?.bind_addr(shared).unwrap_err().errno, Errno::ADDRINUSE);
    Ok(())
}

fn an_address_of_no_device_is_refused() -> CaseResult {
    let (here, channel) = (here()?, EventChannel::new()?);
    let foreign: Address = match here {
        Address::Ib(_) => IbAddress::new(Gid([0x20; 16]), PortSpace::TCP, 0).into(),
        _ => (Ipv4Addr::new(192, 0, 2, 1), 0).into(),
    };
    let id = channel.create_id(PortSpace::TCP)?;
    let error = id.bind_addr(foreign).expect_err("a foreign address");
    assert!(matches!(error.errno, Errno::ADDRNOTAVAIL | Errno::NODEV), "{error}");
    id.bind_addr(here)?;
    Ok(())
}

fn calls_before_their_time_are_refused() -> CaseResult {
    let (here, channel) = (here()?, EventChannel::new()?);
    let id = channel.create_id(PortSpace::TCP)?;
    assert_eq!((id.local_addr()?, id.peer_addr()?, id.port_num()?), (None, None, None));
    assert!(id.context().unwrap_err().to_string().contains("no device yet"));
    id.bind_addr(here)?;
    let error = id.connect_with(&DEPTHS).unwrap_err();
    assert!(error.to_string().contains("ROUTE_RESOLVED"), "{error}");
    for refused in [
        id.resolve_route(Duration::from_secs(1)),
        id.accept_with(&DEPTHS),
        id.reject(&[]),
        id.establish(),
        id.disconnect(),
    ] {
        let error = refused.expect_err("too early");
        assert_eq!(error.errno, Errno::INVAL, "{error}");
    }
    // None of these calls has changed the id.
    let server = Server::new(here, PortSpace::TCP, 1)?;
    id.resolve_addr(None, server.address, RESOLVING)?;
    expect(&channel, EventType::ADDR_RESOLVED)?;
    assert_eq!(id.listen(1).unwrap_err().errno, Errno::INVAL);
    Ok(())
}
