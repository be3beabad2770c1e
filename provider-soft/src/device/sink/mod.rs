//! [`EngineSink`]: forwards the engine's results. Completions go into rings, retired work requests
//! to their queues, events into pipes.

use core::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use roce::engine::{
    Completion, CqFull, CqId, Event, MadsFull, Qpn, ReceivedMad, Refused, Sge, Sink, SrqId, Time,
};
use uverbs_abi::ib_user_verbs::IbUverbsAsyncEventDesc;
use verbs_core::provider::EventsRead;
use verbs_core::types::{AsyncEventType, CqModeration, CqWcFlags, Wc, WcFlags, WcOpcode, WcStatus};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::device::event_pipe::{EventPipe, Written};
use crate::device::gsi_end::GsiEnd;
use crate::device::limits;
use crate::device::slots::{Numbers, Slots, reserve};
use crate::device::wqe::{RecvWqe, SendWqe};
use crate::sync::event_requests::EventRequests;
use crate::sync::notify::{Armed, Notify};
use crate::sync::pending::PendingSet;
use crate::sync::ring::{Consumer, Producer};

/// The queues and channels of a device, which receive the engine's results.
#[derive(Debug)]
pub(crate) struct EngineSink {
    cqs: Slots<CqEnd>,
    /// Queue pairs by slot, as in the [`PendingSet`].
    qps: Slots<Box<QpEnd>>,
    qp_numbers: Numbers,
    /// Shared receive queues by slot.
    srqs: Slots<SrqEnd>,
    srq_numbers: Numbers,
    /// The number of armed completion queues.
    armed: u32,
    /// The number of event requests so far; wraps.
    pub(crate) event_requests: u32,
    /// The asynchronous event pipe of each open context, used for port events.
    contexts: Vec<Weak<EventPipe>>,
    /// The receiver of MADs, while a connection manager holds the general services interface.
    pub(crate) gsi: Option<GsiEnd>,
    /// The indices of completion queues whose events wait for more completions. May include queues
    /// that no longer wait.
    moderated: Vec<u32>,
    /// The time when the first moderated event is due, or an earlier time.
    moderated_until: Option<Time>,
    /// The time at which the device's clock is 0.
    origin: Instant,
    /// The pipes that keep events because their sockets are full.
    pub(crate) clogged: Vec<Arc<EventPipe>>,
    /// The number of completions since the device was created, modulo 2³².
    pub(crate) completed: u32,
}

/// The device's end of a completion queue, which receives the engine's completions.
#[derive(Debug)]
pub(crate) struct CqEnd {
    pub(crate) producer: Producer<Entry>,
    pub(crate) channel: Option<Channel>,
    pub(crate) events: Channel,
    pub(crate) user_handle: u64,
    pub(crate) notify: Notify,
    /// The pending requests for the queue's events.
    pub(crate) requests: Arc<EventRequests>,
    /// The count of completions up to the last solicited or failed completion, modulo 2³². After
    /// 2³² more completions, that completion may look new and raise a spurious event.
    pub(crate) solicited: u32,
    /// The optional completion fields of the queue.
    pub(crate) wc_flags: CqWcFlags,
    /// Whether completions that do not fit are lost without an event.
    pub(crate) ignores_overrun: bool,
    /// The number of send and receive queues that complete here.
    pub(crate) users: u32,
    /// Whether a completion did not fit and has already raised the overrun event.
    pub(crate) has_overrun: bool,
    /// The number of events raised by the queue, read or not.
    pub(crate) raised: EventsRead,
    /// Whether the queue is in the list `moderated`.
    pub(crate) is_moderated: bool,
}

/// A completion in the ring of a completion queue: one cache line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) wc: Wc,
    /// The completion's time on the device's clock, in nanoseconds, if the queue reports this
    /// field.
    pub(crate) ts: Option<NonZeroU64>,
    /// The completion's time in nanoseconds since 1970, if the queue reports this field.
    pub(crate) wallclock_ns: Option<NonZeroU64>,
}

const _: () = assert!(size_of::<Entry>() == 64);

/// A pipe for events, and its reading end, used to remove unread events.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    pub(crate) pipe: Arc<EventPipe>,
    pub(crate) reader: Arc<OwnedFd>,
}

/// The device's end of a queue pair: the consumer ends of its send and receive queues.
#[derive(Debug)]
pub(crate) struct QpEnd {
    pub(crate) qpn: Qpn,
    pub(crate) sq: Consumer<SendWqe>,
    pub(crate) rq: Consumer<RecvWqe>,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    /// The queue pair's handles: a single one, except for an XRC target, which has one for each
    /// context that opened it.
    pub(crate) sharers: Vec<Sharer>,
}

/// A handle of a queue pair, which receives the queue pair's events.
#[derive(Debug)]
pub(crate) struct Sharer {
    pub(crate) events: Channel,
    pub(crate) user_handle: u64,
    /// A number that distinguishes the handles of a queue pair.
    pub(crate) number: u32,
    /// The number of events raised for the handle, read or not.
    pub(crate) raised: u32,
}

/// The device's end of a shared receive queue: the consumer end of its ring.
#[derive(Debug)]
pub(crate) struct SrqEnd {
    pub(crate) srq: SrqId,
    pub(crate) rq: Consumer<RecvWqe>,
    /// The completion queue for the receives of an XRC shared receive queue.
    pub(crate) cq: Option<CqId>,
    pub(crate) events: Channel,
    pub(crate) user_handle: u64,
    /// The number of events raised by the queue, read or not.
    pub(crate) raised: u32,
}

impl EngineSink {
    pub(crate) fn new(origin: Instant) -> Self {
        Self {
            cqs: Slots::new(),
            qps: Slots::new(),
            qp_numbers: Numbers::new(),
            srqs: Slots::new(),
            srq_numbers: Numbers::new(),
            armed: 0,
            event_requests: 0,
            contexts: Vec::new(),
            gsi: None,
            moderated: Vec::new(),
            moderated_until: None,
            origin,
            clogged: Vec::new(),
            completed: 0,
        }
    }

    /// Adds an open context of the device.
    ///
    /// # Errors
    /// [`Refused::NoMemory`].
    pub(crate) fn add_context(&mut self, events: &Arc<EventPipe>) -> Result<(), Refused> {
        if self.contexts.len() == self.contexts.capacity() {
            // The threshold doubles, so the amortised cost of opening a context is constant.
            self.contexts.retain(|context| context.strong_count() > 0);
            let live = self.contexts.len();
            reserve(&mut self.contexts, live + 1)?;
        }
        self.reserve_clogged()?;
        self.contexts.push(Arc::downgrade(events));
        Ok(())
    }

    /// Raises an event for the only port, in every open context of the device.
    pub(crate) fn raise_for_port(&mut self, event_type: AsyncEventType) {
        for at in 0..self.contexts.len() {
            if let Some(pipe) = self.contexts[at].upgrade() {
                self.raise(&pipe, event_type, limits::PORT.into());
            }
        }
    }

    /// Reserves memory for all pipes that may keep events once one more is added. Each completion
    /// queue and each open context may have such a pipe.
    fn reserve_clogged(&mut self) -> Result<(), Refused> {
        let more = (self.cqs.len() + self.contexts.len() + 1).saturating_sub(self.clogged.len());
        reserve(&mut self.clogged, more)
    }

    /// Adds a completion queue.
    ///
    /// # Errors
    /// [`Refused::NoRoom`] if `max` completion queues exist; [`Refused::NoMemory`].
    pub(crate) fn add_cq(&mut self, end: CqEnd, max: u32) -> Result<CqId, Refused> {
        self.reserve_clogged()?;
        let more = (self.cqs.len() + 1).saturating_sub(self.moderated.len());
        reserve(&mut self.moderated, more)?;
        self.cqs.add(end, max).map(|index| CqId(index as u32))
    }

    pub(crate) fn cq(&mut self, cq: CqId) -> Option<&mut CqEnd> {
        self.cqs.get_mut(cq.0 as usize)
    }

    /// Removes a completion queue and returns the number of its events already read.
    ///
    /// # Errors
    /// [`InUse`] while queue pairs or shared receive queues complete to it.
    pub(crate) fn remove_cq(&mut self, cq: CqId) -> Result<EventsRead, InUse> {
        if self.cq(cq).is_some_and(|end| end.users > 0) {
            return Err(InUse);
        }
        let Some(end) = self.cqs.take_if(cq.0 as usize, |_| true) else {
            return Ok(EventsRead::default());
        };
        if end.is_moderated {
            self.moderated.retain(|index| *index != cq.0);
        }
        self.armed -= u32::from(end.notify.is_armed());
        let handle = end.user_handle;
        let mut read = end.raised;
        if let Some(channel) = &end.channel {
            let unread = self.take_back(channel, |record| record == handle.to_ne_bytes());
            read.comp = read.comp.wrapping_sub(unread);
        }
        let unread = self.take_back(&end.events, |record| is_of(record, handle, Owner::Cq));
        read.asynchronous = read.asynchronous.wrapping_sub(unread);
        Ok(read)
    }

    /// Takes the pending event requests of the completion queues in this [slot](cq_slot), and arms
    /// the queues.
    #[cold]
    pub(crate) fn take_requests(&mut self, slot: usize) {
        for index in (slot..self.cqs.len()).step_by(PendingSet::MAX) {
            // Solicited requests first: a queue armed for all completions would skip earlier
            // requests for solicited completions.
            for armed in [Armed::Solicited, Armed::Next] {
                self.take_request(index, armed);
            }
        }
    }

    fn take_request(&mut self, index: usize, armed: Armed) {
        let Some(end) = self.cqs.get_mut(index) else { return };
        let Some(request) = end.requests.take(armed) else { return };
        self.event_requests = self.event_requests.wrapping_add(1);
        if end.notify.includes(armed) {
            // Completions since the request have already been counted.
            return;
        }
        let count = end.producer.count();
        let later = match armed {
            Armed::Solicited => u32::from(count.wrapping_sub(end.solicited) < request.later(count)),
            _ => request.later(count),
        };
        self.armed += u32::from(end.notify.arm(armed));
        for _ in 0..later {
            if self.count_completion(index, true) {
                break;
            }
        }
    }

    /// Counts a completion of an armed queue and returns whether it raised the queue's event.
    fn count_completion(&mut self, index: usize, solicited: bool) -> bool {
        let origin = self.origin;
        let Some(end) = self.cqs.get_mut(index) else { return false };
        let raises = end.notify.completed(solicited, || Time(elapsed(origin)));
        if raises {
            self.notify(index);
        } else {
            let until = end.notify.until();
            if until.is_some() && !core::mem::replace(&mut end.is_moderated, true) {
                self.moderated.push(index as u32);
            }
            self.moderated_until = [self.moderated_until, until].into_iter().flatten().min();
        }
        raises
    }

    /// Changes the moderation of a completion queue's events.
    pub(crate) fn moderate(&mut self, cq: CqId, moderation: CqModeration) {
        if let Some(end) = self.cq(cq) {
            end.notify.moderate(moderation);
        }
    }

    /// Returns the earliest time when a moderated event may be due.
    #[inline]
    pub(crate) fn moderated_until(&self) -> Option<Time> {
        self.moderated_until
    }

    /// Raises the moderated events that are due.
    pub(crate) fn raise_moderated(&mut self, now: Time) {
        let (mut next, mut at) = (None, 0);
        while let Some(&index) = self.moderated.get(at) {
            let end = self.cqs.get_mut(index as usize);
            let until = end.as_ref().and_then(|end| end.notify.until());
            if let Some(end) = end {
                let has_expired = end.notify.expired(now);
                if until.is_some() && !has_expired {
                    next = [next, until].into_iter().flatten().min();
                    at += 1;
                    continue;
                }
                end.is_moderated = false;
                if has_expired {
                    self.notify(index as usize);
                }
            }
            self.moderated.swap_remove(at);
        }
        self.moderated_until = next;
    }

    /// Raises the event of a completion queue that was just disarmed.
    fn notify(&mut self, index: usize) {
        let Some(end) = self.cqs.get_mut(index) else { return };
        end.requests.count_event(end.producer.count());
        let (channel, user_handle) = (end.channel.clone(), end.user_handle);
        if channel.is_some() {
            end.raised.comp = end.raised.comp.wrapping_add(1);
        }
        self.armed -= 1;
        if let Some(channel) = channel {
            self.write(&channel.pipe, &user_handle.to_ne_bytes());
        }
    }

    /// Returns whether any completion queue is armed.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed > 0
    }

    /// Adds a queue pair and returns its slot. All numbers differ modulo `modulus`
    /// ([`Engine::qpn_modulus`](roce::engine::Engine::qpn_modulus)).
    ///
    /// # Errors
    /// [`Refused::NoRoom`] if no slot is free; [`Refused::NoMemory`].
    pub(crate) fn add_qp(&mut self, end: QpEnd, modulus: usize) -> Result<usize, Refused> {
        self.qp_numbers.fit(modulus, self.qps.iter().map(|(slot, end)| (end.qpn.0, slot)))?;
        let (qpn, cqs) = (end.qpn, [end.send_cq, end.recv_cq]);
        let slot = self.qps.add(Box::new(end), PendingSet::MAX as u32)?;
        self.qp_numbers.set(qpn.0, slot);
        for cq in cqs {
            if let Some(cq) = self.cq(cq) {
                cq.users += 1;
            }
        }
        Ok(slot)
    }

    /// Removes a queue pair and returns the number of its events that the context of its last
    /// handle has read.
    pub(crate) fn remove_qp(&mut self, qpn: Qpn) -> EventsRead {
        let slot = self.qp_numbers.slot(qpn.0);
        let Some(end) = self.qps.take_if(slot, |end| end.qpn == qpn) else {
            return EventsRead::default();
        };
        for cq in [end.send_cq, end.recv_cq] {
            if let Some(cq) = self.cq(cq) {
                cq.users -= 1;
            }
        }
        // There is only one handle, because the others were removed before.
        let mut read = EventsRead::default();
        for sharer in &end.sharers {
            read = self.end_of_sharer(sharer);
        }
        read
    }

    /// Removes the unread events of a queue pair's handle and returns the number of events read.
    fn end_of_sharer(&mut self, sharer: &Sharer) -> EventsRead {
        let unread = self.take_back(&sharer.events, |record| is_of(record, sharer.user_handle, Owner::Qp));
        EventsRead { comp: 0, asynchronous: sharer.raised.wrapping_sub(unread) }
    }

    /// Adds a handle of a queue pair and returns its slot and the handle's number, or `None` if
    /// the queue pair does not exist.
    pub(crate) fn share_qp(&mut self, qpn: Qpn, events: Channel, user_handle: u64) -> Option<(usize, u32)> {
        let slot = self.qp_numbers.slot(qpn.0);
        let end = self.qp(qpn)?;
        let number = end.sharers.iter().map(|sharer| sharer.number + 1).max().unwrap_or(0);
        end.sharers.push(Sharer { events, user_handle, number, raised: 0 });
        Some((slot, number))
    }

    /// Removes a handle of a queue pair and returns the number of its events already read. Returns
    /// `None` for the last handle, which stays.
    pub(crate) fn unshare_qp(&mut self, qpn: Qpn, number: u32) -> Option<EventsRead> {
        let end = self.qp(qpn)?;
        let at = end.sharers.iter().position(|sharer| sharer.number == number)?;
        if end.sharers.len() == 1 {
            return None;
        }
        let sharer = end.sharers.swap_remove(at);
        Some(self.end_of_sharer(&sharer))
    }

    /// Adds a shared receive queue and returns its slot. All numbers differ modulo `modulus`
    /// ([`Engine::srqn_modulus`](roce::engine::Engine::srqn_modulus)).
    ///
    /// # Errors
    /// [`Refused::NoRoom`] if no slot is free; [`Refused::NoMemory`].
    pub(crate) fn add_srq(&mut self, end: SrqEnd, modulus: usize) -> Result<usize, Refused> {
        self.srq_numbers.fit(modulus, self.srqs.iter().map(|(slot, end)| (end.srq.0, slot)))?;
        let (srq, cq) = (end.srq, end.cq);
        let slot = self.srqs.add(end, limits::MAX_SRQ)?;
        self.srq_numbers.set(srq.0, slot);
        if let Some(cq) = cq.and_then(|cq| self.cq(cq)) {
            cq.users += 1;
        }
        Ok(slot)
    }

    /// Removes a shared receive queue and returns the number of its events already read.
    pub(crate) fn remove_srq(&mut self, srq: SrqId) -> EventsRead {
        let slot = self.srq_numbers.slot(srq.0);
        let Some(end) = self.srqs.take_if(slot, |end| end.srq == srq) else {
            return EventsRead::default();
        };
        if let Some(cq) = end.cq.and_then(|cq| self.cq(cq)) {
            cq.users -= 1;
        }
        let unread = self.take_back(&end.events, |record| is_of(record, end.user_handle, Owner::Srq));
        EventsRead { comp: 0, asynchronous: end.raised.wrapping_sub(unread) }
    }

    #[inline]
    pub(crate) fn srq(&mut self, srq: SrqId) -> Option<&mut SrqEnd> {
        let slot = self.srq_numbers.slot(srq.0);
        self.srqs.get_mut(slot).filter(|end| end.srq == srq)
    }

    /// Removes the next receive from the ring of the shared receive queue in a slot.
    pub(crate) fn next_srq_recv(&mut self, slot: usize, list: &mut [Sge]) -> Option<(SrqId, RecvWqe, usize)> {
        let end = self.srqs.get_mut(slot)?;
        let (wqe, len) = end.rq.next_with(list, RecvWqe::list_len)?;
        Some((end.srq, wqe, len))
    }

    /// Removes the unread events selected by `dropped`, and returns their number.
    fn take_back(&mut self, channel: &Channel, dropped: impl Fn(&[u8]) -> bool) -> u32 {
        let (count, written) = channel.pipe.take_back(channel.reader.as_fd(), dropped);
        if written == Written::Kept {
            self.clog(&channel.pipe);
        }
        count
    }

    #[inline]
    pub(crate) fn qp(&mut self, qpn: Qpn) -> Option<&mut QpEnd> {
        self.qps.get_mut(self.qp_numbers.slot(qpn.0)).map(Box::as_mut).filter(|end| end.qpn == qpn)
    }

    /// Removes the next receive from the ring of the queue pair in a slot.
    #[inline]
    pub(crate) fn next_recv(&mut self, slot: usize, list: &mut [Sge]) -> Option<(Qpn, RecvWqe, usize)> {
        let end = self.qps.get_mut(slot)?;
        let (wqe, len) = end.rq.next_with(list, RecvWqe::list_len)?;
        Some((end.qpn, wqe, len))
    }

    /// Removes the next send from the ring of the queue pair in a slot.
    #[inline]
    pub(crate) fn next_send(&mut self, slot: usize, list: &mut [Sge]) -> Option<(Qpn, SendWqe, usize)> {
        let end = self.qps.get_mut(slot)?;
        let (wqe, len) = end.sq.next_with(list, SendWqe::list_len)?;
        Some((end.qpn, wqe, len))
    }

    /// Writes as many of the events kept by pipes as fit now.
    pub(crate) fn retry_pipes(&mut self) {
        self.clogged.retain(|pipe| pipe.retry() == Written::Kept);
    }

    fn write(&mut self, pipe: &Arc<EventPipe>, bytes: &[u8]) {
        if pipe.write(bytes) == Written::Kept {
            self.clog(pipe);
        }
    }

    fn clog(&mut self, pipe: &Arc<EventPipe>) {
        // The list has space for each pipe, unless the pipe's object is gone. A pipe without space
        // writes its kept events with the next event.
        if !self.clogged.iter().any(|other| Arc::ptr_eq(other, pipe)) && self.clogged.try_reserve(1).is_ok() {
            self.clogged.push(Arc::clone(pipe));
        }
    }

    fn raise(&mut self, pipe: &Arc<EventPipe>, event_type: AsyncEventType, element: u64) {
        let mut record = IbUverbsAsyncEventDesc::new_zeroed();
        record.element = element;
        record.event_type = event_type.0;
        self.write(pipe, record.as_bytes());
    }

    fn raise_for_srq(&mut self, srq: SrqId, event_type: AsyncEventType) {
        if let Some(end) = self.srq(srq) {
            end.raised = end.raised.wrapping_add(1);
            let (pipe, user_handle) = (Arc::clone(&end.events.pipe), end.user_handle);
            self.raise(&pipe, event_type, user_handle);
        }
    }

    fn raise_for_qp(&mut self, qpn: Qpn, event_type: AsyncEventType) {
        let mut at = 0;
        while let Some(sharer) = self.qp(qpn).and_then(|end| end.sharers.get_mut(at)) {
            at += 1;
            sharer.raised = sharer.raised.wrapping_add(1);
            let (pipe, user_handle) = (Arc::clone(&sharer.events.pipe), sharer.user_handle);
            self.raise(&pipe, event_type, user_handle);
        }
    }
}

/// The kind of object to which an event belongs. Objects of different kinds may have equal user
/// handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Cq,
    Qp,
    Srq,
}

/// Returns whether a record is an event of the object of this kind with this user handle. Port
/// events belong to no object.
fn is_of(record: &[u8], user_handle: u64, owner: Owner) -> bool {
    use AsyncEventType as E;
    IbUverbsAsyncEventDesc::read_from_bytes(record).is_ok_and(|event| {
        let its = match AsyncEventType(event.event_type) {
            E::PORT_ACTIVE | E::PORT_ERR | E::GID_CHANGE => return false,
            E::CQ_ERR => Owner::Cq,
            E::SRQ_ERR | E::SRQ_LIMIT_REACHED => Owner::Srq,
            _ => Owner::Qp,
        };
        event.element == user_handle && its == owner
    })
}

/// Returns a completion queue's slot in a [`PendingSet`]. Several queues may share a slot.
pub(crate) fn cq_slot(cq: CqId) -> usize {
    cq.0 as usize % PendingSet::MAX
}

/// The error of removing an object that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InUse;

const _: () =
    assert!(limits::MAX_SRQ as usize <= PendingSet::MAX && limits::MAX_QP as usize <= PendingSet::MAX);

impl Sink for EngineSink {
    #[inline]
    fn complete(&mut self, cq: CqId, completion: &Completion) -> Result<(), CqFull> {
        let Some(end) = self.cqs.get_mut(cq.0 as usize) else { return Ok(()) };
        if !end.producer.has_room() {
            return if end.ignores_overrun { Ok(()) } else { Err(CqFull) };
        }
        let mut entry = Entry { wc: wc(completion), ts: None, wallclock_ns: None };
        if !end.wc_flags.is_empty() {
            stamp(&mut entry, end.wc_flags, self.origin);
        }
        end.producer.put(entry, [].into_iter());
        end.producer.publish();
        self.completed = self.completed.wrapping_add(1);
        if completion.solicited {
            end.solicited = end.producer.count();
        }
        if end.notify.is_armed() {
            self.count_completion(cq.0 as usize, completion.solicited);
        }
        Ok(())
    }

    #[inline]
    fn retire_send(&mut self, qpn: Qpn, count: u32) {
        if let Some(end) = self.qp(qpn) {
            end.sq.free(count);
        }
    }

    #[inline]
    fn retire_recv(&mut self, qpn: Qpn, count: u32) {
        if let Some(end) = self.qp(qpn) {
            end.rq.free(count);
        }
    }

    #[inline]
    fn retire_srq(&mut self, srq: SrqId, count: u32) {
        if let Some(end) = self.srq(srq) {
            end.rq.free(count);
        }
    }

    fn event(&mut self, event: Event) {
        use AsyncEventType as E;
        match event {
            Event::CqError(cq) => {
                if let Some(end) = self.cq(cq)
                    && !core::mem::replace(&mut end.has_overrun, true)
                {
                    end.raised.asynchronous = end.raised.asynchronous.wrapping_add(1);
                    let (pipe, user_handle) = (Arc::clone(&end.events.pipe), end.user_handle);
                    self.raise(&pipe, E::CQ_ERR, user_handle);
                }
            }
            Event::QpFatal(qpn) => self.raise_for_qp(qpn, E::QP_FATAL),
            Event::QpRequestError(qpn) => self.raise_for_qp(qpn, E::QP_REQ_ERR),
            Event::QpAccessError(qpn) => self.raise_for_qp(qpn, E::QP_ACCESS_ERR),
            Event::CommunicationEstablished(qpn) => self.raise_for_qp(qpn, E::COMM_EST),
            Event::SqDrained(qpn) => self.raise_for_qp(qpn, E::SQ_DRAINED),
            Event::LastWqeReached(qpn) => self.raise_for_qp(qpn, E::QP_LAST_WQE_REACHED),
            Event::SrqLimitReached(srq) => self.raise_for_srq(srq, E::SRQ_LIMIT_REACHED),
            Event::SrqError(srq) => self.raise_for_srq(srq, E::SRQ_ERR),
        }
    }

    #[cold]
    fn mad(&mut self, mad: &ReceivedMad) -> Result<(), MadsFull> {
        self.gsi.as_mut().ok_or(MadsFull)?.push(mad)
    }
}

/// Returns the time of the device's clock in nanoseconds.
pub(crate) fn elapsed(origin: Instant) -> u64 {
    origin.elapsed().as_nanos() as u64
}

/// Adds the timestamps requested when the queue was created. A time of zero counts as one
/// nanosecond.
#[cold]
fn stamp(entry: &mut Entry, wc_flags: CqWcFlags, origin: Instant) {
    if wc_flags.contains(CqWcFlags::COMPLETION_TIMESTAMP) {
        entry.ts = NonZeroU64::new(elapsed(origin).max(1));
    }
    if wc_flags.contains(CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        entry.wallclock_ns = NonZeroU64::new((since.as_nanos() as u64).max(1));
    }
}

/// Converts a completion from the engine. Statuses and opcodes have the same numbers on both sides.
#[inline]
fn wc(completion: &Completion) -> Wc {
    let mut wc_flags = WcFlags::empty();
    wc_flags.set(WcFlags::GRH, completion.grh);
    wc_flags.set(WcFlags::WITH_IMM, completion.imm.is_some());
    wc_flags.set(WcFlags::WITH_INV, completion.invalidated.is_some());
    Wc {
        wr_id: completion.wr_id,
        status: WcStatus(completion.status as u32),
        opcode: WcOpcode(completion.opcode as u32),
        vendor_err: completion.vendor_err,
        byte_len: completion.byte_len,
        imm_data: completion.imm.or(completion.invalidated).unwrap_or(0),
        qp_num: completion.qpn.0,
        src_qp: completion.src_qpn,
        wc_flags,
        pkey_index: 0,
        slid: completion.slid,
        sl: completion.sl,
        dlid_path_bits: 0,
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
