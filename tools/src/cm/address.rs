//! Hosts and services on a command line, resolved like `rdma_getaddrinfo(3)`, with the error codes
//! and messages of `getaddrinfo(3)`.

use std::ffi::OsStr;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;

use rdmacm::{AddrInfo, Family, Hints, PortSpace, getaddrinfo};

use crate::console::Console;

/// A failed lookup of a host or service: the `getaddrinfo(3)` error code and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// The error code, one of `EAI_...`.
    pub code: i32,
    /// The reason as text, including the name that was looked up.
    pub reason: String,
}

impl Unresolved {
    /// `EAI_BADFLAGS`, which `rdma_getaddrinfo` returns if librdmacm cannot start.
    pub const BADFLAGS: i32 = -1;
    const NONAME: i32 = -2;
    const SERVICE: i32 = -8;
    const ADDRFAMILY: i32 = -9;

    /// Returns the message for the error code.
    pub fn text(&self) -> &'static str {
        gai_strerror(self.code)
    }
}

/// Returns glibc's message for an error code of `getaddrinfo(3)`.
///
/// # References
/// `gai_strerror(3)`
pub fn gai_strerror(code: i32) -> &'static str {
    SENTENCES.iter().find(|(number, _)| *number == code).map_or("Unknown error", |(_, text)| text)
}

/// Looks up a host and a service and returns the first address.
///
/// # Errors
/// Fails if the lookup fails. The error holds the `getaddrinfo(3)` error code and the reason.
///
/// # References
/// `rdma_getaddrinfo(3)`
pub fn rdma_getaddrinfo(
    node: Option<&OsStr>,
    service: Option<&OsStr>,
    hints: &Hints,
) -> Result<AddrInfo, Unresolved> {
    let node = node.map(OsStr::to_string_lossy);
    let service = service.map(service_of);
    // If both are missing, the library uses the passive hint or its existing address, as in C.
    let found = getaddrinfo(node.as_deref(), service.as_deref(), hints);
    let error = match found.map(|found| found.into_iter().next()) {
        Ok(Some(info)) => return Ok(info),
        Ok(None) => return Err(Unresolved { code: Unresolved::NONAME, reason: "no address".into() }),
        Err(error) => error,
    };
    let reason = error.to_string();
    let is_service = service.is_some_and(|service| {
        let passive = Hints { passive: true, ..Hints::default() };
        getaddrinfo(None, Some(&service), &passive).is_err()
    });
    let code = if is_service {
        Unresolved::SERVICE
    } else if let Some(code) = code_in(&reason) {
        code
    } else if reason.contains("no address of the family") {
        Unresolved::ADDRFAMILY
    } else {
        Unresolved::NONAME
    };
    Err(Unresolved { code, reason })
}

/// Looks up a host and returns its first address, with port 0.
///
/// # Errors
/// Fails if the lookup fails. The error holds the `getaddrinfo(3)` error code and the reason.
///
/// # References
/// `getaddrinfo(3)`
pub fn lookup_host(node: &OsStr) -> Result<SocketAddr, Unresolved> {
    let name = node.to_string_lossy();
    let unresolved =
        |reason: String| Unresolved { code: code_in(&reason).unwrap_or(Unresolved::NONAME), reason };
    let mut found = (&*name, 0).to_socket_addrs().map_err(|error| unresolved(error.to_string()))?;
    found.next().ok_or_else(|| unresolved(format!("{name} has no address")))
}

/// Looks up the values of `-s`, `-b` and `-p`. With passive hints, returns the address to listen
/// on. Otherwise, returns the address to connect to and, if a source is given, the source address.
///
/// # Errors
/// Returns the `getaddrinfo(3)` error code if the lookup fails. The failure has been reported with
/// the message of rdma-core's `get_rdma_addr`.
pub fn get_rdma_addr(
    source: Option<&OsStr>,
    destination: Option<&OsStr>,
    port: &OsStr,
    hints: &Hints,
    console: &mut Console,
) -> Result<AddrInfo, i32> {
    let found = if hints.passive {
        rdma_getaddrinfo(source, Some(port), hints)
    } else {
        bound(source, hints).and_then(|hints| rdma_getaddrinfo(destination, Some(port), &hints))
    };
    found.map_err(|unresolved| {
        console.say(format_args!("rdma_getaddrinfo error: {}\n", unresolved.text()));
        console.reason(unresolved.reason);
        unresolved.code
    })
}

/// Returns the hints with the source address added.
fn bound(source: Option<&OsStr>, hints: &Hints) -> Result<Hints, Unresolved> {
    let Some(source) = source else { return Ok(hints.clone()) };
    let passive = Hints { passive: true, ..hints.clone() };
    let found = rdma_getaddrinfo(Some(source), None, &passive)?;
    Ok(Hints { source: found.source, ..hints.clone() })
}

/// Applies the value of `-f`: `name`, `ip` (or `ipv6`) or `gid`.
pub fn take_format(value: &OsStr, hints: &mut Hints, console: &mut Console) {
    if begins(value, "ip") {
        hints.numeric_host = true;
    } else if begins(value, "gid") {
        hints.numeric_host = true;
        hints.family = Some(Family::Ib);
    } else if !begins(value, "name") {
        console.complain("Warning: unknown address format");
    }
}

/// Applies the value of `-P`: either `ib`, or the name of the `usual` port space, which is already
/// in the hints.
pub fn take_port_space(value: &OsStr, usual: &str, hints: &mut Hints, console: &mut Console) {
    if begins(value, "ib") {
        hints.port_space = Some(PortSpace::IB);
    } else if !begins(value, usual) {
        console.complain("Warning: unknown port space format");
    }
}

/// Returns whether a value begins with a word, ignoring case.
fn begins(value: &OsStr, word: &str) -> bool {
    value.as_bytes().get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes()))
}

/// Converts a service to a form that the library accepts. As in glibc, a number is taken modulo
/// 2¹⁶, and an empty service is port 0.
fn service_of(service: &OsStr) -> String {
    let text = service.to_string_lossy();
    if text.is_empty() {
        return "0".into();
    }
    text.parse::<u64>().map_or_else(|_| text.clone().into_owned(), |number| (number & 0xffff).to_string())
}

/// Returns the error code whose message occurs in an error text of the standard library.
fn code_in(text: &str) -> Option<i32> {
    SENTENCES.iter().find(|(_, sentence)| text.contains(sentence)).map(|(code, _)| *code)
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The glibc messages, by error code.
const SENTENCES: &[(i32, &str)] = &[
    (Unresolved::BADFLAGS, "Bad value for ai_flags"),
    (Unresolved::NONAME, "Name or service not known"),
    (-3, "Temporary failure in name resolution"),
    (-4, "Non-recoverable failure in name resolution"),
    (-5, "No address associated with hostname"),
    (-6, "ai_family not supported"),
    (-7, "ai_socktype not supported"),
    (Unresolved::SERVICE, "Servname not supported for ai_socktype"),
    (Unresolved::ADDRFAMILY, "Address family for hostname not supported"),
    (-10, "Memory allocation failure"),
    (-11, "System error"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn os(text: &str) -> &OsStr {
        OsStr::new(text)
    }

    fn numbers() -> Hints {
        Hints { numeric_host: true, ..Hints::default() }
    }

    #[test]
    fn a_client_gets_the_address_of_both_sides() {
        let mut console = Console::captured("prog");
        let found =
            get_rdma_addr(Some(os("192.0.2.9")), Some(os("192.0.2.1")), os("7471"), &numbers(), &mut console)
                .expect("numbers");
        assert_eq!(found.destination, Some(([192, 0, 2, 1], 7471).into()));
        assert_eq!(found.source, Some(([192, 0, 2, 9], 0).into()));
        assert_eq!((console.said(), console.complaints()), (String::new(), String::new()));
    }

    #[test]
    fn a_server_without_an_address_listens_on_any() {
        let hints = Hints { passive: true, ..Hints::default() };
        let mut console = Console::captured("prog");
        let found = get_rdma_addr(None, None, os("7471"), &hints, &mut console).expect("any address");
        assert_eq!(found.source, Some(([0, 0, 0, 0], 7471).into()));
        assert_eq!(found.destination, None);
    }

    #[test]
    fn a_name_where_numbers_are_expected_is_said_in_the_words_of_c() {
        let mut console = Console::captured("prog");
        let refused = get_rdma_addr(None, Some(os("localhost")), os("7471"), &numbers(), &mut console);
        assert_eq!(refused, Err(-2));
        assert_eq!(console.said(), "rdma_getaddrinfo error: Name or service not known\n");
        assert!(console.complaints().contains("localhost is no address in numbers"));
    }

    #[test]
    fn an_unknown_service_is_told_from_an_unknown_host() {
        let refused = rdma_getaddrinfo(Some(os("192.0.2.1")), Some(os("nosuch")), &numbers()).unwrap_err();
        assert_eq!(
            (refused.code, refused.text()),
            (Unresolved::SERVICE, "Servname not supported for ai_socktype")
        );
    }

    #[test]
    fn a_family_that_a_host_lacks_has_a_number_of_its_own() {
        let hints = Hints { family: Some(Family::Ipv6), ..numbers() };
        let refused = rdma_getaddrinfo(Some(os("192.0.2.1")), None, &hints).unwrap_err();
        assert_eq!(refused.code, Unresolved::ADDRFAMILY);
    }

    #[test]
    fn a_port_beyond_16_bits_is_taken_modulo_as_in_glibc() {
        for (service, port) in
            [("70000", "4464"), ("65536", "0"), ("7471", "7471"), ("http", "http"), ("", "0")]
        {
            assert_eq!(service_of(os(service)), port);
        }
    }

    #[test]
    fn formats_and_spaces_are_known_by_their_first_letters() {
        for (value, numeric, family) in [
            ("ip", true, None),
            ("IPv6", true, None),
            ("gid", true, Some(Family::Ib)),
            ("name", false, None),
            ("names", false, None),
        ] {
            let (mut hints, mut console) = (Hints::default(), Console::captured("prog"));
            take_format(os(value), &mut hints, &mut console);
            assert_eq!((hints.numeric_host, hints.family), (numeric, family), "{value}");
            assert_eq!(console.complaints(), "", "{value}");
        }
        let (mut hints, mut console) = (Hints::default(), Console::captured("prog"));
        take_format(os("gi"), &mut hints, &mut console);
        take_port_space(os("t"), "tcp", &mut hints, &mut console);
        assert_eq!(hints, Hints::default());
        assert_eq!(
            console.complaints(),
            "Warning: unknown address format\nWarning: unknown port space format\n"
        );
        take_port_space(os("IB"), "tcp", &mut hints, &mut console);
        assert_eq!(hints.port_space, Some(PortSpace::IB));
    }
}
