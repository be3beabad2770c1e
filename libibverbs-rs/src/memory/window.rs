//! [`Window`]: peer access to exposed memory, granted and revoked by posted requests.
//!
//! ```text
//!               post_bind                 completion
//!   Free ──────────────────► in flight ─────────────────► Bound      peers have access
//!    ▲                                                     │   │
//!    │            completion                 post_revoke   │   │ a peer's send with invalidate:
//!    ├──────────────────────────── in flight ◄─────────────┘   │ `invalidated`
//!    └──────────────────────────────────────────────────────────┘
//! ```
//! If a request in flight fails or ends with its queue pair, the window's binding is unknown. Such
//! a window can only be closed.
//!
//! # Why this is sound
//! The claim is the same as in [`crate::in_flight`]: while a device may write bytes, no safe code
//! holds them as plain memory. Numbers in brackets refer to the contract of
//! [`Provider`](verbs_core::provider::Provider).
//!
//! 1. *A bound window holds a share of its memory*, from before the bind is posted. [`Exposed`]
//!    gives out plain memory only without other shares. While the request is in flight, only the
//!    table holds the window, so the key is not deallocated and allocated again before the request
//!    has ended.
//! 2. *The share returns when the binding has ended*: after a successful completion of its
//!    revocation, or of a later bind; after the window was deallocated; or after a peer's
//!    invalidation (4). Success is read from the lent completion, not from a copy, which a program
//!    can change.
//! 3. *Accesses may outlast the binding* unless the provider promises otherwise [23]. The memory is
//!    then marked and becomes plain memory only by deregistering, which ends the accesses [12].
//! 4. *A peer's invalidation counts only after the bind.* Keys repeat after 256 binds, so a
//!    completion may stem from an earlier binding with the same key. The completion of an earlier
//!    invalidation precedes the bind's execution, and the bind's own completion follows it. Both
//!    are in one completion queue, in this order [22]. [`Ticks`] counts the windows removed by its
//!    poller, so the count in an [`Invalidated`] shows whether it precedes the bind's completion.
//!    The queue pair is compared, because the promise covers only the queue pair of the binding.
//! 5. *The range does not matter.* Peers may reach the whole region instead of the bound range
//!    [21]. But the region belongs to the [`Exposed`], whose bytes are accessed only as exposed
//!    memory.
//! 6. *Queue pairs deallocate the windows bound for them* before they are destroyed
//!    ([`WithWindows`]), because a kernel may wait for the windows ([`Mw`](crate::Mw)). Windows
//!    keep their shares until they are dropped. Under its lock, a window stores the queue pair of
//!    its last bind, so no other queue pair deallocates it. Two threads that deallocate it are
//!    serialised: the second returns only after the first has.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut, RangeBounds};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use verbs_core::provider::{Destroy, EventsRead, MwOps, Provider};
use verbs_core::types::{AccessFlags, MwBindInfo, MwType, SendOp, inc_rkey};
use verbs_core::{Cause, Errno, Error, Result};

use crate::device::pd::Pd;
use crate::handle::error::HandleError;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::{Child, PdId};
use crate::memory::exposed::{Exposed, RemoteAccess};
use crate::memory::mw::Mw;
use crate::memory::post_error::PostBufReason;
use crate::memory::remote::RemoteMr;

/// A key for peers, bound to exposed memory and revoked by requests.
///
/// The memory is registered once, by [`Pd::expose_to_windows`](crate::Pd::expose_to_windows). To
/// give a peer access, post a bind ([`Qp::post_bind`](crate::Qp::post_bind)). To revoke the access,
/// post a revocation ([`Qp::post_revoke`](crate::Qp::post_revoke)) or let the peer invalidate the
/// key with its last message. Neither needs a system call on a hardware device.
/// [`Exposed::bytes_mut`] then returns the memory as plain bytes.
///
/// ```
/// # #[cfg(not(feature = "soft"))]
/// # fn main() {}
/// # #[cfg(feature = "soft")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use verbs::{ConnectAttr, CqInit, MwType, QpInit, QpType, RemoteAccess, SendFlags};
///
/// # let context = verbs::soft::auto()?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let mut cq = context.create_cq(&CqInit::new(16))?;
/// # let port = context.port(1)?;
/// let qp = pd.create_qp(&QpInit::new(QpType::RC, &cq))?;
/// let own = qp.endpoint(&port);
/// let attr = ConnectAttr { access: RemoteAccess::WRITE, ..ConnectAttr::default() };
/// let mut qp = qp.connect(&port, &own, &attr)?;
///
/// let mut memory = pd.expose_to_windows(pd.alloc_buf(4096)?)?;
/// let window = pd.alloc_window(MwType::TYPE_2)?;
///
/// // The peer may use the key from the next message on, because requests start in order.
/// let (none, write) = (SendFlags::empty(), RemoteAccess::WRITE);
/// let (_, remote) = qp.post_bind(none, window, &memory, ..1024, write)?;
/// let bound = cq.poll_within(Duration::from_secs(5))?.into_window()?;
///
/// // The peer: here the same queue pair.
/// let mut out = pd.alloc_buf(5)?;
/// out.copy_from_slice(b"hello");
/// qp.post_send_buf(remote.write(), SendFlags::empty(), out, ..)?;
/// cq.poll_within(Duration::from_secs(5))?.ok()?;
///
/// qp.post_revoke(SendFlags::empty(), bound)?;
/// let window = cq.poll_within(Duration::from_secs(5))?.into_window()?;
/// assert!(!window.is_bound());
/// assert_eq!(&memory.bytes_mut()?[..5], b"hello");
/// # Ok(())
/// # }
/// ```
///
/// Allocate a window after the queue pairs it will be bound for. When a process exits, the kernel
/// destroys the newest object first, and rxe waits up to 50 s for the windows of a queue pair.
///
/// # References
/// `ibv_alloc_mw(3)`, `ibv_bind_mw(3)`; IBTA volume 1, section 10.6.7
#[doc(alias = "ibv_mw")]
pub struct Window(Box<Inner>);

struct Inner {
    cell: Arc<Cell>,
    mw_type: MwType,
    pd: PdId,
    /// Whether the end of a binding also ends accesses through it [23].
    ends_access: bool,
    /// The window's current key.
    rkey: u32,
    state: State,
    /// The queue pair's list that the window was last added to.
    enlisted: Weak<List>,
}

#[derive(Debug)]
enum State {
    Free,
    Bound(Binding),
    /// A bind is in flight or its outcome is unknown.
    Binding {
        old: Option<Binding>,
        new: Binding,
    },
    /// A revocation is in flight or its outcome is unknown.
    Revoking {
        old: Binding,
        new_rkey: u32,
    },
    /// A peer invalidated this binding's key, or the same key of an earlier binding.
    Doubtful(Binding),
}

/// A binding of the window to exposed memory, with a share of that memory.
#[derive(Debug)]
struct Binding {
    memory: Exposed,
    remote: RemoteMr,
    qp_num: u32,
    /// The window counter of the completion queue that reported the bind, and its value at that
    /// time.
    completed: Option<(Arc<Ticks>, u64)>,
}

/// Proof that a peer's message invalidated a key, made only by polling the completion of the
/// message. Returned by [`Completion::invalidated`](crate::Completion::invalidated) and
/// [`Completed::invalidated`](crate::Completed::invalidated).
#[derive(Clone)]
pub struct Invalidated {
    rkey: u32,
    qp_num: u32,
    ticks: Arc<Ticks>,
    tick: u64,
}

/// The number of windows removed by the poller of one completion queue. A window is removed with
/// its completion, so the count orders completions of that queue.
#[derive(Debug, Default)]
pub(crate) struct Ticks(AtomicU64);

impl Ticks {
    /// Counts the removal of a window and returns the new count.
    fn add(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the number of windows that the poller has removed.
    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Invalidated {
    pub(crate) fn new(rkey: u32, qp_num: u32, ticks: &Arc<Ticks>) -> Self {
        Self { rkey, qp_num, ticks: Arc::clone(ticks), tick: ticks.count() }
    }

    /// Returns the invalidated key.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Returns the number of the queue pair that received the message.
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }
}

impl fmt::Debug for Invalidated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invalidated").field("rkey", &self.rkey).field("qp_num", &self.qp_num).finish()
    }
}

/// The operands of a request on a window.
pub(crate) struct Request {
    mw_type: MwType,
    rkey: u32,
    new_rkey: u32,
    /// The range to bind; `None` to invalidate the key.
    info: Option<MwBindInfo>,
}

impl Request {
    pub(crate) fn op(&self) -> SendOp<'_> {
        match &self.info {
            Some(bind_info) => {
                SendOp::BindMw { mw_type: self.mw_type, rkey: self.rkey, new_rkey: self.new_rkey, bind_info }
            }
            None => SendOp::LocalInv { invalidate_rkey: self.rkey },
        }
    }
}

impl<P: Provider> Pd<P> {
    /// Allocates a memory window that the domain's queue pairs can bind to exposed memory.
    ///
    /// # Errors
    /// Same as [`alloc_mw`](Self::alloc_mw).
    ///
    /// # References
    /// `ibv_alloc_mw(3)`
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_window(&self, mw_type: MwType) -> Result<Window> {
        self.alloc_mw(mw_type).map(|mw| Window::new(mw, self.id()))
    }
}

impl Window {
    pub(crate) fn new<P: Provider>(mw: Mw<P>, pd: PdId) -> Self {
        let (rkey, mw_type) = (mw.rkey(), mw.mw_type());
        let ends_access = mw.raw().revocation_ends_access();
        let handle: Box<dyn Deallocate> = Box::new(mw.into_handle());
        Self(Box::new(Inner {
            cell: Arc::new(Cell::new(handle)),
            mw_type,
            pd,
            ends_access,
            rkey,
            state: State::Free,
            enlisted: Weak::new(),
        }))
    }

    /// Returns the window's type. A window of type 1 serves peers of all queue pairs in its
    /// protection domain; a window of type 2 serves the peer of the queue pair that bound it.
    pub fn mw_type(&self) -> MwType {
        self.0.mw_type
    }

    /// Returns the current key, which each bind changes.
    pub fn rkey(&self) -> u32 {
        self.0.rkey
    }

    /// Returns whether the window is, or may be, bound to memory.
    pub fn is_bound(&self) -> bool {
        !matches!(self.0.state, State::Free)
    }

    /// Returns the address, length and key for peers; `None` if the window is not bound or its last
    /// request failed.
    pub fn remote(&self) -> Option<RemoteMr> {
        match &self.0.state {
            State::Bound(binding) => Some(binding.remote),
            _ => None,
        }
    }

    /// Returns a share of the bound memory; `None` in the same cases as [`remote`](Self::remote).
    pub fn memory(&self) -> Option<&Exposed> {
        match &self.0.state {
            State::Bound(binding) => Some(&binding.memory),
            _ => None,
        }
    }

    /// Ends the binding after a message from a peer invalidated its key. Returns whether the
    /// message concerned this binding; if so, the window can be bound again.
    ///
    /// The queue pair must report its sends and receives to the same completion queue, and the
    /// bind's completion must have been polled before the message's. Otherwise the message may
    /// concern an earlier binding with the same key: the call returns false and the window can only
    /// be closed.
    ///
    /// ```no_run
    /// # fn f(mut cq: verbs::Cq, mut window: verbs::Window) {
    /// if let Some(completed) = cq.poll_one() {
    ///     if completed.invalidated().is_some_and(|by| window.invalidated(by)) {
    ///         println!("the peer has finished");
    ///     }
    /// }
    /// # }
    /// ```
    pub fn invalidated(&mut self, by: &Invalidated) -> bool {
        let State::Bound(binding) = &self.0.state else { return false };
        if by.rkey != self.0.rkey || by.qp_num != binding.qp_num || self.0.mw_type != MwType::TYPE_2 {
            return false;
        }
        let Some((ticks, tick)) = &binding.completed else { return false };
        if self.0.cell.is_deallocated() {
            // The memory is released when the window is dropped.
            return false;
        }
        let is_later = Arc::ptr_eq(ticks, &by.ticks) && by.tick >= *tick;
        match core::mem::replace(&mut self.0.state, State::Free) {
            // Promise [22] of the contract holds for all providers.
            State::Bound(binding) if is_later => {
                self.0.cell.unbound();
                drop(binding);
                true
            }
            State::Bound(binding) => {
                self.0.state = State::Doubtful(binding);
                false
            }
            state => {
                self.0.state = state;
                false
            }
        }
    }

    /// Deallocates the window: afterwards, peers have no access through it. Dropping does the same.
    /// A window the kernel refuses to deallocate is leaked with a share of its memory.
    ///
    /// This revokes access on every queue pair and in every state.
    ///
    /// # Errors
    /// Returns the window and any errno the kernel returns; notably `EIO` if the device fails to
    /// destroy it.
    ///
    /// # References
    /// `ibv_dealloc_mw(3)`
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        match self.0.cell.deallocate() {
            Ok(()) => Ok(()),
            Err(error) => Err(HandleError { handle: self, error }),
        }
    }

    pub(crate) fn pd_id(&self) -> PdId {
        self.0.pd
    }

    /// Records a bind before it is posted. Returns the bind's operands, and the address, length and
    /// key for peers.
    ///
    /// # Errors
    /// The [`PostBufReason`] why the request cannot be posted; the window is unchanged.
    pub(crate) fn prepare_bind(
        &mut self,
        memory: &Exposed,
        range: impl RangeBounds<usize>,
        access: RemoteAccess,
        qp: &(impl QpWindows + ?Sized),
    ) -> Result<(Request, RemoteMr), PostBufReason> {
        let inner = &mut *self.0;
        let (offset, length) = crate::memory::mr::within(range, memory.len())
            .map_err(|(start, end)| PostBufReason::OutOfRange { start, end, len: memory.len() })?;
        if memory.pd_id() != inner.pd {
            return Err(PostBufReason::Foreign);
        }
        if !memory.is_for_windows() {
            return Err(PostBufReason::NotForWindows);
        }
        if length == 0 {
            return Err(PostBufReason::EmptyWindow);
        }
        match inner.state {
            State::Free => {}
            State::Bound(_) if inner.mw_type == MwType::TYPE_1 => {}
            State::Bound(_) => return Err(PostBufReason::WindowBound),
            _ => return Err(PostBufReason::WindowLost),
        }
        if inner.cell.is_deallocated() {
            return Err(PostBufReason::WindowLost);
        }
        let new_rkey = inc_rkey(inner.rkey);
        let remote = RemoteMr { addr: memory.addr() + offset as u64, length: length as u64, rkey: new_rkey };
        let info = MwBindInfo {
            lkey: memory.lkey(),
            addr: remote.addr,
            length: remote.length,
            mw_access_flags: AccessFlags::from(access & RemoteAccess::all()),
        };
        if inner.mw_type == MwType::TYPE_2 {
            qp.enlist(&inner.cell, &mut inner.enlisted);
        }
        let new = Binding { memory: memory.clone(), remote, qp_num: qp.number(), completed: None };
        let old = match core::mem::replace(&mut inner.state, State::Free) {
            State::Bound(binding) => Some(binding),
            _ => None,
        };
        inner.state = State::Binding { old, new };
        Ok((Request { mw_type: inner.mw_type, rkey: inner.rkey, new_rkey, info: Some(info) }, remote))
    }

    /// Records a revocation before it is posted and returns its operands.
    ///
    /// # Errors
    /// The [`PostBufReason`] why the request cannot be posted; the window is unchanged.
    pub(crate) fn prepare_revoke(
        &mut self,
        qp: &(impl QpWindows + ?Sized),
    ) -> Result<Request, PostBufReason> {
        let inner = &mut *self.0;
        if inner.cell.is_deallocated() {
            return Err(PostBufReason::WindowLost);
        }
        if let State::Bound(binding) = &inner.state
            && inner.mw_type == MwType::TYPE_2
            && binding.qp_num != qp.number()
        {
            return Err(PostBufReason::WindowElsewhere);
        }
        let old = match core::mem::replace(&mut inner.state, State::Free) {
            State::Bound(binding) => binding,
            State::Free => return Err(PostBufReason::WindowUnbound),
            state => {
                inner.state = state;
                return Err(PostBufReason::WindowLost);
            }
        };
        // A window of type 1 cannot be invalidated; a bind of zero length has the same effect.
        let (new_rkey, info) = match inner.mw_type {
            MwType::TYPE_1 => (inc_rkey(inner.rkey), Some(MwBindInfo::default())),
            _ => (inner.rkey, None),
        };
        inner.state = State::Revoking { old, new_rkey };
        Ok(Request { mw_type: inner.mw_type, rkey: inner.rkey, new_rkey, info })
    }

    /// Undoes the last `prepare_bind` or `prepare_revoke`, whose request was not queued.
    pub(crate) fn roll_back(&mut self) {
        let inner = &mut *self.0;
        inner.state = match core::mem::replace(&mut inner.state, State::Free) {
            State::Binding { old: Some(old), .. } | State::Revoking { old, .. } => State::Bound(old),
            State::Binding { old: None, .. } => {
                inner.cell.unbound();
                State::Free
            }
            state => state,
        };
    }

    /// Records that the request in flight has ended. The caller is the poller that owns `ticks` and
    /// has read the completion.
    pub(crate) fn settle(&mut self, has_succeeded: bool, ticks: &Arc<Ticks>) {
        let tick = ticks.add();
        if !has_succeeded {
            // A flushed request may have been executed, so the binding is unknown.
            return;
        }
        let inner = &mut *self.0;
        inner.state = match core::mem::replace(&mut inner.state, State::Free) {
            State::Binding { old, new } => {
                if let Some(old) = old {
                    old.release(inner.ends_access);
                }
                inner.rkey = new.remote.rkey;
                State::Bound(Binding { completed: Some((Arc::clone(ticks), tick)), ..new })
            }
            State::Revoking { old, new_rkey } => {
                inner.rkey = new_rkey;
                inner.cell.unbound();
                old.release(inner.ends_access);
                State::Free
            }
            state => state,
        };
    }
}

impl Binding {
    /// Releases the memory of a binding that has ended.
    fn release(self, ends_access: bool) {
        if !ends_access {
            self.memory.mark_lingering();
        }
    }
}

impl State {
    /// Returns the bindings that may be in effect.
    fn into_bindings(self) -> [Option<Binding>; 2] {
        match self {
            Self::Free => [None, None],
            Self::Bound(binding) | Self::Doubtful(binding) => [Some(binding), None],
            Self::Binding { old, new } => [old, Some(new)],
            Self::Revoking { old, .. } => [Some(old), None],
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = core::mem::replace(&mut self.state, State::Free);
        // While the provider's code runs, unwinding must not release the memory.
        let bindings = ManuallyDrop::new(state.into_bindings());
        if self.cell.deallocate().is_ok() {
            for binding in ManuallyDrop::into_inner(bindings).into_iter().flatten() {
                binding.release(self.ends_access);
            }
        }
        // Otherwise the memory is leaked. Dropping the cell tries once more and reports the leak.
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("mw_type", &self.0.mw_type)
            .field("rkey", &format_args!("{:#x}", self.0.rkey))
            .field("remote", &self.remote())
            .finish_non_exhaustive()
    }
}

/// The kernel object of a window, shared by the window and the queue pair it is bound for.
pub(crate) struct Cell(Mutex<Object>);

struct Object {
    stage: Stage,
    /// The list of the queue pair that the window is or may be bound for; dangling if there is
    /// none.
    bound_for: Weak<List>,
}

enum Stage {
    Live(Box<dyn Deallocate>),
    /// The provider's code is running or has panicked: the window may still exist.
    Ending,
    Deallocated,
}

impl Cell {
    fn new(handle: Box<dyn Deallocate>) -> Self {
        Self(Mutex::new(Object { stage: Stage::Live(handle), bound_for: Weak::new() }))
    }

    /// Deallocates the window unless it is already deallocated. A second thread waits for the
    /// first, so `Ok` means the same for both.
    ///
    /// # Errors
    /// Any errno the kernel returns; `EIO` after the provider has panicked, when the window may
    /// still exist.
    fn deallocate(&self) -> Result<()> {
        Self::deallocate_locked(self.lock())
    }

    /// Deallocates the window as [`deallocate`](Self::deallocate) does, if it is or may be bound
    /// for the queue pair with this list.
    fn deallocate_for(&self, list: &Arc<List>) -> Result<()> {
        let object = self.lock();
        if core::ptr::eq(object.bound_for.as_ptr(), Arc::as_ptr(list)) {
            Self::deallocate_locked(object)
        } else {
            Ok(())
        }
    }

    fn deallocate_locked(mut object: MutexGuard<'_, Object>) -> Result<()> {
        let handle = match core::mem::replace(&mut object.stage, Stage::Ending) {
            Stage::Live(handle) => handle,
            Stage::Deallocated => {
                object.stage = Stage::Deallocated;
                return Ok(());
            }
            Stage::Ending => {
                let by = "a provider that panicked when it deallocated the window";
                return Err(Error::new("dealloc_mw", "", Errno::IO).because(Cause::InUse { by }));
            }
        };
        match handle.deallocate() {
            Ok(pd) => {
                object.stage = Stage::Deallocated;
                drop(object);
                // The lock is released, because dropping a protection domain may call the program's
                // hook.
                drop(pd);
                Ok(())
            }
            Err((handle, error)) => {
                object.stage = Stage::Live(handle);
                Err(error)
            }
        }
    }

    fn is_deallocated(&self) -> bool {
        !matches!(self.lock().stage, Stage::Live(_))
    }

    /// Records a binding for the queue pair with this list.
    fn bound_for(&self, list: &Arc<List>) {
        self.lock().bound_for = Arc::downgrade(list);
    }

    /// Records that the window is not bound for any queue pair.
    fn unbound(&self) {
        self.lock().bound_for = Weak::new();
    }

    fn lock(&self) -> MutexGuard<'_, Object> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A provider's window and its protection domain. The trait hides the provider, so all tables of
/// memory in flight have one type.
trait Deallocate: Send {
    /// Deallocates the window and returns its share of the protection domain.
    fn deallocate(self: Box<Self>) -> Result<Child, (Box<dyn Deallocate>, Error)>;
}

impl<T: MwOps + Destroy> Deallocate for KernelHandle<T, Child> {
    fn deallocate(self: Box<Self>) -> Result<Child, (Box<dyn Deallocate>, Error)> {
        match self.close() {
            Ok(pd) => Ok(pd),
            Err(HandleError { handle, error }) => Err((Box::new(handle), error)),
        }
    }
}

/// A queue pair and the windows bound for it.
#[derive(Debug)]
pub(crate) struct WithWindows<Q> {
    qp: Q,
    windows: Windows,
}

/// The windows of type 2 that may be bound for a queue pair.
#[derive(Default)]
struct Windows(Arc<List>);

type List = Mutex<Vec<Weak<Cell>>>;

impl<Q> WithWindows<Q> {
    pub(crate) fn new(qp: Q) -> Self {
        Self { qp, windows: Windows::default() }
    }

    /// Converts the queue pair into another type.
    ///
    /// # Errors
    /// Returns the unchanged queue pair if `map` gives it back.
    pub(crate) fn try_map<R>(self, map: impl FnOnce(Q) -> Result<R, Q>) -> Result<WithWindows<R>, Self> {
        let Self { qp, windows } = self;
        match map(qp) {
            Ok(qp) => Ok(WithWindows { qp, windows }),
            Err(qp) => Err(Self { qp, windows }),
        }
    }
}

/// The part of a queue pair that binds need.
pub(crate) trait QpWindows {
    /// Returns the number of the queue pair.
    fn number(&self) -> u32;

    /// Adds a window to the list of windows that are deallocated before the queue pair is
    /// destroyed. `enlisted` is the last list that contained the window.
    fn enlist(&self, window: &Arc<Cell>, enlisted: &mut Weak<List>);
}

impl<Q: verbs_core::provider::QpOps> QpWindows for WithWindows<Q> {
    fn number(&self) -> u32 {
        self.qp.qp_num()
    }

    fn enlist(&self, window: &Arc<Cell>, enlisted: &mut Weak<List>) {
        window.bound_for(&self.windows.0);
        if core::ptr::eq(enlisted.as_ptr(), Arc::as_ptr(&self.windows.0)) {
            return;
        }
        *enlisted = Arc::downgrade(&self.windows.0);
        let mut windows = self.windows.0.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.len() == windows.capacity() {
            // Before the list grows, remove windows that are gone or came back from another list.
            windows.retain(|window| window.strong_count() > 0);
            windows.sort_unstable_by_key(|window| window.as_ptr().addr());
            windows.dedup_by(|one, other| one.ptr_eq(other));
        }
        windows.push(Arc::downgrade(window));
    }
}

impl Windows {
    /// Deallocates the windows that may be bound for this queue pair. They stay in the list,
    /// because destroying the queue pair may fail.
    fn deallocate(&self) {
        let windows = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for window in windows.iter().filter_map(Weak::upgrade) {
            // A window that could not be deallocated reports its error when dropped. The kernel
            // decides whether the queue pair can go.
            let _ = window.deallocate_for(&self.0);
        }
    }
}

impl fmt::Debug for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Windows").finish_non_exhaustive()
    }
}

impl<Q: Destroy> Destroy for WithWindows<Q> {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.destroy_counting_events().map(drop)
    }

    fn destroy_counting_events(self) -> Result<EventsRead, (Self, Error)> {
        let Self { qp, windows } = self;
        windows.deallocate();
        qp.destroy_counting_events().map_err(|(qp, error)| (Self { qp, windows }, error))
    }
}

impl<Q> Deref for WithWindows<Q> {
    type Target = Q;

    #[inline]
    fn deref(&self) -> &Q {
        &self.qp
    }
}

impl<Q> DerefMut for WithWindows<Q> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Q {
        &mut self.qp
    }
}
