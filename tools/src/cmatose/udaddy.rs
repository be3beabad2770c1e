//! `udaddy`: `-c` datagram services that find each other by address, with messages in both
//! directions.
//!
//! ```text
//!   server   requests ─► accept ─► poll receives ─► reply to the sender ─► poll sends
//!   client   resolve ─► look up ─► send ─► poll receives
//! ```
//!
//! The client gets its peer from the event. The server replies to the sender of the first message,
//! with the queue pair number from the immediate data.
//!
//! # References
//! `udaddy(1)`

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rdmacm::{CmId, ConnParam, Event, EventChannel, EventKind, Hints, IdKey, Peer, PeerUd, PortSpace};
use verbs::{Errno, SendFlags};

use super::datagrams::Datagrams;
use super::load::{Load, Polled, Polls};
use super::{Result, Ret, allocate, atoi, begins, byte, call_failed, channel, end, failed, parse, program};
use crate::cm::address::{get_rdma_addr, take_format};
use crate::console::{Console, Failed};
use crate::ctext::strtol;
use crate::getopt::{Opt, Spec};

const SPEC: Spec = Spec::new("s:b:c:C:S:t:p:P:f:", &[]);

const USAGE: &str = "\
\t[-s server_address]
\t[-b bind_address]
\t[-f address_format]
\t    name, ip, ipv6, or gid
\t[-P port_space]
\t    udp or ipoib
\t[-c connections]
\t[-C message_count]
\t[-S message_size]
\t[-t type_of_service]
\t[-p port_space - 0x111 for UDP (default), 0x2 for IPOIB]
";

/// The name used in the program's output.
const NAME: &str = "udaddy";

/// The fixed port number; `udaddy` has no option to change it.
const PORT: &str = "7174";

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
}

impl Options {
    fn new() -> Self {
        Self {
            server: None,
            source: None,
            hints: Hints { port_space: Some(PortSpace::UDP), ..Hints::default() },
            connections: 1,
            load: Load::DEFAULT,
            tos: None,
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
            b'c' => self.connections = atoi(&arg),
            b'C' => self.load.count = atoi(&arg),
            b'S' => self.load.size = atoi(&arg),
            b't' => self.tos = Some(byte(&arg)),
            b'p' => self.hints.port_space = Some(PortSpace(strtol(arg.as_bytes()) as u16)),
            b'f' => take_format(&arg, &mut self.hints, console),
            b'P' if begins(&arg, "ipoib") => self.hints.port_space = Some(PortSpace::IPOIB),
            b'P' if begins(&arg, "udp") => {}
            b'P' => console.complain("Warning: unknown port space format"),
            _ => return None,
        }
        Some(())
    }

    fn space(&self) -> PortSpace {
        self.hints.port_space.unwrap_or(PortSpace::UDP)
    }
}

/// Runs the program with its command line and returns the exit status.
pub fn main(args: impl Iterator<Item = OsString>) -> u8 {
    program("udaddy", args, Options::parse, run)
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
    let mut test = Test { options, console, channel, nodes, keys, accepted: 0, connects_left };
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
}

/// A service, with its objects in drop order.
#[derive(Default)]
struct Node {
    connected: bool,
    datagrams: Option<Datagrams>,
    id: Option<CmId>,
}

impl Test<'_> {
    fn run_server(&mut self) -> Result {
        self.console.say("udaddy: starting server\n");
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
        let source = options.source.as_deref();
        let found = get_rdma_addr(source, None, OsStr::new(PORT), &options.hints, self.console);
        // Passive hints always find an address to listen on.
        if let Some(source) = found.map_err(Ret)?.source {
            listener.bind_addr(source).map_err(|error| self.call_failed("bind address failed", &error))?;
        }
        listener.listen(0).map_err(|error| self.call_failed("failure trying to listen", &error))?;
        // As in C, failed requests do not make the server fail.
        let connected = self.connect_events();
        if !options.load.is_some() {
            return Ok(());
        }
        if connected.is_err() && !self.nodes.iter().any(|node| node.connected) {
            self.console.reason("no request was accepted, so that there is nothing to receive");
        }
        self.console.say("receiving data transfers\n");
        self.poll_cqs()?;
        self.console.say("sending replies\n");
        self.post_sends(SendFlags::SIGNALED)?;
        self.poll_cqs()?;
        self.console.say("data transfers complete\n");
        Ok(())
    }

    fn run_client(&mut self) -> Result {
        self.console.say("udaddy: starting client\n");
        let options = self.options;
        let found = get_rdma_addr(
            options.source.as_deref(),
            options.server.as_deref(),
            OsStr::new(PORT),
            &options.hints,
            self.console,
        );
        let found = found.map_err(Ret)?;
        self.console.say("udaddy: connecting\n");
        for at in 0..self.nodes.len() {
            let (Some(id), Some(destination)) = (&self.nodes[at].id, found.destination) else { continue };
            id.resolve_addr(found.source, destination, RESOLVE)
                .map_err(|error| self.call_failed("failure getting addr", &error))?;
        }
        self.connect_events()?;
        if options.load.is_some() {
            self.console.say("initiating data transfers\n");
            self.post_sends(SendFlags::empty())?;
            self.console.say("receiving data transfers\n");
            self.poll_cqs()?;
            self.console.say("data transfers complete\n");
        }
        Ok(())
    }

    fn connect_events(&mut self) -> Result {
        while self.connects_left != 0 {
            self.console.flush();
            let event = self.channel.next_event().map_err(|error| {
                self.console.reason(error);
                Ret::CALL
            })?;
            self.handle(event)?;
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result {
        if let EventKind::ConnectRequest(request) = event.kind {
            return self.on_request(request.id);
        }
        let Some(&at) = self.keys.get(&event.id) else { return Ok(()) };
        let result = match &event.kind {
            EventKind::AddrResolved => self.on_address(at),
            EventKind::RouteResolved => self.on_route(at),
            EventKind::Established(Peer::Ud(peer)) => self.on_service(at, peer),
            EventKind::AddrError
            | EventKind::RouteError
            | EventKind::ConnectError
            | EventKind::Unreachable
            | EventKind::Rejected(_) => {
                self.connects_left -= 1;
                return failed(NAME, event, self.console);
            }
            _ => return Ok(()),
        };
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
        id.resolve_route(RESOLVE).map_err(|error| self.call_failed("resolve route failed", &error))
    }

    fn on_route(&mut self, at: usize) -> Result {
        let Node { id: Some(id), datagrams, .. } = &mut self.nodes[at] else { return Ok(()) };
        *datagrams = Some(datagrams_of(id, self.options.load, self.console)?);
        id.connect_with(&PARAM).map_err(|error| call_failed(NAME, "failure connecting", &error, self.console))
    }

    /// Stores the address of the resolved service.
    fn on_service(&mut self, at: usize, peer: &PeerUd) -> Result {
        let node = &mut self.nodes[at];
        let Some(datagrams) = &mut node.datagrams else { return Ok(()) };
        datagrams.send_to(NAME, peer, self.console)?;
        node.connected = true;
        self.connects_left -= 1;
        Ok(())
    }

    fn on_request(&mut self, id: CmId) -> Result {
        if self.accepted == self.nodes.len() {
            return self.reject(id, Ret::negative(Errno::NOMEM));
        }
        let at = self.accepted;
        self.accepted += 1;
        self.connects_left -= 1;
        match accept(&id, self.options.load, self.console) {
            Ok(datagrams) => {
                self.nodes[at] = Node { connected: true, datagrams: Some(datagrams), id: Some(id) };
                Ok(())
            }
            Err(status) => self.reject(id, status),
        }
    }

    fn reject(&mut self, id: CmId, status: Ret) -> Result {
        self.console.say("udaddy: failing connection request\n");
        // Dropping the id also rejects the request. As in C, a failure is ignored.
        let _ = id.reject(&[]);
        Err(status)
    }

    fn post_sends(&mut self, flags: SendFlags) -> Result {
        for node in self.nodes.iter_mut().filter(|node| node.connected) {
            if let Some(datagrams) = &mut node.datagrams {
                datagrams.post_sends(self.options.load, flags, self.console)?;
            }
        }
        Ok(())
    }

    /// Waits for all messages. A node without a peer replies to the first sender.
    fn poll_cqs(&mut self) -> Result {
        self.console.flush();
        for node in self.nodes.iter_mut().filter(|node| node.connected) {
            let Node { datagrams: Some(datagrams), id: Some(id), .. } = node else { continue };
            let port_num = id.port_num().ok().flatten();
            let mut polls = Polls::new(self.options.load);
            while datagrams.poll(NAME, &mut polls, port_num, self.console)? != Polled::Done {}
        }
        Ok(())
    }

    fn call_failed(&mut self, words: &str, error: &verbs::Error) -> Ret {
        call_failed(NAME, words, error, self.console)
    }
}

/// Creates an id's objects and posts receives for the peer's messages.
fn datagrams_of(id: &CmId, load: Load, console: &mut Console) -> Result<Datagrams> {
    load.fits(NAME, id, console)?;
    let mut datagrams = Datagrams::new(NAME, id, load, true, console)?;
    datagrams.post_recvs(load, console)?;
    Ok(datagrams)
}

fn accept(id: &CmId, load: Load, console: &mut Console) -> Result<Datagrams> {
    let datagrams = datagrams_of(id, load, console)?;
    id.accept_with(&ConnParam { qp_num: datagrams.qp.qp_num(), ..PARAM })
        .map_err(|error| call_failed(NAME, "failure accepting", &error, console))?;
    Ok(datagrams)
}

/// The connection parameters. All are zero, as in C, because datagrams do not use them.
const PARAM: ConnParam<'static> = ConnParam {
    private_data: &[],
    responder_resources: 0,
    initiator_depth: 0,
    flow_control: false,
    retry_count: 0,
    rnr_retry_count: 0,
    min_rnr_timer: None,
    srq: false,
    qp_num: 0,
};

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> (Result<Options, Failed>, String, String) {
        let mut console = Console::captured("prog");
        let options = Options::parse(args.iter().map(Into::into).collect(), &mut console);
        (options, console.said(), console.complaints())
    }

    #[test]
    fn the_options_have_the_defaults_and_widths_of_c() {
        let passive = Hints { passive: true, ..Options::new().hints };
        assert_eq!(parsed(&[]).0, Ok(Options { hints: passive, ..Options::new() }));
        let line = "-s h -b b -f ip -c 3 -C 7 -S 1000 -t 32 -p 0x2";
        let (options, said, complaints) = parsed(&line.split(' ').collect::<Vec<_>>());
        let options = options.expect("options");
        assert_eq!((said, complaints), (String::new(), String::new()));
        assert_eq!((options.connections, options.load), (3, Load { count: 7, size: 1000 }));
        assert_eq!((options.space(), options.hints.numeric_host), (PortSpace::IPOIB, true));
        assert_eq!((options.tos, options.hints.passive), (Some(32), false));
    }

    #[test]
    fn the_port_space_has_a_name_and_a_number() {
        for (args, space) in [
            (["-P", "IPoIB"], PortSpace::IPOIB),
            (["-P", "udp"], PortSpace::UDP),
            (["-p", "0x106"], PortSpace::TCP),
        ] {
            let (options, _, complaints) = parsed(&args);
            assert_eq!((options.expect("options").space(), &*complaints), (space, ""));
        }
        let (options, _, complaints) = parsed(&["-P", "tcp"]);
        assert_eq!(options.expect("options").space(), PortSpace::UDP);
        assert_eq!(complaints, "Warning: unknown port space format\n");
    }

    #[test]
    fn misuse_is_answered_with_the_usage() {
        let (options, said, complaints) = parsed(&["-m"]);
        assert_eq!((options, said), (Err(Failed), format!("usage: prog\n{USAGE}")));
        assert_eq!(complaints, "prog: invalid option -- 'm'\n");
    }
}
