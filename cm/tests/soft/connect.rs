//! Tests of connections: private data, data, rejects, backlogs.

use std::time::{Duration, Instant};

use rdmacm::{ConnParam, EventChannel, EventKind, PortSpace, RejectReason};
use verbs::{Errno, QpInit, QpState, QpType};

use crate::support::{End, Host, Server, asking, connect, established, exchange, next, request, resolved};

#[test]
fn private_data_goes_both_ways_and_data_through_the_queue_pairs() {
    let host = Host::new();
    let server = Server::new(&host);
    let channel = EventChannel::new().unwrap();
    let client = resolved(&channel, PortSpace::TCP, server.address);
    let mut end = End::from_id(&client);
    let qp = end.qp(&client);
    client.connect(qp, &ConnParam { private_data: b"question", ..ConnParam::default() }).unwrap();

    let request = request(&server.channel);
    let data = request.peer.private_data();
    assert_eq!((&data[..8], data.len()), (&b"question"[..], 56));
    assert_eq!(request.id.peer_addr().unwrap(), client.local_addr().unwrap());
    assert_eq!(request.id.local_addr().unwrap(), Some(server.address.into()));
    let accepted = request.id;
    let mut server_end = End::from_id(&accepted);
    let qp = server_end.qp(&accepted);
    accepted.accept(qp, &ConnParam { private_data: b"answer", ..ConnParam::default() }).unwrap();

    let EventKind::Established(peer) = next(&channel).kind else { panic!("no connection") };
    assert_eq!((&peer.private_data()[..6], peer.private_data().len()), (&b"answer"[..], 196));
    established(&server.channel, &accepted);
    let (mut client_qp, mut server_qp) = (client.take_qp().unwrap(), accepted.take_qp().unwrap());
    exchange((&mut client_qp, &mut end), (&mut server_qp, &mut server_end));
    exchange((&mut server_qp, &mut server_end), (&mut client_qp, &mut end));
}

#[test]
fn both_sides_know_addresses_gids_and_a_path() {
    let host = Host::new();
    let server = Server::new(&host);
    let pair = connect(&server);
    assert_eq!(pair.client.peer_addr().unwrap(), Some(server.address.into()));
    assert_eq!(pair.client.local_addr().unwrap().unwrap().ip().unwrap().ip(), host.address);
    for id in [&pair.client, &pair.server] {
        assert_eq!(id.gids().unwrap(), (host.address.into(), host.address.into()));
        assert_eq!((id.port_num().unwrap(), id.pkey().unwrap()), (Some(1), Some(0xffff)));
        let [path] = id.paths().unwrap()[..] else { panic!("one path") };
        assert_eq!((path.packet_life_time, path.hop_limit), (16, 64));
    }
}

#[test]
fn a_reject_carries_its_reason_in_words_and_private_data() {
    let host = Host::new();
    let server = Server::new(&host);
    let channel = EventChannel::new().unwrap();
    let client = resolved(&channel, PortSpace::TCP, server.address);
    let end = End::from_id(&client);
    client.connect(end.qp(&client), &ConnParam::default()).unwrap();
    request(&server.channel).id.reject(b"not today").unwrap();
    let event = next(&channel);
    let EventKind::Rejected(rejection) = &event.kind else { panic!("{event:?}") };
    assert_eq!(rejection.reason, Some(RejectReason::CONSUMER_DEFINED));
    assert_eq!((&rejection.private_data[..9], rejection.private_data.len()), (&b"not today"[..], 148));
    let error = event.ok().unwrap_err();
    assert_eq!(error.errno, Errno::CONNREFUSED);
    assert!(error.to_string().contains("the peer's program rejected the connection"), "{error}");
    assert!(client.reclaim_qp().unwrap().is_some());
}

#[test]
fn a_port_without_a_listener_rejects() {
    let host = Host::new();
    let channel = EventChannel::new().unwrap();
    let client = resolved(&channel, PortSpace::TCP, host.at(1));
    let end = End::from_id(&client);
    client.connect(end.qp(&client), &ConnParam::default()).unwrap();
    let error = next(&channel).ok().unwrap_err();
    assert!(error.to_string().contains("no program listens"), "{error}");
}

#[test]
fn an_address_of_this_machine_without_a_device_rejects_at_once() {
    let _host = Host::new();
    // This is the address of a removed device.
    let gone = Host::new();
    let address = gone.at(7471);
    drop(gone);
    let (channel, _client) = asking(address);
    let error = next(&channel).ok().unwrap_err();
    assert!(error.to_string().contains("no program listens"), "{error}");
    let client = resolved(&channel, PortSpace::UDP, address);
    client.connect_with(&ConnParam::default()).unwrap();
    let error = next(&channel).ok().unwrap_err();
    assert!(error.to_string().contains("no program listens"), "{error}");
}

#[test]
fn a_device_that_no_connection_manager_uses_rejects_at_once() {
    let (_host, other) = (Host::new(), Host::new());
    let channel = EventChannel::new().unwrap();
    let client = resolved(&channel, PortSpace::TCP, other.at(7471));
    client.connect_with(&ConnParam::default()).unwrap();
    let error = next(&channel).ok().unwrap_err();
    assert!(error.to_string().contains("no program listens"), "{error}");
}

#[test]
fn a_request_beyond_the_backlog_comes_again_when_there_is_room() {
    let host = Host::new();
    let (server, other) = (Server::with_backlog(&host, 1), Server::new(&host));
    let channel = EventChannel::new().unwrap();
    let begin = Instant::now();
    // Messages arrive in order: the third request shows that the second has arrived.
    let clients = [&server, &server, &other].map(|server| {
        let client = resolved(&channel, PortSpace::TCP, server.address);
        let end = End::from_id(&client);
        client.connect(end.qp(&client), &ConnParam::default()).unwrap();
        (client, end)
    });
    let _last = request(&other.channel);
    let _first = request(&server.channel);
    let late = request(&server.channel);
    assert!(begin.elapsed() > Duration::from_secs(2), "it did not wait");
    late.id.reject(b"late").unwrap();
    let event = next(&channel);
    assert!(event.id == clients[1].0.key() && matches!(event.kind, EventKind::Rejected(_)), "{event:?}");
}

#[test]
fn a_lookup_beyond_the_backlog_is_rejected() {
    let host = Host::new();
    let server = Server::on(host.at(0), PortSpace::UDP, 1);
    let channel = EventChannel::new().unwrap();
    let clients = [(); 2].map(|()| {
        let client = resolved(&channel, PortSpace::UDP, server.address);
        client.connect_with(&ConnParam::default()).unwrap();
        client
    });
    let event = next(&channel);
    assert!(event.id == clients[1].key() && matches!(event.kind, EventKind::Unreachable), "{event:?}");
    assert_eq!(event.status.0, 2);
    request(&server.channel);
}

#[test]
fn private_data_that_is_too_long_names_the_limit() {
    let host = Host::new();
    let server = Server::new(&host);
    let channel = EventChannel::new().unwrap();
    let client = resolved(&channel, PortSpace::TCP, server.address);
    let long = ConnParam { private_data: &[0; 57], ..ConnParam::default() };
    let error = client.connect_with(&long).unwrap_err();
    assert!(error.to_string().contains("length of private_data 57 exceeds"), "{error}");
    client.connect_with(&ConnParam { private_data: &[0; 56], ..ConnParam::default() }).unwrap();
    request(&server.channel);
}

#[test]
fn each_side_can_disconnect_and_the_other_one_confirms() {
    let host = Host::new();
    let server = Server::new(&host);
    for client_begins in [true, false] {
        let pair = connect(&server);
        let client = (&pair.client, &pair.channel);
        let accepted = (&pair.server, &server.channel);
        let (first, second) = if client_begins { (client, accepted) } else { (accepted, client) };
        first.0.disconnect().unwrap();
        let event = next(second.1);
        assert!(event.id == second.0.key() && matches!(event.kind, EventKind::Disconnected), "{event:?}");
        second.0.disconnect().unwrap();
        for (id, channel) in [first, second] {
            let mut kinds = vec![next(channel)];
            if !matches!(kinds[0].kind, EventKind::TimewaitExit) {
                kinds.push(next(channel));
            }
            let last = kinds.pop().unwrap();
            assert!(last.id == id.key() && matches!(last.kind, EventKind::TimewaitExit), "{last:?}");
        }
    }
}

#[test]
fn both_sides_may_disconnect_at_once() {
    let host = Host::new();
    let server = Server::new(&host);
    let pair = connect(&server);
    pair.client.disconnect().unwrap();
    pair.server.disconnect().unwrap();
    for (id, channel) in [(&pair.client, &pair.channel), (&pair.server, &server.channel)] {
        let event = next(channel);
        assert!(event.id == id.key() && matches!(event.kind, EventKind::Disconnected), "{event:?}");
        // This confirms the disconnect, unless the first call already did.
        id.disconnect().unwrap();
    }
    for (id, channel) in [(&pair.client, &pair.channel), (&pair.server, &server.channel)] {
        let event = next(channel);
        assert!(event.id == id.key() && matches!(event.kind, EventKind::TimewaitExit), "{event:?}");
    }
}

#[test]
fn a_queue_pair_of_the_programs_own_is_moved_by_the_program() {
    let host = Host::new();
    let server = Server::new(&host);
    let channel = EventChannel::new().unwrap();
    let client = resolved(&channel, PortSpace::TCP, server.address);
    let mut end = End::from_id(&client);
    let qp = end.pd.create_qp(&QpInit::new(QpType::RC, &end.cq)).unwrap();
    client.connect_with(&ConnParam { qp_num: qp.qp_num(), ..ConnParam::default() }).unwrap();
    let accepted = request(&server.channel).id;
    let mut server_end = End::from_id(&accepted);
    accepted.accept(server_end.qp(&accepted), &ConnParam::default()).unwrap();
    let event = next(&channel);
    assert!(matches!(event.kind, EventKind::ConnectResponse(_)), "{event:?}");
    let step = |state| client.init_qp_attr(state).unwrap();
    let ((init, init_mask), (rtr, rtr_mask)) = (step(QpState::INIT), step(QpState::RTR));
    let (rts, rts_mask) = step(QpState::RTS);
    let qp = qp.modify_to::<verbs::state::Init>(&init, init_mask).unwrap();
    let qp = qp.modify_to::<verbs::state::Rtr>(&rtr, rtr_mask).unwrap();
    let mut qp = qp.modify_to::<verbs::state::Rts>(&rts, rts_mask).unwrap();
    client.establish().unwrap();
    established(&server.channel, &accepted);
    let mut server_qp = accepted.take_qp().unwrap();
    exchange((&mut qp, &mut end), (&mut server_qp, &mut server_end));
    exchange((&mut server_qp, &mut server_end), (&mut qp, &mut end));
}

#[test]
fn an_id_without_a_connection_cannot_accept_reject_or_disconnect() {
    let host = Host::new();
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(PortSpace::TCP).unwrap();
    id.bind_addr(host.at(0)).unwrap();
    for error in [
        id.connect_with(&ConnParam::default()).unwrap_err(),
        id.accept_with(&ConnParam::default()).unwrap_err(),
        id.reject(&[]).unwrap_err(),
        id.disconnect().unwrap_err(),
        id.establish().unwrap_err(),
    ] {
        assert_eq!(error.errno, Errno::INVAL, "{error}");
    }
}

#[test]
fn sixty_four_connections_are_made_at_once() {
    const COUNT: usize = 64;
    let host = Host::new();
    let server = Server::new(&host);
    let channel = EventChannel::new().unwrap();
    let clients: Vec<_> = (0..COUNT)
        .map(|_| {
            let client = channel.create_id(PortSpace::TCP).unwrap();
            client.resolve_addr(None, server.address, crate::support::RESOLVE).unwrap();
            client
        })
        .collect();
    let (mut ends, mut accepted, mut done) = (Vec::new(), Vec::new(), (0, 0));
    while done != (COUNT, COUNT) {
        while let Some(event) = channel.try_next_event().unwrap() {
            let client = clients.iter().find(|client| client.key() == event.id).unwrap();
            match event.kind {
                EventKind::AddrResolved => client.resolve_route(crate::support::RESOLVE).unwrap(),
                EventKind::RouteResolved => {
                    let end = End::from_id(client);
                    client.connect(end.qp(client), &ConnParam::default()).unwrap();
                    ends.push(end);
                }
                EventKind::Established(_) => done.0 += 1,
                other => panic!("{other:?}"),
            }
        }
        if accepted.len() == COUNT && done.1 == COUNT {
            let event = next(&channel);
            assert!(matches!(event.kind, EventKind::Established(_)), "{event:?}");
            done.0 += 1;
            continue;
        }
        let Some(event) = server.channel.next_event_within(Duration::from_millis(5)).unwrap() else {
            continue;
        };
        match event.kind {
            EventKind::ConnectRequest(request) => {
                let end = End::from_id(&request.id);
                request.id.accept(end.qp(&request.id), &ConnParam::default()).unwrap();
                accepted.push((request.id, end));
            }
            EventKind::Established(_) => done.1 += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(clients.iter().all(|client| client.take_qp().is_some()));
}
