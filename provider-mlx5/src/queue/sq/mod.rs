//! The send queue.
//!
//! ```text
//!   post_one   check everything ──► fill the entry, record its number   nothing if rejected
//!   ring       doorbell record ──► register                             for all since the last
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `queue` | the queue: its free space and its doorbell |
//! | `limits` | the maximum lengths of requests on the fast path |
//! | `plain` | the fast path |
//! | `special` | every other request |
//! | `frame` | segments for the frames of raw packet queue pairs |
//! | `umr` | segments for operations on keys: binding and invalidating memory windows |
//!
//! Six functions turn a request into a work queue entry (WQE), a list of segments:
//!
//! | function | when it is used |
//! |---|---|
//! | `put_wqe` | first, for every request; the fast path handles common ones |
//! | `put_block` | by `put_wqe`, for the operation it has found: stores a WQE of one block |
//! | `post_rare` | by callers of [`FastPath::Shared`], for operations that are rare there |
//! | `post_any` | for a request the fast path does not take: checks it, and posts or rejects it |
//! | `put_segments` | by `post_any`: stores a WQE of any size |
//! | `put_control` | last, for every WQE: stores the control segment and records the request |
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
