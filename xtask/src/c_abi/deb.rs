//! The Debian package `verbs-run`: the libraries in a folder of their own, and a wrapper that puts
//! the folder in front of the loader's search path. It diverts and replaces nothing.
//!
//! ```text
//! /usr/bin/verbs-run                    [--soft] COMMAND [ARGUMENT...]
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

/// The libraries' folder in the package.
pub(super) const FOLDER: &str = "usr/lib/verbs-run";

/// Writes the package of a static library into a folder, and returns its path. cargo-deb does not
/// fit: the libraries are no results of cargo, but linked from one.
pub(super) fn write(archive: &Path, dir: &Path) -> Result<PathBuf> {
    apt::ensure_tools(&[apt::Tools::CAbi, apt::Tools::Deb])?;
    let work = cargo::target_directory()?.join(PROFILE).join("deb");
    let libraries = work.join("stripped");
    Linking { binutils: Binutils::Native, archive, out: &libraries, strip: true }.link()?;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let dir = std::path::absolute(dir)?;
    let mut make = Command::new("make");
    for (variable, folder) in [("LIBRARIES", &libraries), ("WORK", &work), ("OUT", &dir)] {
        make.arg(format!("{variable}={}", folder.display()));
    }
    make.args(["--file", "debian/rules", "binary"]).current_dir(cargo::root().join("xtask/src/c_abi"));
    output(&mut make)?;
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    Ok(dir.join(format!("verbs-run_{}_{}.deb", env!("CARGO_PKG_VERSION"), architecture.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRAPPER: &str = include_str!("verbs-run");
    const COPYRIGHT: &str = include_str!("debian/copyright");
    const CHANGELOG: &str = include_str!("debian/changelog");
    const MAN_PAGE: &str = include_str!("debian/verbs-run.1");

    #[test]
    fn the_wrapper_sets_variables_and_passes_arguments_and_the_status_on() {
        let dir = std::env::temp_dir().join(format!("verbs-run-{}", std::process::id()));
        let (root, link) = (dir.join("a root"), dir.join("link"));
        for (file, text) in [("usr/bin/verbs-run", WRAPPER), (&format!("{FOLDER}/libibverbs.so.1"), "")] {
            fs::create_dir_all(root.join(file).with_file_name("")).unwrap();
            fs::write(root.join(file), text).unwrap();
        }
        std::os::unix::fs::symlink(root.join("usr/bin/verbs-run"), &link).unwrap();
        // The shell reads the file, which the kernel does not execute while a child of another test
        // has it open for writing.
        let run = |arguments: &[&str], variables: &[(&str, &str)]| {
            let mut command = Command::new("sh");
            command.arg(&link).args(arguments).env_remove("LD_LIBRARY_PATH").env_remove("VERBS_SOFT");
            let output = command.envs(variables.iter().copied()).output().unwrap();
            let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
            (output.status.code(), out, err)
        };
        let show = |options: &[&str], variables: &[(&str, &str)]| {
            let show = "echo \"$LD_LIBRARY_PATH|${VERBS_SOFT-unset}|$*\"";
            run(&[options, &["sh", "-c", show, "sh", "a b", "--soft"]].concat(), variables).1
        };
        let folder = root.join(FOLDER).display().to_string();
        assert_eq!(show(&[], &[]), format!("{folder}|unset|a b --soft\n"));
        assert_eq!(show(&[], &[("LD_LIBRARY_PATH", "/a:/b")]), format!("{folder}:/a:/b|unset|a b --soft\n"));
        assert!(show(&["--soft"], &[]).contains("|auto|"));
        assert!(show(&["--soft"], &[("VERBS_SOFT", "192.0.2.1")]).contains("|192.0.2.1|"));
        assert_eq!(run(&["sh", "-c", "exit 7"], &[]).0, Some(7));
        let (status, _, why) = run(&["no-such-command"], &[]);
        assert!(status == Some(127) && why.contains("no-such-command"), "{why}");
        assert_eq!(run(&[], &[]).0, Some(125));
        assert_eq!(run(&["--hard", "true"], &[]).0, Some(125));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_changelog_begins_with_this_version() {
        let first = format!("verbs-run ({}) unstable; urgency=medium", env!("CARGO_PKG_VERSION"));
        assert_eq!(CHANGELOG.lines().next(), Some(first.as_str()));
    }

    #[test]
    fn each_package_of_the_libraries_is_in_the_copyright_file() {
        let tree = output(cargo::command().args([
            "tree",
            "--package=libibverbs-c-image",
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
        // Packages of the workspace have their folder behind the version.
        for line in tree.lines().filter(|line| !line.contains(" (/") && !line.contains("(*)")) {
            let (package, terms) = line.split_once('|').unwrap();
            let name = package.split(' ').next().unwrap();
            let stanza = stanzas.iter().find(|(files, _)| files.split(' ').any(|file| file == name));
            let (_, license) = stanza.unwrap_or_else(|| panic!("{package} is not in the copyright file"));
            let expected = if terms == "MIT" { "License: Expat" } else { "License: Expat or Apache-2.0" };
            assert_eq!(*license, expected, "{line}");
        }
        let license = fs::read_to_string(cargo::root().join("LICENSE-MIT")).unwrap();
        let terms = license.lines().skip_while(|line| !line.starts_with("Permission"));
        let missing: Vec<_> = terms.filter(|line| !COPYRIGHT.contains(line)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn the_man_page_has_each_option_and_status_of_the_wrapper() {
        let page = MAN_PAGE.replace("\\-", "-");
        for word in ["--soft", "--help", "VERBS_SOFT=auto", "\n.B 125\n", "\n.B 126\n", "\n.B 127\n"] {
            assert!(page.contains(word), "{word}");
        }
        let options = WRAPPER.lines().filter_map(|line| line.trim().strip_suffix(") soft=1 ;;"));
        assert_eq!(options.collect::<Vec<_>>(), ["--soft"], "an option that the page lacks");
    }
}
