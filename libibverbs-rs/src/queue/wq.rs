//! [`Wq`]: a queue of receives, separate from queue pairs; [`RwqIndTable`]: a table of such queues,
//! used by a queue pair to spread received packets (RSS).
//!
//! A table keeps its work queues alive: a [`Wq`] that is dropped first is destroyed with the table.
//!
//! # Safety
//! The unsafe code here is raw posting, whose requirements the caller meets.

#![allow(unsafe_code)]

use core::fmt;

use verbs_core::provider::{
    ContextOps, Erased, NamedProvider, Provider, RecvQueue, RwqIndTableOps, WqOps, WqParents, WqParts,
};
use verbs_core::types::{PostError, RecvWr, RxHashConf, WqAttr, WqFlags, WqInitAttr, WqState, WqType};
use verbs_core::{Cause, Errno, Result};

use crate::device::context::Context;
use crate::device::pd::Pd;
use crate::handle::error::HandleError;
use crate::handle::registry::{Child, Entry, Kind, Registry, WqId};
use crate::handle::shared_object::{SharedObject, WeakObject};
use crate::queue::cq::CqHandle;
use crate::queue::cq::CqUse;

/// The attributes of a new work queue: `WqInit { max_wr: 256, ..WqInit::new(&cq) }`.
#[doc(alias = "ibv_wq_init_attr")]
#[doc(alias = "ibv_wq_init_attr_mask")]
#[derive(Clone, Debug)]
pub struct WqInit<P: Provider = Erased> {
    /// The kind of work queue.
    pub wq_type: WqType,
    /// The completion queue for the work queue's receives.
    pub cq: CqHandle<P>,
    /// The requested capacity, in receives; the device may round up.
    pub max_wr: u32,
    /// The requested maximum number of scatter/gather elements per receive.
    pub max_sge: u32,
    /// The properties of the queue.
    #[doc(alias = "IBV_WQ_INIT_ATTR_FLAGS")]
    pub create_flags: WqFlags,
}

impl<P: Provider> WqInit<P> {
    /// Returns the attributes of a work queue for 16 receives with one piece of memory each.
    pub fn new(cq: impl Into<CqHandle<P>>) -> Self {
        Self { wq_type: WqType::RQ, cq: cq.into(), max_wr: 16, max_sge: 1, create_flags: WqFlags::empty() }
    }
}

/// A work queue: a queue of receives, shared by queue pairs through a [`RwqIndTable`]. Posting
/// takes `&mut self`, so it needs no lock.
///
/// Neither rxe nor soft devices have work queues.
///
/// # References
/// `ibv_create_wq(3)`
#[doc(alias = "ibv_wq")]
#[derive(Debug)]
pub struct Wq<P: Provider = Erased> {
    shared: SharedObject<P::Wq, Dependencies>,
    queue: P::WqQueue,
}

/// The dependencies of a work queue, released once it is destroyed.
#[derive(Debug)]
struct Dependencies {
    entry: Entry,
    _cq: CqUse,
    _pd: Child,
}

impl<P: Provider> Pd<P> {
    /// Creates a work queue in the state RESET.
    ///
    /// # Errors
    /// - `EOPNOTSUPP` if the device has no work queues.
    /// - `EINVAL` with [`Cause::Foreign`](crate::Cause::Foreign) for a completion queue of another
    ///   open device, with [`Cause::Closed`](crate::Cause::Closed) for a closed or dropped
    ///   completion queue.
    /// - Any other errno the kernel returns; notably `EINVAL` for a size beyond the device's
    ///   limits.
    ///
    /// # References
    /// `ibv_create_wq(3)`
    #[doc(alias = "ibv_create_wq")]
    pub fn create_wq(&self, init: &WqInit<P>) -> Result<Wq<P>> {
        const VERB: &str = "create_wq";
        let registry = self.context().registry();
        let cq = init.cq.share(registry, VERB)?;
        let entry = registry.enter(Kind::Wq, VERB)?;
        let attr = WqInitAttr {
            wq_type: init.wq_type,
            max_wr: init.max_wr,
            max_sge: init.max_sge,
            create_flags: init.create_flags,
            user_handle: entry.id.0,
        };
        let parents = WqParents { pd: self.raw(), cq: init.cq.name() };
        let WqParts { wq, queue } = self.context().creating(VERB)?.create_wq(&parents, &attr)?;
        let dependencies = Dependencies { entry, _cq: cq, _pd: self.child_wq() };
        Ok(Wq { shared: SharedObject::new(wq, dependencies, registry), queue })
    }
}

impl<P: Provider> Wq<P> {
    /// Returns the id that identifies this queue in events.
    pub fn id(&self) -> WqId {
        WqId(self.shared.dependencies().entry.id)
    }

    /// Returns the queue's number on the device.
    pub fn wq_num(&self) -> u32 {
        self.shared.get().wq_num()
    }

    /// Returns the last state set by the program.
    pub fn state(&self) -> WqState {
        self.shared.get().state()
    }

    /// Returns the maximum number of outstanding receives.
    pub fn max_wr(&self) -> u32 {
        self.shared.get().max_wr()
    }

    /// Returns the maximum number of scatter/gather elements per receive.
    pub fn max_sge(&self) -> u32 {
        self.shared.get().max_sge()
    }

    /// Moves the queue to another state or changes its properties. The queue receives only in the
    /// state [`RDY`](WqState::RDY).
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EINVAL` for an invalid transition, and `EOPNOTSUPP`
    /// for a property that cannot change.
    ///
    /// # References
    /// `ibv_modify_wq(3)`
    #[doc(alias = "ibv_modify_wq")]
    pub fn modify(&mut self, attr: &WqAttr) -> Result<()> {
        self.shared.get().modify(&mut self.queue, attr)
    }

    /// Posts raw receives.
    ///
    /// # Safety
    /// From this call until a request's completion was polled, or the queue was destroyed, the
    /// device may write the memory of every SGE: no code may free or access it. Only `Ok` from
    /// [`close`](Self::close) proves the destruction, because a table keeps a dropped queue alive.
    /// No `wr_id` may have its top bit set.
    ///
    /// # Errors
    /// Returns the number of accepted requests and the reason why the next was rejected. The device
    /// owns the memory of the accepted requests.
    ///
    /// # References
    /// `ibv_post_wq_recv(3)`
    #[doc(alias = "ibv_post_wq_recv")]
    pub unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.queue.post_recv(wrs) }
    }

    /// Returns the provider's own work queue, for features beyond verbs.
    pub fn raw(&self) -> &P::Wq {
        self.shared.get()
    }

    /// Destroys the queue. A dropped queue is destroyed once no table contains it.
    ///
    /// # Errors
    /// Returns the queue with the error: `EBUSY` with [`Cause::InUse`](crate::Cause::InUse) while a
    /// table contains it; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_destroy_wq(3)`
    #[doc(alias = "ibv_destroy_wq")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        let Self { shared, queue } = self;
        shared.close("destroy_wq", TABLES).map_err(|failed| failed.map(|shared| Self { shared, queue }))
    }
}

impl Wq<Erased> {
    /// Returns the same work queue with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the work queue if it belongs to another provider, or with `EBUSY` while a table
    /// contains it.
    // The panic below is unreachable.
    #[allow(clippy::missing_panics_doc)]
    pub fn downcast<P: NamedProvider>(self) -> Result<Wq<P>, HandleError<Self>> {
        if self.queue.downcast_ref::<P::WqQueue>().is_none() {
            return Err(HandleError::of_another_provider(self));
        }
        let Self { shared, queue } = self;
        match shared.try_map("downcast", TABLES, |raw| raw.downcast::<P::Wq>()) {
            Ok(shared) => Ok(Wq { shared, queue: queue.downcast().expect("the type was just compared") }),
            Err(failed) => Err(failed.map(|shared| Self { shared, queue })),
        }
    }
}

/// The name of RSS tables in error messages about a work queue.
const TABLES: &str = "tables of work queues";

/// A table of work queues. The hash of a received packet selects an entry, whose queue receives the
/// packet.
///
/// A queue pair created with [`QpInit::rss`](crate::QpInit::rss) receives through the table and
/// keeps the table alive: a dropped table is destroyed after its last queue pair.
///
/// # References
/// `ibv_create_rwq_ind_table(3)`
#[doc(alias = "ibv_rwq_ind_table")]
#[derive(Debug)]
pub struct RwqIndTable<P: Provider = Erased> {
    shared: SharedObject<P::RwqIndTable, Kept>,
}

/// The dependencies of a table: its work queues and the open device.
type Kept = (Vec<Child>, Child);

/// The distribution of a queue pair's packets over a table of work queues (RSS), for
/// [`QpInit::rss`](crate::QpInit::rss).
///
/// ```no_run
/// # fn f(context: verbs::Context, pd: verbs::Pd, cq: verbs::Cq) -> Result<(), verbs::Error> {
/// use verbs::{QpInit, QpType, Rss, RxHashConf, RxHashFields, RxHashFunction, WqInit};
///
/// let wqs = [pd.create_wq(&WqInit::new(&cq))?, pd.create_wq(&WqInit::new(&cq))?];
/// let table = context.create_rwq_ind_table(&[&wqs[0], &wqs[1]])?;
/// let hash = RxHashConf {
///     rx_hash_function: RxHashFunction::TOEPLITZ,
///     rx_hash_key: [0x6d; 40].into(),
///     rx_hash_fields_mask: RxHashFields::SRC_IPV4 | RxHashFields::DST_IPV4,
/// };
/// let init = QpInit { rss: Some(Rss::new(&table, hash)), ..QpInit::new(QpType::UD, &cq) };
/// let qp = pd.create_qp(&init)?;
/// # Ok(())
/// # }
/// ```
///
/// A distribution does not keep the table alive: once the table is closed or dropped, no queue pair
/// can be created with it. An existing queue pair keeps its table.
pub struct Rss<P: Provider = Erased> {
    table: WeakObject<P::RwqIndTable, Kept>,
    /// The hash over a packet's headers; it selects the entry.
    #[doc(alias = "IBV_QP_INIT_ATTR_RX_HASH")]
    pub hash: RxHashConf,
}

impl<P: Provider> Rss<P> {
    /// Returns a distribution of packets over the queues of a table, by a hash of their headers.
    pub fn new(table: &RwqIndTable<P>, hash: RxHashConf) -> Self {
        Self { table: table.shared.downgrade(), hash }
    }

    /// Returns the table, for a new queue pair.
    ///
    /// # Errors
    /// `EINVAL` for a table of another open device, or a destroyed table.
    pub(crate) fn open(&self, registry: &Registry, verb: &'static str) -> Result<OpenTable<P>> {
        let Some(table) = self.table.upgrade() else {
            let cause = Cause::Closed { what: TABLE };
            return Err(registry.error(verb, Errno::INVAL).because(cause));
        };
        let child = table.user_in(registry, verb, TABLE)?;
        Ok(OpenTable { table, child })
    }
}

/// A table, with a new queue pair's share of the table.
pub(crate) struct OpenTable<P: Provider> {
    table: SharedObject<P::RwqIndTable, Kept>,
    pub(crate) child: Child,
}

impl<P: Provider> OpenTable<P> {
    pub(crate) fn raw(&self) -> &P::RwqIndTable {
        self.table.get()
    }
}

impl<P: Provider> Context<P> {
    /// Creates a table of work queues, which may contain the same queue more than once.
    ///
    /// # Errors
    /// - `EOPNOTSUPP` if the device has no such tables.
    /// - `EINVAL` for a number of entries that is not a power of 2, and with
    ///   [`Cause::Foreign`](crate::Cause::Foreign) for a work queue of another open device.
    /// - Any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_create_rwq_ind_table(3)`
    #[doc(alias = "ibv_create_rwq_ind_table")]
    #[doc(alias = "ibv_rwq_ind_table_init_attr")]
    pub fn create_rwq_ind_table(&self, wqs: &[&Wq<P>]) -> Result<RwqIndTable<P>> {
        const VERB: &str = "create_rwq_ind_table";
        let registry = self.registry();
        let kept: Result<Vec<_>> =
            wqs.iter().map(|wq| wq.shared.user_in(registry, VERB, "work queue")).collect();
        let kept = kept?;
        let raw: Vec<_> = wqs.iter().map(|wq| wq.raw()).collect();
        let table = self.creating(VERB)?.create_rwq_ind_table(&raw)?;
        let dependencies = (kept, self.child(&registry.table_tally));
        Ok(RwqIndTable { shared: SharedObject::new(table, dependencies, registry) })
    }
}

impl<P: Provider> RwqIndTable<P> {
    /// Returns the table's number on the device.
    pub fn ind_tbl_num(&self) -> u32 {
        self.shared.get().ind_tbl_num()
    }

    /// Returns the provider's own table, for features beyond verbs.
    pub fn raw(&self) -> &P::RwqIndTable {
        self.shared.get()
    }

    /// Destroys the table. A dropped table is destroyed once no queue pair uses it, and leaked if
    /// the kernel refuses.
    ///
    /// # Errors
    /// Returns the table with the error: `EBUSY` with [`Cause::InUse`](crate::Cause::InUse) while
    /// queue pairs use it; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_destroy_rwq_ind_table(3)`
    #[doc(alias = "ibv_destroy_rwq_ind_table")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        self.shared
            .close("destroy_rwq_ind_table", QUEUE_PAIRS)
            .map_err(|failed| failed.map(|shared| Self { shared }))
    }
}

impl RwqIndTable<Erased> {
    /// Returns the same table with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the table if it belongs to another provider, or with `EBUSY` while queue pairs use
    /// it.
    pub fn downcast<P: NamedProvider>(self) -> Result<RwqIndTable<P>, HandleError<Self>> {
        match self.shared.try_map("downcast", QUEUE_PAIRS, |raw| raw.downcast::<P::RwqIndTable>()) {
            Ok(shared) => Ok(RwqIndTable { shared }),
            Err(failed) => Err(failed.map(|shared| Self { shared })),
        }
    }
}

/// The name of queue pairs in error messages about a table.
const QUEUE_PAIRS: &str = "queue pairs";

/// The name of a table in error messages.
const TABLE: &str = "table of work queues";

impl<P: Provider> Clone for Rss<P> {
    fn clone(&self) -> Self {
        Self { table: self.table.clone(), hash: self.hash.clone() }
    }
}

impl<P: Provider> fmt::Debug for Rss<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rss").field("hash", &self.hash).finish_non_exhaustive()
    }
}
