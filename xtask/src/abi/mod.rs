//! `cargo xtask abi`: writes uverbs-abi's golden files from Debian's newest kernel headers, and
//! c-abi's golden files from libibverbs' and librdmacm's headers of several releases.
//!
//! ```text
//! linux-libc-dev ──► gcc ──► header: definitions ──► a C program ──► uverbs-abi/golden/*.txt
//! libibverbs-dev ──►  "           "                       "          c-abi/golden/verbs-*.txt
//! ```
//!
//! The files hold the C compiler's values for every constant, struct and union in the headers
//! listed in `headers.toml`, in `infiniband/verbs.h` and in `rdma/rdma_cma.h`. The two crates'
//! `golden` tests compare their types with the files and need neither headers nor a compiler. Two
//! runs on the same headers write the same bytes.

mod header;
mod verbs;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use crate::apt::{self, Packages};
use crate::arch::Arch;
use crate::progress::say;
use crate::{cache, cargo};
use header::{Definition, Unit};

/// The lists in `headers.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Lists {
    kernel: Vec<String>,
    socket_headers: Vec<String>,
    socket: Vec<String>,
    left_out: BTreeMap<String, String>,
}

static LISTS: LazyLock<Lists> =
    LazyLock::new(|| toml::from_str(include_str!("headers.toml")).expect("lists of names"));

/// Runs the subcommand.
///
/// # Errors
/// Debian's packages are not available, the compiler rejects a program, or a header has a
/// definition that is not in the lists.
pub(crate) fn run() -> Result<ExitCode> {
    ensure!(
        cfg!(target_pointer_width = "64"),
        "the golden files describe 64-bit machines, and this machine is not one"
    );
    apt::ensure_tools(&[apt::Tools::CAbi, apt::Tools::Ctags])?;
    // The folder stays after a failure, because gcc's errors name the program in it.
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

/// The headers to probe.
struct Headers {
    /// The directory with `rdma/` or `infiniband/`.
    include: PathBuf,
    /// The package and its version, for the second line of the files.
    origin: String,
}

impl Headers {
    /// Downloads and unpacks the newest version of a package.
    fn newest(package: &str, suites: &[&str], scratch: &Path) -> Result<Headers> {
        let name = format!("{package} of {}", suites.join(" and "));
        let root = scratch.join(&name);
        Packages { name: &name, arch: Arch::X86_64, suites, packages: &[package], only: &[package] }
            .fetch(&root)?;
        let origin = format!("{package} {}", apt::version(&root, package)?);
        say(&format!("probing {origin}"));
        Ok(Headers { include: root.join("usr/include"), origin })
    }
}

/// Writes uverbs-abi's golden files.
fn write_kernel(scratch: &Path) -> Result<()> {
    let headers = Headers::newest("linux-libc-dev", &["sid", "trixie-backports"], scratch)?;
    let asm = headers.include.join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let directories = [headers.include.as_path(), &asm];
    let preamble = format!(
        "# From {}; 64 bit, little-endian.\n\
         # Left out of uverbs-abi: flexible array members (the lines `flex`); what follows a struct starts there.\n",
        headers.origin
    );
    for header in &LISTS.kernel {
        let includes = [header.as_str()];
        let unit = Unit::new(&includes, &directories, scratch)?;
        let stem = header.trim_start_matches("rdma/").trim_end_matches(".h").replace('-', "_");
        write(&format!("uverbs-abi/golden/{stem}.txt"), &unit, &unit.definitions(header), &preamble)?;
    }
    let includes: Vec<&str> = LISTS.socket_headers.iter().map(String::as_str).collect();
    let unit = Unit::new(&includes, &directories, scratch)?;
    let socket =
        LISTS.socket.iter().map(|tag| unit.renamed(tag, tag).with_context(|| format!("no type {tag}")));
    write("uverbs-abi/golden/socket.txt", &unit, &socket.collect::<Result<Vec<_>>>()?, &preamble)
}

/// Writes a golden file with definitions. A definition without a layout is an error unless the
/// lists leave it out. The compiler reports a macro without a value.
fn write(file: &str, unit: &Unit<'_>, definitions: &[Definition], preamble: &str) -> Result<()> {
    let includes = unit.includes.join(" ");
    let mut text = format!("# Layout of {includes}, written by `cargo xtask abi`: do not edit.\n{preamble}");
    let mut statements = String::new();
    for Definition { name, statements: printed } in definitions {
        match (LISTS.left_out.get(name), printed) {
            (Some(why), _) => text += &format!("# Left out: {name}: {why}.\n"),
            (None, Some(printed)) => statements += printed,
            (None, None) => {
                bail!("{includes}: {name} has no layout; say in headers.toml what our types do about it")
            }
        }
    }
    text += &unit.run(&statements)?;
    fs::write(cargo::root().join(file), text).with_context(|| format!("cannot write {file}"))
}
