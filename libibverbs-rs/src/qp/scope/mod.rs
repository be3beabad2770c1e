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
//! The program's handles and the requests' tokens are in [`crate::memory::scoped`]. The file
//! [`queue_pairs`] has [`ScopedQp`] and ends queue pairs that still have requests.
//!
//! # Safety
//! The claim: when [`Pd::scope`] returns or unwinds, no device writes the borrowed bytes; and while
//! a device may write them, no reference to them exists. A kernel device may still read bytes for a
//! retransmission, which the peer discards [5]; a device that is a thread of this process does not
//! [13]. Numbers in brackets refer to the contract of [`Provider`].
//!
//! - *Only queue pairs of the scope post the memory.* Its handles ([`ScopedBuf`], [`ScopedBytes`])
//!   are accepted only by [`ScopedQp`] and live no longer than the scope. The scope owns the queue
//!   pairs. A `ScopedQp` gives no access to the queue pair itself, so it cannot be exchanged for
//!   another queue pair.
//! - *A request holds a token.* Posting turns the handle into a
//!   [`ScopedMemory`](crate::ScopedMemory), which the table of memory in flight holds until the
//!   request has ended: see points 2 to 4 of [`crate::in_flight`]. Each queue pair counts its
//!   tokens; the token of a rejected request does not count, because nothing was queued. A token
//!   outside the table has no access to the bytes: only [`Scope::reclaim`] of the same scope turns
//!   it into a handle again. A token cannot be copied. It is foreign to every queue pair, so it
//!   cannot be posted outside the scope.
//! - *No token, no request.* Only the table drops or returns tokens of requests, so a queue pair
//!   whose count is 0 has no entry with a token. The thread that takes the last token out releases
//!   the count after the completion. The scope's thread acquires it, so the device's writes are
//!   visible [5]. Any other queue pair is destroyed, or else reset where that ends requests [9,
//!   14].
//! - *The scope does not return before.* If the device refuses both, the process aborts: the bytes
//!   may be on the caller's stack and cannot be leaked like a [`Buf`](crate::Buf). The end runs in
//!   a frame safe code does not reach, even while the closure unwinds; if the end itself unwinds,
//!   the process aborts as well.
//! - *Regions come last.* They have no remote rights [11]. A region that cannot be deregistered is
//!   leaked: requests no longer name it, so no device writes its memory [5, 9].

#![allow(unsafe_code)]

mod queue_pairs;

use core::fmt;
use core::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use verbs_core::Result;
use verbs_core::fork::Excluded;
use verbs_core::provider::{Erased, MrOps, Provider};
use verbs_core::types::AccessFlags;

use crate::device::pd::Pd;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::Child;
use crate::memory::Memory;
use crate::memory::scoped::{Name, ScopedBuf, ScopedBytes};

pub use queue_pairs::{QueuePairs, ScopedQp};

impl<P: Provider> Pd<P> {
    /// Calls a closure that posts borrowed memory and returns once no request uses that memory.
    ///
    /// After the return no device writes the memory. rxe on Linux 5.10 and 6.1 may still read it
    /// for a retransmission; the peer discards it regardless of its content.
    ///
    /// The queue pairs move into the scope: one, a tuple or a vector of them. Each is returned if
    /// it has no memory of the scope in flight at the end. Otherwise, for example after an early
    /// return on an error, it is destroyed, which ends its requests, and `None` is returned in its
    /// place. If the closure panics, its requests end in the same way before the panic continues.
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
    ///     b.post_recv_buf(scope.register(&mut inbox)?, ..)?;
    ///     let out = scope.register_bytes(greeting.as_bytes())?;
    ///     a.post_send_buf(SendOp::Send, SendFlags::empty(), out, ..)?;
    ///     for _ in 0..2 {
    ///         cq.poll_within(Duration::from_secs(10))?.wc.ok()?;
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
    ///     qp.post_recv_buf(scope.register(&mut inbox).unwrap(), ..);
    ///     inbox[0] = 1;
    /// });
    /// # }
    /// ```
    ///
    /// The scope's handles cannot leave it:
    ///
    /// ```compile_fail
    /// # fn f(pd: verbs::Pd, qp: verbs::Qp<verbs::state::Rts>) {
    /// let mut inbox = [0; 64];
    /// let (escaped, _) = pd.scope(qp, |scope, _| scope.register(&mut inbox).unwrap());
    /// # }
    /// ```
    ///
    /// A queue pair in an outer scope cannot post the memory of an inner scope:
    ///
    /// ```compile_fail
    /// # type Qp = verbs::Qp<verbs::state::Rts>;
    /// # fn f(pd: verbs::Pd, one: Qp, two: Qp) {
    /// pd.scope(one, |_, mut outer| {
    ///     let mut inbox = [0; 64];
    ///     pd.scope(two, |scope, _| outer.post_recv_buf(scope.register(&mut inbox).unwrap(), ..));
    /// });
    /// # }
    /// ```
    ///
    /// On kernels before 5.12, after [`fork_init`](crate::fork_init), the pages of the borrowed
    /// bytes are excluded from forks until the scope ends, as for other regions. A child that
    /// touches such a page receives SIGSEGV. A slice on the stack excludes stack pages, so a
    /// process that forks inside a scope should register heap memory.
    ///
    /// Memory returned by a completion counts as in flight until the
    /// [`ScopedMemory`](crate::ScopedMemory) is dropped or [reclaimed](Scope::reclaim).
    ///
    /// # Panics
    /// If the closure panics, with the same panic.
    ///
    /// # Aborts
    /// Aborts the process if requests are in flight at the end and the device refuses to destroy
    /// and to reset their queue pair. A queue pair with flow rules is never destroyed. The hook of
    /// [`on_leak`](crate::on_leak) receives the error first. Returning would let the device write
    /// to reused memory.
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

/// A scope for borrowing memory in work requests. Made by [`Pd::scope`].
pub struct Scope<'scope, 'env: 'scope, P: Provider = Erased> {
    pd: Pd<P>,
    regions: Arc<Regions<P>>,
    /// Distinguishes this scope from all others.
    identity: Arc<()>,
    /// Both lifetimes are invariant, as in [`std::thread::Scope`].
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// The regions registered in a scope.
struct Regions<P: Provider>(Mutex<Vec<Region<P>>>);

/// A region registered in a scope. It is deregistered before its pages are included in forks again.
/// They are included even if the region is leaked, because the bytes return to their owner.
struct Region<P: Provider> {
    _handle: KernelHandle<P::Mr, Child>,
    _excluded: Excluded,
}

impl<'scope, 'env, P: Provider> Scope<'scope, 'env, P> {
    /// Registers borrowed bytes that the device may read.
    ///
    /// # Errors
    /// Same as [`Pd::register_bytes`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_bytes(&'scope self, bytes: &'env [u8]) -> Result<ScopedBytes<'scope>> {
        // SAFETY: the bytes are borrowed longer than the scope, which deregisters them; without
        // `LOCAL_WRITE` the device only reads them, as every other holder of the borrow does.
        let name = unsafe { self.add(bytes.as_ptr().cast_mut(), bytes.len(), AccessFlags::empty()) }?;
        Ok(ScopedBytes { bytes, name })
    }

    /// Registers borrowed bytes that the device may write.
    ///
    /// # Errors
    /// Same as [`Pd::register`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn register(&'scope self, bytes: &'env mut [u8]) -> Result<ScopedBuf<'scope>> {
        let (start, len) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: as in `register_bytes`; the device writes only while a request names the bytes,
        // and no reference to them exists then (see the module).
        let name = unsafe { self.add(start, len, AccessFlags::LOCAL_WRITE) }?;
        // SAFETY: `bytes` is not used again, so that this is the only reference to its bytes.
        let bytes = unsafe { core::slice::from_raw_parts_mut(start, len) };
        Ok(ScopedBuf { bytes, name })
    }

    /// Returns the first piece of this scope's writable memory from a completion
    /// ([`Returned`](crate::Returned)) or a rejected post
    /// ([`PostBufError::returned`](crate::PostBufError::returned)). The memory can then be read,
    /// written and posted again. Returns `None` for other memory; [`ScopedBytes`] can be cloned
    /// instead.
    pub fn reclaim<I>(&'scope self, returned: I) -> Option<ScopedBuf<'scope>>
    where
        I: IntoIterator<Item: Into<Memory>>,
    {
        let ours = |memory: I::Item| match memory.into() {
            Memory::Scoped(memory) => {
                (memory.is_writable && Arc::ptr_eq(&memory.name.scope, &self.identity)).then_some(memory)
            }
            _ => None,
        };
        let token = returned.into_iter().find_map(ours)?;
        // SAFETY: the token came out of the table, so its request has ended or was never posted:
        // the device does not access the bytes. The token was made from the only reference to them.
        // They are borrowed for longer than this scope.
        Some(unsafe { ScopedBuf::from_memory(token) })
    }

    /// Registers `len` bytes at `start` for the scope.
    ///
    /// # Safety
    /// Same as [`Pd::reg_mr`], until the scope ends.
    unsafe fn add(&self, start: *mut u8, len: usize, access: AccessFlags) -> Result<Name> {
        let iova = start.expose_provenance() as u64;
        let excluded = self.pd.exclude("reg_mr", start, len, access)?;
        // SAFETY: the caller upholds the same contract. After an error no region exists [18].
        let raw = unsafe { self.pd.register_raw(start, len, iova, access) }?;
        let handle = KernelHandle::new(raw, self.pd.child_mr());
        let lkey = handle.get().lkey();
        let region = Region { _handle: handle, _excluded: excluded };
        self.regions.0.lock().unwrap_or_else(PoisonError::into_inner).push(region);
        Ok(Name { lkey, pd: self.pd.id(), scope: Arc::clone(&self.identity) })
    }
}

impl<P: Provider> Regions<P> {
    /// Deregisters all regions of the scope.
    fn release(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Aborts the process when dropped, which happens only if ending the scope unwinds.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl<P: Provider> fmt::Debug for Scope<'_, '_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("pd", &self.pd).finish_non_exhaustive()
    }
}
