//! Tests of exiting and forked processes. A process that exits right after receiving its last
//! message acknowledges it. The worker of an exiting process sleeps while connection requests wait
//! for other processes. A child of `fork(2)` creates its own devices.
//!
//! This test has no harness, because it runs its own executable as the exiting process.
//!
//! # Safety
//! As argued in `common`; `fork(2)` runs in a process whose only other thread sleeps. The function
//! for `atexit(3)` is part of this program, so it stays loaded.
#![allow(missing_docs, unsafe_code)]

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use common::{
    Arena, End, PATIENCE, Process, Remote, Shape, eventually, gid, open, recv, send, wait, wait_for_child,
};
use nix::poll::{PollTimeout, poll};
use nix::sys::wait::WaitStatus;
use nix::unistd::{ForkResult, fork};
use provider_soft::SoftDevice;
use provider_soft::cm::Port;
use roce::wire::UDP_PORT;
use verbs::{Gid, RtsAttr, SendOp, WcStatus};

/// Whether packets between devices opened by [`common::open`] travel through memory.
const SHARED_MEMORY: bool = true;

/// The number of rounds, each with one exiting process.
const ROUNDS: u64 = 20;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("take-one-and-exit") => take_one_and_exit(),
        Some("list-and-fork") => return list_and_fork(),
        Some("exit-beside-a-request") => exit_beside_a_request(),
        _ => {}
    }
    // In half of the rounds, 200 messages go back and forth before the last one.
    let context = open();
    let shape = Shape { rts: RtsAttr { timeout: 10, ..Shape::default().rts }, ..Shape::default() };
    let failed: Vec<_> = (0..ROUNDS)
        .filter_map(|round| {
            let end = End::new(&context, &shape);
            let mut child = Command::new("/proc/self/exe")
                .args(["take-one-and-exit", if round % 2 == 0 { "0" } else { "200" }])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program starts again");
            let (mut to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
            let (child, from) = (Process(child), lines(from));
            let next =
                |what: &str| from.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{what}: {error}"));
            writeln!(to, "{}", place(gid(&context), Remote::from_qp(&end.qp))).expect("the child reads");
            let (peer, remote) = parse(&next("the child's place"));
            let mut end = end.connect(&shape, peer, remote);
            assert_eq!(next("the child's being ready"), "ready");
            let arena = Arena::new(&end.pd, 8);
            for _ in 0..if round % 2 == 0 { 0 } else { 200 } {
                recv(&mut end.qp, 2, &[arena.sge(0..8)]);
                send(&mut end.qp, 1, SendOp::Send, &[arena.sge(0..8)]);
                wait(&mut end.cq, 2);
            }
            send(&mut end.qp, 3, SendOp::Send, &[arena.sge(0..8)]);
            let status = wait(&mut end.cq, 1)[0].status;
            let exit = child.finish();
            (status != WcStatus::SUCCESS || !exit.success())
                .then(|| format!("round {round}: {status}, {exit}"))
        })
        .collect();
    for why in &failed {
        println!("FAIL exit.a_message_is_acknowledged_by_a_process_that_exits: {why}");
    }
    // The child reports failures on standard error.
    let forks = Command::new("/proc/self/exe").arg("list-and-fork").env("VERBS_SOFT", "auto").spawn();
    let forks = Process(forks.expect("this program starts again")).finish();
    if !forks.success() {
        println!("FAIL exit.a_child_makes_its_own_devices: {forks}");
    }
    let sleeps = Command::new("/proc/self/exe").arg("exit-beside-a-request").env_remove("VERBS_SOFT").spawn();
    let sleeps = Process(sleeps.expect("this program starts again")).finish();
    if !sleeps.success() {
        println!("FAIL exit.a_worker_sleeps_beside_a_request_that_its_exiting_process_leaves: {sleeps}");
    }
    let failed = failed.len() + [forks, sleeps].iter().filter(|status| !status.success()).count();
    let all = ROUNDS as usize + 2;
    println!("{} passed, {failed} failed, 0 skipped", all - failed);
    ExitCode::from(u8::from(failed > 0))
}

/// Lists the devices requested by `VERBS_SOFT` and forks. The child opens its own device under the
/// same name. The two devices must have different addresses, or share an address in different
/// slots.
fn list_and_fork() -> ExitCode {
    let open = || verbs::devices().and_then(|devices| devices.find("soft0")?.open());
    let place = |context: &verbs::Context| {
        let gid = context.find_gid(1)?.gid;
        Ok::<_, verbs::Error>((gid, Port::all().first().map(Port::slot)))
    };
    let parents = open().expect("the parent's device");
    let its = place(&parents).expect("its address");
    // SAFETY: the process has one other thread, the device's. That thread sleeps, so it holds no
    // lock of the allocator.
    match unsafe { fork() }.expect("fork") {
        ForkResult::Child => {
            let own = open().and_then(|context| place(&context));
            if own.as_ref().is_ok_and(|own| *own != its) {
                std::process::exit(0);
            }
            eprintln!("in the child: {own:?}, in the parent: {its:?}");
            std::process::exit(1)
        }
        ForkResult::Parent { child } => match wait_for_child(child) {
            WaitStatus::Exited(_, 0) => ExitCode::SUCCESS,
            other => {
                eprintln!("the child: {other:?}");
                ExitCode::FAILURE
            }
        },
    }
}

/// The address that the processes share.
const SHARED: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 77, 1, 2));

/// Exits while holding a general services interface, and waits in the last exit function.
fn exit_beside_a_request() -> ! {
    // Registered before the device registers its own function, which therefore runs first.
    // SAFETY: the function is part of this program, so it stays loaded.
    unsafe { libc::atexit(worker_sleeps) };
    let port = Port::from_device(&SoftDevice::bind(SHARED).unwrap()).unwrap();
    assert_ne!(port.slot(), 0, "processes share the address");
    core::mem::forget(port.take_gsi().unwrap());
    std::process::exit(0)
}

/// Sends a connection request to the address of this exiting process, and waits until the worker
/// sleeps. A panic aborts the process.
extern "C" fn worker_sleeps() {
    let port = Port::with_address(SHARED).expect("the device");
    let mut packet = [0; 280];
    // The packet is for queue pair 1.
    packet[7] = 1;
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    sender.send_to(&packet, (SHARED, UDP_PORT)).unwrap();
    eventually("the worker sleeps", || {
        let before = run_time(port.name());
        poll(&mut [], PollTimeout::from(100_u8)).unwrap();
        before == run_time(port.name())
    });
}

/// Returns the processor time used by a thread, in nanoseconds, as text (`proc_pid_schedstat(5)`).
fn run_time(thread: &str) -> String {
    let mut tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_it =
        |path: &PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == thread);
    let task = tasks.find(is_it).expect("the thread");
    let times = fs::read_to_string(task.join("schedstat")).expect("its times");
    times.split(' ').next().expect("the time on a processor").to_owned()
}

fn take_one_and_exit() -> ! {
    let rounds: u64 = std::env::args().nth(2).and_then(|text| text.parse().ok()).expect("a number");
    let context = open();
    let end = End::new(&context, &Shape::default());
    println!("{}", place(gid(&context), Remote::from_qp(&end.qp)));
    let line = std::io::stdin().lines().next().expect("the parent's place").expect("text");
    let (peer, remote) = parse(&line);
    let mut end = end.connect(&Shape::default(), peer, remote);
    let arena = Arena::new(&end.pd, 8);
    recv(&mut end.qp, 0, &[arena.sge(0..8)]);
    // Polls until the worker leaves packets to the poller.
    let polling = Instant::now();
    while polling.elapsed() < Duration::from_millis(5) {
        assert!(end.cq.poll().next().is_none());
    }
    println!("ready");
    std::io::stdout().flush().expect("the parent reads");
    for n in 0..rounds {
        received(&mut end);
        recv(&mut end.qp, n + 1, &[arena.sge(0..8)]);
        send(&mut end.qp, 1000, SendOp::Send, &[arena.sge(0..8)]);
    }
    received(&mut end);
    // Exits without dropping anything.
    std::process::exit(0);
}

/// Waits until a message has arrived. Sends may complete meanwhile.
fn received(end: &mut End) {
    while !wait(&mut end.cq, 1)[0].opcode.is_recv() {}
}

/// Returns the lines printed by a process, as they arrive.
fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            if send.send(line.expect("text")).is_err() {
                return;
            }
        }
    });
    lines
}

fn place(gid: Gid, Remote { qp_num, psn }: Remote) -> String {
    gid.0.iter().map(|byte| format!("{byte:02x}")).chain([format!(" {qp_num} {psn}")]).collect()
}

fn parse(line: &str) -> (Gid, Remote) {
    let [hex, qp_num, psn] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("three words") };
    let number = |text: &str| text.parse().expect("a number");
    let gid = u128::from_str_radix(hex, 16).expect("a GID").to_be_bytes();
    (Gid(gid), Remote { qp_num: number(qp_num), psn: number(psn) })
}
