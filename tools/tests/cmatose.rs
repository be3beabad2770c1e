//! `ucmatose`, `udaddy` and `mckey`: misuse, and runs between processes that each have a soft
//! device.

mod common;

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;

use common::cm::{Program, two_addresses};
use rdmacm::PortSpace;
use verbs_harness::port;

const UCMATOSE: &str = env!("CARGO_BIN_EXE_ucmatose");
const UDADDY: &str = env!("CARGO_BIN_EXE_udaddy");
const MCKEY: &str = env!("CARGO_BIN_EXE_mckey");

/// The output of both ends of a run. It depends on the flags only in a run without messages.
struct Said {
    server: &'static str,
    client: &'static str,
}

const UCMATOSE_SAID: Said = Said {
    server: "cmatose: starting server\ninitiating data transfers\ncompleting sends\nreceiving data transfers\n\
             data transfers complete\ncmatose: disconnecting\ndisconnected\ntest complete\nreturn status 0\n",
    client: "cmatose: starting client\ncmatose: connecting\nreceiving data transfers\nsending replies\n\
             data transfers complete\ntest complete\nreturn status 0\n",
};

const UCMATOSE_IDLE: Said = Said {
    server: "cmatose: starting server\ncmatose: disconnecting\ndisconnected\ntest complete\nreturn status 0\n",
    client: "cmatose: starting client\ncmatose: connecting\ntest complete\nreturn status 0\n",
};

const UDADDY_SAID: Said = Said {
    server: "udaddy: starting server\nreceiving data transfers\nsending replies\ndata transfers complete\n\
             test complete\nreturn status 0\n",
    client: "udaddy: starting client\nudaddy: connecting\ninitiating data transfers\nreceiving data transfers\n\
             data transfers complete\ntest complete\nreturn status 0\n",
};

/// The exit status, standard output and standard error.
type Ended = (Option<i32>, String, String);

/// Runs `ucmatose` in two processes with separate flags.
#[track_caller]
fn ucmatose(serve: &[&str], connect: &[&str]) -> [Ended; 2] {
    let port = port::free().expect("a free port");
    let [at, from] = two_addresses();
    let (port_text, at_text) = (port.to_string(), at.to_string());
    let serve = [&["-p", &port_text, "-b", &at_text], serve].concat();
    let mut server = Program::start(UCMATOSE, &at_text, &serve);
    let space = if serve.contains(&"ib") { PortSpace::IB } else { PortSpace::TCP };
    server.wait_for_listener(space.0, port, at);
    let connect = [&["-p", &port_text, "-s", &at_text], connect].concat();
    let client = Program::start(UCMATOSE, &from.to_string(), &connect).end();
    [server.end(), client]
}

/// Runs `udaddy` in two processes with the same flags.
#[track_caller]
fn udaddy(flags: &[&str]) -> [Ended; 2] {
    let [at, from] = two_addresses();
    let at_text = at.to_string();
    let mut server = Program::start(UDADDY, &at_text, &[&["-b", &*at_text], flags].concat());
    let space = if flags.contains(&"ipoib") { PortSpace::IPOIB } else { PortSpace::UDP };
    server.wait_for_listener(space.0, 7174, at);
    let client = Program::start(UDADDY, &from.to_string(), &[&["-s", &*at_text], flags].concat()).end();
    [server.end(), client]
}

#[track_caller]
fn end_well(ended: [Ended; 2], said: &Said, flags: &[&str]) {
    let [server, client] = ended;
    assert_eq!(server, (Some(0), said.server.into(), String::new()), "server {flags:?}");
    assert_eq!(client, (Some(0), said.client.into(), String::new()), "client {flags:?}");
}

#[test]
fn ucmatose_exchanges_messages_over_each_connection() {
    for flags in [
        &[][..],
        &["-c", "8"],
        &["-C", "100", "-S", "5000"],
        &["-c", "3", "-C", "1", "-S", "1"],
        &["-t", "32"],
        &["-a", "14"],
        &["-f", "ip"],
        &["-P", "ib"],
    ] {
        end_well(ucmatose(flags, flags), &UCMATOSE_SAID, flags);
    }
}

#[test]
fn ucmatose_without_messages_connects_and_disconnects() {
    for flags in [&["-C", "0"][..], &["-S", "0"], &["-C", "0", "-c", "20"]] {
        end_well(ucmatose(flags, flags), &UCMATOSE_IDLE, flags);
    }
}

#[test]
fn ucmatose_moves_its_ids_to_another_channel() {
    let flags = ["-m", "-c", "3"];
    let [server, client] = ucmatose(&flags, &flags);
    let moved = |said: &str| {
        said.replace("transfers complete\n", "transfers complete\nmigrating to new event channel\n")
    };
    assert_eq!(server, (Some(0), moved(UCMATOSE_SAID.server), String::new()));
    assert_eq!(client, (Some(0), moved(UCMATOSE_SAID.client), String::new()));
}

/// Runs `ucmatose` so that messages find no posted receive and the client permits no retries.
#[test]
fn ucmatose_ends_with_an_error_when_a_message_is_not_received() {
    let [server, client] = ucmatose(&[], &["-C", "0"]);
    let (status, said, complaints) = server;
    assert_eq!(status, Some(251), "{said}{complaints}");
    assert!(said.ends_with("completing sends\ntest complete\nreturn status -5\n"), "{said}");
    assert!(complaints.contains(": a send failed: "), "{complaints}");
    assert_eq!(client, (Some(0), UCMATOSE_IDLE.client.into(), String::new()));
}

#[test]
fn ucmatose_reports_the_reason_for_which_it_is_not_connected() {
    let [_, from] = two_addresses();
    // The client's own address, where no program listens.
    let from = from.to_string();
    let (status, said, complaints) = Program::start(UCMATOSE, &from, &["-s", &from]).end();
    let expected = "cmatose: starting client\ncmatose: connecting\ncmatose: event: RDMA_CM_EVENT_REJECTED, \
                    error: 8\ntest complete\nreturn status 8\n";
    assert_eq!((status, &*said), (Some(8), expected));
    assert!(complaints.contains("no program listens on this address and port"), "{complaints}");
}

#[test]
fn ucmatose_reports_an_address_that_it_cannot_bind_to_as_perror_does() {
    let [_, from] = two_addresses();
    let args = ["-b", "192.0.2.1", "-f", "ip"];
    let (status, said, complaints) = Program::start(UCMATOSE, &from.to_string(), &args).end();
    assert_eq!(status, Some(255));
    assert_eq!(said, "cmatose: starting server\ntest complete\nreturn status -1\n");
    assert!(complaints.starts_with("cmatose: bind address failed: "), "{complaints}");
}

#[test]
fn a_host_that_is_not_known_ends_with_the_number_of_getaddrinfo() {
    let [_, from] = two_addresses();
    for (program, name) in [(UCMATOSE, "cmatose"), (UDADDY, "udaddy")] {
        let args = ["-s", "no host", "-f", "ip"];
        let (status, said, complaints) = Program::start(program, &from.to_string(), &args).end();
        let expected = format!(
            "{name}: starting client\nrdma_getaddrinfo error: Name or service not known\ntest complete\n\
             return status -2\n"
        );
        assert_eq!((status, said), (Some(254), expected), "{complaints}");
    }
    let args = ["-m", "no host"];
    let (status, said, complaints) = Program::start(MCKEY, &from.to_string(), &args).end();
    assert_eq!(status, Some(254), "{complaints}");
    assert!(said.starts_with("mckey: starting server\ngetaddrinfo failed ("), "{said}");
    assert!(
        said.ends_with(") - invalid hostname or IP address\ntest complete\nreturn status -2\n"),
        "{said}"
    );
}

#[test]
fn udaddy_answers_the_sender_of_each_message() {
    for flags in [
        &[][..],
        &["-c", "8"],
        &["-C", "50", "-S", "1000"],
        &["-c", "3", "-C", "1", "-S", "4096"],
        &["-t", "32"],
        &["-P", "ipoib"],
    ] {
        end_well(udaddy(flags), &UDADDY_SAID, flags);
    }
}

#[test]
fn udaddy_without_messages_looks_services_up() {
    let [server, client] = udaddy(&["-C", "0", "-c", "5"]);
    let idle = |start: &str| format!("{start}test complete\nreturn status 0\n");
    assert_eq!(server, (Some(0), idle("udaddy: starting server\n"), String::new()));
    assert_eq!(client, (Some(0), idle("udaddy: starting client\nudaddy: connecting\n"), String::new()));
}

#[test]
fn udaddy_refuses_a_message_that_is_longer_than_a_packet() {
    let [_, from] = two_addresses();
    let from = from.to_string();
    // The client's own address, where no program listens. The run fails before it uses this
    // address.
    let (status, said, complaints) = Program::start(UDADDY, &from, &["-s", &from, "-S", "4097"]).end();
    let line = "udaddy: message_size 4097 is larger than active mtu 4096\n";
    let expected =
        format!("udaddy: starting client\nudaddy: connecting\n{line}test complete\nreturn status -22\n");
    assert_eq!((status, said, complaints), (Some(234), expected, String::new()));
}

/// Runs `mckey` as a receiver and as a sender in the same group.
fn mckey(group: &str, receive: &[&str], send: &[&str]) -> [Ended; 2] {
    // A program that does not know the device's address may use any localhost address.
    let of_device = |soft: &str| if soft == "auto" { "127.0.0.1".to_owned() } else { soft.to_owned() };
    let [one, other] = if receive.is_empty() {
        ["auto", "auto"].map(str::to_owned)
    } else {
        two_addresses().map(|address| address.to_string())
    };
    let start = |soft: &str, flags: &[&str]| {
        Program::start(MCKEY, soft, &[&["-m", group, "-b", &of_device(soft)], flags].concat())
    };
    let receiver = start(&one, receive);
    let sender = start(&other, &[&["-s"], send].concat());
    [receiver.end(), sender.end()]
}

#[test]
fn mckey_sends_to_the_members_of_a_group() {
    let ways = [
        ("239.71.1.1", &[][..], &[][..]),
        ("239.71.1.2", &["-C", "40", "-S", "1000"], &["-C", "40", "-S", "1000"]),
        ("239.71.1.3", &["-c", "3"], &["-o"]),
        ("239.71.1.4", &["-C", "0"], &["-C", "0"]),
    ];
    let runs = ways.map(|(group, receive, send)| thread::spawn(move || mckey(group, receive, send)));
    for ((group, receive, send), run) in ways.into_iter().zip(runs) {
        let [receiver, sender] = run.join().expect("a run");
        let joined = format!("mckey: joined dgid: ::ffff:{group} mlid 0x0 sl 0\n");
        let count = if receive.contains(&"3") { 3 } else { 1 };
        let said = |start: &str, count: usize, data: &str| {
            format!(
                "mckey: starting {start}\nmckey: joining\n{}{data}test complete\nreturn status 0\n",
                joined.repeat(count)
            )
        };
        let (received, sent) = if send.contains(&"0") {
            ("", "")
        } else {
            (
                "receiving data transfers\ndata transfers complete\n",
                "initiating data transfers\ndata transfers complete\n",
            )
        };
        assert_eq!(receiver, (Some(0), said("server", count, received), String::new()), "{receive:?}");
        assert_eq!(sender, (Some(0), said("client", 1, sent), String::new()), "{send:?}");
    }
}

#[test]
fn mckey_reports_an_address_that_is_no_group_as_c_does() {
    let [_, from] = two_addresses();
    let from = from.to_string();
    let (status, said, complaints) = Program::start(MCKEY, &from, &["-m", &from, "-b", &from]).end();
    assert_eq!(said, "mckey: starting server\nmckey: joining\ntest complete\nreturn status -1\n");
    assert_eq!(status, Some(255));
    assert!(complaints.starts_with("mckey: failure joining: Invalid argument\n"), "{complaints}");
    assert!(
        complaints.contains("\nmckey: failure leaving: Cannot assign requested address\n"),
        "{complaints}"
    );
}

#[test]
fn mckey_reports_what_the_device_does_not_have() {
    let [_, from] = two_addresses();
    let from = from.to_string();
    let args = ["-m", "239.71.1.9", "-b", &from, "-l"];
    let (status, said, complaints) = Program::start(MCKEY, &from, &args).end();
    assert_eq!(status, Some(255), "{said}{complaints}");
    assert!(complaints.starts_with("mckey: unable to create QP: "), "{complaints}");
}

#[test]
fn misuse_is_answered_with_gnus_complaint_and_the_usage() {
    for (program, name, usage) in [
        (UCMATOSE, "ucmatose", include_str!("recorded/ucmatose-usage.txt")),
        (UDADDY, "udaddy", include_str!("recorded/udaddy-usage.txt")),
        (MCKEY, "mckey", include_str!("recorded/mckey-usage.txt")),
    ] {
        for (arg, complaint) in [
            ("-h", "prog: invalid option -- 'h'\n"),
            ("--help", "prog: invalid option -- '-'\n"),
            ("-C", "prog: option requires an argument -- 'C'\n"),
        ] {
            let mut command = Command::new(program);
            command.arg0("prog").arg(arg).env_remove("POSIXLY_CORRECT").env_remove("VERBS_SOFT");
            let output = common::run(command.stdin(Stdio::null()).stdout(Stdio::piped()));
            assert_eq!(output.status.code(), Some(1), "{program} {arg}");
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                usage.replace(name, "prog"),
                "{program} {arg}"
            );
            assert_eq!(String::from_utf8_lossy(&output.stderr), complaint, "{program} {arg}");
        }
    }
}
