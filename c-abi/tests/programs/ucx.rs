//! `ucx`: UCX's benchmark between two processes, over reliable connections and over datagrams, and
//! UCX endpoints that connect by address through `librdmacm.so.1`.
//!
//! The benchmark exchanges addresses over TCP. In Debian's packages, only `ucx_info -A` connects an
//! endpoint to a listener; both in its own process.
//!
//! Each case creates a mount namespace and a network namespace, which needs root:
//!
//! - UCX opens only devices whose `dev_name` is a file in `/dev/infiniband`.
//! - UCX finds the destination address of a datagram with the help of `wc.sl`, where libmlx5
//!   reports the type of the IP header. Reliable connections start with datagrams as well. Both
//!   address families are therefore tested.

use std::process::Command;
use std::time::Duration;

use verbs_harness::process;
use verbs_harness::runner::{Case, CaseResult, Stop, fail, skip};

use crate::library;

const SUITE: &str = "ucx";
const PACKAGE: &str = "ucx-utils";
const LIMIT: Duration = Duration::from_secs(60);

/// Tests of `ucx_perftest` and their message sizes.
const TESTS: &[(&str, &str)] = &[
    ("tag_lat", "1024"),
    ("tag_bw", "65536"),
    ("ucp_put_lat", "1024"),
    ("ucp_put_bw", "65536"),
    ("ucp_get", "1024"),
    ("ucp_fadd", "8"),
    ("stream_bw", "1024"),
];

const TRANSPORTS: &[&str] = &["rc_v", "ud_v"];

/// A script that creates a small `/dev` if the machine's `/dev` lacks the folder for device files.
const DEV: &str = "set -e
    if ! [ -d /dev/infiniband ]; then
        mount -t tmpfs none /dev
        mknod -m 666 /dev/null c 1 3
        mknod -m 666 /dev/zero c 1 5
        mknod -m 666 /dev/urandom c 1 9
        mkdir -m 1777 /dev/shm
        mkdir /dev/infiniband
    fi
    ";

/// A script that creates the device file and the addresses in the namespaces.
const PREPARE: &str = "set -e
    mount -t tmpfs none /dev/infiniband
    touch /dev/infiniband/uverbs0
    mount --bind /dev/null /dev/infiniband/uverbs0
    ip link set lo up
    ip address add fd77::1/128 dev lo
    ip address add fd77::2/128 dev lo
    ";

/// A script that runs a server and, once it listens on port 0x5ba0, a client.
const RUN: &str = "
    VERBS_SOFT=$SERVER \"$@\" >&2 &
    while ! grep -q ':5BA0 .* 0A ' /proc/net/tcp /proc/net/tcp6; do kill -0 $!; done
    VERBS_SOFT=$CLIENT \"$@\" 127.0.0.1
    wait $!";

/// A test of UCX.
#[derive(Clone, Copy)]
struct Way {
    test: &'static str,
    size: &'static str,
    transport: &'static str,
    is_ipv6: bool,
}

/// Returns the cases of the suite.
pub(crate) fn cases() -> Vec<Case> {
    let ways = [(false, TESTS), (true, &TESTS[..1])].into_iter().flat_map(|(is_ipv6, tests)| {
        let all =
            TRANSPORTS.iter().flat_map(move |transport| tests.iter().map(move |test| (*test, *transport)));
        all.map(move |((test, size), transport)| Way { test, size, transport, is_ipv6 })
    });
    let mut cases: Vec<_> = ways.map(|way| Case::new(SUITE, way.name(), move || way.run())).collect();
    cases.extend([("rc_v", false), ("ud_v", false), ("rc_v", true)].map(|(transport, is_ipv6)| {
        let family = if is_ipv6 { "IPv6" } else { "IPv4" };
        let name = format!("an endpoint connects by address over {transport} and {family}");
        Case::new(SUITE, name, move || connects_by_address(transport, is_ipv6))
    }));
    cases
}

/// Connects an endpoint to a listener and checks that rdmacm and the transport carry the
/// connection.
fn connects_by_address(transport: &str, is_ipv6: bool) -> CaseResult {
    let info = library::installed("ucx_info", PACKAGE)?;
    let prepare = [DEV, PREPARE].concat();
    can_prepare(&prepare)?;
    let (device, address) = if is_ipv6 { ("fd77::1", "fd77::1") } else { ("auto", "127.0.0.1") };
    let mut command = in_namespaces(&[&prepare, "exec \"$@\""].concat());
    library::prepare(&mut command)?;
    command.env("VERBS_SOFT", device).arg(info).args(["-e", "-u", "te", "-A", address]);
    if is_ipv6 {
        command.arg("-6");
    }
    command.env("UCX_NET_DEVICES", "soft0:1").env("UCX_TLS", format!("{transport},self"));
    command.env("UCX_SOCKADDR_TLS_PRIORITY", "rdmacm");
    let ended = process::run_group(&mut command, LIMIT)?
        .map_err(|killed| Stop::Failed(format!("it did not end: {killed:?}")))?;
    let has = |part: &str| ended.stdout.lines().any(|line| line.contains(" lane[") && line.contains(part));
    let verbs = if transport == "rc_v" { "rc_verbs/soft0:1" } else { "ud_verbs/soft0:1" };
    if ended.status.success() && has("cm rdmacm") && has(verbs) {
        Ok(())
    } else {
        fail(format_args!("{ended:?}"))
    }
}

/// Checks that the namespaces can be created.
///
/// # Errors
/// Skips the case if they cannot be created.
fn can_prepare(script: &str) -> CaseResult {
    match process::run_group(&mut in_namespaces(script), LIMIT)? {
        Ok(ended) if ended.status.success() => Ok(()),
        Ok(ended) | Err(ended) => {
            let why = ended.stderr.lines().last().unwrap_or("no message").to_owned();
            skip(format_args!("no namespace with a file in /dev/infiniband: {why}"))
        }
    }
}

/// Returns a shell in new namespaces.
fn in_namespaces(script: &str) -> Command {
    let mut command = Command::new("/usr/bin/unshare");
    command.args(["--mount", "--net", "sh", "-c", script, "sh"]);
    command
}

impl Way {
    fn name(&self) -> String {
        let Self { test, transport, is_ipv6, .. } = self;
        format!("{test} over {transport} and {}", if *is_ipv6 { "IPv6" } else { "IPv4" })
    }

    fn run(&self) -> CaseResult {
        const ITERATIONS: &str = "200";
        let Self { test, size, transport, is_ipv6 } = self;
        let perftest = library::installed("ucx_perftest", PACKAGE)?;
        can_prepare(&[DEV, PREPARE].concat())?;
        let [server, client] = if *is_ipv6 { ["fd77::1", "fd77::2"] } else { ["auto", "auto"] };
        let mut command = in_namespaces(&[DEV, PREPARE, RUN].concat());
        library::prepare(&mut command)?;
        command.env("SERVER", server).env("CLIENT", client);
        command.arg(perftest).args(["-t", test, "-s", size, "-n", ITERATIONS, "-w", "10", "-p", "23456"]);
        command.env("UCX_NET_DEVICES", "soft0:1").env("UCX_TLS", format!("{transport},self"));
        let ended = process::run_group(&mut command, LIMIT)?
            .map_err(|killed| Stop::Failed(format!("it did not end: {killed:?}")))?;
        let last = ended.stdout.lines().rfind(|line| line.starts_with("Final:"));
        let iterations = last.and_then(|line| line.split_ascii_whitespace().nth(1));
        if ended.status.success() && iterations == Some(ITERATIONS) {
            Ok(())
        } else {
            fail(format_args!("{ended:?}"))
        }
    }
}
