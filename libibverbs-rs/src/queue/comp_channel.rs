//! [`CompChannel`]: a file that signals new completions in completion queues.
//!
//! In C, an event is a pointer to its queue, so destroying a completion queue waits until the
//! program has acknowledged all its events. Here an event is an id that becomes stale: the kernel
//! discards a queue's unread events when it destroys the queue, and events read before that no
//! longer name a queue. There is nothing to acknowledge.
//!
//! The file never blocks: [`next_event`](CompChannel::next_event) returns `None` if there is no
//! event, and [`wait`](CompChannel::wait) waits for one.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use verbs_core::Result;
use verbs_core::provider::{ContextOps, Provider, WaitOps};

use crate::device::context::Context;
use crate::device::event_file::{read_record, set_nonblocking, wait};
use crate::handle::error::HandleError;
use crate::handle::registry::{Child, CqId, Registry};

/// A file that signals new completions of armed completion queues
/// ([`Cq::req_notify`](crate::Cq::req_notify)). One channel serves any number of queues of its
/// device.
///
/// A queue raises one event each time it is armed. To miss no completion, arm the queue first and
/// then poll it until it is empty ([`Cq::arm`](crate::Cq::arm) does both). Then wait for an event
/// and repeat this for the queue it names:
#[cfg_attr(feature = "soft", doc = "```")]
#[cfg_attr(not(feature = "soft"), doc = "```ignore")]
/// use std::collections::HashMap;
/// use verbs::{Cq, CqId, CqInit};
///
/// # fn main() -> Result<(), verbs::Error> {
/// let context = verbs::soft::auto()?.open()?;
/// let channel = context.create_comp_channel()?;
/// let init = CqInit { channel: Some(&channel), ..CqInit::new(64) };
/// let mut cqs = HashMap::new();
/// for _ in 0..3 {
///     let cq = context.create_cq(&init)?;
///     cqs.insert(cq.id(), cq);
/// }
///
/// fn serve(cq: &mut Cq) -> Result<(), verbs::Error> {
///     let mut completions = cq.arm(false)?;
///     while let Some(completion) = completions.next() {
///         println!("{}: {}", completion.wr_id(), completion.status());
///     }
///     Ok(())
/// }
///
/// // Each queue once before the first wait, because its completions may be there already.
/// for cq in cqs.values_mut() {
///     serve(cq)?;
/// }
/// # let limit = Some(std::time::Duration::ZERO);
/// # /*
/// let limit = None;
/// # */
/// while let Some(event) = channel.wait(limit)? {
///     if let Some(cq) = cqs.get_mut(&event.cq) {
///         serve(cq)?;
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// In an event loop, the descriptor is readable when there is an event ([`AsFd`], [`AsRawFd`]); it
/// is non-blocking. A loop whose descriptor is edge-triggered reads events until
/// [`next_event`](Self::next_event) returns `None`.
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
    /// The device, if a thread that waits can do the device's work.
    waits: Option<Arc<dyn WaitOps>>,
    registry: Arc<Registry>,
    _context: Child,
}

/// An event: a completion arrived in an armed completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CqEvent {
    /// The [`id`](crate::Cq::id) of the completion queue.
    pub cq: CqId,
}

impl<P: Provider> Context<P> {
    /// Creates a completion channel: a file that signals new completions in the queues that use it.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EMFILE` if the process has no descriptor left.
    ///
    /// # References
    /// `ibv_create_comp_channel(3)`
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> Result<CompChannel> {
        CompChannel::create(self)
    }
}

impl CompChannel {
    pub(crate) fn create<P: Provider>(context: &Context<P>) -> Result<Self> {
        let device = context.creating("create_comp_channel")?.device();
        let (file, waits) = (device.create_comp_channel()?.into(), device.waits());
        let registry = Arc::clone(context.registry());
        set_nonblocking(&file, "create_comp_channel", &registry)?;
        let context = context.child(&registry.channel_tally);
        Ok(Self { inner: Arc::new(Inner { file, waits, registry, _context: context }) })
    }

    /// Returns the next event; `None` if no event is pending. Never waits, unlike
    /// [`wait`](Self::wait).
    ///
    /// Events of destroyed queues are skipped. Several threads may call this at the same time; each
    /// event goes to one of them.
    ///
    /// # Errors
    /// `EIO` once the device is gone, or with [`Cause::BadReply`](crate::Cause::BadReply) if an
    /// event has the wrong length.
    ///
    /// # References
    /// `ibv_get_cq_event(3)`
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn next_event(&self) -> Result<Option<CqEvent>> {
        let mut record = [0; size_of::<u64>()];
        while read_record(&self.inner.file, &mut record, "get_cq_event", &self.inner.registry)? {
            if let Some(cq) = self.inner.registry.cq_event(u64::from_ne_bytes(record)) {
                return Ok(Some(CqEvent { cq }));
            }
        }
        Ok(None)
    }

    /// Waits for the next event, indefinitely if `timeout` is `None`. Returns `None` on timeout.
    ///
    /// # Errors
    /// Same as [`next_event`](Self::next_event); any errno from `ppoll(2)`.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<CqEvent>> {
        let Inner { file, waits, registry, .. } = &*self.inner;
        wait(file, waits.as_ref(), timeout, "get_cq_event", registry, || self.next_event())
    }

    /// Closes the channel if no completion queue uses it. A dropped channel is closed when its last
    /// queue is destroyed.
    ///
    /// # Errors
    /// Returns the channel and `EBUSY` with [`Cause::InUse`](crate::Cause::InUse) while completion
    /// queues use it.
    ///
    /// # References
    /// `ibv_destroy_comp_channel(3)`
    #[doc(alias = "ibv_destroy_comp_channel")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        match Arc::try_unwrap(self.inner) {
            Ok(_) => Ok(()),
            Err(inner) => {
                let error = inner.registry.in_use("destroy_comp_channel", "completion queues");
                Err(HandleError { handle: Self { inner }, error })
            }
        }
    }

    /// Returns a completion queue's share of the channel.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Foreign`](crate::Cause::Foreign) for a queue of another open
    /// device.
    pub(crate) fn share(&self, registry: &Arc<Registry>) -> Result<Arc<Inner>> {
        if !Arc::ptr_eq(&self.inner.registry, registry) {
            return Err(registry.foreign("create_cq", "completion channel"));
        }
        Ok(Arc::clone(&self.inner))
    }
}

/// The descriptor is readable while an event is pending.
impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }
}

/// The descriptor, for event loops that take raw descriptors. The channel still owns it.
impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.file.as_raw_fd()
    }
}
