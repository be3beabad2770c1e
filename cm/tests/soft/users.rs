//! Listener names taken by another user of the machine, whose program bypasses this library's
//! checks.

use std::io::{self, BufReader, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::ChildStdout;
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket};
use nix::unistd::geteuid;
use rdmacm::{EventChannel, EventKind, PortSpace};
use verbs::Errno;

use crate::process::{Process, command_on, line, send};
use crate::support::{Host, is_inside, next, resolved};

/// An address of this machine that belongs to no device.
pub(crate) const THIRD: Ipv4Addr = Ipv4Addr::new(127, 3, 2, 1);

/// Addresses of this machine.
const ADDRESSES: [Ipv4Addr; 3] = [Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST, THIRD];

/// Returns [`ADDRESSES`], plus the address of a network interface, if this machine has any.
fn addresses() -> Vec<Ipv4Addr> {
    let outer = getifaddrs().unwrap().find_map(|entry| {
        let ip = entry.address?.as_sockaddr_in()?.ip();
        (!ip.is_loopback()).then_some(ip)
    });
    ADDRESSES.into_iter().chain(outer).collect()
}

/// Returns the addresses that another user can take: `names` and the network interface's address.
fn with_outer(names: &str) -> String {
    let outer = addresses().split_off(ADDRESSES.len());
    outer.iter().fold(names.to_owned(), |names, ip| format!("{names} {ip}"))
}

/// Returns the name of a listener.
fn name(ip: Ipv4Addr, port: u16) -> String {
    format!("verbs-soft/cm/2/{:x}/{port}/{ip}", PortSpace::TCP.0)
}

fn unix(name: impl AsRef<[u8]>) -> UnixAddress {
    UnixAddress::from_abstract_name(name).unwrap()
}

/// Runs in a process started by a test. Takes all free names of a port and reports to their clients
/// that no program listens. The mode `devices` also claims devices at these addresses; the modes of
/// [`bind_silently`] and [`fill`] take one name.
pub(crate) fn squat(port: u16, mode: Option<&str>) {
    let has_devices = match mode {
        Some("bound") => return bind_silently(port),
        Some("full") => return fill(port, Ipv4Addr::UNSPECIFIED),
        Some("third-full") => return fill(port, THIRD),
        mode => mode.is_some(),
    };
    let (mut taken, mut devices) = (Vec::new(), Vec::new());
    for ip in addresses() {
        if ip.is_loopback() {
            // This is the name of a device at the address, used along with a listener on all
            // addresses.
            deny(UnixListener::bind_addr(&unix(name(ip, port) + "/device")).unwrap());
        }
        let Ok(name) = UnixListener::bind_addr(&unix(name(ip, port))) else { continue };
        if has_devices {
            devices.extend(UnixListener::bind_addr(&unix(format!("verbs-soft/cm/2/device/{ip}"))));
        }
        taken.push(ip.to_string());
        deny(name);
    }
    println!("\nsquats {}", taken.join(" "));
    let _ = io::stdin().read_line(&mut String::new());
}

/// Reports to the clients of a name that no program listens.
fn deny(name: UnixListener) {
    std::thread::spawn(move || {
        for client in name.incoming() {
            let _ = client.unwrap().write_all(&[0; 9]);
        }
    });
}

/// Binds the name of the loopback address without listening, so that the name's owner stays hidden.
fn bind_silently(port: u16) {
    let name = UnixAddr::new_abstract(name(Ipv4Addr::LOCALHOST, port).as_bytes()).unwrap();
    let file = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
    bind(file.as_raw_fd(), &name).unwrap();
    println!("\nsquats bound");
    let _ = io::stdin().read_line(&mut String::new());
}

/// Takes the name of one address, or of all addresses, and fills the name's queue of waiting
/// clients.
fn fill(port: u16, address: Ipv4Addr) {
    let all = name(address, port);
    let listener = UnixListener::bind_addr(&unix(&all)).unwrap();
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    let mut clients = Vec::new();
    loop {
        let client = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
        match connect(client.as_raw_fd(), &UnixAddr::new_abstract(all.as_bytes()).unwrap()) {
            Ok(()) => clients.push(client),
            Err(nix::errno::Errno::EAGAIN) => break,
            Err(errno) => panic!("{errno}"),
        }
    }
    println!("\nsquats full");
    let _ = io::stdin().read_line(&mut String::new());
}

/// Runs in a process started by a test. Queries a listener's token and takes the token's name once
/// the listener has closed.
pub(crate) fn haunt(port: u16) {
    let listener = name(Ipv4Addr::LOCALHOST, port);
    let mut answer = Vec::new();
    UnixStream::connect_addr(&unix(&listener)).unwrap().read_to_end(&mut answer).unwrap();
    let token = u64::from_ne_bytes(*answer.last_chunk().unwrap());
    println!("\nknows");
    io::stdin().read_line(&mut String::new()).unwrap();
    let _taken = UnixDatagram::bind_addr(&unix(format!("{listener}/{token:016x}"))).unwrap();
    println!("\nhaunts");
    io::stdin().read_line(&mut String::new()).unwrap();
}

/// Starts a part as another user.
fn start_as(user: u32, part: &str) -> (Process, BufReader<ChildStdout>) {
    start_as_on(user, "auto", part)
}

/// Starts a part as another user, with a device at an address.
fn start_as_on(user: u32, device: &str, part: &str) -> (Process, BufReader<ChildStdout>) {
    let mut command = command_on(device, part);
    let mut process = command.uid(user).gid(user).spawn().expect("this program starts as another user");
    let output = process.stdout.take().unwrap();
    (Process(process), BufReader::new(output))
}

/// Returns whether this process may start processes as other users. If not, the test is skipped.
fn may_be_others(test: &str) -> bool {
    let may = geteuid().is_root()
        && std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| {
            map.split_whitespace()
                .last()
                .and_then(|count| count.parse::<u64>().ok())
                .is_some_and(|count| count > 2000)
        });
    if !may {
        // `println!` is shown only for failing tests.
        let _ = writeln!(io::stdout(), "\nskip {test}: only root starts processes of other users");
    }
    may
}

/// The commands that create an interface, whose address the devices of `auto` use.
const NETWORK: &str = "ip link add a0 type veth peer name a1 && ip link set a0 up && ip link set a1 up && \
    ip address add 10.78.2.1/24 dev a0";

/// Connects to a user's service while another user holds all free names of the service's port.
#[track_caller]
fn connect_beside(service: (u32, &str, &str), squatter: (u32, &str), taken: &str, to: Ipv4Addr) {
    let (process, mut output) = start_as_on(service.0, service.1, service.2);
    let port = line(&mut output, "listening ").parse().unwrap();
    let (_squatter, mut its_output) = start_as(squatter.0, &format!("squat {port} {}", squatter.1));
    assert_eq!(line(&mut its_output, "squats"), taken);
    be_served(process, output, (to, port));
}

/// Connects to a service that exits when the connection ends.
#[track_caller]
pub(crate) fn be_served(mut service: Process, mut output: BufReader<ChildStdout>, to: (Ipv4Addr, u16)) {
    let channel = EventChannel::new().unwrap();
    let id = resolved(&channel, PortSpace::TCP, to);
    let _objects = send(&channel, &id);
    line(&mut output, "received");
    id.disconnect().unwrap();
    assert!(matches!(next(&channel).kind, EventKind::Disconnected));
    assert!(service.0.wait().unwrap().success());
}

#[test]
fn another_user_takes_no_client_of_a_listener_on_all_addresses() {
    const TEST: &str = "users::another_user_takes_no_client_of_a_listener_on_all_addresses";
    if !may_be_others(TEST) || !is_inside(TEST, NETWORK) {
        return;
    }
    let _host = Host::new();
    for (service, squatter) in [(0, 1000), (1000, 1001)] {
        for to in addresses() {
            connect_beside((service, "auto", "listen"), (squatter, ""), "127.3.2.1", to);
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
        connect_beside((service, "auto", "local"), (squatter, ""), &taken, Ipv4Addr::LOCALHOST);
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

/// Returns the address of a device of another process, unique to one test.
fn named(number: u8) -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 90 + number, high, low).to_string()
}

#[test]
fn another_user_takes_no_client_of_a_listener_on_all_addresses_with_a_named_device() {
    const TEST: &str =
        "users::another_user_takes_no_client_of_a_listener_on_all_addresses_with_a_named_device";
    if !may_be_others(TEST) {
        return;
    }
    let (_host, named) = (Host::new(), named(1));
    for (service, squatter) in [(0, 1000), (1000, 1001)] {
        for to in ADDRESSES {
            let service = (service, named.as_str(), "listen");
            connect_beside(service, (squatter, ""), &with_outer("127.3.2.1"), to);
        }
    }
}

#[test]
fn another_user_with_a_device_takes_no_client_of_a_listener_of_root_on_all_addresses() {
    const TEST: &str =
        "users::another_user_with_a_device_takes_no_client_of_a_listener_of_root_on_all_addresses";
    if !may_be_others(TEST) || !is_inside(TEST, NETWORK) {
        return;
    }
    let (_host, named) = (Host::new(), named(2));
    for (device, taken) in [("auto", "127.3.2.1"), (&named, "127.3.2.1 10.78.2.1")] {
        for to in addresses() {
            let service = (0, device, "listen");
            connect_beside(service, (1000, "devices"), taken, to);
        }
    }
}

#[test]
fn a_loopback_port_of_one_user_is_in_use_for_all_addresses_of_another() {
    if !may_be_others("users::a_loopback_port_of_one_user_is_in_use_for_all_addresses_of_another") {
        return;
    }
    let (_service, mut output) = start_as(1000, "local");
    let port = line(&mut output, "listening ");
    for user in [0, 1001] {
        let (mut second, _output) = start_as_on(user, &named(3), &format!("occupied {port}"));
        assert!(second.0.wait().unwrap().success());
    }
}

#[test]
fn other_users_reach_a_device_at_the_loopback_address_beside_a_listener_on_all_addresses() {
    const TEST: &str =
        "users::other_users_reach_a_device_at_the_loopback_address_beside_a_listener_on_all_addresses";
    // Another program may have a device at 127.0.0.1 on this machine.
    if !may_be_others(TEST) || !is_inside(TEST, "true") {
        return;
    }
    let (_host, to) = (Host::new(), Ipv4Addr::LOCALHOST);
    let (on_all, mut its_output) = start_as_on(1000, "127.0.0.2", "listen");
    let port: u16 = line(&mut its_output, "listening ").parse().unwrap();
    let (mut stranger, _output) = start_as_on(1001, "127.0.0.1", &format!("occupied {port}"));
    assert!(stranger.0.wait().unwrap().success());
    let (service, mut output) = start_as_on(1000, "127.0.0.1", &format!("listen {port}"));
    line(&mut output, "listening");
    be_served(service, output, (to, port));
    // The other user takes the second name.
    let (_squatter, mut squats) = start_as(1001, &format!("squat {port}"));
    line(&mut squats, "squats");
    be_served(on_all, its_output, (to, port));
}

/// Returns a port unique to one test.
fn port(number: u16) -> u16 {
    (std::process::id() as u16).wrapping_mul(4).wrapping_add(number) | 0x8000
}

#[test]
fn a_loopback_port_that_another_user_only_binds_is_in_use_for_all_addresses() {
    const TEST: &str = "users::a_loopback_port_that_another_user_only_binds_is_in_use_for_all_addresses";
    if !may_be_others(TEST) {
        return;
    }
    let port = port(0);
    let (_squatter, mut output) = start_as(1000, &format!("squat {port} bound"));
    line(&mut output, "squats bound");
    for user in [0, 1001] {
        let (mut service, _output) = start_as_on(user, &named(4), &format!("occupied {port}"));
        assert!(service.0.wait().unwrap().success());
    }
}

#[test]
fn another_user_whose_queue_of_clients_is_full_keeps_none_from_a_device() {
    const TEST: &str = "users::another_user_whose_queue_of_clients_is_full_keeps_none_from_a_device";
    if !may_be_others(TEST) {
        return;
    }
    let (_host, port, device) = (Host::new(), port(1), named(5));
    let (_squatter, mut its_output) = start_as(1001, &format!("squat {port} full"));
    line(&mut its_output, "squats full");
    let (service, mut output) = start_as_on(1000, &device, &format!("listen {port}"));
    line(&mut output, "listening");
    be_served(service, output, (device.parse().unwrap(), port));
}

#[test]
fn another_user_whose_queue_of_clients_is_full_keeps_none_from_a_listener_on_all_addresses() {
    const TEST: &str =
        "users::another_user_whose_queue_of_clients_is_full_keeps_none_from_a_listener_on_all_addresses";
    if !may_be_others(TEST) {
        return;
    }
    let (_host, port) = (Host::new(), port(2));
    let (_squatter, mut its_output) = start_as(1001, &format!("squat {port} third-full"));
    line(&mut its_output, "squats full");
    // Without a listener on all addresses, the client may try again.
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(PortSpace::TCP).unwrap();
    let error = id.resolve_addr(None, (THIRD, port), Duration::from_secs(10)).unwrap_err();
    assert_eq!(error.errno, Errno::AGAIN);
    for user in [0, 1000] {
        let (service, mut output) = start_as(user, &format!("listen {port}"));
        line(&mut output, "listening");
        be_served(service, output, (THIRD, port));
    }
}

#[test]
fn a_listener_of_root_comes_before_one_of_another_user_that_has_answered_before() {
    const TEST: &str = "users::a_listener_of_root_comes_before_one_of_another_user_that_has_answered_before";
    if !may_be_others(TEST) {
        return;
    }
    let _host = Host::new();
    let (_other, mut its_output) = start_as(1000, "third");
    let port = line(&mut its_output, "listening ").parse().unwrap();
    let channel = EventChannel::new().unwrap();
    let _known = resolved(&channel, PortSpace::TCP, (THIRD, port));
    let (service, mut output) = start_as(0, &format!("listen {port}"));
    line(&mut output, "listening");
    be_served(service, output, (THIRD, port));
}

#[test]
fn a_listener_that_starts_again_has_its_clients_though_another_user_has_its_last_token() {
    const TEST: &str =
        "users::a_listener_that_starts_again_has_its_clients_though_another_user_has_its_last_token";
    if !may_be_others(TEST) {
        return;
    }
    let _host = Host::new();
    let (first, mut output) = start_as(0, "listen");
    let port: u16 = line(&mut output, "listening ").parse().unwrap();
    let (mut haunts, mut its_output) = start_as(1000, &format!("haunt {port}"));
    line(&mut its_output, "knows");
    be_served(first, output, (Ipv4Addr::LOCALHOST, port));
    haunts.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    line(&mut its_output, "haunts");
    let (second, mut output) = start_as(0, &format!("listen {port}"));
    line(&mut output, "listening");
    be_served(second, output, (Ipv4Addr::LOCALHOST, port));
}
