//! Time-outs that no test can wait for: the state has a clock that the test moves.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags};
use verbs::soft::cm::{Listening, Port};

use super::state::State;
use super::*;

/// The time within which a packet arrives on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A host that answers nothing: a socket where a device would have its own.
fn silent_host() -> UdpSocket {
    let socket = (1..=u16::MAX).find_map(|host| {
        let [high, low] = host.to_be_bytes();
        UdpSocket::bind((Ipv4Addr::new(127, 78, high, low), 4791)).ok()
    });
    let socket = socket.expect("a free address of 127.78.0.0/16");
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

#[test]
fn a_host_that_answers_nothing_is_unreachable_after_the_retries_of_the_protocol() {
    let device = verbs::soft::auto().unwrap();
    let own = Port::of(device.info()).expect("a soft device").address();
    let host = silent_host();
    let to = SocketAddr::new(host.local_addr().unwrap().ip(), 1);
    let mut state = State::new(Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap()));
    let queue = Queue::new().unwrap();
    let id = state.create(&queue, 1, PortSpace::TCP, QpType::RC).unwrap();
    state.resolve_addr(id, Some(&(own, 0).into()), &to.into(), 0, false).unwrap();
    state.resolve_route(id).unwrap();
    for kind in [EventType::ADDR_RESOLVED, EventType::ROUTE_RESOLVED] {
        assert_eq!(queue.next().map(|event| event.event), Some(kind));
    }
    // Else its name would tell that nothing listens there.
    let _name = Listening::bind(PortSpace::TCP.0, to, &[]).unwrap();
    let depths = ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
    state.connect(id, &depths, Ece::default()).unwrap();
    state.flush();
    // The API has no option for these times, nor has Linux: 2^20 of the peer's response time and
    // the time of two packets, 15 times again.
    let timer = Duration::from_millis(4608);
    let mut packet = [0; 1024];
    for _ in 0..16 {
        assert!(queue.next().is_none(), "it is tried again");
        host.recv(&mut packet).expect("a request arrives");
        state.advance(timer);
        state.on_time();
        state.flush();
    }
    let event = queue.next().expect("an event");
    assert_eq!((event.event, event.status), (EventType::UNREACHABLE, -Errno::TIMEDOUT.raw()));
    assert!(event.request.is_none() && queue.next().is_none());
}
