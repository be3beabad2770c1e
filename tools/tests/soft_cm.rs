//! The programs that connect by address, on soft devices. Two processes, each with its device, find
//! each other through a localhost port.

mod common;

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use verbs_harness::port;

const RPING: &str = env!("CARGO_BIN_EXE_rping");
const SERVER: &str = env!("CARGO_BIN_EXE_rdma_server");
const CLIENT: &str = env!("CARGO_BIN_EXE_rdma_client");
const XSERVER: &str = env!("CARGO_BIN_EXE_rdma_xserver");
const XCLIENT: &str = env!("CARGO_BIN_EXE_rdma_xclient");

/// The number of the TCP port space, for reliable connections.
const TCP: &str = "106";

/// The number of the IB port space, for InfiniBand services.
const IB: &str = "13f";

fn command(program: &str, soft: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).env("VERBS_SOFT", soft).env_remove("VERBS_SOFT_STRICT_PORTS");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The exit status, standard output and standard error.
type Told = (Option<i32>, String, String);

fn told(output: Output) -> Told {
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn run(program: &str, args: &[&str]) -> Told {
    told(common::run(&mut command(program, "auto", args)))
}

/// A program, which is killed if the test fails.
struct Process(Option<Child>);

impl Process {
    fn start(program: &str, soft: &str, args: &[&str]) -> Self {
        Self(Some(command(program, soft, args).spawn().expect("the program starts")))
    }

    /// Starts a server and waits until it listens on a port in a port space.
    fn serve(program: &str, args: &[&str], space: &str, port: &str) -> Self {
        let mut server = Self::start(program, "auto", args);
        // Clients look for this name.
        let name = format!("@verbs-soft/cm/2/{space}/{port}/");
        let deadline = Instant::now() + common::LIMIT;
        loop {
            // The names of other programs may contain any bytes.
            let names = fs::read("/proc/net/unix").expect("the names of this machine");
            if String::from_utf8_lossy(&names).contains(&name) {
                return server;
            }
            let child = server.0.as_mut().expect("it is waited for once");
            let ended = child.try_wait().expect("its status").is_some();
            assert!(!ended && Instant::now() < deadline, "{program} {args:?} does not listen");
            // No event announces the name.
            thread::park_timeout(Duration::from_millis(2));
        }
    }

    fn end(mut self) -> Told {
        told(common::finish(self.0.take().expect("it is waited for once"), "the program"))
    }

    fn kill(mut self) -> Told {
        let mut child = self.0.take().expect("it is waited for once");
        child.kill().expect("it runs");
        told(common::finish(child, "the program"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // This fails if the program has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free_port() -> String {
    port::free().expect("a port").to_string()
}

/// Returns an address of this machine that no other test uses.
fn address_for(port: &str) -> String {
    let number: u16 = port.parse().expect("a number");
    format!("127.{}.{}.91", 128 + (number >> 8) / 2, number & 0xff)
}

/// Runs both ends of `rping` and returns the results of server and client.
fn rping(serve: &[&str], connect: &[&str]) -> [Told; 2] {
    let port = free_port();
    let server = Process::serve(RPING, &[&["-s", "-p", &port], serve].concat(), TCP, &port);
    let client = run(RPING, &[&["-c", "-a", "127.0.0.1", "-p", &port], connect].concat());
    [server.end(), client]
}

/// The end of a connection, as reported by both sides.
const SERVER_ENDS: &str = "server DISCONNECT EVENT...\nwait for RDMA_READ_ADV state 10\n";
const CLIENT_ENDS: &str = "client DISCONNECT EVENT...\n";

#[test]
fn pings_go_around_in_silence_unless_they_are_to_be_shown() {
    for flags in
        [&["-C", "20"][..], &["-C", "20", "-V"], &["-C", "20", "-q"], &["-C", "3", "-S", "65535", "-V"]]
    {
        let [server, client] = rping(flags, flags);
        assert_eq!(server, (Some(0), String::new(), SERVER_ENDS.into()), "{flags:?}");
        assert_eq!(client, (Some(0), String::new(), CLIENT_ENDS.into()), "{flags:?}");
    }
}

#[test]
fn both_sides_show_the_data_of_each_ping() {
    let [server, client] = rping(&["-v", "-S", "23"], &["-v", "-V", "-S", "23", "-C", "3"]);
    let lines = |what: &str| {
        let letters = ["ABCDEFGHI", "BCDEFGHIJ", "CDEFGHIJK"];
        let line = |(number, letters): (usize, &str)| format!("{what}: rdma-ping-{number}: {letters}\n");
        letters.into_iter().enumerate().map(line).collect::<String>()
    };
    assert_eq!(server, (Some(0), lines("server ping data"), SERVER_ENDS.into()));
    assert_eq!(client, (Some(0), lines("ping data"), CLIENT_ENDS.into()));
}

#[test]
fn one_side_may_move_its_queue_pair_itself() {
    for (serve, connect) in [(&["-q"][..], &["-C", "5", "-V"][..]), (&[], &["-q", "-C", "5", "-V"])] {
        let [server, client] = rping(serve, connect);
        assert_eq!((server.0, &*server.2), (Some(0), SERVER_ENDS), "{serve:?}");
        assert_eq!((client.0, &*client.2), (Some(0), CLIENT_ENDS), "{connect:?}");
    }
}

#[test]
fn debug_shows_the_steps_of_a_ping_in_their_order() {
    let [server, client] = rping(&["-d"], &["-d", "-C", "1"]);
    let in_order = |text: &str, steps: &[&str]| {
        let mut rest = text;
        for step in steps {
            let Some((_, after)) = rest.split_once(step) else {
                panic!("no {step:?} in {rest:?} of {text:?}")
            };
            rest = after;
        }
    };
    in_order(
        &server.1,
        &[
            "created cm_id 0x",
            "rdma_bind_addr successful\nrdma_listen\n",
            "cma_event type RDMA_CM_EVENT_CONNECT_REQUEST cma_id 0x",
            " (child)\nchild cma 0x",
            "created pd 0x",
            "created channel 0x",
            "created cq 0x",
            "created qp 0x",
            "rping_setup_buffers called on cb 0x",
            "allocated & registered buffers...\ncq_thread started.\n",
            "accepting client connection request\n",
            "recv completion\nReceived rkey ",
            "server received sink adv\nserver posted rdma read req \n",
            "rdma read completion\nserver received read complete\n",
            "server posted go ahead\n",
            "server received sink adv\nrdma write from lkey ",
            "rdma write completion\nserver rdma write complete \nserver posted go ahead\n",
            "cma_event type RDMA_CM_EVENT_DISCONNECTED cma_id 0x",
            "rping_free_buffers called on cb 0x",
            "destroy cm_id 0x",
        ],
    );
    in_order(
        &client.1,
        &[
            "created cm_id 0x",
            "cma_event type RDMA_CM_EVENT_ADDR_RESOLVED cma_id 0x",
            " (parent)\ncma_event type RDMA_CM_EVENT_ROUTE_RESOLVED cma_id 0x",
            "rdma_resolve_addr - rdma_resolve_route successful\ncreated pd 0x",
            "cma_event type RDMA_CM_EVENT_ESTABLISHED cma_id 0x",
            "ESTABLISHED\nrdma_connect successful\nRDMA addr ",
            "recv completion\nRDMA addr ",
            "recv completion\n",
            "cma_event type RDMA_CM_EVENT_DISCONNECTED cma_id 0x",
            "rping_free_buffers called on cb 0x",
            "destroy cm_id 0x",
        ],
    );
    // Each id has a single name.
    let created = client.1.split_once("created cm_id ").and_then(|(_, rest)| rest.lines().next());
    let id = created.expect("an id is created");
    assert_eq!(client.1.matches(&format!("cma_id {id} (parent)")).count(), 4, "{}", client.1);
    assert!(client.1.ends_with(&format!("destroy cm_id {id}\n")), "{}", client.1);
}

#[test]
fn a_client_connects_from_the_address_that_it_is_told() {
    let port = free_port();
    let address = address_for(&port);
    let server = Process::serve(RPING, &["-s", "-p", &port], TCP, &port);
    let args = ["-c", "-a", "127.0.0.1", "-I", &address, "-p", &port, "-C", "2", "-V"];
    let client = Process::start(RPING, &address, &args).end();
    assert_eq!((client.0, &*client.2), (Some(0), CLIENT_ENDS));
    assert_eq!(server.end().0, Some(0));
    // An address that belongs to no device of the process.
    let (status, _, complaints) = run(RPING, &["-c", "-a", "127.0.0.1", "-I", "127.91.0.77", "-p", &port]);
    assert_eq!(status, Some(255), "{complaints}");
}

#[test]
fn a_persistent_server_serves_clients_at_the_same_time_and_one_after_the_other() {
    let port = free_port();
    let server = Process::serve(RPING, &["-s", "-P", "-p", &port], TCP, &port);
    let args = ["-c", "-a", "127.0.0.1", "-p", &port, "-C", "50", "-V"];
    for _ in 0..2 {
        let clients: Vec<_> = (0..3).map(|_| Process::start(RPING, "auto", &args)).collect();
        for client in clients {
            assert_eq!(client.end(), (Some(0), String::new(), CLIENT_ENDS.into()));
        }
    }
    // A client with more data than the server accepts ends only its own connection.
    let larger = run(RPING, &[&args[..], &["-S", "100"]].concat());
    assert_eq!(larger.0, Some(0), "{larger:?}");
    assert_eq!(run(RPING, &args).0, Some(0));
    let (status, _, complaints) = server.kill();
    assert_eq!(status, None);
    assert!(complaints.contains("this side has room for 64"), "{complaints}");
}

#[test]
fn a_size_that_the_server_has_no_room_for_ends_both_sides_as_in_c() {
    let [server, client] = rping(&["-S", "64"], &["-S", "65", "-C", "1"]);
    let (status, _, complaints) = server;
    assert_eq!(status, Some(255), "{complaints}");
    let lines: Vec<_> = complaints.lines().collect();
    let [first, reason, rest @ ..] = &lines[..] else { panic!("{complaints}") };
    assert_eq!(*first, "cq completion failed status 4");
    assert!(reason.contains("the client announces 65 bytes, and this side has room for 64"), "{reason}");
    let last = "server DISCONNECT EVENT...";
    assert_eq!(rest, ["wait for RDMA_READ_COMPLETE state 11", "rping server failed: -1", last]);
    // As in C, the connection's end is not an error for the client.
    let ends = format!("{CLIENT_ENDS}wait for RDMA_WRITE_ADV state 10\n");
    assert_eq!(client, (Some(0), String::new(), ends));
}

#[test]
fn a_port_without_a_server_is_said_with_the_event_and_its_reason() {
    let port = free_port();
    // The client's own device, where no program listens.
    let address = address_for(&port);
    let args = ["-c", "-a", &address, "-p", &port];
    let (status, out, complaints) = Process::start(RPING, &address, &args).end();
    assert_eq!((status, &*out), (Some(255), ""), "{complaints}");
    assert!(complaints.starts_with("cma event RDMA_CM_EVENT_REJECTED, error 8\n"), "{complaints}");
    assert!(complaints.contains("no program listens"), "{complaints}");
    let (status, out, complaints) = Process::start(CLIENT, &address, &["-s", &address, "-p", &port]).end();
    assert_eq!((status, &*out), (Some(255), "rdma_client: start\nrdma_client: end -1\n"), "{complaints}");
    assert!(complaints.starts_with("rdma_connect: Connection refused\n"), "{complaints}");
}

#[test]
fn a_port_that_is_taken_is_said_as_perror_says_it() {
    let text = if cfg!(target_env = "musl") { "Address in use\n" } else { "Address already in use\n" };
    let port = free_port();
    let first = Process::serve(RPING, &["-s", "-p", &port], TCP, &port);
    let (status, _, complaints) = run(RPING, &["-s", "-p", &port]);
    assert_eq!(status, Some(255));
    assert!(complaints.contains(text), "{complaints}");
    let (status, out, complaints) = run(SERVER, &["-p", &port]);
    assert_eq!((status, &*out), (Some(255), "rdma_server: start\nrdma_server: end -1\n"));
    assert!(complaints.contains(text), "{complaints}");
    drop(first);
}

#[test]
fn a_message_goes_to_rdma_server_and_back() {
    let port = free_port();
    let server = Process::serve(SERVER, &["-p", &port], TCP, &port);
    let client = run(CLIENT, &["-p", &port]);
    assert_eq!(client, (Some(0), "rdma_client: start\nrdma_client: end 0\n".into(), String::new()));
    assert_eq!(server.end(), (Some(0), "rdma_server: start\nrdma_server: end 0\n".into(), String::new()));
}

#[test]
fn a_message_goes_to_rdma_xserver_over_rc_and_over_xrc() {
    for (kind, space) in [("r", TCP), ("x", IB)] {
        let port = free_port();
        let server = Process::serve(XSERVER, &["-p", &port, "-c", kind], space, &port);
        let client = run(XCLIENT, &["-p", &port, "-c", kind]);
        let ended = |program: &str| format!("{program}: start\n{program}: end 0\n");
        assert_eq!(client, (Some(0), ended(XCLIENT), String::new()), "{kind}");
        assert_eq!(server.end(), (Some(0), ended(XSERVER), String::new()), "{kind}");
    }
}

#[test]
fn a_host_that_is_not_known_is_said_in_the_words_of_getaddrinfo() {
    let (status, out, complaints) = run(CLIENT, &["-s", "fe80::1%nosuch"]);
    assert_eq!(status, Some(254));
    let words = "rdma_client: start\nrdma_getaddrinfo: Name or service not known\nrdma_client: end -2\n";
    assert_eq!(out, words);
    assert!(complaints.contains("fe80::1%nosuch"), "{complaints}");
    let (status, out, _) = run(XCLIENT, &["-p", "nosuch"]);
    assert_eq!(status, Some(248));
    assert!(out.contains("rdma_getaddrinfo: Servname not supported for ai_socktype\n"), "{out}");
}
