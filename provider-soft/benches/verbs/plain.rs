//! The cost of UDP and TCP without RDMA: the reference for the results with RDMA, measured on the
//! same machine within the same minute.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Instant;

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, getsockopt, recvmsg, sendmsg, setsockopt,
    sockopt,
};

use roce::wire::icrc::{Flow, Icrc, compute};

use crate::process::{EventPeer, Peer};
use crate::rdma::{LONGEST, PATIENCE, microseconds};
use crate::{MESSAGE, Result};

/// The number of payload bytes per packet. The next constant is the number of packets per datagram:
/// 16 packets would exceed the 65,507 bytes allowed by UDP.
const SEGMENT: usize = 4096;
const SEGMENTS: usize = 15;
const DATAGRAM: usize = SEGMENT * SEGMENTS;
/// The number of datagrams per acknowledgement. With a larger number, the sender would have to
/// wait.
const ACK_EVERY: u64 = 2;
/// The number of datagrams in flight. A larger number would not be faster, and would exceed the
/// usual receive buffer of 425,984 bytes.
const WINDOW: u64 = 8;
/// The number of bytes that the kernel charges to a receive buffer for a datagram, rounded up.
const TRUE_SIZE: u64 = 80 << 10;

/// The layout of datagrams sent as fast as possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The longest datagrams of whole packets.
    Full,
    /// The datagrams of a 64 KiB message on RoCE v2. The FIRST packet is longer than the packets
    /// after it, and only the last segment of a datagram may be shorter than the others, so FIRST
    /// leaves with one MIDDLE.
    Roce,
    /// Like `Roce`, with an ICRC computed for each packet at both ends, but without any other RDMA
    /// cost.
    RoceIcrc,
}

/// The length of BTH and ICRC in a packet, in bytes.
const AROUND: usize = 12 + 4;
const RETH: usize = 16;
/// `(bytes, segment)` of each datagram of [`Layout::Roce`].
const ROCE: [(usize, usize); 2] =
    [(RETH + 2 * (SEGMENT + AROUND), RETH + SEGMENT + AROUND), (14 * (SEGMENT + AROUND), SEGMENT + AROUND)];

impl Layout {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Full => "gso",
            Self::Roce => "gso-roce",
            Self::RoceIcrc => "gso-roce-icrc",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        [Self::Full, Self::Roce, Self::RoceIcrc].into_iter().find(|layout| layout.name() == name)
    }

    /// Returns `(bytes, segment)` of each datagram of a message.
    fn datagrams(self) -> &'static [(usize, usize)] {
        if self == Self::Full { &[(DATAGRAM, SEGMENT)] } else { &ROCE }
    }

    /// Returns the number of UDP payload bytes of a message, including RDMA headers.
    fn bytes(self) -> u64 {
        self.datagrams().iter().map(|(bytes, _)| *bytes as u64).sum()
    }

    /// Returns the number of payload bytes in a message.
    fn payload(self) -> u64 {
        if self == Self::Full { DATAGRAM as u64 } else { 16 * SEGMENT as u64 }
    }
}

/// Computes an ICRC for each packet and discards it.
fn icrcs(icrc: &Icrc, datagram: &[u8], segment: usize) {
    for packet in datagram.chunks(segment) {
        std::hint::black_box(compute(icrc.seed(0, true, packet.len()), packet));
    }
}

fn some_icrc() -> Icrc {
    let (src, dst) = (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into());
    Icrc::new(Flow { src, dst, src_port: 4791, dst_port: 4791 })
}

/// The way in which both ends of a round trip use their sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trip {
    /// Both ends poll until a datagram arrives.
    Polled,
    /// Like `Polled`, with connected sockets.
    Connected,
    /// Both ends block in the call, so each datagram wakes a process.
    Blocking,
}

impl Trip {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Polled => "echo",
            Self::Connected => "echo-connected",
            Self::Blocking => "echo-blocking",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        [Self::Polled, Self::Connected, Self::Blocking].into_iter().find(|trip| trip.name() == name)
    }

    fn socket(self) -> Result<UdpSocket> {
        let socket = udp()?;
        if self == Self::Blocking {
            socket.set_nonblocking(false)?;
            socket.set_read_timeout(Some(PATIENCE))?;
        }
        Ok(socket)
    }
}

fn udp() -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Repeats a call until it no longer fails with `WouldBlock`.
fn poll<T>(call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    poll_or(std::hint::spin_loop, call)
}

/// Repeats a call as [`poll`] does, but sometimes yields, because the other end may need this
/// processor.
fn poll_politely<T>(call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    poll_or(std::thread::yield_now, call)
}

fn poll_or<T>(mut between: impl FnMut(), mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut start = None;
    loop {
        for _ in 0..64 {
            match call() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
        between();
        if start.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// Returns the median round trip time of 8 bytes, in microseconds.
pub(crate) fn round_trip(rounds: usize, trip: Trip) -> Result<f64> {
    let times = round_trips(rounds, trip)?;
    Ok(times[times.len() / 2])
}

/// Returns the round trip times of 8 bytes, in microseconds and ascending order.
pub(crate) fn round_trips(rounds: usize, trip: Trip) -> Result<Vec<f64>> {
    let socket = trip.socket()?;
    let connected = trip == Trip::Connected;
    let _peer = Peer::start(&[trip.name(), &socket.local_addr()?.to_string()])?;
    let mut bytes = [0; 64];
    let (_, there) = poll(|| socket.recv_from(&mut bytes))?;
    if connected {
        socket.connect(there)?;
    }
    let mut times = Vec::with_capacity(rounds);
    let begun = Instant::now();
    for round in 0..rounds + rounds / 10 {
        if begun.elapsed() > LONGEST && !times.is_empty() {
            break;
        }
        let start = Instant::now();
        if connected {
            poll(|| socket.send(&(round as u64).to_ne_bytes()))?;
            poll(|| socket.recv(&mut bytes))?;
        } else {
            poll(|| socket.send_to(&(round as u64).to_ne_bytes(), there))?;
            poll(|| socket.recv_from(&mut bytes))?;
        }
        let time = start.elapsed();
        if bytes[..8] != (round as u64).to_ne_bytes() {
            return Err("the reply has another number".into());
        }
        // The first tenth warms up.
        if round >= rounds / 10 {
            times.push(time);
        }
    }
    Ok(microseconds(times))
}

/// Returns the median round trip time of one byte over pipes, in microseconds. Both ends sleep.
pub(crate) fn pipes(rounds: usize) -> Result<f64> {
    let mut peer = Peer::start(&["pipes"])?;
    exchanges(rounds, || peer.exchange_byte())
}

/// Returns the median round trip time of one event over eventfds, in microseconds. Both ends sleep.
pub(crate) fn eventfds(rounds: usize) -> Result<f64> {
    let peer = EventPeer::start()?;
    exchanges(rounds, || peer.exchange())
}

fn exchanges(rounds: usize, mut exchange: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds + rounds / 10 {
        let start = Instant::now();
        exchange()?;
        if round >= rounds / 10 {
            times.push(start.elapsed());
        }
    }
    let times = microseconds(times);
    Ok(times[times.len() / 2])
}

pub(crate) fn echo(there: SocketAddr, trip: Trip) -> Result<()> {
    let socket = trip.socket()?;
    let connected = trip == Trip::Connected;
    let mut bytes = [0; 64];
    socket.send_to(b"ready", there)?;
    if connected {
        socket.connect(there)?;
    }
    loop {
        if connected {
            let len = poll(|| socket.recv(&mut bytes))?;
            poll(|| socket.send(&bytes[..len]))?;
        } else {
            let (len, from) = poll(|| socket.recv_from(&mut bytes))?;
            poll(|| socket.send_to(&bytes[..len], from))?;
        }
    }
}

/// Returns the throughput of UDP datagrams split by the kernel, in gigabytes per second.
pub(crate) fn gso_throughput(messages: u64, layout: Layout) -> Result<f64> {
    let socket = udp()?;
    let _peer = Peer::start(&[layout.name(), &socket.local_addr()?.to_string()])?;
    let mut count = [0; 8];
    let (_, there) = poll_politely(|| socket.recv_from(&mut count))?;
    let window = u64::from_ne_bytes(count);
    let SocketAddr::V4(there) = there else { return Err("an IPv6 peer".into()) };
    let there = SockaddrIn::from(there);
    let (payload, icrc) = (vec![0x5a; DATAGRAM], some_icrc());
    let (mut sent, mut received) = (0, 0);
    let mut start = Instant::now();
    let warm_up = messages / 10;
    while received < warm_up + messages {
        while sent < received + window {
            for (bytes, segment) in layout.datagrams() {
                let datagram = &payload[..*bytes];
                if layout == Layout::RoceIcrc {
                    icrcs(&icrc, datagram, *segment);
                }
                let (parts, segment) = ([IoSlice::new(datagram)], *segment as u16);
                let control = [ControlMessage::UdpGsoSegments(&segment)];
                poll_politely(|| {
                    sendmsg(socket.as_raw_fd(), &parts, &control, MsgFlags::empty(), Some(&there))
                        .map_err(io::Error::from)
                })?;
            }
            sent += 1;
        }
        poll_politely(|| socket.recv_from(&mut count))
            .map_err(|error| format!("{received} of {sent} messages arrived: {error}"))?;
        let before = received;
        received = u64::from_ne_bytes(count);
        if before < warm_up && received >= warm_up {
            start = Instant::now();
        }
    }
    // The warm-up ended with an acknowledgement, so its length is exact within one acknowledgement.
    Ok((messages * layout.payload()) as f64 / start.elapsed().as_secs_f64() / 1e9)
}

pub(crate) fn gso_receiver(there: SocketAddr, layout: Layout) -> Result<()> {
    let socket = udp()?;
    setsockopt(&socket, sockopt::UdpGroSegment, &true)?;
    // As large as the system allows. The kernel also charges overhead to the buffer.
    setsockopt(&socket, sockopt::RcvBuf, &(4 << 20))?;
    let window = (getsockopt(&socket, sockopt::RcvBuf)? as u64 / TRUE_SIZE).clamp(1, WINDOW);
    socket.send_to(&window.to_ne_bytes(), there)?;
    let (mut buffer, icrc) = (vec![0; 65536], some_icrc());
    let mut control = nix::cmsg_space!(i32);
    let (mut bytes, mut acknowledged) = (0u64, 0);
    loop {
        let (came, segment) = poll_politely(|| {
            let mut parts = [IoSliceMut::new(&mut buffer)];
            let message = recvmsg::<SockaddrIn>(
                socket.as_raw_fd(),
                &mut parts,
                Some(&mut control),
                MsgFlags::MSG_DONTWAIT,
            )?;
            let segment = message.cmsgs()?.find_map(|part| match part {
                ControlMessageOwned::UdpGroSegments(of) => usize::try_from(of).ok(),
                _ => None,
            });
            match segment {
                Some(segment) if layout.datagrams().iter().any(|(_, its)| *its == segment) => {
                    Ok((message.bytes, segment))
                }
                _ => Err(io::Error::other("many segments, but not said so")),
            }
        })?;
        if layout == Layout::RoceIcrc {
            icrcs(&icrc, &buffer[..came], segment);
        }
        bytes += came as u64;
        let whole = bytes / layout.bytes();
        if whole >= acknowledged + ACK_EVERY.min(window) {
            acknowledged = whole;
            poll_politely(|| socket.send_to(&whole.to_ne_bytes(), there))?;
        }
    }
}

/// Returns the throughput of a TCP connection, in gigabytes per second.
pub(crate) fn tcp_throughput(messages: usize) -> Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let _peer = Peer::start(&["tcp", &listener.local_addr()?.to_string()])?;
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let message = vec![0x5a; MESSAGE];
    let mut done = [0; 8];
    for _ in 0..messages / 10 + 1 {
        stream.write_all(&message)?;
    }
    let start = Instant::now();
    for _ in 0..messages {
        stream.write_all(&message)?;
    }
    let sent = messages + messages / 10 + 1;
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.read_exact(&mut done)?;
    let time = start.elapsed();
    if u64::from_ne_bytes(done) != (sent * MESSAGE) as u64 {
        return Err("not everything arrived".into());
    }
    Ok((messages * MESSAGE) as f64 / time.as_secs_f64() / 1e9)
}

pub(crate) fn tcp_receiver(there: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(there)?;
    let mut buffer = vec![0; MESSAGE];
    let mut bytes = 0u64;
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            n => bytes += n as u64,
        }
    }
    stream.write_all(&bytes.to_ne_bytes())?;
    Ok(())
}
