//! Memory windows.
//!
//! # Safety
//! See the crate documentation.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint};
use core::ptr::null_mut;

use verbs_core::provider::{ContextOps as _, MwOps as _, Provider};
use verbs_core::types::{AccessFlags, MwType, inc_rkey};
use verbs_core::{Errno, Error};

use crate::abi::c::{
    IBV_MW_TYPE_1, IBV_WR_BIND_MW, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp, ibv_send_wr,
    ibv_send_wr_bind_mw, ibv_send_wr_ext,
};
use crate::abi::convert::narrow;
use crate::abi::errno::{self, fail, not_null, not_null_or_null, pointer, refused};
use crate::handle::context::{ProviderContext, verb};
use crate::handle::destroyable::Destroyable;
use crate::handle::object::{Object, check_handle, public};
use crate::verbs::pd;

pub(crate) type MwObject<P> = Object<ibv_mw, Destroyable<<P as Provider>::Mw>>;

/// Operations on memory windows.
///
/// # Safety
/// The methods have the same contracts as the exported functions.
impl<P: Provider> ProviderContext<P> {
    unsafe fn alloc_mw(&self, pd: *mut ibv_pd, mw_type: MwType) -> Result<*mut ibv_mw, Error> {
        // SAFETY: the domain is live.
        let (parent, context) = unsafe { (pd::from_raw::<P>(pd, "alloc_mw")?, (*pd).context) };
        let mw = self.context().alloc_mw(&parent.pd, mw_type)?;
        let (rkey, handle, type_) = (mw.rkey(), mw.handle(), mw.mw_type().0.into());
        let c = ibv_mw { context, pd, rkey, handle, type_ };
        Ok(self.live.mws.add(MwObject::<P>::boxed(c, Destroyable::new(mw))))
    }

    unsafe fn dealloc_mw(&self, mw: *mut ibv_mw) -> c_int {
        const VERB: &str = "dealloc_mw";
        // SAFETY: the window is live.
        unsafe {
            let own = MwObject::<P>::lend(mw, VERB).map(|mw| mw.handle());
            let checked = own.and_then(|own| check_handle(public(&raw const (*mw).handle), own, VERB));
            match checked {
                Ok(()) => MwObject::<P>::destroy_then(mw, VERB, || self.live.mws.remove(mw)),
                Err(error) => fail(&error),
            }
        }
    }
}

/// `ibv_alloc_mw(3)`.
///
/// # Safety
/// `pd` must be live.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, type_: c_uint) -> *mut ibv_mw {
    not_null_or_null!(pd);
    let mw_type = MwType(narrow(type_));
    if !MwType::NAMED.contains(&mw_type) {
        return pointer(Err(refused("alloc_mw", Errno::INVAL, "a window has the type 1 or 2")));
    }
    // SAFETY: the domain is live.
    pointer(unsafe { verb!((*pd).context, alloc_mw(pd, mw_type)) })
}

/// `ibv_dealloc_mw(3)`.
///
/// # Safety
/// `mw` must be live and must not be used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    not_null!(mw);
    // SAFETY: the window is live.
    unsafe { verb!((*mw).context, dealloc_mw(mw)) }
}

/// `ibv_bind_mw(3)`: posts a bind of a type 1 window with its next key. The window has the new key
/// when the call returns; if the bind completes with an error, the program has to restore the
/// previous key.
///
/// # Safety
/// `qp` and `mw` must be live; `mw_bind` must point to a bind whose region is null or live.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    mw_bind: *mut ibv_mw_bind,
) -> c_int {
    not_null!(qp, mw, mw_bind);
    // SAFETY: guaranteed by the caller.
    unsafe {
        if let Err(errno) = check_bind(&*mw, &(*mw_bind).bind_info) {
            let reason = "the window, its region or its rights do not permit the bind";
            return fail(&refused("bind_mw", errno, reason));
        }
        let Some(post_send) = (*(*qp).context).ops.post_send else {
            return fail(&refused("bind_mw", Errno::OPNOTSUPP, "the context posts no requests"));
        };
        let rkey = inc_rkey((*mw).rkey);
        // Zeroed integers, null pointers and unions of them are valid.
        let mut wr: ibv_send_wr = core::mem::zeroed();
        wr.opcode = IBV_WR_BIND_MW;
        wr.wr_id = (*mw_bind).wr_id;
        wr.send_flags = (*mw_bind).send_flags;
        wr.ext =
            ibv_send_wr_ext { bind_mw: ibv_send_wr_bind_mw { mw, rkey, bind_info: (*mw_bind).bind_info } };
        let mut bad_wr = null_mut();
        let failed = post_send(qp, &raw mut wr, &raw mut bad_wr);
        if failed != 0 {
            return errno::refuse(Errno::from_raw(failed));
        }
        (*mw).rkey = rkey;
    }
    0
}

/// Checks that this call can bind the window. The inline function in verbs.h makes the same checks,
/// except for the access rights.
///
/// # Safety
/// The region must be null or live.
unsafe fn check_bind(mw: &ibv_mw, info: &ibv_mw_bind_info) -> Result<(), Errno> {
    let rights = AccessFlags::from_bits_retain(info.mw_access_flags);
    let is_nowhere = info.mr.is_null() && (info.addr != 0 || info.length != 0);
    if mw.type_ != IBV_MW_TYPE_1 || rights.contains(AccessFlags::ZERO_BASED) || is_nowhere {
        return Err(Errno::INVAL);
    }
    // SAFETY: guaranteed by the caller.
    if !info.mr.is_null() && unsafe { (*info.mr).pd } != mw.pd {
        return Err(Errno::PERM);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use core::ptr::null_mut;

    use super::*;
    use crate::abi::c::{IBV_ACCESS_REMOTE_READ, IBV_ACCESS_ZERO_BASED, IBV_MW_TYPE_2, ibv_context, ibv_mr};

    thread_local! {
        /// The `wr_id`, key and length of the last posted bind.
        static POSTED: Cell<Option<(u64, u32, u64)>> = const { Cell::new(None) };
        static RESULT: Cell<c_int> = const { Cell::new(0) };
    }

    unsafe extern "C" fn post_send(
        _qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> c_int {
        // SAFETY: `bind_mw` passes one bind request, and space for a pointer.
        unsafe {
            assert_eq!((*wr).opcode, IBV_WR_BIND_MW);
            assert!((*wr).next.is_null() && (*wr).num_sge == 0);
            let bind = (*wr).ext.bind_mw;
            POSTED.set(Some(((*wr).wr_id, bind.rkey, bind.bind_info.length)));
            if RESULT.get() != 0 {
                *bad_wr = wr;
            }
        }
        RESULT.get()
    }

    /// A window and a queue pair that records posted requests.
    struct Case {
        context: Box<ibv_context>,
        pd: Box<ibv_pd>,
        mw: ibv_mw,
        mr: ibv_mr,
    }

    impl Case {
        fn new() -> Self {
            // SAFETY: zeroed integers, null pointers and absent functions are valid.
            let mut context: Box<ibv_context> = Box::new(unsafe { core::mem::zeroed() });
            context.ops.post_send = Some(post_send);
            let mut pd = Box::new(ibv_pd { context: &raw mut *context, handle: 0 });
            let mw = ibv_mw {
                context: &raw mut *context,
                pd: &raw mut *pd,
                rkey: 0x12ff,
                handle: 0,
                type_: IBV_MW_TYPE_1,
            };
            // SAFETY: as above.
            let mr = ibv_mr { pd: &raw mut *pd, ..unsafe { core::mem::zeroed() } };
            Self { context, pd, mw, mr }
        }

        fn info(&mut self) -> ibv_mw_bind_info {
            ibv_mw_bind_info {
                mr: &raw mut self.mr,
                addr: 0x1000,
                length: 64,
                mw_access_flags: IBV_ACCESS_REMOTE_READ,
            }
        }

        fn bind(&mut self, bind_info: ibv_mw_bind_info) -> c_int {
            // SAFETY: as above.
            let mut qp: ibv_qp = unsafe { core::mem::zeroed() };
            qp.context = &raw mut *self.context;
            let mut bind = ibv_mw_bind { wr_id: 7, send_flags: 0, bind_info };
            POSTED.set(None);
            // SAFETY: the objects are live.
            unsafe { bind_mw(&raw mut qp, &raw mut self.mw, &raw mut bind) }
        }
    }

    #[test]
    fn a_bind_posts_the_next_key_which_the_window_then_has() {
        let mut case = Case::new();
        let info = case.info();
        assert_eq!(case.bind(info), 0);
        assert_eq!((POSTED.get(), case.mw.rkey), (Some((7, 0x1200, 64)), 0x1200));
        let nothing = ibv_mw_bind_info { mr: null_mut(), addr: 0, length: 0, ..info };
        assert_eq!(case.bind(nothing), 0, "of no bytes of no region");
        assert_eq!((POSTED.get(), case.mw.rkey), (Some((7, 0x1201, 0)), 0x1201));
        assert_eq!(case.pd.handle, 0);
    }

    #[test]
    fn a_bind_that_is_not_posted_leaves_the_key() {
        let mut case = Case::new();
        let info = case.info();
        RESULT.set(libc::ENOMEM);
        assert_eq!((case.bind(info), case.mw.rkey), (libc::ENOMEM, 0x12ff));
        RESULT.set(0);
    }

    #[test]
    fn a_bind_that_makes_no_sense_is_not_posted() {
        let mut case = Case::new();
        let info = case.info();
        let zero_based = ibv_mw_bind_info { mw_access_flags: IBV_ACCESS_ZERO_BASED, ..info };
        let nowhere = ibv_mw_bind_info { mr: null_mut(), ..info };
        for (name, info) in [("zero based", zero_based), ("without a region", nowhere)] {
            assert_eq!((case.bind(info), POSTED.get()), (libc::EINVAL, None), "{name}");
        }
        let mut other_pd = *case.pd;
        case.mr.pd = &raw mut other_pd;
        assert_eq!((case.bind(info), POSTED.get()), (libc::EPERM, None), "of another domain");
        case.mr.pd = case.mw.pd;
        case.mw.type_ = IBV_MW_TYPE_2;
        assert_eq!((case.bind(info), POSTED.get()), (libc::EINVAL, None), "type 2");
        assert_eq!(case.mw.rkey, 0x12ff);
    }
}
