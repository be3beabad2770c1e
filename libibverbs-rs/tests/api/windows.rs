//! Windows on exposed memory: how long windows keep the memory and when the memory returns,
//! whatever the provider and the program do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::thread;

use crate::common::setup::{Setup, setup};
use crate::common::{AfterPost, Kind, World};
use verbs::{
    Cause, Context, Errno, Exposed, MwType, PostBufReason, PostReason, Provider, RemoteAccess, SendFlags,
    SendOp, Wc, WcStatus, Window,
};

both! {
    a_window_is_bound_revoked_and_its_memory_is_plain
    the_memory_of_a_device_that_writes_late_is_deregistered_first
    a_bind_that_is_not_accepted_leaves_the_window_free
    a_revocation_that_is_not_accepted_leaves_the_window_bound
    a_doorbell_that_fails_leaves_the_window_in_flight
    a_bind_that_fails_leaves_a_window_that_can_only_be_closed
    a_copied_completion_does_not_say_how_a_bind_ended
    a_window_that_is_not_deallocated_keeps_its_memory
    a_window_whose_deallocation_panics_keeps_its_memory
    a_post_that_panics_leaves_the_window_in_flight
    a_queue_pair_is_destroyed_after_its_windows
    a_window_that_two_threads_deallocate_is_gone_for_both_when_it_is_gone_for_one
    a_queue_pair_leaves_windows_alone_that_are_bound_for_another
    a_window_of_type_1_outlives_its_queue_pair
    a_window_is_not_posted_as_memory
    a_raw_window_is_deallocated_when_it_is_closed
    windows_keep_their_domain_open
}

const NONE: SendFlags = SendFlags::empty();
const ALL: RemoteAccess = RemoteAccess::all();

fn exposed<P: Provider>(s: &Setup<P>) -> Exposed {
    s.pd.expose_to_windows(s.buf(b"plain!")).unwrap()
}

/// Binds a new window to the memory.
fn bound<P: Provider>(world: &World, s: &mut Setup<P>, memory: &Exposed, mw_type: MwType) -> Window {
    let window = s.pd.alloc_window(mw_type).unwrap();
    let (number, remote) = s.qp.post_bind(NONE, window, memory, 1..4, ALL).unwrap();
    assert_eq!((remote.addr, remote.length), (memory.addr() + 1, 3));
    world.complete(s.qp.qp_num(), false, b"");
    let completed = s.cq.poll_one().unwrap();
    assert_eq!(completed.wr_id, number);
    let window = completed.into_window().unwrap();
    assert_eq!(window.remote(), Some(remote));
    assert_eq!(window.memory().map(Exposed::addr), Some(memory.addr()));
    window
}

#[track_caller]
fn is_in_use(memory: &mut Exposed) {
    let refused = memory.bytes_mut().unwrap_err();
    assert!(matches!(refused.cause, Cause::InUse { .. }), "{refused}");
}

fn a_window_is_bound_revoked_and_its_memory_is_plain<P: Provider>(world: &World, context: Context<P>) {
    world.state().ends_access = true;
    let mut s = setup(&context);
    let mut memory = exposed(&s);
    for mw_type in [MwType::TYPE_1, MwType::TYPE_2] {
        let mut window = bound(world, &mut s, &memory, mw_type);
        for _ in 0..3 {
            is_in_use(&mut memory);
            let key = window.rkey();
            s.qp.post_revoke(NONE, window).unwrap();
            is_in_use(&mut memory);
            world.complete(s.qp.qp_num(), false, b"");
            window = s.cq.poll_one().unwrap().into_window().unwrap();
            assert!(!window.is_bound() && window.remote().is_none() && window.memory().is_none());
            assert_eq!(window.rkey() == key, mw_type == MwType::TYPE_2, "a bind changes the key");
            memory.bytes_mut().unwrap()[0] = b'P';
            s.qp.post_bind(NONE, window, &memory, .., ALL).unwrap();
            world.complete(s.qp.qp_num(), false, b"");
            window = s.cq.poll().next().unwrap().reclaim().unwrap().into_window().unwrap();
            assert!(window.is_bound());
        }
        window.close().unwrap();
        assert_eq!(memory.bytes_mut().unwrap(), b"Plain!");
    }
    drop((memory, s, context));
    world.assert_empty();
}

fn the_memory_of_a_device_that_writes_late_is_deregistered_first<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    for closes in [true, false] {
        let mut s = setup(&context);
        let mut memory = exposed(&s);
        let window = bound(world, &mut s, &memory, MwType::TYPE_2);
        if closes {
            window.close().unwrap();
        } else {
            s.qp.post_revoke(NONE, window).unwrap();
            world.complete(s.qp.qp_num(), false, b"");
            drop(s.cq.poll_one());
        }
        let refused = memory.bytes_mut().unwrap_err();
        assert_eq!(refused.errno, Errno::BUSY);
        assert!(refused.to_string().contains("unexpose waits for that"), "{refused}");
        assert_eq!(&memory.unexpose().unwrap()[..], b"plain!");
    }
}

fn a_bind_that_is_not_accepted_leaves_the_window_free<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let mut memory = exposed(&s);
    let window = s.pd.alloc_window(MwType::TYPE_2).unwrap();
    let key = window.rkey();
    world.state().refuse_post = Some((0, PostReason::QueueFull));
    let refused = s.qp.post_bind(NONE, window, &memory, .., ALL).unwrap_err();
    world.state().refuse_post = None;
    assert_eq!(refused.reason, PostBufReason::Post(PostReason::QueueFull));
    let window = refused.returned.unwrap();
    assert!(!window.is_bound() && window.rkey() == key);
    memory.bytes_mut().unwrap().fill(0);
}

fn a_revocation_that_is_not_accepted_leaves_the_window_bound<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let mut memory = exposed(&s);
    let window = bound(world, &mut s, &memory, MwType::TYPE_2);
    let remote = window.remote();
    world.state().refuse_post = Some((0, PostReason::QueueFull));
    let window = s.qp.post_revoke(NONE, window).unwrap_err().returned.unwrap();
    world.state().refuse_post = None;
    assert_eq!(window.remote(), remote);
    is_in_use(&mut memory);
}

fn a_doorbell_that_fails_leaves_the_window_in_flight<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let mut memory = exposed(&s);
    let window = s.pd.alloc_window(MwType::TYPE_2).unwrap();
    drop(s.qp.post_bind(NONE, window, &memory, .., ALL));
    is_in_use(&mut memory);
    // The window returns with its queue pair, but its binding is unknown.
    let back = s.qp.dismantle().unwrap();
    let window = back.into_iter().find_map(verbs::Memory::into_window).unwrap();
    assert!(window.is_bound() && window.remote().is_none());
    is_in_use(&mut memory);
    window.close().unwrap();
    assert_eq!(&memory.unexpose().unwrap()[..], b"plain!");
    assert_eq!(world.state().broken, Vec::<String>::new());
}

fn a_bind_that_fails_leaves_a_window_that_can_only_be_closed<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    for status in [WcStatus::MW_BIND_ERR, WcStatus::WR_FLUSH_ERR] {
        let mut s = setup(&context);
        let mut memory = exposed(&s);
        let window = s.pd.alloc_window(MwType::TYPE_2).unwrap();
        s.qp.post_bind(NONE, window, &memory, .., ALL).unwrap();
        world.fail(s.qp.qp_num(), status);
        let completed = s.cq.poll_one().unwrap();
        assert_eq!(completed.status, status);
        let window = completed.into_window().unwrap();
        // A flushed request may have been executed.
        assert!(window.is_bound() && window.remote().is_none());
        let refused = s.qp.post_revoke(NONE, window).unwrap_err();
        assert_eq!(refused.reason, PostBufReason::WindowLost);
        let refused = s.qp.post_bind(NONE, refused.returned.unwrap(), &memory, .., ALL).unwrap_err();
        assert_eq!(refused.reason, PostBufReason::WindowLost);
        is_in_use(&mut memory);
        refused.returned.unwrap().close().unwrap();
        assert_eq!(&memory.unexpose().unwrap()[..], b"plain!");
    }
}

fn a_copied_completion_does_not_say_how_a_bind_ended<P: Provider>(world: &World, context: Context<P>) {
    world.state().ends_access = true;
    let mut s = setup(&context);
    let mut memory = exposed(&s);
    let window = bound(world, &mut s, &memory, MwType::TYPE_2);
    s.qp.post_revoke(NONE, window).unwrap();
    world.fail(s.qp.qp_num(), WcStatus::WR_FLUSH_ERR);
    let mut wcs = [Wc::default()];
    assert_eq!(s.cq.poll_into(&mut wcs), 1);
    // Safe code can change the copy.
    wcs[0].status = WcStatus::SUCCESS;
    let window = s.cq.reclaim(&wcs[0]).unwrap().into_window().unwrap();
    assert!(window.is_bound());
    is_in_use(&mut memory);
    drop(window);
    memory.bytes_mut().unwrap().fill(0);
}

fn a_window_that_is_not_deallocated_keeps_its_memory<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let mut memory = exposed(&s);
    let window = bound(world, &mut s, &memory, MwType::TYPE_1);
    world.refuse(Kind::Mw, Errno::IO);
    let refused = window.close().unwrap_err();
    assert_eq!((refused.error.verb, refused.error.errno), ("dealloc_mw", Errno::IO));
    assert!(refused.handle.remote().is_some());
    is_in_use(&mut memory);
    drop(refused.handle);
    is_in_use(&mut memory);
    drop((memory, s, context));
    // The region stays with the window, and the domain with both.
    assert_eq!(world.census(), [Kind::Pd, Kind::Mr, Kind::Mr, Kind::Mw]);
    assert_eq!(world.state().broken, Vec::<String>::new());
}

fn a_window_whose_deallocation_panics_keeps_its_memory<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let mut memory = exposed(&s);
    let window = bound(world, &mut s, &memory, MwType::TYPE_1);
    world.state().panic_on_destroy = Some(Kind::Mw);
    catch_unwind(AssertUnwindSafe(|| drop(window))).unwrap_err();
    world.state().panic_on_destroy = None;
    is_in_use(&mut memory);
    assert_eq!(world.state().broken, Vec::<String>::new());
}

fn a_post_that_panics_leaves_the_window_in_flight<P: Provider>(world: &World, context: Context<P>) {
    for when in [AfterPost::Queued, AfterPost::NotQueued] {
        let mut s = setup(&context);
        let mut memory = exposed(&s);
        let window = s.pd.alloc_window(MwType::TYPE_2).unwrap();
        world.state().panic_on_post = Some(when);
        catch_unwind(AssertUnwindSafe(|| drop(s.qp.post_bind(NONE, window, &memory, .., ALL)))).unwrap_err();
        world.state().panic_on_post = None;
        is_in_use(&mut memory);
        drop(s);
        assert_eq!(&memory.unexpose().unwrap()[..], b"plain!");
    }
}

fn a_queue_pair_is_destroyed_after_its_windows<P: Provider>(world: &World, context: Context<P>) {
    for drops in [true, false] {
        let mut s = setup(&context);
        let mut memory = exposed(&s);
        let windows = [(); 3].map(|()| bound(world, &mut s, &memory, MwType::TYPE_2));
        let [revoked, kept, forgotten] = windows;
        core::mem::forget(forgotten);
        s.qp.post_revoke(NONE, revoked).unwrap();
        world.complete(s.qp.qp_num(), false, b"");
        let free = s.cq.poll_one().unwrap().into_window().unwrap();
        world.state().destroyed.clear();
        let Setup { qp, cq, pd } = s;
        if drops {
            drop(qp);
        } else {
            qp.close().unwrap();
        }
        let kinds: Vec<_> = world.state().destroyed.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [Kind::Mw, Kind::Mw, Kind::Qp], "not the window that is free");
        is_in_use(&mut memory);
        let mut s = Setup { qp: crate::common::setup::ready(&pd, &cq), cq, pd };
        let refused = s.qp.post_revoke(NONE, kept).unwrap_err();
        assert_eq!(refused.reason, PostBufReason::WindowLost);
        drop(refused);
        let (_, remote) = s.qp.post_bind(NONE, free, &memory, .., ALL).unwrap();
        assert_eq!(remote.addr, memory.addr());
    }
}

/// Destroying the queue pair and closing the window deallocate the window at the same time. While
/// the kernel works on the first call, the window still gives access: the second call waits.
fn a_window_that_two_threads_deallocate_is_gone_for_both_when_it_is_gone_for_one<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    for owner_is_first in [true, false] {
        let mut s = setup(&context);
        let memory = exposed(&s);
        let window = bound(world, &mut s, &memory, MwType::TYPE_2);
        let Setup { qp, cq, pd } = s;
        let live = || world.census().contains(&Kind::Mw);
        world.state().stall = Some(Kind::Mw);
        let has_begun = Barrier::new(2);
        thread::scope(|scope| {
            let mut ends: [Box<dyn FnOnce() + Send>; 2] =
                [Box::new(move || window.close().unwrap()), Box::new(move || qp.close().unwrap())];
            if !owner_is_first {
                ends.reverse();
            }
            let [first, second] = ends;
            let first = scope.spawn(first);
            world.until_stalled();
            let second = scope.spawn(|| {
                has_begun.wait();
                second();
            });
            has_begun.wait();
            // The second call has time to return but must not.
            for _ in 0..1000 {
                thread::yield_now();
            }
            let both_wait = live() && !second.is_finished() && !first.is_finished();
            world.resume();
            first.join().unwrap();
            second.join().unwrap();
            assert!(both_wait, "a call returned while the window was there");
        });
        assert!(!live());
        drop((memory, cq, pd));
    }
    drop(context);
    world.assert_empty();
}

fn a_queue_pair_leaves_windows_alone_that_are_bound_for_another<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let memory = exposed(&s);
    let window = bound(world, &mut s, &memory, MwType::TYPE_2);
    s.qp.post_revoke(NONE, window).unwrap();
    world.complete(s.qp.qp_num(), false, b"");
    let window = s.cq.poll_one().unwrap().into_window().unwrap();
    let mut other = crate::common::setup::ready(&s.pd, &s.cq);
    other.post_bind(NONE, window, &memory, .., ALL).unwrap();
    world.state().destroyed.clear();
    drop(s.qp);
    let kinds = |world: &World| world.state().destroyed.iter().map(|(kind, _)| *kind).collect::<Vec<_>>();
    assert_eq!(kinds(world), [Kind::Qp], "the window is in flight on the other queue pair");
    drop(other);
    assert_eq!(kinds(world), [Kind::Qp, Kind::Mw, Kind::Qp]);
}

fn a_window_of_type_1_outlives_its_queue_pair<P: Provider>(world: &World, context: Context<P>) {
    world.state().ends_access = true;
    let mut s = setup(&context);
    let mut memory = exposed(&s);
    let window = bound(world, &mut s, &memory, MwType::TYPE_1);
    let Setup { qp, cq, pd } = s;
    drop(qp);
    let mut s = Setup { qp: crate::common::setup::ready(&pd, &cq), cq, pd };
    s.qp.post_revoke(NONE, window).unwrap();
    world.complete(s.qp.qp_num(), false, b"");
    assert!(!s.cq.poll_one().unwrap().into_window().unwrap().is_bound());
    memory.bytes_mut().unwrap().fill(0);
}

fn a_window_is_not_posted_as_memory<P: Provider>(_world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let window = s.pd.alloc_window(MwType::TYPE_2).unwrap();
    let memory = verbs::Memory::Window(window);
    let refused = s.qp.post_send_buf(SendOp::Send, NONE, memory, ..).unwrap_err();
    assert_eq!(refused.reason, PostBufReason::NotMemory);
    let refused = s.qp.post_recv_buf(refused.returned.unwrap(), ..).unwrap_err();
    assert_eq!(refused.reason, PostBufReason::NotMemory);
    assert!(refused.returned.unwrap().into_window().is_some());
}

fn a_raw_window_is_deallocated_when_it_is_closed<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let mw = pd.alloc_mw(MwType::TYPE_1).unwrap();
    assert_eq!((mw.mw_type(), mw.rkey() & 0xff), (MwType::TYPE_1, 0));
    world.refuse(Kind::Mw, Errno::BUSY);
    let refused = mw.close().unwrap_err();
    assert_eq!(refused.error.errno, Errno::BUSY);
    world.allow(Kind::Mw);
    refused.handle.close().unwrap();
    drop(pd.alloc_mw(MwType::TYPE_2).unwrap());
    drop((pd, context));
    world.assert_empty();
}

fn windows_keep_their_domain_open<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let window = pd.alloc_window(MwType::TYPE_2).unwrap();
    let refused = pd.close().unwrap_err();
    assert_eq!(refused.error.cause, Cause::InUse { by: "memory windows" });
    drop((refused, context));
    assert_eq!(world.census(), [Kind::Pd, Kind::Mw]);
    drop(window);
    world.assert_empty();
}
