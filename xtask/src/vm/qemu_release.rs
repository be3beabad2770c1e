//! The QEMU that runs a guest: the host's QEMU if it is new enough, otherwise Debian's from
//! trixie-backports, which is downloaded like a kernel ([`super::kernel`]) and unpacked with all
//! its dependencies. It runs with its own program interpreter and C library, so it does not depend
//! on the host's libraries.
//!
//! QEMU 10.1 is the first version with `vfio-user-pci`, which a ConnectX needs. aarch64 guests use
//! the same version, because hosts rarely have a QEMU for them. QEMU 11 emulates processors in less
//! than three quarters of QEMU 7.2's time, so every guest uses it once it has been downloaded.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::job::Device;
use crate::apt::Packages;
use crate::arch::{Arch, name_of};
use crate::process;

/// A runnable QEMU.
pub(crate) struct Release {
    program: PathBuf,
    /// The arguments before QEMU's own arguments.
    arguments: Vec<OsString>,
    /// The directory with QEMU's modules, if it is not the built-in one.
    modules: Option<PathBuf>,
}

/// The first version with `vfio-user-pci`.
const FIRST: (u32, u32) = (10, 1);
const SUITES: &[&str] = &["trixie", "trixie-backports"];

impl Release {
    /// Finds the QEMU for guests with an architecture and a device. Downloads it if the host's is
    /// too old for them.
    pub(crate) fn find(arch: Arch, device: Device) -> Result<Release> {
        let name = format!("qemu-system-{}", name_of(arch));
        let own = Release { program: name.clone().into(), arguments: Vec::new(), modules: None };
        let Err(why_not) = own.check() else { return Ok(own) };
        let (title, packages): (_, &[_]) = match arch {
            Arch::X86_64 => ("QEMU", &["qemu-system-x86"]),
            Arch::Aarch64 => ("QEMU for aarch64", &["qemu-system-arm"]),
        };
        // QEMU runs on this machine, regardless of the guest's architecture.
        let packages = Packages { name: title, arch: Arch::X86_64, suites: SUITES, packages, only: &[] };
        if arch == Arch::X86_64 && device != Device::Mlx5 && !packages.folder()?.exists() {
            return Ok(own);
        }
        let check = |root: &Path| {
            Release::unpacked(&name, root).check().context("the unpacked QEMU does not run here")
        };
        let root = packages.root_with(check).with_context(|| {
            let ((major, minor), suite) = (FIRST, SUITES[1]);
            format!(
                "an mlx5 device, or a guest of aarch64, needs QEMU {major}.{minor} or newer ({why_not:#}), \
                 and Debian's from {suite} is not available; install a newer {name}, or make a mirror of \
                 Debian reachable that carries {suite}"
            )
        })?;
        Ok(Release::unpacked(&name, &root))
    }

    /// Returns the QEMU unpacked below `root`, as `dpkg-deb -x` leaves it.
    fn unpacked(name: &str, root: &Path) -> Release {
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        let mut arguments: Vec<OsString> = vec!["--library-path".into(), libraries.clone().into()];
        arguments.push(root.join("usr/bin").join(name).into());
        for firmware in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
            arguments.extend(["-L".into(), root.join(firmware).into()]);
        }
        let (program, modules) = (libraries.join("ld-linux-x86-64.so.2"), libraries.join("qemu"));
        Release { program, arguments, modules: Some(modules) }
    }

    /// Returns a command that runs this QEMU. QEMU's arguments can follow.
    pub(crate) fn command(&self) -> Command {
        let mut command = process::tied(self.program.as_os_str());
        command.args(&self.arguments);
        command.envs(self.modules.iter().map(|modules| ("QEMU_MODULE_DIR", modules)));
        command
    }

    /// Checks that this QEMU runs, is new enough and has `vfio-user-pci`.
    fn check(&self) -> Result<()> {
        let said = process::output(self.command().arg("--version"))?;
        let version = parse_version(&said).with_context(|| format!("no version in {said:?}"))?;
        ensure!(version >= FIRST, "it is version {}.{}", version.0, version.1);
        process::output(self.command().args(["-device", "vfio-user-pci,help"]))
            .context("it was built without vfio-user-pci")?;
        Ok(())
    }
}

/// Returns the major and minor version in `QEMU emulator version 10.1.0 (Debian ...)`.
fn parse_version(said: &str) -> Option<(u32, u32)> {
    let (_, rest) = said.split_once("version ")?;
    let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[test]
fn versions_compare_as_numbers_and_what_is_none_is_not_guessed() {
    let new_enough = |said| parse_version(said).map(|version| version >= FIRST);
    assert_eq!(new_enough("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)"), Some(false));
    assert_eq!(new_enough("QEMU emulator version 10.0.13\n"), Some(false));
    assert_eq!(new_enough("QEMU emulator version 10.1.0"), Some(true));
    assert_eq!(new_enough("QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1~bpo13+1)"), Some(true));
    assert_eq!(new_enough("QEMU emulator version 11"), None);
    assert_eq!(new_enough("qemu"), None);
}
