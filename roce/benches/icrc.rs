//! The cost of the invariant CRC: `cargo bench -p roce --bench icrc`.
//!
//! Each figure is the best of several rounds. Each result is the input to the next computation, so
//! no two computations overlap. Cycles are derived from the clock rate in /proc/cpuinfo, which is
//! only approximate on virtual machines and with turbo.

use std::hint::black_box;
use std::time::Instant;

use roce::wire::icrc::{self, Backend, Flow, Icrc};

/// Payload sizes in bytes: the smallest message and two path MTUs.
const SIZES: [usize; 3] = [8, 1024, 4096];
const ROUNDS: usize = 25;

fn main() {
    // `cargo test` runs benches without this argument; the benchmark then runs once without
    // measuring.
    let quick = !std::env::args().any(|arg| arg == "--bench");
    let mhz = cpu_mhz();
    println!("{:<12} {:>6} {:>10} {:>8} {:>12}", "", "bytes", "ns", "GB/s", "bytes/cycle");
    for backend in Backend::ALL {
        if !backend.is_available() {
            println!("{:<12} not on this machine", format!("{backend:?}"));
            continue;
        }
        for size in SIZES {
            let bytes: Vec<u8> = (0..size).map(|i| (i * 7) as u8).collect();
            let ns = measure(quick, |state| backend.update(state, black_box(&bytes)));
            report(&format!("{backend:?}"), size, ns, mhz);
        }
    }

    println!("\nwhole packets, by the best of them, RC RDMA write first: BTH and RETH before the payload");
    let flow = Flow { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), src_port: 49152, dst_port: 4791 };
    let prepared = Icrc::new(flow);
    report(
        "Icrc::new",
        0,
        measure(quick, |state| seed_of(Icrc::new(black_box(Flow { src_port: state as u16, ..flow })))),
        mhz,
    );
    report("seed", 0, measure(quick, |state| prepared.seed(state as u16, true, black_box(40))), mhz);
    for size in SIZES {
        let mut packet = vec![0x55; 28 + size + 4];
        let covered = packet.len() - 4;
        let total = packet.len();
        let ns = measure(quick, |state| {
            icrc::compute(prepared.seed(state as u16, true, total), black_box(&packet[..covered]))
        });
        report("send", size, ns, mhz);
        let crc = icrc::compute(prepared.seed(7, true, total), &packet[..covered]);
        packet[covered..].copy_from_slice(&crc.to_le_bytes());
        for (name, expected) in [("check", 7), ("check, id", 8)] {
            // `state > 1` is false from the second call on, but only `state` shows this, so calls
            // do not overlap.
            let ns = measure(quick, |state| {
                let verdict = prepared.check(black_box(&packet), expected ^ black_box(u16::from(state > 1)));
                assert!(verdict.is_ok());
                u32::from(verdict == icrc::Verdict::Exact)
            });
            report(name, size, ns, mhz);
        }
    }
}

fn seed_of(icrc: Icrc) -> u32 {
    icrc.seed(0, true, 40)
}

/// Returns the time per call, in nanoseconds: the best of several rounds of at least a millisecond
/// each.
fn measure(quick: bool, mut step: impl FnMut(u32) -> u32) -> f64 {
    let mut best = f64::INFINITY;
    let mut state = 0x1234_5678;
    let mut calls = 1;
    let mut round = 0;
    while round < ROUNDS {
        let start = Instant::now();
        for _ in 0..calls {
            state = step(state);
        }
        let ns = start.elapsed().as_nanos() as f64;
        if quick {
            return ns;
        }
        if ns < 1e6 {
            calls *= 2;
            continue;
        }
        best = best.min(ns / f64::from(calls));
        round += 1;
    }
    black_box(state);
    best
}

fn report(what: &str, bytes: usize, ns: f64, mhz: Option<f64>) {
    let per_ns = bytes as f64 / ns;
    let per_cycle = mhz.map_or(String::new(), |mhz| format!("{:.2}", per_ns * 1000.0 / mhz));
    if bytes == 0 {
        println!("{what:<12} {:>6} {ns:>10.1}", "");
    } else {
        println!("{what:<12} {bytes:>6} {ns:>10.1} {per_ns:>8.2} {per_cycle:>12}");
    }
}

fn cpu_mhz() -> Option<f64> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    info.lines().find(|line| line.starts_with("cpu MHz"))?.split(':').nth(1)?.trim().parse().ok()
}
