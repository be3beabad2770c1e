//! The vm part: suites in guests, two guests at a time.
//!
//! A guest suite prints `ok NAME`, `FAIL NAME: why` and `skip NAME: why` lines and ends with the
//! same closing line as `cargo xtask test`. The suites are binaries of verbs-tests: `guest
//! [SUITE...]` on rxe, `guest-mlx5 --port ib|roce [SUITE...]` on the ConnectX model, which has two
//! functions here.
//!
//! | guests | by default | with `--kernel all` |
//! |---|---|---|
//! | rxe, all suites | 6.1, 7.2, each [a part](BY_DEFAULT) | 5.10, 6.1, 6.12, 7.2 |
//! | rxe, conformance, every ioctl refused | 6.1 | 6.1 |
//! | mlx5 | 6.1 InfiniBand, 7.2 RoCE, each a part | 6.1, 6.12 and 7.2, both ports, all suites |

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::stage::{Counts, StageResult, for_lines, stage};
use super::table::UNNAMED;
use super::{Args, Kernels};
use crate::cargo::{self, GUEST_PROFILE};
use crate::vm::connectx::{self, Port};
use crate::vm::kernel::{Choice, SERIES};
use crate::{apt, c_abi, commit, vm};

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

/// The kernel on which the suite runs once more without ioctls.
const WITHOUT_IOCTLS: &str = "6.1";

/// A kernel's part of a run where the command line names no kernel and no suite.
struct Usual {
    kernel: &'static str,
    /// The port of an mlx5 device.
    port: Port,
    /// The form of the cases on our API where programs name the provider: `erased` or `static`.
    form: &'static str,
    /// Parts of suites on rxe that another kernel runs.
    skip: &'static [&'static str],
}

/// The kernels of a run that names none. Its time is shared between them: C programs on our library
/// and killed tools run on the older one; ping-pongs with rdma-core's, its tests, and soft devices
/// beside rxe, on the newer one. The old one runs the conformance suite in the other form without
/// ioctls.
const BY_DEFAULT: &[Usual] = &[
    Usual {
        kernel: "6.1",
        port: Port::Ib,
        form: "static",
        skip: &[
            "c_abi.pyverbs",
            "cm_tools",
            "fallback.pingpong",
            "interop.pingpong",
            "interop.srq pingpong",
            "interop.uc pingpong",
            "interop.ud pingpong",
            "interop.xsrq pingpong",
            "soft_interop",
        ],
    },
    Usual {
        kernel: "7.2",
        port: Port::Roce,
        form: "erased",
        skip: &[
            "c_abi.pingpong",
            "c_abi.perftest",
            "c_abi.libfabric",
            "c_abi.ucx",
            "c_abi.rdmacm",
            "cm.a_thousand_connections",
            "cm_flags",
            "cm_rates",
            "interop.misuse",
            "lifecycle.a killed",
            "lifecycle.ibv_rc_pingpong",
            "lifecycle.ibv_srq_pingpong",
            "lifecycle.ibv_uc_pingpong",
            "lifecycle.ibv_ud_pingpong",
            // Each of our sides meets rdma-core's.
            "soft_interop.rc pingpong ours on rxe serves ours",
            "soft_interop.rc pingpong ours on soft serves ours",
            "soft_interop.srq pingpong ours on rxe serves ours",
            "soft_interop.srq pingpong ours on soft serves ours",
            "soft_interop.uc pingpong ours on rxe serves ours",
            "soft_interop.uc pingpong ours on soft serves ours",
            "soft_interop.ud pingpong ours on rxe serves ours",
            "soft_interop.ud pingpong ours on soft serves ours",
        ],
    },
];

/// Halves of what takes minutes on rxe, of which a commit leaves one to others: perftest on our
/// library, tools that make many connections, disturbed links, killed peers.
const RXE_HALVES: [&[&str]; 2] = [
    &[
        "cm_rates.mckey",
        "cm_rates.ucmatose",
        "soft_interop.connections of a killed soft",
        "soft_interop.connections under everything",
        "soft_interop.connections under loss",
    ],
    &[
        PERFTEST,
        "cm_rates.cmtime",
        "cm_rates.udaddy",
        "soft_interop.connections of a killed rxe",
        "soft_interop.connections under duplication",
        "soft_interop.connections under reordering",
    ],
];

/// The same on ConnectX: perftest and other forms of queues, or what the libraries write.
const MLX5_HALVES: [&[&str]; 2] = [&[PERFTEST, "compressed", "registers"], &["differential"]];

/// perftest on our library, which runs on rxe or on ConnectX.
const PERFTEST: &str = "c_abi.perftest";

/// rdma-core's tests of Python on our library, which one commit of four runs on ConnectX, and
/// another one on rxe.
const PYVERBS: &str = "c_abi.pyverbs";

/// The flags of tools for connections by address that other suites do not try, which one commit of
/// four runs on rxe.
const CM_FLAGS: &str = "cm_flags";

/// Returns what a kernel runs by default, if it is among those that run then.
fn usual(kernel: &str) -> Option<&'static Usual> {
    BY_DEFAULT.iter().find(|usual| usual.kernel == kernel)
}

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
        SERIES.iter().filter(|series| usual(series.name).is_some()).map(Choice::Series).collect()
    };
    let ports = |kernel: &Choice| -> Vec<Port> {
        match (args.port, usual(&kernel.to_string())) {
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

    /// Its column in the table of conformance results, if it runs that suite.
    fn column(&self) -> Option<String> {
        match self.device {
            Device::Rxe | Device::RxeWithoutIoctls => Some(format!("rxe {}", self.label())),
            Device::Mlx5(port) => Some(format!("mlx5 {} {}", self.kernel, port.name())),
            Device::None => None,
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
        if is_chosen { None } else { usual(&self.kernel.to_string()) }
    }

    /// Returns what of that this commit leaves to others.
    fn left_to_other_commits(&self, args: &Args) -> Vec<&'static str> {
        match turn(args) {
            Some(turn) if self.device != Device::RxeWithoutIoctls => left_in_turn(turn, self.has_model()),
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
        turn(args).is_none_or(|turn| is_named_in(turn, self.has_model()))
    }

    fn has_model(&self) -> bool {
        matches!(self.device, Device::Mlx5(_))
    }
}

/// Returns the commit's turn, if it counts: a run of one device has no other.
fn turn(args: &Args) -> Option<usize> {
    let is_whole = args.kernel.is_empty() && args.suites.is_empty() && args.device.is_none();
    commit::turn().filter(|_| is_whole)
}

/// Returns whether the programs of a turn name the provider of a device, which takes a minute and a
/// half to build for each: cases on the other one have the erased form alone.
fn is_named_in(turn: usize, has_model: bool) -> bool {
    (turn % 2 == 1) == has_model
}

/// Returns the feature that names providers in the guests' programs.
fn named(args: &Args) -> &'static str {
    match turn(args) {
        Some(turn) if is_named_in(turn, true) => "verbs-tests/mlx5",
        Some(_) => "verbs-tests/rxe",
        None => "verbs-tests/kernel",
    }
}

/// Returns what a commit of one of the turns leaves out in guests with one of the devices.
fn left_in_turn(turn: usize, has_model: bool) -> Vec<&'static str> {
    let halves = if has_model { &MLX5_HALVES } else { &RXE_HALVES };
    let mut left = halves[turn % 2].to_vec();
    if turn != usize::from(!has_model) {
        left.push(PYVERBS);
    }
    // On ConnectX they are left to runs that name a kernel.
    if turn != 3 && !has_model {
        left.push(CM_FLAGS);
    }
    left
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
            vm::Boot::prepare(&guest.kernel, device, vm::Accel::Auto, &progress).map(|_| ()).map_err(text)
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
    let programs = if waiting.is_empty() { None } else { build_programs(args, &mut waiting, &mut results) };
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

/// Builds the programs of the waiting guests, and removes guests whose programs cannot be built.
/// Returns `None` if no guest is left.
fn build_programs(
    args: &Args,
    waiting: &mut VecDeque<(usize, &Guest)>,
    results: &mut Vec<StageResult>,
) -> Option<Programs> {
    let mut bin_dir = None;
    let suites = stage("building the guest suites", |result| {
        let packages = ["--package", "verbs-tests", "--package", "rdma-tools", "--bins"];
        // Without the provider of soft devices, which guests' cases do not name.
        let features = ["--no-default-features", "--features", named(args)];
        let quiet = ["--quiet", "--profile", GUEST_PROFILE];
        match cargo::build(&[&quiet as &[&str], &packages, &features].concat()) {
            Ok(dir) => bin_dir = Some(dir),
            Err(error) => result.fail(format!("{error:#}")),
        }
        for program in ["guest", "guest-mlx5"] {
            let Some(dir) = &bin_dir else { break };
            if !dir.join(program).exists() && waiting.iter().any(|(_, guest)| guest.program() == program) {
                result.fail(format!("there is no {}", dir.join(program).display()));
            }
        }
    });
    if suites.counts.failed > 0 {
        results.push(suites);
    }
    let exists = |guest: &Guest| bin_dir.as_ref().is_some_and(|dir| dir.join(guest.program()).exists());
    give_up(waiting, results, |guest| !exists(guest));
    let mut programs =
        Programs { bin_dir: bin_dir?, static_dir: None, musl_dir: None, c_abi_dir: None, model: None };
    if waiting.iter().any(|(_, guest)| guest.has_model()) {
        let model = stage("building the ConnectX model", |result| match connectx::build() {
            Ok(dir) => programs.model = Some(dir.join("connectx-model")),
            Err(error) => result.fail(format!("{error:#}")),
        });
        if model.counts.failed > 0 {
            results.push(model);
            give_up(waiting, results, Guest::has_model);
        }
        // Without them a case compiles them, slowly.
        match Command::new(programs.bin_dir.join("guest-mlx5")).arg("--compile").status() {
            Ok(status) if status.success() => {}
            ended => println!("the C programs of the suites are left to the guests: {ended:?}"),
        }
    }
    if waiting.iter().any(|(_, guest)| !guest.has_model()) {
        let builds = static_builds();
        results.push(builds.stage);
        (programs.static_dir, programs.musl_dir) = (builds.glibc, builds.musl);
    }
    if !waiting.is_empty() {
        results.push(stage("linking libibverbs.so.1", |result| match c_abi::build(GUEST_PROFILE) {
            Ok(dir) => {
                result.counts.passed += 1;
                programs.c_abi_dir = Some(dir);
            }
            Err(error) => result.fail(format!("{error:#}")),
        }));
    }
    (!waiting.is_empty()).then_some(programs)
}

/// Removes guests whose programs could not be built, which has been counted as a failure, from the
/// queue.
fn give_up(
    waiting: &mut VecDeque<(usize, &Guest)>,
    results: &mut Vec<StageResult>,
    which: impl Fn(&Guest) -> bool,
) {
    for (_, guest) in waiting.iter().filter(|(_, guest)| which(guest)) {
        let mut result = StageResult { name: guest.stage(), ..StageResult::default() };
        result.skip("its programs could not be built");
        results.push(result);
    }
    waiting.retain(|(_, guest)| !which(guest));
}

/// Programs of the guest suites.
struct Programs {
    bin_dir: PathBuf,
    /// The tools with the C library inside.
    static_dir: Option<PathBuf>,
    /// The same with musl, if its standard library is installed.
    musl_dir: Option<PathBuf>,
    /// `libibverbs.so.1` and its companions.
    c_abi_dir: Option<PathBuf>,
    /// The ConnectX model.
    model: Option<PathBuf>,
}

/// The tools as static programs, which the suites run in an empty root.
struct StaticBuilds {
    stage: StageResult,
    glibc: Option<PathBuf>,
    musl: Option<PathBuf>,
}

fn static_builds() -> StaticBuilds {
    let (mut glibc, mut musl) = (None, None);
    let stage = stage("building static tools", |result| {
        match cargo::build_static(&cargo::host_target(), "dev") {
            Ok(dir) => {
                result.counts.passed += 1;
                glibc = Some(dir);
            }
            Err(error) => result.fail(format!("{error:#}")),
        }
        let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
        if !cargo::has_std(&target) {
            result.skip(format!(
                "static tools with musl: the std of {target} is not installed (rustup target add {target})"
            ));
            return;
        }
        match cargo::build_static(&target, "dev") {
            Ok(dir) => {
                result.counts.passed += 1;
                musl = Some(dir);
            }
            Err(error) => result.fail(format!("{error:#}")),
        }
    });
    StaticBuilds { stage, glibc, musl }
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
    if args.suites.is_empty() {
        result.device = guest.column();
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

/// Shows a guest's stdout and stderr under a label, and returns its exit status.
fn follow_guest(command: &mut Command, label: &str, mut line: impl FnMut(&str)) -> Result<Option<i32>> {
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("cannot run xtask vm")?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        if let Some(stderr) = stderr {
            scope.spawn(move || for_lines(stderr, &mut |line| eprintln!("[{label}] {line}")));
        }
        if let Some(stdout) = stdout {
            for_lines(stdout, &mut |text: &str| {
                println!("[{label}] {text}");
                line(text);
            });
        }
    });
    Ok(child.wait()?.code())
}

/// The lines that a guest's suites have printed so far.
struct SuiteLines {
    counted: Counts,
    closing: Option<Counts>,
    /// The time of the last one.
    last: Instant,
    /// The time that each part of a suite took.
    parts: BTreeMap<String, Duration>,
}

impl Default for SuiteLines {
    fn default() -> Self {
        let (counted, closing) = (Counts::default(), None);
        Self { counted, closing, last: Instant::now(), parts: BTreeMap::new() }
    }
}

/// The number of parts of suites that the summary names.
const SLOWEST: usize = 12;

/// Returns the part of a suite that a line's case belongs to, `conformance.srq` or `fork`; the time
/// up to the first case is that of the start.
fn part(line: &str, is_first: bool) -> Option<&str> {
    let mut words = line.split(' ').skip(1);
    let name = words.next().filter(|_| !is_first)?.trim_end_matches(':');
    let mut dots = name.match_indices('.').map(|(at, _)| at);
    let (first, second) = (dots.next(), dots.next());
    let end = match (first, second) {
        (_, Some(second)) => second,
        (Some(_), None) if line.starts_with("ok ") && words.next().is_some() => name.len(),
        (Some(first), None) => first,
        (None, None) => name.len(),
    };
    Some(&name[..end])
}

impl SuiteLines {
    /// Takes the time since the last line of a case.
    fn take_time(&mut self, line: &str) {
        let took = self.last.elapsed();
        self.last += took;
        let part = part(line, self.parts.is_empty()).unwrap_or("the start");
        *self.parts.entry(part.to_owned()).or_default() += took;
    }

    /// Returns the parts that took longest, with their times.
    fn slowest(&self) -> String {
        let mut parts: Vec<_> = self.parts.iter().map(|(part, took)| (took.as_secs(), part)).collect();
        parts.sort_unstable_by(|one, other| other.cmp(one));
        let texts: Vec<_> =
            parts.into_iter().take(SLOWEST).map(|(seconds, part)| format!("{part} {seconds} s")).collect();
        texts.join(", ")
    }

    fn take(&mut self, line: &str, result: &mut StageResult) {
        self.closing = Counts::parse(line);
        if line.starts_with("ok ") {
            self.counted.passed += 1;
        } else if line.starts_with("FAIL ") {
            self.counted.failed += 1;
        } else if line.starts_with("skip ") {
            self.counted.skipped += 1;
        } else {
            return;
        }
        self.take_time(line);
        result.case(line);
    }

    fn finish(self, status: Option<i32>, result: &mut StageResult) {
        let counts = self.closing.unwrap_or(self.counted);
        result.counts.add(counts);
        result.times = Some(self.slowest());
        match (status, self.closing) {
            (Some(0), Some(closing)) if closing != self.counted => {
                result.fail(format!("the closing line does not match the cases: {} were seen", self.counted));
            }
            (Some(0), Some(Counts { passed: 0, failed: 0, skipped: 0 })) => result.fail("no case was run"),
            (Some(0), Some(closing)) if closing.failed > 0 => {
                result.fail("cases failed, and the status is 0");
            }
            (Some(0), None) => result.fail("the guest's output has no closing line"),
            (Some(0), Some(_)) => {}
            (Some(124), _) => result.fail("the suites did not end in time"),
            (Some(125), _) => result.fail("the VM failed: see above"),
            (Some(_), Some(closing)) if closing.failed > 0 => {}
            (Some(status), _) => result.fail(format!("the suites ended with status {status}")),
            (None, _) => result.fail("xtask vm was killed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_belongs_to_a_part_of_its_suite() {
        for (line, is_first, expected) in [
            ("ok conformance.srq.a_case erased", false, Some("conformance.srq")),
            ("skip fork.a_case: why", false, Some("fork")),
            ("ok fork.a_case", false, Some("fork")),
            ("ok c_abi.perftest ib_write_bw -s 8", false, Some("c_abi.perftest")),
            ("FAIL pyverbs.test_cq.CQTest.test_poll: why", false, Some("pyverbs.test_cq")),
            ("ok fork.a_case", true, None),
            ("ok", false, None),
        ] {
            assert_eq!(part(line, is_first), expected, "{line}");
        }
    }

    fn counts(passed: u64, failed: u64, skipped: u64) -> Counts {
        Counts { passed, failed, skipped }
    }

    fn suite(lines: &[&str], status: Option<i32>) -> StageResult {
        let (mut seen, mut result) = (SuiteLines::default(), StageResult::default());
        for line in lines {
            seen.take(line, &mut result);
        }
        seen.finish(status, &mut result);
        result
    }

    #[test]
    fn a_guests_failures_and_skips_are_kept_with_their_reasons() {
        let lines = ["ok a", "FAIL b: why", "skip c: no device", "1 passed, 1 failed, 1 skipped"];
        let result = suite(&lines, Some(1));
        assert_eq!(result.counts, counts(1, 1, 1));
        assert_eq!(result.notes, ["FAIL b: why", "skip c: no device"]);
        assert_eq!(result.conformance, [""; 0]);
    }

    #[test]
    fn a_guest_that_dies_or_lies_is_one_more_failure() {
        let good = ["ok a", "1 passed, 0 failed, 0 skipped"];
        assert_eq!(suite(&good, Some(0)).counts, counts(1, 0, 0));
        for (lines, status) in [
            (&good[..1], Some(0)),
            (&good[..], Some(125)),
            (&good[..], Some(124)),
            (&good[..], Some(3)),
            (&good[..], None),
            (&["ok a", "ok b", "1 passed, 0 failed, 0 skipped"], Some(0)),
            (&["0 passed, 0 failed, 0 skipped"], Some(0)),
        ] {
            assert_eq!(suite(lines, status).counts.failed, 1, "{lines:?} {status:?}");
        }
    }

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
        let mut skipped: Vec<&str> = BY_DEFAULT.iter().flat_map(|usual| usual.skip).copied().collect();
        let mut forms: Vec<&str> = BY_DEFAULT.iter().map(|usual| usual.form).collect();
        for one_each in [&mut skipped, &mut forms] {
            one_each.sort_unstable();
            assert!(one_each.windows(2).all(|pair| pair[0] != pair[1]), "run nowhere or twice: {one_each:?}");
        }
    }

    #[test]
    fn the_turns_leave_nothing_out_for_ever() {
        let runs = |part: &str, has_model| -> Vec<usize> {
            (0..commit::TURNS).filter(|turn| !left_in_turn(*turn, has_model).contains(&part)).collect()
        };
        for part in RXE_HALVES.concat().into_iter().chain([CM_FLAGS]) {
            assert!(!runs(part, false).is_empty(), "{part}");
        }
        for part in MLX5_HALVES.concat() {
            assert!(!runs(part, true).is_empty(), "{part}");
        }
        for part in [PERFTEST, PYVERBS] {
            let (on_rxe, on_mlx5) = (runs(part, false), runs(part, true));
            assert!(!on_rxe.is_empty() && !on_mlx5.is_empty(), "{part}");
            assert!(on_mlx5.iter().all(|turn| !on_rxe.contains(turn)), "{part}");
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
    fn guests_that_cannot_run_are_skipped_by_name_and_the_others_wait_on() {
        let guest = |device| Guest { kernel: Choice::Series(&SERIES[1]), device };
        let (rxe, mlx5) = (guest(Device::Rxe), guest(Device::Mlx5(Port::Ib)));
        let (mut waiting, mut results) = (VecDeque::from([(0, &rxe), (1, &mlx5)]), Vec::new());
        give_up(&mut waiting, &mut results, Guest::has_model);
        assert_eq!(waiting, [(0, &rxe)]);
        assert_eq!(results.len(), 1);
        assert_eq!(
            (results[0].name.as_str(), results[0].counts),
            ("guest suites on 6.1 mlx5 ib", counts(0, 0, 1))
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
