//! Parts that the tools of connections by address share.
//!
//! | file | content |
//! |---|---|
//! | [`address`] | hosts and services on a command line, looked up like `rdma_getaddrinfo(3)` |
//! | this one | the event channel, and the failures of calls, in C's words |

pub mod address;

use std::fmt;

use rdmacm::{Event, EventChannel, EventKind};
use verbs::{Errno, Error};

use crate::console::{Console, Failed};

/// Opens an event channel.
///
/// # Errors
/// The connection manager cannot be used; the failure has been reported, in the words of
/// rdma-core's `create_event_channel`, and its errno is returned as C's program finds it.
pub fn create_event_channel(console: &mut Console) -> Result<EventChannel, Errno> {
    EventChannel::new().map_err(|error| {
        let errno = channel_errno(&error);
        if errno == Errno::NODEV {
            console.complain("No RDMA devices were detected");
        } else {
            console.complain(format_args!("failed to create RDMA CM event channel: {}", errno.description()));
        }
        console.reason(error);
        errno
    })
}

/// Returns the errno with which librdmacm refuses to start, for the error of an event channel: it
/// looks for devices first.
pub fn channel_errno(error: &Error) -> Errno {
    match verbs::devices() {
        Ok(list) if !list.is_empty() => error.errno,
        _ => Errno::NODEV,
    }
}

/// Reports the failure of a call like `perror(3)`, and its reason.
pub fn perror(call: impl fmt::Display, error: &Error, console: &mut Console) -> Failed {
    console.complain(format_args!("{call}: {}", error.errno.description()));
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
