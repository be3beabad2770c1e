//! The contract between the API and a provider: what rdma-core keeps in `driver.h`.
//!
//! A provider is a type that names its objects ([`Provider`]) and implements their operations:
//!
//! | trait | its object | who calls it |
//! |---|---|---|
//! | [`ContextOps`] | an open device | control path |
//! | [`PdOps`], [`MrOps`], [`AhOps`] | protection domain, memory region, address handle | control path |
//! | [`CqOps`], [`Completion`] | a completion queue and what it lends | data path |
//! | [`QpOps`], [`SendQueue`], [`RecvQueue`] | a queue pair and its halves | data path |
//!
//! Required operations have no default body, so that a new provider cannot forget one.
//!
//! Invariant: every object is self-contained. It keeps what it needs of its context alive, destroys itself in
//! [`destroy`](Destroy::destroy), and does not care in which order it is dropped relative to its parents: the API's
//! handles above keep parents alive, and the kernel refuses what would be wrong.
//!
//! Invariant: dropping an object without [`destroy`](Destroy::destroy) releases memory of this process only where the
//! device cannot touch it any more; the kernel object stays until the context's last file descriptor is closed.
//!
//! [`Erased`] is the provider that hides which provider it is. Its mirrors of these traits are private, so that the two
//! families are never in scope together.
//!
//! # Safety
//! The unsafe code here declares what callers promise when they register and post memory, and passes the promise on.

#![allow(unsafe_code)]

mod driver;
mod erased;

use core::any::Any;
use core::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};

pub use driver::{Driver, NamedProvider, OpenedContext};
pub use erased::{Erased, ErasedAh, ErasedContext, ErasedCq, ErasedMr, ErasedPd, ErasedQp};

use crate::types::{
    AccessFlags, AhAttr, Av, CqInitAttr, DeviceAttr, DeviceAttrEx, GidEntry, PortAttr, PostError, PostReason,
    QpAttr, QpAttrMask, QpCap, QpInitAttr, QpInitInfo, QpState, QpType, RecvWr, SendWr, Wc, WcFlags,
    WcOpcode, WcStatus,
};
use crate::{Errno, Result};

/// A provider: a name for a family of objects. Never instantiated.
///
/// # Safety
/// Safe code gives memory to a device and takes it back on the word of these objects. "The device" is whatever works for
/// an object: hardware, the kernel, another thread of this process. Implementing this trait promises each number below
/// for every object of the family, in every state, whatever safe code does with it and whatever peers send. The crate
/// `verbs` refers to the numbers, and each implementation argues each of them.
///
/// Posting:
///
/// 1. *What was refused was never queued.* After [`post_one`](SendQueue::post_one) returned `Err`, that request is not in
///    the queue. After a batch returned [`PostError`] with `accepted: n`, exactly its first n requests are, whatever the
///    reason says; after `Ok` all are. The device never touches the memory of a request that is not in its queue.
/// 2. *Arguments are read during the call only:* the requests, their lists and their address vectors, and with
///    [`INLINE`](crate::types::SendFlags::INLINE) the bytes that the lists name, which are not written either.
/// 3. *The device stays inside of the elements.* For a request it accesses bytes that the request's SGEs name, and no
///    others of this process. It reads them for sends, RDMA writes and datagrams; it writes them for receives, RDMA reads
///    and atomics. An SGE counts only with the key of a region of the queue pair's protection domain that covers it.
/// 4. *Any [`Av`] is harmless,* whoever made it: at worst a datagram goes astray, and no memory is touched but as of 3.
///
/// Completions:
///
/// 5. *A completion is the end.* It is lent, or copied out, only when its request has ended: the device does not write the
///    request's memory any more, and what it wrote is visible to the thread that polls. The same holds for the
///    unsignalled sends before it in the same queue. The device may still read memory to repeat what was sent, where the
///    peer discards the repetition whatever it contains.
/// 6. *The number is the request's.* A completion's [`wr_id`](Completion::wr_id) has all 64 bits as they were posted, each
///    time it is read. A number that was not posted to a queue of that completion queue is not found in it.
/// 7. *A queue lends its own completions:* those of sends are found in the queue pair's `send_cq`, those of receives in its
///    `recv_cq`, and in no other queue of this or another device.
/// 8. *A request completes at most once.* Safe posting does not need this; callers of raw posting do.
///
/// The end of a queue pair:
///
/// 9. *Destruction ends every request, and so does RESET where it says so.* Once [`destroy`](Destroy::destroy) returned
///    `Ok`, the device does not write the memory of any request that was posted before, told of or not; nor once
///    [`modify`](QpOps::modify) to [`QpState::RESET`] returned `Ok`, where
///    [`reset_ends_requests`](QpOps::reset_ends_requests) is true. Their completions may still be found. Nothing else ends
///    requests: after an `Err`, after any other transition, and where the device went to another state by itself, they end
///    by completions as before.
///
/// Regions:
///
/// 10. *A region is what was registered.* Its keys name the `length` bytes at `addr`, for as long as it lives, in its
///     protection domain; [`lkey`](MrOps::lkey) and [`rkey`](MrOps::rkey) do not change. No two live regions of a
///     protection domain have a key in common.
/// 11. *A region without remote rights is closed to peers.* No packet makes the device access it except by the requests
///     that this process posted; with remote rights, exactly those accesses that the rights name.
/// 12. *Deregistering ends every access.* Once [`destroy`](Destroy::destroy) of the region returned `Ok`, the device does
///     not write its bytes any more, and what it wrote is visible to the thread that called.
/// 13. *Accesses do not race.* A device that is a thread of this process accesses regions with remote rights as
///     [`crate::exposed`] does, and other regions only while a request that names the bytes is in a queue. What the program
///     wrote before a call of [`ring`](SendQueue::ring) or [`reg_mr`](ContextOps::reg_mr) happens before the accesses of
///     the device that follow from it.
///
/// Objects:
///
/// 14. *`destroy` tells the truth.* `Ok` means that the object is gone, never that it is unknown. `Err` gives back the same
///     object, and of it all of this still holds. `destroy` does not unwind.
/// 15. *Dropping is not destroying.* An object that is dropped, or lost in unwinding, releases nothing that the device may
///     still access; its keys and requests stay as they were.
/// 16. *Descriptors are real:* an [`OwnedFd`] is owned by nothing else, a [`BorrowedFd`] is open while the context lives.
/// 17. *Objects of another context* are refused, or do no more than make objects to which only raw posting applies.
/// 18. *A registration that failed registered nothing.* After [`reg_mr`](ContextOps::reg_mr) returned `Err`, no key names the
///     bytes because of that call. `reg_mr` does not unwind.
///
/// The halves that [`halves`](QpOps::halves) lends are meant for the queue pair that lends them. Code that gives `&mut` of
/// raw halves to safe code answers for its exchanging them with those of another queue pair; the crate `verbs` does not.
///
/// Safe code does not rely on handles, queue pair numbers, capacities, [`QpOps::state`], event records, or what queries
/// return: where these are wrong, results are wrong and memory is safe.
pub unsafe trait Provider: Sized + Debug + 'static {
    /// An open device.
    type Context: ContextOps<Self>;
    /// A protection domain.
    type Pd: PdOps;
    /// A memory region.
    type Mr: MrOps;
    /// A completion queue.
    type Cq: CqOps;
    /// A queue pair.
    type Qp: QpOps;
    /// An address handle.
    type Ah: AhOps;
}

/// How an object leaves the kernel.
pub trait Destroy: Sized {
    /// Destroys the kernel object, then releases what the device could touch through it.
    ///
    /// A device that was unplugged is no error: the kernel destroyed its objects, and confirms that for each.
    ///
    /// # Errors
    /// The object itself, and why it is not known to be gone: `EBUSY` while something uses it, `EIO` where the device
    /// failed to destroy it. It may be tried again.
    // The object comes back by value so that nothing is lost; destroying is no hot path.
    #[allow(clippy::result_large_err)]
    fn destroy(self) -> Result<(), (Self, crate::Error)>;
}

/// An open device.
pub trait ContextOps<P: Provider>: Any + Debug + Send + Sync {
    /// The device's name (`rxe0`).
    fn device_name(&self) -> &str;

    /// The provider's name (`rxe`).
    fn provider_name(&self) -> &'static str;

    /// How many completion vectors there are to choose from.
    fn num_comp_vectors(&self) -> u32;

    /// Asks what the device can do.
    ///
    /// # Errors
    /// What the kernel answers.
    fn query_device(&self) -> Result<DeviceAttr>;

    /// Asks what the device can do, with everything that was added over the years.
    ///
    /// # Errors
    /// What the kernel answers.
    fn query_device_ex(&self) -> Result<DeviceAttrEx>;

    /// Asks a port, from 1, how it is.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a port that does not exist.
    fn query_port(&self, port_num: u8) -> Result<PortAttr>;

    /// Every valid entry of every port's GID table, in one call where the kernel can.
    ///
    /// # Errors
    /// What the kernel answers.
    fn query_gid_table(&self) -> Result<Vec<GidEntry>>;

    /// One entry of a port's GID table; `None` for an empty one.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Gid`](crate::Cause::Gid) for an index outside the table.
    fn query_gid_entry(&self, port_num: u8, gid_index: u32) -> Result<Option<GidEntry>>;

    /// One entry of a port's partition key table, in host order.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for an index outside the table.
    fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16>;

    /// Where the device's asynchronous events arrive: records of `ib_uverbs_async_event_desc`.
    ///
    /// # Errors
    /// What the kernel answers.
    fn async_fd(&self) -> Result<BorrowedFd<'_>>;

    /// A file descriptor that completion events arrive at: the `u64` user handles of completion queues.
    ///
    /// # Errors
    /// What the kernel answers.
    fn create_comp_channel(&self) -> Result<OwnedFd>;

    /// A protection domain.
    ///
    /// # Errors
    /// What the kernel answers.
    fn alloc_pd(&self) -> Result<P::Pd>;

    /// Registers `length` bytes at `addr`, which the device knows as `iova` from then on.
    ///
    /// # Safety
    /// While the region is registered the device may read the bytes, and with
    /// [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE) write them, whenever a work request or a peer says so. The bytes must
    /// stay mapped, and whoever accesses them must be ready for that.
    ///
    /// # Errors
    /// [`Cause::Memlock`](crate::Cause::Memlock) where `RLIMIT_MEMLOCK` is in the way; otherwise what the kernel answers.
    unsafe fn reg_mr(
        &self,
        pd: &P::Pd,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<P::Mr>;

    /// A completion queue.
    ///
    /// # Errors
    /// [`Cause::Limit`](crate::Cause::Limit) for a size that the device does not have; otherwise what the kernel answers.
    fn create_cq(&self, attr: &CqInitAttr<'_>) -> Result<P::Cq>;

    /// A queue pair, in the state RESET.
    ///
    /// # Errors
    /// [`Cause::Limit`](crate::Cause::Limit) for a size that the device does not have; otherwise what the kernel answers.
    fn create_qp(&self, pd: &P::Pd, send_cq: &P::Cq, recv_cq: &P::Cq, attr: &QpInitAttr) -> Result<P::Qp>;

    /// An address handle: the path to a peer, resolved.
    ///
    /// # Errors
    /// What the kernel answers; [`Cause::Gid`](crate::Cause::Gid) for a source that does not exist.
    fn create_ah(&self, pd: &P::Pd, attr: &AhAttr) -> Result<P::Ah>;
}

/// A protection domain.
pub trait PdOps: Destroy + Any + Debug + Send + Sync {
    /// The kernel's handle.
    fn handle(&self) -> u32;
}

/// A memory region.
pub trait MrOps: Destroy + Any + Debug + Send + Sync {
    /// The kernel's handle.
    fn handle(&self) -> u32;

    /// The key for this process' own work requests.
    fn lkey(&self) -> u32;

    /// The key for peers.
    fn rkey(&self) -> u32;
}

/// An address handle.
pub trait AhOps: Destroy + Any + Debug + Send + Sync {
    /// What a datagram's work request carries.
    fn av(&self) -> &Av;
}

/// A completion queue. `&mut` is the lock: who polls owns it.
pub trait CqOps: Destroy + Any + Debug + Send {
    /// What [`next`](Self::next) lends: a look into the queue, which frees nothing when it goes.
    type Completion<'a>: Completion + Copy
    where
        Self: 'a;

    /// The kernel's handle.
    fn handle(&self) -> u32;

    /// How many completions fit.
    fn cqe(&self) -> u32;

    /// Lends the next completion, or says that there is none now.
    ///
    /// Its slot goes back to the device with the next call of [`finish`](Self::finish), at the latest.
    fn next(&mut self) -> Option<Self::Completion<'_>>;

    /// Gives the slots of all completions that were lent back to the device.
    fn finish(&mut self);

    /// Copies up to `wcs.len()` completions out, and says how many there were.
    #[inline]
    fn poll(&mut self, wcs: &mut [Wc]) -> usize {
        let mut count = 0;
        for wc in wcs {
            let Some(completion) = self.next() else { break };
            completion.write_to(wc);
            count += 1;
        }
        if count > 0 {
            self.finish();
        }
        count
    }

    /// Asks for one event when the next completion arrives (with `solicited_only`: the next solicited or failed one).
    ///
    /// # Errors
    /// What the kernel answers.
    fn req_notify(&mut self, solicited_only: bool) -> Result<()>;
}

/// A completion, read from the queue on demand.
///
/// Where [`status`](Self::status) is not success, only `wr_id`, `status`, `qp_num` and `vendor_err` mean something.
pub trait Completion {
    /// The work request's own number.
    fn wr_id(&self) -> u64;
    /// How the work request ended.
    fn status(&self) -> WcStatus;
    /// Which operation it was.
    fn opcode(&self) -> WcOpcode;
    /// The vendor's error syndrome.
    fn vendor_err(&self) -> u32;
    /// How many bytes arrived.
    fn byte_len(&self) -> u32;
    /// Immediate data as a number, or the invalidated key; see [`wc_flags`](Self::wc_flags).
    fn imm_data(&self) -> u32;
    /// The local queue pair.
    fn qp_num(&self) -> u32;
    /// The sender's queue pair (UD).
    fn src_qp(&self) -> u32;
    /// Which fields mean something.
    fn wc_flags(&self) -> WcFlags;
    /// The partition key's index.
    fn pkey_index(&self) -> u16;
    /// The sender's local id (UD, InfiniBand).
    fn slid(&self) -> u16;
    /// The service level (UD).
    fn sl(&self) -> u8;
    /// The low bits of the destination local id (UD, InfiniBand).
    fn dlid_path_bits(&self) -> u8;

    /// All of it, by value.
    #[inline(always)]
    fn write_to(&self, wc: &mut Wc) {
        *wc = Wc {
            wr_id: self.wr_id(),
            status: self.status(),
            opcode: self.opcode(),
            vendor_err: self.vendor_err(),
            byte_len: self.byte_len(),
            imm_data: self.imm_data(),
            qp_num: self.qp_num(),
            src_qp: self.src_qp(),
            wc_flags: self.wc_flags(),
            pkey_index: self.pkey_index(),
            slid: self.slid(),
            sl: self.sl(),
            dlid_path_bits: self.dlid_path_bits(),
        };
    }
}

impl Completion for &Wc {
    fn wr_id(&self) -> u64 {
        self.wr_id
    }
    fn status(&self) -> WcStatus {
        self.status
    }
    fn opcode(&self) -> WcOpcode {
        self.opcode
    }
    fn vendor_err(&self) -> u32 {
        self.vendor_err
    }
    fn byte_len(&self) -> u32 {
        self.byte_len
    }
    fn imm_data(&self) -> u32 {
        self.imm_data
    }
    fn qp_num(&self) -> u32 {
        self.qp_num
    }
    fn src_qp(&self) -> u32 {
        self.src_qp
    }
    fn wc_flags(&self) -> WcFlags {
        self.wc_flags
    }
    fn pkey_index(&self) -> u16 {
        self.pkey_index
    }
    fn slid(&self) -> u16 {
        self.slid
    }
    fn sl(&self) -> u8 {
        self.sl
    }
    fn dlid_path_bits(&self) -> u8 {
        self.dlid_path_bits
    }
}

/// The send half of a queue pair. `&mut` is the lock.
pub trait SendQueue: Debug + Send {
    /// Puts one work request into the queue; the device does not look before [`ring`](Self::ring).
    ///
    /// # Safety
    /// As [`QpOps::post_send`].
    ///
    /// # Errors
    /// Why it was not accepted; the queue is as before.
    unsafe fn post_one(&mut self, wr: &SendWr<'_>) -> Result<(), PostReason>;

    /// Tells the device of everything that was put into the queue.
    ///
    /// # Errors
    /// Why it could not be told. What was put in stays in, and goes with the next doorbell.
    fn ring(&mut self) -> Result<(), Errno>;

    /// Posts a batch: [`post_one`](Self::post_one) for each, [`ring`](Self::ring) once.
    ///
    /// # Safety
    /// As [`QpOps::post_send`].
    ///
    /// # Errors
    /// How many were accepted, and why the next was not.
    #[inline(always)]
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let mut refused = None;
        let mut accepted = 0;
        for wr in wrs {
            // SAFETY: the caller vouches for every work request of the batch.
            if let Err(reason) = unsafe { self.post_one(wr) } {
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
        match refused {
            None => Ok(()),
            Some(reason) => Err(PostError { accepted, reason }),
        }
    }
}

/// The receive half of a queue pair. `&mut` is the lock.
pub trait RecvQueue: Debug + Send {
    /// Puts one work request into the queue; the device does not look before [`ring`](Self::ring).
    ///
    /// # Safety
    /// As [`QpOps::post_recv`].
    ///
    /// # Errors
    /// Why it was not accepted; the queue is as before.
    unsafe fn post_one(&mut self, wr: &RecvWr<'_>) -> Result<(), PostReason>;

    /// Tells the device of everything that was put into the queue.
    fn ring(&mut self);

    /// Posts a batch: [`post_one`](Self::post_one) for each, [`ring`](Self::ring) once.
    ///
    /// # Safety
    /// As [`QpOps::post_recv`].
    ///
    /// # Errors
    /// How many were accepted, and why the next was not.
    #[inline(always)]
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut refused = None;
        let mut accepted = 0;
        for wr in wrs {
            // SAFETY: the caller vouches for every work request of the batch.
            if let Err(reason) = unsafe { self.post_one(wr) } {
                refused = Some(reason);
                break;
            }
            accepted += 1;
        }
        if accepted > 0 {
            self.ring();
        }
        match refused {
            None => Ok(()),
            Some(reason) => Err(PostError { accepted, reason }),
        }
    }
}

/// A queue pair.
pub trait QpOps: Destroy + Any + Debug + Send {
    /// Its send half.
    type Sq: SendQueue + ?Sized;
    /// Its receive half.
    type Rq: RecvQueue + ?Sized;

    /// The kernel's handle.
    fn handle(&self) -> u32;

    /// The number that peers address it by, 24 bits.
    fn qp_num(&self) -> u32;

    /// The transport service.
    fn qp_type(&self) -> QpType;

    /// How much it holds, as the device says.
    fn cap(&self) -> QpCap;

    /// The state that it was last moved to; the device may have moved it to [`QpState::ERR`] since.
    fn state(&self) -> QpState;

    /// Moves it, or changes its attributes.
    ///
    /// # Errors
    /// [`Cause::IllegalTransition`](crate::Cause::IllegalTransition) and
    /// [`Cause::TransitionAttributes`](crate::Cause::TransitionAttributes) where the table knows why; otherwise what the
    /// kernel answers.
    fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<()>;

    /// Returns whether moving to RESET ends every request, as destroying does: number 9 of [`Provider`]'s contract. Always
    /// the same for a queue pair.
    fn reset_ends_requests(&self) -> bool;

    /// Asks the kernel for its attributes.
    ///
    /// # Errors
    /// What the kernel answers.
    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)>;

    /// Both halves at once, for a poster on each side.
    fn halves(&mut self) -> (&mut Self::Sq, &mut Self::Rq);

    /// Posts a batch of sends, and tells the device once.
    ///
    /// # Safety
    /// From here until its completion was polled (or the queue pair was destroyed or reset) the device reads the memory
    /// of every SGE, and for RDMA reads and atomics writes it: nobody may free it, and nobody may touch it in conflict.
    /// No `wr_id` has its top bit set: those belong to safe posting, which takes memory back when it sees one.
    /// With [`INLINE`](crate::types::SendFlags::INLINE) every SGE is memory of this process that is read now, by its
    /// address, and is free when the call returns.
    ///
    /// # Errors
    /// How many were accepted, and why the next was not. The device owns the memory of those accepted.
    #[inline(always)]
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.halves().0.post_send(wrs) }
    }

    /// Posts a batch of receives.
    ///
    /// # Safety
    /// From here until its completion was polled (or the queue pair was destroyed or reset) the device may write the
    /// memory of every SGE: nobody may free it or touch it.
    /// No `wr_id` has its top bit set: those belong to safe posting, which takes memory back when it sees one.
    ///
    /// # Errors
    /// How many were accepted, and why the next was not. The device owns the memory of those accepted.
    #[inline(always)]
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.halves().1.post_recv(wrs) }
    }
}
