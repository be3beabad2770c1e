//! Tests with memory that cannot be registered, memory that disappears, and too little memory.
//!
//! # Safety
//! The tests register their own mappings, which are never unmapped. Pages may disappear only from
//! mappings that the kernel accesses for the device ([`CheckedMemory`]). Work requests name only
//! these mappings.
#![allow(missing_docs, unsafe_code)]

mod common;

use core::ptr::NonNull;
use std::fs::File;
use std::io::Write as _;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, FromRawFd};
use std::process::Command;

use common::{Arena, End, REMOTE, Shape, open, pair_on, post_recv, send, wait};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, mprotect};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{SysconfVar, sysconf};
use provider_soft::{CheckedMemory, Soft, SoftDevice};
use verbs::{
    AccessFlags, Cause, Context, CqInit, Errno, Error, Mr, MwType, NamedProvider, Pd, QpCap, QpInit, QpType,
    RecvWr, SendOp, SrqInit, WcStatus,
};

/// Whether packets between devices opened by [`common::open`] travel through memory.
const SHARED_MEMORY: bool = true;

const LENGTH: usize = 1 << 16;
const LOCAL_WRITE: AccessFlags = AccessFlags::LOCAL_WRITE;

/// Maps anonymous memory. The mapping is never unmapped.
fn map(rights: ProtFlags) -> *mut u8 {
    let length = NonZeroUsize::new(LENGTH).unwrap();
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    unsafe { mmap_anonymous(None, length, rights, MapFlags::MAP_PRIVATE) }.unwrap().as_ptr().cast()
}

/// Maps the start of a file. The mapping is never unmapped.
fn map_file(file: &File, rights: ProtFlags) -> *mut u8 {
    let length = NonZeroUsize::new(LENGTH).unwrap();
    // SAFETY: as in `map`.
    unsafe { mmap(None, length, rights, MapFlags::MAP_SHARED, file.as_fd(), 0) }.unwrap().as_ptr().cast()
}

fn register(pd: &Pd<Soft>, start: *mut u8, length: usize, access: AccessFlags) -> Result<Mr<Soft>, Error> {
    // SAFETY: no work request names the region, so no byte of it is accessed.
    unsafe { pd.reg_mr(start, length, access) }
}

/// Asserts that registration failed with a cause that names the range at `start` and the property
/// `lacks`.
fn assert_refused(result: Result<Mr<Soft>, Error>, start: *mut u8, length: usize, lacks: &'static str) {
    let error = result.unwrap_err();
    let start = start.addr() as u64;
    let cause = Cause::Inaccessible { start, end: start + length as u64, lacks };
    assert_eq!((error.errno, &error.cause), (Errno::FAULT, &cause), "{error}");
}

#[test]
fn memory_that_cannot_be_accessed_is_not_registered() {
    let pd = open().alloc_pd().unwrap();
    // No process has memory below `vm.mmap_min_addr`.
    let unmapped = core::ptr::without_provenance_mut(0x1000);
    assert_refused(register(&pd, unmapped, 4096, AccessFlags::empty()), unmapped, 4096, "mapped");
    let beyond = register(&pd, map(ProtFlags::PROT_READ), isize::MAX as usize, AccessFlags::empty());
    assert_eq!(beyond.unwrap_err().errno, Errno::FAULT);
    let none = map(ProtFlags::PROT_NONE);
    assert_refused(register(&pd, none, LENGTH, AccessFlags::empty()), none, LENGTH, "readable");
    let readable = map(ProtFlags::PROT_READ);
    assert_refused(register(&pd, readable, LENGTH, LOCAL_WRITE), readable, LENGTH, "writable");
    let writable = map(ProtFlags::PROT_WRITE);
    assert_refused(register(&pd, writable, LENGTH, AccessFlags::empty()), writable, LENGTH, "readable");
    register(&pd, writable, LENGTH, LOCAL_WRITE).unwrap();
}

#[test]
fn memory_without_a_page_to_pin_is_not_registered() {
    let pd = open().alloc_pd().unwrap();
    let last = core::ptr::without_provenance_mut(usize::MAX - 63);
    let page = map(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    for (start, length) in [(last, 128), (last, 64), (last, 1), (page, 0), (core::ptr::null_mut(), 0)] {
        let error = register(&pd, start, length, LOCAL_WRITE).unwrap_err();
        assert_eq!(error.errno, Errno::INVAL, "{length} bytes at {start:p}: {error}");
    }
    register(&pd, page.wrapping_add(1), 0, LOCAL_WRITE).unwrap();
}

#[test]
fn memory_that_can_be_accessed_is_registered() {
    let pd = open().alloc_pd().unwrap();
    register(&pd, map(ProtFlags::PROT_READ), LENGTH, AccessFlags::REMOTE_READ).unwrap();
    register(&pd, map(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE), LENGTH, LOCAL_WRITE).unwrap();
    register(&pd, core::ptr::dangling_mut(), 0, LOCAL_WRITE).unwrap();
}

/// A request that accesses the tested memory, posted by the peer or by this process.
#[derive(Clone, Copy, Debug)]
enum Use {
    PeerReads,
    PeerWrites,
    PeerAdds,
    SendsFrom,
    ReadsInto,
    ReceivesInto,
}

use Use::{PeerAdds, PeerReads, PeerWrites, ReadsInto, ReceivesInto, SendsFrom};

/// Registers memory, calls `change`, and runs a request between two new queue pairs. Returns the
/// statuses of the request and of the matching receive, if any.
fn run(
    context: &Context<Soft>,
    start: *mut u8,
    of: Use,
    change: impl FnOnce(),
) -> (WcStatus, Option<WcStatus>) {
    let shape = Shape::default();
    let (End { mut qp, mut cq, pd, .. }, mut peer) = pair_on(context, context, &shape);
    // SAFETY: the mapping is never unmapped, and the kernel accesses it.
    let own = unsafe { pd.reg_mr(start, LENGTH, LOCAL_WRITE | REMOTE) }.unwrap();
    change();
    let other = Arena::new(&peer.pd, 64);
    let (remote_addr, rkey) = (own.addr() + 4096, own.rkey());
    let there = SendOp::RdmaWrite { remote_addr: other.addr(), rkey: other.rkey() };
    let (into, from) = (own.sge(4096..4096 + 64), other.sge(0..64));
    match of {
        PeerReads => send(&mut peer.qp, 1, SendOp::RdmaRead { remote_addr, rkey }, &[from]),
        PeerWrites => send(&mut peer.qp, 1, SendOp::RdmaWrite { remote_addr, rkey }, &[from]),
        PeerAdds => {
            let add = SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 };
            send(&mut peer.qp, 1, add, &[other.sge(0..8)]);
        }
        SendsFrom => send(&mut qp, 1, there, &[into]),
        ReadsInto => {
            let read = SendOp::RdmaRead { remote_addr: other.addr(), rkey: other.rkey() };
            send(&mut qp, 1, read, &[into]);
        }
        ReceivesInto => {
            post_recv(&mut qp, &[RecvWr { wr_id: 2, sge: &[into] }]).unwrap();
            send(&mut peer.qp, 1, SendOp::Send, &[from]);
        }
    }
    match of {
        SendsFrom | ReadsInto => (wait(&mut cq, 1)[0].status, None),
        ReceivesInto => (wait(&mut peer.cq, 1)[0].status, Some(wait(&mut cq, 1)[0].status)),
        PeerReads | PeerWrites | PeerAdds => (wait(&mut peer.cq, 1)[0].status, None),
    }
}

const READS: [Use; 2] = [PeerReads, SendsFrom];
const WRITES: [Use; 4] = [PeerWrites, PeerAdds, ReadsInto, ReceivesInto];

/// Asserts that a request failed because its memory was gone.
fn assert_gone(of: Use, ended: (WcStatus, Option<WcStatus>)) {
    let expected = match of {
        SendsFrom | ReadsInto => (WcStatus::LOC_PROT_ERR, None),
        ReceivesInto => (WcStatus::REM_OP_ERR, Some(WcStatus::LOC_PROT_ERR)),
        PeerReads | PeerWrites | PeerAdds => (WcStatus::REM_OP_ERR, None),
    };
    assert_eq!(ended, expected, "{of:?}");
}

#[test]
fn a_file_that_is_cut_under_its_region_fails_requests_and_does_not_end_the_process() {
    let context = open();
    for (of, touched) in READS.into_iter().chain(WRITES).flat_map(|of| [(of, false), (of, true)]) {
        let file = File::from(memfd_create("cut", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(LENGTH as u64).unwrap();
        let start = map_file(&file, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
        if touched {
            let (status, receive) = run(&context, start, of, || ());
            assert_eq!((status, receive.unwrap_or(status)), (WcStatus::SUCCESS, WcStatus::SUCCESS), "{of:?}");
        }
        assert_gone(of, run(&context, start, of, || file.set_len(0).unwrap()));
    }
}

#[test]
fn checked_memory_that_the_program_protects_fails_requests_and_does_not_end_the_process() {
    let device = SoftDevice::builder().checked_memory(CheckedMemory::All).auto().unwrap();
    let context = Context::from_raw(Soft::open(&device).unwrap());
    let all = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    for (of, rights) in READS
        .into_iter()
        .chain(WRITES)
        .map(|of| (of, ProtFlags::PROT_NONE))
        .chain(WRITES.map(|of| (of, ProtFlags::PROT_READ)))
    {
        let start = map(all);
        // SAFETY: no reference to the mapping exists, and the kernel accesses it for the device.
        let protect = || unsafe { mprotect(NonNull::new(start).unwrap().cast(), LENGTH, rights) }.unwrap();
        assert_gone(of, run(&context, start, of, protect));
    }
}

/// The environment variable set in a process that may not call `process_vm_readv(2)`.
const REFUSED: &str = "SOFT_TEST_IS_REFUSED_ACCESSES";

#[test]
fn a_process_without_process_vm_readv_has_no_checked_memory_and_is_told_so() {
    const NAME: &str = "a_process_without_process_vm_readv_has_no_checked_memory_and_is_told_so";
    if std::env::var_os(REFUSED).is_some() {
        return run_without_accesses_by_the_kernel();
    }
    in_a_process(NAME, REFUSED);
}

fn run_without_accesses_by_the_kernel() {
    refuse(&[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev]);
    assert!(!CheckedMemory::is_supported());
    let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let of = |checked| {
        let device = SoftDevice::builder().checked_memory(checked).auto().unwrap();
        Context::from_raw(Soft::open(&device).unwrap()).alloc_pd().unwrap()
    };
    let error = register(&of(CheckedMemory::All), map(rights), LENGTH, LOCAL_WRITE).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.errno, Errno::OPNOTSUPP, "{text}");
    assert!(text.contains("process_vm_readv") && text.contains("VERBS_SOFT_CHECKED_MEMORY"), "{text}");
    // File-backed memory is plain memory here: atomic writes succeed, but fail on checked memory.
    let file = File::from(memfd_create("plain", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(LENGTH as u64).unwrap();
    for checked in [CheckedMemory::Files, CheckedMemory::None] {
        register(&of(checked), map_file(&file, rights), LENGTH, LOCAL_WRITE).unwrap();
    }
    let context = open();
    for of in READS.into_iter().chain(WRITES) {
        let (status, receive) = run(&context, map_file(&file, rights), of, || ());
        assert_eq!((status, receive.unwrap_or(status)), (WcStatus::SUCCESS, WcStatus::SUCCESS), "{of:?}");
    }
}

#[test]
fn memory_that_is_not_checked_is_registered_without_process_vm_readv() {
    const NAME: &str = "memory_that_is_not_checked_is_registered_without_process_vm_readv";
    if std::env::var_os(REFUSED).is_none() {
        return in_a_process(NAME, REFUSED);
    }
    // A single such call kills the process.
    filter(&[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev], libc::SECCOMP_RET_KILL_PROCESS);
    let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let file = File::from(memfd_create("unchecked", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(LENGTH as u64).unwrap();
    for (checked, start) in [
        (CheckedMemory::Files, map(rights)),
        (CheckedMemory::None, map(rights)),
        (CheckedMemory::None, map_file(&file, rights)),
    ] {
        let device = SoftDevice::builder().checked_memory(checked).auto().unwrap();
        let context = Context::from_raw(Soft::open(&device).unwrap());
        context.query_device().unwrap();
        let pd = context.alloc_pd().unwrap();
        register(&pd, start, LENGTH, LOCAL_WRITE).unwrap();
        pd.alloc_buf(LENGTH).unwrap();
    }
}

/// Permanently makes system calls fail with `EPERM` in this thread and its descendants.
fn refuse(calls: &[libc::c_long]) {
    filter(calls, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
}

/// Permanently applies a seccomp verdict to system calls in this thread and its descendants.
fn filter(calls: &[libc::c_long], verdict: u32) {
    let statement = |code, k, jt| libc::sock_filter { code, jt, jf: 0, k };
    // The system call number is the first word of `struct seccomp_data`.
    let mut program = vec![statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0)];
    for (at, call) in calls.iter().enumerate() {
        let to_the_end = (calls.len() - at) as u8;
        program.push(statement(
            (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            u32::try_from(*call).unwrap(),
            to_the_end,
        ));
    }
    let answer = |verdict| statement((libc::BPF_RET | libc::BPF_K) as u16, verdict, 0);
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    program.push(answer(verdict));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the calls take numbers, and the address of a program that lives during the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

#[test]
fn memory_that_the_kernel_cannot_access_is_not_registered() {
    // Secret memory is rejected like device registers, and creating it needs no privileges.
    // SAFETY: the call takes a number and returns a new descriptor.
    let secret = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    let error = std::io::Error::last_os_error();
    let start = if secret >= 0 {
        // SAFETY: the descriptor is new.
        let file = unsafe { File::from_raw_fd(secret as i32) };
        file.set_len(LENGTH as u64).unwrap();
        Some(map_file(&file, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE))
    } else {
        // Kernels before 6.5 provide it only with `secretmem.enable=1`, and some not at all.
        assert_eq!(error.raw_os_error(), Some(libc::ENOSYS), "memfd_secret: {error}");
        // Bypasses the test harness, which shows only the output of failed tests.
        writeln!(std::io::stderr(), "skipped: secret memory, because memfd_secret is missing: {error}")
            .unwrap();
        None
    };
    // Pages of the kernel, mapped like a device's registers (VM_IO and VM_PFNMAP).
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let clock = maps.lines().find(|line| line.ends_with("[vvar]")).expect("a process has [vvar]");
    let clock = usize::from_str_radix(clock.split('-').next().unwrap(), 16).unwrap();
    let clock = core::ptr::with_exposed_provenance_mut(clock);
    let why = "accessible to the kernel: memory of devices and secret memory cannot be registered";
    for checked in [CheckedMemory::Files, CheckedMemory::All] {
        let device = SoftDevice::builder().checked_memory(checked).auto().unwrap();
        let pd = Context::from_raw(Soft::open(&device).unwrap()).alloc_pd().unwrap();
        for access in [LOCAL_WRITE, AccessFlags::empty()] {
            if let Some(start) = start {
                assert_refused(register(&pd, start, LENGTH, access), start, LENGTH, why);
            }
        }
        let registered = register(&pd, clock, 64, AccessFlags::empty());
        if checked == CheckedMemory::All {
            assert_refused(registered, clock, 64, why);
        } else {
            // It is not file-backed, so it is plain memory.
            registered.unwrap();
        }
    }
}

#[test]
fn memory_beyond_the_end_of_a_mapped_file_is_not_registered() {
    let pd = open().alloc_pd().unwrap();
    let file = File::from(memfd_create("half", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(LENGTH as u64 / 2).unwrap();
    let start = map_file(&file, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    register(&pd, start, LENGTH / 2, LOCAL_WRITE).unwrap();
    assert_refused(register(&pd, start, LENGTH, LOCAL_WRITE), start, LENGTH, "within the mapped file");
}

#[test]
fn registering_a_gibibyte_reads_none_of_it() {
    let pd = open().alloc_pd().unwrap();
    let length = NonZeroUsize::new(1 << 30).unwrap();
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
    // SAFETY: as in `map`.
    let mapped = unsafe { mmap_anonymous(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags) };
    let start = mapped.unwrap().as_ptr().cast::<u8>();
    register(&pd, start, length.get(), LOCAL_WRITE).unwrap();
    let mut resident = vec![0_u8; length.get() / 4096];
    // SAFETY: the mapping exists, and the kernel writes one byte per page, at most this many.
    assert_eq!(unsafe { libc::mincore(start.cast(), length.get(), resident.as_mut_ptr()) }, 0);
    assert!(resident.iter().all(|page| page & 1 == 0), "pages were touched");
}

/// The environment variable set in a process with limited memory.
const SHORT: &str = "SOFT_TEST_IS_SHORT_OF_MEMORY";

#[test]
fn the_largest_queues_are_enomem_where_memory_is_short() {
    const NAME: &str = "the_largest_queues_are_enomem_where_memory_is_short";
    if std::env::var_os(SHORT).is_some() {
        return run_short_of_memory();
    }
    in_a_process(NAME, SHORT);
}

/// Runs a test again in a separate process with `variable` set, so that the test's process-wide
/// changes affect no other test.
fn in_a_process(name: &str, variable: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    // A single thread, because the test harness would allocate in another thread.
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    let output = command.env(variable, "1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Waits until all other threads sleep. A thread allocates memory when it starts, which may be late
/// on a busy machine.
fn others_sleep() {
    let own = nix::unistd::gettid().to_string();
    let sleeps = |task: std::io::Result<std::fs::DirEntry>| {
        let path = task.unwrap().path();
        let stat = std::fs::read_to_string(path.join("stat")).unwrap();
        path.ends_with(&own) || stat.rsplit(") ").next().is_some_and(|state| state.starts_with('S'))
    };
    common::eventually("the threads sleep", || {
        let tasks: Vec<_> = std::fs::read_dir("/proc/self/task").unwrap().collect();
        tasks.len() > 1 && tasks.into_iter().all(sleeps)
    });
}

fn run_short_of_memory() {
    let context = open();
    others_sleep();
    let attr = context.query_device().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit::new(16)).unwrap();
    let cap = QpCap {
        max_send_wr: attr.max_qp_wr,
        max_recv_wr: attr.max_qp_wr,
        max_send_sge: attr.max_sge,
        max_recv_sge: attr.max_sge,
        max_inline_data: 512,
    };
    let init = QpInit { cap, ..QpInit::new(QpType::RC, &cq) };
    let largest_cq = CqInit::new(attr.max_cqe);
    // With each amount, a different allocation of a queue fails.
    for spare in (16 << 10..48 << 20).step_by(4 << 20) {
        refused_for_want_of_memory(spare, || context.create_cq(&largest_cq));
        refused_for_want_of_memory(spare, || pd.create_qp(&init));
    }
    pd.create_qp(&init).unwrap();
}

/// Creates objects in a process with only `spare` bytes of memory left, until creating one fails.
/// Returns the error.
fn create_until_refused<T>(spare: usize, mut create: impl FnMut() -> Result<T, Error>) -> Error {
    let mut objects = Vec::with_capacity(MOST);
    let mut taken = Vec::<Vec<u8>>::with_capacity(MOST);
    let kept = Vec::<u8>::with_capacity(spare);
    let (soft, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let page = sysconf(SysconfVar::PAGE_SIZE).unwrap().unwrap() as u64;
    setrlimit(Resource::RLIMIT_AS, pages * page, hard).unwrap();
    // Uses up the memory that the allocator has kept from earlier objects, except small pieces for
    // errors.
    let mut size = 1 << 22;
    while size >= 64 && taken.len() < taken.capacity() {
        let mut piece = Vec::new();
        match piece.try_reserve_exact(size) {
            Ok(()) => taken.push(piece),
            Err(_) => size /= 2,
        }
    }
    drop(kept);
    let refused = loop {
        match create() {
            Ok(object) if objects.len() < objects.capacity() => objects.push(object),
            Ok(_) => panic!("the limit has no effect"),
            Err(error) => break error,
        }
    };
    // Destruction works even when creation fails.
    objects.clear();
    taken.clear();
    setrlimit(Resource::RLIMIT_AS, soft, hard).unwrap();
    refused
}

/// A number of objects that do not fit into memory.
const MOST: usize = 100_000;

#[test]
fn calls_that_create_are_enomem_where_memory_is_short_and_work_again_later() {
    const NAME: &str = "calls_that_create_are_enomem_where_memory_is_short_and_work_again_later";
    if std::env::var_os(SHORT).is_some() {
        return create_of_each_kind();
    }
    in_a_process(NAME, SHORT);
}

fn create_of_each_kind() {
    // With each amount, a different allocation fails.
    for spare in [16, 60, 70, 80, 100, 150, 300, 1000, 5000].map(|kib| kib << 10) {
        let context = open();
        others_sleep();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(&CqInit::new(16)).unwrap();
        let srq = pd.create_srq(&SrqInit::new(16)).unwrap();
        let mut number = 0;
        // Queue depths that need from one page to several hundred pages.
        let mut depth = || {
            number += 1;
            [16, 200, 1000, 4000][number % 4]
        };
        // A device takes megabytes; opening it again takes only a few hundred bytes.
        let opened = create_until_refused(spare, || verbs::soft::auto()?.open_as::<Soft>());
        assert_eq!(opened.errno, Errno::NOMEM, "{opened}");
        let device = verbs::soft::auto().unwrap();
        let mut opens = 0;
        create_until_refused(spare, || {
            opens += 1;
            // With more memory, descriptors run out first.
            let none_left = Error::new("open_device", "", Errno::NOMEM);
            if opens > 2000 { Err(none_left) } else { device.open_as::<Soft>() }
        });
        // With more memory, the limit of protection domains is reached first.
        if spare <= 1 << 20 {
            refused_for_want_of_memory(spare, || context.alloc_pd());
        }
        refused_for_want_of_memory(spare, || context.create_cq(&CqInit::new(depth())));
        refused_for_want_of_memory(spare, || {
            let max_wr = depth();
            pd.create_srq(&SrqInit { max_wr, max_sge: 4, ..SrqInit::new(16) })
        });
        refused_for_want_of_memory(spare, || {
            let (max_send_wr, max_recv_wr) = (depth(), depth());
            let cap =
                QpCap { max_send_wr, max_recv_wr, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };
            pd.create_qp(&QpInit { cap, ..QpInit::new(QpType::RC, &cq) })
        });
        refused_for_want_of_memory(spare, || {
            let init = QpInit { srq: Some((&srq).into()), ..QpInit::new(QpType::RC, &cq) };
            pd.create_qp(&init)
        });
        refused_for_want_of_memory(spare, || pd.alloc_buf(number * 100));
        let memory = map(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
        refused_for_want_of_memory(spare, || register(&pd, memory, LENGTH, LOCAL_WRITE));
        refused_for_want_of_memory(spare, || pd.alloc_mw(MwType::TYPE_2));
        for _ in 0..3 {
            let buf = pd.alloc_buf(100).unwrap();
            let qp = pd.create_qp(&QpInit::new(QpType::RC, &cq)).unwrap();
            drop((buf, qp, open()));
        }
    }
}

#[test]
fn a_queue_leaves_memory_for_the_rest_of_the_call() {
    const NAME: &str = "a_queue_leaves_memory_for_the_rest_of_the_call";
    if std::env::var_os(SHORT).is_none() {
        return in_a_process(NAME, SHORT);
    }
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit::new(16)).unwrap();
    let cap = QpCap { max_send_wr: 300, max_recv_wr: 300, ..QpCap::USUAL };
    let init = QpInit { cap, ..QpInit::new(QpType::RC, &cq) };
    for spare in (64 << 10..220 << 10).step_by(256) {
        refused_for_want_of_memory(spare, || context.create_cq(&CqInit::new(1000)));
        refused_for_want_of_memory(spare, || pd.create_srq(&SrqInit { max_sge: 4, ..SrqInit::new(1000) }));
        refused_for_want_of_memory(spare, || pd.create_qp(&init));
    }
}

/// Creates objects like [`create_until_refused`], and checks that the error states the size of the
/// failed allocation.
fn refused_for_want_of_memory<T>(spare: usize, create: impl FnMut() -> Result<T, Error>) {
    let error = create_until_refused(spare, create);
    assert_eq!(error.errno, Errno::NOMEM, "{error}");
    assert!(matches!(error.cause, Cause::Allocation { .. }), "{error}, with {spare} bytes");
}
