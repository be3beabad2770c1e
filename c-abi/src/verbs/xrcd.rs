//! XRC domains.
//!
//! # Safety
//! See the crate documentation. The kernel rejects a descriptor that is not open.
#![allow(unsafe_code)]

use core::ffi::c_int;
use std::os::fd::BorrowedFd;

use verbs_core::provider::{ContextOps as _, Provider};
use verbs_core::{Errno, Error};

use crate::abi::c::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, IBV_XRCD_INIT_ATTR_RESERVED, ibv_context, ibv_xrcd,
    ibv_xrcd_init_attr,
};
use crate::abi::errno::{not_null, not_null_or_null, pointer, refused};
use crate::handle::context::{ProviderContext, verb};
use crate::handle::destroyable::Destroyable;
use crate::handle::object::Object;

pub(crate) type XrcdObject<P> = Object<ibv_xrcd, Destroyable<<P as Provider>::Xrcd>>;

/// Operations on XRC domains.
///
/// # Safety
/// The methods have the same contracts as the exported functions.
impl<P: Provider> ProviderContext<P> {
    unsafe fn open_xrcd(
        &self,
        context: *mut ibv_context,
        file: Option<BorrowedFd<'_>>,
        oflags: c_int,
    ) -> Result<*mut ibv_xrcd, Error> {
        let xrcd = self.context().open_xrcd(file, oflags)?;
        Ok(XrcdObject::<P>::boxed(ibv_xrcd { context }, Destroyable::new(xrcd)))
    }

    unsafe fn close_xrcd(&self, xrcd: *mut ibv_xrcd) -> c_int {
        // SAFETY: the domain is live.
        unsafe { XrcdObject::<P>::destroy(xrcd, "close_xrcd") }
    }
}

/// Returns the file descriptor for an XRC domain, or -1 for a domain without a file.
///
/// # Errors
/// `EOPNOTSUPP` for members that no rdma-core release defines; `EINVAL` if the file or its flags
/// are missing; `EBADF` for a negative number other than -1.
fn check(attr: &ibv_xrcd_init_attr) -> Result<c_int, Errno> {
    const NEEDED: u32 = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    if attr.comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED {
        Err(Errno::OPNOTSUPP)
    } else if attr.comp_mask != NEEDED {
        Err(Errno::INVAL)
    } else if attr.fd < -1 {
        Err(Errno::BADF)
    } else {
        Ok(attr.fd)
    }
}

/// `ibv_open_xrcd(3)`.
///
/// # Safety
/// `context` must be open; `attr` must point to attributes.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    not_null_or_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe {
        let attr = &*attr;
        check(attr)
            .map_err(|errno| refused("open_xrcd", errno, "file and flags are needed, and nothing else"))
            .and_then(|fd| {
                let file = (fd >= 0).then(|| BorrowedFd::borrow_raw(fd));
                verb!(context, open_xrcd(context, file, attr.oflags))
            })
    })
}

/// `ibv_close_xrcd(3)`.
///
/// # Safety
/// `xrcd` must be live and must not be used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    not_null!(xrcd);
    // SAFETY: the domain is live.
    unsafe { verb!((*xrcd).context, close_xrcd(xrcd)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_needs_a_file_or_minus_one_and_flags() {
        let checked = |comp_mask, fd| check(&ibv_xrcd_init_attr { comp_mask, fd, oflags: 0 });
        let both = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        assert_eq!((checked(both, -1), checked(both, 7)), (Ok(-1), Ok(7)));
        assert_eq!(checked(both, -2), Err(Errno::BADF));
        for mask in [0, IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS] {
            assert_eq!(checked(mask, -1), Err(Errno::INVAL), "{mask}");
        }
        assert_eq!(checked(both | IBV_XRCD_INIT_ATTR_RESERVED, -1), Err(Errno::OPNOTSUPP));
    }
}
