//! `cargo xtask mutants mlx5`: hand-chosen mutants of the ConnectX provider, listed in `list.toml`.
//!
//! Each affects the device or the program: a changed bit in an entry, a counter, a completion
//! field. cargo-mutants makes none of these, because it changes only operators and results. The
//! provider's unit tests judge them in a [`copy`] of the tree.
//!
//! Invariant: the tree and its target directory stay unchanged. Copies are below
//! `target/mutants/mlx5`.

mod copy;

use std::process::ExitCode;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Result, ensure};
use serde::Deserialize;

use self::copy::{Copy, Verdict};

/// Mutates the ConnectX provider at places that were chosen by hand.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Mutants to test, by name or by the beginning of a name [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Number of mutants that are tested at the same time, each in its own copy of the tree
    #[arg(long, default_value_t = 1)]
    jobs: usize,

    /// List the mutants without testing them
    #[arg(long)]
    list: bool,
}

/// The folder with the mutated files.
const SOURCES: &str = "provider-mlx5/src";

/// A change to the provider that a test must detect.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    name: String,
    /// The kind of change.
    kind: String,
    /// The path of the mutated file below [`SOURCES`].
    file: String,
    find: String,
    replace: String,
    /// The reason why the provider behaves the same with the mutant, if it does.
    equivalent: Option<String>,
}

/// Returns all mutants.
fn all() -> &'static [Mutant] {
    #[derive(Deserialize)]
    struct List {
        mutant: Vec<Mutant>,
    }
    static LIST: LazyLock<List> =
        LazyLock::new(|| toml::from_str(include_str!("list.toml")).expect("a list that its test has read"));
    &LIST.mutant
}

impl Mutant {
    /// Returns the text of the mutant's file with the change applied.
    ///
    /// # Errors
    /// The text to replace does not occur exactly once, before the file's tests.
    fn applied(&self, source: &str) -> Result<String> {
        let Self { name, file, find, replace, .. } = self;
        let count = source.matches(find).count();
        ensure!(count == 1, "{name}: the text {find:?} occurs {count} times in {file}");
        let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or(source);
        ensure!(code.contains(find), "{name}: the text {find:?} is in the tests of {file}");
        Ok(source.replacen(find, replace, 1))
    }

    /// Returns a message if the verdict contradicts the list.
    fn problem(&self, verdict: &Verdict) -> Option<String> {
        let Self { name, file, .. } = self;
        match (verdict, &self.equivalent) {
            (Verdict::Broken(why), _) => Some(format!("{name} does not compile ({file}):\n{why}")),
            (Verdict::Survived, None) => Some(format!("{name} survived ({file})")),
            (Verdict::Killed(by), Some(_)) => {
                Some(format!("{name} is listed as equivalent, and was killed by {by}"))
            }
            (Verdict::Killed(_), None) | (Verdict::Survived, Some(_)) => None,
        }
    }
}

/// Runs `mutants mlx5`. Its status is 0 if every mutant was killed, or survived and is explained. A
/// mutant that does not compile is an error in the list.
///
/// # Errors
/// The tree cannot be copied, or fails its tests without a mutant.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let names: Vec<&str> = args.names.iter().map(String::as_str).collect();
    if args.list {
        for Mutant { name, kind, file, .. } in chosen(&names)? {
            println!("{name:34} {kind:14} {file}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (good, problems) = check(&names, args.jobs)?;
    println!("\n{good} killed or equivalent, {} problems", problems.len());
    problems.iter().for_each(|problem| println!("PROBLEM: {problem}"));
    Ok(ExitCode::from(u8::from(!problems.is_empty())))
}

/// The mutants for every commit: in a completion field, in a bit of an entry, and in a bound.
pub(crate) const FEW: &[&str] = &["completion-status-flush", "owner-round", "overflow-send-limit"];

/// Returns the mutants whose names begin with one of `names`; all if `names` is empty.
fn chosen(names: &[&str]) -> Result<Vec<&'static Mutant>> {
    let is_chosen =
        |mutant: &&Mutant| names.is_empty() || names.iter().any(|name| mutant.name.starts_with(name));
    let chosen: Vec<_> = all().iter().filter(is_chosen).collect();
    ensure!(!chosen.is_empty(), "no mutant's name begins with one of these");
    Ok(chosen)
}

/// Tests the mutants whose names begin with one of `names` (all if empty) in `jobs` copies of the
/// tree. Returns the number of mutants without a problem, and the problems of the others.
///
/// # Errors
/// The same errors as [`run`].
pub(crate) fn check(names: &[&str], jobs: usize) -> Result<(u64, Vec<String>)> {
    let (mutants, next) = (chosen(names)?, AtomicUsize::new(0));
    let work = |copy: usize| {
        let (copy, mut good, mut problems) = (Copy::make(copy)?, 0, Vec::new());
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(mutant) = mutants.get(number) else { return Ok((good, problems)) };
            let verdict = copy.judge(mutant)?;
            println!("{:3}/{} {:34} {verdict:?}", number + 1, mutants.len(), mutant.name);
            match mutant.problem(&verdict) {
                None => good += 1,
                Some(problem) => problems.push(problem),
            }
        }
    };
    thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..jobs).map(|copy| scope.spawn(move || work(copy))).collect();
        let results = workers.into_iter().map(|worker| worker.join().expect("a worker without a panic"));
        let results = results.collect::<Result<Vec<(u64, Vec<String>)>>>()?;
        let (good, problems): (Vec<u64>, Vec<_>) = results.into_iter().unzip();
        Ok((good.iter().sum(), problems.concat()))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;
    use crate::cargo;

    #[test]
    fn each_mutant_changes_one_place_of_the_provider() {
        let problems: Vec<String> = all()
            .iter()
            .filter_map(|mutant| {
                let path = cargo::root().join(SOURCES).join(&mutant.file);
                let source = fs::read_to_string(&path).expect("a file of the provider");
                match mutant.applied(&source) {
                    Ok(changed) if changed != source => None,
                    Ok(_) => Some(format!("{} changes nothing", mutant.name)),
                    Err(error) => Some(error.to_string()),
                }
            })
            .collect();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
        let names: BTreeSet<&str> = all().iter().map(|mutant| mutant.name.as_str()).collect();
        assert_eq!(names.len(), all().len(), "names differ");
    }

    #[test]
    fn a_text_that_occurs_twice_or_in_tests_alone_is_an_error() {
        let text = "name = 'one'\nkind = 'k'\nfile = 'a.rs'\nfind = 'a + b'\nreplace = 'a - b'";
        let mutant: Mutant = toml::from_str(text).unwrap();
        assert_eq!(mutant.applied("x = a + b;").unwrap(), "x = a - b;");
        for wrong in ["a + b; a + b", "a - b", "#[cfg(test)]\nmod tests {\n a + b }"] {
            assert!(mutant.applied(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_mutants_of_every_commit_have_these_names_and_are_none_of_the_equivalent_ones() {
        let few = chosen(FEW).unwrap();
        assert!(few.iter().map(|mutant| &mutant.name).eq(FEW), "{few:?}");
        assert!(few.iter().all(|mutant| mutant.equivalent.is_none()));
        assert!(chosen(&["no-such-name"]).is_err());
    }

    #[test]
    fn only_survivors_without_a_reason_and_killed_equivalents_are_problems() {
        let plain = all().iter().find(|mutant| mutant.equivalent.is_none()).unwrap();
        let same = all().iter().find(|mutant| mutant.equivalent.is_some()).unwrap();
        let killed = Verdict::Killed("a_test".to_owned());
        assert_eq!(plain.problem(&killed), None);
        assert_eq!(same.problem(&Verdict::Survived), None);
        for (mutant, verdict) in
            [(plain, &Verdict::Survived), (same, &killed), (plain, &Verdict::Broken("why".to_owned()))]
        {
            assert!(mutant.problem(verdict).unwrap().starts_with(&mutant.name));
        }
    }
}
