//! The QEMU that runs a guest: the host's, or a newer one where a device needs vfio-user, and for
//! every device once it is there.
//!
//! QEMU 10.1 is the first with `vfio-user-pci`. If the host's is older, Debian's from
//! trixie-backports is downloaded like a kernel ([`super::kernel`]) and unpacked with all its
//! dependencies. It runs with its own program interpreter and C library, and so does not depend on
//! the host's libraries. Guests of aarch64 take the same version, because hosts rarely have a QEMU
//! for them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::Progress;
use crate::apt::Packages;
use crate::arch::Arch;
use crate::process;

/// A QEMU that can be run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Release {
    arch: Arch,
    program: PathBuf,
    /// Arguments that precede QEMU's own.
    arguments: Vec<OsString>,
    /// The directory of its modules, if it is not the built-in one.
    modules: Option<PathBuf>,
}

/// The first version with `vfio-user-pci`.
const FIRST: (u32, u32) = (10, 1);
const SUITES: &[&str] = &["trixie", "trixie-backports"];

impl Release {
    /// The QEMU in PATH for guests of an architecture, of any version.
    pub(crate) fn of_this_machine(arch: Arch) -> Release {
        Release { arch, program: program(arch).into(), arguments: Vec::new(), modules: None }
    }

    /// The newest of this one and those in the cache: QEMU 11 emulates processors in less than
    /// three quarters of the time that 7.2 takes.
    pub(crate) fn or_newer(self) -> Result<Release> {
        if self.check().is_ok() {
            return Ok(self);
        }
        let root = packages(self.arch).folder()?;
        Ok(if root.exists() { Release::unpacked(self.arch, &root) } else { self })
    }

    /// A QEMU with devices over vfio-user: the host's, else one from the cache, which is downloaded
    /// if it is missing.
    pub(crate) fn with_vfio_user(arch: Arch, progress: &Progress) -> Result<Release> {
        let own = Release::of_this_machine(arch);
        let Err(why_not) = own.check() else { return Ok(own) };
        let check = |root: &Path| {
            Release::unpacked(arch, root).check().context("the unpacked QEMU does not run here")
        };
        let root = packages(arch).root_with(&|line| progress.say(line), &check);
        root.map(|root| Release::unpacked(arch, &root)).with_context(|| {
            let ((major, minor), program, suite) = (FIRST, program(arch), SUITES[1]);
            format!(
                "an mlx5 device, or a guest of aarch64, needs QEMU {major}.{minor} or newer ({why_not:#}), \
                 and Debian's from {suite} is not available; install a newer {program}, or make a mirror of Debian reachable that carries {suite}"
            )
        })
    }

    /// The QEMU unpacked below `root`, as `dpkg-deb -x` leaves it.
    fn unpacked(arch: Arch, root: &Path) -> Release {
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        let mut arguments: Vec<OsString> = vec!["--library-path".into(), libraries.clone().into()];
        arguments.push(root.join("usr/bin").join(program(arch)).into());
        for firmware in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
            arguments.extend(["-L".into(), root.join(firmware).into()]);
        }
        Release {
            arch,
            program: libraries.join("ld-linux-x86-64.so.2"),
            arguments,
            modules: Some(libraries.join("qemu")),
        }
    }

    /// Returns a command that runs it; QEMU's arguments can follow.
    pub(crate) fn command(&self) -> Command {
        let mut command = process::tied(self.program.as_os_str());
        command.args(&self.arguments);
        if let Some(modules) = &self.modules {
            command.env("QEMU_MODULE_DIR", modules);
        }
        command
    }

    /// Checks that it runs, is new enough and has `vfio-user-pci`.
    fn check(&self) -> Result<()> {
        let said = self.ask(&["--version"])?;
        let version = parse_version(&said).with_context(|| format!("no version in {said:?}"))?;
        ensure!(version >= FIRST, "{} here is version {}.{}", program(self.arch), version.0, version.1);
        self.ask(&["-device", "vfio-user-pci,help"]).context("it was built without vfio-user-pci")?;
        Ok(())
    }

    fn ask(&self, arguments: &[&str]) -> Result<String> {
        let output = self
            .command()
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("{} {}: {}: {}", program(self.arch), arguments.join(" "), output.status, stderr.trim_end());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Returns the name of QEMU's program for guests of an architecture.
fn program(arch: Arch) -> String {
    format!("qemu-system-{}", arch.name())
}

/// Returns the packages of the newest QEMU.
fn packages(arch: Arch) -> Packages<'static> {
    let (name, packages): (_, &[_]) = match arch {
        Arch::X86_64 => ("QEMU", &["qemu-system-x86"]),
        Arch::Aarch64 => ("QEMU for aarch64", &["qemu-system-arm"]),
    };
    // It runs on this machine.
    Packages { name, arch: Arch::X86_64, suites: SUITES, packages, only: &[] }
}

/// Returns the major and minor number in `QEMU emulator version 10.1.0 (Debian ...)`.
fn parse_version(said: &str) -> Option<(u32, u32)> {
    let (_, rest) = said.split_once("version ")?;
    let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn an_unpacked_qemu_runs_with_its_own_interpreter_libraries_and_firmware() {
        let release = Release::unpacked(Arch::X86_64, Path::new("/c/11.1.3"));
        assert_eq!(release.program, Path::new("/c/11.1.3/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"));
        let arguments: Vec<_> = release.arguments.iter().map(|a| a.to_string_lossy()).collect();
        assert_eq!(arguments[0], "--library-path");
        assert_eq!(arguments[2], "/c/11.1.3/usr/bin/qemu-system-x86_64");
        assert!(arguments[3..].iter().any(|a| a == "/c/11.1.3/usr/share/seabios"));
    }
}
