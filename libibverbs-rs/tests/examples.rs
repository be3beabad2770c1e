//! Checks that the examples run as documented on soft devices.
//!
//! `cargo test` builds them; `cargo test --test examples` alone does not.
#![cfg(feature = "soft")]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// The timeout of an example.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running example and its output lines.
struct Example {
    child: Child,
    lines: Receiver<String>,
}

impl Example {
    fn start(name: &str, args: &[&str]) -> Self {
        let test = std::env::current_exe().expect("a test has a program file");
        let folder: PathBuf =
            test.ancestors().nth(2).expect("it lies in target/PROFILE/deps").join("examples");
        let program = folder.join(name);
        assert!(
            program.exists(),
            "run `cargo build -p libibverbs-rs --examples` first: {}",
            program.display()
        );
        let mut command = Command::new(program);
        command.args(args).env("VERBS_SOFT", "auto").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it can be started");
        let stdout = child.stdout.take().expect("it is piped");
        Self { child, lines: lines_of(stdout) }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("it prints a line in time")
    }

    fn say(&mut self, text: &str) {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{text}").expect("it reads");
    }

    /// Closes the example's input, checks for success and returns its remaining output lines.
    fn end(mut self) -> Vec<String> {
        drop(self.child.stdin.take());
        let mut rest = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => rest.push(line),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    self.child.kill().expect("it runs");
                    panic!("it does not end; it printed {rest:?}");
                }
            }
        }
        assert!(self.child.wait().expect("it is a child").success(), "it failed after {rest:?}");
        rest
    }
}

fn lines_of(stdout: ChildStdout) -> Receiver<String> {
    let (to_test, lines) = channel();
    thread::spawn(move || {
        BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| to_test.send(line))
    });
    lines
}

/// The examples of this package. Each is run by a test below.
const EXAMPLES: [&str; 9] = [
    "accept_threads",
    "event_loop",
    "kv",
    "list_and_open",
    "post_recv",
    "rc_loopback",
    "tokio_channel",
    "ud_chat",
    "zero_copy",
];

#[test]
fn every_example_is_run_by_a_test() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder of examples")
        .map(|entry| entry.expect("an entry").path().file_stem().expect("a name").to_owned())
        .collect();
    found.sort();
    assert_eq!(found, EXAMPLES);
    let tests = include_str!("examples.rs");
    for example in EXAMPLES {
        assert!(tests.contains(&format!("Example::start(\"{example}\"")), "no test runs {example}");
    }
}

/// Runs on the machine's first device of any kind, or on a soft device if there is none.
#[cfg(feature = "rxe")]
#[test]
fn two_connections_on_one_device_verify_messages_and_one_sided_operations() {
    let lines = Example::start("rc_loopback", &[]).end();
    let text = "1000 messages of 4096 bytes, a write, a read and an atomic verified";
    assert!(lines.len() == 1 && lines[0].ends_with(text), "{lines:?}");
}

#[test]
fn the_first_device_is_listed_and_opened() {
    assert_eq!(Example::start("list_and_open", &[]).end().len(), 1);
}

#[cfg(feature = "rxe")]
#[test]
fn receives_are_posted_to_both_kinds_of_queues() {
    assert_eq!(Example::start("post_recv", &[]).end(), ["256"]);
}

#[test]
fn the_key_value_store_finds_what_it_stored() {
    assert_eq!(Example::start("kv", &[]).end(), ["7 is seven"]);
}

#[test]
fn queue_pairs_are_accepted_while_their_completion_queue_is_polled() {
    assert_eq!(Example::start("accept_threads", &[]).end(), ["61440 bytes from 3 clients"]);
}

#[test]
fn a_mapped_file_arrives_at_both_peers() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/lib.rs");
    assert_eq!(Example::start("zero_copy", &[file]).end(), ["peer 0 has the file", "peer 1 has the file"]);
}

#[test]
fn the_event_loop_echoes_until_its_client_leaves() {
    // Before this line, the loop prints asynchronous events, such as an early message (COMM_EST).
    let lines = Example::start("event_loop", &[]).end();
    assert_eq!(lines.last().map(String::as_str), Some("the client said bye"), "{lines:?}");
}

#[test]
fn tokio_waits_for_a_completion() {
    assert_eq!(Example::start("tokio_channel", &[]).end(), ["received hello"]);
}

#[test]
fn two_programs_chat_over_datagrams() {
    let mut first = Example::start("ud_chat", &[]);
    let address = first.line();
    let mut second = Example::start("ud_chat", &[&address]);
    second.line();
    second.say("hello");
    assert_eq!(first.line(), "> hello");
    // The first program replies to the sender of the received datagram.
    first.say("hi");
    assert_eq!(second.line(), "> hi");
    assert_eq!((first.end(), second.end()), (vec![], vec![]));
}
