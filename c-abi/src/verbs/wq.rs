//! Work queues and their indirection tables.
//!
//! # Safety
//! See the crate documentation. Each work queue's lock guards the provider's work queue.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::slice;

use verbs_core::provider::{
    ContextOps as _, Destroy as _, Provider, RwqIndTableOps as _, WqOps as _, WqParents, WqParts,
};
use verbs_core::types::{WqAttr, WqFlags, WqFlagsChange, WqInitAttr, WqState, WqType};
use verbs_core::{Errno, Error, room};

use crate::abi::c::{
    IBV_CREATE_IND_TABLE_RESERVED, IBV_WQ_ATTR_CURR_STATE, IBV_WQ_ATTR_FLAGS, IBV_WQ_ATTR_RESERVED,
    IBV_WQ_ATTR_STATE, IBV_WQ_FLAGS_RESERVED, IBV_WQ_INIT_ATTR_FLAGS, IBV_WQ_INIT_ATTR_RESERVED, IBV_WQT_RQ,
    ibv_context, ibv_recv_wr, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_wq, ibv_wq_attr,
    ibv_wq_init_attr,
};
use crate::abi::errno::{
    UNKNOWN_MEMBERS, code, fail, not_null, not_null_or_null, pointer, refused, unavailable,
};
use crate::handle::context::{ProviderContext, verb};
use crate::handle::destroyable::{Destroyable, Loan};
use crate::handle::lock::Spin;
use crate::handle::object::{Object, check_handle, public};
use crate::verbs::event::{is_acknowledged, wait_acknowledged};
use crate::verbs::receives::recv_locked;
use crate::verbs::{cq, pd};

/// A provider's work queue.
pub(crate) struct Wq<P: Provider> {
    wq: Destroyable<P::Wq>,
    /// The queue, which lives as long as this value, because event handlers may post until they
    /// acknowledge the last event.
    queue: Spin<P::WqQueue>,
    handle: u32,
}

pub(crate) type WqObject<P> = Object<ibv_wq, Wq<P>>;
pub(crate) type RwqIndTableObject<P> = Object<ibv_rwq_ind_table, Destroyable<<P as Provider>::RwqIndTable>>;

impl<P: Provider> Wq<P> {
    /// Returns the control object for the duration of a call.
    ///
    /// # Errors
    /// Same as [`Destroyable::lend`].
    pub(crate) fn control(&self, verb: &'static str) -> Result<Loan<'_, P::Wq>, Error> {
        self.wq.lend(verb)
    }
}

/// Returns the provider's work queue if the public struct still has its handle.
///
/// # Safety
/// `wq` must be a live queue of the provider.
pub(crate) unsafe fn from_raw<'a, P: Provider>(
    wq: *mut ibv_wq,
    verb: &'static str,
) -> Result<&'a Wq<P>, Error> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let inner = WqObject::<P>::own(wq, verb)?;
        check_handle(public(&raw const (*wq).handle), inner.handle, verb)?;
        Ok(inner)
    }
}

/// Operations on work queues and indirection tables.
///
/// # Safety
/// The methods have the same contracts as the exported functions.
impl<P: Provider> ProviderContext<P> {
    unsafe fn create_wq(
        &self,
        context: *mut ibv_context,
        attr: &ibv_wq_init_attr,
    ) -> Result<*mut ibv_wq, Error> {
        // Events carry the object's address, so the box is allocated before the queue is created.
        let mut object = Box::<WqObject<P>>::new_uninit();
        let at: *mut ibv_wq = object.as_mut_ptr().cast();
        // SAFETY: the objects are live.
        let (parent, cq) =
            unsafe { (pd::from_raw::<P>(attr.pd, "create_wq")?, cq::checked::<P>(attr.cq, "create_wq")?) };
        let has_flags = attr.comp_mask & IBV_WQ_INIT_ATTR_FLAGS != 0;
        let init = WqInitAttr {
            wq_type: WqType(attr.wq_type),
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            create_flags: WqFlags::from_bits_retain(if has_flags { attr.create_flags } else { 0 }),
            user_handle: at as u64,
        };
        let WqParts { wq, queue } =
            self.context().create_wq(&WqParents { pd: &parent.pd, cq: &cq.name }, &init)?;
        // The queue may be larger. `attr` keeps the requested sizes, as rdma-core does.
        let c = ibv_wq {
            context,
            wq_context: attr.wq_context,
            pd: attr.pd,
            cq: attr.cq,
            wq_num: wq.wq_num(),
            handle: wq.handle(),
            state: wq.state().0,
            wq_type: attr.wq_type,
            post_recv: Some(post_recv::<P>),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
            comp_mask: 0,
        };
        let (handle, queue) = (wq.handle(), Spin::new(queue, parent.is_single_threaded));
        let inner = Wq { wq: Destroyable::new(wq), queue, handle };
        object.write(Object::new(c, inner));
        Ok(Box::into_raw(object).cast())
    }

    unsafe fn modify_wq(&self, wq: *mut ibv_wq, attr: &WqAttr) -> Result<(), Error> {
        const VERB: &str = "modify_wq";
        // SAFETY: the queue is live.
        let inner = unsafe { from_raw::<P>(wq, VERB)? };
        let modified = inner.queue.with(|queue| {
            inner.wq.lend(VERB)?.modify(queue, attr)?;
            if let Some(state) = attr.wq_state {
                // SAFETY: as above; the lock guards the field.
                unsafe { (*wq).state = state.0 };
            }
            Ok(())
        });
        modified.map_err(|errno| unavailable(VERB, errno))?
    }

    unsafe fn destroy_wq(&self, wq: *mut ibv_wq) -> Result<(), Error> {
        const VERB: &str = "destroy_wq";
        // SAFETY: the queue is live. Threads that handle its last events may use it until they
        // acknowledge them. They find that the control object is gone and nothing reads the queue.
        unsafe {
            let control = &from_raw::<P>(wq, VERB)?.wq;
            let read = control.destroy_waiting(VERB, P::Wq::destroy_counting_events)?;
            wait_acknowledged(&raw mut (*wq).mutex, &raw mut (*wq).cond, || {
                is_acknowledged(public(&raw const (*wq).events_completed), read.asynchronous)
            });
            drop(Box::from_raw(wq.cast::<WqObject<P>>()));
        }
        Ok(())
    }

    unsafe fn create_rwq_ind_table(
        &self,
        context: *mut ibv_context,
        wqs: &[*mut ibv_wq],
    ) -> Result<*mut ibv_rwq_ind_table, Error> {
        const VERB: &str = "create_rwq_ind_table";
        /// An upper bound, in bytes, on the call's allocations per entry.
        const ENTRY: usize = 128;
        room::check(wqs.len() * ENTRY).map_err(|errno| Error::new(VERB, "", errno))?;
        // SAFETY: the queues are live.
        let wqs: Result<Vec<_>, _> =
            wqs.iter().map(|wq| unsafe { from_raw::<P>(*wq, VERB) }?.wq.lend(VERB)).collect();
        let wqs = wqs?;
        let wqs: Vec<&P::Wq> = wqs.iter().map(|wq| &**wq).collect();
        let table = self.context().create_rwq_ind_table(&wqs)?;
        let c = ibv_rwq_ind_table {
            context,
            ind_tbl_handle: table.handle() as c_int,
            ind_tbl_num: table.ind_tbl_num() as c_int,
            comp_mask: 0,
        };
        Ok(RwqIndTableObject::<P>::boxed(c, Destroyable::new(table)))
    }

    unsafe fn destroy_rwq_ind_table(&self, table: *mut ibv_rwq_ind_table) -> c_int {
        const VERB: &str = "destroy_rwq_ind_table";
        // SAFETY: the table is live.
        unsafe {
            let own = RwqIndTableObject::<P>::lend(table, VERB).map(|table| table.handle());
            let checked = own
                .and_then(|own| check_handle(public(&raw const (*table).ind_tbl_handle) as u32, own, VERB));
            match checked {
                Ok(()) => RwqIndTableObject::<P>::destroy(table, VERB),
                Err(error) => fail(&error),
            }
        }
    }
}

/// `ibv_post_wq_recv`.
///
/// # Safety
/// `wq` must be a live queue of the provider; the list must be valid.
unsafe extern "C" fn post_recv<P: Provider>(
    wq: *mut ibv_wq,
    recv_wr: *mut ibv_recv_wr,
    bad_recv_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { recv_locked(&WqObject::<P>::inner(wq).queue, recv_wr, bad_recv_wr) }
}

/// `ibv_create_wq(3)`. The inline function in verbs.h initialises the mutex and the condition
/// again.
///
/// # Safety
/// `context` must be open; `attr` must point to attributes with live objects.
pub(crate) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    not_null_or_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe {
        let attr = &*attr;
        check_init(attr)
            .map_err(|errno| {
                refused("create_wq", errno, "an object is null, or unknown members, flags or type")
            })
            .and_then(|()| verb!(context, create_wq(context, attr)))
    })
}

/// Checks the device-independent attributes of a new queue.
///
/// # Errors
/// `EINVAL` for members that no rdma-core release defines, for a missing object, and for a kind
/// other than `IBV_WQT_RQ`; `EOPNOTSUPP` for flags that no rdma-core release defines.
fn check_init(attr: &ibv_wq_init_attr) -> Result<(), Errno> {
    let has_flags = attr.comp_mask & IBV_WQ_INIT_ATTR_FLAGS != 0;
    if attr.comp_mask >= IBV_WQ_INIT_ATTR_RESERVED
        || attr.pd.is_null()
        || attr.cq.is_null()
        || attr.wq_type != IBV_WQT_RQ
    {
        Err(Errno::INVAL)
    } else if has_flags && attr.create_flags >= IBV_WQ_FLAGS_RESERVED {
        Err(Errno::OPNOTSUPP)
    } else {
        Ok(())
    }
}

/// `ibv_modify_wq(3)`.
///
/// # Safety
/// `wq` must be live; `attr` must point to attributes.
pub(crate) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    not_null!(wq, attr);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        attr_from_c(&*attr)
            .map_err(|errno| refused("modify_wq", errno, UNKNOWN_MEMBERS))
            .and_then(|attr| verb!((*wq).context, modify_wq(wq, &attr)))
    })
}

/// Converts the changes that the mask names.
///
/// # Errors
/// `EINVAL` for members and `EOPNOTSUPP` for flags that no rdma-core release defines.
fn attr_from_c(attr: &ibv_wq_attr) -> Result<WqAttr, Errno> {
    let has = |bit| attr.attr_mask & bit != 0;
    if attr.attr_mask >= IBV_WQ_ATTR_RESERVED {
        return Err(Errno::INVAL);
    }
    if has(IBV_WQ_ATTR_FLAGS) && attr.flags_mask >= IBV_WQ_FLAGS_RESERVED {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(WqAttr {
        wq_state: has(IBV_WQ_ATTR_STATE).then_some(WqState(attr.wq_state)),
        curr_wq_state: has(IBV_WQ_ATTR_CURR_STATE).then_some(WqState(attr.curr_wq_state)),
        flags: has(IBV_WQ_ATTR_FLAGS).then(|| WqFlagsChange {
            flags: WqFlags::from_bits_retain(attr.flags),
            mask: WqFlags::from_bits_retain(attr.flags_mask),
        }),
    })
}

/// `ibv_destroy_wq(3)`: waits until the program has acknowledged the events it has read.
///
/// # Safety
/// `wq` must be live and must not be used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    not_null!(wq);
    // SAFETY: the queue is live.
    code(unsafe { verb!((*wq).context, destroy_wq(wq)) })
}

/// `ibv_create_rwq_ind_table(3)`.
///
/// # Safety
/// `context` must be open; `attr` must point to attributes with the stated number of live queues.
pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    attr: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    not_null_or_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe {
        entries(&*attr)
            .map_err(|errno| refused("create_rwq_ind_table", errno, "no queues, or unknown members"))
            .and_then(|wqs| verb!(context, create_rwq_ind_table(context, wqs)))
    })
}

/// Returns the work queues in a new table.
///
/// # Errors
/// `EINVAL` for members that no rdma-core release defines, for a missing queue, and for more
/// entries than the kernel accepts.
///
/// # Safety
/// The queue array must be null or contain the stated number of queues.
unsafe fn entries(attr: &ibv_rwq_ind_table_init_attr) -> Result<&[*mut ibv_wq], Errno> {
    /// `IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE`.
    const MAX_LOG_SIZE: u32 = 13;
    if attr.comp_mask >= IBV_CREATE_IND_TABLE_RESERVED
        || attr.log_ind_tbl_size > MAX_LOG_SIZE
        || attr.ind_tbl.is_null()
    {
        return Err(Errno::INVAL);
    }
    // SAFETY: guaranteed by the caller.
    let wqs = unsafe { slice::from_raw_parts(attr.ind_tbl, 1 << attr.log_ind_tbl_size) };
    if wqs.iter().any(|wq| wq.is_null()) { Err(Errno::INVAL) } else { Ok(wqs) }
}

/// `ibv_destroy_rwq_ind_table(3)`.
///
/// # Safety
/// `table` must be live and must not be used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    not_null!(table);
    // SAFETY: the table is live.
    unsafe { verb!((*table).context, destroy_rwq_ind_table(table)) }
}

#[cfg(test)]
mod tests {
    use core::ptr::{null_mut, without_provenance_mut};

    use super::*;

    #[test]
    fn attributes_of_a_queue_that_no_release_has_are_refused() {
        let attr = ibv_wq_init_attr {
            wq_context: null_mut(),
            wq_type: IBV_WQT_RQ,
            max_wr: 1,
            max_sge: 1,
            pd: without_provenance_mut(8),
            cq: without_provenance_mut(8),
            comp_mask: 0,
            create_flags: IBV_WQ_FLAGS_RESERVED,
        };
        assert_eq!(check_init(&attr), Ok(()), "flags that the mask does not name");
        let flags = ibv_wq_init_attr { comp_mask: IBV_WQ_INIT_ATTR_FLAGS, ..attr };
        assert_eq!(check_init(&flags), Err(Errno::OPNOTSUPP));
        assert_eq!(check_init(&ibv_wq_init_attr { create_flags: 15, ..flags }), Ok(()));
        for attr in [
            ibv_wq_init_attr { comp_mask: IBV_WQ_INIT_ATTR_RESERVED, ..attr },
            ibv_wq_init_attr { wq_type: IBV_WQT_RQ + 1, ..attr },
            ibv_wq_init_attr { pd: null_mut(), ..attr },
            ibv_wq_init_attr { cq: null_mut(), ..attr },
        ] {
            assert_eq!(check_init(&attr), Err(Errno::INVAL), "{attr:?}");
        }
    }

    #[test]
    fn a_change_of_a_queue_is_what_the_mask_names() {
        let attr = ibv_wq_attr { attr_mask: 0, wq_state: 1, curr_wq_state: 0, flags: 1, flags_mask: 3 };
        let change = |attr_mask| attr_from_c(&ibv_wq_attr { attr_mask, ..attr });
        assert_eq!(change(0), Ok(WqAttr::default()));
        let all = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE | IBV_WQ_ATTR_FLAGS;
        let flags = WqFlags::CVLAN_STRIPPING;
        let expected = WqAttr {
            wq_state: Some(WqState::RDY),
            curr_wq_state: Some(WqState::RESET),
            flags: Some(WqFlagsChange { flags, mask: flags | WqFlags::SCATTER_FCS }),
        };
        assert_eq!(change(all), Ok(expected));
        assert_eq!(change(IBV_WQ_ATTR_RESERVED), Err(Errno::INVAL));
        let unknown = ibv_wq_attr { attr_mask: all, flags_mask: IBV_WQ_FLAGS_RESERVED, ..attr };
        assert_eq!(attr_from_c(&unknown), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn a_table_has_as_many_queues_as_its_size_says() {
        let mut wqs = [without_provenance_mut::<ibv_wq>(8), without_provenance_mut(16), null_mut()];
        let attr =
            ibv_rwq_ind_table_init_attr { log_ind_tbl_size: 1, ind_tbl: wqs.as_mut_ptr(), comp_mask: 0 };
        // SAFETY: the queue array is null, or has the stated number of queues.
        unsafe {
            assert_eq!(entries(&attr), Ok(&wqs[..2]));
            let missing = ibv_rwq_ind_table_init_attr { ind_tbl: wqs[1..].as_mut_ptr(), ..attr };
            assert_eq!(entries(&missing), Err(Errno::INVAL));
            for attr in [
                ibv_rwq_ind_table_init_attr { ind_tbl: null_mut(), ..attr },
                ibv_rwq_ind_table_init_attr { log_ind_tbl_size: 14, ..attr },
                ibv_rwq_ind_table_init_attr { log_ind_tbl_size: 64, ..attr },
                ibv_rwq_ind_table_init_attr { comp_mask: 1, ..attr },
            ] {
                assert_eq!(entries(&attr), Err(Errno::INVAL), "{attr:?}");
            }
        }
    }
}
