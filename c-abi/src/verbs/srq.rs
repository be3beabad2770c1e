//! Shared receive queues.
//!
//! # Safety
//! See the crate documentation. A lock guards the provider's queue.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::ptr::null_mut;
use std::sync::Arc;

use verbs_core::provider::{
    ContextOps as _, Destroy as _, Provider, RecvQueue as _, SrqOps as _, SrqParents,
};
use verbs_core::types::{OpsFlags, OpsWr, SrqAttr, SrqAttrMask, SrqInitAttr, SrqType, TmCap, TmOp};
use verbs_core::{Errno, Error};

use crate::abi::c::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TM, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_BASIC, IBV_SRQT_TM, IBV_SRQT_XRC, IBV_WR_TAG_ADD, IBV_WR_TAG_DEL,
    IBV_WR_TAG_SYNC, ibv_context, ibv_cq, ibv_ops_wr, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_tm_cap, ibv_xrcd,
};
use crate::abi::errno::{
    UNKNOWN_MEMBERS, code, fail, not_null, not_null_or_null, pointer, refused, unavailable,
};
use crate::handle::context::{ProviderContext, verb};
use crate::handle::destroyable::{Destroyable, Loan};
use crate::handle::lock::Spin;
use crate::handle::object::{Object, check_handle, public};
use crate::verbs::event::{is_acknowledged, wait_acknowledged};
use crate::verbs::receives::{recv_locked, refuse, sges};
use crate::verbs::xrcd::XrcdObject;
use crate::verbs::{cq, pd};

/// A provider's shared receive queue.
pub(crate) struct Srq<P: Provider> {
    srq: Destroyable<P::Srq>,
    /// The queue, which lives as long as this value, because event handlers may post until they
    /// acknowledge the last event.
    pub(crate) queue: Spin<P::SrqQueue>,
    handle: u32,
    /// Keeps the parent domain in use.
    parent: Option<Arc<()>>,
}

pub(crate) type SrqObject<P> = Object<ibv_srq, Srq<P>>;

impl<P: Provider> Srq<P> {
    /// Returns the control object for the duration of a call.
    ///
    /// # Errors
    /// Same as [`Destroyable::lend`].
    pub(crate) fn control(&self, verb: &'static str) -> Result<Loan<'_, P::Srq>, Error> {
        self.srq.lend(verb)
    }
}

/// The attributes of a new queue, from `ibv_create_srq` or `ibv_create_srq_ex`.
pub(crate) struct Init {
    srq_context: *mut core::ffi::c_void,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    cq: *mut ibv_cq,
    srq_type: SrqType,
    attr: ibv_srq_attr,
    tm: TmCap,
    /// Whether the mask has bits that no rdma-core release defines.
    has_unknown: bool,
}

/// Returns the provider's queue if the public struct still has its handle.
///
/// # Safety
/// `srq` must be a live queue of the provider.
pub(crate) unsafe fn checked<'a, P: Provider>(
    srq: *mut ibv_srq,
    verb: &'static str,
) -> Result<&'a Srq<P>, Error> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let inner: &Srq<P> = SrqObject::<P>::own(srq, verb)?;
        check_handle(public(&raw const (*srq).handle), inner.handle, verb)?;
        Ok(inner)
    }
}

/// Operations on shared receive queues.
///
/// # Safety
/// The methods have the same contracts as the exported functions.
impl<P: Provider> ProviderContext<P> {
    unsafe fn create_srq(
        &self,
        context: *mut ibv_context,
        init: &Init,
    ) -> Result<(*mut ibv_srq, SrqAttr), Error> {
        const VERB: &str = "create_srq";
        // SAFETY: the objects in the attributes are live.
        let (parent, xrcd, cq) = unsafe {
            let cq = match init.cq.is_null() {
                true => None,
                false => Some(&cq::checked::<P>(init.cq, VERB)?.name),
            };
            (pd::from_raw::<P>(init.pd, VERB)?, XrcdObject::<P>::lend_optional(init.xrcd, VERB)?, cq)
        };
        let mut object = Box::<SrqObject<P>>::new_uninit();
        let ibv_srq_attr { max_wr, max_sge, srq_limit } = init.attr;
        let provider = self.context().provider_name();
        let (is_rxe, is_mlx5) = (provider == "rxe", provider == "mlx5");
        // Like libmlx5, this ignores unknown mask bits for a plain queue.
        if init.has_unknown && (is_rxe || init.srq_type != SrqType::BASIC) {
            return Err(refused(VERB, Errno::OPNOTSUPP, UNKNOWN_MEMBERS));
        }
        // libmlx5 creates the smallest queue for 0. The manual page calls `srq_limit` irrelevant
        // here, but rxe uses it.
        let max_wr = if is_mlx5 { max_wr.max(1) } else { max_wr };
        let srq_limit = if is_rxe { srq_limit } else { 0 };
        let attr = SrqInitAttr {
            srq_type: init.srq_type,
            max_wr,
            max_sge,
            srq_limit,
            tm: init.tm,
            user_handle: object.as_mut_ptr() as u64,
        };
        let parents = SrqParents { pd: &parent.pd, xrcd: xrcd.as_deref(), cq };
        let parts = self.context().create_srq(&parents, &attr)?;
        let granted = parts.srq.attr();
        let c = ibv_srq {
            context,
            srq_context: init.srq_context,
            pd: init.pd,
            handle: parts.srq.handle(),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        };
        let queue = Spin::new(parts.queue, parent.is_single_threaded);
        let (handle, parent) = (parts.srq.handle(), parent.users.clone());
        object.write(Object::new(c, Srq { srq: Destroyable::new(parts.srq), queue, handle, parent }));
        Ok((Box::into_raw(object).cast(), granted))
    }

    unsafe fn modify_srq(&self, srq: *mut ibv_srq, attr: &SrqAttr, mask: SrqAttrMask) -> Result<(), Error> {
        const VERB: &str = "modify_srq";
        // SAFETY: the queue is live.
        let inner = unsafe { checked::<P>(srq, VERB)? };
        let modified = inner.queue.with(|queue| inner.control(VERB)?.modify(queue, attr, mask));
        modified.map_err(|errno| unavailable(VERB, errno))?
    }

    unsafe fn query_srq(&self, srq: *mut ibv_srq) -> Result<SrqAttr, Error> {
        // SAFETY: the queue is live.
        unsafe { checked::<P>(srq, "query_srq")? }.control("query_srq")?.query()
    }

    unsafe fn srq_num(&self, srq: *mut ibv_srq) -> Option<u32> {
        // SAFETY: the queue is live.
        let inner: &Srq<P> = unsafe { SrqObject::<P>::own(srq, "get_srq_num") }.ok()?;
        inner.control("get_srq_num").ok()?.srq_num()
    }

    unsafe fn destroy_srq(&self, srq: *mut ibv_srq) -> Result<(), Error> {
        const VERB: &str = "destroy_srq";
        // SAFETY: the queue is live. Threads that handle its last events may use it until they
        // acknowledge them. They find that the control object is gone, and no message takes
        // receives from the queue.
        unsafe {
            let control = &checked::<P>(srq, VERB)?.srq;
            let read = control.destroy_waiting(VERB, P::Srq::destroy_counting_events)?;
            wait_acknowledged(&raw mut (*srq).mutex, &raw mut (*srq).cond, || {
                is_acknowledged((*srq).events_completed, read.asynchronous)
            });
            let mut object = Box::from_raw(srq.cast::<SrqObject<P>>());
            if object.inner.queue.is_hopeless() {
                // A thread of the parent process was changing the queue at the fork, so the queue
                // is leaked. The parent domain can still be deallocated.
                drop(object.inner.parent.take());
                core::mem::forget(object);
            }
        }
        Ok(())
    }
}

/// `ibv_post_srq_recv(3)`.
///
/// # Safety
/// `srq` must be a live queue of the provider; the list must be as `ibv_post_srq_recv(3)` requires.
pub(crate) unsafe extern "C" fn post_recv<P: Provider>(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the queue is live; the program's promise holds for the list.
    unsafe { recv_locked(&SrqObject::<P>::inner(srq).queue, wr, bad_wr) }
}

/// `ibv_post_srq_ops(3)`.
///
/// # Safety
/// `srq` must be a live queue of the provider; the list must be as `ibv_post_srq_ops(3)` requires.
pub(crate) unsafe extern "C" fn post_srq_ops<P: Provider>(
    srq: *mut ibv_srq,
    op: *mut ibv_ops_wr,
    bad_op: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: the queue is live.
    let inner: &Srq<P> = unsafe { SrqObject::<P>::inner(srq) };
    let posted = inner.queue.with(|queue| {
        let mut next = op;
        while !next.is_null() {
            // This rings one doorbell per array, whereas rdma-core rings one per list.
            let mut ops =
                [const { OpsWr { wr_id: 0, op: TmOp::Sync, flags: OpsFlags::empty(), unexpected_cnt: 0 } };
                    OPS];
            let mut count = 0;
            let (first, mut unknown) = (next, false);
            while count < OPS && !next.is_null() && !unknown {
                // SAFETY: the program's list does not change during the call.
                match unsafe { op_from_c(&*next) } {
                    Some(op) => {
                        ops[count] = op;
                        count += 1;
                        // SAFETY: as above.
                        next = unsafe { (*next).next };
                    }
                    None => unknown = true,
                }
            }
            let posted = match count {
                0 => Ok(()),
                // SAFETY: the caller's promise covers the memory in the list.
                _ => unsafe { queue.post_srq_ops(&mut ops[..count]) },
            };
            let accepted = posted.as_ref().map_or_else(|error| error.accepted, |()| count);
            let mut wr = first;
            for op in &ops[..accepted] {
                // SAFETY: the operation came from this element of the list.
                unsafe {
                    if let TmOp::Add { handle, .. } = op.op {
                        (*wr).tm.handle = handle;
                    }
                    wr = (*wr).next;
                }
            }
            let errno = match posted {
                Err(error) => refuse("post_srq_ops", error.reason),
                Ok(()) if unknown => {
                    fail(&refused("post_srq_ops", Errno::INVAL, "an operation unknown to this library"))
                }
                Ok(()) => continue,
            };
            if !bad_op.is_null() {
                // SAFETY: the program passes a writable pointer.
                unsafe { *bad_op = wr };
            }
            return errno;
        }
        0
    });
    posted.unwrap_or_else(|errno| {
        if !bad_op.is_null() {
            // SAFETY: as above.
            unsafe { *bad_op = op };
        }
        fail(&unavailable("post_srq_ops", errno))
    })
}

/// The maximum number of tag list operations published with one doorbell.
const OPS: usize = 16;

/// Converts an operation on a tag list; `None` for an opcode that no rdma-core release defines.
///
/// # Safety
/// The members used by the opcode must be valid. For `IBV_WR_TAG_ADD`, the scatter/gather element
/// must stay valid as long as the operation is used.
unsafe fn op_from_c<'a>(wr: &ibv_ops_wr) -> Option<OpsWr<'a>> {
    let op = match wr.opcode {
        IBV_WR_TAG_ADD => TmOp::Add {
            recv_wr_id: wr.tm.add.recv_wr_id,
            // SAFETY: guaranteed by the caller.
            sge: unsafe { sges(wr.tm.add.sg_list, wr.tm.add.num_sge) },
            tag: wr.tm.add.tag,
            mask: wr.tm.add.mask,
            handle: 0,
        },
        IBV_WR_TAG_DEL => TmOp::Del { handle: wr.tm.handle },
        IBV_WR_TAG_SYNC => TmOp::Sync,
        _ => return None,
    };
    let (flags, unexpected_cnt) = (OpsFlags::from_bits_retain(wr.flags as u32), wr.tm.unexpected_cnt);
    Some(OpsWr { wr_id: wr.wr_id, op, flags, unexpected_cnt })
}

/// The reason for rejecting the attributes of a new queue.
const INCOMPLETE: &str = "an unknown type, or the type needs members that are missing or null";

/// Creates a queue and writes its capacity to the program's attributes.
///
/// # Safety
/// `context` must be open; the objects of `init` must be live.
unsafe fn create(
    context: *mut ibv_context,
    init: Result<Init, Errno>,
    attr: &mut ibv_srq_attr,
) -> *mut ibv_srq {
    // SAFETY: guaranteed by the caller.
    pointer(unsafe {
        init.map_err(|errno| refused("create_srq", errno, INCOMPLETE))
            .and_then(|init| verb!(context, create_srq(context, &init)))
            .map(|(srq, granted)| {
                (attr.max_wr, attr.max_sge) = (granted.max_wr, granted.max_sge);
                srq
            })
    })
}

/// `ibv_create_srq(3)`.
///
/// # Safety
/// `pd` must be live; `init` must point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    not_null_or_null!(pd, init);
    // SAFETY: guaranteed by the caller.
    unsafe {
        let from = &mut *init;
        let init = Init {
            srq_context: from.srq_context,
            pd,
            xrcd: null_mut(),
            cq: null_mut(),
            srq_type: SrqType::BASIC,
            attr: from.attr,
            tm: TmCap::default(),
            has_unknown: false,
        };
        create((*pd).context, Ok(init), &mut from.attr)
    }
}

/// Converts the attributes of `ibv_create_srq_ex`.
///
/// # Errors
/// `EINVAL` for missing members and for a type that no rdma-core release defines.
fn init_from_c(attr: &ibv_srq_init_attr_ex) -> Result<Init, Errno> {
    const KNOWN: u32 = IBV_SRQ_INIT_ATTR_TYPE
        | IBV_SRQ_INIT_ATTR_PD
        | IBV_SRQ_INIT_ATTR_XRCD
        | IBV_SRQ_INIT_ATTR_CQ
        | IBV_SRQ_INIT_ATTR_TM;
    let has = |bit| attr.comp_mask & bit != 0;
    let srq_type = if has(IBV_SRQ_INIT_ATTR_TYPE) { attr.srq_type } else { IBV_SRQT_BASIC };
    let needed = match srq_type {
        IBV_SRQT_XRC => IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
        IBV_SRQT_TM => IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
        _ => 0,
    } | IBV_SRQ_INIT_ATTR_PD;
    let is_whole = attr.comp_mask & needed == needed
        && srq_type <= IBV_SRQT_TM
        && !attr.pd.is_null()
        && !(needed & IBV_SRQ_INIT_ATTR_XRCD != 0 && attr.xrcd.is_null())
        && !(needed & IBV_SRQ_INIT_ATTR_CQ != 0 && attr.cq.is_null());
    if !is_whole {
        return Err(Errno::INVAL);
    }
    let ibv_tm_cap { max_num_tags, max_ops } = attr.tm_cap;
    Ok(Init {
        srq_context: attr.srq_context,
        pd: attr.pd,
        xrcd: if has(IBV_SRQ_INIT_ATTR_XRCD) { attr.xrcd } else { null_mut() },
        cq: if has(IBV_SRQ_INIT_ATTR_CQ) { attr.cq } else { null_mut() },
        srq_type: SrqType(srq_type),
        attr: attr.attr,
        tm: if has(IBV_SRQ_INIT_ATTR_TM) { TmCap { max_num_tags, max_ops } } else { TmCap::default() },
        has_unknown: attr.comp_mask & !KNOWN != 0,
    })
}

/// `ibv_create_srq_ex(3)`.
///
/// # Safety
/// `context` must be open; the objects of `attr` must be live.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    not_null_or_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    unsafe {
        let attr = &mut *attr;
        let init = init_from_c(attr);
        create(context, init, &mut attr.attr)
    }
}

/// `ibv_get_srq_num(3)`.
///
/// # Safety
/// `srq` must be live; `srq_num` must be valid for writing a `u32`.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    not_null!(srq, srq_num);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        match verb!((*srq).context, srq_num(srq)) {
            Some(number) => {
                *srq_num = number;
                Ok(())
            }
            None => Err(refused("get_srq_num", Errno::INVAL, "only the types XRC and TM have a number")),
        }
    })
}

/// `ibv_modify_srq(3)`.
///
/// # Safety
/// `srq` must be live; `attr` must point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    not_null!(srq, attr);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        let &ibv_srq_attr { max_wr, max_sge, srq_limit } = &*attr;
        let attr = SrqAttr { max_wr, max_sge, srq_limit };
        verb!((*srq).context, modify_srq(srq, &attr, SrqAttrMask::from_bits_retain(mask as u32)))
    })
}

/// `ibv_query_srq(3)`.
///
/// # Safety
/// `srq` must be live; `attr` must point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    not_null!(srq, attr);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        verb!((*srq).context, query_srq(srq)).map(|found| {
            let SrqAttr { max_wr, max_sge, srq_limit } = found;
            attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit });
        })
    })
}

/// `ibv_destroy_srq(3)`.
///
/// # Safety
/// `srq` must be live and must not be used afterwards if the call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    not_null!(srq);
    // SAFETY: the queue is live.
    code(unsafe { verb!((*srq).context, destroy_srq(srq)) })
}
