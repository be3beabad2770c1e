//! The vm part: suites in guests, two guests at a time.
//!
//! A guest suite prints `ok NAME`, `FAIL NAME: why` and `skip NAME: why` lines and ends with the
//! same closing line as `cargo xtask test`. The suites are binaries of verbs-tests: `guest
//! [SUITE...]` on rxe, `guest-mlx5 --port ib|roce [SUITE...]` on the ConnectX model, which has two
//! functions here.
//!
//! | guests | by default | with `--kernel all` |
//! |---|---|---|
//! | rxe, all suites | 6.1, 7.2, each [a part](shares::BY_DEFAULT) | 5.10, 6.1, 6.12, 7.2 |
//! | rxe, conformance, every ioctl refused | 6.1 | 6.1 |
//! | mlx5 | 6.1 InfiniBand, 7.2 RoCE, each a part | 6.1, 6.12 and 7.2, both ports, all suites |

pub(super) mod aarch64;
mod lines;
mod programs;
mod shares;

use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use self::lines::{SuiteLines, follow_guest};
use self::programs::Programs;
use self::shares::{Usual, turn};
use super::stage::{StageResult, stage};
use super::{Args, Kernels};
use crate::arch::Arch;
use crate::vm::connectx::Port;
use crate::vm::kernel::{Choice, SERIES};
use crate::{apt, cargo, vm};

/// A guest: its kernel and its device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Guest {
    kernel: Choice,
    device: Device,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Device {
    Rxe,
    /// The conformance suite under a filter that refuses every ioctl of uverbs.
    RxeWithoutIoctls,
    /// The same suites without a device.
    None,
    Mlx5(Port),
}

impl Device {
    /// The value of `vm --device`.
    fn kind(self) -> vm::Device {
        match self {
            Device::Rxe | Device::RxeWithoutIoctls => vm::Device::Rxe,
            Device::None => vm::Device::None,
            Device::Mlx5(_) => vm::Device::Mlx5,
        }
    }
}

/// The kernel whose mlx5 driver is older than the tests support.
const WITHOUT_MLX5: &str = "5.10";

/// The start of the reason for skipping a case in a program that does not name the provider of its
/// device (`fabric::open_named` of verbs-tests).
const UNNAMED: &str = "this program names no provider";

/// The kernel on which the suite runs once more without ioctls.
const WITHOUT_IOCTLS: &str = "6.1";

/// Returns the guests for the command line: those with rxe before those with mlx5.
pub(super) fn plan(args: &Args) -> Vec<Guest> {
    let (is_all, named) = (args.kernel.contains(&Kernels::All), !args.kernel.is_empty());
    let kernels: Vec<_> = if is_all {
        SERIES.iter().map(Choice::Series).collect()
    } else if named {
        let one = |kernels: &Kernels| match kernels {
            Kernels::One(choice) => Some(choice.clone()),
            Kernels::All => None,
        };
        args.kernel.iter().filter_map(one).collect()
    } else {
        SERIES.iter().filter(|series| shares::usual(series.name).is_some()).map(Choice::Series).collect()
    };
    let ports = |kernel: &Choice| -> Vec<Port> {
        match (args.port, shares::usual(&kernel.to_string())) {
            (Some(port), _) => vec![port],
            (None, Some(usual)) if !named => vec![usual.port],
            (None, _) => vec![Port::Ib, Port::Roce],
        }
    };
    let (first, has_mlx5) = match args.device {
        Some(vm::Device::Rxe) => (Some(Device::Rxe), false),
        Some(vm::Device::None) => (Some(Device::None), false),
        Some(vm::Device::Mlx5) => (None, true),
        // Named suites belong to one program.
        None => (Some(Device::Rxe), args.suites.is_empty()),
    };
    // A command line that names both the kernel and the device gets them.
    let asked_for = args.device.is_some() && named && !is_all;
    let mut guests = Vec::new();
    for kernel in &kernels {
        let guest = |device| Guest { kernel: kernel.clone(), device };
        guests.extend(first.map(guest));
        let is_whole = first == Some(Device::Rxe) && args.suites.is_empty();
        if is_whole && kernel.to_string() == WITHOUT_IOCTLS {
            guests.push(guest(Device::RxeWithoutIoctls));
        }
    }
    for kernel in kernels.iter().filter(|_| has_mlx5) {
        if asked_for || kernel.to_string() != WITHOUT_MLX5 {
            let guest = |port| Guest { kernel: kernel.clone(), device: Device::Mlx5(port) };
            guests.extend(ports(kernel).into_iter().map(guest));
        }
    }
    guests
}

impl Guest {
    /// The prefix of its lines.
    fn label(&self) -> String {
        match self.device {
            Device::Rxe | Device::None => self.kernel.to_string(),
            Device::RxeWithoutIoctls => format!("{} without ioctls", self.kernel),
            Device::Mlx5(port) => format!("{} mlx5 {}", self.kernel, port.name()),
        }
    }

    /// Its name in the summary.
    fn stage(&self) -> String {
        format!("guest suites on {}", self.label())
    }

    /// Returns the arguments of `vm` that select it.
    fn arguments(&self) -> Vec<String> {
        let mut words = vec!["--kernel".to_owned(), self.kernel.to_string(), "--device".to_owned()];
        match self.device {
            Device::Rxe | Device::RxeWithoutIoctls => words.push("rxe".to_owned()),
            Device::None => words.push("none".to_owned()),
            Device::Mlx5(port) => {
                words.extend(["mlx5", "--port", port.name(), "--functions", "2"].map(str::to_owned));
            }
        }
        words
    }

    /// The suites' program.
    fn program(&self) -> &'static str {
        match self.device {
            Device::Rxe | Device::RxeWithoutIoctls | Device::None => "guest",
            Device::Mlx5(_) => "guest-mlx5",
        }
    }

    /// Returns what it runs of the suites; `None` for all.
    fn usual(&self, args: &Args) -> Option<&'static Usual> {
        let is_chosen = !args.kernel.is_empty() || !args.suites.is_empty();
        if is_chosen { None } else { shares::usual(&self.kernel.to_string()) }
    }

    /// Returns what of that this commit leaves to others.
    fn left_to_other_commits(&self, args: &Args) -> Vec<&'static str> {
        match turn(args) {
            Some(turn) if self.device != Device::RxeWithoutIoctls => {
                shares::left_in_turn(turn, self.has_model())
            }
            _ => Vec::new(),
        }
    }

    /// Returns the form of the cases on our API; `None` for both, or where the suites choose.
    fn form(&self, args: &Args) -> Option<&'static str> {
        let usual = self.usual(args).filter(|_| self.device != Device::RxeWithoutIoctls)?;
        Some(if self.is_named(args) { usual.form } else { "erased" })
    }

    /// Returns whether this commit leaves the whole guest to others.
    fn is_left_to_other_commits(&self, args: &Args) -> bool {
        self.device == Device::RxeWithoutIoctls && turn(args).is_some_and(|turn| turn % 2 == 1)
    }

    /// Returns whether the programs name its provider.
    fn is_named(&self, args: &Args) -> bool {
        turn(args).is_none_or(|turn| shares::is_named_in(turn, self.has_model()))
    }

    fn has_model(&self) -> bool {
        matches!(self.device, Device::Mlx5(_))
    }
}

/// Prepares everything that the guests need. An error is the reason why a guest cannot run.
pub(super) fn prepare(guests: &[Guest]) -> Vec<Result<(), String>> {
    let progress = vm::Progress::new(false);
    let text = |error: anyhow::Error| format!("{error:#}");
    // Preparation that all guests of a device share is tried once, because it takes long without a
    // network.
    let shared = |device: vm::Device| {
        let tools: &[_] = match device {
            vm::Device::Mlx5 => &[apt::VM_TOOLS, apt::MLX5_TOOLS],
            _ => &[apt::VM_TOOLS, apt::INTEROP_TOOLS, apt::C_PROGRAMS],
        };
        apt::ensure_tools(tools, |line| progress.say(line))
            .and_then(|()| vm::ensure_qemu(device, &progress))
            .map_err(text)
    };
    let mut tried: Vec<(vm::Device, Result<(), String>)> = Vec::new();
    let mut ready = Vec::new();
    for guest in guests {
        let device = guest.device.kind();
        let known = tried.iter().find(|(known, _)| *known == device).map(|(_, result)| result.clone());
        let shared = known.unwrap_or_else(|| {
            let result = shared(device);
            tried.push((device, result.clone()));
            result
        });
        ready.push(shared.and_then(|()| {
            vm::Boot::prepare(&guest.kernel, Arch::X86_64, device, vm::Accel::Auto, &progress)
                .map(|_| ())
                .map_err(text)
        }));
    }
    ready
}

/// Guests whose programs are built.
#[derive(Default)]
pub(super) struct Built<'a> {
    /// Results of the builds, and of guests that cannot run.
    results: Vec<StageResult>,
    /// Guests and their places in the plan, until one runs.
    waiting: VecDeque<(usize, &'a Guest)>,
    programs: Option<Programs>,
}

/// Builds the programs of the guests that are ready.
pub(super) fn build<'a>(
    args: &Args,
    guests: &'a [Guest],
    ready: &[Result<(), String>],
    vm_required: bool,
) -> Built<'a> {
    let (mut results, mut waiting) = (Vec::new(), VecDeque::new());
    for (place, (guest, ready)) in guests.iter().zip(ready).enumerate() {
        match ready {
            Ok(()) if guest.is_left_to_other_commits(args) => {
                let mut result = StageResult { name: guest.stage(), ..StageResult::default() };
                result.skip("other commits have it (cargo xtask test --whole)");
                results.push(result);
            }
            Ok(()) => waiting.push_back((place, guest)),
            Err(why) => {
                let mut result = StageResult { name: guest.stage(), ..StageResult::default() };
                println!("== {}\nNOT RUN: no VM is available: {why}", result.name);
                if vm_required {
                    result.fail(format!("no VM is available: {why}"));
                } else {
                    result.skip(format!("no VM is available: {why}"));
                }
                results.push(result);
            }
        }
    }
    let programs = if waiting.is_empty() { None } else { programs::build(args, &mut waiting, &mut results) };
    Built { results, waiting, programs }
}

/// Runs the suites in every guest.
pub(super) fn stages(args: &Args, built: Built<'_>) -> Vec<StageResult> {
    let Built { mut results, mut waiting, programs } = built;
    let Some(programs) = programs else { return results };
    // Those that take longest first, so that the last ones end together.
    waiting.make_contiguous().sort_by_key(|(_, guest)| match guest.device {
        Device::Mlx5(_) => 0,
        Device::Rxe | Device::None => 1,
        Device::RxeWithoutIoctls => 2,
    });
    // Two at a time: one guest alone leaves a processor idle for much of its boot.
    let (waiting, done) = (Mutex::new(waiting), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some((place, guest)) = waiting.lock().ok().and_then(|mut w| w.pop_front()) else {
                        return;
                    };
                    let result = stage(&guest.stage(), |result| run(args, guest, &programs, result));
                    if let Ok(mut done) = done.lock() {
                        done.push((place, result));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(place, _)| *place);
    results.extend(done.into_iter().map(|(_, result)| result));
    results
}

fn run(args: &Args, guest: &Guest, programs: &Programs, result: &mut StageResult) {
    // Through /proc, because the file may have been rebuilt since this process started.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg("vm")
        .args(guest.arguments())
        .args(["--timeout", &args.timeout.to_string(), "--env"])
        .arg(format!("VERBS_BIN_DIR={}", programs.bin_dir.display()));
    for (name, dir) in [
        ("VERBS_STATIC_DIR", &programs.static_dir),
        ("VERBS_MUSL_DIR", &programs.musl_dir),
        ("VERBS_RDMA_CORE_DIR", &programs.rdma_core_dir),
        ("VERBS_C_ABI_DIR", &programs.c_abi_dir),
    ] {
        if let Some(dir) = dir {
            command.arg("--env").arg(format!("{name}={}", dir.display()));
        }
    }
    if let (true, Some(model)) = (guest.has_model(), &programs.model) {
        command.arg("--model").arg(model);
    }
    command.arg("--").arg(programs.bin_dir.join(guest.program()));
    match guest.device {
        Device::Mlx5(port) => {
            command.args(["--port", port.name()]);
            if guest.usual(args).is_some() {
                command.arg("--usual");
            }
        }
        Device::RxeWithoutIoctls => drop(command.args(["--without-ioctls", "conformance"])),
        Device::Rxe | Device::None => {
            if let Some(usual) = guest.usual(args) {
                // A line tells of each case that is skipped.
                for part in usual.skip {
                    command.args(["--skip", part]);
                }
            }
        }
    }
    if let Some(form) = guest.form(args) {
        command.args(["--form", form]);
    }
    for part in guest.left_to_other_commits(args) {
        command.args(["--skip", part]);
    }
    command.args(&args.suites).current_dir(cargo::root()).stdin(Stdio::null());
    let (mut seen, mut unnamed) = (SuiteLines::default(), 0);
    let status = follow_guest(&mut command, &guest.label(), |line| {
        unnamed += u32::from(line.contains(UNNAMED));
        seen.take(line, result);
    });
    if unnamed > 0 && guest.is_named(args) {
        result.fail(format!("{unnamed} cases miss the provider's name, which the programs should have"));
    }
    match status {
        Ok(status) => seen.finish(status, result),
        Err(error) => result.fail(format!("{error:#}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(command_line: &[&str]) -> Args {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            args: Args,
        }
        let words = ["test"].iter().chain(command_line);
        <Cli as clap::Parser>::try_parse_from(words).unwrap().args
    }

    fn labels(command_line: &[&str]) -> Vec<String> {
        plan(&parsed(command_line)).iter().map(Guest::label).collect()
    }

    #[test]
    fn the_default_kernels_share_the_suites_and_chosen_ones_run_all() {
        let usual = |command_line: &[&str]| -> Vec<Option<&str>> {
            let args = parsed(command_line);
            let guests = plan(&args).into_iter().filter(|guest| guest.device == Device::Rxe);
            guests.map(|guest| guest.usual(&args).map(|usual| usual.kernel)).collect()
        };
        assert_eq!(usual(&[]), [Some("6.1"), Some("7.2")]);
        assert_eq!(usual(&["--device", "rxe"]), [Some("6.1"), Some("7.2")]);
        assert_eq!(usual(&["c_abi"]), [None, None]);
        assert_eq!(usual(&["--kernel", "7.2"]), [None]);
        assert_eq!(usual(&["--kernel", "all"]), [None; 4]);
        let mut skipped: Vec<&str> =
            shares::BY_DEFAULT.iter().flat_map(|usual| usual.skip).copied().collect();
        let mut forms: Vec<&str> = shares::BY_DEFAULT.iter().map(|usual| usual.form).collect();
        for one_each in [&mut skipped, &mut forms] {
            one_each.sort_unstable();
            assert!(one_each.windows(2).all(|pair| pair[0] != pair[1]), "run nowhere or twice: {one_each:?}");
        }
    }

    #[test]
    fn by_default_two_kernels_run_rxe_and_then_mlx5_with_a_port_each() {
        let default = ["6.1", "6.1 without ioctls", "7.2", "6.1 mlx5 ib", "7.2 mlx5 roce"];
        assert_eq!(labels(&[]), default);
        assert_eq!(labels(&["--device", "rxe"]), default[..3]);
        assert_eq!(labels(&["--device", "mlx5"]), default[3..]);
        assert_eq!(labels(&["--device", "mlx5", "--port", "ib"]), ["6.1 mlx5 ib", "7.2 mlx5 ib"]);
    }

    #[test]
    fn with_all_kernels_all_but_the_oldest_run_mlx5_with_either_port() {
        let all = labels(&["--kernel", "all"]);
        assert_eq!(all[..5], ["5.10", "6.1", "6.1 without ioctls", "6.12", "7.2"]);
        let mlx5 = [
            "6.1 mlx5 ib",
            "6.1 mlx5 roce",
            "6.12 mlx5 ib",
            "6.12 mlx5 roce",
            "7.2 mlx5 ib",
            "7.2 mlx5 roce",
        ];
        assert_eq!(all[5..], mlx5);
        assert_eq!(labels(&["--kernel", "all", "--device", "mlx5"]), mlx5);
    }

    #[test]
    fn a_chosen_kernel_port_or_suite_narrows_the_guests() {
        assert_eq!(labels(&["--kernel", "6.12"]), ["6.12", "6.12 mlx5 ib", "6.12 mlx5 roce"]);
        assert_eq!(labels(&["--kernel", "5.10"]), ["5.10"]);
        assert_eq!(labels(&["--kernel", "5.10", "--device", "mlx5", "--port", "ib"]), ["5.10 mlx5 ib"]);
        assert_eq!(labels(&["--kernel", "6.1", "some-suite"]), ["6.1"]);
        assert_eq!(labels(&["some-suite"]), ["6.1", "7.2"]);
        assert_eq!(
            labels(&["--kernel", "6.1", "--device", "mlx5", "--port", "roce", "x"]),
            ["6.1 mlx5 roce"]
        );
    }

    #[test]
    fn a_guest_with_a_model_has_two_functions_and_its_own_program() {
        let guest = Guest { kernel: Choice::Series(&SERIES[1]), device: Device::Mlx5(Port::Roce) };
        let words = guest.arguments().join(" ");
        assert_eq!(words, "--kernel 6.1 --device mlx5 --port roce --functions 2");
        assert_eq!(guest.program(), "guest-mlx5");
        let guest = Guest { kernel: Choice::Series(&SERIES[1]), device: Device::None };
        assert_eq!(
            (guest.arguments().join(" ").as_str(), guest.program()),
            ("--kernel 6.1 --device none", "guest")
        );
    }
}
