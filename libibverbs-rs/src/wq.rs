//! [`Wq`]: a queue of receives apart from queue pairs; [`RwqIndTable`]: a table of such queues,
//! over which a queue pair spreads what it receives (RSS).
//!
//! A table keeps its work queues: a [`Wq`] that is dropped while a table contains it is destroyed
//! with the table.
//!
//! # Safety
//! The unsafe code here is raw posting, which relies on the promise of its caller.

#![allow(unsafe_code)]

use std::sync::Arc;

use verbs_core::Result;
use verbs_core::provider::{
    ContextOps, Erased, Provider, RecvQueue, RwqIndTableOps, WqOps, WqParents, WqParts,
};
use verbs_core::types::{PostError, RecvWr, WqAttr, WqFlags, WqInitAttr, WqState, WqType};

use crate::cq::CqUse;
use crate::kernel_handle::{KernelHandle, close_shared};
use crate::registry::{Child, Entry, Kind, Registry, WqId};
use crate::{Context, CqHandle, HandleError, Pd};

/// The attributes of a new work queue: `WqInit { max_wr: 256, ..WqInit::new(&cq) }`.
#[doc(alias = "ibv_wq_init_attr")]
#[derive(Clone, Debug)]
pub struct WqInit<P: Provider = Erased> {
    /// The kind.
    pub wq_type: WqType,
    /// The completion queue of its receives.
    pub cq: CqHandle<P>,
    /// The least number of outstanding receives; the device may round up.
    pub max_wr: u32,
    /// The least number of scatter/gather elements of a receive.
    pub max_sge: u32,
    /// The properties.
    pub create_flags: WqFlags,
}

impl<P: Provider> WqInit<P> {
    /// Returns the attributes of a work queue for 16 receives of one piece of memory each.
    pub fn new(cq: impl Into<CqHandle<P>>) -> Self {
        Self { wq_type: WqType::RQ, cq: cq.into(), max_wr: 16, max_sge: 1, create_flags: WqFlags::empty() }
    }
}

/// A work queue: a queue of receives, which queue pairs share by a [`RwqIndTable`]. The poster owns
/// it: `&mut` is the lock.
///
/// Neither rxe nor soft devices have work queues.
///
/// # References
/// `ibv_create_wq(3)`
#[doc(alias = "ibv_wq")]
#[derive(Debug)]
pub struct Wq<P: Provider = Erased> {
    handle: Arc<Core<P>>,
    queue: P::WqQueue,
}

/// The control object of a work queue, which tables share.
type Core<P> = KernelHandle<<P as Provider>::Wq, Dependencies>;

/// The dependencies of a work queue, released once it is destroyed.
#[derive(Debug)]
struct Dependencies {
    entry: Entry,
    registry: Arc<Registry>,
    _cq: CqUse,
    _pd: Child,
}

impl<P: Provider> Pd<P> {
    /// Creates a work queue, in the state RESET.
    ///
    /// # Errors
    /// - `EOPNOTSUPP` if the device has none.
    /// - `EINVAL` with [`Cause::Foreign`](crate::Cause::Foreign) for a completion queue of another
    ///   open device, with [`Cause::Closed`](crate::Cause::Closed) for one that was closed or
    ///   dropped.
    /// - Any other errno that the kernel returns; notably `EINVAL` for a size beyond the device's
    ///   limits.
    ///
    /// # References
    /// `ibv_create_wq(3)`
    #[doc(alias = "ibv_create_wq")]
    pub fn create_wq(&self, init: &WqInit<P>) -> Result<Wq<P>> {
        const VERB: &str = "create_wq";
        let registry = self.context().registry();
        let cq = init.cq.share(registry, VERB)?;
        let entry = registry.enter(Kind::Wq);
        let attr = WqInitAttr {
            wq_type: init.wq_type,
            max_wr: init.max_wr,
            max_sge: init.max_sge,
            create_flags: init.create_flags,
            user_handle: entry.id.0,
        };
        let parents = WqParents { pd: self.raw(), cq: init.cq.name() };
        let WqParts { wq, queue } = self.context().raw().create_wq(&parents, &attr)?;
        let registry = Arc::clone(registry);
        let dependencies = Dependencies { entry, registry, _cq: cq, _pd: self.child_wq() };
        Ok(Wq { handle: Arc::new(KernelHandle::new(wq, dependencies)), queue })
    }
}

impl<P: Provider> Wq<P> {
    /// Returns the id that events of this queue carry.
    pub fn id(&self) -> WqId {
        WqId(self.handle.dependencies().entry.id)
    }

    /// Returns the device's number of the queue.
    pub fn wq_num(&self) -> u32 {
        self.handle.get().wq_num()
    }

    /// Returns the state to which the program last moved it.
    pub fn state(&self) -> WqState {
        self.handle.get().state()
    }

    /// Returns the number of receives that fit.
    pub fn max_wr(&self) -> u32 {
        self.handle.get().max_wr()
    }

    /// Returns the number of scatter/gather elements of a receive.
    pub fn max_sge(&self) -> u32 {
        self.handle.get().max_sge()
    }

    /// Moves the queue to another state, or changes its properties. It receives in the state
    /// [`RDY`](WqState::RDY).
    ///
    /// # Errors
    /// Any errno that the kernel returns; notably `EINVAL` for a transition that does not exist,
    /// and `EOPNOTSUPP` for a property that cannot change.
    ///
    /// # References
    /// `ibv_modify_wq(3)`
    #[doc(alias = "ibv_modify_wq")]
    pub fn modify(&mut self, attr: &WqAttr) -> Result<()> {
        self.handle.get().modify(&mut self.queue, attr)
    }

    /// Posts receives.
    ///
    /// # Safety
    /// From the call until its completion was polled, or the queue was destroyed, the device may
    /// write the memory of every SGE: no code frees or accesses it. Only [`close`](Self::close)
    /// that returned `Ok` proves the destruction, because a table keeps a queue that is
    /// dropped. No `wr_id` has its top bit set.
    ///
    /// # Errors
    /// The number of accepted requests, and the reason why the next was rejected. The device owns
    /// the memory of the accepted requests.
    ///
    /// # References
    /// `ibv_post_wq_recv(3)`
    #[doc(alias = "ibv_post_wq_recv")]
    pub unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.queue.post_recv(wrs) }
    }

    /// Returns the provider's own work queue, for features beyond verbs.
    pub fn raw(&self) -> &P::Wq {
        self.handle.get()
    }

    /// Destroys the queue. Dropping does the same, once no table contains it.
    ///
    /// # Errors
    /// The queue: `EBUSY` with [`Cause::InUse`](crate::Cause::InUse) while a table contains it; any
    /// other errno that the kernel returns.
    ///
    /// # References
    /// `ibv_destroy_wq(3)`
    #[doc(alias = "ibv_destroy_wq")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        let Self { handle, queue } = self;
        let registry = Arc::clone(&handle.dependencies().registry);
        let in_use = || registry.in_use("destroy_wq", "tables of work queues");
        match close_shared(handle, in_use) {
            Ok(_) => Ok(()),
            Err(failed) => Err(failed.map(|handle| Self { handle, queue })),
        }
    }
}

/// A table of work queues. The hash of a received packet selects the entry whose queue takes it.
///
/// # References
/// `ibv_create_rwq_ind_table(3)`
#[doc(alias = "ibv_rwq_ind_table")]
#[derive(Debug)]
pub struct RwqIndTable<P: Provider = Erased> {
    handle: KernelHandle<P::RwqIndTable, Kept<P>>,
}

/// The dependencies of a table: its work queues, and the open device.
type Kept<P> = (Vec<Arc<Core<P>>>, Child);

impl<P: Provider> Context<P> {
    /// Creates a table of work queues; the same one may stand in it more than once.
    ///
    /// # Errors
    /// - `EOPNOTSUPP` if the device has none.
    /// - `EINVAL` for a number of entries that is not a power of 2, and with
    ///   [`Cause::Foreign`](crate::Cause::Foreign) for a work queue of another open device.
    /// - Any other errno that the kernel returns.
    ///
    /// # References
    /// `ibv_create_rwq_ind_table(3)`
    #[doc(alias = "ibv_create_rwq_ind_table")]
    #[doc(alias = "ibv_rwq_ind_table_init_attr")]
    pub fn create_rwq_ind_table(&self, wqs: &[&Wq<P>]) -> Result<RwqIndTable<P>> {
        let registry = self.registry();
        if wqs.iter().any(|wq| !Arc::ptr_eq(&wq.handle.dependencies().registry, registry)) {
            return Err(registry.foreign("create_rwq_ind_table", "work queue"));
        }
        let raw: Vec<_> = wqs.iter().map(|wq| wq.raw()).collect();
        let table = self.raw().create_rwq_ind_table(&raw)?;
        let kept = wqs.iter().map(|wq| Arc::clone(&wq.handle)).collect();
        let dependencies = (kept, self.child(&registry.table_tally));
        Ok(RwqIndTable { handle: KernelHandle::new(table, dependencies) })
    }
}

impl<P: Provider> RwqIndTable<P> {
    /// Returns the device's number of the table.
    pub fn ind_tbl_num(&self) -> u32 {
        self.handle.get().ind_tbl_num()
    }

    /// Returns the provider's own table, for features beyond verbs.
    pub fn raw(&self) -> &P::RwqIndTable {
        self.handle.get()
    }

    /// Destroys the table. Dropping does the same, and leaks a table that the kernel refuses to
    /// destroy.
    ///
    /// # Errors
    /// The table, and any errno that the kernel returns; notably `EBUSY` while queue pairs use it.
    ///
    /// # References
    /// `ibv_destroy_rwq_ind_table(3)`
    #[doc(alias = "ibv_destroy_rwq_ind_table")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        self.handle.close().map(drop).map_err(|failed| failed.map(|handle| Self { handle }))
    }
}
