//! Ids dropped in every state: the peer is notified, and all resources are released.

use rdmacm::{ConnParam, EventChannel, EventKind, PortSpace, RejectReason};

use verbs::Errno;

use crate::support::{
    End, Host, RESOLVE, Server, asking, connect, is_free, is_readable, next, readable, request, resolved,
};

/// Drops a host and waits until its address is free. The connection manager keeps a device open
/// while one of its connections exists.
fn nothing_is_left(host: Host) {
    let address = host.address;
    drop(host);
    is_free(address);
}

#[test]
fn an_id_without_a_peer_ends_in_every_state() {
    let host = Host::new();
    let channel = EventChannel::new().unwrap();
    drop(channel.create_id(PortSpace::TCP).unwrap());
    let bound = channel.create_id(PortSpace::TCP).unwrap();
    bound.bind_addr(host.at(0)).unwrap();
    drop(bound);
    // The event of the address resolution is discarded.
    let resolving = channel.create_id(PortSpace::TCP).unwrap();
    resolving.resolve_addr(None, host.at(7471), RESOLVE).unwrap();
    drop(resolving);
    drop(resolved(&channel, PortSpace::TCP, host.at(7471)));
    let listener = channel.create_id(PortSpace::TCP).unwrap();
    listener.bind_addr(host.at(0)).unwrap();
    listener.listen(1).unwrap();
    drop(listener);
    assert!(channel.try_next_event().unwrap().is_none());
    nothing_is_left(host);
}

#[test]
fn a_request_that_is_dropped_rejects() {
    let host = Host::new();
    let server = Server::new(&host);
    let channel = EventChannel::new().unwrap();
    for is_read in [true, false] {
        let client = resolved(&channel, PortSpace::TCP, server.address);
        client.connect_with(&ConnParam::default()).unwrap();
        if is_read {
            drop(request(&server.channel));
        } else {
            // Dropping the listener rejects its pending requests.
            let second = Server::new(&host);
            let client = resolved(&channel, PortSpace::TCP, second.address);
            // With the same queue pair number, the second connection would be stale.
            client.connect_with(&ConnParam { qp_num: 7, ..ConnParam::default() }).unwrap();
            readable(&second.channel);
            drop(second.listener);
            let event = next(&channel);
            assert!(event.id == client.key(), "{event:?}");
            let EventKind::Rejected(rejection) = event.kind else { panic!("{:?}", event.kind) };
            assert_eq!(rejection.reason, Some(RejectReason::CONSUMER_DEFINED));
            drop(request(&server.channel));
        }
        let event = next(&channel);
        let EventKind::Rejected(rejection) = event.kind else { panic!("{:?}", event.kind) };
        assert_eq!(rejection.reason, Some(RejectReason::CONSUMER_DEFINED));
    }
    drop((server, channel));
    nothing_is_left(host);
}

#[test]
fn a_client_that_gives_up_before_the_answer_makes_it_fail_and_leaves_the_channel_quiet() {
    let host = Host::new();
    let server = Server::new(&host);
    let (channel, client) = asking(server.address);
    let read = request(&server.channel);
    drop(client);
    // An unread request keeps the channel readable.
    let unread = resolved(&channel, PortSpace::TCP, server.address);
    unread.connect_with(&ConnParam { qp_num: 7, ..ConnParam::default() }).unwrap();
    readable(&server.channel);
    drop(unread);
    // This request arrives after both rejects.
    let last = resolved(&channel, PortSpace::TCP, server.address);
    last.connect_with(&ConnParam { qp_num: 8, ..ConnParam::default() }).unwrap();
    let [second, third] = [(); 2].map(|()| request(&server.channel));
    assert!(!is_readable(&server.channel), "an event that no program gets");
    let depths = ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
    for gone in [&read, &second] {
        assert_eq!(gone.id.accept_with(&depths).unwrap_err().errno, Errno::INVAL);
        assert!(!is_readable(&server.channel), "the answer has said it");
    }
    third.id.reject(&[]).unwrap();
    let event = next(&channel);
    assert!(event.id == last.key() && matches!(event.kind, EventKind::Rejected(_)), "{event:?}");
    assert!(server.channel.try_next_event().unwrap().is_none());
    drop((read, second, third, last, server, channel));
    nothing_is_left(host);
}

#[test]
fn an_event_that_the_program_writes_for_a_request_comes_before_its_answer() {
    let host = Host::new();
    let server = Server::new(&host);
    let (_channel, _client) = asking(server.address);
    let request = request(&server.channel);
    request.id.write_event(0, 5).unwrap();
    let event = next(&server.channel);
    assert!(event.id == request.id.key() && matches!(event.kind, EventKind::User(5)), "{event:?}");
}

#[test]
fn a_client_that_gives_up_after_the_reply_ends_the_connection() {
    let host = Host::new();
    let server = Server::new(&host);
    let (channel, client) = asking(server.address);
    let accepted = request(&server.channel).id;
    let end = End::from_id(&accepted);
    accepted.accept(end.qp(&accepted), &ConnParam::default()).unwrap();
    let event = next(&channel);
    assert!(matches!(event.kind, EventKind::ConnectResponse(_)), "{event:?}");
    drop(client);
    let event = next(&server.channel);
    assert!(event.id == accepted.key() && matches!(event.kind, EventKind::Rejected(_)), "{event:?}");
    drop((accepted, end, server, channel));
    nothing_is_left(host);
}

#[test]
fn a_server_that_gives_up_after_its_reply_ends_the_connection() {
    let host = Host::new();
    let server = Server::new(&host);
    let (channel, client) = asking(server.address);
    let accepted = request(&server.channel).id;
    let end = End::from_id(&accepted);
    accepted.accept(end.qp(&accepted), &ConnParam::default()).unwrap();
    drop(accepted);
    let kinds = [next(&channel).kind, next(&channel).kind];
    assert!(matches!(kinds, [EventKind::ConnectResponse(_), EventKind::Rejected(_)]), "{kinds:?}");
    drop((client, end, server, channel));
    nothing_is_left(host);
}

#[test]
fn the_end_of_either_id_disconnects_the_other_one() {
    let host = Host::new();
    for client_ends in [true, false] {
        let server = Server::new(&host);
        let pair = connect(&server);
        let (ended, left, channel) = if client_ends {
            (pair.client, pair.server, &server.channel)
        } else {
            (pair.server, pair.client, &pair.channel)
        };
        drop(ended);
        let event = next(channel);
        assert!(event.id == left.key() && matches!(event.kind, EventKind::Disconnected), "{event:?}");
    }
    nothing_is_left(host);
}

#[test]
fn an_id_may_be_dropped_while_it_disconnects_and_in_its_timewait() {
    let host = Host::new();
    let server = Server::new(&host);
    let pair = connect(&server);
    pair.client.disconnect().unwrap();
    drop(pair.client);
    assert!(matches!(next(&server.channel).kind, EventKind::Disconnected));
    pair.server.disconnect().unwrap();
    drop(pair.server);
    drop((pair.client_qp, pair.server_qp, pair.client_end, pair.server_end, pair.channel, server));
    nothing_is_left(host);
}

#[test]
fn ids_outlive_their_channel() {
    let host = Host::new();
    let Server { channel, listener, address } = Server::new(&host);
    drop(channel);
    let (channel, client) = asking(address);
    drop(listener);
    let event = next(&channel);
    assert!(matches!(event.kind, EventKind::Rejected(_)), "{event:?}");
    drop((client, channel));
    nothing_is_left(host);
}

#[test]
fn a_listener_moves_to_another_channel_with_the_requests_that_were_not_read() {
    let host = Host::new();
    let server = Server::new(&host);
    let (_channel, client) = asking(server.address);
    readable(&server.channel);
    let other = EventChannel::new().unwrap();
    server.listener.migrate(&other).unwrap();
    assert!(server.channel.try_next_event().unwrap().is_none());
    let id = request(&other).id;
    drop(client);
    id.write_event(5, 77).unwrap();
    let event = next(&other);
    assert!(matches!(event.kind, EventKind::User(77)) && event.status.0 == 5, "{event:?}");
}
