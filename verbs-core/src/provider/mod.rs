//! The contract between the API and a provider. Its counterpart in rdma-core is `driver.h`.
//!
//! A provider is a type that names its objects ([`Provider`]) and implements their operations:
//!
//! | file | traits | the object | path |
//! |---|---|---|---|
//! | `context` | [`DeviceOps`] | an open device: queries | control |
//! | `context` | [`ContextOps`] | an open device: objects created from it | control |
//! | `context` | [`PdOps`] | a protection domain | control |
//! | `mr` | [`MrOps`] | a memory region | control |
//! | `dm` | [`DmOps`], [`DmahOps`] | device memory, a DMA handle | control |
//! | `td` | [`TdOps`] | a thread domain | control |
//! | `context` | [`AhOps`] | an address handle | control |
//! | `mw` | [`MwOps`] | a memory window | control |
//! | `flow` | [`FlowOps`], [`FlowActionOps`] | a flow rule, and a flow action | control |
//! | `counters` | [`CountersOps`], [`CompCntrOps`] | counters for rules and completions | control |
//! | `wq` | [`WqOps`], [`RwqIndTableOps`] | a work queue, and a table of work queues | control |
//! | `srq` | [`SrqOps`], [`XrcdOps`] | a shared receive queue, an XRC domain | control |
//! | `completion` | [`CqOps`], [`Completion`], [`Notifier`] | a completion queue | data |
//! | `queue` | [`QpOps`] | a queue pair: its state | control |
//! | `wait` | [`WaitOps`], [`Wait`] | a waiting thread that does its device's work | data |
//! | `batch` | none: [`WrBatch`] | requests posted together or not at all | data |
//! | `queue` | [`SendQueue`], [`RecvQueue`] | the queues of a queue pair, owned by posters | data |
//!
//! Required operations have no default body, so a new provider cannot omit one. Optional operations
//! return `EOPNOTSUPP` with the verb's name. A provider without some kind of object names
//! [`Unsupported`] as its type, which has no values. Queries do not mention the provider:
//! [`DeviceOps`] has one implementation for all kernel devices,
//! [`KernelContext`](crate::kernel::KernelContext).
//!
//! Invariant: every object is self-contained. It keeps the parts of its context alive that it
//! needs, destroys itself in [`destroy`](Destroy::destroy), and may be dropped in any order
//! relative to its parents: the API's handles keep parents alive, and the kernel rejects any other
//! order.
//!
//! Invariant: dropping an object without [`destroy`](Destroy::destroy) releases memory of this
//! process only if the device can no longer access it. The kernel object stays until the context's
//! last file descriptor is closed.
//!
//! Invariant: a provider does not print, lock, allocate or make a system call between post and
//! poll, with two exceptions. rxe makes one system call per post call, to notify the kernel. A soft
//! device sends and receives its packets there, because the provider is also the device. It never
//! waits for its lock: a thread that does not get the lock leaves its work to the holder. It
//! allocates only for an event whose socket is full.
//!
//! [`Erased`] is a provider whose objects hide their original provider.
//!
//! # Safety
//! [`Provider`] is an unsafe trait. Its documentation lists the promises that each implementation
//! makes.

#![allow(unsafe_code)]

mod batch;
mod completion;
mod context;
mod counters;
mod dm;
mod driver;
mod erased;
mod flow;
mod mr;
mod mw;
mod queue;
mod srq;
mod td;
mod unsupported;
mod wait;
mod wq;

use core::fmt::Debug;

#[doc(hidden)]
pub use batch::gather;
pub use batch::{Wr, WrBatch, WrError};
pub use completion::{Completion, CqOps, Notifier};
pub use context::{AhOps, ContextOps, DeviceOps, PdOps};
pub use counters::{CompCntrOps, CountersOps};
pub use dm::{DmOps, DmahOps};
pub use driver::{Driver, NamedProvider, OpenedContext};
pub use erased::{
    Erased, ErasedAh, ErasedCompCntr, ErasedCompletion, ErasedCounters, ErasedCq, ErasedCqHandle, ErasedDm,
    ErasedDmah, ErasedFlow, ErasedFlowAction, ErasedMr, ErasedMw, ErasedPd, ErasedQp, ErasedRecvQueue,
    ErasedRwqIndTable, ErasedSendQueue, ErasedSrq, ErasedSrqQueue, ErasedTd, ErasedWq, ErasedWqQueue,
    ErasedXrcd, erase,
};
pub use flow::{FlowActionOps, FlowOps, FlowRule};
pub use mr::{MrChange, MrInitAttr, MrMemory, MrOps, RegionState, ReregError};
pub use mw::MwOps;
pub use queue::{FastPath, QpExtras, QpOps, QpParents, QpParts, RecvQueue, SendQueue};
pub use srq::{SrqOps, SrqParents, SrqParts, XrcdOps};
pub use td::{ParentDomainAttr, QueueAllocator, QueueMemory, TdOps};
pub use unsupported::{Unsupported, unsupported};
pub use wait::{Awaited, Next, WAIT_FILES, Wait, WaitOps};
pub use wq::{RwqIndTableOps, WqOps, WqParents, WqParts};

pub use crate::types::event::{EventsRead, TAG_LIST, for_program};

#[doc(hidden)]
pub use completion::{for_each_completion_field, for_each_optional_field};

/// A provider: a type that names a family of objects and is never instantiated.
///
/// # Safety
/// Safe code gives a device access to memory and uses the memory again once these objects report
/// that the device has finished. "The device" is whatever executes the requests of an object:
/// hardware, the kernel, or another thread of this process. An implementation of this trait keeps
/// each numbered promise below for every object of the family, in every state, whatever safe code
/// does with the object and whatever peers send. The crate `verbs` refers to the numbers, and each
/// implementation proves each promise.
///
/// Posting:
///
/// 1. *A rejected request was never queued.* If [`post_one`](SendQueue::post_one) returned `Err`,
///    that request is not in the queue. If a batch returned [`PostError`](crate::types::PostError)
///    with `accepted: n`, exactly its first n requests are in the queue, regardless of the reason;
///    if it returned `Ok`, all are. The device never accesses the memory of a request outside its
///    queue.
/// 2. *Arguments are read only during the call.* This holds for the requests, their lists and their
///    address vectors, and, with [`INLINE`](crate::types::SendFlags::INLINE), for the bytes that
///    the lists name. The call does not write these bytes.
/// 3. *The device stays inside the elements.* For a request, it accesses the bytes named by the
///    request's SGEs, and no other bytes of this process. It reads them for sends, RDMA writes and
///    datagrams; it writes them for receives, RDMA reads and atomics. It accesses the bytes of an
///    SGE only if the SGE has the key of a region that covers them and belongs to the queue pair's
///    protection domain.
/// 4. *Any [`Av`](crate::types::Av) is harmless,* whatever code created it: at worst, a datagram is
///    sent to the wrong peer. The device accesses memory only as allowed by promise 3.
///
/// Completions:
///
/// 5. *A completion is the end.* It is returned, or copied out, only after its request has ended:
///    the device no longer writes the request's memory, and everything it wrote is visible to the
///    polling thread. The same holds for the unsignalled sends before it in the same queue. The
///    device may still read the memory for a retransmission that the peer discards whatever its
///    contents.
/// 6. *The `wr_id` belongs to the request.* All 64 bits of a completion's
///    [`wr_id`](Completion::wr_id) are as they were posted, each time it is read. A completion
///    queue never returns a `wr_id` that was not posted to one of its queues.
/// 7. *A queue returns its own completions.* Completions of sends arrive in the queue pair's
///    `send_cq`, completions of receives in its `recv_cq`, and none in another queue of this or
///    another device.
/// 8. *A request completes at most once,* even if its completion queue is [resized](CqOps::resize)
///    before its completion is polled. Safe posting does not need this, but callers of raw posting
///    do.
///
/// The end of a queue pair:
///
/// 9. *Destruction ends every request, and so does RESET where the provider promises it.* After
///    [`destroy`](Destroy::destroy) returned `Ok`, the device does not write the memory of any
///    request posted before, whether or not a completion was polled. If
///    [`reset_ends_requests`](QpOps::reset_ends_requests) is true, the same holds after
///    [`modify`](QpOps::modify) to [`RESET`](crate::types::QpState::RESET) returned `Ok`.
///    Completions of these requests may still be polled. Nothing else ends requests: after an
///    `Err`, after any other transition, and after a state change by the device itself, they end
///    with their completions as before. Everything the device wrote until then is visible to the
///    calling thread.
///
/// Regions:
///
/// 10. *A region is the registered memory.* Its keys name the `length` bytes at `addr`, for as long
///     as it lives, in its protection domain; [`lkey`](MrOps::lkey) and [`rkey`](MrOps::rkey) do
///     not change. Only [`rereg_mr`](ContextOps::rereg_mr), which is unsafe, changes any of this.
///     The keys of a [null region](ContextOps::alloc_null_mr) name no bytes. No two live regions of
///     a protection domain share a key, except an imported region and its original.
/// 11. *A region without remote rights is closed to peers.* No packet makes the device access it,
///     except through requests posted by this process, and through windows bound to it by such
///     requests (21). With remote rights, packets can cause only the accesses that the rights name.
/// 12. *Deregistering ends every access.* After [`destroy`](Destroy::destroy) of the region
///     returned `Ok`, the device no longer writes its bytes, not even through windows, and
///     everything it wrote is visible to the calling thread. While windows are bound to the region,
///     `destroy` may return `Err` with `EBUSY` or `EINVAL`. An [imported](ContextOps::import_mr)
///     region ends with its original.
/// 13. *Accesses do not race.* A device that is a thread of this process accesses regions with
///     remote rights, or with [`MW_BIND`](crate::types::AccessFlags::MW_BIND), like
///     [`crate::exposed`]. It accesses other regions only while a request that names the bytes has
///     not ended: after an end by 5, 9 or 12 it does not read them either. Nor does it read through
///     a window once the binding has ended by 22 or 23. Writes by the program before a call to
///     [`ring`](SendQueue::ring) or [`reg_mr`](ContextOps::reg_mr) happen before the device's
///     accesses that follow from that call.
///
/// Objects:
///
/// 14. *The result of `destroy` is true.* `Ok` means that the object is known to be gone. `Err`
///     returns the same object, and all of these promises still hold for it. `destroy` does not
///     unwind. Everything these promises state about `destroy` holds for
///     [`destroy_counting_events`](Destroy::destroy_counting_events) too.
/// 15. *Dropping is not destroying.* An object that is dropped, or lost in unwinding, releases
///     nothing that the device may still access; its keys and requests stay as they were.
/// 16. *Descriptors are real.* An [`OwnedFd`](std::os::fd::OwnedFd) has no other owner; a
///     [`BorrowedFd`](std::os::fd::BorrowedFd) is open while the context lives.
/// 17. *Objects of another context*, and destroyed completion queues, are rejected, or result in
///     objects that support only raw posting.
/// 18. *A registration that failed registered nothing.* After [`reg_mr`](ContextOps::reg_mr)
///     returned `Err`, no key names the bytes because of that call. `reg_mr` does not unwind.
///
/// Queues of a queue pair:
///
/// 19. *A request that was rolled back was never queued.* After [`rollback`](SendQueue::rollback),
///     the queue contains none of the last `count` requests added since the last
///     [`ring`](SendQueue::ring), and the device has read none of them. Earlier requests stay in
///     the queue.
/// 20. *Queues and queue pair may be separated.* A [`SendQueue`] or [`RecvQueue`] may be dropped
///     before its queue pair, or after the queue pair was destroyed; neither releases memory that
///     the device may still access. A request posted to a queue of a destroyed queue pair is never
///     executed. The caller of [`QpOps::modify`] passes the two queues created with the queue pair,
///     as the handles of the crate `verbs` do. Safe code can pass other queues of the same provider
///     if it created objects through a raw context. Then `modify` may change what these queues
///     accept and drop their unpublished requests, but it ends no request of another queue pair. If
///     `modify` or `rollback` unwinds, every request is unchanged or posted.
///
/// Windows:
///
/// 21. *A window gives the access of its bind.* A packet with the key of a window makes the device
///     access bytes of a region only while the window is bound to it, with the rights of the bind.
///     Only a bind work request of this process binds a window: it names the window's key and the
///     region's. A device may let packets access the whole region instead of the bound range.
/// 22. *A peer's invalidation is the end.* A receive completes with
///     [`WITH_INV`](crate::types::WcFlags::WITH_INV) and a window's key only after the window of
///     type 2 that had this key is no longer bound. The window may have been bound for the queue
///     pair of the receive, which [`Completion::qp_num`] names by the number that [`QpOps::qp_num`]
///     returns. Then the device no longer writes through that binding, and everything it wrote is
///     visible to the polling thread. The completion of that receive enters its queue before the
///     completion of any later bind with the same key.
/// 23. *The end of a binding is the end of its accesses,* if
///     [`revocation_ends_access`](MwOps::revocation_ends_access) is true. After a successful
///     completion of the window's invalidation, or of a bind of zero length, and after
///     [`destroy`](Destroy::destroy) of the window returned `Ok`, the device no longer writes
///     through the binding. Everything it wrote is visible to the thread that polled or called. If
///     the result is false, packets that arrive later do not access the region through the binding,
///     but the device may still write for a packet that arrived before.
///
/// Shared receive queues:
///
/// 24. *A receive of a shared receive queue belongs to the queue pair that takes it.* Promises 1 to
///     3 and 5 to 8 hold for it: it completes at most once, in the `recv_cq` of that queue pair, or
///     in the `cq` of a queue of the kind [`XRC`](crate::types::SrqType::XRC) or
///     [`TM`](crate::types::SrqType::TM). The device uses the keys of its elements in the
///     protection domain of the shared receive queue. A device that looks them up in the queue
///     pair's domain instead finds no key of another domain's region, and fails the receive.
/// 25. *The end of a shared receive queue ends its receives.* After [`destroy`](Destroy::destroy)
///     of the shared receive queue returned `Ok`, the device does not write the memory of any
///     receive posted to it, even if a queue pair has taken it, whether or not a completion was
///     polled. Everything the device wrote until then is visible to the calling thread.
///     [`SrqOps::modify`] ends no receive, even if it fails or unwinds. Its queue may be dropped
///     before it is destroyed or afterwards, as promise 20 permits for the queues of a queue pair.
///     The caller of `modify` passes the queue created with the shared receive queue. Another queue
///     of the same provider is rejected, or may accept other requests afterwards.
///
/// Work queues:
///
/// 26. *A work queue is a queue of receives without a queue pair.* Promises 1 to 3, 5, 6 and 8 hold
///     for its receives. Their completions arrive in the `cq` passed at its creation, and in no
///     other queue of this or another device; their elements need keys of its protection domain.
///     After [`destroy`](Destroy::destroy) of the work queue returned `Ok`, the device does not
///     write the memory of any receive posted to it, whether or not a completion was polled.
///     Everything the device wrote until then is visible to the calling thread. [`WqOps::modify`]
///     ends no receive, even if it fails or unwinds: a receive dropped by a move to RESET has no
///     completion, and its memory belongs to the device until the work queue is destroyed. The work
///     queue's queue may be dropped before it is destroyed or afterwards, as promise 20 permits for
///     the queues of a queue pair. The caller of `modify` passes the queue created with the work
///     queue. Another queue of the same provider is rejected, or `modify` may change its limits and
///     drop its unpublished requests, but the device executes no request of either queue that has
///     ended.
///
/// Safe code does not rely on handles, capacities, [`QpOps::state`], event records and their
/// counts, or the results of queries: if these are wrong, results are wrong, but memory is safe. It
/// relies on queue pair numbers only in promise 22.
pub unsafe trait Provider: Sized + Debug + 'static {
    /// Whether resetting or destroying a queue pair needs [`CqOps::purge`]. If not, the caller may
    /// omit the purge while another thread polls the completion queue.
    const PURGES: bool = false;
    /// An open device.
    type Context: ContextOps<Self> + ?Sized;
    /// A protection domain.
    type Pd: PdOps + Destroy;
    /// A memory region.
    type Mr: MrOps + Destroy;
    /// A completion queue.
    type Cq: CqOps + Destroy;
    /// A handle to a completion queue, for [`ContextOps::create_qp`]. It is usable while another
    /// thread polls the queue.
    type CqHandle: Clone + Debug + Send + Sync + 'static;
    /// A queue pair.
    type Qp: QpOps<Sq = Self::Sq, Rq = Self::Rq> + Destroy;
    /// The send queue of a queue pair.
    type Sq: SendQueue;
    /// The receive queue of a queue pair.
    type Rq: RecvQueue;
    /// An address handle.
    type Ah: AhOps + Destroy;
    /// A shared receive queue: its attributes and destruction.
    type Srq: SrqOps<Queue = Self::SrqQueue> + Destroy;
    /// The queue of a shared receive queue, owned by its poster.
    type SrqQueue: RecvQueue;
    /// An XRC domain.
    type Xrcd: XrcdOps + Destroy;
    /// A memory window.
    type Mw: MwOps + Destroy;
    /// Device memory.
    type Dm: DmOps + Destroy;
    /// A DMA handle.
    type Dmah: DmahOps + Destroy;
    /// A thread domain.
    type Td: TdOps + Destroy;
    /// A work queue: its state and destruction.
    type Wq: WqOps<Queue = Self::WqQueue> + Destroy;
    /// The queue of a work queue, owned by its poster.
    type WqQueue: RecvQueue;
    /// A table of work queues.
    type RwqIndTable: RwqIndTableOps + Destroy;
    /// A flow rule.
    type Flow: FlowOps + Destroy;
    /// A flow action.
    type FlowAction: FlowActionOps + Destroy;
    /// A set of counters for flow rules.
    type Counters: CountersOps<Flow = Self::Flow> + Destroy;
    /// A completion counter.
    type CompCntr: CompCntrOps + Destroy;
}

/// A kernel object that can be destroyed.
pub trait Destroy: Sized {
    /// Destroys the kernel object, then releases the memory that the device could access through
    /// it.
    ///
    /// Succeeds if the device was unplugged: the kernel has destroyed the objects and confirms this
    /// for each object.
    ///
    /// # Errors
    /// The object itself, for another attempt, with the reason why it may still exist: `EBUSY`
    /// while another object uses it; `EIO` if the device failed to destroy it; any other errno the
    /// kernel returns.
    // The object is returned by value so that it is not lost; destruction is not a hot path.
    #[allow(clippy::result_large_err)]
    fn destroy(self) -> Result<(), (Self, crate::Error)>;

    /// Destroys the object like [`destroy`](Self::destroy) and returns the number of its events
    /// that the program has read. Unread events are discarded, and no event of the object can be
    /// read afterwards.
    ///
    /// An event that refers to its object by pointer, as in C, may be in use by another thread at
    /// that time. The object's memory is released once the returned number of events has been
    /// acknowledged.
    ///
    /// A provider may distinguish objects of a context and kind by their `user_handle` alone; the
    /// counts are valid only for a unique handle.
    ///
    /// # Errors
    /// The errors of [`destroy`](Self::destroy).
    #[allow(clippy::result_large_err)]
    fn destroy_counting_events(self) -> Result<EventsRead, (Self, crate::Error)> {
        self.destroy().map(|()| EventsRead::default())
    }
}
