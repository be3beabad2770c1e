//! [`Session`]: one connection of `rping`, and its events.
//!
//! The C program has a thread for connection manager events and a thread for completions. Both
//! change a state and post a semaphore for the main thread. This program has a single thread for
//! everything. [`Session::wait`] handles events until one of them posts, so that the same events
//! print the same lines in the same order.
//!
//! ```text
//!   event channel ──────┐                    state
//!                       ├─► wait ─► handler ─┤
//!   completion channel ─┘                    posts ─► the next step of the ping
//! ```

use std::fmt;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdmacm::{CmId, Event, EventChannel, EventKind, EventType};
use verbs::state::{Init, Rts};
use verbs::{Buf, CompChannel, Completed, Cq, Exposed, Pd, Qp, WcOpcode, WcStatus};

use super::options::Options;
use super::wire::RdmaInfo;
use crate::cm::perror;
use crate::console::Console;

/// The steps of a connection and of a ping, with the same numbers as in the C program's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum State {
    /// Nothing has happened.
    Idle = 1,
    /// A client requests a connection.
    ConnectRequest,
    /// The server's address is resolved.
    AddrResolved,
    /// The route to the server is resolved.
    RouteResolved,
    /// The connection is established.
    Connected,
    /// The client has announced memory to read.
    ReadAdv,
    /// The server has read the client's memory.
    ReadComplete,
    /// The client has announced memory to write.
    WriteAdv,
    /// The server has written the client's memory.
    WriteComplete,
    /// The connection has ended.
    Disconnected,
    /// A step has failed.
    Error,
}

/// The reason for the end of a session, which has already been reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A step failed. The value is the return value of the C function.
    Failed(i32),
    /// The C program exits at once with this value.
    Exit(i32),
}

impl End {
    /// Returns the return value of the C function.
    pub const fn value(self) -> i32 {
        match self {
            Self::Failed(value) | Self::Exit(value) => value,
        }
    }
}

/// The queue pair and related objects.
#[derive(Debug)]
pub struct Objects {
    /// The queue pair before it is connected.
    pub init: Option<Qp<Init>>,
    /// The connected queue pair.
    pub qp: Option<Qp<Rts>>,
    /// The completion queue for both directions.
    pub cq: Cq,
    /// The channel of the completion queue's events.
    pub channel: CompChannel,
    /// The protection domain of all memory.
    pub pd: Pd,
}

/// A session's memory.
#[derive(Debug, Default)]
pub struct Buffers {
    /// Free memory for messages to send.
    pub sends: Vec<Buf>,
    /// The server's data; `None` while the device reads or writes it.
    pub data: Option<Buf>,
    /// The client's data for the server to read.
    pub start: Option<Exposed>,
    /// The client's data for the server to write.
    pub echo: Option<Exposed>,
}

/// One connection.
#[derive(Debug)]
pub struct Session<'a> {
    pub(super) options: &'a Options,
    pub(super) console: &'a mut Console,
    /// This field is before the id, so that a queue pair is dropped before its connection.
    pub(super) objects: Option<Objects>,
    pub(super) buffers: Buffers,
    /// Boxed, because `-d` prints its address.
    pub(super) id: Box<CmId>,
    channel: EventChannel,
    pub(super) state: State,
    /// The number of unconsumed semaphore posts.
    posts: usize,
    /// Whether completions are still handled. As in the C thread, handling stops at the first
    /// failure.
    completes: bool,
    /// The memory that the client announced last.
    pub(super) remote: RdmaInfo,
}

impl<'a> Session<'a> {
    /// Starts a session for an id with a separate event channel.
    pub fn new(options: &'a Options, id: Box<CmId>, channel: EventChannel, console: &'a mut Console) -> Self {
        Self {
            options,
            console,
            objects: None,
            buffers: Buffers::default(),
            id,
            channel,
            state: State::Idle,
            posts: 0,
            completes: true,
            remote: RdmaInfo::default(),
        }
    }

    /// Prints a line with `-d`.
    pub(super) fn debug(&mut self, text: impl fmt::Display) {
        if self.options.debug {
            self.console.say(text);
        }
    }

    /// Waits for the next semaphore post.
    ///
    /// # Errors
    /// Returns a failure that makes the C program exit; it has been reported.
    pub(super) fn wait(&mut self) -> Result<(), End> {
        while self.posts == 0 {
            self.step(None)?;
        }
        self.posts -= 1;
        Ok(())
    }

    /// Waits for the next semaphore post, then checks the new state.
    ///
    /// # Errors
    /// The same errors as [`wait`](Self::wait). Also fails in any other state and reports it with
    /// `words`.
    pub(super) fn wait_for(&mut self, wanted: State, words: &str) -> Result<(), End> {
        self.wait()?;
        if self.state == wanted {
            return Ok(());
        }
        self.console.complain(format_args!("{words} state {}", self.state as u8));
        Err(End::Failed(-1))
    }

    /// Waits until the end of the connection is confirmed. There is a time limit, because the peer
    /// may be gone.
    pub(super) fn wait_for_end(&mut self) {
        let deadline = Instant::now() + CONFIRMED_WITHIN;
        while self.state != State::Disconnected {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.step(Some(left)).is_err() {
                return;
            }
        }
    }

    /// Handles pending events, or waits until there is one.
    fn step(&mut self, timeout: Option<Duration>) -> Result<(), End> {
        // Completions come first, because a finished ping completes before its connection ends.
        if self.completes
            && let Some(objects) = &self.objects
        {
            match objects.channel.next_event() {
                Ok(Some(event)) if event.cq == objects.cq.id() => {
                    self.on_completions();
                    return Ok(());
                }
                Ok(Some(_)) => self.stop("Unknown CQ!", &""),
                Ok(None) => {}
                Err(error) => self.stop("Failed to get cq event!", &error),
            }
        }
        match self.channel.try_next_event() {
            Ok(Some(event)) => return self.on_event(event),
            Ok(None) => {}
            Err(error) => {
                perror("rdma_get_cm_event", &error, self.console);
                return Err(End::Exit(-1));
            }
        }
        self.console.flush();
        let mut fds = vec![PollFd::new(self.channel.as_fd(), PollFlags::POLLIN)];
        if self.completes
            && let Some(objects) = &self.objects
        {
            fds.push(PollFd::new(objects.channel.as_fd(), PollFlags::POLLIN));
        }
        // This is rounded up, so that a wait with a time limit does not spin.
        let limit = timeout.map(|left| left + Duration::from_millis(1));
        let limit = limit.map_or(PollTimeout::NONE, |left| left.try_into().unwrap_or(PollTimeout::MAX));
        match poll(&mut fds, limit) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => {
                self.console.complain(format_args!("poll failed: {}", errno.desc()));
                Err(End::Exit(-1))
            }
        }
    }

    /// Stops handling completions, as the C thread does when it ends.
    fn stop(&mut self, line: &str, reason: &dyn fmt::Display) {
        self.completes = false;
        self.console.complain(line);
        let reason = reason.to_string();
        if !reason.is_empty() {
            self.console.reason(reason);
        }
    }

    fn post(&mut self, state: State) {
        self.state = state;
        self.posts += 1;
    }

    /// Handles an event of the connection.
    fn on_event(&mut self, event: Event) -> Result<(), End> {
        let name = event_str(event.event_type());
        let which = if self.options.server { "child" } else { "parent" };
        let id = format!("{:p}", self.id);
        self.debug(format_args!("cma_event type {name} cma_id {id} ({which})\n"));
        match event.kind {
            EventKind::AddrResolved => {
                self.state = State::AddrResolved;
                if let Err(error) = self.id.resolve_route(RESOLVE) {
                    perror("rdma_resolve_route", &error, self.console);
                    return Err(End::Exit(-1));
                }
            }
            EventKind::RouteResolved => self.post(State::RouteResolved),
            EventKind::ConnectResponse(_) => {
                self.debug("CONNECT_RESPONSE\n");
                self.post(State::Connected);
            }
            EventKind::Established(_) => {
                self.debug("ESTABLISHED\n");
                // The server continues with the first message, which may have arrived earlier.
                let state = if self.options.server { self.state } else { State::Connected };
                self.post(state);
            }
            EventKind::Disconnected => {
                let side = if self.options.server { "server" } else { "client" };
                self.console.complain(format_args!("{side} DISCONNECT EVENT..."));
                self.post(State::Disconnected);
            }
            EventKind::DeviceRemoval => {
                self.console.complain("cma detected device removal!!!!");
                return Err(End::Exit(-1));
            }
            _ => return other(event, name, self.console),
        }
        Ok(())
    }

    /// Handles an event of the completion queue. Arms the queue again, then handles all
    /// completions.
    fn on_completions(&mut self) {
        let Some(objects) = &mut self.objects else { return };
        if let Err(error) = objects.cq.req_notify(false) {
            return self.stop("Failed to set notify!", &error);
        }
        while let Some(completed) = self.objects.as_mut().and_then(|objects| objects.cq.poll_one()) {
            if completed.status == WcStatus::WR_FLUSH_ERR {
                // The remaining completions belong to a connection that has ended.
                self.completes = false;
                continue;
            }
            if self.on_completion(completed).is_err() {
                self.completes = false;
                return self.post(State::Error);
            }
        }
    }

    /// Handles a completion.
    ///
    /// # Errors
    /// Fails if the completion or the message fails; the failure has been reported.
    fn on_completion(&mut self, completed: Completed) -> Result<(), ()> {
        if let Err(error) = completed.wc.ok() {
            self.console.complain(format_args!("cq completion failed status {}", completed.status.0));
            self.console.reason(error);
            return Err(());
        }
        let (opcode, byte_len) = (completed.opcode, completed.byte_len);
        let buf = completed.into_buf().ok();
        match opcode {
            WcOpcode::SEND => {
                self.debug("send completion\n");
                self.buffers.sends.extend(buf);
            }
            WcOpcode::RDMA_WRITE => {
                self.debug("rdma write completion\n");
                self.buffers.data = buf;
                self.post(State::WriteComplete);
            }
            WcOpcode::RDMA_READ => {
                self.debug("rdma read completion\n");
                self.buffers.data = buf;
                self.post(State::ReadComplete);
            }
            WcOpcode::RECV => {
                self.debug("recv completion\n");
                let Some(buf) = buf else { return Err(()) };
                self.received(&buf, byte_len)?;
                self.post_recv_again(buf)?;
                self.post(self.state);
            }
            _ => {
                self.debug("unknown!!!!! completion\n");
                return Err(());
            }
        }
        Ok(())
    }

    /// Handles a message.
    fn received(&mut self, message: &[u8], byte_len: u32) -> Result<(), ()> {
        if byte_len as usize != RdmaInfo::LEN {
            self.console.complain(format_args!("Received bogus data, size {byte_len}"));
            self.console.complain("recv wc error: -1");
            return Err(());
        }
        if !self.options.server {
            let is_read = self.state == State::ReadAdv;
            self.state = if is_read { State::WriteAdv } else { State::WriteComplete };
            return Ok(());
        }
        let info = RdmaInfo::from_bytes(message).unwrap_or_default();
        let RdmaInfo { buf, rkey, size } = info;
        self.remote = info;
        self.debug(format_args!("Received rkey {rkey:x} addr {buf:x} len {size} from peer\n"));
        let begins = self.state <= State::Connected || self.state == State::WriteComplete;
        self.state = if begins { State::ReadAdv } else { State::WriteAdv };
        Ok(())
    }

    fn post_recv_again(&mut self, buf: Buf) -> Result<(), ()> {
        let objects = self.objects.as_mut().ok_or(())?;
        let posted = match (&mut objects.qp, &mut objects.init) {
            (Some(qp), _) => qp.post_recv_buf(buf, ..),
            (None, Some(qp)) => qp.post_recv_buf(buf, ..),
            (None, None) => return Err(()),
        };
        posted.map(|_| ()).map_err(|refused| {
            let error = verbs::Error::from(refused);
            self.console.complain(format_args!("post recv error: {}", error.errno.raw()));
            self.console.reason(error);
        })
    }

    /// Ends the connection. Until the peer confirms, the queue pair acknowledges incoming packets.
    /// The C program moves it to the error state first, so rxe drops a pending acknowledgement.
    pub(super) fn disconnect(&mut self) {
        // This fails if the peer has ended the connection or there is none.
        let _ = self.id.disconnect();
    }
}

/// Handles an event that either ends the program or has no effect.
///
/// # Errors
/// Returns any failure, which has been reported.
pub(super) fn other(event: Event, name: &str, console: &mut Console) -> Result<(), End> {
    match event.kind {
        EventKind::AddrError
        | EventKind::RouteError
        | EventKind::ConnectError
        | EventKind::Unreachable
        | EventKind::Rejected(_) => {
            console.complain(format_args!("cma event {name}, error {}", event.status.0));
            if let Err(error) = event.ok() {
                console.reason(error);
            }
            Err(End::Exit(-1))
        }
        _ => {
            console.complain(format_args!("unhandled event: {name}, ignoring"));
            Ok(())
        }
    }
}

/// Returns the name of an event.
///
/// # References
/// `rdma_event_str(3)`
pub(super) fn event_str(event: EventType) -> &'static str {
    event.name().unwrap_or("UNKNOWN EVENT")
}

/// The timeout for resolving an address or route.
pub(super) const RESOLVE: Duration = Duration::from_secs(2);

/// The time limit for a live peer to confirm the end of a connection.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);
