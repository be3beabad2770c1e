//! Userspace devices in two processes, and the effects when one process ends, without a VM, root or
//! a network.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use verbs::{Context, Gid, Mtu, QpType, RtsAttr, SendFlags, SendOp, WcOpcode, WcStatus};
use verbs_fixtures::peer::link::Link;
use verbs_fixtures::peer::session::{DEPTH, End, Session, Shape, buf_of, loopback};
use verbs_harness::pattern::Choices;
use verbs_harness::port;
use verbs_harness::process::{self, Finished, Running};
use verbs_harness::runner::{CaseResult, Stop};

/// A time limit far beyond the duration of any of these tests, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Attributes with a time-out of 4 ms and 3 retries.
const QUICK: RtsAttr = RtsAttr { sq_psn: None, timeout: 10, retry_cnt: 3, rnr_retry: 7, max_rd_atomic: 1 };

fn open() -> Context {
    verbs::soft::auto().and_then(|device| device.open()).expect("a device on loopback")
}

fn peer(listens: bool, address: &SocketAddr, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbs-peer"));
    command.args([if listens { "--listen" } else { "--connect" }, &address.to_string(), "--device", "soft0"]);
    command.args(args).env("VERBS_SOFT", "auto");
    command
}

fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port::free().expect("a port")).into()
}

/// Runs the steps in two processes, each with its device.
fn peers(args: &[&str]) {
    let address = free_address();
    let listens = Running::start(&mut peer(true, &address, args)).expect("verbs-peer");
    let connects = Running::start(&mut peer(false, &address, args)).expect("verbs-peer");
    for end in [connects, listens] {
        let Finished { status, stdout, stderr } = end.finish(LIMIT).expect("it ran").expect("it ended");
        assert!(status.success() && stderr.is_empty(), "{status}: {stderr}\n{stdout}");
    }
}

#[test]
fn two_processes_try_everything_on_each_other() {
    peers(&[
        "--max-size",
        "65536",
        "--mtu",
        "256",
        "--mtu",
        "512",
        "--mtu",
        "1024",
        "--mtu",
        "2048",
        "--mtu",
        "4096",
    ]);
}

#[test]
fn messages_of_a_megabyte_and_long_traffic_are_whole() {
    peers(&[
        "--step",
        "rc_messages",
        "--step",
        "rc_traffic",
        "--operations",
        "3000",
        "--mtu",
        "1024",
        "--mtu",
        "4096",
    ]);
}

fn failed(stop: Stop) -> String {
    match stop {
        Stop::Failed(why) | Stop::Skipped(why) => why,
    }
}

/// Waits for `posted` sends and checks that the first one to fail has this status and all later
/// ones are flushed.
fn fails_and_flushes(end: &mut End<verbs::Erased>, posted: u32, status: WcStatus) -> CaseResult {
    // Messages that arrived before the peer ended were successful.
    let mut left = posted;
    loop {
        let ended = end.wait()?;
        left -= 1;
        if ended.wc.status == WcStatus::SUCCESS {
            continue;
        }
        assert_eq!(ended.wc.status, status, "{:?}", ended.wc);
        break;
    }
    for _ in 0..left {
        end.wait_status(WcStatus::WR_FLUSH_ERR)?;
    }
    end.nothing_more()
}

#[test]
fn a_peer_that_is_killed_is_told_by_retries_that_run_out_and_everything_is_flushed() {
    let run = || -> CaseResult {
        let address = free_address();
        // The child becomes the responder in the first step and waits there for the notification of
        // a write to its memory.
        let child = Running::start(&mut peer(false, &address, &["--step", "rc_messages"]))?;
        let context = open();
        let mut session = Session::new(&context, None, true, Link::listen(address)?, 1)?;
        let mut end = session.connect(&Shape { rts: QUICK, ..Shape::for_type(QpType::RC) })?;
        let memory = session.told_of_memory()?;
        let write = SendOp::RdmaWrite { remote_addr: memory.addr, rkey: memory.rkey };
        end.qp.post_recv_buf(session.buf(0, 64)?, ..)?;
        for _ in 0..10 {
            end.qp.post_send_buf(write, SendFlags::empty(), session.buf(1, 50_000)?, ..)?;
            end.wait_for(WcOpcode::RDMA_WRITE)?;
        }
        for _ in 0..DEPTH - 1 {
            end.qp.post_send_buf(write, SendFlags::empty(), session.buf(1, 50_000)?, ..)?;
        }
        child.kill();
        // Some of these writes may have arrived. When the next ones are posted, the peer is
        // certainly gone.
        let killed = child.finish(LIMIT)?;
        assert!(killed.is_ok_and(|child| !child.status.success()), "it was killed");
        end.qp.post_send_buf(write, SendFlags::empty(), session.buf(1, 50_000)?, ..)?;
        // The receive is flushed too: one completion more than there are sends.
        fails_and_flushes(&mut end, DEPTH + 1, WcStatus::RETRY_EXC_ERR)
    };
    run().map_err(failed).expect("as it should be");
}

#[test]
fn nobody_at_the_address_and_no_way_to_it_are_told_by_retries_that_run_out() {
    let run = || -> CaseResult {
        for nobody in [Ipv4Addr::new(127, 255, 255, 254), Ipv4Addr::new(192, 0, 2, 1)] {
            let context = open();
            // The other side claims another address.
            let (ours, mut theirs) = Link::pair()?;
            theirs.tell(&format!("{} {} true", Gid::from(nobody), Mtu::MTU_1024.0))?;
            theirs.tell("77 0")?;
            theirs.tell("connected")?;
            let mut session = Session::new(&context, None, true, ours, 1)?;
            let mut end = session.connect(&Shape { rts: QUICK, ..Shape::for_type(QpType::RC) })?;
            end.qp.post_recv_buf(session.buf(0, 64)?, ..)?;
            for _ in 0..DEPTH {
                end.qp.post_send_buf(SendOp::Send, SendFlags::empty(), session.buf(1, 3000)?, ..)?;
            }
            fails_and_flushes(&mut end, DEPTH + 1, WcStatus::RETRY_EXC_ERR)?;
        }
        Ok(())
    };
    run().map_err(failed).expect("as it should be");
}

/// Returns a connection whose send queue is full, without a posted receive.
fn full(context: &Context) -> CaseResult<[End<verbs::Erased>; 2]> {
    let pd = context.alloc_pd()?;
    let [mut one, other] = loopback(&pd, Mtu::MTU_1024, &mut Choices::new(1))?;
    for _ in 0..DEPTH {
        one.qp.post_send_buf(SendOp::Send, SendFlags::empty(), pd.alloc_buf(20_000)?, ..)?;
    }
    Ok([one, other])
}

#[test]
fn a_queue_pair_that_goes_with_traffic_under_way_leaves_the_others_alone() {
    let run = || -> CaseResult {
        let context = open();
        let pd = context.alloc_pd()?;
        let [mut sender, mut receiver] = loopback(&pd, Mtu::MTU_1024, &mut Choices::new(2))?;
        for sender_goes in [true, false] {
            for _ in 0..20 {
                let [one, other] = full(&context)?;
                let (first, last) = if sender_goes { (one, other) } else { (other, one) };
                drop(first);
                drop(last);
                receiver.qp.post_recv_buf(pd.alloc_buf(9000)?, ..)?;
                let mut buf = pd.alloc_buf(9000)?;
                verbs_harness::pattern::fill(7, &mut buf);
                sender.qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..)?;
                sender.wait_for(WcOpcode::SEND)?;
                let buf = buf_of(receiver.wait_for(WcOpcode::RECV)?)?;
                verbs_harness::pattern::check(7, &buf).map_err(Stop::Failed)?;
            }
        }
        Ok(())
    };
    run().map_err(failed).expect("as it should be");
}

#[test]
fn a_device_that_is_dropped_before_its_children_works_until_they_go_and_then_frees_its_address() {
    let run = || -> CaseResult {
        // No other process has this address.
        let [.., high, low] = std::process::id().to_be_bytes();
        let address = IpAddr::from([127, 103, high, low]);
        let context = verbs::soft::bind(address)?.open()?;
        let pd = context.alloc_pd()?;
        let [mut one, mut other] = loopback(&pd, Mtu::MTU_1024, &mut Choices::new(3))?;
        let (from, into) = (pd.alloc_buf(20_000)?, pd.alloc_buf(20_000)?);
        let late = pd.alloc_buf(20_000)?;
        drop((context, pd));
        assert!(verbs::soft::bind(address).is_err(), "the address is taken while a queue pair lives");
        other.qp.post_recv_buf(into, ..)?;
        one.qp.post_send_buf(SendOp::Send, SendFlags::empty(), from, ..)?;
        one.wait_for(WcOpcode::SEND)?;
        other.wait_for(WcOpcode::RECV)?;
        // Sends a message without a receive, so it is in flight when everything is dropped.
        one.qp.post_send_buf(SendOp::Send, SendFlags::empty(), late, ..)?;
        drop(one);
        drop(other);
        // A process that another test has just forked also holds the socket until it executes its
        // program.
        assert!(process::wait_until(LIMIT, || verbs::soft::bind(address).is_ok()), "the address is not free");
        Ok(())
    };
    run().map_err(failed).expect("as it should be");
}

#[test]
fn a_short_soak_loses_nothing() {
    let mut soak = Command::new(env!("CARGO_BIN_EXE_soak"));
    soak.args(["--seconds", "5", "--qps", "32", "--threads", "4"]).env("VERBS_SOFT", "auto");
    let Finished { status, stdout, stderr } =
        process::run(&mut soak, LIMIT).expect("it ran").expect("it ended");
    assert!(status.success() && stdout.ends_with("nothing lost\n"), "{status}: {stderr}\n{stdout}");
}
