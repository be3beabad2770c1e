//! Time limits, addresses and options of the connecting side.

use std::net::{Ipv6Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use rdmacm::{ConnectStep, Connection, Connector, EventChannel, Listener, ListenerInit, PortSpace};
use verbs::{Errno, QpState};

use super::{accept, client, listener_that_answers};
use crate::support::{Host, Server, request};

#[test]
fn a_peer_whose_program_does_not_answer_is_named_as_the_step_that_did_not_end() {
    let host = Host::new();
    let server = Server::new(&host);
    let within = Duration::from_millis(100);
    let connector = Connector { connect_timeout: within, ..Connector::default() };
    let error = connector.connect(server.address).unwrap_err();
    let text = format!("connect: {}: the peer did not accept within 100ms (ETIMEDOUT)", server.address);
    assert_eq!((error.to_string(), error.step), (text, ConnectStep::Connect));
    let connector = Connector { timeout: Some(within), ..Connector::default() };
    let error = connector.connect(server.address).unwrap_err();
    assert!(error.to_string().contains("when the 100ms for all steps were over"), "{error}");
    drop(request(&server.channel));
}

#[test]
fn addresses_are_tried_in_turn() {
    let (host, other) = (Host::new(), Host::new());
    let listener = Listener::bind(host.at(0)).unwrap();
    let port = listener.local_addr().port();
    let to = [other.at(port), host.at(port)];
    let client = thread::spawn(move || Connector::default().connect(&to[..]));
    accept(&listener);
    assert_eq!(client.join().unwrap().unwrap().peer_addr().unwrap(), Some(host.at(port)));
    let error = Connector::default().connect(&[host.at(1), other.at(1)][..]).unwrap_err();
    assert_eq!(error.address, Some(other.at(1)), "the last one");
    let listener = Listener::bind(&[listener.local_addr(), other.at(port)][..]).unwrap();
    assert_eq!(listener.local_addr(), other.at(port), "the first one is taken");
}

#[test]
fn a_name_without_addresses_and_an_unknown_one_are_no_step_of_the_network() {
    let none: &[SocketAddr] = &[];
    let error = Connector::default().connect(none).unwrap_err();
    assert_eq!((error.step, error.error.errno), (ConnectStep::Lookup, Errno::NOENT));
    assert_eq!(Listener::bind(none).unwrap_err().errno, Errno::NOENT);
    let error = Connector::default().connect("no port").unwrap_err();
    assert_eq!((error.step, error.address), (ConnectStep::Lookup, None));
}

#[test]
fn options_of_both_sides_reach_the_connection() {
    let (host, other) = (Host::new(), Host::new());
    let init =
        ListenerInit { tos: Some(32), ack_timeout: Some(15), reuse_addr: true, ..ListenerInit::default() };
    let listener = listener_that_answers(&host, &init);
    let to = listener.local_addr();
    let source = other.at(0);
    let client = thread::spawn(move || {
        let source = Some(source);
        Connector { source, tos: Some(104), ack_timeout: Some(16), ..Connector::default() }.connect(to)
    });
    let server = accept(&listener);
    let client = client.join().unwrap().unwrap();
    assert_eq!(client.local_addr().unwrap().unwrap().ip(), other.address);
    assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
    let [path] = client.control.id().paths().unwrap()[..] else { panic!("one path") };
    assert_eq!(path.traffic_class, 104);
    let timeout =
        |connection: &Connection| connection.control.id().init_qp_attr(QpState::RTS).unwrap().0.timeout;
    assert_eq!((timeout(&client), timeout(&server)), (16, 15));
    let source = Some((Ipv6Addr::LOCALHOST, 0).into());
    let error = Connector { source, ..Connector::default() }.connect(to).unwrap_err();
    assert_eq!(error.step, ConnectStep::Lookup, "no address has the family of the source");
}

#[test]
fn ports_are_shared_where_both_sides_permit_it() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    let from = |source, reuse_addr| Connector { source: Some(source), reuse_addr, ..Connector::default() };
    let connect = |source| {
        thread::scope(|scope| {
            let to = listener.local_addr();
            let client = scope.spawn(move || from(source, true).connect(to));
            accept(&listener);
            client.join().unwrap().unwrap()
        })
    };
    let first = connect(host.at(0));
    let source = first.local_addr().unwrap().unwrap();
    let error = from(source, false).connect(listener.local_addr()).unwrap_err();
    assert_eq!((error.step, error.error.errno), (ConnectStep::ResolveAddr, Errno::ADDRINUSE));
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(PortSpace::TCP).unwrap();
    id.set_reuse_addr(true).unwrap();
    id.bind_addr(host.at(0)).unwrap();
    let shared = id.local_addr().unwrap().and_then(|address| address.ip()).unwrap();
    assert_eq!(Listener::bind(shared).unwrap_err().verb, "bind_addr");
    let init = ListenerInit { reuse_addr: true, ..ListenerInit::default() };
    let error = Listener::bind_with(shared, &init, |_| Ok(None::<()>)).unwrap_err();
    assert_eq!((error.verb, error.errno), ("listen", Errno::ADDRINUSE), "one that listens shares no port");
    let client = connect(shared);
    assert_eq!(client.local_addr().unwrap(), Some(shared));
}

#[test]
fn a_listener_on_any_address_takes_peers_of_both_families() {
    let host = Host::new();
    let listener = Listener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    let client = client(host.at(listener.local_addr().port()));
    accept(&listener);
    client.join().unwrap().unwrap();
    let init = ListenerInit { af_only: true, ..ListenerInit::default() };
    let listener = Listener::bind_with((Ipv6Addr::UNSPECIFIED, 0), &init, |_| Ok(None::<()>)).unwrap();
    let error = Connector::default().connect(host.at(listener.local_addr().port())).unwrap_err();
    assert!(error.to_string().contains("no program listens"), "{error}");
}
