//! [`Xrcd`]: an XRC domain. Contexts of this process that open the same file of a device share one.
//!
//! The engine has only numbers of domains. [`Domains`] counts the users of each handle of a domain,
//! under the device's lock. As in the kernel, a handle can be closed only after the queues created
//! with it, whatever other handles the domain has.
//!
//! # References
//! `ibv_open_xrcd(3)`; IBTA volume 1, annex A14; Linux `drivers/infiniband/core/uverbs_cmd.c`
//! (`ib_uverbs_open_xrcd`, `uverbs_free_xrcd`)

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::sys::stat::fstat;
use roce::engine::{Pd, XrcDomain};
use verbs_core::provider::{Destroy, XrcdOps};
use verbs_core::{Cause, Errno, Error, Result};

use crate::device::Device;
use crate::objects::pd::{foreign, refusal};

/// An XRC domain.
#[derive(Debug)]
pub struct Xrcd {
    device: Arc<Device>,
    handle: XrcHandle,
}

/// A handle of a domain. Its users are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct XrcHandle {
    pub(crate) domain: XrcDomain,
    /// Its number among all handles of the device.
    number: u64,
}

/// The file of a domain.
#[derive(Debug)]
struct File {
    id: FileId,
    /// While a descriptor is open, no other file gets the inode, even if this one is deleted.
    _open: OwnedFd,
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
    file: Option<File>,
    handles: Vec<Handle>,
}

#[derive(Debug)]
struct Handle {
    number: u64,
    /// The number of shared receive queues and queue pairs created or opened with it.
    users: u32,
}

impl Domains {
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

    /// Counts one user less.
    pub(crate) fn leave(&mut self, handle: XrcHandle) {
        if let Some(handle) = self.handle(handle) {
            handle.users -= 1;
        }
    }
}

impl Xrcd {
    /// Opens a new domain, or the domain of a file. The errnos are the kernel's.
    pub(crate) fn open(device: &Arc<Device>, file: Option<BorrowedFd<'_>>, oflags: i32) -> Result<Self> {
        const VERB: &str = "open_xrcd";
        let failed = |errno| device.error(VERB, errno);
        let file = match file {
            Some(file) => {
                let stat = fstat(file).map_err(|errno| failed(errno.into()))?;
                let open = file.try_clone_to_owned().map_err(|error| failed(Errno::from_io(&error)))?;
                Some(File { id: (stat.st_dev, stat.st_ino), _open: open })
            }
            None => None,
        };
        let handle = device.control(VERB, |core, _| {
            let number = core.domains.next_handle;
            core.domains.next_handle += 1;
            let handle = Handle { number, users: 0 };
            if let Some(file) = &file
                && let Some(open) = core.domains.of_file(file.id)
            {
                if oflags & libc::O_EXCL != 0 {
                    return Err(failed(Errno::INVAL));
                }
                open.handles.push(handle);
                return Ok(XrcHandle { domain: open.domain, number });
            }
            if file.is_some() && oflags & libc::O_CREAT == 0 {
                return Err(failed(Errno::AGAIN));
            }
            let pd = core.engine.alloc_pd().map_err(|refused| refusal(device, VERB, refused))?;
            let domains = &mut core.domains;
            let domain = XrcDomain(domains.next);
            domains.next = domains.next.wrapping_add(1);
            domains.open.push(Domain { domain, pd, file, handles: vec![handle] });
            Ok(XrcHandle { domain, number })
        })?;
        Ok(Self { device: Arc::clone(device), handle })
    }

    /// Returns the handle with its domain's number in the engine, if it belongs to this device.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Foreign`] for an XRC domain of another device.
    pub(crate) fn of(&self, device: &Arc<Device>, verb: &'static str) -> Result<XrcHandle> {
        if Arc::ptr_eq(&self.device, device) {
            Ok(self.handle)
        } else {
            Err(foreign(device, verb, "XRC domain"))
        }
    }
}

impl XrcdOps for Xrcd {
    fn handle(&self) -> u32 {
        self.handle.domain.0
    }
}

impl Destroy for Xrcd {
    fn destroy(self) -> Result<(), (Self, Error)> {
        const VERB: &str = "close_xrcd";
        if self.device.is_forked() {
            return Ok(());
        }
        let (device, XrcHandle { domain, number }) = (&self.device, self.handle);
        let closed = device.control(VERB, |core, _| {
            let Some(at) = core.domains.open.iter().position(|open| open.domain == domain) else {
                return Ok(None);
            };
            let Some(open) = core.domains.open.get_mut(at) else { return Ok(None) };
            if open.handles.iter().any(|handle| handle.number == number && handle.users > 0) {
                let by = "shared receive queues or queue pairs";
                return Err(device.error(VERB, Errno::BUSY).because(Cause::InUse { by }));
            }
            open.handles.retain(|handle| handle.number != number);
            if !open.handles.is_empty() {
                return Ok(None);
            }
            let Domain { pd, file, .. } = core.domains.open.swap_remove(at);
            // It has no users left.
            let _ = core.engine.dealloc_pd(pd);
            Ok(file)
        });
        // The file is closed after the lock is released, because the last close may do I/O.
        closed.map(drop).map_err(|error| (self, error))
    }
}
