//! Buffers, their pieces, and peer access.

use crate::common::{Kind, World};
use verbs::{Cause, Context, Errno, HandleError, Provider, RemoteAccess, RemoteMr};

both! {
    a_buffer_is_zeroed_aligned_and_as_long_as_asked
    a_buffer_beyond_the_address_space_is_enomem
    pieces_are_disjoint_and_join_again_only_with_their_neighbour
    a_buffer_is_seen_as_numbers_where_it_is_aligned
    the_allocation_lives_as_long_as_its_last_piece
    exposed_memory_is_copied_in_and_out_and_comes_back
    exactly_the_piece_is_exposed
    a_registration_that_fails_gives_the_buffer_back
    a_raw_region_says_where_it_is
}

fn a_buffer_is_zeroed_aligned_and_as_long_as_asked<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    for len in [0, 1, 4095, 4096, 1 << 20] {
        let buf = pd.alloc_buf(len).unwrap();
        assert_eq!((buf.len(), buf.is_empty(), buf.addr() % 4096), (len, len == 0, 0));
        assert!(buf.iter().all(|byte| *byte == 0));
        let state = world.state();
        let region = state.live.values().find(|object| object.kind == Kind::Mr).unwrap().region;
        assert_eq!(region, (buf.addr(), len));
        drop(state);
    }
}

fn a_buffer_beyond_the_address_space_is_enomem<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    for len in [usize::MAX, usize::MAX - 4096, isize::MAX as usize + 1, isize::MAX as usize] {
        assert_eq!(pd.alloc_buf(len).unwrap_err().errno, Errno::NOMEM, "{len:#x}");
    }
    assert_eq!(world.census(), [Kind::Pd]);
}

fn pieces_are_disjoint_and_join_again_only_with_their_neighbour<P: Provider>(_: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let mut head = pd.alloc_buf(9).unwrap();
    head.copy_from_slice(b"abcdefghi");
    let mut tail = head.split_off(6);
    let middle = head.split_off(3);
    assert_eq!((&head[..], &middle[..], &tail[..]), (&b"abc"[..], &b"def"[..], &b"ghi"[..]));
    tail.fill(b'-');
    let (tail, mut middle) = (head.unsplit(tail).unwrap_err().handle, middle);
    let head = middle.unsplit(head).unwrap_err().handle;
    let stranger = pd.alloc_buf(3).unwrap();
    middle.unsplit(stranger).unwrap_err();
    middle.unsplit(tail).unwrap();
    let mut head = head;
    head.unsplit(middle).unwrap();
    assert_eq!(&head[..], b"abcdef---");
    assert_eq!(head.split_off(9).len(), 0);
}

#[test]
#[should_panic(expected = "split at 4, but there are 3 bytes")]
fn splitting_beyond_the_end_panics() {
    let (_, device) = crate::common::world("split-panics");
    let mut buf = device.open().unwrap().alloc_pd().unwrap().alloc_buf(3).unwrap();
    let _ = buf.split_off(4);
}

fn a_buffer_is_seen_as_numbers_where_it_is_aligned<P: Provider>(_: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let mut buf = pd.alloc_buf(19).unwrap();
    buf.as_mut_slice_of::<u64>().copy_from_slice(&[0x42, u64::MAX]);
    assert_eq!(buf[..8], 0x42_u64.to_ne_bytes());
    assert_eq!(buf[8..], [[0xff; 8].as_slice(), &[0; 3]].concat());
    assert_eq!(buf.as_slice_of::<u64>(), [0x42, u64::MAX], "three bytes are left over");
    assert!(buf.as_slice_of::<f64>()[1].is_nan());
    assert_eq!(buf.as_slice_of::<u8>(), &buf[..]);
    // 4 is a multiple of the alignment of `u32`, not of `u64`.
    let mut tail = buf.split_off(4);
    tail.as_mut_slice_of::<u32>()[0] = 7;
    assert_eq!(tail.as_slice_of::<u32>(), [7, u32::MAX, u32::MAX]);
    assert_eq!(tail[..4], 7_u32.to_ne_bytes());
    let shared = std::panic::AssertUnwindSafe(|| tail.as_slice_of::<u64>().len());
    let text = std::panic::catch_unwind(shared).unwrap_err();
    let text = text.downcast::<String>().unwrap();
    assert!(text.ends_with("is not a multiple of 8, the alignment of u64"), "{text}");
    let exclusive = std::panic::AssertUnwindSafe(|| tail.as_mut_slice_of::<u64>().len());
    assert!(std::panic::catch_unwind(exclusive).is_err());
    assert!(pd.alloc_buf(0).unwrap().as_slice_of::<u64>().is_empty());
}

fn the_allocation_lives_as_long_as_its_last_piece<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let mut head = pd.alloc_buf(8).unwrap();
    let mut tail = head.split_off(4);
    drop(head);
    tail.fill(7);
    assert_eq!(tail[..], [7; 4]);
    assert_eq!(world.census(), [Kind::Pd, Kind::Mr]);
    drop((tail, pd, context));
    world.assert_empty();
}

fn exposed_memory_is_copied_in_and_out_and_comes_back<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let mut buf = pd.alloc_buf(100).unwrap();
    buf[..5].copy_from_slice(b"hello");
    let (addr, lkey) = (buf.addr(), buf.lkey());
    let exposed = pd.expose(buf, RemoteAccess::READ | RemoteAccess::WRITE).unwrap();
    let remote = exposed.remote();
    assert_eq!(remote, RemoteMr { addr, length: 100, rkey: exposed.rkey() });
    assert_ne!(exposed.rkey(), lkey, "a key of its own");
    let mut five = [0; 5];
    exposed.read_at(0, &mut five);
    assert_eq!(five, *b"hello");
    exposed.write_at(95, b"world");
    exposed.read_at(95, &mut five);
    assert_eq!(five, *b"world");
    for (offset, len) in [(96, 5), (101, 0), (usize::MAX, 2)] {
        let read = std::panic::AssertUnwindSafe(|| exposed.read_at(offset, &mut vec![0; len]));
        assert!(std::panic::catch_unwind(read).is_err(), "{len} bytes at {offset}");
    }
    world.refuse(Kind::Mr, Errno::BUSY);
    let HandleError { handle: exposed, error } = exposed.unexpose().unwrap_err();
    assert_eq!(error.errno, Errno::BUSY);
    world.allow(Kind::Mr);
    let buf = exposed.unexpose().unwrap();
    assert_eq!((&buf[..5], &buf[95..]), (&b"hello"[..], &b"world"[..]));
    drop((buf, pd, context));
    world.assert_empty();
}

fn exactly_the_piece_is_exposed<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let mut head = pd.alloc_buf(4096).unwrap();
    let mut piece = head.split_off(100);
    let _tail = piece.split_off(50);
    let exposed = pd.expose(piece, RemoteAccess::WRITE).unwrap();
    let regions: Vec<_> = world
        .state()
        .live
        .values()
        .filter(|object| object.kind == Kind::Mr)
        .map(|object| object.region)
        .collect();
    assert_eq!(regions, [(head.addr(), 4096), (head.addr() + 100, 50)]);
    assert_eq!((exposed.len(), exposed.is_empty()), (50, false));
    let nothing = pd.expose(head.split_off(100), RemoteAccess::WRITE).unwrap();
    assert_eq!((nothing.len(), nothing.is_empty()), (0, true));
}

fn a_registration_that_fails_gives_the_buffer_back<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let mut buf = pd.alloc_buf(4).unwrap();
    buf.copy_from_slice(b"kept");
    world.state().refuse_reg = Some(Errno::NOMEM);
    let HandleError { handle: buf, error } = pd.expose(buf, RemoteAccess::READ).unwrap_err();
    assert_eq!((&buf[..], error.errno), (&b"kept"[..], Errno::NOMEM));
    assert_eq!(pd.alloc_buf(4).unwrap_err().cause, Cause::Unknown);
    drop((buf, pd, context));
    world.assert_empty();
}

fn a_raw_region_says_where_it_is<P: Provider>(_: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let mr = crate::common::static_mr(&pd);
    let sge = mr.sge(16..24);
    assert_eq!((sge.addr, sge.length, sge.lkey), (mr.addr() + 16, 8, mr.lkey()));
    assert_eq!((mr.sge(..).length, mr.length()), (64, 64));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| mr.sge(60..65))).is_err());
}
