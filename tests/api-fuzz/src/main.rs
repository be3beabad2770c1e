//! `api-fuzz [--seconds N] [--seed N] [--device NAME] [--round]`: makes random calls to the public
//! API in safe code, legal and odd.
//!
//! Without a device it creates two soft devices; without a seed it takes one from the clock and
//! prints it. `--round` repeats a single round in this process, with the seed that a failure
//! printed. Exits with 0 if nothing failed and every kind of call was made.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use verbs_api_fuzz::rounds::{Done, ROUND, Rounds, be_round, table};
use verbs_api_fuzz::{Fuzz, steps};
use verbs_harness::runner::{CaseResult, Stop};

const USAGE: &str = "usage: api-fuzz [--seconds N] [--seed N] [--device NAME] [--round]";

/// The duration of a round: short enough to afford its leaked memory and to reproduce a failure
/// quickly.
const ROUND_SECONDS: u64 = 10;

fn main() -> ExitCode {
    let (mut seconds, mut seed, mut device, mut is_round) = (None, None, None, false);
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        if name == ROUND {
            is_round = true;
            continue;
        }
        let value = args.next().unwrap_or_default();
        let taken = match name.as_str() {
            "--seconds" => value.parse().map(|value| seconds = Some(value)).is_ok(),
            "--seed" => value.parse().map(|value| seed = Some(value)).is_ok(),
            "--device" => {
                device = Some(value);
                true
            }
            _ => false,
        };
        if !taken {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    let seed: u64 = seed.unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64)
    });
    let seconds: u64 = seconds.unwrap_or(ROUND_SECONDS);
    let result = if is_round {
        be_round(&Fuzz { device, duration: Duration::from_secs(seconds), seed })
    } else {
        run(seconds, seed, device)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Failed(why) | Stop::Skipped(why)) => {
            eprintln!("api-fuzz: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(seconds: u64, seed: u64, device: Option<String>) -> CaseResult {
    println!("{} for {seconds} s, seed {seed}", device.as_deref().unwrap_or("two soft devices"));
    let duration = Duration::from_secs(seconds);
    let rounds =
        Rounds { device, duration, round: Duration::from_secs(ROUND_SECONDS.min(seconds.max(1))), seed };
    let started = Instant::now();
    let Done { counts, rounds, reached } = rounds.run(|_, _| ())?;
    print!("{}", table(&counts));
    println!("{}", reached.line(&counts, duration));
    let elapsed = started.elapsed().as_secs();
    println!("{} random steps in {elapsed} s, {rounds} rounds, nothing wrong", steps(&counts));
    Ok(())
}
