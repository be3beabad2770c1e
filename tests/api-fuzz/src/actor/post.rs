//! Posting each kind of memory; inline sends.
#![forbid(unsafe_code)]

use std::ops::{Bound, Range};
use std::sync::Arc;

use verbs::{Memory, PostBufReason, QpType, RemoteAccess, SendFlags, SendOp};
use verbs_harness::runner::{CaseResult, fail};

use super::super::handle::{AnyRange, NotPosted, Posting};
use super::super::memory::{Held, Mine, Posted, Target, What, message, resolve};
use super::super::tally::Kind;
use super::super::world::{QKEY, Station};
use super::Actor;

/// An operation without its borrowed data.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Send,
    SendImm(u32),
    /// Sends through an address handle that the thread owns, if there is one.
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
    /// Returns the kind used to count the operation.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Send => Kind::PostSend,
            Self::SendImm(_) => Kind::PostSendImm,
            Self::UdSend { .. } => Kind::PostUdSend,
            Self::UdSendImm { .. } => Kind::PostUdSendImm,
            Self::Write { .. } => Kind::PostWrite,
            Self::WriteImm { .. } => Kind::PostWriteImm,
            Self::Read { .. } => Kind::PostRead,
            Self::Cas { .. } => Kind::PostCas,
            Self::Faa { .. } => Kind::PostFaa,
        }
    }

    /// Returns how the operation uses its buffers.
    pub(super) fn what(&self) -> What {
        match self {
            Self::Read { of, .. } => What::Read(of.clone()),
            Self::Cas { .. } | Self::Faa { .. } => What::Atomic,
            _ => What::Out,
        }
    }

    /// Returns the operation with its address handle borrowed from `ahs`.
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
    /// Removes and returns a station that can post, usually one without failed requests.
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

    /// Posts one buffer as the source of a send or write, or the destination of a read.
    pub(super) fn post_send(&mut self) -> CaseResult {
        let any_state = self.rarely(30);
        let Some(mut station) = self.take_station(|one| any_state || one.qp.can_send()) else {
            return Ok(());
        };
        let result = self.post_send_on(&mut station);
        self.stations.push(station);
        result
    }

    fn post_send_on(&mut self, station: &mut Station) -> CaseResult {
        let context = self.buffer_context(station);
        let Some(held) = self.take_held(context)? else { return Ok(()) };
        let (op, range) = self.operation(station, held.len());
        let (memory, posted) = self.prepare(station, held, &op, range)?;
        self.send(station, memory, posted, &op, range, context)
    }

    /// Prepares a buffer for an operation: writes a message to send, or leaves the contents to the
    /// operation.
    pub(super) fn prepare(
        &mut self,
        station: &Station,
        mut held: Held,
        op: &Op,
        range: AnyRange,
    ) -> CaseResult<(Memory, Posted)> {
        self.checked(&held)?;
        let resolved = resolve(range, held.len());
        let what = op.what();
        if let (What::Out, Some(range)) = (&what, &resolved) {
            let seed = self.choices.any();
            held.write(range.start, &message(station.number, seed, range.len()));
        }
        let (memory, piece) = held.into_parts(resolved.unwrap_or(0..0));
        Ok((memory, Posted::one(what, piece)))
    }

    /// Posts memory to the send queue, signalled or not, as its own type or as `Memory`.
    pub(super) fn send(
        &mut self,
        station: &mut Station,
        memory: Memory,
        posted: Posted,
        op: &Op,
        range: AnyRange,
        context: usize,
    ) -> CaseResult {
        let flags = self.flags();
        let is_signaled = !self.rarely(4);
        let by_type = self.rarely(2);
        let is_odd = resolve(range, posted.pieces[0].len()).is_none();
        let send_op = op.with(&self.ahs);
        let qp = &mut station.qp;
        let result = match memory {
            Memory::Buf(buf) if by_type => into_any(qp.post_send(send_op, flags, is_signaled, buf, range)),
            Memory::Frozen(buf) if by_type => into_any(qp.post_send(send_op, flags, is_signaled, buf, range)),
            Memory::Exposed(buf) if by_type => {
                into_any(qp.post_send(send_op, flags, is_signaled, buf, range))
            }
            memory => into_any(qp.post_send(send_op, flags, is_signaled, memory, range)),
        };
        if is_signaled {
            self.posted(station, op.kind(), result, posted, is_odd, context)
        } else {
            self.posted_silently(station, result, posted, is_odd, context)
        }
    }

    /// Same as [`posted`](Self::posted), for an unsignalled request.
    fn posted_silently(
        &mut self,
        station: &mut Station,
        result: Posting,
        posted: Posted,
        is_odd: bool,
        context: usize,
    ) -> CaseResult {
        let last = station.unsignaled;
        let number = result.as_ref().ok().copied();
        self.posted(station, Kind::PostUnsignaled, result, posted, is_odd, context)?;
        station.unsignaled = number.or(last);
        Ok(())
    }

    /// Posts one buffer to receive.
    pub(super) fn post_recv(&mut self) -> CaseResult {
        let any_state = self.rarely(30);
        let Some(mut station) = self.take_station(|one| any_state || one.qp.can_recv()) else {
            return Ok(());
        };
        let result = self.post_recv_on(&mut station);
        self.stations.push(station);
        result
    }

    fn post_recv_on(&mut self, station: &mut Station) -> CaseResult {
        let context = self.buffer_context(station);
        let Some(mut held) = self.take_held(context)? else { return Ok(()) };
        self.checked(&held)?;
        // Erases any earlier message in the buffer.
        held.refill(self.choices.any());
        let range =
            if self.rarely(3) { self.range(held.len()) } else { (Bound::Unbounded, Bound::Unbounded) };
        let resolved = resolve(range, held.len());
        let is_odd = resolved.is_none();
        let (memory, piece) = held.into_parts(resolved.unwrap_or(0..0));
        let posted = Posted::one(station.recv(), piece);
        let result = into_any(station.qp.post_recv(memory, range));
        self.posted(station, Kind::PostRecv, result, posted, is_odd, context)
    }

    /// Posts several pieces of memory as one request.
    pub(super) fn post_several(&mut self) -> CaseResult {
        let Some(mut station) = self.take_station(|one| one.qp.can_recv()) else { return Ok(()) };
        let result = self.post_several_on(&mut station);
        self.stations.push(station);
        result
    }

    fn post_several_on(&mut self, station: &mut Station) -> CaseResult {
        let is_send = station.qp.can_send() && self.rarely(2);
        let count = self.choices.below(5);
        let context = self.buffer_context(station);
        let mut taken = Vec::new();
        for _ in 0..count {
            let context = if self.rarely(30) { self.buffer_context(station) } else { context };
            taken.extend(self.take_held(context)?);
        }
        let total: usize = taken.iter().map(Held::len).sum();
        let (op, _) = self.operation(station, total);
        let what = if is_send { op.what() } else { station.recv() };
        if let What::Out = what {
            let whole = message(station.number, self.choices.any(), total);
            let mut at = 0;
            for held in &mut taken {
                let len = held.len();
                held.write(0, &whole[at..at + len]);
                at += len;
            }
        } else {
            for held in &mut taken {
                held.refill(self.choices.any());
            }
        }
        let is_foreign = taken.iter().any(|held| held.context != station.context);
        let (mut memory, mut pieces) = (Vec::new(), Vec::new());
        for held in taken {
            let whole = 0..held.len();
            // Pieces after the first may be read-only if the request only reads from them.
            let (one, piece) = if matches!(what, What::Out) && !memory.is_empty() && self.rarely(4) {
                held.freeze().share(whole)
            } else {
                held.into_parts(whole)
            };
            memory.push(one);
            pieces.push(piece);
        }
        let posted = Posted { what, pieces, before: None };
        let (kind, result) = if is_send {
            let flags = self.flags();
            (Kind::PostSendAll, station.qp.post_send_all(op.with(&self.ahs), flags, memory))
        } else {
            (Kind::PostRecvAll, station.qp.post_recv_all(memory))
        };
        let context = if is_foreign { usize::MAX } else { station.context };
        self.posted(station, kind, result, posted, false, context)
    }

    /// Records posted memory, or keeps rejected memory, and checks that the outcome is correct.
    pub(super) fn posted(
        &mut self,
        station: &mut Station,
        kind: Kind,
        result: Posting,
        mut posted: Posted,
        is_odd: bool,
        context: usize,
    ) -> CaseResult {
        let is_foreign = context != station.context;
        let is_recv = matches!(posted.what, What::Recv { .. });
        match result {
            Ok(_) if is_odd => fail("an odd range was accepted"),
            Ok(_) if is_foreign => fail("memory of another protection domain was accepted"),
            Ok(_) if !is_recv && posted.writes_frozen() => fail("read-only memory is written"),
            Ok(wr_id) => {
                self.tally.add(kind);
                if !is_recv {
                    posted.before = station.unsignaled.take();
                }
                if station.posted.insert(station.number_of(is_recv, wr_id), posted).is_some() {
                    return fail(format_args!("the number {wr_id:#x} was given twice"));
                }
                Ok(())
            }
            Err(NotPosted { returned: None, reason }) => {
                self.tally.add(Kind::RefusedOther);
                station.has_unknown = true;
                match reason {
                    Some(PostBufReason::Post(_)) => Ok(()),
                    other => fail(format_args!("memory did not come back after {other:?}")),
                }
            }
            Err(NotPosted { returned: Some(memory), reason }) => {
                self.tally.add(match reason {
                    None => Kind::RefusedByType,
                    Some(PostBufReason::OutOfRange { .. }) => Kind::RefusedRange,
                    Some(PostBufReason::Foreign) => Kind::RefusedForeign,
                    Some(PostBufReason::ReadOnly) => Kind::RefusedReadOnly,
                    Some(PostBufReason::InlineExposed) => Kind::RefusedInlineExposed,
                    _ => Kind::RefusedOther,
                });
                if !posted.is_of(&memory) {
                    return fail(format_args!("other memory came back than was refused: {memory:?}"));
                }
                if matches!(reason, Some(PostBufReason::OutOfRange { .. })) && !is_odd {
                    return fail("a range inside of its memory was refused");
                }
                self.keep_unposted(posted, memory)
            }
        }
    }

    /// Keeps memory that was never posted.
    pub(super) fn keep_unposted(&mut self, posted: Posted, memory: Vec<Memory>) -> CaseResult {
        for mine in posted.into_unposted(memory) {
            if let Mine::Held(held) = &mine {
                self.checked(held)?;
            }
            self.keep_mine(mine)?;
        }
        Ok(())
    }

    /// Sends bytes inline.
    pub(super) fn post_inline(&mut self) -> CaseResult {
        let Some(mut station) = self.take_station(|one| one.qp.can_send()) else { return Ok(()) };
        let longest = station.qp.cap().max_inline_data;
        let len = self.choices.below(u64::from(longest) + 8) as usize;
        let (op, _) = self.operation(&station, len);
        let wr_id = if self.rarely(10) { self.choices.any() | 1 << 63 } else { self.choices.any() >> 1 };
        let data = message(station.number, self.choices.any(), len);
        let flags = self.flags();
        let result = station.qp.post_send_inline(wr_id, op.with(&self.ahs), flags, &data);
        self.stations.push(station);
        self.tally.add(match result {
            Some(Ok(())) if wr_id >> 63 == 1 => return fail("one of the library's numbers was accepted"),
            Some(Ok(())) => Kind::Inline,
            Some(Err(PostBufReason::ReservedWrId { .. })) => Kind::RefusedReserved,
            Some(Err(_)) => Kind::InlineRefused,
            None => Kind::RefusedByType,
        });
        Ok(())
    }

    /// Returns the index of the context whose buffers are posted to a station: the station's own
    /// context, except in deliberately unusual calls.
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

    /// Returns a random operation, usually valid for the station, and a buffer range, usually valid
    /// for the operation.
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
                // Reads a short range, because exposed memory with known contents is short.
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

    /// Returns remote memory for `size` bytes: usually memory that a peer exposed with this access,
    /// and sometimes an arbitrary address and key.
    fn aim(
        &mut self,
        station: &Station,
        access: RemoteAccess,
        size: usize,
    ) -> (u64, u32, Option<(Arc<Target>, u64)>) {
        if self.rarely(200) {
            // The program's own memory, which was never exposed, with its local key.
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
        // The contents are known only for a read inside this region.
        let known = rkey == target.remote.rkey && offset as usize + size <= target.remote.length as usize;
        (addr, rkey, known.then_some((target, offset)))
    }

    /// Returns the memory known to be exposed in the peer's domain with this access.
    fn fitting(&self, station: &Station, access: RemoteAccess) -> Vec<Arc<Target>> {
        let context = station.peer.map_or(station.context, |(context, _)| context);
        let suits = |target: &&Arc<Target>| {
            target.is_alive() && target.context == context && target.access.contains(access)
        };
        self.targets.iter().filter(suits).cloned().collect()
    }

    /// Returns a range of a buffer of `len` bytes: the whole buffer, a part, or an unusual or
    /// invalid range.
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

    /// Returns the index of an address handle in the station's context.
    fn ah_for(&mut self, station: &Station) -> usize {
        let to = self.choices.below(self.world.contexts.len() as u64) as usize;
        if self.rarely(20)
            && let Some(at) = self.place(self.ahs.len())
        {
            // Any handle, even one from another device.
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

/// Returns the access that an operation needs, given its index in [`Actor::operation`].
fn access_of(which: u64) -> RemoteAccess {
    match which {
        2 | 3 => RemoteAccess::WRITE,
        4 => RemoteAccess::READ,
        _ => RemoteAccess::ATOMIC,
    }
}

impl Station {
    /// Returns how a receive on this station uses its buffers.
    pub(super) fn recv(&self) -> What {
        let qp_type = self.qp.qp_type();
        let from = (qp_type == QpType::RC).then_some(self.peer).flatten().and_then(|(_, number)| number);
        What::Recv { qp_type, from }
    }
}

/// Converts the memory in a post's result to [`Memory`], whatever its type.
pub(super) fn into_any<M: Into<Memory>>(result: Result<u64, NotPosted<M>>) -> Posting {
    result.map_err(|NotPosted { returned, reason }| NotPosted {
        returned: returned.map(|memory| vec![memory.into()]),
        reason,
    })
}
