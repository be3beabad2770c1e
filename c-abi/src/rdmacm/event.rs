//! Events: reading them, processing them before the program receives them, and acknowledging them.
//!
//! | event from the crate | before the program receives it |
//! |---|---|
//! | `ADDR_RESOLVED` | addresses and device are copied into the id |
//! | `ROUTE_RESOLVED` | the paths are copied |
//! | `CONNECT_REQUEST` | the new id gets its addresses, device and paths |
//! | `CONNECT_RESPONSE` | the id's queue pair moves to RTS, the peer is notified: `ESTABLISHED` |
//! | `REJECTED` | the id's queue pair is moved to ERR |
//! | `REJECTED`, `UNREACHABLE`, `DISCONNECTED`, failures | the peer's parameters are copied |
//! | `REJECTED`, `DISCONNECTED` after a failed response | skipped |
//! | `MULTICAST_JOIN` | the id's queue pair is attached, unless the membership is send-only |
//! | `ADDRINFO_RESOLVED` | the services are fetched |
//! | `INTERNAL` of `rdma_resolve_addrinfo` | becomes `ADDRINFO_RESOLVED` |
//!
//! # Safety
//! See [`rdmacm`](super). The id of an event is live, because destroying it waits for the
//! acknowledgement.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::{null, null_mut};
use std::sync::Arc;

use rdmacm::{EventKind, EventType, GroupKey, Peer, PeerParam, PeerUd};
use verbs_core::Errno;
use verbs_core::types::{Ece, Gid};

use super::group::Group;
use super::id::{self, Claimed, Kind, private};
use super::tally::Tally;
use super::{
    Result, addrinfo, channel, given, given_room, lifecycle, minus_one, of_verb, qp, refuse, route, status,
};
use crate::abi::c::{
    RDMA_CM_EVENT_REJECTED, rdma_cm_event, rdma_cm_event_param, rdma_cm_event_type, rdma_cm_id,
    rdma_conn_param, rdma_event_channel, rdma_ud_param,
};
use crate::abi::convert::{ah_attr_to_c, gid_to_c};
use crate::handle::object::Object;
use crate::verbs::qp::ibv_attach_mcast;

/// The private part of an event, after the public struct.
struct Private {
    /// The tally that counted the event; for a connection request, the listener's tally.
    tally: Arc<Tally>,
    group: Option<Arc<Group>>,
    /// The memory that `private_data` in the parameters points to.
    _data: Box<[u8]>,
}

type EventObject = Object<rdma_cm_event, Private>;

/// An event before its memory is allocated.
struct Draft {
    id: *mut rdma_cm_id,
    listener: *mut rdma_cm_id,
    event: EventType,
    status: c_int,
    param: Param,
    group: Option<Arc<Group>>,
}

/// The parameters of an event.
enum Param {
    None,
    Conn(PeerParam),
    Ud(PeerUd),
    /// The parameters of a multicast group, and the pointer that the program passed with it.
    Group(PeerUd, *mut c_void),
    Arg(u64),
}

/// Returns the next event of a channel; waits for it unless the program has set `O_NONBLOCK`.
///
/// # Errors
/// Same as `Channel::next`.
///
/// # Safety
/// `channel` must be live.
pub(super) unsafe fn next(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event> {
    // SAFETY: guaranteed by the caller.
    let mut channel = unsafe { channel::share(channel) };
    loop {
        let claimed;
        (claimed, channel) = channel.next()?;
        let tally = Arc::clone(&claimed.tally);
        // SAFETY: the ids of a claimed event are live.
        match unsafe { Draft::from_claimed(claimed) } {
            Some(draft) => return Ok(draft.finish(tally)),
            None => tally.acknowledge(),
        }
    }
}

impl Draft {
    /// Prepares an event. Returns `None` for an event that is not delivered to the program.
    ///
    /// # Safety
    /// The ids must be live.
    unsafe fn from_claimed(claimed: Claimed) -> Option<Self> {
        let Claimed { id, event, kind, status, ece, param, .. } = claimed;
        let kind = match kind {
            // SAFETY: guaranteed by the caller.
            Kind::Request(made, peer) => return unsafe { Self::of_request(id, made, peer, status) },
            Kind::Other(kind) => kind,
        };
        let param = param.map_or(Param::None, |peer| Param::from_peer(*peer));
        let mut draft = Self { id, listener: null_mut(), event, status, param, group: None };
        // SAFETY: guaranteed by the caller.
        unsafe {
            let has_failed = private(id).state().has_failed;
            match kind {
                EventKind::AddrResolved => {
                    draft.judge(route::resolved(id), EventType::ADDR_ERROR);
                }
                EventKind::RouteResolved => {
                    draft.judge(route::copy_paths(id), EventType::ROUTE_ERROR);
                }
                EventKind::ConnectResponse(param) => {
                    draft.param = Param::Conn(param);
                    if !(*id).qp.is_null() {
                        draft.event = EventType::ESTABLISHED;
                        draft.status = 0;
                        let responded = respond(id, ece);
                        private(id).state().has_failed = responded.is_err();
                        draft.judge(responded, EventType::CONNECT_ERROR);
                    }
                }
                EventKind::Established(peer) => draft.param = Param::from_peer(peer),
                EventKind::Rejected(_) | EventKind::Disconnected if has_failed => return None,
                EventKind::Rejected(_) => {
                    // The device may be gone; the event is delivered anyway.
                    let _ = qp::modify_to_error(id);
                }
                EventKind::MulticastJoin { group, ud } => {
                    draft.join(find(id, group)?, ud);
                }
                EventKind::MulticastError { group } => {
                    let group = find(id, group)?;
                    draft.param = Param::Group(PeerUd::default(), group.context());
                    draft.group = Some(group);
                }
                EventKind::AddrinfoResolved => {
                    draft.judge(addrinfo::resolved(id), EventType::ADDRINFO_ERROR);
                }
                EventKind::AddrinfoError => private(id).state().is_resolving = false,
                EventKind::User(arg) => draft.param = Param::Arg(arg),
                // The only known kind, which `rdma_resolve_addrinfo` writes.
                EventKind::Internal(arg) if arg == EventType::ADDRINFO_RESOLVED.0.into() => {
                    draft.event = EventType::ADDRINFO_RESOLVED;
                    draft.judge(addrinfo::resolved(id), EventType::ADDRINFO_ERROR);
                }
                EventKind::Internal(_) => return None,
                _ => {}
            }
        }
        Some(draft)
    }

    /// Prepares the id of a connection request. If that fails, the request is rejected.
    ///
    /// # Safety
    /// The ids must be live.
    unsafe fn of_request(
        listener: *mut rdma_cm_id,
        id: *mut rdma_cm_id,
        peer: Peer,
        status: c_int,
    ) -> Option<Self> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if let Peer::Conn(param) = &peer {
                let mut state = private(id).state();
                state.responder_resources = param.responder_resources;
                state.initiator_depth = param.initiator_depth;
            }
            let is_sync = private(listener).state().is_sync;
            let moved = if is_sync { lifecycle::migrate(id, null_mut()) } else { Ok(()) };
            if moved.and_then(|()| route::requested(id)).is_err() {
                lifecycle::destroy(id);
                return None;
            }
        }
        let (event, param) = (EventType::CONNECT_REQUEST, Param::from_peer(peer));
        Some(Self { id, listener, event, status, param, group: None })
    }

    /// Changes the event to `failure` if `result` is an error.
    fn judge(&mut self, result: Result, failure: EventType) {
        if let Err(errno) = result {
            self.event = failure;
            self.status = -errno.raw();
        }
    }

    /// Attaches the id's queue pair to a group.
    ///
    /// # Safety
    /// The id must be live.
    unsafe fn join(&mut self, group: Arc<Group>, ud: PeerUd) {
        self.status = 0;
        // SAFETY: guaranteed by the caller.
        let attached = unsafe { attach(self.id, &group, &ud) };
        self.judge(attached, EventType::MULTICAST_ERROR);
        self.param = Param::Group(ud, group.context());
        self.group = Some(group);
    }

    /// Allocates the event.
    fn finish(self, tally: Arc<Tally>) -> *mut rdma_cm_event {
        let Self { id, listener, event, status, param, group } = self;
        let (param, data) = param.into_c();
        let c = rdma_cm_event { id, listen_id: listener, event: event.0, status, param };
        EventObject::boxed(c, Private { tally, group, _data: data })
    }
}

/// Moves an id's queue pair to RTS after the peer's reply and sends the confirmation.
///
/// # Errors
/// `EINVAL` for a reply with another vendor's ECE options; any error from moving the queue pair, or
/// from [`CmId::establish`](rdmacm::CmId::establish). After an error, the queue pair is in ERR.
///
/// # Safety
/// `id` must be live.
unsafe fn respond(id: *mut rdma_cm_id, remote: Ece) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let private = private(id);
        let local = private.state().local_ece;
        let agreed = match remote.vendor_id {
            // The peer, or a part of the path to it, does not support ECE options.
            0 => Ece { options: 0, ..local },
            vendor if vendor == local.vendor_id => remote,
            _ => {
                let _ = qp::modify_to_error(id);
                return Err(refuse("connect", Errno::INVAL, "the peer's options are another vendor's"));
            }
        };
        let own = (*id).qp;
        let told = qp::set_ece(own, agreed)
            .and_then(|()| qp::modify_to_rts(id, None))
            .and_then(|()| private.call(|cm| cm.establish()))
            .and_then(|()| qp::ece_of(own))
            .and_then(|Ece { options, .. }| private.set_local_ece(Ece { options, ..local }));
        told.inspect_err(|_| {
            // The error of the move is reported.
            let _ = qp::modify_to_error(id);
        })
    }
}

/// Finds an event's membership and counts the event in the membership's tally. Returns `None` if
/// the program has left the group.
///
/// # Safety
/// `id` must be live.
unsafe fn find(id: *mut rdma_cm_id, key: GroupKey) -> Option<Arc<Group>> {
    // SAFETY: guaranteed by the caller.
    let groups = unsafe { private(id) }.groups();
    let group = groups.iter().find(|group| group.key == key)?;
    group.tally.read();
    Some(Arc::clone(group))
}

/// Attaches an id's queue pair to a joined group, unless the membership is send-only.
///
/// # Errors
/// Same as `ibv_attach_mcast(3)`.
///
/// # Safety
/// `id` must be live.
unsafe fn attach(id: *mut rdma_cm_id, group: &Group, ud: &PeerUd) -> Result {
    // SAFETY: guaranteed by the caller.
    let qp = unsafe { (*id).qp };
    if qp.is_null() || group.only_sends {
        return Ok(());
    }
    let (gid, lid) = (ud.ah_attr.grh.map_or(Gid::ZERO, |grh| grh.dgid), ud.ah_attr.dlid);
    let of_c = gid_to_c(&gid);
    // SAFETY: the queue pair is live.
    of_verb(unsafe { ibv_attach_mcast(qp, &raw const of_c, lid) })?;
    *group.attached.lock_or(|| None) = Some((gid, lid));
    Ok(())
}

impl Param {
    fn from_peer(peer: Peer) -> Self {
        match peer {
            Peer::Conn(param) => Self::Conn(param),
            Peer::Ud(param) => Self::Ud(param),
        }
    }

    /// Converts the parameters to a C struct. Also returns the memory that the struct points to.
    fn into_c(self) -> (rdma_cm_event_param, Box<[u8]>) {
        // SAFETY: zeroed integers and null pointers are valid.
        let mut param: rdma_cm_event_param = unsafe { core::mem::zeroed() };
        match self {
            Self::None => (param, Box::default()),
            Self::Arg(arg) => {
                param.arg = arg;
                (param, Box::default())
            }
            Self::Conn(conn) => {
                let data = conn.private_data.into_boxed_slice();
                param.conn = rdma_conn_param {
                    private_data: pointer(&data),
                    private_data_len: data.len() as u8,
                    responder_resources: conn.responder_resources,
                    initiator_depth: conn.initiator_depth,
                    flow_control: conn.flow_control.into(),
                    retry_count: conn.retry_count,
                    rnr_retry_count: conn.rnr_retry_count,
                    srq: conn.srq.into(),
                    qp_num: conn.qp_num,
                };
                (param, data)
            }
            Self::Ud(mut ud) => {
                let data = core::mem::take(&mut ud.private_data).into_boxed_slice();
                param.ud = ud_to_c(&ud, pointer(&data), data.len() as u8);
                (param, data)
            }
            Self::Group(ud, context) => {
                // As in rdma-core, the length of the data that the pointer replaces is kept.
                param.ud = ud_to_c(&ud, context, ud.private_data.len() as u8);
                (param, Box::default())
            }
        }
    }
}

/// Returns the address of the bytes, or null for an empty slice.
fn pointer(data: &[u8]) -> *const c_void {
    if data.is_empty() { null() } else { data.as_ptr().cast() }
}

fn ud_to_c(ud: &PeerUd, private_data: *const c_void, private_data_len: u8) -> rdma_ud_param {
    let ah_attr = ah_attr_to_c(&ud.ah_attr);
    rdma_ud_param { private_data, private_data_len, ah_attr, qp_num: ud.qp_num, qkey: ud.qkey }
}

/// Returns the result of a synchronous call, given its final event.
pub(super) fn result_of(event: &rdma_cm_event) -> Result {
    match event.status {
        0 => Ok(()),
        _ if event.event == RDMA_CM_EVENT_REJECTED => Err(Errno::CONNREFUSED),
        status => Err(Errno::from_raw(status.unsigned_abs().try_into().unwrap_or(libc::EIO))),
    }
}

/// `rdma_get_cm_event(3)`. A cancellation point.
///
/// # Safety
/// `channel` must be live; `event` must be null or point to a pointer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    given!(channel, event);
    given_room!();
    // SAFETY: guaranteed by the caller.
    status(unsafe { next(channel).map(|read| *event = read) })
}

/// `rdma_ack_cm_event(3)`.
///
/// # Safety
/// `event` must be null, or read and not yet acknowledged.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    given!(event);
    // SAFETY: `finish` created the box.
    let Private { tally, group, .. } = unsafe { *Box::from_raw(event.cast::<EventObject>()) }.inner;
    if let Some(group) = group {
        group.tally.acknowledge();
    }
    tally.acknowledge();
    0
}

/// `rdma_write_cm_event(3)`: accepts only events of the kind `RDMA_CM_EVENT_USER`.
///
/// # Safety
/// `id` must be live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    outcome: c_int,
    arg: u64,
) -> c_int {
    given!(id);
    given_room!();
    if event != EventType::USER.0 {
        return minus_one(refuse("write_cm_event", Errno::INVAL, "programs write RDMA_CM_EVENT_USER alone"));
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        // This is necessary for a request that has not been accepted.
        id::enter(id);
        status(private(id).call(|cm| cm.write_event(outcome, arg)))
    }
}

/// `rdma_event_str(3)`. As in rdma-core, events that programs write have no text.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    usize::try_from(event).ok().and_then(|at| NAMES.get(at)).map_or(c"UNKNOWN EVENT", |name| *name).as_ptr()
}

const NAMES: [&CStr; 18] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    c"RDMA_CM_EVENT_ADDRINFO_ERROR",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_the_names_of_the_crate_except_those_that_programs_write() {
        for event in EventType::NAMED {
            // SAFETY: the text is static.
            let text = unsafe { CStr::from_ptr(rdma_event_str(event.0)) }.to_str().unwrap();
            let is_written = matches!(*event, EventType::USER | EventType::INTERNAL);
            assert_eq!(text, if is_written { "UNKNOWN EVENT" } else { event.name().unwrap() });
        }
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(rdma_event_str(u32::MAX)) }, c"UNKNOWN EVENT");
    }

    #[test]
    fn the_status_of_an_event_is_the_errno_of_a_synchronous_call() {
        let event = |event: EventType, status| {
            // SAFETY: zeroed integers and null pointers are valid.
            let param = unsafe { core::mem::zeroed() };
            result_of(&rdma_cm_event { id: null_mut(), listen_id: null_mut(), event: event.0, status, param })
        };
        assert_eq!(event(EventType::ESTABLISHED, 0), Ok(()));
        assert_eq!(event(EventType::REJECTED, 8), Err(Errno::CONNREFUSED));
        assert_eq!(event(EventType::UNREACHABLE, -110), Err(Errno::TIMEDOUT));
        assert_eq!(event(EventType::ADDR_ERROR, i32::MIN), Err(Errno::IO));
    }
}
