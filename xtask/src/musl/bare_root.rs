//! The static tools on soft devices, in a root that contains nothing else: no C library, no
//! configuration, and no `/dev`, `/proc` or `/sys`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use crate::apt::find_program;
use crate::soft_programs::{self, Program};

/// Returns the reason this process may not run a program in another root; `None` if it may.
pub(crate) fn obstacle() -> Option<String> {
    if nix::unistd::geteuid().is_root() {
        return None;
    }
    let unshare = find_program("unshare").unwrap_or_default();
    let made = Command::new(unshare).args(["--map-root-user", "true"]).stderr(Stdio::null()).status();
    let is_made = made.is_ok_and(|status| status.success());
    (!is_made).then(|| "only root may change it, and a user gets no namespace in which it is root".to_owned())
}

/// Runs the tools from a directory in an empty root, two-ended tools as two processes. Calls `each`
/// with each tool's name and result.
///
/// # Errors
/// Fails if a tool is missing or the root cannot be created.
pub(crate) fn check(tools: &Path, each: &mut dyn FnMut(&str, Result<()>)) -> Result<()> {
    let root = Root::new(tools)?;
    soft_programs::check(soft_programs::in_empty_root(), |tool| root.command(tool), each);
    Ok(())
}

/// The empty root. Dropping this value removes it.
struct Root(PathBuf);

impl Root {
    fn new(tools: &Path) -> Result<Self> {
        let root = Root(std::env::temp_dir().join(format!("xtask-bare-root-{}", std::process::id())));
        fs::create_dir_all(&root.0)?;
        for tool in soft_programs::in_empty_root().map(Program::name) {
            let from = tools.join(tool);
            fs::copy(&from, root.0.join(tool)).with_context(|| format!("no {}", from.display()))?;
        }
        Ok(root)
    }

    /// Returns a command that runs a tool in the root.
    fn command(&self, tool: &str) -> Result<Command> {
        let find = |name: &str| find_program(name).with_context(|| format!("there is no program {name}"));
        let mut command = Command::new(find("chroot")?);
        if !nix::unistd::geteuid().is_root() {
            // In a user namespace, a user may change the root as the namespace's root user.
            command = Command::new(find("unshare")?);
            command.arg("--map-root-user").arg(find("chroot")?);
        }
        command.arg(&self.0).arg(format!("/{tool}"));
        Ok(command)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
