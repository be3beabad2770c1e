//! Two processes whose devices have different addresses find each other through a port on
//! localhost. One process detects when the other has ended.
//!
//! This test has no harness, because it runs its own executable as both processes.
#![allow(missing_docs)]

mod common;

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Command, ExitCode, Stdio};

use common::{PATIENCE, Process};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use provider_soft::SoftDevice;
use provider_soft::cm::{
    DeviceOwner, ListenerCache, ListenerName, MAD_LEN, MadAddress, Port, Resolution, SpareFd, resolve,
};
use verbs::Errno;

/// Whether packets between devices opened by [`common::open`] travel through memory.
const SHARED_MEMORY: bool = true;

/// The port space of TCP in `rdma_cm.h`.
const TCP: u16 = 0x106;

fn main() -> ExitCode {
    let port = std::env::args().nth(2).and_then(|text| text.parse().ok());
    match (std::env::args().nth(1).as_deref(), port) {
        (Some("listen"), Some(port)) => listen(port),
        (Some("connect"), Some(port)) => connect(port),
        _ => return supervise(),
    }
    ExitCode::SUCCESS
}

fn supervise() -> ExitCode {
    let port = (std::process::id() as u16 | 0x8000).to_string();
    let start = |role: &str| {
        let mut command = Command::new("/proc/self/exe");
        command.args([role, port.as_str()]).env_remove("VERBS_SOFT").env_remove("VERBS_SOFT_STRICT_PORTS");
        command.stdout(Stdio::piped()).spawn().expect("this program starts again")
    };
    let mut listener = start("listen");
    let mut line = String::new();
    BufReader::new(listener.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    assert_eq!(line.trim(), "listening");
    let listener = Process(listener);
    let client = Process(start("connect")).finish();
    let failed = !client.success() || !listener.finish().success();
    println!(
        "{} cm.two_processes_find_each_other_by_a_port_of_localhost",
        if failed { "FAIL" } else { "PASS" }
    );
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Returns the port of a new device with an address that no other process has or knows. The first
/// automatic device of a process would share its address with other processes.
fn own_port() -> Port {
    let _shared = SoftDevice::auto().unwrap();
    Port::from_device(&SoftDevice::auto().unwrap()).unwrap()
}

/// Runs the listening process. Replies to clients, and returns each MAD to its sender until a MAD
/// ends with 0.
fn listen(port: u16) {
    let ports = [own_port()];
    let [own] = &ports;
    let gsi = own.take_gsi().unwrap();
    let _device = ListenerName::of_device(own).unwrap();
    assert_eq!(ListenerName::of_device(own).unwrap_err(), Errno::ADDRINUSE);
    let owner = DeviceOwner::at(own.address(), 0, 0);
    assert!(matches!(owner, DeviceOwner::Unknown), "this process learns nothing of its own end: {owner:?}");
    let any = (Ipv4Addr::UNSPECIFIED, port).into();
    let listening = ListenerName::bind(TCP, any, &ports).unwrap().expect("nobody has the name");
    println!("listening");
    loop {
        wait(&[gsi.as_fd(), listening.as_fd()]);
        listening.reply(&mut SpareFd::new()).unwrap();
        while let Some(received) = gsi.recv() {
            gsi.send(&received.from, &received.mad).unwrap();
            if received.mad.last() == Some(&0) {
                return;
            }
        }
    }
}

fn connect(port: u16) {
    let ports = [own_port()];
    let [own] = &ports;
    for ip in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST] {
        let taken = ListenerName::bind(TCP, (ip, port).into(), &ports);
        assert_eq!(taken.unwrap_err(), Errno::ADDRINUSE, "the other process listens there: {ip}");
    }
    let gsi = own.take_gsi().unwrap();
    let to: SocketAddr = (Ipv4Addr::LOCALHOST, port).into();
    let Resolution::Pending(mut lookup) = resolve(TCP, None, to).unwrap() else { panic!("no listener") };
    wait(&[lookup.as_fd()]);
    let route = lookup.poll().unwrap().expect("a reply");
    assert!(route.is_local && route.destination != own.address());
    let owner = DeviceOwner::at(own.address(), 0, 0);
    assert!(matches!(owner, DeviceOwner::Unknown), "the device has no name: {owner:?}");
    let mut replies = ListenerCache::default();
    let owner = DeviceOwner::at(route.destination, 0, 0);
    let DeviceOwner::Process(peer) = owner else { panic!("{owner:?}") };
    assert!(!is_readable(&[peer.as_fd()], PollTimeout::ZERO) && replies.has_device(&peer), "it lives");
    for last in [1, 0] {
        gsi.send(&MadAddress::new(route.destination.into()), &[last; MAD_LEN]).unwrap();
        let received = loop {
            // The descriptor is readable until no MAD is left.
            match gsi.recv() {
                Some(received) => break received,
                None => wait(&[gsi.as_fd()]),
            }
        };
        assert_eq!((received.mad, received.from.gid), ([last; MAD_LEN], route.destination.into()));
    }
    // Readable once the listening process has ended.
    wait(&[peer.as_fd()]);
    assert!(!replies.has_device(&peer));
}

fn wait(files: &[BorrowedFd<'_>]) {
    let is_ready = is_readable(files, PollTimeout::try_from(PATIENCE).unwrap());
    assert!(is_ready, "nothing within {PATIENCE:?}");
}

fn is_readable(files: &[BorrowedFd<'_>], within: PollTimeout) -> bool {
    let mut fds: Vec<_> = files.iter().map(|file| PollFd::new(*file, PollFlags::POLLIN)).collect();
    poll(&mut fds, within).unwrap() > 0
}
