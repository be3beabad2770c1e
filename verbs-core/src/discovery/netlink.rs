//! Conversations over RDMA and routing netlink: one request and its replies, within a time limit.
//!
//! ```text
//! Conversation::ask ─ request ─► Wire ─► kernel
//!        ▲                                 │
//!        └─ our sequence number, from port 0, no error ◄─ datagrams of one or more messages
//! ```
//!
//! The kernel replies before `sendto(2)` returns, so a conversation takes one system call for the
//! request and one per datagram of the reply. Messages unrelated to the request (another sequence
//! number, sender or message type) are ignored; a truncated message ends the conversation with an
//! error.

use core::fmt;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use netlink_packet_core::{
    ErrorBuffer, NLA_HEADER_SIZE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_MULTIPART, NLM_F_REQUEST, NLMSG_ALIGNTO,
    NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN, NetlinkBuffer, NlasIterator,
};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvmsg, sendto, socket,
};

use crate::errno::Errno;
use crate::room;

/// A connection to the kernel's RDMA netlink that sends and receives datagrams.
///
/// [`NetlinkSocket`] is a real connection; tests replay recorded replies.
pub trait Wire {
    /// Sends one datagram to the kernel.
    ///
    /// # Errors
    /// The errno from `sendto(2)`; [`Errno::IO`] if only part of the datagram was sent.
    fn send(&mut self, datagram: &[u8]) -> Result<(), Errno>;

    /// Receives one datagram into `buffer`. Returns its length and its sender's port, which is 0
    /// for the kernel.
    ///
    /// A length above the length of `buffer` means that the datagram was truncated.
    ///
    /// # Errors
    /// The errno from `recvmsg(2)` or `poll(2)`; [`Errno::TIMEDOUT`] if no datagram arrived within
    /// the time limit.
    fn recv(&mut self, buffer: &mut [u8]) -> Result<(usize, u32), Errno>;
}

/// A netlink socket to the kernel: for RDMA, interfaces, routes or neighbours.
///
/// # References
/// `netlink(7)`; `NETLINK_RDMA`
#[derive(Debug)]
pub struct NetlinkSocket {
    socket: OwnedFd,
    patience: Duration,
}

impl NetlinkSocket {
    /// Opens a socket. No permission is needed.
    ///
    /// # Errors
    /// The errno from `socket(2)`; notably [`Errno::PROTONOSUPPORT`] if the kernel has no RDMA.
    pub fn open() -> Result<Self, Errno> {
        // The socket is not bound: the first datagram binds it to a free port, which saves a system
        // call.
        Self::of_protocol(SockProtocol::NetlinkRDMA, PATIENCE)
    }

    /// Opens a socket for queries about interfaces, routes and neighbours. No permission is needed.
    ///
    /// # Errors
    /// The errno from `socket(2)`.
    pub(crate) fn route() -> Result<Self, Errno> {
        Self::of_protocol(SockProtocol::NetlinkRoute, PATIENCE)
    }

    /// Opens a socket that receives a datagram for each change to a neighbour. Each receive waits
    /// up to `patience`.
    ///
    /// # Errors
    /// The errno from `socket(2)` or `bind(2)`.
    pub(crate) fn neighbour_changes(patience: Duration) -> Result<Self, Errno> {
        let socket = Self::of_protocol(SockProtocol::NetlinkRoute, patience)?;
        bind(socket.socket.as_raw_fd(), &NetlinkAddr::new(0, libc::RTMGRP_NEIGH as u32))?;
        Ok(socket)
    }

    fn of_protocol(protocol: SockProtocol, patience: Duration) -> Result<Self, Errno> {
        let socket = socket(AddressFamily::Netlink, SockType::Datagram, SockFlag::SOCK_CLOEXEC, protocol)?;
        Ok(Self { socket, patience })
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Wire for NetlinkSocket {
    fn send(&mut self, datagram: &[u8]) -> Result<(), Errno> {
        let kernel = NetlinkAddr::new(KERNEL, 0);
        let sent = sendto(self.socket.as_raw_fd(), datagram, &kernel, MsgFlags::empty())?;
        if sent == datagram.len() { Ok(()) } else { Err(Errno::IO) }
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<(usize, u32), Errno> {
        // Usually the kernel has replied already. The clock is read only if it has not.
        let mut deadline = None;
        loop {
            // MSG_TRUNC returns the length of the whole datagram, even if the buffer is shorter.
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
            let mut parts = [IoSliceMut::new(buffer)];
            match recvmsg::<NetlinkAddr>(self.socket.as_raw_fd(), &mut parts, None, flags) {
                // A datagram without a sender's address does not come from the kernel.
                Ok(datagram) => {
                    return Ok((datagram.bytes, datagram.address.map_or(u32::MAX, |from| from.pid())));
                }
                Err(nix::errno::Errno::EAGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
            let now = Instant::now();
            let left = deadline.get_or_insert(now + self.patience).saturating_duration_since(now);
            if left.is_zero() {
                return Err(Errno::TIMEDOUT);
            }
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match nix::poll::poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// The time limit for receiving a datagram. The kernel replies within microseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// The reason why netlink gave no usable reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetlinkError {
    /// The socket could not be created, because the kernel has no RDMA netlink.
    NoSocket(Errno),
    /// A datagram could not be sent or received; [`Errno::TIMEDOUT`] if none arrived.
    Io(Errno),
    /// The kernel replied with an error.
    Refused(Errno),
    /// The reply is truncated or contradicts itself.
    Malformed(&'static str),
    /// The devices changed during each of several attempts to list them.
    Interrupted,
}

impl fmt::Display for NetlinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSocket(errno) => write!(f, "the kernel has no RDMA netlink ({errno})"),
            Self::Io(Errno::TIMEDOUT) => f.write_str("RDMA netlink did not reply in time"),
            Self::Io(errno) => write!(f, "RDMA netlink failed ({errno})"),
            Self::Refused(errno) => write!(f, "RDMA netlink refused ({errno})"),
            Self::Malformed(what) => write!(f, "RDMA netlink's reply is malformed: {what}"),
            Self::Interrupted => f.write_str("the RDMA devices kept changing while they were listed"),
        }
    }
}

impl std::error::Error for NetlinkError {}

/// Requests and replies over one [`Wire`].
pub(crate) struct Conversation<'w> {
    wire: &'w mut dyn Wire,
    sequence_number: u32,
    /// The buffer for replies, allocated for the first request.
    buffer: Vec<u8>,
}

impl<'w> Conversation<'w> {
    /// Creates a conversation that has not sent any request.
    pub(crate) const fn new(wire: &'w mut dyn Wire) -> Self {
        Self { wire, sequence_number: 0, buffer: Vec::new() }
    }

    /// Sends a request with `attributes` for one item and passes the reply's attributes to `parse`.
    ///
    /// # Errors
    /// Any [`NetlinkError`], including an error from `parse`.
    pub(super) fn get<T>(
        &mut self,
        message_type: u16,
        attributes: &[u8],
        parse: impl Fn(&[u8]) -> Result<T, NetlinkError>,
    ) -> Result<T, NetlinkError> {
        self.get_as(message_type, message_type, attributes, parse)
    }

    /// Sends a request with `payload` for one item and passes the reply's payload to `parse`. The
    /// reply has another message type than the request, as in routing netlink.
    ///
    /// # Errors
    /// Any [`NetlinkError`], including an error from `parse`.
    pub(crate) fn get_as<T>(
        &mut self,
        message_type: u16,
        reply_type: u16,
        payload: &[u8],
        parse: impl Fn(&[u8]) -> Result<T, NetlinkError>,
    ) -> Result<T, NetlinkError> {
        let mut result = None;
        self.exchange(message_type, reply_type, 0, payload, &mut |reply| {
            result = Some(parse(reply)?);
            Ok(())
        })?;
        result.ok_or(NetlinkError::Malformed("it is empty"))
    }

    /// Sends a request for all items and passes the attributes of each item to `parse`.
    ///
    /// # Errors
    /// Any [`NetlinkError`], including an error from `parse`.
    pub(super) fn dump<T>(
        &mut self,
        message_type: u16,
        parse: impl Fn(&[u8]) -> Result<T, NetlinkError>,
    ) -> Result<Vec<T>, NetlinkError> {
        self.dump_as(message_type, message_type, &[], |reply| parse(reply).map(Some))
    }

    /// Sends a request with `payload` for all items and passes the payload of each reply to
    /// `parse`, which may omit an item. Replies have another message type than the request, as in
    /// routing netlink.
    ///
    /// # Errors
    /// Any [`NetlinkError`], including an error from `parse`.
    pub(crate) fn dump_as<T>(
        &mut self,
        message_type: u16,
        reply_type: u16,
        payload: &[u8],
        parse: impl Fn(&[u8]) -> Result<Option<T>, NetlinkError>,
    ) -> Result<Vec<T>, NetlinkError> {
        for _ in 0..DUMP_ATTEMPTS {
            let mut all = Vec::new();
            let consistent = self.exchange(message_type, reply_type, NLM_F_DUMP, payload, &mut |reply| {
                all.extend(parse(reply)?);
                Ok(())
            })?;
            if consistent {
                return Ok(all);
            }
        }
        Err(NetlinkError::Interrupted)
    }

    /// Sends one request and reads its whole reply. Returns `false` if the listed items changed
    /// during the reply.
    fn exchange(
        &mut self,
        message_type: u16,
        reply_type: u16,
        flags: u16,
        attributes: &[u8],
        on_reply: &mut dyn FnMut(&[u8]) -> Result<(), NetlinkError>,
    ) -> Result<bool, NetlinkError> {
        if self.buffer.is_empty() {
            self.buffer = room::copies(0, DATAGRAM_MAX).map_err(NetlinkError::Io)?;
        }
        self.sequence_number = self.sequence_number.wrapping_add(1);
        let request = message(message_type, NLM_F_REQUEST | flags, self.sequence_number, attributes);
        self.wire.send(&request).map_err(NetlinkError::Io)?;

        let mut pending = PendingReply {
            message_type: reply_type,
            sequence_number: self.sequence_number,
            dump: flags & NLM_F_DUMP != 0,
            consistent: true,
        };
        for _ in 0..DATAGRAMS_MAX {
            let (len, sender) = self.wire.recv(&mut self.buffer).map_err(NetlinkError::Io)?;
            if sender != KERNEL {
                continue;
            }
            let datagram = self.buffer.get(..len).ok_or(NetlinkError::Malformed("a datagram is too long"))?;
            if datagram.is_empty() {
                return Err(NetlinkError::Malformed("a datagram is empty"));
            }
            if pending.read(datagram, on_reply)? {
                return Ok(pending.consistent);
            }
        }
        Err(NetlinkError::Malformed("it does not end"))
    }
}

/// The progress of reading the reply to one request.
struct PendingReply {
    message_type: u16,
    sequence_number: u32,
    dump: bool,
    consistent: bool,
}

impl PendingReply {
    /// Reads one datagram and returns whether the reply is complete.
    fn read(
        &mut self,
        datagram: &[u8],
        on_reply: &mut dyn FnMut(&[u8]) -> Result<(), NetlinkError>,
    ) -> Result<bool, NetlinkError> {
        for message in Messages(datagram) {
            let message = message?;
            if message.sequence_number() != self.sequence_number {
                continue;
            }
            if message.flags() & NLM_F_DUMP_INTR != 0 {
                self.consistent = false;
            }
            match message.message_type() {
                NLMSG_NOOP => {}
                NLMSG_OVERRUN => return Err(NetlinkError::Malformed("data was lost")),
                NLMSG_ERROR => return error_code(message.payload()).map(|()| true),
                // The message that ends a dump contains an error code, if the kernel sends one.
                NLMSG_DONE if message.payload().is_empty() => return Ok(true),
                NLMSG_DONE => return error_code(message.payload()).map(|()| true),
                found if found == self.message_type => {
                    on_reply(message.payload())?;
                    if !self.dump && message.flags() & NLM_F_MULTIPART == 0 {
                        return Ok(true);
                    }
                }
                _ => {}
            }
        }
        Ok(false)
    }
}

/// Checks the code at the start of the payload of an error or done message: 0 or a negative errno.
fn error_code(payload: &[u8]) -> Result<(), NetlinkError> {
    let error =
        ErrorBuffer::new_checked(payload).map_err(|_| NetlinkError::Malformed("an error is cut off"))?;
    match error.code() {
        None => Ok(()),
        Some(code) => Err(NetlinkError::Refused(Errno::from_raw(code.get().saturating_neg()))),
    }
}

/// An iterator over the messages of a datagram, which returns an error for a truncated message.
struct Messages<'b>(&'b [u8]);

impl<'b> Iterator for Messages<'b> {
    type Item = Result<NetlinkBuffer<&'b [u8]>, NetlinkError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let Ok(message) = NetlinkBuffer::new_checked(self.0) else {
            self.0 = &[];
            return Some(Err(NetlinkError::Malformed("a message is cut off")));
        };
        // `new_checked` ensured that the length is at least the header's and at most the
        // datagram's.
        let aligned = (message.length() as usize).next_multiple_of(usize::from(NLMSG_ALIGNTO));
        self.0 = self.0.get(aligned..).unwrap_or(&[]);
        Some(Ok(message))
    }
}

/// Calls `visit` with the type and value of every attribute.
///
/// # Errors
/// [`NetlinkError::Malformed`] for a truncated attribute.
pub(crate) fn each_attribute(
    attributes: &[u8],
    mut visit: impl FnMut(u16, &[u8]),
) -> Result<(), NetlinkError> {
    for attribute in NlasIterator::new(attributes) {
        let attribute = attribute.map_err(|_| NetlinkError::Malformed("an attribute is cut off"))?;
        visit(attribute.kind(), attribute.value());
    }
    Ok(())
}

/// Returns one attribute as bytes, with padding. `value` must be shorter than 64 KiB.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = NLA_HEADER_SIZE + value.len();
    let mut bytes = Vec::with_capacity(len.next_multiple_of(4));
    bytes.extend_from_slice(&(len as u16).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(len.next_multiple_of(4), 0);
    bytes
}

/// Returns one message as bytes.
fn message(message_type: u16, flags: u16, sequence_number: u32, attributes: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN];
    bytes.extend_from_slice(attributes);
    let mut header = NetlinkBuffer::new(&mut bytes);
    header.set_length((HEADER_LEN + attributes.len()) as u32);
    header.set_message_type(message_type);
    header.set_flags(flags);
    header.set_sequence_number(sequence_number);
    bytes
}

/// The number of bytes before a message's attributes: `struct nlmsghdr`.
const HEADER_LEN: usize = 16;

/// The kernel's own port.
const KERNEL: u32 = 0;

/// The maximum size of a datagram that the kernel sends in a dump.
///
/// # References
/// `netlink_recvmsg` in the kernel's `net/netlink/af_netlink.c`
const DATAGRAM_MAX: usize = 32 * 1024;

/// The maximum number of datagrams in a reply. Kernels send one per device.
const DATAGRAMS_MAX: usize = 1 << 16;

/// The maximum number of attempts at a dump while devices come and go.
const DUMP_ATTEMPTS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a socket for routing netlink, which every machine has and which follows the same
    /// rules.
    fn route(patience: Duration) -> NetlinkSocket {
        NetlinkSocket::of_protocol(SockProtocol::NetlinkRoute, patience).unwrap()
    }

    #[test]
    fn a_socket_that_receives_nothing_times_out() {
        let received = route(Duration::from_millis(5)).recv(&mut [0; 64]);
        assert_eq!(received, Err(Errno::TIMEDOUT));
    }

    #[test]
    fn an_error_of_the_kernel_is_returned_with_its_errno() {
        let mut socket = route(PATIENCE);
        let mut conversation = Conversation::new(&mut socket);
        for _ in 0..3 {
            // Each request for a nonexistent type gets its own error, not an earlier error.
            let reply = conversation.get(0x3ff0, &[], |_| Ok(()));
            assert_eq!(reply, Err(NetlinkError::Refused(Errno::OPNOTSUPP)));
        }
    }

    #[test]
    fn a_datagram_longer_than_the_buffer_is_reported_with_its_length() {
        let mut socket = route(PATIENCE);
        socket.send(&message(0x3ff0, NLM_F_REQUEST, 1, &[])).unwrap();
        let (len, sender) = socket.recv(&mut [0; 8]).unwrap();
        assert_eq!((len, sender), (36, KERNEL));
    }
}
