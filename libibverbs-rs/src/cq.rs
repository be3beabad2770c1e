//! [`Cq`]: where finished work requests are found.
//!
//! A completion queue may be dropped before the queue pairs that use it, but the kernel refuses to destroy it before
//! them. So the handle and its queue pairs share a grave: the handle puts the queue there when it is dropped, and who is
//! the last to leave the grave destroys it.
//!
//! ```text
//! Cq ── live ──► the provider's queue            Cq dropped: live moves into the grave
//!  └─ shared ──► Shared { grave: empty }         last Qp dropped: the grave is dropped, and the queue destroyed
//!                  ▲
//!      Qp, Qp ─────┘
//! ```

use std::any::Any;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use verbs_core::provider::{Completion as _, ContextOps, CqOps, Erased, NamedProvider, Provider};
use verbs_core::types::{CqInitAttr, Wc, WcFlags, WcOpcode, WcStatus};
use verbs_core::{Error, Result};

use crate::live::Live;
use crate::registry::{Child, CqId, Entry, Kind, Registry};
use crate::{CompChannel, Context, comp_channel};

/// What a completion queue is created with: `CqInit { channel: Some(&channel), ..CqInit::new(256) }`.
#[doc(alias = "ibv_cq_init_attr_ex")]
#[derive(Clone, Copy, Debug)]
pub struct CqInit<'a> {
    /// At least this many completions fit; the device may round up.
    pub cqe: u32,
    /// Where it says that there is something to poll.
    pub channel: Option<&'a CompChannel>,
    /// Which completion vector (interrupt) signals it, below [`Context::num_comp_vectors`].
    pub comp_vector: u32,
}

impl CqInit<'_> {
    /// A queue for `cqe` completions that is polled and signals nobody.
    pub const fn new(cqe: u32) -> Self {
        Self { cqe, channel: None, comp_vector: 0 }
    }
}

/// A completion queue: where finished work requests are found. Who polls owns it: `&mut` is the lock.
///
/// # References
/// `ibv_create_cq(3)`, `ibv_poll_cq(3)`
#[doc(alias = "ibv_cq")]
#[derive(Debug)]
pub struct Cq<P: Provider = Erased> {
    live: Live<P::Cq, Kept>,
    shared: Arc<Shared>,
}

/// What a completion queue and its queue pairs share.
#[derive(Debug)]
pub(crate) struct Shared {
    id: CqId,
    registry: Arc<Registry>,
    grave: Mutex<Option<Box<dyn Any + Send>>>,
}

/// What is released once the queue is destroyed.
#[derive(Debug)]
struct Kept {
    _entry: Entry,
    _channel: Option<Arc<comp_channel::Inner>>,
    _context: Child,
}

impl<P: Provider> Cq<P> {
    pub(crate) fn create(context: &Context<P>, init: &CqInit<'_>) -> Result<Self> {
        let registry = context.registry();
        let channel = init.channel.map(|channel| channel.share(registry)).transpose()?;
        let entry = registry.enter(Kind::Cq);
        let id = CqId(entry.id);
        let raw = context.raw().create_cq(&CqInitAttr {
            cqe: init.cqe,
            channel: init.channel.map(AsFd::as_fd),
            comp_vector: init.comp_vector,
            user_handle: entry.id.0,
        })?;
        let kept = Kept { _entry: entry, _channel: channel, _context: context.child(&registry.cq_tally) };
        let shared = Shared { id, registry: Arc::clone(registry), grave: Mutex::new(None) };
        Ok(Self { live: Live::new(raw, kept), shared: Arc::new(shared) })
    }

    /// What events of this queue carry.
    pub fn id(&self) -> CqId {
        self.shared.id
    }

    /// How many completions fit.
    pub fn cqe(&self) -> u32 {
        self.live.get().cqe()
    }

    /// Polls: lends one completion after the other until there is none.
    ///
    /// ```no_run
    /// # fn f(mut cq: verbs::Cq) {
    /// let mut completions = cq.poll();
    /// while let Some(completion) = completions.next() {
    ///     println!("{}: {}", completion.wr_id(), completion.status());
    /// }
    /// # }
    /// ```
    ///
    /// A completion is read from the queue on demand, so it cannot outlive the step:
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
    /// nor the queue be polled twice at a time:
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
        Completions { raw: self.live.get_mut(), source: &self.shared, lent: false }
    }

    /// Polls: copies up to `wcs.len()` completions out, and says how many there were.
    ///
    /// # References
    /// `ibv_poll_cq(3)`
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll_into(&mut self, wcs: &mut [Wc]) -> usize {
        self.live.get_mut().poll(wcs)
    }

    /// Asks for one event on the completion channel when the next completion arrives; with `solicited_only`, the next
    /// that the sender marked or that failed (rxe raises none for those that failed).
    ///
    /// # Errors
    /// What the kernel answers.
    ///
    /// # References
    /// `ibv_req_notify_cq(3)`
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&mut self, solicited_only: bool) -> Result<()> {
        self.live.get_mut().req_notify(solicited_only)
    }

    /// The provider's own queue, for what it has beyond verbs.
    pub fn raw(&self) -> &P::Cq {
        self.live.get()
    }

    /// Destroys it, if no queue pair uses it. Dropping does the same once they are gone.
    ///
    /// # Errors
    /// [`Cause::InUse`](crate::Cause::InUse), or what the kernel answers, and the queue.
    ///
    /// # References
    /// `ibv_destroy_cq(3)`
    #[doc(alias = "ibv_destroy_cq")]
    pub fn close(mut self) -> Result<(), (Self, Error)> {
        if Arc::strong_count(&self.shared) > 1 {
            let error = self.shared.registry.in_use("destroy_cq", "queue pairs");
            return Err((self, error));
        }
        match self.live.detach().close() {
            Ok(_) => Ok(()),
            Err((live, error)) => {
                self.live = live;
                Err((self, error))
            }
        }
    }

    /// What a queue pair holds of it.
    pub(crate) fn share(&self, registry: &Arc<Registry>) -> Result<Arc<Shared>> {
        if !Arc::ptr_eq(&self.shared.registry, registry) {
            return Err(registry.foreign("create_qp", "completion queue"));
        }
        Ok(Arc::clone(&self.shared))
    }
}

impl Cq<Erased> {
    /// The same queue with its provider named.
    ///
    /// # Errors
    /// The queue, when it is of another provider or when it holds completions that were fetched and not polled yet: poll
    /// it empty first.
    pub fn downcast<P: NamedProvider>(mut self) -> Result<Cq<P>, Self> {
        match self.live.detach().try_map(|raw| raw.downcast::<P::Cq>()) {
            Ok(live) => Ok(Cq { live, shared: Arc::clone(&self.shared) }),
            Err(live) => {
                self.live = live;
                Err(self)
            }
        }
    }
}

impl<P: Provider> Drop for Cq<P> {
    fn drop(&mut self) {
        if !self.live.is_empty() {
            let mut grave = self.shared.grave.lock().unwrap_or_else(PoisonError::into_inner);
            *grave = Some(Box::new(self.live.detach()));
        }
    }
}

/// A poll under way. The device gets the slots of what was lent back when it is dropped.
#[derive(Debug)]
pub struct Completions<'q, P: Provider = Erased> {
    raw: &'q mut P::Cq,
    source: &'q Shared,
    lent: bool,
}

impl<P: Provider> Completions<'_, P> {
    /// Lends the next completion, or says that there is none now.
    #[doc(alias = "ibv_next_poll")]
    #[allow(clippy::should_implement_trait)]
    #[inline(always)]
    pub fn next(&mut self) -> Option<Completion<'_, P>> {
        let raw = self.raw.next()?;
        self.lent = true;
        Some(Completion { raw, source: self.source })
    }
}

impl<P: Provider> Drop for Completions<'_, P> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.lent {
            self.raw.finish();
        }
    }
}

/// A completion, read from the queue on demand, and the proof that its work request has ended: only polling makes one, and
/// numbers 5 to 7 of [`Provider`]'s contract say what it proves.
///
/// Where [`status`](Self::status) is not success, only `wr_id`, `status`, `qp_num` and `vendor_err` mean something.
#[doc(alias = "ibv_wc")]
#[doc(alias = "ibv_cq_ex")]
pub struct Completion<'c, P: Provider + 'c = Erased> {
    raw: <P::Cq as CqOps>::Completion<'c>,
    /// The queue that it was polled from.
    source: &'c Shared,
}

/// Reads one field.
macro_rules! fields {
    ($($(#[$doc:meta])* $field:ident: $type:ty;)*) => {
        impl<P: Provider> Completion<'_, P> {
            $($(#[$doc])* #[inline(always)] pub fn $field(&self) -> $type { self.raw.$field() })*
        }
    };
}

fields! {
    /// The work request's own number.
    wr_id: u64;
    /// How the work request ended.
    #[doc(alias = "ibv_wc_status_str")] status: WcStatus;
    /// Which operation it was.
    #[doc(alias = "ibv_wc_read_opcode")] opcode: WcOpcode;
    /// The vendor's error syndrome.
    #[doc(alias = "ibv_wc_read_vendor_err")] vendor_err: u32;
    /// How many bytes arrived (receives, reads, atomics).
    #[doc(alias = "ibv_wc_read_byte_len")] byte_len: u32;
    /// Immediate data as a number, or the invalidated key; see [`wc_flags`](Self::wc_flags).
    #[doc(alias = "ibv_wc_read_imm_data")] imm_data: u32;
    /// The local queue pair.
    #[doc(alias = "ibv_wc_read_qp_num")] qp_num: u32;
    /// The sender's queue pair (UD).
    #[doc(alias = "ibv_wc_read_src_qp")] src_qp: u32;
    /// Which fields mean something.
    #[doc(alias = "ibv_wc_read_wc_flags")] wc_flags: WcFlags;
    /// The partition key's index.
    pkey_index: u16;
    /// The sender's local id (UD, InfiniBand).
    #[doc(alias = "ibv_wc_read_slid")] slid: u16;
    /// The service level (UD).
    #[doc(alias = "ibv_wc_read_sl")] sl: u8;
    /// The low bits of the destination local id (UD, InfiniBand).
    #[doc(alias = "ibv_wc_read_dlid_path_bits")] dlid_path_bits: u8;
}

impl<P: Provider> Completion<'_, P> {
    /// Was it polled from this queue?
    #[inline(always)]
    pub(crate) fn is_from(&self, queue: &Shared) -> bool {
        core::ptr::eq(self.source, queue)
    }

    /// All of it, by value.
    #[inline(always)]
    pub fn to_wc(&self) -> Wc {
        let mut wc = Wc::default();
        self.raw.write_to(&mut wc);
        wc
    }

    /// Did it end as asked?
    #[inline(always)]
    pub fn is_success(&self) -> bool {
        self.status() == WcStatus::SUCCESS
    }
}

impl<P: Provider> core::fmt::Debug for Completion<'_, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.to_wc().fmt(f)
    }
}
