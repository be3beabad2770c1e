//! `cargo xtask c-abi`: `libibverbs.so.1`, `librdmacm.so.1`, `libmlx5.so.1` and `libefa.so.1` for C
//! programs, and a Debian package of them. `cargo xtask run-c`, in [`mod@run`], runs a program on
//! them.
//!
//! | file | what it does |
//! |---|---|
//! | `c-abi/src/symbols.rs` | lists the symbols, their nodes and states |
//! | [`points`] | lists the C library's cancellation points |
//! | [`script`] | writes the linker's version scripts from that list |
//! | [`link`] | links the libraries |
//! | [`verify`] | compares them with the list |
//! | [`shipped`] | unpacks the package, for the tests of the libraries as programs get them |
//! | [`deb`], `deb/`, `verbs-run` | the package, its documents, and the wrapper in it |

mod deb;
mod link;
mod points;
pub(crate) mod run;
mod script;
pub(crate) mod shipped;
// The states and reasons are for documents, and the items public for users of the crate.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../c-abi/src/symbols.rs"]
mod symbols;
mod verify;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, ensure};

use self::link::Binutils;
use crate::cargo;

/// Command line of `cargo xtask c-abi`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also copy the libraries into this folder. There are no headers: programs compile with those
    /// of rdma-core (Debian's libibverbs-dev and librdmacm-dev)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Cargo profile of the build; dev builds faster
    #[arg(long, default_value = PROFILE, value_name = "NAME")]
    profile: String,

    /// Write a Debian package into this folder, with the libraries and the wrapper verbs-run
    #[arg(long, value_name = "DIR")]
    deb: Option<PathBuf>,
}

/// The Cargo profile of libraries that programs get.
pub(crate) const PROFILE: &str = "c-abi";

/// The libraries, the image first.
const LIBRARIES: [&str; 4] = ["libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1", "libefa.so.1"];

/// Runs `c-abi`.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let built = build(&args.profile)?;
    if let Some(out) = &args.out {
        link::copy(&built, out)?;
        say("no headers are written: compile with those of libibverbs-dev and librdmacm-dev");
    }
    if let Some(dir) = &args.deb {
        println!("{}", deb::write(&archive(&args.profile)?, dir)?.display());
    }
    if args.deb.is_none() || args.out.is_some() {
        println!("{}", args.out.as_ref().unwrap_or(&built).display());
    }
    Ok(ExitCode::SUCCESS)
}

fn say(line: &str) {
    eprintln!("c-abi: {line}");
}

/// Runs a program, and returns its standard output.
fn run_tool(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    // The words of readelf depend on the language.
    let output = command.stdin(Stdio::null()).env("LC_ALL", "C").output();
    let output = output.with_context(|| format!("cannot run {name}"))?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {} {}", output.status, why.trim_end());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Builds, links and checks the libraries with a Cargo profile, as far as they are not up to date,
/// and returns their folder.
pub(crate) fn build(profile: &str) -> Result<PathBuf> {
    let archive = archive(profile)?;
    let out = folder(&cargo::target_directory()?, profile);
    link::Linking { binutils: Binutils::NATIVE, archive: &archive, out: &out, strip: false }.link()?;
    Ok(out)
}

/// The name of the static library that is linked to `libibverbs.so.1`.
pub(crate) const ARCHIVE: &str = "libibverbs_c_image.a";

/// Links and checks libraries for aarch64 from a static library that is built, and returns their
/// folder.
pub(crate) fn link_for_aarch64(archive: &Path) -> Result<PathBuf> {
    let out = archive.with_file_name(PROFILE);
    link::Linking { binutils: Binutils::AARCH64, archive, out: &out, strip: false }.link()?;
    Ok(out)
}

/// Builds the static library with a Cargo profile.
fn archive(profile: &str) -> Result<PathBuf> {
    const PACKAGE: &str = "libibverbs-c-image";
    let archive = cargo::profile_directory(profile)?.join(ARCHIVE);
    if !archive.exists() {
        say(&format!("building {PACKAGE} with the profile {profile}"));
    }
    cargo::build_profile(PACKAGE, profile)?;
    Ok(archive)
}

/// Returns the folder of the libraries of a profile. It is none that cargo names in
/// LD_LIBRARY_PATH, where C's tools would find the libraries in every test.
fn folder(target: &Path, profile: &str) -> PathBuf {
    let folder = target.join(PROFILE);
    if profile == PROFILE { folder } else { folder.join(profile) }
}
