//! `librdmacm`: programs that connect by address, on our `librdmacm.so.1` and soft devices, without
//! a kernel connection manager. Each end is a process with a separate device.
//!
//! | program | package |
//! |---|---|
//! | rping, ucmatose, udaddy, mckey, rdma_server and similar programs, cmtime | rdmacm-utils |
//! | perftest with `-R` and `-z` | perftest |
//! | `fi_pingpong` on the verbs provider | libfabric-bin |
//! | UCX's list of connection managers | ucx-utils |
//!
//! Programs that use sockets (`rsocket`) end with `EOPNOTSUPP`. The loader reports each symbol it
//! binds, so a case fails if another librdmacm is used.

use std::process::Command;
use std::time::Duration;

use verbs_c_programs::perftest::row;
use verbs_harness::cases;
use verbs_harness::pair::both;
use verbs_harness::port;
use verbs_harness::process::{self, Finished, Running};
use verbs_harness::runner::{Case, CaseResult, Stop, fail, skip};

use crate::library::{self, Preload};
use crate::perftest;

const SUITE: &str = "librdmacm";
const PACKAGE: &str = "rdmacm-utils";
const LIMIT: Duration = Duration::from_secs(60);

/// The address of the server: any local program that listens on it or on all addresses.
const ADDRESS: &str = "127.0.0.1";

/// The port spaces, as they appear in the names of listeners.
const TCP: &str = "106";
const IB: &str = "13f";

/// A program that connects, and the last output of both ends.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    space: &'static str,
    server: &'static [&'static str],
    client: &'static [&'static str],
    /// A substring of a line in the server's and in the client's output.
    lines: [&'static str; 2],
}

const fn way(
    name: &'static str,
    space: &'static str,
    [server, client]: [&'static [&'static str]; 2],
    lines: [&'static str; 2],
) -> Way {
    Way { name, space, server, client, lines }
}

/// The programs to run. The port is appended after `-p`. rping's server prints
/// `DISCONNECT EVENT...` and fails when its client is gone.
const WAYS: &[Way] = &[
    way(
        "rping -C 10 -v -V",
        TCP,
        [
            &["rping", "-s", "-C", "10", "-v", "-V", "-a", ADDRESS],
            &["rping", "-c", "-C", "10", "-v", "-V", "-a", ADDRESS],
        ],
        ["server ping data: rdma-ping-9: ", "ping data: rdma-ping-9: "],
    ),
    way(
        "rping -S 60000 -q",
        TCP,
        [
            &["rping", "-s", "-C", "5", "-v", "-S", "60000", "-q", "-a", ADDRESS],
            &["rping", "-c", "-C", "5", "-v", "-V", "-S", "60000", "-q", "-a", ADDRESS],
        ],
        ["server ping data: rdma-ping-4: ", "ping data: rdma-ping-4: "],
    ),
    way(
        "ucmatose",
        TCP,
        [&["ucmatose", "-C", "10", "-S", "2000"], &["ucmatose", "-C", "10", "-S", "2000", "-s", ADDRESS]],
        ["return status 0", "return status 0"],
    ),
    way(
        "ucmatose with migrated ids and a bound server",
        TCP,
        [&["ucmatose", "-m", "-c", "4", "-b", ADDRESS], &["ucmatose", "-m", "-c", "4", "-s", ADDRESS]],
        ["return status 0", "return status 0"],
    ),
    way(
        "rdma_client",
        TCP,
        [&["rdma_server"], &["rdma_client", "-s", ADDRESS]],
        ["rdma_server: end 0", "rdma_client: end 0"],
    ),
    way(
        "rdma_xclient -c r",
        TCP,
        [&["rdma_xserver", "-c", "r"], &["rdma_xclient", "-c", "r", "-s", ADDRESS]],
        ["rdma_xserver: end 0", "rdma_xclient: end 0"],
    ),
    way(
        "rdma_xclient -c x",
        IB,
        [&["rdma_xserver", "-c", "x"], &["rdma_xclient", "-c", "x", "-s", ADDRESS]],
        ["rdma_xserver: end 0", "rdma_xclient: end 0"],
    ),
];

/// The programs that use sockets, and the error that each of them prints.
const SOCKETS: &[(&str, &[&str], &str)] = &[
    ("rcopy", &[], "rsocket failed: Operation not supported"),
    ("riostream", &["-s", ADDRESS], "rsocket failed: Operation not supported"),
    ("rstream", &["-s", ADDRESS], "rsocket failed: Operation not supported"),
    ("udpong", &["-s", ADDRESS], "rsocket failed: Operation not supported"),
];

/// The perftest programs and their flags. With `-R`, the queue pairs belong to ids; with `-z`, an
/// id transfers the parameters of other queue pairs.
const PERFTEST: &[(&str, &[&str])] = &[
    ("ib_write_bw", &["-R"]),
    ("ib_read_lat", &["-R"]),
    ("ib_send_bw", &["-R", "-e"]),
    ("ib_atomic_bw", &["-R"]),
    ("ib_write_bw", &["-z"]),
    ("ib_send_bw", &["-z", "-e"]),
    ("ib_send_lat", &["-z", "-c", "UC"]),
    ("ib_send_lat", &["-z", "-c", "UD", "-s", "1024"]),
];

/// Returns the cases of the suite.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<_> =
        WAYS.iter().map(|way| Case::new(SUITE, format!("{} connects", way.name), || way.run())).collect();
    cases.extend(SOCKETS.iter().map(|(tool, arguments, error)| {
        let name = format!("{tool} uses sockets, which are refused");
        Case::new(SUITE, name, || is_refused(tool, arguments, error))
    }));
    cases.extend(PERFTEST.iter().map(|(tool, flags)| {
        let name = format!("{tool} {}", flags.join(" "));
        Case::new(SUITE, name, || runs_perftest(tool, flags))
    }));
    cases.extend(cases![
        SUITE,
        cmtime_connects_and_disconnects_by_the_hundred,
        udaddy_finds_a_datagram_service,
        mckey_sends_to_a_group,
        a_port_without_a_listener_is_named,
        programs_load_our_librdmacm,
        python_finds_the_functions_and_the_soft_device,
        libfabric_plays_a_ping_pong_over_connections,
        libfabric_plays_a_ping_pong_over_its_reliable_datagrams,
        ucx_finds_the_connection_manager,
    ]);
    cases
}

/// Returns the part of a name in /proc/net/unix that identifies the listener on a port.
fn listener(space: &str, port: u16) -> String {
    format!("/cm/2/{space}/{port}/")
}

/// Starts a server and waits until it has a listener on the port.
fn serving(command: &mut Command, space: &str, port: u16) -> CaseResult<Running> {
    let mut server = Running::start(command)?;
    let name = listener(space, port);
    let listens = || std::fs::read_to_string("/proc/net/unix").is_ok_and(|sockets| sockets.contains(&name));
    if process::wait_until(LIMIT, || listens() || server.has_ended()) && !server.has_ended() {
        return Ok(server);
    }
    fail(format_args!("{command:?} does not listen: {:?}", server.finish(Duration::ZERO)?))
}

impl Way {
    fn command(self, words: &[&str], port: u16) -> CaseResult<Command> {
        let (name, arguments) = words.split_first().ok_or_else(|| Stop::Failed("no program".into()))?;
        let mut command = library::program(name, PACKAGE)?;
        command.args(arguments).args(["-p", &port.to_string()]);
        Ok(command)
    }

    fn run(self) -> CaseResult {
        let port = port::free()?;
        let server = serving(&mut self.command(self.server, port)?, self.space, port)?;
        let client = process::run_group(&mut self.command(self.client, port)?, LIMIT)?;
        let patience = if client.as_ref().is_ok_and(|end| end.status.success()) {
            LIMIT
        } else {
            Duration::from_secs(3)
        };
        let server = server.finish(patience)?;
        let is_rping = self.name.starts_with("rping");
        let (Ok(client), Ok(server)) = (&client, &server) else {
            return fail(format_args!("client {client:?}; server {server:?}"));
        };
        let is_well = client.status.success() && (is_rping || server.status.success());
        // Some programs print their path first.
        let has = |end: &Finished, line: &str| end.stdout.lines().any(|told| told.contains(line));
        if is_well && has(server, self.lines[0]) && has(client, self.lines[1]) {
            Ok(())
        } else {
            fail(format_args!("client {client:?}; server {server:?}"))
        }
    }
}

/// Checks that a program that uses sockets ends with an error.
fn is_refused(tool: &str, arguments: &[&str], error: &str) -> CaseResult {
    let ended = process::run_group(library::program(tool, PACKAGE)?.args(arguments), LIMIT)?
        .map_err(|killed| Stop::Failed(format!("it did not end: {killed:?}")))?;
    let told =
        [&ended.stdout, &ended.stderr].iter().any(|text| text.lines().any(|line| line.trim() == error));
    if told && ended.status.code().is_some_and(|code| code != 0) {
        Ok(())
    } else {
        fail(format_args!("{ended:?}"))
    }
}

/// Runs a perftest program on both ends. With `-R`, the client connects twice, for its parameters
/// and for the test, each time to a new listener on the server. If the client is too fast, it is
/// rejected, retries with an id it has already freed, and crashes, even with rdma-core's library.
/// [`Preload::NextListener`] therefore delays it.
fn runs_perftest(tool: &str, flags: &[&str]) -> CaseResult {
    let port = port::free()?;
    let command = || {
        let mut command = perftest::program(tool)?;
        command.args(["-F", "-n", "100", "-p", &port.to_string()]).args(flags);
        Ok::<_, Stop>(command)
    };
    let server = serving(&mut command()?, TCP, port)?;
    let mut client = command()?;
    client.arg(ADDRESS);
    if flags.contains(&"-R") {
        library::preload(&mut client, Preload::NextListener)?;
        client.env("LISTENER", listener(TCP, port) + "0.0.0.0");
    }
    let ends = both(server, Running::start(&mut client)?, LIMIT)?;
    // A rate may be 0.00 on a busy machine.
    match row(&ends[1].stdout) {
        Some(row) if row.iterations == 100 => Ok(()),
        other => fail(format_args!("{other:?}: {:?}", ends[1])),
    }
}

fn cmtime_connects_and_disconnects_by_the_hundred() -> CaseResult {
    let port = port::free()?;
    let command = || {
        let mut command = library::program("cmtime", PACKAGE)?;
        command.args(["-c", "100", "-p", &port.to_string()]);
        Ok::<_, Stop>(command)
    };
    let server = serving(&mut command()?, TCP, port)?;
    let client = process::run_group(command()?.args(["-s", ADDRESS]), LIMIT)?;
    // The server runs until it is killed.
    let server = server.finish(Duration::ZERO)?;
    let steps =
        ["create id", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"];
    match &client {
        Ok(client) if client.status.success() => {
            let has = |step: &&&str| {
                client.stdout.lines().any(|line| line.starts_with(**step) && line.contains('.'))
            };
            match steps.iter().find(|step| !has(step)) {
                None => Ok(()),
                Some(step) => fail(format_args!("no time of {step:?}: {client:?}")),
            }
        }
        _ => fail(format_args!("client {client:?}; server {server:?}")),
    }
}

/// A script that creates a network with an interface that has one address per end, because
/// libfabric ignores loopback addresses.
const NETWORK: &str = "set -e
    ip link set lo up
    ip link add one type veth peer name two
    ip address add 10.77.0.1/24 dev one
    ip address add 10.77.0.2/24 dev one
    ip link set one up
    ip link set two up
    ip route add 239.0.0.0/8 dev one
    ";

/// Runs a script with a program as `$0` in a new network namespace.
///
/// # Errors
/// Skips the case if no network namespace can be created.
fn in_network(script: &str, program: &str, package: &str) -> CaseResult<Finished> {
    let unshare = |script: &str| {
        let mut command = Command::new("/usr/bin/unshare");
        command.args(["--net", "sh", "-c", script]);
        command
    };
    match process::run_group(&mut unshare(NETWORK), LIMIT)? {
        Ok(ended) if ended.status.success() => {}
        Ok(ended) | Err(ended) => {
            let why = ended.stderr.lines().last().unwrap_or("no message").to_owned();
            return skip(format_args!("no network namespace with a veth pair: {why}"));
        }
    }
    let mut command = unshare(&[NETWORK, script].concat());
    command.arg(library::installed(program, package)?);
    library::prepare(&mut command)?;
    process::run_group(&mut command, LIMIT)?
        .map_err(|killed| Stop::Failed(format!("it did not end: {killed:?}")))
}

/// Checks that both ends succeeded and printed a line that starts with `beginning`.
fn both_print(ended: &Finished, beginning: &str) -> CaseResult {
    let count = ended.stdout.lines().filter(|line| line.starts_with(beginning)).count();
    if ended.status.success() && count == 2 { Ok(()) } else { fail(format_args!("{ended:?}")) }
}

fn udaddy_finds_a_datagram_service() -> CaseResult {
    // The port is always 7174.
    const SCRIPT: &str = "
        \"$0\" -C 10 -S 500 &
        while ! grep -q /cm/2/111/7174/ /proc/net/unix; do kill -0 $!; done
        \"$0\" -C 10 -S 500 -s 127.0.0.1
        wait $!";
    both_print(&in_network(SCRIPT, "udaddy", PACKAGE)?, "return status 0")
}

fn mckey_sends_to_a_group() -> CaseResult {
    // Both ends wait three seconds after they have joined.
    const SCRIPT: &str = "
        VERBS_SOFT=10.77.0.1 \"$0\" -m 239.255.13.7 -b 10.77.0.1 -C 5 &
        VERBS_SOFT=10.77.0.2 \"$0\" -m 239.255.13.7 -b 10.77.0.2 -C 5 -s
        wait $!";
    both_print(&in_network(SCRIPT, "mckey", PACKAGE)?, "return status 0")
}

fn a_port_without_a_listener_is_named() -> CaseResult {
    let port = port::free()?;
    let mut command = library::program("rdma_client", PACKAGE)?;
    let ended = process::run_group(command.args(["-s", ADDRESS, "-p", &port.to_string()]), LIMIT)?
        .map_err(|killed| Stop::Failed(format!("it did not end: {killed:?}")))?;
    if ended.stderr.contains("rdma_connect: Connection refused") {
        Ok(())
    } else {
        fail(format_args!("{ended:?}"))
    }
}

/// Checks the loader's reports: `binding file PATH [0] to PATH [0]: normal symbol 'NAME' [NODE]`.
fn programs_load_our_librdmacm() -> CaseResult {
    let directory = library::directory()?;
    let mut checked = 0;
    for (tool, package) in [("rping", PACKAGE), ("ib_write_bw", "perftest"), ("fi_pingpong", "libfabric-bin")]
    {
        let Ok(mut command) = library::program(tool, package) else { continue };
        command.args(["-h"]).env("LD_BIND_NOW", "1").env("LD_DEBUG", "bindings");
        let ended = process::run_group(&mut command, LIMIT)?
            .map_err(|killed| Stop::Failed(format!("{tool} did not end: {}", killed.stdout)))?;
        let bound: Vec<_> = ended.stderr.lines().filter(|line| line.contains("symbol `rdma_")).collect();
        let ours = format!(" to {}", directory.join("libibverbs.so.1").display());
        match bound.iter().find(|line| !line.contains(&ours)) {
            Some(line) => return fail(format_args!("{tool}: another library is used: {line}")),
            None if bound.is_empty() => return fail(format_args!("{tool} binds no function of librdmacm")),
            None => checked += 1,
        }
    }
    if checked == 0 { skip("no program is installed (package rdmacm-utils)") } else { Ok(()) }
}

/// A program that opens the library by name, lists the devices and creates a channel.
const LIST: &str = r#"
import ctypes
cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
verbs = ctypes.CDLL("libibverbs.so.1")
count = ctypes.c_int(-1)
cm.rdma_get_devices.restype = ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))
cm.rdma_create_event_channel.restype = ctypes.c_void_p
verbs.ibv_get_device_name.restype = ctypes.c_char_p
devices = cm.rdma_get_devices(ctypes.byref(count))
for index in range(count.value):
    # The first member of a context is its device.
    print(verbs.ibv_get_device_name(ctypes.c_void_p(devices[index][0])).decode())
cm.rdma_free_devices(devices)
print(bool(cm.rdma_create_event_channel()), cm.rsocket(2, 1, 0), ctypes.get_errno())
"#;

fn python_finds_the_functions_and_the_soft_device() -> CaseResult {
    let mut python = library::program("python3", "python3")?;
    let ended = process::run_group(python.args(["-c", LIST]), LIMIT)?
        .map_err(|killed| Stop::Failed(format!("it did not end: {killed:?}")))?;
    let wanted = format!("True -1 {}\n", libc::EOPNOTSUPP);
    if ended.status.success() && ended.stdout.contains("soft0\n") && ended.stdout.ends_with(&wanted) {
        Ok(())
    } else {
        fail(format_args!("{ended:?}"))
    }
}

/// Runs libfabric's ping-pong with `flags` on both ends.
fn libfabric(flags: &str) -> CaseResult {
    let script = format!(
        "
        VERBS_SOFT=10.77.0.1 \"$0\" {flags} -B 7471 &
        while ! grep -q ':1D2F .* 0A ' /proc/net/tcp /proc/net/tcp6; do kill -0 $!; done
        VERBS_SOFT=10.77.0.2 \"$0\" {flags} -P 7471 10.77.0.1
        wait $!"
    );
    both_print(&in_network(&script, "fi_pingpong", "libfabric-bin")?, "64k     10      =10")
}

fn libfabric_plays_a_ping_pong_over_connections() -> CaseResult {
    libfabric("-c -I 10 -e msg -S 65536 -p verbs")
}

fn libfabric_plays_a_ping_pong_over_its_reliable_datagrams() -> CaseResult {
    libfabric("-c -I 10 -e rdm -S 65536 -p 'verbs;ofi_rxm' -m tagged")
}

fn ucx_finds_the_connection_manager() -> CaseResult {
    let mut command = library::program("ucx_info", "ucx-utils")?;
    let ended = process::run_group(command.arg("-d"), LIMIT)?
        .map_err(|killed| Stop::Failed(format!("it did not end: {killed:?}")))?;
    if ended.stdout.contains("Connection manager: rdmacm") { Ok(()) } else { fail(format_args!("{ended:?}")) }
}
