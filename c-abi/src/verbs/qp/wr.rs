//! `ibv_wr_...`: work requests that are built by calls and posted together or not at all.
//!
//! `ibv_wr_start` acquires the send queue's lock. One call starts a request and sets its operation;
//! other calls set its memory and its destination. The call that completes the request puts it into
//! the queue. The first error ends the batch: `ibv_wr_complete` then removes all its requests and
//! returns the error.
//!
//! # Safety
//! See the crate documentation. C programs call these functions between `ibv_wr_start` and
//! `ibv_wr_complete` or `ibv_wr_abort`, in the thread that holds the lock.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::marker::PhantomData;
use core::slice;
use core::sync::atomic::Ordering;

use provider_mlx5::Mlx5;
use verbs_core::Errno;
use verbs_core::provider::{FastPath, Provider, SendQueue as _};
use verbs_core::types::{
    Av, FlushPlacement, FlushSelectivity, MwType, PostReason, SendFlags, SendOp, SendWr, Sge, UdAddr,
};

use crate::abi::c::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use crate::handle::lock::Attempt;
use crate::verbs::ah::AhObject;
use crate::verbs::qp::batch::{Batch, Memory, Op, Request, State};
use crate::verbs::qp::object::{Addressing, Qp, QpObject};
use crate::verbs::qp::post::{Call, bind_info, cut_for_atomic, errno_of, send_flags};
use crate::verbs::qp::refused;
use crate::verbs::receives::{refuse, refuse_with, sges};

/// Fills in a queue pair's function pointers.
pub(crate) fn fill<P: Provider>(c: &mut ibv_qp_ex, addressing: Addressing) {
    c.wr_atomic_cmp_swp = Some(atomic_cmp_swp::<P>);
    c.wr_atomic_fetch_add = Some(atomic_fetch_add::<P>);
    c.wr_bind_mw = Some(bind_mw::<P>);
    c.wr_local_inv = Some(local_inv::<P>);
    c.wr_rdma_read = Some(rdma_read::<P>);
    c.wr_rdma_write = Some(rdma_write::<P>);
    c.wr_rdma_write_imm = Some(rdma_write_imm::<P>);
    c.wr_send = Some(send::<P>);
    c.wr_send_imm = Some(send_imm::<P>);
    c.wr_send_inv = Some(send_inv::<P>);
    c.wr_send_tso = Some(send_tso::<P>);
    c.wr_set_ud_addr = Some(set_ud_addr::<P>);
    c.wr_set_xrc_srqn = Some(set_xrc_srqn::<P>);
    c.wr_set_inline_data_list = Some(set_inline_data_list::<P>);
    c.wr_set_sge_list = Some(set_sge_list::<P>);
    // If requests need no address, setting their memory completes them.
    if addressing == Addressing::Connected {
        c.wr_set_inline_data = Some(put_inline_data::<P>);
        c.wr_set_sge = Some(put_sge::<P>);
    } else {
        c.wr_set_inline_data = Some(set_inline_data::<P>);
        c.wr_set_sge = Some(set_sge::<P>);
    }
    c.wr_start = Some(start::<P>);
    c.wr_complete = Some(complete::<P>);
    c.wr_abort = Some(abort::<P>);
    c.wr_atomic_write = Some(atomic_write::<P>);
    c.wr_flush = Some(flush::<P>);
}

/// A queue pair whose batch this thread is building. The struct is a single pointer, so out-of-line
/// calls keep it in a register.
#[repr(transparent)]
struct Building<'a, P: Provider> {
    c: *mut ibv_qp_ex,
    _qp: PhantomData<&'a Qp<P>>,
}

// Not derived, because a derived impl would require `P: Clone`.
impl<P: Provider> Clone for Building<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Provider> Copy for Building<'_, P> {}

/// Appends a request, built by the program in the device's format, to a ConnectX send queue.
///
/// # Safety
/// `qp` must be a live queue pair of the provider, and this thread must hold its lock unless the
/// batch was rejected. `entry` must have as many 16-byte units as its control segment states, and
/// request only operations that the device may execute.
pub(crate) unsafe fn put_raw(qp: *mut ibv_qp_ex, entry: *const c_void) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut building = building::<Mlx5>(qp);
        if building.qp().is_refused.load(Ordering::Relaxed) || !building.put_waiting() {
            return;
        }
        // The low 6 bits of the eighth byte are the size.
        let units = usize::from(entry.cast::<u8>().add(7).read() & 0x3f);
        let entry = slice::from_raw_parts(entry.cast::<[u8; 16]>(), units.max(1));
        match building.qp().sq.get().post_raw((*qp).wr_id, entry) {
            Ok(()) => building.batch().request.state = State::Queued,
            Err(reason) => building.refuse(reason),
        }
    }
}

/// Returns the batch of a queue pair.
///
/// # Safety
/// `qp` must be a live queue pair of the provider, and this thread must hold its lock.
#[inline(always)]
const unsafe fn building<'a, P: Provider>(qp: *mut ibv_qp_ex) -> Building<'a, P> {
    Building { c: qp, _qp: PhantomData }
}

impl<'a, P: Provider> Building<'a, P> {
    #[inline(always)]
    fn qp(self) -> &'a Qp<P> {
        // SAFETY: the caller of `building` promised a live queue pair.
        unsafe { QpObject::<P>::inner(self.c) }
    }

    /// Returns the batch. Each function here drops the reference before it calls another function.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    fn batch(&mut self) -> &mut Batch {
        // SAFETY: this thread holds the lock, which guards the batch, and has no other reference.
        unsafe { &mut *self.qp().batch.get() }
    }

    /// Starts an empty batch.
    #[inline(always)]
    fn start(mut self) {
        self.batch().request.state = State::None;
    }

    /// Posts the requests in the queue (at least one) and releases the lock.
    ///
    /// # Safety
    /// `start` must have acquired the lock, and the batch must not be used afterwards.
    #[inline(always)]
    unsafe fn complete(self) -> c_int {
        let sq = &self.qp().sq;
        // SAFETY: this thread holds the lock until `unlock`.
        let result = unsafe {
            let result = sq.get().ring();
            sq.unlock();
            result
        };
        match result {
            Ok(()) => 0,
            Err(errno) => doorbell_failed(errno),
        }
    }

    /// Starts a common request after the previous one. Operands without a meaning for the operation
    /// are ignored. The compiler knows the operation and stores only the operands that it has.
    #[inline(always)]
    fn begin_common(mut self, state: State, remote_addr: u64, rkey: u32, imm_data: u32) {
        if !self.batch().request.state.is_free() {
            return self.begin_behind(state, remote_addr, rkey, imm_data);
        }
        // SAFETY: the queue pair is live, and the program sets these fields before the call.
        let (wr_id, flags) = unsafe { ((*self.c).wr_id, (*self.c).wr_flags) };
        let request = &mut self.batch().request;
        (request.state, request.wr_id, request.flags) = (state, wr_id, flags);
        if state.is_remote() {
            (request.remote_addr, request.rkey) = (remote_addr, rkey);
        }
        if state.has_imm_data() {
            request.imm_data = imm_data;
        }
    }

    /// Same as [`begin_common`](Self::begin_common), after a request that is not in the queue yet,
    /// or in a batch that has ended. The function has the C ABI and therefore does not unwind, so a
    /// caller can end with a jump to it.
    #[inline(never)]
    extern "C" fn begin_behind(mut self, state: State, remote_addr: u64, rkey: u32, imm_data: u32) {
        if self.put_waiting() {
            self.begin_common(state, remote_addr, rkey, imm_data);
        }
    }

    /// Starts a request after the previous one.
    fn begin(mut self, op: Op) {
        if self.put_waiting() {
            self.begin_common(State::Other, 0, 0, 0);
            self.batch().request.op = op;
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse(mut self, reason: PostReason) {
        let batch = self.batch();
        batch.refused.get_or_insert(reason);
        batch.request.state = State::Refused;
    }

    /// Returns whether a request is waiting to be completed. If not, the batch fails.
    fn is_waiting(mut self) -> bool {
        let state = self.batch().request.state;
        if state.is_free() {
            self.refuse(UNADDRESSED);
        }
        state.is_waiting()
    }

    /// Returns whether the request's address is set.
    fn is_addressed(mut self) -> bool {
        match self.qp().addressing {
            Addressing::Connected => true,
            Addressing::Datagram => self.batch().request.to.is_some(),
            Addressing::Xrc => self.batch().request.remote_srqn.is_some(),
        }
    }

    /// Puts the request into the queue, unless it is there already. Returns whether another request
    /// may start.
    fn put_waiting(&mut self) -> bool {
        if self.batch().request.state.is_waiting() {
            self.put_kept();
        }
        self.batch().request.state != State::Refused
    }

    /// Puts the request, with the list or inline data stored for it, into the queue.
    fn put_kept(mut self) {
        match self.batch().request.memory {
            Memory::Unset => self.put(&[], SendFlags::empty()),
            Memory::List => {
                let list = core::mem::take(&mut self.batch().list);
                self.put(&list, SendFlags::empty());
                self.batch().list = list;
            }
            Memory::Inline => {
                let bytes = core::mem::take(&mut self.batch().bytes);
                self.put(&[inline_element(bytes.as_ptr(), bytes.len() as u32)], SendFlags::INLINE);
                self.batch().bytes = bytes;
            }
        }
    }

    /// Puts the request into the queue.
    fn put(mut self, list: &[Sge], flags: SendFlags) {
        let request = &mut self.batch().request;
        request.memory = Memory::Unset;
        let (to, remote_srqn) = (request.to.take(), request.remote_srqn.take());
        let &mut Request { state, op, remote_addr, rkey, imm_data, .. } = request;
        let (bind, cut);
        let mut list = list;
        let op = match state {
            State::Refused => return,
            State::None | State::Queued => return self.refuse(UNADDRESSED),
            State::Send => SendOp::Send,
            State::SendWithImm => SendOp::SendWithImm { imm_data },
            State::RdmaWrite => SendOp::RdmaWrite { remote_addr, rkey },
            State::RdmaWriteWithImm => SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data },
            State::RdmaRead => SendOp::RdmaRead { remote_addr, rkey },
            State::Other => match op {
                Op::None => return self.refuse(UNADDRESSED),
                Op::Any(op @ (SendOp::AtomicCmpAndSwp { .. } | SendOp::AtomicFetchAndAdd { .. })) => {
                    cut = cut_for_atomic(list);
                    list = &cut;
                    op
                }
                Op::Any(op) => op,
                Op::Bind { mw_type, rkey, new_rkey, bind_info } => {
                    bind = bind_info;
                    SendOp::BindMw { mw_type, rkey, new_rkey, bind_info: &bind }
                }
            },
        };
        match self.qp().addressing {
            Addressing::Connected => self.post(op, list, flags),
            Addressing::Datagram => {
                let Some((av, remote_qpn, remote_qkey)) = to else { return self.refuse(UNADDRESSED) };
                // SAFETY: the program keeps the address handle until `ibv_wr_complete`.
                let to = UdAddr { av: unsafe { &*av }, remote_qpn, remote_qkey };
                let op = match op {
                    SendOp::Send => SendOp::UdSend { to },
                    SendOp::SendWithImm { imm_data } => SendOp::UdSendWithImm { to, imm_data },
                    other => other,
                };
                self.post(op, list, flags);
            }
            // These operations name no shared receive queue.
            Addressing::Xrc if matches!(op, SendOp::LocalInv { .. } | SendOp::BindMw { .. }) => {
                self.post(op, list, flags);
            }
            Addressing::Xrc => {
                let Some(remote_srqn) = remote_srqn else { return self.refuse(UNADDRESSED) };
                self.post(SendOp::Xrc { remote_srqn, op: &op }, list, flags);
            }
        }
    }

    /// Puts the request, as the operation `op`, into the queue.
    #[inline(always)]
    fn post(mut self, op: SendOp<'_>, sge: &[Sge], flags: SendFlags) {
        let Request { wr_id, flags: own, .. } = self.batch().request;
        let flags = send_flags(own).difference(SendFlags::INLINE).union(flags);
        // SAFETY: this thread holds the lock, and the program keeps the memory as C requires.
        match unsafe { self.qp().sq.get().post_one(&SendWr { wr_id, op, sge, flags }) } {
            Ok(()) => self.batch().request.state = State::Queued,
            Err(reason) => self.refuse(reason),
        }
    }

    /// Puts the request, as the operation `op`, into the queue on the queue's fast path. Returns
    /// whether the request was queued.
    #[inline(always)]
    fn post_fast(mut self, op: SendOp<'_>, sge: Sge) -> bool {
        let Request { wr_id, flags, .. } = self.batch().request;
        let flags = SendFlags::from_bits_retain(flags);
        if !FAST_FLAGS.contains(flags) {
            return false;
        }
        let wr = SendWr { wr_id, op, sge: &[sge], flags };
        // SAFETY: this thread holds the lock, and the program keeps the memory as C requires.
        let is_put = unsafe { self.qp().sq.get().post_fast(&wr, FastPath::Inlined) };
        if is_put {
            self.batch().request.state = State::Queued;
        }
        is_put
    }

    /// Puts a common request of a connected queue pair into the queue on its fast path, if the
    /// operation of the request is `state`. Returns whether the request was queued.
    #[inline(always)]
    fn put_fast(mut self, state: State, sge: Sge) -> bool {
        let request = &self.batch().request;
        if request.state != state {
            return false;
        }
        let &Request { remote_addr, rkey, imm_data, .. } = request;
        let op = match state {
            State::Send => SendOp::Send,
            State::SendWithImm => SendOp::SendWithImm { imm_data },
            State::RdmaWrite => SendOp::RdmaWrite { remote_addr, rkey },
            State::RdmaWriteWithImm => SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data },
            State::RdmaRead => SendOp::RdmaRead { remote_addr, rkey },
            State::None | State::Queued | State::Refused | State::Other => return false,
        };
        self.post_fast(op, sge)
    }

    /// Puts a common request of a connected queue pair into the queue. Returns false for any other
    /// request.
    ///
    /// Each operation calls [`post_one`](SendQueue::post_one) from a separate call site, where the
    /// compiler knows the operation. The caller knows the length of the list.
    #[inline(always)]
    fn put_common(mut self, list: &[Sge], flags: SendFlags) -> bool {
        let request = &self.batch().request;
        let remote = || (request.remote_addr, request.rkey);
        match request.state {
            State::Send => self.post(SendOp::Send, list, flags),
            State::RdmaWrite => {
                let (remote_addr, rkey) = remote();
                self.post(SendOp::RdmaWrite { remote_addr, rkey }, list, flags);
            }
            State::RdmaRead => {
                let (remote_addr, rkey) = remote();
                self.post(SendOp::RdmaRead { remote_addr, rkey }, list, flags);
            }
            State::SendWithImm => {
                let imm_data = request.imm_data;
                self.post(SendOp::SendWithImm { imm_data }, list, flags);
            }
            State::RdmaWriteWithImm => {
                let ((remote_addr, rkey), imm_data) = (remote(), request.imm_data);
                self.post(SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data }, list, flags);
            }
            State::None | State::Queued | State::Refused | State::Other => return false,
        }
        true
    }

    /// Sets the scatter/gather elements of the request. Puts the request into the queue if its
    /// address is set too.
    fn set_list(mut self, list: &[Sge]) {
        if !self.is_waiting() {
            return;
        }
        if self.is_addressed() {
            return self.put(list, SendFlags::empty());
        }
        let batch = self.batch();
        batch.list.clear();
        match keep(&mut batch.list, list) {
            Ok(()) => batch.request.memory = Memory::List,
            Err(reason) => self.refuse(reason),
        }
    }

    /// Puts the request, whose address was just set, into the queue if its memory is set too.
    fn addressed(mut self) {
        if self.batch().request.memory != Memory::Unset {
            self.put_kept();
        }
    }

    /// Returns the length of inline data; `None` for a length that cannot fit.
    #[inline(always)]
    fn inline_len(self, length: usize) -> Option<u32> {
        let max = self.qp().max_inline_data;
        if length > max as usize {
            self.refuse(PostReason::InlineTooLong { given: length as u64, max });
            return None;
        }
        Some(length as u32)
    }
}

/// The reason for rejecting a request without an operation or an address.
const UNADDRESSED: PostReason = PostReason::Doorbell(Errno::INVAL);

/// The flags that every operation accepts, with the same meaning for every kind of memory.
const FAST_FLAGS: SendFlags = SendFlags::FENCE.union(SendFlags::SIGNALED).union(SendFlags::SOLICITED);

fn inline_element(addr: *const u8, length: u32) -> Sge {
    Sge { addr: addr as u64, length, lkey: 0 }
}

unsafe extern "C" fn start<P: Provider>(qp: *mut ibv_qp_ex) {
    // SAFETY: the queue pair is live. `complete` or `abort` releases the lock.
    unsafe {
        let attempt = QpObject::<P>::inner(qp).sq.attempt();
        if !attempt.has_lock() {
            return start_waiting::<P>(qp, attempt);
        }
        building::<P>(qp).start();
    }
}

/// Same as [`start`], called if another thread holds the lock.
#[cold]
#[inline(never)]
unsafe extern "C" fn start_waiting<P: Provider>(qp: *mut ibv_qp_ex, attempt: Attempt) {
    // SAFETY: as in `start`.
    unsafe {
        let building = building::<P>(qp);
        let sq = &QpObject::<P>::inner(qp).sq;
        if sq.wait(attempt) {
            building.start();
        } else {
            // The batch is inaccessible: a thread of the parent was changing it at the fork, or the
            // thread that forked is still changing it. From here on, all calls are rejected.
            building.qp().is_refused.store(true, Ordering::Relaxed);
            refused::fill(qp);
        }
    }
}

unsafe extern "C" fn complete<P: Provider>(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: `start` acquired the lock.
    unsafe {
        let mut building = building::<P>(qp);
        if building.batch().request.state == State::Queued {
            return building.complete();
        }
        complete_waiting::<P>(qp)
    }
}

/// Same as [`complete`], for a request not yet in the queue, an empty batch, or a batch that has
/// ended.
#[inline(never)]
unsafe extern "C" fn complete_waiting<P: Provider>(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: `start` acquired the lock, which is released after the last use of the queue.
    unsafe {
        let mut building = building::<P>(qp);
        let may_go_on = building.put_waiting();
        let sq = &building.qp().sq;
        match building.batch().request.state {
            State::Queued => return building.complete(),
            _ if may_go_on => {
                sq.unlock();
                return 0;
            }
            _ => {}
        }
        let reason = building.batch().end().unwrap_or(UNADDRESSED);
        // Every batch ends before the next one starts, so all of these requests belong to this
        // batch.
        sq.get().rollback(usize::MAX);
        sq.unlock();
        refuse_with("wr_complete", reason, errno_of::<P>(Call::WrComplete, reason))
    }
}

/// Returns the errno of a failed doorbell. The requests are in the queue.
#[cold]
#[inline(never)]
fn doorbell_failed(errno: Errno) -> c_int {
    refuse("wr_complete", PostReason::Doorbell(errno))
}

unsafe extern "C" fn abort<P: Provider>(qp: *mut ibv_qp_ex) {
    // SAFETY: `start` acquired the lock, which is released after the last use of the queue.
    unsafe {
        let mut building = building::<P>(qp);
        let sq = &building.qp().sq;
        building.batch().end();
        sq.get().rollback(usize::MAX);
        sq.unlock();
    }
}

/// Defines the functions that start a common request: the state, and the operands `remote_addr`,
/// `rkey` and immediate data.
macro_rules! common {
    ($($name:ident($($arg:ident: $type:ty),*) => $state:ident, $remote_addr:expr, $rkey:expr, $imm:expr;)*) => {
        $(unsafe extern "C" fn $name<P: Provider>(qp: *mut ibv_qp_ex, $($arg: $type),*) {
            // SAFETY: the program calls this between `ibv_wr_start` and the end of the batch.
            unsafe { building::<P>(qp) }.begin_common(State::$state, $remote_addr, $rkey, $imm);
        })*
    };
}

common! {
    send() => Send, 0, 0, 0;
    send_imm(imm_data: u32) => SendWithImm, 0, 0, u32::from_be(imm_data);
    rdma_read(rkey: u32, remote_addr: u64) => RdmaRead, remote_addr, rkey, 0;
    rdma_write(rkey: u32, remote_addr: u64) => RdmaWrite, remote_addr, rkey, 0;
    rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: u32) =>
        RdmaWriteWithImm, remote_addr, rkey, u32::from_be(imm_data);
}

/// Defines the functions that start a request of another kind.
macro_rules! others {
    ($($name:ident($($arg:ident: $type:ty),*) => $op:expr;)*) => {
        $(unsafe extern "C" fn $name<P: Provider>(qp: *mut ibv_qp_ex, $($arg: $type),*) {
            // SAFETY: the program calls this between `ibv_wr_start` and the end of the batch.
            unsafe { building::<P>(qp) }.begin(Op::Any($op));
        })*
    };
}

others! {
    atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64) =>
        SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare, swap };
    atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) =>
        SendOp::AtomicFetchAndAdd { remote_addr, rkey, add };
    local_inv(invalidate_rkey: u32) => SendOp::LocalInv { invalidate_rkey };
    send_inv(invalidate_rkey: u32) => SendOp::SendWithInv { invalidate_rkey };
}

unsafe extern "C" fn send_tso<P: Provider>(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16) {
    // SAFETY: the program keeps the header until `ibv_wr_complete`.
    unsafe {
        let hdr: &'static [u8] = match hdr_sz {
            0 => &[],
            len => slice::from_raw_parts(hdr.cast(), len.into()),
        };
        building::<P>(qp).begin(Op::Any(SendOp::Tso { hdr, mss }));
    }
}

unsafe extern "C" fn atomic_write<P: Provider>(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    atomic_wr: *const c_void,
) {
    // SAFETY: the program passes 8 bytes, at any address.
    unsafe {
        let data = atomic_wr.cast::<[u8; 8]>().read_unaligned();
        building::<P>(qp).begin(Op::Any(SendOp::AtomicWrite { remote_addr, rkey, data }));
    }
}

unsafe extern "C" fn flush<P: Provider>(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    len: usize,
    placement: u8,
    selectivity: u8,
) {
    // SAFETY: the program calls this between `ibv_wr_start` and the end of the batch.
    let mut building = unsafe { building::<P>(qp) };
    let placement = FlushPlacement::from_bits_retain(placement);
    let selectivity = FlushSelectivity(selectivity);
    let Ok(length) = u32::try_from(len) else {
        building.put_waiting();
        return building.refuse(PostReason::MessageTooLong { given: len as u64 });
    };
    building.begin(Op::Any(SendOp::Flush { remote_addr, rkey, length, placement, selectivity }));
}

unsafe extern "C" fn bind_mw<P: Provider>(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: the program passes a live window and the description of a part of a live region.
    unsafe {
        let mut building = building::<P>(qp);
        if mw.is_null() || info.is_null() {
            building.put_waiting();
            return building.refuse(UNADDRESSED);
        }
        let mw_type = MwType((*mw).type_ as u8);
        let op = Op::Bind { mw_type, rkey: (*mw).rkey, new_rkey: rkey, bind_info: bind_info(&*info) };
        building.begin(op);
    }
}

unsafe extern "C" fn set_ud_addr<P: Provider>(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: the program passes a live address handle, and keeps it until `ibv_wr_complete`.
    unsafe {
        let mut building = building::<P>(qp);
        if ah.is_null() {
            return building.refuse(UNADDRESSED);
        }
        if !building.is_waiting() {
            return;
        }
        let av: *const Av = &raw const AhObject::<P>::inner(ah).av;
        building.batch().request.to = Some((av, remote_qpn, remote_qkey));
        building.addressed();
    }
}

unsafe extern "C" fn set_xrc_srqn<P: Provider>(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: the program calls this between `ibv_wr_start` and the end of the batch.
    let mut building = unsafe { building::<P>(qp) };
    if building.is_waiting() {
        building.batch().request.remote_srqn = Some(remote_srqn);
        building.addressed();
    }
}

unsafe extern "C" fn set_sge<P: Provider>(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the program calls this between `ibv_wr_start` and the end of the batch.
    unsafe { building::<P>(qp) }.set_list(&[Sge { addr, length, lkey }]);
}

/// Defines [`set_sge`] for a connected queue pair: one function per common operation. Each function
/// puts its request into the queue, or ends with a jump to the next function. The compiler knows
/// each function's operation, so each needs few registers. The most common operations come first.
macro_rules! put_sge {
    ($($(#[$attr:meta])* $name:ident: $state:ident, else $next:ident;)*) => {
        $($(#[$attr])*
        unsafe extern "C" fn $name<P: Provider>(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
            // SAFETY: the program calls this between `ibv_wr_start` and the end of the batch.
            unsafe {
                if !building::<P>(qp).put_fast(State::$state, Sge { addr, length, lkey }) {
                    $next::<P>(qp, lkey, addr, length);
                }
            }
        })*
    };
}

put_sge! {
    put_sge: Send, else put_sge_write;
    #[inline(never)]
    put_sge_write: RdmaWrite, else put_sge_read;
    #[inline(never)]
    put_sge_read: RdmaRead, else put_sge_send_imm;
    #[inline(never)]
    put_sge_send_imm: SendWithImm, else put_sge_write_imm;
    #[inline(never)]
    put_sge_write_imm: RdmaWriteWithImm, else put_sge_slowly;
}

/// Same as [`set_sge`], out of line.
#[inline(never)]
unsafe extern "C" fn put_sge_slowly<P: Provider>(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: as in `set_sge`.
    unsafe { set_sge::<P>(qp, lkey, addr, length) }
}

unsafe extern "C" fn set_sge_list<P: Provider>(qp: *mut ibv_qp_ex, num_sge: usize, list: *const ibv_sge) {
    // SAFETY: the program passes a list of that length.
    unsafe {
        let building = building::<P>(qp);
        match c_int::try_from(num_sge) {
            Ok(count) => building.set_list(sges(list, count)),
            Err(_) => building.refuse(PostReason::TooManySge { given: num_sge, max: 0 }),
        }
    }
}

unsafe extern "C" fn set_inline_data<P: Provider>(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the program passes memory of that length.
    unsafe {
        let mut building = building::<P>(qp);
        let Some(len) = building.inline_len(length) else { return };
        if !building.is_waiting() {
            return;
        }
        if building.is_addressed() {
            return building.put(&[inline_element(addr.cast(), len)], SendFlags::INLINE);
        }
        let batch = building.batch();
        batch.bytes.clear();
        let bytes = if len > 0 { slice::from_raw_parts(addr.cast(), length) } else { &[] };
        match keep(&mut batch.bytes, bytes) {
            Ok(()) => batch.request.memory = Memory::Inline,
            Err(reason) => building.refuse(reason),
        }
    }
}

/// Appends values to the values kept for a request.
///
/// # Errors
/// [`PostReason::NoMemory`] if memory is short.
fn keep<T: Copy>(kept: &mut Vec<T>, values: &[T]) -> Result<(), PostReason> {
    let bytes = size_of_val(values) as u64;
    kept.try_reserve(values.len()).map_err(|_| PostReason::NoMemory { bytes })?;
    kept.extend_from_slice(values);
    Ok(())
}

/// Same as [`set_inline_data`], for a connected queue pair.
unsafe extern "C" fn put_inline_data<P: Provider>(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the program passes memory of that length.
    unsafe {
        let building = building::<P>(qp);
        let Some(len) = building.inline_len(length) else { return };
        if !building.put_common(&[inline_element(addr.cast(), len)], SendFlags::INLINE) {
            set_inline_data::<P>(qp, addr, length);
        }
    }
}

unsafe extern "C" fn set_inline_data_list<P: Provider>(
    qp: *mut ibv_qp_ex,
    num_buf: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the program passes a list of that length, whose elements are its memory.
    unsafe {
        let mut building = building::<P>(qp);
        let list = if num_buf == 0 { &[] } else { slice::from_raw_parts(list, num_buf) };
        let total = list.iter().fold(0_usize, |total, piece| total.saturating_add(piece.length));
        if building.inline_len(total).is_none() || !building.is_waiting() {
            return;
        }
        building.batch().bytes.clear();
        for piece in list.iter().filter(|piece| piece.length > 0) {
            let piece = slice::from_raw_parts(piece.addr.cast::<u8>(), piece.length);
            if let Err(reason) = keep(&mut building.batch().bytes, piece) {
                return building.refuse(reason);
            }
        }
        building.batch().request.memory = Memory::Inline;
        if building.is_addressed() {
            building.put_kept();
        }
    }
}
