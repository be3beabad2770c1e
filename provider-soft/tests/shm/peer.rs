//! [`Node`] and [`Queue`]: a device and a queue pair, used on both sides. [`Peer`]: a process with
//! a `Node` and `Queue`s, which executes commands.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeValLike as _;
use nix::sys::wait::WaitStatus;
use nix::unistd::{ForkResult, Pid, execv, fork, geteuid};
use provider_soft::{Counters, Soft, SoftDevice};
use verbs::state::Reset;
use verbs::{Ah, Context, CqInit, Gid, NamedProvider, QpType, RtsAttr, SendOp, UdAddr, Wc, WcStatus};

use crate::common::{
    Arena, End, NO_PEER, PATIENCE, Process, QKEY, Remote, Shape, eventually, gid, path, recv, send,
    wait_for_child,
};

/// The way in which a process waits for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Poll,
    /// Waits for the events of the armed queue, and makes the device progress meanwhile.
    Sleep,
    /// Waits for the events of the armed queue by `poll(2)`, as event loops do.
    Descriptor,
    /// Waits for completions without events, and makes the device progress meanwhile.
    Within,
}

impl How {
    fn parse(text: &str) -> Self {
        match text {
            "Poll" => Self::Poll,
            "Sleep" => Self::Sleep,
            "Descriptor" => Self::Descriptor,
            "Within" => Self::Within,
            other => panic!("{other}"),
        }
    }
}

/// The address of a queue pair and its memory, exchanged as a line of text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) gid: Gid,
    pub(crate) remote: Remote,
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

impl Place {
    fn parse(line: &str) -> Self {
        let words: Vec<u128> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        let [gid, qp_num, psn, addr, rkey] = words[..] else { panic!("{line}") };
        let remote = Remote { qp_num: qp_num as u32, psn: psn as u32 };
        Self { gid: Gid(gid.to_be_bytes()), remote, addr: addr as u64, rkey: rkey as u32 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gid, remote: Remote { qp_num, psn }, addr, rkey } = self;
        write!(f, "{} {qp_num} {psn} {addr} {rkey}", u128::from_be_bytes(gid.0))
    }
}

/// The numbers of a process's descriptors and link mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) descriptors: usize,
    pub(crate) mappings: usize,
}

/// Returns the numbers of this process's descriptors and link mappings.
pub(crate) fn files() -> Files {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mappings = maps.lines().filter(|line| line.contains("memfd:verbs-soft")).count();
    Files { descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(), mappings }
}

/// Calls `run` while this process has no free descriptor.
pub(crate) fn without_descriptors(run: impl FnOnce()) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 100, hard).unwrap();
    let taken: Vec<_> = core::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    run();
    drop(taken);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
}

/// Returns the processor time that this process has used.
pub(crate) fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.cast_unsigned())
}

/// Returns the number of times that threads of this process have gone to sleep.
pub(crate) fn sleeps() -> i64 {
    getrusage(UsageWho::RUSAGE_SELF).unwrap().voluntary_context_switches()
}

/// Returns the number of times that the worker of the device `name` has gone to sleep.
pub(crate) fn worker_sleeps(name: &str) -> u64 {
    let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_worker =
        |task: &std::path::PathBuf| std::fs::read_to_string(task.join("comm")).unwrap().trim() == name;
    let status = std::fs::read_to_string(tasks.find(is_worker).unwrap().join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// Returns the abstract socket name under which a queue pair's device listens.
pub(crate) fn name(address: IpAddr, place: &Place) -> String {
    format!("verbs-soft/link/3/{}/{address}%0/4791/{}", geteuid(), place.remote.qp_num >> 16)
}

/// An open device and the objects created on it.
#[derive(Debug)]
pub(crate) struct Node {
    context: Context<Soft>,
}

impl Node {
    /// Opens the device requested by `VERBS_SOFT`, or else a device at `address`.
    pub(crate) fn bind(address: IpAddr) -> Self {
        let context = if std::env::var_os("VERBS_SOFT").is_some() {
            verbs::devices().unwrap().find("soft0").unwrap().open_as::<Soft>().unwrap()
        } else {
            Context::from_raw(Soft::open(&SoftDevice::bind(address).unwrap()).unwrap())
        };
        Self { context }
    }

    /// Opens a device that finds other devices through a folder.
    pub(crate) fn in_folder(address: IpAddr, folder: &Path) -> Self {
        let device = SoftDevice::builder().shared_memory_folder(folder).bind(address).unwrap();
        Self { context: Context::from_raw(Soft::open(&device).unwrap()) }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.context.raw().counters()
    }

    pub(crate) fn name(&self) -> &str {
        self.context.device_name()
    }

    pub(crate) fn queue(&self, qp_type: QpType, timeout: u8, events: bool) -> Queue {
        let rts = RtsAttr { timeout, retry_cnt: 3, ..Shape::default().rts };
        let shape = Shape { rts, events, ..Shape::for_type(qp_type) };
        let end = End::new(&self.context, &shape);
        let arena = Arena::new(&end.pd, ARENA);
        let (reset, rts) = (Some(end), None);
        let gid = gid(&self.context);
        Queue { reset, rts, arena, shape, gid, ah: None, wcs: VecDeque::new(), armed: false, sends: 0 }
    }

    /// Connects a new queue pair to a new queue pair in the process `peer`.
    pub(crate) fn meet(&self, peer: &mut Peer, timeout: u8) -> Queue {
        let mut queue = self.queue(QpType::RC, timeout, true);
        let place = peer.queue(QpType::RC, timeout, true);
        peer.connect(&queue.place());
        queue.connect(&place);
        queue
    }

    /// Starts a thread that polls another queue of the device, in bursts with pauses.
    pub(crate) fn start_poller(&self) -> Poller {
        let mut cq = self.context.create_cq(&CqInit::new(1)).unwrap();
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(Duration::from_micros(300)) == Err(RecvTimeoutError::Timeout) {
                let began = Instant::now();
                while began.elapsed() < Duration::from_micros(500) {
                    assert!(cq.poll().next().is_none());
                }
            }
        });
        Poller { stop: Some(stop), thread: Some(thread) }
    }
}

/// A thread that polls until this value is dropped.
#[derive(Debug)]
pub(crate) struct Poller {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Poller {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().map(JoinHandle::join);
    }
}

/// A queue pair, either reset or connected, with its completion queue and memory.
#[derive(Debug)]
pub(crate) struct Queue {
    reset: Option<End<Reset>>,
    rts: Option<End>,
    arena: Arena,
    shape: Shape,
    gid: Gid,
    /// The address handle and queue pair number to which datagrams are sent.
    ah: Option<(Ah<Soft>, u32)>,
    /// Completions polled but not yet returned by [`next`](Self::next).
    wcs: VecDeque<Wc>,
    armed: bool,
    /// The number of sends that have not completed.
    sends: u32,
}

impl Queue {
    pub(crate) fn place(&self) -> Place {
        let remote = match (&self.reset, &self.rts) {
            (Some(end), _) => Remote::from_qp(&end.qp),
            (None, Some(end)) => Remote::from_qp(&end.qp),
            (None, None) => unreachable!("it is reset or connected"),
        };
        Place { gid: self.gid, remote, addr: self.arena.addr(), rkey: self.arena.rkey() }
    }

    /// Connects the queue pair and posts receives.
    pub(crate) fn connect(&mut self, place: &Place) {
        let end = self.reset.take().expect("it is not connected");
        let remote = if self.shape.qp_type == QpType::UD { NO_PEER } else { place.remote };
        let mut end = end.connect(&self.shape, place.gid, remote);
        for number in 0..RECVS {
            recv(&mut end.qp, number, &[self.arena.sge(recv_range(number))]);
        }
        self.rts = Some(end);
    }

    /// Makes a datagram queue pair ready to send to `place`.
    pub(crate) fn aim(&mut self, place: &Place) {
        self.connect(place);
        let ah = self.end().pd.create_ah(&path(place.gid)).unwrap();
        self.ah = Some((ah, place.remote.qp_num));
    }

    fn end(&mut self) -> &mut End {
        self.rts.as_mut().expect("it is connected")
    }

    /// Waits for the next completion and returns it.
    pub(crate) fn next(&mut self, how: How) -> Wc {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(wc) = self.wcs.pop_front() {
                return wc;
            }
            self.take_completions();
            let end = self.rts.as_mut().expect("it is connected");
            if how == How::Poll || !self.wcs.is_empty() {
                assert!(Instant::now() < deadline, "no completion within {PATIENCE:?}");
            } else if how == How::Within {
                self.wcs.push_back(end.cq.poll_within(PATIENCE).expect("no lost wake-up").wc);
            } else if self.armed {
                if how == How::Descriptor {
                    let channel = end.channel.as_ref().expect("the queue has events");
                    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
                    let timeout = u16::try_from(PATIENCE.as_millis()).expect("below a minute");
                    assert_eq!(poll(&mut fds, timeout), Ok(1), "no event within {PATIENCE:?}");
                }
                assert!(self.wait_for_event(PATIENCE), "no event within {PATIENCE:?}: a lost wake-up");
            } else {
                end.cq.req_notify(false).unwrap();
                self.armed = true;
            }
        }
    }

    /// Polls the queue empty, and keeps the completions for [`next`](Self::next).
    pub(crate) fn take_completions(&mut self) {
        let end = self.rts.as_mut().expect("it is connected");
        let mut completions = end.cq.poll();
        while let Some(mut completion) = completions.next() {
            self.wcs.push_back(completion.to_wc());
        }
    }

    /// Waits for `timeout` and asserts that no completion arrives.
    pub(crate) fn wait_in_vain(&mut self, timeout: Duration) {
        let error = self.end().cq.poll_within(timeout).map(|_| ()).expect_err("there is none");
        assert_eq!(error.errno, verbs::Errno::TIMEDOUT);
    }

    /// Arms the completion queue of an unconnected queue pair, whose event never comes.
    pub(crate) fn arm_in_vain(&mut self) {
        self.reset.as_mut().expect("it is not connected").cq.req_notify(true).unwrap();
    }

    /// Waits for an event of the completion queue, at most `timeout`. Returns whether there was
    /// one.
    pub(crate) fn wait_for_event(&mut self, timeout: Duration) -> bool {
        if !self.armed {
            self.end().cq.req_notify(false).unwrap();
            self.armed = true;
        }
        let channel = self.end().channel.as_ref().expect("the queue has events");
        let event = channel.wait(Some(timeout)).unwrap().is_some();
        self.armed = !event;
        event
    }

    /// Posts a write of the arena's first bytes to the peer's memory.
    pub(crate) fn write(&mut self, wr_id: u64, place: &Place, len: usize) {
        let sge = [self.arena.sge(0..len)];
        let op = SendOp::RdmaWrite { remote_addr: place.addr, rkey: place.rkey };
        send(&mut self.end().qp, wr_id, op, &sge);
    }

    /// Sends a datagram and waits for its completion.
    pub(crate) fn datagram(&mut self) {
        let (ah, remote_qpn) = self.ah.as_ref().expect("it has a destination");
        let to = UdAddr { av: ah.av(), remote_qpn: *remote_qpn, remote_qkey: QKEY };
        let end = self.rts.as_mut().expect("it is connected");
        send(&mut end.qp, 0, SendOp::UdSend { to }, &[self.arena.sge(0..1000)]);
        assert_eq!(self.next(How::Poll).status, WcStatus::SUCCESS);
    }

    /// Sends a message whose first and last bytes contain a number.
    fn send_number(&mut self, number: u64, how: How) {
        while self.sends >= 16 {
            let wc = self.next(how);
            assert!(!wc.opcode.is_recv(), "the peer sends one message at a time");
            self.sent(&wc);
        }
        for at in [0, LEN - 8] {
            self.arena.write(at, &number.to_ne_bytes());
        }
        let sge = [self.arena.sge(0..LEN)];
        send(&mut self.end().qp, 0, SendOp::Send, &sge);
        self.sends += 1;
    }

    fn sent(&mut self, wc: &Wc) {
        assert_eq!(wc.status, WcStatus::SUCCESS);
        self.sends -= 1;
    }

    /// Waits for a message with this number.
    fn recv_number(&mut self, number: u64, how: How) {
        let wc = loop {
            let wc = self.next(how);
            if wc.opcode.is_recv() {
                break wc;
            }
            self.sent(&wc);
        };
        assert_eq!(wc.status, WcStatus::SUCCESS);
        let range = recv_range(wc.wr_id);
        let got = [0, LEN - 8].map(|at| self.arena.number(range.start + at));
        assert_eq!(got, [number; 2]);
        let sge = [self.arena.sge(range)];
        recv(&mut self.end().qp, wc.wr_id, &sge);
    }

    fn ping(&mut self, count: u64, how: How) {
        for number in 1..=count {
            self.send_number(number, how);
            self.recv_number(!number, how);
        }
        self.finish_sends(how);
    }

    fn pong(&mut self, count: u64, how: How) {
        for number in 1..=count {
            self.recv_number(number, how);
            self.send_number(!number, how);
        }
        self.finish_sends(how);
    }

    /// Waits until all sends are acknowledged.
    fn finish_sends(&mut self, how: How) {
        while self.sends > 0 {
            let wc = self.next(how);
            assert!(!wc.opcode.is_recv(), "the peer has sent its last message");
            self.sent(&wc);
        }
    }

    /// Exchanges messages with the process of the connected queue pair.
    pub(crate) fn ping_pong(&mut self, peer: &mut Peer, count: u64, own: How, its: How) {
        peer.tell(&format!("pong {count} {its:?}"));
        self.ping(count, own);
        assert_eq!(peer.next(), "done");
    }
}

/// The length of a message, in bytes; two packets.
const LEN: usize = 1500;
const ARENA: usize = 64 << 10;
const RECVS: u64 = 4;

fn recv_range(number: u64) -> core::ops::Range<usize> {
    let start = (32 << 10) + number as usize * 2048;
    start..start + 2048
}

/// The packet counters of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packets {
    pub(crate) shm_sent: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// A process that executes commands.
#[derive(Debug)]
pub(crate) struct Peer {
    process: Process,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Peer {
    pub(crate) fn start(address: IpAddr) -> Self {
        Self::start_with(address, |_| {})
    }

    pub(crate) fn start_with(address: IpAddr, change: impl Fn(&mut Command)) -> Self {
        Self::start_as(&["peer", &address.to_string()], change)
    }

    /// Starts this program with arguments, and waits for its first line.
    pub(crate) fn start_as(args: &[&str], change: impl Fn(&mut Command)) -> Self {
        Self::start_command(Command::new("/proc/self/exe"), args, change)
    }

    /// Starts a process in a new network namespace, with a device that finds other devices through
    /// a folder.
    pub(crate) fn start_in_namespace(address: IpAddr, folder: &Path) -> Self {
        let mut command = unshare();
        command.args(["sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""]);
        command.arg(std::env::current_exe().expect("this program has a path"));
        let address = address.to_string();
        Self::start_command(command, &["peer", &address], |command| {
            command.env("VERBS_SOFT", &address).env("VERBS_SOFT_SHM", folder);
        })
    }

    fn start_command(mut command: Command, args: &[&str], change: impl Fn(&mut Command)) -> Self {
        command.args(args).env_remove("VERBS_SOFT").stdin(Stdio::piped()).stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().expect("this program starts again");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let mut peer = Self { process: Process(child), stdin, lines: lines(stdout) };
        assert_eq!(peer.next(), "begun");
        peer
    }

    pub(crate) fn tell(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").expect("the process reads");
    }

    #[track_caller]
    pub(crate) fn next(&mut self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("no line of the process: {error}"))
    }

    /// Sends a command to the process and returns its reply.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.next()
    }

    #[track_caller]
    pub(crate) fn execute(&mut self, command: &str) {
        assert_eq!(self.ask(command), "ok", "{command}");
    }

    pub(crate) fn queue(&mut self, qp_type: QpType, timeout: u8, events: bool) -> Place {
        let qp_type = if qp_type == QpType::UD { "ud" } else { "rc" };
        Place::parse(&self.ask(&format!("new {qp_type} {timeout} {events}")))
    }

    pub(crate) fn connect(&mut self, place: &Place) {
        self.execute(&format!("connect {place}"));
    }

    /// Creates a datagram queue pair in the process, ready to receive. Returns its address.
    pub(crate) fn datagrams(&mut self) -> Place {
        let place = self.queue(QpType::UD, 0, true);
        self.connect(&place);
        place
    }

    pub(crate) fn counters(&mut self) -> Packets {
        let line = self.ask("counters");
        let numbers: Vec<_> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        let [shm_sent, sent, received] = numbers[..] else { panic!("{line}") };
        Packets { shm_sent, sent, received }
    }

    pub(crate) fn files(&mut self) -> Files {
        let line = self.ask("files");
        let (descriptors, mappings) = line.split_once(' ').expect("two numbers");
        Files { descriptors: descriptors.parse().unwrap(), mappings: mappings.parse().unwrap() }
    }

    /// Returns the processor time that the process uses in 200 ms while it is idle.
    pub(crate) fn idle(&mut self) -> Duration {
        Duration::from_micros(self.ask("idle").parse().expect("microseconds"))
    }

    /// Lets the process exit, and waits for it.
    pub(crate) fn finish(self) {
        let Self { process, stdin, .. } = self;
        drop(stdin);
        assert!(process.finish().success());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.0.id().cast_signed()), signal).expect("the process exists");
    }

    /// Stops all threads of the process.
    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.process.0.id());
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit(") ").next().is_some_and(|state| state.starts_with('T'))
        };
        eventually("the process stops", || std::fs::read_dir(&tasks).unwrap().all(is_stopped));
    }
}

/// Returns a command that runs its arguments in a new network namespace. A user namespace makes an
/// unprivileged process root there.
pub(crate) fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.arg(if geteuid().is_root() { "-n" } else { "-rn" });
    command
}

/// Returns the lines printed by a process, as they arrive.
fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            if send.send(line.expect("text")).is_err() {
                return;
            }
        }
    });
    lines
}

/// Executes commands until the standard input ends.
pub(crate) fn run() -> ExitCode {
    let address = std::env::args().nth(2).expect("an address").parse().expect("an address");
    let mut node = Some(Node::bind(address));
    let (mut queues, mut pollers, mut taken) = (Vec::<Queue>::new(), Vec::new(), Vec::new());
    println!("begun");
    for line in std::io::stdin().lines() {
        let line = line.expect("text");
        let (command, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let words: Vec<_> = rest.split(' ').collect();
        let its = node.as_ref().expect("it lives");
        match (command, &words[..]) {
            ("new", [qp_type, timeout, events]) => {
                let qp_type = if *qp_type == "ud" { QpType::UD } else { QpType::RC };
                let queue = its.queue(qp_type, timeout.parse().unwrap(), *events == "true");
                println!("{}", queue.place());
                queues.push(queue);
                // The previous test's queue stays, because a test's datagram queue pair may be its
                // second queue.
                if queues.len() > 2 {
                    queues.remove(0);
                }
            }
            ("connect", _) => {
                queues.last_mut().expect("a queue").connect(&Place::parse(rest));
                println!("ok");
            }
            ("ping" | "pong", [count, how]) => {
                let (count, how) = (count.parse().unwrap(), How::parse(how));
                let is_connected = |queue: &&mut Queue| queue.shape.qp_type == QpType::RC;
                let queue = queues.iter_mut().rev().find(is_connected).expect("a connected queue pair");
                if command == "ping" {
                    queue.ping(count, how);
                } else {
                    queue.pong(count, how);
                }
                println!("done");
            }
            ("counters", _) => {
                let Counters { shm_sent, sent, received, .. } = its.counters();
                println!("{shm_sent} {sent} {received}");
            }
            ("files", _) => {
                let Files { descriptors, mappings } = files();
                println!("{descriptors} {mappings}");
            }
            ("pollers", _) => {
                pollers.push(its.start_poller());
                println!("ok");
            }
            ("fill", _) => {
                let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
                setrlimit(Resource::RLIMIT_NOFILE, 100, hard).unwrap();
                taken.extend(core::iter::from_fn(|| File::open("/dev/null").ok()));
                println!("ok");
            }
            ("empty", _) => {
                taken.clear();
                println!("ok");
            }
            ("idle", _) => {
                let (before, stdin) = (cpu_time(), std::io::stdin());
                let ready = poll(&mut [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)], 200_u8).unwrap();
                assert_eq!(ready, 0, "the other side waits for the reply");
                println!("{}", (cpu_time() - before).as_micros());
            }
            ("fork", [what]) => {
                // SAFETY: the process has one other thread, the device's. It sleeps, so it holds no
                // lock of the allocator.
                match unsafe { fork() }.expect("fork") {
                    ForkResult::Child => {
                        if *what == "exec" {
                            let _ = execv::<&core::ffi::CStr>(c"/bin/true", &[c"true"]);
                            std::process::exit(1);
                        }
                        if *what == "drop" {
                            queues.clear();
                            drop(node.take());
                        }
                        std::process::exit(0)
                    }
                    ForkResult::Parent { child } => {
                        assert_eq!(wait_for_child(child), WaitStatus::Exited(child, 0));
                        println!("ok");
                    }
                }
            }
            _ => panic!("{line}"),
        }
    }
    ExitCode::SUCCESS
}
