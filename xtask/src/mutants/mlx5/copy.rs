//! The copy of the tree that mutants are put into, with a target directory of its own.
//!
//! ```text
//!   target/mutants/mlx5/N/tree     the files that git knows or would know
//!   target/mutants/mlx5/N/target   build results, which stay from run to run
//! ```
//!
//! A file is written only if it differs, so that a mutant costs the build of one crate. A run that
//! was interrupted leaves its mutant in the copy; the next one overwrites it.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::list::{Mutant, SOURCES};
use crate::cargo;

/// The shortest time limit for the unit tests, which take 2 seconds: a mutant may never end.
const LIMIT: Duration = Duration::from_secs(20);

/// The time limit as a multiple of the time without a mutant, on a machine that is busy.
const FACTOR: u32 = 8;

/// The suites of the second judge: 10,000 requests, compared with rdma-core's library.
const SUITES: &[&str] = &["differential"];

/// A judge's verdict on a mutant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// By a test, by the time limit, or by a signal.
    Killed(String),
    Survived,
    /// It does not compile, with the compiler's words: an error of the list.
    Broken(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed(by) => write!(f, "killed by {by}"),
            Self::Survived => f.write_str("SURVIVED"),
            Self::Broken(why) => write!(f, "does not compile:\n{}", why.trim_end()),
        }
    }
}

/// The copy of the tree.
pub(super) struct Copy {
    tree: PathBuf,
    target: PathBuf,
    limit: Duration,
    /// The suites of the second judge pass without a mutant.
    is_guest_ready: bool,
    /// Locked: a second run waits for this one.
    _lock: File,
}

impl Copy {
    /// Makes the copy with this number, and tests it without a mutant.
    ///
    /// # Errors
    /// git or cargo cannot be run; the copy fails its tests.
    pub(super) fn make(number: usize) -> Result<Self> {
        let home = cargo::target_directory()?.join("mutants/mlx5").join(number.to_string());
        let (tree, target) = (home.join("tree"), home.join("target"));
        fs::create_dir_all(&tree).with_context(|| format!("cannot make {}", tree.display()))?;
        let lock = File::create(home.join("lock")).context("cannot make the lock")?;
        lock.lock().context("cannot lock the copy")?;
        let files = files()?;
        for file in &files {
            let text = fs::read(cargo::root().join(file)).with_context(|| format!("cannot read {file}"))?;
            write(&tree.join(file), &text)?;
        }
        remove_others(&tree, &tree, &files)?;
        let mut copy = Self { tree, target, limit: 20 * LIMIT, is_guest_ready: false, _lock: lock };
        // The first one builds, the second one shows the time.
        let (first, started) = (copy.test()?, Instant::now());
        match if first == Verdict::Survived { copy.test()? } else { first } {
            Verdict::Survived => {
                copy.limit = LIMIT.max(FACTOR * started.elapsed());
                Ok(copy)
            }
            verdict => bail!("the tree without a mutant: {verdict}"),
        }
    }

    /// Lets the provider's unit tests judge a mutant.
    ///
    /// # Errors
    /// cargo or the tests cannot be run.
    pub(super) fn unit_tests(&mut self, mutant: &Mutant) -> Result<Verdict> {
        self.with(mutant, Self::test)
    }

    /// Lets suites in a guest judge a mutant.
    ///
    /// # Errors
    /// cargo cannot be run; the suites fail without a mutant, as they do where no guest starts.
    pub(super) fn guest(&mut self, mutant: &Mutant) -> Result<Verdict> {
        if !self.is_guest_ready {
            let verdict = self.suites()?;
            ensure!(verdict == Verdict::Survived, "the guest without a mutant: {verdict}");
            self.is_guest_ready = true;
        }
        self.with(mutant, Self::suites)
    }

    /// Calls `judge` while the copy has a mutant.
    fn with(&self, mutant: &Mutant, judge: impl FnOnce(&Self) -> Result<Verdict>) -> Result<Verdict> {
        let path = self.tree.join(SOURCES).join(&mutant.file);
        let original =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        write(&path, mutant.applied(&original)?.as_bytes())?;
        let verdict = judge(self).with_context(|| format!("the mutant {}", mutant.name));
        write(&path, original.as_bytes())?;
        verdict
    }

    /// Builds the provider's unit tests and runs them.
    fn test(&self) -> Result<Verdict> {
        let output = self
            .cargo()
            .args(["test", "--quiet", "--package", "provider-mlx5", "--lib", "--no-run"])
            .args(["--message-format", "json-render-diagnostics"])
            .output()
            .context("cannot run cargo")?;
        if !output.status.success() {
            return Ok(Verdict::Broken(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        let said = String::from_utf8_lossy(&output.stdout);
        let program = said.lines().rev().find_map(|line| cargo::string_field(line, "executable"));
        let mut command = Command::new(program.context("cargo named no program")?);
        command.current_dir(self.tree.join("provider-mlx5")).env("RUST_BACKTRACE", "0");
        judged(&mut command, self.limit)
    }

    /// Runs suites in a guest by the copy's own `cargo xtask test`.
    fn suites(&self) -> Result<Verdict> {
        let output = self
            .cargo()
            .args(["run", "--quiet", "--package", "xtask", "--", "test"])
            .args(["--device", "mlx5", "--kernel", "6.1", "--port", "ib"])
            .args(SUITES)
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo")?;
        if output.status.success() {
            return Ok(Verdict::Survived);
        }
        let said = String::from_utf8_lossy(&output.stdout);
        let failure = said.lines().find_map(|line| line.split_once("FAIL ")).map(|(_, why)| why.to_owned());
        Ok(Verdict::Killed(failure.unwrap_or_else(|| format!("the guest: {}", output.status))))
    }

    /// A cargo command in the copy. Lints do not fail it: a mutant may leave a name unused.
    fn cargo(&self) -> Command {
        let mut command = cargo::command();
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target);
        command.env("RUSTFLAGS", "--cap-lints allow").env("CARGO_INCREMENTAL", "1");
        command.env("CARGO_PROFILE_DEV_DEBUG", "0");
        command
    }
}

/// Runs a program of tests, and returns its verdict.
fn judged(command: &mut Command, limit: Duration) -> Result<Verdict> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut pipe = child.stdout.take().context("the program has no output")?;
    let (done, said) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        let _ = pipe.read_to_end(&mut text);
        let _ = done.send(String::from_utf8_lossy(&text).into_owned());
    });
    let said = said.recv_timeout(limit);
    if said.is_err() {
        child.kill().context("cannot end the tests")?;
    }
    let status = child.wait()?;
    let _ = reader.join();
    Ok(match said {
        Err(_) => Verdict::Killed("the time limit".to_owned()),
        Ok(_) if status.success() => Verdict::Survived,
        Ok(said) => Verdict::Killed(failed(&said).unwrap_or_else(|| status.to_string())),
    })
}

/// Returns the first test that failed, and the number of the others.
fn failed(said: &str) -> Option<String> {
    let mut failed: Vec<&str> =
        said.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED")).collect();
    failed.sort_unstable();
    match failed[..] {
        [] => None,
        [one] => Some(one.to_owned()),
        [one, ref others @ ..] => Some(format!("{one} and {} more", others.len())),
    }
}

/// Returns the files of the tree: those that git knows, and those that it would add.
fn files() -> Result<BTreeSet<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(cargo::root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run git")?;
    ensure!(output.status.success(), "git ls-files failed");
    let names = String::from_utf8(output.stdout).context("a file whose name is no text")?;
    let names = names.split_terminator('\0').filter(|name| cargo::root().join(name).is_file());
    Ok(names.map(str::to_owned).collect())
}

/// Writes a file, unless it has these bytes already.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Removes the files of a folder of the copy that the tree does not have.
fn remove_others(folder: &Path, tree: &Path, files: &BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, tree, files)?;
        } else if let Some(name) = path.strip_prefix(tree)?.to_str()
            && !files.contains(name)
        {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_or_never_ends_has_killed_its_mutant() {
        let shell = |script: &str, limit| {
            judged(Command::new("sh").args(["-c", script]), Duration::from_millis(limit)).unwrap()
        };
        assert_eq!(shell("exit 0", 60_000), Verdict::Survived);
        let one = "echo 'test b ... FAILED'; echo 'test c ... ok'; exit 101";
        assert_eq!(shell(one, 60_000), Verdict::Killed("b".to_owned()));
        let two = "echo 'test b ... FAILED'; echo 'test a ... FAILED'; exit 101";
        assert_eq!(shell(two, 60_000), Verdict::Killed("a and 1 more".to_owned()));
        assert_eq!(shell("kill -KILL $$", 60_000), Verdict::Killed("signal: 9 (SIGKILL)".to_owned()));
        assert_eq!(shell("exec sleep 600", 100), Verdict::Killed("the time limit".to_owned()));
    }

    #[test]
    fn the_files_are_those_of_the_tree_without_build_results() {
        let files = files().unwrap();
        assert!(files.contains("provider-mlx5/src/lib.rs"));
        assert!(!files.iter().any(|file| file.starts_with("target/")));
    }
}
