//! Debian's package tools: host packages that the other commands need, and a private apt configuration that resolves
//! and downloads packages of other Debian suites without touching /etc/apt or the machine's package state.
//!
//! Invariant: nothing here writes below /etc/apt or /var/lib/apt, except `apt-get` itself when it installs a missing
//! host package as root.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::fs;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::cache;

/// A program that must exist on the host, and the Debian package that brings it.
pub(crate) struct HostTool {
    program: &'static str,
    package: &'static str,
}

const fn tool(program: &'static str, package: &'static str) -> HostTool {
    HostTool { program, package }
}

/// What booting a guest takes.
pub(crate) const VM_TOOLS: &[HostTool] = &[
    tool("qemu-system-x86_64", "qemu-system-x86"),
    tool("busybox", "busybox-static"),
    tool("depmod", "kmod"),
    tool("xz", "xz-utils"),
    tool("zstd", "zstd"),
    tool("ip", "iproute2"),
    tool("rdma", "iproute2"),
];

/// What compiling and running the layout probe takes, besides apt-get itself.
pub(crate) const ABI_TOOLS: &[HostTool] =
    &[tool("gcc", "gcc"), tool("/usr/include/stdio.h", "libc6-dev"), tool("dpkg-deb", "dpkg")];

/// What the guest suites use besides: rdma-core's own programs to talk to, strace and valgrind to measure with.
pub(crate) const INTEROP_TOOLS: &[HostTool] = &[
    tool("ibv_devinfo", "ibverbs-utils"),
    tool("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    tool("rdma-ndd", "rdma-core"),
    tool("strace", "strace"),
    tool("valgrind", "valgrind"),
];

/// What building rdma-core's side of the benchmark takes.
pub(crate) const BENCH_TOOLS: &[HostTool] =
    &[tool("cc", "gcc"), tool("/usr/include/infiniband/verbs.h", "libibverbs-dev")];

/// What building the fuzz targets takes: libFuzzer is C++.
pub(crate) const FUZZ_TOOLS: &[HostTool] = &[tool("c++", "g++")];

/// Makes sure that every tool exists, installing packages through apt-get when run as root.
///
/// # Errors
/// A package is missing and cannot be installed; the message names all of them and the command that installs them.
pub(crate) fn ensure_tools(tools: &[&[HostTool]], say: impl Fn(&str)) -> Result<()> {
    if missing(tools).is_empty() {
        return Ok(());
    }
    // Two invocations on a fresh machine must not install the same packages at once.
    let _lock = cache::lock("host-packages", || say("waiting for another xtask to install host packages"))?;
    let packages = missing(tools);
    if packages.is_empty() {
        return Ok(());
    }
    let install = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    if !nix::unistd::geteuid().is_root() {
        bail!("missing packages: {}; install them with: sudo {install}", packages.join(" "));
    }
    ensure!(
        find_program("apt-get").is_some(),
        "missing packages: {} (Debian's names), and no apt-get here to install them with",
        packages.join(" ")
    );
    say(&format!("installing {}", packages.join(" ")));
    // A fresh container has no package lists, and old lists name files that are gone.
    let known = apt_get_install(&packages, &["--simulate"])?;
    if !known || !apt_get_install(&packages, &[])? {
        let update = apt_get().args(["-q", "update"]).stdout(to_stderr()?).status()?;
        ensure!(update.success(), "apt-get update failed; still missing: {}", packages.join(" "));
        ensure!(apt_get_install(&packages, &[])?, "`{install}` failed");
    }
    let still = missing(tools);
    ensure!(still.is_empty(), "installed, yet not found on this machine: {}", still.join(" "));
    Ok(())
}

fn missing(tools: &[&[HostTool]]) -> Vec<&'static str> {
    let mut packages = Vec::new();
    for tool in tools.iter().copied().flatten() {
        let present = match tool.program {
            "busybox" => static_busybox().is_some(),
            program => find_program(program).is_some(),
        };
        if !present && !packages.contains(&tool.package) {
            packages.push(tool.package);
        }
    }
    packages
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    command
}

fn apt_get_install(packages: &[&str], options: &[&str]) -> Result<bool> {
    let mut command = apt_get();
    command
        .args(["-q", "-y", "-o", "DPkg::Lock::Timeout=300", "install", "--no-install-recommends"])
        .args(options)
        .args(packages)
        .stdout(to_stderr()?);
    if options.contains(&"--simulate") {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    Ok(command.status().context("cannot run apt-get")?.success())
}

/// A child's stdout sent to our stderr: our own stdout belongs to the user's command.
fn to_stderr() -> Result<Stdio> {
    Ok(std::io::stderr().as_fd().try_clone_to_owned()?.into())
}

/// Finds a program in PATH and in the system directories that a user's PATH may lack.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    if name.starts_with('/') {
        return Some(PathBuf::from(name)).filter(|p| p.exists());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|p| p.is_file())
}

/// The host's busybox if it runs without any library, as it must inside an initramfs.
pub(crate) fn static_busybox() -> Option<PathBuf> {
    let path = find_program("busybox")?;
    is_static_elf(&fs::read(&path).ok()?).then_some(path)
}

/// Whether a 64-bit little-endian ELF image asks for no program interpreter.
fn is_static_elf(image: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let u16_at = |at: usize| image.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    let Some(phoff) = image.get(32..40).map(|b| u64::from_le_bytes(b.try_into().unwrap_or_default())) else {
        return false;
    };
    let (Some(size), Some(count)) = (u16_at(54), u16_at(56)) else { return false };
    if !image.starts_with(b"\x7fELF\x02\x01") {
        return false;
    }
    (0..u64::from(count)).all(|i| {
        let at = usize::try_from(phoff + i * u64::from(size)).unwrap_or(usize::MAX - 4);
        image.get(at..at + 4).is_some_and(|b| b != PT_INTERP.to_le_bytes())
    })
}

/// Which of Debian's archives a suite lives in.
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

/// An apt configuration of our own: its sources, lists and caches live in one directory.
pub(crate) struct PrivateApt {
    dir: PathBuf,
}

impl PrivateApt {
    /// Writes the configuration for `suites` into `dir`. The mirrors are those that the machine's own apt uses.
    ///
    /// # Errors
    /// The directory cannot be written, or apt's sources name no mirror of Debian.
    pub(crate) fn new(dir: PathBuf, suites: &[(Archive, &str)]) -> Result<Self> {
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
        fs::write(dir.join("apt.conf"), private_configuration(&dir))?;
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

    /// All package names that start with `prefix`.
    ///
    /// # Errors
    /// apt-cache fails.
    pub(crate) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let text = self.output(self.command("apt-cache").args(["pkgnames", prefix]))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Every version of a package that the lists carry.
    ///
    /// # Errors
    /// apt-cache fails.
    pub(crate) fn versions(&self, name: &str) -> Result<Vec<PackageVersion>> {
        let text = self.output(self.command("apt-cache").args(["madison", name]))?;
        Ok(parse_madison(&text))
    }

    /// The names of what one package version depends on.
    ///
    /// # Errors
    /// apt-cache fails.
    pub(crate) fn depends(&self, package: &PackageVersion) -> Result<Vec<String>> {
        let text = self.output(self.command("apt-cache").args(["show", &package.spec()]))?;
        Ok(parse_depends(&text))
    }

    /// Downloads packages into `into`. On a terminal apt's own progress bar shows.
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
        let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("{command:?} failed ({}):\n{stdout}{stderr}", output.status);
        }
        Ok(stdout.into_owned())
    }
}

/// Read after the machine's own configuration (proxies and the like stay in force), so every hook and directory that
/// must not apply here is cleared or set.
fn private_configuration(dir: &Path) -> String {
    let dir = dir.display();
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
APT::Architecture "amd64";
#clear APT::Architectures;
APT::Architectures {{ "amd64"; }};
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
        // Where package lists were never downloaded, apt may know of no targets yet: look at its sources.
        Mirrors::among(target_uris(&targets))
            .or_else(|| Mirrors::among(source_words(&sources_of_this_machine())))
            .context("apt's sources name no mirror of Debian: add one (an http address that ends in /debian)")
    }

    /// A mirror is recognised by the archive's name at the end of its path, so that a third party's repository is never
    /// asked for a kernel. Where only one of the two archives is named, the other is taken to be beside it.
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

/// Addresses in lines of `Packages|URI|suite|component`.
fn target_uris(targets: &str) -> impl Iterator<Item = &str> {
    targets.lines().filter_map(|line| {
        let mut fields = line.split('|');
        match (fields.next(), fields.next(), fields.next(), fields.next()) {
            (Some("Packages"), Some(uri), Some(_suite), Some("main")) => Some(uri),
            _ => None,
        }
    })
}

/// Addresses in the text of apt's sources, in either of their formats.
fn source_words(sources: &str) -> impl Iterator<Item = &str> {
    sources
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .flat_map(str::split_whitespace)
        .filter(|word| word.starts_with("http://") || word.starts_with("https://"))
}

/// The text of the machine's own sources.
fn sources_of_this_machine() -> String {
    let parts =
        fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|entry| entry.path());
    [PathBuf::from("/etc/apt/sources.list")]
        .into_iter()
        .chain(parts)
        .map(|path| fs::read_to_string(path).unwrap_or_default() + "\n")
        .collect()
}

/// `name | version | where` lines of `apt-cache madison`.
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

/// Names in the `Depends:` field of the first stanza, the first of each set of alternatives.
fn parse_depends(stanza: &str) -> Vec<String> {
    let first = stanza.split("\n\n").next().unwrap_or_default();
    let Some(list) = first.lines().find_map(|line| line.strip_prefix("Depends:")) else { return Vec::new() };
    list.split(',')
        .filter_map(|clause| clause.split('|').next()?.split_whitespace().next())
        .map(|name| name.split(':').next().unwrap_or(name).to_owned())
        .collect()
}

/// Orders two Debian versions.
///
/// # References
/// Debian Policy, section 5.6.12.
pub(crate) fn compare_versions(a: &str, b: &str) -> Ordering {
    fn split(v: &str) -> (u64, &str, &str) {
        let (epoch, rest) = v.split_once(':').unwrap_or(("0", v));
        let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, ""));
        (epoch.parse().unwrap_or(0), upstream, revision)
    }
    let ((ea, ua, ra), (eb, ub, rb)) = (split(a), split(b));
    ea.cmp(&eb).then_with(|| compare_part(ua, ub)).then_with(|| compare_part(ra, rb))
}

fn compare_part(mut a: &str, mut b: &str) -> Ordering {
    // '~' sorts before the end, letters before everything else.
    let weight = |c: Option<u8>| match c {
        Some(b'~') => -1,
        None => 0,
        Some(c) if c.is_ascii_digit() => 0,
        Some(c) if c.is_ascii_alphabetic() => i32::from(c),
        Some(c) => i32::from(c) + 256,
    };
    let digits = |s: &str| s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
    while !a.is_empty() || !b.is_empty() {
        loop {
            let (ca, cb) = (a.bytes().next(), b.bytes().next());
            let order = weight(ca).cmp(&weight(cb));
            if order != Ordering::Equal {
                return order;
            }
            if ca.is_none_or(|c| c.is_ascii_digit()) || cb.is_none_or(|c| c.is_ascii_digit()) {
                break;
            }
            // Equal weights of non-digits are equal bytes, and Debian versions are ASCII.
            (a, b) = (a.get(1..).unwrap_or_default(), b.get(1..).unwrap_or_default());
        }
        let (na, nb) = (&a[..digits(a)], &b[..digits(b)]);
        let (va, vb) = (na.trim_start_matches('0'), nb.trim_start_matches('0'));
        let order = va.len().cmp(&vb.len()).then_with(|| va.cmp(vb));
        if order != Ordering::Equal {
            return order;
        }
        (a, b) = (&a[na.len()..], &b[nb.len()..]);
    }
    Ordering::Equal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_as_debian_policy_says() {
        let ascending = [
            "1.0~rc1-1",
            "1.0-1",
            "1.0-1+b1",
            "1.0-2",
            "1.0a-1",
            "1.0.1-1",
            "1.9-1",
            "1.10-1",
            "5.10.223-1",
            "5.10.262-1",
            "6.1.99-1",
            "6.1.187-1",
            "6.12.9-1",
            "7.2.9-1",
            "7.2.13-1~bpo13+1",
            "7.2.13-1",
            "1:1.0-1",
        ];
        for pair in ascending.windows(2) {
            assert_eq!(compare_versions(pair[0], pair[1]), Ordering::Less, "{pair:?}");
            assert_eq!(compare_versions(pair[1], pair[0]), Ordering::Greater, "{pair:?}");
        }
        assert_eq!(compare_versions("1.01-1", "1.1-1"), Ordering::Equal);
    }

    #[test]
    fn madison_lines_become_versions_and_source_packages_are_left_out() {
        let text = "linux-image-amd64 |   7.2.13-1 | http://m/debian sid/main amd64 Packages\n\
                    linux-image-amd64 | 5.10.262-1 | http://m/debian-security b/main amd64 Packages\n\
                    linux-signed-amd64 | 7.2.13+1 | http://m/debian sid/main Sources\n\nrubbish\n";
        let versions: Vec<_> = parse_madison(text).into_iter().map(|p| p.version).collect();
        assert_eq!(versions, ["7.2.13-1", "5.10.262-1"]);
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

    #[test]
    fn a_program_interpreter_makes_an_elf_dynamic() {
        let mut elf = vec![0u8; 64 + 2 * 56];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[32] = 64; // e_phoff
        elf[54] = 56; // e_phentsize
        elf[56] = 2; // e_phnum
        elf[64] = 1; // PT_LOAD
        elf[64 + 56] = 6; // PT_PHDR
        assert!(is_static_elf(&elf));
        elf[64 + 56] = 3; // PT_INTERP
        assert!(!is_static_elf(&elf));
        assert!(!is_static_elf(&elf[..70]));
        assert!(!is_static_elf(b"#!/bin/sh\n"));
    }
}
