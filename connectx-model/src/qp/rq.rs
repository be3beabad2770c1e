//! Fetches receives: from a queue pair's own queue, which is a ring, and from shared queues, which
//! are linked lists.
//!
//! Receives have no doorbell: the driver advances a counter in the doorbell record. The model reads
//! this counter before it handles a packet. For queue pairs in the error state, the model also
//! reads it periodically to flush their receives.
//!
//! | element | meaning |
//! |---|---|
//! | `length > 0` | a piece of memory |
//! | `length == 0`, key 0x100 | the terminator: the list ends |
//! | `length == 0`, another key | 2 GiB: a provider omits such elements from a program's list |
//!
//! libmlx5 omits elements of length 0 from a queue pair's own receives, but not from shared
//! receives. So these elements break a rule only in a queue pair's own receives
//! ([`Rule::RecvLength`]).
//!
//! An element of zeros means 2 GiB with a nonexistent key: a device accepts the receive, but a
//! message received into it fails. The model treats every list that breaks a rule in this way
//! ([`UNREADABLE`]).
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

/// The key of the element that ends a list.
pub(super) const TERMINATOR: u32 = 0x100;

/// Number of bytes in an element whose length field, of 31 bits, is 0.
const WHOLE: u32 = 1 << 31;

/// The element that replaces a list that breaks a rule. No key covers its memory.
pub(super) const UNREADABLE: Sge = Sge { addr: 0, length: WHOLE, lkey: 0 };

/// Minimum interval between checks for new receives on queue pairs in the error state, in
/// nanoseconds. It applies after new receives.
pub(super) const SHORTEST_PAUSE: u64 = 1_000_000;
/// Maximum interval between these checks, in nanoseconds. It applies after some checks without new
/// receives.
const LONGEST_PAUSE: u64 = 64_000_000;

impl<B: Bus> Function<B> {
    /// Passes a queue pair's new receives to the engine, from its own queue or from the shared
    /// queue that it uses.
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
        // The number of iterations is at most the number of slots.
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
        // An entry that is already posted ends the loop, so each entry is visited at most once.
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

    /// Decodes the elements of a receive; returns [`UNREADABLE`] if the list breaks a rule.
    fn elements(&mut self, bytes: &[u8], which: impl Fn() -> String) -> Vec<Sge> {
        list(bytes).unwrap_or_else(|what| {
            self.core.log.complain(Rule::RecvTerminator, format!("{}: {what}", which()));
            vec![UNREADABLE]
        })
    }

    /// Flushes the new receives of queue pairs in the error state.
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
    /// Records the first bytes of a queue pair's own receive queue when the queue pair leaves
    /// RESET.
    pub(crate) fn remember_receives(&mut self, qpn: u32) {
        let first = self.first_receive(qpn);
        if let (Some(qp), Some(first)) = (self.qps.get_mut(&qpn), first) {
            qp.run.recv.first = first;
        }
    }

    /// Records a note if a queue pair's buffer contains receives that the doorbell record never
    /// announced, although a peer has got "receiver not ready". Called before the queue pair is
    /// destroyed or reset.
    ///
    /// A program that is killed between its provider's two stores leaves the same state.
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

    /// Returns the first 16 bytes of a queue pair's own receive queue; `None` without such a queue.
    fn first_receive(&self, qpn: u32) -> Option<[u8; 16]> {
        let qp = self.qps.get(&qpn).filter(|qp| matches!(qp.rq, Receives::Own(_)))?;
        let mut first = [0; 16];
        qp.pages.read(&self.bus, 0, &mut first).ok()?;
        Some(first)
    }
}

/// Returns the bytes of a receive through the end of its list. The list starts at offset `begin`.
fn used(bytes: &[u8], begin: usize) -> Vec<u8> {
    let mut elements = bytes.get(begin..).unwrap_or_default().chunks_exact(data::SIZE);
    let end = elements.position(is_terminator).map_or(bytes.len(), |last| begin + (last + 1) * data::SIZE);
    bytes.get(..end).unwrap_or_default().to_vec()
}

fn is_terminator(element: &[u8]) -> bool {
    data::BYTE_COUNT.get32(element) == 0 && data::LKEY.get32(element) == TERMINATOR
}

/// Decodes the elements of a list. Returns a description if the list breaks a rule.
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
            // The driver never wrote this memory.
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
