//! `cargo xtask run-c` with commands that every machine has.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output};

/// Runs a command on libraries of the profile that the tests have built already.
fn run_c(options: &[&str], command: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    xtask.args(["run-c", "--profile", "dev"]).args(options).arg("--").args(command);
    xtask.env_remove("LD_LIBRARY_PATH").env_remove("VERBS_SOFT").envs(environment.iter().copied());
    xtask.output().expect("xtask starts")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

#[test]
fn the_loader_finds_all_libraries_first() {
    let show = run_c(&[], &["sh", "-c", "echo $LD_LIBRARY_PATH"], &[("LD_LIBRARY_PATH", "/nowhere")]);
    let path = stdout(&show);
    let folder = path.strip_suffix(":/nowhere").expect("the old search path comes last");
    let names = "libibverbs.so.1 librdmacm.so.1 libmlx5.so.1 libefa.so.1";
    for name in names.split(' ') {
        assert!(Path::new(folder).join(name).is_file(), "{folder} lacks {name}");
    }
    // The loader only warns when it cannot load one of these.
    let load =
        run_c(&[], &["env", &format!("LD_PRELOAD={names}"), "LD_BIND_NOW=1", "cat", "/proc/self/maps"], &[]);
    assert_eq!(String::from_utf8_lossy(&load.stderr), "");
    let maps = stdout(&load);
    for name in names.split(' ') {
        assert!(maps.contains(&format!("{folder}/{name}")), "{name} is not loaded from {folder}:\n{maps}");
    }
}

/// Programs and libraries of Debian that need libibverbs, librdmacm, libmlx5 or libefa.
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

#[test]
fn installed_programs_find_every_symbol_in_its_node() {
    let list =
        "for file in \"$@\"; do [ -e \"$file\" ] && echo \"file $file\" && ldd -r \"$file\" 2>&1; done; :";
    // The outer shell expands the stars.
    let script = format!("sh -c '{list}' sh {}", USERS.join(" "));
    let text = stdout(&run_c(&[], &["sh", "-c", &script], &[]));
    let mut file = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("file ") {
            file = Some(name);
        }
        let file = file.unwrap_or_default();
        for name in ["libibverbs.so.1", "librdmacm.so.1"] {
            if line.contains(&format!("{name} =>")) {
                assert!(line.contains(&format!("/c-abi/dev/{name}")), "{file}: {line}");
            }
        }
        // Python's own symbols are in the program that loads a module.
        let is_verbs = ["ibv_", "rdma_", "mlx5dv_", "efadv_"].iter().any(|prefix| line.contains(prefix));
        assert!(!(line.contains("undefined symbol") && is_verbs), "{file}: {line}");
        assert!(!(line.contains("version `") && line.contains("not found")), "{file}: {line}");
    }
    if file.is_none() {
        println!("skipped: this machine has no program of libibverbs");
    }
}

#[test]
fn soft_devices_are_added_on_request_and_a_set_variable_stays() {
    let show = ["sh", "-c", "echo ${VERBS_SOFT-unset}"];
    assert_eq!(stdout(&run_c(&[], &show, &[])), "unset");
    assert_eq!(stdout(&run_c(&["--soft"], &show, &[])), "auto");
    assert_eq!(stdout(&run_c(&["--soft"], &show, &[("VERBS_SOFT", "192.0.2.1")])), "192.0.2.1");
}

/// The statuses are those of verbs-run, which its own tests cover.
#[test]
fn the_commands_end_is_the_end_of_run_c() {
    assert_eq!(run_c(&[], &["sh", "-c", "exit 7"], &[]).status.code(), Some(7));
    // The process is the command's own, so that a shell shows 128 + 9.
    assert_eq!(run_c(&[], &["sh", "-c", "kill -9 $$"], &[]).status.signal(), Some(9));
    assert_eq!(run_c(&[], &["no-such-command"], &[]).status.code(), Some(127));
    assert_eq!(run_c(&[], &[], &[]).status.code(), Some(125));
}
