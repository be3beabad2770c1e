//! The steps of a run with TCP sockets (`-S`), for comparison.

use std::ffi::OsStr;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use rdmacm::{Family, Hints};

use super::control::{Control, ip};
use super::options::{Options, Role};
use super::steps::{Step, Table, Times};
use crate::console::{Console, Failed, describe};

/// Connects a socket for each connection and prints the table.
///
/// # Errors
/// Fails if a socket fails, or there is not enough memory. The failure has been reported.
pub fn run(options: &Options, mut control: Control, mut console: Console) -> Result<(), Failed> {
    let count = options.connections as usize;
    let mut conns: Vec<Times> = Vec::new();
    if conns.try_reserve_exact(count).is_err() {
        return Err(console.because(format_args!("no memory for {count} connections")));
    }
    conns.resize_with(count, Times::default);
    let times = Times::default();
    let side = match options.role {
        Role::Listen => {
            serve(options, &mut control, &times, &mut console)?;
            "Server"
        }
        Role::Connect => {
            connect_all(options, &mut control, &times, &conns, &mut console)?;
            "Client"
        }
    };
    console.say(format_args!("{side} baseline socket results:\n"));
    let threads = options.threads;
    console.say(Table { with_qps: false, threads, run: &times, conns: conns.iter() });
    Ok(())
}

fn serve(
    options: &Options,
    control: &mut Control,
    times: &Times,
    console: &mut Console,
) -> Result<(), Failed> {
    console.say("Server baseline socket setup\n");
    // The root has closed the control port, so this socket can use it.
    control.sync(0).map_err(|error| failed("sync", &error, console))?;
    let address = address(&options.source, options, true, console)?;
    let listener = TcpListener::bind(address).map_err(|error| failed("bind", &error, console))?;
    control.sync(1).map_err(|error| failed("sync", &error, console))?;
    console.say("Accept sockets\n");
    console.flush();
    let mut streams: Vec<TcpStream> = Vec::new();
    for index in 0..options.connections {
        let (stream, _) = listener.accept().map_err(|error| failed("accept", &error, console))?;
        if index == 0 {
            times.start(Step::FullConnect);
        }
        streams.push(stream);
    }
    times.end(Step::FullConnect);
    console.say("Closing sockets\n");
    times.start(Step::DestroyId);
    drop(streams);
    times.end(Step::DestroyId);
    Ok(())
}

fn connect_all(
    options: &Options,
    control: &mut Control,
    times: &Times,
    conns: &[Times],
    console: &mut Console,
) -> Result<(), Failed> {
    console.say("Client baseline socket setup\n");
    let address = address(&options.controller, options, false, console)?;
    let to = SockaddrStorage::from(address);
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    (0..=1).try_for_each(|step| control.sync(step)).map_err(|error| failed("sync", &error, console))?;
    let sockets: Vec<Mutex<Option<OwnedFd>>> = conns.iter().map(|_| Mutex::new(None)).collect();
    let slot = |index: usize| sockets[index].lock().unwrap_or_else(PoisonError::into_inner);

    times.start(Step::FullConnect);
    console.say("Creating sockets\n");
    all(options, times, conns, Step::CreateId, &|index| {
        let made = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        *slot(index) = Some(made);
        Ok(())
    })
    .map_err(|error| failed("socket", &error, console))?;
    console.say("Connecting sockets\n");
    console.flush();
    all(options, times, conns, Step::Connect, &|index| {
        let socket = slot(index);
        let Some(socket) = &*socket else { return Ok(()) };
        Ok(connect(socket.as_raw_fd(), &to)?)
    })
    .map_err(|error| failed("connect", &error, console))?;
    times.end(Step::FullConnect);

    console.say("Closing sockets\n");
    times.start(Step::DestroyId);
    drop(sockets);
    times.end(Step::DestroyId);
    Ok(())
}

/// Executes a step for all sockets on `-n` threads. Each thread repeatedly takes the next socket.
fn all(
    options: &Options,
    times: &Times,
    conns: &[Times],
    step: Step,
    work: &(dyn Fn(usize) -> io::Result<()> + Sync),
) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let part = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(conn) = conns.get(index) else { return Ok(()) };
            conn.start(step);
            work(index)?;
            conn.end(step);
        }
    };
    times.start(step);
    let ended: io::Result<()> = thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads).map(|_| scope.spawn(part)).collect();
        let mut ends = threads.into_iter().map(|thread| thread.join());
        ends.try_for_each(|end| end.unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
    });
    times.end(step);
    ended
}

fn address(
    host: &OsStr,
    options: &Options,
    passive: bool,
    console: &mut Console,
) -> Result<SocketAddr, Failed> {
    let family = if passive { Some(Family::Ipv4) } else { None };
    ip(host, &options.port, Hints { passive, family, ..Hints::default() }).map_err(|(text, reason)| {
        console.complain(format_args!("getaddrinfo: {text}"));
        console.because(reason)
    })
}

fn failed(call: &str, error: &io::Error, console: &mut Console) -> Failed {
    console.complain(format_args!("{call}: {}", describe(error)));
    Failed
}
