//! Tests of ids on a scripted kernel: the commands of each call, the effect of each event, and the
//! destruction of ids.

mod connection;
mod groups;

use std::sync::Arc;

use uverbs_abi::rdma_user_cm::{
    RdmaUcmConnParam, RdmaUcmEventResp, RdmaUcmEventRespParam, RdmaUcmQueryAddrResp, RdmaUcmUdParam,
};
use verbs::{Errno, Gid};
use zerocopy::IntoBytes;

use super::*;
use crate::EventChannel;
use crate::backend::{Kernel, Source};
use crate::channel::{Expect, Reply, Scripted};
use crate::{Address, ConnParam, Event, EventKind, IbAddress, Peer};

/// A channel on a scripted kernel.
struct World {
    kernel: Scripted,
    channel: EventChannel,
}

impl World {
    fn new() -> Self {
        Self::with_ib(true)
    }

    /// Returns a kernel with or without support for InfiniBand addresses.
    fn with_ib(takes_ib: bool) -> Self {
        let kernel = Scripted::default();
        let source: Arc<dyn Source> = Arc::new(Kernel(kernel.ucma(takes_ib)));
        Self { channel: EventChannel::from_sources(source, Vec::new()).unwrap(), kernel }
    }

    /// Makes the kernel accept any commands and send these replies in order.
    fn replies(&self, replies: impl IntoIterator<Item = Reply>) {
        self.kernel.expect(replies.into_iter().map(Expect::anything));
    }

    /// Returns an id with the kernel handle `number`.
    fn id(&self, number: u32, space: PortSpace) -> CmId {
        self.replies([Reply::bytes(&number.to_ne_bytes())]);
        self.channel.create_id(space).unwrap()
    }

    /// Returns the channel's API event for a kernel event.
    fn event(&self, event: &RdmaUcmEventResp) -> Option<Event> {
        self.kernel.expect([read(event), no_event()]);
        let found = self.channel.try_next_event().unwrap();
        if found.is_some() {
            // This query follows a skipped event.
            assert!(self.channel.try_next_event().unwrap().is_none());
        }
        found
    }

    /// Returns the command numbers of the last `count` commands.
    fn last(&self, count: usize) -> Vec<String> {
        let seen = self.kernel.seen();
        seen[seen.len() - count..].iter().map(|text| text.split(':').next().unwrap().to_owned()).collect()
    }

    /// Drops an id and checks that it is destroyed.
    fn end(&self, id: CmId) {
        self.replies([Reply::ok()]);
        drop(id);
        assert_eq!(self.last(1), ["1"]);
    }
}

fn read(event: &RdmaUcmEventResp) -> Expect {
    Expect::anything(Reply::bytes(event.as_bytes()))
}

fn no_event() -> Expect {
    Expect::anything(Reply::Errno(Errno::AGAIN))
}

/// Returns an event of the id with the cookie `uid`.
fn event(uid: SlotId, event: EventType, status: i32) -> RdmaUcmEventResp {
    RdmaUcmEventResp { uid: uid.0, event: event.0, status: status as u32, ..RdmaUcmEventResp::default() }
}

/// Returns the event of a connection request to `listener`. The request's id has the handle
/// `number`.
fn request(listener: &CmId, number: u32) -> RdmaUcmEventResp {
    let mut param = RdmaUcmConnParam {
        qp_num: 0x11,
        private_data_len: 5,
        responder_resources: 2,
        initiator_depth: 200,
        ..RdmaUcmConnParam::default()
    };
    param.private_data[..5].copy_from_slice(b"hello");
    RdmaUcmEventResp {
        id: number,
        param: RdmaUcmEventRespParam::from_conn(param),
        ..event(listener.key().0, EventType::CONNECT_REQUEST, 0)
    }
}

/// Returns the id of the connection request in an event.
fn accepted(event: Option<Event>) -> CmId {
    match event.map(|event| event.kind) {
        Some(EventKind::ConnectRequest(request)) => request.id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_id_is_created_with_its_cookie_and_destroyed_when_it_is_dropped() {
    let world = World::new();
    let id = world.id(9, PortSpace::TCP);
    assert!(
        world.kernel.seen()[0]
            .starts_with(&format!("0: in {}", crate::channel::hex(&id.key().0.0.to_ne_bytes())))
    );
    world.end(id);
    assert_eq!(world.kernel.seen()[1], "1: in 00000000000000000900000000000000, out 4");
}

#[test]
fn an_id_that_the_kernel_does_not_make_leaves_nothing() {
    let world = World::new();
    world.replies([Reply::Errno(Errno::NOMEM)]);
    assert_eq!(world.channel.create_id(PortSpace::TCP).unwrap_err().errno, Errno::NOMEM);
}

#[test]
fn the_end_of_an_id_waits_for_no_event_even_if_the_kernel_reports_some() {
    let world = World::new();
    let id = world.id(9, PortSpace::TCP);
    world.replies([Reply::bytes(&u32::MAX.to_ne_bytes())]);
    drop(id);
    let id = world.id(10, PortSpace::TCP);
    world.replies([Reply::Errno(Errno::NOENT)]);
    drop(id);
}

#[test]
fn every_kind_of_event_reaches_the_program_under_its_name() {
    let world = World::new();
    let id = world.id(9, PortSpace::TCP);
    for event_type in EventType::NAMED.iter().copied().chain([EventType(20), EventType(u32::MAX)]) {
        let skipped = [EventType::CONNECT_REQUEST, EventType::MULTICAST_JOIN, EventType::MULTICAST_ERROR];
        if skipped.contains(&event_type) {
            continue;
        }
        let found = world.event(&event(id.key().0, event_type, -5)).unwrap();
        assert_eq!((found.event_type(), found.id), (event_type, id.key()));
        assert_eq!(found.status.errno(), Some(Errno::IO), "{event_type}");
    }
    world.end(id);
}

#[test]
fn events_of_programs_and_of_libraries_are_written_under_their_numbers() {
    let world = World::new();
    let id = world.id(9, PortSpace::TCP);
    world.replies([Reply::ok(), Reply::ok()]);
    id.write_event(0, 7).unwrap();
    id.write_internal_event(0, 7).unwrap();
    let seen = world.kernel.seen();
    let [user, internal] = &seen[seen.len() - 2..] else { panic!("{seen:?}") };
    assert_ne!(user, internal);
    assert_eq!(user.replace("12000000", "13000000"), *internal, "18 and 19");
    world.end(id);
}

#[test]
fn an_event_of_an_id_that_is_gone_is_skipped() {
    let world = World::new();
    let id = world.id(9, PortSpace::TCP);
    let key = id.key();
    world.end(id);
    assert!(world.event(&event(key.0, EventType::ADDR_RESOLVED, 0)).is_none());
    for uid in [0, u64::MAX] {
        assert!(world.event(&event(SlotId(uid), EventType::ESTABLISHED, 0)).is_none());
    }
}

#[test]
fn a_request_of_a_listener_that_is_gone_is_rejected_by_the_end_of_its_id() {
    let world = World::new();
    let listener = world.id(9, PortSpace::TCP);
    let late = request(&listener, 10);
    world.end(listener);
    world.kernel.expect([read(&late)]);
    world.replies([Reply::ok()]);
    world.kernel.expect([no_event()]);
    assert!(world.channel.try_next_event().unwrap().is_none());
    assert_eq!(world.kernel.seen()[3], "1: in 00000000000000000a00000000000000, out 4");
}

#[test]
fn a_request_carries_the_peers_parameters_and_an_id_of_the_listeners_kind() {
    let world = World::new();
    let listener = world.id(9, PortSpace::TCP);
    let found = world.event(&request(&listener, 10)).unwrap();
    assert_eq!(found.id, listener.key());
    let EventKind::ConnectRequest(request) = found.kind else { panic!("{:?}", found.kind) };
    assert_eq!(request.peer.private_data(), b"hello");
    assert_eq!((request.id.port_space(), request.id.qp_type()), (PortSpace::TCP, QpType::RC));
    assert_ne!(request.id.key(), listener.key());
    world.end(request.id);
    assert_eq!(world.kernel.seen().last().unwrap(), "1: in 00000000000000000a00000000000000, out 4");
    world.end(listener);
}

#[test]
fn an_event_of_a_request_that_has_no_cookie_yet_is_found_by_the_kernels_number() {
    let world = World::new();
    let listener = world.id(0x7f00_0001, PortSpace::TCP);
    let id = accepted(world.event(&request(&listener, 0x7f00_0002)));
    let gone = RdmaUcmEventResp { id: 0x7f00_0002, ..event(SlotId(0), EventType::UNREACHABLE, -110) };
    assert_eq!(world.event(&gone).unwrap().id, id.key());
    world.end(id);
    assert!(world.event(&gone).is_none());
    world.end(listener);
}

#[test]
fn an_id_that_moves_uses_the_new_file_from_then_on() {
    let (old, new) = (World::new(), World::new());
    let id = old.id(9, PortSpace::TCP);
    new.replies([Reply::Errno(Errno::NOMEM)]);
    assert_eq!(id.migrate(&new.channel).unwrap_err().errno, Errno::NOMEM);
    old.replies([Reply::ok()]);
    id.listen(1).unwrap();
    new.replies([Reply::ok(), Reply::ok()]);
    id.migrate(&new.channel).unwrap();
    assert_eq!(new.last(1), ["18"]);
    id.listen(1).unwrap();
    let found = new.event(&event(id.key().0, EventType::ADDR_RESOLVED, 0)).unwrap();
    assert_eq!(found.id, id.key());
    new.end(id);
}

#[test]
fn a_request_that_came_before_its_listener_moved_follows_it() {
    let (old, new) = (World::new(), World::new());
    let listener = old.id(9, PortSpace::TCP);
    old.replies([Reply::ok()]);
    listener.listen(1).unwrap();
    new.replies([Reply::ok()]);
    listener.migrate(&new.channel).unwrap();
    for (reply, number) in [(Reply::ok(), 10), (Reply::Errno(Errno::INVAL), 11)] {
        // The id is also destroyed on the new file.
        new.kernel.expect([read(&request(&listener, number)), Expect::anything(reply), no_event()]);
        let found = new.channel.try_next_event().unwrap();
        assert!(new.channel.try_next_event().unwrap().is_none());
        assert_eq!(new.last(3), ["12", "18", "12"]);
        new.end(accepted(found));
    }
    new.end(listener);
    assert_eq!(old.last(1), ["7"]);
}

#[test]
fn an_event_that_an_id_brings_wakes_a_thread_that_waits() {
    let (old, new) = (World::new(), World::new());
    let id = old.id(9, PortSpace::TCP);
    // The channel is checked twice before the wait.
    new.kernel.expect([no_event(), no_event()]);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| new.channel.next_event_within(std::time::Duration::from_secs(20)));
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while new.kernel.remaining() > 0 && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        let brought = event(id.key().0, EventType::ADDR_RESOLVED, 0);
        new.kernel.expect([Expect::anything(Reply::ok()), read(&brought)]);
        id.migrate(&new.channel).unwrap();
        let found = waits.join().unwrap().unwrap().expect("an event in time");
        assert_eq!(found.id, id.key());
    });
    new.end(id);
}

#[test]
fn an_id_outlives_its_channel() {
    let World { kernel, channel } = World::new();
    kernel.expect([Expect::anything(Reply::bytes(&[9, 0, 0, 0]))]);
    let id = channel.create_id(PortSpace::UDP).unwrap();
    drop(channel);
    kernel.expect([Expect::anything(Reply::ok()), Expect::anything(Reply::ok())]);
    id.bind_addr(([0, 0, 0, 0], 0)).unwrap();
    drop(id);
    assert_eq!(kernel.remaining(), 0);
}

#[test]
fn a_kernel_without_infiniband_addresses_gets_the_forms_for_ip() {
    for (takes_ib, numbers) in [(true, ["20", "21", "19", "19", "19"]), (false, ["2", "3", "5", "5", "5"])] {
        let world = World::with_ib(takes_ib);
        let id = world.id(9, PortSpace::TCP);
        world.replies((0..5).map(|_| Reply::ok()));
        id.bind_addr(([192, 0, 2, 1], 0)).unwrap();
        id.resolve_addr(None, ([192, 0, 2, 2], 80), std::time::Duration::from_secs(2)).unwrap();
        assert_eq!(id.local_addr(), Ok(None));
        // The reply without GIDs has no InfiniBand addresses.
        let _ = id.gids();
        assert_eq!(id.paths(), Ok(Vec::new()));
        assert_eq!(world.last(5), numbers);
        world.end(id);
    }
}

#[test]
fn errors_say_what_to_do_and_what_the_limit_is() {
    let world = World::new();
    let id = world.id(9, PortSpace::TCP);
    let refused = |errno: Errno| world.replies([Reply::Errno(errno)]);
    refused(Errno::ADDRINUSE);
    let error = id.bind_addr(([192, 0, 2, 1], 80)).unwrap_err();
    assert!(error.to_string().contains("another id has 192.0.2.1:80"), "{error}");
    let data = [0; 57];
    let param =
        ConnParam { private_data: &data, responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
    // The header depends on the address family.
    let at = |ip: [u8; 4]| local_address(&(ip, 0).into());
    world.replies([Reply::Errno(Errno::INVAL), at([192, 0, 2, 1])]);
    let error = id.connect_with(&param).unwrap_err();
    assert!(error.to_string().contains("length of private_data 57 exceeds"), "{error}");
    world.replies([Reply::Errno(Errno::INVAL), at([192, 0, 2, 1])]);
    let error = id.connect_with(&ConnParam { private_data: &data[..56], ..param }).unwrap_err();
    assert!(error.to_string().contains("ROUTE_RESOLVED"), "{error}");
    // This id has no device.
    world.replies([Reply::ok()]);
    let error = id.context().unwrap_err();
    assert!(error.to_string().contains("no device yet"), "{error}");
    world.end(id);
}

#[test]
fn the_limits_of_private_data_depend_on_the_message_the_service_and_the_family() {
    let world = World::new();
    let ip = Address::from(([192, 0, 2, 1], 7471));
    let ib = |space| Address::from(IbAddress::new(Gid([1; 16]), space, 7471));
    for (space, address, limits) in [
        (PortSpace::TCP, ip, [56, 196, 148]),
        (PortSpace::UDP, ip, [180, 136, 136]),
        (PortSpace::IB, ip, [56, 196, 148]),
        (PortSpace::IB, ib(PortSpace::IB), [92, 196, 148]),
        (PortSpace::TCP, ib(PortSpace::TCP), [92, 196, 148]),
    ] {
        let id = world.id(9, space);
        world.replies([local_address(&address)]);
        let of = [Message::Connect, Message::Accept, Message::Reject];
        assert_eq!(of.map(|message| id.max_private_data(message)), limits, "{space} {address}");
        world.end(id);
    }
    // This id has no address.
    let id = world.id(9, PortSpace::IB);
    world.replies([Reply::bytes(RdmaUcmQueryAddrResp::default().as_bytes())]);
    assert_eq!(id.max_private_data(Message::Connect), 56);
    world.end(id);
}

/// Returns the kernel's reply to a query for an id's addresses.
fn local_address(address: &Address) -> Reply {
    let (src_addr, src_size) = address.to_storage().unwrap();
    Reply::bytes(RdmaUcmQueryAddrResp { src_addr, src_size, ..RdmaUcmQueryAddrResp::default() }.as_bytes())
}

#[test]
fn an_event_of_a_kind_without_parameters_has_those_of_the_peer() {
    let world = World::new();
    let id = world.id(9, PortSpace::TCP);
    let mut param =
        RdmaUcmConnParam { private_data_len: 3, initiator_depth: 4, ..RdmaUcmConnParam::default() };
    param.private_data[..3].copy_from_slice(b"why");
    let with_param = |kind| RdmaUcmEventResp {
        param: RdmaUcmEventRespParam::from_conn(param),
        ..event(id.key().0, kind, -110)
    };
    for kind in [
        EventType::UNREACHABLE,
        EventType::REJECTED,
        EventType::DISCONNECTED,
        EventType::CONNECT_ERROR,
        EventType::ADDR_ERROR,
        EventType::ROUTE_ERROR,
        EventType::DEVICE_REMOVAL,
        EventType::ADDR_CHANGE,
        EventType::TIMEWAIT_EXIT,
        EventType(99),
    ] {
        let found = world.event(&with_param(kind)).unwrap();
        let Some(Peer::Conn(peer)) = found.param.as_deref() else { panic!("{found:?}") };
        assert_eq!((&peer.private_data[..], peer.initiator_depth), (&b"why"[..], 4), "{found:?}");
        assert!(world.event(&event(id.key().0, kind, 0)).unwrap().param.is_none(), "{kind:?}");
    }
    for kind in [EventType::ADDR_RESOLVED, EventType::ROUTE_RESOLVED, EventType::USER] {
        assert!(world.event(&with_param(kind)).unwrap().param.is_none(), "{kind:?}");
    }
    world.end(id);
}

#[test]
fn a_datagram_service_that_is_unreachable_has_the_private_data_of_its_reply() {
    let world = World::new();
    let id = world.id(9, PortSpace::UDP);
    let mut param = RdmaUcmUdParam { private_data_len: 2, ..RdmaUcmUdParam::default() };
    param.private_data[..2].copy_from_slice(b"no");
    let reply = RdmaUcmEventResp {
        param: RdmaUcmEventRespParam::from_ud(param),
        ..event(id.key().0, EventType::UNREACHABLE, 2)
    };
    let found = world.event(&reply).unwrap();
    assert_eq!(found.param.as_deref().map(Peer::private_data), Some(&b"no"[..]));
    world.end(id);
}
