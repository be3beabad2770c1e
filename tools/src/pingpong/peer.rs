//! [`Peer`]: the other side's process, observed through its TCP connection.
//!
//! A side that waits for a message sends nothing, and a reliable connection with nothing to
//! acknowledge detects nothing. The C programs therefore wait forever if the other side is killed
//! while it has the message. With datagrams and unreliable connections, they wait forever whenever
//! the other side is killed. The kernel closes a process's TCP connection no matter how the process
//! ends.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::console::{Console, Failed};

/// The other side's process.
#[derive(Debug)]
pub struct Peer {
    /// The connection, if the other side keeps it open.
    stream: Option<TcpStream>,
    /// The time when the end of the other side was detected.
    ended: Option<Instant>,
}

impl Peer {
    /// Returns the client as the server's peer, once the client has sent "done". Offers to keep the
    /// connection.
    pub(super) fn of_client(mut stream: TcpStream) -> Self {
        let keeps = stream.write_all(STAY).is_ok() && says_stay(&mut stream);
        Self::with(keeps.then_some(stream))
    }

    /// Returns the server as the client's peer, once the client has sent "done". The C client
    /// disconnects at this point.
    pub(super) fn of_server(mut stream: TcpStream) -> Self {
        let keeps = says_stay(&mut stream) && stream.write_all(STAY).is_ok();
        Self::with(keeps.then_some(stream))
    }

    fn with(stream: Option<TcpStream>) -> Self {
        // A blocking connection cannot be checked.
        let stream = stream.filter(|stream| stream.set_nonblocking(true).is_ok());
        Self { stream, ended: None }
    }

    /// Checks whether to keep waiting. A peer that closes the connection before the first message,
    /// like the C programs, never counts as gone.
    ///
    /// # Errors
    /// Fails if the other side ended at least [`GRACE`] ago; the failure has been reported.
    pub fn look(&mut self, console: &mut Console) -> Result<(), Failed> {
        if self.is_missed() { Err(console.because(MISSED)) } else { Ok(()) }
    }

    fn is_missed(&mut self) -> bool {
        if self.ended.is_none() && self.stream.as_ref().is_some_and(has_ended) {
            self.ended = Some(Instant::now());
        }
        self.ended.is_some_and(|ended| ended.elapsed() > GRACE)
    }
}

/// Returns whether the peer of a non-blocking connection has ended or closed the connection. Does
/// not consume data from the peer.
pub(super) fn has_ended(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
    }
}

/// Returns whether the other side sends [`STAY`] before it closes the connection.
fn says_stay(stream: &mut TcpStream) -> bool {
    let mut said = [0; STAY.len()];
    let read = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.read_exact(&mut said));
    read.is_ok() && &said == STAY
}

/// The time to wait after the other side has ended. It is long enough to poll the packets from its
/// device, and for an unacknowledged request to fail with the device's reason.
pub const GRACE: Duration = Duration::from_secs(3);

/// The reason reported when the peer is gone.
pub(super) const MISSED: &str = "the peer has ended, and nothing more came from it";

/// The time after which a peer that neither sends nor closes the connection is treated as a C
/// program.
const PATIENCE: Duration = Duration::from_secs(5);

const STAY: &[u8; 5] = b"stay\0";

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    /// Returns both ends of a connection, the client's end first.
    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("its number")).expect("a connection");
        (client, listener.accept().expect("the client").0)
    }

    #[test]
    fn the_end_of_a_peer_that_stays_is_noticed_by_either_side() {
        let (client, server) = connected();
        let server = thread::spawn(move || Peer::of_client(server));
        let (mut client, mut server) = (Peer::of_server(client), server.join().expect("the server"));
        assert!(!client.is_missed() && !server.is_missed());
        drop(client);
        let deadline = Instant::now() + Duration::from_secs(60);
        while server.ended.is_none() {
            assert!(Instant::now() < deadline, "its end was not noticed");
            assert!(!server.is_missed(), "its last words are waited for");
            thread::yield_now();
        }
        server.ended = Instant::now().checked_sub(GRACE + Duration::from_millis(1));
        assert!(server.is_missed());
    }

    #[test]
    fn a_peer_that_closes_the_connection_at_once_is_never_missed() {
        let (client, server) = connected();
        drop(client);
        assert!(Peer::of_client(server).stream.is_none());
        let (client, server) = connected();
        drop(server);
        assert!(Peer::of_server(client).stream.is_none());
    }

    #[test]
    fn data_is_no_end() {
        let (mut client, server) = connected();
        server.set_nonblocking(true).expect("a non-blocking connection");
        assert!(!has_ended(&server));
        client.write_all(b"END\0").expect("a message");
        assert!(!has_ended(&server));
    }
}
