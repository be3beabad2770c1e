//! [`Sides`]: where the server and the client of a tool that connects by address run, and their
//! addresses.
//!
//! | guest | server | client |
//! |---|---|---|
//! | rxe | rxe0 on veth0, 10.9.9.1 | the same device |
//! | ConnectX, two Ethernet ports | mlx5_0 on eth0, 10.9.9.1 | mlx5_1 on eth1, 10.9.9.2 |
//!
//! With two functions, the client runs in the network namespace `peer`, so that traffic between the
//! addresses crosses the wire.

use std::fs;
use std::process::Command;

use verbs_fixtures::fabric::under_test;
use verbs_fixtures::functions::{Port, Setup, in_peer};
use verbs_harness::process;
use verbs_harness::runner::{CaseResult, Stop, fail, skip};
use verbs_harness::tools::{LIMIT, run};

/// A kind of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// Link-local IPv6, with the interface: `fe80::1%eth0`.
    Link,
}

/// The addresses for a run, and where its client runs.
#[derive(Clone, Debug)]
pub struct Sides {
    /// The server's listening address.
    pub server: String,
    /// The server's address as the client must write it.
    pub to: String,
    /// The client's address.
    pub client: String,
    /// The server's network interface.
    pub server_netdev: String,
    has_two: bool,
}

impl Sides {
    /// Returns the sides in this guest. Adds missing IPv6 addresses and waits for their GIDs.
    ///
    /// # Errors
    /// Fails if a device or a GID is missing, or if `ip` fails. Skips the case without a network
    /// interface.
    pub fn for_family(family: Family) -> CaseResult<Self> {
        let has_two = has_two_functions();
        let here = Side { device: under_test().to_owned(), is_peer: false };
        let there = if has_two { Side { device: "mlx5_1".to_owned(), is_peer: true } } else { here.clone() };
        let (server_netdev, client_netdev) = (here.netdev()?, there.netdev()?);
        let address = |side: &Side, netdev: &str, number: u8| match family {
            Family::V4 => Ok(format!("10.9.9.{number}")),
            Family::V6 => side.with_ipv6(netdev, &format!("fd09:9::a{number}")),
            Family::Link => side.of_link(netdev),
        };
        let server = address(&here, &server_netdev, 1)?;
        let client = address(&there, &client_netdev, if has_two { 2 } else { 1 })?;
        let scope = |address: &str, netdev: &str| match family {
            Family::Link => format!("{address}%{netdev}"),
            Family::V4 | Family::V6 => address.to_owned(),
        };
        let to = scope(&server, &client_netdev);
        let (server, client) = (scope(&server, &server_netdev), scope(&client, &client_netdev));
        Ok(Self { server, to, client, server_netdev, has_two })
    }

    /// Returns whether the client and the server run in different namespaces.
    #[must_use]
    pub fn are_apart(&self) -> bool {
        self.has_two
    }

    /// Returns the command, wrapped so that it runs on the client's side.
    #[must_use]
    pub fn at_client(&self, command: Command) -> Command {
        if self.has_two { in_peer(&command) } else { command }
    }
}

/// Returns whether the guest has two functions with Ethernet ports.
fn has_two_functions() -> bool {
    Setup::from_env() == Some(Setup { port: Port::Roce, functions: 2 })
}

/// Returns the network interface of the device under test.
///
/// # Errors
/// Skips the case without a network interface.
pub fn netdev() -> CaseResult<String> {
    Side { device: under_test().to_owned(), is_peer: false }.netdev()
}

/// A device and its network interface's namespace.
#[derive(Clone, Debug)]
struct Side {
    device: String,
    is_peer: bool,
}

impl Side {
    fn netdev(&self) -> CaseResult<String> {
        if self.device.starts_with("rxe") {
            return Ok("veth0".to_owned());
        }
        // Runs in the device's namespace, because its sysfs shows only the namespace's interfaces.
        let directory = format!("/sys/class/infiniband/{}/device/net", self.device);
        let shown = run(&mut self.command(&["ls", &directory]))?.stdout;
        match shown.lines().next() {
            Some(name) => Ok(name.to_owned()),
            None => skip(format_args!("{} has no network interface", self.device)),
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        if self.is_peer { in_peer(&command) } else { command }
    }

    /// Adds an IPv6 address to the interface and returns it.
    fn with_ipv6(&self, netdev: &str, address: &str) -> CaseResult<String> {
        let prefix = format!("{address}/64");
        let added =
            run(&mut self.command(&["ip", "-6", "addr", "replace", &prefix, "dev", netdev, "nodad"]))?;
        if !added.status.success() {
            return fail(format_args!("ip addr: {}", added.stderr.trim_end()));
        }
        self.wait_for_gid(address)?;
        Ok(address.to_owned())
    }

    /// Returns the interface's link-local address.
    fn of_link(&self, netdev: &str) -> CaseResult<String> {
        let shown =
            run(&mut self.command(&["ip", "-6", "-o", "addr", "show", "dev", netdev, "scope", "link"]))?;
        let words = shown.stdout.split_ascii_whitespace();
        let Some((address, _)) =
            words.skip_while(|word| *word != "inet6").nth(1).and_then(|it| it.split_once('/'))
        else {
            return skip(format_args!("{netdev} has no address of the link: {shown:?}"));
        };
        self.wait_for_gid(address)?;
        Ok(address.to_owned())
    }

    fn wait_for_gid(&self, address: &str) -> CaseResult {
        let address: std::net::Ipv6Addr =
            address.parse().map_err(|_| Stop::Failed(format!("{address} is no IPv6 address")))?;
        let wanted = address.segments().map(|part| format!("{part:04x}")).join(":");
        let has_gid = || {
            (0..256)
                .map_while(|index| {
                    fs::read_to_string(format!("/sys/class/infiniband/{}/ports/1/gids/{index}", self.device))
                        .ok()
                })
                .any(|gid| gid.trim_end() == wanted)
        };
        if process::wait_until(LIMIT, has_gid) {
            return Ok(());
        }
        fail(format_args!("{} has no GID for {address}", self.device))
    }
}
