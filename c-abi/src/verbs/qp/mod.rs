//! Queue pairs: creating them, changing their state, destroying them.
//!
//! Each of the two queues has a lock, and the control object has a lock that sleeps in the kernel.
//! A state change acquires all three, in the order send, receive, control.
//!
//! | module | content |
//! |---|---|
//! | [`post`] | `ibv_post_send` and `ibv_post_recv` |
//! | [`wr`], `refused` | `ibv_wr_...`, and their replacements in a child without the lock |
//! | [`object`], [`batch`] | a queue pair, and its batch of `ibv_wr_...` |
//!
//! # Safety
//! See the crate documentation. The locks guard the provider's objects.
#![allow(unsafe_code)]

mod batch;
pub(crate) mod object;
pub(crate) mod post;
mod refused;
pub(crate) mod wr;

use core::any::Any;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint};
use core::ptr::{self, null_mut};
use core::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use provider_mlx5::ScatterToCqe;
use verbs_core::provider::{
    ContextOps as _, CqOps as _, Provider, QpExtras, QpOps as _, QpParents, QpParts, SendQueue as _,
};
use verbs_core::types::{
    DataInOrder, Ece, Gid, OpKind, QpAttr, QpAttrMask, QpCreateAttr, QpCreateFlags, QpInitAttr, QpSendOps,
    QpState, QpType, RateLimit, RxHashConf, RxHashFields, RxHashFunction,
};
use verbs_core::{Errno, Error};

use crate::abi::c::{
    IBV_QP_CREATE_SOURCE_QPN, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_EX_WITH_BIND_MW, IBV_QP_EX_WITH_FLUSH, IBV_QP_EX_WITH_LOCAL_INV,
    IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_INV, IBV_QP_EX_WITH_TSO,
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_MAX_TSO_HEADER,
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_RX_HASH, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_INIT_ATTR_XRCD,
    IBV_QP_OPEN_ATTR_CONTEXT, IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD,
    IBV_QPT_RAW_PACKET, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY,
    IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_ATOMIC_WRITE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_context, ibv_ece, ibv_gid, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_qp_rate_limit_attr,
    ibv_rx_hash_conf,
};
use crate::abi::convert::{cap_from_c, cap_to_c, gid_from_c, narrow, qp_attr_from_c, qp_attr_to_c};
use crate::abi::errno::{
    self, UNKNOWN_MEMBERS, code, fail, given_room, not_null, not_null_or_null, pointer, refused, unavailable,
};
use crate::handle::context::{ProviderContext, verb};
use crate::handle::destroyable::{Exclusive, Loan};
use crate::handle::lock::Spin;
use crate::handle::object::Object;
use crate::verbs::event::{is_acknowledged, wait_acknowledged};
use crate::verbs::qp::object::{Addressing, Qp, QpObject, checked};
use crate::verbs::wq::RwqIndTableObject;
use crate::verbs::xrcd::XrcdObject;
use crate::verbs::{cq, pd, srq};

/// Removes the completions of a queue pair that was reset or destroyed, as libmlx5 does: after a
/// restart, a program finds no completions from before the reset.
///
/// Waits for pollers only if the provider requires it, because a preempted poller may hold the
/// completion queue's lock. rdma-core's rxe driver acquires no such lock and leaves the
/// completions.
///
/// # Safety
/// `qp` and its completion queues must be live.
unsafe fn purge<P: Provider>(qp: *mut ibv_qp) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (qp_num, send_cq, recv_cq) = ((*qp).qp_num, (*qp).send_cq, (*qp).recv_cq);
        for cq in [send_cq, recv_cq].into_iter().filter(|cq| !cq.is_null()) {
            // A queue that was destroyed or belongs to the parent process has no completions to
            // remove.
            let queue = &cq::from_raw::<P>(cq).queue;
            if P::PURGES {
                let _ = queue.with(|queue| queue.purge(qp_num));
            } else {
                // rdma-core's librxe removes no completions, so this does not wait for a polling
                // thread.
                let _ = queue.try_with(|queue| queue.purge(qp_num));
            }
        }
    }
}

/// Returns the `ibv_wr_...` operations that a provider supports for a queue pair type. libmlx5, for
/// example, creates no queue pairs with flushes or atomic writes.
fn send_ops_of(provider: &str, qp_type: QpType) -> u64 {
    let lacked = if provider == "mlx5" { IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE } else { 0 };
    send_ops_of_type(qp_type) & !lacked
}

const fn send_ops_of_type(qp_type: QpType) -> u64 {
    const SENDS: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const WRITES: u64 = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    const WINDOWS: u64 = IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV;
    const RELIABLE: u64 = IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | IBV_QP_EX_WITH_FLUSH
        | IBV_QP_EX_WITH_ATOMIC_WRITE;
    match qp_type {
        QpType::RC | QpType::XRC_SEND => SENDS | WRITES | WINDOWS | RELIABLE,
        QpType::UC => SENDS | WRITES | WINDOWS,
        QpType::UD => SENDS,
        QpType::RAW_PACKET => IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO,
        QpType::DRIVER => u64::MAX,
        _ => 0,
    }
}

/// Converts the hash configuration in the C attributes.
///
/// # Safety
/// The key must have the length stated in the attributes.
unsafe fn rx_hash(conf: &ibv_rx_hash_conf) -> Result<RxHashConf, Errno> {
    if conf.rx_hash_key_len > 0 && conf.rx_hash_key.is_null() {
        return Err(Errno::INVAL);
    }
    let key = match conf.rx_hash_key_len {
        0 => &[][..],
        // SAFETY: guaranteed by the caller.
        len => unsafe { core::slice::from_raw_parts(conf.rx_hash_key, len.into()) },
    };
    Ok(RxHashConf {
        rx_hash_function: RxHashFunction::from_bits_retain(conf.rx_hash_function),
        rx_hash_key: key.into(),
        rx_hash_fields_mask: RxHashFields::from_bits_retain(conf.rx_hash_fields_mask),
    })
}

/// The public fields of a new queue pair.
struct PublicFields<'a> {
    context: *mut ibv_context,
    attr: &'a ibv_qp_init_attr_ex,
    pd: *mut ibv_pd,
    has_send_ops: bool,
    is_single_threaded: bool,
    parent: Option<Arc<()>>,
    cqs: [Option<Arc<()>>; 2],
}

/// Returns the attributes without the queues that the type ignores: an XRC target has no queues,
/// and an XRC initiator has no receive queue.
fn without_ignored(attr: &ibv_qp_init_attr_ex) -> ibv_qp_init_attr_ex {
    let mut own = *attr;
    if matches!(attr.qp_type, IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV) {
        (own.recv_cq, own.srq) = (null_mut(), null_mut());
    }
    if attr.qp_type == IBV_QPT_XRC_RECV {
        own.send_cq = null_mut();
    }
    own
}

/// Writes a new queue pair into its box.
fn publish<P: Provider>(
    mut object: Box<core::mem::MaybeUninit<QpObject<P>>>,
    parts: QpParts<P>,
    shown: &PublicFields<'_>,
) -> *mut ibv_qp {
    let QpParts { qp, mut sq, rq } = parts;
    // C programs expect completions for faults that the C providers do not check.
    sq.leave_faults_to_device();
    // SAFETY: zeroed integers, null pointers and absent functions are valid.
    let mut c: ibv_qp_ex = unsafe { core::mem::zeroed() };
    let base = &mut c.qp_base;
    base.context = shown.context;
    base.qp_context = shown.attr.qp_context;
    base.pd = shown.pd;
    base.send_cq = shown.attr.send_cq;
    base.recv_cq = shown.attr.recv_cq;
    base.srq = shown.attr.srq;
    base.handle = qp.handle();
    base.qp_num = qp.qp_num();
    base.state = qp.state().0.into();
    base.qp_type = qp.qp_type().0.into();
    base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    base.cond = libc::PTHREAD_COND_INITIALIZER;
    if shown.has_send_ops {
        wr::fill::<P>(&mut c, Addressing::for_type(qp.qp_type()));
    }
    let inner = Qp {
        sq: Spin::new(sq, shown.is_single_threaded),
        rq: Spin::new(rq, shown.is_single_threaded),
        batch: UnsafeCell::default(),
        is_refused: AtomicBool::new(false),
        addressing: Addressing::for_type(qp.qp_type()),
        max_inline_data: qp.cap().max_inline_data,
        handle: qp.handle(),
        control: Exclusive::new(Some(qp)),
        parent: shown.parent.clone(),
        dv: OnceLock::new(),
        cqs: shown.cqs.clone(),
    };
    object.write(Object::new(c, inner));
    Box::into_raw(object).cast()
}

/// The reason for rejecting a ConnectX option on another device.
const NOT_MLX5: &str = "only ConnectX places data in completions";

/// Downcasts an object to its ConnectX type; `EOPNOTSUPP` on other devices.
fn as_mlx5<T: Any, U: Any>(object: Option<&T>) -> Result<Option<&U>, Error> {
    let other = || refused("create_qp", Errno::OPNOTSUPP, NOT_MLX5);
    object.map(|object| (object as &dyn Any).downcast_ref::<U>().ok_or_else(other)).transpose()
}

impl<P: Provider> ProviderContext<P> {
    /// Creates a queue pair and sets whether its data may be placed in completions.
    ///
    /// # Errors
    /// `EOPNOTSUPP` on devices other than ConnectX.
    fn create_scattering(
        &self,
        parents: &QpParents<'_, P>,
        init: &QpInitAttr,
        extras: Extras<'_, P>,
        scatter: ScatterToCqe,
    ) -> Result<QpParts<P>, Error> {
        let other = || refused("create_qp", Errno::OPNOTSUPP, NOT_MLX5);
        let context = self.mlx5().ok_or_else(other)?;
        let (attr, rss) = extras.unwrap_or_default();
        let table = as_mlx5(rss.as_ref().map(|(table, _)| &**table))?;
        let rss = table.zip(rss.as_ref().map(|(_, conf)| conf));
        let parents = QpParents {
            pd: as_mlx5(parents.pd)?,
            send_cq: as_mlx5(parents.send_cq)?,
            recv_cq: as_mlx5(parents.recv_cq)?,
            srq: as_mlx5(parents.srq)?,
            xrcd: as_mlx5(parents.xrcd)?,
        };
        let extras = QpExtras { attr, rss };
        let mut made = Some(context.create_qp_scattering(&parents, init, &extras, scatter)?);
        let made: &mut dyn Any = &mut made;
        // The provider is `mlx5`, so the types are the same.
        made.downcast_mut::<Option<QpParts<P>>>().and_then(Option::take).ok_or_else(other)
    }
}

/// Operations on queue pairs.
///
/// # Safety
/// The methods have the same contracts as the exported functions.
impl<P: Provider> ProviderContext<P> {
    unsafe fn create_qp(
        &self,
        context: *mut ibv_context,
        attr: &mut ibv_qp_init_attr_ex,
        scatter: ScatterToCqe,
    ) -> Result<*mut ibv_qp, Error> {
        const VERB: &str = "create_qp";
        let own = without_ignored(attr);
        let (attr, granted) = (&own, &mut attr.cap);
        let has = |bit| attr.comp_mask & bit != 0;
        let qp_type = QpType(narrow(attr.qp_type));
        let lacks_domain =
            attr.qp_type != IBV_QPT_XRC_RECV && (!has(IBV_QP_INIT_ATTR_PD) || attr.pd.is_null());
        if attr.qp_type > u8::MAX.into() || lacks_domain {
            return Err(refused(VERB, Errno::INVAL, "no protection domain, or an unknown type"));
        }
        // librxe accepts only these members, and libmlx5 accepts no header for other types.
        const OF_RXE: u32 =
            IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        let is_rxe = self.context().provider_name() == "rxe";
        let has_no_header = has(IBV_QP_INIT_ATTR_MAX_TSO_HEADER) && attr.qp_type != IBV_QPT_RAW_PACKET;
        if has_no_header || (is_rxe && attr.comp_mask & !OF_RXE != 0) {
            return Err(refused(VERB, Errno::OPNOTSUPP, "members that the device or the type lacks"));
        }
        let pd_of_qp = if has(IBV_QP_INIT_ATTR_PD) { attr.pd } else { null_mut() };
        // SAFETY: the objects in the attributes are live.
        let (parent, srq, xrcd, send_cq, recv_cq) = unsafe {
            let parent = match pd_of_qp.is_null() {
                true => None,
                false => Some(pd::from_raw::<P>(pd_of_qp, VERB)?),
            };
            let cq = |cq: *mut _| match <*mut crate::abi::c::ibv_cq>::is_null(cq) {
                true => Ok(None),
                false => cq::checked::<P>(cq, VERB).map(Some),
            };
            let xrcd = match has(IBV_QP_INIT_ATTR_XRCD) {
                true => XrcdObject::<P>::lend_optional(attr.xrcd, VERB)?,
                false => None,
            };
            let srq = match attr.srq.is_null() {
                true => None,
                false => Some(srq::checked::<P>(attr.srq, VERB)?.control(VERB)?),
            };
            (parent, srq, xrcd, cq(attr.send_cq)?, cq(attr.recv_cq)?)
        };
        let parents = QpParents {
            pd: parent.as_deref().map(|parent| &parent.pd),
            send_cq: send_cq.map(|cq| &cq.name),
            recv_cq: recv_cq.map(|cq| &cq.name),
            srq: srq.as_deref(),
            xrcd: xrcd.as_deref(),
        };
        let has_send_ops = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
        if has_send_ops && attr.send_ops_flags & !send_ops_of(self.context().provider_name(), qp_type) != 0 {
            return Err(refused(VERB, Errno::OPNOTSUPP, "operations that the device or the type lacks"));
        }
        let mut object = Box::<QpObject<P>>::new_uninit();
        let init = QpInitAttr {
            qp_type,
            cap: cap_from_c(&attr.cap),
            sq_sig_all: attr.sq_sig_all != 0,
            user_handle: object.as_mut_ptr() as u64,
        };
        // Only `mlx5` sizes its queues according to the operations.
        let is_sized = has_send_ops && self.mlx5().is_some();
        let send_ops = is_sized.then(|| QpSendOps::from_bits_retain(attr.send_ops_flags));
        // SAFETY: the hash and the table come from the attributes.
        let parts = unsafe {
            match extras::<P>(attr, send_ops)? {
                extras if scatter != ScatterToCqe::Usual => {
                    self.create_scattering(&parents, &init, extras, scatter)?
                }
                None => self.context().create_qp(&parents, &init)?,
                Some((attr, rss)) => {
                    let rss = rss.as_ref().map(|(table, conf)| (&**table, conf));
                    self.context().create_qp_ex(&parents, &init, &QpExtras { attr, rss })?
                }
            }
        };
        *granted = cap_to_c(&parts.qp.cap());
        let is_single_threaded = parent.as_deref().is_some_and(|parent| parent.is_single_threaded);
        let parent = parent.and_then(|parent| parent.users.clone());
        let cqs = [send_cq, recv_cq].map(|cq| cq.map(|cq| Arc::clone(&cq.users)));
        let shown =
            PublicFields { context, attr, pd: pd_of_qp, has_send_ops, is_single_threaded, parent, cqs };
        Ok(self.live.qps.add(publish(object, parts, &shown)))
    }

    unsafe fn open_qp(
        &self,
        context: *mut ibv_context,
        attr: &ibv_qp_open_attr,
    ) -> Result<*mut ibv_qp, Error> {
        let mut object = Box::<QpObject<P>>::new_uninit();
        // SAFETY: the domain is live.
        let xrcd = unsafe { XrcdObject::<P>::lend(attr.xrcd, "open_qp")? };
        let parts = self.context().open_qp(&xrcd, attr.qp_num, object.as_mut_ptr() as u64)?;
        // SAFETY: zeroed integers and null pointers are valid.
        let mut init: ibv_qp_init_attr_ex = unsafe { core::mem::zeroed() };
        if attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
            init.qp_context = attr.qp_context;
        }
        let shown = PublicFields {
            context,
            attr: &init,
            pd: null_mut(),
            has_send_ops: false,
            is_single_threaded: false,
            parent: None,
            cqs: [None, None],
        };
        Ok(self.live.qps.add(publish(object, parts, &shown)))
    }

    unsafe fn modify_qp(&self, qp: *mut ibv_qp, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        const VERB: &str = "modify_qp";
        // SAFETY: the queue pair is live.
        let inner = unsafe { checked::<P>(qp, VERB)? };
        let modified = inner
            .sq
            .with(|sq| inner.rq.with(|rq| inner.control(VERB, |control| control.modify(sq, rq, attr, mask))));
        modified.flatten().map_err(|errno| unavailable(VERB, errno))??;
        if mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::RESET {
            // SAFETY: as above.
            unsafe { purge::<P>(qp) };
        }
        Ok(())
    }

    unsafe fn query_qp(
        &self,
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        mask: QpAttrMask,
        init: *mut ibv_qp_init_attr,
    ) -> Result<(), Error> {
        // SAFETY: the queue pair is live; the program passes memory for both structs.
        unsafe {
            let inner = checked::<P>(qp, "query_qp")?;
            let (found, info) = inner.control("query_qp", |control| control.query(mask))?;
            attr.write(qp_attr_to_c(&found));
            if mask.contains(QpAttrMask::STATE) {
                (*qp).state = found.qp_state.0.into();
            }
            if !init.is_null() {
                init.write(ibv_qp_init_attr {
                    qp_context: (*qp).qp_context,
                    send_cq: (*qp).send_cq,
                    recv_cq: (*qp).recv_cq,
                    srq: (*qp).srq,
                    cap: cap_to_c(&info.cap),
                    qp_type: (*qp).qp_type,
                    sq_sig_all: info.sq_sig_all.into(),
                });
            }
        }
        Ok(())
    }

    unsafe fn modify_qp_rate_limit(&self, qp: *mut ibv_qp, attr: &RateLimit) -> Result<(), Error> {
        // SAFETY: the queue pair is live.
        unsafe { checked::<P>(qp, "modify_qp_rate_limit")? }
            .control("modify_qp_rate_limit", |control| control.modify_rate_limit(attr))
    }

    unsafe fn attach_mcast(&self, qp: *mut ibv_qp, gid: &Gid, lid: u16) -> Result<(), Error> {
        // SAFETY: the queue pair is live.
        unsafe { checked::<P>(qp, "attach_mcast")? }
            .control("attach_mcast", |control| control.attach_mcast(gid, lid))
    }

    unsafe fn detach_mcast(&self, qp: *mut ibv_qp, gid: &Gid, lid: u16) -> Result<(), Error> {
        // SAFETY: the queue pair is live.
        unsafe { checked::<P>(qp, "detach_mcast")? }
            .control("detach_mcast", |control| control.detach_mcast(gid, lid))
    }

    unsafe fn set_ece(&self, qp: *mut ibv_qp, ece: &Ece) -> Result<(), Error> {
        // SAFETY: the queue pair is live.
        unsafe { checked::<P>(qp, "set_ece")? }.control("set_ece", |control| control.set_ece(ece))
    }

    unsafe fn query_ece(&self, qp: *mut ibv_qp) -> Result<Ece, Error> {
        // SAFETY: the queue pair is live.
        unsafe { checked::<P>(qp, "query_ece")? }.control("query_ece", |control| control.query_ece())
    }

    unsafe fn data_in_order(&self, qp: *mut ibv_qp, op: OpKind) -> DataInOrder {
        // SAFETY: the queue pair is live.
        let inner = unsafe { QpObject::<P>::own(qp.cast(), "query_qp_data_in_order") };
        inner
            .and_then(|inner| {
                inner.control("query_qp_data_in_order", |control| Ok(control.data_in_order(op)))
            })
            .unwrap_or_default()
    }

    unsafe fn destroy_qp(&self, qp: *mut ibv_qp) -> Result<(), Error> {
        // SAFETY: the queue pair is live. Threads that handle its last events may use it until they
        // acknowledge them. They find that the control object is gone and the queues execute
        // nothing.
        unsafe {
            let inner = checked::<P>(qp, "destroy_qp")?;
            let read = inner.destroy_control()?;
            let inner = &raw mut (*qp.cast::<QpObject<P>>()).inner;
            purge::<P>(qp);
            // From here on, another thread can destroy the completion queues.
            ptr::drop_in_place(&raw mut (*inner).cqs);
            wait_acknowledged(&raw mut (*qp).mutex, &raw mut (*qp).cond, || {
                is_acknowledged((*qp).events_completed, read.asynchronous)
            });
            // If a parent's thread was changing the queue at the fork, the queue is leaked.
            if !(*inner).sq.is_hopeless() {
                ptr::drop_in_place((*inner).sq.as_ptr());
                ptr::drop_in_place((*inner).batch.get());
            }
            if !(*inner).rq.is_hopeless() {
                ptr::drop_in_place((*inner).rq.as_ptr());
            }
            ptr::drop_in_place(&raw mut (*inner).dv);
            ptr::drop_in_place(&raw mut (*inner).parent);
            self.live.qps.remove(qp);
            QpObject::<P>::free(qp.cast());
        }
        Ok(())
    }
}

/// The creation attributes that only some devices support, if there are any.
type Extras<'a, P> = Option<(QpCreateAttr, Option<(Loan<'a, <P as Provider>::RwqIndTable>, RxHashConf)>)>;

/// Converts the attributes that only some devices support.
///
/// # Safety
/// The objects in the attributes must be live.
unsafe fn extras<'a, P: Provider>(
    attr: &ibv_qp_init_attr_ex,
    send_ops: Option<QpSendOps>,
) -> Result<Extras<'a, P>, Error> {
    const VERB: &str = "create_qp";
    const ANY: u32 = IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
        | IBV_QP_INIT_ATTR_IND_TABLE
        | IBV_QP_INIT_ATTR_RX_HASH;
    let has = |bit| attr.comp_mask & bit != 0;
    if !has(ANY) && send_ops.is_none() {
        return Ok(None);
    }
    let flags = if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) { attr.create_flags } else { 0 };
    let create = QpCreateAttr {
        create_flags: QpCreateFlags::from_bits_retain(flags & !IBV_QP_CREATE_SOURCE_QPN),
        source_qpn: (flags & IBV_QP_CREATE_SOURCE_QPN != 0).then_some(attr.source_qpn),
        max_tso_header: if has(IBV_QP_INIT_ATTR_MAX_TSO_HEADER) { attr.max_tso_header } else { 0 },
        // A queue pair with an indirection table has no send queue.
        send_ops: send_ops.filter(|_| !has(IBV_QP_INIT_ATTR_IND_TABLE)),
    };
    let rss = if has(IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH) {
        if !has(IBV_QP_INIT_ATTR_IND_TABLE) || !has(IBV_QP_INIT_ATTR_RX_HASH) || attr.rwq_ind_tbl.is_null() {
            return Err(refused(
                VERB,
                Errno::INVAL,
                "a table of work queues needs a hash, and a hash a table",
            ));
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            let conf = rx_hash(&attr.rx_hash_conf)
                .map_err(|errno| refused(VERB, errno, "the hash is incomplete"))?;
            Some((RwqIndTableObject::<P>::lend(attr.rwq_ind_tbl, VERB)?, conf))
        }
    } else {
        None
    };
    if rss.is_none() && create == QpCreateAttr::default() {
        return Ok(None);
    }
    Ok(Some((create, rss)))
}

/// `ibv_create_qp(3)`.
///
/// # Safety
/// `pd` and the objects of `attr` must be live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    not_null_or_null!(pd, attr);
    // SAFETY: guaranteed by the caller; the struct has integers and null pointers.
    pointer(unsafe {
        let mut ex: ibv_qp_init_attr_ex = core::mem::zeroed();
        let init = &mut *attr;
        ex.qp_context = init.qp_context;
        ex.send_cq = init.send_cq;
        ex.recv_cq = init.recv_cq;
        ex.srq = init.srq;
        ex.cap = init.cap;
        ex.qp_type = init.qp_type;
        ex.sq_sig_all = init.sq_sig_all;
        ex.comp_mask = IBV_QP_INIT_ATTR_PD;
        ex.pd = pd;
        let context = (*pd).context;
        let made = verb!(context, create_qp(context, &mut ex, ScatterToCqe::Usual));
        if made.is_ok() {
            init.cap = ex.cap;
        }
        made
    })
}

/// `ibv_create_qp_ex(3)`.
///
/// # Safety
/// `context` must be open; the objects of `attr` must be live.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: guaranteed by the caller.
    unsafe { create_qp_scattering(context, attr, ScatterToCqe::Usual) }
}

/// Same as [`create_qp_ex`], except that the queue pair must be on a ConnectX device unless
/// `scatter` is `ScatterToCqe::Usual`.
///
/// # Safety
/// Same as [`create_qp_ex`].
pub(crate) unsafe fn create_qp_scattering(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    scatter: ScatterToCqe,
) -> *mut ibv_qp {
    const KNOWN: u32 = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
        | IBV_QP_INIT_ATTR_IND_TABLE
        | IBV_QP_INIT_ATTR_RX_HASH
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    not_null_or_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe {
        if (*attr).comp_mask & !KNOWN != 0 {
            Err(refused("create_qp_ex", Errno::OPNOTSUPP, UNKNOWN_MEMBERS))
        } else {
            verb!(context, create_qp(context, &mut *attr, scatter))
        }
    })
}

/// `ibv_open_qp(3)`.
///
/// # Safety
/// `context` must be open; the domain in `attr` must be live.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    const KNOWN: u32 = NEEDED | IBV_QP_OPEN_ATTR_CONTEXT;
    not_null_or_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe {
        let attr = &*attr;
        let is_whole = attr.comp_mask & !KNOWN == 0
            && attr.comp_mask & NEEDED == NEEDED
            && !attr.xrcd.is_null()
            && attr.qp_type == IBV_QPT_XRC_RECV;
        if is_whole {
            verb!(context, open_qp(context, attr))
        } else {
            let reason = "the type is XRC_RECV, and number, XRC domain and type are needed";
            Err(refused("open_qp", Errno::INVAL, reason))
        }
    })
}

/// `ibv_qp_to_qp_ex(3)`: returns null for a queue pair created without `send_ops_flags`.
///
/// # Safety
/// `qp` must be live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    let ex: *mut ibv_qp_ex = qp.cast();
    // SAFETY: an `ibv_qp` of this library is the head of an `ibv_qp_ex`.
    if qp.is_null() || unsafe { (*ex).wr_start.is_none() } { null_mut() } else { ex }
}

/// `ibv_modify_qp(3)`.
///
/// # Safety
/// `qp` must be live; `attr` must point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    not_null!(qp, attr);
    let mask = QpAttrMask::from_bits_retain(mask as u32);
    // As in rdma-core, this check comes first, because the transition may also lack an attribute.
    if mask.iter_names().fold(mask, |left, (_, flag)| left - flag) != QpAttrMask::empty() {
        return fail(&refused("modify_qp", Errno::OPNOTSUPP, "the mask has unknown bits"));
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        let attr = qp_attr_from_c(&*attr);
        let result = verb!((*qp).context, modify_qp(qp, &attr, mask));
        if result.is_ok() && mask.contains(QpAttrMask::STATE) {
            (*qp).state = attr.qp_state.0.into();
        }
        code(result)
    }
}

/// `ibv_query_qp(3)`.
///
/// # Safety
/// `qp` must be live, and the program must pass memory for both kinds of attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    not_null!(qp, attr);
    // SAFETY: guaranteed by the caller.
    code(unsafe { verb!((*qp).context, query_qp(qp, attr, QpAttrMask::from_bits_retain(mask as u32), init)) })
}

/// `ibv_modify_qp_rate_limit(3)`.
///
/// # Safety
/// `qp` must be live; `attr` must point to attributes.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    not_null!(qp, attr);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        let attr = &*attr;
        if attr.comp_mask != 0 {
            Err(refused("modify_qp_rate_limit", Errno::INVAL, UNKNOWN_MEMBERS))
        } else {
            let limit = RateLimit {
                rate_limit: attr.rate_limit,
                max_burst_sz: attr.max_burst_sz,
                typical_pkt_sz: attr.typical_pkt_sz,
            };
            verb!((*qp).context, modify_qp_rate_limit(qp, &limit))
        }
    })
}

/// `ibv_attach_mcast(3)`.
///
/// # Safety
/// `qp` must be live; `gid` must point to a GID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    not_null!(qp, gid);
    given_room!();
    // SAFETY: guaranteed by the caller.
    code(unsafe { verb!((*qp).context, attach_mcast(qp, &gid_from_c(&gid.read_unaligned()), lid)) })
}

/// `ibv_detach_mcast(3)`.
///
/// # Safety
/// Same as [`ibv_attach_mcast`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    not_null!(qp, gid);
    // SAFETY: guaranteed by the caller.
    code(unsafe { verb!((*qp).context, detach_mcast(qp, &gid_from_c(&gid.read_unaligned()), lid)) })
}

/// `ibv_set_ece(3)`.
///
/// # Safety
/// `qp` must be live; `ece` must point to ECE options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    const VERB: &str = "set_ece";
    not_null!(qp, ece);
    // SAFETY: guaranteed by the caller.
    unsafe {
        if (*ece).vendor_id == 0 {
            return fail(&refused(VERB, Errno::OPNOTSUPP, "the options have no vendor"));
        }
        if (*ece).comp_mask != 0 {
            // Only providers that support such options check the mask.
            return verb!((*qp).context, query_ece(qp))
                .map_or_else(|error| fail(&error), |_| fail(&refused(VERB, Errno::INVAL, UNKNOWN_MEMBERS)));
        }
        let ece = Ece { vendor_id: (*ece).vendor_id, options: (*ece).options };
        code(verb!((*qp).context, set_ece(qp, &ece)))
    }
}

/// `ibv_query_ece(3)`.
///
/// # Safety
/// `qp` must be live; `ece` must point to ECE options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    not_null!(qp, ece);
    // SAFETY: guaranteed by the caller.
    unsafe {
        match verb!((*qp).context, query_ece(qp)) {
            Ok(found) => {
                *ece = ibv_ece { vendor_id: found.vendor_id, options: found.options, comp_mask: 0 };
                0
            }
            // Programs call this on every device (perftest for each queue pair), so a failure is
            // not logged.
            Err(error) if error.errno == Errno::OPNOTSUPP => errno::refuse(error.errno),
            Err(error) => fail(&error),
        }
    }
}

/// `ibv_query_qp_data_in_order(3)`.
///
/// # Safety
/// `qp` must be live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: c_uint, flags: u32) -> c_int {
    const RETURN_CAPS: u32 = IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS;
    const DEVICE_ONLY: u32 = IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY;
    if qp.is_null() || flags & !(RETURN_CAPS | DEVICE_ONLY) != 0 {
        return 0;
    }
    // Even if the device writes in order, other processors may observe another order.
    if !cfg!(any(target_arch = "x86", target_arch = "x86_64")) && flags & DEVICE_ONLY == 0 {
        return 0;
    }
    let Some(op) = op_kind(op) else { return 0 };
    // SAFETY: the queue pair is live.
    let mut caps = unsafe { verb!((*qp).context, data_in_order(qp, op)) };
    if caps.contains(DataInOrder::WHOLE_MSG) {
        caps |= DataInOrder::ALIGNED_128_BYTES;
    }
    if flags & RETURN_CAPS != 0 { caps.bits() as c_int } else { caps.contains(DataInOrder::WHOLE_MSG).into() }
}

/// Converts the C code of an operation.
const fn op_kind(op: c_uint) -> Option<OpKind> {
    Some(match op {
        IBV_WR_RDMA_WRITE => OpKind::RDMA_WRITE,
        IBV_WR_RDMA_WRITE_WITH_IMM => OpKind::RDMA_WRITE_WITH_IMM,
        IBV_WR_SEND => OpKind::SEND,
        IBV_WR_SEND_WITH_IMM => OpKind::SEND_WITH_IMM,
        IBV_WR_RDMA_READ => OpKind::RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP => OpKind::ATOMIC_CMP_AND_SWP,
        IBV_WR_ATOMIC_FETCH_AND_ADD => OpKind::ATOMIC_FETCH_AND_ADD,
        IBV_WR_SEND_WITH_INV => OpKind::SEND_WITH_INV,
        IBV_WR_ATOMIC_WRITE => OpKind::ATOMIC_WRITE,
        _ => return None,
    })
}

/// `ibv_destroy_qp(3)`.
///
/// # Safety
/// `qp` must be live and must not be used afterwards if the call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    not_null!(qp);
    // SAFETY: the queue pair is live.
    code(unsafe { verb!((*qp).context, destroy_qp(qp)) })
}
