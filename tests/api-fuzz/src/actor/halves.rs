//! Posting through the owned halves of a queue pair in two threads; mixing the halves of two queue
//! pairs.
#![forbid(unsafe_code)]

use std::thread;

use verbs::state::Rts;
use verbs::{Completed, Memory, Provider, RecvHalf, Returned, SendFlags, SendHalf};
use verbs_harness::runner::{CaseResult, fail};

use super::super::handle::{AnyCq, AnyHalves, AnyRange, Halves, NotPosted, Posting, any};
use super::super::memory::{Outcome, Posted, resolve};
use super::super::tally::{Kind, Tally};
use super::super::world::{Number, Poller, Station};
use super::Actor;
use super::post::{Op, into_any};

/// The number of requests posted by each half.
const ROUNDS: usize = 6;

/// A request to post through a half.
struct Job {
    op: Op,
    flags: SendFlags,
    memory: Memory,
    range: AnyRange,
    is_odd: bool,
    posted: Posted,
}

/// The record of one half's posts and completions.
#[derive(Default)]
struct Side {
    posts: Vec<(bool, Posted, Posting)>,
    /// The completed requests: number, outcome and returned memory.
    back: Vec<(Number, Outcome, Option<Returned>)>,
}

impl Side {
    fn poll(&mut self, poller: Option<&mut Poller>, tally: &Tally) {
        let Some(poller) = poller else { return };
        while let Some(Completed { wc, returned, .. }) = any!(AnyCq, &mut poller.cq, cq => cq.poll_one()) {
            tally.add(Kind::Completion);
            tally.add_status(wc.status);
            let number = Number { context: poller.context, cq: poller.id, wr_id: wc.wr_id };
            self.back.push((number, wc.into(), returned));
        }
    }
}

fn send_side<P: Provider>(
    mut half: SendHalf<Rts, P>,
    jobs: Vec<Job>,
    ahs: &[(usize, usize, verbs::Ah)],
    mut poller: Option<Poller>,
    tally: &Tally,
) -> (SendHalf<Rts, P>, Side, Option<Poller>) {
    let mut side = Side::default();
    for Job { op, flags, memory, range, is_odd, posted } in jobs {
        let result = half.post_send_buf(op.with(ahs), flags, memory, range);
        side.posts.push((is_odd, posted, into_any(result.map_err(NotPosted::from))));
        side.poll(poller.as_mut(), tally);
    }
    (half, side, poller)
}

fn recv_side<P: Provider>(
    mut half: RecvHalf<Rts, P>,
    jobs: Vec<Job>,
    mut poller: Option<Poller>,
    tally: &Tally,
) -> (RecvHalf<Rts, P>, Side, Option<Poller>) {
    let mut side = Side::default();
    for Job { memory, range, is_odd, posted, .. } in jobs {
        let result = half.post_recv_buf(memory, range);
        side.posts.push((is_odd, posted, into_any(result.map_err(NotPosted::from))));
        side.poll(poller.as_mut(), tally);
    }
    (half, side, poller)
}

/// Both halves, their records and the queues they polled.
type BothDid<P> = (Halves<P>, [Side; 2], [Option<Poller>; 2]);

/// Runs both halves in separate threads; returns `None` if one of the threads panicked.
fn on_threads<P: Provider>(
    (send, recv): Halves<P>,
    [sends, recvs]: [Vec<Job>; 2],
    [send_poller, recv_poller]: [Option<Poller>; 2],
    ahs: &[(usize, usize, verbs::Ah)],
    tally: &Tally,
) -> Option<BothDid<P>> {
    thread::scope(|scope| {
        let send = scope.spawn(move || send_side(send, sends, ahs, send_poller, tally));
        let recv = scope.spawn(move || recv_side(recv, recvs, recv_poller, tally));
        let (send, send_did, send_poller) = send.join().ok()?;
        let (recv, recv_did, recv_poller) = recv.join().ok()?;
        Some(((send, recv), [send_did, recv_did], [send_poller, recv_poller]))
    })
}

impl Actor<'_> {
    /// Posts and polls through both halves of a queue pair at the same time and joins them again.
    pub(super) fn two_threads(&mut self) -> CaseResult {
        let Some(mut station) = self.take_station(|one| one.qp.is_rts()) else { return Ok(()) };
        let (mut sends, mut recvs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            sends.extend(self.job(&station, true)?);
            recvs.extend(self.job(&station, false)?);
        }
        let mut poller_of = |id| {
            let at = self.pollers.iter().position(|one| (one.context, one.id) == (station.context, id))?;
            Some(self.pollers.swap_remove(at))
        };
        let [send_id, recv_id] = station.cqs;
        let send_poller = poller_of(send_id);
        let pollers = [send_poller, poller_of(recv_id)];
        let (ahs, tally, jobs) = (&self.ahs, self.tally, [sends, recvs]);
        let halves = match station.qp.split() {
            Ok(halves) => halves,
            Err(_) => return fail("a queue pair in RTS has no halves"),
        };
        let done = any!(AnyHalves, halves, halves => on_threads(halves, jobs, pollers, ahs, tally)
            .map(|(halves, did, pollers)| (AnyHalves::from(halves), did, pollers)));
        let Some((halves, did, pollers)) = done else { return fail("a half's thread panicked") };
        self.pollers.extend(pollers.into_iter().flatten());
        let Ok(qp) = halves.join() else { return fail("two halves of one queue pair are not joined") };
        station.qp = qp;
        self.tally.add(Kind::HalvesThreads);
        let mut back = Vec::new();
        for (side, kind) in did.into_iter().zip([Kind::PostSend, Kind::PostRecv]) {
            for (is_odd, posted, result) in side.posts {
                let context = station.context;
                self.posted(&mut station, kind, result, posted, is_odd, context)?;
            }
            back.extend(side.back);
        }
        self.stations.push(station);
        back.into_iter().try_for_each(|(number, outcome, returned)| self.take_back(number, outcome, returned))
    }

    /// Returns a request for a half, with a buffer from the station's domain.
    fn job(&mut self, station: &Station, is_send: bool) -> CaseResult<Option<Job>> {
        let Some(mut held) = self.take_held(station.context)? else { return Ok(None) };
        let (op, range) = self.operation(station, held.len());
        let is_odd = resolve(range, held.len()).is_none();
        let (memory, posted) = if is_send {
            self.prepare(station, held, &op, range)?
        } else {
            self.checked(&held)?;
            held.refill(self.choices.any());
            let resolved = resolve(range, held.len()).unwrap_or(0..0);
            let (memory, piece) = held.into_parts(resolved);
            (memory, Posted::one(station.recv(), piece))
        };
        let flags = self.flags();
        Ok(Some(Job { op, flags, memory, range, is_odd, posted }))
    }

    /// Tries to join halves of two queue pairs, posts through them and restores the original pairs.
    pub(super) fn cross_halves(&mut self) -> CaseResult {
        let Some(one) = self.take_station(|one| one.qp.is_rts()) else { return Ok(()) };
        let context = one.context;
        let Some(other) = self.take_station(|other| other.qp.is_rts() && other.context == context) else {
            self.stations.push(one);
            return Ok(());
        };
        self.cross(one, other)
    }

    fn cross(&mut self, mut one: Station, mut other: Station) -> CaseResult {
        let (Ok(mut first), Ok(mut second)) = (one.qp.split(), other.qp.split()) else {
            return fail("a queue pair in RTS has no halves");
        };
        if first.swap_recv(&mut second) {
            let (Err(back_first), Err(back_second)) = (first.join(), second.join()) else {
                return fail("halves of two queue pairs were joined");
            };
            (first, second) = (back_first, back_second);
            self.tally.add(Kind::HalvesCrossed);
            first.swap_recv(&mut second);
        }
        let (Ok(first), Ok(second)) = (first.join(), second.join()) else {
            return fail("two halves of one queue pair are not joined");
        };
        (one.qp, other.qp) = (first, second);
        // Both queue pairs work as before.
        for mut station in [one, other] {
            if let Some(Job { memory, range, is_odd, posted, .. }) = self.job(&station, false)? {
                let result = into_any(station.qp.post_recv(memory, range));
                let context = station.context;
                self.posted(&mut station, Kind::PostRecv, result, posted, is_odd, context)?;
            }
            self.stations.push(station);
        }
        Ok(())
    }
}
