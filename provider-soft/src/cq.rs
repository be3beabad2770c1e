//! [`Cq`]: a completion queue. Polling takes completions out of a ring. If the ring is empty,
//! polling makes the device progress.
//!
//! Requesting an event takes the device's lock: a completion from before the call is in the ring
//! when the call returns, and a later one raises the event. Therefore the order "request an event,
//! poll until empty, wait" misses no completion.

use std::sync::Arc;

use roce::engine::{CqId, Refused};
use verbs_core::provider::{CqOps, Destroy};
use verbs_core::types::{CqInitAttr, Wc};
use verbs_core::{Errno, Error, Result};

use crate::context::within;
use crate::device::Device;
use crate::device_core::Sleep;
use crate::limits;
use crate::pd::{destroyed, foreign};
use crate::ring::{Consumer, ring};
use crate::sink::{Armed, Channel, CqEnd};

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    consumer: Consumer<Wc>,
    device: Arc<Device>,
    cq: CqId,
    cqe: u32,
}

impl Cq {
    pub(crate) fn create(
        device: &Arc<Device>,
        attr: &CqInitAttr<'_>,
        channel: Option<Channel>,
        events: &Channel,
    ) -> Result<(Self, CqHandle)> {
        within(device, "create_cq", "cqe", attr.cqe.into(), 1, limits::MAX_CQE.into())?;
        let last = u64::from(limits::COMP_VECTORS - 1);
        within(device, "create_cq", "comp_vector", attr.comp_vector.into(), 0, last)?;
        let cqe = attr.cqe.next_power_of_two();
        let (producer, consumer) = ring(cqe, 0).map_err(|_| device.error("create_cq", Errno::NOMEM))?;
        let end = CqEnd {
            producer,
            channel,
            events: events.clone(),
            user_handle: attr.user_handle,
            armed: Armed::Not,
            users: 0,
            has_overrun: false,
        };
        let cq = device.control("create_cq", |core, _| {
            core.sink.add_cq(end, limits::MAX_CQ).ok_or_else(|| device.error("create_cq", Errno::NOMEM))
        })?;
        let handle = CqHandle { device: Arc::clone(device), cq };
        Ok((Self { consumer, device: Arc::clone(device), cq, cqe }, handle))
    }
}

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
    pub(crate) fn of(&self, device: &Arc<Device>) -> Result<CqId> {
        if Arc::ptr_eq(&self.device, device) {
            Ok(self.cq)
        } else {
            Err(foreign(device, "create_qp", "completion queue"))
        }
    }
}

impl CqOps for Cq {
    type Completion<'a> = &'a Wc;

    fn handle(&self) -> u32 {
        self.cq.0
    }

    fn cqe(&self) -> u32 {
        self.cqe
    }

    #[inline]
    fn next(&mut self) -> Option<&Wc> {
        self.consumer.free_all();
        if self.device.is_forked() {
            return None;
        }
        if self.consumer.is_empty() {
            self.device.progress();
        }
        self.consumer.next()
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
            self.device.progress();
        }
        let mut count = 0;
        for wc in wcs {
            let Some(completion) = self.consumer.next() else { break };
            *wc = *completion;
            count += 1;
        }
        self.consumer.free_all();
        count
    }

    fn req_notify(&mut self, solicited_only: bool) -> Result<()> {
        let armed = if solicited_only { Armed::Solicited } else { Armed::Next };
        let wake = self.device.control("req_notify_cq", |core, _| {
            core.sink.arm(self.cq, armed);
            // A program that waits for events does not poll, so the worker must receive packets.
            let wake = !core.sleep.for_packets;
            if wake {
                core.sleep = Sleep::AWAKE;
            }
            Ok(wake)
        })?;
        if wake {
            self.device.wake();
        }
        Ok(())
    }
}

impl Destroy for Cq {
    fn destroy(self) -> Result<(), (Self, Error)> {
        let cq = self.cq;
        destroyed(&self.device, "destroy_cq", |core| core.sink.remove_cq(cq).map_err(|_| Refused::Busy))
            .map_err(|error| (self, error))
    }
}
