//! A chosen part of the suites on kernels for aarch64, which QEMU emulates: on rxe, and on the
//! ConnectX model.
//!
//! The programs are built for aarch64, and rdma-core's are Debian's. Cases name no provider, which
//! takes minutes to build.

use std::process::{Command, Stdio};

use super::lines::{SuiteLines, follow_guest};
use crate::arch::Arch;
use crate::test::Args;
use crate::test::stage::{StageResult, stage};
use crate::vm::connectx::{self, Port};
use crate::vm::kernel::Choice;
use crate::{aarch64, apt, c_abi, cargo, commit, vm};

/// A guest: its kernel, the port of its ConnectX, or `None` with rxe, the turn of the commits that
/// run it, and its cases.
struct Guest {
    kernel: &'static str,
    port: Option<Port>,
    turn: usize,
    suites: &'static [&'static str],
}

const GUESTS: &[Guest] = &[
    Guest { kernel: "6.12", port: None, turn: 0, suites: ON_RXE },
    Guest { kernel: "7.2", port: None, turn: 2, suites: ON_RXE },
    Guest { kernel: "7.2-16k", port: None, turn: 3, suites: WITH_LARGE_PAGES },
    Guest { kernel: "6.12", port: Some(Port::Roce), turn: 3, suites: ON_CONNECTX },
];

/// On rxe: our tools beside rdma-core's, ping-pongs of both, and two groups of the conformance
/// suite. `cargo xtask vm --arch aarch64` runs any.
const ON_RXE: &[&str] = &[
    "interop.output",
    "interop.pingpong ours serves ours -c",
    "interop.pingpong ours serves theirs -c",
    "interop.pingpong theirs serves ours -c",
    "conformance.device",
    "conformance.rc",
];

/// A case that takes minutes where other work keeps the processors busy: longer than the limit of a
/// case, and than that of each of its four messages.
const LONG: &str = "conformance.rc_lengths.megabytes_arrive_by_each_operation";
const LONG_WHY: &str = "four times 4 MiB take minutes in the emulator; guests of x86-64 run it";

/// Those that map queues, and those that register memory at addresses within a page.
const WITH_LARGE_PAGES: &[&str] = &[
    "interop.output of ibv_devinfo",
    "interop.pingpong ours serves ours -c",
    "conformance.device",
    "conformance.memory",
];

/// On two functions of the model: the same of our tools and rdma-core's.
const ON_CONNECTX: &[&str] = &["interop.output", "interop.rc"];

impl Guest {
    /// The prefix of its lines, and the end of its stage's name.
    fn label(&self) -> String {
        match self.port {
            None => format!("{} aarch64", self.kernel),
            Some(port) => format!("{} aarch64 mlx5 {}", self.kernel, port.name()),
        }
    }

    /// Makes sure of what it needs and this project does not build.
    ///
    /// # Errors
    /// There can be no guest, or nothing is built for it.
    fn prepare(&self) -> anyhow::Result<()> {
        let progress = vm::Progress::new(false);
        apt::ensure_tools(&[apt::VM_TOOLS], |line| progress.say(line))?;
        aarch64::Part::Programs.prepare()?;
        let choice: Choice = self.kernel.parse().map_err(anyhow::Error::msg)?;
        let device = if self.port.is_some() { vm::Device::Mlx5 } else { vm::Device::Rxe };
        vm::Boot::prepare(&choice, Arch::Aarch64, device, vm::Accel::Auto, &progress)?;
        Ok(())
    }

    /// Builds the programs and runs the suites.
    ///
    /// # Errors
    /// The programs or the model cannot be built, or the guest's program cannot be started.
    fn run(&self, args: &Args, result: &mut StageResult) -> anyhow::Result<()> {
        let programs = aarch64::build(aarch64::PROGRAMS)?;
        let libraries = c_abi::link_for_aarch64(&programs.join(c_abi::ARCHIVE))?;
        // Through /proc, because the file may have been rebuilt since this process started.
        let mut command = Command::new("/proc/self/exe");
        command.args(["vm", "--arch", Arch::Aarch64.name(), "--kernel", self.kernel]);
        command.args(["--timeout", &args.timeout.to_string()]);
        command.arg("--env").arg(format!("VERBS_BIN_DIR={}", programs.display()));
        command.arg("--env").arg(format!("VERBS_C_ABI_DIR={}", libraries.display()));
        match self.port {
            None => {
                command.args(["--device", "rxe", "--"]).arg(programs.join("guest"));
            }
            Some(port) => {
                command.args(["--device", "mlx5", "--functions", "2", "--port", port.name(), "--model"]);
                command.arg(connectx::build()?.join("connectx-model")).arg("--");
                command.arg(programs.join("guest-mlx5")).args(["--port", port.name()]);
            }
        }
        command.args(["--form", "erased", "--skip", &format!("{LONG}: {LONG_WHY}")]).args(self.suites);
        command.current_dir(cargo::root()).stdin(Stdio::null());
        let mut seen = SuiteLines::default();
        let status = follow_guest(&mut command, &self.label(), |line| seen.take(line, result))?;
        seen.finish(status, result);
        Ok(())
    }
}

/// Runs the guests of this commit's turn.
pub(in crate::test) fn stages(args: &Args, vm_required: bool) -> Vec<StageResult> {
    let turn = commit::turn();
    let names_guests = !args.kernel.is_empty() || args.device.is_some() || !args.suites.is_empty();
    let one = |guest: &Guest| {
        stage(&format!("guest suites on {}", guest.label()), |result| {
            if names_guests {
                return result.skip("the command line names other guests (cargo xtask test --only aarch64)");
            }
            if turn.is_some_and(|turn| turn != guest.turn) {
                return result.skip("other commits have it (cargo xtask test --only aarch64)");
            }
            // What is not to be had is skipped; what is there has to build and to run.
            if let Err(error) = guest.prepare() {
                let why = format!("no guest of aarch64: {error:#}");
                if vm_required { result.fail(why) } else { result.skip(why) }
            } else if let Err(error) = guest.run(args, result) {
                result.fail(format!("{error:#}"));
            }
        })
    };
    GUESTS.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_guest_has_a_kernel_that_is_known_and_a_turn() {
        for guest in GUESTS {
            assert!(guest.kernel.parse::<Choice>().is_ok(), "{}", guest.label());
            assert!(guest.turn < commit::TURNS && !guest.suites.is_empty(), "{}", guest.label());
        }
    }

    /// A guest refuses a suite that it does not have, and a name of no case leaves out nothing.
    #[test]
    fn the_case_that_is_left_out_exists() {
        let cases = aarch64::tests::conformance_cases();
        assert!(cases.iter().any(|case| case == LONG), "no case is called {LONG}");
    }
}
