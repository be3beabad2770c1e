//! The choice of an accelerator: KVM only if a guest starts under it.
//!
//! A host may have a /dev/kvm that cannot run guests. The first guest tries KVM. If the guest's
//! process 1 sends nothing, the guest is booted again under emulation, and the cache records that
//! with the host's boot id.

use std::fs::{self, File};

use anyhow::{Context as _, Result};

use super::job::Device;
use crate::arch::Arch;
use crate::cache;
use crate::progress::say;

/// The accelerator for a guest's processors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Accel {
    /// KVM if a guest starts under it, otherwise emulation; always emulation for mlx5
    Auto,
    /// The host's processors
    Kvm,
    /// Emulation by QEMU's TCG
    Tcg,
}

/// The emulated processor: the basic model, with random numbers for the kernel. Newer features,
/// such as longer registers and protection of the kernel from itself, are slow to emulate.
const EMULATED: &str = "qemu64,+rdrand,+rdseed";

/// The emulated aarch64 processor. It has atomic instructions, which cost less than exclusive loads
/// and stores, and pages of 4, 16 and 64 KiB, but no signed pointers, which are expensive.
const EMULATED_AARCH64: &str = "neoverse-n1";

impl Accel {
    /// Returns QEMU's arguments for the accelerator.
    pub(crate) fn arguments(self, arch: Arch) -> [&'static str; 4] {
        const TCG: &str = "tcg,thread=multi,tb-size=512";
        match (self, arch) {
            (Accel::Kvm, _) => ["-accel", "kvm", "-cpu", "host"],
            (Accel::Auto | Accel::Tcg, Arch::X86_64) => ["-accel", TCG, "-cpu", EMULATED],
            (Accel::Auto | Accel::Tcg, Arch::Aarch64) => ["-accel", TCG, "-cpu", EMULATED_AARCH64],
        }
    }

    /// Returns the accelerator's name for messages.
    pub(crate) fn name(self) -> &'static str {
        if self == Accel::Kvm { "kvm" } else { "tcg" }
    }

    /// Resolves `Auto`: emulation for the ConnectX model, because the model takes most of the time.
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

/// The file in the cache that records that no guest starts under KVM.
const FILE: &str = "kvm";

/// Records that no guest starts under KVM until the host boots again.
pub(super) fn kvm_has_failed() -> Result<()> {
    say("no guest starts under KVM: emulating");
    Ok(fs::write(cache::dir()?.join(FILE), failure()?)?)
}

/// Returns the file's content for this boot of the host.
fn failure() -> Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("no boot id")?;
    Ok(format!("{} fails\n", boot.trim()))
}
