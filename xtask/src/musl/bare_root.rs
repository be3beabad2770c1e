//! The static tools in a root that holds nothing else, on soft devices: no C library, no
//! configuration, none of `/dev`, `/proc` and `/sys`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::apt::find_program;
use crate::process::{LIMIT, Process, free_port, is_listening, is_listening_by_address, output, pair};

/// The tools that are run.
const TOOLS: &[&str] = &["ibv_devinfo", "ibv_rc_pingpong", "rping"];

/// Returns why this process may not run a program in another root.
pub(crate) fn obstacle() -> Option<String> {
    if nix::unistd::geteuid().is_root() {
        return None;
    }
    let unshare = find_program("unshare").unwrap_or_default();
    let made = Command::new(unshare).args(["--map-root-user", "true"]).stderr(Stdio::null()).status();
    let is_made = made.is_ok_and(|status| status.success());
    (!is_made).then(|| "only root may change it, and a user gets no namespace in which it is root".to_owned())
}

/// Runs the tools of a directory in an empty root, each of two ends in a process of its own, and
/// returns the number of checks that passed.
///
/// # Errors
/// A program fails there, or cannot be run ([`obstacle`]).
pub(crate) fn check(tools: &Path) -> Result<u64> {
    let root = Root::new(tools)?;
    let shown = output(&mut root.command("ibv_devinfo", &["-d", "soft0"])?)?;
    ensure!(shown.contains("PORT_ACTIVE"), "ibv_devinfo in an empty root: {shown}");

    let port = free_port()?;
    let number = port.to_string();
    let words = ["-d", "soft0", "-g", "0", "-p", &number, "--verify", "-e"];
    let client = [&words[..], &["127.0.0.1"]].concat();
    root.pair("ibv_rc_pingpong", &words, &client, || is_listening(port))?;

    let port = free_port()?;
    let number = port.to_string();
    let end = |role| ["-v", "-C", "10", "-a", "127.0.0.1", "-p", &number, role];
    root.pair("rping", &end("-s"), &end("-c"), || is_listening_by_address(port))?;
    Ok(3)
}

/// The root, which goes away with the value.
struct Root(PathBuf);

impl Root {
    fn new(tools: &Path) -> Result<Self> {
        let root = Root(std::env::temp_dir().join(format!("xtask-bare-root-{}", std::process::id())));
        fs::create_dir_all(&root.0)?;
        for tool in TOOLS {
            let from = tools.join(tool);
            fs::copy(&from, root.0.join(tool)).with_context(|| format!("no {}", from.display()))?;
        }
        Ok(root)
    }

    /// Returns a command of a tool on soft devices.
    fn command(&self, tool: &str, arguments: &[&str]) -> Result<Command> {
        let find = |name: &str| find_program(name).with_context(|| format!("there is no program {name}"));
        let mut command = Command::new(find("chroot")?);
        if !nix::unistd::geteuid().is_root() {
            // A user may change the root in a namespace in which it is root.
            command = Command::new(find("unshare")?);
            command.arg("--map-root-user").arg(find("chroot")?);
        }
        command.arg(&self.0).arg(format!("/{tool}")).args(arguments).env("VERBS_SOFT", "auto");
        Ok(command)
    }

    fn pair(
        &self,
        tool: &str,
        server: &[&str],
        client: &[&str],
        is_listening: impl Fn() -> bool,
    ) -> Result<()> {
        let start = |name, words| Process::shown(name, &mut self.command(tool, words)?);
        let server = start("server", server)?;
        pair(server, |_| is_listening(), || start("client", client), LIMIT).map(drop)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
