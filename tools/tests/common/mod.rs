//! Runs programs to their end. A test fails if its program exits too late.

// Each test program uses only a part of this module.
#![allow(dead_code, unreachable_pub)]

pub mod cm;

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A time limit that is much longer than any program here needs on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Runs a program to its end. Captures its standard output unless the command redirects it.
#[track_caller]
pub fn run(command: &mut Command) -> Output {
    let child = command.stderr(Stdio::piped()).spawn().expect("the program runs");
    finish(child, &format!("{command:?}"))
}

/// Waits until a program exits. Returns the output of its piped streams.
///
/// # Panics
/// Panics if the program does not exit within [`LIMIT`]. It is killed first.
#[track_caller]
pub fn finish(mut child: Child, what: &str) -> Output {
    let (stdout, stderr) = (read_all(child.stdout.take()), read_all(child.stderr.take()));
    let deadline = Instant::now() + LIMIT;
    let ended = loop {
        match child.try_wait().expect("the program's status") {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => break None,
            // A wait with a time limit has no event for the program's end.
            None => thread::park_timeout(Duration::from_millis(2)),
        }
    };
    if ended.is_none() {
        // This fails if the program has ended in the meantime.
        let _ = child.kill();
        let _ = child.wait();
    }
    let text = |thread: JoinHandle<Vec<u8>>| thread.join().expect("a stream of the program");
    let (stdout, stderr) = (text(stdout), text(stderr));
    match ended {
        Some(status) => Output { status, stdout, stderr },
        None => {
            let said = [stdout, stderr].concat();
            panic!("{what} did not end within {LIMIT:?}; it said: {}", String::from_utf8_lossy(&said))
        }
    }
}

/// Reads a pipe to its end on a separate thread, so that a full pipe does not block the program.
fn read_all(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).expect("a stream of the program");
        }
        bytes
    })
}
