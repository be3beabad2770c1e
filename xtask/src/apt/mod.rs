//! Debian's package tools: host packages that the other commands need, and in [`packages`] those of
//! other Debian suites, which touch neither /etc/apt nor the machine's package state.
//!
//! Invariant: nothing here writes below /etc/apt or /var/lib/apt, except `apt-get` when it installs
//! a missing host package as root.

mod packages;

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

pub(crate) use self::packages::{Packages, RDMA_CORE, version};
use crate::cache;

/// A program that must exist on the host, and its Debian package.
pub(crate) struct HostTool {
    program: &'static str,
    package: &'static str,
}

const fn tool(program: &'static str, package: &'static str) -> HostTool {
    HostTool { program, package }
}

/// Tools that check texts.
pub(crate) const TEXT_TOOLS: &[HostTool] = &[tool("git", "git"), tool("gitlint", "gitlint")];

/// Tools that boot a guest.
pub(crate) const VM_TOOLS: &[HostTool] = &[
    tool("qemu-system-x86_64", "qemu-system-x86"),
    tool("busybox", "busybox-static"),
    tool("depmod", "kmod"),
    tool("xz", "xz-utils"),
    tool("zstd", "zstd"),
    tool("ip", "iproute2"),
    tool("rdma", "iproute2"),
];

/// Tools that compile and run the layout probe, besides apt-get itself.
pub(crate) const ABI_TOOLS: &[HostTool] =
    &[tool("gcc", "gcc"), tool("/usr/include/stdio.h", "libc6-dev"), tool("readelf", "binutils")];

/// Further tools of the guest suites: rdma-core's own programs as peers, strace and valgrind to
/// measure with.
pub(crate) const INTEROP_TOOLS: &[HostTool] = &[
    tool("ibv_devinfo", "ibverbs-utils"),
    tool("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    tool("rdma-ndd", "rdma-core"),
    tool("strace", "strace"),
    tool("valgrind", "valgrind"),
];

/// Programs for C's libibverbs that the guest suites run on ours, besides ibverbs-utils.
pub(crate) const C_PROGRAMS: &[HostTool] = &[
    tool("rping", "rdmacm-utils"),
    tool("ib_write_bw", "perftest"),
    tool("fi_pingpong", "libfabric-bin"),
    tool("ucx_perftest", "ucx-utils"),
    tool("/usr/lib/python3/dist-packages/pyverbs", "python3-pyverbs"),
];

/// Tools that build the C programs of `libibverbs.so.1`'s tests, run them under valgrind, and check
/// its package.
pub(crate) const C_BUILD: &[HostTool] = &[
    tool("cc", "gcc"),
    tool("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    tool("/usr/include/rdma/rdma_cma.h", "librdmacm-dev"),
    tool("valgrind", "valgrind"),
    tool("lintian", "lintian"),
];

/// Tools of the suites on the ConnectX model: rdma-core's, perftest's and UCX's own programs, and
/// pyverbs.
pub(crate) const MLX5_TOOLS: &[HostTool] = &[
    tool("ibv_devinfo", "ibverbs-utils"),
    tool("/etc/libibverbs.d/mlx5.driver", "ibverbs-providers"),
    tool("rdma-ndd", "rdma-core"),
    tool("rping", "rdmacm-utils"),
    tool("ib_write_bw", "perftest"),
    tool("ucx_perftest", "ucx-utils"),
    tool("/usr/lib/python3/dist-packages/pyverbs", "python3-pyverbs"),
    tool("ip", "iproute2"),
    tool("ethtool", "ethtool"),
    tool("cc", "gcc"),
    tool("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
];

/// Tools that build rdma-core's side of the benchmark.
pub(crate) const BENCH_TOOLS: &[HostTool] =
    &[tool("cc", "gcc"), tool("/usr/include/infiniband/verbs.h", "libibverbs-dev")];

/// Tools that link `libibverbs.so.1` and look at its symbols.
pub(crate) const C_ABI_TOOLS: &[HostTool] = &[
    tool("cc", "gcc"),
    tool("/usr/include/stdio.h", "libc6-dev"),
    tool("nm", "binutils"),
    tool("readelf", "binutils"),
];

/// Tools that write a Debian package.
pub(crate) const DEB_TOOLS: &[HostTool] =
    &[tool("dpkg", "dpkg"), tool("dpkg-deb", "dpkg"), tool("gzip", "gzip")];

/// Tools that link programs for aarch64, disassemble and run them.
pub(crate) const AARCH64_TOOLS: &[HostTool] = &[
    tool("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    tool("aarch64-linux-gnu-objdump", "binutils-aarch64-linux-gnu"),
    tool("/usr/aarch64-linux-gnu/lib/crt1.o", "libc6-dev-arm64-cross"),
    tool("qemu-aarch64-static", "qemu-user-static"),
];

/// Tools that link static programs with musl, where rustup has no standard library for it. The
/// unwinder's package is that of Debian 12; that of any LLVM serves.
pub(crate) const MUSL_TOOLS: &[HostTool] =
    &[tool("musl-gcc", "musl-tools"), tool("libunwind.a", "libunwind-14-dev")];

/// Returns the place of LLVM's unwinder.
pub(crate) fn libunwind() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let libraries = versions
        .filter(|version| version.file_name().as_encoded_bytes().starts_with(b"llvm-"))
        .map(|version| version.path().join("lib/libunwind.a"));
    libraries.filter(|library| library.exists()).max()
}

/// Tools that build the fuzz targets: libFuzzer is C++.
pub(crate) const FUZZ_TOOLS: &[HostTool] = &[tool("c++", "g++")];

/// Makes sure that every tool exists, installing packages through apt-get when run as root.
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
        "missing packages: {} (Debian's names), and this machine has no apt-get to install them",
        packages.join(" ")
    );
    say(&format!("installing {}", packages.join(" ")));
    // A fresh container has no package lists, and old lists name files that no longer exist.
    let known = apt_get_install(&packages, &["--simulate"])?;
    if !known || !apt_get_install(&packages, &[])? {
        let update = apt_get().args(["-q", "update"]).stdout(to_stderr()?).status()?;
        ensure!(update.success(), "apt-get update failed; still missing: {}", packages.join(" "));
        ensure!(apt_get_install(&packages, &[])?, "`{install}` failed");
    }
    let still = missing(tools);
    ensure!(still.is_empty(), "installed, but not found on this machine: {}", still.join(" "));
    Ok(())
}

/// Returns the packages of tools that do not exist.
pub(crate) fn missing(tools: &[&[HostTool]]) -> Vec<&'static str> {
    let mut packages = Vec::new();
    for tool in tools.iter().copied().flatten() {
        let present = match tool.program {
            "busybox" => static_busybox().is_some(),
            "libunwind.a" => libunwind().is_some(),
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

/// Sends a child's stdout to our stderr, because our own stdout belongs to the user's command.
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

/// Returns the host's busybox if it is static, as the initramfs requires.
pub(crate) fn static_busybox() -> Option<PathBuf> {
    let path = find_program("busybox")?;
    // It fails for a program without an interpreter.
    let ldd = Command::new("ldd").arg(&path).stdin(Stdio::null()).output().ok()?;
    (!ldd.status.success()).then_some(path)
}
