//! `mckey`: datagrams to the members of a multicast group.
//!
//! ```text
//!   receiver   resolve ─► receives ─► join ─► 3 seconds ─► poll receives ─► leave
//!   sender     resolve ─────────────► join ─► 3 seconds ─► send, poll ────► leave
//! ```
//!
//! A multicast sender gets no replies, so it cannot detect a receiver. As in C, both sides
//! therefore wait after joining, so that the other side can join and switches forward the group's
//! packets.
//!
//! The sender waits until its messages have left. The C program destroys its queue pair at once, so
//! messages are lost if the device sends in the background, like rxe on Linux 6.12 and 7.2.
//!
//! # References
//! `mckey(1)`

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rdmacm::{
    Address, CmId, Event, EventChannel, EventKind, GroupKey, Hints, IbAddress, IdKey, PeerUd, PortSpace,
};
use verbs::{Errno, Error, Gid, SendFlags};

use super::datagrams::Datagrams;
use super::load::{Load, Polled, Polls};
use super::{Result, Ret, allocate, atoi, call_failed, channel, end, failed, parse, program};
use crate::cm::address::rdma_getaddrinfo;
use crate::console::{Console, Failed, strerror};
use crate::ctext::{Ntop, strtol};
use crate::getopt::{Opt, Spec};

const SPEC: Spec = Spec::new("m:M:sb:c:C:S:p:ol", &[]);

const USAGE: &str = "\
\t-m multicast_address
\t[-M unmapped_multicast_address]
\t replaces -m and requires -b
\t[-s(ender)]
\t[-b bind_address]
\t[-c connections]
\t[-C message_count]
\t[-S message_size]
\t[-p port_space - 0x111 for UDP (default), 0x2 for IPOIB]
\t[-o join as a send-only full-member]
\t[-l join without multicast loopback]
";

/// The name used in the program's output.
const NAME: &str = "mckey";

/// The timeout of address resolution.
const RESOLVE: Duration = Duration::from_millis(2000);

/// The time given to switches and other members after the join.
const SETTLE: Duration = Duration::from_secs(3);

/// The command-line options.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Options {
    group: Option<OsString>,
    /// Whether the group is a GID instead of an IP address.
    is_unmapped: bool,
    is_sender: bool,
    source: Option<OsString>,
    connections: i32,
    load: Load,
    space: PortSpace,
    send_only: bool,
    loopback: bool,
}

impl Options {
    const fn new() -> Self {
        Self {
            group: None,
            is_unmapped: false,
            is_sender: false,
            source: None,
            connections: 1,
            load: Load::DEFAULT,
            space: PortSpace::UDP,
            send_only: false,
            loopback: true,
        }
    }

    /// Parses the command line.
    ///
    /// # Errors
    /// Fails if the command line is invalid; the error has been reported.
    fn parse(args: Vec<OsString>, console: &mut Console) -> Result<Self, Failed> {
        let mut options = Self::new();
        parse(SPEC, USAGE, args, console, |option, _| options.take(option))?;
        if options.is_unmapped && options.source.is_none() {
            console.say("unmapped multicast address requires binding to source address\n");
            return Err(Failed);
        }
        options.load = options.load.of_run();
        Ok(options)
    }

    fn take(&mut self, Opt { val, arg }: Opt) -> Option<()> {
        match val {
            b'm' => self.group = Some(arg),
            b'M' => (self.is_unmapped, self.group) = (true, Some(arg)),
            b's' => self.is_sender = true,
            b'b' => self.source = Some(arg),
            b'c' => self.connections = atoi(&arg),
            b'C' => self.load.count = atoi(&arg),
            b'S' => self.load.size = atoi(&arg),
            b'p' => self.space = PortSpace(strtol(arg.as_bytes()) as u16),
            b'o' => self.send_only = true,
            b'l' => self.loopback = false,
            _ => return None,
        }
        Some(())
    }
}

/// Runs the program with its command line and returns the exit status.
pub fn main(args: impl Iterator<Item = OsString>) -> u8 {
    program("mckey", args, Options::parse, run)
}

fn run(options: &Options, console: &mut Console) -> Result<u8, u8> {
    let channel = channel(console)?;
    let nodes = allocate(NAME, options.connections, console, || {
        let id = channel.create_id(options.space)?;
        Ok(Node { connected: false, group: None, attached: None, datagrams: None, id })
    })?;
    let keys = nodes.iter().enumerate().map(|(at, node)| (node.id.key(), at)).collect();
    let connects_left = options.connections;
    let mut test = Test { options, console, channel, nodes, keys, connects_left, errno: None };
    let result = test.run();
    test.console.say("test complete\n");
    test.nodes.clear();
    Ok(end(result, test.console))
}

/// The state of one run of `mckey`: its members of the group, options and output.
struct Test<'a> {
    options: &'a Options,
    console: &'a mut Console,
    channel: EventChannel,
    nodes: Vec<Node>,
    /// The index of each node, by id key.
    keys: HashMap<IdKey, usize>,
    connects_left: i32,
    /// The errno of the last failed join.
    errno: Option<Errno>,
}

/// A member of the group, with its objects in drop order.
struct Node {
    connected: bool,
    group: Option<GroupKey>,
    /// The GID and LID of the attached group.
    attached: Option<(Gid, u16)>,
    datagrams: Option<Datagrams>,
    id: CmId,
}

impl Test<'_> {
    fn run(&mut self) -> Result {
        let options = self.options;
        self.console
            .say(format_args!("mckey: starting {}\n", if options.is_sender { "client" } else { "server" }));
        let source = match &options.source {
            Some(source) => Some(address(Some(source), self.console)?),
            None => None,
        };
        let group = self.group()?;
        self.console.say("mckey: joining\n");
        for at in 0..self.nodes.len() {
            if let Some(source) = source {
                self.nodes[at]
                    .id
                    .bind_addr(source)
                    .map_err(|error| self.call_failed("addr bind failure", &error))?;
            }
            if options.is_unmapped {
                self.join(at, group).inspect_err(|_| {
                    // In C, errno still has the value from the failed call.
                    if let Some(errno) = self.errno {
                        let text = strerror(errno);
                        self.console.complain(format_args!("mckey: resolve addr failure: {text}"));
                    }
                })?;
            } else {
                self.nodes[at]
                    .id
                    .resolve_addr(source, group, RESOLVE)
                    .map_err(|error| self.call_failed("resolve addr failure", &error))?;
            }
        }
        let transferred = self.transfer(group);
        // As in C, the run's result is the result of the last member that leaves.
        self.leave().unwrap_or(transferred)
    }

    /// Joins the group, then sends or receives the messages.
    fn transfer(&mut self, group: Address) -> Result {
        while self.connects_left != 0 {
            self.console.flush();
            let event = self.channel.next_event().map_err(|error| self.no_event(&error))?;
            self.handle(event, group)?;
        }
        let settled = Instant::now() + SETTLE;
        self.console.flush();
        loop {
            let left = settled.saturating_duration_since(Instant::now());
            match self.channel.next_event_within(left) {
                Ok(Some(event)) => self.tell(&event),
                Ok(None) => break,
                Err(error) => return Err(self.no_event(&error)),
            }
        }
        let load = self.options.load;
        if !load.is_some() {
            return Ok(());
        }
        if self.options.is_sender {
            self.console.say("initiating data transfers\n");
            for node in self.nodes.iter_mut().filter(|node| node.connected) {
                if let Some(datagrams) = &mut node.datagrams {
                    datagrams.post_sends(load, SendFlags::SIGNALED, self.console)?;
                }
            }
        } else {
            self.console.say("receiving data transfers\n");
        }
        self.poll_cqs()?;
        self.console.say("data transfers complete\n");
        Ok(())
    }

    fn handle(&mut self, event: Event, group: Address) -> Result {
        let Some(&at) = self.keys.get(&event.id) else { return Ok(()) };
        match &event.kind {
            EventKind::AddrResolved => self.join(at, group),
            EventKind::MulticastJoin { ud, .. } => self.on_join(at, ud),
            EventKind::AddrError | EventKind::RouteError | EventKind::MulticastError { .. } => {
                self.connects_left -= 1;
                failed(NAME, event, self.console)
            }
            _ => Ok(()),
        }
    }

    /// Creates the objects of an id with a device, and starts to join.
    fn join(&mut self, at: usize, group: Address) -> Result {
        let joining = self.start_to_join(at, group);
        if joining.is_err() {
            self.connects_left -= 1;
        }
        joining
    }

    fn start_to_join(&mut self, at: usize, group: Address) -> Result {
        let Options { load, is_sender, send_only, loopback, .. } = *self.options;
        let Node { id, datagrams, group: member, .. } = &mut self.nodes[at];
        load.fits(NAME, id, self.console)?;
        let made = datagrams.insert(Datagrams::new(NAME, id, load, loopback, self.console)?);
        if !is_sender {
            made.post_recvs(load, self.console)?;
        }
        let joining = id.join_multicast(group, send_only).map_err(|error| {
            self.errno = Some(error.errno);
            call_failed(NAME, "failure joining", &error, self.console)
        });
        *member = Some(joining?);
        Ok(())
    }

    /// Attaches the queue pair to the group and directs future messages to it.
    fn on_join(&mut self, at: usize, ud: &PeerUd) -> Result {
        let joined = self.attach(at, ud);
        self.connects_left -= 1;
        joined
    }

    fn attach(&mut self, at: usize, ud: &PeerUd) -> Result {
        let node = &mut self.nodes[at];
        let Some(datagrams) = &mut node.datagrams else { return Ok(()) };
        let path = &ud.ah_attr;
        let gid = path.grh.unwrap_or_default().dgid;
        // librdmacm attaches before it reports the event. If attaching fails, it reports an error
        // event.
        if !self.options.send_only {
            if let Err(error) = datagrams.qp.attach_mcast(&gid, path.dlid) {
                self.console.say("mckey: event: RDMA_CM_EVENT_MULTICAST_ERROR, error: -1\n");
                self.console.reason(error);
                return Err(Ret::CALL);
            }
            node.attached = Some((gid, path.dlid));
        }
        self.console.say(format_args!(
            "mckey: joined dgid: {} mlid 0x{:x} sl {}\n",
            Ntop(gid.0),
            path.dlid,
            path.sl
        ));
        datagrams.send_to(NAME, ud, self.console)?;
        node.connected = true;
        Ok(())
    }

    fn poll_cqs(&mut self) -> Result {
        self.console.flush();
        for at in 0..self.nodes.len() {
            let mut polls = Polls::new(self.options.load);
            while let Node { connected: true, datagrams: Some(datagrams), .. } = &mut self.nodes[at] {
                match datagrams.poll(NAME, &mut polls, None, self.console)? {
                    Polled::Done => break,
                    Polled::Some(_) | Polled::None => {}
                    Polled::Idle => match self.channel.try_next_event() {
                        Ok(Some(event)) => self.tell(&event),
                        Ok(None) => {}
                        Err(error) => return Err(self.no_event(&error)),
                    },
                }
            }
        }
        Ok(())
    }

    /// Leaves the group with all ids. Returns the last id's outcome, if there are ids.
    fn leave(&mut self) -> Option<Result> {
        let mut last = None;
        for node in &mut self.nodes {
            if let (Some(datagrams), Some((gid, lid))) = (&mut node.datagrams, node.attached.take()) {
                // As in C, a failure is ignored, because the queue pair is destroyed next.
                let _ = datagrams.qp.detach_mcast(&gid, lid);
            }
            let left = match node.group.take() {
                Some(group) => node.id.leave_multicast(group),
                None => Err(Error::new("leave_multicast", "", Errno::ADDRNOTAVAIL)),
            };
            last = Some(left.map_err(|error| call_failed(NAME, "failure leaving", &error, self.console)));
        }
        last
    }

    /// Prints an event that arrives after joining.
    fn tell(&mut self, event: &Event) {
        if matches!(event.kind, EventKind::MulticastError { .. } | EventKind::AddrChange) {
            let (name, status) = (event.event_type(), event.status.0);
            self.console.say(format_args!("mckey: event: {name}, status: {status}\n"));
            self.console.flush();
        }
    }

    fn group(&mut self) -> Result<Address> {
        let group = self.options.group.as_deref();
        if !self.options.is_unmapped {
            return address(group, self.console);
        }
        // As in C, an invalid address becomes all zeros, which the subnet manager replaces.
        let gid = group.and_then(OsStr::to_str).and_then(|text| text.parse::<Ipv6Addr>().ok());
        Ok(IbAddress { gid: gid.map_or(Gid::ZERO, Gid::from), ..IbAddress::default() }.into())
    }

    fn no_event(&mut self, error: &Error) -> Ret {
        self.console.reason(error);
        Ret::CALL
    }

    fn call_failed(&mut self, words: &str, error: &Error) -> Ret {
        call_failed(NAME, words, error, self.console)
    }
}

/// Looks up a host.
fn address(host: Option<&(impl AsRef<OsStr> + ?Sized)>, console: &mut Console) -> Result<Address> {
    let found = rdma_getaddrinfo(host.map(AsRef::as_ref), None, &Hints::default());
    let found = found.map_err(|unresolved| {
        console.say(format_args!(
            "getaddrinfo failed ({}) - invalid hostname or IP address\n",
            unresolved.text()
        ));
        console.reason(unresolved.reason);
        Ret(unresolved.code)
    })?;
    // Without passive hints, the result is a destination.
    found.destination.ok_or(Ret::CALL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> (Result<Options, Failed>, String, String) {
        let mut console = Console::captured("prog");
        let options = Options::parse(args.iter().map(Into::into).collect(), &mut console);
        (options, console.said(), console.complaints())
    }

    #[test]
    fn the_options_have_the_defaults_of_c() {
        assert_eq!(parsed(&[]).0, Ok(Options::new()));
        let line = "-M ff0e::1 -s -b 10.0.0.1 -c 3 -C 7 -S 1000 -p 2 -o -l";
        let (options, said, complaints) = parsed(&line.split(' ').collect::<Vec<_>>());
        assert_eq!((said, complaints), (String::new(), String::new()));
        let expected = Options {
            group: Some("ff0e::1".into()),
            is_unmapped: true,
            is_sender: true,
            source: Some("10.0.0.1".into()),
            connections: 3,
            load: Load { count: 7, size: 1000 },
            space: PortSpace::IPOIB,
            send_only: true,
            loopback: false,
        };
        assert_eq!(options, Ok(expected));
    }

    #[test]
    fn a_gid_needs_an_address_to_bind_to() {
        let (options, said, complaints) = parsed(&["-M", "ff0e::1"]);
        let line = "unmapped multicast address requires binding to source address\n";
        assert_eq!((options, &*said, &*complaints), (Err(Failed), line, ""));
    }

    #[test]
    fn misuse_is_answered_with_the_usage() {
        let (options, said, complaints) = parsed(&["-m"]);
        assert_eq!((options, said), (Err(Failed), format!("usage: prog\n{USAGE}")));
        assert_eq!(complaints, "prog: option requires an argument -- 'm'\n");
    }
}
