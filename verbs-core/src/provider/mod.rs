//! The contract between the API and a provider: what rdma-core keeps in `driver.h`.
//!
//! A provider is a type that names its objects ([`Provider`]) and implements their operations:
//!
//! | file | traits | the object | path |
//! |---|---|---|---|
//! | `context` | [`DeviceOps`] | an open device: queries | control |
//! | `context` | [`ContextOps`] | an open device: objects made from it | control |
//! | `context` | [`PdOps`], [`MrOps`], [`AhOps`] | their objects | control |
//! | `completion` | [`CqOps`], [`Completion`] | a completion queue and what it lends | data |
//! | `queue` | [`QpOps`] | a queue pair: its state | control |
//! | `queue` | [`SendQueue`], [`RecvQueue`] | the queues of a queue pair, owned by posters | data |
//!
//! Required operations have no default body, so that a new provider cannot forget one. A query does
//! not mention the provider: [`DeviceOps`] has one implementation for all devices of the kernel,
//! [`KernelContext`](crate::kernel::KernelContext).
//!
//! Invariant: every object is self-contained. It keeps what it needs of its context alive, destroys
//! itself in [`destroy`](Destroy::destroy), and may be dropped in any order relative to its
//! parents: the API's handles keep parents alive, and the kernel rejects the rest.
//!
//! Invariant: dropping an object without [`destroy`](Destroy::destroy) releases memory of this
//! process only where the device cannot touch it any more; the kernel object stays until the
//! context's last file descriptor is closed.
//!
//! [`Erased`] is the provider that hides which provider it is.
//!
//! # Safety
//! [`Provider`] is an unsafe trait: its documentation is what an implementation promises.

#![allow(unsafe_code)]

mod completion;
mod context;
mod driver;
mod erased;
mod queue;

use core::fmt::Debug;

pub use completion::{Completion, CqOps};
pub use context::{AhOps, ContextOps, DeviceOps, MrOps, PdOps};
pub use driver::{Driver, NamedProvider, OpenedContext};
pub use erased::{
    Erased, ErasedAh, ErasedCq, ErasedCqHandle, ErasedMr, ErasedPd, ErasedQp, ErasedRecvQueue,
    ErasedSendQueue, erase,
};
pub use queue::{QpOps, QpParts, RecvQueue, SendQueue};

#[doc(hidden)]
pub use completion::for_each_completion_field;

/// A provider: a name for a family of objects. Never instantiated.
///
/// # Safety
/// Safe code gives memory to a device and takes it back on the word of these objects. "The device"
/// is whatever works for an object: hardware, the kernel, another thread of this process.
/// Implementing this trait promises each number below for every object of the family, in every
/// state, whatever safe code does with it and whatever peers send. The crate `verbs` refers to the
/// numbers, and each implementation argues each of them.
///
/// Posting:
///
/// 1. *What was refused was never queued.* After [`post_one`](SendQueue::post_one) returned `Err`,
///    that request is not in the queue. After a batch returned
///    [`PostError`](crate::types::PostError) with `accepted: n`, exactly its first n requests are,
///    whatever the reason says; after `Ok` all are. The device never touches the memory of a
///    request that is not in its queue.
/// 2. *Arguments are read during the call only:* the requests, their lists and their address
///    vectors, and with [`INLINE`](crate::types::SendFlags::INLINE) the bytes that the lists name,
///    which are not written either.
/// 3. *The device stays inside of the elements.* For a request it accesses bytes that the request's
///    SGEs name, and no others of this process. It reads them for sends, RDMA writes and datagrams;
///    it writes them for receives, RDMA reads and atomics. An SGE counts only with the key of a
///    region of the queue pair's protection domain that covers it.
/// 4. *Any [`Av`](crate::types::Av) is harmless,* whoever made it: at worst a datagram goes astray,
///    and no memory is touched but as of 3.
///
/// Completions:
///
/// 5. *A completion is the end.* It is lent, or copied out, only when its request has ended: the
///    device does not write the request's memory any more, and what it wrote is visible to the
///    thread that polls. The same holds for the unsignalled sends before it in the same queue. The
///    device may still read memory to repeat what was sent, where the peer discards the repetition
///    whatever it contains.
/// 6. *The number is the request's.* A completion's [`wr_id`](Completion::wr_id) has all 64 bits as
///    they were posted, each time it is read. A number that was not posted to a queue of that
///    completion queue is not found in it.
/// 7. *A queue lends its own completions:* those of sends are found in the queue pair's `send_cq`,
///    those of receives in its `recv_cq`, and in no other queue of this or another device.
/// 8. *A request completes at most once.* Safe posting does not need this; callers of raw posting
///    do.
///
/// The end of a queue pair:
///
/// 9. *Destruction ends every request, and so does RESET where it says so.* Once
///    [`destroy`](Destroy::destroy) returned `Ok`, the device does not write the memory of any
///    request that was posted before, told of or not; nor once [`modify`](QpOps::modify) to
///    [`RESET`](crate::types::QpState::RESET) returned `Ok`, where
///    [`reset_ends_requests`](QpOps::reset_ends_requests) is true. Their completions may still be
///    found. Nothing else ends requests: after an `Err`, after any other transition, and where the
///    device went to another state by itself, they end by completions as before.
///
/// Regions:
///
/// 10. *A region is what was registered.* Its keys name the `length` bytes at `addr`, for as long
///     as it lives, in its protection domain; [`lkey`](MrOps::lkey) and [`rkey`](MrOps::rkey) do
///     not change. No two live regions of a protection domain have a key in common.
/// 11. *A region without remote rights is closed to peers.* No packet makes the device access it
///     except by the requests that this process posted; with remote rights, exactly those accesses
///     that the rights name.
/// 12. *Deregistering ends every access.* Once [`destroy`](Destroy::destroy) of the region returned
///     `Ok`, the device does not write its bytes any more, and what it wrote is visible to the
///     thread that called.
/// 13. *Accesses do not race.* A device that is a thread of this process accesses regions with
///     remote rights as [`crate::exposed`] does, and other regions only while a request that names
///     the bytes is in a queue. What the program wrote before a call of [`ring`](SendQueue::ring)
///     or [`reg_mr`](ContextOps::reg_mr) happens before the accesses of the device that follow from
///     it.
///
/// Objects:
///
/// 14. *`destroy` tells the truth.* `Ok` means that the object is gone, never that it is unknown.
///     `Err` gives back the same object, and of it all of this still holds. `destroy` does not
///     unwind.
/// 15. *Dropping is not destroying.* An object that is dropped, or lost in unwinding, releases
///     nothing that the device may still access; its keys and requests stay as they were.
/// 16. *Descriptors are real:* an [`OwnedFd`](std::os::fd::OwnedFd) is owned by nothing else, a
///     [`BorrowedFd`](std::os::fd::BorrowedFd) is open while the context lives.
/// 17. *Objects of another context* are refused, or do no more than make objects to which only raw
///     posting applies.
/// 18. *A registration that failed registered nothing.* After [`reg_mr`](ContextOps::reg_mr)
///     returned `Err`, no key names the bytes because of that call. `reg_mr` does not unwind.
///
/// Queues of a queue pair:
///
/// 19. *A request that was taken out again was never queued.* After
///     [`rollback`](SendQueue::rollback), no request is in the queue that was put in since the last
///     [`ring`](SendQueue::ring), and the device has not looked at any of them.
/// 20. *Queues and queue pair may part.* A [`SendQueue`] or [`RecvQueue`] may be dropped before its
///     queue pair, or after the queue pair was destroyed; neither releases memory that the device
///     may still access. What is posted to a queue whose queue pair was destroyed is never
///     executed. The caller of [`QpOps::modify`] passes the two queues that were created with the
///     queue pair: code that lets safe code exchange them answers for that; the crate `verbs` does
///     not.
///
/// Safe code does not rely on handles, queue pair numbers, capacities, [`QpOps::state`], event
/// records, or what queries return: where these are wrong, results are wrong and memory is safe.
pub unsafe trait Provider: Sized + Debug + 'static {
    /// An open device.
    type Context: ContextOps<Self> + ?Sized;
    /// A protection domain.
    type Pd: PdOps + Destroy;
    /// A memory region.
    type Mr: MrOps + Destroy;
    /// A completion queue.
    type Cq: CqOps + Destroy;
    /// Names a completion queue to [`ContextOps::create_qp`], while another thread polls it.
    type CqHandle: Clone + Debug + Send + Sync + 'static;
    /// A queue pair.
    type Qp: QpOps<Sq = Self::Sq, Rq = Self::Rq> + Destroy;
    /// The send queue of a queue pair.
    type Sq: SendQueue;
    /// The receive queue of a queue pair.
    type Rq: RecvQueue;
    /// An address handle.
    type Ah: AhOps + Destroy;
}

/// An object of the kernel that can be destroyed.
pub trait Destroy: Sized {
    /// Destroys the kernel object, then releases what the device could touch through it.
    ///
    /// A device that was unplugged is no error: the kernel destroyed its objects, and confirms that
    /// for each.
    ///
    /// # Errors
    /// The object itself, and why it is not known to be gone: `EBUSY` while something uses it,
    /// `EIO` where the device failed to destroy it. It may be tried again.
    // The object comes back by value so that nothing is lost; destroying is no hot path.
    #[allow(clippy::result_large_err)]
    fn destroy(self) -> Result<(), (Self, crate::Error)>;
}
