//! The programs of guests, built on the host.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Guest, shares};
use crate::cargo::{self, GUEST_PROFILE};
use crate::test::Args;
use crate::test::stage::{StageResult, stage};
use crate::vm::connectx;
use crate::{apt, c_abi, musl};

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

/// Builds the programs of the waiting guests, and removes guests whose programs cannot be built.
/// Returns `None` if no guest is left.
pub(super) fn build(
    args: &Args,
    waiting: &mut VecDeque<(usize, &Guest)>,
    results: &mut Vec<StageResult>,
) -> Option<Programs> {
    let mut bin_dir = None;
    let suites = stage("building the guest suites", |result| {
        let packages = ["--package", "verbs-tests", "--package", "rdma-tools", "--bins"];
        // Without the provider of soft devices, which guests' cases do not name.
        let features = ["--no-default-features", "--features", shares::named(args)];
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
    let mut programs = Programs {
        bin_dir: bin_dir?,
        static_dir: None,
        musl_dir: None,
        rdma_core_dir: None,
        c_abi_dir: None,
        model: None,
    };
    if waiting.iter().any(|(_, guest)| guest.has_model()) {
        let model = stage("building the ConnectX model", |result| match connectx::build() {
            Ok(dir) => programs.model = Some(dir.join("connectx-model")),
            Err(error) => result.fail(format!("{error:#}")),
        });
        if model.counts.failed > 0 {
            results.push(model);
            give_up(waiting, results, Guest::has_model);
        }
        compile(&programs.bin_dir.join("guest-mlx5"));
    }
    if waiting.iter().any(|(_, guest)| !guest.has_model()) {
        let builds = static_builds();
        results.push(builds.stage);
        (programs.static_dir, programs.musl_dir) = (builds.glibc, builds.musl);
        compile(&programs.bin_dir.join("guest"));
    }
    if !waiting.is_empty() {
        results.push(stage(apt::RDMA_CORE.name, |result| {
            match apt::RDMA_CORE.root(&|line| println!("{line}")) {
                Ok(root) => {
                    result.counts.passed += 1;
                    programs.rdma_core_dir = Some(root);
                }
                Err(error) => result.skip(format!("{error:#}")),
            }
        }));
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

/// Compiles the C programs of a guest's suites. Without them a case compiles them, slowly.
fn compile(guest: &Path) {
    match Command::new(guest).arg("--compile").status() {
        Ok(status) if status.success() => {}
        ended => println!("the C programs of the suites are left to the guests: {ended:?}"),
    }
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
    use crate::test::guest::Device;
    use crate::test::stage::Counts;
    use crate::vm::connectx::Port;
    use crate::vm::kernel::{Choice, SERIES};

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
            ("guest suites on 6.1 mlx5 ib", Counts { passed: 0, failed: 0, skipped: 1 })
        );
    }
}
