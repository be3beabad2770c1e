//! The form of commit messages: `area: Imperative change`, an empty line, a body.
//!
//! | part | rule |
//! |---|---|
//! | subject | at most [`SUBJECT_COLUMNS`] columns, no full stop at its end |
//! | area | names of packages, modules or files: letters, digits, `. _ - /`; `, ` between two |
//! | change | a capital letter first; no verb of [`VERBS`] in another form than the imperative |
//! | body | an empty line before it, at most [`BODY_COLUMNS`] columns; quotes may be longer |
//!
//! A quote is a line that is indented by four columns, or a single word such as an address.
//! Commits up to [`BASE`] are older than the rule. Merge commits are exempt.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::stage::StageResult;
use crate::cargo;

/// The last commit that is not checked.
const BASE: &str = "790fea1e1e4dc958b3691776de36787389da2513";

/// The longest subject.
const SUBJECT_COLUMNS: usize = 72;

/// The longest line of a body.
const BODY_COLUMNS: usize = 100;

/// Verbs that subjects often begin with, to find them in other forms than the imperative.
const VERBS: &[&str] = &[
    "add",
    "allow",
    "bring",
    "build",
    "call",
    "change",
    "check",
    "convert",
    "count",
    "drop",
    "find",
    "fix",
    "handle",
    "hide",
    "implement",
    "improve",
    "keep",
    "make",
    "move",
    "name",
    "open",
    "refactor",
    "reject",
    "release",
    "remove",
    "rename",
    "replace",
    "report",
    "return",
    "show",
    "split",
    "support",
    "take",
    "test",
    "update",
    "use",
    "write",
];

/// Checks each commit since [`BASE`]; one result for all of them.
pub(super) fn check(result: &mut StageResult) {
    match since_base() {
        Ok(commits) => {
            let problems: Vec<_> = commits.iter().filter_map(Commit::problem).collect();
            if problems.is_empty() {
                result.counts.passed += 1;
            }
            for problem in problems {
                result.fail(problem);
            }
        }
        Err(why) => result.skip(format!("commits cannot be checked: {why:#}")),
    }
}

/// A commit as far as it is checked.
struct Commit {
    id: String,
    is_merge: bool,
    message: String,
}

impl Commit {
    /// Reads one record of [`FORMAT`].
    fn parse(record: &str) -> Result<Commit> {
        let mut fields = record.splitn(3, '\0');
        let mut next = || fields.next().context("git log printed an incomplete record");
        let (id, parents, message) = (next()?, next()?, next()?);
        let is_merge = parents.split_whitespace().count() > 1;
        Ok(Commit { id: id.to_owned(), is_merge, message: message.to_owned() })
    }

    /// Returns the first rule that the message breaks, with the commit's number and subject.
    fn problem(&self) -> Option<String> {
        let subject = self.message.lines().next().unwrap_or_default();
        let problem = if self.is_merge { None } else { problem(&self.message) };
        problem.map(|problem| format!("commit {} ({subject:?}): {problem}", self.id))
    }
}

/// A record of `git log`: a separator, a commit's short number, its parents, its message.
const FORMAT: &str = "--format=%x1e%h%x00%P%x00%B";

/// Returns the commits after [`BASE`], newest first.
///
/// # Errors
/// There is no git or no repository, or its history does not reach [`BASE`], as in a shallow clone.
fn since_base() -> Result<Vec<Commit>> {
    git(&["rev-parse", "--git-dir"]).context("this is no git repository")?;
    git(&["merge-base", "--is-ancestor", BASE, "HEAD"])
        .with_context(|| format!("the history does not reach {} (a shallow clone?)", &BASE[..7]))?;
    let log = git(&["log", FORMAT, &format!("{BASE}..HEAD")])?;
    parse_log(&log)
}

/// Reads the output of `git log` in [`FORMAT`].
fn parse_log(log: &str) -> Result<Vec<Commit>> {
    log.split('\x1e').filter(|record| !record.is_empty()).map(Commit::parse).collect()
}

/// Runs git in the workspace, even if another user owns it, and returns its standard output.
///
/// # Errors
/// git cannot be run or fails; the message has its standard error.
fn git(arguments: &[&str]) -> Result<String> {
    let root = cargo::root();
    let output = Command::new("git")
        .arg("-c")
        .arg(format!("safe.directory={}", root.display()))
        .args(arguments)
        .current_dir(root)
        .stdin(Stdio::null())
        .output()
        .context("cannot run git")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {} {}", arguments[0], output.status, stderr.trim_end());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the first rule that a message breaks.
fn problem(message: &str) -> Option<String> {
    let mut lines = message.trim_end().lines();
    let subject = lines.next().unwrap_or_default();
    let columns = subject.chars().count();
    if columns > SUBJECT_COLUMNS {
        return Some(format!("the subject has {columns} columns, more than {SUBJECT_COLUMNS}"));
    }
    let Some((areas, change)) = subject.split_once(": ") else {
        return Some("the subject is not of the form `area: Imperative change`".to_owned());
    };
    if let Some(area) = areas.split(", ").find(|area| !is_area(area)) {
        return Some(format!("{area:?} is not the name of a package, module or file"));
    }
    if !change.starts_with(|c: char| c.is_uppercase()) {
        return Some("the change does not begin with a capital letter".to_owned());
    }
    if change.ends_with('.') {
        return Some("the subject ends with a full stop".to_owned());
    }
    let word = change.split(' ').next().unwrap_or_default();
    if let Some(verb) = imperative_of(word) {
        return Some(format!("{word:?} is not in the imperative ({verb:?})"));
    }
    if lines.next().is_some_and(|line| !line.is_empty()) {
        return Some("no empty line follows the subject".to_owned());
    }
    lines
        .find(|line| {
            let can_wrap = !line.starts_with("    ") && line.trim().contains(' ');
            can_wrap && line.chars().count() > BODY_COLUMNS
        })
        .map(|line| format!("a line of the body has more than {BODY_COLUMNS} columns: {line:?}"))
}

fn is_area(area: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    !area.is_empty() && area.chars().all(is_plain)
}

/// Returns the imperative of a verb of [`VERBS`] that is in the third person, the past tense or a
/// participle.
fn imperative_of(word: &str) -> Option<&'static str> {
    let word = word.to_lowercase();
    VERBS.iter().copied().find(|verb| {
        let stem = verb.trim_end_matches('e');
        let last = verb.chars().last().unwrap_or_default();
        let forms = [
            format!("{verb}s"),
            format!("{verb}es"),
            format!("{stem}ed"),
            format!("{stem}ing"),
            format!("{verb}{last}ed"),
            format!("{verb}{last}ing"),
        ];
        forms.contains(&word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_form_area_and_imperative_pass() {
        for message in [
            "roce: Stop at the first bad header",
            "xtask, tools: Name the files of modules\n\nA body.\n",
            "Cargo.lock: Update zerocopy\n",
            "docs/tools.md: Address a reader",
            ".ci: Reuse the cache, and say so\n\nA body.\n\nMore of it.",
            &format!("roce: A{}", "b".repeat(SUBJECT_COLUMNS - 7)),
            &format!("roce: Fix it\n\nhttps://{}", "b".repeat(BODY_COLUMNS)),
            &format!("roce: Fix it\n\n    $ quoted {}", "b".repeat(BODY_COLUMNS)),
        ] {
            assert_eq!(problem(message), None, "{message}");
        }
    }

    #[test]
    fn each_broken_rule_is_named() {
        for (message, expected) in [
            ("", "not of the form"),
            ("Take out what nothing uses", "not of the form"),
            ("roce:Stop", "not of the form"),
            (": Stop", "\"\" is not the name"),
            ("roce and docs: Stop", "\"roce and docs\" is not the name"),
            ("roce,docs: Stop", "is not the name"),
            ("roce: stop at the first bad header", "capital letter"),
            ("roce: `poll` waits", "capital letter"),
            ("roce: Stop.", "full stop"),
            ("roce: Added a test", "(\"add\")"),
            ("roce: Removes a test", "(\"remove\")"),
            ("roce: Dropping a test", "(\"drop\")"),
            ("roce: Stop\nat once", "no empty line"),
            (&format!("roce: A{}", "b".repeat(SUBJECT_COLUMNS - 6)), "73 columns"),
            (&format!("roce: Stop\n\na {}", "b".repeat(BODY_COLUMNS)), "a line of the body"),
        ] {
            let problem = problem(message).unwrap_or_default();
            assert!(problem.contains(expected), "{message:?}: {problem:?}");
        }
    }

    #[test]
    fn columns_are_characters_and_not_bytes() {
        assert_eq!(problem(&format!("roce: A{}", "\u{e9}".repeat(SUBJECT_COLUMNS - 7))), None);
    }

    #[test]
    fn merge_commits_are_exempt_and_known_by_their_parents() {
        let log = "\x1eabc\0p1 p2\0Merge branch 'x'\n\n\x1edef\0p1\0Merge branch 'x'\n\nA body.\n\n";
        let commits = parse_log(log).unwrap();
        assert_eq!(commits.len(), 2);
        assert_eq!(commits[0].problem(), None);
        assert!(commits[1].problem().unwrap().starts_with("commit def (\"Merge branch 'x'\"): "));
        assert!(parse_log("\x1eabc\0p1").is_err());
    }
}
