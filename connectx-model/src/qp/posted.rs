//! [`Posted`]: copies of requests as the device first saw them. When a request ends, its copy is
//! compared with the queue entry.
//!
//! A send belongs to the device from its doorbell until its completion, and a receive from the
//! update of its doorbell record. The model copies each request at the start of this time. It
//! compares the two before it writes the completion, because the driver may reuse the position
//! afterwards.
//!
//! | queue | copied | compared | bytes |
//! |---|---|---|---|
//! | send | at the doorbell, everything announced | when it ends, signalled or not | all units |
//! | receive | when the record is read | when it ends | the list, with its terminator |
//! | shared | when the record is read | when it completes | the link, and the list as above |
//!
//! Stale bytes of an older request within these bytes are also compared, because no provider writes
//! them either. Three kinds of requests are not compared: requests on a queue pair that is reset or
//! destroyed, because they never end; requests in an inconsistent ring, because their positions are
//! unknown; and all requests after a fatal device error, because the driver then completes them
//! itself.
//!
//! Two kinds of late stores are not detected. One is a store to a send that completes before the
//! doorbell returns. The other is a store to a receive after the update of the doorbell record, if
//! the model has not read the record yet.
//!
//! # References
//! rdma-core `providers/mlx5/qp.c` (`mlx5_wq_overflow`), `cq.c` (`handle_good_req`), `srq.c`
//! (`mlx5_free_srq_wqe`); Linux `drivers/infiniband/hw/mlx5/wr.c` (`mlx5r_wq_overflow`), `srq.c`
//! (`mlx5_ib_free_srq_wqe`): a position is reused after the completion of its request or, without
//! one, of a later request.

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::Core;
use crate::layout::dword;
use crate::layout::wqe::ctrl;
use crate::state::qp::{Posted, Qp, Receives};

impl<B: Bus> Core<B> {
    /// Copies the work requests that a doorbell announces. If a work request has an impossible
    /// length, the next position is unknown and copying stops.
    pub(super) fn announce(&mut self, qpn: u32, from: u16, to: u16) {
        let mut at = from;
        // Each iteration advances by at least one block.
        while at != to {
            let Ok(bytes) = self.wqe(qpn, at, to.wrapping_sub(at), None) else { return };
            let len = ctrl::DS.get32(&bytes) as usize * 16;
            if len == 0 || len != bytes.len() {
                return;
            }
            let Some(qp) = self.qps.get_mut(&qpn) else { return };
            qp.run.send.posted.push(at, bytes);
            at = at.wrapping_add(len.div_ceil(super::BASIC_BLOCK as usize) as u16);
        }
    }

    /// Compares the sends that start before position `end`. These sends have ended.
    pub(super) fn compare_sends(&mut self, qpn: u32, end: u16) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        while let Some((at, before)) = qp.run.send.posted.pop_before(end) {
            let mut now = vec![0; before.len()];
            let Some(shape) = qp.sq else { return };
            if shape.read(&qp.pages, &self.bus, at, &mut now).is_ok()
                && let Some(what) = difference(&before, &now)
                && !self.iseg.has_failed()
            {
                self.log.complain(Rule::WqeChanged, format!("queue pair {qpn:#x} at {at}: {what}"));
            }
        }
    }

    /// Compares the receives before position `end` in a queue pair's own queue. These receives have
    /// ended.
    pub(super) fn compare_receives(&mut self, qpn: u32, end: u16) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        while let Some((at, before)) = qp.run.recv.posted.pop_before(end) {
            let Receives::Own(shape) = qp.rq else { return };
            let slot = u64::from(at) & ((1 << shape.log_size) - 1);
            let mut now = vec![0; before.len()];
            if qp.pages.read(&self.bus, slot << shape.log_stride, &mut now).is_ok()
                && let Some(what) = difference(&before, &now)
                && !self.iseg.has_failed()
            {
                self.log.complain(Rule::RecvChanged, format!("queue pair {qpn:#x}, receive {at}: {what}"));
            }
        }
    }

    /// Removes the copy of an entry in a shared receive queue and compares it with the entry, which
    /// is completing.
    pub(super) fn compare_entry(&mut self, srqn: u32, entry: u16) {
        let Some(srq) = self.srqs.get_mut(&srqn) else { return };
        let Some(before) = srq.run.outstanding.remove(&entry) else { return };
        let mut now = vec![0; before.len()];
        if srq.pages.read(&self.bus, u64::from(entry) * srq.stride, &mut now).is_ok()
            && let Some(what) = difference(&before, &now)
            && !self.iseg.has_failed()
        {
            let what = format!("shared receive queue {srqn:#x}, entry {entry}: {what}");
            self.log.complain(Rule::RecvChanged, what);
        }
    }
}

impl Qp {
    /// Drops all copies, because the positions of the requests are no longer known.
    pub(super) fn forget_posted(&mut self) {
        self.run.send.posted = Posted::default();
        self.run.recv.posted = Posted::default();
    }
}

/// Describes the first dword that differs; `None` if all bytes are equal.
fn difference(before: &[u8], now: &[u8]) -> Option<String> {
    let offset = before.iter().zip(now).position(|(before, now)| before != now)? & !3;
    Some(format!("dword {offset:#x} was {:#x} and is {:#x}", dword(before, offset), dword(now, offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_found_and_end_in_order_where_positions_wrap() {
        let mut posted = Posted::default();
        for at in [0xfffe, 0xffff, 1] {
            posted.push(at, at.to_be_bytes().to_vec());
        }
        assert_eq!(posted.get(1), Some(&[0, 1][..]));
        assert_eq!((posted.get(0), posted.get(0xfffd)), (None, None));
        assert_eq!(posted.pop_before(0xfffe), None);
        assert_eq!(posted.pop_before(0).map(|(at, _)| at), Some(0xfffe));
        assert_eq!(posted.pop_before(0).map(|(at, _)| at), Some(0xffff));
        assert_eq!(posted.pop_before(0), None, "it begins later");
        assert_eq!(posted.pop_before(2).map(|(at, _)| at), Some(1));
        assert_eq!(posted.pop_before(2), None);
    }
}
