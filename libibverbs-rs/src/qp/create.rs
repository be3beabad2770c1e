//! Creating queue pairs and opening XRC targets.

use core::marker::PhantomData;
use std::sync::{Arc, Mutex};

use verbs_core::provider::{ContextOps, Provider, QpExtras, QpOps, QpParents, QpParts};
use verbs_core::types::{QpCap, QpCreateAttr, QpInitAttr, QpType};
use verbs_core::{Cause, Errno, Result};

use super::attr::QpInit;
use super::control::{Core, Dependencies, Parents};
use super::post::Sender;
use super::state::{Reset, State};
use super::{Qp, draw_psn};
use crate::device::pd::Pd;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::{Entry, Kind, PdId, Registry};
use crate::in_flight::{Directory, InFlight};
use crate::queue::receiver::Receiver;
use crate::queue::wq::OpenTable;
use crate::queue::xrcd::Xrcd;

impl<P: Provider> Pd<P> {
    /// Creates a queue pair in the state RESET.
    ///
    /// # Errors
    /// - `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a capacity beyond the device's
    ///   limits.
    /// - `EOPNOTSUPP` with [`Cause::QpType`](crate::Cause::QpType) for a type the device lacks;
    ///   `EINVAL` with the same cause for an unknown type number, and from some kernels.
    /// - `EINVAL` with [`Cause::Foreign`](crate::Cause::Foreign) for a completion queue, shared
    ///   receive queue or table of work queues of another open device, with
    ///   [`Cause::Closed`](crate::Cause::Closed) for a closed or dropped object.
    /// - `EPERM` for a raw packet queue pair without `CAP_NET_RAW`.
    /// - `EOPNOTSUPP`, with the verb `create_qp_ex`, for attributes in [`QpInit::ex`] the device
    ///   lacks, and for [`QpInit::rss`] on a device without tables of work queues.
    /// - Any other errno from the kernel or the system's random source; notably `ENOMEM`.
    ///
    /// # References
    /// `ibv_create_qp(3)`
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_qp(&self, init: &QpInit<P>) -> Result<Qp<Reset, P>> {
        Qp::create(self, init)
    }
}

impl<P: Provider> Xrcd<P> {
    /// Creates an XRC target ([`QpType::XRC_RECV`](crate::QpType::XRC_RECV)) in the state RESET. A
    /// target posts nothing: its peer's requests name the shared receive queue that supplies the
    /// receive.
    ///
    /// # Errors
    /// Any errno from the kernel or the system's random source; notably `EOPNOTSUPP` for a device
    /// without XRC.
    ///
    /// # References
    /// `ibv_create_qp_ex(3)`
    #[doc(alias = "ibv_create_qp_ex")]
    #[doc(alias = "IBV_QP_INIT_ATTR_XRCD")]
    pub fn create_target(&self) -> Result<Qp<Reset, P>> {
        Qp::create_target(self)
    }

    /// Opens the XRC target with this number, possibly created through another context that shares
    /// the domain. The target is destroyed with the last queue pair created or opened for it. `S`
    /// is the target's state.
    ///
    /// # Errors
    /// `EINVAL` for an unknown number or a target in another state; any other errno the kernel
    /// returns.
    ///
    /// # References
    /// `ibv_open_qp(3)`
    #[doc(alias = "ibv_open_qp")]
    #[doc(alias = "ibv_qp_open_attr")]
    #[doc(alias = "IBV_QP_OPEN_ATTR_NUM")]
    #[doc(alias = "IBV_QP_OPEN_ATTR_TYPE")]
    #[doc(alias = "IBV_QP_OPEN_ATTR_XRCD")]
    #[doc(alias = "ibv_qp_open_attr_mask")]
    pub fn open_target<S: State>(&self, qp_num: u32) -> Result<Qp<S, P>> {
        Qp::open_target(self, qp_num)
    }
}

/// The tables of a queue pair: one in each directory of its completion queues.
struct Tables {
    pd: PdId,
    sends: Arc<Directory>,
    recvs: Arc<Directory>,
}

impl<P: Provider> Qp<Reset, P> {
    fn create(pd: &Pd<P>, init: &QpInit<P>) -> Result<Self> {
        let context = pd.context().raw();
        Self::create_by(pd, init, |parents, attr, extras| {
            if extras.attr == QpCreateAttr::default() && extras.rss.is_none() {
                context.create_qp(parents, attr)
            } else {
                context.create_qp_ex(parents, attr, extras)
            }
        })
    }

    /// Creates the queue pair by calling `create`.
    pub(crate) fn create_by(
        pd: &Pd<P>,
        init: &QpInit<P>,
        create: impl FnOnce(&QpParents<'_, P>, &QpInitAttr, &QpExtras<'_, P>) -> Result<QpParts<P>>,
    ) -> Result<Self> {
        const VERB: &str = "create_qp";
        let registry = pd.context().registry();
        if init.qp_type == QpType::XRC_RECV {
            let reason = "an XRC target belongs to an XRC domain: create it by Xrcd::create_target";
            let cause = Cause::Other { reason: reason.into() };
            return Err(registry.error(VERB, Errno::INVAL).because(cause));
        }
        registry.room(VERB)?;
        let (send_cq, recv_cq) = (init.send_cq.share(registry, VERB)?, init.recv_cq.share(registry, VERB)?);
        let srq = init.srq.as_ref().map(|srq| srq.core(registry)).transpose()?;
        let table = init.rss.as_ref().map(|rss| rss.open(registry, VERB)).transpose()?;
        if srq.is_some() && table.is_some() {
            let reason = "a queue pair that receives through a table has no shared receive queue";
            let cause = Cause::Other { reason: reason.into() };
            return Err(registry.error(VERB, Errno::INVAL).because(cause));
        }
        let psn = draw_psn(registry, VERB)?;
        let entry = registry.enter(Kind::Qp, VERB)?;
        let cap = match table {
            None => init.cap,
            Some(_) => QpCap { max_recv_wr: 0, max_recv_sge: 0, ..init.cap },
        };
        let attr =
            QpInitAttr { qp_type: init.qp_type, cap, sq_sig_all: init.sq_sig_all, user_handle: entry.id.0 };
        let hash = init.rss.as_ref().map(|rss| &rss.hash);
        let rss = table.as_ref().map(OpenTable::raw).zip(hash);
        let parents = QpParents::new(pd.raw(), init.send_cq.name(), init.recv_cq.name());
        let parents = QpParents {
            srq: srq.as_ref().map(|srq| srq.get()),
            // The work queues in an RSS table have their own completion queues.
            recv_cq: parents.recv_cq.filter(|_| rss.is_none()),
            ..parents
        };
        let parts = create(&parents, &attr, &QpExtras { attr: init.ex, rss })?;
        let tables = Tables {
            pd: pd.id(),
            sends: Arc::clone(init.send_cq.directory()),
            recvs: Arc::clone(init.recv_cq.directory()),
        };
        let parents = Parents {
            _send_cq: Some(send_cq),
            _recv_cq: Some(recv_cq),
            _srq: srq.map(|srq| srq.child()),
            _table: table.map(|table| table.child),
            _domain: pd.child_qp(),
        };
        Self::with(parts, registry, entry, psn, &tables, parents)
    }

    fn create_target(xrcd: &Xrcd<P>) -> Result<Self> {
        const VERB: &str = "create_qp";
        let context = xrcd.context();
        let registry = context.registry();
        let psn = draw_psn(registry, VERB)?;
        let entry = registry.enter(Kind::Qp, VERB)?;
        let attr = QpInitAttr {
            qp_type: QpType::XRC_RECV,
            cap: QpCap::default(),
            sq_sig_all: false,
            user_handle: entry.id.0,
        };
        let parents = QpParents { pd: None, send_cq: None, recv_cq: None, srq: None, xrcd: Some(xrcd.raw()) };
        let parts = context.creating(VERB)?.create_qp(&parents, &attr)?;
        Self::with(parts, registry, entry, psn, &Tables::of_target(), Parents::of_target(xrcd))
    }
}

impl Tables {
    /// Returns the tables of an XRC target, which posts nothing.
    fn of_target() -> Self {
        Self { pd: PdId::next(), sends: Arc::default(), recvs: Arc::default() }
    }
}

impl Parents {
    fn of_target<P: Provider>(xrcd: &Xrcd<P>) -> Self {
        Self { _send_cq: None, _recv_cq: None, _srq: None, _table: None, _domain: xrcd.child_qp() }
    }
}

impl<S: State, P: Provider> Qp<S, P> {
    fn open_target(xrcd: &Xrcd<P>, qp_num: u32) -> Result<Self> {
        const VERB: &str = "open_qp";
        let context = xrcd.context();
        let registry = context.registry();
        let psn = draw_psn(registry, VERB)?;
        let entry = registry.enter(Kind::Qp, VERB)?;
        let parts = context.creating(VERB)?.open_qp(xrcd.raw(), qp_num, entry.id.0)?;
        let qp = Self::with(parts, registry, entry, psn, &Tables::of_target(), Parents::of_target(xrcd))?;
        if qp.state()? != S::STATE {
            let reason = "the target is in another state than that of the type";
            let cause = Cause::Other { reason: reason.into() };
            return Err(registry.error(VERB, Errno::INVAL).because(cause));
        }
        Ok(qp)
    }

    /// Wraps a provider's queue pair in a handle.
    ///
    /// # Errors
    /// `ENOMEM` if a completion queue's directory is full.
    fn with(
        parts: QpParts<P>,
        registry: &Arc<Registry>,
        entry: Entry,
        psn: u32,
        tables: &Tables,
        parents: Parents,
    ) -> Result<Self> {
        let QpParts { qp, sq, rq } = parts;
        let cap = qp.cap();
        let table = |directory: &Arc<Directory>, max_wr| {
            InFlight::new(tables.pd, Arc::clone(directory), max_wr)
                .map_err(|why| why.error(registry, "create_qp", "queues of a completion queue"))
        };
        let tables = table(&tables.sends, cap.max_send_wr)
            .and_then(|sends| Ok((sends, table(&tables.recvs, cap.max_recv_wr)?)));
        let ((sends, send_poster), (recvs, recv_poster)) = match tables {
            Ok(tables) => tables,
            Err(error) => {
                // Nothing was posted, so no memory has to wait for the queue pair's destruction.
                drop(KernelHandle::new(qp, ()));
                return Err(error);
            }
        };
        let mut parents = parents;
        for cq in [&mut parents._send_cq, &mut parents._recv_cq].into_iter().flatten() {
            cq.of_qp(qp.qp_num());
        }
        let dependencies = Dependencies {
            sends,
            recvs,
            undead: Vec::new(),
            entry,
            registry: Arc::clone(registry),
            psn,
            _parents: parents,
            counters: Mutex::default(),
        };
        Ok(Self {
            core: Core::new(qp, dependencies),
            send: Sender { queue: sq, poster: send_poster },
            recv: Receiver { queue: rq, poster: recv_poster },
            state: PhantomData,
        })
    }
}
