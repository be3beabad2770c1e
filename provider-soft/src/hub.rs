//! [`Hub`]: where the engine's results go: completions into rings, retired work requests to their queues, events to those
//! who wait.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use roce::engine::{Completion, CqFull, CqId, Event, Qpn, Sge, Sink, SrqId};
use uverbs_abi::ib_user_verbs::IbUverbsAsyncEventDesc;
use verbs_core::types::{AsyncEventType, Wc, WcFlags, WcOpcode, WcStatus};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::bells::Bells;
use crate::limits::{self, QPN_MODULUS};
use crate::records::{Records, Written};
use crate::ring::{Reader, Writer};
use crate::wqe::{RecvWqe, SendWqe};

/// The queues of a device, as the engine's results see them.
#[derive(Debug)]
pub(crate) struct Hub {
    cqs: Vec<Option<CqEnd>>,
    /// By their bell.
    qps: Box<[Option<Box<QpEnd>>; Bells::MAX]>,
    /// The bell of the queue pair with a number, by its low bits.
    bells: Box<[u16; QPN_MODULUS]>,
    /// Bells that no queue pair has.
    free_bells: Vec<u16>,
    /// How many completion queues are to raise an event.
    armed: u32,
    /// Who has records that did not fit.
    pub(crate) clogged: Vec<Arc<Records>>,
}

/// A completion queue: the end that completions go into.
#[derive(Debug)]
pub(crate) struct CqEnd {
    pub(crate) writer: Writer<Wc>,
    pub(crate) channel: Option<Channel>,
    pub(crate) events: Channel,
    pub(crate) user_handle: u64,
    pub(crate) armed: Armed,
    /// How many queue pairs' queues complete here.
    pub(crate) users: u32,
    /// A completion did not fit; that was told, once.
    pub(crate) has_overrun: bool,
}

/// Where events are written to, with the reading end, so that they can be taken back.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    pub(crate) records: Arc<Records>,
    pub(crate) reader: Arc<OwnedFd>,
}

/// Which completion raises an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    /// None.
    Not,
    /// The next one that its sender marked, or that failed.
    Solicited,
    /// The next one.
    Next,
}

/// A queue pair: the ends that work requests come out of.
#[derive(Debug)]
pub(crate) struct QpEnd {
    pub(crate) qpn: Qpn,
    pub(crate) sq: Reader<SendWqe>,
    pub(crate) rq: Reader<RecvWqe>,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    pub(crate) events: Channel,
    pub(crate) user_handle: u64,
}

impl Hub {
    pub(crate) fn new() -> Self {
        Self {
            cqs: Vec::new(),
            qps: Box::new([const { None }; Bells::MAX]),
            bells: Box::new([0; QPN_MODULUS]),
            // The lowest first.
            free_bells: (0..Bells::MAX as u16).rev().collect(),
            armed: 0,
            clogged: Vec::new(),
        }
    }

    /// Puts a completion queue in; `None` where `max` are there.
    pub(crate) fn add_cq(&mut self, end: CqEnd, max: u32) -> Option<CqId> {
        let index = match self.cqs.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.cqs.len() < max as usize => {
                self.cqs.push(None);
                self.cqs.len() - 1
            }
            None => return None,
        };
        self.cqs[index] = Some(end);
        Some(CqId(index as u32))
    }

    pub(crate) fn cq(&mut self, cq: CqId) -> Option<&mut CqEnd> {
        self.cqs.get_mut(cq.0 as usize)?.as_mut()
    }

    /// Takes a completion queue out, if no queue pair uses it.
    pub(crate) fn remove_cq(&mut self, cq: CqId) -> Result<(), InUse> {
        if self.cq(cq).is_some_and(|end| end.users > 0) {
            return Err(InUse);
        }
        if let Some(end) = self.cqs.get_mut(cq.0 as usize).and_then(Option::take) {
            self.armed -= u32::from(end.armed != Armed::Not);
            let handle = end.user_handle;
            if let Some(channel) = &end.channel {
                self.take_back(channel, |record| record == handle.to_ne_bytes());
            }
            self.take_back(&end.events, |record| is_of(record, handle, true));
        }
        Ok(())
    }

    /// Has a completion queue raise an event.
    pub(crate) fn arm(&mut self, cq: CqId, armed: Armed) {
        let Some(end) = self.cq(cq) else { return };
        // Who asked for any event is not answered less by asking for a solicited one as well.
        let is_new = end.armed == Armed::Not;
        if end.armed != Armed::Next {
            end.armed = armed;
        }
        self.armed += u32::from(is_new);
    }

    /// Does somebody wait for an event of a completion queue?
    pub(crate) fn is_armed(&self) -> bool {
        self.armed > 0
    }

    /// Puts a queue pair in and gives its bell; `None`: there is none left.
    pub(crate) fn add_qp(&mut self, end: QpEnd) -> Option<usize> {
        let bell = self.free_bells.pop()?;
        for cq in [end.send_cq, end.recv_cq] {
            if let Some(cq) = self.cq(cq) {
                cq.users += 1;
            }
        }
        self.bells[low_bits(end.qpn)] = bell;
        self.qps[usize::from(bell)] = Some(Box::new(end));
        Some(usize::from(bell))
    }

    pub(crate) fn remove_qp(&mut self, qpn: Qpn) {
        if self.qp(qpn).is_none() {
            return;
        }
        let bell = self.bells[low_bits(qpn)];
        let Some(end) = self.qps[usize::from(bell)].take() else { return };
        self.free_bells.push(bell);
        for cq in [end.send_cq, end.recv_cq] {
            if let Some(cq) = self.cq(cq) {
                cq.users -= 1;
            }
        }
        self.take_back(&end.events, |record| is_of(record, end.user_handle, false));
    }

    fn take_back(&mut self, channel: &Channel, dropped: impl Fn(&[u8]) -> bool) {
        if channel.records.take_back(channel.reader.as_fd(), dropped) == Written::Kept {
            self.clog(&channel.records);
        }
    }

    #[inline]
    pub(crate) fn qp(&mut self, qpn: Qpn) -> Option<&mut QpEnd> {
        let bell = self.bells[low_bits(qpn)];
        self.qps[usize::from(bell) % Bells::MAX].as_deref_mut().filter(|end| end.qpn == qpn)
    }

    /// Takes the next receive out of the ring of the queue pair whose bell this is.
    #[inline]
    pub(crate) fn next_recv(&mut self, slot: usize, list: &mut [Sge]) -> Option<(Qpn, RecvWqe, usize)> {
        let end = self.qps[slot].as_deref_mut()?;
        let (wqe, len) = end.rq.next_with(list, RecvWqe::list_len)?;
        Some((end.qpn, wqe, len))
    }

    /// Takes the next send out of the ring of the queue pair whose bell this is.
    #[inline]
    pub(crate) fn next_send(&mut self, slot: usize, list: &mut [Sge]) -> Option<(Qpn, SendWqe, usize)> {
        let end = self.qps[slot].as_deref_mut()?;
        let (wqe, len) = end.sq.next_with(list, SendWqe::list_len)?;
        Some((end.qpn, wqe, len))
    }

    /// Tells those again who had no room.
    pub(crate) fn retry_records(&mut self) {
        self.clogged.retain(|records| records.retry() == Written::Kept);
    }

    fn tell(&mut self, records: &Arc<Records>, bytes: &[u8]) {
        if records.write(bytes) == Written::Kept {
            self.clog(records);
        }
    }

    fn clog(&mut self, records: &Arc<Records>) {
        if !self.clogged.iter().any(|other| Arc::ptr_eq(other, records)) {
            self.clogged.push(Arc::clone(records));
        }
    }

    fn tell_async(&mut self, records: &Arc<Records>, event_type: AsyncEventType, element: u64) {
        let mut record = IbUverbsAsyncEventDesc::new_zeroed();
        record.element = element;
        record.event_type = event_type.0;
        self.tell(records, record.as_bytes());
    }

    fn tell_qp(&mut self, qpn: Qpn, event_type: AsyncEventType) {
        if let Some(end) = self.qp(qpn) {
            let (records, user_handle) = (Arc::clone(&end.events.records), end.user_handle);
            self.tell_async(&records, event_type, user_handle);
        }
    }
}

/// Is it an event of the object with this handle, a completion queue or not?
fn is_of(record: &[u8], user_handle: u64, is_cq: bool) -> bool {
    IbUverbsAsyncEventDesc::read_from_bytes(record).is_ok_and(|event| {
        event.element == user_handle && (event.event_type == AsyncEventType::CQ_ERR.0) == is_cq
    })
}

/// Something uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InUse;

/// Where the bell of a queue pair stands. The engine numbers queue pairs so that those alive at a time differ here
/// ([`Config::qpn_modulus`](roce::engine::Config::qpn_modulus)).
#[inline]
fn low_bits(qpn: Qpn) -> usize {
    qpn.0 as usize % QPN_MODULUS
}

const _: () = assert!(2 * limits::MAX_QP as usize <= QPN_MODULUS && limits::MAX_QP as usize <= Bells::MAX);

impl Sink for Hub {
    #[inline]
    fn complete(&mut self, cq: CqId, completion: &Completion) -> Result<(), CqFull> {
        let Some(end) = self.cqs.get_mut(cq.0 as usize).and_then(Option::as_mut) else { return Ok(()) };
        if !end.writer.has_room() {
            return Err(CqFull);
        }
        end.writer.put(wc(completion), [].into_iter());
        end.writer.publish();
        let raises = match end.armed {
            Armed::Not => false,
            Armed::Next => true,
            Armed::Solicited => completion.solicited,
        };
        if raises {
            end.armed = Armed::Not;
            let (channel, user_handle) = (end.channel.clone(), end.user_handle);
            self.armed -= 1;
            if let Some(channel) = channel {
                self.tell(&channel.records, &user_handle.to_ne_bytes());
            }
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

    fn retire_srq(&mut self, _srq: SrqId, _count: u32) {}

    fn event(&mut self, event: Event) {
        use AsyncEventType as E;
        match event {
            Event::CqError(cq) => {
                if let Some(end) = self.cq(cq)
                    && !core::mem::replace(&mut end.has_overrun, true)
                {
                    let (records, user_handle) = (Arc::clone(&end.events.records), end.user_handle);
                    self.tell_async(&records, E::CQ_ERR, user_handle);
                }
            }
            Event::QpFatal(qpn) => self.tell_qp(qpn, E::QP_FATAL),
            Event::QpRequestError(qpn) => self.tell_qp(qpn, E::QP_REQ_ERR),
            Event::QpAccessError(qpn) => self.tell_qp(qpn, E::QP_ACCESS_ERR),
            Event::CommunicationEstablished(qpn) => self.tell_qp(qpn, E::COMM_EST),
            Event::SqDrained(qpn) => self.tell_qp(qpn, E::SQ_DRAINED),
            Event::LastWqeReached(qpn) => self.tell_qp(qpn, E::QP_LAST_WQE_REACHED),
            // The contract has no shared receive queues yet.
            Event::SrqLimitReached(_) | Event::SrqError(_) => {}
        }
    }
}

/// A completion as verbs have it. Statuses and opcodes have the same numbers on both sides.
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
