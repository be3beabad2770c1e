//! `librdmacm`: Debian's connection manager on the libraries, as far as it goes without the
//! kernel's.
//!
//! The loader reports each symbol that it binds, so that a case fails if librdmacm uses another
//! libibverbs. librdmacm then finds the soft device through the library, and fails because the
//! kernel has no `/dev/infiniband/rdma_cm`; on rdma-core's library, which has no device here, it
//! fails before with `ENODEV`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use verbs_tests::cases;
use verbs_tests::process::{self, Finished};
use verbs_tests::runner::{Case, CaseResult, Stop, fail, skip};

use crate::library;

const SUITE: &str = "librdmacm";
const LIMIT: Duration = Duration::from_secs(60);

/// The kernel's connection manager.
const FILE: &str = "/dev/infiniband/rdma_cm";

/// `ENOENT` of the missing file.
const NO_CHANNEL: &str = "failed to create RDMA CM event channel: No such file or directory";

/// The programs of rdmacm-utils, arguments, and the error without the kernel's connection manager.
/// librdmacm turns every failure to make a channel for an identifier into `ENOMEM`.
const TOOLS: &[(&str, &[&str], &str)] = &[
    ("cmtime", &["-s", "127.0.0.1"], NO_CHANNEL),
    ("mckey", &["-m", "239.1.1.1"], NO_CHANNEL),
    ("rcopy", &[], "rsocket failed: Cannot allocate memory"),
    ("rdma_client", &["-s", "127.0.0.1"], "rdma_create_ep: Cannot allocate memory"),
    ("rdma_server", &[], "rdma_create_ep: Cannot allocate memory"),
    ("rdma_xclient", &["-s", "127.0.0.1"], "rdma_create_ep: Cannot allocate memory"),
    ("rdma_xserver", &[], "rdma_create_ep: Cannot allocate memory"),
    ("riostream", &["-s", "127.0.0.1"], "rsocket failed: Cannot allocate memory"),
    ("rping", &["-s", "-a", "127.0.0.1"], NO_CHANNEL),
    ("rstream", &["-s", "127.0.0.1"], "rsocket failed: Cannot allocate memory"),
    ("ucmatose", &["-s", "127.0.0.1"], NO_CHANNEL),
    ("udaddy", &["-s", "127.0.0.1"], NO_CHANNEL),
    ("udpong", &["-s", "127.0.0.1"], "rconnect: Cannot allocate memory"),
];

/// Symbols of libibverbs that librdmacm needs, at least.
const NEEDED: &[&str] = &[
    "ibv_close_device",
    "ibv_create_cq",
    "ibv_create_qp",
    "ibv_get_device_list",
    "ibv_modify_qp",
    "ibv_open_device",
];

/// Returns the cases of the suite.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<_> = TOOLS
        .iter()
        .map(|(tool, arguments, error)| {
            let name = format!("{tool} runs on the library and misses the kernel's rdma_cm");
            Case::new(SUITE, name, || {
                check(library::program(tool, "rdmacm-utils")?.args(*arguments), &[error])
            })
        })
        .collect();
    cases.extend(cases![
        SUITE,
        it_finds_the_soft_device_and_no_channel,
        perftest_by_address_fails_cleanly_without_rdma_cm,
    ]);
    cases
}

/// Runs a program of librdmacm that fails with these lines.
fn check(command: &mut Command, errors: &[&str]) -> CaseResult {
    if Path::new(FILE).exists() {
        return skip(format_args!("the kernel has {FILE}, so that nothing fails"));
    }
    // All symbols are bound, and the loader reports it on stderr.
    let ended = process::run_group(command.env("LD_BIND_NOW", "1").env("LD_DEBUG", "bindings"), LIMIT)?
        .map_err(|killed| Stop::Failed(format!("it did not end: {}", told(&killed))))?;
    if ended.status.code().is_none_or(|code| code == 0) {
        return fail(format_args!("{}: {}", ended.status, told(&ended)));
    }
    uses_the_library(&ended.stderr)?;
    let told = told(&ended);
    let missing = errors.iter().find(|error| !told.lines().any(|line| line.trim() == **error));
    missing.map_or(Ok(()), |error| fail(format_args!("not {error:?}: {told}")))
}

/// Returns what a program printed, without the lines of the loader, which begin with a number.
fn told(ended: &Finished) -> String {
    let is_report =
        |line: &&str| line.split_once(":\t").is_some_and(|(number, _)| number.trim().parse::<u32>().is_ok());
    let lines = ended.stdout.lines().chain(ended.stderr.lines());
    lines.filter(|line| !is_report(line)).fold(String::new(), |all, line| all + line + "\n")
}

/// Checks the loader's reports: `binding file PATH [0] to PATH [0]: normal symbol 'NAME' [NODE]`.
fn uses_the_library(reports: &str) -> CaseResult {
    let ours = library::directory()?.join("libibverbs.so.1");
    let mut bound = Vec::new();
    for line in reports.lines() {
        let Some((from, to)) = line.split_once("binding file ").and_then(|(_, rest)| rest.split_once(" to "))
        else {
            continue;
        };
        let Some((to, symbol)) = to.split_once(" [") else { continue };
        if !to.contains("/libibverbs.so") {
            continue;
        }
        if Path::new(to) != ours {
            return fail(format_args!("another library is used: {line}"));
        }
        if from.contains("/librdmacm.so.1 ") {
            bound.extend(symbol.split(['`', '\'']).nth(1));
        }
    }
    match NEEDED.iter().find(|name| !bound.contains(name)) {
        None => Ok(()),
        Some(name) => fail(format_args!("librdmacm is not bound to {name} of {}: {bound:?}", ours.display())),
    }
}

/// Lists librdmacm's devices and makes a channel, and prints the errors.
const LIST: &str = r#"
import ctypes, errno
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
print(cm.rdma_create_event_channel(), errno.errorcode.get(ctypes.get_errno()))
"#;

fn it_finds_the_soft_device_and_no_channel() -> CaseResult {
    library::installed("rping", "rdmacm-utils")?;
    let mut python = library::program("python3", "python3")?;
    let ended = process::run_group(python.args(["-c", LIST]), LIMIT)?
        .map_err(|killed| Stop::Failed(format!("it did not end: {killed:?}")))?;
    let channel = if Path::new(FILE).exists() { "" } else { "None ENOENT\n" };
    if ended.status.success() && ended.stdout.starts_with("soft0\n") && ended.stdout.ends_with(channel) {
        Ok(())
    } else {
        fail(format_args!("{ended:?}"))
    }
}

fn perftest_by_address_fails_cleanly_without_rdma_cm() -> CaseResult {
    let mut command = library::program("ib_write_bw", "perftest")?;
    check(
        command.args(["-F", "-d", "soft0", "-R", "127.0.0.1"]),
        &["rdma_create_event_channel failed", "Unable to create RDMA_CM resources"],
    )
}
