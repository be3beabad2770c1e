//! The devices of a listener, available to a program before its first client.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::thread;

use rdmacm::{Binding, ConnParam, Connector, EventChannel, Listener, ListenerInit, PortSpace, Resources};
use verbs::{CqInit, Errno, QpInit, QpType, SendFlags, SendOp};

use super::{accept, pair};
use crate::edges::EdgeLoop;
use crate::support::{Host, PATIENCE, is_inside};

#[test]
fn a_server_has_its_devices_and_what_connections_share_before_its_first_client() {
    let host = Host::new();
    let binding = Binding::new(host.at(0), &ListenerInit::default()).unwrap();
    let (context, address) = (binding.context().unwrap(), binding.local_addr());
    assert!(address.port() != 0 && address.ip() == host.address);
    let pd = context.alloc_pd().unwrap();
    let shared = pd.clone();
    let listener = binding
        .listen(move |request| {
            let (qp, resources) = Resources::create_in(&request.id, &shared, Resources::CAP)?;
            request.id.accept(qp, &ConnParam::default())?;
            Ok(Some(resources))
        })
        .unwrap();
    assert_eq!(listener.contexts().unwrap().len(), 1);
    for _ in 0..2 {
        let (mut client, mut server) = pair(&listener);
        assert_eq!(server.resources.pd.handle(), pd.handle());
        // Memory registered before the connection serves every connection.
        let received = pd.alloc_buf(64).unwrap();
        server.qp.post_recv_buf(received, ..).unwrap();
        let message = client.resources.pd.register(b"hello".to_vec()).unwrap();
        client.qp.post_send_buf(SendOp::Send, SendFlags::empty(), message, ..).unwrap();
        assert_eq!(server.resources.next_recv(PATIENCE).unwrap().ok().unwrap().received(), 5);
    }
}

#[test]
fn an_address_without_devices_is_told_from_an_id_without_an_address() {
    const TEST: &str = "listener::devices::an_address_without_devices_is_told_from_an_id_without_an_address";
    // The test runs in a separate process, because other tests have devices on IPv6 addresses.
    if !is_inside(TEST, "true") {
        return;
    }
    let _host = Host::new();
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(PortSpace::TCP).unwrap();
    assert_eq!(id.contexts().unwrap_err().errno, Errno::INVAL);
    id.set_af_only(true).unwrap();
    id.bind_addr((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    let error = id.contexts().unwrap_err();
    assert_eq!(error.errno, Errno::NODEV, "{error}");
    assert!(error.to_string().contains("no device has the address"), "{error}");
}

#[test]
fn a_listener_on_all_addresses_has_each_device_and_its_connections_share_the_contexts() {
    let host = Host::new();
    let binding = Binding::new((Ipv4Addr::UNSPECIFIED, 0), &ListenerInit::default()).unwrap();
    assert!(binding.context().is_err(), "no device alone");
    // Other tests in this process have devices, too.
    let contexts = binding.contexts().unwrap();
    let name = host.open().device_name().to_owned();
    let context = contexts.into_iter().find(|context| context.device_name() == name).expect("the device");
    let cq = context.create_cq(&CqInit::new(16)).unwrap();
    let handle = cq.handle();
    let port = binding.local_addr().port();
    let listener = binding
        .listen(move |request| {
            // The domain of the connection's context is used with the listener's queue.
            let pd = request.id.context()?.alloc_pd()?;
            let init = QpInit { send_cq: handle.clone(), ..QpInit::new(QpType::RC, &cq) };
            let qp = request.id.create_qp(&pd, &init)?;
            request.id.accept(qp, &ConnParam::default())?;
            Ok(Some(pd))
        })
        .unwrap();
    let to = host.at(port);
    let client = thread::spawn(move || Connector::default().connect(to).unwrap());
    accept(&listener);
    client.join().unwrap();
    listener.close();
    assert_eq!(listener.contexts().unwrap_err().errno, Errno::CANCELED);
}

#[test]
fn the_resources_of_a_connection_have_a_descriptor() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    let (mut client, mut server) = pair(&listener);
    server.qp.post_recv_buf(server.resources.pd.alloc_buf(64).unwrap(), ..).unwrap();
    server.resources.recv_cq.req_notify(false).unwrap();
    let edges = EdgeLoop::around(&server.resources);
    let message = client.resources.pd.register(b"hello".to_vec()).unwrap();
    client.qp.post_send_buf(SendOp::Send, SendFlags::empty(), message, ..).unwrap();
    edges.take(1, || server.resources.channel().next_event().unwrap().is_some());
    assert_eq!(server.resources.recv_cq.poll_one().expect("a completion").ok().unwrap().received(), 5);
}

#[test]
fn an_id_takes_a_domain_of_its_device_however_that_was_opened() {
    let host = Host::new();
    let context = host.open();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(&CqInit::new(64)).unwrap());
    let handle = cq.handle();
    let listener = Listener::bind_with(host.at(0), &ListenerInit::default(), move |request| {
        let init = QpInit { send_cq: handle.clone(), ..QpInit::new(QpType::RC, &cq) };
        let qp = request.id.create_qp(&pd, &init)?;
        request.id.accept(qp, &ConnParam::default())?;
        Ok(Some(()))
    })
    .unwrap();
    let to = listener.local_addr();
    let client = thread::spawn(move || Connector::default().connect(to).unwrap());
    accept(&listener);
    client.join().unwrap();
}
