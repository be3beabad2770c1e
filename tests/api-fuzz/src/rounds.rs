//! [`Rounds`]: a fuzz run of any length, as rounds in separate processes.
//!
//! Memory leaked by a round is freed when its process ends. A round that crashes or is stopped by a
//! sanitizer has failed. Its seed is reported.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use verbs::WcStatus;
use verbs_harness::pattern::seed_of;
use verbs_harness::process::{self, Finished};
use verbs_harness::runner::{CaseResult, Stop, fail};

use super::tally::{rarest, status_name};
use super::{Fuzz, Tally, missing};

/// The rounds to run.
#[derive(Clone, Debug)]
pub struct Rounds {
    /// The device's name; `None` creates two soft devices in each process.
    pub device: Option<String>,
    /// The duration of the fuzz run, extended until each kind of call is reached.
    pub duration: Duration,
    /// The duration of each round.
    pub round: Duration,
    /// The seed of all random choices.
    pub seed: u64,
}

/// The argument that starts a round's process.
pub const ROUND: &str = "--round";

/// The time limit for the end of a round, when it destroys its objects and checks that the
/// devices still carry messages.
const GRACE: Duration = Duration::from_secs(240);

/// The extra time allowed beyond the duration to reach each kind of call.
const REACH: Duration = Duration::from_secs(120);

/// The prefix of output lines where a round's process prints the count of each kind.
const COUNT: &str = "count: ";

/// The kinds of calls reached last, to the precision of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// The kinds still missing one round before all kinds were reached.
    last: Vec<String>,
    /// The elapsed time at the end of the round that reached the last kinds.
    after: Option<Duration>,
}

impl Reached {
    /// Records the kinds missing at the end of a round, or at the start.
    fn look(&mut self, missing: &[String], elapsed: Duration) {
        if !missing.is_empty() {
            self.last = missing.to_vec();
        } else if self.after.is_none() {
            self.after = Some(elapsed);
        }
    }

    /// Returns a line with the kinds, the time limit for a run of `duration` and the rarest kind.
    pub fn line(&self, counts: &BTreeMap<String, u64>, duration: Duration) -> String {
        /// The maximum number of kinds named in a line. Only the first round has a longer list.
        const NAMED: usize = 8;
        let last = match &self.last {
            few if few.len() <= NAMED => few.join(", "),
            many => format!("{} kinds", many.len()),
        };
        let after = self.after.unwrap_or_default().as_secs();
        let limit = (duration + REACH).as_secs();
        let (rarest, count) = rarest(counts).unwrap_or_default();
        format!("reached last, after {after} s of at most {limit} s: {last}; the rarest: {count} {rarest}")
    }
}

/// The result of a successful fuzz run.
#[derive(Clone, Debug)]
pub struct Done {
    /// The sums of the rounds' counts.
    pub counts: BTreeMap<String, u64>,
    /// The number of rounds that ran.
    pub rounds: u64,
    /// The kinds reached last.
    pub reached: Reached,
}

impl Rounds {
    /// Runs rounds by starting this program again and returns their combined counts.
    ///
    /// # Errors
    /// Fails if a round fails (the error names its seed) or some kind of call is never reached.
    pub fn run(&self, mut told: impl FnMut(u64, u64)) -> CaseResult<Done> {
        let (started, mut counts, mut reached) = (Instant::now(), BTreeMap::new(), Reached::default());
        for round in 0.. {
            let missing = missing(&counts);
            let elapsed = started.elapsed();
            reached.look(&missing, elapsed);
            if elapsed >= self.duration && missing.is_empty() {
                return Ok(Done { counts, rounds: round, reached });
            }
            if elapsed >= self.duration + REACH {
                return fail(format_args!("never reached in {elapsed:?}: {}", missing.join(", ")));
            }
            let seed = if round == 0 { self.seed } else { seed_of(&[self.seed, round]) };
            told(round, seed);
            self.round(seed, &mut counts).map_err(|stop| {
                stop.context(format_args!("round {round} (run it again with --round --seed {seed})"))
            })?;
        }
        Ok(Done { counts, rounds: 0, reached })
    }

    fn round(&self, seed: u64, counts: &mut BTreeMap<String, u64>) -> CaseResult {
        let mut command = Command::new("/proc/self/exe");
        command.args([ROUND, "--seed", &seed.to_string(), "--seconds", &self.round.as_secs().to_string()]);
        if let Some(device) = &self.device {
            command.args(["--device", device]);
        }
        let finished = process::run_group(&mut command, self.round + GRACE)?;
        let is_count = |line: &&str| line.starts_with(COUNT);
        let said = |Finished { stdout, stderr, .. }: &Finished| {
            let lines: Vec<_> = stdout.lines().chain(stderr.lines()).filter(|line| !is_count(line)).collect();
            lines.join("\n")
        };
        match finished {
            Ok(finished) if finished.status.success() => {
                for line in finished.stdout.lines().filter_map(|line| line.strip_prefix(COUNT)) {
                    if let Some((count, name)) = line.split_once(' ')
                        && let Ok(count) = count.parse::<u64>()
                    {
                        *counts.entry(name.to_owned()).or_default() += count;
                    }
                }
                Ok(())
            }
            Ok(finished) => fail(format_args!("{}: {}", finished.status, said(&finished))),
            Err(killed) => fail(format_args!("not done {GRACE:?} after its time: {}", said(&killed))),
        }
    }
}

/// Runs one round in this process and prints its counts.
///
/// # Errors
/// The same errors as [`Fuzz::run`].
pub fn be_round(fuzz: &Fuzz) -> CaseResult {
    let tally = Tally::default();
    fuzz.run(&tally)?;
    for (name, count) in tally.by_name() {
        println!("{COUNT}{count} {name}");
    }
    Ok(())
}

/// Returns the counts as a table.
pub fn table(counts: &BTreeMap<String, u64>) -> String {
    counts.iter().map(|(name, count)| format!("{count:>12} {name}\n")).collect()
}

/// Runs one round in this process, for a device too slow to reach each kind of call within a case's
/// time limit.
///
/// # Errors
/// The same errors as [`Fuzz::run`]; also if no request succeeds.
pub fn one_in_this_process(device: &str, duration: Duration, seed: u64) -> CaseResult {
    let tally = Tally::default();
    let fuzz = Fuzz { device: Some(device.to_owned()), duration, seed };
    fuzz.run(&tally).map_err(|stop| stop.context(format_args!("seed {seed}")))?;
    let counts = tally.by_name();
    print!("{}", table(&counts));
    let succeeded = counts.get(&status_name(WcStatus::SUCCESS));
    if succeeded.is_some_and(|count| *count > 0) { Ok(()) } else { fail("no request succeeded") }
}

/// Runs rounds in this process for `duration`, or longer until every kind of call is reached.
/// Intended for a test case, which runs in a separate process.
///
/// # Errors
/// The same errors as [`Fuzz::run`]; also if some kind of call is never reached.
pub fn in_this_process(device: &str, duration: Duration, seed: u64) -> CaseResult {
    let (started, tally, mut reached) = (Instant::now(), Tally::default(), Reached::default());
    for round in 0.. {
        let missing = missing(&tally.by_name());
        let elapsed = started.elapsed();
        reached.look(&missing, elapsed);
        if round > 0 && missing.is_empty() {
            break;
        }
        if elapsed >= duration + REACH {
            return fail(format_args!("never reached in {elapsed:?}: {}", missing.join(", ")));
        }
        let seed = if round == 0 { seed } else { seed_of(&[seed, round]) };
        let fuzz = Fuzz { device: Some(device.to_owned()), duration, seed };
        fuzz.run(&tally).map_err(|stop: Stop| stop.context(format_args!("seed {seed}")))?;
    }
    let counts = tally.by_name();
    println!("{}{}", table(&counts), reached.line(&counts, duration));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kinds_that_a_run_reached_last_are_named_with_the_time() {
        let mut reached = Reached::default();
        let all: Vec<_> = missing(&BTreeMap::new());
        let (two, one) = (["a", "b"].map(str::to_owned), ["b".to_owned()]);
        for (missing, second) in [(&all[..], 0), (&two, 10), (&one, 20), (&[], 31), (&[], 41)] {
            reached.look(missing, Duration::from_secs(second));
        }
        let counts: BTreeMap<_, _> = all.iter().zip(7..).map(|(name, n)| (name.clone(), n)).collect();
        let line = reached.line(&counts, Duration::from_secs(20));
        assert_eq!(line, format!("reached last, after 31 s of at most 140 s: b; the rarest: 7 {}", all[0]));

        let mut reached = Reached::default();
        reached.look(&all, Duration::ZERO);
        reached.look(&[], Duration::from_secs(10));
        let line = reached.line(&counts, Duration::from_secs(20));
        assert!(line.contains(&format!("after 10 s of at most 140 s: {} kinds;", all.len())), "{line}");
    }
}
