//! The send queue.
//!
//! ```text
//!   post_one   check everything ──► fill the entry, record its number   nothing if rejected
//!   ring       doorbell record ──► register                             for all since the last
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `queue` | the queue: its room, the doorbell |
//! | `limits` | the lengths of requests on the fast path |
//! | `plain` | the fast path |
//! | `special` | every other request |
//! | `frame` | segments of raw packet queue pairs' frames |
//! | `umr` | segments of operations on keys: the binds and invalidations of memory windows |
//!
//! Six functions turn a request into a work queue entry (WQE), a list of segments:
//!
//! | function | when it is used |
//! |---|---|
//! | `put_wqe` | for every request first; the fast path takes common ones |
//! | `put_block` | by `put_wqe`, for the operation that it found: a WQE of one block |
//! | `post_rare` | by callers of [`FastPath::Shared`], for operations that are rare there |
//! | `post_any` | for a request that the fast path does not take: checks it, or says why not |
//! | `put_segments` | by `post_any`: a WQE of any size |
//! | `put_control` | for every WQE last: its control segment, and the record of the request |
//!
//! # References
//! `ibv_post_send(3)`; rdma-core `providers/mlx5/qp.c`

mod frame;
mod limits;
mod plain;
mod queue;
mod special;
#[cfg(test)]
mod tests;
mod umr;

pub(crate) use self::frame::{Frames, L2_HEADER};
pub use self::queue::Sq;
pub(crate) use self::queue::{Parts, Shape};
