//! Closing a listener, in each state of its requests.

use std::fs;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rdmacm::{Connector, EventKind, Listener, ListenerInit};
use verbs::Errno;

use super::{Slow, accept, client, listener_that_answers, pair, send};
use crate::support::{Host, PATIENCE, is_free, next, readable};

/// Waits until the thread at `task`, a path below `/proc`, is asleep.
pub(super) fn is_asleep(task: &Path) {
    let stat = Path::new("/proc").join(task).join("stat");
    let deadline = Instant::now() + PATIENCE;
    // The state follows the name in parentheses.
    while !fs::read_to_string(&stat).unwrap().rsplit(") ").next().unwrap().starts_with('S') {
        assert!(Instant::now() < deadline, "it does not wait");
        thread::yield_now();
    }
}

#[test]
fn closing_ends_a_blocked_accept_and_rejects_later_peers() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    let (mut client, mut server) = pair(&listener);
    let listener = Arc::new(listener);
    let (ended, ends) = mpsc::channel();
    for _ in 0..2 {
        let (listener, ended) = (Arc::clone(&listener), ended.clone());
        let (started, starts) = mpsc::channel();
        thread::spawn(move || {
            started.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
            ended.send(listener.accept().map(drop))
        });
        is_asleep(&starts.recv_timeout(PATIENCE).unwrap());
    }
    listener.close();
    for _ in 0..2 {
        let error = ends.recv_timeout(PATIENCE).unwrap().unwrap_err();
        assert_eq!(error.to_string(), "accept: the listener is closed (ECANCELED)");
    }
    let error = Connector::default().connect(listener.local_addr()).unwrap_err();
    assert!(error.to_string().contains("no program listens"), "{error}");
    assert_eq!(listener.accept_within(Duration::ZERO).unwrap_err().errno, Errno::CANCELED);
    // The port is free; existing connections continue.
    Listener::bind(listener.local_addr()).unwrap();
    send(&mut client, &mut server, b"still there");
}

#[test]
fn a_closed_listener_rejects_the_request_of_a_slow_peer() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    let slow = Slow::new(listener.local_addr(), 0xff_ff07);
    thread::scope(|scope| {
        let blocked = scope.spawn(|| listener.accept_within(PATIENCE).map(|_| ()));
        slow.is_accepted();
        listener.close();
        assert_eq!(blocked.join().unwrap().unwrap_err().errno, Errno::CANCELED);
    });
    let event = next(&slow.channel);
    assert!(matches!(event.kind, EventKind::Rejected(_)), "{event:?}");
}

#[test]
fn a_listener_that_is_dropped_rejects_the_requests_of_each_state() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    let to = listener.local_addr();
    let accepted = Slow::new(to, 0xff_ff07);
    let client = client(to);
    let connected = (accept(&listener), client.join().unwrap().unwrap());
    accepted.is_accepted();
    // The listener has not read this request.
    let unread = Slow::new(to, 0xff_ff08);
    readable(&listener);
    drop(listener);
    for slow in [&accepted, &unread] {
        let event = next(&slow.channel);
        assert!(event.id == slow.id.key() && matches!(event.kind, EventKind::Rejected(_)), "{event:?}");
    }
    assert_eq!(connected.0.control.end().unwrap(), None, "connections go on");
    let address = host.address;
    drop((accepted, unread, connected, host));
    is_free(address);
}

#[test]
fn a_wait_without_time_returns_at_once() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    assert!(listener.accept_within(Duration::ZERO).unwrap().is_none());
    let (client, server) = pair(&listener);
    assert_eq!(client.control.wait(Duration::ZERO).unwrap(), None);
    assert_eq!(server.control.end().unwrap(), None);
}

#[test]
fn a_listener_that_is_closed_or_dropped_rejects_the_requests_that_wait_for_a_place() {
    for is_dropped in [false, true] {
        let host = Host::new();
        let init = ListenerInit { max_pending: 1, backlog: 2, ..ListenerInit::default() };
        let listener = listener_that_answers(&host, &init);
        let peers = [1, 2, 3].map(|number| {
            let peer = Slow::new(listener.local_addr(), 0xff_ff00 + number);
            readable(&listener);
            let incoming = listener.next_incoming(Duration::ZERO).unwrap();
            assert!(incoming.is_none(), "{number} is pending, or waits: {incoming:?}");
            peer
        });
        peers[0].is_accepted();
        let _closed = if is_dropped {
            drop(listener);
            None
        } else {
            listener.close();
            Some(listener)
        };
        for peer in &peers {
            let event = next(&peer.channel);
            let is_rejected = event.id == peer.id.key() && matches!(event.kind, EventKind::Rejected(_));
            assert!(is_rejected, "dropped: {is_dropped}: {event:?}");
        }
        let address = host.address;
        drop((peers, host));
        is_free(address);
    }
}
