//! The receive that a message goes into: taken from a queue, filled, completed.
//!
//! | | its own queue | a shared queue |
//! |---|---|---|
//! | [`take`] | it stays at the front | it leaves the queue, and is retired; elements are copied |
//! | [`finish`] | it leaves the queue, is retired and completes | it completes |

use alloc::boxed::Box;

use crate::engine::control::World;
use crate::engine::memory::{Memory, Sink};
use crate::engine::qp::Qp;
use crate::engine::queue::{MAX_SRQ_SGE, Srq};
use crate::engine::scatter::{self, SgeError};
use crate::engine::table::Table;
use crate::engine::types::{Completion, CqId, Event, Opcode, Pd, Sge, SrqId, Status};

/// The longest message (IBTA 9.7.4.1).
pub(super) const MAX_MESSAGE: u64 = 1 << 31;

/// The receive of the message that arrives, if it has one.
#[derive(Debug)]
pub(crate) struct Current {
    taken: Option<Taken>,
    /// The elements of one that came from a shared queue.
    sges: Option<Box<[Sge; MAX_SRQ_SGE as usize]>>,
}

#[derive(Clone, Copy, Debug)]
struct Taken {
    wr_id: u64,
    /// Whose keys its elements name.
    pd: Pd,
    cq: CqId,
    /// How many elements were copied, of one from a shared queue.
    copied: Option<usize>,
    length: u64,
    /// How many bytes it holds.
    received: u64,
}

impl Taken {
    /// How many bytes it holds with `len` more.
    #[inline]
    fn end(&self, len: usize) -> Result<u64, SgeError> {
        let end = self.received + len as u64;
        if end > self.length.min(MAX_MESSAGE) { Err(SgeError::Length) } else { Ok(end) }
    }
}

impl Current {
    pub(crate) fn new(shared: bool) -> Self {
        Self { taken: None, sges: shared.then(|| Box::new([Sge::default(); MAX_SRQ_SGE as usize])) }
    }

    pub(crate) fn forget(&mut self) {
        self.taken = None;
    }

    /// Has it one?
    pub(super) fn is_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// Has it one that came from a shared queue?
    pub(super) fn is_shared(&self) -> bool {
        self.taken.is_some_and(|taken| taken.copied.is_some())
    }

    /// How many bytes it holds.
    #[inline]
    pub(crate) fn received(&self) -> u64 {
        self.taken.map_or(0, |taken| taken.received)
    }

    /// How many bytes it can hold.
    #[inline]
    pub(crate) fn length(&self) -> u64 {
        self.taken.map_or(0, |taken| taken.length)
    }
}

/// Would [`take`] find one?
#[inline]
pub(crate) fn available(qp: &Qp, srqs: &Table<Srq>, srq: Option<SrqId>) -> bool {
    qp.resp.current.taken.is_some()
        || match srq {
            None => qp.rq.len() > 0,
            Some(srq) => srqs.get(srq.0).is_some_and(|srq| srq.rq.len() > 0),
        }
}

/// Takes the oldest receive for a new message; `false`: none is posted. One that an abandoned message left is taken again.
#[inline]
#[must_use]
pub(crate) fn take<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>, srq: Option<SrqId>) -> bool {
    let current = &mut qp.resp.current;
    if let Some(taken) = &mut current.taken {
        taken.received = 0;
        return true;
    }
    let Some(id) = srq else {
        let Some(posted) = qp.rq.front() else { return false };
        let (wr_id, length) = (posted.wr_id, posted.length);
        current.taken = Some(Taken { wr_id, pd: qp.pd, cq: qp.recv_cq, copied: None, length, received: 0 });
        return true;
    };
    let Some(srq) = world.srqs.get_mut(id.0) else { return false };
    let Some(posted) = srq.rq.front() else { return false };
    let Some(copy) = current.sges.as_mut().and_then(|copy| copy.get_mut(..posted.sges.len())) else {
        return false;
    };
    copy.copy_from_slice(posted.sges);
    current.taken = Some(Taken {
        wr_id: posted.wr_id,
        pd: srq.pd,
        cq: srq.cq.unwrap_or(qp.recv_cq),
        copied: Some(posted.sges.len()),
        length: posted.length,
        received: 0,
    });
    let limit_reached = srq.pop();
    world.sink.retire_srq(id, 1);
    if limit_reached {
        world.sink.event(Event::SrqLimitReached(id));
    }
    true
}

/// Puts bytes behind those that the receive holds.
#[inline]
pub(crate) fn put<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    bytes: &[u8],
) -> Result<(), SgeError> {
    let current = &mut qp.resp.current;
    let Some(taken) = &mut current.taken else { return Err(SgeError::Length) };
    let end = taken.end(bytes.len())?;
    let sges = match taken.copied {
        Some(count) => current.sges.as_ref().and_then(|copy| copy.get(..count)).unwrap_or_default(),
        None => qp.rq.front().map_or(&[][..], |posted| posted.sges),
    };
    scatter::scatter(world.keys, world.memory, taken.pd, sges, taken.received, bytes)?;
    taken.received = end;
    Ok(())
}

/// As [`put`], of bytes that go elsewhere, or nowhere.
pub(crate) fn count(qp: &mut Qp, len: usize) -> Result<(), SgeError> {
    let Some(taken) = &mut qp.resp.current.taken else { return Err(SgeError::Length) };
    taken.received = taken.end(len)?;
    Ok(())
}

/// Ends the receive, if there is one: `completion` becomes its.
#[inline]
pub(crate) fn finish<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>, completion: Completion) {
    let Some(taken) = end(qp, world) else { return };
    qp.complete(world, taken.cq, &Completion { wr_id: taken.wr_id, ..completion });
}

/// As [`finish`], with the bytes that the completion brings along.
pub(super) fn finish_with<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    completion: Completion,
    data: &[u8],
) {
    let Some(taken) = end(qp, world) else { return };
    qp.complete_with(world, taken.cq, &Completion { wr_id: taken.wr_id, ..completion }, data);
}

/// The receive leaves its queue, if it is there still.
#[inline]
fn end<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>) -> Option<Taken> {
    let taken = qp.resp.current.taken.take()?;
    if taken.copied.is_none() {
        qp.rq.pop();
        world.sink.retire_recv(qp.qpn, 1);
    }
    Some(taken)
}

/// A receive's completion of which nothing is known yet but how it ended.
#[inline]
pub(crate) fn outcome(qp: &Qp, status: Status) -> Completion {
    Completion {
        wr_id: 0,
        status,
        opcode: Opcode::Recv,
        qpn: qp.qpn,
        byte_len: 0,
        imm: None,
        invalidated: None,
        src_qpn: 0,
        grh: false,
        // IBTA 11.4.2.2: what failed wakes who waits for solicited completions.
        solicited: status != Status::Success,
        sl: 0,
        slid: 0,
        vendor_err: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test that sends so much takes too long: this is the one place that the rule is.
    #[test]
    fn a_message_of_2_to_the_31_bytes_is_the_longest_that_a_receive_holds() {
        let taken =
            |received| Taken { wr_id: 0, pd: Pd(0), cq: CqId(0), copied: None, length: 1 << 32, received };
        assert_eq!(taken(MAX_MESSAGE - 256).end(256).ok(), Some(1 << 31));
        assert!(taken(MAX_MESSAGE - 256).end(257).is_err());
        assert!(taken(MAX_MESSAGE).end(1).is_err());
        assert_eq!(Taken { length: 300, ..taken(0) }.end(300).ok(), Some(300));
        assert!(Taken { length: 300, ..taken(0) }.end(301).is_err());
    }
}
