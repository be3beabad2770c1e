//! Causes for the kernel's errnos.

use std::net::{SocketAddr, UdpSocket};

use verbs::{Cause, Errno, Error};

use crate::device::Port;
use crate::types::Address;

/// Returns the error with a cause, if the call and the errno identify the cause.
pub(super) fn explain(error: Error) -> Error {
    if error.cause != Cause::Unknown {
        return error;
    }
    let reason = match (error.verb, error.errno) {
        ("connect", Errno::INVAL) => {
            "the id has no route to a peer, or connects already: connect once, behind ROUTE_RESOLVED"
        }
        ("resolve_route", Errno::INVAL) => {
            "the id has no resolved address, or has a route already: call once, behind ADDR_RESOLVED"
        }
        ("resolve_addr", Errno::INVAL) => "the id is resolved, listening or connected already: make another",
        ("establish", Errno::INVAL) => "the peer has not accepted: wait for CONNECT_RESPONSE first",
        ("notify", Errno::INVAL) => "the id has no connection, or the event says nothing about one",
        ("set_option", Errno::INVAL) => {
            "the value is out of range, or the state or the transport service of the id does not permit the option"
        }
        ("leave_multicast", Errno::INVAL | Errno::NOENT | Errno::ADDRNOTAVAIL) => {
            "the id is no member of the group"
        }
        ("accept" | "reject", Errno::INVAL) => {
            "the id has no request that waits: it was accepted or rejected before, or the peer has given up"
        }
        ("disconnect", Errno::INVAL) => "the id has no connection",
        ("resolve_route", Errno::NODEV) => {
            "the address leads to no RDMA device: one of loopback leads to soft devices alone (VERBS_SOFT=auto)"
        }
        ("listen", Errno::INVAL) => "the id is listening or connected already",
        ("init_qp_attr", Errno::INVAL) => {
            "the id has no device or no connection: resolve an address, or wait for the peer's reply; the peer of a request \
             may have given up"
        }
        ("join_multicast", Errno::INVAL) => {
            "the id has no device, or the address is no group's: bind or resolve an address first"
        }
        ("resolve_addrinfo" | "write_cm_event", Errno::INVAL | Errno::NOSYS) => {
            "this kernel does not have the call"
        }
        ("listen", Errno::ADDRINUSE) => "another id has the port: choose another, or 0 for any",
        // Newer kernels return ENXIO, older kernels EIO.
        (_, Errno::NXIO | Errno::IO) => "the device of the id is gone",
        _ => return error,
    };
    error.because(Cause::Other { reason: reason.into() })
}

/// Returns a bind error with the address in its cause.
pub(super) fn bind(error: Error, address: &Address) -> Error {
    if error.cause != Cause::Unknown {
        return error;
    }
    let reason = match error.errno {
        Errno::INVAL => match without_scope(address) {
            Some(reason) => reason,
            None => format!("the id is bound, resolved or connected already: make another for {address}"),
        },
        Errno::ADDRINUSE => format!("another id has {address}: choose another port, or 0 for any"),
        Errno::NODEV => format!(
            "no interface with an RDMA device has {address}: `rdma link` lists the kernel's, `ibv_devices` soft ones as well"
        ),
        // The kernel also returns this errno if a listener on all addresses and a listener on one
        // address use the same port.
        Errno::ADDRNOTAVAIL => match address.ip() {
            Some(local) if is_local(local) && local.port() == 0 => {
                format!("no port is free for {address} (net.ipv4.ip_local_port_range)")
            }
            Some(local) if is_local(local) => {
                format!(
                    "another id has the port of {address}, on all addresses or on one: choose another, or 0 for any"
                )
            }
            _ => format!("no interface of this machine has {address}"),
        },
        Errno::ACCESS => format!("no right to the port of {address}: use one from 1024 on"),
        _ => return error,
    };
    error.because(Cause::Other { reason: reason.into() })
}

/// Returns whether an address belongs to this machine or is unspecified.
fn is_local(mut address: SocketAddr) -> bool {
    address.set_port(0);
    UdpSocket::bind(address).is_ok()
}

/// Returns the problem with the source of an address resolution; `None` if the source is not at
/// fault.
fn of_source(error: &Error, source: &Address) -> Option<String> {
    let ip = source.ip()?;
    let address = ip.ip();
    match error.errno {
        Errno::ADDRNOTAVAIL if !is_local(ip) => {
            Some(format!("no interface of this machine has the source {address}"))
        }
        Errno::ADDRNOTAVAIL if ip.port() == 0 => {
            Some(format!("no port is free for the source {address} (net.ipv4.ip_local_port_range)"))
        }
        Errno::ADDRNOTAVAIL | Errno::ADDRINUSE => {
            Some(format!("another id has the source {source}: choose another port, or 0 for any"))
        }
        Errno::ACCESS if ip.port() != 0 => {
            Some(format!("no right to the port of the source {source}: use one from 1024 on, or 0 for any"))
        }
        Errno::NODEV
            if !address.is_unspecified()
                && !address.is_loopback()
                && Port::with_address(address).is_none() =>
        {
            Some(format!(
                "no RDMA device has the source {address}: `rdma link` lists the kernel's, and VERBS_SOFT={address} makes a \
                 soft one"
            ))
        }
        _ => None,
    }
}

/// Returns a resolution error with its cause, for an id bound to `local` and the requested
/// `source`.
pub(super) fn resolve(
    error: Error,
    source: Option<&Address>,
    local: impl FnOnce() -> Option<Address>,
    peer: &Address,
) -> Error {
    if error.cause != Cause::Unknown {
        return error;
    }
    if let Some(reason) = source.and_then(|source| of_source(&error, source)) {
        return error.because(Cause::Other { reason: reason.into() });
    }
    if matches!(error.errno, Errno::NETUNREACH | Errno::HOSTUNREACH) {
        let reason = match source {
            Some(source) => format!("no route leads from {source} to {peer}"),
            None => format!("no route leads to {peer}"),
        };
        return error.because(Cause::Other { reason: reason.into() });
    }
    if error.errno != Errno::INVAL {
        return error;
    }
    let is_other_family = |local: Address| match (local.ip(), peer.ip()) {
        (Some(local), Some(peer)) => local.is_ipv4() != peer.is_ipv4(),
        (local, peer) => local.is_some() != peer.is_some(),
    };
    let reason = match without_scope(peer) {
        Some(reason) => reason,
        None => match local() {
            Some(local) if is_other_family(local) => {
                format!("the id is bound to {local}, which is of another family")
            }
            _ => return error,
        },
    };
    error.because(Cause::Other { reason: reason.into() })
}

/// Returns the problem with a link-local address without its interface; `None` for other addresses.
fn without_scope(address: &Address) -> Option<String> {
    match address.ip()? {
        SocketAddr::V6(of) if of.ip().is_unicast_link_local() && of.scope_id() == 0 => {
            let ip = of.ip();
            Some(format!("{ip} is link-local and needs the number of its interface: [{ip}%2] (`ip link`)"))
        }
        _ => None,
    }
}

/// Returns the error for a call that needs a device, made on an id without a device.
pub(super) fn no_device(verb: &'static str) -> Error {
    let reason = "the id has no device yet: resolve an address, or bind to one of a device, first";
    Error::new(verb, "", Errno::INVAL).because(Cause::Other { reason: reason.into() })
}

/// Returns the error for an address without any device.
pub(super) fn no_device_at_address(verb: &'static str) -> Error {
    let reason = "no device has the address that the id is bound to (`ibv_devices`, `VERBS_SOFT`)";
    Error::new(verb, "", Errno::NODEV).because(Cause::Other { reason: reason.into() })
}

/// Returns the error for private data beyond the protocol's limit, or the original error if the
/// length is not the cause.
pub(super) fn private_data(error: Error, length: usize, max: impl FnOnce() -> usize) -> Error {
    if error.errno != Errno::INVAL || error.cause != Cause::Unknown {
        return error;
    }
    let (asked, max) = (length as u64, max() as u64);
    if asked <= max {
        return error;
    }
    error.because(Cause::Limit { name: "length of private_data", asked, min: 0, max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_to_do() {
        let error = explain(Error::new("connect", "rxe0", Errno::INVAL));
        assert_eq!(
            error.to_string(),
            "connect on rxe0: the id has no route to a peer, or connects already: connect once, behind ROUTE_RESOLVED \
             (EINVAL)"
        );
        let address = Address::from(([192, 0, 2, 1], 80));
        let error = bind(Error::new("bind_addr", "", Errno::ADDRINUSE), &address);
        assert_eq!(
            error.to_string(),
            "bind_addr: another id has 192.0.2.1:80: choose another port, or 0 for any (EADDRINUSE)"
        );
    }

    #[test]
    fn a_port_that_is_not_available_is_told_from_an_address_that_is_not() {
        let told = |text: &str| {
            let address = Address::from(text.parse::<SocketAddr>().unwrap());
            bind(Error::new("bind_addr", "", Errno::ADDRNOTAVAIL), &address).to_string()
        };
        assert!(told("192.0.2.1:7471").contains("no interface of this machine has 192.0.2.1:7471"));
        for local in ["0.0.0.0:7471", "127.0.0.1:7471"] {
            let text = told(local);
            assert!(text.contains(&format!("another id has the port of {local}")), "{text}");
        }
        assert!(told("127.0.0.1:0").contains("no port is free for 127.0.0.1:0"));
    }

    #[test]
    fn an_address_without_its_scope_and_one_of_another_family_are_named() {
        let link_local = Address::from("[fe80::1]:7471".parse::<SocketAddr>().unwrap());
        let text =
            "fe80::1 is link-local and needs the number of its interface: [fe80::1%2] (`ip link`) (EINVAL)";
        let error = bind(Error::new("bind_addr", "", Errno::INVAL), &link_local);
        assert_eq!(error.to_string(), format!("bind_addr: {text}"));
        let refused = || Error::new("resolve_addr", "", Errno::INVAL);
        assert_eq!(
            resolve(refused(), None, || None, &link_local).to_string(),
            format!("resolve_addr: {text}")
        );
        let v4 = Address::from(([192, 0, 2, 1], 80));
        let v6 = Address::from("[2001:db8::1]:7471".parse::<SocketAddr>().unwrap());
        let error = resolve(refused(), None, || Some(v6), &v4).to_string();
        assert!(error.contains("bound to [2001:db8::1]:7471, which is of another family"), "{error}");
        for local in [Some(v4), None] {
            let error = explain(resolve(refused(), None, || local, &v4)).to_string();
            assert!(error.contains("resolved, listening or connected already"), "{error}");
        }
        let error = bind(Error::new("bind_addr", "", Errno::INVAL), &v4).to_string();
        assert!(error.contains("the id is bound, resolved or connected already"), "{error}");
    }

    #[test]
    fn a_bad_source_is_named_and_not_the_destination() {
        let peer = Address::from(([127, 0, 0, 1], 7471));
        for (errno, source, text) in [
            (Errno::ADDRNOTAVAIL, "192.0.2.1:0", "no interface of this machine has the source 192.0.2.1"),
            (
                Errno::ADDRINUSE,
                "127.0.0.1:7471",
                "another id has the source 127.0.0.1:7471: choose another port, or 0 for any",
            ),
            (
                Errno::NODEV,
                "192.0.2.1:0",
                "no RDMA device has the source 192.0.2.1: `rdma link` lists the kernel's, and VERBS_SOFT=192.0.2.1 makes a \
                 soft one",
            ),
        ] {
            let source = Address::from(source.parse::<SocketAddr>().unwrap());
            let error = resolve(Error::new("resolve_addr", "", errno), Some(&source), || None, &peer);
            assert_eq!(error.to_string(), format!("resolve_addr: {text} ({errno})"));
        }
        let error = resolve(Error::new("resolve_addr", "", Errno::NETUNREACH), None, || None, &peer);
        assert_eq!(error.to_string(), "resolve_addr: no route leads to 127.0.0.1:7471 (ENETUNREACH)");
    }

    #[test]
    fn refused_calls_have_words() {
        for (verb, errno) in [
            ("establish", Errno::INVAL),
            ("notify", Errno::INVAL),
            ("set_option", Errno::INVAL),
            ("leave_multicast", Errno::ADDRNOTAVAIL),
            ("resolve_route", Errno::NODEV),
        ] {
            assert_ne!(explain(Error::new(verb, "", errno)).cause, Cause::Unknown, "{verb}");
        }
    }

    #[test]
    fn a_device_that_is_gone_is_told_by_either_errno_of_kernels() {
        for errno in [Errno::NXIO, Errno::IO] {
            let error = explain(Error::new("resolve_route", "rxe0", errno)).to_string();
            assert!(error.contains("the device of the id is gone"), "{error}");
        }
    }

    #[test]
    fn a_cause_that_is_known_stays() {
        let known = Error::new("connect", "", Errno::INVAL).because(Cause::DeviceGone);
        assert_eq!(explain(known.clone()), known);
        assert_eq!(private_data(known.clone(), 300, || 56), known);
        let unknown = Error::new("connect", "", Errno::NOMEM);
        assert_eq!(explain(unknown.clone()), unknown);
    }

    #[test]
    fn private_data_are_the_cause_only_where_they_are_too_long() {
        let refused = Error::new("connect", "", Errno::INVAL);
        assert_eq!(private_data(refused.clone(), 56, || 56), refused);
        let long = private_data(refused, 57, || 56);
        assert_eq!(
            long.to_string(),
            "connect: length of private_data 57 exceeds the 56 bytes of a message of connection management (EINVAL)"
        );
    }
}
