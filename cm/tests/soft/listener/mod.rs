//! Listeners and connectors.
//!
//! | file | subject |
//! |---|---|
//! | [`setup`] | private data, the first receives, rejects, errors of the program |
//! | [`peers`] | many peers, slow peers, peers that give up, and limits on their resources |
//! | [`closing`] | closing a listener |
//! | [`connector`] | time limits, addresses and options of the connecting side |
//! | [`devices`] | a listener's devices before its first client |
//! | [`ending`] | the end of a connection |

mod closing;
mod connector;
mod devices;
mod ending;
pub(crate) mod peers;
mod setup;

use std::net::SocketAddr;
use std::thread;

use rdmacm::{
    CmId, ConnParam, ConnectError, Connection, Connector, EventChannel, EventKind, Listener, ListenerInit,
    PortSpace, Resources,
};
use verbs::{SendFlags, SendOp};

use crate::support::{Host, PATIENCE, next, resolved};

/// Connects to an address in another thread.
pub(crate) fn client(to: SocketAddr) -> thread::JoinHandle<Result<Connection, ConnectError>> {
    thread::spawn(move || Connector::default().connect(to))
}

/// Returns both ends of a connection.
pub(crate) fn pair(listener: &Listener) -> (Connection, Connection) {
    let client = client(listener.local_addr());
    let accepted = accept(listener);
    (client.join().unwrap().unwrap(), accepted)
}

fn accept<T>(listener: &Listener<T>) -> Connection<T> {
    listener.accept_within(PATIENCE).unwrap().expect("a connection comes in time")
}

fn send(from: &mut Connection, to: &mut Connection, text: &[u8]) {
    to.qp.post_recv_buf(to.resources.pd.alloc_buf(64).unwrap(), ..).unwrap();
    let message = from.resources.pd.register(text.to_vec()).unwrap();
    from.qp.post_send_buf(SendOp::Send, SendFlags::empty(), message, ..).unwrap();
    from.resources.next_send(PATIENCE).unwrap().ok().unwrap();
    let received = to.resources.next_recv(PATIENCE).unwrap().ok().unwrap();
    let len = received.received();
    assert_eq!(&received.into_buf().unwrap()[..len], text);
}

/// Returns a listener that creates resources and accepts with private data.
pub(crate) fn listener_that_answers(host: &Host, init: &ListenerInit) -> Listener {
    Listener::bind_with(host.at(0), init, |request| {
        let (qp, resources) = Resources::create(&request.id, Resources::CAP)?;
        let mut private_data = request.peer.private_data()[..8].to_vec();
        private_data.reverse();
        request.id.accept(qp, &ConnParam { private_data: &private_data, ..ConnParam::default() })?;
        Ok(Some(resources))
    })
    .unwrap()
}

/// A client that sends a request but does not confirm the listener's reply.
pub(crate) struct Slow {
    channel: EventChannel,
    id: CmId,
    to: SocketAddr,
}

impl Slow {
    pub(crate) fn new(to: SocketAddr, qp_num: u32) -> Self {
        let channel = EventChannel::new().unwrap();
        let id = resolved(&channel, PortSpace::TCP, to);
        id.connect_with(&ConnParam { qp_num, ..ConnParam::default() }).unwrap();
        Self { channel, id, to }
    }

    /// Waits until the listener has accepted the request.
    fn is_accepted(&self) {
        let event = next(&self.channel);
        assert!(
            event.id == self.id.key() && matches!(event.kind, EventKind::ConnectResponse(_)),
            "{event:?}"
        );
    }
}
