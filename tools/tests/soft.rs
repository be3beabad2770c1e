//! The programs with soft devices, which `VERBS_SOFT` adds to their list. The tests run on any
//! machine without privileges.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use verbs_harness::port;

const ASYNCWATCH: &str = env!("CARGO_BIN_EXE_ibv_asyncwatch");
const DEVICES: &str = env!("CARGO_BIN_EXE_ibv_devices");
const DEVINFO: &str = env!("CARGO_BIN_EXE_ibv_devinfo");
const PINGPONG: &str = env!("CARGO_BIN_EXE_ibv_rc_pingpong");
const UC_PINGPONG: &str = env!("CARGO_BIN_EXE_ibv_uc_pingpong");
const UD_PINGPONG: &str = env!("CARGO_BIN_EXE_ibv_ud_pingpong");
const SRQ_PINGPONG: &str = env!("CARGO_BIN_EXE_ibv_srq_pingpong");
const XSRQ_PINGPONG: &str = env!("CARGO_BIN_EXE_ibv_xsrq_pingpong");

fn command(program: &str, soft: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).env("VERBS_SOFT", soft).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Returns the exit status, standard output and standard error.
fn run(program: &str, soft: &str, args: &[&str]) -> (Option<i32>, String, String) {
    told(common::run(&mut command(program, soft, args)))
}

fn told(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Returns whether RDMA is loaded in this kernel. If so, its devices may also be in the list.
fn has_rdma() -> bool {
    Path::new("/sys/class/infiniband_verbs").exists()
}

/// Returns the exit status of a program that finds no device.
fn without_a_device(program: &str) -> i32 {
    match program {
        DEVICES if has_rdma() => 0,
        DEVINFO => 255,
        _ => 1,
    }
}

fn soft0(listing: &str) -> Value {
    let listing: Value = serde_json::from_str(listing).expect("JSON");
    let devices = listing["devices"].as_array().expect("a list");
    let is_it = |device: &&Value| [&device["name"], &device["hca_id"]].iter().any(|name| *name == "soft0");
    devices.iter().find(is_it).expect("soft0").clone()
}

#[test]
fn devices_lists_names_and_guids() {
    let (status, out, complaints) = run(DEVICES, "auto,auto", &[]);
    assert_eq!((status, &*complaints), (Some(0), ""));
    let row = |name: &str| {
        let row = out.lines().find_map(|line| line.trim_start().strip_prefix(name));
        let guid = row.unwrap_or_else(|| panic!("no {name} in {out}")).trim();
        assert_eq!(guid.len(), 16, "{out}");
        u64::from_str_radix(guid, 16).expect("a GUID")
    };
    let (first, second) = (row("soft0"), row("soft1"));
    assert!(first != 0 && second != 0 && first != second, "{out}");
}

#[test]
fn devices_as_json_has_no_file_for_what_is_no_file() {
    let (status, out, _) = run(DEVICES, "auto", &["--json"]);
    assert_eq!(status, Some(0));
    let device = soft0(&out);
    assert_eq!((&device["provider"], &device["char_device"]), (&"soft".into(), &Value::Null));
}

#[test]
fn nothing_is_soft_unless_somebody_asks() {
    for program in [DEVICES, DEVINFO] {
        let (_, out, _) = run(program, "", &["-v"]);
        assert!(!out.contains("soft"), "{out}");
    }
}

#[test]
fn devinfo_shows_a_port_that_is_ready() {
    let (status, out, complaints) = run(DEVINFO, "auto", &["-d", "soft0", "-v"]);
    assert_eq!((status, &*complaints), (Some(0), ""));
    for line in [
        "hca_id:\tsoft0\n",
        "\ttransport:\t\t\tInfiniBand (0)\n",
        "\tphys_port_cnt:\t\t\t1\n",
        "\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n",
        "\t\t\tmax_mtu:\t\t4096 (5)\n",
        "\t\t\tlink_layer:\t\tEthernet\n",
        "\t\t\tphys_state:\t\tLINK_UP (5)\n",
    ] {
        assert!(out.contains(line), "no {line:?} in {out}");
    }
    let gid = out.lines().find(|line| line.contains("GID[  0]:")).expect("a GID");
    let address = gid.rsplit('\t').next().and_then(|gid| gid.strip_suffix(", RoCE v2"));
    assert!(address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()), "{gid}");
    // rdma-core's program also lacks names for FLUSH_GLOBAL and ATOMIC_WRITE.
    let out = out.replace("Unknown flags: 0x14000000000\n", "");
    for wrong in ["invalid", "board_id", "Unknown flags"] {
        assert!(!out.contains(wrong), "{wrong} in {out}");
    }
}

#[test]
fn devinfo_as_json_tells_the_same() {
    let (status, out, _) = run(DEVINFO, "auto", &["-d", "soft0", "-v", "--json"]);
    assert_eq!(status, Some(0));
    let device = soft0(&out);
    assert_eq!((&device["transport"], &device["board_id"]), (&"InfiniBand".into(), &Value::Null));
    assert!(device["fw_ver"].as_str().is_some_and(|version| !version.is_empty()), "{out}");
    let port = &device["ports"][0];
    assert_eq!((&port["state"], &port["link_layer"]), (&"PORT_ACTIVE".into(), &"Ethernet".into()));
    assert!(port["active_width"].is_number() && port["active_speed"].is_number(), "{port}");
    assert_eq!(port["gids"][0]["type"], "RoCE v2");
}

/// An empty sysfs path must not lead to the working directory, although joining it with a name
/// gives that name.
#[test]
fn what_lies_in_the_working_directory_is_not_taken_for_sysfs() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("not-sysfs");
    fs::create_dir_all(directory.join("ports/1")).expect("a directory");
    fs::write(directory.join("board_id"), "TRAP\n").expect("a file");
    let mut command = command(DEVINFO, "auto", &["-d", "soft0", "-v"]);
    let (status, out, _) = told(common::run(command.current_dir(&directory)));
    assert_eq!(status, Some(0));
    assert!(!out.contains("TRAP"), "{out}");
}

#[test]
fn what_is_no_address_is_said_with_what_would_be_one() {
    for program in [DEVICES, DEVINFO, PINGPONG] {
        let (status, _, complaints) = run(program, "300.1.1.1", &[]);
        assert!(complaints.contains("soft0: VERBS_SOFT asks for \"300.1.1.1\""), "{complaints}");
        assert!(complaints.contains("auto"), "{complaints}");
        if !has_rdma() {
            assert_eq!(status, Some(without_a_device(program)), "{program}: {complaints}");
        }
    }
}

#[test]
fn an_address_of_another_machine_is_said_to_be_one() {
    for program in [DEVICES, DEVINFO, PINGPONG] {
        let (status, _, complaints) = run(program, "192.0.2.77", &[]);
        assert!(complaints.contains("soft0: 192.0.2.77 is not an address of this machine"), "{complaints}");
        if !has_rdma() {
            assert_eq!(status, Some(without_a_device(program)), "{program}: {complaints}");
        }
    }
}

#[test]
fn a_port_that_is_taken_is_said_to_be_and_the_others_are_there() {
    let taken = (1..250).find_map(|last| UdpSocket::bind((Ipv4Addr::new(127, 77, 1, last), 4791)).ok());
    let taken = taken.expect("an address with a free port");
    let address = taken.local_addr().expect("an address").ip();
    let (status, out, complaints) = run(DEVICES, &format!("auto,{address},auto"), &[]);
    assert_eq!(status, Some(0));
    assert!(out.contains("soft0") && !out.contains("soft1") && out.contains("soft2"), "{out}");
    let expected = format!("soft1: UDP port 4791 of {address} is taken");
    assert!(complaints.contains(&expected), "{complaints}");
}

/// A program, which is killed if the test fails.
struct Server(Option<Child>);

impl Server {
    fn end(&mut self) -> Output {
        common::finish(self.0.take().expect("it is waited for once"), "the server")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // This fails if the program has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs a ping-pong between two processes, each with its soft device, and checks both outputs.
fn pingpong(flags: &[&str]) {
    pingpong_of(PINGPONG, &[&["--verify"], flags].concat());
}

/// Same as [`pingpong`], but runs `program`. Uses `--verify` only if it is among the flags.
fn pingpong_of(program: &str, flags: &[&str]) {
    let [client, server] = play(program, flags);
    let addresses = |said: &str, which: &str| -> Vec<String> {
        let lines = said.lines().filter_map(|line| line.strip_prefix(which));
        // As in C, ibv_ud_pingpong prints a colon in its local address.
        lines.map(|rest| rest.trim().replace(": GID", ", GID")).collect()
    };
    for (one, other) in [(&client, &server), (&server, &client)] {
        let (local, remote) = (addresses(one, "  local address:"), addresses(other, "  remote address:"));
        assert!(!local.is_empty() && local == remote, "{one}{other}");
        assert!(one.contains(" iters in ") && !one.contains("invalid data"), "{one}");
    }
}

/// Flags for a fifth of the default number of rounds. The rings are short, so that these rounds
/// also wrap around. If other tests also poll, a side that polls gets its processor only after a
/// time slice.
const SHORT: [&str; 4] = ["-n", "200", "-r", "50"];

/// Starts a program with a soft device and these flags.
fn start(program: &str, port: &str, flags: &[&str]) -> Server {
    start_on("auto", program, port, flags)
}

fn start_on(soft: &str, program: &str, port: &str, flags: &[&str]) -> Server {
    let args = [&["-d", "soft0", "-g", "0", "-p", port], flags].concat();
    let mut child = command(program, soft, &args);
    Server(Some(child.stderr(Stdio::piped()).spawn().expect("the program runs")))
}

/// Returns a free port for a server.
fn free_port() -> String {
    port::free().expect("a free port").to_string()
}

/// Runs a ping-pong between two processes. Returns the output of client and server.
fn play(program: &str, flags: &[&str]) -> [String; 2] {
    let port = free_port();
    let mut server = start(program, &port, flags);
    let client = connect(program, &port, flags);
    let server = told(server.end());
    [client, server].map(|(status, said, complaints)| {
        assert_eq!((status, &*complaints), (Some(0), ""), "{flags:?}: {said}");
        said
    })
}

/// Runs a client until it exits. Retries while its server does not listen yet.
fn connect(program: &str, port: &str, flags: &[&str]) -> (Option<i32>, String, String) {
    connect_from("auto", program, port, flags)
}

fn connect_from(soft: &str, program: &str, port: &str, flags: &[&str]) -> (Option<i32>, String, String) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let flags = [flags, &["127.0.0.1"]].concat();
    loop {
        let (status, out, complaints) = told(start_on(soft, program, port, &flags).end());
        // The server may not listen yet.
        if !complaints.contains("Couldn't connect to 127.0.0.1") || Instant::now() > deadline {
            return (status, out, complaints);
        }
    }
}

#[test]
fn a_ping_pong_between_two_processes_is_verified() {
    pingpong(&[]);
}

#[test]
fn a_ping_pong_that_sleeps_between_messages_is_verified() {
    pingpong(&["-e", "-n", "200"]);
}

/// A soft device's clock counts nanoseconds.
#[test]
fn a_ping_pong_with_timestamps_prints_the_times_between_messages() {
    for flags in [
        &[&["-t", "--verify"], &SHORT[..]].concat()[..],
        &["-t", "-e", "-c", "-n", "100"],
        &["-t", "-n", "2"],
    ] {
        for said in play(PINGPONG, flags) {
            let lines: Vec<&str> = said.lines().collect();
            let [.., bytes, iters, max, min, average] = &lines[..] else { panic!("{said}") };
            assert!(bytes.contains(" bytes in ") && iters.contains(" iters in "), "{said}");
            let number = |line: &str, name: &str| {
                let prefix = format!("{name} receive completion clock cycles = ");
                let number = line.strip_prefix(&prefix).unwrap_or_else(|| panic!("no {prefix:?} in {said}"));
                number.to_owned()
            };
            let [max, min] = [number(max, "Max"), number(min, "Min")];
            let average = number(average, "Average");
            assert_eq!(average.split_once('.').map(|(_, decimals)| decimals.len()), Some(6), "{said}");
            let [max, min, average] = [max, min, average].map(|text| text.parse::<f64>().expect("a number"));
            assert!(0.0 < min && min <= average && average <= max, "{said}");
            assert!(max < 60e9, "a message took longer than the test may: {said}");
        }
    }
    // A single message in each direction leaves no interval to report.
    for said in play(PINGPONG, &["-t", "-n", "1"]) {
        assert!(said.ends_with(" usec/iter\n"), "{said}");
    }
}

/// A soft device does not need memory shared between a confidential guest and its host.
#[test]
fn a_ping_pong_in_a_parent_domain_is_verified() {
    pingpong(&[&["-U"], &SHORT[..]].concat());
    pingpong_of(PINGPONG, &["-U", "-t", "-e", "-c", "-n", "200"]);
}

#[test]
fn a_ping_pong_in_device_memory_is_verified() {
    pingpong(&[&["-j"], &SHORT[..]].concat());
    pingpong_of(PINGPONG, &["-j", "-t", "-e", "-c", "-n", "200", "-s", "20000"]);
}

#[test]
fn a_ping_pong_in_memory_that_is_paged_on_demand_is_verified() {
    for flag in ["-o", "-oP", "-OP"] {
        pingpong(&[&[flag], &SHORT[..]].concat());
    }
    pingpong_of(PINGPONG, &["-OPt", "-e", "-c", "-n", "200", "-s", "20000"]);
    pingpong_of(SRQ_PINGPONG, &["-o", "-c"]);
    for said in play(XSRQ_PINGPONG, &["-o"]) {
        assert!(said.ends_with("success\n"), "{said}");
    }
}

#[test]
fn a_ping_pong_of_a_megabyte_is_verified() {
    pingpong(&["-s", "1048576", "-n", "5", "-m", "4096"]);
}

#[test]
fn a_ping_pong_over_an_unreliable_connection_is_verified() {
    pingpong_of(UC_PINGPONG, &[&["--verify"], &SHORT[..]].concat());
    pingpong_of(UC_PINGPONG, &["-e", "-c", "-n", "200", "-s", "20000", "-m", "4096"]);
}

#[test]
fn a_ping_pong_of_datagrams_is_verified() {
    pingpong_of(UD_PINGPONG, &[&["--verify"], &SHORT[..]].concat());
    pingpong_of(UD_PINGPONG, &["-e", "-c", "-n", "200", "-s", "4096"]);
}

#[test]
fn a_ping_pong_of_connections_that_share_a_receive_queue_is_played() {
    let [client, server] = play(SRQ_PINGPONG, &[]);
    for said in [&client, &server] {
        let count = |what: &str| said.lines().filter(|line| line.starts_with(what)).count();
        assert_eq!((count("  local address:  LID "), count("  remote address: LID ")), (16, 16), "{said}");
        assert!(said.contains("8192000 bytes in ") && said.contains("1000 iters in "), "{said}");
    }
    pingpong_of(SRQ_PINGPONG, &["-e", "-c", "-n", "200", "-q", "3", "-r", "5", "-m", "4096"]);
    pingpong_of(SRQ_PINGPONG, &["-c", "-n", "50", "-q", "1", "-r", "1", "-s", "100000"]);
}

#[test]
fn a_ping_pong_over_xrc_is_played_with_one_client() {
    for flags in [&[][..], &["-e", "-n", "300"], &["-s", "100000", "-m", "4096", "-n", "20"], &["-n", "0"]] {
        let [client, server] = play(XSRQ_PINGPONG, flags);
        let lines = |said: &str| said.lines().map(str::to_owned).collect::<Vec<_>>();
        let (client, server) = (lines(&client), lines(&server));
        let rest = |line: &str, which: &str| {
            line.strip_prefix(which).unwrap_or_else(|| panic!("{which:?}: {client:?} {server:?}")).to_owned()
        };
        // Each side prints its address in the order of the C program.
        let [client_local, client_remote, client_end] = &client[..] else { panic!("{client:?}") };
        let [server_remote, server_local, server_end] = &server[..] else { panic!("{server:?}") };
        assert_eq!(
            rest(client_local, "   local: LID 0000, QPN RECV "),
            rest(server_remote, "  remote: LID 0000, QPN RECV ")
        );
        assert_eq!(rest(server_local, "   local: LID "), rest(client_remote, "  remote: LID "));
        assert_eq!((&**client_end, &**server_end), ("success", "success"));
    }
}

/// As in C, clients with the same address would have to share an XRC domain, but processes cannot
/// share one.
#[test]
fn a_server_of_xrc_plays_with_three_clients_at_different_addresses() {
    let port = free_port();
    let [.., high, low] = std::process::id().to_be_bytes();
    let mut server = start(XSRQ_PINGPONG, &port, &["-c", "3", "-n", "50"]);
    let clients: Vec<_> = (0..3)
        .map(|client: u8| {
            let (port, address) = (port.clone(), Ipv4Addr::new(127, 104 + client, high, low).to_string());
            thread::spawn(move || connect_from(&address, XSRQ_PINGPONG, &port, &["-n", "50"]))
        })
        .collect();
    let mut ends: Vec<_> = clients.into_iter().map(|client| client.join().expect("a client")).collect();
    ends.push(told(server.end()));
    for (status, said, complaints) in ends {
        assert_eq!((status, &*complaints), (Some(0), ""), "{said}");
        assert!(said.ends_with("success\n"), "{said}");
    }
}

/// The survivor must end with an error. The C programs wait forever if the surviving side has no
/// request in flight.
#[test]
fn the_survivor_of_a_ping_pong_ends_with_an_error() {
    const WAYS: &[(&str, &[&str])] = &[
        (PINGPONG, &["-n", "100000000"]),
        (PINGPONG, &["-n", "100000000", "-e"]),
        (UC_PINGPONG, &["-n", "100000000"]),
        (UD_PINGPONG, &["-n", "100000000", "-e"]),
        (SRQ_PINGPONG, &["-n", "100000000"]),
        (XSRQ_PINGPONG, &["-n", "10000"]),
        (XSRQ_PINGPONG, &["-n", "10000", "-e"]),
    ];
    let runs = WAYS.iter().flat_map(|way| [(way, false), (way, true)]);
    let threads: Vec<_> =
        runs.map(|(way, kill_server)| thread::spawn(move || survivor(way, kill_server))).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a ping-pong"));
}

/// Kills one side once both exchange messages, and checks how the other side ends.
fn survivor(&(program, flags): &(&str, &[&str]), kill_server: bool) {
    let port = free_port();
    let mut server = start(program, &port, flags);
    let deadline = Instant::now() + Duration::from_secs(30);
    let with_host = [flags, &["127.0.0.1"]].concat();
    let (client, _client_out) = loop {
        let mut client = start(program, &port, &with_host);
        match has_met(&mut client) {
            Some(out) => break (client, out),
            None => {
                let end = told(client.end());
                // The server may not listen yet.
                if !end.2.contains("refused") || Instant::now() >= deadline {
                    let _ = server.0.as_mut().expect("it has not been waited for").kill();
                    panic!("{program} {flags:?}: {end:?}, and the server {:?}", told(server.end()));
                }
            }
        }
    };
    let _server_out = has_met(&mut server).expect("the server met its client");
    let (mut killed, mut left) = if kill_server { (server, client) } else { (client, server) };
    killed.0.as_mut().expect("it runs").kill().expect("it is killed");
    killed.end();
    let (status, _, complaints) = told(left.end());
    let why = ["the peer has ended", "Failed status", "Work completion error"];
    let says_why = why.iter().any(|why| complaints.contains(why));
    assert!(status == Some(1) && says_why, "{program} {flags:?}, {kill_server}: {status:?} {complaints}");
}

/// Waits until a side has printed its peer's address and starts to exchange messages. Returns its
/// output, which must stay open. `None` if the side ends first.
fn has_met(side: &mut Server) -> Option<impl BufRead + use<>> {
    let stdout = side.0.as_mut().and_then(|child| child.stdout.take()).expect("a pipe");
    let mut stdout = BufReader::new(stdout);
    let mut line = String::new();
    while stdout.read_line(&mut line).expect("a line") > 0 {
        if line.starts_with("  remote") {
            return Some(stdout);
        }
        line.clear();
    }
    None
}

#[test]
fn a_datagram_that_is_longer_than_a_packet_is_refused_before_it_is_sent() {
    let args = ["-d", "soft0", "-g", "0", "-s", "4097", "127.0.0.1"];
    let (status, out, complaints) = run(UD_PINGPONG, "auto", &args);
    assert_eq!((status, &*out), (Some(1), ""));
    assert!(complaints.starts_with("Requested size larger than port MTU (4096)\n"), "{complaints}");
}

#[test]
fn asyncwatch_says_where_events_come_from_and_waits_for_them() {
    let mut watch = command(ASYNCWATCH, "auto", &["-d", "soft0"]);
    let mut watch = Server(Some(watch.stderr(Stdio::piped()).spawn().expect("the program runs")));
    let stdout = watch.0.as_mut().and_then(|child| child.stdout.take()).expect("a pipe");
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    let fd = line.strip_prefix("soft0: async event FD ").map(|fd| fd.trim_end().parse::<u32>());
    assert!(matches!(fd, Some(Ok(_))), "{line:?}");
    let ended = watch.0.as_mut().map(|child| child.try_wait().expect("its status"));
    assert_eq!(ended, Some(None), "it ended without an event");
}

#[test]
fn asyncwatch_names_the_device_that_is_not_there() {
    let (status, out, complaints) = run(ASYNCWATCH, "auto", &["-d", "nope"]);
    assert_eq!((status, &*out), (Some(1), ""));
    assert!(complaints.starts_with("IB device nope not found\n"), "{complaints}");
}
