//! [`Scope`]: borrowed memory in work requests, in the style of [`std::thread::scope`].
//!
//! ```text
//!  Pd::scope ──► queue pairs move in ──► closure: register, post, poll ──► it returns or panics
//!                                                                            │
//!      nothing of the scope is in flight on a queue pair: it is returned ◄───┤
//!      something is: it is destroyed, which ends its requests           ◄───┘
//!                                                   then the memory is deregistered
//! ```
//!
//! # Safety
//! The claim: when [`Pd::scope`] returns or unwinds, no device accesses the borrowed bytes; and
//! while a device may write them, no reference to them exists. Numbers in brackets are those of the
//! contract of [`Provider`].
//!
//! - *Only queue pairs of the scope post the memory.* A handle of it ([`ScopedBuf`],
//!   [`ScopedBytes`]) is accepted by [`ScopedQp`] alone, and lives no longer than the scope. The
//!   scope owns the queue pairs, and a `ScopedQp` gives no access to the queue pair itself, so that
//!   none can be exchanged for another.
//! - *A request holds a token.* Posting turns the handle into a [`ScopedMemory`], which the table
//!   of memory in flight holds until the request has ended: the argument is that of
//!   [`crate::in_flight`], points 2 to 4. Tokens count at their queue pair. One that leaves the
//!   table has no access to the bytes: only [`Scope::reclaim`] of the same scope turns it into a
//!   handle again, and a token cannot be copied. It is foreign to every queue pair, so that it is
//!   not posted outside of the scope.
//! - *No token, no request.* Only the table drops or returns tokens of requests, and a queue pair
//!   whose count is 0 has no entry with one. The count is released by the thread that took the last
//!   token out, after the completion, and acquired by the scope's, so that what the device wrote is
//!   visible [5]. Any other queue pair is destroyed, or else reset where that ends requests [9,
//!   14].
//! - *The scope does not return before.* If the device refuses both, the process aborts: the bytes
//!   may be on the caller's stack, and cannot be leaked as a [`Buf`](crate::Buf) can. The end runs
//!   in a frame that safe code does not reach, also while the closure unwinds; if it unwinds
//!   itself, the process aborts as well.
//! - *Regions come last.* They have no remote rights [11]. One that cannot be deregistered is
//!   leaked: no request names it any more, so that no device accesses it [13].

#![allow(unsafe_code)]

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut, RangeBounds};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use verbs_core::Result;
use verbs_core::provider::{Erased, MrOps, Provider};
use verbs_core::types::{AccessFlags, SendFlags, SendOp, Sge};

use super::state::{CanPostRecv, CanPostSend, State};
use crate::in_flight::Returned;
use crate::kernel_handle::{KernelHandle, report_leak};
use crate::memory::{Memory, PostMemory, Registered, element};
use crate::post_error::{PostBufError, PostBufReason};
use crate::registry::{Child, PdId};
use crate::{HandleError, Pd, Qp};
use sealed::Flight;

impl<P: Provider> Pd<P> {
    /// Calls a closure that posts borrowed memory, and returns when no request has that memory any
    /// more.
    ///
    /// The queue pairs move into the scope: one, a tuple or a vector of them. Each is returned if
    /// nothing of the scope is in flight on it at the end. Otherwise it is destroyed, which ends
    /// its requests, and `None` is returned: this is the case after an error that left the
    /// closure early. A closure that panics ends its requests in the same way before the panic
    /// continues.
    ///
    /// ```
    /// # #[cfg(feature = "soft")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use verbs::{ConnectAttr, CqInit, Error, QpInit, QpType, SendFlags, SendOp};
    ///
    /// let context = verbs::soft::auto()?.open()?;
    /// let (pd, port) = (context.alloc_pd()?, context.port(1)?);
    /// let mut cq = context.create_cq(&CqInit::new(16))?;
    /// let [a, b] = [(), ()].map(|()| pd.create_qp(&QpInit::new(QpType::RC, &cq)));
    /// let (a, b) = (a?, b?);
    /// let (here, there) = (a.endpoint(&port), b.endpoint(&port));
    /// let a = a.connect(&port, &there, &ConnectAttr::default())?;
    /// let b = b.connect(&port, &here, &ConnectAttr::default())?;
    ///
    /// let greeting = String::from("hello");
    /// let mut inbox = [0; 64];
    /// let (done, (a, b)) = pd.scope((a, b), |scope, (mut a, mut b)| {
    ///     b.post_recv(scope.register_mut(&mut inbox)?, ..)?;
    ///     let out = scope.register(greeting.as_bytes())?;
    ///     a.post_send(SendOp::Send, SendFlags::empty(), out, ..)?;
    ///     for _ in 0..2 {
    ///         cq.poll_within(Duration::from_secs(10)).expect("a completion").wc.ok()?;
    ///     }
    ///     Ok::<_, Error>(())
    /// });
    /// done?;
    /// assert_eq!(&inbox[..5], b"hello");
    /// assert!(a.is_some() && b.is_some(), "everything had ended");
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "soft"))]
    /// # fn main() {}
    /// ```
    ///
    /// The memory is borrowed until the scope has returned:
    ///
    /// ```compile_fail,E0506
    /// # fn f(pd: verbs::Pd, qp: verbs::Qp<verbs::state::Rts>) {
    /// let mut inbox = [0; 64];
    /// pd.scope(qp, |scope, mut qp| {
    ///     qp.post_recv(scope.register_mut(&mut inbox).unwrap(), ..);
    ///     inbox[0] = 1;
    /// });
    /// # }
    /// ```
    ///
    /// Its handles do not leave the scope:
    ///
    /// ```compile_fail
    /// # fn f(pd: verbs::Pd, qp: verbs::Qp<verbs::state::Rts>) {
    /// let mut inbox = [0; 64];
    /// let (escaped, _) = pd.scope(qp, |scope, _| scope.register_mut(&mut inbox).unwrap());
    /// # }
    /// ```
    ///
    /// A queue pair of an outer scope does not post the memory of an inner one:
    ///
    /// ```compile_fail
    /// # type Qp = verbs::Qp<verbs::state::Rts>;
    /// # fn f(pd: verbs::Pd, one: Qp, two: Qp) {
    /// pd.scope(one, |_, mut outer| {
    ///     let mut inbox = [0; 64];
    ///     pd.scope(two, |scope, _| outer.post_recv(scope.register_mut(&mut inbox).unwrap(), ..));
    /// });
    /// # }
    /// ```
    ///
    /// Memory that a completion returned counts as in flight until the [`ScopedMemory`] is dropped,
    /// or [reclaimed](Scope::reclaim).
    ///
    /// # Panics
    /// With the panic of the closure.
    ///
    /// # Aborts
    /// The process, if requests are in flight at the end and the device refuses to destroy and to
    /// reset their queue pair, which it does not destroy while it has flow rules: the hook of [`on_leak`](crate::on_leak) gets the error before.
    /// Returning would let the device write to memory that has a new use.
    pub fn scope<'env, Q, F, T>(&self, queue_pairs: Q, f: F) -> (T, Q::Back)
    where
        Q: QueuePairs,
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env, P>, Q::Scoped<'scope>) -> T,
    {
        let mut held = queue_pairs.hold();
        let regions = Arc::new(Regions(Mutex::new(Vec::new())));
        let scope = Scope {
            pd: self.clone(),
            regions: Arc::clone(&regions),
            identity: Arc::new(()),
            scope: PhantomData,
            env: PhantomData,
        };
        let result = catch_unwind(AssertUnwindSafe(|| f(&scope, Q::lend(&mut held))));
        let guard = AbortOnUnwind;
        let back = Q::end(held);
        regions.release();
        core::mem::forget(guard);
        match result {
            Ok(value) => (value, back),
            Err(panic) => resume_unwind(panic),
        }
    }
}

/// A scope, in which memory is borrowed for work requests. Made by [`Pd::scope`].
pub struct Scope<'scope, 'env: 'scope, P: Provider = Erased> {
    pd: Pd<P>,
    regions: Arc<Regions<P>>,
    /// Tells this scope from all others.
    identity: Arc<()>,
    /// Both lifetimes are invariant, as those of [`std::thread::Scope`].
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// The regions of a scope.
struct Regions<P: Provider>(Mutex<Vec<KernelHandle<P::Mr, Child>>>);

/// Borrowed bytes that the device may write. It is a `&mut [u8]`; posting takes it.
pub struct ScopedBuf<'scope> {
    bytes: &'scope mut [u8],
    name: Name,
}

/// Borrowed bytes that the device only reads. It is a `&[u8]`, and can be posted many times at
/// once.
#[derive(Clone)]
pub struct ScopedBytes<'scope> {
    bytes: &'scope [u8],
    name: Name,
}

/// Borrowed memory of a request, which a completion returned. [`Scope::reclaim`] makes it usable.
pub struct ScopedMemory {
    addr: usize,
    len: usize,
    name: Name,
    is_writable: bool,
    /// Counts until it is dropped.
    _in_flight: Flight,
}

/// A queue pair in a scope, which posts memory of the scope.
///
/// Completions arrive in the queue pair's completion queue, as those of other requests.
pub struct ScopedQp<'scope, S: State, P: Provider = Erased> {
    qp: &'scope mut Qp<S, P>,
    count: Arc<AtomicUsize>,
    /// Invariant: otherwise the queue pair of a scope could post the memory of a scope inside of
    /// it, which ends earlier.
    scope: PhantomData<&'scope mut &'scope ()>,
}

/// The registration of borrowed memory.
#[derive(Clone)]
struct Name {
    lkey: u32,
    pd: PdId,
    scope: Arc<()>,
}

impl<'scope, 'env, P: Provider> Scope<'scope, 'env, P> {
    /// Registers borrowed bytes that the device only reads.
    ///
    /// # Errors
    /// As [`Pd::register`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn register(&'scope self, bytes: &'env [u8]) -> Result<ScopedBytes<'scope>> {
        // SAFETY: the bytes are borrowed longer than the scope, which deregisters them; without
        // `LOCAL_WRITE` the device only reads them, as every other holder of the borrow does.
        let name = unsafe { self.add(bytes.as_ptr().cast_mut(), bytes.len(), AccessFlags::empty()) }?;
        Ok(ScopedBytes { bytes, name })
    }

    /// Registers borrowed bytes that the device may write.
    ///
    /// # Errors
    /// As [`Pd::register`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_mut(&'scope self, bytes: &'env mut [u8]) -> Result<ScopedBuf<'scope>> {
        let (start, len) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: as in `register`; the device writes only while a request names the bytes, and no
        // reference to them exists then (see the module).
        let name = unsafe { self.add(start, len, AccessFlags::LOCAL_WRITE) }?;
        // SAFETY: `bytes` is not used again, so that this is the only reference to its bytes.
        let bytes = unsafe { core::slice::from_raw_parts_mut(start, len) };
        Ok(ScopedBuf { bytes, name })
    }

    /// Returns the first piece of memory of this scope that a completion returned: writable memory
    /// can be read, written and posted again. Returns `None` for other memory.
    pub fn reclaim(&'scope self, returned: Returned) -> Option<ScopedBuf<'scope>> {
        let ours = |memory| match memory {
            Memory::Scoped(memory) => {
                (memory.is_writable && Arc::ptr_eq(&memory.name.scope, &self.identity)).then_some(memory)
            }
            _ => None,
        };
        let token = returned.into_iter().find_map(ours)?;
        // SAFETY: the token came out of the table, so that its request has ended and the device
        // does not access the bytes. It was made of the only reference to them. They are borrowed
        // for longer than this scope.
        Some(unsafe { sealed::Lent::from_memory(token) })
    }

    /// # Safety
    /// As [`Pd::reg_mr`], until the scope ends.
    unsafe fn add(&self, start: *mut u8, len: usize, access: AccessFlags) -> Result<Name> {
        let iova = start.expose_provenance() as u64;
        // SAFETY: the caller's promise is the same. After an error there is no region [18].
        let raw = unsafe { self.pd.register_raw(start, len, iova, access) }?;
        let region = KernelHandle::new(raw, self.pd.child_mr());
        let lkey = region.get().lkey();
        self.regions.0.lock().unwrap_or_else(PoisonError::into_inner).push(region);
        Ok(Name { lkey, pd: self.pd.id(), scope: Arc::clone(&self.identity) })
    }
}

impl<P: Provider> Regions<P> {
    /// Deregisters all regions.
    fn release(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Aborts the process if it is dropped, which happens when the end of a scope unwinds.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl<'scope, S: CanPostSend, P: Provider> ScopedQp<'scope, S, P> {
    /// Posts a send of a range of the memory, signalled, and returns its number, which is the
    /// `wr_id` of its completion.
    ///
    /// # Errors
    /// As [`Qp::post_send_buf`], with the memory.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send<M: Lent<'scope>>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        let token = Token(memory.into_memory(Flight::new(&self.count)));
        self.qp.send.post(op, flags | SendFlags::SIGNALED, token, range).map_err(given_back)
    }

    /// Posts a send as [`post_send`](Self::post_send) does, without a completion of its own.
    ///
    /// # Errors
    /// As [`Qp::post_send_buf_unsignaled`], with the memory.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send_unsignaled<M: Lent<'scope>>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        let token = Token(memory.into_memory(Flight::new(&self.count)));
        self.qp.send.post(op, flags - SendFlags::SIGNALED, token, range).map_err(given_back)
    }

    /// Posts inline data as [`Qp::post_send_inline`] does.
    ///
    /// # Errors
    /// As [`Qp::post_send_inline`].
    pub fn post_send_inline(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        data: &[u8],
    ) -> Result<(), PostBufReason> {
        self.qp.send.post_inline(wr_id, op, flags, data)
    }
}

impl<'scope, S: CanPostRecv, P: Provider> ScopedQp<'scope, S, P> {
    /// Posts a receive into a range of the memory, and returns its number, which is the `wr_id` of
    /// its completion.
    ///
    /// # Errors
    /// As [`Qp::post_recv_buf`], with the memory.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(
        &mut self,
        memory: ScopedBuf<'scope>,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<ScopedBuf<'scope>>> {
        let token = Token(sealed::Lent::into_memory(memory, Flight::new(&self.count)));
        self.qp.recv.post(token, range).map_err(given_back)
    }
}

impl<S: State, P: Provider> ScopedQp<'_, S, P> {
    /// Returns the number by which peers address the queue pair, 24 bits.
    pub fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }
}

/// Converts the error of posting a token into that of posting its handle.
fn given_back<'scope, M: Lent<'scope>>(error: PostBufError<Token>) -> PostBufError<M> {
    // SAFETY: the token was made of such a handle in the call that returns this error, and the
    // request was not queued.
    let returned = error.returned.map(|token| unsafe { M::from_memory(token.0) });
    PostBufError { returned, reason: error.reason }
}

/// A token on its way into the table.
struct Token(ScopedMemory);

impl From<Token> for Memory {
    fn from(token: Token) -> Self {
        Self::Scoped(token.0)
    }
}

impl PostMemory for Token {}

impl Registered for Token {
    fn is_writable(&self) -> bool {
        self.0.is_writable
    }

    fn is_exposed(&self) -> bool {
        false
    }

    fn pd(&self) -> PdId {
        self.0.name.pd
    }

    fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, PostBufReason> {
        self.0.sge(range)
    }

    fn from_memory(memory: Memory) -> Option<Self> {
        ScopedMemory::from_memory(memory).map(Self)
    }
}

impl ScopedMemory {
    /// Returns the id of no protection domain: outside of a [`ScopedQp`] it is foreign everywhere.
    pub(crate) fn pd_id(&self) -> PdId {
        static NONE: OnceLock<PdId> = OnceLock::new();
        *NONE.get_or_init(PdId::next)
    }
}

impl Registered for ScopedMemory {
    fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn is_exposed(&self) -> bool {
        false
    }

    fn pd(&self) -> PdId {
        self.pd_id()
    }

    fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, PostBufReason> {
        element(range, self.addr as u64, self.len, self.name.lkey)
    }

    fn from_memory(memory: Memory) -> Option<Self> {
        match memory {
            Memory::Scoped(memory) => Some(memory),
            _ => None,
        }
    }
}

/// Memory of a scope: [`ScopedBuf`] or [`ScopedBytes`].
pub trait Lent<'scope>: sealed::Lent<'scope> {}

/// Defines a handle as memory of a scope, by the functions that take its reference apart and make
/// it again.
macro_rules! lent {
    ($($handle:ident: $start:ident, $pointer:ident, $slice:ident, writable: $is_writable:literal;)*) => {$(
        impl<'scope> Lent<'scope> for $handle<'scope> {}

        impl<'scope> sealed::Lent<'scope> for $handle<'scope> {
            fn into_memory(self, in_flight: Flight) -> ScopedMemory {
                let Self { bytes, name } = self;
                let (addr, len) = (bytes.$start().expose_provenance(), bytes.len());
                ScopedMemory { addr, len, name, is_writable: $is_writable, _in_flight: in_flight }
            }

            unsafe fn from_memory(memory: ScopedMemory) -> Self {
                let ScopedMemory { addr, len, name, .. } = memory;
                // SAFETY: the caller passes the token that was made of this very reference, for
                // which there is no request.
                let bytes = unsafe { core::slice::$slice(core::ptr::$pointer(addr), len) };
                Self { bytes, name }
            }
        }
    )*};
}

lent! {
    ScopedBuf: as_mut_ptr, with_exposed_provenance_mut, from_raw_parts_mut, writable: true;
    ScopedBytes: as_ptr, with_exposed_provenance, from_raw_parts, writable: false;
}

/// Queue pairs that move into a scope: [`Qp`], tuples of two to four, vectors.
pub trait QueuePairs: sealed::QueuePairs {
    /// The queue pairs as the closure gets them: [`ScopedQp`]s.
    type Scoped<'scope>;
    /// The queue pairs as the scope returns them: an [`Option`] for each.
    type Back;

    #[doc(hidden)]
    fn lend(held: &mut Self::Held) -> Self::Scoped<'_>;
    #[doc(hidden)]
    fn end(held: Self::Held) -> Self::Back;
}

impl<S: State + 'static, P: Provider> sealed::QueuePairs for Qp<S, P> {
    type Held = (Self, Arc<AtomicUsize>);

    fn hold(self) -> Self::Held {
        (self, Arc::new(AtomicUsize::new(0)))
    }
}

impl<S: State + 'static, P: Provider> QueuePairs for Qp<S, P> {
    type Scoped<'scope> = ScopedQp<'scope, S, P>;
    type Back = Option<Self>;

    fn lend((qp, count): &mut Self::Held) -> ScopedQp<'_, S, P> {
        ScopedQp { qp, count: Arc::clone(count), scope: PhantomData }
    }

    fn end((qp, count): Self::Held) -> Option<Self> {
        if count.load(Ordering::Acquire) == 0 {
            return Some(qp);
        }
        let HandleError { handle: qp, error } = match qp.dismantle() {
            Ok(memory) => {
                drop(memory);
                return None;
            }
            Err(refused) => refused,
        };
        if qp.reset_ends_requests()
            && let Ok(mut reset) = qp.to_reset()
        {
            drop(reset.reclaim_all());
            return None;
        }
        report_leak(&error);
        std::process::abort()
    }
}

impl<Q: QueuePairs> sealed::QueuePairs for Vec<Q> {
    type Held = Vec<Q::Held>;

    fn hold(self) -> Self::Held {
        self.into_iter().map(sealed::QueuePairs::hold).collect()
    }
}

impl<Q: QueuePairs> QueuePairs for Vec<Q> {
    type Scoped<'scope> = Vec<Q::Scoped<'scope>>;
    type Back = Vec<Q::Back>;

    fn lend(held: &mut Self::Held) -> Self::Scoped<'_> {
        held.iter_mut().map(Q::lend).collect()
    }

    fn end(held: Self::Held) -> Self::Back {
        held.into_iter().map(Q::end).collect()
    }
}

macro_rules! tuples {
    ($(($($name:ident),+);)*) => {$(
        impl<$($name: QueuePairs),+> sealed::QueuePairs for ($($name,)+) {
            type Held = ($($name::Held,)+);

            #[allow(non_snake_case)]
            fn hold(self) -> Self::Held {
                let ($($name,)+) = self;
                ($($name.hold(),)+)
            }
        }

        impl<$($name: QueuePairs),+> QueuePairs for ($($name,)+) {
            type Scoped<'scope> = ($($name::Scoped<'scope>,)+);
            type Back = ($($name::Back,)+);

            #[allow(non_snake_case)]
            fn lend(held: &mut Self::Held) -> Self::Scoped<'_> {
                let ($($name,)+) = held;
                ($($name::lend($name),)+)
            }

            #[allow(non_snake_case)]
            fn end(held: Self::Held) -> Self::Back {
                let ($($name,)+) = held;
                ($($name::end($name),)+)
            }
        }
    )*};
}

tuples! {
    (A, B);
    (A, B, C);
    (A, B, C, D);
}

impl Deref for ScopedBuf<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl DerefMut for ScopedBuf<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

impl Deref for ScopedBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

macro_rules! debug {
    ($($type:ty: $name:literal, $len:expr;)*) => {$(
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let len: fn(&Self) -> usize = $len;
                f.debug_struct($name).field("len", &len(self)).finish_non_exhaustive()
            }
        }
    )*};
}

debug! {
    ScopedBuf<'_>: "ScopedBuf", |buf| buf.bytes.len();
    ScopedBytes<'_>: "ScopedBytes", |bytes| bytes.bytes.len();
    ScopedMemory: "ScopedMemory", |memory| memory.len;
}

impl<P: Provider> fmt::Debug for Scope<'_, '_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("pd", &self.pd).finish_non_exhaustive()
    }
}

impl<S: State, P: Provider> fmt::Debug for ScopedQp<'_, S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScopedQp").field(&self.qp).finish()
    }
}

mod sealed {
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;

    use super::ScopedMemory;

    /// A token's share of the count of its queue pair.
    pub struct Flight(Arc<AtomicUsize>);

    impl Flight {
        pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
            count.fetch_add(1, Ordering::Relaxed);
            Self(Arc::clone(count))
        }
    }

    impl Drop for Flight {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Release);
        }
    }

    /// The private trait keeps the set of handles closed.
    pub trait Lent<'scope>: Sized {
        /// Turns a handle into the token of a request.
        fn into_memory(self, in_flight: Flight) -> ScopedMemory;

        /// Turns the token of a request that was not queued into its handle.
        ///
        /// # Safety
        /// The token was made of such a handle, which lived as long as this one may.
        unsafe fn from_memory(memory: ScopedMemory) -> Self;
    }

    /// The private trait keeps the set of queue pairs closed.
    pub trait QueuePairs: Sized {
        type Held;

        fn hold(self) -> Self::Held;
    }
}
