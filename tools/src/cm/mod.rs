//! Parts that the tools of connections by address share.
//!
//! | file | content |
//! |---|---|
//! | [`address`] | hosts and services on a command line, looked up like `rdma_getaddrinfo(3)` |
//! | [`endpoint`] | ids whose calls wait for their outcome, like those of `rdma_create_ep(3)` |
//! | [`messages`] | `rdma_server`, `rdma_client`, `rdma_xserver`, `rdma_xclient` |
//! | [`options`] | their command lines |
//! | this one | the event channel, and the failures of calls, in C's words |

pub mod address;
pub mod endpoint;
pub mod messages;
pub mod options;

use std::fmt;

use rdmacm::{Event, EventChannel, EventKind};
use verbs::{Errno, Error, Source};

use crate::console::{Console, Failed, NO_RDMA, strerror};

/// The reason for which the connection manager cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// The errno with which librdmacm refuses to start: `ENODEV` without devices, whatever else is
    /// missing.
    pub errno: Errno,
    /// The reasons, in words.
    pub reasons: Vec<String>,
}

impl Unusable {
    /// Reports the reasons.
    pub fn explain(&self, console: &mut Console) {
        self.reasons.iter().for_each(|reason| console.reason(reason));
    }
}

/// Opens an event channel.
///
/// # Errors
/// There is no device, or the connection manager cannot be used.
pub fn open_event_channel() -> Result<EventChannel, Unusable> {
    let unusable = |errno, reasons| Err(Unusable { errno, reasons });
    match verbs::devices() {
        Ok(list) if !list.is_empty() => {
            EventChannel::new().or_else(|error| unusable(error.errno, vec![error.to_string()]))
        }
        Ok(list) if list.source() == Source::None && list.skipped().is_empty() => {
            unusable(Errno::NODEV, vec![NO_RDMA.into()])
        }
        Ok(list) => {
            let none = list.first().err().map(|error| error.to_string());
            let skipped = list.skipped().iter().map(ToString::to_string);
            unusable(Errno::NODEV, none.into_iter().chain(skipped).collect())
        }
        Err(error) => unusable(Errno::NODEV, vec![error.to_string()]),
    }
}

/// Opens an event channel, and reports a failure in the words of rdma-core's program.
///
/// # Errors
/// The errno that C's program finds; reported.
pub fn create_event_channel(console: &mut Console) -> Result<EventChannel, Errno> {
    open_event_channel().map_err(|unusable| {
        let errno = unusable.errno;
        if errno == Errno::NODEV {
            console.complain("No RDMA devices were detected");
        } else {
            console.complain(format_args!("failed to create RDMA CM event channel: {}", errno.description()));
        }
        unusable.explain(console);
        errno
    })
}

/// Reports the failure of a call like `perror(3)`, and its reason.
pub fn perror(call: impl fmt::Display, error: &Error, console: &mut Console) -> Failed {
    console.complain(format_args!("{call}: {}", strerror(error.errno)));
    console.because(error)
}

/// Waits for the outcome of a call, on a channel that has the events of one id alone.
///
/// # Errors
/// The channel cannot be read; or the outcome is a failure, as the errno that librdmacm sets in a
/// call that waits: `ECONNREFUSED` of a reject, otherwise that of the event's status.
pub fn complete(channel: &EventChannel) -> Result<Event, Error> {
    let event = channel.next_event()?;
    let status = event.status.0;
    if status == 0 {
        return Ok(event);
    }
    let is_reject = matches!(event.kind, EventKind::Rejected(_));
    let errno = if is_reject { Errno::CONNREFUSED } else { Errno::from_raw(status.saturating_abs()) };
    // Kinds that are no failure for the library are one here, if their status says so.
    let error = event.ok().err().unwrap_or_else(|| Error::new("get_cm_event", "", errno));
    Err(Error { errno, ..error })
}
