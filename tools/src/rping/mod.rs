//! `rping`: pings over a connection made by address. The server reads the client's data and writes
//! it back into the client's memory.
//!
//! | file | content |
//! |---|---|
//! | [`options`] | the command line |
//! | [`wire`] | the messages |
//! | [`session`] | one connection and the events that drive it |
//! | [`setup`] | a connection's queue pair, memory and establishment |
//! | [`pings`] | the pings |
//!
//! A persistent server (`-P`) has a thread for each client. If a connection cannot be established,
//! the C server exits, whereas ours ends only that connection. It serves [`CLIENTS`] clients at a
//! time, while others wait.
//!
//! # References
//! `rping(1)`

pub mod options;
pub mod pings;
pub mod session;
pub mod setup;
pub mod wire;

use std::ffi::OsString;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use rdmacm::{CmId, ConnectRequest, EventChannel, EventKind, PortSpace};

use crate::cm::{create_event_channel, perror};
use crate::console::Console;
use crate::getopt::Getopt;
use options::{Options, SPEC};
use session::{End, RESOLVE, Session, State, event_str, other};

/// The number of clients that a persistent server serves at a time. Each client uses a few file
/// descriptors, and a process may usually have 1024.
pub const CLIENTS: usize = 128;

/// The backlog of connection requests.
const BACKLOG: u32 = 3;

/// Runs the program with its command line and returns the exit status.
pub fn main(mut args: impl Iterator<Item = OsString>) -> u8 {
    let name = args.next().unwrap_or_else(|| "rping".into());
    let mut console = Console::new(name.clone());
    let posixly_correct = std::env::var_os("POSIXLY_CORRECT").is_some();
    let getopt = Getopt::new(SPEC, name, args.collect(), posixly_correct);
    let ended = Options::parse(getopt, &mut console).and_then(|options| run(&options, &mut console));
    match ended {
        Ok(()) => 0,
        // An exit status has only 8 bits.
        Err(ret) => ret as u8,
    }
}

fn run(options: &Options, console: &mut Console) -> Result<(), i32> {
    let channel = create_event_channel(console).map_err(|errno| errno.raw())?;
    let id = channel.create_id(PortSpace::TCP).map(Box::new).map_err(|error| {
        perror("rdma_create_id", &error, console);
        -1
    })?;
    let name = format!("cm_id {id:p}\n");
    if options.debug {
        console.say(format_args!("created {name}"));
    }
    let ended = if options.server {
        bind(&id, options, console).and_then(|()| {
            let run = if options.persistent { run_persistent_server } else { run_server };
            run(&id, &channel, options, console)
        })
    } else {
        run_client(id, channel, options, console)
    };
    if options.debug && !matches!(ended, Err(End::Exit(_))) {
        console.say(format_args!("destroy {name}"));
    }
    ended.map_err(End::value)
}

fn bind(listener: &CmId, options: &Options, console: &mut Console) -> Result<(), End> {
    let refused = |call: &str, error: &verbs::Error, console: &mut Console| {
        perror(call, error, console);
        End::Failed(-1)
    };
    let debug = |text: &str, console: &mut Console| {
        if options.debug {
            console.say(text);
        }
    };
    listener.bind_addr(options.address).map_err(|error| refused("rdma_bind_addr", &error, console))?;
    debug("rdma_bind_addr successful\n", console);
    debug("rdma_listen\n", console);
    listener.listen(BACKLOG).map_err(|error| refused("rdma_listen", &error, console))
}

/// Serves one client.
fn run_server(
    listener: &CmId,
    channel: &EventChannel,
    options: &Options,
    console: &mut Console,
) -> Result<(), End> {
    let (id, channel) = next_client(listener, channel, options, console)?;
    let mut session = Session::new(options, id, channel, console);
    session.state = State::ConnectRequest;
    session.set_up()?;
    session.accept().map_err(|end| session.gave_up("connect error", end))?;
    let served = session.serve();
    let served = served.map_err(|end| session.gave_up("rping server failed", end));
    session.disconnect();
    session.wait_for_end();
    session.ends();
    served
}

/// Serves clients until a request cannot be received.
fn run_persistent_server(
    listener: &CmId,
    channel: &EventChannel,
    options: &Options,
    console: &mut Console,
) -> Result<(), End> {
    let seats = Arc::new(Seats::new(CLIENTS));
    loop {
        let seat = Seats::take(&seats);
        let (id, channel) = next_client(listener, channel, options, console)?;
        let (options, program) = (options.clone(), console.program().to_owned());
        let started = thread::Builder::new().name("client".into()).spawn(move || {
            let _seat = seat;
            let mut console = Console::new(program);
            serve_client(id, channel, &options, &mut console);
        });
        if let Err(error) = started {
            console.complain(format_args!("pthread_create: {}", crate::console::describe(&error)));
            return Err(End::Failed(error.raw_os_error().unwrap_or(-1)));
        }
    }
}

/// Serves one of several clients. A failure is reported and ends only this client.
fn serve_client(id: Box<CmId>, channel: EventChannel, options: &Options, console: &mut Console) {
    let mut session = Session::new(options, id, channel, console);
    session.state = State::ConnectRequest;
    if session.set_up().is_err() {
        return;
    }
    if let Err(end) = session.accept() {
        session.gave_up("connect error", end);
        return;
    }
    let _ = session.serve();
    session.disconnect();
    session.wait_for_end();
    session.ends();
}

/// Waits for a client. Its id gets a separate channel, so later requests stay queued.
fn next_client(
    listener: &CmId,
    channel: &EventChannel,
    options: &Options,
    console: &mut Console,
) -> Result<(Box<CmId>, EventChannel), End> {
    loop {
        console.flush();
        let event = channel.next_event().map_err(|error| {
            perror("rdma_get_cm_event", &error, console);
            End::Exit(-1)
        })?;
        let name = event_str(event.event_type());
        match event.kind {
            EventKind::ConnectRequest(ConnectRequest { id, .. }) => {
                let id = Box::new(id);
                if options.debug {
                    let child = format!("{id:p}");
                    console.say(format_args!(
                        "cma_event type {name} cma_id {child} (child)\nchild cma {child}\n"
                    ));
                }
                // A client that cannot be served is rejected; the next one may succeed.
                let Ok(own) = create_event_channel(console) else { continue };
                match id.migrate(&own) {
                    Ok(()) => return Ok((id, own)),
                    Err(error) => console.reason(error),
                }
            }
            EventKind::DeviceRemoval => {
                console.complain("cma detected device removal!!!!");
                return Err(End::Exit(-1));
            }
            _ => {
                if options.debug {
                    let parent = std::ptr::from_ref(listener);
                    console.say(format_args!("cma_event type {name} cma_id {parent:p} (parent)\n"));
                }
                other(event, name, console)?;
            }
        }
    }
}

fn run_client(
    id: Box<CmId>,
    channel: EventChannel,
    options: &Options,
    console: &mut Console,
) -> Result<(), End> {
    let source = options.source.map(Into::into);
    if let Err(error) = id.resolve_addr(source, options.address, RESOLVE) {
        perror("rdma_resolve_addr", &error, console);
        return Err(End::Failed(-1));
    }
    let mut session = Session::new(options, id, channel, console);
    session.wait_for(State::RouteResolved, "waiting for addr/route resolution")?;
    session.debug("rdma_resolve_addr - rdma_resolve_route successful\n");
    session.set_up()?;
    session.connect().map_err(|end| session.gave_up("connect error", end))?;
    let pinged = session.ping();
    let pinged = pinged.map_err(|end| session.gave_up("rping client failed", end));
    session.disconnect();
    session.wait_for_end();
    session.ends();
    pinged
}

impl Session<'_> {
    /// Reports the release of the memory if `-d` is set.
    fn ends(&mut self) {
        let at = format!("{:p}", &raw const *self);
        self.debug(format_args!("rping_free_buffers called on cb {at}\n"));
    }

    /// Reports that a part of the program has ended, unless the C program would have exited by
    /// then.
    fn gave_up(&mut self, what: &str, end: End) -> End {
        match end {
            End::Failed(ret) => {
                let colon = if what == "connect error" { "" } else { ":" };
                self.console.complain(format_args!("{what}{colon} {ret}"));
                end
            }
            End::Exit(_) => end,
        }
    }
}

/// A limit on the number of clients that a server serves at a time. Each client occupies a seat.
struct Seats {
    free: Mutex<usize>,
    freed: Condvar,
}

/// A client's seat. Dropping the value frees the seat.
struct Seat(Arc<Seats>);

impl Seats {
    fn new(count: usize) -> Self {
        Self { free: Mutex::new(count), freed: Condvar::new() }
    }

    /// Waits for a free seat.
    fn take(seats: &Arc<Self>) -> Seat {
        let free = seats.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free =
            seats.freed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Seat(Arc::clone(seats))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_free_again_when_its_client_is_gone() {
        let seats = Arc::new(Seats::new(1));
        let first = Seats::take(&seats);
        let other = Arc::clone(&seats);
        let waiting = thread::spawn(move || drop(Seats::take(&other)));
        assert_eq!(*seats.free.lock().unwrap(), 0);
        drop(first);
        waiting.join().unwrap();
        assert_eq!(*seats.free.lock().unwrap(), 1);
    }
}
