//! The addresses and paths in an id's struct, kept up to date with the id of the crate `rdmacm`.
//!
//! # Safety
//! See [`rdmacm`](super). The length of a `sockaddr` follows from its family; the address fields of
//! an id have space for any family.
#![allow(unsafe_code)]

use core::ffi::c_int;

use libc::{sockaddr, sockaddr_storage};
use rdmacm::{Address, CmId, PathRecord};
use verbs_core::Errno;

use super::device::DeviceOfId;
use super::id::private;
use super::{NO_ADDRESS, NO_DEVICE, Result, logged, no_memory, refuse};
use crate::abi::c::{ibv_sa_path_rec, rdma_cm_id};
use crate::abi::convert::gid_to_c;

/// The length of an InfiniBand address in bytes.
pub(super) const IB_LEN: usize = 48;

/// Returns the bytes of a C address; `None` for null and for an unknown family.
///
/// # Safety
/// `address` must be null, or as long as its family requires.
pub(super) unsafe fn bytes<'a>(address: *const sockaddr) -> Option<&'a [u8]> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the family is present in each address.
    let len = match c_int::from(unsafe { (&raw const (*address).sa_family).read_unaligned() }) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        libc::AF_IB => IB_LEN,
        _ => return None,
    };
    // SAFETY: guaranteed by the caller.
    Some(unsafe { core::slice::from_raw_parts(address.cast(), len) })
}

/// Reads a C address. Returns `None` for null and for an unknown family.
///
/// # Safety
/// Same as [`bytes`].
pub(super) unsafe fn parse(address: *const sockaddr) -> Option<Address> {
    // SAFETY: guaranteed by the caller.
    unsafe { bytes(address) }.and_then(Address::from_sockaddr)
}

/// Reads an address that the program passed to a call.
///
/// # Errors
/// `EINVAL` for null and for an unknown family.
///
/// # Safety
/// Same as [`bytes`].
pub(super) unsafe fn read(verb: &'static str, address: *const sockaddr) -> Result<Address> {
    // SAFETY: guaranteed by the caller.
    unsafe { parse(address) }.ok_or_else(|| refuse(verb, Errno::INVAL, NO_ADDRESS))
}

/// Writes an address into the struct of an id.
///
/// # Safety
/// `to` must have space for a `sockaddr_storage`.
pub(super) unsafe fn write(to: *mut sockaddr_storage, address: Option<Address>) {
    if let Some((bytes, len)) = address.and_then(|address| address.to_sockaddr()) {
        // SAFETY: guaranteed by the caller; no address is longer.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), len) };
    }
}

/// Copies the addresses of an id into its struct and sets the id's device once it is known.
///
/// # Errors
/// Any error from the queries or from opening the device.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn copy_addresses(id: *mut rdma_cm_id) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let private = private(id);
        let cm = private.cm()?;
        write(&raw mut (*id).route.addr.src.src_storage, cm.local_addr().map_err(logged)?);
        write(&raw mut (*id).route.addr.dst.dst_storage, cm.peer_addr().map_err(logged)?);
        let mut state = private.state();
        if state.device.is_some() {
            return Ok(());
        }
        if let Some(port_num) = cm.port_num().map_err(logged)? {
            let device = DeviceOfId::get(&cm.device().map_err(logged)?)?;
            (*id).verbs = device.context;
            (*id).pd = device.pd;
            (*id).port_num = port_num;
            state.device = Some(device);
            let pkey = cm.pkey().map_err(logged)?.unwrap_or_default();
            (*id).route.addr.addr.ibaddr.pkey = pkey.to_be();
        }
    }
    Ok(())
}

/// Copies the GIDs of an id into its struct.
///
/// # Errors
/// Any error from the query.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn copy_gids(id: *mut rdma_cm_id) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (local, peer) = private(id).call(CmId::gids)?;
        (*id).route.addr.addr.ibaddr.sgid = gid_to_c(&local);
        (*id).route.addr.addr.ibaddr.dgid = gid_to_c(&peer);
    }
    Ok(())
}

/// Copies the paths of an id into its struct.
///
/// # Errors
/// Any error from the query; `ENOMEM` if memory is short.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn copy_paths(id: *mut rdma_cm_id) -> Result {
    // SAFETY: guaranteed by the caller; the memory has space for that many records.
    unsafe {
        let paths = private(id).call(CmId::paths)?;
        if paths.is_empty() {
            return Ok(());
        }
        let records: *mut ibv_sa_path_rec = libc::calloc(paths.len(), size_of::<ibv_sa_path_rec>()).cast();
        if records.is_null() {
            return Err(no_memory("resolve_route"));
        }
        for (at, path) in paths.iter().enumerate() {
            records.add(at).write(record(path));
        }
        libc::free((*id).route.path_rec.cast());
        (*id).route.path_rec = records;
        (*id).route.num_paths = paths.len() as c_int;
    }
    Ok(())
}

/// Converts a path to the C struct.
fn record(path: &PathRecord) -> ibv_sa_path_rec {
    /// The selector that means an exact value.
    const EXACTLY: u8 = 2;
    ibv_sa_path_rec {
        dgid: gid_to_c(&path.dgid),
        sgid: gid_to_c(&path.sgid),
        dlid: path.dlid.to_be(),
        slid: path.slid.to_be(),
        raw_traffic: 0,
        flow_label: path.flow_label.to_be(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        reversible: path.reversible.into(),
        numb_path: 1,
        pkey: path.pkey.to_be(),
        sl: path.sl,
        mtu_selector: EXACTLY,
        mtu: path.mtu.0,
        rate_selector: EXACTLY,
        rate: path.rate.0,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.packet_life_time,
        preference: path.preference,
    }
}

/// Updates the struct of an id whose address has been resolved.
///
/// # Errors
/// `ENODEV` for an id without a device; any error from the queries.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn resolved(id: *mut rdma_cm_id) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        copy_addresses(id)?;
        if (*id).verbs.is_null() {
            return Err(refuse("resolve_addr", Errno::NODEV, NO_DEVICE));
        }
        copy_gids(id)
    }
}

/// Fills in the struct of a connection request's id.
///
/// # Errors
/// Any error from the queries.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn requested(id: *mut rdma_cm_id) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        copy_addresses(id)?;
        copy_gids(id)?;
        copy_paths(id)
    }
}

#[cfg(test)]
mod tests {
    use rdmacm::IbAddress;
    use verbs_core::types::{Gid, Mtu, Rate};

    use super::*;

    #[repr(align(8))]
    struct Storage([u8; 128]);

    fn stored(address: Address) -> Storage {
        let mut storage = Storage([0; 128]);
        // SAFETY: the storage is large enough.
        unsafe { write((&raw mut storage.0).cast(), Some(address)) };
        storage
    }

    #[test]
    fn addresses_of_each_family_survive_the_way_to_c_and_back() {
        let ib = IbAddress::new(Gid([7; 16]), rdmacm::PortSpace::TCP, 80);
        for address in [
            Address::from(([192, 0, 2, 1], 7471)),
            Address::from((std::net::Ipv6Addr::LOCALHOST, 7471)),
            ib.into(),
        ] {
            let storage = stored(address);
            // SAFETY: the storage holds an address.
            assert_eq!(unsafe { parse((&raw const storage.0).cast()) }, Some(address));
        }
    }

    #[test]
    fn an_address_of_an_unknown_family_and_none_are_refused() {
        let storage = Storage([77; 128]);
        // SAFETY: null is allowed; the storage holds a family.
        unsafe {
            assert_eq!(parse((&raw const storage.0).cast()), None);
            assert_eq!(read("bind_addr", core::ptr::null()), Err(Errno::INVAL));
        }
    }

    #[test]
    fn a_path_has_its_numbers_in_network_order() {
        let path = PathRecord {
            dgid: Gid([1; 16]),
            sgid: Gid([2; 16]),
            dlid: 0x304,
            slid: 0x506,
            flow_label: 0xa_bcde,
            hop_limit: 64,
            traffic_class: 104,
            reversible: true,
            pkey: 0xfffe,
            sl: 3,
            mtu: Mtu::MTU_4096,
            rate: Rate(2),
            packet_life_time: 18,
            preference: 1,
        };
        let record = record(&path);
        assert_eq!(record.flow_label.to_ne_bytes(), [0, 0x0a, 0xbc, 0xde]);
        assert_eq!((record.dlid.to_ne_bytes(), record.pkey.to_ne_bytes()), ([3, 4], [0xff, 0xfe]));
        assert_eq!((record.mtu_selector, record.mtu, record.reversible), (2, 5, 1));
    }
}
