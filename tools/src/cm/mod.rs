//! Parts shared by the tools that connect by address.
//!
//! | file | content |
//! |---|---|
//! | [`address`] | hosts and services on a command line, resolved like `rdma_getaddrinfo(3)` |
//! | [`endpoint`] | ids with blocking calls, as from `rdma_create_ep(3)` |
//! | [`messages`] | `rdma_server`, `rdma_client`, `rdma_xserver`, `rdma_xclient` |
//! | [`options`] | their command lines |
//! | this file | the event channel, and the C programs' messages for failed calls |

pub mod address;
pub mod endpoint;
pub mod messages;
pub mod options;

use std::fmt;

use rdmacm::{Event, EventChannel, EventKind};
use verbs::{Errno, Error, Source};

use crate::console::{Console, Failed, NO_RDMA, strerror};

/// The reasons why the connection manager cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// The errno that librdmacm reports if it cannot start: `ENODEV` without devices, even if
    /// something else is also missing.
    pub errno: Errno,
    /// The reasons, as text for the user.
    pub reasons: Vec<String>,
}

impl Unusable {
    /// Prints the reasons.
    pub fn explain(&self, console: &mut Console) {
        self.reasons.iter().for_each(|reason| console.reason(reason));
    }
}

/// Opens an event channel.
///
/// # Errors
/// Fails if no device exists, or the connection manager cannot be used.
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

/// Opens an event channel, reporting a failure like rdma-core's program.
///
/// # Errors
/// Returns the C program's errno; the failure has been reported.
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

/// Reports the failure of a call like `perror(3)`, followed by the reason.
pub fn perror(call: impl fmt::Display, error: &Error, console: &mut Console) -> Failed {
    console.complain(format_args!("{call}: {}", strerror(error.errno)));
    console.because(error)
}

/// Waits for the outcome of a call on a channel that carries the events of a single id.
///
/// # Errors
/// Fails if the channel cannot be read, or the outcome is a failure. The errno is the same as from
/// a blocking librdmacm call: `ECONNREFUSED` for a reject, otherwise the event's status.
pub fn complete(channel: &EventChannel) -> Result<Event, Error> {
    let event = channel.next_event()?;
    let status = event.status.0;
    if status == 0 {
        return Ok(event);
    }
    let is_reject = matches!(event.kind, EventKind::Rejected(_));
    let errno = if is_reject { Errno::CONNREFUSED } else { Errno::from_raw(status.saturating_abs()) };
    // Some event types that the library accepts are failures here if their status is an error.
    let error = event.ok().err().unwrap_or_else(|| Error::new("get_cm_event", "", errno));
    Err(Error { errno, ..error })
}
