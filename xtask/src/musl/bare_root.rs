//! The static tools in a root that holds nothing else, on soft devices: no C library, no
//! configuration, none of `/dev`, `/proc` and `/sys`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::apt::find_program;
use crate::demo::{LIMIT, Port, Program};
use crate::process::{free_port, is_listening, is_listening_by_address};

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

    fn start(&self, name: &'static str, tool: &str, arguments: &[String]) -> Result<Program> {
        let (program, mut all) = self.enter(tool)?;
        all.extend_from_slice(arguments);
        Program::start(name, &program, &all, &Port::soft())
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
        .envs(Port::soft().env)
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
    let words = ["-d", "soft0", "-g", "0", "-p", &port.to_string(), "--verify", "-e"].map(str::to_owned);
    let mut server = root.start("server", "ibv_rc_pingpong", &words)?;
    server.wait_until("listen", || is_listening(port))?;
    let client =
        root.start("client", "ibv_rc_pingpong", &[&words[..], &["127.0.0.1".to_owned()]].concat())?;
    both_end(client, server)
}

fn rping(root: &Root) -> Result<()> {
    let port = free_port()?;
    let words =
        |role: &str| ["-v", "-C", "10", "-a", "127.0.0.1", "-p", &port.to_string(), role].map(str::to_owned);
    let mut server = root.start("server", "rping", &words("-s"))?;
    server.wait_until("listen", || is_listening_by_address(port))?;
    let client = root.start("client", "rping", &words("-c"))?;
    both_end(client, server)
}

fn both_end(client: Program, server: Program) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    client.finish(deadline)?;
    server.finish(deadline)
}
