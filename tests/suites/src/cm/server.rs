//! Listeners on the device under test. Also defines the suite's name.

use std::net::{IpAddr, SocketAddr};

use rdmacm::PortSpace;
use verbs_fixtures::cm_fabric::{self, Server};
use verbs_harness::runner::{CaseResult, skip};

pub(super) const SUITE: &str = "cm";

/// Returns the IPv4 address of the device under test.
pub(super) fn here() -> CaseResult<IpAddr> {
    match cm_fabric::here()?.ip() {
        Some(address) => Ok(address.ip()),
        None => skip("the device has no IPv4 address"),
    }
}

/// Returns an address whose port the connection manager chooses.
pub(super) fn at(ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, 0)
}

/// Returns a listener on the device under test.
pub(super) fn server(space: PortSpace) -> CaseResult<Server> {
    Server::new(at(here()?), space, 4)
}
