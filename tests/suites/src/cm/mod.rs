//! `cm`: connections by address, with both ends on the device under test: rxe and ConnectX through
//! the kernel's connection manager, soft through this project's.
//!
//! | file | content |
//! |---|---|
//! | [`connect`] | connections by IPv6 addresses; options of queue pairs |
//! | [`refuse`] | backlogs and unreachable addresses |
//! | [`life`] | the end of ids and their remains; many connections |
//! | [`killed`] | killed peers, in every state |
//! | [`removed`] | removed devices, in every state |
//! | [`moved`] | a bond that fails over |
//! | [`process`] | forks and signals |
//! | [`threads`] | several threads sharing a channel |
//!
//! The `connect` topics of the suite `conformance` cover InfiniBand ports and every device with an
//! address.
//!
//! The suite `soft_interop` connects soft devices with rxe.

mod connect;
pub(super) mod killed;
mod life;
mod moved;
mod process;
mod refuse;
mod removed;
mod threads;

use std::net::{IpAddr, SocketAddr};

use rdmacm::PortSpace;
use verbs_fixtures::cm_fabric::{self, Server};
use verbs_harness::runner::{Case, CaseResult, skip};

const SUITE: &str = "cm";

/// Returns the cases of the suite on rxe.
pub fn cases() -> Vec<Case> {
    [of_interface(), removed::cases(), moved::cases()].into_iter().flatten().collect()
}

/// Returns the part of the suite for kernel devices whose network interface has the address
/// 10.9.9.1.
pub fn of_interface() -> Vec<Case> {
    [
        of_any_device(),
        connect::of_interface(),
        refuse::of_interface(),
        life::of_interface(),
        process::of_interface(),
        killed::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the part of the suite that also runs on providers' devices.
pub fn of_any_device() -> Vec<Case> {
    [
        connect::of_any_device(),
        refuse::of_any_device(),
        life::of_any_device(),
        process::of_any_device(),
        threads::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the IPv4 address of the device under test.
fn here() -> CaseResult<IpAddr> {
    match cm_fabric::here()?.ip() {
        Some(address) => Ok(address.ip()),
        None => skip("the device has no IPv4 address"),
    }
}

/// Returns an address with a port chosen by the connection manager.
fn at(ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, 0)
}

/// Returns a listener on the device under test.
fn server(space: PortSpace) -> CaseResult<Server> {
    Server::new(at(here()?), space, 4)
}
