//! The Debian package `verbs-run`: the libraries in a separate folder, and the program that runs
//! other programs on them. It diverts and replaces nothing.
//!
//! ```text
//! /usr/bin/verbs-run                    [OPTION]... COMMAND [ARGUMENT]...
//! /usr/lib/verbs-run/                   libibverbs.so.1, librdmacm.so.1, libmlx5.so.1, libefa.so.1
//! /usr/share/doc/verbs-run/             copyright, changelog.gz
//! /usr/share/lintian/overrides/verbs-run
//! /usr/share/man/man1/verbs-run.1.gz
//! ```
//!
//! The texts and the recipe, `rules`, are in the folder `debian`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::link::{Linking, PROFILE};
use super::verify::Binutils;
use crate::process::output;
use crate::{apt, cargo};

/// The program that runs other programs, from the package rdma-tools.
pub(super) const LAUNCHER: &str = "verbs-run";

/// The libraries' folder in the package.
pub(super) const FOLDER: &str = "usr/lib/verbs-run";

/// Makes a package from a static library and a static `verbs-run`, writes it into a folder, and
/// returns its path. cargo-deb is unsuitable, because cargo does not link the libraries.
pub(super) fn write(archive: &Path, launcher: &Path, dir: &Path) -> Result<PathBuf> {
    apt::ensure_tools(&[apt::Tools::CAbi, apt::Tools::Deb])?;
    let work = cargo::target_directory()?.join(PROFILE).join("deb");
    let libraries = work.join("stripped");
    Linking { binutils: Binutils::Native, archive, out: &libraries, strip: true }.link()?;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let (dir, launcher) = (std::path::absolute(dir)?, std::path::absolute(launcher)?);
    let mut make = Command::new("make");
    for (variable, path) in
        [("LAUNCHER", &launcher), ("LIBRARIES", &libraries), ("WORK", &work), ("OUT", &dir)]
    {
        make.arg(format!("{variable}={}", path.display()));
    }
    make.args(["--file", "debian/rules", "binary"]).current_dir(cargo::root().join("xtask/src/c_abi"));
    output(&mut make)?;
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    Ok(dir.join(format!("verbs-run_{}_{}.deb", env!("CARGO_PKG_VERSION"), architecture.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPYRIGHT: &str = include_str!("debian/copyright");
    const CHANGELOG: &str = include_str!("debian/changelog");
    const MAN_PAGE: &str = include_str!("debian/verbs-run.1");

    #[test]
    fn the_changelog_begins_with_this_version() {
        let first = format!("verbs-run ({}) unstable; urgency=medium", env!("CARGO_PKG_VERSION"));
        assert_eq!(CHANGELOG.lines().next(), Some(first.as_str()));
    }

    #[test]
    fn each_package_of_the_libraries_and_the_program_is_in_the_copyright_file() {
        let tree = output(cargo::command().args([
            "tree",
            "--package=libibverbs-c-image",
            "--package=rdma-tools",
            "--edges=normal,no-proc-macro",
            "--prefix=none",
            "--format={p}|{l}",
        ]));
        let tree = tree.unwrap();
        let stanzas: Vec<(&str, &str)> = COPYRIGHT
            .split("\n\n")
            .filter_map(|stanza| {
                Some((stanza.strip_prefix("Files: ")?.lines().next()?, stanza.lines().last()?))
            })
            .collect();
        // Packages in the workspace have their folder after the version. An empty line separates
        // the trees.
        for line in tree.lines().filter(|line| !line.contains(" (/") && !line.contains("(*)")) {
            let Some((package, terms)) = line.split_once('|') else { continue };
            let name = package.split(' ').next().unwrap();
            let stanza = stanzas.iter().find(|(files, _)| files.split(' ').any(|file| file == name));
            let (_, license) = stanza.unwrap_or_else(|| panic!("{package} is not in the copyright file"));
            let has_apache = terms.contains("Apache-2.0");
            let expected = if has_apache { "License: Expat or Apache-2.0" } else { "License: Expat" };
            assert_eq!(*license, expected, "{line}");
        }
        let license = fs::read_to_string(cargo::root().join("LICENSE-MIT")).unwrap();
        let terms = license.lines().skip_while(|line| !line.starts_with("Permission"));
        let missing: Vec<_> = terms.filter(|line| !COPYRIGHT.contains(line)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn the_man_page_has_each_option_and_status_of_the_program() {
        let page = MAN_PAGE.replace("\\-", "-");
        for word in ["VERBS_SOFT", "LD_LIBRARY_PATH", "\n.B 125\n", "\n.B 126\n", "\n.B 127\n"] {
            assert!(page.contains(word), "{word}");
        }
        let sources = fs::read_to_string(cargo::root().join("tools/src/verbs_run/options.rs")).unwrap();
        let lines = sources.lines().filter(|line| line.starts_with("  -"));
        let words = lines.flat_map(|line| line.split([' ', '[', '=', ',']));
        let options: Vec<_> = words.filter(|word| word.starts_with('-')).collect();
        assert!(options.len() > 8, "{options:?}");
        for option in options {
            assert!(page.contains(option), "{option}");
        }
    }
}
