//! [`Cq`]: a completion queue. Polling takes completions out of a ring and makes the device
//! progress if the ring is empty.
//!
//! Requesting an event does not wait for the device's lock
//! ([`event_requests`](crate::sync::event_requests)). A completion added before the request is in
//! the ring; a later one raises the event. The order "request an event, poll until empty, wait"
//! therefore misses no completion. Nor does "poll until empty, request an event, wait", as on a
//! ConnectX; UCX relies on it.
//!
//! The queue is resized with the lock held, so no completion arrives while unpolled completions
//! move from the old ring to the new ring. The completion counter continues, because event requests
//! refer to it.

use core::num::NonZeroU64;
use std::sync::Arc;

use roce::engine::{CqId, Refused};
use verbs_core::for_each_completion_field;
use verbs_core::provider::{Completion as CompletionOps, CqOps, Destroy, EventsRead, Notifier};
use verbs_core::types::{CqFlags, CqInitAttr, CqModeration, CqWcFlags, Wc};
use verbs_core::{Cause, Errno, Error, Result, explain};

use crate::device::error::{allocation, destroyed, foreign, refusal, within};
use crate::device::sink::{Channel, CqEnd, Entry};
use crate::device::{Device, limits};
use crate::sync::event_requests::EventRequests;
use crate::sync::notify::{Armed, Notify};
use crate::sync::ring::{Consumer, Published, Spare, replace, ring};

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    consumer: Consumer<Entry>,
    name: CqHandle,
    cqe: u32,
    wc_flags: CqWcFlags,
    /// Keeps the queue's parent domain in use. The domain has no other effect: this crate allocates
    /// the queue, and polling takes no lock that a thread domain could save.
    _parent: Option<Arc<()>>,
}

impl Cq {
    pub(crate) fn create(
        device: &Arc<Device>,
        attr: &CqInitAttr<'_>,
        parent: Option<Arc<()>>,
        channel: Option<Channel>,
        events: &Channel,
    ) -> Result<(Self, CqHandle)> {
        within(device, "create_cq", "cqe", attr.cqe.into(), 1, limits::MAX_CQE.into())?;
        let last = u64::from(limits::COMP_VECTORS - 1);
        within(device, "create_cq", "comp_vector", attr.comp_vector.into(), 0, last)?;
        let refused = |cause| device.error("create_cq", Errno::OPNOTSUPP).because(cause);
        explain::wc_flags(attr.wc_flags, WC_FLAGS).map_err(refused)?;
        let flags = attr.flags - (CqFlags::SINGLE_THREADED | CqFlags::IGNORE_OVERRUN);
        if !flags.is_empty() {
            return Err(refused(Cause::CqFlags { flags }));
        }
        let cqe = attr.cqe.next_power_of_two();
        let (producer, consumer) = ring(cqe, 0).map_err(|bytes| allocation(device, "create_cq", bytes))?;
        let (requests, published) = (Arc::new(EventRequests::new()), consumer.published());
        let end = CqEnd {
            producer,
            channel,
            events: events.clone(),
            user_handle: attr.user_handle,
            notify: Notify::new(),
            requests: Arc::clone(&requests),
            solicited: 0,
            wc_flags: attr.wc_flags - CqWcFlags::STANDARD,
            ignores_overrun: attr.flags.contains(CqFlags::IGNORE_OVERRUN),
            users: 0,
            has_overrun: false,
            is_moderated: false,
            raised: EventsRead::default(),
        };
        let cq = device.control("create_cq", |core, _| {
            core.sink.add_cq(end, limits::MAX_CQ).map_err(|refused| refusal(device, "create_cq", refused))
        })?;
        let name = CqHandle { device: Arc::clone(device), cq, requests, published };
        let wc_flags = attr.wc_flags | CqWcFlags::STANDARD;
        let cq = Self { consumer, name: name.clone(), cqe, wc_flags, _parent: parent };
        Ok((cq, name))
    }

    /// Makes the device progress for an empty queue. Not inlined: saving this function's registers
    /// would slow down callers that find a completion.
    #[inline(never)]
    fn progress(&self) {
        self.name.device.progress();
    }
}

/// The available completion fields. Both timestamps are read when a completion is put into its
/// queue.
const WC_FLAGS: CqWcFlags = CqWcFlags::STANDARD
    .union(CqWcFlags::COMPLETION_TIMESTAMP)
    .union(CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK);

/// A completion queue handle, usable while another thread polls the queue.
#[derive(Clone, Debug)]
pub struct CqHandle {
    device: Arc<Device>,
    cq: CqId,
    requests: Arc<EventRequests>,
    published: Published,
}

impl CqHandle {
    /// Returns the queue's id in the engine.
    ///
    /// # Errors
    /// [`Cause::Foreign`](verbs_core::Cause::Foreign) for a queue of another device.
    pub(crate) fn id_on(&self, device: &Arc<Device>, verb: &'static str) -> Result<CqId> {
        if Arc::ptr_eq(&self.device, device) {
            Ok(self.cq)
        } else {
            Err(foreign(device, verb, "completion queue"))
        }
    }
}

impl Notifier for CqHandle {
    fn req_notify(&self, solicited_only: bool) -> Result<()> {
        self.device.check("req_notify_cq")?;
        self.requests.add(if solicited_only { Armed::Solicited } else { Armed::Next }, &self.published);
        self.device.requested_event(self.cq);
        Ok(())
    }
}

impl CqOps for Cq {
    type Completion<'a> = Completion<'a>;

    fn handle(&self) -> u32 {
        self.name.cq.0
    }

    fn cqe(&self) -> u32 {
        self.cqe
    }

    #[inline(always)]
    fn next(&mut self) -> Option<Completion<'_>> {
        self.consumer.free_all();
        if self.name.device.is_forked() {
            return None;
        }
        if self.consumer.is_empty() {
            self.progress();
        }
        self.consumer.next().map(Completion)
    }

    #[inline(always)]
    fn next_of_several(&mut self) -> Option<Completion<'_>> {
        if self.name.device.is_forked() {
            return None;
        }
        if self.consumer.is_empty() {
            self.consumer.free_all();
            self.progress();
        }
        self.consumer.next().map(Completion)
    }

    #[inline]
    fn end_poll(&mut self) {
        self.consumer.free_all();
    }

    #[inline]
    fn poll(&mut self, wcs: &mut [Wc]) -> usize {
        self.consumer.free_all();
        if wcs.is_empty() || self.name.device.is_forked() {
            return 0;
        }
        if self.consumer.is_empty() {
            self.progress();
        }
        let mut count = 0;
        for wc in wcs {
            let Some(completion) = self.consumer.next() else { break };
            *wc = completion.wc;
            count += 1;
        }
        self.consumer.free_all();
        count
    }

    fn req_notify(&self, solicited_only: bool) -> Result<()> {
        self.name.req_notify(solicited_only)
    }

    fn notifier(&self) -> Option<Box<dyn Notifier>> {
        Some(Box::new(self.name.clone()))
    }

    fn purge(&mut self, qp_num: u32) {
        self.consumer.retain(|entry| entry.wc.qp_num != qp_num);
    }

    fn wc_flags(&self) -> CqWcFlags {
        self.wc_flags
    }

    fn resize(&mut self, cqe: u32) -> Result<()> {
        const VERB: &str = "resize_cq";
        let Self { consumer, name: CqHandle { device, cq, .. }, .. } = self;
        within(device, VERB, "cqe", cqe.into(), 1, limits::MAX_CQE.into())?;
        let rounded = cqe.next_power_of_two();
        let spare = Spare::new(rounded).map_err(|bytes| allocation(device, VERB, bytes))?;
        device.control(VERB, |core, _| {
            within(device, VERB, "cqe", cqe.into(), consumer.len().into(), limits::MAX_CQE.into())?;
            let Some(end) = core.sink.cq(*cq) else { return Err(device.error(VERB, Errno::INVAL)) };
            replace(&mut end.producer, consumer, spare);
            Ok(())
        })?;
        self.cqe = rounded;
        Ok(())
    }

    fn modify(&self, moderation: CqModeration) -> Result<()> {
        self.name.device.control("modify_cq", |core, _| {
            core.sink.moderate(self.name.cq, moderation);
            Ok(())
        })
    }
}

/// A reference to the completion returned by [`Cq::next`](CqOps::next).
#[derive(Clone, Copy, Debug)]
pub struct Completion<'a>(&'a Entry);

macro_rules! completion {
    ($($(#[$doc:meta])* $field:ident: $type:ty;)*) => {
        impl CompletionOps for Completion<'_> {
            $(#[inline(always)] fn $field(&self) -> $type { self.0.wc.$field })*

            #[inline(always)]
            fn completion_ts(&self) -> Option<u64> {
                self.0.ts.map(NonZeroU64::get)
            }

            #[inline(always)]
            fn completion_wallclock_ns(&self) -> Option<u64> {
                self.0.wallclock_ns.map(NonZeroU64::get)
            }

            #[inline(always)]
            fn write_to(&self, wc: &mut Wc) {
                *wc = self.0.wc;
            }
        }
    };
}

for_each_completion_field!(completion);

impl Destroy for Cq {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.destroy_counting_events().map(drop)
    }

    fn destroy_counting_events(self) -> Result<EventsRead, (Self, Error)> {
        let cq = self.name.cq;
        destroyed(&self.name.device, "destroy_cq", |core| core.sink.remove_cq(cq).map_err(|_| Refused::Busy))
            .map_err(|error| (self, error))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::mpsc;
    use std::time::Duration;

    use verbs_core::provider::{ContextOps, DeviceOps};
    use verbs_core::types::Guid;

    use super::*;
    use crate::device::settings::Settings;
    use crate::io::Socket;
    use crate::objects::context::Context;

    #[test]
    fn a_request_for_an_event_does_not_wait_for_the_lock() {
        let socket = Socket::auto_alone().expect("a free address");
        let device = Device::new("soft", Box::new(socket), Guid(1), Settings::default(), None, true).unwrap();
        let context = Context::open(&device).unwrap();
        let channel = context.create_comp_channel().unwrap();
        let attr = CqInitAttr { channel: Some(channel.as_fd()), ..CqInitAttr::new(4) };
        for solicited_only in [true, false] {
            let (cq, handle) = context.create_cq(None, &attr).unwrap();
            let guard = device.core.lock();
            let (returned, returns) = mpsc::channel();
            let thread = std::thread::spawn(move || {
                let result = handle.req_notify(solicited_only);
                returned.send(()).unwrap();
                result
            });
            let in_time = returns.recv_timeout(Duration::from_secs(10));
            assert!(!guard.sink.is_armed());
            device.leave(guard, device.now());
            thread.join().unwrap().unwrap();
            in_time.expect("it waited for the lock");
            assert!(device.core.lock().sink.is_armed(), "the holder takes the request");
            cq.destroy().map_err(|(_, error)| error).unwrap();
            assert!(!device.core.lock().sink.is_armed());
        }
    }
}
