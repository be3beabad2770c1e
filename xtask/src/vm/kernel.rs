//! Kernels to boot: Debian's own packages, downloaded once and unpacked, never installed.
//!
//! A kernel is a directory as `dpkg-deb -x` leaves it. A suite's metapackage, such as
//! `linux-image-amd64`, names the suite's current kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context as _, Result};

use crate::apt::{self, Packages};
use crate::arch::Arch;
use crate::process::output;

/// Values of `--kernel`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// A kernel series, by name.
    Series(&'static Series),
    /// A directory with an unpacked kernel.
    Path(PathBuf),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if let Some(series) = SERIES.iter().chain(&LARGE_PAGES).find(|k| k.name == s) {
            return Ok(Choice::Series(series));
        }
        let path = Path::new(s);
        if path.is_dir() {
            let path = path.canonicalize().map_err(|e| format!("{s}: {e}"))?;
            return Ok(Choice::Path(path));
        }
        let names: Vec<_> = SERIES.iter().chain(&LARGE_PAGES).map(|k| k.name).collect();
        Err(format!("neither one of {} nor a directory", names.join(", ")))
    }
}

impl Choice {
    /// Returns whether Debian has this kernel only for aarch64.
    pub(crate) fn is_for_aarch64_alone(&self) -> bool {
        matches!(self, Choice::Series(series) if LARGE_PAGES.contains(series))
    }
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Choice::Series(series) => f.write_str(series.name),
            Choice::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A kernel series and the Debian suites that ship it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Series {
    /// The series' name on the command line.
    pub(crate) name: &'static str,
    suites: &'static [&'static str],
    /// The end of the metapackage's name, after the architecture.
    flavour: &'static str,
}

/// Every tested series, oldest first. The series 7.2 stands for any kernel in sid.
pub(crate) static SERIES: [Series; 4] = [
    Series { name: "5.10", suites: &["bullseye", "bullseye-security"], flavour: "" },
    Series { name: "6.1", suites: &["bookworm", "bookworm-security"], flavour: "" },
    Series { name: "6.12", suites: &["trixie", "trixie-security"], flavour: "" },
    Series { name: "7.2", suites: &["sid"], flavour: "" },
];

/// The series with 16 KiB pages, which Debian has only for arm64.
pub(crate) static LARGE_PAGES: [Series; 1] = [Series { name: "7.2-16k", suites: &["sid"], flavour: "-16k" }];

/// The default series for `--kernel`.
pub(crate) const DEFAULT: &str = "6.1";

/// A kernel on disk, ready to boot.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The version to show: Debian's package version, or the release for a directory given by path.
    pub(crate) version: String,
    /// The release, as `uname -r` prints it.
    pub(crate) release: String,
    /// The path of the compressed kernel image.
    pub(crate) image: PathBuf,
    /// The directory with RELEASE/modules.dep.
    pub(crate) modules: PathBuf,
}

impl Kernel {
    /// Finds the chosen kernel and downloads it if it is not in the cache.
    pub(crate) fn find(choice: &Choice, arch: Arch) -> Result<Kernel> {
        let series = match choice {
            Choice::Series(series) => series,
            Choice::Path(path) => return Kernel::in_directory(path),
        };
        let image = format!("linux-image-{}{}", arch.debian(), series.flavour);
        let packages = Packages {
            name: &format!("kernel {}", series.name),
            arch,
            suites: series.suites,
            packages: &[&image],
            only: &["linux-"],
        };
        let complete = |root: &Path| Kernel::in_directory(root).map(drop);
        let root = packages.root_with(complete)?;
        Ok(Kernel { version: apt::version(&root, "linux-image-")?, ..Kernel::in_directory(&root)? })
    }

    /// Finds a kernel in a directory as `dpkg-deb -x` leaves it and adds modules.dep, which
    /// packages lack.
    fn in_directory(root: &Path) -> Result<Kernel> {
        let modules = ["lib/modules", "usr/lib/modules"]
            .map(|dir| root.join(dir))
            .into_iter()
            .find(|dir| dir.is_dir())
            .with_context(|| format!("{}: no lib/modules in it", root.display()))?;
        let release = fs::read_dir(&modules)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .max()
            .with_context(|| format!("{}: no kernel's modules in it", modules.display()))?;
        let image = [root.join("boot"), modules.join(&release)]
            .iter()
            .flat_map(|dir| {
                [dir.join(format!("vmlinuz-{release}")), dir.join("vmlinuz"), dir.join("bzImage")]
            })
            .find(|path| path.is_file())
            .with_context(|| format!("{}: no vmlinuz-{release} in it", root.display()))?;
        if !modules.join(&release).join("modules.dep").exists() {
            let depmod = apt::find_program("depmod").context("depmod (package kmod) is missing")?;
            // The folder with `lib/modules`.
            let base = modules.ancestors().nth(2).unwrap_or(root);
            output(Command::new(depmod).arg("-b").arg(base).arg(&release))?;
        }
        Ok(Kernel { version: release.clone(), release, image, modules })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_kernel_name_is_answered_with_the_known_ones() {
        assert_eq!("6.12".parse::<Choice>().map(|c| c.to_string()), Ok("6.12".to_owned()));
        let error = "4.19".parse::<Choice>().unwrap_err();
        assert!(error.contains("5.10, 6.1, 6.12, 7.2, 7.2-16k"), "{error}");
    }

    #[test]
    fn a_directory_without_a_kernel_says_what_is_missing() {
        let dir = std::env::temp_dir().join(format!("xtask-kernel-{}", std::process::id()));
        let modules = dir.join("lib/modules/6.1.0-1-amd64");
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join("modules.dep"), "").unwrap();
        let error = Kernel::in_directory(&dir).unwrap_err().to_string();
        fs::create_dir_all(dir.join("boot")).unwrap();
        fs::write(dir.join("boot/vmlinuz-6.1.0-1-amd64"), "").unwrap();
        let kernel = Kernel::in_directory(&dir);
        fs::remove_dir_all(&dir).unwrap();
        assert!(error.contains("vmlinuz-6.1.0-1-amd64"), "{error}");
        assert_eq!(kernel.unwrap().release, "6.1.0-1-amd64");
    }
}
