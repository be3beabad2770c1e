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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, ensure};

use self::copy::{Copy, Verdict};
use self::list::Mutant;

/// Mutates the ConnectX provider at places chosen by hand.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Mutants to test, by their names or the beginnings of them [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Let the suite `differential` judge the survivors of the unit tests, in a guest with the
    /// ConnectX model for each
    #[arg(long)]
    guest: bool,

    /// Number of mutants that are tested at the same time, each in its own copy of the tree
    #[arg(long, default_value_t = 1)]
    jobs: usize,

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
    let chosen = chosen(&args.names)?;
    if args.list {
        for Mutant { name, kind, file, .. } in chosen {
            println!("{name:34} {kind:14} {file}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let results = judge(&chosen, args.guest, args.jobs)?;
    println!("\n{}", table(&results));
    Ok(ExitCode::from(u8::from(results.iter().any(|result| result.problem().is_some()))))
}

/// The mutants of every commit: a field of a completion, a bit of an entry, and a bound.
pub(crate) const FEW: &[&str] = &["completion-status-flush", "owner-round", "overflow-send-limit"];

/// Tests mutants by their names or the beginnings of them, all without a name, in so many copies of
/// the tree. Returns the number of those without a problem, and the problems of the others.
///
/// # Errors
/// As [`run`].
pub(crate) fn check(names: &[&str], jobs: usize) -> Result<(u64, Vec<String>)> {
    let results = judge(&chosen(names)?, false, jobs)?;
    let problems: Vec<String> = results.iter().filter_map(Outcome::problem).collect();
    Ok(((results.len() - problems.len()) as u64, problems))
}

/// Returns the mutants whose names begin with one of `names`, all without a name.
///
/// # Errors
/// No name has such a beginning.
fn chosen(names: &[impl AsRef<str>]) -> Result<Vec<&'static Mutant>> {
    let is_chosen = |mutant: &&Mutant| {
        names.is_empty() || names.iter().any(|name| mutant.name.starts_with(name.as_ref()))
    };
    let chosen: Vec<_> = list::all().filter(is_chosen).collect();
    ensure!(!chosen.is_empty(), "no mutant's name begins with one of these");
    Ok(chosen)
}

/// A mutant and its verdict.
#[derive(Clone)]
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

/// Tests mutants, one after the other in each of `jobs` copies of the tree.
fn judge(mutants: &[&'static Mutant], in_guest: bool, jobs: usize) -> Result<Vec<Outcome>> {
    let next = AtomicUsize::new(0);
    let work = |copy: usize| {
        let (mut copy, mut results) = (Copy::make(copy)?, Vec::new());
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(mutant) = mutants.get(number) else { return Ok(results) };
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
    };
    thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..jobs).map(|copy| scope.spawn(move || work(copy))).collect();
        let results = workers.into_iter().map(|worker| worker.join().expect("a worker without a panic"));
        Ok(results.collect::<Result<Vec<_>>>()?.concat())
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mutants_of_every_commit_have_these_names_and_are_none_of_the_equivalent_ones() {
        let few = chosen(FEW).unwrap();
        assert!(few.iter().map(|mutant| &mutant.name).eq(FEW), "{few:?}");
        assert!(few.iter().all(|mutant| mutant.equivalent.is_none()));
        assert!(chosen(&["no-such-name"]).is_err());
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
