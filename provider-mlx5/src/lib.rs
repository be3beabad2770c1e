//! The provider for ConnectX devices (`mlx5`): queues in memory that the device reads by itself,
//! and doorbells in its registers. No system call stands between a request and its completion.
//!
//! | module | what it is |
//! |---|---|
//! | `wqe` | the segments of a work queue entry |
//! | `record` | the requests in a queue, shared by poster and poller |
//! | `doorbell` | doorbell records and registers |
//! | `sq` | [`Sq`], posting sends |
//! | `rq` | [`Rq`], posting receives |
//! | `cq` | polling completions |
//! | `paper` | the device's side of the queues in plain memory, for tests and benchmarks |
//!
//! This is the data path. It runs on plain memory; what makes its objects by the kernel's commands
//! is not built yet.

mod cq;
mod doorbell;
#[doc(hidden)]
pub mod paper;
mod record;
mod rq;
mod sq;
mod wqe;

pub use cq::Completion;
pub use rq::Rq;
pub use sq::Sq;

/// The tag of address vectors that this provider makes: its kernel driver's id.
pub(crate) const AV_TAG: u32 = 1;
