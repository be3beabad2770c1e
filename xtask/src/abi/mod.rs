//! `cargo xtask abi`: the golden files of uverbs-abi, written from the newest kernel headers that
//! Debian carries, and those of c-abi, written from libibverbs' and librdmacm's headers of several
//! releases.
//!
//! ```text
//! linux-libc-dev ──► gcc ──► header: definitions ──► a C program ──► uverbs-abi/golden/*.txt
//! libibverbs-dev ──►  "           "                       "          c-abi/golden/verbs-*.txt
//! ```
//!
//! The files hold the C compiler's values for every constant, struct and union of the [`HEADERS`],
//! of `infiniband/verbs.h` and `rdma/rdma_cma.h`; the tests `golden` of the two crates compare
//! their types with them and need neither headers nor compiler. Two runs on the same headers write
//! the same bytes.

mod header;
mod verbs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};

use crate::apt::{self, Packages};
use crate::arch::Arch;
use crate::{cache, cargo};
use header::{Definition, Unit};

/// Command line of `cargo xtask abi`.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// The headers that uverbs-abi covers.
const HEADERS: &[&str] = &[
    "rdma/ib_user_verbs.h",
    "rdma/rdma_user_ioctl.h",
    "rdma/rdma_user_ioctl_cmds.h",
    "rdma/ib_user_ioctl_cmds.h",
    "rdma/ib_user_ioctl_verbs.h",
    "rdma/rdma_netlink.h",
    "rdma/rdma_user_cm.h",
    "rdma/ib_user_mad.h",
    "rdma/ib_user_sa.h",
    "rdma/rdma_user_rxe.h",
    "rdma/mlx5-abi.h",
    "rdma/mlx5_user_ioctl_cmds.h",
    "rdma/mlx5_user_ioctl_verbs.h",
];

/// Types of other headers that structs of [`HEADERS`] contain.
const SOCKET: &[&str] = &["sockaddr_in", "sockaddr_in6", "__kernel_sockaddr_storage"];
const SOCKET_HEADERS: &[&str] = &["linux/in.h", "linux/in6.h", "linux/socket.h"];

/// Definitions that have neither a value nor a layout, and their counterparts in uverbs-abi. A
/// macro with parameters or a typedef that is not listed here is an error; the compiler reports any
/// other macro without a value.
const LEFT_OUT: &[(&str, &str)] = &[
    ("RDMA_NL_GET_CLIENT", "macro with a parameter; in Rust the function rdma_nl_get_client"),
    ("RDMA_NL_GET_OP", "macro with a parameter; in Rust the function rdma_nl_get_op"),
    ("RDMA_NL_GET_TYPE", "macro with parameters; in Rust the function rdma_nl_get_type"),
    (
        "RDMA_UAPI_PTR",
        "macro that declares a member of type __aligned_u64; the members it declares are covered",
    ),
    ("mlx5_ib_clock_info", "another name of struct ib_uverbs_clock_info; in Rust a type alias"),
    ("packed_ulong", "typedef of one member's type; the member is covered"),
];

/// Runs the subcommand.
///
/// # Errors
/// Debian's packages are not available, the compiler rejects a program, or a header has a
/// definition that the lists do not know.
pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    ensure!(
        cfg!(target_pointer_width = "64"),
        "the golden files describe 64-bit machines, and this machine is not one"
    );
    apt::ensure_tools(&[apt::Tools::CAbi], say)?;
    // The folder stays on failure, because an error of gcc names the program.
    let scratch = cache::dir()?.join(format!("abi-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    write_kernel(&scratch)?;
    if cfg!(target_arch = "x86_64") {
        verbs::write(&scratch)?;
    } else {
        say("leaving out c-abi, whose golden files describe x86-64");
    }
    fs::remove_dir_all(&scratch)?;
    say("`git diff` shows what is new; the tests `golden` of uverbs-abi and c-abi compare");
    Ok(ExitCode::SUCCESS)
}

fn say(line: &str) {
    eprintln!("abi: {line}");
}

/// Headers to probe.
struct Headers {
    /// The directory that has `rdma/` or `infiniband/` in it.
    include: PathBuf,
    /// Their package and version, for the files' second line.
    origin: String,
}

impl Headers {
    /// Downloads and unpacks the newest version of a package.
    fn newest(package: &str, suites: &[&str], scratch: &Path) -> Result<Headers> {
        let name = format!("{package} of {}", suites.join(" and "));
        let root = scratch.join(&name);
        Packages { name: &name, arch: Arch::X86_64, suites, packages: &[package], only: &[package] }
            .fetch(&root, &say)?;
        let origin = format!("{package} {}", apt::version(&root, package)?);
        say(&format!("probing {origin}"));
        Ok(Headers { include: root.join("usr/include"), origin })
    }
}

/// Writes the golden files of uverbs-abi.
fn write_kernel(scratch: &Path) -> Result<()> {
    let headers = Headers::newest("linux-libc-dev", &["sid", "trixie-backports"], scratch)?;
    let asm = headers.include.join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let directories = [headers.include.as_path(), &asm];
    let preamble = format!(
        "# From {}; 64 bit, little-endian.\n\
         # Left out of uverbs-abi: flexible array members (the lines `flex`); what follows a struct starts there.\n",
        headers.origin
    );
    for header in HEADERS {
        let includes = [*header];
        let unit = Unit::new(&includes, &directories, scratch)?;
        let stem = header.trim_start_matches("rdma/").trim_end_matches(".h").replace('-', "_");
        let file = format!("uverbs-abi/golden/{stem}.txt");
        write(&file, &unit, &unit.definitions(header), LEFT_OUT, &preamble)?;
    }
    let unit = Unit::new(SOCKET_HEADERS, &directories, scratch)?;
    let socket = SOCKET.iter().map(|tag| unit.renamed(tag, tag).with_context(|| format!("no type {tag}")));
    write("uverbs-abi/golden/socket.txt", &unit, &socket.collect::<Result<Vec<_>>>()?, LEFT_OUT, &preamble)
}

/// Writes the golden file of definitions.
fn write(
    file: &str,
    unit: &Unit<'_>,
    definitions: &[Definition],
    left_out: &[(&str, &str)],
    preamble: &str,
) -> Result<()> {
    let includes = unit.includes.join(" ");
    let mut text = format!("# Layout of {includes}, written by `cargo xtask abi`: do not edit.\n{preamble}");
    let mut statements = String::new();
    for definition in definitions {
        let (Definition::Macro(name) | Definition::Other(name)) = definition else {
            if let Definition::Printed(printed) = definition {
                statements += printed;
            }
            continue;
        };
        match (left_out.iter().find(|(left_out, _)| left_out == name), definition) {
            (Some((_, why)), _) => text.push_str(&format!("# Left out: {name}: {why}.\n")),
            (None, Definition::Macro(_)) => statements += &header::constant("define", name),
            (None, _) => {
                bail!("{includes}: {name} has no layout; say in LEFT_OUT what our types do about it")
            }
        }
    }
    text.push_str(&unit.run(&statements)?);
    fs::write(cargo::root().join(file), text).with_context(|| format!("cannot write {file}"))
}
