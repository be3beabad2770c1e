//! [`ConnectError`]: the reason why no connection was made, with the failed step.

use core::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use verbs::{Cause, Errno, Error};

use crate::device::Port;
use crate::event::Rejection;

/// The reason why [`Connector::connect`](crate::Connector::connect) made no connection. With
/// several addresses, it is the reason for the last address tried.
///
/// It converts into [`Error`] and [`std::io::Error`], so `?` works in functions returning these.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectError {
    /// The address of the failed attempt; `None` if the lookup found no address.
    pub address: Option<SocketAddr>,
    /// The step that failed or did not finish in time.
    pub step: ConnectStep,
    /// The peer's reject, with its reason and private data.
    pub rejection: Option<Rejection>,
    /// The error, whose message begins with the address. Boxed, because a large error would also
    /// make successful results large.
    pub error: Box<Error>,
}

/// A step in connecting to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectStep {
    /// The lookup of the host's name.
    Lookup,
    /// The resolution of the address to a device that reaches it.
    ResolveAddr,
    /// The resolution of the route.
    ResolveRoute,
    /// The creation of the queue pair by the program's setup.
    CreateQp,
    /// The connection request and the peer's reply.
    Connect,
}

impl ConnectStep {
    /// Returns the name of the step's call, for errors.
    pub(super) const fn verb(self) -> &'static str {
        match self {
            Self::Lookup => "getaddrinfo",
            Self::ResolveAddr => "resolve_addr",
            Self::ResolveRoute => "resolve_route",
            Self::CreateQp => "create_qp",
            Self::Connect => "connect",
        }
    }

    /// Returns the error text for a step that did not finish in time.
    pub(super) const fn unfinished(self) -> &'static str {
        match self {
            Self::Lookup => "the name was not looked up",
            Self::ResolveAddr => "the address was not resolved",
            Self::ResolveRoute => "the route was not resolved",
            Self::CreateQp => "the queue pair was not created",
            Self::Connect => "the peer did not accept",
        }
    }
}

impl ConnectError {
    /// Returns the error of a step, with the address in its message.
    pub(super) fn new(
        address: Option<SocketAddr>,
        step: ConnectStep,
        error: Error,
        rejection: Option<Rejection>,
    ) -> Self {
        let error = match (address, &error.cause) {
            (Some(address), Cause::Other { reason }) => {
                let reason = format!("{address}: {reason}").into();
                error.because(Cause::Other { reason })
            }
            (Some(address), Cause::Unknown) => {
                let reason = format!("{address}: {}", error.errno.description()).into();
                error.because(Cause::Other { reason })
            }
            _ => error,
        };
        Self { address, step, rejection, error: Box::new(error) }
    }

    /// Adds the reason why the kernel's devices were not considered, if no device was found. A
    /// machine without the kernel's connection manager has only soft devices; there the reason
    /// names a suitable soft device.
    pub(super) fn with_kernel(mut self, kernel: Option<&Error>) -> Self {
        if let (ConnectStep::ResolveAddr, Errno::NODEV, Cause::Other { reason }, Some(kernel)) =
            (self.step, self.error.errno, &self.error.cause, kernel)
        {
            let reason = match (kernel.errno, self.address) {
                (Errno::NOENT, Some(to)) => of_soft(to, &Port::all()),
                _ => format!("{reason}; none of the kernel is asked: {kernel}"),
            };
            self.error.cause = Cause::Other { reason: reason.into() };
        }
        self
    }
}

/// Explains why the soft devices, the only ones of this process, do not reach an address.
fn of_soft(to: SocketAddr, ports: &[Port]) -> String {
    let name = |port: &Port| match port.reaches_network() {
        true => port.address().to_string(),
        false => format!("{}, only for this host", port.address()),
    };
    let have: Vec<_> = ports.iter().map(name).collect();
    let mut reason = format!("{to}: the soft devices of this process ({}) do not reach it", have.join(", "));
    let from = match UdpSocket::bind((unspecified(to), 0)) {
        Ok(socket) => socket.connect(to).and_then(|()| socket.local_addr()).ok(),
        Err(_) => None,
    };
    match from.map(|from| from.ip()) {
        Some(from) if !from.is_loopback() => {
            reason += &format!(": VERBS_SOFT={from} makes one on the interface that routes to it");
        }
        Some(_) => {}
        None => reason += ", and no route leads to it",
    }
    reason
}

/// Returns the unspecified address in the family of `to`.
fn unspecified(to: SocketAddr) -> IpAddr {
    if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// Formats like `Display`, because `main` prints a returned error with `Debug`.
impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl std::error::Error for ConnectError {}

impl From<ConnectError> for Error {
    fn from(failed: ConnectError) -> Self {
        *failed.error
    }
}

impl From<ConnectError> for std::io::Error {
    fn from(failed: ConnectError) -> Self {
        (*failed.error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(cause: Cause) -> ConnectError {
        let error = Error::new("connect", "", Errno::TIMEDOUT).because(cause);
        ConnectError::new(Some(([192, 0, 2, 1], 7471).into()), ConnectStep::Connect, error, None)
    }

    #[test]
    fn the_sentence_names_the_address_and_keeps_the_reason() {
        let silent = error(Cause::Other { reason: "the peer did not accept within 5s".into() });
        let text = "connect: 192.0.2.1:7471: the peer did not accept within 5s (ETIMEDOUT)";
        assert_eq!((silent.to_string().as_str(), format!("{silent:?}").as_str()), (text, text));
        assert_eq!(Error::from(silent.clone()).to_string(), text);
        assert_eq!(std::io::Error::from(silent).kind(), std::io::ErrorKind::TimedOut);
        let bare = error(Cause::Unknown).to_string();
        assert_eq!(bare, "connect: 192.0.2.1:7471: Connection timed out (ETIMEDOUT)");
    }

    #[test]
    fn an_address_without_a_device_says_why_the_kernel_was_not_asked() {
        let kernel = Error::new("create_event_channel", "", Errno::ACCESS);
        let unresolved = |step| {
            let error = Error::new("resolve_addr", "", Errno::NODEV);
            let error = error.because(Cause::Other { reason: "no device".into() });
            ConnectError::new(None, step, error, None).with_kernel(Some(&kernel)).to_string()
        };
        assert!(unresolved(ConnectStep::ResolveAddr).contains("no device; none of the kernel is asked: "));
        assert!(unresolved(ConnectStep::ResolveAddr).contains("EACCES"));
        assert!(!unresolved(ConnectStep::Connect).contains("EACCES"));
        let silent = error(Cause::Other { reason: "silence".into() }).with_kernel(Some(&kernel));
        assert!(!silent.to_string().contains("EACCES"));
    }

    #[cfg(feature = "soft")]
    #[test]
    fn a_process_with_soft_devices_alone_is_not_advised_to_make_the_one_that_it_has() {
        let device = crate::own_device::own_device();
        let address = device.open().unwrap().find_gid(1).unwrap().gid.address();
        let kernel = Error::new("create_event_channel", "", Errno::NOENT);
        let error = Error::new("resolve_addr", "", Errno::NODEV);
        let error = error.because(Cause::Other { reason: "no device".into() });
        let to = Some(([192, 0, 2, 1], 7471).into());
        let text = ConnectError::new(to, ConnectStep::ResolveAddr, error, None)
            .with_kernel(Some(&kernel))
            .to_string();
        assert!(
            text.starts_with("resolve_addr: 192.0.2.1:7471: the soft devices of this process ("),
            "{text}"
        );
        assert!(text.contains(&address.to_string()) && !text.contains("VERBS_SOFT=auto"), "{text}");
        assert!(text.contains(": VERBS_SOFT=") || text.contains("no route leads to it"), "{text}");
    }

    #[test]
    fn a_cause_with_fields_stays_as_it_is() {
        let gone = error(Cause::DeviceGone);
        assert_eq!(gone.error.cause, Cause::DeviceGone);
    }
}
