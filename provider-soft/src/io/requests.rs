//! [`Requests`]: connection requests that arrive at an address shared by processes.
//!
//! All processes read the same socket ([`share`](super::share)), so each packet reaches only one
//! process.

use std::sync::Arc;

use super::inbox::{Inbox, Received};
use super::socket::Socket;

/// The socket for connection requests, and the bytes received from it.
#[derive(Debug)]
pub(crate) struct Requests {
    socket: Arc<Socket>,
    inbox: Inbox,
}

/// The maximum number of datagrams in one receive.
const SLOTS: usize = 8;

/// The size of a slot, in bytes: more than the longest packet. The socket does not coalesce
/// datagrams.
const SLOT: usize = 8 << 10;

impl Requests {
    pub(crate) fn new(socket: Arc<Socket>) -> Self {
        let inbox = Inbox::with_size(&socket, SLOTS, SLOT);
        Self { socket, inbox }
    }

    /// Receives packets from the socket, without waiting, and returns whether any have arrived.
    pub(crate) fn receive(&mut self, device: &Socket) -> bool {
        self.inbox.receive_from(&self.socket, device.counts()).is_ok_and(|count| count > 0)
    }

    /// Calls `each` with the packets received last.
    pub(crate) fn take(&mut self, device: &Socket, mut each: impl FnMut(Received<'_>)) {
        while let Some(received) = self.inbox.next(device) {
            each(received);
        }
    }
}
