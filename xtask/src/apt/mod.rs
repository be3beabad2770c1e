//! Debian's package tools: host packages that the other commands need, and in [`packages`] those of
//! other Debian suites, which touch neither /etc/apt nor the machine's package state.
//!
//! Invariant: nothing here writes below /etc/apt or /var/lib/apt, except `apt-get` when it installs
//! a missing host package as root.

mod packages;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

pub(crate) use self::packages::{Packages, RDMA_CORE, version};
use crate::{cache, process};

/// A program or file that must exist on the host, and its Debian package.
pub(crate) type HostTool = (&'static str, &'static str);

/// Tools that check texts.
pub(crate) const TEXT_TOOLS: &[HostTool] = &[("git", "git"), ("gitlint", "gitlint")];

/// Tools that boot a guest.
pub(crate) const VM_TOOLS: &[HostTool] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("ip", "iproute2"),
    ("rdma", "iproute2"),
];

/// Further tools of the guest suites: to configure devices and to measure with.
pub(crate) const INTEROP_TOOLS: &[HostTool] = &[
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    ("rdma-ndd", "rdma-core"),
    ("ethtool", "ethtool"),
    ("strace", "strace"),
    ("valgrind", "valgrind"),
];

/// rdma-core's own programs, and others for C's libibverbs: peers of ours, and programs that run on
/// our library.
pub(crate) const C_PROGRAMS: &[HostTool] = &[
    ("ibv_devinfo", "ibverbs-utils"),
    ("rping", "rdmacm-utils"),
    ("ib_write_bw", "perftest"),
    ("fi_pingpong", "libfabric-bin"),
    ("ucx_perftest", "ucx-utils"),
    ("/usr/lib/python3/dist-packages/pyverbs", "python3-pyverbs"),
];

/// Tools that build the C programs of `libibverbs.so.1`'s tests, run them under valgrind, and check
/// its package.
pub(crate) const C_BUILD: &[HostTool] = &[
    ("cc", "gcc"),
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    ("/usr/include/rdma/rdma_cma.h", "librdmacm-dev"),
    ("valgrind", "valgrind"),
    ("lintian", "lintian"),
];

/// Tools that link `libibverbs.so.1` and look at its symbols, or compile and run the probe of layouts.
pub(crate) const C_ABI_TOOLS: &[HostTool] =
    &[("cc", "gcc"), ("/usr/include/stdio.h", "libc6-dev"), ("nm", "binutils"), ("readelf", "binutils")];

/// Tools that write a Debian package.
pub(crate) const DEB_TOOLS: &[HostTool] = &[("dpkg", "dpkg"), ("dpkg-deb", "dpkg"), ("gzip", "gzip")];

/// Tools that link programs for aarch64, disassemble and run them.
pub(crate) const AARCH64_TOOLS: &[HostTool] = &[
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("aarch64-linux-gnu-objdump", "binutils-aarch64-linux-gnu"),
    ("/usr/aarch64-linux-gnu/lib/crt1.o", "libc6-dev-arm64-cross"),
    ("qemu-aarch64-static", "qemu-user-static"),
];

/// Tools that link static programs with musl, where rustup has no standard library for it. The
/// unwinder's package is that of Debian 12; that of any LLVM serves.
pub(crate) const MUSL_TOOLS: &[HostTool] = &[("musl-gcc", "musl-tools"), ("libunwind.a", "libunwind-14-dev")];

/// Returns the place of LLVM's unwinder.
pub(crate) fn libunwind() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let libraries = versions
        .filter(|version| version.file_name().as_encoded_bytes().starts_with(b"llvm-"))
        .map(|version| version.path().join("lib/libunwind.a"));
    libraries.filter(|library| library.exists()).max()
}

/// Tools that build the fuzz targets: libFuzzer is C++.
pub(crate) const FUZZ_TOOLS: &[HostTool] = &[("c++", "g++")];

/// Makes sure that every tool exists, installing packages through apt-get when run as root.
///
/// # Errors
/// A package is missing and cannot be installed; the error names it.
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
    let names = packages.join(" ");
    let install = format!("apt-get install --no-install-recommends {names}");
    ensure!(nix::unistd::geteuid().is_root(), "missing packages: {names}; install them with: sudo {install}");
    ensure!(
        find_program("apt-get").is_some(),
        "missing packages: {names} (Debian's names), and this machine has no apt-get to install them"
    );
    say(&format!("installing {names}"));
    let apt_get = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        // Our own stdout belongs to the user's command.
        command.args(["-q", "-y", "-o", "DPkg::Lock::Timeout=300"]).args(arguments).stdout(std::io::stderr());
        process::run(command.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    let install = [&["install", "--no-install-recommends"], &packages[..]].concat();
    // A fresh container has no package lists, and old lists name files that no longer exist.
    apt_get(&install).or_else(|_| apt_get(&["update"]).and_then(|()| apt_get(&install)))?;
    let still = missing(tools);
    ensure!(still.is_empty(), "installed, but not found on this machine: {}", still.join(" "));
    Ok(())
}

/// Returns the packages of tools that do not exist.
fn missing(tools: &[&[HostTool]]) -> Vec<&'static str> {
    let is_there = |program: &str| match program {
        "busybox" => static_busybox().is_some(),
        "libunwind.a" => libunwind().is_some(),
        _ => find_program(program).is_some(),
    };
    let absent = tools.concat().into_iter().filter(|(program, _)| !is_there(program));
    absent.map(|(_, package)| package).collect::<BTreeSet<_>>().into_iter().collect()
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

/// Returns the host's busybox if it is static, as the initramfs requires.
pub(crate) fn static_busybox() -> Option<PathBuf> {
    let path = find_program("busybox")?;
    // It fails for a program without an interpreter.
    let ldd = Command::new("ldd").arg(&path).stdin(Stdio::null()).output().ok()?;
    (!ldd.status.success()).then_some(path)
}
