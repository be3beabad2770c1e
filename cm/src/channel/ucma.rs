//! [`Ucma`]: an open file of the connection manager.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use verbs::{Cause, Errno, Error, Result};

use super::fd::FdChannel;
use super::{Channel, Command, open};

/// The oldest supported ABI.
pub(crate) const MIN_ABI: u32 = 3;

/// The newest supported ABI.
pub(crate) const MAX_ABI: u32 = uverbs_abi::rdma_user_cm::RDMA_USER_CM_ABI_VERSION;

/// An open file of the connection manager, with the features of its kernel.
#[derive(Debug)]
pub(crate) struct Ucma {
    channel: Box<dyn Channel>,
    abi_version: u32,
    /// Whether the kernel accepts InfiniBand addresses ([`takes_ib`](crate::cmd::probe::takes_ib)).
    pub(crate) takes_ib: OnceLock<bool>,
    /// The former files of listeners that have moved here, while these listeners exist. When a
    /// listener moves, the kernel moves the events of unread requests but leaves the requests on
    /// the old file.
    former: Mutex<Vec<Weak<Self>>>,
}

impl Ucma {
    /// Opens the file.
    ///
    /// # Errors
    /// [`Cause::File`] if the file is missing or cannot be opened; `ENOSYS` for an unknown ABI; the
    /// error states the kernel's version and the supported versions.
    pub(crate) fn open() -> Result<Self> {
        let (fd, abi_version) = open::open()?;
        Self::new(FdChannel::new(fd), abi_version)
    }

    /// Creates a connection manager on a channel.
    ///
    /// # Errors
    /// `ENOSYS` for an unknown ABI; the error states the kernel's version and the supported
    /// versions.
    pub(crate) fn new(channel: impl Channel + 'static, abi_version: u32) -> Result<Self> {
        if !(MIN_ABI..=MAX_ABI).contains(&abi_version) {
            let reason = format!(
                "the kernel's rdma_cm speaks ABI version {abi_version}, this library {MIN_ABI} to {MAX_ABI}"
            );
            let cause = Cause::Other { reason: reason.into() };
            return Err(Error::new("create_event_channel", "", Errno::NOSYS).because(cause));
        }
        Ok(Self {
            channel: Box::new(channel),
            abi_version,
            takes_ib: OnceLock::new(),
            former: Mutex::default(),
        })
    }

    /// Sends a command on behalf of a verb.
    ///
    /// # Errors
    /// The errors of [`Channel::write`], with the name of the verb.
    pub(crate) fn write(&self, verb: &'static str, mut command: Command<'_>) -> Result<()> {
        self.channel.write(&mut command).map_err(|errno| Error::new(verb, "", errno))
    }

    /// Returns whether the kernel computes the INIT attributes of queue pairs (ABI 4).
    pub(crate) fn computes_init(&self) -> bool {
        self.abi_version > MIN_ABI
    }

    /// Records that a listener has moved here from another file.
    pub(crate) fn has_come_from(&self, file: &Arc<Self>) {
        let mut former = self.former();
        former.retain(|file| file.strong_count() > 0);
        if !former.iter().any(|known| known.as_ptr() == Arc::as_ptr(file)) {
            former.push(Arc::downgrade(file));
        }
    }

    /// Returns the former files of listeners that have moved here.
    pub(crate) fn former_files(&self) -> Vec<Arc<Self>> {
        self.former().iter().filter_map(Weak::upgrade).collect()
    }

    fn former(&self) -> MutexGuard<'_, Vec<Weak<Self>>> {
        self.former.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the file, which is readable while there is an event.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Returns the file descriptor.
    pub(crate) fn number(&self) -> u32 {
        self.channel.number()
    }
}
