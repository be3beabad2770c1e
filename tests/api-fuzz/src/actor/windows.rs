//! Memory windows: access that a queue pair grants to its peer and revokes while the peer writes.
//!
//! The peer writes with a key while the key is valid and afterwards. Once the program has the
//! memory back as plain bytes, no byte may change.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use verbs::state::Rts;
use verbs::{
    Buf, Completed, ConnectAttr, Cq, CqInit, Errno, Exposed, HandleError, MwType, Pd, Qp, QpInit, QpType,
    RemoteAccess, RemoteMr, SendFlags, SendOp, WcStatus, Window,
};
use verbs_harness::pattern::fill;
use verbs_harness::runner::{CaseResult, fail};

use super::super::tally::Kind;
use super::super::world::PORT;
use super::Actor;
use Ending::{ByPeer, Close, Drop, Forget, QueuePair, Revoke};

const NONE: SendFlags = SendFlags::empty();
const LEN: usize = 256;

/// A time limit that no request exceeds, even on a busy machine, under a sanitizer or in an
/// emulated guest.
const PATIENCE: Duration = Duration::from_secs(60);

/// The way a binding ends.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// Revoked by a request from this side.
    Revoke,
    /// Invalidated by a message from the peer.
    ByPeer,
    Close,
    Drop,
    Forget,
    /// Ended by the queue pair, which is destroyed before the window.
    QueuePair,
}

/// A queue pair and the completion queue for its sends and receives.
pub(super) struct End {
    pub(super) qp: Qp<Rts>,
    pub(super) cq: Cq,
}

/// The peer and its unfinished writes.
struct Peer {
    end: End,
    pd: Pd,
    in_flight: u32,
    is_broken: bool,
}

impl Actor<'_> {
    /// Binds a window a few times and checks its memory once the memory is plain again.
    pub(super) fn windows(&mut self) -> CaseResult {
        let context = self.choices.below(self.world.contexts.len() as u64) as usize;
        let pd = self.world.pds[context].clone();
        let mw_type = self.choices.one_of(&[MwType::TYPE_1, MwType::TYPE_2, MwType::TYPE_2]);
        let (mut owner, end) = self.two_ends(context)?;
        let mut window = match pd.alloc_window(mw_type) {
            Ok(window) => window,
            Err(error) if error.errno == Errno::OPNOTSUPP => {
                // Counts all kinds as reached, so that rounds do not fail on a kernel without
                // windows.
                for kind in [Kind::WindowBind, Kind::WindowRevoke, Kind::WindowByPeer, Kind::WindowEnd] {
                    self.tally.add(kind);
                }
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let mut memory = pd.expose_to_windows(pd.alloc_buf(LEN)?)?;
        let mut peer = Peer { end, pd: pd.clone(), in_flight: 0, is_broken: false };
        while !peer.is_broken {
            let access = RemoteAccess::WRITE | RemoteAccess::READ;
            let (_, remote) = owner.qp.post_bind(NONE, window, &memory, .., access)?;
            window = returned(&mut owner.cq)?;
            self.tally.add(Kind::WindowBind);
            if memory.bytes_mut().is_ok() {
                return fail("the memory is plain while a window is bound to it");
            }
            // Some writes arrive before the binding ends, others while it ends.
            for _ in 0..self.choices.below(6) {
                peer.write(remote, self.choices.any())?;
            }
            let ending =
                self.choices.one_of(&[Revoke, Revoke, ByPeer, ByPeer, Close, Drop, Forget, QueuePair]);
            match ending {
                ByPeer if mw_type == MwType::TYPE_2 => {
                    owner.qp.post_recv_buf(pd.alloc_buf(8)?, ..)?;
                    let done = SendOp::SendWithInv { invalidate_rkey: remote.rkey };
                    peer.end.qp.post_send_buf(done, NONE, pd.alloc_buf(8)?, ..)?;
                    peer.in_flight += 1;
                    let completed = next(&mut owner.cq)?;
                    if !completed.invalidated().is_some_and(|by| window.invalidated(by)) {
                        return fail(format_args!("{completed:?} does not end the binding of {window:?}"));
                    }
                    self.tally.add(Kind::WindowByPeer);
                }
                Revoke | ByPeer => {
                    owner.qp.post_revoke(NONE, window)?;
                    window = returned(&mut owner.cq)?;
                    self.tally.add(Kind::WindowRevoke);
                }
                Forget if self.world.may_forget() => {
                    core::mem::forget(window);
                    self.tally.add(Kind::WindowEnd);
                    return is_kept(memory).map(drop);
                }
                Close | Drop | Forget | QueuePair => {
                    if matches!(ending, QueuePair) {
                        drop(owner.qp);
                        peer.is_broken = true;
                    }
                    let memory = is_kept(memory)?;
                    if matches!(ending, Close) {
                        window.close()?;
                    } else {
                        drop(window);
                    }
                    self.tally.add(Kind::WindowEnd);
                    return peer.spares(memory.unexpose()?, remote, self.choices.any());
                }
            }
            match memory.bytes_mut() {
                Ok(bytes) => {
                    let before = bytes.to_vec();
                    if self.rarely(3) {
                        peer.write(remote, self.choices.any())?;
                    }
                    peer.settle()?;
                    is_same(memory.bytes_mut()?, &before)?;
                }
                // rxe may continue to write until the memory is deregistered.
                Err(error) if error.errno == Errno::BUSY => {
                    return peer.spares(memory.unexpose()?, remote, self.choices.any());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns two queue pairs connected to each other.
    pub(super) fn two_ends(&self, context: usize) -> CaseResult<(End, End)> {
        let (pd, context) = (&self.world.pds[context], &self.world.contexts[context]);
        let port = context.port(PORT)?;
        let make = || -> CaseResult<_> {
            let cq = context.create_cq(&CqInit::new(64))?;
            Ok((pd.create_qp(&QpInit::new(QpType::RC, &cq))?, cq))
        };
        let ((one, one_cq), (other, other_cq)) = (make()?, make()?);
        let (to_one, to_other) = (one.endpoint(&port), other.endpoint(&port));
        let attr = ConnectAttr { access: RemoteAccess::all(), ..ConnectAttr::default() };
        let one = End { qp: one.connect(&port, &to_other, &attr)?, cq: one_cq };
        Ok((one, End { qp: other.connect(&port, &to_one, &attr)?, cq: other_cq }))
    }
}

impl Peer {
    /// Posts a write that covers all of the peer's exposed memory.
    fn write(&mut self, remote: RemoteMr, seed: u64) -> CaseResult {
        let mut buf = self.pd.alloc_buf(LEN)?;
        fill(seed, &mut buf);
        self.end.qp.post_send_buf(remote.write(), NONE, buf, ..)?;
        self.in_flight += 1;
        Ok(())
    }

    /// Waits for all requests to complete. They may fail.
    fn settle(&mut self) -> CaseResult {
        for _ in 0..core::mem::take(&mut self.in_flight) {
            let status = next(&mut self.end.cq)?.status;
            if !matches!(status, WcStatus::SUCCESS | WcStatus::REM_ACCESS_ERR | WcStatus::WR_FLUSH_ERR) {
                return fail(format_args!("a request of the peer ends with {status}"));
            }
            self.is_broken |= status != WcStatus::SUCCESS;
        }
        Ok(())
    }

    /// Checks that a write with an invalidated key changes nothing.
    fn spares(mut self, mut buf: Buf, remote: RemoteMr, seed: u64) -> CaseResult {
        fill(seed, &mut buf);
        let before = buf.to_vec();
        if !self.is_broken {
            self.write(remote, !seed)?;
            self.settle()?;
            if !self.is_broken {
                return fail("a key without a window let the peer write");
            }
        }
        is_same(&buf, &before)
    }
}

/// Checks that the memory of a bound window stays exposed.
fn is_kept(memory: Exposed) -> CaseResult<Exposed> {
    match memory.unexpose() {
        Ok(_) => fail("the memory of a window came back"),
        Err(HandleError { handle, .. }) => Ok(handle),
    }
}

fn is_same(bytes: &[u8], before: &[u8]) -> CaseResult {
    if bytes == before { Ok(()) } else { fail("plain memory changed after its window was revoked") }
}

/// Polls until there is a completion.
pub(super) fn next(cq: &mut Cq) -> CaseResult<Completed> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(completed) = cq.poll_one() {
            return Ok(completed);
        }
        if Instant::now() > deadline {
            return fail(format_args!("no completion after {PATIENCE:?}"));
        }
        std::thread::yield_now();
    }
}

/// Waits for a successful request on a window and returns the window.
fn returned(cq: &mut Cq) -> CaseResult<Window> {
    Ok(next(cq)?.ok()?.into_window()?)
}
