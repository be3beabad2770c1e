//! `cargo xtask toolchain`: makes the toolchain with the source of its standard library, and prints
//! where it is, how it is used, and which of its targets lack something.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use super::{SOURCE_VARIABLE, STD, compiler, nightly, source};
use crate::apt::{self, HostTool};
use crate::sanitizer::{SANITIZERS, Sanitizer};
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
    let mut all = true;
    for served in served() {
        let missing = served.missing(&nightly);
        all &= missing.is_none();
        println!("{:<32} {:<36} {}", served.target, served.command, missing.as_deref().unwrap_or("ready"));
    }
    Ok(ExitCode::from(u8::from(!all)))
}

/// A target that the toolchain serves.
struct Served {
    target: String,
    /// The command that uses it. As root it installs missing packages.
    command: String,
    /// Packages of the host.
    tools: &'static [HostTool],
    sanitizer: Option<Sanitizer>,
}

/// Returns all targets.
fn served() -> Vec<Served> {
    let target = |target: String, command: &str, tools| Served {
        target,
        command: command.to_owned(),
        tools,
        sanitizer: None,
    };
    // rustup's standard library brings its own C library.
    let musl_tools = if cargo::has_std(&musl::target()) { &[] } else { apt::MUSL_TOOLS };
    let mut all = vec![target(musl::target(), "cargo xtask musl", musl_tools)];
    if std::env::consts::ARCH != "aarch64" {
        let aarch64 = "aarch64-unknown-linux-gnu".to_owned();
        all.push(target(aarch64, "cargo xtask aarch64", apt::AARCH64_TOOLS));
    }
    all.extend(SANITIZERS.into_iter().map(|sanitizer| Served {
        target: format!("{}, {} sanitizer", std::env::consts::ARCH, sanitizer.name()),
        command: format!("cargo xtask fuzz --sanitizer={}", sanitizer.name()),
        tools: &[],
        sanitizer: Some(sanitizer),
    }));
    all
}

impl Served {
    /// Returns what the target lacks, and how to get it.
    fn missing(&self, toolchain: &Path) -> Option<String> {
        let packages = apt::missing(&[self.tools]);
        if !packages.is_empty() {
            let names = packages.join(" ");
            return Some(format!(
                "missing: {}; apt-get install --no-install-recommends {names}",
                packages.join(", ")
            ));
        }
        let runtime = self.sanitizer?.runtime();
        let path = toolchain.join("lib/rustlib").join(cargo::host_target()).join("lib").join(runtime);
        (!path.exists()).then(|| format!("missing: {runtime}, which nightly toolchains of this target have"))
    }
}
