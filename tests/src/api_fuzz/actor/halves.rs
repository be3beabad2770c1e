//! Posting through halves, on two threads, and through halves that were swapped.
#![forbid(unsafe_code)]

use std::thread;

use verbs::{Buf, Completion, Provider, RecvHalf, SendFlags, SendHalf};

use super::super::handle::{AnyCq, AnyHalves, AnyRange, NotParked, any};
use super::super::memory::{Held, Outcome, Parked, What, message, resolve};
use super::super::tally::{Kind, Tally};
use super::super::world::{Poller, Station};
use super::Actor;
use super::poll::accept;
use super::post::Op;
use crate::runner::{CaseResult, fail};

/// The number of requests that each half posts.
const ROUNDS: usize = 6;

/// A request for a half.
struct Job {
    op: Op,
    flags: SendFlags,
    buf: Buf,
    range: AnyRange,
    parked: Parked,
}

/// The work of a half.
#[derive(Default)]
struct Side {
    parked: Vec<(u64, Parked)>,
    refused: Vec<(Parked, Buf)>,
    /// The requests that came back: number, outcome and buffers.
    back: Vec<(u64, Outcome, Vec<Buf>)>,
    has_unknown: bool,
}

impl Side {
    fn posted(&mut self, result: Result<u64, verbs::ParkError<Buf>>, parked: Parked) {
        match result.map_err(NotParked::from) {
            Ok(wr_id) => self.parked.push((wr_id, parked)),
            Err(NotParked { returned: Some(buf), .. }) => self.refused.push((parked, buf)),
            Err(NotParked { returned: None, .. }) => self.has_unknown = true,
        }
    }
}

/// Polls a queue and shows its completions to a half.
fn show_to_half<P: Provider>(
    tally: &Tally,
    cq: &mut verbs::Cq<P>,
    side: &mut Side,
    mut reclaim: impl FnMut(&Completion<'_, P>) -> Option<verbs::Parcel>,
) {
    let mut completions = cq.poll();
    while let Some(completion) = completions.next() {
        tally.add(Kind::Completion);
        tally.add_status(completion.status());
        if let Some(parcel) = reclaim(&completion) {
            let (status, byte_len) = (completion.status(), completion.byte_len());
            let outcome = Outcome::Completed { status, opcode: completion.opcode(), byte_len };
            side.back.push((completion.wr_id(), outcome, parcel.into_bufs()));
        }
    }
}

fn send_side<P: Provider>(
    mut half: SendHalf<'_, P>,
    jobs: Vec<Job>,
    ahs: &[(usize, usize, verbs::Ah)],
    mut poller: Option<&mut Poller>,
    tally: &Tally,
) -> Side {
    let mut side = Side::default();
    for Job { op, flags, buf, range, parked } in jobs {
        side.posted(half.park_send(op.with(ahs), flags, buf, range), parked);
        if let Some(poller) = &mut poller {
            any!(AnyCq, &mut poller.cq, cq => {
                show_to_half(tally, cq, &mut side, |completion| half.reclaim(completion));
            });
        }
    }
    side
}

fn recv_side<P: Provider>(
    mut half: RecvHalf<'_, P>,
    jobs: Vec<Job>,
    mut poller: Option<&mut Poller>,
    tally: &Tally,
) -> Side {
    let mut side = Side::default();
    for Job { buf, range, parked, .. } in jobs {
        side.posted(half.park_recv(buf, range), parked);
        if let Some(poller) = &mut poller {
            any!(AnyCq, &mut poller.cq, cq => {
                show_to_half(tally, cq, &mut side, |completion| half.reclaim(completion));
            });
        }
    }
    side
}

impl Actor<'_> {
    /// Posts and polls through both halves of a queue pair at the same time.
    pub(super) fn two_threads(&mut self) -> CaseResult {
        let Some(mut station) = self.take_station(|one| one.qp.can_send()) else { return Ok(()) };
        let result = self.two_threads_on(&mut station);
        self.stations.push(station);
        result
    }

    fn two_threads_on(&mut self, station: &mut Station) -> CaseResult {
        let (mut sends, mut recvs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            sends.extend(self.job(station, true)?);
            recvs.extend(self.job(station, false)?);
        }
        let mut pollers = Vec::new();
        for id in station.cqs {
            if let Some(at) = self.pollers.iter().position(|poller| poller.id == id) {
                pollers.push(self.pollers.swap_remove(at));
            }
        }
        let [send_id, recv_id] = station.cqs;
        let mut send_poller = None;
        let mut recv_poller = None;
        for poller in &mut pollers {
            if poller.id == send_id {
                send_poller = Some(poller);
            } else if poller.id == recv_id {
                recv_poller = Some(poller);
            }
        }
        let (ahs, tally) = (&self.ahs, self.tally);
        let sides = station.qp.halves().map(|halves| {
            thread::scope(|scope| {
                let (send, recv) = match halves {
                    AnyHalves::Erased(send, recv) => (
                        scope.spawn(move || send_side(send, sends, ahs, send_poller, tally)),
                        scope.spawn(move || recv_side(recv, recvs, recv_poller, tally)),
                    ),
                    AnyHalves::Rxe(send, recv) => (
                        scope.spawn(move || send_side(send, sends, ahs, send_poller, tally)),
                        scope.spawn(move || recv_side(recv, recvs, recv_poller, tally)),
                    ),
                    AnyHalves::Soft(send, recv) => (
                        scope.spawn(move || send_side(send, sends, ahs, send_poller, tally)),
                        scope.spawn(move || recv_side(recv, recvs, recv_poller, tally)),
                    ),
                };
                [send.join(), recv.join()]
            })
        });
        self.pollers.append(&mut pollers);
        for side in sides.into_iter().flatten() {
            let Ok(side) = side else { return fail("a half's thread panicked") };
            self.take_side(station, side)?;
        }
        self.tally.add(Kind::HalvesThreads);
        Ok(())
    }

    /// A request for a half, of a buffer of the station's own domain.
    fn job(&mut self, station: &Station, is_send: bool) -> CaseResult<Option<Job>> {
        let Some(mut held) = self.take_held(station.context)? else { return Ok(None) };
        self.checked(&held)?;
        let (op, range) = self.operation(station, held.len());
        let resolved = resolve(range, held.len());
        let what = if is_send { op.what() } else { station.recv() };
        match (&what, &resolved) {
            (What::Out, Some(range)) => {
                let seed = self.choices.any();
                held.write(range.start, &message(station.number, seed, range.len()));
            }
            _ => held.refill(self.choices.any()),
        }
        let (buf, piece) = held.into_parts(resolved.unwrap_or(0..0));
        let flags = self.flags();
        Ok(Some(Job { op, flags, buf, range, parked: Parked { what, pieces: vec![piece] } }))
    }

    /// Takes in what a half did.
    fn take_side(&mut self, station: &mut Station, side: Side) -> CaseResult {
        let Side { parked, refused, back, has_unknown } = side;
        station.parked.extend(parked);
        station.has_unknown |= has_unknown;
        for (parked, buf) in refused {
            if !parked.is_of(std::slice::from_ref(&buf)) {
                return fail(format_args!("another buffer came back than was refused: {buf:?}"));
            }
            for held in parked.into_unparked(vec![buf]) {
                self.checked(&held)?;
                self.keep(held)?;
            }
        }
        for (wr_id, outcome, bufs) in back {
            let Some(parked) = station.parked.remove(&wr_id) else {
                return fail(format_args!("{bufs:?} came back under {wr_id:#x}, which was not given"));
            };
            accept(self.tally, &parked, &bufs, outcome)?;
            self.tally.add(Kind::Reclaimed);
            self.keep_all(parked, bufs)?;
        }
        Ok(())
    }

    /// Swaps the halves of two queue pairs, and parks through them.
    pub(super) fn swap_halves(&mut self) -> CaseResult {
        let Some(mut one) = self.take_station(|one| one.qp.can_send()) else { return Ok(()) };
        let context = one.context;
        let result = match self.take_station(|other| other.qp.can_send() && other.context == context) {
            Some(mut other) => {
                let result = self.swap_halves_of(&mut one, &mut other);
                self.stations.push(other);
                result
            }
            None => Ok(()),
        };
        self.stations.push(one);
        result
    }

    fn swap_halves_of(&mut self, one: &mut Station, other: &mut Station) -> CaseResult {
        // Each job is of the station whose halves the other variable will hold.
        let (Some(for_one), Some(for_other)) = (self.job(one, false)?, self.job(other, false)?) else {
            return Ok(());
        };
        let mut sides = [Side::default(), Side::default()];
        let rest = match (one.qp.halves(), other.qp.halves()) {
            (Some(AnyHalves::Erased(s1, r1)), Some(AnyHalves::Erased(s2, r2))) => {
                swapped([(s1, r1), (s2, r2)], [for_one, for_other], &mut sides);
                Vec::new()
            }
            (Some(AnyHalves::Rxe(s1, r1)), Some(AnyHalves::Rxe(s2, r2))) => {
                swapped([(s1, r1), (s2, r2)], [for_one, for_other], &mut sides);
                Vec::new()
            }
            (Some(AnyHalves::Soft(s1, r1)), Some(AnyHalves::Soft(s2, r2))) => {
                swapped([(s1, r1), (s2, r2)], [for_one, for_other], &mut sides);
                Vec::new()
            }
            // Named differently: there is nothing to swap.
            _ => vec![for_one, for_other],
        };
        if rest.is_empty() {
            self.tally.add(Kind::HalvesSwap);
        }
        let [first, second] = sides;
        self.take_side(one, first)?;
        self.take_side(other, second)?;
        let unused = rest.into_iter().flat_map(|Job { buf, parked, .. }| parked.into_unparked(vec![buf]));
        let unused: Vec<Held> = unused.collect();
        unused.into_iter().try_for_each(|held| self.keep(held))
    }
}

/// The send and receive halves of one queue pair.
type Both<'q, P> = (SendHalf<'q, P>, RecvHalf<'q, P>);

/// Swaps the halves of two queue pairs, and parks what each queue pair is to get through where its
/// half is now.
fn swapped<P: Provider>(halves: [Both<'_, P>; 2], jobs: [Job; 2], sides: &mut [Side; 2]) {
    let [(mut send1, mut recv1), (mut send2, mut recv2)] = halves;
    std::mem::swap(&mut recv1, &mut recv2);
    std::mem::swap(&mut send1, &mut send2);
    let [for_one, for_other] = jobs;
    sides[0].posted(recv2.park_recv(for_one.buf, for_one.range), for_one.parked);
    sides[1].posted(recv1.park_recv(for_other.buf, for_other.range), for_other.parked);
    // Nothing was posted through the send halves: they are put back where they came from.
    std::mem::swap(&mut send1, &mut send2);
}
