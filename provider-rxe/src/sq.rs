//! The send queue.
//!
//! ```text
//!   post_one   check everything ──► fill the next slot          nothing is written for what is refused
//!   ring       publish the producer's index ──► kick             one system call per call of `post_send`
//! ```
//!
//! # Safety
//! Elements are stored through [`Slot`](crate::queue::Slot), whose two preconditions (the list fits, inline memory is
//! readable) are proved here.
//!
//! # References
//! `ibv_post_send(3)`; Linux `drivers/infiniband/sw/rxe/rxe_verbs.c` (`validate_send_wr`)
#![allow(unsafe_code)]

use core::fmt;
use core::mem::size_of;

use uverbs_abi::rdma_user_rxe::RxeSendWqe;
use verbs_core::Errno;
use verbs_core::provider::SendQueue;
use verbs_core::types::{
    Av, PostError, PostReason, QpCap, QpState, QpType, SendFlags, SendOp, SendWr, Sge, UdAddr,
};

use crate::ah::AV_TAG;
use crate::kick::Kick;
use crate::queue::{ProducerEnd, Queue, Slot};
use crate::wqe::{self, Atomic, Datagram, Path, Plain};

/// The most bytes that one message can have.
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

/// The bytes of local memory that an atomic takes. The kernel would move 8 bytes whatever the list says; a list of
/// another length is a mistake that would show up as a `byte_len` that lies.
const ATOMIC_LENGTH: u64 = 8;

/// With the top bit set in a work request's queue key, the queue pair's own is sent instead (IBTA volume 1, 10.2.5).
/// The kernel leaves this to the provider.
const OWN_QKEY: u32 = 1 << 31;

/// The send half of a queue pair.
pub struct Sq {
    end: ProducerEnd<RxeSendWqe>,
    /// A bit for each operation that may be posted now: those of the queue pair's type, none before RTS.
    accepts: u32,
    /// Those among them that take the short way through [`Sq::post_one`].
    accepts_plain: u32,
    max_sge: u32,
    max_inline: u32,
    /// The queue pair's own queue key.
    qkey: u32,
    qp_type: QpType,
    kick: Option<Kick>,
}

impl Sq {
    /// The send half of a queue pair in RESET. `None` for the kick: a test plays the kernel.
    pub(crate) fn new(queue: Queue, qp_type: QpType, cap: &QpCap, kick: Option<Kick>) -> Self {
        let end = ProducerEnd::new(queue);
        assert!(end.room() >= list_len(cap), "the queue was mapped for lists of this length");
        Self {
            end,
            accepts: 0,
            accepts_plain: 0,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline_data,
            qkey: 0,
            qp_type,
            kick,
        }
    }

    /// How many bytes a slot must have for a queue of this capacity.
    pub(crate) fn element(cap: &QpCap) -> usize {
        size_of::<RxeSendWqe>().saturating_add(list_len(cap))
    }

    /// How many sends can be posted before the kernel has taken one.
    pub(crate) fn capacity(&self) -> u32 {
        self.end.capacity()
    }

    /// The queue pair was moved to a state.
    pub(crate) fn moved_to(&mut self, state: QpState) {
        self.accepts = match state {
            QpState::RTS | QpState::SQD | QpState::SQE | QpState::ERR => operations(self.qp_type),
            _ => 0,
        };
        self.accepts_plain = if self.max_sge > 0 { self.accepts & PLAIN_OPERATIONS } else { 0 };
        if state == QpState::RESET {
            // The kernel drained the queue: it let its index catch up with ours, and cleared the slots. What was put
            // in and not published is forgotten.
            self.end.resync();
        }
    }

    /// The queue pair got a queue key.
    pub(crate) fn set_qkey(&mut self, qkey: u32) {
        self.qkey = qkey;
    }

    /// Why an operation is not accepted.
    #[cold]
    fn refusal(&self) -> PostReason {
        if self.accepts == 0 && operations(self.qp_type) != 0 {
            PostReason::InvalidState
        } else {
            PostReason::UnsupportedOp
        }
    }

    /// Posts by the short way: one SGE, common flags, an operation that has no operands of its own. Says whether it could.
    #[inline(always)]
    fn post_plain(&mut self, wr: &SendWr<'_>) -> bool {
        if self.accepts_plain & bit(&wr.op) != 0
            && COMMON_FLAGS.contains(wr.flags)
            && let [sge] = wr.sge
            && u64::from(sge.length) <= MAX_MESSAGE
            && let Some(mut slot) = self.end.next()
        {
            wqe::put_plain(&mut slot, wr, Plain::of(&wr.op), sge.length);
            // SAFETY: one SGE is not more than `max_sge`, or `accepts_plain` would be empty; `new` found room for that.
            unsafe { slot.put_list(wr.sge) };
            self.end.advance();
            return true;
        }
        false
    }

    /// Posts the rest of a batch of which the first `accepted` are in the queue and the next does not take the short way,
    /// and rings.
    ///
    /// # Safety
    /// As [`SendQueue::post_send`].
    #[inline(never)]
    unsafe fn post_rest(&mut self, wrs: &[SendWr<'_>], mut accepted: usize) -> Result<(), PostError> {
        let mut refused = None;
        for wr in &wrs[accepted..] {
            // SAFETY: the caller's promise is the same.
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

    /// Posts also what does not take the short way: atomics, datagrams, inline data, lists of other than one SGE. And
    /// says what is wrong with what is refused.
    ///
    /// Out of line, and so once for all: what it needs in registers would cost the others more than the call costs it.
    ///
    /// # Safety
    /// As [`SendQueue::post_one`].
    #[inline(never)]
    unsafe fn post_any(&mut self, wr: &SendWr<'_>) -> Result<(), PostReason> {
        if self.accepts & bit(&wr.op) == 0 {
            return Err(self.refusal());
        }
        let num_sge = wr.sge.len();
        if num_sge > self.max_sge as usize {
            return Err(PostReason::TooManySge { given: num_sge, max: self.max_sge });
        }
        let length = wr.sge.iter().map(|sge| u64::from(sge.length)).sum();
        if length > MAX_MESSAGE {
            return Err(PostReason::MessageTooLong { given: length });
        }
        if !COMMON_FLAGS.contains(wr.flags) {
            self.check_rare_flags(wr, length)?;
        }
        if bit(&wr.op) & PLAIN_OPERATIONS == 0 {
            // SAFETY: the caller's promise is the same; list and inline data were just checked.
            return unsafe { self.post_special(wr, length) };
        }
        let Some(mut slot) = self.end.next() else { return Err(PostReason::QueueFull) };
        wqe::put_plain(&mut slot, wr, Plain::of(&wr.op), length as u32);
        // SAFETY: checked above, and `new` found room for that much; the caller vouches for inline memory.
        unsafe { put_data(&mut slot, wr) };
        self.end.advance();
        Ok(())
    }

    /// Checks flags other than fence, signaled and solicited.
    fn check_rare_flags(&self, wr: &SendWr<'_>, length: u64) -> Result<(), PostReason> {
        // Neither checksums nor flags without a name: the device does not have them.
        let unknown = !COMMON_FLAGS.union(SendFlags::INLINE).contains(wr.flags);
        if unknown || bit(&wr.op) & INLINE_OPERATIONS == 0 {
            return Err(PostReason::UnsupportedOp);
        }
        if length > u64::from(self.max_inline) {
            return Err(PostReason::InlineTooLong { given: length, max: self.max_inline });
        }
        Ok(())
    }

    /// Posts an atomic or a datagram.
    ///
    /// # Safety
    /// As [`SendQueue::post_one`]. The list is not longer than `max_sge`, inline data not than `max_inline`.
    #[inline(never)]
    unsafe fn post_special(&mut self, wr: &SendWr<'_>, length: u64) -> Result<(), PostReason> {
        let special = match wr.op {
            SendOp::UdSend { to } => self.datagram(&to, None)?,
            SendOp::UdSendWithImm { to, imm_data } => self.datagram(&to, Some(imm_data))?,
            SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare, swap } => {
                atomic(Atomic { remote_addr, rkey, compare_add: compare, swap: Some(swap) }, length)?
            }
            SendOp::AtomicFetchAndAdd { remote_addr, rkey, add } => {
                atomic(Atomic { remote_addr, rkey, compare_add: add, swap: None }, length)?
            }
            _ => return Err(PostReason::UnsupportedOp),
        };
        let Some(mut slot) = self.end.next() else { return Err(PostReason::QueueFull) };
        match &special {
            Special::Datagram(datagram) => wqe::put_datagram(&mut slot, wr, datagram, length as u32),
            Special::Atomic(atomic) => wqe::put_atomic(&mut slot, wr, atomic, length as u32),
        }
        // SAFETY: the caller's promise; `new` found room for that much.
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

/// What [`Sq::post_special`] posts, checked.
enum Special<'a> {
    Datagram(Datagram<'a>),
    Atomic(Atomic),
}

fn atomic(atomic: Atomic, length: u64) -> Result<Special<'static>, PostReason> {
    if length != ATOMIC_LENGTH {
        return Err(PostReason::AtomicLength { given: length });
    }
    if !atomic.remote_addr.is_multiple_of(ATOMIC_LENGTH) {
        return Err(PostReason::AtomicMisaligned { remote_addr: atomic.remote_addr });
    }
    Ok(Special::Atomic(atomic))
}

/// Stores what lies behind the entry.
///
/// # Safety
/// There is room for it in the slot. With `INLINE`, every SGE is readable memory of this process.
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
        // SAFETY: the caller's promise is the same.
        unsafe { self.post_any(wr) }
    }

    #[inline(always)]
    fn ring(&mut self) -> Result<(), Errno> {
        self.end.publish();
        match &self.kick {
            Some(kick) => kick.kick(),
            None => Ok(()),
        }
    }

    #[inline(always)]
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        if wrs.is_empty() {
            return Ok(());
        }
        for (accepted, wr) in wrs.iter().enumerate() {
            if !self.post_plain(wr) {
                // SAFETY: the caller's promise is the same.
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
        f.debug_struct("Sq").field("end", &self.end).field("max_sge", &self.max_sge).finish_non_exhaustive()
    }
}

/// Flags that every operation takes.
const COMMON_FLAGS: SendFlags = SendFlags::FENCE.union(SendFlags::SIGNALED).union(SendFlags::SOLICITED);

/// An operation's bit in a set of operations.
#[inline(always)]
const fn bit(op: &SendOp<'_>) -> u32 {
    1 << match op {
        SendOp::Send => SEND,
        SendOp::SendWithImm { .. } => SEND_WITH_IMM,
        SendOp::UdSend { .. } => UD_SEND,
        SendOp::UdSendWithImm { .. } => UD_SEND_WITH_IMM,
        SendOp::RdmaWrite { .. } => RDMA_WRITE,
        SendOp::RdmaWriteWithImm { .. } => RDMA_WRITE_WITH_IMM,
        SendOp::RdmaRead { .. } => RDMA_READ,
        SendOp::AtomicCmpAndSwp { .. } => ATOMIC_CMP_AND_SWP,
        SendOp::AtomicFetchAndAdd { .. } => ATOMIC_FETCH_AND_ADD,
        _ => UNKNOWN,
    }
}

// In the order of the variants, so that the compiler needs no table to find an operation's number.
const SEND: u32 = 0;
const SEND_WITH_IMM: u32 = 1;
const UD_SEND: u32 = 2;
const UD_SEND_WITH_IMM: u32 = 3;
const RDMA_WRITE: u32 = 4;
const RDMA_WRITE_WITH_IMM: u32 = 5;
const RDMA_READ: u32 = 6;
const ATOMIC_CMP_AND_SWP: u32 = 7;
const ATOMIC_FETCH_AND_ADD: u32 = 8;
/// An operation that came after this provider is in no set.
const UNKNOWN: u32 = 31;

const SENDS: u32 = 1 << SEND | 1 << SEND_WITH_IMM;
const UD_SENDS: u32 = 1 << UD_SEND | 1 << UD_SEND_WITH_IMM;
const WRITES: u32 = 1 << RDMA_WRITE | 1 << RDMA_WRITE_WITH_IMM;
const READS: u32 = 1 << RDMA_READ;
const ATOMICS: u32 = 1 << ATOMIC_CMP_AND_SWP | 1 << ATOMIC_FETCH_AND_ADD;

/// The operations that are all [`Plain`].
const PLAIN_OPERATIONS: u32 = SENDS | WRITES | READS;

/// The operations whose data can be inline: those that only read it.
const INLINE_OPERATIONS: u32 = SENDS | UD_SENDS | WRITES;

/// Which operations a type of queue pair has.
const fn operations(qp_type: QpType) -> u32 {
    match qp_type {
        QpType::RC => SENDS | WRITES | READS | ATOMICS,
        QpType::UC => SENDS | WRITES,
        QpType::UD => UD_SENDS,
        _ => 0,
    }
}

/// Where a datagram goes, from the bytes that this provider put into the address vector.
#[inline(always)]
fn path(av: &Av) -> Result<Path<'_>, PostReason> {
    let bytes = av.bytes(AV_TAG).ok_or(PostReason::ForeignAv)?;
    if let Ok(ah_num) = <[u8; 4]>::try_from(bytes) {
        return Ok(Path::Numbered(u32::from_ne_bytes(ah_num)));
    }
    bytes.try_into().map(Path::Spelled).map_err(|_| PostReason::ForeignAv)
}

/// The bytes behind the element: a list of the most SGEs, or the most inline data.
fn list_len(cap: &QpCap) -> usize {
    (cap.max_send_sge as usize).saturating_mul(size_of::<Sge>()).max(cap.max_inline_data as usize)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::*;
    use crate::paper::PaperQueue;

    const WR: SendWr<'_> = SendWr { wr_id: 1, op: SendOp::Send, sge: &[], flags: SendFlags::SIGNALED };

    /// A send queue of 3 work requests whose kick goes to one end of a socket; the other end.
    fn kicking() -> (Sq, PaperQueue, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let paper = PaperQueue::new(4, 256);
        let cap = QpCap { max_send_wr: 3, max_send_sge: 1, ..QpCap::default() };
        // SAFETY: one thread has both ends.
        let region = unsafe { paper.region() };
        let queue = Queue::new(region, paper.size(), Sq::element(&cap)).unwrap();
        let kick = Kick::new(Arc::new(OwnedFd::from(ours)), 5);
        let mut sq = Sq::new(queue, QpType::RC, &cap, Some(kick));
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
        // SAFETY: a device on paper touches no memory of work requests.
        unsafe { sq.post_send(&[]) }.unwrap();
        assert_eq!(kicks(&theirs), 0);
        // SAFETY: as above.
        unsafe { sq.post_send(&[WR; 2]) }.unwrap();
        assert_eq!((kicks(&theirs), paper.count()), (1, 2));
        // SAFETY: as above.
        let error = unsafe { sq.post_send(&[WR; 2]) }.unwrap_err();
        assert_eq!(error, PostError { accepted: 1, reason: PostReason::QueueFull });
        assert_eq!((kicks(&theirs), paper.count()), (1, 3), "what was accepted is rung for");
        // SAFETY: as above.
        let error = unsafe { sq.post_send(&[WR]) }.unwrap_err();
        assert_eq!(error.accepted, 0);
        assert_eq!(kicks(&theirs), 0, "there is nothing to ring for");
    }

    #[test]
    fn a_kick_that_fails_says_how_many_are_in_the_queue() {
        let (mut sq, paper, theirs) = kicking();
        drop(theirs);
        // SAFETY: a device on paper touches no memory of work requests.
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
}
