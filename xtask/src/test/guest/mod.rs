//! Guests, and the suites in them, two guests at a time.
//!
//! A guest suite prints `ok NAME`, `FAIL NAME: why` and `skip NAME: why` lines and ends with the
//! same closing line as `cargo xtask test`. The suites are binaries of verbs-tests: `guest
//! [SUITE...]` on rxe, `guest-mlx5 --port ib|roce [SUITE...]` on the ConnectX model, which has two
//! functions here.
//!
//! | module | content |
//! |---|---|
//! | [`list`] | the guests of each list, and their suites |
//! | [`programs`] | the suites' programs |
//! | [`lines`] | the lines that a guest prints |

mod lines;
pub(super) mod list;
mod programs;

use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use self::lines::{SuiteLines, follow_guest};
use self::programs::Programs;
use super::stage::{StageResult, stage};
use crate::arch::Arch;
use crate::vm::connectx::Port;
use crate::vm::kernel::Choice;
use crate::{aarch64, apt, cargo, vm};

/// A guest: its kernel, its device, and its suites.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Guest {
    arch: Arch,
    kernel: Choice,
    device: vm::Device,
    /// The kind of port of an mlx5 device.
    port: Port,
    /// The end of its label, where others have the same kernel and device.
    note: &'static str,
    /// Options of the suites' program.
    options: &'static [&'static str],
    /// A variable of the cases.
    env: Option<&'static str>,
    /// Suites and parts of them that it leaves out, with the reasons.
    skip: Vec<(&'static str, &'static str)>,
    /// Suites and parts of them; all if empty.
    suites: Vec<String>,
}

/// The start of the reason for skipping a case in a program that does not name the provider of its
/// device (`fabric::open_named` of verbs-tests).
const UNNAMED: &str = "this program names no provider";

impl Guest {
    /// Returns a guest that runs all suites.
    fn new(kernel: Choice, device: vm::Device, port: Port) -> Self {
        let (arch, note, options, env) = (Arch::X86_64, "", &[], None);
        Self { arch, kernel, device, port, note, options, env, skip: Vec::new(), suites: Vec::new() }
    }

    /// Leaves out parts of the suites.
    fn without(mut self, parts: &[&'static str], why: &'static str) -> Self {
        self.skip.extend(parts.iter().map(|part| (*part, why)));
        self
    }

    /// Runs these parts of the suites only.
    fn only(mut self, parts: &[&str]) -> Self {
        self.suites.extend(parts.iter().map(|part| (*part).to_owned()));
        self
    }

    /// The prefix of its lines.
    fn label(&self) -> String {
        let mut words = vec![self.kernel.to_string()];
        if self.arch == Arch::Aarch64 {
            words.push(self.arch.name().to_owned());
        }
        match self.device {
            vm::Device::Rxe => words.push("rxe".to_owned()),
            vm::Device::Mlx5 => words.extend(["mlx5", self.port.name()].map(str::to_owned)),
            vm::Device::None => {}
        }
        words.extend((!self.note.is_empty()).then(|| self.note.to_owned()));
        words.join(" ")
    }

    /// Its name in the summary.
    pub(super) fn stage(&self) -> String {
        format!("guest suites on {}", self.label())
    }

    fn has_model(&self) -> bool {
        self.device == vm::Device::Mlx5
    }

    /// The suites' program.
    fn program(&self) -> &'static str {
        if self.has_model() { "guest-mlx5" } else { "guest" }
    }

    /// Returns the arguments of `vm` that select it.
    fn arguments(&self) -> Vec<String> {
        let device = match self.device {
            vm::Device::Rxe => "rxe",
            vm::Device::Mlx5 => "mlx5",
            vm::Device::None => "none",
        };
        let kernel = self.kernel.to_string();
        let words = ["--arch", self.arch.name(), "--kernel", &kernel, "--device", device];
        let model: &[_] =
            if self.has_model() { &["--port", self.port.name(), "--functions", "2"] } else { &[] };
        [&words, model].concat().into_iter().map(str::to_owned).collect()
    }

    /// Returns the arguments of the suites' program.
    fn words(&self) -> Vec<String> {
        let port: &[_] = if self.has_model() { &["--port", self.port.name()] } else { &[] };
        let mut words: Vec<String> = [port, self.options].concat().into_iter().map(str::to_owned).collect();
        for (part, why) in &self.skip {
            words.extend(["--skip".to_owned(), format!("{part}: {why}")]);
        }
        words.extend(self.suites.clone());
        words
    }

    /// Makes sure of host packages and a QEMU, which guests of one device share.
    fn prepare_host(&self, progress: &vm::Progress) -> anyhow::Result<()> {
        let say = |line: &str| progress.say(line);
        match (self.arch, self.device) {
            (Arch::Aarch64, _) => {
                apt::ensure_tools(&[apt::VM_TOOLS], say)?;
                return aarch64::Part::Programs.prepare();
            }
            (Arch::X86_64, vm::Device::Mlx5) => apt::ensure_tools(&[apt::VM_TOOLS, apt::MLX5_TOOLS], say)?,
            _ => apt::ensure_tools(&[apt::VM_TOOLS, apt::INTEROP_TOOLS, apt::C_PROGRAMS], say)?,
        }
        vm::ensure_qemu(self.device, progress)
    }
}

/// Prepares everything that the guests need. An error is the reason why a guest cannot run.
pub(super) fn prepare(guests: &[Guest]) -> Vec<Result<(), String>> {
    let progress = vm::Progress::new(false);
    let text = |error: anyhow::Error| format!("{error:#}");
    // Tried once, because it takes long without a network.
    let mut hosts: Vec<((Arch, vm::Device), Result<(), String>)> = Vec::new();
    let mut ready = Vec::new();
    for guest in guests {
        let key = (guest.arch, guest.device);
        if hosts.iter().all(|(known, _)| *known != key) {
            hosts.push((key, guest.prepare_host(&progress).map_err(text)));
        }
        let host = hosts.iter().find(|(known, _)| *known == key).map_or(Ok(()), |(_, result)| result.clone());
        ready.push(host.and_then(|()| {
            vm::Boot::prepare(&guest.kernel, guest.arch, guest.device, vm::Accel::Auto, &progress)
                .map(drop)
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
    programs: Vec<(Arch, Programs)>,
}

/// Builds the programs of the guests that are ready.
pub(super) fn build<'a>(guests: &'a [Guest], ready: &[Result<(), String>], vm_required: bool) -> Built<'a> {
    let mut built = Built::default();
    for (place, (guest, ready)) in guests.iter().zip(ready).enumerate() {
        match ready {
            Ok(()) => built.waiting.push_back((place, guest)),
            Err(why) => {
                let mut result = StageResult { name: guest.stage(), ..StageResult::default() };
                println!("== {}\nNOT RUN: no VM is available: {why}", result.name);
                if vm_required {
                    result.fail(format!("no VM is available: {why}"));
                } else {
                    result.skip(format!("no VM is available: {why}"));
                }
                built.results.push(result);
            }
        }
    }
    for arch in [Arch::X86_64, Arch::Aarch64] {
        if built.waiting.iter().any(|(_, guest)| guest.arch == arch) {
            programs::build(arch, &mut built);
        }
    }
    built
}

/// Runs the suites in every guest.
pub(super) fn stages(timeout: u64, built: Built<'_>) -> Vec<StageResult> {
    let Built { mut results, waiting, programs } = built;
    // Two at a time: one guest alone leaves a processor idle for much of its boot.
    let (waiting, done) = (Mutex::new(waiting), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some((place, guest)) = waiting.lock().ok().and_then(|mut w| w.pop_front()) else {
                        return;
                    };
                    let Some((_, programs)) = programs.iter().find(|(arch, _)| *arch == guest.arch) else {
                        continue;
                    };
                    let result = stage(&guest.stage(), |result| run(timeout, guest, programs, result));
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

fn run(timeout: u64, guest: &Guest, programs: &Programs, result: &mut StageResult) {
    // Through /proc, because the file may have been rebuilt since this process started.
    let mut command = Command::new("/proc/self/exe");
    command.arg("vm").args(guest.arguments()).args(["--timeout", &timeout.to_string()]);
    for (name, dir) in [
        ("VERBS_BIN_DIR", Some(&programs.bin_dir)),
        ("VERBS_STATIC_DIR", programs.static_dir.as_ref()),
        ("VERBS_MUSL_DIR", programs.musl_dir.as_ref()),
        ("VERBS_RDMA_CORE_DIR", programs.rdma_core_dir.as_ref()),
        ("VERBS_C_ABI_DIR", programs.c_abi_dir.as_ref()),
    ] {
        if let Some(dir) = dir {
            command.arg("--env").arg(format!("{name}={}", dir.display()));
        }
    }
    command.args(guest.env.into_iter().flat_map(|variable| ["--env", variable]));
    if let (true, Some(model)) = (guest.has_model(), &programs.model) {
        command.arg("--model").arg(model);
    }
    command.arg("--").arg(programs.bin_dir.join(guest.program())).args(guest.words());
    command.current_dir(cargo::root()).stdin(Stdio::null());
    let (mut seen, mut unnamed) = (SuiteLines::default(), 0);
    let status = follow_guest(&mut command, &guest.label(), |line| {
        unnamed += u32::from(line.contains(UNNAMED));
        seen.take(line, result);
    });
    if unnamed > 0 {
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

    #[test]
    fn a_guest_with_a_model_has_two_functions_and_its_own_program() {
        let kernel = || "6.1".parse::<Choice>().unwrap();
        let mlx5 = Guest::new(kernel(), vm::Device::Mlx5, Port::Roce).without(&["ucx"], "long").only(&["rc"]);
        let arguments = "--arch x86_64 --kernel 6.1 --device mlx5 --port roce --functions 2";
        assert_eq!((mlx5.arguments().join(" ").as_str(), mlx5.program()), (arguments, "guest-mlx5"));
        assert_eq!(mlx5.words(), ["--port", "roce", "--skip", "ucx: long", "rc"]);
        let none = Guest::new(kernel(), vm::Device::None, Port::Ib);
        assert_eq!(none.arguments().join(" "), "--arch x86_64 --kernel 6.1 --device none");
        assert_eq!((none.program(), none.words().len()), ("guest", 0));
    }
}
