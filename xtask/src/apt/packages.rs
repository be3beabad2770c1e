//! [`Packages`] from Debian's suites: resolved and downloaded with a private apt configuration,
//! unpacked, and never installed.
//!
//! Invariant: the machine's own apt provides only its mirrors and its settings, such as proxies.
//!
//! Invariant: a folder in the cache is complete, because it is renamed into place. It is used as
//! long as it exists. Its file `packages` lists the packages' versions.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::arch::Arch;
use crate::process::output;
use crate::progress::say;
use crate::{cache, cargo};

/// Packages, with all packages that apt would install with them on an empty machine.
pub(crate) struct Packages<'a> {
    /// The name of these packages in messages and in the cache.
    pub(crate) name: &'a str,
    pub(crate) arch: Arch,
    pub(crate) suites: &'a [&'a str],
    pub(crate) packages: &'a [&'a str],
    /// The name prefixes of the packages to unpack; if empty, all packages, including the C
    /// library.
    pub(crate) only: &'a [&'a str],
}

/// rdma-core programs that are newer than this machine's: Debian 12's `cmtime` is a different
/// program.
pub(crate) const RDMA_CORE: Packages<'static> = Packages {
    name: "rdma-core's newest programs",
    arch: Arch::X86_64,
    suites: &["sid"],
    packages: &["ibverbs-providers", "rdmacm-utils"],
    only: &[],
};

impl Packages<'_> {
    /// Returns the folder with the unpacked packages and downloads them if the cache lacks them.
    pub(crate) fn root(&self) -> Result<PathBuf> {
        self.root_with(|_| Ok(()))
    }

    /// Like [`root`](Self::root), with a step that completes or checks a newly unpacked folder.
    pub(crate) fn root_with(&self, complete: impl Fn(&Path) -> Result<()>) -> Result<PathBuf> {
        let root = self.folder()?;
        if root.exists() {
            return Ok(root);
        }
        let name = self.name;
        let waiting = || say(&format!("another xtask is downloading {name}, waiting for it"));
        let folder = root.file_name().unwrap_or_default().to_string_lossy();
        let _lock = cache::lock(&folder, waiting)?;
        if !root.exists() {
            let temporary = root.with_file_name(format!("{folder}.making"));
            let _ = fs::remove_dir_all(&temporary);
            self.fetch(&temporary).with_context(|| format!("{name}: not available"))?;
            complete(&temporary)?;
            fs::rename(&temporary, &root).with_context(|| format!("cannot rename to {}", root.display()))?;
        }
        Ok(root)
    }

    /// Returns the cache folder for the unpacked packages, which may not exist yet.
    pub(crate) fn folder(&self) -> Result<PathBuf> {
        let words = self.packages.iter().chain(self.suites).map(|word| word.as_bytes());
        let hash = cache::hash(&words.collect::<Vec<_>>());
        Ok(cache::dir()?.join("debian").join(format!("{}-{}-{hash:016x}", self.short(), self.arch.debian())))
    }

    fn short(&self) -> String {
        self.name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-")
    }

    /// Downloads the newest versions and unpacks them below `root`.
    pub(crate) fn fetch(&self, root: &Path) -> Result<()> {
        let name = self.name;
        say(&format!("{name}: reading the package lists of {}", self.suites.join(", ")));
        let _lock = cache::lock(&format!("apt-{}", self.short()), || ())?;
        let (dir, arch) = (self.state()?, self.arch.debian());
        let settings = [
            format!("Dir={}", dir.display()),
            format!("Dir::State::status={}", dir.join("status").display()),
            format!("APT::Architecture={arch}"),
            format!("APT::Architectures::={arch}"),
        ];
        let apt = |arguments: &[&str]| {
            let mut command = Command::new("apt-get");
            command.arg("-c").arg(cargo::root().join("xtask/src/apt/apt.conf"));
            command.args(settings.iter().flat_map(|setting| ["-o", setting])).args(["-q", "-y"]);
            command.args(arguments).env("LC_ALL", "C.UTF-8");
            command
        };
        output(&mut apt(&["-o", "APT::Update::Error-Mode=any", "update"]))?;
        let install = ["--simulate", "--no-install-recommends", "install"];
        let mut packages = installs(&output(&mut apt(&[&install as &[_], self.packages].concat()))?);
        packages.retain(|(name, _)| self.only.is_empty() || self.only.iter().any(|p| name.starts_with(p)));
        say(&format!("{name}: downloading {} packages", packages.len()));
        let debs = root.join("debs");
        fs::create_dir_all(&debs)?;
        let specs = packages.iter().map(|(name, version)| format!("{name}={version}"));
        output(apt(&["download"]).args(specs).current_dir(&debs))?;
        for deb in fs::read_dir(&debs)? {
            output(Command::new("dpkg-deb").arg("-x").arg(deb?.path()).arg(root))?;
        }
        fs::remove_dir_all(&debs)?;
        // Packages from newer suites have all files below /usr and expect these links.
        for name in ["bin", "lib", "lib64", "sbin"] {
            if root.join("usr").join(name).exists() && !root.join(name).exists() {
                symlink(Path::new("usr").join(name), root.join(name))?;
            }
        }
        let lines = packages.iter().map(|(name, version)| format!("{name} {version}\n"));
        Ok(fs::write(root.join("packages"), lines.collect::<String>())?)
    }

    /// Creates and returns the folder with apt's private state and the sources.
    fn state(&self) -> Result<PathBuf> {
        let dir = cache::dir()?.join("apt").join(format!("{}-{}", self.short(), self.arch.debian()));
        for folder in ["etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial"]
        {
            fs::create_dir_all(dir.join(folder))?;
        }
        let signed_by =
            if Path::new(KEYRING).exists() { format!("[signed-by={KEYRING}] ") } else { String::new() };
        let lists = output(Command::new("apt-get").args(["--print-uris", "update"]))?;
        let mut sources = String::new();
        for suite in self.suites {
            let archive = if suite.ends_with("-security") { "/debian-security" } else { "/debian" };
            let mirror = mirror(&lists, archive).context(
                "apt's sources name no mirror of Debian: add one (an http address that ends in /debian)",
            )?;
            sources += &format!("deb {signed_by}{mirror}{archive}/ {suite} main\n");
        }
        fs::write(dir.join("etc/apt/sources.list"), sources)?;
        fs::write(dir.join("status"), "")?;
        Ok(dir)
    }
}

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Returns the version of the first unpacked package whose name starts with `prefix`.
pub(crate) fn version(root: &Path, prefix: &str) -> Result<String> {
    let list = fs::read_to_string(root.join("packages")).unwrap_or_default();
    let version = list.lines().find(|line| line.starts_with(prefix)).and_then(|line| line.split(' ').nth(1));
    version.map(str::to_owned).with_context(|| format!("no {prefix} in {}", root.display()))
}

/// Returns the base address of a Debian archive (`/debian`, `/debian-security`), found among the
/// addresses of apt's lists. If they name only the other archive, assumes the same host for this
/// archive. The address must end with the archive's name, to exclude third-party archives.
fn mirror<'a>(lists: &'a str, archive: &str) -> Option<&'a str> {
    let addresses = || lists.lines().filter_map(|line| line.strip_prefix('\''));
    let above = |archive: &str| {
        let lists = format!("{archive}/dists/");
        addresses().find_map(|address| Some(address.split_once(&lists)?.0))
    };
    above(archive).or_else(|| above("/debian")).or_else(|| above("/debian-security"))
}

/// Parses `Inst NAME [OLD] (VERSION SUITE [ARCHITECTURE])` lines from `apt-get --simulate install`.
fn installs(text: &str) -> Vec<(String, String)> {
    let package = |line: &str| {
        let (name, rest) = line.strip_prefix("Inst ")?.split_once(' ')?;
        Some((name.to_owned(), rest.split_once('(')?.1.split([' ', ')']).next()?.to_owned()))
    };
    text.lines().filter_map(package).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_apt_would_install_is_read_with_its_versions() {
        let text = "NOTE: This is only a simulation!\n\
                    The following NEW packages will be installed:\n  libc6 qemu-system-x86\n\
                    Inst libc6 (2.41-12+deb13u4 Debian:13.7/stable [amd64]) []\n\
                    Inst tzdata [2024a] (2025b-4 Debian:13.7/stable [all])\n\
                    Conf libc6 (2.41-12+deb13u4 Debian:13.7/stable [amd64])\nInst broken\n";
        let expected = [("libc6", "2.41-12+deb13u4"), ("tzdata", "2025b-4")];
        assert_eq!(installs(text), expected.map(|(name, version)| (name.to_owned(), version.to_owned())));
    }

    #[test]
    fn the_machines_own_mirror_is_used_and_third_parties_are_not() {
        let lists = "'https://third.example/apt/dists/stable/InRelease' third.example_apt_stable_InRelease 0 \n\
                     'https://mirror.example/pub/debian/dists/bookworm/InRelease' mirror.example_pub_debian 0 \n\
                     'http://security.example/debian-security/dists/bookworm-security/InRelease' security 0 \n";
        assert_eq!(mirror(lists, "/debian"), Some("https://mirror.example/pub"));
        assert_eq!(mirror(lists, "/debian-security"), Some("http://security.example"));
        let one = "'http://m/debian-security/dists/bookworm-security/InRelease' m 0 \n";
        assert_eq!(mirror(one, "/debian"), Some("http://m"));
        assert_eq!(mirror("", "/debian"), None);
    }
}
