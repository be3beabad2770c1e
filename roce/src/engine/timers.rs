//! [`Timers`]: the queue pairs with a timer, by expiry time.
//!
//! Each acknowledgement moves a timer, usually to a later time. The timer's entry keeps the old
//! time; when this time comes, the entry is moved to the new time. A queue pair therefore moves its
//! entry only once per timer period. A timer that moves to an earlier time gets a second entry,
//! which makes the first entry stale.
//!
//! Invariant: each queue pair with a timer has an entry at [`Qp::timer`], a time not later than the
//! timer's expiry.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

use super::qp::Qp;
use super::room;
use super::table::Table;
use super::types::{Refused, Time};

/// The queue pairs with a timer. The memory for their entries is allocated when the queue pairs are
/// created.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    entries: BinaryHeap<Reverse<(Time, u32)>>,
}

impl Timers {
    /// Allocates memory for `qps` queue pairs: one current and one stale entry for each.
    ///
    /// # Errors
    /// [`Refused::NoMemory`] if the allocation fails.
    pub(crate) fn reserve(&mut self, qps: usize) -> Result<(), Refused> {
        room::reserve_to(&mut self.entries, 2 * qps)
    }

    /// Returns a time that is not later than the expiry of any timer.
    #[inline]
    pub(crate) fn earliest(&self) -> Option<Time> {
        self.entries.peek().map(|Reverse((at, _))| *at)
    }

    /// Returns the number of entries, stale entries included.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds an entry for a queue pair whose [`Qp::timer`] is already set to this time.
    pub(crate) fn add(&mut self, at: Time, number: u32, qps: &Table<Qp>) {
        if self.entries.len() == self.entries.capacity() {
            // At least half of the entries are stale, so the mean cost of an entry stays constant.
            self.entries
                .retain(|Reverse((at, number))| qps.get(*number).is_some_and(|qp| qp.timer == Some(*at)));
        }
        self.entries.push(Reverse((at, number)));
    }

    /// Removes and returns an entry whose time has come; the entry may be stale.
    pub(crate) fn take(&mut self, now: Time) -> Option<(Time, u32)> {
        let &Reverse((at, _)) = self.entries.peek()?;
        if at > now {
            return None;
        }
        self.entries.pop().map(|Reverse(entry)| entry)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::engine::testing::{ALL, Host, connected};
    use crate::engine::types::{Payload, SendFlags, SendOp, SendWr, Service};
    use crate::wire::Psn;

    const MS: u64 = 1_000_000;

    #[test]
    fn each_of_many_queue_pairs_sends_again_when_its_own_time_has_come() {
        let mut host = Host::new();
        let (init, mr) = (host.init(Service::Rc), host.register(64, ALL));
        let qps: Vec<_> = (0..50).map(|_| host.qp(&init, &connected())).collect();
        for (n, qpn) in (0..).zip(&qps) {
            host.now = Time(n * MS);
            let sge = [mr.sge(0, 8)];
            let (op, flags) = (SendOp::Send { imm: None }, SendFlags::default());
            let wr = SendWr { wr_id: n, op, flags, payload: Payload::Sges(&sge), remote_srq: 0 };
            host.engine.post_send(*qpn, &wr, host.now, &mut host.log).unwrap();
            assert_eq!(host.sent().len(), 1);
        }
        let mut again = Vec::new();
        // The time-out is 4.096 µs × 2^14: 67 ms.
        while again.len() < qps.len() {
            host.now = host.engine.deadline().expect("a packet is lost");
            host.engine.timeout(host.now, &mut host.log);
            let sent = host.sent();
            assert!(sent.iter().all(|(headers, _)| headers.bth.psn == Psn::new(0xff_fffe)));
            again.extend(sent.iter().map(|_| host.now.0 / MS));
        }
        assert_eq!(again, (67..117).collect::<Vec<_>>());
        for qpn in qps {
            host.engine.destroy_qp(qpn).unwrap();
        }
        host.engine.timeout(Time(1 << 40), &mut host.log);
        assert_eq!(host.engine.deadline(), None, "no entry outlives its queue pair for long");
    }

    #[test]
    fn stale_entries_make_way_for_others() {
        let mut host = Host::new();
        let init = host.init(Service::Rc);
        let qps = [host.engine.create_qp(&init), host.engine.create_qp(&init)].map(Result::unwrap);
        let objects = &mut host.engine.objects;
        let room = objects.timers.entries.capacity();
        for step in 0..1000 {
            let (qpn, at) = (qps[step % 2], Time(5000 - step as u64));
            objects.qps.get_mut(qpn.0).unwrap().timer = Some(at);
            objects.timers.add(at, qpn.0, &objects.qps);
            assert_eq!(objects.timers.earliest(), Some(at));
        }
        assert_eq!(objects.timers.entries.capacity(), room);
    }
}
