//! Tests of device lifetimes: devices that are shared, dropped or forked; also completion channels,
//! and the worker while no thread polls.

mod common;

use std::fs;
use std::os::fd::AsFd as _;
use std::time::Duration;

use common::{
    Arena, End, PATIENCE, Shape, eventually, gid, open, own_address, pair, pair_on, post_recv, post_send,
    recv, send, wait, wait_for_child, wait_ok,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::SigSet;
use nix::sys::wait::WaitStatus;
use nix::unistd::{ForkResult, fork};
use provider_soft::cm::{MAD_LEN, MadAddress, Port};
use provider_soft::{Soft, SoftDevice};
use verbs::provider::ContextOps as _;
use verbs::{
    Cause, CompChannel, Context, DmAttr, Errno, NamedProvider as _, PostReason, RecvWr, SendFlags, SendOp,
    SendWr, WcOpcode, WcStatus,
};

/// Whether packets between devices opened by [`common::open`] travel through memory.
const SHARED_MEMORY: bool = true;

fn is_readable(channel: &CompChannel, limit: Duration) -> bool {
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::try_from(limit).unwrap()).unwrap() == 1
}

const EVENTS: Shape = Shape {
    qp_type: verbs::QpType::RC,
    cap: verbs::QpCap {
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    },
    cqe: 64,
    sq_sig_all: false,
    events: true,
    path_mtu: verbs::Mtu::MTU_1024,
    rts: verbs::RtsAttr { sq_psn: None, timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 1 },
    min_rnr_timer: 1,
    access: common::REMOTE,
};

#[test]
fn signals_are_left_to_the_programs_threads() {
    let before = SigSet::thread_get_mask().unwrap();
    let _context = open();
    assert_eq!(SigSet::thread_get_mask().unwrap(), before, "the mask of the thread that opens");
    // Workers of other tests have similar names.
    let masks: Vec<String> = fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok())
        .filter(|status| status.starts_with("Name:\tsoft"))
        .filter_map(|status| Some(status.lines().find(|line| line.starts_with("SigBlk:"))?.to_owned()))
        .collect();
    assert!(!masks.is_empty());
    // All signals except two that cannot be blocked, 9 and 19, and two reserved by the C library,
    // 32 and 33.
    let of_all = "SigBlk:\tfffffffe7ffbfeff";
    assert!(masks.iter().all(|mask| mask == of_all), "{masks:?}");
}

#[test]
fn opens_of_one_device_share_its_address_and_the_last_to_go_frees_it() {
    let address = own_address(0);
    let info = SoftDevice::bind(address).unwrap();
    let (a, b): (Context<Soft>, Context<Soft>) =
        (Context::from_raw(Soft::open(&info).unwrap()), Context::from_raw(Soft::open(&info).unwrap()));
    assert_eq!(gid(&a), gid(&b));
    assert_eq!(SoftDevice::bind(address).unwrap_err().errno, Errno::ADDRINUSE);
    let (mut left, mut right) = pair_on(&a, &b, &Shape::default());
    drop((info, a, b));
    let arena = Arena::new(&left.pd, 64);
    let into = Arena::new(&right.pd, 64);
    recv(&mut right.qp, 1, &[into.sge(0..8)]);
    send(&mut left.qp, 1, SendOp::Send, &[arena.sge(0..8)]);
    wait_ok(&mut left.cq, 1);
    wait_ok(&mut right.cq, 1);
    assert_eq!(SoftDevice::bind(address).unwrap_err().errno, Errno::ADDRINUSE, "its children hold it");
    drop((left, right, arena, into));
    // The child of a test that forks also holds the socket until it exits.
    eventually("the address is free", || SoftDevice::bind(address).is_ok());
}

#[test]
fn a_device_reports_its_attributes() {
    let info = SoftDevice::auto().unwrap();
    let context = Context::<Soft>::from_raw(Soft::open(&info).unwrap());
    assert_eq!((context.device_name(), context.provider_name()), (info.name(), "soft"));
    assert_eq!(context.query_device().unwrap().node_guid, info.node_guid());
    let port = context.query_port(1).unwrap();
    assert_eq!((port.state, port.link_layer), (verbs::PortState::ACTIVE, verbs::LinkLayer::ETHERNET));
    let entry = context.find_gid(1).unwrap();
    assert_eq!((entry.gid_index, entry.gid_type), (0, verbs::GidType::ROCE_V2));
    assert!(entry.ndev_ifindex > 0);
    assert!(context.query_gid_entry(1, port.gid_tbl_len - 1).unwrap().is_none());
    assert_eq!(context.query_pkey(1, 0).unwrap(), 0xffff);
    assert!(context.query_pkey(1, 1).is_err());
}

#[test]
fn an_armed_queue_raises_one_event_although_no_thread_polls() {
    let (mut a, mut b) = pair(&EVENTS);
    let (from, into) = (Arena::new(&a.pd, 8), Arena::new(&b.pd, 8));
    let channel = b.channel.take().unwrap();
    for round in 0..20 {
        b.cq.req_notify(false).unwrap();
        assert!(b.cq.poll().next().is_none());
        recv(&mut b.qp, round, &[into.sge(0..8)]);
        recv(&mut b.qp, round + 100, &[into.sge(0..8)]);
        send(&mut a.qp, round, SendOp::Send, &[from.sge(0..8)]);
        send(&mut a.qp, round + 100, SendOp::Send, &[from.sge(0..8)]);
        assert!(is_readable(&channel, PATIENCE), "no event in round {round}");
        assert_eq!(channel.next_event().unwrap().unwrap().cq, b.cq.id());
        wait_ok(&mut b.cq, round);
        wait_ok(&mut b.cq, round + 100);
        assert!(!is_readable(&channel, Duration::ZERO), "it was one");
        wait_ok(&mut a.cq, round);
        wait_ok(&mut a.cq, round + 100);
    }
}

#[test]
fn a_solicited_event_comes_for_solicited_messages_only() {
    let (mut a, mut b) = pair(&EVENTS);
    let (from, into) = (Arena::new(&a.pd, 8), Arena::new(&b.pd, 8));
    let channel = b.channel.take().unwrap();
    b.cq.req_notify(true).unwrap();
    for (n, flags) in [(1, SendFlags::SIGNALED), (2, SendFlags::SIGNALED | SendFlags::SOLICITED)] {
        recv(&mut b.qp, n, &[into.sge(0..8)]);
        let wr = SendWr { wr_id: n, op: SendOp::Send, sge: &[from.sge(0..8)], flags };
        post_send(&mut a.qp, &[wr]).unwrap();
        wait_ok(&mut a.cq, n);
        wait_ok(&mut b.cq, n);
        assert_eq!(is_readable(&channel, Duration::ZERO), n == 2);
    }
}

#[test]
fn a_program_that_waits_for_events_on_both_sides_is_served_by_the_threads() {
    let (a, b) = pair(&EVENTS);
    let play = |mut end: End, first: bool| {
        let arena = Arena::new(&end.pd, 16);
        let channel = end.channel.take().unwrap();
        recv(&mut end.qp, 0, &[arena.sge(8..16)]);
        if first {
            send(&mut end.qp, 1, SendOp::Send, &[arena.sge(0..8)]);
        }
        let mut received = 0;
        while received < 100 {
            end.cq.req_notify(false).unwrap();
            let mut wcs = [verbs::Wc::default(); 4];
            let count = end.cq.poll_into(&mut wcs);
            for wc in &wcs[..count] {
                assert_eq!(wc.status, WcStatus::SUCCESS, "{wc:?}");
                if wc.opcode == WcOpcode::RECV {
                    received += 1;
                    post_recv(&mut end.qp, &[RecvWr { wr_id: 0, sge: &[arena.sge(8..16)] }]).unwrap();
                    if !first || received < 100 {
                        send(&mut end.qp, 1, SendOp::Send, &[arena.sge(0..8)]);
                    }
                }
            }
            if count == 0 && received < 100 {
                assert!(is_readable(&channel, PATIENCE), "no event after {received}");
                channel.next_event().unwrap();
            }
        }
        end
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| play(b, false));
        let _a = play(a, true);
        let _b = other.join().unwrap();
    });
}

#[test]
fn the_worker_acknowledges_and_answers_while_its_program_does_nothing() {
    let (mut a, mut b) = pair(&Shape::default());
    let (local, remote) = (Arena::new(&a.pd, 1 << 20), Arena::new(&b.pd, 1 << 20));
    recv(&mut b.qp, 7, &[remote.sge(0..8)]);
    let (remote_addr, rkey) = (remote.addr(), remote.rkey());
    for n in 0..5 {
        send(&mut a.qp, 1, SendOp::RdmaRead { remote_addr, rkey }, &[local.sge(0..1 << 20)]);
        wait_ok(&mut a.cq, 1);
        if n == 0 {
            send(&mut a.qp, 2, SendOp::Send, &[local.sge(0..8)]);
            wait_ok(&mut a.cq, 2);
        }
    }
    assert_eq!(b.cq.poll().next().map(|wc| wc.wr_id()), Some(7), "it was there already");
}

#[test]
fn sixteen_threads_have_queue_pairs_of_one_device() {
    const THREADS: usize = 16;
    let device = open();
    let pairs: Vec<_> = (0..THREADS)
        .map(|_| (0..4).map(|_| pair_on(&device, &device, &Shape::default())).collect::<Vec<_>>())
        .collect();
    std::thread::scope(|scope| {
        for mut pairs in pairs {
            scope.spawn(move || {
                for n in 0..50 {
                    for (a, b) in &mut pairs {
                        let arena = Arena::new(&a.pd, 8);
                        let into = Arena::new(&b.pd, 8);
                        arena.write(0, &n.to_string().into_bytes());
                        recv(&mut b.qp, n, &[into.sge(0..8)]);
                        send(&mut a.qp, n, SendOp::Send, &[arena.sge(0..8)]);
                        wait_ok(&mut a.cq, n);
                        wait_ok(&mut b.cq, n);
                        assert_eq!(into.number(0), arena.number(0));
                    }
                }
            });
        }
    });
}

#[test]
#[allow(unsafe_code)]
fn a_child_after_fork_has_no_device_and_leaves_the_parents_alone() {
    // At a shared address, another process would receive the datagrams.
    let info = SoftDevice::bind(own_address(1)).unwrap();
    let context = Context::<Soft>::from_raw(Soft::open(&info).unwrap());
    let (mut a, mut b) = pair_on(&context, &context, &EVENTS);
    let (from, into) = (Arena::new(&a.pd, 8), Arena::new(&b.pd, 8));
    let dm_attr = DmAttr { length: 64, log_align: 0 };
    let dm = context.alloc_dm(&dm_attr).unwrap();
    let gsi = Port::from_device(&info).unwrap().take_gsi().unwrap();
    let to_itself = MadAddress::new(gid(&context));
    gsi.send(&to_itself, &[1; MAD_LEN]).unwrap();
    // A completion that the child would find if it could poll.
    recv(&mut b.qp, 1, &[into.sge(0..8)]);
    send(&mut a.qp, 1, SendOp::Send, &[from.sge(0..8)]);
    wait_ok(&mut b.cq, 1);
    recv(&mut b.qp, 2, &[into.sge(0..8)]);
    // SAFETY: the child makes the calls a program might make, and exits without returning to the
    // test harness.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            fn is_forked<T>(result: verbs::Result<T>) -> bool {
                result.err().is_some_and(|error| {
                    (error.errno, &error.cause) == (Errno::NODEV, &Cause::Forked)
                        && error.to_string().contains("forked after the device was made")
                })
            }
            let of_child = || {
                let wr =
                    SendWr { wr_id: 2, op: SendOp::Send, sge: &[from.sge(0..8)], flags: SendFlags::SIGNALED };
                let posted = post_send(&mut a.qp, &[wr]).map_err(|error| (error.accepted, error.reason));
                let received = post_recv(&mut b.qp, &[RecvWr { wr_id: 3, sge: &[into.sge(0..8)] }]);
                let gone = PostReason::Doorbell(Errno::NODEV);
                posted == Err((0, gone))
                    && received.map_err(|error| error.reason) == Err(gone)
                    && a.cq.poll().next().is_none()
                    && context.query_device().is_ok()
                    && is_forked(context.query_port(1))
                    && is_forked(context.raw().alloc_pd())
                    && context.alloc_dm(&dm_attr).is_ok_and(|own| own.copy_to(0, &[1; 4]).is_ok())
                    && is_forked(dm.copy_to(0, &[1; 4]))
                    && is_forked(a.cq.req_notify(false))
                    && is_forked(Soft::open(&info))
                    && gsi.recv().is_none()
                    && is_forked(gsi.send(&to_itself, &[1; MAD_LEN]))
                    && Port::from_device(&info).is_none()
                    && {
                        drop((a, b, from, into, dm, gsi, context));
                        drop(info);
                        true
                    }
            };
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(!of_child())) };
        }
        ForkResult::Parent { child } => {
            assert_eq!(wait_for_child(child), WaitStatus::Exited(child, 0));
        }
    }
    wait_ok(&mut a.cq, 1);
    send(&mut a.qp, 2, SendOp::Send, &[from.sge(0..8)]);
    wait_ok(&mut a.cq, 2);
    wait_ok(&mut b.cq, 2);
    eventually("the datagram is still there", || gsi.recv().is_some());
    gsi.send(&to_itself, &[2; MAD_LEN]).unwrap();
    eventually("the interface still works", || gsi.recv().is_some());
}

#[test]
fn a_thread_that_has_nothing_to_do_sleeps() {
    let (mut a, mut b) = pair(&Shape::default());
    let (from, into) = (Arena::new(&a.pd, 8), Arena::new(&b.pd, 8));
    for n in 0..1000 {
        recv(&mut b.qp, n, &[into.sge(0..8)]);
        send(&mut a.qp, n, SendOp::Send, &[from.sge(0..8)]);
        wait(&mut a.cq, 1);
        wait(&mut b.cq, 1);
    }
    // Worker wake-ups show as voluntary context switches; they end within a few ticks of the last
    // poll.
    let names: Vec<String> = [&a, &b].map(|end| end.context.device_name().to_owned()).into_iter().collect();
    let switches = || -> Vec<String> {
        let mut found = Vec::new();
        for task in fs::read_dir("/proc/self/task").unwrap() {
            let path = task.unwrap().path();
            let Ok(name) = fs::read_to_string(path.join("comm")) else { continue };
            if names.iter().any(|its| its == name.trim()) {
                let status = fs::read_to_string(path.join("status")).unwrap_or_default();
                found.extend(status.lines().find(|line| line.starts_with("voluntary")).map(str::to_owned));
            }
        }
        found
    };
    let idle_for = |limit: Duration| {
        let (pipe, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::try_from(limit).unwrap()).unwrap();
    };
    eventually("both threads sleep", || {
        let before = switches();
        assert_eq!(before.len(), 2);
        idle_for(Duration::from_millis(200));
        before == switches()
    });
}

#[test]
fn unread_events_go_with_the_object_that_they_belong_to() {
    let shape = Shape { events: true, ..Shape::default() };
    let (mut a, mut b) = pair(&shape);
    let (from, into) = (Arena::new(&a.pd, 8), Arena::new(&b.pd, 8));
    let readable = |fd: std::os::fd::BorrowedFd<'_>, limit: PollTimeout| {
        poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], limit).unwrap() > 0
    };
    let limit = PollTimeout::try_from(PATIENCE).unwrap();
    // A completion raises one event, and a write with a wrong key raises another.
    recv(&mut b.qp, 1, &[into.sge(0..8)]);
    b.cq.req_notify(false).unwrap();
    send(&mut a.qp, 1, SendOp::Send, &[from.sge(0..8)]);
    wait_ok(&mut a.cq, 1);
    let op = SendOp::RdmaWrite { remote_addr: into.addr(), rkey: into.rkey() ^ 0xff00 };
    send(&mut a.qp, 2, op, &[from.sge(0..8)]);
    common::wait_status(&mut a.cq, 2, WcStatus::REM_ACCESS_ERR);
    let End { qp, cq, channel, context, .. } = b;
    let (channel, events) = (channel.unwrap(), context.async_events().unwrap());
    assert!(readable(channel.as_fd(), limit) && readable(events.as_fd(), limit));
    qp.close().unwrap();
    cq.close().unwrap();
    assert!(!readable(channel.as_fd(), PollTimeout::ZERO), "a reader would wait for ever");
    assert!(!readable(events.as_fd(), PollTimeout::ZERO), "a reader would wait for ever");
}

#[test]
fn a_channel_takes_one_descriptor_and_gives_it_back() {
    const CHANNELS: usize = 1000;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(soft.max(4096)), hard).unwrap();
    // Other tests run in this process, so the counts must change by far more than these tests could
    // change them.
    let count = || fs::read_dir("/proc/self/fd").unwrap().count();
    let context = open();
    let before = count();
    let channels: Vec<_> = (0..CHANNELS).map(|_| context.create_comp_channel().unwrap()).collect();
    let with = count();
    assert!((before + 500..before + 1500).contains(&with), "{before} descriptors became {with}");
    drop(channels);
    assert!(count() < before + 500, "{before} descriptors became {}", count());
}
