//! On-demand paged regions, whose memory is missing, appears, disappears and reappears.
//!
//! # Safety
//! See [`common`]. Apart from arenas, scatter/gather elements and peers name only mappings that the
//! tests create and unmap, and an address at which no memory is mapped. No reference to the
//! mappings exists; the tests access them only while no request names them.
#![allow(unsafe_code)]

use core::num::NonZeroUsize;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::common::{Arena, REMOTE, Shape, open, pair, pattern, recv, send, wait, wait_ok, wait_status};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect};
use provider_soft::Soft;
use verbs::{
    AccessFlags, Advice, AdviseFlags, Errno, Mr, MrChange, OdpGeneralCaps, OdpTransportCaps, Pd, QpType,
    SendOp, Sge, WcStatus,
};

const ON_DEMAND: AccessFlags = AccessFlags::ON_DEMAND;
const ALL: AccessFlags = ON_DEMAND.union(AccessFlags::LOCAL_WRITE).union(REMOTE);
const PAGE: usize = 4096;
const LEN: usize = 4 * PAGE;
const RW: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

/// Four pages of address space, whose memory the tests map and unmap.
struct Pages(NonNull<u8>);

impl Pages {
    fn new() -> Self {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { mmap_anonymous(None, size(LEN), RW, MapFlags::MAP_PRIVATE) };
        Self(start.unwrap().cast())
    }

    fn addr(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    fn register(&self, pd: &Pd<Soft>, access: AccessFlags) -> Mr<Soft> {
        // SAFETY: the pages may disappear at any time, as a paged region allows; see the head.
        unsafe { pd.reg_mr(self.0.as_ptr(), LEN, access) }.unwrap()
    }

    /// Unmaps the pages starting with index `page`. Their addresses stay reserved, so other
    /// mappings cannot use them.
    fn unmap(&self, page: usize) {
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED | MapFlags::MAP_NORESERVE;
        let (addr, len) = (NonZeroUsize::new(self.addr() + page * PAGE), LEN - page * PAGE);
        // SAFETY: replaces pages of this test; no reference to them exists.
        unsafe { mmap_anonymous(addr, size(len), ProtFlags::PROT_NONE, flags) }.unwrap();
    }

    /// Maps all pages again, filled with zeros.
    fn map(&self) {
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
        // SAFETY: replaces pages of this test; no reference to them exists.
        unsafe { mmap_anonymous(NonZeroUsize::new(self.addr()), size(LEN), RW, flags) }.unwrap();
    }

    fn protect(&self, len: usize, rights: ProtFlags) {
        // SAFETY: the pages belong to this test, and no reference to them exists.
        unsafe { mprotect(self.0.cast(), len, rights) }.unwrap();
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= LEN);
        // SAFETY: mapped now, and not accessed by the device meanwhile.
        unsafe { self.0.add(at).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= LEN);
        // Atomic, because the peer's device has written the bytes: only its messages order the
        // accesses.
        // SAFETY: mapped now, and written by atomic accesses alone.
        let byte = |at| unsafe { AtomicU8::from_ptr(self.0.add(at).as_ptr()) }.load(Ordering::Relaxed);
        (at..at + len).map(byte).collect()
    }
}

fn size(len: usize) -> NonZeroUsize {
    NonZeroUsize::new(len).unwrap()
}

fn sge(addr: usize, length: u32, mr: &Mr<Soft>) -> Sge {
    Sge { addr: addr as u64, length, lkey: mr.lkey() }
}

#[test]
fn the_device_pages_on_demand_for_all_transports() {
    let attr = open().query_device_ex().unwrap();
    let odp = attr.odp_caps;
    assert_eq!(odp.general_caps, OdpGeneralCaps::SUPPORT | OdpGeneralCaps::IMPLICIT);
    for caps in [odp.rc_odp_caps, odp.uc_odp_caps, odp.ud_odp_caps, attr.xrc_odp_caps] {
        assert!(caps.contains(OdpTransportCaps::SEND | OdpTransportCaps::SRQ_RECV), "{caps:?}");
        assert!(!caps.contains(OdpTransportCaps::ATOMIC_WRITE), "{caps:?}");
    }
}

#[test]
fn every_operation_works_in_paged_memory_at_any_offset() {
    let (mut a, mut b) = pair(&Shape::default());
    let (left, right) = (Pages::new(), Pages::new());
    let (from, into) = (left.register(&a.pd, ALL), right.register(&b.pd, ALL));
    let sent = pattern(1, 9000);
    left.write(3, &sent);
    recv(&mut b.qp, 2, &[sge(right.addr() + 5, 9000, &into)]);
    send(&mut a.qp, 1, SendOp::Send, &[sge(left.addr() + 3, 9000, &from)]);
    assert_eq!(wait_ok(&mut b.cq, 2).byte_len, 9000);
    wait_ok(&mut a.cq, 1);
    assert_eq!(right.read(5, 9000), sent);

    let (rkey, base) = (into.rkey(), right.addr() as u64);
    let write = SendOp::RdmaWrite { remote_addr: base + 1001, rkey };
    send(&mut a.qp, 3, write, &[sge(left.addr() + 3, 9000, &from)]);
    wait_ok(&mut a.cq, 3);
    assert_eq!(right.read(1001, 9000), sent);
    let read = SendOp::RdmaRead { remote_addr: base + 1001, rkey };
    send(&mut a.qp, 4, read, &[sge(left.addr() + 4097, 9000, &from)]);
    wait_ok(&mut a.cq, 4);
    assert_eq!(left.read(4097, 9000), sent);

    right.write(8, &41_u64.to_ne_bytes());
    let add = SendOp::AtomicFetchAndAdd { remote_addr: base + 8, rkey, add: 1 };
    send(&mut a.qp, 5, add, &[sge(left.addr() + 1, 8, &from)]);
    wait_ok(&mut a.cq, 5);
    for (compare, left_behind) in [(41_u64, 42_u64), (42, 7)] {
        let swap = SendOp::AtomicCmpAndSwp { remote_addr: base + 8, rkey, compare, swap: 7 };
        send(&mut a.qp, 6, swap, &[sge(left.addr() + 16, 8, &from)]);
        wait_ok(&mut a.cq, 6);
        assert_eq!(right.read(8, 8), left_behind.to_ne_bytes());
    }
    assert_eq!(
        (left.read(1, 8), left.read(16, 8)),
        (41_u64.to_ne_bytes().into(), 42_u64.to_ne_bytes().into())
    );
}

#[test]
fn memory_that_is_missing_fails_requests_and_not_the_process() {
    let pages = Pages::new();
    let operations: [fn(u64, u32) -> SendOp<'static>; 4] = [
        |remote_addr, rkey| SendOp::RdmaWrite { remote_addr, rkey },
        |remote_addr, rkey| SendOp::RdmaRead { remote_addr, rkey },
        |remote_addr, rkey| SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 },
        |remote_addr, rkey| SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 0, swap: 1 },
    ];
    for (n, operation) in operations.into_iter().enumerate() {
        let (mut a, b) = pair(&Shape::default());
        let (local, mr) = (Arena::new(&a.pd, 8), pages.register(&b.pd, ALL));
        pages.unmap(0);
        let op = operation(pages.addr() as u64 + 4096, mr.rkey());
        send(&mut a.qp, 1, op, &[local.sge(0..8)]);
        assert_eq!(wait(&mut a.cq, 1)[0].status, WcStatus::REM_OP_ERR, "operation {n}");
        pages.map();
        assert_eq!(pages.read(0, LEN), [0; LEN]);
    }

    for missing_here in [true, false] {
        let (mut a, mut b) = pair(&Shape::default());
        let (near, far) = (pages.register(&a.pd, ALL), pages.register(&b.pd, ALL));
        let (from, into) = (Arena::new(&a.pd, 64), Arena::new(&b.pd, 64));
        pages.unmap(0);
        if missing_here {
            recv(&mut b.qp, 2, &[into.sge(0..64)]);
            send(&mut a.qp, 1, SendOp::Send, &[sge(pages.addr(), 64, &near)]);
            wait_status(&mut a.cq, 1, WcStatus::LOC_PROT_ERR);
        } else {
            recv(&mut b.qp, 2, &[sge(pages.addr(), 64, &far)]);
            send(&mut a.qp, 1, SendOp::Send, &[from.sge(0..64)]);
            wait_status(&mut a.cq, 1, WcStatus::REM_OP_ERR);
            wait_status(&mut b.cq, 2, WcStatus::LOC_PROT_ERR);
        }
        pages.map();
    }
}

#[test]
fn memory_that_is_mapped_again_is_used_by_the_next_request() {
    let (mut a, b) = pair(&Shape::default());
    let pages = Pages::new();
    let (local, mr) = (Arena::new(&a.pd, 3000), pages.register(&b.pd, ALL));
    let (remote_addr, rkey) = (pages.addr() as u64, mr.rkey());
    for n in 0..3 {
        local.write(0, &pattern(n, 3000));
        pages.unmap(0);
        pages.map();
        send(&mut a.qp, n as u64, SendOp::RdmaWrite { remote_addr, rkey }, &[local.sge(0..3000)]);
        wait_ok(&mut a.cq, n as u64);
        assert_eq!((pages.read(0, 3000), pages.read(3000, 1096)), (pattern(n, 3000), vec![0; 1096]));
    }
}

#[test]
fn a_region_of_missing_pages_is_registered_and_mapped_later() {
    let (mut a, b) = pair(&Shape::default());
    let pages = Pages::new();
    pages.unmap(0);
    let (local, mr) = (Arena::new(&a.pd, 8), pages.register(&b.pd, ALL));
    pages.map();
    local.write(0, b"mapped!!");
    let write = SendOp::RdmaWrite { remote_addr: pages.addr() as u64, rkey: mr.rkey() };
    send(&mut a.qp, 1, write, &[local.sge(0..8)]);
    wait_ok(&mut a.cq, 1);
    assert_eq!(pages.read(0, 8), b"mapped!!");
}

#[test]
fn the_rights_of_pages_count_at_the_time_of_an_access() {
    let pages = Pages::new();
    pages.write(0, b"read me!");
    for (rights, readable) in [(ProtFlags::PROT_READ, true), (ProtFlags::PROT_NONE, false)] {
        pages.protect(LEN, rights);
        for is_read in [true, false] {
            let (mut a, b) = pair(&Shape::default());
            let (local, mr) = (Arena::new(&a.pd, 8), pages.register(&b.pd, ALL));
            let (remote_addr, rkey) = (pages.addr() as u64, mr.rkey());
            let op = if is_read {
                SendOp::RdmaRead { remote_addr, rkey }
            } else {
                SendOp::RdmaWrite { remote_addr, rkey }
            };
            send(&mut a.qp, 1, op, &[local.sge(0..8)]);
            if is_read && readable {
                wait_ok(&mut a.cq, 1);
                assert_eq!(local.read(0..8), b"read me!");
            } else {
                wait_status(&mut a.cq, 1, WcStatus::REM_OP_ERR);
            }
        }
    }
    pages.protect(LEN, RW);
    assert_eq!(pages.read(0, 8), b"read me!");
}

#[test]
fn an_unreliable_message_into_missing_memory_fails_its_receive() {
    let shape = Shape::for_type(QpType::UC);
    let (mut a, mut b) = pair(&shape);
    let pages = Pages::new();
    let (from, mr) = (Arena::new(&a.pd, 64), pages.register(&b.pd, ALL));
    pages.unmap(0);
    recv(&mut b.qp, 2, &[sge(pages.addr(), 64, &mr)]);
    send(&mut a.qp, 1, SendOp::Send, &[from.sge(0..64)]);
    wait_ok(&mut a.cq, 1);
    wait_status(&mut b.cq, 2, WcStatus::LOC_PROT_ERR);
    pages.map();
}

#[test]
fn a_region_of_all_memory_reaches_what_is_mapped_and_nothing_else() {
    let (mut a, mut b) = pair(&Shape::default());
    // SAFETY: the elements and the peer name pages of the test and an arena.
    let register = |pd: &Pd<Soft>| unsafe { pd.reg_mr_iova(core::ptr::null_mut(), usize::MAX, 0, ALL) };
    let (near, far) = (register(&a.pd).unwrap(), register(&b.pd).unwrap());
    let (left, right) = (Pages::new(), Pages::new());
    left.write(0, &pattern(5, LEN));
    recv(&mut b.qp, 2, &[sge(right.addr() + 1, LEN as u32 - 1, &far)]);
    send(&mut a.qp, 1, SendOp::Send, &[sge(left.addr(), LEN as u32 - 1, &near)]);
    wait_ok(&mut a.cq, 1);
    wait_ok(&mut b.cq, 2);
    assert_eq!(right.read(1, LEN - 1), pattern(5, LEN)[..LEN - 1]);
    let read = |remote_addr| SendOp::RdmaRead { remote_addr, rkey: far.rkey() };
    send(&mut a.qp, 3, read(right.addr() as u64 + 1), &[sge(left.addr(), 64, &near)]);
    wait_ok(&mut a.cq, 3);
    send(&mut a.qp, 4, read(0x1000), &[sge(left.addr(), 64, &near)]);
    wait_status(&mut a.cq, 4, WcStatus::REM_OP_ERR);

    // SAFETY: registration fails.
    let elsewhere = unsafe { a.pd.reg_mr_iova(core::ptr::null_mut(), usize::MAX, 4096, ALL) };
    assert_eq!(elsewhere.unwrap_err().errno, Errno::INVAL);
    // SAFETY: as above.
    let pinned = unsafe { a.pd.reg_mr_iova(core::ptr::null_mut(), usize::MAX, 0, ALL - ON_DEMAND) };
    assert_eq!(pinned.unwrap_err().errno, Errno::INVAL);
}

#[test]
fn a_region_becomes_paged_and_pinned_again_by_a_change_of_its_rights() {
    let (mut a, b) = pair(&Shape::default());
    let pages = Pages::new();
    let (local, mut mr) = (Arena::new(&a.pd, 8), pages.register(&b.pd, ALL - ON_DEMAND));
    let write = SendOp::RdmaWrite { remote_addr: pages.addr() as u64, rkey: mr.rkey() };
    // SAFETY: the pages are accessed as before.
    unsafe { mr.rereg(&MrChange::new().access(ALL)) }.unwrap();
    pages.unmap(0);
    // SAFETY: as above; the change fails.
    let error = unsafe { mr.rereg(&MrChange::new().access(ALL - ON_DEMAND)) }.unwrap_err();
    assert_eq!(error.error.errno, Errno::FAULT);
    pages.map();
    // SAFETY: as above.
    unsafe { mr.rereg(&MrChange::new().access(ALL - ON_DEMAND)) }.unwrap();
    local.write(0, b"pinned!!");
    send(&mut a.qp, 1, write, &[local.sge(0..8)]);
    wait_ok(&mut a.cq, 1);
    assert_eq!(pages.read(0, 8), b"pinned!!");
}

#[test]
fn advice_is_followed_or_refused_with_the_errno_of_the_manual() {
    let context = open();
    let (pd, other) = (context.alloc_pd().unwrap(), context.alloc_pd().unwrap());
    let pages = Pages::new();
    let (mr, readable) = (pages.register(&pd, ALL), pages.register(&pd, ON_DEMAND));
    let pinned = Arena::new(&pd, 64);
    let all = sge(pages.addr(), LEN as u32, &mr);
    for &advice in Advice::NAMED {
        for flags in [AdviseFlags::empty(), AdviseFlags::FLUSH] {
            pd.advise_mr(advice, flags, &[all, sge(pages.addr() + 1, 0, &mr)]).unwrap();
        }
    }
    assert_eq!(pages.read(0, LEN), [0; LEN], "advice changes no byte");
    let flushed = |pd: &Pd<Soft>, advice, sge| pd.advise_mr(advice, AdviseFlags::FLUSH, &[sge]);
    let (read, write) = (Advice::PREFETCH, Advice::PREFETCH_WRITE);
    for (result, errno) in [
        (flushed(&pd, Advice(77), all), Errno::OPNOTSUPP),
        (pd.advise_mr(read, AdviseFlags::from_bits_retain(6), &[all]), Errno::INVAL),
        (pd.advise_mr(read, AdviseFlags::FLUSH, &[]), Errno::INVAL),
        (flushed(&pd, read, pinned.sge(0..64)), Errno::INVAL),
        (flushed(&pd, read, Sge { lkey: mr.lkey() ^ 1, ..all }), Errno::NOENT),
        (flushed(&other, read, all), Errno::PERM),
        (flushed(&pd, write, sge(pages.addr(), 8, &readable)), Errno::PERM),
        (flushed(&pd, read, Sge { length: all.length + 1, ..all }), Errno::FAULT),
        (flushed(&pd, read, Sge { addr: all.addr - 1, ..all }), Errno::FAULT),
    ] {
        assert_eq!(result.unwrap_err().errno, errno);
    }
    flushed(&pd, read, sge(pages.addr(), 8, &readable)).unwrap();

    pages.unmap(2);
    flushed(&pd, write, Sge { length: 2 * PAGE as u32, ..all }).unwrap();
    assert_eq!(flushed(&pd, write, all).unwrap_err().errno, Errno::FAULT);
    pd.advise_mr(write, AdviseFlags::empty(), &[all]).unwrap();
    pages.protect(PAGE, ProtFlags::PROT_READ);
    assert_eq!(flushed(&pd, write, Sge { length: 8, ..all }).unwrap_err().errno, Errno::FAULT);
    flushed(&pd, read, Sge { length: 8, ..all }).unwrap();
}

#[test]
fn memory_that_comes_and_goes_under_traffic_ends_no_process() {
    let pages = Pages::new();
    let (addr, stop) = (pages.addr(), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (pages, stop) = (&pages, &stop);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                pages.unmap(1);
                pages.map();
            }
        });
        let mut outcomes = [0; 2];
        for _ in 0..30 {
            let (mut a, b) = pair(&Shape::default());
            let (local, mr) = (Arena::new(&a.pd, LEN), pages.register(&b.pd, ALL));
            for n in 0..20 {
                let write = SendOp::RdmaWrite { remote_addr: addr as u64, rkey: mr.rkey() };
                send(&mut a.qp, n, write, &[local.sge(0..LEN)]);
                let status = wait(&mut a.cq, 1)[0].status;
                outcomes[usize::from(status != WcStatus::SUCCESS)] += 1;
                if status != WcStatus::SUCCESS {
                    assert_eq!(status, WcStatus::REM_OP_ERR);
                    break;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(outcomes[0] > 0, "no write met its pages");
    });
}

// SAFETY: the pointer blocked the auto impl. It names addresses, which any thread may map and
// unmap.
unsafe impl Sync for Pages {}
