//! The static tools in a root that holds nothing else, on soft devices: no C library, no
//! configuration, none of `/dev`, `/proc` and `/sys`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::apt::find_program;
use crate::process::{LIMIT, Process, free_port, is_listening, is_listening_by_address, pair};

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
    devinfo(&root)?;
    ping_pong(&root)?;
    rping(&root)?;
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

    /// Returns the program that changes the root, and its arguments in front of those of a tool.
    fn enter(&self, tool: &str) -> Result<(PathBuf, Vec<String>)> {
        let find = |name: &str| find_program(name).with_context(|| format!("there is no program {name}"));
        let (chroot, root) = (find("chroot")?, self.0.to_string_lossy().into_owned());
        let tool = format!("/{tool}");
        if nix::unistd::geteuid().is_root() {
            return Ok((chroot, vec![root, tool]));
        }
        // A user may change the root in a namespace in which it is root.
        let chroot = chroot.to_string_lossy().into_owned();
        Ok((find("unshare")?, vec!["--map-root-user".to_owned(), chroot, root, tool]))
    }

    fn start(&self, name: &'static str, tool: &str, arguments: &[&str]) -> Result<Process> {
        let (program, all) = self.enter(tool)?;
        Process::shown(name, Command::new(program).args(all).args(arguments).env("VERBS_SOFT", "auto"))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn devinfo(root: &Root) -> Result<()> {
    let (program, arguments) = root.enter("ibv_devinfo")?;
    let output = Command::new(&program)
        .args(arguments)
        .args(["-d", "soft0"])
        .env("VERBS_SOFT", "auto")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let shown = output.status.success() && said.contains("PORT_ACTIVE");
    ensure!(shown, "ibv_devinfo in an empty root: {output:?}");
    Ok(())
}

fn ping_pong(root: &Root) -> Result<()> {
    let port = free_port()?;
    let number = port.to_string();
    let words = ["-d", "soft0", "-g", "0", "-p", &number, "--verify", "-e"];
    let server = root.start("server", "ibv_rc_pingpong", &words)?;
    let client = || root.start("client", "ibv_rc_pingpong", &[&words[..], &["127.0.0.1"]].concat());
    pair(server, |_| is_listening(port), client, LIMIT).map(drop)
}

fn rping(root: &Root) -> Result<()> {
    let port = free_port()?;
    let number = port.to_string();
    let start =
        |name, role| root.start(name, "rping", &["-v", "-C", "10", "-a", "127.0.0.1", "-p", &number, role]);
    let server = start("server", "-s")?;
    pair(server, |_| is_listening_by_address(port), || start("client", "-c"), LIMIT).map(drop)
}
