//! The program's own memory, read-only shared memory, and memory exposed to peers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::setup::setup;
use crate::common::{Kind, World, cause};
use memmap2::MmapMut;
use verbs::{
    Buf, Cause, Context, Errno, FrozenBuf, Memory, PostBufReason, Provider, RemoteAccess, Returned,
    SendFlags, SendOp,
};

both! {
    memory_of_the_program_is_registered_in_place_and_returned
    a_registration_that_fails_returns_the_memory
    memory_of_another_type_stays_in_its_buffer
    memory_that_is_in_pieces_or_not_deregistered_stays_in_its_buffer
    read_only_memory_is_registered_in_place_and_returned
    a_frozen_buffer_has_shares_and_thaws_when_one_is_left
    a_frozen_buffer_is_sent_many_times_at_once_and_never_written
    exposed_memory_has_atomic_words
    exposed_memory_is_read_in_pieces_that_stay_inside
    exposed_memory_with_shares_stays_exposed
    exposed_memory_is_posted_and_returned
    exposed_memory_is_not_copied_inline
    memory_is_exposed_with_a_right_at_least
    kinds_of_memory_mix_in_one_request
}

const NONE: SendFlags = SendFlags::empty();

fn memory_of_the_program_is_registered_in_place_and_returned<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let pd = context.alloc_pd().unwrap();
    let vec = vec![1_u8; 100];
    let (at, capacity) = (vec.as_ptr().addr(), vec.capacity());
    let mut buf = pd.register(vec).unwrap();
    assert_eq!((buf.addr() as usize, &buf[..]), (at, &[1; 100][..]));
    let region = world.state().live.values().find(|object| object.kind == Kind::Mr).unwrap().region;
    assert_eq!(region, (at as u64, 100));
    buf.fill(2);
    let vec: Vec<u8> = buf.into_memory().unwrap();
    assert_eq!((vec.as_ptr().addr(), vec.capacity(), &vec[..]), (at, capacity, &[2; 100][..]));

    let boxed: Box<[u8]> = vec.into();
    let at = boxed.as_ptr().addr();
    let boxed: Box<[u8]> = pd.register(boxed).unwrap().into_memory().unwrap();
    assert_eq!((boxed.as_ptr().addr(), boxed[99]), (at, 2));

    let map = MmapMut::map_anon(4096).unwrap();
    let at = map.as_ptr().addr();
    let mut buf = pd.register(map).unwrap();
    buf[4095] = 9;
    let map: MmapMut = buf.into_memory().unwrap();
    assert_eq!((map.as_ptr().addr(), map[4095]), (at, 9));

    let empty: Vec<u8> = pd.register(Vec::new()).unwrap().into_memory().unwrap();
    assert!(empty.is_empty());
    drop((pd, context));
    world.assert_empty();
}

fn a_registration_that_fails_returns_the_memory<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    world.state().refuse_reg = Some(Errno::NOMEM);
    let failed = pd.register(vec![5_u8; 3]).unwrap_err();
    assert_eq!((failed.handle, failed.error.errno), (vec![5; 3], Errno::NOMEM));
    let failed = pd.register_bytes(&b"static"[..]).unwrap_err();
    assert_eq!((failed.handle, failed.error.errno), (&b"static"[..], Errno::NOMEM));
}

fn memory_of_another_type_stays_in_its_buffer<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let buf = pd.register(vec![3_u8; 4]).unwrap();
    let failed = buf.into_memory::<Box<[u8]>>().unwrap_err();
    let reason = "the buffer holds alloc::vec::Vec<u8>, not alloc::boxed::Box<[u8]>".into();
    assert_eq!(failed.error.cause, Cause::Other { reason });
    assert_eq!(failed.handle.into_memory::<Vec<u8>>().unwrap(), [3; 4]);
    let own = pd.alloc_buf(4096).unwrap();
    assert!(own.into_memory::<MmapMut>().is_err(), "it is this library's own");
    assert_eq!(world.census(), [Kind::Pd]);
}

fn memory_that_is_in_pieces_or_not_deregistered_stays_in_its_buffer<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let pd = context.alloc_pd().unwrap();
    let mut head = pd.register(b"headtail".to_vec()).unwrap();
    let tail = head.split_off(4);
    let failed = head.into_memory::<Vec<u8>>().unwrap_err();
    assert_eq!(failed.error.cause, Cause::InUse { by: "other pieces of the same allocation" });
    let mut head = failed.handle;
    head.unsplit(tail).unwrap();
    world.refuse(Kind::Mr, Errno::BUSY);
    let head = head.into_memory::<Vec<u8>>().unwrap_err().handle;
    world.allow(Kind::Mr);
    assert_eq!(&head[..], b"headtail");
    assert_eq!(head.into_memory::<Vec<u8>>().unwrap(), b"headtail");
}

fn read_only_memory_is_registered_in_place_and_returned<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let shared: Arc<[u8]> = Arc::from(&b"shared bytes"[..]);
    let frozen = s.pd.register_bytes(Arc::clone(&shared)).unwrap();
    assert_eq!(frozen.addr() as usize, shared.as_ptr().addr());
    s.qp.post_send_buf(SendOp::Send, NONE, frozen.slice(..6), ..).unwrap();
    world.complete(s.qp.qp_num(), false, b"shared");
    // The memory was never writable, so it cannot be thawed.
    let sent = s.cq.poll_one().unwrap().returned.and_then(Returned::into_frozen).unwrap();
    assert_eq!(&sent[..], b"shared");
    drop(sent);
    let frozen = frozen.thaw().unwrap_err().handle;
    let back: Arc<[u8]> = frozen.into_memory().unwrap();
    assert!(Arc::ptr_eq(&back, &shared));
    let text: FrozenBuf = s.pd.register_bytes(&b"static"[..]).unwrap();
    assert_eq!(
        cause(text.clone().into_memory::<&'static [u8]>()),
        Cause::InUse { by: "other shares of the same memory" }
    );
    assert_eq!(
        cause(text.clone().into_memory::<Vec<u8>>()),
        Cause::InUse { by: "other shares of the same memory" }
    );
    let failed = text.into_memory::<Vec<u8>>().unwrap_err();
    assert_eq!(
        failed.error.cause,
        Cause::Other { reason: "the buffer holds &[u8], not alloc::vec::Vec<u8>".into() }
    );
    assert_eq!(failed.handle.into_memory::<&'static [u8]>().unwrap(), b"static");
}

fn a_frozen_buffer_has_shares_and_thaws_when_one_is_left<P: Provider>(_: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let frozen = crate::common::setup::buf(&pd, b"0123456789").freeze();
    let (middle, all) = (frozen.slice(3..=6), frozen.clone());
    let inner = middle.slice(1..3);
    assert_eq!((&middle[..], &inner[..], &all[..]), (&b"3456"[..], &b"45"[..], &b"0123456789"[..]));
    assert_eq!((inner.addr(), inner.lkey()), (frozen.addr() + 4, frozen.lkey()));
    for range in [(0, 5), (5, 5), (3, 2)] {
        let slice = std::panic::AssertUnwindSafe(|| middle.slice(range.0..range.1));
        assert!(std::panic::catch_unwind(slice).is_err(), "{range:?}");
    }
    let frozen = frozen.thaw().unwrap_err().handle;
    drop((middle, all, frozen));
    let mut buf: Buf = inner.thaw().unwrap();
    buf[0] = b'x';
    assert_eq!(&buf[..], b"x123456789", "all of it");
}

fn a_frozen_buffer_is_sent_many_times_at_once_and_never_written<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let frozen = s.buf(b"news").freeze();
    let refused = s.qp.post_recv_buf(frozen.clone(), ..).unwrap_err();
    assert_eq!(refused.reason, PostBufReason::ReadOnly);
    let refused = s.qp.post_recv_bufs(vec![refused.returned.unwrap()]).unwrap_err();
    assert_eq!((refused.reason, refused.returned.unwrap().len()), (PostBufReason::ReadOnly, 1));
    let (remote_addr, rkey) = (0, 0);
    for op in [
        SendOp::RdmaRead { remote_addr, rkey },
        SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 },
        SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 0, swap: 1 },
    ] {
        assert_eq!(
            s.qp.post_send_buf(op, NONE, frozen.clone(), ..).unwrap_err().reason,
            PostBufReason::ReadOnly
        );
    }
    for _ in 0..3 {
        s.qp.post_send_buf(SendOp::Send, NONE, frozen.clone(), 1..).unwrap();
    }
    s.qp.post_send_buf(SendOp::RdmaWrite { remote_addr, rkey }, NONE, frozen.clone(), 1..).unwrap();
    let frozen = frozen.thaw().unwrap_err().handle;
    for _ in 0..4 {
        world.complete(s.qp.qp_num(), false, b"ews");
        drop(s.cq.poll_one().unwrap().returned.and_then(Returned::into_frozen).unwrap());
    }
    assert_eq!(&frozen.thaw().unwrap()[..], b"news");
}

fn exposed_memory_has_atomic_words<P: Provider>(_: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let exposed = pd.expose(pd.alloc_buf(20).unwrap(), RemoteAccess::ATOMIC).unwrap();
    let share = exposed.clone();
    exposed.atomic(8).unwrap().store(0x0102_0304_0506_0708, Ordering::Relaxed);
    assert_eq!(share.atomic(8).unwrap().fetch_add(1, Ordering::Relaxed), 0x0102_0304_0506_0708);
    let mut word = [0; 8];
    share.read_at(8, &mut word);
    assert_eq!(word, 0x0102_0304_0506_0709_u64.to_ne_bytes());
    share.write_at(0, &[0xff; 8]);
    assert_eq!(exposed.atomic(0).unwrap().load(Ordering::Relaxed), u64::MAX);
    for offset in [1, 4, 7, 12, 13, 16, 20, 24, usize::MAX, usize::MAX - 7] {
        assert!(exposed.atomic(offset).is_none(), "{offset}");
    }
}

fn exposed_memory_is_read_in_pieces_that_stay_inside<P: Provider>(_: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let mut whole = pd.alloc_buf(40).unwrap();
    whole.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
    // The piece is aligned neither at its start nor at its end.
    let mut piece = whole.split_off(3);
    let _after = piece.split_off(30);
    let exposed = pd.expose(piece, RemoteAccess::READ).unwrap();
    for (start, end) in [(0, 30), (0, 0), (30, 30), (5, 6), (4, 21), (13, 30), (2, 9)] {
        let (mut read, mut longest) = (Vec::new(), 0);
        exposed.for_each_piece(start..end, |bytes| {
            assert!(!bytes.is_empty());
            longest = longest.max(bytes.len());
            read.extend_from_slice(bytes);
        });
        assert_eq!(read, (start as u8 + 3..end as u8 + 3).collect::<Vec<_>>(), "{start}..{end}");
        assert!(longest <= 8, "{longest}");
    }
    for (start, end) in [(0, 31), (31, 31), (5, 4)] {
        let read = std::panic::AssertUnwindSafe(|| exposed.for_each_piece(start..end, |_| {}));
        assert!(std::panic::catch_unwind(read).is_err(), "{start}..{end}");
    }
}

fn exposed_memory_with_shares_stays_exposed<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let exposed = pd.expose(crate::common::setup::buf(&pd, b"kept"), RemoteAccess::READ).unwrap();
    let share = exposed.clone();
    assert_eq!(share.remote(), exposed.remote());
    let failed = exposed.unexpose().unwrap_err();
    assert_eq!(failed.error.cause, Cause::InUse { by: "other shares of the same memory" });
    drop(failed);
    assert_eq!(world.census(), [Kind::Pd, Kind::Mr, Kind::Mr]);
    assert_eq!(&share.unexpose().unwrap()[..], b"kept");
    drop((pd, context));
    world.assert_empty();
}

fn exposed_memory_is_posted_and_returned<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let exposed = s.pd.expose(s.buf(b"abcdefgh"), RemoteAccess::WRITE).unwrap();
    s.qp.post_send_buf(SendOp::Send, NONE, exposed.clone(), 2..4).unwrap();
    assert_eq!(world.state().requests[0].sge, [(exposed.addr() + 2, 2, exposed.lkey())]);
    s.qp.post_recv_buf(exposed.clone(), 6..).unwrap();
    let exposed = exposed.unexpose().unwrap_err().handle;
    world.complete(s.qp.qp_num(), false, b"cd");
    world.complete(s.qp.qp_num(), true, b"XY");
    for _ in 0..2 {
        let share = s.cq.poll_one().unwrap().returned.and_then(Returned::into_exposed).unwrap();
        assert_eq!(share.rkey(), exposed.rkey());
    }
    assert_eq!(&exposed.unexpose().unwrap()[..], b"abcdefXY");
}

fn exposed_memory_is_not_copied_inline<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let exposed = s.pd.expose(s.buf(b"x"), RemoteAccess::WRITE).unwrap();
    let refused = s.qp.post_send_buf(SendOp::Send, SendFlags::INLINE, exposed.clone(), ..).unwrap_err();
    assert_eq!(refused.reason, PostBufReason::InlineExposed);
    let mixed: Vec<Memory> = vec![s.buf(b"b").into(), exposed.clone().into()];
    let refused = s.qp.post_send_bufs(SendOp::Send, SendFlags::INLINE, mixed).unwrap_err();
    assert_eq!((refused.reason, refused.returned.unwrap().len()), (PostBufReason::InlineExposed, 2));
    let mut batch = s.qp.batch();
    let refused = batch.post(SendOp::Send, SendFlags::INLINE, exposed, ..).unwrap_err();
    assert_eq!(refused.reason, PostBufReason::InlineExposed);
    drop(batch);
    assert!(world.state().requests.is_empty());
}

fn memory_is_exposed_with_a_right_at_least<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    for none in [RemoteAccess::empty(), RemoteAccess::from_bits_retain(1 << 20)] {
        let refused = pd.expose(pd.alloc_buf(8).unwrap(), none).unwrap_err();
        assert_eq!((refused.error.errno, refused.handle.len()), (Errno::INVAL, 8));
    }
    // Flags other than peers' rights do not reach the device.
    let odd = RemoteAccess::READ | RemoteAccess::from_bits_retain(1 << 20);
    let exposed = pd.expose(pd.alloc_buf(8).unwrap(), odd).unwrap();
    assert_eq!(world.census().iter().filter(|kind| **kind == Kind::Mr).count(), 2);
    drop(exposed);
}

fn kinds_of_memory_mix_in_one_request<P: Provider>(world: &World, context: Context<P>) {
    let mut s = setup(&context);
    let exposed = s.pd.expose(s.buf(b"E"), RemoteAccess::READ).unwrap();
    let pieces: Vec<Memory> = vec![s.buf(b"F").freeze().into(), s.buf(b"B").into(), exposed.into()];
    let refused = s.qp.post_recv_bufs(pieces).unwrap_err();
    assert_eq!(refused.reason, PostBufReason::ReadOnly);
    s.qp.post_send_bufs(SendOp::Send, NONE, refused.returned.unwrap()).unwrap();
    world.complete(s.qp.qp_num(), false, b"FBE");
    let returned: Vec<Memory> = s.cq.poll_one().unwrap().returned.unwrap().collect();
    assert!(matches!(&returned[..], [Memory::Frozen(_), Memory::Buf(_), Memory::Exposed(_)]), "{returned:?}");
    // Each getter finds its kind of memory among the others.
    s.qp.post_send_bufs(SendOp::Send, NONE, returned).unwrap();
    world.complete(s.qp.qp_num(), false, b"FBE");
    assert_eq!(s.next_buf()[..], *b"B");
}
