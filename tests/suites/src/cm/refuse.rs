//! Backlogs and unreachable addresses. `conformance` covers rejects on any device.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rdmacm::{EventChannel, PortSpace, RejectReason};
use verbs::Errno;
use verbs_conformance::connect_refuse::is_rejected;
use verbs_fixtures::cm_fabric::{Client, Server, next};
use verbs_harness::cases;
use verbs_harness::runner::{Case, CaseResult, fail};

use super::server::{SUITE, at, here};

/// Returns the cases for any device.
pub(super) fn of_any_device() -> Vec<Case> {
    cases!(SUITE, requests_beyond_the_backlog_are_not_lost)
}

/// Returns the cases for devices with a network interface. They use its network.
pub(super) fn of_interface() -> Vec<Case> {
    cases!(
        SUITE,
        an_address_that_no_host_has_is_an_error_in_words,
        an_address_that_no_route_leads_to_is_an_error_in_words,
    )
}

/// An unused address in the netdev's network.
pub(super) const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 9, 77));

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
    // The kernel drops requests beyond the backlog. The peer repeats them after 4.3 s.
    for _ in &clients {
        let (request, _) = server.request()?;
        request.reject(b"not today")?;
    }
    clients
        .into_iter()
        .try_for_each(|(client, parts)| is_rejected(&client, parts, RejectReason::CONSUMER_DEFINED).map(drop))
}
