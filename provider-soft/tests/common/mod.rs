//! Test helpers: devices on loopback, connected queue pairs, memory, and waiting with a deadline.
//!
//! # Safety
//! The tests post raw requests, because the safe interface does not allow many of the tested cases.
//! The requests name only memory of an [`Arena`], which is never freed, has no references and is
//! accessed by atomic bytes. A test reads bytes only after a later packet from the device.
//! ThreadSanitizer does not see this order, so it would report plain reads as races.
#![allow(unsafe_code)]
// Each test program uses only some of these items.
#![allow(dead_code, unreachable_pub)]

pub mod attack;

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;
use std::net::IpAddr;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use provider_soft::{Soft, SoftDevice};
use verbs::state::{CanPostRecv, CanPostSend, Reset, Rts};
use verbs::{
    AccessFlags, AhAttr, CompChannel, Context, Cq, CqInit, Gid, GlobalRoute, InitAttr, Mr, Mtu,
    NamedProvider, Pd, PostError, Qp, QpCap, QpInit, QpType, RecvWr, RtrAttr, RtsAttr, SendFlags, SendOp,
    SendWr, Sge, Wc, WcStatus,
};

/// A time limit for one step, far longer than any step takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(10);

pub const PORT: u8 = 1;
pub const QKEY: u32 = 0x1234;
pub const REMOTE: AccessFlags =
    AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_READ).union(AccessFlags::REMOTE_ATOMIC);

/// Opens a new device. Its packets travel through memory if the test program's `SHARED_MEMORY` is
/// true.
pub fn open() -> Context<Soft> {
    let device = SoftDevice::builder().shared_memory(crate::SHARED_MEMORY).auto().unwrap();
    Context::from_raw(Soft::open(&device).unwrap())
}

/// Returns a loopback address that no other process uses. Each test of this process has its own
/// `number`.
pub fn own_address(number: u8) -> IpAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    [127, 100 + number, high, low].into()
}

pub fn gid(context: &Context<Soft>) -> Gid {
    context.find_gid(PORT).unwrap().gid
}

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub qp_type: QpType,
    pub cap: QpCap,
    pub cqe: u32,
    pub sq_sig_all: bool,
    pub events: bool,
    pub path_mtu: Mtu,
    pub rts: RtsAttr,
    pub min_rnr_timer: u8,
    pub access: AccessFlags,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            qp_type: QpType::RC,
            cap: QpCap {
                max_send_wr: 32,
                max_recv_wr: 32,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            cqe: 128,
            sq_sig_all: false,
            events: false,
            path_mtu: Mtu::MTU_1024,
            rts: RtsAttr { timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 4, ..RtsAttr::default() },
            min_rnr_timer: 1,
            access: REMOTE,
        }
    }
}

impl Shape {
    pub fn for_type(qp_type: QpType) -> Self {
        Self { qp_type, ..Self::default() }
    }
}

/// One end of a connection, and the objects on which it depends.
#[derive(Debug)]
pub struct End<S: verbs::state::State = Rts> {
    pub qp: Qp<S, Soft>,
    pub cq: Cq<Soft>,
    pub channel: Option<CompChannel>,
    pub pd: Pd<Soft>,
    pub context: Context<Soft>,
}

impl End<Reset> {
    pub fn new(context: &Context<Soft>, shape: &Shape) -> Self {
        let pd = context.alloc_pd().unwrap();
        let channel = shape.events.then(|| context.create_comp_channel().unwrap());
        let cq = context.create_cq(&CqInit { channel: channel.as_ref(), ..CqInit::new(shape.cqe) }).unwrap();
        let Shape { qp_type, cap, sq_sig_all, .. } = *shape;
        let qp = pd.create_qp(&QpInit { cap, sq_sig_all, ..QpInit::new(qp_type, &cq) }).unwrap();
        Self { qp, cq, channel, pd, context: context.clone() }
    }

    pub fn connect(self, shape: &Shape, dgid: Gid, remote: Remote) -> End {
        let Self { qp, cq, channel, pd, context } = self;
        End { qp: connect(qp, shape, dgid, remote), cq, channel, pd, context }
    }
}

/// The queue pair number and the first packet sequence number of a connection's other end.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    pub qp_num: u32,
    pub psn: u32,
}

/// A placeholder for the peer of datagram queue pairs, which are not connected.
pub const NO_PEER: Remote = Remote { qp_num: 0, psn: 0 };

impl Remote {
    pub fn from_qp<S: verbs::state::State>(qp: &Qp<S, Soft>) -> Self {
        Self { qp_num: qp.qp_num(), psn: qp.psn() }
    }
}

pub fn connect(qp: Qp<Reset, Soft>, shape: &Shape, dgid: Gid, remote: Remote) -> Qp<Rts, Soft> {
    let init = InitAttr { port_num: PORT, access: shape.access, qkey: QKEY, ..InitAttr::default() };
    let rtr = RtrAttr {
        path_mtu: shape.path_mtu,
        max_dest_rd_atomic: 4,
        min_rnr_timer: shape.min_rnr_timer,
        ..RtrAttr::new(path(dgid), remote.qp_num, remote.psn)
    };
    qp.to_init(&init).unwrap().to_rtr(&rtr).unwrap().to_rts(&shape.rts).unwrap()
}

pub fn path(dgid: Gid) -> AhAttr {
    let grh = GlobalRoute { dgid, sgid_index: 0, hop_limit: 64, ..GlobalRoute::default() };
    AhAttr { grh: Some(grh), port_num: PORT, ..AhAttr::default() }
}

/// Creates two connected ends, on one device if `a` and `b` are the same context.
pub fn pair_on(a: &Context<Soft>, b: &Context<Soft>, shape: &Shape) -> (End, End) {
    let (left, right) = (End::new(a, shape), End::new(b, shape));
    let (to_left, to_right) = (Remote::from_qp(&left.qp), Remote::from_qp(&right.qp));
    (left.connect(shape, gid(b), to_right), right.connect(shape, gid(a), to_left))
}

/// Creates two connected ends on two devices.
pub fn pair(shape: &Shape) -> (End, End) {
    pair_on(&open(), &open(), shape)
}

/// Registered memory that is never freed. No Rust reference to it exists.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
    pub mr: Mr<Soft>,
}

// SAFETY: the pointer blocked the auto impl; its referent is leaked and accessed by atomics.
unsafe impl Send for Arena {}

impl Arena {
    pub fn new(pd: &Pd<Soft>, len: usize) -> Self {
        Self::with_access(pd, len, AccessFlags::LOCAL_WRITE | REMOTE)
    }

    pub fn with_access(pd: &Pd<Soft>, len: usize, access: AccessFlags) -> Self {
        let base = NonNull::from(Box::leak(vec![0_u64; len.div_ceil(8).max(1)].into_boxed_slice())).cast();
        // SAFETY: leaked, so it stays mapped; the original reference is gone.
        let mr = unsafe { pd.reg_mr(base.as_ptr(), len, access) }.unwrap();
        Self { base, len, mr }
    }

    pub fn addr(&self) -> u64 {
        self.mr.addr()
    }

    pub fn rkey(&self) -> u32 {
        self.mr.rkey()
    }

    pub fn sge(&self, range: Range<usize>) -> Sge {
        self.mr.sge(range)
    }

    pub fn read(&self, range: Range<usize>) -> Vec<u8> {
        assert!(range.end <= self.len && range.start <= range.end);
        // SAFETY: the byte is within the arena.
        range.map(|at| unsafe { AtomicU8::from_ptr(self.base.add(at).as_ptr()) }.load(Relaxed)).collect()
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: the byte is within the arena.
            unsafe { AtomicU8::from_ptr(self.base.add(at + i).as_ptr()) }.store(*byte, Relaxed);
        }
    }

    pub fn number(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.read(at..at + 8).try_into().unwrap())
    }
}

pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + seed * 31 + i / 251) as u8).collect()
}

pub fn post_send<S: CanPostSend>(qp: &mut Qp<S, Soft>, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
    // SAFETY: the elements name an arena, or no memory.
    unsafe { qp.post_send(wrs) }
}

pub fn post_recv<S: CanPostRecv>(qp: &mut Qp<S, Soft>, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
    // SAFETY: as above.
    unsafe { qp.post_recv(wrs) }
}

pub fn send(qp: &mut Qp<Rts, Soft>, wr_id: u64, op: SendOp<'_>, sge: &[Sge]) {
    post_send(qp, &[SendWr { wr_id, op, sge, flags: SendFlags::SIGNALED }]).unwrap();
}

pub fn recv(qp: &mut Qp<Rts, Soft>, wr_id: u64, sge: &[Sge]) {
    post_recv(qp, &[RecvWr { wr_id, sge }]).unwrap();
}

/// Polls until there are `count` completions, and returns them.
pub fn wait(cq: &mut Cq<Soft>, count: usize) -> Vec<Wc> {
    let deadline = Instant::now() + PATIENCE;
    let mut wcs = Vec::new();
    while wcs.len() < count {
        let mut completions = cq.poll();
        while wcs.len() < count
            && let Some(mut completion) = completions.next()
        {
            wcs.push(completion.to_wc());
        }
        drop(completions);
        assert!(Instant::now() < deadline, "{} of {count} completions: {wcs:?}", wcs.len());
        std::thread::yield_now();
    }
    wcs
}

pub fn wait_status(cq: &mut Cq<Soft>, wr_id: u64, status: WcStatus) -> Wc {
    let wc = wait(cq, 1)[0];
    assert_eq!((wc.wr_id, wc.status), (wr_id, status), "{wc:?}");
    wc
}

pub fn wait_ok(cq: &mut Cq<Soft>, wr_id: u64) -> Wc {
    wait_status(cq, wr_id, WcStatus::SUCCESS)
}

pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

/// Waits for a child of `fork(2)` to end. Kills the child after the deadline.
pub fn wait_for_child(child: Pid) -> WaitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap();
        if status != WaitStatus::StillAlive {
            return status;
        }
        if Instant::now() > deadline {
            // Fails if the child has just ended.
            let _ = kill(child, Signal::SIGKILL);
            let _ = waitpid(child, None);
            panic!("the child did not end within {PATIENCE:?}");
        }
        std::thread::yield_now();
    }
}

/// A child process that is killed on drop, so that it also ends when a test fails.
#[derive(Debug)]
pub struct Process(pub Child);

impl Process {
    /// Waits until the process ends.
    pub fn finish(mut self) -> ExitStatus {
        let mut ended = None;
        eventually("the process ends", || {
            ended = self.0.try_wait().unwrap();
            ended.is_some()
        });
        ended.expect("it has ended")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail if the process has already been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
