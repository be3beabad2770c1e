//! [`CompChannel`]: where completion queues say that there is something to poll.
//!
//! C counts the events that a program has seen and makes destroying a completion queue wait until all are acknowledged,
//! for its events are pointers. Here an event is an id that goes stale: the kernel drops a queue's unread events when it
//! destroys the queue, and one that was read before finds nothing any more. So there is nothing to acknowledge.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use verbs_core::provider::{ContextOps, Provider};
use verbs_core::{Cause, Errno, Error, Result};

use crate::Context;
use crate::registry::{Child, CqId, Registry};

/// Where completion queues say that there is something to poll, once [`Cq::req_notify`](crate::Cq::req_notify) asked
/// them to. One channel serves any number of queues of its device.
///
/// The pattern that misses nothing: `req_notify`, poll until empty, wait for the event, and again.
///
/// # References
/// `ibv_create_comp_channel(3)`
#[doc(alias = "ibv_comp_channel")]
#[derive(Debug)]
pub struct CompChannel {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    file: File,
    registry: Arc<Registry>,
    _context: Child,
}

/// Something arrived in a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CqEvent {
    /// In which: the one with this [`id`](crate::Cq::id).
    pub cq: CqId,
}

impl CompChannel {
    pub(crate) fn create<P: Provider>(context: &Context<P>) -> Result<Self> {
        let file = context.raw().create_comp_channel()?.into();
        let registry = Arc::clone(context.registry());
        let context = context.child(&registry.channel_tally);
        Ok(Self { inner: Arc::new(Inner { file, registry, _context: context }) })
    }

    /// The next event: waits for one, unless the channel is non-blocking.
    ///
    /// Events of queues that are gone are skipped. Threads may wait together; each event goes to one of them.
    ///
    /// # Errors
    /// `EAGAIN` where there is none and the channel is non-blocking; `EIO` where the device is gone.
    ///
    /// # References
    /// `ibv_get_cq_event(3)`
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn next_event(&self) -> Result<CqEvent> {
        loop {
            let mut record = [0; size_of::<u64>()];
            read_record(&self.inner.file, &mut record, "get_cq_event", &self.inner.registry)?;
            if let Some(cq) = self.inner.registry.cq(u64::from_ne_bytes(record)) {
                return Ok(CqEvent { cq });
            }
        }
    }

    /// Makes [`next_event`](Self::next_event) wait, or answer `EAGAIN`.
    ///
    /// # Errors
    /// What `fcntl(2)` answers.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        set_nonblocking(&self.inner.file, nonblocking, &self.inner.registry)
    }

    /// Closes it, if no completion queue uses it. Dropping does the same once they are gone.
    ///
    /// # Errors
    /// [`Cause::InUse`], and the channel.
    ///
    /// # References
    /// `ibv_destroy_comp_channel(3)`
    #[doc(alias = "ibv_destroy_comp_channel")]
    pub fn close(self) -> Result<(), (Self, Error)> {
        match Arc::try_unwrap(self.inner) {
            Ok(_) => Ok(()),
            Err(inner) => {
                let error = inner.registry.in_use("destroy_comp_channel", "completion queues");
                Err((Self { inner }, error))
            }
        }
    }

    /// What a completion queue holds of it.
    pub(crate) fn share(&self, registry: &Arc<Registry>) -> Result<Arc<Inner>> {
        if !Arc::ptr_eq(&self.inner.registry, registry) {
            return Err(registry.foreign("create_cq", "completion channel"));
        }
        Ok(Arc::clone(&self.inner))
    }
}

/// Readable when there is an event.
impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }
}

/// Reads one record of the kernel's, which never gives less.
pub(crate) fn read_record(
    mut file: &File,
    record: &mut [u8],
    verb: &'static str,
    registry: &Registry,
) -> Result<()> {
    loop {
        match file.read(record) {
            Ok(len) if len == record.len() => return Ok(()),
            Ok(_) => {
                let cause = Cause::BadReply { what: "an event of the wrong length" };
                return Err(registry.error(verb, Errno::IO).because(cause));
            }
            Err(error) => match Errno::from_io(&error) {
                Errno::INTR => {}
                errno => return Err(registry.error(verb, errno)),
            },
        }
    }
}

pub(crate) fn set_nonblocking(file: &File, nonblocking: bool, registry: &Registry) -> Result<()> {
    let error = |errno: nix::errno::Errno| registry.error("set_nonblocking", errno.into());
    let mut flags = OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL).map_err(error)?);
    flags.set(OFlag::O_NONBLOCK, nonblocking);
    fcntl(file, FcntlArg::F_SETFL(flags)).map_err(error)?;
    Ok(())
}
