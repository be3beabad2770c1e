//! [`Layout`]: adds folders where the file system has no room for them.
//!
//! Nothing can be created in sysfs, and files created in `/dev` would appear on the whole machine.
//! A folder is therefore laid anew: a file system in memory covers it, and each of its entries is
//! mounted into that under its old name. Paths through them, such as the links of
//! `/sys/class/net`, lead where they led before.
//!
//! Entries that the kernel adds to such a folder later are not visible, unlike later entries of
//! its subfolders.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

/// The folders that were laid anew in this mount namespace.
#[derive(Debug, Default)]
pub struct Layout {
    laid: Vec<PathBuf>,
}

impl Layout {
    /// Makes a folder writable without an effect outside this mount namespace. It has the entries
    /// that were there, as far as `keeps` returns true for the name.
    ///
    /// # Errors
    /// The errno of a mount, or of creating a folder; `ENOENT` if its parent does not exist.
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
        // The descriptor leads below the mount.
        let below = PathBuf::from(format!("/proc/self/fd/{}", old.as_raw_fd()));
        let (makers, others): (Vec<_>, Vec<_>) = entries
            .iter()
            .filter(|entry| keeps(&entry.name))
            .partition(|entry| entry.kind == Kind::File && is_terminal_maker(&below.join(&entry.name)));
        // First, while there are few mounts.
        if !makers.is_empty() {
            put_terminal_maker(&below, path)?;
        }
        others.into_iter().try_for_each(|entry| entry.put(&below, path))
    }
}

/// An entry of a folder.
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
    /// Creates the entry in a folder: as a mount of the one below, or as the same link.
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

/// Returns whether a file is `/dev/ptmx`, which makes terminals.
fn is_terminal_maker(path: &Path) -> bool {
    let is_named = path.file_name() == Some(OsStr::new(TERMINAL_MAKER));
    is_named && path.metadata().is_ok_and(|of| of.file_type().is_char_device() && of.rdev() == makedev(5, 2))
}

/// Creates `/dev/ptmx` in a folder. A mount of the file alone makes no terminals: the kernel looks
/// for `pts` beside the file, in the file system that has it. So it is a new file, or a link to the
/// old one in a mount of the whole folder if this user may create no device files.
fn put_terminal_maker(below: &Path, folder: &Path) -> io::Result<()> {
    let (to, mode) = (folder.join(TERMINAL_MAKER), Mode::from_bits_truncate(0o666));
    if mknod(&to, SFlag::S_IFCHR, mode, makedev(5, 2)).is_ok() {
        return fs::set_permissions(&to, below.join(TERMINAL_MAKER).metadata()?.permissions());
    }
    let whole = folder.join(WHOLE);
    fs::create_dir(&whole)?;
    bind(below, &whole)?;
    // The mount of the new folder above the old one, which was copied with it.
    umount2(&whole, MntFlags::MNT_DETACH)?;
    symlink(Path::new(WHOLE).join(TERMINAL_MAKER), &to)
}

/// The file that makes terminals.
const TERMINAL_MAKER: &str = "ptmx";

/// The folder with a mount of the old folder.
const WHOLE: &str = ".verbs-run";

/// Mounts a file or folder, with the mounts in it, at another place.
///
/// # Errors
/// Any errno of `mount(2)`.
pub fn bind(from: &Path, to: &Path) -> io::Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
    Ok(())
}

/// Creates a device file that does nothing. Programs check that it is a character device which they
/// may open. A file with the number of a uverbs device could be one of the kernel's.
///
/// # Errors
/// The errno of creating the file or of the mount.
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
