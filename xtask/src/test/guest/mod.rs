//! Guests and the suites that they run, two guests at a time.
//!
//! A guest suite prints `ok NAME`, `FAIL NAME: why` and `skip NAME: why` lines and ends with the
//! same closing line as `cargo xtask test`. The suites are binaries of verbs-tests: `guest
//! [SUITE...]` on rxe, `guest-mlx5 --port ib|roce [SUITE...]` on the ConnectX model, which has two
//! functions in these guests.
//!
//! | module | content |
//! |---|---|
//! | [`list`], `guests.toml` | the guests in each list, and their suites |
//! | [`programs`] | the suites' programs |
//! | [`lines`] | the lines that a guest prints |

mod lines;
pub(super) mod list;
mod programs;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use self::lines::SuiteLines;
use self::programs::Programs;
use super::stage::{StageResult, stage};
use crate::arch::{Arch, name_of};
use crate::vm::connectx::Port;
use crate::vm::kernel::Choice;
use crate::{aarch64, apt, cargo, vm};

/// A guest: its kernel, device and suites.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Guest {
    arch: Arch,
    kernel: Choice,
    device: vm::Device,
    /// The port type of an mlx5 device.
    port: Port,
    /// The end of the guest's label, if other guests have the same kernel and device.
    note: &'static str,
    /// Options for the program that runs the suites.
    options: &'static [String],
    /// An environment variable for the cases.
    env: Option<&'static str>,
    /// The suites, or parts of suites, that the guest leaves out, with the reasons.
    skip: Vec<(&'static str, &'static str)>,
    /// The suites, or parts of suites, to run; all if empty.
    suites: Vec<String>,
}

/// The beginning of the skip reason for cases that need a program built with the device's provider
/// (`fabric::open_named` in verbs-fixtures).
const UNNAMED: &str = "this program names no provider";

impl Guest {
    /// Returns a guest that runs all suites.
    fn new(kernel: Choice, device: vm::Device, port: Port) -> Self {
        let (arch, note, options, env) = (Arch::X86_64, "", &[], None);
        Self { arch, kernel, device, port, note, options, env, skip: Vec::new(), suites: Vec::new() }
    }

    /// Returns the prefix for the guest's lines.
    fn label(&self) -> String {
        let mut words = vec![self.kernel.to_string()];
        words.extend((self.arch == Arch::Aarch64).then(|| name_of(self.arch)));
        words.extend((self.device != vm::Device::None).then(|| name_of(self.device)));
        words.extend(self.has_model().then(|| name_of(self.port)));
        words.extend((!self.note.is_empty()).then(|| self.note.to_owned()));
        words.join(" ")
    }

    /// Returns the guest's name in the summary.
    pub(super) fn stage(&self) -> String {
        format!("guest suites on {}", self.label())
    }

    fn has_model(&self) -> bool {
        self.device == vm::Device::Mlx5
    }

    /// Returns the name of the program that runs the suites.
    fn program(&self) -> &'static str {
        if self.has_model() { "guest-mlx5" } else { "guest" }
    }

    /// Returns the `vm` arguments that select the guest.
    fn arguments(&self) -> Vec<String> {
        let mut options = vec![
            ("--arch", name_of(self.arch)),
            ("--kernel", self.kernel.to_string()),
            ("--device", name_of(self.device)),
        ];
        if self.has_model() {
            options.extend([("--port", name_of(self.port)), ("--functions", "2".to_owned())]);
        }
        options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    /// Returns the command-line arguments for the program that runs the suites.
    fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.has_model() {
            words.extend(["--port".to_owned(), name_of(self.port)]);
        }
        words.extend_from_slice(self.options);
        for (part, why) in &self.skip {
            words.extend(["--skip".to_owned(), format!("{part}: {why}")]);
        }
        words.extend(self.suites.clone());
        words
    }

    /// Ensures that the host packages and the QEMU that guests with this device share are present.
    fn prepare_host(&self) -> anyhow::Result<()> {
        if self.arch == Arch::Aarch64 {
            apt::ensure_tools(&[apt::Tools::Vm])?;
            return aarch64::Part::Programs.prepare();
        }
        apt::ensure_tools(&[apt::Tools::Vm, apt::Tools::Interop, apt::Tools::CPrograms, apt::Tools::CBuild])?;
        vm::ensure_qemu(self.device)
    }
}

/// A guest, with the reason why it cannot run, if any.
pub(super) type Prepared<'a> = (&'a Guest, Result<(), String>);

/// Prepares everything that the guests need.
pub(super) fn prepare(guests: &[Guest]) -> Vec<Prepared<'_>> {
    // Tried once per device, because it takes long without a network.
    let mut hosts: Vec<(Arch, vm::Device, Result<(), String>)> = Vec::new();
    let mut of_host = |guest: &Guest| {
        let is_known = |(arch, device, _): &&_| (*arch, *device) == (guest.arch, guest.device);
        if let Some((_, _, known)) = hosts.iter().find(is_known) {
            return known.clone();
        }
        let ready = guest.prepare_host().map_err(|error| format!("{error:#}"));
        hosts.push((guest.arch, guest.device, ready.clone()));
        ready
    };
    let ready = |guest: &Guest| {
        of_host(guest)?;
        let boot = vm::Boot::prepare(&guest.kernel, guest.arch, guest.device, vm::Accel::Auto);
        boot.map(drop).map_err(|error| format!("{error:#}"))
    };
    guests.iter().zip(guests.iter().map(ready)).collect()
}

/// The programs for an architecture's guests, if they could be built.
pub(super) type Built = (Arch, Option<Programs>);

/// Builds the programs for the guests that are ready.
pub(super) fn build(guests: &[Prepared<'_>], results: &mut Vec<StageResult>) -> Vec<Built> {
    let build = |arch| {
        let of_arch = |(guest, ready): &&Prepared<'_>| ready.is_ok() && guest.arch == arch;
        let waiting: Vec<&Guest> = guests.iter().filter(of_arch).map(|(guest, _)| *guest).collect();
        let mut programs = None;
        if !waiting.is_empty() {
            results.push(stage(&format!("programs of guests, {}", name_of(arch)), |result| {
                let built = programs::build(arch, &waiting, result);
                programs = result.must(built);
            }));
        }
        (arch, programs)
    };
    [Arch::X86_64, Arch::Aarch64].map(build).into()
}

/// Runs the suites in every guest. With `vm_required`, a guest that cannot run is a failure.
pub(super) fn stages(
    guests: &[Prepared<'_>],
    built: &[Built],
    timeout: u64,
    vm_required: bool,
) -> Vec<StageResult> {
    let stage_of = |(guest, ready): &Prepared<'_>| {
        let programs = built.iter().find_map(|(arch, built)| built.as_ref().filter(|_| *arch == guest.arch));
        stage(&guest.stage(), |result| match (ready, programs) {
            (Err(why), _) if vm_required => result.fail(format!("no VM is available: {why}")),
            (Err(why), _) => result.skip(format!("no VM is available: {why}")),
            // The build's failure is counted there.
            (Ok(()), None) => result.skip("its programs could not be built"),
            (Ok(()), Some(programs)) => run(timeout, guest, programs, result),
        })
    };
    // Runs two at a time, because one guest alone leaves a processor idle for much of its boot.
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(guest) = guests.get(place) else { return };
            let result = stage_of(guest);
            done.lock().expect("a lane without a panic").insert(place, result);
        }
    };
    thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    done.into_inner().expect("a lane without a panic").into_values().collect()
}

fn run(timeout: u64, guest: &Guest, programs: &Programs, result: &mut StageResult) {
    // Through /proc, because the program's file may have been rebuilt since this process started.
    let mut command = Command::new("/proc/self/exe");
    command.arg("vm").args(guest.arguments()).args(["--timeout", &timeout.to_string()]);
    for (name, dir) in &programs.variables {
        command.arg("--env").arg(format!("{name}={}", dir.display()));
    }
    command.args(guest.env.into_iter().flat_map(|variable| ["--env", variable]));
    if let (true, Some(model)) = (guest.has_model(), &programs.model) {
        command.arg("--model").arg(model);
    }
    command.arg("--").arg(programs.bin_dir.join(guest.program())).args(guest.words());
    command.current_dir(cargo::root());
    let (mut seen, mut unnamed) = (SuiteLines::default(), 0);
    result.prefix = format!("[{}] ", guest.label());
    let status = result.follow(&mut command, |line, result| {
        unnamed += u32::from(line.contains(UNNAMED));
        seen.take(line, result);
    });
    if unnamed > 0 {
        result.fail(format!("{unnamed} cases miss the provider's name, which the programs should have"));
    }
    if let Some(status) = result.must(status) {
        seen.finish(status, result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_with_a_model_has_two_functions_and_its_own_program() {
        let kernel = || "6.1".parse::<Choice>().unwrap();
        let (skip, suites) = (vec![("ucx", "long")], vec!["rc".to_owned()]);
        let mlx5 = Guest { skip, suites, ..Guest::new(kernel(), vm::Device::Mlx5, Port::Roce) };
        let arguments = "--arch x86_64 --kernel 6.1 --device mlx5 --port roce --functions 2";
        assert_eq!((mlx5.arguments().join(" ").as_str(), mlx5.program()), (arguments, "guest-mlx5"));
        assert_eq!(mlx5.words(), ["--port", "roce", "--skip", "ucx: long", "rc"]);
        let none = Guest::new(kernel(), vm::Device::None, Port::Ib);
        assert_eq!(none.arguments().join(" "), "--arch x86_64 --kernel 6.1 --device none");
        assert_eq!((none.program(), none.words().len()), ("guest", 0));
    }
}
