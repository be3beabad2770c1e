//! A process that takes its last message and exits at once has acknowledged it.
//!
//! Without a test harness, for it starts itself again as that process.
//!
//! # Safety
//! Nothing but what `common` argues.
#![allow(missing_docs)]

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use common::{Arena, End, Shape, gid, open, recv, send, wait};
use verbs::{Gid, RtsAttr, SendOp, WcStatus};

/// How many processes exit.
const ROUNDS: u64 = 20;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("take-one-and-exit") {
        take_one_and_exit();
    }
    // Another device, and messages back and forth before the last one, in half of the rounds.
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
            let mut from = BufReader::new(from).lines().map(|line| line.expect("text"));
            writeln!(to, "{}", place(gid(&context), end.qp.qp_num())).expect("the child reads");
            let (peer, qp_num) = parse(&from.next().expect("the child's place"));
            let mut end = end.connect(&shape, peer, qp_num);
            assert_eq!(from.next().as_deref(), Some("ready"));
            let arena = Arena::new(&end.pd, 8);
            for _ in 0..if round % 2 == 0 { 0 } else { 200 } {
                recv(&mut end.qp, 2, &[arena.sge(0..8)]);
                send(&mut end.qp, 1, SendOp::Send, &[arena.sge(0..8)]);
                wait(&mut end.cq, 2);
            }
            send(&mut end.qp, 3, SendOp::Send, &[arena.sge(0..8)]);
            let status = wait(&mut end.cq, 1)[0].status;
            let exit = child.wait().expect("the child exits");
            (status != WcStatus::SUCCESS || !exit.success())
                .then(|| format!("round {round}: {status}, {exit}"))
        })
        .collect();
    for why in &failed {
        println!("FAIL exit.a_message_is_acknowledged_by_a_process_that_exits: {why}");
    }
    println!("{} passed, {} failed, 0 skipped", ROUNDS as usize - failed.len(), failed.len());
    ExitCode::from(u8::from(!failed.is_empty()))
}

fn take_one_and_exit() -> ! {
    let rounds: u64 = std::env::args().nth(2).and_then(|text| text.parse().ok()).expect("a number");
    let context = open();
    let end = End::new(&context, &Shape::default());
    println!("{}", place(gid(&context), end.qp.qp_num()));
    let line = std::io::stdin().lines().next().expect("the parent's place").expect("text");
    let (peer, qp_num) = parse(&line);
    let mut end = end.connect(&Shape::default(), peer, qp_num);
    let arena = Arena::new(&end.pd, 8);
    recv(&mut end.qp, 0, &[arena.sge(0..8)]);
    // Until the background thread leaves packets to who polls.
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
    // Nothing is dropped.
    std::process::exit(0);
}

/// Waits for a message; sends complete meanwhile.
fn received(end: &mut End) {
    while !wait(&mut end.cq, 1)[0].opcode.is_recv() {}
}

fn place(gid: Gid, qp_num: u32) -> String {
    gid.0.iter().map(|byte| format!("{byte:02x}")).chain([format!(" {qp_num}")]).collect()
}

fn parse(line: &str) -> (Gid, u32) {
    let (hex, qp_num) = line.split_once(' ').expect("two words");
    let gid = u128::from_str_radix(hex, 16).expect("a GID").to_be_bytes();
    (Gid(gid), qp_num.parse().expect("a number"))
}
