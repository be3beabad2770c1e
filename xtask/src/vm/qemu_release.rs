//! The QEMU that runs a guest: the host's, or a newer one where a device needs vfio-user, and for
//! every device once it is there.
//!
//! QEMU 10.1 is the first with `vfio-user-pci`. If the host's is older, Debian's from
//! trixie-backports is downloaded like a kernel ([`super::kernel`]) and unpacked with all its
//! dependencies. It runs with its own program interpreter and C library, and so does not depend on
//! the host's libraries. Guests of aarch64 take the same version, because hosts rarely have a QEMU
//! for them.
//!
//! Invariant: a copy in the cache is used as long as it is there; `packages` in it lists the
//! version of every package in it.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use super::progress::Progress;
use crate::apt::{self, Archive, PackageVersion, PrivateApt};
use crate::arch::Arch;
use crate::cache;

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
const SUITES: &[(Archive, &str)] = &[(Archive::Main, "trixie"), (Archive::Main, "trixie-backports")];
const SUITE: &str = "trixie-backports";

impl Release {
    /// The QEMU in PATH for guests of an architecture, of any version.
    pub(crate) fn of_this_machine(arch: Arch) -> Release {
        Release { arch, program: program(arch).into(), arguments: Vec::new(), modules: None }
    }

    /// The newest of this one and those in the cache: QEMU 11 emulates processors in less than
    /// three quarters of the time that 7.2 takes.
    ///
    /// # Errors
    /// The cache cannot be used.
    pub(crate) fn or_newer(self) -> Result<Release> {
        if self.check().is_ok() {
            return Ok(self);
        }
        let home = home(self.arch)?;
        Ok(if home.exists() { newest_in_cache(self.arch, &home)?.unwrap_or(self) } else { self })
    }

    /// A QEMU with devices over vfio-user: the host's, else one from the cache, which is downloaded
    /// if it is missing.
    ///
    /// # Errors
    /// The host's QEMU is too old, and Debian's cannot be downloaded or does not run here; the
    /// message says how to get one.
    pub(crate) fn with_vfio_user(arch: Arch, progress: &Progress) -> Result<Release> {
        let own = Release::of_this_machine(arch);
        let Err(why_not) = own.check() else { return Ok(own) };
        find_in_cache_or_download(arch, progress).with_context(|| {
            let ((major, minor), program) = (FIRST, program(arch));
            format!(
                "an mlx5 device, or a guest of aarch64, needs QEMU {major}.{minor} or newer ({why_not:#}), \
                 and Debian's from {SUITE} is not available; install a newer {program}, or make a mirror of Debian reachable that carries {SUITE}"
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
        let mut command = Command::new(&self.program);
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

/// Returns the name of its package.
fn package(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "qemu-system-x86",
        Arch::Aarch64 => "qemu-system-arm",
    }
}

fn home(arch: Arch) -> Result<PathBuf> {
    let name = match arch {
        Arch::X86_64 => "qemu",
        Arch::Aarch64 => "qemu-arm",
    };
    Ok(cache::dir()?.join(name))
}

fn find_in_cache_or_download(arch: Arch, progress: &Progress) -> Result<Release> {
    let home = home(arch)?;
    fs::create_dir_all(&home)?;
    if let Some(release) = newest_in_cache(arch, &home)? {
        return Ok(release);
    }
    let _lock = cache::lock("qemu", || progress.say("another xtask is downloading QEMU, waiting for it"))?;
    if let Some(release) = newest_in_cache(arch, &home)? {
        return Ok(release);
    }
    download(arch, &home, progress)
}

/// Returns the newest version in the cache's directory. Incomplete ones have a name with a leading
/// dot.
fn newest_in_cache(arch: Arch, home: &Path) -> Result<Option<Release>> {
    let mut versions: Vec<String> =
        fs::read_dir(home)?.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    versions.retain(|version| !version.starts_with('.'));
    versions.sort_by(|a, b| apt::compare_versions(a, b));
    Ok(versions.pop().map(|version| Release::unpacked(arch, &home.join(version))))
}

fn download(arch: Arch, home: &Path, progress: &Progress) -> Result<Release> {
    let started = Instant::now();
    progress.say(&format!("QEMU: reading the package lists of {SUITE}"));
    let apt = PrivateApt::new(cache::dir()?.join("apt/qemu"), SUITES)?;
    apt.update()?;
    let packages = apt.with_dependencies(&[package(arch)], SUITE)?;
    let version = packages
        .iter()
        .find(|package| package.name == self::package(arch))
        .map(|package| directory_name(&package.version))
        .context("apt-get would install everything but QEMU")?;
    progress.say(&format!("QEMU: downloading {version} in {} packages", packages.len()));

    let temporary = home.join(format!(".{version}-{}", std::process::id()));
    let (debs, root) = (temporary.join("debs"), temporary.join("root"));
    let result = (|| -> Result<Release> {
        fs::create_dir_all(&debs)?;
        fs::create_dir_all(&root)?;
        apt.download(&packages, &debs, progress.is_quiet())?;
        apt::unpack(&debs, &root)?;
        fs::write(root.join("packages"), list(&packages))?;
        Release::unpacked(arch, &root).check().context("the unpacked QEMU does not run here")?;
        let complete = home.join(&version);
        fs::rename(&root, &complete).with_context(|| format!("cannot rename to {}", complete.display()))?;
        Ok(Release::unpacked(arch, &complete))
    })();
    // Best effort: a leftover costs space, and its name keeps it from being used as a QEMU.
    let _ = fs::remove_dir_all(&temporary);
    let release = result?;
    progress.say(&format!("QEMU: {version} ready after {:.1} s", started.elapsed().as_secs_f64()));
    Ok(release)
}

/// Returns a version as a directory's name. A colon would end the directory in the program
/// interpreter's list.
fn directory_name(version: &str) -> String {
    version.split_once(':').map_or(version, |(_epoch, rest)| rest).to_owned()
}

fn list(packages: &[PackageVersion]) -> String {
    let mut text = String::new();
    for package in packages {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{} {}", package.name, package.version);
    }
    text
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
        let command = release.command();
        let arguments: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        assert_eq!(arguments[0], "--library-path");
        assert_eq!(arguments[2], "/c/11.1.3/usr/bin/qemu-system-x86_64");
        assert!(arguments[3..].iter().any(|a| a == "/c/11.1.3/usr/share/seabios"));
        assert_eq!(command.get_envs().count(), 1);
        assert_eq!(Release::of_this_machine(Arch::X86_64).command().get_args().count(), 0);
    }

    #[test]
    fn the_directory_of_a_version_holds_no_colon() {
        assert_eq!(directory_name("1:11.1.3+ds-1~bpo13+1"), "11.1.3+ds-1~bpo13+1");
        assert_eq!(directory_name("11.1.3"), "11.1.3");
    }

    #[test]
    fn the_newest_complete_copy_is_taken() {
        let home = std::env::temp_dir().join(format!("xtask-qemu-{}", std::process::id()));
        for version in ["10.1.0-1", "11.1.3+ds-1~bpo13+1", "9.9", ".12.0-1-77"] {
            fs::create_dir_all(home.join(version)).unwrap();
        }
        let newest = newest_in_cache(Arch::X86_64, &home);
        fs::remove_dir_all(&home).unwrap();
        assert_eq!(newest.unwrap(), Some(Release::unpacked(Arch::X86_64, &home.join("11.1.3+ds-1~bpo13+1"))));
    }
}
