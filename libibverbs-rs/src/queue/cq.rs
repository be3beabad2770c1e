//! [`Cq`]: a queue of work request completions; [`CqHandle`]: a weak reference for creating queue
//! pairs.
//!
//! A program may drop a completion queue before its queue pairs, but the kernel refuses to destroy
//! the queue before them. So destruction is deferred: the dropped `Cq` leaves the provider's queue
//! in the state it shares with the queue pairs. The last queue pair destroys the provider's queue.
//!
//! ```text
//! Cq ── handle ─► the provider's queue       Cq dropped: the queue moves to `deferred`
//!  ├─ routes ───► copies of the directory    last Qp dropped: `deferred` is dropped,
//!  └─ shared ───► CqState { lifecycle,         which destroys the queue
//!                  ▲         directory of tables in flight }
//!      Qp, Qp, CqHandle
//! ```

use std::any::Any;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use verbs_core::provider::{
    Completion as _, ContextOps, CqOps, Erased, ErasedCqHandle, NamedProvider, Provider, WaitOps,
};
use verbs_core::types::{CqFlags, CqInitAttr, CqModeration, CqWcFlags, Wc};
use verbs_core::{Cause, Errno, Error, Result};

use crate::device::context::Context;
use crate::device::pd::Pd;
use crate::handle::error::HandleError;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::{self, Child, CqId, Kind, Registry};
use crate::in_flight::{Directory, Returned, Routes};
use crate::queue::comp_channel::{self, CompChannel};
use crate::queue::completion::{Completed, Completions, invalidated};
use crate::queue::patience::Patience;

/// The attributes of a new completion queue:
/// `CqInit { channel: Some(&channel), ..CqInit::new(256) }`.
#[doc(alias = "ibv_cq_init_attr_ex")]
#[doc(alias = "ibv_cq_init_attr_mask")]
#[derive(Debug)]
pub struct CqInit<'a, P: Provider = Erased> {
    /// The requested capacity, in completions; the device may round up.
    pub cqe: u32,
    /// The channel that signals new completions.
    pub channel: Option<&'a CompChannel>,
    /// The completion vector (interrupt) for the queue's events, below
    /// [`Context::num_comp_vectors`].
    pub comp_vector: u32,
    /// The properties of the queue. An overrun is an error unless
    /// [`IGNORE_OVERRUN`](CqFlags::IGNORE_OVERRUN) is set; see [`Cq`].
    #[doc(alias = "IBV_CQ_INIT_ATTR_MASK_FLAGS")]
    pub flags: CqFlags,
    /// The optional fields in the queue's completions, such as
    /// [`COMPLETION_TIMESTAMP`](CqWcFlags::COMPLETION_TIMESTAMP). [`Completion`](crate::Completion)
    /// reads them.
    pub wc_flags: CqWcFlags,
    /// The parent domain ([`Pd::alloc_parent_domain`]) whose allocator allocates the memory of the
    /// queue. The queue keeps the domain alive. A queue needs no thread domain, because only one
    /// thread at a time can use it: see [`SINGLE_THREADED`](CqFlags::SINGLE_THREADED).
    #[doc(alias = "IBV_CQ_INIT_ATTR_MASK_PD")]
    pub parent_domain: Option<&'a Pd<P>>,
}

impl<P: Provider> CqInit<'_, P> {
    /// Returns the attributes of a queue for `cqe` completions, without a completion channel.
    pub const fn new(cqe: u32) -> Self {
        Self {
            cqe,
            channel: None,
            comp_vector: 0,
            flags: CqFlags::empty(),
            wc_flags: CqWcFlags::empty(),
            parent_domain: None,
        }
    }
}

impl<P: Provider> Clone for CqInit<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Provider> Copy for CqInit<'_, P> {}

/// A completion queue, which holds the completions of finished work requests. Polling takes `&mut
/// self`, so it needs no lock.
///
/// There are three ways to poll. [`poll`](Self::poll) returns views, which read only the fields the
/// program uses; [`poll_one`](Self::poll_one) returns one completion by value, with its memory;
/// [`poll_into`](Self::poll_into) copies many. Each returns the memory of safe requests and needs
/// no queue pair for that.
///
/// # Overrun
/// A full queue loses the next completion. The device raises
/// [`CQ_ERR`](crate::AsyncEventType::CQ_ERR) ([`Context::async_events`]). On soft devices, the
/// event is raised once per queue. The queue pair of the lost completion moves to the error state;
/// others continue. rxe raises the event for each lost completion and moves the queue pair to the
/// error state only for a receive. Completions already in the queue stay, and the queue can be
/// polled, resized and used as before. The memory of a request whose completion was lost returns
/// when its queue pair is reset or closed, or, for a send, when a later send of the queue
/// completes. With [`CqFlags::IGNORE_OVERRUN`], on devices that offer it, the completion is lost
/// silently and the queue pair continues.
///
/// # References
/// `ibv_create_cq(3)`, `ibv_poll_cq(3)`
#[doc(alias = "ibv_cq")]
#[derive(Debug)]
pub struct Cq<P: Provider = Erased> {
    handle: KernelHandle<P::Cq, Dependencies>,
    routes: Routes,
    name: P::CqHandle,
    shared: Arc<CqState>,
    /// The device, if a thread that waits can do the device's work.
    waits: Option<Arc<dyn WaitOps>>,
}

/// A weak reference to a completion queue, for creating queue pairs on it while another thread
/// polls it. Cheap to clone.
///
/// Made by [`Cq::handle`], or by converting a `&Cq`. It does not keep the queue open: no queue pair
/// can be created on a closed or dropped [`Cq`].
///
/// ```no_run
/// # fn f(pd: verbs::Pd, mut cq: verbs::Cq) -> Result<(), verbs::Error> {
/// use verbs::{QpInit, QpType};
/// let handle = cq.handle();
/// let poller = std::thread::spawn(move || while cq.poll_one().is_none() {});
/// let qp = pd.create_qp(&QpInit::new(QpType::RC, handle))?;
/// # Ok(())
/// # }
/// ```
///
/// A closed queue gives out no handles:
///
/// ```compile_fail,E0382
/// # fn f(cq: verbs::Cq) {
/// cq.close();
/// cq.handle();
/// # }
/// ```
#[derive(Debug)]
pub struct CqHandle<P: Provider = Erased> {
    name: P::CqHandle,
    shared: Arc<CqState>,
}

/// The state shared by a completion queue, its handles and its queue pairs.
#[derive(Debug)]
struct CqState {
    id: CqId,
    registry: Arc<Registry>,
    directory: Arc<Directory>,
    lifecycle: Mutex<Lifecycle>,
}

#[derive(Debug, Default)]
struct Lifecycle {
    /// The number of uses by queue pairs. A queue pair that uses the queue for sends and receives
    /// counts twice.
    users: usize,
    /// The number of uses by each live queue pair, keyed by queue pair number.
    qps: BTreeMap<u32, u8>,
    /// Whether the poller has closed or dropped the queue.
    is_closed: bool,
    /// The queue, if the poller dropped it while queue pairs used it.
    deferred: Option<Box<dyn Any + Send>>,
}

/// A queue pair's share of a completion queue: the queue is not destroyed while the share lives.
#[derive(Debug)]
pub(crate) struct CqUse {
    shared: Arc<CqState>,
    /// The number of the queue pair; a shared receive queue has none.
    qp_num: Option<u32>,
}

/// The dependencies of the queue, released once it is destroyed.
#[derive(Debug)]
struct Dependencies {
    _entry: registry::Entry,
    _channel: Option<Arc<comp_channel::Inner>>,
    _parent_domain: Option<Child>,
    _context: Child,
}

impl<P: Provider> Context<P> {
    /// Creates a completion queue.
    ///
    /// # Errors
    /// - `EINVAL` with [`Cause::Limit`] for a size of 0 or beyond the device's
    ///   [`max_cqe`](crate::DeviceAttr::max_cqe), or a nonexistent completion vector.
    /// - `EOPNOTSUPP` with [`Cause::CqWcFlags`] for completion fields the device lacks;
    ///   `EOPNOTSUPP` or `EINVAL` with [`Cause::CqFlags`] for an unsupported flag.
    /// - `EINVAL` with [`Cause::Foreign`] for the completion channel or the parent domain of
    ///   another open device.
    /// - `EINVAL` for a [`parent_domain`](CqInit::parent_domain) that is an ordinary domain;
    ///   `EOPNOTSUPP` if the provider, such as rxe, has no parent domains.
    /// - Any other errno the kernel returns; notably `ENOMEM`.
    ///
    /// # References
    /// `ibv_create_cq(3)`
    #[doc(alias = "ibv_create_cq")]
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create_cq(&self, init: &CqInit<'_, P>) -> Result<Cq<P>> {
        Cq::create(self, init)
    }
}

impl<P: Provider> Cq<P> {
    pub(crate) fn create(context: &Context<P>, init: &CqInit<'_, P>) -> Result<Self> {
        Self::create_by(context, init, |parent_domain, attr| context.raw().create_cq(parent_domain, attr))
    }

    /// Creates the queue by calling `create`.
    pub(crate) fn create_by(
        context: &Context<P>,
        init: &CqInit<'_, P>,
        create: impl FnOnce(Option<&P::Pd>, &CqInitAttr<'_>) -> Result<(P::Cq, P::CqHandle)>,
    ) -> Result<Self> {
        let registry = context.registry();
        registry.room("create_cq")?;
        let parent_domain = match init.parent_domain {
            Some(pd) if !Arc::ptr_eq(pd.context().registry(), registry) => {
                return Err(registry.foreign("create_cq", "protection domain"));
            }
            parent_domain => parent_domain,
        };
        let channel = init.channel.map(|channel| channel.share(registry)).transpose()?;
        let entry = registry.enter(Kind::Cq, "create_cq")?;
        let id = CqId(entry.id);
        let attr = CqInitAttr {
            cqe: init.cqe,
            channel: init.channel.map(AsFd::as_fd),
            comp_vector: init.comp_vector,
            user_handle: entry.id.0,
            flags: init.flags,
            wc_flags: init.wc_flags,
        };
        let (raw, name) = create(parent_domain.map(Pd::raw), &attr)?;
        if let Some(counter) = raw.event_counter() {
            entry.count_events(counter);
        }
        let dependencies = Dependencies {
            _entry: entry,
            _channel: channel,
            _parent_domain: parent_domain.map(Pd::child_cq),
            _context: context.child(&registry.cq_tally),
        };
        let directory = Arc::new(Directory::default());
        let shared = CqState {
            id,
            registry: Arc::clone(registry),
            directory: Arc::clone(&directory),
            lifecycle: Mutex::default(),
        };
        Ok(Self {
            handle: KernelHandle::new(raw, dependencies),
            routes: Routes::new(directory, Directory::for_srqs(registry)).named(registry.device()),
            name,
            shared: Arc::new(shared),
            waits: context.raw().device().waits(),
        })
    }

    /// Returns the id of this queue in events.
    pub fn id(&self) -> CqId {
        self.shared.id
    }

    /// Returns the number of completions that the queue can hold.
    pub fn cqe(&self) -> u32 {
        self.handle.get().cqe()
    }

    /// Returns the fields of the queue's completions: the [`STANDARD`](CqWcFlags::STANDARD) fields,
    /// and the fields requested when it was created.
    pub fn wc_flags(&self) -> CqWcFlags {
        self.handle.get().wc_flags()
    }

    /// Returns whether a live queue pair with this number reports to this queue.
    ///
    /// One thread may create queue pairs on a queue polled by another. The poller may then see a
    /// completion of a queue pair that it does not know yet, or of a closed queue pair; this call
    /// distinguishes the two cases. A queue pair is alive from before its first completion until
    /// its [`Qp`](crate::Qp) or both its halves are closed or dropped. After that, the device may
    /// reuse its number, so a poller drops its record of a queue pair before the queue pair is
    /// closed.
    ///
    /// ```no_run
    /// # fn f(mut cq: verbs::Cq, new: std::sync::mpsc::Receiver<verbs::RecvHalf>)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut halves = std::collections::HashMap::new();
    /// while let Some(completed) = cq.poll_one() {
    ///     while !halves.contains_key(&completed.qp_num) && cq.has_qp(completed.qp_num) {
    ///         let half = new.recv()?;
    ///         halves.insert(half.qp_num(), half);
    ///     }
    ///     let Some(half) = halves.get_mut(&completed.qp_num) else { continue };
    ///     half.post_recv_buf(completed.into_buf()?, ..)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn has_qp(&self, qp_num: u32) -> bool {
        self.shared.lifecycle().qps.contains_key(&qp_num)
    }

    /// Returns a handle to the queue, for creating queue pairs on it from any thread.
    pub fn handle(&self) -> CqHandle<P> {
        CqHandle { name: self.name.clone(), shared: Arc::clone(&self.shared) }
    }

    /// Polls the queue. The result yields a view of one completion after the other until none is
    /// left.
    ///
    /// ```no_run
    /// # fn f(mut cq: verbs::Cq) {
    /// let mut completions = cq.poll();
    /// while let Some(mut completion) = completions.next() {
    ///     println!("{}: {}", completion.wr_id(), completion.status());
    ///     let buf = completion.reclaim().and_then(verbs::Returned::into_buf);
    /// }
    /// # }
    /// ```
    ///
    /// A completion is read from the queue on demand, so it cannot outlive its iteration of the
    /// loop:
    ///
    /// ```compile_fail,E0499
    /// # fn f(mut cq: verbs::Cq) {
    /// let mut completions = cq.poll();
    /// let first = completions.next();
    /// let second = completions.next();
    /// first.unwrap().wr_id();
    /// # }
    /// ```
    ///
    /// The queue cannot be polled twice at the same time:
    ///
    /// ```compile_fail,E0499
    /// # fn f(mut cq: verbs::Cq) {
    /// let mut completions = cq.poll();
    /// cq.poll();
    /// completions.next();
    /// # }
    /// ```
    ///
    /// # References
    /// `ibv_poll_cq(3)`, `ibv_create_cq_ex(3)`
    #[doc(alias = "ibv_poll_cq")]
    #[doc(alias = "ibv_start_poll")]
    #[inline]
    pub fn poll(&mut self) -> Completions<'_, P> {
        Completions { raw: self.handle.get_mut(), routes: &mut self.routes, lent: false }
    }

    /// Returns the next completion by value with the memory of its request; `None` if none is
    /// available.
    ///
    /// The result borrows nothing, so a method with `&mut self` can both poll and process:
    ///
    /// ```no_run
    /// # struct Server { cq: verbs::Cq }
    /// impl Server {
    ///     fn run(&mut self) -> Result<(), verbs::Error> {
    ///         while let Some(completed) = self.cq.poll_one() {
    ///             completed.wc.ok()?;
    ///             self.handle(completed.into_buf()?);
    ///         }
    ///         Ok(())
    ///     }
    /// #   fn handle(&mut self, buf: verbs::Buf) {}
    /// }
    /// ```
    ///
    /// # References
    /// `ibv_poll_cq(3)`
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll_one(&mut self) -> Option<Completed> {
        let mut wc = Wc::default();
        let raw = self.handle.get_mut();
        raw.next()?.write_to(&mut wc);
        raw.end_poll();
        let returned = self.routes.reclaim(wc.wr_id, wc.status);
        let invalidated = invalidated(&wc, &self.routes);
        Some(Completed { wc, returned, invalidated, device: self.routes.device() })
    }

    /// Waits at most `timeout` and returns the next completion by value with the memory of its
    /// request. [`Completed::ok`] returns the error of a failed request.
    ///
    /// The thread polls for some microseconds and then sleeps. On a soft device the completion ends
    /// the sleep. On a kernel device, each sleep lasts up to a sixteenth of the time already
    /// waited, and at most 10 ms. If that delay is too long, arm the queue ([`arm`](Self::arm)) and
    /// wait on the [`CompChannel`].
    ///
    /// # Errors
    /// `ETIMEDOUT` with [`Cause::NoCompletion`] after the timeout; any errno from `ppoll(2)`.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll_within(&mut self, timeout: Duration) -> Result<Completed> {
        // A deadline beyond the clock's range means no deadline.
        let deadline = Instant::now().checked_add(timeout);
        let mut patience = Patience::new(self.waits.as_ref());
        loop {
            for _ in 0..patience.polls() {
                if let Some(completed) = self.poll_one() {
                    return Ok(completed);
                }
                core::hint::spin_loop();
            }
            let error = |errno| self.shared.registry.error("poll_cq", errno);
            if !patience.rest(deadline).map_err(error)? {
                return Err(error(Errno::TIMEDOUT).because(Cause::NoCompletion { within: timeout }));
            }
        }
    }

    /// Copies up to `wcs.len()` completions out and returns their number.
    /// [`reclaim`](Self::reclaim) returns the memory of their requests.
    ///
    /// # References
    /// `ibv_poll_cq(3)`
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll_into(&mut self, wcs: &mut [Wc]) -> usize {
        let polled = self.handle.get_mut().poll(wcs);
        for wc in &wcs[..polled] {
            self.routes.mark(wc.wr_id);
        }
        polled
    }

    /// Returns the memory of a request, successful or failed, whose completion was copied out.
    ///
    /// Returns `None` for a raw request, a reclaimed request, or a request of a queue pair that has
    /// since been closed or reset. A [`Wc`] is plain data that any code can fill in. The queue uses
    /// only its `wr_id`, which it looks up among the copied completions with unreclaimed memory.
    /// For the same reason, a [`Window`](crate::Window) returned this way has lost its request's
    /// outcome and can only be closed: poll with [`poll`](Self::poll) or
    /// [`poll_one`](Self::poll_one) for windows.
    #[inline]
    pub fn reclaim(&mut self, wc: &Wc) -> Option<Returned> {
        self.routes.reclaim_polled(wc.wr_id)
    }

    /// Requests one event on the completion channel when the next completion arrives; with
    /// `solicited_only`, when the next solicited or failed completion arrives. With
    /// `solicited_only`, rxe raises no event for failed completions. ConnectX and soft devices
    /// raise the event at once if a completion has arrived since the last poll.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EIO` once the device is gone.
    ///
    /// # References
    /// `ibv_req_notify_cq(3)`
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&mut self, solicited_only: bool) -> Result<()> {
        let queue = self.handle.get_mut();
        // Ends the previous poll even if its `Completions` was leaked.
        queue.end_poll();
        queue.req_notify(solicited_only)
    }

    /// Requests an event like [`req_notify`](Self::req_notify) and polls. An event loop built from
    /// this call misses no completion.
    ///
    /// The result yields every completion that arrived before the request; a later completion
    /// raises the event. The program may therefore wait once the result has returned `None`. In the
    /// opposite order, a completion between the last poll and the request would wake no thread on
    /// rxe.
    ///
    /// ```no_run
    /// # fn f(channel: verbs::CompChannel, mut cq: verbs::Cq) -> Result<(), verbs::Error> {
    /// loop {
    ///     let mut completions = cq.arm(false)?;
    ///     while let Some(completion) = completions.next() {
    ///         println!("{}: {}", completion.wr_id(), completion.status());
    ///     }
    ///     drop(completions);
    ///     channel.wait(None)?;
    /// }
    /// # }
    /// ```
    ///
    /// [`CompChannel`] shows the loop for many queues.
    ///
    /// # Errors
    /// Same as [`req_notify`](Self::req_notify).
    ///
    /// # References
    /// `ibv_req_notify_cq(3)`, `ibv_poll_cq(3)`, `ibv_get_cq_event(3)`
    pub fn arm(&mut self, solicited_only: bool) -> Result<Completions<'_, P>> {
        self.req_notify(solicited_only)?;
        Ok(self.poll())
    }

    /// Resizes the queue to at least `cqe` completions. Unpolled completions stay in the queue, in
    /// order; events and memory in flight are unaffected.
    ///
    /// # Errors
    /// - `EINVAL` with [`Cause::Limit`] for a size of 0, beyond the device's
    ///   [`max_cqe`](crate::DeviceAttr::max_cqe), or below the number of completions in the queue.
    ///   The queue is unchanged.
    /// - `EOPNOTSUPP` if the device cannot resize queues.
    /// - Any other errno the kernel returns; notably `ENOMEM`. On rxe it may mean that the process
    ///   could not map the resized queue: the queue is then empty until another call succeeds,
    ///   which restores the completions.
    ///
    /// # References
    /// `ibv_resize_cq(3)`
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&mut self, cqe: u32) -> Result<()> {
        self.handle.get_mut().resize(cqe).map_err(|error| self.named(error))
    }

    /// Changes the moderation of the queue's events, so that one event stands for several
    /// completions.
    ///
    /// An armed queue keeps its old moderation until the next request for an event.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device cannot moderate events (rxe); `EINVAL` with [`Cause::Limit`] for
    /// values beyond [`cq_mod_caps`](crate::DeviceAttrEx::cq_mod_caps); any other errno the kernel
    /// returns.
    ///
    /// # References
    /// `ibv_modify_cq(3)`
    #[doc(alias = "ibv_modify_cq")]
    pub fn modify(&mut self, moderation: CqModeration) -> Result<()> {
        self.handle.get_mut().modify(moderation).map_err(|error| self.named(error))
    }

    /// Adds the device's name to the error for a verb that the provider lacks.
    fn named(&self, error: Error) -> Error {
        if error.device.is_empty() {
            return self.shared.registry.error(error.verb, error.errno).because(error.cause);
        }
        error
    }

    /// Returns the provider's own queue, for features beyond verbs.
    pub fn raw(&self) -> &P::Cq {
        self.handle.get()
    }

    /// Destroys the queue if no queue pair uses it. A dropped queue is destroyed after its last
    /// queue pair.
    ///
    /// # Errors
    /// Returns the queue with the error: `EBUSY` with [`Cause::InUse`] while queue pairs use it;
    /// any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_destroy_cq(3)`
    #[doc(alias = "ibv_destroy_cq")]
    pub fn close(mut self) -> Result<(), HandleError<Self>> {
        {
            let mut lifecycle = self.shared.lifecycle();
            if lifecycle.users > 0 {
                drop(lifecycle);
                let error = self.shared.registry.in_use("destroy_cq", "queue pairs");
                return Err(HandleError { handle: self, error });
            }
            // From here on no queue pair can be created on the queue.
            lifecycle.is_closed = true;
        }
        match self.handle.detach().close() {
            Ok(_) => Ok(()),
            Err(HandleError { handle, error }) => {
                self.handle = handle;
                self.shared.lifecycle().is_closed = false;
                Err(HandleError { handle: self, error })
            }
        }
    }
}

impl Cq<Erased> {
    /// Returns the same queue with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the queue if it belongs to another provider or holds fetched but unpolled
    /// completions: poll it empty first.
    pub fn downcast<P: NamedProvider>(mut self) -> Result<Cq<P>, HandleError<Self>> {
        let Some(name) = self.name.downcast_ref::<P::CqHandle>().cloned() else {
            return Err(HandleError::of_another_provider(self));
        };
        match self.handle.detach().try_map(|raw| raw.downcast::<P::Cq>()) {
            Ok(handle) => {
                let srqs = Directory::for_srqs(&self.shared.registry);
                let directory = Arc::clone(&self.shared.directory);
                let routes = Routes::new(directory, srqs).named(self.routes.device());
                let (shared, waits) = (Arc::clone(&self.shared), self.waits.take());
                Ok(Cq { handle, routes, name, shared, waits })
            }
            Err(handle) => {
                self.handle = handle;
                Err(HandleError::of_another_provider(self))
            }
        }
    }
}

impl<P: Provider> Drop for Cq<P> {
    fn drop(&mut self) {
        if self.handle.is_empty() {
            return;
        }
        let handle = self.handle.detach();
        let mut lifecycle = self.shared.lifecycle();
        lifecycle.is_closed = true;
        if lifecycle.users > 0 {
            lifecycle.deferred = Some(Box::new(handle));
        } else {
            drop(lifecycle);
            drop(handle);
        }
    }
}

impl<P: Provider> CqHandle<P> {
    /// Returns the id of the queue in events.
    pub fn id(&self) -> CqId {
        self.shared.id
    }

    pub(crate) fn name(&self) -> &P::CqHandle {
        &self.name
    }

    pub(crate) fn directory(&self) -> &Arc<Directory> {
        &self.shared.directory
    }

    /// Returns a share of the queue for a queue pair or an XRC shared receive queue on the device
    /// of `registry`.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Foreign`] for a queue of another open device, with [`Cause::Closed`]
    /// for a closed or dropped queue.
    pub(crate) fn share(&self, registry: &Arc<Registry>, verb: &'static str) -> Result<CqUse> {
        if !Arc::ptr_eq(&self.shared.registry, registry) {
            return Err(registry.foreign(verb, "completion queue"));
        }
        let mut lifecycle = self.shared.lifecycle();
        if lifecycle.is_closed {
            drop(lifecycle);
            let cause = Cause::Closed { what: "completion queue" };
            return Err(registry.error(verb, Errno::INVAL).because(cause));
        }
        lifecycle.users += 1;
        drop(lifecycle);
        Ok(CqUse { shared: Arc::clone(&self.shared), qp_num: None })
    }
}

impl CqHandle<Erased> {
    /// Returns the same handle with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the handle if the queue belongs to another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<CqHandle<P>, HandleError<Self>> {
        let named: Option<&P::CqHandle> = ErasedCqHandle::downcast_ref(&self.name);
        match named.cloned() {
            Some(name) => Ok(CqHandle { name, shared: self.shared }),
            None => Err(HandleError::of_another_provider(self)),
        }
    }
}

impl<P: Provider> Clone for CqHandle<P> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<P: Provider> From<&Cq<P>> for CqHandle<P> {
    fn from(cq: &Cq<P>) -> Self {
        cq.handle()
    }
}

impl<P: Provider> From<&Self> for CqHandle<P> {
    fn from(handle: &Self) -> Self {
        handle.clone()
    }
}

impl CqState {
    fn lifecycle(&self) -> MutexGuard<'_, Lifecycle> {
        self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CqUse {
    /// Records the number of this share's queue pair.
    pub(crate) fn of_qp(&mut self, qp_num: u32) {
        self.qp_num = Some(qp_num);
        *self.shared.lifecycle().qps.entry(qp_num).or_default() += 1;
    }
}

impl Drop for CqUse {
    fn drop(&mut self) {
        let deferred = {
            let mut lifecycle = self.shared.lifecycle();
            lifecycle.users -= 1;
            if let Some(qp_num) = self.qp_num
                && let Entry::Occupied(mut uses) = lifecycle.qps.entry(qp_num)
            {
                *uses.get_mut() -= 1;
                if *uses.get() == 0 {
                    uses.remove();
                }
            }
            if lifecycle.users == 0 { lifecycle.deferred.take() } else { None }
        };
        // The lock is released, because destroying may call the program's hook.
        drop(deferred);
    }
}
