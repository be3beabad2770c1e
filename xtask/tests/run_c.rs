//! `cargo xtask run-c` with commands found on every machine.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output};

/// Runs a command on the libraries, built with the profile that the tests already use.
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
    for name in ["libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1", "libefa.so.1"] {
        assert!(Path::new(folder).join(name).is_file(), "{folder} lacks {name}");
    }
}

#[test]
fn soft_devices_are_added_on_request_and_a_set_variable_stays() {
    let show = ["sh", "-c", "echo ${VERBS_SOFT-unset}"];
    assert_eq!(stdout(&run_c(&[], &show, &[])), "unset");
    assert_eq!(stdout(&run_c(&["--soft"], &show, &[])), "auto");
    assert_eq!(stdout(&run_c(&["--soft"], &show, &[("VERBS_SOFT", "192.0.2.1")])), "192.0.2.1");
}

/// Checks that the exit statuses of verbs-run are passed through. Its own tests cover their values.
#[test]
fn the_commands_end_is_the_end_of_run_c() {
    assert_eq!(run_c(&[], &["sh", "-c", "exit 7"], &[]).status.code(), Some(7));
    // The process is the command's own, so a shell shows 128 + 9.
    assert_eq!(run_c(&[], &["sh", "-c", "kill -9 $$"], &[]).status.signal(), Some(9));
    assert_eq!(run_c(&[], &["no-such-command"], &[]).status.code(), Some(127));
    assert_eq!(run_c(&[], &[], &[]).status.code(), Some(125));
}
