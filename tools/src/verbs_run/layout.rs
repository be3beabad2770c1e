//! [`Layout`]: adds folders where the file system does not allow it.
//!
//! Nothing can be created in sysfs, and files created in `/dev` would appear on the whole machine.
//! Such a folder is therefore replaced: a file system in memory covers it, and each of its entries
//! is mounted there under its old name. Paths through these entries, such as the links in
//! `/sys/class/net`, still lead to the same targets.
//!
//! Entries that the kernel adds to a replaced folder later are not visible. Entries that it adds to
//! subfolders are visible.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

/// The folders that have been replaced in this mount namespace.
#[derive(Debug, Default)]
pub struct Layout {
    laid: Vec<PathBuf>,
}

impl Layout {
    /// Makes a folder writable without an effect outside this mount namespace. Keeps the entries
    /// for whose names `keeps` returns true.
    ///
    /// # Errors
    /// Any errno from mounting or creating a folder; `ENOENT` if the folder's parent does not
    /// exist.
    pub fn folder(&mut self, path: &Path, keeps: &dyn Fn(&OsStr) -> bool) -> io::Result<()> {
        if path.is_dir() {
            return self.lay(path, keeps);
        }
        let parent = path.parent().unwrap_or(path);
        if !self.laid.iter().any(|laid| laid == parent) {
            self.lay(parent, &|_| true)?;
        }
        fs::create_dir(path)
    }

    fn lay(&mut self, path: &Path, keeps: &dyn Fn(&OsStr) -> bool) -> io::Result<()> {
        let old = open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        let entries = entries(path)?;
        let mode = format!("mode={:o}", path.metadata()?.mode() & 0o7777);
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
        mount(Some("verbs-run"), path, Some("tmpfs"), flags, Some(&*mode))?;
        self.laid.push(path.to_owned());
        // The descriptor leads to the folder below the mount.
        let below = PathBuf::from(format!("/proc/self/fd/{}", old.as_raw_fd()));
        let (makers, others): (Vec<_>, Vec<_>) = entries
            .iter()
            .filter(|entry| keeps(&entry.name))
            .partition(|entry| entry.kind == Kind::File && is_terminal_maker(&below.join(&entry.name)));
        // This happens first, while there are few mounts.
        if !makers.is_empty() {
            put_terminal_maker(&below, path)?;
        }
        others.into_iter().try_for_each(|entry| entry.put(&below, path))
    }
}

/// An entry in a folder.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    name: OsString,
    kind: Kind,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Link(PathBuf),
    Folder,
    /// A file, device, socket or pipe.
    File,
}

fn entries(folder: &Path) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    for entry in folder.read_dir()? {
        let entry = entry?;
        let kind = entry.file_type().and_then(|of| {
            Ok(match () {
                () if of.is_symlink() => Kind::Link(fs::read_link(entry.path())?),
                () if of.is_dir() => Kind::Folder,
                () => Kind::File,
            })
        });
        match kind {
            Ok(kind) => found.push(Entry { name: entry.file_name(), kind }),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Returns whether an entry has vanished since its folder was read.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO))
}

impl Entry {
    /// Creates the entry in a folder, as a mount of the original or as the same link.
    fn put(&self, below: &Path, folder: &Path) -> io::Result<()> {
        let (from, to) = (below.join(&self.name), folder.join(&self.name));
        match &self.kind {
            Kind::Link(target) => return symlink(target, &to),
            Kind::Folder => fs::create_dir(&to)?,
            Kind::File => drop(File::create_new(&to)?),
        }
        match bind(&from, &to) {
            Err(error) if is_gone(&error) => match self.kind {
                Kind::Folder => fs::remove_dir(&to),
                _ => fs::remove_file(&to),
            },
            result => result,
        }
    }
}

/// Returns whether a file is `/dev/ptmx`, which creates terminals.
fn is_terminal_maker(path: &Path) -> bool {
    let is_named = path.file_name() == Some(OsStr::new(TERMINAL_MAKER));
    is_named && path.metadata().is_ok_and(|of| of.file_type().is_char_device() && of.rdev() == makedev(5, 2))
}

/// Creates `/dev/ptmx` in a folder. A mount of the file alone cannot create terminals, because the
/// kernel looks for `pts` beside the file, in the file's original file system. The function
/// therefore creates a new file. If this user may not create device files, it creates a link to the
/// old file in a mount of the whole folder.
fn put_terminal_maker(below: &Path, folder: &Path) -> io::Result<()> {
    let (to, mode) = (folder.join(TERMINAL_MAKER), Mode::from_bits_truncate(0o666));
    if mknod(&to, SFlag::S_IFCHR, mode, makedev(5, 2)).is_ok() {
        return fs::set_permissions(&to, below.join(TERMINAL_MAKER).metadata()?.permissions());
    }
    let whole = folder.join(WHOLE);
    fs::create_dir(&whole)?;
    bind(below, &whole)?;
    // Removes the new folder's mount, which the recursive mount has copied above the old folder.
    umount2(&whole, MntFlags::MNT_DETACH)?;
    symlink(Path::new(WHOLE).join(TERMINAL_MAKER), &to)
}

/// The file that creates terminals.
const TERMINAL_MAKER: &str = "ptmx";

/// The folder where the old folder is mounted.
const WHOLE: &str = ".verbs-run";

/// Mounts a file or folder, including the mounts in it, at another path.
///
/// # Errors
/// Any errno from `mount(2)`.
pub fn bind(from: &Path, to: &Path) -> io::Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
    Ok(())
}

/// Creates a device file that does nothing. Programs check that it is a character device and that
/// they may open it. A file with the number of a uverbs device could belong to the kernel's device.
///
/// # Errors
/// Any errno from creating the file or from mounting.
pub fn device(path: &Path) -> io::Result<()> {
    drop(File::create_new(path)?);
    bind(Path::new("/dev/null"), path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_links_folders_and_files() {
        let root = std::env::temp_dir().join(format!("verbs-run-layout-{}", std::process::id()));
        fs::create_dir_all(root.join("folder")).unwrap();
        fs::write(root.join("file"), "").unwrap();
        symlink("../elsewhere", root.join("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        let mut found = entries(&root).unwrap();
        found.sort();
        let entry = |name: &str, kind| Entry { name: name.into(), kind };
        let expected = [
            entry("file", Kind::File),
            entry("folder", Kind::Folder),
            entry("link", Kind::Link("../elsewhere".into())),
            entry("socket", Kind::File),
        ];
        assert_eq!(found, expected);
        fs::remove_dir_all(&root).unwrap();
    }
}
