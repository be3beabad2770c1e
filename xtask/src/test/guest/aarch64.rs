//! A chosen part of the suites on rxe of kernels for aarch64, which QEMU emulates.
//!
//! The programs are built for aarch64, and rdma-core's are Debian's. Cases name no provider, which
//! takes minutes to build.

use std::process::{Command, Stdio};

use super::lines::{SuiteLines, follow_guest};
use crate::arch::Arch;
use crate::test::Args;
use crate::test::stage::{StageResult, stage};
use crate::vm::kernel::{Choice, SERIES};
use crate::{aarch64, apt, c_abi, cargo, commit, vm};

/// The kernels, each with the turn of the commits that run it.
const KERNELS: &[(&str, usize)] = &[("6.12", 0), ("7.2", 2)];

/// The cases: our tools beside rdma-core's, ping-pongs of both, and two groups of the conformance
/// suite. `cargo xtask vm --arch aarch64` runs any.
const SUITES: &[&str] = &[
    "interop.output",
    "interop.pingpong ours serves ours -c",
    "interop.pingpong ours serves theirs -c",
    "interop.pingpong theirs serves ours -c",
    "conformance.device",
    "conformance.rc",
];

/// Runs the guests of this commit's turn.
pub(in crate::test) fn stages(args: &Args, vm_required: bool) -> Vec<StageResult> {
    let turn = commit::turn();
    let names_guests = !args.kernel.is_empty() || args.device.is_some() || !args.suites.is_empty();
    let one = |&(kernel, its): &(&str, usize)| {
        stage(&format!("guest suites on {kernel} aarch64"), |result| {
            if names_guests {
                return result.skip("the command line names other guests (cargo xtask test --only aarch64)");
            }
            if turn.is_some_and(|turn| turn != its) {
                return result.skip("other commits have it (cargo xtask test --only aarch64)");
            }
            // What is not to be had is skipped; what is there has to build and to run.
            if let Err(error) = prepare(kernel) {
                let why = format!("no guest of aarch64: {error:#}");
                if vm_required { result.fail(why) } else { result.skip(why) }
            } else if let Err(error) = run(args, kernel, result) {
                result.fail(format!("{error:#}"));
            }
        })
    };
    KERNELS.iter().map(one).collect()
}

/// Makes sure of what a guest needs and this project does not build.
///
/// # Errors
/// There can be no guest, or nothing is built for it.
fn prepare(kernel: &str) -> anyhow::Result<()> {
    let progress = vm::Progress::new(false);
    apt::ensure_tools(&[apt::VM_TOOLS], |line| progress.say(line))?;
    aarch64::Part::Programs.prepare()?;
    let choice = SERIES.iter().find(|series| series.name == kernel).map(Choice::Series);
    if let Some(choice) = choice {
        vm::Boot::prepare(&choice, Arch::Aarch64, vm::Device::Rxe, vm::Accel::Auto, &progress)?;
    }
    Ok(())
}

/// Builds the programs and runs the suites in a guest.
///
/// # Errors
/// The programs cannot be built, or the guest's program cannot be started.
fn run(args: &Args, kernel: &str, result: &mut StageResult) -> anyhow::Result<()> {
    let programs = aarch64::build(aarch64::PROGRAMS)?;
    let libraries = c_abi::link_for_aarch64(&programs.join(c_abi::ARCHIVE))?;
    // Through /proc, because the file may have been rebuilt since this process started.
    let mut command = Command::new("/proc/self/exe");
    command.args(["vm", "--arch", Arch::Aarch64.name(), "--kernel", kernel, "--device", "rxe"]);
    command.args(["--timeout", &args.timeout.to_string()]);
    command.arg("--env").arg(format!("VERBS_BIN_DIR={}", programs.display()));
    command.arg("--env").arg(format!("VERBS_C_ABI_DIR={}", libraries.display()));
    command.arg("--").arg(programs.join("guest")).args(["--form", "erased"]).args(SUITES);
    command.current_dir(cargo::root()).stdin(Stdio::null());
    let mut seen = SuiteLines::default();
    let status = follow_guest(&mut command, &format!("{kernel} aarch64"), |line| seen.take(line, result))?;
    seen.finish(status, result);
    // The table of conformance results has no column of this architecture.
    result.conformance.clear();
    Ok(())
}
