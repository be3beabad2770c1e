//! Opening a character device by its number. Other crates use it too, for the connection manager's
//! file.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;

use crate::discovery::DevNum;
use crate::errno::Errno;

/// Opens the node at `usual` for reading and writing, or failing that the node in `/dev/char` with
/// the number `dev`.
///
/// # Errors
/// Any errno that `stat(2)` or `open(2)` returns for `usual`; `ENXIO` for any file other than the
/// character device with this number. Such a file is not opened.
pub fn open(usual: &Path, dev: DevNum, flags: OFlag) -> Result<OwnedFd, Errno> {
    open_either(usual, Path::new("/dev/char"), dev, flags)
}

fn open_either(usual: &Path, by_number: &Path, dev: DevNum, flags: OFlag) -> Result<OwnedFd, Errno> {
    let errno = match open_checked(usual, dev, flags) {
        Ok(file) => return Ok(file),
        Err(errno) => errno,
    };
    // The node may be missing or stale.
    if matches!(errno, Errno::NOENT | Errno::NXIO)
        && let Ok(file) = open_checked(&by_number.join(dev.to_string()), dev, flags)
    {
        return Ok(file);
    }
    Err(errno)
}

fn open_checked(path: &Path, dev: DevNum, flags: OFlag) -> Result<OwnedFd, Errno> {
    // Checked before opening, because opening has side effects (a pipe blocks, a watchdog starts),
    // and again afterwards, because the file may have changed.
    check_number(&fs::metadata(path), dev)?;
    let file: File = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags((flags | OFlag::O_CLOEXEC).bits())
        .open(path)
        .map_err(|error| Errno::from_io(&error))?;
    check_number(&file.metadata(), dev)?;
    Ok(file.into())
}

/// Checks that a file is the character device with the number `dev`.
pub(super) fn check_number(metadata: &io::Result<Metadata>, dev: DevNum) -> Result<(), Errno> {
    match metadata {
        Ok(file) if file.file_type().is_char_device() && DevNum::from_rdev(file.rdev()) == dev => Ok(()),
        Ok(_) => Err(Errno::NXIO),
        Err(error) => Err(Errno::from_io(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use nix::sys::stat::Mode;

    use super::*;

    const UVERBS: DevNum = DevNum { major: 231, minor: 192 };
    const NULL: DevNum = DevNum { major: 1, minor: 3 };

    /// A new directory, removed on drop.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("verbs-node-{}-{name}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_a_character_device_with_the_number_is_opened() {
        let directory = Directory::new("only");
        let open = |path: &Path, dev| open_checked(path, dev, OFlag::O_NONBLOCK);
        let (plain, pipe) = (directory.0.join("plain"), directory.0.join("pipe"));
        fs::write(&plain, "").unwrap();
        // Opening a pipe without a writer for reading would block.
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        for path in [Path::new("/dev/null"), &plain, &pipe, &directory.0] {
            assert_eq!(open(path, UVERBS).unwrap_err(), Errno::NXIO, "{}", path.display());
        }
        // A regular file has the number 0:0.
        assert_eq!(open(&plain, DevNum { major: 0, minor: 0 }).unwrap_err(), Errno::NXIO);
        assert_eq!(open(&directory.0.join("missing"), UVERBS).unwrap_err(), Errno::NOENT);
        open(Path::new("/dev/null"), NULL).unwrap();
    }

    #[test]
    fn a_missing_or_stale_node_is_found_by_its_number() {
        let directory = Directory::new("stale");
        let (by_number, missing) = (directory.0.join("char"), directory.0.join("uverbs0"));
        let open = |usual: &Path, dev| open_either(usual, &by_number, dev, OFlag::empty());
        fs::create_dir(&by_number).unwrap();
        assert_eq!(open(&missing, NULL).unwrap_err(), Errno::NOENT);
        symlink("/dev/null", by_number.join(NULL.to_string())).unwrap();
        open(&missing, NULL).unwrap();
        open(Path::new("/dev/zero"), NULL).unwrap();
        // The entry itself may be stale.
        assert_eq!(open(Path::new("/dev/null"), UVERBS).unwrap_err(), Errno::NXIO);
    }
}
