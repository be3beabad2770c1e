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
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail, ensure};

use crate::apt::{self, Packages};
use crate::arch::Arch;
use crate::cache;
use header::{Definition, Unit};

/// Command line of `cargo xtask abi`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare with the golden files instead of writing them; fails if they differ
    #[arg(long)]
    check: bool,

    /// Include directory (with rdma/ in it) to use instead of Debian's newest headers
    #[arg(long, value_name = "DIR")]
    headers: Option<PathBuf>,
}

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
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    ensure!(
        cfg!(target_pointer_width = "64"),
        "the golden files describe 64-bit machines, and this machine is not one"
    );
    apt::ensure_tools(&[apt::ABI_TOOLS], say)?;
    let scratch = cache::dir()?.join(format!("abi-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let headers = match &args.headers {
        Some(dir) => Headers { include: dir.clone(), origin: "a directory given with --headers".into() },
        None => Headers::newest("linux-libc-dev", &["sid", "trixie-backports"], &scratch)?,
    };
    say(&format!("probing {}", headers.origin));
    // The folder stays on failure, because an error of gcc names the program.
    let mut sets = vec![Set {
        package: "uverbs-abi",
        files: golden_files(&headers, &scratch)?,
        origin: headers.origin,
        complete: true,
    }];
    sets.extend(verbs::set(&scratch)?);

    let mut agree = true;
    for set in &sets {
        if args.check {
            agree &= check(set, &scratch)?;
        } else {
            write(set)?;
        }
    }
    fs::remove_dir_all(&scratch)?;
    Ok(if agree { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn say(line: &str) {
    eprintln!("abi: {line}");
}

/// A golden file's name and its new text.
struct Golden {
    name: String,
    text: String,
}

/// The golden files of one of our packages.
struct Set {
    /// The package, and its folder.
    package: &'static str,
    files: Vec<Golden>,
    /// The headers behind the files, for messages.
    origin: String,
    /// Whether the package has no other golden files.
    complete: bool,
}

impl Set {
    fn dir(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(self.package).join("golden")
    }
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
        Ok(Headers { include: root.join("usr/include"), origin })
    }
}

fn golden_files(headers: &Headers, scratch: &Path) -> Result<Vec<Golden>> {
    let preamble = format!(
        "# From {}; 64 bit, little-endian.\n\
         # Left out of uverbs-abi: flexible array members (the lines `flex`); what follows a struct starts there.\n",
        headers.origin
    );
    let asm = headers.include.join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let directories = [headers.include.as_path(), &asm];
    let mut files = Vec::new();
    for header in HEADERS {
        let includes = [*header];
        let unit = Unit::new(&includes, &directories, scratch)?;
        let stem = header.trim_start_matches("rdma/").trim_end_matches(".h").replace('-', "_");
        files.push(golden(&stem, &includes, &unit, &unit.definitions(header), LEFT_OUT, &preamble)?);
    }
    let unit = Unit::new(SOCKET_HEADERS, &directories, scratch)?;
    let socket = SOCKET.iter().map(|tag| unit.renamed(tag, tag).with_context(|| format!("no type {tag}")));
    let socket = socket.collect::<Result<Vec<_>>>()?;
    files.push(golden("socket", SOCKET_HEADERS, &unit, &socket, LEFT_OUT, &preamble)?);
    Ok(files)
}

/// Returns the golden file of definitions.
fn golden(
    stem: &str,
    includes: &[&str],
    unit: &Unit<'_>,
    definitions: &[Definition],
    left_out: &[(&str, &str)],
    preamble: &str,
) -> Result<Golden> {
    let mut text =
        format!("# Layout of {}, written by `cargo xtask abi`: do not edit.\n{preamble}", includes.join(" "));
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
            (None, _) => bail!(
                "{}: {name} has no layout; say in LEFT_OUT what our types do about it",
                includes.join(" ")
            ),
        }
    }
    text.push_str(&unit.run(&statements)?);
    Ok(Golden { name: format!("{stem}.txt"), text })
}

fn write(set: &Set) -> Result<()> {
    let dir = set.dir();
    fs::create_dir_all(&dir)?;
    for name in stale(set)? {
        fs::remove_file(dir.join(name))?;
    }
    for file in &set.files {
        fs::write(dir.join(&file.name), &file.text)?;
    }
    say(&format!(
        "wrote {} files, {} lines; the test `golden` of {} compares",
        set.files.len(),
        set.files.iter().map(|f| f.text.lines().count()).sum::<usize>(),
        set.package
    ));
    Ok(())
}

/// Returns the names of golden files that a new set would not contain.
fn stale(set: &Set) -> Result<Vec<String>> {
    let mut names = Vec::new();
    if !set.complete {
        return Ok(names);
    }
    let dir = set.dir();
    for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if set.files.iter().all(|f| f.name != name) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Shows the differences of the golden files to a new set, except the origin of the headers, and
/// returns whether they agree.
fn check(set: &Set, scratch: &Path) -> Result<bool> {
    let stale = stale(set)?;
    stale.iter().for_each(|name| println!("{name}: not written from these headers"));
    let mut agree = stale.is_empty();
    for file in &set.files {
        let new = scratch.join(&file.name);
        fs::write(&new, &file.text)?;
        let mut diff = Command::new("diff");
        diff.args(["--new-file", "--unified=0", "--ignore-matching-lines=^# From "]);
        agree &= diff.arg(set.dir().join(&file.name)).arg(new).status().context("cannot run diff")?.success();
    }
    let verb = if agree { "agree with" } else { "differ (`cargo xtask abi` updates them) from those of" };
    say(&format!("the golden files of {} {verb} {}", set.package, set.origin));
    Ok(agree)
}
