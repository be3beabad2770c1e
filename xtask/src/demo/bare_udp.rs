//! Round trips of datagrams on loopback between two bare sockets: the scale on which a device's
//! round trips are read.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::process::LIMIT;

/// The looks at an empty socket before the thread yields, because the other end may be waiting for
/// this processor.
const LOOKS: u32 = 64;

/// Returns the mean round trip of `count` datagrams of `size` bytes. Both ends poll, as a ping-pong
/// does.
pub(super) fn round_trip(size: usize, count: u32) -> Result<Duration> {
    let [client, server] = connected().context("cannot make a pair of UDP sockets")?;
    let deadline = Instant::now() + LIMIT;
    let times = thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let mut bytes = vec![0; size];
            (0..count).try_for_each(|_| {
                receive(&server, &mut bytes, deadline)?;
                server.send(&bytes).map(drop)
            })
        });
        let mut bytes = vec![0; size];
        let start = Instant::now();
        let sent = (0..count).try_for_each(|_| {
            client.send(&bytes)?;
            receive(&client, &mut bytes, deadline)
        });
        let elapsed = start.elapsed();
        echo.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())).and(sent).map(|()| elapsed)
    });
    Ok(times.with_context(|| format!("a ping-pong of {size} bytes over UDP failed"))? / count)
}

fn connected() -> io::Result<[UdpSocket; 2]> {
    let sockets = [UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?, UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?];
    for (socket, peer) in sockets.iter().zip(sockets.iter().rev()) {
        socket.connect(peer.local_addr()?)?;
        socket.set_nonblocking(true)?;
    }
    Ok(sockets)
}

fn receive(socket: &UdpSocket, bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    loop {
        for _ in 0..LOOKS {
            match socket.recv(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result.map(drop),
            }
        }
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::yield_now();
    }
}

#[test]
fn datagrams_go_back_and_forth() {
    assert!(round_trip(4096, 10).unwrap() > Duration::ZERO);
}
