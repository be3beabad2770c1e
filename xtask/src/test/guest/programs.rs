//! The programs of guests, built on the host.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{Built, Guest};
use crate::arch::Arch;
use crate::cargo::{self, GUEST_PROFILE};
use crate::test::stage::{StageResult, stage};
use crate::vm::connectx;
use crate::{aarch64, apt, c_abi, musl};

/// Programs of the guest suites.
pub(super) struct Programs {
    pub(super) bin_dir: PathBuf,
    /// The tools with the C library inside.
    pub(super) static_dir: Option<PathBuf>,
    /// The same with musl, where it is to be had.
    pub(super) musl_dir: Option<PathBuf>,
    /// rdma-core's newest programs, with a C library of their own.
    pub(super) rdma_core_dir: Option<PathBuf>,
    /// `libibverbs.so.1` and its companions.
    pub(super) c_abi_dir: Option<PathBuf>,
    /// The ConnectX model.
    pub(super) model: Option<PathBuf>,
}

/// Builds the programs of the waiting guests of an architecture, and removes the guests whose
/// programs cannot be built.
pub(super) fn build(arch: Arch, built: &mut Built<'_>) {
    let programs = match arch {
        Arch::X86_64 => of_x86_64(built),
        Arch::Aarch64 => {
            let mut programs = None;
            let stage = stage("building the guest suites for aarch64", |result| match of_aarch64() {
                Ok(some) => programs = Some(some),
                Err(error) => result.fail(format!("{error:#}")),
            });
            built.results.extend((stage.counts.failed > 0).then_some(stage));
            programs
        }
    };
    match programs {
        Some(programs) => built.programs.push((arch, programs)),
        None => give_up(built, |guest| guest.arch == arch),
    }
}

/// Builds the programs of aarch64, whose guests have rdma-core of Debian.
fn of_aarch64() -> Result<Programs> {
    let bin_dir = aarch64::build(aarch64::PROGRAMS)?;
    let c_abi_dir = Some(c_abi::link_for_aarch64(&bin_dir.join(c_abi::ARCHIVE))?);
    let model = Some(connectx::build()?.join("connectx-model"));
    Ok(Programs { bin_dir, static_dir: None, musl_dir: None, rdma_core_dir: None, c_abi_dir, model })
}

fn of_x86_64(built: &mut Built<'_>) -> Option<Programs> {
    let mut bin_dir = None;
    let suites = stage("building the guest suites", |result| {
        let packages = ["--package", "verbs-tests", "--package", "rdma-tools", "--bins"];
        // Without the provider of soft devices, which guests' cases do not name.
        let features = ["--no-default-features", "--features", "verbs-tests/kernel"];
        let quiet = ["--quiet", "--profile", GUEST_PROFILE];
        match cargo::build(&[&quiet as &[&str], &packages, &features].concat()) {
            Ok(dir) => bin_dir = Some(dir),
            Err(error) => result.fail(format!("{error:#}")),
        }
    });
    built.results.extend((suites.counts.failed > 0).then_some(suites));
    let mut programs = Programs {
        bin_dir: bin_dir?,
        static_dir: None,
        musl_dir: None,
        rdma_core_dir: None,
        c_abi_dir: None,
        model: None,
    };
    let is_waiting = |built: &Built<'_>, has_model| {
        built.waiting.iter().any(|(_, guest)| guest.arch == Arch::X86_64 && guest.has_model() == has_model)
    };
    if is_waiting(built, true) {
        let model = stage("building the ConnectX model", |result| match connectx::build() {
            Ok(dir) => programs.model = Some(dir.join("connectx-model")),
            Err(error) => result.fail(format!("{error:#}")),
        });
        if model.counts.failed > 0 {
            built.results.push(model);
            give_up(built, Guest::has_model);
        }
        compile(&programs.bin_dir.join("guest-mlx5"));
    }
    if is_waiting(built, false) {
        let builds = static_builds();
        built.results.push(builds.stage);
        (programs.static_dir, programs.musl_dir) = (builds.glibc, builds.musl);
        compile(&programs.bin_dir.join("guest"));
    }
    built.results.push(stage(apt::RDMA_CORE.name, |result| {
        match apt::RDMA_CORE.root(&|line| println!("{line}")) {
            Ok(root) => {
                result.counts.passed += 1;
                programs.rdma_core_dir = Some(root);
            }
            Err(error) => result.skip(format!("{error:#}")),
        }
    }));
    built.results.push(stage("linking libibverbs.so.1", |result| match c_abi::build(GUEST_PROFILE) {
        Ok(dir) => {
            result.counts.passed += 1;
            programs.c_abi_dir = Some(dir);
        }
        Err(error) => result.fail(format!("{error:#}")),
    }));
    Some(programs)
}

/// Compiles the C programs of a guest's suites. Without them a case compiles them, slowly.
fn compile(guest: &Path) {
    match Command::new(guest).arg("--compile").status() {
        Ok(status) if status.success() => {}
        ended => println!("the C programs of the suites are left to the guests: {ended:?}"),
    }
}

/// Removes guests whose programs could not be built, which has been counted as a failure, from the
/// queue.
fn give_up(built: &mut Built<'_>, which: impl Fn(&Guest) -> bool) {
    for (_, guest) in built.waiting.iter().filter(|(_, guest)| which(guest)) {
        let mut result = StageResult { name: guest.stage(), ..StageResult::default() };
        result.skip("its programs could not be built");
        built.results.push(result);
    }
    built.waiting.retain(|(_, guest)| !which(guest));
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
        match musl::command().map(|_| musl::build_tools()) {
            Ok(Ok(dir)) => {
                result.counts.passed += 1;
                musl = Some(dir);
            }
            Ok(Err(error)) => result.fail(format!("{error:#}")),
            Err(why) => result.skip(format!("static tools with musl: {why:#}")),
        }
    });
    StaticBuilds { stage, glibc, musl }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::stage::Counts;
    use crate::vm::Device;
    use crate::vm::connectx::Port;

    #[test]
    fn guests_that_cannot_run_are_skipped_by_name_and_the_others_wait_on() {
        let guest = |device| Guest::new("6.1".parse().unwrap(), device, Port::Ib);
        let (rxe, mlx5) = (guest(Device::Rxe), guest(Device::Mlx5));
        let mut built = Built { waiting: [(0, &rxe), (1, &mlx5)].into(), ..Built::default() };
        give_up(&mut built, Guest::has_model);
        assert_eq!(built.waiting, [(0, &rxe)]);
        let skipped = (built.results[0].name.as_str(), built.results[0].counts);
        let one = Counts { passed: 0, failed: 0, skipped: 1 };
        assert_eq!((built.results.len(), skipped), (1, ("guest suites on 6.1 mlx5 ib", one)));
    }
}
