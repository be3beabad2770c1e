//! Management datagrams that no connection manager sends.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use ib_cm::wire::{
    Message, MsgResponse, Mtu, PortSpace as WireSpace, Reason, ServiceId, drep, ip, path, rej, rep, req, rtu,
    sidr_rep, sidr_req,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use provider_soft::cm::{Gsi, ListenerName, MAD_LEN, MadAddress, Port, SpareFd};
use rdmacm::{
    ConnParam, ConnectRequest, Connector, EventChannel, EventKind, Incoming, Listener, ListenerInit,
    PortSpace,
};
use verbs::Errno;

use crate::process::{Process, start_on};
use crate::support::{
    End, Host, PATIENCE, RESOLVE, Server, connect, is_inside, next, request, resolved_from,
};

/// Opens queue pair 1 of a device, as a peer without a connection manager.
fn gsi(host: &Host) -> Gsi {
    Port::with_address(host.address).expect("a device").take_gsi().expect("no id uses the device")
}

/// Returns the next message that queue pair 1 receives.
fn receive(gsi: &Gsi) -> Message {
    receive_beside(gsi, None).2
}

/// Returns the next message with its sender and transaction id. While waiting, serves the clients
/// of the listener's socket.
fn receive_beside(gsi: &Gsi, name: Option<&ListenerName>) -> (MadAddress, u64, Message) {
    loop {
        if let Some(received) = gsi.recv() {
            let (header, message) = Message::parse(&received.mad).expect("a message");
            return (received.from, header.tid, message);
        }
        let files = name.map(AsFd::as_fd).into_iter().chain([gsi.as_fd()]);
        let mut fds: Vec<_> = files.map(|file| PollFd::new(file, PollFlags::POLLIN)).collect();
        let patience = PollTimeout::try_from(PATIENCE).expect("it fits");
        assert_ne!(poll(&mut fds, patience), Ok(0), "a message comes in time");
        name.map(|name| name.reply(&mut SpareFd::default())).transpose().unwrap();
    }
}

#[test]
fn a_process_that_exits_repeats_its_disconnection_until_it_is_answered() {
    const TEST: &str = "stranger::a_process_that_exits_repeats_its_disconnection_until_it_is_answered";
    const PORT: u16 = 7471;
    // The test runs in a separate process, because other tests listen on all devices of this
    // process.
    if !is_inside(TEST, "true") {
        return;
    }
    let host = Host::new();
    let peer = gsi(&host);
    let name = ListenerName::bind(PortSpace::TCP.0, host.at(PORT), &[peer.port()]).unwrap();
    let mut process = Process(start_on(&host.address.to_string(), &format!("leave {PORT}")));
    let (from, tid, Message::Req(request)) = receive_beside(&peer, name.as_ref()) else {
        panic!("a request")
    };
    let reply = rep::Repr {
        local_comm_id: 77,
        remote_comm_id: request.local_comm_id,
        local_qpn: 9,
        local_ca_guid: 5,
        ..rep::Repr::default()
    };
    peer.send(&from, &Message::from(reply).emit(tid, 0)).unwrap();
    assert!(matches!(receive(&peer), Message::Rtu(_)));
    // The first two exchanges are lost.
    let mut exchanges = Vec::new();
    for _ in 0..3 {
        let (_, tid, Message::Dreq(asked)) = receive_beside(&peer, None) else { panic!("a disconnection") };
        assert_eq!((asked.remote_comm_id, asked.local_comm_id), (77, request.local_comm_id));
        exchanges.push(tid);
    }
    exchanges.dedup();
    let [tid] = exchanges[..] else { panic!("{exchanges:?}") };
    let answer =
        drep::Repr { local_comm_id: 77, remote_comm_id: request.local_comm_id, ..drep::Repr::default() };
    peer.send(&from, &Message::from(answer).emit(tid, 0)).unwrap();
    assert!(process.0.wait().unwrap().success());
}

#[test]
fn datagrams_without_meaning_change_nothing() {
    let (host, other) = (Host::new(), Host::new());
    let server = Server::new(&host);
    let stranger = gsi(&other);
    let to = MadAddress::new(host.address.into());
    for seed in 0..64_u8 {
        let mut mad = [seed; MAD_LEN];
        // The MAD has a communication management header with each kind of message.
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[16..18].copy_from_slice(&[0, 0x10 + seed % 16]);
        if let Err(error) = stranger.send(&to, &mad) {
            assert_eq!(error.errno, Errno::AGAIN, "{error}");
        }
    }
    connect(&server);
    assert!(server.channel.try_next_event().unwrap().is_none_or(|event| {
        // This event ends a connection whose ids are dropped.
        matches!(event.kind, EventKind::Disconnected)
    }));
}

/// Returns a request to a server. Its private data begin with the addresses.
fn asks(from: &Host, server: &Server, source: IpAddr, target: IpAddr, path_mtu: Mtu) -> Message {
    let (IpAddr::V4(source), IpAddr::V4(target)) = (source, target) else { panic!("IPv4 addresses") };
    let header = ip::Repr { source_port: 5555, addresses: ip::Addresses::V4 { source, target } };
    let gids = (verbs::Gid::from(from.address).0, verbs::Gid::from(server.address.ip()).0);
    req::Repr {
        local_comm_id: 7,
        service_id: ServiceId::ip(WireSpace::TCP, server.address.port()),
        local_ca_guid: 9,
        local_qpn: 11,
        path_mtu,
        primary: path::Repr { local_gid: gids.0, remote_gid: gids.1, ..path::Repr::default() },
        private_data: req::Data::new(&header.emit()).unwrap(),
        ..req::Repr::default()
    }
    .into()
}

/// Returns the reject reason, which is the only reply to a request.
fn rejected(stranger: &Gsi, to: &Host, request: Message) -> Reason {
    stranger.send(&MadAddress::new(to.address.into()), &request.emit(1, 0)).unwrap();
    let Message::Rej(rejected) = receive(stranger) else { panic!("a reject of {request:?}") };
    rejected.reason
}

#[test]
fn a_request_that_names_addresses_of_others_is_rejected() {
    let (host, other) = (Host::new(), Host::new());
    let server = Server::new(&host);
    let stranger = gsi(&other);
    let foreign = IpAddr::from([192, 0, 2, 1]);
    for (source, target) in [(foreign, host.address), (other.address, foreign), (foreign, foreign)] {
        let request = asks(&other, &server, source, target, Mtu::B1024);
        assert_eq!(rejected(&stranger, &host, request), Reason::INVALID_SERVICE_ID, "{source} to {target}");
    }
    assert!(server.channel.try_next_event().unwrap().is_none());
}

#[test]
fn a_request_with_an_mtu_that_the_port_does_not_have_is_rejected() {
    let (host, other) = (Host::new(), Host::new());
    let server = Server::new(&host);
    let stranger = gsi(&other);
    for mtu in [0, 6, 7, 15].map(Mtu) {
        let request = asks(&other, &server, other.address, host.address, mtu);
        assert_eq!(rejected(&stranger, &host, request), Reason::INVALID_MTU, "{mtu:?}");
    }
    assert!(server.channel.try_next_event().unwrap().is_none());
}

#[test]
fn a_request_without_addresses_is_rejected() {
    let (host, other) = (Host::new(), Host::new());
    let server = Server::new(&host);
    let stranger = gsi(&other);
    for (version, service) in [(1, server.address.port()), (0, server.address.port()), (0, 1)] {
        let mut private_data = [0; 92];
        private_data[0] = version;
        let gids = (verbs::Gid::from(other.address).0, verbs::Gid::from(host.address).0);
        let request = req::Repr {
            local_comm_id: 7,
            service_id: ServiceId::ip(WireSpace::TCP, service),
            local_ca_guid: 9,
            local_qpn: 11,
            path_mtu: Mtu::B1024,
            primary: path::Repr { local_gid: gids.0, remote_gid: gids.1, ..path::Repr::default() },
            private_data: private_data.into(),
            ..req::Repr::default()
        };
        let to = MadAddress::new(host.address.into());
        stranger.send(&to, &Message::from(request).emit(1, 0)).unwrap();
        let Message::Rej(rejected) = receive(&stranger) else { panic!("a reject") };
        assert_eq!((rejected.reason, rejected.remote_comm_id), (Reason::INVALID_SERVICE_ID, 7));
    }
    assert!(server.channel.try_next_event().unwrap().is_none());
}

#[test]
fn a_device_whose_queue_pair_1_is_taken_has_no_ids() {
    let host = Host::new();
    let taken = gsi(&host);
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(PortSpace::TCP).unwrap();
    let error = id.bind_addr(host.at(0)).unwrap_err();
    assert!(error.to_string().contains("another part of this process has queue pair 1"), "{error}");
    id.resolve_addr(None, host.at(7471), RESOLVE).unwrap();
    assert_eq!(next(&channel).status.errno(), Some(Errno::BUSY));
    drop(taken);
    id.resolve_addr(None, host.at(7471), RESOLVE).unwrap();
    assert!(matches!(next(&channel).kind, EventKind::AddrResolved));
}

/// Returns the request that a client at `from` would send to a listener.
fn request_of(from: &Host, to: SocketAddr, path_mtu: Mtu) -> req::Repr {
    let (IpAddr::V4(source), IpAddr::V4(target)) = (from.address, to.ip()) else { panic!("IPv4") };
    let header = ip::Repr { source_port: 5555, addresses: ip::Addresses::V4 { source, target } };
    let gids = (verbs::Gid::from(from.address).0, verbs::Gid::from(to.ip()).0);
    req::Repr {
        local_comm_id: 7,
        service_id: ServiceId::ip(WireSpace::TCP, to.port()),
        local_ca_guid: 9,
        local_qpn: 11,
        // Code 20 is 4 s, the time for each reply. Replies are repeated.
        remote_cm_response_timeout: 20,
        local_cm_response_timeout: 20,
        max_cm_retries: 15,
        path_mtu,
        primary: path::Repr { local_gid: gids.0, remote_gid: gids.1, ..path::Repr::default() },
        private_data: req::Data::new(&header.emit()).unwrap(),
        ..req::Repr::default()
    }
}

#[test]
fn a_request_with_an_mtu_that_does_not_exist_is_rejected_and_the_listener_goes_on() {
    let (host, other) = (Host::new(), Host::new());
    let listener = Listener::bind(host.at(0)).unwrap();
    let stranger = gsi(&other);
    let to = MadAddress::new(host.address.into());
    let request = request_of(&other, listener.local_addr(), Mtu(7));
    stranger.send(&to, &Message::from(request).emit(1, 0)).unwrap();
    std::thread::scope(|scope| {
        let accepts = scope.spawn(|| listener.accept_within(PATIENCE));
        let Message::Rej(rejected) = receive(&stranger) else { panic!("a reject") };
        assert_eq!(rejected.remote_comm_id, 7);
        let _client = Connector::default().connect(listener.local_addr()).unwrap();
        assert!(accepts.join().unwrap().unwrap().is_some());
    });
}

#[test]
fn a_reject_of_an_established_connection_is_its_end() {
    let (host, other) = (Host::new(), Host::new());
    let listener = Listener::bind(host.at(0)).unwrap();
    let stranger = gsi(&other);
    let to = MadAddress::new(host.address.into());
    let request = request_of(&other, listener.local_addr(), Mtu::B1024);
    stranger.send(&to, &Message::from(request).emit(1, 0)).unwrap();
    let connection = std::thread::scope(|scope| {
        let accepts = scope.spawn(|| listener.accept_within(PATIENCE));
        let Message::Rep(reply) = receive(&stranger) else { panic!("a reply") };
        let (local_comm_id, remote_comm_id) = (7, reply.local_comm_id);
        let ready = rtu::Repr { local_comm_id, remote_comm_id, ..rtu::Repr::default() };
        stranger.send(&to, &Message::from(ready).emit(1, 0)).unwrap();
        let connection = accepts.join().unwrap().unwrap().expect("a connection");
        assert_eq!(connection.control.end().unwrap(), None);
        let reject = rej::Repr {
            local_comm_id,
            remote_comm_id,
            message_rejected: MsgResponse::REP,
            reason: Reason::TIMEOUT,
            ..rej::Repr::default()
        };
        stranger.send(&to, &Message::from(reject).emit(1, 0)).unwrap();
        connection
    });
    assert_eq!(connection.control.wait(PATIENCE).unwrap(), Some(rdmacm::End::ByPeer));
}

/// Sends `count` requests for different connections but confirms none.
fn flood(stranger: &Gsi, from: &Host, to: SocketAddr, count: u32) {
    for number in 0..count {
        let request = req::Repr {
            local_comm_id: 1000 + number,
            local_qpn: 1000 + number,
            ..request_of(from, to, Mtu::B1024)
        };
        send(stranger, to, request.into());
    }
}

fn send(stranger: &Gsi, to: SocketAddr, message: Message) {
    stranger.send(&MadAddress::new(to.ip().into()), &message.emit(1, 0)).unwrap();
}

#[test]
fn a_client_connects_beside_requests_of_another_address_that_fill_a_listener() {
    let [host, other, third] = [(); 3].map(|()| Host::new());
    let init = ListenerInit { max_pending: 4, backlog: 8, ..ListenerInit::default() };
    let listener = Listener::bind_with(host.at(0), &init, |request| {
        let end = End::from_id(&request.id);
        request.id.accept(end.qp(&request.id), &ConnParam::default())?;
        Ok(Some(end))
    })
    .unwrap();
    let (stranger, to) = (gsi(&other), listener.local_addr());
    // This fills the slots, the requests waiting for a slot and the unread requests.
    flood(&stranger, &other, to, 4 + 8 + 8);
    std::thread::scope(|scope| {
        let accepts = scope.spawn(|| {
            let mut displaced = 0;
            loop {
                match listener.next_incoming(PATIENCE).unwrap().expect("an outcome") {
                    Incoming::Connection(connection) => return (displaced, connection),
                    Incoming::Failed { error, .. } => {
                        assert_eq!(error.errno, Errno::AGAIN, "{error}");
                        displaced += 1;
                    }
                }
            }
        });
        for _ in 0..init.max_pending {
            assert!(matches!(receive(&stranger), Message::Rep(_)), "the flood has all places");
        }
        let source = Some((third.address, 0).into());
        let client = Connector { source, ..Connector::default() }.connect(to).unwrap();
        let (displaced, server) = accepts.join().unwrap();
        assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
        assert!(displaced > 0, "a request of the flood made room");
    });
}

#[test]
fn a_request_beyond_all_places_of_a_listener_has_no_answer_and_may_come_again() {
    let [host, other] = [(); 2].map(|()| Host::new());
    let init = ListenerInit { max_pending: 1, backlog: 4, ..ListenerInit::default() };
    let listener = Listener::bind_with(host.at(0), &init, |request| {
        let end = End::from_id(&request.id);
        request.id.accept(end.qp(&request.id), &ConnParam::default())?;
        Ok(Some(end))
    })
    .unwrap();
    let (stranger, to) = (gsi(&other), listener.local_addr());
    let ask = |number| {
        let request =
            req::Repr { local_comm_id: number, local_qpn: number, ..request_of(&other, to, Mtu::B1024) };
        // A full queue drops requests, as a network does.
        let _ = stranger.send(&MadAddress::new(to.ip().into()), &Message::from(request).emit(1, 0));
    };
    std::thread::scope(|scope| {
        let fails = scope.spawn(|| listener.next_incoming(PATIENCE).unwrap());
        let mut number = 1000;
        while !fails.is_finished() {
            ask(number);
            number += 1;
            std::thread::yield_now();
        }
        let Some(Incoming::Failed { error, .. }) = fails.join().unwrap() else { panic!("no places left") };
        assert_eq!(error.errno, Errno::AGAIN, "{error}");
    });
    // The reply to this request is the last reply.
    let request =
        req::Repr { service_id: ServiceId::ip(WireSpace::TCP, 1), ..request_of(&other, to, Mtu::B1024) };
    while stranger.send(&MadAddress::new(to.ip().into()), &Message::from(request).emit(1, 0)).is_err() {}
    loop {
        match receive(&stranger) {
            Message::Rep(_) => {}
            Message::Rej(rejected) => {
                assert_eq!((rejected.reason, rejected.remote_comm_id), (Reason::INVALID_SERVICE_ID, 7));
                return;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_client_of_a_datagram_service_is_heard_beside_requests_of_another_address() {
    let [host, other, third] = [(); 3].map(|()| Host::new());
    let server = Server::on(host.at(0), PortSpace::UDP, 4);
    let stranger = gsi(&other);
    let IpAddr::V4(target) = host.address else { panic!("IPv4") };
    let IpAddr::V4(source) = other.address else { panic!("IPv4") };
    let header = ip::Repr { source_port: 5555, addresses: ip::Addresses::V4 { source, target } };
    let ask = |request_id| {
        let request = sidr_req::Repr {
            request_id,
            partition_key: 0xffff,
            service_id: ServiceId::ip(WireSpace::UDP, server.address.port()),
            private_data: sidr_req::Data::new(&header.emit()).unwrap(),
        };
        send(&stranger, server.address, request.into());
    };
    let is_rejected = || {
        let Message::SidrRep(reply) = receive(&stranger) else { panic!("a reply") };
        assert_eq!(reply.status, sidr_rep::Status::REJECTED, "the backlog is full");
    };
    (0..5).for_each(ask);
    is_rejected();
    let channel = EventChannel::new().unwrap();
    let from = Some((third.address, 0).into());
    let client = resolved_from(from, &channel, PortSpace::UDP, server.address);
    client.connect_with(&ConnParam { private_data: b"client", ..ConnParam::default() }).unwrap();
    // This request arrives after the client's request, which took one of the stranger's slots.
    ask(5);
    is_rejected();
    let mut kept = Vec::new();
    while !kept.iter().any(|request: &ConnectRequest| request.peer.private_data().starts_with(b"client")) {
        kept.push(request(&server.channel));
    }
    assert!(channel.try_next_event().unwrap().is_none(), "nobody refuses the client");
}
