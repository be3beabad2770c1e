//! Kernels to boot: Debian's own packages, downloaded once and unpacked, never installed.
//!
//! A kernel is a directory as `dpkg-deb -x` leaves it. Debian's kernels are found through a private
//! apt configuration, by the names of the image packages that a suite carries now. A copy in the
//! cache is used as long as it is there, so a suite that moves on does not change the kernel until
//! the cache is removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::progress::Progress;
use crate::apt::{self, Archive, PackageVersion, PrivateApt};
use crate::arch::Arch;
use crate::cache;

/// Values of `--kernel`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// One of [`SERIES`], by name.
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
    /// Returns whether Debian has it for aarch64 alone.
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

/// A kernel series, and the Debian suites that carry it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Series {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    suites: &'static [(Archive, &'static str)],
    major: u32,
    minors: std::ops::RangeInclusive<u32>,
    /// The end of its packages' names behind the architecture.
    flavour: &'static str,
}

/// Every series the project is tested on, oldest first.
pub(crate) static SERIES: [Series; 4] = [
    Series {
        name: "5.10",
        suites: &[(Archive::Main, "bullseye"), (Archive::Security, "bullseye-security")],
        major: 5,
        minors: 10..=10,
        flavour: "",
    },
    Series {
        name: "6.1",
        suites: &[(Archive::Main, "bookworm"), (Archive::Security, "bookworm-security")],
        major: 6,
        minors: 1..=1,
        flavour: "",
    },
    Series {
        name: "6.12",
        suites: &[(Archive::Main, "trixie"), (Archive::Security, "trixie-security")],
        major: 6,
        minors: 12..=12,
        flavour: "",
    },
    // sid moves on, so any 7.x that it carries from 7.2 on.
    Series { name: "7.2", suites: SID, major: 7, minors: 2..=u32::MAX, flavour: "" },
];

/// The same with pages of 16 KiB, which Debian has for arm64 alone.
pub(crate) static LARGE_PAGES: [Series; 1] =
    [Series { name: "7.2-16k", suites: SID, major: 7, minors: 2..=u32::MAX, flavour: "-16k" }];

const SID: &[(Archive, &str)] = &[(Archive::Main, "sid")];

/// The series that `--kernel` defaults to.
pub(crate) const DEFAULT: &str = "6.1";

/// A kernel on disk, ready to boot.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The version to show: Debian's package version, or the release for a directory given by path.
    pub(crate) version: String,
    /// `uname -r`.
    pub(crate) release: String,
    /// The compressed kernel image.
    pub(crate) image: PathBuf,
    /// The directory that holds RELEASE/ with modules.dep in it.
    pub(crate) modules: PathBuf,
}

impl Kernel {
    /// Finds the chosen kernel, downloading it if it is not in the cache.
    ///
    /// # Errors
    /// The suite carries no such kernel, the download fails, or the directory holds no kernel.
    pub(crate) fn find(choice: &Choice, arch: Arch, progress: &Progress) -> Result<Kernel> {
        match choice {
            Choice::Series(series) => find_in_cache_or_download(series, arch, progress),
            Choice::Path(path) => {
                let mut kernel = Kernel::in_directory(path, None)?;
                if !kernel.modules.join(&kernel.release).join("modules.dep").exists() {
                    // The directory may not be writable, and depmod needs a tree of its own shape.
                    kernel.modules = mirror_with_depmod(&kernel)?;
                }
                Ok(kernel)
            }
        }
    }

    /// Finds a kernel in a directory as `dpkg-deb -x` leaves it.
    fn in_directory(root: &Path, version: Option<&str>) -> Result<Kernel> {
        let modules = ["usr/lib/modules", "lib/modules"]
            .map(|dir| root.join(dir))
            .into_iter()
            .find(|dir| dir.is_dir())
            .ok_or_else(|| anyhow!("{}: no lib/modules in it", root.display()))?;
        let release = sorted_names(&modules)?
            .pop()
            .ok_or_else(|| anyhow!("{}: no kernel's modules in it", modules.display()))?;
        let image = [root.join("boot"), modules.join(&release)]
            .iter()
            .flat_map(|dir| {
                [dir.join(format!("vmlinuz-{release}")), dir.join("vmlinuz"), dir.join("bzImage")]
            })
            .find(|path| path.is_file())
            .ok_or_else(|| anyhow!("{}: no vmlinuz-{release} in it", root.display()))?;
        Ok(Kernel { version: version.unwrap_or(&release).to_owned(), release, image, modules })
    }
}

fn find_in_cache_or_download(series: &Series, arch: Arch, progress: &Progress) -> Result<Kernel> {
    let name = series.cache_name(arch);
    let home = cache::dir()?.join("kernels").join(&name);
    fs::create_dir_all(&home)?;
    if let Some(kernel) = newest_in_cache(&home)? {
        return Ok(kernel);
    }
    let _lock = cache::lock(&format!("kernel-{name}"), || {
        progress.say(&format!("another xtask is downloading kernel {name}, waiting for it"));
    })?;
    if let Some(kernel) = newest_in_cache(&home)? {
        return Ok(kernel);
    }
    download(series, arch, &home, progress)
}

/// Returns the newest kernel in a series' directory. Incomplete ones have a name with a leading
/// dot.
fn newest_in_cache(home: &Path) -> Result<Option<Kernel>> {
    let mut versions: Vec<_> = sorted_names(home)?.into_iter().filter(|v| !v.starts_with('.')).collect();
    versions.sort_by(|a, b| apt::compare_versions(a, b));
    versions.pop().map(|version| Kernel::in_directory(&home.join(&version), Some(&version))).transpose()
}

fn download(series: &Series, arch: Arch, home: &Path, progress: &Progress) -> Result<Kernel> {
    let started = Instant::now();
    let name = series.cache_name(arch);
    let suites: Vec<_> = series.suites.iter().map(|(_, suite)| *suite).collect();
    progress.say(&format!("kernel {name}: reading the package lists of {}", suites.join(", ")));
    let apt = PrivateApt::of(arch, cache::dir()?.join("apt").join(&name), series.suites)?;
    apt.update()?;
    let image = newest_image(series, arch, &apt)?;
    let packages = with_kernel_dependencies(&apt, image.clone())?;
    let names: Vec<_> = packages.iter().map(|p| p.name.as_str()).collect();
    progress.say(&format!("kernel {name}: downloading {} {}", names.join(", "), image.version));

    let temporary = home.join(format!(".{}-{}", image.version, std::process::id()));
    let (debs, root) = (temporary.join("debs"), temporary.join("root"));
    let result = (|| {
        fs::create_dir_all(&debs)?;
        fs::create_dir_all(&root)?;
        apt.download(&packages, &debs, progress.is_quiet())?;
        progress.say(&format!("kernel {name}: unpacking"));
        apt::unpack(&debs, &root)?;
        let kernel = Kernel::in_directory(&root, Some(&image.version))?;
        depmod(&root, &kernel)?;
        let complete = home.join(&image.version);
        fs::rename(&root, &complete).with_context(|| format!("cannot rename to {}", complete.display()))?;
        Kernel::in_directory(&complete, Some(&image.version))
    })();
    // Best effort: a leftover costs space, and its name keeps it from being used as a kernel.
    let _ = fs::remove_dir_all(&temporary);
    let kernel = result?;
    progress.say(&format!(
        "kernel {name}: {} ready after {:.1} s",
        kernel.version,
        started.elapsed().as_secs_f64()
    ));
    Ok(kernel)
}

/// Returns the newest version of the series among the image packages of an architecture.
fn newest_image(series: &Series, arch: Arch, apt: &PrivateApt) -> Result<PackageVersion> {
    let mut candidates = Vec::new();
    for name in apt.names("linux-image-")? {
        if is_image(&name, arch, series.flavour) {
            candidates.extend(apt.versions(&name)?.into_iter().filter(|p| series.carries(&p.version)));
        }
    }
    candidates.sort_by(|a, b| apt::compare_versions(&a.version, &b.version));
    match candidates.pop() {
        Some(newest) => Ok(newest),
        None => bail!(
            "{} carries no kernel {}; --kernel also takes a directory with an unpacked kernel package",
            series.suites.iter().map(|(_, s)| *s).collect::<Vec<_>>().join(", "),
            series.name
        ),
    }
}

impl Series {
    /// Its name in the cache.
    fn cache_name(&self, arch: Arch) -> String {
        match arch {
            Arch::X86_64 => self.name.to_owned(),
            Arch::Aarch64 => format!("{}-{}", self.name, arch.debian()),
        }
    }

    /// Returns whether a Debian version such as `5.10.262-1` belongs to the series.
    fn carries(&self, version: &str) -> bool {
        let mut numbers = version.split(['.', '-', '~', '+']).map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => major == self.major && self.minors.contains(&minor),
            _ => false,
        }
    }
}

/// Returns whether a package is a kernel image of a flavour, such as `linux-image-<digit...>-amd64`
/// of the plain one: no other flavour (cloud, rt), no unsigned or debug variant.
fn is_image(name: &str, arch: Arch, flavour: &str) -> bool {
    let middle = name.strip_prefix("linux-image-").and_then(|rest| rest.strip_suffix(flavour));
    let middle = middle.and_then(|rest| rest.strip_suffix(arch.debian()));
    let Some(middle) = middle.and_then(|rest| rest.strip_suffix('-')) else {
        return false;
    };
    middle.starts_with(|c: char| c.is_ascii_digit())
        && middle.contains('.')
        && !middle.split('-').any(|word| matches!(word, "cloud" | "rt"))
}

/// Returns the image package and, for 7.x, the packages that it is split into. Its other
/// dependencies are not needed to boot.
fn with_kernel_dependencies(apt: &PrivateApt, image: PackageVersion) -> Result<Vec<PackageVersion>> {
    let mut packages = vec![image];
    let mut next = 0;
    while let Some(package) = packages.get(next).cloned() {
        next += 1;
        for name in apt.depends(&package)? {
            let part_of_kernel = ["linux-binary-", "linux-modules-", "linux-image-"].iter().any(|prefix| {
                name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            });
            if part_of_kernel && packages.iter().all(|p| p.name != name) {
                packages.push(PackageVersion { name, version: package.version.clone() });
            }
        }
    }
    Ok(packages)
}

/// Writes modules.dep. depmod only reads trees with lib/modules; newer packages have
/// usr/lib/modules.
fn depmod(root: &Path, kernel: &Kernel) -> Result<()> {
    if !root.join("lib/modules").exists() {
        fs::create_dir_all(root.join("lib"))?;
        std::os::unix::fs::symlink("../usr/lib/modules", root.join("lib/modules"))?;
    }
    let depmod = apt::find_program("depmod").context("depmod (package kmod) is missing")?;
    // depmod warns about lists of built-in modules that newer packages leave out. Such a
    // warning is not shown.
    let output = Command::new(depmod).arg("-b").arg(root).arg(&kernel.release).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "depmod failed on {}:\n{stderr}", root.display());
    Ok(())
}

/// Makes a tree in the cache whose modules are links to a kernel's own, with a modules.dep beside
/// them.
fn mirror_with_depmod(kernel: &Kernel) -> Result<PathBuf> {
    let original = kernel.modules.join(&kernel.release);
    let identity = cache::hash(&[original.as_os_str().as_encoded_bytes()]);
    let root = cache::dir()?.join("depmod").join(format!("{}-{identity:016x}", kernel.release));
    let modules = root.join("lib/modules");
    let mirror = modules.join(&kernel.release);
    let _lock = cache::lock("depmod", || ())?;
    fs::create_dir_all(&mirror)?;
    for name in sorted_names(&original)? {
        let link = mirror.join(&name);
        if !link.exists() {
            std::os::unix::fs::symlink(original.join(&name), &link)?;
        }
    }
    depmod(&root, kernel)?;
    Ok(modules)
}

fn sorted_names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_carries_its_own_versions_only() {
        let carries = |name: &str, version: &str| {
            SERIES.iter().find(|s| s.name == name).is_some_and(|s| s.carries(version))
        };
        assert!(carries("5.10", "5.10.262-1"));
        assert!(!carries("5.10", "5.1.2-1"));
        assert!(!carries("6.1", "6.12.9-1"));
        assert!(carries("6.1", "6.1.0~rc3-1"));
        assert!(carries("7.2", "7.2.13-1"));
        assert!(carries("7.2", "7.10~rc1-1~exp1"));
        assert!(!carries("7.2", "7.1.9-1"));
        assert!(!carries("7.2", "8.2.1-1"));
        assert!(!carries("7.2", "rubbish"));
    }

    #[test]
    fn flavours_and_twins_of_the_image_package_are_left_out() {
        let is_plain_image = |name: &str, arch| is_image(name, arch, "");
        assert!(is_plain_image("linux-image-6.1.0-56-amd64", Arch::X86_64));
        assert!(is_plain_image("linux-image-7.2.13+deb14-amd64", Arch::X86_64));
        assert!(is_plain_image("linux-image-7.2.13+deb14-arm64", Arch::Aarch64));
        for name in [
            "linux-image-amd64",
            "linux-image-6.1-amd64-signed-template",
            "linux-image-6.1.0-56-amd64-unsigned",
            "linux-image-6.1.0-56-amd64-dbg",
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.1.0-56-rt-amd64",
            "linux-image-rt-amd64",
            "linux-image-6.1.0-56-arm64",
        ] {
            assert!(!is_plain_image(name, Arch::X86_64), "{name}");
        }
        let with_large_pages = "linux-image-7.2.13+deb14-arm64-16k";
        assert!(!is_plain_image(with_large_pages, Arch::Aarch64));
        assert!(is_image(with_large_pages, Arch::Aarch64, "-16k"));
        assert!(!is_image("linux-image-7.2.13+deb14-arm64", Arch::Aarch64, "-16k"));
    }

    #[test]
    fn an_unknown_kernel_name_is_answered_with_the_known_ones() {
        assert_eq!("6.12".parse::<Choice>().map(|c| c.to_string()), Ok("6.12".to_owned()));
        let error = "4.19".parse::<Choice>().unwrap_err();
        assert!(error.contains("5.10, 6.1, 6.12, 7.2, 7.2-16k"), "{error}");
    }

    #[test]
    fn a_directory_without_a_kernel_says_what_is_missing() {
        let dir = std::env::temp_dir().join(format!("xtask-kernel-{}", std::process::id()));
        fs::create_dir_all(dir.join("lib/modules/6.1.0-1-amd64")).unwrap();
        let error = Kernel::in_directory(&dir, None).unwrap_err().to_string();
        fs::create_dir_all(dir.join("boot")).unwrap();
        fs::write(dir.join("boot/vmlinuz-6.1.0-1-amd64"), "").unwrap();
        let kernel = Kernel::in_directory(&dir, None);
        fs::remove_dir_all(&dir).unwrap();
        assert!(error.contains("vmlinuz-6.1.0-1-amd64"), "{error}");
        assert_eq!(kernel.unwrap().release, "6.1.0-1-amd64");
    }
}
