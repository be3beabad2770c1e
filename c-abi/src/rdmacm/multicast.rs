//! Multicast groups.
//!
//! An event's key identifies the membership. Joining a group holds the lock of the id's
//! memberships, so that another thread that reads the event finds the new membership.
//!
//! # Safety
//! See [`rdmacm`](super).
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use libc::sockaddr;
use verbs_core::Errno;
use verbs_core::fork::ForkLock;

use super::group::Group;
use super::id::private;
use super::lifecycle::complete_call;
use super::route;
use super::tally::Tally;
use super::{NO_ADDRESS, Result, given, given_room, refuse, status};
use crate::abi::c::{
    RDMA_CM_JOIN_MC_ATTR_ADDRESS, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, RDMA_CM_JOIN_MC_ATTR_RESERVED,
    RDMA_MC_JOIN_FLAG_RESERVED, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, rdma_cm_id, rdma_cm_join_mc_attr_ex,
};
use crate::abi::convert::gid_to_c;
use crate::abi::errno::UNKNOWN_MEMBERS;
use crate::verbs::qp::ibv_detach_mcast;

/// Joins a group. For a synchronous id, waits for the result.
///
/// # Errors
/// `EINVAL` if the address family is unknown; the errors of
/// [`CmId::join_multicast`](rdmacm::CmId::join_multicast).
///
/// # Safety
/// `id` must be live; `address` must be as long as its family requires.
unsafe fn join(
    id: *mut rdma_cm_id,
    address: *const sockaddr,
    only_sends: bool,
    context: *mut c_void,
) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let to = route::read("join_multicast", address)?;
        let address = route::bytes(address).unwrap_or_default().to_vec();
        let private = private(id);
        {
            let mut groups = private.groups();
            let key = private.call(|cm| cm.join_multicast(to, only_sends))?;
            let context = context.expose_provenance();
            let (attached, tally) = (ForkLock::new(None), Tally::default());
            groups.push(Arc::new(Group { key, address, context, only_sends, attached, tally }));
        }
        complete_call(id)
    }
}

/// `rdma_join_multicast(3)`.
///
/// # Safety
/// `id` must be live; `addr` must be as long as its family requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    given!(id);
    given_room!();
    // SAFETY: guaranteed by the caller.
    status(unsafe { join(id, addr, false, context) })
}

/// `rdma_join_multicast_ex(3)`.
///
/// # Safety
/// `id` must be live; `attr` must point to attributes with an address as long as its family
/// requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    given!(id, attr);
    given_room!();
    // SAFETY: guaranteed by the caller.
    status(unsafe {
        match only_sends(&*attr) {
            Ok(only_sends) => join(id, (*attr).addr, only_sends, context),
            Err(errno) => Err(errno),
        }
    })
}

/// Returns whether the attributes request a send-only membership.
///
/// # Errors
/// `EOPNOTSUPP` for fields that no rdma-core release defines; `EINVAL` if the address or the flags
/// are missing, and for flags that no rdma-core release defines.
fn only_sends(attr: &rdma_cm_join_mc_attr_ex) -> Result<bool> {
    const NEEDED: u32 = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
        return Err(refuse("join_multicast_ex", Errno::OPNOTSUPP, UNKNOWN_MEMBERS));
    }
    if attr.comp_mask & NEEDED != NEEDED || attr.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED {
        return Err(refuse("join_multicast_ex", Errno::INVAL, "no address or flags, or unknown flags"));
    }
    Ok(attr.join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER)
}

/// `rdma_leave_multicast(3)`: waits until the group's events are acknowledged.
///
/// # Safety
/// `id` must be live; `addr` must be as long as its family requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    given!(id);
    // SAFETY: guaranteed by the caller.
    status(unsafe { leave(id, addr) })
}

/// Leaves a multicast group.
///
/// # Errors
/// `EINVAL` if the address family is unknown; `EADDRNOTAVAIL` if the id has not joined the group;
/// the errors of [`CmId::leave_multicast`](rdmacm::CmId::leave_multicast).
///
/// # Safety
/// Same as [`rdma_leave_multicast`].
unsafe fn leave(id: *mut rdma_cm_id, address: *const sockaddr) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let address =
            route::bytes(address).ok_or_else(|| refuse("leave_multicast", Errno::INVAL, NO_ADDRESS))?;
        let private = private(id);
        let group = {
            let mut groups = private.groups();
            // As in rdma-core, this is the most recent membership.
            let at = groups.iter().rposition(|group| group.address == address);
            let missing = || refuse("leave_multicast", Errno::ADDRNOTAVAIL, "the id is not in the group");
            groups.remove(at.ok_or_else(missing)?)
        };
        let attached = group.attached.lock_or(|| None).take();
        if let (Some((gid, lid)), false) = (attached, (*id).qp.is_null()) {
            let of_c = gid_to_c(&gid);
            ibv_detach_mcast((*id).qp, &raw const of_c, lid);
        }
        private.call(|cm| cm.leave_multicast(group.key))?;
        group.tally.wait();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_a_membership_need_an_address_and_known_flags() {
        let of = |comp_mask, join_flags| {
            only_sends(&rdma_cm_join_mc_attr_ex { comp_mask, join_flags, addr: core::ptr::null_mut() })
        };
        assert_eq!((of(3, 0), of(3, 1)), (Ok(false), Ok(true)));
        assert_eq!((of(1, 0), of(2, 0), of(3, 2)), (Err(Errno::INVAL), Err(Errno::INVAL), Err(Errno::INVAL)));
        assert_eq!(of(7, 0), Err(Errno::OPNOTSUPP));
    }
}
