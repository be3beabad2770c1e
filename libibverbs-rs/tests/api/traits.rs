//! The handles that can be sent to other threads or shared with them.

use static_assertions::{assert_impl_all, assert_not_impl_any};
use verbs::state::{Reset, Rts};

assert_impl_all!(verbs::Context: Clone, Send, Sync);
assert_impl_all!(verbs::Pd: Clone, Send, Sync);
assert_impl_all!(verbs::Mr: Send, Sync);
assert_impl_all!(verbs::Buf: Send, Sync);
assert_impl_all!(verbs::Exposed: Clone, Send, Sync);
assert_impl_all!(verbs::FrozenBuf: Clone, Send, Sync);
assert_impl_all!(verbs::Ah: Send, Sync);
assert_impl_all!(verbs::CompChannel: Send, Sync);
assert_impl_all!(verbs::AsyncEvents: Send, Sync);
assert_impl_all!(verbs::DeviceList: Clone, Send, Sync);
assert_impl_all!(verbs::Returned: Send);
assert_impl_all!(verbs::Completed: Send);
assert_impl_all!(verbs::CqHandle: Clone, Send, Sync);
assert_impl_all!(verbs::Endpoint: Copy, Send, Sync);

// A queue pair belongs to one thread at a time, as does each half.
assert_impl_all!(verbs::Cq: Send);
assert_impl_all!(verbs::Qp<Rts>: Send);
assert_impl_all!(verbs::SendHalf: Send);
assert_impl_all!(verbs::RecvHalf: Send);
#[cfg(feature = "rxe")]
assert_impl_all!(verbs::Qp<Rts, verbs::rxe::Rxe>: Send);
#[cfg(feature = "rxe")]
assert_impl_all!(verbs::Cq<verbs::rxe::Rxe>: Send);

// Owners of memory or objects cannot be cloned.
assert_not_impl_any!(verbs::Buf: Clone);
assert_not_impl_any!(verbs::Cq: Clone);
assert_not_impl_any!(verbs::Qp<Reset>: Clone);
assert_not_impl_any!(verbs::CompChannel: Clone);
assert_not_impl_any!(verbs::SendHalf: Clone);
assert_not_impl_any!(verbs::RecvHalf: Clone);
assert_not_impl_any!(verbs::Returned: Clone);
// A completion proves that a request has ended and must not be copied out of its loop iteration.
assert_not_impl_any!(verbs::Completion<'static>: Clone);

#[test]
fn errors_are_small_where_posting_returns_them() {
    assert!(size_of::<verbs::PostError>() <= 32, "{}", size_of::<verbs::PostError>());
    assert!(size_of::<verbs::PostBufReason>() <= 32, "{}", size_of::<verbs::PostBufReason>());
}
