//! Debian's programs for aarch64.
//!
//! The emulator finds the loader and the libraries in their folder, and a guest of this
//! architecture has it over the host's root.

use std::path::PathBuf;

use anyhow::Result;

use crate::apt;
use crate::arch::Arch;

const PROGRAMS: apt::Packages<'static> = apt::Packages {
    name: "programs for aarch64",
    arch: Arch::Aarch64,
    // The C library of the programs' own build is not newer than this one's.
    suites: &["trixie"],
    packages: &[
        // What every machine has: a shell and its commands.
        "bash",
        "busybox-static",
        "coreutils",
        "dash",
        "grep",
        "iproute2",
        "kmod",
        // rdma-core's library, and programs of it that run on ours as well.
        "ibverbs-providers",
        "ibverbs-utils",
        "rdmacm-utils",
    ],
    only: &[],
};

/// Returns the folder of Debian's programs for aarch64, and downloads them if the cache has none.
pub(crate) fn root(say: &dyn Fn(&str)) -> Result<PathBuf> {
    PROGRAMS.root(say)
}
