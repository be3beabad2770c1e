//! Suites on mlx5 devices. rdma-core, perftest and pyverbs are independent of this project and run
//! on the kernel's driver. They work on any mlx5 device and check that the ConnectX model behaves
//! like one.
//!
//! | suite | subject |
//! |---|---|
//! | [`devinfo`] | attributes that the driver and libmlx5 read from the device |
//! | [`pingpong`] | rdma-core's ping-pongs over every transport |
//! | [`perftest`] | every operation, in many sizes; frames |
//! | [`rdmacm`] | IP and connections by address between two functions with Ethernet ports |
//! | [`connections`] | the same with our API and our tools |
//! | [`pyverbs`] | rdma-core's own test suite |
//! | [`ucx`] | UCX's benchmark |
//! | [`differential`] | one program on both libraries: equal traces |
//! | [`attributes`] | one program on both libraries: equal commands to the kernel |
//! | [`direct`] | a program that fills the queues itself, on both libraries |
//! | [`compressed`] | queues that the device compresses, on both libraries and our API |
//! | [`faults`] | how programs see device failures, which [`Control`] injects |
//! | [`interop`] | our tools against rdma-core's tools; their output |
//! | [`ours`] | this project's API: suites `conformance`, `lifecycle`, `negative`, `fork`, `fuzz` |
//! | [`beyond`] | our API's methods for ConnectX features beyond verbs |
//! | [`registers`] | our API with doorbell registers of every kind |
//! | [`scattered`] | our API with short data in completions |
//! | `c_abi` | most of the programs above again, on this project's library |
//!
//! After each case, the model's complaints and the kernel's messages are read. A complaint fails
//! the case that caused it. A failure includes the kernel's messages. A case that breaks a rule on
//! purpose names the rule. With `--usual`, two guests share the suites, and the cases that a guest
//! leaves out count as skipped ([`left_out`]).

pub mod attributes;
pub mod beyond;
mod commands;
pub mod compressed;
pub mod connections;
pub mod devinfo;
pub mod differential;
pub mod direct;
pub mod faults;
pub mod interop;
mod kernel_log;
mod live;
pub mod ours;
pub mod perftest;
pub mod pingpong;
pub mod pyverbs;
mod raw_ethernet;
pub mod rdmacm;
pub mod registers;
pub mod scattered;
pub mod ucx;
mod variables;

// Exported for `tests/units.rs`.
#[doc(hidden)]
pub use self::kernel_log::line;
#[doc(hidden)]
pub use self::raw_ethernet::{ReceiveQueue, mac_of_gid};

use verbs_c_programs::compiled::Program;
use verbs_c_programs::{arguments, beside_poller};
use verbs_fixtures::control::Control;
use verbs_fixtures::functions::{Port, Setup};
use verbs_harness::runner::{Case, Form, Stop, fail};
use verbs_harness::tools::link_theirs;

use self::kernel_log::KernelLog;

/// The C programs that the suites compile.
pub const PROGRAMS: [Program; 6] = [
    arguments::PROGRAM,
    beside_poller::PROGRAM,
    attributes::PROGRAM,
    compressed::PROGRAM,
    differential::PROGRAM,
    direct::PROGRAM,
];

/// Returns all cases for a guest, in execution order. The last cases break the device. The very
/// last case removes it: under our library in a guest with Ethernet ports, and under rdma-core's
/// library in the other guest.
pub fn all(setup: Setup) -> Vec<Case> {
    let removal = match setup.port {
        Port::Ib => faults::removal(),
        Port::Roce => linked(faults::removal()),
    };
    [
        devinfo::cases(setup),
        pingpong::cases(setup),
        perftest::cases(setup),
        rdmacm::cases(setup),
        pyverbs::cases(setup),
        interop::cases(setup),
        ours::cases(),
        connections::cases(setup),
        beyond::cases(),
        registers::cases(),
        scattered::cases(),
        linked(devinfo::cases(setup)),
        linked(pingpong::cases(setup)),
        linked(perftest::cases(setup)),
        linked(rdmacm::programs(setup)),
        linked(rdmacm::more_programs(setup)),
        pyverbs::linked(setup),
        ucx::cases(setup),
        linked(ucx::cases(setup)),
        differential::cases(setup),
        attributes::cases(setup),
        direct::cases(setup),
        compressed::cases(setup),
        linked(faults::cases(setup)),
        faults::cases(setup),
        removal,
    ]
    .into_iter()
    .flatten()
    .map(watched)
    .collect()
}

/// Returns the cases that a guest with `--usual` leaves out, each with the reason. Two guests share
/// the work of such a run:
///
/// - The guest with InfiniBand ports runs our API with its provider named, also with compressed
///   completions and other registers. It runs C programs on rdma-core's libraries: in the
///   differential suite, with faults, and as peers of our tools.
/// - The guest with Ethernet ports runs our API with its provider erased, and with it named where
///   completions contain data. It runs C programs on our libraries, including pyverbs and faults,
///   whose last case removes the device. It also runs the differential suite for frames.
///
/// Ping-pongs and perftest on rdma-core's libraries test only the model, so only guests without
/// `--usual` run them.
pub fn left_out(setup: Setup) -> Vec<(String, String)> {
    const FOR_ETHERNET: &[&str] =
        &["scattered", "c_abi.devinfo", "c_abi.pingpong", "c_abi.perftest", "c_abi.pyverbs", "c_abi.faults"];
    const FOR_INFINIBAND: &[&str] = &["differential", "registers", "compressed.conformance", "faults"];
    /// Cases that take minutes on the model. Other cases also find resources left behind by a
    /// round. The results on rdma-core's library are known.
    const LONG: &[&str] = &[
        "lifecycle.a_thousand_rounds",
        "pingpong",
        "perftest",
        "pyverbs",
        "c_abi.pyverbs.each",
        "ucx",
        "c_abi.ucx",
    ];
    let elsewhere = match setup.port {
        Port::Ib => FOR_ETHERNET,
        Port::Roce => FOR_INFINIBAND,
    };
    let is_of_frames =
        |name: &str| differential::FRAMES.iter().any(|f| name.starts_with(&format!("differential.{f} ")));
    let is_in = |suites: &[&str], name: &str| suites.iter().any(|suite| name.starts_with(suite));
    let why = |name: &str| {
        if is_in(LONG, name) || connections::is_long(name) {
            return Some("cargo xtask test --whole mlx5-6.1 runs it");
        }
        let is_here = setup.port == Port::Roce && is_of_frames(name);
        (is_in(elsewhere, name) && !is_here).then_some("left to the guest with the other kind of port")
    };
    let names = all(setup).into_iter().map(|case| case.name);
    names.filter_map(|name| why(&name).map(|why| (name.clone(), why.to_owned()))).collect()
}

/// Returns the form of our API's cases in a guest with `--usual`.
pub fn usual_form(setup: Setup) -> Form {
    match setup.port {
        Port::Ib => Form::Static,
        Port::Roce => Form::Erased,
    }
}

/// Returns the cases with their programs running on this project's `libibverbs.so.1` and
/// `libmlx5.so.1`.
fn linked(cases: Vec<Case>) -> Vec<Case> {
    let one = |Case { name, deadline, run }| {
        let run = move || {
            link_theirs()?;
            run()
        };
        Case { name: format!("c_abi.{name}"), deadline, run: Box::new(run) }
    };
    cases.into_iter().map(one).collect()
}

/// Adds a check to a case: it fails if the model complained during the case, except about the rule
/// that the case breaks on purpose.
fn watched(case: Case) -> Case {
    let Case { name, deadline, run } = case;
    let provoked = ours::provoked(&name);
    let run = move || {
        let kernel = KernelLog::from_now();
        let before = Control::complaints().unwrap_or_default();
        if !before.is_empty() {
            return fail(format_args!("the model complained before the case began: {}", before.join("; ")));
        }
        let verdict = run();
        let mut complaints = Control::complaints().unwrap_or_default();
        if let Some((rule, is_certain)) = provoked {
            let all = complaints.len();
            complaints.retain(|complaint| !complaint.contains(&format!(": {rule}: ")));
            if is_certain && verdict.is_ok() && complaints.len() == all && Control::open().is_ok() {
                return fail(format_args!("the model did not complain of {rule}"));
            }
        }
        let verdict = match verdict {
            Err(Stop::Failed(_)) => {
                complaints.iter().for_each(|complaint| eprintln!("the model complained: {complaint}"));
                verdict
            }
            _ if !complaints.is_empty() => {
                fail(format_args!("the model complained: {}", complaints.join("; ")))
            }
            _ => verdict,
        };
        if matches!(verdict, Err(Stop::Failed(_))) {
            kernel.lines().iter().for_each(|line| eprintln!("kernel: {line}"));
        }
        verdict
    };
    Case { name, deadline, run: Box::new(run) }
}
