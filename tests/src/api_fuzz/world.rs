//! [`World`]: what the threads of a round share: devices, who can be sent to, and a market where
//! objects change threads.
//!
//! It is locked seldom and never waited for on the way of data: a lock orders what two threads do,
//! and would hide a race of the library's from ThreadSanitizer.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use verbs::{
    AhAttr, Context, CqId, CqInit, Device, GidEntry, GlobalRoute, InitAttr, Mtu, Pd, QpCap, QpInit, QpType,
    RtrAttr, RtsAttr, SendFlags, SendOp,
};

use super::handle::{AnyCq, AnyQp};
use super::memory::{Held, Parked, Region, Target, message};
use super::tally::{Kind, Tally};
use crate::runner::{CaseResult, Stop, fail};

/// The port that is used.
pub(super) const PORT: u8 = 1;

/// The queue key of every UD queue pair here.
pub(super) const QKEY: u32 = 0x0005_eed5;

/// Beyond what a message takes on a busy machine, under a sanitizer, in an emulated guest.
const PATIENCE: Duration = Duration::from_secs(60);

/// The limit on forgotten objects in one process, because forgotten memory is never released.
const FORGET_AT_MOST: u64 = 300;

/// A queue pair and what the program knows of it.
#[derive(Debug)]
pub(super) struct Station {
    pub(super) qp: AnyQp,
    /// Tells it from all others of the round, in messages.
    pub(super) number: u32,
    pub(super) context: usize,
    pub(super) cqs: [CqId; 2],
    /// The requests whose buffers the queue pair has.
    pub(super) parked: HashMap<u64, Parked>,
    /// The context of the queue pair that it is connected to, and the number of that station, where
    /// it is known.
    pub(super) peer: Option<(usize, Option<u32>)>,
    /// A request failed.
    pub(super) is_broken: bool,
    /// A buffer is in the queue under a number that the program was not told (a doorbell that
    /// failed).
    pub(super) has_unknown: bool,
    /// Requests that a reset which does not end requests has left in a queue pair; they come back
    /// when the queue pair is taken apart.
    pub(super) kept: HashMap<u64, Parked>,
}

/// A completion queue and what the program knows of it.
#[derive(Debug)]
pub(super) struct Poller {
    pub(super) cq: AnyCq,
    pub(super) id: CqId,
    pub(super) context: usize,
}

/// An object that changes threads.
#[derive(Debug)]
pub(super) enum Thing {
    Station(Box<Station>, Vec<Poller>),
    Poller(Poller),
    Held(Held),
    Region(Box<Region>),
}

/// The state that the threads of a round share.
#[derive(Debug)]
pub(super) struct World {
    /// The devices, and contexts of them: one device has two.
    pub(super) devices: Vec<Device>,
    pub(super) contexts: Vec<Context>,
    /// A protection domain of each context.
    pub(super) pds: Vec<Pd>,
    gids: Vec<GidEntry>,
    targets: Mutex<Vec<Arc<Target>>>,
    /// UD queue pairs: their contexts and numbers.
    datagram: Mutex<Vec<(usize, u32)>>,
    market: Mutex<Vec<Thing>>,
    forgotten: AtomicU64,
    next_station: AtomicU32,
    pub(super) stop: AtomicBool,
}

impl World {
    /// Opens the devices: two soft devices and a second context of the first, or two contexts of
    /// the device that is named.
    pub(super) fn open(device: Option<&str>) -> CaseResult<Self> {
        let devices = match device {
            None => vec![verbs::soft::auto()?, verbs::soft::auto()?],
            Some(name) => vec![verbs::devices()?.find(name)?],
        };
        let mut contexts = devices.iter().map(Device::open).collect::<Result<Vec<_>, _>>()?;
        contexts.push(devices[0].open()?);
        let pds = contexts.iter().map(Context::alloc_pd).collect::<Result<Vec<_>, _>>()?;
        let gids = contexts.iter().map(|context| context.find_gid(PORT)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            devices,
            contexts,
            pds,
            gids,
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
            parked: HashMap::new(),
            peer: None,
            is_broken: false,
            has_unknown: false,
            kept: HashMap::new(),
        }
    }

    /// The path from one context to another.
    pub(super) fn path(&self, from: usize, to: usize) -> AhAttr {
        let grh = GlobalRoute {
            dgid: self.gids[to].gid,
            sgid_index: self.gids[from].gid_index,
            hop_limit: 64,
            ..GlobalRoute::default()
        };
        AhAttr { grh: Some(grh), port_num: PORT, ..AhAttr::default() }
    }

    /// Returns whether one more object may be forgotten.
    pub(super) fn may_forget(&self) -> bool {
        self.forgotten.fetch_add(1, Ordering::Relaxed) < FORGET_AT_MOST
    }

    pub(super) fn publish(&self, target: &Arc<Target>) {
        keep_recent(&mut locked(&self.targets), Arc::clone(target));
    }

    pub(super) fn targets(&self) -> Vec<Arc<Target>> {
        let mut targets = locked(&self.targets);
        // Some of those that are gone stay, for stale keys.
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

    /// Gives something to another thread, or back to this one where the market is full or in use.
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

    /// After all that was done to them, the devices carry a message from each context to each.
    pub(super) fn still_works(&self, tally: &Tally) -> CaseResult {
        for from in 0..self.contexts.len() {
            for to in 0..self.contexts.len() {
                self.carries(from, to)
                    .map_err(|stop| stop.of(format_args!("from context {from} to {to}, afterwards")))?;
                tally.add(Kind::CheckedMessage);
            }
        }
        Ok(())
    }

    fn carries(&self, from: usize, to: usize) -> CaseResult {
        const LEN: usize = 3000;
        let cap =
            QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let make = |context: usize| -> CaseResult<_> {
            let cq = self.contexts[context].create_cq(&CqInit::new(8))?;
            let init = QpInit { qp_type: QpType::RC, send_cq: &cq, recv_cq: &cq, cap, sq_sig_all: false };
            let qp = self.pds[context].create_qp(&init)?;
            Ok((cq, qp))
        };
        let ((mut send_cq, sender), (mut recv_cq, receiver)) = (make(from)?, make(to)?);
        let up = |qp: verbs::Qp<verbs::state::Reset>, context, peer, dest_qp_num| -> CaseResult<_> {
            let qp = qp
                .to_init(&InitAttr { port_num: PORT, ..InitAttr::default() })
                .map_err(|(_, error)| error)?;
            let rtr = rtr_attr(self.path(context, peer), dest_qp_num, 77, Mtu::MTU_1024, [1, 12]);
            let qp = qp.to_rtr(&rtr).map_err(|(_, error)| error)?;
            let rts = RtsAttr { sq_psn: Some(77), timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 1 };
            Ok(qp.to_rts(&rts).map_err(|(_, error)| error)?)
        };
        let (sender_num, receiver_num) = (sender.qp_num(), receiver.qp_num());
        let (mut sender, mut receiver) =
            (up(sender, from, to, receiver_num)?, up(receiver, to, from, sender_num)?);
        let sent = message(0, 1, LEN);
        let mut out = self.pds[from].alloc_buf(LEN)?;
        out.copy_from_slice(&sent);
        receiver.park_recv(self.pds[to].alloc_buf(LEN)?, ..).map_err(|error| error.reason)?;
        sender.park_send(SendOp::Send, SendFlags::empty(), out, ..).map_err(|error| error.reason)?;
        let deadline = Instant::now() + PATIENCE;
        let (mut got, mut is_sent) = (None, false);
        while got.is_none() || !is_sent {
            // One after the other: a queue of soft makes progress when it is polled.
            let mut completions = send_cq.poll();
            while let Some(completion) = completions.next() {
                if !completion.is_success() {
                    return fail(format_args!("the send ended with {}", completion.status()));
                }
                is_sent = sender.reclaim(&completion).is_some();
            }
            drop(completions);
            let mut completions = recv_cq.poll();
            while let Some(completion) = completions.next() {
                if !completion.is_success() {
                    return fail(format_args!("the receive ended with {}", completion.status()));
                }
                got = receiver.reclaim(&completion).and_then(verbs::Parcel::into_buf);
            }
            if Instant::now() > deadline {
                return fail(format_args!("no message after {PATIENCE:?}"));
            }
            std::thread::yield_now();
        }
        match got {
            Some(buf) if buf[..] == sent[..] => Ok(()),
            _ => Err(Stop::Failed("another message came than was sent".to_owned())),
        }
    }
}

/// INIT to RTR, with every attribute given.
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
