//! A copy of the tree for mutants, with a separate target directory.
//!
//! ```text
//!   target/mutants/mlx5/N/tree     the files that git knows or would know
//!   target/mutants/mlx5/N/target   build results, which stay from run to run
//! ```
//!
//! git writes a file only if it differs, so a mutant costs the build of one crate. An interrupted
//! run leaves its mutant in the copy for the next run's git to overwrite.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::{Mutant, SOURCES};
use crate::{cargo, process};

/// The shortest time limit for the unit tests. They take 2 seconds, but a mutant may never end.
const LIMIT: Duration = Duration::from_secs(20);

/// The time limit as a multiple of the time without a mutant, to allow for a busy machine.
const FACTOR: u32 = 8;

/// The unit tests' verdict on a mutant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// A test failed, or a test program crashed or took too long. The value says which.
    Killed(String),
    Survived,
    /// The mutant does not compile, so the list is wrong. The value is the compiler's output.
    Broken(String),
}

/// A copy of the tree.
pub(super) struct Copy {
    tree: PathBuf,
    target: PathBuf,
    limit: Duration,
    /// Held locked, so that a second run waits for this one.
    _lock: File,
}

impl Copy {
    /// Makes the copy with this number and tests it without a mutant.
    ///
    /// # Errors
    /// git or cargo cannot be run; the copy fails its tests.
    pub(super) fn make(number: usize) -> Result<Self> {
        let home = cargo::target_directory()?.join("mutants/mlx5").join(number.to_string());
        let (tree, target) = (home.join("tree"), home.join("target"));
        fs::create_dir_all(&tree).with_context(|| format!("cannot make {}", tree.display()))?;
        let lock = File::create(home.join("lock")).context("cannot make the lock")?;
        lock.lock().context("cannot lock the copy")?;
        // Two indexes apart from git's own: one for the tree as it is now, and one for the copy.
        git(&home.join("source"), cargo::root(), &["add", "--all"])?;
        let files = git(&home.join("source"), cargo::root(), &["write-tree"])?;
        git(&home.join("index"), &tree, &["read-tree", "--reset", "-u", files.trim()])?;
        let mut copy = Self { tree, target, limit: 20 * LIMIT, _lock: lock };
        // The first test run builds, and the second one shows the time.
        let (first, started) = (copy.test()?, Instant::now());
        match if first == Verdict::Survived { copy.test()? } else { first } {
            Verdict::Survived => {
                copy.limit = LIMIT.max(FACTOR * started.elapsed());
                Ok(copy)
            }
            Verdict::Killed(why) | Verdict::Broken(why) => bail!("the tree without a mutant fails: {why}"),
        }
    }

    /// Runs the provider's unit tests on a mutant and returns their verdict.
    ///
    /// # Errors
    /// The mutant does not fit its file, or cargo or the tests cannot be run.
    pub(super) fn judge(&self, mutant: &Mutant) -> Result<Verdict> {
        let path = self.tree.join(SOURCES).join(&mutant.file);
        let original =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        fs::write(&path, mutant.applied(&original)?)?;
        let verdict = self.test().with_context(|| format!("the mutant {}", mutant.name));
        fs::write(&path, original)?;
        verdict
    }

    /// Builds the provider's unit tests and runs them.
    fn test(&self) -> Result<Verdict> {
        let output = cargo::command()
            .args(["test", "--quiet", "--package", "provider-mlx5", "--lib", "--no-run"])
            .args(["--message-format", "json-render-diagnostics"])
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            // Lints must not fail the build, because a mutant may leave a name unused.
            .env("RUSTFLAGS", "--cap-lints allow")
            .envs([("CARGO_INCREMENTAL", "1"), ("CARGO_PROFILE_DEV_DEBUG", "0")])
            .output()
            .context("cannot run cargo")?;
        if !output.status.success() {
            return Ok(Verdict::Broken(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        let mut command = timeout(self.limit);
        command.arg(cargo::executable(&output.stdout)?);
        command.current_dir(self.tree.join("provider-mlx5")).env("RUST_BACKTRACE", "0");
        judged(&mut command)
    }
}

/// Returns a command that ends its program at the time limit.
fn timeout(limit: Duration) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", &limit.as_secs_f64().to_string()]);
    command
}

/// The exit status of `timeout` if the program did not end in time.
const TIMED_OUT: i32 = 124;

/// Runs a test program under [`timeout`] and returns its verdict.
fn judged(command: &mut Command) -> Result<Verdict> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().context("cannot run timeout")?;
    if output.status.success() {
        return Ok(Verdict::Survived);
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = said.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    Ok(Verdict::Killed(match failed {
        _ if output.status.code() == Some(TIMED_OUT) => "the time limit".to_owned(),
        Some(test) => test.to_owned(),
        None => output.status.to_string(),
    }))
}

/// Runs git with a separate index and returns its output.
fn git(index: &Path, tree: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("git");
    command.arg("--work-tree").arg(tree).args(arguments).env("GIT_INDEX_FILE", index);
    process::output(command.current_dir(cargo::root()))
}

#[test]
fn a_program_that_fails_or_never_ends_has_killed_its_mutant() {
    let shell = |script: &str, milliseconds| {
        judged(timeout(Duration::from_millis(milliseconds)).args(["sh", "-c", script])).unwrap()
    };
    assert_eq!(shell("exit 0", 60_000), Verdict::Survived);
    let one = "echo 'test a ... ok'; echo 'test b ... FAILED'; echo 'test c ... FAILED'; exit 101";
    assert_eq!(shell(one, 60_000), Verdict::Killed("b".to_owned()));
    assert!(matches!(shell("kill -ABRT $$", 60_000), Verdict::Killed(_)));
    assert_eq!(shell("exec sleep 600", 100), Verdict::Killed("the time limit".to_owned()));
}
