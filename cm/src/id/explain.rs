//! The causes behind the kernel's errnos.

use verbs::{Cause, Errno, Error};

use crate::types::Address;

/// Returns the error with a cause, where the call and the errno say which it is.
pub(super) fn explain(error: Error) -> Error {
    if error.cause != Cause::Unknown {
        return error;
    }
    let reason = match (error.verb, error.errno) {
        ("connect", Errno::INVAL) => {
            "the id has no route to a peer: wait for ROUTE_RESOLVED before connecting"
        }
        ("resolve_route", Errno::INVAL) => "the id has no resolved address: wait for ADDR_RESOLVED first",
        ("resolve_addr", Errno::INVAL) => "the id is resolved, listening or connected already: make another",
        ("accept" | "reject", Errno::INVAL) => {
            "the id has no request that waits: it was accepted or rejected before, or the peer has given up"
        }
        ("disconnect", Errno::INVAL) => "the id has no connection",
        ("listen", Errno::INVAL) => "the id is listening or connected already",
        ("init_qp_attr", Errno::INVAL) => {
            "the id has no device, or its connection is not as far: resolve an address, or wait for the peer's reply"
        }
        ("join_multicast", Errno::INVAL) => {
            "the id has no device, or the address is no group's: bind or resolve an address first"
        }
        ("resolve_addrinfo" | "write_cm_event", Errno::INVAL | Errno::NOSYS) => {
            "this kernel does not have the call"
        }
        ("listen", Errno::ADDRINUSE) => "another id has the port: choose another, or 0 for any",
        // Newer kernels, then older ones.
        (_, Errno::NXIO | Errno::IO) => "the device of the id is gone",
        _ => return error,
    };
    error.because(Cause::Other { reason: reason.into() })
}

/// Returns the error of binding with the address in its cause.
pub(super) fn bind(error: Error, address: &Address) -> Error {
    if error.cause != Cause::Unknown {
        return error;
    }
    let reason = match error.errno {
        Errno::ADDRINUSE => format!("another id has {address}: choose another port, or 0 for any"),
        Errno::NODEV => format!("no interface with an RDMA device has {address}: `rdma link` lists them"),
        Errno::ADDRNOTAVAIL => format!("no interface of this machine has {address}"),
        Errno::ACCESS => format!("no right to the port of {address}: use one from 1024 on"),
        _ => return error,
    };
    error.because(Cause::Other { reason: reason.into() })
}

/// Returns the error of a call that needs the device, of an id that has none.
pub(super) fn no_device(verb: &'static str) -> Error {
    let reason = "the id has no device yet: resolve an address, or bind to one of a device, first";
    Error::new(verb, "", Errno::INVAL).because(Cause::Other { reason: reason.into() })
}

/// Returns the error of private data beyond what the protocol's message carries, or the error
/// itself where that is not the cause.
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
            "connect on rxe0: the id has no route to a peer: wait for ROUTE_RESOLVED before connecting (EINVAL)"
        );
        let address = Address::from(([192, 0, 2, 1], 80));
        let error = bind(Error::new("bind_addr", "", Errno::ADDRINUSE), &address);
        assert_eq!(
            error.to_string(),
            "bind_addr: another id has 192.0.2.1:80: choose another port, or 0 for any (EADDRINUSE)"
        );
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
        assert_eq!(long.to_string(), "connect: length of private_data 57 exceeds the device's 56 (EINVAL)");
    }
}
