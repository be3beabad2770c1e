//! Several threads that share a channel.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rdmacm::{CmId, ConnParam, Event, EventChannel, EventKind, EventType, PortSpace};
use verbs_fixtures::cm_fabric::{Client, Parts, RESOLVING, Server, arrived, connect_many, expect, is_asleep};
use verbs_fixtures::fabric::PATIENCE;
use verbs_harness::cases;
use verbs_harness::runner::{Case, CaseResult, fail};

use super::server::{SUITE, at, here, server};

pub(super) fn cases() -> Vec<Case> {
    cases!(
        SUITE,
        two_threads_at_one_channel_serve_all_connections,
        a_reader_that_waits_outlives_all_other_users_of_the_channel,
        the_unread_requests_of_a_listener_and_the_threads_that_wait_follow_it,
    )
}

/// The state that a listener's threads share.
#[derive(Default)]
struct Served {
    /// The accepted connections, with the objects that their queue pairs use.
    accepted: Mutex<Vec<(CmId, Parts)>>,
    established: AtomicUsize,
    ended: AtomicUsize,
}

impl Served {
    /// Handles events until `count` connections have ended.
    fn serve(&self, channel: &EventChannel, count: usize) -> CaseResult {
        let deadline = Instant::now() + PATIENCE;
        while self.ended.load(Ordering::Relaxed) < count {
            if Instant::now() > deadline {
                return fail(format_args!("{:?} of {count} connections have ended", self.ended));
            }
            // The last event goes to one thread, so the other must time out and check again.
            let Some(event) = channel.next_event_within(Duration::from_millis(20))? else { continue };
            match event.kind {
                EventKind::ConnectRequest(request) => {
                    let id = request.id;
                    let parts = Parts::for_id(&id)?;
                    let qp = parts.qp(&id)?;
                    // Locks first, because the other thread may get the next event before this
                    // thread has stored the id.
                    let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
                    id.accept(qp, &ConnParam::default())?;
                    accepted.push((id, parts));
                }
                EventKind::Established(_) => {
                    self.established.fetch_add(1, Ordering::Relaxed);
                }
                EventKind::Disconnected => {
                    let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
                    let Some((id, _)) = accepted.iter().find(|(id, _)| id.key() == event.id) else {
                        return fail("the end of nobody's connection");
                    };
                    id.disconnect()?;
                    self.ended.fetch_add(1, Ordering::Relaxed);
                }
                EventKind::TimewaitExit => {}
                other => return fail(format_args!("{other:?}")),
            }
        }
        Ok(())
    }
}

fn two_threads_at_one_channel_serve_all_connections() -> CaseResult {
    const COUNT: usize = 32;
    let server = Server::new(at(here()?), PortSpace::TCP, 0)?;
    let served = Served::default();
    thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(|| served.serve(&server.channel, COUNT)));
        let connected = connect_many(server.address, COUNT);
        for thread in threads {
            thread.join().unwrap_or_else(|_| fail("a thread panicked"))?;
        }
        connected
    })?;
    assert_eq!(served.established.into_inner(), COUNT, "each event comes once");
    Ok(())
}

/// In C, a channel can be closed while a thread reads from it. Here the reader shares ownership;
/// the last owner closes the channel.
fn a_reader_that_waits_outlives_all_other_users_of_the_channel() -> CaseResult {
    let address = Server::new(at(here()?), PortSpace::TCP, 0)?.address;
    let channel = Arc::new(EventChannel::new()?);
    let id = channel.create_id(PortSpace::TCP)?;
    let (begins, begun) = mpsc::channel();
    let reader = thread::spawn({
        let channel = Arc::clone(&channel);
        move || -> CaseResult<Event> {
            begins.send(())?;
            Ok(channel.next_event()?)
        }
    });
    begun.recv()?;
    drop(channel);
    id.resolve_addr(None, address, RESOLVING)?;
    let event = reader.join().unwrap_or_else(|_| fail("the reader panicked"))?;
    assert!(event.id == id.key() && matches!(event.kind, EventKind::AddrResolved), "{event:?}");
    // The channel is closed. Its id still works, except for events.
    assert_eq!(id.peer_addr()?, Some(address));
    id.resolve_route(RESOLVING)?;
    Ok(())
}

fn the_unread_requests_of_a_listener_and_the_threads_that_wait_follow_it() -> CaseResult {
    let server = server(PortSpace::TCP)?;
    let (rejected, _rejected_parts) = Client::requesting(&server)?;
    arrived(&server.channel)?;
    let other = EventChannel::new()?;
    let (started, starts) = mpsc::channel();
    let first = thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let _ = started.send(fs::read_link("/proc/thread-self"));
            expect(&other, EventType::CONNECT_REQUEST)
        });
        let sleeps = match starts.recv_timeout(PATIENCE) {
            Ok(Ok(task)) => is_asleep(&task),
            other => fail(format_args!("{other:?}")),
        };
        server.listener.migrate(&other)?;
        sleeps?;
        waits.join().unwrap_or_else(|_| fail("the thread panicked"))
    })?;
    let EventKind::ConnectRequest(request) = first.kind else { return fail(format_args!("{first:?}")) };
    request.id.reject(b"moved")?;
    expect(&rejected.channel, EventType::REJECTED)?;
    // The peer also notices when a moved request ends.
    drop(request);
    let (dropped, _dropped_parts) = Client::requesting(&server)?;
    arrived(&other)?;
    server.listener.migrate(&server.channel)?;
    drop(expect(&server.channel, EventType::CONNECT_REQUEST)?);
    expect(&dropped.channel, EventType::REJECTED)?;
    Ok(())
}
