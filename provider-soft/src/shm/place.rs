//! [`Place`]: the names by which devices find each other, either abstract names in a network
//! namespace or sockets in a [`Folder`].
//!
//! Containers have separate network namespaces, so they share no abstract names. They can share a
//! folder. File names contain address, port and slot:
//!
//! ```text
//!   FOLDER/verbs-soft-3-10.0.0.2-4791-17
//! ```
//!
//! File names omit the user ID, because containers may map user IDs differently. They also omit the
//! interface of a link-local address, because interface indices are per network namespace.
//!
//! # Equal addresses
//! Two namespaces may have equal addresses. The slots of a shared address are random, so most such
//! devices still have different names. If a live device already has the name, the next device uses
//! UDP.
//!
//! # Names of dead processes
//! A killed process leaves its socket file, and connections to it are refused. A device first
//! listens under another name and then renames its socket, which atomically replaces such a file.
//! When the device ends, it removes its file, unless another socket has replaced it.
//!
//! # Trust
//! A connection proves the peer's user in any case ([`peers`](super::peers)). A process that can
//! change the folder could only remove or swap names. A device rejects a peer whose identity does
//! not match its name. The folder must nevertheless belong to this user or root, and without the
//! sticky bit no other user may write to it.
//!
//! A forked child does not drop its copy of a device's [`Folder`] (`device/mod.rs`), so the
//! parent's name stays.
//!
//! # References
//! `unix(7)` (pathname sockets), `rename(2)`

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{AtFlags, OFlag, open, renameat};
use nix::sys::socket::{Backlog, UnixAddr, bind, listen};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{AccessFlags, UnlinkatFlags, faccessat, unlinkat};
use verbs_core::Errno;

use super::peers::{PeerId, stream};
use crate::io::address::address_of;
use crate::io::effective_user;
use crate::io::names::{is_connected, pause};

/// The kind of names by which devices find each other.
#[derive(Debug)]
pub(crate) enum Place {
    /// The abstract names of the network namespace.
    Namespace,
    Folder(Box<Folder>),
}

/// A folder with the Unix sockets of devices.
#[derive(Debug)]
pub(crate) struct Folder {
    directory: OwnedFd,
    /// This device's file name, and the identity of its socket file.
    own: Option<(CString, FileId)>,
}

/// The identity of a file: its device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(libc::dev_t, libc::ino_t);

/// The time allowed for an exiting process to close its files.
const ENDING: Duration = Duration::from_millis(500);

impl Place {
    /// Returns a socket that listens under the name of a device.
    ///
    /// # Errors
    /// `EADDRINUSE` if another device has the name; any errno of `socket(2)`, `bind(2)`,
    /// `listen(2)` and `renameat(2)`.
    pub(super) fn listen(&mut self, own: PeerId, scope: u32, port: u16) -> Result<OwnedFd, Errno> {
        let address = self.address(own, scope, port)?;
        // The process that had the slot before may still be closing its files.
        let deadline = Instant::now() + ENDING;
        match self {
            Self::Namespace => {
                let listener = stream()?;
                while let Err(errno) = bind(listener.as_raw_fd(), &address) {
                    if errno != nix::Error::EADDRINUSE {
                        return Err(errno.into());
                    }
                    pause(deadline)?;
                }
                listen(&listener, Backlog::MAXCONN)?;
                Ok(listener)
            }
            Self::Folder(folder) => {
                while is_connected(&stream()?, &address)? {
                    pause(deadline).map_err(|_| Errno::ADDRINUSE)?;
                }
                folder.listen(&file_name(own, port))
            }
        }
    }

    /// Returns the address of a device's socket.
    ///
    /// # Errors
    /// `ENAMETOOLONG`, which no name here causes.
    pub(super) fn address(&self, id: PeerId, scope: u32, port: u16) -> Result<UnixAddr, Errno> {
        Ok(match self {
            Self::Namespace => UnixAddr::new_abstract(super::peers::name(id, scope, port).as_bytes())?,
            Self::Folder(folder) => folder.address(&file_name(id, port))?,
        })
    }

    /// Removes this device's name from the folder before the process exits. Allocates nothing.
    pub(super) fn leave(&self) {
        if let Self::Folder(folder) = self {
            folder.leave();
        }
    }
}

impl Folder {
    /// Opens a folder.
    ///
    /// # Errors
    /// - `EPERM`: the folder belongs neither to this user nor to root, or other users can write to
    ///   it and it has no sticky bit.
    /// - `EACCES`, `EROFS`: this process cannot create files in the folder.
    /// - any other errno of `open(2)`, notably `ENOENT` and `ENOTDIR`.
    // Not inlined: callers without a folder would need 1 KiB of stack for a path.
    #[inline(never)]
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = open(path, flags, Mode::empty())?;
        let FileStat { st_uid, st_mode, .. } = fstat(&directory)?;
        let is_open = st_mode & (Mode::S_IWGRP | Mode::S_IWOTH).bits() != 0;
        let is_sticky = st_mode & Mode::S_ISVTX.bits() != 0;
        if ![0, effective_user()].contains(&st_uid) || is_open && !is_sticky {
            return Err(Errno::PERM);
        }
        faccessat(&directory, ".", AccessFlags::W_OK | AccessFlags::X_OK, AtFlags::AT_EACCESS)?;
        Ok(Self { directory, own: None })
    }

    /// Returns a socket that listens under a name, replacing the file of a dead process.
    #[inline(never)]
    fn listen(&mut self, name: &str) -> Result<OwnedFd, Errno> {
        let listener = stream()?;
        let first = format!("{name}-{:08x}", verbs_core::random::draw()?);
        bind(listener.as_raw_fd(), &self.address(&first)?)?;
        let named = (|| {
            listen(&listener, Backlog::MAXCONN)?;
            let file = self.file(first.as_str())?.ok_or(nix::Error::ENOENT)?;
            renameat(&self.directory, first.as_str(), &self.directory, name)?;
            Ok::<_, nix::Error>(file)
        })();
        match named {
            Ok(file) => {
                self.own = CString::new(name).ok().map(|name| (name, file));
                Ok(listener)
            }
            Err(errno) => {
                let _ = unlinkat(&self.directory, first.as_str(), UnlinkatFlags::NoRemoveDir);
                Err(errno.into())
            }
        }
    }

    /// Returns the socket address for a file name, relative to the folder's descriptor, because a
    /// whole path may be too long for an address.
    fn address(&self, name: &str) -> nix::Result<UnixAddr> {
        UnixAddr::new(format!("/proc/self/fd/{}/{name}", self.directory.as_raw_fd()).as_str())
    }

    /// Returns the identity of the socket file with this name, if it exists.
    fn file<P: ?Sized + nix::NixPath>(&self, name: &P) -> nix::Result<Option<FileId>> {
        match fstatat(&self.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) if SFlag::from_bits_truncate(stat.st_mode).contains(SFlag::S_IFSOCK) => {
                Ok(Some(FileId(stat.st_dev, stat.st_ino)))
            }
            Ok(_) | Err(nix::Error::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    #[inline(never)]
    fn leave(&self) {
        if let Some((name, own)) = &self.own
            && self.file(name.as_c_str()) == Ok(Some(*own))
        {
            let _ = unlinkat(&self.directory, name.as_c_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Returns the file name for a device's socket in a folder.
fn file_name(id: PeerId, port: u16) -> String {
    format!("verbs-soft-3-{}-{port}-{}", address_of(id.gid), id.slot)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
    use std::path::PathBuf;

    use super::*;

    /// A temporary folder that is removed with its contents.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("verbs-soft-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            let scratch = Self(path);
            scratch.set_mode(0o700);
            scratch
        }

        fn set_mode(&self, mode: u32) {
            fs::set_permissions(&self.0, fs::Permissions::from_mode(mode)).unwrap();
        }

        fn open(&self) -> Result<Place, Errno> {
            Folder::open(&self.0).map(|folder| Place::Folder(Box::new(folder)))
        }

        fn files(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const ID: PeerId = PeerId { gid: [0xfd; 16], slot: 7 };

    fn is_reached(place: &Place, scope: u32) -> bool {
        is_connected(&stream().unwrap(), &place.address(ID, scope, 4791).unwrap()).unwrap()
    }

    #[test]
    fn only_a_folder_that_no_other_user_can_change_is_used() {
        let scratch = Scratch::new("modes");
        for (mode, is_used) in [(0o700, true), (0o755, true), (0o777, false), (0o720, false), (0o1777, true)]
        {
            scratch.set_mode(mode);
            let expected = if is_used { Ok(()) } else { Err(Errno::PERM) };
            assert_eq!(scratch.open().map(|_| ()), expected, "{mode:o}");
        }
        let open = |path: &Path| Folder::open(path).map(|_| ());
        assert_eq!(open(&scratch.0.join("missing")), Err(Errno::NOENT));
        fs::write(scratch.0.join("file"), "").unwrap();
        assert_eq!(open(&scratch.0.join("file")), Err(Errno::NOTDIR));
    }

    #[test]
    fn a_living_device_keeps_its_name_and_a_dead_one_loses_it() {
        let scratch = Scratch::new("names");
        let (mut first, mut second) = (scratch.open().unwrap(), scratch.open().unwrap());
        assert!(!is_reached(&first, 0));
        let listener = first.listen(ID, 1, 4791).unwrap();
        assert!(is_reached(&second, 2), "the interface does not matter");
        assert_eq!(second.listen(ID, 2, 4791).map(|_| ()), Err(Errno::ADDRINUSE));
        assert_eq!(scratch.files(), 1, "nothing of the attempt is left");
        // As if the process were killed: the name stays.
        drop(listener);
        assert!(scratch.files() == 1 && !is_reached(&second, 2));
        let _listener = second.listen(ID, 2, 4791).unwrap();
        assert!(scratch.files() == 1 && is_reached(&second, 2));
        drop(first);
        assert!(is_reached(&second, 2), "it removes no name of another socket");
        drop(second);
        assert_eq!(scratch.files(), 0);
    }

    #[test]
    fn a_link_in_place_of_a_name_is_replaced_and_not_followed() {
        let scratch = Scratch::new("links");
        let mut place = scratch.open().unwrap();
        let name = scratch.0.join(file_name(ID, 4791));
        symlink(scratch.0.join("target"), &name).unwrap();
        let _listener = place.listen(ID, 0, 4791).unwrap();
        assert!(scratch.files() == 1 && fs::symlink_metadata(name).unwrap().file_type().is_socket());
    }

    #[test]
    fn the_path_of_a_folder_may_be_longer_than_an_address() {
        let scratch = Scratch::new(&"long".repeat(50));
        let mut place = scratch.open().unwrap();
        let _listener = place.listen(ID, 0, 4791).unwrap();
        assert!(is_reached(&place, 0));
    }
}
