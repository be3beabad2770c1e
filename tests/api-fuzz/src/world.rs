//! [`World`]: the state shared by the threads of a round: devices, targets of sends, and objects on
//! their way from one thread to another.
//!
//! Threads lock it rarely and never wait for it on the data path. A lock orders the actions of two
//! threads, which would hide a race in the library from ThreadSanitizer.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use verbs::{
    AhAttr, ConnectAttr, Context, CqId, CqInit, Device, GidEntry, Memory, Mtu, Pd, Port, QpInit, QpType,
    Returned, RtrAttr, SendFlags, SendOp, Wc,
};
use verbs_harness::runner::{CaseResult, Stop, fail};

use super::handle::{self, AnyCq, AnyCqHandle, AnyQp};
use super::memory::{Frozen, Held, Outcome, Posted, Region, Target, message, take_chain};
use super::tally::{Kind, Tally};

/// The port to use.
pub(super) const PORT: u8 = 1;

/// The queue key of every UD queue pair in this program.
pub(super) const QKEY: u32 = 0x0005_eed5;

/// A time limit that no message exceeds, even on a busy machine, under a sanitizer or in an
/// emulated guest.
const PATIENCE: Duration = Duration::from_secs(60);

/// The number of objects that a process may leak. Their memory is never freed.
const FORGET_AT_MOST: u64 = 300;

/// A queue pair and the program's records of it.
#[derive(Debug)]
pub(super) struct Station {
    pub(super) qp: AnyQp,
    /// The station's number in messages; unique within the round.
    pub(super) number: u32,
    pub(super) context: usize,
    pub(super) cqs: [CqId; 2],
    /// The requests whose memory is in the queue pair.
    pub(super) posted: InFlight,
    /// The `wr_id` of the last unsignalled send since the last signalled one.
    pub(super) unsignaled: Option<u64>,
    /// The index of the connected queue pair's context and, if known, the number of its station.
    pub(super) peer: Option<(usize, Option<u32>)>,
    /// Whether the queue pair is unusable until a reset, because a request failed or the queue pair
    /// was moved to the error state.
    pub(super) is_broken: bool,
    /// Whether the queue holds memory under a `wr_id` unknown to the program (after a failed
    /// doorbell).
    pub(super) has_unknown: bool,
    /// The requests still in the queue pair after a reset that does not end them. Their memory
    /// returns when the queue pair is dismantled.
    pub(super) kept: InFlight,
    /// The unsignalled requests before a completion whose memory was dropped half-way. The drop
    /// released their memory, back to the last request returned by its own completion. Earlier
    /// requests return with that completion or with the queue pair.
    pub(super) dropped: InFlight,
}

/// The program's records of requests in flight. Numbers are unique during the life of their
/// completion queue.
pub(super) type InFlight = HashMap<Number, Posted>;

/// The number of a request: its context, its completion queue and its `wr_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Number {
    pub(super) context: usize,
    pub(super) cq: CqId,
    pub(super) wr_id: u64,
}

/// Memory polled by a thread for another thread's queue pair.
#[derive(Debug)]
pub(super) struct Stray {
    pub(super) number: Number,
    pub(super) outcome: Outcome,
    pub(super) returned: Returned,
}

/// A completion queue and the program's records of it.
#[derive(Debug)]
pub(super) struct Poller {
    pub(super) cq: AnyCq,
    pub(super) id: CqId,
    pub(super) context: usize,
    /// Copied completions not yet used to reclaim memory.
    pub(super) polled: Vec<Wc>,
    /// Some of the copied completions already used.
    pub(super) spent: Vec<Wc>,
}

/// An object that one thread gives to another.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub(super) enum Thing {
    Station(Box<Station>, Vec<Poller>),
    Poller(Poller),
    Held(Held),
    Frozen(Frozen),
    Region(Box<Region>),
}

/// The state shared by the threads of a round.
#[derive(Debug)]
pub(super) struct World {
    /// The devices and their contexts. One device has two contexts.
    pub(super) devices: Vec<Device>,
    pub(super) contexts: Vec<Context>,
    /// A protection domain in each context.
    pub(super) pds: Vec<Pd>,
    gids: Vec<GidEntry>,
    ports: Vec<Port>,
    /// Completion queues to create queue pairs on. Other threads poll some of them; some are
    /// closed.
    handles: Mutex<Vec<(usize, AnyCqHandle)>>,
    /// Polled memory waiting for the threads that own its queue pairs.
    strays: Mutex<Vec<Stray>>,
    /// Requests that did not return when their queue pair ended, because a thread had already
    /// polled their completions.
    missing: Mutex<InFlight>,
    targets: Mutex<Vec<Arc<Target>>>,
    /// The context indices and queue pair numbers of the UD queue pairs.
    datagram: Mutex<Vec<(usize, u32)>>,
    market: Mutex<Vec<Thing>>,
    forgotten: AtomicU64,
    next_station: AtomicU32,
    pub(super) stop: AtomicBool,
}

impl World {
    /// Opens two soft devices and a second context of the first, or two contexts of the named
    /// device.
    pub(super) fn open(device: Option<&str>) -> CaseResult<Self> {
        let devices = match device {
            None => vec![verbs::soft::auto()?, verbs::soft::auto()?],
            Some(name) => vec![verbs::devices()?.find(name)?],
        };
        let mut contexts = devices.iter().map(Device::open).collect::<Result<Vec<_>, _>>()?;
        contexts.push(devices[0].open()?);
        let pds = contexts.iter().map(Context::alloc_pd).collect::<Result<Vec<_>, _>>()?;
        let ports = contexts.iter().map(|context| context.port(PORT)).collect::<Result<Vec<_>, _>>()?;
        let gids = contexts.iter().map(|context| context.find_gid(PORT)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            devices,
            contexts,
            pds,
            gids,
            ports,
            handles: Mutex::default(),
            strays: Mutex::default(),
            missing: Mutex::default(),
            targets: Mutex::default(),
            datagram: Mutex::default(),
            market: Mutex::default(),
            forgotten: AtomicU64::new(0),
            next_station: AtomicU32::new(1),
            stop: AtomicBool::new(false),
        })
    }

    pub(super) fn station(&self, qp: AnyQp, context: usize, cqs: [CqId; 2]) -> Station {
        let number = self.next_station.fetch_add(1, Ordering::Relaxed);
        Station {
            qp,
            number,
            context,
            cqs,
            posted: HashMap::new(),
            unsignaled: None,
            peer: None,
            is_broken: false,
            has_unknown: false,
            kept: HashMap::new(),
            dropped: HashMap::new(),
        }
    }

    /// Returns the path from one context to another.
    pub(super) fn path(&self, from: usize, to: usize) -> AhAttr {
        AhAttr { dlid: self.ports[to].lid, ..AhAttr::new(&self.gids[from], self.gids[to].gid) }
    }

    pub(super) fn publish_handle(&self, context: usize, handle: AnyCqHandle) {
        keep_recent(&mut locked(&self.handles), (context, handle));
    }

    pub(super) fn handles(&self) -> Vec<(usize, AnyCqHandle)> {
        locked(&self.handles).clone()
    }

    /// Hands over memory to the threads that own its queue pairs.
    pub(super) fn give_strays(&self, strays: &mut Vec<Stray>) {
        if !strays.is_empty() {
            locked(&self.strays).append(strays);
        }
    }

    /// Removes and returns the memory of known requests.
    pub(super) fn take_strays(&self, is_known: impl Fn(&Number) -> bool) -> Vec<Stray> {
        let mut strays = locked(&self.strays);
        let (known, unknown) =
            std::mem::take(&mut *strays).into_iter().partition(|one| is_known(&one.number));
        *strays = unknown;
        known
    }

    /// Records requests that did not return when their queue pair ended.
    pub(super) fn miss(&self, posted: InFlight) {
        locked(&self.missing).extend(posted);
    }

    /// Checks, after all threads have ended, that some thread polled each missed request.
    pub(super) fn nothing_is_lost(&self, tally: &Tally) -> CaseResult {
        let mut missing = locked(&self.missing);
        let mut found: Vec<Memory> = Vec::new();
        for Stray { number, outcome, returned } in std::mem::take(&mut *locked(&self.strays)) {
            if !missing.contains_key(&number) {
                found.extend(returned);
                continue;
            }
            let key = |wr_id| Number { wr_id, ..number };
            let (chain, _) = take_chain(&mut missing, key, number.wr_id, returned).map_err(Stop::Failed)?;
            for (place, (posted, memory)) in chain.into_iter().enumerate() {
                let is_known = place == 0 || outcome.is_success();
                let outcome = if is_known { outcome } else { Outcome::Forgotten };
                posted.check(&memory, outcome).map_err(Stop::Failed)?;
                tally.add(Kind::MissedFound);
            }
        }
        // Shares of the same memory are interchangeable: when a queue pair ends, it may return one
        // in place of another.
        missing.retain(|_, posted| {
            let at = found.iter().position(|memory| posted.is_of(std::slice::from_ref(memory)));
            at.map(|at| found.swap_remove(at)).is_none()
        });
        if missing.is_empty() { Ok(()) } else { fail(format_args!("memory was lost: {:?}", *missing)) }
    }

    /// Counts an object about to be leaked. Returns whether the limit allows it.
    pub(super) fn may_forget(&self) -> bool {
        self.forgotten.fetch_add(1, Ordering::Relaxed) < FORGET_AT_MOST
    }

    pub(super) fn publish(&self, target: &Arc<Target>) {
        keep_recent(&mut locked(&self.targets), Arc::clone(target));
    }

    pub(super) fn targets(&self) -> Vec<Arc<Target>> {
        let mut targets = locked(&self.targets);
        // Some dead targets stay in the list, for their stale keys.
        let dead = targets.iter().filter(|target| !target.is_alive()).count();
        if dead > 8
            && let Some(at) = targets.iter().position(|target| !target.is_alive())
        {
            targets.remove(at);
        }
        targets.clone()
    }

    pub(super) fn publish_datagram(&self, context: usize, qp_num: u32) {
        keep_recent(&mut locked(&self.datagram), (context, qp_num));
    }

    pub(super) fn datagram(&self) -> Vec<(usize, u32)> {
        locked(&self.datagram).clone()
    }

    /// Offers an object to other threads. Returns the object if the list of offers is full or
    /// locked.
    #[allow(clippy::result_large_err)]
    pub(super) fn put(&self, thing: Thing) -> Result<(), Thing> {
        match self.market.try_lock() {
            Ok(mut market) if market.len() < 24 => {
                market.push(thing);
                Ok(())
            }
            _ => Err(thing),
        }
    }

    pub(super) fn take(&self, choice: u64) -> Option<Thing> {
        let mut market = match self.market.try_lock() {
            Ok(market) => market,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let len = market.len();
        (len > 0).then(|| market.swap_remove(choice as usize % len))
    }

    /// Returns the objects that no thread took.
    pub(super) fn unsold(&self) -> Vec<Thing> {
        std::mem::take(&mut locked(&self.market))
    }

    /// Returns whether the devices are ConnectX.
    pub(super) fn is_mlx5(&self) -> bool {
        self.contexts[0].provider_name() == "mlx5"
    }

    /// Returns whether this program can name the devices' provider.
    pub(super) fn is_named(&self) -> bool {
        handle::is_named(self.contexts[0].provider_name())
    }

    /// Returns whether an overrun, which is a fault of the program, makes a completion queue
    /// unusable. Other devices lose completions and continue.
    pub(super) fn stops_at_overruns(&self) -> bool {
        self.is_mlx5()
    }

    /// Returns whether the driver trusts the program's claim about a queue pair's current state, in
    /// which case the device rejects the transition.
    pub(super) fn believes_states(&self) -> bool {
        self.is_mlx5()
    }

    /// Checks that the devices still carry a message from each context to every context.
    pub(super) fn still_works(&self, tally: &Tally) -> CaseResult {
        for from in 0..self.contexts.len() {
            for to in 0..self.contexts.len() {
                self.carries(from, to)
                    .map_err(|stop| stop.context(format_args!("from context {from} to {to}, afterwards")))?;
                tally.add(Kind::CheckedMessage);
            }
        }
        Ok(())
    }

    fn carries(&self, from: usize, to: usize) -> CaseResult {
        const LEN: usize = 3000;
        let make = |context: usize| -> CaseResult<_> {
            let cq = self.contexts[context].create_cq(&CqInit::new(8))?;
            let qp = self.pds[context].create_qp(&QpInit::new(QpType::RC, &cq))?;
            Ok((cq, qp))
        };
        let ((mut send_cq, sender), (mut recv_cq, receiver)) = (make(from)?, make(to)?);
        let (from_port, to_port) = (&self.ports[from], &self.ports[to]);
        let (sender_is, receiver_is) = (sender.endpoint(from_port), receiver.endpoint(to_port));
        let attr = ConnectAttr::default();
        let mut sender = sender.connect(from_port, &receiver_is, &attr)?;
        let mut receiver = receiver.connect(to_port, &sender_is, &attr)?;
        let sent = message(0, 1, LEN);
        let mut out = self.pds[from].alloc_buf(LEN)?;
        out.copy_from_slice(&sent);
        receiver.post_recv_buf(self.pds[to].alloc_buf(LEN)?, ..)?;
        sender.post_send_buf(SendOp::Send, SendFlags::empty(), out, ..)?;
        let deadline = Instant::now() + PATIENCE;
        let (mut got, mut is_sent) = (None, false);
        while got.is_none() || !is_sent {
            // Polls both in turn, because a soft device's queue makes progress only when polled.
            if let Some(completed) = send_cq.poll_one() {
                is_sent = completed.ok()?.into_buf().is_ok();
            }
            if let Some(completed) = recv_cq.poll_one() {
                got = Some(completed.ok()?.into_buf()?);
            }
            if Instant::now() > deadline {
                return fail(format_args!("no message after {PATIENCE:?}"));
            }
            std::thread::yield_now();
        }
        match got {
            Some(buf) if buf[..] == sent[..] => Ok(()),
            _ => fail("another message came than was sent"),
        }
    }
}

impl Station {
    /// Returns the number of a request posted to the station's send or receive queue.
    pub(super) fn number_of(&self, is_recv: bool, wr_id: u64) -> Number {
        Number { context: self.context, cq: self.cqs[usize::from(is_recv)], wr_id }
    }
}

/// Returns the attributes for the transition from INIT to RTR.
pub(super) fn rtr_attr(
    ah_attr: AhAttr,
    dest_qp_num: u32,
    rq_psn: u32,
    path_mtu: Mtu,
    [max_dest_rd_atomic, min_rnr_timer]: [u8; 2],
) -> RtrAttr {
    RtrAttr { ah_attr, dest_qp_num, rq_psn, path_mtu, max_dest_rd_atomic, min_rnr_timer }
}

fn keep_recent<T>(list: &mut Vec<T>, item: T) {
    const RECENT: usize = 48;
    if list.len() == RECENT {
        list.remove(0);
    }
    list.push(item);
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
