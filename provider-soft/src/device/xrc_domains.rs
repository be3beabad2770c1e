//! [`Domains`]: the XRC domains of a device. It counts the users of each handle of a domain, under
//! the device's lock; the engine has only numbers of domains.
//!
//! # References
//! `ibv_open_xrcd(3)`; Linux `drivers/infiniband/core/uverbs_cmd.c` (`ib_uverbs_open_xrcd`,
//! `uverbs_free_xrcd`)

use std::os::fd::{BorrowedFd, OwnedFd};

use nix::sys::stat::fstat;
use roce::engine::{Pd, XrcDomain};
use verbs_core::{Errno, Error, Result};

use crate::device::sink::InUse;

/// A handle of a domain. Its users are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct XrcHandle {
    pub(crate) domain: XrcDomain,
    /// Its number among all handles of the device.
    number: u64,
}

/// The file of a domain.
#[derive(Debug)]
pub(crate) struct DomainFile {
    id: FileId,
    /// While a descriptor is open, no other file gets the inode, even if this one is deleted.
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
    open: Vec<Domain>,
}

#[derive(Debug)]
struct Domain {
    domain: XrcDomain,
    /// The protection domain of its targets. Their requests use the one of a shared receive queue.
    pd: Pd,
    file: Option<DomainFile>,
    handles: Vec<Handle>,
}

#[derive(Debug)]
struct Handle {
    number: u64,
    /// The number of shared receive queues and queue pairs created or opened with it.
    users: u32,
}

impl Domains {
    /// Opens a new domain, or the domain of a file. `alloc_pd` allocates the protection domain of a
    /// new one's targets.
    ///
    /// # Errors
    /// The result of `failed` for the kernel's errno: `EINVAL` with `O_EXCL` for a file with a
    /// domain, `EAGAIN` without `O_CREAT` for a file without one, `ENOMEM`. Any error of
    /// `alloc_pd`.
    pub(crate) fn open(
        &mut self,
        file: Option<DomainFile>,
        oflags: i32,
        alloc_pd: impl FnOnce() -> Result<Pd>,
        failed: impl FnOnce(Errno) -> Error,
    ) -> Result<XrcHandle> {
        let number = self.next_handle;
        self.next_handle += 1;
        let handle = Handle { number, users: 0 };
        if let Some(file) = &file
            && let Some(open) = self.of_file(file.id)
        {
            if oflags & libc::O_EXCL != 0 {
                return Err(failed(Errno::INVAL));
            }
            open.handles.try_reserve(1).map_err(|_| failed(Errno::NOMEM))?;
            open.handles.push(handle);
            return Ok(XrcHandle { domain: open.domain, number });
        }
        if file.is_some() && oflags & libc::O_CREAT == 0 {
            return Err(failed(Errno::AGAIN));
        }
        self.open.try_reserve(1).map_err(|_| failed(Errno::NOMEM))?;
        let pd = alloc_pd()?;
        let domain = XrcDomain(self.next);
        self.next = self.next.wrapping_add(1);
        self.open.push(Domain { domain, pd, file, handles: vec![handle] });
        Ok(XrcHandle { domain, number })
    }

    /// Closes a handle. If it was the domain's last, returns the protection domain and the file of
    /// the domain.
    ///
    /// # Errors
    /// [`InUse`] while shared receive queues or queue pairs created with the handle exist.
    pub(crate) fn close(
        &mut self,
        XrcHandle { domain, number }: XrcHandle,
    ) -> Result<Option<(Pd, Option<DomainFile>)>, InUse> {
        let Some(at) = self.open.iter().position(|open| open.domain == domain) else {
            return Ok(None);
        };
        let Some(open) = self.open.get_mut(at) else { return Ok(None) };
        if open.handles.iter().any(|handle| handle.number == number && handle.users > 0) {
            return Err(InUse);
        }
        open.handles.retain(|handle| handle.number != number);
        if !open.handles.is_empty() {
            return Ok(None);
        }
        let Domain { pd, file, .. } = self.open.swap_remove(at);
        Ok(Some((pd, file)))
    }

    fn get(&mut self, domain: XrcDomain) -> Option<&mut Domain> {
        self.open.iter_mut().find(|open| open.domain == domain)
    }

    fn of_file(&mut self, id: FileId) -> Option<&mut Domain> {
        self.open.iter_mut().find(|open| open.file.as_ref().is_some_and(|file| file.id == id))
    }

    /// Returns the protection domain of a domain's targets.
    pub(crate) fn pd(&mut self, domain: XrcDomain) -> Option<Pd> {
        Some(self.get(domain)?.pd)
    }

    fn handle(&mut self, XrcHandle { domain, number }: XrcHandle) -> Option<&mut Handle> {
        self.get(domain)?.handles.iter_mut().find(|handle| handle.number == number)
    }

    /// Counts a shared receive queue or a queue pair of a handle.
    pub(crate) fn enter(&mut self, handle: XrcHandle) {
        if let Some(handle) = self.handle(handle) {
            handle.users += 1;
        }
    }

    /// Counts one user fewer.
    pub(crate) fn leave(&mut self, handle: XrcHandle) {
        if let Some(handle) = self.handle(handle) {
            handle.users -= 1;
        }
    }
}
