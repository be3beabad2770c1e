//! Queries of an id: `QUERY_ROUTE`; `QUERY` for addresses, GIDs, paths and services.

use core::mem::offset_of;

use uverbs_abi::ib_user_sa::{IbPathRecData, IbUserServiceRec};
use uverbs_abi::rdma_user_cm::{
    RDMA_USER_CM_CMD_QUERY, RDMA_USER_CM_CMD_QUERY_ROUTE, RDMA_USER_CM_QUERY_ADDR, RDMA_USER_CM_QUERY_GID,
    RDMA_USER_CM_QUERY_IB_SERVICE, RDMA_USER_CM_QUERY_PATH, RdmaUcmQuery, RdmaUcmQueryAddrResp,
    RdmaUcmQueryIbServiceResp, RdmaUcmQueryPathResp, RdmaUcmQueryRouteResp,
};
use verbs::{Error, Gid, Guid, Result};
use verbs_core::room;
use zerocopy::{FromBytes, IntoBytes};

use super::bad_reply;
use crate::channel::{Command, Ucma};
use crate::types::{Address, PathRecord, ServiceRecord};

/// The identity of an id's verbs device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceKey {
    /// The node GUID of the device.
    pub(crate) guid: Guid,
    /// The kernel's index of the device; `None` if the kernel does not report it.
    pub(crate) index: Option<u32>,
}

/// The addresses and the device of an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// The local address, once the id is bound.
    pub(crate) local: Option<Address>,
    /// The peer's address, once it is resolved.
    pub(crate) peer: Option<Address>,
    /// The device, once the id has one.
    pub(crate) device: Option<DeviceKey>,
    /// The number of the device's port, from 1.
    pub(crate) port_num: u8,
    /// The partition key.
    pub(crate) pkey: u16,
}

/// The GIDs of both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gids {
    /// The GID of this side.
    pub(crate) local: Gid,
    /// The peer's GID.
    pub(crate) peer: Gid,
}

/// The `ibdev_index` that stands for "not reported".
const NO_INDEX: u32 = u32::MAX;

/// The number of paths to request. The kernel has at most a primary and an alternate path for each
/// direction.
const MAX_PATHS: usize = 6;

/// The number of services to request at first.
const FIRST_SERVICES: usize = 6;

/// The maximum number of services in a reply, whose length has 16 bits.
const MAX_SERVICES: usize = (u16::MAX as usize - size_of::<RdmaUcmQueryIbServiceResp>()) / SERVICE;

const SERVICE: usize = size_of::<IbUserServiceRec>();

fn query(ucma: &Ucma, verb: &'static str, id: u32, option: u32, reply: &mut [u8]) -> Result<()> {
    let request = RdmaUcmQuery { response: 0, id, option };
    let offset = offset_of!(RdmaUcmQuery, response);
    ucma.write(verb, Command::with_reply(RDMA_USER_CM_CMD_QUERY, request.as_bytes(), offset, reply))
}

/// Returns the device in a reply. The reply's GUID is big-endian.
fn device(node_guid: u64, ibdev_index: u32) -> Option<DeviceKey> {
    (node_guid != 0).then(|| DeviceKey {
        guid: Guid::from_be_bytes(node_guid.to_ne_bytes()),
        index: (ibdev_index != NO_INDEX).then_some(ibdev_index),
    })
}

/// Returns the IP addresses, the GIDs, the device and the paths of an id.
///
/// # Errors
/// Any errno the kernel returns; notably `ENXIO` once the device is gone, `EIO` from older kernels.
pub(crate) fn query_route(ucma: &Ucma, id: u32) -> Result<(Addresses, Gids, Vec<PathRecord>)> {
    let mut reply = RdmaUcmQueryRouteResp { ibdev_index: NO_INDEX, ..RdmaUcmQueryRouteResp::default() };
    let request = RdmaUcmQuery { response: 0, id, option: 0 };
    let command = Command::with_reply(
        RDMA_USER_CM_CMD_QUERY_ROUTE,
        request.as_bytes(),
        offset_of!(RdmaUcmQuery, response),
        reply.as_mut_bytes(),
    );
    ucma.write("query_route", command)?;
    // Without a path, the first record holds only the GIDs and the partition key.
    let [first, _] = &reply.ib_route;
    let addresses = Addresses {
        local: Address::from_in6(&reply.src_addr),
        peer: Address::from_in6(&reply.dst_addr),
        device: device(reply.node_guid, reply.ibdev_index),
        port_num: reply.port_num,
        pkey: first.pkey.to_native(),
    };
    let gids = Gids { local: Gid(first.sgid), peer: Gid(first.dgid) };
    let count = usize::try_from(reply.num_paths).unwrap_or(usize::MAX);
    let paths = reply.ib_route.iter().take(count).map(PathRecord::from).collect();
    Ok((addresses, gids, paths))
}

/// Returns the addresses and the device of an id.
///
/// # Errors
/// Same as [`query_route`].
pub(crate) fn query_addr(ucma: &Ucma, id: u32) -> Result<Addresses> {
    let mut reply = RdmaUcmQueryAddrResp { ibdev_index: NO_INDEX, ..RdmaUcmQueryAddrResp::default() };
    query(ucma, "query_addr", id, RDMA_USER_CM_QUERY_ADDR, reply.as_mut_bytes())?;
    Ok(Addresses {
        local: Address::from_storage(&reply.src_addr, reply.src_size),
        peer: Address::from_storage(&reply.dst_addr, reply.dst_size),
        device: device(reply.node_guid, reply.ibdev_index),
        port_num: reply.port_num,
        pkey: u16::from_be(reply.pkey),
    })
}

/// Returns the GIDs of both ends.
///
/// # Errors
/// The errors of [`query_route`]; `EIO` for a reply without GIDs.
pub(crate) fn query_gid(ucma: &Ucma, id: u32) -> Result<Gids> {
    const VERB: &str = "query_gid";
    let mut reply = RdmaUcmQueryAddrResp::default();
    query(ucma, VERB, id, RDMA_USER_CM_QUERY_GID, reply.as_mut_bytes())?;
    let gid = |address| match address {
        Some(Address::Ib(address)) => Ok(address.gid),
        _ => Err(bad_reply(VERB, "GIDs that are no InfiniBand addresses")),
    };
    Ok(Gids {
        local: gid(Address::from_storage(&reply.src_addr, reply.src_size))?,
        peer: gid(Address::from_storage(&reply.dst_addr, reply.dst_size))?,
    })
}

/// Returns the paths of an id, at most six.
///
/// # Errors
/// Same as [`query_route`].
pub(crate) fn query_path(ucma: &Ucma, id: u32) -> Result<Vec<PathRecord>> {
    const HEADER: usize = size_of::<RdmaUcmQueryPathResp>();
    const RECORD: usize = size_of::<IbPathRecData>();
    let mut reply = [0; HEADER + MAX_PATHS * RECORD];
    query(ucma, "query_path", id, RDMA_USER_CM_QUERY_PATH, &mut reply)?;
    let (head, records) = reply.split_at(HEADER);
    let count = RdmaUcmQueryPathResp::read_from_bytes(head).unwrap_or_default().num_paths;
    let records = records.chunks_exact(RECORD).filter_map(|bytes| IbPathRecData::read_from_bytes(bytes).ok());
    Ok(records.take(count as usize).map(|record| PathRecord::from_wire(&record)).collect())
}

/// Returns the resolved services, at most as many as a reply of 64 KiB can hold.
///
/// # Errors
/// `ENOSYS` or `EINVAL` from kernels without the query; any other errno the kernel returns.
pub(crate) fn query_ib_service(ucma: &Ucma, id: u32) -> Result<Vec<ServiceRecord>> {
    const HEADER: usize = size_of::<RdmaUcmQueryIbServiceResp>();
    let mut services = FIRST_SERVICES;
    loop {
        let mut reply = room::copies(0, HEADER + services * SERVICE)
            .map_err(|errno| Error::new("query_addrinfo", "", errno))?;
        query(ucma, "query_addrinfo", id, RDMA_USER_CM_QUERY_IB_SERVICE, &mut reply)?;
        let (head, records) = reply.split_at(HEADER);
        let found = RdmaUcmQueryIbServiceResp::read_from_bytes(head).unwrap_or_default().num_service_recs;
        let found = usize::try_from(found).unwrap_or(usize::MAX);
        // Repeats the query once, with space for all services that the kernel reports.
        if found > services && services == FIRST_SERVICES {
            services = found.min(MAX_SERVICES);
            continue;
        }
        let records =
            records.chunks_exact(SERVICE).filter_map(|bytes| IbUserServiceRec::read_from_bytes(bytes).ok());
        return Ok(records.take(found).map(|record| ServiceRecord::from(&record)).collect());
    }
}
