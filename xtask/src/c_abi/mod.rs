//! `cargo xtask c-abi`: `libibverbs.so.1`, `librdmacm.so.1`, `libmlx5.so.1` and `libefa.so.1` for C
//! programs, and a Debian package with them. `cargo xtask run-c`, in [`mod@run`], runs a program on
//! them.
//!
//! | file | purpose |
//! |---|---|
//! | `c-abi/src/symbols.rs` | the symbols, with their nodes and states |
//! | [`points`], `points.toml` | list the C library's cancellation points |
//! | [`script`] | writes the linker's version scripts from the table of symbols |
//! | [`link`] | links the libraries |
//! | [`verify`] | compares the libraries with the table of symbols |
//! | [`shipped`] | unpacks the package, to test the libraries as programs get them |
//! | [`deb`], `debian/` | the package and its documents |

mod deb;
mod link;
mod points;
pub(crate) mod run;
mod script;
pub(crate) mod shipped;
// The states and reasons serve the documents, and the items are public for users of the crate.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../c-abi/src/symbols.rs"]
mod symbols;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

pub(crate) use self::link::{ARCHIVE, PROFILE, build, link_for_aarch64};
use self::link::{archive, copy};
use self::run::static_launcher;
use crate::progress::say;

/// The command line of `cargo xtask c-abi`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also copy the libraries into this folder. Programs compile with rdma-core's headers
    /// (Debian's libibverbs-dev and librdmacm-dev)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Cargo profile of the build; dev builds faster
    #[arg(long, default_value = PROFILE, value_name = "NAME")]
    profile: String,

    /// Write a Debian package into this folder, with the libraries and the program verbs-run
    #[arg(long, value_name = "DIR")]
    deb: Option<PathBuf>,

    /// The package's verbs-run, a static program [default: build it with the system's C library]
    #[arg(long, value_name = "FILE", requires = "deb")]
    launcher: Option<PathBuf>,
}

/// Runs `c-abi`.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let built = build(&args.profile)?;
    if let Some(out) = &args.out {
        copy(&built, out)?;
        say("no headers are written: compile with those of libibverbs-dev and librdmacm-dev");
    }
    if let Some(dir) = &args.deb {
        let launcher = match &args.launcher {
            Some(launcher) => launcher.clone(),
            None => static_launcher("release")?,
        };
        println!("{}", deb::write(&archive(&args.profile)?, &launcher, dir)?.display());
    }
    if args.deb.is_none() || args.out.is_some() {
        println!("{}", args.out.as_ref().unwrap_or(&built).display());
    }
    Ok(ExitCode::SUCCESS)
}
