//! Memory that safe code exposes to windows. It is returned once no window can reach it.

use verbs::{
    Buf, Cause, Context, Errno, Exposed, MwType, PostBufReason, Provider, QpType, RemoteAccess, SendFlags,
    SendOp, WcOpcode, WcStatus, Window,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{Pair, Shape, is_mlx5, is_soft, next_completed, wait_for, wait_one};
use verbs_harness::runner::{Case, CaseResult, fail};

use super::{NONE, SUITE, has_windows};

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        revoked_memory_is_plain_memory,
        memory_that_a_peer_invalidated_is_plain_memory,
        exposed_memory_comes_back_when_no_window_is_bound,
        a_closed_window_takes_access_away,
        a_queue_pair_takes_its_windows_along,
        windows_that_cannot_be_posted_come_back_with_the_reason,
        an_invalidation_counts_for_its_own_binding_only,
        a_forgotten_window_keeps_its_memory,
    )
}

/// The objects that the safe cases use. The window is dropped first.
struct Safe<P: Provider> {
    window: Option<Window>,
    memory: Exposed,
    pair: Pair<P>,
}

impl<P: Provider> Safe<P> {
    fn new(context: &Context<P>, shape: &Shape, mw_type: MwType) -> CaseResult<Self> {
        has_windows()?;
        let pair = Pair::new(context, shape)?;
        let memory = pair.pd.expose_to_windows(pair.pd.alloc_buf(4096)?)?;
        let window = pair.pd.alloc_window(mw_type)?;
        assert!(!window.is_bound() && window.remote().is_none() && memory.is_for_windows());
        Ok(Self { window: Some(window), memory, pair })
    }

    fn take(&mut self) -> CaseResult<Window> {
        self.window.take().map_or_else(|| fail("there is no window"), Ok)
    }

    /// Binds the window to all of the memory and waits for the completion.
    fn bind(&mut self) -> CaseResult<verbs::RemoteMr> {
        let window = self.take()?;
        let access = RemoteAccess::READ | RemoteAccess::WRITE;
        let (number, remote) = self.pair.b.qp.post_bind(NONE, window, &self.memory, .., access)?;
        let completed = next_completed(&mut self.pair.b.cq)?;
        assert_eq!((completed.wr_id, completed.opcode), (number, WcOpcode::BIND_MW));
        self.window = Some(completed.into_window()?);
        let bound = self.window.as_ref().and_then(Window::remote);
        assert_eq!(bound, Some(remote));
        Ok(remote)
    }

    fn revoke(&mut self) -> CaseResult {
        let window = self.take()?;
        let number = self.pair.b.qp.post_revoke(NONE, window)?;
        let completed = next_completed(&mut self.pair.b.cq)?;
        assert_eq!(completed.wr_id, number);
        self.window = Some(completed.into_window()?);
        assert_eq!(self.window.as_ref().map(Window::is_bound), Some(false));
        Ok(())
    }

    /// Makes the peer write the bytes and returns the status.
    fn peer_writes(&mut self, remote: verbs::RemoteMr, bytes: &[u8]) -> CaseResult<WcStatus> {
        self.pair.a.qp.post_send_inline(1, remote.write(), SendFlags::SIGNALED, bytes)?;
        Ok(wait_one(&mut self.pair.a.cq)?.status)
    }

    /// Checks that the memory is plain again. A kernel device may instead report why the memory is
    /// still exposed.
    fn is_plain(&mut self, bytes: &[u8]) -> CaseResult {
        match self.memory.bytes_mut() {
            Ok(plain) => assert_eq!(&plain[..bytes.len()], bytes),
            Err(error) => {
                assert!(!is_soft()? && error.errno == Errno::BUSY, "{error}");
                assert!(error.to_string().contains("may still write"), "{error}");
            }
        }
        Ok(())
    }
}

fn revoked_memory_is_plain_memory<P: Provider>(context: &Context<P>) -> CaseResult {
    for mw_type in [MwType::TYPE_1, MwType::TYPE_2] {
        let mut safe = Safe::new(context, &Shape::default(), mw_type)?;
        for round in 0..3 {
            let remote = safe.bind()?;
            let refused = safe.memory.bytes_mut().unwrap_err();
            assert!(matches!(refused.cause, Cause::InUse { .. }), "{refused}");
            assert_eq!(safe.peer_writes(remote, &[round; 8])?, WcStatus::SUCCESS);
            safe.revoke()?;
            safe.is_plain(&[round; 8])?;
        }
        let remote = safe.bind()?;
        safe.revoke()?;
        assert_eq!(safe.peer_writes(remote, b"too late")?, WcStatus::REM_ACCESS_ERR);
        safe.is_plain(&[2; 8])?;
    }
    Ok(())
}

fn memory_that_a_peer_invalidated_is_plain_memory<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut safe = Safe::new(context, &Shape::default(), MwType::TYPE_2)?;
    for round in 0..3 {
        let remote = safe.bind()?;
        safe.pair.b.qp.post_recv_buf(safe.pair.pd.alloc_buf(8)?, ..)?;
        assert_eq!(safe.peer_writes(remote, &[round; 8])?, WcStatus::SUCCESS);
        let done = SendOp::SendWithInv { invalidate_rkey: remote.rkey };
        safe.pair.a.qp.post_send_inline(2, done, SendFlags::SIGNALED, b"done")?;
        wait_for(&mut safe.pair.a.cq, 2, WcOpcode::SEND)?;
        let completed = next_completed(&mut safe.pair.b.cq)?;
        let Some(by) = completed.invalidated() else {
            return fail(format_args!("{completed:?} invalidates nothing"));
        };
        assert_eq!((by.rkey(), by.qp_num()), (remote.rkey, safe.pair.b.qp.qp_num()));
        let mut window = safe.take()?;
        assert!(window.invalidated(by) && !window.is_bound());
        assert!(!window.invalidated(by), "it counts once");
        safe.window = Some(window);
        // This holds on rxe too, because its responder processes one packet after another.
        assert_eq!(safe.memory.bytes_mut()?[..8], [round; 8]);
    }
    Ok(())
}

fn exposed_memory_comes_back_when_no_window_is_bound<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut safe = Safe::new(context, &Shape::default(), MwType::TYPE_2)?;
    let remote = safe.bind()?;
    assert_eq!(safe.peer_writes(remote, b"bye bye!")?, WcStatus::SUCCESS);
    let Safe { window, memory, pair } = safe;
    let buf: Buf = match memory.unexpose() {
        Ok(buf) if is_mlx5()? => {
            // The driver releases the memory. Windows on it no longer give access.
            let mut pair = pair;
            pair.a.qp.post_send_inline(1, remote.write(), SendFlags::SIGNALED, b"too late")?;
            assert_eq!(wait_one(&mut pair.a.cq)?.status, WcStatus::REM_ACCESS_ERR);
            buf
        }
        Ok(_) => return fail("the memory of a bound window came back"),
        Err(refused) => {
            assert_eq!(refused.error.errno, Errno::BUSY, "{refused}");
            let mut safe = Safe { window, memory: refused.handle, pair };
            safe.revoke()?;
            safe.memory.unexpose()?
        }
    };
    assert_eq!(&buf[..8], b"bye bye!");
    Ok(())
}

fn a_closed_window_takes_access_away<P: Provider>(context: &Context<P>) -> CaseResult {
    for (mw_type, drops) in [(MwType::TYPE_1, true), (MwType::TYPE_2, true), (MwType::TYPE_2, false)] {
        let mut safe = Safe::new(context, &Shape::default(), mw_type)?;
        let remote = safe.bind()?;
        assert_eq!(safe.peer_writes(remote, b"in time.")?, WcStatus::SUCCESS);
        let window = safe.take()?;
        if drops {
            drop(window);
        } else {
            window.close()?;
        }
        assert_eq!(safe.peer_writes(remote, b"too late")?, WcStatus::REM_ACCESS_ERR);
        safe.is_plain(b"in time.")?;
        assert_eq!(&safe.memory.unexpose()?[..8], b"in time.");
    }
    Ok(())
}

fn a_queue_pair_takes_its_windows_along<P: Provider>(context: &Context<P>) -> CaseResult {
    for shape in [Shape::default(), Shape::for_type(QpType::UC)] {
        // One window is bound; the bind of another is in flight.
        let mut safe = Safe::new(context, &shape, MwType::TYPE_2)?;
        safe.bind()?;
        let second = safe.pair.pd.alloc_window(MwType::TYPE_2)?;
        safe.pair.b.qp.post_bind(NONE, second, &safe.memory, ..8, RemoteAccess::WRITE)?;
        let Safe { window, memory, pair } = safe;
        let start = std::time::Instant::now();
        let back = pair.b.qp.dismantle()?;
        assert!(start.elapsed() < std::time::Duration::from_secs(20), "the kernel waited for the windows");
        let second = back.into_iter().find_map(verbs::Memory::into_window);
        let Some(second) = second else { return fail("the window in flight was lost") };
        let Some(first) = window else { return fail("the bound window was lost") };
        let mut other = Pair::new(context, &Shape::default())?;
        for window in [first, second] {
            assert!(window.is_bound());
            let refused = other.b.qp.post_revoke(NONE, window).unwrap_err();
            assert!(matches!(refused.reason, PostBufReason::Foreign), "another domain: {refused}");
        }
        memory.unexpose()?;
    }
    Ok(())
}

fn windows_that_cannot_be_posted_come_back_with_the_reason<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut safe = Safe::new(context, &Shape::default(), MwType::TYPE_2)?;
    let plain = safe.pair.pd.expose(safe.pair.pd.alloc_buf(64)?, RemoteAccess::WRITE)?;
    let elsewhere = Pair::new(context, &Shape::default())?;
    let foreign = elsewhere.pd.expose_to_windows(elsewhere.pd.alloc_buf(64)?)?;
    let mut window = safe.take()?;
    let all = RemoteAccess::all();
    for (memory, range, reason) in [
        (&plain, 0..64, PostBufReason::NotForWindows),
        (&foreign, 0..64, PostBufReason::Foreign),
        (&safe.memory, 0..4097, PostBufReason::OutOfRange { start: 0, end: 4097, len: 4096 }),
        (&safe.memory, 7..7, PostBufReason::EmptyWindow),
    ] {
        let refused = safe.pair.b.qp.post_bind(NONE, window, memory, range, all).unwrap_err();
        assert_eq!(refused.reason, reason);
        let Some(back) = refused.returned else { return fail("the window was not returned") };
        window = back;
    }
    let refused = safe.pair.b.qp.post_revoke(NONE, window).unwrap_err();
    assert_eq!(refused.reason, PostBufReason::WindowUnbound);
    safe.window = refused.returned;
    safe.bind()?;
    let window = safe.take()?;
    let refused = safe.pair.b.qp.post_bind(NONE, window, &safe.memory, .., all).unwrap_err();
    assert_eq!(refused.reason, PostBufReason::WindowBound);
    let Some(window) = refused.returned else { return fail("the window was not returned") };
    let refused = safe.pair.a.qp.post_revoke(NONE, window).unwrap_err();
    assert_eq!(refused.reason, PostBufReason::WindowElsewhere);
    safe.window = refused.returned;
    safe.revoke()
}

fn an_invalidation_counts_for_its_own_binding_only<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut safe = Safe::new(context, &Shape::default(), MwType::TYPE_2)?;
    let mut old = None;
    // The keys wrap around, so the first and the last binding have the same key.
    for round in 0..257 {
        let remote = safe.bind()?;
        let mut window = safe.take()?;
        if round == 256 {
            let Some((rkey, by)) = &old else { return fail("there was no first round") };
            assert_eq!(*rkey, remote.rkey, "the key repeats");
            assert!(!window.invalidated(by), "the message was about another binding");
            assert!(window.is_bound());
            let refused = safe.memory.bytes_mut().unwrap_err();
            assert!(matches!(refused.cause, Cause::InUse { .. }), "{refused}");
            // The state of the window is uncertain, so it can only be closed.
            let refused = safe.pair.b.qp.post_revoke(NONE, window).unwrap_err();
            assert_eq!(refused.reason, PostBufReason::WindowLost);
            return Ok(());
        }
        safe.pair.b.qp.post_recv_buf(safe.pair.pd.alloc_buf(8)?, ..)?;
        let done = SendOp::SendWithInv { invalidate_rkey: remote.rkey };
        safe.pair.a.qp.post_send_inline(2, done, SendFlags::SIGNALED, b"done")?;
        wait_for(&mut safe.pair.a.cq, 2, WcOpcode::SEND)?;
        let completed = next_completed(&mut safe.pair.b.cq)?;
        let Some(by) = completed.invalidated() else { return fail("nothing was invalidated") };
        assert!(window.invalidated(by));
        if round == 0 {
            old = Some((remote.rkey, by.clone()));
        }
        safe.window = Some(window);
    }
    fail("the last round returns")
}

fn a_forgotten_window_keeps_its_memory<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut safe = Safe::new(context, &Shape::default(), MwType::TYPE_2)?;
    let remote = safe.bind()?;
    core::mem::forget(safe.take()?);
    assert_eq!(safe.peer_writes(remote, b"for ever")?, WcStatus::SUCCESS);
    let refused = safe.memory.unexpose().unwrap_err();
    assert!(matches!(refused.error.cause, Cause::InUse { .. }), "{refused}");
    let mut bytes = [0; 8];
    refused.handle.read_at(0, &mut bytes);
    assert_eq!(&bytes, b"for ever");
    Ok(())
}
