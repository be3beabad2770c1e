//! Packages of other Debian suites: a private apt configuration that resolves, downloads and
//! unpacks them.
//!
//! Invariant: the machine's own apt provides its mirrors and its settings (proxies), and nothing
//! else.

use std::fmt::Write as _;
use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::to_stderr;
use crate::arch::Arch;

/// One of Debian's archives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Archive {
    /// `debian`
    Main,
    /// `debian-security`
    Security,
}

/// A package at one version, as apt's command line names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PackageVersion {
    /// Package name.
    pub(crate) name: String,
    /// Debian version.
    pub(crate) version: String,
}

impl PackageVersion {
    fn spec(&self) -> String {
        format!("{}={}", self.name, self.version)
    }
}

/// A private apt configuration: its sources, lists and caches are in one directory.
pub(crate) struct PrivateApt {
    dir: PathBuf,
}

impl PrivateApt {
    /// Writes the configuration for `suites` into `dir`, with the mirrors of the machine's own apt,
    /// for packages of amd64.
    ///
    /// # Errors
    /// The directory cannot be written, or apt's sources name no mirror of Debian.
    pub(crate) fn new(dir: PathBuf, suites: &[(Archive, &str)]) -> Result<Self> {
        Self::of(Arch::X86_64, dir, suites)
    }

    /// The same for packages of an architecture, which need not be this machine's: apt only
    /// downloads them.
    ///
    /// # Errors
    /// As [`PrivateApt::new`].
    pub(crate) fn of(arch: Arch, dir: PathBuf, suites: &[(Archive, &str)]) -> Result<Self> {
        for sub in ["empty", "state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(sub))?;
        }
        let mirrors = Mirrors::of_this_machine()?;
        let mut sources = String::new();
        for (archive, suite) in suites {
            let keyring = Path::new(KEYRING);
            let signed_by = if keyring.exists() { format!("[signed-by={KEYRING}] ") } else { String::new() };
            writeln!(sources, "deb {signed_by}{} {suite} main", mirrors.uri(*archive))?;
        }
        fs::write(dir.join("sources.list"), sources)?;
        fs::write(dir.join("status"), "")?;
        fs::write(dir.join("apt.conf"), private_configuration(&dir, arch))?;
        Ok(PrivateApt { dir })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(self.dir.join("apt.conf")).stdin(Stdio::null()).env("LC_ALL", "C.UTF-8");
        command
    }

    /// Downloads the package lists.
    ///
    /// # Errors
    /// apt-get is missing or fails; its messages are part of the error.
    pub(crate) fn update(&self) -> Result<()> {
        let sources = fs::read_to_string(self.dir.join("sources.list"))?;
        self.output(self.command("apt-get").args(["-q", "-o", "APT::Update::Error-Mode=any", "update"]))
            .with_context(|| format!("cannot read the package lists of\n{sources}"))?;
        Ok(())
    }

    /// Returns all package names that start with `prefix`.
    ///
    /// # Errors
    /// apt-cache fails.
    pub(crate) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let text = self.output(self.command("apt-cache").args(["pkgnames", prefix]))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Returns every version of a package in the lists.
    ///
    /// # Errors
    /// apt-cache fails.
    pub(crate) fn versions(&self, name: &str) -> Result<Vec<PackageVersion>> {
        let text = self.output(self.command("apt-cache").args(["madison", name]))?;
        Ok(parse_madison(&text))
    }

    /// Returns the names of the packages that one package version depends on.
    ///
    /// # Errors
    /// apt-cache fails.
    pub(crate) fn depends(&self, package: &PackageVersion) -> Result<Vec<String>> {
        let text = self.output(self.command("apt-cache").args(["show", &package.spec()]))?;
        Ok(parse_depends(&text))
    }

    /// Returns packages of a suite with all their dependencies, down to the C library, and without
    /// recommended packages: the packages that apt would install on an empty machine.
    ///
    /// # Errors
    /// apt-get fails, or would leave one of them out.
    pub(crate) fn with_dependencies(&self, names: &[&str], suite: &str) -> Result<Vec<PackageVersion>> {
        let mut command = self.command("apt-get");
        command.args(["-q", "-y", "--simulate", "--no-install-recommends"]);
        let text = self.output(command.args(["--target-release", suite, "install"]).args(names))?;
        let packages = parse_installs(&text);
        for name in names {
            ensure!(packages.iter().any(|p| p.name == *name), "apt-get would not install {name}:\n{text}");
        }
        Ok(packages)
    }

    /// Downloads packages into `into`. On a terminal apt shows its own progress bar.
    ///
    /// # Errors
    /// apt-get fails.
    pub(crate) fn download(&self, packages: &[PackageVersion], into: &Path, quiet: bool) -> Result<()> {
        let mut command = self.command("apt-get");
        command.current_dir(into).arg("download").args(packages.iter().map(PackageVersion::spec));
        if !quiet && std::io::stderr().is_terminal() {
            let status = command.stdout(to_stderr()?).status().context("cannot run apt-get")?;
            ensure!(status.success(), "apt-get download failed");
        } else {
            self.output(command.arg("-q"))?;
        }
        Ok(())
    }

    fn output(&self, command: &mut Command) -> Result<String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let output = command.output().with_context(|| format!("cannot run {program}"))?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("{} failed ({}):\n{stdout}{stderr}", shortened(&format!("{command:?}")), output.status);
        }
        Ok(stdout.into_owned())
    }
}

/// Unpacks every package in `debs` into `root`, installing nothing.
///
/// # Errors
/// dpkg-deb is missing or fails.
pub(crate) fn unpack(debs: &Path, root: &Path) -> Result<()> {
    for entry in fs::read_dir(debs).with_context(|| format!("cannot read {}", debs.display()))? {
        let deb = entry?.path();
        let status =
            Command::new("dpkg-deb").arg("-x").args([&deb, root]).status().context("cannot run dpkg-deb")?;
        ensure!(status.success(), "dpkg-deb -x {} failed", deb.display());
    }
    Ok(())
}

/// Shortens a command line, because one that names a hundred packages hides the error after it.
fn shortened(command: &str) -> String {
    const SHOWN: usize = 300;
    match command.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{} ...", &command[..at]),
        None => command.to_owned(),
    }
}

/// Returns the private configuration. apt reads it after the machine's own (proxies stay in force),
/// so it clears or sets every hook and directory that must not apply.
fn private_configuration(dir: &Path, arch: Arch) -> String {
    let (dir, arch) = (dir.display(), arch.debian());
    format!(
        r#"Dir::Etc::sourcelist "{dir}/sources.list";
Dir::Etc::sourceparts "{dir}/empty";
Dir::Etc::preferences "{dir}/empty/none";
Dir::Etc::preferencesparts "{dir}/empty";
Dir::State "{dir}/state";
Dir::State::lists "{dir}/state/lists";
Dir::State::status "{dir}/status";
Dir::Cache "{dir}/cache";
Dir::Cache::archives "{dir}/cache/archives";
Dir::Log "{dir}/state";
APT::Architecture "{arch}";
#clear APT::Architectures;
APT::Architectures {{ "{arch}"; }};
APT::Sandbox::User "root";
APT::Default-Release "";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Retries "3";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Update::Pre-Invoke;
#clear DPkg::Post-Invoke;
"#
    )
}

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Base URIs of Debian's two archives.
#[derive(PartialEq, Eq, Debug)]
struct Mirrors {
    main: String,
    security: String,
}

impl Mirrors {
    fn of_this_machine() -> Result<Self> {
        let output = Command::new("apt-get")
            .args(["indextargets", "--format", "$(CREATED_BY)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)"])
            .stdin(Stdio::null())
            .output();
        let targets = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
        // Without downloaded package lists apt may know no targets yet, so its sources are read.
        Mirrors::among(target_uris(&targets))
            .or_else(|| Mirrors::among(source_words(&sources_of_this_machine())))
            .context("apt's sources name no mirror of Debian: add one (an http address that ends in /debian)")
    }

    /// Finds mirrors by the archive's name at the end of their path, so that no third-party
    /// repository is asked for a kernel. If only one of the two archives is named, the other is
    /// expected beside it.
    fn among<'a>(uris: impl Iterator<Item = &'a str>) -> Option<Self> {
        let (mut main, mut security) = (None, None);
        for uri in uris {
            let path = uri.trim_end_matches('/');
            if let Some(base) = path.strip_suffix("/debian") {
                main.get_or_insert(base);
            } else if let Some(base) = path.strip_suffix("/debian-security") {
                security.get_or_insert(base);
            }
        }
        Some(Mirrors {
            main: format!("{}/debian/", main.or(security)?),
            security: format!("{}/debian-security/", security.or(main)?),
        })
    }

    fn uri(&self, archive: Archive) -> &str {
        match archive {
            Archive::Main => &self.main,
            Archive::Security => &self.security,
        }
    }
}

/// Returns the addresses in lines of `Packages|URI|suite|component`.
fn target_uris(targets: &str) -> impl Iterator<Item = &str> {
    targets.lines().filter_map(|line| {
        let mut fields = line.split('|');
        match (fields.next(), fields.next(), fields.next(), fields.next()) {
            (Some("Packages"), Some(uri), Some(_suite), Some("main")) => Some(uri),
            _ => None,
        }
    })
}

/// Returns the addresses in the text of apt's sources, in either of their formats.
fn source_words(sources: &str) -> impl Iterator<Item = &str> {
    sources
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .flat_map(str::split_whitespace)
        .filter(|word| word.starts_with("http://") || word.starts_with("https://"))
}

/// Returns the text of the machine's own sources.
fn sources_of_this_machine() -> String {
    let parts =
        fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|entry| entry.path());
    [PathBuf::from("/etc/apt/sources.list")]
        .into_iter()
        .chain(parts)
        .map(|path| fs::read_to_string(path).unwrap_or_default() + "\n")
        .collect()
}

/// Parses `name | version | where` lines of `apt-cache madison`.
fn parse_madison(text: &str) -> Vec<PackageVersion> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split('|').map(str::trim);
            let (name, version, source) = (fields.next()?, fields.next()?, fields.next()?);
            source
                .ends_with("Packages")
                .then(|| PackageVersion { name: name.into(), version: version.into() })
        })
        .collect()
}

/// Parses `Inst NAME [OLD] (VERSION SUITE [ARCHITECTURE])` lines of `apt-get --simulate install`.
fn parse_installs(text: &str) -> Vec<PackageVersion> {
    text.lines()
        .filter_map(|line| {
            let (name, rest) = line.strip_prefix("Inst ")?.split_once(' ')?;
            let version = rest.split_once('(')?.1.split([' ', ')']).next()?;
            Some(PackageVersion { name: name.into(), version: version.into() })
        })
        .collect()
}

/// Returns the names in the `Depends:` field of the first stanza, the first of each set of
/// alternatives.
fn parse_depends(stanza: &str) -> Vec<String> {
    let first = stanza.split("\n\n").next().unwrap_or_default();
    let Some(list) = first.lines().find_map(|line| line.strip_prefix("Depends:")) else { return Vec::new() };
    list.split(',')
        .filter_map(|clause| clause.split('|').next()?.split_whitespace().next())
        .map(|name| name.split(':').next().unwrap_or(name).to_owned())
        .collect()
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn madison_lines_become_versions_and_source_packages_are_left_out() {
        let text = "linux-image-amd64 |   7.2.13-1 | http://m/debian sid/main amd64 Packages\n\
                    linux-image-amd64 | 5.10.262-1 | http://m/debian-security b/main amd64 Packages\n\
                    linux-signed-amd64 | 7.2.13+1 | http://m/debian sid/main Sources\n\nrubbish\n";
        let versions: Vec<_> = parse_madison(text).into_iter().map(|p| p.version).collect();
        assert_eq!(versions, ["7.2.13-1", "5.10.262-1"]);
    }

    #[test]
    fn what_apt_would_install_is_read_with_its_versions() {
        let text = "NOTE: This is only a simulation!\n\
                    The following NEW packages will be installed:\n  libc6 qemu-system-x86\n\
                    Inst libc6 (2.41-12+deb13u4 Debian:13.7/stable [amd64]) []\n\
                    Inst tzdata [2024a] (2025b-4 Debian:13.7/stable [all])\n\
                    Inst qemu-system-x86 (1:11.1.3+ds-1~bpo13+1 Debian Backports:13/stable-backports [amd64])\n\
                    Conf libc6 (2.41-12+deb13u4 Debian:13.7/stable [amd64])\nInst broken\n";
        let specs: Vec<_> = parse_installs(text).iter().map(PackageVersion::spec).collect();
        assert_eq!(
            specs,
            ["libc6=2.41-12+deb13u4", "tzdata=2025b-4", "qemu-system-x86=1:11.1.3+ds-1~bpo13+1"]
        );
    }

    #[test]
    fn a_long_command_line_is_cut_where_a_character_ends() {
        assert_eq!(shortened("apt-get update"), "apt-get update");
        assert_eq!(shortened(&"\u{fc}".repeat(400)), format!("{} ...", "\u{fc}".repeat(300)));
    }

    #[test]
    fn depends_gives_first_alternatives_of_the_first_stanza() {
        let text = "Package: linux-image-7\nVersion: 7\nPre-Depends: x\n\
                    Depends: dracut | initramfs-tools (>= 0.120), linux-binary-7 (= 7.2), python3:any\n\n\
                    Package: other\nDepends: not-this\n";
        assert_eq!(parse_depends(text), ["dracut", "linux-binary-7", "python3"]);
        assert!(parse_depends("Package: x\n").is_empty());
    }

    #[test]
    fn the_machines_own_mirror_is_used_and_third_parties_are_not() {
        let targets = "Packages|https://packages.example.com/apt/|cloud|main\n\
                       Contents|http://wrong/debian|bookworm|main\n\
                       Packages|http://mirror.example/pub/debian|bookworm|main\n\
                       Packages|http://second.example/debian/|bookworm-updates|main\n\
                       Packages|http://mirror.example/debian-security/|bookworm-security|main\n";
        let mirrors = Mirrors::among(target_uris(targets)).unwrap();
        assert_eq!(mirrors.main, "http://mirror.example/pub/debian/");
        assert_eq!(mirrors.security, "http://mirror.example/debian-security/");
        assert_eq!(Mirrors::among(target_uris("")), None);
    }

    #[test]
    fn without_package_lists_the_sources_are_read_and_one_archive_is_beside_the_other() {
        let sources = "# deb http://old.example/debian bullseye main\n\
                       Types: deb\nURIs: https://mirror.example/debian\nSuites: bookworm\n\
                       deb https://third.example/apt stable main\n";
        let mirrors = Mirrors::among(source_words(sources)).unwrap();
        assert_eq!(mirrors.main, "https://mirror.example/debian/");
        assert_eq!(mirrors.security, "https://mirror.example/debian-security/");
    }
}
