//! Many peers, slow peers, peers that give up, and limits on their resources.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rdmacm::{
    ConnParam, Connection, Connector, EventKind, Incoming, Listener, ListenerInit, Peer, Resources,
};
use verbs::Errno;

use super::{Slow, accept, client, listener_that_answers, pair};
use crate::edges::EdgeLoop;
use crate::support::{End, Host, PATIENCE, next, readable};

#[test]
fn a_request_beyond_the_backlog_connects_once_the_program_has_taken_others() {
    let host = Host::new();
    let init = ListenerInit { backlog: 2, ..ListenerInit::default() };
    let listener = listener_that_answers(&host, &init);
    let (results, ended) = mpsc::channel();
    for _ in 0..3 {
        let (results, to) = (results.clone(), listener.local_addr());
        thread::spawn(move || results.send(Connector::default().connect(to)).is_ok());
    }
    // A request beyond the backlog is dropped; its peer sends it again.
    let _accepted = [(); 3].map(|()| accept(&listener));
    let _connected = [(); 3].map(|()| ended.recv_timeout(PATIENCE).unwrap().unwrap());
}

const PEERS: u64 = 256;

#[test]
fn two_hundred_and_fifty_six_peers_connect_to_one_listener_at_once() {
    at_once(&ListenerInit { max_pending: PEERS as usize, ..ListenerInit::default() }, accept_all);
}

#[test]
fn an_edge_triggered_loop_accepts_two_hundred_and_fifty_six_peers() {
    for max_pending in [PEERS as usize, 16] {
        at_once(&ListenerInit { max_pending, ..ListenerInit::default() }, |listener| {
            let mut accepted = Vec::new();
            EdgeLoop::around(listener).take(PEERS as usize, || {
                let next = listener.accept_within(Duration::ZERO).unwrap();
                let is_some = next.is_some();
                accepted.extend(next);
                is_some
            });
            accepted
        });
    }
}

/// Connects 256 peers simultaneously to a listener with the default number of pending requests: 102
/// in a process that may open 1,024 files. The other requests wait.
pub(crate) fn beyond_the_default() {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft.min(1024), hard).unwrap();
    let init = ListenerInit::default();
    assert!(init.max_pending < PEERS as usize, "{init:?}");
    at_once(&init, accept_all);
}

fn accept_all(listener: &Listener<End>) -> Vec<Connection<End>> {
    let mut accepted = Vec::new();
    let deadline = Instant::now() + 3 * PATIENCE;
    while accepted.len() < PEERS as usize {
        assert!(Instant::now() < deadline, "{} are accepted", accepted.len());
        accepted.extend(listener.accept_within(PATIENCE).unwrap());
    }
    accepted
}

fn at_once(init: &ListenerInit, accept: impl FnOnce(&Listener<End>) -> Vec<Connection<End>>) {
    let host = Host::new();
    // Completion queues have no channels, because processes are often limited to 1024 files.
    let listener = Listener::bind_with(host.at(0), init, |request| {
        let end = End::from_id(&request.id);
        let private_data = &request.peer.private_data()[..8];
        request.id.accept(end.qp(&request.id), &ConnParam { private_data, ..ConnParam::default() })?;
        Ok(Some(end))
    })
    .unwrap();
    let to = listener.local_addr();
    let (start, all) = (Barrier::new(PEERS as usize), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for number in 0..PEERS {
            let (start, all) = (&start, &all);
            scope.spawn(move || {
                start.wait();
                let private_data = &number.to_be_bytes();
                let param = ConnParam { private_data, ..ConnParam::default() };
                let times = (PATIENCE, 3 * PATIENCE);
                let connector = Connector {
                    param,
                    resolve_timeout: times.0,
                    connect_timeout: times.1,
                    ..Connector::default()
                };
                let connection = connector.connect_with(to, |id| {
                    let end = End::from_id(id);
                    Ok((end.qp(id), end))
                });
                let connection = connection.unwrap();
                assert_eq!(connection.peer.private_data[..8], *private_data);
                all.lock().unwrap().push(connection);
            });
        }
        let accepted = accept(&listener);
        let numbers: BTreeSet<_> = accepted.iter().map(|it| it.peer.private_data[..8].to_vec()).collect();
        assert_eq!(numbers.len(), PEERS as usize);
    });
    assert_eq!(all.into_inner().unwrap().len(), PEERS as usize);
}

#[test]
fn threads_share_a_listener() {
    const PEERS: usize = 16;
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    let accepted = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let acceptors: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    while let Ok(Some(connection)) = listener.accept_within(PATIENCE) {
                        accepted.lock().unwrap().push(connection);
                    }
                })
            })
            .collect();
        let clients: Vec<_> = (0..PEERS).map(|_| client(listener.local_addr())).collect();
        let connected: Vec<_> = clients.into_iter().map(|it| it.join().unwrap().unwrap()).collect();
        let deadline = Instant::now() + PATIENCE;
        while accepted.lock().unwrap().len() < PEERS {
            assert!(Instant::now() < deadline);
            thread::yield_now();
        }
        listener.close();
        acceptors.into_iter().for_each(|it| it.join().unwrap());
        assert_eq!(connected.len(), PEERS);
    });
}

#[test]
fn a_slow_peer_delays_no_other_one_and_expires() {
    let host = Host::new();
    let init = ListenerInit { establish_timeout: Duration::from_millis(200), ..ListenerInit::default() };
    let listener = listener_that_answers(&host, &init);
    let slow = Slow::new(listener.local_addr(), 0xff_ff07);
    let (_client, _accepted) = {
        let client = client(listener.local_addr());
        let accepted = accept(&listener);
        (client.join().unwrap().unwrap(), accepted)
    };
    slow.is_accepted();
    let incoming = listener.next_incoming(PATIENCE).unwrap().expect("it expires in time");
    let Incoming::Failed { peer, error } = incoming else { panic!("{incoming:?}") };
    assert_eq!(error.to_string(), "accept: the peer did not confirm the connection within 200ms (ETIMEDOUT)");
    assert_eq!(peer.map(Into::into), slow.id.local_addr().unwrap());
    let event = next(&slow.channel);
    assert!(matches!(event.kind, EventKind::Rejected(_)), "{event:?}");
}

#[test]
fn requests_beyond_those_that_may_be_pending_wait_as_many_as_the_backlog() {
    let host = Host::new();
    let init = ListenerInit { max_pending: 1, backlog: 1, ..ListenerInit::default() };
    let listener = listener_that_answers(&host, &init);
    let slow = |number: u32| {
        let peer = Slow::new(listener.local_addr(), 0xff_ff00 + number);
        readable(&listener);
        (peer, listener.next_incoming(Duration::ZERO).unwrap())
    };
    let (first, is_pending) = slow(1);
    first.is_accepted();
    let (second, waits) = slow(2);
    assert!(is_pending.is_none() && waits.is_none(), "{is_pending:?} {waits:?}");
    let (third, refused) = slow(3);
    assert!(
        matches!(&refused, Some(Incoming::Failed { error, .. }) if error.errno == Errno::AGAIN),
        "{refused:?}"
    );
    // A reject from a port without a listener would arrive after a reject of the third request.
    let nowhere = Slow::new(host.at(1), 0xff_ff04);
    let event = next(&nowhere.channel);
    assert!(matches!(event.kind, EventKind::Rejected(_)), "{event:?}");
    assert!(third.channel.try_next_event().unwrap().is_none(), "it may ask again");
    drop(third);
    let next_incoming = || listener.next_incoming(PATIENCE).unwrap().expect("an outcome in time");
    thread::scope(|scope| {
        // The thread that reads the end of the first request returns it. The other thread, which
        // waits, must set up the second request.
        let readers = [(); 2].map(|()| scope.spawn(next_incoming));
        drop(first);
        second.is_accepted();
        drop(second);
        for reader in readers {
            let incoming = reader.join().unwrap();
            assert!(matches!(incoming, Incoming::Failed { .. }), "{incoming:?}");
        }
    });
    pair(&listener);
}

#[test]
fn the_descriptor_tells_of_requests_that_wait_behind_one_that_fails() {
    let host = Host::new();
    let init = ListenerInit { max_pending: 1, ..ListenerInit::default() };
    let count = AtomicU32::new(0);
    let listener = Listener::bind_with(host.at(0), &init, move |request| {
        if count.fetch_add(1, Ordering::Relaxed) == 1 {
            return Err(verbs::Error::new("alloc_pd", "", Errno::NOMEM));
        }
        let (qp, resources) = Resources::create(&request.id, Resources::CAP)?;
        request.id.accept(qp, &ConnParam::default())?;
        Ok(Some(resources))
    })
    .unwrap();
    let handle = || {
        readable(&listener);
        listener.next_incoming(Duration::ZERO)
    };
    let peers = [1, 2, 3].map(|number| {
        let peer = Slow::new(listener.local_addr(), 0xff_ff00 + number);
        assert!(handle().unwrap().is_none(), "it is pending, or waits");
        peer
    });
    let [first, _second, third] = peers;
    drop(first);
    assert!(matches!(handle(), Ok(Some(Incoming::Failed { .. }))), "the peer has gone");
    assert!(handle().is_err(), "the second one's setup fails");
    assert!(handle().unwrap().is_none(), "the third one is pending");
    third.is_accepted();
    listener.close();
    assert!(handle().is_err(), "it is closed");
}

#[test]
fn a_burst_of_peers_is_served_one_after_the_other() {
    const PEERS: u32 = 16;
    let host = Host::new();
    let init = ListenerInit { max_pending: 1, ..ListenerInit::default() };
    let listener = listener_that_answers(&host, &init);
    let clients = [(); PEERS as usize].map(|()| client(listener.local_addr()));
    let accepted = [(); PEERS as usize].map(|()| accept(&listener));
    let connected = clients.map(|client| client.join().unwrap().unwrap());
    drop((accepted, connected));
}

/// A slow peer and its listener's descriptor, held by the listener's setup.
#[derive(Default)]
struct InSetup(Mutex<Option<(Slow, OwnedFd)>>);

impl InSetup {
    /// Connects a peer to the listener, which has not read anything yet.
    fn connect(&self, listener: &Listener) {
        let slow = Slow::new(listener.local_addr(), 0xff_ff07);
        *self.0.lock().unwrap() = Some((slow, listener.as_fd().try_clone_to_owned().unwrap()));
    }

    fn take(&self) -> Option<(Slow, OwnedFd)> {
        self.0.lock().unwrap().take()
    }
}

#[test]
fn a_peer_that_gives_up_during_the_setup_makes_no_call_fail() {
    let host = Host::new();
    let in_setup = Arc::new(InSetup::default());
    let peer = Arc::clone(&in_setup);
    let behind = Mutex::new(None);
    let listener = Listener::bind_with(host.at(0), &ListenerInit::default(), move |request| {
        if matches!(&request.peer, Peer::Conn(peer) if peer.qp_num == 0xff_ff08) {
            return Ok(None);
        }
        let (qp, resources) = Resources::create(&request.id, Resources::CAP)?;
        if let Some((slow, listener)) = peer.take() {
            let to = slow.to;
            drop(slow);
            // This request arrives after the message that ends the connection.
            *behind.lock().unwrap() = Some(Slow::new(to, 0xff_ff08));
            readable(&listener);
            let error = request.id.accept(qp, &ConnParam::default()).unwrap_err();
            assert_eq!(error.errno, Errno::INVAL, "{error}");
            return Err(error);
        }
        request.id.accept(qp, &ConnParam::default())?;
        Ok(Some(resources))
    })
    .unwrap();
    in_setup.connect(&listener);
    let incoming = listener.next_incoming(PATIENCE).unwrap();
    assert!(matches!(incoming, Some(Incoming::Failed { .. })), "{incoming:?}");
    pair(&listener);
}

#[test]
fn an_establishment_that_waits_to_be_read_is_in_time() {
    let host = Host::new();
    let in_setup = Arc::new(InSetup::default());
    let peer = Arc::clone(&in_setup);
    let init = ListenerInit { establish_timeout: Duration::ZERO, ..ListenerInit::default() };
    let listener = Listener::bind_with(host.at(0), &init, move |request| {
        let (qp, resources) = Resources::create(&request.id, Resources::CAP)?;
        request.id.accept(qp, &ConnParam::default())?;
        if let Some((slow, listener)) = peer.take() {
            slow.is_accepted();
            slow.id.establish()?;
            readable(&listener);
        }
        Ok(Some(resources))
    })
    .unwrap();
    in_setup.connect(&listener);
    accept(&listener);
}

#[test]
fn requests_without_end_put_neither_the_callers_deadline_nor_those_of_other_requests_off() {
    let host = Host::new();
    let flood = Arc::new(InSetup::default());
    let (next_peer, begin) = (Arc::clone(&flood), Instant::now());
    // A queue pair number identifies one connection.
    let numbers = AtomicU32::new(0xff_0000);
    let init = ListenerInit { establish_timeout: Duration::from_millis(1), ..ListenerInit::default() };
    let listener = Listener::bind_with(host.at(0), &init, move |request| {
        if let Some((slow, listener)) = next_peer.take() {
            // The next request arrives before the call checks the time.
            let next_slow = Slow::new(slow.to, numbers.fetch_add(1, Ordering::Relaxed));
            readable(&listener);
            if begin.elapsed() < PATIENCE {
                *next_peer.0.lock().unwrap() = Some((next_slow, listener));
            }
        }
        if matches!(&request.peer, Peer::Conn(peer) if peer.qp_num == 0xff_ff08) {
            let (qp, resources) = Resources::create(&request.id, Resources::CAP)?;
            request.id.accept(qp, &ConnParam::default())?;
            return Ok(Some(resources));
        }
        Ok(None)
    })
    .unwrap();
    let expires = Slow::new(listener.local_addr(), 0xff_ff08);
    flood.connect(&listener);
    let incoming = listener.next_incoming(2 * PATIENCE).unwrap();
    assert!(
        matches!(&incoming, Some(Incoming::Failed { error, .. }) if error.errno == Errno::TIMEDOUT),
        "{incoming:?}"
    );
    assert!(flood.0.lock().unwrap().is_some(), "the flood has ended");
    assert!(listener.accept_within(Duration::from_millis(5)).unwrap().is_none());
    assert!(flood.0.lock().unwrap().is_some(), "the flood has ended");
    drop(expires);
}
