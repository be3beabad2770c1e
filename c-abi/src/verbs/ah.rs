//! Address handles.
//!
//! # Safety
//! See the crate documentation.
#![allow(unsafe_code)]

use core::ffi::c_int;

use verbs_core::Error;
use verbs_core::provider::{AhOps as _, ContextOps as _, Destroy as _, Provider};
use verbs_core::types::{AhAttr, Av};

use crate::abi::c::{ibv_ah, ibv_ah_attr, ibv_grh, ibv_pd, ibv_wc};
use crate::abi::convert::ah_attr_from_c;
use crate::abi::errno::{code, not_null, not_null_or_null, pointer};
use crate::handle::context::{ProviderContext, device_ops, verb};
use crate::handle::destroyable::Destroyable;
use crate::handle::object::{Object, check_handle, public};
use crate::verbs::address::init_ah_from_wc;
use crate::verbs::pd;

/// A provider's address handle.
pub(crate) struct Ah<P: Provider> {
    /// A copy for posting, so that posting takes no lock.
    pub(crate) av: Av,
    ah: Destroyable<P::Ah>,
}

pub(crate) type AhObject<P> = Object<ibv_ah, Ah<P>>;

/// The handle in every address handle's public struct, because providers do not publish the
/// kernel's handle.
const HANDLE: u32 = 0;

/// Operations on address handles.
///
/// # Safety
/// The methods have the same contracts as the exported functions.
impl<P: Provider> ProviderContext<P> {
    unsafe fn create_ah(&self, pd: *mut ibv_pd, attr: &AhAttr) -> Result<*mut ibv_ah, Error> {
        // SAFETY: the domain is live.
        let (parent, context) = unsafe { (pd::from_raw::<P>(pd, "create_ah")?, (*pd).context) };
        let ah = self.context().create_ah(&parent.pd, attr)?;
        Ok(AhObject::<P>::boxed(
            ibv_ah { context, pd, handle: HANDLE },
            Ah { av: *ah.av(), ah: Destroyable::new(ah) },
        ))
    }

    unsafe fn destroy_ah(&self, ah: *mut ibv_ah) -> c_int {
        const VERB: &str = "destroy_ah";
        // SAFETY: the address handle is live.
        code(unsafe {
            let inner = check_handle(public(&raw const (*ah).handle), HANDLE, VERB)
                .and_then(|()| AhObject::<P>::own(ah, VERB));
            inner
                .and_then(|inner| inner.ah.destroy(VERB, |ah| ah.destroy()))
                .map(|()| drop(Box::from_raw(ah.cast::<AhObject<P>>())))
        })
    }
}

/// `ibv_create_ah(3)`.
///
/// # Safety
/// `pd` must be live; `attr` must point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    not_null_or_null!(pd, attr);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe { verb!((*pd).context, create_ah(pd, &ah_attr_from_c(&*attr))) })
}

/// `ibv_create_ah_from_wc(3)`.
///
/// # Safety
/// `pd` must be live, `wc` must point to a completion, and `grh` must point to the 40 bytes in
/// front of the received data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    not_null_or_null!(pd, wc);
    // SAFETY: guaranteed by the caller; the attributes are integers.
    unsafe {
        let mut attr: ibv_ah_attr = core::mem::zeroed();
        if init_ah_from_wc(device_ops((*pd).context), port_num, wc, grh, &raw mut attr) != 0 {
            return core::ptr::null_mut();
        }
        ibv_create_ah(pd, &raw mut attr)
    }
}

/// `ibv_destroy_ah(3)`.
///
/// # Safety
/// `ah` must be live and must not be used afterwards if the call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    not_null!(ah);
    // SAFETY: the address handle is live.
    unsafe { verb!((*ah).context, destroy_ah(ah)) }
}
