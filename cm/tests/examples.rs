//! Runs each example in a separate process with a soft device and checks its output.
//!
//! `cargo test` builds the examples; `cargo test --test examples` alone does not.
#![allow(missing_docs)]

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// The time limit after which an example is considered hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running example and its output lines. It is killed when the test ends.
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
        assert!(program.exists(), "run `cargo build -p rdma-cm --examples` first: {}", program.display());
        let mut command = Command::new(program);
        command.args(args).env("VERBS_SOFT", "auto").env_remove("VERBS_SOFT_STRICT_PORTS");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it can be started");
        let (to_test, lines) = channel();
        forward(child.stdout.take().expect("it is piped"), to_test.clone());
        forward(child.stderr.take().expect("it is piped"), to_test);
        Self { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("it prints a line in time")
    }

    /// Waits until the example exits. Returns whether it succeeded.
    fn succeeds(mut self) -> bool {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => println!("{line}"),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end"),
            }
        }
        self.child.wait().expect("it is a child").success()
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Forwards the example's output lines to the test.
fn forward(output: impl Read + Send + 'static, to_test: Sender<String>) {
    thread::spawn(move || {
        BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| to_test.send(line))
    });
}

/// Starts a server. Returns it with its address for clients on this machine.
fn server() -> (Example, String) {
    let server = Example::start("server", &["0.0.0.0:0"]);
    let line = server.line();
    let port = line.strip_prefix("listening on 0.0.0.0:").unwrap_or_else(|| panic!("{line}"));
    let address = format!("127.0.0.1:{port}");
    (server, address)
}

#[test]
fn the_server_returns_the_messages_of_its_clients() {
    let (_server, address) = server();
    let clients =
        ["hello", "a second client"].map(|text| (Example::start("client", &[&address, text]), text));
    for (client, text) in clients {
        assert_eq!(client.line(), text);
        assert!(client.succeeds(), "{text}");
    }
}

#[test]
fn a_client_without_a_server_says_so() {
    // The port is free again by the time the client connects.
    let (server, address) = server();
    drop(server);
    let client = Example::start("client", &[&address, "hello"]);
    let line = client.line();
    assert!(line.contains("connect: 127.0.0.1:") && line.contains("no program listens"), "{line}");
    assert!(!client.succeeds());
}
