//! Device memory: allocation, copies, registration and release.
//!
//! # Safety
//! See [`common`]. Apart from arenas, scatter/gather elements name only regions of device memory,
//! which live as long as the queue pairs.
#![allow(unsafe_code)]

use crate::common::{Arena, REMOTE, Shape, open, pair, pattern, recv, send, wait_ok, wait_status};
use provider_soft::Soft;
use verbs::{AccessFlags, Cause, Context, Dm, DmAttr, Errno, MrChange, SendOp, Sge, WcStatus};
use verbs_core::provider::{ContextOps, Destroy, DmOps};

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE.union(REMOTE);

fn alloc(context: &Context<Soft>, length: u64) -> Dm<Soft> {
    context.alloc_dm(&DmAttr { length, log_align: 0 }).unwrap()
}

fn contents(dm: &Dm<Soft>) -> Vec<u8> {
    let mut bytes = vec![0xaa; dm.length() as usize];
    dm.copy_from(0, &mut bytes).unwrap();
    bytes
}

fn max_dm_size(context: &Context<Soft>) -> u64 {
    context.query_device_ex().unwrap().max_dm_size
}

#[test]
fn device_memory_is_zeroed_and_keeps_what_is_copied_into_it() {
    let context = open();
    for (length, log_align) in [(4, 0), (60, 6), (4096, 12), (max_dm_size(&context), 18)] {
        let dm = context.alloc_dm(&DmAttr { length, log_align }).unwrap();
        assert_eq!(contents(&dm), vec![0; length as usize]);
        let bytes = pattern(1, length as usize);
        dm.copy_to(0, &bytes).unwrap();
        dm.copy_to(length - 4, b"last").unwrap();
        assert_eq!(contents(&dm), [&bytes[..length as usize - 4], b"last"].concat());
        dm.close().unwrap();
    }
}

#[test]
fn a_copy_outside_of_device_memory_or_of_odd_bytes_is_refused() {
    let dm = alloc(&open(), 64);
    for (offset, length) in [(64, 4), (0, 68), (u64::MAX - 3, 4), (1 << 40, 0)] {
        let error = dm.copy_to(offset, &pattern(1, length)).unwrap_err();
        assert!(matches!(error.cause, Cause::Range { length: 64, .. }), "{error}");
        assert_eq!((error.verb, error.errno), ("memcpy_to_dm", Errno::INVAL));
        let error = dm.copy_from(offset, &mut vec![0; length]).unwrap_err();
        assert_eq!((error.verb, error.errno), ("memcpy_from_dm", Errno::INVAL));
    }
    for (offset, length) in [(1, 4), (4, 3), (2, 2)] {
        let error = dm.copy_to(offset, &pattern(1, length)).unwrap_err();
        assert!(error.errno == Errno::INVAL && error.to_string().contains("multiples of 4"), "{error}");
        dm.copy_from(offset, &mut vec![0; length]).unwrap_err();
    }
    dm.copy_to(64, &[]).unwrap();
    assert_eq!(contents(&dm), [0; 64]);
}

#[test]
fn the_device_has_a_limited_amount_of_memory_and_gets_it_back() {
    let context = open();
    let most = max_dm_size(&context);
    for attr in [
        DmAttr { length: 0, log_align: 0 },
        DmAttr { length: most + 1, log_align: 0 },
        DmAttr { length: u64::MAX, log_align: 0 },
        DmAttr { length: 64, log_align: 19 },
        DmAttr { length: 64, log_align: u32::MAX },
    ] {
        let error = context.alloc_dm(&attr).unwrap_err();
        assert!(error.errno == Errno::INVAL && matches!(error.cause, Cause::Limit { .. }), "{error}");
    }
    let half = alloc(&context, most / 2);
    let rest = alloc(&context, most / 2);
    let error = context.alloc_dm(&DmAttr { length: 1, log_align: 0 }).unwrap_err();
    assert_eq!(error.errno, Errno::NOMEM, "{error}");
    alloc(&open(), most);
    half.close().unwrap();
    alloc(&context, most / 2).close().unwrap();
    drop(rest);
    drop(alloc(&context, most));
}

#[test]
fn peers_write_read_and_change_device_memory_from_address_zero_on() {
    let (mut a, b) = pair(&Shape::default());
    let local = Arena::new(&a.pd, 4096);
    let dm = alloc(&b.context, 8192);
    // The offset is not word-aligned; the region ends within a word.
    let mr = b.pd.reg_dm_mr(&dm, 12, 3001, ALL).unwrap();
    assert_eq!((mr.addr(), mr.length()), (0, 3001));
    let sent = pattern(1, 3001);
    local.write(0, &sent);
    let rkey = mr.rkey();
    send(&mut a.qp, 1, SendOp::RdmaWrite { remote_addr: 0, rkey }, &[local.sge(0..3001)]);
    wait_ok(&mut a.cq, 1);
    let written = contents(&dm);
    assert_eq!(written[12..3013], sent);
    assert!(written[..12].iter().chain(&written[3013..]).all(|byte| *byte == 0));

    local.write(0, &[0; 4096]);
    send(&mut a.qp, 2, SendOp::RdmaRead { remote_addr: 5, rkey }, &[local.sge(0..2996)]);
    wait_ok(&mut a.cq, 2);
    assert_eq!(local.read(0..2996), sent[5..]);

    let words = b.pd.reg_dm_mr(&dm, 8, 64, ALL).unwrap();
    dm.copy_to(16, &41_u64.to_ne_bytes()).unwrap();
    let add = SendOp::AtomicFetchAndAdd { remote_addr: 8, rkey: words.rkey(), add: 1 };
    send(&mut a.qp, 3, add, &[local.sge(0..8)]);
    wait_ok(&mut a.cq, 3);
    assert_eq!((local.number(0), &contents(&dm)[16..24]), (41, &42_u64.to_ne_bytes()[..]));
}

#[test]
fn device_memory_is_the_source_and_the_target_of_messages() {
    let (mut a, mut b) = pair(&Shape::default());
    let (from, into) = (alloc(&a.context, 4096), alloc(&b.context, 4096));
    let sources = a.pd.reg_dm_mr(&from, 0, 4096, AccessFlags::empty()).unwrap();
    let targets = b.pd.reg_dm_mr(&into, 1024, 3072, AccessFlags::LOCAL_WRITE).unwrap();
    let sent = pattern(3, 4096);
    from.copy_to(0, &sent).unwrap();
    recv(&mut b.qp, 2, &[targets.sge(0..500), targets.sge(501..3072)]);
    send(&mut a.qp, 1, SendOp::Send, &[sources.sge(1..3002)]);
    assert_eq!(wait_ok(&mut b.cq, 2).byte_len, 3001);
    wait_ok(&mut a.cq, 1);
    let received = contents(&into);
    assert_eq!((&received[1024..1524], received[1524]), (&sent[1..501], 0));
    assert_eq!((&received[1525..4026], &received[4026..]), (&sent[501..3002], &[0; 70][..]));
}

#[test]
fn a_region_of_device_memory_keeps_its_bounds_and_rights() {
    for (access, remote_addr) in [(ALL, 57), (ALL, u64::MAX), (AccessFlags::LOCAL_WRITE, 0)] {
        let (mut a, b) = pair(&Shape::default());
        let (local, dm) = (Arena::new(&a.pd, 8), alloc(&b.context, 128));
        local.write(0, &[0xff; 8]);
        let mr = b.pd.reg_dm_mr(&dm, 0, 64, access).unwrap();
        let write = SendOp::RdmaWrite { remote_addr, rkey: mr.rkey() };
        send(&mut a.qp, 1, write, &[local.sge(0..8)]);
        wait_status(&mut a.cq, 1, WcStatus::REM_ACCESS_ERR);
        assert_eq!(contents(&dm), [0; 128]);
    }
    let (mut a, _b) = pair(&Shape::default());
    let dm = alloc(&a.context, 128);
    let mr = a.pd.reg_dm_mr(&dm, 0, 64, AccessFlags::empty()).unwrap();
    let beyond = Sge { addr: 60, length: 8, lkey: mr.lkey() };
    send(&mut a.qp, 1, SendOp::Send, &[beyond]);
    wait_status(&mut a.cq, 1, WcStatus::LOC_PROT_ERR);
}

#[test]
fn a_region_of_device_memory_that_cannot_be_is_refused() {
    let context = open();
    let (pd, dm) = (context.alloc_pd().unwrap(), alloc(&context, 64));
    for (offset, length) in [(0, 65), (65, 0), (u64::MAX, 2)] {
        let error = pd.reg_dm_mr(&dm, offset, length, ALL).unwrap_err();
        assert!(matches!(error.cause, Cause::Range { .. }) && error.errno == Errno::INVAL, "{error}");
    }
    let error = pd.reg_dm_mr(&alloc(&open(), 64), 0, 64, ALL).unwrap_err();
    assert_eq!((error.errno, error.cause), (Errno::INVAL, Cause::Foreign { what: "device memory" }));
    let error = pd.reg_dm_mr(&dm, 0, 64, AccessFlags::REMOTE_WRITE).unwrap_err();
    assert!(matches!(error.cause, Cause::NeedsLocalWrite { .. }), "{error}");
    let error = pd.reg_dm_mr(&dm, 0, 64, AccessFlags::FLUSH_PERSISTENT).unwrap_err();
    assert_eq!(
        (error.errno, error.cause),
        (Errno::OPNOTSUPP, Cause::Access { access: AccessFlags::FLUSH_PERSISTENT })
    );
    let raw = context.raw().reg_dm_mr(pd.raw(), dm.raw(), 0, 64, AccessFlags::LOCAL_WRITE);
    assert_eq!(raw.unwrap_err().errno, Errno::INVAL, "without ZERO_BASED");

    let mut mr = pd.reg_dm_mr(&dm, 0, 64, ALL).unwrap();
    // SAFETY: the change names no memory.
    let error = unsafe { mr.rereg(&MrChange::new().access(ALL)) }.unwrap_err();
    assert_eq!(error.error.errno, Errno::OPNOTSUPP);
    assert_eq!(dm.export_dmabuf_fd().unwrap_err().errno, Errno::OPNOTSUPP);
}

#[test]
fn device_memory_with_a_region_is_not_freed() {
    let context = open();
    let (pd, raw) = (context.alloc_pd().unwrap(), context.raw());
    let dm = raw.alloc_dm(&DmAttr { length: 64, log_align: 0 }).unwrap();
    let mr = raw.reg_dm_mr(pd.raw(), &dm, 0, 64, ALL | AccessFlags::ZERO_BASED).unwrap();
    let (dm, error) = dm.destroy().unwrap_err();
    assert_eq!((error.errno, error.cause), (Errno::BUSY, Cause::InUse { by: "memory regions" }));
    dm.copy_to(0, b"here").unwrap();
    mr.destroy().unwrap();
    dm.destroy().unwrap();
    drop(alloc(&context, max_dm_size(&context)));
}
