//! [`Cq`]: a completion queue. Polling takes completions out of a ring. If the ring is empty,
//! polling makes the device progress.
//!
//! Requesting an event takes the device's lock: a completion from before the call is in the ring
//! when the call returns, and a later one raises the event. Therefore the order "request an event,
//! poll until empty, wait" misses no completion.
//!
//! The queue is resized with the lock held: no completion comes in while those that were not polled
//! move from the old ring to the new one.

use core::num::NonZeroU64;
use std::sync::Arc;

use roce::engine::{CqId, Refused};
use verbs_core::for_each_completion_field;
use verbs_core::provider::{Completion as CompletionOps, CqOps, Destroy, EventsRead, Notifier};
use verbs_core::types::{CqFlags, CqInitAttr, CqModeration, CqWcFlags, Wc};
use verbs_core::{Cause, Errno, Error, Result, explain};

use crate::context::within;
use crate::device::Device;
use crate::device_core::Sleep;
use crate::limits;
use crate::notify::{Armed, Notify};
use crate::pd::{allocation, destroyed, foreign, refusal};
use crate::ring::{Consumer, ring};
use crate::sink::{Channel, CqEnd, Entry};

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    consumer: Consumer<Entry>,
    device: Arc<Device>,
    cq: CqId,
    cqe: u32,
    wc_flags: CqWcFlags,
    /// The parent domain in which it was made. It has no effect: the queue is allocated here, and
    /// polling takes no lock that a thread domain could make superfluous.
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
        let end = CqEnd {
            producer,
            channel,
            events: events.clone(),
            user_handle: attr.user_handle,
            notify: Notify::new(),
            wc_flags: attr.wc_flags - CqWcFlags::STANDARD,
            ignores_overrun: attr.flags.contains(CqFlags::IGNORE_OVERRUN),
            users: 0,
            has_overrun: false,
            raised: EventsRead::default(),
        };
        let cq = device.control("create_cq", |core, _| {
            core.sink.add_cq(end, limits::MAX_CQ).ok_or_else(|| refusal(device, "create_cq", Refused::NoRoom))
        })?;
        let handle = CqHandle { device: Arc::clone(device), cq };
        let wc_flags = attr.wc_flags | CqWcFlags::STANDARD;
        let cq = Self { consumer, device: Arc::clone(device), cq, cqe, wc_flags, _parent: parent };
        Ok((cq, handle))
    }

    /// Makes the device progress for an empty queue. Out of line, because its registers would cost
    /// a caller that finds a completion more than the call costs here.
    #[inline(never)]
    fn progress(&self) {
        self.device.progress();
    }
}

/// The fields that completions can have. Both clocks are read when a completion is put into its
/// queue.
const WC_FLAGS: CqWcFlags = CqWcFlags::STANDARD
    .union(CqWcFlags::COMPLETION_TIMESTAMP)
    .union(CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK);

/// The name of a completion queue, usable while another thread polls the queue.
#[derive(Clone, Debug)]
pub struct CqHandle {
    device: Arc<Device>,
    cq: CqId,
}

impl CqHandle {
    /// Returns the engine's id of the queue.
    ///
    /// # Errors
    /// [`Cause::Foreign`](verbs_core::Cause::Foreign) for a queue of another device.
    pub(crate) fn of(&self, device: &Arc<Device>, verb: &'static str) -> Result<CqId> {
        if Arc::ptr_eq(&self.device, device) {
            Ok(self.cq)
        } else {
            Err(foreign(device, verb, "completion queue"))
        }
    }
}

impl Notifier for CqHandle {
    fn req_notify(&self, solicited_only: bool) -> Result<()> {
        arm(&self.device, self.cq, solicited_only)
    }
}

/// Requests an event of a completion queue.
fn arm(device: &Device, cq: CqId, solicited_only: bool) -> Result<()> {
    let armed = if solicited_only { Armed::Solicited } else { Armed::Next };
    let wake = device.control("req_notify_cq", |core, _| {
        core.sink.arm(cq, armed);
        // A program that waits for events does not poll, so the worker must receive packets.
        let wake = !core.sleep.for_packets;
        if wake {
            core.sleep = Sleep::AWAKE;
        }
        Ok(wake)
    })?;
    if wake {
        device.wake();
    }
    Ok(())
}

impl CqOps for Cq {
    type Completion<'a> = Completion<'a>;

    fn handle(&self) -> u32 {
        self.cq.0
    }

    fn cqe(&self) -> u32 {
        self.cqe
    }

    #[inline(always)]
    fn next(&mut self) -> Option<Completion<'_>> {
        self.consumer.free_all();
        if self.device.is_forked() {
            return None;
        }
        if self.consumer.is_empty() {
            self.progress();
        }
        self.consumer.next().map(Completion)
    }

    #[inline]
    fn finish(&mut self) {
        self.consumer.free_all();
    }

    #[inline]
    fn poll(&mut self, wcs: &mut [Wc]) -> usize {
        self.consumer.free_all();
        if wcs.is_empty() || self.device.is_forked() {
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
        arm(&self.device, self.cq, solicited_only)
    }

    fn notifier(&self) -> Option<Box<dyn Notifier>> {
        Some(Box::new(CqHandle { device: Arc::clone(&self.device), cq: self.cq }))
    }

    fn purge(&mut self, qp_num: u32) {
        self.consumer.retain(|entry| entry.wc.qp_num != qp_num);
    }

    fn wc_flags(&self) -> CqWcFlags {
        self.wc_flags
    }

    fn resize(&mut self, cqe: u32) -> Result<()> {
        const VERB: &str = "resize_cq";
        let device = Arc::clone(&self.device);
        within(&device, VERB, "cqe", cqe.into(), 1, limits::MAX_CQE.into())?;
        let rounded = cqe.next_power_of_two();
        let (mut producer, consumer) = ring(rounded, 0).map_err(|bytes| allocation(&device, VERB, bytes))?;
        self.consumer.free_all();
        device.control(VERB, |core, _| {
            within(&device, VERB, "cqe", cqe.into(), self.consumer.len().into(), limits::MAX_CQE.into())?;
            let Some(end) = core.sink.cq(self.cq) else { return Err(device.error(VERB, Errno::INVAL)) };
            while let Some(entry) = self.consumer.next() {
                producer.put(*entry, [].into_iter());
            }
            producer.publish();
            end.producer = producer;
            self.consumer = consumer;
            Ok(())
        })?;
        self.cqe = rounded;
        Ok(())
    }

    fn modify(&self, moderation: CqModeration) -> Result<()> {
        self.device.control("modify_cq", |core, _| {
            core.sink.moderate(self.cq, moderation);
            Ok(())
        })
    }
}

/// A completion, lent by [`Cq::next`](CqOps::next).
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
        let cq = self.cq;
        destroyed(&self.device, "destroy_cq", |core| core.sink.remove_cq(cq).map_err(|_| Refused::Busy))
            .map_err(|error| (self, error))
    }
}
