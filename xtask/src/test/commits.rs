//! The form of commit messages, which `.gitlint` describes.
//!
//! Commits up to [`BASE`] are older than the rules.

use std::process::Command;

use super::stage::StageResult;
use crate::{apt, cargo, process};

/// The newest commit that is not checked.
const BASE: &str = "790fea1e1e4dc958b3691776de36787389da2513";

/// Runs gitlint on each commit since [`BASE`]. Counts one result for all of them.
pub(super) fn check(result: &mut StageResult) {
    let tools = apt::ensure_tools(&[apt::Tools::Text]);
    if result.needs("commit messages", tools).is_none() {
        return;
    }
    // A shallow clone has no such history.
    let history = process::output(git().args(["merge-base", "--is-ancestor", BASE, "HEAD"]));
    if result.needs("commit messages, for lack of history", history).is_some() {
        let range = format!("{BASE}..HEAD");
        result.check(process::run(in_workspace("gitlint").args(["--commits", &range])));
    }
}

/// Returns a git command that runs in the workspace.
pub(super) fn git() -> Command {
    in_workspace("git")
}

/// Returns a command that runs in the workspace, where git accepts that another user owns it.
fn in_workspace(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(cargo::root()).env("GIT_CONFIG_COUNT", "1");
    command.env("GIT_CONFIG_KEY_0", "safe.directory").env("GIT_CONFIG_VALUE_0", cargo::root());
    command
}
