//! The form of commit messages, which `.gitlint` describes.
//!
//! Commits up to [`BASE`] are older than the rules.

use std::process::{Command, Stdio};

use super::stage::StageResult;
use crate::{apt, cargo};

/// The last commit that is not checked.
const BASE: &str = "790fea1e1e4dc958b3691776de36787389da2513";

/// Lets gitlint check each commit since [`BASE`]; one result for all of them.
pub(super) fn check(result: &mut StageResult) {
    if let Err(error) = apt::ensure_tools(&[apt::TEXT_TOOLS], |line| result.say(line)) {
        return result.skip(format!("commit messages: {error:#}"));
    }
    if !succeeds("git", &["merge-base", "--is-ancestor", BASE, "HEAD"]) {
        return result.skip(format!("commit messages: no history back to {} (a shallow clone?)", &BASE[..7]));
    }
    if succeeds("gitlint", &["--commits", &format!("{BASE}..HEAD")]) {
        result.counts.passed += 1;
    } else {
        result.fail("gitlint has found the messages above");
    }
}

/// Returns whether a program succeeds in the workspace, even if another user owns it.
fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(cargo::root()).stdin(Stdio::null());
    command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", "safe.directory");
    command.env("GIT_CONFIG_VALUE_0", cargo::root()).status().is_ok_and(|status| status.success())
}
