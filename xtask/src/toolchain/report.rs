//! `cargo xtask toolchain`: makes the toolchain with the source of its standard library, and prints
//! where it is, how it is used, and which of its targets lack something.

use std::process::ExitCode;

use anyhow::Result;

use super::{SOURCE_VARIABLE, STD, compiler, nightly, source};
use crate::apt::{self, HostTool};
use crate::sanitizer::SANITIZERS;
use crate::{cargo, musl};

/// Makes the toolchain that builds its standard library, and says what it serves.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs `toolchain`. Its status is 0 if no target lacks anything.
pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    let nightly = nightly()?;
    println!("compiler   {}", compiler(&nightly)?);
    let (source, dir) = (source(&nightly)?, nightly.display());
    println!("toolchain  {dir}\nsource     {}", source.display());
    let variable = if source.starts_with(&nightly) {
        String::new()
    } else {
        format!("{SOURCE_VARIABLE}={} ", source.display())
    };
    println!(
        "use        {variable}RUSTC={dir}/bin/rustc {dir}/bin/cargo build -Zbuild-std={STD} --target TARGET\n"
    );
    // rustup's standard library brings its own C library.
    let musl_tools = if cargo::has_std(&musl::target()) { &[] } else { apt::MUSL_TOOLS };
    let mut served = vec![(musl::target(), "cargo xtask musl".to_owned(), missing_packages(musl_tools))];
    if std::env::consts::ARCH != "aarch64" {
        let (target, command) = ("aarch64-unknown-linux-gnu".to_owned(), "cargo xtask aarch64".to_owned());
        served.push((target, command, missing_packages(apt::AARCH64_TOOLS)));
    }
    for sanitizer in SANITIZERS {
        let (name, runtime) = (sanitizer.name(), sanitizer.runtime());
        let path = nightly.join("lib/rustlib").join(cargo::host_target()).join("lib").join(runtime);
        let missing = format!("missing: {runtime}, which nightly toolchains of this target have");
        served.push((
            format!("{}, {name} sanitizer", std::env::consts::ARCH),
            format!("cargo xtask fuzz --sanitizer={name}"),
            (!path.exists()).then_some(missing),
        ));
    }
    for (target, command, missing) in &served {
        println!("{target:<32} {command:<36} {}", missing.as_deref().unwrap_or("ready"));
    }
    Ok(ExitCode::from(u8::from(served.iter().any(|(_, _, missing)| missing.is_some()))))
}

/// Returns the packages that a target lacks, and the command that installs them.
fn missing_packages(tools: &[HostTool]) -> Option<String> {
    let packages = apt::missing(&[tools]).join(" ");
    let install = format!("missing: {packages}; apt-get install --no-install-recommends {packages}");
    (!packages.is_empty()).then_some(install)
}
