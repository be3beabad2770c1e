//! The measurements with verbs: reliable connections between two processes, through the public API.
//!
//! # Safety
//! Work requests are posted raw and name only the [`Arena`], which is never freed, has no
//! references and is accessed by volatile copies. The memory of [`shared_words`] is never unmapped
//! and is accessed by atomics.
#![allow(unsafe_code)]

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsFd as _;
use std::os::unix::process::parent_id;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::time::{ClockId, clock_gettime};
use provider_soft::Soft;
use verbs::state::{Reset, Rts};
use verbs::{
    AccessFlags, AhAttr, CompChannel, Context, Cq, CqInit, Device, Erased, GlobalRoute, InitAttr, Mr, Mtu,
    Pd, Provider, Qp, QpCap, QpInit, QpType, RecvWr, RtrAttr, RtsAttr, SendFlags, SendOp, SendWr, Wc,
    WcStatus,
};

use crate::Result;
use crate::process::{Peer, exchange_with_parent, read_line};

/// The measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// 8 bytes are written back and forth; memory shows that they arrived.
    Write,
    /// 8 bytes are sent back and forth; a completion shows that they arrived.
    Send,
    /// Like `Send`, but both ends also wait for their own completion, as `ibv_rc_pingpong` does.
    PingPong,
    /// Like `Send`, but both ends wait for an event of their armed queue.
    Event,
    /// One message is sent. Then this process waits for a completion, and the other process does
    /// nothing.
    Idle,
    /// Like `Event`, but both ends sleep in `poll(2)` on the channel's descriptor.
    Poll,
    /// Messages are written one way, with `depth` messages in flight.
    Stream { length: usize, depth: usize },
}

impl What {
    fn name(self) -> String {
        match self {
            Self::Write => "write".into(),
            Self::Send => "send".into(),
            Self::PingPong => "pingpong".into(),
            Self::Event => "event".into(),
            Self::Idle => "idle".into(),
            Self::Poll => "poll".into(),
            Self::Stream { length, depth } => format!("stream-{length}-{depth}"),
        }
    }

    fn parse(name: &str) -> Result<Self> {
        let mut parts = name.split('-');
        match (parts.next(), parts.next(), parts.next()) {
            (Some("write"), None, None) => Ok(Self::Write),
            (Some("send"), None, None) => Ok(Self::Send),
            (Some("pingpong"), None, None) => Ok(Self::PingPong),
            (Some("event"), None, None) => Ok(Self::Event),
            (Some("idle"), None, None) => Ok(Self::Idle),
            (Some("poll"), None, None) => Ok(Self::Poll),
            (Some("stream"), Some(length), Some(depth)) => {
                Ok(Self::Stream { length: length.parse()?, depth: depth.parse()? })
            }
            _ => Err(format!("no such thing: {name}").into()),
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Write | Self::Send | Self::PingPong | Self::Event | Self::Poll | Self::Idle => 8,
            Self::Stream { length, .. } => length,
        }
    }
}

/// The devices used: a soft device per process, or one named device opened by both processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Over UDP, at the address that programs of one user share, with static types.
    Static,
    /// Like `Static`, but with the erased provider.
    Erased,
    /// Over UDP, between two loopback addresses, with static types.
    Addresses,
    /// Through shared memory, with static types.
    Memory,
    Named(String),
}

impl Form {
    fn name(&self) -> String {
        match self {
            Self::Static => "static".into(),
            Self::Erased => "erased".into(),
            Self::Addresses => "addresses".into(),
            Self::Memory => "memory".into(),
            Self::Named(name) => format!("named:{name}"),
        }
    }

    fn parse(name: &str) -> Result<Self> {
        match name.split_once(':') {
            Some(("named", name)) => Ok(Self::Named(name.into())),
            None if name == "static" => Ok(Self::Static),
            None if name == "erased" => Ok(Self::Erased),
            None if name == "addresses" => Ok(Self::Addresses),
            None if name == "memory" => Ok(Self::Memory),
            _ => Err(format!("no such form: {name}").into()),
        }
    }
}

/// Runs one side in this process and the other side in another process. Returns the median round
/// trip time in microseconds, or the throughput in gigabytes per second.
pub(crate) fn measure(what: What, form: &Form, count: u64) -> Result<f64> {
    let values = measure_all(what, form, count)?;
    Ok(values[values.len() / 2])
}

/// Measures as [`measure`] does. Returns all round trip times, in microseconds and ascending order,
/// or the throughput in gigabytes per second. For [`What::Idle`], returns the processor time, in
/// microseconds, that this process and the other process used in `count` milliseconds.
pub(crate) fn measure_all(what: What, form: &Form, count: u64) -> Result<Vec<f64>> {
    let mut peer = Peer::start(&["verbs", &form.name(), &what.name()])?;
    match form {
        Form::Static => lead::<Soft>(soft(false)?.open_as()?, what, count, &mut peer),
        Form::Erased => lead::<Erased>(soft(false)?.open()?, what, count, &mut peer),
        Form::Addresses => {
            lead::<Soft>(at_address(std::process::id(), 1)?.open_as()?, what, count, &mut peer)
        }
        Form::Memory => lead::<Soft>(soft(true)?.open_as()?, what, count, &mut peer),
        Form::Named(name) => lead::<Erased>(open_named(name)?, what, count, &mut peer),
    }
}

/// Runs the other process's side of a measurement.
pub(crate) fn peer(form: &str, what: &str) -> Result<()> {
    let what = What::parse(what)?;
    match Form::parse(form)? {
        Form::Static => follow::<Soft>(soft(false)?.open_as()?, what),
        Form::Erased => follow::<Erased>(soft(false)?.open()?, what),
        Form::Addresses => follow::<Soft>(at_address(parent_id(), 2)?.open_as()?, what),
        Form::Memory => follow::<Soft>(soft(true)?.open_as()?, what),
        Form::Named(name) => follow::<Erased>(open_named(&name)?, what),
    }
}

fn soft(shared_memory: bool) -> Result<Device> {
    Ok(verbs::soft::builder().shared_memory(shared_memory).auto()?)
}

/// Creates a device on a loopback address derived from the leading process's ID.
fn at_address(leader: u32, end: u8) -> Result<Device> {
    let [.., middle, low] = leader.to_be_bytes();
    let address = [127, 128 | middle, low, end].into();
    Ok(verbs::soft::builder().shared_memory(false).bind(address)?)
}

fn open_named(name: &str) -> Result<Context<Erased>> {
    Ok(verbs::devices()?.find(name)?.open()?)
}

fn lead<P: Provider>(context: Context<P>, what: What, count: u64, peer: &mut Peer) -> Result<Vec<f64>> {
    let (end, mine) = End::<P, Reset>::new(context, what)?;
    let theirs = peer.exchange(&mine)?;
    let mut end = end.connect(&theirs)?;
    peer.exchange("connected")?;
    match what {
        What::Write | What::Send | What::PingPong | What::Event | What::Poll => {
            let warm_up = count / 10;
            let mut times = Vec::with_capacity(count as usize);
            let (begun, mut rounds) = (Instant::now(), 0);
            // A busy machine may need minutes for all rounds.
            while rounds < warm_up + count && (rounds <= warm_up || begun.elapsed() < LONGEST) {
                rounds += 1;
                let start = Instant::now();
                if what == What::Write {
                    end.write_number(rounds)?;
                    end.await_number(rounds)?;
                } else {
                    end.send_number(rounds)?;
                    end.await_message()?;
                }
                if rounds > warm_up {
                    times.push(start.elapsed());
                }
            }
            if end.number_received() != rounds {
                return Err("the reply has another number".into());
            }
            Ok(microseconds(times))
        }
        What::Idle => {
            end.send_number(1)?;
            end.await_message()?;
            end.await_own()?;
            peer.exchange("idle")?;
            let before = processor_time()?;
            if end.cq.poll_within(Duration::from_millis(count)).is_ok() {
                return Err("a completion of no request".into());
            }
            let mine = processor_time()? - before;
            let theirs = peer.exchange("how long?")?.parse()?;
            Ok(vec![mine.as_secs_f64() * 1e6, theirs])
        }
        What::Stream { length, .. } => {
            end.stream(count / 10)?;
            let start = Instant::now();
            end.stream(count)?;
            Ok(vec![(count * length as u64) as f64 / start.elapsed().as_secs_f64() / 1e9])
        }
    }
}

/// Converts the times to microseconds, in ascending order.
pub(crate) fn microseconds(mut times: Vec<Duration>) -> Vec<f64> {
    times.sort();
    times.iter().map(|time| time.as_secs_f64() * 1e6).collect()
}

/// Returns the processor time that all threads of this process have used.
fn processor_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

fn follow<P: Provider>(context: Context<P>, what: What) -> Result<()> {
    let (end, mine) = End::<P, Reset>::new(context, what)?;
    let theirs = exchange_with_parent(&mine)?;
    let mut end = end.connect(&theirs)?;
    exchange_with_parent("connected")?;
    // Runs until this process is killed.
    for round in 1.. {
        match what {
            What::Write => {
                end.await_number(round)?;
                end.write_number(round)?;
            }
            What::Send | What::PingPong | What::Event | What::Poll => {
                end.await_message()?;
                end.send_number(round)?;
            }
            What::Idle => {
                end.await_message()?;
                end.send_number(1)?;
                end.await_own()?;
                exchange_with_parent("idle")?;
                let before = processor_time()?;
                let used = || Ok((processor_time()? - before).as_secs_f64() * 1e6);
                // The leader's line ends the time.
                read_line()?;
                let used: Result<f64> = used();
                exchange_with_parent(&used?.to_string())?;
            }
            What::Stream { .. } => end.await_number(u64::MAX)?,
        }
    }
    Ok(())
}

/// One end of a connection.
struct End<P: Provider, S: verbs::state::State = Rts> {
    qp: Qp<S, P>,
    cq: Cq<P>,
    channel: CompChannel,
    arena: Arena<P>,
    context: Context<P>,
    what: What,
    remote_addr: u64,
    rkey: u32,
    /// The number of sends posted. The next field is the number of sends completed.
    posted: u64,
    ended: u64,
    /// The number of messages received.
    came: u64,
    _pd: Pd<P>,
}

impl<P: Provider> End<P, Reset> {
    /// Creates an end. Also returns the description that the other end needs.
    fn new(context: Context<P>, what: What) -> Result<(Self, String)> {
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(2 * DEPTH as u32) })?;
        let cap = QpCap {
            max_send_wr: DEPTH as u32,
            max_recv_wr: DEPTH as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let init = QpInit { cap, ..QpInit::new(QpType::RC, &cq) };
        let qp = pd.create_qp(&init)?;
        let arena = Arena::new(&pd, 2 * what.bytes())?;
        let gid = context.find_gid(PORT)?.gid;
        let mine = format!(
            "{} {} {} {} {}",
            u128::from_be_bytes(gid.0),
            qp.qp_num(),
            qp.psn(),
            arena.mr.addr(),
            arena.mr.rkey()
        );
        let end = Self {
            qp,
            cq,
            channel,
            arena,
            context,
            what,
            remote_addr: 0,
            rkey: 0,
            posted: 0,
            ended: 0,
            came: 0,
            _pd: pd,
        };
        Ok((end, mine))
    }

    fn connect(self, theirs: &str) -> Result<End<P>> {
        let mut words = theirs.split_whitespace();
        let mut next = || words.next().ok_or("the other process said too little");
        let dgid = verbs::Gid(next()?.parse::<u128>()?.to_be_bytes());
        let (dest_qp_num, psn) = (next()?.parse()?, next()?.parse()?);
        let (remote_addr, rkey) = (next()?.parse()?, next()?.parse()?);
        let access = AccessFlags::REMOTE_WRITE;
        let init = InitAttr { port_num: PORT, access, ..InitAttr::default() };
        let sgid_index = self.context.find_gid(PORT)?.gid_index;
        let grh = GlobalRoute { dgid, sgid_index, hop_limit: 64, ..GlobalRoute::default() };
        let ah_attr = AhAttr { grh: Some(grh), port_num: PORT, ..AhAttr::default() };
        let rtr = RtrAttr {
            path_mtu: self.context.query_port(PORT)?.active_mtu.min(Mtu::MTU_4096),
            min_rnr_timer: 1,
            ..RtrAttr::new(ah_attr, dest_qp_num, psn)
        };
        let rts = RtsAttr { timeout: 14, retry_cnt: 7, rnr_retry: 7, ..RtsAttr::default() };
        let Self { qp, cq, channel, arena, context, what, _pd, .. } = self;
        let qp = qp.to_init(&init)?.to_rtr(&rtr)?.to_rts(&rts)?;
        let mut end = End {
            qp,
            cq,
            channel,
            arena,
            context,
            what,
            remote_addr,
            rkey,
            posted: 0,
            ended: 0,
            came: 0,
            _pd,
        };
        if matches!(what, What::Send | What::PingPong | What::Event | What::Poll | What::Idle) {
            for _ in 0..DEPTH {
                end.post_recv()?;
            }
        }
        Ok(end)
    }
}

impl<P: Provider> End<P> {
    /// Writes to the memory polled by the peer.
    #[inline]
    fn write_number(&mut self, number: u64) -> Result<()> {
        self.arena.write_number(8, number);
        self.post(SendOp::RdmaWrite { remote_addr: self.remote_addr, rkey: self.rkey }, 8, 8)
    }

    /// Polls the memory and the completion queue until the peer has written `number`.
    #[inline]
    fn await_number(&mut self, number: u64) -> Result<()> {
        let mut patience = Patience::new();
        while self.arena.number(0) != number {
            if self.poll()? == 0 {
                patience.wait(self.what)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn send_number(&mut self, number: u64) -> Result<()> {
        if self.what == What::PingPong {
            self.await_own()?;
        }
        self.arena.write_number(8, number);
        self.post(SendOp::Send, 8, 8)
    }

    /// Polls until a message has arrived, and posts another receive.
    #[inline]
    fn await_message(&mut self) -> Result<()> {
        let (came, mut patience) = (self.came, Patience::new());
        while self.came == came {
            if matches!(self.what, What::Event | What::Poll) {
                self.cq.req_notify(false)?;
                while self.poll()? > 0 {}
                if self.came == came && !self.await_event()? {
                    return Err("nothing happened".into());
                }
            } else if self.poll()? == 0 {
                patience.wait(self.what)?;
            }
        }
        self.post_recv()
    }

    /// Polls until all requests posted by this end have completed.
    #[inline]
    fn await_own(&mut self) -> Result<()> {
        let mut patience = Patience::new();
        while self.ended < self.posted {
            if self.poll()? == 0 {
                patience.wait(self.what)?;
            }
        }
        Ok(())
    }

    /// Waits for an event. Returns whether one arrived within [`PATIENCE`].
    fn await_event(&self) -> Result<bool> {
        if self.what == What::Event {
            return Ok(self.channel.wait(Some(PATIENCE))?.is_some());
        }
        let mut fds = [PollFd::new(self.channel.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(PATIENCE)?;
        Ok(poll(&mut fds, timeout)? == 1 && self.channel.wait(Some(Duration::ZERO))?.is_some())
    }

    fn number_received(&self) -> u64 {
        self.arena.number(0)
    }

    /// Writes `count` messages and waits until all of them have arrived.
    fn stream(&mut self, count: u64) -> Result<()> {
        let What::Stream { length, depth } = self.what else { return Err("not a stream".into()) };
        let last = self.posted + count;
        let mut patience = Patience::new();
        while self.ended < last {
            while self.posted < last && self.posted - self.ended < depth as u64 {
                let op = SendOp::RdmaWrite { remote_addr: self.remote_addr, rkey: self.rkey };
                self.post(op, length, length)?;
            }
            if self.poll()? == 0 {
                patience.wait(self.what)?;
            } else {
                patience = Patience::new();
            }
        }
        Ok(())
    }

    #[inline]
    fn post(&mut self, op: SendOp<'_>, at: usize, length: usize) -> Result<()> {
        let sge = [self.arena.mr.sge(at..at + length)];
        let wr = SendWr { wr_id: SEND, op, sge: &sge, flags: SendFlags::SIGNALED };
        // SAFETY: it names the arena.
        unsafe { self.qp.post_send(&[wr])? };
        self.posted += 1;
        Ok(())
    }

    #[inline]
    fn post_recv(&mut self) -> Result<()> {
        let sge = [self.arena.mr.sge(0..8)];
        // SAFETY: it names the arena.
        unsafe { self.qp.post_recv(&[RecvWr { wr_id: RECV, sge: &sge }])? };
        Ok(())
    }

    /// Polls once and returns the number of completions.
    #[inline]
    fn poll(&mut self) -> Result<usize> {
        let mut wcs = [Wc::default(); 4];
        let count = self.cq.poll_into(&mut wcs);
        for wc in &wcs[..count] {
            if wc.status != WcStatus::SUCCESS {
                return Err(
                    format!("{:?} on {}: {}", self.what, self.context.device_name(), wc.status).into()
                );
            }
            if wc.wr_id == SEND {
                self.ended += 1;
            } else {
                self.came += 1;
            }
        }
        Ok(count)
    }
}

/// The action between two polls without a result. As with plain sockets, an end polls again at once
/// for latency, and sometimes yields for throughput.
pub(crate) struct Patience {
    looks: u32,
    start: Option<Instant>,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self { looks: 0, start: None }
    }

    #[inline]
    pub(crate) fn wait(&mut self, what: What) -> Result<()> {
        self.looks += 1;
        if !self.looks.is_multiple_of(64) {
            return Ok(());
        }
        match what {
            What::Write | What::Send | What::PingPong | What::Event | What::Poll | What::Idle => {
                std::hint::spin_loop();
            }
            What::Stream { .. } => std::thread::yield_now(),
        }
        if self.start.get_or_insert_with(Instant::now).elapsed() > PATIENCE
            && (self.looks > 64_000_000 || !matches!(what, What::Stream { .. }))
        {
            return Err("nothing happened".into());
        }
        Ok(())
    }
}

/// Registered memory that is never freed. No Rust reference to it exists.
struct Arena<P: Provider> {
    base: NonNull<u8>,
    mr: Mr<P>,
}

impl<P: Provider> Arena<P> {
    fn new(pd: &Pd<P>, len: usize) -> Result<Self> {
        // Page-aligned, as in any program where speed matters.
        let words = vec![0_u64; len.div_ceil(8) + 512].leak();
        let page = words.as_ptr().align_offset(4096);
        let base = NonNull::from(&mut words[page..]).cast();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        // SAFETY: leaked, so it stays mapped; the original reference is gone.
        let mr = unsafe { pd.reg_mr(base.as_ptr(), len, access) }?;
        Ok(Self { base, mr })
    }

    #[inline]
    fn number(&self, at: usize) -> u64 {
        // SAFETY: `at` is 0 or 8 here, inside the arena and aligned.
        unsafe { self.base.add(at).cast::<u64>().read_volatile() }
    }

    #[inline]
    fn write_number(&self, at: usize, number: u64) {
        // SAFETY: as above.
        unsafe { self.base.add(at).cast::<u64>().write_volatile(number) }
    }
}

/// Maps the first `count` words of a memory file, shared with other processes. They are never
/// unmapped.
pub(crate) fn shared_words(file: &File, count: usize) -> Result<&'static [AtomicU64]> {
    let len = NonZeroUsize::new(count * size_of::<AtomicU64>()).ok_or("no words")?;
    if file.metadata()?.len() < len.get() as u64 {
        return Err("the file is too short".into());
    }
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let base = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, file, 0)? };
    // SAFETY: mapped for `len` bytes, which the file has, and never unmapped. A page is aligned for
    // words, and both processes access them as atomics alone.
    Ok(unsafe { std::slice::from_raw_parts(base.as_ptr().cast(), count) })
}

const PORT: u8 = 1;

/// The maximum time without progress before an end gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The maximum duration of a round-trip measurement.
pub(crate) const LONGEST: Duration = Duration::from_secs(6);
const SEND: u64 = 1;
const RECV: u64 = 2;

/// The capacity of a queue, in work requests.
const DEPTH: usize = 64;
