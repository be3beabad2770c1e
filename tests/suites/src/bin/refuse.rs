//! `refuse ioctl|invoke-write|netlink [--] COMMAND...`: runs a command and rejects some of its
//! system calls.
//!
//! Exits with the command's status (128 + N for signal N), after it prints to standard error a line
//! with the number of rejected calls and write commands ([`verbs_harness::refuse::Counts`]). Exits
//! with 125 if the command could not run under the filter and with 127 if it does not exist.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode};

use verbs_harness::refuse::{self, Mode};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let mode = args.next().and_then(|mode| Mode::from_name(mode.to_str()?));
    let mut command = args.skip_while(|arg| arg == "--");
    let (Some(mode), Some(program)) = (mode, command.next()) else {
        eprintln!("usage: refuse ioctl|invoke-write|netlink [--] COMMAND...");
        return ExitCode::from(2);
    };
    let mut command_line = Command::new(&program);
    command_line.args(command);
    match refuse::run(mode, move || command_line.status()) {
        Ok((Ok(status), counts)) => {
            eprintln!("{counts}");
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
            ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
        }
        Ok((Err(error), _)) => {
            eprintln!("refuse: cannot run {}: {error}", program.display());
            ExitCode::from(127)
        }
        Err(error) => {
            eprintln!("refuse: {error}");
            ExitCode::from(125)
        }
    }
}
