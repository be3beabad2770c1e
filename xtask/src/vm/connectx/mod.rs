//! The ConnectX model beside a guest: its command line, its process, and its verdict on the guest.
//!
//! ```text
//! connectx-model ── listens on function0, function1, connectx ──► QEMU connects ──► mlx5_core
//!       │ "ready"                                                          │
//!       └─ ends when QEMU has closed them: 0, or 1 if the guest broke rules ◄──┘
//! ```
//!
//! Sockets are named relative to the guest's own directory, in which the model and QEMU start: a
//! socket's path has at most 107 bytes, and the cache directory can have a long path.
//!
//! Invariant: a guest that broke a rule has failed, whatever its command's status, unless the
//! caller allowed it.

mod model;
mod options;
mod verdict;

pub(super) use self::model::Model;
pub(crate) use self::model::Sockets;
pub(crate) use self::options::{Options, Port, build};
pub(super) use self::verdict::Verdict;
