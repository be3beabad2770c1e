//! The exchange of two peers' addresses: over TCP, as rdma-core's programs do it.
//!
//! ```text
//! client                          server
//!   │ connect ───────────────────► │ accept
//!   │ its address, 52 bytes ─────► │ moves its queue pair to RTS
//!   │ ◄───── its address, 52 bytes │
//!   │ "done\0" ──────────────────► │
//!   │ moves its queue pair to RTS  │ waits for the first message
//! ```

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};

use super::dest::{Dest, WIRE_LEN};
use crate::console::{Console, Failed, describe};

/// The client's part: sends our address to the server, and receives the server's.
///
/// # Errors
/// The host has no address, or the connection fails; the failure has been reported.
pub fn ask(host: &OsStr, port: u16, local: &Dest, console: &mut Console) -> Result<Dest, Failed> {
    let mut stream = connect(host, port, console)?;
    if let Err(error) = stream.write_all(&local.to_wire()) {
        console.complain("Couldn't send local address");
        return Err(console.because(describe(&error)));
    }
    let mut wire = [0; WIRE_LEN];
    let heard = match read_all(&mut stream, &mut wire) {
        (WIRE_LEN, _) => stream.write_all(DONE).map_err(|error| describe(&error)),
        (count, failure) => Err(why_short(count, failure)),
    };
    if let Err(why) = heard {
        console.complain(format_args!("client read/write: {why}"));
        console.complain("Couldn't read/write remote address");
        return Err(Failed);
    }
    Dest::from_wire(&wire).ok_or_else(|| {
        console.complain("Couldn't read/write remote address");
        not_an_address(&wire, console)
    })
}

fn connect(host: &OsStr, port: u16, console: &mut Console) -> Result<TcpStream, Failed> {
    let name = host.to_string_lossy();
    let addresses = (&*name, port).to_socket_addrs().map_err(|error| {
        let why = describe(&error);
        let why = why.strip_prefix("failed to lookup address information: ").unwrap_or(&why);
        console.complain(format_args!("{why} for {name}:{port}"));
        Failed
    })?;
    let mut why = format!("{name} has no address");
    for address in addresses {
        match TcpStream::connect(address) {
            Ok(stream) => return Ok(stream),
            Err(error) => why = format!("{address}: {}", describe(&error)),
        }
    }
    console.complain(format_args!("Couldn't connect to {name}:{port}"));
    Err(console.because(why))
}

/// A client that has sent its address and waits for ours.
#[derive(Debug)]
pub struct Client(TcpStream);

/// The server's part, first half: waits for a client, and receives its address.
///
/// # Errors
/// The port is taken, or the connection fails; the failure has been reported.
pub fn wait(port: u16, console: &mut Console) -> Result<(Client, Dest), Failed> {
    let any: [SocketAddr; 2] = [(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()];
    let listener = TcpListener::bind(&any[..]).map_err(|error| {
        console.complain(format_args!("Couldn't listen to port {port}"));
        console.because(describe(&error))
    })?;
    let (mut stream, _) = listener.accept().map_err(|error| {
        console.complain("accept() failed");
        console.because(describe(&error))
    })?;
    drop(listener);
    let mut wire = [0; WIRE_LEN];
    let (count, failure) = read_all(&mut stream, &mut wire);
    if count != WIRE_LEN {
        // The result of read(2) in C: an error hides the bytes before it.
        let heard = if failure.is_some() { "-1".to_owned() } else { count.to_string() };
        console.complain(format_args!("server read: {}", why_short(count, failure)));
        console.complain(format_args!("{heard}/{WIRE_LEN}: Couldn't read remote address"));
        return Err(Failed);
    }
    match Dest::from_wire(&wire) {
        Some(remote) => Ok((Client(stream), remote)),
        None => {
            console.complain(format_args!("{count}/{WIRE_LEN}: Couldn't read remote address"));
            Err(not_an_address(&wire, console))
        }
    }
}

impl Client {
    /// The server's part, second half: sends our address, and waits until the client has it.
    ///
    /// # Errors
    /// The connection fails; the failure has been reported.
    pub fn answer(mut self, local: &Dest, console: &mut Console) -> Result<(), Failed> {
        let mut done = [0; DONE.len()];
        let heard = match self.0.write_all(&local.to_wire()) {
            Ok(()) => match read_all(&mut self.0, &mut done) {
                (count, None) if count == done.len() => Ok(()),
                (count, failure) => Err(why_short(count, failure)),
            },
            Err(error) => Err(describe(&error)),
        };
        heard.map_err(|why| {
            console.complain("Couldn't send/recv local address");
            console.because(why)
        })
    }
}

/// Reads until the buffer is full, the peer closes the connection, or an error; returns the number
/// of bytes and the error.
fn read_all(stream: &mut impl Read, buffer: &mut [u8]) -> (usize, Option<io::Error>) {
    let mut count = 0;
    while count < buffer.len() {
        match stream.read(&mut buffer[count..]) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (count, Some(error)),
        }
    }
    (count, None)
}

fn why_short(count: usize, failure: Option<io::Error>) -> String {
    match failure {
        Some(error) => describe(&error),
        None => format!("the peer closed the connection after {count} bytes"),
    }
}

fn not_an_address(wire: &[u8], console: &mut Console) -> Failed {
    console.because(format_args!("the peer sent \"{}\", which is no lid:qpn:psn:gid", wire.escape_ascii()))
}

const DONE: &[u8; 5] = b"done\0";

#[cfg(test)]
mod tests;
