//! The send queue.
//!
//! ```text
//!   post_one   check everything ──► fill the next slot     writes nothing for a rejected request
//!   ring       publish the producer's index ──► kick       one system call per `post_send`
//! ```
//!
//! # Safety
//! Elements are stored through [`Slot`](crate::queue::Slot), whose two preconditions (the list
//! fits, inline memory is readable) are proved here.
//!
//! # References
//! `ibv_post_send(3)`; Linux `drivers/infiniband/sw/rxe/rxe_verbs.c` (`validate_send_wr`)
#![allow(unsafe_code)]

use core::fmt;
use core::mem::size_of;

use uverbs_abi::rdma_user_rxe::RxeSendWqe;
use verbs_core::Errno;
use verbs_core::checks::{DeviceFault, SendChecks};
use verbs_core::provider::{FastPath, SendQueue};
use verbs_core::types::{
    Av, DeviceCapFlags, OpKind, PostError, PostReason, QpCap, QpState, QpType, SendFlags, SendOp, SendWr,
    Sge, UdAddr,
};

use crate::ah::AV_TAG;
use crate::kick::Kick;
use crate::queue::{ProducerEnd, Queue, Slot};
use crate::wqe::{self, Atomic, Bind, Datagram, Flush, Path, Plain};

/// The top bit of a work request's queue key. If it is set, the queue pair's own key is used
/// instead (IBTA volume 1, 10.2.5). The kernel leaves this to the provider.
const OWN_QKEY: u32 = 1 << 31;

/// The send queue of a queue pair.
pub struct Sq {
    end: ProducerEnd<RxeSendWqe>,
    checks: SendChecks,
    /// The queue pair's own queue key.
    qkey: u32,
    kick: Option<Kick>,
}

impl Sq {
    /// Creates the send queue of a queue pair in RESET. `kick` is `None` if a test simulates the
    /// kernel. `caps` contains the device's capabilities, notably for flushes, atomic writes and
    /// window binds.
    pub(crate) fn new(
        queue: Queue,
        qp_type: QpType,
        cap: &QpCap,
        caps: DeviceCapFlags,
        kick: Option<Kick>,
    ) -> Self {
        let end = ProducerEnd::new(queue);
        assert!(end.room() >= list_len(cap), "the queue was mapped for lists of this length");
        let flushes = caps.intersects(FLUSHES);
        let writes_atomically = caps.contains(DeviceCapFlags::ATOMIC_WRITE);
        let mut checks = SendChecks::new(qp_type, cap).with_placement(flushes, writes_atomically);
        // Linux 5.10 has no windows, but its `LOCAL_INV` invalidates regions of any process without
        // checking the key (`rxe_requester`).
        if caps.contains(DeviceCapFlags::MEM_WINDOW) {
            checks = checks.with_windows();
        }
        Self { end, checks, qkey: 0, kick }
    }

    /// Returns the size of a slot in a queue of this capacity, in bytes.
    pub(crate) fn element(cap: &QpCap) -> usize {
        size_of::<RxeSendWqe>().saturating_add(list_len(cap))
    }

    /// Returns the number of sends that fit before the kernel consumes one.
    pub(crate) fn capacity(&self) -> u32 {
        self.end.capacity()
    }

    /// Adapts the queue to the queue pair's new state.
    pub(crate) fn moved_to(&mut self, state: QpState) {
        self.checks.moved_to(state);
        if state == QpState::RESET {
            // The kernel drained the queue: it moved its index up to the producer's and cleared the
            // slots. Requests queued but not published are dropped.
            self.end.resync();
        }
    }

    /// Makes the kernel start the requests that waited in SQD, because returning to RTS alone does
    /// not. If the system call fails, the next doorbell reports that.
    pub(crate) fn start_waiting(&self) {
        if let Some(kick) = &self.kick {
            let _ = kick.kick();
        }
    }

    /// Sets the queue pair's queue key.
    pub(crate) fn set_qkey(&mut self, qkey: u32) {
        self.qkey = qkey;
    }

    /// Posts a common request on the fast path. Returns whether the request was posted.
    #[inline(always)]
    fn post_plain(&mut self, wr: &SendWr<'_>) -> bool {
        if self.checks.is_plain(wr)
            && let [sge] = wr.sge
            && let Some(mut slot) = self.end.next()
        {
            wqe::put_plain(&mut slot, wr, Plain::from_op(&wr.op), sge.length);
            // SAFETY: the list has passed the checks, and `new` found room for the longest that
            // passes.
            unsafe { slot.put_list(wr.sge) };
            self.end.advance();
            return true;
        }
        false
    }

    /// Posts the rest of a batch and rings. The first `accepted` requests are in the queue; the
    /// next request does not take the fast path.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_send`].
    #[inline(never)]
    unsafe fn post_rest(&mut self, wrs: &[SendWr<'_>], mut accepted: usize) -> Result<(), PostError> {
        let mut refused = None;
        for wr in &wrs[accepted..] {
            // SAFETY: the caller makes the same promise.
            if let Err(reason) = unsafe { self.post_any(wr) } {
                refused = Some(reason);
                break;
            }
            accepted += 1;
        }
        if accepted > 0
            && let Err(errno) = self.ring()
        {
            refused = refused.or(Some(PostReason::Doorbell(errno)));
        }
        refused.map_or(Ok(()), |reason| Err(PostError { accepted, reason }))
    }

    /// Posts a request that does not take the fast path (an atomic, a flush, a datagram, an
    /// operation on a key, inline data, a list with no SGE or several), or returns the reason why
    /// it is rejected.
    ///
    /// Not inlined, because saving its registers would cost the fast path more than the call costs
    /// here.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_one`].
    #[inline(never)]
    unsafe fn post_any(&mut self, wr: &SendWr<'_>) -> Result<(), PostReason> {
        let length = match self.checks.check(wr) {
            Ok(length) => length,
            Err(reason) => self.length_of_faulty(wr, reason)?,
        };
        if !Plain::is(wr.op.kind()) {
            // SAFETY: the caller makes the same promise; list and inline data have passed the
            // checks.
            return unsafe { self.post_special(wr, length) };
        }
        let Some(mut slot) = self.end.next() else { return Err(PostReason::QueueFull) };
        wqe::put_plain(&mut slot, wr, Plain::from_op(&wr.op), length);
        // SAFETY: list and inline data have passed the checks, and `new` found room for the longest
        // that pass; the caller promises that inline memory is readable.
        unsafe { put_data(&mut slot, wr) };
        self.end.advance();
        Ok(())
    }

    /// Returns the message length of an invalid request that is left to the kernel, as in librxe,
    /// or the reason to reject the request. The list and inline data have passed the checks.
    ///
    /// The kernels of docs/conformance.md complete an operation unknown to them, or invalid for the
    /// type of queue pair, with `IBV_WC_LOC_QP_OP_ERR` (`next_opcode`). They complete a datagram
    /// longer than the MTU with success but send no packet. A message beyond 2 GiB is rejected
    /// here: 5.10 treats its length as a negative number and writes past the packet
    /// (`rxe_requester`, `init_req_packet`); later kernels send it.
    #[cold]
    fn length_of_faulty(&self, wr: &SendWr<'_>, reason: PostReason) -> Result<u32, PostReason> {
        let given = match self.checks.left_to_device(wr, reason)? {
            DeviceFault::Length(given) => given,
            DeviceFault::Operation => match wr.op {
                SendOp::AtomicWrite { .. } => ATOMIC_WRITE.into(),
                SendOp::Flush { length, .. } => length.into(),
                _ => wr.sge.iter().map(|sge| u64::from(sge.length)).sum(),
            },
        };
        match i32::try_from(given) {
            Ok(length) => Ok(length.cast_unsigned()),
            Err(_) => Err(PostReason::MessageTooLong { given }),
        }
    }

    /// Posts an atomic, a flush, an atomic write, a datagram, or an operation on a key.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_one`]. The request has passed the checks, and `length` is the
    /// length of its message.
    #[inline(never)]
    unsafe fn post_special(&mut self, wr: &SendWr<'_>, length: u32) -> Result<(), PostReason> {
        let special = match wr.op {
            SendOp::UdSend { to } => self.datagram(&to, None)?,
            SendOp::UdSendWithImm { to, imm_data } => self.datagram(&to, Some(imm_data))?,
            SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare, swap } => {
                Special::Atomic(Atomic { remote_addr, rkey, compare_add: compare, swap: Some(swap) })
            }
            SendOp::AtomicFetchAndAdd { remote_addr, rkey, add } => {
                Special::Atomic(Atomic { remote_addr, rkey, compare_add: add, swap: None })
            }
            SendOp::SendWithInv { invalidate_rkey } => Special::SendWithInv { invalidate_rkey },
            SendOp::LocalInv { invalidate_rkey } => Special::LocalInv { invalidate_rkey },
            SendOp::BindMw { rkey, new_rkey, bind_info, .. } => {
                Special::Bind(Bind { rkey, new_rkey, bind_info })
            }
            SendOp::Flush { remote_addr, rkey, placement, selectivity, .. } => {
                let (r#type, level) = (placement.bits(), selectivity.0);
                Special::Flush(Flush { remote_addr, rkey, r#type, level })
            }
            SendOp::AtomicWrite { remote_addr, rkey, data } => {
                Special::AtomicWrite { remote_addr, rkey, data }
            }
            SendOp::Tso { .. } => Special::Tso,
            _ => {
                let (op, qp_type): (OpKind, _) = (wr.op.kind(), self.checks.qp_type());
                return Err(PostReason::UnsupportedOp { op, qp_type });
            }
        };
        let Some(mut slot) = self.end.next() else { return Err(PostReason::QueueFull) };
        match &special {
            Special::Datagram(datagram) => wqe::put_datagram(&mut slot, wr, datagram, length),
            Special::Atomic(atomic) => wqe::put_atomic(&mut slot, wr, atomic, length),
            Special::SendWithInv { invalidate_rkey } => {
                wqe::put_send_with_inv(&mut slot, wr, *invalidate_rkey, length);
            }
            Special::LocalInv { invalidate_rkey } => wqe::put_local_inv(&mut slot, wr, *invalidate_rkey),
            Special::Bind(bind) => wqe::put_bind(&mut slot, wr, bind),
            Special::Tso => wqe::put_tso(&mut slot, wr, length),
            Special::Flush(flush) => {
                wqe::put_flush(&mut slot, wr, flush, length);
                // SAFETY: an element of length zero names no memory; `list_len` makes room for one.
                unsafe { slot.put_list(&[Sge::default()]) };
            }
            Special::AtomicWrite { remote_addr, rkey, data } => {
                wqe::put_atomic_write(&mut slot, wr, *remote_addr, *rkey, length);
                let addr = data.as_ptr().expose_provenance() as u64;
                // SAFETY: the 8 bytes are readable; `list_len` makes room for them. The request has
                // no list that would follow: it has passed the checks.
                unsafe { slot.put_inline(&[Sge { addr, length: ATOMIC_WRITE, lkey: 0 }]) };
            }
        }
        // SAFETY: the caller's promise; `new` found room for the longest list and inline data that
        // pass the checks.
        unsafe { put_data(&mut slot, wr) };
        self.end.advance();
        Ok(())
    }

    fn datagram<'a>(&self, to: &UdAddr<'a>, imm_data: Option<u32>) -> Result<Special<'a>, PostReason> {
        let remote_qkey = if to.remote_qkey & OWN_QKEY != 0 { self.qkey } else { to.remote_qkey };
        let path = path(to.av)?;
        Ok(Special::Datagram(Datagram { remote_qpn: to.remote_qpn, remote_qkey, path, imm_data }))
    }
}

/// A checked request for [`Sq::post_special`].
enum Special<'a> {
    Datagram(Datagram<'a>),
    Atomic(Atomic),
    SendWithInv {
        invalidate_rkey: u32,
    },
    LocalInv {
        invalidate_rkey: u32,
    },
    Bind(Bind<'a>),
    Flush(Flush),
    AtomicWrite {
        remote_addr: u64,
        rkey: u32,
        data: [u8; ATOMIC_WRITE as usize],
    },
    /// A segmented send (TSO), which the kernel rejects with an error completion.
    Tso,
}

/// The capabilities of a kernel that knows the flush opcode.
const FLUSHES: DeviceCapFlags = DeviceCapFlags::FLUSH_GLOBAL.union(DeviceCapFlags::FLUSH_PERSISTENT);

/// The length of an atomic write, in bytes. The entry holds these bytes in place of a list.
const ATOMIC_WRITE: u32 = 8;

/// Stores the list or the inline data after the entry.
///
/// # Safety
/// The slot has space for the list or the data. With `INLINE`, every SGE is readable memory of this
/// process.
#[inline(always)]
unsafe fn put_data(slot: &mut Slot<'_, RxeSendWqe>, wr: &SendWr<'_>) {
    // SAFETY: the caller's promises.
    unsafe {
        if wr.flags.contains(SendFlags::INLINE) { slot.put_inline(wr.sge) } else { slot.put_list(wr.sge) }
    }
}

impl SendQueue for Sq {
    #[inline(always)]
    unsafe fn post_one(&mut self, wr: &SendWr<'_>) -> Result<(), PostReason> {
        if self.post_plain(wr) {
            return Ok(());
        }
        // A copy, so a request built for this call stays in registers on the fast path.
        let wr = *wr;
        // SAFETY: the caller makes the same promise.
        unsafe { self.post_any(&wr) }
    }

    #[inline(always)]
    unsafe fn post_fast(&mut self, wr: &SendWr<'_>, path: FastPath) -> bool {
        path != FastPath::Alone && self.post_plain(wr)
    }

    #[inline(always)]
    fn ring(&mut self) -> Result<(), Errno> {
        self.end.publish();
        match &self.kick {
            Some(kick) => kick.kick(),
            None => Ok(()),
        }
    }

    fn leave_faults_to_device(&mut self) {
        self.checks.leave_faults_to_device();
    }

    fn rollback(&mut self, count: usize) -> usize {
        self.end.rollback(count)
    }

    #[inline(always)]
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        if wrs.is_empty() {
            return Ok(());
        }
        for (accepted, wr) in wrs.iter().enumerate() {
            if !self.post_plain(wr) {
                // SAFETY: the caller makes the same promise.
                return unsafe { self.post_rest(wrs, accepted) };
            }
        }
        self.end.publish();
        match &self.kick {
            Some(kick) => kick.kick_for(wrs.len()),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Sq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sq").field("end", &self.end).field("checks", &self.checks).finish_non_exhaustive()
    }
}

/// Returns the path of a datagram, from this provider's bytes in the address vector.
#[inline(always)]
fn path(av: &Av) -> Result<Path<'_>, PostReason> {
    let bytes = av.bytes(AV_TAG).ok_or(PostReason::ForeignAv)?;
    if let Ok(ah_num) = <[u8; 4]>::try_from(bytes) {
        return Ok(Path::Numbered(u32::from_ne_bytes(ah_num)));
    }
    bytes.try_into().map(Path::Spelled).map_err(|_| PostReason::ForeignAv)
}

/// Returns the number of bytes after the element: the longest list, the maximum inline data or an
/// atomic write, whichever is longest. The kernel reserves no space for an atomic write but rounds
/// up the slot size, from the 208 bytes of an element to 256.
fn list_len(cap: &QpCap) -> usize {
    let list = (cap.max_send_sge as usize).saturating_mul(size_of::<Sge>());
    // At least one element for a flush, or the bytes of an atomic write.
    list.max(cap.max_inline_data as usize).max(size_of::<Sge>()).max(ATOMIC_WRITE as usize)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::*;
    use crate::paper::PaperQueue;

    const WR: SendWr<'_> = SendWr { wr_id: 1, op: SendOp::Send, sge: &[], flags: SendFlags::SIGNALED };

    /// Returns a send queue for 3 work requests, its paper queue, and a socket that receives its
    /// kicks.
    fn kicking() -> (Sq, PaperQueue, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let paper = PaperQueue::new(4, 256);
        let cap = QpCap { max_send_wr: 3, max_send_sge: 1, ..QpCap::default() };
        // SAFETY: one thread has both ends.
        let region = unsafe { paper.region() };
        let queue = Queue::new(region, paper.size(), Sq::element(&cap)).unwrap();
        let kick = Kick::new(Arc::new(OwnedFd::from(ours)), 5);
        let mut sq = Sq::new(queue, QpType::RC, &cap, DeviceCapFlags::empty(), Some(kick));
        sq.moved_to(QpState::RTS);
        (sq, paper, theirs)
    }

    #[test]
    fn a_batch_is_one_kick_and_an_empty_one_none() {
        let (mut sq, paper, theirs) = kicking();
        theirs.set_nonblocking(true).unwrap();
        let kicks = |theirs: &UnixStream| {
            let mut bytes = [0; 256];
            std::io::Read::read(&mut &*theirs, &mut bytes).map_or(0, |len| len / 32)
        };
        // SAFETY: a paper device accesses no memory named by work requests.
        unsafe { sq.post_send(&[]) }.unwrap();
        assert_eq!(kicks(&theirs), 0);
        // SAFETY: as above.
        unsafe { sq.post_send(&[WR; 2]) }.unwrap();
        assert_eq!((kicks(&theirs), paper.count()), (1, 2));
        // SAFETY: as above.
        let error = unsafe { sq.post_send(&[WR; 2]) }.unwrap_err();
        assert_eq!(error, PostError { accepted: 1, reason: PostReason::QueueFull });
        assert_eq!((kicks(&theirs), paper.count()), (1, 3), "the accepted request is published");
        // SAFETY: as above.
        let error = unsafe { sq.post_send(&[WR]) }.unwrap_err();
        assert_eq!(error.accepted, 0);
        assert_eq!(kicks(&theirs), 0, "nothing was accepted, so nothing is kicked");
    }

    #[test]
    fn a_kick_that_fails_reports_how_many_are_in_the_queue() {
        let (mut sq, paper, theirs) = kicking();
        drop(theirs);
        // SAFETY: a paper device accesses no memory named by work requests.
        let error = unsafe { sq.post_send(&[WR; 2]) }.unwrap_err();
        assert_eq!(error.accepted, 2);
        assert!(matches!(error.reason, PostReason::Doorbell(_)), "{error}");
        assert_eq!(paper.count(), 2);
        // SAFETY: as above.
        let error = unsafe { sq.post_send(&[WR; 2]) }.unwrap_err();
        assert_eq!(
            error,
            PostError { accepted: 1, reason: PostReason::QueueFull },
            "the first reason counts"
        );
    }

    #[test]
    fn a_kick_that_failed_leaves_its_requests_in_the_queue() {
        let (mut sq, paper, theirs) = kicking();
        drop(theirs);
        // SAFETY: a paper device accesses no memory named by work requests.
        unsafe { sq.post_one(&WR) }.unwrap();
        assert!(sq.ring().is_err());
        assert_eq!((sq.rollback(usize::MAX), paper.count()), (0, 1), "the kernel may have read it");
        // SAFETY: as above.
        unsafe { sq.post_one(&WR) }.unwrap();
        assert_eq!((sq.rollback(usize::MAX), paper.count()), (1, 1), "this one was not published");
    }

    #[test]
    fn faults_that_librxe_does_not_look_for_are_left_to_the_kernel() {
        let (mut sq, paper, _theirs) = kicking();
        let huge = [Sge { addr: 0, length: u32::MAX, lkey: 1 }; 2];
        let long = SendWr { sge: &huge[..1], ..WR };
        let op = SendOp::AtomicWrite { remote_addr: 8, rkey: 1, data: [7; 8] };
        let unknown = SendWr { op, sge: &[], ..WR };
        // SAFETY: a paper device accesses no memory named by work requests.
        let post = |sq: &mut Sq, wr: &SendWr<'_>| unsafe { sq.post_one(wr) };
        assert!(matches!(post(&mut sq, &long), Err(PostReason::MessageTooLong { .. })));
        assert!(matches!(post(&mut sq, &unknown), Err(PostReason::UnsupportedOp { .. })));
        sq.leave_faults_to_device();
        assert!(matches!(post(&mut sq, &long), Err(PostReason::MessageTooLong { .. })), "5.10 is not safe");
        assert_eq!(post(&mut sq, &unknown), Ok(()));
        let invalidate = SendWr { op: SendOp::LocalInv { invalidate_rkey: 1 }, sge: &[], ..WR };
        assert!(matches!(post(&mut sq, &invalidate), Err(PostReason::UnsupportedOp { .. })), "no windows");
        sq.ring().unwrap();
        assert_eq!(paper.count(), 1);
    }
}
