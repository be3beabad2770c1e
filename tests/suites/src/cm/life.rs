//! Lifecycles of ids, and the resources left behind.

use std::process::Command;
use std::thread;
use std::time::Duration;

use rdmacm::{ConnParam, EventChannel, EventKind, EventType, PortSpace};
use verbs_fixtures::cm_fabric::{
    Client, Connected, Parts, RESOLVING, Server, accept_many, connect, connect_many, expect, next, take,
};
use verbs_fixtures::fabric;
use verbs_harness::cases;
use verbs_harness::runner::{Case, CaseResult, fail, skip};
use verbs_harness::tools::run;

use super::refuse::NOBODY;
use super::server::{SUITE, at, here, server};
use crate::lifecycle::counts::{back_to, back_to_first, resources};

/// Returns the cases for any device.
pub(super) fn of_any_device() -> Vec<Case> {
    let long = |name, run: fn() -> CaseResult| Case::new(SUITE, name, run).within(Duration::from_secs(400));
    vec![
        long("a_thousand_connections_leave_nothing", a_thousand_connections_leave_nothing),
        long("one_listener_takes_256_connections_at_once", one_listener_takes_256_connections_at_once),
    ]
}

/// Returns the cases for devices whose ids the kernel lists.
pub(super) fn of_interface() -> Vec<Case> {
    cases!(SUITE, ids_end_in_every_state_and_the_peer_learns_it)
}

/// Both sides of connections made one after another.
struct World {
    server: Server,
    channel: EventChannel,
    parts: [Parts; 2],
}

impl World {
    fn new() -> CaseResult<Self> {
        let server = server(PortSpace::TCP)?;
        let Client { channel, id } = Client::new(server.address, PortSpace::TCP)?;
        // The first wait on a channel creates a file. A connection may need no wait, because all
        // its events may already be there.
        for channel in [&server.channel, &channel] {
            assert!(channel.next_event_within(Duration::from_millis(1))?.is_none());
        }
        Ok(Self { server, channel, parts: [Parts::for_id(&id)?, Parts::for_id(&id)?] })
    }

    /// Connects, sends a message and ends the connection on one side.
    fn round(&mut self, server_ends: bool) -> CaseResult {
        let Self { server, channel, parts: [connects, accepts] } = self;
        let id = channel.create_id(PortSpace::TCP)?;
        id.resolve_addr(None, server.address, RESOLVING)?;
        expect(channel, EventType::ADDR_RESOLVED)?;
        id.resolve_route(RESOLVING)?;
        expect(channel, EventType::ROUTE_RESOLVED)?;
        id.connect(connects.qp(&id)?, &ConnParam::default())?;
        let (accepted, _) = server.request()?;
        accepted.accept(accepts.qp(&accepted)?, &ConnParam::default())?;
        expect(channel, EventType::ESTABLISHED)?;
        expect(&server.channel, EventType::ESTABLISHED)?;
        let (mut here, there) = (take(&id)?, take(&accepted)?);
        connects.send(&mut here, b"there")?;
        assert_eq!(accepts.receive()?, b"there");
        connects.complete()?;
        let ends = [(&id, &*channel), (&accepted, &server.channel)];
        let [first, second] = if server_ends { [ends[1], ends[0]] } else { ends };
        first.0.disconnect()?;
        expect(second.1, EventType::DISCONNECTED)?;
        second.0.disconnect()?;
        expect(first.1, EventType::DISCONNECTED)?;
        drop((here, there));
        Ok(())
    }
}

fn a_thousand_connections_leave_nothing() -> CaseResult {
    const ROUNDS: usize = 1000;
    verbs::on_leak(|error| panic!("leaked: {error}"));
    let mut world = World::new()?;
    // Later connections reuse the resources of the first.
    world.round(false)?;
    let baseline = resources()?;
    let open = std::fs::read_dir("/proc/self/fd")?.count();
    for round in 0..ROUNDS {
        world.round(round % 2 == 0).map_err(|stop| stop.context(format_args!("connection {round}")))?;
    }
    assert_eq!(std::fs::read_dir("/proc/self/fd")?.count(), open, "file descriptors");
    back_to(&baseline)
}

/// The kernel allocates an address handle for each message that awaits a reply. rxe on Linux 5.10
/// has only 100, so `connect` and `accept` fail with `EINVAL`. With rdma-core's `ucmatose -c 256`
/// on both sides, they fail too, after 64 connections.
fn one_listener_takes_256_connections_at_once() -> CaseResult {
    const COUNT: usize = 256;
    let max_ah = fabric::open()?.query_device()?.max_ah;
    if (1..2 * COUNT as u32).contains(&max_ah) {
        return skip(format_args!(
            "the device has {max_ah} address handles, of which the kernel takes one for each message"
        ));
    }
    let server = Server::new(at(here()?), PortSpace::TCP, 0)?;
    let baseline = resources()?;
    let (channel, address) = (&server.channel, server.address);
    thread::scope(|scope| {
        let accepts = scope.spawn(|| accept_many(channel, COUNT));
        let connected = connect_many(address, COUNT);
        let accepted = accepts.join().unwrap_or_else(|_| fail("the side that accepts panicked"));
        connected.map_err(|stop| stop.context("connecting"))?;
        accepted.map_err(|stop| stop.context("accepting"))
    })?;
    back_to_first(&baseline)
}

/// Drops ids in every state that a program can reach. Checks their peers' events and the resources
/// that remain in the kernel.
fn ids_end_in_every_state_and_the_peer_learns_it() -> CaseResult {
    let (channel, ip) = (EventChannel::new()?, here()?);
    drop(channel.create_id(PortSpace::TCP)?);
    let id = channel.create_id(PortSpace::TCP)?;
    id.bind_addr((ip, 0))?;
    drop(id);
    drop(server(PortSpace::TCP)?);

    let server = server(PortSpace::TCP)?;
    // Resolving: an existing address, then a missing address.
    for to in [ip, NOBODY] {
        let id = channel.create_id(PortSpace::TCP)?;
        id.resolve_addr(None, (to, server.address.port()), RESOLVING)?;
        drop(id);
    }
    let id = channel.create_id(PortSpace::TCP)?;
    id.resolve_addr(None, server.address, RESOLVING)?;
    assert_eq!(expect(&channel, EventType::ADDR_RESOLVED)?.id, id.key(), "the others' events went with them");
    id.resolve_route(RESOLVING)?;
    drop(id);
    drop(Client::new(server.address, PortSpace::TCP)?);

    // Connecting, before the listener has read the request, which is then withdrawn or rejected.
    drop(Client::requesting(&server)?);
    drop(server.request()?);
    // A request whose client is destroyed.
    let (client, parts) = Client::requesting(&server)?;
    let (request, _) = server.request()?;
    drop((client, parts));
    drop(request);
    // Accepted, but not yet established on the client's side. The client gets the event.
    let (client, parts) = Client::requesting(&server)?;
    let (request, _) = server.request()?;
    let accepts = Parts::for_id(&request)?;
    request.accept(accepts.qp(&request)?, &ConnParam::default())?;
    drop(request);
    loop {
        match next(&client.channel)?.kind {
            EventKind::Established(_) => {}
            EventKind::Disconnected
            | EventKind::Rejected(_)
            | EventKind::Unreachable
            | EventKind::ConnectError => break,
            other => return fail(format_args!("{other:?}")),
        }
    }
    drop((client, parts));
    drop(server);

    // Established: drops each end in turn.
    let connected = connect(at(here()?))?;
    let Connected { server, client, accepted, ends, .. } = connected;
    drop(client);
    assert_eq!(expect(&server.channel, EventType::DISCONNECTED)?.id, accepted.key());
    drop((accepted, ends, server));
    let Connected { server, client, accepted, ends, .. } = connect(at(here()?))?;
    drop(accepted);
    expect(&client.channel, EventType::DISCONNECTED)?;
    // After the end of the connection, while its packets may still arrive.
    drop((client, ends, server));

    let listed = run(Command::new("rdma").args(["resource", "show", "cm_id"]))?;
    let own = format!(" pid {} ", std::process::id());
    let left: Vec<_> = listed.stdout.lines().filter(|line| line.contains(&own)).collect();
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}
