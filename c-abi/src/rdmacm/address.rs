//! Binding ids, resolving addresses and routes, and listening.
//!
//! # Safety
//! See [`rdmacm`](super).
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_uint};
use std::time::Duration;

use libc::sockaddr;
use rdmacm::{Address, EventType};
use verbs_core::Errno;

use super::addrinfo::{CONTRADICTION, Failure, look_up, rdma_freeaddrinfo, text_of};
use super::id::private;
use super::lifecycle::complete_call;
use super::route::{copy_addresses, copy_gids, parse, read, write};
use super::{Result, given, given_room, minus_one, refuse, status};
use crate::abi::c::{RAI_DNS, RAI_SA, rdma_addrinfo, rdma_cm_id};

/// Binds an id.
///
/// # Errors
/// Same as [`CmId::bind_addr`](rdmacm::CmId::bind_addr).
///
/// # Safety
/// `id` must be live; `address` must be as long as its family requires.
pub(super) unsafe fn bind(id: *mut rdma_cm_id, address: *const sockaddr) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let address = read("bind_addr", address)?;
        private(id).call(|cm| cm.bind_addr(address))?;
        copy_addresses(id)?;
        copy_gids(id)
    }
}

/// `rdma_bind_addr(3)`.
///
/// # Safety
/// `id` must be live; `addr` must be as long as its family requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    given!(id);
    given_room!();
    // SAFETY: guaranteed by the caller.
    status(unsafe { bind(id, addr) })
}

/// `rdma_resolve_addr(3)`.
///
/// # Safety
/// `id` must be live. Each address must be as long as its family requires, except that `src_addr`
/// may be null.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    given!(id);
    given_room!();
    // SAFETY: guaranteed by the caller.
    status(unsafe { resolve(id, src_addr, dst_addr, timeout_ms) })
}

/// Starts to resolve a peer's address. For a synchronous id, waits for the result.
///
/// # Errors
/// Same as [`CmId::resolve_addr`](rdmacm::CmId::resolve_addr) and [`complete_call`].
///
/// # Safety
/// Same as [`rdma_resolve_addr`].
pub(super) unsafe fn resolve(
    id: *mut rdma_cm_id,
    source: *const sockaddr,
    destination: *const sockaddr,
    timeout_ms: c_int,
) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let to = read("resolve_addr", destination)?;
        let from = if source.is_null() { None } else { Some(read("resolve_addr", source)?) };
        // The address is written before the event arrives with the address as the kernel sees it.
        let before = (*id).route.addr.dst;
        write(&raw mut (*id).route.addr.dst.dst_storage, Some(to));
        private(id)
            .call(|cm| cm.resolve_addr(from, to, milliseconds(timeout_ms)))
            .inspect_err(|_| (*id).route.addr.dst = before)?;
        complete_call(id)
    }
}

/// `rdma_resolve_route(3)`. The path comes from the connection manager; ibacm is not used.
///
/// # Safety
/// `id` must be live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    given!(id);
    given_room!();
    // SAFETY: guaranteed by the caller.
    status(unsafe { resolve_route(id, timeout_ms) })
}

/// Starts to resolve the route. For a synchronous id, waits for the result.
///
/// # Errors
/// Same as [`CmId::resolve_route`](rdmacm::CmId::resolve_route) and [`complete_call`].
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        private(id).call(|cm| cm.resolve_route(milliseconds(timeout_ms)))?;
        complete_call(id)
    }
}

/// Converts a timeout in milliseconds. Like the kernel, treats a negative timeout as infinite.
fn milliseconds(timeout: c_int) -> Duration {
    u64::try_from(timeout).map_or(Duration::MAX, Duration::from_millis)
}

/// `rdma_listen(3)`.
///
/// # Safety
/// `id` must be live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    given!(id);
    given_room!();
    // The kernel treats a negative backlog as a large one.
    let backlog = backlog as c_uint;
    // SAFETY: guaranteed by the caller.
    status(unsafe { private(id).call(|cm| cm.listen(backlog)).and_then(|()| copy_addresses(id)) })
}

/// Returns the port of an address in network byte order; 0 without an address.
fn port(address: Option<Address>) -> u16 {
    address.map_or(0, |address| address.port()).to_be()
}

/// `rdma_get_src_port(3)`: returns the port in network byte order.
///
/// # Safety
/// `id` must be live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    if id.is_null() {
        return 0;
    }
    // SAFETY: guaranteed by the caller.
    port(unsafe { parse(&raw const (*id).route.addr.src.src_addr) })
}

/// `rdma_get_dst_port(3)`: returns the port in network byte order.
///
/// # Safety
/// `id` must be live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    if id.is_null() {
        return 0;
    }
    // SAFETY: guaranteed by the caller.
    port(unsafe { parse(&raw const (*id).route.addr.dst.dst_addr) })
}

/// `rdma_resolve_addrinfo(3)`: like [`rdma_getaddrinfo`](super::addrinfo::rdma_getaddrinfo), with
/// an event once the lookup is done.
///
/// # Safety
/// `id` must be null or live; otherwise same as
/// [`rdma_getaddrinfo`](super::addrinfo::rdma_getaddrinfo).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    given!(id);
    given_room!();
    // SAFETY: guaranteed by the caller.
    status(unsafe {
        let private = private(id);
        if core::mem::replace(&mut private.state().is_resolving, true) {
            return minus_one(refuse("resolve_addrinfo", Errno::BUSY, "a query of the id is pending"));
        }
        resolve_names(id, node, service, hints.as_ref()).inspect_err(|_| private.state().is_resolving = false)
    })
}

/// Looks up addresses and sends the id an event once they are known. For a synchronous id, waits
/// for the event.
///
/// # Errors
/// `EOPNOTSUPP` for contradictory hints; `ENOENT` if `getaddrinfo(3)` fails; the other errors of
/// the lookup; any error from writing the event.
///
/// # Safety
/// Same as [`rdma_resolve_addrinfo`].
unsafe fn resolve_names(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result {
    let flags = hints.map_or(0, |hints| hints.ai_flags);
    let by_administrator = flags & RAI_SA != 0;
    if by_administrator && (flags & RAI_DNS != 0 || !node.is_null()) {
        return Err(refuse("resolve_addrinfo", Errno::OPNOTSUPP, CONTRADICTION));
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        let private = private(id);
        if by_administrator {
            let service = text_of(service)?;
            private.call(|cm| cm.resolve_service(service))?;
        } else {
            let found = look_up(node, service, hints).map_err(|failure| match failure {
                Failure::Errno(errno) => errno,
                Failure::Names(_) => {
                    refuse("resolve_addrinfo", Errno::NOENT, "getaddrinfo(3) finds no such name")
                }
            })?;
            let before = core::mem::replace(&mut private.state().resolved.0, found);
            rdma_freeaddrinfo(before);
            let told = private.call(|cm| cm.write_internal_event(0, EventType::ADDRINFO_RESOLVED.0.into()));
            if let Err(errno) = told {
                rdma_freeaddrinfo(core::mem::take(&mut private.state().resolved).0);
                return Err(errno);
            }
        }
        complete_call(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_timeout_is_endless() {
        assert_eq!(milliseconds(-1), Duration::MAX);
        assert_eq!([0, 2000].map(milliseconds), [Duration::ZERO, Duration::from_secs(2)]);
    }
}
