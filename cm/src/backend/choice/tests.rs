//! Tests of backend selection, on a scripted kernel and the process's soft devices.

use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use uverbs_abi::rdma_user_cm::{RdmaUcmEventResp, RdmaUcmQueryAddrResp};
use zerocopy::IntoBytes;

use super::*;
use crate::channel::{Expect, Reply, Scripted};
use crate::own_device::own_device;
use crate::types::EventType;
use crate::{CmId, ConnParam, Event, EventChannel, EventKind};

/// A channel with both backends and a soft device.
struct World {
    kernel: Scripted,
    channel: EventChannel,
    address: IpAddr,
    _device: verbs::Device,
}

impl World {
    fn new() -> Self {
        // A device of `auto` might share its address with a kernel device.
        let device = own_device();
        let address = device.open().unwrap().find_gid(1).unwrap().gid.to_ipv4().unwrap().into();
        let kernel = Scripted::default();
        let soft = Soft::new().unwrap();
        let choice = Choice::new(Kernel(kernel.ucma(true)), Arc::clone(&soft));
        let channel = EventChannel::from_sources(Arc::new(choice), vec![soft]).unwrap();
        Self { kernel, channel, address, _device: device }
    }

    fn replies(&self, replies: impl IntoIterator<Item = Reply>) {
        self.kernel.expect(replies.into_iter().map(Expect::anything));
    }

    fn id(&self) -> CmId {
        self.channel.create_id(PortSpace::TCP).unwrap()
    }

    /// Returns the numbers of the commands received by the kernel.
    fn commands(&self) -> Vec<String> {
        self.kernel.seen().iter().map(|text| text.split(':').next().unwrap().to_owned()).collect()
    }

    /// Drops an id and checks that the kernel gets the command to destroy it.
    fn end(&self, id: CmId) {
        self.replies([Reply::ok()]);
        drop(id);
        assert_eq!(self.commands().last().unwrap(), "1");
    }

    /// Returns an id that has requested a connection from a listener at the soft device's address.
    #[track_caller]
    fn asking(&self, to: Address) -> CmId {
        let client = self.id();
        client.resolve_addr(None, to, Duration::from_secs(5)).unwrap();
        let event = self.soft_event();
        assert!(event.id == client.key() && matches!(event.kind, EventKind::AddrResolved), "{event:?}");
        client.resolve_route(Duration::ZERO).unwrap();
        assert!(matches!(self.soft_event().kind, EventKind::RouteResolved));
        let depths = ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
        client.connect_with(&depths).unwrap();
        client
    }

    /// Waits for the next event of a soft id and returns it. Each attempt also queries the kernel,
    /// which has no events.
    fn soft_event(&self) -> Event {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        loop {
            assert!(std::time::Instant::now() < deadline, "no event in time");
            self.replies([Reply::Errno(Errno::AGAIN)]);
            let event = self.channel.try_next_event().unwrap();
            if self.kernel.remaining() > 0 {
                // The soft event was returned first.
                let _ = self.channel.source().next().unwrap();
            }
            if let Some(event) = event {
                return event;
            }
        }
    }
}

/// Returns the reply that contains the kernel's handle for a new id.
fn number() -> Reply {
    Reply::bytes(&9_u32.to_ne_bytes())
}

/// Returns the kernel's reply to a query for an id's addresses.
fn bound(address: SocketAddr) -> Reply {
    let (src_addr, src_size) = Address::from(address).to_storage().unwrap();
    Reply::bytes(RdmaUcmQueryAddrResp { src_addr, src_size, ..RdmaUcmQueryAddrResp::default() }.as_bytes())
}

#[test]
fn an_address_of_a_soft_device_needs_no_kernel() {
    let world = World::new();
    let listener = world.id();
    listener.set_tos(8).unwrap();
    listener.bind_addr((world.address, 0)).unwrap();
    listener.listen(1).unwrap();
    let to = listener.local_addr().unwrap().unwrap();
    let _client = world.asking(to);
    let event = world.soft_event();
    assert!(event.id == listener.key() && matches!(event.kind, EventKind::ConnectRequest(_)), "{event:?}");
    // Only queries for events were sent.
    assert!(world.commands().iter().all(|number| number == "12"), "{:?}", world.commands());
}

#[test]
fn another_address_is_the_kernels_with_the_options_that_were_set() {
    let world = World::new();
    let id = world.id();
    id.set_tos(8).unwrap();
    id.set_reuse_addr(true).unwrap();
    assert!(world.commands().is_empty());
    world.replies([number(), Reply::ok(), Reply::ok(), Reply::ok()]);
    id.bind_addr(([192, 0, 2, 1], 80)).unwrap();
    assert_eq!(world.commands(), ["0", "14", "14", "20"]);
    world.replies([Reply::ok()]);
    id.listen(1).unwrap();
    world.end(id);
}

#[test]
fn an_address_that_the_kernel_refuses_leaves_the_choice() {
    let world = World::new();
    let id = world.id();
    world.replies([number(), Reply::Errno(Errno::ADDRNOTAVAIL), Reply::ok()]);
    let error = id.bind_addr(([192, 0, 2, 1], 80)).unwrap_err();
    assert_eq!(error.errno, Errno::ADDRNOTAVAIL);
    assert_eq!(world.commands(), ["0", "20", "1"]);
    id.bind_addr((world.address, 0)).unwrap();
}

#[test]
fn a_listener_on_any_address_has_one_port_on_both_and_one_cookie() {
    let world = World::new();
    let listener = world.id();
    let any: SocketAddr = (Ipv4Addr::UNSPECIFIED, 47_471).into();
    world.replies([number(), Reply::ok(), bound(any)]);
    listener.bind_addr((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    assert_eq!(listener.local_addr(), Ok(Some(any.into())));
    world.replies([Reply::ok()]);
    listener.listen(3).unwrap();
    assert_eq!(world.commands(), ["0", "20", "19", "7"]);

    // A request arrives from a soft device.
    let _client = world.asking((world.address, any.port()).into());
    let event = world.soft_event();
    assert!(event.id == listener.key() && matches!(event.kind, EventKind::ConnectRequest(_)), "{event:?}");
    drop(event);

    // A request arrives from the kernel.
    let request = RdmaUcmEventResp {
        uid: listener.key().0.0,
        id: 10,
        event: EventType::CONNECT_REQUEST.0,
        ..RdmaUcmEventResp::default()
    };
    world.replies([Reply::bytes(request.as_bytes())]);
    let raw = world.channel.source().next().unwrap().unwrap();
    let event = crate::event_channel::dispatch::dispatch(raw).unwrap();
    assert!(event.id == listener.key() && matches!(event.kind, EventKind::ConnectRequest(_)), "{event:?}");
    world.replies([Reply::ok()]);
    drop(event);
    world.end(listener);
}

#[test]
fn a_port_that_a_soft_id_has_is_refused_on_any_address() {
    let world = World::new();
    let one = world.id();
    one.bind_addr((world.address, 0)).unwrap();
    let port = one.local_addr().unwrap().unwrap().port();
    let two = world.id();
    world.replies([number(), Reply::ok(), bound((Ipv4Addr::UNSPECIFIED, port).into()), Reply::ok()]);
    let error = two.bind_addr((Ipv4Addr::UNSPECIFIED, port)).unwrap_err();
    assert_eq!(error.errno, Errno::ADDRNOTAVAIL, "{error}");
    assert_eq!(world.commands(), ["0", "20", "19", "1"]);
}

#[test]
fn loopback_is_soft_where_the_kernel_has_no_device_for_it() {
    let world = World::new();
    let id = world.id();
    world.replies([number(), Reply::Errno(Errno::NODEV), Reply::ok()]);
    id.bind_addr((Ipv4Addr::LOCALHOST, 0)).unwrap();
    assert!(id.port_num().unwrap().is_some());
    assert_eq!(world.commands(), ["0", "20", "1"]);
}

#[test]
fn a_destination_that_no_soft_device_reaches_is_the_kernels() {
    let world = World::new();
    let id = world.id();
    world.replies([number(), Reply::ok()]);
    id.resolve_addr(None, (Ipv4Addr::new(192, 0, 2, 1), 80), Duration::from_secs(1)).unwrap();
    assert_eq!(world.commands(), ["0", "21"]);
    world.end(id);
}

#[test]
fn an_id_on_both_that_resolves_keeps_one() {
    let world = World::new();
    for soft in [true, false] {
        let id = world.id();
        let any: SocketAddr = (Ipv4Addr::UNSPECIFIED, 47_472).into();
        world.replies([number(), Reply::ok(), bound(any)]);
        id.bind_addr(any).unwrap();
        // The kernel id is either destroyed or resolved.
        world.replies([Reply::ok()]);
        let to = if soft { world.address } else { [192, 0, 2, 1].into() };
        id.resolve_addr(None, (to, 80), Duration::from_secs(1)).unwrap();
        assert_eq!(world.commands().last().unwrap(), if soft { "1" } else { "21" });
        if soft {
            assert!(matches!(world.soft_event().kind, EventKind::AddrResolved));
        } else {
            // The port is free again for soft ids.
            let other = world.id();
            other.bind_addr((world.address, any.port())).unwrap();
            world.end(id);
        }
    }
}

/// Returns the kernel's reply for an id with an address but no device.
fn unresolved() -> Reply {
    bound((Ipv4Addr::UNSPECIFIED, 47_473).into())
}

#[test]
fn an_address_that_was_not_resolved_leaves_the_choice_to_the_next_one() {
    let world = World::new();
    let second = Duration::from_secs(1);
    let (soft, far) = ((world.address, 80), (Ipv4Addr::new(192, 0, 2, 1), 80));
    let is_resolved = |id: &CmId| {
        let event = world.soft_event();
        assert!(event.id == id.key() && matches!(event.kind, EventKind::AddrResolved), "{event:?}");
    };
    // The call fails, so the kernel id is destroyed.
    let id = world.id();
    world.replies([number(), Reply::Errno(Errno::NETUNREACH), Reply::ok()]);
    assert_eq!(id.resolve_addr(None, far, second).unwrap_err().errno, Errno::NETUNREACH);
    id.resolve_addr(None, soft, second).unwrap();
    is_resolved(&id);
    // An event reports the failure: the kernel id has no device and is destroyed.
    let id = world.id();
    world.replies([number(), Reply::ok()]);
    id.resolve_addr(None, far, second).unwrap();
    world.replies([unresolved(), Reply::ok()]);
    id.resolve_addr(None, soft, second).unwrap();
    is_resolved(&id);
    // The id is now resolved.
    assert_eq!(id.resolve_addr(None, far, second).unwrap_err().errno, Errno::INVAL);
}

#[test]
fn an_id_on_both_that_the_kernel_does_not_resolve_has_its_port_on_the_next_one() {
    let world = World::new();
    let second = Duration::from_secs(1);
    let any: SocketAddr = (Ipv4Addr::UNSPECIFIED, 47_474).into();
    let id = world.id();
    world.replies([number(), Reply::ok(), bound(any)]);
    id.bind_addr(any).unwrap();
    world.replies([Reply::Errno(Errno::NETUNREACH)]);
    let far = (Ipv4Addr::new(192, 0, 2, 1), 80);
    assert_eq!(id.resolve_addr(None, far, second).unwrap_err().errno, Errno::NETUNREACH);
    world.replies([Reply::ok()]);
    id.resolve_addr(None, far, second).unwrap();
    world.replies([unresolved(), Reply::ok()]);
    id.resolve_addr(None, (world.address, 80), second).unwrap();
    assert!(matches!(world.soft_event().kind, EventKind::AddrResolved));
    assert_eq!(id.local_addr().unwrap().unwrap().port(), any.port());
}

#[test]
fn a_listener_that_the_kernel_refuses_listens_on_no_soft_device() {
    let world = World::new();
    let any: SocketAddr = (Ipv4Addr::UNSPECIFIED, 47_475).into();
    let listener = world.id();
    world.replies([number(), Reply::ok(), bound(any)]);
    listener.bind_addr(any).unwrap();
    world.replies([Reply::Errno(Errno::ADDRINUSE)]);
    assert_eq!(listener.listen(1).unwrap_err().errno, Errno::ADDRINUSE);

    let client = world.asking((world.address, any.port()).into());
    let event = world.soft_event();
    assert!(event.id == client.key() && matches!(event.kind, EventKind::Rejected(_)), "{event:?}");
    // The id is still bound.
    world.replies([Reply::ok()]);
    listener.listen(1).unwrap();
    world.end(listener);
}

#[test]
fn the_address_of_a_device_for_this_host_may_be_the_kernels_as_well() {
    let world = World::new();
    let auto = verbs::soft::auto().unwrap();
    let Some(port) = Port::from_device(auto.info()).filter(|port| !port.reaches_network()) else {
        // `println!` is shown only for failing tests.
        let test = "the_address_of_a_device_for_this_host_may_be_the_kernels_as_well";
        let _ = writeln!(io::stdout(), "\nskip choice::{test}: this host has no address");
        return;
    };
    let (own, far) = (port.address(), IpAddr::from([203, 0, 113, 1]));
    let second = Duration::from_secs(1);
    // The kernel has a device at the address, for peers on the network.
    let id = world.id();
    world.replies([number(), Reply::ok(), bound((own, 47_476).into())]);
    id.bind_addr((own, 0)).unwrap();
    assert_eq!(world.commands(), ["0", "20", "19"]);
    world.end(id);
    // The kernel has no device at the address.
    let id = world.id();
    world.replies([number(), Reply::Errno(Errno::NODEV), Reply::ok()]);
    id.bind_addr((own, 0)).unwrap();
    assert!(id.port_num().unwrap().is_some());
    // Packets from this address to other hosts belong to the kernel.
    for to in [far, own] {
        let id = world.id();
        world.replies([number(), Reply::ok()]);
        id.resolve_addr(Some((own, 0).into()), (to, 80), second).unwrap();
        assert_eq!(world.commands().last().unwrap(), "21", "{to}: nothing listens there");
        world.end(id);
    }
}
