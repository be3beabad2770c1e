//! [`find`]: the folder of our libraries. [`search_path`]: the loader's search path with this
//! folder.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The names of our libraries.
pub const LIBRARIES: [&str; 4] = ["libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1", "libefa.so.1"];

/// Returns the folder of the libraries: either the given folder, or a folder near this program.
///
/// # Errors
/// Fails if no folder has the libraries. The error is a sentence that lists the searched folders.
pub fn find(given: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(given) = given {
        // The path must be absolute, because the program may change its folder.
        let folder =
            given.canonicalize().map_err(|error| format!("--libraries {}: {error}", given.display()))?;
        return match missing(&folder) {
            None => Ok(folder),
            Some(name) => Err(format!("there is no {name} in {}", folder.display())),
        };
    }
    let program = env::current_exe().map_err(|error| format!("cannot find this program's file: {error}"))?;
    find_beside(&program)
}

/// Returns the library folder for a program: the folder in the Debian package, in an archive, or
/// the program's own folder.
fn find_beside(program: &Path) -> Result<PathBuf, String> {
    let bin = program.parent().unwrap_or(Path::new("/"));
    let prefix = bin.parent().unwrap_or(bin);
    let candidates = [prefix.join("lib/verbs-run"), prefix.join("lib"), bin.to_owned()];
    // Only our package uses the first folder.
    let is_right =
        |(at, folder): &(usize, &PathBuf)| missing(folder).is_none() && (*at == 0 || is_ours(folder));
    let found = candidates.iter().enumerate().find(is_right).map(|(_, folder)| folder);
    found.cloned().ok_or_else(|| {
        format!(
            "the libraries are neither in {} nor in {} or {}: name their folder with --libraries DIR \
             (cargo xtask c-abi --out DIR builds them)",
            candidates[0].display(),
            candidates[1].display(),
            candidates[2].display()
        )
    })
}

fn missing(folder: &Path) -> Option<&'static str> {
    LIBRARIES.into_iter().find(|name| !folder.join(name).exists())
}

/// Returns whether a folder has our `libibverbs.so.1`, and not rdma-core's library, which may be in
/// the same folder.
fn is_ours(folder: &Path) -> bool {
    const MARK: &[u8] = b"VERBS_SOFT";
    let library = fs::read(folder.join(LIBRARIES[0])).unwrap_or_default();
    // Comparing the first byte separately is much faster.
    let mut starts = library.iter().enumerate().filter(|(_, byte)| **byte == MARK[0]);
    starts.any(|(at, _)| library[at..].starts_with(MARK))
}

/// Adds folders to the start of the loader's search path.
///
/// # Errors
/// Fails if the loader would split a folder's name. The error is a sentence about this folder.
pub fn search_path(folders: &[&Path], existing: Option<&OsStr>) -> Result<OsString, String> {
    let mut path = OsString::new();
    // An empty element means the current folder.
    let existing = existing.filter(|existing| !existing.is_empty());
    for folder in folders {
        if folder.as_os_str().as_bytes().iter().any(|byte| b":;".contains(byte)) {
            let folder = folder.display();
            return Err(format!("the loader cannot search {folder}: a colon or semicolon ends its name"));
        }
    }
    for folder in folders.iter().map(|folder| folder.as_os_str()).chain(existing) {
        if !path.is_empty() {
            path.push(":");
        }
        path.push(folder);
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_the_loader_would_split_is_refused() {
        assert!(search_path(&[Path::new("/a:b/c-abi")], None).is_err());
        assert!(search_path(&[Path::new("/a;b/c-abi")], None).is_err());
    }

    #[test]
    fn folders_come_before_the_existing_path() {
        let path = |existing: Option<&str>| {
            let folders = [Path::new("/links"), Path::new("/ours")];
            search_path(&folders, existing.map(OsStr::new)).unwrap().into_string().unwrap()
        };
        assert_eq!(path(None), "/links:/ours");
        assert_eq!(path(Some("")), "/links:/ours");
        assert_eq!(path(Some("/a:/b")), "/links:/ours:/a:/b");
    }

    #[test]
    fn the_libraries_of_a_package_come_first_and_those_of_rdma_core_are_left_alone() {
        let root = env::temp_dir().join(format!("verbs-run-libraries-{}", std::process::id()));
        let program = root.join("bin/verbs-run");
        let fill = |folder: &str, content: &str| {
            fs::create_dir_all(root.join(folder)).unwrap();
            for name in LIBRARIES {
                fs::write(root.join(folder).join(name), content).unwrap();
            }
        };
        fill("lib", "rdma-core");
        let why = find_beside(&program).unwrap_err();
        assert!(why.contains("lib/verbs-run") && why.contains("--libraries"), "{why}");
        fill("bin", "V VERBS_SOFT");
        assert_eq!(find_beside(&program), Ok(root.join("bin")));
        fill("lib/verbs-run", "VERBS_SOFT");
        assert_eq!(find_beside(&program), Ok(root.join("lib/verbs-run")));
        fs::remove_file(root.join("lib/libefa.so.1")).unwrap();
        let why = find(Some(&root.join("lib"))).unwrap_err();
        assert!(why.contains("no libefa.so.1 in"), "{why}");
        fs::remove_dir_all(&root).unwrap();
    }
}
