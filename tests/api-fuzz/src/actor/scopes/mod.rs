//! Scopes: requests on borrowed memory; scopes that return or panic with requests in flight. No
//! device may change the bytes after the scope has ended.
#![forbid(unsafe_code)]

mod record;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use verbs::state::Rts;
use verbs::{
    Buf, Completed, Cq, Pd, PostBufError, PostBufReason, Qp, RemoteAccess, RemoteMr, Returned, Scope,
    ScopedBuf, ScopedBytes, ScopedMemory, ScopedQp, SendFlags, SendOp, WcStatus,
};
use verbs_harness::pattern::filled;
use verbs_harness::runner::{CaseResult, fail};

use super::super::memory::{Plain, PlainBytes};
use super::super::tally::Kind;
use super::Actor;
use super::windows::End;
use record::{Entry, Record};

const NONE: SendFlags = SendFlags::empty();

/// The number of borrowed pieces, their length and the number of bytes between them.
const BOXES: usize = 8;
const LEN: usize = 96;
const GAP: usize = 32;

/// A time limit that no message exceeds, even on a busy machine, under a sanitizer or in an
/// emulated guest.
const PATIENCE: Duration = Duration::from_secs(60);

/// The way the closure of a scope ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    /// After all requests have ended.
    Done,
    /// With requests in flight.
    Early,
    /// By a panic, with requests in flight.
    Panic,
}

/// The payload of panics that end a scope on purpose.
struct Thrown;

/// The queue pairs that a scope returns.
type Back = [Option<Qp<Rts>>; 2];

/// The state inside a scope.
struct Inside<'a, 'w, 'scope, 'env> {
    actor: &'a mut Actor<'w>,
    cqs: &'a mut [Cq; 2],
    record: &'a mut Record,
    escaped: &'a mut Vec<Returned>,
    pd: &'a Pd,
    remote: RemoteMr,
    leave: Leave,
    scope: &'scope Scope<'scope, 'env>,
    /// One end of the connection, or both.
    qps: Vec<ScopedQp<'scope, Rts>>,
    /// The other end, outside the scope.
    outside: Option<&'a mut Qp<Rts>>,
    out: ScopedBytes<'scope>,
    bufs: Vec<ScopedBuf<'scope>>,
}

impl Actor<'_> {
    /// Runs a few scopes that borrow memory, on one connection.
    pub(super) fn scopes(&mut self) -> CaseResult {
        let context = self.choices.below(self.world.contexts.len() as u64) as usize;
        let pd = self.world.pds[context].clone();
        let (End { qp: near, cq: near_cq }, End { qp: far, cq: far_cq }) = self.two_ends(context)?;
        let mut cqs = [near_cq, far_cq];
        let mut qps = [near, far];
        for _ in 0..4 {
            if self.rarely(4) {
                let Some(back) = self.scope_polled_elsewhere(&pd, qps, &mut cqs)? else { return Ok(()) };
                qps = back;
                continue;
            }
            let [Some(near), Some(far)] = self.scope(&pd, qps, &mut cqs)? else { return Ok(()) };
            qps = [near, far];
        }
        Ok(())
    }

    /// Runs one scope and checks the memory afterwards.
    fn scope(&mut self, pd: &Pd, [near, mut far]: [Qp<Rts>; 2], cqs: &mut [Cq; 2]) -> CaseResult<Back> {
        let leave = self.choices.one_of(&[Leave::Done, Leave::Done, Leave::Early, Leave::Panic]);
        let out = filled(self.choices.any(), LEN);
        let mut room = filled(self.choices.any(), BOXES * (LEN + GAP));
        let mut record = Record::new(&room);
        let mut source = pd.alloc_buf(LEN)?;
        source.copy_from_slice(&out);
        let exposed = pd.expose(source, RemoteAccess::READ | RemoteAccess::WRITE)?;
        let (remote, mut escaped) = (exposed.remote(), Vec::new());
        let boxes: Vec<_> = room.chunks_mut(LEN + GAP).map(|part| part.split_at_mut(LEN).0).collect();
        let is_alone = self.rarely(2);
        let is_list = self.rarely(2);
        let (actor, the_record, the_escaped, the_cqs) = (&mut *self, &mut record, &mut escaped, &mut *cqs);
        let caught = catch_unwind(AssertUnwindSafe(|| -> (CaseResult, Back) {
            macro_rules! inside {
                ($scope:ident, $qps:expr, $outside:expr) => {{
                    let bufs =
                        boxes.into_iter().map(|bytes| $scope.register(bytes)).collect::<Result<_, _>>()?;
                    Inside {
                        out: $scope.register_bytes(&out)?,
                        bufs,
                        actor,
                        cqs: the_cqs,
                        record: the_record,
                        escaped: the_escaped,
                        pd,
                        remote,
                        leave,
                        scope: $scope,
                        qps: $qps,
                        outside: $outside,
                    }
                    .run()
                }};
            }
            if is_alone {
                let (result, near) = pd.scope(near, |scope, near| inside!(scope, vec![near], Some(&mut far)));
                (result, [near, Some(far)])
            } else if is_list {
                let (result, mut back) = pd.scope(vec![near, far], |scope, qps| inside!(scope, qps, None));
                let far = back.pop().flatten();
                (result, [back.pop().flatten(), far])
            } else {
                let (result, (near, far)) =
                    pd.scope((near, far), |scope, (near, far)| inside!(scope, vec![near, far], None));
                (result, [near, far])
            }
        }));
        let back = match caught {
            Ok((result, back)) => {
                result?;
                record.wants(&back, is_alone)?;
                if leave == Leave::Done {
                    self.tally.add(Kind::ScopeDone);
                } else if back.iter().any(Option::is_none) {
                    self.tally.add(Kind::ScopeEarly);
                }
                back
            }
            Err(panic) if leave == Leave::Panic && panic.is::<Thrown>() => {
                self.tally.add(Kind::ScopePanic);
                [None, None]
            }
            Err(panic) => resume_unwind(panic),
        };
        if !escaped.is_empty() {
            if escaped.into_iter().any(|memory| is_of_another(pd, memory)) {
                return fail("a scope reclaimed memory of an earlier one");
            }
            self.tally.add(Kind::ScopeEscape);
        }
        // Messages and retries from the other end may still arrive.
        for cq in cqs {
            while cq.poll_one().is_some() {}
        }
        record.check_after(&room)?;
        self.keep_plain(Plain::new(PlainBytes::Vec(room), true))?;
        Ok(back)
    }

    /// Runs a scope whose receives are polled by another thread. Only the library orders the
    /// device's writes before the end of the scope.
    fn scope_polled_elsewhere(
        &mut self,
        pd: &Pd,
        [near, mut far]: [Qp<Rts>; 2],
        cqs: &mut [Cq; 2],
    ) -> CaseResult<Option<[Qp<Rts>; 2]>> {
        let out = filled(self.choices.any(), LEN);
        let mut room = vec![0; (1 + self.choices.below(6) as usize) * LEN];
        let count = room.len() / LEN;
        let (ended, failed, stop) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicBool::new(false));
        let [near_cq, far_cq] = cqs;
        let back = thread::scope(|threads| -> CaseResult<_> {
            threads.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let Some(Completed { wc, returned, .. }) = near_cq.poll_one() else {
                        thread::yield_now();
                        continue;
                    };
                    if wc.status != WcStatus::SUCCESS {
                        failed.store(true, Ordering::Relaxed);
                    }
                    drop(returned);
                    ended.fetch_add(1, Ordering::Relaxed);
                }
            });
            let _stop = StopOnDrop(&stop);
            let boxes = room.chunks_mut(LEN);
            let (result, back) = pd.scope(near, |scope, mut near| -> CaseResult {
                for bytes in boxes {
                    near.post_recv_buf(scope.register(bytes)?, ..)?;
                }
                for _ in 0..count {
                    let mut buf = pd.alloc_buf(LEN)?;
                    buf.copy_from_slice(&out);
                    far.post_send_buf(SendOp::Send, NONE, buf, ..)?;
                }
                let deadline = Instant::now() + PATIENCE;
                while ended.load(Ordering::Relaxed) < count {
                    if Instant::now() > deadline {
                        return fail("receives of a scope do not end");
                    }
                    drop(far_cq.poll_one());
                    thread::yield_now();
                }
                Ok(())
            });
            result?;
            let is_whole = room.chunks(LEN).all(|bytes| bytes == out);
            if !is_whole && !failed.load(Ordering::Relaxed) {
                return fail("a message is not in the memory of an ended scope");
            }
            Ok(back)
        })?;
        self.tally.add(Kind::ScopePolled);
        self.keep_plain(Plain::new(PlainBytes::Vec(room), true))?;
        let is_broken = failed.load(Ordering::Relaxed);
        Ok(back.filter(|_| !is_broken).map(|near| [near, far]))
    }
}

impl<'scope> Inside<'_, '_, 'scope, '_> {
    fn run(mut self) -> CaseResult {
        for _ in 0..self.actor.choices.below(40) {
            let side = self.actor.choices.below(2) as usize;
            match self.actor.choices.below(12) {
                0..4 => self.recv(side)?,
                4..7 => {
                    let is_wanted = self.record.receives[1 - side] > 0;
                    if is_wanted || self.leave != Leave::Done && self.actor.rarely(6) {
                        let is_signaled = !self.actor.rarely(3);
                        self.send(side, is_signaled)?;
                    }
                }
                7 => self.read(side)?,
                8 => self.write_as_owner(),
                _ => self.poll(side)?,
            }
        }
        match self.leave {
            Leave::Done => self.finish()?,
            Leave::Early | Leave::Panic => self.recv(0)?,
        }
        self.bufs.iter().try_for_each(|buf| self.record.check(buf))?;
        if self.leave == Leave::Panic {
            // Like a panic, but without its message.
            resume_unwind(Box::new(Thrown));
        }
        Ok(())
    }

    /// Removes and returns one of the program's buffers, which must be unchanged.
    fn take(&mut self) -> CaseResult<Option<ScopedBuf<'scope>>> {
        let Some(at) = self.actor.place(self.bufs.len()) else { return Ok(None) };
        let buf = self.bufs.swap_remove(at);
        self.record.check(&buf)?;
        Ok(Some(buf))
    }

    fn recv(&mut self, side: usize) -> CaseResult {
        if side < self.qps.len() {
            let Some(buf) = self.take()? else { return Ok(()) };
            let part = self.actor.choices.below(LEN as u64 / 2) as usize..LEN;
            let writes = self.record.part(&buf, &part);
            let result = self.qps[side].post_recv_buf(buf, part);
            if self.posted(side, true, true, Some(writes), result)? {
                self.record.receives[side] += 1;
            }
        } else if let Some(qp) = &mut self.outside
            && qp.post_recv_buf(self.pd.alloc_buf(LEN)?, ..).is_ok()
        {
            self.record.receives[side] += 1;
        }
        Ok(())
    }

    /// Sends the first bytes of the data that all messages in the scope share.
    fn send(&mut self, side: usize, is_signaled: bool) -> CaseResult {
        let len = 1 + self.actor.choices.below(LEN as u64 / 2 - 1) as usize;
        let is_queued = if side >= self.qps.len() {
            let Some(qp) = &mut self.outside else { return Ok(()) };
            let mut buf: Buf = self.pd.alloc_buf(len)?;
            buf.copy_from_slice(&self.out[..len]);
            qp.post_send_buf(SendOp::Send, NONE, buf, ..).is_ok()
        } else if !is_signaled {
            let result = self.qps[side].post_send_buf_unsignaled(SendOp::Send, NONE, self.out.clone(), ..len);
            let is_queued = result.is_ok();
            if is_queued {
                self.record.tokens[side] += 1;
                self.record.unsignaled[side] += 1;
                self.actor.tally.add(Kind::ScopePost);
            }
            is_queued
        } else if self.actor.rarely(3)
            && let Some(mut buf) = self.take()?
        {
            buf[..len].copy_from_slice(&self.out[..len]);
            self.record.update(&buf);
            let result = self.qps[side].post_send_buf(SendOp::Send, NONE, buf, ..len);
            self.posted(side, false, true, None, result)?
        } else {
            let result = self.qps[side].post_send_buf(SendOp::Send, NONE, self.out.clone(), ..len);
            self.posted_bytes(side, result)?
        };
        if is_queued {
            self.record.receives[1 - side] = self.record.receives[1 - side].saturating_sub(1);
        }
        Ok(())
    }

    fn read(&mut self, side: usize) -> CaseResult {
        if side >= self.qps.len() {
            return Ok(());
        }
        let Some(buf) = self.take()? else { return Ok(()) };
        let part = self.actor.choices.below(LEN as u64 / 2) as usize..LEN;
        let writes = self.record.part(&buf, &part);
        let result = self.qps[side].post_send_buf(self.remote.read(), NONE, buf, part);
        self.posted(side, false, true, Some(writes), result).map(drop)
    }

    fn write_as_owner(&mut self) {
        let Some(at) = self.actor.place(self.bufs.len()) else { return };
        let bytes = filled(self.actor.choices.any(), LEN);
        self.bufs[at].copy_from_slice(&bytes);
        self.record.update(&self.bufs[at]);
    }

    /// Records a posted request, or keeps the buffer of a rejected one; returns whether it was
    /// posted.
    fn posted(
        &mut self,
        side: usize,
        is_recv: bool,
        is_writable: bool,
        writes: Option<Range<usize>>,
        result: Result<u64, PostBufError<ScopedMemory>>,
    ) -> CaseResult<bool> {
        match result {
            Ok(wr_id) => {
                self.record.add(side, wr_id, is_recv, is_writable, writes)?;
                self.actor.tally.add(Kind::ScopePost);
                Ok(true)
            }
            Err(PostBufError { returned: Some(memory), reason: PostBufReason::Post(_) }) => {
                let Some(buf) = self.scope.reclaim([memory]) else {
                    return fail("borrowed memory that was refused is not given back");
                };
                self.record.check(&buf)?;
                self.bufs.push(buf);
                Ok(false)
            }
            Err(refused) => fail(format_args!("borrowed memory was refused: {refused}")),
        }
    }

    fn posted_bytes(
        &mut self,
        side: usize,
        result: Result<u64, PostBufError<ScopedMemory>>,
    ) -> CaseResult<bool> {
        let Ok(wr_id) = result else { return Ok(false) };
        self.record.add(side, wr_id, false, false, None)?;
        self.actor.tally.add(Kind::ScopePost);
        Ok(true)
    }

    fn poll(&mut self, side: usize) -> CaseResult {
        for _ in 0..=self.actor.choices.below(8) {
            let Some(Completed { wc, returned, .. }) = self.cqs[side].poll_one() else { break };
            self.actor.tally.add(Kind::Completion);
            self.actor.tally.add_status(wc.status);
            self.record.is_broken |= wc.status != WcStatus::SUCCESS;
            let Some(entry) = self.record.entries.remove(&(side, wc.wr_id)) else { continue };
            let Some(returned) = returned else { return fail("borrowed memory did not come back") };
            self.take_back(side, wc.wr_id, entry, wc.status == WcStatus::SUCCESS, wc.byte_len, returned)?;
        }
        Ok(())
    }

    /// Uses the memory of a completion, usually by reclaiming it in the scope.
    fn take_back(
        &mut self,
        side: usize,
        wr_id: u64,
        entry: Entry,
        is_success: bool,
        byte_len: u32,
        returned: Returned,
    ) -> CaseResult {
        let tokens = 1 + entry.chained;
        if entry.is_writable && self.actor.rarely(4) {
            match self.actor.choices.below(4) {
                0 if self.leave != Leave::Done => {
                    self.escaped.push(returned);
                    self.record.entries.insert((side, wr_id), entry);
                    return Ok(());
                }
                1 if self.leave != Leave::Done && self.actor.world.may_forget() => {
                    core::mem::forget(returned);
                    self.record.entries.insert((side, wr_id), entry);
                    return Ok(());
                }
                2 => {
                    if is_of_another(self.pd, returned) {
                        return fail("a scope reclaimed memory of the one around it");
                    }
                }
                _ => {
                    for memory in returned {
                        let Some(qp) = &mut self.outside else { continue };
                        match qp.post_recv_buf(memory, ..) {
                            Err(PostBufError { reason: PostBufReason::Foreign, .. }) => {
                                self.actor.tally.add(Kind::ScopeForeign);
                            }
                            other => return fail(format_args!("memory of a scope outside of it: {other:?}")),
                        }
                    }
                }
            }
            self.record.unseen.extend(entry.writes);
            self.record.tokens[side] = self.record.tokens[side].saturating_sub(tokens);
            return Ok(());
        }
        self.record.tokens[side] = self.record.tokens[side].saturating_sub(tokens);
        match (self.scope.reclaim(returned), entry.is_writable) {
            (Some(buf), true) => {
                self.actor.tally.add(Kind::ScopeReclaim);
                let out = &self.out;
                if let Some(writes) = entry.writes {
                    let at = self.record.at(&buf);
                    let part = writes.start - at..writes.end - at;
                    let (start, room) = (part.start, part.len());
                    // A read completes with the length that its request named.
                    let len = if byte_len == 0 { room } else { (byte_len as usize).min(room) };
                    let written = if is_success { start..start + len } else { part };
                    self.record.accept(&buf, &written);
                    if is_success && buf[start..start + len] != out[..len] {
                        return fail(format_args!("another message of {len} bytes in borrowed memory"));
                    }
                }
                self.record.check(&buf)?;
                self.bufs.push(buf);
                Ok(())
            }
            (None, false) => Ok(()),
            (got, _) => fail(format_args!("{got:?} was reclaimed for {wr_id:#x}")),
        }
    }

    /// Waits until every request has ended.
    fn finish(&mut self) -> CaseResult {
        let deadline = Instant::now() + PATIENCE;
        while !self.record.is_broken && !self.record.is_idle() {
            for side in 0..2 {
                if self.record.receives[side] > 0 {
                    self.send(1 - side, true)?;
                }
                if self.record.unsignaled[side] > 0 {
                    let result =
                        self.qps[side].post_send_buf(self.remote.write(), NONE, self.out.clone(), ..8);
                    self.posted_bytes(side, result)?;
                }
                self.poll(side)?;
            }
            if Instant::now() > deadline {
                return fail("requests of a scope do not end");
            }
            thread::yield_now();
        }
        Ok(())
    }
}

/// Sets a flag on drop.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns whether a new scope wrongly reclaims the memory.
fn is_of_another(pd: &Pd, memory: Returned) -> bool {
    pd.scope(Vec::<Qp<Rts>>::new(), |scope, _| scope.reclaim(memory).is_some()).0
}
