//! `cargo xtask mutants mlx5`: mutants of the provider for ConnectX that are chosen by hand.
//!
//! Each changes what the device or the program sees: a bit of an entry, a counter, a field of a
//! completion. The provider's unit tests are the first judge. With `--guest` their survivors go to
//! a second one: the suite `differential` under the driver of Linux, on the model of the device.
//!
//! | file | content |
//! |---|---|
//! | `mod` | the command: choice, order, table |
//! | `list`, `list.toml` | the mutants |
//! | `copy` | the tree's copy: building and testing it with a mutant |
//!
//! Invariant: the tree and its target directory stay unchanged; the copy is below
//! `target/mutants/mlx5`.

mod copy;
mod list;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use self::copy::{Copy, Verdict};
use self::list::Mutant;
use crate::commit;

/// Mutates the ConnectX provider at places chosen by hand.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Mutants to test, by their names or the beginnings of them [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Test only this many of them, chosen at random
    #[arg(long, value_name = "N")]
    sample: Option<usize>,

    /// Seed of the choice [default: the beginning of the commit's hash]
    #[arg(long, value_name = "SEED", requires = "sample")]
    seed: Option<u64>,

    /// Let the suite `differential` judge the survivors of the unit tests, in a guest with the
    /// ConnectX model for each
    #[arg(long)]
    guest: bool,

    /// List the mutants and test none
    #[arg(long)]
    list: bool,
}

/// Runs `mutants mlx5`. Its status is 0 if every mutant was killed, or survived and is explained;
/// one that does not compile is an error of the list.
///
/// # Errors
/// The tree cannot be copied, or fails its tests without a mutant.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let mut chosen: Vec<&Mutant> = list::all()
        .filter(|mutant| args.names.is_empty() || args.names.iter().any(|name| mutant.name.starts_with(name)))
        .collect();
    ensure!(!chosen.is_empty(), "no mutant's name begins with {}", args.names.join(" or "));
    if let Some(count) = args.sample {
        chosen = sample(chosen, count, args.seed)?;
    }
    if args.list {
        for Mutant { name, kind, file, .. } in chosen {
            println!("{name:34} {kind:14} {file}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let results = judge(&chosen, args.guest)?;
    println!("\n{}", table(&results));
    Ok(ExitCode::from(u8::from(results.iter().any(|result| result.problem().is_some()))))
}

/// Tests a few mutants, chosen by the commit, and returns the number of those without a problem,
/// and the problems of the others.
///
/// # Errors
/// As [`run`].
pub(crate) fn check(count: usize) -> Result<(u64, Vec<String>)> {
    let results = judge(&sample(list::all().collect(), count, None)?, false)?;
    let problems: Vec<String> = results.iter().filter_map(Outcome::problem).collect();
    Ok(((results.len() - problems.len()) as u64, problems))
}

/// A mutant and what became of it.
struct Outcome {
    mutant: &'static Mutant,
    verdict: Verdict,
}

impl Outcome {
    /// Returns the contradiction between the list and the verdict, if there is one.
    fn problem(&self) -> Option<String> {
        let Mutant { name, file, equivalent, .. } = self.mutant;
        match (&self.verdict, equivalent) {
            (Verdict::Broken(_), _) => Some(format!("{name} does not compile ({file})")),
            (Verdict::Survived, None) => Some(format!("{name} survived ({file})")),
            (Verdict::Killed(by), Some(_)) => {
                Some(format!("{name} is listed as equivalent, and was killed by {by}"))
            }
            _ => None,
        }
    }
}

/// Tests mutants, one after the other.
fn judge(mutants: &[&'static Mutant], in_guest: bool) -> Result<Vec<Outcome>> {
    let mut copy = Copy::make()?;
    let mut results = Vec::new();
    for (number, mutant) in mutants.iter().enumerate() {
        let started = Instant::now();
        let mut verdict = copy.unit_tests(mutant)?;
        if in_guest && verdict == Verdict::Survived {
            println!("{} survived the unit tests: a guest is next", mutant.name);
            verdict = copy.guest(mutant)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        println!("{:3}/{} {:34} {verdict} ({seconds:.1} s)", number + 1, mutants.len(), mutant.name);
        results.push(Outcome { mutant, verdict });
    }
    Ok(results)
}

/// Returns the results as text: a line for each kind, the explanations, and the problems.
fn table(results: &[Outcome]) -> String {
    let mut text = format!("{:16}{:>8}{:>12}{:>10}\n", "kind", "killed", "equivalent", "survived");
    let mut line = |name: &str, of: &[&Outcome]| {
        let killed = of.iter().filter(|one| matches!(one.verdict, Verdict::Killed(_))).count();
        let survived = |is_explained: bool| {
            let alive = of.iter().filter(|one| one.verdict == Verdict::Survived);
            alive.filter(|one| one.mutant.equivalent.is_some() == is_explained).count()
        };
        let _ = writeln!(text, "{name:16}{killed:8}{:12}{:10}", survived(true), survived(false));
    };
    for kind in list::kinds() {
        let of: Vec<&Outcome> = results.iter().filter(|result| result.mutant.kind == kind).collect();
        if !of.is_empty() {
            line(kind, &of);
        }
    }
    line("all", &results.iter().collect::<Vec<_>>());
    for Outcome { mutant, .. } in results.iter().filter(|result| result.verdict == Verdict::Survived) {
        if let Some(reason) = &mutant.equivalent {
            let _ = writeln!(text, "equivalent: {}: {reason}", mutant.name);
        }
    }
    for problem in results.iter().filter_map(Outcome::problem) {
        let _ = writeln!(text, "PROBLEM: {problem}");
    }
    text
}

/// Chooses `count` of the mutants, by a seed or else by the commit.
fn sample(mut of: Vec<&'static Mutant>, count: usize, seed: Option<u64>) -> Result<Vec<&'static Mutant>> {
    let seed = seed
        .map_or_else(commit::number, Ok)
        .context("no commit chooses the mutants: give a seed with --seed")?;
    println!("{count} of {} mutants, by the seed {seed}", of.len());
    let mut state = seed;
    let count = count.min(of.len());
    for at in 0..count {
        let left = of.len() - at;
        of.swap(at, at + (random(&mut state) % left as u64) as usize);
    }
    of.truncate(count);
    Ok(of)
}

/// Returns the next number of SplitMix64.
const fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_the_same_for_the_same_seed_and_has_no_mutant_twice() {
        let names = |seed, count| -> Vec<&str> {
            let chosen = sample(list::all().collect(), count, Some(seed)).unwrap();
            chosen.iter().map(|mutant| mutant.name.as_str()).collect()
        };
        assert_eq!(names(1, 6), names(1, 6));
        assert_ne!(names(1, 6), names(2, 6));
        let mut every = names(1, usize::MAX);
        every.sort_unstable();
        every.dedup();
        assert_eq!(every.len(), list::all().count());
    }

    #[test]
    fn only_survivors_without_a_reason_and_killed_equivalents_are_problems() {
        let plain = list::all().find(|mutant| mutant.equivalent.is_none()).unwrap();
        let same = list::all().find(|mutant| mutant.equivalent.is_some()).unwrap();
        let killed = || Verdict::Killed("a_test".to_owned());
        for (mutant, verdict, is_problem) in [
            (plain, killed(), false),
            (plain, Verdict::Survived, true),
            (same, killed(), true),
            (same, Verdict::Survived, false),
            (plain, Verdict::Broken(String::new()), true),
        ] {
            let outcome = Outcome { mutant, verdict };
            assert_eq!(outcome.problem().is_some(), is_problem, "{}", table(&[outcome]));
        }
        let text = table(&[
            Outcome { mutant: plain, verdict: Verdict::Survived },
            Outcome { mutant: same, verdict: Verdict::Survived },
            Outcome { mutant: plain, verdict: killed() },
        ]);
        let all: Vec<&str> = text.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(all, ["all", "1", "1", "1"]);
        let reason = same.equivalent.as_ref().unwrap();
        assert!(text.contains(&format!("equivalent: {}: {reason}\n", same.name)), "{text}");
        assert!(text.contains(&format!("PROBLEM: {} survived ({})\n", plain.name, plain.file)), "{text}");
    }
}
