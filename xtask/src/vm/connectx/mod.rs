//! The ConnectX model beside a guest: what the command line says of it, its process, and its verdict on the guest.
//!
//! ```text
//! connectx-model ── listens on function0, function1, connectx ──► QEMU connects to all of them ──► the guest's mlx5_core
//!       │ "ready"                                                                │
//!       └─ ends when QEMU has closed them: 0, or 1 if the guest broke rules ◄────┘
//! ```
//!
//! Sockets are named relative to the guest's own directory, in which the model and QEMU are started: a socket's path may
//! not be longer than 107 bytes, and a cache directory can be anywhere.
//!
//! Invariant: a guest that broke a rule has failed, whatever its command's status, unless that was asked for.

mod model;
mod options;
mod verdict;

pub(super) use self::model::Model;
pub(crate) use self::model::Sockets;
pub(crate) use self::options::{Options, Port, build};
pub(super) use self::verdict::Verdict;
