//! The setup of a connection: private data, receives, rejects, errors.

use std::sync::Mutex;
use std::thread;

use rdmacm::{
    ConnParam, ConnectStep, Connection, Connector, Listener, ListenerInit, RejectReason, Resources,
};
use verbs::{Errno, QpAttrMask, QpState, SendFlags, SendOp};

use super::{accept, client, listener_that_answers, pair, send};
use crate::support::{Host, PATIENCE, is_free};

#[test]
fn an_address_is_enough_for_a_connected_queue_pair_at_both_ends() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    assert_ne!(listener.local_addr().port(), 0);
    let (mut client, mut server) = pair(&listener);
    send(&mut client, &mut server, b"question");
    send(&mut server, &mut client, b"answer");
    assert_eq!(client.peer_addr().unwrap(), Some(listener.local_addr()));
    assert_eq!(server.local_addr().unwrap(), Some(listener.local_addr()));
    assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
    let address = host.address;
    drop((client, server, listener, host));
    is_free(address);
}

#[test]
fn private_data_goes_both_ways() {
    let host = Host::new();
    let listener = listener_that_answers(&host, &ListenerInit::default());
    let to = listener.local_addr();
    let client = thread::spawn(move || {
        let param = ConnParam { private_data: b"abcdefgh", ..ConnParam::default() };
        Connector { param, ..Connector::default() }.connect(to)
    });
    let server = accept(&listener);
    assert_eq!(server.peer.private_data[..8], *b"abcdefgh");
    let client = client.join().unwrap().unwrap();
    assert_eq!(client.peer.private_data[..8], *b"hgfedcba");
}

#[test]
fn a_setup_posts_receives_before_the_peer_can_send() {
    let host = Host::new();
    let listener = Listener::bind_with(host.at(0), &ListenerInit::default(), |request| {
        let (mut qp, resources) = Resources::create(&request.id, Resources::CAP)?;
        qp.post_recv_buf(resources.pd.alloc_buf(64)?, ..)?;
        request.id.accept(qp, &ConnParam { rnr_retry_count: 0, ..ConnParam::default() })?;
        Ok(Some(resources))
    })
    .unwrap();
    let to = listener.local_addr();
    let client = thread::spawn(move || {
        let mut client = Connector::default().connect(to).unwrap();
        let message = client.resources.pd.register(b"early".to_vec()).unwrap();
        client.qp.post_send_buf(SendOp::Send, SendFlags::empty(), message, ..).unwrap();
        client.resources.next_send(PATIENCE).unwrap().ok().unwrap();
        client
    });
    let mut server = accept(&listener);
    assert_eq!(server.resources.next_recv(PATIENCE).unwrap().ok().unwrap().received(), 5);
    client.join().unwrap();
}

#[test]
fn a_message_that_finds_no_receive_is_sent_again_within_a_millisecond() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    let (client, server) = pair(&listener);
    assert_eq!([rnr_timer(&client), rnr_timer(&server)], [12; 2], "0.64 ms");
    // A program that changes its queue pair's state itself, as every C program does, gets the same
    // timer.
    let (attr, mask) = server.control.id().init_qp_attr(QpState::RTR).unwrap();
    assert!(mask.contains(QpAttrMask::MIN_RNR_TIMER));
    assert_eq!(attr.min_rnr_timer, ConnParam::MIN_RNR_TIMER);
}

#[test]
fn each_side_chooses_the_time_after_which_its_peer_sends_again() {
    let host = Host::new();
    let init = ListenerInit { min_rnr_timer: Some(1), ..ListenerInit::default() };
    let listener = Listener::bind_with(host.at(0), &init, |request| {
        let (qp, resources) = Resources::create(&request.id, Resources::CAP)?;
        let is_own = request.peer.private_data().starts_with(b"own");
        let min_rnr_timer = is_own.then_some(2);
        request.id.accept(qp, &ConnParam { min_rnr_timer, ..ConnParam::default() })?;
        Ok(Some(resources))
    })
    .unwrap();
    let to = listener.local_addr();
    let timers = |connector: Connector<'static>| {
        let client = thread::spawn(move || connector.connect(to));
        let server = accept(&listener);
        let asked = server.control.id().init_qp_attr(QpState::RTR).unwrap().0.min_rnr_timer;
        (rnr_timer(&client.join().unwrap().unwrap()), rnr_timer(&server), asked)
    };
    let connector = Connector { min_rnr_timer: Some(3), ..Connector::default() };
    assert_eq!(timers(connector.clone()), (3, 1, 1));
    let param = ConnParam { private_data: b"own", min_rnr_timer: Some(0), ..ConnParam::default() };
    assert_eq!(timers(Connector { param, ..connector }), (0, 2, 1));
}

#[test]
fn a_timer_of_more_than_5_bits_is_refused_by_name() {
    let host = Host::new();
    let init = ListenerInit { min_rnr_timer: Some(32), ..ListenerInit::default() };
    let error = Listener::bind_with(host.at(0), &init, |_| Ok(None::<()>)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "set_option: min_rnr_timer 32 does not fit into 5 bits: the most is 31 (EINVAL)"
    );
    let listener = Listener::bind(host.at(0)).unwrap();
    let param = ConnParam { min_rnr_timer: Some(32), ..ConnParam::default() };
    let error = Connector { param, ..Connector::default() }.connect(listener.local_addr()).unwrap_err();
    assert!(error.to_string().contains("min_rnr_timer 32"), "{error}");
}

fn rnr_timer(connection: &Connection) -> u8 {
    connection.qp.query(QpAttrMask::MIN_RNR_TIMER).unwrap().0.min_rnr_timer
}

#[test]
fn a_reject_of_the_setup_has_its_private_data() {
    let host = Host::new();
    let listener = Listener::bind_with(host.at(0), &ListenerInit::default(), |request| {
        request.id.reject(b"not today")?;
        Ok(None::<()>)
    })
    .unwrap();
    let client = client(listener.local_addr());
    thread::scope(|scope| {
        let accepts = scope.spawn(|| listener.accept_within(PATIENCE).map(|_| ()));
        let error = client.join().unwrap().unwrap_err();
        let rejection = error.rejection.as_ref().expect("a reject");
        assert_eq!(rejection.reason, Some(RejectReason::CONSUMER_DEFINED));
        assert_eq!(rejection.private_data[..9], *b"not today");
        assert_eq!((error.step, error.error.errno), (ConnectStep::Connect, Errno::CONNREFUSED));
        listener.close();
        assert_eq!(accepts.join().unwrap().unwrap_err().errno, Errno::CANCELED);
    });
}

#[test]
fn a_request_that_the_setup_drops_is_rejected() {
    let host = Host::new();
    let listener = Listener::bind_with(host.at(0), &ListenerInit::default(), |_| Ok(None::<()>)).unwrap();
    let client = client(listener.local_addr());
    thread::scope(|scope| {
        let accepts = scope.spawn(|| listener.accept_within(PATIENCE).map(|_| ()));
        let error = client.join().unwrap().unwrap_err();
        assert_eq!(error.rejection.and_then(|it| it.reason), Some(RejectReason::CONSUMER_DEFINED));
        listener.close();
        assert_eq!(accepts.join().unwrap().unwrap_err().errno, Errno::CANCELED);
    });
}

#[test]
fn an_error_of_the_setup_is_returned_and_the_listener_goes_on() {
    let host = Host::new();
    let fails = Mutex::new(true);
    // The request frees the only slot.
    let init = ListenerInit { max_pending: 1, ..ListenerInit::default() };
    let listener = Listener::bind_with(host.at(0), &init, move |request| {
        if std::mem::take(&mut *fails.lock().unwrap()) {
            return Err(verbs::Error::new("alloc_pd", "", Errno::NOMEM));
        }
        let (qp, resources) = Resources::create(&request.id, Resources::CAP)?;
        request.id.accept(qp, &ConnParam::default())?;
        Ok(Some(resources))
    })
    .unwrap();
    let first = client(listener.local_addr());
    assert_eq!(listener.accept_within(PATIENCE).unwrap_err().errno, Errno::NOMEM);
    assert!(first.join().unwrap().unwrap_err().rejection.is_some());
    pair(&listener);
}

#[test]
fn private_data_that_is_too_long_is_the_programs_error() {
    let host = Host::new();
    let listener = Listener::bind_with(host.at(0), &ListenerInit::default(), |request| {
        let (qp, resources) = Resources::create(&request.id, Resources::CAP)?;
        request.id.accept(qp, &ConnParam { private_data: &[0; 197], ..ConnParam::default() })?;
        Ok(Some(resources))
    })
    .unwrap();
    let client = client(listener.local_addr());
    let error = listener.accept_within(PATIENCE).unwrap_err();
    assert!(error.to_string().contains("length of private_data 197"), "{error}");
    assert!(client.join().unwrap().is_err());
    let param = ConnParam { private_data: &[0; 57], ..ConnParam::default() };
    let error = Connector { param, ..Connector::default() }.connect(listener.local_addr()).unwrap_err();
    assert!(error.to_string().contains("length of private_data 57"), "{error}");
}
