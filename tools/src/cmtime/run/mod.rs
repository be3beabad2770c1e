//! [`Run`]: a run's connections, and the steps of both sides.
//!
//! The main thread runs the steps one after another and waits until each is complete. The threads
//! of [`work`](super::work) execute the steps of each connection, defined in [`connection`]. The
//! thread of [`events`](super::events) handles their outcomes.
//!
//! As in C, the program modifies its queue pairs itself, so that each transition can be timed. It
//! uses the attributes computed by the connection manager.

mod connection;

use std::collections::HashMap;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use rdmacm::{Address, CmId, EventChannel, IdKey, PortSpace};
use verbs::Error;

use super::control::{Control, PeerInfo};
use super::options::{Options, Role};
use super::steps::{Step, Table, Times};
use super::work::WorkQueue;
use crate::cm;
use crate::console::{Console, Failed, describe};
use connection::{Conn, End, Verbs};

/// The state of a run.
#[derive(Debug)]
pub struct Run {
    options: Options,
    source: Address,
    channel: EventChannel,
    control: Mutex<Control>,
    peers: Vec<PeerInfo>,
    console: Mutex<Console>,
    conns: Vec<Conn>,
    /// The number of connections in this phase.
    count: AtomicUsize,
    /// The index of each connection, by id key.
    keys: RwLock<HashMap<IdKey, usize>>,
    /// The number of requests received.
    accepted: AtomicUsize,
    /// The number of connections that clients have ended.
    disconnected: AtomicUsize,
    times: Times,
    completed: [AtomicUsize; Step::COUNT],
    with_qps: AtomicBool,
    next_qpn: AtomicU32,
    /// The pause that replaces each queue pair step, in microseconds, for a run without queue
    /// pairs.
    pause: AtomicU64,
    verbs: Mutex<Option<Arc<Verbs>>>,
    work: WorkQueue<(Work, usize)>,
    main: Thread,
}

/// One connection's part of a step, called with the connection's index.
pub type Work = fn(&Run, usize);

/// Creates the listening id on a port that the system chooses.
///
/// # Errors
/// Fails if a call fails; the failure has been reported.
pub fn listen(channel: &EventChannel, source: Address, console: &mut Console) -> Result<CmId, Failed> {
    let id = channel.create_id(PortSpace::TCP);
    let id = id.map_err(|error| cm::perror("rdma_create_id", &error, console))?;
    id.bind_addr(source).map_err(|error| cm::perror("rdma_bind_addr", &error, console))?;
    id.listen(0).map_err(|error| cm::perror("rdma_listen", &error, console))?;
    Ok(id)
}

/// Starts the threads. [`Run::stop`] ends the workers. The event channel's thread, which runs
/// `read`, is not returned, because it runs until the process ends.
pub fn start(run: &Arc<Run>, read: fn(&Run)) -> Vec<JoinHandle<()>> {
    let reader = Arc::clone(run);
    thread::spawn(move || read(&reader));
    let work = |_| {
        let run = Arc::clone(run);
        thread::spawn(move || {
            while let Some((work, index)) = run.work.next() {
                work(&run, index);
            }
        })
    };
    (0..run.options.threads).map(work).collect()
}

impl Run {
    /// Prepares a run with these peers, on the main thread.
    ///
    /// # Errors
    /// Fails if the peers lack a listener or a client, or memory for the connections runs out. The
    /// failure has been reported.
    pub fn new(
        options: Options,
        source: Address,
        channel: EventChannel,
        control: Control,
        peers: Vec<PeerInfo>,
        mut console: Console,
    ) -> Result<Self, Failed> {
        let listeners = peers.iter().filter(|peer| peer.role == Role::Listen).count();
        if listeners == peers.len() {
            console.say("cannot have all listeners\n");
            return Err(Failed);
        }
        if listeners == 0 {
            console.say("need at least 1 listener\n");
            return Err(Failed);
        }
        // The warm-up uses one connection of each pair, regardless of `-c`.
        let others = if options.role == Role::Connect { listeners } else { peers.len() - listeners };
        let count = others.saturating_mul((options.connections as usize).max(1));
        let mut conns = Vec::new();
        if conns.try_reserve_exact(count).is_err() {
            return Err(console.because(format_args!("no memory for {count} connections")));
        }
        conns.resize_with(count, Conn::default);
        Ok(Self {
            options,
            source,
            channel,
            control: Mutex::new(control),
            peers,
            console: Mutex::new(console),
            conns,
            count: AtomicUsize::new(others),
            keys: RwLock::default(),
            accepted: AtomicUsize::new(0),
            disconnected: AtomicUsize::new(0),
            times: Times::default(),
            completed: Default::default(),
            with_qps: AtomicBool::new(true),
            next_qpn: AtomicU32::new(0),
            pause: AtomicU64::new(0),
            verbs: Mutex::new(None),
            work: WorkQueue::default(),
            main: thread::current(),
        })
    }

    /// Warms up, measures, and prints the tables.
    pub fn measure(&self) {
        let client = self.options.role == Role::Connect;
        let (side, verb) = if client { ("Client", "Connect") } else { ("Server", "Accept") };
        let phase = || if client { self.connect_all() } else { self.accept_all() };
        self.say(&format!("{side} warmup\n"));
        phase();

        let others = self.count();
        let count = others.saturating_mul(self.options.connections as usize);
        self.count.store(count, Ordering::Release);
        match self.options.mimic {
            None => self.say(&format!("{verb} ({count}) QPs test\n")),
            Some(pause) => {
                let pause = pause.as_micros() as u64;
                self.say(&format!("{verb} ({count}) simulated QPs test (delay {pause} us)\n"));
                self.without_qps(pause);
            }
        }
        phase();
        self.show();
        if self.peers.len() == 2 {
            self.say(&format!("{verb} ({count}) test - no QPs\n"));
            self.without_qps(0);
            phase();
            self.show();
        }
    }

    /// Stops the worker threads.
    pub fn stop(&self) {
        self.work.stop();
    }

    /// Writes the collected output.
    pub fn flush(&self) {
        self.console().flush();
    }

    /// Replaces each queue pair step with a pause, in microseconds.
    fn without_qps(&self, pause: u64) {
        self.with_qps.store(false, Ordering::Release);
        self.next_qpn.store(self.options.base_qpn, Ordering::Release);
        self.pause.store(pause, Ordering::Release);
    }

    fn show(&self) {
        let table = Table {
            with_qps: self.with_qps.load(Ordering::Acquire),
            threads: self.options.threads,
            run: &self.times,
            conns: self.conns[..self.count()].iter().map(|conn| &conn.times),
        };
        self.console().say(table);
    }

    /// Returns the number of connections in this phase.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(super) fn channel(&self) -> &EventChannel {
        &self.channel
    }

    pub(super) fn role(&self) -> Role {
        self.options.role
    }

    pub(super) fn say(&self, text: &str) {
        self.console().say(text);
    }

    /// Returns the index of an id's connection.
    pub(super) fn find(&self, key: IdKey) -> Option<usize> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
    }

    pub(super) fn conn_times(&self, index: usize) -> &Times {
        &self.conns[index].times
    }

    pub(super) fn times(&self) -> &Times {
        &self.times
    }

    /// Queues one connection's part of a step for a worker thread.
    pub(super) fn later(&self, work: Work, index: usize) {
        self.work.insert((work, index));
    }

    /// Records that a connection has completed a step. Returns the number of completed connections.
    pub(super) fn complete(&self, step: Step) -> usize {
        let done = self.completed[step as usize].fetch_add(1, Ordering::AcqRel) + 1;
        if done >= self.count() {
            self.main.unpark();
        }
        done
    }

    /// Assigns a request to a connection and returns its index. Returns `None` if there are too
    /// many requests.
    pub(super) fn take_request(&self, id: CmId) -> Option<usize> {
        let index = self.accepted.load(Ordering::Acquire);
        if index >= self.count() {
            return None;
        }
        if index == 0 {
            self.say("\tAccepting\n");
            self.times.start(Step::Connect);
        }
        self.enter(id.key(), index);
        self.end(index).id = Some(id);
        self.accepted.store(index + 1, Ordering::Release);
        Some(index)
    }

    /// Records that a client has ended a connection.
    pub(super) fn peer_disconnected(&self) {
        if self.disconnected.fetch_add(1, Ordering::AcqRel) == 0 {
            self.say("\tDisconnecting\n");
            self.times.start(Step::Disconnect);
        }
    }

    /// Ends the process with the C program's message because a call failed.
    pub(super) fn fatal(&self, call: &str, error: &Error) -> ! {
        cm::perror(call, error, &mut self.console());
        process::exit(1)
    }

    /// Ends the process after printing a line with the reason.
    pub(super) fn fatal_event(&self, line: &str, reason: Option<Error>) -> ! {
        let mut console = self.console();
        console.say(line);
        console.flush();
        if let Some(reason) = reason {
            console.reason(reason);
        }
        process::exit(1)
    }

    fn console(&self) -> MutexGuard<'_, Console> {
        self.console.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, index: usize) -> MutexGuard<'_, End> {
        self.conns[index].end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, key: IdKey, index: usize) {
        self.keys.write().unwrap_or_else(PoisonError::into_inner).insert(key, index);
    }

    /// Waits until all peers have reached a step.
    fn sync(&self, step: u8) {
        self.flush();
        let synced = self.control.lock().unwrap_or_else(PoisonError::into_inner).sync(step);
        if let Err(error) = synced {
            self.console().reason(format_args!("the control connection: {}", describe(&error)));
            process::exit(1);
        }
    }

    /// Waits until all connections have completed a step.
    fn wait(&self, step: Step) {
        self.flush();
        while self.completed[step as usize].load(Ordering::Acquire) < self.count() {
            thread::park();
        }
    }

    /// Clears the connections of the previous phase and waits until all peers have done so.
    fn reset(&self) {
        self.accepted.store(0, Ordering::Release);
        self.disconnected.store(0, Ordering::Release);
        self.keys.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.times.clear();
        let is_listener = |peer: &(usize, &PeerInfo)| peer.1.role == Role::Listen;
        let mut listeners = self.peers.iter().enumerate().filter(is_listener).map(|(at, _)| at).cycle();
        for (index, conn) in self.conns.iter().enumerate() {
            conn.times.clear();
            *self.end(index) = End::with_peer(listeners.next().unwrap_or(0));
        }
        for completed in &self.completed {
            completed.store(0, Ordering::Release);
        }
        self.sync(0);
    }

    /// Executes a step on the worker threads and waits until it is complete.
    fn step(&self, title: &str, step: Step, work: Work) {
        self.say(title);
        self.times.start(step);
        (0..self.count()).for_each(|index| self.later(work, index));
        self.wait(step);
        self.times.end(step);
    }

    /// Executes a step on this thread, one connection at a time.
    fn serial(&self, title: &str, step: Step, work: Work) {
        self.say(title);
        self.times.start(step);
        for index in 0..self.count() {
            self.conns[index].times.start(step);
            work(self, index);
            self.conns[index].times.end(step);
        }
        self.times.end(step);
    }

    fn connect_all(&self) {
        self.reset();
        self.times.start(Step::FullConnect);
        self.serial("\tCreating IDs\n", Step::CreateId, Self::create_id);
        self.serial("\tBinding addresses\n", Step::Bind, Self::bind);
        self.step("\tResolving addresses\n", Step::ResolveAddr, Self::resolve_addr);
        self.step("\tResolving routes\n", Step::ResolveRoute, Self::resolve_route);
        self.step("\tCreating QPs\n", Step::CreateQp, Self::create_qp);
        self.step("\tModify QPs to INIT\n", Step::InitQp, Self::init_qp);
        self.sync(Step::InitQp as u8);

        self.say("\tConnecting\n");
        self.times.start(Step::Connect);
        (0..self.count()).for_each(|index| self.connect(index));
        self.wait(Step::Connect);
        self.times.end(Step::Connect);
        self.times.end(Step::FullConnect);
        self.sync(Step::Connect as u8);

        self.step("\tDisconnecting\n", Step::Disconnect, Self::disconnect);
        self.sync(Step::Disconnect as u8);

        self.serial("\tDestroying QPs\n", Step::DestroyQp, Self::destroy_qp);
        self.serial("\tDestroying IDs\n", Step::DestroyId, Self::destroy_id);
    }

    fn accept_all(&self) {
        self.reset();
        self.sync(Step::InitQp as u8);
        self.wait(Step::Connect);
        self.sync(Step::Connect as u8);
        self.wait_for_disconnects();
        self.sync(Step::Disconnect as u8);
        self.serial("", Step::DestroyQp, Self::destroy_qp);
        self.serial("", Step::DestroyId, Self::destroy_id);
    }

    /// Waits until the clients have ended all connections. After a minute, ends the remaining
    /// connections from this side.
    fn wait_for_disconnects(&self) {
        self.flush();
        let mut deadline = Instant::now() + PATIENCE;
        loop {
            let done = self.completed[Step::Disconnect as usize].load(Ordering::Acquire);
            if done >= self.count() {
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                thread::park_timeout(left);
                continue;
            }
            let count = self.count();
            self.console()
                .complain(format_args!("Timeout waiting for clients to disconnect (got {done}/{count})"));
            let left_over = (0..count).filter(|index| !self.end(*index).has_disconnected);
            left_over.for_each(|index| self.later(Self::answer_disconnect, index));
            deadline = Instant::now() + PATIENCE;
        }
    }
}

/// The time limit for clients to disconnect.
const PATIENCE: Duration = Duration::from_secs(60);
