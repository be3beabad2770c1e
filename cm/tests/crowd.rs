//! Many simultaneous clients on a busy machine, with the default time limits of a connector.
//!
//! This is a separate test program, because these time limits are too short under a sanitizer.
#![allow(missing_docs)]

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::thread;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rdmacm::{CmId, ConnParam, Connector, Listener, ListenerInit};
use verbs::state::Init;
use verbs::{Cq, CqInit, Pd, Qp, QpInit, QpType, Result};

/// The number of clients that connect simultaneously.
const CLIENTS: usize = 500;

/// The environment variable that selects the part that a process runs: `serves` or `busy`.
const PART: &str = "RDMACM_CROWD_PART";

#[test]
fn five_hundred_clients_at_once_beside_busy_processes_connect_with_the_defaults() {
    // The device is created before the threads start and before a listener creates the server's
    // device.
    let _device = verbs::soft::auto().unwrap();
    let _busy = [(); 4].map(|()| Process::start("busy"));
    let mut server = Process::start("serves");
    connect((Ipv4Addr::LOCALHOST, server.first.parse().unwrap()).into());
    drop(server.child.stdin.take());
    assert!(server.child.wait().unwrap().success());
}

/// Runs a part, in a process started by the real test. Not a test itself.
#[test]
fn a_part() {
    match std::env::var(PART).as_deref() {
        Ok("serves") => serve(),
        Ok("busy") => busy(),
        _ => {}
    }
}

/// A process that runs one part. It is killed when the test ends.
struct Process {
    child: Child,
    _output: BufReader<ChildStdout>,
    /// The rest of the first output line.
    first: String,
}

impl Process {
    fn start(part: &str) -> Self {
        let mut command = Command::new("/proc/self/exe");
        command.args(["--exact", "a_part", "--nocapture"]).env(PART, part);
        command.env("VERBS_SOFT", "auto").env_remove("VERBS_SOFT_STRICT_PORTS");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program starts again");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        let first = loop {
            line.clear();
            assert_ne!(output.read_line(&mut line).expect("its output"), 0, "{part} has ended");
            if let Some((_, first)) = line.split_once("begins ") {
                break first.trim().to_owned();
            }
        };
        Self { child, _output: output, first }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Keeps a processor busy until the parent exits.
fn busy() {
    println!("\nbegins ");
    thread::spawn(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    loop {
        std::hint::spin_loop();
    }
}

/// Raises the limit on open files for many connections.
fn raise_files() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
}

/// Creates the objects of one end. A completion queue without a channel needs no file.
fn end(id: &CmId) -> Result<(Qp<Init>, (Pd, Cq))> {
    let context = id.context()?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(16))?);
    Ok((id.create_qp(&pd, &QpInit::new(QpType::RC, &cq))?, (pd, cq)))
}

/// Accepts connections until standard input is closed.
fn serve() {
    raise_files();
    let any = (Ipv4Addr::UNSPECIFIED, 0);
    let listener = Listener::bind_with(any, &ListenerInit::default(), |request| {
        let (qp, objects) = end(&request.id)?;
        request.id.accept(qp, &ConnParam::default())?;
        Ok(Some(objects))
    })
    .unwrap();
    println!("\nbegins {}", listener.local_addr().port());
    thread::scope(|scope| {
        let accepts = scope.spawn(|| {
            let mut accepted = Vec::new();
            while let Ok(connection) = listener.accept() {
                accepted.push(Box::new(connection));
            }
            accepted.len()
        });
        let _ = std::io::stdin().read_line(&mut String::new());
        listener.close();
        assert!(accepts.join().unwrap() >= CLIENTS);
    });
}

/// Connects all clients simultaneously.
fn connect(to: SocketAddr) {
    raise_files();
    let start = Barrier::new(CLIENTS);
    let client = || {
        start.wait();
        let connected = Connector::default().connect_with(to, end);
        connected.map(Box::new).map_err(|error| error.to_string())
    };
    // The connections stay until all clients have finished.
    let ended: Vec<_> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let failed: Vec<_> = ended.into_iter().filter_map(core::result::Result::err).collect();
    assert!(failed.is_empty(), "{} failed, the first one: {}", failed.len(), failed[0]);
}
