//! [`Domains`]: the XRC domains of a device. The users of each domain handle are counted under the
//! device's lock. The engine knows only domain numbers.
//!
//! # References
//! `ibv_open_xrcd(3)`; Linux `drivers/infiniband/core/uverbs_cmd.c` (`ib_uverbs_open_xrcd`,
//! `uverbs_free_xrcd`)

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::sys::stat::fstat;
use roce::engine::{Pd, XrcDomain};
use verbs_core::{Errno, Error, Result, room};

use crate::device::sink::InUse;

/// A handle to a domain. The users of each handle are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct XrcHandle {
    pub(crate) domain: XrcDomain,
    /// The handle's number among all handles of the device.
    number: u64,
}

/// The open file that identifies a domain.
#[derive(Debug)]
pub(crate) struct DomainFile {
    id: FileId,
    /// Kept open: even if the file is deleted, no other file can then get the same inode.
    _open: OwnedFd,
}

impl DomainFile {
    /// Duplicates a file's descriptor and reads the file's identity.
    ///
    /// # Errors
    /// Any errno of `fstat(2)` and of duplicating the descriptor, notably `EMFILE`.
    pub(crate) fn from_file(file: BorrowedFd<'_>) -> Result<Self, Errno> {
        let stat = fstat(file)?;
        let open = file.try_clone_to_owned().map_err(|error| Errno::from_io(&error))?;
        Ok(Self { id: (stat.st_dev, stat.st_ino), _open: open })
    }
}

/// The device and the inode of a file.
type FileId = (u64, u64);

/// The XRC domains of a device.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    next: u32,
    next_handle: u64,
    /// Open domains by number.
    open: BTreeMap<u32, Domain>,
    of_files: BTreeMap<FileId, XrcDomain>,
}

#[derive(Debug)]
struct Domain {
    /// The protection domain of the domain's targets. The requests of targets use the protection
    /// domain of a shared receive queue.
    pd: Pd,
    file: Option<DomainFile>,
    /// The number of shared receive queues and queue pairs created or opened with each handle.
    handles: BTreeMap<u64, u32>,
}

impl Domains {
    /// Opens a new domain, or the domain associated with a file. For a new domain, `alloc_pd`
    /// allocates the protection domain of its targets.
    ///
    /// # Errors
    /// The result of `failed` with the same errno as the kernel's: `EINVAL` with `O_EXCL` for a
    /// file that already has a domain, `EAGAIN` without `O_CREAT` for a file without a domain,
    /// `ENOMEM`. Any error of `alloc_pd`.
    pub(crate) fn open(
        &mut self,
        file: Option<DomainFile>,
        oflags: i32,
        alloc_pd: impl FnOnce() -> Result<Pd>,
        failed: impl FnOnce(Errno) -> Error,
    ) -> Result<XrcHandle> {
        let number = self.next_handle;
        self.next_handle += 1;
        let same = file.as_ref().and_then(|file| self.of_files.get(&file.id)).copied();
        if let Some(domain) = same
            && let Some(open) = self.open.get_mut(&domain.0)
        {
            if oflags & libc::O_EXCL != 0 {
                return Err(failed(Errno::INVAL));
            }
            room::check(room::CALL).map_err(failed)?;
            open.handles.insert(number, 0);
            return Ok(XrcHandle { domain, number });
        }
        if file.is_some() && oflags & libc::O_CREAT == 0 {
            return Err(failed(Errno::AGAIN));
        }
        room::check(room::CALL).map_err(failed)?;
        let pd = alloc_pd()?;
        let domain = XrcDomain(self.next);
        self.next = self.next.wrapping_add(1);
        if let Some(file) = &file {
            self.of_files.insert(file.id, domain);
        }
        self.open.insert(domain.0, Domain { pd, file, handles: BTreeMap::from([(number, 0)]) });
        Ok(XrcHandle { domain, number })
    }

    /// Closes a handle. If it was the domain's last handle, returns the protection domain and the
    /// file of the domain.
    ///
    /// # Errors
    /// [`InUse`] while shared receive queues or queue pairs created with the handle exist.
    pub(crate) fn close(
        &mut self,
        XrcHandle { domain, number }: XrcHandle,
    ) -> Result<Option<(Pd, Option<DomainFile>)>, InUse> {
        let Some(open) = self.open.get_mut(&domain.0) else { return Ok(None) };
        if open.handles.get(&number).is_some_and(|users| *users > 0) {
            return Err(InUse);
        }
        open.handles.remove(&number);
        if !open.handles.is_empty() {
            return Ok(None);
        }
        let Some(Domain { pd, file, .. }) = self.open.remove(&domain.0) else { return Ok(None) };
        if let Some(file) = &file {
            self.of_files.remove(&file.id);
        }
        Ok(Some((pd, file)))
    }

    /// Returns the protection domain of a domain's targets.
    pub(crate) fn pd(&mut self, domain: XrcDomain) -> Option<Pd> {
        Some(self.open.get(&domain.0)?.pd)
    }

    fn users(&mut self, XrcHandle { domain, number }: XrcHandle) -> Option<&mut u32> {
        self.open.get_mut(&domain.0)?.handles.get_mut(&number)
    }

    /// Counts a shared receive queue or a queue pair as a user of a handle.
    pub(crate) fn enter(&mut self, handle: XrcHandle) {
        if let Some(users) = self.users(handle) {
            *users += 1;
        }
    }

    /// Removes a user of a handle from the count.
    pub(crate) fn leave(&mut self, handle: XrcHandle) {
        if let Some(users) = self.users(handle) {
            *users -= 1;
        }
    }
}
