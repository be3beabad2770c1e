//! Polling a completion queue: a ring that the device fills.
//!
//! | file | contents |
//! |---|---|
//! | `poller` | polling completions one by one |
//! | `runs` | polling several completions of one queue pair at once |
//! | `resize` | replacing the ring |
//! | `scatter` | data in completions |
//! | `compressed` | entries that represent several completions |
//! | `compression` | the format of such entries |
//! | `completion` | a completion borrowed from the poller |
//! | `cqe` | an entry's fields |
//! | `lists` | the lists of requests, for `scatter` |
//! | `table` | the queues that complete to a completion queue |
//! | `shared_cq` | changes to these queues by other threads |
//! | `vendor` | the vendor's public error syndromes |
//!
//! Queues are created for entries of version 1, which contain the user index of the queue pair.
//!
//! # References
//! `ibv_poll_cq(3)`; rdma-core `providers/mlx5/cq.c`

mod completion;
mod compressed;
mod compression;
mod cqe;
mod lists;
mod poller;
mod resize;
mod runs;
mod scatter;
mod shared_cq;
mod table;
#[cfg(test)]
mod tests;
mod vendor;

pub use self::completion::Completion;
pub(crate) use self::completion::Optional;
pub use self::compression::CqeCompression;
pub(crate) use self::compression::VARIABLE as COMPRESSION_VARIABLE;
pub(crate) use self::cqe::CQE64 as CQE_FIELDS;
pub(crate) use self::lists::{Lists, RecvLists, SendLists};
pub(crate) use self::poller::Poller;
pub(crate) use self::shared_cq::{Ring, SharedCq};
pub(crate) use self::table::{Queues, Receives};
pub use self::vendor::vendor_err_text;
