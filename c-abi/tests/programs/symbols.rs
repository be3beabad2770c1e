//! The loader and the symbols that installed programs need.

use std::process::Command;
use std::time::Duration;

use verbs_harness::cases;
use verbs_harness::process;
use verbs_harness::runner::{Case, CaseResult, Stop, fail, skip};

use crate::library;

const SUITE: &str = "symbols";
const LIMIT: Duration = Duration::from_secs(60);

/// Debian's programs and libraries that need libibverbs, librdmacm, libmlx5 or libefa.
const USERS: &[&str] = &[
    "/usr/bin/ibv_devinfo",
    "/usr/bin/ibv_rc_pingpong",
    "/usr/bin/ib_write_bw",
    "/usr/bin/ib_atomic_lat",
    "/usr/bin/rping",
    "/usr/bin/fi_pingpong",
    "/usr/bin/ucx_perftest",
    "/usr/lib/*/librdmacm.so.1",
    "/usr/lib/*/libfabric.so.1",
    "/usr/lib/*/ucx/libuct_ib.so.0",
    "/usr/lib/*/ucx/libuct_rdmacm.so.0",
    "/usr/lib/python3/dist-packages/pyverbs/*.so",
    "/usr/lib/python3/dist-packages/pyverbs/providers/*/*.so",
];

/// Returns the cases of the suite.
pub(crate) fn cases() -> Vec<Case> {
    cases![SUITE, the_loader_takes_all_libraries, installed_programs_find_every_symbol_in_its_node]
}

fn the_loader_takes_all_libraries() -> CaseResult {
    let names = "libibverbs.so.1 librdmacm.so.1 libmlx5.so.1 libefa.so.1";
    // The loader only warns if it cannot load one of these.
    let mut load = Command::new("env");
    load.args([&format!("LD_PRELOAD={names}"), "LD_BIND_NOW=1", "cat", "/proc/self/maps"]);
    let (maps, warnings) = output(load)?;
    if !warnings.is_empty() {
        return fail(warnings);
    }
    let folder = library::directory()?;
    for name in names.split(' ') {
        let path = folder.join(name);
        if !maps.contains(&path.display().to_string()) {
            return fail(format_args!("{} is not loaded:\n{maps}", path.display()));
        }
    }
    Ok(())
}

fn installed_programs_find_every_symbol_in_its_node() -> CaseResult {
    const LIST: &str =
        "for file do [ -e \"$file\" ] && echo \"file $file\" && ldd -r \"$file\" 2>&1; done; :";
    let mut shell = Command::new("sh");
    // The outer shell expands the wildcards.
    shell.args(["-c", &format!("sh -c '{LIST}' sh {}", USERS.join(" "))]);
    let (text, _) = output(shell)?;
    let folder = library::directory()?;
    let mut file = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("file ") {
            file = Some(name);
        }
        let is_elsewhere = |name: &str| {
            line.contains(&format!("{name} =>")) && !line.contains(&folder.join(name).display().to_string())
        };
        // A Python module gets Python's own symbols from the program that loads it.
        let is_verbs = ["ibv_", "rdma_", "mlx5dv_", "efadv_"].iter().any(|prefix| line.contains(prefix));
        let is_undefined = line.contains("undefined symbol") && is_verbs;
        let lacks_node = line.contains("version `") && line.contains("not found");
        if ["libibverbs.so.1", "librdmacm.so.1"].into_iter().any(is_elsewhere) || is_undefined || lacks_node {
            return fail(format_args!("{}: {line}", file.unwrap_or_default()));
        }
    }
    if file.is_some() { Ok(()) } else { skip("this machine has no program of libibverbs") }
}

/// Runs a command with the libraries and returns its output and its warnings.
fn output(mut command: Command) -> CaseResult<(String, String)> {
    library::prepare(&mut command)?;
    match process::run(&mut command, LIMIT)? {
        Ok(ended) if ended.status.success() => Ok((ended.stdout, ended.stderr)),
        ended => Err(Stop::Failed(format!("{ended:?}"))),
    }
}
