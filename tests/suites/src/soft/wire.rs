//! [`Wire`]: a veth pair with the kernel's rxe at one end. The other end is in a separate network
//! namespace, where provider-soft runs.
//!
//! ```text
//!   first namespace                  namespace verbs-soft
//!   rxe1 on vs0 ◄──── netem ────────► vs1, VERBS_SOFT=
//!   10.9.8.1                          10.9.8.2
//!   fd00:9:8::1                       fd00:9:8::2
//!   fe80::9:8:1                       fe80::9:8:2
//! ```
//!
//! The namespace is needed because rxe occupies UDP port 4791.

use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use verbs_harness::process::{self, wait_until};
use verbs_harness::runner::{CaseResult, Stop, fail, skip};
use verbs_harness::tools::{LIMIT, run};

/// The kernel's device at one end.
pub(super) const RXE: &str = "rxe1";
/// The device at the other end, in the namespace.
pub(super) const SOFT: &str = "soft0";

/// The namespace at soft's end.
pub(super) const NAMESPACE: &str = "verbs-soft";

/// The kind of address in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
    /// Link-local IPv6
    Link,
}

impl Family {
    /// All kinds.
    pub(super) const ALL: [Self; 3] = [Self::V4, Self::V6, Self::Link];

    /// Returns the address at rxe's end.
    pub(super) fn rxe(self) -> IpAddr {
        match self {
            Self::V4 => [10, 9, 8, 1].into(),
            Self::V6 => [0xfd00, 9, 8, 0, 0, 0, 0, 1].into(),
            Self::Link => [0xfe80, 0, 0, 0, 0, 9, 8, 1].into(),
        }
    }

    /// Returns the address at soft's end.
    pub(super) fn soft(self) -> IpAddr {
        match self {
            Self::V4 => [10, 9, 8, 2].into(),
            Self::V6 => [0xfd00, 9, 8, 0, 0, 0, 0, 2].into(),
            Self::Link => [0xfe80, 0, 0, 0, 0, 9, 8, 2].into(),
        }
    }

    /// Returns an address with a port as text. A link-local address includes the name of the
    /// interface at rxe's end or at soft's end.
    pub(super) fn with_port(self, address: IpAddr, port: u16, at_rxe: bool) -> String {
        match self {
            Self::V4 => format!("{address}:{port}"),
            Self::V6 => format!("[{address}]:{port}"),
            Self::Link => format!("[{address}%{}]:{port}", if at_rxe { "vs0" } else { "vs1" }),
        }
    }
}

/// The veth pair, with rxe1 on it. Dropping this value deletes both.
#[derive(Debug)]
pub(super) struct Wire(());

impl Wire {
    /// Creates the namespace, the pair with links of this MTU and rxe1. Waits for the addresses.
    ///
    /// # Errors
    /// Fails if one of these cannot be created.
    pub(super) fn new(link_mtu: u32) -> CaseResult<Self> {
        // A killed case may have left some of these behind.
        down();
        let wire = Self(());
        ip(
            &[],
            &format!(
                "netns add {NAMESPACE}\n\
                 link add vs0 mtu {link_mtu} type veth peer name vs1 netns {NAMESPACE} mtu {link_mtu}\n\
                 link set dev vs0 addrgenmode none\n\
                 addr add {}/24 dev vs0\n\
                 addr add {}/64 dev vs0 nodad\n\
                 addr add {}/64 dev vs0 nodad\n\
                 link set vs0 up\n",
                Family::V4.rxe(),
                Family::V6.rxe(),
                Family::Link.rxe()
            ),
        )?;
        ip(
            &["-n", NAMESPACE],
            &format!(
                "link set lo up\n\
                 link set dev vs1 addrgenmode none\n\
                 addr add {}/24 dev vs1\n\
                 addr add {}/64 dev vs1 nodad\n\
                 addr add {}/64 dev vs1 nodad\n\
                 link set vs1 up\n",
                Family::V4.soft(),
                Family::V6.soft(),
                Family::Link.soft()
            ),
        )?;
        let done = run(Command::new("rdma").args(["link", "add", RXE, "type", "rxe", "netdev", "vs0"]))?;
        if !done.status.success() {
            return fail(format_args!("rdma link add: {}", done.stderr.trim_end()));
        }
        let port = format!("/sys/class/infiniband/{RXE}/ports/1/state");
        let is_up = || {
            Family::ALL.iter().all(|family| gid_index(*family).is_some())
                && std::fs::read_to_string(&port).is_ok_and(|state| state.contains("ACTIVE"))
        };
        if !wait_until(LIMIT, is_up) {
            return fail(format_args!("{RXE} does not come up"));
        }
        Ok(wire)
    }

    /// Returns rxe1's name and the index of its GID, for a command at rxe's end.
    ///
    /// # Errors
    /// Fails if the address has no GID.
    pub(super) fn at_rxe(&self, family: Family) -> CaseResult<(&'static str, u32)> {
        match gid_index(family) {
            Some(index) => Ok((RXE, index)),
            None => fail(format_args!("{RXE} has no GID of {}", family.rxe())),
        }
    }

    /// Returns a command that runs other commands in the namespace, with the `/sys` files of the
    /// first namespace.
    pub(super) fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{NAMESPACE}"));
        command
    }

    /// Returns a command that runs the given command inside the namespace, with soft0 on the
    /// address of this family.
    pub(super) fn in_namespace(&self, command: &Command, family: Family) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", NAMESPACE]);
        let mut wrapped = process::under(inside, command);
        wrapped.env("VERBS_SOFT", family.soft().to_string());
        wrapped
    }

    /// Adds an IPv4 address at soft's end and returns it.
    ///
    /// # Errors
    /// Fails if `ip` fails.
    pub(super) fn add_address(&self, number: u8) -> CaseResult<IpAddr> {
        let address = IpAddr::from([10, 9, 8, number]);
        ip(&["-n", NAMESPACE], &format!("addr add {address}/24 dev vs1\n"))?;
        Ok(address)
    }

    /// Configures netem with these settings on both ends of the wire.
    ///
    /// # Errors
    /// Skips the case if the kernel has no netem.
    pub(super) fn disturb(&self, netem: &str) -> CaseResult {
        for (namespace, device) in [(&[] as &[&str], "vs0"), (&["-n", NAMESPACE], "vs1")] {
            let mut tc = Command::new("tc");
            tc.args(namespace).args(["qdisc", "replace", "dev", device, "root", "netem", "limit", "10000"]);
            let done = run(tc.args(netem.split(' ')))?;
            if done.stderr.contains("qdisc kind is unknown") {
                return skip("this kernel has no netem");
            }
            if !done.status.success() {
                return fail(format_args!("tc {netem}: {}", done.stderr.trim_end()));
            }
        }
        Ok(())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        down();
    }
}

fn down() {
    // Each of these may be missing.
    let _ = run(Command::new("rdma").args(["link", "delete", RXE]));
    let _ = run(Command::new("ip").args(["link", "delete", "vs0"]));
    let _ = run(Command::new("ip").args(["netns", "delete", NAMESPACE]));
}

fn ip(options: &[&str], batch: &str) -> CaseResult {
    let mut child = Command::new("ip")
        .args(options)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(batch.as_bytes())?;
    }
    let done = child.wait_with_output()?;
    if done.status.success() {
        return Ok(());
    }
    Err(Stop::Failed(format!("ip: {}", String::from_utf8_lossy(&done.stderr).trim_end())))
}

/// Returns the index of rxe's address in rxe's GID table.
fn gid_index(family: Family) -> Option<u32> {
    let wanted = match family.rxe() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let wanted: Vec<String> = wanted.segments().iter().map(|part| format!("{part:04x}")).collect();
    let wanted = wanted.join(":");
    (0..32).find(|index| {
        let read = |what: &str| {
            std::fs::read_to_string(format!("/sys/class/infiniband/{RXE}/ports/1/{what}/{index}"))
        };
        read("gids").is_ok_and(|gid| gid.trim_end() == wanted)
            && read("gid_attrs/types").is_ok_and(|kind| kind.trim_end() == "RoCE v2")
    })
}
