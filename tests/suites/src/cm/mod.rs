//! `cm`: connections by address, with both ends on the device under test: rxe and ConnectX through
//! the kernel's connection manager, soft through this project's.
//!
//! | file | content |
//! |---|---|
//! | [`connect`] | connections by IPv6 address; queue pair options |
//! | [`refuse`] | backlogs and unreachable addresses |
//! | [`life`] | ids that end, and their remains; many connections |
//! | [`killed`] | peers that are killed, in every state |
//! | [`removed`] | devices that are removed, in every state |
//! | [`moved`] | a bond that fails over |
//! | [`process`] | forks and signals |
//! | [`threads`] | several threads that share a channel |
//! | [`server`] | listeners on the device under test |
//!
//! The `connect` topics in the suite `conformance` cover InfiniBand ports and every device with an
//! address.
//!
//! The suite `soft_interop` connects soft devices with rxe.

mod connect;
pub(super) mod killed;
mod life;
mod moved;
mod process;
mod refuse;
mod removed;
mod server;
mod threads;

use verbs_harness::runner::Case;

/// Returns the cases of the suite on rxe.
pub fn cases() -> Vec<Case> {
    [of_interface(), removed::cases(), moved::cases()].into_iter().flatten().collect()
}

/// Returns the part of the suite for kernel devices whose network interface has the address
/// 10.9.9.1.
pub fn of_interface() -> Vec<Case> {
    [
        of_any_device(),
        connect::of_interface(),
        refuse::of_interface(),
        life::of_interface(),
        process::of_interface(),
        killed::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the part of the suite that also runs on a provider's own devices.
pub fn of_any_device() -> Vec<Case> {
    [
        connect::of_any_device(),
        refuse::of_any_device(),
        life::of_any_device(),
        process::of_any_device(),
        threads::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
