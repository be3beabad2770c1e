//! Measures clients that connect to a listener while unknown hosts flood it with requests.
//!
//! ```console
//! $ cargo bench -p rdma-cm --bench flood [-- OPTION... [ROW]...]
//! $ cargo xtask vm --kernel 7.2 -- target/release/deps/flood-HASH --bench --rxe --rate 500
//! ```
//!
//! ```text
//!   server: a Listener of all addresses, a datagram service    10.8.0.1   this network namespace
//!   ───────────────────────────── veth ─────────────────────────────────────────────────────────
//!   flood: raw IP packets from 198.18.0.0/15                   10.8.0.2   another one
//!   clients: 100 on one soft device, one each 5 ms
//! ```
//!
//! The listener of each row has a soft device. With `--rxe` it uses an rxe device and the kernel's
//! connection manager, which requires root in a guest. A row's flood starts 1 s before its clients
//! and lasts 12 s. `--rate N` sets the number of requests per second; `--sources N` replaces the
//! rows with one flood from `N` addresses. Without `--bench`, as under `cargo test`, only a short
//! run checks that the program works.
#![deny(unsafe_code)]

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _, stdin};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsRawFd as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ib_cm::cm::{Cm, Config, ConnectParams, Path};
use ib_cm::sim::Rng;
use ib_cm::time::Time;
use ib_cm::wire::{Gid, Message, PortSpace as WireSpace, ServiceId, ip, req, sidr_req};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};
use rdmacm::{ConnParam, Connector, EventChannel, EventKind, Listener, PortSpace};
use roce::wire::icrc::{Flow, Icrc, compute};
use roce::wire::opcode::Opcode;
use roce::wire::packet::Headers;
use roce::wire::psn::Psn;
use roce::wire::{UDP_PORT, bth, deth};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);

/// The first source address of a flood.
const FLOOD: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

/// The port of the listener and of the datagram service.
const PORT: u16 = 7471;

/// The kind of requests that a flood or its clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Connections,
    Services,
}

/// A row of the table: a flood and the clients measured during it.
#[derive(Clone, Copy, Debug)]
struct Row {
    name: &'static str,
    sources: u32,
    flood: Kind,
    clients: Kind,
}

const ROWS: [Row; 8] = [
    row("none", 0, Kind::Connections, Kind::Connections),
    row("one", 1, Kind::Connections, Kind::Connections),
    row("two", 2, Kind::Connections, Kind::Connections),
    row("20", 20, Kind::Connections, Kind::Connections),
    row("4000", 4000, Kind::Connections, Kind::Connections),
    row("sidr", 1, Kind::Services, Kind::Connections),
    row("sidr-to-sidr", 1, Kind::Services, Kind::Services),
    row("sidr-4000", 4000, Kind::Services, Kind::Connections),
];

const fn row(name: &'static str, sources: u32, flood: Kind, clients: Kind) -> Row {
    Row { name, sources, flood, clients }
}

/// The parameters of a run, shared by all rows.
#[derive(Clone, Copy, Debug)]
struct Size {
    clients: u32,
    rate: u32,
    lasts: Duration,
    patience: Duration,
}

/// The time between the starts of two clients.
const INTERVAL: Duration = Duration::from_millis(5);

/// The time between the start of the flood and the first client.
const LEAD: Duration = Duration::from_secs(1);

fn main() -> Result<()> {
    let mut words: Vec<String> = env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("serve") => return serve(),
        Some("outside") => return outside(&words[1..]),
        Some("flood") => return flood(&words[1..]),
        Some("clients") => return clients(&words[1..]),
        _ => {}
    }
    let [full, rxe] = ["--bench", "--rxe"].map(|flag| {
        let before = words.len();
        words.retain(|word| word != flag);
        words.len() < before
    });
    let mut value = |flag: &str| -> Result<Option<u32>> {
        let Some(at) = words.iter().position(|word| word == flag) else { return Ok(None) };
        words.remove(at);
        if at == words.len() {
            return Err(format!("{flag} needs a number").into());
        }
        Ok(Some(words.remove(at).parse()?))
    };
    let (rate, sources) = (value("--rate")?, value("--sources")?);
    let mut size = if full {
        let [lasts, patience] = [12, 60].map(Duration::from_secs);
        Size { clients: 100, rate: 20_000, lasts, patience }
    } else {
        let [lasts, patience] = [2, 20].map(Duration::from_secs);
        Size { clients: 10, rate: 500, lasts, patience }
    };
    size.rate = rate.unwrap_or(size.rate);
    if !rxe && !private_network()? {
        println!("flood: this system permits no network namespace");
        return Ok(());
    }
    println!(
        "{:14} {:>8} {:>9} {:>7} {:>7} {:>7} {:>7} {:>8}",
        "flood", "sent/s", "connected", "in 1 s", "in 10 s", "refused", "failed", "longest"
    );
    let rows = match sources {
        Some(sources) => vec![row("given", sources, Kind::Connections, Kind::Connections)],
        None => {
            let is_wanted = |row: &Row| {
                words.iter().any(|word| word == row.name) || words.is_empty() && (full || row.name == "one")
            };
            ROWS.into_iter().filter(is_wanted).collect()
        }
    };
    for row in rows {
        measure(row, size, rxe)?;
    }
    Ok(())
}

/// Measures one row of the table and prints it.
fn measure(row: Row, size: Size, rxe: bool) -> Result<()> {
    let number = |kind| u32::from(kind == Kind::Services);
    let [lasts, patience] = [size.lasts, size.patience].map(|time| time.as_millis() as u32);
    let numbers =
        [row.sources, number(row.flood), number(row.clients), size.clients, size.rate, lasts, patience];
    let words = numbers.map(|number| number.to_string());
    let mut outside = Part::start("outside", &words, "")?;
    outside.line("outside")?;
    let pid = outside.child.id();
    run(&format!("ip link add flood0 type veth peer name flood1 netns {pid}"))?;
    run(&format!("ip address add {SERVER}/24 dev flood0"))?;
    run("ip link set flood0 up")?;
    run(&format!("ip route add 198.18.0.0/15 via {CLIENT}"))?;
    if rxe {
        run("rdma link add rxe_flood type rxe netdev flood0")?;
    }
    let mut server = Part::start("serve", &[], if rxe { "" } else { "10.8.0.1" })?;
    server.line("serving")?;
    outside.tell()?;
    let sent = outside.line("sent")?;
    let ended = outside.line("ended")?;
    println!("{:14} {sent:>8} {ended}", row.name);
    drop(server);
    if rxe {
        run("rdma link delete rxe_flood")?;
    }
    // The kernel would remove the other end some time after its namespace.
    run("ip link delete flood0")
}

/// A process that runs one part of a row. It is killed at the end of the row.
struct Part {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Part {
    fn start(part: &str, words: &[String], soft: &str) -> Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.arg(part).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        if soft.is_empty() {
            command.env_remove("VERBS_SOFT");
        } else {
            command.env("VERBS_SOFT", soft);
        }
        let mut child = command.spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Self { child, output })
    }

    /// Reads a line that begins with `word` and returns the rest.
    fn line(&mut self, word: &str) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let rest = line.strip_prefix(word).ok_or_else(|| format!("{line:?} instead of {word}"))?;
        Ok(rest.trim_matches('\n').strip_prefix(' ').unwrap_or_default().to_owned())
    }

    /// Sends a line to the part's process, which then continues.
    fn tell(&mut self) -> Result<()> {
        Ok(self.child.stdin.as_mut().ok_or("no input")?.write_all(b"\n")?)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // A part ends when its input ends, unless it hangs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints a line for the parent process.
fn say(line: &str) {
    println!("{line}");
    let _ = std::io::stdout().flush();
}

fn hear() -> Result<()> {
    stdin().read_line(&mut String::new())?;
    Ok(())
}

fn run(line: &str) -> Result<()> {
    let mut words = line.split(' ');
    let status = Command::new(words.next().unwrap_or_default()).args(words).status()?;
    if status.success() { Ok(()) } else { Err(format!("{line}: {status}").into()) }
}

/// Moves this process into a private network namespace, as root of a user namespace if it is not
/// already root. Returns whether the system permits this.
fn private_network() -> Result<bool> {
    let (user, group) = (nix::unistd::getuid(), nix::unistd::getgid());
    if !user.is_root() {
        if unshare(CloneFlags::CLONE_NEWUSER).is_err() {
            return Ok(false);
        }
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    }
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        return Ok(false);
    }
    run("ip link set lo up")?;
    Ok(true)
}

/// Raises the limit on open files for many connections.
fn raise_files() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// Runs the server, which keeps all connections and replies to requests for its datagram service.
fn serve() -> Result<()> {
    raise_files()?;
    let listener = Listener::bind((SERVER, PORT))?;
    let channel = EventChannel::new()?;
    let service = channel.create_id(PortSpace::UDP)?;
    service.bind_addr((SERVER, PORT))?;
    service.listen(0)?;
    say("serving");
    thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok(connection) = listener.accept() {
            kept.push(connection);
        }
    });
    thread::spawn(move || {
        while let Ok(event) = channel.next_event() {
            if let EventKind::ConnectRequest(request) = event.kind {
                // The service's clients need only a queue pair number.
                let param = ConnParam { qp_num: 0x1234, ..ConnParam::default() };
                let _ = request.id.accept_with(&param);
            }
        }
        drop(service);
    });
    hear()
}

/// Runs the flood and the clients, in another network namespace.
fn outside(words: &[String]) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    say("outside");
    hear()?;
    run("ip link set lo up")?;
    run(&format!("ip address add {CLIENT}/24 dev flood1"))?;
    run("ip link set flood1 up")?;
    let mut flood = Part::start("flood", words, "")?;
    flood.line("flooding")?;
    let mut clients = Part::start("clients", words, "10.8.0.2")?;
    clients.line("ready")?;
    thread::sleep(LEAD);
    clients.tell()?;
    say(&format!("sent {}", flood.line("sent")?));
    say(&format!("ended {}", clients.line("ended")?));
    hear()
}

/// Parses the numeric arguments of a part.
fn numbers(words: &[String]) -> Result<[u32; 7]> {
    let numbers: Vec<u32> = words.iter().map(|word| word.parse()).collect::<std::result::Result<_, _>>()?;
    Ok(numbers.try_into().map_err(|_| "seven numbers")?)
}

/// Runs the flood: sends requests at a fixed rate, each for a new connection.
fn flood(words: &[String]) -> Result<()> {
    let [sources, kind, _, _, rate, lasts, _] = numbers(words)?;
    // The packets contain their IP headers, so that no host needs the source addresses.
    let socket = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)?;
    let to = SockaddrIn::from(SocketAddrV4::new(SERVER, 0));
    let template = template()?;
    let mut icrcs = BTreeMap::new();
    say("flooding");
    let (start, lasts) = (Instant::now(), Duration::from_millis(lasts.into()));
    let (mut number, mut sent) = (0_u32, 0_u32);
    while start.elapsed() < lasts && sources > 0 {
        let due = (start.elapsed().as_secs_f64() * f64::from(rate)) as u32;
        if number >= due {
            thread::sleep(Duration::from_millis(1));
        }
        while number < due && start.elapsed() < lasts {
            let from = Ipv4Addr::from(u32::from(FLOOD) + number % sources);
            let mad = if kind == 0 { connection(&template, from, number) } else { service(from, number) };
            let icrc = icrcs.entry(from).or_insert_with(|| {
                let (src, dst) = (IpAddr::from(from), IpAddr::from(SERVER));
                Icrc::new(Flow { src, dst, src_port: UDP_PORT, dst_port: UDP_PORT })
            });
            let packet = packet(&mad, from, icrc, number);
            match sendto(socket.as_raw_fd(), &packet, &to, MsgFlags::empty()) {
                Ok(_) => sent += 1,
                Err(Errno::ENOBUFS | Errno::EAGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
            number += 1;
        }
    }
    let seconds = lasts.as_secs_f64();
    say(&format!("sent {}", (f64::from(sent) / seconds) as u32));
    hear()
}

/// Returns a request as a client would send it.
fn template() -> Result<req::Repr> {
    let path = Path {
        local: Gid::from(mapped(FLOOD)),
        remote: Gid::from(mapped(SERVER)),
        hop_limit: 64,
        packet_life_time: 16,
        ..Path::default()
    };
    let service_id = ServiceId::ip(WireSpace::TCP, PORT);
    let params = ConnectParams { path, service_id, qp_num: 17, ..ConnectParams::default() };
    let mut cm = Cm::new(Config::default(), Rng::new(1));
    cm.connect(Time(0), &params).map_err(|error| format!("{error:?}"))?;
    let request = cm.poll_transmit().ok_or("no request")?;
    match Message::parse(&request.mad) {
        Ok((_, Message::Req(request))) => Ok(request),
        other => Err(format!("{other:?}").into()),
    }
}

fn mapped(address: Ipv4Addr) -> [u8; 16] {
    address.to_ipv6_mapped().octets()
}

fn connection(template: &req::Repr, from: Ipv4Addr, number: u32) -> [u8; 256] {
    let header =
        ip::Repr { source_port: 5555, addresses: ip::Addresses::V4 { source: from, target: SERVER } };
    let mut request = *template;
    request.local_comm_id = number + 1;
    request.local_qpn = (0x1_0000 + number) & 0xff_ffff;
    request.local_ca_guid = u64::from(u32::from(from));
    request.primary.local_gid = mapped(from);
    request.private_data = req::Data::new(&header.emit()).unwrap_or_default();
    Message::from(request).emit(u64::from(number), 0)
}

fn service(from: Ipv4Addr, number: u32) -> [u8; 256] {
    let header =
        ip::Repr { source_port: 5555, addresses: ip::Addresses::V4 { source: from, target: SERVER } };
    let request = sidr_req::Repr {
        request_id: number + 1,
        partition_key: 0xffff,
        service_id: ServiceId::ip(WireSpace::UDP, PORT),
        private_data: sidr_req::Data::new(&header.emit()).unwrap_or_default(),
    };
    Message::from(request).emit(u64::from(number), 0)
}

/// Returns an IP packet with a datagram for queue pair 1. The kernel completes the IP header.
fn packet(mad: &[u8; 256], from: Ipv4Addr, icrc: &Icrc, number: u32) -> [u8; IP_UDP + PAYLOAD] {
    let mut packet = [0; IP_UDP + PAYLOAD];
    let (header, payload) = packet.split_at_mut(IP_UDP);
    let mut put = |at: usize, bytes: &[u8]| header[at..][..bytes.len()].copy_from_slice(bytes);
    put(0, &[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17]);
    put(12, &from.octets());
    put(16, &SERVER.octets());
    put(20, &UDP_PORT.to_be_bytes());
    put(22, &UDP_PORT.to_be_bytes());
    put(24, &(8 + PAYLOAD as u16).to_be_bytes());
    let bth = bth::Repr::new(Opcode::UD_SEND_ONLY, 1, Psn::new(number));
    let deth = Some(deth::Repr { qkey: 0x8001_0000, src_qp: 1 });
    let len = Headers { deth, ..Headers::new(bth) }.emit(payload);
    payload[len..][..mad.len()].copy_from_slice(mad);
    let (covered, end) = payload.split_at_mut(PAYLOAD - 4);
    end.copy_from_slice(&compute(icrc.seed(0, true, PAYLOAD), covered).to_le_bytes());
    packet
}

/// The length of the IP header and the UDP header, in bytes.
const IP_UDP: usize = 20 + 8;

const PAYLOAD: usize = bth::LEN + deth::LEN + 256 + 4;

/// The outcome of a client's attempt to connect.
#[derive(Clone, Debug)]
enum Outcome {
    Connected(Duration),
    Refused(String),
    Failed(String),
}

/// Runs the clients.
fn clients(words: &[String]) -> Result<()> {
    raise_files()?;
    let [_, _, kind, count, _, _, patience] = numbers(words)?;
    let patience = Duration::from_millis(patience.into());
    // Creates the device before the first client starts.
    verbs::devices()?;
    say("ready");
    hear()?;
    let start = Instant::now();
    let outcomes: Vec<_> = thread::scope(|scope| {
        let clients: Vec<_> = (0..count)
            .map(|number| {
                thread::sleep((start + INTERVAL * number).saturating_duration_since(Instant::now()));
                scope.spawn(move || if kind == 0 { connect(patience) } else { ask(patience) })
            })
            .collect();
        clients.into_iter().filter_map(|client| client.join().ok()).collect()
    });
    let mut times = Vec::new();
    let (mut refused, mut failed) = (0, 0);
    for outcome in outcomes {
        match outcome {
            Outcome::Connected(after) => times.push(after),
            Outcome::Refused(why) => {
                refused += 1;
                if refused == 1 {
                    eprintln!("flood: refused: {why}");
                }
            }
            Outcome::Failed(why) => {
                failed += 1;
                if failed == 1 {
                    eprintln!("flood: failed: {why}");
                }
            }
        }
    }
    let within = |limit| times.iter().filter(|time| **time <= Duration::from_secs(limit)).count();
    let longest = times.iter().max().map_or("-".into(), |time| format!("{:.2} s", time.as_secs_f64()));
    say(&format!(
        "ended {:>9} {:>7} {:>7} {refused:>7} {failed:>7} {longest:>8}",
        times.len(),
        within(1),
        within(10)
    ));
    hear()
}

/// Connects a client. A connection stays open until the process exits.
fn connect(patience: Duration) -> Outcome {
    let start = Instant::now();
    let connector = Connector { connect_timeout: patience, ..Connector::default() };
    match connector.connect((SERVER, PORT)) {
        Ok(connection) => {
            let after = start.elapsed();
            // A disconnect must not disturb the measurement.
            std::mem::forget(connection);
            Outcome::Connected(after)
        }
        Err(error) if error.rejection.is_some() => Outcome::Refused(error.to_string()),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

/// Looks up the datagram service.
fn ask(patience: Duration) -> Outcome {
    let start = Instant::now();
    let asked = || -> Result<Outcome> {
        let channel = EventChannel::new()?;
        let id = channel.create_id(PortSpace::UDP)?;
        let next = || -> Result<_> {
            let left = patience.saturating_sub(start.elapsed());
            Ok(channel.next_event_within(left)?.ok_or("no event")?)
        };
        id.resolve_addr(None, SocketAddr::from((SERVER, PORT)), Duration::from_secs(2))?;
        next()?.ok()?;
        id.resolve_route(Duration::from_secs(2))?;
        next()?.ok()?;
        id.connect_with(&ConnParam::default())?;
        let event = next()?;
        Ok(match event.kind {
            EventKind::Established(_) => Outcome::Connected(start.elapsed()),
            _ => match event.ok() {
                Err(error) if error.errno == verbs::Errno::TIMEDOUT => Outcome::Failed(error.to_string()),
                Err(error) => Outcome::Refused(error.to_string()),
                Ok(event) => Outcome::Failed(format!("{event:?}")),
            },
        })
    };
    asked().unwrap_or_else(|error| Outcome::Failed(error.to_string()))
}
