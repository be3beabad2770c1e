//! The programs for guests, which are built on the host.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::Guest;
use crate::arch::Arch;
use crate::cargo::{self, GUEST_PROFILE};
use crate::test::stage::StageResult;
use crate::vm::connectx;
use crate::{aarch64, apt, c_abi, musl, process};

/// The programs for the guest suites.
pub(in crate::test) struct Programs {
    pub(super) bin_dir: PathBuf,
    /// Variables that give cases the paths of other programs and libraries.
    pub(super) variables: Vec<(&'static str, PathBuf)>,
    /// The path of the ConnectX model.
    pub(super) model: Option<PathBuf>,
}

/// Builds the programs for an architecture's guests.
///
/// # Errors
/// A program cannot be built.
pub(super) fn build(arch: Arch, guests: &[&Guest], result: &mut StageResult) -> Result<Programs> {
    let (bin_dir, mut variables) = match arch {
        Arch::X86_64 => of_x86_64(guests, result)?,
        Arch::Aarch64 => {
            let bin_dir = aarch64::build(aarch64::PROGRAMS)?;
            let libraries = c_abi::link_for_aarch64(&bin_dir.join(c_abi::ARCHIVE))?;
            (bin_dir, vec![("VERBS_C_ABI_DIR", libraries)])
        }
    };
    variables.push(("VERBS_BIN_DIR", bin_dir.clone()));
    let has_model = guests.iter().any(|guest| guest.has_model());
    let model = if has_model { Some(connectx::build()?.join("connectx-model")) } else { None };
    Ok(Programs { bin_dir, variables, model })
}

type Folders = (PathBuf, Vec<(&'static str, PathBuf)>);

fn of_x86_64(guests: &[&Guest], result: &mut StageResult) -> Result<Folders> {
    let packages = ["--package", "verbs-tests", "--package", "rdma-tools", "--bins"];
    // Without the provider of soft devices, which cases in guests do not name.
    let features = ["--no-default-features", "--features", "verbs-tests/kernel"];
    let quiet = ["--quiet", "--profile", GUEST_PROFILE];
    let bin_dir = cargo::build(&[&quiet as &[&str], &packages, &features].concat())?;
    let mut variables = vec![("VERBS_C_ABI_DIR", c_abi::build(GUEST_PROFILE)?)];
    let mut optional = |name, what, folder: Result<PathBuf>| {
        if let Some(folder) = result.needs(what, folder) {
            result.counts.passed += 1;
            variables.push((name, folder));
        }
    };
    // rdma-core's newest programs, with their C library.
    optional("VERBS_RDMA_CORE_DIR", apt::RDMA_CORE.name, apt::RDMA_CORE.root());
    if guests.iter().any(|guest| !guest.has_model()) {
        // The tools as static programs, which suites run in an empty root.
        let glibc = cargo::build_static(&["--bins"], &cargo::host_target(), "dev")?;
        optional("VERBS_STATIC_DIR", "static tools", Ok(glibc));
        let musl = musl::command().and_then(|_| musl::build_tools());
        optional("VERBS_MUSL_DIR", "static tools with musl", musl);
    }
    for program in ["guest", "guest-mlx5"] {
        // The C programs for a guest's suites. If they are missing, a case compiles them, slowly.
        if guests.iter().any(|guest| guest.program() == program)
            && let Err(error) = process::run(Command::new(bin_dir.join(program)).arg("--compile"))
        {
            println!("the C programs of the suites are left to the guests: {error:#}");
        }
    }
    Ok((bin_dir, variables))
}
