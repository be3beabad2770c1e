//! Fetches receives: from a queue pair's own queue, which is a ring, and from shared queues, which
//! are linked lists.
//!
//! Receives have no doorbell: the driver advances a counter in the doorbell record. The model reads
//! the counter before it handles a packet. The model also reads the counter periodically for queue
//! pairs in the error state, to flush their receives.
//!
//! | element | meaning |
//! |---|---|
//! | `length > 0` | a piece of memory |
//! | `length == 0`, key 0x100 | the terminator: the list ends |
//! | `length == 0`, another key | 2 GiB: a provider omits such elements from a program's list |
//!
//! libmlx5 omits these elements from a queue pair's own receives but not from shared ones, so only
//! the former break a rule ([`Rule::RecvLength`]).
//!
//! A list of zeros means 2 GiB at a nonexistent key: a device accepts the receive, and a message
//! into it fails. The model treats every list without a proper end in this way ([`UNREADABLE`]).
//!
//! # References
//! PRM, "receive WQE", "shared receive queue", "data segment"; rdma-core `providers/mlx5/qp.c`
//! (`mlx5_post_recv`), `srq.c` (`mlx5_post_srq_recv`)

use roce::engine::{PostRefused, Qpn, RecvWr, Sge, SrqId, State};

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::{Core, Function};
use crate::layout::eqe::qp_srq;
use crate::layout::wqe::{data, srq_next};
use crate::qp::recv_signature::{self, Checksums};
use crate::state::eq::EventType;
use crate::state::qp::Receives;
use crate::state::srq::SrqKind;
use crate::trace::format::{self, Queue};

/// The key of an element that ends the list.
pub(super) const TERMINATOR: u32 = 0x100;

/// Number of bytes in an element whose length is 0. The field has 31 bits.
const WHOLE: u32 = 1 << 31;

/// Replacement for the elements of a list that breaks a rule: no key covers it.
pub(super) const UNREADABLE: Sge = Sge { addr: 0, length: WHOLE, lkey: 0 };

/// Shortest interval between checks of queue pairs in the error state, in nanoseconds. It applies
/// after activity.
pub(super) const SHORTEST_PAUSE: u64 = 1_000_000;
/// Longest interval between these checks, in nanoseconds. It applies without activity.
const LONGEST_PAUSE: u64 = 64_000_000;

impl<B: Bus> Function<B> {
    /// Passes a queue pair's new receives to the engine, from its own queue or the shared one.
    pub(crate) fn refill(&mut self, qpn: u32) {
        match self.core.qps.get(&qpn).map(|qp| qp.rq) {
            Some(Receives::Own(_)) => self.refill_own(qpn),
            Some(Receives::Shared(srqn)) => self.refill_srq(srqn),
            Some(Receives::Named) => {
                let named = self.core.srqs.values().filter(|srq| srq.kind == SrqKind::Xrc);
                for srqn in named.map(|srq| srq.srqn).collect::<Vec<_>>() {
                    self.refill_srq(srqn);
                }
            }
            Some(Receives::None) | None => {}
        }
    }

    fn refill_own(&mut self, qpn: u32) {
        if self.state(qpn) == State::Reset {
            return;
        }
        let Some(qp) = self.core.qps.get(&qpn) else { return };
        let (Receives::Own(shape), Some(record)) = (qp.rq, qp.doorbell_record) else { return };
        let (mut at, done) = (qp.run.recv.fetched, qp.run.recv.done);
        if qp.run.recv.broken {
            return;
        }
        let Some(head) = self.core.posted(record) else { return };
        if head == at {
            return;
        }
        self.core.log.trace.line(|| format::record(Queue::Receive, qpn, head.into()));
        let slots = 1u32 << shape.log_size;
        if u32::from(head.wrapping_sub(done)) > slots {
            let what = format!("queue pair {qpn:#x}: head {head}, tail {done}, {slots} receives");
            self.core.log.complain(Rule::RecvOverrun, what);
            self.collapse(qpn);
            return;
        }
        let stride = 1u64 << shape.log_stride;
        let mut bytes = vec![0; stride as usize];
        let mut checksums = shape.signature.then(|| Checksums::new(qpn));
        // There are at most as many iterations as slots.
        while at != head {
            let slot = u64::from(at) & u64::from(slots - 1);
            let Some(qp) = self.core.qps.get_mut(&qpn) else { return };
            qp.run.recv.fetched = at.wrapping_add(1);
            if qp.pages.read(&self.core.bus, slot * stride, &mut bytes).is_err() {
                self.core.log.complain(Rule::DmaFault, format!("the receive queue of queue pair {qpn:#x}"));
                self.collapse(qpn);
                return;
            }
            if let Some(Err(what)) = checksums.as_mut().map(|checksums| checksums.check(at, &bytes)) {
                let what = format!("queue pair {qpn:#x}, receive {at}: {what}");
                self.core.log.complain(Rule::RecvSignature, what);
            }
            let begin = if shape.signature { recv_signature::SIZE } else { 0 };
            qp.run.recv.posted.push(at, used(&bytes, begin));
            let elements = bytes.get(begin..).unwrap_or_default();
            self.core.log.trace.line(|| format::receive(Queue::Receive, qpn, at.into(), elements));
            let sges = self.elements(elements, || format!("queue pair {qpn:#x}, receive {at}"));
            if let Some(place) = sges.iter().position(|sge| sge.length == WHOLE && *sge != UNREADABLE) {
                let what = format!("queue pair {qpn:#x}, receive {at}: element {place} has none");
                self.core.log.complain(Rule::RecvLength, what);
            }
            let now = self.core.now;
            let wr = RecvWr { wr_id: u64::from(at), sges: &sges };
            if let Err(why) = self.engine.post_recv(Qpn(qpn), &wr, now, &mut self.core) {
                let what = format!("queue pair {qpn:#x}, receive {at}: {why}");
                self.core.log.complain(Rule::RecvOverrun, what);
                self.collapse(qpn);
                return;
            }
            at = at.wrapping_add(1);
        }
    }

    /// Passes a shared receive queue's new receives to the engine.
    pub(crate) fn refill_srq(&mut self, srqn: u32) {
        let Some(srq) = self.core.srqs.get(&srqn) else { return };
        if srq.run.broken {
            return;
        }
        let (size, stride, mut at) = (1u32 << srq.log_size, srq.stride, srq.run.fetched);
        let record = srq.doorbell_record;
        let Some(head) = self.core.posted(record) else { return };
        if head == at {
            return;
        }
        self.core.log.trace.line(|| format::record(Queue::Shared, srqn, head.into()));
        let mut bytes = vec![0; usize::try_from(stride).unwrap_or_default()];
        // Each entry can be posted only once at a time, so the list is followed at most once
        // around.
        while at != head {
            let Some(srq) = self.core.srqs.get_mut(&srqn) else { return };
            let entry = srq.run.next;
            if u32::from(entry) >= size {
                return self.collapse_srq(srqn, Rule::SrqLink, format!("link to entry {entry} of {size}"));
            }
            if srq.run.outstanding.len() >= size as usize {
                let what = format!("counter {head} with all of the {size} entries posted");
                return self.collapse_srq(srqn, Rule::RecvOverrun, what);
            }
            if srq.run.outstanding.contains_key(&entry) {
                return self.collapse_srq(srqn, Rule::SrqLink, format!("entry {entry} is posted already"));
            }
            if srq.pages.read(&self.core.bus, u64::from(entry) * stride, &mut bytes).is_err() {
                return self.collapse_srq(srqn, Rule::DmaFault, "its entries are not in memory".into());
            }
            if srq_next::TABLE.reserved(&bytes).is_some() || srq_next::SIGNATURE.is_set(&bytes) {
                let segment = bytes.get(..srq_next::SIZE).unwrap_or_default();
                let what = format!("shared receive queue {srqn:#x}, entry {entry}: {segment:x?}");
                self.core.log.complain(Rule::SrqReserved, what);
            }
            at = at.wrapping_add(1);
            srq.run.outstanding.insert(entry, used(&bytes, srq_next::SIZE));
            srq.run.next = srq_next::NEXT_WQE_INDEX.get(&bytes) as u16;
            srq.run.fetched = at;
            let elements = bytes.get(srq_next::SIZE..).unwrap_or_default();
            self.core.log.trace.line(|| format::receive(Queue::Shared, srqn, entry.into(), elements));
            let sges = self.elements(elements, || format!("shared receive queue {srqn:#x}, entry {entry}"));
            let wr = RecvWr { wr_id: u64::from(entry), sges: &sges };
            match self.engine.post_srq_recv(SrqId(srqn), &wr) {
                Ok(()) => {}
                Err(PostRefused::TooManySge) => {
                    return self.collapse_srq(
                        srqn,
                        Rule::RecvOverrun,
                        format!("entry {entry} has too many elements"),
                    );
                }
                Err(why) => {
                    return self.collapse_srq(srqn, Rule::RecvOverrun, format!("entry {entry}: {why}"));
                }
            }
        }
    }

    fn collapse_srq(&mut self, srqn: u32, rule: Rule, what: String) {
        self.core.log.complain(rule, format!("shared receive queue {srqn:#x}: {what}"));
        if let Some(srq) = self.core.srqs.get_mut(&srqn) {
            srq.run.broken = true;
        }
        let mut event = [0; 28];
        qp_srq::QPN_RQN_SQN.set(&mut event, srqn);
        self.core.event(EventType::SrqCatastrophic, 0, &event);
    }

    /// Returns the elements of a receive; [`UNREADABLE`] if its list breaks a rule.
    fn elements(&mut self, bytes: &[u8], which: impl Fn() -> String) -> Vec<Sge> {
        list(bytes).unwrap_or_else(|what| {
            self.core.log.complain(Rule::RecvTerminator, format!("{}: {what}", which()));
            vec![UNREADABLE]
        })
    }

    /// Flushes new receives of queue pairs in the error state.
    pub(crate) fn look(&mut self) {
        let mut news = false;
        for qpn in self.core.attention.flushing.iter().copied().collect::<Vec<_>>() {
            if self.state(qpn) != State::Err {
                self.core.attention.flushing.remove(&qpn);
                continue;
            }
            let fetched = |function: &Self| function.core.qps.get(&qpn).map(|qp| qp.run.recv.fetched);
            let before = fetched(self);
            if !matches!(self.core.qps.get(&qpn).map(|qp| qp.rq), Some(Receives::Own(_))) {
                self.core.attention.flushing.remove(&qpn);
                continue;
            }
            self.refill(qpn);
            news |= fetched(self) != before;
        }
        let attention = &mut self.core.attention;
        if attention.flushing.is_empty() {
            attention.next_look = None;
            return;
        }
        if news {
            attention.pause = SHORTEST_PAUSE;
        }
        if news || attention.next_look.is_none_or(|due| due <= self.core.now) {
            attention.next_look = Some(self.core.now + attention.pause);
            attention.pause = (attention.pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        }
    }
}

impl<B: Bus> Core<B> {
    /// Records the first bytes of a queue pair's receives when it leaves RESET.
    pub(crate) fn remember_receives(&mut self, qpn: u32) {
        let first = self.first_receive(qpn);
        if let (Some(qp), Some(first)) = (self.qps.get_mut(&qpn), first) {
            qp.run.recv.first = first;
        }
    }

    /// Notes that receives were placed in the buffer but never announced by the doorbell record,
    /// although a peer received "receiver not ready". The queue pair is about to leave its state.
    ///
    /// A program that is killed between its provider's two stores leaves the same traces.
    pub(crate) fn note_unannounced(&mut self, qpn: u32) {
        let Some(first) = self.first_receive(qpn) else { return };
        let Some(qp) = self.qps.get(&qpn).filter(|qp| qp.run.recv.not_ready) else { return };
        let mut head = [0; 4];
        let read = qp.doorbell_record.map(|record| self.bus.read(record, &mut head));
        if read == Some(Ok(())) && head == [0; 4] && first != qp.run.recv.first {
            self.log.complaints.note(format_args!(
                "queue pair {qpn:#x} was never ready: receives are in its buffer, its doorbell record is still 0"
            ));
        }
    }

    /// Returns the first 16 bytes of a queue pair's own receive queue.
    fn first_receive(&self, qpn: u32) -> Option<[u8; 16]> {
        let qp = self.qps.get(&qpn).filter(|qp| matches!(qp.rq, Receives::Own(_)))?;
        let mut first = [0; 16];
        qp.pages.read(&self.bus, 0, &mut first).ok()?;
        Some(first)
    }
}

/// Returns the bytes of a receive up to the end of its list, which starts at `begin`.
fn used(bytes: &[u8], begin: usize) -> Vec<u8> {
    let mut elements = bytes.get(begin..).unwrap_or_default().chunks_exact(data::SIZE);
    let end = elements.position(is_terminator).map_or(bytes.len(), |last| begin + (last + 1) * data::SIZE);
    bytes.get(..end).unwrap_or_default().to_vec()
}

fn is_terminator(element: &[u8]) -> bool {
    data::BYTE_COUNT.get32(element) == 0 && data::LKEY.get32(element) == TERMINATOR
}

/// Returns the elements of a list, or a description of the violation.
fn list(bytes: &[u8]) -> Result<Vec<Sge>, String> {
    let mut sges = Vec::with_capacity(bytes.len() / data::SIZE);
    for element in bytes.chunks_exact(data::SIZE) {
        if let Some((_, bits)) = data::TABLE.reserved(element) {
            return Err(format!("bits {bits:#x} of a length"));
        }
        if is_terminator(element) {
            break;
        }
        match (data::BYTE_COUNT.get32(element), data::LKEY.get32(element)) {
            // This memory was never written.
            (0, 0) => return Err("an element of zeros".into()),
            (length, TERMINATOR) => return Err(format!("a terminator of {length} bytes")),
            (length, lkey) => {
                let length = if length == 0 { WHOLE } else { length };
                sges.push(Sge { addr: data::ADDRESS.get(element), length, lkey });
            }
        }
    }
    Ok(sges)
}
