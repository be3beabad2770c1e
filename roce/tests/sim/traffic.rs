//! The traffic: work requests, late receives, mistakes, queue pairs that end early.

use std::ops::Range;

use roce::engine::{
    Access, AttrChange, Path, Payload, PostRefused, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, State,
    Status, Time, UdDestination,
};
use roce::sim::{Chance, Region};

use crate::world::{
    ALL, AREA, EMPTY, Effect, Expect, Gone, Half, MS, Message, Recv, SOURCE, Send, Weather, World,
};
use crate::{Check, ensure};

/// The bit set in the `wr_id` of every receive. [`SHARED`] is set, too, for receives from a shared
/// queue.
pub(crate) const RECV: u64 = 1 << 63;
pub(crate) const SHARED: u64 = 1 << 62;

/// An action that the program takes at a planned time.
#[derive(Clone, Copy, Debug)]
enum Action {
    Sends(usize, u64),
    Recvs(usize, u64),
    SharedRecvs(usize, u64),
    TakeDown(usize, Gone),
    Drain(usize),
    Resume(usize),
}

/// A send that has not been posted yet.
struct Draft {
    op: SendOp,
    what: Effect,
    sges: Vec<Sge>,
    bytes: Vec<u8>,
    /// Whether `bytes` may instead be copied inline when the send is posted.
    may_be_inline: bool,
    mistake: &'static [Status],
    /// Whether the send causes an error at the peer.
    offends: bool,
    message: Option<Message>,
    area_after: Option<Vec<u8>>,
    word_after: Option<u64>,
}

impl World {
    /// Runs the simulation from the first post to the last check.
    pub(crate) fn run(&mut self) -> Check {
        let mut plan = self.plan();
        plan.sort_by_key(|(at, _)| *at);
        for (at, action) in plan {
            while self.fabric.next_at().is_some_and(|next| next <= at) {
                self.fabric.step();
                self.listen()?;
            }
            self.fabric.run_until(at);
            self.act(action)?;
            self.listen()?;
        }
        self.supply()?;
        let end = self.fabric.now() + 60_000 * MS;
        while self.fabric.next_at().is_some_and(|next| next <= end) {
            self.fabric.step();
            self.listen()?;
        }
        ensure!(self.fabric.next_at().is_none(), "it does not end");
        if self.weather == Weather::Damage {
            return Ok(());
        }
        self.check_end()
    }

    fn plan(&mut self) -> Vec<(Time, Action)> {
        let rng = &mut self.rng;
        let span = rng.pick(&[100_000, MS, 5 * MS]);
        let mut plan = Vec::new();
        for half in 0..self.halves.len() {
            if self.halves[half].srq.is_none() {
                // Enough receives are posted, in time or late.
                plan.push((Time(0), Action::Recvs(half, rng.below(30))));
                for _ in 0..rng.below(4) {
                    plan.push((Time(rng.below(2 * span)), Action::Recvs(half, rng.range(1, 10))));
                }
            }
            for _ in 0..rng.below(6) {
                plan.push((Time(rng.below(span)), Action::Sends(half, rng.range(1, 12))));
            }
            if rng.chance(Chance::percent(6)) {
                let how = rng.pick(&[Gone::Destroyed, Gone::Reset, Gone::Error]);
                plan.push((Time(rng.below(2 * span)), Action::TakeDown(half, how)));
            }
            if rng.chance(Chance::percent(8)) {
                let at = rng.below(span);
                plan.push((Time(at), Action::Drain(half)));
                plan.push((Time(at + rng.below(3 * MS)), Action::Resume(half)));
            }
        }
        for srq in 0..self.srqs.len() {
            plan.push((Time(0), Action::SharedRecvs(srq, rng.below(60))));
            for _ in 0..rng.below(4) {
                plan.push((Time(rng.below(2 * span)), Action::SharedRecvs(srq, rng.range(1, 20))));
            }
        }
        plan
    }

    fn act(&mut self, action: Action) -> Check {
        match action {
            Action::Sends(half, count) => {
                for _ in 0..count {
                    self.post_send(half)?;
                    self.listen()?;
                }
            }
            Action::Recvs(half, count) => {
                for _ in 0..count {
                    self.post_recv(half, true)?;
                    self.listen()?;
                }
            }
            Action::SharedRecvs(srq, count) => {
                for _ in 0..count {
                    self.post_shared(srq, true)?;
                    self.listen()?;
                }
            }
            Action::TakeDown(half, how) => self.take_down(half, how)?,
            Action::Drain(half) => {
                let change = AttrChange {
                    state: Some(State::Sqd),
                    sq_drained_event: Some(true),
                    ..AttrChange::default()
                };
                self.modify_if(half, State::Rts, &change)?;
            }
            Action::Resume(half) => {
                let change = AttrChange { state: Some(State::Rts), ..AttrChange::default() };
                self.modify_if(half, State::Sqd, &change)?;
            }
        }
        Ok(())
    }

    fn modify_if(&mut self, half: usize, when: State, change: &AttrChange) -> Check {
        if self.state(half) == Some(when) {
            let Half { ep, qpn, .. } = self.halves[half];
            self.fabric.remark(format!("half {half} to {:?}", change.state));
            let result = self.fabric.modify_qp(self.eps[ep].id, qpn, change);
            ensure!(result.is_ok(), "half {half}: {when:?} to {:?}: {result:?}", change.state);
        }
        Ok(())
    }

    pub(crate) fn state(&self, half: usize) -> Option<State> {
        let Half { ep, qpn, .. } = self.halves[half];
        self.fabric.endpoint(self.eps[ep].id).engine().query_qp(qpn).ok().map(|(state, _)| state)
    }

    fn take_down(&mut self, half: usize, how: Gone) -> Check {
        let Half { ep, qpn, .. } = self.halves[half];
        let id = self.eps[ep].id;
        self.fabric.remark(format!("half {half} ({id} qp {:06x}): {how:?}", qpn.0));
        self.halves[half].gone = Some(how);
        let to = |state| AttrChange { state: Some(state), ..AttrChange::default() };
        let (result, what) = match how {
            Gone::Destroyed => (self.fabric.destroy_qp(id, qpn), "queue pairs destroyed"),
            Gone::Reset => (self.fabric.modify_qp(id, qpn, &to(State::Reset)), "queue pairs reset"),
            Gone::Error => (self.fabric.modify_qp(id, qpn, &to(State::Err)), "queue pairs given up"),
        };
        self.count(what);
        ensure!(result.is_ok(), "half {half}: {how:?}: {result:?}");
        Ok(())
    }

    /// Posts the missing receives, so that every send can end.
    fn supply(&mut self) -> Check {
        for half in 0..self.halves.len() {
            let Half { peer, srq, attr, recvs, gone, .. } = &self.halves[half];
            let forgotten = self.starved && attr.rnr_retry < 7 && self.rng.chance(Chance::percent(50));
            if srq.is_some() || gone.is_some() || forgotten {
                continue;
            }
            for _ in recvs.len()..self.halves[*peer].messages.len() {
                self.post_recv(half, false)?;
            }
        }
        self.listen()?;
        for srq in 0..self.srqs.len() {
            let users = self.halves.iter().filter(|half| half.srq == Some(srq));
            // A duplicated datagram takes two receives. A queue pair that fails may also hold one
            // receive.
            let needed: usize = users.map(|half| 2 * self.halves[half.peer].messages.len() + 1).sum();
            for _ in self.srqs[srq].recvs.len()..needed.min(1000) {
                self.post_shared(srq, false)?;
            }
        }
        Ok(())
    }

    // Receives.

    /// Returns a receive of `capacity` bytes, split into pieces with gaps between them.
    fn draft_recv(&mut self, ep: usize, capacity: usize, mistakes: bool) -> (Recv, Vec<Sge>) {
        let short = mistakes && self.rng.chance(self.mistakes);
        let forbidden = mistakes && self.rng.chance(Chance::per_million(self.mistakes.millionths() / 2));
        let capacity = if short { self.rng.below(capacity as u64) as usize } else { capacity };
        let pieces = self.pieces(capacity, 4);
        let len = pieces.last().map_or(0, |piece| piece.end);
        let access = if forbidden { Access::REMOTE_READ } else { Access::LOCAL_WRITE };
        let region = self.fabric.register(self.eps[ep].id, vec![EMPTY; len], access).unwrap();
        let sges = sges(&region, &pieces);
        (Recv { region, pieces, capacity, forbidden, ended: false, holds: None }, sges)
    }

    /// Splits `len` bytes into at most `most` pieces, with gaps of 3 bytes between them.
    fn pieces(&mut self, len: usize, most: u64) -> Vec<Range<usize>> {
        let mut pieces = Vec::new();
        let (mut rest, mut at) = (len, 0);
        for n in (0..self.rng.range(1, most)).rev() {
            let piece = if n == 0 { rest } else { self.rng.below(rest as u64 + 1) as usize };
            if piece > 0 {
                pieces.push(at..at + piece);
                at += piece + 3;
                rest -= piece;
            }
        }
        pieces
    }

    fn post_recv(&mut self, half: usize, mistakes: bool) -> Check {
        let Half { ep, qpn, service, max_len, ref attr, gone, .. } = self.halves[half];
        if matches!(gone, Some(Gone::Destroyed | Gone::Reset)) {
            return Ok(());
        }
        let capacity = if service == Service::Ud { 40 + attr.path_mtu as usize } else { max_len };
        let (recv, sges) = self.draft_recv(ep, capacity, mistakes && service == Service::Rc);
        let index = self.halves[half].recvs.len() as u64;
        self.halves[half].bad_recv |= recv.forbidden || recv.capacity < capacity;
        self.halves[half].recvs.push(recv);
        let wr = RecvWr { wr_id: RECV | (half as u64) << 32 | index, sges: &sges };
        let result = self.fabric.post_recv(self.eps[ep].id, qpn, &wr);
        ensure!(result.is_ok(), "half {half}: receive {index} was refused: {result:?}");
        Ok(())
    }

    fn post_shared(&mut self, srq: usize, mistakes: bool) -> Check {
        let users = || self.halves.iter().filter(|half| half.srq == Some(srq));
        let capacity = users().map(|half| half.max_len).max().unwrap_or(0) + 40;
        let (ep, id) = (self.srqs[srq].ep, self.srqs[srq].id);
        let reliable = users().all(|half| half.service == Service::Rc);
        let (recv, sges) = self.draft_recv(ep, capacity, mistakes && reliable);
        if recv.forbidden || recv.capacity < capacity {
            self.halves.iter_mut().filter(|half| half.srq == Some(srq)).for_each(|half| half.bad_recv = true);
        }
        let index = self.srqs[srq].recvs.len() as u64;
        self.srqs[srq].recvs.push(recv);
        let wr = RecvWr { wr_id: RECV | SHARED | (srq as u64) << 32 | index, sges: &sges };
        let result = self.fabric.post_srq_recv(self.eps[ep].id, id, &wr);
        ensure!(result.is_ok(), "shared receive {index} was refused: {result:?}");
        Ok(())
    }

    // Sends.

    fn post_send(&mut self, half: usize) -> Check {
        let Half { ep, qpn, peer, service, cap, all_signaled, gone, retired_sends, .. } = self.halves[half];
        if matches!(gone, Some(Gone::Destroyed | Gone::Reset)) {
            return Ok(());
        }
        let draft = match service {
            Service::Rc if self.rng.chance(self.mistakes) => self.draft_mistake(half),
            Service::Rc => self.draft_reliable(half),
            Service::Uc => self.draft_unreliable(half),
            _ => self.draft_datagram(half),
        };
        let flags = SendFlags {
            signaled: self.rng.chance(Chance::percent(60)),
            solicited: self.rng.chance(Chance::percent(20)),
            fence: self.rng.chance(Chance::percent(10)),
        };
        let inline = draft.may_be_inline
            && draft.bytes.len() <= cap.max_inline_data as usize
            && self.rng.chance(Chance::percent(40));
        let payload = if inline { Payload::Inline(&draft.bytes) } else { Payload::Sges(&draft.sges) };
        let index = self.halves[half].sends.len();
        let wr_id = (half as u64) << 32 | index as u64;
        let wr = SendWr { wr_id, op: draft.op, flags, payload, remote_srq: 0 };
        let outstanding = (index - retired_sends) as u32;
        // Reports made during the call are checked only after it, because the model must know the
        // send first.
        let result = self.fabric.post_send(self.eps[ep].id, qpn, &wr);
        if result == Err(PostRefused::QueueFull) {
            ensure!(
                outstanding >= cap.max_send_wr,
                "half {half}: full with {outstanding} of {}",
                cap.max_send_wr
            );
            return Ok(());
        }
        ensure!(result.is_ok(), "half {half}: {:?} was refused: {result:?}", draft.op);
        if matches!(draft.what, Effect::Count { .. }) {
            let at = self.halves[peer].ep;
            self.eps[at].uncounted += 1;
        }
        let sender = &mut self.halves[half];
        let message = draft.message.map(|message| {
            sender.messages.push(message);
            sender.messages.len() - 1
        });
        let len =
            if inline { draft.bytes.len() } else { draft.sges.iter().map(|sge| sge.length as usize).sum() };
        let (signaled, fence) = (flags.signaled || all_signaled, flags.fence);
        sender.offended |= draft.offends;
        draft.area_after.into_iter().for_each(|after| sender.area_after = after);
        draft.word_after.into_iter().for_each(|after| sender.word_after = after);
        sender.sends.push(Send { what: draft.what, signaled, fence, len, mistake: draft.mistake, message });
        Ok(())
    }

    /// Returns the length of a message in bytes: short, empty, or close to a multiple of the path
    /// MTU.
    fn length(&mut self, half: usize, most: usize) -> usize {
        let mtu = u64::from(self.halves[half].mtu());
        let rng = &mut self.rng;
        let length = match rng.below(10) {
            0 => 0,
            1..4 => rng.range(1, 64),
            4..7 => (rng.range(1, 6) * mtu + rng.below(3)).saturating_sub(1),
            7 => rng.below(most as u64 + 1),
            _ => rng.below(most.min(3000) as u64 + 1),
        };
        (length as usize).min(most)
    }

    /// Returns `len` bytes to send and their scatter/gather elements.
    fn gather(&mut self, half: usize, len: usize) -> (Vec<Sge>, Vec<u8>) {
        let Half { ep, source, cap, .. } = self.halves[half];
        let (mut sges, mut bytes) = (Vec::new(), Vec::new());
        for piece in self.pieces(len, u64::from(cap.max_send_sge)) {
            let len = piece.len();
            let at = self.rng.below((SOURCE - len) as u64 + 1) as usize;
            sges.push(source.sge(at as u64, len as u32));
            bytes.extend_from_slice(&self.fabric.bytes(self.eps[ep].id, &source)[at..at + len]);
        }
        (sges, bytes)
    }

    /// Returns scatter/gather elements for the `len` bytes of a read.
    fn scatter(&mut self, half: usize, len: usize) -> (Region, Vec<Range<usize>>, Vec<Sge>) {
        let Half { ep, cap, .. } = self.halves[half];
        let pieces = self.pieces(len, u64::from(cap.max_send_sge));
        let end = pieces.last().map_or(0, |piece| piece.end);
        let into = self.fabric.register(self.eps[ep].id, vec![EMPTY; end], Access::LOCAL_WRITE).unwrap();
        let sges = sges(&into, &pieces);
        (into, pieces, sges)
    }

    fn draft_message(&mut self, half: usize, op: SendOp, len: usize) -> Draft {
        let (sges, bytes) = self.gather(half, len);
        let (write, imm, invalidates) = match op {
            SendOp::Send { imm } | SendOp::Datagram { imm, .. } => (false, imm, None),
            SendOp::SendInvalidate { rkey } => (false, None, Some(rkey)),
            SendOp::Write { imm, .. } => (true, imm, None),
            _ => (false, None, None),
        };
        let message = Message { bytes: bytes.clone(), write, imm, invalidates, unwanted: false };
        Draft { may_be_inline: true, bytes, message: Some(message), ..Draft::new(op, Effect::Message, sges) }
    }

    fn draft_write(&mut self, half: usize, imm: Option<u32>) -> Draft {
        let Half { peer, max_len, .. } = self.halves[half];
        let area = self.halves[peer].area;
        let len = self.length(half, max_len.min(AREA));
        let offset = self.rng.below((AREA - len) as u64 + 1) as usize;
        let op = SendOp::Write { addr: area.addr + offset as u64, rkey: area.key, imm };
        let draft = self.draft_message(half, op, len);
        let mut after = self.halves[half].area_after.clone();
        after[offset..offset + len].copy_from_slice(&draft.bytes);
        Draft {
            what: Effect::Write { offset, bytes: draft.bytes.clone() },
            message: draft.message.filter(|_| imm.is_some()),
            area_after: Some(after),
            ..draft
        }
    }

    fn draft_read(&mut self, half: usize, of_area: bool) -> Draft {
        let Half { peer, max_len, .. } = self.halves[half];
        let Half { ep, area, readable, .. } = self.halves[peer];
        let (region, size) = if of_area { (area, AREA) } else { (readable, SOURCE) };
        let len = self.length(half, max_len.min(size));
        let offset = self.rng.below((size - len) as u64 + 1) as usize;
        let (into, pieces, sges) = self.scatter(half, len);
        let range = offset..offset + len;
        let expect = if of_area {
            Expect::Area { offset, bytes: self.halves[half].area_after[range].to_vec() }
        } else {
            Expect::Bytes(self.fabric.bytes(self.eps[ep].id, &readable)[range].to_vec())
        };
        let op = SendOp::Read { addr: region.addr + offset as u64, rkey: region.key };
        Draft::new(op, Effect::Read { into, pieces, expect }, sges)
    }

    fn draft_atomic(&mut self, half: usize) -> Draft {
        let Half { ep, peer, word_after: found, .. } = self.halves[half];
        let word = self.halves[peer].word;
        let into = self.fabric.register(self.eps[ep].id, vec![EMPTY; 8], Access::LOCAL_WRITE).unwrap();
        let sges = vec![into.sge(0, 8)];
        let operand = self.rng.next_u64();
        let (addr, rkey) = (word.addr, word.key);
        match self.rng.below(5) {
            0..2 => {
                let compare = if self.rng.chance(Chance::percent(60)) { found } else { operand };
                let after = if compare == found { operand } else { found };
                let op = SendOp::CompareSwap { addr, rkey, compare, swap: operand };
                Draft {
                    word_after: Some(after),
                    ..Draft::new(op, Effect::CompareSwap { into, found, after }, sges)
                }
            }
            2..4 => {
                let after = found.wrapping_add(operand);
                let op = SendOp::FetchAdd { addr, rkey, add: operand };
                Draft {
                    word_after: Some(after),
                    ..Draft::new(op, Effect::FetchAdd { into, found, after }, sges)
                }
            }
            _ => {
                let counter = self.eps[self.halves[peer].ep].counter;
                let op = SendOp::FetchAdd { addr: counter.addr, rkey: counter.key, add: 1 };
                Draft::new(op, Effect::Count { into }, sges)
            }
        }
    }

    fn draft_reliable(&mut self, half: usize) -> Draft {
        let Half { peer, max_len, area, window, .. } = self.halves[half];
        let imm = Some(self.rng.next_u64() as u32);
        let draw = self.rng.below(100);
        let len = self.length(half, max_len);
        match draw {
            0..22 => self.draft_message(half, SendOp::Send { imm: None }, len),
            22..32 => self.draft_message(half, SendOp::Send { imm }, len),
            32..37 => {
                let rkey = self.halves[peer].window;
                self.draft_message(half, SendOp::SendInvalidate { rkey }, len)
            }
            37..58 => self.draft_write(half, None),
            58..66 => self.draft_write(half, imm),
            66..78 => self.draft_read(half, false),
            78..84 => self.draft_read(half, true),
            84..98 => self.draft_atomic(half),
            98 => {
                // The window is bound under its current key, so the key does not change. No other
                // queue pair knows the window yet.
                let (lkey, addr, length) = (area.key, area.addr, AREA as u64);
                let access = Access::REMOTE_WRITE;
                let window = self.own_window(half);
                let op = SendOp::Bind { window, new_rkey: window, lkey, addr, length, access };
                Draft::new(op, Effect::Bind, Vec::new())
            }
            _ => Draft::new(SendOp::LocalInvalidate { rkey: window }, Effect::LocalInvalidate, Vec::new()),
        }
    }

    /// Allocates an unbound window of type 2.
    fn own_window(&mut self, half: usize) -> u32 {
        let id = self.eps[self.halves[half].ep].id;
        let pd = self.fabric.endpoint(id).pd();
        self.fabric.with(id, |engine, _, _| engine.alloc_mw(pd, roce::engine::MwType::Two)).unwrap()
    }

    /// Returns a send that must fail or make its receive fail.
    fn draft_mistake(&mut self, half: usize) -> Draft {
        let Half { ep, peer, source, .. } = self.halves[half];
        let Half { area, readable, private, foreign, .. } = self.halves[peer];
        let remote: &'static [Status] = &[Status::RemoteAccess];
        let local: &'static [Status] = &[Status::LocalProtection];
        let into = self.fabric.register(self.eps[ep].id, vec![EMPTY; 16], ALL).unwrap();
        let sges = vec![into.sge(0, 16)];
        let (write, read) = (
            |at: u64, rkey: u32| SendOp::Write { addr: at, rkey, imm: None },
            |at: u64, rkey: u32| SendOp::Read { addr: at, rkey },
        );
        let (op, sges, why, mistake): (_, _, _, &'static [Status]) = match self.rng.below(11) {
            0 => (write(area.addr, area.key ^ 0xffff_0000), sges, "write, wrong key", remote),
            1 => (write(area.addr + AREA as u64 - 15, area.key), sges, "write beyond the end", remote),
            2 => (write(readable.addr, readable.key), sges, "write without the right", remote),
            3 => (write(foreign.addr, foreign.key), sges, "write, other domain", remote),
            4 => (read(private.addr, private.key), sges, "read without the right", remote),
            5 => (read(area.addr - 1, area.key), sges, "read before the beginning", remote),
            6 => {
                let op = SendOp::FetchAdd { addr: readable.addr, rkey: readable.key, add: 1 };
                (op, vec![into.sge(0, 8)], "atomic without the right", remote)
            }
            7 => {
                // The receive fails, but no NAK is sent to the sender (IBTA 9.9.6, class J).
                let statuses: &'static [Status] = &[Status::Success];
                (SendOp::SendInvalidate { rkey: area.key }, sges, "invalidating a region", statuses)
            }
            8 => {
                let sge = Sge { lkey: into.key ^ 0xffff_0000, ..into.sge(0, 16) };
                (SendOp::Send { imm: None }, vec![sge], "send, wrong local key", local)
            }
            9 => {
                (read(area.addr, area.key), vec![source.sge(0, 16)], "read into what is not writable", local)
            }
            _ => (SendOp::Send { imm: None }, vec![into.sge(9, 8)], "send beyond the end", local),
        };
        let consumes = matches!(op, SendOp::Send { .. } | SendOp::SendInvalidate { .. });
        // The receive for the message may also be too short.
        let bytes = vec![EMPTY; sges.iter().map(|sge| sge.length as usize).sum()];
        let message = Message { bytes, write: false, imm: None, invalidates: None, unwanted: true };
        Draft {
            mistake,
            offends: mistake != local,
            message: consumes.then_some(message),
            ..Draft::new(op, Effect::Nothing(why), sges)
        }
    }

    fn draft_unreliable(&mut self, half: usize) -> Draft {
        let number = Some(self.halves[half].messages.len() as u32);
        let len = self.length(half, self.halves[half].max_len);
        match self.rng.below(4) {
            0..2 => self.draft_message(half, SendOp::Send { imm: number }, len),
            2 => self.draft_write(half, None),
            _ => self.draft_write(half, number),
        }
    }

    fn draft_datagram(&mut self, half: usize) -> Draft {
        let Half { ep, peer, ref attr, .. } = self.halves[half];
        let (mtu, qkey) = (attr.path_mtu as usize, attr.qkey);
        let (from, to) = (self.eps[ep].id, self.eps[self.halves[peer].ep].id);
        let unwanted = self.rng.chance(self.mistakes);
        let qkey = if unwanted { qkey ^ 1 } else { qkey };
        let path = Path { hop_limit: 9, traffic_class: 0x28, ..self.fabric.path(from, to) };
        let to = UdDestination { path, qpn: self.halves[peer].qpn.0, qkey };
        let imm = Some(self.halves[half].messages.len() as u32);
        let len = self.length(half, mtu);
        let mut draft = self.draft_message(half, SendOp::Datagram { to, imm }, len);
        if let Some(message) = &mut draft.message {
            message.unwanted = unwanted;
        }
        draft
    }
}

impl Draft {
    fn new(op: SendOp, what: Effect, sges: Vec<Sge>) -> Self {
        Self {
            op,
            what,
            sges,
            bytes: Vec::new(),
            may_be_inline: false,
            mistake: &[],
            offends: false,
            message: None,
            area_after: None,
            word_after: None,
        }
    }
}

fn sges(region: &Region, pieces: &[Range<usize>]) -> Vec<Sge> {
    pieces.iter().map(|piece| region.sge(piece.start as u64, piece.len() as u32)).collect()
}
