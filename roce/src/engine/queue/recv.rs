//! [`RecvQueue`]: a ring of posted receives. [`Srq`]: a ring shared by queue pairs.
//!
//! | queue | when a receive leaves the ring |
//! |---|---|
//! | a queue pair's own | on completion: it stays at the front while its message arrives |
//! | shared | when its message starts, because messages of several queue pairs end in any order |
//!
//! # References
//! IBTA 10.2.9 (shared receive queues), 10.8.3 (posting)

use alloc::boxed::Box;

use super::filled;
use crate::engine::types::{CqId, Pd, PostRefused, RecvWr, Refused, Sge, XrcDomain};

/// The maximum number of scatter elements per receive in a shared queue. A queue pair that takes a
/// receive keeps a copy of the receive's elements.
pub(crate) const MAX_SRQ_SGE: u32 = 32;

/// A ring of posted receives.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    slots: Box<[Slot]>,
    /// The elements of all slots, `max_sge` per slot.
    sges: Box<[Sge]>,
    max_sge: usize,
    /// The index of the slot with the oldest receive.
    first: usize,
    len: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    wr_id: u64,
    sges: usize,
    /// The sum of the elements' lengths, in bytes.
    length: u64,
}

/// A posted receive, borrowed from its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted<'a> {
    pub(crate) wr_id: u64,
    pub(crate) sges: &'a [Sge],
    /// The sum of the elements' lengths, in bytes.
    pub(crate) length: u64,
}

impl RecvQueue {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// [`Refused::NoMemory`] if an allocation fails.
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Result<Self, Refused> {
        let (slots, max_sge) = (max_wr as usize, max_sge as usize);
        Ok(Self {
            slots: filled(Slot::default(), slots)?.into_boxed_slice(),
            sges: filled(Sge::default(), slots.saturating_mul(max_sge))?.into_boxed_slice(),
            max_sge,
            first: 0,
            len: 0,
        })
    }

    /// Returns the number of posted receives.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Appends a receive to the queue.
    pub(crate) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRefused> {
        self.check(wr)?;
        if self.len == self.slots.len() {
            return Err(PostRefused::QueueFull);
        }
        let mut at = self.first + self.len;
        if at >= self.slots.len() {
            at -= self.slots.len();
        }
        let begin = at * self.max_sge;
        self.sges[begin..begin + wr.sges.len()].copy_from_slice(wr.sges);
        let length = wr.sges.iter().map(|sge| u64::from(sge.length)).sum();
        self.slots[at] = Slot { wr_id: wr.wr_id, sges: wr.sges.len(), length };
        self.len += 1;
        Ok(())
    }

    /// Checks whether the receive could be posted if the queue had a free slot.
    pub(crate) fn check(&self, wr: &RecvWr<'_>) -> Result<(), PostRefused> {
        if wr.sges.len() > self.max_sge { Err(PostRefused::TooManySge) } else { Ok(()) }
    }

    /// Returns the oldest receive.
    #[inline]
    pub(crate) fn front(&self) -> Option<Posted<'_>> {
        if self.len == 0 {
            return None;
        }
        let slot = self.slots.get(self.first)?;
        let begin = self.first * self.max_sge;
        let sges = self.sges.get(begin..begin + slot.sges)?;
        Some(Posted { wr_id: slot.wr_id, sges, length: slot.length })
    }

    /// Removes the oldest receive.
    #[inline]
    pub(crate) fn pop(&mut self) {
        if self.len > 0 {
            self.len -= 1;
            self.first += 1;
            if self.first == self.slots.len() {
                self.first = 0;
            }
        }
    }

    /// Removes all receives.
    pub(crate) fn clear(&mut self) {
        (self.first, self.len) = (0, 0);
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) pd: Pd,
    pub(crate) rq: RecvQueue,
    pub(crate) xrc_domain: Option<XrcDomain>,
    /// The completion queue for the receives (XRC). If `None`, receives complete to their queue
    /// pair's completion queue.
    pub(crate) cq: Option<CqId>,
    /// The number of queue pairs that use the shared receive queue.
    pub(crate) users: u32,
    /// Whether the sink chooses the memory of each send
    /// ([`Sink::match_message`](crate::engine::memory::Sink::match_message)).
    pub(crate) matching: bool,
    /// The number of receives that messages to XRC targets have taken.
    pub(crate) taken: u32,
    /// The number of receives below which an event is raised; 0 if the queue is not armed.
    limit: u32,
}

impl Srq {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// [`Refused::NoMemory`] if an allocation fails.
    pub(crate) fn new(
        pd: Pd,
        max_wr: u32,
        max_sge: u32,
        xrc_domain: Option<XrcDomain>,
    ) -> Result<Self, Refused> {
        let rq = RecvQueue::new(max_wr, max_sge.min(MAX_SRQ_SGE))?;
        Ok(Self { pd, rq, xrc_domain, cq: None, users: 0, matching: false, taken: 0, limit: 0 })
    }

    pub(crate) fn arm(&mut self, limit: u32) -> Result<(), Refused> {
        if limit as usize > self.rq.capacity() {
            return Err(Refused::Invalid("the limit exceeds the size of the shared receive queue"));
        }
        self.limit = limit;
        Ok(())
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Moves the receives into a ring of another size.
    pub(crate) fn resize(&mut self, max_wr: u32) -> Result<(), Refused> {
        if (max_wr as usize) < self.rq.len() {
            return Err(Refused::Invalid("the shared receive queue holds more receives"));
        }
        if max_wr < self.limit {
            return Err(Refused::Invalid("the limit exceeds the size of the shared receive queue"));
        }
        let mut rq = RecvQueue::new(max_wr, self.rq.max_sge as u32)?;
        while let Some(Posted { wr_id, sges, .. }) = self.rq.front() {
            // The new ring has space for all receives and for their elements.
            let _ = rq.post(&RecvWr { wr_id, sges });
            self.rq.pop();
        }
        self.rq = rq;
        Ok(())
    }

    /// Removes the oldest receive. Returns true if the armed limit is now reached, at most once per
    /// arming (IBTA 10.2.9).
    #[inline]
    pub(crate) fn pop(&mut self) -> bool {
        self.rq.pop();
        let reached = self.rq.len() < self.limit as usize;
        if reached {
            self.limit = 0;
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sge(addr: u64, length: u32) -> Sge {
        Sge { addr, length, lkey: 1 }
    }

    #[test]
    fn receives_leave_in_the_order_in_which_they_came() {
        let mut rq = RecvQueue::new(3, 2).unwrap();
        let mut expected = 0;
        for wr_id in 0..20 {
            rq.post(&RecvWr { wr_id, sges: &[sge(wr_id, 3), sge(0, 4)][..(wr_id % 3) as usize] }).unwrap();
            if wr_id % 3 == 2 {
                while let Some(front) = rq.front() {
                    assert_eq!(front.wr_id, expected);
                    assert_eq!(front.sges.len() as u64, expected % 3);
                    assert_eq!(front.length, [0, 3, 7][(expected % 3) as usize]);
                    expected += 1;
                    rq.pop();
                }
            }
        }
        assert_eq!(expected, 18);
    }

    #[test]
    fn a_receive_that_does_not_fit_is_refused_and_changes_nothing() {
        let mut rq = RecvQueue::new(1, 1).unwrap();
        assert_eq!(rq.post(&RecvWr { wr_id: 1, sges: &[sge(0, 1); 2] }), Err(PostRefused::TooManySge));
        assert_eq!(rq.len(), 0);
        rq.post(&RecvWr { wr_id: 2, sges: &[sge(0, 1)] }).unwrap();
        assert_eq!(rq.post(&RecvWr { wr_id: 3, sges: &[] }), Err(PostRefused::QueueFull));
        assert_eq!(rq.front().unwrap().wr_id, 2);
    }

    #[test]
    fn a_queue_without_slots_is_full_and_empty() {
        let mut rq = RecvQueue::new(0, 4).unwrap();
        assert_eq!(rq.post(&RecvWr { wr_id: 1, sges: &[] }), Err(PostRefused::QueueFull));
        assert!(rq.front().is_none());
        rq.pop();
    }

    #[test]
    fn the_limit_is_told_once() {
        let mut srq = Srq::new(Pd(1), 4, 1, None).unwrap();
        for wr_id in 0..4 {
            srq.rq.post(&RecvWr { wr_id, sges: &[] }).unwrap();
        }
        assert!(srq.arm(5).is_err());
        srq.arm(3).unwrap();
        assert_eq!([srq.pop(), srq.pop(), srq.pop()], [false, true, false]);
    }

    #[test]
    fn another_size_keeps_the_receives_in_their_order() {
        let mut srq = Srq::new(Pd(1), 4, 1, None).unwrap();
        let post = |srq: &mut Srq, wr_id| srq.rq.post(&RecvWr { wr_id, sges: &[sge(wr_id, 3)] });
        (0..4).for_each(|wr_id| post(&mut srq, wr_id).unwrap());
        srq.pop();
        post(&mut srq, 4).unwrap();
        assert!(srq.resize(3).is_err(), "fewer than its receives");
        srq.arm(4).unwrap();
        srq.resize(6).unwrap();
        assert!(srq.resize(4).is_ok());
        srq.resize(6).unwrap();
        post(&mut srq, 5).unwrap();
        post(&mut srq, 6).unwrap();
        assert_eq!(post(&mut srq, 7), Err(PostRefused::QueueFull));
        for expected in 1..7 {
            let front = srq.rq.front().unwrap();
            assert_eq!((front.wr_id, front.sges, front.length), (expected, &[sge(expected, 3)][..], 3));
            srq.pop();
        }
        assert!(srq.resize(2).is_ok(), "the limit was reached");
        srq.arm(2).unwrap();
        assert!(srq.resize(1).is_err(), "below the limit");
    }
}
