//! `listener`: listeners and connectors, through the kernel's connection manager on rxe and on
//! ConnectX. Both sides run in the case's process.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rdmacm::{
    ConnParam, ConnectError, ConnectStep, Connection, Connector, End, EventChannel, EventKind, Incoming,
    Listener, ListenerInit, PortSpace, RejectReason, Resources,
};
use verbs::{Errno, QpState, SendFlags, SendOp};
use verbs_fixtures::cm_fabric::is_asleep;
use verbs_fixtures::fabric::{self, PATIENCE};
use verbs_harness::cases;
use verbs_harness::runner::{Case, CaseResult, fail};

const SUITE: &str = "listener";

/// The address of the device's netdev.
const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 9, 1));

/// An unused address in the netdev's network.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 9, 77));

/// Returns the suite's cases.
pub fn cases() -> Vec<Case> {
    cases!(
        SUITE,
        an_address_is_enough_for_a_connection_that_either_side_ends,
        a_reject_has_its_reason_and_private_data,
        each_step_that_fails_is_named,
        a_slow_peer_delays_no_other_one_and_expires,
        closing_ends_a_blocked_accept,
        sixty_four_peers_connect_to_one_listener_at_once,
    )
}

fn connect(to: SocketAddr, private_data: &[u8]) -> Result<Connection, ConnectError> {
    let param = ConnParam { private_data, ..ConnParam::default() };
    Connector { param, resolve_timeout: PATIENCE, connect_timeout: PATIENCE, ..Connector::default() }
        .connect(to)
}

fn accept<T>(listener: &Listener<T>) -> CaseResult<Connection<T>> {
    match listener.accept_within(PATIENCE)? {
        Some(connection) => Ok(connection),
        None => fail("no connection came"),
    }
}

/// Returns a listener that replies to the peer with the private data from the request.
fn listener(init: &ListenerInit) -> CaseResult<Listener> {
    Ok(Listener::bind_with((V4, 0), init, |request| {
        let (mut qp, resources) = Resources::create(&request.id, Resources::CAP)?;
        qp.post_recv_buf(resources.pd.alloc_buf(64)?, ..)?;
        let private_data = &request.peer.private_data()[..8];
        request.id.accept(qp, &ConnParam { private_data, ..ConnParam::default() })?;
        Ok(Some(resources))
    })?)
}

fn an_address_is_enough_for_a_connection_that_either_side_ends() -> CaseResult {
    let listener = listener(&ListenerInit::default())?;
    for client_ends in [true, false] {
        let to = listener.local_addr();
        let connects = thread::spawn(move || connect(to, b"question"));
        let mut server = accept(&listener)?;
        let Ok(client) = connects.join() else { return fail("the client panicked") };
        let mut client = client?;
        assert_eq!(server.control.id().context()?.device_name(), fabric::under_test());
        assert_eq!(server.peer.private_data[..8], *b"question");
        assert_eq!(client.peer.private_data[..8], *b"question");
        assert_eq!((client.peer_addr()?, server.local_addr()?), (Some(to), Some(to)));
        let message = client.resources.pd.register(b"hello".to_vec())?;
        client.qp.post_send_buf(SendOp::Send, SendFlags::empty(), message, ..)?;
        client.resources.next_send(PATIENCE)?.ok()?;
        assert_eq!(server.resources.next_recv(PATIENCE)?.ok()?.into_buf()?[..5], *b"hello");

        let (ends, notices) = if client_ends { (client, server) } else { (server, client) };
        let ended = thread::scope(|scope| {
            let ended = scope.spawn(|| ends.disconnect(PATIENCE));
            let noticed = notices.control.wait(PATIENCE);
            (ended.join(), noticed)
        });
        let (Ok(ended), noticed) = ended else { return fail("the end panicked") };
        let ended = ended?;
        assert_eq!((ended.end, noticed?), (End::Confirmed, Some(End::ByPeer)));
        assert_eq!(ended.qp.state()?, QpState::ERR);
    }
    Ok(())
}

fn a_reject_has_its_reason_and_private_data() -> CaseResult {
    let listener = Listener::bind_with((V4, 0), &ListenerInit::default(), |request| {
        request.id.reject(b"not today")?;
        Ok(None::<()>)
    })?;
    let error = thread::scope(|scope| {
        let accepts = scope.spawn(|| listener.accept_within(PATIENCE).map(|_| ()));
        let error = connect(listener.local_addr(), b"");
        listener.close();
        let _ = accepts.join();
        error.map(drop)
    });
    let Err(error) = error else { return fail("it is connected") };
    let Some(rejection) = error.rejection else { return fail(format_args!("{}", error.error)) };
    assert_eq!(rejection.reason, Some(RejectReason::CONSUMER_DEFINED));
    assert_eq!(rejection.private_data[..9], *b"not today");
    Ok(())
}

fn each_step_that_fails_is_named() -> CaseResult {
    let Err(error) = connect((V4, 1).into(), b"") else { return fail("it is connected") };
    assert_eq!((error.step, error.error.errno), (ConnectStep::Connect, Errno::CONNREFUSED));
    assert!(error.to_string().contains("10.9.9.1:1: no program listens"), "{error}");
    let connector = Connector { resolve_timeout: Duration::from_millis(200), ..Connector::default() };
    let Err(error) = connector.connect((NOBODY, 7471)) else { return fail("it is connected") };
    assert_eq!(error.step, ConnectStep::ResolveAddr, "{error}");
    // The program never accepts a connection from this listener.
    let listener = listener(&ListenerInit::default())?;
    let connector = Connector { connect_timeout: Duration::from_millis(200), ..Connector::default() };
    let Err(error) = connector.connect(listener.local_addr()) else { return fail("it is connected") };
    assert!(error.to_string().contains("the peer did not accept within 200ms"), "{error}");
    Ok(())
}

fn a_slow_peer_delays_no_other_one_and_expires() -> CaseResult {
    let init = ListenerInit { establish_timeout: Duration::from_millis(500), ..ListenerInit::default() };
    let listener = listener(&init)?;
    let to = listener.local_addr();
    // This client never confirms the reply.
    let channel = EventChannel::new()?;
    let slow = channel.create_id(PortSpace::TCP)?;
    slow.resolve_addr(None, to, PATIENCE)?;
    let expect = |what: fn(&EventKind) -> bool| match channel.next_event_within(PATIENCE)? {
        Some(event) if what(&event.kind) => Ok(()),
        other => fail(format_args!("{other:?}")),
    };
    expect(|kind| matches!(kind, EventKind::AddrResolved))?;
    slow.resolve_route(PATIENCE)?;
    expect(|kind| matches!(kind, EventKind::RouteResolved))?;
    slow.connect_with(&ConnParam { qp_num: 0xff_ff07, ..ConnParam::default() })?;
    let connects = thread::spawn(move || connect(to, b"in time!"));
    let server = accept(&listener)?;
    assert_eq!(server.peer.private_data[..8], *b"in time!");
    let Ok(client) = connects.join() else { return fail("the client panicked") };
    let _client = client?;
    match listener.next_incoming(PATIENCE)? {
        Some(Incoming::Failed { error, .. }) => assert_eq!(error.errno, Errno::TIMEDOUT, "{error}"),
        other => return fail(format_args!("{other:?}")),
    }
    expect(|kind| matches!(kind, EventKind::ConnectResponse(_)))?;
    Ok(())
}

fn closing_ends_a_blocked_accept() -> CaseResult {
    let listener = listener(&ListenerInit::default())?;
    let (started, starts) = mpsc::channel();
    let (sleeps, ended) = thread::scope(|scope| {
        let blocked = scope.spawn(|| {
            let _ = started.send(fs::read_link("/proc/thread-self"));
            listener.accept().map(drop)
        });
        let sleeps = match starts.recv_timeout(PATIENCE) {
            Ok(Ok(task)) => is_asleep(&task),
            other => fail(format_args!("{other:?}")),
        };
        listener.close();
        (sleeps, blocked.join())
    });
    sleeps?;
    let Ok(Err(error)) = ended else { return fail("it has accepted") };
    assert_eq!(error.errno, Errno::CANCELED);
    let Err(error) = connect(listener.local_addr(), b"") else { return fail("it is connected") };
    assert!(error.to_string().contains("no program listens"), "{error}");
    Ok(())
}

fn sixty_four_peers_connect_to_one_listener_at_once() -> CaseResult {
    const PEERS: usize = 64;
    let listener = listener(&ListenerInit::default())?;
    let to = listener.local_addr();
    let start = Barrier::new(PEERS);
    let (accepted, connected) = thread::scope(|scope| {
        let clients: Vec<_> = (0..PEERS)
            .map(|number| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    connect(to, &number.to_be_bytes())
                })
            })
            .collect();
        let (mut accepted, deadline) = (Vec::new(), Instant::now() + 2 * PATIENCE);
        while accepted.len() < PEERS && Instant::now() < deadline {
            match listener.accept_within(PATIENCE) {
                Ok(connection) => accepted.extend(connection),
                Err(error) => return (Err(error), Vec::new()),
            }
        }
        let connected = clients.into_iter().filter_map(|client| client.join().ok());
        (Ok(accepted), connected.collect::<Vec<_>>())
    });
    let accepted = accepted?;
    let connected = connected.into_iter().collect::<Result<Vec<_>, _>>()?;
    assert_eq!((accepted.len(), connected.len()), (PEERS, PEERS));
    let mut numbers: Vec<_> = accepted.iter().map(|it| it.peer.private_data[..8].to_vec()).collect();
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), PEERS);
    Ok(())
}
