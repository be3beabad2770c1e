//! Turns a backend's event into an API event: finds the id, consumes internal events, extracts the
//! data.
//!
//! | event | action |
//! |---|---|
//! | of an id that is gone | dropped; a connection request is rejected when its id is dropped |
//! | `CONNECT_REQUEST` | the new id is entered, with the listener's space and service |
//! | `CONNECT_RESPONSE` | a queue pair held by the id moves to RTS, and `ESTABLISHED` is returned |
//! | `REJECTED` | a queue pair held by the id moves to the error state |
//! | `REJECTED`, `DISCONNECTED` after a failed response | skipped: `CONNECT_ERROR` came before |
//!
//! The kernel's events are not trusted to be consistent. An event for a membership whose kind
//! applies to ids is skipped, as is the reverse.

use std::sync::Arc;

use crate::backend::{Param, RawEvent};
use crate::event::{ConnectRequest, Event, EventKind, Rejection, Status};
use crate::id::table::{self, Entry};
use crate::id::{CmId, GroupKey, IdInner, IdKey};
use crate::types::{EventType, Peer, RejectReason};

/// Returns the API event, unless the event is consumed internally or its id is gone.
pub(crate) fn dispatch(raw: RawEvent) -> Option<Event> {
    // A request to a dropped listener is rejected here, because its id is dropped.
    let (cookie, Entry { id, is_group }) = table::find(raw.uid, raw.kernel_number)?;
    let id = id.upgrade()?;
    let (ece, status) = (raw.ece, raw.status);
    let key = IdKey(id.cookie());
    let event = |kind, status| Some(Event { id: key, kind, status: Status(status), ece, param: None });
    if is_group {
        let group = GroupKey(cookie);
        return match raw.event {
            EventType::MULTICAST_JOIN => {
                event(EventKind::MulticastJoin { group, ud: raw.param.ud() }, status)
            }
            EventType::MULTICAST_ERROR => event(EventKind::MulticastError { group }, status),
            _ => None,
        };
    }
    let param = if has_param(raw.event) { peer(&id, &*raw.param).filled() } else { None };
    let kind = match raw.event {
        EventType::ADDR_RESOLVED => EventKind::AddrResolved,
        EventType::ADDR_ERROR => EventKind::AddrError,
        EventType::ROUTE_RESOLVED => EventKind::RouteResolved,
        EventType::ROUTE_ERROR => EventKind::RouteError,
        EventType::CONNECT_REQUEST => EventKind::ConnectRequest(request(&id, raw)?),
        EventType::CONNECT_RESPONSE => return response(&id, &raw),
        EventType::CONNECT_ERROR => EventKind::ConnectError,
        EventType::UNREACHABLE => EventKind::Unreachable,
        EventType::REJECTED => {
            if id.has_failed() {
                return None;
            }
            id.fail_qp();
            let reason = u16::try_from(status).ok().map(RejectReason);
            let private_data = peer(&id, &*raw.param).private_data().to_vec();
            EventKind::Rejected(Rejection { reason, private_data })
        }
        EventType::ESTABLISHED => EventKind::Established(peer(&id, &*raw.param)),
        EventType::DISCONNECTED if id.has_failed() => return None,
        EventType::DISCONNECTED => EventKind::Disconnected,
        EventType::DEVICE_REMOVAL => EventKind::DeviceRemoval,
        EventType::MULTICAST_JOIN | EventType::MULTICAST_ERROR => return None,
        EventType::ADDR_CHANGE => EventKind::AddrChange,
        EventType::TIMEWAIT_EXIT => EventKind::TimewaitExit,
        EventType::ADDRINFO_RESOLVED => EventKind::AddrinfoResolved,
        EventType::ADDRINFO_ERROR => EventKind::AddrinfoError,
        EventType::USER => EventKind::User(raw.param.arg()),
        EventType::INTERNAL => EventKind::Internal(raw.param.arg()),
        unknown => EventKind::Unknown(unknown),
    };
    Some(Event { id: key, kind, status: Status(status), ece, param })
}

/// Returns whether an event has parameters from the peer that are not part of its kind.
fn has_param(event: EventType) -> bool {
    use EventType as E;
    !matches!(
        event,
        E::ADDR_RESOLVED
            | E::ROUTE_RESOLVED
            | E::CONNECT_REQUEST
            | E::ESTABLISHED
            | E::ADDRINFO_RESOLVED
            | E::ADDRINFO_ERROR
            | E::USER
            | E::INTERNAL
    )
}

/// Creates the id of a connection request and enters it in the table.
fn request(listener: &Arc<IdInner>, raw: RawEvent) -> Option<ConnectRequest> {
    let peer = peer(listener, &*raw.param);
    let backend = raw.request?;
    // Without memory for the id, the request is rejected here, because its backend is dropped.
    let id = CmId::new(table::reserve().ok()?, backend, listener.space(), listener.qp_type());
    id.inner().asked(listener, &peer, raw.ece);
    id.inner().give_cookie();
    Some(ConnectRequest { id, peer })
}

/// Handles a peer's reply if the id holds a queue pair; otherwise the program handles it.
fn response(id: &Arc<IdInner>, raw: &RawEvent) -> Option<Event> {
    let param = raw.param.conn();
    let ece = raw.ece;
    let (kind, status) = match id.respond(ece) {
        None => (EventKind::ConnectResponse(param), raw.status),
        Some(Ok(())) => (EventKind::Established(Peer::Conn(param)), 0),
        Some(Err(error)) => (EventKind::ConnectError, -error.errno.raw()),
    };
    Some(Event { id: IdKey(id.cookie()), kind, status: Status(status), ece, param: None })
}

fn peer(id: &IdInner, param: &dyn Param) -> Peer {
    if id.is_ud() { Peer::Ud(param.ud()) } else { Peer::Conn(param.conn()) }
}
