//! The exchange of the peers' addresses over TCP, as in rdma-core's programs.
//!
//! ```text
//! client                          server
//!   │ connect ───────────────────► │ accept
//!   │ its address, 52 bytes ─────► │ moves its queue pair to RTS
//!   │ ◄───── its address, 52 bytes │
//!   │ "done\0" ──────────────────► │
//!   │ ◄────────────────── "stay\0" │
//!   │ "stay\0" ──────────────────► │
//!   │ moves its queue pair to RTS  │ waits for the first message
//! ```
//!
//! The C `ibv_srq_pingpong` sends 256 addresses in each direction instead of one. The C programs
//! close the connection after "done". Our programs keep it if the other side also does, so that
//! each [`Peer`] detects the other's end.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};

use super::dest::{Dest, WIRE_LEN};
use super::options::Program;
use super::peer::Peer;
use crate::console::{Console, Failed, describe};

/// The client's part: sends our addresses to the server and receives the server's addresses. If the
/// server expects more addresses than we have, sends zeros for the missing ones.
///
/// # Errors
/// Fails if the host cannot be resolved, or the connection fails; the failure has been reported.
pub fn ask(
    host: &OsStr,
    port: u16,
    program: Program,
    local: &[Dest],
    console: &mut Console,
) -> Result<(Vec<Dest>, Peer), Failed> {
    let mut stream = connect(host, port, console)?;
    if let Err(error) = stream.write_all(&to_wire(program, local)) {
        console.complain("Couldn't send local address");
        return Err(console.because(describe(&error)));
    }
    let mut wire = vec![0; program.addresses() * WIRE_LEN];
    let (count, failure) = read_all(&mut stream, &mut wire);
    if count < wire.len() {
        let why = why_short(count % WIRE_LEN, failure);
        if program == Program::Srq {
            console.complain(format_args!("client read: {why}"));
            return Err(not_read(count, console));
        }
        console.complain(format_args!("client read/write: {why}"));
        console.complain("Couldn't read/write remote address");
        return Err(Failed);
    }
    if let Err(error) = stream.write_all(DONE) {
        let why = describe(&error);
        if program == Program::Srq {
            console.complain(format_args!("client write: {why}"));
        } else {
            console.complain(format_args!("client read/write: {why}"));
            console.complain("Couldn't read/write remote address");
        }
        return Err(Failed);
    }
    let remote = from_wire(&wire).map_err(|wrong| {
        if program == Program::Srq {
            not_read(wrong * WIRE_LEN, console);
        } else {
            console.complain("Couldn't read/write remote address");
        }
        not_an_address(&wire[wrong * WIRE_LEN..][..WIRE_LEN], console)
    })?;
    Ok((remote, Peer::of_server(stream)))
}

/// Connects to a server.
///
/// # Errors
/// Fails if the host cannot be resolved or refuses the connection. The failure has been reported.
pub fn connect(host: &OsStr, port: u16, console: &mut Console) -> Result<TcpStream, Failed> {
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

/// Listens on a port.
///
/// # Errors
/// Fails if the port is in use; the failure has been reported.
pub fn listen(port: u16, console: &mut Console) -> Result<TcpListener, Failed> {
    let any: [SocketAddr; 2] = [(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()];
    TcpListener::bind(&any[..]).map_err(|error| {
        console.complain(format_args!("Couldn't listen to port {port}"));
        console.because(describe(&error))
    })
}

/// A client that has sent its addresses and waits for ours.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    program: Program,
}

/// Waits for a client and receives its addresses: the first half of the server's part.
///
/// # Errors
/// Fails if the port is in use, or the connection fails; the failure has been reported.
pub fn wait(port: u16, program: Program, console: &mut Console) -> Result<(Client, Vec<Dest>), Failed> {
    let listener = listen(port, console)?;
    let (mut stream, _) = listener.accept().map_err(|error| {
        console.complain("accept() failed");
        console.because(describe(&error))
    })?;
    drop(listener);
    let mut wire = vec![0; program.addresses() * WIRE_LEN];
    let (count, failure) = read_all(&mut stream, &mut wire);
    if count < wire.len() {
        // The result of `read(2)` in C: an error hides the bytes that were read before it.
        let heard = if failure.is_some() { "-1".to_owned() } else { count.to_string() };
        console.complain(format_args!("server read: {}", why_short(count % WIRE_LEN, failure)));
        if program == Program::Srq {
            return Err(not_read(count, console));
        }
        console.complain(format_args!("{heard}/{WIRE_LEN}: Couldn't read remote address"));
        return Err(Failed);
    }
    match from_wire(&wire) {
        Ok(remote) => Ok((Client { stream, program }, remote)),
        Err(wrong) => {
            if program == Program::Srq {
                not_read(wrong * WIRE_LEN, console);
            } else {
                console.complain(format_args!("{count}/{WIRE_LEN}: Couldn't read remote address"));
            }
            Err(not_an_address(&wire[wrong * WIRE_LEN..][..WIRE_LEN], console))
        }
    }
}

impl Client {
    /// Sends our addresses and waits until the client has them. This is the second half of the
    /// server's part.
    ///
    /// # Errors
    /// Fails if the connection fails; the failure has been reported.
    pub fn answer(mut self, local: &[Dest], console: &mut Console) -> Result<Peer, Failed> {
        let is_srq = self.program == Program::Srq;
        let mut done = [0; DONE.len()];
        let heard = match self.stream.write_all(&to_wire(self.program, local)) {
            Ok(()) => match read_all(&mut self.stream, &mut done) {
                (count, None) if count == done.len() => return Ok(Peer::of_client(self.stream)),
                (count, failure) => ("client write", why_short(count, failure)),
            },
            Err(error) => ("Couldn't send local address", describe(&error)),
        };
        match heard {
            ("client write", why) if is_srq => console.complain(format_args!("client write: {why}")),
            (line, why) => {
                console.complain(if is_srq { line } else { "Couldn't send/recv local address" });
                console.reason(why);
            }
        }
        Err(Failed)
    }
}

/// Returns the addresses in wire format, with as many entries as the program's protocol requires.
fn to_wire(program: Program, local: &[Dest]) -> Vec<u8> {
    let all = local.iter().copied().chain(std::iter::repeat(Dest::NONE));
    all.take(program.addresses()).flat_map(Dest::to_wire).collect()
}

/// Parses received addresses. The error is the index of the first malformed address.
fn from_wire(wire: &[u8]) -> Result<Vec<Dest>, usize> {
    let (addresses, _) = wire.as_chunks::<WIRE_LEN>();
    addresses.iter().enumerate().map(|(index, wire)| Dest::from_wire(wire).ok_or(index)).collect()
}

/// Reports the first malformed address, like the C `ibv_srq_pingpong`.
fn not_read(count: usize, console: &mut Console) -> Failed {
    let (index, bytes) = (count / WIRE_LEN, count % WIRE_LEN);
    console.complain(format_args!("{bytes}/{WIRE_LEN}: Couldn't read remote address [{index}]"));
    Failed
}

/// Reads until the buffer is full, the peer closes the connection or an error occurs. Returns the
/// number of bytes and the error.
pub fn read_all(stream: &mut impl Read, buffer: &mut [u8]) -> (usize, Option<io::Error>) {
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

/// Returns the reason why a read ended early, after `count` bytes.
pub fn why_short(count: usize, failure: Option<io::Error>) -> String {
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
