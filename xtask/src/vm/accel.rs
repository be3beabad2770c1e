//! The choice of an accelerator: KVM only if a guest starts under it.
//!
//! A host may have a /dev/kvm that runs no guest. The first guest tries it: if its process 1 sends
//! nothing, it is booted again under emulation, and the cache remembers that with the host's boot
//! id.

use std::fs::{self, File};

use anyhow::{Context as _, Result};

use super::job::Device;
use crate::arch::Arch;
use crate::cache;
use crate::progress::say;

/// The accelerator of a guest's processors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Accel {
    /// KVM if a guest starts under it, else emulation; emulation for mlx5
    Auto,
    /// The host's processors
    Kvm,
    /// Emulation by QEMU's TCG
    Tcg,
}

/// The emulated processor: the plain one, with random numbers for the kernel. What newer ones add,
/// such as longer registers and protection of the kernel from itself, is slower to emulate.
const EMULATED: &str = "qemu64,+rdrand,+rdseed";

/// The same of aarch64: with atomic instructions, which cost less than loops of exclusive loads and
/// stores, with pages of 4, 16 and 64 KiB, and without signed pointers, which cost much.
const EMULATED_AARCH64: &str = "neoverse-n1";

impl Accel {
    /// QEMU's arguments.
    pub(crate) fn arguments(self, arch: Arch) -> [&'static str; 4] {
        const TCG: &str = "tcg,thread=multi,tb-size=512";
        match (self, arch) {
            (Accel::Kvm, _) => ["-accel", "kvm", "-cpu", "host"],
            (Accel::Auto | Accel::Tcg, Arch::X86_64) => ["-accel", TCG, "-cpu", EMULATED],
            (Accel::Auto | Accel::Tcg, Arch::Aarch64) => ["-accel", TCG, "-cpu", EMULATED_AARCH64],
        }
    }

    /// The name to show.
    pub(crate) fn name(self) -> &'static str {
        if self == Accel::Kvm { "kvm" } else { "tcg" }
    }

    /// Decides `Auto`. The ConnectX model takes most of the time with either accelerator.
    pub(crate) fn resolve(self, arch: Arch, device: Device) -> Result<Accel> {
        if self != Accel::Auto {
            return Ok(self);
        }
        let is_possible = arch == Arch::X86_64
            && device != Device::Mlx5
            && File::options().read(true).write(true).open("/dev/kvm").is_ok();
        let has_failed = || -> Result<bool> {
            let known = fs::read_to_string(cache::dir()?.join(FILE)).unwrap_or_default();
            Ok(known == failure()?)
        };
        Ok(if is_possible && !has_failed()? { Accel::Kvm } else { Accel::Tcg })
    }
}

/// The cache's file that says that no guest starts under KVM.
const FILE: &str = "kvm";

/// Remembers that no guest starts under KVM, until the host boots again.
pub(super) fn kvm_has_failed() -> Result<()> {
    say("no guest starts under KVM: emulating");
    Ok(fs::write(cache::dir()?.join(FILE), failure()?)?)
}

/// Returns the file's content for this boot of the host.
fn failure() -> Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("no boot id")?;
    Ok(format!("{} fails\n", boot.trim()))
}
