//! Times round trips of datagrams between two plain UDP sockets on loopback. `cargo xtask demo`
//! shows these times next to the times of soft devices.
//!
//! Both sockets are polled, as the completion queues of a ping-pong are.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// The message size and the number of round trips of `ibv_rc_pingpong`.
const SIZE: usize = 4096;
const COUNT: u32 = 1000;

/// The number of polls of an empty socket before the thread yields. The other thread may be waiting
/// for this processor.
const POLLS: u32 = 64;

/// The time limit for all round trips.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> io::Result<()> {
    let [client, server] = connected()?;
    let start = Instant::now();
    let deadline = start + LIMIT;
    thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let mut bytes = [0; SIZE];
            (0..COUNT).try_for_each(|_| {
                receive(&server, &mut bytes, deadline)?;
                server.send(&bytes).map(drop)
            })
        });
        let mut bytes = [0; SIZE];
        let sent = (0..COUNT).try_for_each(|_| {
            client.send(&bytes)?;
            receive(&client, &mut bytes, deadline)
        });
        echo.join().unwrap_or_else(|_| Err(ErrorKind::Other.into())).and(sent)
    })?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{COUNT} iters in {seconds:.2} seconds = {:.2} usec/iter", seconds * 1e6 / f64::from(COUNT));
    Ok(())
}

fn connected() -> io::Result<[UdpSocket; 2]> {
    let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
    let sockets = [bind()?, bind()?];
    for (socket, peer) in sockets.iter().zip(sockets.iter().rev()) {
        socket.connect(peer.local_addr()?)?;
        socket.set_nonblocking(true)?;
    }
    Ok(sockets)
}

fn receive(socket: &UdpSocket, bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    loop {
        for _ in 0..POLLS {
            match socket.recv(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return result.map(drop),
            }
        }
        if Instant::now() > deadline {
            return Err(ErrorKind::TimedOut.into());
        }
        thread::yield_now();
    }
}
