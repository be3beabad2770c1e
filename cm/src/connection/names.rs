//! [`ToAddresses`]: conversion of names to addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};

use verbs::{Cause, Errno, Error, Result};

use crate::addrinfo::numeric;

/// A name that resolves to addresses with a port: any [`ToSocketAddrs`] of the standard library, or
/// an IPv6 address scoped by an interface name, such as `"[fe80::1%eth0]:7471"`.
///
/// ```
/// use rdmacm::ToAddresses;
///
/// # fn main() -> verbs::Result<()> {
/// let [address] = "[fe80::1%lo]:7471".to_addresses()?[..] else { panic!("one address") };
/// assert_eq!(address, "[fe80::1%1]:7471".parse().unwrap());
/// # Ok(())
/// # }
/// ```
pub trait ToAddresses {
    /// Returns the addresses in order of preference. The system looks up names, which may take
    /// seconds.
    ///
    /// # Errors
    /// `ENOENT` for an unknown name, an unknown interface or a text without a port.
    fn to_addresses(&self) -> Result<Vec<SocketAddr>>;
}

impl ToAddresses for str {
    fn to_addresses(&self) -> Result<Vec<SocketAddr>> {
        let parts = self.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        match parts {
            Some((host, port)) if host.starts_with('[') => (host, port).to_addresses(),
            Some(_) if self.parse::<Ipv6Addr>().is_err() => looked_up(self, self),
            _ => Err(without_port(self)),
        }
    }
}

impl ToAddresses for (&str, u16) {
    fn to_addresses(&self) -> Result<Vec<SocketAddr>> {
        match numeric(self.0, self.1)? {
            Some(address) => Ok(vec![address]),
            None => looked_up(self, self.0),
        }
    }
}

impl ToAddresses for String {
    fn to_addresses(&self) -> Result<Vec<SocketAddr>> {
        self.as_str().to_addresses()
    }
}

impl ToAddresses for (String, u16) {
    fn to_addresses(&self) -> Result<Vec<SocketAddr>> {
        (self.0.as_str(), self.1).to_addresses()
    }
}

impl ToAddresses for [SocketAddr] {
    fn to_addresses(&self) -> Result<Vec<SocketAddr>> {
        Ok(self.to_vec())
    }
}

impl<T: ToAddresses + ?Sized> ToAddresses for &T {
    fn to_addresses(&self) -> Result<Vec<SocketAddr>> {
        (**self).to_addresses()
    }
}

/// Implements the trait for addresses that need no lookup.
macro_rules! addresses {
    ($($of:ty),*) => {$(
        impl ToAddresses for $of {
            fn to_addresses(&self) -> Result<Vec<SocketAddr>> {
                Ok(vec![SocketAddr::from(*self)])
            }
        }
    )*};
}

addresses!(SocketAddr, SocketAddrV4, SocketAddrV6, (IpAddr, u16), (Ipv4Addr, u16), (Ipv6Addr, u16));

/// Returns the error for a text without a valid port.
fn without_port(text: &str) -> Error {
    let reason = match (text.parse::<Ipv6Addr>(), text.rsplit_once(':')) {
        (Ok(_), _) => format!("{text} has no port: write [{text}]:7471, or [{text}]:0 for any port"),
        (_, Some((_, port))) => format!("{text}: the port {port:?} is no number from 0 to 65535"),
        _ => format!("{text} has no port: write {text}:7471, or {text}:0 for any port"),
    };
    Error::new("getaddrinfo", "", Errno::NOENT).because(Cause::Other { reason: reason.into() })
}

/// Looks up a name with the system's resolver. Errors name the `host`.
fn looked_up(name: impl ToSocketAddrs, host: &str) -> Result<Vec<SocketAddr>> {
    let addresses = name.to_socket_addrs().map_err(|failed| {
        let reason = format!("{host}: {failed}").into();
        Error::new("getaddrinfo", "", Errno::NOENT).because(Cause::Other { reason })
    })?;
    Ok(addresses.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn resolve(name: impl ToAddresses) -> String {
        match name.to_addresses() {
            Ok(addresses) => addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" "),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_scope_in_brackets_is_a_name_or_a_number() {
        assert_eq!(resolve("[fe80::1%lo]:7471"), "[fe80::1%1]:7471");
        assert_eq!(resolve(String::from("[fe80::1%7]:7471")), "[fe80::1%7]:7471");
        assert_eq!(resolve(("fe80::1%lo", 7471)), "[fe80::1%1]:7471");
        assert_eq!(resolve(("[fe80::1%lo]".to_owned(), 7471)), "[fe80::1%1]:7471");
        assert_eq!(resolve("fe80::1%lo:7471"), "[fe80::1%1]:7471", "by the system, as without brackets");
        assert_eq!(
            resolve("[fe80::1%no0]:1"),
            "getaddrinfo: [fe80::1%no0]: no interface is named no0 (ENOENT)"
        );
    }

    #[test]
    fn an_address_without_a_port_is_shown_with_one() {
        for (text, wanted) in [
            ("127.0.0.1", "127.0.0.1 has no port: write 127.0.0.1:7471, or 127.0.0.1:0 for any port"),
            (
                "server.example",
                "server.example has no port: write server.example:7471, or server.example:0 for any port",
            ),
            ("::1", "::1 has no port: write [::1]:7471, or [::1]:0 for any port"),
            ("127.0.0.1:80x", "127.0.0.1:80x: the port \"80x\" is no number from 0 to 65535"),
            ("127.0.0.1:65536", "127.0.0.1:65536: the port \"65536\" is no number from 0 to 65535"),
        ] {
            assert_eq!(resolve(text), format!("getaddrinfo: {wanted} (ENOENT)"));
        }
    }

    #[test]
    fn other_addresses_are_those_of_the_standard_library() {
        assert_eq!(resolve("192.0.2.1:7471"), "192.0.2.1:7471");
        assert_eq!(resolve("[2001:db8::1]:7471"), "[2001:db8::1]:7471");
        assert_eq!(resolve((Ipv4Addr::LOCALHOST, 7471)), "127.0.0.1:7471");
        let both: [SocketAddr; 2] = [([192, 0, 2, 1], 1).into(), ([192, 0, 2, 2], 2).into()];
        assert_eq!(
            (resolve(&both[..]), resolve(both[0])),
            ("192.0.2.1:1 192.0.2.2:2".into(), "192.0.2.1:1".into())
        );
        for wrong in ["no port", "[fe80::1%lo]", "[fe80::1%lo]:port", "[fe80::1%lo]:65536"] {
            let error = wrong.to_addresses().unwrap_err();
            assert!(error.errno == Errno::NOENT && error.to_string().contains(wrong), "{error}");
        }
    }
}
