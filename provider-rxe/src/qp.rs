//! The queue pair: a kernel object and the two mapped queues created with it.
//!
//! | transition to | send queue | receive queue |
//! |---|---|---|
//! | RESET, [confirmed](Qp::confirm_reset) | closed, drained by the kernel | closed, drained |
//! | INIT, RTR | closed | open |
//! | RTS, SQD, ERR | open | open |
//!
//! A queue pair created with a shared receive queue has no separate receive queue.
//!
//! # Safety
//! The queues are mapped once, from the reply to the command that created them.
//!
//! # References
//! `ibv_create_qp(3)`, `ibv_modify_qp(3)`; Linux `drivers/infiniband/sw/rxe/rxe_qp.c`
#![allow(unsafe_code)]

use uverbs_abi::rdma_user_rxe::RxeCreateQpResp;
use verbs_core::channel::Uhw;
use verbs_core::cmd::qp::{QpHandles, QpInfo};
use verbs_core::kernel::{Groups, Kernel};
use verbs_core::provider::{Destroy, DeviceOps as _, EventsRead, PdOps, QpOps, QpParents, QpParts, SrqOps};
use verbs_core::types::{
    DeviceCapFlags, Gid, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpInitInfo, QpState, QpType,
};
use verbs_core::{Cause, Errno, Error, Result, cmd, transition};
use zerocopy::IntoBytes;

use crate::kick::Kick;
use crate::queue::Queue;
use crate::rq::Rq;
use crate::rxe::Rxe;
use crate::settle::{after_reset, reset_ends_requests};
use crate::sq::Sq;

/// A queue pair.
///
/// The queues own the mappings and may be dropped before the queue pair. This is sound while the
/// kernel still works on the queues: the kernel uses its own mapping and counts this process's
/// mapping as a reference to the pages (Linux `drivers/infiniband/sw/rxe/rxe_mmap.c`). The handles
/// of the crate `verbs` keep the work requests' memory alive.
#[derive(Debug)]
pub struct Qp {
    context: Kernel,
    handle: u32,
    qp_num: u32,
    qp_type: QpType,
    cap: QpCap,
    state: QpState,
    responder_table: ResponderTable,
    groups: Groups,
}

/// The size of the kernel's table of a queue pair's incoming reads and atomics; `None` before the
/// table exists.
///
/// `rxe_qp_from_attr` stores the new length before `free_rd_atomic_resources` walks the old table
/// with that length, so a growing table is overrun. Linux 5.10 crashes soon after; later sources
/// write zeros behind the table. A reset queue pair keeps its table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ResponderTable(Option<u32>);

impl ResponderTable {
    /// Returns the table after a change, with the length rounded as the kernel rounds it.
    ///
    /// # Errors
    /// Fails if the change would grow the table.
    fn resized(self, max_dest_rd_atomic: u8) -> core::result::Result<Self, Cause> {
        let entries = match max_dest_rd_atomic {
            0 => 0,
            some => u32::from(some).next_power_of_two(),
        };
        match self.0 {
            Some(now) if entries > now => {
                let reason = format!(
                    "max_dest_rd_atomic grows from {now} to {max_dest_rd_atomic}, and the kernel's rxe overruns \
                     its table then: create another queue pair"
                );
                Err(Cause::Other { reason: reason.into() })
            }
            _ => Ok(Self(Some(entries))),
        }
    }
}

impl Qp {
    pub(crate) fn create(
        context: &Kernel,
        parents: &QpParents<'_, Rxe>,
        attr: &QpInitAttr,
        caps: DeviceCapFlags,
    ) -> Result<QpParts<Rxe>> {
        let uverbs = context.uverbs();
        let event_fd = context.async_fd()?;
        let handles = QpHandles {
            pd: parents.pd.map(PdOps::handle),
            send_cq: parents.send_cq.map(|cq| cq.0),
            recv_cq: parents.recv_cq.map(|cq| cq.0),
            srq: parents.srq.map(SrqOps::handle),
            xrcd: None,
        };
        let create = |attr: &QpInitAttr, reply: &mut RxeCreateQpResp| {
            let uhw = Uhw::reply(reply.as_mut_bytes());
            cmd::qp::create_qp(uverbs, &handles, attr, Some(event_fd), uhw)
        };
        let mut reply = RxeCreateQpResp::default();
        let info = create(attr, &mut reply).map_err(|error| {
            context.explain_create_qp(error, attr, || {
                max_inline(context, attr, |probe| create(probe, &mut RxeCreateQpResp::default()))
            })
        })?;
        Self::map(context, attr, &info, &reply, handles.srq.is_some(), caps).inspect_err(|_| {
            // The mapping's error is the one to report. If the queue pair cannot be destroyed,
            // closing the context destroys it.
            let _ = cmd::qp::destroy_qp(uverbs, info.handle);
        })
    }

    fn map(
        context: &Kernel,
        attr: &QpInitAttr,
        info: &QpInfo,
        reply: &RxeCreateQpResp,
        is_shared: bool,
        caps: DeviceCapFlags,
    ) -> Result<QpParts<Rxe>> {
        let uverbs = context.uverbs();
        let cap = if is_shared { QpCap { max_recv_sge: 0, ..info.cap } } else { info.cap };
        let rq = if is_shared {
            // The kernel creates no receive queue and leaves that part of the reply empty.
            Rq::none()
        } else {
            // SAFETY: the kernel has just created the queue, and its reply describes it.
            Rq::new(unsafe { Queue::map(uverbs, "create_qp", &reply.rq_mi, Rq::element(&cap)) }?, &cap)
        };
        // SAFETY: as for the receive queue.
        let sq = unsafe { Queue::map(uverbs, "create_qp", &reply.sq_mi, Sq::element(&cap)) }?;
        let kick = uverbs.cmd_fd().map(|fd| Kick::new(fd, info.handle));
        let sq = Sq::new(sq, attr.qp_type, &cap, caps, kick);
        // The kernel rounds up the queues; some kernels do not report the result. The queues accept
        // as many requests as fit.
        let cap = QpCap { max_send_wr: sq.capacity(), max_recv_wr: rq.capacity(), ..cap };
        let qp = Self {
            context: context.clone(),
            handle: info.handle,
            qp_num: info.qp_num,
            qp_type: attr.qp_type,
            cap,
            state: QpState::RESET,
            responder_table: ResponderTable::default(),
            groups: Groups::default(),
        };
        Ok(QpParts { qp, sq, rq })
    }

    /// Ensures that a queue pair stays in RESET after the kernel has confirmed it.
    ///
    /// `rxe_qp_from_attr` stores the new state before `rxe_qp_reset` stops the tasks, and a task
    /// failing in between overwrites it with ERR (`rxe_qp_error`). The kernel drains the queues
    /// nevertheless, after the tasks have stopped. But the queue pair is in ERR and cannot go to
    /// INIT. Nothing is posted and no task runs then, so a second RESET takes effect. Packets do
    /// not make a queue pair in RESET run (`check_type_state`).
    ///
    /// # Errors
    /// `EBUSY` if the queue pair does not stay in RESET; the errno of `query_qp`, of `modify_qp`,
    /// or of [waiting for tasks](after_reset). In all these cases the requests still count as
    /// posted.
    fn confirm_reset(&self) -> Result<()> {
        let uverbs = self.context.uverbs();
        let reset = QpAttr { qp_state: QpState::RESET, ..QpAttr::default() };
        for _ in 0..RESETS {
            let (attr, _) = cmd::qp::query_qp(uverbs, self.handle, QpAttrMask::STATE)?;
            if attr.qp_state == QpState::RESET {
                return after_reset().map_err(|errno| uverbs.error("modify_qp", errno));
            }
            cmd::qp::modify_qp(uverbs, self.handle, &reset, QpAttrMask::STATE)?;
        }
        let by = "the kernel: the queue pair does not stay in RESET";
        Err(uverbs.error("modify_qp", Errno::BUSY).because(Cause::InUse { by }))
    }

    /// Returns the kernel's state of the queue pair. The kernel may have moved the queue pair to
    /// ERR.
    fn real_state(&self) -> QpState {
        let queried = cmd::qp::query_qp(self.context.uverbs(), self.handle, QpAttrMask::STATE);
        queried.map_or(self.state, |(attr, _)| attr.qp_state)
    }
}

impl QpOps for Qp {
    type Sq = Sq;
    type Rq = Rq;

    fn handle(&self) -> u32 {
        self.handle
    }

    fn qp_num(&self) -> u32 {
        self.qp_num
    }

    fn qp_type(&self) -> QpType {
        self.qp_type
    }

    fn cap(&self) -> QpCap {
        self.cap
    }

    fn state(&self) -> QpState {
        self.state
    }

    fn modify(&mut self, sq: &mut Sq, rq: &mut Rq, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let uverbs = self.context.uverbs();
        let refused = |cause| uverbs.error("modify_qp", Errno::INVAL).because(cause);
        if mask.intersects(QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::CAP) {
            // Newer kernels check the mask only if it includes the state. Otherwise they would free
            // a table in use, and ignore capacities.
            let (from, to) = transition::endpoints(self.state, attr, mask);
            transition::check(self.qp_type, from, to, mask).map_err(refused)?;
        }
        let responder_table = if mask.contains(QpAttrMask::MAX_DEST_RD_ATOMIC) {
            self.responder_table.resized(attr.max_dest_rd_atomic).map_err(refused)?
        } else {
            self.responder_table
        };
        if let Err(error) = cmd::qp::modify_qp(uverbs, self.handle, attr, mask) {
            // ENODATA: the source GID is an empty entry of the table. The last three are path
            // errors.
            if !matches!(
                error.errno,
                Errno::INVAL | Errno::NODATA | Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::TIMEDOUT
            ) {
                return Err(error);
            }
            let at = self.real_state();
            return Err(self.context.explain_modify_qp(error, self.qp_type, at, attr, mask));
        }
        self.responder_table = responder_table;
        if mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::RESET {
            self.confirm_reset()?;
        }
        if mask.contains(QpAttrMask::QKEY) {
            sq.set_qkey(attr.qkey);
        }
        if mask.contains(QpAttrMask::STATE) {
            let was_draining = self.state == QpState::SQD;
            self.state = attr.qp_state;
            sq.moved_to(attr.qp_state);
            rq.moved_to(attr.qp_state);
            if was_draining && attr.qp_state == QpState::RTS {
                sq.start_waiting();
            }
        }
        Ok(())
    }

    fn reset_ends_requests(&self) -> bool {
        reset_ends_requests()
    }

    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)> {
        cmd::qp::query_qp(self.context.uverbs(), self.handle, mask)
    }

    fn attach_mcast(&mut self, gid: &Gid, lid: u16) -> Result<()> {
        self.groups.attach(self.context.uverbs(), self.handle, self.qp_type, gid, lid)
    }

    fn detach_mcast(&mut self, gid: &Gid, lid: u16) -> Result<()> {
        self.groups.detach(self.context.uverbs(), self.handle, self.qp_type, gid, lid)
    }
}

impl Destroy for Qp {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.destroy_counting_events().map(drop)
    }

    fn destroy_counting_events(mut self) -> Result<EventsRead, (Self, Error)> {
        self.groups.detach_all(self.context.uverbs(), self.handle);
        cmd::qp::destroy_qp(self.context.uverbs(), self.handle).map_err(|error| (self, error))
    }
}

/// The maximum number of state queries after a RESET: the second RESET always takes effect.
const RESETS: u32 = 3;

/// Returns the maximum number of inline bytes for a queue pair. The device's attributes do not
/// report it. But the kernel lets inline data use the space of the longest gather list, and reports
/// that size for a queue pair with such a list.
fn max_inline(
    context: &Kernel,
    attr: &QpInitAttr,
    create: impl FnOnce(&QpInitAttr) -> Result<QpInfo>,
) -> Option<u32> {
    let device = context.query_device().ok()?;
    let cap = QpCap {
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: device.max_sge,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let probe = create(&QpInitAttr { cap, user_handle: 0, ..*attr }).ok()?;
    let _ = cmd::qp::destroy_qp(context.uverbs(), probe.handle);
    Some(probe.cap.max_inline_data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_for_the_peers_reads_never_grows() {
        let none = ResponderTable::default();
        for (lengths, fit) in [
            (&[0_u8, 0][..], true),
            (&[4, 3, 4, 2, 0], true),
            (&[5, 8], true),
            (&[255, 255, 1], true),
            (&[0, 1], false),
            (&[4, 5], false),
            (&[4, 2, 3], false),
        ] {
            let (last, before) = lengths.split_last().unwrap();
            let table = before.iter().fold(none, |table, &length| table.resized(length).unwrap());
            let resized = table.resized(*last);
            assert_eq!(resized.is_ok(), fit, "{lengths:?}");
            if let Err(cause) = resized {
                assert!(cause.to_string().contains("create another queue pair"), "{cause}");
            }
        }
    }
}
