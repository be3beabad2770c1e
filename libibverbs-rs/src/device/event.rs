//! [`AsyncEvents`]: the asynchronous events of a device.
//!
//! As with completion events, there is nothing to acknowledge: an event names its object by an id,
//! which becomes stale when the object is destroyed.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use uverbs_abi::ib_user_verbs::IbUverbsAsyncEventDesc;
use verbs_core::provider::{ContextOps, Provider, for_program};
use verbs_core::types::AsyncEventType;
use verbs_core::{Errno, Result};
use zerocopy::{FromZeros, IntoBytes};

use crate::device::context::Context;
use crate::device::event_file::{read_record, set_nonblocking, wait};
use crate::handle::registry::{Child, CqId, QpId, Registry, SrqId, WqId};

/// The stream of a device's asynchronous events. Made by [`Context::async_events`].
///
/// # References
/// `ibv_get_async_event(3)`
#[derive(Debug)]
pub struct AsyncEvents {
    file: File,
    registry: Arc<Registry>,
    _context: Child,
}

/// An asynchronous event.
///
/// `Display` writes the object and the event: `port 1: port active`,
/// `queue pair #3.1: communication established`. A queue pair, completion queue or shared
/// receive queue is named by its [`id`](crate::Qp::id).
#[doc(alias = "ibv_async_event")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncEvent {
    /// The object that the event concerns.
    pub element: Element,
    /// The kind of event.
    pub event_type: AsyncEventType,
}

/// The object that an asynchronous event concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Element {
    /// The completion queue with this [`id`](crate::Cq::id).
    Cq(CqId),
    /// The queue pair with this [`id`](crate::Qp::id).
    Qp(QpId),
    /// The shared receive queue with this [`id`](crate::Srq::id).
    Srq(SrqId),
    /// The work queue with this [`id`](crate::Wq::id).
    Wq(WqId),
    /// The port with this number. Port numbers start at 1.
    Port(u8),
    /// The device as a whole.
    Device,
    /// The kernel's identifier for the object, for an event type unknown to this library.
    Unknown(u64),
}

impl<P: Provider> Context<P> {
    /// Opens a stream of the device's asynchronous events. If a program has several streams, each
    /// event is delivered to one of them.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EMFILE` if the process has no descriptor left.
    ///
    /// # References
    /// `ibv_get_async_event(3)`
    #[doc(alias = "ibv_get_async_event")]
    pub fn async_events(&self) -> Result<AsyncEvents> {
        AsyncEvents::open(self)
    }
}

impl AsyncEvents {
    pub(crate) fn open<P: Provider>(context: &Context<P>) -> Result<Self> {
        let registry = Arc::clone(context.registry());
        let fd = context.creating(VERB)?.device().async_fd()?.try_clone_to_owned();
        let file = fd.map_err(|error| registry.error(VERB, Errno::from_io(&error)))?.into();
        set_nonblocking(&file, VERB, &registry)?;
        let context = context.child(&registry.stream_tally);
        Ok(Self { file, registry, _context: context })
    }

    /// Returns the next event; `None` if no event is pending. Never waits, unlike
    /// [`wait`](Self::wait).
    ///
    /// Events of destroyed objects are skipped.
    ///
    /// # Errors
    /// `EIO` once the device is gone; `EIO` with [`Cause::BadReply`](crate::Cause::BadReply) for an
    /// event of the wrong length.
    ///
    /// # References
    /// `ibv_get_async_event(3)`
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    pub fn next_event(&self) -> Result<Option<AsyncEvent>> {
        let mut record = IbUverbsAsyncEventDesc::new_zeroed();
        while read_record(&self.file, record.as_mut_bytes(), VERB, &self.registry)? {
            let (event_type, raw) = for_program(AsyncEventType(record.event_type), record.element);
            if let Some(element) = self.element(event_type, raw) {
                return Ok(Some(AsyncEvent { element, event_type }));
            }
        }
        Ok(None)
    }

    /// Waits for the next event, indefinitely if `timeout` is `None`. Returns `None` on timeout.
    ///
    /// # Errors
    /// Same as [`next_event`](Self::next_event); any errno from `ppoll(2)`.
    #[doc(alias = "ibv_get_async_event")]
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>> {
        wait(&self.file, None, timeout, VERB, &self.registry, || self.next_event())
    }

    /// Returns an iterator that waits for each event indefinitely. The iterator ends only after
    /// returning an error.
    ///
    /// ```no_run
    /// # fn f(context: verbs::Context) -> verbs::Result<()> {
    /// for event in context.async_events()?.iter() {
    ///     println!("{}", event?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = Result<AsyncEvent>> + '_ {
        self.until_error(|events| events.wait(None))
    }

    /// Returns an iterator over the pending events. The iterator never waits.
    pub fn try_iter(&self) -> impl Iterator<Item = Result<AsyncEvent>> + '_ {
        self.until_error(Self::next_event)
    }

    /// Returns an iterator over the events from `next`. The iterator ends when no event is left, or
    /// after an error.
    fn until_error<'a>(
        &'a self,
        next: impl Fn(&'a Self) -> Result<Option<AsyncEvent>> + 'a,
    ) -> impl Iterator<Item = Result<AsyncEvent>> + 'a {
        let mut failed = false;
        core::iter::from_fn(move || {
            let event = if failed { None } else { next(self).transpose() };
            failed = matches!(event, Some(Err(_)));
            event
        })
    }

    /// Returns the object with the kernel's identifier `raw`; `None` if the object was destroyed.
    fn element(&self, event_type: AsyncEventType, raw: u64) -> Option<Element> {
        use AsyncEventType as E;
        match event_type {
            _ if event_type.concerns_qp() => self.registry.qp(raw).map(Element::Qp),
            E::CQ_ERR => self.registry.cq(raw).map(Element::Cq),
            E::SRQ_ERR | E::SRQ_LIMIT_REACHED => self.registry.srq(raw).map(Element::Srq),
            E::WQ_FATAL => self.registry.wq(raw).map(Element::Wq),
            E::DEVICE_FATAL => Some(Element::Device),
            E::PORT_ACTIVE
            | E::PORT_ERR
            | E::LID_CHANGE
            | E::PKEY_CHANGE
            | E::SM_CHANGE
            | E::CLIENT_REREGISTER
            | E::GID_CHANGE
            | E::DEVICE_SPEED_CHANGE => Some(u8::try_from(raw).map_or(Element::Unknown(raw), Element::Port)),
            _ => Some(Element::Unknown(raw)),
        }
    }
}

/// The descriptor is readable while an event is pending.
impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The descriptor, for event loops that take raw descriptors. The stream still owns it.
impl AsRawFd for AsyncEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// The verb named in errors from this file.
const VERB: &str = "get_async_event";

impl core::fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.element {
            Element::Cq(id) => write!(f, "completion queue {id}")?,
            Element::Qp(id) => write!(f, "queue pair {id}")?,
            Element::Srq(id) => write!(f, "shared receive queue {id}")?,
            Element::Wq(id) => write!(f, "work queue {id}")?,
            Element::Port(port_num) => write!(f, "port {port_num}")?,
            Element::Device => f.write_str("device")?,
            Element::Unknown(raw) => write!(f, "element {raw:#x}")?,
        }
        write!(f, ": {}", self.event_type)
    }
}
