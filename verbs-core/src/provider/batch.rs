//! [`WrBatch`]: work requests added to a send queue one by one, and posted all together or not at
//! all. The counterpart of `ibv_wr_start`, `ibv_wr_complete` and `ibv_wr_abort`.
//!
//! ```text
//!   start ──► request ──► set_... ──► request ──► set_... ──► complete    one doorbell for all
//!                                                        └──► abort, drop, a panic: none is posted
//! ```
//! A request is complete once its memory is set: [`WrBatch::send`] and its siblings return a
//! [`Wr`], and each method that consumes the `Wr` puts the request into the queue. The device does
//! not read it there before the doorbell.
//!
//! # Safety
//! Requests name memory that the device reads or writes. Five functions are unsafe: two take
//! scatter/gather elements, one gives peers access to memory, one invalidates a key, and one adds a
//! provider-specific request. Their callers must meet the requirements of [`SendQueue::post_send`]
//! for that request. The requirements apply there, not at [`complete`](WrBatch::complete), because
//! a forgotten batch (`mem::forget`) leaves its requests in the queue, and the next doorbell posts
//! them. All other requests hold no address of local memory: inline data is copied during the call.

#![allow(unsafe_code)]

use core::fmt;

use super::{FastPath, SendQueue};
use crate::types::{
    Av, FlushPlacement, FlushSelectivity, MwBindInfo, MwType, PostReason, SendFlags, SendOp, SendWr, Sge,
    UdAddr,
};

/// A raw batch of work requests for a send queue.
///
/// [`wr_id`](Self::wr_id) and [`wr_flags`](Self::wr_flags) apply to requests started after they are
/// set, as in C.
///
/// If the queue rejects a request, the batch has failed: later requests are ignored, and
/// [`complete`](Self::complete) posts nothing and returns the reason.
///
/// A batch that is dropped, even by a panic, posts nothing. A forgotten batch leaves its requests
/// in the queue, and the next doorbell posts them, even if a later batch was dropped in between.
///
/// # References
/// `ibv_wr_post(3)`
#[doc(alias = "ibv_qp_ex")]
#[must_use = "a batch that is dropped posts nothing"]
pub struct WrBatch<'q, Q: SendQueue> {
    /// The `wr_id` for subsequent requests. A `wr_id` with the top bit set is reserved for safe
    /// posting.
    pub wr_id: u64,
    /// The flags for subsequent requests. Only [`Wr::set_inline_data`] sets
    /// [`INLINE`](SendFlags::INLINE).
    pub wr_flags: SendFlags,
    queue: &'q mut Q,
    /// The number of this batch's requests in the queue.
    len: usize,
    refused: Option<WrError>,
}

/// A request of a [`WrBatch`] whose local memory is not set yet. Setting it puts the request into
/// the queue.
#[must_use = "the request joins the batch when its memory is set, or with `no_data`"]
pub struct Wr<'b, 'q, 'a, Q: SendQueue> {
    batch: &'b mut WrBatch<'q, Q>,
    op: SendOp<'a>,
    remote_srqn: Option<u32>,
}

/// The reason why a batch was not posted.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WrError {
    /// The index of the rejected request in the batch; the number of requests if the doorbell
    /// failed.
    pub position: usize,
    /// The reason. After [`PostReason::Doorbell`] the requests are in the queue, and the next
    /// doorbell posts them; otherwise nothing was posted.
    pub reason: PostReason,
}

impl<'q, Q: SendQueue> WrBatch<'q, Q> {
    /// Starts a batch on a queue.
    #[doc(alias = "ibv_wr_start")]
    #[inline(always)]
    pub const fn start(queue: &'q mut Q) -> Self {
        Self { wr_id: 0, wr_flags: SendFlags::empty(), queue, len: 0, refused: None }
    }

    /// Returns the number of requests in the batch.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the batch has no request.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Posts all requests with one doorbell and returns the number of requests.
    ///
    /// # Errors
    /// Returns the index of the first rejected request and the reason; nothing was posted. If the
    /// doorbell failed, returns the number of requests and [`PostReason::Doorbell`].
    #[doc(alias = "ibv_wr_complete")]
    #[inline(always)]
    pub fn complete(mut self) -> Result<usize, WrError> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let len = core::mem::take(&mut self.len);
        if len > 0
            && let Err(errno) = self.queue.ring()
        {
            return Err(WrError { position: len, reason: PostReason::Doorbell(errno) });
        }
        Ok(len)
    }

    /// Discards all requests of this batch without posting them. Dropping the batch does the same.
    #[doc(alias = "ibv_wr_abort")]
    pub fn abort(self) {}

    /// Starts a send; [`Wr::set_ud_addr`] turns it into a datagram.
    #[doc(alias = "ibv_wr_send")]
    #[inline(always)]
    pub const fn send(&mut self) -> Wr<'_, 'q, 'static, Q> {
        self.wr(SendOp::Send)
    }

    /// Starts a send with immediate data; [`Wr::set_ud_addr`] turns it into a datagram.
    #[doc(alias = "ibv_wr_send_imm")]
    #[inline(always)]
    pub const fn send_imm(&mut self, imm_data: u32) -> Wr<'_, 'q, 'static, Q> {
        self.wr(SendOp::SendWithImm { imm_data })
    }

    /// Starts a send that invalidates one of the peer's keys.
    #[doc(alias = "ibv_wr_send_inv")]
    #[inline(always)]
    pub const fn send_inv(&mut self, invalidate_rkey: u32) -> Wr<'_, 'q, 'static, Q> {
        self.wr(SendOp::SendWithInv { invalidate_rkey })
    }

    /// Starts a send of TCP segments, each preceded by a copy of the header.
    #[doc(alias = "ibv_wr_send_tso")]
    #[inline(always)]
    pub const fn send_tso<'a>(&mut self, hdr: &'a [u8], mss: u16) -> Wr<'_, 'q, 'a, Q> {
        self.wr(SendOp::Tso { hdr, mss })
    }

    /// Starts an RDMA write.
    #[doc(alias = "ibv_wr_rdma_write")]
    #[inline(always)]
    pub const fn rdma_write(&mut self, rkey: u32, remote_addr: u64) -> Wr<'_, 'q, 'static, Q> {
        self.wr(SendOp::RdmaWrite { remote_addr, rkey })
    }

    /// Starts an RDMA write with immediate data.
    #[doc(alias = "ibv_wr_rdma_write_imm")]
    #[inline(always)]
    pub const fn rdma_write_imm(
        &mut self,
        rkey: u32,
        remote_addr: u64,
        imm_data: u32,
    ) -> Wr<'_, 'q, 'static, Q> {
        self.wr(SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data })
    }

    /// Starts an RDMA read.
    #[doc(alias = "ibv_wr_rdma_read")]
    #[inline(always)]
    pub const fn rdma_read(&mut self, rkey: u32, remote_addr: u64) -> Wr<'_, 'q, 'static, Q> {
        self.wr(SendOp::RdmaRead { remote_addr, rkey })
    }

    /// Starts a compare and swap.
    #[doc(alias = "ibv_wr_atomic_cmp_swp")]
    #[inline(always)]
    pub const fn atomic_cmp_swp(
        &mut self,
        rkey: u32,
        remote_addr: u64,
        compare: u64,
        swap: u64,
    ) -> Wr<'_, 'q, 'static, Q> {
        self.wr(SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare, swap })
    }

    /// Starts a fetch and add.
    #[doc(alias = "ibv_wr_atomic_fetch_add")]
    #[inline(always)]
    pub const fn atomic_fetch_add(
        &mut self,
        rkey: u32,
        remote_addr: u64,
        add: u64,
    ) -> Wr<'_, 'q, 'static, Q> {
        self.wr(SendOp::AtomicFetchAndAdd { remote_addr, rkey, add })
    }

    /// Starts an atomic write, completed with [`Wr::no_data`].
    #[doc(alias = "ibv_wr_atomic_write")]
    #[inline(always)]
    pub const fn atomic_write(
        &mut self,
        rkey: u32,
        remote_addr: u64,
        data: [u8; 8],
    ) -> Wr<'_, 'q, 'static, Q> {
        self.wr(SendOp::AtomicWrite { remote_addr, rkey, data })
    }

    /// Starts a flush, completed with [`Wr::no_data`].
    #[doc(alias = "ibv_wr_flush")]
    #[inline(always)]
    pub const fn flush(
        &mut self,
        rkey: u32,
        remote_addr: u64,
        length: u32,
        placement: FlushPlacement,
        selectivity: FlushSelectivity,
    ) -> Wr<'_, 'q, 'static, Q> {
        self.wr(SendOp::Flush { remote_addr, rkey, length, placement, selectivity })
    }

    /// Starts an invalidation of a local key, completed with [`Wr::no_data`].
    ///
    /// ```compile_fail,E0133
    /// # fn f(mut wr: verbs_core::provider::WrBatch<'_, verbs_core::provider::ErasedSendQueue>) {
    /// wr.local_inv(7).no_data();
    /// # }
    /// ```
    ///
    /// # Safety
    /// At the time the device executes the request, the key must belong to a bound window of type 2
    /// without another owner. The kernel's rxe driver crashes on the key of an unbound window (the
    /// sources of Linux 6.1 to 7.2 follow a null pointer), and the owner of a safe window relies on
    /// its binding.
    #[doc(alias = "ibv_wr_local_inv")]
    #[inline(always)]
    pub const unsafe fn local_inv(&mut self, invalidate_rkey: u32) -> Wr<'_, 'q, 'static, Q> {
        self.wr(SendOp::LocalInv { invalidate_rkey })
    }

    /// Starts a bind of a memory window, completed with [`Wr::no_data`].
    ///
    /// # Safety
    /// While the window is bound, peers may access the bound bytes with the window's rights. The
    /// bytes must stay mapped, and every other access to them must tolerate the peers' accesses.
    #[doc(alias = "ibv_wr_bind_mw")]
    #[inline(always)]
    pub const unsafe fn bind_mw<'a>(
        &mut self,
        mw_type: MwType,
        rkey: u32,
        new_rkey: u32,
        bind_info: &'a MwBindInfo,
    ) -> Wr<'_, 'q, 'a, Q> {
        self.wr(SendOp::BindMw { mw_type, rkey, new_rkey, bind_info })
    }

    #[inline(always)]
    const fn wr<'a>(&mut self, op: SendOp<'a>) -> Wr<'_, 'q, 'a, Q> {
        Wr { batch: self, op, remote_srqn: None }
    }

    /// Puts a request into the queue, unless an earlier request was rejected.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_send`].
    #[inline(always)]
    unsafe fn put(&mut self, op: SendOp<'_>, sge: &[Sge], flags: SendFlags) {
        if self.refused.is_some() {
            return;
        }
        let wr = SendWr { wr_id: self.wr_id, op, sge, flags };
        // SAFETY: the caller upholds the same contract.
        if unsafe { self.queue.post_fast(&wr, FastPath::Inlined) } {
            self.len += 1;
            return;
        }
        // A copy, so that the request and its list stay in registers on the fast path.
        let one = sge.first().copied();
        let sge = if sge.len() == 1 { one.as_slice() } else { sge };
        // SAFETY: as above.
        match unsafe { post_any(self.queue, &SendWr { sge, ..wr }) } {
            Ok(()) => self.len += 1,
            Err(reason) => self.refuse(reason),
        }
    }

    /// Adds a request of a kind that only this provider supports, such as one in the device's own
    /// format. `post` puts the request into the provider's queue with the given
    /// [`wr_id`](Self::wr_id). [`wr_flags`](Self::wr_flags) has no effect on the request. If an
    /// earlier request was rejected, `post` is not called.
    ///
    /// # Safety
    /// `post` must put one request into the queue if it returns `Ok`, and no request if it returns
    /// an error. It must neither ring the doorbell nor move the queue. The caller must meet the
    /// requirements of [`SendQueue::post_one`] for the request.
    #[doc(alias = "mlx5dv_wr_raw_wqe")]
    pub unsafe fn put_raw(&mut self, post: impl FnOnce(&mut Q, u64) -> Result<(), PostReason>) {
        if self.refused.is_some() {
            return;
        }
        match post(self.queue, self.wr_id) {
            Ok(()) => self.len += 1,
            Err(reason) => self.refuse(reason),
        }
    }

    #[cold]
    const fn refuse(&mut self, reason: PostReason) {
        if self.refused.is_none() {
            self.refused = Some(WrError { position: self.len, reason });
        }
    }
}

/// Puts a request that the fast path rejected into the queue. This is not a method of the batch, so
/// the batch stays in registers.
///
/// # Safety
/// Same as [`SendQueue::post_send`].
#[cold]
#[inline(never)]
unsafe fn post_any<Q: SendQueue>(queue: &mut Q, wr: &SendWr<'_>) -> Result<(), PostReason> {
    // SAFETY: the caller upholds the same contract.
    unsafe { queue.post_one(wr) }
}

impl<'a, Q: SendQueue> Wr<'_, '_, 'a, Q> {
    /// Turns a send, or a send with immediate data, into a datagram to this destination. Has no
    /// effect on other operations.
    #[doc(alias = "ibv_wr_set_ud_addr")]
    #[inline(always)]
    pub const fn set_ud_addr<'v>(self, av: &'v Av, remote_qpn: u32, remote_qkey: u32) -> Self
    where
        'v: 'a,
    {
        let to = UdAddr { av, remote_qpn, remote_qkey };
        let op = match self.op {
            SendOp::Send => SendOp::UdSend { to },
            SendOp::SendWithImm { imm_data } => SendOp::UdSendWithImm { to, imm_data },
            other => other,
        };
        Self { batch: self.batch, op, remote_srqn: self.remote_srqn }
    }

    /// Sets the number of the peer's shared receive queue, for an XRC initiator.
    #[doc(alias = "ibv_wr_set_xrc_srqn")]
    #[inline(always)]
    pub const fn set_xrc_srqn(self, remote_srqn: u32) -> Self {
        Self { batch: self.batch, op: self.op, remote_srqn: Some(remote_srqn) }
    }

    /// Sets one scatter/gather element of local memory and puts the request into the queue.
    ///
    /// # Safety
    /// The requirements of [`SendQueue::post_send`] apply to this request from the doorbell on, but
    /// not if the batch is dropped or aborted.
    #[doc(alias = "ibv_wr_set_sge")]
    #[inline(always)]
    pub unsafe fn set_sge(self, sge: Sge) {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.put(&[sge], SendFlags::empty()) }
    }

    /// Sets the scatter/gather elements of local memory and puts the request into the queue.
    ///
    /// # Safety
    /// Same as [`set_sge`](Self::set_sge), for each element.
    #[doc(alias = "ibv_wr_set_sge_list")]
    #[inline(always)]
    pub unsafe fn set_sge_list(self, list: &[Sge]) {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.put(list, SendFlags::empty()) }
    }

    /// Copies the bytes into the request as inline data and puts the request into the queue.
    #[doc(alias = "ibv_wr_set_inline_data")]
    #[inline(always)]
    pub fn set_inline_data(self, data: &[u8]) {
        self.put_inline(&[element(data)]);
    }

    /// Copies the pieces into the request as inline data, one after the other, and puts the request
    /// into the queue. The number of pieces is limited like the number of elements in a list
    /// ([`QpCap::max_send_sge`](crate::types::QpCap::max_send_sge)).
    #[doc(alias = "ibv_wr_set_inline_data_list")]
    #[inline]
    pub fn set_inline_data_list(self, pieces: &[&[u8]]) {
        gather(pieces, |list| self.put_inline(list));
    }

    /// Puts the request into the queue without local memory: an empty message, or an operation
    /// without data.
    #[inline(always)]
    pub fn no_data(mut self) {
        if self.is_of_reserved_number() {
            return;
        }
        // SAFETY: an empty list names no memory. The callers of `bind_mw` and `local_inv` guarantee
        // the rest.
        unsafe { self.put(&[], SendFlags::empty()) }
    }

    /// Puts the request into the queue with inline data.
    #[inline(always)]
    fn put_inline(mut self, list: &[Sge]) {
        if self.is_of_reserved_number() {
            return;
        }
        if !self.op.takes_inline() {
            let (op, flags) = (self.op.kind(), SendFlags::INLINE);
            return self.batch.refuse(PostReason::UnsupportedFlags { op, flags });
        }
        // SAFETY: the operation takes inline data, and the elements are borrowed bytes, which the
        // call reads and nothing accesses later.
        unsafe { self.put(list, SendFlags::INLINE) }
    }

    /// Rejects the request if its `wr_id` is reserved for safe posting. Returns whether it is.
    #[inline(always)]
    const fn is_of_reserved_number(&mut self) -> bool {
        self.batch.wr_id >> 63 != 0 && self.batch.refuse_number()
    }

    /// Puts the request into the batch's queue.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_send`].
    #[inline(always)]
    unsafe fn put(self, list: &[Sge], flags: SendFlags) {
        let Self { batch, op, remote_srqn } = self;
        let flags = batch.wr_flags.difference(SendFlags::INLINE).union(flags);
        match remote_srqn {
            // SAFETY: the caller upholds the same contract.
            None => unsafe { batch.put(op, list, flags) },
            // SAFETY: as above.
            Some(remote_srqn) => unsafe { batch.put(SendOp::Xrc { remote_srqn, op: &op }, list, flags) },
        }
    }
}

impl<Q: SendQueue> WrBatch<'_, Q> {
    #[cold]
    const fn refuse_number(&mut self) -> bool {
        self.refuse(PostReason::ReservedWrId { wr_id: self.wr_id });
        true
    }
}

impl<Q: SendQueue> Drop for WrBatch<'_, Q> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.len > 0 {
            self.queue.rollback(self.len);
        }
    }
}

impl<Q: SendQueue> fmt::Debug for WrBatch<'_, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrBatch")
            .field("len", &self.len)
            .field("refused", &self.refused)
            .finish_non_exhaustive()
    }
}

impl<Q: SendQueue> fmt::Debug for Wr<'_, '_, '_, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wr").field("op", &self.op).finish_non_exhaustive()
    }
}

impl fmt::Display for WrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            PostReason::Doorbell(_) => {
                write!(f, "{} requests are in the queue: {}", self.position, self.reason)
            }
            reason => write!(f, "request {} of the batch: {reason}; nothing was posted", self.position),
        }
    }
}

/// Formats like `Display`, because `main` prints a returned error with `Debug`.
impl fmt::Debug for WrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for WrError {}

impl From<WrError> for crate::Error {
    fn from(error: WrError) -> Self {
        error.reason.into()
    }
}

/// Returns bytes as an element for inline data. A length that does not fit an element exceeds every
/// queue's limit, so the queue rejects the element before reading a byte.
#[inline(always)]
fn element(data: &[u8]) -> Sge {
    let length = if data.len() > u32::MAX as usize { u32::MAX } else { data.len() as u32 };
    Sge { addr: data.as_ptr().expose_provenance() as u64, length, lkey: 0 }
}

/// Calls `put` with the pieces as elements for inline data.
#[doc(hidden)]
#[inline]
pub fn gather<T>(pieces: &[&[u8]], put: impl FnOnce(&[Sge]) -> T) -> T {
    let mut room = [Sge::default(); 16];
    match room.get_mut(..pieces.len()) {
        Some(list) => {
            for (sge, piece) in list.iter_mut().zip(pieces) {
                *sge = element(piece);
            }
            put(list)
        }
        None => put(&pieces.iter().map(|piece| element(piece)).collect::<Vec<_>>()),
    }
}
