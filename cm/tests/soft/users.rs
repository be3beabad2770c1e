//! Names of listeners taken by another user of the machine, without this library's checks.

use std::io::{self, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::process::ChildStdout;

use nix::ifaddrs::getifaddrs;
use nix::unistd::geteuid;
use rdmacm::{EventChannel, EventKind, PortSpace};

use crate::process::{Process, command_on, line, send};
use crate::support::{Host, next, resolved};

/// Addresses of this machine; the third belongs to no device.
const ADDRESSES: [Ipv4Addr; 3] = [Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 3, 2, 1)];

/// Returns [`ADDRESSES`], and one of an interface to the network if this machine has any.
fn addresses() -> Vec<Ipv4Addr> {
    let outer = getifaddrs().unwrap().find_map(|entry| {
        let ip = entry.address?.as_sockaddr_in()?.ip();
        (!ip.is_loopback()).then_some(ip)
    });
    ADDRESSES.into_iter().chain(outer).collect()
}

/// Returns what another user can take: `names`, and that of the interface.
fn with_outer(names: &str) -> String {
    let outer = addresses().split_off(ADDRESSES.len());
    outer.iter().fold(names.to_owned(), |names, ip| format!("{names} {ip}"))
}

/// A process that a test starts, not a test itself: takes all free names of a port, and replies
/// that nothing listens.
pub(crate) fn squat(port: u16) {
    let mut taken = Vec::new();
    for ip in addresses() {
        let name = format!("verbs-soft/cm/2/{:x}/{port}/{ip}", PortSpace::TCP.0);
        let Ok(name) = UnixListener::bind_addr(&UnixAddress::from_abstract_name(name).unwrap()) else {
            continue;
        };
        taken.push(ip.to_string());
        std::thread::spawn(move || {
            for client in name.incoming() {
                let _ = client.unwrap().write_all(&[0; 9]);
            }
        });
    }
    println!("\nsquats {}", taken.join(" "));
    let _ = io::stdin().read_line(&mut String::new());
}

/// Starts a part as a user.
fn start_as(user: u32, part: &str) -> (Process, BufReader<ChildStdout>) {
    let mut command = command_on("auto", part);
    let mut process = command.uid(user).gid(user).spawn().expect("this program starts as another user");
    let output = process.stdout.take().unwrap();
    (Process(process), BufReader::new(output))
}

/// Returns whether this process may start others as other users. If not, the test counts as
/// skipped.
fn may_be_others(test: &str) -> bool {
    let may = geteuid().is_root()
        && std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| {
            map.split_whitespace()
                .last()
                .and_then(|count| count.parse::<u64>().ok())
                .is_some_and(|count| count > 2000)
        });
    if !may {
        // Not by `println!`, which is shown only for tests that fail.
        let _ = writeln!(io::stdout(), "\nskip {test}: only root starts processes of other users");
    }
    may
}

/// Connects to a service that a user runs while another one holds all names of its port that are
/// free.
#[track_caller]
fn connect_beside(service: (u32, &str), squatter: u32, taken: &str, to: Ipv4Addr) {
    let (mut process, mut output) = start_as(service.0, service.1);
    let port = line(&mut output, "listening ").parse().unwrap();
    let (_squatter, mut its_output) = start_as(squatter, &format!("squat {port}"));
    assert_eq!(line(&mut its_output, "squats"), taken);
    let channel = EventChannel::new().unwrap();
    let id = resolved(&channel, PortSpace::TCP, (to, port));
    let _objects = send(&channel, &id);
    line(&mut output, "received");
    id.disconnect().unwrap();
    assert!(matches!(next(&channel).kind, EventKind::Disconnected));
    assert!(process.0.wait().unwrap().success());
}

#[test]
fn another_user_takes_no_client_of_a_listener_on_all_addresses() {
    if !may_be_others("users::another_user_takes_no_client_of_a_listener_on_all_addresses") {
        return;
    }
    let _host = Host::new();
    for (service, squatter) in [(0, 1000), (1000, 1001)] {
        for to in addresses() {
            connect_beside((service, "listen"), squatter, &with_outer("127.3.2.1"), to);
        }
    }
}

#[test]
fn another_user_takes_no_client_of_a_listener_on_the_loopback_address() {
    if !may_be_others("users::another_user_takes_no_client_of_a_listener_on_the_loopback_address") {
        return;
    }
    let _host = Host::new();
    for (service, squatter) in [(0, 1000), (1000, 1001)] {
        let taken = with_outer("0.0.0.0 127.3.2.1");
        connect_beside((service, "local"), squatter, &taken, Ipv4Addr::LOCALHOST);
    }
}

#[test]
fn a_port_of_one_user_is_in_use_for_another() {
    if !may_be_others("users::a_port_of_one_user_is_in_use_for_another") {
        return;
    }
    let (_service, mut output) = start_as(1000, "listen");
    let port = line(&mut output, "listening ");
    let (mut second, _output) = start_as(1001, &format!("occupied {port}"));
    assert!(second.0.wait().unwrap().success());
}
