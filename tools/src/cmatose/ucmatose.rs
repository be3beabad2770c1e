//! `ucmatose`: `-c` reliable connections at once, with messages over all of them in both
//! directions.
//!
//! ```text
//!   server   requests ─► accept ─► send ─► poll sends, receives ─► disconnect ─► events
//!   client   resolve ─► connect ─► poll receives ─► send ─────────────────────► events
//! ```
//!
//! # References
//! `ucmatose(1)`

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::Duration;

use rdmacm::{CmId, ConnParam, Event, EventChannel, EventKind, Hints, IdKey, PortSpace};
use verbs::state::{Errored, Rts};
use verbs::{Cq, Errno, Pd, Qp, QpCap, QpInit, QpType, SendFlags};

use super::datagrams::{alloc_pd, create_cq};
use super::load::{Load, Polled, Polls};
use super::{Result, Ret, allocate, atoi, byte, call_failed, channel, end, failed, parse, program};
use crate::cm;
use crate::cm::address::{get_rdma_addr, take_format, take_port_space};
use crate::console::{Console, Failed};
use crate::getopt::{Opt, Spec};
use crate::pingpong::endpoint::{Message, To};

const SPEC: Spec = Spec::new("s:b:f:P:c:C:S:t:p:a:m", &[]);

const USAGE: &str = "\
\t[-s server_address]
\t[-b bind_address]
\t[-f address_format]
\t    name, ip, ipv6, or gid
\t[-P port_space]
\t    tcp or ib
\t[-c connections]
\t[-C message_count]
\t[-S message_size]
\t[-t type_of_service]
\t[-p port_number]
\t[-m(igrate)]
\t[-a ack_timeout]
";

/// The name used in the program's output.
const NAME: &str = "cmatose";

/// The timeout for resolving an address or route.
const RESOLVE: Duration = Duration::from_millis(2000);

/// The command-line options.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Options {
    server: Option<OsString>,
    source: Option<OsString>,
    hints: Hints,
    connections: i32,
    load: Load,
    tos: Option<u8>,
    port: OsString,
    migrate: bool,
    ack_timeout: Option<u8>,
}

impl Options {
    fn new() -> Self {
        Self {
            server: None,
            source: None,
            hints: Hints { port_space: Some(PortSpace::TCP), ..Hints::default() },
            connections: 1,
            load: Load::DEFAULT,
            tos: None,
            port: "7471".into(),
            migrate: false,
            ack_timeout: None,
        }
    }

    /// Parses the command line.
    ///
    /// # Errors
    /// Fails if the command line is invalid; the error has been reported.
    fn parse(args: Vec<OsString>, console: &mut Console) -> Result<Self, Failed> {
        let mut options = Self::new();
        parse(SPEC, USAGE, args, console, |option, console| options.take(option, console))?;
        options.hints.passive = options.server.is_none();
        options.load = options.load.of_run();
        Ok(options)
    }

    fn take(&mut self, Opt { val, arg }: Opt, console: &mut Console) -> Option<()> {
        match val {
            b's' => self.server = Some(arg),
            b'b' => self.source = Some(arg),
            b'f' => take_format(&arg, &mut self.hints, console),
            b'P' => take_port_space(&arg, "tcp", &mut self.hints, console),
            b'c' => self.connections = atoi(&arg),
            b'C' => self.load.count = atoi(&arg),
            b'S' => self.load.size = atoi(&arg),
            b't' => self.tos = Some(byte(&arg)),
            b'p' => self.port = arg,
            b'm' => self.migrate = true,
            b'a' => self.ack_timeout = Some(byte(&arg)),
            _ => return None,
        }
        Some(())
    }

    fn space(&self) -> PortSpace {
        self.hints.port_space.unwrap_or(PortSpace::TCP)
    }
}

/// Runs the program with its command line and returns the exit status.
pub fn main(args: impl Iterator<Item = OsString>) -> u8 {
    program("ucmatose", args, Options::parse, run)
}

fn run(options: &Options, console: &mut Console) -> Result<u8, u8> {
    let channel = channel(console)?;
    let nodes = allocate(NAME, options.connections, console, || {
        let id = options.server.is_some().then(|| channel.create_id(options.space())).transpose()?;
        Ok(Node { id, ..Node::default() })
    })?;
    let keys = nodes.iter().enumerate().filter_map(|(at, node)| Some((node.id.as_ref()?.key(), at)));
    let keys = keys.collect();
    let connects_left = options.connections;
    let mut test =
        Test { options, console, channel, nodes, keys, accepted: 0, connects_left, disconnects_left: 0 };
    let result = if options.server.is_some() { test.run_client() } else { test.run_server() };
    test.console.say("test complete\n");
    test.nodes.clear();
    Ok(end(result, test.console))
}

/// The state of a run.
struct Test<'a> {
    options: &'a Options,
    console: &'a mut Console,
    channel: EventChannel,
    nodes: Vec<Node>,
    /// The index of each node, by id key.
    keys: HashMap<IdKey, usize>,
    /// The number of nodes with a connection request.
    accepted: usize,
    connects_left: i32,
    disconnects_left: i32,
}

/// One end of a connection, with its objects in drop order.
#[derive(Default)]
struct Node {
    connected: bool,
    /// The queue pair of a closed connection.
    errored: Option<Qp<Errored>>,
    qp: Option<Qp<Rts>>,
    parts: Option<Parts>,
    id: Option<CmId>,
}

/// All objects except the queue pair.
struct Parts {
    message: Option<Message>,
    send_cq: Cq,
    recv_cq: Cq,
    _pd: Pd,
}

/// A node's completion queue: for sends or for receives.
#[derive(Clone, Copy)]
enum Which {
    Send,
    Recv,
}

impl Node {
    /// Ends the connection. The queue pair stops sending and its posted requests complete.
    ///
    /// As in C, a connection that has already ended is not a failure.
    fn disconnect(&mut self) {
        match self.qp.take().map(Qp::to_error) {
            Some(Ok(qp)) => self.errored = Some(qp),
            Some(Err(refused)) => self.qp = Some(refused.handle),
            None => {}
        }
        if let Some(id) = &self.id {
            let _ = id.disconnect();
        }
    }
}

impl Test<'_> {
    fn run_server(&mut self) -> Result {
        self.console.say("cmatose: starting server\n");
        let listener = self
            .channel
            .create_id(self.options.space())
            .map_err(|error| self.call_failed("listen request failed", &error))?;
        let served = self.serve(&listener);
        drop(listener);
        served
    }

    fn serve(&mut self, listener: &CmId) -> Result {
        let options = self.options;
        let found =
            get_rdma_addr(options.source.as_deref(), None, &options.port, &options.hints, self.console);
        let source = found.map_err(Ret)?.source;
        // Passive hints always find an address to listen on.
        if let Some(source) = source {
            listener.bind_addr(source).map_err(|error| self.call_failed("bind address failed", &error))?;
        }
        listener.listen(0).map_err(|error| self.call_failed("failure trying to listen", &error))?;
        self.events_until(|test| test.connects_left == 0, "connect")?;
        if options.load.is_some() {
            self.console.say("initiating data transfers\n");
            self.post_sends()?;
            self.console.say("completing sends\n");
            self.poll_cqs(Which::Send)?;
            self.console.say("receiving data transfers\n");
            self.poll_cqs(Which::Recv)?;
            self.console.say("data transfers complete\n");
        }
        if options.migrate {
            self.migrate(Some(listener))?;
        }
        self.console.say("cmatose: disconnecting\n");
        self.disconnect();
        let ended = self.events_until(|test| test.disconnects_left == 0, "disconnect");
        self.console.say("disconnected\n");
        ended
    }

    fn run_client(&mut self) -> Result {
        self.console.say("cmatose: starting client\n");
        let options = self.options;
        let found = get_rdma_addr(
            options.source.as_deref(),
            options.server.as_deref(),
            &options.port,
            &options.hints,
            self.console,
        );
        let found = found.map_err(Ret)?;
        self.console.say("cmatose: connecting\n");
        for at in 0..self.nodes.len() {
            let (Some(id), Some(destination)) = (&self.nodes[at].id, found.destination) else { continue };
            id.resolve_addr(found.source, destination, RESOLVE)
                .map_err(|error| self.call_failed("failure getting addr", &error))?;
        }
        let mut transferred = self.events_until(|test| test.connects_left == 0, "connect");
        if transferred.is_ok() {
            transferred = self.transfer();
            match transferred {
                Ok(()) if options.migrate => self.migrate(None)?,
                Ok(()) => {}
                // After a failed transfer, this side ends all connections.
                Err(_) => self.disconnect(),
            }
        }
        let ended = self.events_until(|test| test.disconnects_left == 0, "disconnect");
        ended.and(transferred)
    }

    /// Receives the server's messages and sends the replies.
    fn transfer(&mut self) -> Result {
        if self.options.load.is_some() {
            self.console.say("receiving data transfers\n");
            self.poll_cqs(Which::Recv)?;
            self.console.say("sending replies\n");
            self.post_sends()?;
            self.console.say("data transfers complete\n");
        }
        Ok(())
    }

    /// Handles events until `done` returns true.
    fn events_until(&mut self, done: impl Fn(&Self) -> bool, phase: &str) -> Result {
        while !done(self) {
            self.console.flush();
            match self.channel.next_event() {
                Ok(event) => self.handle(event)?,
                Err(error) => {
                    let call = format!("cmatose: failure in rdma_get_cm_event in {phase} events");
                    cm::perror(call, &error, self.console);
                    return Err(Ret(error.errno.raw()));
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result {
        if let EventKind::ConnectRequest(request) = event.kind {
            return self.on_request(request.id);
        }
        let Some(&at) = self.keys.get(&event.id) else { return Ok(()) };
        match event.kind {
            EventKind::AddrResolved => {
                let resolved = self.on_address(at);
                self.connecting(resolved)
            }
            EventKind::RouteResolved => {
                let connected = self.on_route(at);
                self.connecting(connected)
            }
            EventKind::Established(_) => {
                let node = &mut self.nodes[at];
                node.qp = node.id.as_ref().and_then(CmId::take_qp);
                node.connected = true;
                self.connects_left -= 1;
                self.disconnects_left += 1;
                Ok(())
            }
            EventKind::AddrError
            | EventKind::RouteError
            | EventKind::ConnectError
            | EventKind::Unreachable
            | EventKind::Rejected(_) => {
                self.connects_left -= 1;
                failed(NAME, event, self.console)
            }
            EventKind::Disconnected => {
                self.nodes[at].disconnect();
                self.disconnects_left -= 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Counts a failed connection.
    fn connecting(&mut self, result: Result) -> Result {
        if result.is_err() {
            self.connects_left -= 1;
        }
        result
    }

    fn on_address(&mut self, at: usize) -> Result {
        let Some(id) = &self.nodes[at].id else { return Ok(()) };
        if let Some(tos) = self.options.tos
            && let Err(error) = id.set_tos(tos)
        {
            call_failed(NAME, "set TOS option failed", &error, self.console);
        }
        set_ack_timeout(id, self.options, self.console);
        id.resolve_route(RESOLVE).map_err(|error| self.call_failed("resolve route failed", &error))
    }

    fn on_route(&mut self, at: usize) -> Result {
        let Node { id: Some(id), parts, .. } = &mut self.nodes[at] else { return Ok(()) };
        let load = self.options.load;
        let (made, mut qp) = Parts::from_id(id, load, self.console)?;
        load.post_recvs(made.message.as_ref(), &mut qp, self.console)?;
        *parts = Some(made);
        let param = ConnParam {
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 5,
            rnr_retry_count: 0,
            ..ConnParam::default()
        };
        id.connect(qp, &param).map_err(|error| call_failed(NAME, "failure connecting", &error, self.console))
    }

    fn on_request(&mut self, id: CmId) -> Result {
        if self.accepted == self.nodes.len() {
            return self.reject(id, Ret::negative(Errno::NOMEM));
        }
        let at = self.accepted;
        self.accepted += 1;
        match accept(&id, self.options, self.console) {
            Ok(parts) => {
                self.keys.insert(id.key(), at);
                self.nodes[at] = Node { parts: Some(parts), id: Some(id), ..Node::default() };
                Ok(())
            }
            Err(status) => {
                self.connects_left -= 1;
                self.reject(id, status)
            }
        }
    }

    fn reject(&mut self, id: CmId, status: Ret) -> Result {
        self.console.say("cmatose: failing connection request\n");
        // Dropping the id also rejects the request. As in C, a failure is ignored.
        let _ = id.reject(&[]);
        Err(status)
    }

    /// Ends all connections.
    fn disconnect(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.connected) {
            node.connected = false;
            node.disconnect();
        }
    }

    fn post_sends(&mut self) -> Result {
        let load = self.options.load;
        for node in self.nodes.iter_mut().filter(|node| node.connected) {
            let Node { qp: Some(qp), parts: Some(parts), .. } = node else { continue };
            load.post_sends(parts.message.as_ref(), qp, To::Peer, SendFlags::empty(), self.console)?;
        }
        Ok(())
    }

    fn poll_cqs(&mut self, which: Which) -> Result {
        self.console.flush();
        for at in 0..self.nodes.len() {
            let mut polls = Polls::new(self.options.load);
            while let Node { connected: true, parts: Some(parts), .. } = &mut self.nodes[at] {
                let cq = match which {
                    Which::Send => &mut parts.send_cq,
                    Which::Recv => &mut parts.recv_cq,
                };
                match polls.poll(cq, self.console)? {
                    Polled::Done => break,
                    Polled::Some(_) | Polled::None => {}
                    // If a peer ends, sends to it complete with an error.
                    Polled::Idle => self.look()?,
                }
            }
        }
        Ok(())
    }

    /// Handles an event, if there is one.
    fn look(&mut self) -> Result {
        match self.channel.try_next_event() {
            Ok(Some(event)) => self.handle(event),
            Ok(None) => Ok(()),
            Err(error) => {
                self.console.reason(&error);
                Err(Ret(error.errno.raw()))
            }
        }
    }

    /// Moves all ids to another event channel, which replaces the current one.
    fn migrate(&mut self, listener: Option<&CmId>) -> Result {
        self.console.say("migrating to new event channel\n");
        let channel = cm::create_event_channel(self.console).map_err(|_| Ret::CALL)?;
        let ids = listener.into_iter().chain(self.nodes.iter().filter_map(|node| node.id.as_ref()));
        for id in ids {
            id.migrate(&channel)
                .map_err(|error| call_failed(NAME, "failure migrating to channel", &error, self.console))?;
        }
        self.channel = channel;
        Ok(())
    }

    fn call_failed(&mut self, words: &str, error: &verbs::Error) -> Ret {
        call_failed(NAME, words, error, self.console)
    }
}

impl Parts {
    /// Creates the objects and the queue pair of an id with a device.
    fn from_id(id: &CmId, load: Load, console: &mut Console) -> Result<(Self, Qp<verbs::state::Init>)> {
        let (context, pd) = alloc_pd(NAME, id, console)?;
        let depth = if load.is_some() { load.capacity() } else { 1 };
        let send_cq = create_cq(NAME, &context, depth, console)?;
        let recv_cq = create_cq(NAME, &context, depth, console)?;
        let mut init = QpInit { sq_sig_all: true, ..QpInit::new(QpType::RC, &send_cq) };
        init.recv_cq = recv_cq.handle();
        init.cap = QpCap { max_send_wr: depth, max_recv_wr: depth, ..init.cap };
        let qp = id
            .create_qp(&pd, &init)
            .map_err(|error| call_failed(NAME, "unable to create QP", &error, console))?;
        let message = load.message(NAME, &pd, 0, console)?;
        Ok((Self { message, send_cq, recv_cq, _pd: pd }, qp))
    }
}

fn accept(id: &CmId, options: &Options, console: &mut Console) -> Result<Parts> {
    let (parts, mut qp) = Parts::from_id(id, options.load, console)?;
    set_ack_timeout(id, options, console);
    options.load.post_recvs(parts.message.as_ref(), &mut qp, console)?;
    id.accept(qp, &ConnParam::default())
        .map_err(|error| call_failed(NAME, "failure accepting", &error, console))?;
    Ok(parts)
}

/// Sets the acknowledgement timeout. As in C, a timeout that the kernel rejects is reported, and
/// the run continues.
fn set_ack_timeout(id: &CmId, options: &Options, console: &mut Console) {
    if let Some(timeout) = options.ack_timeout
        && let Err(error) = id.set_ack_timeout(timeout)
    {
        call_failed(NAME, "set ack timeout option failed", &error, console);
    }
}

#[cfg(test)]
mod tests {
    use rdmacm::Family;

    use super::*;

    fn parsed(args: &[&str]) -> (Result<Options, Failed>, String, String) {
        let mut console = Console::captured("prog");
        let options = Options::parse(args.iter().map(Into::into).collect(), &mut console);
        (options, console.said(), console.complaints())
    }

    #[test]
    fn the_options_have_the_defaults_and_widths_of_c() {
        let (options, ..) = parsed(&[]);
        let passive = Hints { passive: true, ..Options::new().hints };
        assert_eq!(options, Ok(Options { hints: passive, ..Options::new() }));
        let line = "-s h -b b -f gid -P ib -c 3 -C 7 -S 1000 -t 0x1ff -p 1 -m -a 010";
        let (options, said, complaints) = parsed(&line.split(' ').collect::<Vec<_>>());
        let options = options.expect("options");
        assert_eq!((said, complaints), (String::new(), String::new()));
        assert_eq!((options.connections, options.load), (3, Load { count: 7, size: 1000 }));
        assert_eq!((options.tos, options.ack_timeout, options.migrate), (Some(0xff), Some(8), true));
        assert_eq!((options.hints.family, options.space()), (Some(Family::Ib), PortSpace::IB));
        assert!(!options.hints.passive);
    }

    #[test]
    fn messages_of_no_bytes_are_no_messages() {
        let (options, ..) = parsed(&["-S", "0"]);
        assert_eq!(options.expect("options").load, Load { count: 0, size: 0 });
    }

    #[test]
    fn what_is_unknown_is_warned_of_or_answered_with_the_usage() {
        let (options, said, complaints) = parsed(&["-f", "x", "-P", "udp"]);
        assert!(options.is_ok());
        assert_eq!(said, "");
        let warnings = "Warning: unknown address format\nWarning: unknown port space format\n";
        assert_eq!(complaints, warnings);
        let (options, said, complaints) = parsed(&["-h"]);
        assert_eq!((options, said), (Err(Failed), format!("usage: prog\n{USAGE}")));
        assert_eq!(complaints, "prog: invalid option -- 'h'\n");
    }
}
