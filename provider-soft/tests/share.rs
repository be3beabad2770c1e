//! Tests with processes that share an address: each process has a slot, even after other processes
//! have ended or are stopped.
//!
//! This test has no harness, because it runs its own executable as these processes.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStdout, Command, ExitCode, Stdio};

use common::{End, PATIENCE, Process, Shape, eventually};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use provider_soft::cm::{Forwarder, MAD_LEN, MadAddress, Mailbox, Port, ReceivedMad};
use provider_soft::{Soft, SoftDevice};
use verbs::{Context, NamedProvider};

/// Whether packets between devices opened by [`common::open`] travel through memory.
const SHARED_MEMORY: bool = true;

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 77, 1, 1));

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("member") => return member(),
        Some("forward") => return forward(),
        Some("services") => return services(),
        Some("behind") => return behind(),
        Some("receive") => return receive(),
        Some("mailbox") => return mailbox(),
        _ => {}
    }
    let cases: [(&str, fn()); 10] = [
        ("processes_have_slots_and_the_next_takes_a_free_one", slots),
        ("a_stopped_process_keeps_nobody_from_joining_unless_all_are_stopped", stopped),
        ("a_process_without_free_descriptors_answers_those_that_join", full),
        ("a_process_without_free_descriptors_forwards_requests", full_forwarder),
        ("a_process_without_free_descriptors_receives_forwarded_requests", full_receiver),
        ("requests_wait_for_a_listener_that_is_behind", listener_behind),
        ("connections_to_services_that_have_ended_are_closed", services_that_end),
        ("a_message_without_a_receiver_reaches_every_other_process", for_all),
        ("another_user_finds_the_address_taken", other_user),
        ("a_process_has_one_device_at_an_address", one_device),
    ];
    let (mut failed, mut skipped) = (0, 0);
    for (name, case) in cases {
        if name.starts_with("another_user") && !geteuid().is_root() {
            println!("SKIP share.{name}: only root can start a process of another user");
            skipped += 1;
            continue;
        }
        let passed = std::panic::catch_unwind(case).is_ok();
        println!("{} share.{name}", if passed { "PASS" } else { "FAIL" });
        failed += u32::from(!passed);
    }
    println!("{} passed, {failed} failed, {skipped} skipped", cases.len() as u32 - failed - skipped);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Opens the device, prints its slot or the error, and waits to be killed.
fn member() -> ExitCode {
    let device = match SoftDevice::bind(ADDRESS) {
        Ok(device) => device,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let context: Context<Soft> = Context::from_raw(Soft::open(&device).unwrap());
    let end = End::<verbs::state::Reset>::new(&context, &Shape::default());
    let mut files = Vec::new();
    if std::env::args().nth(2).as_deref() == Some("full") {
        files.extend(core::iter::from_fn(|| std::fs::File::open("/dev/null").ok()));
    }
    println!("{}", end.qp.qp_num() >> 16);
    loop {
        std::thread::park();
    }
}

/// The service id of the forwarded requests.
const SERVICE: u64 = 0x0106_1c06;

/// Forwards requests while all descriptors are in use, and receives these requests afterwards.
fn forward() -> ExitCode {
    let port = Port::from_device(&SoftDevice::bind(ADDRESS).unwrap()).unwrap();
    let mut mailbox = Mailbox::bind(&port, SERVICE).unwrap().expect("processes share the address");
    let mut forwarder = Forwarder::default();
    let files: Vec<_> = core::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    for last in 0..3 {
        let request =
            ReceivedMad { from: MadAddress::new(port.gid()), pkey: Port::PKEY, mad: [last; MAD_LEN] };
        assert!(forwarder.forward(&port, SERVICE, &request));
        assert!(!forwarder.forward(&port, SERVICE + 1, &request), "no process has this service");
    }
    drop(files);
    let received: Vec<_> = core::iter::from_fn(|| mailbox.recv()).map(|received| received.mad[0]).collect();
    assert_eq!(received, [0, 1, 2]);
    ExitCode::SUCCESS
}

/// The number of requests forwarded one by one. The next constant is the number forwarded all at
/// once.
const SINGLE: u8 = 6;
const AT_ONCE: u8 = 64;

/// Receives requests while all descriptors are in use, and prints the first byte of each request.
fn receive() -> ExitCode {
    let port = Port::from_device(&SoftDevice::bind(ADDRESS).unwrap()).unwrap();
    let mut mailbox = Mailbox::bind(&port, SERVICE).unwrap().expect("processes share the address");
    let _files: Vec<_> = core::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    println!("full");
    for _ in 0..SINGLE + AT_ONCE {
        let request = loop {
            let mut fds = [PollFd::new(mailbox.as_fd(), PollFlags::POLLIN)];
            let patience = PollTimeout::try_from(PATIENCE).expect("it fits");
            assert_eq!(poll(&mut fds, patience), Ok(1), "a request arrives");
            if let Some(request) = mailbox.recv() {
                break request;
            }
        };
        println!("{}", request.mad[0]);
    }
    ExitCode::SUCCESS
}

fn full_receiver() {
    let mut receiver = Member::start_as("receive", |_| {});
    let port = Port::from_device(&SoftDevice::bind(ADDRESS).unwrap()).unwrap();
    // Each forwarder has its own connection, as in different processes.
    let mut forwarders = [Forwarder::default(), Forwarder::default()];
    let mut forward = |tag: u8| {
        let request =
            ReceivedMad { from: MadAddress::new(port.gid()), pkey: Port::PKEY, mad: [tag; MAD_LEN] };
        assert!(forwarders[usize::from(tag % 2)].forward(&port, SERVICE, &request), "{tag}");
    };
    for tag in 0..SINGLE {
        forward(tag);
        assert_eq!(receiver.next_line(), tag.to_string());
    }
    let tags = SINGLE..SINGLE + AT_ONCE;
    tags.clone().for_each(&mut forward);
    let received: BTreeSet<_> = tags.clone().map(|_| receiver.next_line()).collect();
    assert_eq!(received, tags.map(|tag| tag.to_string()).collect());
}

/// Forwards more requests than a connection's buffer holds, before the listener reads any of them.
fn behind() -> ExitCode {
    let port = Port::from_device(&SoftDevice::bind(ADDRESS).unwrap()).unwrap();
    let mut mailbox = Mailbox::bind(&port, SERVICE).unwrap().expect("processes share the address");
    let mut forwarder = Forwarder::default();
    let request = |number: u32| {
        let mut mad = [0; MAD_LEN];
        mad[..4].copy_from_slice(&number.to_ne_bytes());
        ReceivedMad { from: MadAddress::new(port.gid()), pkey: Port::PKEY, mad }
    };
    for number in 0..BEHIND {
        assert!(forwarder.forward(&port, SERVICE, &request(number)));
    }
    let is_writable = |forwarder: &Forwarder| {
        let mut fds = [PollFd::new(forwarder.writable().expect("some requests wait"), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO) == Ok(1)
    };
    assert!(!is_writable(&forwarder), "no space yet");
    let mut received = Vec::new();
    while let Some(ReceivedMad { mad, .. }) = mailbox.recv() {
        received.push(u32::from_ne_bytes([mad[0], mad[1], mad[2], mad[3]]));
        if is_writable(&forwarder) {
            forwarder.flush();
        }
    }
    assert!(received.into_iter().eq(0..BEHIND), "each once and in order");
    assert!(!is_writable(&forwarder), "none waits any longer");
    // Requests for a listener that has ended are dropped.
    for number in 0..BEHIND {
        assert!(forwarder.forward(&port, SERVICE, &request(number)));
    }
    drop(mailbox);
    assert!(is_writable(&forwarder), "the end is noticed");
    forwarder.flush();
    assert!(!is_writable(&forwarder));
    assert!(!forwarder.forward(&port, SERVICE, &request(0)), "no process has this service");
    ExitCode::SUCCESS
}

/// The number of requests for a listener that does not read yet: several times as many as a
/// connection's buffer holds.
const BEHIND: u32 = 3000;

/// Forwards a request to each of many services. Only one service exists at a time.
fn services() -> ExitCode {
    let port = Port::from_device(&SoftDevice::bind(ADDRESS).unwrap()).unwrap();
    let request = ReceivedMad { from: MadAddress::new(port.gid()), pkey: Port::PKEY, mad: [1; MAD_LEN] };
    let mut forwarder = Forwarder::default();
    let mut files = Vec::new();
    for service in 1..=20 {
        let mailbox = Mailbox::bind(&port, service).unwrap().expect("processes share the address");
        assert!(forwarder.forward(&port, service, &request));
        drop(mailbox);
        files.push(std::fs::read_dir("/proc/self/fd").unwrap().count());
    }
    assert_eq!(files[19], files[0], "{files:?}");
    ExitCode::SUCCESS
}

/// Prints a line, receives a message for all processes at the address, and prints the message's
/// first byte.
fn mailbox() -> ExitCode {
    let device = SoftDevice::bind(ADDRESS).unwrap();
    let context: Context<Soft> = Context::from_raw(Soft::open(&device).unwrap());
    let _end = End::<verbs::state::Reset>::new(&context, &Shape::default());
    let port = Port::from_device(&device).unwrap();
    let mut mailbox = Mailbox::bind_process(&port).unwrap().expect("processes share the address");
    println!("{}", port.slot());
    let message = loop {
        poll(&mut [PollFd::new(mailbox.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
        if let Some(message) = mailbox.recv() {
            break message;
        }
    };
    println!("{}", message.mad[0]);
    ExitCode::SUCCESS
}

fn for_all() {
    let mut others = [(); 2].map(|()| Member::start_as("mailbox", |_| {}));
    let port = Port::from_device(&SoftDevice::bind(ADDRESS).unwrap()).unwrap();
    let mut own = Mailbox::bind_process(&port).unwrap().expect("processes share the address");
    let message = ReceivedMad { from: MadAddress::new(port.gid()), pkey: Port::PKEY, mad: [7; MAD_LEN] };
    Forwarder::default().forward_to_all(&port, &message);
    assert_eq!(others.each_mut().map(Member::next_line), ["7", "7"]);
    assert!(own.recv().is_none());
}

/// A process and the first line it has printed.
struct Member {
    process: Process,
    stdout: BufReader<ChildStdout>,
    line: String,
}

impl Member {
    fn start() -> Self {
        Self::start_with(|_| {})
    }

    fn start_with(change: impl Fn(&mut Command)) -> Self {
        Self::start_as("member", change)
    }

    fn start_as(part: &str, change: impl Fn(&mut Command)) -> Self {
        let mut command = Command::new("/proc/self/exe");
        command.arg(part).env_remove("VERBS_SOFT").stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().expect("this program starts again");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut member = Self { process: Process(child), stdout, line: String::new() };
        member.line = member.next_line();
        member
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    #[track_caller]
    fn slot(&self) -> u32 {
        self.line.parse().unwrap_or_else(|_| panic!("{}", self.line))
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.0.id().cast_signed()), signal).expect("the process exists");
    }

    /// Stops all threads of the process.
    fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.process.0.id());
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit(") ").next().is_some_and(|state| state.starts_with('T'))
        };
        eventually("the process stops", || std::fs::read_dir(&tasks).unwrap().all(is_stopped));
    }
}

fn slots_of(members: &[Member]) -> Vec<u32> {
    members.iter().map(Member::slot).collect()
}

fn slots() {
    let mut members: Vec<_> = (0..4).map(|_| Member::start()).collect();
    let before = slots_of(&members);
    assert!(before.iter().collect::<BTreeSet<_>>().len() == 4 && !before.contains(&0), "{before:?}");
    // Ends the first process, and a process between others.
    drop(members.remove(2));
    drop(members.remove(0));
    members.extend((0..3).map(|_| Member::start()));
    let [second, fourth, next, after_next, last] = slots_of(&members)[..] else { panic!("five members") };
    assert_eq!([next, second, after_next, fourth], before[..]);
    assert!(last != 0 && !before.contains(&last));
    drop(members);
    let is_free = || UdpSocket::bind((ADDRESS, roce::wire::UDP_PORT)).is_ok();
    eventually("the address is free", is_free);
}

fn stopped() {
    let [first, second] = [Member::start(), Member::start()];
    first.stop();
    let third = Member::start().slot();
    second.stop();
    let refused = Member::start().line;
    assert!(refused.contains("no process that has it answers"), "{refused}");
    second.signal(Signal::SIGCONT);
    assert_eq!(Member::start().slot(), third);
}

fn full() {
    let _only = Member::start_with(|command| {
        command.arg("full");
    });
    let second = Member::start().slot();
    assert_eq!(Member::start().slot(), second, "the second has ended");
}

fn full_forwarder() {
    succeeds("forward");
}

fn listener_behind() {
    succeeds("behind");
}

fn services_that_end() {
    succeeds("services");
}

/// Runs one of this program's roles in a separate process and asserts that it succeeds.
fn succeeds(part: &str) {
    let status = Command::new("/proc/self/exe").arg(part).env_remove("VERBS_SOFT").status();
    assert!(status.expect("this program starts again").success());
}

fn other_user() {
    let _first = Member::start();
    let refused = Member::start_with(|command| {
        command.uid(65_533).gid(65_533);
    })
    .line;
    assert!(refused.contains("by a process of another user"), "{refused}");
}

fn one_device() {
    let _device = SoftDevice::bind(ADDRESS).expect("a free address");
    let refused = SoftDevice::bind(ADDRESS).expect_err("taken").to_string();
    assert!(refused.contains("by another device of this process"), "{refused}");
}
