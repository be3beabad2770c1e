//! Ethernet addresses of neighbours, gateways and VLANs, as reported by this machine's kernel.
//!
//! This test runs without the test harness, because it restarts itself in a new network namespace
//! with its own interfaces. It is skipped if the host does not allow that, or lacks `unshare` or
//! `ip`.
#![allow(missing_docs)]

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use verbs_core::Errno;
use verbs_core::neighbour::{EthPath, interface_with, resolve};

const NAME: &str = "neighbours.the_kernel_reports_the_address_of_the_next_hop";
const VLAN: &str = "neighbours.the_kernel_reports_the_vlan_of_an_interface";
/// The exit status of a process whose kernel lacks VLANs.
const NO_VLAN: u8 = 78;
/// The exit status of a shell that could not create the interfaces.
const NO_INTERFACES: i32 = 77;
const INTERFACES: &str = r#"
    {
        ip link add name v0 type veth peer name v1 && ip link set v0 up && ip link set v1 up &&
        ip addr add 10.77.0.1/24 dev v0 &&
        ip neigh add 10.77.0.3 lladdr 02:00:00:00:00:03 dev v0 nud permanent &&
        ip route add 10.99.0.0/16 via 10.77.0.3
    } || exit 77
    ip link add link v0 name v0.42 type vlan id 42 && ip link set v0.42 up &&
        ip addr add 10.78.0.1/24 dev v0.42 &&
        ip neigh add 10.78.0.2 lladdr 02:00:00:00:00:42 dev v0.42 nud permanent
    exec "$0" "$@"
"#;
/// The time limit for one step, far longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("inside") {
        next_hops();
        return if vlan() { ExitCode::SUCCESS } else { ExitCode::from(NO_VLAN) };
    }
    let this = std::env::current_exe().expect("this program has a path");
    // A user namespace makes an unprivileged process root of its network namespace.
    let flags = if std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) { "-n" } else { "-rn" };
    let status =
        Command::new("unshare").args([flags, "sh", "-c", INTERFACES]).arg(this).arg("inside").status();
    let (passed, failed, skipped) = match status {
        Ok(status) if status.success() => (2, 0, 0),
        Ok(status) if status.code() == Some(NO_VLAN.into()) => {
            println!("skip {VLAN}: this kernel has no VLANs");
            (1, 0, 1)
        }
        // `unshare` exits with 1 if the kernel refuses. A test that panics exits with 101.
        Ok(status) if matches!(status.code(), Some(NO_INTERFACES | 1)) => {
            println!("skip {NAME}, {VLAN}: no network namespace with interfaces ({status})");
            (0, 0, 2)
        }
        Err(error) => {
            println!("skip {NAME}, {VLAN}: unshare: {error}");
            (0, 0, 2)
        }
        Ok(status) => {
            println!("FAIL {NAME}, {VLAN}: {status}");
            (0, 1, 0)
        }
    };
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    ExitCode::from(failed)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Tests a path through a VLAN. Returns `false` if the VLAN's interface does not exist.
fn vlan() -> bool {
    let here = ip("10.78.0.1");
    let Ok(ifindex) = interface_with(here) else { return false };
    let path = EthPath { mac: [2, 0, 0, 0, 0, 0x42], vlan: Some(42) };
    assert_eq!(resolve(ifindex, here, ip("10.78.0.2"), Duration::ZERO), Ok(path));
    true
}

fn next_hops() {
    let here = ip("10.77.0.1");
    let v0 = interface_with(here).unwrap();
    let on_v0 = |mac| Ok(EthPath { mac, vlan: None });
    let gateway = [2, 0, 0, 0, 0, 3];
    assert_eq!(resolve(v0, here, ip("10.99.1.1"), Duration::ZERO), on_v0(gateway), "by a gateway");
    let group = [1, 0, 0x5e, 1, 2, 3];
    assert_eq!(resolve(v0, here, ip("239.1.2.3"), Duration::ZERO), on_v0(group), "a group");

    // The interface's own address, for packets to itself.
    let Ok(EthPath { mac, vlan: None }) = resolve(v0, here, here, Duration::ZERO) else {
        panic!("this host has an address");
    };
    let text = std::fs::read_to_string("/sys/class/net/v0/address").unwrap_or_default();
    let own = mac.map(|byte| format!("{byte:02x}")).join(":");
    // If /sys belongs to another namespace, it lacks this interface.
    assert!(text.is_empty() || text.trim() == own, "{text} is not {own}");

    let start = Instant::now();
    let silent = resolve(v0, here, ip("10.77.0.9"), Duration::from_millis(50));
    assert_eq!(silent, Err(Errno::HOSTUNREACH), "a neighbour that does not reply");
    assert!(start.elapsed() >= Duration::from_millis(50));

    // A neighbour whose address arrives while the caller waits, as with ARP.
    let found = thread::scope(|scope| {
        let waiting = scope.spawn(|| resolve(v0, here, ip("10.77.0.2"), PATIENCE));
        let start = Instant::now();
        while !std::fs::read_to_string("/proc/net/arp").unwrap().contains("10.77.0.2 ") {
            assert!(start.elapsed() < PATIENCE, "the kernel never asked");
            thread::yield_now();
        }
        let reply = ["neigh", "replace", "10.77.0.2", "lladdr", "02:00:00:00:00:02", "dev", "v0"];
        assert!(Command::new("ip").args(reply).status().unwrap().success());
        waiting.join().unwrap()
    });
    assert_eq!(found, on_v0([2, 0, 0, 0, 0, 2]));
}
