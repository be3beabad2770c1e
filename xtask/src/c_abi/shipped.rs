//! The libraries as programs get them: from the Debian package, built with the profile [`PROFILE`]
//! (link-time optimisation, panics abort) and stripped. `cargo test` uses the libraries of the dev
//! profile, which link faster.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::deb;
use super::link::{PROFILE, archive, build};
use super::run::static_launcher;
use crate::process::output;
use crate::{apt, cargo};

/// The libraries and their package.
pub(crate) struct Shipped {
    pub(crate) libraries: PathBuf,
    /// The package's path; `None` without Debian's tools. The libraries are then not stripped.
    pub(crate) package: Option<PathBuf>,
}

/// Writes the package and unpacks it.
pub(crate) fn make() -> Result<Shipped> {
    if apt::find_program("dpkg-deb").is_none() {
        return Ok(Shipped { libraries: build(PROFILE)?, package: None });
    }
    let work = cargo::target_directory()?.join(PROFILE).join("deb");
    // `dev` is also the profile of the guests' static tools.
    let package = deb::write(&archive(PROFILE)?, &static_launcher("dev")?, &work)?;
    let unpacked = work.join("unpacked");
    if unpacked.exists() {
        std::fs::remove_dir_all(&unpacked)?;
    }
    output(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&unpacked))?;
    Ok(Shipped { libraries: unpacked.join(deb::FOLDER), package: Some(package) })
}

/// Returns lintian's errors and warnings about a package; `None` if lintian is not installed.
pub(crate) fn lintian(package: &Path) -> Result<Option<Vec<String>>> {
    if apt::find_program("lintian").is_none() {
        return Ok(None);
    }
    let ended = Command::new("lintian")
        .args(["--allow-root", "--no-cfg", "--tag-display-limit", "0", "--"])
        .arg(package)
        .stdin(Stdio::null())
        .output()
        .context("cannot run lintian")?;
    let (found, why) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    // It exits with 2 if a finding is an error.
    ensure!(matches!(ended.status.code(), Some(0 | 2)), "lintian: {} {why}", ended.status);
    Ok(Some(found.lines().filter(|line| !line.starts_with("N:")).map(str::to_owned).collect()))
}
