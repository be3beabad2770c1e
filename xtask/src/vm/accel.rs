//! The choice of an accelerator: KVM only if a guest starts under it.
//!
//! A host may have a /dev/kvm that runs no guest. A guest that only powers off gets a few seconds,
//! once per boot of the host; the result is kept in the cache with the host's boot id.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use super::Progress;
use crate::arch::Arch;
use crate::cache;

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
        match self {
            Accel::Auto => "auto",
            Accel::Kvm => "kvm",
            Accel::Tcg => "tcg",
        }
    }

    /// Decides `Auto`.
    pub(crate) fn resolve(self, image: &Path, initramfs: &Path, progress: &Progress) -> Result<Accel> {
        if self != Accel::Auto {
            return Ok(self);
        }
        if File::options().read(true).write(true).open("/dev/kvm").is_err() {
            return Ok(Accel::Tcg);
        }
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("no boot id")?;
        let answer = cache::dir()?.join("kvm");
        let text = fs::read_to_string(&answer).unwrap_or_default();
        match text.trim().strip_prefix(boot.trim()).map(str::trim) {
            Some("works") => return Ok(Accel::Kvm),
            Some("fails") => return Ok(Accel::Tcg),
            _ => {}
        }
        progress.say("trying KVM");
        let works = probe(image, initramfs);
        let word = if works { "works" } else { "fails" };
        fs::write(&answer, format!("{} {word}\n", boot.trim()))?;
        progress.say(if works { "KVM works" } else { "no guest starts under KVM: emulating" });
        Ok(if works { Accel::Kvm } else { Accel::Tcg })
    }
}

/// Returns whether the kernel boots under KVM as far as its first process, which takes 3 s under
/// emulation.
fn probe(image: &Path, initramfs: &Path) -> bool {
    let mut command = Command::new("timeout");
    command
        .args(["--signal=KILL", "8", "qemu-system-x86_64"])
        .args(Accel::Kvm.arguments(Arch::X86_64))
        .args(["-m", "512", "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"])
        .arg("-kernel")
        .arg(image)
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", "console=ttyS0 quiet panic=-1 xtask.probe"])
        .stdin(Stdio::null());
    let output = command.output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("xtask-probe-ok"))
}
