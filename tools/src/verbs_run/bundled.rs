//! [`Bundled`]: a copy of libibverbs in a Python package.
//!
//! Wheels contain the libraries they need in a separate folder, with a hash in each name:
//! `nixl.libs/libibverbs-1de1263b.so.1.14.48.0`. The loader then does not look for
//! `libibverbs.so.1`. Code that is statically linked into an extension cannot be replaced.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::layout;
use super::libraries::LIBRARIES;
use super::python::{self, Surroundings};

/// A library in a package, and our library that replaces it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bundled {
    path: PathBuf,
    /// The name of our library.
    ours: &'static str,
}

impl Bundled {
    /// Mounts our library over the copy.
    ///
    /// # Errors
    /// Any errno from `mount(2)`.
    pub fn cover(&self, libraries: &Path) -> io::Result<()> {
        layout::bind(&libraries.join(self.ours), &self.path)
    }

    /// Creates a link to our library with the copy's name. If several copies have the same name,
    /// the first gets the link.
    ///
    /// # Errors
    /// Any errno from `symlink(2)`.
    pub fn link(&self, libraries: &Path, folder: &Path) -> io::Result<()> {
        let Some(name) = self.path.file_name() else { return Ok(()) };
        match symlink(libraries.join(self.ours), folder.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            result => result,
        }
    }
}

/// Finds bundled copies in these folders and in the packages that a command may import.
pub fn find(command: &[OsString], scan: &[PathBuf]) -> Vec<Bundled> {
    let mut found = BTreeSet::new();
    for site in python::packages(command, &Surroundings::of_process()) {
        for entry in site.read_dir().into_iter().flatten().flatten() {
            // auditwheel makes NAME.libs, and mesonpy makes .NAME.mesonpy.libs.
            if entry.file_name().as_bytes().ends_with(b".libs") {
                walk(&entry.path(), PACKAGE_DEPTH, &mut found);
            }
        }
    }
    for folder in scan {
        walk(folder, SCAN_DEPTH, &mut found);
    }
    found.into_iter().collect()
}

/// Adds the copies in a folder and its subfolders.
fn walk(folder: &Path, depth: usize, found: &mut BTreeSet<Bundled>) {
    for entry in folder.read_dir().into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && depth > 0 {
            walk(&entry.path(), depth - 1, found);
        } else if kind.is_file()
            && let Some(ours) = ours_of(&entry.file_name())
            // An absolute path, which stays valid when the program changes its folder.
            && let Ok(path) = entry.path().canonicalize()
        {
            found.insert(Bundled { path, ours });
        }
    }
}

/// Returns the library that replaces a file with this name.
fn ours_of(name: &OsStr) -> Option<&'static str> {
    let name = name.to_str()?;
    LIBRARIES.into_iter().find(|ours| {
        let Some(base) = ours.strip_suffix(".so.1") else { return false };
        let Some((hash, version)) = name.strip_prefix(base).and_then(|rest| rest.split_once(".so")) else {
            return false;
        };
        let is_hash = hash.strip_prefix('-').is_some_and(|digits| {
            digits.len() >= HASH_DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
        let is_version = version.is_empty() || version == ".1" || version.starts_with(".1.");
        (hash.is_empty() || is_hash) && is_version
    })
}

/// The maximum depth of a library below `NAME.libs`. UCX has its modules one folder down.
const PACKAGE_DEPTH: usize = 2;

/// The maximum depth of a library below a folder given by the user.
const SCAN_DEPTH: usize = 8;

/// The minimum number of digits of a hash in a name.
const HASH_DIGITS: usize = 6;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_have_a_hash_or_none_and_the_version_of_ours() {
        for (name, ours) in [
            ("libibverbs-1de1263b.so.1.14.48.0", Some("libibverbs.so.1")),
            ("libmlx5-79ef1d27.so.1.24.48.0", Some("libmlx5.so.1")),
            ("librdmacm-0badcafe.so.1.3.48.0", Some("librdmacm.so.1")),
            ("libefa-00000000.so.1", Some("libefa.so.1")),
            ("libibverbs-1de1263b.so", Some("libibverbs.so.1")),
            ("libibverbs.so.1", Some("libibverbs.so.1")),
            ("libibverbs.so.1.14.44.0", Some("libibverbs.so.1")),
            ("libibverbs-1de1263b.so.2", None),
            ("libibverbs-1de1263b.so.10", None),
            ("libibverbs-utils.so.1", None),
            ("libmlx5-rdmav34.so", None),
            ("libibverbsx.so.1", None),
            ("libibverbs.a", None),
            ("libmlx4-1de1263b.so.1", None),
        ] {
            assert_eq!(ours_of(OsStr::new(name)), ours, "{name}");
        }
    }

    #[test]
    fn a_folder_is_searched_and_links_lead_to_ours() {
        let root = std::env::temp_dir().join(format!("verbs-run-bundled-{}", std::process::id()));
        let (libs, links) = (root.join("x/nixl.libs/ucx"), root.join("links"));
        fs::create_dir_all(&libs).unwrap();
        fs::create_dir(&links).unwrap();
        let name = "libibverbs-1de1263b.so.1.14.48.0";
        for path in [libs.join(name), root.join("x").join(name), libs.join("libz.so.1")] {
            fs::write(path, "").unwrap();
        }
        symlink("nixl.libs", root.join("x/again")).unwrap();
        let found = find(&[], std::slice::from_ref(&root));
        let found: Vec<_> = found.into_iter().filter(|one| one.path.starts_with(&root)).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        for one in &found {
            one.link(Path::new("/ours"), &links).unwrap();
        }
        assert_eq!(fs::read_link(links.join(name)).unwrap(), Path::new("/ours/libibverbs.so.1"));
        fs::remove_dir_all(&root).unwrap();
    }
}
