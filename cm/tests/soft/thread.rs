//! Many threads on one channel.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdmacm::{ConnParam, EventChannel, EventKind, PortSpace};

use crate::support::{End, Host, PATIENCE, Server, connect, resolved};

#[test]
fn threads_share_the_channel_of_a_listener() {
    const CLIENTS: usize = 16;
    let host = Host::new();
    let server = Server::new(&host);
    let (established, accepted) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let deadline = Instant::now() + PATIENCE;
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while established.load(Ordering::Relaxed) < CLIENTS {
                    assert!(Instant::now() < deadline, "{established:?} of {CLIENTS} are established");
                    let event = server.channel.next_event_within(Duration::from_millis(10)).unwrap();
                    match event.map(|event| event.kind) {
                        None => {}
                        Some(EventKind::ConnectRequest(request)) => {
                            let end = End::from_id(&request.id);
                            request.id.accept(end.qp(&request.id), &ConnParam::default()).unwrap();
                            accepted.lock().unwrap().push((request.id, end));
                        }
                        Some(EventKind::Established(_)) => {
                            established.fetch_add(1, Ordering::Relaxed);
                        }
                        // The clients disconnect when all connections are established.
                        Some(EventKind::Disconnected | EventKind::TimewaitExit)
                            if established.load(Ordering::Relaxed) == CLIENTS => {}
                        Some(other) => panic!("{other:?}"),
                    }
                }
            });
        }
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let channel = EventChannel::new().unwrap();
                let client = resolved(&channel, PortSpace::TCP, server.address);
                let end = End::from_id(&client);
                client.connect(end.qp(&client), &ConnParam::default()).unwrap();
                crate::support::established(&channel, &client);
                while established.load(Ordering::Relaxed) < CLIENTS && Instant::now() < deadline {
                    thread::yield_now();
                }
            });
        }
    });
    assert_eq!(accepted.into_inner().unwrap().len(), CLIENTS);
}

#[test]
fn ids_end_in_one_thread_while_another_one_reads_their_events() {
    let host = Host::new();
    let server = Server::new(&host);
    for _ in 0..8 {
        let pair = connect(&server);
        thread::scope(|scope| {
            let reader = scope.spawn(|| crate::support::next(&server.channel).id);
            let accepted = pair.server.key();
            drop(pair.client);
            assert_eq!(reader.join().unwrap(), accepted);
        });
        drop(pair.server);
    }
}

#[test]
fn threads_make_and_drop_the_only_ids_of_a_device() {
    let host = Host::new();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let channel = EventChannel::new().unwrap();
                for _ in 0..4000 {
                    // The last id on a device closes queue pair 1; the next id opens it again.
                    let id = channel.create_id(PortSpace::TCP).unwrap();
                    id.bind_addr(host.at(0)).unwrap();
                }
            });
        }
    });
    let address = host.address;
    drop(host);
    crate::support::is_free(address);
}
