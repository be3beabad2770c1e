//! [`Server`]: the loop that waits for sockets and deadlines.
//!
//! ```text
//! listening ── client connects ──► connected ── client closes ──► ended      (per function)
//! ```
//! The loop ends once the last client of a function has disconnected. Each function serves only one
//! client, because QEMU ends with its guest. Clients of the control socket may connect and
//! disconnect at any time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Instant;

use roce::engine::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::bus::MappedBus;
use super::connection::{Connection, Ended};
use super::control::Control;
use super::device::Device;

/// The listening sockets of the functions, the control socket, and their clients.
#[derive(Debug)]
pub struct Server {
    functions: Vec<Client>,
    control: UnixListener,
    controls: Vec<Control>,
    start: Instant,
}

/// The connection state of a function.
#[derive(Debug)]
enum Client {
    Awaited(UnixListener, MappedBus),
    Here(Connection),
    Gone,
}

/// Maximum number of concurrent clients of the control socket.
const CONTROLS: usize = 16;

impl Server {
    /// Listens on one socket path per function, and on `control` for fault injection. The client of
    /// a function provides the memory and interrupts of the function's bus.
    ///
    /// # Errors
    /// Any error from binding a socket, notably `AddrInUse` if the path exists. The error message
    /// contains the path.
    pub fn listen(functions: Vec<(&Path, MappedBus)>, control: &Path) -> io::Result<Self> {
        Ok(Self {
            functions: functions
                .into_iter()
                .map(|(path, bus)| Ok(Client::Awaited(listen(path)?, bus)))
                .collect::<io::Result<_>>()?,
            control: listen(control)?,
            controls: Vec::new(),
            start: Instant::now(),
        })
    }

    /// Returns the current time in the device's time format.
    pub fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Serves the device until every connected client has disconnected.
    ///
    /// # Errors
    /// Any error from polling. `InvalidData`, once the last client has disconnected, if a client
    /// sent a malformed message or its socket failed.
    pub fn run(&mut self, device: &mut impl Device) -> io::Result<()> {
        let mut garbage = None;
        while !self.is_over() {
            let ready = self.wait(device.deadline())?;
            let now = self.now();
            if device.deadline().is_some_and(|deadline| deadline <= now) {
                device.expire(now);
            }
            for (place, client) in self.functions.iter_mut().enumerate() {
                if !ready.functions.get(place).is_some_and(|ready| *ready) {
                    continue;
                }
                if let Err(ended) = client.step(place, device, now) {
                    *client = Client::Gone;
                    if ended != Ended::Closed {
                        garbage = Some(format!("the client of function {place}: {ended:?}"));
                    }
                }
            }
            let mut answered = ready.controls.into_iter();
            self.controls
                .retain_mut(|control| !answered.next().unwrap_or(false) || control.step(device, now).is_ok());
            if ready.control {
                self.take_control();
            }
        }
        garbage.map_or(Ok(()), |text| Err(io::Error::new(io::ErrorKind::InvalidData, text)))
    }

    fn is_over(&self) -> bool {
        let gone = |client: &Client| matches!(client, Client::Gone);
        self.functions.iter().any(gone)
            && !self.functions.iter().any(|client| matches!(client, Client::Here(_)))
    }

    fn take_control(&mut self) {
        if let Ok((stream, _)) = self.control.accept() {
            // A client beyond the limit is disconnected at once.
            if self.controls.len() < CONTROLS && stream.set_nonblocking(true).is_ok() {
                self.controls.push(Control::new(stream));
            }
        }
    }

    /// Waits until a socket is ready or the deadline has passed.
    fn wait(&self, deadline: Option<Time>) -> io::Result<Ready> {
        let mut polled = vec![PollFd::new(&self.control, PollFlags::IN)];
        let events = |full: bool| if full { PollFlags::OUT } else { PollFlags::IN };
        polled
            .extend(self.controls.iter().map(|c| PollFd::from_borrowed_fd(c.socket(), events(c.is_full()))));
        let sockets = self.functions.iter().enumerate();
        let sockets = sockets.filter_map(|(place, client)| Some((place, client.socket()?, client.is_full())));
        let places: Vec<usize> = sockets
            .map(|(place, socket, full)| {
                polled.push(PollFd::from_borrowed_fd(socket, events(full)));
                place
            })
            .collect();
        let timeout = deadline.map(|deadline| {
            let left = deadline.0.saturating_sub(self.now().0).min(LONGEST_WAIT);
            Timespec { tv_sec: (left / NANOSECONDS) as i64, tv_nsec: (left % NANOSECONDS) as i64 }
        });
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Ready::default()),
            Err(error) => return Err(error.into()),
        }
        let mut found = polled.iter().map(|fd| !fd.revents().is_empty());
        let control = found.next().unwrap_or(false);
        let controls = found.by_ref().take(self.controls.len()).collect();
        let mut functions = vec![false; self.functions.len()];
        for (place, ready) in places.into_iter().zip(found) {
            if let Some(entry) = functions.get_mut(place) {
                *entry = ready;
            }
        }
        Ok(Ready { control, controls, functions })
    }
}

/// The readiness of each socket.
#[derive(Debug, Default)]
struct Ready {
    control: bool,
    controls: Vec<bool>,
    functions: Vec<bool>,
}

impl Client {
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Awaited(listener, _) => Some(listener.as_fd()),
            Self::Here(connection) => Some(connection.socket()),
            Self::Gone => None,
        }
    }

    fn is_full(&self) -> bool {
        matches!(self, Self::Here(connection) if connection.is_full())
    }

    fn step(&mut self, function: usize, device: &mut impl Device, now: Time) -> Result<(), Ended> {
        match self {
            Self::Awaited(listener, bus) => {
                // The client may have disconnected before its connection was accepted.
                if let Some(stream) = accept(listener) {
                    *self = Self::Here(Connection::new(function, stream, bus.clone()));
                }
                Ok(())
            }
            Self::Here(connection) => connection.step(device, now),
            Self::Gone => Ok(()),
        }
    }
}

fn accept(listener: &UnixListener) -> Option<UnixStream> {
    let (stream, _) = listener.accept().ok()?;
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    let bind = || {
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    bind().map_err(|error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

const NANOSECONDS: u64 = 1_000_000_000;
/// Maximum duration of one wait, in nanoseconds. Its seconds fit every `time_t`.
const LONGEST_WAIT: u64 = 3600 * NANOSECONDS;
