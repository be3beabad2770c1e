//! Tests that devices follow the interface of their address, including its other addresses and its
//! MTU.
//!
//! This test has no harness, because it runs its own executable in a network namespace whose
//! interface has three addresses. It is skipped if the host does not allow this, or lacks
//! `unshare`, `ip` or interfaces of the type `veth`.
#![allow(missing_docs)]

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, ExitCode};

use provider_soft::SoftDevice;
use provider_soft::cm::{Port, Resolution, Route, resolve};
use verbs::{Errno, Mtu};

/// The port space of TCP in `rdma_cm.h`.
const TCP: u16 = 0x106;
/// The exit status of a shell that failed to create the interface.
const NO_LINK: i32 = 77;
const LINK: &str = r#"
    { ip link set lo up && ip link add a0 type veth peer name a1 && ip addr add 10.7.0.1/24 dev a0 &&
      ip addr add 10.8.0.1/24 dev a0 && ip addr add 10.7.0.2/24 dev a0 label a0:2 &&
      ip link set a0 up && ip link set a1 up; } || exit 77
    exec "$0" "$@"
"#;

/// The names and functions of the tests. Each test runs in a separate namespace.
const TESTS: [(&str, fn()); 3] = [
    ("the_kernels_source_leads_to_a_device_of_the_same_interface", by_interface),
    ("a_device_of_the_same_subnet_comes_first", by_subnet),
    ("a_new_mtu_is_known_at_once", new_mtu),
];

fn main() -> ExitCode {
    if let Some(name) = std::env::args().nth(1) {
        if let Some((_, test)) = TESTS.iter().find(|(other, _)| *other == name) {
            test();
        }
        return ExitCode::SUCCESS;
    }
    let this = std::env::current_exe().expect("this program has a path");
    // A user namespace makes an unprivileged process root of its network namespace.
    let flags = if std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) { "-n" } else { "-rn" };
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, _) in TESTS {
        let status = Command::new("unshare").args([flags, "sh", "-c", LINK]).arg(&this).arg(name).status();
        match status {
            Ok(status) if status.success() => passed += 1,
            // `unshare` exits with 1 if the kernel does not permit it. A test that panics exits
            // with 101.
            Ok(status) if matches!(status.code(), Some(NO_LINK | 1)) => {
                println!("skip interface.{name}: no network namespace with an interface ({status})");
                skipped += 1;
            }
            Err(error) => {
                println!("skip interface.{name}: unshare: {error}");
                skipped += 1;
            }
            Ok(status) => {
                println!("FAIL interface.{name}: {status}");
                failed += 1;
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    ExitCode::from(failed)
}

fn port(address: &str) -> Port {
    Port::from_device(&SoftDevice::bind(address.parse().unwrap()).unwrap()).unwrap()
}

fn route(source: Option<&str>, to: &str) -> Result<Route, Errno> {
    let source = source.map(|source| source.parse().unwrap());
    match resolve(TCP, source, SocketAddr::new(to.parse().unwrap(), 7174))? {
        Resolution::Done(route) => Ok(route),
        other => panic!("nothing listens here: {other:?}"),
    }
}

/// Tests that a port is chosen by its interface, although the kernel would send from 10.7.0.1.
fn by_interface() {
    let device = port("10.7.0.2");
    let found = route(None, "10.7.0.9").unwrap();
    let peer: IpAddr = [10, 7, 0, 9].into();
    assert_eq!((found.port.address(), found.destination), (device.address(), peer));
    assert!(!found.is_local);
    let own = route(None, "10.8.0.1").unwrap();
    assert!(own.is_local && own.port.address() == device.address());
    // A source given by the program is used unchanged.
    assert_eq!(route(Some("10.7.0.1"), "10.7.0.9").unwrap_err(), Errno::NODEV);
    assert_eq!(route(Some("10.7.0.2"), "10.7.0.9").unwrap().port.address(), device.address());
    drop((device, found, own));
    let _elsewhere = SoftDevice::auto().unwrap();
    assert_eq!(route(None, "10.7.0.9").unwrap_err(), Errno::NODEV, "of another interface");
}

fn by_subnet() {
    let (other, device) = (port("10.8.0.1"), port("10.7.0.2"));
    assert_eq!(route(None, "10.7.0.9").unwrap().port.address(), device.address());
    assert_eq!(route(None, "10.8.0.9").unwrap().port.address(), other.address());
    let first = port("10.7.0.1");
    assert_eq!(route(None, "10.7.0.9").unwrap().port.address(), first.address(), "the kernel's own choice");
}

fn new_mtu() {
    let port = port("10.7.0.1");
    assert_eq!(port.active_mtu().unwrap(), Mtu::MTU_1024);
    let loopback = self::port("127.0.0.1");
    let [there, back] = [("127.0.0.1", "10.7.0.1"), ("10.7.0.1", "127.0.0.1")]
        .map(|(from, to)| route(Some(from), to).unwrap());
    assert_eq!(there.port.address(), loopback.address());
    assert_eq!(loopback.active_mtu().unwrap(), Mtu::MTU_4096);
    for (bytes, mtu) in [("4500", Mtu::MTU_4096), ("700", Mtu::MTU_512), ("2500", Mtu::MTU_2048)] {
        let changed = Command::new("ip").args(["link", "set", "a0", "mtu", bytes]).status();
        assert!(changed.unwrap().success());
        assert_eq!(port.active_mtu().unwrap(), mtu, "{bytes}");
        assert_eq!(port.active_mtu().unwrap(), mtu, "{bytes}, again");
        for _ in 0..2 {
            assert_eq!([&there, &back].map(|route| route.path_mtu().unwrap()), [mtu; 2], "{bytes}");
        }
    }
}
