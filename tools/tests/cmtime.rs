//! `cmtime`: misuse, and runs between processes that each have a soft device.

mod common;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use common::LIMIT;
use common::cm::Program;
use verbs_harness::{port, process};

const CMTIME: &str = env!("CARGO_BIN_EXE_cmtime");

/// The steps in a table, in order.
const STEPS: [&str; 17] = [
    "full connect",
    "create id",
    "bind addr",
    "resolve addr",
    "resolve route",
    "create qp",
    "init qp attr",
    "init qp",
    "rtr qp attr",
    "rtr qp",
    "rts qp attr",
    "rts qp",
    "cm connect",
    "establish",
    "disconnect",
    "destroy id",
    "destroy qp",
];

/// The exit status, standard output and standard error.
type Ended = (Option<i32>, String, String);

/// Starts a peer. All peers of a run meet at `port`.
fn start(port: &str, flags: &[&str]) -> Program {
    let args = [&["-b", "127.0.0.1", "-C", "127.0.0.1", "-p", port], flags].concat();
    Program::start(CMTIME, "auto", &args)
}

/// Runs a client and servers. Returns their results, the client's first.
fn run(flags: &[&str], servers: usize) -> Vec<Ended> {
    let port = port::free().expect("a free port").to_string();
    let serve = [flags, &["-L"]].concat();
    let servers: Vec<_> = (0..servers).map(|_| start(&port, &serve)).collect();
    let client = start(&port, flags);
    [client].into_iter().chain(servers).map(Program::end).collect()
}

/// Checks that `text` begins with a table for `count` connections. Returns the table's numbers and
/// the remaining text.
#[track_caller]
fn table<'a>(text: &'a str, kind: &str, count: u32, threads: u32) -> (Vec<[u64; 6]>, &'a str) {
    let heading = format!(
        "{kind}        {count:10}\nthreads        {threads:10}\n\
         step             avg/conn  total(us)    us/conn    sum(us)    max(us)    min(us)\n"
    );
    let mut rest = text.strip_prefix(&heading).unwrap_or_else(|| panic!("no {heading:?} in {text:?}"));
    let mut rows = Vec::new();
    for step in STEPS {
        let (line, after) = rest.split_once('\n').expect("a line");
        let numbers =
            line.strip_prefix(&format!("{step:<13}  ")).unwrap_or_else(|| panic!("{step}: {line:?}"));
        let numbers: Vec<u64> =
            numbers.split_whitespace().map(|number| number.parse().expect(line)).collect();
        rows.push(numbers.try_into().expect("six columns"));
        rest = after;
    }
    (rows, rest)
}

/// Checks that `text` begins with `lines` and returns the rest of the text. Ignores a line that
/// only the root prints.
#[track_caller]
fn after<'a>(text: &'a str, lines: &str) -> &'a str {
    let text = text.strip_prefix("Running as OOB root\n").unwrap_or(text);
    text.strip_prefix(lines).unwrap_or_else(|| panic!("no {lines:?} in {text:?}"))
}

const CONNECTING: &str = "\tCreating IDs\n\tBinding addresses\n\tResolving addresses\n\tResolving routes\n\
                          \tCreating QPs\n\tModify QPs to INIT\n\tConnecting\n\tDisconnecting\n\tDestroying QPs\n\
                          \tDestroying IDs\n";
const ACCEPTING: &str = "\tAccepting\n\tDisconnecting\n";

/// Returns the text of the first phase, which creates the objects of queue pairs.
fn warming(phase: &str) -> String {
    let made = "\tAllocating verbs resources\n";
    phase
        .replace("\tCreating QPs\n", &format!("\tCreating QPs\n{made}"))
        .replace("\tAccepting\n", &format!("\tAccepting\n{made}"))
}

#[test]
fn each_step_of_each_connection_has_a_time() {
    for (flags, count, threads) in [(&["-c", "20"][..], 20, 1), (&["-c", "50", "-n", "4"], 50, 4)] {
        let [client, server] = &run(flags, 1)[..] else { panic!("two ends") };
        for (side, verb, phase, ended) in
            [("Client", "Connect", CONNECTING, client), ("Server", "Accept", ACCEPTING, server)]
        {
            let (status, said, complaints) = ended;
            assert_eq!((status, &**complaints), (&Some(0), ""), "{said}");
            let start = format!("{side} warmup\n{}{verb} ({count}) QPs test\n{phase}", warming(phase));
            let (rows, rest) = table(after(said, &start), "qp_conn", count, threads);
            for (step, [.., sum, max, min]) in STEPS.iter().zip(&rows) {
                assert!(min <= max && (max <= sum || *step == "full connect"), "{side} {step}: {rows:?}");
                // These steps include system calls or messages, so they take time.
                if matches!(*step, "create qp" | "rtr qp" | "rts qp") {
                    assert!(*sum > 0, "{side} {step}: {rows:?}");
                }
            }
            let start = format!("{verb} ({count}) test - no QPs\n{phase}");
            let (_, rest) = table(after(rest, &start), "cm_conn", count, threads);
            assert_eq!(rest, "");
        }
    }
}

#[test]
fn a_pause_takes_the_place_of_the_steps_of_a_queue_pair() {
    let ended = run(&["-c", "5", "-m", "2000", "-q", "77"], 1);
    for (status, said, complaints) in &ended {
        assert_eq!((status, &**complaints), (&Some(0), ""), "{said}");
        assert!(said.contains("(5) simulated QPs test (delay 2000 us)\n"), "{said}");
    }
    let (_, client, _) = &ended[0];
    let at = client.find("cm_conn").expect("a table");
    let (rows, _) = table(&client[at..], "cm_conn", 5, 1);
    let create_qp = rows[STEPS.iter().position(|step| *step == "create qp").expect("the step")];
    assert!(create_qp[5] >= 2000, "{create_qp:?}");
}

#[test]
fn a_client_connects_to_each_server() {
    let ended = run(&["-c", "5", "-P", "3"], 2);
    for ((status, said, complaints), (count, verb)) in
        ended.iter().zip([(10, "Connect"), (5, "Accept"), (5, "Accept")])
    {
        assert_eq!((status, &**complaints), (&Some(0), ""), "{said}");
        assert!(said.contains(&format!("{verb} ({count}) QPs test\n")), "{said}");
        // With more than two peers, the run without queue pairs is omitted.
        assert!(!said.contains("no QPs"), "{said}");
    }
}

#[test]
fn sockets_have_a_table_of_their_own() {
    for (flags, threads) in [(&["-S", "x", "-c", "30"][..], 1), (&["-S", "x", "-c", "30", "-n", "3"], 3)] {
        for ((status, said, complaints), (side, lines)) in run(flags, 1).iter().zip([
            ("Client", "Creating sockets\nConnecting sockets\nClosing sockets\n"),
            ("Server", "Accept sockets\nClosing sockets\n"),
        ]) {
            assert_eq!((status, &**complaints), (&Some(0), ""), "{said}");
            let start = format!("{side} baseline socket setup\n{lines}{side} baseline socket results:\n");
            let (_, rest) = table(after(said, &start), "cm_conn", 30, threads);
            assert_eq!(rest, "");
        }
    }
}

#[test]
fn peers_of_one_side_alone_end_at_once() {
    let port = port::free().expect("a free port").to_string();
    for (role, line) in [(&["-L"][..], "cannot have all listeners\n"), (&[], "need at least 1 listener\n")] {
        let peers = [start(&port, role), start(&port, role)];
        for (status, said, complaints) in peers.map(Program::end) {
            assert_eq!((status, after(&said, ""), &*complaints), (Some(1), line, ""));
        }
    }
}

/// Connects a peer that only sends its address and then closes the connection.
#[test]
fn a_peer_that_ends_is_an_error() {
    let port = port::free().expect("a free port");
    let client = start(&port.to_string(), &[]);
    assert!(process::wait_for_listener(port, LIMIT, || true), "it does not listen");
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let mut listener = [0; 136];
    listener[128..132].copy_from_slice(&1_u32.to_ne_bytes());
    stream.write_all(&listener).expect("the client reads");
    drop(stream);
    let (status, _, complaints) = client.end();
    assert_eq!(status, Some(1));
    assert!(complaints.contains("the control connection: "), "{complaints}");
}

#[test]
fn an_address_at_which_no_peer_answers_is_an_error() {
    // The address is in use, but not by a peer.
    let taken = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let port = taken.local_addr().expect("its address").port();
    let client = start(&port.to_string(), &[]);
    let (stream, _) = taken.accept().expect("the client");
    drop(stream);
    let (status, _, complaints) = client.end();
    assert_eq!(status, Some(1));
    assert!(complaints.contains("the control connection: "), "{complaints}");
}

#[test]
fn misuse_is_answered_with_gnus_complaint_and_the_usage() {
    let usage = include_str!("recorded/cmtime-usage.txt").replace("cmtime", "prog");
    for (args, complaint) in [
        (&["-h"][..], "prog: invalid option -- 'h'\n"),
        (&["-C", "127.0.0.1"], ""),
        (&["-C", "127.0.0.1", "-b", "127.0.0.1", "-P", "1"], ""),
        (&["-S"], "prog: option requires an argument -- 'S'\n"),
    ] {
        let mut command = Command::new(CMTIME);
        command.arg0("prog").args(args).env_remove("POSIXLY_CORRECT").env_remove("VERBS_SOFT");
        let output = common::run(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), usage, "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), complaint, "{args:?}");
    }
}
