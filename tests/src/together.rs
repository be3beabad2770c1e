//! Two programs that disconnect together.
//!
//! rxe tells a program of a message before it acknowledges it, and drops the acknowledgement if the
//! queue pair has left RTS by then (`do_complete`). A program that disconnects as soon as it has
//! what it waits for may so leave its peer with a send that never completes: rxe repeats it for
//! ever, or the program hears of the disconnection first, and waits or crashes, on either library.
//! A library that both preload keeps each from disconnecting before the other does.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::compiled::{Program, compiled};
use crate::runner::CaseResult;

/// The library.
pub const LIBRARY: Program = Program {
    name: "together.so",
    source: include_str!("../together/together.c"),
    options: &["-shared", "-fPIC", "-ldl"],
};

/// Lets the programs that two commands start disconnect together, as long as the pipe is there.
///
/// # Errors
/// The library cannot be compiled: a skip, if there is no compiler.
pub(crate) fn together(ends: [&mut Command; 2]) -> CaseResult<Pipe> {
    let library = compiled(&LIBRARY)?;
    let pipe = Pipe(std::env::temp_dir().join(format!("together-{}", std::process::id())));
    // Of a process with this number that was killed.
    let _ = fs::remove_file(&pipe.0);
    mkfifo(&pipe.0, Mode::S_IRUSR | Mode::S_IWUSR)?;
    for (end, how) in ends.into_iter().zip(["r", "w"]) {
        end.env("LD_PRELOAD", &library).env("TOGETHER", format!("{}:{how}", pipe.0.display()));
    }
    Ok(pipe)
}

/// The named pipe by which two programs meet.
#[derive(Debug)]
pub(crate) struct Pipe(PathBuf);

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
