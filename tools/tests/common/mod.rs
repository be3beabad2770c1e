//! Runs programs to their end; a late end fails the test.

// Each test program uses a part of this module.
#![allow(dead_code, unreachable_pub)]

pub mod cm;

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A limit far beyond the time of any program here on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Runs a program to its end. Captures its standard output, unless the command redirects it.
#[track_caller]
pub fn run(command: &mut Command) -> Output {
    let child = command.stderr(Stdio::piped()).spawn().expect("the program runs");
    finish(child, &format!("{command:?}"))
}

/// Waits for the end of a program and returns its output, as far as its streams are pipes.
///
/// # Panics
/// The program does not end within [`LIMIT`]; it is killed first.
#[track_caller]
pub fn finish(mut child: Child, what: &str) -> Output {
    let (stdout, stderr) = (read_all(child.stdout.take()), read_all(child.stderr.take()));
    let deadline = Instant::now() + LIMIT;
    let ended = loop {
        match child.try_wait().expect("the program's status") {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => break None,
            // No event announces its end to a wait with a limit.
            None => thread::park_timeout(Duration::from_millis(2)),
        }
    };
    if ended.is_none() {
        // Fails if the program has ended in the meantime.
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

/// Reads a pipe to its end on a thread, so that a full pipe does not block the program.
fn read_all(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).expect("a stream of the program");
        }
        bytes
    })
}
