//! Addresses: `BIND_IP`, `BIND`, `RESOLVE_IP`, `RESOLVE_ADDR`, `RESOLVE_ROUTE`,
//! `RESOLVE_IB_SERVICE`.

use uverbs_abi::rdma_user_cm::{
    RDMA_USER_CM_CMD_BIND, RDMA_USER_CM_CMD_BIND_IP, RDMA_USER_CM_CMD_RESOLVE_ADDR,
    RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE, RDMA_USER_CM_CMD_RESOLVE_IP, RDMA_USER_CM_CMD_RESOLVE_ROUTE,
    RdmaUcmBind, RdmaUcmBindIp, RdmaUcmResolveAddr, RdmaUcmResolveIbService, RdmaUcmResolveIp,
    RdmaUcmResolveRoute,
};
use verbs::{Errno, Error, Result};
use zerocopy::IntoBytes;

use super::family_error;
use crate::channel::{Command, Ucma};
use crate::types::{Address, Service};

const BIND: &str = "bind_addr";
const RESOLVE: &str = "resolve_addr";

/// Binds an id to an IP address.
///
/// # Errors
/// `EAFNOSUPPORT` for another family; otherwise the same as [`bind`].
#[doc(alias = "rdma_bind_addr")]
pub(crate) fn bind_ip(ucma: &Ucma, id: u32, address: &Address) -> Result<()> {
    let addr = address.to_in6().ok_or_else(|| family_error(BIND, address))?;
    let request = RdmaUcmBindIp { response: 0, addr, id };
    ucma.write(BIND, Command::new(RDMA_USER_CM_CMD_BIND_IP, request.as_bytes()))
}

/// Binds an id to an address of any family.
///
/// # Errors
/// `EADDRINUSE` for a port used by another id, `EADDRNOTAVAIL` for an address without an interface,
/// `ENODEV` for an interface without an RDMA device; any other errno the kernel returns.
#[doc(alias = "rdma_bind_addr")]
pub(crate) fn bind(ucma: &Ucma, id: u32, address: &Address) -> Result<()> {
    let (addr, addr_size) = address.to_storage().ok_or_else(|| family_error(BIND, address))?;
    let request = RdmaUcmBind { id, addr_size, reserved: 0, addr };
    ucma.write(BIND, Command::new(RDMA_USER_CM_CMD_BIND, request.as_bytes()))
}

/// Starts resolving an IP address.
///
/// # Errors
/// `EAFNOSUPPORT` for another family; otherwise the same as [`resolve_addr`].
#[doc(alias = "rdma_resolve_addr")]
pub(crate) fn resolve_ip(
    ucma: &Ucma,
    id: u32,
    source: Option<&Address>,
    destination: &Address,
    timeout_ms: u32,
) -> Result<()> {
    let in6 = |address: &Address| address.to_in6().ok_or_else(|| family_error(RESOLVE, address));
    let request = RdmaUcmResolveIp {
        src_addr: source.map(in6).transpose()?.unwrap_or_default(),
        dst_addr: in6(destination)?,
        id,
        timeout_ms,
    };
    ucma.write(RESOLVE, Command::new(RDMA_USER_CM_CMD_RESOLVE_IP, request.as_bytes()))
}

/// Starts resolving an address of any family, from `source` or an address chosen by the routing
/// table. The result is an event.
///
/// # Errors
/// `EINVAL` for an id in another state; any other errno the kernel returns immediately, notably
/// `ENETUNREACH` without a route.
#[doc(alias = "rdma_resolve_addr")]
pub(crate) fn resolve_addr(
    ucma: &Ucma,
    id: u32,
    source: Option<&Address>,
    destination: &Address,
    timeout_ms: u32,
) -> Result<()> {
    let storage = |address: &Address| address.to_storage().ok_or_else(|| family_error(RESOLVE, address));
    let (src_addr, src_size) = source.map(storage).transpose()?.unwrap_or_default();
    let (dst_addr, dst_size) = storage(destination)?;
    let request = RdmaUcmResolveAddr { id, timeout_ms, src_size, dst_size, reserved: 0, src_addr, dst_addr };
    ucma.write(RESOLVE, Command::new(RDMA_USER_CM_CMD_RESOLVE_ADDR, request.as_bytes()))
}

/// Starts resolving the route to the resolved address. The result is an event.
///
/// # Errors
/// `EINVAL` for an id without a resolved address; any other errno the kernel returns.
#[doc(alias = "rdma_resolve_route")]
pub(crate) fn resolve_route(ucma: &Ucma, id: u32, timeout_ms: u32) -> Result<()> {
    let request = RdmaUcmResolveRoute { id, timeout_ms };
    ucma.write("resolve_route", Command::new(RDMA_USER_CM_CMD_RESOLVE_ROUTE, request.as_bytes()))
}

/// Starts looking up a service at the subnet administrator. The result is an event.
///
/// # Errors
/// `EINVAL` for a name that is too long or from kernels without the command; any other errno the
/// kernel returns.
#[doc(alias = "rdma_resolve_addrinfo")]
pub(crate) fn resolve_ib_service(ucma: &Ucma, id: u32, service: Service<'_>) -> Result<()> {
    const VERB: &str = "resolve_addrinfo";
    let ibs = service.to_kernel().map_err(|cause| Error::new(VERB, "", Errno::INVAL).because(cause))?;
    let request = RdmaUcmResolveIbService { id, reserved: 0, ibs };
    ucma.write(VERB, Command::new(RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE, request.as_bytes()))
}
