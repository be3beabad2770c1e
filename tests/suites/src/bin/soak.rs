//! `soak [--seconds N] [--qps N] [--threads N] [--device NAME] [--no-fence] [--seed N]`: runs
//! random traffic on many queue pairs of one device. Checks each operation and the resident set.
//!
//! Without a device it creates soft0 for this process. Prints totals and exits with 0 if no data
//! was lost and memory did not grow.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use verbs_fixtures::peer::soak::{Soak, Totals};
use verbs_harness::runner::{CaseResult, Stop, fail};

const USAGE: &str =
    "usage: soak [--seconds N] [--qps N] [--threads N] [--device NAME] [--no-fence] [--seed N]";

fn main() -> ExitCode {
    let mut soak = Soak { duration: Duration::from_secs(600), qps: 256, threads: 16, seed: 1, fence: true };
    let mut device = "soft0".to_owned();
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        if name == "--no-fence" {
            soak.fence = false;
            continue;
        }
        let value = args.next().unwrap_or_default();
        let taken = match name.as_str() {
            "--seconds" => value.parse().map(|seconds| soak.duration = Duration::from_secs(seconds)).is_ok(),
            "--qps" => value.parse().map(|qps| soak.qps = qps).is_ok(),
            "--threads" => value.parse().map(|threads| soak.threads = threads).is_ok(),
            "--seed" => value.parse().map(|seed| soak.seed = seed).is_ok(),
            "--device" => {
                device = value;
                true
            }
            _ => false,
        };
        if !taken {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    match run(&soak, &device) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Failed(why) | Stop::Skipped(why)) => {
            eprintln!("soak: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(soak: &Soak, device: &str) -> CaseResult {
    let context = verbs::devices()?.find(device)?.open()?;
    let Soak { duration, qps, threads, seed, .. } = soak;
    println!("{qps} queue pairs on {device}, {threads} threads, {duration:?}, seed {seed}");
    let started = Instant::now();
    let mut told = started;
    let totals = soak.run(&context, |totals| {
        if told.elapsed() >= Duration::from_secs(10) {
            told = Instant::now();
            tell(totals, started);
        }
    })?;
    tell(&totals, started);
    if totals.operations == 0 {
        return fail("nothing was done");
    }
    println!("nothing lost");
    Ok(())
}

fn tell(totals: &Totals, started: Instant) {
    let Totals { rounds, operations, bytes, connections, resident_at_first, resident_at_most } = totals;
    let mib = |bytes: &u64| *bytes as f64 / f64::from(1 << 20);
    println!(
        "{:.0} s: {rounds} rounds, {operations} operations, {:.1} MiB, {connections} connections made, resident {:.1} MiB, \
         at most {:.1} MiB",
        started.elapsed().as_secs_f64(),
        mib(bytes),
        mib(resident_at_first),
        mib(resident_at_most),
    );
}
