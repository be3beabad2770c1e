//! Binding, resolving, listening; queries of addresses and paths.

use std::time::Duration;

use verbs::{Gid, Result};

use super::{CmId, explain};
use crate::cmd::query::Gids;
use crate::types::{Address, PathRecord, Service, ServiceRecord};

impl CmId {
    /// Binds the id to an address of this machine and a port. If the port is 0, the kernel chooses
    /// one. Connecting does not require binding first.
    ///
    /// The unspecified address (`0.0.0.0`, `::`) stands for all addresses. A listener bound to it
    /// accepts connections on all devices, including those that appear later. Such a listener has
    /// no device; only its requests do.
    ///
    /// # Errors
    /// - `EADDRINUSE` for a port used by another id.
    /// - `EADDRNOTAVAIL` or `ENODEV` for an address that no interface with an RDMA device has.
    /// - `EACCES` for a privileged port without the right to use it.
    /// - `EINVAL` for an id that is already bound or a link-local address without its scope.
    /// - `EAFNOSUPPORT` for a family that the kernel does not support.
    /// - Any other errno the kernel returns.
    ///
    /// # References
    /// `rdma_bind_addr(3)`
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind_addr(&self, address: impl Into<Address>) -> Result<()> {
        super::room("bind_addr")?;
        let address = address.into();
        let result = self.inner.backend.bind(&address);
        self.inner.explained(result.map_err(|error| explain::bind(error, &address)))
    }

    /// Starts resolving a peer's address, which selects the device that reaches it. The outcome is
    /// [`AddrResolved`](crate::EventKind::AddrResolved) or
    /// [`AddrError`](crate::EventKind::AddrError), with `EAFNOSUPPORT` for a listener whose devices
    /// have addresses of another family.
    ///
    /// The id is bound to `source` unless it is already bound; without a source, the routing table
    /// chooses the source address. The time-out is rounded up to milliseconds. If a listener in
    /// another process has to be queried for its soft devices, the limit is at least 2 s while that
    /// listener exists.
    ///
    /// # Errors
    /// - `EINVAL` for an id that is already resolved or connected, or bound to an address of
    ///   another family; for a link-local address without its scope.
    /// - `EAFNOSUPPORT` for a family that the kernel does not support.
    /// - [`EventChannel::kernel_error`](crate::EventChannel::kernel_error) for an address that no
    ///   soft device reaches, on a channel without kernel ids.
    /// - `EACCES` for a broadcast address or a destination that a route prohibits.
    /// - `EAGAIN`, `EPERM`, `EACCES` and `EMFILE` if a listener on this machine cannot be queried
    ///   for its soft devices, as in [`connect`](Self::connect).
    /// - Any other errno the kernel returns, notably the errors of [`bind_addr`](Self::bind_addr)
    ///   for the source, or `ENETUNREACH` without a route.
    ///
    /// # References
    /// `rdma_resolve_addr(3)`
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_addr(
        &self,
        source: Option<Address>,
        destination: impl Into<Address>,
        timeout: Duration,
    ) -> Result<()> {
        let destination = destination.into();
        let timeout_ms = milliseconds(timeout);
        let backend = &self.inner.backend;
        let resolved = backend.resolve_addr(source.as_ref(), &destination, timeout_ms);
        let local = || backend.addresses().map_or(source, |addresses| addresses.local.or(source));
        self.inner.explained(
            resolved.map_err(|error| explain::resolve(error, source.as_ref(), local, &destination)),
        )
    }

    /// Starts resolving the route to the peer. The outcome is
    /// [`RouteResolved`](crate::EventKind::RouteResolved) or
    /// [`RouteError`](crate::EventKind::RouteError).
    ///
    /// [`set_ib_path`](Self::set_ib_path) instead sets a known route.
    ///
    /// # Errors
    /// `EINVAL` for an id whose address is not resolved; any other errno the kernel returns.
    ///
    /// # References
    /// `rdma_resolve_route(3)`
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self, timeout: Duration) -> Result<()> {
        self.inner.explained(self.inner.backend.resolve_route(milliseconds(timeout)))
    }

    /// Starts looking up a service at the subnet administrator of an InfiniBand fabric. The outcome
    /// is [`AddrinfoResolved`](crate::EventKind::AddrinfoResolved) or
    /// [`AddrinfoError`](crate::EventKind::AddrinfoError). On success, [`services`](Self::services)
    /// returns the addresses.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](verbs::Cause::Limit) for a name of more than 63 bytes;
    /// `EINVAL` from kernels without the call; any other errno the kernel returns.
    ///
    /// # References
    /// `rdma_resolve_addrinfo(3)`
    #[doc(alias = "rdma_resolve_addrinfo")]
    pub fn resolve_service(&self, service: Service<'_>) -> Result<()> {
        self.inner.explained(self.inner.backend.resolve_service(service))
    }

    /// Returns the services that [`resolve_service`](Self::resolve_service) found.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `ENOSYS` from kernels without the call.
    ///
    /// # References
    /// `rdma_query_addrinfo(3)`
    #[doc(alias = "rdma_query_addrinfo")]
    pub fn services(&self) -> Result<Vec<ServiceRecord>> {
        self.inner.explained(self.inner.backend.services())
    }

    /// Listens for connection requests. At most `backlog` requests may be pending. 0 stands for the
    /// kernel's maximum (`net.rdma_ucm.max_backlog`). The kernel drops connection requests beyond
    /// this limit and rejects datagram requests. Peers repeat dropped requests every few seconds,
    /// 15 times by default.
    ///
    /// Each request is a [`ConnectRequest`](crate::EventKind::ConnectRequest). An unbound id
    /// listens on a port that the kernel chooses ([`local_addr`](Self::local_addr)).
    ///
    /// # Errors
    /// `EADDRINUSE` for a port used by another id; any other errno the kernel returns.
    ///
    /// # References
    /// `rdma_listen(3)`
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<()> {
        super::room("listen")?;
        self.inner.explained(self.inner.backend.listen(backlog))
    }

    /// Returns the local address and port; `None` for an unbound id.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `ENXIO` once the device is gone, `EIO` from older
    /// kernels.
    ///
    /// # References
    /// `rdma_get_local_addr(3)`, `rdma_get_src_port(3)`
    #[doc(alias = "rdma_get_local_addr")]
    #[doc(alias = "rdma_get_src_port")]
    pub fn local_addr(&self) -> Result<Option<Address>> {
        Ok(self.inner.explained(self.inner.backend.addresses())?.local)
    }

    /// Returns the peer's address and port; `None` for an id without a peer.
    ///
    /// # Errors
    /// Same as [`local_addr`](Self::local_addr).
    ///
    /// # References
    /// `rdma_get_peer_addr(3)`, `rdma_get_dst_port(3)`
    #[doc(alias = "rdma_get_peer_addr")]
    #[doc(alias = "rdma_get_dst_port")]
    pub fn peer_addr(&self) -> Result<Option<Address>> {
        Ok(self.inner.explained(self.inner.backend.addresses())?.peer)
    }

    /// Returns the number of the device's port, from 1; `None` for an id without a device.
    ///
    /// # Errors
    /// Same as [`local_addr`](Self::local_addr).
    pub fn port_num(&self) -> Result<Option<u8>> {
        let addresses = self.inner.explained(self.inner.backend.addresses())?;
        Ok(addresses.device.map(|_| addresses.port_num))
    }

    /// Returns the partition key; `None` for an id without a device.
    ///
    /// # Errors
    /// Same as [`local_addr`](Self::local_addr).
    pub fn pkey(&self) -> Result<Option<u16>> {
        let addresses = self.inner.explained(self.inner.backend.addresses())?;
        Ok(addresses.device.map(|_| addresses.pkey))
    }

    /// Returns the GIDs of this side and of the peer; zero if unknown.
    ///
    /// # Errors
    /// Same as [`local_addr`](Self::local_addr).
    pub fn gids(&self) -> Result<(Gid, Gid)> {
        let Gids { local, peer } = self.inner.explained(self.inner.backend.gids())?;
        Ok((local, peer))
    }

    /// Returns the paths of the route; empty before the route is resolved.
    ///
    /// # Errors
    /// Same as [`local_addr`](Self::local_addr).
    #[doc(alias = "rdma_route")]
    pub fn paths(&self) -> Result<Vec<PathRecord>> {
        self.inner.explained(self.inner.backend.paths())
    }
}

/// Returns a duration in whole milliseconds, rounded up and limited to the kernel's `int`.
fn milliseconds(duration: Duration) -> u32 {
    let most = i32::MAX as u128;
    duration.as_nanos().div_ceil(1_000_000).min(most) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_rounded_up_and_bounded() {
        for (duration, wanted) in [
            (Duration::ZERO, 0),
            (Duration::from_nanos(1), 1),
            (Duration::from_millis(2000), 2000),
            (Duration::MAX, i32::MAX as u32),
        ] {
            assert_eq!(milliseconds(duration), wanted, "{duration:?}");
        }
    }
}
