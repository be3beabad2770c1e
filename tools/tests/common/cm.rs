//! Programs that connect by address, each with its soft device.

use std::fs;
use std::net::Ipv4Addr;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use verbs_harness::port;

use super::{LIMIT, finish};

/// A running program, killed at the end of the test.
#[derive(Debug)]
pub struct Program {
    child: Option<Child>,
    what: String,
}

impl Program {
    /// Starts a program with soft devices on these addresses.
    pub fn start(program: &str, soft: &str, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(args).env("VERBS_SOFT", soft).env_remove("POSIXLY_CORRECT");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("the program runs");
        Self { child: Some(child), what: format!("VERBS_SOFT={soft} {program} {args:?}") }
    }

    /// Waits until the program exits. Returns its exit status, standard output and standard error.
    #[track_caller]
    pub fn end(mut self) -> (Option<i32>, String, String) {
        let child = self.child.take().expect("it runs");
        let Output { status, stdout, stderr } = finish(child, &self.what);
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (status.code(), text(stdout), text(stderr))
    }

    /// Returns whether the program has ended.
    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    /// Waits until the program listens on a port or has ended. Listeners on soft devices appear as
    /// names of Unix sockets.
    pub fn wait_for_listener(&mut self, space: u16, port: u16, address: Ipv4Addr) {
        let name = format!("@verbs-soft/cm/2/{space:x}/{port}/{address}");
        let deadline = Instant::now() + LIMIT;
        let listens = || {
            let sockets = fs::read_to_string("/proc/net/unix").expect("the table of Unix sockets");
            sockets.lines().any(|line| line.ends_with(&name))
        };
        while !listens() && !self.has_ended() {
            assert!(Instant::now() < deadline, "{} does not listen", self.what);
            // No event announces a listener.
            thread::park_timeout(Duration::from_millis(2));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // This fails if the program has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns two addresses in 127.0.0.0/8. They are derived from a free port, so no other test has
/// them.
pub fn two_addresses() -> [Ipv4Addr; 2] {
    let [high, low] = port::free().expect("a free port").to_be_bytes();
    [Ipv4Addr::new(127, 71, high, low), Ipv4Addr::new(127, 72, high, low)]
}
