//! Edge-triggered event loops (`EPOLLET`, as in tokio and mio). Any change after the last check of
//! a descriptor makes an edge, for every descriptor of both libraries.

use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rdmacm::{Connector, EventChannel, Incoming, Listener, ListenerInit, PortSpace};
use verbs::{AsyncEventType, CqInit, Errno, InitAttr, QpInit, QpType, SrqInit};

use crate::listener::{Slow, client, pair};
use crate::support::{Host, PATIENCE, is_readable};

/// An event loop that waits for edges of one descriptor.
pub(crate) struct EdgeLoop(Epoll);

impl EdgeLoop {
    pub(crate) fn around(file: &(impl AsFd + AsRawFd)) -> Self {
        assert_eq!(file.as_fd().as_raw_fd(), file.as_raw_fd());
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        epoll.add(file, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0)).unwrap();
        Self(epoll)
    }

    /// Receives `count` events. At each edge, receives all events that `next` returns.
    #[track_caller]
    pub(crate) fn take(&self, mut count: usize, mut next: impl FnMut() -> bool) {
        let patience = EpollTimeout::try_from(PATIENCE).unwrap();
        while count > 0 {
            let edges = self.0.wait(&mut [EpollEvent::empty()], patience).unwrap();
            assert_eq!(edges, 1, "no edge, although {count} more events come");
            while next() {
                count = count.checked_sub(1).expect("as many events as were made");
            }
        }
    }

    /// Receives events produced concurrently by another thread. Repeats this with one event, a few
    /// events, and more events than a call handles between two checks of its deadlines.
    #[track_caller]
    fn follow(&self, mut make: impl FnMut() + Send, mut next: impl FnMut() -> bool) {
        for count in [1, 2, 3, 100] {
            thread::scope(|scope| {
                let maker = scope.spawn(|| (0..count).for_each(|_| make()));
                self.take(count, &mut next);
                maker.join().unwrap();
                assert!(!next());
            });
        }
    }
}

#[test]
fn an_event_channel_makes_an_edge_for_each_event_after_the_last_look() {
    let _host = Host::new();
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(PortSpace::TCP).unwrap();
    EdgeLoop::around(&channel)
        .follow(|| id.write_event(0, 7).unwrap(), || channel.try_next_event().unwrap().is_some());
}

#[test]
fn a_channel_makes_an_edge_for_the_events_that_an_id_brings() {
    let _host = Host::new();
    let [from, to] = [(); 2].map(|()| EventChannel::new().unwrap());
    let edges = EdgeLoop::around(&to);
    for count in [1, 3] {
        let id = from.create_id(PortSpace::TCP).unwrap();
        (0..count).for_each(|_| id.write_event(0, 7).unwrap());
        id.migrate(&to).unwrap();
        edges.take(count, || to.try_next_event().unwrap().is_some());
    }
}

#[test]
fn a_completion_channel_makes_an_edge_for_each_event_after_the_last_look() {
    let host = Host::new();
    let context = host.open();
    let channel = context.create_comp_channel().unwrap();
    let init = CqInit { channel: Some(&channel), ..CqInit::new(64) };
    let (pd, mut cq) = (context.alloc_pd().unwrap(), context.create_cq(&init).unwrap());
    let qp = pd.create_qp(&QpInit::new(QpType::RC, &cq)).unwrap();
    let mut qp = qp.to_init(&InitAttr::default()).unwrap().to_error().unwrap();
    let flush = move || {
        cq.req_notify(false).unwrap();
        qp.post_recv_empty().unwrap();
        cq.poll_within(PATIENCE).unwrap();
    };
    EdgeLoop::around(&channel).follow(flush, || channel.next_event().unwrap().is_some());
}

#[test]
fn asynchronous_events_make_an_edge_each_after_the_last_look() {
    let host = Host::new();
    let context = host.open();
    let events = context.async_events().unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(&CqInit::new(64)).unwrap());
    let srq = pd.create_srq(&SrqInit::new(16)).unwrap();
    let (made, taken) = std::sync::mpsc::channel();
    // The queue pairs live until their events have been read.
    let stop = move || {
        let qp = pd.create_qp(&QpInit { srq: Some(srq.handle()), ..QpInit::new(QpType::RC, &cq) }).unwrap();
        made.send(qp.to_init(&InitAttr::default()).unwrap().to_error().unwrap()).unwrap();
    };
    EdgeLoop::around(&events).follow(stop, || {
        let event = events.next_event().unwrap();
        event.is_some_and(|event| {
            assert_eq!(event.event_type, AsyncEventType::QP_LAST_WQE_REACHED);
            taken.recv_timeout(PATIENCE).is_ok()
        })
    });
}

#[test]
fn the_control_of_a_connection_makes_an_edge_at_its_end() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    let (client, server) = pair(&listener);
    let edges = EdgeLoop::around(&server.control);
    assert_eq!(server.control.end().unwrap(), None);
    drop(client);
    let mut is_over = false;
    edges.take(1, || {
        let ends = !is_over && server.control.end().unwrap().is_some();
        is_over |= ends;
        ends
    });
}

#[test]
fn a_listener_is_not_readable_after_a_call_that_has_timed_out() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    assert!(listener.accept_within(Duration::from_millis(1)).unwrap().is_none());
    assert!(!is_readable(&listener));
    assert!(listener.next_incoming(Duration::from_millis(1)).unwrap().is_none());
    assert!(!is_readable(&listener));
}

#[test]
fn a_listener_makes_an_edge_for_each_client_after_the_last_look() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    let to = listener.local_addr();
    let connect = || drop(Connector::default().connect(to).unwrap());
    EdgeLoop::around(&listener).follow(connect, || listener.accept_within(Duration::ZERO).unwrap().is_some());
}

#[test]
fn a_listener_makes_an_edge_when_a_silent_peer_gives_its_place_to_another_one() {
    let host = Host::new();
    let establish_timeout = Duration::from_millis(100);
    let init = ListenerInit { max_pending: 1, establish_timeout, ..ListenerInit::default() };
    let listener = crate::listener::listener_that_answers(&host, &init);
    let edges = EdgeLoop::around(&listener);
    let slow = Slow::new(listener.local_addr(), 7);
    let mut outcomes = Vec::new();
    let mut next = || {
        let next = listener.next_incoming(Duration::ZERO).unwrap();
        let is_some = next.is_some();
        outcomes.extend(next);
        is_some
    };
    // No event follows these requests, so only the listener's timer can wake the loop.
    let other = Slow::new(listener.local_addr(), 8);
    edges.take(2, &mut next);
    drop((slow, other));
    for outcome in outcomes {
        let Incoming::Failed { error, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(error.errno, Errno::TIMEDOUT, "{error}");
    }
}

#[test]
fn a_listener_that_another_thread_closes_makes_an_edge() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    let edges = EdgeLoop::around(&listener);
    let waiting = client(listener.local_addr());
    edges.take(1, || listener.accept_within(Duration::ZERO).unwrap().is_some());
    let _client = waiting.join().unwrap().unwrap();
    listener.close();
    let mut is_closed = false;
    edges.take(1, || !core::mem::replace(&mut is_closed, listener.accept_within(Duration::ZERO).is_err()));
}
