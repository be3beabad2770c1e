//! The queue pairs of a scope: the handles passed to the closure, and the cleanup after it.

use core::fmt;
use core::marker::PhantomData;
use core::ops::RangeBounds;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use verbs_core::provider::{Erased, Provider};
use verbs_core::types::{SendFlags, SendOp};

use crate::handle::error::HandleError;
use crate::handle::kernel_handle::report_leak;
use crate::memory::post_error::{PostBufError, PostBufReason};
use crate::memory::scoped::sealed::{Flight, Lent as _};
use crate::memory::scoped::{Lent, ScopedBuf, ScopedMemory, Token, given_back};
use crate::qp::Qp;
use crate::qp::state::{CanPostRecv, CanPostSend, State};

/// A queue pair in a scope, for posting the scope's memory.
///
/// Completions arrive in the queue pair's completion queue, as for other requests.
///
/// Create flow rules before the queue pair moves into the scope; they stay in effect. A queue pair
/// with rules is not destroyed at the end: if requests are in flight, it is reset. Rules cannot be
/// created inside:
///
/// ```compile_fail,E0308
/// # fn f(context: verbs::Context, pd: verbs::Pd, qp: verbs::Qp<verbs::state::Rts>) {
/// pd.scope(qp, |_, qp| context.create_flow(&qp, verbs::FlowAttr::new(1)));
/// # }
/// ```
pub struct ScopedQp<'scope, S: State, P: Provider = Erased> {
    qp: &'scope mut Qp<S, P>,
    count: Arc<AtomicUsize>,
    /// The lifetime is invariant: otherwise a scope's queue pair could post the memory of an inner
    /// scope, which ends before this queue pair is returned.
    scope: PhantomData<&'scope mut &'scope ()>,
}

impl<'scope, S: CanPostSend, P: Provider> ScopedQp<'scope, S, P> {
    /// Posts a signalled send of a range of `memory` and returns the request's `wr_id`.
    ///
    /// # Errors
    /// Same as [`Qp::post_send_buf`]; the error holds the memory, which
    /// [`Scope::reclaim`](crate::Scope::reclaim) makes usable again.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send_buf<M: Lent<'scope>>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<ScopedMemory>> {
        let token = Token(memory.into_memory(Flight::new(&self.count)));
        self.qp.send_queue().post_send_buf(op, flags, token, range).map_err(given_back)
    }

    /// Posts a send like [`post_send_buf`](Self::post_send_buf) but without a completion.
    ///
    /// # Errors
    /// Same as [`Qp::post_send_buf_unsignaled`]; the error holds the memory.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send_buf_unsignaled<M: Lent<'scope>>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<ScopedMemory>> {
        let token = Token(memory.into_memory(Flight::new(&self.count)));
        self.qp.send_queue().post_send_buf_unsignaled(op, flags, token, range).map_err(given_back)
    }

    /// Posts inline data as [`Qp::post_send_inline`] does.
    ///
    /// # Errors
    /// Same as [`Qp::post_send_inline`].
    pub fn post_send_inline(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        data: &[u8],
    ) -> Result<(), PostBufReason> {
        self.qp.send_queue().post_send_inline(wr_id, op, flags, data)
    }
}

impl<'scope, S: CanPostRecv, P: Provider> ScopedQp<'scope, S, P> {
    /// Posts a receive into a range of `memory` and returns the request's `wr_id`.
    ///
    /// # Errors
    /// Same as [`Qp::post_recv_buf`]; the error holds the memory, which
    /// [`Scope::reclaim`](crate::Scope::reclaim) makes usable again.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv_buf(
        &mut self,
        memory: ScopedBuf<'scope>,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<ScopedMemory>> {
        let token = Token(memory.into_memory(Flight::new(&self.count)));
        self.qp.recv_queue().post_recv_buf(token, range).map_err(given_back)
    }
}

impl<S: CanPostRecv, P: Provider> ScopedQp<'_, S, P> {
    /// Posts a receive without memory as [`Qp::post_recv_empty`] does.
    ///
    /// # Errors
    /// Same as [`Qp::post_recv_empty`].
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv_empty(&mut self) -> Result<u64, PostBufReason> {
        self.qp.recv_queue().post_recv_empty()
    }
}

impl<S: State, P: Provider> ScopedQp<'_, S, P> {
    /// Returns the queue pair's number for peers, 24 bits.
    pub fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }
}

/// Queue pairs that can move into a scope: [`Qp`], tuples of two to four of them, and vectors.
pub trait QueuePairs: sealed::QueuePairs {
    /// The queue pairs as the closure receives them: [`ScopedQp`]s.
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
        if qp.reset_ends_requests() {
            match qp.to_reset() {
                Ok(mut reset) => {
                    drop(reset.reclaim_all());
                    return None;
                }
                // Dropping the handle would try to destroy the queue pair again and report the leak
                // twice.
                Err(refused) => core::mem::forget(refused.handle),
            }
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

impl<S: State, P: Provider> fmt::Debug for ScopedQp<'_, S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScopedQp").field(&self.qp).finish()
    }
}

mod sealed {
    /// Seals the set of queue pairs.
    pub trait QueuePairs: Sized {
        type Held;

        fn hold(self) -> Self::Held;
    }
}
