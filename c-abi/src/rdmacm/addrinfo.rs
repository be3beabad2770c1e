//! Looking up the addresses that an id binds or connects to, by host and service names.
//!
//! Names are resolved by `getaddrinfo(3)`. As in C, [`rdma_getaddrinfo`] returns its error codes.
//! The services of an InfiniBand subnet (`RAI_SA`) come from its subnet administrator and are
//! looked up through an id.
//!
//! # Safety
//! See [`rdmacm`](super). A `rdma_addrinfo` and everything it points to are allocated with
//! `malloc(3)`.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::{null, null_mut};

use libc::{addrinfo, sockaddr, socklen_t};
use rdmacm::{Address, CmId, EventChannel, EventKind, IbAddress, PortSpace, Service, ServiceRecord};
use verbs::{Context, Gid, LinkLayer, PortState};
use verbs_core::Errno;
use verbs_core::types::QpType;

use super::id::private;
use super::route;
use super::{NO_ADDRESS, Result, given, given_room, logged, minus_one, no_memory, refuse, status};
use crate::abi::c::{
    RAI_DNS, RAI_FAMILY, RAI_NUMERICHOST, RAI_PASSIVE, RAI_SA, RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP,
    RDMA_PS_UDP, rdma_addrinfo, rdma_cm_id,
};

/// Allocates zeroed memory.
///
/// # Errors
/// `ENOMEM` if memory is short.
fn zeroed<T>() -> Result<*mut T> {
    // SAFETY: any size is allowed.
    let memory: *mut T = unsafe { libc::calloc(1, size_of::<T>()) }.cast();
    if memory.is_null() { Err(no_memory("getaddrinfo")) } else { Ok(memory) }
}

/// Copies bytes into memory from `malloc(3)`.
///
/// # Errors
/// `ENOMEM` if memory is short.
fn copied(bytes: &[u8]) -> Result<*mut c_void> {
    // SAFETY: the memory is as long as the bytes.
    unsafe {
        let memory = libc::malloc(bytes.len());
        if memory.is_null() {
            return Err(no_memory("getaddrinfo"));
        }
        memory.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        Ok(memory)
    }
}

/// Sets an address of an `rdma_addrinfo`.
///
/// # Errors
/// `ENOMEM` if memory is short.
fn set_address(to: &mut *mut sockaddr, len: &mut socklen_t, bytes: &[u8]) -> Result {
    *to = copied(bytes)?.cast();
    *len = bytes.len() as socklen_t;
    Ok(())
}

/// Sets an InfiniBand address of an `rdma_addrinfo`.
///
/// # Errors
/// `ENOMEM` if memory is short.
fn set_ib(to: &mut *mut sockaddr, len: &mut socklen_t, ib: IbAddress) -> Result {
    let (bytes, used) = Address::from(ib)
        .to_sockaddr()
        .ok_or_else(|| refuse("getaddrinfo", Errno::AFNOSUPPORT, NO_ADDRESS))?;
    set_address(to, len, &bytes[..used])
}

/// Converts `rdma_addrinfo` hints to `getaddrinfo(3)` hints.
fn wishes(hints: &rdma_addrinfo) -> addrinfo {
    // SAFETY: zeroed integers and null pointers are valid.
    let mut wishes: addrinfo = unsafe { core::mem::zeroed() };
    for (flag, of_c) in [(RAI_PASSIVE, libc::AI_PASSIVE), (RAI_NUMERICHOST, libc::AI_NUMERICHOST)] {
        if hints.ai_flags & flag != 0 {
            wishes.ai_flags |= of_c;
        }
    }
    if hints.ai_family != libc::AF_IB {
        wishes.ai_family = hints.ai_family;
    }
    wishes.ai_socktype = match u8::try_from(hints.ai_qp_type).map(QpType) {
        Ok(QpType::RC | QpType::UC | QpType::XRC_SEND | QpType::XRC_RECV) => libc::SOCK_STREAM,
        Ok(QpType::UD) => libc::SOCK_DGRAM,
        _ => 0,
    };
    wishes.ai_protocol = match (hints.ai_port_space as u32, wishes.ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (RDMA_PS_IPOIB | RDMA_PS_UDP, _) | (RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    wishes
}

/// Fills in a result from the first address found.
///
/// # Errors
/// `ENOMEM` if memory is short.
///
/// # Safety
/// `found` must be a result of `getaddrinfo(3)`.
unsafe fn fill(info: &mut rdma_addrinfo, hints: Option<&rdma_addrinfo>, found: &addrinfo) -> Result {
    let hinted = |field: fn(&rdma_addrinfo) -> c_int| hints.map(field).filter(|value| *value != 0);
    info.ai_qp_type = hinted(|hints| hints.ai_qp_type).unwrap_or(match found.ai_socktype {
        libc::SOCK_STREAM => QpType::RC.0.into(),
        libc::SOCK_DGRAM => QpType::UD.0.into(),
        _ => 0,
    });
    info.ai_port_space = hinted(|hints| hints.ai_port_space).unwrap_or(match found.ai_protocol {
        libc::IPPROTO_TCP => RDMA_PS_TCP as c_int,
        libc::IPPROTO_UDP => RDMA_PS_UDP as c_int,
        _ => 0,
    });
    // SAFETY: the address has the stated length; the name is null or a string.
    let (bytes, name) = unsafe {
        let bytes = core::slice::from_raw_parts(found.ai_addr.cast::<u8>(), found.ai_addrlen as usize);
        let name = if found.ai_canonname.is_null() { null_mut() } else { libc::strdup(found.ai_canonname) };
        (bytes, name)
    };
    let is_passive = found.ai_flags & libc::AI_PASSIVE != 0;
    let (to, len) = if is_passive {
        info.ai_flags = RAI_PASSIVE;
        info.ai_src_canonname = name;
        (&mut info.ai_src_addr, &mut info.ai_src_len)
    } else {
        info.ai_dst_canonname = name;
        (&mut info.ai_dst_addr, &mut info.ai_dst_len)
    };
    let wants_ib = hints.is_some_and(|hints| {
        const FLAGS: c_int = RAI_FAMILY | RAI_NUMERICHOST;
        hints.ai_flags & FLAGS == FLAGS && hints.ai_family == libc::AF_IB
    });
    match Address::from_sockaddr(bytes) {
        Some(Address::Ip(std::net::SocketAddr::V6(found))) if wants_ib => {
            info.ai_family = libc::AF_IB;
            let space = PortSpace(info.ai_port_space as u16);
            let ib = IbAddress {
                flow_info: found.flowinfo(),
                scope_id: found.scope_id().into(),
                ..IbAddress::new(Gid(found.ip().octets()), space, found.port())
            };
            set_ib(to, len, ib)
        }
        _ => {
            info.ai_family = found.ai_family;
            set_address(to, len, bytes)
        }
    }
}

/// `rdma_getaddrinfo(3)`: returns the first address found. The result is 0, -1 with `errno`, or an
/// error code for `gai_strerror(3)`. The result contains no route; an id resolves the route later.
///
/// # Safety
/// `node` and `service` must be null or strings, `hints` must be null or point to hints whose
/// addresses have the stated lengths, and `res` must point to a pointer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    given!(res);
    given_room!();
    // SAFETY: guaranteed by the caller.
    unsafe {
        match look_up(node, service, hints.as_ref()) {
            Ok(found) => {
                *res = found;
                0
            }
            Err(Failure::Errno(errno)) => minus_one(errno),
            Err(Failure::Names(code)) => code,
        }
    }
}

/// A failed lookup.
pub(super) enum Failure {
    Errno(Errno),
    /// An error code for `gai_strerror(3)`.
    Names(c_int),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// The reason for rejecting hints that exclude each other.
pub(super) const CONTRADICTION: &str = "RAI_SA excludes names and RAI_DNS";

/// The reason reported when a query finds no service.
const NO_SERVICE: &str = "no such service is known";

/// Looks up the first address, or the services if the hints contain `RAI_SA`.
///
/// # Safety
/// Same as [`rdma_getaddrinfo`].
pub(super) unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> core::result::Result<*mut rdma_addrinfo, Failure> {
    if node.is_null() && service.is_null() && hints.is_none() {
        return Err(refuse("getaddrinfo", Errno::INVAL, "neither name, service nor hints").into());
    }
    if let Some(hints) = hints.filter(|hints| hints.ai_flags & RAI_SA != 0) {
        if !node.is_null() || hints.ai_flags & RAI_DNS != 0 {
            return Err(refuse("getaddrinfo", Errno::OPNOTSUPP, CONTRADICTION).into());
        }
        // SAFETY: guaranteed by the caller.
        return Ok(unsafe { services_of_any(service) }?);
    }
    let made: *mut rdma_addrinfo = zeroed()?;
    // SAFETY: the result was just created; the caller's promise.
    unsafe {
        let filled = look_up_into(&mut *made, node, service, hints);
        if filled.is_err() {
            rdma_freeaddrinfo(made);
        }
        filled.map(|()| made)
    }
}

/// Fills in `info` with the first address found by `getaddrinfo(3)`, or from the hints if neither
/// `node` nor `service` is given.
///
/// # Safety
/// Same as [`rdma_getaddrinfo`].
unsafe fn look_up_into(
    info: &mut rdma_addrinfo,
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> core::result::Result<(), Failure> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if !node.is_null() || !service.is_null() {
            let wishes = hints.map(wishes);
            let mut found: *mut addrinfo = null_mut();
            let wishes = wishes.as_ref().map_or(null(), |wishes| &raw const *wishes);
            let code = libc::getaddrinfo(node, service, wishes, &raw mut found);
            if code != 0 {
                return Err(Failure::Names(code));
            }
            let filled = found.as_ref().map_or_else(
                || Err(refuse("getaddrinfo", Errno::NOENT, NO_SERVICE)),
                |found| fill(info, hints, found),
            );
            libc::freeaddrinfo(found);
            filled?;
        } else if let Some(hints) = hints {
            info.ai_flags = hints.ai_flags;
            info.ai_family = hints.ai_family;
            info.ai_qp_type = hints.ai_qp_type;
            info.ai_port_space = hints.ai_port_space;
            if hints.ai_dst_len > 0 {
                let bytes = given_bytes(hints.ai_dst_addr, hints.ai_dst_len);
                set_address(&mut info.ai_dst_addr, &mut info.ai_dst_len, bytes)?;
            }
        }
        if let Some(hints) = hints.filter(|hints| info.ai_src_len == 0 && hints.ai_src_len > 0) {
            let bytes = given_bytes(hints.ai_src_addr, hints.ai_src_len);
            set_address(&mut info.ai_src_addr, &mut info.ai_src_len, bytes)?;
        }
    }
    Ok(())
}

/// Returns the bytes of an address passed by the program.
///
/// # Safety
/// `address` must be null or point to `len` bytes.
unsafe fn given_bytes<'a>(address: *const sockaddr, len: socklen_t) -> &'a [u8] {
    if address.is_null() {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { core::slice::from_raw_parts(address.cast(), len as usize) }
}

/// `rdma_freeaddrinfo(3)`.
///
/// # Safety
/// `res` must be null or the result of a lookup, and must not be used afterwards.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    let mut next = res;
    // SAFETY: a null terminates the list; each part is null or comes from `malloc(3)`.
    unsafe {
        while let Some(info) = next.as_ref() {
            let this = next;
            next = info.ai_next;
            for part in [
                info.ai_connect,
                info.ai_route,
                info.ai_src_canonname.cast(),
                info.ai_dst_canonname.cast(),
                info.ai_src_addr.cast(),
                info.ai_dst_addr.cast(),
            ] {
                libc::free(part);
            }
            libc::free(this.cast());
        }
    }
}

/// Parses a service, which is a decimal, octal or hexadecimal number, or a name.
fn service_of(text: &str) -> Service<'_> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u64::from_str_radix(digits, radix) {
        Ok(id) if is_number => Service::Id(id),
        _ => Service::Name(text),
    }
}

/// Converts services to a list of results, one per service that the subnet administrator found;
/// null if there are none. `source` is the address to connect from.
///
/// # Errors
/// `ENOMEM` if memory is short.
fn list_of(services: &[ServiceRecord], source: Option<Gid>) -> Result<*mut rdma_addrinfo> {
    let mut head: *mut rdma_addrinfo = null_mut();
    let made = services.iter().rev().try_for_each(|service| -> Result {
        let made: *mut rdma_addrinfo = zeroed()?;
        // SAFETY: the result was just created.
        let info = unsafe { &mut *made };
        info.ai_next = core::mem::replace(&mut head, made);
        info.ai_flags = RAI_SA;
        info.ai_family = libc::AF_IB;
        info.ai_port_space = RDMA_PS_IB as c_int;
        set_ib(&mut info.ai_dst_addr, &mut info.ai_dst_len, service.address())?;
        if let Some(gid) = source {
            let from = IbAddress { pkey: service.pkey, ..IbAddress::new(gid, PortSpace::IB, 0) };
            set_ib(&mut info.ai_src_addr, &mut info.ai_src_len, from)?;
        }
        Ok(())
    });
    if let Err(errno) = made {
        // SAFETY: the list was just created.
        unsafe { rdma_freeaddrinfo(head) };
        return Err(errno);
    }
    Ok(head)
}

/// Looks up a service at the subnet administrator of each active InfiniBand port, one after the
/// other.
///
/// # Errors
/// `EINVAL` without a service; `ENOENT` if no administrator knows the service.
///
/// # Safety
/// `service` must be null or a string.
unsafe fn services_of_any(service: *const c_char) -> Result<*mut rdma_addrinfo> {
    // SAFETY: guaranteed by the caller.
    let service = unsafe { text_of(service) }?;
    let channel = EventChannel::new().map_err(logged)?;
    let devices = verbs::devices().map_err(logged)?;
    let contexts = devices.iter().filter_map(|device| device.open().map_err(logged).ok());
    let ports = contexts.flat_map(|context| infiniband_ports(&context));
    for gid in ports {
        match services_of(&channel, gid, service) {
            Ok(services) if !services.is_empty() => return list_of(&services, Some(gid)),
            _ => {}
        }
    }
    Err(refuse("getaddrinfo", Errno::NOENT, NO_SERVICE))
}

/// Returns the GIDs of the active InfiniBand ports of a device.
fn infiniband_ports(context: &Context) -> Vec<Gid> {
    let count = context.query_device().map_or(0, |attr| attr.phys_port_cnt);
    let gid_of = |port_num| {
        let attr = context.query_port(port_num).ok()?;
        let is_it = attr.link_layer == LinkLayer::INFINIBAND && attr.state.0 >= PortState::ACTIVE.0;
        is_it.then(|| context.query_gid(port_num, 0).ok()).flatten()
    };
    (1..=count).filter_map(gid_of).collect()
}

/// Looks up a service at the subnet administrator of a port.
///
/// # Errors
/// `ENOENT` if the service is unknown; the errors of [`CmId::bind_addr`] and
/// [`CmId::resolve_service`].
fn services_of(channel: &EventChannel, gid: Gid, service: Service<'_>) -> Result<Vec<ServiceRecord>> {
    let of = |cm: &CmId| {
        cm.bind_addr(IbAddress { gid, ..IbAddress::default() })?;
        cm.resolve_service(service)?;
        loop {
            let event = channel.next_event()?;
            match event.kind {
                EventKind::AddrinfoResolved => return cm.services().map(Some),
                EventKind::AddrinfoError => return Ok(None),
                _ => {}
            }
        }
    };
    let cm = channel.create_id(PortSpace::IB).map_err(logged)?;
    of(&cm).map_err(logged)?.ok_or_else(|| refuse("getaddrinfo", Errno::NOENT, NO_SERVICE))
}

/// Parses a service given as a C string.
///
/// # Errors
/// `EINVAL` for null and for text that is not UTF-8.
///
/// # Safety
/// `text` must be null or a string.
pub(super) unsafe fn text_of<'a>(text: *const c_char) -> Result<Service<'a>> {
    let refused = || refuse("resolve_service", Errno::INVAL, "the service is null or not UTF-8");
    if text.is_null() {
        return Err(refused());
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(text) }.to_str().map(service_of).map_err(|_| refused())
}

/// Fetches the resolved services, unless the addresses have been fetched already.
///
/// # Errors
/// `ENOENT` if the query finds no service; any error from the query. After an error,
/// `rdma_resolve_addrinfo` may be called again.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn resolved(id: *mut rdma_cm_id) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let private = private(id);
        if !private.state().resolved.0.is_null() {
            return Ok(());
        }
        let fetched = private.call(CmId::services).and_then(|services| {
            if services.is_empty() {
                return Err(refuse("query_addrinfo", Errno::NOENT, NO_SERVICE));
            }
            route::copy_addresses(id)?;
            list_of(&services, None)
        });
        let mut state = private.state();
        match fetched {
            Ok(list) => {
                state.resolved.0 = list;
                Ok(())
            }
            Err(errno) => {
                state.is_resolving = false;
                Err(errno)
            }
        }
    }
}

/// `rdma_query_addrinfo(3)`: returns the result of `rdma_resolve_addrinfo`, which the program must
/// free.
///
/// # Safety
/// `id` must be null or live; `info` must be null or point to a pointer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    info: *mut *mut rdma_addrinfo,
) -> c_int {
    given!(id, info);
    given_room!();
    // SAFETY: guaranteed by the caller.
    status(unsafe {
        let mut state = private(id).state();
        if state.is_resolving && !state.resolved.0.is_null() {
            *info = core::mem::take(&mut state.resolved).0;
            state.is_resolving = false;
            Ok(())
        } else {
            Err(refuse("query_addrinfo", Errno::NOENT, "no query of the id has ended"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_a_number_in_any_notation_or_a_name() {
        for (text, wanted) in [
            ("18", Service::Id(18)),
            ("0x12", Service::Id(18)),
            ("022", Service::Id(18)),
            ("0", Service::Id(0)),
            ("storage", Service::Name("storage")),
            ("0x", Service::Name("0x")),
            ("+5", Service::Name("+5")),
            ("", Service::Name("")),
        ] {
            assert_eq!(service_of(text), wanted, "{text}");
        }
    }

    #[test]
    fn wishes_name_the_socket_that_the_service_stands_for() {
        // SAFETY: zeroed integers and null pointers are valid.
        let mut hints: rdma_addrinfo = unsafe { core::mem::zeroed() };
        hints.ai_flags = RAI_PASSIVE | RAI_NUMERICHOST;
        hints.ai_qp_type = QpType::UD.0.into();
        hints.ai_port_space = RDMA_PS_IB as c_int;
        let found = wishes(&hints);
        assert_eq!(found.ai_flags, libc::AI_PASSIVE | libc::AI_NUMERICHOST);
        assert_eq!((found.ai_socktype, found.ai_protocol), (libc::SOCK_DGRAM, libc::IPPROTO_UDP));
        hints.ai_qp_type = QpType::XRC_SEND.0.into();
        assert_eq!(wishes(&hints).ai_protocol, libc::IPPROTO_TCP);
    }

    #[test]
    fn services_become_a_list_in_their_order() {
        let service = |service_id| ServiceRecord {
            service_id,
            gid: Gid([7; 16]),
            pkey: 0xffff,
            lease: 0,
            key: [0; 16],
            name: String::new(),
        };
        let list = list_of(&[service(1), service(2)], Some(Gid([9; 16]))).unwrap();
        // SAFETY: the list has two results, with 48-byte addresses.
        unsafe {
            let (first, second) = (&*list, &*(*list).ai_next);
            assert!(second.ai_next.is_null());
            for (info, id) in [(first, 1), (second, 2)] {
                assert_eq!((info.ai_family, info.ai_dst_len, info.ai_src_len), (libc::AF_IB, 48, 48));
                let Some(Address::Ib(to)) = route::parse(info.ai_dst_addr) else { panic!() };
                assert_eq!((to.service_id, to.gid), (id, Gid([7; 16])));
            }
            rdma_freeaddrinfo(list);
        }
    }
}
