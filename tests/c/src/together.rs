//! Makes two programs disconnect together.
//!
//! rxe completes a receive before it acknowledges the message. It drops the acknowledgement if the
//! queue pair has left RTS by then (`do_complete`). A program that disconnects on the last
//! completion may therefore leave its peer with a send that never completes. rxe repeats the send
//! forever, or the peer receives the disconnection first and waits or crashes, with either library.
//! A preloaded library keeps each program from disconnecting before the other one is ready to
//! disconnect.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use verbs_harness::runner::CaseResult;

use crate::compiled::{Program, compiled};

/// The preloaded library.
pub const LIBRARY: Program = Program {
    name: "together.so",
    source: include_str!("../together/together.c"),
    options: &["-shared", "-fPIC", "-ldl"],
};

/// Makes the programs of two commands disconnect together, as long as the pipe exists.
///
/// # Errors
/// Fails if the library cannot be compiled. Skips the case if the compiler is missing.
pub fn together(ends: [&mut Command; 2]) -> CaseResult<Pipe> {
    let library = compiled(&LIBRARY)?;
    let pipe = Pipe(std::env::temp_dir().join(format!("together-{}", std::process::id())));
    // A killed process with the same id may have left this pipe behind.
    let _ = fs::remove_file(&pipe.0);
    mkfifo(&pipe.0, Mode::S_IRUSR | Mode::S_IWUSR)?;
    for (end, how) in ends.into_iter().zip(["r", "w"]) {
        end.env("LD_PRELOAD", &library).env("TOGETHER", format!("{}:{how}", pipe.0.display()));
    }
    Ok(pipe)
}

/// The named pipe that synchronises two programs.
#[derive(Debug)]
pub struct Pipe(PathBuf);

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
