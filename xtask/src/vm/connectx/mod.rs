//! The ConnectX model beside a guest: its command line, its process and its verdict on the guest.
//!
//! ```text
//! connectx-model ── listens on function0, function1, connectx ──► QEMU connects ──► mlx5_core
//!       │ "ready"                                                          │
//!       └─ ends when QEMU has closed them: 0, or 1 if the guest broke rules ◄──┘
//! ```
//!
//! Invariant: a guest that broke a rule has failed, whatever its command's status, unless the
//! caller allowed broken rules.

mod model;
mod options;
mod verdict;

pub(super) use self::model::Model;
pub(crate) use self::options::{Options, build};
pub(super) use self::verdict::Verdict;
pub(crate) use super::job::Port;
