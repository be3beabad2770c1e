//! Tests of packets through memory between processes, with a peer that ends, stops, sleeps, forks
//! or attacks.
//!
//! | module | content |
//! |---|---|
//! | `peer` | a process with a device, which executes commands, and its handle |
//! | `hostile` | a process that performs the rendezvous by hand |
//!
//! This test has no harness, because it runs its own executable as these processes.
//!
//! # Safety
//! As argued in `common`; a child of `fork(2)` exits or calls `execv(2)` soon, or drops its objects
//! while the parent's only other thread sleeps.
#![allow(missing_docs, unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod peer;

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{PATIENCE, eventually, own_address};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use peer::{Files, How, Node, Peer, Place, Queue, cpu_time, files, sleeps, worker_sleeps};
use verbs::{QpType, WcStatus};

/// Whether packets between devices opened by [`common::open`] travel through memory.
const SHARED_MEMORY: bool = true;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("peer") => return peer::run(),
        Some("hostile") => return hostile::run(),
        _ => {}
    }
    let only = std::env::args().nth(1).filter(|name| !name.starts_with('-'));
    let cases: &[(&str, fn())] = &[
        ("requests_to_a_killed_peer_end_and_its_successor_is_met_again", killed),
        ("a_device_that_was_about_to_be_met_by_a_killed_peer_is_met_by_its_successor", killed_meeting),
        ("a_stopped_peer_delays_packets_to_others_only_for_a_moment", stopped),
        ("processes_that_sleep_between_messages_lose_no_wake_up", both_asleep),
        ("a_process_that_sleeps_beside_its_own_poller_loses_no_wake_up", asleep_beside_pollers),
        ("a_process_that_sleeps_loses_no_wake_up_of_one_that_polls", one_asleep),
        ("ways_to_wait_follow_each_other_without_a_lost_wake_up", all_ways),
        ("threads_of_a_process_that_wait_in_different_ways_lose_no_wake_up", threads_asleep),
        ("threads_without_descriptors_sleep_and_lose_no_wake_up", without_descriptors),
        ("a_process_that_waits_sleeps_until_the_end", sleeps_through),
        ("an_armed_queue_does_not_wake_the_worker_beside_a_poller", armed_beside_poller),
        ("packets_to_another_user_use_udp", other_user),
        ("packets_to_a_process_without_the_setting_use_udp", without_setting),
        ("network_namespaces_with_a_common_folder_need_no_route", namespaces),
        ("packets_to_another_user_in_a_common_folder_use_udp", other_user_in_folder),
        ("packets_to_a_device_that_meets_others_elsewhere_use_udp", other_places),
        ("malformed_handshakes_are_rejected_and_leave_nothing_behind", malformed),
        ("invalid_rings_end_their_link_and_no_other", invalid_rings),
        ("silent_connections_neither_cost_time_nor_displace_honest_peers", silent),
        ("a_flood_of_connections_displaces_no_honest_peer", flood),
        ("children_that_exit_leave_the_link_to_their_parent", || fork("exit")),
        ("children_that_execute_a_program_leave_the_link_to_their_parent", || fork("exec")),
        ("children_that_drop_their_copies_leave_the_link_to_their_parent", || fork("drop")),
        ("a_process_without_free_descriptors_stays_on_udp_at_rest", full),
        ("a_connection_that_changes_to_memory_survives_strict_ports", changes_to_memory),
        ("two_processes_that_meet_at_the_same_moment_have_one_link", || crossing(false)),
        ("two_processes_of_one_address_that_meet_have_one_link", || crossing(true)),
    ];
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for &(name, case) in cases {
        if only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        if name.contains("another_user") && !geteuid().is_root() {
            println!("SKIP shm.{name}: only root can start a process of another user");
            skipped += 1;
            continue;
        }
        if name.starts_with("network_namespaces") && !has_namespaces() {
            println!("SKIP shm.{name}: the host allows no network namespace, or lacks unshare or ip");
            skipped += 1;
            continue;
        }
        let is_passed = std::panic::catch_unwind(case).is_ok();
        println!("{} shm.{name}", if is_passed { "PASS" } else { "FAIL" });
        if is_passed { passed += 1 } else { failed += 1 }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns this process's address. The next two functions return addresses below and above it,
/// because the order of addresses decides which of two connections is kept.
fn own() -> IpAddr {
    own_address(51)
}

fn below() -> IpAddr {
    own_address(50)
}

fn above() -> IpAddr {
    own_address(52)
}

/// A short timeout, as the code for 4 ms. There are three retries.
const SOON: u8 = 10;

/// No timeout: a lost packet is never retransmitted.
const NEVER: u8 = 0;

#[track_caller]
fn assert_memory_alone(node: &Node, peer: &mut Peer) {
    let (own, its) = (node.counters(), peer.counters());
    assert!(own.shm_sent > 0 && its.shm_sent > 0, "{own:?} {its:?}");
    assert_eq!([own.sent, own.received, its.sent, its.received], [0; 4], "{own:?} {its:?}");
}

fn killed() {
    for address in [below(), above()] {
        let node = Node::bind(own());
        let idle = files();
        for round in 0..5 {
            eventually("the link of the last round is freed", || {
                let files = files();
                files.mappings == idle.mappings && files.descriptors <= idle.descriptors
            });
            let mut peer = Peer::start(address);
            let mut end = node.queue(QpType::RC, SOON, true);
            let place = peer.queue(QpType::RC, SOON, true);
            // Excludes the pipe that carries the output of the peer's process.
            let Files { descriptors, mappings } = files();
            let before = Files { descriptors: descriptors - 1, mappings };
            peer.connect(&end.place());
            end.connect(&place);
            let (mut posted, mut ended) = (0, 0);
            loop {
                while posted - ended < 16 {
                    end.write(posted, &place, 32 << 10);
                    posted += 1;
                }
                let wc = end.next(How::Poll);
                assert_eq!(wc.wr_id, ended);
                ended += 1;
                if wc.status != WcStatus::SUCCESS {
                    assert_eq!(wc.status, WcStatus::RETRY_EXC_ERR, "round {round}");
                    break;
                }
                if ended == 40 {
                    peer.signal(Signal::SIGKILL);
                }
            }
            assert!(ended > 40);
            for _ in ended..posted {
                assert_eq!(end.next(How::Poll).status, WcStatus::WR_FLUSH_ERR);
            }
            eventually("the link is freed", || files() == before);
            drop(peer);
            drop(end);
            let sent = node.counters().sent;
            let mut peer = Peer::start(address);
            let mut end = node.meet(&mut peer, NEVER);
            end.ping_pong(&mut peer, 100, How::Poll, How::Poll);
            let (own, its) = (node.counters(), peer.counters());
            assert_eq!((own.sent, its.sent, its.received), (sent, 0, 0), "round {round}: {own:?} {its:?}");
        }
    }
}

/// A process with precedence rejects this device's connection, but ends before it makes its own
/// connection.
fn killed_meeting() {
    let node = Node::bind(own());
    let mut queue = node.queue(QpType::RC, SOON, true);
    let rejecting = hostile::reject_one(below());
    let place = queue.place();
    queue.connect(&Place { gid: below().into(), ..place });
    rejecting.join().unwrap();
    let mut peer = Peer::start(below());
    let mut datagrams = node.queue(QpType::UD, NEVER, true);
    datagrams.aim(&peer.datagrams());
    eventually("a datagram travels through memory", || {
        datagrams.datagram();
        node.counters().shm_sent > 0
    });
}

fn stopped() {
    let node = Node::bind(own());
    let (mut halting, mut living) = (Peer::start(below()), Peer::start(above()));
    // With a timeout, because packets to a full ring are dropped.
    let mut to_halting = node.meet(&mut halting, SOON + 4);
    let mut to_living = node.meet(&mut living, NEVER);
    let mut datagrams = node.queue(QpType::UD, NEVER, true);
    datagrams.aim(&halting.datagrams());
    to_halting.ping_pong(&mut halting, 10, How::Poll, How::Poll);
    halting.stop();
    let before = node.counters();
    eventually("datagrams are dropped", || {
        datagrams.datagram();
        node.counters().shm_dropped > before.shm_dropped
    });
    for (own, its) in [(How::Poll, How::Poll), (How::Sleep, How::Sleep)] {
        let (began, dropped) = (Instant::now(), node.counters().shm_dropped);
        for _ in 0..50 {
            for _ in 0..10 {
                datagrams.datagram();
            }
            to_living.ping_pong(&mut living, 1, own, its);
        }
        assert_eq!(node.counters().shm_dropped, dropped + 500);
        assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    }
    halting.signal(Signal::SIGCONT);
    to_halting.ping_pong(&mut halting, 100, How::Sleep, How::Sleep);
    let dropped = node.counters().shm_dropped;
    for _ in 0..100 {
        datagrams.datagram();
        to_halting.ping_pong(&mut halting, 1, How::Poll, How::Poll);
    }
    let after = node.counters();
    assert_eq!((after.shm_dropped, after.sent), (dropped, 0), "{after:?}");
}

fn both_asleep() {
    asleep(20_000, How::Sleep, How::Sleep, false);
}

fn asleep_beside_pollers() {
    asleep(5_000, How::Sleep, How::Sleep, true);
    asleep(5_000, How::Sleep, How::Poll, true);
}

fn one_asleep() {
    asleep(10_000, How::Sleep, How::Poll, false);
    asleep(10_000, How::Poll, How::Sleep, false);
}

const WAYS: [How; 4] = [How::Descriptor, How::Sleep, How::Poll, How::Within];

fn all_ways() {
    let node = Node::bind(own());
    let mut peer = Peer::start(above());
    let mut end = node.meet(&mut peer, NEVER);
    for round in 0..20 {
        for own in WAYS {
            for its in WAYS {
                end.ping_pong(&mut peer, 1 + round * 10, own, its);
            }
        }
    }
    assert_memory_alone(&node, &mut peer);
}

/// Two threads wait at one device. A packet may wake one thread, which then adds the other thread's
/// completion.
fn threads_asleep() {
    let node = Node::bind(own());
    let [mut one, mut other] = [below(), above()].map(Peer::start);
    for (ways, its) in [
        ([How::Within, How::Within], How::Sleep),
        ([How::Within, How::Sleep], How::Within),
        ([How::Sleep, How::Descriptor], How::Sleep),
        ([How::Poll, How::Within], How::Descriptor),
    ] {
        let (first, second) = (node.meet(&mut one, NEVER), node.meet(&mut other, NEVER));
        std::thread::scope(|scope| {
            for (mut end, peer, own) in [(first, &mut one, ways[0]), (second, &mut other, ways[1])] {
                scope.spawn(move || end.ping_pong(peer, 4_000, own, its));
            }
        });
    }
    assert_memory_alone(&node, &mut one);
    assert_memory_alone(&node, &mut other);
}

/// Two threads wait for completions, and the process has no free descriptor for either thread.
fn without_descriptors() {
    let node = Node::bind(own());
    let [mut one, mut other] = [below(), above()].map(Peer::start);
    let (mut first, mut second) = (node.meet(&mut one, NEVER), node.meet(&mut other, NEVER));
    peer::without_descriptors(|| {
        std::thread::scope(|scope| {
            for (end, peer) in [(&mut first, &mut one), (&mut second, &mut other)] {
                scope.spawn(|| end.ping_pong(peer, 1000, How::Within, How::Sleep));
            }
        });
        let before = cpu_time();
        std::thread::scope(|scope| {
            for end in [&mut first, &mut second] {
                scope.spawn(|| end.wait_in_vain(Duration::from_secs(1)));
            }
        });
        let used = cpu_time() - before;
        assert!(used < Duration::from_millis(500), "{used:?} in a second");
    });
    assert_memory_alone(&node, &mut one);
    assert_memory_alone(&node, &mut other);
}

/// Checks that neither a waiting thread nor the worker wakes up while nothing happens.
fn sleeps_through() {
    let node = Node::bind(own());
    let mut datagrams = node.queue(QpType::UD, NEVER, true);
    let mut peer = Peer::start(above());
    datagrams.aim(&peer.datagrams());
    assert_sleeps(&mut datagrams);
    let mut end = node.meet(&mut peer, NEVER);
    end.ping_pong(&mut peer, 1000, How::Within, How::Poll);
    assert_sleeps(&mut end);
}

#[track_caller]
fn assert_sleeps(queue: &mut Queue) {
    let before = sleeps();
    queue.wait_in_vain(Duration::from_secs(1));
    let (woken, before) = (sleeps() - before, sleeps());
    assert!(woken < 30, "poll_within: woken {woken} times");
    assert!(!queue.wait_for_event(Duration::from_secs(1)));
    let woken = sleeps() - before;
    assert!(woken < 30, "a completion channel: woken {woken} times");
}

/// Exchanges messages on a queue pair without timeouts. If `beside`, another thread in each process
/// polls another queue of the device in bursts.
fn asleep(count: u64, own: How, its: How, beside: bool) {
    let node = Node::bind(self::own());
    let mut peer = Peer::start(above());
    let mut end = node.meet(&mut peer, NEVER);
    if beside {
        peer.execute("pollers");
    }
    let pollers = beside.then(|| node.start_poller());
    end.ping_pong(&mut peer, count, own, its);
    drop(pollers);
    assert_memory_alone(&node, &mut peer);
}

fn other_user() {
    stays_on_udp(&Node::bind(own()), |command| {
        use std::os::unix::process::CommandExt as _;
        command.uid(65_533).gid(65_533);
    });
}

fn without_setting() {
    stays_on_udp(&Node::bind(own()), |command| {
        command.env("VERBS_SOFT", above().to_string()).env("VERBS_SOFT_SHM", "0");
    });
}

fn stays_on_udp(node: &Node, change: impl Fn(&mut Command)) {
    let mut peer = Peer::start_with(above(), change);
    let mut end = node.meet(&mut peer, SOON + 4);
    end.ping_pong(&mut peer, 100, How::Poll, How::Poll);
    end.ping_pong(&mut peer, 100, How::Sleep, How::Sleep);
    let (own, its) = (node.counters(), peer.counters());
    assert_eq!((own.shm_sent, its.shm_sent), (0, 0), "{own:?} {its:?}");
    assert!(own.sent > 0 && its.sent > 0);
}

/// A folder through which devices find each other. It is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(mode: u32) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("verbs-shm-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        Self(path)
    }

    /// Returns the number of sockets in the folder.
    fn sockets(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn has_namespaces() -> bool {
    let mut command = peer::unshare();
    command.args(["ip", "link", "set", "lo", "up"]);
    command.status().is_ok_and(|status| status.success())
}

/// Tests a sequence of processes with the same address. Killed processes leave their sockets in the
/// folder.
fn namespaces() {
    let folder = Folder::new(0o700);
    let node = Node::in_folder(own(), &folder.0);
    for address in [below(), above()] {
        for round in 1..=3 {
            let mut peer = Peer::start_in_namespace(address, &folder.0);
            let mut end = node.meet(&mut peer, NEVER);
            end.ping_pong(&mut peer, 1000, How::Poll, How::Poll);
            end.ping_pong(&mut peer, 1000, How::Sleep, How::Descriptor);
            assert_memory_alone(&node, &mut peer);
            if round == 2 {
                // The process exits by itself, so it removes its socket.
                let sockets = folder.sockets();
                peer.finish();
                assert_eq!(folder.sockets(), sockets - 1);
            }
        }
    }
}

fn other_user_in_folder() {
    use std::os::unix::process::CommandExt as _;
    let folder = Folder::new(0o1777);
    let node = Node::in_folder(own(), &folder.0);
    stays_on_udp(&node, |command| {
        command.env("VERBS_SOFT", above().to_string()).env("VERBS_SOFT_SHM", &folder.0);
        command.uid(65_533).gid(65_533);
    });
    assert_eq!(folder.sockets(), 2);
}

fn other_places() {
    let (folder, other) = (Folder::new(0o700), Folder::new(0o700));
    let node = Node::in_folder(own(), &folder.0);
    for place in ["1", other.0.to_str().unwrap()] {
        stays_on_udp(&node, |command| {
            command.env("VERBS_SOFT", above().to_string()).env("VERBS_SOFT_SHM", place);
        });
    }
}

fn armed_beside_poller() {
    const COUNT: u64 = 20_000;
    let node = Node::bind(own());
    let mut peer = Peer::start(above());
    let mut end = node.meet(&mut peer, NEVER);
    let mut other = node.queue(QpType::RC, NEVER, true);
    other.arm_in_vain();
    end.ping_pong(&mut peer, COUNT, How::Poll, How::Poll);
    let (began, before) = (Instant::now(), worker_sleeps(node.name()));
    end.ping_pong(&mut peer, COUNT, How::Poll, How::Poll);
    let (sleeps, ms) = (worker_sleeps(node.name()) - before, began.elapsed().as_millis());
    // It checks about once in a millisecond whether polling continues.
    assert!(u128::from(sleeps) < 4 * ms, "{sleeps} sleeps of the worker in {ms} ms");
}

fn malformed() {
    let node = Node::bind(own());
    let mut peer = Peer::start(above());
    let mut end = node.meet(&mut peer, NEVER);
    end.ping_pong(&mut peer, 10, How::Poll, How::Poll);
    let before = files();
    for what in hostile::MALFORMED {
        let hostile = hostile::Hostile::start(what, &peer::name(own(), &end.place()), 20);
        hostile.finish();
        end.ping_pong(&mut peer, 10, How::Sleep, How::Sleep);
        eventually(&format!("nothing of {what:?} is left"), || files() == before);
    }
    assert_memory_alone(&node, &mut peer);
}

fn invalid_rings() {
    let node = Node::bind(own());
    let mut peer = Peer::start(above());
    let mut end = node.meet(&mut peer, NEVER);
    end.ping_pong(&mut peer, 10, How::Poll, How::Poll);
    let before = files();
    for what in hostile::INVALID_RINGS {
        let hostile = hostile::Hostile::start(what, &peer::name(own(), &end.place()), 5);
        end.ping_pong(&mut peer, 10, How::Sleep, How::Sleep);
        // The device closes the connection although the hostile process is still running.
        hostile.finish();
        end.ping_pong(&mut peer, 10, How::Poll, How::Poll);
        eventually("nothing is left behind", || files() == before);
    }
    assert_memory_alone(&node, &mut peer);
}

fn silent() {
    let node = Node::bind(own());
    let mut peer = Peer::start(above());
    let mut end = node.meet(&mut peer, NEVER);
    end.ping_pong(&mut peer, 10, How::Sleep, How::Sleep);
    for what in ["silent", "ring of packets"] {
        let before = files();
        let hostile = hostile::Hostile::start(what, &peer::name(own(), &end.place()), 1);
        assert_idle(&mut end);
        end.ping_pong(&mut peer, 100, How::Sleep, How::Sleep);
        drop(hostile);
        eventually("the connection is closed", || files() == before);
    }
    assert_memory_alone(&node, &mut peer);
}

fn flood() {
    let node = Node::bind(own());
    let mut peer = Peer::start(above());
    let mut end = node.meet(&mut peer, NEVER);
    end.ping_pong(&mut peer, 10, How::Sleep, How::Sleep);
    let before = files();
    let hostile = hostile::Hostile::start("silent", &peer::name(own(), &end.place()), 2000);
    // Most connections still wait to be accepted.
    eventually("the device is idle again", || time_used(&mut end) < IDLE);
    end.ping_pong(&mut peer, 100, How::Sleep, How::Sleep);
    assert!(files().descriptors < before.descriptors + 100, "{:?}", files());
    let mut other = Peer::start(below());
    // `meet` connects the queue pair of the peer first, so the peer makes the connection.
    let mut its = node.meet(&mut other, NEVER);
    its.ping_pong(&mut other, 100, How::Sleep, How::Sleep);
    assert_memory_alone(&node, &mut other);
    drop((hostile, other, its));
    eventually("the connections are closed", || files().mappings == before.mappings);
}

/// Asserts that the process uses no processor time while nothing happens.
#[track_caller]
fn assert_idle(queue: &mut Queue) {
    let used = time_used(queue);
    assert!(used < IDLE, "{used:?}");
}

/// Returns the processor time that the process uses in 200 ms without an event.
fn time_used(queue: &mut Queue) -> Duration {
    // The first events may belong to completions that were already polled, or to late completions.
    for _ in 0..10 {
        let before = cpu_time();
        if !queue.wait_for_event(Duration::from_millis(200)) {
            return cpu_time() - before;
        }
        queue.take_completions();
    }
    panic!("events without an end");
}

/// The maximum processor time, in 200 ms, of a process that counts as idle.
const IDLE: Duration = Duration::from_millis(50);

fn fork(what: &str) {
    let node = Node::bind(own());
    let mut peer = Peer::start(above());
    let mut end = node.meet(&mut peer, NEVER);
    for _ in 0..5 {
        end.ping_pong(&mut peer, 10, How::Sleep, How::Sleep);
        let before = peer.files();
        peer.execute(&format!("fork {what}"));
        end.ping_pong(&mut peer, 10, How::Sleep, How::Sleep);
        assert_eq!(peer.files(), before);
    }
    assert_memory_alone(&node, &mut peer);
}

fn full() {
    let node = Node::bind(own());
    let mut peer = Peer::start(above());
    let place = peer.datagrams();
    let name = peer::name(above(), &place);
    let mut datagrams = node.queue(QpType::UD, NEVER, true);
    datagrams.aim(&place);
    peer.execute("fill");
    // In each round, the device refuses connections and the program takes the last descriptor.
    for round in 0..4 {
        let hostile = hostile::Hostile::start("short message", &name, 3);
        let received = peer.counters().received;
        datagrams.datagram();
        eventually("a datagram arrives by UDP", || peer.counters().received > received);
        let used = peer.idle();
        assert!(used < Duration::from_millis(50), "round {round}: {used:?}");
        drop(hostile);
        peer.execute("fill");
    }
    assert_eq!((node.counters().shm_sent, peer.counters().shm_sent), (0, 0));
    peer.execute("empty");
    eventually("a later connection is accepted", || {
        datagrams.datagram();
        node.counters().shm_sent > 0
    });
}

fn changes_to_memory() {
    let node = Node::bind(own());
    let mut peer = Peer::start_with(above(), |command| {
        command.env("VERBS_SOFT", above().to_string()).env("VERBS_SOFT_STRICT_PORTS", "1");
    });
    let mut end = node.queue(QpType::RC, SOON, true);
    let place = peer.queue(QpType::RC, SOON, true);
    // Without a descriptor for the link, both ends start on UDP.
    peer.execute("fill");
    peer.connect(&end.place());
    end.connect(&place);
    end.ping_pong(&mut peer, 10, How::Poll, How::Poll);
    assert_eq!(node.counters().shm_sent, 0);
    peer.execute("empty");
    eventually("packets travel through memory", || {
        end.ping_pong(&mut peer, 1, How::Poll, How::Poll);
        node.counters().shm_sent > 0
    });
    end.ping_pong(&mut peer, 10, How::Poll, How::Poll);
}

fn crossing(is_shared: bool) {
    for round in 0..50 {
        let addresses = if is_shared { [above(); 2] } else { [below(), above()] };
        let [mut left, mut right] = addresses.map(Peer::start);
        let [from, to] = [&mut left, &mut right].map(|peer| peer.queue(QpType::RC, NEVER, true));
        let before = [left.files(), right.files()];
        left.tell(&format!("connect {to}"));
        right.tell(&format!("connect {from}"));
        assert_eq!([left.next(), right.next()], ["ok"; 2]);
        left.tell("ping 20 Poll");
        right.tell("pong 20 Poll");
        assert_eq!([left.next(), right.next()], ["done"; 2]);
        for peer in [&mut left, &mut right] {
            let counters = peer.counters();
            assert!(counters.shm_sent >= 20, "round {round}: {counters:?}");
            assert_eq!((counters.sent, counters.received), (0, 0), "round {round}: {counters:?}");
        }
        for (peer, before) in [&mut left, &mut right].into_iter().zip(before) {
            // The descriptors of the connection and the peer's segment; the mappings of both
            // segments and the peer's sleep page.
            let one = Files { descriptors: before.descriptors + 2, mappings: before.mappings + 3 };
            let mut now = peer.files();
            eventually("one link is left", || {
                now = peer.files();
                now == one
            });
        }
    }
}
