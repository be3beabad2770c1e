//! UCX's benchmark with ends on either library, over reliable connections and over datagrams.
//!
//! UCX derives a datagram's destination from `wc.sl`, where libmlx5 reports the type of the IP
//! header and librxe does not. Over IPv4, nothing arrives with either library. The cases therefore
//! use the GID for an IPv6 address. Reliable connections start with datagrams as well.

use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};
use std::process::Command;

use verbs_c_programs::ucx::{Test, batch, check};
use verbs_harness::pair::meet;
use verbs_harness::port;
use verbs_harness::runner::{Case, CaseResult, Stop, skip};
use verbs_harness::tools::{DEVICE, LIMIT, Maker};

use super::program::{PAIRS, SUITE, program, unless_c_fails};

const PACKAGE: &str = "ucx-utils";

const TRANSPORTS: &[&str] = &["rc_v", "ud_v"];

/// The tests, which run one after another, for about two seconds each in an emulated guest.
const TESTS: &[Test] =
    &[("tag", "tag_lat", "1024"), ("put", "ucp_put_lat", "1024"), ("get", "ucp_get", "1024")];

/// More tests, with both ends on our library. UCX sends the long message in several parts, or the
/// receiver reads it from the sender's memory.
const MORE_TESTS: &[Test] = &[("long-tag", "tag_bw", "65536"), ("fadd", "ucp_fadd", "8")];

/// Returns the cases for this program.
pub(super) fn cases() -> impl Iterator<Item = Case> {
    let all = TRANSPORTS.iter().flat_map(|transport| PAIRS.into_iter().map(move |ends| (transport, ends)));
    all.map(|(transport, [server, client])| {
        let name = format!("ucx {transport} {server} serves {client}");
        let more = if server == client { MORE_TESTS } else { &[] };
        let tests = [TESTS, more].concat();
        let run = move || unless_c_fails([&server, &client], |ends| run(transport, &tests, ends));
        Case::new(SUITE, name, run).within(3 * LIMIT)
    })
}

fn run(transport: &str, tests: &[Test], [server, client]: [&Maker; 2]) -> CaseResult {
    let gid = ipv6_gid_index()?.to_string();
    let file = std::env::temp_dir().join(format!("ucx-tests-{}", std::process::id()));
    fs::write(&file, batch(tests))?;
    let port = port::free()?;
    let command = |maker: &Maker| -> CaseResult<Command> {
        let mut command = program(maker, "ucx_perftest", PACKAGE)?;
        command.args(["-p", &port.to_string(), "-b"]).arg(&file);
        command.env("UCX_NET_DEVICES", format!("{DEVICE}:1")).env("UCX_IB_GID_INDEX", &gid);
        command.env("UCX_TLS", format!("{transport},self"));
        Ok(command)
    };
    let [_, client] = meet(&mut command(server)?, command(client)?.arg("127.0.0.1"), port, LIMIT)?;
    check(&client, tests)
}

/// Returns the path of UCX's RDMA module, which is below a library directory.
///
/// # Errors
/// Fails if the module is not installed.
pub(super) fn module() -> CaseResult<PathBuf> {
    let module = |entry: DirEntry| entry.path().join("ucx/libuct_ib.so.0");
    let found = fs::read_dir("/usr/lib")?.flatten().map(module).find(|path| path.exists());
    found.ok_or_else(|| Stop::Failed("UCX has no module for RDMA below /usr/lib".to_owned()))
}

/// Returns the GID index for the IPv6 address that the kernel assigned to a netdev.
///
/// # Errors
/// Skips the case if the address is missing.
fn ipv6_gid_index() -> CaseResult<u32> {
    let gids = Path::new("/sys/class/infiniband").join(DEVICE).join("ports/1/gids");
    let is_ipv6 = |index: &u32| {
        fs::read_to_string(gids.join(index.to_string())).is_ok_and(|gid| gid.starts_with("fe80:"))
    };
    match (0..16).find(is_ipv6) {
        Some(index) => Ok(index),
        None => skip(format_args!("{DEVICE} has no GID of an IPv6 address")),
    }
}
