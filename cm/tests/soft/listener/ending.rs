//! The end of a connection, by either side.

use std::fs;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rdmacm::{Connection, End, Listener};
use verbs::{Errno, QpState, WcStatus};

use super::closing::is_asleep;
use super::pair;
use crate::support::{Host, PATIENCE, is_free, readable};

#[test]
fn each_side_ends_the_connection_and_the_other_one_notices() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    for client_ends in [true, false] {
        let (client, server) = pair(&listener);
        let (ends, mut notices) = if client_ends { (client, server) } else { (server, client) };
        notices.qp.post_recv_buf(notices.resources.pd.alloc_buf(64).unwrap(), ..).unwrap();
        let ended = thread::scope(|scope| {
            let ended = scope.spawn(|| ends.disconnect(PATIENCE).unwrap());
            assert_eq!(notices.control.wait(PATIENCE).unwrap(), Some(End::ByPeer));
            ended.join().unwrap()
        });
        assert_eq!((ended.end, ended.qp.state()), (End::Confirmed, Ok(QpState::ERR)));
        // The end does not change. Posted requests complete as flushed.
        assert_eq!(notices.control.end().unwrap(), Some(End::ByPeer));
        let Connection { qp, mut resources, control, .. } = notices;
        let _qp = qp.to_error().unwrap();
        assert_eq!(resources.next_recv(PATIENCE).unwrap().status, WcStatus::WR_FLUSH_ERR);
        assert_eq!(control.disconnect(PATIENCE).unwrap(), End::ByPeer);
    }
}

#[test]
fn a_peer_that_does_not_confirm_the_end_in_time_is_not_waited_for() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    let (client, server) = pair(&listener);
    // The peer's program does not check its control.
    let ended = client.disconnect(Duration::from_millis(50)).unwrap();
    assert_eq!(ended.end, End::Unconfirmed);
    assert_eq!(server.control.wait(PATIENCE).unwrap(), Some(End::ByPeer));
}

#[test]
fn an_end_by_the_peer_that_was_not_read_comes_before_that_of_this_side() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    let (client, server) = pair(&listener);
    drop(client);
    readable(&server.control);
    assert_eq!(server.disconnect(PATIENCE).unwrap().end, End::ByPeer);
}

#[test]
fn a_dropped_connection_is_an_end_by_the_peer() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    let (client, server) = pair(&listener);
    drop(client);
    assert_eq!(server.control.wait(PATIENCE).unwrap(), Some(End::ByPeer));
    let address = host.address;
    drop((server, listener, host));
    is_free(address);
}

#[test]
fn a_wait_for_completions_ends_in_time() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    let (mut client, _server) = pair(&listener);
    let error = client.resources.next_recv(Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.errno, Errno::TIMEDOUT);
}

#[test]
fn an_end_that_one_thread_finds_wakes_the_others() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    let (client, _server) = pair(&listener);
    let control = Arc::new(client.control);
    let (ended, ends) = mpsc::channel();
    let waits = Arc::clone(&control);
    let (started, starts) = mpsc::channel();
    thread::spawn(move || {
        started.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
        ended.send(waits.wait(Duration::MAX).unwrap())
    });
    is_asleep(&starts.recv_timeout(PATIENCE).unwrap());
    // The peer's program does not check its control, so no event arrives.
    assert_eq!(control.disconnect(Duration::from_millis(20)).unwrap(), End::Unconfirmed);
    assert_eq!(ends.recv_timeout(PATIENCE), Ok(Some(End::Unconfirmed)));
}
