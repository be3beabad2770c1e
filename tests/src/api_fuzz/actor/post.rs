//! Parking, and inline sends.
#![forbid(unsafe_code)]

use std::ops::{Bound, Range};
use std::sync::Arc;

use verbs::{ParkReason, QpType, RemoteAccess, SendFlags, SendOp};

use super::super::handle::{AnyRange, NotParked};
use super::super::memory::{Held, Parked, Target, What, message, resolve};
use super::super::tally::Kind;
use super::super::world::{QKEY, Station};
use super::Actor;
use crate::runner::{CaseResult, fail};

/// An operation without what it borrows.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Send,
    SendImm(u32),
    /// Through an address handle of the thread's, if it has one.
    UdSend {
        ah: usize,
        qp_num: u32,
        qkey: u32,
    },
    UdSendImm {
        ah: usize,
        qp_num: u32,
        qkey: u32,
    },
    Write {
        addr: u64,
        rkey: u32,
    },
    WriteImm {
        addr: u64,
        rkey: u32,
    },
    Read {
        addr: u64,
        rkey: u32,
        of: Option<(Arc<Target>, u64)>,
    },
    Cas {
        addr: u64,
        rkey: u32,
        values: [u64; 2],
    },
    Faa {
        addr: u64,
        rkey: u32,
        add: u64,
    },
}

impl Op {
    /// The kind under which it is counted.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Send => Kind::ParkSend,
            Self::SendImm(_) => Kind::ParkSendImm,
            Self::UdSend { .. } => Kind::ParkUdSend,
            Self::UdSendImm { .. } => Kind::ParkUdSendImm,
            Self::Write { .. } => Kind::ParkWrite,
            Self::WriteImm { .. } => Kind::ParkWriteImm,
            Self::Read { .. } => Kind::ParkRead,
            Self::Cas { .. } => Kind::ParkCas,
            Self::Faa { .. } => Kind::ParkFaa,
        }
    }

    /// The use of its buffers.
    pub(super) fn what(&self) -> What {
        match self {
            Self::Read { of, .. } => What::Read(of.clone()),
            Self::Cas { .. } | Self::Faa { .. } => What::Atomic,
            _ => What::Out,
        }
    }

    /// The operation, with the address handles that it names.
    pub(super) fn with<'a>(&self, ahs: &'a [(usize, usize, verbs::Ah)]) -> SendOp<'a> {
        let to = |ah: usize, qp_num, qkey| ahs.get(ah).map(|(_, _, ah)| ah.to(qp_num, qkey));
        match *self {
            Self::Send => SendOp::Send,
            Self::SendImm(imm_data) => SendOp::SendWithImm { imm_data },
            Self::UdSend { ah, qp_num, qkey } => {
                to(ah, qp_num, qkey).map_or(SendOp::Send, |to| SendOp::UdSend { to })
            }
            Self::UdSendImm { ah, qp_num, qkey } => {
                to(ah, qp_num, qkey).map_or(SendOp::Send, |to| SendOp::UdSendWithImm { to, imm_data: 9 })
            }
            Self::Write { addr, rkey } => SendOp::RdmaWrite { remote_addr: addr, rkey },
            Self::WriteImm { addr, rkey } => {
                SendOp::RdmaWriteWithImm { remote_addr: addr, rkey, imm_data: 7 }
            }
            Self::Read { addr, rkey, .. } => SendOp::RdmaRead { remote_addr: addr, rkey },
            Self::Cas { addr, rkey, values: [compare, swap] } => {
                SendOp::AtomicCmpAndSwp { remote_addr: addr, rkey, compare, swap }
            }
            Self::Faa { addr, rkey, add } => SendOp::AtomicFetchAndAdd { remote_addr: addr, rkey, add },
        }
    }
}

impl Actor<'_> {
    /// Takes a station out that may post, and mostly one that nothing went wrong with.
    pub(super) fn take_station(&mut self, wanted: impl Fn(&Station) -> bool) -> Option<Station> {
        let mut found = None;
        for _ in 0..4 {
            let at = self.place(self.stations.len())?;
            if wanted(&self.stations[at]) {
                found = Some(at);
                if !self.stations[at].is_broken {
                    break;
                }
            }
        }
        Some(self.stations.swap_remove(found?))
    }

    /// Parks one buffer to be sent, written, or read into.
    pub(super) fn park_send(&mut self) -> CaseResult {
        let any_state = self.rarely(30);
        let Some(mut station) = self.take_station(|one| any_state || one.qp.can_send()) else {
            return Ok(());
        };
        let result = self.park_send_on(&mut station);
        self.stations.push(station);
        result
    }

    fn park_send_on(&mut self, station: &mut Station) -> CaseResult {
        let context = self.buffer_context(station);
        let Some(mut held) = self.take_held(context)? else { return Ok(()) };
        self.checked(&held)?;
        let (op, range) = self.operation(station, held.len());
        let flags = self.flags();
        let resolved = resolve(range, held.len());
        let what = op.what();
        if let (What::Out, Some(range)) = (&what, &resolved) {
            let seed = self.choices.any();
            held.write(range.start, &message(station.number, seed, range.len()));
        }
        let (buf, piece) = held.into_parts(resolved.clone().unwrap_or(0..0));
        let parked = Parked { what, pieces: vec![piece] };
        let result = station.qp.park_send(op.with(&self.ahs), flags, buf, range);
        let is_odd = resolved.is_none();
        self.parked(station, op.kind(), result.map_err(several), parked, is_odd, context)
    }

    /// Parks one buffer to receive.
    pub(super) fn park_recv(&mut self) -> CaseResult {
        let any_state = self.rarely(30);
        let Some(mut station) = self.take_station(|one| any_state || one.qp.can_recv()) else {
            return Ok(());
        };
        let result = self.park_recv_on(&mut station);
        self.stations.push(station);
        result
    }

    fn park_recv_on(&mut self, station: &mut Station) -> CaseResult {
        let context = self.buffer_context(station);
        let Some(mut held) = self.take_held(context)? else { return Ok(()) };
        self.checked(&held)?;
        // So that no message of before is found in it.
        held.refill(self.choices.any());
        let range =
            if self.rarely(3) { self.range(held.len()) } else { (Bound::Unbounded, Bound::Unbounded) };
        let resolved = resolve(range, held.len());
        let (buf, piece) = held.into_parts(resolved.clone().unwrap_or(0..0));
        let parked = Parked { what: station.recv(), pieces: vec![piece] };
        let result = station.qp.park_recv(buf, range);
        let is_odd = resolved.is_none();
        self.parked(station, Kind::ParkRecv, result.map_err(several), parked, is_odd, context)
    }

    /// Parks several buffers as one request.
    pub(super) fn park_several(&mut self) -> CaseResult {
        let Some(mut station) = self.take_station(|one| one.qp.can_recv()) else { return Ok(()) };
        let result = self.park_several_on(&mut station);
        self.stations.push(station);
        result
    }

    fn park_several_on(&mut self, station: &mut Station) -> CaseResult {
        let is_send = station.qp.can_send() && self.rarely(2);
        let count = self.choices.below(5);
        let context = self.buffer_context(station);
        let mut helds = Vec::new();
        for _ in 0..count {
            let context = if self.rarely(30) { self.buffer_context(station) } else { context };
            helds.extend(self.take_held(context)?);
        }
        let total: usize = helds.iter().map(Held::len).sum();
        let (op, _) = self.operation(station, total);
        let what = if is_send { op.what() } else { station.recv() };
        if let What::Out = what {
            let whole = message(station.number, self.choices.any(), total);
            let mut at = 0;
            for held in &mut helds {
                let len = held.len();
                held.write(0, &whole[at..at + len]);
                at += len;
            }
        } else {
            for held in &mut helds {
                held.refill(self.choices.any());
            }
        }
        let (mut bufs, mut pieces) = (Vec::new(), Vec::new());
        let is_foreign = helds.iter().any(|held| held.context != station.context);
        for held in helds {
            let whole = 0..held.len();
            let (buf, piece) = held.into_parts(whole);
            bufs.push(buf);
            pieces.push(piece);
        }
        let parked = Parked { what, pieces };
        let (kind, result) = if is_send {
            let flags = self.flags();
            (Kind::ParkSendAll, station.qp.park_send_all(op.with(&self.ahs), flags, bufs))
        } else {
            (Kind::ParkRecvAll, station.qp.park_recv_all(bufs))
        };
        let context = if is_foreign { usize::MAX } else { station.context };
        self.parked(station, kind, result, parked, false, context)
    }

    /// Remembers what was parked, or keeps what was refused, and looks whether that was as it must
    /// be.
    fn parked(
        &mut self,
        station: &mut Station,
        kind: Kind,
        result: Result<u64, NotParked<Vec<verbs::Buf>>>,
        parked: Parked,
        is_odd: bool,
        context: usize,
    ) -> CaseResult {
        let is_foreign = context != station.context;
        match result {
            Ok(_) if is_odd => fail("an odd range was accepted"),
            Ok(_) if is_foreign => fail("a buffer of another protection domain was accepted"),
            Ok(wr_id) => {
                self.tally.add(kind);
                if station.parked.insert(wr_id, parked).is_some() {
                    return fail(format_args!("the number {wr_id:#x} was given twice"));
                }
                Ok(())
            }
            Err(NotParked { returned: None, reason }) => {
                self.tally.add(Kind::RefusedOther);
                station.has_unknown = true;
                match reason {
                    Some(ParkReason::Post(_)) => Ok(()),
                    other => fail(format_args!("buffers did not come back after {other:?}")),
                }
            }
            Err(NotParked { returned: Some(bufs), reason }) => {
                self.tally.add(match reason {
                    None => Kind::RefusedByType,
                    Some(ParkReason::OutOfRange) => Kind::RefusedRange,
                    Some(ParkReason::ForeignBuf) => Kind::RefusedForeign,
                    _ => Kind::RefusedOther,
                });
                if !parked.is_of(&bufs) {
                    return fail(format_args!("other buffers came back than were refused: {bufs:?}"));
                }
                if reason == Some(ParkReason::OutOfRange) && !is_odd {
                    return fail("a range inside of its buffer was refused");
                }
                for held in parked.into_unparked(bufs) {
                    self.checked(&held)?;
                    self.keep(held)?;
                }
                Ok(())
            }
        }
    }

    /// Sends bytes inline.
    pub(super) fn send_inline(&mut self) -> CaseResult {
        let Some(mut station) = self.take_station(|one| one.qp.can_send()) else { return Ok(()) };
        let longest = station.qp.cap().max_inline_data;
        let len = self.choices.below(u64::from(longest) + 8) as usize;
        let (op, _) = self.operation(&station, len);
        let wr_id = if self.rarely(10) { self.choices.any() | 1 << 63 } else { self.choices.any() >> 1 };
        let data = message(station.number, self.choices.any(), len);
        let flags = self.flags();
        let result = station.qp.send_inline(wr_id, op.with(&self.ahs), flags, &data);
        self.stations.push(station);
        self.tally.add(match result {
            Some(Ok(())) if wr_id >> 63 == 1 => return fail("the number of a parked request was accepted"),
            Some(Ok(())) => Kind::Inline,
            Some(Err(ParkReason::ReservedWrId)) => Kind::RefusedReserved,
            Some(Err(_)) => Kind::InlineRefused,
            None => Kind::RefusedByType,
        });
        Ok(())
    }

    /// The context whose buffers go into a station: its own, but for odd calls.
    pub(super) fn buffer_context(&mut self, station: &Station) -> usize {
        if self.rarely(40) {
            self.choices.below(self.world.contexts.len() as u64) as usize
        } else {
            station.context
        }
    }

    pub(super) fn flags(&mut self) -> SendFlags {
        let flags = [SendFlags::SIGNALED, SendFlags::SOLICITED, SendFlags::FENCE];
        let mut all = flags.into_iter().filter(|_| self.choices.below(5) == 0).collect();
        if self.rarely(20) {
            all |= SendFlags::INLINE;
        }
        if self.rarely(40) {
            all |= SendFlags::IP_CSUM;
        }
        all
    }

    /// An operation that mostly suits the station, and a range of a buffer that mostly suits the
    /// operation.
    pub(super) fn operation(&mut self, station: &Station, len: usize) -> (Op, AnyRange) {
        let qp_type = if self.rarely(40) {
            self.choices.one_of(&[QpType::RC, QpType::UC, QpType::UD])
        } else {
            station.qp.qp_type()
        };
        let which = match qp_type {
            QpType::UD => 7 + self.choices.below(2),
            QpType::UC => self.choices.one_of(&[0, 0, 1, 2, 3]),
            _ => self.choices.one_of(&[0, 0, 1, 2, 2, 3, 4, 4, 4, 5, 6]),
        };
        let which = if (2..7).contains(&which)
            && self.fitting(station, access_of(which)).is_empty()
            && !self.rarely(100)
        {
            0
        } else {
            which
        };
        let mut range = self.range(len);
        let op = match which {
            0 => Op::Send,
            1 => Op::SendImm(self.choices.any() as u32),
            2 | 3 => {
                let size = resolve(range, len).map_or(0, |range| range.len());
                let (addr, rkey, _) = self.aim(station, RemoteAccess::WRITE, size);
                if which == 2 { Op::Write { addr, rkey } } else { Op::WriteImm { addr, rkey } }
            }
            4 => {
                // Memory whose contents are known is short.
                if !self.rarely(4) {
                    range = self.range_of(len, 700);
                }
                let size = resolve(range, len).map_or(0, |range| range.len());
                let (addr, rkey, of) = self.aim(station, RemoteAccess::READ, size);
                Op::Read { addr, rkey, of }
            }
            5 | 6 => {
                if !self.rarely(8) && len >= 8 {
                    let start = self.choices.below(len as u64 - 7) as usize;
                    range = (Bound::Included(start), Bound::Excluded(start + 8));
                }
                let (addr, rkey, _) = self.aim(station, RemoteAccess::ATOMIC, 8);
                let addr = if self.rarely(12) { addr } else { addr & !7 };
                if which == 5 {
                    Op::Cas { addr, rkey, values: [self.choices.below(3), self.choices.any()] }
                } else {
                    Op::Faa { addr, rkey, add: self.choices.any() }
                }
            }
            _ => {
                let ah = self.ah_for(station);
                let to = self.ahs.get(ah).map(|(_, to, _)| *to);
                let fits: Vec<u32> = self
                    .datagram
                    .iter()
                    .filter(|(at, _)| Some(*at) == to)
                    .map(|(_, qp_num)| *qp_num)
                    .collect();
                let qp_num = self.place(fits.len()).map_or(77, |at| fits[at]);
                let qkey = if self.rarely(12) { self.choices.any() as u32 } else { QKEY };
                if !self.rarely(6) {
                    range = self.range_of(len, 1000);
                }
                if which == 7 { Op::UdSend { ah, qp_num, qkey } } else { Op::UdSendImm { ah, qp_num, qkey } }
            }
        };
        (op, range)
    }

    /// Remote memory for so many bytes: mostly a peer's that was exposed for this, else anything.
    fn aim(
        &mut self,
        station: &Station,
        access: RemoteAccess,
        size: usize,
    ) -> (u64, u32, Option<(Arc<Target>, u64)>) {
        if self.rarely(200) {
            // Memory of the program's own that was never exposed, under its local key.
            if let Some(at) = self.place(self.held.len()) {
                return (self.held[at].buf.addr(), self.held[at].buf.lkey(), None);
            }
        }
        let fitting = self.fitting(station, access);
        let chosen = if fitting.is_empty() || self.rarely(200) { self.targets.clone() } else { fitting };
        let Some(at) = self.place(chosen.len()) else {
            return (self.choices.any(), self.choices.any() as u32, None);
        };
        let target = Arc::clone(&chosen[at]);
        let room = (target.remote.length as usize).saturating_sub(size) as u64;
        let offset = if self.rarely(150) {
            self.choices.below(target.remote.length + 64)
        } else {
            self.choices.below(room + 1)
        };
        let rkey = if self.rarely(200) {
            target.remote.rkey ^ 1 << self.choices.below(32)
        } else {
            target.remote.rkey
        };
        let addr = target.remote.addr + offset;
        // Only what is read of the very region that is known says something about its contents.
        let known = rkey == target.remote.rkey && offset as usize + size <= target.remote.length as usize;
        (addr, rkey, known.then_some((target, offset)))
    }

    /// Returns the memory that is known to be exposed in the peer's domain with this access.
    fn fitting(&self, station: &Station, access: RemoteAccess) -> Vec<Arc<Target>> {
        let context = station.peer.map_or(station.context, |(context, _)| context);
        let suits = |target: &&Arc<Target>| {
            target.is_alive() && target.context == context && target.access.contains(access)
        };
        self.targets.iter().filter(suits).cloned().collect()
    }

    /// A range of so many bytes: the whole, a part, or an odd one.
    pub(super) fn range(&mut self, len: usize) -> AnyRange {
        let most = if self.rarely(3) { len } else { 1500 };
        self.range_of(len, most)
    }

    fn range_of(&mut self, len: usize, most: usize) -> AnyRange {
        use Bound::{Excluded, Included, Unbounded};
        if self.rarely(25) {
            let any = self.choices.below(len as u64 + 3) as usize;
            return match self.choices.below(6) {
                0 => (Included(any), Excluded(any / 2)),
                1 => (Unbounded, Included(len)),
                2 => (Excluded(usize::MAX), Unbounded),
                3 => (Included(any), Included(usize::MAX)),
                4 => (Included(len + 1), Unbounded),
                _ => (Excluded(any), Included(len)),
            };
        }
        let size = self.choices.below(len.min(most) as u64 + 1) as usize;
        let start = self.choices.below((len - size) as u64 + 1) as usize;
        let Range { start, end } = start..start + size;
        match self.choices.below(3) {
            0 if start > 0 => (Excluded(start - 1), Excluded(end)),
            1 if end > start => (Included(start), Included(end - 1)),
            _ => (Included(start), Excluded(end)),
        }
    }

    /// The place of an address handle of the station's context.
    fn ah_for(&mut self, station: &Station) -> usize {
        let to = self.choices.below(self.world.contexts.len() as u64) as usize;
        if self.rarely(20)
            && let Some(at) = self.place(self.ahs.len())
        {
            // Any, also of another device.
            return at;
        }
        if let Some(at) =
            self.ahs.iter().position(|(from, there, _)| (*from, *there) == (station.context, to))
        {
            return at;
        }
        if let Ok(ah) = self.world.pds[station.context].create_ah(&self.world.path(station.context, to)) {
            self.ahs.push((station.context, to, ah));
        }
        self.ahs.len().saturating_sub(1)
    }
}

/// Returns the access that an operation needs, by its number in [`Actor::operation`].
fn access_of(which: u64) -> RemoteAccess {
    match which {
        2 | 3 => RemoteAccess::WRITE,
        4 => RemoteAccess::READ,
        _ => RemoteAccess::ATOMIC,
    }
}

impl Station {
    /// Returns the use of a receive's buffers on this station.
    pub(super) fn recv(&self) -> What {
        let qp_type = self.qp.qp_type();
        let from = (qp_type == QpType::RC).then_some(self.peer).flatten().and_then(|(_, number)| number);
        What::Recv { qp_type, from }
    }
}

fn several<B>(one: NotParked<B>) -> NotParked<Vec<B>> {
    NotParked { returned: one.returned.map(|buf| vec![buf]), reason: one.reason }
}
